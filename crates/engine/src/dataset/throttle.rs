//! Throttle: delays writers to the pace at which the cleaner gains room, so that no writer runs out of room.
//!
//! A pass of the cleaner gains nothing before the checkpoint after it counts, so the room that is left has to last
//! until then. A writer is delayed by a part of the time until then: the part that its bytes are of the room that is
//! left. A writer that is slower than that pace need not wait; all writers together are never faster, however many they
//! are. If the gain comes later than expected, the rest of the room is used up ever more slowly.
//!
//! The pace itself ([`Pace`]) is arithmetic, and is told the time.

use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

/// Longest time that a writer is delayed for each piece of [`DELAY_BYTES`].
const DELAY_MAX: Duration = Duration::from_millis(100);
/// Bytes of a write for which the writer is delayed by at most [`DELAY_MAX`].
const DELAY_BYTES: u64 = 64 << 10;
/// Divisor of the time that passes take, or that this one has taken if that is longer. The gain of a pass is never
/// expected sooner than after that part, however late the pass is.
const LATE_PART: u32 = 3;
/// Least weight of a new measurement in a mean.
const SHARE: f64 = 0.25;
/// Time that a pass is expected to take before one was measured, if it moves [`FIRST_BYTES`].
const FIRST: Duration = Duration::from_millis(250);
const FIRST_BYTES: f64 = 16_777_216.0;

/// Room as writers see it, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Left {
    /// Bytes that writers may fill before they have to wait for the cleaner's next gain.
    pub(super) spare_bytes: u64,
    /// Value of `spare_bytes` from which on no writer is delayed.
    pub(super) low_bytes: u64,
}

/// A pass that is under way.
#[derive(Clone, Copy, Debug)]
struct Pass {
    moved_bytes: u64,
    begun: Duration,
    due: Duration,
}

/// Means of the times that passes take, and the pass that is under way.
#[derive(Debug)]
struct Pace {
    /// Mean of the seconds that a recent pass with its checkpoint took for each byte that it moved.
    s_per_byte: f64,
    /// Mean of the seconds that a recent pass with its checkpoint took in all.
    s: f64,
    pass: Option<Pass>,
    /// True if the cleaner has found nothing to gain.
    is_idle: bool,
    /// Number of gains. A writer that sees it grow waits no longer.
    gains: u64,
    /// Number of passes that were measured.
    measured: u32,
}

impl Default for Pace {
    fn default() -> Self {
        let s = FIRST.as_secs_f64();
        Self { s_per_byte: s / FIRST_BYTES, s, pass: None, is_idle: false, gains: 0, measured: 0 }
    }
}

fn approach(known: &mut f64, now: f64, share: f64) {
    *known += (now - *known) * share;
}

impl Pace {
    fn begin(&mut self, now: Duration, moved_bytes: u64) {
        let s = self.s_per_byte * moved_bytes as f64;
        self.pass = Some(Pass { moved_bytes, begun: now, due: now + Duration::from_secs_f64(s) });
        self.is_idle = false;
    }

    fn gained(&mut self, now: Duration) {
        if let Some(Pass { moved_bytes, begun, .. }) = self.pass.take() {
            let took = now.saturating_sub(begun).as_secs_f64();
            self.measured += 1;
            let share = (1.0 / f64::from(self.measured)).max(SHARE);
            approach(&mut self.s, took, share);
            approach(&mut self.s_per_byte, took / moved_bytes.max(1) as f64, share);
        }
        self.gains += 1;
    }

    fn idle(&mut self) {
        self.pass = None;
        self.is_idle = true;
        self.gains += 1;
    }

    /// Returns the time that `bytes` are worth: the time until the next gain, times their part of the room that is
    /// left. While the room falls from the low mark to three quarters of it, the delay grows from nothing.
    fn cost(&self, now: Duration, bytes: u64, Left { spare_bytes, low_bytes }: Left) -> Duration {
        if spare_bytes >= low_bytes || self.is_idle {
            return Duration::ZERO;
        }
        let all = Duration::from_secs_f64(self.s);
        let rest = self.pass.map_or(all, |pass| {
            let taken = now.saturating_sub(pass.begun);
            pass.due.saturating_sub(now).max(taken.max(all) / LATE_PART)
        });
        let share = (4.0 * (low_bytes - spare_bytes) as f64 / low_bytes as f64).min(1.0);
        let s = rest.as_secs_f64() * share * bytes as f64 / spare_bytes.max(1) as f64;
        Duration::from_secs_f64(s.min(Self::most(bytes).as_secs_f64()))
    }

    /// Returns the longest delay for so many bytes.
    fn most(bytes: u64) -> Duration {
        let pieces = u32::try_from(bytes.div_ceil(DELAY_BYTES)).unwrap_or(u32::MAX);
        DELAY_MAX.saturating_mul(pieces.max(1))
    }
}

/// The pace, and the writers that wait for it. There is no pace, and nobody waits, unless somebody cleans in the
/// background.
#[derive(Debug)]
pub(crate) struct Throttle {
    begun: Instant,
    pace: Mutex<Option<Pace>>,
    gained: Condvar,
    /// Lock of the one writer that is delayed. The next writer measures the room when its turn comes: if both measured
    /// it at the same time, each would take all of it for its own.
    turn: Mutex<()>,
}

impl Default for Throttle {
    fn default() -> Self {
        Self { begun: Instant::now(), pace: Mutex::default(), gained: Condvar::new(), turn: Mutex::default() }
    }
}

impl Throttle {
    /// Begins to delay writers: somebody cleans in the background from now on, so that it is worth waiting for.
    pub(crate) fn start(&self) {
        self.pace.lock().get_or_insert_default();
    }

    /// Ends the delays: nobody cleans in the background any more.
    pub(crate) fn stop(&self) {
        *self.pace.lock() = None;
        self.gained.notify_all();
    }

    fn tell(&self, tell: impl FnOnce(&mut Pace, Duration)) {
        if let Some(pace) = &mut *self.pace.lock() {
            tell(pace, self.begun.elapsed());
        }
    }

    /// Notes that a pass begins, which moves `moved_bytes`.
    pub(crate) fn begin(&self, moved_bytes: u64) {
        self.tell(|pace, now| pace.begin(now, moved_bytes));
    }

    /// Notes that a checkpoint counts, so that the chunks that were emptied before are free.
    pub(crate) fn gained(&self) {
        self.tell(Pace::gained);
        self.gained.notify_all();
    }

    /// Notes that the cleaner has found nothing to gain.
    pub(crate) fn idle(&self) {
        self.tell(|pace, _| pace.idle());
        self.gained.notify_all();
    }

    /// Waits for the time that `bytes` are worth while so much room is `left`. The wait ends early if room was gained.
    pub(super) fn wait(&self, bytes: u64, left: impl FnOnce() -> Left) {
        let turn = self.turn.lock();
        let mut guard = self.pace.lock();
        if let Some(pace) = &*guard {
            let now = self.begun.elapsed();
            let (until, gains) = (now + pace.cost(now, bytes, left()), pace.gains);
            loop {
                let rest = until.saturating_sub(self.begun.elapsed());
                if rest.is_zero() || guard.as_ref().is_none_or(|pace| pace.gains != gains) {
                    break;
                }
                self.gained.wait_for(&mut guard, rest);
            }
        }
        drop(guard);
        MutexGuard::unlock_fair(turn);
    }
}

#[cfg(test)]
mod tests;
