//! Notes which inodes are used directly, by handles for direct I/O: their writes and mappings make the kernel drop
//! cached pages, whoever is about to write these.
//!
//! A mapping sends no request. So an inode counts as long as such a handle is open, and [`DIRECT_REST`] longer: a
//! buffered write may have filled its pages before the handle was closed. Inodes are told apart exactly, since a
//! buffered write of an inode that counts may have to wait.

use crate::limits::DIRECT_REST;
use parking_lot::RwLock;
use std::collections::HashMap;
use std::time::Instant;

/// Number of maps, each with a lock of its own.
const SHARDS: usize = 16;
/// Number of inodes from which on a map forgets those that do not count any more.
const SWEPT_MIN: usize = 64;

/// How an inode is used.
#[derive(Clone, Copy, Debug)]
struct Use {
    /// Number of handles for direct I/O that are open.
    handles: u32,
    /// Time when the last of them was closed, or of the last use by a handle that was made direct later.
    last: Instant,
}

impl Use {
    fn counts(&self, now: Instant) -> bool {
        self.handles > 0 || now.saturating_duration_since(self.last) < DIRECT_REST
    }
}

#[derive(Debug, Default)]
struct Shard {
    uses: HashMap<u64, Use>,
    /// Number of inodes that are left by the last sweep.
    swept: usize,
}

/// The inodes of a mount that are used directly.
#[derive(Debug, Default)]
pub(crate) struct DirectUses {
    shards: [RwLock<Shard>; SHARDS],
}

impl DirectUses {
    fn shard(&self, ino: u64) -> &RwLock<Shard> {
        &self.shards[ino as usize % SHARDS]
    }

    fn change(&self, ino: u64, now: Instant, change: impl FnOnce(&mut Use)) {
        let mut shard = self.shard(ino).write();
        if shard.uses.len() >= SWEPT_MIN.max(2 * shard.swept) {
            shard.uses.retain(|_, known| known.counts(now));
            shard.swept = shard.uses.len();
        }
        let known = shard.uses.entry(ino).or_insert(Use { handles: 0, last: now });
        change(known);
        known.last = now;
    }

    /// Notes a handle for direct I/O, before anybody has it.
    pub(crate) fn opened(&self, ino: u64) {
        self.change(ino, Instant::now(), |known| known.handles = known.handles.saturating_add(1));
    }

    /// Notes that a handle for direct I/O was closed. One that was opened before this process took the mount over was
    /// not counted.
    pub(crate) fn closed(&self, ino: u64) {
        self.change(ino, Instant::now(), |known| known.handles = known.handles.saturating_sub(1));
    }

    /// Notes a direct read or write, by whatever handle, before it is carried out.
    pub(crate) fn used(&self, ino: u64) {
        if self.shard(ino).read().uses.get(&ino).is_none_or(|known| known.handles == 0) {
            self.change(ino, Instant::now(), |_| {});
        }
    }

    /// Returns true if the kernel may have dropped pages of the inode that a buffered write was about to send.
    pub(crate) fn counts(&self, ino: u64) -> bool {
        self.counts_at(ino, Instant::now())
    }

    fn counts_at(&self, ino: u64, now: Instant) -> bool {
        self.shard(ino).read().uses.get(&ino).is_some_and(|known| known.counts(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inode_counts_while_a_handle_is_open_and_some_time_longer() {
        let uses = DirectUses::default();
        let later = || Instant::now() + DIRECT_REST;
        uses.opened(5);
        uses.opened(5);
        uses.closed(5);
        assert!(uses.counts_at(5, later()) && !uses.counts(5 + SHARDS as u64));
        uses.closed(5);
        assert!(uses.counts(5) && !uses.counts_at(5, later()));
        // This one was opened before the mount was taken over.
        uses.used(6);
        uses.closed(6);
        assert!(uses.counts(6) && !uses.counts_at(6, later()));
    }

    #[test]
    fn inodes_that_do_not_count_are_forgotten() {
        let uses = DirectUses::default();
        let begin = Instant::now();
        for n in 0..10_000 {
            uses.change(n * SHARDS as u64, begin + DIRECT_REST * n as u32 / 100, |_| {});
        }
        let kept = uses.shards[0].read().uses.len();
        assert!((100..=300).contains(&kept), "{kept}");
    }
}
