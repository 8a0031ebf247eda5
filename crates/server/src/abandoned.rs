//! Aborts connections whose servers were killed, and cannot end by themselves ([`pagefold_fuse::abandoned`]).

use pagefold_fuse::{Here, Mounter as _, Unmount};
use rustix::fs::{CWD, Mode, OFlags, openat};

use crate::failure::Result;
use crate::mounts::{self, MountEntry};
use crate::stderr::write_line;

/// Aborts the connections of our mounts that only killed processes hold. Says which they were.
pub fn abort_all() -> Result<()> {
    let all = mounts::all()?;
    if !all.iter().any(MountEntry::is_ours) {
        return Ok(());
    }
    for connection in pagefold_fuse::abandoned() {
        if let Some(mount) = abort(&all, connection) {
            write_line(&format!(
                "the server of {} at {} was killed, and requests had no answer: they fail now",
                crate::raw::printable(&mount.source),
                mount.dir.display()
            ));
        }
    }
    Ok(())
}

/// Aborts a connection, by the minor number of its device, at a place where it is mounted and nothing lies above it.
/// Returns that mount. The mount stays: what lies below it does not appear.
pub fn abort(all: &[MountEntry], connection: u32) -> Option<&MountEntry> {
    let is_it = |mount: &&MountEntry| mount.is_ours() && mount.device == (0, connection);
    let is_reached =
        |mount: &&MountEntry| mounts::topmost(all, &mount.dir).is_some_and(|top| top.id == mount.id);
    let mount = all.iter().filter(is_it).find(is_reached)?;
    // A mount that is open is busy, and stays. Opening the path alone asks no server.
    let _open = openat(CWD, &mount.dir, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
    Here.unmount(&mount.dir, Unmount::Abort).ok().map(|()| mount)
}
