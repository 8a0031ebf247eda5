//! Entries of a leaf of a directory as they are kept in memory: ten bytes each, where [`DirEntry`] takes sixteen.

use super::directory::{DirEntry, LEAF_SLOTS};
use crate::limits::CHUNK_BYTES;

/// Bits of the start of a record, from the start of its extent.
const START_BITS: u32 = 22;
/// Mark of a record that is longer than the field for lengths can say.
const LONG: u16 = u16::MAX;

const _: () = assert!(CHUNK_BYTES <= 1 << START_BITS && LEAF_SLOTS.ilog2() + START_BITS == u32::BITS);

/// Entries of a leaf, ascending by slot.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct KeptLeaf {
    /// First slot of the leaf.
    first: u32,
    entries: Box<[PackedEntry]>,
    /// Positions and lengths of records that are too long for their entry, ascending.
    long: Box<[(u16, u32)]>,
}

/// A place (the slot in the leaf, and below it the start), a length, and a checksum, in pieces of two bytes: so entries
/// have no gaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PackedEntry {
    place: [u16; 2],
    len: u16,
    checksum: [u16; 2],
}

const fn halves(value: u32) -> [u16; 2] {
    [(value >> 16) as u16, value as u16]
}

const fn whole(halves: [u16; 2]) -> u32 {
    (halves[0] as u32) << 16 | halves[1] as u32
}

impl PackedEntry {
    const fn slot(self) -> u32 {
        whole(self.place) >> START_BITS
    }
}

impl KeptLeaf {
    /// Packs entries of one leaf, which ascend. Returns `None` if there is none, or if one of them lies where no record
    /// can.
    pub(super) fn of(entries: &[DirEntry]) -> Option<Self> {
        let first = entries.first()?.slot / LEAF_SLOTS * LEAF_SLOTS;
        let mut long = Vec::new();
        let pack = |(at, entry): (u16, &DirEntry)| {
            let slot = entry.slot.checked_sub(first).filter(|slot| *slot < LEAF_SLOTS)?;
            if entry.start >> START_BITS > 0 {
                return None;
            }
            let len = u16::try_from(entry.len_bytes).unwrap_or(LONG);
            if len == LONG {
                long.push((at, entry.len_bytes));
            }
            let place = halves(slot << START_BITS | entry.start);
            Some(PackedEntry { place, len, checksum: halves(entry.checksum) })
        };
        let packed: Option<Box<[PackedEntry]>> = (0..).zip(entries).map(pack).collect();
        Some(Self { first, entries: packed?, long: long.into() })
    }

    /// Returns the entry of `slot`.
    pub(super) fn get(&self, slot: u32) -> Option<DirEntry> {
        let slot = slot.checked_sub(self.first)?;
        let dense = slot.checked_sub(self.entries.first()?.slot())? as usize;
        let at = match self.entries.get(dense) {
            Some(entry) if entry.slot() == slot => dense,
            _ => self.entries.binary_search_by_key(&slot, |entry| entry.slot()).ok()?,
        };
        self.unpack(at)
    }

    fn unpack(&self, at: usize) -> Option<DirEntry> {
        let PackedEntry { place, len, checksum } = *self.entries.get(at)?;
        let place = whole(place);
        let len_bytes = match len {
            LONG => {
                let found = self.long.binary_search_by_key(&at, |(at, _)| usize::from(*at)).ok()?;
                self.long.get(found)?.1
            }
            len => len.into(),
        };
        let slot = self.first + (place >> START_BITS);
        Some(DirEntry { slot, start: place & ((1 << START_BITS) - 1), len_bytes, checksum: whole(checksum) })
    }

    /// Returns all entries, ascending by slot.
    pub(super) fn entries(&self) -> Vec<DirEntry> {
        (0..self.entries.len()).filter_map(|at| self.unpack(at)).collect()
    }

    /// Returns the memory that it takes, in bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        size_of_val(&*self.entries) + size_of_val(&*self.long) + size_of::<Self>()
    }
}

/// Bytes of memory of one entry, about.
pub(super) const KEPT_ENTRY_BYTES: u64 = size_of::<PackedEntry>() as u64;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn entry(slot: u32, start: u32, len_bytes: u32) -> DirEntry {
        DirEntry { slot, start, len_bytes, checksum: slot.wrapping_mul(0x9E37_79B9) ^ start }
    }

    proptest! {
        #[test]
        fn entries_come_back(
            leaf in 0..64_u32,
            entries in prop::collection::btree_map(
                0..LEAF_SLOTS,
                (0..CHUNK_BYTES as u32, prop_oneof![1..100_000_u32, 65_530..65_540_u32]),
                1..200,
            ),
        ) {
            let first = leaf * LEAF_SLOTS;
            let entries: Vec<DirEntry> =
                entries.iter().map(|(slot, (start, len))| entry(first + slot, *start, *len)).collect();
            let kept = KeptLeaf::of(&entries).unwrap();
            prop_assert_eq!(&kept.entries(), &entries);
            for slot in first.saturating_sub(2)..first + LEAF_SLOTS + 2 {
                let wanted = entries.iter().find(|entry| entry.slot == slot).copied();
                prop_assert_eq!(kept.get(slot), wanted);
            }
        }
    }

    #[test]
    fn a_full_leaf_takes_ten_bytes_for_each_record() {
        let entries: Vec<DirEntry> =
            (0..LEAF_SLOTS).map(|slot| entry(5 * LEAF_SLOTS + slot, slot * 4000, 3600)).collect();
        let kept = KeptLeaf::of(&entries).unwrap();
        assert_eq!(KEPT_ENTRY_BYTES, 10);
        assert!(kept.memory_bytes() < 10 * entries.len() + 100, "{}", kept.memory_bytes());
    }

    #[test]
    fn what_cannot_be_of_a_leaf_is_not_kept() {
        assert_eq!(KeptLeaf::of(&[]), None);
        assert_eq!(KeptLeaf::of(&[entry(1, 1 << START_BITS, 1)]), None);
        assert_eq!(KeptLeaf::of(&[entry(1023, 0, 1), entry(1024, 1, 1)]), None);
    }
}
