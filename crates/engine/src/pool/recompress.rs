//! Codes stored pages again, with the present property and the models that there are by now: survivors of segments that
//! are moved get other bytes at their addresses. Reasons: docs/decisions/0015-coding-again.md.
//!
//! - R1: a segment with records that were coded again is marked; when a page's record in it dies, its length is taken
//!   from the directory ([`crate::dataset::Shared::free_pages`]).
//! - R2: a segment moves, and the tree's pointers to its records get their new lengths, in one instant that no quiesce
//!   point divides: with the log's lock held and the gate closed. The log says nothing of either (G4).
//! - R3: models that records used before they were coded again stay as long as somebody reads who may have found the
//!   records as they were (M5).
//! - R4: models for coding again are pinned until segments that list them are published: the background may learn
//!   others meanwhile, and the checkpoints between two passes drop models that no segment lists.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::Ordering;

use rayon::prelude::*;

use super::clean::{ChangedPages, move_to};
use super::coded::Current;
use super::commit::encode_page;
use super::pack::{Packer, Survivor};
use super::{Maintenance, Pool};
use crate::dataset::{Codecs, Commit, Dataset, LiveDataset, ModelPin, PASS_TABLE_BYTES, count};
use crate::device::IoClass;
use crate::limits::BLOCK_BYTES;
use crate::record::{Encoder, decode, is_delta, model_of};
use crate::segment::{Move, Segment};
use crate::{Addr, Error, Ptr, Result, segment};

/// Largest number of pages that are examined at a time. A segment is read whole, and moved for a fiftieth of its length:
/// the records of an object that was written in no order lie everywhere, and of few of its pages each segment has next
/// to none. A page takes about 80 bytes of memory meanwhile.
pub const CALL_PAGES: usize = 64 << 10;
/// Number of pages at which a pass of coding again ends; a checkpoint follows it.
const PASS_PAGES: usize = 8 << 10;
/// Largest number of chunks that coding again fills between two checkpoints.
const OUTPUT_CHUNKS: u64 = 4;
/// Number of records that are coded as a trial: of an object, or, if that has at least so many pages, of each segment.
const TRIALS: usize = 16;
const LARGE_PAGES: usize = 512;
/// A segment is read if a trial promises at least one part in so many of what makes it worth moving.
const TRIAL_SLACK: u64 = 2;
/// Least gain of a record: it has to become shorter by one part in this number.
const RECORD_GAIN: usize = 32;
/// Least gain of a segment: it moves if it becomes smaller by one part in this number, or for the sake of a small
/// object: [`RecompressPlan::halves_an_object`].
const SEGMENT_GAIN: u64 = 50;
/// Number of pages that are looked up at a time.
const LOOKUP_PAGES: usize = 1024;

/// Consecutive pages of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageRange {
    /// The object.
    pub object: u64,
    /// First page.
    pub from: u64,
    /// One past the last page.
    pub to: u64,
}

/// Result of coding pages again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecompressReport {
    /// Number of stored pages that were examined.
    pub pages: u64,
    /// Length of these pages before compression, in bytes.
    pub logical_bytes: u64,
    /// Number of these pages that have shorter records now.
    pub recompressed: u64,
    /// Length of the records of recompressed pages before, in bytes.
    pub before_bytes: u64,
    /// Length of the records of recompressed pages now, in bytes.
    pub after_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Place at which to go on: position among the ranges, and page; `None` if all pages were examined.
    pub next: Option<(usize, u64)>,
}

/// A page that may be coded again.
#[derive(Clone, Copy)]
pub(super) struct RecompressTarget {
    pub(super) object: u64,
    pub(super) page: u64,
    pub(super) record_size: u32,
    pub(super) ptr: Ptr,
}

/// The pages that are coded again, and how they are coded.
pub(super) struct RecompressPlan {
    codecs: Codecs,
    models: Current,
    /// Pins of these models (R4).
    pins: Vec<ModelPin>,
    /// Pages by the segment and slot of their record.
    targets: BTreeMap<u64, HashMap<u32, RecompressTarget>>,
    /// Number of these pages in each object.
    of_objects: HashMap<u64, usize>,
}

