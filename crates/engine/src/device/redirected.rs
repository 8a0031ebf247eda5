//! A device some of whose ranges are read from another place, for a pool that is only read.
//!
//! After a crash the log device alone may have batches that belong on others. An opening that writes brings them to their places;
//! one that only reads has them read from where they are.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use super::{AlignedBuf, Answers, Device, DeviceStats, OneDevice};
use crate::{Error, Result};

/// A range of a group, and the place that has its bytes. Both are whole blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Redirection {
    /// The group and its first byte.
    pub place: (u16, u64),
    /// Length in bytes.
    pub len_bytes: u64,
    /// The group that has the bytes, the device of it that does (counted from 0), and the first byte there.
    pub from: (u16, usize, u64),
}

/// The place from which a range is read.
pub(super) struct OtherPlace {
    pub(super) len_bytes: u64,
    pub(super) device: Arc<dyn Device>,
    pub(super) offset: u64,
}

/// Ranges of a device that are read from other places, by their first bytes. They do not overlap.
pub(super) type OtherPlaces = BTreeMap<u64, OtherPlace>;

/// A device that is read with some of its ranges from elsewhere, and not written.
pub(super) struct Redirected {
    inner: Arc<dyn Device>,
    sources: Arc<OtherPlaces>,
}

impl Redirected {
    pub(super) fn new(inner: Arc<dyn Device>, sources: Arc<OtherPlaces>) -> Self {
        Self { inner, sources }
    }

    /// Returns the end of the stretch that begins at `offset` and lies within one range, or in none; and the device and
    /// the byte of it from which the stretch is read.
    fn stretch(&self, offset: u64, end: u64) -> (u64, &Arc<dyn Device>, u64) {
        let within = self.sources.range(..=offset).next_back();
        if let Some((start, source)) = within.filter(|(start, source)| offset - **start < source.len_bytes) {
            let end = end.min(start + source.len_bytes);
            return (end, &source.device, source.offset + (offset - start));
        }
        let next = self.sources.range(offset..end).next().map_or(end, |(start, _)| *start);
        (next, &self.inner, offset)
    }

    fn refuse(&self) -> Error {
        Error::ReadOnly(format!("{} is only read", self.path().display()))
    }
}

impl Device for Redirected {
    fn path(&self) -> &Path {
        self.inner.path()
    }

    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }

    fn read(&self, offset: u64, buf: &mut AlignedBuf) -> Result<()> {
        let end = offset + buf.len() as u64;
        let (mut at, mut done) = (offset, 0);
        while at < end {
            let (stop, device, from) = self.stretch(at, end);
            if (at, stop) == (offset, end) {
                return OneDevice::of(device.as_ref()).read(from, buf);
            }
            let len_bytes = (stop - at) as usize;
            let mut part = AlignedBuf::scratch(len_bytes);
            OneDevice::of(device.as_ref()).read(from, &mut part)?;
            buf[done..done + len_bytes].copy_from_slice(&part[..len_bytes]);
            (at, done) = (stop, done + len_bytes);
        }
        Ok(())
    }

    fn write(&self, _offset: u64, _buf: &AlignedBuf, _durable: bool) -> Result<()> {
        Err(self.refuse())
    }

    fn flush(&self) -> Result<()> {
        Err(self.refuse())
    }

    fn discard(&self, _offset: u64, _len_bytes: u64) -> Result<()> {
        Err(self.refuse())
    }

    fn data_from(&self, offset: u64) -> Option<u64> {
        let (end, device, _) = self.stretch(offset, self.size_bytes().max(offset + 1));
        if !Arc::ptr_eq(device, &self.inner) {
            return Some(offset);
        }
        let of_inner = self.inner.data_from(offset);
        let next = Some(end).filter(|end| *end < self.size_bytes());
        [of_inner, next].into_iter().flatten().min()
    }

    fn discards(&self) -> bool {
        false
    }

    fn keeps_order(&self) -> bool {
        self.inner.keeps_order()
    }

    fn stats(&self) -> &DeviceStats {
        self.inner.stats()
    }

    fn answers(&self) -> Option<&Answers> {
        self.inner.answers()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::SimDevice;

    const BLOCK: u64 = 4096;
    const BLOCKS: u64 = 40;

    /// A device each block of which is full of its number and what is added to it.
    fn numbered(added: u8) -> Arc<dyn Device> {
        let device = SimDevice::new(BLOCKS * BLOCK, 1);
        for at in 0..BLOCKS {
            let block = AlignedBuf::from_bytes(&[at as u8 + added; BLOCK as usize]);
            device.write(at * BLOCK, &block, false).unwrap();
        }
        Arc::new(device)
    }

    #[test]
    fn each_read_gets_each_block_from_its_place() {
        let (inner, other) = (numbered(0), numbered(100));
        let source = |first: u64, blocks: u64| OtherPlace {
            len_bytes: blocks * BLOCK,
            device: Arc::clone(&other),
            offset: first * BLOCK,
        };
        // Blocks 3 and 4 lie at 20, block 5 at 10, blocks 9 to 11 at 30.
        let sources = [(3, source(20, 2)), (5, source(10, 1)), (9, source(30, 3))];
        let sources: OtherPlaces = sources.into_iter().map(|(at, source)| (at * BLOCK, source)).collect();
        let device = Redirected::new(inner, Arc::new(sources));
        let wanted = |at: u64| match at {
            3 | 4 => at as u8 - 3 + 120,
            5 => 110,
            9..=11 => at as u8 - 9 + 130,
            _ => at as u8,
        };
        for first in 0..14 {
            for blocks in 1..14 {
                let mut buf = AlignedBuf::zeroed((blocks * BLOCK) as usize);
                device.read(first * BLOCK, &mut buf).unwrap();
                for (at, block) in (first..).zip(buf.chunks(BLOCK as usize)) {
                    assert!(block.iter().all(|byte| *byte == wanted(at)), "block {at} of {first} + {blocks}");
                }
            }
        }
        assert_eq!(device.data_from(4 * BLOCK), Some(4 * BLOCK));
        let block = AlignedBuf::zeroed(BLOCK as usize);
        assert!(matches!(device.write(0, &block, false), Err(Error::ReadOnly(_))));
        assert!(matches!(device.flush(), Err(Error::ReadOnly(_))));
    }

    #[test]
    fn holes_are_told_as_far_as_no_range_lies_in_them() {
        let inner: Arc<dyn Device> = Arc::new(SimDevice::new(BLOCKS * BLOCK, 1));
        let source = OtherPlace { len_bytes: BLOCK, device: numbered(0), offset: 0 };
        let device = Redirected::new(Arc::clone(&inner), Arc::new(OtherPlaces::from([(7 * BLOCK, source)])));
        let first = inner.data_from(0).unwrap_or(u64::MAX);
        assert_eq!(device.data_from(0), Some(first.min(7 * BLOCK)));
        assert_eq!(device.data_from(7 * BLOCK), Some(7 * BLOCK));
        assert_eq!(device.data_from(BLOCKS * BLOCK), None);
    }
}
