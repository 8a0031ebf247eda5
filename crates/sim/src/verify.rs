//! Compares a pool with the model.

use std::collections::{BTreeMap, HashSet};

use pagefold_engine::dataset::{Attempt, Bound, Dataset, LiveDataset, ModelEntry};
use pagefold_engine::pool::{Pool, QuotaUse};
use pagefold_engine::segment::RECORD_OVERHEAD_BYTES;
use pagefold_engine::tree::{Value, Visit};
use pagefold_engine::{Addr, Error, Key, Ptr};

use crate::history::{OBJECTS, record_size};
use crate::model::{COUNTER, State};
use crate::world::{Signature, World};

/// Bytes compared at a time, by object in turn: for most objects few enough for the processor's cache, for one in four
/// so many that several cores read them.
const STEP_BYTES: [u64; 4] = [1 << 17, 1 << 17, 1 << 17, 1 << 20];
/// Length in bytes above which only the edges of a hole are read.
const HOLE_BYTES: u64 = 64 << 10;
/// Largest number of bytes of a hole that are read beside a page.
const EDGE_BYTES: u64 = 32 << 10;
/// Largest number of bytes that the pages of the segment table take in pools of this size.
const TABLE_BYTES_MAX: u64 = 1 << 20;

type Verdict = Result<(), String>;

/// Assumptions of a comparison.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    /// True if nothing is waiting for a commit, so that accounts are exact.
    pub(crate) settled: bool,
    /// True if reads may fail (but never lie).
    pub(crate) may_fail: bool,
    /// Calls by which pages are read.
    pub(crate) calls: Calls,
}

/// Calls by which pages are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Calls {
    /// By `try_read`, and then again by `read`.
    Both,
    /// By `try_read`, and by `read` only what it leaves.
    Try,
    /// By `read`.
    Read,
}

/// Returns what was read, or `None` if the read failed and the terms allow that.
fn allow<T>(terms: Terms, what: &str, read: pagefold_engine::Result<T>) -> Result<Option<T>, String> {
    match read {
        Ok(value) => Ok(Some(value)),
        Err(_) if terms.may_fail => Ok(None),
        Err(error) => Err(format!("{what}: {error}")),
    }
}

/// Compares one range of bytes.
pub(crate) fn compare_range(
    dataset: &dyn Dataset,
    state: &State,
    (object, offset, len): (u64, u64, u64),
    terms: Terms,
) -> Verdict {
    let mut found = vec![0xEE; len as usize];
    let size = record_size(object);
    let differs = |found: &[u8]| {
        let at = state.difference(object, offset, found)?;
        Some(format!("object {object} differs from byte {at} (page {}) on", at / u64::from(size)))
    };
    if terms.calls != Calls::Read {
        let tried = match allow(terms, "try_read", dataset.try_read(object, size, offset, &mut found))? {
            Some(Attempt::Done) => true,
            Some(Attempt::Fetch(page)) => match page.read(&mut found) {
                // Whoever reads the device himself asks `read` then, which has the other devices of a mirror.
                Err(Error::Io { .. }) => false,
                read => allow(terms, "fetch", read)? == Some(true),
            },
            Some(Attempt::Wait) | None => false,
        };
        if tried && let Some(why) = differs(&found) {
            return Err(format!("try_read: {why}"));
        }
        if tried && terms.calls == Calls::Try {
            return Ok(());
        }
        // Bytes that were read right must not stand in for bytes that the next read leaves out.
        found.fill(0xEE);
    }
    let what = format!("read of object {object} at {offset}, {len} bytes");
    if allow(terms, &what, dataset.read(object, size, offset, &mut found))?.is_some()
        && let Some(why) = differs(&found)
    {
        return Err(why);
    }
    Ok(())
}

/// Returns true if an opening failed by damage to the log or the journal, which alone have no second copy.
pub(crate) fn is_log_damage(error: &Error) -> bool {
    matches!(error, Error::Corrupt { what, .. } if what == "log" || what.starts_with("log at byte") || what.starts_with("log device at byte"))
}

