//! Nodes of trees, and the values in them.

use std::sync::{Arc, Mutex};

use pagefold_engine::dataset::{Change, encode_ptrs};
use pagefold_engine::faults::{FaultCounts, FaultReport, Struck, Subject};
use pagefold_engine::history::{SpaceHistory, SpaceSample};
use pagefold_engine::record::Compression;
use pagefold_engine::tree::{Edit, NodeCache, NodeStore, Tree, Value};
use pagefold_engine::{Key, Ptr};

use super::tables::{assert_example, codes, example};
use super::{MIB, fresh_pool, ptr};

/// Nodes as a checkpoint wrote them, by address.
#[derive(Default)]
struct Store(Mutex<Vec<(Ptr, Vec<u8>)>>);

impl NodeStore for Store {
    fn load(&self, ptr: Ptr) -> pagefold_engine::Result<Vec<u8>> {
        let found = self.0.lock().unwrap().iter().find(|(at, _)| *at == ptr).map(|(_, bytes)| bytes.clone());
        Ok(found.unwrap())
    }
}

pub(super) fn tree(root: Option<Ptr>, nodes: Vec<(Ptr, Vec<u8>)>) -> Tree {
    let store: Arc<dyn NodeStore> = Arc::new(Store(Mutex::new(nodes)));
    Tree::new(root, store, Arc::new(NodeCache::new(MIB).unwrap()))
}

/// The nodes that a checkpoint of a tree with these entries writes, at slots from 10 on of segment 4.
fn nodes(entries: &[(Key, Value)]) -> Vec<(Ptr, Vec<u8>)> {
    let tree = tree(None, Vec::new());
    let mut edits = entries.iter().map(|(key, value)| Edit::Put(*key, value.clone()));
    let _ = tree.apply(&mut edits, &mut |_, _| {}, &mut Vec::new()).unwrap();
    let mut written = Vec::new();
    let mut immutable = tree.make_immutable();
    immutable
        .persist(&mut |nodes| {
            let first = written.len() as u32;
            let ptrs: Vec<Ptr> = (first..).zip(&nodes).map(|(at, _)| ptr(4, 10 + at, 900 - at)).collect();
            written.extend(ptrs.iter().copied().zip(nodes));
            Ok(ptrs)
        })
        .unwrap();
    written
}

#[test]
fn tree_nodes() {
    let entries = [
        (Key::new(5, 16, 0), Value::Bytes((*b"abc").into())),
        (Key::new(5, Key::PAGE, 7), Value::Page(ptr(9, 300, 1300))),
        (Key::new(5, Key::PAGE, 8), Value::Page(ptr(9, 301, 1200))),
    ];
    assert_example("leaf", &nodes(&entries)[0].1);
    let root = ptr(4, 10, 900);
    let stored = tree(Some(root), vec![(root, example("leaf"))]);
    let found = stored.range(&Key::new(0, 0, 0), &Key::new(9, 0, 0), 10).unwrap();
    assert_eq!(found, entries);

    let long = |byte: u8| Value::Bytes(vec![byte; 60_000].into());
    let entries = [(Key::new(5, 16, 0), long(1)), (Key::new(6, 17, 300), long(2))];
    let mut written = nodes(&entries);
    assert_eq!(written.len(), 3);
    let (root, branch) = written.pop().unwrap();
    assert_example("branch", &branch);
    written.push((root, example("branch")));
    let stored = tree(Some(root), written);
    assert_eq!(stored.range(&Key::new(0, 0, 0), &Key::new(9, 0, 0), 10).unwrap(), entries);
}

#[test]
fn values_of_the_engine() {
    let kinds = codes("engine-kinds", "kind", "name");
    let known = [
        (Key::PAGE, "page"),
        (Key::USAGE, "usage"),
        (Key::BASE, "base"),
        (Key::SHARED, "shared"),
        (Key::MODEL, "model"),
        (Key::DEAD, "dead"),
        (Key::FAULTS, "errors"),
        (Key::SPACE, "space"),
    ];
    assert_eq!(kinds, known.map(|(kind, name)| (u64::from(kind), name)));
    assert_eq!(Key::ENGINE_KINDS, 0xe0);

    let (_device, pool) = fresh_pool();
    pool.set_compression(Compression::Off);
    let dataset = pool.dataset();
    let data = vec![7; 16384];
    dataset.apply(&[Change::Write { object: 5, record_size: 8192, offset: 0, data: &data }]).unwrap();
    pool.sync().unwrap();
    let share = Change::Share { from_object: 5, from_page: 0, to_object: 6, to_page: 0, count: 1 };
    dataset.apply(&[share]).unwrap();
    pool.checkpoint(false).unwrap();
    assert_example("usage", &dataset.get(&Key::new(5, Key::USAGE, 0)).unwrap().unwrap());
    let (from, to) = (Key::new(0, Key::SHARED, 0), Key::new(0, Key::SHARED + 1, 0));
    let shared = pool.live().tree.range(&from, &to, 10).unwrap();
    assert_eq!(shared.len(), 1);
    let Value::Bytes(count) = &shared[0].1 else { panic!("a count is no page") };
    assert_example("shared", count);
    let mut block = Vec::new();
    encode_ptrs(&[ptr(9, 300, 1000), ptr(9, 299, 1300)], &mut block);
    assert_example("dead", &block);

    assert_eq!(
        codes("struck-kinds", "code", "what").iter().map(|(code, _)| *code).collect::<Vec<_>>(),
        [1, 2, 3, 4, 5]
    );
    let counts = |checksums| FaultCounts { checksums, ..FaultCounts::default() };
    let subject = Subject::Object { dataset: 1, object: 5 };
    let struck = Struck { subject, counts: counts(2), place: Some((0, 4_198_400)), offset: 16384 };
    let report = FaultReport { cleared: 0, devices: vec![counts(2)], struck: vec![struck], unlisted: 0 };
    assert_example("errors", &report.encode());
    assert_eq!(FaultReport::decode(&example("errors")).unwrap(), report);

    let mut history = SpaceHistory::default();
    for (time, used_bytes, logical_bytes) in
        [(1_795_284_176, 1 << 20, 2 << 20), (1_795_287_776, 1_056_768, 2_129_920)]
    {
        assert!(history.observe(SpaceSample { time, used_bytes, logical_bytes }));
    }
    assert_example("space", &history.encode());
    assert_eq!(SpaceHistory::decode(&example("space")).unwrap(), history);
}
