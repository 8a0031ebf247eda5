//! A dataset of an open pool.
//!
//! - D2: a page that was accepted is found in `accepting`, or in `committing`, or in the tree. It moves in this order,
//!   and is visible in the next place before it leaves the one before. Readers look in the same order.
//! - D3: the tree holds exactly the values that were accepted, and the pages whose batch is complete.
//! - D4: page operations wait for a commit in flight that touches their pages, so that the tree sees page changes in
//!   the order of the log.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Mutex, RwLock};

use super::accounting::{RecordRole, SpaceAccounting};
use super::base_streams::BaseStreams;
use super::budget::{Budget, Claim};
use super::codecs::Setting;
use super::dead::DeadBlocks;
use super::pending::{PageBuf, Pending};
use super::read_ends::ReadEnds;
use super::shared::{Beyond, ROOMY_BYTES, Shared, Shortage};
use super::usage::{UsageDelta, UsageTable};
use super::{Attempt, Caller, Change, Dataset, Reapers, Space, Synced, Usage};
use crate::limits::TREE_LEVELS_MAX;
use crate::tree::{Applied, Edit, Tree, Value};
use crate::{Key, Ptr, Result};

#[derive(Default)]
pub(super) struct Stages {
    pub(super) accepting: Pending,
    pub(super) committing: Option<Arc<Pending>>,
    /// True if something was accepted since the last quiesce point, so that the next must include this dataset.
    pub(super) touched: bool,
    /// Space that is claimed for changes which pass through none of these stages ([`LiveDataset::reserve_apart`]).
    apart: Claim,
}

impl Stages {
    /// Returns the newest version of a page that the tree does not have yet. It must be asked before the tree (D2):
    /// pages that leave memory are in the tree already.
    pub(super) fn page(&self, object: u64, page: u64) -> Option<&PageBuf> {
        let committing = self.committing.as_ref().map(|pending| &pending.pages);
        // An empty map is not asked, since that would still hash the key.
        [Some(&self.accepting.pages), committing]
            .into_iter()
            .flatten()
            .find_map(|pages| if pages.is_empty() { None } else { pages.get(&(object, page)) })
    }

    /// Returns true if there is any such page.
    pub(super) fn has_pages(&self) -> bool {
        let committing = self.committing.as_ref().is_some_and(|pending| !pending.pages.is_empty());
        committing || !self.accepting.pages.is_empty()
    }
}

/// Largest number of objects whose usage waits in memory, so that a snapshot is made in constant time.
const USAGE_OBJECTS_MAX: usize = 1024;

/// A file system or volume of an open pool, or a snapshot of one, which takes no changes.
pub struct LiveDataset {
    /// Number of the dataset or snapshot in the pool.
    pub id: u64,
    /// Tree of the dataset.
    pub tree: Tree,
    pub(super) shared: Arc<Shared>,
    pub(super) stages: RwLock<Stages>,
    pub(super) usage: Mutex<UsageTable>,
    /// Serialises changes of the reference counts of records that more than one page refers to.
    pub(super) sharing: Mutex<()>,
    /// True if there may be such records.
    pub(super) has_shared: AtomicBool,
    /// Space accounting of the dataset. Locked after the tree's locks, and before those of the pool's own tree.
    pub accounting: Mutex<SpaceAccounting>,
    /// Store of the blocks of the dead list; `None` for the pool's own tree, which no snapshot holds.
    pub(super) blocks: Option<Arc<DeadBlocks>>,
    /// True if no changes are accepted, because this is a snapshot or was destroyed.
    pub takes_no_changes: AtomicBool,
    /// True if there is a budget. Most datasets have none, and are spared the lock of `budget`.
    has_budget: AtomicBool,
    budget: RwLock<Option<Arc<Budget>>>,
    /// Compression of new pages, where it differs from that of the pool.
    pub(super) compression: Mutex<Setting>,
    /// Writers of parts of pages, whose content is read ahead of them.
    pub(super) base_streams: BaseStreams,
    /// Ends of the latest reads.
    pub(super) read_ends: ReadEnds,
}

