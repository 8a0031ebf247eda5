use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::*;
use crate::types::Addr;
use crate::{Error, Result};

mod bench;
mod codec;
mod diff;
mod faults;
mod life;
mod model;

/// A store of records in memory, which knows what was freed.
#[derive(Default)]
pub(super) struct MemStore {
    records: Mutex<BTreeMap<Addr, Vec<u8>>>,
    next: Mutex<u64>,
    /// Addresses that cannot be read.
    bad: Mutex<BTreeSet<Addr>>,
    pub(super) loads: AtomicUsize,
}

impl MemStore {
    pub(super) fn write(&self, nodes: Vec<Vec<u8>>) -> Result<Vec<Ptr>> {
        let mut records = self.records.lock();
        let mut next = self.next.lock();
        let put = |bytes: Vec<u8>| {
            // There are a few records per segment, so that addresses vary as they do in a pool.
            *next += 1;
            let addr = Addr::new(1 + *next / 50, (*next % 50) as u32);
            let ptr = Ptr { addr, len_bytes: bytes.len() as u32 };
            records.insert(addr, bytes);
            ptr
        };
        Ok(nodes.into_iter().map(put).collect())
    }

    fn free(&self, ptrs: &[Ptr]) {
        let mut records = self.records.lock();
        for ptr in ptrs {
            assert!(records.remove(&ptr.addr).is_some(), "{ptr:?} freed twice or never written");
        }
    }

    fn live(&self) -> BTreeSet<Addr> {
        self.records.lock().keys().copied().collect()
    }
}

impl NodeStore for MemStore {
    fn load(&self, ptr: Ptr) -> Result<Vec<u8>> {
        self.loads.fetch_add(1, Ordering::Relaxed);
        if self.bad.lock().contains(&ptr.addr) {
            return Err(Error::corrupt(format!("record {}", ptr.addr), "made bad by a test"));
        }
        let bytes = self.records.lock().get(&ptr.addr).cloned();
        bytes.ok_or_else(|| Error::corrupt(format!("record {}", ptr.addr), "absent"))
    }
}

pub(super) fn tree_with(store: &Arc<MemStore>, root: Option<Ptr>, cache_bytes: u64, shape: Shape) -> Tree {
    let cache = Arc::new(NodeCache::new(cache_bytes).unwrap());
    let store: Arc<dyn NodeStore> = Arc::<MemStore>::clone(store);
    Tree { shape, ..Tree::new(root, store, cache) }
}

pub(super) fn page(n: u64) -> Value {
    Value::Page(Ptr {
        addr: Addr::new(1 + n / 700, (n % 700) as u32),
        len_bytes: 2000 + (n * 7 % 900) as u32,
    })
}

/// Applies edits and forgets what was replaced. Returns the nodes that were freed.
pub(super) fn apply(tree: &Tree, edits: Vec<Edit>) -> Vec<Ptr> {
    let mut freed = Vec::new();
    let applied = tree.apply(&mut edits.into_iter(), &mut |_, _| {}, &mut freed).unwrap();
    assert!(applied.unreadable.is_empty());
    freed
}

pub(super) fn checkpoint(tree: &Tree, store: &MemStore) -> Option<Ptr> {
    let mut immutable = tree.make_immutable();
    let root = immutable.persist(&mut |nodes| store.write(nodes)).unwrap();
    retire(tree, immutable, &mut Vec::new());
    root
}

/// Ends a checkpoint of a tree without other versions.
pub(super) fn retire(tree: &Tree, immutable: ImmutableTree, freed: &mut Vec<Ptr>) {
    let kept = tree.written();
    freed.extend(
        immutable.written().into_iter().filter(|(node, _)| !kept.contains_key(node)).map(|(_, ptr)| ptr),
    );
    drop(immutable);
    tree.settle(&mut Settling::default());
}
