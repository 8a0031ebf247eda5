//! Devices: the one door through which bytes reach and leave storage.
//!
//! After a failed flush or durable write a device acknowledges nothing as durable any more ([`Device`]).
//!
//! Everything above this layer reaches devices by [`Devices`], which knows the groups of a pool by number; labels and
//! superblocks by [`OneDevice`]. Only those who open devices see the trait [`Device`].
//!
//! ```text
//! devices    the groups of a pool, and all that may be done with them (`Devices`)
//! group      one device, or a mirror: who is written, who is read, who is left out
//! member     a device of a group, and what it lacks
//! writes     which writes to a group are under way, and which no flush has covered
//! behind     writes that nobody waits for
//! missing    the reason why a place cannot be reached
//! planned    a read in three steps: planned, carried out, verified (`PlannedRead`)
//! one        one device, for labels and superblocks (`OneDevice`)
//! lane       the way of requests of one class to a device, where they are counted and wait for their turns
//! queue      the queue of a device: who waits, and who goes next
//! class      the classes of requests (`IoClass`), and their kinds
//! flush      the same on several devices at once
//! file       regular files and block devices, opened with O_DIRECT and locked (`FileDevice`)
//! sim        a device in memory that tears, loses and reorders what was not flushed (`SimDevice`)
//! redirected a device some of whose ranges are read from elsewhere, while a pool is only read
//! recorded   writes down what another device does, for crash tests (`RecordedDevice`)
//! open, lock opens and creates devices; one writer per device
//! loops      loop devices and their files: two names of the same bytes
//! ring       many reads at once through io_uring
//! buffer     aligned buffers
//! stats      counters by class and kind
//! open_device what is kept of a device while it is open: counters and queue (`DeviceStats`)
//! latency    the mean time of reads of late, by which a member of a mirror is chosen
//! answers    requests of a device that may never be answered, and who gives it up then
//! late       what the kernel has still, and nobody waits for
//! patience   how long a read is waited for before another member of a mirror is asked, too
//! hedge      reads of mirrors, which are sent to another member when they are overdue
//! ```

use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::path::Path;

use crate::limits::{BLOCK_BYTES, CHUNK_BYTES};
use crate::{Error, Result};

mod again;
mod answers;
mod behind;
mod block_queue;
mod buffer;
mod class;
mod devices;
mod file;
mod flush;
mod group;
mod hedge;
mod lane;
mod late;
mod latency;
mod lock;
mod loops;
mod member;
mod missing;
mod mode;
mod one;
mod open;
mod open_device;
mod patience;
mod planned;
mod queue;
mod recorded;
mod redirected;
mod ring;
mod sim;
mod stats;
#[cfg(test)]
mod tests;
mod writes;

pub use answers::Answers;
pub(crate) use answers::{owes, when_answered};
pub use buffer::AlignedBuf;
pub(crate) use buffer::{free_idle, kept_bytes};
pub use class::{IoClass, IoKind};
pub use devices::Devices;
pub(crate) use devices::{DeviceHere, FoundMember, READ_BYTES_MAX};
pub use file::FileDevice;
pub(crate) use group::Roster;
pub(crate) use hedge::is_possible as hedging_is_possible;
pub use lock::unlock;
pub(crate) use loops::{SYS, file_of_loop};
pub(crate) use member::{ALL, MemberState};
pub use mode::OpenMode;
pub(crate) use one::AllocationClass;
pub use one::OneDevice;
pub use open::create_file_device;
pub use open_device::{DeviceStats, HedgeCounts};
pub(crate) use planned::{LateRead, PlannedRead, ReadFrom, Span};
pub(crate) use queue::waited;
pub(crate) use recorded::{RecordedDevice, Recording};
pub(crate) use redirected::Redirection;
pub use sim::{InjectedFault, SimDevice, SimOp};
pub use stats::{DeviceCounts, LATENCY_RANGES, RequestCounts};

/// Bytes of a region, by which it is known what a member of a mirror lacks.
pub(crate) const REGION_BYTES: u64 = CHUNK_BYTES / 4;

