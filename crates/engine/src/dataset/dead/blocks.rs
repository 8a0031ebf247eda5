//! Buckets and blocks of dead lists in the pool's own tree.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::bucket::{Bucket, Sublist};
use super::{decode_ptrs, encode_ptrs};
use crate::tree::{Edit, Value};
use crate::wire::Reader;
use crate::{Error, Key, Ptr, Result};

/// Number of buckets that are read together.
const BUCKETS_AT_ONCE: usize = 256;

/// The tree in which buckets and blocks of dead lists are kept.
pub(crate) trait BlockTree: Send + Sync {
    /// Returns the value of `key`.
    fn get(&self, key: &Key) -> Result<Option<Value>>;
    /// Returns at most `limit` values, from `from` (inclusive) to `to` (exclusive).
    fn range(&self, from: &Key, to: &Key, limit: usize) -> Result<Vec<(Key, Value)>>;
    /// Changes one value.
    fn edit(&self, edit: Edit) -> Result<()>;
}

/// The buckets and blocks of dead lists, in the pool's own tree.
pub(crate) struct DeadBlocks {
    own: Arc<dyn BlockTree>,
    next: AtomicU64,
}

impl DeadBlocks {
    /// Returns the buckets and blocks in `own`, whose next list gets the number `next`.
    pub(crate) fn new(own: Arc<dyn BlockTree>, next: u64) -> Self {
        Self { own, next: AtomicU64::new(next) }
    }

    pub(super) fn new_list(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns the number that the next list or sublist gets.
    pub(crate) fn next_list(&self) -> u64 {
        self.next.load(Ordering::Relaxed)
    }

    fn put(&self, key: Key, bytes: Vec<u8>) -> Result<()> {
        self.own.edit(Edit::Put(key, Value::Bytes(bytes.into())))
    }

    fn delete(&self, key: Key) -> Result<()> {
        self.own.edit(Edit::Delete(key))
    }

    fn get<T>(
        &self,
        key: &Key,
        what: &'static str,
        decode: impl FnOnce(&mut Reader<'_>) -> Result<T>,
    ) -> Result<Option<T>> {
        match self.own.get(key)? {
            Some(value) => decode_value(&value, what, decode).map(Some),
            None => Ok(None),
        }
    }

    /// Returns a stored bucket of list `list`, or `None` if it does not exist.
    pub(super) fn bucket(&self, list: u64, birth: u64) -> Result<Option<Bucket>> {
        self.get(&Key::new(list, Key::BUCKET, birth), BUCKET, Bucket::decode)
    }

    pub(super) fn put_bucket(&self, list: u64, birth: u64, bucket: &Bucket) -> Result<()> {
        let mut bytes = Vec::new();
        bucket.encode(&mut bytes);
        self.put(Key::new(list, Key::BUCKET, birth), bytes)
    }

    /// Removes a bucket, but none of its blocks.
    ///
    /// # Errors
    /// Errors of changing the tree.
    pub(crate) fn remove_bucket(&self, list: u64, birth: u64) -> Result<()> {
        self.delete(Key::new(list, Key::BUCKET, birth))
    }

    /// Visits the stored buckets of a list from snapshot `birth` on. No list has the number 0.
    ///
    /// # Errors
    /// Errors of reading, and those of `visit`.
    pub(crate) fn buckets(
        &self,
        list: u64,
        birth: u64,
        visit: &mut dyn FnMut(u64, Bucket) -> Result<()>,
    ) -> Result<()> {
        let mut from = Some(birth).filter(|_| list != 0);
        while let Some(birth) = from {
            let found = self.some_buckets(list, birth, BUCKETS_AT_ONCE)?;
            from =
                found.last().filter(|_| found.len() == BUCKETS_AT_ONCE).and_then(|(at, _)| at.checked_add(1));
            found.into_iter().try_for_each(|(at, bucket)| visit(at, bucket))?;
        }
        Ok(())
    }

    /// Removes the stored buckets of a list from snapshot `birth` on from the tree, and returns them. Their blocks
    /// stay.
    pub(super) fn take_buckets(&self, list: u64, birth: u64) -> Result<Vec<(u64, Bucket)>> {
        let mut taken = Vec::new();
        self.buckets(list, birth, &mut |at, bucket| {
            taken.push((at, bucket));
            Ok(())
        })?;
        taken.iter().try_for_each(|(at, _)| self.remove_bucket(list, *at))?;
        Ok(taken)
    }

    /// Returns at most `limit` stored buckets of a list from snapshot `birth` on.
    ///
    /// # Errors
    /// Errors of reading.
    pub(crate) fn some_buckets(&self, list: u64, birth: u64, limit: usize) -> Result<Vec<(u64, Bucket)>> {
        let (from, to) = (Key::new(list, Key::BUCKET, birth), Key::new(list, Key::BUCKET + 1, 0));
        let found = self.own.range(&from, &to, limit)?;
        let decode =
            |(key, value): (Key, Value)| Ok((key.offset, decode_value(&value, BUCKET, Bucket::decode)?));
        found.into_iter().map(decode).collect()
    }

    pub(super) fn store(&self, list: u64, at: u64, ptrs: &[Ptr]) -> Result<()> {
        let mut bytes = Vec::new();
        encode_ptrs(ptrs, &mut bytes);
        self.put(Key::new(list, Key::DEAD, at), bytes)
    }

    /// Returns the records of a block.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the block does not exist or is not well formed.
    pub(crate) fn load(&self, list: u64, at: u64) -> Result<Vec<Ptr>> {
        let block = self.get(&Key::new(list, Key::DEAD, at), "block of a dead list", decode_ptrs)?;
        let block = block.filter(|ptrs| !ptrs.is_empty());
        block.ok_or_else(|| Error::corrupt(format!("block {at} of dead list {list}"), "it is not there"))
    }

    /// Removes a block.
    ///
    /// # Errors
    /// Errors of changing the tree.
    pub(crate) fn remove(&self, list: u64, at: u64) -> Result<()> {
        self.delete(Key::new(list, Key::DEAD, at))
    }

    /// Links a sublist to the next one.
    pub(super) fn link(&self, list: u64, next: Sublist) -> Result<()> {
        let mut bytes = Vec::new();
        next.encode(&mut bytes);
        self.put(Key::new(list, Key::LINK, 0), bytes)
    }

    /// Returns the sublist that is linked to another one.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if none is linked.
    pub(crate) fn linked(&self, list: u64) -> Result<Sublist> {
        let next = self.get(&Key::new(list, Key::LINK, 0), "link of a dead list", Sublist::decode)?;
        next.ok_or_else(|| Error::corrupt(format!("dead list {list}"), "what is behind it is not there"))
    }

    /// Removes the link of a sublist to the next one.
    ///
    /// # Errors
    /// Errors of changing the tree.
    pub(crate) fn unlink(&self, list: u64) -> Result<()> {
        self.delete(Key::new(list, Key::LINK, 0))
    }
}

const BUCKET: &str = "bucket of a dead list";

fn decode_value<T>(
    value: &Value,
    what: &'static str,
    decode: impl FnOnce(&mut Reader<'_>) -> Result<T>,
) -> Result<T> {
    let Value::Bytes(bytes) = value else { return Err(Error::corrupt(what, "it is a record")) };
    let mut reader = Reader::new(bytes, what);
    let decoded = decode(&mut reader)?;
    reader.end()?;
    Ok(decoded)
}
