//! Acceptance of changes: the way from [`super::Dataset::apply`] to the next quiesce point.
//!
//! Changes are first made ready, which may read and holds no lock. Then they are admitted, which reserves space and
//! takes the gate. Then they are accepted into tree and memory.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::Change;
use super::budget::{Bound, Claim};
use super::claims;
use super::journal::EntryRoom;
use super::live::LiveDataset;
use super::pending::PageBuf;
use super::ready::Ready;
use super::redo::{REDO_FIXED_BYTES, REDO_PTR_BYTES};
use super::room::RoomRequest;
use super::shared::{Shortage, count};
use super::waits::Reason;
use crate::limits::{
    ATOMIC_WRITE_MAX, BASES_MAX, RECORDSIZE_MAX, RECORDSIZE_MIN, REDO_ALONE_BYTES_MAX, REDO_BYTES_MAX,
    SHARE_PAGES_MAX, TREE_LEVELS_MAX, VALUE_BYTES_MAX,
};
use crate::tree::{Edit, Value};
use crate::{Error, Key, Result};

/// Largest number of commits that are tried before a change is refused because the pool is full. A commit frees what
/// others have claimed in excess.
const COMMITS_MAX: u32 = 8;

/// Effects of earlier changes of the same call on pages.
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
    pub(super) fn apply_changes(&self, changes: &[Change<'_>]) -> Result<()> {
        self.shared.check_writable()?;
        self.check_open()?;
        let ready = self.prepare(changes)?;
        self.load_nodes(&ready)?;
        let written: u64 = changes
            .iter()
            .map(|change| if let Change::Write { data, .. } = change { data.len() as u64 } else { 0 })
            .sum();
        let (mut claim, _) = claims::of(&ready, self.copied_bytes(&ready), 0);
        if self.has_logical_quota() {
            claim.logical_bytes = self.claimed_logical_bytes(&ready)?;
        }
        let redo_bytes = check_redo(&ready)?;
        let begun = Instant::now();
        let left = self.shared.left();
        if left.spare_bytes < left.low_bytes {
            self.shared.committer()?.nudge_cleaner();
            self.shared
                .waits
                .time(Reason::Delay, || self.shared.throttle.wait(claim.bytes, || self.shared.left()));
        }
        let (gate, room, claim) = self.admit(changes, &ready, claim, redo_bytes)?;
        let waited = begun.elapsed();
        let entered = self.shared.journal().zip(room);
        if let Some((journal, room)) = &entered {
            journal.append(room, self.id, changes);
        }
        let claimed = claim.bytes;
        let accepted = self.accept(ready, claim);
        if let (Err(_), Some((journal, room))) = (&accepted, &entered) {
            journal.cancel(room);
        }
        drop(gate);
        if let Err(error) = accepted {
            // Part of the change may be in the tree, so nothing may be committed any more.
            self.shared.fail(&error);
            return Err(error);
        }
        count(&self.shared.counters.accepted_bytes, written);
        if self.shared.dirty_bytes.load(Ordering::Relaxed) >= self.shared.bounds.get().dirty_soft_bytes
            || self.shared.redo_bytes.load(Ordering::Relaxed) >= REDO_BYTES_MAX / 2
            || self.shared.journal().is_some_and(|journal| !journal.is_roomy())
        {
            self.shared.committer()?.nudge();
        }
        let delay = self.shared.commit_delay(claimed, waited);
        if !delay.is_zero() {
            self.shared.waits.time(Reason::Commit, || std::thread::sleep(delay));
        }
        self.shared.waits.note(Reason::All, waited + delay);
        Ok(())
    }

    fn check_open(&self) -> Result<()> {
        if self.takes_no_changes.load(Ordering::Relaxed) {
            return Err(Error::ReadOnly("a snapshot takes no changes".into()));
        }
        Ok(())
    }

    /// Builds pages and checks arguments. It may read, and holds no lock.
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
                    _ => {
                        self.read_base(object, record_size, page, &mut base)?;
                    }
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

    /// Brings the nodes of the tree into memory that changes need, except those of pages that are written, which the
    /// commit needs. A node that cannot be read is an error of this change alone; met in the middle of a change, it would
    /// end all changes.
    fn load_nodes(&self, ready: &[Ready]) -> Result<()> {
        let mut keys = Vec::new();
        for change in ready {
            match *change {
                Ready::Value(key, _) => keys.push(key),
                Ready::Punch { object, from, to } if from < to => {
                    keys.extend(Self::keys_of_punch(object, from, to));
                }
                Ready::Share { from_object, from_page, to_object, to_page, count } => {
                    for (object, first) in [(from_object, from_page), (to_object, to_page)] {
                        keys.push(Key::new(object, Key::USAGE, 0));
                        self.tree.pages(object, first, &mut vec![None; count as usize])?;
                        self.bases_between(object, first, first + count)?;
                    }
                }
                Ready::Page(..) | Ready::Punch { .. } => {}
            }
        }
        self.load_keys(keys)
    }

    /// Brings the leaves into memory that change if these pages, which ascend, get other records.
    pub(crate) fn load_pages(&self, pages: impl Iterator<Item = (u64, u64)>) -> Result<()> {
        let (mut keys, mut last) = (vec![Key::new(0, Key::USAGE, 0)], None);
        for (object, page) in pages {
            if last.replace(object) != Some(object) {
                keys.push(Key::new(object, Key::USAGE, 0));
            }
            keys.extend([Key::page(object, page), Key::base(object, page, 0)]);
        }
        self.load_keys(keys)
    }

    /// Brings the leaves of these keys into memory.
    pub(crate) fn load_keys(&self, mut keys: Vec<Key>) -> Result<()> {
        keys.sort();
        for _ in 0..TREE_LEVELS_MAX {
            let absent = self.tree.absent(&keys);
            if absent.is_empty() {
                break;
            }
            absent.iter().try_for_each(|key| self.tree.get(key).map(drop))?;
        }
        Ok(())
    }

    /// Returns keys in all leaves that change if an object loses its pages `from <= page < to`, of which there is one at
    /// least.
    pub(crate) fn keys_of_punch(object: u64, from: u64, to: u64) -> [Key; 5] {
        let (first, last) = (Key::page(object, from), Key::page(object, to - 1));
        [Key::new(object, Key::USAGE, 0), first, last, Key::base(object, from, 0), last_base(object, to)]
    }

    /// Takes the gate, and reserves `claim` as well as room in the log and the journal. It commits or makes room first
    /// if necessary.
    fn admit(
        &self,
        changes: &[Change<'_>],
        ready: &[Ready],
        mut claim: Claim,
        redo_bytes: u64,
    ) -> Result<(parking_lot::RwLockReadGuard<'_, ()>, Option<EntryRoom>, Claim)> {
        if self.shared.dirty_bytes.load(Ordering::Relaxed) >= self.shared.dirty_limit.load(Ordering::Relaxed)
        {
            let committer = self.shared.committer()?;
            self.shared.waits.time(Reason::Commit, || committer.commit(false))?;
        }
        let waits = &self.shared.waits;
        let edits = ready.iter().map(claims::edit_bytes).sum();
        let (mut commits, mut counted, mut settled, mut in_log) = (0, false, false, false);
        let shortage = loop {
            let gate = match self.shared.gate.try_read() {
                Some(gate) => gate,
                None => waits.time(Reason::Gate, || self.shared.gate.read()),
            };
            self.shared.check_writable()?;
            // This is checked under the gate, since datasets are destroyed with the gate closed.
            self.check_open()?;
            if !self.shared.reserve_redo(redo_bytes) {
                drop(gate);
                let committer = self.shared.committer()?;
                waits.time(Reason::Log, || committer.commit(false))?;
                continue;
            }
            // A commit stores pages that are shared: the next attempt claims less for them.
            let slack = self.shared.bounds.get().slack_bytes;
            let (Claim { bytes, .. }, beyond) = claims::of(ready, self.copied_bytes(ready), slack);
            claim.bytes = bytes;
            let reserved = self.reserve(claim, beyond, edits);
            if reserved.is_ok() {
                let Some(journal) = self.shared.journal() else { return Ok((gate, None, claim)) };
                match journal.reserve(changes) {
                    Ok(Some(room)) => return Ok((gate, Some(room), claim)),
                    full => {
                        self.release(claim);
                        self.shared.release_redo(redo_bytes);
                        drop(gate);
                        full?;
                        let committer = self.shared.committer()?;
                        waits.time(Reason::Log, || committer.commit(false))?;
                        continue;
                    }
                }
            }
            self.shared.release_redo(redo_bytes);
            drop(gate);
            let Err(shortage) = reserved else { continue };
            let committer = self.shared.committer()?;
            match &shortage {
                // A commit replaces what is claimed, and what may change in the tree, by what that really takes.
                Shortage::Room if !std::mem::replace(&mut in_log, true) => {
                    waits.time(Reason::Room, || committer.commit(false))?;
                    continue;
                }
                Shortage::Room => {
                    in_log = false;
                    // This asks for as much as is reserved above. With less, the loop would not end.
                    let wanted = RoomRequest { claim_bytes: claim.bytes, redo_bytes, edit_bytes: edits };
                    waits.time(Reason::Room, || committer.make_room(wanted))?;
                    continue;
                }
                // Pages that exist already take nothing more. They are counted only here, where that decides.
                Shortage::Quota(refused) if refused.bound == Bound::LogicalQuota && !counted => {
                    claim.logical_bytes = self.new_logical_bytes(ready)?;
                    counted = true;
                    continue;
                }
                // The refusal is final: a commit would gain nothing, and others would have to wait for it.
                Shortage::Quota(refused) if !refused.is_claimed => break shortage,
                Shortage::Quota(_) if commits > 0 => break shortage,
                Shortage::Pool if commits > 0 => {
                    if commits == COMMITS_MAX || self.shared.is_full(claim.bytes, beyond.pool_bytes) {
                        // The space of what was destroyed comes back step by step.
                        if waits.time(Reason::Room, || committer.reap_some())? {
                            continue;
                        }
                        break shortage;
                    }
                    if !std::mem::replace(&mut settled, true) {
                        committer.settle()?;
                    }
                }
                Shortage::Quota(_) | Shortage::Pool => {}
            }
            // Claims are upper bounds: a commit replaces them by what pages really take.
            waits.time(Reason::Commit, || committer.commit(false))?;
            commits += 1;
        };
        let asked = claim.bytes;
        Err(Error::NoSpace(match shortage {
            Shortage::Quota(refused) => format!("{asked} bytes were asked for, and {refused}"),
            Shortage::Pool | Shortage::Room => {
                let space = self.shared.space();
                format!(
                    "{asked} bytes were asked for and {} of {} are left; delete something, or snapshots that hold it",
                    space.available_bytes, space.capacity_bytes
                )
            }
        }))
    }

    fn accept(&self, ready: Vec<Ready>, claim: Claim) -> Result<()> {
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
                Ready::Punch { from, to, .. } if from >= to => {}
                Ready::Punch { object, from, to } => {
                    stages = None;
                    self.punch(object, from, to)?;
                    self.shared.reapers.note();
                }
                Ready::Share { from_object, from_page, to_object, to_page, count } => {
                    stages = None;
                    self.share((from_object, from_page), (to_object, to_page), count)?;
                }
            }
        }
        drop(stages);
        let mut stages = self.stages.write();
        stages.accepting.claimed.add(claim);
        self.touch(&mut stages);
        drop(stages);
        self.shared.accepted.fetch_add(1, Ordering::Release);
        Ok(())
    }
}

