//! Group commit: whoever commits, commits for all who wait.
//!
//! A commit has two halves. The first quiesces, encodes and writes, one at a time (`Turn`); the second flushes and
//! answers, and overlaps with the first half of the next group. So a group gathers for as long as the one before is
//! written, and devices have something to write while they flush.

use std::sync::atomic::Ordering;

use parking_lot::MutexGuard;

use super::Pool;
use crate::dataset::{Caller, Commit, RoomRequest, Synced, count};
use crate::{Error, Result};

/// The turn to write to the log, and the callers that wait.
#[derive(Default)]
pub(super) struct Turn {
    /// True while somebody is in the first half of a commit.
    writing: bool,
    /// Callers to be answered whom no commit has taken along yet.
    waiters: Vec<Synced>,
    /// Number of callers that wait for the second half of commits by [`Pool::committer_loop`].
    flying: usize,
    /// Number of threads that commit for `waiters`.
    committers: usize,
    /// True if these threads are to end.
    stop: bool,
}

/// Who waits for a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waiting {
    /// Nobody waits for it to be durable.
    Nobody,
    /// Callers wait for it to be durable.
    Several,
    /// One caller waits: if its batch is durable as soon as it is written, nothing has to be flushed.
    One,
}

/// A commit between its halves.
#[must_use = "those who wait are answered by `Pool::end_commit`"]
pub struct Flight {
    /// Number of accepted changes that are in the log.
    written: Result<u64>,
    /// Callers to be answered.
    group: Vec<Synced>,
}

impl Turn {
    /// Returns true if a group is to begin. A group that overlaps with another's flush must have become as large as
    /// that one: smaller ones cost more writes and flushes than they save time.
    fn is_due(&self) -> bool {
        !self.writing && self.waiters.len() >= self.flying.max(1)
    }
}

impl Flight {
    /// Returns true if the first half succeeded: changes that were accepted before it survive the end of the process.
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

    fn commit_then(&self, caller: Caller, then: Synced) {
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
        if !turn.is_due() {
            return;
        }
        match caller {
            Caller::MustNotWait => drop(self.work.notify_one()),
            Caller::MayWait => {
                let turn = self.commit_waiters(turn);
                // A group that waited for this one to end.
                if turn.is_due() {
                    self.work.notify_one();
                }
            }
        }
    }

    fn nudge(&self) {
        let mut signal = self.signal.lock();
        if !signal.commit {
            signal.commit = true;
            self.wake.notify_one();
        }
    }

    fn make_room(&self, wanted: RoomRequest) -> Result<()> {
        Self::make_room(self, wanted)
    }

    fn settle(&self) -> Result<()> {
        if self.nodes.unstored_bytes() == 0 || self.shared.read_only.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.checkpoint(false)
    }

    fn reap_some(&self) -> Result<bool> {
        Self::reap_some(self)
    }

    fn nudge_cleaner(&self) {
        let mut wanted = self.cleaning.lock();
        if !std::mem::replace(&mut *wanted, true) {
            self.clean_wake.notify_one();
        }
    }
}

impl Pool {
    /// As [`crate::dataset::Dataset::sync_then`], but the next [`Pool::begin_commit`] takes `then` along, whoever calls
    /// it. For callers that drive a pool without threads; see [`Pool::run`].
    pub fn join_commit(&self, then: Synced) {
        self.turn.lock().waiters.push(then);
    }

    /// Does the first half of a durable commit: brings everything accepted by now into the log. [`Pool::end_commit`]
    /// must follow.
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

    /// Does the second half of a durable commit: flushes what the first half wrote, and answers those who wait.
    pub fn end_commit(&self, flight: Flight) -> Result<()> {
        let Flight { written, group } = flight;
        let done = written.and_then(|reached| self.flush_to(reached));
        for then in group {
            then(done.as_ref().copied().map_err(likewise));
        }
        done
    }

    /// Commits for those who wait, until the pool's background work ends. If two threads do this, one writes while the
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
            turn = self.commit_waiters(turn);
        }
    }

    /// Commits for the group that is due.
    fn commit_waiters<'a>(&'a self, mut turn: MutexGuard<'a, Turn>) -> MutexGuard<'a, Turn> {
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
            self.tell_of_failure(
                "a commit could not be made durable, and those who waited for it were told",
                &error,
            );
        }
        let mut turn = self.turn.lock();
        turn.flying -= waiting;
        turn
    }

    /// Has the committing threads end when nobody waits any more.
    pub(super) fn stop_committers(&self) {
        self.turn.lock().stop = true;
        self.work.notify_all();
    }

    /// Waits until it is the caller's turn to write, or `target` is written. Returns true if it is the caller's turn.
    fn take_turn(&self, target: u64) -> bool {
        let mut turn = self.turn.lock();
        while self.committed.load(Ordering::Acquire) < target {
            if !turn.writing {
                turn.writing = true;
                return true;
            }
            // All who wait are woken at once: if they handed a lock on, each would pay for the wake-ups of those
            // before.
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

    /// Brings what is accepted into the log, unless a checkpoint has done so meanwhile. Returns the number of changes
    /// that are there. A durable commit takes along those who wait by the quiesce point; `alone` is true if it was
    /// for one caller only before.
    fn lead(&self, target: u64, durable: Option<(&mut Vec<Synced>, bool)>) -> Result<u64> {
        self.prepare_accepted(target)?;
        let mut log = self.log.lock();
        self.check_failed()?;
        if self.committed.load(Ordering::Acquire) >= target {
            return Ok(target);
        }
        let waiting = durable.map_or(Waiting::Nobody, |(group, alone)| {
            let waiters = &mut self.turn.lock().waiters;
            let alone = alone && waiters.is_empty();
            group.append(waiters);
            if alone { Waiting::One } else { Waiting::Several }
        });
        let gate = self.shared.gate.write();
        let accepted = self.shared.accepted.load(Ordering::Acquire);
        let taken = self.take_accepted(&log);
        drop(gate);
        self.finish(&mut log, &taken, accepted, waiting)?;
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

/// Returns the error again, for another of the callers that are told of it.
fn likewise(error: &Error) -> Error {
    match error {
        Error::NoSpace(why) => Error::NoSpace(why.clone()),
        Error::ReadOnly(why) => Error::ReadOnly(why.clone()),
        Error::Failed(why) => Error::Failed(why.clone()),
        other => Error::Failed(other.to_string()),
    }
}
