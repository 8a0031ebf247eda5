//! Errors of backups.

/// The result of this crate's calls.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The result of decoding bytes that were read: its errors do not name the object yet.
pub(crate) type Decoded<T> = pagefold_engine::Result<T>;

/// Reasons why a call failed. Messages name the object.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The store could not do what was asked.
    #[error("{op} of {object} failed: {source}")]
    Store {
        /// Operation that was attempted: `read`, `write`, `list`, `delete`.
        op: &'static str,
        /// The object's path in the repository.
        object: String,
        /// The store's own error.
        #[source]
        source: object_store::Error,
    },
    /// The store has no bucket of the name that was given.
    #[error("the store has no such bucket")]
    NoBucket,
    /// An object is not what was written.
    #[error("{object} is damaged: {detail}")]
    Damaged {
        /// The object's path in the repository.
        object: String,
        /// Condition that it does not meet.
        detail: String,
    },
    /// An object that is needed is missing.
    #[error("{object} is missing: the store has lost it, or somebody has deleted it")]
    Missing {
        /// The object's path in the repository.
        object: String,
    },
    /// The repository is older than a state of it that this machine has seen.
    #[error(
        "{object} {what}: this machine has seen a newer state of the repository, and the store has gone back to an older one"
    )]
    Older {
        /// The newest commit that was seen.
        object: String,
        /// Condition that it does not meet.
        what: String,
        /// The file in which this machine remembers the commit.
        seen: std::path::PathBuf,
    },
    /// The passphrase or key does not open the repository; or none was given, or one that is not needed.
    #[error("{0}")]
    Key(String),
    /// Prunes have passed by since a backup was begun: they may have deleted what it had uploaded.
    #[error("{0}")]
    Fenced(String),
    /// The store does not keep the promises on which backups rely.
    #[error("{0}")]
    UnsafeStore(String),
    /// There is no such repository, or no such backup in it.
    #[error("{0}")]
    NotFound(String),
    /// The thing that was to be made exists already.
    #[error("{0}")]
    Exists(String),
    /// The request makes no sense.
    #[error("{0}")]
    Invalid(String),
    /// The repository was made by a version with features that this one does not know.
    #[error("{0}")]
    Unsupported(String),
    /// There is no connection to another host, or it does not serve.
    #[error("{message}")]
    Connection {
        /// The event, in words.
        message: String,
        /// A step that helps, if one is known.
        hint: Option<String>,
    },
    /// Something on this machine failed: the journal, the key file.
    #[error("{doing}: {source}")]
    Local {
        /// Operation that was attempted, in words.
        doing: String,
        /// The operating system's error.
        #[source]
        source: std::io::Error,
    },
    /// The stream from or to a pool failed.
    #[error(transparent)]
    Stream(#[from] pagefold_engine::Error),
}

impl Error {
    /// Returns true if the same request may work later: the store failed, or the way to it, and not what is stored.
    pub fn may_pass(&self) -> bool {
        matches!(self, Self::Store { .. } | Self::Connection { .. })
    }

    /// Returns true if the operating system has refused access to a file or folder.
    pub fn is_denied(&self) -> bool {
        let first: &(dyn std::error::Error + 'static) = self;
        std::iter::successors(Some(first), |error| error.source()).any(|error| {
            let error = error.downcast_ref::<std::io::Error>();
            error.is_some_and(|error| error.kind() == std::io::ErrorKind::PermissionDenied)
        })
    }

    /// Returns the error of a damaged object.
    pub(crate) fn damaged(object: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::Damaged { object: object.into(), detail: detail.into() }
    }

    /// Returns a closure that turns a decoder's error into one of this object.
    pub(crate) fn in_object(object: &str) -> impl Fn(pagefold_engine::Error) -> Self + '_ {
        move |error| match error {
            pagefold_engine::Error::Corrupt { what, detail, .. } => {
                Self::damaged(object, format!("{what}: {detail}"))
            }
            other => Self::Stream(other),
        }
    }
}
