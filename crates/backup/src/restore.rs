//! Restores: writes a manifest, or its difference from another one, as a stream for a pool.

use std::collections::{HashMap, HashSet, VecDeque};
use std::io::Write;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;

use pagefold_engine::Key;
use pagefold_engine::pool::{StreamHead, StreamWriter};
use serde::Serialize;
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

use crate::block::{BlockRef, Kind, ModelRef, RecordRef};
use crate::chunk::{Entry, PageEntry};
use crate::commit::Backup;
use crate::error::{Error, Result};
use crate::limits::{BLOCK_CACHE_BYTES, WINDOW_BYTES};
use crate::merge::Chunks;
use crate::pack::unsqueeze;
use crate::repository::Repository;
use crate::root::{Root, Row};

/// Number of entries that are examined before their records are fetched.
const WINDOW_ENTRIES: usize = 16 << 10;
/// Largest length of a model in bytes that is accepted: that of a stream's model.
const MODEL_BYTES_MAX: usize = 1 << 20;

/// The outcome of a restore.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Restored {
    /// Number of values that were set or deleted.
    pub values: u64,
    /// Number of pages that were set.
    pub pages: u64,
    /// Bytes of these pages' records.
    pub record_bytes: u64,
}

/// A difference between a manifest and another one.
pub(crate) enum Change {
    Set(Entry),
    Removed(Key),
}

/// A position in a manifest.
struct Cursor {
    root: Arc<Root>,
    next: usize,
    open: VecDeque<Entry>,
}

impl Cursor {
    fn key(&self) -> Option<Key> {
        let row = || self.root.rows.get(self.next).map(|row| row.first);
        self.open.front().map(Entry::key).or_else(row)
    }

    /// Returns the next row, if no chunk is open.
    fn unopened(&self) -> Option<Row> {
        if self.open.is_empty() { self.root.rows.get(self.next).copied() } else { None }
    }

    fn pop(&mut self, chunks: &mut Chunks<'_>) -> Result<Option<Entry>> {
        if let Some(row) = self.unopened() {
            self.open = chunks.read(&row)?.iter().cloned().collect();
            self.next += 1;
        }
        Ok(self.open.pop_front())
    }
}

/// Goes through the differences between two manifests. Chunks that both have are not read.
pub(crate) struct Changes<'a> {
    chunks: Chunks<'a>,
    new: Cursor,
    old: Cursor,
}

impl<'a> Changes<'a> {
    pub(crate) fn new(repository: &'a Repository, new: Arc<Root>, old: Arc<Root>) -> Self {
        let cursor = |root| Cursor { root, next: 0, open: VecDeque::new() };
        Self { chunks: Chunks::new(repository), new: cursor(new), old: cursor(old) }
    }

    /// Skips chunks that lie before `key` as a whole.
    pub(crate) fn skip_to(&mut self, key: &Key) {
        for cursor in [&mut self.new, &mut self.old] {
            let after = cursor.root.rows.partition_point(|row| row.first <= *key);
            cursor.next = after.saturating_sub(1);
        }
    }

    pub(crate) fn next(&mut self) -> Result<Option<Change>> {
        loop {
            let (new, old) = (self.new.key(), self.old.key());
            match (new, old) {
                (None, None) => return Ok(None),
                (Some(new), Some(old)) if new == old => {
                    if let (Some(a), Some(b)) = (self.new.unopened(), self.old.unopened())
                        && a.block == b.block
                    {
                        self.new.next += 1;
                        self.old.next += 1;
                        continue;
                    }
                    let new = self.new.pop(&mut self.chunks)?;
                    let old = self.old.pop(&mut self.chunks)?;
                    match (new, old) {
                        (Some(new), Some(old)) if is_same(&new, &old) => {}
                        (Some(new), _) => return Ok(Some(Change::Set(new))),
                        (None, _) => return Ok(None),
                    }
                }
                (Some(new), old) if old.is_none_or(|old| new < old) => {
                    return Ok(self.new.pop(&mut self.chunks)?.map(Change::Set));
                }
                _ => return Ok(self.old.pop(&mut self.chunks)?.map(|entry| Change::Removed(entry.key()))),
            }
        }
    }
}

/// Returns true if both say the same of a page, wherever its record lies.
fn is_same(new: &Entry, old: &Entry) -> bool {
    match (new, old) {
        (Entry::Page(new), Entry::Page(old)) => {
            let content = |page: &PageEntry| {
                (page.record.hash, page.record.len, page.record.model.map(|model| model.hash))
            };
            new.record_size == old.record_size && content(new) == content(old)
        }
        _ => new == old,
    }
}

