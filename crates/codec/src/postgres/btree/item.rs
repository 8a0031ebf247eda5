//! Takes items of B-tree pages apart: index tuples.
//!
//! An item has a header of 8 bytes (its TID: block 4, offset 2; size and flags 2), a null bitmap of 4 bytes padded to 8
//! if there are nulls, key columns, and padding to a multiple of 8. Pivots (high keys, and items of inner pages) have
//! the number of their columns in the place of the offset, and may have a heap TID in their last 6 bytes. Posting lists
//! have the number of TIDs that follow the key in the place of the offset, and in the place of the block where these
//! begin.

use super::tid::{TID, Tid};
use crate::columns::MAX_COLUMNS;
use crate::postgres::page::{Line, LineState};
use crate::wire::{le16, le32};

/// Bytes of the header.
pub(crate) const HEAD: usize = 8;
const SIZE: u16 = 0x1FFF;
const ALTERNATIVE: u16 = 0x2000;
const HAS_NULLS: u16 = 0x8000;
/// Bits in the place of the offset.
const IS_POSTING: u16 = 0x2000;
const HAS_HEAP_TID: u16 = 0x1000;
const COUNT: u16 = 0x0FFF;
/// Number of columns that the null bitmap has bits for.
const BITMAP_COLUMNS: usize = 32;

/// Kinds of item.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ItemKind {
    /// A key and the row that has it.
    #[default]
    Plain = 0,
    /// A key and a page below, or a high key.
    Pivot = 1,
    /// A key and the rows that have it.
    Posting = 2,
    /// An item that is kept whole but for size and flags.
    Odd = 3,
}

/// An item's header, and the facts that follow from it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Item {
    pub(crate) state: LineState,
    pub(crate) kind: ItemKind,
    pub(crate) tid: Tid,
    /// Flags and size.
    pub(crate) info: u16,
    /// Number of bytes of the item.
    pub(crate) len: usize,
    pub(crate) present: u128,
}

impl Item {
    pub(crate) fn parse(page: &[u8], line: Line) -> Option<Self> {
        let bytes = page.get(line.off..line.off + line.len).filter(|bytes| bytes.len() >= HEAD)?;
        let tid = Tid {
            block: u32::from(le16(bytes, 0)) << 16 | u32::from(le16(bytes, 2)),
            offset: le16(bytes, 4),
        };
        let info = le16(bytes, 6);
        let mut item =
            Self { state: line.state, kind: ItemKind::Plain, tid, info, len: line.len, present: 0 };
        item.kind = item.find_kind(bytes);
        if item.has_nulls() && item.kind != ItemKind::Odd {
            item.present = u128::from(le32(bytes, HEAD));
        }
        Some(item)
    }

    fn find_kind(&self, bytes: &[u8]) -> ItemKind {
        let sized = usize::from(self.info & SIZE) == self.len && self.len.is_multiple_of(8);
        let bitmap = !self.has_nulls() || self.len >= 2 * HEAD && bytes[12..16] == [0; 4];
        if !sized || !bitmap {
            return ItemKind::Odd;
        }
        let kind = self.alternative();
        match kind {
            ItemKind::Posting => {
                let from = self.tid.block as usize;
                let end = from + TID * self.postings();
                let fits =
                    from >= self.data() && from.is_multiple_of(8) && end.next_multiple_of(8) == self.len;
                // Bits that have no meaning (yet) are not coded, so they have to be zero.
                let fits = fits && self.tid.offset & !(IS_POSTING | COUNT) == 0;
                let padded = fits && self.postings() > 0 && bytes[end..].iter().all(|&byte| byte == 0);
                if padded { kind } else { ItemKind::Odd }
            }
            ItemKind::Pivot if self.has_heap_tid() => {
                let fits = self.len >= self.data() + 8;
                if fits && bytes[self.len - 8..self.len - TID] == [0; 2] { kind } else { ItemKind::Odd }
            }
            _ => kind,
        }
    }

    /// Returns plain, pivot or posting list, as the flags have it.
    pub(crate) fn alternative(&self) -> ItemKind {
        match (self.info & ALTERNATIVE != 0, self.tid.offset & IS_POSTING != 0) {
            (false, _) => ItemKind::Plain,
            (true, true) => ItemKind::Posting,
            (true, false) => ItemKind::Pivot,
        }
    }

