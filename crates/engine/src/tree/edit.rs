//! Changes of a tree.

use std::iter::Peekable;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::vec;

use super::branch::{Bounds, Branch, Child};
use super::leaf::Leaf;
use super::node::{Body, Node, Shape};
use super::read::{Held, Want};
use super::{Edit, Live, NodeCache, NodeStore, Tree, Value};
use crate::limits::{TREE_LEVELS_MAX, VALUE_BYTES_MAX};
use crate::types::{Key, Ptr};
use crate::{Error, Result};

/// What [`Tree::apply`] could not do in full, although all edits were applied.
#[derive(Debug, Default)]
#[must_use]
pub struct Applied {
    /// Nodes below a deleted range that could not be read, and why. The range is gone from the tree and the node itself is in `freed`,
    /// but the values and nodes below were not reported: their space stays in use until a check of the pool finds it.
    pub unreadable: Vec<(Ptr, Error)>,
}

type Run = Peekable<vec::IntoIter<Edit>>;
type Siblings = Vec<(Key, Child)>;

impl Tree {
    /// Applies `edits` in order, at once for readers.
    ///
    /// `replaced` is called once with each key and value that was overwritten or deleted, in no particular order, partly after the edits have
    /// become visible. `freed` gets each stored node that the tree does not refer to any more; the last checkpoint still does. A
    /// concurrent [`Tree::freeze`] waits until all has been reported.
    ///
    /// The nodes that the edits change are loaded first, without a lock that readers need, and stay in memory until the next
    /// checkpoint: the caller bounds the number of edits. What lies wholly within a deleted range is cut off without being read, and read
    /// leaf by leaf afterwards to be reported.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a value above [`VALUE_BYTES_MAX`]; an error of [`NodeStore::load`] or [`Error::Corrupt`] where a node on the way
    /// to an edited key cannot be had. Nothing has been changed then. (Should a node that was loaded for the call be needed from the
    /// store again, which no known case does, and fail, the edits before have been applied.)
    pub fn apply(
        &self,
        edits: &mut dyn Iterator<Item = Edit>,
        replaced: &mut dyn FnMut(Key, Value),
        freed: &mut Vec<Ptr>,
    ) -> Result<Applied> {
        let edits: Vec<Edit> =
            edits.filter(|edit| !matches!(edit, Edit::DeleteRange(from, to) if from >= to)).collect();
        for edit in &edits {
            if let Edit::Put(key, Value::Bytes(bytes)) = edit
                && bytes.len() > VALUE_BYTES_MAX
            {
                let len = bytes.len();
                return Err(Error::Invalid(format!(
                    "value of {key:?}: {len} bytes, at most {VALUE_BYTES_MAX} fit"
                )));
            }
        }
        let _writer = self.writer.lock();
        let held = self.prefault(&edits)?;
        let mut editor = Editor {
            cache: &self.cache,
            store: &*self.store,
            shape: self.shape,
            held,
            replaced,
            freed,
            dirty_bytes: self.dirty_bytes() as i64,
            detached: Vec::new(),
        };
        let edited = {
            let mut live = self.live.write();
            let edited = editor.run(&mut live, edits.into_iter().peekable());
            if edited.is_err() {
                editor.dirty_bytes = live.root.as_ref().map_or(0, changed_bytes) as i64;
            }
            self.dirty_bytes.store(editor.dirty_bytes.max(0) as u64, Ordering::Relaxed);
            edited
        };
        let applied = editor.report_detached();
        edited.map(|()| applied)
    }

    /// Loads all that `edits` will touch.
    fn prefault(&self, edits: &[Edit]) -> Result<Held> {
        let mut pins = Pins { tree: self, held: Held::new(), last: None };
        for edit in edits {
            match edit {
                Edit::Put(key, _) => pins.pin(key, false)?,
                Edit::Delete(key) => pins.pin(key, true)?,
                Edit::DeleteRange(from, to) => {
                    pins.pin(from, true)?;
                    pins.pin(&before(to), true)?;
                }
            }
        }
        Ok(pins.held)
    }
}

