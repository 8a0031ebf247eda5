//! Tests behaviour at real node sizes: costs, limits, concurrency.

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
            Visit::Damaged { ptr, error, .. } => panic!("{ptr:?}: {error}"),
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
    // Entries that follow the pages in key order must not keep the pages' leaves half empty.
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
    // Nothing of the tree is in memory, and its cache has room for a handful of leaves.
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
    // An empty range changes nothing.
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
    // This keeps one page in 50, in slices as a background job would.
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
    let mut immutable = tree.make_immutable();
    assert_eq!(immutable.persist(&mut |_| panic!("nothing changed")).unwrap(), root);
    retire(&tree, immutable, &mut Vec::new());
    // Nor does deleting what is not there.
    apply(&tree, vec![Edit::Delete(Key::page(7, 7)), Edit::DeleteRange(Key::page(3, 0), Key::page(4, 0))]);
    assert_eq!(tree.dirty_bytes(), 0);
}

/// Versions change independently. What each has unreferenced is found by comparing them, and nothing is found twice.
#[test]
fn forks_share_what_neither_has_changed() {
    let store = Arc::new(MemStore::default());
    let tree = tree_with(&store, None, 1 << 20, Shape::STORED);
    apply(&tree, put_pages(1, 0..20_000));
    let fork = tree.fork();
    // A fork of an unstored tree shares changed nodes with it.
    apply(&tree, put_pages(1, 100..101));
    let clone = fork.fork();
    apply(&clone, vec![Edit::Put(Key::page(1, 19_000), page(3))]);
    let (mut first, mut second) = (fork.make_immutable(), tree.make_immutable());
    first.persist(&mut |nodes| store.write(nodes)).unwrap();
    let all = store.live().len();
    second.persist(&mut |nodes| store.write(nodes)).unwrap();
    assert_eq!(store.live().len() - all, 2, "a leaf and the root are the tree's own");
    // This version was taken while the two were written, and is not stored itself.
    let late = tree.fork();
    apply(&tree, vec![Edit::Put(Key::page(1, 10_000), page(4))]);
    apply(&late, vec![]);
    let versions = [&fork, &tree, &clone, &late];
    let written: Vec<WrittenNodes> = versions.iter().map(|tree| tree.written()).collect();
    let missing =
        |a: usize, b: usize| written[a].keys().filter(|node| !written[b].contains_key(node)).count();
    assert_eq!((missing(0, 2), missing(3, 1), missing(1, 3)), (2, 2, 0));
    drop((first, second));
    let mut settling = Settling::default();
    versions.iter().for_each(|tree| tree.settle(&mut settling));
    assert!(versions.iter().all(|tree| tree.written().is_empty()));
    assert!(fork.stored_root().is_some() && late.stored_root().is_some() && tree.stored_root().is_none());
    let at = |tree: &Tree, n| tree.get(&Key::page(1, n)).unwrap();
    assert_eq!(at(&clone, 19_000), Some(page(3)));
    assert_eq!(
        [&fork, &tree, &late].map(|tree| at(tree, 19_000)),
        [const { 19_000 }; 3].map(|n| Some(page(n)))
    );
    assert_eq!([&tree, &late].map(|tree| at(tree, 10_000)), [Some(page(4)), Some(page(10_000))]);
    // In a rollback, the tree takes the fork's content and gives its own to the tree that is returned.
    let before = tree.replace(&fork);
    assert_eq!((at(&tree, 10_000), at(&before, 10_000)), (Some(page(10_000)), Some(page(4))));
    assert_eq!((tree.dirty_bytes(), tree.stored_root()), (0, fork.stored_root()));
}

