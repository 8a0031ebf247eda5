use std::sync::Arc;

use crate::history::{DAY_SECONDS, HOUR_SECONDS, Outlook};
use crate::pool::Pool;
use crate::pool::testing::{PAGE, fresh, open, write};

const START: u64 = 1_795_266_000;

/// Takes a sample for each of `hours`, in each of which some pages are written.
fn grow(pool: &Pool, hours: std::ops::Range<u64>) {
    for hour in hours {
        write(pool, hour * 8..hour * 8 + 8, hour);
        pool.note_space(START + hour * HOUR_SECONDS);
    }
}

fn times(pool: &Pool) -> Vec<u64> {
    pool.space_history().samples().iter().map(|sample| (sample.time - START) / HOUR_SECONDS).collect()
}

#[test]
fn samples_outlive_crashes_and_exports() {
    let (device, pool) = fresh();
    grow(&pool, 0..3);
    pool.store_history().unwrap();
    // This one is not logged, and no checkpoint follows.
    grow(&pool, 3..4);
    assert_eq!(times(&pool), [0, 1, 2, 3]);
    drop(pool);
    let pool = open(&device);
    assert_eq!(times(&pool), [0, 1, 2]);
    grow(&pool, 4..5);
    pool.checkpoint(false).unwrap();
    drop(pool);
    let pool = open(&device);
    assert_eq!(times(&pool), [0, 1, 2, 4]);
    grow(&pool, 5..6);
    pool.export().unwrap();
    drop(pool);
    let pool = open(&device);
    assert_eq!(times(&pool), [0, 1, 2, 4, 5]);
    let report = pool.check_open(&mut |_| {});
    assert!(report.messages.is_empty(), "{:?}", report.messages);
}

#[test]
fn nothing_is_logged_without_a_new_sample() {
    let (_device, pool) = fresh();
    grow(&pool, 0..1);
    pool.store_history().unwrap();
    let batch = pool.status().next_batch;
    pool.note_space(START + HOUR_SECONDS);
    pool.store_history().unwrap();
    assert_eq!(pool.status().next_batch, batch, "nothing has changed in this hour");
}

#[test]
fn the_forecast_goes_on_in_the_next_opening() {
    let (device, pool) = fresh();
    grow(&pool, 0..20);
    pool.export().unwrap();
    drop(pool);
    let pool = open(&device);
    assert_eq!(pool.forecast(START + 19 * HOUR_SECONDS), None);
    grow(&pool, 20..30);
    let now = START + 29 * HOUR_SECONDS;
    let told = pool.forecast(now).unwrap();
    let written = i64::from(PAGE) * 8 * 24;
    assert!(told.logical_growth_bytes > written - written / 50, "{told:?}");
    assert!(matches!(told.outlook, Outlook::Full { days } if days > 10), "{told:?}");
    // Half of the rest is reserved for somebody.
    let left = pool.status().available_bytes;
    pool.create_dataset("db", 1).unwrap();
    pool.set_property_of("db", "reservation", Some(&(left / 2).to_string())).unwrap();
    let less = pool.forecast(now).unwrap();
    let days = |outlook| match outlook {
        Outlook::Full { days } => days,
        Outlook::Still => u64::MAX,
    };
    assert!(days(less.outlook) <= days(told.outlook) / 2 + 1, "{told:?} {less:?}");
    // It rests for a month.
    pool.note_space(now + 30 * DAY_SECONDS);
    assert_eq!(pool.forecast(now + 30 * DAY_SECONDS).unwrap().outlook, Outlook::Still);
}

#[test]
fn a_pool_that_is_only_read_takes_no_samples() {
    let (device, pool) = fresh();
    grow(&pool, 0..2);
    pool.export().unwrap();
    drop(pool);
    let options = crate::pool::OpenOptions { read_only: true, ..Default::default() };
    let pool = Pool::open_on(vec![Arc::clone(&device) as Arc<dyn crate::device::Device>], &options).unwrap();
    pool.note_space(START + 10 * HOUR_SECONDS);
    assert_eq!(times(&pool), [0, 1]);
}
