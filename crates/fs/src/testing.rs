//! A dataset in memory, on which the tests of this crate and of those above it run. It has the exact semantics of the
//! engine's, and a limit of space.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};

use pagefold_engine::dataset::{Attempt, Caller, Change, Dataset, Reapers, Space, Synced, Usage};
use pagefold_engine::error::{Error, Result};
use pagefold_engine::limits::{ATOMIC_WRITE_MAX, RECORDSIZE_MAX, RECORDSIZE_MIN, VALUE_BYTES_MAX};
use pagefold_engine::pool::Unreadable;
use pagefold_engine::types::Key;

use crate::types::{Clock, Time};

/// Bytes beyond the limit that changes without data may take, so that deletion works when the dataset is full.
const RESERVE_BYTES: u64 = 1 << 20;

/// A dataset in memory. Pages are stored whole; all-zero pages are not stored.
pub struct MemDataset {
    state: RwLock<State>,
    limit_bytes: u64,
    applies: AtomicU64,
    most_freed: AtomicU64,
    syncs: AtomicU64,
    failure: Mutex<Option<String>>,
    damage: RwLock<Unreadable>,
    before_read: Mutex<Option<Meanwhile>>,
    reapers: Reapers,
}

/// Something that others do while a call is under way.
type Meanwhile = Box<dyn FnOnce() + Send>;

#[derive(Clone, Default)]
struct State {
    values: BTreeMap<Key, Vec<u8>>,
    objects: BTreeMap<u64, Object>,
}

#[derive(Clone, Default)]
struct Object {
    record_size: u32,
    pages: BTreeMap<u64, Vec<u8>>,
}

impl MemDataset {
    /// Returns an empty dataset that takes up to `limit_bytes` of keys, values and pages.
    pub fn new(limit_bytes: u64) -> Self {
        Self::with(State::default(), limit_bytes)
    }

    fn with(state: State, limit_bytes: u64) -> Self {
        Self {
            state: RwLock::new(state),
            limit_bytes,
            applies: AtomicU64::default(),
            most_freed: AtomicU64::default(),
            syncs: AtomicU64::default(),
            failure: Mutex::default(),
            damage: RwLock::default(),
            before_read: Mutex::default(),
            reapers: Reapers::default(),
        }
    }

    /// Returns a copy as a crash at this instant would leave it.
    pub fn crashed(&self) -> Self {
        Self::with(self.state.read().clone(), self.limit_bytes)
    }

    /// Returns the number of times that [`Dataset::apply`] has succeeded.
    pub fn applies(&self) -> u64 {
        self.applies.load(Ordering::Relaxed)
    }

    /// Returns the largest number of pages that one change has punched out.
    pub fn most_freed(&self) -> u64 {
        self.most_freed.load(Ordering::Relaxed)
    }

    /// Returns the number of times that [`Dataset::sync`] was called.
    pub fn syncs(&self) -> u64 {
        self.syncs.load(Ordering::Relaxed)
    }

    /// From now on, changes and syncs fail as after a failed write, with this reason.
    pub fn fail(&self, reason: &str) {
        *self.failure.lock() = Some(reason.to_owned());
    }