/// The memory of all trees of a cache is the sum over the trees. The share of a tree that was dropped, whose nodes
/// others may have, counts until a later checkpoint was made.
#[test]
fn unstored_memory_is_counted_for_all_trees_together() {
    let store = Arc::new(MemStore::default());
    let tree = tree_with(&store, None, 1 << 20, Shape::STORED);
    let cache = Arc::clone(&tree.cache);
    apply(&tree, put_pages(1, 0..5_000));
    let fork = tree.fork();
    apply(&fork, put_pages(2, 0..500));
    assert!(fork.dirty_bytes() > 0);
    let sum = tree.dirty_bytes() + fork.dirty_bytes();
    assert_eq!((cache.dirty_bytes(), cache.unstored_bytes()), (sum, sum));
    let mut immutable = tree.make_immutable();
    assert_eq!((cache.dirty_bytes(), cache.unstored_bytes()), (fork.dirty_bytes(), sum));
    immutable.persist(&mut |nodes| store.write(nodes)).unwrap();
    drop(immutable);
    tree.settle(&mut Settling::default());
    assert_eq!(cache.unstored_bytes(), fork.dirty_bytes());
    let left = fork.dirty_bytes();
    let before = tree.replace(&fork);
    assert_eq!((tree.dirty_bytes(), before.dirty_bytes()), (0, 0));
    drop(fork);
    assert_eq!((cache.unstored_bytes(), cache.dirty_bytes()), (left, left));
    drop((tree, before));
    assert_eq!((cache.unstored_bytes(), cache.dirty_bytes()), (left, left));
    let tree = tree_with(&store, None, 1 << 20, Shape::STORED);
    let cache = Arc::clone(&tree.cache);
    apply(&tree, put_pages(1, 0..5_000));
    let (fork, held) = (tree.fork(), tree.dirty_bytes());
    drop(tree);
    let mut immutable = fork.make_immutable();
    assert_eq!(cache.make_left_immutable().memory, held);
    // This tree is dropped after the quiesce point, so its nodes count until the next checkpoint.
    let late = fork.fork();
    apply(&late, put_pages(2, 0..1));
    let late_bytes = late.dirty_bytes();
    drop(late);
    let mut stored = 0;
    let write = &mut |nodes: Vec<Vec<u8>>| {
        stored += nodes.iter().map(|node| node.len() as u64).sum::<u64>();
        store.write(nodes)
    };
    immutable.persist(write).unwrap();
    assert!(stored > 0 && stored <= cache.unstored_nodes().stored);
    fork.settle(&mut Settling::default());
    cache.settle_left();
    assert_eq!((cache.unstored_bytes(), cache.dirty_bytes()), (late_bytes, late_bytes));
    cache.make_left_immutable();
    cache.settle_left();
    assert_eq!(cache.unstored_bytes(), 0);
}

/// Whatever the steps are, each node and page above the bound is reported once, and a branch after all below it.
#[test]
fn a_tree_is_reaped_in_steps() {
    let store = Arc::new(MemStore::default());
    let tree = tree_with(&store, None, 1 << 20, Shape { leaf_bytes: 300, fanout: 5 });
    apply(&tree, put_pages(1, 0..3_000));
    let first = checkpoint(&tree, &store);
    let bound = 1 + store.live().last().unwrap().raw();
    apply(&tree, (0..5).map(|n| Edit::Put(Key::page(1, n * 570), page(n))).collect());
    let second = checkpoint(&tree, &store);
    let all = |root, bound, limit| {
        let (mut nodes, mut pages, mut from, mut steps) = (Vec::new(), Vec::new(), None, 0);
        loop {
            let step = reap(root, &*store, from, bound, limit);
            assert!(step.unreadable.is_empty());
            nodes.extend(step.nodes);
            pages.extend(step.pages);
            (from, steps) = (step.next, steps + 1);
            if from.is_none() {
                return (nodes, pages, steps);
            }
        }
    };
    let (nodes, pages, steps) = all(first, 0, usize::MAX);
    let unique: BTreeSet<Addr> = nodes.iter().map(|ptr| ptr.addr).collect();
    assert_eq!((nodes.len(), pages.len(), steps), (unique.len(), 3_000, 1));
    assert_eq!(nodes.last().copied(), first);
    for limit in [1, 7, 100, 1000] {
        let (again, pages, steps) = all(first, 0, limit);
        assert!(again == nodes && pages.len() == 3_000 && steps > 2, "{limit}");
    }
    let (fresh, ..) = all(second, bound, 1);
    let kept: BTreeSet<Addr> = all(second, 0, 1).0.iter().map(|ptr| ptr.addr).collect();
    let expected: Vec<Addr> = kept.difference(&unique).copied().collect();
    let mut fresh: Vec<Addr> = fresh.iter().map(|ptr| ptr.addr).collect();
    fresh.sort_unstable();
    assert!(fresh == expected && !fresh.is_empty() && fresh.len() < nodes.len() / 2);
    assert!(all(None, 0, 1).0.is_empty());
}

/// Writers replace whole runs of pages in one call. No reader ever sees half of such a change, and checkpoints go on
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
            let mut immutable = tree.make_immutable();
            garbage.extend(freed);
            if v % 2 == 0 {
                garbage.extend(apply(&tree, version(v + 1000)));
            }
            immutable.persist(&mut |nodes| store.write(nodes)).unwrap();
            retire(&tree, immutable, &mut garbage);
            // Freed records disappear while readers may still need them.
            store.free(&std::mem::take(&mut garbage));
        }
        done.store(true, Ordering::Relaxed);
        reader.join().unwrap();
    });
}
