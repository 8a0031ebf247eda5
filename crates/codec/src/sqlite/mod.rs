//! Codes pages of SQLite: tables and indexes, leaf pages and others, and overflow pages.
//!
//! - [`page`] has headers and free blocks, [`record`] has cells and records;
//! - [`layout`] turns records into rows of an image, whose columns are coded;
//! - [`signature`] tells the pages of one table or index from those of another;
//! - [`write`] and [`read`] are the two directions of a whole page.
//!
//! A database file holds all tables and indexes, page by page, and no page says to which it belongs. So a model has a
//! [`SqliteBranch`] for pages that are alike: of one kind, with records of as many columns that hold similar values. A wrong
//! branch costs space, never correctness: a cell that does not fit its branch is odd, and is kept as it is.

mod files;
mod format;
pub(crate) mod layout;
pub(crate) mod learn;
pub(crate) mod page;
pub(crate) mod read;
pub(crate) mod record;
pub(crate) mod signature;
pub(crate) mod write;

pub(crate) use files::FILES;
pub(crate) use format::Sqlite;

use layout::{IMAGE, SqliteLayout};
use page::{BLOCK, FreeBlock, RESERVED_MAX, SqliteHeader, kind};
use record::{Cell, Value};
use signature::Signature;

use crate::Corrupt;
use crate::columns::Grid;
use crate::columns::plan::Plans;
use crate::entropy::Stream;
use crate::limits::PAGE_MAX;
use crate::patterns::Patterns;
use crate::stale::Stale;
use crate::wire::{Reader, be16, put_varint};

/// Largest number of branches in a model.
const MAX_BRANCHES: usize = 48;
/// Stands in the place of a branch for an overflow page.
const OVERFLOW: u8 = 255;
/// Fewest bytes that a cell takes: its pointer and four more.
const CELL_MIN: usize = 6;
/// Number of values of which one pattern has the classes.
const PER_WORD: usize = 15;
/// Bits of a pattern: one that tells if the cell is odd, and four per value.
const WORD_BITS: u32 = 1 + 4 * PER_WORD as u32;
/// The pattern of an odd cell.
const ODD: u64 = 1;

/// The stream of branches, the first of all streams.
const BRANCH: usize = 0;
/// The stream of overflow pages that has the zeros at their end.
const NEXT: usize = 1;
/// The first stream of the first branch.
const FIRST: usize = 2;

/// Streams of a branch that come before those of its columns; counted from the branch's first.
pub(crate) mod streams {
    /// The page's first symbol: see [`super::SqliteShape`].
    pub(crate) const SHAPE: usize = 0;
    /// Number of cells (two streams).
    pub(crate) const COUNT: usize = 1;
    /// The right child.
    pub(crate) const RIGHT: usize = 3;
    /// Places of cells in the page, in the order of keys.
    pub(crate) const ORDER: usize = 4;
    pub(crate) const GAP: usize = 5;
    /// Places of free blocks in gaps.
    pub(crate) const BLOCK: usize = 6;
    /// Lengths and types of values in overflow pages, and the numbers of these pages.
    pub(crate) const BEYOND: usize = 7;
    pub(crate) const PATTERNS: usize = 8;
}

/// The ways in which a page is as usual: bits of its first symbol.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SqliteShape {
    pub(crate) hole_zero: bool,
    /// Gaps are zero, but for the heads of free blocks.
    pub(crate) gaps_zero: bool,
    /// Cells follow one another without gaps.
    pub(crate) dense: bool,
    /// Each cell lies before the one that precedes it in the order of keys, as in a page that was filled in that order.
    pub(crate) descending: bool,
    /// The list of free blocks follows from the gaps: all its blocks lie in gaps, in the order of the list.
    pub(crate) listed: bool,
    /// The header's count of fragments is that of the gaps.
    pub(crate) counted: bool,
    /// The bytes that extensions reserve at the page's end are zero, or there are none.
    pub(crate) reserved_zero: bool,
    /// The page does not have the file's header.
    pub(crate) not_first: bool,
}

impl SqliteShape {
    fn flags(self) -> [bool; 8] {
        let Self { hole_zero, gaps_zero, dense, descending, listed, counted, reserved_zero, not_first } =
            self;
        [hole_zero, gaps_zero, dense, descending, listed, counted, reserved_zero, not_first]
    }

    pub(crate) fn symbol(self) -> u8 {
        self.flags().iter().enumerate().map(|(n, usual)| u8::from(!usual) << n).sum()
    }

    pub(crate) fn from_symbol(symbol: u8) -> Self {
        let bit = |n: u8| symbol >> n & 1 == 0;
        Self {
            hole_zero: bit(0),
            gaps_zero: bit(1),
            dense: bit(2),
            descending: bit(3),
            listed: bit(4),
            counted: bit(5),
            reserved_zero: bit(6),
            not_first: bit(7),
        }
    }
}

/// The model of pages that are alike.
#[derive(Clone, Debug)]
pub(crate) struct SqliteBranch {
    pub(crate) signature: Signature,
    pub(crate) layout: SqliteLayout,
    /// Usual patterns, one set per [`PER_WORD`] values of a record.
    pub(crate) patterns: Vec<Patterns>,
    /// The first of the branch's streams.
    pub(crate) first: usize,
    pub(crate) plans: Plans,
}

