//! Models of relations: chooses the object that needs one, learns the model from the object's pages, and adopts it.
//!
//! Commits count how pages that look like a database's were stored ([`Watch`]); [`Pool::learn`] looks at the counts. It
//! holds no lock while it reads and learns, and one call learns at most one model, so that its caller decides how much
//! time learning takes. Its result follows from the state of the pool alone.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use pagefold_codec::{Kinds, Model, Options, registry};

use super::Pool;
use super::coded::{Coded, Current};
use crate::dataset::pending::PageBuf;
use crate::dataset::redo::{REDO_FIXED_BYTES, Redo};
use crate::dataset::{Codecs, Dataset, LiveDataset, ModelEntry, ModelPin, count};
use crate::device::IoClass;
use crate::limits::MODELS_MAX;
use crate::record::{Codec, Compression, Encoder, ModelId, Models, codec_of, encode_metadata};
use crate::wal::{Rec, RecordKind};
use crate::{Key, Result};

/// Largest number of objects that are watched: an entry takes about 100 bytes.
const WATCHED_MAX: usize = 16 << 10;
/// Smallest number of pages of a log that are worth coding again: 2 MiB of PostgreSQL's.
const LOG_PAGES_MIN: u64 = 256;
/// A new model is due once this many times the object's pages were written since its model was learned.
const GROWTH: u64 = 4;
/// Recompression learns a new model for an object that grew by more than one page in this many since its model was
/// learned. The new pages may be of another kind, such as an index behind its table; fewer could hardly gain what a
/// later model has to.
const UNSEEN: u64 = 32;
/// One sampled page in this many is not learned from, to compare the old model with the new.
const HELD_OUT: usize = 6;
/// Small objects are many: they get models only while the pool has fewer than [`MODELS_MAX`] divided by this.
const SMALL_SHARE: usize = 2;
/// Longest entry of a model in the log.
const ENTRY_BYTES_MAX: usize = REDO_FIXED_BYTES + 64;

/// Options of learning models: when, and from how many pages.
#[derive(Clone, Copy, Debug)]
pub struct LearnOptions {
    /// Number of pages without a model, or coded badly by it, from which on an object gets one.
    pub pages_min: u64,
    /// Number of pages to learn from, spread over the object.
    pub sample_pages: u64,
}

impl LearnOptions {
    /// For a pool that is idle: learning models of small files then delays nobody.
    pub const IDLE: Self = Self { pages_min: 8, sample_pages: 300 };
    /// For recompression, which comes by once and not with every write: a model of some hundred bytes pays from a few
    /// pages on. Whether it does is found out by learning it.
    pub const RECOMPRESSION: Self = Self { pages_min: 4, sample_pages: 300 };
}

impl Default for LearnOptions {
    fn default() -> Self {
        // A growing object with fewer pages soon has others that are not like them; more pages do not make a better
        // model.
        Self { pages_min: 200, sample_pages: 300 }
    }
}

/// Result of an attempt to learn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Learned {
    /// Number of its dataset.
    pub dataset: u64,
    /// The object.
    pub object: u64,
    /// Number of the model that codes its new pages from now on; `None` if no model gains.
    pub adopted: Option<ModelId>,
    /// True if the object had no model before.
    pub first: bool,
}

/// Counts of an object's pages since its model was adopted, or since the object has been watched.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Watched {
    /// Pages that its model coded; `coded_bytes` are the bytes of their records.
    pub(super) coded: u64,
    pub(super) coded_bytes: u64,
    /// Pages that no model coded.
    pub(super) others: u64,
    /// Pages that were stored as deltas, while the object was watched.
    deltas: u64,
    /// Sum of `coded` and `others` when learning failed the last time.
    tried_at: u64,
}

impl Watched {
    fn pages(&self) -> u64 {
        self.coded + self.others
    }

    /// Returns true if a model is wanted; `entry` is the one in use.
    fn is_due(&self, entry: Option<&ModelEntry>, pages_min: u64) -> bool {
        if self.pages() < pages_min.max(2 * self.tried_at) {
            return false;
        }
        // A dictionary codes any page, but a model that takes pages apart would make less of many: the first pages may
        // not have shown what there is to learn.
        let by_dictionary =
            |entry: &&ModelEntry| matches!(entry.codec, Codec::Page(format) if format.is_dictionary());
        let Some(entry) = entry.filter(|entry| !by_dictionary(entry)) else { return true };
        let refused = self.others * 10 > self.pages();
        let longer = self.coded_bytes * 4 > self.coded * u64::from(entry.record_bytes) * 5;
        let grown = self.pages() >= entry.object_pages.saturating_mul(GROWTH);
        refused || longer || grown
    }
}

