//! Reading the log after a crash.

use super::Position;
use super::batch::Verified;
use super::writer::RecordKind;
use crate::device::{AlignedBuf, Device};
use crate::limits::{BLOCK_BYTES, CHUNK_BYTES};
use crate::segment::{Devices, DirEntry};
use crate::space::{Chunk, Chunks};
use crate::types::SLOT_BITS;
use crate::{Error, Result};

/// A batch that counts.
pub struct BatchView<'a> {
    /// Its number.
    pub txg: u64,
    /// The segment that it lies in.
    pub segment: u64,
    /// That segment's chunk.
    pub chunk: Chunk,
    /// The chunk of the segment after it.
    pub next: Chunk,
    /// Bytes of the chunk in use after it.
    pub end: u32,
    /// The checkpoint that its internal records belong to.
    pub checkpoint: u64,
    /// Its records, and their bytes.
    pub records: Vec<(DirEntry, RecordKind, &'a [u8])>,
    /// Its operations.
    pub ops: &'a [u8],
}

/// How the log ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogEnd {
    /// Where the next batch would go.
    pub position: Position,
    /// Bytes of the log that were read as batches that count.
    pub replayed_bytes: u64,
    /// Number of these batches.
    pub batches: u64,
}

/// Visits every batch that counts from `start` on (T1), in order.
pub fn replay(
    pool: u64,
    devices: &Devices,
    chunks: &Chunks,
    start: Position,
    visit: &mut dyn FnMut(BatchView<'_>) -> Result<()>,
) -> Result<LogEnd> {
    let mut end = LogEnd { position: start, replayed_bytes: 0, batches: 0 };
    let mut buf = AlignedBuf::zeroed(CHUNK_BYTES as usize);
    loop {
        replay_segment(pool, devices, chunks, &mut buf, &mut end, visit)?;
        // The first batch of the next segment names that segment and the chunk that was promised for it (T3).
        let mut ahead = end;
        let position = &mut ahead.position;
        position.segment += 1;
        position.chunk = position.next;
        position.used = 0;
        position.slots = 0;
        if !chunks.exists(position.chunk)
            || replay_segment(pool, devices, chunks, &mut buf, &mut ahead, visit)? == 0
        {
            return Ok(end);
        }
        end = ahead;
    }
}

/// Visits the batches that count within one segment. Returns how many there were.
fn replay_segment(
    pool: u64,
    devices: &Devices,
    chunks: &Chunks,
    buf: &mut AlignedBuf,
    end: &mut LogEnd,
    visit: &mut dyn FnMut(BatchView<'_>) -> Result<()>,
) -> Result<u64> {
    let before = end.batches;
    let chunk = end.position.chunk;
    if !chunks.exists(chunk) {
        return Err(Error::corrupt("log position", "it lies beyond the pool's devices"));
    }
    let device: &dyn Device = devices
        .get(usize::from(chunk.device))
        .map(AsRef::as_ref)
        .ok_or_else(|| Error::corrupt("log position", "the pool has no such device"))?;
    let mut read_to = 0_usize;
    let base = end.position.used as usize;
    loop {
        let position = end.position;
        let at = position.used as usize;
        // A small piece first: most segments that are looked into ahead hold nothing.
        let wanted = if end.batches == before { at + 16 * BLOCK_BYTES } else { CHUNK_BYTES as usize };
        let wanted = wanted.min(CHUNK_BYTES as usize);
        if read_to < wanted {
            read_into(device, chunk, buf, base, wanted - base)?;
            read_to = wanted;
        }
        let mut found = Verified::new(buf.get(at..read_to).unwrap_or_default());
        if found.is_none() && read_to < CHUNK_BYTES as usize {
            read_into(device, chunk, buf, base, CHUNK_BYTES as usize - base)?;
            read_to = CHUNK_BYTES as usize;
            found = Verified::new(buf.get(at..read_to).unwrap_or_default());
        }
        let Some(batch) = found else { break };
        let header = batch.header();
        let counts = header.pool.get() == pool
            && header.txg.get() == position.txg
            && header.chain.get() == position.chain
            && header.segment.get() == position.segment
            && header.first_slot.get() == position.slots
            && position.slots.checked_add(header.records.get()).is_some_and(|slots| slots <= 1 << SLOT_BITS)
            && (at == 0 || batch.next() == position.next);
        if !counts {
            break;
        }
        let mut records = Vec::with_capacity(header.records.get() as usize);
        for (entry, kind) in batch.entries(position.used) {
            let kind = RecordKind::from_raw(kind).ok_or_else(|| {
                Error::corrupt(format!("batch {}", position.txg), "a record has an unknown kind")
            })?;
            records.push((entry, kind, batch.record(&entry, position.used)));
        }
        end.position.next = batch.next();
        visit(BatchView {
            txg: position.txg,
            segment: position.segment,
            chunk,
            next: batch.next(),
            end: position.used + batch.padded_bytes(),
            checkpoint: header.checkpoint.get(),
            records,
            ops: batch.ops(),
        })?;
        end.position.used += batch.padded_bytes();
        end.position.slots += header.records.get();
        end.position.txg += 1;
        end.position.chain = header.checksum.get();
        end.replayed_bytes += u64::from(batch.padded_bytes());
        end.batches += 1;
        if end.position.used as usize >= CHUNK_BYTES as usize {
            break;
        }
    }
    Ok(end.batches - before)
}

/// Reads `len` bytes of the chunk from `base` on into the same place of `buf`.
fn read_into(device: &dyn Device, chunk: Chunk, buf: &mut AlignedBuf, base: usize, len: usize) -> Result<()> {
    if len == 0 {
        return Ok(());
    }
    let mut part = AlignedBuf::zeroed(len);
    device.read(chunk.offset() + base as u64, &mut part)?;
    buf[base..base + len].copy_from_slice(&part[..len]);
    Ok(())
}
