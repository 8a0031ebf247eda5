//! Codes patterns: line pointers and headers packed into numbers, of which the usual ones have a symbol each.

use std::collections::HashMap;
use std::hash::Hash;

use crate::Corrupt;
use crate::entropy::{Decoder, Sink, Stream, number};
use crate::wire::{Reader, put_varint};

/// Largest number of patterns with a symbol of their own.
pub(crate) const MAX_PATTERNS: usize = 254;
/// The symbol of all other patterns, whose bits follow.
pub(crate) const OTHER: u8 = 255;

/// Usual patterns by symbol.
#[derive(Clone, Debug, Default)]
pub(crate) struct Patterns {
    packed: Vec<u64>,
    symbols: HashMap<u64, u8>,
}

impl Patterns {
    /// Makes a table of `packed`, which holds at most [`MAX_PATTERNS`] patterns.
    pub(crate) fn new(packed: Vec<u64>) -> Self {
        let symbols = packed.iter().zip(0..OTHER).map(|(&bits, symbol)| (bits, symbol)).collect();
        Self { packed, symbols }
    }

    /// Writes the patterns `all`, in runs if there are fewer than half as many runs as patterns. Stream `id` has the
    /// patterns, `id + 1` the lengths of runs. `bits` is the width of a pattern without a symbol.
    pub(crate) fn put<S: Sink>(&self, all: &[u64], bits: u32, sink: &mut S, id: usize) {
        let runs = 1 + all.windows(2).filter(|pair| pair[0] != pair[1]).count();
        let in_runs = 2 * runs < all.len();
        sink.bits(u32::from(in_runs), 1);
        let ctx_of_runs = if in_runs { OTHER } else { 0 };
        let mut rest = all;
        let (mut before, mut last) = (None, 0);
        while let Some(&packed) = rest.first() {
            let symbol = match before {
                Some(before) if before == packed => last,
                _ => self.symbols.get(&packed).copied().unwrap_or(OTHER),
            };
            sink.put(id, if in_runs { ctx_of_runs } else { last }, symbol);
            if symbol == OTHER {
                sink.long_bits(packed, bits);
            }
            (before, last) = (Some(packed), symbol);
            let run = if in_runs { rest.iter().take_while(|&&other| other == packed).count() } else { 1 };
            rest = &rest[run..];
            if in_runs && !rest.is_empty() {
                number::put(sink, id + 1, 0, run as u64);
            } else if in_runs {
                // The last run goes on to the end, which 0 stands for.
                number::put(sink, id + 1, 0, 0);
            }
        }
    }

    /// Reads `count` patterns that [`Patterns::put`] wrote into `all`.
    ///
    /// # Errors
    /// [`Corrupt`] if a run goes on beyond the end, or a pattern is not in the table.
    pub(crate) fn get(
        &self,
        count: usize,
        bits: u32,
        d: &mut Decoder<'_>,
        streams: &[Stream],
        all: &mut Vec<u64>,
    ) -> Result<(), Corrupt> {
        all.clear();
        let in_runs = d.bits(1) == 1;
        let mut last = 0;
        while all.len() < count {
            let symbol = d.get(streams[0].view(if in_runs { OTHER } else { last }));
            let packed = match symbol {
                OTHER => d.long_bits(bits),
                symbol => {
                    *self.packed.get(usize::from(symbol)).ok_or(Corrupt("a pattern beyond its table"))?
                }
            };
            last = symbol;
            let left = count - all.len();
            let run = match in_runs.then(|| number::get(d, &streams[1], 0).1) {
                None => 1,
                Some(0) => left,
                Some(run) => {
                    usize::try_from(run).ok().filter(|&run| run < left).ok_or(Corrupt("a run is too long"))?
                }
            };
            all.resize(all.len() + run, packed);
        }
        Ok(())
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        put_varint(out, self.packed.len() as u64);
        for &bits in &self.packed {
            put_varint(out, bits);
        }
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Self, Corrupt> {
        let count = reader.at_most(MAX_PATTERNS)?;
        let packed = (0..count).map(|_| reader.varint()).collect::<Result<Vec<u64>, Corrupt>>()?;
        Ok(Self::new(packed))
    }
}

/// Returns at most `max` of the values that `counts` has at least twice, the most frequent first.
pub(crate) fn most_frequent<T: Copy + Ord + Hash>(counts: HashMap<T, u32>, max: usize) -> Vec<T> {
    let mut all: Vec<(u32, T)> =
        counts.into_iter().filter(|(_, count)| *count >= 2).map(|(value, count)| (count, value)).collect();
    all.sort_by(|x, y| y.cmp(x));
    all.truncate(max);
    all.into_iter().map(|(_, value)| value).collect()
}