/// Counts of the objects, by dataset and number, whose pages look like a database's.
#[derive(Default)]
pub(super) struct Watch {
    objects: BTreeMap<(u64, u64), Watched>,
    /// Objects that wait to be coded again ([`super::late`]).
    pub(super) late: BTreeSet<(u64, u64)>,
    /// Logs, by dataset and number.
    logs: BTreeMap<(u64, u64), WatchedLog>,
}

/// Counts of a log.
#[derive(Clone, Copy, Debug, Default)]
struct WatchedLog {
    /// Pages that were stored since the log was last put among those to be coded again.
    pages: u64,
    /// True for a log most of whose blocks have no form by which they could be recognised: one of its pages said so.
    is_marked: bool,
}

impl Watch {
    fn note(&mut self, object: (u64, u64), modelled: bool, record_bytes: usize) {
        if self.objects.len() >= WATCHED_MAX && !self.objects.contains_key(&object) {
            self.thin_out();
        }
        let watched = self.objects.entry(object).or_default();
        if modelled {
            watched.coded += 1;
            watched.coded_bytes += record_bytes as u64;
        } else {
            watched.others += 1;
        }
    }

    /// Counts `page` if it is a page of a log. With [`LOG_PAGES_MIN`] pages the log waits to be coded again, once it is
    /// quiet: fewer are not worth a checkpoint.
    fn note_log(&mut self, object: (u64, u64), number: u64, page: &[u8]) {
        let is_marked = registry().marks_log(number, page);
        let known = self.logs.get(&object).is_some_and(|log| log.is_marked);
        if !(is_marked || known || registry().looks_like_log(page)) {
            return;
        }
        if self.logs.len() >= WATCHED_MAX {
            // The lowest number belongs to the oldest file.
            self.logs.pop_first();
        }
        let log = self.logs.entry(object).or_default();
        log.is_marked |= is_marked;
        log.pages += 1;
        if log.pages >= LOG_PAGES_MIN {
            log.pages = 0;
            self.late.insert(object);
        }
        self.note_delta(object, false);
    }

    /// Returns true if an object is known to be a log.
    pub(super) fn is_log(&self, object: (u64, u64)) -> bool {
        self.logs.contains_key(&object)
    }

    /// Counts a page that tells nothing of what models are worth, such as a delta: only for an object that has a model,
    /// or may get one, since it shows that the object is being written.
    fn note_delta(&mut self, object: (u64, u64), modelled: bool) {
        if !(modelled || self.late.contains(&object) || self.objects.contains_key(&object)) {
            return;
        }
        if self.objects.len() >= WATCHED_MAX && !self.objects.contains_key(&object) {
            self.thin_out();
        }
        self.objects.entry(object).or_default().deltas += 1;
    }

    /// Returns the objects that were overwritten by deltas and do not wait to be coded again, with the number of
    /// deltas.
    pub(super) fn with_deltas(&self) -> Vec<((u64, u64), u64)> {
        let some = self.objects.iter().filter(|(of, watched)| watched.deltas > 0 && !self.late.contains(of));
        some.map(|(of, watched)| (*of, watched.deltas)).collect()
    }

    /// Notes that the deltas of an object are stored in full again.
    pub(super) fn forget_deltas(&mut self, object: (u64, u64)) {
        if let Some(watched) = self.objects.get_mut(&object) {
            watched.deltas = 0;
        }
    }

