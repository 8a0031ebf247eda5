//! The verbs of mirrors: devices are attached, take the places of others and are detached, pools are split, and spares
//! step in. The power may fail in the middle of any of these; then it goes on when the pool is opened again, or is
//! undone.
//!
//! Which device is which is what the pool says of it ([`Pool::device_status`]), by the paths that it tells.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use pagefold_engine::Error;
use pagefold_engine::device::{Device, SimDevice};
use pagefold_engine::pool::{DeviceState, DeviceStatus, Guid, Pool, SpareState, SpareStatus};

use super::{Outcome, Sim};
use crate::pools::{Half, Split, pool_of};
use crate::random::Random;

/// Largest number of devices that there are, in the pool and outside of it.
pub(super) const PLACES_MAX: usize = 14;
/// Largest number of spares of a pool.
const SPARES_MAX: usize = 2;
/// Chance in per cent that the power of a device fails while it is attached; and that a device outside of the pool is
/// offered to it when devices are taken back.
const ALONE_PERCENT: u64 = 15;
const OFFER_PERCENT: u64 = 70;
/// Chance in per cent that a pool is mended before it is split, so that it can be.
const MENDED_PERCENT: u64 = 70;

/// Knowledge of verbs beside what the pool says.
#[derive(Default)]
pub(super) struct Verbs {
    /// Time, in seconds.
    pub(super) now: u64,
    /// Paths of devices, and of those that are to take their places.
    pub(super) replaced: BTreeMap<PathBuf, PathBuf>,
    /// Paths of the pool's devices and spares, and of the devices that have left it.
    pub(super) known: BTreeSet<PathBuf>,
    pub(super) left: BTreeSet<PathBuf>,
    /// Numbers of the pool's devices before a power cut, if nothing was under way that changes them.
    pub(super) numbers: Option<Vec<u16>>,
    /// The half that may have become a pool of its own, until that is known.
    pub(super) half: Option<Half>,
    /// True if a split has happened.
    pub(super) was_split: bool,
    /// Number of splits that were begun.
    splits: u8,
    /// Number of times that a device might have joined or left while a checkpoint was under way.
    meanwhile: u64,
}

/// Returns the numbers of devices, and which of them are to leave.
fn marks(pool: &Pool) -> Vec<(u16, bool)> {
    pool.device_status().iter().map(|device| (device.number, device.leaves)).collect()
}

pub(super) fn numbers(pool: &Pool) -> Vec<u16> {
    pool.device_status().iter().map(|device| device.number).collect()
}

pub(super) const fn is_in_use(device: &DeviceStatus) -> bool {
    matches!(device.state, DeviceState::Online | DeviceState::Filling)
}