    pub(crate) fn has_nulls(&self) -> bool {
        self.info & HAS_NULLS != 0
    }

    pub(crate) fn has_heap_tid(&self) -> bool {
        self.alternative() == ItemKind::Pivot && self.tid.offset & HAS_HEAP_TID != 0
    }

    /// Returns the number of TIDs of a posting list.
    pub(crate) fn postings(&self) -> usize {
        usize::from(self.tid.offset & COUNT)
    }

    /// Returns where key columns begin.
    pub(crate) fn data(&self) -> usize {
        if self.has_nulls() { 2 * HEAD } else { HEAD }
    }

    /// Returns where the key columns begin and end.
    pub(crate) fn keys(&self) -> (usize, usize) {
        let to = match self.kind {
            ItemKind::Posting => self.tid.block as usize,
            ItemKind::Pivot if self.has_heap_tid() => self.len - 8,
            _ => self.len,
        };
        (self.data(), to)
    }

    /// Returns the number of bytes behind the key columns.
    pub(crate) fn tail(&self) -> usize {
        match self.kind {
            ItemKind::Posting => (TID * self.postings()).next_multiple_of(8),
            ItemKind::Pivot if self.has_heap_tid() => 8,
            _ => 0,
        }
    }

    /// Sets the columns that the item has, of `columns`; the item becomes odd if it cannot have them.
    pub(crate) fn set_columns(&mut self, columns: usize) {
        let count = match self.kind {
            ItemKind::Pivot => usize::from(self.tid.offset & COUNT),
            _ => columns,
        };
        if count > columns || count > MAX_COLUMNS {
            self.kind = ItemKind::Odd;
            return;
        }
        let all = if count == MAX_COLUMNS { u128::MAX } else { (1 << count) - 1 };
        let nulls = self.has_nulls();
        if nulls && (self.present & !all != 0 || columns > BITMAP_COLUMNS) {
            self.kind = ItemKind::Odd;
        } else {
            self.present = if nulls { self.present & all } else { all };
        }
    }

    /// Returns the number of columns that a pivot has by its flags; `None` for other items, which have all.
    pub(crate) fn own_columns(&self) -> Option<usize> {
        (self.kind == ItemKind::Pivot).then_some(usize::from(self.tid.offset & COUNT))
    }

    /// Returns the item's pattern: state, kind, flags, and of pivots their columns.
    pub(crate) fn pattern(&self) -> u64 {
        let pivot = if self.alternative() == ItemKind::Pivot { u64::from(self.tid.offset) } else { 0 };
        let posting = u64::from(self.alternative() == ItemKind::Posting);
        self.state as u64
            | (self.kind as u64) << 2
            | u64::from(self.info & !SIZE) << 4
            | pivot << 20
            | posting << 36
    }

    /// Number of bits of a pattern.
    pub(crate) const PATTERN_BITS: u32 = 37;

    /// Makes an item of which only the pattern is known.
    pub(crate) fn from_pattern(pattern: u64) -> Self {
        let state = if pattern & 3 == LineState::Dead as u64 { LineState::Dead } else { LineState::Normal };
        let kind = match pattern >> 2 & 3 {
            0 => ItemKind::Plain,
            1 => ItemKind::Pivot,
            2 => ItemKind::Posting,
            _ => ItemKind::Odd,
        };
        let posting = if pattern >> 36 & 1 == 1 { IS_POSTING } else { 0 };
        let offset = (pattern >> 20) as u16 | posting;
        Self {
            state,
            kind,
            tid: Tid { block: 0, offset },
            info: (pattern >> 4) as u16 & !SIZE,
            len: 0,
            present: 0,
        }
    }

    /// Sets the number of TIDs. Returns false if there can be no such number.
    pub(crate) fn set_postings(&mut self, count: u64) -> bool {
        self.tid.offset = IS_POSTING | count as u16 & COUNT;
        (1..=u64::from(COUNT)).contains(&count)
    }

    /// Writes the header to `bytes`, which is the item.
    pub(crate) fn write(&self, bytes: &mut [u8]) {
        self.tid.write(bytes);
        let info = self.info | self.len as u16 & SIZE;
        bytes[6..8].copy_from_slice(&info.to_le_bytes());
        if self.has_nulls() && self.kind != ItemKind::Odd {
            bytes[8..12].copy_from_slice(&(self.present as u32).to_le_bytes());
        }
    }
}
