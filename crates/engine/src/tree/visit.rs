//! Walks trees, for checks.

use super::delete_range::wants;
use super::node::{Body, Child, KeyBounds, Leaf};
use super::read::Want;
use super::{NodeStore, Tree, Value};
use crate::types::{Key, Ptr};
use crate::{Error, Result};

/// Things that a walk over a stored tree meets.
#[derive(Debug)]
pub enum Visit {
    /// A well-formed node whose level and keys are what its parent says. Its entries or children follow.
    Node {
        /// Pointer to it.
        ptr: Ptr,
        /// Its level, 0 for a leaf.
        level: u8,
        /// Number of entries of a leaf, or of children of a branch.
        entries: usize,
    },
    /// An entry. Keys ascend over the whole walk.
    Entry(Key, Value),
    /// A node that could not be read or is not what it should be. The walk goes on after all that would be below it.
    Damaged {
        /// Pointer to it, as its parent has it.
        ptr: Ptr,
        /// Keys that may be below it: from the first (inclusive) to the second (exclusive).
        keys: (Key, Key),
        /// Error of reading it.
        error: Error,
    },
}

/// Walks the stored tree below `root` in key order, each node once, and shows it all to `each`. Takes memory for one
/// node, and for the pointers of a branch per level. Damage is shown, not returned.
///
/// # Errors
/// Those of `each`, which end the walk.
#[cfg(test)]
pub(super) fn visit(
    root: Option<Ptr>,
    store: &dyn NodeStore,
    each: &mut dyn FnMut(Visit) -> Result<()>,
) -> Result<()> {
    let Some(ptr) = root else { return Ok(()) };
    visit_stored(Want { ptr, level: None, bounds: KeyBounds::default() }, store, each)
}

fn visit_stored(top: Want, store: &dyn NodeStore, each: &mut dyn FnMut(Visit) -> Result<()>) -> Result<()> {
    let mut ahead = vec![top];
    while let Some(want) = ahead.pop() {
        let ptr = want.ptr;
        let node = match want.load(store) {
            Ok(node) => node,
            Err(error) => {
                each(Visit::Damaged { ptr, keys: want.bounds.keys(), error })?;
                continue;
            }
        };
        each(Visit::Node { ptr, level: node.level(), entries: node.len() })?;
        match node.body() {
            Body::Leaf(leaf) => visit_entries(leaf, each)?,
            Body::Branch(branch) => {
                let first = ahead.len();
                ahead.extend(wants(branch, want.bounds));
                ahead[first..].reverse();
            }
        }
    }
    Ok(())
}

fn visit_entries(leaf: &Leaf, each: &mut dyn FnMut(Visit) -> Result<()>) -> Result<()> {
    leaf.entries(0..leaf.len()).try_for_each(|(key, value)| each(Visit::Entry(key, value.to_value())))
}

impl Tree {
    /// Walks the tree as it is now, in key order, with the changes that no checkpoint has written. Of changed nodes
    /// only the entries are shown. Readers go on meanwhile; writers wait, so `each` must not change the tree.
    ///
    /// # Errors
    /// Those of `each`, which end the walk.
    pub fn walk(&self, each: &mut dyn FnMut(Visit) -> Result<()>) -> Result<()> {
        // A second reference to the root while an edit or a checkpoint goes on would break invariant 1.
        let _writer = self.writer.lock();
        let root = self.live.read().root.clone();
        root.map_or(Ok(()), |root| self.walk_below(&root, None, KeyBounds::default(), each))
    }

    fn walk_below(
        &self,
        child: &Child,
        level: Option<u8>,
        bounds: KeyBounds,
        each: &mut dyn FnMut(Visit) -> Result<()>,
    ) -> Result<()> {
        match child {
            Child::Clean { len_bytes, addr } => {
                let ptr = Ptr { addr: *addr, len_bytes: *len_bytes };
                visit_stored(Want { ptr, level, bounds }, &*self.store, each)
            }
            Child::Dirty(node) => match node.body() {
                Body::Leaf(leaf) => visit_entries(leaf, each),
                Body::Branch(branch) => (0..branch.len()).try_for_each(|i| {
                    let below = branch.bounds(i, bounds);
                    self.walk_below(branch.child(i), Some(branch.level() - 1), below, each)
                }),
            },
        }
    }
}
