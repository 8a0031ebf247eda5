//! Maps every failure of the file system to the errno that a program sees.

use pagefold_fs::FsError;
use rustix::io::Errno;

/// Returns the errno of `error`. Has no wildcard arm: a new kind of failure does not compile until it has its errno.
pub fn errno(error: &FsError) -> Errno {
    match error {
        FsError::NotFound => Errno::NOENT,
        FsError::Exists => Errno::EXIST,
        FsError::NotADirectory => Errno::NOTDIR,
        FsError::IsADirectory => Errno::ISDIR,
        FsError::NotEmpty => Errno::NOTEMPTY,
        FsError::NameTooLong => Errno::NAMETOOLONG,
        FsError::NotPermitted => Errno::PERM,
        FsError::Access => Errno::ACCESS,
        FsError::NoSpace(_) => Errno::NOSPC,
        FsError::TooBig => Errno::FBIG,
        FsError::Invalid(_) => Errno::INVAL,
        FsError::TooManyLinks => Errno::MLINK,
        FsError::NoData => Errno::NXIO,
        FsError::NoAttr => Errno::NODATA,
        FsError::AttrTooBig => Errno::TOOBIG,
        FsError::Unsupported(_) => Errno::OPNOTSUPP,
        FsError::Stale => Errno::STALE,
        FsError::Busy => Errno::BUSY,
        FsError::ReadOnly => Errno::ROFS,
        FsError::Corrupt { .. } | FsError::Engine(_) => Errno::IO,
    }
}
