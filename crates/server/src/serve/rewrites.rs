//! The rewrites of files of one mount that are under way.

use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// The rewrites of a mount, all of which end before the mount does.
#[derive(Default)]
pub(super) struct Rewrites {
    state: Mutex<RewriteState>,
    changed: Condvar,
}

#[derive(Default)]
struct RewriteState {
    stopped: bool,
    running: usize,
}

/// A rewrite that is under way.
pub(super) struct RewriteGuard<'a>(&'a Rewrites);

impl Drop for RewriteGuard<'_> {
    fn drop(&mut self) {
        self.0.state.lock().running -= 1;
        self.0.changed.notify_all();
    }
}

impl Rewrites {
    /// Begins a rewrite; `None` if the mount is just ending.
    pub(super) fn begin(&self) -> Option<RewriteGuard<'_>> {
        let mut state = self.state.lock();
        (!state.stopped).then(|| {
            state.running += 1;
            RewriteGuard(self)
        })
    }

    /// Lets no more rewrites begin, and returns when all have ended.
    pub(super) fn stop(&self) {
        let mut state = self.state.lock();
        state.stopped = true;
        self.changed.notify_all();
        while state.running > 0 {
            self.changed.wait(&mut state);
        }
    }

    /// Waits for `duration`, or until rewrites are stopped. Returns true if they are.
    pub(super) fn rest(&self, duration: Duration) -> bool {
        let mut state = self.state.lock();
        if !state.stopped && !duration.is_zero() {
            self.changed.wait_for(&mut state, duration);
        }
        state.stopped
    }
}
