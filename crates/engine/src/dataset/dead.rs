//! Dead lists: records that a tree does not refer to any more and that an older snapshot holds.
//!
//! A list has a bucket per birth, which is the newest snapshot that is older than the record (0: none is). So the bytes
//! that become free when snapshots are destroyed are a sum over buckets, and the records that die are whole buckets.
//! Numbers of snapshots ascend with time.
//!
//! - L1: a bucket's counts are those of its records.
//! - L4: buckets lie in the pool's own tree. Memory has only the records that a list got last ([`OPEN_RECORDS_MAX`]).
//!   So neither memory nor the bytes that a checkpoint writes grow with the number of snapshots.

mod blocks;
mod bucket;
mod spill;

use std::collections::BTreeMap;

use crate::limits::RECORD_BYTES_MAX;
use crate::segment::RECORD_OVERHEAD_BYTES;
use crate::sums::subtract_stored;
use crate::wire::{Reader, put_signed, put_varint};
use crate::{Addr, Ptr, Result};

pub(crate) use blocks::{BlockTree, DeadBlocks};
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use bucket::Chain;
pub(crate) use bucket::{Bucket, Sublist};

/// Largest number of records that a list keeps in memory before it puts them into their buckets together.
const OPEN_RECORDS_MAX: usize = 1024;

/// Bound on bytes and counts that were read, so that their sums do not overflow: more than any pool holds.
pub(crate) const SPACE_BYTES_MAX: u64 = 1 << 50;

/// Returns the space that a record takes, with its directory entry, in bytes.
pub(crate) fn space_of(ptr: &Ptr) -> u64 {
    u64::from(ptr.len_bytes) + RECORD_OVERHEAD_BYTES
}

/// Records that a version does not refer to any more, and that the snapshot before it holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeadList {
    /// Number under which the list's buckets are stored, never used twice; 0 if it has no stored buckets.
    pub id: u64,
    /// Number of stored buckets.
    pub buckets: u64,
    /// Records that are in no bucket yet, by birth.
    open: BTreeMap<u64, Vec<Ptr>>,
    open_records: usize,
}

