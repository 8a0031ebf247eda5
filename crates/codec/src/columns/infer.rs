//! Finds the column layout of a relation from its tuples.
//!
//! A dynamic program over the columns. At each column it tries types, follows them in all sampled tuples at once, and
//! keeps the cheapest way to each set of places. In the end it takes the cheapest way on which every tuple ends exactly
//! at its last byte. Ways that are much dearer than others are given up. This works because every tuple tells its
//! number of columns, lengths must fit in all tuples, and padding is zero. Where several layouts fit, bytes at the same
//! position should be alike: the cost of a column is the entropy of its bytes by position.

use std::collections::HashMap;

use super::grid::locate;
use super::ints::load;
use super::{Column, MAX_COLUMNS, decimal};
use crate::entropy::number;

/// Types of PostgreSQL by width and alignment, the more usual first. Among equally cheap layouts the first found wins.
const TYPES: [Column; 13] = [
    Column::fixed(4, 4),
    Column::varlena(4),
    Column::fixed(8, 8),
    Column::fixed(2, 2),
    Column::fixed(1, 1),
    Column::fixed(16, 1),
    Column::fixed(16, 8),
    Column::varlena(8),
    Column::fixed(6, 4),
    Column::fixed(6, 2),
    Column::fixed(12, 8),
    Column::fixed(64, 1),
    Column::fixed(32, 8),
];
/// Cost of each type beforehand, in bits per column.
const PRIOR_BITS: [f64; 13] =
    [0.0, 0.0, 4.0, 4.0, 24.0, 60.0, 100.0, 40.0, 150.0, 150.0, 150.0, 150.0, 150.0];
/// Number of bytes of a value with a length word that are looked at; those behind are taken to be like them.
const MAX_POSITION: usize = 40;
/// Bits that a byte of padding costs: it may as well be a zero of a value, which costs six bits.
const PADDING_BITS: f64 = 7.0;
/// Range of the absolute values of decimals, but for zero.
const DECIMAL_LEAST: f64 = 1e-9;
const DECIMAL_MOST: f64 = 1e12;
/// The search follows this many ways, shared out over the columns. If no way reaches the end, it begins again with the
/// next number.
const MAX_WAYS: [usize; 2] = [20_000, 160_000];
/// The search follows this many ways at each column, however many columns there are.
const MIN_WAYS: usize = 200;
/// The search estimates the cost of a byte from the beginning of each tuple: at most this many bytes.
const MAX_EXPECTED: usize = 512;

/// A tuple's data, as it lies in its page, and its columns.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample<'a> {
    /// Data that begins at a multiple of 8 in its page.
    pub(crate) data: &'a [u8],
    pub(crate) columns: usize,
    pub(crate) present: u128,
}

/// Offset of each tuple's next column.
type Places = Vec<u16>;

/// The cheapest way from the first column to one place in each tuple.
#[derive(Clone, Copy)]
struct Way {
    cost: f64,
    /// The cost so far, and an estimate for the bytes that no column covers yet.
    expected: f64,
    /// Index of the way that this one continues, at the depth before.
    from: usize,
    /// Index of the type of its last column.
    choice: usize,
    /// Number of places that were found at this depth before those of this way.
    found: usize,
}

struct Search<'a> {
    samples: &'a [Sample<'a>],
    columns: usize,
    /// True if data ends exactly at its last column, not at the next multiple of 8.
    exact: bool,
    /// Bits that a byte costs on average, by its position in its tuple.
    byte_bits: f64,
    bytes: Bytes,
    /// Differences of integers to the tuple before.
    steps: Bytes,
}

