//! Holds stored records in regions of memory. What is dropped is given back to the system a region at a time, so the
//! memory that is counted is the memory that is resident, whatever lengths the records have.
//!
//! There are two queues of regions, oldest first, after S3-FIFO (Yang et al., "FIFO queues are all you need for cache
//! eviction", SOSP 2023). A record that comes for the first time goes to the short queue. If it is used before its
//! region's turn comes, or comes again, it goes to the long one. A region whose turn has come is dropped. In the long
//! queue, records of it that were used are copied to the end of the queue first, half of the region at most.

use std::collections::{HashMap, VecDeque};
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};

use parking_lot::{Mutex, RwLock};

use super::region::{Filler, Region};
use crate::types::{Addr, AddrHashing};

/// Smallest and largest region, in bytes.
const REGION_BYTES: (u64, u64) = (16 << 10, 8 << 20);
/// Approximate number of regions in a budget.
const REGIONS: u64 = 768;
/// The short queue has at least this part (one divided by this) of what is held.
const SHORT_PART: u64 = 10;
/// Largest number of uses that is counted: a record outlasts as many turns of its region without another use.
const USES_MAX: u8 = 3;
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
    /// Number of times that it was used lately.
    uses: AtomicU8,
}

/// A region in use, and the addresses of the records that were put into it.
struct RecordRegion {
    filler: Filler,
    addrs: Vec<Addr>,
}

impl RecordRegion {
    fn cost(&self) -> u64 {
        (self.filler.region().len_bytes() + self.addrs.capacity() * size_of::<Addr>()) as u64
    }
}

/// Regions, oldest first. Only the last is being filled.
#[derive(Default)]
struct Queue {
    regions: VecDeque<RecordRegion>,
    bytes: u64,
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

type Shard = HashMap<Addr, CachedRecord, AddrHashing>;

/// Records by address.
pub(super) struct RecordMap {
    shards: Vec<RwLock<Shard>>,
    region_bytes: u64,
    capacity_bytes: AtomicU64,
    /// Bytes that the regions take.
    held_bytes: AtomicU64,
    /// Bytes that the map took when they were last counted.
    map_bytes: AtomicU64,
    queues: Mutex<Queues>,
}

impl RecordMap {
    /// Creates a cache of at most `capacity_bytes`.
    pub(super) fn new(capacity_bytes: u64) -> Self {
        let region_bytes =
            (capacity_bytes / REGIONS).next_power_of_two().clamp(REGION_BYTES.0, REGION_BYTES.1);
        Self {
            shards: std::iter::repeat_with(RwLock::default).take(SHARDS).collect(),
            region_bytes,
            capacity_bytes: capacity_bytes.into(),
            held_bytes: 0.into(),
            map_bytes: 0.into(),
            queues: Mutex::default(),
        }
    }

    fn shard(&self, addr: Addr) -> &RwLock<Shard> {
        // By the slot, since neighbours are often read together. The hash is of no use here: its low bits choose the
        // place within the shard.
        &self.shards[addr.slot() as usize % SHARDS]
    }

    /// Returns the record at `addr`, if it is held.
    pub(super) fn get(&self, addr: Addr) -> Option<Record> {
        let shard = self.shard(addr).read();
        let CachedRecord { region, start, len_bytes, uses } = shard.get(&addr)?;
        let so_far = uses.load(Relaxed);
        if so_far < USES_MAX {
            uses.store(so_far + 1, Relaxed);
        }
        Some(Record(RecordBytes::Held { region: Arc::clone(region), start: *start, len_bytes: *len_bytes }))
    }

    /// Returns true if the record at `addr` is held. This does not count as a use of it.
    pub(super) fn has(&self, addr: Addr) -> bool {
        self.shard(addr).read().contains_key(&addr)
    }

    /// Returns the number of records that are held.
    pub(super) fn len(&self) -> u64 {
        self.shards.iter().map(|shard| shard.read().len() as u64).sum()
    }

    /// Returns the bytes that regions and map take.
    pub(super) fn bytes(&self) -> u64 {
        self.held_bytes.load(Relaxed) + self.map_bytes.load(Relaxed)
    }

    /// Holds a copy of `record` for `addr`, unless it is too long. `again` says that it was held or offered before.
    pub(super) fn insert(&self, addr: Addr, record: &[u8], again: bool) {
        let len_bytes = record.len() as u64;
        let longest = self.region_bytes.max(self.capacity_bytes.load(Relaxed) / LONGEST_PART);
        if len_bytes > longest {
            return;
        }
        let which = if again { Which::Long } else { Which::Short };
        let mut queues = self.queues.lock();
        self.place(&mut queues, which, (addr, record), 0, None);
        self.evict(&mut queues);
    }