impl DeadList {
    /// Returns the memory that the list takes, in bytes.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let entry = size_of::<(u64, Vec<Ptr>)>() * 4 / 3;
        let open = self.open.values().map(|ptrs| entry + ptrs.capacity() * size_of::<Ptr>());
        open.sum::<usize>() as u64
    }

    /// Adds a record. Returns true if it is time to [`DeadList::flush`].
    pub(crate) fn push(&mut self, birth: u64, ptr: Ptr) -> bool {
        self.open.entry(birth).or_default().push(ptr);
        self.open_records += 1;
        self.open_records >= OPEN_RECORDS_MAX
    }

    /// Returns true if the list keeps records in memory, in no bucket yet.
    pub(crate) fn is_open(&self) -> bool {
        self.open_records > 0
    }

    /// Returns the records that are in no bucket yet, by birth.
    pub(crate) fn open(&self) -> impl Iterator<Item = (u64, &[Ptr])> {
        self.open.iter().map(|(birth, ptrs)| (*birth, ptrs.as_slice()))
    }

    /// Returns the bytes of the records that were born after snapshot `birth`.
    ///
    /// # Errors
    /// Errors of reading buckets.
    pub(crate) fn bytes_from(&self, birth: u64, blocks: &DeadBlocks) -> Result<u64> {
        let open = self.open.range(birth..).flat_map(|(_, ptrs)| ptrs);
        let mut sum: u64 = open.map(space_of).sum();
        blocks.buckets(self.id, birth, &mut |_, bucket| {
            sum = sum.saturating_add(bucket.bytes);
            Ok(())
        })?;
        Ok(sum)
    }

    /// Takes out the records that were born after snapshot `birth`.
    ///
    /// # Errors
    /// Errors of reading and changing buckets.
    pub(crate) fn take_from(&mut self, birth: u64, blocks: &DeadBlocks) -> Result<Bucket> {
        let mut taken = Bucket::default();
        for ptr in self.open.split_off(&birth).into_values().flatten() {
            self.open_records -= 1;
            taken.push(ptr);
        }
        let found = blocks.take_buckets(self.id, birth)?;
        subtract_stored(&mut self.buckets, found.len() as u64);
        found.into_iter().try_for_each(|(_, bucket)| taken.absorb(bucket, blocks))?;
        Ok(taken)
    }

    /// Takes all records of `other`. The list with fewer buckets is put into the other one.
    ///
    /// # Errors
    /// Errors of reading and changing buckets.
    pub(crate) fn absorb(&mut self, mut other: Self, blocks: &DeadBlocks) -> Result<()> {
        if self.buckets < other.buckets {
            std::mem::swap(self, &mut other);
        }
        for (birth, ptrs) in other.open {
            self.open_records += ptrs.len();
            self.open.entry(birth).or_default().extend(ptrs);
        }
        for (birth, bucket) in blocks.take_buckets(other.id, 0)? {
            self.join(birth, bucket, blocks)?;
        }
        if self.open_records >= OPEN_RECORDS_MAX { self.flush(blocks) } else { Ok(()) }
    }

    /// Adds records to a stored bucket.
    fn join(&mut self, birth: u64, more: Bucket, blocks: &DeadBlocks) -> Result<()> {
        if self.id == 0 {
            self.id = blocks.new_list();
        }
        let mut bucket = match blocks.bucket(self.id, birth)? {
            Some(bucket) => bucket,
            None => {
                self.buckets += 1;
                Bucket::default()
            }
        };
        bucket.absorb(more, blocks)?;
        bucket.spill(blocks)?;
        blocks.put_bucket(self.id, birth, &bucket)
    }

    /// Puts the records in memory into their buckets.
    ///
    /// # Errors
    /// Errors of reading and changing buckets.
    pub(crate) fn flush(&mut self, blocks: &DeadBlocks) -> Result<()> {
        self.open_records = 0;
        for (birth, ptrs) in std::mem::take(&mut self.open) {
            let mut more = Bucket::default();
            ptrs.into_iter().for_each(|ptr| more.push(ptr));
            self.join(birth, more, blocks)?;
        }
        Ok(())
    }

    /// Appends the stored form, with the records that are in no bucket yet.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        for value in [self.id, self.buckets, self.open.len() as u64] {
            put_varint(out, value);
        }
        for (birth, ptrs) in &self.open {
            put_varint(out, *birth);
            encode_ptrs(ptrs, out);
        }
    }

    /// Reads the stored form.
    ///
    /// # Errors
    /// [`crate::Error::Corrupt`] if it is not well formed.
    pub(crate) fn decode(reader: &mut Reader<'_>) -> Result<Self> {
        let mut list = Self { id: reader.varint()?, buckets: reader.varint()?, ..Self::default() };
        if list.buckets > SPACE_BYTES_MAX || (list.id == 0 && list.buckets > 0) {
            return Err(reader.bad("a dead list has buckets that there cannot be"));
        }
        let mut next = 0;
        for _ in 0..reader.varint()? {
            let birth = reader.varint()?;
            if birth < next {
                return Err(reader.bad("births are out of order"));
            }
            next = birth.saturating_add(1);
            for ptr in decode_ptrs(reader)? {
                list.push(birth, ptr);
            }
        }
        Ok(list)
    }
}

/// Appends the stored form of records.
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
        // Zeros are no pointers: otherwise a hole in a sparse file could pass for any number of records.
        let addr =
            Addr::from_raw(previous).filter(|_| (1..=RECORD_BYTES_MAX).contains(&(len_bytes as usize)));
        let addr = addr.ok_or_else(|| reader.bad("a record has an impossible pointer"))?;
        ptrs.push(Ptr { addr, len_bytes });
    }
    Ok(ptrs)
}
