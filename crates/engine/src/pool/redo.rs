//! Runs the second pass of replay: does the operations of the log again, on the checkpoint's trees and catalogue.
//!
//! Changes of different pages and values do not depend on each other's order, and the order of the log is not that of
//! the trees. So changes are collected into windows, the leaves that they need are read, many at once, and then the
//! changes are done in the order of the trees.
//!
//! - J1: the outcome is that of the log's order. Within a window, changes of the same page keep their order. An
//!   operation that is neither a value nor a run of new records ends a window, since it may depend on anything before
//!   it.
//!
//! Reasons: docs/decisions/0032-replay.md.

use std::collections::{BTreeMap, HashMap};

use super::ahead::ReadAhead;
use super::catalogue::Catalogue;
use super::create::OWN;
use super::rescue::RescueReport;
use crate::dataset::redo::{Bases, PageRun, Redo, for_each};
use crate::dataset::{Dataset, LiveDataset, ModelEntry, Shared};
use crate::{Addr, Key, Result};

/// Number of pages and values at which a window is full. A run takes some 200 bytes of memory.
const WINDOW_KEYS: usize = 64 << 10;
/// Largest number of keys whose leaves are read at once.
const AHEAD_KEYS_MAX: usize = 8 << 10;
/// Least number of keys whose leaves are read at once.
const AHEAD_KEYS_MIN: usize = 64;
/// Approximate memory of a leaf, in bytes. It bounds how many keys are read ahead, so that their leaves stay in memory
/// until they are changed.
const LEAF_MEMORY_BYTES: u64 = 40 << 10;

/// Replay under way.
pub(super) struct Redoing<'a> {
    catalogue: &'a mut Catalogue,
    own: &'a LiveDataset,
    shared: &'a Shared,
    rescue: Option<&'a mut RescueReport>,
    ahead: &'a ReadAhead,
    /// True from the first operation on that met damage: from then on accounts are not what later operations expect.
    rescuing: bool,
}

/// Changes that may be done in another order (J1).
#[derive(Default)]
struct Window<'a> {
    values: Vec<(u64, Key, Option<&'a [u8]>)>,
    runs: Vec<PageRun>,
    /// Size of an object's pages, by dataset and object; only an operation of another kind changes it.
    record_sizes: HashMap<(u64, u64), u32>,
    keys: usize,
}

impl<'a> Window<'a> {
    /// Takes the operation, or returns it if it has to be done after all of the window.
    fn push(&mut self, redo: Redo<'a>) -> Option<Redo<'a>> {
        match redo {
            Redo::Put(dataset, key, value) if dataset != OWN => self.values.push((dataset, key, Some(value))),
            Redo::Delete(dataset, key) if dataset != OWN => self.values.push((dataset, key, None)),
            Redo::Pages(run) if !run.shared => {
                let size = self.record_sizes.entry((run.dataset, run.object)).or_insert(run.record_size);
                if *size != run.record_size {
                    return Some(Redo::Pages(run));
                }
                self.keys += run.ptrs.len();
                self.runs.push(run);
            }
            other => return Some(other),
        }
        self.keys += 1;
        None
    }

    const fn is_full(&self) -> bool {
        self.keys >= WINDOW_KEYS
    }

    /// Sorts the runs by their place in the trees; runs that have a page in common keep their order.
    fn sort_runs(&mut self) {
        let mut sorted: Vec<(usize, PageRun)> =
            std::mem::take(&mut self.runs).into_iter().enumerate().collect();
        sorted.sort_by_key(|(_, run)| place(run));
        let mut from = 0;
        let (mut object, mut end) = ((0, 0), 0);
        for at in 0..=sorted.len() {
            let next = sorted.get(at).map(|(_, run)| ((run.dataset, run.object), run.first, run_end(run)));
            if let Some((of, first, run_end)) = next
                && of == object
                && first < end
            {
                end = end.max(run_end);
                continue;
            }
            if let Some(overlapping) = sorted.get_mut(from..at).filter(|runs| runs.len() > 1) {
                overlapping.sort_by_key(|(position, _)| *position);
            }
            from = at;
            if let Some((of, _, run_end)) = next {
                (object, end) = (of, run_end);
            }
        }
        self.runs = sorted.into_iter().map(|(_, run)| run).collect();
    }
}

fn place(run: &PageRun) -> (u64, u64, u64) {
    (run.dataset, run.object, run.first)
}

const fn run_end(run: &PageRun) -> u64 {
    run.first.saturating_add(run.ptrs.len() as u64)
}

impl<'a> Redoing<'a> {
    /// Makes a replay that changes `catalogue` and the pool's own tree; with `rescue` it goes on behind damage.
    pub(super) const fn new(
        catalogue: &'a mut Catalogue,
        own: &'a LiveDataset,
        shared: &'a Shared,
        rescue: Option<&'a mut RescueReport>,
        ahead: &'a ReadAhead,
    ) -> Self {
        Self { catalogue, own, shared, rescue, ahead, rescuing: false }
    }

    /// Does all operations of these batches.
    pub(super) fn all(mut self, batches: &[Vec<u8>]) -> Result<()> {
        let mut window = Window::default();
        for batch in batches {
            for_each(batch, &mut |redo| {
                if self.rescue.is_some() {
                    return self.rescued(redo);
                }
                if let Some(mut redo) = window.push(redo) {
                    self.finish(std::mem::take(&mut window))?;
                    self.redo(&mut redo)?;
                }
                if window.is_full() { self.finish(std::mem::take(&mut window)) } else { Ok(()) }
            })?;
        }
        self.finish(window)
    }

