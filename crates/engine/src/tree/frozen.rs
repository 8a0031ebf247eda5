//! Checkpoints of a tree.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::branch::Child;
use super::node::{Body, Node};
use super::{NodeCache, Tree, codec};
use crate::limits::{NODE_WRITE_BYTES, TREE_LEVELS_MAX};
use crate::types::Ptr;
use crate::{Error, Result};

/// A tree as it was at one instant, on its way to storage. Made by [`Tree::freeze`], ended by
/// [`Tree::retire`].
///
/// Where it is dropped instead, its tree stays readable and editable but cannot be frozen again.
pub struct Frozen {
    root: Option<Child>,
    cache: Arc<NodeCache>,
    identity: Arc<()>,
    footprint_bytes: u64,
}

impl Tree {
    /// The tree as of now, in constant time.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the previous one has not been retired.
    pub fn freeze(&self) -> Result<Frozen> {
        let mut writer = self.writer.lock();
        if writer.outstanding.is_some() {
            return Err(Error::Invalid("the tree's previous checkpoint is not finished".into()));
        }
        let identity = Arc::new(());
        writer.outstanding = Some(Arc::clone(&identity));
        let root = self.live.read().root.clone();
        let footprint_bytes = self.dirty_bytes.swap(0, Ordering::Relaxed);
        self.frozen_bytes.store(footprint_bytes, Ordering::Relaxed);
        Ok(Frozen { root, cache: Arc::clone(&self.cache), identity, footprint_bytes })
    }

    /// Ends a checkpoint, after it has become durable: its nodes become clean. `freed` gets those that the
    /// live tree has let go of in the meantime.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a `frozen` of another tree, or one that has not been persisted; nothing is
    /// changed then.
    pub fn retire(&self, frozen: Frozen, freed: &mut Vec<Ptr>) -> Result<()> {
        let mut writer = self.writer.lock();
        if !writer.outstanding.as_ref().is_some_and(|identity| Arc::ptr_eq(identity, &frozen.identity)) {
            return Err(Error::Invalid("a checkpoint was to be finished that is not this tree's".into()));
        }
        frozen.root()?;
        if let Some(root) = &mut self.live.write().root {
            settle(root);
        }
        let Frozen { root, .. } = frozen;
        if let Some(root) = root {
            free_superseded(&root, freed);
        }
        writer.outstanding = None;
        self.frozen_bytes.store(0, Ordering::Relaxed);
        Ok(())
    }
}

/// Makes references to frozen nodes, all of which have been written, clean ones.
fn settle(child: &mut Child) {
    let Child::Dirty(node) = child else { return };
    if let Some(ptr) = node.written() {
        *child = Child::clean(ptr);
    } else if let Some(node) = Arc::get_mut(node)
        && let Body::Branch(branch) = node.body_mut()
    {
        branch.children_mut().iter_mut().for_each(settle);
    }
}

/// Reports the nodes that the live tree has let go of. What is below a node that it still refers to it refers
/// to as well.
fn free_superseded(child: &Child, freed: &mut Vec<Ptr>) {
    if let Child::Dirty(node) = child
        && node.is_superseded()
    {
        freed.extend(node.written());
        if let Body::Branch(branch) = node.body() {
            branch.children().iter().for_each(|child| free_superseded(child, freed));
        }
    }
}

/// All nodes below `child` that are to be written, by level.
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

impl Frozen {
    /// Writes all nodes that are not stored yet, leaves first, and returns the new root; `None` for an empty
    /// tree. `write` stores nodes of one level, of about [`NODE_WRITE_BYTES`] in all, and returns where, in
    /// the same order. An unchanged tree writes nothing.
    ///
    /// After an error of `write` the call may be repeated; it goes on where it stopped.
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
            // a copy of its own, without spare memory: the frozen node still belongs to two trees
            if !node.is_superseded()
                && let Some(settled) = node.settled()
            {
                self.cache.insert(ptr.addr, Arc::new(settled));
            }
        }
        Ok(())
    }

    /// Where the root is stored; `None` for an empty tree.
    ///
    /// # Errors
    /// [`Error::Invalid`] as long as [`Frozen::persist`] has not succeeded.
    pub fn root(&self) -> Result<Option<Ptr>> {
        let Some(root) = &self.root else { return Ok(None) };
        let unwritten = || Error::Invalid("the checkpoint of a tree has not been written".into());
        root.stored_ptr().map(Some).ok_or_else(unwritten)
    }

    #[cfg(test)]
    pub(super) fn root_child(&self) -> Option<&Child> {
        self.root.as_ref()
    }

    /// Memory that the frozen nodes took when they were frozen, in bytes.
    pub fn footprint_bytes(&self) -> u64 {
        self.footprint_bytes
    }
}
