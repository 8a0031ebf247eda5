//! What a store may give back for an object of a backup repository.

use pagefold_backup::fuzzing;

pub(super) use fuzzing::{
    commit_seeds, frames_seeds, manifest_seeds, pack_seeds, root_seeds, wal_head_seeds, wal_seeds,
};

/// A pack: its directory, and all blocks that it names.
pub(super) fn pack(bytes: &[u8]) -> bool {
    fuzzing::pack(bytes)
}

/// A chunk of a manifest. What decodes is what encodes.
pub(super) fn manifest(bytes: &[u8]) -> bool {
    fuzzing::manifest(bytes)
}

/// The head of an archived file of a log. What decodes is what encodes.
pub(super) fn wal_head(bytes: &[u8]) -> bool {
    fuzzing::wal_head(bytes)
}

/// An archived file of a log, a segment, and a timeline's history.
pub(super) fn wal(bytes: &[u8]) -> bool {
    fuzzing::wal(bytes)
}

/// Messages of a client, or of a host that serves.
pub(super) fn frames(bytes: &[u8]) -> bool {
    fuzzing::frames(bytes)
}

/// The root of a manifest.
pub(super) fn root(bytes: &[u8]) -> bool {
    fuzzing::root(bytes)
}

/// A commit, and the description of a repository.
pub(super) fn commit(bytes: &[u8]) -> bool {
    fuzzing::commit(bytes)
}
