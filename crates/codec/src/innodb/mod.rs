//! Codes index pages of InnoDB: clustered and secondary indexes, leaf pages and others, row formats COMPACT and
//! DYNAMIC.
//!
//! - [`page`] has headers, directory and checksums;
//! - [`layout`] describes the parts of records, and [`infer`] finds them;
//! - [`write`] and [`read`] are the two directions of a whole page.
//!
//! A tablespace holds all indexes of a table. So a model has a [`InnodbBranch`] for the leaf pages of each index, and one for
//! its other pages. Records are coded in the order of keys; behind them come free ones, which purged and moved rows
//! have left. Each record keeps its number in the heap, and records lie in the order of these numbers: so places follow
//! from lengths.

pub(crate) mod files;
mod format;
pub(crate) mod infer;
pub(crate) mod layout;
pub(crate) mod learn;
pub(crate) mod page;
mod parsed;
pub(crate) mod read;
mod split;
pub(crate) mod write;

pub(crate) use files::FILES;
pub(crate) use format::Innodb;

use layout::{Extent, InnodbLayout};
use page::{ENDS, Ends, InnodbHeader};

use crate::Corrupt;
use crate::columns::Grid;
use crate::columns::plan::Plans;
use crate::entropy::Stream;
use crate::patterns::Patterns;
use crate::stale::Stale;
use crate::wire::{Reader, put_varint};

/// Largest number of branches in a model.
const MAX_BRANCHES: usize = 24;
/// Largest number of records in a group of the directory.
const MAX_OWNED: u8 = 15;
/// Number of low bits of an LSN that a state of the entropy coder carries.
const LSN_LOW_BITS: u32 = 16;

/// The stream of branches, the first of all streams.
const BRANCH: usize = 0;

/// Number of bits of a pattern.
const PATTERN_BITS: u32 = 13 + 8 * layout::MAX_BITMAP as u32;
/// Info bits of records that instant DDL has changed: their layout differs.
const INSTANT_INFO: u8 = 0xC;
/// An entry of `by_heap` that no record has.
const NOBODY: u16 = u16::MAX;

/// Streams of a branch that come before those of its columns; counted from the branch's first.
pub(crate) mod streams {
    /// The page's first symbol: see [`super::InnodbShape`].
    pub(crate) const SHAPE: usize = 0;
    /// Number of records (two streams).
    pub(crate) const COUNT: usize = 1;
    /// Number of free records (two streams).
    pub(crate) const FREE_COUNT: usize = 3;
    pub(crate) const LSN: usize = 5;
    /// High half of the page number; siblings.
    pub(crate) const NUMBER: usize = 6;
    /// Level, space, transaction, garbage.
    pub(crate) const REST: usize = 7;
    pub(crate) const LAST_INSERT: usize = 8;
    pub(crate) const DIRECTION: usize = 9;
    /// Patterns (two streams).
    pub(crate) const PATTERN: usize = 10;
    pub(crate) const HEAP_ORDER: usize = 12;
    pub(crate) const FREE_LIST: usize = 13;
    /// Sizes of groups, and numbers of equal groups in a row (two streams).
    pub(crate) const GROUP: usize = 14;
    pub(crate) const GAP: usize = 16;
    pub(crate) const END: usize = 17;
}

/// The ways in which a page is as usual: bits of its first symbol.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct InnodbShape {
    pub(crate) hole_zero: bool,
    /// Bytes between records are zero.
    pub(crate) gaps_zero: bool,
    /// Records follow one another without gaps.
    pub(crate) dense: bool,
    /// Records' numbers in the heap rise in the order of keys.
    pub(crate) plain_order: bool,
    /// The header's count of bytes of free records follows from places.
    pub(crate) garbage: bool,
    /// The page is no root.
    pub(crate) no_root: bool,
    pub(crate) ends: Ends,
}

impl InnodbShape {
    pub(crate) fn symbol(self) -> u8 {
        let usual =
            [self.hole_zero, self.gaps_zero, self.dense, self.plain_order, self.garbage, self.no_root];
        let bits: u8 = usual.iter().enumerate().map(|(n, usual)| u8::from(!usual) << n).sum();
        bits | (self.ends as u8) << 6
    }

    pub(crate) fn from_symbol(symbol: u8) -> Self {
        let bit = |n: u8| symbol >> n & 1 == 0;
        Self {
            hole_zero: bit(0),
            gaps_zero: bit(1),
            dense: bit(2),
            plain_order: bit(3),
            garbage: bit(4),
            no_root: bit(5),
            ends: Ends::from_bits(symbol >> 6),
        }
    }
}

