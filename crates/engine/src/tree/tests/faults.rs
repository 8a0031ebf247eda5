//! Tests damaged and unreadable nodes, and failing checkpoints.

use super::*;
use crate::tree::codec::encode;
use crate::tree::node::Branch;
use crate::tree::node::Leaf;
use crate::tree::node::Node;

const SMALL: Shape = Shape { leaf_bytes: 400, fanout: 8 };

struct StoredTree {
    store: Arc<MemStore>,
    root: Option<Ptr>,
    /// Leaves with their first and last page.
    leaves: Vec<(Ptr, u64, u64)>,
}

fn stored(pages: u64) -> StoredTree {
    let store = Arc::new(MemStore::default());
    let tree = tree_with(&store, None, 1 << 20, SMALL);
    apply(&tree, (0..pages).map(|n| Edit::Put(Key::page(1, n), page(n))).collect());
    let root = checkpoint(&tree, &store);
    let mut leaves: Vec<(Ptr, u64, u64)> = Vec::new();
    visit(root, &*store, &mut |visit| {
        match visit {
            Visit::Node { ptr, level: 0, .. } => leaves.push((ptr, u64::MAX, 0)),
            Visit::Entry(key, _) => {
                let (_, first, last) = leaves.last_mut().unwrap();
                (*first, *last) = ((*first).min(key.offset), key.offset);
            }
            Visit::Node { .. } => {}
            Visit::Damaged { .. } => panic!("damage"),
        }
        Ok(())
    })
    .unwrap();
    StoredTree { store, root, leaves }
}

#[test]
fn a_bad_leaf_hurts_its_own_keys_only() {
    let StoredTree { store, root, leaves } = stored(2000);
    let (bad, first, last) = leaves[leaves.len() / 2];
    store.bad.lock().insert(bad.addr);
    let tree = tree_with(&store, root, 1 << 20, SMALL);
    assert!(tree.get(&Key::page(1, first)).is_err());
    assert!(tree.get(&Key::page(1, last)).is_err());
    assert_eq!(tree.get(&Key::page(1, first - 1)).unwrap(), Some(page(first - 1)));
    assert_eq!(tree.get(&Key::page(1, last + 1)).unwrap(), Some(page(last + 1)));
    // An edit that needs the node changes nothing, nor does the edit before it.
    let edits = [Edit::Delete(Key::page(1, 0)), Edit::Put(Key::page(1, first), page(1))];
    let mut freed = Vec::new();
    let applied = tree.apply(&mut edits.into_iter(), &mut |_, _| panic!("nothing changes"), &mut freed);
    assert!(applied.is_err() && freed.is_empty() && tree.dirty_bytes() == 0);
    assert_eq!(tree.get(&Key::page(1, 0)).unwrap(), Some(page(0)));
    // Once the node can be read again, all is well.
    store.bad.lock().clear();
    assert_eq!(tree.get(&Key::page(1, first)).unwrap(), Some(page(first)));
}

#[test]
fn a_range_with_a_bad_leaf_can_be_deleted() {
    let StoredTree { store, root, leaves } = stored(2000);
    let (bad, first, last) = leaves[leaves.len() / 2];
    store.bad.lock().insert(bad.addr);
    let tree = tree_with(&store, root, 1 << 20, SMALL);
    let (mut replaced, mut freed) = (BTreeSet::new(), Vec::new());
    let edit = Edit::DeleteRange(Key::page(1, 10), Key::page(1, 1990));
    let mut note = |key: Key, _| assert!(replaced.insert(key.offset));
    let applied = tree.apply(&mut [edit].into_iter(), &mut note, &mut freed).unwrap();
    assert_eq!(applied.unreadable.len(), 1);
    assert_eq!(applied.unreadable[0].0, bad);
    let expected: BTreeSet<u64> = (10..1990).filter(|n| !(first..=last).contains(n)).collect();
    assert_eq!(replaced, expected);
    assert!(freed.contains(&bad));
    assert_eq!(tree.next_data(1, 10).unwrap(), Some(1990));
}

