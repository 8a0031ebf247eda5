//! A slice of the simulation that every test run affords; `make sim` runs more.
#![allow(clippy::panic, reason = "helpers of tests")]

use std::time::{Duration, Instant};

use pagefold_sim::history::{History, Theme};
use pagefold_sim::run::{Stats, run};

/// Time after which no further history is begun.
const BUDGET: Duration = Duration::from_secs(30);

fn slice(seeds: std::ops::Range<u64>, theme: Theme) -> Stats {
    let started = Instant::now();
    let mut stats = Stats::default();
    for history in seeds.map(History::new).filter(|history| history.theme == theme) {
        if started.elapsed() > BUDGET / 3 && stats.applies > 0 {
            break;
        }
        match run(&history) {
            Ok(one) => stats.add(&one),
            Err(failure) => panic!(
                "seed {} fails at step {}: {}; `make sim SEEDS=1 SEED={0}` shrinks it",
                history.seed, failure.step, failure.what
            ),
        }
    }
    assert!(stats.applies > 0, "no history did anything");
    stats
}

#[test]
fn power_cuts_leave_a_prefix() {
    assert!(slice(1_000..1_060, Theme::Crash).crashes > 0);
}

#[test]
fn failing_calls_are_never_acknowledged() {
    assert!(slice(2_000..2_100, Theme::Faults).failed > 0);
}

#[test]
fn flipped_bits_never_lie() {
    assert!(slice(3_000..3_100, Theme::Flips).opens > 0);
}
