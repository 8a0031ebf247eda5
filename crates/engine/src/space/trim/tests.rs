use std::sync::Arc;

use super::*;
use crate::Error;
use crate::limits::DEVICE_BYTES_MIN;

const ANY: &dyn Fn(u16) -> bool = &|_| true;

/// Discards all that is left. Returns the chunks, in ascending order.
fn trim(chunks: &Chunks, which: Untrimmed) -> Vec<u64> {
    let mut told = Vec::new();
    while chunks
        .trim(which, 100, ANY, &mut |_, range| {
            told.extend(range);
            Ok(())
        })
        .unwrap()
        .is_some()
    {}
    told.sort_unstable();
    told
}

#[test]
fn a_device_is_told_once_of_what_is_free_and_of_nothing_else() {
    let chunks = Chunks::new(&[DEVICE_BYTES_MIN]);
    let used: Vec<Chunk> = (0..6).map(|_| chunks.allocate().unwrap()).collect();
    chunks.release(used[2]);
    assert_eq!(chunks.untrimmed(Untrimmed::All, ANY), 26);
    assert_eq!(trim(&chunks, Untrimmed::Fresh), Vec::<u64>::new());
    assert_eq!(trim(&chunks, Untrimmed::All), (6..32).collect::<Vec<u64>>());
    assert_eq!((trim(&chunks, Untrimmed::All), chunks.untrimmed(Untrimmed::All, ANY)), (vec![], 0));
    // The last checkpoint still refers to the chunk.
    let pending = chunks.take_pending_free();
    assert_eq!(trim(&chunks, Untrimmed::All), Vec::<u64>::new());
    chunks.recycle(pending);
    assert_eq!(trim(&chunks, Untrimmed::Fresh), [2]);
    assert_eq!(trim(&chunks, Untrimmed::All), Vec::<u64>::new());
    // The device is told again of a chunk that was given out since.
    let again = chunks.allocate().unwrap();
    assert_eq!(again.index, 2);
    chunks.release(again);
    chunks.recycle(chunks.take_pending_free());
    assert_eq!((trim(&chunks, Untrimmed::All), chunks.free()), (vec![2], 27));
}

#[test]
fn a_chunk_that_is_being_discarded_is_not_given_out_and_who_needs_it_waits() {
    let chunks = Arc::new(Chunks::new(&[DEVICE_BYTES_MIN]));
    let mut given = 0;
    while chunks.free() > 3 {
        chunks.allocate().unwrap();
        given += 1;
    }
    let mut waiting = None;
    let trimmed = chunks.trim(Untrimmed::All, 100, ANY, &mut |_, range| {
        assert_eq!(range, 31..32, "no more than a quarter of what is free");
        assert_eq!((chunks.free(), given), (3, 29));
        assert_eq!(chunks.allocate().unwrap().index, 29);
        assert_eq!(chunks.allocate().unwrap().index, 30);
        let chunks = Arc::clone(&chunks);
        waiting = Some(std::thread::spawn(move || chunks.allocate().unwrap().index));
        Ok(())
    });
    assert_eq!(trimmed.unwrap(), Some(1));
    assert_eq!(waiting.unwrap().join().unwrap(), 31);
    assert!(matches!(chunks.allocate(), Err(Error::NoSpace(_))));
}

#[test]
fn what_cannot_be_discarded_is_free_all_the_same_and_not_tried_again_by_the_way() {
    let chunks = Chunks::new(&[DEVICE_BYTES_MIN, DEVICE_BYTES_MIN]);
    let failed = chunks.trim(Untrimmed::All, 8, &|device| device == 1, &mut |device, range| {
        assert_eq!((device, range), (1, 24..32));
        Err(Error::Invalid("no".into()))
    });
    assert!(failed.is_err());
    assert_eq!((chunks.free(), chunks.untrimmed(Untrimmed::All, &|device| device == 1)), (64, 24));
}

#[test]
fn a_device_is_told_last_of_what_is_given_out_next() {
    let chunks = Chunks::new(&[DEVICE_BYTES_MIN]);
    let used: Vec<Chunk> = (0..24).map(|_| chunks.allocate().unwrap()).collect();
    used.into_iter().for_each(|chunk| chunks.release(chunk));
    chunks.recycle(chunks.take_pending_free());
    // As many are written again as the device is told of: half of what was free needs no discard at all.
    let mut told = Vec::new();
    loop {
        let discard = &mut |_, range| {
            told.push(range);
            Ok(())
        };
        if chunks.trim(Untrimmed::Fresh, 2, ANY, discard).unwrap().is_none() {
            break;
        }
        let given = [chunks.allocate().unwrap(), chunks.allocate().unwrap()];
        assert!(told.iter().all(|range| given.iter().all(|chunk| !range.contains(&chunk.index.into()))));
    }
    assert_eq!((told.first(), told.last(), told.len()), (Some(&(22..24)), Some(&(12..14)), 6));
}
