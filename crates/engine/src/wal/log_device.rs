//! The log device: a small fast device that gets each batch first.
//!
//! A batch goes to its place in the open segment, and to the log device; it is durable as soon as the log device is
//! flushed. So commits do not wait for the devices that hold the data. Replay asks the log device for a batch that is
//! not in its place, and an opening writes it there.
//!
//! - K1: the log device has each batch that was acknowledged and is not on stable storage in its place
//!   (`Flushes::settled_batch`). Its chunks are filled in turn, each from its start on, with batches one after the other at block
//!   boundaries; a chunk is filled anew when all batches in it are settled.
//! - K2: a batch counts by its content alone (T1), wherever it lies. So what is left of earlier turns and openings does no
//!   harm, except for a torn batch with which the log would go on: an opening erases it (T8).
//! - K3: a superblock tells which group is the log device, and whether a batch may be on it alone. If none may be, the
//!   pool can do without it.
//! - K4: a batch lies right behind the one before it, or at the start of the next chunk if it does not fit there; the first
//!   one of an opening lies at the start of the device. So a block that cannot be read matters only if the batch that the log
//!   lacks at its end may begin there ([`LoggedBatches::may_hide`]).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};

use zerocopy::FromBytes;

use super::batch::{BatchHeader, MAGIC, Salt, Verified};
use super::read::{ReadAttempts, read_attempting, read_or_zeros};
use crate::Result;
use crate::device::{AlignedBuf, Devices, IoClass};
use crate::limits::{BLOCK_BYTES, CHUNK_BYTES};
use crate::ranges::Ranges;
use crate::space::Chunk;

/// Largest number of chunks that are used, and that an opening reads after a crash.
const CHUNKS_MAX: u32 = ((1 << 30) / CHUNK_BYTES) as u32;

/// A chunk of the log device and the byte in it where the next batch goes.
#[derive(Clone, Copy, Debug)]
struct Place {
    chunk: u32,
    used: u32,
}

/// The writing end of a log device.
pub(crate) struct LogDevice {
    devices: Devices,
    group: u16,
    place: Place,
    /// For each chunk: all batches in it have lower numbers.
    below: Vec<u64>,
}

/// Returns the number of chunks of a log device that are used.
fn chunks_of(size_bytes: u64) -> u32 {
    Chunk::count(size_bytes).min(CHUNKS_MAX)
}

impl LogDevice {
    /// Takes the group `group`, of `size_bytes`, as the log device. Nothing on it is needed.
    pub(crate) fn new(devices: &Devices, group: u16, size_bytes: u64) -> Self {
        let below = vec![0; chunks_of(size_bytes) as usize];
        Self { devices: devices.of_class(IoClass::Log), group, place: Place { chunk: 0, used: 0 }, below }
    }

    /// Returns its group.
    pub(crate) const fn group(&self) -> u16 {
        self.group
    }

    /// Returns the room, in bytes, and the number of bytes of it that batches take which are not settled yet: batches from
    /// number `settled` on.
    pub(crate) fn room_and_used(&self, settled: u64) -> (u64, u64) {
        let used = self.below.iter().filter(|below| **below > settled).count() as u64;
        (self.below.len() as u64 * CHUNK_BYTES, used * CHUNK_BYTES)
    }

    /// Returns the place for a batch of `len_bytes`; `None` if there is none before more batches than those below
    /// `settled` are on stable storage in their places.
    fn find(&self, len_bytes: usize, settled: u64) -> Option<Place> {
        let Place { chunk, used } = self.place;
        if used as usize + len_bytes <= CHUNK_BYTES as usize {
            let is_fresh = used > 0 || self.is_settled(chunk, settled);
            return is_fresh.then_some(self.place);
        }
        let next = (chunk + 1) % self.below.len().max(1) as u32;
        self.is_settled(next, settled).then_some(Place { chunk: next, used: 0 })
    }

    fn is_settled(&self, chunk: u32, settled: u64) -> bool {
        self.below.get(chunk as usize).is_some_and(|below| *below <= settled)
    }

    /// Returns true if there is a place for a batch of `len_bytes`.
    pub(super) fn has_room(&self, len_bytes: usize, settled: u64) -> bool {
        self.find(len_bytes, settled).is_some()
    }

    /// Returns true if a durable write costs less than a write and a flush after it.
    pub(super) fn writes_durably(&self) -> bool {
        self.devices.writes_durably(self.group).unwrap_or(false)
    }

