use proptest::prelude::*;

use super::*;

const START: u64 = 1_795_266_000;
const GIB: u64 = 1 << 30;

fn sample(time: u64, used_bytes: u64) -> SpaceSample {
    SpaceSample { time, used_bytes, logical_bytes: used_bytes * 3 }
}

/// History of a pool that is looked at every ten minutes from `START` on, for `hours`, and holds what `used` says.
fn history(hours: u64, used: impl Fn(u64) -> u64) -> (SpaceHistory, SpaceSample) {
    let mut history = SpaceHistory::default();
    let mut now = sample(START, used(0));
    for minute in (0..=hours * 60).step_by(10) {
        now = sample(START + minute * 60, used(minute / 60));
        history.observe(now);
    }
    (history, now)
}

fn days(forecast: Option<Forecast>) -> Option<u64> {
    match forecast?.outlook {
        Outlook::Full { days } => Some(days),
        Outlook::Still => None,
    }
}

#[test]
fn a_steady_growth_is_told_to_the_day() {
    // 24 GiB a day.
    for (hours, over) in [(24, 24), (100, 48), (24 * 10, 24 * 10), (24 * 90, 24 * 28)] {
        let (history, now) = history(hours, |hour| (100 + hour) * GIB);
        let forecast = history.forecast(now, now.used_bytes + 24 * 12 * GIB).unwrap();
        assert_eq!(forecast.outlook, Outlook::Full { days: 12 }, "{hours} hours");
        let day = i64::try_from(24 * GIB).unwrap();
        assert_eq!((forecast.growth_bytes, forecast.logical_growth_bytes), (day, 3 * day));
        assert_eq!(forecast.over_seconds, over * HOUR_SECONDS);
    }
}

#[test]
fn no_forecast_without_a_day_of_history() {
    assert_eq!(SpaceHistory::default().forecast(sample(START, GIB), 2 * GIB), None);
    let (history, now) = history(23, |hour| hour * GIB);
    assert_eq!(history.forecast(now, 100 * GIB), None);
}

#[test]
fn still_and_shrinking_pools_are_never_full() {
    for used in [|_| 5 * GIB, |hour| 900 * GIB - hour * GIB, |hour| 5 * GIB + hour] {
        let (history, now) = history(24 * 30, used);
        assert_eq!(history.forecast(now, 1000 * GIB).unwrap().outlook, Outlook::Still);
    }
}

/// Dumps that are made in the course of a day and deleted at its end.
#[test]
fn tides_are_no_trend() {
    let (history, now) = history(24 * 30, |hour| 500 * GIB + hour % 24 * 10 * GIB);
    assert_eq!(days(history.forecast(now, 800 * GIB)), None);
}

/// It grows by a GiB an hour, and once 400 GiB of snapshots are destroyed.
#[test]
fn what_is_freed_at_once_does_not_turn_the_trend() {
    for freed in [24 * 4, 24 * 28, 24 * 29] {
        let used = |hour| 1000 * GIB + hour * GIB - if hour >= freed { 400 * GIB } else { 0 };
        let (history, now) = history(24 * 30, used);
        let told = days(history.forecast(now, now.used_bytes + 24 * 20 * GIB)).unwrap();
        assert!((20..40).contains(&told), "{told} days, freed after {freed} hours");
    }
}

#[test]
fn more_room_is_more_time() {
    let (history, now) = history(24 * 10, |hour| (100 + hour) * GIB);
    let told = |limit| days(history.forecast(now, limit));
    assert_eq!(told(now.used_bytes), Some(0));
    assert_eq!(told(0), Some(0), "a group was removed, and nothing is left");
    assert_eq!(told(now.used_bytes + 240 * GIB), Some(10));
    assert_eq!(told(now.used_bytes + 480 * GIB), Some(20));
    assert_eq!(told(u64::MAX), None);
}

/// Nobody has written while the pool was not mounted.
#[test]
fn a_gap_counts_as_rest() {
    let (mut history, now) = history(24 * 10, |hour| (100 + hour) * GIB);
    let later = SpaceSample { time: now.time + 28 * DAY_SECONDS, ..now };
    history.observe(later);
    assert_eq!(history.forecast(later, 10_000 * GIB).unwrap().growth_bytes, 0);
}

