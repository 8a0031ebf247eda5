//! Read amplification: the cost of deltas to readers. Reading a page that is stored as a delta also takes a read of
//! each base that is not in memory. On a device whose limit is its number of requests, an object that is overwritten
//! all over and read from the device is better stored in full; an object that stays in memory is better stored as
//! deltas. And a page whose bases had to be read is stored in full while its content is at hand, since it may be read
//! again. The reasons are in docs/decisions/0020-deltas.md.

use std::collections::HashMap;
use std::mem;

use parking_lot::Mutex;

use super::pending::PageBuf;
use crate::Addr;

/// Bytes that a device writes in the time of one read: 125 MB/s and 3000 requests a second are those of a usual volume.
const READ_BYTES: u32 = 40 << 10;
/// Largest read amplification of an object that is counted, in bytes, so that an object that is in memory again has
/// deltas soon.
const AMPLIFICATION_MAX: u32 = 256 << 10;
/// A page in full takes one part in so many of its size more than a delta of it.
const SAVED_PART: u32 = 4;
/// Largest number of objects that are counted: an entry takes about 40 bytes.
const OBJECTS_MAX: usize = 16 << 10;
/// Largest number of bytes of pages that wait to be stored in full.
const CHAINED_BYTES_MAX: usize = 1 << 20;

/// A page that was read with its bases.
#[derive(Debug)]
pub(crate) struct ChainedPage {
    pub(crate) dataset: u64,
    pub(crate) object: u64,
    pub(crate) page: u64,
    /// Address of its record, a delta.
    pub(crate) addr: Addr,
    pub(crate) content: PageBuf,
}

/// Read amplification.
#[derive(Debug, Default)]
pub(crate) struct ReadAmplification {
    /// By dataset and object, in bytes: the cost of reads of bases for which no page in full has paid yet.
    bytes: Mutex<HashMap<(u64, u64), u32>>,
    chained: Mutex<Vec<ChainedPage>>,
}

impl ReadAmplification {
    /// Charges `object` with `reads` bases of its pages, which had to be read from a device.
    pub(crate) fn charge(&self, object: (u64, u64), reads: usize) {
        let mut amplification = self.bytes.lock();
        if amplification.len() >= OBJECTS_MAX && !amplification.contains_key(&object) {
            amplification.clear();
        }
        let bytes = amplification.entry(object).or_default();
        let reads = u32::try_from(reads).unwrap_or(u32::MAX);
        *bytes = bytes.saturating_add(reads.saturating_mul(READ_BYTES)).min(AMPLIFICATION_MAX);
    }

    /// Returns true if the next page of `object`, `page_bytes` long, is to be stored in full. The page then pays for
    /// its part of the object's read amplification.
    pub(crate) fn pay(&self, object: (u64, u64), page_bytes: usize) -> bool {
        let mut amplification = self.bytes.lock();
        let Some(bytes) = amplification.get_mut(&object) else { return false };
        *bytes = bytes.saturating_sub((page_bytes as u32 / SAVED_PART).max(1));
        if *bytes == 0 {
            amplification.remove(&object);
        }
        true
    }

    /// Offers a page whose bases had to be read from a device. If too many wait already, it is not taken.
    pub(crate) fn offer(&self, page: ChainedPage) {
        let mut chained = self.chained.lock();
        let held: usize = chained.iter().map(|page| page.content.len()).sum();
        if held + page.content.len() <= CHAINED_BYTES_MAX {
            chained.push(page);
        }
    }

    /// Returns the pages that wait to be stored in full, which then wait no more.
    pub(crate) fn take(&self) -> Vec<ChainedPage> {
        mem::take(&mut self.chained.lock())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_is_paid_for_by_some_pages_in_full() {
        let amplification = ReadAmplification::default();
        let object = (1, 2);
        assert!(!amplification.pay(object, 8192));
        amplification.charge(object, 1);
        let pages = (0..100).take_while(|_| amplification.pay(object, 8192)).count();
        assert_eq!(pages as u32, READ_BYTES / (8192 / SAVED_PART));
        assert!(!amplification.pay((1, 3), 8192));
    }

    #[test]
    fn what_an_object_owes_is_bounded_and_so_is_how_many_owe() {
        let amplification = ReadAmplification::default();
        amplification.charge((1, 2), usize::MAX);
        amplification.charge((1, 2), 1 << 20);
        let pages = (0..10_000).take_while(|_| amplification.pay((1, 2), 8192)).count();
        assert_eq!(pages as u32, AMPLIFICATION_MAX / (8192 / SAVED_PART));
        (0..3 * OBJECTS_MAX as u64).for_each(|object| amplification.charge((1, object), 1));
        assert!(amplification.bytes.lock().len() <= OBJECTS_MAX);
    }
}
