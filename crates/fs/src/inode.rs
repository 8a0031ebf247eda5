//! Inodes in memory: a sharded cache, and changes of several inodes at once.
//!
//! An inode has two locks. Who changes it holds `changing` from the first look to the end of `apply`, which may have to
//! wait for room. Its attributes are published afterwards, under a lock that is never held over a call of the
//! dataset: who only reads never waits for a change, and sees what was true at some instant before or after it.
//!
//! Lock order: the rename lock, `changing` of inodes by ascending number, a shard, the id counter; `cached` is a leaf.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::{Mutex, MutexGuard, RwLock};

use pagefold_engine::dataset::{Change, Dataset};

use crate::codec::Inode;
use crate::error::{FsError, Result};
use crate::limits::{SHARD_KEEP, SHARDS};

/// An inode's attributes as cached.
#[derive(Debug)]
pub(crate) struct Cached {
    pub(crate) inode: Inode,
    /// The access time is newer than what the dataset holds.
    pub(crate) atime_dirty: bool,
}

/// An inode in memory.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) ino: u64,
    /// References of the kernel, one per `Entry` that it was given.
    lookups: AtomicU64,
    /// Opens not yet released.
    opens: AtomicU64,
    /// The kernel may have references from before this process, of which nobody knows how many.
    inherited: AtomicBool,
    /// Held by the one who changes the inode, or entries of the directory.
    pub(crate) changing: Mutex<()>,
    pub(crate) cached: RwLock<Cached>,
    /// A name that the file was last seen under, while its recordsize is undecided.
    pub(crate) name_hint: Mutex<Option<Box<str>>>,
}

impl Node {
    fn new(ino: u64, inode: Inode, inherited: bool) -> Self {
        Self {
            ino,
            inherited: AtomicBool::new(inherited),
            lookups: AtomicU64::new(0),
            opens: AtomicU64::new(0),
            changing: Mutex::new(()),
            cached: RwLock::new(Cached { inode, atime_dirty: false }),
            name_hint: Mutex::new(None),
        }
    }

    /// A copy of the attributes.
    pub(crate) fn snapshot(&self) -> Inode {
        self.cached.read().inode
    }

    pub(crate) fn add_open(&self) {
        self.opens.fetch_add(1, Ordering::Relaxed);
    }

    /// One open less; true if neither opens nor references are left.
    pub(crate) fn drop_open(&self) -> bool {
        drop_saturating(&self.opens, 1) == 0 && self.lookups.load(Ordering::Acquire) == 0
    }

    /// `count` references less; true if neither opens nor references are left.
    pub(crate) fn drop_lookups(&self, count: u64) -> bool {
        if count > self.lookups.load(Ordering::Acquire) {
            // More than this process has given: the kernel has let go of the inode.
            self.inherited.store(false, Ordering::Release);
        }
        drop_saturating(&self.lookups, count) == 0 && self.opens.load(Ordering::Acquire) == 0
    }

    fn is_idle(&self) -> bool {
        self.lookups.load(Ordering::Acquire) == 0 && self.opens.load(Ordering::Acquire) == 0
    }
}

/// Subtracts without going below zero (the kernel's counts are not trusted); returns what is left.
fn drop_saturating(counter: &AtomicU64, count: u64) -> u64 {
    let less = |n: u64| Some(n.saturating_sub(count));
    let before = counter.fetch_update(Ordering::AcqRel, Ordering::Acquire, less).unwrap_or_else(|n| n);
    before.saturating_sub(count)
}

struct Shard {
    nodes: HashMap<u64, Arc<Node>>,
    resumed: bool,
    /// Size at which unreferenced nodes are looked for.
    sweep_at: usize,
}

/// What became of an inode to be retired.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Retired {
    /// It is not cached, and never will be again.
    Gone,
    /// Referenced or open: `forget` or `release` will tell when that ends.
    InUse,
    /// A call is just working with it; nobody will tell.
    Held,
    /// The kernel may refer to it from before this process, and is to be asked.
    Unknown,
}

/// The cache: every inode in use, and some that are not.
pub(crate) struct Nodes {
    shards: Vec<Mutex<Shard>>,
    /// The kernel may know inodes from before this process.
    resumed: bool,
}

impl Nodes {
    pub(crate) fn new(resumed: bool) -> Self {
        let shard = || Mutex::new(Shard { nodes: HashMap::new(), sweep_at: SHARD_KEEP, resumed });
        Self { shards: std::iter::repeat_with(shard).take(SHARDS).collect(), resumed }
    }

    /// Whether the kernel may know inodes from before this process.
    pub(crate) fn are_resumed(&self) -> bool {
        self.resumed
    }

