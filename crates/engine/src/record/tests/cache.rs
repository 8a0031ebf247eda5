use std::collections::{HashSet, VecDeque};

use crate::Addr;
use crate::record::RecordCache;

fn record(len_bytes: usize) -> Vec<u8> {
    vec![7; len_bytes]
}

fn addr(slot: u32) -> Addr {
    Addr::new(1, slot)
}

/// Returns uniform numbers below `end`, the same in every run (the generator of Knuth's MMIX).
fn uniform(end: u32) -> impl FnMut() -> u32 {
    let mut state = 1u64;
    move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 33) % u64::from(end)) as u32
    }
}

/// Reads slot by slot as a dataset does. Returns the number of records that were found.
fn replay(cache: &RecordCache, slots: impl Iterator<Item = u32>, len_bytes: impl Fn(u32) -> usize) -> usize {
    let mut found = 0;
    for slot in slots {
        if cache.get(addr(slot)).is_some() {
            found += 1;
        } else {
            cache.insert(addr(slot), &record(len_bytes(slot)));
        }
    }
    found
}

#[test]
fn what_was_inserted_is_found_until_removed() {
    let cache = RecordCache::new(1 << 20);
    assert!(cache.get(addr(1)).is_none());
    cache.insert(addr(1), &record(1000));
    assert_eq!(cache.get(addr(1)).unwrap()[..], [7; 1000]);
    let stats = cache.stats();
    assert_eq!((stats.hits, stats.misses, stats.records), (1, 1, 1));
    cache.remove(addr(1));
    assert!(cache.get(addr(1)).is_none());
    assert_eq!(cache.stats().records, 0);
    cache.resize(0);
    // Counters of requests take two cache lines for each part of the map.
    assert!(cache.stats().bytes < 10_000, "{:?}", cache.stats());
}

#[test]
fn bytes_are_bounded_overhead_included() {
    for capacity in [64 << 10, 1 << 20, 40 << 20] {
        let cache = RecordCache::new(capacity);
        for slot in 0..60_000 {
            cache.insert(addr(slot), &record(slot as usize % 3000));
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
                cache.insert(addr(slot), &record(1000));
            }
        }
    }
    for slot in 1000..20_000 {
        cache.insert(addr(slot), &record(1000));
    }
    let kept = (0..200).filter(|&slot| cache.get(addr(slot)).is_some()).count();
    assert!(kept >= 180, "{kept} of 200 were kept");
}

#[test]
fn a_set_that_nearly_fills_the_budget_is_kept() {
    // Lengths are as pages of a database have them: from 600 to 4,700 bytes, 2,650 on average.
    let len_bytes = |slot: u32| 600 + slot.wrapping_mul(2_654_435_761) as usize % 4100;
    let slots = 20_000;
    let all = RecordCache::new(1 << 40);
    replay(&all, 0..slots, len_bytes);
    let set_bytes = all.stats().bytes;
    for percent in [75, 85, 95] {
        let cache = RecordCache::new(set_bytes * 100 / percent);
        let mut next = uniform(slots);
        replay(&cache, std::iter::repeat_with(&mut next).take(10 * slots as usize), len_bytes);
        let reads = 2 * slots as usize;
        let found = replay(&cache, std::iter::repeat_with(&mut next).take(reads), len_bytes);
        assert!(found * 100 >= reads * 97, "{percent} % of the budget: {found} of {reads} were found");
    }
}

#[test]
fn resizing_drops_what_is_too_much_and_zero_holds_nothing() {
    let cache = RecordCache::new(4 << 20);
    for slot in 0..3000 {
        cache.insert(addr(slot), &record(1000));
    }
    cache.resize(1 << 20);
    assert!(cache.stats().bytes <= 1 << 20);
    assert!(cache.stats().records > 500);
    cache.resize(0);
    cache.insert(addr(1), &record(10));
    assert_eq!(cache.stats().records, 0);
    let none = RecordCache::new(0);
    none.insert(addr(1), &record(10));
    assert!(none.get(addr(1)).is_none());
}

#[test]
fn the_longest_records_fit_wherever_a_few_of_them_would() {
    let cache = RecordCache::new(16 << 20);
    for slot in 0..4 {
        cache.insert(addr(slot), &record(1 << 20));
        assert!(cache.get(addr(slot)).is_some());
    }
}

#[test]
fn what_others_use_is_taken_from_the_budget() {
    let cache = RecordCache::new(16 << 20);
    replay(&cache, 0..20_000, |_| 1000);
    assert!(cache.stats().bytes > 14 << 20);
    cache.set_elsewhere(4 << 20);
    assert!(cache.stats().bytes <= 12 << 20, "{:?}", cache.stats());
    // An eighth of the budget is the records', whatever others use.
    cache.set_elsewhere(u64::MAX / 2);
    assert!((1 << 20..=2 << 20).contains(&cache.stats().bytes), "{:?}", cache.stats());
    cache.set_elsewhere(0);
    replay(&cache, 0..20_000, |_| 1000);
    assert!(cache.stats().bytes > 14 << 20, "{:?}", cache.stats());
}

