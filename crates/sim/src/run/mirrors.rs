//! Groups of devices: mirrors whose devices come and go, and are filled; and groups that are added, grow, are removed
//! and balanced. Devices of a group that was removed get back into the pool as another one. The pool says which device
//! is which; where there are no verbs, a device has the number of its place.
//!
//! A device that was whole when the pool was closed has everything that was acknowledged. So any one of those of a mirror
//! is enough, and the others may be missing.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pagefold_engine::Error;
use pagefold_engine::device::{Device, SimDevice};
use pagefold_engine::pool::{DeviceState, DeviceStatus, Pool};

use super::verbs::PLACES_MAX;
use super::{Outcome, Sim};
use crate::history::Theme;

/// Chance in per cent that devices of a mirror are missing after a power cut; that one which is not in use comes back at
/// an occasion; and that one which is in use is taken offline.
const MISSING_PERCENT: u64 = 40;
const RETURN_PERCENT: u64 = 40;
const OFFLINE_PERCENT: u64 = 10;
/// Chance in per cent that a device is copied at an occasion, and that the copy takes the place of a device that is not in
/// use.
const COPY_PERCENT: u64 = 10;
const OLDER_PERCENT: u64 = 20;
/// Chance in per cent that a group is added at an occasion, and the largest number of devices that the pool gets.
const ADD_PERCENT: u64 = 6;
const DEVICES_MAX: usize = 9;
/// Chance in per cent that devices grow at an occasion, and the largest size that they get.
const GROW_PERCENT: u64 = 4;
const GROWN_BYTES_MAX: u64 = 1 << 30;
/// Chance in per cent that a group is removed at an occasion, and that its removal is given up at another one.
const REMOVE_PERCENT: u64 = 20;
const KEEP_PERCENT: u64 = 4;
/// Largest number of steps of a removal at an occasion.
const REMOVAL_STEPS: u64 = 30;
/// Chance in per cent that a balance begins at an occasion, and that it is stopped at another one.
const BALANCE_PERCENT: u64 = 60;
const STOP_PERCENT: u64 = 4;
/// Largest number of steps of a balance at an occasion.
const BALANCE_STEPS: u64 = 6;
/// Largest number of steps of filling at an occasion. Few devices are whole after one.
const FILL_STEPS: u64 = 400;

/// Takes it for done if a pool that is full refuses it, or one whose devices are on their way in or out, as verbs have
/// them.
fn unless_refused(done: pagefold_engine::Result<()>, verbs: bool) -> pagefold_engine::Result<()> {
    match done {
        Err(Error::NoSpace(_)) => Ok(()),
        Err(Error::Invalid(_) | Error::Busy(_)) if verbs => Ok(()),
        done => done,
    }
}

/// Returns the number of the group that is the log device.
fn log_group(pool: &Pool) -> Option<u16> {
    pool.log_device_status().map(|status| status.group)
}

