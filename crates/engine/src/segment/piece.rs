//! Parts of directories, as they are cached.

use std::sync::Arc;

use quick_cache::Weighter;

use super::directory::{DirRef, Index, LEAF_SLOTS};
use super::kept_leaf::KeptLeaf;
use crate::space::Extent;

/// Key of a part of a directory in the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct PieceKey {
    pub(super) segment: u64,
    extent: Extent,
    /// Tells two directories at one place apart: a segment that was moved twice may lie where it lay before.
    checksum: u32,
    /// Number of the leaf; `None` for the index.
    leaf: Option<u32>,
}

impl PieceKey {
    /// Returns the key of the leaf that has the entry of `slot`, in the directory at `dir` of `extent`.
    pub(super) fn leaf(segment: u64, extent: Extent, dir: DirRef, slot: u32) -> Self {
        Self { segment, extent, checksum: dir.checksum, leaf: Some(slot / LEAF_SLOTS) }
    }

    /// Returns the key of the index of the directory at `dir` of `extent`.
    pub(super) fn index(segment: u64, extent: Extent, dir: DirRef) -> Self {
        Self { segment, extent, checksum: dir.checksum, leaf: None }
    }
}

/// A part of a directory, as it is cached.
#[derive(Clone)]
pub(super) enum Piece {
    Index(Arc<Index>),
    Leaf(Arc<KeptLeaf>),
}

#[derive(Clone)]
pub(super) struct PieceWeight;

impl Weighter<PieceKey, Piece> for PieceWeight {
    fn weight(&self, _key: &PieceKey, piece: &Piece) -> u64 {
        let memory_bytes = match piece {
            Piece::Index(index) => index.memory_bytes(),
            Piece::Leaf(leaf) => leaf.memory_bytes(),
        };
        memory_bytes as u64 + 64
    }
}