    /// Copies a record to the end of a queue. A record that comes `out_of` a region is held only if it was not removed
    /// meanwhile. The entry is made under the lock of the queues, so that whoever drops the region finds it.
    fn place(
        &self,
        queues: &mut Queues,
        which: Which,
        (addr, record): (Addr, &[u8]),
        uses: u8,
        out_of: Option<&Arc<Region>>,
    ) {
        let Some((region, start)) = self.copy(queues, which, addr, record) else { return };
        let len_bytes = record.len() as u32;
        let mut shard = self.shard(addr).write();
        let is_there =
            |from: &Arc<Region>| shard.get(&addr).is_some_and(|entry| Arc::ptr_eq(&entry.region, from));
        if !out_of.is_none_or(is_there) {
            return region.forget(len_bytes);
        }
        let entry = CachedRecord { region, start: start as u32, len_bytes, uses: uses.into() };
        if let Some(before) = shard.insert(addr, entry) {
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
        while queues.bytes() > 0 && queues.bytes() + map_bytes > self.capacity_bytes.load(Relaxed) {
            let short = queues.short.bytes * SHORT_PART > queues.bytes() || queues.long.regions.is_empty();
            let which = if short { Which::Short } else { Which::Long };
            // Records that were removed leave holes. A region that is mostly holes goes first, since this frees most.
            let queue = queues.get(which);
            let before_last = queue.regions.len().saturating_sub(1);
            let sparse = queue.regions.iter().take(before_last).position(|filled| {
                let region = filled.filler.region();
                region.live_bytes() * 2 < region.len_bytes() as u64
            });
            match sparse.and_then(|at| queue.regions.remove(at)) {
                Some(filled) => self.drop_region(queues, filled, which, which, true),
                None => match queue.regions.pop_front() {
                    Some(filled) => self.drop_region(queues, filled, which, Which::Long, false),
                    None => return,
                },
            }
        }
    }

    /// Drops a region of queue `from`. Records of it that were used, or all of them if `all` is set, are copied to the
    /// end of queue `to`; half of a region at most if that is the same queue.
    fn drop_region(&self, queues: &mut Queues, filled: RecordRegion, from: Which, to: Which, all: bool) {
        let cost = filled.cost();
        queues.get(from).bytes -= cost;
        self.held_bytes.fetch_sub(cost, Relaxed);
        let region = Arc::clone(filled.filler.region());
        let mut left = if from == to { region.len_bytes() / 2 } else { usize::MAX };
        for addr in &filled.addrs {
            let (record, uses) = {
                let mut shard = self.shard(*addr).write();
                let own = shard.get(addr).filter(|entry| Arc::ptr_eq(&entry.region, &region));
                let Some((len_bytes, start, uses)) =
                    own.map(|entry| (entry.len_bytes as usize, entry.start, entry.uses.load(Relaxed)))
                else {
                    continue;
                };
                let stays = (uses > 0 || all) && len_bytes <= left;
                if !stays {
                    shard.remove(addr);
                    continue;
                }
                left -= len_bytes;
                let region = Arc::clone(&region);
                (Record(RecordBytes::Held { region, start, len_bytes: len_bytes as u32 }), uses)
            };
            let uses = if all { uses } else { uses - 1 };
            self.place(queues, to, (*addr, &record), uses, Some(&region));
        }
        let RecordRegion { filler, addrs } = filled;
        drop((filler, addrs));
        if region.len_bytes() as u64 == self.region_bytes && queues.spare.is_none() {
            queues.spare = Arc::into_inner(region);
        }
    }

    /// Drops the record at `addr`.
    #[cfg(test)]
    pub(super) fn remove(&self, addr: Addr) {
        if let Some(entry) = self.shard(addr).write().remove(&addr) {
            entry.region.forget(entry.len_bytes);
        }
    }

    /// Changes the number of bytes that may be taken, and drops what is too much.
    pub(super) fn set_capacity(&self, capacity_bytes: u64) {
        self.capacity_bytes.store(capacity_bytes, Relaxed);
        let mut queues = self.queues.lock();
        self.evict(&mut queues);
        queues.spare = None;
    }

    /// Counts what the map takes, gives back what it does not need, and drops what is too much.
    pub(super) fn weigh(&self) {
        let slot = size_of::<(Addr, CachedRecord)>() + 1;
        let mut map_bytes = 0;
        for shard in &self.shards {
            let (len, capacity) = {
                let shard = shard.read();
                (shard.len(), shard.capacity())
            };
            if capacity > 64 && len * 4 < capacity {
                shard.write().shrink_to(len * 2);
            }
            // A hash table is filled up to seven eighths.
            map_bytes += shard.read().capacity() * slot * 8 / 7;
        }
        self.map_bytes.store(map_bytes as u64, Relaxed);
        self.evict(&mut self.queues.lock());
    }
}
