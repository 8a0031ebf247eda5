use std::collections::VecDeque;

use super::*;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const PAGE: u64 = 8 * KIB;
const LOW: u64 = 6 * MIB;

fn left(spare_bytes: u64) -> Left {
    Left { spare_bytes, low_bytes: LOW }
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Returns a pace that has measured a pass of 16 MiB, which `took` that long.
fn measured(took: Duration) -> Pace {
    let mut pace = Pace::default();
    pace.begin(Duration::ZERO, 16 * MIB);
    pace.gained(took);
    pace
}

/// Result of a simulation of writers and a cleaner.
#[derive(Debug, Default)]
struct Simulated {
    written_bytes: u64,
    /// Longest delay of a single write.
    longest: Duration,
    /// Number of writes that found no room although they had been delayed.
    without_room: u64,
}

/// Simulates `writers` that write as fast as they may, each `bytes` at once, for a minute. Meanwhile each pass of the
/// cleaner takes as long as `took` returns, and gains 8 MiB. Each byte that is written takes one and a quarter bytes of
/// the room.
fn simulate(pace: &mut Pace, writers: usize, bytes: u64, took: &mut dyn FnMut() -> Duration) -> Simulated {
    let (mut now, end) = (ms(1_000), ms(61_000));
    let mut spare = LOW;
    let mut outcome = Simulated::default();
    let mut gain_at = None;
    // The times at which the writers come again, ascending.
    let mut ready: VecDeque<Duration> = vec![now; writers].into();
    while now < end {
        if gain_at.is_none() && spare < LOW {
            pace.begin(now, 16 * MIB);
            gain_at = Some(now + took());
        }
        let gain = gain_at.unwrap_or(Duration::MAX);
        now = now.max(ready.pop_front().unwrap());
        let cost = pace.cost(now, bytes, left(spare));
        outcome.longest = outcome.longest.max(cost);
        now += cost;
        let takes = bytes * 5 / 4;
        if now < gain && spare < takes {
            outcome.without_room += 1;
            now = gain;
        }
        if now >= gain {
            now = gain;
            gain_at = None;
            pace.gained(now);
            spare += 8 * MIB;
        }
        spare -= takes;
        outcome.written_bytes += bytes;
        // A write takes ten microseconds, too.
        ready.push_back(now + Duration::from_micros(10));
    }
    outcome
}

#[test]
fn nobody_waits_where_there_is_room_or_nothing_to_wait_for() {
    let mut pace = measured(ms(500));
    assert!(pace.cost(ms(600), PAGE, left(LOW)).is_zero());
    assert!(pace.cost(ms(600), PAGE, left(u64::MAX)).is_zero());
    assert!(!pace.cost(ms(600), PAGE, left(LOW / 2)).is_zero());
    pace.idle();
    assert!(pace.cost(ms(600), PAGE, left(0)).is_zero());
    let throttle = Throttle::default();
    throttle.wait(PAGE, || left(0));
    throttle.begin(1);
    throttle.gained();
}

#[test]
fn the_delay_grows_from_nothing_without_a_cliff() {
    let pace = measured(ms(2_000));
    let costs: Vec<Duration> =
        (0..=LOW / PAGE).rev().map(|pages| pace.cost(ms(3_000), PAGE, left(pages * PAGE))).collect();
    assert!(costs[0].is_zero() && costs[1] < Duration::from_micros(50), "{:?}", &costs[..2]);
    assert!(costs.is_sorted() && costs[costs.len() - 1] == DELAY_MAX);
    // Until an eighth of the room is left, no delay is more than a quarter longer than the one before, except for the
    // first few, which are near nothing.
    let steep = costs.windows(2).take(costs.len() / 8 * 7).skip(8).find(|two| two[1] > two[0] * 5 / 4);
    assert_eq!(steep, None);
}

#[test]
fn writers_keep_to_what_is_gained_however_many_they_are() {
    for took in [ms(50), ms(400), ms(3_000)] {
        for (writers, bytes) in [(1, PAGE), (16, PAGE), (200, PAGE), (4, MIB)] {
            let outcome = simulate(&mut measured(took), writers, bytes, &mut || took);
            let told = format!("{took:?}, {writers} writers of {bytes}: {outcome:?}");
            // Bytes that passes gain in a minute; four bytes written take five.
            let gained = (60_000 / took.as_millis() as u64) * 8 * MIB / 5 * 4;
            assert!(outcome.written_bytes > gained / 10 * 8, "{told}, {gained} were gained");
            assert!(outcome.longest <= Pace::most(bytes), "{told}");
            if bytes == PAGE {
                assert_eq!(outcome.without_room, 0, "{told}");
            }
        }
    }
}

#[test]
fn nobody_comes_to_the_end_where_passes_are_late() {
    let mut random = 88_172_645_463_325_252_u64;
    let mut took = || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        ms(400 + random % 1_200)
    };
    let outcome = simulate(&mut measured(ms(500)), 8, PAGE, &mut took);
    assert_eq!(outcome.without_room, 0, "{outcome:?}");
    assert!(outcome.longest <= DELAY_MAX && outcome.written_bytes > 100 * MIB, "{outcome:?}");
}

#[test]
fn who_waits_goes_on_when_room_is_gained() {
    let throttle = std::sync::Arc::new(Throttle::default());
    throttle.start();
    // As far as the pace knows, passes take an hour.
    *throttle.pace.lock() = Some(measured(Duration::from_secs(3_600)));
    throttle.begin(16 * MIB);
    let waiter = {
        let throttle = std::sync::Arc::clone(&throttle);
        std::thread::spawn(move || throttle.wait(1 << 30, || left(0)))
    };
    // A gain that comes before the thread waits ends no wait, so gains are repeated.
    while !waiter.is_finished() {
        throttle.gained();
        std::thread::yield_now();
    }
    waiter.join().unwrap();
    throttle.stop();
    throttle.wait(1 << 30, || left(0));
}