/// Returns the number of patterns that a record of `values` columns has.
fn words(values: usize) -> usize {
    values.div_ceil(PER_WORD).max(1)
}

impl SqliteBranch {
    /// Returns the first stream of the columns of a branch whose records have `values` columns.
    fn columns_at(first: usize, values: usize) -> usize {
        first + streams::PATTERNS + 2 * words(values)
    }

    fn write_model(&self, out: &mut Vec<u8>) {
        self.signature.write(out);
        self.layout.write(out);
        self.patterns.iter().for_each(|patterns| patterns.write(out));
        self.plans.write(out);
    }

    fn read_model(reader: &mut Reader<'_>, first: usize) -> Result<Self, Corrupt> {
        let signature = Signature::read(reader)?;
        let layout = SqliteLayout::read(reader, signature.kind)?;
        let patterns = (0..words(layout.values)).map(|_| Patterns::read(reader)).collect::<Result<_, _>>()?;
        let plans = Plans::read(reader, Self::columns_at(first, layout.values))?;
        let columns = layout.slots.iter().map(|slot| slot.column());
        if !columns.eq(plans.columns.iter().copied()) {
            return Err(Corrupt("plans of other columns"));
        }
        Ok(Self { signature, layout, patterns, first, plans })
    }

    /// Returns stream `id` of the branch, from among all `streams`, and those behind it.
    fn streams<'s>(&self, streams: &'s [Stream], id: usize) -> &'s [Stream] {
        &streams[self.first + id..]
    }
}

/// The model of a database.
#[derive(Clone, Debug)]
pub(crate) struct SqliteModel {
    /// Bytes at the end of each page that are not SQLite's.
    pub(crate) reserved: usize,
    /// Overflow pages are coded, too.
    pub(crate) overflow: bool,
    pub(crate) branches: Vec<SqliteBranch>,
}

impl SqliteModel {
    /// Returns the number of streams that all branches have together.
    pub(crate) fn end(&self) -> usize {
        self.branches.last().map_or(FIRST, |branch| branch.plans.end)
    }

    pub(crate) fn write_model(&self, out: &mut Vec<u8>) {
        put_varint(out, self.reserved as u64);
        out.push(u8::from(self.overflow));
        out.push(self.branches.len() as u8);
        self.branches.iter().for_each(|branch| branch.write_model(out));
    }

    pub(crate) fn read_model(reader: &mut Reader<'_>) -> Result<Self, Corrupt> {
        let reserved = reader.at_most(RESERVED_MAX)?;
        let overflow = reader.byte()? == 1;
        let count = reader.at_most(MAX_BRANCHES)?;
        let mut model = Self { reserved, overflow, branches: Vec::with_capacity(count) };
        for _ in 0..count {
            let branch = SqliteBranch::read_model(reader, model.end())?;
            model.branches.push(branch);
        }
        Ok(model)
    }
}

/// The parts of a page. Buffers are kept from page to page.
#[derive(Debug, Default)]
pub(crate) struct SqlitePage {
    pub(crate) header: SqliteHeader,
    /// Cells in the order of keys.
    pub(crate) cells: Vec<Cell>,
    pub(crate) values: Vec<Value>,
    /// Indexes into `cells`, in the order in which the cells lie in the page.
    pub(crate) by_place: Vec<u16>,
    /// Number of bytes before each cell that belong to no cell, in the order in which the cells lie; the last are those
    /// behind all cells.
    pub(crate) gaps: Vec<u16>,
    /// Symbols of free blocks, one for each gap that has room for a block.
    pub(crate) blocks: Vec<u8>,
    pub(crate) packed: Vec<u64>,
    pub(crate) grid: Grid,
    /// Index into `cells` of each of the grid's rows.
    pub(crate) rows: Vec<u16>,
    /// The rows' values, as [`SqliteLayout`] places them.
    pub(crate) image: Vec<u8>,
    pub(crate) stale: Stale,
    pub(crate) shape: SqliteShape,
    /// The places that are left while the order of cells is coded.
    pub(crate) ranks: Vec<u16>,
}

impl SqlitePage {
    /// Takes `page` apart; `reserved` bytes at its end are not SQLite's. Returns false if it is no page of a table or
    /// an index, or if more than half of its cells are of no known form.
    pub(crate) fn parse(&mut self, page: &[u8], reserved: usize) -> bool {
        self.cells.clear();
        self.values.clear();
        self.parse_cells(page, reserved).is_some() && {
            let odd = self.cells.iter().filter(|cell| cell.odd).count();
            2 * odd <= self.cells.len()
        }
    }

