//! What of a tree can be looked up where nodes of it cannot be read.

use super::Tree;
use crate::types::Key;

impl Tree {
    /// The first keys of `from..to` that cannot be looked up, because a node on the way to them cannot be read: from the first
    /// (inclusive) to the second (exclusive).
    pub fn first_damage(&self, from: &Key, to: &Key) -> Option<(Key, Key)> {
        let mut cursor = *from;
        while cursor < *to {
            match self.retry_telling(|view| view.at_leaf(&cursor, |_, place| place.bounds.upper)) {
                Ok(upper) => cursor = upper.flatten()?,
                Err(failed) => {
                    let (first, end) = failed.0.bounds.keys();
                    return Some((first.max(*from), end.min(*to)));
                }
            }
        }
        None
    }

    /// The parts of `from..to` in which every key can be looked up.
    pub fn readable(&self, from: &Key, to: &Key) -> Vec<(Key, Key)> {
        let mut found = Vec::new();
        let mut cursor = *from;
        while let Some((first, end)) = self.first_damage(&cursor, to) {
            found.push((cursor, first));
            cursor = end;
        }
        found.push((cursor, *to));
        found.retain(|(from, to)| from < to);
        found
    }
}
