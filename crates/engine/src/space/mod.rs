//! Gives out the chunks of the pool's devices, in which segments lie.
//!
//! A chunk is free, in use by the extents of one or more segments, or *pending free*: nothing uses it any more, but the
//! last checkpoint still refers to it. So it may not be overwritten before the next one is durable (invariant S1).
//! Chunk states are never stored: they follow from the segment table.
//!
//! S2: a chunk is discarded only while it is free, and is not given out before the discard has returned (`trim`).
//! E1: no chunk of a device that is closed is given out, and none of them counts as free ([`super::pool`], `removal`).
//!
//! ```text
//! geometry   which bytes of a device are chunks, and which are reserved; no I/O
//! by_chunk   a value for each chunk
//! trim       which free chunks a device was told of
//! ```

mod by_chunk;
mod geometry;
mod trim;

use std::collections::BTreeSet;

use parking_lot::{Condvar, Mutex};

pub(crate) use by_chunk::ByChunk;
pub use geometry::reserved_places;
pub(crate) use geometry::stretches;
use trim::Trims;
pub(crate) use trim::Untrimmed;

use crate::limits::CHUNK_BYTES;
use crate::ranges::Ranges;
use crate::{Error, Result};

/// A chunk of a device.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Chunk {
    /// Position of the device in the pool.
    pub device: u16,
    /// Position of the chunk on the device.
    pub index: u32,
}

impl Chunk {
    /// Returns the byte offset of the chunk on its device.
    pub const fn offset(self) -> u64 {
        geometry::chunk_offset(self.index)
    }
    /// Returns the chunk that byte `offset` of a device lies in.
    pub(crate) const fn at(device: u16, offset: u64) -> Self {
        Self { device, index: geometry::chunk_at(offset) }
    }
    /// Returns the number of chunks of a device of `size_bytes`.
    pub(crate) const fn count(size_bytes: u64) -> u32 {
        geometry::chunk_count(size_bytes)
    }
}

/// Bytes within one chunk.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Extent {
    /// The chunk.
    pub chunk: Chunk,
    /// First byte within the chunk.
    pub start: u32,
    /// Length in bytes.
    pub len_bytes: u32,
}

impl Extent {
    /// Returns the byte offset of the extent on its device.
    pub(crate) const fn offset(self) -> u64 {
        self.chunk.offset() + self.start as u64
    }
    /// Returns true if it lies within its chunk.
    pub(crate) const fn is_sane(self) -> bool {
        self.start as u64 + self.len_bytes as u64 <= CHUNK_BYTES
    }
}

#[derive(Default)]
struct ChunkStates {
    counts: Vec<u32>,
    /// Free chunks by device.
    free: Vec<Ranges>,
    /// Devices that are closed.
    closed: BTreeSet<u16>,
    users: ByChunk<u32>,
    pending_free: BTreeSet<Chunk>,
    /// Number of chunks that a pass of the cleaner has begun to fill, and that come back by the next checkpoint.
    lent: u64,
    trims: Trims,
}

impl ChunkStates {
    fn user(&mut self, chunk: Chunk, add: i32) -> u32 {
        let Some(users) = self.users.get_mut(chunk) else { return 0 };
        *users = users.saturating_add_signed(add);
        *users
    }

    /// Returns free chunks and their positions, by device, for the devices that are not closed.
    fn open(&self) -> impl Iterator<Item = (u16, &Ranges)> {
        (0..).zip(&self.free).filter(|(device, _)| !self.closed.contains(device))
    }

    fn free(&self) -> u64 {
        self.open().map(|(device, free)| free.len() + self.trims.discarding(device)).sum()
    }

    /// Returns the number of chunks of devices that are not closed.
    fn total(&self) -> u64 {
        let open = (0..).zip(&self.counts).filter(|(device, _)| !self.closed.contains(device));
        open.map(|(_, count)| u64::from(*count)).sum()
    }

