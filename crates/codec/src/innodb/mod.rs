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
pub(crate) mod read;
mod split;
pub(crate) mod write;

pub(crate) use files::FILES;
pub(crate) use format::Innodb;

use layout::{Extent, InnodbLayout};
use page::{ENDS, Ends, HEAP, INFIMUM, InnodbHeader, RECORD, SUPREMUM, SYSTEM_RECORDS, slot, status};

use crate::Corrupt;
use crate::columns::Grid;
use crate::columns::plan::Plans;
use crate::entropy::Stream;
use crate::patterns::Patterns;
use crate::stale::Stale;
use crate::wire::{Reader, be16, put_varint};

/// Largest number of branches in a model.
const MAX_BRANCHES: usize = 24;
/// Largest number of records in a group of the directory.
const MAX_OWNED: u8 = 15;
/// Number of low bits of an LSN that a state of the entropy coder carries.
const LSN_LOW_BITS: u32 = 16;

/// The stream of branches, the first of all streams.
const BRANCH: usize = 0;

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

impl InnodbRecord {
    /// Returns the record at `origin`, and the origin of the next one; `None` if there is no room for a record.
    fn parse(page: &[u8], origin: usize, heap_top: usize) -> Option<(Self, usize)> {
        if origin < HEAP + RECORD || origin > heap_top {
            return None;
        }
        let head = page.get(origin - RECORD..origin)?;
        let number = be16(head, 1);
        let next = be16(head, 3);
        let record = Self {
            origin,
            info: head[0] >> 4,
            owned: head[0] & 0xF,
            heap: usize::from(number >> 3),
            status: number as u8 & 7,
            odd: false,
            extent: Extent::default(),
        };
        let after = if next == 0 { 0 } else { (origin + usize::from(next)) & 0xFFFF };
        // A list ends with a relative place of 0; a relative place that leads to 0 is no end.
        (next == 0 || after != 0).then_some((record, after))
    }

    /// Writes the header.
    fn write(&self, page: &mut [u8], next: usize) {
        let at = self.origin;
        page[at - RECORD] = self.info << 4 | self.owned;
        let number = (self.heap as u16) << 3 | u16::from(self.status);
        page[at - 4..at - 2].copy_from_slice(&number.to_be_bytes());
        let next = if next == 0 { 0 } else { (next as u16).wrapping_sub(at as u16) };
        page[at - 2..at].copy_from_slice(&next.to_be_bytes());
    }

    /// Returns the record's pattern: info bits and status, of free records the number that they owned, and the null
    /// bitmap.
    fn pattern(&self, free: bool) -> u64 {
        let owned = if free { self.owned } else { 0 };
        let bitmap = if self.odd { 0 } else { self.extent.bitmap };
        u64::from(self.info)
            | u64::from(self.status) << 4
            | u64::from(owned) << 7
            | u64::from(self.odd) << 11
            | u64::from(free) << 12
            | bitmap << 13
    }

    fn from_pattern(pattern: u64) -> Self {
        Self {
            info: pattern as u8 & 0xF,
            status: (pattern >> 4) as u8 & 7,
            owned: (pattern >> 7) as u8 & 0xF,
            odd: pattern >> 11 & 1 == 1,
            extent: Extent { bitmap: pattern >> 13, ..Extent::default() },
            ..Self::default()
        }
    }
}

/// Number of bits of a pattern.
const PATTERN_BITS: u32 = 13 + 8 * layout::MAX_BITMAP as u32;
/// Info bits of records that instant DDL has changed: their layout differs.
const INSTANT_INFO: u8 = 0xC;

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

/// An entry of `by_heap` that no record has.
const NOBODY: u16 = u16::MAX;

impl InnodbPage {
    /// Takes `page` apart, down to the headers of records. Returns false if anything is not as index pages have it.
    pub(crate) fn parse(&mut self, page: &[u8]) -> bool {
        let Some(header) = InnodbHeader::parse(page) else { return false };
        self.header = header;
        self.records.clear();
        self.groups.clear();
        self.parse_list(page).is_some() && self.parse_free(page).is_some() && self.number().is_some()
    }

    /// Parses the list of records, and the directory, which follows from it.
    fn parse_list(&mut self, page: &[u8]) -> Option<()> {
        let InnodbHeader { records: count, heap_top, slots, .. } = self.header;
        let own = |n: usize| usize::from(be16(page, slot(page.len(), n)));
        let mut origin = (INFIMUM + usize::from(be16(page, INFIMUM - 2))) & 0xFFFF;
        let mut group = 1;
        for _ in 0..count {
            let (record, after) = InnodbRecord::parse(page, origin, heap_top)?;
            if record.owned != 0 {
                self.groups.push(record.owned);
                (self.groups.len() < slots && record.owned == group && own(self.groups.len()) == origin)
                    .then_some(())?;
                group = 0;
            }
            group += 1;
            (group <= MAX_OWNED).then_some(())?;
            self.records.push(record);
            origin = after;
        }
        self.groups.push(group);
        let closed = origin == SUPREMUM && page[SUPREMUM - RECORD] == group && self.groups.len() + 1 == slots;
        (closed && own(0) == INFIMUM && own(slots - 1) == SUPREMUM).then_some(())
    }

