//! Walking a stored tree, for checks.

use super::branch::{Bounds, Child};
use super::cut::wants;
use super::leaf::Leaf;
use super::node::Body;
use super::read::Want;
use super::{NodeStore, Tree, Value};
use crate::types::{Key, Ptr};
use crate::{Error, Result};

/// What [`visit`] meets.
#[derive(Debug)]
pub enum Visit {
    /// A well-formed node whose level and keys are what its parent says; its entries or children follow.
    Node {
        /// Where it is stored.
        ptr: Ptr,
        /// 0 for a leaf.
        level: u8,
        /// Entries of a leaf, children of a branch.
        entries: usize,
    },
    /// An entry. Keys ascend over the whole walk.
    Entry(Key, Value),
    /// A node that could not be read or is not what it should be; the walk goes on after all that would be
    /// below.
    Damaged {
        /// Where it is said to be stored.
        ptr: Ptr,
        /// The keys that may be below it: from the first (inclusive) to the second (exclusive).
        keys: (Key, Key),
        /// What is wrong with it.
        error: Error,
    },
}

/// Walks the tree below `root` in key order, each node once, and shows it all to `each`. Takes memory for one
/// node and the pointers of a branch per level. Damage is shown, not returned.
///
/// # Errors
/// Those of `each`, which end the walk.
pub fn visit(
    root: Option<Ptr>,
    store: &dyn NodeStore,
    each: &mut dyn FnMut(Visit) -> Result<()>,
) -> Result<()> {
    let Some(ptr) = root else { return Ok(()) };
    visit_stored(Want { ptr, level: None, bounds: Bounds::default() }, store, each)
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
    /// Walks the tree as it is now, changes that no checkpoint has written included, in key order. Changed
    /// nodes are not shown, their entries are. Readers go on meanwhile; writers wait, so that `each` must not
    /// change the tree.
    ///
    /// # Errors
    /// Those of `each`, which end the walk.
    pub fn walk(&self, each: &mut dyn FnMut(Visit) -> Result<()>) -> Result<()> {
        // a second reference to the root while an edit or a checkpoint goes on would break invariant 1
        let _writer = self.writer.lock();
        let root = self.live.read().root.clone();
        root.map_or(Ok(()), |root| self.walk_below(&root, None, Bounds::default(), each))
    }

    fn walk_below(
        &self,
        child: &Child,
        level: Option<u8>,
        bounds: Bounds,
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
