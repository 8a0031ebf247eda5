//! The reason why nothing can be reached at a place.

use crate::Error;

/// The reason why nothing can be reached at a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoDevice {
    /// The pool has no group of this number.
    #[error("the pool has no group number {0}")]
    Unknown(u16),
    /// The pool has this group, and none of its devices can be used.
    #[error("no device of group number {0} is here")]
    Missing(u16),
}

impl NoDevice {
    /// Returns the error for something that lies there.
    pub(crate) fn in_place_of(self, what: impl Into<String>) -> Error {
        let detail = match self {
            Self::Unknown(_) => "it lies on a device that the pool does not have",
            Self::Missing(_) => "it lies on a device that is missing",
        };
        Error::corrupt(what, detail)
    }
}

/// A number comes from something stored, so a group that cannot be reached by it counts as damage: there may be a copy
/// on another one.
impl From<NoDevice> for Error {
    fn from(none: NoDevice) -> Self {
        match none {
            NoDevice::Unknown(number) => {
                Self::corrupt(format!("group number {number}"), "the pool has no such group of devices")
            }
            NoDevice::Missing(number) => {
                Self::corrupt(format!("group number {number}"), "its devices are missing")
            }
        }
    }
}
