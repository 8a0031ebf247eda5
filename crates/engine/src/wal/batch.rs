//! Encodes batches, and verifies them.
//!
//! A batch starts at a block boundary of its segment and is padded with zeros to the next one:
//!
//! | offset | field | size |
//! |---|---|---|
//! | 0 | magic `PFba` | 4 |
//! | 4 | slot of the first record | 4 |
//! | 8 | checksum: xxh3-64 of all bytes of the batch but the two checksums, padding excluded | 8 |
//! | 16 | frame: xxh3-64 of header, directory and operations, but itself | 8 |
//! | 24 | chain: checksum of the batch before | 8 |
//! | 32 | number of the batch | 8 |
//! | 40 | pool: low 8 bytes of the log's GUID | 8 |
//! | 48 | segment id | 8 |
//! | 56 | checkpoint that internal records belong to | 8 |
//! | 64 | flushed: all batches with lower numbers were on stable storage when this one was written | 8 |
//! | 72 | number of records | 4 |
//! | 76 | length of the operations | 4 |
//! | 80 | length of the batch without padding | 4 |
//! | 84 | next chunk: index | 4 |
//! | 88 | next chunk: device | 2 |
//! | 90 | salt: number that the opening of the pool that wrote it was given (T5) | 6 |
//! | 96 | directory: per record its length (24 bits) and kind (8 bits), and its checksum | 8 each |
//! | | operations | |
//! | | records, one after the other | |
//!
//! The frame has a checksum of its own, so that damage to a record costs that record alone, and not the log from there
//! on.

use std::ops::Range;

use xxhash_rust::xxh3::Xxh3;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::limits::{BLOCK_BYTES, CHUNK_BYTES, RECORD_BYTES_MAX};
use crate::segment::DirEntry;
use crate::space::Chunk;

/// First bytes of a batch.
pub const MAGIC: [u8; 4] = *b"PFba";

/// The mark of all batches of one opening of the pool (T5).
pub type Salt = [u8; 6];

/// Returns the mark of the batches of the opening with this nonce: its low 48 bits.
pub(crate) const fn salt_of(nonce: u64) -> Salt {
    let [a, b, c, d, e, f, ..] = nonce.to_le_bytes();
    [a, b, c, d, e, f]
}

/// The header of a batch.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct BatchHeader {
    /// [`MAGIC`].
    pub magic: [u8; 4],
    /// Slot of the first record.
    pub first_slot: U32,
    /// As the module's table says.
    pub checksum: U64,
    /// As the module's table says.
    pub frame: U64,
    /// Checksum of the batch before.
    pub chain: U64,
    /// Number of the batch.
    pub number: U64,
    /// Low bytes of the log's GUID.
    pub pool: U64,
    /// Segment that the batch lies in.
    pub segment: U64,
    /// Checkpoint that internal records belong to.
    pub checkpoint: U64,
    /// Batches with lower numbers were durable when this one was written.
    pub flushed: U64,
    /// Number of records.
    pub records: U32,
    /// Length of the operations in bytes.
    pub ops_bytes: U32,
    /// Length of the batch in bytes, without padding.
    pub len_bytes: U32,
    /// Next chunk's index.
    pub next_index: U32,
    /// Next chunk's device.
    pub next_device: U16,
    /// That of the opening that wrote it.
    pub salt: Salt,
}

impl BatchHeader {
    /// Returns the next chunk.
    pub(crate) fn next(&self) -> Chunk {
        Chunk { device: self.next_device.get(), index: self.next_index.get() }
    }
}

/// Length of the header in bytes.
pub const HEADER_BYTES: usize = size_of::<BatchHeader>();
/// Length of a directory entry in bytes.
pub const ENTRY_BYTES: usize = 8;

const _: () = assert!(HEADER_BYTES == 96);

/// Positions of the two checksums in the header.
const CHECKSUM: Range<usize> = 8..16;
const FRAME: Range<usize> = 16..24;

/// Returns the checksum of a batch, over all of `bytes` but the two checksums.
fn checksum(bytes: &[u8]) -> u64 {
    let mut hasher = Xxh3::new();
    hasher.update(&bytes[..CHECKSUM.start]);
    hasher.update(&bytes[FRAME.end..]);
    hasher.digest()
}

/// Returns the checksum of the frame, the first `fixed` bytes of a batch without this checksum itself, with `checksum`
/// as that of the whole.
fn frame(bytes: &[u8], checksum: u64, fixed: usize) -> u64 {
    let mut hasher = Xxh3::new();
    hasher.update(&bytes[..CHECKSUM.start]);
    hasher.update(&checksum.to_le_bytes());
    hasher.update(&bytes[FRAME.end..fixed]);
    hasher.digest()
}

/// Returns the length of header, directory and operations, in bytes.
fn fixed_bytes(header: &BatchHeader) -> u64 {
    HEADER_BYTES as u64
        + u64::from(header.records.get()) * ENTRY_BYTES as u64
        + u64::from(header.ops_bytes.get())
}

/// Stores the checksums into a finished batch, and returns that of the whole.
pub fn set_checksums(bytes: &mut [u8]) -> u64 {
    let fixed = BatchHeader::read_from_prefix(bytes).map_or(0, |(header, _)| fixed_bytes(&header) as usize);
    let checksum = checksum(bytes);
    let frame = frame(bytes, checksum, fixed.clamp(HEADER_BYTES, bytes.len()));
    bytes[CHECKSUM].copy_from_slice(&checksum.to_le_bytes());
    bytes[FRAME].copy_from_slice(&frame.to_le_bytes());
    checksum
}