fn compare_values(dataset: &dyn Dataset, state: &State, terms: Terms) -> Verdict {
    for object in 0..OBJECTS.end {
        let (from, to) = (Key::new(object, 0, 0), Key::new(object, Key::ENGINE_KINDS, 0));
        let range = dataset.range(&from, &to, usize::MAX);
        let Some(found) = allow(terms, "range", range)? else { continue };
        let expected: Vec<_> = state.values.range(from..to).collect();
        let differs = expected.iter().zip(&found).find(|((ka, va), (kb, vb))| *ka != kb || *va != vb);
        if let Some(((expected, _), (found, _))) = differs {
            return Err(format!("values differ: {expected:?} was expected, {found:?} is there"));
        }
        if expected.len() != found.len() {
            return Err(format!("object {object} has {} values, not {}", found.len(), expected.len()));
        }
    }
    Ok(())
}

/// Compares all datasets and snapshots.
pub(crate) fn compare(pool: &Pool, world: &World, terms: Terms) -> Verdict {
    for (path, state) in world.states() {
        let dataset = pool.open_dataset(&path).map_err(|error| format!("open of '{path}': {error}"))?;
        // Nothing of a snapshot waits for a commit.
        let terms = Terms { settled: terms.settled || path.contains('@'), ..terms };
        compare_one(&*dataset, state, terms).map_err(|why| format!("'{path}': {why}"))?;
    }
    Ok(())
}

/// Compares all values and pages.
fn compare_one(dataset: &dyn Dataset, state: &State, terms: Terms) -> Verdict {
    compare_values(dataset, state, terms)?;
    for (object, step) in OBJECTS.zip(STEP_BYTES.into_iter().cycle()) {
        for (from, to) in extents(state, object, terms) {
            let mut at = from;
            while at < to {
                let len = step.min(to - at);
                compare_range(dataset, state, (object, at, len), terms)?;
                at += len;
            }
        }
        if terms.settled {
            compare_map(dataset, state, object, terms)?;
        }
    }
    Ok(())
}

/// Returns the ranges of bytes of an object that are read to compare it. Where seeking is compared, too, and must not
/// fail, long holes are not read but for their edges.
fn extents(state: &State, object: u64, terms: Terms) -> Vec<(u64, u64)> {
    let size = u64::from(record_size(object));
    let gap = if terms.settled && !terms.may_fail { HOLE_BYTES } else { u64::MAX };
    let mut found: Vec<(u64, u64)> = Vec::new();
    for (_, page) in state.pages.range((object, 0)..(object, u64::MAX)).map(|(key, _)| *key) {
        let (from, to) = (page * size, (page + 1) * size);
        match found.last_mut() {
            Some((_, end)) if from - *end <= gap => *end = to,
            _ => found.push((if gap == u64::MAX { 0 } else { from }, to)),
        }
    }
    if found.is_empty() {
        found.push((0, 0));
    }
    // The edges of the holes before and behind are ranges of their own, so that reads of pages begin and end where
    // pages do.
    let edge = EDGE_BYTES.min(2 * size);
    let parts = found
        .into_iter()
        .flat_map(|(from, to)| [(from.saturating_sub(edge), from), (from, to), (to, to + edge)]);
    parts.filter(|(from, to)| from < to).collect()
}

/// Compares data and holes of an object, as seeking shows them, with the model.
fn compare_map(dataset: &dyn Dataset, state: &State, object: u64, terms: Terms) -> Verdict {
    let mut found = Vec::new();
    let mut at = 0;
    loop {
        match allow(terms, "next_data", dataset.next_data(object, at))? {
            None => return Ok(()),
            Some(None) => break,
            Some(Some(data)) => {
                let Some(hole) = allow(terms, "next_hole", dataset.next_hole(object, data))? else {
                    return Ok(());
                };
                if data < at || hole <= data {
                    return Err(format!("object {object}: data at {data}, hole at {hole}, sought from {at}"));
                }
                found.extend(data..hole.min(data + (1 << 20)));
                at = hole;
            }
        }
    }
    let expected: Vec<u64> = state.stored(object).collect();
    if found != expected {
        let extra = found.iter().find(|page| !expected.contains(page));
        let missing = expected.iter().find(|page| !found.contains(page));
        return Err(format!(
            "object {object}: page {extra:?} is stored and should not, {missing:?} should be"
        ));
    }
    Ok(())
}