    fn parse_cells(&mut self, page: &[u8], reserved: usize) -> Option<()> {
        let usable = page.len().checked_sub(reserved)?;
        (usable >= 480 && page.len() <= PAGE_MAX).then_some(())?;
        self.header = SqliteHeader::parse(page)?;
        let SqliteHeader { cells, content, kind, .. } = self.header;
        (content <= usable && cells * CELL_MIN <= page.len()).then_some(())?;
        let pointers = self.header.pointers();
        let pointer = |n: usize| usize::from(be16(page, pointers + 2 * n));
        self.by_place.clear();
        self.by_place.extend(0..cells as u16);
        self.by_place.sort_unstable_by_key(|&n| pointer(usize::from(n)));
        self.cells.resize(cells, Cell::default());
        for (place, &n) in self.by_place.iter().enumerate() {
            let at = pointer(usize::from(n));
            let next = self.by_place.get(place + 1).map_or(usable, |&n| pointer(usize::from(n)));
            (at >= content && at < next).then_some(())?;
            self.cells[usize::from(n)] = Cell { at, end: next, odd: true, ..Cell::default() };
        }
        for cell in &mut self.cells {
            let bounds = (cell.end, usable);
            let parsed = record::parse(page, kind, cell.at, bounds, &mut self.values);
            *cell = parsed.unwrap_or(Cell { end: cell.at, ..*cell });
        }
        Some(())
    }

    /// Fills the image with rows; cells that do not fit the layout become odd.
    fn parse_columns(&mut self, page: &[u8], layout: &SqliteLayout) {
        self.image.clear();
        self.rows.clear();
        self.grid.reset(self.cells.len(), layout.slots.len());
        for (n, cell) in self.cells.iter_mut().enumerate().filter(|(_, cell)| !cell.odd) {
            let values = &mut self.values[cell.first..cell.first + cell.values];
            match layout.place(page, cell, values, (&mut self.image, &mut self.grid, self.rows.len())) {
                Some(present) => {
                    self.grid.push(present);
                    self.rows.push(n as u16);
                }
                None => {
                    cell.odd = true;
                    cell.end = cell.at;
                }
            }
        }
        self.grid.close(self.rows.len(), layout.slots.len());
    }

    /// Finds the gaps between cells, and the free blocks in them.
    fn find_gaps(&mut self, page: &[u8], usable: usize) {
        self.gaps.clear();
        self.blocks.clear();
        let (mut end, mut block) = (self.header.content, self.header.free);
        for place in 0..=self.by_place.len() {
            let cell = self.by_place.get(place).map(|&n| self.cells[usize::from(n)]);
            let gap = cell.map_or(usable, |cell| cell.at) - end;
            self.gaps.push(gap as u16);
            if gap >= BLOCK {
                let (symbol, next) = FreeBlock::of(page, (end, gap), block);
                self.blocks.push(symbol);
                block = next;
            }
            end = cell.map_or(end, |cell| cell.end);
        }
        self.shape.listed = block == 0;
    }

    /// Calls `each` with the place and length of each gap, and place and size of the free block in it, if there is one.
    fn each_gap(&self, mut each: impl FnMut(usize, usize, Option<(usize, usize)>)) {
        let mut blocks = self.blocks.iter();
        let mut end = self.header.content;
        for (place, &gap) in self.gaps.iter().enumerate() {
            let gap = usize::from(gap);
            let symbol = if gap >= BLOCK { blocks.next() } else { None };
            let block = symbol.and_then(|&symbol| FreeBlock::from_symbol(symbol)?.place(end, gap));
            each(end, gap, block);
            end = self.by_place.get(place).map_or(end, |&n| self.cells[usize::from(n)].end);
        }
    }

    /// Returns the place of the first free block (0 if there is none) and the bytes of fragments, as they follow from
    /// the gaps.
    fn blocks_and_fragments(&self) -> (u16, u8) {
        let (mut first, mut fragments) = (0, 0usize);
        self.each_gap(|_, gap, block| {
            let (at, size) = block.unwrap_or_default();
            fragments += gap - size;
            if first == 0 {
                first = at as u16;
            }
        });
        (first, fragments as u8)
    }

    /// Notes the regions of stale bytes, except those that the shape says are zero.
    fn stale_regions(&mut self, page_bytes: usize, usable: usize) {
        let mut stale = std::mem::take(&mut self.stale);
        stale.clear();
        if !self.shape.not_first {
            stale.note(0, page::FILE_HEADER);
        }
        if !self.shape.hole_zero {
            stale.note(self.header.pointers_end(), self.header.content);
        }
        if !self.shape.gaps_zero {
            self.each_gap(|at, gap, block| match block.filter(|_| self.shape.listed) {
                Some((block, _)) => {
                    stale.note(at, block);
                    stale.note(block + BLOCK, at + gap);
                }
                None => stale.note(at, at + gap),
            });
        }
        if !self.shape.reserved_zero {
            stale.note(usable, page_bytes);
        }
        self.stale = stale;
    }

    /// Gives the image its largest length, which has room for the rows of any page that is read.
    fn clear_image(&mut self) {
        self.image.resize(IMAGE, 0);
    }
}

/// Returns true if a cell with these values has an overflow page, in a page of `page_kind`.
fn overflows(page_kind: u8, cell: &[Value]) -> bool {
    kind::has_record(page_kind) && cell.iter().any(|value| record::class::overflows(value.class))
}
