//! Unreferences what the tree of a dataset no longer refers to.

use super::accounting::{RecordRole, SpaceAccounting};
use super::dead::BlockTree;
use super::live::LiveDataset;
use crate::tree::{Edit, Value};
use crate::{Key, Ptr, Result};

impl LiveDataset {
    /// Unreferences records that the tree no longer refers to: they are dead, unless a snapshot has them.
    pub(super) fn unreference(&self, role: RecordRole, ptrs: &[Ptr]) -> Result<()> {
        if ptrs.is_empty() {
            return Ok(());
        }
        // The pool's own tree has no space accounting: nobody asks what it takes.
        let Some(blocks) = &self.blocks else {
            self.free(role, ptrs);
            return Ok(());
        };
        let mut unreferenced = Vec::with_capacity(ptrs.len());
        let mut accounting = self.accounting.lock();
        if accounting.unreference(role, ptrs, &mut unreferenced) {
            accounting.dead.flush(blocks)?;
        }
        drop(accounting);
        self.free(role, &unreferenced);
        Ok(())
    }

    fn free(&self, role: RecordRole, ptrs: &[Ptr]) {
        match role {
            RecordRole::Page => self.shared.free_pages(ptrs),
            RecordRole::Node => self.shared.segments.mark_dead(ptrs),
        }
    }

    /// Returns a copy of the space accounting.
    pub(crate) fn accounting(&self) -> SpaceAccounting {
        self.accounting.lock().clone()
    }
}

impl BlockTree for LiveDataset {
    fn get(&self, key: &Key) -> Result<Option<Value>> {
        self.tree.get(key)
    }

    fn range(&self, from: &Key, to: &Key, limit: usize) -> Result<Vec<(Key, Value)>> {
        self.tree.range(from, to, limit)
    }

    fn edit(&self, edit: Edit) -> Result<()> {
        self.edit(&mut std::iter::once(edit))
    }
}
