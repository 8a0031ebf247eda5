//! Aborts connections whose servers were killed, and cannot end by themselves ([`pagefold_fuse::abandoned`]).

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
        let is_it = |mount: &&MountEntry| mount.is_ours() && mount.device == (0, connection);
        // A directory that was bound elsewhere is no root, but leads to the same connection.
        let aborts = |mount: &&MountEntry| pagefold_fuse::abort_abandoned(&mount.dir, connection);
        if let Some(mount) = all.iter().filter(is_it).find(aborts) {
            write_line(&format!(
                "the server of {} at {} was killed, and requests had no answer: they fail now",
                crate::raw::printable(&mount.source),
                mount.dir.display()
            ));
        }
    }
    Ok(())
}