impl RecompressPlan {
    /// Returns true if all pages have been looked at.
    pub(super) fn is_done(&self) -> bool {
        self.targets.is_empty()
    }

    /// Returns true if an object among these targets of a segment has few pages, or most of them here.
    fn has_whole_objects(&self, targets: &HashMap<u32, RecompressTarget>) -> bool {
        let mut here: HashMap<u64, usize> = HashMap::new();
        targets.values().for_each(|target| *here.entry(target.object).or_default() += 1);
        here.into_iter().any(|(object, pages)| {
            let all = self.of_objects.get(&object).copied().unwrap_or_default();
            all < LARGE_PAGES || 2 * pages > all
        })
    }

    /// Returns true if an object that lies mostly in this segment becomes half as long, and a block shorter. Among
    /// others such an object may be too small to be worth moving the segment, and would never be coded again.
    fn halves_an_object(&self, recompressed: &Recompressed) -> bool {
        let mut sums: HashMap<u64, (usize, u64, u64)> = HashMap::new();
        for (target, len_bytes) in &recompressed.pages {
            let (pages, before, after) = sums.entry(target.object).or_default();
            *pages += 1;
            *before += u64::from(target.ptr.len_bytes);
            *after += u64::from(*len_bytes);
        }
        sums.into_iter().any(|(object, (pages, before, after))| {
            let most = 2 * pages > self.of_objects.get(&object).copied().unwrap_or_default();
            most && 2 * after <= before && before - after >= BLOCK_BYTES as u64
        })
    }
}

/// Result of coding some records as a trial.
#[derive(Clone, Copy, Debug, Default)]
struct Trial {
    /// Bytes of the records, and by how many they became shorter.
    tried: u64,
    gained: u64,
}

/// A segment whose records were coded again.
struct Recompressed {
    survivors: Vec<Survivor>,
    /// Pages whose records are shorter now, with the new lengths in bytes.
    pages: Vec<(RecompressTarget, u32)>,
    /// Models that records used before they were coded again.
    left: Vec<u32>,
}

impl Recompressed {
    fn before_bytes(&self) -> u64 {
        self.pages.iter().map(|(target, _)| u64::from(target.ptr.len_bytes)).sum()
    }

    fn after_bytes(&self) -> u64 {
        self.pages.iter().map(|(_, len_bytes)| u64::from(*len_bytes)).sum()
    }
}

impl Pool {
    /// Codes stored pages of the pool's own dataset again, if that makes them shorter: up to `pages_max` pages from
    /// `from` on (position among `ranges`, and page). Everything that was accepted before is written first. Pages of
    /// the last few MiB of the log may be left as they are.
    ///
    /// # Errors
    /// Errors of reading and writing; [`Error::NoSpace`] if there is no free chunk to write to.
    pub fn recompress(
        &self,
        ranges: &[PageRange],
        from: (usize, u64),
        pages_max: usize,
    ) -> Result<RecompressReport> {
        self.recompress_in(self.dataset.id, ranges, from, pages_max)
    }

    /// As [`Pool::recompress`], in the dataset with number `id`.
    ///
    /// # Errors
    /// As [`Pool::recompress`]; [`Error::NotFound`]; [`Error::Invalid`] for a snapshot: its pages are coded again with
    /// those that its dataset shares with it.
    pub fn recompress_in(
        &self,
        id: u64,
        ranges: &[PageRange],
        from: (usize, u64),
        pages_max: usize,
    ) -> Result<RecompressReport> {
        self.shared.check_writable()?;
        let dataset = self.version_by_id(id)?;
        if dataset.takes_no_changes.load(Ordering::Relaxed) {
            return Err(Error::Invalid("a snapshot's pages are coded again with its dataset's".into()));
        }
        self.commit(false)?;
        let mut report = RecompressReport::default();
        let mut found = targets(&dataset, ranges, from, pages_max, &mut report)?;
        let mut expanded = 0;
        for of_object in found.chunk_by(|a, b| a.object == b.object && a.page < b.page) {
            if let (Some(first), Some(last)) = (of_object.first(), of_object.last()) {
                let end = last.page.saturating_add(1);
                expanded += self.expand_deltas(&dataset, first.object, first.page, end)?;
            }
        }
        if expanded > 0 {
            report = RecompressReport::default();
            found = targets(&dataset, ranges, from, pages_max, &mut report)?;
        }
        let targets = found;
        report.pages = targets.len() as u64;
        report.logical_bytes = targets.iter().map(|target| u64::from(target.record_size)).sum();
        let mut plan = self.plan(&dataset, ranges, &targets)?;
        while !plan.is_done() {
            self.recompress_step(&dataset, &mut plan, PASS_PAGES, &mut report)?;
        }
        Ok(report)
    }

