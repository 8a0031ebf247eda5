//! What line pointers and headers are like, packed into numbers: the usual ones have a symbol each.

use std::collections::HashMap;
use std::hash::Hash;

use crate::Corrupt;
use crate::wire::{Reader, put_varint};

/// Most patterns with a symbol of their own.
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
    /// At most [`MAX_PATTERNS`].
    pub(crate) fn new(packed: Vec<u64>) -> Self {
        let symbols = packed.iter().zip(0..OTHER).map(|(&bits, symbol)| (bits, symbol)).collect();
        Self { packed, symbols }
    }

    pub(crate) fn symbol(&self, packed: u64) -> u8 {
        self.symbols.get(&packed).copied().unwrap_or(OTHER)
    }

    pub(crate) fn get(&self, symbol: u8) -> Result<u64, Corrupt> {
        self.packed.get(usize::from(symbol)).copied().ok_or(Corrupt("a pattern beyond its table"))
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

/// Those of `counts` that came at least twice, the most frequent first.
pub(crate) fn most_frequent<T: Copy + Ord + Hash>(counts: HashMap<T, u32>, max: usize) -> Vec<T> {
    let mut all: Vec<(u32, T)> =
        counts.into_iter().filter(|(_, count)| *count >= 2).map(|(value, count)| (count, value)).collect();
    all.sort_by(|x, y| y.cmp(x));
    all.truncate(max);
    all.into_iter().map(|(_, value)| value).collect()
}
