//! Compares differences of versions with those of maps, and counts what finding them reads.

use std::sync::atomic::Ordering;

use proptest::prelude::*;

use super::model::{TreeModel, edits};
use super::*;

/// Returns the differences of two maps.
fn expected(new: &TreeModel, old: &TreeModel, after: Option<Key>) -> Vec<Difference> {
    let keys: BTreeSet<&Key> = new.keys().chain(old.keys()).collect();
    let behind = |key: &&Key| after.is_none_or(|after| **key > after);
    let same = |a: Option<&Value>, b: Option<&Value>| match (a, b) {
        (Some(Value::Page(a)), Some(Value::Page(b))) => a.addr == b.addr,
        (a, b) => a == b,
    };
    keys.into_iter()
        .filter(behind)
        .filter(|key| !same(new.get(*key), old.get(*key)))
        .map(|key| Difference { key: *key, before: old.get(key).cloned(), after: new.get(key).cloned() })
        .collect()
}

fn found(new: &Tree, old: Option<&Tree>, after: Option<Key>) -> Vec<Difference> {
    new.differences(old, after).collect::<Result<_>>().unwrap()
}

fn change(tree: &Tree, model: &mut TreeModel, edits: &[Edit]) {
    apply(tree, edits.to_vec());
    for edit in edits {
        match edit {
            Edit::Put(key, value) => drop(model.insert(*key, value.clone())),
            Edit::Delete(key) => drop(model.remove(key)),
            Edit::DeleteRange(from, to) => model.retain(|key, _| key < from || key >= to),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// The versions are stored, stored in part, or not stored at all.
    #[test]
    fn as_maps_differ(
        generations in prop::collection::vec((prop::collection::vec(edits(), 1..6), any::<bool>()), 2..6),
        small: bool,
    ) {
        let shape = if small { Shape { leaf_bytes: 400, fanout: 6 } } else { Shape::STORED };
        let store = Arc::new(MemStore::default());
        let tree = tree_with(&store, None, 1 << 20, shape);
        let mut model = TreeModel::new();
        let mut versions: Vec<(Tree, TreeModel)> = Vec::new();
        for (changes, stored) in &generations {
            changes.iter().for_each(|edits| change(&tree, &mut model, edits));
            if *stored {
                checkpoint(&tree, &store);
            }
            versions.push((tree.fork(), model.clone()));
        }
        for (new, of_new) in &versions {
            prop_assert_eq!(found(new, None, None), expected(of_new, &TreeModel::new(), None));
            for (old, of_old) in &versions {
                let all = expected(of_new, of_old, None);
                prop_assert_eq!(&found(new, Some(old), None), &all);
                if let Some(middle) = all.get(all.len() / 2) {
                    let after = Some(middle.key);
                    prop_assert_eq!(found(new, Some(old), after), expected(of_new, of_old, after));
                }
                if new.is_version_of(old) {
                    prop_assert!(all.is_empty());
                }
            }
        }
    }
}

#[test]
fn reads_what_differs() {
    let store = Arc::new(MemStore::default());
    // The cache has no room, so every node that is looked into is read.
    let tree = tree_with(&store, None, 0, Shape::STORED);
    let put = |page_number: u64, n: u64| Edit::Put(Key::page(5, page_number), page(n));
    for first in (0..200_000).step_by(1000) {
        apply(&tree, (first..first + 1000).map(|n| put(n, n)).collect());
    }
    checkpoint(&tree, &store);
    let old = tree.fork();
    apply(&tree, vec![put(77_777, 1), Edit::DeleteRange(Key::page(5, 100_000), Key::page(5, 120_000))]);
    checkpoint(&tree, &store);
    let before = store.loads.load(Ordering::Relaxed);
    assert_eq!(found(&tree, Some(&old), None).len(), 20_001);
    let incremental = store.loads.load(Ordering::Relaxed) - before;
    assert_eq!(found(&tree, None, None).len(), 180_000);
    let full = store.loads.load(Ordering::Relaxed) - before - incremental;
    assert!(incremental * 4 < full, "{incremental} nodes of {full} were read for a tenth of the pages");
    assert!(found(&tree, Some(&tree.fork()), None).is_empty());
    assert_eq!(store.loads.load(Ordering::Relaxed), before + incremental + full);
}

#[test]
fn what_cannot_be_read_ends_it() {
    let store = Arc::new(MemStore::default());
    let tree = tree_with(&store, None, 0, Shape::STORED);
    apply(&tree, (0..20_000).map(|n| Edit::Put(Key::page(5, n), page(n))).collect());
    let root = checkpoint(&tree, &store).unwrap();
    store.bad.lock().insert(root.addr);
    let mut differences = tree.differences(None, None);
    assert!(matches!(differences.next(), Some(Err(Error::Corrupt { .. }))));
    assert!(differences.next().is_none());
}
