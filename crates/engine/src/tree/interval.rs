//! An interval of keys.

use crate::types::Key;

/// The interval of an [`Edit::DeleteRange`](super::Edit::DeleteRange), with its last key.
#[derive(Clone, Copy)]
pub(super) struct Interval {
    pub(super) from: Key,
    pub(super) to: Key,
    pub(super) last: Key,
}

impl Interval {
    /// Creates the interval from `from` (inclusive) to `to` (exclusive), which is above.
    pub(super) fn new(from: &Key, to: &Key) -> Self {
        Self { from: *from, to: *to, last: before(to) }
    }
}

/// Returns the key before `key`, which must not be the first of all.
pub(super) fn before(key: &Key) -> Key {
    match (key.offset.checked_sub(1), key.kind.checked_sub(1)) {
        (Some(offset), _) => Key { offset, ..*key },
        (None, Some(kind)) => Key { kind, offset: u64::MAX, ..*key },
        (None, None) => Key::new(key.object.saturating_sub(1), u8::MAX, u64::MAX),
    }
}
