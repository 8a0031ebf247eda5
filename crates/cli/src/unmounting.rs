//! Takes several mounts away together, or none of them.
//!
//! The process that was asked does this itself, in its own mount namespace, as umount(8) would. One mount takes one
//! call of the kernel's. Of several, each is checked before the first goes. As long as one may refuse, a hidden copy of
//! each mount that went is kept: if one refuses, the others are put back where they were, with everything that was open
//! on them. (Only root may keep such copies. Other users are told which mounts are gone.)

use std::os::fd::OwnedFd;
use std::path::Path;

use pagefold_server::failure::{Failure, Result};
use pagefold_server::files;
use pagefold_server::mounts::MountEntry;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags, statx};
use rustix::io::Errno;
use rustix::mount::{OpenTreeFlags, UnmountFlags, open_tree};

use crate::{mountpoint, table};

/// Result of taking mounts away.
#[derive(Debug)]
pub enum UnmountOutcome {
    /// All are gone.
    Gone,
    /// This one is in use; all are where they were.
    Busy(MountEntry),
    /// The last one is in use; those before it are gone and could not be put back.
    Half(Vec<MountEntry>, MountEntry),
}

/// Takes mounts away, the last in the list first; with `lazy`, even if they are in use. Nothing is unmounted if one is
/// covered by another mount, which would go in its place.
pub fn unmount_all(mounts: &[MountEntry], lazy: bool) -> Result<UnmountOutcome> {
    if let Some(covered) = mounts.iter().find(|mount| !is_reached(mount, mounts)) {
        let dir = table::printable(&pagefold_server::raw::text(&covered.dir));
        return Err(Failure::new(format!(
            "something else was mounted above {}, at {dir} or above that",
            covered.source
        ))
        .hint(format!("unmount that first (findmnt {dir}); nothing was unmounted")));
    }
    if lazy {
        mounts.iter().rev().try_for_each(|mount| unmount(mount, true).map(drop))?;
        return Ok(UnmountOutcome::Gone);
    }
    if mounts.len() < 2 || !files::is_root() {
        return one_by_one(mounts);
    }
    match mounts.iter().rev().find(|mount| is_leaf(mount, mounts) && is_busy(mount)) {
        Some(busy) => Ok(UnmountOutcome::Busy(busy.clone())),
        None => unmount_together(mounts),
    }
}

/// A mount that was taken away, and a copy of it that keeps its file system alive.
struct DetachedMount<'a> {
    mount: &'a MountEntry,
    copy: OwnedFd,
}

fn unmount_together(mounts: &[MountEntry]) -> Result<UnmountOutcome> {
    let copies = mounts.iter().map(|mount| copy(&mount.dir).map(|copy| DetachedMount { mount, copy }));
    // A kernel that makes no copies (before Linux 5.2) takes them away one by one.
    let Ok(mut staying) = copies.collect::<Result<Vec<_>, Errno>>() else { return one_by_one(mounts) };
    let mut gone: Vec<DetachedMount<'_>> = Vec::new();
    while let Some(next) = staying.pop() {
        match unmount(next.mount, false) {
            Ok(true) => gone.push(next),
            Ok(false) => {
                let busy = next.mount.clone();
                let lost = put_back(gone);
                return Ok(if lost.is_empty() {
                    UnmountOutcome::Busy(busy)
                } else {
                    UnmountOutcome::Half(lost, busy)
                });
            }
            Err(failure) => {
                let lost = put_back(gone);
                return Err(if lost.is_empty() { failure } else { failure.hint(undone(&lost)) });
            }
        }
    }
    Ok(UnmountOutcome::Gone)
}

fn one_by_one(mounts: &[MountEntry]) -> Result<UnmountOutcome> {
    let mut gone = Vec::new();
    for mount in mounts.iter().rev() {
        if !unmount(mount, false)? {
            let busy = mount.clone();
            return Ok(if gone.is_empty() {
                UnmountOutcome::Busy(busy)
            } else {
                UnmountOutcome::Half(gone, busy)
            });
        }
        gone.push(mount.clone());
    }
    Ok(UnmountOutcome::Gone)
}

/// Puts mounts back, the last that went first. Returns those that could not be put back.
fn put_back(gone: Vec<DetachedMount<'_>>) -> Vec<MountEntry> {
    let mut lost = Vec::new();
    for DetachedMount { mount, copy } in gone.into_iter().rev() {
        if let Err(error) = mountpoint::attach(&copy, &mount.dir) {
            let dir = table::printable(&pagefold_server::raw::text(&mount.dir));
            eprintln!("pagefold: cannot mount {} at {dir} again: {error}", mount.source);
            lost.push(mount.clone());
        }
    }
    lost
}

/// Returns a text that lists the mounts that are gone although others stayed.
pub fn undone(gone: &[MountEntry]) -> String {
    let one = |mount: &MountEntry| {
        format!("{} from {}", mount.source, table::printable(&pagefold_server::raw::text(&mount.dir)))
    };
    let all: Vec<String> = gone.iter().map(one).collect();
    format!("unmounted before that, and not mounted again: {}", all.join(", "))
}

/// Makes a copy of a mount that is attached nowhere.
fn copy(dir: &Path) -> Result<OwnedFd, Errno> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_SYMLINK_NOFOLLOW
        | OpenTreeFlags::AT_NO_AUTOMOUNT;
    open_tree(CWD, dir, flags)
}

/// Returns true if the path of a mount leads to it, or to another one of the list.
fn is_reached(mount: &MountEntry, mounts: &[MountEntry]) -> bool {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
    match statx(CWD, &mount.dir, flags, StatxFlags::MNT_ID) {
        Ok(found) => mounts.iter().any(|other| other.id == found.stx_mnt_id),
        // The path leads into what was mounted above it.
        Err(Errno::NOENT | Errno::NOTDIR) => false,
        // A user who may not look at it gets that error from the kernel when it is unmounted.
        Err(_) => true,
    }
}

/// Returns true if no other mount of the list lies on it: only then does being in use mean that others use it.
fn is_leaf(mount: &MountEntry, mounts: &[MountEntry]) -> bool {
    !mounts.iter().any(|other| other.id != mount.id && other.parent == mount.id)
}

/// Returns true if a mount is in use. The first time that the kernel is asked to let a mount expire, it only marks the
/// mount, and it refuses if the mount is in use.
fn is_busy(mount: &MountEntry) -> bool {
    // Opening the path clears the mark of an earlier question, so that this one is the first.
    drop(rustix::fs::open(&mount.dir, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty()));
    rustix::mount::unmount(&mount.dir, UnmountFlags::EXPIRE | UnmountFlags::NOFOLLOW) == Err(Errno::BUSY)
}

/// Takes a mount away. Returns false if it is in use. A mount that was gone already counts as taken away.
fn unmount(mount: &MountEntry, lazy: bool) -> Result<bool> {
    use pagefold_fuse::MountError;
    match pagefold_fuse::unmount(&mount.dir, lazy) {
        Ok(()) | Err(MountError::NotMounted(_)) => Ok(true),
        Err(MountError::InUse(_)) => Ok(false),
        Err(error) => Err(pagefold_server::failure::Failure::new(error.to_string())),
    }
}

/// Returns the error for mounts of which only some could be taken away.
pub fn half_done(gone: &[MountEntry], busy: &MountEntry, who: &str) -> Failure {
    let dir = table::printable(&pagefold_server::raw::text(&busy.dir));
    Failure::new(format!("{dir} is in use")).hint(format!("{who}\n  {}", undone(gone)))
}
