//! Finds paths that lead to the same device: links, device nodes, loop devices on a file, and the paths that a
//! multipath or RAID device is made of.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use rustix::fs::{major, minor};

pub(super) use crate::device::SYS;
use crate::device::file_of_loop;

/// The file or device that a path leads to. Two paths with the same target show the same bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum PathTarget {
    /// A file: number of its file system, and number of the file.
    File(u64, u64),
    /// A block device: its major and minor number.
    Block(u32, u32),
}

/// Returns the target of a path, or `None` if it leads to neither a file nor a block device. `sys` is [`SYS`].
pub(super) fn target(path: &Path, sys: &Path) -> Option<PathTarget> {
    let meta = fs::metadata(path).ok()?;
    if meta.file_type().is_block_device() {
        let (major, minor) = (major(meta.rdev()), minor(meta.rdev()));
        return Some(
            file_below(&sys.join(format!("{major}:{minor}"))).unwrap_or(PathTarget::Block(major, minor)),
        );
    }
    meta.is_file().then(|| PathTarget::File(meta.dev(), meta.ino()))
}

/// Returns the file that a loop device shows from its first byte to its last.
fn file_below(device: &Path) -> Option<PathTarget> {
    let meta = fs::metadata(file_of_loop(device)?).ok()?;
    meta.is_file().then(|| PathTarget::File(meta.dev(), meta.ino()))
}

/// Returns the block devices that are made of this one: multipath, RAID, volumes.
pub(super) fn made_of(target: PathTarget, sys: &Path) -> BTreeSet<PathTarget> {
    let mut found = BTreeSet::new();
    let mut open = vec![target];
    while let Some(PathTarget::Block(major, minor)) = open.pop() {
        let Ok(holders) = fs::read_dir(sys.join(format!("{major}:{minor}")).join("holders")) else {
            continue;
        };
        for holder in holders.flatten() {
            let number = fs::read_to_string(holder.path().join("dev")).unwrap_or_default();
            let parsed = number
                .trim()
                .split_once(':')
                .and_then(|(major, minor)| Some(PathTarget::Block(major.parse().ok()?, minor.parse().ok()?)));
            if let Some(above) = parsed
                && found.insert(above)
            {
                open.push(above);
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_and_nodes_lead_to_one_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        fs::write(path("a"), "a").unwrap();
        fs::write(path("b"), "a").unwrap();
        fs::hard_link(path("a"), path("hard")).unwrap();
        std::os::unix::fs::symlink(path("a"), path("soft")).unwrap();
        let of = |name: &str| target(&path(name), Path::new(SYS));
        assert!(of("a").is_some() && of("a") == of("hard") && of("a") == of("soft"));
        assert_ne!(of("a"), of("b"));
        assert_eq!(of("nothing"), None);
        assert_eq!(target(dir.path(), Path::new(SYS)), None);
    }

    #[test]
    fn paths_of_a_multipath_device_are_below_it() {
        let dir = tempfile::tempdir().unwrap();
        for (lower, upper) in [("8:0", "253:0"), ("8:16", "253:0"), ("253:0", "253:1")] {
            let holder = dir.path().join(lower).join("holders").join(upper);
            fs::create_dir_all(&holder).unwrap();
            fs::write(holder.join("dev"), format!("{upper}\n")).unwrap();
        }
        let above = made_of(PathTarget::Block(8, 16), dir.path());
        assert_eq!(above, BTreeSet::from([PathTarget::Block(253, 0), PathTarget::Block(253, 1)]));
        assert!(made_of(PathTarget::Block(253, 1), dir.path()).is_empty());
        assert!(made_of(PathTarget::File(8, 16), dir.path()).is_empty());
    }

    #[test]
    fn a_loop_device_is_the_file_that_it_shows() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "a").unwrap();
        let about = dir.path().join("7:0/loop");
        fs::create_dir_all(&about).unwrap();
        fs::write(about.join("backing_file"), format!("{}\n", file.display())).unwrap();
        fs::write(about.join("sizelimit"), "0\n").unwrap();
        for (offset, same) in [("0\n", true), ("1048576\n", false)] {
            fs::write(about.join("offset"), offset).unwrap();
            let found = file_below(&dir.path().join("7:0"));
            assert_eq!(found == target(&file, Path::new(SYS)) && found.is_some(), same);
        }
    }
}