    /// Writes a batch for which there is room.
    ///
    /// # Errors
    /// Errors of the device.
    pub(super) fn write(&mut self, number: u64, buf: &AlignedBuf, settled: u64, durable: bool) -> Result<()> {
        let Some(Place { chunk, used }) = self.find(buf.len(), settled) else {
            return Err(crate::Error::NoSpace("the log device has no room".into()));
        };
        let offset = Chunk { device: self.group, index: chunk }.offset() + u64::from(used);
        self.devices.write(self.group, offset, buf, durable)?;
        if let Some(below) = self.below.get_mut(chunk as usize) {
            *below = if used == 0 { number + 1 } else { number.saturating_add(1).max(*below) };
        }
        self.place = Place { chunk, used: used + buf.len() as u32 };
        Ok(())
    }
}

/// A batch on a log device.
#[derive(Clone, Copy, Debug)]
struct Found {
    offset: u64,
    copy: usize,
    len_bytes: u32,
    checksum: u64,
    is_whole: bool,
}

/// The batches of a log device, for an opening.
#[derive(Default)]
pub struct LoggedBatches {
    group: u16,
    /// Batches by their numbers and the chain values that they carry. Several of one key can be copies, and old ones.
    found: BTreeMap<(u64, u64), Vec<Found>>,
    /// Blocks that begin as a batch of the pool, by the same key.
    headers: BTreeMap<(u64, u64), BTreeSet<u64>>,
    /// All batches with lower numbers were flushed, as those of the superblock's opening tell.
    pub(super) flushed: u64,
    /// Number of the chunks that are used, and the bytes that could be read of no device.
    chunks: u32,
    unread: Ranges,
    /// Place of a batch that could not be read as a whole when the log was to go on with it; 0 if there was none.
    lost: AtomicU64,
}

impl LoggedBatches {
    /// Reads all of a log device, which is a group of so many bytes: chunks that are blank may lie before those that are not,
    /// where a device has taken another one's place. Reads it for the log with these low bytes of the GUID; `salt` is that of
    /// the superblock's opening. Blocks that cannot be read are taken for zeros: whether that matters is known when the log was
    /// read (`may_hide`). If what they have may be lost, more is tried to read the others.
    pub fn read(
        devices: &Devices,
        (group, size_bytes): (u16, u64),
        (log, salt): (u64, Salt),
        accepts_loss: bool,
    ) -> Self {
        let chunks = chunks_of(size_bytes);
        let mut all = Self { group, chunks, ..Self::default() };
        let mut attempts = if accepts_loss { ReadAttempts::MANY } else { ReadAttempts::FEW };
        let mut buf = AlignedBuf::scratch(CHUNK_BYTES as usize);
        for index in 0..chunks {
            let start = Chunk { device: group, index }.offset();
            for copy in 0..devices.copies(group).max(1) {
                let mut unread = |bytes| all.unread.insert_range(bytes);
                read_attempting(devices, (group, copy), (start, &mut buf), &mut attempts, &mut unread);
                all.note(&buf, (start, copy), (log, salt));
            }
        }
        all
    }

    /// Notes the batches of a chunk.
    fn note(&mut self, chunk: &[u8], (start, copy): (u64, usize), (log, salt): (u64, Salt)) {
        let mut next = 0;
        while let Some(bytes) = chunk.get(next..).filter(|bytes| !bytes.is_empty()) {
            let at = next;
            next += BLOCK_BYTES;
            let Ok((header, _)) = BatchHeader::read_from_prefix(bytes) else { break };
            if header.magic != MAGIC || header.pool.get() != log {
                continue;
            }
            let (key, offset) = ((header.number.get(), header.chain.get()), start + at as u64);
            self.headers.entry(key).or_default().insert(offset);
            // One whose records are damaged is all that there is if a crash has torn it where it belongs.
            if let Some(batch) = Verified::framed(bytes) {
                if header.salt == salt {
                    self.flushed = self.flushed.max(header.flushed.get().min(header.number.get()));
                }
                let (len_bytes, checksum) = (batch.padded_bytes(), batch.checksum());
                // No batch begins within another one: there are records, which hold what users have written. But of one that
                // is damaged newer ones may have taken the place, on a device that was away for a while.
                if batch.is_whole() {
                    next = at + len_bytes as usize;
                }
                self.found.entry(key).or_default().push(Found {
                    offset,
                    copy,
                    len_bytes,
                    checksum,
                    is_whole: batch.is_whole(),
                });
            }
        }
    }

    /// Returns its group.
    pub(crate) const fn group(&self) -> u16 {
        self.group
    }

    /// Returns the first byte that could not be read; `None` if all could.
    pub(crate) fn first_unread(&self) -> Option<u64> {
        let lost = Some(self.lost.load(Ordering::Relaxed)).filter(|offset| *offset > 0);
        self.unread.iter().next().map(|bytes| bytes.start).or(lost)
    }

