//! A dataset of an open pool.
//!
//! - D2: a page that was accepted is found in `accepting`, or in `committing`, or in the tree; it moves in this
//!   order and is visible in the next place before it leaves the one before. Readers look in the same order.
//! - D3: the tree holds exactly the values that were accepted, and the pages whose batch is complete.
//! - D4: page operations wait for a commit in flight that touches their pages, so that the tree sees page
//!   changes in the order of the log.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Mutex, RwLock};

use super::budget::{Budget, Claim};
use super::codecs::Setting;
use super::dead::Blocks;
use super::ledger::{Ledger, Part};
use super::pending::{PageBuf, Pending};
use super::shared::{Beyond, ROOMY_BYTES, Shared, Shortage};
use super::usage::{UsageDelta, UsageTable};
use super::{Attempt, Change, Dataset, Space, Synced, Usage};
use crate::limits::TREE_LEVELS_MAX;
use crate::tree::{Applied, Edit, Tree, Value};
use crate::{Key, Ptr, Result};

#[derive(Default)]
pub(super) struct Stages {
    pub(super) accepting: Pending,
    pub(super) committing: Option<Arc<Pending>>,
    /// Whether the next cut is to come here: something was accepted since the last.
    pub(super) touched: bool,
}

/// Objects whose usage waits in memory at most, so that a snapshot is made in constant time.
const USAGE_OBJECTS_MAX: usize = 1024;

/// A file system or volume of an open pool, or a snapshot of one, which takes no changes.
pub struct LiveDataset {
    /// Number of the dataset or snapshot in the pool.
    pub id: u64,
    /// Its tree.
    pub tree: Tree,
    pub(super) shared: Arc<Shared>,
    pub(super) stages: RwLock<Stages>,
    pub(super) usage: Mutex<UsageTable>,
    /// Serialises changes of the counts of records that more than one page refers to.
    pub(super) sharing: Mutex<()>,
    /// Whether there may be such.
    pub(super) has_shared: AtomicBool,
    /// Its accounts. Taken after the tree's locks, and before those of the pool's own tree.
    pub ledger: Mutex<Ledger>,
    /// Where blocks of its dead list go; `None`: the pool's own tree, which no snapshot holds.
    pub(super) blocks: Option<Arc<Blocks>>,
    /// Takes no changes: a snapshot, or destroyed.
    pub sealed: AtomicBool,
    /// Whether there is a budget: most have none, and ask no further.
    has_budget: AtomicBool,
    budget: RwLock<Option<Arc<Budget>>>,
    /// How new pages are compressed, where that is not as the pool says.
    pub(super) compression: Mutex<Setting>,
}

impl LiveDataset {
    /// The dataset `id` with this tree and these accounts. [`LiveDataset::find_shared_records`] has to follow before it is changed.
    pub fn new(
        id: u64,
        tree: Tree,
        shared: Arc<Shared>,
        ledger: Ledger,
        blocks: Option<Arc<Blocks>>,
    ) -> Self {
        Self {
            id,
            tree,
            shared,
            stages: RwLock::default(),
            usage: Mutex::default(),
            sharing: Mutex::default(),
            has_shared: AtomicBool::default(),
            ledger: Mutex::new(ledger),
            blocks,
            sealed: AtomicBool::default(),
            has_budget: AtomicBool::default(),
            budget: RwLock::default(),
            compression: Mutex::default(),
        }
    }

    /// Applies edits that replace no pages.
    pub(super) fn edit(&self, edits: &mut dyn Iterator<Item = Edit>) -> Result<()> {
        let mut freed = Vec::new();
        report_unreadable(&self.tree.apply(edits, &mut |_, _| {}, &mut freed)?);
        self.let_go(Part::Node, &freed)
    }

