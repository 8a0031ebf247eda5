//! Compares a tree with a BTreeMap under random edits and checkpoints, and checks all invariants after each step.

use proptest::prelude::*;

use super::*;
use crate::tree::editor::changed_bytes;
use crate::tree::node::Leaf;
use crate::tree::node::{Body, Node};

#[derive(Clone, Debug)]
enum TreeStep {
    Apply(Vec<Edit>),
    MakeImmutable,
    Persist,
    Retire,
    /// Forgets the tree, and opens the last checkpoint.
    Reopen,
}

/// Makes keys of few objects and kinds, with offsets that are often neighbours.
fn key() -> impl Strategy<Value = Key> {
    let kind = prop_oneof![1 => Just(0u8), 1 => Just(7), 4 => Just(Key::PAGE), 1 => Just(Key::USAGE)];
    let offset = prop_oneof![20 => 0u64..300, 1 => any::<u64>()];
    (0u64..4, kind, offset).prop_map(|(object, kind, offset)| Key::new(object * 1000, kind, offset))
}

fn value() -> impl Strategy<Value = Value> {
    prop_oneof![
        6 => (1u64..5000, 0u32..100, 1u32..9000).prop_map(|(segment, slot, len_bytes)| Value::Page(Ptr {
            addr: Addr::new(segment, slot),
            len_bytes,
        })),
        3 => prop::collection::vec(any::<u8>(), 0..60).prop_map(|bytes| Value::Bytes(bytes.into())),
        1 => (400usize..1500).prop_map(|len| Value::Bytes(vec![7; len].into())),
    ]
}

pub(super) fn edits() -> impl Strategy<Value = Vec<Edit>> {
    let put = (key(), value()).prop_map(|(key, value)| vec![Edit::Put(key, value)]);
    let sequential =
        (0u64..4, 0u64..300, 1u64..120, 0u64..10_000).prop_map(|(object, first, count, seed)| {
            (0..count)
                .map(|i| Edit::Put(Key::page(object * 1000, first + i), super::page(seed + i)))
                .collect()
        });
    let delete = key().prop_map(|key| vec![Edit::Delete(key)]);
    let range = (key(), key()).prop_map(|(a, b)| vec![Edit::DeleteRange(a, b)]);
    let punch = (0u64..4, 0u64..300, 0u64..100).prop_map(|(object, first, count)| {
        vec![Edit::DeleteRange(Key::page(object * 1000, first), Key::page(object * 1000, first + count))]
    });
    let one = prop_oneof![6 => put, 3 => sequential, 3 => delete, 1 => range, 2 => punch];
    prop::collection::vec(one, 1..12).prop_map(|edits| edits.concat())
}

fn step() -> impl Strategy<Value = TreeStep> {
    prop_oneof![
        8 => edits().prop_map(TreeStep::Apply),
        2 => Just(TreeStep::MakeImmutable),
        2 => Just(TreeStep::Persist),
        2 => Just(TreeStep::Retire),
        1 => Just(TreeStep::Reopen),
    ]
}

pub(super) type TreeModel = BTreeMap<Key, Value>;

struct World {
    store: Arc<MemStore>,
    cache_bytes: u64,
    shape: Shape,
    tree: Tree,
    model: TreeModel,
    /// Nodes freed by the live tree. The last durable checkpoint may still refer to them.
    freed: Vec<Ptr>,
    immutable: Option<(ImmutableTree, TreeModel, usize)>,
    durable: (Option<Ptr>, TreeModel),
}

impl World {
    fn new(cache_bytes: u64, shape: Shape) -> Self {
        let store = Arc::new(MemStore::default());
        let tree = tree_with(&store, None, cache_bytes, shape);
        let (model, durable) = (TreeModel::new(), (None, TreeModel::new()));
        Self { store, cache_bytes, shape, tree, model, freed: Vec::new(), immutable: None, durable }
    }

