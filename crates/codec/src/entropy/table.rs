//! Has a static distribution of byte symbols.

use super::histogram::log2_fast;
use crate::Corrupt;
use crate::wire::{Reader, put_varint};

/// Largest precision of frequencies, in bits.
pub(crate) const MAX_BITS: u32 = 11;

/// Slots of a symbol, among `1 << bits`: the first, and their number, which is 0 for symbols that have to be escaped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Slot {
    pub(crate) start: u16,
    pub(crate) freq: u16,
}

/// Frequencies that add up to a power of two. A symbol that training has not seen is coded as the escape symbol and
/// eight plain bits; where all 256 were seen there is no escape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Table {
    bits: u32,
    /// The escape symbol; 256 stands for none.
    escape: u16,
    slots: Box<[Slot; 256]>,
}

impl Table {
    /// Makes a distribution close to `counts`, in as few slots as cost little.
    pub(crate) fn of_counts(counts: &[u32; 256]) -> Self {
        let total: u64 = counts.iter().map(|&count| u64::from(count)).sum();
        let mut weights: Vec<(u8, f64)> = (0..=255u8)
            .zip(counts)
            .filter(|&(_, &n)| n > 0)
            .map(|(symbol, &n)| (symbol, f64::from(n)))
            .collect();
        let mut escape = 256;
        if weights.len() < 256 {
            let unseen = (0..=255u8).rev().find(|&s| counts[usize::from(s)] == 0).unwrap_or(255);
            escape = u16::from(unseen);
            // About one of n symbols is new, so that the escape weighs one at most. It has the smallest slot at least.
            weights.push((unseen, (total as f64 / 4096.0).min(1.0) + 0.02));
        }
        let mut best = None;
        for bits in (1..=MAX_BITS).filter(|&bits| weights.len() <= 1 << bits) {
            let freqs = normalise(&weights, 1 << bits);
            let cost = expected_bits(&weights, &freqs, bits);
            // Another bit doubles the memory that decoding walks through: it has to gain half a percent.
            let better =
                best.as_ref().is_none_or(|&(_, _, least): &(u32, Vec<u16>, f64)| cost < least * 0.995 - 2.0);
            if better {
                best = Some((bits, freqs, cost));
            }
        }
        let (bits, freqs) = best.map_or((1, vec![2]), |(bits, freqs, _)| (bits, freqs));
        let mut by_symbol = [0; 256];
        for (&(symbol, _), &freq) in weights.iter().zip(&freqs) {
            by_symbol[usize::from(symbol)] = freq;
        }
        Self::of_freqs(bits, escape, &by_symbol)
    }

    /// Makes a table of `freqs`, which add up to `1 << bits`. `escape` is the escape symbol, or 256.
    pub(super) fn of_freqs(bits: u32, escape: u16, freqs: &[u16; 256]) -> Self {
        let mut slots = Box::new([Slot::default(); 256]);
        let mut start = 0;
        for (slot, &freq) in slots.iter_mut().zip(freqs) {
            *slot = Slot { start, freq };
            start += freq;
        }
        Self { bits, escape, slots }
    }

    pub(crate) fn bits(&self) -> u32 {
        self.bits
    }

    pub(crate) fn slot(&self, symbol: u8) -> Slot {
        self.slots[usize::from(symbol)]
    }

    /// Returns the symbol that stands for all unseen ones, if there is one.
    pub(crate) fn escape(&self) -> Option<u8> {
        u8::try_from(self.escape).ok()
    }

    pub(crate) fn is_escape(&self, symbol: u8) -> bool {
        self.escape == u16::from(symbol)
    }

    /// Returns true if `symbol` has a code word of its own.
    pub(crate) fn knows(&self, symbol: u8) -> bool {
        self.slot(symbol).freq > 0 && !self.is_escape(symbol)
    }

