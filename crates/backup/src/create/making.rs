//! A backup that is being made: cuts records into blocks, packs and chunks, and uploads them.

use std::collections::HashMap;

use pagefold_engine::Key;
use pagefold_engine::pool::{StreamEntry, StreamItem, StreamPage, StreamReader};
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

use super::Making;
use crate::block::{BlockRef, Kind, ModelRef, RecordRef};
use crate::chunk::{self, CHUNK_BYTES_MAX, Entry, PageEntry};
use crate::error::Result;
use crate::limits::{BLOCK_BYTES, CHUNK_ENTRIES, PACK_BYTES, ROOT_PART_BYTES};
use crate::merge::{Chunks, Made, Merge};
use crate::pack::{PackBuilder, PackId, squeeze, unsqueeze};
use crate::repository::Repository;
use crate::root::{Root, Row};
use crate::upload::{Uploaded, Uploader};

/// Largest number of entries that wait for their pack's name, and of their bytes. They bound the memory: beyond them a
/// pack is ended early.
const WAITING_MAX: usize = 64 * CHUNK_ENTRIES;
const WAITING_BYTES_MAX: usize = 32 << 20;

impl<'r> Making<'r> {
    /// Begins a backup in `epoch` that takes over from `old` what stays the same. `is_whole` tells that the stream will
    /// have all of the snapshot, not only changes. Records that `other` has under the same keys are taken over, too.
    pub(super) fn new(
        repository: &'r Repository,
        epoch: u64,
        old: Root,
        is_whole: bool,
        other: Option<Root>,
        uploader: Uploader,
    ) -> Self {
        Self {
            repository,
            epoch,
            other: other.map(|root| (root, Chunks::new(repository))),
            models: old.needs.models.keys().map(|model| (model.hash, *model)).collect(),
            merge: Merge::new(repository, old, is_whole),
            data: PackBuilder::new(&repository.sealer),
            meta: PackBuilder::new(&repository.sealer),
            rows: Vec::new(),
            unnamed_rows: 0,
            numbered: HashMap::new(),
            uploader,
            packs: 0,
            added_bytes: 0,
            reused: Vec::new(),
        }
    }

    /// Takes in a stream; `watch` gets the number of bytes of records so far.
    pub(super) fn read(&mut self, stream: &mut StreamReader<'_>, watch: &mut dyn FnMut(u64)) -> Result<()> {
        while let Some(item) = stream.item()? {
            match item {
                StreamItem::Model { id, body } => self.model(id, &body)?,
                StreamItem::Entries(entries) => {
                    let mut failed = None;
                    let visited = stream.entries(entries.payload(), &mut |entry| {
                        self.entry(entry).map_err(|error| {
                            failed = Some(error);
                            pagefold_engine::Error::Invalid("the backup failed".into())
                        })
                    });
                    failed.map_or(Ok(()), Err)?;
                    visited?;
                    stream.give_back(entries);
                    self.drain()?;
                    watch(stream.so_far().record_bytes);
                }
            }
        }
        Ok(())
    }

    fn model(&mut self, id: u32, body: &[u8]) -> Result<()> {
        let hash = xxh3_128(body);
        self.numbered.insert(id, hash);
        if !self.models.contains_key(&hash) {
            let block = self.data.push(Kind::Model, &squeeze(body)?);
            self.models.insert(hash, ModelRef { hash, block });
        }
        Ok(())
    }

    fn entry(&mut self, entry: StreamEntry<'_>) -> Result<()> {
        match entry {
            StreamEntry::Put(key, value) => self.merge.set(Entry::Value(key, value.into())),
            StreamEntry::Delete(key) => self.merge.remove(&key, &key),
            StreamEntry::Punch { object, first, count } => {
                let last = first.saturating_add(count - 1);
                self.merge.remove(&Key::page(object, first), &Key::page(object, last))
            }
            StreamEntry::Pages { object, record_size, first, pages } => {
                for (page, what) in (first..).zip(pages) {
                    let entry = match what {
                        StreamPage::Record(record, needs) => {
                            self.record((object, page), record_size, record, needs.model)?
                        }
                        StreamPage::Same(of, at) => {
                            let found = self.find(of, at)?.filter(|found| found.record_size == record_size);
                            let found = found.ok_or_else(|| {
                                pagefold_engine::Error::corrupt(
                                    "stream",
                                    "a page is said to be the same as one that did not come",
                                )
                            })?;
                            PageEntry { object, page, shared: Some((of, at)), ..found }
                        }
                    };
                    self.merge.set(Entry::Page(entry))?;
                }
                Ok(())
            }
        }
    }