    /// Returns the device of which the largest part is free, among those with a free chunk that may be given out.
    fn emptiest(&self) -> Option<u16> {
        let count = |device: u16| u128::from(self.counts.get(usize::from(device)).copied().unwrap_or(0));
        let with_free = self.open().filter(|(_, free)| !free.is_empty());
        let shares = with_free.map(|(device, free)| (device, u128::from(free.len()), count(device)));
        shares.max_by(|a, b| (a.1 * b.2).cmp(&(b.1 * a.2))).map(|(device, _, _)| device)
    }

    /// Gives out a chunk that is not among the free ones any more.
    fn give(&mut self, device: u16, index: u32) -> Chunk {
        let chunk = Chunk { device, index };
        self.trims.taken(chunk);
        self.user(chunk, 1);
        chunk
    }

    fn take_free(&mut self, chunk: Chunk) -> bool {
        self.trims.taken(chunk);
        self.free.get_mut(usize::from(chunk.device)).is_some_and(|free| free.remove(chunk.index))
    }
}

/// Allocation state of all chunks of a pool.
pub struct Chunks {
    state: Mutex<ChunkStates>,
    /// Signalled when chunks that were being discarded are free again.
    discarded: Condvar,
}

impl Chunks {
    /// Creates the state of devices of these sizes in bytes. All chunks are free.
    pub fn new(device_sizes: &[u64]) -> Self {
        let counts: Vec<u32> = device_sizes.iter().map(|size| Chunk::count(*size)).collect();
        let free = counts.iter().map(|count| Ranges::below(*count)).collect();
        let trims = Trims::new(counts.len());
        let state = Mutex::new(ChunkStates { counts, free, trims, ..ChunkStates::default() });
        Self { state, discarded: Condvar::new() }
    }

    /// Adds a device of this size in bytes, behind all others. Its chunks are free.
    pub(crate) fn add_device(&self, size_bytes: u64) {
        let count = Chunk::count(size_bytes);
        let mut state = self.state.lock();
        state.counts.push(count);
        state.free.push(Ranges::below(count));
        state.trims.add_device();
    }

    /// Gives a device a size of at least this many bytes. The chunks that it gets are free.
    pub(crate) fn grow_device(&self, device: u16, size_bytes: u64) {
        let mut state = self.state.lock();
        let state = &mut *state;
        let at = usize::from(device);
        if let (Some(count), Some(free)) = (state.counts.get_mut(at), state.free.get_mut(at)) {
            let more = Chunk::count(size_bytes).max(*count);
            free.insert_range(u64::from(*count)..u64::from(more));
            *count = more;
        }
    }

    /// Closes a device: none of its chunks is given out any more, and none counts as a chunk of the pool unless it is in
    /// use.
    pub(crate) fn close_device(&self, device: u16) {
        self.state.lock().closed.insert(device);
    }

    /// Has the chunks of a device that was closed count again.
    pub(crate) fn reopen_device(&self, device: u16) {
        self.state.lock().closed.remove(&device);
    }

    /// Returns true if nothing lies on a device, neither now nor in the state that a crash would lead back to.
    pub(crate) fn is_vacant(&self, device: u16) -> bool {
        let state = self.state.lock();
        let at = usize::from(device);
        let (count, free) = (state.counts.get(at), state.free.get(at).map_or(0, Ranges::len));
        count.is_none_or(|count| free == u64::from(*count))
    }

    /// Returns the number of chunks of a device.
    pub(crate) fn count_of(&self, device: u16) -> u64 {
        self.state.lock().counts.get(usize::from(device)).copied().unwrap_or(0).into()
    }

    /// Takes the chunks of a device that is closed and vacant from the pool.
    pub(crate) fn remove_device(&self, device: u16) {
        let mut state = self.state.lock();
        let state = &mut *state;
        let at = usize::from(device);
        if let (Some(count), Some(free)) = (state.counts.get_mut(at), state.free.get_mut(at)) {
            *count = 0;
            *free = Ranges::default();
        }
        state.trims.remove_device(device);
    }

