//! Defines branches, which have separators and children.

use std::sync::Arc;

use super::Node;
use crate::limits::NODE_CHILD_BYTES_MAX;
use crate::tree::entry::HEADER_BYTES;
use crate::types::{Addr, Key, Ptr};

/// A branch's reference to a node below it.
#[derive(Clone)]
pub(in crate::tree) enum Child {
    /// A node that is not part of the last checkpoint that was settled: changed since, or immutable and still being
    /// written.
    Dirty(Arc<Node>),
    /// A stored node. Its fields are not a [`Ptr`], so that a child takes 16 bytes.
    Clean {
        /// Stored length in bytes.
        len_bytes: u32,
        /// Address at which it is stored.
        addr: Addr,
    },
}

const _: () = assert!(size_of::<Child>() == 16);

impl Child {
    pub(in crate::tree) fn clean(ptr: Ptr) -> Self {
        Self::Clean { len_bytes: ptr.len_bytes, addr: ptr.addr }
    }

    pub(in crate::tree) fn dirty(node: Node) -> Self {
        Self::Dirty(Arc::new(node))
    }

    /// Returns where the node is stored, if it is clean, or immutable and written.
    pub(in crate::tree) fn stored_ptr(&self) -> Option<Ptr> {
        match self {
            Self::Dirty(node) => node.written(),
            Self::Clean { len_bytes, addr } => Some(Ptr { addr: *addr, len_bytes: *len_bytes }),
        }
    }
}

/// The half-open interval of keys that may be below a node; `None` is unbounded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::tree) struct KeyBounds {
    pub lower: Option<Key>,
    pub upper: Option<Key>,
}

impl KeyBounds {
    pub(in crate::tree) fn contains(&self, key: &Key) -> bool {
        self.lower.is_none_or(|lower| lower <= *key) && self.upper.is_none_or(|upper| *key < upper)
    }

    /// Returns the interval from the first key (inclusive) to the second (exclusive). Without an upper bound, the
    /// second is above all keys in use.
    pub(in crate::tree) fn keys(&self) -> (Key, Key) {
        (self.lower.unwrap_or(Key::FIRST), self.upper.unwrap_or(Key::LAST))
    }

    /// Returns true if all keys within are in `from..to`.
    pub(in crate::tree) fn inside(&self, from: &Key, to: &Key) -> bool {
        self.lower.is_some_and(|lower| lower >= *from) && self.upper.is_some_and(|upper| upper <= *to)
    }
}

/// An inner node. Child `i` holds the keys from `separators[i - 1]` (inclusive) to `separators[i]`
/// (exclusive).
///
/// Invariant: there is one more child than separators, or, only while an edit is under way, there are none of either.
#[derive(Clone)]
pub(in crate::tree) struct Branch {
    level: u8,
    separators: Vec<Key>,
    children: Vec<Child>,
}

impl Branch {
    pub(in crate::tree) fn with_capacity(level: u8, children: usize, first: Child) -> Self {
        let mut branch =
            Self { level, separators: Vec::with_capacity(children), children: Vec::with_capacity(children) };
        branch.children.push(first);
        branch
    }

    /// Appends a child whose keys are not below `separator`.
    pub(in crate::tree) fn push(&mut self, separator: Key, child: Child) {
        self.separators.push(separator);
        self.children.push(child);
    }

    pub(in crate::tree) fn level(&self) -> u8 {
        self.level
    }

    /// Returns the number of children.
    pub(in crate::tree) fn len(&self) -> usize {
        self.children.len()
    }

    pub(in crate::tree) fn separators(&self) -> &[Key] {
        &self.separators
    }

    pub(in crate::tree) fn children(&self) -> &[Child] {
        &self.children
    }

    pub(in crate::tree) fn children_mut(&mut self) -> &mut [Child] {
        &mut self.children
    }

    pub(in crate::tree) fn child(&self, i: usize) -> &Child {
        &self.children[i]
    }

    pub(in crate::tree) fn child_mut(&mut self, i: usize) -> &mut Child {
        &mut self.children[i]
    }

    /// Returns the index of the child that `key` is or would be below.
    pub(in crate::tree) fn index_of(&self, key: &Key) -> usize {
        self.separators.partition_point(|separator| separator <= key)
    }

    /// Returns the bounds of child `i`, if the branch's own are `outer`.
    pub(in crate::tree) fn bounds(&self, i: usize, outer: KeyBounds) -> KeyBounds {
        KeyBounds {
            lower: i.checked_sub(1).map_or(outer.lower, |before| Some(self.separators[before])),
            upper: self.separators.get(i).copied().or(outer.upper),
        }
    }

    /// Inserts siblings at the right of child `i`, each with the separator at its left.
    pub(in crate::tree) fn insert_after(&mut self, i: usize, siblings: Vec<(Key, Child)>) {
        for (n, (separator, child)) in siblings.into_iter().enumerate() {
            self.separators.insert(i + n, separator);
            self.children.insert(i + n + 1, child);
        }
    }

    /// Removes children `from..to` and returns them. Their keys fall to the neighbours.
    pub(in crate::tree) fn remove(&mut self, from: usize, to: usize) -> Vec<Child> {
        let removed: Vec<Child> = self.children.drain(from..to).collect();
        let count = removed.len().min(self.separators.len());
        // The separator at the left of each removed child is removed. Child 0 has none: its right one is removed
        // instead.
        let first = from.saturating_sub(1).min(self.separators.len() - count);
        self.separators.drain(first..first + count);
        removed
    }

    /// Moves the upper half to a new branch. Returns it with the separator between the two.
    pub(in crate::tree) fn split(&mut self) -> (Key, Self) {
        let at = self.children.len() / 2;
        let children = self.children.split_off(at);
        let separators = self.separators.split_off(at);
        let between = self.separators[at - 1];
        self.separators.truncate(at - 1);
        (between, Self { level: self.level, separators, children })
    }

    /// Appends all of `right`, whose keys are not below `separator`.
    pub(in crate::tree) fn append(&mut self, separator: Key, right: Self) {
        self.separators.push(separator);
        self.separators.extend(right.separators);
        self.children.extend(right.children);
    }

    /// Returns a copy whose children are all clean, or `None` if one of them has not been written.
    pub(in crate::tree) fn settled(&self) -> Option<Self> {
        let children =
            self.children.iter().map(|c| c.stored_ptr().map(Child::clean)).collect::<Option<_>>()?;
        Some(Self { level: self.level, separators: self.separators.clone(), children })
    }

    /// Returns the most bytes that the stored form takes.
    pub(in crate::tree) fn encoded_bytes_max(&self) -> usize {
        HEADER_BYTES + self.len() * NODE_CHILD_BYTES_MAX
    }

    /// Returns the bytes on the heap.
    pub(in crate::tree) fn heap_bytes(&self) -> usize {
        self.separators.capacity() * size_of::<Key>() + self.children.capacity() * size_of::<Child>()
    }
}
