//! Chunks of manifests: entries of a snapshot's tree in the order of keys, with the places of their records.

use std::collections::HashMap;
use std::hash::Hash;

use pagefold_engine::Key;
use pagefold_engine::limits::{RECORD_BYTES_MAX, RECORDSIZE_MAX, RECORDSIZE_MIN, VALUE_BYTES_MAX};
use pagefold_engine::wire::{Reader, put_bytes, put_varint};

use crate::block::{BlockRef, ModelRef, RecordRef};
use crate::error::Decoded;
use crate::limits::{BLOCK_BYTES_MAX, CHUNK_BYTES, CHUNK_ENTRIES};
use crate::pack::PackId;

/// Largest length of an encoded chunk in bytes: the entry with which a chunk gets too long ends it.
pub(crate) const CHUNK_BYTES_MAX: usize = 8 * CHUNK_BYTES;
const TAG_VALUE: u8 = 1;
const TAG_PAGES: u8 = 2;

/// An entry of a snapshot's tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// A value of the file system.
    Value(Key, Box<[u8]>),
    /// A page of an object.
    Page(PageEntry),
}

/// A page, and the place of its record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageEntry {
    /// The object.
    pub object: u64,
    /// Number of the page.
    pub page: u64,
    /// Bytes of a page of the object.
    pub record_size: u32,
    /// Place of its record.
    pub record: RecordRef,
    /// An earlier page that had the same record when this one was backed up: object and number.
    pub shared: Option<(u64, u64)>,
}

impl Entry {
    /// Returns the entry's key in the snapshot's tree.
    pub fn key(&self) -> Key {
        match self {
            Self::Value(key, _) => *key,
            Self::Page(page) => Key::page(page.object, page.page),
        }
    }

    /// Returns about the number of bytes that the entry takes in a chunk.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Value(_, value) => value.len() + 16,
            Self::Page(_) => 24,
        }
    }
}

/// Distinct values, numbered in the order in which they come.
struct Table<T> {
    all: Vec<T>,
    numbers: HashMap<T, u64>,
}

impl<T: Copy + Eq + Hash> Table<T> {
    fn new() -> Self {
        Self { all: Vec::new(), numbers: HashMap::new() }
    }

    fn number(&mut self, one: T) -> u64 {
        *self.numbers.entry(one).or_insert_with(|| {
            self.all.push(one);
            self.all.len() as u64 - 1
        })
    }
}

/// Returns true if `next` continues a run of pages.
fn follows(before: &PageEntry, next: &Entry) -> bool {
    matches!(next, Entry::Page(page) if page.object == before.object
        && page.record_size == before.record_size
        && before.page.checked_add(1) == Some(page.page))
}

/// Packs, blocks and models that records refer to, numbered.
struct Tables {
    packs: Table<PackId>,
    blocks: Table<BlockRef>,
    models: Table<ModelRef>,
}

/// Encodes a run of pages.
fn put_run(body: &mut Vec<u8>, run: &[&PageEntry], tables: &mut Tables) {
    let Some(first) = run.first() else { return };
    body.push(TAG_PAGES);
    for value in [first.object, first.record_size.into(), first.page, run.len() as u64] {
        put_varint(body, value);
    }
    let mut expected = None;
    for page in run {
        let record = &page.record;
        let _ = tables.packs.number(record.block.pack);
        let block = tables.blocks.number(record.block);
        let goes_on = expected == Some((block, record.at));
        expected = Some((block, record.at + record.len));
        put_varint(body, block << 2 | u64::from(page.shared.is_some()) << 1 | u64::from(goes_on));
        if !goes_on {
            put_varint(body, record.at.into());
        }
        put_varint(body, record.len.into());
        put_varint(body, record.model.map_or(0, |model| tables.models.number(model) + 1));
        if let Some((object, page)) = page.shared {
            put_varint(body, object);
            put_varint(body, page);
        }
        body.extend_from_slice(&record.hash.to_le_bytes());
    }
}

