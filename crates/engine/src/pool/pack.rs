//! Packs records into chunks, one segment after the other: survivors of cleaned segments, and second copies.

use std::cell::RefCell;
use std::collections::BTreeSet;

use super::Pool;
use crate::device::{AlignedBuf, Devices, IoClass};
use crate::limits::{BLOCK_BYTES, CHUNK_BYTES};
use crate::segment::{DirEntry, Directory, Located, Part, record_checksum};
use crate::space::{Chunk, Extent};
use crate::{Addr, Error, Result};

/// A record to be packed: slot, checksum, bytes.
pub(super) type Survivor = (u32, u32, Vec<u8>);

/// A partly filled chunk, in which packing goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Begun {
    /// The chunk. It has one user beside the parts in it, so that it stays.
    pub(super) chunk: Chunk,
    /// Bytes in use at its beginning: whole blocks.
    used: usize,
    /// Offset at which the bytes in use at its end begin, which are second copies of directories.
    tail: usize,
}

/// A chunk that is being filled.
struct Output {
    chunk: Chunk,
    /// Bytes from `base` on, which are not written yet.
    buf: AlignedBuf,
    base: usize,
    /// End of the bytes in use, from the start of the chunk.
    used: usize,
    /// Offset at which second copies of directories begin; they reach to `end`.
    tail: usize,
    /// Offset from which on all was written before.
    end: usize,
}

impl Begun {
    /// Returns true if a record and its directory may fit.
    fn has_room(&self) -> bool {
        self.used + 2 * BLOCK_BYTES <= self.tail
    }

    /// Returns the number of bytes that are not in use.
    pub(super) fn left_bytes(&self) -> u64 {
        self.tail.saturating_sub(self.used) as u64
    }
}

impl Output {
    fn begin(Begun { chunk, used, tail }: Begun) -> Self {
        Self { chunk, buf: AlignedBuf::zeroed(tail - used), base: used, used, tail, end: tail }
    }

    /// Returns the `len` bytes from offset `start` of the chunk on.
    fn at(&mut self, start: usize, len: usize) -> Result<&mut [u8]> {
        let start = start.checked_sub(self.base);
        let place = start.and_then(|start| self.buf.get_mut(start..start + len));
        place.ok_or_else(|| Error::Invalid("what is packed does not fit its chunk".into()))
    }

    fn put(&mut self, start: usize, bytes: &[u8]) -> Result<()> {
        self.at(start, bytes.len())?.copy_from_slice(bytes);
        Ok(())
    }
}

/// Packs records into chunks.
pub(super) struct Packer<'a> {
    pool: &'a Pool,
    devices: Devices,
    output: Option<Output>,
    /// True if directories are stored twice.
    twice: bool,
    /// True if chunks come from those that the cleaner keeps, which has them back by the next checkpoint
    /// ([`crate::space::Chunks::lend`]).
    lent: bool,
    /// The chunks that it may begin, which were set aside for it; `None` if any will do.
    aside: Option<&'a RefCell<Vec<Chunk>>>,
    /// Chunks that were begun. Each has a user of its own until the caller has given their parts to segments.
    pub(super) chunks: Vec<Chunk>,
    /// Number of these chunks that had been begun before.
    before: usize,
    /// Chunk of these in which the next packer goes on.
    begun: Option<Chunk>,
    pub(super) written_bytes: u64,
}

impl<'a> Packer<'a> {
    /// Makes a packer for survivors of segments, whose directories are stored twice; it goes on in the chunk `begun`.
    pub(super) fn new(pool: &'a Pool, begun: Option<Begun>) -> Self {
        Self::begin(pool, begun, true, IoClass::Cleaning)
    }

    /// Makes a packer for second copies, whose directories are stored once; it goes on in the chunk `begun`.
    pub(super) fn of_copies(pool: &'a Pool, begun: Option<Begun>) -> Self {
        Self::begin(pool, begun, false, IoClass::AsyncWrite)
    }

    fn begin(pool: &'a Pool, begun: Option<Begun>, twice: bool, class: IoClass) -> Self {
        let chunks: Vec<Chunk> = begun.iter().map(|begun| begun.chunk).collect();
        Self {
            before: chunks.len(),
            pool,
            devices: pool.shared.devices.of_class(class),
            output: begun.map(Output::begin),
            twice,
            lent: false,
            aside: None,
            chunks,
            begun: None,
            written_bytes: 0,
        }
    }

