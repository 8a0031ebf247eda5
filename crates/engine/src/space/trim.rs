//! Tells devices of free chunks, and remembers which ones they were told of.
//!
//! A device is told that a chunk holds nothing (a discard) only while the chunk is free: no checkpoint that an opening
//! may begin with refers to it any more, and nobody may have written to it since (S1). The chunk is taken out of the
//! free ones until the discard has returned, so that the discard cannot strike what is written there next (S2). What
//! the device was told is remembered until the chunk is given out.

use std::ops::Range;

use super::{Chunk, Chunks};
use crate::Result;
use crate::ranges::Ranges;

/// Choices of chunks to be discarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Untrimmed {
    /// All free chunks that the device was not told of.
    All,
    /// Those of these that became free since the pool was opened.
    Fresh,
}

/// The state of discards, by device.
#[derive(Default)]
pub(super) struct Trims {
    /// Free chunks that the device was told of.
    trimmed: Vec<Ranges>,
    /// Chunks that became free since the pool was opened, and that the device was not told of.
    fresh: Vec<Ranges>,
    /// Chunks that are being discarded.
    discarding: Vec<Ranges>,
}

impl Trims {
    pub(super) fn new(devices: usize) -> Self {
        let none = || vec![Ranges::default(); devices];
        Self { trimmed: none(), fresh: none(), discarding: none() }
    }

    /// Adds a device behind all others.
    pub(super) fn add_device(&mut self) {
        for known in [&mut self.trimmed, &mut self.fresh, &mut self.discarding] {
            known.push(Ranges::default());
        }
    }

    /// Forgets what a device was told.
    pub(super) fn remove_device(&mut self, device: u16) {
        for known in [&mut self.trimmed, &mut self.fresh, &mut self.discarding] {
            known.get_mut(usize::from(device)).map(std::mem::take);
        }
    }

    /// Notes that a chunk is not free any more.
    pub(super) fn taken(&mut self, chunk: Chunk) {
        for known in [&mut self.trimmed, &mut self.fresh] {
            known.get_mut(usize::from(chunk.device)).map(|of| of.remove(chunk.index));
        }
    }

    /// Notes that a chunk is free from now on.
    pub(super) fn freed(&mut self, chunk: Chunk) {
        self.fresh.get_mut(usize::from(chunk.device)).map(|of| of.insert(chunk.index));
    }

    /// Returns the number of chunks of a device that are being discarded.
    pub(super) fn discarding(&self, device: u16) -> u64 {
        self.discarding.get(usize::from(device)).map_or(0, Ranges::len)
    }
}

impl Chunks {
    /// Returns the number of free chunks that devices for which `wanted` is true were not told of.
    pub(crate) fn untrimmed(&self, which: Untrimmed, wanted: &dyn Fn(u16) -> bool) -> u64 {
        let state = self.state.lock();
        let of = |(device, (free, trims)): (u16, (&Ranges, (&Ranges, &Ranges)))| match which {
            _ if state.closed.contains(&device) || !wanted(device) => 0,
            Untrimmed::All => free.count_without(trims.0),
            Untrimmed::Fresh => trims.1.len(),
        };
        let trims = state.trims.trimmed.iter().zip(&state.trims.fresh);
        (0..).zip(state.free.iter().zip(trims)).map(of).sum()
    }

    /// Has `discard` tell a device for which `wanted` is true of some neighbouring free chunks: at most `most`, and at
    /// most a quarter of those that are free there, so that whoever allocates finds others. They are the highest ones,
    /// since the lowest are given out next. Returns their number; `None` if none are left.
    ///
    /// # Errors
    /// Those of `discard`. The chunks are free then, as before.
    pub(crate) fn trim(
        &self,
        which: Untrimmed,
        most: u64,
        wanted: &dyn Fn(u16) -> bool,
        discard: &mut dyn FnMut(u16, Range<u64>) -> Result<()>,
    ) -> Result<Option<u64>> {
        let Some((device, range)) = self.begin_trim(which, most, wanted) else { return Ok(None) };
        let done = discard(device, range.clone());
        let mut state = self.state.lock();
        let at = usize::from(device);
        let trims = &mut state.trims;
        for set in [&mut trims.discarding, &mut trims.fresh] {
            set.get_mut(at).into_iter().for_each(|set| set.remove_range(range.clone()));
        }
        // Also after an error, so that a discard that failed is not tried again and again.
        trims.trimmed.get_mut(at).into_iter().for_each(|set| set.insert_range(range.clone()));
        state.free.get_mut(at).into_iter().for_each(|set| set.insert_range(range.clone()));
        drop(state);
        self.discarded.notify_all();
        done.map(|()| Some(range.end - range.start))
    }

    fn begin_trim(
        &self,
        which: Untrimmed,
        most: u64,
        wanted: &dyn Fn(u16) -> bool,
    ) -> Option<(u16, Range<u64>)> {
        let mut state = self.state.lock();
        let state = &mut *state;
        for (device, free) in (0..).zip(&mut state.free) {
            if state.closed.contains(&device) || !wanted(device) {
                continue;
            }
            let at = usize::from(device);
            let trims = &mut state.trims;
            let most = most.min(free.len() / 4).max(1);
            let found = match which {
                Untrimmed::All => free.last_without(trims.trimmed.get(at)?, most),
                Untrimmed::Fresh => trims.fresh.get(at)?.last_without(trims.trimmed.get(at)?, most),
            };
            if let Some(range) = found {
                free.remove_range(range.clone());
                trims.discarding.get_mut(at)?.insert_range(range.clone());
                return Some((device, range));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests;
