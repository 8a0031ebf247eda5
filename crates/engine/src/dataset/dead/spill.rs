//! The records of a bucket that lie in blocks: puts them there, joins them with those of another bucket, visits them.

use super::DeadBlocks;
use super::bucket::{Bucket, Chain, Sublist};
use crate::{Error, Ptr, Result};

/// Number of records in a block, which then takes some KiB.
const BLOCK_RECORDS: usize = 512;

impl Bucket {
    /// Takes all records of `other`.
    ///
    /// # Errors
    /// Errors of changing the pool's own tree.
    pub(crate) fn absorb(&mut self, other: Self, blocks: &DeadBlocks) -> Result<()> {
        self.chain = match (self.chain, other.chain) {
            (Some(chain), Some(behind)) => {
                blocks.link(chain.last, behind.first)?;
                Some(Chain { first: chain.first, last: behind.last })
            }
            (chain, behind) => chain.or(behind),
        };
        self.records = self.records.saturating_add(other.records);
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.open.extend(other.open);
        Ok(())
    }

    /// Puts full blocks into the pool's own tree.
    ///
    /// # Errors
    /// Errors of changing the tree.
    pub(crate) fn spill(&mut self, blocks: &DeadBlocks) -> Result<()> {
        let stays = self.open.len() % BLOCK_RECORDS;
        let full = self.open.split_off(stays);
        for block in full.chunks(BLOCK_RECORDS) {
            let chain = self.chain.get_or_insert_with(|| {
                let id = blocks.new_list();
                Chain { first: Sublist { id, blocks: 0 }, last: id }
            });
            blocks.store(chain.first.id, chain.first.blocks, block)?;
            chain.first.blocks += 1;
        }
        Ok(())
    }

    /// Visits all records. Returns the number of entries of the pool's own tree that they take.
    ///
    /// # Errors
    /// Errors of reading the records; [`Error::Corrupt`] if a chain has no end.
    pub(crate) fn for_each(&self, blocks: &DeadBlocks, visit: &mut dyn FnMut(Ptr)) -> Result<u64> {
        self.open.iter().copied().for_each(&mut *visit);
        let Some(Chain { mut first, last }) = self.chain else { return Ok(0) };
        let (mut records, mut entries) = (0, 0);
        loop {
            for at in 0..first.blocks {
                let block = blocks.load(first.id, at)?;
                records += block.len() as u64;
                if records > self.records {
                    let what = format!("dead list {}", first.id);
                    return Err(Error::corrupt(what, "its blocks have more records than are counted"));
                }
                block.into_iter().for_each(&mut *visit);
            }
            entries += first.blocks;
            if first.id == last {
                return Ok(entries);
            }
            first = blocks.linked(first.id)?;
            entries += 1;
        }
    }
}
