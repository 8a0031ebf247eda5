//! Compares pages by traits of their columns, to find those of one table or index.

use super::SqlitePage;
use super::page::kind;
use super::record::{MAX_VALUES, class};
use crate::Corrupt;
use crate::wire::Reader;

/// Number of cells of a page that are looked at.
const CELLS: usize = 12;
/// Number of bytes of each value that are looked at.
const BYTES: usize = 24;
/// The whole of which shares are parts.
const WHOLE: usize = 32;
/// Largest distance of two pages that count as alike.
pub(crate) const ALIKE: u32 = 28;
/// Distance of columns of different types; those of one type are rarely so far apart.
const OTHER_TYPE: u32 = 200;

/// Traits of a column in a page.
///
/// `class` is the most frequent of: 1 integers, 2 other numbers, 3 text, 4 other bytes; 0 if there are only values of
/// other classes. In a column that has other numbers, integers count as such.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Traits {
    class: u8,
    /// Twelve times the logarithm to base 2 of the mean length of text and other bytes, plus one.
    length: u8,
    /// Shares of digits, small letters and capitals among the bytes, in parts of 32.
    shares: [u8; 3],
}

/// Traits of all columns.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Signature {
    /// Kind of page, as the page's header has it.
    pub(crate) kind: u8,
    columns: Vec<Traits>,
}

impl Signature {
    /// Returns the signature of `page`, which `parts` were parsed from.
    pub(crate) fn of(parts: &SqlitePage, page: &[u8]) -> Self {
        let regular = || parts.cells.iter().filter(|cell| !cell.odd).take(CELLS);
        let mut counts = [0u8; MAX_VALUES + 1];
        for cell in regular() {
            counts[cell.values.min(MAX_VALUES)] += 1;
        }
        let frequent = (0..).zip(counts).filter(|&(_, count)| count > 0).max_by_key(|&(_, count)| count);
        let columns = frequent.map_or(0, |(columns, _)| columns);
        let traits = |c: usize| {
            let values = regular().filter(|cell| c < cell.values).map(|cell| &parts.values[cell.first + c]);
            Traits::of(page, values)
        };
        Self { kind: parts.header.kind, columns: (0..columns).map(traits).collect() }
    }

    /// Returns the distance of two pages, which is that of their most different columns; `None` if their kind or number
    /// of columns says that they are not of one table.
    pub(crate) fn distance(&self, other: &Self) -> Option<u32> {
        if self.kind != other.kind {
            return None;
        }
        if self.columns.len() != other.columns.len() {
            // An empty page may belong to any table.
            let empty = self.columns.is_empty() || other.columns.is_empty();
            return empty.then_some(OTHER_TYPE);
        }
        let apart = self.columns.iter().zip(&other.columns).map(|(one, other)| one.distance(other));
        Some(apart.max().unwrap_or(0))
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        out.push(self.kind);
        out.push(self.columns.len() as u8);
        for traits in &self.columns {
            out.extend([traits.class, traits.length]);
            out.extend(traits.shares);
        }
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Self, Corrupt> {
        let found = reader.byte()?;
        if !kind::is_known(found) {
            return Err(Corrupt("a kind of page"));
        }
        let mut columns = vec![];
        for _ in 0..reader.at_most(MAX_VALUES)? {
            let (class, length) = (reader.byte()?, reader.byte()?);
            columns.push(Traits { class, length, shares: [reader.byte()?, reader.byte()?, reader.byte()?] });
        }
        Ok(Self { kind: found, columns })
    }
}

impl Traits {
    fn of<'v>(page: &[u8], values: impl Iterator<Item = &'v super::Value>) -> Self {
        let mut counts = [0u8; 5];
        let (mut total, mut strings) = (0, 0);
        let (mut bytes, mut shares) = (0, [0usize; 3]);
        for value in values {
            let kind = match value.class {
                class::INT | class::OLD => 1,
                class::FLOAT | class::DECIMAL => 2,
                class::TEXT | class::CUT_TEXT => 3,
                class::BLOB | class::CUT_BLOB => 4,
                _ => 0,
            };
            counts[kind] += 1;
            if kind < 3 {
                continue;
            }
            total += value.len;
            strings += 1;
            for &byte in page[value.at..value.at + value.len].iter().take(BYTES) {
                bytes += 1;
                match byte {
                    b'0'..=b'9' => shares[0] += 1,
                    b'a'..=b'z' => shares[1] += 1,
                    b'A'..=b'Z' => shares[2] += 1,
                    _ => {}
                }
            }
        }
        if counts[2] > 0 {
            counts[2] += std::mem::take(&mut counts[1]);
        }
        // Any value decides against class 0: a column without values here may have some in the next page.
        let class = (1..5u8).rev().max_by_key(|&kind| counts[usize::from(kind)]).unwrap_or(0);
        let class = if counts[usize::from(class)] == 0 { 0 } else { class };
        let mean = total / usize::max(strings, 1) + 1;
        let length = (12.0 * (mean as f64).log2()) as u8;
        Self { class, length, shares: shares.map(|count| (count * WHOLE / bytes.max(1)) as u8) }
    }

    fn distance(&self, other: &Self) -> u32 {
        let numbers = |class: u8| matches!(class, 1 | 2);
        match (self.class, other.class) {
            (0, 0) => 0,
            (0, _) | (_, 0) => 4,
            (one, other) if one != other => {
                if numbers(one) && numbers(other) {
                    4
                } else {
                    OTHER_TYPE
                }
            }
            (1 | 2, _) => 0,
            _ => {
                let shares =
                    self.shares.iter().zip(other.shares).map(|(&one, other)| u32::from(one.abs_diff(other)));
                u32::from(self.length.abs_diff(other.length)).saturating_sub(4) + shares.sum::<u32>()
            }
        }
    }
}
