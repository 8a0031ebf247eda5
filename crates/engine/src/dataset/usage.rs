//! Usage: the pages and bytes that each object stores.
//!
//! Usage is kept in memory for the objects that changed since the last checkpoint, and put into the tree at the next
//! one. It follows from the page operations, so the log need not carry it.

use std::collections::HashMap;

use super::Usage;
use crate::segment::RECORD_OVERHEAD_BYTES;
use crate::tree::{Edit, Tree, Value};
use crate::wire::{Reader, put_varint};
use crate::{Key, Result};

/// Key of the dataset's own total.
const TOTAL: Key = Key::new(0, Key::USAGE, 0);

/// Entry of an object or of the dataset's total: pages, stored bytes, and recordsize (objects) or logical bytes
/// (total).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct UsageEntry {
    pages: u64,
    stored_bytes: u64,
    size_bytes: u64,
}

impl UsageEntry {
    fn load(tree: &Tree, key: &Key) -> Result<Self> {
        let Some(Value::Bytes(bytes)) = tree.get(key)? else { return Ok(Self::default()) };
        let mut reader = Reader::new(&bytes, "usage of an object");
        let entry =
            Self { pages: reader.varint()?, stored_bytes: reader.varint()?, size_bytes: reader.varint()? };
        reader.end()?;
        Ok(entry)
    }
    fn encode(self) -> Box<[u8]> {
        let mut out = Vec::with_capacity(12);
        for value in [self.pages, self.stored_bytes, self.size_bytes] {
            put_varint(&mut out, value);
        }
        out.into()
    }
}

/// A change of an object's usage.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct UsageDelta {
    /// Pages added, or removed if negative.
    pub(super) pages: i64,
    /// Records added, or removed if negative: a page has one, and those that it is based on.
    pub(super) records: i64,
    /// Stored bytes added, or removed if negative, without overhead.
    pub(super) stored_bytes: i64,
    /// Recordsize of the object, if known, in bytes.
    pub(super) record_size: Option<u32>,
}

/// Usage of the objects that changed since the last checkpoint.
#[derive(Default)]
pub(super) struct UsageTable {
    objects: HashMap<u64, UsageEntry>,
    total: Option<UsageEntry>,
}

impl UsageTable {
    fn entry(&mut self, tree: &Tree, object: u64) -> Result<&mut UsageEntry> {
        use std::collections::hash_map::Entry as MapEntry;
        Ok(match self.objects.entry(object) {
            MapEntry::Occupied(slot) => slot.into_mut(),
            MapEntry::Vacant(slot) => slot.insert(UsageEntry::load(tree, &Key::new(object, Key::USAGE, 0))?),
        })
    }

    fn total(&mut self, tree: &Tree) -> Result<UsageEntry> {
        if let Some(total) = self.total {
            return Ok(total);
        }
        let total = UsageEntry::load(tree, &TOTAL)?;
        self.total = Some(total);
        Ok(total)
    }

    /// Applies a change. Returns the logical bytes of all pages before and after it.
    pub(super) fn apply(&mut self, tree: &Tree, object: u64, delta: UsageDelta) -> Result<(u64, u64)> {
        let mut total = self.total(tree)?;
        let before = total.size_bytes;
        let entry = self.entry(tree, object)?;
        if let Some(record_size) = delta.record_size {
            entry.size_bytes = record_size.into();
        }
        let stored = delta.stored_bytes + delta.records * RECORD_OVERHEAD_BYTES as i64;
        let logical = delta.pages * entry.size_bytes as i64;
        entry.pages = entry.pages.saturating_add_signed(delta.pages);
        entry.stored_bytes = entry.stored_bytes.saturating_add_signed(stored);
        total.pages = total.pages.saturating_add_signed(delta.pages);
        total.stored_bytes = total.stored_bytes.saturating_add_signed(stored);
        total.size_bytes = total.size_bytes.saturating_add_signed(logical);
        self.total = Some(total);
        Ok((before, total.size_bytes))
    }

    /// Returns the number of objects whose usage waits to be put into the tree.
    pub(super) fn len(&self) -> usize {
        self.objects.len()
    }

    /// Returns the usage of `object`.
    pub(super) fn get(&self, tree: &Tree, object: u64) -> Result<Usage> {
        let entry = match self.objects.get(&object) {
            Some(entry) => *entry,
            None => UsageEntry::load(tree, &Key::new(object, Key::USAGE, 0))?,
        };
        Ok(Usage { pages: entry.pages, stored_bytes: entry.stored_bytes })
    }

    /// Returns the recordsize of `object` in bytes; 0 if it has no pages.
    pub(super) fn record_size(&self, tree: &Tree, object: u64) -> Result<u32> {
        let entry = match self.objects.get(&object) {
            Some(entry) => *entry,
            None => UsageEntry::load(tree, &Key::new(object, Key::USAGE, 0))?,
        };
        Ok(entry.size_bytes as u32)
    }

    /// Returns the logical bytes of all pages of the dataset.
    pub(super) fn logical_bytes(&self, tree: &Tree) -> Result<u64> {
        match self.total {
            Some(total) => Ok(total.size_bytes),
            None => Ok(UsageEntry::load(tree, &TOTAL)?.size_bytes),
        }
    }

    /// Returns the stored bytes of all pages of the dataset.
    pub(super) fn stored_bytes(&self, tree: &Tree) -> Result<u64> {
        match self.total {
            Some(total) => Ok(total.stored_bytes),
            None => Ok(UsageEntry::load(tree, &TOTAL)?.stored_bytes),
        }
    }

    /// Returns the edits that put all usage into the tree. The table is empty afterwards.
    pub(super) fn drain(&mut self) -> Vec<Edit> {
        let mut edits: Vec<Edit> = Vec::with_capacity(self.objects.len() + 1);
        let mut objects: Vec<_> = self.objects.drain().collect();
        objects.sort_unstable_by_key(|(object, _)| *object);
        for (object, entry) in objects {
            let key = Key::new(object, Key::USAGE, 0);
            edits.push(if entry.pages == 0 {
                Edit::Delete(key)
            } else {
                Edit::Put(key, Value::Bytes(entry.encode()))
            });
        }
        if let Some(total) = self.total.take() {
            edits.push(Edit::Put(TOTAL, Value::Bytes(total.encode())));
        }
        edits
    }
}
