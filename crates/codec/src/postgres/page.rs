//! Has the parts that all pages of PostgreSQL share: a header, line pointers, items, stale bytes between them.

use crate::Corrupt;
use crate::entropy::number::{unzigzag, zigzag};
use crate::entropy::{Decoder, Sink, Stream, number};
use crate::limits::POSTGRES_PAGE_MAX;
use crate::stale::Stale;
use crate::wire::{le16, le32};

/// Bytes of the header.
pub(crate) const HEADER: usize = 24;
/// Bytes of a line pointer.
pub(crate) const LINE: usize = 4;
pub(crate) const CHECKSUM_AT: usize = 8;
/// Number of low bits of an LSN that are not coded as a difference to the model's: three, which are zero as a rule
/// because records of the WAL are aligned, and 16 that a state of the entropy coder carries.
pub(crate) const LSN_LOW_BITS: u32 = 3 + 16;
/// Layout version, the low byte of the word that has the page's size.
const VERSION: u16 = 4;

/// A page's header. `lower` follows from `lines`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PostgresHeader {
    /// The LSN as one number; the page has its high word first.
    pub(crate) lsn: u64,
    pub(crate) checksum: u16,
    pub(crate) flags: u16,
    /// Number of line pointers.
    pub(crate) lines: usize,
    pub(crate) upper: usize,
    pub(crate) special: usize,
    pub(crate) prune_xid: u32,
}

impl PostgresHeader {
    /// Returns the header of a page whose line pointers, items and special space are in order; `None` if they are not.
    pub(crate) fn parse(page: &[u8]) -> Option<Self> {
        let lower = usize::from(le16(page, 12));
        let (upper, special) = (usize::from(le16(page, 14)), usize::from(le16(page, 16)));
        let version = le16(page, 18);
        let sized = version & 0xFF == VERSION && usize::from(version & 0xFF00) == page.len();
        let ordered = HEADER <= lower && lower <= upper && upper <= special && special <= page.len();
        let whole = (lower - HEADER.min(lower)).is_multiple_of(LINE) && special.is_multiple_of(8);
        (sized && ordered && whole).then(|| Self {
            lsn: u64::from(le32(page, 0)) << 32 | u64::from(le32(page, 4)),
            checksum: le16(page, CHECKSUM_AT),
            flags: le16(page, 10),
            lines: (lower - HEADER) / LINE,
            upper,
            special,
            prune_xid: le32(page, 20),
        })
    }

    pub(crate) fn lower(&self) -> usize {
        HEADER + LINE * self.lines
    }

    /// Sets `upper` to `lowest`, where the lowest item begins, if `tight`.
    ///
    /// # Errors
    /// [`Corrupt`] if items begin below `upper`, or line pointers end above it.
    pub(crate) fn settle_upper(&mut self, lowest: usize, tight: bool) -> Result<(), Corrupt> {
        if tight {
            self.upper = lowest;
        }
        if self.upper > lowest || self.upper < self.lower() {
            return Err(Corrupt("items and line pointers overlap"));
        }
        Ok(())
    }

    pub(crate) fn write(&self, page: &mut [u8]) {
        let size = page.len() as u16 | VERSION;
        page[..4].copy_from_slice(&((self.lsn >> 32) as u32).to_le_bytes());
        page[4..8].copy_from_slice(&(self.lsn as u32).to_le_bytes());
        let words =
            [self.checksum, self.flags, self.lower() as u16, self.upper as u16, self.special as u16, size];
        for (i, word) in words.into_iter().enumerate() {
            page[8 + 2 * i..10 + 2 * i].copy_from_slice(&word.to_le_bytes());
        }
        page[20..24].copy_from_slice(&self.prune_xid.to_le_bytes());
    }
}

/// State of a line pointer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum LineState {
    #[default]
    Unused = 0,
    Normal = 1,
    Redirect = 2,
    Dead = 3,
}

/// A line pointer: offset 15 bits, state 2, length 15.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Line {
    pub(crate) state: LineState,
    pub(crate) off: usize,
    pub(crate) len: usize,
}

impl Line {
    #[inline]
    pub(crate) fn parse(page: &[u8], n: usize) -> Self {
        let word = le32(page, HEADER + LINE * n);
        let state = match word >> 15 & 3 {
            0 => LineState::Unused,
            1 => LineState::Normal,
            2 => LineState::Redirect,
            _ => LineState::Dead,
        };
        Self { state, off: (word & 0x7FFF) as usize, len: (word >> 17) as usize }
    }

    #[inline]
    pub(crate) fn write(self, page: &mut [u8], n: usize) {
        let word = self.off as u32 & 0x7FFF | (self.state as u32) << 15 | (self.len as u32) << 17;
        page[HEADER + LINE * n..HEADER + LINE * (n + 1)].copy_from_slice(&word.to_le_bytes());
    }
}

/// The order of items, from the highest to the lowest, and whether there are gaps between them.
#[derive(Debug, Default)]
pub(crate) struct Order {
    /// Numbers of the items' lines.
    pub(crate) lines: Vec<u16>,
    /// True if some items do not touch, but for the bytes that alignment costs.
    pub(crate) has_gaps: bool,
}

/// Returns where the item below `end` with `len` bytes begins if nothing lies between.
#[inline(always)]
pub(crate) fn item_below(end: usize, len: usize) -> Option<usize> {
    end.checked_sub(len.next_multiple_of(8))
}

