//! Finds out who keeps a mount busy or alive: processes with open files, current directories or mapped files; other
//! mount namespaces; the kernel itself.

use std::collections::HashSet;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use pagefold_server::mounts::{self, MountEntry};
use pagefold_server::raw::shown;
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};

use crate::table;

/// Largest number of users that an error or a notice lists.
pub const SHOWN: usize = 10;

/// A process, or something else, that holds a mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountUser {
    /// Number of the process; `None` for anything else.
    pub pid: Option<u32>,
    /// Name of the process.
    pub command: String,
    /// The thing held, e.g. `open file /mnt/x`, `current directory`.
    pub what: String,
    /// True if it may let go by itself a moment later: the kernel, on behalf of no process.
    pub passes: bool,
}

/// Returns what holds `mount` so that it cannot be taken away: processes below it, and what is mounted or attached
/// there. Only root sees processes of other users.
pub fn of(mount: &MountEntry) -> Vec<MountUser> {
    let mut users = of_processes(mount.device, |target, _| target.starts_with(&mount.dir));
    if users.is_empty() {
        users = of_device(mount.device);
    }
    users.extend(mounted_below(mount));
    users
}

/// Returns the users of the file system with this device number, wherever it is or was mounted.
pub fn of_device(device: (u32, u32)) -> Vec<MountUser> {
    of_processes(device, |_, link| device_of(link) == Some(device))
}

/// Returns the processes that use the file system with this device number in this mount namespace, where its mount
/// cannot be taken away as long as they do.
pub fn of_device_here(device: (u32, u32)) -> Vec<MountUser> {
    let own = namespace("self");
    let is_here = |user: &MountUser| user.pid.is_some_and(|pid| namespace(&pid.to_string()) == own);
    of_device(device).into_iter().filter(is_here).collect()
}

/// Returns the other mount namespaces that have the file system with this device number: a process of each, and the
/// directory there.
pub fn elsewhere(device: (u32, u32)) -> Vec<MountUser> {
    let own = namespace("self");
    let mut seen: HashSet<PathBuf> = own.into_iter().collect();
    let mut found = Vec::new();
    for pid in processes() {
        let Some(namespace) = namespace(&pid.to_string()) else { continue };
        if !seen.insert(namespace) {
            continue;
        }
        for mount in mounts::of_process(pid) {
            if mount.device == device {
                let dir = table::printable(&pagefold_server::raw::text(&mount.dir));
                let what = format!("a copy of the mount in its mount namespace, at {dir}");
                found.push(MountUser { pid: Some(pid), command: command(pid), what, passes: false });
            }
        }
    }
    found
}

/// Formats users as lines of an error's advice, at most [`SHOWN`].
pub fn text(users: &[MountUser]) -> String {
    let one = |user: &MountUser| match user.pid {
        Some(pid) => format!("  process {pid} ({}): {}", user.command, user.what),
        None => format!("  {}", user.what),
    };
    let mut lines: Vec<String> = users.iter().take(SHOWN).map(one).collect();
    if users.len() > SHOWN {
        lines.push(format!("  and {} more", users.len() - SHOWN));
    }
    lines.join("\n")
}

/// Formats users in one line, at most [`SHOWN`].
pub fn words(users: &[MountUser]) -> String {
    match users {
        [] => "a process that is not yours, or by the kernel".to_owned(),
        some => text(some).trim_start().replace("\n  ", "; "),
    }
}

/// Returns the mount namespace of a process, as the kernel names it.
fn namespace(pid: &str) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{pid}/ns/mnt")).ok()
}

fn processes() -> Vec<u32> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let mut pids: Vec<u32> =
        entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    pids.sort_unstable();
    pids
}

fn command(pid: u32) -> String {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    table::printable(name.trim_end())
}

/// Returns the processes that have a link for which `holds` is true (given the link's target and the link itself), or
/// that have mapped a file with this device number. Links are read, not followed: the mount itself may hang.
fn of_processes(device: (u32, u32), holds: impl Fn(&Path, &Path) -> bool) -> Vec<MountUser> {
    let held_by = |pid: u32| {
        let what = held_by(pid, &holds).or_else(|| mapped_file(pid, device))?;
        Some(MountUser { pid: Some(pid), command: command(pid), what, passes: false })
    };
    processes().into_iter().filter_map(held_by).collect()
}

