//! Makes a manifest out of the one of the backup before and the changes that a stream brings.
//!
//! Both come in the order of keys. Chunks of the old manifest between changes are taken over by reference, neither read
//! nor written. A stream of a whole snapshot is compared with the old manifest record by record. So even a backup whose
//! previous snapshot is gone from the pool copies no record that is the same under the same key.

use std::collections::VecDeque;
use std::sync::Arc;

use pagefold_engine::Key;

use crate::block::{BlockRef, Kind};
use crate::chunk::{self, CHUNK_BYTES_MAX, Entry, PageEntry};
use crate::error::{Error, Result};
use crate::limits::{
    CHUNK_BYTES, CHUNK_CACHE, CHUNK_ENTRIES, CHUNK_ENTRIES_MIN, CHUNKS_AHEAD, CHUNKS_AHEAD_BYTES,
};
use crate::pack::{PackId, unsqueeze};
use crate::repository::Repository;
use crate::root::{Needs, Root, Row};

/// Reads chunks, and keeps the most recent ones.
pub(crate) struct Chunks<'a> {
    repository: &'a Repository,
    kept: VecDeque<(BlockRef, Arc<Vec<Entry>>)>,
    /// Chunks that were read before anybody wanted them, as they are stored.
    ahead: VecDeque<(BlockRef, Vec<u8>)>,
}

impl<'a> Chunks<'a> {
    pub(crate) fn new(repository: &'a Repository) -> Self {
        Self { repository, kept: VecDeque::new(), ahead: VecDeque::new() }
    }

    pub(crate) fn read(&mut self, row: &Row) -> Result<Arc<Vec<Entry>>> {
        self.read_on(row, [])
    }

    /// Reads a chunk, for a reader that will read the chunks of `then` as well: `row` may be the first of them.
    pub(crate) fn read_on<'r>(
        &mut self,
        row: &Row,
        then: impl IntoIterator<Item = &'r Row>,
    ) -> Result<Arc<Vec<Entry>>> {
        if let Some((_, chunk)) = self.kept.iter().find(|(block, _)| *block == row.block) {
            return Ok(Arc::clone(chunk));
        }
        let squeezed = match self.ahead.iter().position(|(block, _)| *block == row.block) {
            Some(at) => self.ahead.remove(at).map(|(_, squeezed)| squeezed).unwrap_or_default(),
            None => self.fetch(row.block, then)?,
        };
        let entries = open_chunk(row, &squeezed)?;
        if self.kept.len() == CHUNK_CACHE {
            self.kept.pop_front();
        }
        let entries = Arc::new(entries);
        self.kept.push_back((row.block, Arc::clone(&entries)));
        Ok(entries)
    }

    /// Returns the block, and keeps those of `then` for later.
    fn fetch<'r>(&mut self, block: BlockRef, then: impl IntoIterator<Item = &'r Row>) -> Result<Vec<u8>> {
        let mut bytes = block.len as usize;
        let later = then.into_iter().map(|row| row.block).filter(|later| *later != block);
        let later = later.take(CHUNKS_AHEAD - 1).take_while(|later| {
            bytes += later.len as usize;
            bytes <= CHUNKS_AHEAD_BYTES
        });
        let all: Vec<_> = std::iter::once(block).chain(later).map(|block| (Kind::Chunk, block)).collect();
        // If one of the others is damaged, that is told to whoever wants it.
        let read = match self.repository.read(&all) {
            Err(_) if all.len() > 1 => self.repository.read(&[(Kind::Chunk, block)]),
            read => read,
        };
        let mut read = read?.into_iter();
        let first = read.next().unwrap_or_default();
        let later = all.into_iter().skip(1).map(|(_, block)| block).zip(read);
        self.ahead.extend(later);
        let surplus = self.ahead.len().saturating_sub(2 * CHUNKS_AHEAD);
        self.ahead.drain(..surplus);
        Ok(first)
    }

    /// Returns the page's entry in a manifest.
    pub(crate) fn page(&mut self, root: &Root, object: u64, page: u64) -> Result<Option<PageEntry>> {
        let key = Key::page(object, page);
        let Some(row) = root.row_of(&key) else { return Ok(None) };
        let entries = self.read(row)?;
        let found = entries.binary_search_by_key(&key, Entry::key).ok().and_then(|at| entries.get(at));
        Ok(match found {
            Some(Entry::Page(page)) => Some(*page),
            _ => None,
        })
    }
}

