//! Restores: writes a manifest, or its difference from another one, as a stream for a pool.

use std::collections::{HashMap, HashSet, VecDeque};
use std::io::Write;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;

use pagefold_engine::Key;
use pagefold_engine::pool::{StreamHead, StreamWriter};
use serde::Serialize;
use xxhash_rust::xxh3::xxh3_128;

use crate::block::{BlockRef, Kind, ModelRef, RecordRef};
use crate::chunk::{Entry, PageEntry};
use crate::commit::Backup;
use crate::error::{Error, Result};
use crate::fetch::{Blocks, Fetched, Missing, Plan, fetch, record_of};
use crate::limits::{RESTORE_WINDOW_BYTES, WINDOW_MODELS, WINDOWS_AHEAD};
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

    /// Returns the next entry. Rows that `other` has too are not read ahead, as they are skipped.
    fn pop(&mut self, other: &Self, chunks: &mut Chunks<'_>) -> Result<Option<Entry>> {
        if let Some(row) = self.unopened() {
            let rest = self.root.rows.get(self.next..).unwrap_or_default();
            let is_wanted = |row: &&Row| other.root.rows.is_empty() || !other.root.has_row(row);
            self.open = chunks.read_on(&row, rest.iter().filter(is_wanted))?.iter().cloned().collect();
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
                    let new = self.new.pop(&self.old, &mut self.chunks)?;
                    let old = self.old.pop(&self.new, &mut self.chunks)?;
                    match (new, old) {
                        (Some(new), Some(old)) if is_same(&new, &old) => {}
                        (Some(new), _) => return Ok(Some(Change::Set(new))),
                        (None, _) => return Ok(None),
                    }
                }
                (Some(new), old) if old.is_none_or(|old| new < old) => {
                    return Ok(self.new.pop(&self.old, &mut self.chunks)?.map(Change::Set));
                }
                _ => {
                    let removed = self.old.pop(&self.new, &mut self.chunks)?;
                    return Ok(removed.map(|entry| Change::Removed(entry.key())));
                }
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

impl Repository {
    /// Reads a model, and verifies it.
    pub(crate) fn model(&self, model: &ModelRef) -> Result<Vec<u8>> {
        let mut read = self.models(std::slice::from_ref(model))?;
        Ok(read.pop().unwrap_or_default())
    }

    /// Reads models, and verifies them.
    fn models(&self, models: &[ModelRef]) -> Result<Vec<Vec<u8>>> {
        let wanted: Vec<_> = models.iter().map(|model| (Kind::Model, model.block)).collect();
        let verified = |(model, squeezed): (&ModelRef, Vec<u8>)| {
            let object = model.block.pack.path();
            let body = unsqueeze(&squeezed, MODEL_BYTES_MAX, &object)?;
            if xxh3_128(&body) != model.hash {
                return Err(Error::damaged(object, "a model is not the one that the manifest means"));
            }
            Ok(body)
        };
        models.iter().zip(self.read(&wanted)?).map(verified).collect()
    }

    /// Writes a backup to `out` as a stream that [`pagefold_engine::pool::Pool::receive`] takes: all of it, or its
    /// difference from the backup `since`. `after` is the last key that came of an earlier stream of the same, which
    /// was interrupted.
    ///
    /// Takes memory for some windows of blocks, whatever the backup's size, and for its root.
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
        let (blocks, models) = (Blocks::new(self), HashSet::new());
        let mut windows = Windows { changes, after, blocks, models, ended: false };
        // The next windows come while one is written: no line is idle because of another one.
        std::thread::scope(|scope| {
            let (sender, receiver) = sync_channel(WINDOWS_AHEAD);
            let begin = |name: &str| std::thread::Builder::new().name(name.into());
            let failed = |source| Error::Local { doing: "cannot start to fetch".into(), source };
            let planning = begin("plan").spawn_scoped(scope, move || {
                while let Some(planned) = windows.next() {
                    let fetching = planned.and_then(|planned| {
                        let Planned { window, models, missing } = planned;
                        let fetching = begin("fetch").spawn_scoped(scope, move || {
                            fetch(self, &missing)?;
                            self.models(&models).map(|bodies| (models, bodies))
                        });
                        Ok((window, fetching.map_err(failed)?))
                    });
                    let is_last = fetching.is_err();
                    // Whoever writes has ended by an error of its own.
                    if sender.send(fetching).is_err() || is_last {
                        return;
                    }
                }
            });
            planning.map_err(failed)?;
            for next in receiver {
                let (window, fetching) = next?;
                let fetched = fetching.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                let (models, bodies) = fetched?;
                models.iter().zip(&bodies).try_for_each(|(model, body)| restoring.model(model, body))?;
                for change in window.changes {
                    restoring.write(change, &window.blocks)?;
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
    blocks: HashMap<BlockRef, Fetched>,
}

/// A window, and what is to be fetched for it.
struct Planned {
    window: Window,
    /// Models that no window before it has.
    models: Vec<ModelRef>,
    /// Blocks that no window before it has.
    missing: Missing,
}

/// Cuts changes into windows.
struct Windows<'a> {
    changes: Changes<'a>,
    /// The last key that is not wanted.
    after: Option<Key>,
    blocks: Blocks<'a>,
    /// Models of the windows so far, by their hashes.
    models: HashSet<u128>,
    ended: bool,
}

impl Windows<'_> {
    fn next(&mut self) -> Option<Result<Planned>> {
        (!self.ended).then(|| self.window())
    }

    fn window(&mut self) -> Result<Planned> {
        let (mut changes, mut wanted, mut bytes, mut last) = (Vec::new(), HashSet::new(), 0, None);
        let mut models = Vec::new();
        while bytes < RESTORE_WINDOW_BYTES && changes.len() < WINDOW_ENTRIES && models.len() < WINDOW_MODELS {
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
            // Most pages have the block and the model of the page before.
            if let Change::Set(Entry::Page(page)) = &change
                && last.replace((page.record.block, page.record.model))
                    != Some((page.record.block, page.record.model))
            {
                let RecordRef { block, model, .. } = page.record;
                if wanted.insert(block) && !self.blocks.has(&block) {
                    bytes += block.len as usize;
                }
                if let Some(model) = model
                    && self.models.insert(model.hash)
                {
                    bytes += model.block.len as usize;
                    models.push(model);
                }
            }
            if let Change::Set(Entry::Value(_, value)) = &change {
                bytes += value.len();
            }
            changes.push(change);
        }
        let Plan { blocks, missing } = self.blocks.plan(&wanted);
        Ok(Planned { window: Window { changes, blocks }, models, missing })
    }
}

struct Restoring<'a, 'o> {
    chunks: Chunks<'a>,
    /// Root of the manifest, if all of it is restored.
    root: Option<Arc<Root>>,
    out: StreamWriter<'o>,
    /// Numbers of models in the stream, by their hashes.
    models: HashMap<u128, u32>,
    done: Restored,
}

impl Restoring<'_, '_> {
    /// Sends a model, which gets the next number.
    fn model(&mut self, model: &ModelRef, body: &[u8]) -> Result<()> {
        let number = self.models.len() as u32 + 1;
        self.out.model(number, body).map_err(in_pack(&model.block))?;
        self.models.insert(model.hash, number);
        Ok(())
    }

    fn write(&mut self, change: Change, blocks: &HashMap<BlockRef, Fetched>) -> Result<()> {
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

    fn page(&mut self, page: &PageEntry, blocks: &HashMap<BlockRef, Fetched>) -> Result<()> {
        self.done.pages += 1;
        if let (Some(root), Some(of)) = (&self.root, page.shared)
            && let Some(found) = self.chunks.page(root, of.0, of.1)?
            && found.record == page.record
            && found.record_size == page.record_size
        {
            return Ok(self.out.same(page.object, page.record_size, page.page, of)?);
        }
        let number = |model: ModelRef| {
            let number = self.models.get(&model.hash).copied();
            number.ok_or_else(|| Error::damaged(model.block.pack.path(), "a model was not fetched"))
        };
        let model = page.record.model.map(number).transpose()?;
        let record = record_of(blocks, &page.record)?;
        self.done.record_bytes += record.len() as u64;
        let written = self.out.page(page.object, page.record_size, page.page, record, model);
        written.map_err(in_pack(&page.record.block))
    }
}

/// Returns a function that says of an error in which pack it was found. Names of packs are made only for errors: there
/// are millions of pages.
fn in_pack(block: &BlockRef) -> impl FnOnce(pagefold_engine::Error) -> Error {
    let pack = block.pack;
    move |error| Error::in_object(&pack.path())(error)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use object_store::memory::InMemory;

    use super::*;
    use crate::crafted;
    use crate::create::CreateOptions;
    use crate::limits::{CHUNK_ENTRIES, CHUNKS_AHEAD};
    use crate::repository::InitOptions;
    use crate::seen::Seen;
    use crate::store::Store;

    /// With a store that takes its time for each request, their number is what a restore takes.
    #[test]
    fn windows_ask_for_many_chunks_at_once_and_for_no_block_twice() {
        let objects = Arc::new(InMemory::new());
        let store = || Store::new(Arc::<InMemory>::clone(&objects), "").unwrap();
        let chunks = 2 * CHUNKS_AHEAD as u64;
        let backup = crafted::large(store(), chunks * CHUNK_ENTRIES as u64).unwrap();
        let repository = Repository::open(store(), Seen::default(), None).unwrap();
        let before = repository.store().requests();
        let new = Arc::new(repository.root(&backup).unwrap());
        let changes = Changes::new(&repository, new, Arc::default());
        let (blocks, models) = (Blocks::new(&repository), HashSet::new());
        let mut windows = Windows { changes, after: None, blocks, models, ended: false };
        let mut pages = 0;
        while let Some(planned) = windows.next() {
            let planned = planned.unwrap();
            pages += planned.window.changes.len() as u64;
            fetch(&repository, &planned.missing).unwrap();
        }
        assert_eq!(pages, chunks * CHUNK_ENTRIES as u64);
        let after = repository.store().requests();
        // The root, the chunks, and the blocks of 8 MiB of records, at most 4 MiB a request.
        let gets = after.gets - before.gets;
        assert!(gets <= 1 + chunks.div_ceil(CHUNKS_AHEAD as u64) + 1 + 3, "{gets} requests");
        let bytes = after.get_bytes - before.get_bytes;
        assert!(bytes < 12 << 20, "{bytes} bytes for 8 MiB of records");
    }

    /// Values come with the manifest, in chunks that compress well.
    #[test]
    fn windows_have_few_bytes_of_values() {
        const VALUE: usize = 60_000;
        let count = 4 * RESTORE_WINDOW_BYTES / VALUE;
        let store = Store::new(Arc::new(InMemory::new()), "").unwrap();
        let repository = Repository::init(store, Seen::default(), &InitOptions::default()).unwrap();
        let head = StreamHead {
            to: crafted::origin(),
            from: None,
            after: None,
            name: "one".into(),
            expected_bytes: 0,
        };
        let mut stream = Vec::new();
        let mut out = StreamWriter::new(&mut stream, &head).unwrap();
        for object in 1..=count as u64 {
            out.put(Key::new(object, 2, 7), &[7; VALUE]).unwrap();
        }
        out.end().unwrap();
        let options = CreateOptions { pool: "tank".into(), dataset: "db".into(), ..CreateOptions::default() };
        let created = repository.create(&mut stream.as_slice(), &options, &mut |_, _| {}).unwrap();
        let new = Arc::new(repository.root(&created.backup).unwrap());
        let changes = Changes::new(&repository, new, Arc::default());
        let (blocks, models) = (Blocks::new(&repository), HashSet::new());
        let mut windows = Windows { changes, after: None, blocks, models, ended: false };
        let mut all = 0;
        while let Some(planned) = windows.next() {
            let value = |change: &Change| match change {
                Change::Set(Entry::Value(_, value)) => value.len(),
                Change::Set(Entry::Page(_)) | Change::Removed(_) => 0,
            };
            let bytes: usize = planned.unwrap().window.changes.iter().map(value).sum();
            assert!(bytes < RESTORE_WINDOW_BYTES + VALUE, "{bytes} bytes of values in a window");
            all += bytes;
        }
        assert_eq!(all, count * VALUE);
    }
}