/// Returns the last key that bases of pages below `to` may have; `u64::MAX` stands for all pages.
fn last_base(object: u64, to: u64) -> Key {
    match Key::base(object, to, 0) {
        Key { kind: Key::BASE, offset, .. } => Key::new(object, Key::BASE, offset.saturating_sub(1)),
        _ => Key::new(object, Key::BASE, u64::MAX),
    }
}

/// Upper bound of what a shared page adds to the redo operations, in bytes: its record with all bases, or a hole and a
/// page of its own, since pages of the source that are not committed yet are written to the target.
const REDO_SHARED_BYTES: usize = {
    let (bases, written) = (BASES_MAX * REDO_PTR_BYTES, REDO_FIXED_BYTES + REDO_PTR_BYTES);
    REDO_PTR_BYTES + 1 + if bases > written { bases } else { written }
};

/// Returns an upper bound of the redo operations of changes that are applied at once, in bytes.
///
/// # Errors
/// [`Error::Invalid`] if no segment of the log has room for them.
fn check_redo(ready: &[Ready]) -> Result<u64> {
    let bytes = ready.iter().map(redo_bytes).sum();
    if bytes > REDO_ALONE_BYTES_MAX {
        let largest = ready.iter().max_by_key(|change| redo_bytes(change)).map_or(0, Ready::object);
        return Err(Error::Invalid(format!(
            "a change of object {largest}, with all that it is to be done with at once, may take {bytes} bytes of \
             operations in the log, and {REDO_ALONE_BYTES_MAX} is the most: divide it"
        )));
    }
    Ok(bytes)
}

/// Upper bound of what a change adds to the redo operations of its commit, in bytes.
fn redo_bytes(change: &Ready) -> u64 {
    let bytes = match change {
        Ready::Value(_, value) => REDO_FIXED_BYTES + value.as_ref().map_or(0, Vec::len),
        Ready::Page(..) => REDO_FIXED_BYTES + REDO_PTR_BYTES,
        Ready::Punch { .. } => REDO_FIXED_BYTES,
        Ready::Share { count, .. } => {
            return REDO_FIXED_BYTES as u64 + count * REDO_SHARED_BYTES as u64;
        }
    };
    bytes as u64
}

fn check_value(key: &Key, len_bytes: usize) -> Result<()> {
    if key.kind >= Key::ENGINE_KINDS {
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
    if len_bytes > ATOMIC_WRITE_MAX {
        return Err(Error::Invalid(format!(
            "a write of {len_bytes} bytes at byte {offset} is longer than {ATOMIC_WRITE_MAX} bytes, the most that one change can write: split it"
        )));
    }
    if offset.checked_add(len_bytes as u64).is_none() {
        return Err(Error::Invalid(format!("a write of {len_bytes} bytes at byte {offset} is out of range")));
    }
    Ok(())
}
