//! Runs a slice of the simulation that every test run can afford; `make sim` runs more.
#![allow(clippy::panic, reason = "helpers of tests")]

use std::time::{Duration, Instant};

use pagefold_sim::flips::{Fate, Fates, PoolImage};
use pagefold_sim::history::{History, Theme};
use pagefold_sim::random::Random;
use pagefold_sim::run::{Stats, run};

/// Time after which no further history is begun.
const BUDGET: Duration = Duration::from_secs(30);

fn slice(seeds: std::ops::Range<u64>, theme: Theme, images: usize) -> Stats {
    slice_of(seeds, images, &|history| history.theme == theme)
}

fn slice_of(seeds: std::ops::Range<u64>, images: usize, is_wanted: &dyn Fn(&History) -> bool) -> Stats {
    slice_as(seeds, images, &|history| is_wanted(&history).then_some(history))
}

fn slice_as(
    seeds: std::ops::Range<u64>,
    images: usize,
    prepared: &dyn Fn(History) -> Option<History>,
) -> Stats {
    let started = Instant::now();
    let mut stats = Stats::default();
    let histories = seeds.map(|seed| History { images, ..History::new(seed) });
    for history in histories.filter_map(prepared) {
        if started.elapsed() > BUDGET / 3 && stats.applies > 0 {
            break;
        }
        match run(&history) {
            Ok(one) => stats.add(&one),
            Err(failure) => panic!(
                "seed {} fails at step {}: {}; `make sim SEEDS=1 SEED={0} IMAGES={images}` shrinks it",
                history.seed, failure.step, failure.what
            ),
        }
    }
    assert!(stats.applies > 0, "no history did anything");
    stats
}

#[test]
fn power_cuts_leave_a_prefix() {
    assert!(slice(1_000..1_060, Theme::Crash, 0).crashes > 0);
}

#[test]
fn power_cuts_in_the_middle_of_steps_leave_a_prefix() {
    let Stats { images, crashes, .. } = slice(4_000..4_100, Theme::Crash, 3);
    assert!(images > 10 * crashes, "only {images} images were judged");
}

#[test]
fn failing_calls_are_never_acknowledged() {
    assert!(slice(2_000..2_100, Theme::Faults, 0).failed > 0);
}

#[test]
fn verbs_of_mirrors_lose_nothing_and_come_to_an_end() {
    let stats = slice_of(1..600, 0, &|history| history.verbs);
    assert!(stats.attached > stats.replacing && stats.split > 0 && stats.alone > 0, "{stats:?}");
}

#[test]
fn changes_in_the_middle_of_verbs_are_kept() {
    let stats = slice_as(1..600, 0, &|history| history.verbs.then(|| history.with_beside()));
    assert!(stats.beside > 0 && stats.attached > 0, "{stats:?}");
}

#[test]
fn what_is_damaged_on_one_device_of_a_mirror_is_read_from_the_other_and_mended() {
    let stats = slice_as(1..600, 0, &|history| (history.copies > 1).then(|| history.with_damage()));
    assert!(stats.mended > 0, "{stats:?}");
}

#[test]
fn what_is_damaged_on_a_log_device_is_not_missing_without_a_word() {
    let stats = slice_as(1..600, 0, &|history| history.log_device.then(|| history.with_damage()));
    assert!(stats.log_damaged > 0, "{stats:?}");
}

/// After failed flushes of labels a pool had none that could be read any more (the first two), or an older device took the
/// place of one that had none (the third). In the last one the model took changes for committed that were not, since
/// another step of upkeep had succeeded.
#[test]
fn verbs_of_mirrors_survive_failing_calls() {
    for seed in [46_913, 47_758, 50_696, 46_538] {
        assert!(slice_of(seed..seed + 1, 0, &|history| history.verbs).crashes > 0);
    }
}

/// Replay of this history once never ended: leaves that were read ahead drove one another out of a tiny cache.
#[test]
fn replay_ends_where_leaves_do_not_fit_the_cache() {
    assert!(slice(226..227, Theme::Aged, 0).opens > 0);
}

#[test]
fn flipped_bits_never_lie() {
    assert!(slice(3_000..3_100, Theme::Flips, 0).opens > 0);
}

#[test]
fn a_flipped_bit_in_an_image_is_harmless_or_told() {
    let started = Instant::now();
    let mut fates = Fates::default();
    for seed in 1.. {
        if started.elapsed() > BUDGET / 3 && seed > 2 {
            break;
        }
        let image = PoolImage::new(seed).unwrap_or_else(|what| panic!("image {seed}: {what}"));
        assert_eq!(image.try_whole(), Ok(Fate::Harmless), "image {seed}");
        let mut random = Random::new(seed);
        for _ in 0..40 {
            let flip = image.choose(&mut random);
            match image.try_flip(flip) {
                Ok(fate) => fates.count(fate),
                Err(what) => panic!("image {seed}, {flip:?}: {what}"),
            }
        }
    }
    assert!(fates.reported > 0 && fates.corrected > 0, "no bit struck anything: {fates:?}");
}
