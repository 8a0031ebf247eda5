//! Changes a tree.

use std::sync::Arc;

use super::delete_range::Applied;
use super::editor::{Editor, changed_bytes};
use super::interval::before;
use super::node::KeyBounds;
use super::read::{Held, Want};
use super::{Edit, Tree, Value};
use crate::limits::VALUE_BYTES_MAX;
use crate::types::{Key, Ptr};
use crate::{Error, Result};

impl Tree {
    /// Applies `edits` in order, at once for readers.
    ///
    /// `replaced` is called once with each key and value that was overwritten or deleted, in no particular order,
    /// partly after the edits have become visible. `freed` gets each stored node that the tree does not refer to any
    /// more; the last checkpoint still refers to it. A concurrent [`Tree::make_immutable`] waits until all of them have
    /// been reported.
    ///
    /// The nodes that the edits change are loaded first, without a lock that readers need, and stay in memory until the
    /// next checkpoint, so the caller has to bound the number of edits. A node that lies wholly within a deleted range
    /// is detached without being read. It is read afterwards, as are those below it, one at a time, to be reported.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a value above [`VALUE_BYTES_MAX`]; an error of `NodeStore::load` or [`Error::Corrupt`]
    /// if a node on the way to an edited key cannot be had. Nothing has been changed then. (Should a node that was
    /// loaded for the call have to be loaded again, which no known case does, and this fail, the edits before have been
    /// applied.)
    pub fn apply(
        &self,
        edits: &mut dyn Iterator<Item = Edit>,
        replaced: &mut dyn FnMut(Key, Value),
        freed: &mut Vec<Ptr>,
    ) -> Result<Applied> {
        let edits: Vec<Edit> =
            edits.filter(|edit| !matches!(edit, Edit::DeleteRange(from, to) if from >= to)).collect();
        for edit in &edits {
            if let Edit::Put(key, Value::Bytes(bytes)) = edit
                && bytes.len() > VALUE_BYTES_MAX
            {
                let len = bytes.len();
                return Err(Error::Invalid(format!(
                    "value of {key:?}: {len} bytes, at most {VALUE_BYTES_MAX} fit"
                )));
            }
        }
        let _writer = self.writer.lock();
        let held = self.prefault(&edits)?;
        let mut editor = Editor {
            cache: &self.cache,
            store: &*self.store,
            shape: self.shape,
            held,
            replaced,
            freed,
            dirty: self.dirty.get(),
            detached: Vec::new(),
        };
        let edited = {
            let mut live = self.live.write();
            let edited = editor.run(&mut live, edits.into_iter().peekable());
            if edited.is_err() {
                editor.dirty = live.root.as_ref().map(changed_bytes).unwrap_or_default();
            }
            self.dirty.set(editor.dirty);
            edited
        };
        let applied = editor.report_detached();
        edited.map(|()| applied)
    }

    /// Loads all nodes that `edits` will touch.
    fn prefault(&self, edits: &[Edit]) -> Result<Held> {
        let mut pins = NodePins { tree: self, held: Held::new(), last: None };
        for edit in edits {
            match edit {
                Edit::Put(key, _) => pins.pin(key, false)?,
                Edit::Delete(key) => pins.pin(key, true)?,
                Edit::DeleteRange(from, to) => {
                    pins.pin(from, true)?;
                    pins.pin(&before(to), true)?;
                }
            }
        }
        Ok(pins.held)
    }
}

struct NodePins<'a> {
    tree: &'a Tree,
    held: Held,
    /// Bounds of the leaf that was pinned last, and whether a neighbour was pinned with it.
    last: Option<(KeyBounds, bool)>,
}

impl NodePins<'_> {
    /// Loads the nodes on the way to `key`, and with `shrinks` also a neighbour of the leaf, if the two might be
    /// merged.
    fn pin(&mut self, key: &Key, shrinks: bool) -> Result<()> {
        if self.last.is_some_and(|(bounds, neighbour)| bounds.contains(key) && (neighbour || !shrinks)) {
            return Ok(());
        }
        loop {
            let mut met = Vec::new();
            let found = {
                let live = self.tree.live.read();
                let find = |want: &Want| {
                    let addr = want.ptr.addr;
                    let node = self.held.get(&addr).cloned().or_else(|| self.tree.cache.get(addr))?;
                    // Another place in a damaged tree may have brought it into memory: `fetch` tells that.
                    if !node.is_within(&want.bounds) {
                        return None;
                    }
                    met.push((addr, Arc::clone(&node)));
                    Some(node)
                };
                live.at_leaf(key, find, |leaf, place| {
                    (
                        place.bounds,
                        place
                            .neighbour
                            .filter(|_| shrinks && leaf.encoded_bytes() <= self.tree.shape.leaf_bytes / 2),
                    )
                })
            };
            self.held.extend(met);
            match found {
                Ok(None) => return Ok(()),
                Ok(Some((bounds, neighbour))) => {
                    // A neighbour that cannot be read is no reason to fail: there will be no merge.
                    if let Some(want) = neighbour
                        && let Ok(node) = want.fetch(&self.tree.cache, &*self.tree.store)
                    {
                        self.held.insert(want.ptr.addr, node);
                    }
                    self.last = Some((bounds, shrinks));
                    return Ok(());
                }
                Err(want) => {
                    let node = want.fetch(&self.tree.cache, &*self.tree.store)?;
                    self.held.insert(want.ptr.addr, node);
                }
            }
        }
    }
}