impl LiveDataset {
    /// Returns the dataset `id` with this tree and this space accounting. [`LiveDataset::find_shared_records`] must be
    /// called before it is changed.
    pub(crate) fn new(
        id: u64,
        tree: Tree,
        shared: Arc<Shared>,
        accounting: SpaceAccounting,
        blocks: Option<Arc<DeadBlocks>>,
    ) -> Self {
        Self {
            id,
            tree,
            shared,
            stages: RwLock::default(),
            usage: Mutex::default(),
            sharing: Mutex::default(),
            has_shared: AtomicBool::default(),
            accounting: Mutex::new(accounting),
            blocks,
            takes_no_changes: AtomicBool::default(),
            has_budget: AtomicBool::default(),
            budget: RwLock::default(),
            compression: Mutex::default(),
            base_streams: BaseStreams::default(),
            read_ends: ReadEnds::default(),
        }
    }

    /// Applies edits that replace no pages.
    pub(super) fn edit(&self, edits: &mut dyn Iterator<Item = Edit>) -> Result<()> {
        let mut freed = Vec::new();
        report_unreadable(&self.tree.apply(edits, &mut |_, _| {}, &mut freed)?);
        self.unreference(RecordRole::Node, &freed)
    }

    /// Makes the next commit store a page in full, whose content was `content` when its record was `top`. Returns false
    /// if the page was changed or shared since, or if there is no room. The caller holds the gate's write side, and
    /// takes changes before it releases the gate.
    pub(crate) fn plain(&self, (object, page): (u64, u64), top: Ptr, content: PageBuf) -> Result<bool> {
        let mut found = [None];
        self.tree.pages(object, page, &mut found)?;
        let mut stages = self.stages.write();
        let same = found[0].is_some_and(|ptr| ptr.addr == top.addr);
        if !same || stages.accepting.pages.contains_key(&(object, page)) || self.any_is_shared(&[top])? {
            return Ok(false);
        }
        let len_bytes = content.len() as u64;
        let claim = Claim { bytes: len_bytes, logical_bytes: 0 };
        if self.reserve(claim, Beyond::default(), 0).is_err() {
            return Ok(false);
        }
        self.shared.dirty_bytes.fetch_add(len_bytes, Ordering::Relaxed);
        stages.accepting.claimed.add(claim);
        stages.accepting.write(object, page, content);
        stages.accepting.plain.insert((object, page));
        self.touch(&mut stages);
        Ok(true)
    }

    /// Notes that something was accepted.
    pub(super) fn touch(&self, stages: &mut Stages) {
        if !std::mem::replace(&mut stages.touched, true) {
            self.shared.touched.lock().push(self.id);
        }
    }

    /// Begins a commit: moves what was accepted to `committing`, and returns it. The caller holds the gate's write
    /// side, and resets `redo_bytes` when all datasets were taken from.
    pub(crate) fn take_accepted(&self) -> Option<Arc<Pending>> {
        let mut stages = self.stages.write();
        stages.touched = false;
        if stages.accepting.is_empty() {
            self.release(std::mem::take(&mut stages.accepting.claimed));
            return None;
        }
        let pending = Arc::new(std::mem::take(&mut stages.accepting));
        stages.committing = Some(Arc::clone(&pending));
        self.shared.dirty_bytes.fetch_sub(pending.page_bytes, Ordering::Relaxed);
        Some(pending)
    }

    /// Ends a commit: its pages are in the tree.
    pub(crate) fn land(&self, pending: &Pending) {
        self.stages.write().committing = None;
        self.release(pending.claimed);
    }

    /// Reserves space for a change (contract W5), in the pool and within quotas. There must also be room for `edits`
    /// bytes, which the change takes at once.
    pub(crate) fn reserve(&self, claim: Claim, beyond: Beyond, edits: u64) -> Result<(), Shortage> {
        match self.budget() {
            Some(budget) => self.shared.reserve_within(&budget, claim, beyond, edits),
            None => self.shared.reserve(claim.bytes, beyond.pool_bytes, edits),
        }
    }

    /// Gives reserved space back.
    pub(crate) fn release(&self, claim: Claim) {
        if let Some(budget) = self.budget() {
            budget.release(claim);
        }
        self.shared.release(claim.bytes);
    }

