//! Pagefold's file system: names, directories, inodes, attributes; no kernel types.
//!
//! [`Fs`] turns typed calls into changes of an engine's [`Dataset`](pagefold_engine::dataset::Dataset). Its rooms, each
//! using only those above it:
//!
//! ```text
//! limits, error, types, options   the ground
//! codec      what is stored, byte by byte (with the ranges of `ranges`)
//! named      names in the dataset's map
//! inode      inodes in memory, their locks, changes of several at once
//! mirror     a second object that is filled with a file's contents
//! fs         the mounted file system: what all calls share
//! acl, attr, orphan, freeing      attributes, ACLs, what is deleted, pages that are yet to be freed
//! dir, names, io, alloc, xattr    the calls
//! rewrite    another recordsize for a file that has data
//! check      the walker behind `pagefold check`
//! lost       what of a damaged file system cannot be read
//! paths      the names of files that something is told of
//! diff       how two versions differ, as files
//! rebase     what one version changed, brought into another
//! testing    a dataset in memory
//! ```
//!
//! # Invariants
//!
//! 1. Every call that changes something is one `apply` (the id counter is advanced by an `apply` of its own before). No
//!    change frees more than `limits::FREE_PAGES_MAX` stored pages.
//! 2. A change locks its inodes in the order of their numbers (`Txn::lock`); a read waits for no change.
//! 3. An inode has `nlink` 0 if and only if it is on the list of orphans.
//! 4. A file has a data object if and only if its recordsize is decided; no two files have the same object, and an
//!    object's recordsize never changes.
//! 5. The bytes behind a file's end in its last page are zero unless the inode has `flag::TAIL`. No page behind the end
//!    is stored, except pages that are yet to be freed.
//! 6. A directory counts its entries, its displaced entries and its subdirectories (`nlink` - 2) and knows its parent.
//! 7. An inode is on the list of inodes with pages to be freed if and only if it has such pages (`Locked::put`). They
//!    read as zeros.
//! 8. An object that a rewrite fills is on the list of objects being filled from before its first page until it is a
//!    file's data object (`rewrite`).

mod acl;
mod alloc;
mod attr;
pub mod check;
mod codec;
pub mod diff;
mod dir;
mod error;
mod freeing;
mod fs;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod inode;
mod io;
pub mod limits;
pub mod lost;
mod mirror;
mod named;
mod names;
mod options;
mod orphan;
pub mod paths;
mod perm;
mod ranges;
pub mod rebase;
mod rewrite;
pub mod testing;
#[cfg(test)]
mod tests;
mod types;
mod xattr;

pub use error::{FsError, Result};
pub use fs::Fs;
pub use io::{Fetch, TryRead};
pub use mirror::Ended;
pub use options::{AtimePolicy, FormatOptions, FsOptions, KernelHolds, RecordsizeHint};
pub use rewrite::{Rewrite, Step};
pub use types::{
    Attr, Caller, Clock, DirEntry, Entry, Fallocate, FileKind, Ino, OpenFlags, RenameMode, Seek, SetAttr,
    SetTime, StatFs, SystemClock, Time, WriteFlags, Written, XattrMode,
};
