//! Errors of backups.

/// The result of this crate's calls.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a call failed. Messages name the object.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The store could not do what was asked.
    #[error("{op} of {object} failed: {source}")]
    Store {
        /// What was attempted: `read`, `write`, `list`, `delete`.
        op: &'static str,
        /// The object's path in the repository.
        object: String,
        /// The store's own error.
        #[source]
        source: object_store::Error,
    },
    /// An object is not what was written.
    #[error("{object} is damaged: {detail}")]
    Damaged {
        /// The object's path in the repository.
        object: String,
        /// The demand that it does not meet.
        detail: String,
    },
    /// An object that is needed is not there.
    #[error("{object} is missing: the store has lost it, or somebody has deleted it")]
    Missing {
        /// The object's path in the repository.
        object: String,
    },
    /// The passphrase or key does not open the repository, or there is none, or one too many.
    #[error("{0}")]
    Key(String),
    /// The repository was sealed by prunes since a backup was begun: what it had uploaded may be deleted.
    #[error("{0}")]
    Fenced(String),
    /// The store does not keep the promises that backups stand on.
    #[error("{0}")]
    UnsafeStore(String),
    /// There is no such repository, or no such backup in it.
    #[error("{0}")]
    NotFound(String),
    /// It is there already.
    #[error("{0}")]
    Exists(String),
    /// The request makes no sense.
    #[error("{0}")]
    Invalid(String),
    /// It was made by a version with features that this one does not know.
    #[error("{0}")]
    Unsupported(String),
    /// There is no connection to another host, or it does not serve.
    #[error("{message}")]
    Connection {
        /// The event, in words.
        message: String,
        /// A step that helps, where one is known.
        hint: Option<String>,
    },
    /// Something on this machine failed: the journal, the key file.
    #[error("{doing}: {source}")]
    Local {
        /// What was attempted.
        doing: String,
        /// The operating system's error.
        #[source]
        source: std::io::Error,
    },
    /// Of the stream from or to a pool.
    #[error(transparent)]
    Stream(#[from] pagefold_engine::Error),
}

impl Error {
    /// True if the same request may work later: the store or the way to it failed, not what is stored.
    pub fn may_pass(&self) -> bool {
        matches!(self, Self::Store { .. } | Self::Connection { .. })
    }

    /// A damaged object.
    pub(crate) fn damaged(object: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::Damaged { object: object.into(), detail: detail.into() }
    }

    /// A decoder found this wrong in an object.
    pub(crate) fn in_object(object: &str) -> impl Fn(pagefold_engine::Error) -> Self + '_ {
        move |error| match error {
            pagefold_engine::Error::Corrupt { what, detail, .. } => {
                Self::damaged(object, format!("{what}: {detail}"))
            }
            other => Self::Stream(other),
        }
    }
}
