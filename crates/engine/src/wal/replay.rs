//! Reads the log after a crash.
//!
//! Where a batch does not hold, a crash has torn the log, or it is damaged. It is damaged if anything that was written
//! later tells that the batch had been flushed (T7): a batch of the same opening further on, or a superblock. Then
//! - damaged records of a sound frame cost these records alone: reading them fails as with any other damage;
//! - a damaged frame is an error, since changes that were acknowledged would be lost, unless the caller accepts the
//!   loss.

use std::collections::HashSet;

use zerocopy::FromBytes;

use super::batch::{BatchHeader, MAGIC, Salt, Verified, may_go_on};
use super::read::{READ_BYTES, read_at, read_or_zeros};
use super::writer::RecordKind;
use super::{LoggedBatches, Position};
use crate::device::{AlignedBuf, Devices};
use crate::limits::{BLOCK_BYTES, CHUNK_BYTES};
use crate::segment::{DirEntry, record_checksum};
use crate::space::{Chunk, Chunks};
use crate::types::SLOT_BITS;
use crate::{Addr, Error, Result};

/// Number of bytes of a segment that are read at first.
const FIRST_READ_BYTES: usize = 16 * BLOCK_BYTES;

/// A batch that counts.
pub struct BatchView<'a> {
    /// Its number.
    pub number: u64,
    /// Segment that it lies in.
    pub segment: u64,
    /// Chunk of that segment.
    pub chunk: Chunk,
    /// The chunk of the segment after it.
    pub next: Chunk,
    /// First byte of it in its chunk.
    pub start: u32,
    /// Bytes of the chunk in use after it.
    pub end: u32,
    /// Its checksum.
    pub checksum: u64,
    /// Checkpoint that its internal records belong to.
    pub checkpoint: u64,
    /// Batches with lower numbers were on stable storage, as what was read so far tells.
    pub flushed: u64,
    /// Its records with their bytes; `None` for a record that is damaged.
    pub records: Vec<(DirEntry, RecordKind, Option<&'a [u8]>)>,
    /// Its operations.
    pub ops: &'a [u8],
    /// The place on the log device where it was found, if it was not found where it belongs: the number of the device in
    /// the group, counted from 0, and the byte.
    pub(crate) logged_at: Option<(usize, u64)>,
    /// False if records of it are damaged.
    pub(crate) is_whole: bool,
}

/// The source of a log.
#[derive(Clone, Copy)]
pub struct LogSource<'a> {
    /// Low bytes of the log's GUID.
    pub pool: u64,
    /// The pool's devices.
    pub devices: &'a Devices,
    /// The pool's chunks.
    pub chunks: &'a Chunks,
    /// Batches with lower numbers had been flushed, as the superblock tells.
    pub flushed: u64,
    /// That of the superblock's opening: only its batches tell more.
    pub salt: Salt,
    /// True to take damage for the end of the log, and lose what was acknowledged behind it.
    pub accept_loss: bool,
    /// The batches of the log device, if there is one.
    pub logged: Option<&'a LoggedBatches>,
}

/// Damage to a batch that had been flushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogDamage {
    /// Number of the device.
    pub device: u16,
    /// First byte on the device of the batch that does not hold.
    pub offset: u64,
    /// Number of the batch.
    pub batch: u64,
    /// All batches with lower numbers had been flushed.
    pub flushed: u64,
}

/// The end of the log, as replay found it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogEnd {
    /// Place where the next batch would go.
    pub position: Position,
    /// Bytes of the log that were read as batches that count.
    pub replayed_bytes: u64,
    /// Number of these batches.
    pub batches: u64,
    /// Number of these that have damaged records.
    pub damaged: u64,
    /// Damage that was taken for the end.
    pub damage: Option<LogDamage>,
    /// True if the next chunk, where the log goes on, begins with the header of a batch that would count if all of it
    /// were there (T8).
    pub torn: bool,
}

