//! Has the place of each value of a page's rows.

use super::Column;
use crate::Corrupt;

/// Forms of a length word, with which a value begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Form {
    /// One byte: the length, this byte included, times two, plus one.
    Short = 0,
    /// Four bytes, aligned: the length, these bytes included, times four.
    Long = 1,
    /// As `Long` plus two: the value is compressed.
    Compressed = 2,
    /// One byte of 1: the value lies elsewhere. A tag follows, which tells the length of the rest.
    External = 3,
}

impl Form {
    /// Returns the form that PostgreSQL gives to `len` bytes.
    #[inline(always)]
    pub(crate) fn usual(len: usize) -> Self {
        if len <= SHORT_MAX { Self::Short } else { Self::Long }
    }

    pub(crate) fn from_id(id: u32) -> Self {
        match id & 3 {
            0 => Self::Short,
            1 => Self::Long,
            2 => Self::Compressed,
            _ => Self::External,
        }
    }

    #[inline(always)]
    pub(crate) fn word_bytes(self) -> usize {
        if matches!(self, Self::Short | Self::External) { 1 } else { 4 }
    }

    #[inline(always)]
    pub(crate) fn write_word(self, page: &mut [u8], at: usize, len: usize) {
        let long = |kind: usize| (((len + 4) << 2 | kind) as u32).to_le_bytes();
        match self {
            Self::Short => page[at] = ((len + 1) << 1 | 1) as u8,
            Self::External => page[at] = 1,
            Self::Long => page[at..at + 4].copy_from_slice(&long(0)),
            Self::Compressed => page[at..at + 4].copy_from_slice(&long(2)),
        }
    }
}

/// Largest number of content bytes of a value with a length word of one byte.
pub(crate) const SHORT_MAX: usize = 126;
/// Tag of an on-disk pointer, and the bytes of such an external value behind its first: the tag and 16 more.
const ONDISK_TAG: u8 = 18;
const ONDISK_BYTES: usize = 17;

/// A row's data in a page, and its columns.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Span {
    /// Offset of the first byte; a multiple of 8.
    pub(crate) start: usize,
    /// Offset behind the last byte.
    pub(crate) end: usize,
    /// The row's columns: a bit per column, the first lowest.
    pub(crate) present: u128,
}

/// Cells of all rows, column by column: `[column * rows + row]`.
#[derive(Debug, Default)]
pub(crate) struct Grid {
    pub(crate) rows: usize,
    columns: usize,
    /// Offset of the content, behind a length word.
    pub(crate) pos: Vec<u16>,
    /// Bytes of the content.
    pub(crate) len: Vec<u16>,
    /// Form of the length word, of values that have one.
    pub(crate) form: Vec<Form>,
    /// Symbol that may be the context of other columns.
    pub(crate) sym: Vec<u8>,
    /// Columns of each row, as bits.
    pub(crate) present: Vec<u128>,
    /// Columns that all rows have, as bits.
    pub(crate) everywhere: u128,
    starts: Vec<u16>,
    /// Ends of rows while they are laid out.
    at: Vec<u32>,
}

impl Grid {
    /// Removes all rows, and makes room for `rows` of `columns`.
    pub(crate) fn reset(&mut self, rows: usize, columns: usize) {
        let cells = rows * columns;
        self.rows = rows;
        self.columns = columns;
        self.pos.clear();
        self.pos.resize(cells, 0);
        self.len.clear();
        self.len.resize(cells, 0);
        self.form.clear();
        self.form.resize(cells, Form::Short);
        self.sym.clear();
        self.sym.resize(cells, 0);
        self.present.clear();
        self.everywhere = u128::MAX;
    }

    /// Returns the number of columns that there is room for.
    pub(crate) fn columns(&self) -> usize {
        self.columns
    }

    /// Adds a row whose columns are `present`.
    pub(crate) fn push(&mut self, present: u128) {
        self.present.push(present);
        self.everywhere &= present;
    }

    /// Reduces the number of rows to `rows`, after room was made for more than were found.
    pub(crate) fn close(&mut self, rows: usize, columns: usize) {
        if rows == self.rows {
            return;
        }
        for c in 0..columns {
            let from = c * self.rows;
            self.pos.copy_within(from..from + rows, c * rows);
            self.len.copy_within(from..from + rows, c * rows);
            self.form.copy_within(from..from + rows, c * rows);
        }
        self.rows = rows;
    }