    /// Returns true if what could not be read may have a batch that the log has damaged, if it `is_damaged`, or the one with
    /// this number and chain value, which it lacks at its end (K4).
    pub(crate) fn may_hide(&self, (number, chain): (u64, u64), is_damaged: bool) -> bool {
        if self.lost.load(Ordering::Relaxed) > 0 || !self.unread.is_empty() && is_damaged {
            return true;
        }
        let Some(before) = number.checked_sub(1).filter(|_| !self.unread.is_empty()) else {
            return !self.unread.is_empty();
        };
        let end_of = |offset: u64| Chunk::at(self.group, offset).offset() + CHUNK_BYTES;
        let lacks = |from: u64, to: u64| self.unread.iter().any(|bytes| bytes.start < to && from < bytes.end);
        let mut begun = self.headers.get(&(number, chain)).into_iter().flatten();
        if begun.any(|offset| lacks(*offset, end_of(*offset))) {
            return true;
        }
        let of_number = self.found.range((before, 0)..=(before, u64::MAX)).flat_map(|(_, found)| found);
        let mut last = of_number.filter(|found| found.checksum == chain).peekable();
        // Without the last one, nothing tells where the next one would be.
        last.peek().is_none()
            || last.any(|found| self.places_after(found).any(|offset| self.unread.has(offset)))
    }

    /// Returns the places where the batch after this one may begin (K4).
    fn places_after(&self, found: &Found) -> impl Iterator<Item = u64> {
        let chunk = Chunk::at(self.group, found.offset);
        let behind = found.offset + u64::from(found.len_bytes);
        let behind = Some(behind).filter(|behind| *behind < chunk.offset() + CHUNK_BYTES);
        let next = (chunk.index + 1) % self.chunks.max(1);
        let start_of = |index| Chunk { device: chunk.device, index }.offset();
        behind.into_iter().chain([start_of(next), start_of(0)])
    }

    /// Calls `visit` with the batches that carry this number and chain value, and are whole or not, one after the other until it returns true: with the
    /// device of the group that has the batch, counted from 0, and the byte at which it lies there; and with its bytes.
    /// Returns whether it did. One that cannot be read is passed over, and noted.
    ///
    /// # Errors
    /// Errors of `visit`.
    pub(super) fn find(
        &self,
        devices: &Devices,
        (key, is_whole): ((u64, u64), bool),
        mut visit: impl FnMut((usize, u64), &[u8]) -> Result<bool>,
    ) -> Result<bool> {
        let found = self.found.get(&key).into_iter().flatten().filter(|found| found.is_whole == is_whole);
        for found in found {
            match self.bytes_of(devices, found) {
                Ok(bytes) if visit((found.copy, found.offset), &bytes)? => return Ok(true),
                Ok(_) => {}
                Err(error) => {
                    self.lost.store(found.offset, Ordering::Relaxed);
                    tracing::error!(%error, number = key.0, "a batch of the log device cannot be read as a whole");
                }
            }
        }
        Ok(false)
    }

    /// Returns the bytes of the batch with this checksum, as it was found whole, or damaged.
    ///
    /// # Errors
    /// Errors of the device.
    pub(crate) fn with_checksum(
        &self,
        devices: &Devices,
        number: u64,
        checksum: u64,
    ) -> Result<Option<AlignedBuf>> {
        let of_number = self.found.range((number, 0)..=(number, u64::MAX)).flat_map(|(_, found)| found);
        let is_it = of_number.filter(|found| found.checksum == checksum);
        let found = is_it.max_by_key(|found| found.is_whole);
        found.map(|found| self.bytes_of(devices, found)).transpose()
    }

    fn bytes_of(&self, devices: &Devices, found: &Found) -> Result<AlignedBuf> {
        let mut buf = AlignedBuf::scratch(found.len_bytes as usize);
        let read = devices.read_unverified(self.group, found.copy, found.offset, &mut buf);
        // Each device may have blocks that it cannot read, and others have these.
        let is_mixed = |buf: &mut AlignedBuf| {
            devices.copies(self.group) > 1
                && read_or_zeros(devices, (self.group, found.copy), found.offset, buf) == 0
        };
        match read {
            Err(error) if !is_mixed(&mut buf) => Err(error),
            _ => Ok(buf),
        }
    }

    /// Erases what begins as the batch with which the log would go on (K2). It is durable with the next flush.
    ///
    /// # Errors
    /// Errors of the device.
    pub(crate) fn erase_headers(&self, devices: &Devices, number: u64, chain: u64) -> Result<()> {
        let headers = self.headers.get(&(number, chain)).into_iter().flatten();
        let blank = AlignedBuf::zeroed(BLOCK_BYTES);
        headers.copied().try_for_each(|offset| devices.write(self.group, offset, &blank, false))
    }
}
