//! Encodes and decodes streams: frames, each with a checksum that continues from the one before.
//!
//! The table of all fields is in docs/FORMAT.md. A stream is not trusted: frames have a largest length, no length in a
//! stream decides how much is allocated, and all values are checked before they are returned.

use std::io::{ErrorKind, Read, Write};
use std::path::PathBuf;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::token::Origin;
use crate::dataset::redo::TEXT_BYTES_MAX;
use crate::limits::{RECORD_BYTES_MAX, RECORDSIZE_MAX, RECORDSIZE_MIN, SHARE_PAGES_MAX, VALUE_BYTES_MAX};
use crate::record::{Needs, needs};
use crate::wire::{Reader, put_bytes, put_varint};
use crate::{Error, Key, Result};

const MAGIC: [u8; 8] = *b"PFsend\x01\0";
/// Bytes of a frame's head: length, kind.
const FRAME_HEAD_BYTES: usize = 5;
const CHECKSUM_BYTES: usize = 8;
/// Length at which a frame of entries is ended, in bytes: the next entry begins another one. A receiver commits a frame
/// as a whole.
pub(super) const FRAME_BYTES: usize = 1 << 20;
/// Longest frame, in bytes: one record more than [`FRAME_BYTES`], and the fields of entries beside records and values.
const FRAME_BYTES_MAX: usize = FRAME_BYTES + RECORD_BYTES_MAX + 64 * FRAME_ENTRIES_MAX;
/// Largest number of entries in a frame; their operations in a receiver's log fit into a batch.
pub(super) const FRAME_ENTRIES_MAX: usize = 8 << 10;
/// Largest number of bytes of values in a frame; their operations fit into a batch likewise.
pub(super) const FRAME_VALUES_MAX: usize = 512 << 10;
/// Number of bytes that are read at a time, so that memory grows with what arrives, not with what is announced.
const READ_BYTES: usize = 64 << 10;
/// Longest stored model, in bytes.
const MODEL_BYTES_MAX: usize = 512 << 10;

/// Kinds of frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum FrameKind {
    /// The head of the stream, always the first frame.
    Head = 1,
    /// A model, which comes before the records that use it.
    Model = 2,
    /// Entries of the tree.
    Entries = 3,
    /// The end: nothing follows.
    End = 4,
}

fn failed(op: &'static str, offset: u64, len_bytes: usize, source: std::io::Error) -> Error {
    Error::Io { op, device: PathBuf::from("the stream"), offset, len_bytes: len_bytes as u64, source }
}

/// Writes frames.
pub(super) struct FrameWriter<'a> {
    out: &'a mut dyn Write,
    chain: u64,
    pub(super) bytes: u64,
}

impl<'a> FrameWriter<'a> {
    pub(super) fn new(out: &'a mut dyn Write) -> Self {
        Self { out, chain: 0, bytes: 0 }
    }

    pub(super) fn frame(&mut self, kind: FrameKind, payload: &[u8]) -> Result<()> {
        let mut frame = Self::begin(payload.len());
        frame.extend_from_slice(payload);
        self.finish(kind, frame)
    }

    /// Begins an empty frame. The caller appends a payload of about `payload_bytes` and gives the frame to
    /// [`FrameWriter::finish`].
    pub(super) fn begin(payload_bytes: usize) -> Vec<u8> {
        let mut frame = Vec::with_capacity(FRAME_HEAD_BYTES + payload_bytes + CHECKSUM_BYTES);
        frame.resize(FRAME_HEAD_BYTES, 0);
        frame
    }