    /// Returns the number of stored pages that `changes` punch out.
    fn count_freed(state: &State, changes: &[Change<'_>]) -> u64 {
        let freed = changes.iter().map(|change| match change {
            Change::Punch { object, from, to } if from < to => {
                state.objects.get(object).map_or(0, |o| o.pages.range(*from..*to).count() as u64)
            }
            _ => 0,
        });
        freed.sum()
    }

    /// Calls `meanwhile` once, before the next page is read or looked for.
    pub fn before_read(&self, meanwhile: impl FnOnce() + Send + 'static) {
        *self.before_read.lock() = Some(Box::new(meanwhile));
    }

    fn meanwhile(&self) {
        let first = self.before_read.lock().take();
        if let Some(meanwhile) = first {
            meanwhile();
        }
    }

    /// From now on, what `unreadable` names cannot be read.
    pub fn damage(&self, unreadable: Unreadable) {
        *self.damage.write() = unreadable;
    }

    fn check_damage(&self, key: &Key) -> Result<()> {
        if self.damage.read().has(key) { Err(damaged(key)) } else { Ok(()) }
    }

    /// Returns the number of stored pages of all objects.
    pub fn pages(&self) -> u64 {
        self.state.read().objects.values().map(|o| o.pages.len() as u64).sum()
    }

    /// Returns every stored value with its key, ascending.
    pub fn values(&self) -> Vec<(Key, Vec<u8>)> {
        self.state.read().values.iter().map(|(k, v)| (*k, v.clone())).collect()
    }

    /// Returns every object that has pages, with its recordsize in bytes and the numbers of its pages.
    pub fn objects(&self) -> Vec<(u64, u32, Vec<u64>)> {
        let state = self.state.read();
        state.objects.iter().map(|(id, o)| (*id, o.record_size, o.pages.keys().copied().collect())).collect()
    }

    fn check_failure(&self) -> Result<()> {
        match &*self.failure.lock() {
            Some(reason) => Err(Error::Failed(reason.clone())),
            None => Ok(()),
        }
    }
}

fn damaged(key: &Key) -> Error {
    Error::corrupt(format!("{key:?}"), "made so by a test")
}

impl State {
    fn used(&self) -> u64 {
        let values: usize = self.values.values().map(|v| v.len() + size_of::<Key>()).sum();
        let pages: u64 = self.objects.values().map(|o| o.pages.len() as u64 * u64::from(o.record_size)).sum();
        values as u64 + pages
    }

    fn change(&mut self, change: &Change<'_>) -> Result<()> {
        match change {
            Change::Put(key, value) => {
                if key.kind >= Key::ENGINE_KINDS || value.len() > VALUE_BYTES_MAX {
                    return Err(Error::Invalid(format!("put of {key:?}, {} bytes", value.len())));
                }
                self.values.insert(*key, value.clone());
            }
            Change::Delete(key) => {
                self.values.remove(key);
            }
            Change::Write { object, record_size, offset, data } => {
                if data.is_empty() || data.len() > ATOMIC_WRITE_MAX {
                    return Err(Error::Invalid(format!("write of {} bytes", data.len())));
                }
                self.object(*object, *record_size)?.write(*offset, data);
            }
            Change::Punch { object, from, to } => {
                if let Some(o) = self.objects.get_mut(object) {
                    o.punch(*from, *to);
                    if o.pages.is_empty() {
                        self.objects.remove(object);
                    }
                }
            }
            Change::Share { from_object, from_page, to_object, to_page, count } => {
                // An object without pages is all hole, whatever its recordsize was.
                let (record_size, shared) = match self.objects.get(from_object) {
                    Some(source) => {
                        let range = *from_page..from_page.saturating_add(*count);
                        let pages =
                            source.pages.range(range).map(|(p, v)| (p - from_page + to_page, v.clone()));
                        (Some(source.record_size), pages.collect())
                    }
                    None => (None, Vec::new()),
                };
                if let Some(target) = self.objects.get_mut(to_object) {
                    target.punch(*to_page, to_page.saturating_add(*count));
                }
                if let (Some(record_size), false) = (record_size, shared.is_empty()) {
                    self.object(*to_object, record_size)?.pages.extend(shared);
                }
            }
        }
        Ok(())
    }