    /// As [`LiveDataset::reserve`], for changes that the caller brings into the log without the gate. Budgets may be made
    /// anew meanwhile, and take the claim over. [`LiveDataset::release_apart`] has to follow.
    pub(crate) fn reserve_apart(&self, claim: Claim, edits: u64) -> Result<(), Shortage> {
        // Budgets are made anew with the gate closed: not between these two.
        let _gate = self.shared.gate.read();
        self.reserve(claim, Beyond::default(), edits)?;
        self.stages.write().apart.add(claim);
        Ok(())
    }

    /// Gives space back that [`LiveDataset::reserve_apart`] reserved.
    pub(crate) fn release_apart(&self, claim: Claim) {
        let _gate = self.shared.gate.read();
        self.stages.write().apart.subtract(claim);
        self.release(claim);
    }

    /// Returns the budget of the dataset, if it has one.
    pub(crate) fn budget(&self) -> Option<Arc<Budget>> {
        if self.has_budget.load(Ordering::Acquire) { self.budget.read().clone() } else { None }
    }

    /// Returns true if the dataset has a quota of its own on bytes before compression.
    pub(super) fn has_logical_quota(&self) -> bool {
        self.budget().is_some_and(|budget| budget.limits.logicalquota.is_some())
    }

    /// Replaces the budget. The new one takes over the dataset's claims and its bytes before compression; it gets the
    /// stored bytes by [`SpaceAccounting::follow`]. The caller holds the gate's write side and the log's lock, or is
    /// opening the pool.
    pub(crate) fn set_budget(&self, budget: Option<Arc<Budget>>) {
        if let Some(budget) = &budget {
            budget.follow_logical(0, self.logical_bytes());
            let stages = self.stages.read();
            budget.take(stages.accepting.claimed);
            budget.take(stages.apart);
            if let Some(committing) = &stages.committing {
                budget.take(committing.claimed);
            }
        }
        self.has_budget.store(budget.is_some(), Ordering::Release);
        *self.budget.write() = budget;
    }

    /// Accounts for changed pages of an object.
    pub(super) fn note_usage(&self, object: u64, delta: UsageDelta) -> Result<()> {
        let mut usage = self.usage.lock();
        let (before, now) = usage.apply(&self.tree, object, delta)?;
        if let Some(budget) = self.budget() {
            budget.follow_logical(before, now);
        }
        Ok(())
    }

    /// Returns the recordsize of `object` in bytes; 0 if it has no pages.
    pub fn record_size(&self, object: u64) -> Result<u32> {
        self.usage.lock().record_size(&self.tree, object)
    }

    /// Returns the number after that of the last page of `object` that is stored or accepted; 0 if there is none.
    pub(crate) fn end_page(&self, object: u64) -> Result<u64> {
        let (mut low, mut high) = (0, u64::MAX);
        while low < high {
            let middle = low + (high - low) / 2;
            match self.next_data(object, middle)? {
                Some(page) => low = page + 1,
                None => high = middle,
            }
        }
        Ok(low)
    }

    /// Puts usage into the tree, before the tree becomes immutable.
    pub(crate) fn settle_usage(&self) -> Result<()> {
        let edits = self.usage.lock().drain();
        if edits.is_empty() { Ok(()) } else { self.edit(&mut edits.into_iter()) }
    }

    /// Puts usage into the tree if it is that of many objects.
    pub(crate) fn bound_usage(&self) -> Result<()> {
        let many = self.usage.lock().len() > USAGE_OBJECTS_MAX;
        if many { self.settle_usage() } else { Ok(()) }
    }

    /// Returns true if nothing that was accepted waits for a commit.
    pub(crate) fn has_nothing_pending(&self) -> bool {
        let stages = self.stages.read();
        stages.accepting.is_empty() && stages.committing.is_none()
    }

    /// Forgets what was known of the tree, because its content was replaced.
    pub(crate) fn reset(&self) -> Result<()> {
        *self.usage.lock() = UsageTable::default();
        self.find_shared_records()
    }

    /// Returns the logical and the stored bytes of all pages.
    pub(crate) fn totals(&self) -> Result<(u64, u64)> {
        let usage = self.usage.lock();
        Ok((usage.logical_bytes(&self.tree)?, usage.stored_bytes(&self.tree)?))
    }

    /// Returns the logical bytes of all pages; 0 if they cannot be read, which `check` reports.
    pub(crate) fn logical_bytes(&self) -> u64 {
        self.totals().map_or(0, |(logical, _)| logical)
    }

