//! The space accounting of a version of a dataset: the space that it holds, and the fate of records that it
//! unreferences.
//!
//! - L2: a record that a tree refers to is in the tree of a snapshot before it if and only if it is older than the
//!   snapshot: records enter a tree by their birth alone. A page is older if its address is below the position of the
//!   log when the snapshot was made. Nodes are written later, by checkpoints. A checkpoint writes the nodes of a
//!   snapshot before those that only later versions have, so nodes have a bound of their own. Until a checkpoint has
//!   written it, a snapshot holds all stored nodes.
//! - L3: `page_bytes` and `node_bytes` are the bytes of the stored records of the tree, each counted once.
//!   `fresh_bytes` is the part of them that the snapshot before does not have.

use std::sync::Arc;

use super::budget::Budget;
use super::dead::{DeadList, space_of};
use crate::sums::subtract_stored;
use crate::{Addr, Ptr};

/// Role of a record in a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecordRole {
    /// A page of an object.
    Page,
    /// A node of the tree.
    Node,
}

/// A snapshot that a dataset grows from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ancestor {
    /// Number of the snapshot.
    pub id: u64,
    /// Raw address from which on pages are younger than the snapshot.
    pub bound: u64,
    /// Raw address from which on nodes are younger; `None` until a checkpoint has written the nodes of the snapshot.
    pub node_bound: Option<u64>,
}

impl Ancestor {
    /// Returns true if the snapshot is older than a record.
    pub(crate) fn precedes(&self, role: RecordRole, addr: Addr) -> bool {
        match role {
            RecordRole::Page => self.bound <= addr.raw(),
            RecordRole::Node => self.node_bound.is_some_and(|bound| bound <= addr.raw()),
        }
    }
}

/// Space accounting of a version. Spaces are in bytes, with directory entries.
#[derive(Clone, Debug, Default)]
pub struct SpaceAccounting {
    /// Snapshots that the version grows from, oldest first. Only datasets have them.
    pub ancestors: Vec<Ancestor>,
    /// Space of the records of pages.
    pub page_bytes: u64,
    /// Space of the records of nodes.
    pub node_bytes: u64,
    /// Space of records that the snapshot before does not have.
    pub fresh_bytes: u64,
    /// Records that were unreferenced since the snapshot before, and that this snapshot holds.
    pub dead: DeadList,
    /// Budget that follows these counters (Q1): that of the dataset, or of the dataset that the snapshot belongs to.
    pub budget: Option<Follower>,
}

/// A budget that follows the space accounting of a version.
#[derive(Clone, Debug)]
pub struct Follower {
    /// The budget.
    pub budget: Arc<Budget>,
    /// True if the version is the dataset itself, and not a snapshot.
    pub is_own: bool,
}

impl SpaceAccounting {
    /// Returns true if the newest snapshot has a record of the tree.
    pub(crate) fn holds(&self, role: RecordRole, addr: Addr) -> bool {
        self.ancestors.last().is_some_and(|newest| !newest.precedes(role, addr))
    }

    /// Returns the number of the newest snapshot that is older than a record; 0 if none is.
    pub(crate) fn birth(&self, role: RecordRole, addr: Addr) -> u64 {
        let older = self.ancestors.partition_point(|ancestor| ancestor.precedes(role, addr));
        older.checked_sub(1).and_then(|at| self.ancestors.get(at)).map_or(0, |ancestor| ancestor.id)
    }

    fn counter(&mut self, role: RecordRole) -> &mut u64 {
        match role {
            RecordRole::Page => &mut self.page_bytes,
            RecordRole::Node => &mut self.node_bytes,
        }
    }

    /// Counts records of the tree that were just stored.
    pub(crate) fn born<'a>(&mut self, role: RecordRole, ptrs: impl Iterator<Item = &'a Ptr>) {
        let bytes: u64 = ptrs.map(space_of).sum();
        let before = self.sums();
        *self.counter(role) += bytes;
        self.fresh_bytes += bytes;
        self.tell(before);
    }

    /// Counts nodes of the tree that were just stored. The snapshot before does not have `fresh_bytes` of them.
    pub(crate) fn nodes_stored<'a>(&mut self, ptrs: impl Iterator<Item = &'a Ptr>, fresh_bytes: u64) {
        let before = self.sums();
        self.node_bytes += ptrs.map(space_of).sum::<u64>();
        self.fresh_bytes += fresh_bytes;
        self.tell(before);
    }

    /// Returns the bytes that are fresh, and the bytes that are referred to.
    fn sums(&self) -> (u64, u64) {
        (self.fresh_bytes, self.page_bytes + self.node_bytes)
    }

    /// Tells the budget how the sums have changed since they were `before`.
    fn tell(&self, before: (u64, u64)) {
        if let Some(Follower { budget, is_own }) = &self.budget {
            let now = self.sums();
            budget.follow_fresh(before.0, now.0);
            if *is_own {
                budget.follow_referenced(before.1, now.1);
            }
        }
    }

    /// Makes another budget follow, which has counted nothing of this version yet.
    pub(crate) fn follow(&mut self, follower: Option<Follower>) {
        self.budget = follower;
        self.tell((0, 0));
    }

    /// Notes that pages that no snapshot has were coded again, and take `bytes` less.
    pub(crate) fn shortened(&mut self, bytes: i64) {
        let before = self.sums();
        self.page_bytes = self.page_bytes.saturating_add_signed(-bytes);
        self.fresh_bytes = self.fresh_bytes.saturating_add_signed(-bytes);
        self.tell(before);
    }

    /// Removes records that the tree no longer refers to. Those that nothing refers to are added to `unreferenced`.
    /// Returns true if the dead list is to be flushed.
    pub(super) fn unreference(
        &mut self,
        role: RecordRole,
        ptrs: &[Ptr],
        unreferenced: &mut Vec<Ptr>,
    ) -> bool {
        let mut full = false;
        let before = self.sums();
        for ptr in ptrs {
            let bytes = space_of(ptr);
            subtract_stored(self.counter(role), bytes);
            if self.holds(role, ptr.addr) {
                full |= self.dead.push(self.birth(role, ptr.addr), *ptr);
            } else {
                subtract_stored(&mut self.fresh_bytes, bytes);
                unreferenced.push(*ptr);
            }
        }
        self.tell(before);
        full
    }
}