    /// Returns the entry of a page with this record. Stores the record unless the old manifest has it.
    fn record(
        &mut self,
        page: (u64, u64),
        record_size: u32,
        record: &[u8],
        model: Option<u32>,
    ) -> Result<PageEntry> {
        let hash = xxh3_64(record);
        let model = model.map(|id| {
            let model = self.numbered.get(&id).and_then(|hash| self.models.get(hash)).copied();
            model.ok_or_else(|| {
                pagefold_engine::Error::corrupt("stream", "a record needs a model that did not come")
            })
        });
        let model = model.transpose()?;
        let same =
            self.merge.is_same(page, record_size, (hash, record.len()), model.map(|model| model.hash))?;
        if let Some(same) = same {
            return Ok(same);
        }
        if let Some(record) = self.in_other(page, record_size, (hash, record.len()), model) {
            return Ok(PageEntry { object: page.0, page: page.1, record_size, record, shared: None });
        }
        if self.data.bytes() >= PACK_BYTES {
            self.finish_data()?;
        }
        if self.data.open_bytes() + record.len() > BLOCK_BYTES {
            self.data.close();
        }
        let (block, at) = self.data.add_record(record, hash);
        // The model's pack may have been named by one of the calls above.
        let model = model.and_then(|model| self.models.get(&model.hash)).copied();
        let record = RecordRef { block, at, len: record.len() as u32, hash, model };
        Ok(PageEntry { object: page.0, page: page.1, record_size, record, shared: None })
    }

    /// Returns the record of a page in the other manifest, if it is this one. If that manifest cannot be read, the
    /// record is stored again.
    fn in_other(
        &mut self,
        (object, page): (u64, u64),
        record_size: u32,
        same: (u64, usize),
        model: Option<ModelRef>,
    ) -> Option<RecordRef> {
        let (root, chunks) = self.other.as_mut()?;
        let Ok(found) = chunks.page(root, object, page) else {
            self.other = None;
            return None;
        };
        let found = found.filter(|found| found.record_size == record_size)?.record;
        let is_same = (found.hash, found.len as usize) == same
            && found.model.map(|model| model.hash) == model.map(|model| model.hash);
        // The model may have been stored again: the records by it in this backup share one.
        is_same.then_some(RecordRef { model, ..found })
    }

    /// Returns the entry of a page that came earlier in the stream.
    fn find(&mut self, object: u64, page: u64) -> Result<Option<PageEntry>> {
        if let Some(found) = self.merge.unwritten(object, page)? {
            return Ok(Some(found));
        }
        let key = Key::page(object, page);
        let after = self.rows.partition_point(|row| row.first <= key);
        let Some(row) = after.checked_sub(1).and_then(|at| self.rows.get(at)).copied() else {
            return Ok(None);
        };
        if row.block.pack == PackId::OPEN {
            let squeezed = self.meta.block(row.block.index).unwrap_or_default();
            let name = "a chunk in memory";
            let entries = chunk::decode(&unsqueeze(squeezed, CHUNK_BYTES_MAX, name)?)?;
            let found = entries.binary_search_by_key(&key, Entry::key).ok().and_then(|at| entries.get(at));
            return Ok(found.and_then(|entry| if let Entry::Page(page) = entry { Some(*page) } else { None }));
        }
        self.uploader.settle();
        let root = Root { rows: vec![row], ..Root::default() };
        Chunks::new(self.repository).page(&root, object, page)
    }

    /// Gives the pack of data, whose blocks are `places`, its name; entries and models that lie in it get it too.
    fn name_data(&mut self, id: PackId, places: &[BlockRef]) {
        self.merge.name_open(id, places);
        let models = self.models.values_mut().filter(|model| model.block.pack == PackId::OPEN);
        models.for_each(|model| model.block.pack = id);
    }

    fn finish_data(&mut self) -> Result<()> {
        self.data.close();
        if self.data.is_empty() {
            return Ok(());
        }
        let next = PackBuilder::in_buffer(&self.repository.sealer, self.uploader.buffer());
        let pack = std::mem::replace(&mut self.data, next);
        let places = pack.places();
        let id = self.upload(pack)?;
        self.name_data(id, &places);
        self.drain()
    }

