//! Codes B-tree pages: leaf pages with or without posting lists, inner pages, high keys.
//!
//! Rows are coded in the order of keys: by line, except that the high key, which is the first line if there is one,
//! comes last. So each key is coded after the next smaller one.

mod format;
pub(crate) mod item;
pub(crate) mod learn;
pub(crate) mod read;
pub(crate) mod tid;
pub(crate) mod write;

pub(crate) use format::PostgresBtree;

use item::{Item, ItemKind};

use super::page::{Line, LineState, Order, PostgresHeader};
use crate::Corrupt;
use crate::columns::plan::Plans;
use crate::columns::{Grid, Span};
use crate::patterns::Patterns;
use crate::stale::Stale;
use crate::wire::{Reader, le16, le32, put_varint};

/// Number of bytes of the special space.
pub(crate) const SPECIAL: usize = 16;

/// Streams of a B-tree page that come before those of columns.
pub(crate) mod streams {
    pub(crate) const SHAPE: usize = 0;
    pub(crate) const FLAGS: usize = 1;
    /// Number of line pointers (two streams).
    pub(crate) const COUNT: usize = 2;
    pub(crate) const LSN: usize = 4;
    /// Siblings, level, flags and cycle of the special space.
    pub(crate) const SPECIAL: usize = 5;
    pub(crate) const UPPER: usize = 6;
    /// Patterns (two streams).
    pub(crate) const PATTERN: usize = 7;
    /// Lengths of items that are kept whole (two streams).
    pub(crate) const ODD: usize = 9;
    /// Physical order (two streams).
    pub(crate) const ORDER: usize = 11;
    /// Blocks of pivots.
    pub(crate) const PIVOT: usize = 13;
    /// Lengths of posting lists.
    pub(crate) const POSTING: usize = 14;
    pub(crate) const BITMAP: usize = 15;
    /// See [`super::tid`].
    pub(crate) const TID: usize = 16;
    pub(crate) const END: usize = TID + super::tid::STREAMS;
}

/// The ways in which a page is as usual: bits of its first symbol.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct BtreeShape {
    pub(crate) tight: bool,
    pub(crate) hole_zero: bool,
    pub(crate) behind_zero: bool,
    pub(crate) plain_order: bool,
    pub(crate) checksum_zero: bool,
    /// Prune transaction, high bits of flags and the three low bits of the LSN are zero.
    pub(crate) plain_header: bool,
    /// Flags and cycle of the special space are those of an ordinary leaf page, and its level is 0.
    pub(crate) leaf: bool,
}

impl BtreeShape {
    pub(crate) fn symbol(self) -> u8 {
        let usual = [
            self.tight,
            self.hole_zero,
            self.behind_zero,
            self.plain_order,
            self.checksum_zero,
            self.plain_header,
            self.leaf,
        ];
        usual.iter().enumerate().map(|(n, usual)| u8::from(!usual) << n).sum()
    }

    pub(crate) fn from_symbol(symbol: u8) -> Self {
        let bit = |n: u8| symbol >> n & 1 == 0;
        Self {
            tight: bit(0),
            hole_zero: bit(1),
            behind_zero: bit(2),
            plain_order: bit(3),
            checksum_zero: bit(4),
            plain_header: bit(5),
            leaf: bit(6),
        }
    }
}

/// The special space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Special {
    pub(crate) previous: u32,
    pub(crate) next: u32,
    pub(crate) level: u32,
    pub(crate) flags: u16,
    pub(crate) cycle: u16,
}

impl Special {
    const LEAF: u16 = 1;

    pub(crate) fn is_plain_leaf(&self) -> bool {
        self.level == 0 && self.flags == Self::LEAF && self.cycle == 0
    }

    pub(crate) fn plain_leaf(previous: u32, next: u32) -> Self {
        Self { previous, next, level: 0, flags: Self::LEAF, cycle: 0 }
    }

    fn parse(bytes: &[u8]) -> Self {
        Self {
            previous: le32(bytes, 0),
            next: le32(bytes, 4),
            level: le32(bytes, 8),
            flags: le16(bytes, 12),
            cycle: le16(bytes, 14),
        }
    }

