//! Codes heap pages: line pointers, tuple headers, columns.
//!
//! - [`tuple`] takes headers apart and puts them together;
//! - [`pattern`] codes them: one symbol per line pointer has its state, and tells how its tuple's header follows from
//!   others;
//! - [`write`] and [`read`] are the two directions of a whole page.
//!
//! Rows are coded in logical order: by line, but each update chain in one piece, after the line that leads to it. So a
//! row follows its own older version, and rows that pruning has moved stand where they were inserted.

mod format;
pub(crate) mod learn;
pub(crate) mod pattern;
pub(crate) mod read;
pub(crate) mod tuple;
pub(crate) mod write;

pub(crate) use format::PostgresHeap;

use pattern::LinePattern;
use tuple::Tuple;

use super::checksum::checksum;
use super::page::{CHECKSUM_AT, Line, LineState, Order, PostgresHeader};
use crate::Corrupt;
use crate::columns::plan::Plans;
use crate::columns::{Grid, Span};
use crate::patterns::Patterns;
use crate::stale::Stale;
use crate::wire::{Reader, put_varint};

/// Largest number of null bitmaps with a symbol of their own.
pub(crate) const MAX_BITMAPS: usize = 254;

/// Streams of a heap page that come before those of columns.
pub(crate) mod streams {
    /// The page's first symbol: see [`super::HeapShape`].
    pub(crate) const SHAPE: usize = 0;
    pub(crate) const FLAGS: usize = 1;
    /// Number of line pointers (two streams).
    pub(crate) const COUNT: usize = 2;
    pub(crate) const LSN: usize = 4;
    pub(crate) const BLOCK: usize = 5;
    pub(crate) const PRUNE: usize = 6;
    pub(crate) const UPPER: usize = 7;
    /// Patterns (two streams).
    pub(crate) const PATTERN: usize = 8;
    pub(crate) const REDIRECT: usize = 10;
    pub(crate) const CTID: usize = 11;
    pub(crate) const XMIN: usize = 12;
    pub(crate) const XMAX: usize = 13;
    pub(crate) const CID: usize = 14;
    pub(crate) const BITMAP: usize = 15;
    /// Lengths of tuples that are kept whole (two streams).
    pub(crate) const ODD: usize = 16;
    /// Physical order (two streams).
    pub(crate) const ORDER: usize = 18;
    pub(crate) const END: usize = 20;
}

/// The ways in which a page is as usual: bits of its first symbol.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct HeapShape {
    /// The lowest item begins at `upper`.
    pub(crate) tight: bool,
    pub(crate) hole_zero: bool,
    pub(crate) behind_zero: bool,
    pub(crate) plain_order: bool,
    /// 0: the checksum is zero; 1: it is right; 2: it is neither.
    pub(crate) checksum: u8,
    pub(crate) prunable: bool,
    /// The three low bits of the LSN are not zero.
    pub(crate) odd_lsn: bool,
}

impl HeapShape {
    pub(crate) fn symbol(self) -> u8 {
        u8::from(!self.tight)
            | u8::from(!self.hole_zero) << 1
            | u8::from(!self.behind_zero) << 2
            | u8::from(!self.plain_order) << 3
            | self.checksum << 4
            | u8::from(self.prunable) << 6
            | u8::from(self.odd_lsn) << 7
    }

    pub(crate) fn from_symbol(symbol: u8) -> Self {
        let bit = |n: u8| symbol >> n & 1 == 1;
        Self {
            tight: !bit(0),
            hole_zero: !bit(1),
            behind_zero: !bit(2),
            plain_order: !bit(3),
            checksum: symbol >> 4 & 3,
            prunable: bit(6),
            odd_lsn: bit(7),
        }
    }
}

