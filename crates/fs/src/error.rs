//! Errors of the file system's calls.

/// Result of a file-system call.
pub type Result<T, E = FsError> = std::result::Result<T, E>;

/// Reasons why a call fails; each has one errno (the front end maps them without a wildcard arm).
#[derive(Debug, thiserror::Error)]
pub enum FsError {
    /// No such name or inode (ENOENT).
    #[error("no such file or directory")]
    NotFound,
    /// The name is taken (EEXIST).
    #[error("it exists already")]
    Exists,
    /// A directory was needed (ENOTDIR).
    #[error("not a directory")]
    NotADirectory,
    /// Not possible with a directory (EISDIR).
    #[error("is a directory")]
    IsADirectory,
    /// The directory has entries (ENOTEMPTY).
    #[error("the directory is not empty")]
    NotEmpty,
    /// A name beyond 255 bytes, or a link's target beyond 4095 (ENAMETOOLONG).
    #[error("the name is too long")]
    NameTooLong,
    /// Never allowed, whoever asks: a hard link to a directory, say (EPERM).
    #[error("operation not permitted")]
    NotPermitted,
    /// Not allowed for this inode: a default ACL of something that is no directory (EACCES).
    #[error("permission denied")]
    Access,
    /// The pool is full (ENOSPC).
    #[error("no space left: {0}")]
    NoSpace(String),
    /// Beyond the largest file (EFBIG).
    #[error("beyond the largest file size")]
    TooBig,
    /// The call makes no sense; the text says why (EINVAL).
    #[error("invalid: {0}")]
    Invalid(&'static str),
    /// The inode has as many names as it can (EMLINK).
    #[error("too many links")]
    TooManyLinks,
    /// Seeking beyond the last data (ENXIO).
    #[error("no data from there on")]
    NoData,
    /// No such extended attribute (ENODATA).
    #[error("no such attribute")]
    NoAttr,
    /// An attribute's value or the list of names is too long (E2BIG).
    #[error("the attribute is too big")]
    AttrTooBig,
    /// Unknown kind of attribute or operation (EOPNOTSUPP).
    #[error("not supported: {0}")]
    Unsupported(&'static str),
    /// The inode is gone (ESTALE).
    #[error("the inode is gone")]
    Stale,
    /// In use (EBUSY).
    #[error("busy")]
    Busy,
    /// Mounted read-only (EROFS).
    #[error("the file system is read-only")]
    ReadOnly,
    /// A value that the dataset holds for an inode is not well formed (EIO; `pagefold check` tells more).
    #[error("damaged {what} of inode {ino}: {detail}")]
    Corrupt {
        /// The inode.
        ino: u64,
        /// Kind of the damaged value.
        what: &'static str,
        /// Description of the damage.
        detail: String,
    },
    /// The engine failed (EIO).
    #[error(transparent)]
    Engine(pagefold_engine::Error),
}

impl FsError {
    /// Returns true if the engine has counted the error, by device and by what it struck.
    pub fn is_counted(&self) -> bool {
        matches!(self, Self::Engine(error) if error.is_counted())
    }

    /// Returns true if the error means that something stored cannot be read.
    pub(crate) fn is_damage(&self) -> bool {
        match self {
            Self::Corrupt { .. } => true,
            Self::Engine(error) => error.is_damage(),
            _ => false,
        }
    }
}

impl From<pagefold_engine::Error> for FsError {
    fn from(error: pagefold_engine::Error) -> Self {
        match error {
            pagefold_engine::Error::NoSpace(what) => Self::NoSpace(what),
            pagefold_engine::Error::ReadOnly(_) => Self::ReadOnly,
            other => Self::Engine(other),
        }
    }
}