    pub(crate) fn write(&self, bytes: &mut [u8]) {
        for (i, word) in [self.previous, self.next, self.level].into_iter().enumerate() {
            bytes[4 * i..4 * i + 4].copy_from_slice(&word.to_le_bytes());
        }
        bytes[12..14].copy_from_slice(&self.flags.to_le_bytes());
        bytes[14..16].copy_from_slice(&self.cycle.to_le_bytes());
    }
}

/// The model of an index's pages.
#[derive(Clone, Debug)]
pub(crate) struct BtreeModel {
    /// A usual LSN, without its [`super::page::LSN_LOW_BITS`].
    pub(crate) lsn: u64,
    pub(crate) patterns: Patterns,
    pub(crate) plans: Plans,
}

impl BtreeModel {
    pub(crate) fn write_model(&self, out: &mut Vec<u8>) {
        put_varint(out, self.lsn);
        self.patterns.write(out);
        self.plans.write(out);
    }

    pub(crate) fn read_model(reader: &mut Reader<'_>) -> Result<Self, Corrupt> {
        let lsn = reader.varint()?;
        let patterns = Patterns::read(reader)?;
        let plans = Plans::read_aligned(reader, streams::END)?;
        Ok(Self { lsn, patterns, plans })
    }
}

/// The parts of a page. Buffers are kept from page to page.
#[derive(Debug, Default)]
pub(crate) struct BtreePage {
    pub(crate) header: PostgresHeader,
    pub(crate) special: Special,
    pub(crate) lines: Vec<Line>,
    /// Items by line.
    pub(crate) items: Vec<Item>,
    pub(crate) order: Order,
    pub(crate) stale: Stale,
    pub(crate) grid: Grid,
    /// Line of each of the grid's rows.
    pub(crate) rows: Vec<u16>,
    /// Patterns in the order of keys.
    pub(crate) packed: Vec<u64>,
    /// TIDs: all while writing, those behind keys while reading.
    pub(crate) tids: Vec<tid::Tid>,
}

impl BtreePage {
    /// Takes `page` apart, down to the headers of items. Returns false if anything is not as B-tree pages have it.
    pub(crate) fn parse(&mut self, page: &[u8]) -> bool {
        let Some(header) = PostgresHeader::parse(page) else { return false };
        self.header = header;
        if header.special + SPECIAL != page.len() || header.lines == 0 {
            return false;
        }
        self.special = Special::parse(&page[header.special..]);
        self.lines.clear();
        self.lines.extend((0..header.lines).map(|n| Line::parse(page, n)));
        self.items.clear();
        for line in &self.lines {
            let stored = matches!(line.state, LineState::Normal | LineState::Dead);
            let Some(item) = Item::parse(page, *line).filter(|_| stored) else { return false };
            self.items.push(item);
        }
        self.order.find(&self.lines, |_| true, &header, usize::from(self.special.next != 0))
    }

    /// Returns lines in the order of keys, the high key last.
    pub(crate) fn by_key(&self) -> impl Iterator<Item = usize> + use<> {
        let first = usize::from(self.special.next != 0);
        (first..self.header.lines).chain(0..first)
    }

    /// Returns the places of values in `page`, or `None` if it does not parse.
    pub(crate) fn locate(page: &[u8], plans: &Plans) -> Option<Grid> {
        let mut parts = Self::default();
        if !parts.parse(page) {
            return None;
        }
        parts.parse_columns(page, plans);
        Some(parts.grid)
    }

    /// Finds the places of values; items that the columns do not describe become odd.
    pub(crate) fn parse_columns(&mut self, page: &[u8], plans: &Plans) {
        self.grid.reset(self.lines.len(), plans.columns.len());
        self.rows.clear();
        for n in self.by_key() {
            let (line, item) = (self.lines[n], &mut self.items[n]);
            item.set_columns(plans.columns.len());
            let row = self.rows.len();
            let regular = item.kind != ItemKind::Odd && {
                let (from, to) = item.keys();
                let span = Span { start: line.off + from, end: line.off + to, present: item.present };
                self.grid.parse_padded(&plans.columns, page, row, span)
            };
            if regular {
                self.grid.push(item.present);
                self.rows.push(n as u16);
            } else {
                item.kind = ItemKind::Odd;
            }
        }
        self.grid.close(self.rows.len(), plans.columns.len());
    }
}
