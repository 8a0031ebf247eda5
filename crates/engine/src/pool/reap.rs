//! Frees destroyed datasets and snapshots in bounded steps.
//!
//! - C3: the log says nothing of a step. A step changes what is live and what is unreferenced in one instant, under the
//!   log's lock, and the next checkpoint stores either both or neither. Chunks that become free are not reused before
//!   it counts (S1).

use std::sync::Arc;

use super::Pool;
use super::catalogue::{Catalogue, Unreferenced};
use super::store::Nodes;
use crate::dataset::{Bucket, LiveDataset, SpaceAccounting, Sublist};
use crate::tree::reap;
use crate::{Error, Key, Ptr, Result};

/// Approximate number of records of a tree that a step examines.
const STEP_RECORDS: usize = 2048;
/// Largest number of steps before other work gets its turn.
const STEPS_MAX: usize = 64;
/// Number of buckets of a dead list that a step forgets.
const STEP_BUCKETS: usize = 64;
/// Number of tries of a step before what cannot be read is set aside or, if it is damaged, its space given up: a device may
/// have had a bad moment.
const TRIES: u32 = 16;

/// Work of one step, with the data that it has read.
enum ReapStep {
    /// The item is done: nothing is left to do.
    Done,
    /// Free the records that are in no block.
    Open,
    Block {
        list: u64,
        at: u64,
        records: Vec<Ptr>,
        /// Sublist that is linked to this one, if this was its last block.
        next: Option<Sublist>,
    },
    /// Buckets of a list, with their births.
    Buckets(Vec<(u64, Bucket)>),
    Tree {
        dead: Vec<Ptr>,
        /// Nodes that a device does not read, and the key from which on what is below them is to be freed.
        unread: (Vec<Ptr>, Option<Key>),
        next: Option<Key>,
    },
    /// A device does not read what the item needs.
    Aside,
}

/// Returns true if a later try may succeed: damage stays, but a device may read the next time what it failed to read.
const fn may_pass(error: &Error) -> bool {
    !matches!(error, Error::Corrupt { .. })
}

impl Catalogue {
    /// Sets the first unreferenced item aside.
    fn set_aside(&mut self) {
        self.aside.extend(self.unreferenced.pop_front());
    }

    /// Sets parts of the tree aside that is the first unreferenced item; its records before `cursor` are freed.
    fn set_parts_aside(&mut self, parts: &[Ptr], cursor: Option<Key>) {
        for part in parts {
            let Some(Unreferenced::Tree { data, bound, node_bound, .. }) = self.unreferenced.front() else {
                return;
            };
            let (bound, node_bound, shares) = (*bound, *node_bound, data.shares_records());
            let data = self.dataset_of(0, self.tree(Some(*part)), SpaceAccounting::default());
            if shares {
                data.assume_shared();
            }
            self.aside.push(Unreferenced::Tree { data, bound, node_bound, cursor });
        }
    }
}

impl Pool {
    /// Returns the stored bytes of destroyed snapshots that are not freed yet. Those of destroyed datasets are not
    /// known before they are freed.
    pub fn unreferenced_bytes(&self) -> u64 {
        let one = |item: &Unreferenced| match item {
            Unreferenced::Records { bucket, held: false } => bucket.bytes,
            Unreferenced::Records { .. } | Unreferenced::List { .. } | Unreferenced::Tree { .. } => 0,
        };
        self.catalogue.read().all_unreferenced().map(one).sum()
    }

    /// Returns true if anything that was destroyed is not freed yet.
    pub fn is_reaping(&self) -> bool {
        !self.catalogue.read().unreferenced.is_empty()
    }