    /// Applies values to the tree alone. Keys ascend; `None` deletes.
    pub(crate) fn put_values(&self, values: Vec<(Key, Option<Vec<u8>>)>) -> Result<()> {
        let edit = |(key, value): (Key, Option<Vec<u8>>)| {
            value.map_or(Edit::Delete(key), |bytes| Edit::Put(key, Value::Bytes(bytes.into())))
        };
        self.edit(&mut values.into_iter().map(edit))
    }

    /// Brings the leaves of `keys`, which ascend, into memory. `load` gets one key of each node that is absent, level
    /// by level, and calls [`Dataset::get`] for it. Nodes that cannot be read are left out, and so are nodes that would
    /// evict others because not all fit the cache.
    pub(crate) fn load_leaves(&self, keys: &[Key], load: &dyn Fn(&[Key])) {
        for _ in 0..TREE_LEVELS_MAX {
            let absent = self.tree.absent(keys);
            if absent.is_empty() {
                return;
            }
            load(&absent);
        }
    }

    /// Returns the pointers that these keys have in the tree. Keys ascend.
    pub(crate) fn ptrs(&self, keys: &[Key]) -> Result<Vec<Ptr>> {
        let ptr = |value| if let Value::Page(ptr) = value { Some(ptr) } else { None };
        Ok(self.tree.get_all(keys)?.into_iter().flatten().filter_map(ptr).collect())
    }

    /// Applies a value to the tree alone (replay).
    pub(crate) fn replay_value(&self, key: Key, value: Option<&[u8]>) -> Result<()> {
        let edit = value.map_or(Edit::Delete(key), |bytes| Edit::Put(key, Value::Bytes(bytes.into())));
        self.edit(&mut std::iter::once(edit))
    }
}

impl Dataset for LiveDataset {
    fn get(&self, key: &Key) -> Result<Option<Vec<u8>>> {
        Ok(match self.tree.get(key)? {
            Some(Value::Bytes(bytes)) => Some(bytes.into_vec()),
            Some(Value::Page(_)) | None => None,
        })
    }

    fn range(&self, from: &Key, to: &Key, limit: usize) -> Result<Vec<(Key, Vec<u8>)>> {
        let mut found = Vec::new();
        let mut from = *from;
        while found.len() < limit && from < *to {
            let wanted = limit - found.len();
            let entries = self.tree.range(&from, to, wanted)?;
            let Some((last, _)) = entries.last().filter(|_| entries.len() == wanted) else {
                found.extend(entries.into_iter().filter_map(metadata));
                break;
            };
            // A file's pages come after its metadata: the search goes on at the next object, and not through all pages.
            let next = if last.kind >= Key::ENGINE_KINDS { object_after(last) } else { key_after(last) };
            found.extend(entries.into_iter().filter_map(metadata));
            let Some(next) = next else { break };
            from = next;
        }
        Ok(found)
    }

    fn first_damage(&self, from: &Key, to: &Key) -> Option<(Key, Key)> {
        self.tree.first_damage(from, to)
    }

    fn apply(&self, changes: &[Change<'_>]) -> Result<()> {
        self.apply_changes(changes)
    }

    fn reapers(&self) -> Option<&Reapers> {
        Some(&self.shared.reapers)
    }

    fn accepts_at_once(&self) -> bool {
        self.shared.accepts_at_once()
            && !self.tree.is_changing()
            && self.budget().is_none_or(|budget| budget.is_roomy(ROOMY_BYTES))
    }

    fn is_at_hand(&self, object: u64, page: u64) -> bool {
        self.has_at_hand(object, page)
    }

    fn read(&self, object: u64, record_size: u32, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.read_pages(&self.shared.devices, object, record_size, offset, buf)
    }

    fn try_read(&self, object: u64, record_size: u32, offset: u64, buf: &mut [u8]) -> Result<Attempt> {
        self.try_read_pages(object, record_size, offset, buf)
    }

    fn next_data(&self, object: u64, page: u64) -> Result<Option<u64>> {
        self.shared.wait_landed();
        let written = {
            let stages = self.stages.read();
            let all = stages
                .accepting
                .pages
                .keys()
                .chain(stages.committing.iter().flat_map(|pending| pending.pages.keys()));
            all.filter(|(of, at)| *of == object && *at >= page).map(|(_, at)| *at).min()
        };
        let stored = self.tree.next_data(object, page)?;
        Ok(match (written, stored) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        })
    }

