//! The models of a pool: those that exist, the one that codes new pages of each object, and those in memory.
//!
//! - M1: a model is in the log before any record that uses it, so that no prefix of the log has a record without its
//!   model.
//! - M2: a model stays as long as a segment lists it; see [`crate::segment::Segments::users_of_model`]. Only a
//!   checkpoint drops it, at its quiesce point: the log has no entry of that, and a crash undoes it.
//! - M3: numbers of models are never used twice: the model with the highest number is not dropped.
//! - M4: a model is not dropped as long as a [`ModelPin`] of it is held. Code that uses a model without the log's lock
//!   holds a pin until a segment lists the model.
//! - M5: a model that records were coded away from stays as long as somebody reads who may have found them as they were
//!   ([`Reading`]). What such a reader has found is not kept in memory any more ([`ModelTable::while_newest`]).

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use pagefold_codec::Model;
use parking_lot::RwLock;
use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{DefaultHashBuilder, OptionsBuilder, Weighter};

use crate::limits::{MODELS_MAX, RECORD_BYTES_MAX};
use crate::memory::is_other_bound;
use crate::record::{Codec, ModelId};
use crate::wire::{Reader, put_varint};
use crate::{Addr, Ptr, Result};

/// Least memory for models, however small the budget is: otherwise each page that is read would load its model.
const MEMORY_BYTES_MIN: u64 = 4 << 20;
/// Expected size of a model in memory, from which the size of the map follows.
const MODEL_BYTES_TYPICAL: u64 = 256 << 10;
/// Smallest shard: several of the largest models fit.
const SHARD_BYTES: u64 = 8 << 20;
/// Largest number of shards: every page that is decoded looks here.
const SHARDS_MAX: u64 = 32;

/// Entry of a model in the pool's own tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelEntry {
    /// Record of the model.
    pub ptr: Ptr,
    /// Codec of the pages that the model describes.
    pub codec: Codec,
    /// Dataset of the object that the model was learned from.
    pub dataset: u64,
    /// Object that the model was learned from. The model codes its new pages until there is a later one.
    pub object: u64,
    /// Number of models that were learned from this object before.
    pub generation: u32,
    /// Number of pages that the model was learned from.
    pub sampled_pages: u32,
    /// Number of pages that the object had then.
    pub object_pages: u64,
    /// Average length of the sampled pages' records, in bytes.
    pub record_bytes: u32,
    /// True if pages of the object that were stored before the model came wait to be coded again.
    pub late: bool,
}

impl ModelEntry {
    /// The stored form.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(24);
        for value in [
            self.ptr.addr.raw(),
            self.ptr.len_bytes.into(),
            self.codec.id().into(),
            self.dataset,
            self.object,
            self.generation.into(),
            self.sampled_pages.into(),
            self.object_pages,
            self.record_bytes.into(),
            self.late.into(),
        ] {
            put_varint(&mut out, value);
        }
        out
    }

    /// Reads the stored form.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut reader = Reader::new(bytes, "entry of a model");
        let addr = Addr::from_raw(reader.varint()?).ok_or_else(|| reader.bad("its record has no address"))?;
        let len_bytes = reader.varint_u32()?;
        if len_bytes == 0 || len_bytes as usize > RECORD_BYTES_MAX {
            return Err(reader.bad("its record has an impossible length"));
        }
        let codec = u8::try_from(reader.varint()?).ok().and_then(Codec::from_id);
        let entry = Self {
            ptr: Ptr { addr, len_bytes },
            codec: codec.ok_or_else(|| reader.bad("its codec is not known"))?,
            dataset: reader.varint()?,
            object: reader.varint()?,
            generation: reader.varint_u32()?,
            sampled_pages: reader.varint_u32()?,
            object_pages: reader.varint()?,
            record_bytes: reader.varint_u32()?,
            late: match reader.varint()? {
                0 => false,
                1 => true,
                _ => return Err(reader.bad("whether it came late is neither yes nor no")),
            },
        };
        reader.end()?;
        Ok(entry)
    }
}

