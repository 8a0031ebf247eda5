//! Has tables of frequent values.

use crate::Corrupt;
use crate::wire::{Reader, put_bytes, put_varint};

/// Largest number of values in a table: symbols are below [`UNKNOWN`].
pub(crate) const MAX_VALUES: usize = 255;
/// Longest value in a table, in bytes.
pub(crate) const MAX_VALUE_BYTES: usize = 255;
/// The symbol of values that are not in the table.
pub(super) const UNKNOWN: u8 = 255;
/// Frequent values, the most frequent first.
#[derive(Clone, Debug)]
pub(crate) struct Values {
    spots: Vec<Spot>,
    /// The values, one behind the other, and the bytes that a copy may read beyond the last.
    bytes: Vec<u8>,
    /// A hash table with open addressing: 1 + place of a value, 0 for none.
    index: Box<[u16]>,
}

/// Place of a value in the table's bytes, and its length.
#[derive(Clone, Copy, Debug)]
struct Spot {
    from: u32,
    len: u32,
}

/// Longest value that is written without a call or a branch, in bytes.
const SHORT: usize = 16;
/// By length of a value: mask of the low bytes that it takes.
const MASKS: [u128; SHORT + 1] = {
    let mut masks = [0; SHORT + 1];
    let mut len = 1;
    while len <= SHORT {
        masks[len] = u128::MAX >> (128 - 8 * len);
        len += 1;
    }
    masks
};

/// Writes `len` bytes of `source`, from `from` on, to `at`, and changes no others.
#[inline(always)]
pub(super) fn put_value(
    page: &mut [u8],
    at: usize,
    source: &[u8],
    from: usize,
    len: usize,
) -> Result<(), Corrupt> {
    if let Some(mask) = MASKS.get(len)
        && let Some(to) = page.get_mut(at..at + SHORT).and_then(|to| to.first_chunk_mut::<SHORT>())
        && let Some(value) = source.get(from..from + SHORT).and_then(|value| value.first_chunk::<SHORT>())
    {
        let (old, new) = (u128::from_le_bytes(*to), u128::from_le_bytes(*value));
        *to = (old & !mask | new & mask).to_le_bytes();
        return Ok(());
    }
    let value = source.get(from..from + len).ok_or(Corrupt("contents are missing"))?;
    page[at..at + len].copy_from_slice(value);
    Ok(())
}

fn hash(value: &[u8]) -> usize {
    let mut h = value.len() as u64;
    let (chunks, rest) = value.as_chunks::<8>();
    for chunk in chunks {
        h = (h ^ u64::from_le_bytes(*chunk)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        h ^= h >> 29;
    }
    let tail = rest.iter().fold(0u64, |tail, &byte| tail << 8 | u64::from(byte));
    h = (h ^ tail).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (h >> 40) as usize
}

/// Returns true if both are equal. Does not compare empty slices: their address may be one that is slow to touch.
#[inline(always)]
fn is_same(one: &[u8], other: &[u8]) -> bool {
    one.len() == other.len() && (one.is_empty() || one == other)
}

impl Values {
    /// Makes a table of at most [`MAX_VALUES`] values of at most [`MAX_VALUE_BYTES`].
    pub(crate) fn new(values: &[Box<[u8]>]) -> Self {
        debug_assert!(values.len() <= MAX_VALUES);
        let (mut spots, mut bytes) = (vec![], vec![]);
        for value in values {
            spots.push(Spot { from: bytes.len() as u32, len: value.len() as u32 });
            bytes.extend_from_slice(value);
        }
        bytes.resize(bytes.len() + SHORT, 0);
        let mut index = vec![0u16; 1024].into_boxed_slice();
        for (place, value) in values.iter().enumerate() {
            let mut slot = hash(value) % index.len();
            while index[slot] != 0 {
                slot = (slot + 1) % index.len();
            }
            index[slot] = place as u16 + 1;
        }
        Self { spots, bytes, index }
    }

    fn all(&self) -> impl Iterator<Item = &[u8]> {
        self.spots.iter().map(|spot| self.value(*spot))
    }

    #[inline(always)]
    fn value(&self, spot: Spot) -> &[u8] {
        &self.bytes[spot.from as usize..][..spot.len as usize]
    }

    /// Returns the bytes of memory that the table takes.
    pub(crate) fn memory_bytes(&self) -> usize {
        size_of_val(&*self.spots) + size_of_val(&*self.index) + self.bytes.len()
    }

    /// Returns the bytes that the table takes in a model, before the model is compressed.
    pub(crate) fn model_bytes(&self) -> usize {
        self.spots.iter().map(|spot| spot.len as usize + 1).sum()
    }

    #[inline]
    pub(super) fn find(&self, value: &[u8]) -> u8 {
        let mut slot = hash(value) % self.index.len();
        loop {
            match self.index[slot] {
                0 => return UNKNOWN,
                place if is_same(self.value(self.spots[usize::from(place) - 1]), value) => {
                    return (place - 1) as u8;
                }
                _ => slot = (slot + 1) % self.index.len(),
            }
        }
    }

    #[inline(always)]
    fn spot(&self, symbol: u8) -> Result<Spot, Corrupt> {
        self.spots.get(usize::from(symbol)).copied().ok_or(Corrupt("a value beyond its table"))
    }

    /// Returns the length of the value of `symbol`, in bytes.
    #[inline(always)]
    pub(super) fn len_of(&self, symbol: u8) -> Result<usize, Corrupt> {
        Ok(self.spot(symbol)?.len as usize)
    }

    /// Writes the value of `symbol`, which has `len` bytes, to `at`.
    #[inline(always)]
    pub(super) fn write_to(&self, page: &mut [u8], at: usize, symbol: u8, len: usize) -> Result<(), Corrupt> {
        put_value(page, at, &self.bytes, self.spot(symbol)?.from as usize, len)
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        put_varint(out, self.spots.len() as u64);
        for value in self.all() {
            put_bytes(out, value);
        }
    }

    /// Reads the table of a column whose values have `width` bytes; 0 stands for any length.
    pub(crate) fn read(reader: &mut Reader<'_>, width: u16) -> Result<Self, Corrupt> {
        let count = reader.at_most(MAX_VALUES)?;
        let mut values = Vec::with_capacity(count);
        for _ in 0..count {
            let value = reader.bytes(MAX_VALUE_BYTES)?;
            if width != 0 && value.len() != usize::from(width) {
                return Err(Corrupt("a value of another width"));
            }
            values.push(value.into());
        }
        Ok(Self::new(&values))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_written_and_nothing_else() {
        let source: Vec<u8> = (100..180).collect();
        for len in 0..=40 {
            for at in [0, 1, 50, 100 - len] {
                let mut page = [7; 100];
                assert_eq!(put_value(&mut page, at, &source, 5, len), Ok(()));
                let mut expected = [7; 100];
                expected[at..at + len].copy_from_slice(&source[5..5 + len]);
                assert_eq!(page, expected, "{len} at {at}");
            }
        }
        assert!(put_value(&mut [0; 100], 0, &source, 79, 2).is_err());
        assert!(put_value(&mut [0; 8], 0, &source, 79, 2).is_err());
    }
}