    fn object(&mut self, object: u64, record_size: u32) -> Result<&mut Object> {
        if !record_size.is_power_of_two() || !(RECORDSIZE_MIN..=RECORDSIZE_MAX).contains(&record_size) {
            return Err(Error::Invalid(format!("recordsize {record_size}")));
        }
        let o = self.objects.entry(object).or_insert_with(|| Object { record_size, pages: BTreeMap::new() });
        if o.record_size != record_size && !o.pages.is_empty() {
            return Err(Error::Invalid(format!(
                "object {object} has recordsize {}, not {record_size}",
                o.record_size
            )));
        }
        o.record_size = record_size;
        Ok(o)
    }
}

impl Object {
    fn write(&mut self, mut offset: u64, mut data: &[u8]) {
        let record_size = u64::from(self.record_size);
        while !data.is_empty() {
            let (page, start) = (offset / record_size, (offset % record_size) as usize);
            let (now, rest) = data.split_at(data.len().min(record_size as usize - start));
            let stored = self.pages.entry(page).or_insert_with(|| vec![0; record_size as usize]);
            stored[start..start + now.len()].copy_from_slice(now);
            if stored.iter().all(|&b| b == 0) {
                self.pages.remove(&page);
            }
            offset += now.len() as u64;
            data = rest;
        }
    }

    fn punch(&mut self, from: u64, to: u64) {
        if from < to {
            let mut behind = self.pages.split_off(&from);
            self.pages.append(&mut behind.split_off(&to));
        }
    }
}

impl Dataset for MemDataset {
    fn get(&self, key: &Key) -> Result<Option<Vec<u8>>> {
        self.check_damage(key)?;
        Ok(self.state.read().values.get(key).cloned())
    }

    fn range(&self, from: &Key, to: &Key, limit: usize) -> Result<Vec<(Key, Vec<u8>)>> {
        if from >= to {
            return Ok(Vec::new());
        }
        let state = self.state.read();
        let found: Vec<_> = state.values.range(from..to).take(limit).map(|(k, v)| (*k, v.clone())).collect();
        let reached = found.last().filter(|_| found.len() == limit).map_or(*to, |(last, _)| *last);
        match self.first_damage(from, &reached) {
            Some((first, _)) => Err(damaged(&first)),
            None => Ok(found),
        }
    }

    fn first_damage(&self, from: &Key, to: &Key) -> Option<(Key, Key)> {
        self.damage.read().within(*from, *to).next()
    }

