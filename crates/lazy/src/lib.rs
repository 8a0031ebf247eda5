//! Datasets whose pages are still in a backup: they are read from its store when they are wanted.
//!
//! [`BackupDataset`] is a backup as a dataset that cannot be changed. [`Overlay`] is a dataset of a pool over one: it
//! has all values of the backup from the beginning ([`skeleton`]), and gets its pages one after the other. The reasons:
//! docs/decisions/0048-backup-mount.md.
//!
//! ```text
//! limits, kept   the ground: bounds, caches by memory
//! patience       a store that does not answer
//! manifest, blocks, models   what is read of the store, and kept
//! ahead          what is read before it is wanted
//! dataset        the backup as a dataset
//! origin, absent   where the rest of a dataset is, and which pages it does not have yet, as it stores that
//! unmarked       a dataset without these marks
//! overlay        a dataset that is not complete, over who has the rest
//! hydrate        brings what nobody has read
//! skeleton       such a dataset as a stream that a pool receives
//! frames, link, answers   the pages of a backup over a socket: the server of a pool has neither network nor keys
//! ```
//!
//! - L1: everything that is returned of a backup was verified: the seal of its block, the checksum of its record.
//!   Otherwise it is an error.
//! - L2: memory is bounded by [`limits`], whatever the backup's size; but a dataset that is not complete has a bit for
//!   each page that is absent.
//! - L3: a page of a dataset that is not complete is the backup's if its bit says that it is absent, and else the
//!   dataset's. The bit is cleared in the same change by which the page comes, so that a crash leaves both or neither.
//! - L4: an absent bit is never set again.
//! - L5: the marks of a dataset that is not complete are removed with its last absent bit.

mod absent;
mod ahead;
mod answers;
mod blocks;
mod dataset;
mod frames;
mod hydrate;
mod kept;
pub mod limits;
mod link;
mod manifest;
mod models;
mod origin;
mod overlay;
mod patience;
mod skeleton;
mod unmarked;

pub use absent::KIND;
pub use answers::{Answers, serve};
pub use dataset::{BackupDataset, ReadFigures, ReadOptions};
pub use frames::{Greeting, Wishes};
pub use hydrate::{Hydrating, Progress};
pub use link::{Link, LinkError};
pub use origin::{Origin, Token, origin_of};
pub use overlay::{Lower, Overlay};
pub use patience::Wanted;
pub use skeleton::{Built, skeleton};
pub use unmarked::without_marks;
