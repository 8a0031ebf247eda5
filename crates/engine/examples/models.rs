//! The size to which a pool brings relation files with `compression=page`: `models FILE...`.
//!
//! Each file is written as an object of a pool in memory, as a bulk load does, learning as the background would; then
//! once more, by the models that there are by then. Prints models, times and ratios, all metadata counted, and compares
//! every byte.
#![allow(clippy::print_stdout, reason = "it is for people")]

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pagefold_engine::dataset::Change;
use pagefold_engine::device::{Device, SimDevice};
use pagefold_engine::pool::{CreateOptions, Guid, LearnOptions, OpenOptions, Pool, create_on};

const PAGE: u64 = 8192;
/// Learning is tried after so many bytes.
const STEP: usize = 1 << 20;

type ExampleResult<T = ()> = Result<T, Box<dyn Error>>;

/// Writes `bytes` to `object`; returns the time for writing, and that for learning.
fn write(pool: &Pool, object: u64, bytes: &[u8]) -> ExampleResult<(Duration, Duration)> {
    let (mut writing, mut learning) = (Duration::ZERO, Duration::ZERO);
    for (at, data) in (0_u64..).zip(bytes.chunks(STEP)) {
        let begun = Instant::now();
        let change = Change::Write { object, record_size: PAGE as u32, offset: at * STEP as u64, data };
        pool.dataset().apply(&[change])?;
        pool.sync()?;
        writing += begun.elapsed();
        let begun = Instant::now();
        pool.learn(&LearnOptions::default())?;
        learning += begun.elapsed();
        pool.maintain()?;
    }
    Ok((writing, learning))
}

fn compare(pool: &Pool, object: u64, bytes: &[u8]) -> ExampleResult<Duration> {
    let begun = Instant::now();
    let mut found = vec![0; PAGE as usize];
    for (at, page) in (0_u64..).zip(bytes.chunks(PAGE as usize)) {
        let found = &mut found[..page.len()];
        pool.dataset().read(object, PAGE as u32, at * PAGE, found)?;
        if found != page {
            return Err(format!("page {at} of object {object} differs").into());
        }
    }
    Ok(begun.elapsed())
}

fn main() -> ExampleResult {
    let mut total = (0, [0_u64; 2]);
    println!("file MiB ratio-first ratio-again models learning-s write-us/page read-us/page");
    for path in std::env::args().skip(1) {
        let bytes = std::fs::read(&path)?;
        let device_bytes = (256 << 20) + 3 * bytes.len() as u64;
        let devices = vec![Arc::new(SimDevice::new(device_bytes, 1)) as Arc<dyn Device>];
        let options = CreateOptions { force: false, created: 0, guid: Guid(*b"pool with models") };
        create_on("tank", &devices, &options)?;
        let pool = Pool::open_on(devices, &OpenOptions::default())?;
        pool.set_compression("page".parse()?);
        let pages = bytes.len().div_ceil(PAGE as usize).max(1) as f64;
        let mut rounds = [(0, (Duration::ZERO, Duration::ZERO)); 2];
        for (at, round) in rounds.iter_mut().enumerate() {
            round.1 = write(&pool, 5, &bytes)?;
            pool.checkpoint(false)?;
            round.0 = pool.status().used_bytes;
            total.1[at] += round.0;
        }
        let [(first_used, first), (used, again)] = rounds;
        total.0 += bytes.len() as u64;
        let reading = compare(&pool, 5, &bytes)?;
        println!(
            "{} {:.1} {:.2} {:.2} {} {:.2} {:.1} {:.1}",
            path.rsplit('/').next().unwrap_or_default(),
            bytes.len() as f64 / f64::from(1 << 20),
            bytes.len() as f64 / first_used as f64,
            bytes.len() as f64 / used as f64,
            pool.status().models,
            (first.1 + again.1).as_secs_f64(),
            again.0.as_secs_f64() * 1e6 / pages,
            reading.as_secs_f64() * 1e6 / pages,
        );
    }
    let ratio = |used: u64| total.0 as f64 / used.max(1) as f64;
    println!("all: {:.2} written once, {:.2} written again", ratio(total.1[0]), ratio(total.1[1]));
    Ok(())
}
