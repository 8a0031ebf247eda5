//! Dead lists: records that a tree let go of and that an older snapshot holds.
//!
//! A list has a bucket per birth: the newest snapshot that is older than the record (0: none is). So what becomes free when
//! snapshots go is a sum over buckets, and what dies is a number of whole buckets. Numbers of snapshots ascend with time.
//!
//! - L1: a bucket's counts are those of its records. Records beyond a block lie in the pool's own tree, in blocks under the
//!   number of a sublist; a bucket may have several of these, because lists are joined without being read.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::live::LiveDataset;
use crate::limits::RECORD_BYTES_MAX;
use crate::segment::RECORD_OVERHEAD_BYTES;
use crate::tree::{Edit, Value};
use crate::wire::{Reader, put_signed, put_varint};
use crate::{Addr, Error, Key, Ptr, Result};

/// Records of a block: some KiB.
const BLOCK_RECORDS: usize = 512;

/// More than any pool holds, so that sums of what was read do not overflow.
pub const SPACE_BYTES_MAX: u64 = 1 << 50;

/// What a record takes, with its directory entry, in bytes.
pub fn space_of(ptr: &Ptr) -> u64 {
    u64::from(ptr.len_bytes) + RECORD_OVERHEAD_BYTES
}

/// Stored blocks of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sublist {
    /// Its number, never used twice.
    pub id: u64,
    /// Blocks, from 0 on.
    pub blocks: u64,
}

/// Records of one birth.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bucket {
    /// How many.
    pub records: u64,
    /// What they take, in bytes.
    pub bytes: u64,
    /// Those that are in no block.
    pub open: Vec<Ptr>,
    /// Where the others are.
    pub lists: Vec<Sublist>,
}

impl Bucket {
    /// What it takes in memory, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        let lists = self.lists.capacity() * size_of::<Sublist>();
        (size_of::<Self>() + self.open.capacity() * size_of::<Ptr>() + lists) as u64
    }

    fn push(&mut self, ptr: Ptr) {
        self.records += 1;
        self.bytes += space_of(&ptr);
        self.open.push(ptr);
    }

    /// Takes all of `other`.
    pub fn absorb(&mut self, other: Self) {
        self.records = self.records.saturating_add(other.records);
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.open.extend(other.open);
        self.lists.extend(other.lists);
    }

    fn flush(&mut self, blocks: &Blocks) -> Result<()> {
        for block in self.open.chunks(BLOCK_RECORDS) {
            if self.lists.is_empty() {
                self.lists.push(Sublist { id: blocks.new_list(), blocks: 0 });
            }
            if let Some(list) = self.lists.last_mut() {
                blocks.store(list.id, list.blocks, block)?;
                list.blocks += 1;
            }
        }
        self.open = Vec::new();
        Ok(())
    }

    /// The block to be worked off next.
    pub fn next_block(&self) -> Option<(u64, u64)> {
        self.lists.iter().rev().find(|list| list.blocks > 0).map(|list| (list.id, list.blocks - 1))
    }

    /// Forgets the block that [`Bucket::next_block`] names, and that had these records.
    pub fn drop_block(&mut self, records: &[Ptr]) {
        while self.lists.last().is_some_and(|list| list.blocks == 0) {
            self.lists.pop();
        }
        if let Some(list) = self.lists.last_mut() {
            list.blocks -= 1;
        }
        self.discount(records);
    }

    /// Takes the records that are in no block.
    pub fn take_open(&mut self) -> Vec<Ptr> {
        let open = std::mem::take(&mut self.open);
        self.discount(&open);
        open
    }

    fn discount(&mut self, records: &[Ptr]) {
        self.records = self.records.saturating_sub(records.len() as u64);
        self.bytes = self.bytes.saturating_sub(records.iter().map(space_of).sum());
    }

    /// Visits all records.
    pub fn for_each(&self, blocks: &Blocks, visit: &mut dyn FnMut(Ptr)) -> Result<()> {
        self.open.iter().copied().for_each(&mut *visit);
        for list in &self.lists {
            for at in 0..list.blocks {
                blocks.load(list.id, at)?.into_iter().for_each(&mut *visit);
            }
        }
        Ok(())
    }

    /// Appends the stored form.
    pub fn encode(&self, out: &mut Vec<u8>) {
        for value in [self.records, self.bytes, self.lists.len() as u64] {
            put_varint(out, value);
        }
        for list in &self.lists {
            put_varint(out, list.id);
            put_varint(out, list.blocks);
        }
        encode_ptrs(&self.open, out);
    }

    /// Reads the stored form.
    pub fn decode(reader: &mut Reader<'_>) -> Result<Self> {
        let (records, bytes) = (reader.varint()?, reader.varint()?);
        if records.max(bytes) > SPACE_BYTES_MAX {
            return Err(reader.bad("a bucket has more than any pool holds"));
        }
        let mut lists = Vec::new();
        for _ in 0..reader.varint()? {
            let list = Sublist { id: reader.varint()?, blocks: reader.varint()? };
            if list.id == 0 || list.blocks > records {
                return Err(reader.bad("a dead list has blocks that there cannot be"));
            }
            lists.push(list);
        }
        Ok(Self { records, bytes, lists, open: decode_ptrs(reader)? })
    }
}