impl Order {
    /// Sorts the items of the lines that are `stored`. Returns false if they overlap, are not aligned, or lie beyond
    /// `upper` or `special`. The order of lines from `first` on is tried before they are sorted.
    pub(crate) fn find(
        &mut self,
        lines: &[Line],
        stored: impl Fn(&Line) -> bool,
        header: &PostgresHeader,
        first: usize,
    ) -> bool {
        self.lines.clear();
        let all = (first..lines.len()).chain(0..first.min(lines.len()));
        self.lines.extend(all.filter(|&n| stored(&lines[n])).map(|n| n as u16));
        let sorted = self.lines.is_sorted_by(|&a, &b| lines[usize::from(a)].off > lines[usize::from(b)].off);
        if !sorted {
            self.lines.sort_unstable_by_key(|&n| usize::MAX - lines[usize::from(n)].off);
        }
        self.has_gaps = false;
        let mut end = header.special;
        for &n in &self.lines {
            let line = lines[usize::from(n)];
            let Some(expected) = item_below(end, line.len) else { return false };
            if !line.off.is_multiple_of(8) || line.off > expected || line.off < header.upper {
                return false;
            }
            self.has_gaps |= line.off != expected;
            end = line.off;
        }
        true
    }

    /// Returns where the lowest item begins; `special` if there is none.
    pub(crate) fn lowest(&self, lines: &[Line], special: usize) -> usize {
        self.lines.last().map_or(special, |&n| lines[usize::from(n)].off)
    }

    /// Returns true if the order is that of the lines from `first` on, followed by those before `first`.
    pub(crate) fn is_plain(&self, first: usize) -> bool {
        let count = self.lines.len();
        let first = first.min(count);
        let rotated =
            |lines: &[u16]| lines.is_sorted() && lines.first().is_none_or(|&n| usize::from(n) >= first);
        !self.has_gaps && rotated(&self.lines[..count - first]) && self.lines[count - first..].is_sorted()
    }

    /// Writes an order that is not plain to streams `id` and `id + 1`.
    pub(crate) fn put<S: Sink>(&self, lines: &[Line], special: usize, sink: &mut S, id: usize) {
        sink.bits(u32::from(self.has_gaps), 1);
        let (mut expected, mut end) = (0, special);
        for &n in &self.lines {
            number::put(sink, id, 0, zigzag(i64::from(n) - expected));
            expected = i64::from(n) + 1;
            if self.has_gaps {
                let line = lines[usize::from(n)];
                let gap = item_below(end, line.len).map_or(0, |below| below - line.off);
                number::put(sink, id + 1, 0, gap as u64 / 8);
                end = line.off;
            }
        }
    }

    /// Reads an order that [`Order::put`] wrote, or makes the plain order of the lines that are `stored`, which begins
    /// with the line of number `first` among them. Places the items.
    pub(crate) fn get(
        &mut self,
        lines: &mut [Line],
        stored: impl Fn(&Line) -> bool,
        (special, first): (usize, usize),
        coded: Option<(&mut Decoder<'_>, &[Stream])>,
    ) -> Result<(), Corrupt> {
        const BAD: Corrupt = Corrupt("items do not fit their page");
        self.lines.clear();
        self.lines.extend((0..lines.len()).filter(|&n| stored(&lines[n])).map(|n| n as u16));
        let mut end = special;
        let Some((decoder, streams)) = coded else {
            self.has_gaps = false;
            let first = first.min(self.lines.len());
            self.lines.rotate_left(first);
            for &n in &self.lines {
                end = item_below(end, lines[usize::from(n)].len).ok_or(BAD)?;
                lines[usize::from(n)].off = end;
            }
            return Ok(());
        };
        let count = self.lines.len();
        self.lines.clear();
        self.has_gaps = decoder.bits(1) == 1;
        for line in lines.iter_mut().filter(|line| stored(line)) {
            line.off = 0;
        }
        let mut expected = 0;
        for _ in 0..count {
            let (_, step) = number::get(decoder, &streams[0], 0);
            let n = usize::try_from(unzigzag(step).wrapping_add(expected)).map_err(|_| BAD)?;
            let gap = if self.has_gaps { number::get(decoder, &streams[1], 0).1 } else { 0 };
            let line = lines.get_mut(n).filter(|line| stored(line) && line.off == 0).ok_or(BAD)?;
            let below = item_below(end, line.len).ok_or(BAD)?;
            let gap = usize::try_from(gap).ok().filter(|&gap| gap <= below / 8).ok_or(BAD)?;
            line.off = below - 8 * gap;
            end = line.off;
            self.lines.push(n as u16);
            expected = n as i64 + 1;
        }
        Ok(())
    }
}

impl Stale {
    /// Notes the hole if `hole`, then the bytes behind items if `behind`.
    pub(crate) fn regions(
        &mut self,
        header: &PostgresHeader,
        lines: &[Line],
        order: &Order,
        hole: bool,
        behind: bool,
    ) {
        self.clear();
        if hole {
            self.note(header.lower(), header.upper);
        }
        if behind {
            let mut end = header.special;
            for &n in &order.lines {
                let line = lines[usize::from(n)];
                self.note(line.off + line.len, end);
                end = line.off;
            }
            // Items may begin above `upper`.
            self.note(header.upper, end);
        }
    }

    /// Returns whether the hole is all zeros, and whether the bytes behind items are. The regions that it leaves mean
    /// nothing.
    pub(crate) fn zeros(
        &mut self,
        header: &PostgresHeader,
        lines: &[Line],
        order: &Order,
        page: &[u8],
    ) -> (bool, bool) {
        self.regions(header, lines, order, true, false);
        let hole = self.is_zero(page);
        self.regions(header, lines, order, false, true);
        (hole, self.is_zero(page))
    }
}

/// # Errors
/// [`Corrupt`] if PostgreSQL has no pages of this length.
pub(crate) fn verify_size(page_bytes: usize) -> Result<(), Corrupt> {
    if page_bytes > POSTGRES_PAGE_MAX {
        return Err(Corrupt("a page that is too large for PostgreSQL"));
    }
    Ok(())
}