#[test]
fn the_walk_shows_damage_and_goes_on() {
    let StoredTree { store, root, leaves } = stored(2000);
    store.bad.lock().insert(leaves[3].0.addr);
    let swapped = store.records.lock()[&leaves[9].0.addr].clone();
    store.records.lock().insert(leaves[7].0.addr, swapped);
    let (mut damaged, mut entries) = (Vec::new(), 0);
    visit(root, &*store, &mut |visit| {
        match visit {
            Visit::Damaged { ptr, error, .. } => damaged.push((ptr, error.to_string())),
            Visit::Entry(..) => entries += 1,
            Visit::Node { .. } => {}
        }
        Ok(())
    })
    .unwrap();
    assert_eq!(damaged.iter().map(|(ptr, _)| *ptr).collect::<Vec<_>>(), [leaves[3].0, leaves[7].0]);
    assert!(damaged[1].1.contains("keys outside"), "{}", damaged[1].1);
    let lost = |i: usize| leaves[i].2 - leaves[i].1 + 1;
    assert_eq!(entries, 2000 - lost(3) - lost(7));
    // The live tree does not take another node's keys for this one's either.
    let tree = tree_with(&store, root, 1 << 20, SMALL);
    assert!(matches!(tree.get(&Key::page(1, leaves[7].1)), Err(Error::Corrupt { .. })));
}

/// A branch that is its own child must not make any walk endless.
#[test]
fn a_circle_is_damage() {
    let store = Arc::new(MemStore::default());
    let mut leaf = Leaf::with_capacity(1);
    leaf.push(Key::page(1, 1), page(1));
    let leaf = store.write(vec![encode(&Node::leaf(leaf)).unwrap()]).unwrap()[0];
    let root = Ptr { addr: Addr::new(1, 2), len_bytes: 50 };
    let mut branch = Branch::with_capacity(2, 2, Child::clean(root));
    branch.push(Key::page(5, 0), Child::clean(leaf));
    let written = store.write(vec![encode(&Node::branch(branch)).unwrap()]).unwrap()[0];
    assert_eq!(written.addr, root.addr);
    let tree = tree_with(&store, Some(root), 1 << 20, SMALL);
    for object in [1, 6] {
        let error = tree.get(&Key::page(object, 1)).unwrap_err().to_string();
        assert!(error.contains("level"), "{error}");
        let edits = [Edit::DeleteRange(Key::page(object, 0), Key::page(object, 9))];
        assert!(tree.apply(&mut edits.into_iter(), &mut |_, _| {}, &mut Vec::new()).is_err());
    }
    let mut damaged = 0;
    visit(Some(root), &*store, &mut |visit| {
        damaged += usize::from(matches!(visit, Visit::Damaged { .. }));
        Ok(())
    })
    .unwrap();
    assert_eq!(damaged, 2);
}

#[test]
fn a_failed_checkpoint_goes_on_where_it_stopped() {
    let store = Arc::new(MemStore::default());
    let tree = tree_with(&store, None, 1 << 20, SMALL);
    apply(&tree, (0..3000).map(|n| Edit::Put(Key::page(1, n), page(n))).collect());
    let mut immutable = tree.make_immutable();
    let mut calls = 0;
    let error = immutable.persist(&mut |nodes| {
        calls += 1;
        if calls == 2 { Err(Error::NoSpace("made full by a test".into())) } else { store.write(nodes) }
    });
    assert!(matches!(error, Err(Error::NoSpace(_))));
    assert!(immutable.root().is_err());
    let written = store.live().len();
    assert!(written > 0);
    let root = immutable.persist(&mut |nodes| store.write(nodes)).unwrap();
    retire(&tree, immutable, &mut Vec::new());
    let mut nodes = 0;
    visit(root, &*store, &mut |visit| {
        nodes += usize::from(matches!(visit, Visit::Node { .. }));
        Ok(())
    })
    .unwrap();
    assert_eq!(nodes, store.live().len(), "no node was written twice");
    assert!(immutable_count(&tree, 3000));
}

