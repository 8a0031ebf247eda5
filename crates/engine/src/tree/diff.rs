//! Finds the differences of two versions of a tree.
//!
//! Both are walked side by side, in key order. If the same node comes next in both, all below it is the same, and
//! neither is looked into: so what is read is proportional to what differs. Nodes are the same if they are stored at
//! the same address, or are one node in memory. Nothing else is concluded from a node: neither its age nor its bounds,
//! which an edit next to it may have moved, tell what the other version has.

use std::collections::VecDeque;
use std::sync::Arc;

use super::node::{Body, Child, KeyBounds, Node};
use super::read::Want;
use super::{NodeCache, NodeStore, Tree, Value};
use crate::Result;
use crate::types::{Key, Ptr};

/// A key whose value differs. At least one of the two values is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The key.
    pub key: Key,
    /// Value in the old version.
    pub before: Option<Value>,
    /// Value in the new version.
    pub after: Option<Value>,
}

/// The keys whose values differ, ascending. It is made by [`Tree::differences`], and ends after the first error.
pub struct Differences {
    new: Cursor,
    old: Cursor,
    failed: bool,
}

/// A node that is yet to be looked into.
struct UnvisitedNode {
    child: Child,
    /// Its level; `None` for a root.
    level: Option<u8>,
    bounds: KeyBounds,
}

impl UnvisitedNode {
    fn is(&self, other: &Self) -> bool {
        match (self.child.stored_ptr(), other.child.stored_ptr()) {
            (Some(a), Some(b)) => a.addr == b.addr,
            (None, None) => match (&self.child, &other.child) {
                (Child::Dirty(a), Child::Dirty(b)) => Arc::ptr_eq(a, b),
                _ => false,
            },
            _ => false,
        }
    }

    /// Returns the level. Roots, which may be of any level, rank highest, so that they are looked into first.
    fn rank(&self) -> u8 {
        self.level.unwrap_or(u8::MAX)
    }

    fn may_have(&self, key: &Key) -> bool {
        self.bounds.lower.is_none_or(|lower| lower <= *key)
    }
}

/// The part of a version that was not walked yet.
struct Cursor {
    store: Arc<dyn NodeStore>,
    cache: Arc<NodeCache>,
    /// Entries left of the leaf that was looked into last. They precede all of `ahead`.
    entries: VecDeque<(Key, Value)>,
    /// Nodes to be looked into, the next one last.
    ahead: Vec<UnvisitedNode>,
    /// Key up to which the caller needs no differences.
    after: Option<Key>,
}

/// The next thing in a version.
enum NextItem<'a> {
    Entry(Key),
    Node(&'a UnvisitedNode),
    End,
}

impl Cursor {
    fn new(tree: &Tree, store: &Arc<dyn NodeStore>, after: Option<Key>) -> Self {
        let root = tree.fork_root();
        let ahead = root.map(|child| UnvisitedNode { child, level: None, bounds: KeyBounds::default() });
        Self {
            store: Arc::clone(store),
            cache: Arc::clone(&tree.cache),
            entries: VecDeque::new(),
            ahead: ahead.into_iter().collect(),
            after,
        }
    }

    fn head(&self) -> NextItem<'_> {
        match (self.entries.front(), self.ahead.last()) {
            (Some((key, _)), _) => NextItem::Entry(*key),
            (None, Some(ahead)) => NextItem::Node(ahead),
            (None, None) => NextItem::End,
        }
    }

    fn node(&self, ahead: &UnvisitedNode) -> Result<Arc<Node>> {
        let (len_bytes, addr) = match &ahead.child {
            Child::Dirty(node) => return Ok(Arc::clone(node)),
            Child::Clean { len_bytes, addr } => (*len_bytes, *addr),
        };
        let want = Want { ptr: Ptr { addr, len_bytes }, level: ahead.level, bounds: ahead.bounds };
        match self.cache.peek(addr) {
            Some(node) => want.verify(&node).map(|()| node),
            // The cache is passed over, since a walk needs each node once.
            None => want.load(&*self.store).map(Arc::new),
        }
    }

    /// Replaces the next node by its entries or children.
    fn look_into(&mut self) -> Result<()> {
        let Some(ahead) = self.ahead.pop() else { return Ok(()) };
        let node = self.node(&ahead)?;
        match node.body() {
            Body::Leaf(leaf) => {
                let first =
                    self.after.map_or(0, |after| leaf.search(&after).map_or_else(|at| at, |at| at + 1));
                let entries = leaf.entries(first..leaf.len());
                self.entries.extend(entries.map(|(key, value)| (key, value.to_value())));
            }
            Body::Branch(branch) => {
                for at in (0..branch.len()).rev() {
                    let bounds = branch.bounds(at, ahead.bounds);
                    let done = self.after.zip(bounds.upper).is_some_and(|(after, upper)| upper <= after);
                    if !done {
                        let child = branch.child(at).clone();
                        self.ahead.push(UnvisitedNode { child, level: Some(branch.level() - 1), bounds });
                    }
                }
            }
        }
        Ok(())
    }

    fn take(&mut self) -> Option<Value> {
        self.entries.pop_front().map(|(_, value)| value)
    }
}