    /// Frees one step of what was destroyed. Returns false if there is nothing to do before the next checkpoint, or if
    /// something could not be read for now. What a device still does not read then is left to the next opening. Damaged data
    /// is given up: the pool goes on without its space, which the program's log and `check` tell.
    ///
    /// # Errors An error if the pool takes no changes; errors of the log.
    pub fn reap(&self) -> Result<bool> {
        self.shared.check_writable()?;
        let mut failed = self.reaping.lock();
        let last = *failed + 1 >= TRIES;
        let step = match self.reap_step(last) {
            Ok(Some(step)) => step,
            Ok(None) => return Ok(false),
            Err(error) if !last => {
                *failed += 1;
                tracing::warn!(%error, attempt = *failed, "what was destroyed could not be read, and is yet to be freed");
                return Ok(false);
            }
            Err(error) if may_pass(&error) => {
                tracing::error!(%error, "what was destroyed cannot be read; it is freed when the pool was opened again");
                ReapStep::Aside
            }
            Err(error) => {
                tracing::error!(%error, "what was destroyed cannot be read; its space is lost");
                ReapStep::Done
            }
        };
        *failed = 0;
        self.with_log(|| self.take_step(&step))?;
        Ok(true)
    }

    /// Frees at most [`STEPS_MAX`] steps of what was destroyed. Returns their number.
    pub(super) fn reap_steps(&self) -> Result<usize> {
        let mut steps = 0;
        while steps < STEPS_MAX && self.reap()? {
            steps += 1;
        }
        Ok(steps)
    }

    /// As [`Pool::reap_steps`], but makes a checkpoint if what is left waits for one. Returns false if nothing was freed.
    pub(super) fn reap_some(&self) -> Result<bool> {
        let mut steps = self.reap_steps()?;
        if steps == 0 && self.is_reaping() {
            self.checkpoint(false)?;
            steps = self.reap_steps()?;
        }
        Ok(steps > 0)
    }

    /// Has space freed of what was destroyed or deleted anywhere in the pool. Returns false if nothing was freed since
    /// [`Reapers::frees`](crate::dataset::Reapers::frees) was `before`. The caller holds no lock that a change takes.
    pub(super) fn reclaim(&self, before: u64) -> Result<bool> {
        if self.reap_some()? {
            return Ok(true);
        }
        self.shared.reapers.reap_some();
        Ok(self.shared.reapers.frees() != before)
    }

    /// Reads what the next step needs; on the `last` try, leaves out what cannot be read. Only steps take from the
    /// front of the unreferenced, so the item stays there meanwhile.
    fn reap_step(&self, last: bool) -> Result<Option<ReapStep>> {
        let blocks = Arc::clone(&self.catalogue.read().parts.blocks);
        let ((list, at), due) = {
            let mut catalogue = self.catalogue.write();
            // A tree that is not stored waits for the next checkpoint; other items need not wait for it.
            let ready = |item: &Unreferenced| item.tree().is_none_or(|tree| tree.stored_root().is_some());
            let Some(at) = catalogue.unreferenced.iter().position(ready) else { return Ok(None) };
            catalogue.unreferenced.swap(0, at);
            match catalogue.unreferenced.front() {
                None => return Ok(None),
                Some(Unreferenced::List { id }) => {
                    let id = *id;
                    drop(catalogue);
                    let found = blocks.some_buckets(id, 0, STEP_BUCKETS)?;
                    return Ok(Some(if found.is_empty() {
                        ReapStep::Done
                    } else {
                        ReapStep::Buckets(found)
                    }));
                }
                Some(Unreferenced::Records { bucket, .. }) => match bucket.next_block() {
                    Some(block) => (block, bucket.link_due()),
                    None if bucket.open.is_empty() => return Ok(Some(ReapStep::Done)),
                    None => return Ok(Some(ReapStep::Open)),
                },
                Some(Unreferenced::Tree { data, bound, node_bound, cursor }) => {
                    let (data, bounds, cursor) = (Arc::clone(data), (*bound, *node_bound), *cursor);
                    drop(catalogue);
                    return self.reap_tree(&data, bounds, cursor, last).map(Some);
                }
            }
        };
        let next = due.map(|list| blocks.linked(list)).transpose()?;
        Ok(Some(ReapStep::Block { list, at, records: blocks.load(list, at)?, next }))
    }

