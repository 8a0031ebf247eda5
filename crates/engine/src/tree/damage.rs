//! Finds the keys of a tree that can be looked up although some of its nodes cannot be read.

use super::Tree;
use crate::types::Key;

impl Tree {
    /// Returns the first keys of `from..to` that cannot be looked up because a node on the way to them cannot be read:
    /// from the first (inclusive) to the second (exclusive). `None` if there are no such keys.
    pub(crate) fn first_damage(&self, from: &Key, to: &Key) -> Option<(Key, Key)> {
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

    /// Returns the parts of `from..to` in which every key can be looked up.
    pub(crate) fn readable(&self, from: &Key, to: &Key) -> Vec<(Key, Key)> {
        let mut cursor = *from;
        let damage = std::iter::from_fn(|| {
            let damage = self.first_damage(&cursor, to);
            cursor = damage.map_or(cursor, |(_, end)| end);
            damage
        });
        without(*from, *to, damage)
    }
}

/// Returns `from..to` without `damage`, which ascends and is within it.
pub(crate) fn without(from: Key, to: Key, damage: impl Iterator<Item = (Key, Key)>) -> Vec<(Key, Key)> {
    let mut left = Vec::new();
    let mut cursor = from;
    for (first, end) in damage {
        left.push((cursor, first));
        cursor = end;
    }
    left.push((cursor, to));
    left.retain(|(from, to)| from < to);
    left
}
