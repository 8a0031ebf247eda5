//! Counts symbols for training, and estimates the bits that they would take.

use super::{Sink, Stream, Table};

/// Bits that an entry of a table takes in a stored model, with the price of having guessed its frequency.
const ENTRY_BITS: f64 = 11.0;

pub(crate) fn log2_fast(x: f64) -> f64 {
    x.log2()
}

/// Price of the time that a symbol takes to decode, some nanoseconds, in bits: a symbol has to save that.
const SYMBOL_BITS: f64 = 0.05;
/// Bits of a table beside its entries.
const TABLE_BITS: f64 = 24.0;

type Counts = Box<[u32; 256]>;

/// Number of times that each symbol came in each context.
#[derive(Clone, Debug, Default)]
pub(crate) struct Histogram {
    contexts: Vec<Option<Counts>>,
}

impl Histogram {
    #[inline]
    pub(crate) fn add(&mut self, ctx: u8, symbol: u8) {
        let ctx = usize::from(ctx);
        if self.contexts.len() <= ctx {
            self.contexts.resize_with(ctx + 1, || None);
        }
        let counts = self.contexts[ctx].get_or_insert_with(|| Box::new([0; 256]));
        counts[usize::from(symbol)] += 1;
    }

    /// Returns the trained stream, and the bits that the counted symbols and the stream itself take.
    pub(crate) fn train(&self) -> (Stream, f64) {
        let mut rest = [0u32; 256];
        for counts in self.contexts.iter().flatten() {
            add(&mut rest, counts);
        }
        let shared = Table::of_counts(&rest);
        let mut tables = vec![];
        let mut map = [0u8; 256];
        let mut cost = 0.0;
        // A context has a table of its own if that saves more than the table takes.
        for (ctx, counts) in self.contexts.iter().enumerate() {
            let Some(counts) = counts else { continue };
            if tables.len() == 255 || self.contexts.iter().flatten().count() == 1 {
                continue;
            }
            let own = Table::of_counts(counts);
            let own_bits = own.cost_bits(counts) + table_bits(counts);
            if own_bits < shared.cost_bits(counts) {
                for (all, &count) in rest.iter_mut().zip(counts.iter()) {
                    *all -= count;
                }
                tables.push(own);
                map[ctx] = tables.len() as u8;
                cost += own_bits;
            }
        }
        let shared = Table::of_counts(&rest);
        cost += shared.cost_bits(&rest) + table_bits(&rest);
        tables.insert(0, shared);
        (Stream::new(map, &tables), cost)
    }

    /// Estimates the bits that [`Histogram::train`] returns, in a fraction of the time.
    pub(crate) fn estimate_bits(&self) -> f64 {
        let mut all = [0u32; 256];
        for counts in self.contexts.iter().flatten() {
            add(&mut all, counts);
        }
        let total: f64 = all.iter().map(|&n| f64::from(n)).sum();
        if total == 0.0 {
            return 0.0;
        }
        let shared = all.map(|n| (total / f64::from(n.max(1))).log2());
        let mut cost = table_bits(&all);
        let several = self.contexts.iter().flatten().count() > 1;
        for counts in self.contexts.iter().flatten() {
            let sum: f64 = counts.iter().map(|&n| f64::from(n)).sum();
            let (mut with_shared, mut own) = (0.0, TABLE_BITS);
            for (&n, &each) in counts.iter().zip(&shared).filter(|(n, _)| **n > 0) {
                with_shared += f64::from(n) * each;
                own += f64::from(n) * (sum / f64::from(n)).log2() + ENTRY_BITS;
            }
            cost += if several { own.min(with_shared) } else { with_shared };
        }
        cost
    }

    /// Returns the number of symbols that were counted.
    pub(crate) fn total(&self) -> u64 {
        self.contexts.iter().flatten().flat_map(|counts| counts.iter()).map(|&n| u64::from(n)).sum()
    }
}

fn add(all: &mut [u32; 256], counts: &[u32; 256]) {
    for (all, &count) in all.iter_mut().zip(counts) {
        *all += count;
    }
}

fn table_bits(counts: &[u32; 256]) -> f64 {
    TABLE_BITS + ENTRY_BITS * counts.iter().filter(|&&count| count > 0).count() as f64
}

/// A [`Sink`] that counts symbols instead of coding them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counter {
    streams: Vec<Histogram>,
    plain_bits: u64,
}

impl Counter {
    pub(crate) fn new(streams: usize) -> Self {
        Self { streams: vec![Histogram::default(); streams], plain_bits: 0 }
    }

    /// Returns all streams, trained, and the bits that all symbols and streams would take.
    pub(crate) fn train(&self) -> (Vec<Stream>, f64) {
        let trained: Vec<(Stream, f64)> = self.streams.iter().map(Histogram::train).collect();
        let cost = trained
            .iter()
            .zip(&self.streams)
            .filter(|(_, h)| h.total() > 0)
            .map(|((_, bits), _)| bits)
            .sum::<f64>();
        (trained.into_iter().map(|(stream, _)| stream).collect(), cost + self.plain_bits as f64)
    }

    /// Estimates the bits that all would cost, models and time included.
    pub(crate) fn estimate_bits(&self) -> f64 {
        let symbols: u64 = self.streams.iter().map(Histogram::total).sum();
        let coded: f64 = self.streams.iter().map(Histogram::estimate_bits).sum();
        self.plain_bits as f64 + coded + SYMBOL_BITS * symbols as f64
    }
}

impl Sink for Counter {
    #[inline]
    fn put(&mut self, id: usize, ctx: u8, symbol: u8) {
        if let Some(stream) = self.streams.get_mut(id) {
            stream.add(ctx, symbol);
        }
    }

    #[inline]
    fn bits(&mut self, _value: u32, n: u32) {
        self.plain_bits += u64::from(n);
    }
}
