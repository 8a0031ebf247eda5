//! Inodes in memory: a sharded cache, and changes of several inodes at once.
//!
//! An inode has two locks. A change holds `changing` from its first look to the end of `apply`, which may have to wait
//! for room. It publishes the attributes afterwards, under `cached`, which is never held over a call of the dataset: a
//! reader never waits for a change, and sees the state of some instant before or after the change.
//!
//! Lock order: the rename lock, `changing` of inodes by ascending number, a shard, the id counter; `cached` is a leaf.

mod txn;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use pagefold_engine::dataset::Dataset;
use pagefold_engine::memory::{Gauge, allocated_bytes};
use parking_lot::{Mutex, MutexGuard, RwLock};

use crate::codec::Inode;
use crate::error::{FsError, Result};
use crate::limits::{INODE_BYTES, SHARD_STEP, SHARDS};
use crate::mirror::Filling;

pub(crate) use txn::{Locked, Txn};

/// An inode's attributes as cached.
#[derive(Debug)]
pub(crate) struct Cached {
    pub(crate) inode: Inode,
    /// True if the access time is newer than the one in the dataset.
    pub(crate) atime_dirty: bool,
}

/// An inode in memory.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) ino: u64,
    /// References of the kernel, one per `Entry` that it was given, if references are counted.
    lookups: AtomicU64,
    /// Number of opens that are not yet released.
    opens: AtomicU64,
    /// True if the node was asked for since its shard was last swept.
    used: AtomicBool,
    /// Lock held by the call that changes the inode or entries of the directory. It guards the second object of a file
    /// that is being rewritten.
    pub(crate) changing: Mutex<Option<Box<Filling>>>,
    pub(crate) cached: RwLock<Cached>,
    /// Name under which the file was last seen, while its recordsize is undecided.
    pub(crate) name_hint: Mutex<Option<Box<str>>>,
}

/// Bytes that an inode takes in memory: itself with its counts, its place in the map, which is half empty at worst, and
/// a name.
pub(crate) const NODE_BYTES: u64 =
    allocated_bytes(size_of::<Node>() as u64 + 16) + 2 * (size_of::<(u64, Arc<Node>)>() as u64 + 1) + 16;

impl Node {
    fn new(ino: u64, inode: Inode) -> Self {
        Self {
            ino,
            lookups: AtomicU64::new(0),
            opens: AtomicU64::new(0),
            used: AtomicBool::new(true),
            changing: Mutex::new(None),
            cached: RwLock::new(Cached { inode, atime_dirty: false }),
            name_hint: Mutex::new(None),
        }
    }

    /// Returns a copy of the attributes.
    pub(crate) fn snapshot(&self) -> Inode {
        self.cached.read().inode.clone()
    }

    /// Returns true if `object` is still the file's data object.
    pub(crate) fn has_object(&self, object: u64) -> bool {
        self.cached.read().inode.object == object
    }

    pub(crate) fn add_open(&self) {
        self.opens.fetch_add(1, Ordering::Relaxed);
    }

    /// Takes one open away; returns true if neither opens nor references are left.
    pub(crate) fn drop_open(&self) -> bool {
        drop_saturating(&self.opens, 1) == 0 && self.lookups.load(Ordering::Acquire) == 0
    }

    /// Takes `count` references away; returns true if neither opens nor references are left.
    pub(crate) fn drop_lookups(&self, count: u64) -> bool {
        drop_saturating(&self.lookups, count) == 0 && self.opens.load(Ordering::Acquire) == 0
    }

    fn is_idle(&self) -> bool {
        self.lookups.load(Ordering::Acquire) == 0 && self.opens.load(Ordering::Acquire) == 0
    }

    /// Marks the node as used. Writes only if the mark is not set yet, because all cores come by here.
    fn mark_used(&self) {
        if !self.used.load(Ordering::Relaxed) {
            self.used.store(true, Ordering::Relaxed);
        }
    }
}

