//! Carries out edits: makes nodes editable, sets and removes keys, splits and merges nodes.

use std::iter::Peekable;
use std::sync::Arc;
use std::vec;

use super::interval::Interval;
use super::node::{Body, Branch, Child, KeyBounds, Leaf, Node, Shape};
use super::read::{Held, Want};
use super::unstored::NodeBytes;
use super::{Edit, Live, NodeCache, NodeStore, Value};
use crate::limits::TREE_LEVELS_MAX;
use crate::types::{Key, Ptr};
use crate::{Error, Result};

type EditRun = Peekable<vec::IntoIter<Edit>>;
type Siblings = Vec<(Key, Child)>;

/// One [`Tree::apply`] under way, with the tree locked.
pub(super) struct Editor<'a> {
    pub cache: &'a NodeCache,
    pub store: &'a dyn NodeStore,
    pub shape: Shape,
    pub held: Held,
    pub replaced: &'a mut dyn FnMut(Key, Value),
    pub freed: &'a mut Vec<Ptr>,
    pub dirty: NodeBytes,
    /// Clean nodes that were detached from the tree with all below them.
    pub detached: Vec<Want>,
}

impl Editor<'_> {
    pub(super) fn run(&mut self, live: &mut Live, mut run: EditRun) -> Result<()> {
        while let Some(edit) = run.peek() {
            match edit {
                Edit::DeleteRange(from, to) => {
                    let interval = Interval::new(from, to);
                    run.next();
                    self.delete_range(live, &interval)?;
                }
                Edit::Delete(key) if !self.contains(live, key)? => {
                    run.next();
                }
                Edit::Delete(_) | Edit::Put(..) => self.edit_root(live, &mut run)?,
            }
            self.shrink_root(live);
        }
        Ok(())
    }

    fn resident(&self, ptr: Ptr) -> Option<Arc<Node>> {
        self.held.get(&ptr.addr).cloned().or_else(|| self.cache.get(ptr.addr))
    }

    pub(super) fn node(&mut self, want: &Want) -> Result<Arc<Node>> {
        match self.resident(want.ptr) {
            Some(node) => Ok(node),
            None => want.fetch(self.cache, self.store),
        }
    }

    fn contains(&mut self, live: &Live, key: &Key) -> Result<bool> {
        loop {
            let find = |want: &Want| self.resident(want.ptr);
            match live.at_leaf(key, find, |leaf, _| leaf.search(key).is_ok()) {
                Ok(found) => return Ok(found == Some(true)),
                Err(want) => {
                    let node = want.fetch(self.cache, self.store)?;
                    self.held.insert(want.ptr.addr, node);
                }
            }
        }
    }

    /// Notes that a node has changed in place, from size `before` to `after`.
    pub(super) fn changed(&mut self, before: NodeBytes, after: NodeBytes) {
        self.dirty += after;
        self.dirty -= before;
    }

    /// Frees a stored node.
    pub(super) fn free(&mut self, ptr: Ptr) {
        self.freed.push(ptr);
        self.held.remove(&ptr.addr);
        self.cache.remove(ptr.addr);
    }

    /// Makes the node of `child` one that may be edited in place, by copying it if need be (invariant 1).
    pub(super) fn own<'c>(&mut self, child: &'c mut Child) -> Result<&'c mut Node> {
        let copy = match child {
            Child::Dirty(node) if Arc::strong_count(node) == 1 && node.written().is_none() => None,
            Child::Dirty(node) => {
                node.supersede();
                Some(Node::clone(node))
            }
            Child::Clean { len_bytes, addr } => {
                let ptr = Ptr { addr: *addr, len_bytes: *len_bytes };
                let node = self.node(&Want { ptr, level: None, bounds: KeyBounds::default() })?;
                self.free(ptr);
                Some(Node::new(Arc::unwrap_or_clone(node).into_body()))
            }
        };
        if let Some(copy) = copy {
            self.dirty += copy.bytes();
            *child = Child::dirty(copy);
        }
        match child {
            Child::Dirty(node) => Ok(Arc::make_mut(node)),
            Child::Clean { addr, .. } => {
                Err(Error::Invalid(format!("tree node {addr} was not made editable: a bug")))
            }
        }
    }

    fn edit_root(&mut self, live: &mut Live, run: &mut EditRun) -> Result<()> {
        let root = live.root.get_or_insert_with(|| {
            let node = Node::leaf(Leaf::with_capacity(0));
            self.dirty += node.bytes();
            Child::dirty(node)
        });
        let siblings = self.edit(root, run, KeyBounds::default())?;
        if siblings.is_empty() {
            return Ok(());
        }
        let level = self.level(root)? + 1;
        if level >= TREE_LEVELS_MAX {
            return Err(Error::Invalid(format!(
                "a tree cannot have more than {TREE_LEVELS_MAX} levels: a bug"
            )));
        }
        if let Some(first) = live.root.take() {
            let mut branch = Branch::with_capacity(level, siblings.len() + 1, first);
            siblings.into_iter().for_each(|(separator, child)| branch.push(separator, child));
            let node = Node::branch(branch);
            self.dirty += node.bytes();
            live.root = Some(Child::dirty(node));
        }
        Ok(())
    }

    fn level(&mut self, child: &mut Child) -> Result<u8> {
        self.own(child).map(|node| node.level())
    }

    /// Removes a root without entries, and replaces a root with a single child by that child.
    fn shrink_root(&mut self, live: &mut Live) {
        while let Some(Child::Dirty(root)) = &live.root {
            let heir = match root.body() {
                Body::Branch(branch) if branch.len() == 1 => Some(branch.child(0).clone()),
                _ if root.len() == 0 => None,
                _ => return,
            };
            if let Some(old) = std::mem::replace(&mut live.root, heir) {
                self.dispose(&old);
            }
        }
    }

    /// Drops a node in memory, not what is below it.
    fn dispose(&mut self, child: &Child) {
        if let Child::Dirty(node) = child {
            if Arc::strong_count(node) > 1 {
                node.supersede();
            } else {
                self.dirty -= node.bytes();
            }
        }
    }

    /// Applies the next edits of `run`, as far as they are of single keys below `child`. Returns the new siblings at
    /// its right. `child` may be left without entries, or underfull: [`Editor::rebalance`] removes or merges it then.
    fn edit(&mut self, child: &mut Child, run: &mut EditRun, bounds: KeyBounds) -> Result<Siblings> {
        let node = self.own(child)?;
        let before = node.bytes();
        let mut siblings = Vec::new();
        match node.body_mut() {
            Body::Leaf(leaf) => {
                for part in edit_leaf(leaf, run, &bounds, self.shape.leaf_bytes, self.replaced) {
                    if let Some(separator) = part.first_key() {
                        siblings.push((separator, Child::dirty(Node::leaf(part))));
                    }
                }
            }
            Body::Branch(branch) => {
                while (1..=self.shape.fanout).contains(&branch.len())
                    && let Some(key) = next_within(run, &bounds)
                {
                    let i = branch.index_of(&key);
                    let below = branch.bounds(i, bounds);
                    let grown = self.edit(branch.child_mut(i), run, below)?;
                    if grown.is_empty() {
                        self.rebalance(branch, i, bounds)?;
                    } else {
                        branch.insert_after(i, grown);
                    }
                }
                if branch.len() > self.shape.fanout {
                    let (separator, right) = branch.split();
                    siblings.push((separator, Child::dirty(Node::branch(right))));
                }
            }
        }
        let after = node.bytes();
        self.changed(before, after);
        for (_, sibling) in &siblings {
            if let Child::Dirty(node) = sibling {
                self.dirty += node.bytes();
            }
        }
        Ok(siblings)
    }

    /// Removes child `i`, which was just edited, if it is empty. Merges it with a neighbour that is in memory if it is
    /// underfull. `bounds` are those of the branch.
    pub(super) fn rebalance(&mut self, branch: &mut Branch, i: usize, bounds: KeyBounds) -> Result<()> {
        let Some(Child::Dirty(node)) = branch.children().get(i) else { return Ok(()) };
        if node.len() == 0 {
            self.dispose(branch.child(i));
            branch.remove(i, i + 1);
            return Ok(());
        }
        if !node.is_underfull(self.shape) {
            return Ok(());
        }
        for (left, beside) in [(i.wrapping_sub(1), i.wrapping_sub(1)), (i, i + 1)] {
            let neighbour = match branch.children().get(beside) {
                Some(Child::Dirty(node)) => Arc::clone(node),
                Some(Child::Clean { len_bytes, addr }) => {
                    let ptr = Ptr { addr: *addr, len_bytes: *len_bytes };
                    // Another place in a damaged tree may have brought a node with other keys into memory.
                    let allowed = branch.bounds(beside, bounds);
                    let node = self.resident(ptr).filter(|node| node.is_within(&allowed));
                    let Some(node) = node else { continue };
                    self.held.insert(*addr, Arc::clone(&node));
                    node
                }
                None => continue,
            };
            let Child::Dirty(node) = branch.child(i) else { continue };
            if node.fits_with(&neighbour, self.shape) {
                // This reference would forbid editing in place.
                drop(neighbour);
                return self.merge(branch, left);
            }
        }
        Ok(())
    }

    /// Merges children `left` and `left + 1` into one node.
    fn merge(&mut self, branch: &mut Branch, left: usize) -> Result<()> {
        self.own(branch.child_mut(left))?;
        self.own(branch.child_mut(left + 1))?;
        let separator = branch.separators()[left];
        for removed in branch.remove(left + 1, left + 2) {
            self.dispose(&removed);
            let Child::Dirty(right) = removed else { continue };
            let node = self.own(branch.child_mut(left))?;
            let before = node.bytes();
            match (node.body_mut(), Arc::unwrap_or_clone(right).into_body()) {
                (Body::Leaf(left), Body::Leaf(right)) => left.append(right),
                (Body::Branch(left), Body::Branch(right)) => left.append(separator, right),
                _ => return Err(Error::Invalid("tree nodes of two levels were to be merged: a bug".into())),
            }
            let after = node.bytes();
            self.changed(before, after);
        }
        Ok(())
    }
}

