//! Nodes: a leaf or a branch, and what becomes of it.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use super::branch::{Bounds, Branch};
use super::leaf::Leaf;
use super::unstored::NodeBytes;
use crate::limits::{NODE_BYTES, NODE_FANOUT_MAX};
use crate::types::Ptr;

/// Bytes that a stored record takes beside its own, at most: its header, and its entries in both copies of a directory.
const RECORD_OVERHEAD_BYTES: u64 = 64;

/// What a node holds.
#[derive(Clone)]
pub(super) enum Body {
    Leaf(Leaf),
    Branch(Branch),
}

/// A node in memory. Changed in place only while a single tree refers to it; immutable once frozen or stored.
pub(super) struct Node {
    body: Body,
    /// Frozen nodes only: the live tree does not refer to this node any more.
    superseded: AtomicBool,
    /// Frozen nodes only: where the checkpoint has written it.
    written: OnceLock<Ptr>,
}

/// How large nodes become. A parameter only so that tests get deep trees from few entries.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    /// Encoded bytes above which a leaf is split.
    pub leaf_bytes: usize,
    /// Children above which a branch is split.
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

    /// 0 for a leaf.
    pub(super) fn level(&self) -> u8 {
        match &self.body {
            Body::Leaf(_) => 0,
            Body::Branch(branch) => branch.level(),
        }
    }

    /// Entries of a leaf, children of a branch.
    pub(super) fn len(&self) -> usize {
        match &self.body {
            Body::Leaf(leaf) => leaf.len(),
            Body::Branch(branch) => branch.len(),
        }
    }

    /// Memory that the node takes, in bytes.
    pub(super) fn footprint_bytes(&self) -> usize {
        let heap = match &self.body {
            Body::Leaf(leaf) => leaf.heap_bytes(),
            Body::Branch(branch) => branch.heap_bytes(),
        };
        // an Arc's two counts go with it
        size_of::<Self>() + 2 * size_of::<usize>() + heap
    }

    /// Size of the node.
    pub(super) fn bytes(&self) -> NodeBytes {
        let stored = match &self.body {
            Body::Leaf(leaf) => leaf.encoded_bytes(),
            Body::Branch(branch) => branch.encoded_bytes_max(),
        };
        NodeBytes { memory: self.footprint_bytes() as u64, stored: stored as u64 + RECORD_OVERHEAD_BYTES }
    }

    /// The node in as little memory as possible and with clean children, as the cache keeps it; `None` if a
    /// child has not been written.
    pub(super) fn settled(&self) -> Option<Self> {
        match &self.body {
            Body::Leaf(leaf) => Some(Self::leaf(leaf.compact())),
            Body::Branch(branch) => branch.settled().map(Self::branch),
        }
    }

    /// At most a quarter full: worth a merge with a neighbour.
    pub(super) fn is_underfull(&self, shape: Shape) -> bool {
        match &self.body {
            Body::Leaf(leaf) => leaf.encoded_bytes() <= shape.leaf_bytes / 4,
            Body::Branch(branch) => branch.len() <= shape.fanout / 4,
        }
    }

    /// Whether the two, neighbours of one level and not empty, make one node that is at most three quarters
    /// full: room to grow before the next split.
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

    /// Whether all keys and separators lie within `bounds`.
    pub(super) fn is_within(&self, bounds: &Bounds) -> bool {
        let (first, last) = match &self.body {
            Body::Leaf(leaf) => (leaf.first_key(), leaf.last_key()),
            Body::Branch(branch) => {
                (branch.separators().first().copied(), branch.separators().last().copied())
            }
        };
        first.is_none_or(|key| bounds.contains(&key)) && last.is_none_or(|key| bounds.contains(&key))
    }

    /// Notes that the live tree has let go of this frozen node.
    pub(super) fn supersede(&self) {
        self.superseded.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_superseded(&self) -> bool {
        self.superseded.load(Ordering::Relaxed)
    }

    pub(super) fn written(&self) -> Option<Ptr> {
        self.written.get().copied()
    }

    /// Notes where the checkpoint has written this frozen node. The first call counts.
    pub(super) fn set_written(&self, ptr: Ptr) {
        self.written.get_or_init(|| ptr);
    }
}

impl Clone for Node {
    /// A copy that is in no checkpoint.
    fn clone(&self) -> Self {
        Self::new(self.body.clone())
    }
}
