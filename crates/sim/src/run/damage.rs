//! Damage to devices of mirrors and to log devices: bits that flip, blocks that cannot be read, and writes that a device
//! has lost after it had done them. It strikes copies of the devices, which are as after a power cut.
//!
//! - Of each mirror one device that is whole stays as it is. So the pool opens, everything is there, and after a scrub each
//!   device that was damaged has everything by itself.
//! - A log device of one device may be needed. So the pool opens with everything that was acknowledged, or is refused by an
//!   error that names the damage. Of a flipped bit alone an opening may not tell if nothing durable says what was there.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pagefold_engine::device::{Device, SimDevice};
use pagefold_engine::limits::{BLOCK_BYTES, RESERVED_BYTES};
use pagefold_engine::pool::{DeviceState, Pool};
use pagefold_engine::space::reserved_places;

use super::power_cuts::{image_options, states};
use super::{Outcome, Sim};
use crate::images::{Image, crashed};
use crate::random::Random;

/// Largest number of places that are damaged on one device.
const PLACES_MAX: u64 = 24;
/// Largest number of blocks between the beginning of a write and a place in it.
const SPREAD_BLOCKS: u64 = 40;
/// Chance in per cent that a place is one that was written lately.
const LATE_PERCENT: u64 = 50;

/// A kind of damage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Damage {
    FlippedBit,
    Unreadable,
    LostWrites,
}

/// Returns a place that was written, or one close behind it.
fn place(device: &SimDevice, random: &mut Random) -> Option<u64> {
    let begun = match random.percent(LATE_PERCENT) {
        true => device.latest_place(random.skewed(31) as usize),
        false => device.written_place(random.bits() >> 1),
    };
    let offset = begun? + random.skewed(SPREAD_BLOCKS) * BLOCK_BYTES as u64;
    (offset < device.size_bytes()).then_some(offset)
}

fn is_reserved(device: &SimDevice, offset: u64) -> bool {
    let places = reserved_places(device.size_bytes());
    places.into_iter().any(|place| (place..place + RESERVED_BYTES).contains(&offset))
}

/// Damages a device of a mirror in several places. Of labels and superblocks, which have copies on the device, one is damaged at
/// most, and none is taken back.
fn damage(device: &SimDevice, past: Option<&SimDevice>, random: &mut Random) {
    let mut is_any_reserved = false;
    for _ in 0..random.within(1, PLACES_MAX) {
        let Some(offset) = place(device, random) else { continue };
        let kinds = [Damage::FlippedBit, Damage::Unreadable, Damage::LostWrites];
        let kind = kinds[random.below(3) as usize];
        let within = random.below(BLOCK_BYTES as u64) >> (random.below(2) * 5);
        let bit = random.below(8) as u8;
        let is_reserved = is_reserved(device, offset);
        if is_reserved && (kind == Damage::LostWrites || std::mem::replace(&mut is_any_reserved, true)) {
            continue;
        }
        match (kind, past) {
            (Damage::FlippedBit, _) => device.flip_bit(offset + within, bit),
            (Damage::LostWrites, Some(past)) => device.lose_writes(offset, past),
            (Damage::Unreadable | Damage::LostWrites, _) => device.spoil(offset),
        }
    }
}

/// Chooses the devices of mirrors that are damaged: of each, one that is whole stays as it is.
fn choose(pool: &Pool, random: &mut Random) -> BTreeSet<PathBuf> {
    let mut chosen = BTreeSet::new();
    for mirror in pool.device_status().chunk_by(|a, b| a.group == b.group) {
        let whole = mirror.iter().filter(|device| device.state == DeviceState::Online);
        let mut whole: Vec<&Path> = whole.map(|device| device.path.as_path()).collect();
        if whole.len() < 2 {
            continue;
        }
        for _ in 0..random.within(1, whole.len() as u64 - 1) {
            chosen.insert(whole.swap_remove(random.below(whole.len() as u64) as usize).to_path_buf());
        }
    }
    chosen
}

