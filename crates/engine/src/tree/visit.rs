//! Walking a stored tree, for checks.

use super::branch::{Bounds, Child};
use super::edit::wants;
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
    /// A node that could not be read or is not what it should be; the walk goes on after all that would be below.
    Damaged(Ptr, Error),
}

/// Walks the tree below `root` in key order, each node once, and shows it all to `each`. Takes memory for one node and the pointers of a
/// branch per level. Damage is shown, not returned.
///
/// # Errors
/// Those of `each`, which end the walk.
pub fn visit(
    root: Option<Ptr>,
    store: &dyn NodeStore,
    each: &mut dyn FnMut(Visit) -> Result<()>,
) -> Result<()> {
    let mut ahead: Vec<Want> = Vec::new();
    ahead.extend(root.map(|ptr| Want { ptr, level: None, bounds: Bounds::default() }));
    while let Some(want) = ahead.pop() {
        let ptr = want.ptr;
        let node = match want.load(store) {
            Ok(node) => node,
            Err(error) => {
                each(Visit::Damaged(ptr, error))?;
                continue;
            }
        };
        each(Visit::Node { ptr, level: node.level(), entries: node.len() })?;
        match node.body() {
            Body::Leaf(leaf) => {
                for (key, value) in leaf.entries(0..leaf.len()) {
                    each(Visit::Entry(key, value.to_value()))?;
                }
            }
            Body::Branch(branch) => {
                let first = ahead.len();
                ahead.extend(wants(branch, want.bounds));
                ahead[first..].reverse();
            }
        }
    }
    Ok(())
}

impl Tree {
    /// Walks the tree as it is now, changes that no checkpoint has written included, in key order. Changed nodes
    /// are not shown, their entries are.
    ///
    /// # Errors
    /// Those of `each`, which end the walk.
    pub fn walk(&self, each: &mut dyn FnMut(Visit) -> Result<()>) -> Result<()> {
        let root = self.live.read().root.clone();
        root.map_or(Ok(()), |root| self.walk_child(&root, each))
    }

    fn walk_child(&self, child: &Child, each: &mut dyn FnMut(Visit) -> Result<()>) -> Result<()> {
        let node = match child {
            Child::Clean { .. } => return visit(child.stored_ptr(), self.store.as_ref(), each),
            Child::Dirty(node) => node,
        };
        match node.body() {
            Body::Leaf(leaf) => leaf
                .entries(0..leaf.len())
                .try_for_each(|(key, value)| each(Visit::Entry(key, value.to_value()))),
            Body::Branch(branch) => {
                branch.children().iter().try_for_each(|child| self.walk_child(child, each))
            }
        }
    }
}
