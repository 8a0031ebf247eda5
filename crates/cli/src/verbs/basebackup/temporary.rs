//! Snapshots that are made for one backup, and destroyed with it. If a process is killed, the next one destroys its
//! snapshots.

use std::fs;

use pagefold_server::failure::{Context, Failure, Result};
use pagefold_server::names::Name;
use pagefold_server::operations::Operation;
use pagefold_server::units;

use crate::datasets;
use crate::verbs::properties;

/// Prefix of their names.
const PREFIX: &str = "basebackup-";
/// Prefix of the names of mounts for a backup.
pub const BACKUP: &str = PREFIX;
/// Prefix of the names of mounts for a restore.
pub const RESTORE: &str = "restore-";
/// Property that names their owner: the machine's boot, a process number, and the time at which that process started.
const OWNER: &str = "basebackup:process";

/// A snapshot that is destroyed when this is dropped.
pub struct Temporary {
    /// The snapshot.
    pub name: Name,
}

impl Temporary {
    /// Makes a snapshot of a dataset as it is now.
    pub fn make(dataset: &Name, suffix: &str) -> Result<Self> {
        let pid = std::process::id();
        let owner = identity(pid).ok_or_else(|| Failure::new("cannot read /proc/self/stat"))?;
        let time = units::utc(units::now()).replace(" UTC", "").replace([' ', ':'], "-");
        let path = format!("{}@{PREFIX}{time}-{pid}{suffix}", dataset.path);
        let operation = Operation::Snapshot {
            snapshots: vec![path.clone()],
            recursive: false,
            properties: vec![(OWNER.into(), owner)],
        };
        datasets::perform(&dataset.pool, operation)?;
        Ok(Self { name: Name::new(&dataset.pool, &path) })
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if let Err(failure) = destroy(&self.name) {
            let name = &self.name;
            eprintln!(
                "pagefold: the snapshot {name} is left: {failure}\n  destroy it: pagefold destroy {name}"
            );
        }
    }
}

fn destroy(snapshot: &Name) -> Result<()> {
    let operation =
        Operation::Destroy { what: vec![snapshot.path.clone()], recursive: false, dry_run: false };
    datasets::perform(&snapshot.pool, operation).map(drop)
}

/// Returns a text that names a living process of this machine, and no other one ever.
fn identity(pid: u32) -> Option<String> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The fields counted here follow the program's name, which may have blanks in it; the 20th is the time of its
    // start.
    let started = stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.to_owned();
    Some(format!("{} {pid} {started}", boot.trim()))
}

/// Returns true if the process that `owner` names has ended.
fn is_over(owner: &str) -> bool {
    let pid = owner.split(' ').nth(1).and_then(|pid| pid.parse().ok());
    pid.is_some_and(|pid| identity(pid).as_deref() != Some(owner))
}

/// Returns a name for something that lasts no longer than this process, unless the process is killed. The prefix is
/// [`BACKUP`] or [`RESTORE`].
pub fn own_name(prefix: &str, number: usize) -> Option<String> {
    let own = identity(std::process::id())?;
    Some(format!("{prefix}{number}-{}", own.replace(' ', "_")))
}

/// Returns true if `name` is an [`own_name`] of a process that has ended.
pub fn is_left_behind(name: &str) -> bool {
    let number = [BACKUP, RESTORE].iter().find_map(|prefix| name.strip_prefix(prefix));
    let owner = number.and_then(|name| name.split_once('-'));
    owner.is_some_and(|(_, owner)| is_over(&owner.replace('_', " ")))
}

/// Destroys snapshots of backups whose process was killed.
pub fn destroy_left_behind(dataset: &Name) -> Result<()> {
    let begins = format!("{}@{PREFIX}", dataset.path);
    for figures in datasets::of_pool(&dataset.pool)? {
        if !figures.is_snapshot || !figures.path.starts_with(&begins) {
            continue;
        }
        let name = Name::new(&dataset.pool, &figures.path);
        let values = properties::values(&name)?;
        if values.iter().any(|value| value.name == OWNER && is_over(&value.value)) {
            destroy(&name).context(|| format!("cannot destroy {name}, which a killed backup has left"))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_told_from_others_of_its_number() {
        let own = identity(std::process::id()).unwrap();
        assert!(!is_over(&own));
        let mut child = std::process::Command::new("/bin/true").spawn().unwrap();
        let other = identity(child.id()).unwrap();
        child.wait().unwrap();
        assert!(is_over(&other));
        let (before, _) = own.rsplit_once(' ').unwrap();
        assert!(is_over(&format!("{before} 1")));
        for prefix in [BACKUP, RESTORE] {
            let name = own_name(prefix, 3).unwrap();
            assert!(!is_left_behind(&name) && is_left_behind(&format!("{name}1")), "{name}");
        }
        assert!(!is_left_behind("tank.sock"));
        // Somebody else's value is left alone.
        assert!(!is_over("mine") && !is_over(""));
    }
}
