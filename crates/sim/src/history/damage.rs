//! Chooses when devices are damaged.

use super::Step;
use crate::random::Random;

/// Chance in per cent that damage comes after a step.
const DAMAGE_PERCENT: u64 = 8;

/// Returns the steps with damage between them, and once behind them. It has a sequence of its own.
pub(super) fn with_damage(seed: u64, steps: Vec<Step>) -> Vec<Step> {
    let mut random = Random::new(seed ^ 0x0DA4_A6ED);
    let mut all = Vec::with_capacity(steps.len() + steps.len() / 8 + 1);
    for step in steps {
        all.push(step);
        if random.percent(DAMAGE_PERCENT) {
            all.push(Step::Damage { pick: random.bits() });
        }
    }
    all.push(Step::Damage { pick: random.bits() });
    all
}