/// The model of a relation's heap pages.
#[derive(Clone, Debug)]
pub(crate) struct HeapModel {
    /// A usual LSN, without its [`super::page::LSN_LOW_BITS`].
    pub(crate) lsn: u64,
    /// A usual transaction.
    pub(crate) xid: u32,
    pub(crate) patterns: Patterns,
    /// Usual null bitmaps; a bit is set if the column has a value.
    pub(crate) bitmaps: Vec<u128>,
    pub(crate) plans: Plans,
}

impl HeapModel {
    pub(crate) fn write_model(&self, out: &mut Vec<u8>) {
        put_varint(out, self.lsn);
        put_varint(out, u64::from(self.xid));
        self.patterns.write(out);
        put_varint(out, self.bitmaps.len() as u64);
        for bitmap in &self.bitmaps {
            put_varint(out, *bitmap as u64);
            put_varint(out, (*bitmap >> 64) as u64);
        }
        self.plans.write(out);
    }

    pub(crate) fn read_model(reader: &mut Reader<'_>) -> Result<Self, Corrupt> {
        let lsn = reader.varint()?;
        let xid = reader.at_most(u32::MAX as usize)? as u32;
        let patterns = Patterns::read(reader)?;
        let count = reader.at_most(MAX_BITMAPS)?;
        let mut bitmaps = Vec::with_capacity(count);
        for _ in 0..count {
            bitmaps.push(u128::from(reader.varint()?) | u128::from(reader.varint()?) << 64);
        }
        let plans = Plans::read_aligned(reader, streams::END)?;
        Ok(Self { lsn, xid, patterns, bitmaps, plans })
    }
}

/// A row's place in the logical order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Visit {
    /// Index of its line pointer.
    pub(crate) line: u16,
    /// The row before is its older version.
    pub(crate) newer: bool,
}

/// The parts of a page. Buffers are kept from page to page.
#[derive(Debug, Default)]
pub(crate) struct HeapPage {
    pub(crate) header: PostgresHeader,
    pub(crate) block: u32,
    /// True if the checksum is computed; otherwise it is the header's.
    pub(crate) sum: bool,
    pub(crate) lines: Vec<Line>,
    /// Tuples by line; meaningless for lines without storage.
    pub(crate) tuples: Vec<Tuple>,
    pub(crate) patterns: Vec<LinePattern>,
    /// The patterns as numbers.
    pub(crate) packed: Vec<u64>,
    pub(crate) visits: Vec<Visit>,
    visited: Vec<bool>,
    pub(crate) order: Order,
    pub(crate) stale: Stale,
    pub(crate) grid: Grid,
    /// Line of each of the grid's rows.
    pub(crate) rows: Vec<u16>,
}

impl HeapPage {
    /// Takes `page` apart, down to tuple headers. Returns false if anything is not as heap pages have it.
    pub(crate) fn parse(&mut self, page: &[u8]) -> bool {
        let Some(header) = PostgresHeader::parse(page) else { return false };
        self.header = header;
        if header.special != page.len() || header.flags > 0xFF || header.lines == 0 {
            return false;
        }
        self.lines.clear();
        self.lines.extend((0..header.lines).map(|n| Line::parse(page, n)));
        self.tuples.clear();
        for line in &self.lines {
            let tuple = match line.state {
                LineState::Normal => Tuple::parse(page, *line),
                LineState::Redirect if line.len == 0 && (1..=header.lines).contains(&line.off) => {
                    Some(Tuple::default())
                }
                LineState::Unused | LineState::Dead if line.len == 0 && line.off == 0 => {
                    Some(Tuple::default())
                }
                _ => None,
            };
            let Some(tuple) = tuple else { return false };
            self.tuples.push(tuple);
        }
        if !self.order.find(&self.lines, |line| line.state == LineState::Normal, &header, 0) {
            return false;
        }
        self.block = self.find_block();
        self.relate();
        self.visit();
        true
    }

