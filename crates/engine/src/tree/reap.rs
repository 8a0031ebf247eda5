//! Walks a stored tree that is given up, step by step.

use super::delete_range::wants_all;
use super::node::{Body, KeyBounds};
use super::read::Want;
use super::{NodeStore, Value};
use crate::Error;
use crate::types::{Key, Ptr};

/// The records that a step of [`reap`] has met.
#[derive(Debug, Default)]
pub(crate) struct Reaped {
    /// Nodes.
    pub nodes: Vec<Ptr>,
    /// Pages that leaves refer to. A page may come several times.
    pub pages: Vec<Ptr>,
    /// Those of `nodes` that could not be read, with the errors. What is below them is not reported.
    pub unreadable: Vec<(Ptr, Error)>,
    /// Key from which the next step begins; `None` if this was the last step.
    pub next: Option<Key>,
}

struct Reap<'a> {
    store: &'a dyn NodeStore,
    from: Option<Key>,
    node_bound: u64,
    limit: usize,
    found: Reaped,
}

/// Collects what is below `root` from key `from` on, in key order, until about `limit` pages were met. Nodes whose raw
/// address is below `node_bound` are left out, with all below them. A branch comes with the last node below it: as long
/// as there is a next step, the nodes that lead to it are not reported.
pub(crate) fn reap(
    root: Option<Ptr>,
    store: &dyn NodeStore,
    from: Option<Key>,
    node_bound: u64,
    limit: usize,
) -> Reaped {
    let mut reap = Reap { store, from, node_bound, limit, found: Reaped::default() };
    if let Some(ptr) = root {
        reap.visit(&Want { ptr, level: None, bounds: KeyBounds::default() });
    }
    reap.found
}

impl Reap<'_> {
    /// Collects a node and all below it. Returns true if the walk is to go on behind it.
    fn visit(&mut self, want: &Want) -> bool {
        if want.ptr.addr.raw() < self.node_bound {
            return true;
        }
        let node = match want.load(self.store) {
            Ok(node) => node,
            Err(error) => {
                self.found.unreadable.push((want.ptr, error));
                self.found.nodes.push(want.ptr);
                return true;
            }
        };
        match node.body() {
            Body::Leaf(leaf) => {
                for (_, value) in leaf.entries(0..leaf.len()) {
                    if let Value::Page(ptr) = value.to_value() {
                        self.found.pages.push(ptr);
                    }
                }
                self.found.nodes.push(want.ptr);
                self.limit = self.limit.saturating_sub(leaf.len().max(1));
            }
            Body::Branch(branch) => {
                let children = wants_all(branch, want.bounds);
                let last = children.len().saturating_sub(1);
                for (at, child) in children.iter().enumerate() {
                    let done = self.from.zip(child.bounds.upper).is_some_and(|(from, upper)| upper <= from);
                    if done {
                        continue;
                    }
                    if !self.visit(child) {
                        return false;
                    }
                    if at < last && self.limit == 0 {
                        self.found.next = child.bounds.upper;
                        return false;
                    }
                }
                self.found.nodes.push(want.ptr);
            }
        }
        true
    }
}
