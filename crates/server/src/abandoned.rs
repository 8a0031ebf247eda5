//! Aborts connections whose servers were killed, and cannot end by themselves ([`pagefold_fuse::abandoned`]).

use crate::mounts::{self, MountEntry};
use crate::stderr::write_line;
use crate::{files, raw};

/// Aborts the connections of our mounts that only killed processes hold, and says which they were. Only root can tell
/// who holds a connection; for others, and where the kernel does not tell its mounts, this does nothing.
pub fn abort_all() {
    let Some(all) = files::is_root().then(mounts::all).and_then(Result::ok) else { return };
    if !all.iter().any(MountEntry::is_ours) {
        return;
    }
    for connection in pagefold_fuse::abandoned() {
        let is_it = |mount: &&MountEntry| mount.is_ours() && mount.device == (0, connection);
        // A directory that was bound elsewhere is no root, but leads to the same connection.
        let aborts = |mount: &&MountEntry| pagefold_fuse::abort_abandoned(&mount.dir, connection);
        if let Some(mount) = all.iter().filter(is_it).find(aborts) {
            write_line(&format!(
                "the server of {} at {} was killed, and requests had no answer: they fail now",
                raw::printable(&mount.source),
                mount.dir.display()
            ));
        }
    }
}