    /// Returns the `1 << bits` slots as numbers, each from the low bits on: symbol (8 bits), 1 for the escape symbol
    /// (1), frequency - 1 (11), place within the symbol's slots (11).
    pub(crate) fn slots(&self) -> impl Iterator<Item = u32> {
        (0..=255u8).flat_map(|symbol| {
            let freq = u32::from(self.slot(symbol).freq);
            let head =
                u32::from(symbol) | u32::from(self.is_escape(symbol)) << 8 | freq.saturating_sub(1) << 9;
            (0..freq).map(move |place| head | place << 20)
        })
    }

    /// Returns the bits that symbols with these `counts` take with this table.
    pub(crate) fn cost_bits(&self, counts: &[u32; 256]) -> f64 {
        let all = f64::from(self.bits);
        let escape =
            self.escape().map_or(0.0, |escape| all - log2_fast(f64::from(self.slot(escape).freq)) + 8.0);
        let mut cost = 0.0;
        for (symbol, &count) in (0..=255u8).zip(counts).filter(|(_, count)| **count > 0) {
            let each =
                if self.knows(symbol) { all - log2_fast(f64::from(self.slot(symbol).freq)) } else { escape };
            cost += each * f64::from(count);
        }
        cost
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        out.push(self.bits as u8);
        put_varint(out, u64::from(self.escape));
        let used: Vec<u8> = (0..=255u8).filter(|&symbol| self.slot(symbol).freq > 0).collect();
        put_varint(out, used.len() as u64);
        let mut next = 0;
        for symbol in used {
            out.push(symbol - next);
            put_varint(out, u64::from(self.slot(symbol).freq));
            next = symbol.wrapping_add(1);
        }
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Self, Corrupt> {
        let bits = u32::from(reader.byte()?);
        if !(1..=MAX_BITS).contains(&bits) {
            return Err(Corrupt("a table's precision"));
        }
        let escape = reader.at_most(256)? as u16;
        let (mut freqs, mut next, mut sum) = ([0; 256], 0u32, 0);
        for _ in 0..reader.at_most(256)? {
            let symbol = next + u32::from(reader.byte()?);
            let freq = reader.at_most(1 << bits)?;
            sum += freq;
            *freqs.get_mut(symbol as usize).ok_or(Corrupt("a table's symbol"))? = freq as u16;
            next = symbol + 1;
        }
        let escape_counts = escape == 256 || freqs[usize::from(escape)] > 0;
        if sum != 1 << bits || !escape_counts || (escape == 256 && freqs.contains(&0)) {
            return Err(Corrupt("a table's frequencies"));
        }
        Ok(Self::of_freqs(bits, escape, &freqs))
    }
}

fn expected_bits(weights: &[(u8, f64)], freqs: &[u16], bits: u32) -> f64 {
    let each =
        |(&(_, weight), &freq): (&(u8, f64), &u16)| weight * (f64::from(bits) - log2_fast(f64::from(freq)));
    weights.iter().zip(freqs).map(each).sum()
}

/// Returns whole frequencies of at least one that add up to `total`, which is at least the number of weights.
fn normalise(weights: &[(u8, f64)], total: u32) -> Vec<u16> {
    let sum: f64 = weights.iter().map(|&(_, weight)| weight).sum();
    let scale = f64::from(total) / sum.max(1e-9);
    let mut freqs: Vec<u16> = weights.iter().map(|&(_, w)| ((w * scale).round() as u16).max(1)).collect();
    let mut left = i64::from(total) - freqs.iter().map(|&freq| i64::from(freq)).sum::<i64>();
    // The largest frequencies give or take the difference: it weighs least there.
    while left != 0 {
        let Some(largest) = (0..freqs.len()).max_by_key(|&i| freqs[i]) else { break };
        let step = if left > 0 { left } else { left.max(-i64::from(freqs[largest] / 8).max(1)) };
        let step = step.max(1 - i64::from(freqs[largest]));
        freqs[largest] = (i64::from(freqs[largest]) + step) as u16;
        left -= step;
    }
    freqs
}