fn immutable_count(tree: &Tree, pages: u64) -> bool {
    let mut out = vec![None; pages as usize];
    tree.pages(1, 0, &mut out).unwrap();
    out.iter().all(Option::is_some)
}

#[test]
fn a_wrong_number_of_addresses_is_refused() {
    let tree = tree_with(&Arc::new(MemStore::default()), None, 1 << 20, SMALL);
    apply(&tree, vec![Edit::Put(Key::page(1, 1), page(1))]);
    let mut immutable = tree.make_immutable();
    assert!(matches!(immutable.persist(&mut |_| Ok(Vec::new())), Err(Error::Invalid(_))));
}

/// Trees whose branches name leaves as no writer does.
struct TwiceNamed {
    store: Arc<MemStore>,
}

impl TwiceNamed {
    fn leaf(&self, keys: impl IntoIterator<Item = u64>) -> Ptr {
        let mut leaf = Leaf::with_capacity(1);
        keys.into_iter().for_each(|n| leaf.push(Key::page(1, n), page(n)));
        self.store.write(vec![encode(&Node::leaf(leaf)).unwrap()]).unwrap()[0]
    }

    fn tree(&self, first: Ptr, others: &[(u64, Ptr)]) -> Tree {
        let mut branch = Branch::with_capacity(1, 8, Child::clean(first));
        others.iter().for_each(|(key, ptr)| branch.push(Key::page(1, *key), Child::clean(*ptr)));
        let root = self.store.write(vec![encode(&Node::branch(branch)).unwrap()]).unwrap()[0];
        tree_with(&self.store, Some(root), 1 << 20, SMALL)
    }
}

/// A branch names a leaf twice. One of its places allows the leaf's keys, and brings it into memory; the other does not.
#[test]
fn a_leaf_is_not_edited_in_a_place_that_does_not_allow_its_keys() {
    let forged = TwiceNamed { store: Arc::default() };
    let twice = forged.leaf(0..10);
    let (inside, key) = (Key::page(1, 5), Key::page(1, 150));
    for edit in [Edit::Put(key, page(150)), Edit::Delete(key), Edit::DeleteRange(key, Key::page(1, 160))] {
        let tree = forged.tree(twice, &[(100, twice)]);
        assert_eq!(tree.get(&inside).unwrap(), Some(page(5)));
        let applied = tree.apply(&mut [edit].into_iter(), &mut |_, _| {}, &mut Vec::new());
        assert!(matches!(applied, Err(Error::Corrupt { .. })), "{applied:?}");
        assert_eq!(tree.dirty_bytes(), 0);
        assert_eq!(tree.get(&inside).unwrap(), Some(page(5)));
    }
}

#[test]
fn a_leaf_is_not_merged_with_one_whose_keys_its_place_does_not_allow() {
    let forged = TwiceNamed { store: Arc::default() };
    let twice = forged.leaf(10..12);
    let tree = forged.tree(twice, &[(50, forged.leaf(50..90)), (100, forged.leaf(100..140)), (200, twice)]);
    assert_eq!(tree.get(&Key::page(1, 10)).unwrap(), Some(page(10)));
    let edit = Edit::DeleteRange(Key::page(1, 101), Key::page(1, 140));
    apply(&tree, vec![edit]);
    let tree = tree_with(&forged.store, checkpoint(&tree, &forged.store), 1 << 20, SMALL);
    assert!(matches!(tree.get(&Key::page(1, 210)), Err(Error::Corrupt { .. })));
    for key in [10, 60, 100] {
        assert_eq!(tree.get(&Key::page(1, key)).unwrap(), Some(page(key)));
    }
}
