//! Buckets: the records of one birth.
//!
//! - L5: a bucket with many records has them in blocks, under the number of a sublist. Buckets are joined without
//!   reading their blocks: their sublists become a chain, each linked to the next. Every sublist of a chain has blocks.

use super::{SPACE_BYTES_MAX, decode_ptrs, encode_ptrs, space_of};
use crate::sums::subtract_stored;
use crate::wire::{Reader, put_varint};
use crate::{Ptr, Result};

/// A list of stored blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sublist {
    /// Number of the sublist, never used twice.
    pub id: u64,
    /// Number of blocks; they are numbered from 0 on.
    pub blocks: u64,
}

impl Sublist {
    /// Appends the stored form.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        put_varint(out, self.id);
        put_varint(out, self.blocks);
    }

    /// Reads the stored form.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    pub(crate) fn decode(reader: &mut Reader<'_>) -> Result<Self> {
        let list = Self { id: reader.varint()?, blocks: reader.varint()? };
        if list.id == 0 || list.blocks == 0 || list.blocks > SPACE_BYTES_MAX {
            return Err(reader.bad("a dead list has blocks that there cannot be"));
        }
        Ok(list)
    }
}

/// A chain of sublists, each linked to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chain {
    /// First sublist.
    pub first: Sublist,
    /// Number of the last sublist.
    pub last: u64,
}

/// The records of one birth.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bucket {
    /// Number of records.
    pub records: u64,
    /// Bytes that the records take, with their directory entries.
    pub bytes: u64,
    /// Records that are in no block.
    pub open: Vec<Ptr>,
    /// Chain of the sublists that have the other records.
    pub chain: Option<Chain>,
}

impl Bucket {
    /// Returns the memory that the bucket takes, in bytes.
    pub(crate) fn memory_bytes(&self) -> u64 {
        (size_of::<Self>() + self.open.capacity() * size_of::<Ptr>()) as u64
    }

    /// Adds a record.
    pub(crate) fn push(&mut self, ptr: Ptr) {
        self.records += 1;
        self.bytes += space_of(&ptr);
        self.open.push(ptr);
    }

    /// Returns the block to be worked off next, as the number of its sublist and its own.
    pub(crate) fn next_block(&self) -> Option<(u64, u64)> {
        let first = self.chain?.first;
        Some((first.id, first.blocks.saturating_sub(1)))
    }

    /// Returns the number of the first sublist, if the block to be worked off next is its last one and another sublist
    /// is linked to it.
    pub(crate) fn link_due(&self) -> Option<u64> {
        let chain = self.chain?;
        (chain.first.blocks <= 1 && chain.first.id != chain.last).then_some(chain.first.id)
    }

    /// Forgets the block that [`Bucket::next_block`] names, which had these records. `next` is the sublist to which
    /// [`Bucket::link_due`] leads.
    pub(crate) fn drop_block(&mut self, records: &[Ptr], next: Option<Sublist>) {
        self.chain = self.chain.and_then(|Chain { first, last }| match first.blocks {
            0 | 1 => next.map(|first| Chain { first, last }),
            blocks => Some(Chain { first: Sublist { blocks: blocks - 1, ..first }, last }),
        });
        self.discount(records);
    }

    /// Takes the records that are in no block.
    pub(crate) fn take_open(&mut self) -> Vec<Ptr> {
        let open = std::mem::take(&mut self.open);
        self.discount(&open);
        open
    }

    fn discount(&mut self, records: &[Ptr]) {
        subtract_stored(&mut self.records, records.len() as u64);
        subtract_stored(&mut self.bytes, records.iter().map(space_of).sum());
    }

    /// Appends the stored form.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        put_varint(out, self.records);
        put_varint(out, self.bytes);
        put_varint(out, self.chain.map_or(0, |chain| chain.last));
        if let Some(chain) = self.chain {
            chain.first.encode(out);
        }
        encode_ptrs(&self.open, out);
    }

    /// Reads the stored form.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    pub(crate) fn decode(reader: &mut Reader<'_>) -> Result<Self> {
        let (records, bytes) = (reader.varint()?, reader.varint()?);
        if records.max(bytes) > SPACE_BYTES_MAX {
            return Err(reader.bad("a bucket has more than any pool holds"));
        }
        let chain = match reader.varint()? {
            0 => None,
            last => Some(Chain { first: Sublist::decode(reader)?, last }),
        };
        Ok(Self { records, bytes, open: decode_ptrs(reader)?, chain })
    }
}