/// Encodes a chunk.
pub(crate) fn encode(entries: &[Entry]) -> Vec<u8> {
    let mut tables = Tables { packs: Table::new(), blocks: Table::new(), models: Table::new() };
    let mut body = Vec::with_capacity(entries.len() * 24);
    let mut at = 0;
    while let Some(first) = entries.get(at) {
        match first {
            Entry::Value(key, value) => {
                body.push(TAG_VALUE);
                put_varint(&mut body, key.object);
                body.push(key.kind);
                put_varint(&mut body, key.offset);
                put_bytes(&mut body, value);
                at += 1;
            }
            Entry::Page(first) => {
                let mut run = vec![first];
                while let Some(next @ Entry::Page(page)) = entries.get(at + run.len())
                    && run.last().is_some_and(|last| follows(last, next))
                {
                    run.push(page);
                }
                at += run.len();
                put_run(&mut body, &run, &mut tables);
            }
        }
    }
    let Tables { packs, blocks, models } = tables;
    let mut out = Vec::with_capacity(body.len() + 1024);
    put_varint(&mut out, packs.all.len() as u64);
    packs.all.iter().for_each(|pack| out.extend_from_slice(&pack.0));
    put_varint(&mut out, blocks.all.len() as u64);
    for block in &blocks.all {
        put_varint(&mut out, packs.numbers.get(&block.pack).copied().unwrap_or_default());
        block.encode_place(&mut out);
    }
    put_varint(&mut out, models.all.len() as u64);
    models.all.iter().for_each(|model| model.encode(&mut out));
    put_varint(&mut out, entries.len() as u64);
    out.extend_from_slice(&body);
    out
}

/// Decodes the entries of a chunk. Everything that is returned was checked: keys ascend, and lengths are in range.
pub(crate) fn decode(bytes: &[u8]) -> Decoded<Vec<Entry>> {
    let mut reader = Reader::new(bytes, "chunk of a manifest");
    let packs = table(&mut reader, PackId::decode)?;
    let blocks = table(&mut reader, |reader| {
        let pack = at(&packs, reader.varint()?, reader)?;
        BlockRef::decode_place(reader, pack)
    })?;
    let models = table(&mut reader, ModelRef::decode)?;
    let count = reader.varint()?;
    if count > CHUNK_ENTRIES as u64 {
        return Err(reader.bad("it says to have too many entries"));
    }
    let mut entries: Vec<Entry> = Vec::new();
    while reader.remaining() > 0 {
        let tag = reader.u8()?;
        let first = entries.len();
        match tag {
            TAG_VALUE => {
                let key = Key::new(reader.varint()?, reader.u8()?, reader.varint()?);
                if key.kind >= Key::ENGINE_KINDS {
                    return Err(reader.bad("a key belongs to the engine"));
                }
                entries.push(Entry::Value(key, reader.bytes(VALUE_BYTES_MAX)?.into()));
            }
            TAG_PAGES => pages(&mut reader, &blocks, &models, count, &mut entries)?,
            _ => return Err(reader.bad("an entry is of an unknown kind")),
        }
        if first > 0 {
            let ascends = match (entries.get(first - 1), entries.get(first)) {
                (Some(before), Some(after)) => before.key() < after.key(),
                _ => false,
            };
            if !ascends {
                return Err(reader.bad("keys do not ascend"));
            }
        }
        if entries.len() as u64 > count {
            return Err(reader.bad("it has too many entries"));
        }
    }
    if entries.is_empty() || entries.len() as u64 != count {
        return Err(reader.bad("it has fewer entries than it says"));
    }
    Ok(entries)
}

