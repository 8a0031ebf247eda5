//! The write-ahead log: batches, in the order in which they were committed.
//!
//! Batches are appended to the open segment. A batch carries records, and the operations that refer to them; it is one
//! sequential write. **A batch counts if and only if its checksum holds, it carries the chain value of the batch before
//! it, and that one counts** (invariant T1). So a crash keeps a prefix, whatever order the device wrote in, and
//! flushing the last batch makes all of them durable.
//!
//! - T2: a batch's operations refer only to records of batches up to itself.
//! - T3: all batches of a segment name the same next chunk; replay looks there when a segment has no further
//!   batch. That chunk is allocated before the first batch names it.
//! - T4: the numbers of batches rise by one.
//! - T5: batches of different openings differ, by their salt. A crash may lose a batch and keep its successors. If the
//!   lost batch were written again, byte for byte, the successors would continue it and count, though they never
//!   happened. T8 is the other half of this.
//! - T6: flushes end, and what they cover counts, in the order in which they began; see `Flushes`.
//! - T7: a batch tells up to which batch all were flushed when it was written, and so does a superblock. If the log
//!   ends before that batch, it is damaged, not torn; see [`replay`]. Damage to any one batch does not hide this: a
//!   segment that the log has left has at least two batches that name the next chunk, and an opening has the superblock
//!   tell what it found. So only batches of the superblock's opening have anything to add, and no others are believed: a
//!   device may have some that a copy of it has written, with numbers that this log has yet to reach.
//! - T8: where the log goes on after an opening, nothing is left of a torn batch. The batch that takes its place may be
//!   the same but for the header, and a crash may cut it in its turn. With the old header left, it would be the old
//!   batch, which the successors of that batch continue.
//!
//! ```text
//! writer      appends batches
//! flush       makes them durable beside the writer
//! replay      reads them after a crash, and judges the end of the log
//! batch       their stored form, and whether one counts
//! log_device  a device that gets them first
//! read        stretches of devices, for replay
//! ```

pub mod batch;
mod flush;
mod log_device;
mod read;
mod replay;
mod writer;

pub(crate) use batch::salt_of;
pub(crate) use flush::Flushes;
pub(crate) use log_device::LogDevice;
pub use log_device::LoggedBatches;
pub(crate) use read::read_or_zeros;
pub(crate) use replay::{BatchView, LogEnd};
pub use replay::{LogDamage, LogSource, replay};
pub(crate) use writer::write_directory;
pub use writer::{Appended, LogWriter, Rec, RecordKind};

use crate::Result;
use crate::space::Chunk;
use crate::wire::{Reader, put_varint};

/// Largest number of a segment at which a log may begin: half of all.
const SEGMENT_MAX: u64 = 1 << (63 - crate::types::SLOT_BITS);
/// Largest number of a batch at which a log may begin.
const BATCH_NUMBER_MAX: u64 = 1 << 62;

/// A place in the log, where the next batch goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// The open segment.
    pub segment: u64,
    /// Its chunk.
    pub chunk: Chunk,
    /// Bytes of the chunk in use.
    pub used: u32,
    /// Slots in use.
    pub slots: u32,
    /// The chunk of the segment after it.
    pub next: Chunk,
    /// Number of the next batch.
    pub batch: u64,
    /// Chain value that the next batch must carry.
    pub chain: u64,
}

impl Position {
    /// Appends the stored form.
    pub fn encode(&self, out: &mut Vec<u8>) {
        for value in [
            self.segment,
            self.chunk.device.into(),
            self.chunk.index.into(),
            self.used.into(),
            self.slots.into(),
            self.next.device.into(),
            self.next.index.into(),
            self.batch,
        ] {
            put_varint(out, value);
        }
        out.extend_from_slice(&self.chain.to_le_bytes());
    }

    /// Reads the stored form.
    pub fn decode(reader: &mut Reader<'_>) -> Result<Self> {
        let segment = reader.varint()?;
        let chunk = decode_chunk(reader)?;
        let (used, slots) = (reader.varint_u32()?, reader.varint_u32()?);
        let next = decode_chunk(reader)?;
        let (batch, chain) = (reader.varint()?, reader.u64()?);
        // These numbers have to be far from the end of their ranges, so that replay can count on from them.
        if segment == 0
            || segment > SEGMENT_MAX
            || batch > BATCH_NUMBER_MAX
            || u64::from(used) > crate::limits::CHUNK_BYTES
            || slots > 1 << crate::types::SLOT_BITS
        {
            return Err(reader.bad("the log position is out of range"));
        }
        Ok(Self { segment, chunk, used, slots, next, batch, chain })
    }
}

/// Reads a chunk: device and index, two varints.
pub(crate) fn decode_chunk(reader: &mut Reader<'_>) -> Result<Chunk> {
    let device =
        u16::try_from(reader.varint()?).map_err(|_| reader.bad("a device number is out of range"))?;
    Ok(Chunk { device, index: reader.varint_u32()? })
}
