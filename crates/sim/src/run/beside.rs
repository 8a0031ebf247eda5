//! Changes, commits and checkpoints in the middle of verbs: where those of other threads could come, the engine calls what is
//! planned here ([`Pool::at_pauses`]).

use std::sync::{Arc, Weak};

use pagefold_engine::Error;
use pagefold_engine::dataset::{Change, Commit};
use pagefold_engine::pool::Pool;
use parking_lot::Mutex;

use super::{Outcome, Sim, changes, contents};
use crate::history::{Act, Step};
use crate::images::Camera;
use crate::model::COUNTER;

/// Steps that are taken in the middle of a verb.
#[derive(Default)]
pub(super) struct Beside(Mutex<BesideState>);

#[derive(Default)]
struct BesideState {
    /// Pauses before the steps, and the steps; `None` if none are planned.
    plan: Option<(u64, Vec<Step>)>,
    /// True while a verb is under way that may have them.
    expected: bool,
    /// Number of the next change, and of the events before it.
    next_id: u64,
    events: usize,
    camera: Option<Arc<Camera>>,
    done: Vec<Done>,
}

/// A step that was taken.
enum Done {
    Accepted(Vec<Act>),
    Committed,
    Durable,
    /// A superblock tells of all changes.
    Attested,
    Failed(Error),
}

impl Beside {
    /// Plans to take these steps after so many pauses.
    pub(super) fn plan(&self, pauses: u64, steps: &[Step]) {
        self.0.lock().plan = Some((pauses, steps.to_vec()));
    }

    /// Does not take steps that were planned and have not been taken.
    pub(super) fn give_up(&self) {
        self.0.lock().plan = None;
    }

    fn pause(&self, pool: &Weak<Pool>) {
        let mut state = self.0.lock();
        let is_time = state.expected && matches!(state.plan, Some((0, _)));
        if !is_time {
            let expected = state.expected;
            state.plan.as_mut().filter(|_| expected).into_iter().for_each(|(pauses, _)| *pauses -= 1);
            return;
        }
        let (Some((_, steps)), Some(pool)) = (state.plan.take(), pool.upgrade()) else { return };
        for step in &steps {
            match take(&pool, step, state.next_id) {
                Ok(done) => {
                    match &done {
                        Done::Accepted(_) => {
                            (state.next_id, state.events) = (state.next_id + 1, state.events + 1);
                        }
                        Done::Durable | Done::Attested => {
                            let events = state.events;
                            state.camera.iter().for_each(|camera| camera.acknowledge(events));
                        }
                        Done::Committed | Done::Failed(_) => {}
                    }
                    state.done.push(done);
                }
                // There is no room.
                Err(Error::NoSpace(_)) => {}
                Err(error) => {
                    state.done.push(Done::Failed(error));
                    return;
                }
            }
        }
    }
}

fn take(pool: &Pool, step: &Step, id: u64) -> pagefold_engine::Result<Done> {
    match step {
        Step::Apply(acts) => {
            let data = contents(acts);
            let mut all = changes(acts, &data);
            all.push(Change::Put(COUNTER, id.to_le_bytes().to_vec()));
            pool.open_dataset("")?.apply(&all)?;
            Ok(Done::Accepted(acts.clone()))
        }
        Step::Sync => pool.sync().map(|()| Done::Durable),
        Step::Checkpoint => pool.checkpoint(false).map(|()| Done::Attested),
        _ => pool.commit(false).map(|()| Done::Committed),
    }
}

impl Sim<'_> {
    /// Has the pool take the steps that are planned, in the middle of verbs.
    pub(super) fn await_pauses(&self) {
        let Some(pool) = self.pool.as_ref().filter(|_| self.history.beside) else { return };
        let (beside, weak) = (Arc::clone(&self.beside), Arc::downgrade(pool));
        pool.at_pauses(move || beside.pause(&weak));
    }

    /// Says that a verb comes, in the middle of which steps may be taken.
    pub(super) fn expect_pauses(&self) {
        let mut state = self.beside.0.lock();
        state.expected = !self.overlapping && !self.is_splitting();
        state.next_id = self.next_id;
        state.events = self.forgotten + self.log.len();
        state.camera.clone_from(&self.camera);
    }

    /// Notes the steps that were taken in the middle of a verb.
    pub(super) fn note_beside(&mut self) -> Outcome {
        let done = {
            let mut state = self.beside.0.lock();
            state.expected = false;
            state.camera = None;
            std::mem::take(&mut state.done)
        };
        for done in done {
            self.stats.beside += 1;
            match done {
                Done::Accepted(acts) => self.accepted("", &acts),
                Done::Committed => self.now_committed(),
                Done::Durable => self.call(|_| Ok(()), true)?,
                Done::Attested => self.attesting(|_| Ok(()))?,
                Done::Failed(error) => {
                    // The pool says so, too, as soon as somebody asks for something else.
                    let is_failing = self.is_off() || self.pool()?.status().failure.is_some();
                    if !self.faulted && !is_failing {
                        return Err(format!("a call beside a verb fails for no reason: {error}"));
                    }
                }
            }
        }
        Ok(())
    }
}
