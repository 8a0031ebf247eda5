//! The manifest of a backup: chunks are read when one of their keys is looked up, and kept while there is room.

use std::sync::Arc;

use pagefold_backup::{BlockRef, Contents, Entry, ModelRef, RecordRef};
use pagefold_engine::{Error, Key, Result};
use quick_cache::Weighter;
use quick_cache::sync::Cache;

use crate::kept::kept;
use crate::limits::{CHUNK_CACHE_BYTES, OTHERS_OFTEN};
use crate::patience::Waiting;

/// A page, in less memory than an entry takes: block and model are numbers in its chunk.
struct Slot {
    object: u64,
    page: u64,
    hash: u64,
    block: u32,
    at: u32,
    len: u32,
    /// Number of the model in the chunk, plus 1; 0 for none.
    model: u32,
    record_size: u32,
}

/// A chunk.
pub(crate) struct Chunk {
    values: Vec<(Key, Box<[u8]>)>,
    pages: Vec<Slot>,
    blocks: Vec<BlockRef>,
    models: Vec<ModelRef>,
    bytes: u64,
}

/// A page, and the place of its record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found {
    pub(crate) page: u64,
    pub(crate) record_size: u32,
    pub(crate) record: RecordRef,
}

/// Returns the number of `one` in `all`, adding it if it is missing. It searches from the end, since records of
/// neighbours lie in the same block.
fn number<T: Copy + PartialEq>(all: &mut Vec<T>, one: T) -> u32 {
    let known = all.iter().rposition(|other| *other == one);
    known.unwrap_or_else(|| {
        all.push(one);
        all.len() - 1
    }) as u32
}

impl Chunk {
    fn new(entries: Vec<Entry>) -> Self {
        let mut chunk =
            Self { values: Vec::new(), pages: Vec::new(), blocks: Vec::new(), models: Vec::new(), bytes: 0 };
        for entry in entries {
            match entry {
                Entry::Value(key, value) => chunk.values.push((key, value)),
                Entry::Page(page) => {
                    let record = page.record;
                    chunk.pages.push(Slot {
                        object: page.object,
                        page: page.page,
                        hash: record.hash,
                        block: number(&mut chunk.blocks, record.block),
                        at: record.at,
                        len: record.len,
                        model: record.model.map_or(0, |model| number(&mut chunk.models, model) + 1),
                        record_size: page.record_size,
                    });
                }
            }
        }
        let values = chunk.values.iter().map(|(_, value)| value.len() + size_of::<(Key, Box<[u8]>)>() + 16);
        let tables = chunk.pages.len() * size_of::<Slot>()
            + chunk.blocks.len() * size_of::<BlockRef>()
            + chunk.models.len() * size_of::<ModelRef>();
        chunk.bytes = (values.sum::<usize>() + tables) as u64;
        chunk
    }

    /// Returns the pages of `object` from number `from` on and below `to`.
    fn pages(&self, object: u64, from: u64, to: u64) -> impl Iterator<Item = Found> + '_ {
        let begin = self.pages.partition_point(|slot| (slot.object, slot.page) < (object, from));
        let slots = self.pages.get(begin..).unwrap_or_default().iter();
        slots.take_while(move |slot| slot.object == object && slot.page < to).filter_map(|slot| {
            let block = *self.blocks.get(slot.block as usize)?;
            let model = slot.model.checked_sub(1).and_then(|at| self.models.get(at as usize)).copied();
            let record = RecordRef { block, at: slot.at, len: slot.len, hash: slot.hash, model };
            Some(Found { page: slot.page, record_size: slot.record_size, record })
        })
    }
}

#[derive(Clone)]
struct ChunkWeight;

impl Weighter<usize, Arc<Chunk>> for ChunkWeight {
    fn weight(&self, _: &usize, chunk: &Arc<Chunk>) -> u64 {
        chunk.bytes.max(1)
    }
}

/// The manifest.
pub(crate) struct Manifest {
    pub(crate) contents: Arc<Contents>,
    waiting: Arc<Waiting>,
    chunks: Cache<usize, Arc<Chunk>, ChunkWeight>,
}

impl Manifest {
    pub(crate) fn new(contents: Arc<Contents>, waiting: Arc<Waiting>) -> Self {
        Self { contents, waiting, chunks: kept(CHUNK_CACHE_BYTES, OTHERS_OFTEN, ChunkWeight) }
    }

    /// Returns chunk number `at`. Threads that want a chunk that is being read wait for it.
    fn chunk(&self, at: usize) -> Result<Arc<Chunk>> {
        self.chunks.get_or_insert_with(&at, || {
            let row = self.contents.rows().get(at).copied();
            let row = row.ok_or_else(|| Error::corrupt("manifest", "it has no such chunk"))?;
            let what = || format!("a chunk of the manifest, in {}", row.block.pack.path());
            let read = self.waiting.read(&self.contents, &what, || self.contents.chunks(&[row]))?;
            Ok(Arc::new(Chunk::new(read.into_iter().next().unwrap_or_default())))
        })
    }

