//! Steps of the background after verbs of mirrors, and all that must hold when it has nothing left to do.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use pagefold_engine::device::{Device, OneDevice};
use pagefold_engine::pool::{DeviceState, DeviceStatus, Pool, SpareLabel, SpareState};

use super::verbs::{Verbs, is_in_use, numbers};
use super::{Outcome, Sim};
use crate::history::Theme;
use crate::pools::unsettled_split;
use crate::random::Random;

/// Chance in per cent that the background does nothing after a verb, and that it comes to rest.
const IDLE_PERCENT: u64 = 40;
const REST_PERCENT: u64 = 20;
/// Largest number of its steps otherwise, and until it comes to rest.
const STEPS_MAX: u64 = 400;
const REST_STEPS: u64 = 4000;
/// Chance in per cent that one device of each mirror is read by itself, though none has become whole.
const READ_PERCENT: u64 = 10;
/// Most seconds that pass between two verbs: more than those after which spares step in for devices that are missing.
const PASSED_S_MAX: u64 = 400;

/// Returns the number of devices that are being filled, and of spares that stand in.
fn count_states(pool: &Pool) -> (u64, u64) {
    let filling = pool.device_status().iter().filter(|device| device.state == DeviceState::Filling).count();
    let standing = pool.spares().iter().filter(|spare| spare.state == SpareState::InUse).count();
    (filling as u64, standing as u64)
}

/// Returns the spares that stand in and are here.
fn standing_in(pool: &Pool) -> Vec<u64> {
    let all = pool.device_status();
    let is_here = |number: u16| all.iter().any(|device| device.number == number && is_in_use(device));
    let spares = pool.spares();
    spares.iter().filter(|spare| spare.device.is_some_and(is_here)).map(|spare| spare.id).collect()
}