/// The model of the leaf pages of an index, or of its other pages.
#[derive(Clone, Debug)]
pub(crate) struct InnodbBranch {
    pub(crate) index: u64,
    pub(crate) leaf: bool,
    pub(crate) space: u32,
    /// A usual transaction in page headers.
    pub(crate) trx: u64,
    /// A usual LSN, without its [`LSN_LOW_BITS`].
    pub(crate) lsn: u64,
    pub(crate) layout: InnodbLayout,
    pub(crate) patterns: Patterns,
    /// The first of the branch's streams.
    pub(crate) first: usize,
    pub(crate) plans: Plans,
}

impl InnodbBranch {
    fn write_model(&self, out: &mut Vec<u8>) {
        put_varint(out, self.index);
        out.push(u8::from(self.leaf));
        for value in [u64::from(self.space), self.trx, self.lsn] {
            put_varint(out, value);
        }
        self.layout.write(out);
        self.patterns.write(out);
        self.plans.write(out);
    }

    fn read_model(reader: &mut Reader<'_>, first: usize) -> Result<Self, Corrupt> {
        let index = reader.varint()?;
        let leaf = reader.byte()? == 1;
        let space = reader.at_most(u32::MAX as usize)? as u32;
        let (trx, lsn) = (reader.varint()?, reader.varint()?);
        let layout = InnodbLayout::read(reader)?;
        let patterns = Patterns::read(reader)?;
        let plans = Plans::read(reader, first + streams::END)?;
        let columns = layout.fields.iter().map(|field| field.column());
        if !columns.eq(plans.columns.iter().copied()) {
            return Err(Corrupt("plans of other columns"));
        }
        Ok(Self { index, leaf, space, trx, lsn, layout, patterns, first, plans })
    }

    /// Returns stream `id` of the branch, from among all `streams`, and those behind it.
    fn streams<'s>(&self, streams: &'s [Stream], id: usize) -> &'s [Stream] {
        &streams[self.first + id..]
    }
}

/// The model of a tablespace.
#[derive(Clone, Debug)]
pub(crate) struct InnodbModel {
    pub(crate) branches: Vec<InnodbBranch>,
}

impl InnodbModel {
    /// Returns the number of streams that all branches have together.
    pub(crate) fn end(&self) -> usize {
        self.branches.last().map_or(BRANCH + 1, |branch| branch.plans.end)
    }

    /// Returns the index of the branch that `header`'s page belongs to.
    pub(crate) fn branch_of(&self, header: &InnodbHeader) -> Option<usize> {
        let is_its =
            |branch: &InnodbBranch| branch.index == header.index && branch.leaf == (header.level == 0);
        self.branches.iter().position(is_its)
    }

    pub(crate) fn write_model(&self, out: &mut Vec<u8>) {
        put_varint(out, self.branches.len() as u64);
        for branch in &self.branches {
            branch.write_model(out);
        }
    }

    pub(crate) fn read_model(reader: &mut Reader<'_>) -> Result<Self, Corrupt> {
        let count = reader.at_most(MAX_BRANCHES)?;
        let mut model = Self { branches: Vec::with_capacity(count) };
        for _ in 0..count {
            let branch = InnodbBranch::read_model(reader, model.end())?;
            model.branches.push(branch);
        }
        Ok(model)
    }
}

/// A record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct InnodbRecord {
    pub(crate) origin: usize,
    pub(crate) info: u8,
    /// Number of records in its group, if it is the last one of the group; otherwise 0.
    pub(crate) owned: u8,
    /// Number in the heap, of 13 bits.
    pub(crate) heap: usize,
    pub(crate) status: u8,
    /// The layout does not describe the record: all but its header is kept as it is.
    pub(crate) odd: bool,
    pub(crate) extent: Extent,
}

/// The parts of a page. Buffers are kept from page to page.
#[derive(Debug, Default)]
pub(crate) struct InnodbPage {
    pub(crate) header: InnodbHeader,
    /// Records of the list, then the free ones in the order of their list.
    pub(crate) records: Vec<InnodbRecord>,
    /// Indexes into `records`, by number in the heap.
    pub(crate) by_heap: Vec<u16>,
    /// Number of bytes before each record that belong to no record, by number in the heap; the last are those behind
    /// all records.
    pub(crate) gaps: Vec<u16>,
    /// Sizes of the directory's groups.
    pub(crate) groups: Vec<u8>,
    pub(crate) packed: Vec<u64>,
    pub(crate) grid: Grid,
    /// Index into `records` of each of the grid's rows.
    pub(crate) rows: Vec<u16>,
    pub(crate) stale: Stale,
    pub(crate) shape: InnodbShape,
    pub(crate) ends: [u8; ENDS],
}