    fn first_key(&self, at: usize) -> Option<Key> {
        self.contents.rows().get(at).map(|row| row.first)
    }

    /// Returns the range of chunks that may have keys from `from` on and below `to`.
    fn span(&self, from: &Key, to: &Key) -> std::ops::Range<usize> {
        let begin = self.contents.row_of(from).unwrap_or(0);
        let end = self.contents.rows().partition_point(|row| row.first < *to);
        begin..end.max(begin)
    }

    pub(crate) fn get(&self, key: &Key) -> Result<Option<Vec<u8>>> {
        let Some(at) = self.contents.row_of(key) else { return Ok(None) };
        let chunk = self.chunk(at)?;
        let found = chunk.values.binary_search_by_key(key, |(key, _)| *key).ok();
        Ok(found.and_then(|at| chunk.values.get(at)).map(|(_, value)| value.to_vec()))
    }

    pub(crate) fn range(&self, from: &Key, to: &Key, limit: usize) -> Result<Vec<(Key, Vec<u8>)>> {
        let mut all = Vec::new();
        for at in self.span(from, to) {
            if all.len() >= limit {
                break;
            }
            let chunk = self.chunk(at)?;
            let begin = chunk.values.partition_point(|(key, _)| key < from);
            let values = chunk.values.get(begin..).unwrap_or_default().iter();
            let values = values.take_while(|(key, _)| key < to).take(limit - all.len());
            all.extend(values.map(|(key, value)| (*key, value.to_vec())));
        }
        Ok(all)
    }

    /// Returns the existing pages of `object` from number `from` on and below `to`.
    pub(crate) fn pages(&self, object: u64, from: u64, to: u64) -> Result<Vec<Found>> {
        let mut all = Vec::new();
        for at in self.span(&Key::page(object, from), &Key::page(object, to)) {
            all.extend(self.chunk(at)?.pages(object, from, to));
        }
        Ok(all)
    }

    /// Returns the first page of `object` at or after `page`.
    pub(crate) fn next_page(&self, object: u64, page: u64) -> Result<Option<u64>> {
        for at in self.span(&Key::page(object, page), &Key::page(object, u64::MAX)) {
            // A chunk that begins with such a page need not be read.
            if let Some(first) = self.first_key(at)
                && first.object == object
                && first.kind == Key::PAGE
                && first.offset >= page
            {
                return Ok(Some(first.offset));
            }
            if let Some(found) = self.chunk(at)?.pages(object, page, u64::MAX).next() {
                return Ok(Some(found.page));
            }
        }
        Ok(None)
    }

    /// Returns the first page of `object` at or after `page` that does not exist.
    pub(crate) fn next_hole(&self, object: u64, page: u64) -> Result<u64> {
        let mut expected = page;
        for at in self.span(&Key::page(object, page), &Key::page(object, u64::MAX)) {
            // A chunk that is full of consecutive pages need not be read.
            if let (Some(first), Some(next), Some(row)) =
                (self.first_key(at), self.first_key(at + 1), self.contents.rows().get(at))
                && first == Key::page(object, expected)
                && expected.checked_add(row.entries.into()).map(|end| Key::page(object, end)) == Some(next)
            {
                expected = next.offset;
                continue;
            }
            for found in self.chunk(at)?.pages(object, expected, u64::MAX) {
                if found.page != expected {
                    return Ok(expected);
                }
                expected += 1;
            }
            if self.first_key(at + 1).is_some_and(|next| next != Key::page(object, expected)) {
                break;
            }
        }
        Ok(expected)
    }

    /// Returns the number of `object`'s pages and the bytes of their records. For chunks that have only such pages the
    /// bytes are estimated by the backup's average, so that a large file's attributes cost reading two chunks.
    pub(crate) fn usage(&self, object: u64) -> Result<(u64, u64)> {
        let totals = self.contents.backup().totals;
        let (mut pages, mut bytes) = (0_u64, 0_u64);
        let (from, to) = (Key::page(object, 0), Key::page(object, u64::MAX));
        for at in self.span(&from, &to) {
            let within =
                |key: Option<Key>| key.is_some_and(|key| key.object == object && key.kind == Key::PAGE);
            if let Some(row) = self.contents.rows().get(at)
                && within(self.first_key(at))
                && within(self.first_key(at + 1))
            {
                let count = u64::from(row.entries);
                pages += count;
                let share =
                    u128::from(totals.record_bytes) * u128::from(count) / u128::from(totals.pages.max(1));
                bytes += share as u64;
                continue;
            }
            for found in self.chunk(at)?.pages(object, 0, u64::MAX) {
                pages += 1;
                bytes += u64::from(found.record.len);
            }
        }
        Ok((pages, bytes))
    }
}
