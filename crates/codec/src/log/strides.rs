//! Bytes with a stride: images of pages whose rows have one length, as indexes and tables of fixed columns have them.
//!
//! Each byte is replaced by its difference to the one a stride before; rows that differ by a step become the same, and
//! zstd finds one long match.

/// Shorter bytes have no stride.
const MIN: usize = 512;
/// Strides are multiples of this, since rows are aligned.
pub(crate) const UNIT: usize = 8;
/// Longest stride, in units.
pub(crate) const UNITS_MAX: usize = 64;
/// Bytes that a stride is found by.
const LOOKED_AT: usize = 2048;
/// Of 16 differences so many have to be as those a stride before.
const EQUAL_OF_16: usize = 13;

/// The stride of `bytes`, in units; 0 if there is none.
pub(crate) fn find(bytes: &[u8]) -> usize {
    if bytes.len() < MIN {
        return 0;
    }
    // The middle: a page's head is not like its rows.
    let from = (bytes.len() - LOOKED_AT.min(bytes.len())) / 2;
    let looked = &bytes[from..from + LOOKED_AT.min(bytes.len())];
    let mut best = (0, 0);
    for units in 1..=UNITS_MAX.min(looked.len() / UNIT / 4) {
        let stride = units * UNIT;
        let (a, b, c) = (&looked[2 * stride..], &looked[stride..], looked);
        let equal =
            a.iter().zip(b).zip(c).filter(|((a, b), c)| a.wrapping_sub(**b) == b.wrapping_sub(**c)).count();
        let share = equal * 1024 / a.len();
        // A multiple of a stride is a stride as well: it has to be better.
        if share > best.0 + 16 {
            best = (share, units);
        }
    }
    if best.0 >= EQUAL_OF_16 * 64 { best.1 } else { 0 }
}

/// Replaces bytes by differences.
pub(crate) fn apply(bytes: &mut [u8], units: usize) {
    let stride = units * UNIT;
    if units > 0 {
        for at in (stride..bytes.len()).rev() {
            bytes[at] = bytes[at].wrapping_sub(bytes[at - stride]);
        }
    }
}

/// The inverse of [`apply`].
pub(crate) fn undo(bytes: &mut [u8], units: usize) {
    let stride = units * UNIT;
    if units > 0 {
        for at in stride..bytes.len() {
            bytes[at] = bytes[at].wrapping_add(bytes[at - stride]);
        }
    }
}
