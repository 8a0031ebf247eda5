//! Mirrors: their devices come and go, and are filled.
//!
//! A device that was whole when the pool was closed has everything that was acknowledged. So any one of those of a mirror
//! is enough, and the others may be missing.

use std::sync::Arc;

use pagefold_engine::device::Device;
use pagefold_engine::pool::{DeviceState, Pool};

use super::{Outcome, Sim};

/// Chance in per cent that devices of a mirror are missing after a power cut; that one which is not in use comes back at
/// an occasion; and that one which is in use is taken offline.
const MISSING_PERCENT: u64 = 40;
const RETURN_PERCENT: u64 = 40;
const OFFLINE_PERCENT: u64 = 10;
/// Largest number of steps of filling at an occasion. Few devices are whole after one.
const FILL_STEPS: u64 = 400;

impl Sim<'_> {
    /// Returns true if the power of all devices of a mirror that are whole is off.
    pub(super) fn is_a_mirror_off(&self, pool: &Pool) -> bool {
        let all = pool.device_status();
        all.chunk_by(|a, b| a.group == b.group).any(|mirror| {
            let mut whole = mirror.iter().filter(|device| device.state == DeviceState::Online);
            whole.all(|device| self.devices.get(usize::from(device.number)).is_none_or(|sim| sim.is_off()))
        })
    }

    /// Notes which devices are whole, before the pool is closed.
    pub(super) fn note_whole(&mut self) {
        let Some(pool) = &self.pool else { return };
        for device in pool.device_status() {
            if let Some(whole) = self.whole.get_mut(usize::from(device.number)) {
                *whole = device.state == DeviceState::Online;
            }
        }
    }

    /// Decides which devices the pool is opened with. Each mirror keeps one that is whole.
    pub(super) fn choose_devices(&mut self) {
        let copies = self.history.copies;
        if copies == 1 {
            return;
        }
        for first in (0..self.devices.len()).step_by(copies) {
            let members = first..first + copies;
            members.clone().for_each(|at| self.away[at] = false);
            if !self.random.percent(MISSING_PERCENT) {
                continue;
            }
            let whole: Vec<usize> = members.clone().filter(|at| self.whole[*at]).collect();
            if whole.is_empty() {
                continue;
            }
            let kept = whole[self.random.below(whole.len() as u64) as usize];
            for at in members.filter(|at| *at != kept) {
                self.away[at] = self.random.percent(70);
            }
        }
    }

    /// Takes devices back that are not in use, or some offline, and fills those that lack something.
    pub(super) fn tend_mirrors(&mut self) -> Outcome {
        if self.history.copies == 1 || self.overlapping {
            return Ok(());
        }
        let pool = Arc::clone(self.pool()?);
        for device in pool.device_status() {
            let at = usize::from(device.number);
            let Some(sim) = self.devices.get(at).cloned().filter(|sim| !sim.is_off()) else { continue };
            let in_use = matches!(device.state, DeviceState::Online | DeviceState::Filling);
            if in_use && self.random.percent(OFFLINE_PERCENT) {
                // The last one that is whole stays.
                let _ = pool.offline(device.number);
            } else if !in_use && self.random.percent(RETURN_PERCENT) {
                sim.reopen();
                // It may fail, and is left out then.
                if pool.online(sim as Arc<dyn Device>).is_ok() {
                    self.away[at] = false;
                    // From here on it may become the only one that is whole, so images must have it.
                    self.develop()?;
                    self.watch();
                }
            }
        }
        drop(pool);
        let steps = self.random.below(FILL_STEPS);
        self.call(
            |pool| {
                for _ in 0..steps {
                    if pool.fill_step(0)?.is_none() {
                        break;
                    }
                }
                Ok(())
            },
            false,
        )
    }
}