impl Sim<'_> {
    /// Fills devices and lets spares step in.
    pub(super) fn background(&mut self, random: &mut Random) -> Outcome {
        let opens = self.stats.opens;
        self.verbs.now += random.below(PASSED_S_MAX);
        if random.percent(REST_PERCENT) {
            return self.come_to_rest();
        }
        let steps = if random.percent(IDLE_PERCENT) { 0 } else { random.below(STEPS_MAX) };
        let (now, before) = (self.verbs.now, count_states(self.pool()?));
        self.act(|pool| pool.spare_step(now).map(drop))?;
        for _ in 0..steps {
            if !self.goes_on(opens) || !self.background_step(now)? {
                break;
            }
        }
        if !self.goes_on(opens) {
            return Ok(());
        }
        self.look()?;
        let after = count_states(self.pool()?);
        self.stats.filled += before.0.saturating_sub(after.0);
        self.stats.stood_in += after.1.saturating_sub(before.1);
        if after.0 < before.0 || random.percent(READ_PERCENT) { self.read_alone(random) } else { Ok(()) }
    }

    /// Does one step of the background. Returns false if nothing was left to be done.
    fn background_step(&mut self, now: u64) -> Outcome<bool> {
        // Reads that fail are tried again, which takes long.
        if self.is_off() {
            self.power_cycle(&[])?;
            return Ok(false);
        }
        let mut done = false;
        self.act(|pool| {
            done = pool.fill_step(now)?.is_some() || pool.spare_step(now)?;
            Ok(())
        })?;
        Ok(done)
    }

    /// Verifies that of each mirror any device that is whole has everything.
    fn read_alone(&mut self, random: &mut Random) -> Outcome {
        let pool = Arc::clone(self.pool()?);
        if self.is_off() || pool.status().failure.is_some() {
            return Ok(());
        }
        let mut chosen = Vec::new();
        for mirror in pool.device_status().chunk_by(|a, b| a.group == b.group) {
            let whole = mirror.iter().filter(|device| device.state == DeviceState::Online);
            let whole: Vec<usize> = whole.filter_map(|device| self.place_of(device)).collect();
            if whole.is_empty() {
                return Ok(());
            }
            chosen.push(Arc::clone(&self.devices[whole[random.below(whole.len() as u64) as usize]]));
        }
        drop(pool);
        self.judge_alone(&chosen, random)
    }

    /// Lets the background do all that there is to do, and verifies that nothing is left half done then.
    pub(super) fn come_to_rest(&mut self) -> Outcome {
        let (opens, before) = (self.stats.opens, count_states(self.pool()?));
        let standing = standing_in(self.pool()?);
        self.verbs.now += PASSED_S_MAX;
        let (now, mut rests) = (self.verbs.now, false);
        for _ in 0..REST_STEPS {
            rests = !self.background_step(now)?;
            if rests {
                break;
            }
        }
        if !self.goes_on(opens) {
            return Ok(());
        }
        let pool = Arc::clone(self.pool()?);
        let after = count_states(&pool);
        self.stats.filled += before.0.saturating_sub(after.0);
        self.stats.stood_in += after.1.saturating_sub(before.1);
        self.look()?;
        // Calls may have failed unnoticed.
        if self.faulted
            || pool.status().failure.is_some()
            || self.devices.iter().any(|device| device.is_off())
        {
            return Ok(());
        }
        if !rests || after.0 > 0 {
            return Err(format!("nothing is left to be done, and {} devices are not filled", after.0));
        }
        for mirror in pool.device_status().chunk_by(|a, b| a.group == b.group) {
            let is_done = |device: &DeviceStatus| device.leaves || device.state == DeviceState::Online;
            if mirror.iter().all(is_done) && mirror.iter().any(|device| device.leaves) {
                let told: Vec<_> = mirror.iter().map(|one| (one.number, one.state, one.leaves)).collect();
                return Err(format!("a device is to leave, and no other one takes its place: {told:?}"));
            }
        }
        for spare in pool.spares().iter().filter(|spare| standing.contains(&spare.id)) {
            let sim = self.devices.iter().find(|sim| sim.path() == spare.path);
            let label = sim.map(|sim| SpareLabel::read(OneDevice::of(sim.as_ref())));
            let is_right = matches!(&label, Some(Ok(Some(label))) if label.id == spare.id);
            if spare.state == SpareState::Available && !is_right {
                return Err(format!("{spare:?} was given back, and has the label {label:?}"));
            }
        }
        drop(pool);
        let mut random = Random::new(now ^ opens);
        self.read_alone(&mut random)
    }

    /// Verifies what the pool says of its devices, beside what it said before.
    pub(super) fn look(&mut self) -> Outcome {
        let Some(pool) = self.pool.clone().filter(|_| self.history.verbs) else { return Ok(()) };
        let (all, spares) = (pool.device_status(), pool.spares());
        let paths = all.iter().map(|device| &device.path).chain(spares.iter().map(|spare| &spare.path));
        let known: BTreeSet<PathBuf> = paths.filter(|path| !path.as_os_str().is_empty()).cloned().collect();
        let Verbs { replaced, known: before, left, .. } = &mut self.verbs;
        if let Some(path) = known.intersection(left).next() {
            return Err(format!("{} has left the pool, and is back", path.display()));
        }
        for (old, new) in replaced.iter().filter(|(old, _)| !known.contains(*old)) {
            let is_filling =
                |device: &DeviceStatus| device.path == *new && device.state == DeviceState::Filling;
            if all.iter().any(is_filling) {
                let (old, new) = (old.display(), new.display());
                return Err(format!(
                    "{old} has left the pool, and {new}, which takes its place, is not whole"
                ));
            }
        }
        replaced.retain(|old, new| known.contains(old) && known.contains(new));
        // A spare that is missing may have become a device for good, of which the pool does not know the path.
        if all.iter().all(|device| !device.path.as_os_str().is_empty()) {
            left.extend(before.difference(&known).cloned());
        }
        *before = known;
        Ok(())
    }

    /// Notes the numbers of the pool's devices before the power fails.
    pub(super) fn note_devices(&mut self) {
        let quiet = self.history.verbs && self.history.theme == Theme::Crash;
        let quiet = quiet && !self.is_splitting() && !self.is_off();
        self.verbs.numbers = self.pool.as_ref().filter(|_| quiet).map(|pool| numbers(pool));
    }

    /// Verifies what the pool says of its devices after it was opened.
    pub(super) fn look_anew(&mut self) -> Outcome {
        if !self.history.verbs {
            return Ok(());
        }
        self.verbs.known.clear();
        let mut replaced = std::mem::take(&mut self.verbs.replaced);
        self.look()?;
        // The path of one that is missing is not known.
        replaced.retain(|old, new| self.verbs.known.contains(old) && self.verbs.known.contains(new));
        self.verbs.replaced = replaced;
        let found = numbers(self.pool()?);
        if let Some(before) = self.verbs.numbers.take().filter(|before| *before != found) {
            return Err(format!("the pool had the devices {before:?}, and has {found:?}"));
        }
        let mut random = Random::new(self.stats.opens ^ self.history.seed);
        self.settle_half(&mut random)?;
        if random.percent(READ_PERCENT) { self.read_alone(&mut random) } else { Ok(()) }
    }

    /// Has all devices be there at the next opening.
    pub(super) fn gather(&mut self) {
        self.away.fill(false);
    }

    /// Verifies at the end of a history that nothing is left half done when all devices are there.
    pub(super) fn settle(&mut self) -> Outcome {
        if !self.history.verbs {
            return Ok(());
        }
        let opens = self.stats.opens;
        self.take_back(&mut Random::new(self.history.seed), 100)?;
        if self.goes_on(opens) {
            self.come_to_rest()?;
        }
        if !self.goes_on(opens) || self.faulted {
            return Ok(());
        }
        if self.is_splitting() {
            return Err("a split is neither done nor undone".into());
        }
        // If the power failed when a device had just got its new label, the pool waits for it for good, which harms nobody:
        // it is another pool's, and is not given to this one any more.
        match unsettled_split(self.pool()?)? {
            None => Ok(()),
            Some(true) if self.verbs.was_split => Ok(()),
            Some(_) => Err("a split is undone, and the pool says that it is being split".into()),
        }
    }
}
