//! A change that was made ready outside of the gate.

use super::pending::PageBuf;
use crate::Key;

/// A change made ready outside of the gate.
pub(super) enum Ready {
    Value(Key, Option<Vec<u8>>),
    Page(u64, u64, PageBuf),
    Punch { object: u64, from: u64, to: u64 },
    Share { from_object: u64, from_page: u64, to_object: u64, to_page: u64, count: u64 },
}

impl Ready {
    /// Returns the object that changes.
    pub(super) const fn object(&self) -> u64 {
        match self {
            Self::Value(key, _) => key.object,
            Self::Page(object, ..) | Self::Punch { object, .. } => *object,
            Self::Share { to_object, .. } => *to_object,
        }
    }
}
