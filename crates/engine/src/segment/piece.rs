//! Parts of directories, as they are cached: leaves without the entries of records that are dead.
//!
//! Where pages are written in no order, most records of a segment are dead long before it is cleaned. Nobody asks for
//! them, so their entries are left out when a leaf is read, and dropped after checkpoints when many have died. But
//! while a pool is opened, replay makes records live. So an entry that is missing says nothing: the leaf is read again,
//! and keeps what was asked for.

use std::sync::Arc;

use quick_cache::Weighter;

use super::directory::{DirEntry, DirRef, Directory, Index, LEAF_SLOTS};
use super::table::Segments;
use crate::Addr;
use crate::space::Extent;

/// A leaf is made smaller if at most so many parts in four of its entries are those of live records.
const LIVE_QUARTERS: usize = 3;
/// Leaves are looked through as soon as this part of their entries, one in so many, may have become those of dead
/// records.
const DEAD_SHARE: u64 = 8;

/// Key of a part of a directory in the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct PieceKey {
    segment: u64,
    extent: Extent,
    /// Tells two directories at one place apart: a segment that was moved twice may lie where it lay before.
    checksum: u32,
    /// Number of the leaf; `None` for the index.
    leaf: Option<u32>,
}

impl PieceKey {
    /// Returns the key of the leaf that has the entry of `slot`, in the directory at `dir` of `extent`.
    pub(super) fn leaf(segment: u64, extent: Extent, dir: DirRef, slot: u32) -> Self {
        Self { segment, extent, checksum: dir.checksum, leaf: Some(slot / LEAF_SLOTS) }
    }

    /// Returns the key of the index of the directory at `dir` of `extent`.
    pub(super) fn index(segment: u64, extent: Extent, dir: DirRef) -> Self {
        Self { segment, extent, checksum: dir.checksum, leaf: None }
    }
}

/// A part of a directory, as it is cached.
#[derive(Clone)]
pub(super) enum Piece {
    Index(Arc<Index>),
    Leaf(Arc<Directory>),
}

#[derive(Clone)]
pub(super) struct PieceWeight;

impl Weighter<PieceKey, Piece> for PieceWeight {
    fn weight(&self, _key: &PieceKey, piece: &Piece) -> u64 {
        let memory_bytes = match piece {
            Piece::Index(index) => index.memory_bytes(),
            Piece::Leaf(leaf) => leaf.memory_bytes(),
        };
        memory_bytes as u64 + 64
    }
}

impl Segments {
    /// Puts the leaves of a directory that was just written into the cache, with all entries.
    pub(super) fn keep_written(&self, id: u64, extent: Extent, dir: DirRef, directory: &Directory) {
        for (number, entries) in directory.leaves() {
            let key = PieceKey::leaf(id, extent, dir, number * LEAF_SLOTS);
            self.directories.insert(key, Piece::Leaf(Arc::new(entries.into())));
        }
    }

    /// Puts the leaves of a directory that was read for `asked` into the cache.
    pub(super) fn keep_read(&self, asked: Addr, extent: Extent, dir: DirRef, directory: &Directory) {
        for (number, entries) in directory.leaves() {
            let key = PieceKey::leaf(asked.segment(), extent, dir, number * LEAF_SLOTS);
            let kept = self.without_dead(asked.segment(), entries, Some(asked.slot()));
            self.directories.insert(key, Piece::Leaf(Arc::new(kept.unwrap_or_else(|| entries.into()))));
        }
    }

    /// Returns the entry of a record, if it is in memory.
    pub(super) fn kept_entry(&self, addr: Addr, extent: Extent, dir: DirRef) -> Option<DirEntry> {
        match self.directories.get(&PieceKey::leaf(addr.segment(), extent, dir, addr.slot()))? {
            Piece::Leaf(leaf) => leaf.get(addr.slot()),
            Piece::Index(_) => None,
        }
    }

