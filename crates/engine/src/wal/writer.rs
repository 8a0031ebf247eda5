//! Appends batches to the log.

use std::sync::Arc;

use zerocopy::IntoBytes;

use super::batch::{self, BatchHeader, ENTRY_BYTES, HEADER_BYTES, Salt, salt_of};
use super::flush::BatchWritten;
use super::{Flushes, LogDevice, Position};
use crate::device::{AlignedBuf, Devices, IoClass};
use crate::limits::{BLOCK_BYTES, CHUNK_BYTES, RECORD_BYTES_MAX, SEGMENT_SLOTS_MAX};
use crate::segment::{DirEntry, DirEntryState, DirRef, Directory, Segment, Segments, record_checksum};
use crate::space::Chunks;
use crate::{Addr, Error, Ptr, Result};

/// Target length of a batch: long enough to be efficient on any device, short enough not to delay a commit.
const BATCH_BYTES: usize = (CHUNK_BYTES / 4) as usize;

/// Kinds of record, as a batch names them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum RecordKind {
    /// A page of an object: live once an operation refers to it.
    Page = 0,
    /// A tree node written by a checkpoint.
    Node = 1,
    /// A page of the segment table written by a checkpoint.
    Table = 2,
    /// The root of a checkpoint: never live, since the checkpoint protects it by its place in the log.
    Root = 3,
    /// A model of pages: live once an operation puts it into a tree.
    Model = 4,
    /// Part of a page of the catalogue, written by a checkpoint.
    Catalogue = 5,
}

impl RecordKind {
    /// Returns the kind of a stored form; `None` if there is none.
    pub fn from_raw(raw: u8) -> Option<Self> {
        [Self::Page, Self::Node, Self::Table, Self::Root, Self::Model, Self::Catalogue]
            .into_iter()
            .find(|kind| *kind as u8 == raw)
    }
}

/// A record to be appended.
#[derive(Debug)]
pub struct Rec {
    /// Its kind.
    pub kind: RecordKind,
    /// Model that it uses, which is in the log already.
    pub model: Option<u32>,
    /// Its stored form.
    pub bytes: Vec<u8>,
}

/// The result of an append.
#[derive(Debug, Default)]
pub struct Appended {
    /// Pointers to the records, in the order given.
    pub ptrs: Vec<Ptr>,
    /// Bytes written to devices, padding included.
    pub written_bytes: u64,
    /// Bytes of these that are headers, directories, operations and padding.
    pub framing_bytes: u64,
    /// True if all of the log is on stable storage already, without a flush.
    pub durable: bool,
}

/// The writing end of the log.
pub struct LogWriter {
    pool: u64,
    position: Position,
    segments: Arc<Segments>,
    chunks: Arc<Chunks>,
    /// For commits, and for what a checkpoint writes.
    devices: Devices,
    of_checkpoints: Devices,
    flushes: Arc<Flushes>,
    log_device: Option<LogDevice>,
    salt: Salt,
    /// Batches below this number were flushed, and something that was written later tells so.
    attested_batch: u64,
    /// Number of batches in the open segment.
    batches: u32,
}

impl LogWriter {
    /// Creates a writer that appends at `position`. That segment is in `segments`, and all batches before are on stable
    /// storage.
    pub fn new(
        pool: u64,
        position: Position,
        segments: Arc<Segments>,
        chunks: Arc<Chunks>,
        devices: &Devices,
    ) -> Self {
        let flushes = Arc::new(Flushes::new(devices.clone()));
        flushes.wrote_batch(position.batch, BatchWritten::Settled);
        Self {
            pool,
            position,
            segments,
            chunks,
            devices: devices.of_class(IoClass::Log),
            of_checkpoints: devices.of_class(IoClass::AsyncWrite),
            flushes,
            log_device: None,
            salt: Salt::default(),
            attested_batch: 0,
            batches: 0,
        }
    }

    /// Marks all batches as those of the opening with this nonce, so that none of them equals one of another opening (T5).
    #[must_use]
    pub(crate) fn with_salt(mut self, nonce: u64) -> Self {
        self.salt = salt_of(nonce);
        self
    }