impl Sim<'_> {
    /// Does one of the verbs, and then some of what the background does.
    pub(super) fn verb(&mut self, pick: u64) -> Outcome {
        if self.pool.is_none() || self.overlapping {
            return Ok(());
        }
        let (mut random, opens) = (Random::new(pick), self.stats.opens);
        match random.below(100) {
            0..20 => self.attach(&mut random, false)?,
            20..45 => self.attach(&mut random, true)?,
            45..58 => self.detach(&mut random)?,
            58..72 => self.split(&mut random)?,
            72..80 => self.add_spare(&mut random)?,
            80..84 => self.remove_spare(&mut random)?,
            84..94 => self.take_back(&mut random, OFFER_PERCENT)?,
            _ => {}
        }
        if self.goes_on(opens) { self.background(&mut random) } else { Ok(()) }
    }

    /// Attaches or detaches a device, now and then, while a checkpoint is under way. Other verbs would wait for its end.
    pub(super) fn verb_meanwhile(&mut self) -> Outcome {
        if !self.history.beside {
            return Ok(());
        }
        self.verbs.meanwhile += 1;
        let mut random = Random::new(self.history.seed ^ 0x3EA4 ^ self.verbs.meanwhile << 20);
        match random.below(10) {
            0..2 => self.attach(&mut random, false),
            2..4 => self.attach(&mut random, true),
            4..6 => self.detach(&mut random),
            _ => Ok(()),
        }
    }

    /// Returns true if the pool was not opened again since `opens` openings were counted.
    pub(super) const fn goes_on(&self, opens: u64) -> bool {
        self.stats.opens == opens && self.pool.is_some()
    }

    /// Makes a call that makes nothing durable. Returns false if it was refused, or has failed since a device that the
    /// pool can do without has no power, or if the pool was opened again.
    pub(super) fn act(&mut self, call: impl FnOnce(&Pool) -> pagefold_engine::Result<()>) -> Outcome<bool> {
        let pool = Arc::clone(self.pool()?);
        self.expect_pauses();
        let called = call(&pool);
        self.note_beside()?;
        let Err(error) = called else { return Ok(true) };
        let is_refused = matches!(error, Error::Invalid(_) | Error::Busy(_) | Error::NoSpace(_));
        let is_one_off = self.devices.iter().any(|device| device.is_off());
        if !self.is_off() && pool.status().failure.is_none() && (is_refused || is_one_off) {
            return Ok(false);
        }
        drop(pool);
        if !self.is_off() && self.has_other_struck() {
            self.failed_by_fault(&error)?;
        } else {
            self.failed(&error)?;
        }
        Ok(false)
    }

    /// Returns true while it is not known whether a split has happened.
    pub(super) const fn is_splitting(&self) -> bool {
        self.verbs.half.is_some()
    }

    /// Returns the device that a step names by its number. Where there are verbs it is one that the pool has.
    pub(super) fn device(&self, number: u64) -> Option<&Arc<SimDevice>> {
        let number = number as usize;
        let (Some(pool), true) = (&self.pool, self.history.verbs) else { return self.devices.get(number) };
        let all = pool.device_status();
        let here: Vec<usize> = all.iter().filter_map(|device| self.place_of(device)).collect();
        here.get(number % here.len().max(1)).map(|at| &self.devices[*at])
    }

    /// Returns true if the pool reads or writes a device, or has it open as a spare.
    pub(super) fn is_used(&self, pool: &Pool, at: usize) -> bool {
        let path = self.devices[at].path();
        let is_open = |spare: &SpareStatus| spare.path == path && spare.state != SpareState::Unavailable;
        pool.device_status().iter().any(|device| is_in_use(device) && self.place_of(device) == Some(at))
            || pool.spares().iter().any(is_open)
    }

    /// Returns the places of devices that the pool does not have: neither as members nor as spares.
    pub(super) fn free(&self) -> Outcome<Vec<usize>> {
        let pool = self.pool()?;
        let (all, spares) = (pool.device_status(), pool.spares());
        // The pool does not know the path of a member that was missing from the beginning. Such a one has a label.
        let is_any_unknown =
            self.is_splitting() || all.iter().any(|device| device.path.as_os_str().is_empty());
        let is_free = |at: &usize| {
            let sim = &self.devices[*at];
            let is_known = all.iter().any(|device| self.place_of(device) == Some(*at))
                || spares.iter().any(|spare| spare.path == sim.path());
            !(is_known || is_any_unknown && pool_of(sim).is_some())
        };
        Ok((0..self.devices.len()).filter(is_free).collect())
    }

    /// Notes that the pool is about to get a device.
    pub(super) fn joins(&mut self, at: usize) {
        let path = self.devices[at].path().to_path_buf();
        // Its group may have been removed, and with it what is known of its place.
        self.verbs.replaced.retain(|old, new| *old != path && *new != path);
        self.verbs.left.remove(&path);
        (self.away[at], self.whole[at]) = (false, false);
    }

    /// Returns a device that the pool does not have, and is about to get: one that was another one's before, or a new
    /// one.
    fn blank(&mut self, random: &mut Random) -> Outcome<Option<Arc<SimDevice>>> {
        let mut free = self.free()?;
        free.retain(|at| !self.devices[*at].is_off());
        let at = if free.is_empty() || self.devices.len() < PLACES_MAX && random.percent(30) {
            if self.devices.len() >= PLACES_MAX {
                return Ok(None);
            }
            let size_bytes = self.devices.iter().map(|device| device.size_bytes()).max().unwrap_or_default();
            self.devices.push(Arc::new(SimDevice::new(size_bytes, random.bits())));
            self.away.push(false);
            self.whole.push(false);
            self.devices.len() - 1
        } else {
            free[random.below(free.len() as u64) as usize]
        };
        self.joins(at);
        self.develop()?;
        self.watch();
        Ok(Some(Arc::clone(&self.devices[at])))
    }

    fn attach(&mut self, random: &mut Random, replace: bool) -> Outcome {
        let all = self.pool()?.device_status();
        let beside = &all[random.below(all.len() as u64) as usize];
        let (Some(new), opens) = (self.blank(random)?, self.stats.opens) else { return Ok(()) };
        if random.percent(ALONE_PERCENT) {
            new.cut_after(random.skewed(40));
        }
        let (before, handle) = (marks(self.pool()?), Arc::clone(&new) as Arc<dyn Device>);
        let done = self.act(|pool| pool.attach(beside.number, handle, replace).map(drop))?;
        if !self.goes_on(opens) {
            return Ok(());
        }
        let after = marks(self.pool()?);
        if !done && before != after {
            return Err(format!("a device was not attached, and {before:?} have become {after:?}"));
        }
        if done {
            self.stats.attached += 1;
            self.stats.replacing += u64::from(replace);
        }
        if done && replace && !beside.path.as_os_str().is_empty() {
            self.verbs.replaced.insert(beside.path.clone(), new.path().to_path_buf());
        }
        self.look()
    }

    fn detach(&mut self, random: &mut Random) -> Outcome {
        let (all, opens) = (self.pool()?.device_status(), self.stats.opens);
        let device = &all[random.below(all.len() as u64) as usize];
        self.verbs.replaced.remove(&device.path);
        let done = self.act(|pool| pool.detach(device.number))?;
        if !self.goes_on(opens) {
            return Ok(());
        }
        if done == numbers(self.pool()?).contains(&device.number) {
            return Err(format!(
                "device {} was detached: {done}, and {:?} are there",
                device.number,
                marks(self.pool()?)
            ));
        }
        self.stats.detached += u64::from(done);
        self.look()
    }

    fn split(&mut self, random: &mut Random) -> Outcome {
        let opens = self.stats.opens;
        if random.percent(MENDED_PERCENT) {
            self.take_back(random, OFFER_PERCENT)?;
            if self.goes_on(opens) {
                self.come_to_rest()?;
            }
        }
        if !self.goes_on(opens) || self.is_splitting() {
            return Ok(());
        }
        let pool = Arc::clone(self.pool()?);
        let named: Vec<u16> = match random.percent(50) {
            true => numbers(&pool).into_iter().filter(|_| random.percent(20)).collect(),
            false => Vec::new(),
        };
        let Ok(planned) = pool.planned_split(&named) else { return Ok(()) };
        self.beside.give_up();
        drop(pool);
        self.verbs.splits += 1;
        let guid = Guid([b'h', b'a', b'l', b'f', 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, self.verbs.splits]);
        // No change comes in between, so the half has all of them.
        self.verbs.half = Some(Half { guid, devices: planned.len(), world: self.now.clone() });
        let done = self.act(|pool| pool.split("half", guid, &named).map(drop))?;
        if !self.goes_on(opens) {
            return Ok(());
        }
        let found = self.settle_half(random)?;
        let wanted = if done { Split::Done } else { Split::Undone };
        let may_differ = self.faulted || self.devices.iter().any(|device| device.is_off());
        if found != wanted && !may_differ {
            return Err(format!("the split is {found:?}, and should be {wanted:?}"));
        }
        let there = numbers(self.pool()?);
        if found == Split::Done && !may_differ && planned.iter().any(|number| there.contains(number)) {
            return Err(format!("the devices {planned:?} are a half, and {there:?} are there"));
        }
        self.look()
    }

    /// Finds out whether a split that was begun has happened, and compares the half with the model if it has.
    pub(super) fn settle_half(&mut self, random: &mut Random) -> Outcome<Split> {
        let Some(half) = self.verbs.half.take() else { return Ok(Split::Undone) };
        let split = self.judge_half(&half, random)?;
        self.verbs.was_split |= split == Split::Done;
        match split {
            Split::Done => self.stats.split += 1,
            Split::Undone => self.stats.unsplit += 1,
            Split::UnderWay => self.verbs.half = Some(half),
        }
        Ok(split)
    }

    fn add_spare(&mut self, random: &mut Random) -> Outcome {
        if self.pool()?.spares().len() < SPARES_MAX
            && let Some(new) = self.blank(random)?
        {
            self.act(|pool| pool.add_spares(vec![new as Arc<dyn Device>]))?;
        }
        Ok(())
    }

    fn remove_spare(&mut self, random: &mut Random) -> Outcome {
        let spares = self.pool()?.spares();
        let chosen = spares.get(random.below(spares.len() as u64) as usize);
        if let Some(spare) = chosen {
            self.act(|pool| pool.remove_spare(spare.id))?;
        }
        Ok(())
    }

    /// Offers the pool devices that it does not use. It knows which of them are its own.
    pub(super) fn take_back(&mut self, random: &mut Random, percent: u64) -> Outcome {
        let pool = Arc::clone(self.pool()?);
        for at in 0..self.devices.len() {
            if self.is_used(&pool, at) || self.devices[at].is_off() || !random.percent(percent) {
                continue;
            }
            self.take_older_copy(at);
            let sim = Arc::clone(&self.devices[at]);
            sim.reopen();
            let handle = sim as Arc<dyn Device>;
            let taken = match pool.online_spare(&handle) {
                Ok(false) => pool.online(handle).map(drop),
                taken => taken.map(drop),
            };
            // It may be in use though the call has failed: not all labels say so then.
            if taken.is_ok() || self.is_used(&pool, at) {
                self.away[at] = false;
                self.develop()?;
                self.watch();
            }
        }
        drop(pool);
        self.look()
    }
}