/// Returns the cheapest layout that describes every one of `samples`, or `None`.
///
/// If `exact`, data ends at its last column; otherwise zeros up to a multiple of 8 may follow.
pub(crate) fn infer(samples: &[Sample<'_>], columns: usize, exact: bool) -> Option<Vec<Column>> {
    infer_with_cost(samples, columns, exact).map(|(_, layout)| layout)
}

/// As [`infer`]; also returns the bits that the samples' bytes cost in the layout.
pub(crate) fn infer_with_cost(
    samples: &[Sample<'_>],
    columns: usize,
    exact: bool,
) -> Option<(f64, Vec<Column>)> {
    if samples.is_empty() || columns == 0 || columns > MAX_COLUMNS {
        return None;
    }
    let mut bytes = Bytes::default();
    let mut total = 0;
    for sample in samples {
        let first = sample.data.iter().take(MAX_EXPECTED).enumerate();
        first.for_each(|(position, &byte)| bytes.add(position, byte));
        total += sample.data.len().min(MAX_EXPECTED);
    }
    let byte_bits = bytes.cost_bits(Column::fixed(1, 1)) / total.max(1) as f64;
    let mut search = Search { samples, columns, exact, byte_bits, bytes, steps: Bytes::default() };
    MAX_WAYS.iter().find_map(|ways| search.cheapest((ways / columns).max(MIN_WAYS)))
}

impl Search<'_> {
    /// Returns the cheapest layout that is found when at most `max_ways` are followed at each column.
    fn cheapest(&mut self, max_ways: usize) -> Option<(f64, Vec<Column>)> {
        let start = Way { cost: 0.0, expected: 0.0, from: 0, choice: 0, found: 0 };
        let mut ways = vec![(vec![0; self.samples.len()], start)];
        // For earlier depths only the origin and type of each way are kept.
        let mut depths: Vec<Vec<(usize, usize)>> = vec![];
        for depth in 0..self.columns {
            ways = self.go_on(depth, &ways).into_iter().collect();
            // Of equally good ways, the one that was found first comes first.
            ways.sort_by(|(_, a), (_, b)| {
                a.expected.total_cmp(&b.expected).then_with(|| a.found.cmp(&b.found))
            });
            ways.truncate(max_ways);
            depths.push(ways.iter().map(|(_, way)| (way.from, way.choice)).collect());
        }
        let ends =
            |places: &Places| self.samples.iter().zip(places).all(|(s, &at)| self.ends(s, usize::from(at)));
        let mut best: Option<(usize, f64)> = None;
        for (i, (_, way)) in ways.iter().enumerate().filter(|(_, (places, _))| ends(places)) {
            if best.is_none_or(|(_, least)| way.cost < least - 1e-6) {
                best = Some((i, way.cost));
            }
        }
        let (mut at, cost) = best?;
        let mut layout = vec![];
        for ways in depths.iter().rev() {
            let (from, choice) = ways[at];
            layout.push(TYPES[choice]);
            at = from;
        }
        layout.reverse();
        Some((cost, layout))
    }

    /// Returns the ways that continue `ways` by a column; of those that lead to the same places, the cheapest.
    fn go_on(&mut self, depth: usize, ways: &[(Places, Way)]) -> HashMap<Places, Way> {
        let mut next: HashMap<Places, Way> = HashMap::new();
        for (from, (places, way)) in ways.iter().enumerate() {
            if !self.has_room(depth, places) {
                continue;
            }
            for (choice, &column) in TYPES.iter().enumerate() {
                let Some((places, cost)) = self.follow(column, depth, places) else { continue };
                let cost = way.cost + cost + PRIOR_BITS[choice];
                let left = self.samples.iter().zip(&places);
                let left: usize = left.map(|(sample, &at)| sample.data.len().saturating_sub(at.into())).sum();
                let expected = cost + self.byte_bits * left as f64;
                let found = next.len();
                let known = next.entry(places).or_insert(Way { cost, expected, from, choice, found });
                if cost < known.cost - 1e-6 {
                    *known = Way { cost, expected, from, choice, found: known.found };
                }
            }
        }
        next
    }

    /// Returns true if each tuple has a byte for each of its columns from `depth` on.
    fn has_room(&self, depth: usize, places: &[u16]) -> bool {
        self.samples.iter().zip(places).all(|(sample, &at)| {
            let left = sample.present >> depth.min(127);
            usize::from(at) + left.count_ones() as usize <= sample.data.len()
        })
    }

    fn ends(&self, sample: &Sample<'_>, at: usize) -> bool {
        let slack = if self.exact { 0 } else { 7 };
        at <= sample.data.len()
            && sample.data.len() - at <= slack
            && sample.data[at..].iter().all(|&byte| byte == 0)
    }

    /// Returns the places behind column number `depth` if that is a `column`, and the bits that its bytes cost; `None`
    /// if it cannot be one.
    fn follow(&mut self, column: Column, depth: usize, places: &[u16]) -> Option<(Places, f64)> {
        let mut next = places.to_vec();
        let Self { bytes, steps, .. } = self;
        bytes.clear();
        steps.clear();
        let is_number = column.is_int() && column.width > 1;
        let mut floats = FloatCost::new(column);
        let (mut previous, mut step_bits, mut values) = (None, 0, 0u32);
        let (mut padding, mut total, mut looked_at) = (0, 0, 0);
        for (sample, at) in self.samples.iter().zip(&mut next) {
            if sample.columns <= depth || sample.present >> depth & 1 == 0 {
                continue;
            }
            let (form, pos, len) = locate(column, sample.data, usize::from(*at), sample.data.len())?;
            if column.is_varlena() {
                bytes.add(0, (form as usize * 64 + len.min(63)) as u8);
                for (i, &byte) in sample.data[pos..pos + len].iter().take(MAX_POSITION).enumerate() {
                    bytes.add(1 + i, byte);
                }
                total += len;
                looked_at += len.min(MAX_POSITION);
            } else {
                for (i, &byte) in sample.data[pos..pos + len].iter().enumerate() {
                    bytes.add(i, byte);
                }
                if is_number {
                    let value = load(sample.data, pos, column);
                    floats.add(value);
                    let step = number::zigzag(value.wrapping_sub(previous.unwrap_or(value)) as i64);
                    let (symbol, _, plain_bits) = number::split(step);
                    steps.add(0, symbol);
                    (previous, step_bits, values) = (Some(value), step_bits + plain_bits, values + 1);
                }
            }
            if !column.is_varlena() {
                padding = padding.max(pos - usize::from(*at));
            }
            *at = (pos + len) as u16;
        }
        let share = if looked_at == 0 { 1.0 } else { total as f64 / looked_at as f64 };
        let mut cost = bytes.cost_bits(column) * share;
        if is_number {
            // Steps count only where they take less than half of the bits: random bytes have steps, too, which save
            // nothing.
            let value_bits = 8.0 * f64::from(column.width);
            let by_steps = steps.cost_bits(Column::fixed(1, 1)) + f64::from(step_bits);
            if by_steps < 0.5 * value_bits * f64::from(values) {
                cost = cost.min(by_steps + value_bits);
            }
            if let Some(by_decimals) = floats.bits(steps) {
                cost = cost.min(by_decimals + value_bits);
            }
        }
        Some((next, cost + PADDING_BITS * padding as f64))
    }
}

/// Cost of a column whose values are decimals: their lower bytes look random, and are not.
struct FloatCost {
    floats: Vec<f64>,
    /// True until a value lies outside the range of decimals.
    may_be: bool,
}

impl FloatCost {
    fn new(column: Column) -> Self {
        Self { floats: vec![], may_be: column.is_float() }
    }

    /// Notes a value by its bits.
    #[inline(always)]
    fn add(&mut self, bits: u64) {
        if self.may_be {
            // Integers, texts and random bytes have another exponent nearly always.
            let float = f64::from_bits(bits);
            self.may_be = float == 0.0 || (DECIMAL_LEAST..DECIMAL_MOST).contains(&float.abs());
            self.floats.push(float);
        }
    }

    /// Returns the bits of the values as numbers, each as a difference to the one before; `None` unless all are
    /// decimals, and not all the same.
    fn bits(&self, symbols: &mut Bytes) -> Option<f64> {
        let first = self.floats.first().filter(|_| self.may_be)?;
        if self.floats.iter().all(|float| float.to_bits() == first.to_bits()) {
            return None;
        }
        let digits = decimal::digits_of(&self.floats, 10)?;
        symbols.clear();
        let (mut previous, mut plain) = (None, 0);
        for &float in &self.floats {
            let whole = decimal::as_decimal(float, digits)?;
            let (symbol, _, bits) = number::split(number::zigzag(whole - previous.unwrap_or(whole)));
            symbols.add(0, symbol);
            (previous, plain) = (Some(whole), plain + bits);
        }
        Some(symbols.cost_bits(Column::fixed(1, 1)) + f64::from(plain))
    }
}

/// Counts of bytes by position.
#[derive(Default)]
struct Bytes {
    positions: Vec<[u16; 256]>,
    /// The bytes that came at each position, of which the first `used` are in use.
    seen: Vec<Vec<u8>>,
    used: usize,
}

impl Bytes {
    fn clear(&mut self) {
        for (counts, seen) in self.positions.iter_mut().zip(&mut self.seen) {
            for &byte in seen.iter() {
                counts[usize::from(byte)] = 0;
            }
            seen.clear();
        }
        self.used = 0;
    }

    fn add(&mut self, position: usize, byte: u8) {
        while self.positions.len() <= position {
            self.positions.push([0; 256]);
            self.seen.push(vec![]);
        }
        self.used = self.used.max(position + 1);
        let count = &mut self.positions[position][usize::from(byte)];
        if *count == 0 {
            self.seen[position].push(byte);
        }
        *count += 1;
    }

    fn cost_bits(&self, column: Column) -> f64 {
        let used = self.positions.iter().zip(&self.seen).take(self.used);
        let costs: Vec<f64> = used.map(|(counts, seen)| entropy_bits(counts, seen)).collect();
        let mut cost: f64 = costs.iter().sum();
        // The higher a byte of an integer, the less it varies. Where it varies more, the bytes are two integers, or
        // none.
        if let (2 | 4 | 8, Some(highest)) = (column.width, costs.last()) {
            cost +=
                costs.windows(2).map(|pair| (pair[1] - pair[0]).max(0.0) * 0.5).sum::<f64>() + highest * 0.2;
        }
        cost
    }
}

/// Returns the bits of all bytes that were `seen` with their own distribution, and of that distribution.
fn entropy_bits(counts: &[u16; 256], seen: &[u8]) -> f64 {
    let total: f64 = seen.iter().map(|&byte| f64::from(counts[usize::from(byte)])).sum();
    let each = |&byte: &u8| {
        let n = f64::from(counts[usize::from(byte)]);
        n * (total / n).log2() + 6.0
    };
    seen.iter().map(each).sum()
}
