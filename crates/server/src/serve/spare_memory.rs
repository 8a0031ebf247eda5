//! Reads how much memory this process can have, and how much of that is free: the machine's, and that of its control
//! groups (cgroup v1 and v2).
//!
//! Sources: proc(5) for `/proc/meminfo`, `/proc/self/cgroup` and `/proc/self/mountinfo`; cgroups(7) and the kernel's
//! documents "cgroup-v1/memory" and "cgroup-v2" for the files of a group.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const MEMINFO: &str = "/proc/meminfo";
const VMSTAT: &str = "/proc/vmstat";
/// Length of the buffer for a file of the kernel, more than any of these has.
const FILE_BYTES: usize = 16 << 10;
const REFAULTS: &str = "workingset_refault_file";

/// Memory of the machine, or of a control group that has a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Memory {
    /// Bytes that all processes may have together.
    pub(super) total_bytes: u64,
    /// Bytes of these that could be had now: unused ones, and page cache that nobody has mapped. Without its own code in
    /// memory, a program reads from a disc what it runs.
    pub(super) available_bytes: u64,
    /// Bytes of these that are page cache.
    pub(super) page_cache_bytes: u64,
    /// Number of pages that had to be read into the page cache again soon after they had been dropped, since some time.
    pub(super) refaults: u64,
}

/// The places that tell it.
#[derive(Debug)]
pub(super) struct SpareMemory {
    meminfo: File,
    /// Missing on a kernel without it.
    vmstat: Option<File>,
    groups: Vec<Group>,
}

/// Files of a control group, and the names of fields: its page cache, what of it is mapped, and what was read again.
#[derive(Debug)]
struct Group {
    limit: File,
    usage: File,
    stat: File,
    cached: [&'static str; 2],
    mapped: &'static str,
    refaults: &'static str,
}

/// Returns the number after `field` in a file of the kernel that has a field on each line.
fn number(text: &str, field: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(field))?;
    rest.strip_prefix(' ')?.parse().ok()
}

impl SpareMemory {
    /// Finds the groups that this process is in now.
    ///
    /// # Errors
    /// When the kernel does not tell the machine's memory.
    pub(super) fn find() -> io::Result<Self> {
        let meminfo = File::open(MEMINFO)?;
        let cgroup = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        // A group without such files sets no limit: the root has none, nor a group whose parent does not share memory out.
        let groups = folders(&cgroup, &mounts).into_iter();
        let groups = groups.filter_map(|(version, path)| Group::open(version, &path));
        Ok(Self { meminfo, vmstat: File::open(VMSTAT).ok(), groups: groups.collect() })
    }

    /// Returns the memory of the machine, and that of each group with a limit.
    ///
    /// # Errors
    /// When a file cannot be read, or has another form.
    pub(super) fn read(&self) -> io::Result<Vec<Memory>> {
        let text = read(&self.meminfo)?;
        let kib = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            let kib = line.and_then(|rest| rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
            kib.map(|kib| kib << 10).ok_or_else(|| io::Error::other(format!("{MEMINFO} has no line {name}")))
        };
        let cached = kib("Active(file)")? + kib("Inactive(file)")?;
        let mapped = kib("Mapped")?.min(cached);
        let vmstat = self.vmstat.as_ref().map(read).transpose()?.unwrap_or_default();
        let machine = Memory {
            total_bytes: kib("MemTotal")?,
            available_bytes: kib("MemAvailable")?.saturating_sub(mapped),
            page_cache_bytes: cached - mapped,
            refaults: number(&vmstat, REFAULTS).unwrap_or(0),
        };
        let mut all = vec![machine];
        for group in &self.groups {
            all.extend(group.read(machine.total_bytes)?);
        }
        Ok(all)
    }
}

impl Group {
    fn open(version: Version, path: &Path) -> Option<Self> {
        let open = |name: &str| File::open(path.join(name)).ok();
        let stat = open("memory.stat")?;
        Some(match version {
            Version::One => Self {
                limit: open("memory.limit_in_bytes")?,
                usage: open("memory.usage_in_bytes")?,
                stat,
                cached: ["total_inactive_file", "total_active_file"],
                mapped: "total_mapped_file",
                refaults: "total_workingset_refault_file",
            },
            Version::Two => Self {
                limit: open("memory.max")?,
                usage: open("memory.current")?,
                stat,
                cached: ["inactive_file", "active_file"],
                mapped: "file_mapped",
                refaults: REFAULTS,
            },
        })
    }

    /// Returns the group's memory, or `None` if it may have as much as the machine has.
    fn read(&self, machine_bytes: u64) -> io::Result<Option<Memory>> {
        // "max" in version 2, and a number beyond all memory in version 1, say that there is no limit.
        let limit = read(&self.limit)?.trim().parse::<u64>().ok();
        let Some(total_bytes) = limit.filter(|limit| *limit < machine_bytes) else { return Ok(None) };
        let usage = read(&self.usage)?;
        let usage = usage
            .trim()
            .parse::<u64>()
            .map_err(|_| io::Error::other("a control group's usage is no number"))?;
        let stat = read(&self.stat)?;
        let field = |name: &str| number(&stat, name).unwrap_or(0);
        let cached: u64 = self.cached.iter().map(|name| field(name)).sum();
        let page_cache_bytes = cached - field(self.mapped).min(cached);
        let available_bytes = total_bytes.saturating_sub(usage.saturating_sub(page_cache_bytes));
        Ok(Some(Memory { total_bytes, available_bytes, page_cache_bytes, refaults: field(self.refaults) }))
    }
}