    /// Does one pass of a plan: of about `pages_max` pages, and of one segment at least.
    ///
    /// # Errors
    /// As [`Pool::recompress`].
    pub(super) fn recompress_step(
        &self,
        dataset: &LiveDataset,
        plan: &mut RecompressPlan,
        pages_max: usize,
        report: &mut RecompressReport,
    ) -> Result<()> {
        let Some(first) = plan.targets.keys().next().copied() else { return Ok(()) };
        let mut state = self.maintenance.lock();
        self.regain(&mut state)?;
        if self.recompress_pass(dataset, &mut state, plan, (pages_max, &mut *report))? {
            self.checkpoint_locked(&mut state, false)?;
        }
        if plan.targets.contains_key(&first) {
            return Err(Error::NoSpace("there is no free chunk to recompress to; delete something".into()));
        }
        self.restore_room(&mut state)?;
        // Commits that wait for room get their turn here.
        parking_lot::MutexGuard::unlock_fair(state);
        Ok(())
    }

    /// Plans how the targets are coded, without the small objects that do not gain. Objects that could have a model, or a
    /// better one, get it. Targets can be moved from then on.
    pub(super) fn plan(
        &self,
        dataset: &LiveDataset,
        ranges: &[PageRange],
        targets: &[RecompressTarget],
    ) -> Result<RecompressPlan> {
        let mut plan = RecompressPlan {
            codecs: dataset.codecs(targets.iter().map(|target| target.object)),
            models: Current::new(),
            pins: Vec::new(),
            targets: BTreeMap::new(),
            of_objects: HashMap::new(),
        };
        for of_object in targets.chunk_by(|a, b| a.object == b.object) {
            let Some(first) = of_object.first() else { continue };
            let begins = |range: &PageRange| range.object == first.object && first.page <= range.from;
            let modelled = plan.codecs.of(first.object).model_level().is_some();
            let log = if modelled && self.shared.models.current(dataset.id, first.object).is_none() {
                self.model_of_log(dataset, first.object, ranges.iter().any(begins))?
            } else {
                None
            };
            if log.is_none() && ranges.iter().any(begins) {
                self.learn_for_recompression(dataset, first.object)?;
            }
            if modelled
                && let Some((pin, model)) = log.or_else(|| self.pinned_model(dataset.id, first.object))
            {
                plan.models.insert(first.object, (pin.id(), model));
                plan.pins.push(pin);
            }
            if of_object.len() >= LARGE_PAGES || self.trial(of_object.iter(), &plan)?.gained > 0 {
                *plan.of_objects.entry(first.object).or_default() += of_object.len();
                for target in of_object {
                    let segment = plan.targets.entry(target.ptr.addr.segment()).or_default();
                    segment.insert(target.ptr.addr.slot(), *target);
                }
            }
        }
        self.before_window(&plan)?;
        Ok(plan)
    }