/// Fetches blocks of records, and keeps the most recent ones.
pub(crate) struct Blocks<'a> {
    repository: &'a Repository,
    kept: HashMap<BlockRef, Arc<Vec<u8>>>,
    order: VecDeque<BlockRef>,
    bytes: usize,
}

impl<'a> Blocks<'a> {
    pub(crate) fn new(repository: &'a Repository) -> Self {
        Self { repository, kept: HashMap::new(), order: VecDeque::new(), bytes: 0 }
    }

    pub(crate) fn has(&self, block: &BlockRef) -> bool {
        self.kept.contains_key(block)
    }

    /// Reads these blocks into memory, beside some of those before.
    pub(crate) fn fetch(&mut self, wanted: &HashSet<BlockRef>) -> Result<()> {
        while self.bytes > BLOCK_CACHE_BYTES {
            let Some(oldest) = self.order.pop_front() else { break };
            if wanted.contains(&oldest) {
                self.order.push_back(oldest);
                if self.order.iter().all(|block| wanted.contains(block)) {
                    break;
                }
                continue;
            }
            self.bytes -= self.kept.remove(&oldest).map_or(0, |bytes| bytes.len());
        }
        let missing: Vec<_> =
            wanted.iter().filter(|block| !self.has(block)).map(|block| (Kind::Records, *block)).collect();
        for ((_, block), bytes) in missing.iter().zip(self.repository.read(&missing)?) {
            self.bytes += bytes.len();
            self.kept.insert(*block, Arc::new(bytes));
            self.order.push_back(*block);
        }
        Ok(())
    }

    /// Returns those of these blocks that were fetched.
    fn shared(&self, wanted: &HashSet<BlockRef>) -> HashMap<BlockRef, Arc<Vec<u8>>> {
        wanted.iter().filter_map(|block| Some((*block, Arc::clone(self.kept.get(block)?)))).collect()
    }

    /// Returns a verified record of a block that was fetched.
    pub(crate) fn record(&self, record: &RecordRef) -> Result<&[u8]> {
        record.of(self.kept.get(&record.block).map_or(&[], |bytes| bytes.as_slice()))
    }
}

impl RecordRef {
    /// Returns the record, verified, from its block's opened bytes.
    ///
    /// # Errors
    /// [`Error::Damaged`] if the block does not have it.
    pub fn of<'a>(&self, block: &'a [u8]) -> Result<&'a [u8]> {
        let (begin, end) = (self.at as usize, self.at as usize + self.len as usize);
        let found = block.get(begin..end).filter(|found| xxh3_64(found) == self.hash);
        found.ok_or_else(|| {
            let BlockRef { pack, index, .. } = self.block;
            Error::damaged(
                pack.path(),
                format!("the record at {begin} of block {index} is not the one that the manifest means"),
            )
        })
    }
}

impl Repository {
    /// Reads a model, and verifies it.
    pub(crate) fn model(&self, model: &ModelRef) -> Result<Vec<u8>> {
        let object = model.block.pack.path();
        let squeezed = self.read(&[(Kind::Model, model.block)])?;
        let body = unsqueeze(squeezed.first().map_or(&[], Vec::as_slice), MODEL_BYTES_MAX, &object)?;
        if xxh3_128(&body) != model.hash {
            return Err(Error::damaged(object, "a model is not the one that the manifest means"));
        }
        Ok(body)
    }

    /// Writes a backup to `out` as a stream that [`pagefold_engine::pool::Pool::receive`] takes: all of it, or its
    /// difference from the backup `since`. `after` is the last key that came of an earlier stream of the same, which
    /// was interrupted.
    ///
    /// Takes memory for three windows of blocks (one is written, one fetched, one kept from before), whatever the backup's size, and for its root.
    ///
    /// # Errors
    /// [`Error::Damaged`] and [`Error::Missing`] before anything wrong is written; [`Error::Stream`] for errors of
    /// `out`; errors of the store.
    pub fn restore(
        &self,
        backup: &Backup,
        since: Option<&Backup>,
        after: Option<Key>,
        out: &mut dyn Write,
        watch: &mut dyn FnMut(u64, u64),
    ) -> Result<Restored> {
        let new = Arc::new(self.root(backup)?);
        let old = Arc::new(since.map(|since| self.root(since)).transpose()?.unwrap_or_default());
        let head = StreamHead {
            to: backup.origin,
            from: since.map(|since| since.origin),
            after,
            name: backup.snapshot.clone(),
            expected_bytes: new.needs.totals.record_bytes,
        };
        let mut restoring = Restoring {
            repository: self,
            chunks: Chunks::new(self),
            // If only a part is sent, it is unknown which pages the receiver has.
            root: (since.is_none() && after.is_none()).then(|| Arc::clone(&new)),
            out: StreamWriter::new(out, &head)?,
            models: HashMap::new(),
            done: Restored::default(),
        };
        let mut changes = Changes::new(self, new, old);
        if let Some(after) = &after {
            changes.skip_to(after);
        }
        let mut windows = Windows { changes, after, blocks: Blocks::new(self), ended: false };
        // The next window comes while this one is written.
        std::thread::scope(|scope| {
            let (sender, receiver) = sync_channel(0);
            let fetching = std::thread::Builder::new().name("fetch".into()).spawn_scoped(scope, move || {
                while let Some(window) = windows.next() {
                    let failed = window.is_err();
                    // Whoever writes has ended by an error of its own.
                    if sender.send(window).is_err() || failed {
                        return;
                    }
                }
            });
            fetching.map_err(|source| Error::Local { doing: "cannot start to fetch".into(), source })?;
            for window in receiver {
                let Window { changes, blocks } = window?;
                for change in changes {
                    restoring.write(change, &blocks)?;
                }
                watch(restoring.done.record_bytes, head.expected_bytes);
            }
            Ok::<_, Error>(())
        })?;
        let done = restoring.done;
        restoring.out.end()?;
        Ok(done)
    }
}