    /// Writes the checksum of `page`, in which all else is in place.
    pub(crate) fn write_checksum(&self, page: &mut [u8]) {
        let sum = if self.sum { checksum(page, self.block) } else { self.header.checksum };
        page[CHECKSUM_AT..CHECKSUM_AT + 2].copy_from_slice(&sum.to_le_bytes());
    }

    /// Returns the page's block number, from the ctid of the first tuple that names its own line; of the first tuple if
    /// there is none, and 0 if there are no tuples.
    fn find_block(&self) -> u32 {
        let stored = || {
            self.lines
                .iter()
                .zip(&self.tuples)
                .enumerate()
                .filter(|(_, (line, _))| line.state == LineState::Normal)
        };
        let to_itself = stored().find(|(n, (_, tuple))| usize::from(tuple.ctid_line) == n + 1);
        to_itself.or_else(|| stored().next()).map_or(0, |(_, (_, tuple))| tuple.ctid_block)
    }

    /// Sets `ctid` of each tuple: how its ctid follows from its place.
    fn relate(&mut self) {
        for (n, tuple) in self.tuples.iter_mut().enumerate() {
            tuple.ctid = match (tuple.ctid_block == self.block, usize::from(tuple.ctid_line) == n + 1) {
                (true, true) => tuple::Ctid::Itself,
                (true, false) => tuple::Ctid::SamePage,
                (false, _) => tuple::Ctid::Elsewhere,
            };
        }
    }

    /// Finds the logical order from lines, redirects and ctids within the page.
    pub(crate) fn visit(&mut self) {
        self.visits.clear();
        let chained = |(line, tuple): (&Line, &Tuple)| match line.state {
            LineState::Redirect => true,
            LineState::Normal => tuple.ctid == tuple::Ctid::SamePage || tuple.is_heap_only(),
            LineState::Unused | LineState::Dead => false,
        };
        if !self.lines.iter().zip(&self.tuples).any(chained) {
            // Nothing was updated: the order is that of lines.
            let stored = (0u16..).zip(&self.lines).filter(|(_, line)| line.state == LineState::Normal);
            self.visits.extend(stored.map(|(line, _)| Visit { line, newer: false }));
            return;
        }
        self.visited.clear();
        self.visited.resize(self.lines.len(), false);
        for pass in 0..2 {
            for n in 0..self.lines.len() {
                match self.lines[n].state {
                    LineState::Redirect if pass == 0 => self.follow(self.lines[n].off.wrapping_sub(1)),
                    // Heap-only tuples are reached from their root, or in the second pass.
                    LineState::Normal if pass == 1 || !self.tuples[n].is_heap_only() => self.follow(n),
                    _ => {}
                }
            }
        }
    }

    fn follow(&mut self, mut n: usize) {
        let mut newer = false;
        while self.visited.get(n) == Some(&false) && self.lines[n].state == LineState::Normal {
            self.visited[n] = true;
            self.visits.push(Visit { line: n as u16, newer });
            if self.tuples[n].ctid != tuple::Ctid::SamePage {
                return;
            }
            n = usize::from(self.tuples[n].ctid_line).wrapping_sub(1);
            newer = true;
        }
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

    /// Finds the places of values; tuples that the columns do not describe become odd.
    pub(crate) fn parse_columns(&mut self, page: &[u8], plans: &Plans) {
        self.grid.reset(self.visits.len(), plans.columns.len());
        self.rows.clear();
        for visit in &self.visits {
            let n = usize::from(visit.line);
            let (line, tuple) = (self.lines[n], &mut self.tuples[n]);
            let row = self.rows.len();
            let regular = tuple.is_regular(plans.columns.len()) && {
                let start = line.off + usize::from(tuple.hoff);
                let span = Span { start, end: line.off + line.len, present: tuple.present };
                self.grid.parse(&plans.columns, page, row, span)
            };
            tuple.odd = !regular;
            if regular {
                self.grid.push(tuple.present);
                self.rows.push(visit.line);
            }
        }
        self.grid.close(self.rows.len(), plans.columns.len());
    }
}