impl Sim<'_> {
    /// Judges copies of the devices of which some are damaged.
    pub(super) fn damage(&mut self, pick: u64) -> Outcome {
        let Some(pool) = self.pool.clone() else { return Ok(()) };
        // A device that failed a call may not have everything, though the pool does not know it yet.
        let is_failing = self.faulted || self.devices.iter().any(|device| device.is_off());
        if is_failing || self.overlapping || self.is_splitting() || pool.status().failure.is_some() {
            return Ok(());
        }
        let mut random = Random::new(pick);
        let damaged = choose(&pool, &mut random);
        if !damaged.is_empty() {
            self.damage_mirrors(&damaged, &mut random)?;
        }
        if let Some(log_device) = pool.log_device_status() {
            let of_log = |device: &&Arc<SimDevice>| {
                pool.device_status()
                    .iter()
                    .any(|one| one.group == log_device.group && one.path == device.path())
            };
            let found: Vec<_> =
                self.devices.iter().filter(of_log).map(|device| device.path().to_path_buf()).collect();
            if let [alone] = found.as_slice() {
                self.damage_log_device(alone, &mut random)?;
            }
        }
        self.past.clear();
        for device in &self.devices {
            self.past.insert(device.path().to_path_buf(), device.crash(&mut |contents| contents - 1));
        }
        Ok(())
    }

    /// Returns copies of the devices that are here, as a power cut leaves them.
    fn copies(&self, random: &mut Random) -> Vec<SimDevice> {
        let here = self.devices.iter().zip(&self.away).filter(|(_, away)| !**away);
        here.map(|(device, _)| crashed(device, random)).collect()
    }

    fn damage_mirrors(&mut self, damaged: &BTreeSet<PathBuf>, random: &mut Random) -> Outcome {
        let copies = self.copies(random);
        for device in copies.iter().filter(|device| damaged.contains(device.path())) {
            damage(device, self.past.get(device.path()), random);
        }
        let image = Image::of(copies, self.forgotten + self.durable);
        let states = states(&self.base, &self.log);
        let options = image_options(self.history, random.bits());
        let judged = image.judge_damaged(&states, self.durable, &options, (damaged, random));
        drop(states);
        self.stats.images += judged.map_err(|what| format!("with {damaged:?} damaged: {what}"))?;
        self.stats.mended += 1;
        Ok(())
    }

    fn damage_log_device(&mut self, path: &Path, random: &mut Random) -> Outcome {
        let copies = self.copies(random);
        let Some(device) = copies.iter().find(|device| device.path() == path) else { return Ok(()) };
        let is_unreadable = random.percent(60);
        let places = if is_unreadable { random.within(1, PLACES_MAX / 4) } else { 1 };
        let mut struck = Vec::new();
        for _ in 0..places {
            let Some(offset) = place(device, random).filter(|offset| !is_reserved(device, *offset)) else {
                continue;
            };
            let within = random.below(BLOCK_BYTES as u64) >> (random.below(2) * 5);
            match is_unreadable {
                true => device.spoil(offset),
                false => device.flip_bit(offset + within, random.below(8) as u8),
            }
            struck.push(offset);
        }
        let durable = match is_unreadable {
            true => self.durable,
            false => self.attested.saturating_sub(self.forgotten).min(self.durable),
        };
        let may = (!is_unreadable, !is_unreadable && self.attested < self.forgotten);
        let image = Image::of(copies, self.forgotten + self.durable);
        let states = states(&self.base, &self.log);
        let options = image_options(self.history, random.bits());
        let judged = image.judge_log_damage(&states, durable, &options, (may, random));
        drop(states);
        let is_refused = judged.map_err(|what| {
            let how = if is_unreadable { "unreadable" } else { "flipped" };
            format!("with the log device {how} at {struck:?}: {what}")
        })?;
        self.stats.log_damaged += 1;
        self.stats.log_refused += u64::from(is_refused);
        self.stats.images += 1;
        Ok(())
    }
}