#[test]
fn pages_are_held_as_long_as_records_do_not_need_the_room() {
    let cache = RecordCache::new(16 << 20);
    replay(&cache, 0..500, |_| 2000);
    for slot in 0..500 {
        cache.offer_page(addr(slot), &[slot as u8; 8192]);
    }
    let held = (0..500).filter(|&slot| cache.page(addr(slot), 8192).is_some()).count();
    assert_eq!(held, 500);
    assert_eq!(cache.page(addr(3), 8192).unwrap()[..], [3; 8192]);
    assert!(cache.page(addr(3), 4096).is_none(), "a page of another length");
    // Records fill the budget: all records that would fit without pages are there, and pages are not.
    let alone = RecordCache::new(16 << 20);
    for some in [&cache, &alone] {
        for slot in 1000..9000 {
            some.insert(addr(slot), &record(2000));
            let stats = some.stats();
            assert!(stats.bytes <= 16 << 20, "{stats:?}");
        }
    }
    let (stats, without) = (cache.stats(), alone.stats());
    assert!(stats.records * 100 >= without.records * 99, "{stats:?} {without:?}");
    assert!(stats.page_bytes < 1 << 20, "{stats:?}");
}

#[test]
fn pages_of_a_set_larger_than_the_room_do_not_exceed_it() {
    let cache = RecordCache::new(8 << 20);
    let mut next = uniform(4000);
    for _ in 0..50_000 {
        let slot = next();
        if cache.page(addr(slot), 8192).is_none() {
            cache.offer_page(addr(slot), &[1; 8192]);
        }
    }
    let stats = cache.stats();
    assert!(stats.page_bytes <= 8 << 20 && stats.page_bytes > 6 << 20, "{stats:?}");
    cache.remove(addr(next()));
    cache.resize(0);
    assert_eq!(cache.stats().pages, 0);
}

#[test]
fn a_page_in_use_outlives_its_place_in_the_cache() {
    let cache = RecordCache::new(8 << 20);
    cache.offer_page(addr(1), &[42; 8192]);
    let page = cache.page(addr(1), 8192).unwrap();
    cache.resize(0);
    assert!(cache.page(addr(1), 8192).is_none());
    assert_eq!(page[..], [42; 8192]);
    // Pages give the room back, and can have it again.
    assert_eq!(cache.stats().page_bytes, 0);
    cache.resize(8 << 20);
    cache.offer_page(addr(2), &[7; 4096]);
    assert_eq!(cache.page(addr(2), 4096).unwrap()[..], [7; 4096]);
    assert_eq!(page[..], [42; 8192]);
}

#[test]
fn threads_find_each_page_as_it_was_offered() {
    let cache = RecordCache::new(4 << 20);
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let cache = &cache;
            scope.spawn(move || {
                let mut next = uniform(2000);
                for _ in 0..thread * 7 {
                    next();
                }
                for turn in 0..20_000 {
                    let slot = next();
                    let len_bytes = 4096 << (slot % 3);
                    match cache.page(addr(slot), len_bytes) {
                        Some(page) => assert!(page.iter().all(|&byte| byte == slot as u8)),
                        None => cache.offer_page(addr(slot), &vec![slot as u8; len_bytes]),
                    }
                    if turn % 1000 == 0 {
                        cache.set_elsewhere(turn * 100);
                    }
                }
            });
        }
    });
    let stats = cache.stats();
    assert!(stats.pages > 0 && stats.bytes <= 4 << 20, "{stats:?}");
}

#[test]
fn what_is_scanned_once_takes_no_room_and_what_is_scanned_again_is_kept() {
    let cache = RecordCache::new(4 << 20);
    let scan = |slots: std::ops::Range<u32>| {
        let missed: Vec<u32> = slots.filter(|&slot| cache.get(addr(slot)).is_none()).collect();
        missed.iter().for_each(|&slot| cache.insert_scanned(addr(slot), &record(1000)));
        missed.len()
    };
    assert_eq!(scan(0..1000), 1000);
    assert!(cache.stats().records < 100, "{:?}", cache.stats());
    assert!(scan(0..1000) > 900);
    assert_eq!(scan(0..1000), 0);
    // A scan of far more than fits leaves most of what is held alone, however often it comes.
    let before = cache.stats().records;
    for _ in 0..3 {
        scan(10_000..60_000);
    }
    assert!(scan(0..1000) < 300 && before >= 990, "{:?}", cache.stats());
}

#[test]
fn records_that_died_give_their_room_to_others() {
    let cache = RecordCache::new(4 << 20);
    for slot in 0..3500 {
        cache.insert(addr(slot), &record(1000));
        assert!(cache.get(addr(slot)).is_some());
    }
    // Most records of each region die, and the rest stays although none of it is used any more.
    (0..3500).filter(|slot| slot % 4 > 0).for_each(|slot| cache.remove(addr(slot)));
    for slot in 10_000..11_500 {
        cache.insert(addr(slot), &record(1000));
    }
    let kept = (0..3500).step_by(4).filter(|&slot| cache.has(addr(slot))).count();
    assert!(kept >= 800, "{kept} of 875 are left");
}