/// Subtracts without going below zero (the kernel's counts are not trusted); returns what is left.
fn drop_saturating(counter: &AtomicU64, count: u64) -> u64 {
    let less = |n: u64| Some(n.saturating_sub(count));
    let before = counter.fetch_update(Ordering::AcqRel, Ordering::Acquire, less).unwrap_or_else(|n| n);
    before.saturating_sub(count)
}

#[derive(Default)]
struct Shard {
    nodes: HashMap<u64, Arc<Node>>,
    /// Number of nodes from which on it is worth looking for some to drop.
    sweep_at: usize,
}

/// Outcomes of retiring an inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Retired {
    /// It is not cached, and never will be again.
    Gone,
    /// Referenced or open: `forget` or `release` will tell when that ends.
    InUse,
    /// A call is working with it; nothing will tell when that ends.
    Held,
    /// The kernel may refer to it, and has to be asked.
    Unknown,
}

/// The cache of inodes. It holds every inode that is open, whose access time waits to be written, or that a call works
/// with; if references are counted, every inode with references; and of the others those that were used lately, as many
/// as the gauge allows.
pub(crate) struct Nodes {
    shards: Vec<Mutex<Shard>>,
    gauge: Arc<Gauge>,
    counted: AtomicBool,
}

impl Nodes {
    pub(crate) fn new(counted: bool, gauge: Option<Arc<Gauge>>) -> Self {
        Self {
            shards: std::iter::repeat_with(Mutex::default).take(SHARDS).collect(),
            gauge: gauge.unwrap_or_else(|| Arc::new(Gauge::new(INODE_BYTES))),
            counted: counted.into(),
        }
    }

    /// Returns true if the kernel's references are counted.
    pub(crate) fn are_counted(&self) -> bool {
        self.counted.load(Ordering::Relaxed)
    }

    /// Stops counting the kernel's references.
    pub(crate) fn stop_counting(&self) {
        self.counted.store(false, Ordering::Relaxed);
    }

