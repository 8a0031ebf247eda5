//! Reasons why no backup was made.

use std::io;
use std::path::{Path, PathBuf};

/// The result of this crate's calls.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Reasons why no backup was made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A call failed.
    #[error("cannot {doing} {}: {source}", path.display())]
    Io {
        /// The call in words, such as `read`.
        doing: &'static str,
        /// Path of the file or directory.
        path: PathBuf,
        /// The error of the call.
        source: io::Error,
    },
    /// The data directory, or its log, is not in a state in which a server leaves it.
    #[error("{0}")]
    Damaged(String),
    /// The data directory is sound, but cannot be backed up like this.
    #[error("{0}")]
    Unsuited(String),
    /// The request makes no sense.
    #[error("{0}")]
    Invalid(String),
    /// The directory for the backup, or for one of its tablespaces, has something in it.
    #[error("{} is not empty", .0.display())]
    NotEmpty(PathBuf),
    /// The backup was asked to stop.
    #[error("it was interrupted")]
    Interrupted,
}

impl Error {
    /// Returns a closure for `map_err`.
    pub(crate) fn io(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { doing, path: path.to_owned(), source }
    }

    /// Returns the same error for the path by which people know the file.
    pub(crate) fn at(self, shown: &Path) -> Self {
        match self {
            Self::Io { doing, source, .. } => Self::Io { doing, path: shown.to_owned(), source },
            other => other,
        }
    }
}
