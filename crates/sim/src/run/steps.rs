//! Takes the steps of a history.

use std::sync::Arc;

use pagefold_engine::Error;
use pagefold_engine::dataset::{Change, Commit};
use pagefold_engine::device::{Device, InjectedFault};
use pagefold_engine::limits::{CHUNK_BYTES, RESERVED_BYTES};
use pagefold_engine::pool::{Pool, Totals};
use pagefold_engine::space::reserved_places;

use super::acts::most;
use super::{Event, Outcome, Sim, changes, contents};
use crate::history::{Act, Step, Theme};
use crate::model::COUNTER;
use crate::random::Random;
use crate::verify::{check_bounds, compare_range};

/// Verifies that a checkpoint writes no more than the `promised_bytes` of free chunks. Steps in which the cleaner moved
/// records are left out: these have a promise of their own.
fn verify_promise(promised_bytes: u64, before: &Totals, after: &Totals) -> Outcome {
    let written = |totals: &Totals| totals.tree_bytes + totals.checkpoint_bytes + totals.copy_bytes;
    let written = written(after) - written(before);
    let is_one = after.checkpoints == before.checkpoints + 1 && after.moved_bytes == before.moved_bytes;
    if !is_one || written <= promised_bytes {
        return Ok(());
    }
    Err(format!("a checkpoint writes {written} bytes, and {promised_bytes} were promised"))
}

impl<'a> Sim<'a> {
    fn flip(&mut self, device: u64, offset: u64, bit: u8) {
        let Some(device) = self.devices.get(device as usize) else { return };
        device.flip_bit(offset, bit);
        self.flips += 1;
        let is_reserved = |place: u64| (place..place + RESERVED_BYTES).contains(&offset);
        self.harmless = self.flips == 1 && reserved_places(device.size_bytes()).into_iter().any(is_reserved);
    }

    pub(super) fn step(&mut self, step: &Step) -> Outcome {
        if let Some(camera) = &self.camera {
            camera.acknowledge(self.forgotten + self.durable);
        }
        let opens = self.stats.opens;
        let promised = self.pool.as_ref().map(|pool| (pool.promised_bytes(), pool.totals()));
        self.take(step)?;
        if self.overlapping {
            return Ok(());
        }
        // An opening may find fewer free chunks than the last one had. The next change or write makes room, so reserves
        // are verified after those only.
        let makes_room = matches!(
            step,
            Step::Apply(_)
                | Step::ApplyTo(..)
                | Step::Commit
                | Step::Checkpoint
                | Step::Clean
                | Step::Maintain
        );
        if let Some(pool) = self.pool.as_ref().filter(|_| makes_room && opens == self.stats.opens) {
            pool.verify_reserves().map_err(|error| format!("reserves: {error}, after {step:?}"))?;
            if let (Some((promised, before)), false) =
                (promised, matches!(step, Step::Apply(_) | Step::ApplyTo(..)))
            {
                verify_promise(promised, &before, &pool.totals())?;
            }
        }
        self.develop()?;
        self.forget_durable();
        Ok(())
    }