    /// Has batches go to a log device first, or to their places alone (K1). All batches so far must be settled when a log
    /// device goes.
    pub(crate) fn set_log_device(&mut self, log_device: Option<LogDevice>) {
        self.flushes.set_log_device(log_device.as_ref().map(LogDevice::group));
        self.log_device = log_device;
    }

    /// Returns true if there is a log device, whether it works or not.
    pub(crate) const fn has_log_device(&self) -> bool {
        self.log_device.is_some()
    }

    /// Returns the bytes of the log device, and of those that batches take which are not settled.
    pub(crate) fn log_device_room(&self) -> Option<(u64, u64)> {
        self.log_device().map(|log_device| log_device.room_and_used(self.flushes.settled_batch()))
    }

    /// Returns the log device, if there is one that works.
    fn log_device(&self) -> Option<&LogDevice> {
        self.log_device.as_ref().filter(|_| !self.flushes.has_lost_log_device())
    }

    /// Returns the state of flushing, by which the log is made durable without holding the writer.
    pub(crate) fn flushes(&self) -> Arc<Flushes> {
        Arc::clone(&self.flushes)
    }

    /// Returns the place where the next batch goes.
    pub(crate) fn position(&self) -> Position {
        self.position
    }

    /// Returns true if damage to the last batches could be taken for a torn end of the log, since nothing tells that
    /// they were flushed (T7).
    pub(crate) fn wants_attest(&self) -> bool {
        self.attested_batch < self.position.batch
    }

    /// Notes that a superblock tells that all batches below `number` were flushed.
    pub(crate) fn attested(&mut self, number: u64) {
        self.attested_batch = self.attested_batch.max(number);
    }

    /// Appends an empty batch, which tells that those before it were flushed. Returns `None` if they were not, or if that
    /// is told already.
    ///
    /// # Errors
    /// Those of [`LogWriter::append`].
    pub(crate) fn attest(&mut self) -> Result<Option<Appended>> {
        if !self.wants_attest() || self.flushes.flushed_batch() < self.position.batch {
            return Ok(None);
        }
        let appended = self.append(0, &[], 0, |_| Vec::new(), true)?;
        self.attested_batch = self.position.batch;
        Ok(Some(appended))
    }

    fn room(&self) -> usize {
        let directory =
            Directory::stored_bytes_max(self.position.slots as usize).next_multiple_of(BLOCK_BYTES);
        (CHUNK_BYTES as usize - self.position.used as usize).saturating_sub(2 * directory)
    }

    /// Appends `records` in order and then, in the last batch, the operations that `ops` makes of their addresses.
    /// `ops_bytes_max` bounds what `ops` returns. `alone` says that nobody else will wait for a flush of this, so the
    /// last write may make itself durable if that saves a flush. Otherwise `Flushes::flush` has to follow.
    ///
    /// After an error the log must not be used again (contract W6).
    pub fn append(
        &mut self,
        checkpoint: u64,
        records: &[Rec],
        ops_bytes_max: usize,
        ops: impl FnOnce(&[Ptr]) -> Vec<u8>,
        alone: bool,
    ) -> Result<Appended> {
        if let Some(long) =
            records.iter().map(|record| record.bytes.len()).find(|len| *len > RECORD_BYTES_MAX)
        {
            // Replay would refuse the batch, and end the log there.
            return Err(Error::Invalid(format!(
                "a record of {long} bytes is longer than {RECORD_BYTES_MAX}"
            )));
        }
        let mut appended = Appended { ptrs: Vec::with_capacity(records.len()), ..Appended::default() };
        let mut rest = records;
        loop {
            let (count, last) = self.fit(rest, ops_bytes_max);
            if count == 0 && !last {
                let directory_bytes = self.roll()?;
                appended.written_bytes += directory_bytes;
                appended.framing_bytes += directory_bytes;
                if self.fit(rest, ops_bytes_max) == (0, false) {
                    return Err(Error::Invalid("a change is larger than a segment of the log".into()));
                }
                continue;
            }
            let (now, later) = rest.split_at(count);
            for (at, record) in (self.position.slots..).zip(now) {
                let addr = Addr::new(self.position.segment, at);
                appended.ptrs.push(Ptr { addr, len_bytes: record.bytes.len() as u32 });
            }
            if last {
                let ops = ops(&appended.ptrs);
                self.write_batch(checkpoint, now, &ops, alone, &mut appended)?;
                return Ok(appended);
            }
            self.write_batch(checkpoint, now, &[], false, &mut appended)?;
            rest = later;
        }
    }