    fn step(&mut self, step: TreeStep) {
        match step {
            TreeStep::Apply(edits) => self.apply(edits),
            TreeStep::MakeImmutable if self.immutable.is_none() => {
                self.immutable = Some((self.tree.make_immutable(), self.model.clone(), self.freed.len()));
            }
            TreeStep::MakeImmutable => {}
            TreeStep::Persist => {
                let Some((immutable, ..)) = &mut self.immutable else { return };
                let store = &self.store;
                let root = immutable.persist(&mut |nodes| store.write(nodes)).unwrap();
                assert_eq!(immutable.root().unwrap(), root);
                let again = immutable.persist(&mut |_| panic!("nothing is left to write")).unwrap();
                assert_eq!(again, root);
            }
            TreeStep::Retire => self.retire(),
            TreeStep::Reopen => self.reopen(),
        }
    }

    fn apply(&mut self, edits: Vec<Edit>) {
        let mut expected: Vec<(Key, Value)> = Vec::new();
        for edit in &edits {
            match edit {
                Edit::Put(key, value) => {
                    expected.extend(self.model.insert(*key, value.clone()).map(|old| (*key, old)));
                }
                Edit::Delete(key) => expected.extend(self.model.remove_entry(key)),
                Edit::DeleteRange(from, to) => {
                    expected.extend(self.model.extract_if(.., |key, _| from <= key && key < to));
                }
            }
        }
        let mut replaced = Vec::new();
        let mut collect = |key, value| replaced.push((key, value));
        let applied = self.tree.apply(&mut edits.into_iter(), &mut collect, &mut self.freed).unwrap();
        assert!(applied.unreadable.is_empty());
        let order = |a: &(Key, Value), b: &(Key, Value)| {
            (a.0, format!("{:?}", a.1)).cmp(&(b.0, format!("{:?}", b.1)))
        };
        expected.sort_by(order);
        replaced.sort_by(order);
        assert_eq!(replaced, expected);
    }

    fn retire(&mut self) {
        self.step(TreeStep::Persist);
        let Some((immutable, model, freed_before)) = self.immutable.take() else { return };
        self.durable = (immutable.root().unwrap(), model);
        // No checkpoint refers any more to what was freed before the tree became immutable.
        self.store.free(&self.freed[..freed_before]);
        self.freed.drain(..freed_before);
        retire(&self.tree, immutable, &mut self.freed);
    }

    fn reopen(&mut self) {
        self.step(TreeStep::Retire);
        self.immutable = None;
        let (root, model) = self.durable.clone();
        self.tree = tree_with(&self.store, root, self.cache_bytes, self.shape);
        self.model = model;
        // After a crash, what was freed since the checkpoint is in use again.
        self.freed.clear();
    }

    fn check(&self) {
        let all =
            self.tree.range(&Key::new(0, 0, 0), &Key::new(u64::MAX, u8::MAX, u64::MAX), usize::MAX).unwrap();
        assert_eq!(all, self.model.clone().into_iter().collect::<Vec<_>>());
        let mut walked = Vec::new();
        self.tree
            .walk(&mut |visit| {
                match visit {
                    Visit::Entry(key, value) => walked.push((key, value)),
                    Visit::Node { .. } => {}
                    Visit::Damaged { ptr, error, .. } => panic!("{ptr:?}: {error}"),
                }
                Ok(())
            })
            .unwrap();
        assert_eq!(walked, all);
        let live = self.tree.live.read();
        if let Some(root) = &live.root {
            assert_eq!(self.tree.dirty.get(), changed_bytes(root));
        } else {
            assert_eq!(self.tree.dirty_bytes(), 0);
        }
        let mut stored = BTreeSet::new();
        if let Some(root) = &live.root {
            self.walk(root, &mut stored);
        }
        drop(live);
        let mut accounted = self.store.live();
        for ptr in &self.freed {
            assert!(accounted.remove(&ptr.addr), "{ptr:?} freed twice");
        }
        if let Some((immutable, ..)) = &self.immutable {
            // These nodes were written by the checkpoint and unreferenced by the live tree, and are not reported yet.
            let kept = self.tree.written();
            for (node, ptr) in immutable.written() {
                if !kept.contains_key(&node) {
                    accounted.remove(&ptr.addr);
                }
            }
        }
        assert_eq!(
            stored, accounted,
            "stored nodes that the tree refers to, and all that were written less those freed"
        );
        self.check_durable();
    }