    /// Writes a frame that [`FrameWriter::begin`] began.
    pub(super) fn finish(&mut self, kind: FrameKind, mut frame: Vec<u8>) -> Result<()> {
        if self.bytes == 0 {
            self.write(&MAGIC)?;
        }
        let payload_bytes = (frame.len() - FRAME_HEAD_BYTES) as u32;
        let head = payload_bytes.to_le_bytes().into_iter().chain([kind as u8]);
        frame.iter_mut().zip(head).for_each(|(place, byte)| *place = byte);
        self.chain = xxh3_64_with_seed(&frame, self.chain);
        frame.extend_from_slice(&self.chain.to_le_bytes());
        self.write(&frame)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.out.write_all(bytes).map_err(|source| failed("write", self.bytes, bytes.len(), source))?;
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    pub(super) fn flush(&mut self) -> Result<()> {
        self.out.flush().map_err(|source| failed("flush", self.bytes, 0, source))
    }
}

/// Reads frames.
pub(super) struct FrameReader<'a> {
    input: &'a mut dyn Read,
    chain: u64,
    pub(super) bytes: u64,
    /// Bytes of the frame that was read last, and room that is used again.
    buffer: Vec<u8>,
}

/// A frame of entries, in the memory that it was read into.
#[derive(Clone, Debug)]
pub struct EntriesFrame {
    buffer: Vec<u8>,
    payload_bytes: usize,
}

impl EntriesFrame {
    /// Returns the encoded entries.
    pub fn payload(&self) -> &[u8] {
        self.buffer.get(FRAME_HEAD_BYTES..FRAME_HEAD_BYTES + self.payload_bytes).unwrap_or_default()
    }
}

impl<'a> FrameReader<'a> {
    pub(super) fn new(input: &'a mut dyn Read) -> Self {
        Self { input, chain: 0, bytes: 0, buffer: Vec::new() }
    }

    /// Reads the buffer's bytes from `begin` to `end`.
    fn fill(&mut self, begin: usize, end: usize) -> Result<()> {
        let mut begin = begin;
        while begin < end {
            // Only room that no frame has used before is cleared.
            if self.buffer.len() <= begin {
                self.buffer.resize(end.min(begin + READ_BYTES), 0);
            }
            let until = end.min(self.buffer.len());
            let room = self.buffer.get_mut(begin..until).unwrap_or_default();
            let now = room.len();
            self.input.read_exact(room).map_err(|source| match source.kind() {
                ErrorKind::UnexpectedEof => Error::corrupt("stream", "it ends too early"),
                _ => failed("read", self.bytes, now, source),
            })?;
            self.bytes += now as u64;
            begin = until;
        }
        Ok(())
    }

    fn read(&self, begin: usize, end: usize) -> &[u8] {
        self.buffer.get(begin..end).unwrap_or_default()
    }

    /// Reads the next frame, verifies its checksum, and returns its payload. Must not be called after
    /// [`FrameKind::End`].
    pub(super) fn next(&mut self) -> Result<(FrameKind, &[u8])> {
        if self.bytes == 0 {
            self.fill(0, MAGIC.len())?;
            let magic = self.read(0, MAGIC.len());
            if magic != MAGIC {
                return Err(match magic.starts_with(b"PFsend") {
                    true => Error::Unsupported("the stream is of another version of Pagefold".into()),
                    false => Error::corrupt("stream", "it is not one that 'send' makes"),
                });
            }
        }
        self.fill(0, FRAME_HEAD_BYTES)?;
        let mut head = Reader::new(self.read(0, FRAME_HEAD_BYTES), "frame of a stream");
        let (len, kind) = (head.u32()? as usize, head.u8()?);
        let kind = [FrameKind::Head, FrameKind::Model, FrameKind::Entries, FrameKind::End]
            .into_iter()
            .find(|known| *known as u8 == kind);
        let kind = kind.filter(|_| len <= FRAME_BYTES_MAX);
        let kind = kind.ok_or_else(|| Error::corrupt("frame of a stream", "its head says what cannot be"))?;
        let end = FRAME_HEAD_BYTES + len;
        self.fill(FRAME_HEAD_BYTES, end + CHECKSUM_BYTES)?;
        let chain = xxh3_64_with_seed(self.read(0, end), self.chain);
        if self.read(end, end + CHECKSUM_BYTES) != chain.to_le_bytes() {
            let detail = format!("the checksum of what ends at byte {} does not hold", self.bytes);
            return Err(Error::corrupt("stream", detail));
        }
        self.chain = chain;
        Ok((kind, self.read(FRAME_HEAD_BYTES, end)))
    }

