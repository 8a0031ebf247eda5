//! Tells when a pool is idle.

use std::sync::atomic::Ordering;
use std::time::Instant;

use super::Pool;

/// A pool is idle while applications and streams read and write fewer bytes per second than this.
const IDLE_BYTES_PER_S: u64 = 8 << 20;

/// Traffic of applications and streams, as seen from time to time.
#[derive(Default)]
pub(super) struct Traffic {
    /// Bytes that they had read and written at the last look, and its time.
    seen: Option<(u64, Instant)>,
    /// Time since which the pool has been idle.
    pub(super) idle_since: Option<Instant>,
}

impl Traffic {
    /// Looks at the bytes that applications have read and written, and those of streams.
    pub(super) fn observe(&mut self, pool: &Pool, now: Instant) {
        let totals = pool.totals();
        let bytes = totals.accepted_bytes
            + totals.read_bytes
            + pool.shared.counters.streamed_bytes.load(Ordering::Relaxed);
        let (before, then) = self.seen.replace((bytes, now)).unwrap_or((bytes, now));
        let bound = IDLE_BYTES_PER_S as f64 * now.duration_since(then).as_secs_f64();
        if bytes.saturating_sub(before) as f64 > bound {
            self.idle_since = None;
        } else {
            self.idle_since.get_or_insert(now);
        }
    }
}
