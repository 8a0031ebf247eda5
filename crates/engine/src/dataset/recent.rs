//! The pages of the last small durable commits, as they were written, and those of which parts were written last, as they
//! were before. The tail of a log changes again with the next commit, and neither the writer nor the delta has to decode it;
//! and a page that is coded again when it is quiet need not be read.

use std::collections::{HashMap, VecDeque};

use parking_lot::Mutex;

use super::pending::PageBuf;
use crate::types::{Addr, AddrHashing};

/// Bytes of pages that are held.
const RECENT_BYTES: usize = 4 << 20;

/// Number of addresses of pages that were forgotten which stay in the order at least.
const ORDER_SPARE: usize = 64;

/// Pages by the address of their record, of which each is held once. Records never change at their address, so a page is
/// never stale.
#[derive(Default)]
pub(crate) struct RecentPages(Mutex<Ring>);

#[derive(Default)]
struct Ring {
    pages: HashMap<Addr, PageBuf, AddrHashing>,
    /// The addresses, oldest first.
    order: VecDeque<Addr>,
    bytes: usize,
}

impl RecentPages {
    /// Returns the page whose record is at `addr`, if it is held.
    pub(crate) fn get(&self, addr: Addr) -> Option<PageBuf> {
        self.0.lock().pages.get(&addr).cloned()
    }

    /// Drops the page whose record is at `addr`: the page has another one now.
    pub(crate) fn forget(&self, addr: Addr) {
        let mut held = self.0.lock();
        held.bytes -= held.pages.remove(&addr).map_or(0, |page| page.len());
    }

    /// Holds the page whose record is at `addr`, in place of the oldest ones.
    pub(crate) fn hold(&self, addr: Addr, page: &PageBuf) {
        let mut held = self.0.lock();
        if page.len() > RECENT_BYTES || held.pages.insert(addr, PageBuf::clone(page)).is_some() {
            return;
        }
        held.bytes += page.len();
        held.order.push_back(addr);
        let Ring { pages, order, .. } = &mut *held;
        if order.len() > 2 * pages.len() + ORDER_SPARE {
            order.retain(|addr| pages.contains_key(addr));
        }
        while held.bytes > RECENT_BYTES {
            let Some(oldest) = held.order.pop_front() else { return };
            held.bytes -= held.pages.remove(&oldest).map_or(0, |page| page.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_pages_are_held() {
        let recent = RecentPages::default();
        let addr = |slot: usize| Addr::new(3, slot as u32);
        let count = RECENT_BYTES / 8192;
        for slot in 0..2 * count {
            recent.hold(addr(slot), &PageBuf::from(vec![slot as u8; 8192]));
            recent.hold(addr(slot), &PageBuf::from(vec![0; 8192]));
        }
        assert_eq!(recent.0.lock().bytes, RECENT_BYTES);
        let held = (0..2 * count).filter(|slot| recent.get(addr(*slot)).is_some()).count();
        assert_eq!(held, count);
        recent.hold(addr(0), &PageBuf::from(vec![0; 2 * RECENT_BYTES]));
        assert!(recent.get(addr(0)).is_none() && recent.get(addr(2 * count - 1)).is_some());
    }

    #[test]
    fn a_page_that_is_forgotten_leaves_its_room_to_others() {
        let recent = RecentPages::default();
        let addr = |slot: u32| Addr::new(3, slot);
        recent.hold(addr(0), &PageBuf::from(vec![0; 8192]));
        for slot in 1..10_000 {
            recent.hold(addr(slot), &PageBuf::from(vec![slot as u8; 8192]));
            recent.forget(addr(slot - 1));
            recent.forget(addr(slot - 1));
            recent.hold(addr(20_000), &PageBuf::from(vec![7; 8192]));
        }
        assert!(recent.get(addr(20_000)).is_some() && recent.get(addr(9_998)).is_none());
        let held = recent.0.lock();
        assert_eq!((held.bytes, held.pages.len()), (2 * 8192, 2));
        assert!(held.order.len() < 200, "{}", held.order.len());
    }
}
