//! Commits, and keeps account of the events that are known to be durable.

use std::sync::{Arc, Mutex, PoisonError};

use pagefold_engine::pool::Pool;

use super::{Begun, FLIGHTS_MAX, Outcome, Sim};
use crate::history::Theme;

impl Sim<'_> {
    pub(super) fn call(
        &mut self,
        call: impl FnOnce(&Pool) -> pagefold_engine::Result<()>,
        durable: bool,
    ) -> Outcome {
        let pool = Arc::clone(self.pool()?);
        match call(&pool) {
            Ok(()) => {
                self.committed = self.log.len();
                self.settled = true;
                if durable {
                    self.durable = self.log.len();
                    self.now_durable();
                    self.forget();
                }
                Ok(())
            }
            Err(error) => {
                drop(pool);
                self.failed(&error)
            }
        }
    }

    /// Makes a call that may commit, or not: no more counts as committed after it.
    pub(super) fn upkeep(&mut self, call: impl FnOnce(&Pool) -> pagefold_engine::Result<()>) -> Outcome {
        let (before, opens) = ((self.committed, self.settled), self.stats.opens);
        self.call(call, false)?;
        if self.stats.opens == opens {
            (self.committed, self.settled) = before;
        }
        Ok(())
    }

    /// Takes steps of upkeep: so many at most, as long as there is something to do.
    pub(super) fn take_steps(
        &mut self,
        steps: u64,
        step: impl Fn(&Pool) -> pagefold_engine::Result<Option<u64>>,
    ) -> Outcome {
        self.upkeep(|pool| {
            for _ in 0..steps {
                if step(pool)?.is_none() {
                    break;
                }
            }
            Ok(())
        })
    }

    /// Notes that everything is in the log.
    pub(super) fn now_committed(&mut self) {
        self.committed = self.log.len();
        self.settled = true;
    }

    /// Notes that something has become durable. If it is a batch, that batch tells that the events before it were
    /// durable.
    fn now_durable(&mut self) {
        let Some(pool) = &self.pool else { return };
        let batch = pool.status().next_batch;
        let (batch_then, id_then) = self.durable_then;
        if batch > batch_then {
            self.attested = self.attested.max(id_then);
        }
        self.durable_then = (batch, self.forgotten + self.durable);
    }

    /// Makes a call after which a superblock tells that all events so far are durable.
    pub(super) fn attesting(&mut self, call: impl FnOnce(&Pool) -> pagefold_engine::Result<()>) -> Outcome {
        let opens = self.stats.opens;
        let last = self.forgotten + self.log.len();
        self.call(call, true)?;
        if self.stats.opens == opens {
            self.attested = self.attested.max(last);
        }
        Ok(())
    }

    /// Tells the devices which chunks are free: all of them, or those that became free lately.
    pub(super) fn trim(&mut self, all: bool) -> Outcome {
        if all {
            return self.attesting(|pool| {
                pool.trim_start(0, 0)?;
                while pool.trim_step(0)?.is_some() {}
                Ok(())
            });
        }
        let pool = Arc::clone(self.pool()?);
        pool.set_autotrim(true);
        let told = || -> pagefold_engine::Result<()> {
            while pool.autotrim_step()?.is_some() {}
            Ok(())
        };
        let Err(error) = told() else { return Ok(()) };
        drop(pool);
        self.failed(&error)
    }

    pub(super) fn rest(&mut self) -> Outcome {
        // Changes that nobody waits for are committed first.
        let opens = self.stats.opens;
        self.call(Pool::sync, true)?;
        if self.stats.opens == opens && self.pool.is_some() {
            self.attesting(Pool::attest)?;
        }
        Ok(())
    }

    pub(super) fn begin(&mut self, waiters: u64) -> Outcome {
        let pool = Arc::clone(self.pool()?);
        if self.begun.len() == FLIGHTS_MAX {
            return Ok(());
        }
        let told = Arc::new(Mutex::new(Vec::new()));
        for _ in 0..waiters {
            let told = Arc::clone(&told);
            pool.join_commit(Box::new(move |synced| {
                told.lock().unwrap_or_else(PoisonError::into_inner).push(synced.is_ok());
            }));
        }
        let flight = pool.begin_commit();
        if flight.is_written() {
            self.committed = self.log.len();
            self.settled = true;
        }
        let events = self.forgotten + self.log.len();
        self.begun.push(Begun { flight, events, waiters, told });
        Ok(())
    }

    pub(super) fn end(&mut self, newest: bool) -> Outcome {
        if self.begun.is_empty() {
            return Ok(());
        }
        let at = if newest { self.begun.len() - 1 } else { 0 };
        let Begun { flight, events, waiters, told } = self.begun.remove(at);
        let ended = self.pool()?.end_commit(flight);
        let told = std::mem::take(&mut *told.lock().unwrap_or_else(PoisonError::into_inner));
        if told.len() as u64 != waiters || told.iter().any(|well| *well != ended.is_ok()) {
            return Err(format!("{waiters} waited for {ended:?} and were told {told:?}"));
        }
        match ended {
            Ok(()) => {
                self.durable = self.durable.max(events.saturating_sub(self.forgotten));
                self.now_durable();
                self.forget();
                Ok(())
            }
            Err(error) => self.failed(&error),
        }
    }

    /// Forgets durable events, unless a camera may have images from before them that are yet to be judged.
    pub(super) fn forget(&mut self) {
        if self.camera.is_none() {
            self.forget_durable();
        }
    }

    /// Forgets durable events, unless flipped bits may shorten the log.
    pub(super) fn forget_durable(&mut self) {
        if self.history.theme == Theme::Flips {
            return;
        }
        for event in self.log.drain(..self.durable) {
            event.happen(&mut self.base);
        }
        self.forgotten += self.durable;
        self.committed -= self.durable;
        self.durable = 0;
    }
}
