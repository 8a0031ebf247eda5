//! Who waits for a commit, and who is answered.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};

use pagefold_engine::Key;
use pagefold_engine::dataset::{Caller, Change, Synced};
use pagefold_engine::device::{InjectedFault, SimOp};
use pagefold_engine::pool::Pool;

use common::{fresh, open};

fn key(n: u64) -> Key {
    Key::new(9, 3, n)
}

fn put(pool: &Pool, n: u64) {
    pool.dataset().apply(&[Change::Put(key(n), n.to_le_bytes().to_vec())]).unwrap();
}

fn waiter() -> (Synced, Receiver<bool>) {
    let (told, answer) = channel();
    (Box::new(move |synced| told.send(synced.is_ok()).unwrap()), answer)
}

#[test]
fn without_threads_the_caller_commits() {
    let (device, pool) = fresh(256);
    put(&pool, 1);
    let (then, answer) = waiter();
    pool.dataset().sync_then(Caller::MustNotWait, then);
    assert!(answer.try_recv().unwrap());
    drop(pool);
    let device = Arc::new(device.crash(&mut |_| 0));
    assert!(open(&device).dataset().get(&key(1)).unwrap().is_some());
}

#[test]
fn a_group_is_answered_by_its_second_half_whatever_the_order() {
    let (device, pool) = fresh(256);
    put(&pool, 1);
    let (then, first) = waiter();
    pool.join_commit(then);
    let one = pool.begin_commit();
    put(&pool, 2);
    let (then, second) = waiter();
    pool.join_commit(then);
    let two = pool.begin_commit();
    assert!(first.try_recv().is_err() && second.try_recv().is_err());
    pool.end_commit(two).unwrap();
    assert!(first.try_recv().is_err(), "the first group has not ended");
    assert!(second.try_recv().unwrap());
    // The second stands on the first.
    let crashed = Arc::new(device.crash(&mut |_| 0));
    let again = open(&crashed);
    assert!([1, 2].iter().all(|n| again.dataset().get(&key(*n)).unwrap().is_some()));
    pool.end_commit(one).unwrap();
    assert!(first.try_recv().unwrap());
}

#[test]
fn a_failed_flush_is_told_to_every_group_under_way() {
    let (device, pool) = fresh(256);
    let begin = |n| {
        put(&pool, n);
        let (then, answer) = waiter();
        pool.join_commit(then);
        (pool.begin_commit(), answer)
    };
    let (one, first) = begin(1);
    let (two, second) = begin(2);
    device.inject(InjectedFault { op: SimOp::Flush, range: 0..u64::MAX, skip: 0, times: 1 });
    assert!(pool.end_commit(one).is_err());
    assert!(pool.end_commit(two).is_err());
    assert!(!first.try_recv().unwrap() && !second.try_recv().unwrap());
    let (then, later) = waiter();
    pool.dataset().sync_then(Caller::MustNotWait, then);
    assert!(!later.try_recv().unwrap());
}

#[test]
fn threads_answer_everybody_once_and_keep_what_they_acknowledged() {
    const WRITERS: u64 = 12;
    const EACH: u64 = 40;
    let (device, pool) = fresh(256);
    let background = pool.run().unwrap();
    let acknowledged = Arc::new(Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (pool, acknowledged) = (&pool, Arc::clone(&acknowledged));
            scope.spawn(move || {
                for n in 0..EACH {
                    let n = writer * EACH + n;
                    put(pool, n);
                    let (done, wait) = channel();
                    let acknowledged = Arc::clone(&acknowledged);
                    pool.dataset().sync_then(
                        Caller::MustNotWait,
                        Box::new(move |synced| {
                            synced.unwrap();
                            acknowledged.lock().unwrap().push(n);
                            done.send(()).unwrap();
                        }),
                    );
                    wait.recv().unwrap();
                }
            });
        }
        // A power cut in the middle: what had been acknowledged before is there afterwards.
        while acknowledged.lock().unwrap().len() < (WRITERS * EACH / 2) as usize {
            std::thread::yield_now();
        }
        let before = acknowledged.lock().unwrap().clone();
        let again = open(&Arc::new(device.crash(&mut |_| 0)));
        for n in before {
            assert!(again.dataset().get(&key(n)).unwrap().is_some(), "{n} was acknowledged");
        }
    });
    assert_eq!(acknowledged.lock().unwrap().len() as u64, WRITERS * EACH);
    let (then, last) = waiter();
    put(&pool, WRITERS * EACH);
    pool.dataset().sync_then(Caller::MustNotWait, then);
    background.stop();
    assert!(last.recv().unwrap());
}