    fn reap_tree(
        &self,
        data: &LiveDataset,
        (bound, node_bound): (u64, u64),
        cursor: Option<Key>,
        last: bool,
    ) -> Result<ReapStep> {
        let (store, shared) = (Nodes::of(&self.shared), data.shares_records());
        let mut found = reap(data.tree.stored_root().flatten(), &store, cursor, node_bound, STEP_RECORDS);
        let passing = found.unreadable.iter().position(|(_, error)| may_pass(error));
        if let Some(at) = passing.filter(|_| !last) {
            return Err(found.unreadable.swap_remove(at).1);
        }
        let mut dead = found.nodes;
        let mut unread = Vec::new();
        for (ptr, error) in &found.unreadable {
            if may_pass(error) {
                tracing::error!(addr = %ptr.addr, %error, "a node of a destroyed dataset could not be read; it is freed when the pool was opened again");
                unread.push(*ptr);
                dead.retain(|node| node.addr != ptr.addr);
            } else {
                tracing::error!(addr = %ptr.addr, %error, "a node of a destroyed dataset could not be read; its space is lost");
            }
        }
        dead.extend(found.pages.into_iter().filter(|page| page.addr.raw() >= bound));
        if shared {
            self.keep_live(&mut dead, last)?;
        }
        Ok(ReapStep::Tree { dead, unread: (unread, cursor), next: found.next })
    }

    /// Reduces `ptrs` to live records, each once: pages may share records, so that a record comes several times, or was
    /// freed by an earlier step.
    fn keep_live(&self, ptrs: &mut Vec<Ptr>, last: bool) -> Result<()> {
        ptrs.sort_unstable_by_key(|ptr| ptr.addr);
        ptrs.dedup_by_key(|ptr| ptr.addr);
        let mut live = Vec::with_capacity(ptrs.len());
        for ptr in ptrs.iter() {
            match self.shared.segments.is_live(ptr.addr) {
                Ok(true) => live.push(*ptr),
                Ok(false) => {}
                Err(error) if !last && may_pass(&error) => return Err(error),
                Err(error) => {
                    tracing::error!(addr = %ptr.addr, %error, "whether a record of a destroyed dataset is live could not be read; its space is lost");
                }
            }
        }
        *ptrs = live;
        Ok(())
    }

    fn take_step(&self, step: &ReapStep) -> Result<()> {
        let mut catalogue = self.catalogue.write();
        let blocks = Arc::clone(&catalogue.parts.blocks);
        let mut done = false;
        match (catalogue.unreferenced.front_mut(), step) {
            (Some(Unreferenced::Records { bucket, held }), ReapStep::Block { list, at, records, next }) => {
                bucket.drop_block(records, *next);
                blocks.remove(*list, *at)?;
                if next.is_some() {
                    blocks.unlink(*list)?;
                }
                if !*held {
                    self.shared.free_pages(records);
                }
            }
            (Some(Unreferenced::Records { bucket, held }), ReapStep::Open) => {
                let records = bucket.take_open();
                if !*held {
                    self.shared.free_pages(&records);
                }
                done = true;
            }
            (Some(Unreferenced::List { id }), ReapStep::Buckets(buckets)) => {
                let list = *id;
                for (birth, bucket) in buckets {
                    blocks.remove_bucket(list, *birth)?;
                    if bucket.chain.is_some() {
                        let bucket = Bucket { open: Vec::new(), ..bucket.clone() };
                        catalogue.unreferenced.push_front(Unreferenced::Records { bucket, held: true });
                    }
                }
            }
            (Some(Unreferenced::Tree { cursor, .. }), ReapStep::Tree { dead, unread, next }) => {
                self.shared.free_pages(dead);
                *cursor = *next;
                done = next.is_none();
                catalogue.set_parts_aside(&unread.0, unread.1);
            }
            (Some(_), ReapStep::Aside) => catalogue.set_aside(),
            (Some(_), _) => done = true,
            (None, _) => {}
        }
        if done {
            catalogue.unreferenced.pop_front();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
