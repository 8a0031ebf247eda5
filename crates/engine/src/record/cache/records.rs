//! Holds stored records in regions of memory. What is dropped is given back to the system a region at a time, so the
//! memory that is counted is the memory that is resident, whatever lengths the records have.
//!
//! There are two queues of regions, oldest first. A record that comes goes to the short one. When the turn of its region
//! comes, the region is held against the oldest one of the long queue: of the records of both, those that were asked for
//! most go to the end of the long queue, as many as one region has, and the others are dropped (decision 0069).
//!
//! A database holds what it has read lately itself, and so its reads of a page that comes from here lie far apart. What
//! was asked for last is the worst to keep then: how often something is asked for counts, over a time in which several
//! times as many records are asked for as are held.

use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasher;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::{Mutex, RwLock};

use super::frequencies::Frequencies;
use super::region::{Filler, Region};
use crate::types::{Addr, AddrHashing};

/// Smallest and largest region, in bytes.
const REGION_BYTES: (u64, u64) = (16 << 10, 8 << 20);
/// Approximate number of regions in a budget.
const REGIONS: u64 = 768;
/// The short queue has this part (one divided by this) of what is held.
const SHORT_PART: u64 = 10;
/// Bytes of capacity for each byte of counters: 16 counters for a record of 1 KiB, more for a longer one.
const BYTES_PER_COUNTERS: u64 = 128;
/// Counts of requests are halved after this many for each record that is held.
const PERIOD: u64 = 4;
/// Few are found if fewer than this part (one divided by this) of the requests are.
const FEW_FOUND_PART: u64 = 8;
/// Shortest period of a part of the map, in requests.
const PERIOD_MIN: u64 = 64;
/// Number of parts of the map, each with its own lock.
const SHARDS: usize = 64;
/// A record longer than a region is held only if it takes at most this part (one divided by this) of the capacity.
const LONGEST_PART: u64 = 4;

/// A record as it is stored: in memory of the cache, which stays as long as this does, or in memory of its own.
#[derive(Clone, Debug)]
pub struct Record(RecordBytes);

#[derive(Clone, Debug)]
enum RecordBytes {
    Held { region: Arc<Region>, start: u32, len_bytes: u32 },
    Own(Arc<[u8]>),
}

impl Deref for Record {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match &self.0 {
            // SAFETY: it is made of an entry, which has what `Filler::push` returned for the region.
            RecordBytes::Held { region, start, len_bytes } => unsafe {
                region.bytes(*start as usize, *len_bytes as usize)
            },
            RecordBytes::Own(bytes) => bytes,
        }
    }
}

impl From<&[u8]> for Record {
    fn from(bytes: &[u8]) -> Self {
        Self(RecordBytes::Own(bytes.into()))
    }
}

impl From<Vec<u8>> for Record {
    fn from(bytes: Vec<u8>) -> Self {
        Self(RecordBytes::Own(bytes.into()))
    }
}

/// Where a record lies.
#[derive(Debug)]
struct CachedRecord {
    region: Arc<Region>,
    start: u32,
    len_bytes: u32,
}

impl CachedRecord {
    fn record(&self) -> Record {
        let region = Arc::clone(&self.region);
        Record(RecordBytes::Held { region, start: self.start, len_bytes: self.len_bytes })
    }
}

/// A region in use, and the addresses of the records that were put into it.
struct RecordRegion {
    filler: Filler,
    addrs: Vec<Addr>,
}

impl RecordRegion {
    fn len_bytes(&self) -> u64 {
        self.filler.region().len_bytes() as u64
    }

    fn cost(&self) -> u64 {
        self.len_bytes() + (self.addrs.capacity() * size_of::<Addr>()) as u64
    }
}

/// Regions, oldest first. Only the last is being filled.
#[derive(Default)]
struct Queue {
    regions: VecDeque<RecordRegion>,
    bytes: u64,
}

impl Queue {
    /// Takes out the region that goes next, and returns true beside it if it is mostly holes: records that were removed
    /// leave holes, and to drop such a region frees most. Its bytes do not count any more.
    fn oldest(&mut self) -> Option<(RecordRegion, bool)> {
        let before_last = self.regions.len().saturating_sub(1);
        let sparse = self
            .regions
            .iter()
            .take(before_last)
            .position(|filled| filled.filler.region().live_bytes() * 2 < filled.len_bytes());
        let filled = self.regions.remove(sparse.unwrap_or(0))?;
        self.bytes -= filled.cost();
        Some((filled, sparse.is_some()))
    }

