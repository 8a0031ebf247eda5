//! Behaviour at real node sizes: costs, limits, concurrency.

use super::*;
use crate::limits::{NODE_BYTES, VALUE_BYTES_MAX};

fn put_pages(object: u64, pages: std::ops::Range<u64>) -> Vec<Edit> {
    pages.map(|n| Edit::Put(Key::page(object, n), page(n))).collect()
}

fn stored_nodes(root: Option<Ptr>, store: &MemStore) -> (usize, usize) {
    let (mut leaves, mut branches) = (0, 0);
    visit(root, store, &mut |visit| {
        match visit {
            Visit::Node { level: 0, .. } => leaves += 1,
            Visit::Node { .. } => branches += 1,
            Visit::Entry(..) => {}
            Visit::Damaged(ptr, error) => panic!("{ptr:?}: {error}"),
        }
        Ok(())
    })
    .unwrap();
    (leaves, branches)
}

#[test]
fn sequential_pages_fill_leaves() {
    let store = Arc::new(MemStore::default());
    let tree = tree_with(&store, None, 64 << 20, Shape::STORED);
    // what follows the pages in key order must not keep their leaves half empty
    apply(&tree, vec![Edit::Put(Key::new(1, Key::USAGE, 0), Value::Bytes(vec![1; 16].into()))]);
    apply(&tree, vec![Edit::Put(Key::new(2, 1, 0), Value::Bytes(vec![2; 100].into()))]);
    for chunk in 0..200u64 {
        apply(&tree, put_pages(1, chunk * 500..(chunk + 1) * 500));
    }
    let root = checkpoint(&tree, &store);
    let bytes: usize = store.records.lock().values().map(Vec::len).sum();
    let (leaves, branches) = stored_nodes(root, &store);
    assert_eq!(branches, 1);
    assert!(leaves * NODE_BYTES < bytes * 12 / 10, "{leaves} leaves for {bytes} bytes");
}

#[test]
fn deleting_a_large_object_touches_what_is_deleted_and_two_paths() {
    let store = Arc::new(MemStore::default());
    let tree = tree_with(&store, None, 64 << 20, Shape::STORED);
    for object in 1..4 {
        apply(&tree, put_pages(object, 0..100_000));
    }
    let root = checkpoint(&tree, &store);
    let (leaves, _) = stored_nodes(root, &store);
    // a cold tree with a cache for a handful of leaves
    let tree = tree_with(&store, root, 300_000, Shape::STORED);
    store.loads.store(0, Ordering::Relaxed);
    let (mut replaced, mut freed) = (0, Vec::new());
    let edit = Edit::DeleteRange(Key::page(2, 0), Key::new(2, Key::PAGE + 1, 0));
    let applied = tree.apply(&mut [edit].into_iter(), &mut |_, _| replaced += 1, &mut freed).unwrap();
    assert!(applied.unreadable.is_empty());
    assert_eq!(replaced, 100_000);
    assert!(tree.dirty_bytes() < 300_000, "{} bytes dirty", tree.dirty_bytes());
    let loads = store.loads.load(Ordering::Relaxed);
    assert!(loads <= leaves / 3 + 8, "{loads} loads to delete a third of {leaves} leaves");
    assert!(
        freed.len() >= leaves / 3 - 1 && freed.len() <= leaves / 3 + 4,
        "{} of {leaves} freed",
        freed.len()
    );
    assert_eq!(tree.next_data(2, 0).unwrap(), None);
    assert_eq!(tree.next_hole(3, 0).unwrap(), Some(100_000));
    assert_eq!(tree.get(&Key::page(1, 99_999)).unwrap(), Some(page(99_999)));
    // an empty range changes nothing
    let dirty = tree.dirty_bytes();
    assert!(apply(&tree, vec![Edit::DeleteRange(Key::page(2, 5), Key::page(2, 9))]).is_empty());
    assert_eq!(tree.dirty_bytes(), dirty);
}

#[test]
fn a_thinned_out_tree_shrinks() {
    let store = Arc::new(MemStore::default());
    let tree = tree_with(&store, None, 64 << 20, Shape::STORED);
    apply(&tree, put_pages(1, 0..200_000));
    let (full, _) = stored_nodes(checkpoint(&tree, &store), &store);
    // keep one page in 50, in slices as a background job would
    for slice in 0..20u64 {
        let pages = slice * 10_000..(slice + 1) * 10_000;
        apply(&tree, pages.filter(|n| n % 50 != 0).map(|n| Edit::Delete(Key::page(1, n))).collect());
    }
    let (thin, _) = stored_nodes(checkpoint(&tree, &store), &store);
    assert!(thin <= full / 15, "{thin} leaves left of {full}");
    apply(&tree, vec![Edit::DeleteRange(Key::new(0, 0, 0), Key::new(9, 0, 0))]);
    assert_eq!(checkpoint(&tree, &store), None);
    assert_eq!(tree.dirty_bytes(), 0);
}