    /// Returns the number of `records` that go into the next batch, and whether it is the last (with all of them and
    /// the operations).
    fn fit(&self, records: &[Rec], ops_bytes_max: usize) -> (usize, bool) {
        // Padding, the growth of the directory and its copy, and an empty batch are subtracted from the room
        // beforehand.
        let room = self.room().saturating_sub(HEADER_BYTES + 4 * BLOCK_BYTES);
        let mut bytes = 0;
        let mut count = 0;
        for record in records {
            if self.position.slots as usize + count >= SEGMENT_SLOTS_MAX as usize {
                break;
            }
            let more = record.bytes.len() + ENTRY_BYTES + 2 * Directory::stored_bytes_max(1);
            if bytes + more > room || (bytes > 0 && bytes + more > BATCH_BYTES) {
                break;
            }
            bytes += more;
            count += 1;
        }
        let last = count == records.len() && bytes + ops_bytes_max <= room;
        // Operations that do not fit beside the last records get a batch of their own.
        (count, last)
    }

    fn write_batch(
        &mut self,
        checkpoint: u64,
        records: &[Rec],
        ops: &[u8],
        alone: bool,
        appended: &mut Appended,
    ) -> Result<()> {
        let position = self.position;
        let fixed = HEADER_BYTES + records.len() * ENTRY_BYTES + ops.len();
        let len = fixed + records.iter().map(|record| record.bytes.len()).sum::<usize>();
        let mut buf = AlignedBuf::zeroed(len);
        let header = BatchHeader {
            magic: batch::MAGIC,
            first_slot: position.slots.into(),
            checksum: 0.into(),
            frame: 0.into(),
            chain: position.chain.into(),
            number: position.batch.into(),
            pool: self.pool.into(),
            segment: position.segment.into(),
            checkpoint: checkpoint.into(),
            flushed: self.flushes.flushed_batch().min(position.batch).into(),
            records: (records.len() as u32).into(),
            ops_bytes: (ops.len() as u32).into(),
            len_bytes: (len as u32).into(),
            next_index: position.next.index.into(),
            next_device: position.next.device.into(),
            salt: self.salt,
        };
        buf[..HEADER_BYTES].copy_from_slice(header.as_bytes());
        buf[fixed - ops.len()..fixed].copy_from_slice(ops);
        let mut entries = Vec::with_capacity(records.len());
        let (mut at, mut slot) = (fixed, position.slots);
        for record in records {
            let checksum = record_checksum(Addr::new(position.segment, slot), &record.bytes);
            let entry = batch::entry_bytes(record.bytes.len() as u32, record.kind as u8, checksum);
            let place = HEADER_BYTES + entries.len() * ENTRY_BYTES;
            buf[place..place + ENTRY_BYTES].copy_from_slice(&entry);
            buf[at..at + record.bytes.len()].copy_from_slice(&record.bytes);
            let start = position.used + at as u32;
            let entry = DirEntry { slot, start, len_bytes: record.bytes.len() as u32, checksum };
            entries.push(DirEntryState { entry, live: record.kind != RecordKind::Root, model: record.model });
            at += record.bytes.len();
            slot += 1;
        }
        let chain = batch::set_checksums(&mut buf[..len]);
        let device = position.chunk.device;
        let offset = position.chunk.offset() + u64::from(position.used);
        let padded_bytes = buf.len();
        let written = if self.takes_log_device(padded_bytes) {
            let logged = self.write_to_log_device(&buf, alone);
            self.devices.write_behind(device, offset, buf)?;
            // Noted in this order: a flush of the devices that covers the second covers the first.
            self.flushes.wrote_for_checkpoint(device);
            if logged == BatchWritten::NotDurable {
                self.flushes.wrote_to_log_device();
            }
            logged
        } else {
            let devices = if checkpoint > 0 { &self.of_checkpoints } else { &self.devices };
            // A write that is durable by itself saves the flush if nothing else is waiting for one.
            let durable = alone && devices.writes_durably(device)? && self.flushes.nothing_waits();
            devices.write(device, offset, &buf, durable)?;
            if !durable {
                self.flushes.wrote(device);
            }
            if durable { BatchWritten::Settled } else { BatchWritten::NotDurable }
        };
        self.flushes.wrote_batch(position.batch + 1, written);
        appended.durable = written != BatchWritten::NotDurable;
        self.segments.append(position.segment, &entries)?;
        self.batches += 1;
        self.position.used += padded_bytes as u32;
        self.position.slots = slot;
        self.position.batch += 1;
        self.position.chain = chain;
        appended.written_bytes += padded_bytes as u64;
        appended.framing_bytes += (padded_bytes - (len - fixed)) as u64;
        Ok(())
    }

