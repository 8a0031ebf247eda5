//! A backup as a dataset that cannot be changed.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use pagefold_backup::{BlockRef, Contents, Requests};
use pagefold_engine::dataset::{Attempt, Caller, Change, Dataset, Reapers, Space, Synced, Usage};
use pagefold_engine::record::decode;
use pagefold_engine::{Error, Key, Result};
use parking_lot::{Mutex, RwLock};

use crate::ahead::{Ahead, Pages, Prepare};
use crate::blocks::{Block, Blocks};
use crate::limits::BLOCK_CACHE_BYTES;
use crate::manifest::{Found, Manifest};
use crate::models::{Models, Only};
use crate::patience::{Waiting, Wanted};

/// Options for reading a backup.
pub struct ReadOptions {
    /// Longest outage of the store for which a read waits.
    pub patience: Duration,
    /// Function that is asked during an outage whether anybody still waits.
    pub wanted: Wanted,
    /// Bytes of opened blocks that are kept in memory.
    pub cache_bytes: u64,
}

impl Default for ReadOptions {
    fn default() -> Self {
        Self { patience: Duration::from_secs(120), wanted: Box::new(|| true), cache_bytes: BLOCK_CACHE_BYTES }
    }
}

/// Figures of a backup that is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadFigures {
    /// Counts of requests to the store.
    pub requests: Requests,
    /// Bytes of opened blocks in memory.
    pub kept_bytes: u64,
    /// Seconds since the store has stopped answering, and the reason; `None` if it answers.
    pub outage: Option<(u64, String)>,
}

/// A backup as a dataset. Everything that is read was verified: the seals of its blocks and the checksum of each record
/// (L1).
pub struct BackupDataset {
    contents: Arc<Contents>,
    waiting: Arc<Waiting>,
    /// The manifest; a repacking of the repository replaces it, and what it names.
    manifest: RwLock<Arc<Manifest>>,
    /// Held by the thread that looks for another manifest.
    looking: Mutex<()>,
    blocks: Blocks,
    models: Models,
    ahead: Ahead,
}

/// A wanted part of a page.
struct Part<'a> {
    page: u64,
    within: usize,
    out: &'a mut [u8],
}

impl BackupDataset {
    /// Makes the dataset for the contents of a backup.
    pub fn new(contents: Contents, options: ReadOptions) -> Arc<Self> {
        let contents = Arc::new(contents);
        let waiting = Arc::new(Waiting::new(options.patience, options.wanted));
        Arc::new_cyclic(|this| Self {
            manifest: RwLock::new(Arc::new(Manifest::new(Arc::clone(&contents), Arc::clone(&waiting)))),
            looking: Mutex::new(()),
            blocks: Blocks::new(Arc::clone(&contents), Arc::clone(&waiting), options.cache_bytes),
            models: Models::new(Arc::clone(&contents), Arc::clone(&waiting)),
            ahead: Ahead::start(this, options.cache_bytes),
            contents,
            waiting,
        })
    }

    /// Returns the backup's contents as they were when it was opened.
    pub fn contents(&self) -> &Contents {
        &self.contents
    }

    /// Returns the figures of reading it.
    pub fn figures(&self) -> ReadFigures {
        ReadFigures {
            requests: self.contents.requests(),
            kept_bytes: self.blocks.kept_bytes(),
            outage: self.waiting.outage(),
        }
    }

    fn manifest(&self) -> Arc<Manifest> {
        Arc::clone(&self.manifest.read())
    }

    /// Does `read` by the manifest, and once more by each new one if the repository has been repacked meanwhile.
    fn by_manifest<T>(&self, mut read: impl FnMut(&Manifest) -> Result<T>) -> Result<T> {
        loop {
            let (manifest, missed) = (self.manifest(), self.waiting.missed());
            match read(&manifest) {
                Err(Error::Corrupt { what, detail, at }) if self.waiting.missed() > missed => {
                    if !self.is_replaced(&manifest)? {
                        tracing::error!(what = %what, detail = %detail, "a part of the backup is lost");
                        return Err(Error::Corrupt { what, detail, at });
                    }
                }
                done => return done,
            }
        }
    }

    /// Returns true if there is another manifest than `old`, after looking for one.
    fn is_replaced(&self, old: &Arc<Manifest>) -> Result<bool> {
        let _looking = self.looking.lock();
        if !Arc::ptr_eq(&self.manifest(), old) {
            return Ok(true);
        }
        let what = || "the backup's manifest".to_owned();
        let contents = self.waiting.read(&old.contents, &what, || old.contents.repacked())?;
        let Some(contents) = contents else { return Ok(false) };
        tracing::info!(
            backup = contents.backup().number,
            "the repository was repacked: reading by the new manifest"
        );
        *self.manifest.write() = Arc::new(Manifest::new(Arc::new(contents), Arc::clone(&self.waiting)));
        Ok(true)
    }