    /// Returns the objects whose pages are counted.
    pub(super) fn counted(&self) -> impl Iterator<Item = ((u64, u64), Watched)> + '_ {
        self.objects.iter().map(|(of, watched)| (*of, *watched))
    }

    /// Returns true if pages of an object are counted.
    pub(super) fn counts(&self, object: (u64, u64)) -> bool {
        self.objects.contains_key(&object)
    }

    /// Counts `pages` pages of an object that were not counted before, and on which a model may gain.
    pub(super) fn found(&mut self, object: (u64, u64), pages: u64) {
        if self.objects.len() < WATCHED_MAX {
            self.objects.entry(object).or_default().others += pages;
        }
    }

    /// Returns the number of pages of an object that were written since its model was adopted.
    pub(super) fn written(&self, object: (u64, u64)) -> u64 {
        self.objects.get(&object).map_or(0, |watched| watched.pages() + watched.deltas)
    }

    /// Forgets the half of the objects that were written least: most of them are small, or deleted.
    fn thin_out(&mut self) {
        let mut pages: Vec<u64> = self.objects.values().map(Watched::pages).collect();
        let middle = pages.len() / 2;
        let least = *pages.select_nth_unstable(middle).1;
        self.objects.retain(|_, watched| watched.pages() > least);
    }
}

impl Pool {
    /// Returns the models that code new pages of these objects.
    pub(super) fn current_models(
        &self,
        dataset: u64,
        pages: &[((u64, u64), &PageBuf)],
        codecs: &Codecs,
    ) -> Current {
        let mut found = Current::new();
        if codecs.are_plain() {
            return found;
        }
        let mut last = None;
        for ((object, _), _) in pages {
            if last.replace(*object) != Some(*object)
                && codecs.of(*object).model_level().is_some()
                && let Some(current) = self.current_model(dataset, *object)
            {
                found.insert(*object, current);
            }
        }
        found
    }

    /// Returns the model that codes new pages of `object`. For callers that hold the log's lock until a segment lists
    /// the model; others take [`Pool::pinned_model`].
    pub(super) fn current_model(&self, dataset: u64, object: u64) -> Option<(ModelId, Arc<Model>)> {
        let id = self.shared.models.current(dataset, object)?;
        Some((id, self.model_to_code_by(id, object)?))
    }

    /// Returns the model that codes new pages of `object`, which stays as long as it is pinned.
    pub(super) fn pinned_model(&self, dataset: u64, object: u64) -> Option<(ModelPin, Arc<Model>)> {
        let pin = self.shared.models.pin_current(dataset, object)?;
        let model = self.model_to_code_by(pin.id(), object)?;
        Some((pin, model))
    }

    fn model_to_code_by(&self, id: ModelId, object: u64) -> Option<Arc<Model>> {
        match self.shared.model(id) {
            Ok(model) => Some(model),
            Err(error) => {
                tracing::error!(%error, object, "a model cannot be used; pages are coded without it");
                None
            }
        }
    }

    /// Counts how the pages of a commit were stored.
    pub(super) fn watch_pages(
        &self,
        dataset: u64,
        pages: &[((u64, u64), &PageBuf)],
        coded: &[Coded],
        codecs: &Codecs,
        models: &Current,
    ) {
        if codecs.are_plain() {
            return;
        }
        let mut watch = self.watch.lock();
        for (((object, number), page), coded) in pages.iter().zip(coded) {
            let Some((record, model)) = &coded.stored else { continue };
            if codecs.of(*object).model_level().is_none() {
                continue;
            }
            if coded.kept > 0 {
                watch.note_delta((dataset, *object), models.contains_key(object));
                continue;
            }
            if model.is_some() || registry().looks_like_database(page) {
                watch.note((dataset, *object), model.is_some(), record.len());
            } else {
                watch.note_log((dataset, *object), *number, page);
            }
        }
    }

    /// Learns a model for the object that wants one most, if any does, and adopts it if it gains. Returns `None` if
    /// there was nothing to do.
    ///
    /// # Errors
    /// Of reading pages and of writing the model.
    pub fn learn(&self, options: &LearnOptions) -> Result<Option<Learned>> {
        self.learn_of(options, false)
    }

