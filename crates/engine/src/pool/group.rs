//! Group commit: whoever commits, commits for all who wait.
//!
//! A commit has two halves. The first cuts, encodes and writes, one at a time (`Turn`); the second flushes and answers, and
//! overlaps with the first half of the next group. So a group gathers for as long as the one before is written, and
//! devices have something to write while they flush.

use std::sync::atomic::Ordering;

use super::Pool;
use crate::dataset::{Commit, Synced, count};
use crate::{Error, Result};

/// Whose turn it is to write to the log, and who waits.
#[derive(Default)]
pub(super) struct Turn {
    /// Somebody is in the first half of a commit.
    writing: bool,
    /// Those to be answered whom no commit has taken along yet.
    waiters: Vec<Synced>,
    /// How many wait for the second half of commits by [`Pool::committer_loop`].
    flying: usize,
    /// Threads that commit for `waiters`.
    committers: usize,
    /// These threads are to end.
    stop: bool,
}

/// A commit between its halves.
#[must_use = "those who wait are answered by `Pool::end_commit`"]
pub struct Flight {
    /// Accepted changes that are in the log.
    written: Result<u64>,
    /// Those to be answered.
    group: Vec<Synced>,
}

impl Turn {
    /// Whether a group is to begin. One that overlaps with another's flush must have become as large as that: smaller ones
    /// cost more writes and flushes than they save time.
    fn is_due(&self) -> bool {
        !self.writing && self.waiters.len() >= self.flying.max(1)
    }
}

impl Flight {
    /// Whether the first half succeeded: what was accepted before it survives the end of the process.
    pub fn is_written(&self) -> bool {
        self.written.is_ok()
    }
}

impl Commit for Pool {
    fn commit(&self, durable: bool) -> Result<()> {
        if durable {
            return self.end_commit(self.begin_commit());
        }
        let target = self.shared.accepted.load(Ordering::Acquire);
        if self.take_turn(target) {
            let written = self.lead(target, None);
            self.pass_turn();
            written?;
        }
        self.check_failed()
    }

    fn commit_then(&self, then: Synced) {
        let target = self.shared.accepted.load(Ordering::Acquire);
        if self.durable.load(Ordering::Acquire) >= target {
            return then(self.check_failed());
        }
        let mut turn = self.turn.lock();
        if turn.committers == 0 {
            drop(turn);
            return then(self.commit(true));
        }
        turn.waiters.push(then);
        if turn.is_due() {
            self.work.notify_one();
        }
    }

    fn nudge(&self) {
        let mut signal = self.signal.lock();
        if !signal.commit {
            signal.commit = true;
            self.wake.notify_one();
        }
    }

    fn make_room(&self, bytes: u64, edits: u64) -> Result<()> {
        Self::make_room(self, bytes, edits)
    }

    fn settle(&self) -> Result<()> {
        if self.nodes.unstored_bytes() == 0 || self.shared.read_only.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.checkpoint(false)
    }

    fn nudge_cleaner(&self) {
        let mut wanted = self.cleaning.lock();
        if !std::mem::replace(&mut *wanted, true) {
            self.clean_wake.notify_one();
        }
    }
}

impl Pool {
    /// As [`crate::dataset::Dataset::sync_then`], by the next [`Pool::begin_commit`], whoever calls it. For those who drive a
    /// pool without threads; see [`Pool::run`].
    pub fn join_commit(&self, then: Synced) {
        self.turn.lock().waiters.push(then);
    }

    /// First half of a durable commit: everything accepted by now is in the log. [`Pool::end_commit`] must follow.
    pub fn begin_commit(&self) -> Flight {
        let mut group = std::mem::take(&mut self.turn.lock().waiters);
        let target = self.shared.accepted.load(Ordering::Acquire);
        if !self.take_turn(target) {
            return Flight { written: Ok(target), group };
        }
        let alone = group.is_empty();
        let written = self.lead(target, Some((&mut group, alone)));
        self.pass_turn();
        Flight { written, group }
    }

