//! Lists the parts of a dataset or snapshot that cannot be read, after a check has read everything.

use std::collections::BTreeMap;

use crate::pool::{CheckReport, Pool};
use crate::tree::{Value, Visit, without};
use crate::{Key, Result};

/// The parts of a dataset or snapshot that cannot be read. Takes memory for each stretch, not for its contents.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unreadable {
    /// Stretches of keys that cannot be looked up, nor what they may have: from the first key (inclusive) to the second
    /// (exclusive). They ascend, with something readable between them.
    pub keys: Vec<(Key, Key)>,
    /// By object, stretches of pages that can be looked up but whose records cannot be read: the first page, and the
    /// last plus one. They ascend likewise.
    pub pages: BTreeMap<u64, Vec<(u64, u64)>>,
}

impl Unreadable {
    /// Returns true if all can be read.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty() && self.pages.is_empty()
    }

    /// Returns true if `key` cannot be looked up.
    pub fn has(&self, key: &Key) -> bool {
        let at = self.keys.partition_point(|(_, end)| end <= key);
        self.keys.get(at).is_some_and(|(first, _)| first <= key)
    }

    /// Returns the stretches of `from..to` that cannot be looked up, ascending.
    pub fn within(&self, from: Key, to: Key) -> impl Iterator<Item = (Key, Key)> + '_ {
        let at = self.keys.partition_point(move |(_, end)| *end <= from);
        let met = self.keys.get(at..).unwrap_or_default().iter();
        met.map(move |(first, end)| (from.max(*first), to.min(*end))).take_while(|(first, end)| first < end)
    }

    /// Returns the stretches of `from..to` in which every key can be looked up.
    pub fn readable(&self, from: Key, to: Key) -> Vec<(Key, Key)> {
        without(from, to, self.within(from, to))
    }
}

/// Adds a stretch that does not begin before the last one.
fn add<T: PartialEq>(stretches: &mut Vec<(T, T)>, first: T, end: T) {
    match stretches.last_mut() {
        Some(last) if last.1 == first => last.1 = end,
        _ => stretches.push((first, end)),
    }
}

impl Pool {
    /// Returns the parts of the dataset or snapshot `path` that cannot be read. `report` is of a check of this pool.
    ///
    /// # Errors
    /// [`crate::Error::NotFound`] if there is no such version.
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
