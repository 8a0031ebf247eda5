//! Finds where columns end: values lie one behind the other without a mark between them.
//!
//! A dynamic program over the number of values of varying length, and of bytes of fixed width, that have passed. A
//! column of fixed width costs what the cheapest way to code it would: as differences to a constant or to the row
//! before, or byte by byte. So boundaries fall where they explain values best; a wrong one costs a little, never
//! correctness.

use std::collections::HashMap;

use crate::columns::MAX_WIDTH;
use crate::entropy::number::{self, zigzag};

/// Widths of integers, and the cost of a column of each beforehand, in bits.
const INTS: [(usize, f64); 8] =
    [(1, 24.0), (2, 20.0), (3, 22.0), (4, 12.0), (5, 40.0), (6, 36.0), (7, 48.0), (8, 20.0)];
/// Cost of any wider column beforehand, in bits.
const WIDE: f64 = 60.0;
/// Cost of a column of one repeated byte beforehand, in bits.
const RUN: f64 = 16.0;
/// One of this many rows may be no run.
const RUN_EXCEPTIONS: usize = 20;
/// Cost of a symbol in a table, in bits.
const ENTRY: f64 = 8.0;
/// Largest product of rows and places that is looked at, about; and the smallest number of rows.
const MAX_WORK: usize = 2 << 20;
const MIN_ROWS: usize = 24;
/// Position from which on bytes of values of varying length count together.
const POSITIONS: usize = 24;

/// A record: the place of its values, and their lengths.
pub(super) struct SplitRow<'a> {
    page: &'a [u8],
    origin: usize,
    /// Sum of the lengths before each value of varying length, and of all.
    sums: Vec<usize>,
    /// True if no row of its page comes before.
    first: bool,
}

/// Bytes of fixed width that a bit of the null bitmap takes away; `at` is where they begin, counted in bytes of fixed
/// width.
#[derive(Clone, Copy, Debug)]
pub(super) struct Nullable {
    pub(super) bit: u8,
    pub(super) width: usize,
    pub(super) at: usize,
}

impl<'a> SplitRow<'a> {
    pub(super) fn new(page: &'a [u8], origin: usize, lengths: Vec<usize>, first: bool) -> Self {
        let mut sum = 0;
        let mut sums = vec![0];
        for len in lengths {
            sum += len;
            sums.push(sum);
        }
        Self { page, origin, sums, first }
    }

    /// Returns `len` bytes behind `fixed` bytes of fixed width and `passed` values of varying length.
    fn bytes(&self, passed: usize, fixed: usize, len: usize) -> &'a [u8] {
        let at = self.origin + self.sums[passed] + fixed;
        self.page.get(at..at + len).unwrap_or_default()
    }
}