/// Returns the signature of the pool's content, which tells the changes that the pool holds.
pub(crate) fn signature(pool: &Pool) -> pagefold_engine::Result<Signature> {
    let mut found = Signature::new();
    for listed in pool.list()? {
        let counter = pool.open_dataset(&listed.path)?.get(&COUNTER)?;
        let id = counter.and_then(|raw| raw.try_into().ok()).map_or(0, u64::from_le_bytes);
        found.push((listed.path, listed.origin, !listed.holds.is_empty(), id));
    }
    Ok(found)
}

/// Bytes that each record of a tree takes; number of stored pages, and the bytes that they take, per object.
#[derive(Default)]
struct Counted {
    records: BTreeMap<Addr, u64>,
    pages: BTreeMap<u64, (u64, u64)>,
}

fn count(dataset: &LiveDataset) -> Result<Counted, String> {
    let mut counted = Counted::default();
    let walked = dataset.tree.walk(&mut |visit| {
        match visit {
            Visit::Node { ptr, .. } => {
                counted.records.insert(ptr.addr, u64::from(ptr.len_bytes) + RECORD_OVERHEAD_BYTES);
            }
            Visit::Entry(key, Value::Page(ptr)) => {
                let stored = u64::from(ptr.len_bytes) + RECORD_OVERHEAD_BYTES;
                let object = counted.pages.entry(key.object).or_default();
                object.0 += u64::from(key.kind == Key::PAGE);
                object.1 += stored;
                counted.records.insert(ptr.addr, stored);
            }
            Visit::Entry(key, Value::Bytes(bytes)) if key.kind == Key::MODEL => {
                let ptr = ModelEntry::decode(&bytes)?.ptr;
                counted.records.insert(ptr.addr, u64::from(ptr.len_bytes) + RECORD_OVERHEAD_BYTES);
            }
            Visit::Entry(..) | Visit::Damaged { .. } => {}
        }
        Ok(())
    });
    walked.map_err(|error| format!("walk: {error}"))?;
    Ok(counted)
}

/// Returns the number of bytes of the records that only these snapshots refer to.
pub(crate) fn freed_by_counting(pool: &Pool, world: &World, snapshots: &[&str]) -> Result<u64, String> {
    let (mut gone, mut kept) = (BTreeMap::new(), HashSet::new());
    for (path, _) in world.states() {
        let version = pool.version(&path).map_err(|error| format!("open of '{path}': {error}"))?;
        let counted = count(&version)?;
        if snapshots.contains(&path.as_str()) {
            gone.extend(counted.records);
        } else {
            kept.extend(counted.records.into_keys());
        }
    }
    Ok(gone.iter().filter(|(addr, _)| !kept.contains(*addr)).map(|(_, bytes)| *bytes).sum())
}

/// Compares the accounts of a dataset or snapshot with what was counted. Returns its logical and its stored bytes.
fn check_usage(dataset: &dyn Dataset, state: &State, counted: &Counted) -> Result<(u64, u64), String> {
    let (mut logical, mut stored) = (0, 0);
    for object in OBJECTS {
        let counted = counted.pages.get(&object).copied().unwrap_or_default();
        let usage = dataset.usage(object).map_err(|error| format!("usage: {error}"))?;
        if (usage.pages, usage.stored_bytes) != counted || counted.0 != state.stored(object).count() as u64 {
            return Err(format!("usage of object {object} is {usage:?}, counted are {counted:?}"));
        }
        logical += counted.0 * u64::from(record_size(object));
        stored += counted.1;
    }
    Ok((logical, stored))
}