    fn read_by(
        &self,
        manifest: &Manifest,
        object: u64,
        record_size: u32,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<()> {
        buf.fill(0);
        let parts = parts(record_size, offset, buf);
        let (Some(first), Some(last)) = (parts.first(), parts.last()) else { return Ok(()) };
        let pages = Pages { object, from: first.page, to: last.page.saturating_add(1) };
        let found = manifest.pages(object, pages.from, pages.to)?;
        let blocks = blocks_of(&found);
        self.ahead.note(pages, record_size);
        let opened: HashMap<BlockRef, Block> =
            blocks.iter().copied().zip(self.blocks.get(&blocks)?).collect();
        let mut found = found.into_iter().peekable();
        let mut whole = Vec::new();
        for part in parts {
            let Some(here) = found.next_if(|found| found.page == part.page) else { continue };
            if here.record_size != record_size {
                return Err(Error::corrupt(
                    format!("page {} of object {object} of the backup", here.page),
                    format!("it has {} bytes, and its file's pages have {record_size}", here.record_size),
                ));
            }
            let Some(block) = opened.get(&here.record.block) else { continue };
            if part.out.len() == record_size as usize {
                self.fill(object, &here, block, part.out)?;
                continue;
            }
            whole.resize(record_size as usize, 0);
            self.fill(object, &here, block, &mut whole)?;
            let end = part.within + part.out.len();
            part.out.copy_from_slice(whole.get(part.within..end).unwrap_or_default());
        }
        Ok(())
    }

    fn fill(&self, object: u64, found: &Found, block: &Block, page: &mut [u8]) -> Result<()> {
        let damaged = |why: String| {
            tracing::error!(object, page = found.page, why, "a page cannot be read");
            Error::corrupt(format!("page {} of object {object} of the backup", found.page), why)
        };
        let record = found.record.of(block).map_err(|error| damaged(error.to_string()))?;
        let model = found.record.model.as_ref().map(|model| self.models.get(model)).transpose()?;
        decode(record, &Only(model), page).map_err(|error| damaged(error.to_string()))
    }
}

/// Returns the blocks in which pages lie, each once, in their order in the packs.
fn blocks_of(found: &[Found]) -> Vec<BlockRef> {
    let mut blocks: Vec<BlockRef> = Vec::new();
    for found in found {
        let block = found.record.block;
        if blocks.last() != Some(&block) {
            blocks.push(block);
        }
    }
    blocks.sort_unstable();
    blocks.dedup();
    blocks
}

/// Cuts the wanted bytes by pages.
fn parts(record_size: u32, offset: u64, buf: &mut [u8]) -> Vec<Part<'_>> {
    let page_bytes = u64::from(record_size);
    let (mut at, mut rest, mut parts) = (offset, buf, Vec::new());
    while !rest.is_empty() {
        let within = (at % page_bytes) as usize;
        let len = rest.len().min(record_size as usize - within);
        let (out, behind) = rest.split_at_mut(len);
        parts.push(Part { page: at / page_bytes, within, out });
        at += len as u64;
        rest = behind;
    }
    parts
}

impl Prepare for BackupDataset {
    fn prepare(&self, Pages { object, from, to }: Pages) {
        match self.manifest().pages(object, from, to) {
            Ok(found) => self.blocks.prepare(&blocks_of(&found)),
            Err(error) => tracing::debug!(%error, "cannot read ahead"),
        }
    }
}

impl Dataset for BackupDataset {
    fn get(&self, key: &Key) -> Result<Option<Vec<u8>>> {
        self.by_manifest(|manifest| manifest.get(key))
    }

    fn range(&self, from: &Key, to: &Key, limit: usize) -> Result<Vec<(Key, Vec<u8>)>> {
        self.by_manifest(|manifest| manifest.range(from, to, limit))
    }

    /// Nothing is passed over: what cannot be read of a repository may be there the next time.
    fn first_damage(&self, _: &Key, _: &Key) -> Option<(Key, Key)> {
        None
    }

    fn apply(&self, _: &[Change<'_>]) -> Result<()> {
        Err(Error::ReadOnly("a backup is not changed".into()))
    }

    fn read(&self, object: u64, record_size: u32, offset: u64, buf: &mut [u8]) -> Result<()> {
        if record_size == 0 {
            return Err(Error::Invalid("a recordsize is 0".into()));
        }
        self.by_manifest(|manifest| self.read_by(manifest, object, record_size, offset, buf))
    }

    fn try_read(&self, _: u64, _: u32, _: u64, _: &mut [u8]) -> Result<Attempt> {
        Ok(Attempt::Wait)
    }

    fn next_data(&self, object: u64, page: u64) -> Result<Option<u64>> {
        self.by_manifest(|manifest| manifest.next_page(object, page))
    }

    fn next_hole(&self, object: u64, page: u64) -> Result<u64> {
        self.by_manifest(|manifest| manifest.next_hole(object, page))
    }

    fn usage(&self, object: u64) -> Result<Usage> {
        let (pages, stored_bytes) = self.by_manifest(|manifest| manifest.usage(object))?;
        Ok(Usage { pages, stored_bytes })
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn sync_then(&self, _: Caller, then: Synced) {
        then(Ok(()));
    }

    fn space(&self) -> Space {
        let stored = self.contents.backup().totals.record_bytes;
        Space {
            capacity_bytes: stored,
            used_bytes: stored,
            available_bytes: 0,
            logical_bytes: stored,
            thin: None,
        }
    }

    fn reapers(&self) -> Option<&Reapers> {
        None
    }
}