/// The key before `key`, which is not the first of all.
fn before(key: &Key) -> Key {
    match (key.offset.checked_sub(1), key.kind.checked_sub(1)) {
        (Some(offset), _) => Key { offset, ..*key },
        (None, Some(kind)) => Key { kind, offset: u64::MAX, ..*key },
        (None, None) => Key::new(key.object.saturating_sub(1), u8::MAX, u64::MAX),
    }
}

/// Memory of the nodes below `child` that only the live tree refers to.
pub(super) fn changed_bytes(child: &Child) -> usize {
    match child {
        Child::Dirty(node) if Arc::strong_count(node) == 1 => {
            let below = match node.body() {
                Body::Leaf(_) => 0,
                Body::Branch(branch) => branch.children().iter().map(changed_bytes).sum(),
            };
            node.footprint_bytes() + below
        }
        _ => 0,
    }
}

struct Pins<'a> {
    tree: &'a Tree,
    held: Held,
    /// The leaf pinned last, and whether with a neighbour.
    last: Option<(Bounds, bool)>,
}

impl Pins<'_> {
    /// Loads the way to `key`; `shrinks`: also a neighbour of the leaf, if the two might be merged.
    fn pin(&mut self, key: &Key, shrinks: bool) -> Result<()> {
        if self.last.is_some_and(|(bounds, neighbour)| bounds.contains(key) && (neighbour || !shrinks)) {
            return Ok(());
        }
        loop {
            let mut met = Vec::new();
            let found = {
                let live = self.tree.live.read();
                let find = |want: &Want| {
                    let addr = want.ptr.addr;
                    let node = self.held.get(&addr).cloned().or_else(|| self.tree.cache.get(addr))?;
                    met.push((addr, Arc::clone(&node)));
                    Some(node)
                };
                live.at_leaf(key, find, |leaf, place| {
                    (
                        place.bounds,
                        place
                            .neighbour
                            .filter(|_| shrinks && leaf.encoded_bytes() <= self.tree.shape.leaf_bytes / 2),
                    )
                })
            };
            self.held.extend(met);
            match found {
                Ok(None) => return Ok(()),
                Ok(Some((bounds, neighbour))) => {
                    // a neighbour that cannot be read is no reason to fail: there will be no merge
                    if let Some(want) = neighbour
                        && let Ok(node) = want.fetch(&self.tree.cache, &*self.tree.store)
                    {
                        self.held.insert(want.ptr.addr, node);
                    }
                    self.last = Some((bounds, shrinks));
                    return Ok(());
                }
                Err(want) => {
                    let node = want.fetch(&self.tree.cache, &*self.tree.store)?;
                    self.held.insert(want.ptr.addr, node);
                }
            }
        }
    }
}

/// One [`Tree::apply`] under way, with the tree locked.
struct Editor<'a> {
    cache: &'a NodeCache,
    store: &'a dyn NodeStore,
    shape: Shape,
    held: Held,
    replaced: &'a mut dyn FnMut(Key, Value),
    freed: &'a mut Vec<Ptr>,
    dirty_bytes: i64,
    /// Clean nodes cut off the tree with all below them.
    detached: Vec<Want>,
}

/// The interval of a [`Edit::DeleteRange`], with its last key.
#[derive(Clone, Copy)]
struct Interval {
    from: Key,
    to: Key,
    last: Key,
}

