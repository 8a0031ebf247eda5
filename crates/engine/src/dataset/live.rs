//! A dataset of an open pool.
//!
//! - D2: a page that was accepted is found in `accepting`, or in `committing`, or in the tree; it moves in this
//!   order and is visible in the next place before it leaves the one before. Readers look in the same order.
//! - D3: the tree holds exactly the values that were accepted, and the pages whose batch is complete.
//! - D4: page operations wait for a commit in flight that touches their pages, so that the tree sees page
//!   changes in the order of the log.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};

use super::pending::{PageBuf, PageOp, Pending};
use super::redo::{PageRun, REDO_FIXED_BYTES, REDO_PTR_BYTES};
use super::shared::{Shared, count};
use super::usage::{UsageDelta, UsageTable};
use super::{Change, Dataset, Space, Usage};
use crate::limits::{
    ATOMIC_WRITE_MAX, RECORDSIZE_MAX, RECORDSIZE_MIN, REDO_BYTES_MAX, SHARE_PAGES_MAX, VALUE_BYTES_MAX,
};
use crate::tree::{Applied, Edit, Tree, Value};
use crate::{Error, Key, Ptr, Result};

/// Space claimed for a page beside its bytes: directory entries, its place in the tree.
const PAGE_CLAIM_BYTES: u64 = 64;
/// Space claimed for a value beside its bytes.
const VALUE_CLAIM_BYTES: u64 = 128;

#[derive(Default)]
pub(super) struct Stages {
    pub(super) accepting: Pending,
    pub(super) committing: Option<Arc<Pending>>,
}

/// A file system or volume of an open pool.
pub struct LiveDataset {
    /// Number of the dataset in the pool.
    pub id: u64,
    /// Its tree.
    pub tree: Tree,
    pub(super) shared: Arc<Shared>,
    pub(super) stages: RwLock<Stages>,
    usage: Mutex<UsageTable>,
    /// Number of records that more than one page refers to; also serialises changes of their counts.
    sharing: Mutex<()>,
    shared_records: AtomicU64,
}

/// A change made ready outside of the gate.
enum Ready {
    Value(Key, Option<Vec<u8>>),
    Page(u64, u64, PageBuf),
    Punch { object: u64, from: u64, to: u64 },
    Share { from_object: u64, from_page: u64, to_object: u64, to_page: u64, count: u64 },
}

/// What earlier changes of the same call did to pages.
#[derive(Default)]
struct Fresh {
    written: HashMap<(u64, u64), usize>,
    punched: Vec<(u64, u64, u64)>,
    shared: Vec<(u64, u64, u64)>,
}

impl Fresh {
    fn covers(ranges: &[(u64, u64, u64)], object: u64, page: u64) -> bool {
        ranges.iter().any(|(of, from, to)| *of == object && (*from..*to).contains(&page))
    }
}

impl LiveDataset {
    /// The dataset `id` with this tree.
    pub fn new(id: u64, tree: Tree, shared: Arc<Shared>) -> Result<Self> {
        let dataset = Self {
            id,
            tree,
            shared,
            stages: RwLock::default(),
            usage: Mutex::default(),
            sharing: Mutex::default(),
            shared_records: AtomicU64::default(),
        };
        dataset.count_shared_records()?;
        Ok(dataset)
    }

    fn count_shared_records(&self) -> Result<()> {
        let from = Key::new(0, Key::SHARED, 0);
        let to = Key::new(0, Key::SHARED + 1, 0);
        // One is enough to know that counts must be consulted.
        let found = self.tree.range(&from, &to, 1)?.len() as u64;
        self.shared_records.fetch_max(found, Ordering::Relaxed);
        Ok(())
    }