    /// Demands that nothing follows the frame that was read last, which is [`FrameKind::End`].
    pub(super) fn expect_end(&mut self) -> Result<()> {
        let found = loop {
            match self.input.read(&mut [0]) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                found => break found.map_err(|source| failed("read", self.bytes, 1, source))?,
            }
        };
        match found {
            0 => Ok(()),
            _ => {
                let detail = format!(
                    "something follows its end at byte {}: each stream has to be received by itself, and nothing else with it",
                    self.bytes
                );
                Err(Error::corrupt("stream", detail))
            }
        }
    }

    /// Takes the frame that was read last, whose payload has `payload_bytes`, with its memory.
    pub(super) fn take(&mut self, payload_bytes: usize) -> EntriesFrame {
        EntriesFrame { buffer: std::mem::take(&mut self.buffer), payload_bytes }
    }

    /// Gives a frame's memory back, for the next one.
    pub(super) fn give_back(&mut self, frame: EntriesFrame) {
        self.buffer = frame.buffer;
    }
}

/// Head of a stream: the snapshots that it is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HeadFrame {
    /// The snapshot that is sent.
    pub(super) to: Origin,
    /// The snapshot that the receiver has, if only changes since then are sent.
    pub(super) from: Option<Origin>,
    /// Key up to which the receiver has all entries already.
    pub(super) after: Option<Key>,
    /// Name of the snapshot that is sent.
    pub(super) name: String,
    /// Approximate stored bytes that the stream will bring.
    pub(super) expected_bytes: u64,
}

fn put_key(out: &mut Vec<u8>, key: &Key) {
    put_varint(out, key.object);
    out.push(key.kind);
    put_varint(out, key.offset);
}

fn read_key(reader: &mut Reader<'_>) -> Result<Key> {
    Ok(Key { object: reader.varint()?, kind: reader.u8()?, offset: reader.varint()? })
}

impl HeadFrame {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.to.encode(&mut out);
        out.push(u8::from(self.from.is_some()) | u8::from(self.after.is_some()) << 1);
        self.from.iter().for_each(|from| from.encode(&mut out));
        self.after.iter().for_each(|after| put_key(&mut out, after));
        put_bytes(&mut out, self.name.as_bytes());
        put_varint(&mut out, self.expected_bytes);
        out
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self> {
        let mut reader = Reader::new(bytes, "head of a stream");
        let to = Origin::decode(&mut reader)?;
        let flags = reader.u8()?;
        if flags > 3 {
            return Err(Error::Unsupported("the stream has features that this version does not know".into()));
        }
        let from = if flags & 1 != 0 { Some(Origin::decode(&mut reader)?) } else { None };
        let after = if flags & 2 != 0 { Some(read_key(&mut reader)?) } else { None };
        let name = std::str::from_utf8(reader.bytes(TEXT_BYTES_MAX)?);
        let name = name.map_err(|_| Error::corrupt("head of a stream", "a name is not UTF-8"))?.to_owned();
        let expected_bytes = reader.varint()?;
        reader.end()?;
        Ok(Self { to, from, after, name, expected_bytes })
    }
}

/// A model in a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SentModel {
    /// Number of the model at the sender.
    pub(super) id: u32,
    /// Object that the model was learned from; 0 if that is neither of the dataset nor of one that it is a clone of.
    pub(super) object: u64,
    pub(super) generation: u32,
    pub(super) sampled_pages: u32,
    pub(super) object_pages: u64,
    pub(super) record_bytes: u32,
    /// The model as its codec stores it.
    pub(super) bytes: Vec<u8>,
}