/// A device of a pool: a regular file, a block device or a simulated one.
///
/// Offsets, lengths and buffers are multiples of [`crate::limits::BLOCK_BYTES`]. Calls block; they may be
/// made from any thread. A write is durable once a later [`Device::flush`] has returned, or on return where
/// `durable` was asked for. Once a flush or a durable write has failed, every later flush and durable write
/// fails with [`Error::Failed`]: the operating system may have dropped the data and forgotten about it, so
/// that a second try would succeed without having stored anything.
pub trait Device: Send + Sync {
    /// Returns the path of the device as the user named it, for messages.
    fn path(&self) -> &Path;
    /// Returns the size in bytes, a multiple of the block size.
    fn size_bytes(&self) -> u64;
    /// Finds out whether the device has grown since it was opened: then [`Device::size_bytes`] is more from now on. A
    /// device that has become smaller keeps its size, and fails what is read and written behind its end.
    fn measure(&self) -> Result<()> {
        Ok(())
    }
    /// Returns true if it is a file without a name: it was deleted, and is lost once nobody has it open any more.
    fn is_deleted(&self) -> bool {
        false
    }
    /// Returns a descriptor, if there is one. Callers with an io_uring of their own may read whole blocks from it into
    /// aligned buffers.
    fn file(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    /// Fills `buf` from `offset`. On error the content of `buf` is arbitrary.
    fn read(&self, offset: u64, buf: &mut AlignedBuf) -> Result<()>;
    /// Fills many buffers, each from its offset, at once where the device can: scattered reads of one thread take the
    /// time of a few. On error the content of all buffers is arbitrary.
    fn read_many(&self, requests: &mut [&mut (u64, AlignedBuf)]) -> Result<()> {
        requests.iter_mut().try_for_each(|(offset, buf)| self.read(*offset, buf))
    }
    /// Writes all of `buf` at `offset`; with `durable`, returns when these bytes are on stable storage.
    /// Other unflushed writes are not covered by `durable`.
    fn write(&self, offset: u64, buf: &AlignedBuf, durable: bool) -> Result<()>;
    /// Writes the blocks `part` of `buf`, which as a whole belongs at `offset`, as a write of its own that is not
    /// durable. `part` lies within `buf`.
    fn write_part(&self, offset: u64, buf: &AlignedBuf, part: Range<usize>) -> Result<()> {
        let bytes = buf.get(part.clone()).unwrap_or_default();
        self.write(offset + part.start as u64, &AlignedBuf::from_bytes(bytes), false)
    }
    /// Returns true if a durable write costs less than a write and a flush after it.
    fn writes_durably(&self) -> bool {
        true
    }
    /// Makes all writes that completed before this call durable.
    fn flush(&self) -> Result<()>;
    /// Tells the device that a range holds nothing any more. This is best effort: the content of the range is arbitrary
    /// afterwards, and a device without discard ignores it.
    fn discard(&self, offset: u64, len_bytes: u64) -> Result<()>;
    /// Returns the first byte from `offset` on that may be anything but zero, as far as the device can tell without
    /// reading. Returns `None` if there is none.
    fn data_from(&self, offset: u64) -> Option<u64> {
        (offset < self.size_bytes()).then_some(offset)
    }
    /// Returns false if discards are known to have no effect.
    fn discards(&self) -> bool {
        true
    }
    /// Returns true if calls to several devices have to come in the same order whenever the same is done: only then does
    /// a simulation repeat itself. Such devices are flushed one after the other.
    fn keeps_order(&self) -> bool {
        false
    }
    /// Returns the length of the longest request that reaches the device as one, in bytes, as far as that is known. What
    /// reads longer ranges should ask for pieces.
    fn request_bytes_max(&self) -> u64 {
        u64::MAX
    }
    /// Returns the counters of the device, to which those who make requests add, and its queue.
    fn stats(&self) -> &DeviceStats;
    /// Returns what is known of its answers, if requests need not be waited for until it answers.
    fn answers(&self) -> Option<&Answers> {
        None
    }
}

/// Refuses a transfer that is unaligned or reaches beyond the device.
fn check_range(device: &Path, size_bytes: u64, offset: u64, len_bytes: u64) -> Result<()> {
    let block = BLOCK_BYTES as u64;
    let inside = offset.checked_add(len_bytes).is_some_and(|end| end <= size_bytes);
    if inside && offset.is_multiple_of(block) && len_bytes.is_multiple_of(block) {
        return Ok(());
    }
    let device = device.display();
    Err(Error::Invalid(format!(
        "{len_bytes} bytes at byte {offset} of {device} are not whole {block}-byte blocks within its {size_bytes} bytes"
    )))
}