    fn finish(&mut self, mut window: Window<'_>) -> Result<()> {
        window.sort_runs();
        let at_once = self.keys_at_once();
        for values in window.values.chunks(at_once) {
            let mut keys = Keys::default();
            values.iter().for_each(|(dataset, key, _)| keys.add(*dataset, *key));
            self.read_ahead(keys);
            for (dataset, key, value) in values {
                self.catalogue.changing(*dataset)?.replay_value(*key, *value)?;
            }
        }
        let mut runs = window.runs.into_iter().peekable();
        while runs.peek().is_some() {
            let (mut part, mut keys) = (Vec::new(), Keys::default());
            while let Some(run) = runs.next_if(|_| keys.len() < at_once) {
                for page in run.first..run_end(&run) {
                    keys.add(run.dataset, Key::page(run.object, page));
                    keys.add(run.dataset, Key::base(run.object, page, 0));
                }
                part.push(run);
            }
            self.read_ahead(keys);
            for run in part {
                self.redo(&mut Redo::Pages(run))?;
            }
        }
        Ok(())
    }

    /// Returns the number of keys whose leaves take half of the memory for nodes, if no two keys have the same leaf.
    fn keys_at_once(&self) -> usize {
        let leaves = self.shared.nodes.stats().capacity_bytes / LEAF_MEMORY_BYTES / 2;
        usize::try_from(leaves).unwrap_or(AHEAD_KEYS_MAX).clamp(AHEAD_KEYS_MIN, AHEAD_KEYS_MAX)
    }

    /// Reads into memory what changes of these keys will need: the leaves, and the lengths of the records that they
    /// replace, if pointers do not tell these lengths. Errors are ignored: the change that needs the data meets them
    /// again.
    fn read_ahead(&self, keys: Keys) {
        let segments = &self.shared.segments;
        for (id, keys) in keys.sorted() {
            let Ok(dataset) = self.catalogue.changing(id) else { continue };
            dataset.load_leaves(&keys, &|absent| drop(self.ahead.map(absent, |key| dataset.get(key))));
            if segments.has_recompressed() {
                let ptrs = dataset.ptrs(&keys).unwrap_or_default();
                let mut stale: Vec<Addr> = segments
                    .recompressed(&ptrs)
                    .into_iter()
                    .filter_map(|at| Some(ptrs.get(at)?.addr))
                    .collect();
                stale.sort_unstable();
                stale.dedup_by_key(|addr| addr.segment());
                self.ahead.map(&stale, |addr| segments.locate(&self.shared.devices, *addr).is_ok());
            }
        }
    }

    /// Does an operation for rescue: in the log's own order, and even behind damage.
    fn rescued(&mut self, mut redo: Redo<'_>) -> Result<()> {
        if !self.rescuing {
            match self.redo(&mut redo) {
                Err(error) if error.is_damage() => self.rescuing = true,
                done => return done,
            }
        }
        if let Some(rescue) = &mut self.rescue {
            rescue.redo(self.catalogue, self.own, &redo);
        }
        Ok(())
    }

    fn redo(&mut self, redo: &mut Redo<'_>) -> Result<()> {
        let (catalogue, shared) = (&mut *self.catalogue, self.shared);
        match redo {
            Redo::Put(OWN, key, value) => {
                if key.kind == Key::MODEL {
                    shared.segments.mark_live(ModelEntry::decode(value)?.ptr)?;
                }
                self.own.replay_value(*key, Some(value))
            }
            Redo::Put(id, key, value) => catalogue.changing(*id)?.replay_value(*key, Some(value)),
            Redo::Delete(id, key) => catalogue.changing(*id)?.replay_value(*key, None),
            Redo::Punch { dataset, object, from, to } => {
                catalogue.changing(*dataset)?.remove_pages(*object, *from, *to)
            }
            Redo::Pages(run) => {
                if run.shared {
                    // The records may have been recompressed by a pass that a crash has undone. A pointer must not say
                    // less than is stored.
                    let bases = match &mut run.bases {
                        Bases::Shared(bases) => bases.as_mut_slice(),
                        Bases::Kept(_) | Bases::None => &mut [],
                    };
                    for ptr in run.ptrs.iter_mut().flatten().chain(bases.iter_mut().flatten()) {
                        ptr.len_bytes = ptr.len_bytes.max(shared.stored_len(*ptr));
                    }
                } else {
                    run.ptrs.iter().flatten().try_for_each(|ptr| shared.segments.mark_live(*ptr))?;
                }
                catalogue.changing(run.dataset)?.put_pages(run).map(drop)
            }
            Redo::Catalogue(op) => catalogue.perform(op),
        }
    }
}

/// Keys by dataset.
#[derive(Default)]
struct Keys {
    of: BTreeMap<u64, Vec<Key>>,
    count: usize,
}

impl Keys {
    fn add(&mut self, dataset: u64, key: Key) {
        self.of.entry(dataset).or_default().push(key);
        self.count += 1;
    }

    const fn len(&self) -> usize {
        self.count
    }

    fn sorted(mut self) -> BTreeMap<u64, Vec<Key>> {
        for keys in self.of.values_mut() {
            keys.sort_unstable();
            keys.dedup();
        }
        self.of
    }
}

#[cfg(test)]
mod tests;