    /// Adds a region that is not filled any more.
    fn add_full(&mut self, filled: RecordRegion) {
        self.bytes += filled.cost();
        let before_last = self.regions.len().saturating_sub(1);
        self.regions.insert(before_last, filled);
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Which {
    Short,
    Long,
}

#[derive(Default)]
struct Queues {
    short: Queue,
    long: Queue,
    /// A region that was dropped, to be filled next.
    spare: Option<Region>,
}

impl Queues {
    fn get(&mut self, which: Which) -> &mut Queue {
        match which {
            Which::Short => &mut self.short,
            Which::Long => &mut self.long,
        }
    }

    fn bytes(&self) -> u64 {
        self.short.bytes + self.long.bytes
    }
}

/// A part of the map, and the requests for records that belong to it, held or not.
struct Shard {
    held: HashMap<Addr, CachedRecord, AddrHashing>,
    frequencies: Frequencies,
}

impl Shard {
    fn new(capacity_bytes: u64) -> Self {
        Self { held: HashMap::default(), frequencies: Frequencies::new(counters_bytes(capacity_bytes)) }
    }

    /// Returns where the record at `addr` lies, if that is in `region`.
    fn held_in(&self, addr: Addr, region: &Arc<Region>) -> Option<&CachedRecord> {
        self.held.get(&addr).filter(|entry| Arc::ptr_eq(&entry.region, region))
    }
}

fn hash(addr: Addr) -> u64 {
    AddrHashing::default().hash_one(addr)
}

/// Returns the bytes of counters of each part of the map.
fn counters_bytes(capacity_bytes: u64) -> u64 {
    capacity_bytes / BYTES_PER_COUNTERS / SHARDS as u64
}

/// Records by address.
pub(super) struct RecordMap {
    shards: Vec<RwLock<Shard>>,
    region_bytes: u64,
    capacity_bytes: AtomicU64,
    /// Bytes that the regions take.
    held_bytes: AtomicU64,
    /// Bytes that the map took when they were last counted.
    map_bytes: AtomicU64,
    /// Number of requests after which the counts of a part of the map are halved. It is the same for all parts: one whose
    /// counts were halved later than those of others would win against them, hold more records, and be halved later still.
    period: AtomicU64,
    queues: Mutex<Queues>,
}

impl RecordMap {
    /// Creates a cache of at most `capacity_bytes`.
    pub(super) fn new(capacity_bytes: u64) -> Self {
        let region_bytes =
            (capacity_bytes / REGIONS).next_power_of_two().clamp(REGION_BYTES.0, REGION_BYTES.1);
        Self {
            shards: std::iter::repeat_with(|| RwLock::new(Shard::new(capacity_bytes))).take(SHARDS).collect(),
            region_bytes,
            capacity_bytes: capacity_bytes.into(),
            held_bytes: 0.into(),
            map_bytes: 0.into(),
            period: PERIOD_MIN.into(),
            queues: Mutex::default(),
        }
    }

    fn shard(&self, addr: Addr) -> &RwLock<Shard> {
        // By the slot, since neighbours are often read together. The hash is of no use here: its low bits choose the
        // place within the shard.
        &self.shards[addr.slot() as usize % SHARDS]
    }

    /// Returns the record at `addr`, if it is held. This counts as a request for it.
    pub(super) fn get(&self, addr: Addr) -> Option<Record> {
        let shard = self.shard(addr).read();
        let held = shard.held.get(&addr);
        shard.frequencies.count(hash(addr), held.is_some(), self.period.load(Relaxed));
        held.map(CachedRecord::record)
    }

    /// Returns the record at `addr`, if it is held. This does not count as a request for it.
    pub(super) fn at_hand(&self, addr: Addr) -> Option<Record> {
        self.shard(addr).read().held.get(&addr).map(CachedRecord::record)
    }

    /// Returns true if the record at `addr` is held. This does not count as a request for it.
    pub(super) fn has(&self, addr: Addr) -> bool {
        self.shard(addr).read().held.contains_key(&addr)
    }

    /// Returns the number of records that are held.
    pub(super) fn len(&self) -> u64 {
        self.shards.iter().map(|shard| shard.read().held.len() as u64).sum()
    }

    /// Returns the bytes that regions and map take.
    pub(super) fn bytes(&self) -> u64 {
        self.held_bytes.load(Relaxed) + self.map_bytes.load(Relaxed)
    }

    /// Holds a copy of `record` for `addr`, unless it is too long.
    pub(super) fn insert(&self, addr: Addr, record: &[u8]) {
        let len_bytes = record.len() as u64;
        let longest = self.region_bytes.max(self.capacity_bytes.load(Relaxed) / LONGEST_PART);
        if len_bytes > longest {
            return;
        }
        let mut queues = self.queues.lock();
        self.place(&mut queues, Which::Short, (addr, record), None);
        self.evict(&mut queues);
    }

    /// Counts the requests for the record at `before` as some for that at `now`, which has taken its place.
    pub(super) fn succeed(&self, before: Addr, now: Addr) {
        let times = self.shard(before).read().frequencies.of(hash(before));
        if times > 0 {
            self.shard(now).read().frequencies.add(hash(now), times);
        }
    }

    /// Copies a record to the end of a queue. A record that comes `out_of` a region is held only if it was not removed
    /// meanwhile. The entry is made under the lock of the queues, so that whoever drops the region finds it.
    fn place(
        &self,
        queues: &mut Queues,
        which: Which,
        (addr, record): (Addr, &[u8]),
        out_of: Option<&Arc<Region>>,
    ) {
        let Some((region, start)) = self.copy(queues, which, addr, record) else { return };
        let len_bytes = record.len() as u32;
        let mut shard = self.shard(addr).write();
        if out_of.is_some_and(|from| shard.held_in(addr, from).is_none()) {
            return region.forget(len_bytes);
        }
        let entry = CachedRecord { region, start: start as u32, len_bytes };
        if let Some(before) = shard.held.insert(addr, entry) {
            before.region.forget(before.len_bytes);
        }
    }

    fn copy(
        &self,
        queues: &mut Queues,
        which: Which,
        addr: Addr,
        record: &[u8],
    ) -> Option<(Arc<Region>, usize)> {
        for _ in 0..2 {
            let queue = queues.get(which);
            if let Some(last) = queue.regions.back_mut() {
                let cost = last.cost();
                if let Some(start) = last.filler.push(record) {
                    last.addrs.push(addr);
                    let grown = last.cost() - cost;
                    queue.bytes += grown;
                    self.held_bytes.fetch_add(grown, Relaxed);
                    return Some((Arc::clone(last.filler.region()), start));
                }
            }
            let region_bytes = self.region_bytes as usize;
            let filler = match queues.spare.take().filter(|_| record.len() <= region_bytes) {
                Some(region) => Filler::of(region),
                None => Filler::of(Region::small(region_bytes.max(record.len())).ok()?),
            };
            let filled = RecordRegion { filler, addrs: Vec::new() };
            let queue = queues.get(which);
            queue.bytes += filled.cost();
            self.held_bytes.fetch_add(filled.cost(), Relaxed);
            queue.regions.push_back(filled);
        }
        None
    }

    /// Drops regions until no more than the capacity is taken.
    fn evict(&self, queues: &mut Queues) {
        let map_bytes = self.map_bytes.load(Relaxed);
        loop {
            let capacity = self.capacity_bytes.load(Relaxed).saturating_sub(map_bytes);
            if queues.bytes() == 0 || queues.bytes() <= capacity {
                return;
            }
            let long_bytes = capacity - capacity / SHORT_PART;
            let which = if queues.long.bytes > long_bytes { Which::Long } else { Which::Short };
            let Some((filled, sparse)) = queues.get(which).oldest() else { return };
            if sparse {
                self.drop_regions(queues, (None, filled), which, u64::MAX);
            } else if which == Which::Long {
                // There is less room than there was. The last region goes whole, since half of it would be one again.
                let room = if queues.long.regions.is_empty() { 0 } else { self.region_bytes / 2 };
                self.drop_regions(queues, (None, filled), Which::Long, room);
            } else if queues.long.bytes + filled.cost() <= long_bytes {
                queues.long.add_full(filled);
            } else {
                let long = queues.long.oldest().map(|(long, _)| long);
                let room = long.as_ref().map_or(0, |long| long.len_bytes().max(filled.len_bytes()));
                self.drop_regions(queues, (long, filled), Which::Long, room);
            }
        }
    }

    /// Returns true if few requests were found lately: each record that comes would go before it is asked for again, and
    /// push out one that may be.
    fn finds_few(&self) -> bool {
        let found = self.shards.iter().map(|shard| shard.read().frequencies.found_before());
        let found = found.fold(0, u64::saturating_add);
        found.saturating_mul(FEW_FOUND_PART) < self.period.load(Relaxed) * SHARDS as u64
    }

    /// Drops regions that were taken out of their queues: one of the long queue that another is held against, if any, and
    /// that other. Of their records, those that were asked for most are copied to the end of queue `to`, up to `room` bytes of
    /// them. Of two that were asked for as often, that of the long queue stays; and where few are found, that of the other
    /// must have been asked for twice more.
    fn drop_regions(
        &self,
        queues: &mut Queues,
        regions: (Option<RecordRegion>, RecordRegion),
        to: Which,
        room: u64,
    ) {
        let mut found: Vec<(Reverse<u8>, Addr, Record)> = Vec::new();
        let (long, other) = regions;
        let more = u8::from(long.is_some() && self.finds_few());
        let regions: Vec<_> = long.map(|long| (long, more)).into_iter().chain([(other, 0)]).collect();
        for (filled, more) in &regions {
            self.held_bytes.fetch_sub(filled.cost(), Relaxed);
            for addr in &filled.addrs {
                let shard = self.shard(*addr).read();
                let times = || Reverse(shard.frequencies.of(hash(*addr)) + more);
                let own = shard.held_in(*addr, filled.filler.region());
                found.extend(own.map(|entry| (times(), *addr, entry.record())));
            }
        }
        // A stable sort.
        found.sort_by_key(|(times, ..)| *times);
        let mut left = room;
        for (_, addr, record) in found {
            let RecordBytes::Held { region, .. } = &record.0 else { continue };
            let len_bytes = record.len() as u64;
            if len_bytes <= left {
                left -= len_bytes;
                self.place(queues, to, (addr, &record), Some(region));
            } else {
                let mut shard = self.shard(addr).write();
                if shard.held_in(addr, region).is_some() {
                    shard.held.remove(&addr);
                }
            }
        }
        for (RecordRegion { filler, addrs }, _) in regions {
            let region = Arc::clone(filler.region());
            drop((filler, addrs));
            if region.len_bytes() as u64 == self.region_bytes && queues.spare.is_none() {
                queues.spare = Arc::into_inner(region);
            }
        }
    }

    /// Drops the record at `addr`.
    pub(super) fn remove(&self, addr: Addr) {
        if let Some(entry) = self.shard(addr).write().held.remove(&addr) {
            entry.region.forget(entry.len_bytes);
        }
    }

    /// Changes the number of bytes that may be taken, and drops what is too much.
    pub(super) fn set_capacity(&self, capacity_bytes: u64) {
        self.capacity_bytes.store(capacity_bytes, Relaxed);
        let counters_bytes = counters_bytes(capacity_bytes);
        self.shards.iter().for_each(|shard| shard.write().frequencies.fit(counters_bytes));
        let mut queues = self.queues.lock();
        self.evict(&mut queues);
        queues.spare = None;
    }

    /// Counts what the map takes, gives back what it does not need, and drops what is too much.
    pub(super) fn weigh(&self) {
        let slot = size_of::<(Addr, CachedRecord)>() + 1;
        let (mut map_bytes, mut records) = (0, 0);
        for shard in &self.shards {
            let (len, capacity) = {
                let shard = shard.read();
                (shard.held.len(), shard.held.capacity())
            };
            if capacity > 64 && len * 4 < capacity {
                shard.write().held.shrink_to(len * 2);
            }
            let shard = shard.read();
            // A hash table is filled up to seven eighths.
            records += shard.held.len() as u64;
            map_bytes += (shard.held.capacity() * slot * 8 / 7) as u64 + shard.frequencies.bytes();
        }
        self.map_bytes.store(map_bytes, Relaxed);
        self.period.store((PERIOD * records / SHARDS as u64).max(PERIOD_MIN), Relaxed);
        self.evict(&mut self.queues.lock());
    }
}