    /// Builds pages and checks arguments; may read. No lock is held.
    fn prepare(&self, changes: &[Change<'_>]) -> Result<Vec<Ready>> {
        let mut ready = Vec::with_capacity(changes.len());
        let mut fresh = Fresh::default();
        for change in changes {
            match change {
                Change::Put(key, value) => {
                    check_value(key, value.len())?;
                    ready.push(Ready::Value(*key, Some(value.clone())));
                }
                Change::Delete(key) => {
                    check_value(key, 0)?;
                    ready.push(Ready::Value(*key, None));
                }
                Change::Write { object, record_size, offset, data } => {
                    check_write(*record_size, *offset, data.len())?;
                    self.prepare_write(*object, *record_size, *offset, data, &mut fresh, &mut ready)?;
                }
                Change::Punch { object, from, to } => {
                    fresh.written.retain(|(of, page), _| of != object || !(*from..*to).contains(page));
                    fresh.punched.push((*object, *from, *to));
                    ready.push(Ready::Punch { object: *object, from: *from, to: *to });
                }
                Change::Share { from_object, from_page, to_object, to_page, count } => {
                    let ends = (from_page.checked_add(*count), to_page.checked_add(*count));
                    if !matches!(ends, (Some(_), Some(_))) || *count > SHARE_PAGES_MAX {
                        return Err(Error::Invalid("a shared range of pages is out of range".into()));
                    }
                    let to = *to_page..to_page + count;
                    fresh.written.retain(|(of, page), _| of != to_object || !to.contains(page));
                    fresh.shared.push((*to_object, *to_page, to_page + count));
                    ready.push(Ready::Share {
                        from_object: *from_object,
                        from_page: *from_page,
                        to_object: *to_object,
                        to_page: *to_page,
                        count: *count,
                    });
                }
            }
        }
        Ok(ready)
    }

    fn prepare_write(
        &self,
        object: u64,
        record_size: u32,
        offset: u64,
        data: &[u8],
        fresh: &mut Fresh,
        ready: &mut Vec<Ready>,
    ) -> Result<()> {
        let size = u64::from(record_size);
        let mut rest = data;
        let mut at = offset;
        while !rest.is_empty() {
            let (page, within) = (at / size, (at % size) as usize);
            let len = rest.len().min(record_size as usize - within);
            let (part, tail) = rest.split_at(len);
            let buf: PageBuf = if len == record_size as usize {
                PageBuf::from(part)
            } else {
                let mut base = vec![0; record_size as usize];
                match fresh.written.get(&(object, page)).and_then(|at| ready.get(*at)) {
                    Some(Ready::Page(_, _, buf)) => base.copy_from_slice(buf),
                    _ if Fresh::covers(&fresh.shared, object, page) => {
                        return Err(Error::Invalid("a change shares a page and writes a part of it".into()));
                    }
                    _ if Fresh::covers(&fresh.punched, object, page) => {}
                    _ => self.read_pages(object, record_size, page * size, &mut base)?,
                }
                if let Some(target) = base.get_mut(within..within + len) {
                    target.copy_from_slice(part);
                }
                base.into()
            };
            fresh.written.insert((object, page), ready.len());
            ready.push(Ready::Page(object, page, buf));
            rest = tail;
            at += len as u64;
        }
        Ok(())
    }

    /// Takes the gate and reserves `claim` and room in the log, committing or making room first if need be.
    fn admit(
        &self,
        claim: u64,
        redo_bytes: u64,
        beyond: u64,
    ) -> Result<parking_lot::RwLockReadGuard<'_, ()>> {
        if self.shared.dirty_bytes.load(Ordering::Relaxed) >= self.shared.bounds.dirty_hard_bytes {
            self.shared.committer()?.commit(false)?;
        }
        let mut committed = false;
        loop {
            let gate = self.shared.gate.read();
            self.shared.check_writable()?;
            if !self.shared.reserve_redo(redo_bytes) {
                drop(gate);
                self.shared.committer()?.commit(false)?;
                continue;
            }
            if self.shared.reserve(claim, beyond) {
                return Ok(gate);
            }
            self.shared.release_redo(redo_bytes);
            drop(gate);
            if committed {
                break;
            }
            // What is claimed is an upper bound: a commit replaces it by what pages really take.
            self.shared.committer()?.commit(false)?;
            committed = true;
        }
        let space = self.shared.space();
        Err(Error::NoSpace(format!(
            "{claim} bytes were asked for and {} of {} are left; delete something or add a device",
            space.available_bytes, space.capacity_bytes
        )))
    }

    fn accept(&self, ready: Vec<Ready>, claim: u64) -> Result<()> {
        let mut stages = None;
        for change in ready {
            match change {
                Ready::Value(key, value) => {
                    stages = None;
                    let edit = match &value {
                        Some(bytes) => Edit::Put(key, Value::Bytes(bytes.as_slice().into())),
                        None => Edit::Delete(key),
                    };
                    self.edit(&mut std::iter::once(edit))?;
                    self.stages.write().accepting.set(key, value);
                }
                Ready::Page(object, page, buf) => {
                    let stages = stages.get_or_insert_with(|| self.stages.write());
                    let before = stages.accepting.page_bytes;
                    stages.accepting.write(object, page, buf);
                    let more = stages.accepting.page_bytes - before.min(stages.accepting.page_bytes);
                    count(&self.shared.dirty_bytes, more);
                }
                Ready::Punch { object, from, to } => {
                    stages = None;
                    self.punch(object, from, to)?;
                }
                Ready::Share { from_object, from_page, to_object, to_page, count } => {
                    stages = None;
                    self.share((from_object, from_page), (to_object, to_page), count)?;
                }
            }
        }
        drop(stages);
        self.stages.write().accepting.claimed_bytes += claim;
        self.shared.accepted.fetch_add(1, Ordering::Release);
        Ok(())
    }

