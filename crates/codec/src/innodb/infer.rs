//! Finds the layout of an index's records from its pages.
//!
//! InnoDB does not tell in a page how many columns there are. A page does tell where the headers of records are, that
//! records lie in the order of their numbers in the heap, and that the first one begins where the heap does. So of two
//! neighbours, the values of the first and the lengths, null bitmap and header of the second fill the bytes between
//! their origins. A guess of the bytes of bitmap and the number of lengths explains most neighbours exactly, or next to
//! none.
//!
//! Then the bits of the bitmap are explained: each takes away a value of varying length, or bytes of fixed width. Last,
//! [`super::split`] finds where values end, which no number tells.

use std::collections::HashMap;

use super::layout::{Field, InnodbLayout, MAX_BITMAP, bitmap, length};
use super::page::{HEAP, RECORD};
use super::split::{Nullable, SplitRow, split};
use super::{INSTANT_INFO, InnodbPage};
use crate::columns::MAX_COLUMNS;

/// Largest number of pages that are looked at, and about that of neighbours in each.
const PAGES: usize = 48;
const NEIGHBOURS: usize = 16;
/// Largest number of lengths of a record.
const MAX_LENGTHS: usize = 64;
/// Largest number of guesses, per number of lengths, of which columns have two bytes of length.
const MAX_TRIES: usize = 32;
/// Smallest share of the neighbours that a guess has to explain.
const MIN_SHARE: f64 = 0.4;
/// Largest product of the number of lengths, plus one, and the bytes of fixed width: larger records would take too long
/// to take apart.
const MAX_STATES: usize = 60_000;
/// Number of neighbours in which lengths of two bytes are looked for.
const LONG_NEIGHBOURS: usize = 128;
/// Number of rows by which columns are told apart.
const ROWS: usize = 240;

/// Two records, of which the second begins where the first ends, or behind.
#[derive(Clone, Copy)]
struct Pair<'a> {
    page: &'a [u8],
    one: usize,
    /// Origin of the second.
    other: usize,
}

/// The part of a record that a null bit takes away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Null {
    /// The length with this number, and its value.
    Length(usize),
    /// This number of bytes of fixed width.
    Bytes(usize),
}

/// A guess of a layout.
#[derive(Clone, Debug, Default)]
struct Guess {
    bitmap_bytes: usize,
    /// For each length: true if lengths above 127 have two bytes.
    long: Vec<bool>,
    /// The bitmap of records that lack no value.
    base: u64,
    /// Number of bytes of fixed width.
    fixed: usize,
    nulls: Vec<(u8, Null)>,
    /// Number of neighbours that the guess explains.
    explained: usize,
}

/// Returns the layout of the records of `pages`, which [`InnodbPage::parse`] accepts; it has no columns if none can be
/// found.
pub(crate) fn infer(pages: &[&[u8]]) -> InnodbLayout {
    let mut parts = InnodbPage::default();
    let (mut pairs, mut firsts) = (vec![], vec![]);
    let step = pages.len().div_ceil(PAGES).max(1);
    for page in pages.iter().step_by(step).filter(|page| page.len() > HEAP) {
        if !parts.parse(page) {
            continue;
        }
        let origins: Vec<usize> =
            parts.by_heap.iter().map(|&n| parts.records[usize::from(n)].origin).collect();
        firsts.extend(origins.first().map(|&origin| (*page, origin)));
        let every = (origins.len() / NEIGHBOURS).max(1);
        let neighbours = origins.windows(2).step_by(every);
        pairs.extend(neighbours.map(|pair| Pair { page, one: pair[0], other: pair[1] }));
    }
    if pairs.len() < 4 {
        return InnodbLayout::default();
    }
    let mut best: Option<Guess> = None;
    for bitmap_bytes in 0..=MAX_BITMAP {
        if let Some(guess) = guess(&pairs, &firsts, bitmap_bytes)
            && best.as_ref().is_none_or(|best| guess.explained >= best.explained)
        {
            best = Some(guess);
        }
    }
    let enough = |guess: &Guess| {
        let explains = guess.explained as f64 >= MIN_SHARE * pairs.len() as f64;
        explains && (guess.long.len() + 1) * guess.fixed <= MAX_STATES
    };
    best.filter(enough).map(|guess| columns(&guess, pages, &mut parts)).unwrap_or_default()
}