    fn take(&mut self, step: &Step) -> Outcome {
        match step {
            Step::Apply(acts) => self.apply("", acts),
            Step::ApplyTo(path, acts) if self.now.sets.contains_key(path) => self.apply(path, acts),
            Step::ApplyTo(..) => Ok(()),
            Step::Catalogue(op) => self.apply_op(op),
            Step::Stream { path, pick, torn } => self.stream(path, *pick, *torn),
            Step::Graft { pick } => self.graft(*pick),
            Step::Sync => self.call(Pool::sync, true),
            Step::Begin { waiters } => self.begin(*waiters),
            Step::End { newest } => self.end(*newest),
            Step::Commit => self.call(|pool| pool.commit(false), false),
            Step::Checkpoint => {
                let (counted, opens) = (self.count_errors(), self.stats.opens);
                self.attesting(|pool| pool.checkpoint(false))?;
                if self.stats.opens == opens && self.pool.is_some() {
                    self.errors.0 = counted;
                }
                Ok(())
            }
            Step::Overlap(cut, end) => self.overlap([cut, end]),
            Step::Clean => self.attesting(|pool| pool.clean().map(|_| ())),
            Step::Rest => self.rest(),
            Step::Maintain => {
                self.upkeep(|pool| pool.maintain().map(|_| ()))?;
                if self.pool.is_none() {
                    return Ok(());
                }
                self.tend_mirrors()?;
                self.add_group()?;
                self.grow_devices()?;
                self.remove_groups()?;
                self.balance()
            }
            Step::Verb { pick } => self.verb(*pick),
            Step::Beside { pick, pauses, steps } => {
                self.beside.plan(*pauses, steps);
                let done = self.verb(*pick);
                self.beside.give_up();
                done
            }
            Step::Damage { pick } => self.damage(*pick),
            Step::Blackout { calls } => {
                self.fuse.arm(Some(*calls));
                Ok(())
            }
            Step::Trim { all } => self.trim(*all && !self.overlapping),
            Step::Learn => self.learn(),
            Step::Recode => self.recode(),
            Step::Export => self.export(),
            Step::Read { object, offset, len } => {
                let Some(set) = self.now.sets.get("") else { return Ok(()) };
                let dataset = self.pool()?.dataset();
                let read = compare_range(&*dataset, &set.state, (*object, *offset, *len), self.terms());
                self.unless_off(read)
            }
            Step::Check => self.check(),
            Step::Kill => {
                self.begun.clear();
                self.close();
                if self.is_off() {
                    return self.power_cycle(&[]);
                }
                let all = self.forgotten + self.log.len();
                let (opens, journalled) = (self.stats.opens, self.journal.is_some());
                self.reopen()?;
                let found = self.forgotten + self.log.len();
                if journalled && self.stats.opens == opens + 1 && self.flips == 0 && found < all {
                    return Err(format!("{found} changes of {all} survive the end of the process"));
                }
                Ok(())
            }
            Step::Cut { device, calls } => {
                if let Some(device) = self.device(*device) {
                    device.cut_after(*calls);
                }
                Ok(())
            }
            Step::Crash { seed, again } => {
                self.random = Random::new(*seed);
                self.power_cycle(again)
            }
            Step::Outage { seed } => {
                self.outage = true;
                let cycled = self.power_cycle_and_repeat(*seed);
                self.outage = false;
                cycled
            }
            Step::Tear { seed } => self.power_cycle_and_repeat(*seed),
            Step::Fault { device, op, skip, times } => {
                if let Some(device) = self.device(*device).cloned() {
                    self.faulted = true;
                    self.struck.insert(device.path().to_path_buf());
                    device.inject(InjectedFault { op: *op, range: 0..u64::MAX, skip: *skip, times: *times });
                }
                Ok(())
            }
            Step::Flip { device: at, offset, bit } => {
                let at = *at;
                if let Some(device) = self.devices.get(at as usize) {
                    // Three flips of four hit a block that was written, and half of these its first 128 bytes, where
                    // headers are.
                    let written =
                        (offset / 4 % 4 != 0).then(|| device.written_place(offset / 4096)).flatten();
                    let within = (offset % 4096) >> (offset % 2 * 5);
                    self.flip(at, written.map_or(*offset, |block| block + within), *bit);
                }
                Ok(())
            }
            Step::Rot { device: at, back, byte, bit } => {
                let device = self.devices.get(*at as usize);
                if let Some(place) = device.and_then(|device| device.latest_place(*back as usize)) {
                    self.flip(*at, place + byte, *bit);
                }
                Ok(())
            }
        }
    }

    fn overlap(&mut self, steps: [&[Step]; 2]) -> Outcome {
        let pool = Arc::clone(self.pool()?);
        let status = pool.status();
        let (opens, events) = (self.stats.opens, self.forgotten + self.log.len());
        let mut steps = steps.into_iter();
        let mut outcome = Ok(());
        let made = pool.checkpoint_around(&mut || {
            // Steps run only if there is plenty of room: a commit that has to make room would wait for this checkpoint.
            let roomy =
                2 * status.allocated_bytes < status.size_bytes && status.unstored_tree_bytes < 512 << 10;
            self.overlapping = true;
            let goes_on = |sim: &Self| sim.stats.opens == opens && sim.pool.is_some() && !sim.is_off();
            for step in steps.next().filter(|_| roomy).into_iter().flatten() {
                if outcome.is_ok() && goes_on(self) {
                    outcome = self.step(step);
                }
            }
            if roomy && outcome.is_ok() && goes_on(self) {
                outcome = self.verb_meanwhile();
            }
            self.overlapping = false;
        });
        outcome?;
        if self.stats.opens != opens || self.pool.is_none() {
            return Ok(());
        }
        if let Err(error) = made {
            drop(pool);
            return self.failed(&error);
        }
        let durable = events.saturating_sub(self.forgotten);
        self.durable = self.durable.max(durable);
        self.committed = self.committed.max(durable);
        self.settled |= events == self.forgotten + self.log.len();
        self.forget();
        Ok(())
    }

