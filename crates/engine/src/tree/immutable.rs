//! Makes versions of a tree: those that checkpoints write, those that snapshots keep, and those that grow from them.
//!
//! Versions share nodes, changed ones too. So an edit does not note which nodes a version has unreferenced. These are
//! found by comparison, at an instant at which no version changes: another version has them, and this one does not
//! ([`Tree::written`], [`ImmutableTree::written`]).

use std::collections::HashMap;
use std::sync::Arc;

use super::node::{Body, Child, Node};
use super::unstored::NodeBytes;
use super::{NodeCache, Tree, codec};
use crate::limits::{NODE_WRITE_BYTES, TREE_LEVELS_MAX};
use crate::types::Ptr;
use crate::{Error, Result};

/// Nodes in memory that have been written, with their pointers. The key tells one node from another as long as a
/// version refers to it.
pub(crate) type WrittenNodes = HashMap<usize, Ptr>;

/// A tree as it was at one instant, on its way to storage. It is made by [`Tree::make_immutable`].
pub struct ImmutableTree {
    root: Option<Child>,
    cache: Arc<NodeCache>,
}

/// The nodes that [`Tree::settle`] has made, and those that it has unreferenced. It should be dropped when nobody waits
/// any more: that frees all nodes that were written, one by one.
#[derive(Default)]
pub(crate) struct Settling {
    /// For each node that several versions share: the old node (so that its place in memory is not used anew
    /// meanwhile), and the node that replaces it, if anything below it had been written.
    made: HashMap<usize, (Arc<Node>, Option<Child>)>,
    unreferenced: Vec<Child>,
}

impl Tree {
    /// Returns the tree as of now, in constant time, to be written.
    pub fn make_immutable(&self) -> ImmutableTree {
        let _writer = self.writer.lock();
        let root = self.live.read().root.clone();
        let bytes = self.dirty.set(NodeBytes::default());
        self.immutable.set(bytes);
        ImmutableTree { root, cache: Arc::clone(&self.cache) }
    }

    /// Returns another tree with the same content, in constant time. The two share nodes until one of them changes
    /// them.
    #[must_use]
    pub(crate) fn fork(&self) -> Self {
        let _writer = self.writer.lock();
        let root = self.live.read().root.clone();
        self.sibling(root)
    }

    /// Takes the content of `other`, in constant time, and returns what it had as a tree of its own.
    #[must_use]
    pub(crate) fn replace(&self, other: &Self) -> Self {
        let root = other.fork().live.into_inner().root;
        let _writer = self.writer.lock();
        let before = std::mem::replace(&mut self.live.write().root, root);
        let tree = self.sibling(before);
        tree.dirty.set(self.dirty.set(NodeBytes::default()));
        tree
    }

    fn sibling(&self, root: Option<Child>) -> Self {
        Self::with_root(root, Arc::clone(&self.store), Arc::clone(&self.cache), self.shape)
    }

    /// Returns `Some` with the pointer of the tree's root (`None` in it for an empty tree), or `None` if nodes of the
    /// tree are not stored or not settled.
    pub(crate) fn stored_root(&self) -> Option<Option<Ptr>> {
        match &self.live.read().root {
            None => Some(None),
            Some(Child::Clean { len_bytes, addr }) => Some(Some(Ptr { addr: *addr, len_bytes: *len_bytes })),
            Some(Child::Dirty(_)) => None,
        }
    }

    /// Returns the nodes in memory that have been written and not been settled.
    pub(crate) fn written(&self) -> WrittenNodes {
        let mut found = WrittenNodes::new();
        if let Some(root) = &self.live.read().root {
            collect_written(root, &mut found);
        }
        found
    }

    /// Makes references to nodes that have been written clean ones. This takes as many steps as there are nodes in
    /// memory that have not been written. `settling` is the same for all versions that may share nodes; none of them
    /// may change between the first call and the last.
    pub(crate) fn settle(&self, settling: &mut Settling) {
        let _writer = self.writer.lock();
        if let Some(root) = &mut self.live.write().root {
            settle(root, settling);
        }
        self.immutable.set(NodeBytes::default());
    }
}

/// Returns the address of a node, which serves as its name.
fn name(node: &Arc<Node>) -> usize {
    Arc::as_ptr(node) as usize
}

fn collect_written(child: &Child, found: &mut WrittenNodes) {
    let Child::Dirty(node) = child else { return };
    if let Some(ptr) = node.written()
        && found.insert(name(node), ptr).is_some()
    {
        return;
    }
    if let Body::Branch(branch) = node.body() {
        branch.children().iter().for_each(|child| collect_written(child, found));
    }
}