    /// Drops from memory the entries of records that have died, where they are many. Each checkpoint calls this.
    pub(crate) fn trim_directories(&self) {
        let entries = self.directories.weight() / size_of::<DirEntry>() as u64;
        if self.inner.read().died < entries / DEAD_SHARE {
            return;
        }
        self.inner.write().died = 0;
        for (key, piece) in self.directories.iter() {
            let Piece::Leaf(leaf) = piece else { continue };
            match self.without_dead(key.segment, leaf.entries(), None) {
                Some(kept) if kept.entries().is_empty() => drop(self.directories.remove(&key)),
                // It may have been dropped meanwhile, or read anew; then what is there stays, or is read once more.
                Some(kept) => drop(self.directories.replace(key, Piece::Leaf(Arc::new(kept)), true)),
                None => {}
            }
        }
    }

    /// Returns those of a leaf's entries whose records are live, and that of `asked`; `None` if that saves little, or if
    /// nothing in memory tells.
    fn without_dead(&self, id: u64, entries: &[DirEntry], asked: Option<u32>) -> Option<Directory> {
        let inner = self.inner.read();
        // A segment that is gone has no live records.
        let live = inner.segments.get(id).ok()?.map(|segment| &segment.live);
        let is_live = |slot| live.is_some_and(|live| live.get(slot));
        let stays = |entry: &&DirEntry| is_live(entry.slot) || asked == Some(entry.slot);
        let count = entries.iter().filter(stays).count();
        if count * 4 > entries.len() * LIVE_QUARTERS {
            return None;
        }
        let mut kept = Vec::with_capacity(count);
        kept.extend(entries.iter().filter(stays));
        Some(kept.as_slice().into())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::Ptr;
    use crate::device::{AlignedBuf, Device, Devices, SimDevice};
    use crate::limits::CHUNK_BYTES;
    use crate::segment::{Part, Segment};
    use crate::space::Chunk;

    const SEGMENT: u64 = 7;
    const SLOTS: u32 = 16 * LEAF_SLOTS;
    const LEN_BYTES: u32 = 60;

    struct Stored {
        segments: Segments,
        devices: Devices,
        device: Arc<SimDevice>,
    }

    impl Stored {
        /// A segment of many records, of which those are live, on a device. Nothing of its directory is in memory.
        fn new(is_live: impl Fn(u32) -> bool) -> Self {
            let device = Arc::new(SimDevice::new(64 << 20, 1));
            let chunk = Chunk { device: 0, index: 1 };
            let extent = Extent { chunk, start: 0, len_bytes: CHUNK_BYTES as u32 };
            let mut directory = Directory::default();
            for slot in 0..SLOTS {
                let start = slot * LEN_BYTES;
                directory.push(DirEntry { slot, start, len_bytes: LEN_BYTES, checksum: slot ^ 0x5555_5555 });
            }
            let stored = directory.encode(SEGMENT);
            let start = (SLOTS * LEN_BYTES).next_multiple_of(4096);
            let buf = AlignedBuf::from_bytes(&stored.bytes);
            device.write(chunk.offset() + u64::from(start), &buf, true).unwrap();
            let parts = vec![Part { first_slot: 0, extent, directory: Some(stored.at(start, 0)) }];
            let mut segment = Segment { parts: parts.into(), slots: SLOTS, ..Segment::fresh(SEGMENT, chunk) };
            (0..SLOTS).filter(|slot| is_live(*slot)).for_each(|slot| {
                segment.revive(slot, LEN_BYTES).unwrap();
            });
            let segments = Segments::new(8 << 20);
            segments.insert(segment).unwrap();
            let devices = Devices::all(vec![Arc::clone(&device) as Arc<dyn Device>]);
            Self { segments, devices, device }
        }

        fn reads(&self) -> u64 {
            self.device.stats().counts().reads
        }

        /// Returns the slots whose entries are in memory.
        fn known(&self) -> Vec<u32> {
            (0..SLOTS).filter(|slot| self.segments.try_locate(addr(*slot)).is_some()).collect()
        }

        fn locate_one_of_each_leaf(&self) {
            for slot in (0..SLOTS).step_by(LEAF_SLOTS as usize) {
                self.segments.locate(&self.devices, addr(slot)).unwrap();
            }
        }

        fn kill(&self, which: impl Fn(u32) -> bool) {
            let dead = (0..SLOTS).filter(|slot| which(*slot));
            let dead: Vec<Ptr> = dead.map(|slot| Ptr { addr: addr(slot), len_bytes: LEN_BYTES }).collect();
            self.segments.mark_dead(&dead);
        }
    }

    fn addr(slot: u32) -> Addr {
        Addr::new(SEGMENT, slot)
    }

    #[test]
    fn entries_of_records_that_die_are_dropped_from_memory() {
        let stored = Stored::new(|_| true);
        stored.locate_one_of_each_leaf();
        let whole = stored.segments.directories_bytes();
        assert_eq!(stored.known().len() as u32, SLOTS);
        // A few are not worth it.
        stored.kill(|slot| slot % 50 == 1);
        stored.segments.trim_directories();
        assert_eq!(stored.segments.directories_bytes(), whole);
        stored.kill(|slot| slot % 10 > 0 && slot % 50 != 1 && slot >= LEAF_SLOTS);
        stored.segments.trim_directories();
        let trimmed = stored.segments.directories_bytes();
        assert!(trimmed < whole / 5, "{trimmed} bytes of {whole}");
        let reads = stored.reads();
        let live: Vec<u32> =
            (0..SLOTS).filter(|slot| slot.is_multiple_of(10) || *slot < LEAF_SLOTS).collect();
        assert_eq!(stored.known(), live);
        for slot in live {
            assert_eq!(stored.segments.locate(&stored.devices, addr(slot)).unwrap().len_bytes, LEN_BYTES);
        }
        assert_eq!(stored.reads(), reads);
        // Nothing is kept of a leaf without live records.
        stored.kill(|slot| slot.is_multiple_of(10) && slot >= 2 * LEAF_SLOTS);
        stored.segments.trim_directories();
        assert!(stored.known().iter().all(|slot| *slot < 2 * LEAF_SLOTS));
    }

    #[test]
    fn a_leaf_that_is_read_has_live_records_alone_and_what_was_asked_for() {
        let stored = Stored::new(|slot| slot.is_multiple_of(10));
        stored.segments.locate(&stored.devices, addr(5)).unwrap();
        let reads = stored.reads();
        let in_leaf = |slot: &u32| *slot < LEAF_SLOTS && (*slot == 5 || slot.is_multiple_of(10));
        assert_eq!(stored.known(), (0..SLOTS).filter(in_leaf).collect::<Vec<_>>());
        stored.segments.locate(&stored.devices, addr(5)).unwrap();
        assert_eq!(stored.reads(), reads, "it is found again");
        // Of one that is missing, the leaf is read again.
        let missing = stored.segments.locate(&stored.devices, addr(6)).unwrap();
        assert_eq!(missing.offset, Chunk { device: 0, index: 1 }.offset() + 6 * u64::from(LEN_BYTES));
        assert!(stored.reads() > reads);
    }

    #[test]
    fn what_replay_makes_live_is_found() {
        let stored = Stored::new(|slot| slot.is_multiple_of(10));
        stored.locate_one_of_each_leaf();
        let ptr = Ptr { addr: addr(33), len_bytes: LEN_BYTES };
        stored.segments.mark_live(ptr).unwrap();
        assert_eq!(stored.segments.locate(&stored.devices, ptr.addr).unwrap().checksum, 33 ^ 0x5555_5555);
        assert!(stored.segments.try_locate(ptr.addr).is_some());
    }
}
