//! The stored form of a batch.
//!
//! A batch starts at a block boundary of its segment and is padded with zeros to the next one:
//!
//! | offset | field | size |
//! |---|---|---|
//! | 0 | magic `PFba` | 4 |
//! | 4 | slot of the first record | 4 |
//! | 8 | checksum: xxh3-64 of all bytes of the batch but this field, padding excluded | 8 |
//! | 16 | chain: checksum of the batch before | 8 |
//! | 24 | txg: number of the batch | 8 |
//! | 32 | pool: low 8 bytes of the pool's GUID | 8 |
//! | 40 | segment id | 8 |
//! | 48 | checkpoint that internal records belong to | 8 |
//! | 56 | number of records | 4 |
//! | 60 | length of the operations | 4 |
//! | 64 | length of the batch without padding | 4 |
//! | 68 | next chunk: index | 4 |
//! | 72 | next chunk: device | 2 |
//! | 74 | salt: what the opening of the pool that wrote it was given (T5) | 6 |
//! | 80 | directory: per record its length (24 bits) and kind (8 bits), and its checksum | 8 each |
//! | | operations | |
//! | | records, one after the other | |

use xxhash_rust::xxh3::Xxh3;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::limits::{BLOCK_BYTES, CHUNK_BYTES, RECORD_BYTES_MAX};
use crate::segment::DirEntry;
use crate::space::Chunk;

/// First bytes of a batch.
pub const MAGIC: [u8; 4] = *b"PFba";

/// The header of a batch.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Header {
    /// [`MAGIC`].
    pub magic: [u8; 4],
    /// Slot of the first record.
    pub first_slot: U32,
    /// See the module's table.
    pub checksum: U64,
    /// Checksum of the batch before.
    pub chain: U64,
    /// Number of the batch.
    pub txg: U64,
    /// Low bytes of the pool's GUID.
    pub pool: U64,
    /// Segment that the batch lies in.
    pub segment: U64,
    /// Checkpoint that internal records belong to.
    pub checkpoint: U64,
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
    /// Low bytes of [`super::LogWriter::with_salt`].
    pub salt: [u8; 6],
}

/// Length of the header in bytes.
pub const HEADER_BYTES: usize = size_of::<Header>();
/// Length of a directory entry in bytes.
pub const ENTRY_BYTES: usize = 8;

const _: () = assert!(HEADER_BYTES == 80);

/// Where the checksum lies.
const CHECKSUM: std::ops::Range<usize> = 8..16;

/// Checksum of a batch: all of `bytes` but the checksum itself.
pub fn checksum(bytes: &[u8]) -> u64 {
    let mut hasher = Xxh3::new();
    hasher.update(&bytes[..CHECKSUM.start]);
    hasher.update(&bytes[CHECKSUM.end..]);
    hasher.digest()
}

/// Stores the checksum into a finished batch and returns it.
pub fn seal(bytes: &mut [u8]) -> u64 {
    let checksum = checksum(bytes);
    bytes[CHECKSUM].copy_from_slice(&checksum.to_le_bytes());
    checksum
}

/// A batch whose checksum holds: the only way in which the bytes of a batch are used.
pub struct Verified<'a> {
    header: Header,
    bytes: &'a [u8],
}

impl<'a> Verified<'a> {
    /// The batch at the start of `bytes`, if there is a sound one.
    pub fn new(bytes: &'a [u8]) -> Option<Self> {
        let (header, _) = Header::read_from_prefix(bytes).ok()?;
        let len = header.len_bytes.get() as usize;
        let fixed = HEADER_BYTES as u64
            + u64::from(header.records.get()) * ENTRY_BYTES as u64
            + u64::from(header.ops_bytes.get());
        if header.magic != MAGIC || (len as u64) < fixed || len > bytes.len() {
            return None;
        }
        let bytes = &bytes[..len];
        if checksum(bytes) != header.checksum.get() {
            return None;
        }
        let batch = Self { header, bytes };
        let end = batch.entries(0).try_fold(fixed, |end, (entry, _)| {
            let sane = entry.len_bytes as usize <= RECORD_BYTES_MAX && u64::from(entry.start) == end;
            sane.then_some(end + u64::from(entry.len_bytes))
        })?;
        (end == len as u64).then_some(batch)
    }

    /// The header.
    pub fn header(&self) -> &Header {
        &self.header
    }
    /// The next chunk.
    pub fn next(&self) -> Chunk {
        Chunk { device: self.header.next_device.get(), index: self.header.next_index.get() }
    }
    /// Length with padding, in bytes.
    pub fn padded_bytes(&self) -> u32 {
        self.bytes.len().next_multiple_of(BLOCK_BYTES) as u32
    }
    /// The operations.
    pub fn ops(&self) -> &'a [u8] {
        let from = HEADER_BYTES + self.header.records.get() as usize * ENTRY_BYTES;
        self.bytes.get(from..from + self.header.ops_bytes.get() as usize).unwrap_or_default()
    }
    /// The bytes of a record, whose entry was given for a batch at byte `base` of its segment.
    pub fn record(&self, entry: &DirEntry, base: u32) -> &'a [u8] {
        let from = entry.start.saturating_sub(base) as usize;
        self.bytes.get(from..from + entry.len_bytes as usize).unwrap_or_default()
    }
    /// The records' entries, for a batch that lies at byte `base` of its segment, and their kinds.
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

/// A directory entry of a batch.
pub fn entry_bytes(len_bytes: u32, kind: u8, checksum: u32) -> [u8; ENTRY_BYTES] {
    let mut raw = [0; ENTRY_BYTES];
    raw[..4].copy_from_slice(&(len_bytes | u32::from(kind) << 24).to_le_bytes());
    raw[4..].copy_from_slice(&checksum.to_le_bytes());
    raw
}

const _: () = assert!(RECORD_BYTES_MAX < 1 << 24);
const _: () = assert!(CHUNK_BYTES < u32::MAX as u64);
