//! Warns when a pool or a quota fills up, and reports errors that were met.

use std::collections::BTreeMap;

use pagefold_engine::dataset::{Bound, Space};
use pagefold_engine::pool::Pool;

pub use crate::units::{FULL_PERCENT, hundredths as percent};
use crate::{names, pool_errors, pool_status};

/// Shares of a pool's capacity, in per cent; a warning comes once when each is reached.
const STEPS: [u64; 3] = [FULL_PERCENT, 90, 95];
/// Distance below a step, in per cent, to which the share has to fall before the step is reported again.
const SLACK: u64 = 2;

/// The last reports about a pool, the quotas of its datasets and errors.
#[derive(Debug, Default)]
pub(crate) struct PoolWatch {
    pool: Fullness,
    quotas: BTreeMap<(u64, Bound), Fullness>,
    errors: pool_errors::ErrorWatch,
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

impl PoolWatch {
    /// Returns a watch that does not report errors that were counted before.
    pub(super) fn new(pool: &Pool) -> Self {
        Self { errors: pool_errors::ErrorWatch::new(pool), ..Self::default() }
    }

    /// Logs what was reached since the last call.
    pub(super) fn look(&mut self, pool: &Pool) {
        self.errors.look(pool);
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
}
