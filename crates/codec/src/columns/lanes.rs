//! Has the order in which values are coded byte by byte: the first byte of each value, then the second of each, and so
//! on.
//!
//! A byte is often coded in the context of the one before it. In this order that one was decoded a whole round before,
//! so the processor works on several values at once instead of waiting for each byte in turn.

use super::Grid;

/// A value: the place of its first byte, and the number of bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lane {
    pub(crate) at: usize,
    pub(crate) len: usize,
}

impl Lane {
    /// Returns the value of column `c` in row `t` without its first `skip` bytes.
    pub(crate) fn behind(grid: &Grid, c: usize, t: u16, skip: usize) -> Self {
        let (at, len) = grid.place(c, t);
        Self { at: at + skip, len: len - skip }
    }
}

/// The values of a column that are not yet at their end.
#[derive(Debug, Default)]
pub(crate) struct Lanes {
    lanes: Vec<Lane>,
}

impl Lanes {
    /// Replaces all values by `lanes`, but for empty ones.
    pub(crate) fn set(&mut self, lanes: impl Iterator<Item = Lane>) {
        self.lanes.clear();
        self.lanes.extend(lanes.filter(|lane| lane.len > 0));
    }

    /// Calls `round` for position 0, 1, and so on, with the values that have a byte there, in their order.
    #[inline(always)]
    pub(crate) fn rounds(&mut self, mut round: impl FnMut(usize, &[Lane])) {
        let mut i = 0;
        while let Some(shortest) = self.lanes.iter().map(|lane| lane.len).min() {
            while i < shortest {
                round(i, &self.lanes);
                i += 1;
            }
            self.lanes.retain(|lane| lane.len > shortest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_byte_comes_once_and_position_by_position() {
        let mut lanes = Lanes::default();
        lanes.set([(10, 2), (20, 0), (30, 3), (40, 1)].into_iter().map(|(at, len)| Lane { at, len }));
        let mut seen = vec![];
        lanes.rounds(|i, lanes| seen.extend(lanes.iter().map(|lane| lane.at + i)));
        assert_eq!(seen, [10, 30, 40, 11, 31, 32]);
    }
}