    /// Returns true if the pool has this chunk.
    pub(crate) fn exists(&self, chunk: Chunk) -> bool {
        self.state.lock().counts.get(usize::from(chunk.device)).is_some_and(|count| chunk.index < *count)
    }

    /// Returns true if a chunk is free and may be given out: then nothing that counts lies in it, nor in the state that
    /// a crash would lead back to.
    pub(crate) fn is_free(&self, chunk: Chunk) -> bool {
        let state = self.state.lock();
        state.free.get(usize::from(chunk.device)).is_none_or(|free| free.has(chunk.index.into()))
    }

    /// Returns the number of chunks of a device that are not free.
    pub(crate) fn used_count(&self, device: u16) -> u64 {
        let state = self.state.lock();
        let at = usize::from(device);
        let free = state.free.get(at).map_or(0, Ranges::len) + state.trims.discarding(device);
        state.counts.get(at).map_or(0, |count| u64::from(*count).saturating_sub(free))
    }

    /// Returns the chunks of a device that are not free, by their positions, ascending.
    pub(crate) fn used_of(&self, device: u16) -> Vec<u32> {
        let state = self.state.lock();
        let at = usize::from(device);
        let (Some(count), Some(free)) = (state.counts.get(at), state.free.get(at)) else { return Vec::new() };
        let mut used = Ranges::below(*count);
        free.iter().for_each(|range| used.remove_range(range));
        used.iter().flatten().filter_map(|index| u32::try_from(index).ok()).collect()
    }

    /// Returns the number of chunks in the pool, without those of devices that are closed.
    pub(crate) fn total(&self) -> u64 {
        self.state.lock().total()
    }

    /// Returns the number of chunks, and of those that are not free and that the next checkpoint will not free: both as of
    /// one moment. Of devices that are closed those in use count.
    pub(crate) fn total_and_used(&self) -> (u64, u64) {
        let state = self.state.lock();
        let in_use = |device: u16| {
            let at = usize::from(device);
            let (count, free) = (state.counts.get(at).copied(), state.free.get(at).map(Ranges::len));
            let pending = state.pending_free.iter().filter(|chunk| chunk.device == device).count();
            u64::from(count.unwrap_or(0)).saturating_sub(free.unwrap_or(0) + pending as u64)
        };
        let closed: u64 = state.closed.iter().map(|device| in_use(*device)).sum();
        let total = state.total();
        let pending = state.pending_free.iter().filter(|chunk| !state.closed.contains(&chunk.device));
        let unused = state.free() + pending.count() as u64;
        debug_assert!(unused <= total);
        (total + closed, total.saturating_sub(unused) + closed)
    }

    /// Returns the number of chunks that can be allocated now, those that are being discarded included.
    pub(crate) fn free(&self) -> u64 {
        self.state.lock().free()
    }

    /// Returns [`Chunks::free`], and the number of chunks that come back by the next checkpoint because a pass of the
    /// cleaner has begun to fill them, which empties more (G6).
    pub(crate) fn free_and_lent(&self) -> (u64, u64) {
        let state = self.state.lock();
        (state.free(), state.lent)
    }

    /// Returns the number of chunks that the next checkpoint will free.
    pub(crate) fn pending_free(&self) -> u64 {
        self.state.lock().pending_free.len() as u64
    }

    /// Takes a free chunk, with one user, on the device of which the largest part is free.
    pub fn allocate(&self) -> Result<Chunk> {
        self.allocate_for(false)
    }

    /// Does what [`Chunks::allocate`] does, for a pass of the cleaner that empties more than it takes.
    pub(crate) fn lend(&self) -> Result<Chunk> {
        self.allocate_for(true)
    }

    fn allocate_for(&self, lent: bool) -> Result<Chunk> {
        let mut state = self.state.lock();
        let (device, index) = loop {
            let emptiest = state.emptiest();
            let free = emptiest.and_then(|device| Some((device, state.free.get_mut(usize::from(device))?)));
            if let Some(taken) = free.and_then(|(device, free)| Some((device, free.pop_first()?))) {
                break taken;
            }
            if state.free() == 0 {
                return Err(Error::NoSpace("no free chunk on any device of the pool".into()));
            }
            self.discarded.wait(&mut state);
        };
        state.lent += u64::from(lent);
        Ok(state.give(device, index))
    }

