use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use super::*;
use crate::device::DeviceStats;

fn begin(stats: &DeviceStats, class: IoClass) -> IoTurn<'_> {
    stats.wait(class, (0, 4096), 1)
}

#[test]
fn a_turn_that_ends_gives_the_next_one_its_own() {
    let stats = &DeviceStats::default();
    let first = begin(stats, IoClass::Discard);
    thread::scope(|scope| {
        let (told, events) = channel();
        let other = told.clone();
        scope.spawn(move || {
            // The class has one request at a time, whatever its deadline.
            let turn = begin(stats, IoClass::Discard);
            other.send("second").unwrap();
            drop(turn);
        });
        // Other classes are not concerned.
        drop(begin(stats, IoClass::Scrub));
        told.send("first ends").unwrap();
        drop(first);
        let seen: Vec<&str> = events.iter().take(2).collect();
        assert_eq!(seen, ["first ends", "second"]);
    });
}

#[test]
fn as_many_are_in_flight_as_the_class_may_have() {
    let stats = &DeviceStats::default();
    let (now, most) = (&AtomicU32::new(0), &AtomicU32::new(0));
    thread::scope(|scope| {
        for _ in 0..12 {
            scope.spawn(move || {
                for _ in 0..50 {
                    let turn = begin(stats, IoClass::Filling);
                    most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    thread::yield_now();
                    now.fetch_sub(1, Ordering::SeqCst);
                    drop(turn);
                }
            });
        }
    });
    let terms = IoClass::Filling.terms().unwrap();
    assert!(most.load(Ordering::SeqCst) <= terms.most);
    // Nothing is left of them.
    assert_eq!(stats.wait(IoClass::Filling, (0, 4096), 100).requests(), terms.most as usize);
}

#[test]
fn a_batch_is_as_large_as_the_class_allows() {
    let stats = &DeviceStats::default();
    let turn = stats.wait(IoClass::Scrub, (0, 4096), 100);
    assert_eq!(turn.requests(), 16);
    drop(turn);
    assert_eq!(stats.wait(IoClass::Scrub, (0, 4096), 3).requests(), 3);
}

#[test]
fn pieces_are_short_while_others_use_the_device() {
    let stats = &DeviceStats::default();
    let piece = |class| stats.piece_bytes(class);
    assert_eq!((piece(IoClass::Log), piece(IoClass::Cleaning)), (u64::MAX, u64::MAX));
    stats.of(IoClass::Log, IoKind::Write).make(4096, || Ok(())).unwrap();
    assert_eq!((piece(IoClass::Log), piece(IoClass::Cleaning)), (u64::MAX, PIECE_BYTES));
    let began = stats.of(IoClass::SyncRead, IoKind::Read).begin();
    assert_eq!((piece(IoClass::Log), piece(IoClass::Cleaning)), (LOG_PIECE_BYTES, PIECE_BYTES));
    stats.of(IoClass::SyncRead, IoKind::Read).end(began, 4096);
    assert_eq!(piece(IoClass::Log), LOG_PIECE_BYTES, "it was read a moment ago");
}

#[test]
fn what_was_a_while_ago_does_not_count() {
    let change = LastChange::default();
    assert!(!change.is_recent(0, RECENT_NS));
    assert!(change.is_recent(7, RECENT_NS));
    assert!(change.is_recent(7, 2 * RECENT_NS - 1));
    assert!(!change.is_recent(7, 2 * RECENT_NS));
}

#[test]
fn a_thread_knows_how_long_it_has_waited_for_turns() {
    let (queue, counters) = (&IoQueue::default(), &DeviceCounters::default());
    let discard = || queue.wait(counters, IoClass::Discard, (0, 4096), 1);
    let (first, before) = (discard(), waited());
    thread::scope(|scope| {
        let second = scope.spawn(|| {
            let arrived = Instant::now();
            drop(discard());
            (waited(), arrived.elapsed())
        });
        while !queue.state.lock().order.is_waited_for() {
            thread::yield_now();
        }
        let pause = Duration::from_millis(5);
        thread::sleep(pause);
        drop(first);
        let (waited, took) = second.join().unwrap();
        assert!(waited >= pause && waited <= took, "{waited:?} of {took:?}");
    });
    assert_eq!(waited(), before, "another thread has waited");
}
