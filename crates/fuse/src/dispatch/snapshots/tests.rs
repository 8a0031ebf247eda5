use std::collections::HashMap;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use pagefold_fs::testing::MemDataset;
use pagefold_fs::{FormatOptions, Fs, FsError, FsOptions, SystemClock};
use parking_lot::Mutex;

use super::super::Dispatch;
use super::super::tests::asked;
use super::{KnownSnapshot, SNAPSHOTS, SnapshotTree, Snapshots, WithSnapshots, node_id};
use crate::limits::READ_THREADS_MAX;
use crate::protocol::Opcode;
use crate::{Blocking, Handler, Source, Wait};

/// The last note of each place, and the number of notes after which nothing more can be noted.
#[derive(Default)]
struct Notes {
    of_place: HashMap<u16, KnownSnapshot>,
    left: Option<usize>,
}

/// Snapshots of any number, which are empty.
struct Endless(Arc<Mutex<Notes>>);

impl Endless {
    fn new() -> (Box<Self>, Arc<Mutex<Notes>>) {
        let notes: Arc<Mutex<Notes>> = Arc::default();
        (Box::new(Self(Arc::clone(&notes))), notes)
    }
}

impl Snapshots for Endless {
    fn list(&self) -> Vec<(u64, String)> {
        Vec::new()
    }

    fn find(&self, _name: &[u8]) -> Option<u64> {
        None
    }

    fn open(&self, _number: u64, enter: &mut dyn FnMut(Arc<Fs>)) -> Result<(), FsError> {
        enter(empty());
        Ok(())
    }

    fn note(&self, known: KnownSnapshot) -> Result<(), FsError> {
        let mut notes = self.0.lock();
        if let Some(left) = &mut notes.left {
            *left = left.checked_sub(1).ok_or(FsError::Unsupported("no memory"))?;
        }
        notes.of_place.insert(known.place, known);
        Ok(())
    }
}

fn empty() -> Arc<Fs> {
    let dataset = Arc::new(MemDataset::new(u64::MAX));
    Fs::format(&*dataset, &SystemClock, &FormatOptions { seed: 1, uid: 0, gid: 0, perm: 0o755 }).unwrap();
    Fs::mount(dataset, Arc::new(SystemClock), FsOptions::default()).unwrap()
}

#[test]
fn snapshots_that_the_kernel_forgets_cost_no_place() {
    let (snapshots, _) = Endless::new();
    let tree = SnapshotTree::new(snapshots);
    let (kept, _) = tree.enter(1_000_000).unwrap();
    for number in 1..70_000 {
        let (place, _) = tree.enter(number).unwrap();
        assert_ne!(place, kept);
        tree.forget(node_id(place, 1), 1);
    }
}

#[test]
fn the_next_server_knows_which_places_the_kernel_knows() {
    let (snapshots, notes) = Endless::new();
    let tree = SnapshotTree::new(snapshots);
    for number in [11, 12, 13] {
        tree.enter(number).unwrap();
    }
    tree.refer(1).unwrap();
    tree.forget(node_id(2, 1), 1);
    let mut known: Vec<KnownSnapshot> =
        notes.lock().of_place.values().copied().filter(|known| known.references > 0).collect();
    known.sort_by_key(|known| known.place);
    let of = |place, number, references| KnownSnapshot { place, number, references };
    assert_eq!(known, [of(1, 11, 2), of(3, 13, 1)]);
    // A server of an earlier version has left another one.
    known.push(of(5, 15, KnownSnapshot::UNKNOWN));
    let (snapshots, _) = Endless::new();
    let tree = SnapshotTree::resume(snapshots, &known);
    let enter = |number| tree.enter(number).unwrap().0;
    assert_eq!([enter(20), enter(13), enter(21), enter(22)], [2, 3, 4, 6]);
    tree.forget(node_id(1, 1), 1);
    assert_eq!(enter(23), 7);
    tree.forget(node_id(1, 7), 1);
    tree.forget(node_id(5, 1), 1_000_000);
    assert_eq!([enter(24), enter(25)], [1, 8]);
    assert_eq!(enter(15), 5);
}

#[test]
fn the_kernel_hears_of_nothing_that_could_not_be_noted() {
    let (snapshots, notes) = Endless::new();
    let tree = SnapshotTree::new(snapshots);
    tree.enter(11).unwrap();
    notes.lock().left = Some(0);
    assert!(tree.enter(12).is_err());
    assert!(tree.enter(11).is_err());
    assert!(tree.refer(1).is_err());
    // A note of more than the kernel knows does no harm.
    tree.forget(node_id(1, 1), 1);
    notes.lock().left = None;
    assert_eq!(tree.enter(12).unwrap().0, 1);
    assert_eq!(notes.lock().of_place[&1], KnownSnapshot { place: 1, number: 12, references: 1 });
}

#[test]
fn a_place_with_an_open_file_or_of_a_destroyed_snapshot_is_kept_while_the_kernel_knows_it() {
    let (snapshots, _) = Endless::new();
    let tree = SnapshotTree::new(snapshots);
    let enter = |number| tree.enter(number).unwrap().0;
    assert_eq!(enter(11), 1);
    tree.opened(1);
    tree.forget(node_id(1, 1), 1);
    assert_eq!(enter(12), 2, "the end of the open file is under way");
    tree.closed(1);
    assert_eq!(enter(13), 1);
    assert!(tree.close(13));
    assert!(tree.refer(1).is_err());
    assert_eq!(enter(14), 3);
    tree.forget(node_id(1, 1), 1);
    assert_eq!(enter(15), 1);
}

/// A snapshot that is read from a store which is away.
struct Away(Arc<Mutex<()>>);

impl Snapshots for Away {
    fn list(&self) -> Vec<(u64, String)> {
        Vec::new()
    }

    fn find(&self, _name: &[u8]) -> Option<u64> {
        Some(7)
    }

    fn open(&self, _number: u64, _enter: &mut dyn FnMut(Arc<Fs>)) -> Result<(), FsError> {
        drop(self.0.lock());
        Err(FsError::NotFound)
    }
}

#[test]
fn snapshots_that_wait_for_a_store_keep_no_reads_of_files_waiting() {
    let gate = Arc::new(Mutex::new(()));
    let closed = gate.lock();
    let tree = Arc::new(SnapshotTree::new(Box::new(Away(Arc::clone(&gate)))));
    let handler = WithSnapshots::new(Dispatch::new(empty()), tree);
    let blocking = Blocking::shared(Source::Devices);
    for _ in 0..2 * READ_THREADS_MAX {
        assert!(handler.handle(asked(Opcode::Lookup, SNAPSHOTS, b"away\0"), &blocking).is_none());
    }
    let (say, said) = mpsc::channel();
    blocking.run(Wait::Read, move || say.send(()).unwrap());
    let answered = said.recv_timeout(Duration::from_secs(60));
    drop(closed);
    answered.unwrap();
}