/// Visits every batch that counts from `start` on (T1), in order.
///
/// # Errors
/// [`Error::Corrupt`] if a batch that had been flushed does not hold, unless `source` accepts the loss; errors of
/// devices, and of `visit`.
pub fn replay(
    source: LogSource<'_>,
    start: Position,
    visit: &mut dyn FnMut(BatchView<'_>) -> Result<()>,
) -> Result<LogEnd> {
    let end =
        LogEnd { position: start, replayed_bytes: 0, batches: 0, damaged: 0, damage: None, torn: false };
    let mut buf = AlignedBuf::scratch(CHUNK_BYTES as usize);
    let flushed = source.logged.map_or(0, |logged| logged.flushed).max(source.flushed);
    let mut log = Replay { source, end, flushed, logged_at: None };
    loop {
        log.segment(&mut buf, visit)?;
        // The first batch of the next segment names that segment and the chunk that was promised for it (T3).
        let before = log.end.position;
        if source.chunks.exists(before.next) {
            let position = &mut log.end.position;
            *position =
                Position { segment: before.segment + 1, chunk: before.next, used: 0, slots: 0, ..before };
            if log.segment(&mut buf, visit)? > 0 {
                continue;
            }
            log.end.torn = log.is_torn(&mut buf)?;
            log.end.position = before;
        }
        log.judge_end()?;
        return Ok(log.end);
    }
}

struct Replay<'a> {
    source: LogSource<'a>,
    end: LogEnd,
    /// Batches with lower numbers are known to have been flushed.
    flushed: u64,
    /// The place of the batch of the log device that is visited.
    logged_at: Option<(usize, u64)>,
}

