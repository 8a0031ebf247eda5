//! Attacks the decoders of a backup repository's objects, for which a store may return anything.

use pagefold_backup::fuzzing;

pub(super) use fuzzing::{
    commit_seeds, frames_seeds, manifest_seeds, pack_seeds, root_seeds, wal_block_seeds, wal_head_seeds,
    wal_seeds,
};

/// Decodes a pack: its directory, and all blocks that it names.
pub(super) fn pack(bytes: &[u8]) -> bool {
    fuzzing::pack(bytes)
}

/// Decodes a chunk of a manifest. If that succeeds, encoding gives the same bytes.
pub(super) fn manifest(bytes: &[u8]) -> bool {
    fuzzing::manifest(bytes)
}

/// Decodes the head of an archived file of a log. If that succeeds, encoding gives the same bytes.
pub(super) fn wal_head(bytes: &[u8]) -> bool {
    fuzzing::wal_head(bytes)
}

/// A block of an archived log, coded by a model.
pub(super) fn wal_block(bytes: &[u8]) -> bool {
    fuzzing::wal_block(bytes)
}

/// Decodes an archived file of a log, a segment, and a timeline's history.
pub(super) fn wal(bytes: &[u8]) -> bool {
    fuzzing::wal(bytes)
}

/// Decodes messages of a client, or of a host that serves.
pub(super) fn frames(bytes: &[u8]) -> bool {
    fuzzing::frames(bytes)
}

/// Decodes the root of a manifest.
pub(super) fn root(bytes: &[u8]) -> bool {
    fuzzing::root(bytes)
}

/// Decodes a commit, and the description of a repository.
pub(super) fn commit(bytes: &[u8]) -> bool {
    fuzzing::commit(bytes)
}