impl Editor<'_> {
    fn run(&mut self, live: &mut Live, mut run: Run) -> Result<()> {
        while let Some(edit) = run.peek() {
            match edit {
                Edit::DeleteRange(from, to) => {
                    let interval = Interval { from: *from, to: *to, last: before(to) };
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

    fn node(&mut self, want: &Want) -> Result<Arc<Node>> {
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

    /// Lets go of a stored node.
    fn free(&mut self, ptr: Ptr) {
        self.freed.push(ptr);
        self.held.remove(&ptr.addr);
        self.cache.remove(ptr.addr);
    }

    /// Makes the node of `child` one that may be edited in place (invariant 1).
    fn own<'c>(&mut self, child: &'c mut Child) -> Result<&'c mut Node> {
        let copy = match child {
            Child::Dirty(node) if Arc::strong_count(node) == 1 && node.written().is_none() => None,
            Child::Dirty(node) => {
                node.supersede();
                Some(Node::clone(node))
            }
            Child::Clean { len_bytes, addr } => {
                let ptr = Ptr { addr: *addr, len_bytes: *len_bytes };
                let node = self.node(&Want { ptr, level: None, bounds: Bounds::default() })?;
                self.free(ptr);
                Some(Node::new(Arc::unwrap_or_clone(node).into_body()))
            }
        };
        if let Some(copy) = copy {
            self.dirty_bytes += copy.footprint_bytes() as i64;
            *child = Child::dirty(copy);
        }
        match child {
            Child::Dirty(node) => Ok(Arc::make_mut(node)),
            Child::Clean { addr, .. } => {
                Err(Error::Invalid(format!("tree node {addr} was not made editable: a bug")))
            }
        }
    }

    fn edit_root(&mut self, live: &mut Live, run: &mut Run) -> Result<()> {
        let root = live.root.get_or_insert_with(|| {
            let node = Node::leaf(Leaf::with_capacity(0));
            self.dirty_bytes += node.footprint_bytes() as i64;
            Child::dirty(node)
        });
        let siblings = self.edit(root, run, Bounds::default())?;
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
            self.dirty_bytes += node.footprint_bytes() as i64;
            live.root = Some(Child::dirty(node));
        }
        Ok(())
    }

    fn level(&mut self, child: &mut Child) -> Result<u8> {
        self.own(child).map(|node| node.level())
    }

    /// A root without entries goes; one with a single child gives way to it.
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

    /// Lets go of a node in memory, not of what is below it.
    fn dispose(&mut self, child: &Child) {
        if let Child::Dirty(node) = child {
            if Arc::strong_count(node) > 1 {
                node.supersede();
            } else {
                self.dirty_bytes -= node.footprint_bytes() as i64;
            }
        }
    }

    /// Applies the next edits of `run`, as far as they are of single keys below `child`. Returns the siblings at its right that came
    /// to be. `child` may be left without entries, or underfull: [`Editor::mend`].
    fn edit(&mut self, child: &mut Child, run: &mut Run, bounds: Bounds) -> Result<Siblings> {
        let node = self.own(child)?;
        let before = node.footprint_bytes();
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
                        self.mend(branch, i)?;
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
        self.dirty_bytes += node.footprint_bytes() as i64 - before as i64;
        for (_, sibling) in &siblings {
            self.dirty_bytes += changed_node_bytes(sibling) as i64;
        }
        Ok(siblings)
    }

    /// Removes child `i`, just edited, if it is empty; merges it with a neighbour in memory if it is underfull.
    fn mend(&mut self, branch: &mut Branch, i: usize) -> Result<()> {
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
                    let Some(node) = self.resident(ptr) else { continue };
                    self.held.insert(*addr, Arc::clone(&node));
                    node
                }
                None => continue,
            };
            let Child::Dirty(node) = branch.child(i) else { continue };
            if node.fits_with(&neighbour, self.shape) {
                // or else it would count as a reference that forbids editing in place
                drop(neighbour);
                return self.merge(branch, left);
            }
        }
        Ok(())
    }

    /// Makes one node of children `left` and `left + 1`.
    fn merge(&mut self, branch: &mut Branch, left: usize) -> Result<()> {
        self.own(branch.child_mut(left))?;
        self.own(branch.child_mut(left + 1))?;
        let separator = branch.separators()[left];
        for removed in branch.remove(left + 1, left + 2) {
            self.dispose(&removed);
            let Child::Dirty(right) = removed else { continue };
            let node = self.own(branch.child_mut(left))?;
            let before = node.footprint_bytes();
            match (node.body_mut(), Arc::unwrap_or_clone(right).into_body()) {
                (Body::Leaf(left), Body::Leaf(right)) => left.append(right),
                (Body::Branch(left), Body::Branch(right)) => left.append(separator, right),
                _ => return Err(Error::Invalid("tree nodes of two levels were to be merged: a bug".into())),
            }
            self.dirty_bytes += node.footprint_bytes() as i64 - before as i64;
        }
        Ok(())
    }

    fn delete_range(&mut self, live: &mut Live, interval: &Interval) -> Result<()> {
        let Some(root) = &mut live.root else { return Ok(()) };
        if self.hits(root, interval)? { self.cut(root, interval, Bounds::default()) } else { Ok(()) }
    }

    /// Whether there is anything to delete below `child`. Looks at most at the two edges of the interval.
    fn hits(&mut self, child: &Child, interval: &Interval) -> Result<bool> {
        let node = match child {
            Child::Dirty(node) => Arc::clone(node),
            Child::Clean { len_bytes, addr } => {
                let ptr = Ptr { addr: *addr, len_bytes: *len_bytes };
                self.node(&Want { ptr, level: None, bounds: Bounds::default() })?
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

    /// Deletes the interval, which hits something, below `child`, which reaches beyond it.
    fn cut(&mut self, child: &mut Child, interval: &Interval, bounds: Bounds) -> Result<()> {
        let node = self.own(child)?;
        let before = node.footprint_bytes();
        match node.body_mut() {
            Body::Leaf(leaf) => {
                leaf.remove(indices(leaf, interval), self.replaced);
            }
            Body::Branch(branch) => self.cut_branch(branch, interval, bounds)?,
        }
        self.dirty_bytes += node.footprint_bytes() as i64 - before as i64;
        Ok(())
    }

    fn cut_branch(&mut self, branch: &mut Branch, interval: &Interval, bounds: Bounds) -> Result<()> {
        let (low, high) = (branch.index_of(&interval.from), branch.index_of(&interval.last));
        let whole = |branch: &Branch, i| branch.bounds(i, bounds).inside(&interval.from, &interval.to);
        let (low_whole, high_whole) = (whole(branch, low), whole(branch, high));
        let edges = [(high, high_whole), (low, low_whole)];
        for (edge, _) in edges.iter().take(if low == high { 1 } else { 2 }).filter(|(_, whole)| !whole) {
            if self.hits(branch.child(*edge), interval)? {
                let below = branch.bounds(*edge, bounds);
                self.cut(branch.child_mut(*edge), interval, below)?;
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
            self.mend(branch, low)?;
        }
        if !high_whole && high > low {
            // one to the left of where it was if the low edge went, or was merged
            self.mend(branch, first - (children - branch.len()).min(first))?;
        }
        Ok(())
    }

    /// Lets go of a node and all below. `shared`: a frozen node refers to it.
    fn discard(&mut self, child: &Child, level: u8, bounds: Bounds, shared: bool) {
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
                    self.dirty_bytes -= node.footprint_bytes() as i64;
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

    /// Reports what was cut off. Needs no lock on the tree, which does not refer to these nodes any more.
    fn report_detached(mut self) -> Applied {
        let mut applied = Applied::default();
        while let Some(want) = self.detached.pop() {
            let held = self.held.get(&want.ptr.addr).cloned();
            let node = match held.or_else(|| self.cache.peek(want.ptr.addr)) {
                Some(node) => want.verify(&node).map(|()| node),
                // not through the cache: it will not be needed again
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

/// The clean children of `branch`.
pub(super) fn wants(branch: &Branch, bounds: Bounds) -> impl Iterator<Item = Want> {
    (0..branch.len()).filter_map(move |i| {
        let ptr = branch.child(i).stored_ptr()?;
        Some(Want { ptr, level: Some(branch.level() - 1), bounds: branch.bounds(i, bounds) })
    })
}

fn changed_node_bytes(child: &Child) -> usize {
    match child {
        Child::Dirty(node) => node.footprint_bytes(),
        Child::Clean { .. } => 0,
    }
}

/// The key of the next edit, if it is of a single key within `bounds`.
fn next_within(run: &mut Run, bounds: &Bounds) -> Option<Key> {
    run.peek().and_then(point).filter(|key| bounds.contains(key))
}

fn point(edit: &Edit) -> Option<Key> {
    match edit {
        Edit::Put(key, _) | Edit::Delete(key) => Some(*key),
        Edit::DeleteRange(..) => None,
    }
}

/// Indices of the entries of `leaf` in the interval.
fn indices(leaf: &Leaf, interval: &Interval) -> Range<usize> {
    leaf.search(&interval.from).unwrap_or_else(|i| i)..leaf.search(&interval.to).unwrap_or_else(|i| i)
}

/// Applies the next edits of `run` that are of keys within `bounds`, until the leaf exceeds `target` bytes; then splits it.
fn edit_leaf(
    leaf: &mut Leaf,
    run: &mut Run,
    bounds: &Bounds,
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