    fn next_hole(&self, object: u64, page: u64) -> Result<u64> {
        let behind_written = |page| {
            let stages = self.stages.read();
            let committing = stages.committing.as_ref();
            let written = |page: &u64| {
                let key = (object, *page);
                stages.accepting.pages.contains_key(&key)
                    || committing.is_some_and(|pending| pending.pages.contains_key(&key))
            };
            (page..).find(|page| !written(page)).unwrap_or(u64::MAX)
        };
        let behind_stored = |page| Ok(self.tree.next_hole(object, page)?.unwrap_or(u64::MAX));
        first_hole(page, behind_written, behind_stored)
    }

    fn usage(&self, object: u64) -> Result<Usage> {
        self.usage.lock().get(&self.tree, object)
    }

    fn sync(&self) -> Result<()> {
        self.shared.committer()?.commit(true)
    }

    fn sync_then(&self, caller: Caller, then: Synced) {
        match self.shared.committer() {
            Ok(committer) => committer.commit_then(caller, then),
            Err(error) => then(Err(error)),
        }
    }

    fn space(&self) -> Space {
        let logical_bytes = self.logical_bytes();
        let pool = self.shared.space();
        let own = || {
            let accounting = self.accounting.lock();
            (logical_bytes, accounting.page_bytes + accounting.node_bytes)
        };
        let space = self.budget().map_or(pool, |budget| budget.space(pool, &own));
        Space { logical_bytes, ..space }
    }
}

/// Logs the damaged parts of the tree that were detached unread. What they referred to stays in use until the pool is
/// checked.
pub(super) fn report_unreadable(applied: &Applied) {
    for (ptr, error) in &applied.unreadable {
        tracing::error!(addr = %ptr.addr, %error, "a tree node below a deleted range could not be read; its space is lost");
    }
}

/// Returns the entry if it belongs to the file system, and `None` if it belongs to the engine.
fn metadata((key, value): (Key, Value)) -> Option<(Key, Vec<u8>)> {
    match value {
        Value::Bytes(bytes) if key.kind < Key::ENGINE_KINDS => Some((key, bytes.into_vec())),
        Value::Bytes(_) | Value::Page(_) => None,
    }
}

/// Returns the first key after `key`; `None` after the last of all keys.
fn key_after(key: &Key) -> Option<Key> {
    match (key.offset.checked_add(1), key.kind.checked_add(1)) {
        (Some(offset), _) => Some(Key { offset, ..*key }),
        (None, Some(kind)) => Some(Key::new(key.object, kind, 0)),
        (None, None) => object_after(key),
    }
}

/// Returns the first key of the object after that of `key`; `None` after the last object.
fn object_after(key: &Key) -> Option<Key> {
    key.object.checked_add(1).map(|object| Key::new(object, 0, 0))
}

/// Returns the first page from `page` on that is neither written nor stored. `behind_written` and `behind_stored` each
/// return the first page from one on that is not. They are asked in the order in which pages travel (D2): a page that is
/// stored meanwhile is found.
fn first_hole(
    page: u64,
    behind_written: impl Fn(u64) -> u64,
    behind_stored: impl Fn(u64) -> Result<u64>,
) -> Result<u64> {
    let mut page = page;
    loop {
        let unwritten = behind_written(page);
        page = behind_stored(unwritten)?;
        if page == unwritten {
            return Ok(page);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::cell::RefCell;
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_page_that_is_stored_meanwhile_is_no_hole() {
        let written = RefCell::new(BTreeSet::from([3_u64, 4, 9]));
        let stored = RefCell::new(BTreeSet::from([0_u64, 1, 2]));
        let behind = |pages: &BTreeSet<u64>, from: u64| (from..).find(|page| !pages.contains(page)).unwrap();
        let behind_written = |from| behind(&written.borrow(), from);
        let behind_stored = |from| {
            let hole = behind(&stored.borrow(), from);
            // All that was written lands now.
            stored.borrow_mut().append(&mut written.borrow_mut());
            Ok(hole)
        };
        assert_eq!(first_hole(0, behind_written, behind_stored).unwrap(), 5);
    }
}
