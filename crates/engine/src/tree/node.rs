//! Defines a node of a tree, a leaf or a branch, and its state.

mod branch;
mod leaf;

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use super::unstored::NodeBytes;
use crate::limits::{NODE_BYTES, NODE_FANOUT_MAX};
use crate::types::Ptr;

pub(super) use branch::{Branch, Child, KeyBounds};
pub(super) use leaf::{Leaf, search_run};

/// Most bytes that a stored record takes beside its own: those of its header, and of its entries in both copies of a
/// directory.
const RECORD_OVERHEAD_BYTES: u64 = 64;

/// The content of a node.
#[derive(Clone)]
pub(super) enum Body {
    Leaf(Leaf),
    Branch(Branch),
}

/// A node in memory. It is changed in place only while a single tree refers to it, and never once it is immutable or
/// stored.
pub(super) struct Node {
    body: Body,
    /// True if it is immutable and the live tree does not refer to it any more.
    superseded: AtomicBool,
    /// Place where the checkpoint has written it, if it is immutable and was written.
    written: OnceLock<Ptr>,
}

/// Bounds of the size of nodes. They are a parameter only so that tests get deep trees from few entries.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    /// Number of encoded bytes above which a leaf is split.
    pub leaf_bytes: usize,
    /// Number of children above which a branch is split.
    pub fanout: usize,
}

impl Shape {
    pub(super) const STORED: Self = Self { leaf_bytes: NODE_BYTES, fanout: NODE_FANOUT_MAX };
}

impl Node {
    pub(super) fn new(body: Body) -> Self {
        Self { body, superseded: AtomicBool::new(false), written: OnceLock::new() }
    }

    pub(super) fn leaf(leaf: Leaf) -> Self {
        Self::new(Body::Leaf(leaf))
    }

    pub(super) fn branch(branch: Branch) -> Self {
        Self::new(Body::Branch(branch))
    }

    pub(super) fn body(&self) -> &Body {
        &self.body
    }

    pub(super) fn body_mut(&mut self) -> &mut Body {
        &mut self.body
    }

    pub(super) fn into_body(self) -> Body {
        self.body
    }

    /// Returns its level, 0 for a leaf.
    pub(super) fn level(&self) -> u8 {
        match &self.body {
            Body::Leaf(_) => 0,
            Body::Branch(branch) => branch.level(),
        }
    }

    /// Returns the number of entries of a leaf, or of children of a branch.
    pub(super) fn len(&self) -> usize {
        match &self.body {
            Body::Leaf(leaf) => leaf.len(),
            Body::Branch(branch) => branch.len(),
        }
    }

    /// Returns the memory that the node takes, in bytes.
    pub(super) fn footprint_bytes(&self) -> usize {
        let heap = match &self.body {
            Body::Leaf(leaf) => leaf.heap_bytes(),
            Body::Branch(branch) => branch.heap_bytes(),
        };
        // The two counts of an `Arc` go with it.
        size_of::<Self>() + 2 * size_of::<usize>() + heap
    }

    /// Returns the size of the node.
    pub(super) fn bytes(&self) -> NodeBytes {
        let stored = match &self.body {
            Body::Leaf(leaf) => leaf.encoded_bytes(),
            Body::Branch(branch) => branch.encoded_bytes_max(),
        };
        NodeBytes { memory: self.footprint_bytes() as u64, stored: stored as u64 + RECORD_OVERHEAD_BYTES }
    }

    /// Returns the node in as little memory as possible and with clean children, as the cache keeps it; `None` if a
    /// child has not been written.
    pub(super) fn settled(&self) -> Option<Self> {
        match &self.body {
            Body::Leaf(leaf) => Some(Self::leaf(leaf.without_spare())),
            Body::Branch(branch) => branch.settled().map(Self::branch),
        }
    }

    /// Returns true if the node is at most a quarter full, so that a merge with a neighbour is worth it.
    pub(super) fn is_underfull(&self, shape: Shape) -> bool {
        match &self.body {
            Body::Leaf(leaf) => leaf.encoded_bytes() <= shape.leaf_bytes / 4,
            Body::Branch(branch) => branch.len() <= shape.fanout / 4,
        }
    }

    /// Returns true if the two, neighbours of one level and not empty, make one node that is at most three quarters
    /// full and so has room to grow before the next split.
    pub(super) fn fits_with(&self, other: &Self, shape: Shape) -> bool {
        if self.len() == 0 || other.len() == 0 {
            return false;
        }
        match (&self.body, &other.body) {
            (Body::Leaf(a), Body::Leaf(b)) => {
                a.encoded_bytes() + b.encoded_bytes() <= shape.leaf_bytes / 4 * 3
            }
            (Body::Branch(a), Body::Branch(b)) => {
                a.level() == b.level() && a.len() + b.len() <= shape.fanout / 4 * 3
            }
            _ => false,
        }
    }

    /// Returns true if all keys and separators lie within `bounds`.
    pub(super) fn is_within(&self, bounds: &KeyBounds) -> bool {
        let (first, last) = match &self.body {
            Body::Leaf(leaf) => (leaf.first_key(), leaf.last_key()),
            Body::Branch(branch) => {
                (branch.separators().first().copied(), branch.separators().last().copied())
            }
        };
        first.is_none_or(|key| bounds.contains(&key)) && last.is_none_or(|key| bounds.contains(&key))
    }

    /// Notes that the live tree has unreferenced this immutable node.
    pub(super) fn supersede(&self) {
        self.superseded.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_superseded(&self) -> bool {
        self.superseded.load(Ordering::Relaxed)
    }

    pub(super) fn written(&self) -> Option<Ptr> {
        self.written.get().copied()
    }

    /// Notes where the checkpoint has written this immutable node. The first call counts.
    pub(super) fn set_written(&self, ptr: Ptr) {
        self.written.get_or_init(|| ptr);
    }
}

impl Clone for Node {
    /// Returns a copy that is in no checkpoint.
    fn clone(&self) -> Self {
        Self::new(self.body.clone())
    }
}
