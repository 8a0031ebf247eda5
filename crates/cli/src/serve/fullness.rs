//! Tells when a pool fills up.

use pagefold_engine::dataset::Space;

/// Shares of a pool's capacity, in parts of a hundred, from each of which on it is told once.
const STEPS: [u64; 3] = [80, 90, 95];
/// Share of a pool's capacity from which on `status` tells.
pub const FULL_PERCENT: u64 = STEPS[0];
/// So far, in parts of a hundred, it has to fall below a step before that is told again.
const SLACK: u64 = 2;

/// What was told last.
#[derive(Debug, Default)]
pub struct Fullness {
    /// Steps that were reached.
    reached: usize,
}

/// Stored and reserved bytes, in parts of a hundred of what the pool can hold.
pub fn percent(used_bytes: u64, capacity_bytes: u64) -> u64 {
    let percent = u128::from(used_bytes) * 100 / u128::from(capacity_bytes.max(1));
    u64::try_from(percent).unwrap_or(u64::MAX)
}

impl Fullness {
    /// The step that has been reached since the last call, if one was.
    pub(super) fn observe(&mut self, space: &Space) -> Option<u64> {
        let now = percent(space.capacity_bytes.saturating_sub(space.available_bytes), space.capacity_bytes);
        let reached = STEPS.iter().filter(|step| now >= **step).count();
        let told = STEPS.iter().filter(|step| now + SLACK > **step).count();
        let before = self.reached;
        self.reached = before.min(told).max(reached);
        (reached > before).then(|| STEPS.get(reached - 1).copied()).flatten()
    }

    /// As [`Fullness::observe`], into the log.
    pub(super) fn watch(&mut self, space: &Space) {
        let Some(step) = self.observe(space) else { return };
        let (used_bytes, available_bytes) = (space.used_bytes, space.available_bytes);
        tracing::warn!(used_bytes, available_bytes, "the pool is {step} % full");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_step_is_told_once_until_it_is_left() {
        let mut fullness = Fullness::default();
        let mut told = |percent: u64| {
            fullness.observe(&Space {
                capacity_bytes: 1000,
                available_bytes: 1000 - 10 * percent,
                ..Space::default()
            })
        };
        assert_eq!([79, 80, 85, 79, 80].map(&mut told), [None, Some(80), None, None, None]);
        assert_eq!([96, 94, 95, 92, 95].map(&mut told), [Some(95), None, None, None, Some(95)]);
        assert_eq!([10, 91].map(&mut told), [None, Some(90)]);
        assert_eq!(percent(1, 0), 100);
    }
}