    /// As [`Pool::learn`]; with `firsts`, only for objects that have no model.
    pub(super) fn learn_of(&self, options: &LearnOptions, firsts: bool) -> Result<Option<Learned>> {
        if self.shared.check_writable().is_err() || self.shared.models.next_id().is_none() {
            return Ok(None);
        }
        let (dataset, object, level) = loop {
            let Some((id, object)) = self.wants_model(options, firsts) else { return Ok(None) };
            let dataset = self.dataset_by_id(id);
            let level = dataset.as_ref().and_then(|dataset| dataset.compression_of(object).model_level());
            if let (Some(dataset), Some(level)) = (dataset, level) {
                break (dataset, object, level);
            }
            // The object's property has changed by now, or the dataset is gone.
            self.watch.lock().objects.remove(&(id, object));
        };
        let id = dataset.id;
        let first = self.shared.models.current(id, object).is_none();
        let learned = self.learn_from(&dataset, object, level, options);
        let deleted = dataset.usage(object).is_ok_and(|usage| usage.pages == 0);
        let mut watch = self.watch.lock();
        match &learned {
            Ok(Some(_)) => {
                watch.objects.remove(&(id, object));
                watch.late.insert((id, object));
            }
            _ if deleted => drop(watch.objects.remove(&(id, object))),
            Ok(None) | Err(_) => {
                if let Some(watched) = watch.objects.get_mut(&(id, object)) {
                    watched.tried_at = watched.pages();
                }
            }
        }
        drop(watch);
        Ok(Some(Learned { dataset: id, object, adopted: learned?, first }))
    }

    /// Returns the object with the most pages on which a model may gain; with `firsts`, of those that have no model.
    fn wants_model(&self, options: &LearnOptions, firsts: bool) -> Option<(u64, u64)> {
        let models = &self.shared.models;
        let watch = self.watch.lock();
        let due = watch.objects.iter().filter(|((dataset, object), watched)| {
            let entry = models.current(*dataset, *object).and_then(|id| models.get(id));
            watched.is_due(entry.as_ref(), options.pages_min) && !(firsts && entry.is_some())
        });
        // Of objects with as many pages the lowest number wins, so that the same state has the same outcome.
        due.max_by_key(|(object, watched)| (watched.pages(), std::cmp::Reverse(**object)))
            .map(|(object, _)| *object)
    }

    /// Returns true if there is room for models of small objects: large ones may need the rest.
    pub(super) fn has_few_models(&self) -> bool {
        self.shared.models.count() < MODELS_MAX / SMALL_SHARE
    }

    /// Learns a model for an object that has none, or whose model is of when it was smaller, if the object is large
    /// enough and looks as if a model would gain. Returns the model's number if it was adopted.
    pub(super) fn learn_for_recompression(
        &self,
        dataset: &LiveDataset,
        object: u64,
    ) -> Result<Option<ModelId>> {
        let Some(level) = dataset.compression_of(object).model_level() else { return Ok(None) };
        let entry = self.shared.models.current(dataset.id, object).and_then(|id| self.shared.models.get(id));
        if let Some(ModelEntry { object_pages, .. }) = entry
            && dataset.usage(object)?.pages <= object_pages.saturating_add(object_pages / UNSEEN)
        {
            return Ok(None);
        }
        let options =
            if self.has_few_models() { LearnOptions::RECOMPRESSION } else { LearnOptions::default() };
        let adopted = self.learn_from(dataset, object, level, &options)?;
        if adopted.is_some() {
            self.watch.lock().objects.remove(&(dataset.id, object));
        }
        Ok(adopted)
    }

    fn learn_from(
        &self,
        dataset: &LiveDataset,
        object: u64,
        level: u8,
        options: &LearnOptions,
    ) -> Result<Option<ModelId>> {
        let object_pages = dataset.usage(object)?.pages;
        if object_pages < options.pages_min {
            return Ok(None);
        }
        let sampled = registry().worth_learning(draw(dataset, object, options.sample_pages)?);
        self.learn_pages(dataset.id, object, &sampled, object_pages, (Kinds::Any, level))
    }

    /// Learns a model of `object` from `sampled` pages, and adopts it if it gains on the present one. Returns `None` if
    /// it does not.
    pub(super) fn learn_pages(
        &self,
        dataset: u64,
        object: u64,
        sampled: &[Vec<u8>],
        object_pages: u64,
        (kinds, level): (Kinds, u8),
    ) -> Result<Option<ModelId>> {
        if sampled.is_empty() {
            return Ok(None);
        }
        let current = self.shared.models.current(dataset, object);
        // A model that cannot be read is replaced in any case.
        let old = current.and_then(|id| Some((id, self.shared.model(id).ok()?)));
        let old = old.as_ref().map(|(id, model)| (*id, &**model));
        let Some(ModelCandidate { model, bytes, sampled_pages, record_bytes }) =
            learn_better(sampled, old, object_pages, (kinds, level))
        else {
            return Ok(None);
        };
        let before = current.and_then(|id| self.shared.models.get(id));
        let generation = before.map_or(0, |before| before.generation.saturating_add(1));
        let adopted = self.adopt(model, bytes, |ptr, codec| ModelEntry {
            ptr,
            codec,
            dataset,
            object,
            generation,
            sampled_pages,
            object_pages,
            record_bytes,
            late: true,
        })?;
        Ok(adopted.map(|pin| pin.id()))
    }

