//! Which processes keep a mount busy: open files, directories they are in, mapped files.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::mounts::MountEntry;
use crate::table;

/// A process that holds something below a mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Its number.
    pub pid: u32,
    /// Its name.
    pub command: String,
    /// What it holds, e.g. `open file /mnt/x`, `current directory`.
    pub what: String,
}

/// Processes that hold `mount`; those of other users are seen by root alone.
pub fn of(mount: &MountEntry) -> Vec<Holder> {
    let Ok(processes) = fs::read_dir("/proc") else { return Vec::new() };
    let mut holders: Vec<Holder> = processes
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter_map(|pid| Some(Holder { pid, command: command(pid), what: held_by(pid, mount)? }))
        .collect();
    holders.sort_by_key(|holder| holder.pid);
    holders
}

/// Holders as lines of an error's hint, at most `limit`.
pub fn text(holders: &[Holder], limit: usize) -> String {
    let mut lines: Vec<String> = holders
        .iter()
        .take(limit)
        .map(|holder| format!("  process {} ({}): {}", holder.pid, holder.command, holder.what))
        .collect();
    if holders.len() > limit {
        lines.push(format!("  and {} more", holders.len() - limit));
    }
    lines.join("\n")
}

fn command(pid: u32) -> String {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    table::printable(name.trim_end())
}

/// The first thing found that `pid` holds. Links are read, not followed: the mount itself may hang.
fn held_by(pid: u32, mount: &MountEntry) -> Option<String> {
    let below = |link: &str| {
        let target = fs::read_link(format!("/proc/{pid}/{link}")).ok()?;
        is_below(&target, &mount.dir).then_some(target)
    };
    if below("cwd").is_some() {
        return Some("current directory".into());
    }
    if below("root").is_some() {
        return Some("root directory".into());
    }
    if below("exe").is_some() {
        return Some("running program".into());
    }
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).ok()?;
    for descriptor in descriptors.flatten() {
        let Ok(target) = fs::read_link(descriptor.path()) else { continue };
        if is_below(&target, &mount.dir) {
            return Some(format!("open file {}", table::printable(&crate::raw::text(&target))));
        }
    }
    mapped_file(pid, mount)
}

fn is_below(path: &Path, dir: &Path) -> bool {
    path.starts_with(dir)
}

/// A file of the mount's device that is mapped: `start-end perms offset major:minor inode path`.
fn mapped_file(pid: u32, mount: &MountEntry) -> Option<String> {
    let maps = fs::read(format!("/proc/{pid}/maps")).ok()?;
    let device = format!("{:02x}:{:02x}", mount.device.0, mount.device.1);
    for line in maps.split(|byte| *byte == b'\n') {
        let mut fields = line.split(|byte| *byte == b' ').filter(|field| !field.is_empty());
        if fields.nth(3) == Some(device.as_bytes()) {
            let path = fields.nth(1).map(|p| std::ffi::OsStr::from_bytes(p).to_string_lossy().into_owned());
            return Some(format!("mapped file {}", table::printable(&path.unwrap_or_default())));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn mount(dir: PathBuf) -> MountEntry {
        MountEntry { device: (0, 0xfff), dir, fs_type: "x".into(), source: "x".into(), read_only: false }
    }

    #[test]
    fn an_open_file_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let _file = fs::File::create(dir.path().join("held")).unwrap();
        let holders = of(&mount(dir.path().to_owned()));
        let own = holders.iter().find(|holder| holder.pid == std::process::id()).unwrap();
        assert!(own.what.starts_with("open file ") && own.what.ends_with("/held"), "{}", own.what);
        assert!(text(&holders, 5).contains("/held"));
    }

    #[test]
    fn nobody_holds_what_nobody_opened() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(of(&mount(dir.path().to_owned())), []);
    }
}
