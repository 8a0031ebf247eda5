//! Chooses when verbs of mirrors come, and the trouble that may strike in the middle of them.

use pagefold_engine::Key;

use super::writer::trouble_soon;
use super::{Act, Fill, Step, Theme, record_size};
use crate::random::Random;

/// Chance in per cent that a verb comes after a step, and that trouble comes before it.
const VERB_PERCENT: u64 = 20;
const TROUBLE_PERCENT: u64 = 50;
/// Most writes and flushes of all devices between the beginning of a verb and a power cut of all of them.
const CALLS_MAX: u64 = 600;

/// Chance in per cent that changes come in the middle of a verb, and the largest number of pauses of it before they do.
const BESIDE_PERCENT: u64 = 75;
const PAUSES_MAX: u64 = 5;
/// Number of pages and values that they change.
const BESIDE_SPAN: u64 = 64;

/// Returns the steps with changes in the middle of verbs. They have a sequence of their own.
pub(super) fn with_beside(seed: u64, steps: Vec<Step>) -> Vec<Step> {
    let mut random = Random::new(seed ^ 0x0BE5_1DE5);
    let mut one = |step| match step {
        Step::Verb { pick } if random.percent(BESIDE_PERCENT) => {
            let pauses = random.below(PAUSES_MAX);
            let mut steps = Vec::new();
            for _ in 0..random.within(1, 3) {
                steps.push(Step::Apply(vec![small_act(&mut random)]));
                let next = [Step::Commit, Step::Sync, Step::Checkpoint, Step::Sync];
                steps.extend(next.get(random.below(5) as usize).cloned());
            }
            Step::Beside { pick, pauses, steps }
        }
        step => step,
    };
    steps.into_iter().map(&mut one).collect()
}

fn small_act(random: &mut Random) -> Act {
    if random.percent(40) {
        let key = Key::new(1, 2, random.below(BESIDE_SPAN));
        return Act::Put { key, len: random.skewed(300), seed: random.bits() };
    }
    let size = u64::from(record_size(2));
    let offset = random.below(BESIDE_SPAN) * size;
    Act::Write { object: 2, offset, len: size * random.within(1, 8), fill: Fill::Rows, seed: random.bits() }
}

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
