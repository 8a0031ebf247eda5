//! How fast the engine is by itself, without a kernel in between.
//!
//! `cargo run --release -p pagefold-engine --example engine_speed -- FILE [compression]`: makes a pool of 4 GiB in FILE
//! (which must not exist), and prints rates.
#![allow(clippy::unwrap_used, reason = "a tool for developers")]

#[allow(dead_code, reason = "not every example needs all of it")]
mod common;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::{PAGE, rows};
use pagefold_engine::dataset::Change;
use pagefold_engine::device::create_file_device;
use pagefold_engine::pool::{CreateOptions, Guid, OpenOptions, Pool, create};

const PAGES: u64 = 128 << 10;

fn timed(name: &str, threads: u64, run: impl Fn(u64, &AtomicU64) + Sync) {
    let done = AtomicU64::new(0);
    let start = Instant::now();
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (run, done) = (&run, &done);
            scope.spawn(move || run(thread, done));
        }
    });
    let seconds = start.elapsed().as_secs_f64();
    let rate = done.load(Ordering::Relaxed) as f64 / seconds;
    println!(
        "{name:40} {rate:12.0}/s {:10.2} us {:9.1} MB/s",
        1e6 * threads as f64 / rate,
        rate * PAGE as f64 / 1e6
    );
}

fn main() {
    let mut args = std::env::args().skip(1);
    let path = PathBuf::from(args.next().unwrap());
    let compression = args.next().unwrap_or_else(|| "auto".into());
    create_file_device(&path, 4 << 30).unwrap();
    create(
        "speed",
        std::slice::from_ref(&path),
        &CreateOptions { force: false, created: 0, guid: Guid([7; 16]) },
    )
    .unwrap();
    let options = OpenOptions { cache_bytes: 2 << 30, log_bytes: Some(1 << 30), ..OpenOptions::default() };
    let pool = Pool::open(std::slice::from_ref(&path), &options).unwrap();
    pool.set_compression(compression.parse().unwrap());
    let background = pool.run().unwrap();
    let dataset = pool.dataset();
    let batch: Vec<Vec<u8>> = (0..PAGES / 16).map(rows).collect();
    let write = |at: u64, data: &[u8]| {
        let offset = at * PAGE as u64;
        dataset.apply(&[Change::Write { object: 5, record_size: PAGE as u32, offset, data }]).unwrap();
    };
    timed("sequential write, then sync", 1, |_, done| {
        for at in 0..PAGES {
            write(at, &batch[(at % (PAGES / 16)) as usize]);
            done.fetch_add(1, Ordering::Relaxed);
        }
        pool.sync().unwrap();
    });
    let status = pool.status();
    println!("ratio {:.2}", status.logical_bytes as f64 / status.used_bytes as f64);
    for threads in [1, 4] {
        timed(&format!("random read, cached, {threads} threads"), threads, |thread, done| {
            let mut buf = vec![0; PAGE];
            let mut state = thread + 1;
            let end = Instant::now() + Duration::from_secs(2);
            while Instant::now() < end {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                dataset.read(5, PAGE as u32, (state >> 33) % PAGES * PAGE as u64, &mut buf).unwrap();
                done.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    for threads in [1, 16] {
        timed(&format!("overwrite and sync, {threads} threads"), threads, |thread, done| {
            let mut state = thread + 1;
            let end = Instant::now() + Duration::from_secs(2);
            while Instant::now() < end {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                write((state >> 33) % PAGES, &batch[(state >> 40) as usize % batch.len()]);
                pool.sync().unwrap();
                done.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    background.stop();
    drop((dataset, pool));
    let start = Instant::now();
    let pool = Pool::open(std::slice::from_ref(&path), &options).unwrap();
    println!("replay {:?} in {:.2?}", pool.replayed(), start.elapsed());
    pool.set_cache_bytes(0);
    let dataset = pool.dataset();
    for threads in [1, 16, 64] {
        timed(&format!("random read, missed, {threads} threads"), threads, |thread, done| {
            let mut buf = vec![0; PAGE];
            let mut state = thread + 1;
            let end = Instant::now() + Duration::from_secs(2);
            while Instant::now() < end {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                dataset.read(5, PAGE as u32, (state >> 33) % PAGES * PAGE as u64, &mut buf).unwrap();
                done.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    timed("sequential read, 1 MiB each", 1, |_, done| {
        let mut buf = vec![0; 1 << 20];
        for at in (0..PAGES).step_by(128) {
            dataset.read(5, PAGE as u32, at * PAGE as u64, &mut buf).unwrap();
            done.fetch_add(128, Ordering::Relaxed);
        }
    });
    let _ = Arc::strong_count(&pool);
    std::fs::remove_file(&path).unwrap();
}
