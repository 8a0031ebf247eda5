//! Pagefold's storage engine: everything that is durable.
//!
//! One folder per layer, each using only those below it (a test in `tests/layers.rs` enforces the order):
//!
//! ```text
//! pool       create, open, replay, checkpoint, clean, export: the whole, and its background work
//! dataset    accept, read and commit the changes of a file system or volume
//! tree       copy-on-write B+tree per dataset: key -> value
//! record     page <-> record: codecs, recognition, the compressed record cache
//! wal        the write-ahead log of batches: append, chain, replay
//! segment    record <-> stable address; segment table and directories
//! space      where segments lie: chunks of devices, allocation, reservation
//! device     files, block devices, a simulated device; one door for I/O
//! ```
//!
//! `error`, `faults`, `history`, `limits`, `memory`, `ranges`, `sums`, `types`, `walk` and `wire` are the ground that all
//! layers stand on.

pub mod dataset;
pub mod device;
pub mod error;
pub mod faults;
pub mod history;
pub mod limits;
pub mod memory;
pub mod pool;
mod ranges;
pub mod record;
pub mod segment;
pub mod space;
pub mod sums;
pub mod tree;
pub mod types;
pub mod wal;
pub mod walk;
pub mod wire;

pub use error::{Error, Result};
pub use types::{Addr, Key, Ptr};