    /// Returns true if the next batch, of `len_bytes` with its padding, goes to the log device, and with that is as durable as
    /// all before it.
    fn takes_log_device(&self, len_bytes: usize) -> bool {
        self.log_device().is_some_and(|log_device| {
            self.flushes.log_device_suffices() && log_device.has_room(len_bytes, self.flushes.settled_batch())
        })
    }

    /// Writes the next batch to the log device. Returns how far it is. If the device fails, the batch is durable with a flush
    /// of the others, as all that come after it.
    fn write_to_log_device(&mut self, buf: &AlignedBuf, alone: bool) -> BatchWritten {
        let Some(log_device) = self.log_device.as_mut() else { return BatchWritten::NotDurable };
        let durable = alone && self.flushes.log_device_is_flushed() && log_device.writes_durably();
        let settled = self.flushes.settled_batch();
        match log_device.write(self.position.batch, buf, settled, durable) {
            Ok(()) if durable => return BatchWritten::Durable,
            Ok(()) => {}
            Err(error) => self.flushes.give_up_log_device(&error),
        }
        BatchWritten::NotDurable
    }

    /// Closes the open segment, and goes on in the next chunk. Returns the number of bytes written for that.
    pub(crate) fn roll(&mut self) -> Result<u64> {
        let next = self.chunks.allocate()?;
        let mut closing = Appended::default();
        // Two batches name the next chunk, so that damage to one does not hide what is behind it (T7).
        while self.batches < 2 {
            self.write_batch(0, &[], &[], false, &mut closing)?;
        }
        self.batches = 0;
        let written_bytes = closing.written_bytes + self.close_segment()?;
        let position = &mut self.position;
        position.segment += 1;
        position.chunk = std::mem::replace(&mut position.next, next);
        position.used = 0;
        position.slots = 0;
        self.segments.insert(Segment::fresh(position.segment, position.chunk))?;
        Ok(written_bytes)
    }

    /// Writes the directory of the open segment behind its last batch, and a second time at the end of the chunk.
    /// Returns the number of bytes written.
    fn close_segment(&mut self) -> Result<u64> {
        let position = self.position;
        let directory = self.segments.open_directory(position.segment).unwrap_or_default();
        let dir =
            write_directory(&self.devices, position.chunk, position.used, position.segment, &directory)?;
        // Replay makes directories of its own, so no commit waits for this one if the log device has the batches.
        match self.log_device().is_some() && self.flushes.log_device_suffices() {
            true => self.flushes.wrote_for_checkpoint(position.chunk.device),
            false => self.flushes.wrote(position.chunk.device),
        }
        self.segments.close(position.segment, dir)?;
        Ok(2 * u64::from(dir.len_bytes).next_multiple_of(BLOCK_BYTES as u64))
    }
}

/// Writes a directory into a chunk at `start` (a block boundary) and once more at the chunk's end. Returns the
/// reference to it.
pub(crate) fn write_directory(
    devices: &Devices,
    chunk: crate::space::Chunk,
    start: u32,
    segment: u64,
    directory: &Directory,
) -> Result<DirRef> {
    let stored = directory.encode(segment);
    let mut buf = AlignedBuf::zeroed(stored.bytes.len());
    buf[..stored.bytes.len()].copy_from_slice(&stored.bytes);
    let second =
        (CHUNK_BYTES as usize).saturating_sub(stored.bytes.len().next_multiple_of(BLOCK_BYTES)) as u32;
    devices.write(chunk.device, chunk.offset() + u64::from(start), &buf, false)?;
    devices.write(chunk.device, chunk.offset() + u64::from(second), &buf, false)?;
    Ok(stored.at(start, second))
}