fn read(file: &File) -> io::Result<String> {
    let mut text = [0; FILE_BYTES];
    let len = file.read_at(&mut text, 0)?;
    Ok(String::from_utf8_lossy(&text[..len]).into_owned())
}

/// Versions of control groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// Returns the folders of the groups that bound a process's memory, from its own to the outermost that it can see.
/// `cgroup` and `mounts` are the contents of `/proc/self/cgroup` and `/proc/self/mountinfo`.
fn folders(cgroup: &str, mounts: &str) -> Vec<(Version, PathBuf)> {
    let mut found = Vec::new();
    for (version, mount) in mounts.lines().filter_map(memory_mount) {
        let own = cgroup.lines().find_map(|line| {
            let mut parts = line.splitn(3, ':').skip(1);
            let (controllers, path) = (parts.next()?, parts.next()?);
            let is_it = match version {
                Version::One => controllers.split(',').any(|name| name == "memory"),
                Version::Two => controllers.is_empty(),
            };
            is_it.then_some(path)
        });
        let Some(own) = own else { continue };
        // Within a container the mount may show a part of the tree, and the path be one of the whole tree.
        let below = Path::new(own).strip_prefix(mount.root).unwrap_or(Path::new(""));
        let lowest = Path::new(mount.point).join(below);
        let up = lowest.ancestors().take_while(|path| path.starts_with(mount.point));
        found.extend(up.map(|path| (version, path.to_owned())));
    }
    found
}

/// A mounted tree of control groups: the folder of the tree that it shows, and the mount point.
struct GroupMount<'a> {
    root: &'a str,
    point: &'a str,
}

/// Reads a line of `/proc/self/mountinfo`, if it is of a tree that bounds memory.
fn memory_mount(line: &str) -> Option<(Version, GroupMount<'_>)> {
    let (mount, of) = line.split_once(" - ")?;
    let mut mount = mount.split(' ').skip(3);
    let mount = GroupMount { root: mount.next()?, point: mount.next()? };
    let mut of = of.split(' ');
    match (of.next()?, of.nth(1).unwrap_or_default()) {
        ("cgroup2", _) => Some((Version::Two, mount)),
        ("cgroup", options) if options.split(',').any(|name| name == "memory") => Some((Version::One, mount)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
31 23 0:26 / /sys/fs/cgroup/memory rw,nosuid - cgroup cgroup rw,memory
32 23 0:27 / /sys/fs/cgroup/blkio rw,nosuid - cgroup cgroup rw,blkio
33 23 0:28 / /sys/fs/cgroup/unified rw,nosuid shared:5 - cgroup2 cgroup2 rw";

    #[test]
    fn all_groups_above_a_process_are_found() {
        let cgroup = "4:memory:/a/b\n3:cpuset:/c\n0::/d\n";
        let found: Vec<_> =
            folders(cgroup, MOUNTS).into_iter().map(|(v, path)| (v, path.display().to_string())).collect();
        let expected = [
            (Version::One, "/sys/fs/cgroup/memory/a/b"),
            (Version::One, "/sys/fs/cgroup/memory/a"),
            (Version::One, "/sys/fs/cgroup/memory"),
            (Version::Two, "/sys/fs/cgroup/unified/d"),
            (Version::Two, "/sys/fs/cgroup/unified"),
        ];
        assert_eq!(found, expected.map(|(v, path)| (v, path.to_owned())));
        assert!(folders("", MOUNTS).is_empty() && folders(cgroup, "").is_empty());
    }

    #[test]
    fn a_container_sees_its_part_of_the_tree() {
        let mounts = "31 23 0:26 /docker/x /sys/fs/cgroup ro - cgroup2 cgroup rw";
        let paths = |cgroup| folders(cgroup, mounts).into_iter().map(|(_, path)| path).collect::<Vec<_>>();
        assert_eq!(paths("0::/docker/x/y"), ["/sys/fs/cgroup/y", "/sys/fs/cgroup"].map(PathBuf::from));
        assert_eq!(paths("0::/elsewhere"), [PathBuf::from("/sys/fs/cgroup")]);
    }

    #[test]
    fn a_group_tells_its_limit_and_the_page_cache_that_can_go() {
        let dir = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
        put("memory.current", "700\n");
        put(
            "memory.stat",
            "anon 300\ninactive_file 250\nactive_file 100\nfile 400\nfile_mapped 50\nworkingset_refault_file 7\n",
        );
        put("memory.max", "max\n");
        let read = || Group::open(Version::Two, dir.path()).unwrap().read(10_000).unwrap();
        assert_eq!(read(), None);
        put("memory.max", "1000\n");
        // Of 350 bytes of page cache 50 are mapped.
        let expected = Memory { total_bytes: 1000, available_bytes: 600, page_cache_bytes: 300, refaults: 7 };
        assert_eq!(read(), Some(expected));
        assert!(Group::open(Version::One, dir.path()).is_none());
        put("memory.current", "many\n");
        assert!(Group::open(Version::Two, dir.path()).unwrap().read(10_000).is_err());
    }

    #[test]
    fn this_machine_has_memory() {
        let all = SpareMemory::find().unwrap().read().unwrap();
        assert!(all.iter().all(|memory| memory.available_bytes <= memory.total_bytes), "{all:?}");
        assert!(all[0].total_bytes > 256 << 20, "{all:?}");
    }
}
