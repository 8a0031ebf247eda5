//! Reference counts: the number of pages that refer to a record, where it is more than one.
//!
//! The tree has a count for each record that is shared, and none for others. The counts of a batch of records are
//! looked up together, leaf by leaf, and changed by one edit, so that in a dataset that shares little a batch costs as
//! much as a record. While nothing is shared, no count is looked up.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use super::LiveDataset;
use super::accounting::RecordRole;
use crate::tree::{Edit, Value};
use crate::{Addr, Error, Key, Ptr, Result};

/// Key behind all counts.
const END: Key = Key::new(0, Key::SHARED + 1, 0);

impl LiveDataset {
    /// Returns false if it is certain that no record is shared.
    pub fn shares_records(&self) -> bool {
        self.has_shared.load(Ordering::Relaxed)
    }

    /// Assumes from now on that records are shared, without looking.
    pub(crate) fn assume_shared(&self) {
        self.has_shared.store(true, Ordering::Relaxed);
    }

    /// Determines whether any record is shared.
    ///
    /// # Errors
    /// Errors of reading the tree, except damage: then records are taken for shared.
    pub(crate) fn find_shared_records(&self) -> Result<()> {
        let found = match self.tree.range(&key_of(0), &END, 1) {
            Ok(found) => !found.is_empty(),
            // Whoever looks up a count will get the error.
            Err(error) if error.is_damage() => true,
            Err(error) => return Err(error),
        };
        self.has_shared.store(found, Ordering::Relaxed);
        Ok(())
    }

    /// Returns the numbers of references of those records that have more than one.
    pub(super) fn shared_among(&self, ptrs: &[Ptr]) -> Result<BTreeMap<Addr, u64>> {
        if !self.shares_records() {
            return Ok(BTreeMap::new());
        }
        self.counts(ptrs)
    }

    fn counts(&self, ptrs: &[Ptr]) -> Result<BTreeMap<Addr, u64>> {
        let mut addrs: Vec<Addr> = ptrs.iter().map(|ptr| ptr.addr).collect();
        addrs.sort_unstable();
        addrs.dedup();
        let keys: Vec<Key> = addrs.iter().map(|addr| key_of(addr.raw())).collect();
        let values = self.tree.get_all(&keys)?;
        let counted = addrs.into_iter().zip(values).filter_map(|(addr, value)| Some((addr, value?)));
        counted.map(|(addr, value)| Ok((addr, references(&value)?))).collect()
    }

    /// Returns true if a snapshot or another page also has one of these records, which then stays when a page
    /// unreferences it.
    pub(crate) fn any_is_shared(&self, ptrs: &[Ptr]) -> Result<bool> {
        let held = {
            let accounting = self.accounting.lock();
            ptrs.iter().any(|ptr| accounting.holds(RecordRole::Page, ptr.addr))
        };
        Ok(held || !self.shared_among(ptrs)?.is_empty())
    }

    /// Adds one reference to each record; a record that is listed twice gets two.
    pub(super) fn add_references(&self, ptrs: &[Ptr]) -> Result<()> {
        if ptrs.is_empty() {
            return Ok(());
        }
        let _serial = self.sharing.lock();
        self.has_shared.store(true, Ordering::Relaxed);
        let before = self.counts(ptrs)?;
        let mut counts: BTreeMap<Addr, u64> = BTreeMap::new();
        for ptr in ptrs {
            *counts.entry(ptr.addr).or_insert_with(|| before.get(&ptr.addr).copied().unwrap_or(1)) += 1;
        }
        self.edit(&mut counts.into_iter().map(edit_of))
    }

    /// Removes one reference from each record. Returns the records that no page refers to any more.
    pub(super) fn drop_references(&self, mut ptrs: Vec<Ptr>) -> Result<Vec<Ptr>> {
        if ptrs.is_empty() || !self.shares_records() {
            return Ok(ptrs);
        }
        let _serial = self.sharing.lock();
        let mut counts = self.counts(&ptrs)?;
        if counts.is_empty() {
            return Ok(ptrs);
        }
        ptrs.retain(|ptr| match counts.get_mut(&ptr.addr) {
            Some(count) if *count > 1 => {
                *count -= 1;
                false
            }
            _ => true,
        });
        let some_ended = counts.values().any(|count| *count <= 1);
        self.edit(&mut counts.into_iter().map(edit_of))?;
        if some_ended {
            self.find_shared_records()?;
        }
        Ok(ptrs)
    }
}

/// Returns the key of the count of references to a record.
fn key_of(addr: u64) -> Key {
    Key::new(0, Key::SHARED, addr)
}

fn edit_of((addr, count): (Addr, u64)) -> Edit {
    let key = key_of(addr.raw());
    if count <= 1 { Edit::Delete(key) } else { Edit::Put(key, Value::Bytes(count.to_le_bytes().into())) }
}

/// Returns the number of references that a stored value gives.
///
/// # Errors
/// [`Error::Corrupt`] if the value is not well formed.
pub(crate) fn references(value: &Value) -> Result<u64> {
    let Value::Bytes(bytes) = value else {
        return Err(Error::corrupt("reference count", "it is a record"));
    };
    let raw = <[u8; 8]>::try_from(&**bytes)
        .map_err(|_| Error::corrupt("reference count", "it has a wrong length"))?;
    Ok(u64::from_le_bytes(raw).max(2))
}