    /// Has the next commit store a page in full that is `content` as of `top`, unless it was changed or shared since. False: it was, or there
    /// is no room. The caller holds the gate's write side, and cuts before he lets go of it.
    pub fn plain(&self, (object, page): (u64, u64), top: Ptr, content: PageBuf) -> Result<bool> {
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

    /// Something was accepted.
    pub(super) fn touch(&self, stages: &mut Stages) {
        if !std::mem::replace(&mut stages.touched, true) {
            self.shared.touched.lock().push(self.id);
        }
    }

    /// Begins a commit: what was accepted becomes what is being committed. The caller holds the gate's write side, and resets
    /// `redo_bytes` when all datasets were cut.
    pub fn cut(&self) -> Option<Arc<Pending>> {
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
    pub fn land(&self, pending: &Pending) {
        self.stages.write().committing = None;
        self.release(pending.claimed);
    }

    /// Reserves space for a change (contract W5), in the pool and within quotas, where there is room for `edits` bytes that it takes at once.
    pub fn reserve(&self, claim: Claim, beyond: Beyond, edits: u64) -> Result<(), Shortage> {
        match self.budget() {
            Some(budget) => self.shared.reserve_within(&budget, claim, beyond, edits),
            None => self.shared.reserve(claim.bytes, beyond.pool_bytes, edits),
        }
    }

    /// Returns reserved space.
    pub fn release(&self, claim: Claim) {
        if let Some(budget) = self.budget() {
            budget.release(claim);
        }
        self.shared.release(claim.bytes);
    }

    /// What bounds the dataset, if anything does.
    pub fn budget(&self) -> Option<Arc<Budget>> {
        if self.has_budget.load(Ordering::Acquire) { self.budget.read().clone() } else { None }
    }

    /// Whether there is a quota of its own on bytes before compression.
    pub(super) fn has_logical_quota(&self) -> bool {
        self.budget().is_some_and(|budget| budget.limits.logicalquota.is_some())
    }

    /// Gives it another budget, which takes over what it has claimed and has stored. The caller holds the gate's write side and the
    /// log's lock, or is opening the pool.
    pub fn set_budget(&self, budget: Option<Arc<Budget>>) {
        if let Some(budget) = &budget {
            budget.follow_logical(0, self.logical_bytes());
            let stages = self.stages.read();
            budget.take(stages.accepting.claimed);
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

    /// Recordsize of `object` in bytes, 0 if it has no pages.
    pub fn record_size(&self, object: u64) -> Result<u32> {
        self.usage.lock().record_size(&self.tree, object)
    }

    /// One past the last page of `object` that is stored or accepted.
    pub fn end_page(&self, object: u64) -> Result<u64> {
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

    /// Puts usage into the tree, before it is frozen.
    pub fn settle_usage(&self) -> Result<()> {
        let edits = self.usage.lock().drain();
        if edits.is_empty() { Ok(()) } else { self.edit(&mut edits.into_iter()) }
    }

    /// Puts usage into the tree if it is of many objects.
    pub fn bound_usage(&self) -> Result<()> {
        let many = self.usage.lock().len() > USAGE_OBJECTS_MAX;
        if many { self.settle_usage() } else { Ok(()) }
    }

    /// Whether nothing that was accepted waits for a commit.
    pub fn has_nothing_pending(&self) -> bool {
        let stages = self.stages.read();
        stages.accepting.is_empty() && stages.committing.is_none()
    }

    /// Forgets what was known of the tree, whose content was replaced.
    pub fn reset(&self) -> Result<()> {
        *self.usage.lock() = UsageTable::default();
        self.find_shared_records()
    }

    /// Logical and stored bytes of all pages.
    pub fn totals(&self) -> Result<(u64, u64)> {
        let usage = self.usage.lock();
        Ok((usage.logical_bytes(&self.tree)?, usage.stored_bytes(&self.tree)?))
    }

    /// Logical bytes of all pages; 0 where they cannot be read, which `check` tells.
    pub fn logical_bytes(&self) -> u64 {
        self.totals().map_or(0, |(logical, _)| logical)
    }

    /// Applies values to the tree alone, ascending; `None` deletes.
    pub fn put_values(&self, values: Vec<(Key, Option<Vec<u8>>)>) -> Result<()> {
        let edit = |(key, value): (Key, Option<Vec<u8>>)| {
            value.map_or(Edit::Delete(key), |bytes| Edit::Put(key, Value::Bytes(bytes.into())))
        };
        self.edit(&mut values.into_iter().map(edit))
    }

    /// Brings the leaves of these keys, which ascend, into memory; `load` gets a key of each node that is absent, level by level, and calls
    /// [`Dataset::get`] for it. What cannot be read is left out, and so is what drives out others where not all fit the cache.
    pub fn load_leaves(&self, keys: &[Key], load: &dyn Fn(&[Key])) {
        for _ in 0..TREE_LEVELS_MAX {
            let absent = self.tree.absent(keys);
            if absent.is_empty() {
                return;
            }
            load(&absent);
        }
    }

    /// The pointers that these keys have in the tree; keys ascend.
    pub fn ptrs(&self, keys: &[Key]) -> Result<Vec<Ptr>> {
        let ptr = |value| if let Value::Page(ptr) = value { Some(ptr) } else { None };
        Ok(self.tree.get_all(keys)?.into_iter().flatten().filter_map(ptr).collect())
    }

    /// Applies a value to the tree alone (replay).
    pub fn replay_value(&self, key: Key, value: Option<&[u8]>) -> Result<()> {
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
            // A file's pages come after its metadata: on to the next object, not through all of them.
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

    fn accepts_at_once(&self) -> bool {
        self.shared.accepts_at_once()
            && !self.tree.is_changing()
            && self.budget().is_none_or(|budget| budget.is_roomy(ROOMY_BYTES))
    }

    fn read(&self, object: u64, record_size: u32, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.read_pages(object, record_size, offset, buf)
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
        let mut page = page;
        loop {
            let hole = self.tree.next_hole(object, page)?.unwrap_or(u64::MAX);
            let stages = self.stages.read();
            let committing = stages.committing.as_ref();
            let written = |page| {
                stages.accepting.pages.contains_key(&(object, page))
                    || committing.is_some_and(|pending| pending.pages.contains_key(&(object, page)))
            };
            let mut after = hole;
            while after < u64::MAX && written(after) {
                after += 1;
            }
            if after == hole {
                return Ok(hole);
            }
            page = after;
        }
    }

    fn usage(&self, object: u64) -> Result<Usage> {
        self.usage.lock().get(&self.tree, object)
    }

    fn sync(&self) -> Result<()> {
        self.shared.committer()?.commit(true)
    }

    fn sync_then(&self, then: Synced) {
        match self.shared.committer() {
            Ok(committer) => committer.commit_then(then),
            Err(error) => then(Err(error)),
        }
    }

    fn space(&self) -> Space {
        let logical_bytes = self.logical_bytes();
        let space =
            self.budget().map_or_else(|| self.shared.space(), |budget| budget.space(self.shared.space()));
        Space { logical_bytes, ..space }
    }
}

/// A damaged part of the tree was cut off unread: what it referred to stays in use until the pool is checked.
pub(super) fn report_unreadable(applied: &Applied) {
    for (ptr, error) in &applied.unreadable {
        tracing::error!(addr = %ptr.addr, %error, "a tree node below a deleted range could not be read; its space is lost");
    }
}

/// The entry, if it is the file system's and not the engine's.
fn metadata((key, value): (Key, Value)) -> Option<(Key, Vec<u8>)> {
    match value {
        Value::Bytes(bytes) if key.kind < Key::ENGINE_KINDS => Some((key, bytes.into_vec())),
        Value::Bytes(_) | Value::Page(_) => None,
    }
}

/// The first key after `key`; `None` after the last of all.
fn key_after(key: &Key) -> Option<Key> {
    match (key.offset.checked_add(1), key.kind.checked_add(1)) {
        (Some(offset), _) => Some(Key { offset, ..*key }),
        (None, Some(kind)) => Some(Key::new(key.object, kind, 0)),
        (None, None) => object_after(key),
    }
}

/// The first key of the object after that of `key`; `None` after the last.
fn object_after(key: &Key) -> Option<Key> {
    key.object.checked_add(1).map(|object| Key::new(object, 0, 0))
}
