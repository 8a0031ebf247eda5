use std::sync::Arc;

use crate::Addr;
use crate::record::RecordCache;

fn record(len_bytes: usize) -> Arc<[u8]> {
    vec![7; len_bytes].into()
}

fn addr(slot: u32) -> Addr {
    Addr::new(1, slot)
}

#[test]
fn what_was_inserted_is_found_until_removed() {
    let cache = RecordCache::new(1 << 20);
    assert!(cache.get(addr(1)).is_none());
    cache.insert(addr(1), record(1000));
    assert_eq!(cache.get(addr(1)).unwrap()[..], [7; 1000]);
    let stats = cache.stats();
    assert_eq!((stats.hits, stats.misses, stats.records), (1, 1, 1));
    assert!((1000..1200).contains(&stats.bytes));
    cache.remove(addr(1));
    assert!(cache.get(addr(1)).is_none());
    assert_eq!(cache.stats().bytes, 0);
}

#[test]
fn bytes_are_bounded_overhead_included() {
    for capacity in [64 << 10, 1 << 20, 40 << 20] {
        let cache = RecordCache::new(capacity);
        for slot in 0..60_000 {
            cache.insert(addr(slot), record(slot as usize % 3000));
            if slot % 5000 == 0 {
                assert!(cache.stats().bytes <= cache.stats().capacity_bytes);
            }
        }
        let stats = cache.stats();
        assert!(stats.capacity_bytes <= capacity + 64, "{stats:?}");
        assert!(stats.bytes <= stats.capacity_bytes && stats.bytes > capacity / 2, "{stats:?}");
    }
}

#[test]
fn a_scan_does_not_displace_what_is_used() {
    let cache = RecordCache::new(1 << 20);
    for _ in 0..4 {
        for slot in 0..200 {
            if cache.get(addr(slot)).is_none() {
                cache.insert(addr(slot), record(1000));
            }
        }
    }
    for slot in 1000..20_000 {
        cache.insert(addr(slot), record(1000));
    }
    let kept = (0..200).filter(|&slot| cache.get(addr(slot)).is_some()).count();
    assert!(kept >= 180, "{kept} of 200 were kept");
}

#[test]
fn resizing_drops_what_is_too_much_and_zero_holds_nothing() {
    let cache = RecordCache::new(4 << 20);
    for slot in 0..3000 {
        cache.insert(addr(slot), record(1000));
    }
    cache.resize(1 << 20);
    assert!(cache.stats().bytes <= 1 << 20);
    assert!(cache.stats().records > 500);
    cache.resize(0);
    cache.insert(addr(1), record(10));
    assert_eq!(cache.stats().records, 0);
    let none = RecordCache::new(0);
    none.insert(addr(1), record(10));
    assert!(none.get(addr(1)).is_none());
}

#[test]
fn the_longest_records_fit_wherever_a_few_of_them_would() {
    let cache = RecordCache::new(16 << 20);
    for slot in 0..4 {
        cache.insert(addr(slot), record(1 << 20));
        assert!(cache.get(addr(slot)).is_some());
    }
}