    /// Checks the structure of what is in memory, and collects the stored nodes.
    fn walk(&self, child: &Child, stored: &mut BTreeSet<Addr>) {
        if let Some(ptr) = child.stored_ptr() {
            assert!(stored.insert(ptr.addr), "two references to {ptr:?}");
        }
        match child {
            Child::Dirty(node) => {
                check_node(node, self.shape);
                if let Body::Branch(branch) = node.body() {
                    branch.children().iter().for_each(|child| self.walk(child, stored));
                }
            }
            Child::Clean { len_bytes, addr } => {
                let ptr = Ptr { addr: *addr, len_bytes: *len_bytes };
                let node = super::super::codec::decode(ptr, &self.store.load(ptr).unwrap()).unwrap();
                if let Body::Branch(branch) = node.body() {
                    branch.children().iter().for_each(|child| self.walk(child, stored));
                }
            }
        }
    }

    fn check_durable(&self) {
        let mut entries = Vec::new();
        visit(self.durable.0, &*self.store, &mut |visit| {
            match visit {
                Visit::Entry(key, value) => entries.push((key, value)),
                Visit::Node { .. } => {}
                Visit::Damaged { ptr, error, .. } => panic!("{ptr:?}: {error}"),
            }
            Ok(())
        })
        .unwrap();
        assert_eq!(entries, self.durable.1.clone().into_iter().collect::<Vec<_>>());
    }
}

fn check_node(node: &Node, shape: Shape) {
    assert!(node.len() > 0);
    match node.body() {
        Body::Leaf(leaf) => {
            let mut fresh = Leaf::with_capacity(leaf.len());
            leaf.for_each(&mut |key, value| fresh.push(key, value));
            assert_eq!(leaf.encoded_bytes(), fresh.encoded_bytes(), "kept size");
            assert_eq!(leaf.encoded_bytes(), super::super::codec::encode(node).unwrap().len(), "real size");
            assert_eq!(leaf.value_bytes(), fresh.value_bytes());
            assert!(leaf.len() == 1 || leaf.encoded_bytes() <= shape.leaf_bytes + 16);
        }
        Body::Branch(branch) => {
            assert_eq!(branch.separators().len() + 1, branch.len());
            assert!(branch.separators().is_sorted());
            assert!(branch.len() <= shape.fanout);
        }
    }
}

/// `PROPTEST_CASES` sets another number of cases than 256.
fn config() -> ProptestConfig {
    ProptestConfig { failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config())]

    /// Nodes are small, so that trees are deep, with many splits and merges. The cache holds everything, a little or
    /// nothing.
    #[test]
    fn behaves_as_a_map(
        steps in prop::collection::vec(step(), 1..40),
        cache_bytes in prop::sample::select(vec![1u64, 20_000, 64 << 20]),
    ) {
        let mut world = World::new(cache_bytes, Shape { leaf_bytes: 400, fanout: 6 });
        for step in steps {
            world.step(step);
            world.check();
        }
    }

    /// Lookups of pages, data and holes agree with the map, whatever is in memory.
    #[test]
    fn finds_pages(
        steps in prop::collection::vec(step(), 1..15),
        questions in prop::collection::vec((0u64..4, 0u64..320, 0usize..90), 20),
    ) {
        let mut world = World::new(30_000, Shape { leaf_bytes: 300, fanout: 5 });
        steps.into_iter().for_each(|step| world.step(step));
        for (object, first, count) in questions {
            let object = object * 1000;
            let at = |page: u64| match world.model.get(&Key::page(object, page)) {
                Some(Value::Page(ptr)) => Some(*ptr),
                _ => None,
            };
            let present = |page: &u64| world.model.contains_key(&Key::page(object, *page));
            let mut found = vec![None; count];
            world.tree.pages(object, first, &mut found).unwrap();
            let expected: Vec<_> = (first..first + count as u64).map(at).collect();
            prop_assert_eq!(&found, &expected);
            if world.tree.try_pages(object, first, &mut found) {
                prop_assert_eq!(&found, &expected);
            }
            let data = world.model.range(Key::page(object, first)..=Key::page(object, u64::MAX)).next();
            prop_assert_eq!(world.tree.next_data(object, first).unwrap(), data.map(|(key, _)| key.offset));
            let hole = (first..).find(|page| !present(page));
            prop_assert_eq!(world.tree.next_hole(object, first).unwrap(), hole);
        }
    }
}
