//! Blocks of records that are fetched before they are used, by one thread or by several.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, OnceLock};

use xxhash_rust::xxh3::xxh3_64;

use crate::block::{BlockRef, Kind, RecordRef};
use crate::error::{Error, Result};
use crate::limits::BLOCK_CACHE_BYTES;
use crate::repository::Repository;

/// An opened block, once it was fetched.
pub(crate) type Fetched = Arc<OnceLock<Vec<u8>>>;

/// Blocks that are to be fetched, and where they are then found.
pub(crate) type Missing = Vec<(BlockRef, Fetched)>;

/// Blocks that are wanted at once.
pub(crate) struct Plan {
    /// All of them.
    pub(crate) blocks: HashMap<BlockRef, Fetched>,
    /// Those that nobody has been told to fetch before.
    pub(crate) missing: Missing,
}

/// Fetches blocks of records, and keeps the most recent ones.
pub(crate) struct Blocks<'a> {
    repository: &'a Repository,
    kept: HashMap<BlockRef, Fetched>,
    order: VecDeque<BlockRef>,
    /// Bytes of the kept blocks as they are stored, which is about what they take.
    bytes: usize,
}

impl<'a> Blocks<'a> {
    pub(crate) fn new(repository: &'a Repository) -> Self {
        Self { repository, kept: HashMap::new(), order: VecDeque::new(), bytes: 0 }
    }

    /// Returns true if a block is kept, or will be once what was planned is fetched.
    pub(crate) fn has(&self, block: &BlockRef) -> bool {
        self.kept.contains_key(block)
    }

    /// Makes room for these blocks beside some of those before, and tells which of them have to be fetched.
    pub(crate) fn plan(&mut self, wanted: &HashSet<BlockRef>) -> Plan {
        while self.bytes > BLOCK_CACHE_BYTES {
            let Some(oldest) = self.order.pop_front() else { break };
            if wanted.contains(&oldest) {
                self.order.push_back(oldest);
                if self.order.iter().all(|block| wanted.contains(block)) {
                    break;
                }
                continue;
            }
            self.forget(&oldest);
        }
        let mut plan = Plan { blocks: HashMap::with_capacity(wanted.len()), missing: Vec::new() };
        for block in wanted {
            let fetched = self.kept.entry(*block).or_insert_with(|| {
                let fetched = Fetched::default();
                plan.missing.push((*block, Arc::clone(&fetched)));
                self.bytes += block.len as usize;
                self.order.push_back(*block);
                fetched
            });
            plan.blocks.insert(*block, Arc::clone(fetched));
        }
        plan
    }

    fn forget(&mut self, block: &BlockRef) {
        if self.kept.remove(block).is_some() {
            self.bytes -= block.len as usize;
        }
    }

    /// Reads these blocks into memory, beside some of those before.
    pub(crate) fn fetch(&mut self, wanted: &HashSet<BlockRef>) -> Result<()> {
        let plan = self.plan(wanted);
        fetch(self.repository, &plan.missing).inspect_err(|_| {
            plan.missing.iter().for_each(|(block, _)| self.forget(block));
            self.order.retain(|block| self.kept.contains_key(block));
        })
    }

    /// Returns a verified record of a block that was fetched.
    pub(crate) fn record(&self, record: &RecordRef) -> Result<&[u8]> {
        record_of(&self.kept, record)
    }
}

/// Fetches blocks.
pub(crate) fn fetch(repository: &Repository, missing: &[(BlockRef, Fetched)]) -> Result<()> {
    let wanted: Vec<_> = missing.iter().map(|(block, _)| (Kind::Records, *block)).collect();
    for ((_, fetched), bytes) in missing.iter().zip(repository.read(&wanted)?) {
        // Nobody else fetches it.
        let _ = fetched.set(bytes);
    }
    Ok(())
}

/// Returns a verified record of one of these blocks.
pub(crate) fn record_of<'b>(blocks: &'b HashMap<BlockRef, Fetched>, record: &RecordRef) -> Result<&'b [u8]> {
    let block = blocks.get(&record.block).and_then(|fetched| fetched.get());
    record.of(block.map_or(&[], Vec::as_slice))
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
