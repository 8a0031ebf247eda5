//! The column layout of a relation, found from its tuples.
//!
//! A dynamic program over the columns: at each it tries types, follows them in all sampled tuples at once, and keeps the
//! cheapest way on which every tuple ends exactly where it ends. What makes this work: the number of columns is in
//! every tuple; lengths must fit in all tuples; padding is zero. Where several layouts fit, bytes that lie on top of
//! each other should be alike: the cost of a column is the entropy of its bytes by position.

use std::collections::HashMap;

use super::grid::locate;
use super::{Column, MAX_COLUMNS};

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
/// What each type costs beforehand, in bits per column.
const PRIOR_BITS: [f64; 13] =
    [0.0, 0.0, 4.0, 4.0, 24.0, 60.0, 100.0, 40.0, 150.0, 150.0, 150.0, 150.0, 150.0];
/// Bytes of values with a length word are looked at up to this position; those beyond are taken to be like them.
const MAX_POSITION: usize = 40;
/// Padding is as likely a value's zeros, which cost six bits a byte.
const PADDING_BITS: f64 = 7.0;
/// No search goes on beyond this many states.
const MAX_STATES: usize = 60_000;

/// A tuple's data: as it lies in its page, and which columns it has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample<'a> {
    /// Begins at a multiple of 8 in its page.
    pub(crate) data: &'a [u8],
    pub(crate) columns: usize,
    pub(crate) present: u128,
}

/// A depth, and where each tuple's next column begins.
type State = (usize, Vec<u16>);

struct Search<'a> {
    samples: &'a [Sample<'a>],
    columns: usize,
    /// Whether data ends exactly at its last column, not at the next multiple of 8.
    exact: bool,
    /// By depth and places: the cost from there on, and the type to take.
    known: HashMap<State, Option<(f64, usize)>>,
    bytes: Bytes,
}

/// The cheapest layout that describes every one of `samples`, or `None`.
///
/// `exact` says whether data ends at its last column; otherwise zeros up to a multiple of 8 may follow.
pub(crate) fn infer(samples: &[Sample<'_>], columns: usize, exact: bool) -> Option<Vec<Column>> {
    infer_with_cost(samples, columns, exact).map(|(_, layout)| layout)
}

/// As [`infer`], with what the samples' bytes cost in it, in bits.
pub(crate) fn infer_with_cost(
    samples: &[Sample<'_>],
    columns: usize,
    exact: bool,
) -> Option<(f64, Vec<Column>)> {
    if samples.is_empty() || columns == 0 || columns > MAX_COLUMNS {
        return None;
    }
    let mut search = Search { samples, columns, exact, known: HashMap::new(), bytes: Bytes::default() };
    let start = vec![0; samples.len()];
    let cost = search.cheapest(0, &start)?;
    let (mut layout, mut places) = (vec![], start);
    while layout.len() < columns {
        let (_, choice) = (*search.known.get(&(layout.len(), places.clone()))?)?;
        places = search.follow(TYPES[choice], layout.len(), &places)?.0;
        layout.push(TYPES[choice]);
    }
    Some((cost, layout))
}

impl Search<'_> {
    fn cheapest(&mut self, depth: usize, places: &[u16]) -> Option<f64> {
        if depth == self.columns {
            return self
                .samples
                .iter()
                .zip(places)
                .all(|(s, &at)| self.ends(s, usize::from(at)))
                .then_some(0.0);
        }
        let key = (depth, places.to_vec());
        if let Some(known) = self.known.get(&key) {
            return known.map(|(cost, _)| cost);
        }
        if self.known.len() > MAX_STATES || !self.has_room(depth, places) {
            return None;
        }
        let mut best: Option<(f64, usize)> = None;
        for (choice, &column) in TYPES.iter().enumerate() {
            let Some((next, cost)) = self.follow(column, depth, places) else { continue };
            let Some(rest) = self.cheapest(depth + 1, &next) else { continue };
            let total = cost + rest + PRIOR_BITS[choice];
            if best.is_none_or(|(least, _)| total < least - 1e-6) {
                best = Some((total, choice));
            }
        }
        self.known.insert(key, best);
        best.map(|(cost, _)| cost)
    }

    /// Whether each tuple has a byte for each of its columns from `depth` on.
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

    /// Places behind column number `depth`, if it is a `column`, and what its bytes cost.
    fn follow(&mut self, column: Column, depth: usize, places: &[u16]) -> Option<(Vec<u16>, f64)> {
        let mut next = places.to_vec();
        let bytes = &mut self.bytes;
        bytes.clear();
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
            }
            if !column.is_varlena() {
                padding = padding.max(pos - usize::from(*at));
            }
            *at = (pos + len) as u16;
        }
        let share = if looked_at == 0 { 1.0 } else { total as f64 / looked_at as f64 };
        Some((next, bytes.cost_bits(column) * share + PADDING_BITS * padding as f64))
    }
}

/// Bytes by position.
#[derive(Default)]
struct Bytes {
    positions: Vec<[u16; 256]>,
    /// Which bytes each position has had; as many positions as are in use.
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
        // The higher a byte of an integer, the less it varies: otherwise there are two, or none.
        if let (2 | 4 | 8, Some(highest)) = (column.width, costs.last()) {
            cost +=
                costs.windows(2).map(|pair| (pair[1] - pair[0]).max(0.0) * 0.5).sum::<f64>() + highest * 0.2;
        }
        cost
    }
}

/// Bits of what was `seen` with its own distribution, and of the distribution.
fn entropy_bits(counts: &[u16; 256], seen: &[u8]) -> f64 {
    let total: f64 = seen.iter().map(|&byte| f64::from(counts[usize::from(byte)])).sum();
    let each = |&byte: &u8| {
        let n = f64::from(counts[usize::from(byte)]);
        n * (total / n).log2() + 6.0
    };
    seen.iter().map(each).sum()
}