    /// Applies edits that replace no pages.
    fn edit(&self, edits: &mut dyn Iterator<Item = Edit>) -> Result<()> {
        let mut freed = Vec::new();
        report_unreadable(&self.tree.apply(edits, &mut |_, _| {}, &mut freed)?);
        self.shared.segments.mark_dead(&freed);
        Ok(())
    }

    fn wait_for_pages(&self, object: u64, from: u64, to: u64) {
        let busy =
            self.stages.read().committing.as_ref().is_some_and(|pending| pending.touches(object, from, to));
        if busy {
            self.shared.wait_landed();
        }
    }

    fn punch(&self, object: u64, from: u64, to: u64) -> Result<()> {
        self.wait_for_pages(object, from, to);
        {
            let mut stages = self.stages.write();
            let before = stages.accepting.page_bytes;
            stages.accepting.forget(object, from, to);
            self.shared.dirty_bytes.fetch_sub(before - stages.accepting.page_bytes, Ordering::Relaxed);
            stages.accepting.page_op(PageOp::Punch { object, from, to });
        }
        self.remove_pages(object, from, to)
    }

    /// Removes pages from the tree and frees their records (runtime and replay).
    pub fn remove_pages(&self, object: u64, from: u64, to: u64) -> Result<()> {
        let range = Edit::DeleteRange(Key::page(object, from), page_end(object, to));
        self.replace_pages(object, None, &mut std::iter::once(range), 0, 0)
    }

    /// Points consecutive pages to records and frees what they held before (runtime and replay).
    pub fn put_pages(&self, run: &PageRun) -> Result<()> {
        if run.shared {
            self.add_references(&run.ptrs)?;
        }
        let (mut pages, mut stored) = (0, 0);
        for ptr in run.ptrs.iter().flatten() {
            pages += 1;
            stored += i64::from(ptr.len_bytes);
        }
        let mut edits = (run.first..).zip(&run.ptrs).map(|(page, ptr)| {
            let key = Key::page(run.object, page);
            ptr.map_or(Edit::Delete(key), |ptr| Edit::Put(key, Value::Page(ptr)))
        });
        // Holes shared from an object without pages say nothing of the target's recordsize.
        let record_size = (run.record_size > 0).then_some(run.record_size);
        self.replace_pages(run.object, record_size, &mut edits, pages, stored)
    }

    fn replace_pages(
        &self,
        object: u64,
        record_size: Option<u32>,
        edits: &mut dyn Iterator<Item = Edit>,
        mut pages: i64,
        mut stored_bytes: i64,
    ) -> Result<()> {
        let mut freed = Vec::new();
        let mut replaced = Vec::new();
        let applied = self.tree.apply(
            edits,
            &mut |_, value| {
                if let Value::Page(ptr) = value {
                    replaced.push(ptr);
                }
            },
            &mut freed,
        )?;
        report_unreadable(&applied);
        for ptr in &replaced {
            pages -= 1;
            stored_bytes -= i64::from(ptr.len_bytes);
        }
        self.shared.segments.mark_dead(&freed);
        self.release_records(replaced)?;
        if pages != 0 || stored_bytes != 0 || record_size.is_some() {
            self.usage.lock().apply(&self.tree, object, UsageDelta { pages, stored_bytes, record_size })?;
        }
        Ok(())
    }

    /// Drops one reference to each record; a record without references is dead.
    fn release_records(&self, mut ptrs: Vec<Ptr>) -> Result<()> {
        if ptrs.is_empty() {
            return Ok(());
        }
        if self.shared_records.load(Ordering::Relaxed) > 0 {
            let _serial = self.sharing.lock();
            let mut last = Vec::with_capacity(ptrs.len());
            for ptr in ptrs {
                let key = shared_key(ptr);
                match self.references(&key)? {
                    1 => last.push(ptr),
                    2 => self.edit(&mut std::iter::once(Edit::Delete(key)))?,
                    more => self.edit(&mut std::iter::once(Edit::Put(key, references_value(more - 1))))?,
                }
            }
            ptrs = last;
        }
        self.shared.segments.mark_dead(&ptrs);
        Ok(())
    }

