//! Devices: the one door through which bytes reach and leave storage.

use std::path::Path;

use crate::Result;

mod buffer;
pub use buffer::AlignedBuf;

/// A device of a pool: a regular file, a block device or a simulated one.
///
/// Offsets, lengths and buffers are multiples of [`crate::limits::BLOCK_BYTES`]. Calls block; they may be
/// made from any thread. A write is durable once a later [`Device::flush`] has returned, or on return where
/// `durable` was asked for.
pub trait Device: Send + Sync {
    /// The device as the user named it, for messages.
    fn path(&self) -> &Path;
    /// Size in bytes, a multiple of the block size.
    fn size_bytes(&self) -> u64;
    /// Fills `buf` from `offset`.
    fn read(&self, offset: u64, buf: &mut AlignedBuf) -> Result<()>;
    /// Writes all of `buf` at `offset`; with `durable`, returns when these bytes are on stable storage.
    /// Other unflushed writes are not covered by `durable`.
    fn write(&self, offset: u64, buf: &AlignedBuf, durable: bool) -> Result<()>;
    /// Makes all writes that completed before this call durable.
    fn flush(&self) -> Result<()>;
    /// Tells the device that a range holds nothing any more. Best effort.
    fn discard(&self, offset: u64, len_bytes: u64) -> Result<()>;
}
