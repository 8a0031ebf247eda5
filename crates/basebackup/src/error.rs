//! Reasons for there being no backup.

use std::io;
use std::path::{Path, PathBuf};

/// The result of everything here.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why there is no backup.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A call failed.
    #[error("cannot {doing} {}: {source}", path.display())]
    Io {
        /// As `read`.
        doing: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The error itself.
        source: io::Error,
    },
    /// The data directory, or its log, is not as a server leaves it.
    #[error("{0}")]
    Damaged(String),
    /// It is sound, and cannot be backed up like this.
    #[error("{0}")]
    Unsuited(String),
    /// The request makes no sense.
    #[error("{0}")]
    Invalid(String),
    /// It was asked to stop.
    #[error("it was interrupted")]
    Interrupted,
}

impl Error {
    /// For `map_err`.
    pub(crate) fn io(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { doing, path: path.to_owned(), source }
    }

    /// The same, of what people know by this path.
    pub(crate) fn at(self, shown: &Path) -> Self {
        match self {
            Self::Io { doing, source, .. } => Self::Io { doing, path: shown.to_owned(), source },
            other => other,
        }
    }
}