    /// Stores with a model in use whether pages from before it wait to be coded again (`late`).
    pub(super) fn restate_model(&self, id: ModelId, late: bool) -> Result<()> {
        self.restate_model_as(id, &|entry| ModelEntry { late, ..entry })
    }

    /// Gives a model the entry that `restate` makes of the one that it has.
    pub(super) fn restate_model_as(
        &self,
        id: ModelId,
        restate: &dyn Fn(ModelEntry) -> ModelEntry,
    ) -> Result<()> {
        let claim = ENTRY_BYTES_MAX as u64;
        if self.shared.reserve(claim, 0, 0).is_err() {
            // The pool is full: the entry stays as it is.
            return Ok(());
        }
        let restated = self.try_restate_model(id, restate);
        self.shared.release(claim);
        restated
    }

    fn try_restate_model(&self, id: ModelId, restate: &dyn Fn(ModelEntry) -> ModelEntry) -> Result<()> {
        self.prepare_commit()?;
        let mut log = self.log.lock();
        self.check_failed()?;
        let Some(entry) = self.shared.models.get(id) else { return Ok(()) };
        if self.shared.read_only.load(Ordering::Relaxed) {
            return Ok(());
        }
        let entry = restate(entry);
        let mut ops = Vec::new();
        Redo::Put(self.own.id, Key::model(id), &entry.encode()).encode(&mut ops);
        let appended = log.writer.append(0, &[], ops.len(), |_| ops, false);
        let appended = appended.inspect_err(|error| self.shared.fail(error))?;
        log.window_bytes += appended.written_bytes;
        count(&self.shared.counters.framing_bytes, appended.framing_bytes);
        self.own.restate_model(id, entry).inspect_err(|error| self.shared.fail(error))
    }

    /// Writes a model to the log, and only then uses it, so that no record before it in the log can name it (M1).
    /// Returns `None` if there is no room. The model stays as long as it is pinned, even if nothing needs it.
    pub(super) fn adopt(
        &self,
        model: Model,
        bytes: Vec<u8>,
        entry: impl FnOnce(crate::Ptr, crate::record::Codec) -> ModelEntry,
    ) -> Result<Option<ModelPin>> {
        let record = Rec { kind: RecordKind::Model, model: None, bytes: encode_metadata(bytes) };
        let claim = (record.bytes.len() + ENTRY_BYTES_MAX) as u64;
        if self.shared.reserve(claim, 0, 0).is_err() {
            return Ok(None);
        }
        let adopted = self.adopt_record(model, record, entry);
        self.shared.release(claim);
        adopted
    }

    fn adopt_record(
        &self,
        model: Model,
        record: Rec,
        entry: impl FnOnce(crate::Ptr, crate::record::Codec) -> ModelEntry,
    ) -> Result<Option<ModelPin>> {
        self.prepare_commit()?;
        let mut log = self.log.lock();
        self.check_failed()?;
        let Some(id) = self.shared.models.next_id() else { return Ok(None) };
        if self.shared.read_only.load(Ordering::Relaxed) {
            // The pool was exported meanwhile.
            return Ok(None);
        }
        let codec = codec_of(&model);
        let mut put = None;
        let appended = log.writer.append(
            0,
            &[record],
            ENTRY_BYTES_MAX,
            |ptrs| {
                let mut ops = Vec::new();
                put = ptrs.first().map(|ptr| entry(*ptr, codec));
                if let Some(entry) = &put {
                    Redo::Put(self.own.id, Key::model(id), &entry.encode()).encode(&mut ops);
                }
                ops
            },
            false,
        );
        let appended = appended.inspect_err(|error| self.shared.fail(error))?;
        log.window_bytes += appended.written_bytes;
        let counters = &self.shared.counters;
        count(&counters.model_bytes, appended.written_bytes - appended.framing_bytes);
        count(&counters.framing_bytes, appended.framing_bytes);
        let Some(entry) = put else { return Ok(None) };
        let placed = self.own.put_model(id, entry, Arc::new(model));
        placed.inspect_err(|error| self.shared.fail(error))?;
        Ok(self.shared.models.pin(id))
    }
}