/// Returns the size of the nodes from `child` down that only the live tree refers to.
pub(super) fn changed_bytes(child: &Child) -> NodeBytes {
    let mut bytes = NodeBytes::default();
    if let Child::Dirty(node) = child
        && Arc::strong_count(node) == 1
    {
        bytes += node.bytes();
        if let Body::Branch(branch) = node.body() {
            branch.children().iter().for_each(|child| bytes += changed_bytes(child));
        }
    }
    bytes
}

/// Returns the key of the next edit, if it is of a single key within `bounds`.
fn next_within(run: &mut EditRun, bounds: &KeyBounds) -> Option<Key> {
    run.peek().and_then(point).filter(|key| bounds.contains(key))
}

fn point(edit: &Edit) -> Option<Key> {
    match edit {
        Edit::Put(key, _) | Edit::Delete(key) => Some(*key),
        Edit::DeleteRange(..) => None,
    }
}

/// Applies the next edits of `run` that are of keys within `bounds`, until the leaf exceeds `target` bytes; then splits
/// it. Returns the new leaves at its right.
fn edit_leaf(
    leaf: &mut Leaf,
    run: &mut EditRun,
    bounds: &KeyBounds,
    target: usize,
    replaced: &mut dyn FnMut(Key, Value),
) -> Vec<Leaf> {
    let mut inserted = None;
    while let Some(edit) = run.next_if(|edit| point(edit).is_some_and(|key| bounds.contains(&key))) {
        match edit {
            Edit::Put(key, value) => match leaf.search(&key) {
                Ok(i) => replaced(key, leaf.replace(i, value)),
                Err(i) => {
                    leaf.insert(i, key, value);
                    inserted = Some(i);
                }
            },
            Edit::Delete(key) => {
                if let Ok(i) = leaf.search(&key) {
                    leaf.remove(i..i + 1, replaced);
                    inserted = None;
                }
            }
            Edit::DeleteRange(..) => {}
        }
        if leaf.encoded_bytes() > target {
            break;
        }
    }
    leaf.split(inserted, target)
}
