//! Transforms bytes with a stride: images of pages whose rows have one length, as those of indexes and of tables with
//! fixed columns.
//!
//! Each byte is replaced by its difference to the one a stride before. Rows that differ by a step become equal, and
//! zstd finds one long match.

/// Fewest bytes that may have a stride.
const MIN: usize = 512;
/// Strides are multiples of this, since rows are aligned.
pub(crate) const UNIT: usize = 8;
/// Longest stride, in units of [`UNIT`].
pub(crate) const UNITS_MAX: usize = 64;
/// Number of bytes by which a stride is found.
const LOOKED_AT: usize = 2048;
/// Number of differences, of 16, that have to equal those a stride before.
const EQUAL_OF_16: usize = 13;

/// Returns the stride of `bytes`, in units; 0 if there is none.
pub(crate) fn find(bytes: &[u8]) -> usize {
    if bytes.len() < MIN {
        return 0;
    }
    // The middle is looked at: a page's head is not like its rows.
    let from = (bytes.len() - LOOKED_AT.min(bytes.len())) / 2;
    let looked = &bytes[from..from + LOOKED_AT.min(bytes.len())];
    let mut best = (0, 0);
    for units in 1..=UNITS_MAX.min(looked.len() / UNIT / 4) {
        let stride = units * UNIT;
        let (a, b, c) = (&looked[2 * stride..], &looked[stride..], looked);
        let equal =
            a.iter().zip(b).zip(c).filter(|((a, b), c)| a.wrapping_sub(**b) == b.wrapping_sub(**c)).count();
        let share = equal * 1024 / a.len();
        // A multiple of a stride is a stride as well, so a longer one has to be better.
        if share > best.0 + 16 {
            best = (share, units);
        }
    }
    if best.0 >= EQUAL_OF_16 * 64 { best.1 } else { 0 }
}

/// Replaces bytes by differences to those a stride before.
pub(crate) fn apply(bytes: &mut [u8], units: usize) {
    let stride = units * UNIT;
    if units > 0 {
        for at in (stride..bytes.len()).rev() {
            bytes[at] = bytes[at].wrapping_sub(bytes[at - stride]);
        }
    }
}

/// Inverts [`apply`].
pub(crate) fn undo(bytes: &mut [u8], units: usize) {
    let stride = units * UNIT;
    if units > 0 {
        for at in stride..bytes.len() {
            bytes[at] = bytes[at].wrapping_add(bytes[at - stride]);
        }
    }
}