    fn parse_free(&mut self, page: &[u8]) -> Option<()> {
        let mut origin = self.header.free;
        for _ in self.header.records..self.header.heap - SYSTEM_RECORDS {
            let (record, after) = InnodbRecord::parse(page, origin, self.header.heap_top)?;
            self.records.push(record);
            origin = after;
        }
        (origin == 0).then_some(())
    }

    /// Fills `by_heap`: every number belongs to one record, and records lie in the order of their numbers.
    fn number(&mut self) -> Option<()> {
        self.by_heap.clear();
        self.by_heap.resize(self.records.len(), NOBODY);
        for (n, record) in self.records.iter().enumerate() {
            let place = self.by_heap.get_mut(record.heap.checked_sub(SYSTEM_RECORDS)?)?;
            (*place == NOBODY).then_some(())?;
            *place = n as u16;
        }
        let origin = |&n: &u16| self.records[usize::from(n)].origin;
        self.by_heap.is_sorted_by(|a, b| origin(a) + RECORD <= origin(b)).then_some(())
    }

    /// Finds the places of values; records that the layout does not describe become odd. Returns false if records
    /// overlap all the same.
    pub(crate) fn parse_columns(&mut self, page: &[u8], layout: &InnodbLayout) -> bool {
        let expected = if self.header.level == 0 { status::ORDINARY } else { status::NODE };
        for record in &mut self.records {
            record.odd = record.status != expected || record.info & INSTANT_INFO != 0;
        }
        // A record that overlaps another becomes odd, and all records are located again.
        for _ in 0..4 {
            self.locate(page, layout);
            match self.chain() {
                Some(true) => return true,
                Some(false) => {}
                None => return false,
            }
        }
        false
    }

    fn locate(&mut self, page: &[u8], layout: &InnodbLayout) {
        let columns = layout.fields.len();
        self.grid.reset(self.records.len(), columns);
        self.rows.clear();
        for (n, record) in self.records.iter_mut().enumerate().filter(|(_, record)| !record.odd) {
            let bounds = (HEAP, self.header.heap_top);
            match layout.locate(page, record.origin, bounds, &mut self.grid, self.rows.len()) {
                Some((extent, present)) => {
                    record.extent = extent;
                    self.grid.push(present);
                    self.rows.push(n as u16);
                }
                None => record.odd = true,
            }
        }
        self.grid.close(self.rows.len(), columns);
    }

    /// Finds gaps, in the order of the heap. Returns `Some(false)` if a record has become odd, and `None` if records
    /// overlap all the same.
    fn chain(&mut self) -> Option<bool> {
        self.gaps.clear();
        let mut end = HEAP;
        let mut clean = true;
        for h in 0..self.by_heap.len() {
            let next = self.by_heap.get(h + 1).map(|&n| self.records[usize::from(n)].origin - RECORD);
            let record = &mut self.records[usize::from(self.by_heap[h])];
            let ceiling = next.unwrap_or(self.header.heap_top);
            if !record.odd && (record.extent.start < end || record.extent.end > ceiling) {
                record.odd = true;
                clean = false;
            }
            let start = if record.odd { record.origin - RECORD } else { record.extent.start };
            self.gaps.push(start.checked_sub(end)? as u16);
            end = if record.odd { record.origin } else { record.extent.end };
        }
        self.gaps.push(self.header.heap_top.checked_sub(end)? as u16);
        Some(clean)
    }

    /// Returns the bytes of free records and gaps, as the header counts them if no record is odd.
    fn garbage(&self) -> usize {
        let listed = self.records[..self.header.records].iter();
        let used: usize = listed
            .map(|record| if record.odd { RECORD } else { record.extent.end - record.extent.start })
            .sum();
        (self.header.heap_top - HEAP).saturating_sub(used)
    }

    /// Notes stale bytes: the gaps between records if `gaps`, and the hole behind them if `hole`.
    fn stale_regions(&mut self, page_bytes: usize, gaps: bool, hole: bool) {
        self.stale.clear();
        let mut end = HEAP;
        if gaps {
            for (&n, &gap) in self.by_heap.iter().zip(&self.gaps) {
                self.stale.note(end, end + usize::from(gap));
                let record = &self.records[usize::from(n)];
                end = if record.odd { record.origin } else { record.extent.end };
            }
            self.stale.note(end, self.header.heap_top);
        }
        if hole {
            self.stale.note(self.header.heap_top, slot(page_bytes, self.header.slots - 1));
        }
    }
}