    /// Uploads a pack, unless an earlier run did; returns its name.
    fn upload(&mut self, pack: PackBuilder) -> Result<PackId> {
        let content = pack.content_hash();
        if let Some(known) = self.uploader.known(content, self.epoch) {
            self.reused.push(known);
            return Ok(known.id);
        }
        let id = PackId::new()?;
        self.upload_as(pack, id, content)?;
        Ok(id)
    }

    fn upload_as(&mut self, pack: PackBuilder, id: PackId, content: u128) -> Result<()> {
        let bytes = pack.finish(&self.repository.id, id, &self.repository.sealer)?;
        self.packs += 1;
        self.added_bytes += bytes.len() as u64;
        let uploaded = Uploaded { content, id, bytes: bytes.len() as u64, epoch: self.epoch };
        self.uploader.upload(uploaded, bytes)
    }

    /// Writes the chunks all of whose records have places.
    fn drain(&mut self) -> Result<()> {
        let is_open = |entry: &Entry| match entry {
            Entry::Page(page) => {
                let model = page.record.model.is_some_and(|model| model.block.pack == PackId::OPEN);
                model || page.record.block.pack == PackId::OPEN
            }
            Entry::Value(..) => false,
        };
        while let Some(made) = self.merge.made.front() {
            if let Made::New(entries) = made
                && entries.iter().any(is_open)
            {
                let (mut count, mut bytes) = (0, 0);
                for made in &self.merge.made {
                    if let Made::New(entries) = made {
                        count += entries.len();
                        bytes += entries.iter().map(Entry::bytes).sum::<usize>();
                    }
                }
                if count > WAITING_MAX || bytes > WAITING_BYTES_MAX {
                    return self.finish_data();
                }
                return Ok(());
            }
            match self.merge.made.pop_front() {
                Some(Made::Kept(row)) => self.rows.push(row),
                Some(Made::New(entries)) => {
                    let Some(first) = entries.first().map(Entry::key) else { continue };
                    let block = self.meta.push(Kind::Chunk, &squeeze(&chunk::encode(&entries))?);
                    self.rows.push(Row { first, entries: entries.len() as u32, block });
                    if self.meta.bytes() >= PACK_BYTES {
                        let pack =
                            std::mem::replace(&mut self.meta, PackBuilder::new(&self.repository.sealer));
                        let id = self.upload(pack)?;
                        self.name_rows(id, (0, 0));
                    }
                }
                None => {}
            }
        }
        Ok(())
    }

    /// Gives the pack of chunks its name, and adds to the places of its blocks the number of blocks and bytes by which
    /// they moved.
    fn name_rows(&mut self, id: PackId, (index, offset): (u32, u32)) {
        for row in self.rows.iter_mut().skip(self.unnamed_rows).filter(|row| row.block.pack == PackId::OPEN) {
            let block = &mut row.block;
            *block = BlockRef {
                pack: id,
                index: block.index + index,
                offset: block.offset + offset,
                len: block.len,
            };
        }
        self.unnamed_rows = self.rows.len();
    }

    /// Writes the rest, and the root. Returns the root's blocks unless it is the same as that of the backup before.
    pub(super) fn finish(&mut self, old_root: Option<&[u8]>) -> Result<(Root, Option<Vec<BlockRef>>)> {
        self.merge.end()?;
        if self.data.bytes() + self.meta.bytes() > PACK_BYTES {
            self.finish_data()?;
        }
        self.data.close();
        // The last pack has everything that is left: data, chunks, root.
        let id = PackId::new()?;
        self.name_data(id, &self.data.places());
        self.drain()?;
        let sealer = &self.repository.sealer;
        let meta = std::mem::replace(&mut self.meta, PackBuilder::new(sealer));
        let moved = self.data.append(&meta);
        self.name_rows(id, moved);
        let root =
            Root { needs: std::mem::take(&mut self.merge.needs), rows: std::mem::take(&mut self.rows) };
        let bytes = root.encode();
        if self.data.is_empty() && old_root == Some(bytes.as_slice()) {
            return Ok((root, None));
        }
        let mut blocks = Vec::new();
        for part in bytes.chunks(ROOT_PART_BYTES) {
            let block = self.data.push(Kind::Root, &squeeze(part)?);
            blocks.push(BlockRef { pack: id, ..block });
        }
        let pack = std::mem::replace(&mut self.data, PackBuilder::new(sealer));
        let content = pack.content_hash();
        self.upload_as(pack, id, content)?;
        Ok((root, Some(blocks)))
    }
}