    fn shard(&self, ino: u64) -> MutexGuard<'_, Shard> {
        self.shards[(ino % SHARDS as u64) as usize].lock()
    }

    /// The node of `ino`, read where it is not cached. The shard stays locked meanwhile, so that no second
    /// copy comes into being. Errors: `Stale` where there is none or it is unlinked and in nobody's hands.
    pub(crate) fn get(&self, dataset: &dyn Dataset, ino: u64) -> Result<Arc<Node>> {
        self.shard(ino).load(dataset, ino)
    }

    /// As [`Nodes::get`], with one reference more.
    pub(crate) fn grab(&self, dataset: &dyn Dataset, ino: u64) -> Result<Arc<Node>> {
        let mut shard = self.shard(ino);
        let node = shard.load(dataset, ino)?;
        node.lookups.fetch_add(1, Ordering::AcqRel);
        Ok(node)
    }

    /// The node of `ino` if cached.
    pub(crate) fn peek(&self, ino: u64) -> Option<Arc<Node>> {
        self.shard(ino).nodes.get(&ino).cloned()
    }

    /// How many inodes are cached.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().nodes.len()).sum()
    }

    /// Takes in an inode just made, with one reference and `opens` opens.
    pub(crate) fn insert(&self, ino: u64, inode: Inode, opens: u64) -> Arc<Node> {
        let mut shard = self.shard(ino);
        let node =
            Arc::clone(shard.nodes.entry(ino).or_insert_with(|| Arc::new(Node::new(ino, inode, false))));
        node.lookups.fetch_add(1, Ordering::AcqRel);
        node.opens.fetch_add(opens, Ordering::AcqRel);
        shard.sweep();
        node
    }

    /// Drops an unlinked inode from the cache for good, unless somebody still uses it. `asked`: the kernel does not refer to it
    /// from before this process.
    pub(crate) fn retire(&self, ino: u64, asked: bool) -> Retired {
        let mut shard = self.shard(ino);
        match shard.nodes.get(&ino) {
            Some(node) if !node.is_idle() => return Retired::InUse,
            Some(node) if Arc::strong_count(node) > 1 => return Retired::Held,
            Some(node) if !asked && node.inherited.load(Ordering::Acquire) => return Retired::Unknown,
            None if !asked && self.resumed => return Retired::Unknown,
            Some(_) | None => {}
        }
        shard.nodes.remove(&ino);
        Retired::Gone
    }
}

impl Shard {
    fn load(&mut self, dataset: &dyn Dataset, ino: u64) -> Result<Arc<Node>> {
        if let Some(node) = self.nodes.get(&ino) {
            return Ok(Arc::clone(node));
        }
        if ino == 0 {
            return Err(FsError::Stale);
        }
        let bytes = dataset.get(&Inode::key(ino))?.ok_or(FsError::Stale)?;
        let inode = Inode::decode(ino, &bytes)?;
        // Who asks for one that is unlinked knows it from before this process.
        if inode.nlink == 0 && !self.resumed {
            return Err(FsError::Stale);
        }
        let node = Arc::new(Node::new(ino, inode, self.resumed));
        self.nodes.insert(ino, Arc::clone(&node));
        self.sweep();
        Ok(node)
    }

    /// Drops nodes that nobody refers to, once they may be half of all: constant cost per insertion.
    fn sweep(&mut self) {
        if self.nodes.len() < self.sweep_at {
            return;
        }
        // An unlinked node must stay: from the dataset it could not be loaded again. Reaping retires it.
        let droppable = |node: &Arc<Node>| {
            node.is_idle()
                && Arc::strong_count(node) == 1
                && node.cached.try_read().is_some_and(|c| !c.atime_dirty && c.inode.nlink > 0)
        };
        self.nodes.retain(|_, node| !droppable(node));
        self.sweep_at = self.nodes.len() * 2 + SHARD_KEEP;
    }
}

/// One inode locked for a change. Works on a copy: what failed has changed nothing.
pub(crate) struct Locked<'n> {
    node: &'n Node,
    _changing: MutexGuard<'n, ()>,
    old: Inode,
    atime_dirty: bool,
    pub(crate) new: Inode,
}

impl<'n> Locked<'n> {
    pub(crate) fn lock(node: &'n Node) -> Self {
        let changing = node.changing.lock();
        let cached = node.cached.read();
        let (old, atime_dirty) = (cached.inode, cached.atime_dirty);
        drop(cached);
        Self { node, _changing: changing, old, atime_dirty, new: old }
    }

    fn is_changed(&self) -> bool {
        self.new != self.old || self.atime_dirty
    }

    /// The change that stores the new state.
    pub(crate) fn put(&self) -> Change<'static> {
        self.new.put(self.node.ino)
    }

    /// Shows the new state, which has been applied. An access time that a reader set meanwhile stays, and stays dirty.
    pub(crate) fn publish(&self) {
        let mut cached = self.node.cached.write();
        let atime = cached.inode.atime;
        cached.inode = self.new;
        if atime != self.old.atime && self.new.atime == self.old.atime {
            cached.inode.atime = atime;
        } else {
            cached.atime_dirty = false;
        }
    }
}

/// Several inodes locked for a change that is applied as one.
pub(crate) struct Txn<'n> {
    locked: Vec<Locked<'n>>,
}

impl<'n> Txn<'n> {
    /// Locks the nodes in their order; the same one may come more than once.
    pub(crate) fn lock(nodes: &[&'n Node]) -> Self {
        let mut sorted = nodes.to_vec();
        sorted.sort_unstable_by_key(|node| node.ino);
        sorted.dedup_by_key(|node| node.ino);
        Self { locked: sorted.into_iter().map(Locked::lock).collect() }
    }

    /// The new state of a locked inode, to read and change.
    pub(crate) fn edit(&mut self, ino: u64) -> Result<&mut Inode> {
        self.locked.iter_mut().find(|l| l.node.ino == ino).map(|l| &mut l.new).ok_or(FsError::Stale)
    }

    /// The new state of a locked inode.
    pub(crate) fn get(&self, ino: u64) -> Result<&Inode> {
        self.locked.iter().find(|l| l.node.ino == ino).map(|l| &l.new).ok_or(FsError::Stale)
    }

    /// Applies `changes` and those of the inodes as one.
    pub(crate) fn commit(&mut self, dataset: &dyn Dataset, mut changes: Vec<Change<'_>>) -> Result<()> {
        for locked in self.locked.iter().filter(|l| l.is_changed()) {
            changes.push(locked.put());
        }
        if !changes.is_empty() {
            dataset.apply(&changes)?;
        }
        self.locked.iter().for_each(Locked::publish);
        Ok(())
    }
}