impl SentModel {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.bytes.len() + 40);
        for value in [
            self.id.into(),
            self.object,
            self.generation.into(),
            self.sampled_pages.into(),
            self.object_pages,
            self.record_bytes.into(),
        ] {
            put_varint(&mut out, value);
        }
        put_bytes(&mut out, &self.bytes);
        out
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self> {
        let mut reader = Reader::new(bytes, "model in a stream");
        let model = Self {
            id: reader.varint_u32()?,
            object: reader.varint()?,
            generation: reader.varint_u32()?,
            sampled_pages: reader.varint_u32()?,
            object_pages: reader.varint()?,
            record_bytes: reader.varint_u32()?,
            bytes: reader.bytes(MODEL_BYTES_MAX)?.to_vec(),
        };
        reader.end()?;
        Ok(model)
    }
}

/// A page in a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamPage<'a> {
    /// The page's record, and what is needed to decode it.
    Record(&'a [u8], Needs),
    /// The same record as another page has: object and number of that page.
    Same(u64, u64),
}

/// Entries of a tree, in ascending order of keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamEntry<'a> {
    /// A value is set.
    Put(Key, &'a [u8]),
    /// A value is deleted.
    Delete(Key),
    /// Consecutive pages of an object.
    Pages {
        /// The object.
        object: u64,
        /// Its recordsize in bytes.
        record_size: u32,
        /// Number of the first page.
        first: u64,
        /// The pages.
        pages: Vec<StreamPage<'a>>,
    },
    /// Consecutive pages that are removed.
    Punch {
        /// The object.
        object: u64,
        /// Number of the first page.
        first: u64,
        /// Number of pages.
        count: u64,
    },
}

impl StreamEntry<'_> {
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Put(key, value) => {
                out.push(1);
                put_key(out, key);
                put_bytes(out, value);
            }
            Self::Delete(key) => {
                out.push(2);
                put_key(out, key);
            }
            Self::Pages { object, record_size, first, pages } => {
                out.push(3);
                for value in [*object, (*record_size).into(), *first, pages.len() as u64] {
                    put_varint(out, value);
                }
                for page in pages {
                    match page {
                        StreamPage::Record(record, _) => put_bytes(out, record),
                        StreamPage::Same(object, page) => {
                            for value in [0, *object, *page] {
                                put_varint(out, value);
                            }
                        }
                    }
                }
            }
            Self::Punch { object, first, count } => {
                out.push(4);
                for value in [*object, *first, *count] {
                    put_varint(out, value);
                }
            }
        }
    }

    /// Returns the first and the last key.
    fn keys(&self) -> (Key, Key) {
        let run = |object: u64, first: u64, count: u64| {
            (Key::page(object, first), Key::page(object, first.saturating_add(count - 1)))
        };
        match self {
            Self::Put(key, _) | Self::Delete(key) => (*key, *key),
            Self::Pages { object, first, pages, .. } => run(*object, *first, pages.len() as u64),
            Self::Punch { object, first, count } => run(*object, *first, *count),
        }
    }
}

fn read_entry<'a>(reader: &mut Reader<'a>) -> Result<StreamEntry<'a>> {
    let values = |reader: &Reader<'_>, key: Key| match key.kind < Key::ENGINE_KINDS {
        true => Ok(key),
        false => Err(reader.bad("a key belongs to the engine")),
    };
    Ok(match reader.u8()? {
        1 => {
            let key = read_key(reader)?;
            StreamEntry::Put(values(reader, key)?, reader.bytes(VALUE_BYTES_MAX)?)
        }
        2 => {
            let key = read_key(reader)?;
            StreamEntry::Delete(values(reader, key)?)
        }
        3 => read_pages(reader)?,
        4 => {
            let (object, first, count) = (reader.varint()?, reader.varint()?, reader.varint()?);
            let sane =
                (1..=SHARE_PAGES_MAX).contains(&count) && first.checked_add(count).is_some() && object != 0;
            if !sane {
                return Err(reader.bad("a run of pages is out of range"));
            }
            StreamEntry::Punch { object, first, count }
        }
        _ => return Err(reader.bad("an entry is of an unknown kind")),
    })
}

