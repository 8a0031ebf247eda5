//! Blocks of records: one thread reads each while others that want it wait, and it is kept while there is room.

use std::collections::HashSet;
use std::sync::Arc;

use pagefold_backup::{BlockRef, Contents};
use pagefold_engine::Result;
use parking_lot::{Condvar, Mutex};
use quick_cache::Weighter;
use quick_cache::sync::Cache;

use crate::kept::kept;
use crate::limits::BLOCKS_OFTEN;
use crate::patience::Waiting;

/// An opened block.
pub(crate) type Block = Arc<Vec<u8>>;

#[derive(Clone)]
struct BlockWeight;

impl Weighter<BlockRef, Block> for BlockWeight {
    fn weight(&self, _: &BlockRef, block: &Block) -> u64 {
        block.len().max(1) as u64
    }
}

/// Fetches blocks.
pub(crate) struct Blocks {
    contents: Arc<Contents>,
    waiting: Arc<Waiting>,
    kept: Cache<BlockRef, Block, BlockWeight>,
    /// Blocks that some thread is reading.
    pending: Mutex<HashSet<BlockRef>>,
    arrived: Condvar,
}

/// Blocks that this thread reads: others wait for them until this is dropped.
struct Reading<'a> {
    blocks: &'a Blocks,
    mine: Vec<BlockRef>,
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        let mut pending = self.blocks.pending.lock();
        for block in &self.mine {
            pending.remove(block);
        }
        self.blocks.arrived.notify_all();
    }
}

impl Blocks {
    pub(crate) fn new(contents: Arc<Contents>, waiting: Arc<Waiting>, cache_bytes: u64) -> Self {
        let (pending, arrived) = (Mutex::default(), Condvar::new());
        Self { contents, waiting, kept: kept(cache_bytes, BLOCKS_OFTEN, BlockWeight), pending, arrived }
    }

    /// Returns the bytes of the blocks that are kept.
    pub(crate) fn kept_bytes(&self) -> u64 {
        self.kept.weight()
    }

    /// Takes over those blocks of `wanted` that are neither kept nor being read.
    fn take_over(&self, wanted: &[BlockRef]) -> Reading<'_> {
        let mut pending = self.pending.lock();
        let free = wanted.iter().filter(|block| self.kept.peek(*block).is_none());
        let mine = free.copied().filter(|block| pending.insert(*block)).collect();
        Reading { blocks: self, mine }
    }

    /// Returns these blocks, in their order.
    pub(crate) fn get(&self, wanted: &[BlockRef]) -> Result<Vec<Block>> {
        let mut found: Vec<Option<Block>> = wanted.iter().map(|block| self.kept.get(block)).collect();
        loop {
            let missing = |found: &[Option<Block>]| -> Vec<BlockRef> {
                let pairs = wanted.iter().zip(found);
                pairs.filter(|(_, found)| found.is_none()).map(|(block, _)| *block).collect()
            };
            let wants = missing(&found);
            if wants.is_empty() {
                return Ok(found.into_iter().flatten().collect());
            }
            let reading = self.take_over(&wants);
            if !reading.mine.is_empty() {
                let read = self.fetch(&reading.mine)?;
                for (block, bytes) in reading.mine.iter().zip(read) {
                    for (_, place) in wanted.iter().zip(&mut found).filter(|(wanted, _)| *wanted == block) {
                        *place = Some(Arc::clone(&bytes));
                    }
                }
            }
            drop(reading);
            // Other threads are reading the rest, or have read it.
            for block in missing(&found) {
                self.wait_for(&block);
            }
            for (block, place) in wanted.iter().zip(&mut found).filter(|(_, place)| place.is_none()) {
                *place = self.kept.get(block);
            }
        }
    }

    /// Reads missing blocks for later readers. It tries once only; a reader that needs them waits for the store.
    pub(crate) fn prepare(&self, wanted: &[BlockRef]) {
        let reading = self.take_over(wanted);
        if reading.mine.is_empty() {
            return;
        }
        match self.contents.blocks(&reading.mine) {
            Ok(read) => drop(self.keep(&reading.mine, read)),
            Err(error) => tracing::debug!(%error, "cannot read ahead"),
        }
    }

    fn wait_for(&self, block: &BlockRef) {
        let mut pending = self.pending.lock();
        while pending.contains(block) {
            self.arrived.wait(&mut pending);
        }
    }

    fn fetch(&self, wanted: &[BlockRef]) -> Result<Vec<Block>> {
        let what = || {
            let packs: HashSet<String> = wanted.iter().map(|block| block.pack.path()).collect();
            format!("{} blocks of {}", wanted.len(), packs.into_iter().collect::<Vec<_>>().join(", "))
        };
        let read = self.waiting.read(&self.contents, &what, || self.contents.blocks(wanted))?;
        Ok(self.keep(wanted, read))
    }

    fn keep(&self, wanted: &[BlockRef], read: Vec<Vec<u8>>) -> Vec<Block> {
        let keep = |(block, bytes): (&BlockRef, Vec<u8>)| {
            let bytes = Arc::new(bytes);
            self.kept.insert(*block, Arc::clone(&bytes));
            bytes
        };
        wanted.iter().zip(read).map(keep).collect()
    }
}