    pub(super) fn accepted(&mut self, path: &str, acts: &[Act]) {
        let id = self.next_id;
        self.next_id += 1;
        self.stats.applies += 1;
        self.now.apply(path, id, acts);
        self.log.push(Event::Change(path.into(), id, acts.to_vec()));
        self.settled = false;
    }

    pub(super) fn apply(&mut self, path: &str, acts: &[Act]) -> Outcome {
        let data = contents(acts);
        let claim: u64 = match self.history.bounds {
            Some(_) => acts.iter().map(most).sum::<u64>() + 256,
            None => {
                data.iter().map(|data| 2 * 4096 + 2 * data.len() as u64).sum::<u64>() + CHUNK_BYTES / 4 * 3
            }
        };
        let mut all = changes(acts, &data);
        all.push(Change::Put(COUNTER, self.next_id.to_le_bytes().to_vec()));
        let frees = acts.iter().all(|act| matches!(act, Act::Delete { .. } | Act::Punch { .. }));
        let pool = Arc::clone(self.pool()?);
        let dataset = pool.open_dataset(path).map_err(|error| format!("open of '{path}': {error}"))?;
        let error = match dataset.apply(&all) {
            Ok(()) => {
                self.accepted(path, acts);
                let freeing = acts.iter().any(|act| matches!(act, Act::Delete { .. } | Act::Punch { .. }));
                return if freeing { Ok(()) } else { check_bounds(&pool, path) };
            }
            Err(error) => error,
        };
        let failed = pool.status().failure.is_some();
        if let (Error::NoSpace(_), false) = (&error, failed || self.is_off()) {
            if !matches!(self.history.theme, Theme::Full | Theme::Aged) && self.history.bounds.is_none() {
                return Err(format!("a pool that is nearly empty refuses a change: {error}"));
            }
            if frees && !acts.is_empty() {
                return Err(format!("a change that frees space is refused: {error}"));
            }
            let available = dataset.space().available_bytes;
            if available > claim {
                return Err(format!("refused with {available} bytes available: {error}"));
            }
            self.stats.refused += 1;
            return Ok(());
        }
        drop(pool);
        self.failed(&error)
    }

    /// Handles the failure of a call, which is right only if the power is off, a fault was injected, or bits have
    /// flipped.
    pub(super) fn failed(&mut self, error: &Error) -> Outcome {
        if self.is_off() {
            return self.power_cycle(&[]);
        }
        if !self.is_excused() && !self.is_damaged() {
            return Err(format!("a call fails for no reason: {error}; {:?} have met faults", self.struck));
        }
        self.failed_by_fault(error)
    }

    /// Handles the failure of a call for which there is a reason.
    pub(super) fn failed_by_fault(&mut self, error: &Error) -> Outcome {
        self.stats.failed += 1;
        let pool = Arc::clone(self.pool()?);
        if pool.status().failure.is_none() {
            return Ok(());
        }
        if pool.dataset().apply(&[Change::Delete(COUNTER)]).is_ok() {
            return Err(format!("the pool failed ({error}) and accepts changes"));
        }
        // Within a checkpoint, a second one would wait for the end of the first.
        if pool.sync().is_ok() || !self.overlapping && pool.checkpoint(false).is_ok() {
            return Err(format!("the pool failed ({error}) and acknowledges"));
        }
        drop(pool);
        // Writes that a failed flush lost are missing only after a power cut, and no later flush brings them back. So
        // either the power goes, or the pool is opened again, which has to write them again. It is not opened again
        // while its own checkpoint still runs on these devices.
        if self.random.percent(30) && !self.overlapping {
            self.begun.clear();
            self.close();
            return self.reopen();
        }
        self.power_cycle(&[])
    }
}