/// Opens a block as the chunk that a manifest means by `row`, and returns its entries.
pub(crate) fn open_chunk(row: &Row, squeezed: &[u8]) -> Result<Vec<Entry>> {
    let object = row.block.pack.path();
    let bytes = unsqueeze(squeezed, CHUNK_BYTES_MAX, &object)?;
    let entries = chunk::decode(&bytes).map_err(Error::in_object(&object))?;
    if entries.len() != row.entries as usize || entries.first().map(Entry::key) != Some(row.first) {
        return Err(Error::damaged(object, "a chunk is not the one that its manifest means"));
    }
    Ok(entries)
}

/// A chunk of the new manifest.
pub(crate) enum Made {
    /// The row of an old chunk, which is taken over.
    Kept(Row),
    /// Entries that are to be written.
    New(Vec<Entry>),
}

/// Merges the old manifest and changes.
pub(crate) struct Merge<'a> {
    chunks: Chunks<'a>,
    old: Root,
    /// True if the changes are a whole snapshot: entries that do not come are removed.
    whole: bool,
    /// Index of the next row of `old`.
    next: usize,
    /// Entries of the old chunk that is open ...
    open: VecDeque<Entry>,
    /// ... and its row, as long as nothing in it has changed.
    same: Option<Row>,
    building: Vec<Entry>,
    building_bytes: usize,
    pub(crate) needs: Needs,
    pub(crate) made: VecDeque<Made>,
}

impl<'a> Merge<'a> {
    pub(crate) fn new(repository: &'a Repository, old: Root, whole: bool) -> Self {
        let needs = if whole { Needs::default() } else { old.needs.clone() };
        Self {
            chunks: Chunks::new(repository),
            old,
            whole,
            next: 0,
            open: VecDeque::new(),
            same: None,
            building: Vec::new(),
            building_bytes: 0,
            needs,
            made: VecDeque::new(),
        }
    }

    /// Gives the open pack its name, and its blocks their places.
    pub(crate) fn name_open(&mut self, id: PackId, places: &[BlockRef]) {
        self.needs.name_open(id);
        let made = self.made.iter_mut().flat_map(|made| match made {
            Made::New(entries) => entries.iter_mut(),
            Made::Kept(_) => [].iter_mut(),
        });
        for entry in self.building.iter_mut().chain(made) {
            let Entry::Page(page) = entry else { continue };
            if let Some(model) = page.record.model.as_mut().filter(|model| model.block.pack == PackId::OPEN) {
                model.block.pack = id;
            }
            let block = &mut page.record.block;
            if block.pack == PackId::OPEN
                && let Some(place) = places.get(block.index as usize)
            {
                *block = BlockRef { pack: id, ..*place };
            }
        }
    }

    /// Returns the entry of a page that came before, if it was not written yet.
    pub(crate) fn unwritten(&mut self, object: u64, page: u64) -> Result<Option<PageEntry>> {
        let key = Key::page(object, page);
        let within = |entries: &[Entry]| {
            let found = entries.binary_search_by_key(&key, Entry::key).ok().and_then(|at| entries.get(at));
            found.and_then(|entry| if let Entry::Page(page) = entry { Some(*page) } else { None })
        };
        if let Some(found) = within(&self.building) {
            return Ok(Some(found));
        }
        let first = |made: &Made| match made {
            Made::Kept(row) => Some(row.first),
            Made::New(entries) => entries.first().map(Entry::key),
        };
        let after = self.made.partition_point(|made| first(made) <= Some(key));
        match after.checked_sub(1).and_then(|at| self.made.get(at)) {
            None => Ok(None),
            Some(Made::New(entries)) => Ok(within(entries)),
            Some(Made::Kept(row)) => {
                let row = *row;
                Ok(within(&self.chunks.read(&row)?))
            }
        }
    }

    /// Ends the chunk that is being built.
    fn flush(&mut self) {
        if !self.building.is_empty() {
            self.made.push_back(Made::New(std::mem::take(&mut self.building)));
            self.building_bytes = 0;
        }
    }

    fn push(&mut self, entry: Entry) {
        if self.same.is_none() && (self.building.len() >= CHUNK_ENTRIES || self.building_bytes >= CHUNK_BYTES)
        {
            self.flush();
        }
        self.building_bytes += entry.bytes();
        self.building.push(entry);
    }

    /// Notes that the open chunk has changed.
    fn changed(&mut self) {
        self.same = None;
    }