    /// Codes a few pages, spread over `targets`, as a trial.
    fn trial<'a>(
        &self,
        targets: impl ExactSizeIterator<Item = &'a RecompressTarget>,
        plan: &RecompressPlan,
    ) -> Result<Trial> {
        let devices = self.shared.devices.of_class(IoClass::Recompression);
        let step = targets.len().div_ceil(TRIALS).max(1);
        let mut trial = Trial::default();
        for target in targets.step_by(step) {
            let _reading = self.shared.models.reading();
            let record = match self.shared.read_record_by(&devices, target.ptr.addr) {
                Ok(record) => record,
                // The page was overwritten or deleted meanwhile; or it is damaged, which `check` reports.
                Err(error) if error.is_damage() => continue,
                Err(error) => return Err(error),
            };
            trial.tried += record.len() as u64;
            let shorter = self.shorter(&record, target, plan);
            trial.gained += shorter.map_or(0, |shorter| (record.len() - shorter.len()) as u64);
        }
        Ok(trial)
    }

    /// Returns true if a segment is worth reading, as far as a trial of some of its targets tells.
    fn is_worth_reading(
        &self,
        segment: &Segment,
        targets: &HashMap<u32, RecompressTarget>,
        plan: &RecompressPlan,
    ) -> Result<bool> {
        if plan.has_whole_objects(targets) {
            return Ok(true);
        }
        // In the order of their slots: the same state has the same outcome.
        let by_slot: BTreeMap<u32, &RecompressTarget> =
            targets.iter().map(|(slot, target)| (*slot, target)).collect();
        let bytes: u64 = targets.values().map(|target| u64::from(target.ptr.len_bytes)).sum();
        let most = |gained: u64| gained * SEGMENT_GAIN * TRIAL_SLACK >= u64::from(segment.live_bytes);
        if !most(bytes) {
            return Ok(false);
        }
        let trial = self.trial(by_slot.into_values(), plan)?;
        let gain = u128::from(bytes) * u128::from(trial.gained) / u128::from(trial.tried.max(1));
        Ok(trial.gained > 0 && most(gain as u64))
    }

    /// Returns the shorter record of a page, if there is one.
    fn shorter(&self, record: &[u8], target: &RecompressTarget, plan: &RecompressPlan) -> Option<Vec<u8>> {
        // The same model would make the same record.
        let model = plan.models.get(&target.object).map(|(id, _)| *id);
        if is_delta(record) || (model.is_some() && model == model_of(record)) {
            return None;
        }
        let mut page = vec![0; target.record_size as usize];
        if let Err(error) = decode(record, &*self.shared, &mut page) {
            tracing::error!(%error, record = %target.ptr.addr, "a record that cannot be decoded is not coded again");
            return None;
        }
        // It replaces the only record of the page, long after its writer could have written it again.
        let encoder = Encoder::verifying();
        let (shorter, _) =
            encode_page(encoder, target.object, &page, plan.codecs.of(target.object), &plan.models)?;
        (shorter.len() + record.len().div_ceil(RECORD_GAIN) <= record.len()).then_some(shorter)
    }

    /// Makes a checkpoint if targets lie in the log since the last one, which cannot be moved. Before that, closes the
    /// open segment if targets lie in it.
    fn before_window(&self, plan: &RecompressPlan) -> Result<()> {
        let mut state = self.maintenance.lock();
        let Some((last, _)) = plan.targets.last_key_value() else { return Ok(()) };
        if *last < state.window_start.segment {
            return Ok(());
        }
        {
            let mut log = self.log.lock();
            self.shared.check_writable()?;
            if log.writer.position().segment == *last {
                if self.shared.spare_chunks() == 0 {
                    // The last few MiB then stay as they are.
                    return Ok(());
                }
                let rolled = log.writer.roll().inspect_err(|error| self.shared.fail(error))?;
                count(&self.shared.counters.framing_bytes, rolled);
            }
        }
        self.checkpoint_locked(&mut state, false)
    }

    /// Takes segments off the plan, codes their records again, and moves them. Returns true if any was moved.
    fn recompress_pass(
        &self,
        dataset: &LiveDataset,
        state: &mut Maintenance,
        plan: &mut RecompressPlan,
        (pages_max, report): (usize, &mut RecompressReport),
    ) -> Result<bool> {
        self.shared.check_writable()?;
        let spare = self.shared.clean_outputs().min(OUTPUT_CHUNKS);
        let before = state.cleaner.begun;
        let mut packer = Packer::new(self, before).of_class(IoClass::Recompression);
        let packed = self.pack_recompressed(state, plan, (pages_max, spare), &mut packer);
        let published = packed.and_then(|moved| {
            state.cleaner.begun = packer.suspend()?;
            packer.flush_later();
            let any = !moved.is_empty();
            moved.into_iter().try_for_each(|(id, to, recompressed)| {
                self.publish_recompressed(dataset, id, to, &recompressed, report)
            })?;
            Ok(any)
        });
        let published = published.inspect_err(|error| self.shared.fail(error));
        packer.release();
        report.written_bytes += packer.written_bytes;
        count(&self.shared.counters.moved_bytes, packer.written_bytes);
        published
    }

    fn pack_recompressed(
        &self,
        state: &Maintenance,
        plan: &mut RecompressPlan,
        (pages_max, spare): (usize, u64),
        packer: &mut Packer<'_>,
    ) -> Result<Vec<(u64, Move, Recompressed)>> {
        let mut moved = Vec::new();
        let mut pages = 0;
        let mut changed = ChangedPages::default();
        while let Some((id, targets)) = plan.targets.pop_first() {
            pages += targets.len();
            let recompressed = self.recompress_segment(state, id, &targets, plan)?;
            if let Some(recompressed) = recompressed {
                let page_bytes = |page| self.shared.segments.page_bytes(page);
                changed.add(self.shared.segments.page_ids().page(id), &page_bytes);
                let too_many = changed.bytes() > PASS_TABLE_BYTES && !moved.is_empty();
                let chunks = packer.begun_now() as u64 + packer.chunks_for(&recompressed.survivors);
                if too_many || chunks > spare {
                    plan.targets.insert(id, targets);
                    break;
                }
                let parts = match packer.pack(id, 0, &recompressed.survivors) {
                    Ok(parts) => parts,
                    // A commit took the chunk.
                    Err(Error::NoSpace(_)) => {
                        plan.targets.insert(id, targets);
                        break;
                    }
                    Err(error) => return Err(error),
                };
                moved.push((id, move_to(parts, &recompressed.survivors, true), recompressed));
            }
            if pages >= pages_max {
                break;
            }
        }
        Ok(moved)
    }

    /// Returns the survivors of a segment, those among `targets` coded again, or `None` if the segment is not worth
    /// moving.
    fn recompress_segment(
        &self,
        state: &Maintenance,
        id: u64,
        targets: &HashMap<u32, RecompressTarget>,
        plan: &RecompressPlan,
    ) -> Result<Option<Recompressed>> {
        let Some(segment) = self.shared.segments.get(id)?.filter(is_closed) else {
            return Ok(None);
        };
        if id >= state.window_start.segment {
            return Ok(None);
        }
        if !self.is_worth_reading(&segment, targets, plan)? {
            return Ok(None);
        }
        let devices = self.shared.devices.of_class(IoClass::Recompression);
        let mut survivors = match self.survivors(&devices, &segment, &segment.parts) {
            Ok(survivors) => survivors,
            Err(error) if error.is_damage() => {
                self.count_met(&error);
                tracing::error!(%error, segment = id, "a damaged segment is not coded again");
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        let before: u64 = survivors.iter().map(|(_, _, bytes)| bytes.len() as u64).sum();
        let coded: Vec<Option<(RecompressTarget, u32, Option<u32>)>> = survivors
            .par_iter_mut()
            .map(|(slot, checksum, bytes)| {
                let target = targets.get(slot)?;
                let shorter = self.shorter(bytes, target, plan)?;
                let left = model_of(bytes);
                *checksum = segment::record_checksum(Addr::new(id, *slot), &shorter);
                let len_bytes = shorter.len() as u32;
                let ptr = Ptr { len_bytes: bytes.len() as u32, ..target.ptr };
                *bytes = shorter;
                Some((RecompressTarget { ptr, ..*target }, len_bytes, left))
            })
            .collect();
        let mut left: Vec<u32> = coded.iter().flatten().filter_map(|(_, _, left)| *left).collect();
        left.sort_unstable();
        left.dedup();
        let pages = coded.into_iter().flatten().map(|(target, len_bytes, _)| (target, len_bytes)).collect();
        let recompressed = Recompressed { survivors, pages, left };
        let gain = recompressed.before_bytes() - recompressed.after_bytes();
        let pays = gain * SEGMENT_GAIN >= before.max(1) || plan.halves_an_object(&recompressed);
        Ok(pays.then_some(recompressed))
    }

    /// Moves a segment to where it was packed, and gives the tree's pointers their new lengths (R2).
    fn publish_recompressed(
        &self,
        dataset: &LiveDataset,
        id: u64,
        to: Move,
        recompressed: &Recompressed,
        report: &mut RecompressReport,
    ) -> Result<()> {
        let mut pages: Vec<(u64, u64, Ptr)> = recompressed
            .pages
            .iter()
            .map(|(target, len_bytes)| {
                (target.object, target.page, Ptr { len_bytes: *len_bytes, ..target.ptr })
            })
            .collect();
        pages.sort_unstable_by_key(|(object, page, _)| (*object, *page));
        let log = self.log.lock();
        self.check_failed()?;
        let gate = self.shared.gate.write();
        self.relocate(id, to)?;
        // Whoever has read a record as it was does not put it into the cache any more.
        self.shared.models.leave(&[]);
        self.shared.cache.drop_ahead();
        // Deltas are made against the cached record: the old one must not be taken for what the page has.
        let now: HashMap<u32, &[u8]> =
            recompressed.survivors.iter().map(|(slot, _, bytes)| (*slot, bytes.as_slice())).collect();
        for addr in recompressed.pages.iter().map(|(target, _)| target.ptr.addr) {
            if let Some(record) = now.get(&addr.slot()).filter(|_| self.shared.cache.has(addr)) {
                self.shared.cache.insert(addr, record);
            }
        }
        // Nobody finds the old records any more from now on (R3).
        self.shared.models.leave(&recompressed.left);
        for of_object in pages.chunk_by(|a, b| a.0 == b.0) {
            let Some((object, _, _)) = of_object.first() else { continue };
            let lens: Vec<(u64, Ptr)> = of_object.iter().map(|(_, page, ptr)| (*page, *ptr)).collect();
            // A dataset that was destroyed meanwhile is not written any more.
            if !dataset.takes_no_changes.load(Ordering::Relaxed) {
                dataset.restate(*object, &lens)?;
            }
        }
        drop(gate);
        drop(log);
        report.recompressed += recompressed.pages.len() as u64;
        report.before_bytes += recompressed.before_bytes();
        report.after_bytes += recompressed.after_bytes();
        Ok(())
    }
}

/// Returns the stored pages of the ranges, at most `pages_max` of them.
pub(super) fn targets(
    dataset: &LiveDataset,
    ranges: &[PageRange],
    from: (usize, u64),
    pages_max: usize,
    report: &mut RecompressReport,
) -> Result<Vec<RecompressTarget>> {
    let mut targets = Vec::new();
    for (at, range) in ranges.iter().enumerate().skip(from.0) {
        let record_size = dataset.record_size(range.object)?;
        let end = range.to.min(dataset.end_page(range.object)?);
        let mut page = range.from.max(if at == from.0 { from.1 } else { 0 });
        while page < end && record_size > 0 {
            let left = pages_max.saturating_sub(targets.len());
            if left == 0 {
                report.next = Some((at, page));
                return Ok(targets);
            }
            let here = usize::try_from(end - page).unwrap_or(LOOKUP_PAGES);
            let mut ptrs = vec![None; LOOKUP_PAGES.min(left).min(here)];
            dataset.tree.pages(range.object, page, &mut ptrs)?;
            let found = (page..).zip(&ptrs).filter_map(|(page, ptr)| Some((page, (*ptr)?)));
            targets.extend(found.map(|(page, ptr)| RecompressTarget {
                object: range.object,
                page,
                record_size,
                ptr,
            }));
            page += ptrs.len() as u64;
            if ptrs.iter().all(Option::is_none) {
                page = dataset.next_data(range.object, page)?.unwrap_or(end);
            }
        }
    }
    Ok(targets)
}

fn is_closed(segment: &Segment) -> bool {
    segment.parts.iter().all(|part| part.directory.is_some())
}

#[cfg(test)]
mod tests;
