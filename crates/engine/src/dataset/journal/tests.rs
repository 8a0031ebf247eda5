use super::*;
use std::sync::Arc;

use crate::Key;

const RING: usize = 64 << 10;

fn key(n: u64) -> Key {
    Key::new(n, 1, 0)
}

fn put(n: u64, bytes: usize) -> [Change<'static>; 1] {
    [Change::Put(key(n), vec![n as u8; bytes])]
}

fn enter(journal: &Journal, changes: &[Change<'_>]) {
    let room = journal.reserve(changes).unwrap().expect("there is room");
    journal.append(&room, 7, changes);
}

/// The journal as the successor of a process that was killed finds it.
fn adopted(journal: &Journal) -> Result<Journal> {
    Journal::adopt(journal.file().try_clone_to_owned().unwrap())
}

/// Objects of the puts that are redone.
fn redone(journal: &Journal, operations_below: u64) -> Result<Vec<u64>> {
    let mut found = Vec::new();
    journal.redo((u64::MAX, operations_below), &mut |dataset, changes| {
        assert_eq!(dataset, 7);
        for change in changes {
            if let Change::Put(key, value) = change {
                assert!(value.iter().all(|byte| *byte == key.object as u8));
                found.push(key.object);
            }
        }
        Ok(())
    })?;
    Ok(found)
}

#[test]
fn every_change_comes_back_as_it_was() {
    let journal = Journal::with_bytes(RING).unwrap();
    let data = [5; 5000];
    let changes = [
        Change::Put(key(1), b"value".to_vec()),
        Change::Delete(key(2)),
        Change::Write { object: 3, record_size: 4096, offset: 4096, data: &data[..4096] },
        Change::Punch { object: 3, from: 9, to: u64::MAX },
        Change::Write { object: 3, record_size: 4096, offset: 1 << 40, data: &data },
        Change::Share { from_object: 3, from_page: 1, to_object: 4, to_page: 2, count: 6 },
    ];
    enter(&journal, &changes);
    let mut seen = String::new();
    adopted(&journal)
        .unwrap()
        .redo((u64::MAX, 0), &mut |_, changes| {
            seen = format!("{changes:?}");
            Ok(())
        })
        .unwrap();
    assert_eq!(seen, format!("{changes:?}"));
}

#[test]
fn what_is_in_the_log_is_not_redone() {
    let journal = Journal::with_bytes(RING).unwrap();
    enter(&journal, &put(1, 10));
    journal.mark(50);
    enter(&journal, &put(2, 10));
    // Killed during the commit: the log decides.
    assert_eq!(redone(&adopted(&journal).unwrap(), 50).unwrap(), [1, 2]);
    let journal = Journal::with_bytes(RING).unwrap();
    enter(&journal, &put(1, 10));
    journal.mark(50);
    enter(&journal, &put(2, 10));
    let second = adopted(&journal).unwrap();
    assert_eq!(redone(&second, 51).unwrap(), [2]);
    // Its own commit, and the next death.
    enter(&second, &put(3, 10));
    second.mark(60);
    second.release(0);
    enter(&second, &put(4, 10));
    assert_eq!(redone(&adopted(&second).unwrap(), u64::MAX).unwrap(), [4]);
}

#[test]
fn a_mark_that_was_decided_is_forgotten() {
    let journal = Journal::with_bytes(RING).unwrap();
    enter(&journal, &put(1, 10));
    journal.mark(50);
    let second = adopted(&journal).unwrap();
    assert_eq!(redone(&second, 0).unwrap(), [1]);
    // Batch 50 is now another's, and the second process dies before its first mark.
    assert_eq!(redone(&adopted(&second).unwrap(), 51).unwrap(), [1]);
}

#[test]
fn a_commit_while_redoing_takes_along_what_was_redone() {
    let journal = Journal::with_bytes(RING).unwrap();
    (1..=4).for_each(|n| enter(&journal, &put(n, 10)));
    let second = adopted(&journal).unwrap();
    let mut entries = 0;
    second
        .redo((u64::MAX, 0), &mut |_, changes| {
            if entries == 2 {
                second.mark(70);
                second.release(0);
            }
            // No change is entered twice.
            let room = second.reserve(changes).unwrap().unwrap();
            second.append(&room, 7, changes);
            entries += 1;
            Ok(())
        })
        .unwrap();
    assert_eq!(redone(&adopted(&second).unwrap(), 0).unwrap(), [3, 4]);
}

#[test]
fn an_entry_that_was_not_finished_does_not_count() {
    let journal = Journal::with_bytes(RING).unwrap();
    enter(&journal, &put(1, 10));
    let unfinished = journal.reserve(&put(2, 300)).unwrap().unwrap();
    enter(&journal, &put(3, 10));
    let second = adopted(&journal).unwrap();
    assert_eq!(redone(&second, 0).unwrap(), [1, 3]);
    assert!(unfinished.bytes > 300);
    enter(&second, &put(4, 10));
    assert_eq!(redone(&adopted(&second).unwrap(), 0).unwrap(), [1, 3, 4]);
}

#[test]
fn damage_is_told() {
    let journal = Journal::with_bytes(RING).unwrap();
    enter(&journal, &put(1, 10));
    enter(&journal, &put(2, 1000));
    journal.map.write(600, b"scribble");
    let error = redone(&adopted(&journal).unwrap(), 0).unwrap_err();
    assert!(matches!(error, Error::Corrupt { .. }), "{error}");
    // A length that is impossible.
    let journal = Journal::with_bytes(RING).unwrap();
    enter(&journal, &put(1, 10));
    for bytes in [0, 8, 81, RING as u64, u64::MAX - 7] {
        journal.map.ring_word(BYTES).store(bytes, Release);
        assert!(redone(&adopted(&journal).unwrap(), 0).is_err(), "{bytes}");
    }
    // A head that is impossible.
    journal.map.word(RELEASED_WORD).store(u64::MAX, Release);
    assert!(redone(&adopted(&journal).unwrap(), 0).is_err());
    let (no_journal, _) = std::os::unix::net::UnixStream::pair().unwrap();
    assert!(Journal::adopt(no_journal.into()).is_err());
}

#[test]
fn data_that_looks_like_an_entry_is_none() {
    let journal = Journal::with_bytes(RING).unwrap();
    // The first lap fills the ring with stamps of positions of the second one.
    let fake: Vec<u8> = (0..RING as u64 / 8).flat_map(|n| (RING as u64 + n * 8 + 1).to_le_bytes()).collect();
    for part in fake.chunks(4096) {
        let changes = [Change::Write { object: 1, record_size: 4096, offset: 0, data: part }];
        match journal.reserve(&changes).unwrap() {
            Some(room) => journal.append(&room, 7, &changes),
            None => break,
        }
    }
    journal.mark(1);
    journal.release(0);
    (1..=5).for_each(|n| enter(&journal, &put(n, 100)));
    assert_eq!(redone(&adopted(&journal).unwrap(), 0).unwrap(), [1, 2, 3, 4, 5]);
}

#[test]
fn a_full_journal_takes_nothing_until_a_commit() {
    let journal = Journal::with_bytes(RING).unwrap();
    let mut expected = Vec::new();
    for lap in 0..20_u64 {
        let mut entered = 0;
        for n in 0.. {
            let changes = put((lap * 31 + n) % 250, 1000 + (n as usize * 77) % 3000);
            let Some(room) = journal.reserve(&changes).unwrap() else { break };
            journal.append(&room, 7, &changes);
            expected.push((lap * 31 + n) % 250);
            entered += 1;
        }
        assert!(entered > 10 && !journal.is_roomy());
        if lap < 19 {
            journal.mark(lap);
            journal.release(0);
            expected.clear();
        }
    }
    assert_eq!(redone(&adopted(&journal).unwrap(), 0).unwrap(), expected);
    assert!(journal.reserve(&put(1, RING)).is_err(), "what can never fit is an error");
}

#[test]
fn a_request_is_known_to_be_done_until_it_is_answered() {
    let asked = |unique| Asked { connection: 3, unique };
    let first = Arc::new(Journal::with_bytes(RING).unwrap());
    let answered = first.take_slot(asked(2));
    during(Some(answered.origin()), || enter(&first, &put(1, 10)));
    drop(answered);
    let done = first.take_slot(asked(4));
    during(Some(done.origin()), || {
        note_result(99);
        aside(|| enter(&first, &put(2, 10)));
        enter(&first, &put(3, 10));
    });
    let begun = first.take_slot(asked(6));
    during(Some(begun.origin()), || aside(|| enter(&first, &put(4, 10))));
    let told = first.take_slot(asked(8));
    during(Some(told.origin()), || enter(&first, &put(5, 10)));

    let second = Arc::new(adopted(&first).unwrap());
    assert_eq!(redone(&second, 0).unwrap(), [1, 2, 3, 4, 5]);
    assert_eq!(second.take_slot(asked(6)).done(), None);
    assert_eq!(second.take_slot(asked(2)).done(), None);
    let again = second.take_slot(asked(4));
    assert_eq!(again.done(), Some(99));
    assert_eq!(second.take_slot(Asked { connection: 4, unique: 8 }).done(), None);
    // The entries are released, and a third process has to know all the same.
    second.mark(1);
    second.release(0);
    let third = Arc::new(adopted(&second).unwrap());
    assert_eq!(redone(&third, 0).unwrap(), [0; 0]);
    assert_eq!(third.take_slot(asked(4)).done(), Some(99));
    // Not asked again: the answer had reached the kernel.
    third.all_asked(3);
    assert_eq!(third.take_slot(asked(8)).done(), None);
    assert_eq!(third.table.lock().free.len(), SLOTS);
}

#[test]
fn an_entry_tells_what_its_slot_does_not_yet() {
    let asked = Asked { connection: 1, unique: 10 };
    let first = Arc::new(Journal::with_bytes(RING).unwrap());
    let slot = first.take_slot(asked);
    during(Some(slot.origin()), || enter(&first, &put(1, 10)));
    // As if the process had been killed between the two.
    first
        .map
        .word(
            SLOT_WORD
                + (0..SLOTS).find(|slot| first.map.word(SLOT_WORD + slot * 4).load(Acquire) == 10).unwrap()
                    * 4
                + 2,
        )
        .store(0, Release);
    let second = Arc::new(adopted(&first).unwrap());
    redone(&second, 0).unwrap();
    assert_eq!(second.take_slot(asked).done(), Some(0));
}

#[test]
fn a_log_that_lost_what_it_had_is_told() {
    let journal = Journal::with_bytes(RING).unwrap();
    enter(&journal, &put(1, 10));
    journal.mark(50);
    journal.release(52);
    let redo = |next| adopted(&journal).unwrap().redo((next, next), &mut |_, _| Ok(()));
    assert_eq!(redo(52).unwrap(), 0);
    assert!(matches!(redo(51), Err(Error::Corrupt { .. })));
}

#[test]
fn a_change_that_failed_is_not_redone() {
    let asked = Asked { connection: 1, unique: 10 };
    let journal = Arc::new(Journal::with_bytes(RING).unwrap());
    let slot = journal.take_slot(asked);
    during(Some(slot.origin()), || {
        let room = journal.reserve(&put(1, 10)).unwrap().unwrap();
        journal.append(&room, 7, &put(1, 10));
        journal.cancel(&room);
    });
    enter(&journal, &put(2, 10));
    let second = Arc::new(adopted(&journal).unwrap());
    assert_eq!(redone(&second, 0).unwrap(), [2]);
    assert_eq!(second.take_slot(asked).done(), None);
}