    /// Fills `rows` with the rows that have column `c`.
    pub(crate) fn rows_of(&self, c: usize, rows: &mut Vec<u16>) {
        rows.clear();
        rows.extend(0..self.rows as u16);
        if self.everywhere >> c & 1 == 0 {
            // The processor cannot predict which rows have the column: each is written, and `count` tells if it counts.
            let mut count = 0;
            for (t, &present) in (0..self.rows as u16).zip(&self.present) {
                if let Some(row) = rows.get_mut(count) {
                    *row = t;
                }
                count += bit(present, c);
            }
            rows.truncate(count);
        }
    }

    /// Returns the index of the cell of column `c` and row `t`.
    #[inline(always)]
    pub(crate) fn cell(&self, c: usize, t: u16) -> usize {
        c * self.rows + usize::from(t)
    }

    /// Returns the place of a value's content, and its length.
    #[inline(always)]
    pub(crate) fn place(&self, c: usize, t: u16) -> (usize, usize) {
        let cell = self.cell(c, t);
        (usize::from(self.pos[cell]), usize::from(self.len[cell]))
    }

    /// Returns a value's content.
    #[inline(always)]
    pub(crate) fn content<'p>(&self, page: &'p [u8], c: usize, t: u16) -> &'p [u8] {
        let (at, len) = self.place(c, t);
        &page[at..at + len]
    }

    /// Notes the places of the values of row `t`, which lies at `span`. Returns false if `columns` do not describe its
    /// bytes exactly; the row's places mean nothing then.
    pub(crate) fn parse(&mut self, columns: &[Column], page: &[u8], t: usize, span: Span) -> bool {
        self.walk(columns, page, t, span) == Some(span.end)
    }

    /// Notes the place of a value.
    pub(crate) fn put(&mut self, c: usize, t: usize, (pos, len): (usize, usize), form: Form) {
        let cell = c * self.rows + t;
        self.pos[cell] = pos as u16;
        self.len[cell] = len as u16;
        self.form[cell] = form;
    }

    /// As [`Grid::parse`], for rows that are padded with zeros to a multiple of 8.
    pub(crate) fn parse_padded(&mut self, columns: &[Column], page: &[u8], t: usize, span: Span) -> bool {
        let end = self.walk(columns, page, t, span);
        end.is_some_and(|end| end.next_multiple_of(8) == span.end && zeros(page, end, span.end))
    }

    /// Notes the places of a row's values, and returns where the last one ends; `None` if one does not fit.
    #[inline(always)]
    fn walk(&mut self, columns: &[Column], page: &[u8], t: usize, span: Span) -> Option<usize> {
        let mut at = span.start;
        for (c, column) in columns.iter().enumerate() {
            if span.present >> c & 1 == 0 {
                continue;
            }
            let (form, pos, len) = locate(*column, page, at, span.end)?;
            let cell = c * self.rows + t;
            self.pos[cell] = pos as u16;
            self.len[cell] = len as u16;
            self.form[cell] = form;
            at = pos + len;
        }
        Some(at)
    }

    /// Makes places within each row from lengths and forms, the first byte of a row being 0. `ends` receives the length
    /// of each row.
    ///
    /// # Errors
    /// [`Corrupt`] if a row is longer than `max`.
    pub(crate) fn lay_out(
        &mut self,
        columns: &[Column],
        max: usize,
        ends: &mut Vec<u16>,
    ) -> Result<(), Corrupt> {
        let (rows, at) = (self.rows, &mut self.at);
        at.clear();
        at.resize(rows, 0);
        for (c, column) in columns.iter().enumerate() {
            let cells = c * rows..(c + 1) * rows;
            let (pos, len) = (&mut self.pos[cells.clone()], &mut self.len[cells.clone()]);
            let mask = u32::from(column.align).max(1) - 1;
            let width = u32::from(column.width);
            let everywhere = self.everywhere >> c & 1 == 1;
            if column.is_varlena() {
                let cells = pos.iter_mut().zip(&*len).zip(&self.form[cells]).zip(at.iter_mut());
                for ((((pos, &len), form), at), present) in cells.zip(self.present.as_slice()) {
                    let begin = match form.word_bytes() {
                        _ if column.is_innodb() => *at,
                        1 => *at + 1,
                        _ => ((*at + mask) & !mask) + 4,
                    };
                    *pos = begin as u16;
                    let next = begin + u32::from(len);
                    *at = if everywhere || bit(*present, c) == 1 { next } else { *at };
                }
            } else if everywhere {
                len.fill(column.width);
                for (pos, at) in pos.iter_mut().zip(at.iter_mut()) {
                    let begin = (*at + mask) & !mask;
                    *pos = begin as u16;
                    *at = begin + width;
                }
            } else {
                len.fill(column.width);
                // Each half of the masks has a loop of its own, with shifts of one word.
                if c < 64 {
                    place_present(pos, at, &self.present, (mask, width), |present| present as u64 >> c);
                } else {
                    let c = c - 64;
                    place_present(pos, at, &self.present, (mask, width), |present| {
                        (present >> 64) as u64 >> c
                    });
                }
            }
        }
        // Sums over at most 128 columns fit 32 bits: if the last one is within bounds, all are.
        if at.iter().any(|&at| at as usize > max) {
            return Err(Corrupt("a row is longer than its page"));
        }
        ends.clear();
        ends.extend(at.iter().map(|&at| at as u16));
        Ok(())
    }

    /// Moves rows, which are laid out from 0, to where they begin.
    pub(crate) fn shift_all(&mut self, starts: impl Iterator<Item = usize>) {
        self.starts.clear();
        self.starts.extend(starts.map(|start| start as u16));
        if self.rows == 0 {
            return;
        }
        for column in self.pos.chunks_exact_mut(self.rows) {
            for (pos, start) in column.iter_mut().zip(&self.starts) {
                *pos = pos.wrapping_add(*start);
            }
        }
    }

    /// Writes the length words of column `c`.
    pub(crate) fn write_words(&self, c: usize, rows: &[u16], page: &mut [u8]) {
        let cells = c * self.rows..(c + 1) * self.rows;
        let (pos, len, form) = (&self.pos[cells.clone()], &self.len[cells.clone()], &self.form[cells]);
        for &t in rows {
            let t = usize::from(t);
            let (form, pos, len) = (form[t], usize::from(pos[t]), usize::from(len[t]));
            form.write_word(page, pos - form.word_bytes(), len);
        }
    }
}

