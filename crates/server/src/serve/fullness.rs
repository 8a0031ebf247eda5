//! Warns when a pool or a quota fills up, when it soon will, and when it holds less than was promised; reports errors that
//! were met, and files of devices that were deleted. Has the pool remember what it holds.

use std::collections::{BTreeMap, BTreeSet};

use pagefold_engine::dataset::{Bound, Space};
use pagefold_engine::pool::Pool;

use crate::control::ThinFigures;
use crate::raw::shown;
use crate::units::{FULL_DAYS, PROBLEM_PERCENT};
pub use crate::units::{FULL_PERCENT, hundredths as percent};
use crate::{names, pool_errors, pool_status, units};

/// Shares of a pool's capacity, in per cent; a warning comes once when each is reached.
const STEPS: [u64; 3] = [FULL_PERCENT, 90, PROBLEM_PERCENT];
/// Days until a pool is full; a warning comes once when each is reached. A step is reported again after half as many
/// days more were left.
const DAYS: [u64; 3] = [FULL_DAYS, 7, 2];
/// Distance below a step, in per cent, to which the share has to fall before the step is reported again.
const SLACK: u64 = 2;

/// The last reports about a pool, the quotas of its datasets and errors.
#[derive(Debug, Default)]
pub(crate) struct PoolWatch {
    pool: Fullness,
    quotas: BTreeMap<(u64, Bound), Fullness>,
    /// The minute of the last forecast: it sums up all datasets.
    minute: u64,
    countdown: Countdown,
    promise: Promise,
    errors: pool_errors::ErrorWatch,
    /// Numbers of devices whose files were deleted, as was reported.
    deleted: BTreeSet<u16>,
}

/// The last report about a pool or a quota.
#[derive(Debug, Default)]
struct Fullness {
    /// Number of steps that were reached.
    reached: usize,
}

impl Fullness {
    /// Returns the highest step that is reached, if it was not reached at the last call.
    fn observe(&mut self, used_bytes: u64, capacity_bytes: u64) -> Option<u64> {
        let now = percent(used_bytes, capacity_bytes);
        let reached = STEPS.iter().filter(|step| now >= **step).count();
        let told = STEPS.iter().filter(|step| now + SLACK > **step).count();
        let before = self.reached;
        self.reached = before.min(told).max(reached);
        (reached > before).then(|| STEPS.get(reached - 1).copied()).flatten()
    }
}

/// The last report about the days until a pool is full.
#[derive(Debug, Default)]
struct Countdown {
    /// Number of steps that were reached.
    reached: usize,
}

impl Countdown {
    /// Returns true if fewer days are left than at the last call by a step.
    fn observe(&mut self, days: Option<u64>) -> bool {
        let below = |bound: &dyn Fn(u64) -> u64| {
            DAYS.iter().filter(|step| days.is_some_and(|days| days < bound(**step))).count()
        };
        let (reached, told) = (below(&|step| step), below(&|step| step + step / 2));
        let before = self.reached;
        self.reached = before.min(told).max(reached);
        reached > before
    }
}

/// The last report about a thin capacity.
#[derive(Debug, Default)]
struct Promise {
    is_short: bool,
}

impl Promise {
    /// Returns true if the pool has begun to hold less than was promised.
    fn observe(&mut self, thin: Option<&ThinFigures>) -> bool {
        let before = self.is_short;
        self.is_short =
            thin.is_some_and(|thin| thin.is_short() || (before && thin.holds_bytes < thin.size_bytes));
        self.is_short && !before
    }
}

impl PoolWatch {
    /// Returns a watch that does not report errors that were counted before.
    pub(super) fn new(pool: &Pool) -> Self {
        Self { errors: pool_errors::ErrorWatch::new(pool), ..Self::default() }
    }