#[test]
fn an_idle_pool_is_sampled_once_a_day() {
    let (history, _) = history(24 * 5, |_| GIB);
    assert_eq!(history.samples().len(), 6);
}

#[test]
fn clocks_that_jump_leave_the_history_whole() {
    let (before, now) = history(24 * 10, |hour| (100 + hour) * GIB);
    let mut history = before.clone();
    // It was never set, as on a machine without a battery.
    assert!(!history.observe(sample(0, 5)) && !history.wants(1000));
    // It was ten years ahead for a while.
    for hour in 0..5 {
        let ahead = now.time + 3650 * DAY_SECONDS + hour * HOUR_SECONDS;
        assert!(history.observe(sample(ahead, now.used_bytes + hour)));
    }
    assert_eq!(history.forecast(now, 1000 * GIB), before.forecast(now, 1000 * GIB), "they are not looked at");
    let next = sample(now.time + HOUR_SECONDS, now.used_bytes + GIB);
    assert!(history.wants(next.time) && history.observe(next));
    assert_eq!(history.samples().last(), Some(&next));
    assert!(history.samples().iter().all(|sample| sample.time <= next.time));
    let told = history.forecast(next, 1000 * GIB).unwrap();
    assert_eq!(told.growth_bytes, i64::try_from(24 * GIB).unwrap());
}

fn samples() -> impl Strategy<Value = Vec<SpaceSample>> {
    let one = (0..200 * DAY_SECONDS, any::<u64>(), any::<u64>());
    let one = one.prop_map(|(time, used_bytes, logical_bytes)| SpaceSample {
        time: START + time,
        used_bytes,
        logical_bytes,
    });
    proptest::collection::vec(one, 0..300)
}

proptest! {
    /// Whatever the clock and the pool do, the rules hold, and what is stored is read again.
    #[test]
    fn samples_are_bounded_and_in_order(mut samples in samples(), is_sorted: bool, limit: u64) {
        if is_sorted {
            samples.sort_by_key(|sample| sample.time);
        }
        let mut history = SpaceHistory::default();
        for now in samples {
            history.observe(now);
            let kept = history.samples();
            prop_assert!(kept.len() <= HOURLY_MAX + DAILY_MAX);
            prop_assert!(kept.is_sorted_by(|a, b| a.time < b.time));
            prop_assert!(kept.last().is_none_or(|last| last.time <= now.time));
            let told = history.forecast(now, limit);
            if let Some(Forecast { growth_bytes, outlook: Outlook::Full { days }, .. }) = told {
                prop_assert!(growth_bytes > 0 && days <= 3650);
                let growth = growth_bytes.unsigned_abs();
                prop_assert!(days.saturating_mul(growth) <= limit.saturating_sub(now.used_bytes));
            }
        }
        prop_assert_eq!(SpaceHistory::decode(&history.encode()).unwrap(), history);
    }

    /// A sixth of the days may be anything.
    #[test]
    fn odd_days_do_not_turn_the_trend(odd in proptest::collection::vec((0..28_u64, any::<u32>()), 0..5)) {
        let used = |day: u64| {
            let odd = odd.iter().find(|(of, _)| *of == day);
            odd.map_or((1000 + day) << 20, |(_, bytes)| u64::from(*bytes))
        };
        let mut history = SpaceHistory::default();
        let mut now = sample(START, used(0));
        for day in 0..=28 {
            now = sample(START + day * DAY_SECONDS, used(day));
            history.observe(now);
        }
        let growth = history.forecast(now, u64::MAX).unwrap().growth_bytes;
        prop_assert!(growth > 0, "{growth}");
    }

    #[test]
    fn hostile_bytes_are_errors(bytes: Vec<u8>) {
        if let Ok(history) = SpaceHistory::decode(&bytes) {
            prop_assert!(history.samples().len() * 3 < bytes.len());
            history.forecast(SpaceSample { time: u64::MAX, ..SpaceSample::default() }, 1);
        }
    }
}
