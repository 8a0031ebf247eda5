//! What of a dataset or snapshot cannot be read, once a check has read everything.

use std::collections::BTreeMap;

use super::{CheckReport, Pool};
use crate::tree::{Value, Visit, without};
use crate::{Key, Result};

/// What of a dataset or snapshot cannot be read. Takes memory for stretches, not for what is in them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unreadable {
    /// Keys that cannot be looked up, with all that they may have: from the first (inclusive) to the second (exclusive); ascending, with
    /// something readable between them.
    pub keys: Vec<(Key, Key)>,
    /// Of objects, pages that can be looked up and whose records cannot be read: first, and one past the last; likewise.
    pub pages: BTreeMap<u64, Vec<(u64, u64)>>,
}

impl Unreadable {
    /// Whether all can be read.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty() && self.pages.is_empty()
    }

    /// Whether a key cannot be looked up.
    pub fn has(&self, key: &Key) -> bool {
        let at = self.keys.partition_point(|(_, end)| end <= key);
        self.keys.get(at).is_some_and(|(first, _)| first <= key)
    }

    /// The keys of `from..to` that cannot be looked up, ascending.
    pub fn within(&self, from: Key, to: Key) -> impl Iterator<Item = (Key, Key)> + '_ {
        let at = self.keys.partition_point(move |(_, end)| *end <= from);
        let met = self.keys.get(at..).unwrap_or_default().iter();
        met.map(move |(first, end)| (from.max(*first), to.min(*end))).take_while(|(first, end)| first < end)
    }

    /// The stretches of `from..to` in which every key can be looked up.
    pub fn readable(&self, from: Key, to: Key) -> Vec<(Key, Key)> {
        without(from, to, self.within(from, to))
    }
}

/// Adds a stretch that is not before the last one.
fn add<T: PartialEq>(stretches: &mut Vec<(T, T)>, first: T, end: T) {
    match stretches.last_mut() {
        Some(last) if last.1 == first => last.1 = end,
        _ => stretches.push((first, end)),
    }
}

impl Pool {
    /// What of the dataset or snapshot `path` cannot be read, where `report` is of this pool.
    ///
    /// # Errors
    /// [`crate::Error::NotFound`].
    pub fn unreadable(&self, path: &str, report: &CheckReport) -> Result<Unreadable> {
        let mut found = Unreadable::default();
        self.version(path)?.tree.walk(&mut |visit| {
            match visit {
                Visit::Entry(key, Value::Page(ptr))
                    if key.kind == Key::PAGE && report.damaged.has(ptr.addr) =>
                {
                    add(found.pages.entry(key.object).or_default(), key.offset, key.offset + 1);
                }
                Visit::Damaged { keys: (first, end), .. } => add(&mut found.keys, first, end),
                Visit::Node { .. } | Visit::Entry(..) => {}
            }
            Ok(())
        })?;
        Ok(found)
    }
}