/// A model in memory.
#[derive(Clone)]
struct InMemory {
    model: Arc<Model>,
    /// Memory that the model takes, in bytes. It is kept, since measuring it takes time.
    bytes: u64,
}

impl InMemory {
    fn new(model: Arc<Model>) -> Self {
        let bytes = model.memory_bytes() as u64;
        Self { model, bytes }
    }
}

#[derive(Clone)]
struct ByMemory;

impl Weighter<ModelId, InMemory> for ByMemory {
    fn weight(&self, _: &ModelId, loaded: &InMemory) -> u64 {
        loaded.bytes
    }
}

#[derive(Default)]
struct ModelIndex {
    entries: BTreeMap<ModelId, ModelEntry>,
    current: HashMap<(u64, u64), ModelId>,
    /// Shared with those who read now (M5).
    readers: Arc<()>,
    /// Models that records were coded away from, by the time, each time with the readers of before. A reader of an earlier
    /// time may have found what a later one has changed, so they go in this order.
    left: VecDeque<(Arc<()>, Vec<ModelId>)>,
    /// Number of times that each model is in `left`.
    kept: HashMap<ModelId, usize>,
    /// Number of pins of each model (M4).
    pins: HashMap<ModelId, usize>,
    /// Parent of each clone: the dataset whose snapshot it was made of. Until an object of a clone has a model of its
    /// own, the parent's model codes it.
    parents: HashMap<u64, u64>,
}

impl ModelIndex {
    /// Returns the model that codes new pages of `object` of `dataset`.
    fn current(&self, mut dataset: u64, object: u64) -> Option<ModelId> {
        // The loop ends, since a clone is younger than its parent. The bound is for images that were made on purpose.
        for _ in 0..=self.parents.len() {
            if let Some(id) = self.current.get(&(dataset, object)) {
                return Some(*id);
            }
            dataset = *self.parents.get(&dataset)?;
        }
        None
    }

    /// Adds a model, or gives it another entry. Of the models of an object the one of the latest generation is current: a
    /// stream brings them in the order in which its pages need them.
    fn insert(&mut self, id: ModelId, entry: ModelEntry) {
        let of = (entry.dataset, entry.object);
        let before = self.entries.insert(id, entry).map(|before| (before.dataset, before.object));
        if let Some(before) = before
            && before != of
            && self.current.get(&before) == Some(&id)
        {
            self.current.remove(&before);
        }
        let rank = |id: ModelId| self.entries.get(&id).map(|entry| (entry.generation, id));
        if self.current.get(&of).is_none_or(|now| rank(*now) <= rank(id)) {
            self.current.insert(of, id);
        }
    }

    fn remove(&mut self, id: ModelId) {
        let removed = self.entries.remove(&id);
        if let Some(entry) = removed
            && self.current.get(&(entry.dataset, entry.object)) == Some(&id)
        {
            self.current.remove(&(entry.dataset, entry.object));
        }
    }
}

/// All models of a pool.
pub(crate) struct ModelTable {
    known: Arc<RwLock<ModelIndex>>,
    loaded: Cache<ModelId, InMemory, ByMemory>,
}

/// A pin: its model is not dropped as long as it is held (M4).
pub(crate) struct ModelPin {
    known: Arc<RwLock<ModelIndex>>,
    id: ModelId,
}

/// Held by whoever reads records, from before their places are looked up until they are decoded (M5).
#[derive(Clone)]
pub(crate) struct Reading(Arc<()>);

impl ModelPin {
    /// Returns the number of the model.
    pub(crate) const fn id(&self) -> ModelId {
        self.id
    }
}

impl Drop for ModelPin {
    fn drop(&mut self) {
        if let Entry::Occupied(mut pins) = self.known.write().pins.entry(self.id) {
            *pins.get_mut() -= 1;
            if *pins.get() == 0 {
                pins.remove();
            }
        }
    }
}