/// Returns the first thing found that `pid` holds.
fn held_by(pid: u32, holds: &impl Fn(&Path, &Path) -> bool) -> Option<String> {
    let process = PathBuf::from(format!("/proc/{pid}"));
    let is_held = |link: &Path| fs::read_link(link).ok().filter(|target| holds(target, link));
    for (link, what) in [("cwd", "current directory"), ("root", "root directory"), ("exe", "running program")]
    {
        if is_held(&process.join(link)).is_some() {
            return Some(what.into());
        }
    }
    let open = fs::read_dir(process.join("fd")).ok()?;
    let target = open.flatten().find_map(|link| is_held(&link.path()))?;
    Some(format!("open file {}", table::printable(&pagefold_server::raw::text(&target))))
}

/// Finds a mapped file of a device. Lines of `maps` are `start-end perms offset major:minor inode path`.
fn mapped_file(pid: u32, device: (u32, u32)) -> Option<String> {
    let maps = fs::read(format!("/proc/{pid}/maps")).ok()?;
    let device = format!("{:02x}:{:02x}", device.0, device.1);
    for line in maps.split(|byte| *byte == b'\n') {
        let mut fields = line.split(|byte| *byte == b' ').filter(|field| !field.is_empty());
        if fields.nth(3) == Some(device.as_bytes()) {
            let path = fields.nth(1).map(|path| String::from_utf8_lossy(path).into_owned());
            return Some(format!("mapped file {}", table::printable(&path.unwrap_or_default())));
        }
    }
    None
}

/// Returns the device number of the file that a link of /proc leads to. No attributes are asked for, so that the kernel
/// does not ask a server, which may hang.
fn device_of(link: &Path) -> Option<(u32, u32)> {
    let found = statx(CWD, link, AtFlags::STATX_DONT_SYNC, StatxFlags::empty()).ok()?;
    Some((found.stx_dev_major, found.stx_dev_minor))
}

/// Returns what is mounted below a mount, and loop devices whose files lie on it.
fn mounted_below(mount: &MountEntry) -> Vec<MountUser> {
    let kernel = |what: String, passes: bool| MountUser { pid: None, command: String::new(), what, passes };
    let all = mounts::all().unwrap_or_default();
    let below = all.iter().filter(|other| other.parent == mount.id && other.id != mount.id).map(|other| {
        kernel(format!("{} is mounted below it, at {}", kind_and_source(other), shown(&other.dir)), false)
    });
    let mut found: Vec<MountUser> = below.collect();
    let Ok(devices) = fs::read_dir("/sys/block") else { return found };
    for device in devices.flatten() {
        let Ok(file) = fs::read(device.path().join("loop/backing_file")) else { continue };
        let file = Path::new(std::ffi::OsStr::from_bytes(file.trim_ascii_end()));
        if file.starts_with(&mount.dir) {
            let (name, file) = (device.file_name(), table::printable(&pagefold_server::raw::text(file)));
            found.push(kernel(format!("/dev/{} lies on its file {file}", name.to_string_lossy()), true));
        }
    }
    found
}

/// Names what is mounted. The source of many file systems is any word: of a tmpfs often `none`.
fn kind_and_source(mount: &MountEntry) -> String {
    let source = table::printable(&mount.source);
    if mount.is_ours() { source } else { format!("a {} ({source})", table::printable(&mount.fs_type)) }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    fn mount(dir: PathBuf) -> MountEntry {
        MountEntry {
            id: u64::MAX,
            parent: 0,
            root: "/".into(),
            device: (0, 0xfff),
            dir,
            fs_type: "x".into(),
            source: "x".into(),
            options: String::new(),
        }
    }

    fn own(users: &[MountUser]) -> Option<&MountUser> {
        users.iter().find(|user| user.pid == Some(std::process::id()))
    }

    #[test]
    fn an_open_file_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let file = fs::File::create(dir.path().join("held")).unwrap();
        let users = of(&mount(dir.path().to_owned()));
        let what = &own(&users).unwrap().what;
        assert!(what.starts_with("open file ") && what.ends_with("/held"), "{what}");
        assert!(text(&users).contains("/held"));
        let device = file.metadata().unwrap().dev();
        let device = (rustix::fs::major(device), rustix::fs::minor(device));
        assert!(own(&of_device(device)).is_some(), "by its device, wherever it is mounted");
        assert!(own(&of_device_here(device)).is_some());
    }

    #[test]
    fn nobody_holds_what_nobody_opened() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(of(&mount(dir.path().to_owned())), []);
        assert_eq!(elsewhere((0, 0xfff)), []);
    }
}