    /// Makes the packer begin chunks for a pass of the cleaner.
    pub(super) fn for_pass(mut self) -> Self {
        self.lent = true;
        self.of_class(IoClass::Cleaning)
    }

    /// Makes the packer write by requests of a class: that of cleaning, or of checkpoints for second copies, if nothing
    /// is said.
    pub(super) fn of_class(mut self, class: IoClass) -> Self {
        self.devices = self.devices.of_class(class);
        self
    }

    /// Makes the packer begin these chunks alone, the last ones first. It takes those that it begins.
    pub(super) fn into_chunks(mut self, aside: &'a RefCell<Vec<Chunk>>) -> Self {
        self.aside = Some(aside);
        self
    }

    /// Returns the number of chunks that it has begun.
    pub(super) fn begun_now(&self) -> usize {
        self.chunks.len() - self.before
    }

    fn open(&mut self) -> Result<Output> {
        let chunks = &self.pool.chunks;
        let none_left = || Error::NoSpace("no chunk is left of those that were set aside".into());
        let chunk = match self.aside {
            Some(aside) => aside.borrow_mut().pop().ok_or_else(none_left)?,
            None if self.lent => chunks.lend()?,
            None => chunks.allocate()?,
        };
        self.chunks.push(chunk);
        Ok(Output::begin(Begun { chunk, used: 0, tail: CHUNK_BYTES as usize }))
    }

    /// Writes the rest of the chunk that is being filled, and ends it.
    pub(super) fn close(&mut self) -> Result<()> {
        self.pause().map(drop)
    }

    /// Writes the rest of the chunk that is being filled. The next record begins at the next block.
    fn pause(&mut self) -> Result<Option<Begun>> {
        let Some(mut output) = self.output.take() else { return Ok(None) };
        let end = output.used.next_multiple_of(BLOCK_BYTES);
        let (devices, device) = (&self.devices, output.chunk.device);
        let tail = output.tail / BLOCK_BYTES * BLOCK_BYTES;
        if output.tail < output.end {
            let offset = output.chunk.offset() + tail as u64;
            let bytes = output.at(tail, output.end - tail)?;
            devices.write(device, offset, &AlignedBuf::from_bytes(bytes), false)?;
            self.written_bytes += (output.end - tail) as u64;
        }
        let len = end - output.base;
        if len > 0 {
            output.buf.truncate(len);
            devices.write(device, output.chunk.offset() + output.base as u64, &output.buf, false)?;
            self.written_bytes += len as u64;
        }
        Ok(Some(Begun { chunk: output.chunk, used: end, tail }))
    }

    /// Packs records of a segment, ascending by slot, and returns their parts. The first part begins at slot `from`.
    pub(super) fn pack(&mut self, id: u64, from: u32, survivors: &[Survivor]) -> Result<Vec<Part>> {
        let mut parts = Vec::new();
        let mut rest = survivors;
        while let Some((first, _, _)) = rest.first() {
            let mut output = match self.output.take() {
                Some(output) => output,
                None => self.open()?,
            };
            let start = output.used;
            let taken = self.fitting((start, output.tail), rest);
            if taken == 0 {
                self.output = Some(output);
                self.close()?;
                continue;
            }
            let (now, later) = rest.split_at(taken);
            let first_slot = if parts.is_empty() { from } else { *first };
            parts.push(place_part(&mut output, self.twice, (id, first_slot), start, now)?);
            self.output = Some(output);
            if !later.is_empty() {
                self.close()?;
            }
            rest = later;
        }
        Ok(parts)
    }

    /// Returns the number of these records that fit as a part between two offsets of a chunk.
    fn fitting(&self, (start, tail): (usize, usize), records: &[Survivor]) -> usize {
        // Parts lie without gaps: one of a single record takes no more than the record and its directory. Second copies of
        // directories do not share a block with them.
        let (mut end, mut taken) = (start, 0);
        for (_, _, bytes) in records {
            let directory = Directory::stored_bytes_max(taken + 1);
            let twice = if self.twice { directory + BLOCK_BYTES } else { 0 };
            if end + bytes.len() + directory + twice > tail {
                break;
            }
            end += bytes.len();
            taken += 1;
        }
        taken
    }