/// Settles `child` and what is below it. Returns true if anything has changed.
fn settle(child: &mut Child, settling: &mut Settling) -> bool {
    let Child::Dirty(node) = child else { return false };
    if let Some(ptr) = node.written() {
        settling.unreferenced.push(std::mem::replace(child, Child::clean(ptr)));
        return true;
    }
    if let Some(node) = Arc::get_mut(node) {
        return settle_children(node, settling);
    }
    // Several versions refer to this node, so all of them get the same new one.
    if !matches!(node.body(), Body::Branch(_)) {
        return false;
    }
    let (old, key) = (Arc::clone(node), name(node));
    let made = match settling.made.get(&key) {
        Some((_, made)) => made.clone(),
        None => {
            let mut copy = Node::clone(node);
            let made = settle_children(&mut copy, settling).then(|| Child::dirty(copy));
            settling.made.insert(key, (old, made.clone()));
            made
        }
    };
    if let Some(made) = made {
        *child = made;
        return true;
    }
    false
}

fn settle_children(node: &mut Node, settling: &mut Settling) -> bool {
    let Body::Branch(branch) = node.body_mut() else { return false };
    // This has to reach all children: `any` would stop at the first that changes.
    branch.children_mut().iter_mut().fold(false, |changed, child| settle(child, settling) | changed)
}

/// Collects all nodes from `child` down that are to be written, by level.
fn collect<'a>(child: &'a Child, levels: &mut [Vec<&'a Node>; TREE_LEVELS_MAX as usize]) {
    if let Child::Dirty(node) = child
        && node.written().is_none()
    {
        levels[usize::from(node.level())].push(node);
        if let Body::Branch(branch) = node.body() {
            branch.children().iter().for_each(|child| collect(child, levels));
        }
    }
}

impl ImmutableTree {
    /// Writes all nodes that are not stored yet, leaves first, and returns the new root; `None` for an empty tree.
    /// `write` stores nodes of one level, of about [`NODE_WRITE_BYTES`] in all, and returns their pointers in the same
    /// order. An unchanged tree writes nothing.
    ///
    /// After an error of `write` the call may be repeated. It goes on where it stopped.
    ///
    /// # Errors
    /// Those of `write`; [`Error::Invalid`] if it returns another number of pointers than it got nodes.
    pub fn persist(
        &mut self,
        write: &mut dyn FnMut(Vec<Vec<u8>>) -> Result<Vec<Ptr>>,
    ) -> Result<Option<Ptr>> {
        let mut levels: [Vec<&Node>; TREE_LEVELS_MAX as usize] = Default::default();
        if let Some(root) = &self.root {
            collect(root, &mut levels);
        }
        for level in &levels {
            let mut written = 0;
            let mut records = Vec::new();
            let mut bytes = 0;
            for (i, node) in level.iter().enumerate() {
                let record = codec::encode(node)?;
                debug_assert!(
                    record.len() as u64 <= node.bytes().stored,
                    "a node is longer than it was counted"
                );
                bytes += record.len();
                records.push(record);
                if bytes >= NODE_WRITE_BYTES || i + 1 == level.len() {
                    self.store(&level[written..=i], std::mem::take(&mut records), write)?;
                    written = i + 1;
                    bytes = 0;
                }
            }
        }
        self.root()
    }

    fn store(
        &self,
        nodes: &[&Node],
        records: Vec<Vec<u8>>,
        write: &mut dyn FnMut(Vec<Vec<u8>>) -> Result<Vec<Ptr>>,
    ) -> Result<()> {
        let ptrs = write(records)?;
        if ptrs.len() != nodes.len() {
            let (got, want) = (ptrs.len(), nodes.len());
            return Err(Error::Invalid(format!(
                "{want} tree nodes were written and {got} addresses returned: a bug"
            )));
        }
        for (node, ptr) in nodes.iter().zip(ptrs) {
            node.set_written(ptr);
            // The cache gets a copy without spare memory, since the immutable node still belongs to two trees.
            if !node.is_superseded()
                && let Some(settled) = node.settled()
            {
                self.cache.insert(ptr.addr, Arc::new(settled));
            }
        }
        Ok(())
    }

    /// Returns the pointer of the root; `None` for an empty tree.
    ///
    /// # Errors
    /// [`Error::Invalid`] as long as [`ImmutableTree::persist`] has not succeeded.
    pub(crate) fn root(&self) -> Result<Option<Ptr>> {
        let Some(root) = &self.root else { return Ok(None) };
        let unwritten = || Error::Invalid("the checkpoint of a tree has not been written".into());
        root.stored_ptr().map(Some).ok_or_else(unwritten)
    }

    /// Returns its nodes that were in memory when it was taken and have been written.
    pub(crate) fn written(&self) -> WrittenNodes {
        let mut found = WrittenNodes::new();
        if let Some(root) = &self.root {
            collect_written(root, &mut found);
        }
        found
    }
}