#[test]
fn values_of_the_largest_size() {
    let store = Arc::new(MemStore::default());
    let tree = tree_with(&store, None, 1 << 20, Shape::STORED);
    let value =
        |n: u64| Value::Bytes(vec![n as u8; if n.is_multiple_of(3) { VALUE_BYTES_MAX } else { 40 }].into());
    apply(&tree, (0..90).map(|n| Edit::Put(Key::new(n, 3, n << 40), value(n))).collect());
    let root = checkpoint(&tree, &store);
    let tree = tree_with(&store, root, 1 << 20, Shape::STORED);
    for n in 0..90 {
        assert_eq!(tree.get(&Key::new(n, 3, n << 40)).unwrap(), Some(value(n)));
    }
    let too_long = Edit::Put(Key::new(1, 1, 1), Value::Bytes(vec![0; VALUE_BYTES_MAX + 1].into()));
    let edits = [Edit::Delete(Key::new(0, 3, 0)), too_long];
    let error = tree.apply(&mut edits.into_iter(), &mut |_, _| panic!("nothing changes"), &mut Vec::new());
    assert!(matches!(error, Err(Error::Invalid(_))));
    assert!(tree.get(&Key::new(0, 3, 0)).unwrap().is_some());
}

#[test]
fn an_unchanged_tree_writes_nothing() {
    let store = Arc::new(MemStore::default());
    let tree = tree_with(&store, None, 1 << 20, Shape::STORED);
    assert_eq!(checkpoint(&tree, &store), None);
    apply(&tree, put_pages(1, 0..10_000));
    let root = checkpoint(&tree, &store);
    let mut frozen = tree.freeze().unwrap();
    assert_eq!(frozen.persist(&mut |_| panic!("nothing changed")).unwrap(), root);
    tree.retire(frozen, &mut Vec::new()).unwrap();
    // neither does deleting what is not there
    apply(&tree, vec![Edit::Delete(Key::page(7, 7)), Edit::DeleteRange(Key::page(3, 0), Key::page(4, 0))]);
    assert_eq!(tree.dirty_bytes(), 0);
}

#[test]
fn checkpoints_are_told_apart() {
    let store = Arc::new(MemStore::default());
    let (a, b) =
        (tree_with(&store, None, 1 << 20, Shape::STORED), tree_with(&store, None, 1 << 20, Shape::STORED));
    apply(&a, put_pages(1, 0..10));
    apply(&b, put_pages(1, 0..10));
    let (of_a, mut of_b) = (a.freeze().unwrap(), b.freeze().unwrap());
    assert!(a.freeze().is_err());
    of_b.persist(&mut |nodes| store.write(nodes)).unwrap();
    assert!(a.retire(of_b, &mut Vec::new()).is_err(), "of another tree");
    assert!(a.retire(of_a, &mut Vec::new()).is_err(), "not persisted");
}

/// Writers replace whole runs of pages in one call; no reader ever sees half of one, and checkpoints go on
/// meanwhile.
#[test]
fn readers_see_whole_changes() {
    const PAGES: u64 = 5_000;
    let store = Arc::new(MemStore::default());
    let tree = tree_with(&store, None, 200_000, Shape::STORED);
    let version = |v: u64| (0..PAGES).map(move |n| Edit::Put(Key::page(1, n), page(v))).collect::<Vec<_>>();
    apply(&tree, version(0));
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut rounds = 0;
            while !done.load(Ordering::Relaxed) || rounds == 0 {
                let mut out = vec![None; PAGES as usize];
                tree.pages(1, 0, &mut out).unwrap();
                assert!(out[0].is_some() && out.iter().all(|ptr| *ptr == out[0]), "a torn change");
                if tree.try_pages(1, 0, &mut out) {
                    assert!(out.iter().all(|ptr| *ptr == out[0]), "a torn change");
                }
                let all = tree.range(&Key::page(1, 0), &Key::page(1, PAGES), usize::MAX).unwrap();
                assert!(
                    all.len() == PAGES as usize && all.iter().all(|(_, value)| *value == all[0].1),
                    "a torn change"
                );
                rounds += 1;
            }
        });
        let mut garbage: Vec<Ptr> = Vec::new();
        for v in 1..60 {
            let freed = apply(&tree, version(v));
            let mut frozen = tree.freeze().unwrap();
            garbage.extend(freed);
            if v % 2 == 0 {
                garbage.extend(apply(&tree, version(v + 1000)));
            }
            frozen.persist(&mut |nodes| store.write(nodes)).unwrap();
            tree.retire(frozen, &mut garbage).unwrap();
            // freed records go away under the readers' hands
            store.free(&std::mem::take(&mut garbage));
        }
        done.store(true, Ordering::Relaxed);
        reader.join().unwrap();
    });
}