impl ModelTable {
    /// Returns an empty table, whose models in memory may take `cache_bytes`.
    pub(crate) fn new(cache_bytes: u64) -> Self {
        let bytes = cache_bytes.max(MEMORY_BYTES_MIN);
        let items = (bytes / MODEL_BYTES_TYPICAL).clamp(16, MODELS_MAX as u64) as usize;
        let shards = (bytes / SHARD_BYTES).clamp(1, SHARDS_MAX) as usize;
        let options = OptionsBuilder::new()
            .estimated_items_capacity(items)
            .weight_capacity(bytes)
            .shards(shards)
            .build();
        let (hashing, lifecycle) = (DefaultHashBuilder::default(), DefaultLifecycle::default());
        let loaded = match options {
            Ok(options) => Cache::with_options(options, ByMemory, hashing, lifecycle),
            // The only error is a missing required option, and none is missing.
            Err(_) => Cache::with(items, bytes, ByMemory, hashing, lifecycle),
        };
        Self { known: Arc::default(), loaded }
    }

    /// Sets the bytes that models in memory may take.
    pub(crate) fn set_memory_bound(&self, bytes: u64) {
        let bytes = bytes.max(MEMORY_BYTES_MIN);
        if is_other_bound(bytes, self.loaded.capacity()) {
            self.loaded.set_capacity(bytes);
        }
    }

    /// Adds a model, which codes new pages of its object from now on, unless there is one of a later generation.
    pub(crate) fn insert(&self, id: ModelId, entry: ModelEntry, model: Option<Arc<Model>>) {
        self.known.write().insert(id, entry);
        if let Some(model) = model {
            self.loaded.insert(id, InMemory::new(model));
        }
    }

    /// Begins to read records.
    pub(crate) fn reading(&self) -> Reading {
        Reading(Arc::clone(&self.known.read().readers))
    }

    /// Calls `act` unless [`ModelTable::leave`] was called since somebody began to read; it waits for the end of `act`.
    pub(crate) fn while_newest(&self, reading: &Reading, act: impl FnOnce()) {
        let known = self.known.read();
        if Arc::ptr_eq(&known.readers, &reading.0) {
            act();
        }
    }

    /// Notes that records were coded again, away from these models: whoever begins to read from now on finds them as they
    /// are. The models stay until the readers of before have ended (M5).
    pub(crate) fn leave(&self, models: &[ModelId]) {
        let mut known = self.known.write();
        for id in models {
            *known.kept.entry(*id).or_default() += 1;
        }
        let before = std::mem::take(&mut known.readers);
        known.left.push_back((before, models.to_vec()));
    }

    /// Keeps the models no longer for whose sake nobody reads any more.
    pub(super) fn release_left(&self) {
        let mut known = self.known.write();
        while known.left.front().is_some_and(|(readers, _)| Arc::strong_count(readers) == 1) {
            let Some((_, models)) = known.left.pop_front() else { break };
            for id in models {
                if let Entry::Occupied(mut times) = known.kept.entry(id) {
                    *times.get_mut() -= 1;
                    if *times.get() == 0 {
                        times.remove();
                    }
                }
            }
        }
    }

    /// Pins a model, if there is one of this number.
    pub(crate) fn pin(&self, id: ModelId) -> Option<ModelPin> {
        let mut known = self.known.write();
        if !known.entries.contains_key(&id) {
            return None;
        }
        *known.pins.entry(id).or_default() += 1;
        drop(known);
        Some(ModelPin { known: Arc::clone(&self.known), id })
    }

    /// Pins the model that codes new pages of `object` of `dataset`.
    pub(crate) fn pin_current(&self, dataset: u64, object: u64) -> Option<ModelPin> {
        let mut known = self.known.write();
        let id = known.current(dataset, object)?;
        *known.pins.entry(id).or_default() += 1;
        drop(known);
        Some(ModelPin { known: Arc::clone(&self.known), id })
    }

