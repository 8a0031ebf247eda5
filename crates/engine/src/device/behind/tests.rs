use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread::{scope, sleep};
use std::time::Duration;

use super::*;

fn block(byte: u8) -> AlignedBuf {
    AlignedBuf::from_bytes(&[byte; 4096])
}

#[test]
fn without_a_thread_a_write_is_made_at_once() {
    let writes = WritesBehind::default();
    assert!(writes.take(0, 0, block(1)).is_some());
    writes.settle().unwrap();
}

#[test]
fn reads_and_flushes_wait_for_writes_and_neighbours_are_written_at_once() {
    let writes = Arc::new(WritesBehind::default());
    writes.set_served(true);
    let (go, wait) = channel::<()>();
    let wait = Mutex::new(wait);
    let made = Mutex::new(Vec::new());
    let ended = Mutex::new(Vec::new());
    scope(|threads| {
        threads.spawn(|| {
            writes.serve(&|group, offset, buf| {
                wait.lock().recv().unwrap();
                made.lock().push((group, offset, buf.iter().step_by(4096).copied().collect::<Vec<_>>()));
                Ok(())
            });
        });
        assert!(writes.take(0, 0, block(1)).is_none());
        while !writes.state.lock().queue.is_empty() {
            sleep(Duration::from_millis(1));
        }
        // These wait behind the one that is being made.
        for (group, offset, byte) in [(0, 4096, 2), (0, 8192, 3), (1, 12288, 4), (0, 40960, 5)] {
            assert!(writes.take(group, offset, block(byte)).is_none());
        }
        writes.wait_for(0, &(20480..24576));
        writes.wait_for(2, &(0..u64::MAX));
        threads.spawn(|| {
            writes.wait_for(1, &(12287..12290));
            ended.lock().push(made.lock().len());
        });
        threads.spawn(|| {
            writes.settle().unwrap();
            ended.lock().push(made.lock().len());
        });
        for writes in 1..=4 {
            sleep(Duration::from_millis(5));
            assert!(ended.lock().iter().all(|count| *count >= 3), "{writes}");
            go.send(()).unwrap();
        }
        writes.settle().unwrap();
        writes.set_served(false);
    });
    let expected = vec![(0, 0, vec![1]), (0, 4096, vec![2, 3]), (1, 12288, vec![4]), (0, 40960, vec![5])];
    assert_eq!(*made.lock(), expected);
    assert_eq!(ended.lock().len(), 2);
    assert!(writes.take(0, 0, block(1)).is_some(), "the thread is gone");
}

#[test]
fn a_write_that_fails_fails_every_flush_after_it() {
    let writes = WritesBehind::default();
    writes.set_served(true);
    scope(|threads| {
        threads.spawn(|| writes.serve(&|_, _, _| Err(Error::Failed("no".into()))));
        assert!(writes.take(0, 0, block(1)).is_none());
        assert!(writes.settle().is_err());
        writes.set_served(false);
    });
    assert!(writes.settle().is_err());
}