fn read_pages<'a>(reader: &mut Reader<'a>) -> Result<StreamEntry<'a>> {
    let (object, record_size) = (reader.varint()?, reader.varint_u32()?);
    let (first, count) = (reader.varint()?, reader.varint()?);
    if !record_size.is_power_of_two() || !(RECORDSIZE_MIN..=RECORDSIZE_MAX).contains(&record_size) {
        return Err(reader.bad("a recordsize is out of range"));
    }
    // Object 0 is the dataset as a whole.
    if !(1..=FRAME_ENTRIES_MAX as u64).contains(&count) || first.checked_add(count).is_none() || object == 0 {
        return Err(reader.bad("a run of pages is out of range"));
    }
    let mut pages = Vec::new();
    for _ in 0..count {
        let record = reader.bytes(RECORD_BYTES_MAX)?;
        pages.push(match record.is_empty() {
            true => StreamPage::Same(reader.varint()?, reader.varint()?),
            false => {
                let needs = needs(record, record_size)?;
                if needs.bases {
                    return Err(reader.bad("a record is a delta, whose bases do not travel"));
                }
                StreamPage::Record(record, needs)
            }
        });
    }
    Ok(StreamEntry::Pages { object, record_size, first, pages })
}

/// Visits the entries of a frame. `last` is the last key before the frame, and becomes the last key of the frame.
pub(super) fn for_each<'a>(
    payload: &'a [u8],
    last: &mut Option<Key>,
    visit: &mut dyn FnMut(StreamEntry<'a>) -> Result<()>,
) -> Result<()> {
    let mut reader = Reader::new(payload, "entries of a stream");
    let (mut entries, mut value_bytes) = (0, 0);
    while reader.remaining() > 0 {
        let entry = read_entry(&mut reader)?;
        entries += if let StreamEntry::Pages { pages, .. } = &entry { pages.len() } else { 1 };
        value_bytes += if let StreamEntry::Put(_, value) = &entry { value.len() } else { 0 };
        if entries > FRAME_ENTRIES_MAX || value_bytes > FRAME_VALUES_MAX + VALUE_BYTES_MAX {
            return Err(reader.bad("there are too many of them in a frame"));
        }
        let (first, end) = entry.keys();
        if last.replace(end).is_some_and(|last| last >= first) {
            return Err(reader.bad("keys do not ascend"));
        }
        visit(entry)?;
    }
    Ok(())
}

/// Totals of a stream, as its end tells them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct EndFrame {
    /// Number of values set and deleted.
    pub(super) values: u64,
    /// Number of pages set.
    pub(super) pages: u64,
    /// Bytes of the records of these pages.
    pub(super) record_bytes: u64,
}

impl EndFrame {
    pub(super) fn encode(self) -> Vec<u8> {
        let mut out = Vec::new();
        for value in [self.values, self.pages, self.record_bytes] {
            put_varint(&mut out, value);
        }
        out
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self> {
        let mut reader = Reader::new(bytes, "end of a stream");
        let end = Self { values: reader.varint()?, pages: reader.varint()?, record_bytes: reader.varint()? };
        reader.end()?;
        Ok(end)
    }

    pub(super) fn count(&mut self, entry: &StreamEntry<'_>) {
        match entry {
            StreamEntry::Put(..) | StreamEntry::Delete(_) => self.values += 1,
            StreamEntry::Pages { pages, .. } => {
                self.pages += pages.len() as u64;
                let bytes = |page: &StreamPage<'_>| {
                    if let StreamPage::Record(record, _) = page { record.len() as u64 } else { 0 }
                };
                self.record_bytes += pages.iter().map(bytes).sum::<u64>();
            }
            StreamEntry::Punch { .. } => {}
        }
    }
}