/// Returns the widths of columns, 0 for varying ones, and the bits by which they are null. `partial` are rows that lack
/// some of `nullable`, with their null bitmaps; from these it finds the places of `nullable`.
pub(super) fn split(
    rows: &[SplitRow<'_>],
    fixed: usize,
    nullable: &mut [Nullable],
    partial: &[(u64, SplitRow<'_>)],
    base: u64,
) -> Vec<(u16, Option<u8>)> {
    let lengths = rows.first().map_or(0, |row| row.sums.len() - 1);
    let states = (lengths + 1) * (fixed + 1);
    let rows = &rows[..rows.len().min((MAX_WORK / states).max(MIN_ROWS))];
    let mut program = Program { rows, fixed, lengths, costs: HashMap::new(), cuts: vec![] };
    let mut path = program.solve();
    for n in 0..nullable.len() {
        program.place(&path, nullable, n, partial, base);
        program.cuts.push((nullable[n].at, nullable[n].at + nullable[n].width));
        path = program.solve();
    }
    let mut at = 0;
    let bit_at = |at: usize| nullable.iter().find(|n| (n.at..n.at + n.width).contains(&at)).map(|n| n.bit);
    let mut columns = vec![];
    for width in path {
        columns.push((width as u16, if width == 0 { None } else { bit_at(at) }));
        at += width;
    }
    columns
}

struct Program<'p, 'a> {
    rows: &'p [SplitRow<'a>],
    fixed: usize,
    lengths: usize,
    /// Bits of a column, by the lengths and the fixed bytes before it and its width (0: varying). Two widths that no
    /// column has stand for other results.
    costs: HashMap<(usize, usize, usize), f64>,
    /// Ranges of bytes that are null together: no column crosses their begin or end.
    cuts: Vec<(usize, usize)>,
}

impl Program<'_, '_> {
    /// Returns the widths of columns on the cheapest way.
    fn solve(&mut self) -> Vec<usize> {
        let width = self.fixed + 1;
        let mut best = vec![(f64::INFINITY, 0); (self.lengths + 1) * width];
        for passed in (0..=self.lengths).rev() {
            for at in (0..=self.fixed).rev() {
                let mut least =
                    (if passed == self.lengths && at == self.fixed { 0.0 } else { f64::INFINITY }, 0);
                if passed < self.lengths && !self.cuts.iter().any(|&(from, to)| from < at && at < to) {
                    let cost = self.cost(passed, at, 0) + best[(passed + 1) * width + at].0;
                    least = if cost < least.0 { (cost, 0) } else { least };
                }
                for bytes in 1..=(self.fixed - at).min(MAX_WIDTH) {
                    let crosses = |&(from, to): &(usize, usize)| {
                        let end = at + bytes;
                        (at < from && from < end) || (at < to && to < end)
                    };
                    let rest = best[passed * width + at + bytes].0;
                    if rest >= least.0 || self.cuts.iter().any(crosses) {
                        continue;
                    }
                    let cost = self.cost(passed, at, bytes) + rest;
                    least = if cost < least.0 { (cost, bytes) } else { least };
                }
                best[passed * width + at] = least;
            }
        }
        let (mut passed, mut at, mut path) = (0, 0, vec![]);
        while (passed, at) != (self.lengths, self.fixed) && best[passed * width + at].0.is_finite() {
            let bytes = best[passed * width + at].1;
            path.push(bytes);
            if bytes == 0 {
                passed += 1;
            } else {
                at += bytes;
            }
        }
        path
    }

    fn cost(&mut self, passed: usize, at: usize, bytes: usize) -> f64 {
        if let Some(&cost) = self.costs.get(&(passed, at, bytes)) {
            return cost;
        }
        let cost = match INTS.iter().find(|(width, _)| *width == bytes) {
            _ if bytes > 1 && bytes <= self.run(passed, at) => RUN + self.by_position(passed, at, 1),
            Some((_, prior)) => prior + self.int(passed, at, bytes).min(self.by_position(passed, at, bytes)),
            None if bytes == 0 => self.varying(passed, at),
            None => WIDE + self.by_position(passed, at, bytes),
        };
        self.costs.insert((passed, at, bytes), cost);
        cost
    }

    /// Returns the bits of a column of integers: as differences to the smallest, or to the row before.
    fn int(&self, passed: usize, at: usize, bytes: usize) -> f64 {
        let load = |row: &SplitRow<'_>| {
            row.bytes(passed, at, bytes).iter().fold(0u64, |value, &byte| value << 8 | u64::from(byte))
        };
        let values: Vec<u64> = self.rows.iter().map(load).collect();
        let least = values.iter().copied().min().unwrap_or(0);
        let mut before = least;
        let mut against = [Symbols::default(), Symbols::default()];
        for (row, &value) in self.rows.iter().zip(&values) {
            if row.first {
                before = least;
            }
            against[0].add_number(value - least);
            against[1].add_number(zigzag(value.wrapping_sub(before) as i64));
            before = value;
        }
        against[0].bits().min(against[1].bits())
    }

    /// Returns the bits of bytes that are coded by position.
    fn by_position(&mut self, passed: usize, at: usize, bytes: usize) -> f64 {
        let key = |at: usize| (passed, at, usize::MAX);
        let mut sum = 0.0;
        for at in at..at + bytes {
            sum += match self.costs.get(&key(at)) {
                Some(&cost) => cost,
                None => {
                    let mut symbols = Symbols::default();
                    for row in self.rows {
                        symbols.add(row.bytes(passed, at, 1).first().copied().unwrap_or(0));
                    }
                    let cost = symbols.bits();
                    self.costs.insert(key(at), cost);
                    cost
                }
            };
        }
        sum
    }

    /// Returns the number of bytes, from `at` on, that are equal in nearly all rows.
    fn run(&mut self, passed: usize, at: usize) -> usize {
        let key = (passed, at, usize::MAX - 1);
        if let Some(&run) = self.costs.get(&key) {
            return run as usize;
        }
        let length = |row: &SplitRow<'_>| {
            let content = row.bytes(passed, at, MAX_WIDTH.min(self.fixed - at));
            content.iter().take_while(|&byte| Some(byte) == content.first()).count()
        };
        let mut lengths: Vec<usize> = self.rows.iter().map(length).collect();
        let few = lengths.len() / RUN_EXCEPTIONS;
        let run = if lengths.is_empty() { 0 } else { *lengths.select_nth_unstable(few).1 };
        self.costs.insert(key, run as f64);
        run
    }

    /// Returns the bits of a column of varying length: byte by byte, or as one byte repeated.
    fn varying(&self, passed: usize, at: usize) -> f64 {
        let mut positions: Vec<Symbols> = vec![];
        let (mut first, mut runs) = (Symbols::default(), 0);
        for row in self.rows {
            let content = row.bytes(passed, at, row.sums[passed + 1] - row.sums[passed]);
            runs += usize::from(content.iter().all(|byte| Some(byte) == content.first()));
            first.add(content.first().copied().unwrap_or(0));
            for (n, &byte) in content.iter().enumerate().take(2 * POSITIONS) {
                let n = n.min(POSITIONS);
                while positions.len() <= n {
                    positions.push(Symbols::default());
                }
                positions[n].add(byte);
            }
        }
        let several = positions.iter().map(Symbols::bits).sum();
        let is_run = positions.len() > 1 && (self.rows.len() - runs) * RUN_EXCEPTIONS <= self.rows.len();
        if is_run { first.bits().min(several) } else { several }
    }

    /// Finds the place of the bytes of `nullable[n]`: the bytes that remain in rows without them have to look as in
    /// full rows.
    fn place(
        &self,
        path: &[usize],
        nullable: &mut [Nullable],
        n: usize,
        partial: &[(u64, SplitRow<'_>)],
        base: u64,
    ) {
        let bits = |bits: &u64| bits ^ base;
        let lacks = |row: &&(u64, SplitRow<'_>)| bits(&row.0) >> nullable[n].bit & 1 == 1;
        let only_known = |row: &&(u64, SplitRow<'_>)| {
            nullable.iter().skip(n + 1).all(|later| bits(&row.0) >> later.bit & 1 == 0)
        };
        let own: Vec<&(u64, SplitRow<'_>)> =
            partial.iter().filter(lacks).filter(only_known).take(40).collect();
        // The lengths that have passed before each byte of fixed width, and the distribution of that byte in full rows.
        let (mut passed, mut before) = (0, vec![]);
        for &width in path {
            passed += usize::from(width == 0);
            before.extend(std::iter::repeat_n(passed, width));
        }
        let usual: Vec<Symbols> = before
            .iter()
            .enumerate()
            .map(|(at, &passed)| {
                let mut symbols = Symbols::default();
                let byte = |row: &SplitRow<'_>| row.bytes(passed, at, 1).first().copied().unwrap_or(0);
                self.rows.iter().for_each(|row| symbols.add(byte(row)));
                symbols
            })
            .collect();
        let width = nullable[n].width;
        let cost_at = |from: usize| -> f64 {
            let mut cost = 0.0;
            for (null, row) in &own {
                let lacking = nullable.iter().take(n).filter(|other| bits(null) >> other.bit & 1 == 1);
                let mut gone: Vec<(usize, usize)> = lacking.map(|other| (other.at, other.width)).collect();
                gone.push((from, width));
                let mut shift = 0;
                for (at, &passed) in before.iter().enumerate() {
                    if gone.iter().any(|&(from, width)| (from..from + width).contains(&at)) {
                        shift += 1;
                    } else {
                        let byte = row.bytes(passed, at - shift, 1).first().copied().unwrap_or(0);
                        cost += usual[at].surprise(byte);
                    }
                }
            }
            cost
        };
        let places = 0..=self.fixed.saturating_sub(width);
        let best = places.map(|from| (cost_at(from), from)).min_by(|(a, _), (b, _)| a.total_cmp(b));
        nullable[n].at = best.map_or(0, |(_, from)| from);
    }
}

/// Number of times that each symbol came.
struct Symbols {
    counts: [u16; 256],
    total: u32,
    plain: u32,
}

impl Default for Symbols {
    fn default() -> Self {
        Self { counts: [0; 256], total: 0, plain: 0 }
    }
}

impl Symbols {
    fn add(&mut self, symbol: u8) {
        self.counts[usize::from(symbol)] += 1;
        self.total += 1;
    }

    fn add_number(&mut self, value: u64) {
        let (symbol, _, plain) = number::split(value);
        self.add(symbol);
        self.plain += plain;
    }

    /// Returns the bits of all symbols with their own distribution, and of that distribution.
    fn bits(&self) -> f64 {
        let total = f64::from(self.total);
        let seen = self.counts.iter().filter(|&&count| count > 0).map(|&count| f64::from(count));
        f64::from(self.plain) + seen.map(|n| n * (total / n).log2() + ENTRY).sum::<f64>()
    }

    fn surprise(&self, symbol: u8) -> f64 {
        let count = f64::from(self.counts[usize::from(symbol)]);
        -((count + 0.05) / (f64::from(self.total) + 0.05)).log2()
    }
}