    fn apply(&self, changes: &[Change<'_>]) -> Result<()> {
        self.check_failure()?;
        let mut state = self.state.write();
        // Only what the changes name is copied, to restore it if one of them fails.
        let mut undo = State::default();
        let mut missing = (Vec::new(), Vec::new());
        let used = if self.limit_bytes == u64::MAX { 0 } else { state.used() };
        let mut keep = |key: &Key| match state.values.get(key) {
            Some(value) => drop(undo.values.insert(*key, value.clone())),
            None => missing.0.push(*key),
        };
        let mut objects = Vec::new();
        for change in changes {
            match change {
                Change::Put(key, _) | Change::Delete(key) => keep(key),
                Change::Write { object, .. } | Change::Punch { object, .. } => objects.push(*object),
                Change::Share { to_object, .. } => objects.push(*to_object),
            }
        }
        let freed = Self::count_freed(&state, changes);
        let may_fail = self.limit_bytes != u64::MAX;
        for object in objects.into_iter().filter(|_| may_fail) {
            match state.objects.get(&object) {
                Some(o) => drop(undo.objects.insert(object, o.clone())),
                None => missing.1.push(object),
            }
        }
        let stores = changes.iter().any(|c| matches!(c, Change::Write { .. } | Change::Share { .. }));
        let limit = self.limit_bytes.saturating_add(if stores { 0 } else { RESERVE_BYTES });
        let mut done = changes.iter().try_for_each(|change| state.change(change));
        if done.is_ok() && may_fail {
            let needed = state.used();
            if needed > limit && needed > used {
                done = Err(Error::NoSpace(format!("{needed} of {} bytes", self.limit_bytes)));
            }
        }
        if done.is_err() {
            missing.0.iter().for_each(|key| drop(state.values.remove(key)));
            missing.1.iter().for_each(|object| drop(state.objects.remove(object)));
            state.values.append(&mut undo.values);
            state.objects.append(&mut undo.objects);
        } else {
            self.applies.fetch_add(1, Ordering::Relaxed);
            self.most_freed.fetch_max(freed, Ordering::Relaxed);
            if freed > 0 {
                self.reapers.note();
            }
        }
        done
    }

    fn read(&self, object: u64, record_size: u32, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.meanwhile();
        let state = self.state.read();
        let Some(o) = state.objects.get(&object) else {
            buf.fill(0);
            return Ok(());
        };
        if o.record_size != record_size {
            return Err(Error::Invalid(format!(
                "object {object} has recordsize {}, not {record_size}",
                o.record_size
            )));
        }
        let (mut at, mut rest) = (offset, buf);
        while !rest.is_empty() {
            let (page, start) = (at / u64::from(record_size), (at % u64::from(record_size)) as usize);
            self.check_damage(&Key::page(object, page))?;
            let len = rest.len().min(record_size as usize - start);
            let (now, behind) = rest.split_at_mut(len);
            match o.pages.get(&page) {
                Some(stored) => now.copy_from_slice(&stored[start..start + len]),
                None => now.fill(0),
            }
            at += len as u64;
            rest = behind;
        }
        Ok(())
    }

    fn try_read(&self, object: u64, record_size: u32, offset: u64, buf: &mut [u8]) -> Result<Attempt> {
        self.read(object, record_size, offset, buf).map(|()| Attempt::Done)
    }

    fn next_data(&self, object: u64, page: u64) -> Result<Option<u64>> {
        self.meanwhile();
        let state = self.state.read();
        Ok(state.objects.get(&object).and_then(|o| o.pages.range(page..).next()).map(|(page, _)| *page))
    }

    fn next_hole(&self, object: u64, page: u64) -> Result<u64> {
        self.meanwhile();
        let state = self.state.read();
        let Some(o) = state.objects.get(&object) else { return Ok(page) };
        let stored = o.pages.range(page..).map(|(p, _)| *p);
        Ok(stored
            .zip(page..)
            .take_while(|(stored, expected)| stored == expected)
            .map(|(p, _)| p + 1)
            .last()
            .unwrap_or(page))
    }

    fn usage(&self, object: u64) -> Result<Usage> {
        let state = self.state.read();
        Ok(state.objects.get(&object).map_or(Usage::default(), |o| {
            let pages = o.pages.len() as u64;
            Usage { pages, stored_bytes: pages * u64::from(o.record_size) }
        }))
    }

    fn sync(&self) -> Result<()> {
        self.check_failure()?;
        self.syncs.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn sync_then(&self, _: Caller, then: Synced) {
        then(self.sync());
    }

    fn space(&self) -> Space {
        let used_bytes = self.state.read().used();
        let available_bytes = self.limit_bytes.saturating_sub(used_bytes);
        let (capacity_bytes, logical_bytes) = (self.limit_bytes, used_bytes);
        Space { capacity_bytes, used_bytes, available_bytes, logical_bytes, thin: None }
    }

    fn reapers(&self) -> Option<&Reapers> {
        Some(&self.reapers)
    }
}

/// A clock that stands still until told otherwise; starts at one million seconds.
#[derive(Debug)]
pub struct ManualClock(AtomicU64);

impl Default for ManualClock {
    fn default() -> Self {
        Self(AtomicU64::new(1_000_000_000_000_000))
    }
}

impl ManualClock {
    /// Lets `nanos` nanoseconds pass.
    pub fn advance(&self, nanos: u64) {
        self.0.fetch_add(nanos, Ordering::Relaxed);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Time {
        let nanos = self.0.load(Ordering::Relaxed);
        Time { secs: (nanos / 1_000_000_000).cast_signed(), nanos: (nanos % 1_000_000_000) as u32 }
    }
}