/// Successive changes, and the blocks of their records.
struct Window {
    changes: Vec<Change>,
    blocks: HashMap<BlockRef, Arc<Vec<u8>>>,
}

/// Cuts changes into windows, and fetches their blocks.
struct Windows<'a> {
    changes: Changes<'a>,
    /// The last key that is not wanted.
    after: Option<Key>,
    blocks: Blocks<'a>,
    ended: bool,
}

impl Windows<'_> {
    fn next(&mut self) -> Option<Result<Window>> {
        (!self.ended).then(|| self.window())
    }

    fn window(&mut self) -> Result<Window> {
        let (mut changes, mut wanted, mut bytes) = (Vec::new(), HashSet::new(), 0);
        while bytes < WINDOW_BYTES && changes.len() < WINDOW_ENTRIES {
            let Some(change) = self.changes.next()? else {
                self.ended = true;
                break;
            };
            let key = match &change {
                Change::Set(entry) => entry.key(),
                Change::Removed(key) => *key,
            };
            if self.after.is_some_and(|after| key <= after) {
                continue;
            }
            if let Change::Set(Entry::Page(page)) = &change
                && wanted.insert(page.record.block)
                && !self.blocks.has(&page.record.block)
            {
                bytes += page.record.block.len as usize;
            }
            changes.push(change);
        }
        self.blocks.fetch(&wanted)?;
        Ok(Window { changes, blocks: self.blocks.shared(&wanted) })
    }
}

struct Restoring<'a, 'o> {
    repository: &'a Repository,
    chunks: Chunks<'a>,
    /// Root of the manifest, if all of it is restored.
    root: Option<Arc<Root>>,
    out: StreamWriter<'o>,
    /// Numbers of models in the stream, by their hashes.
    models: HashMap<u128, u32>,
    done: Restored,
}

impl Restoring<'_, '_> {
    fn write(&mut self, change: Change, blocks: &HashMap<BlockRef, Arc<Vec<u8>>>) -> Result<()> {
        match change {
            Change::Set(Entry::Value(key, value)) => {
                self.done.values += 1;
                self.out.put(key, &value)?;
            }
            Change::Removed(key) if key.kind == Key::PAGE => self.out.punch(key.object, key.offset)?,
            Change::Removed(key) => {
                self.done.values += 1;
                self.out.delete(key)?;
            }
            Change::Set(Entry::Page(page)) => self.page(&page, blocks)?,
        }
        Ok(())
    }

    fn page(&mut self, page: &PageEntry, blocks: &HashMap<BlockRef, Arc<Vec<u8>>>) -> Result<()> {
        self.done.pages += 1;
        if let (Some(root), Some(of)) = (&self.root, page.shared)
            && let Some(found) = self.chunks.page(root, of.0, of.1)?
            && found.record == page.record
            && found.record_size == page.record_size
        {
            return Ok(self.out.same(page.object, page.record_size, page.page, of)?);
        }
        let model = match &page.record.model {
            None => None,
            Some(model) => Some(match self.models.get(&model.hash) {
                Some(number) => *number,
                None => {
                    let number = self.models.len() as u32 + 1;
                    let body = self.repository.model(model)?;
                    self.out.model(number, &body).map_err(Error::in_object(&model.block.pack.path()))?;
                    self.models.insert(model.hash, number);
                    number
                }
            }),
        };
        let record = page.record.of(blocks.get(&page.record.block).map_or(&[], |bytes| bytes.as_slice()))?;
        self.done.record_bytes += record.len() as u64;
        let written = self.out.page(page.object, page.record_size, page.page, record, model);
        written.map_err(Error::in_object(&page.record.block.pack.path()))
    }
}