/// Sets the places of values of a fixed width, in the rows of whose masks `bit` is 1; `at` are the ends of rows so far.
#[inline(always)]
fn place_present(
    pos: &mut [u16],
    at: &mut [u32],
    present: &[u128],
    (mask, width): (u32, u32),
    bit: impl Fn(u128) -> u64,
) {
    for ((pos, at), &present) in pos.iter_mut().zip(at).zip(present) {
        // A row without a value gets a place as well, which nobody asks for.
        let begin = (*at + mask) & !mask;
        *pos = begin as u16;
        *at = if bit(present) & 1 == 1 { begin + width } else { *at };
    }
}

/// Returns bit `c` of a mask of columns: 1 if the row has it.
#[inline(always)]
fn bit(present: u128, c: usize) -> usize {
    // A shift of one word takes a few instructions less than one of two.
    let word = if c < 64 { present as u64 } else { (present >> 64) as u64 };
    (word >> (c % 64)) as usize & 1
}

/// Returns form, place and length of the value of `column` that begins at `at`, or behind zeros of padding there.
/// Returns `None` if none fits before `end`.
#[inline(always)]
pub(crate) fn locate(column: Column, page: &[u8], at: usize, end: usize) -> Option<(Form, usize, usize)> {
    let aligned = at.next_multiple_of(usize::from(column.align));
    if !column.is_varlena() {
        let fits = aligned + usize::from(column.width) <= end;
        return (fits && zeros(page, at, aligned)).then_some((
            Form::Short,
            aligned,
            usize::from(column.width),
        ));
    }
    let first = *page.get(at).filter(|_| at < end)?;
    if first & 1 == 1 {
        let (form, len) = match first {
            1 if *page.get(at + 1)? == ONDISK_TAG => (Form::External, ONDISK_BYTES),
            1 => return None,
            _ => (Form::Short, usize::from(first >> 1) - 1),
        };
        return (at + 1 + len <= end).then_some((form, at + 1, len));
    }
    let word = u32::from_le_bytes(*page.get(aligned..aligned + 4)?.first_chunk()?);
    let len = (word >> 2) as usize;
    let form = if word & 3 == 0 { Form::Long } else { Form::Compressed };
    let sane = word & 1 == 0 && len >= 4 && aligned + len <= end && zeros(page, at, aligned);
    sane.then(|| (form, aligned + 4, len - 4))
}

#[inline(always)]
fn zeros(page: &[u8], from: usize, to: usize) -> bool {
    page.get(from..to).is_some_and(|pad| pad.iter().all(|&byte| byte == 0))
}