/// Reads up to `wanted` pages, spread over the object. Damaged ones are passed over.
pub(super) fn draw(dataset: &LiveDataset, object: u64, wanted: u64) -> Result<Vec<Vec<u8>>> {
    let record_size = dataset.record_size(object)?;
    let pages = dataset.end_page(object)?;
    if wanted == 0 || record_size == 0 {
        return Ok(Vec::new());
    }
    let mut sampled = Vec::new();
    let mut next = 0;
    for at in 0..wanted.min(pages) {
        let from = next.max((u128::from(at) * u128::from(pages) / u128::from(wanted.min(pages))) as u64);
        let Some(page) = dataset.next_data(object, from)? else { break };
        next = page + 1;
        let Some(offset) = page.checked_mul(record_size.into()) else { break };
        let mut bytes = vec![0; record_size as usize];
        match dataset.read_as(IoClass::AsyncRead, (object, record_size), offset, &mut bytes) {
            Ok(()) => sampled.push(bytes),
            // The others tell as much of the object; `check` and a scrub report the damage.
            Err(error) if error.is_damage() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(sampled)
}

/// A model that was learned from some pages and not adopted yet.
#[derive(Debug)]
pub struct ModelCandidate {
    /// The model as it is read back from `bytes`.
    pub model: Model,
    /// The model's stored form, before it is encoded as metadata.
    pub bytes: Vec<u8>,
    /// Number of pages that it was learned from.
    pub sampled_pages: u32,
    /// Average length of these pages' records, in bytes.
    pub record_bytes: u32,
}

/// Learns a model of `kinds` from `sampled` pages, for `object_pages` pages like them, with zstd's `level` for text. If
/// there is a `current` one, some of the pages are not learned from: the new model has to make these 3 % shorter than
/// the current one does, and to save its own length. Returns `None` if it does not, or no model is found.
pub fn learn_better(
    sampled: &[Vec<u8>],
    current: Option<(ModelId, &Model)>,
    object_pages: u64,
    (kinds, level): (Kinds, u8),
) -> Option<ModelCandidate> {
    let (mut training, mut held_out): (Vec<&[u8]>, Vec<&[u8]>) = (Vec::new(), Vec::new());
    for (at, page) in sampled.iter().enumerate() {
        let kept = current.is_some() && at % HELD_OUT == HELD_OUT - 1;
        if kept { held_out.push(page) } else { training.push(page) }
    }
    let options = Options { kinds, level: level.into(), relation_pages: object_pages };
    let bytes = pagefold_codec::learn(&training, options)?.to_bytes();
    // The model that is used is the one that will be read back: pages are verified with it.
    let model = Model::from_bytes(&bytes)
        .inspect_err(|error| tracing::error!(%error, "a learned model cannot be read back and is not used"))
        .ok()?;
    if let Some((id, old)) = current {
        let before = average_bytes(id, old, &held_out);
        let after = average_bytes(ModelId::MAX, &model, &held_out);
        let saved = before.saturating_sub(after).saturating_mul(object_pages);
        // A few percent are not worth another model in memory.
        if after * 33 > before * 32 || saved < bytes.len() as u64 {
            return None;
        }
    }
    let record_bytes = average_bytes(ModelId::MAX, &model, &training) as u32;
    Some(ModelCandidate { model, bytes, sampled_pages: training.len() as u32, record_bytes })
}

/// Returns the average length of the records of `pages`, in bytes.
fn average_bytes(id: ModelId, model: &Model, pages: &[&[u8]]) -> u64 {
    let mut record = Vec::new();
    let mut total = 0;
    for page in pages {
        record.clear();
        Encoder::new().encode_by(page, (id, model), Compression::Page(1), &mut record);
        total += record.len() as u64;
    }
    total / pages.len().max(1) as u64
}