    /// Takes an old entry over.
    fn keep(&mut self, entry: Entry) {
        if self.whole {
            self.needs.add(&entry);
        }
        self.push(entry);
    }

    /// Drops an old entry.
    fn lose(&mut self, entry: &Entry) {
        if !self.whole {
            self.needs.remove(entry);
        }
        self.changed();
    }

    /// Closes the open chunk at its end.
    fn close(&mut self) {
        if let Some(row) = self.same.take() {
            // All of it was kept, and nothing was added: it is the same chunk.
            self.building.clear();
            self.building_bytes = 0;
            self.made.push_back(Made::Kept(row));
        }
    }

    /// Goes on to `key` in the old manifest: entries before it are kept, or dropped if the changes are a whole
    /// snapshot.
    fn advance(&mut self, key: &Key) -> Result<()> {
        loop {
            while self.open.front().is_some_and(|entry| entry.key() < *key) {
                let Some(entry) = self.open.pop_front() else { break };
                if self.whole { self.lose(&entry) } else { self.keep(entry) }
            }
            if !self.open.is_empty() {
                return Ok(());
            }
            let Some(row) = self.old.rows.get(self.next).copied() else { return Ok(()) };
            let after = self.old.rows.get(self.next + 1).map(|row| row.first);
            if row.first > *key {
                // No old entry lies at the key: a new one goes into the chunk before.
                return Ok(());
            }
            self.close();
            self.next += 1;
            if after.is_some_and(|after| after <= *key) {
                // The chunk ends before the key.
                if !self.whole {
                    self.flush();
                    self.made.push_back(Made::Kept(row));
                }
                continue;
            }
            if self.building.len() >= CHUNK_ENTRIES_MIN {
                self.flush();
            }
            self.same = self.building.is_empty().then_some(row);
            self.open = self.chunks.read(&row)?.iter().cloned().collect();
        }
    }

    /// Takes the old entry at `key` out, if there is one.
    fn take(&mut self, key: &Key) -> Result<Option<Entry>> {
        self.advance(key)?;
        match self.open.front() {
            Some(entry) if entry.key() == *key => Ok(self.open.pop_front()),
            _ => Ok(None),
        }
    }

    /// Sets an entry. If a page has the same record as before, the entry must be the one that [`Merge::is_same`]
    /// returned.
    pub(crate) fn set(&mut self, entry: Entry) -> Result<()> {
        match self.take(&entry.key())? {
            Some(old) if old == entry => {
                self.keep(old);
                return Ok(());
            }
            Some(old) => self.lose(&old),
            None => self.changed(),
        }
        self.needs.add(&entry);
        self.push(entry);
        Ok(())
    }

    /// Returns the old entry of a page if it has this record.
    pub(crate) fn is_same(
        &mut self,
        (object, page): (u64, u64),
        record_size: u32,
        (hash, len): (u64, usize),
        model: Option<u128>,
    ) -> Result<Option<PageEntry>> {
        let key = Key::page(object, page);
        self.advance(&key)?;
        Ok(match self.open.front() {
            Some(Entry::Page(old))
                if (old.object, old.page, old.record_size) == (object, page, record_size)
                    && (old.record.hash, old.record.len as usize) == (hash, len)
                    && old.record.model.map(|model| model.hash) == model =>
            {
                Some(*old)
            }
            _ => None,
        })
    }

    /// Removes all entries from `first` to `last`, both included.
    pub(crate) fn remove(&mut self, first: &Key, last: &Key) -> Result<()> {
        self.advance(first)?;
        loop {
            while self.open.front().is_some_and(|entry| entry.key() <= *last) {
                if let Some(entry) = self.open.pop_front() {
                    self.lose(&entry);
                }
            }
            if !self.open.is_empty() {
                return Ok(());
            }
            let Some(next) = self.old.rows.get(self.next).map(|row| row.first).filter(|next| next <= last)
            else {
                return Ok(());
            };
            self.advance(&next)?;
        }
    }

    /// Ends the merge after the last change.
    pub(crate) fn end(&mut self) -> Result<()> {
        while let Some(entry) = self.open.pop_front() {
            if self.whole { self.lose(&entry) } else { self.keep(entry) }
        }
        self.close();
        self.flush();
        while let Some(row) = self.old.rows.get(self.next).copied() {
            self.next += 1;
            if !self.whole {
                self.made.push_back(Made::Kept(row));
            }
        }
        Ok(())
    }
}