fn pages(
    reader: &mut Reader<'_>,
    blocks: &[BlockRef],
    models: &[ModelRef],
    most: u64,
    entries: &mut Vec<Entry>,
) -> Decoded<()> {
    let (object, record_size) = (reader.varint()?, reader.varint_u32()?);
    let (first, count) = (reader.varint()?, reader.varint()?);
    let sane = record_size.is_power_of_two() && (RECORDSIZE_MIN..=RECORDSIZE_MAX).contains(&record_size);
    if !sane || count == 0 || count > most || first.checked_add(count).is_none() {
        return Err(reader.bad("a run of pages is out of range"));
    }
    let mut expected = None;
    for page in first..first + count {
        let word = reader.varint()?;
        let block = at(blocks, word >> 2, reader)?;
        let begin = match (word & 1, expected) {
            (0, _) => reader.varint_u32()?,
            (_, Some((before, end))) if before == word >> 2 => end,
            _ => return Err(reader.bad("a record goes on where none was before")),
        };
        let len = reader.varint_u32()?;
        let model = reader.varint()?;
        let model = model.checked_sub(1).map(|number| at(models, number, reader)).transpose()?;
        let shared = if word & 2 != 0 { Some((reader.varint()?, reader.varint()?)) } else { None };
        if shared.is_some_and(|of| of >= (object, page)) {
            return Err(reader.bad("a page shares the record of a later one"));
        }
        let hash = reader.u64()?;
        let end = begin.checked_add(len).filter(|end| *end as usize <= BLOCK_BYTES_MAX);
        let end = end.filter(|_| len > 0 && len as usize <= RECORD_BYTES_MAX);
        expected = Some((word >> 2, end.ok_or_else(|| reader.bad("a record is out of range"))?));
        let record = RecordRef { block, at: begin, len, hash, model };
        entries.push(Entry::Page(PageEntry { object, page, record_size, record, shared }));
    }
    Ok(())
}

fn at<T: Copy>(table: &[T], number: u64, reader: &Reader<'_>) -> Decoded<T> {
    let found = usize::try_from(number).ok().and_then(|number| table.get(number));
    found.copied().ok_or_else(|| reader.bad("a number is out of range"))
}

/// Decodes a count and that many values. Memory grows with the values that are there, not with the count that is
/// announced.
pub(crate) fn table<T>(
    reader: &mut Reader<'_>,
    one: impl Fn(&mut Reader<'_>) -> Decoded<T>,
) -> Decoded<Vec<T>> {
    let count = reader.varint()?;
    if count > reader.remaining() as u64 {
        return Err(reader.bad("a table says to be too long"));
    }
    let mut all = Vec::new();
    for _ in 0..count {
        all.push(one(reader)?);
    }
    Ok(all)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
pub(crate) mod tests {
    use super::*;

    /// Entries with all that there can be.
    pub(crate) fn sample() -> Vec<Entry> {
        let block = |pack: u8, index: u32| BlockRef {
            pack: PackId([pack; 16]),
            index,
            offset: 48 + index * 100,
            len: 100,
        };
        let model = ModelRef { hash: 77, block: block(9, 3) };
        let page = |object, page, record_size, index, at, model, shared| {
            let record =
                RecordRef { block: block(1 + (index % 2) as u8, index), at, len: 40, hash: page * 7, model };
            Entry::Page(PageEntry { object, page, record_size, record, shared })
        };
        vec![
            Entry::Value(Key::new(1, 2, 3), b"a value".as_slice().into()),
            page(1, 0, 8192, 0, 0, None, None),
            page(1, 1, 8192, 0, 40, Some(model), None),
            page(1, 2, 8192, 1, 0, Some(model), None),
            page(1, 9, 8192, 1, 40, None, Some((1, 0))),
            page(2, 0, 1 << 20, 0, 0, None, None),
            Entry::Value(Key::new(3, 0, u64::MAX), Box::default()),
        ]
    }

    #[test]
    fn chunks_survive_and_damage_is_told() {
        let entries = sample();
        let bytes = encode(&entries);
        assert_eq!(decode(&bytes).unwrap(), entries);
        for len in 0..bytes.len() {
            assert!(decode(&bytes[..len]).is_err());
        }
        assert!(decode(&encode(&[])).is_err());
    }
}