    fn add_references(&self, ptrs: &[Option<Ptr>]) -> Result<()> {
        let _serial = self.sharing.lock();
        self.shared_records.fetch_max(1, Ordering::Relaxed);
        for ptr in ptrs.iter().flatten() {
            let key = shared_key(*ptr);
            let references = self.references(&key)? + 1;
            self.edit(&mut std::iter::once(Edit::Put(key, references_value(references))))?;
        }
        Ok(())
    }

    fn references(&self, key: &Key) -> Result<u64> {
        let Some(Value::Bytes(bytes)) = self.tree.get(key)? else { return Ok(1) };
        let raw = <[u8; 8]>::try_from(&*bytes)
            .map_err(|_| Error::corrupt("reference count", "it has a wrong length"))?;
        Ok(u64::from_le_bytes(raw).max(2))
    }

    fn share(&self, from: (u64, u64), to: (u64, u64), count_pages: u64) -> Result<()> {
        self.shared.wait_landed();
        let mut written = Vec::new();
        {
            let stages = self.stages.read();
            for at in 0..count_pages {
                if let Some(buf) = stages.accepting.pages.get(&(from.0, from.1 + at)) {
                    written.push((at, Arc::clone(buf)));
                }
            }
        }
        let mut ptrs = vec![None; usize::try_from(count_pages).unwrap_or(usize::MAX)];
        self.tree.pages(from.0, from.1, &mut ptrs)?;
        for (at, _) in &written {
            if let Some(slot) = ptrs.get_mut(*at as usize) {
                *slot = None;
            }
        }
        let stored_size = self.usage.lock().record_size(&self.tree, from.0)?;
        let record_size = written.first().map_or(stored_size, |(_, buf)| buf.len() as u32);
        let run = PageRun { dataset: self.id, object: to.0, record_size, first: to.1, shared: true, ptrs };
        self.put_pages(&run)?;
        let mut stages = self.stages.write();
        let before = stages.accepting.page_bytes;
        stages.accepting.forget(to.0, to.1, to.1 + count_pages);
        stages.accepting.page_op(PageOp::Share(run));
        for (at, buf) in written {
            stages.accepting.write(to.0, to.1 + at, buf);
        }
        let after = stages.accepting.page_bytes;
        if after >= before {
            count(&self.shared.dirty_bytes, after - before);
        } else {
            self.shared.dirty_bytes.fetch_sub(before - after, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Begins a commit: what was accepted becomes what is being committed. The caller holds the gate's write side.
    pub fn cut(&self) -> Option<Arc<Pending>> {
        let mut stages = self.stages.write();
        self.shared.redo_bytes.store(0, Ordering::Relaxed);
        if stages.accepting.is_empty() {
            self.shared.release(std::mem::take(&mut stages.accepting.claimed_bytes));
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
        self.shared.release(pending.claimed_bytes);
    }

    /// Puts usage into the tree, before it is frozen.
    pub fn settle_usage(&self) -> Result<()> {
        let edits = self.usage.lock().drain();
        self.edit(&mut edits.into_iter())
    }

    /// Logical and stored bytes of all pages.
    pub fn totals(&self) -> Result<(u64, u64)> {
        let usage = self.usage.lock();
        Ok((usage.logical_bytes(&self.tree)?, usage.stored_bytes(&self.tree)?))
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

    fn apply(&self, changes: &[Change<'_>]) -> Result<()> {
        self.shared.check_writable()?;
        let ready = self.prepare(changes)?;
        let mut claim = 0;
        let (mut freeing, mut storing) = (false, false);
        for change in &ready {
            claim += match change {
                Ready::Value(_, value) => {
                    VALUE_CLAIM_BYTES + value.as_ref().map_or(0, |value| value.len() as u64)
                }
                Ready::Page(_, _, buf) => PAGE_CLAIM_BYTES + buf.len() as u64,
                Ready::Punch { .. } => VALUE_CLAIM_BYTES,
                Ready::Share { count, .. } => VALUE_CLAIM_BYTES + count * PAGE_CLAIM_BYTES,
            };
            let frees = matches!(change, Ready::Punch { .. } | Ready::Value(_, None));
            freeing |= frees;
            storing |= !frees;
        }
        let written: u64 = changes
            .iter()
            .map(|change| if let Change::Write { data, .. } = change { data.len() as u64 } else { 0 })
            .sum();
        // A truncation rewrites the last page that stays: at most one recordsize.
        let small = claim <= u64::from(RECORDSIZE_MAX) + 16 * VALUE_CLAIM_BYTES + VALUE_BYTES_MAX as u64;
        // Whether it frees more than it stores is not known: what the pool keeps back bounds how far that goes.
        let beyond = match (freeing && small, storing) {
            (true, false) => u64::MAX,
            (true, true) => self.shared.bounds.dirty_hard_bytes,
            (false, _) => 0,
        };
        let redo_bytes = ready.iter().map(redo_bytes).sum();
        let gate = self.admit(claim, redo_bytes, beyond)?;
        let accepted = self.accept(ready, claim);
        drop(gate);
        if let Err(error) = accepted {
            // Part of the change may be in the tree: nothing may be committed any more.
            self.shared.fail(&error);
            return Err(error);
        }
        count(&self.shared.counters.accepted_bytes, written);
        if self.shared.dirty_bytes.load(Ordering::Relaxed) >= self.shared.bounds.dirty_soft_bytes
            || self.shared.redo_bytes.load(Ordering::Relaxed) >= REDO_BYTES_MAX / 2
        {
            self.shared.committer()?.nudge();
        }
        Ok(())
    }

    fn accepts_at_once(&self) -> bool {
        self.shared.accepts_at_once() && !self.tree.is_changing()
    }

    fn read(&self, object: u64, record_size: u32, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.read_pages(object, record_size, offset, buf)
    }

    fn try_read(&self, object: u64, record_size: u32, offset: u64, buf: &mut [u8]) -> Result<bool> {
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

    fn space(&self) -> Space {
        let logical_bytes = self.totals().map_or(0, |(logical, _)| logical);
        Space { logical_bytes, ..self.shared.space() }
    }
}

/// A damaged part of the tree was cut off unread: what it referred to stays in use until the pool is checked.
fn report_unreadable(applied: &Applied) {
    for (ptr, error) in &applied.unreadable {
        tracing::error!(addr = %ptr.addr, %error, "a tree node below a deleted range could not be read; its space is lost");
    }
}

/// Upper bound of what a change adds to the redo operations of its commit, in bytes.
fn redo_bytes(change: &Ready) -> u64 {
    let bytes = match change {
        Ready::Value(_, value) => REDO_FIXED_BYTES + value.as_ref().map_or(0, Vec::len),
        Ready::Page(..) => REDO_FIXED_BYTES + REDO_PTR_BYTES,
        Ready::Punch { .. } => REDO_FIXED_BYTES,
        // Pages of the source that are not committed yet are written to the target.
        Ready::Share { count, .. } => {
            return REDO_FIXED_BYTES as u64 + count * (REDO_FIXED_BYTES + 2 * REDO_PTR_BYTES) as u64;
        }
    };
    bytes as u64
}

fn page_end(object: u64, to: u64) -> Key {
    if to == u64::MAX { Key::new(object, Key::PAGE + 1, 0) } else { Key::page(object, to) }
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

fn shared_key(ptr: Ptr) -> Key {
    Key::new(0, Key::SHARED, ptr.addr.raw())
}

fn references_value(references: u64) -> Value {
    Value::Bytes(references.to_le_bytes().into())
}

fn check_value(key: &Key, len_bytes: usize) -> Result<()> {
    if key.kind >= Key::ENGINE_KINDS && key.kind != Key::PROPERTY {
        return Err(Error::Invalid(format!("kind {:#x} of a key belongs to the engine", key.kind)));
    }
    if len_bytes > VALUE_BYTES_MAX {
        return Err(Error::Invalid(format!("a value of {len_bytes} bytes is longer than {VALUE_BYTES_MAX}")));
    }
    Ok(())
}

fn check_write(record_size: u32, offset: u64, len_bytes: usize) -> Result<()> {
    if !record_size.is_power_of_two() || !(RECORDSIZE_MIN..=RECORDSIZE_MAX).contains(&record_size) {
        return Err(Error::Invalid(format!(
            "recordsize {record_size} is not a power of two from {RECORDSIZE_MIN} to {RECORDSIZE_MAX}"
        )));
    }
    if len_bytes > ATOMIC_WRITE_MAX || offset.checked_add(len_bytes as u64).is_none() {
        return Err(Error::Invalid(format!("a write of {len_bytes} bytes at byte {offset} is out of range")));
    }
    Ok(())
}