    fn shard(&self, ino: u64) -> MutexGuard<'_, Shard> {
        self.shards[(ino % SHARDS as u64) as usize].lock()
    }

    /// Returns the node of `ino`, and reads it if it is not cached. The shard stays locked meanwhile, so that there is
    /// never a second copy. Errors: `Stale` if there is no such inode; if references are counted, also if it is
    /// unlinked and not cached.
    pub(crate) fn get(&self, dataset: &dyn Dataset, ino: u64) -> Result<Arc<Node>> {
        self.load(&mut self.shard(ino), dataset, ino)
    }

    /// As [`Nodes::get`], but returns `None` for an inode that is not cached and is unlinked or does not exist.
    pub(crate) fn get_named(&self, dataset: &dyn Dataset, ino: u64) -> Result<Option<Arc<Node>>> {
        let mut shard = self.shard(ino);
        if !shard.nodes.contains_key(&ino) {
            match dataset.get(&Inode::key(ino))? {
                Some(bytes) if Inode::decode(ino, &bytes)?.nlink > 0 => {}
                Some(_) | None => return Ok(None),
            }
        }
        self.load(&mut shard, dataset, ino).map(Some)
    }

    /// As [`Nodes::get`], with one reference more.
    pub(crate) fn grab(&self, dataset: &dyn Dataset, ino: u64) -> Result<Arc<Node>> {
        let mut shard = self.shard(ino);
        let node = self.load(&mut shard, dataset, ino)?;
        self.add_lookup(&node);
        Ok(node)
    }

    fn add_lookup(&self, node: &Node) {
        if self.are_counted() {
            node.lookups.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Returns the node of `ino` if it is cached.
    pub(crate) fn peek(&self, ino: u64) -> Option<Arc<Node>> {
        self.shard(ino).nodes.get(&ino).cloned()
    }

    /// Returns the number of cached inodes.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().nodes.len()).sum()
    }

    /// Adds an inode that was just made, with one reference and `opens` opens.
    pub(crate) fn insert(&self, ino: u64, inode: Inode, opens: u64) -> Arc<Node> {
        let mut shard = self.shard(ino);
        let node = match shard.nodes.get(&ino) {
            Some(node) => Arc::clone(node),
            None => self.add(&mut shard, Node::new(ino, inode)),
        };
        self.add_lookup(&node);
        node.opens.fetch_add(opens, Ordering::AcqRel);
        node
    }

    /// Drops an unlinked inode from the cache for good, unless somebody still uses it. `asked`: the kernel was asked,
    /// and does not refer to it.
    pub(crate) fn retire(&self, ino: u64, asked: bool) -> Retired {
        let mut shard = self.shard(ino);
        match shard.nodes.get(&ino) {
            Some(node) if !node.is_idle() => return Retired::InUse,
            Some(node) if Arc::strong_count(node) > 1 => return Retired::Held,
            _ if !asked && !self.are_counted() => return Retired::Unknown,
            Some(_) => {}
            None => return Retired::Gone,
        }
        shard.nodes.remove(&ino);
        self.gauge.sub(NODE_BYTES);
        Retired::Gone
    }

    fn load(&self, shard: &mut Shard, dataset: &dyn Dataset, ino: u64) -> Result<Arc<Node>> {
        if let Some(node) = shard.nodes.get(&ino) {
            node.mark_used();
            return Ok(Arc::clone(node));
        }
        if ino == 0 {
            return Err(FsError::Stale);
        }
        let bytes = dataset.get(&Inode::key(ino))?.ok_or(FsError::Stale)?;
        let inode = Inode::decode(ino, &bytes)?;
        // Only a caller that knew an unlinked inode before asks for it. If references are counted, such an inode would
        // be in the cache.
        if inode.nlink == 0 && self.are_counted() {
            return Err(FsError::Stale);
        }
        Ok(self.add(shard, Node::new(ino, inode)))
    }

    fn add(&self, shard: &mut Shard, node: Node) -> Arc<Node> {
        let node = Arc::new(node);
        shard.nodes.insert(node.ino, Arc::clone(&node));
        self.gauge.add(NODE_BYTES);
        if self.gauge.is_over() && shard.nodes.len() >= shard.sweep_at {
            let keep = shard.nodes.len() - shard.nodes.len() / 4;
            let dropped = shard.sweep(self.are_counted(), keep);
            self.gauge.sub(dropped as u64 * NODE_BYTES);
        }
        node
    }

    /// Drops nodes that were not used since the last sweep, if inodes take at least three quarters of what they may.
    pub(crate) fn trim(&self) {
        if self.gauge.bytes() < self.gauge.bound_bytes() / 4 * 3 {
            return;
        }
        for shard in &self.shards {
            let mut shard = shard.lock();
            let all = shard.nodes.len();
            let dropped = shard.sweep(self.are_counted(), all);
            self.gauge.sub(dropped as u64 * NODE_BYTES);
        }
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        let left: usize = self.shards.iter_mut().map(|shard| shard.get_mut().nodes.len()).sum();
        self.gauge.sub(left as u64 * NODE_BYTES);
    }
}

impl Shard {
    /// Drops nodes that nobody needs: those that were not used since the last sweep, and others until at most `keep`
    /// nodes are left. Returns the number of nodes dropped.
    fn sweep(&mut self, counted: bool, keep: usize) -> usize {
        let droppable = |node: &Arc<Node>| {
            node.is_idle()
                && Arc::strong_count(node) == 1
                // If references are counted, an unlinked node must stay: it could not be loaded again. Reaping retires
                // it.
                && node.cached.try_read().is_some_and(|c| !c.atime_dirty && (!counted || c.inode.nlink > 0))
        };
        let before = self.nodes.len();
        self.nodes.retain(|_, node| node.used.swap(false, Ordering::Relaxed) || !droppable(node));
        let mut surplus = self.nodes.len().saturating_sub(keep);
        if surplus > 0 {
            self.nodes.retain(|_, node| {
                let stays = surplus == 0 || !droppable(node);
                surplus -= usize::from(!stays);
                stays
            });
        }
        if self.nodes.capacity() > 4 * self.nodes.len() {
            self.nodes.shrink_to(2 * self.nodes.len());
        }
        self.sweep_at = self.nodes.len() + self.nodes.len() / 4 + SHARD_STEP;
        before - self.nodes.len()
    }
}