    /// Second half of a durable commit: what the first wrote is on stable storage, and those who waited are answered.
    pub fn end_commit(&self, flight: Flight) -> Result<()> {
        let Flight { written, group } = flight;
        let done = written.and_then(|reached| self.flush_to(reached));
        for then in group {
            then(done.as_ref().copied().map_err(likewise));
        }
        done
    }

    /// Commits for those who wait, until the pool's background work ends. Of two threads that do this one writes while the
    /// other flushes, and no group is handed from one to the other.
    pub(super) fn committer_loop(&self) {
        let mut turn = self.turn.lock();
        turn.committers += 1;
        loop {
            if !turn.is_due() {
                if turn.stop && turn.waiters.is_empty() {
                    turn.committers -= 1;
                    self.work.notify_all();
                    return;
                }
                self.work.wait(&mut turn);
                continue;
            }
            turn.writing = true;
            let mut group = std::mem::take(&mut turn.waiters);
            drop(turn);
            let target = self.shared.accepted.load(Ordering::Acquire);
            let alone = group.len() == 1;
            let written = self.lead(target, Some((&mut group, alone)));
            let waiting = group.len();
            self.turn.lock().flying += waiting;
            self.pass_turn();
            if let Err(error) = self.end_commit(Flight { written, group }) {
                tracing::error!(%error, "a commit failed");
            }
            turn = self.turn.lock();
            turn.flying -= waiting;
        }
    }

    /// Threads that commit end when nobody waits any more.
    pub(super) fn stop_committers(&self) {
        self.turn.lock().stop = true;
        self.work.notify_all();
    }

    /// Waits until it is the caller's turn to write, or `target` is written.
    fn take_turn(&self, target: u64) -> bool {
        let mut turn = self.turn.lock();
        while self.committed.load(Ordering::Acquire) < target {
            if !turn.writing {
                turn.writing = true;
                return true;
            }
            // All who wait are woken at once: a chain of hand-overs of a lock would cost each the wake-ups of those before.
            self.passed.wait(&mut turn);
        }
        false
    }

    fn pass_turn(&self) {
        let mut turn = self.turn.lock();
        turn.writing = false;
        let due = turn.is_due();
        drop(turn);
        self.passed.notify_all();
        if due {
            self.work.notify_one();
        }
    }

    /// Brings what is accepted into the log, unless a checkpoint has done so meanwhile. Returns how many changes are there.
    /// A durable commit takes those along who wait by the time of the cut; `alone` says that nobody else did before.
    fn lead(&self, target: u64, durable: Option<(&mut Vec<Synced>, bool)>) -> Result<u64> {
        self.prepare_commit()?;
        let mut log = self.log.lock();
        self.check_failed()?;
        if self.committed.load(Ordering::Acquire) >= target {
            return Ok(target);
        }
        let alone = durable.is_some_and(|(group, alone)| {
            let waiters = &mut self.turn.lock().waiters;
            let alone = alone && waiters.is_empty();
            group.append(waiters);
            alone
        });
        let gate = self.shared.gate.write();
        let accepted = self.shared.accepted.load(Ordering::Acquire);
        let cut = self.cut(&log);
        drop(gate);
        self.finish(&mut log, &cut, accepted, alone)?;
        Ok(accepted)
    }

    pub(super) fn flush_to(&self, target: u64) -> Result<()> {
        if self.durable.load(Ordering::Acquire) < target {
            let written = self.committed.load(Ordering::Acquire);
            self.flushes.flush().inspect_err(|error| self.shared.fail(error))?;
            self.durable.fetch_max(written, Ordering::AcqRel);
            count(&self.shared.counters.durable_commits, 1);
        }
        self.check_failed()
    }

    pub(super) fn check_failed(&self) -> Result<()> {
        self.shared.failure().map_or(Ok(()), |why| Err(Error::Failed(why.into())))
    }
}

/// One failure, told to several.
fn likewise(error: &Error) -> Error {
    match error {
        Error::NoSpace(why) => Error::NoSpace(why.clone()),
        Error::ReadOnly(why) => Error::ReadOnly(why.clone()),
        other => Error::Failed(other.to_string()),
    }
}
