//! Pagefold's file system: names, directories, inodes, attributes; no kernel types.
//!
//! [`Fs`] turns typed calls into changes of an engine's [`Dataset`](pagefold_engine::dataset::Dataset).

mod error;
mod fs;
mod options;
mod types;

pub use error::{FsError, Result};
pub use fs::Fs;
pub use options::{AtimePolicy, FormatOptions, FsOptions, RecordsizeHint};
pub use types::{
    Attr, Caller, Clock, DirEntry, Entry, Fallocate, FileKind, Ino, OpenFlags, RenameMode, Seek, SetAttr,
    SetTime, StatFs, SystemClock, Time, WriteFlags, Written, XattrMode,
};