impl Replay<'_> {
    /// Visits the batches that count within the segment at the current position. Returns their number.
    fn segment(
        &mut self,
        buf: &mut AlignedBuf,
        visit: &mut dyn FnMut(BatchView<'_>) -> Result<()>,
    ) -> Result<u64> {
        let before = self.end.batches;
        let Position { chunk, used, .. } = self.end.position;
        if !self.source.chunks.exists(chunk) {
            return Err(Error::corrupt("log position", "it lies beyond the pool's devices"));
        }
        let (chunk_bytes, copies) = (CHUNK_BYTES as usize, self.source.devices.copies(chunk.device).max(1));
        let mut read_to = used as usize;
        while (self.end.position.used as usize) < chunk_bytes {
            let at = self.end.position.used as usize;
            // A small piece is read first, since most segments that are looked into ahead hold nothing. Then come ever
            // larger pieces, as long as what was read may be the beginning of a batch.
            while read_to < chunk_bytes && may_go_on(buf.get(at..read_to.max(at)).unwrap_or_default()) {
                let step = (read_to - used as usize).max(FIRST_READ_BYTES);
                let to = (read_to + step).min(chunk_bytes);
                self.read(chunk, 0, read_to, buf.get_mut(read_to..to).unwrap_or_default())?;
                read_to = to;
            }
            let is_only = copies == 1 && self.source.logged.is_none();
            if !self.batch(buf.get(at..read_to).unwrap_or_default(), is_only, visit)?
                && !self.batch_elsewhere((chunk, copies), at, visit)?
            {
                break;
            }
        }
        Ok(self.end.batches - before)
    }

    /// Looks for the batch at `at` of a chunk on the log device and on all devices of a mirror: one that is whole first,
    /// then one that is damaged. Visits it, and returns whether there is one.
    fn batch_elsewhere(
        &mut self,
        (chunk, copies): (Chunk, usize),
        at: usize,
        visit: &mut dyn FnMut(BatchView<'_>) -> Result<()>,
    ) -> Result<bool> {
        if copies == 1 && self.source.logged.is_none() {
            return Ok(false);
        }
        if self.logged_batch(true, visit)? {
            return Ok(true);
        }
        let mut buf = AlignedBuf::scratch(CHUNK_BYTES as usize - at);
        for copy in 1..copies {
            self.read(chunk, copy, at, &mut buf)?;
            if self.batch(&buf, false, visit)? {
                return Ok(true);
            }
        }
        // Where it belongs a crash may have torn it: on the log device it was durable.
        if self.logged_batch(false, visit)? {
            return Ok(true);
        }
        for copy in 0..copies {
            self.read(chunk, copy, at, &mut buf)?;
            if self.batch(&buf, true, visit)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Visits the next batch as the log device has it, whole or damaged. Returns whether it does.
    fn logged_batch(
        &mut self,
        is_whole: bool,
        visit: &mut dyn FnMut(BatchView<'_>) -> Result<()>,
    ) -> Result<bool> {
        let Some(logged) = self.source.logged else { return Ok(false) };
        let Position { batch, chain, used, .. } = self.end.position;
        logged.find(self.source.devices, ((batch, chain), is_whole), |place, bytes| {
            if used as usize + bytes.len() > CHUNK_BYTES as usize {
                return Ok(false);
            }
            self.logged_at = Some(place);
            let visited = self.batch(bytes, !is_whole, visit);
            self.logged_at = None;
            visited
        })
    }

    /// Visits the batch at the start of `bytes` if it counts. Returns whether it does. One with damaged records counts only
    /// if `damaged` is set.
    fn batch(
        &mut self,
        bytes: &[u8],
        damaged: bool,
        visit: &mut dyn FnMut(BatchView<'_>) -> Result<()>,
    ) -> Result<bool> {
        let position = self.end.position;
        let Some(batch) =
            Verified::framed(bytes).filter(|batch| continues(batch.header(), self.source.pool, &position))
        else {
            return Ok(false);
        };
        if !batch.is_whole() && !damaged {
            return Ok(false);
        }
        if !batch.is_whole() {
            // The batch is torn, unless it had been flushed.
            if position.batch >= self.flushed {
                self.look_ahead()?;
            }
            if position.batch >= self.flushed {
                return Ok(false);
            }
            self.end.damaged += 1;
        }
        let header = batch.header();
        let mut records = Vec::with_capacity(header.records.get() as usize);
        for (entry, kind) in batch.entries(position.used) {
            let kind = RecordKind::from_raw(kind).ok_or_else(|| {
                Error::corrupt(format!("batch {}", position.batch), "a record has an unknown kind")
            })?;
            let bytes = batch.record(&entry, position.used);
            let addr = Addr::new(position.segment, entry.slot);
            let sound = batch.is_whole() || record_checksum(addr, bytes) == entry.checksum;
            records.push((entry, kind, sound.then_some(bytes)));
        }
        let end = &mut self.end.position;
        end.next = batch.next();
        end.used += batch.padded_bytes();
        end.slots += header.records.get();
        end.batch += 1;
        end.chain = batch.checksum();
        self.end.replayed_bytes += u64::from(batch.padded_bytes());
        self.end.batches += 1;
        self.flushed = self.flushed.max(flushed_below(&batch));
        visit(BatchView {
            number: position.batch,
            segment: position.segment,
            chunk: position.chunk,
            checksum: batch.checksum(),
            next: batch.next(),
            start: position.used,
            end: position.used + batch.padded_bytes(),
            checkpoint: header.checkpoint.get(),
            flushed: self.flushed,
            records,
            ops: batch.ops(),
            logged_at: self.logged_at,
            is_whole: batch.is_whole(),
        })?;
        Ok(true)
    }

    /// Returns true if any device has, at the current position, the header of a batch with which the log would go on.
    fn is_torn(&self, buf: &mut AlignedBuf) -> Result<bool> {
        let Position { chunk, used, .. } = self.end.position;
        for copy in 0..self.source.devices.copies(chunk.device).max(1) {
            self.read(chunk, copy, used as usize, buf.get_mut(..BLOCK_BYTES).unwrap_or_default())?;
            let header = BatchHeader::read_from_prefix(buf);
            let goes_on = |header: &BatchHeader| {
                header.magic == MAGIC && continues(header, self.source.pool, &self.end.position)
            };
            if header.is_ok_and(|(header, _)| goes_on(&header)) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Judges the place where the log ends: whether a crash has torn it there, or it is damaged.
    fn judge_end(&mut self) -> Result<()> {
        let behind = self.look_ahead()?;
        let end = self.end.position;
        if end.batch >= self.flushed {
            return Ok(());
        }
        // If no batch lies behind the position in this segment, it is the next segment's first batch that does not
        // hold.
        let rolled = !behind && self.source.chunks.exists(end.next);
        let (chunk, used) = if rolled { (end.next, 0) } else { (end.chunk, end.used) };
        let offset = chunk.offset() + u64::from(used);
        let damage = LogDamage { device: chunk.device, offset, batch: end.batch, flushed: self.flushed };
        if self.source.accept_loss {
            self.end.damage = Some(damage);
            return Ok(());
        }
        let device = self.source.devices.path_of(chunk.device);
        Err(Error::corrupt(
            format!("log at byte {offset} of {}", device.display()),
            format!(
                "batch {} does not hold, and all up to {} had been flushed: changes that were acknowledged lie behind the \
                 damage. If the device had a bad moment, try again; to read what was before the damage: \
                 pagefold mount -o rescue POOL DIR; to give up what is behind it: pagefold import --accept-loss POOL",
                end.batch,
                self.flushed - 1
            ),
        ))
    }

    /// Learns from the batches behind the position what had been flushed. Returns whether any lies in the position's
    /// own segment.
    ///
    /// Any sound batch of the superblock's opening counts here, wherever it lies: what it tells of was flushed, and so was
    /// never lost. Others do not. What they can tell of this log the superblock tells; and they need not be of this log: a
    /// half of a split that was used, and attached again, has batches of its own where nothing was written since.
    fn look_ahead(&mut self) -> Result<bool> {
        let Position { mut segment, mut chunk, batch: number, mut next, used, .. } = self.end.position;
        let mut from = used as usize;
        let mut seen = HashSet::new();
        let mut buf = AlignedBuf::scratch(CHUNK_BYTES as usize);
        let mut first = None;
        while self.source.chunks.exists(chunk) && seen.insert(chunk) {
            let mut found = false;
            for copy in 0..self.source.devices.copies(chunk.device).max(1) {
                self.read(chunk, copy, from, buf.get_mut(from..).unwrap_or_default())?;
                for at in (from..CHUNK_BYTES as usize).step_by(BLOCK_BYTES) {
                    let Some(batch) = Verified::framed(buf.get(at..).unwrap_or_default()) else { continue };
                    let header = batch.header();
                    if header.pool.get() != self.source.pool {
                        continue;
                    }
                    if header.salt == self.source.salt {
                        self.flushed = self.flushed.max(flushed_below(&batch));
                    }
                    if header.segment.get() == segment && header.number.get() > number {
                        (found, next) = (true, batch.next());
                    }
                }
            }
            if first.is_some() && !found {
                break;
            }
            first.get_or_insert(found);
            (chunk, from) = (next, 0);
            segment += 1;
        }
        Ok(first == Some(true))
    }

    /// Fills `place` with what a chunk has from `from` on, on one device of its group. If losses are accepted, blocks
    /// that cannot be read become zeros.
    fn read(&self, chunk: Chunk, copy: usize, from: usize, place: &mut [u8]) -> Result<()> {
        let (devices, offset) = (self.source.devices, chunk.offset() + from as u64);
        if self.source.accept_loss {
            read_or_zeros(devices, (chunk.device, copy), offset, place);
            return Ok(());
        }
        let mut parts = (offset..).step_by(READ_BYTES).zip(place.chunks_mut(READ_BYTES));
        parts.try_for_each(|(at, place)| read_at(devices, (chunk.device, copy), at, place))
    }
}

/// Returns true if a header is that of the batch with which the log goes on at `position` (T1, T3, T4).
fn continues(header: &BatchHeader, pool: u64, position: &Position) -> bool {
    header.pool.get() == pool
        && header.number.get() == position.batch
        && header.chain.get() == position.chain
        && header.segment.get() == position.segment
        && header.first_slot.get() == position.slots
        && position.slots.checked_add(header.records.get()).is_some_and(|slots| slots <= 1 << SLOT_BITS)
        && (position.used == 0 || header.next() == position.next)
}

/// Returns the number below which all batches were flushed, as this one tells.
fn flushed_below(batch: &Verified<'_>) -> u64 {
    let header = batch.header();
    header.flushed.get().min(header.number.get())
}
