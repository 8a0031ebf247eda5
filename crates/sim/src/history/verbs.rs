//! Chooses when verbs of mirrors come, and the trouble that may strike in the middle of them.

use super::writer::trouble_soon;
use super::{Step, Theme};
use crate::random::Random;

/// Chance in per cent that a verb comes after a step, and that trouble comes before it.
const VERB_PERCENT: u64 = 20;
const TROUBLE_PERCENT: u64 = 50;
/// Most writes and flushes of all devices between the beginning of a verb and a power cut of all of them.
const CALLS_MAX: u64 = 600;

/// Returns the steps with verbs between them. They have a sequence of their own.
pub(super) fn with_verbs(seed: u64, theme: Theme, devices: u64, steps: Vec<Step>) -> Vec<Step> {
    let mut random = Random::new(seed ^ 0x0_7E4B);
    let mut all = Vec::with_capacity(2 * steps.len());
    for step in steps {
        all.push(step);
        if !random.percent(VERB_PERCENT) {
            continue;
        }
        if random.percent(TROUBLE_PERCENT) {
            let device = random.below(devices);
            match random.percent(60) {
                true => all.push(Step::Blackout { calls: random.skewed(CALLS_MAX) }),
                false => all.extend(trouble_soon(&mut random, theme, device)),
            }
        }
        all.push(Step::Verb { pick: random.bits() });
    }
    all
}
