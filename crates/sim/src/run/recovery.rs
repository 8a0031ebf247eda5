//! Cuts the power, opens the pool again, and finds out which events survived.

use std::sync::Arc;

use pagefold_engine::dataset::Journal;
use pagefold_engine::device::{SimDevice, SimOp};
use pagefold_engine::pool::OpenOptions;

use super::{Event, Outcome, Sim, journal, open, options};
use crate::history::Theme;
use crate::images::crashed;
use crate::random::Random;
use crate::verify::{is_log_damage, signature};

impl Sim<'_> {
    /// Cuts the power and opens the pool. Each number of `again` is a further power cut, after that many writes and
    /// flushes of the recovery.
    pub(super) fn power_cycle(&mut self, again: &[u64]) -> Outcome {
        self.develop()?;
        self.begun.clear();
        // While an opening does not succeed, the same devices are there: another half of a mirror would go on from where
        // it was before.
        if self.pool.is_some() {
            self.note_devices();
            self.note_whole();
            self.choose_devices();
        }
        self.close();
        self.faulted = false;
        self.struck.clear();
        self.committed = self.durable;
        self.journal = journal(self.history)?;
        self.kept = false;
        let mut again = again.iter();
        self.fuse.arm(None);
        loop {
            self.stats.crashes += 1;
            let random = &mut self.random;
            let after = |device: &Arc<SimDevice>| match self.outage {
                true => device.crash_by_writes(random.bits()),
                false => crashed(device, random),
            };
            self.devices = self.devices.iter().map(after).map(Arc::new).collect();
            self.watch();
            let cut = again.next();
            if let Some(calls) = cut.filter(|_| self.history.verbs) {
                self.fuse.arm(Some(*calls));
            } else if let Some(calls) = cut {
                let at = self.random.below(self.devices.len() as u64) as usize;
                self.devices[at].cut_after(*calls);
            }
            let opened = self.reopen();
            if cut.is_some() && self.is_off() {
                self.close();
                continue;
            }
            return opened;
        }
    }

    /// Cuts the power, opens the pool, and makes the first lost change again.
    pub(super) fn power_cycle_and_repeat(&mut self, seed: u64) -> Outcome {
        self.random = Random::new(seed);
        self.repeats = true;
        let cycled = self.power_cycle(&[]);
        self.repeats = false;
        cycled
    }

    pub(super) fn reopen(&mut self) -> Outcome {
        self.stats.opens += 1;
        for device in &self.devices {
            device.reopen();
            if self.history.copies > 1 {
                // A half that was left out does not know it. With the label of the other one unreadable at this instant,
                // and without a machine that remembers the pool, it would be opened as if it were whole.
                device.clear_faults_of(SimOp::Read);
            }
        }
        let salt = self.stats.opens;
        if let Some(journal) = self.journal.take() {
            let file = journal.file().try_clone_to_owned().map_err(|error| error.to_string())?;
            self.journal = Some(Arc::new(Journal::adopt(file).map_err(|error| error.to_string())?));
        }
        let journalled = OpenOptions { journal: self.journal.clone(), ..options(self.history, salt) };
        let mut opened = open(self.history, self.handles(), &journalled);
        self.kept = self.journal.is_some() && opened.is_ok();
        if let Err(error) = &opened
            && self.flips == 1
            && !self.faulted
            && !self.is_off()
            && !is_log_damage(error)
        {
            return Err(format!(
                "one bit has flipped, and not for the log's sake the pool does not open: {error}"
            ));
        }
        if opened.is_err() && self.is_damaged() && !self.is_off() {
            self.journal = journal(self.history)?;
            let accepting = OpenOptions {
                accept_loss: true,
                journal: self.journal.clone(),
                ..options(self.history, salt)
            };
            opened = open(self.history, self.handles(), &accepting);
            self.gave_up |= opened.is_ok();
            self.stats.given_up += u64::from(opened.is_ok());
        }
        match opened {
            // A fault struck the opening itself. A power cut ends faults, so the next opening meets none; it also
            // brings to light what a failed flush lost.
            Err(_) if self.faulted && !self.was_sound && self.history.theme == Theme::Faults => {
                self.stats.failed += 1;
                return self.power_cycle(&[]);
            }
            Ok(pool) => {
                self.pool = Some(pool);
                self.await_pauses();
                self.verify_errors()?;
            }
            Err(_) if self.is_off() => return self.power_cycle(&[]),
            Err(_) if self.is_damaged() => {
                self.stats.unopenable += 1;
                return Ok(());
            }
            Err(error) => return Err(format!("open: {error}")),
        }
        self.recovered()
    }

    /// Finds out which events survived, and compares the pool with the model.
    fn recovered(&mut self) -> Outcome {
        self.develop()?;
        let found = match signature(self.pool()?) {
            Ok(found) => found,
            Err(_) if self.is_off() => return self.power_cycle(&[]),
            Err(_) if self.terms().may_fail => {
                self.stats.unopenable += 1;
                self.close();
                return Ok(());
            }
            Err(error) => return Err(format!("what there is cannot be read: {error}")),
        };
        // Of several states with this signature, the last is taken: all hold the same.
        let mut world = self.base.clone();
        let mut matching = None;
        for count in 0..=self.log.len() {
            if world.signature() == found {
                matching = Some((count, world.clone()));
            }
            if let Some(event) = self.log.get(count) {
                event.happen(&mut world);
            }
        }
        let Some((count, now)) = matching else {
            return Err(format!(
                "{found:?} is there, which is nothing from {:?} to {:?} that may be",
                self.base.signature(),
                world.signature()
            ));
        };
        let least = self.committed.max(self.durable);
        if count < least {
            self.judge_loss(count, least)?;
        }
        let lost = self.log.split_off(count);
        self.now = now;
        // Opening flushes changes that it found in the log. Changes that it found in the journal are only accepted.
        let in_log = if self.kept { least.min(count) } else { count };
        self.durable = in_log;
        self.committed = in_log;
        self.settled = in_log == count;
        let found = self.forgotten + in_log;
        // The superblock tells of the batches that the opening has found.
        self.attested = found;
        self.durable_then = (self.pool()?.status().next_batch, found);
        self.forget();
        let opens = self.stats.opens;
        self.go_on()?;
        if self.stats.opens != opens || self.pool.is_none() {
            return Ok(());
        }
        self.look_anew()?;
        self.check()?;
        self.repeat(&lost)
    }

    /// Fails if `count` changes have survived, fewer than the `least` that must, and damage does not explain it.
    fn judge_loss(&mut self, count: usize, least: usize) -> Outcome {
        if !self.is_damaged() {
            return Err(format!(
                "{count} changes of {} survive, and {least} were acknowledged",
                self.log.len()
            ));
        }
        if self.flips == 1 && !self.gave_up && self.forgotten + count < self.attested {
            return Err(format!(
                "one bit has flipped, and changes {} to {} are lost without a word",
                self.forgotten + count + 1,
                self.attested
            ));
        }
        self.stats.shortened += 1;
        Ok(())
    }

    /// Makes the first lost change again, byte for byte, as databases do after a crash.
    fn repeat(&mut self, lost: &[Event]) -> Outcome {
        let Some(Event::Change(path, id, acts)) = lost.first() else { return Ok(()) };
        if self.pool.is_none() || self.flips > 0 || !(self.repeats || self.random.percent(30)) {
            return Ok(());
        }
        let next_id = std::mem::replace(&mut self.next_id, *id);
        let repeated = self.apply(path, acts);
        self.next_id = self.next_id.max(next_id);
        repeated
    }
}
