//! Holds records that were read before anybody has asked for them, because they lay behind others that were needed. They
//! are asked for soon or never, so they are kept apart: they displace no record that was asked for.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;

use super::Record;
use crate::types::{Addr, AddrHashing};

/// Largest number of bytes that are held, however large the cache is: some dozens of readers.
const BYTES_MAX: u64 = 2 << 20;
/// At most this part (one divided by this) of the cache's budget is held.
const PART: u64 = 32;
/// Bytes that a record takes beside its own.
const OVERHEAD_BYTES: u64 = 128;

/// Records by address. The oldest ones go first.
#[derive(Default)]
pub(super) struct AheadRecords {
    held: Mutex<AheadQueue>,
    /// Bytes of the records that are held, overhead included.
    bytes: AtomicU64,
}

#[derive(Default)]
struct AheadQueue {
    records: HashMap<Addr, Record, AddrHashing>,
    /// Addresses in the order in which they came.
    order: VecDeque<Addr>,
}

fn cost(record: &[u8]) -> u64 {
    record.len() as u64 + OVERHEAD_BYTES
}

impl AheadRecords {
    pub(super) fn get(&self, addr: Addr) -> Option<Record> {
        if self.bytes() == 0 {
            return None;
        }
        self.held.lock().records.get(&addr).cloned()
    }

    /// Holds a copy of `record`, of a cache that may hold `budget_bytes`.
    pub(super) fn insert(&self, addr: Addr, record: &[u8], budget_bytes: u64) {
        let most = (budget_bytes / PART).min(BYTES_MAX);
        let mut held = self.held.lock();
        if cost(record) > most || held.records.contains_key(&addr) {
            return;
        }
        let mut bytes = self.bytes() + cost(record);
        while bytes > most {
            let Some(oldest) = held.order.pop_front() else { break };
            bytes -= held.records.remove(&oldest).map_or(0, |record| cost(&record));
        }
        held.records.insert(addr, record.into());
        held.order.push_back(addr);
        self.bytes.store(bytes, Relaxed);
    }

    pub(super) fn clear(&self) {
        let mut held = self.held.lock();
        *held = AheadQueue::default();
        self.bytes.store(0, Relaxed);
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_records_go_first_and_the_sum_is_bounded() {
        let ahead = AheadRecords::default();
        let budget = PART * 10 * (1000 + OVERHEAD_BYTES);
        (0..25).for_each(|slot| ahead.insert(Addr::new(1, slot), &[slot as u8; 1000], budget));
        assert!((0..15).all(|slot| ahead.get(Addr::new(1, slot)).is_none()));
        assert!(
            (15..25).all(|slot| *ahead.get(Addr::new(1, slot)).unwrap_or_else(|| (&[][..]).into())
                == [slot as u8; 1000])
        );
        assert_eq!(ahead.bytes(), budget / PART);
        ahead.insert(Addr::new(2, 0), &[0; 20_000], budget);
        assert!(ahead.get(Addr::new(2, 0)).is_none(), "one that is longer than all may be is not held");
        ahead.insert(Addr::new(1, 24), &[1; 1000], budget);
        assert_eq!(ahead.bytes(), budget / PART, "a record that is held counts once");
        ahead.clear();
        assert_eq!((ahead.bytes(), ahead.get(Addr::new(1, 24)).is_none()), (0, true));
        ahead.insert(Addr::new(1, 1), &[1], 0);
        assert_eq!(ahead.bytes(), 0, "a cache of nothing holds nothing");
    }
}