    /// Takes a free chunk of this device, with one user.
    ///
    /// # Errors
    /// [`Error::NoSpace`] if it has none at present, or is closed.
    pub(crate) fn allocate_on(&self, device: u16) -> Result<Chunk> {
        let mut state = self.state.lock();
        let is_open = !state.closed.contains(&device);
        let free = state.free.get_mut(usize::from(device)).filter(|_| is_open);
        let index = free.and_then(Ranges::pop_first);
        let index = index.ok_or_else(|| Error::NoSpace("no free chunk on the device".into()))?;
        Ok(state.give(device, index))
    }

    /// Puts a chunk back that was given out and to which nothing was written: it is free at once.
    pub(crate) fn put_back(&self, chunk: Chunk) {
        let mut state = self.state.lock();
        let state = &mut *state;
        let used = state.users.get(chunk).is_some_and(|users| *users > 0);
        if used
            && state.user(chunk, -1) == 0
            && let Some(free) = state.free.get_mut(usize::from(chunk.device))
        {
            free.insert(chunk.index);
            state.trims.freed(chunk);
        }
    }

    /// Adds a user to a chunk, taking it out of the free ones.
    pub(crate) fn retain(&self, chunk: Chunk) {
        let mut state = self.state.lock();
        state.take_free(chunk);
        state.pending_free.remove(&chunk);
        state.user(chunk, 1);
    }

    /// Does what [`Chunks::retain`] does, for many chunks, each with a number of users.
    pub(crate) fn retain_all(&self, mut chunks: Vec<(Chunk, u32)>) {
        chunks.sort_unstable();
        let mut state = self.state.lock();
        let state = &mut *state;
        for run in chunks.chunk_by(|(a, _), (b, _)| a.device == b.device && b.index - a.index <= 1) {
            let (Some((first, _)), Some((last, _))) = (run.first(), run.last()) else { continue };
            if let Some(free) = state.free.get_mut(usize::from(first.device)) {
                free.remove_range(first.index.into()..u64::from(last.index) + 1);
            }
            for (chunk, users) in run {
                state.trims.taken(*chunk);
                state.pending_free.remove(chunk);
                state.user(*chunk, i32::try_from(*users).unwrap_or(i32::MAX));
            }
        }
    }

    /// Removes a user. A chunk without users is pending free until [`Chunks::recycle`].
    pub(crate) fn release(&self, chunk: Chunk) {
        let mut state = self.state.lock();
        let used = state.users.get(chunk).is_some_and(|users| *users > 0);
        if used && state.user(chunk, -1) == 0 {
            state.pending_free.insert(chunk);
        }
    }

    /// Puts those of the chunks that nothing uses among those pending free (they were in use by the last checkpoint).
    pub(crate) fn add_pending_free(&self, chunks: &[Chunk]) {
        let mut state = self.state.lock();
        for chunk in chunks {
            let used = state.users.get(*chunk).is_some_and(|users| *users > 0);
            if !used && state.take_free(*chunk) {
                state.pending_free.insert(*chunk);
            }
        }
    }

    /// Takes out the chunks that are pending free now. They are to be given to [`Chunks::recycle`] when the checkpoint
    /// that is being made is durable.
    pub(crate) fn take_pending_free(&self) -> Vec<Chunk> {
        std::mem::take(&mut self.state.lock().pending_free).into_iter().collect()
    }

    /// Frees chunks that were pending free before a checkpoint which is now durable. With that, what was lent is back.
    pub(crate) fn recycle(&self, chunks: Vec<Chunk>) {
        let mut state = self.state.lock();
        state.lent = 0;
        for chunk in chunks {
            if let Some(free) = state.free.get_mut(usize::from(chunk.device)) {
                free.insert(chunk.index);
                state.trims.freed(chunk);
            }
        }
    }
}

#[cfg(test)]
mod tests;