    /// Forgets a model, unless it is kept or pinned (M4, M5). Returns true if it was forgotten; then it cannot be pinned any
    /// more.
    pub(super) fn remove_unneeded(&self, id: ModelId) -> bool {
        let mut known = self.known.write();
        let needed = known.kept.contains_key(&id) || known.pins.contains_key(&id);
        if !needed {
            known.remove(id);
        }
        drop(known);
        if !needed {
            self.loaded.remove(&id);
        }
        !needed
    }

    /// Returns the entry of a model.
    pub(crate) fn get(&self, id: ModelId) -> Option<ModelEntry> {
        self.known.read().entries.get(&id).copied()
    }

    /// Returns all models, by number.
    pub(crate) fn all(&self) -> Vec<(ModelId, ModelEntry)> {
        self.known.read().entries.iter().map(|(id, entry)| (*id, *entry)).collect()
    }

    /// Returns the number of models.
    pub(crate) fn count(&self) -> usize {
        self.known.read().entries.len()
    }

    /// Returns the model that codes new pages of `object` of `dataset`: its own, or that of the object of which it is a
    /// clone.
    pub(crate) fn current(&self, dataset: u64, object: u64) -> Option<ModelId> {
        self.known.read().current(dataset, object)
    }

    /// Returns the latest model that was learned from this object.
    pub(crate) fn own(&self, of: (u64, u64)) -> Option<ModelId> {
        self.known.read().current.get(&of).copied()
    }

    /// Returns the objects, by dataset and number, whose latest model came late.
    pub(crate) fn late(&self) -> Vec<(u64, u64)> {
        let known = self.known.read();
        let is_late = |id: &ModelId| known.entries.get(id).is_some_and(|entry| entry.late);
        known.current.iter().filter(|(_, id)| is_late(id)).map(|(of, _)| *of).collect()
    }

    /// Sets the dataset whose snapshot each clone was made of, by dataset.
    pub(crate) fn set_parents(&self, parents: HashMap<u64, u64>) {
        self.known.write().parents = parents;
    }

    /// Returns the number of the next model; `None` if there is no room for another one.
    pub(crate) fn next_id(&self) -> Option<ModelId> {
        let known = self.known.read();
        let last = known.entries.last_key_value().map_or(0, |(id, _)| *id);
        if known.entries.len() < MODELS_MAX { last.checked_add(1) } else { None }
    }

    pub(super) fn in_memory(&self, id: ModelId) -> Option<Arc<Model>> {
        self.loaded.get(&id).map(|loaded| loaded.model)
    }

    /// Holds a model that was read in memory.
    pub(super) fn hold(&self, id: ModelId, model: &Arc<Model>) {
        self.loaded.insert(id, InMemory::new(Arc::clone(model)));
    }

    /// Returns the memory that loaded models take, in bytes.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.loaded.weight()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(dataset: u64, generation: u32) -> ModelEntry {
        ModelEntry {
            ptr: Ptr { addr: Addr::new(1, 0), len_bytes: 1 },
            codec: Codec::Raw,
            dataset,
            object: 5,
            generation,
            sampled_pages: 1,
            object_pages: 1,
            record_bytes: 1,
            late: false,
        }
    }

    #[test]
    fn the_latest_generation_is_current_in_whatever_order_models_come() {
        let table = ModelTable::new(0);
        table.insert(7, entry(1, 1), None);
        table.insert(8, entry(1, 0), None);
        assert_eq!(table.own((1, 5)), Some(7));
        table.insert(9, entry(1, 1), None);
        assert_eq!(table.own((1, 5)), Some(9));
        // As a stream may say.
        table.insert(10, entry(1, u32::MAX), None);
        table.insert(11, entry(1, u32::MAX), None);
        assert_eq!(table.own((1, 5)), Some(11));
    }

    #[test]
    fn a_model_that_passes_to_another_dataset_codes_nothing_of_the_first() {
        let table = ModelTable::new(0);
        table.insert(7, entry(1, 0), None);
        table.insert(7, entry(2, 0), None);
        assert_eq!((table.own((1, 5)), table.own((2, 5))), (None, Some(7)));
    }
}