/// Returns the best guess with `bitmap_bytes` bytes of bitmap.
fn guess(pairs: &[Pair<'_>], firsts: &[(&[u8], usize)], bitmap_bytes: usize) -> Option<Guess> {
    let base = base_bitmap(pairs, bitmap_bytes);
    let is_base = |page: &[u8], origin: usize| bitmap(page, origin, bitmap_bytes) == base;
    let own: Vec<Pair<'_>> = pairs.iter().copied().filter(|pair| is_base(pair.page, pair.one)).collect();
    let first: Vec<_> = firsts.iter().copied().filter(|&(page, origin)| is_base(page, origin)).collect();
    let longest =
        first.iter().map(|(_, origin)| origin.saturating_sub(HEAP + RECORD + bitmap_bytes)).max()?;
    let mut best: Option<Guess> = None;
    for lengths in 0..=longest.min(MAX_LENGTHS) {
        let mut tries = vec![];
        find_long(&own, bitmap_bytes, lengths, &mut vec![], &mut tries);
        for long in tries {
            let mut guess = Guess { bitmap_bytes, long, base, ..Guess::default() };
            let exact = |&&(page, origin): &&(&[u8], usize)| {
                guess.before(page, origin, &[]).map(|(start, _)| start) == Some(HEAP)
            };
            if first.iter().filter(exact).count() * 4 < first.len() * 3 {
                continue;
            }
            guess.explain(pairs, &own);
            if best.as_ref().is_none_or(|best| guess.explained > best.explained) {
                best = Some(guess);
            }
        }
    }
    best
}

/// Returns the bitmap with the fewest bits, of those that at least one record in thirty has.
fn base_bitmap(pairs: &[Pair<'_>], bitmap_bytes: usize) -> u64 {
    let mut counts: HashMap<u64, usize> = HashMap::new();
    for pair in pairs {
        *counts.entry(bitmap(pair.page, pair.one, bitmap_bytes)).or_default() += 1;
    }
    let frequent = counts.into_iter().filter(|(_, count)| count * 30 >= pairs.len());
    frequent.map(|(bits, _)| bits).min_by_key(|bits| (bits.count_ones(), *bits)).unwrap_or(0)
}

/// Finds choices of the columns that have lengths of two bytes: both are tried for a column for which a first byte
/// allows two in some record.
fn find_long(
    pairs: &[Pair<'_>],
    bitmap_bytes: usize,
    lengths: usize,
    long: &mut Vec<bool>,
    found: &mut Vec<Vec<bool>>,
) {
    if found.len() >= MAX_TRIES {
        return;
    }
    if long.len() == lengths {
        found.push(long.clone());
        return;
    }
    let guess = Guess { bitmap_bytes, long: long.clone(), ..Guess::default() };
    let step = pairs.len().div_ceil(LONG_NEIGHBOURS).max(1);
    let doubtful = pairs.iter().step_by(step).any(|pair| {
        let before = guess.before(pair.page, pair.one, &[]);
        before.is_some_and(|(start, _)| start > 0 && pair.page[start - 1] >= 0x80)
    });
    for choice in if doubtful { &[true, false][..] } else { &[false] } {
        long.push(*choice);
        find_long(pairs, bitmap_bytes, lengths, long, found);
        long.pop();
    }
}

impl Guess {
    /// Returns where the record at `origin` begins, and the sum of its lengths. The lengths in `missing` are not there.
    fn before(&self, page: &[u8], origin: usize, missing: &[usize]) -> Option<(usize, usize)> {
        let mut at = origin.checked_sub(RECORD + self.bitmap_bytes)?;
        let mut sum = 0;
        for (n, &long) in self.long.iter().enumerate() {
            if !missing.contains(&n) {
                let (next, len, _) = length(page, at, long)?;
                at = next;
                sum += len;
            }
        }
        Some((at, sum))
    }

    /// Returns the lengths and the number of bytes that the null bits of `bits` take away, and the bits of which that
    /// is not known; `None` if a bit of the base is not set.
    fn missing(&self, bits: u64) -> Option<(Vec<usize>, usize, Vec<u8>)> {
        let more = bits ^ self.base;
        if self.base & more != 0 {
            return None;
        }
        let (mut lengths, mut bytes, mut unknown) = (vec![], 0, vec![]);
        for bit in (0..64).filter(|bit| more >> bit & 1 == 1) {
            match self.nulls.iter().find(|(known, _)| *known == bit) {
                Some((_, Null::Length(n))) => lengths.push(*n),
                Some((_, Null::Bytes(width))) => bytes += width,
                None => unknown.push(bit),
            }
        }
        Some((lengths, bytes, unknown))
    }

    /// Returns the number of bytes between the first record's values of varying length and the beginning of the second
    /// record; `None` if the second one is not understood. The first lacks the lengths of `missing`; so does the second
    /// if it has the same bitmap.
    fn rest(&self, pair: &Pair<'_>, missing: &[usize]) -> Option<usize> {
        let bits = bitmap(pair.page, pair.other, self.bitmap_bytes);
        let end = if bits == bitmap(pair.page, pair.one, self.bitmap_bytes) {
            self.before(pair.page, pair.other, missing)?.0
        } else {
            let (lengths, _, unknown) = self.missing(bits)?;
            if !unknown.is_empty() {
                return None;
            }
            self.before(pair.page, pair.other, &lengths)?.0
        };
        let (_, sum) = self.before(pair.page, pair.one, missing)?;
        end.checked_sub(pair.one + sum)
    }

    /// Finds the number of bytes of fixed width and the meaning of the bitmap's bits, and counts the neighbours that
    /// these explain.
    fn explain(&mut self, pairs: &[Pair<'_>], own: &[Pair<'_>]) {
        let Some((fixed, count)) = most_frequent(own.iter().filter_map(|pair| self.rest(pair, &[]))) else {
            return;
        };
        self.fixed = fixed;
        self.explained = count;
        let mut groups: HashMap<u64, Vec<Pair<'_>>> = HashMap::new();
        for pair in pairs {
            groups.entry(bitmap(pair.page, pair.one, self.bitmap_bytes)).or_default().push(*pair);
        }
        groups.remove(&self.base);
        let mut groups: Vec<(u64, Vec<Pair<'_>>)> = groups.into_iter().collect();
        // Bitmaps that differ from the base in one bit come before those that differ in several.
        groups
            .sort_by_key(|(bits, group)| ((bits ^ self.base).count_ones(), usize::MAX - group.len(), *bits));
        for (bits, group) in &groups {
            self.explain_group(*bits, group, own);
        }
    }

    fn explain_group(&mut self, bits: u64, group: &[Pair<'_>], own: &[Pair<'_>]) {
        let Some((known, bytes, unknown)) = self.missing(bits) else { return };
        let Some(expected) = self.fixed.checked_sub(bytes) else { return };
        let mut best: Option<(usize, f64, Option<usize>, usize)> = None;
        let free = (0..self.long.len()).filter(|n| !known.contains(n));
        let lengths = free.map(Some).filter(|_| !unknown.is_empty());
        for length in std::iter::once(None).chain(lengths) {
            let missing: Vec<usize> = known.iter().copied().chain(length).collect();
            let rests = group.iter().filter_map(|pair| self.rest(pair, &missing));
            let Some((rest, count)) = most_frequent(rests) else { continue };
            let left = unknown.len() - usize::from(length.is_some());
            let fits = if left == 0 { rest == expected } else { rest < expected };
            if !fits || 2 * count < group.len() {
                continue;
            }
            let likely = length.map_or(0.0, |_| self.likelihood(group, own, &missing));
            if best.is_none_or(|(most, than, ..)| (count, likely) > (most, than)) {
                best = Some((count, likely, length, expected - rest));
            }
        }
        let Some((count, _, length, mut bytes)) = best else { return };
        self.explained += count;
        let mut unknown = unknown.into_iter();
        if let Some(n) = length {
            self.nulls.extend(unknown.next().map(|bit| (bit, Null::Length(n))));
        }
        // Values that are only ever missing together count as one.
        for bit in unknown {
            self.nulls.push((bit, Null::Bytes(bytes)));
            bytes = 0;
        }
    }

    /// Returns how well the lengths of `group` fit those of `own`, if those of `missing` are not there: the sum of the
    /// logarithms of how often each length came in `own`.
    fn likelihood(&self, group: &[Pair<'_>], own: &[Pair<'_>], missing: &[usize]) -> f64 {
        let mut counts: HashMap<(usize, usize), f64> = HashMap::new();
        let each = |pair: &Pair<'_>, missing: &[usize], mut each: Box<dyn FnMut(usize, usize) + '_>| {
            let mut at = pair.one - RECORD - self.bitmap_bytes;
            for (n, &long) in self.long.iter().enumerate().filter(|(n, _)| !missing.contains(n)) {
                let Some((next, len, _)) = length(pair.page, at, long) else { return };
                at = next;
                each(n, len);
            }
        };
        for pair in own {
            each(pair, &[], Box::new(|n, len| *counts.entry((n, len)).or_default() += 1.0));
        }
        let mut sum = 0.0;
        for pair in group {
            each(
                pair,
                missing,
                Box::new(|n, len| sum += (counts.get(&(n, len)).unwrap_or(&0.0) + 0.1).log2()),
            );
        }
        sum
    }
}

/// Returns the most frequent value, and the number of times that it came.
fn most_frequent(values: impl Iterator<Item = usize>) -> Option<(usize, usize)> {
    let mut counts: HashMap<usize, usize> = HashMap::new();
    for value in values {
        *counts.entry(value).or_default() += 1;
    }
    counts.into_iter().max_by_key(|&(value, count)| (count, value))
}

/// Splits the records that `guess` describes into columns.
fn columns(guess: &Guess, pages: &[&[u8]], parts: &mut InnodbPage) -> InnodbLayout {
    let (mut rows, mut partial) = (vec![], vec![]);
    let step = pages.len().div_ceil(PAGES).max(1);
    let per_page = ROWS.div_ceil(pages.len().min(PAGES)).max(4);
    for page in pages.iter().copied().step_by(step) {
        if !parts.parse(page) {
            continue;
        }
        let from = rows.len();
        let listed = &parts.records[..parts.header.records];
        let skip = listed.len().saturating_sub(per_page) / 2;
        for record in listed.iter().skip(skip).filter(|record| record.info & INSTANT_INFO == 0) {
            let bits = bitmap(page, record.origin, guess.bitmap_bytes);
            let Some((missing, _, unknown)) = guess.missing(bits) else { continue };
            let lengths = guess.lengths(page, record.origin, &missing);
            let Some(lengths) = lengths.filter(|_| unknown.is_empty()) else { continue };
            let end = record.origin + lengths.iter().sum::<usize>() + guess.fixed;
            if bits != guess.base {
                partial.push((bits, SplitRow::new(page, record.origin, lengths, false)));
            } else if end <= parts.header.heap_top {
                rows.push(SplitRow::new(page, record.origin, lengths, rows.len() == from));
            }
            if rows.len() - from >= per_page {
                break;
            }
        }
    }
    let mut nullable: Vec<Nullable> = vec![];
    for (bit, null) in &guess.nulls {
        if let Null::Bytes(width) = *null
            && width > 0
        {
            nullable.push(Nullable { bit: *bit, width, at: 0 });
        }
    }
    let columns = split(&rows, guess.fixed, &mut nullable, &partial, guess.base);
    let mut lengths = 0..;
    let mut known = 0u64;
    let mut fields = vec![];
    for (width, bit) in columns {
        let mut field = Field { width, null: bit, long: false };
        if width == 0 {
            let n = lengths.next().unwrap_or(0);
            field.long = guess.long.get(n).copied().unwrap_or(false);
            field.null = guess.nulls.iter().find(|(_, null)| *null == Null::Length(n)).map(|(bit, _)| *bit);
        }
        known |= field.null.map_or(0, |bit| 1 << bit);
        fields.push(field);
    }
    if fields.len() > MAX_COLUMNS {
        return InnodbLayout::default();
    }
    InnodbLayout { fields, bitmap_bytes: guess.bitmap_bytes, usual: guess.base & !known }
}

impl Guess {
    /// Returns all lengths of a record, 0 for missing ones.
    fn lengths(&self, page: &[u8], origin: usize, missing: &[usize]) -> Option<Vec<usize>> {
        let mut at = origin.checked_sub(RECORD + self.bitmap_bytes)?;
        let mut all = Vec::with_capacity(self.long.len());
        for (n, &long) in self.long.iter().enumerate() {
            if missing.contains(&n) {
                all.push(0);
                continue;
            }
            let (next, len, _) = length(page, at, long)?;
            at = next;
            all.push(len);
        }
        Some(all)
    }
}