    /// Returns the number of chunks that [`Packer::pack`] begins for these records.
    pub(super) fn chunks_for(&self, survivors: &[Survivor]) -> u64 {
        let mut rest = survivors;
        if let Some(output) = &self.output {
            rest = rest.get(self.fitting((output.used, output.tail), rest)..).unwrap_or_default();
        }
        let mut chunks = 0;
        while !rest.is_empty() {
            chunks += 1;
            let taken = self.fitting((0, CHUNK_BYTES as usize), rest).max(1);
            rest = rest.get(taken..).unwrap_or_default();
        }
        chunks
    }

    /// Packs the second copy of a record that no segment accounts for, and returns its place.
    pub(super) fn place(&mut self, addr: Addr, bytes: &[u8]) -> Result<Located> {
        let fits = |output: &Output| output.used + bytes.len() <= output.tail;
        if !self.output.as_ref().is_some_and(fits) {
            self.close()?;
        }
        let mut output = match self.output.take() {
            Some(output) => output,
            None => self.open()?,
        };
        let start = output.used;
        output.put(start, bytes)?;
        output.used += bytes.len();
        let located = Located {
            device: output.chunk.device,
            offset: output.chunk.offset() + start as u64,
            len_bytes: bytes.len() as u32,
            checksum: record_checksum(addr.copy(), bytes),
        };
        self.output = Some(output);
        Ok(located)
    }

    /// Writes all that was packed; others may read it from now on.
    pub(super) fn write(&mut self) -> Result<()> {
        let begun = self.pause()?;
        self.output = begun.filter(Begun::has_room).map(Output::begin);
        Ok(())
    }

    /// Writes all that was packed, and returns the chunk in which packing can go on.
    pub(super) fn suspend(&mut self) -> Result<Option<Begun>> {
        let begun = self.pause()?.filter(Begun::has_room);
        self.begun = begun.map(|begun| begun.chunk);
        Ok(begun)
    }

    /// Releases the chunks that were filled: the segments that have parts there keep them.
    pub(super) fn release(&self) {
        for chunk in self.chunks.iter().filter(|chunk| self.begun != Some(**chunk)) {
            self.pool.chunks.release(*chunk);
        }
    }

    /// Releases all chunks but the one that was begun `before`: no segment has what was packed.
    pub(super) fn give_up(&self, before: Option<Begun>) {
        for chunk in self.chunks.iter().filter(|chunk| before.is_none_or(|begun| begun.chunk != **chunk)) {
            self.pool.chunks.release(*chunk);
        }
    }

    /// Leaves the flush of what was packed to whoever flushes next, at the latest the checkpoint that makes it count:
    /// until then all that a crash leaves refers to the places before (G4).
    pub(super) fn flush_later(&self) {
        let devices: BTreeSet<u16> = self.chunks.iter().map(|chunk| chunk.device).collect();
        devices.into_iter().for_each(|device| self.pool.flushes.wrote_for_checkpoint(device));
    }
}

fn place_part(
    output: &mut Output,
    twice: bool,
    (id, first_slot): (u64, u32),
    start: usize,
    records: &[Survivor],
) -> Result<Part> {
    let mut directory = Directory::default();
    let mut at = start;
    for (slot, checksum, bytes) in records {
        output.put(at, bytes)?;
        directory.push(DirEntry {
            slot: *slot,
            start: (at - start) as u32,
            len_bytes: bytes.len() as u32,
            checksum: *checksum,
        });
        at += bytes.len();
    }
    let stored = directory.encode(id);
    output.put(at, &stored.bytes)?;
    output.used = at + stored.bytes.len();
    let mut second = 0;
    if twice {
        output.tail -= stored.bytes.len();
        second = output.tail as u32;
        output.put(output.tail, &stored.bytes)?;
    }
    let extent = Extent { chunk: output.chunk, start: start as u32, len_bytes: (output.used - start) as u32 };
    Ok(Part { first_slot, extent, directory: Some(stored.at((at - start) as u32, second)) })
}