#[test]
fn a_record_in_use_outlives_its_place_in_the_cache() {
    let cache = RecordCache::new(1 << 20);
    cache.insert(addr(1), &[42; 5000]);
    let held = cache.get(addr(1)).unwrap();
    for slot in 2..5000 {
        cache.insert(addr(slot), &record(5000));
    }
    cache.resize(0);
    assert!(cache.get(addr(1)).is_none());
    assert_eq!(held[..], [42; 5000]);
}

#[test]
fn threads_find_each_record_as_it_was_inserted() {
    let cache = RecordCache::new(1 << 20);
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let cache = &cache;
            scope.spawn(move || {
                let mut next = uniform(3000);
                for _ in 0..thread * 7 {
                    next();
                }
                for turn in 0..40_000 {
                    let slot = next();
                    let len_bytes = 1 + slot as usize % 2000;
                    match cache.get(addr(slot)) {
                        Some(found) => assert!(found[..] == vec![slot as u8; len_bytes]),
                        None => cache.insert(addr(slot), &vec![slot as u8; len_bytes]),
                    }
                    match turn % 1000 {
                        0 => cache.set_elsewhere(turn * 10),
                        1..100 => cache.remove(addr(next())),
                        _ => {}
                    }
                }
            });
        }
    });
    let stats = cache.stats();
    assert!(stats.records > 0 && stats.bytes <= 1 << 20, "{stats:?}");
}

/// Reads slot by slot as a database does that holds the `own` slots that it read last. Returns the number of reads that
/// came to the cache, and of those that found their record.
fn replay_behind(
    own: usize,
    cache: &RecordCache,
    mut slots: impl Iterator<Item = u32>,
    reads: usize,
) -> (usize, usize) {
    let mut held: VecDeque<u32> = VecDeque::new();
    let mut is_held = HashSet::new();
    let (mut came, mut found) = (0, 0);
    while came < reads {
        let slot = slots.next().unwrap();
        if !is_held.insert(slot) {
            continue;
        }
        held.push_back(slot);
        if held.len() > own {
            is_held.remove(&held.pop_front().unwrap());
        }
        came += 1;
        found += replay(cache, std::iter::once(slot), |_| 3000);
    }
    (came, found)
}

/// Found by a sweep over the memory of a database (`pagefold-bench run valley-innodb`): what it had read last was held by
/// both, and of its reads 4 % were found in a cache that held an eighth of its pages.
#[test]
fn what_a_database_holds_itself_is_not_held_twice() {
    let slots = 20_000;
    for (own, held, least_permille) in
        [(6000, 4000, 90), (2000, 10_000, 400), (10_000, 6000, 100), (7000, 900, 30), (7000, 2000, 70)]
    {
        let cache = RecordCache::new(held * 3200);
        let mut next = uniform(slots);
        replay_behind(own, &cache, std::iter::repeat_with(&mut next), 6 * slots as usize);
        let (came, found) = replay_behind(own, &cache, std::iter::repeat_with(&mut next), 3 * slots as usize);
        assert!(
            found * 1000 >= came * least_permille,
            "{own} of its own, {held} here: {found} of {came} were found"
        );
    }
}

#[test]
fn what_is_asked_for_now_takes_the_place_of_what_was_asked_for_often() {
    let cache = RecordCache::new(4 << 20);
    let set = 3000;
    let mut next = uniform(set);
    replay(&cache, std::iter::repeat_with(&mut next).take(20 * set as usize), |_| 1000);
    let others = || std::iter::repeat_with(uniform(set)).map(|slot| slot + set);
    replay(&cache, others().take(30 * set as usize), |_| 1000);
    let reads = 2 * set as usize;
    let found = replay(&cache, others().take(reads), |_| 1000);
    assert!(found * 100 >= reads * 95, "{found} of {reads} were found");
}

#[test]
fn a_page_keeps_its_place_when_it_is_written_again() {
    let cache = RecordCache::new(4 << 20);
    let (set, rounds) = (1000, 20);
    for _ in 0..5 {
        replay(&cache, 0..set, |_| 1000);
    }
    // Its records move from address to address and are read once each time, beside reads that never come again.
    for round in 1..=rounds {
        for slot in 0..set {
            let (before, now) = (addr(slot + (round - 1) * set), addr(slot + round * set));
            cache.insert(now, &record(1000));
            cache.succeed(before, now);
            cache.remove(before);
            assert!(cache.get(now).is_some());
            let others = 1_000_000 + (round * set + slot) * 3;
            replay(&cache, others..others + 3, |_| 1000);
        }
    }
    let last = rounds * set;
    let kept = (last..last + set).filter(|&slot| cache.has(addr(slot))).count();
    assert!(kept >= 950, "{kept} of {set} were kept");
    let stats = cache.stats();
    assert!(stats.bytes <= stats.capacity_bytes && stats.records > 3000, "{stats:?}");
}