/// Records that a version let go of, and that the snapshot before it holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeadList {
    /// By birth.
    pub buckets: BTreeMap<u64, Bucket>,
}

impl DeadList {
    /// What it takes in memory, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        self.buckets.values().map(Bucket::memory_bytes).sum()
    }

    /// Adds a record; whether its bucket has a block full.
    pub fn push(&mut self, birth: u64, ptr: Ptr) -> bool {
        let bucket = self.buckets.entry(birth).or_default();
        bucket.push(ptr);
        bucket.open.len() >= BLOCK_RECORDS
    }

    /// What the records born after snapshot `birth` take, in bytes.
    pub fn bytes_from(&self, birth: u64) -> u64 {
        self.buckets.range(birth..).fold(0, |sum, (_, bucket)| sum.saturating_add(bucket.bytes))
    }

    /// Takes out the records born after snapshot `birth`.
    pub fn take_from(&mut self, birth: u64) -> Bucket {
        let mut taken = Bucket::default();
        self.buckets.split_off(&birth).into_values().for_each(|bucket| taken.absorb(bucket));
        taken
    }

    /// Takes all of `other`.
    pub fn absorb(&mut self, other: Self) {
        for (birth, bucket) in other.buckets {
            self.buckets.entry(birth).or_default().absorb(bucket);
        }
    }

    /// Puts full blocks into the pool's tree.
    pub fn flush(&mut self, blocks: &Blocks) -> Result<()> {
        let full = self.buckets.values_mut().filter(|bucket| bucket.open.len() >= BLOCK_RECORDS);
        full.into_iter().try_for_each(|bucket| bucket.flush(blocks))
    }
}

/// Appends the stored form of a block's records.
pub fn encode_ptrs(ptrs: &[Ptr], out: &mut Vec<u8>) {
    put_varint(out, ptrs.len() as u64);
    let mut previous = 0;
    for ptr in ptrs {
        put_varint(out, ptr.len_bytes.into());
        put_signed(out, ptr.addr.raw().wrapping_sub(previous) as i64);
        previous = ptr.addr.raw();
    }
}

fn decode_ptrs(reader: &mut Reader<'_>) -> Result<Vec<Ptr>> {
    let count = reader.varint()?;
    let mut ptrs = Vec::new();
    let mut previous = 0_u64;
    for _ in 0..count {
        let len_bytes = reader.varint_u32()?;
        previous = previous.wrapping_add(reader.signed()? as u64);
        // Zeros are no pointers: else a hole of a sparse file would be as many as one likes.
        let addr =
            Addr::from_raw(previous).filter(|_| (1..=RECORD_BYTES_MAX).contains(&(len_bytes as usize)));
        let addr = addr.ok_or_else(|| reader.bad("a record has an impossible pointer"))?;
        ptrs.push(Ptr { addr, len_bytes });
    }
    Ok(ptrs)
}

/// The blocks of dead lists, in the pool's own tree.
pub struct Blocks {
    own: Arc<LiveDataset>,
    next: AtomicU64,
}

impl Blocks {
    /// Blocks in `own`, whose next sublist gets the number `next`.
    pub fn new(own: Arc<LiveDataset>, next: u64) -> Self {
        Self { own, next: AtomicU64::new(next) }
    }

    fn new_list(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// The number that the next sublist gets.
    pub fn next_list(&self) -> u64 {
        self.next.load(Ordering::Relaxed)
    }

    fn store(&self, list: u64, at: u64, ptrs: &[Ptr]) -> Result<()> {
        let mut bytes = Vec::new();
        encode_ptrs(ptrs, &mut bytes);
        let value = Value::Bytes(bytes.into());
        self.own.edit(&mut std::iter::once(Edit::Put(Key::new(list, Key::DEAD, at), value)))
    }

    /// The records of a block.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for one that is not there or not well formed.
    pub fn load(&self, list: u64, at: u64) -> Result<Vec<Ptr>> {
        let Some(Value::Bytes(bytes)) = self.own.tree.get(&Key::new(list, Key::DEAD, at))? else {
            return Err(Error::corrupt(format!("block {at} of dead list {list}"), "it is not there"));
        };
        let mut reader = Reader::new(&bytes, "block of a dead list");
        let ptrs = decode_ptrs(&mut reader)?;
        reader.end()?;
        Ok(ptrs)
    }

    /// Removes a block.
    pub fn remove(&self, list: u64, at: u64) -> Result<()> {
        self.own.edit(&mut std::iter::once(Edit::Delete(Key::new(list, Key::DEAD, at))))
    }
}
