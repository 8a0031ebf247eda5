//! Deletes ranges: nodes that lie wholly within are detached unread, and reported afterwards.

use std::ops::Range;
use std::sync::Arc;

use super::Live;
use super::editor::Editor;
use super::interval::Interval;
use super::node::{Body, Branch, Child, KeyBounds, Leaf, Node};
use super::read::Want;
use crate::types::Ptr;
use crate::{Error, Result};

/// The part of [`Tree::apply`] that could not be done, although all edits were applied.
#[derive(Debug, Default)]
#[must_use]
pub struct Applied {
    /// Nodes below a deleted range that could not be read, with the errors. The range is gone from the tree and the
    /// node itself is in `freed`, but the values and nodes below were not reported: their space stays in use until a
    /// check of the pool finds it.
    pub unreadable: Vec<(Ptr, Error)>,
}

impl Editor<'_> {
    pub(super) fn delete_range(&mut self, live: &mut Live, interval: &Interval) -> Result<()> {
        let Some(root) = &mut live.root else { return Ok(()) };
        if self.hits(root, interval)? {
            self.delete_below(root, interval, KeyBounds::default())
        } else {
            Ok(())
        }
    }

    /// Returns true if there is anything to delete below `child`. Looks at most at the two edges of the interval.
    fn hits(&mut self, child: &Child, interval: &Interval) -> Result<bool> {
        let node = match child {
            Child::Dirty(node) => Arc::clone(node),
            Child::Clean { len_bytes, addr } => {
                let ptr = Ptr { addr: *addr, len_bytes: *len_bytes };
                self.node(&Want { ptr, level: None, bounds: KeyBounds::default() })?
            }
        };
        match node.body() {
            Body::Leaf(leaf) => Ok(!indices(leaf, interval).is_empty()),
            Body::Branch(branch) => {
                let (low, high) = (branch.index_of(&interval.from), branch.index_of(&interval.last));
                Ok(high > low + 1
                    || self.hits(branch.child(low), interval)?
                    || (high > low && self.hits(branch.child(high), interval)?))
            }
        }
    }

    /// Deletes the interval below `child`, which reaches beyond it and has something in it.
    fn delete_below(&mut self, child: &mut Child, interval: &Interval, bounds: KeyBounds) -> Result<()> {
        let node = self.own(child)?;
        let before = node.bytes();
        match node.body_mut() {
            Body::Leaf(leaf) => {
                leaf.remove(indices(leaf, interval), self.replaced);
            }
            Body::Branch(branch) => self.delete_in_branch(branch, interval, bounds)?,
        }
        let after = node.bytes();
        self.changed(before, after);
        Ok(())
    }

    fn delete_in_branch(
        &mut self,
        branch: &mut Branch,
        interval: &Interval,
        bounds: KeyBounds,
    ) -> Result<()> {
        let (low, high) = (branch.index_of(&interval.from), branch.index_of(&interval.last));
        let whole = |branch: &Branch, i| branch.bounds(i, bounds).inside(&interval.from, &interval.to);
        let (low_whole, high_whole) = (whole(branch, low), whole(branch, high));
        let edges = [(high, high_whole), (low, low_whole)];
        for (edge, _) in edges.iter().take(if low == high { 1 } else { 2 }).filter(|(_, whole)| !whole) {
            if self.hits(branch.child(*edge), interval)? {
                let below = branch.bounds(*edge, bounds);
                self.delete_below(branch.child_mut(*edge), interval, below)?;
            }
        }
        let first = if low_whole { low } else { low + 1 };
        let end = if high_whole { high + 1 } else { high };
        if first < end {
            for i in first..end {
                self.discard(branch.child(i), branch.level() - 1, branch.bounds(i, bounds), false);
            }
            branch.remove(first, end);
        }
        let children = branch.len();
        if !low_whole {
            self.rebalance(branch, low, bounds)?;
        }
        if !high_whole && high > low {
            // The child is one to the left of where it was if the low edge was removed, or merged.
            self.rebalance(branch, first - (children - branch.len()).min(first), bounds)?;
        }
        Ok(())
    }

    /// Unreferences a node and all below it. `shared` says that an immutable node refers to it.
    fn discard(&mut self, child: &Child, level: u8, bounds: KeyBounds, shared: bool) {
        match child {
            Child::Clean { len_bytes, addr } => {
                let ptr = Ptr { addr: *addr, len_bytes: *len_bytes };
                self.detached.push(Want { ptr, level: Some(level), bounds });
            }
            Child::Dirty(node) => {
                let shared = shared || Arc::strong_count(node) > 1;
                if shared {
                    node.supersede();
                } else {
                    self.dirty -= node.bytes();
                }
                match node.body() {
                    Body::Leaf(leaf) => leaf.for_each(self.replaced),
                    Body::Branch(branch) => {
                        for i in 0..branch.len() {
                            self.discard(
                                branch.child(i),
                                branch.level() - 1,
                                branch.bounds(i, bounds),
                                shared,
                            );
                        }
                    }
                }
            }
        }
    }

    /// Reports what was detached. It needs no lock on the tree, which does not refer to these nodes any more.
    pub(super) fn report_detached(mut self) -> Applied {
        let mut applied = Applied::default();
        while let Some(want) = self.detached.pop() {
            let held = self.held.get(&want.ptr.addr).cloned();
            let node = match held.or_else(|| self.cache.peek(want.ptr.addr)) {
                Some(node) => want.verify(&node).map(|()| node),
                // The cache is passed over, since the node will not be needed again.
                None => want.load(self.store).map(Arc::new),
            };
            self.free(want.ptr);
            match node.as_deref().map(Node::body) {
                Ok(Body::Leaf(leaf)) => leaf.for_each(self.replaced),
                Ok(Body::Branch(branch)) => self.detached.extend(wants(branch, want.bounds)),
                Err(_) => {}
            }
            if let Err(error) = node {
                applied.unreadable.push((want.ptr, error));
            }
        }
        applied
    }
}

/// Returns the stored children of `branch`.
pub(super) fn wants(branch: &Branch, bounds: KeyBounds) -> impl Iterator<Item = Want> {
    (0..branch.len()).filter_map(move |i| {
        let ptr = branch.child(i).stored_ptr()?;
        Some(Want { ptr, level: Some(branch.level() - 1), bounds: branch.bounds(i, bounds) })
    })
}

/// Returns all children of a stored branch.
pub(super) fn wants_all(branch: &Branch, bounds: KeyBounds) -> Vec<Want> {
    wants(branch, bounds).collect()
}

/// Returns the indices of the entries of `leaf` in the interval.
fn indices(leaf: &Leaf, interval: &Interval) -> Range<usize> {
    leaf.search(&interval.from).unwrap_or_else(|i| i)..leaf.search(&interval.to).unwrap_or_else(|i| i)
}