    /// Logs what was reached since the last call. The time is `now`, in seconds since 1970.
    pub(super) fn look(&mut self, pool: &Pool, now: u64) {
        self.errors.look(pool);
        self.look_for_deleted(pool);
        pool.note_space(now);
        pool.measure_expansion();
        self.look_ahead(pool, now);
        let Space { capacity_bytes, used_bytes, available_bytes, .. } = pool.space();
        if let Some(step) = self.pool.observe(capacity_bytes.saturating_sub(available_bytes), capacity_bytes)
        {
            let held = pool_status::snapshots(pool);
            let (snapshot_bytes, largest) =
                held.map_or((0, String::new()), |held| (held.bytes, held.largest));
            tracing::warn!(used_bytes, available_bytes, snapshot_bytes, largest, "the pool is {step} % full");
        }
        let quotas = pool.quotas();
        self.quotas
            .retain(|(id, bound), _| quotas.iter().any(|quota| (quota.id, quota.bound) == (*id, *bound)));
        for quota in quotas {
            let (used_bytes, limit_bytes) = (quota.used_bytes, quota.limit_bytes);
            let told = self.quotas.entry((quota.id, quota.bound)).or_default();
            if let Some(step) = told.observe(used_bytes, limit_bytes) {
                let dataset = names::full(pool.name(), &quota.path);
                let property = quota.bound.name();
                tracing::warn!(dataset, property, used_bytes, limit_bytes, "{step} % of a quota are taken");
            }
        }
    }
}

impl PoolWatch {
    /// Logs once that the file of a device was deleted.
    fn look_for_deleted(&mut self, pool: &Pool) {
        let deleted = pool.deleted_devices();
        self.deleted.retain(|told| deleted.iter().any(|(number, _)| number == told));
        for (number, path) in deleted {
            if self.deleted.insert(number) {
                let (device, name) = (shown(&path), pool.name());
                tracing::error!(
                    "{device} {}; put another device in its place before that: pagefold replace {name} {device} DEVICE",
                    pool_status::DELETED
                );
            }
        }
    }

    /// Logs that the pool will soon be full, or holds less than was promised.
    fn look_ahead(&mut self, pool: &Pool, now: u64) {
        if std::mem::replace(&mut self.minute, now / 60) != now / 60 {
            let forecast = pool_status::forecast(pool, now);
            let days = forecast.and_then(|forecast| forecast.full_in_days);
            if let (true, Some(forecast), Some(days)) = (self.countdown.observe(days), forecast, days) {
                let growth_bytes_per_day = forecast.growth_bytes_per_day;
                let days = units::counted(days, "day");
                tracing::warn!(growth_bytes_per_day, "the pool is full in {days} if it grows as it did");
            }
        }
        let thin = pool_status::thin(pool);
        if let (true, Some(thin)) = (self.promise.observe(thin.as_ref()), thin) {
            let ThinFigures { size_bytes, holds_bytes, ratio, .. } = thin;
            tracing::warn!(
                size_bytes,
                holds_bytes,
                "the pool promises {}, and at {ratio:.2}x it holds {}",
                units::size(size_bytes),
                units::size(holds_bytes)
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_step_is_told_once_until_it_is_left() {
        let mut fullness = Fullness::default();
        let mut told = |percent: u64| fullness.observe(10 * percent, 1000);
        assert_eq!([79, 80, 85, 79, 80].map(&mut told), [None, Some(80), None, None, None]);
        assert_eq!([96, 94, 95, 92, 95].map(&mut told), [Some(95), None, None, None, Some(95)]);
        assert_eq!([10, 91].map(&mut told), [None, Some(90)]);
        assert_eq!(percent(1, 0), 100);
    }

    #[test]
    fn each_step_of_days_is_told_once_until_it_is_left() {
        let mut countdown = Countdown::default();
        let mut told = |days: u64| countdown.observe(Some(days));
        assert_eq!(
            [31, 29, 31, 29, 44, 29, 45, 29].map(&mut told),
            [false, true, false, false, false, false, false, true]
        );
        assert_eq!([8, 6, 7, 6, 1, 0].map(&mut told), [false, true, false, false, true, false]);
        // It does not grow any more.
        assert!(!countdown.observe(None) && countdown.observe(Some(0)) && !countdown.observe(Some(3)));
    }

    #[test]
    fn a_broken_promise_is_told_once_until_it_is_kept() {
        let mut promise = Promise::default();
        let thin = |holds_bytes| ThinFigures { size_bytes: 1000, holds_bytes, ..ThinFigures::default() };
        let mut told = |holds| promise.observe(Some(&thin(holds)));
        assert_eq!([1200, 960, 940, 990, 940].map(&mut told), [false, false, true, false, false]);
        assert_eq!([1000, 940].map(&mut told), [false, true]);
        assert!(!promise.observe(None) && !promise.is_short);
    }
}