/// Returns true if `bytes` may be the beginning of a batch that reaches beyond them.
pub(crate) fn may_go_on(bytes: &[u8]) -> bool {
    let Ok((header, _)) = BatchHeader::read_from_prefix(bytes) else { return true };
    header.magic == MAGIC && header.len_bytes.get() as usize > bytes.len()
}

/// A batch whose frame is sound. The bytes of a batch are used in no other way.
pub struct Verified<'a> {
    header: BatchHeader,
    bytes: &'a [u8],
    checksum: u64,
    whole: bool,
}

impl<'a> Verified<'a> {
    /// Returns the batch at the start of `bytes`, if there is one and all of it is sound.
    pub fn new(bytes: &'a [u8]) -> Option<Self> {
        Self::framed(bytes).filter(Self::is_whole)
    }

    /// Returns the batch at the start of `bytes`, if header, directory and operations are sound. Its records need not
    /// be.
    pub(crate) fn framed(bytes: &'a [u8]) -> Option<Self> {
        let (header, _) = BatchHeader::read_from_prefix(bytes).ok()?;
        let len = header.len_bytes.get() as usize;
        let fixed = fixed_bytes(&header);
        if header.magic != MAGIC || (len as u64) < fixed || len > bytes.len() {
            return None;
        }
        let bytes = &bytes[..len];
        let (stored, found) = (header.checksum.get(), checksum(bytes));
        let framed = |checksum| frame(bytes, checksum, fixed as usize) == header.frame.get();
        // Two of these three have to agree: content, checksum, frame. So damage to either checksum alone costs nothing.
        let whole = found == stored || framed(found);
        if !whole && !framed(stored) {
            return None;
        }
        let checksum = if whole { found } else { stored };
        let batch = Self { header, bytes, checksum, whole };
        let end = batch.entries(0).try_fold(fixed, |end, (entry, _)| {
            let sane = entry.len_bytes as usize <= RECORD_BYTES_MAX && u64::from(entry.start) == end;
            sane.then_some(end + u64::from(entry.len_bytes))
        })?;
        (end == len as u64).then_some(batch)
    }

    /// Returns true if its records are sound too.
    pub(crate) fn is_whole(&self) -> bool {
        self.whole
    }
    /// Returns its checksum, which the batch after it carries as its chain.
    pub(crate) fn checksum(&self) -> u64 {
        self.checksum
    }
    /// Returns the header.
    pub fn header(&self) -> &BatchHeader {
        &self.header
    }
    /// Returns the next chunk.
    pub(crate) fn next(&self) -> Chunk {
        self.header.next()
    }
    /// Returns its length with padding, in bytes.
    pub fn padded_bytes(&self) -> u32 {
        self.bytes.len().next_multiple_of(BLOCK_BYTES) as u32
    }
    /// Returns the operations.
    pub fn ops(&self) -> &'a [u8] {
        let from = HEADER_BYTES + self.header.records.get() as usize * ENTRY_BYTES;
        self.bytes.get(from..from + self.header.ops_bytes.get() as usize).unwrap_or_default()
    }
    /// Returns the bytes of a record. `entry` is what [`Verified::entries`] gave for the same `base`.
    pub(crate) fn record(&self, entry: &DirEntry, base: u32) -> &'a [u8] {
        let from = entry.start.saturating_sub(base) as usize;
        self.bytes.get(from..from + entry.len_bytes as usize).unwrap_or_default()
    }
    /// Returns the records' entries and kinds, for a batch that lies at byte `base` of its segment.
    pub fn entries(&self, base: u32) -> impl Iterator<Item = (DirEntry, u8)> + '_ {
        let records = self.header.records.get() as usize;
        let mut start = base
            .saturating_add((HEADER_BYTES + records * ENTRY_BYTES) as u32)
            .saturating_add(self.header.ops_bytes.get());
        let table = self.bytes.get(HEADER_BYTES..HEADER_BYTES + records * ENTRY_BYTES).unwrap_or_default();
        let first = self.header.first_slot.get();
        table.chunks_exact(ENTRY_BYTES).zip(0_u32..).map(move |(raw, at)| {
            let (word, checksum) = raw.split_at(4);
            let word = u32::from_le_bytes(word.try_into().unwrap_or_default());
            let checksum = u32::from_le_bytes(checksum.try_into().unwrap_or_default());
            let len_bytes = word & 0x00ff_ffff;
            let entry = DirEntry { slot: first.saturating_add(at), start, len_bytes, checksum };
            start = start.saturating_add(len_bytes);
            (entry, (word >> 24) as u8)
        })
    }
}

/// Returns the stored form of a directory entry of a batch.
pub fn entry_bytes(len_bytes: u32, kind: u8, checksum: u32) -> [u8; ENTRY_BYTES] {
    let mut raw = [0; ENTRY_BYTES];
    raw[..4].copy_from_slice(&(len_bytes | u32::from(kind) << 24).to_le_bytes());
    raw[4..].copy_from_slice(&checksum.to_le_bytes());
    raw
}

const _: () = assert!(RECORD_BYTES_MAX < 1 << 24);
const _: () = assert!(CHUNK_BYTES < u32::MAX as u64);