/// Runs the pool's own check, and compares its accounts with what a walk counts. Nothing may be waiting for a commit.
pub(crate) fn check(pool: &Pool, world: &World) -> Verdict {
    let report = pool.check_open(&mut |_| {});
    if let Some(first) = report.messages.first() {
        return Err(format!("check finds {} errors: {first}", report.errors));
    }
    let mut unique: BTreeMap<Addr, u64> = BTreeMap::new();
    let (mut logical, mut pages) = (0, 0);
    for (path, state) in world.states() {
        let version = pool.version(&path).map_err(|error| format!("open of '{path}': {error}"))?;
        let counted = count(&version)?;
        let sums = check_usage(&*version, state, &counted).map_err(|why| format!("'{path}': {why}"))?;
        if !path.contains('@') {
            logical += sums.0;
            pages += sums.1;
        }
        let listed = pool.listed(&path).map_err(|error| format!("'{path}': {error}"))?;
        let referenced: u64 = counted.records.values().sum();
        if listed.referenced_bytes != referenced || listed.logical_bytes != sums.0 {
            return Err(format!("'{path}' refers to {referenced} bytes of {}, and is {listed:?}", sums.0));
        }
        unique.extend(counted.records);
    }
    unique.extend(count(pool.own())?.records);
    // Where a record was coded again, pointers may tell its length before that.
    let stored = |(addr, bytes): (&Addr, &u64)| {
        let len_bytes = (bytes - RECORD_OVERHEAD_BYTES) as u32;
        u64::from(pool.stored_len(Ptr { addr: *addr, len_bytes })) + RECORD_OVERHEAD_BYTES
    };
    let used: u64 = unique.iter().map(stored).sum();
    let status = pool.status();
    if (status.logical_bytes, status.stored_bytes) != (logical, pages) {
        let told = (status.logical_bytes, status.stored_bytes);
        return Err(format!("logical and stored bytes are {told:?}, counted are {:?}", (logical, pages)));
    }
    // Records of destroyed datasets and snapshots stay in use until they are reaped.
    let records = status.used_bytes.saturating_sub(pool.overhead_bytes());
    let too_many = records > used + TABLE_BYTES_MAX && !pool.is_reaping();
    if records < used || too_many {
        return Err(format!("{records} bytes are accounted as used by records, counted are {used}"));
    }
    check_quotas(pool)?;
    let taken = status.used_bytes + status.reserved_bytes + status.unstored_tree_bytes;
    let free = status.capacity_bytes.saturating_sub(taken);
    if status.dirty_bytes != 0 || status.available_bytes != free {
        return Err(format!(
            "nothing is waiting, and {} bytes are dirty, {} of {free} available",
            status.dirty_bytes, status.available_bytes
        ));
    }
    Ok(())
}

/// Verifies the quotas after a change that frees nothing was accepted: it must fit even if no record becomes shorter by
/// it.
pub(crate) fn check_bounds(pool: &Pool, path: &str) -> Verdict {
    // A logical quota is left out: pages that are there can be overwritten beyond it.
    let bounds = |quota: &QuotaUse| {
        quota.bound == Bound::Quota || quota.bound == Bound::RefQuota && quota.path == path
    };
    for quota in pool.quotas().iter().filter(|quota| bounds(quota)) {
        if quota.used_bytes > quota.limit_bytes {
            return Err(format!("a change of '{path}' is accepted beyond what it may take: {quota:?}"));
        }
    }
    Ok(())
}

/// Compares what is taken of quotas and reservations with the accounts of datasets. Nothing may be waiting for a
/// commit.
fn check_quotas(pool: &Pool) -> Verdict {
    let listed = pool.list().map_err(|error| format!("list: {error}"))?;
    let all: u64 = listed.iter().filter(|one| !one.is_snapshot).map(|one| one.used_bytes).sum();
    for quota in pool.quotas() {
        let own = pool.listed(&quota.path).map_err(|error| format!("'{}': {error}", quota.path))?;
        let counted = match quota.bound {
            // Only the pool's own dataset has such a quota, and all datasets count towards it.
            Bound::Quota => all,
            Bound::RefQuota => own.referenced_bytes,
            Bound::LogicalQuota => own.logical_bytes,
        };
        if quota.used_bytes != counted {
            return Err(format!("{quota:?} has {counted} bytes"));
        }
    }
    let reservation = pool.property("reservation").map_err(|error| error.to_string())?;
    let reservation: u64 = reservation.and_then(|bytes| bytes.parse().ok()).unwrap_or(0);
    let reserved = pool.status().reserved_bytes;
    if reserved != reservation.saturating_sub(all) {
        return Err(format!("{reserved} bytes are reserved, of {reservation} where {all} are held"));
    }
    Ok(())
}