impl Sim<'_> {
    /// Returns true if the power of all devices of a mirror that are whole is off.
    pub(super) fn is_a_mirror_off(&self, pool: &Pool) -> bool {
        let all = pool.device_status();
        all.chunk_by(|a, b| a.group == b.group).any(|mirror| {
            let mut whole = mirror.iter().filter(|device| device.state == DeviceState::Online);
            whole.all(|device| self.place_of(device).is_none_or(|at| self.devices[at].is_off()))
        })
    }

    /// Returns true if faults that were injected may fail a call. While each mirror has a device that is whole and met none,
    /// those of others are no excuse.
    pub(super) fn is_excused(&self) -> bool {
        let has_struck = |path: &Path| self.struck.contains(path);
        if !self.faulted || self.history.copies == 1 || self.joining.iter().any(|new| has_struck(new.path()))
        {
            return self.faulted;
        }
        // A power cut of all devices strikes one after the other: what one fails by it, another one fails by a fault.
        if self.devices.iter().any(|device| device.is_off()) {
            return true;
        }
        let Some(pool) = &self.pool else { return !self.was_sound };
        let all = pool.device_status();
        let is_sound =
            |device: &DeviceStatus| device.state == DeviceState::Online && !has_struck(&device.path);
        all.chunk_by(|a, b| a.group == b.group).any(|mirror| !mirror.iter().any(is_sound))
    }

    /// Returns true if a device met a fault that is no member in use: a verb may fail that has to do with it.
    pub(super) fn has_other_struck(&self) -> bool {
        let Some(pool) = &self.pool else { return true };
        let all = pool.device_status();
        let is_online =
            |path: &PathBuf| all.iter().any(|one| one.path == *path && one.state == DeviceState::Online);
        self.struck.iter().any(|path| !is_online(path))
    }

    /// Returns the place of a device, as the pool tells its path.
    pub(super) fn place_of(&self, device: &DeviceStatus) -> Option<usize> {
        let named = self.devices.iter().position(|sim| sim.path() == device.path);
        let numbered = Some(usize::from(device.number)).filter(|at| *at < self.devices.len());
        named.or(numbered.filter(|_| !self.history.verbs))
    }

    /// Returns the places of the devices of each group.
    fn groups(&self) -> Vec<Vec<usize>> {
        match &self.pool {
            Some(pool) if self.history.verbs => {
                let all = pool.device_status();
                let groups = all.chunk_by(|a, b| a.group == b.group);
                groups
                    .map(|group| group.iter().filter_map(|device| self.place_of(device)).collect())
                    .collect()
            }
            _ => {
                let copies = self.history.copies;
                (0..self.devices.len())
                    .step_by(copies)
                    .map(|first| (first..first + copies).collect())
                    .collect()
            }
        }
    }

    /// Notes which devices are whole, before the pool is closed.
    pub(super) fn note_whole(&mut self) {
        let Some(pool) = &self.pool else { return };
        self.whole.fill(false);
        for device in pool.device_status() {
            if let Some(at) = self.place_of(&device) {
                self.whole[at] = device.state == DeviceState::Online;
            }
        }
    }

    /// Decides which devices the pool is opened with. Each mirror keeps one that is whole.
    pub(super) fn choose_devices(&mut self) {
        if self.history.copies == 1 {
            return;
        }
        // While the power of a whole mirror fails the pool may take a device for whole whose label does not say so yet.
        let all = self.history.verbs && self.is_off();
        let groups = self.groups();
        if self.history.verbs {
            for at in 0..self.devices.len() {
                self.away[at] = !all
                    && !groups.iter().flatten().any(|of| *of == at)
                    && self.random.percent(MISSING_PERCENT);
            }
        }
        for members in groups {
            members.iter().for_each(|at| self.away[*at] = false);
            if all || !self.random.percent(MISSING_PERCENT) {
                continue;
            }
            let whole: Vec<usize> = members.iter().copied().filter(|at| self.whole[*at]).collect();
            if whole.is_empty() {
                continue;
            }
            let kept = whole[self.random.below(whole.len() as u64) as usize];
            for at in members.into_iter().filter(|at| *at != kept) {
                self.away[at] = self.random.percent(70);
                self.take_older_copy(at);
            }
        }
    }

    /// Puts an older copy in the place of a device that is not in use, now and then.
    pub(super) fn take_older_copy(&mut self, at: usize) {
        // A half would not be what it was.
        if self.is_splitting() {
            return;
        }
        if let Some(older) = self.older.get(&at)
            && self.random.percent(OLDER_PERCENT)
        {
            let older = older.crash(&mut |contents| contents - 1);
            older.grow(self.devices[at].size_bytes());
            // An image of a device that has grown is as large as that.
            self.devices[at] = Arc::new(older.crash(&mut |contents| contents - 1));
            self.whole[at] = false;
            self.stats.older += 1;
        }
    }

    /// Adds a group of devices, now and then. If the power fails meanwhile, they are of the pool or not; then it gets the
    /// same ones at another occasion.
    pub(super) fn add_group(&mut self) -> Outcome {
        let fits = matches!(self.history.theme, Theme::Crash | Theme::Faults);
        if self.overlapping || !fits || self.pool.is_none() || !self.random.percent(ADD_PERCENT) {
            return Ok(());
        }
        let (copies, verbs) = (self.history.copies, self.history.verbs);
        let mut free = self.free()?;
        if free.len() < copies {
            let there = self.devices.len();
            if there + copies > if verbs { PLACES_MAX } else { DEVICES_MAX } {
                return Ok(());
            }
            self.develop()?;
            let size_bytes = self.history.devices[there / copies % self.history.devices.len()];
            for _ in 0..copies {
                self.devices.push(Arc::new(SimDevice::new(size_bytes, self.random.bits())));
                self.away.push(false);
                self.whole.push(false);
            }
            self.watch();
            free = (there..self.devices.len()).collect();
        }
        free.truncate(copies);
        let new: Vec<Arc<SimDevice>> = free.iter().map(|at| Arc::clone(&self.devices[*at])).collect();
        // One that was removed may have been without power then, or lose it now.
        if new.iter().any(|sim| sim.is_off()) {
            return Ok(());
        }
        free.into_iter().for_each(|at| self.joins(at));
        self.joining.clone_from(&new);
        let new: Vec<Arc<dyn Device>> = new.into_iter().map(|sim| sim as Arc<dyn Device>).collect();
        let added = self.upkeep(move |pool| unless_refused(pool.add_groups(vec![new.clone()]), verbs));
        self.joining.clear();
        added
    }

    /// Makes the devices of a group larger, now and then, and lets the pool use that. If the power fails meanwhile, it is as
    /// large as before, or larger.
    pub(super) fn grow_devices(&mut self) -> Outcome {
        let fits = matches!(self.history.theme, Theme::Crash | Theme::Faults);
        if self.overlapping || !fits || self.pool.is_none() || !self.random.percent(GROW_PERCENT) {
            return Ok(());
        }
        let groups = self.groups();
        let group = &groups[self.random.below(groups.len() as u64) as usize];
        let of_group: Vec<_> = group.iter().map(|at| &self.devices[*at]).collect();
        let largest = of_group.iter().map(|sim| sim.size_bytes()).max().unwrap_or_default();
        let size_bytes = largest + largest / self.random.within(1, 6);
        if size_bytes > GROWN_BYTES_MAX {
            return Ok(());
        }
        of_group.iter().for_each(|sim| sim.grow(size_bytes));
        self.stats.grown += 1;
        self.upkeep(|pool| pool.take_up_growth(None).map(|_| ()))
    }

    /// Removes a group, now and then, and moves some of what lies there. If the power fails meanwhile, that goes on, or has
    /// not begun.
    pub(super) fn remove_groups(&mut self) -> Outcome {
        let fits = matches!(self.history.theme, Theme::Crash | Theme::Faults);
        if self.overlapping || !fits || self.pool.is_none() {
            return Ok(());
        }
        let groups = |pool: &Pool| {
            let groups: BTreeSet<u16> = pool.device_status().iter().map(|device| device.group).collect();
            groups.into_iter().collect::<Vec<u16>>()
        };
        let (there, verbs) = (groups(self.pool()?), self.history.verbs);
        let leaving = self.pool()?.removal_status();
        let leaving = leaving.group.filter(|_| leaving.finished == 0);
        let log_group = log_group(self.pool()?);
        let data = there.iter().filter(|group| Some(**group) != log_group).count();
        match leaving {
            None if there.len() > 1 && self.removals.percent(REMOVE_PERCENT) => {
                let group = there[self.removals.below(there.len() as u64) as usize];
                if data == 1 && Some(group) != log_group {
                    return Ok(());
                }
                self.upkeep(move |pool| unless_refused(pool.remove_group(group), verbs))?;
            }
            Some(group) if self.removals.percent(KEEP_PERCENT) => {
                self.upkeep(move |pool| unless_refused(pool.keep_group(group), verbs))?;
            }
            _ => {}
        }
        let steps = self.removals.below(REMOVAL_STEPS);
        self.take_steps(steps, |pool| pool.removal_step(1))?;
        if let Some(pool) = &self.pool {
            self.stats.removed += there.len().saturating_sub(groups(pool).len()) as u64;
        }
        Ok(())
    }

    /// Balances the groups, now and then, and moves some of what lies on fuller ones. If the power fails meanwhile, that goes
    /// on, or has not begun.
    pub(super) fn balance(&mut self) -> Outcome {
        let fits = matches!(self.history.theme, Theme::Crash | Theme::Faults);
        if self.overlapping || !fits || self.pool.is_none() {
            return Ok(());
        }
        let status = self.pool()?.device_status();
        let staying: BTreeSet<u16> =
            status.iter().filter(|device| !device.removing).map(|device| device.group).collect();
        let log_group = log_group(self.pool()?);
        let staying: BTreeSet<u16> = staying.into_iter().filter(|group| Some(*group) != log_group).collect();
        let (under_way, verbs) = (self.pool()?.balance_status().under_way, self.history.verbs);
        if !under_way && staying.len() > 1 && self.balances.percent(BALANCE_PERCENT) {
            self.upkeep(|pool| unless_refused(pool.balance().map(|_| ()), verbs))?;
        } else if under_way && self.balances.percent(STOP_PERCENT) {
            self.upkeep(|pool| unless_refused(pool.stop_balance(), verbs))?;
        }
        let before = self.pool.as_ref().is_some_and(|pool| pool.balance_status().under_way);
        let steps = self.balances.below(BALANCE_STEPS);
        self.take_steps(steps, |pool| pool.balance_step(1))?;
        if let Some(pool) = &self.pool {
            let status = pool.balance_status();
            self.stats.balanced += u64::from(before && !status.under_way && status.finished > 0);
        }
        Ok(())
    }

    /// Takes devices back that are not in use, or some offline, and fills those that lack something.
    pub(super) fn tend_mirrors(&mut self) -> Outcome {
        if self.history.copies == 1 || self.overlapping {
            return Ok(());
        }
        let pool = Arc::clone(self.pool()?);
        for device in pool.device_status() {
            let Some(at) = self.place_of(&device) else { continue };
            let sim = Arc::clone(&self.devices[at]);
            if sim.is_off() {
                continue;
            }
            if self.random.percent(COPY_PERCENT) {
                self.older.insert(at, sim.crash(&mut |contents| contents - 1));
            }
            let in_use = matches!(device.state, DeviceState::Online | DeviceState::Filling);
            if in_use && self.random.percent(OFFLINE_PERCENT) {
                // The last one that is whole stays.
                let _ = pool.offline(device.number);
            } else if !in_use && self.random.percent(RETURN_PERCENT) {
                self.take_older_copy(at);
                let sim = Arc::clone(&self.devices[at]);
                sim.reopen();
                // It may fail, and is left out then; or it is in use, and not all labels say so.
                if pool.online(sim as Arc<dyn Device>).is_ok() || self.is_used(&pool, at) {
                    self.away[at] = false;
                    // From here on it may become the only one that is whole, so images must have it.
                    self.develop()?;
                    self.watch();
                }
            }
        }
        let filling = |pool: &Pool| {
            pool.device_status().iter().filter(|device| device.state == DeviceState::Filling).count()
        };
        let before = filling(&pool);
        drop(pool);
        let steps = self.random.below(FILL_STEPS);
        self.take_steps(steps, |pool| pool.fill_step(0))?;
        if let Some(pool) = &self.pool {
            self.stats.filled += before.saturating_sub(filling(pool)) as u64;
        }
        Ok(())
    }
}