/// Returns true if two values are the same. Pages are if they have one record: the length in a pointer may be older
/// than the record.
fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Page(a), Value::Page(b)) => a.addr == b.addr,
        (a, b) => a == b,
    }
}

impl NextItem<'_> {
    fn key(&self) -> Option<Key> {
        match self {
            Self::Entry(key) => Some(*key),
            Self::Node(_) | Self::End => None,
        }
    }
}

impl Differences {
    fn step(&mut self) -> Result<Option<Difference>> {
        loop {
            let (new, old) = (&mut self.new, &mut self.old);
            match (new.head(), old.head()) {
                (NextItem::End, NextItem::End) => return Ok(None),
                (NextItem::Node(a), NextItem::Node(b)) => {
                    if a.is(b) {
                        new.ahead.pop();
                        old.ahead.pop();
                        continue;
                    }
                    // The higher node is looked into; of two at one level, the one with the lower keys, since the other
                    // version may not have these at all.
                    let order = a.rank().cmp(&b.rank()).then(b.bounds.lower.cmp(&a.bounds.lower));
                    if order.is_ge() {
                        new.look_into()?;
                    }
                    if order.is_le() {
                        old.look_into()?;
                    }
                }
                (NextItem::Entry(key), NextItem::Node(node)) if node.may_have(&key) => old.look_into()?,
                (NextItem::Node(node), NextItem::Entry(key)) if node.may_have(&key) => new.look_into()?,
                (NextItem::Node(_), NextItem::End) => new.look_into()?,
                (NextItem::End, NextItem::Node(_)) => old.look_into()?,
                (a, b) => {
                    let (a, b) = (a.key(), b.key());
                    let Some(key) = a.into_iter().chain(b).min() else { return Ok(None) };
                    let before = if b == Some(key) { old.take() } else { None };
                    let after = if a == Some(key) { new.take() } else { None };
                    let unchanged = before.as_ref().zip(after.as_ref()).is_some_and(|(a, b)| same(a, b));
                    if !unchanged {
                        return Ok(Some(Difference { key, before, after }));
                    }
                }
            }
        }
    }
}

impl Iterator for Differences {
    type Item = Result<Difference>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let step = self.step();
        self.failed = step.is_err();
        step.transpose()
    }
}

impl Tree {
    /// Returns the keys whose values differ between this version and `old`, from behind `after` on; without `old`, all
    /// entries. Both versions are taken as of now. Their nodes have to stay: the versions must not change, nor be
    /// destroyed, meanwhile.
    ///
    /// It takes memory for one leaf, and for a branch per level, of each version; and it keeps nodes that are in memory
    /// only.
    pub(crate) fn differences(&self, old: Option<&Self>, after: Option<Key>) -> Differences {
        self.differences_by(&self.store, old, after)
    }

    /// As [`Tree::differences`], with nodes that are not in memory from another source of the same.
    pub(crate) fn differences_by(
        &self,
        store: &Arc<dyn NodeStore>,
        old: Option<&Self>,
        after: Option<Key>,
    ) -> Differences {
        let new = Cursor::new(self, store, after);
        let old = old.map_or_else(
            || Cursor {
                store: Arc::clone(store),
                cache: Arc::clone(&self.cache),
                entries: VecDeque::new(),
                ahead: Vec::new(),
                after,
            },
            |old| Cursor::new(old, store, after),
        );
        Differences { new, old, failed: false }
    }

    /// Returns true if the two have the same content, told without reading. False is not certain: a change that was
    /// undone again makes it false, too.
    pub(crate) fn is_version_of(&self, other: &Self) -> bool {
        let root = |tree: &Self| {
            let child = tree.fork_root();
            child.map(|child| UnvisitedNode { child, level: None, bounds: KeyBounds::default() })
        };
        match (root(self), root(other)) {
            (None, None) => true,
            (Some(a), Some(b)) => a.is(&b),
            _ => false,
        }
    }

    /// Returns a second reference to the root, taken when no edit is under way (invariant 1).
    fn fork_root(&self) -> Option<Child> {
        let _writer = self.writer.lock();
        self.live.read().root.clone()
    }
}
