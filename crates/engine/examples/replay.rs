//! The time that a pool takes to open after a crash, by the time that each read of its device takes.
//!
//! `cargo run --release -p pagefold-engine --example replay -- FILE [pages] [MiB]`: makes a pool in FILE (24 GiB),
//! with an object of that many pages of 8 KiB (10 million unless told), makes a checkpoint, writes pages of it anew in
//! random order until that many MiB of log (256) lie behind the checkpoint, and leaves it as a crash does. Then it
//! opens the pool with reads that take 0, 0.1 and 5 ms, each for itself, as many at a time as are asked for. If FILE
//! exists, it is only opened. Once with whole pages written anew, once with a few bytes of each.
#![allow(clippy::unwrap_used, reason = "a tool for developers")]

mod common;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::{PAGE, XorShift, rows};
use pagefold_engine::dataset::Change;
use pagefold_engine::device::{AlignedBuf, Device, DeviceStats, FileDevice, OpenMode, create_file_device};
use pagefold_engine::pool::{CreateOptions, Guid, OpenOptions, Pool, create};

const OBJECT: u64 = 5;
/// A little less than what changed tree nodes may take before a checkpoint is made, with a large budget.
const TREE_BYTES_MAX: u64 = 184 << 20;

/// A file on which each read takes a while longer.
struct SlowDevice {
    inner: FileDevice,
    latency: Duration,
    reads: AtomicU64,
}

impl SlowDevice {
    fn open(path: &Path, latency: Duration) -> Arc<Self> {
        let inner = FileDevice::open(path, OpenMode::ReadOnly).unwrap();
        Arc::new(Self { inner, latency, reads: AtomicU64::new(0) })
    }
}

impl Device for SlowDevice {
    fn path(&self) -> &Path {
        self.inner.path()
    }

    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }

    fn read(&self, offset: u64, buf: &mut AlignedBuf) -> pagefold_engine::Result<()> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        if !self.latency.is_zero() {
            std::thread::sleep(self.latency);
        }
        self.inner.read(offset, buf)
    }

    fn write(&self, offset: u64, buf: &AlignedBuf, durable: bool) -> pagefold_engine::Result<()> {
        self.inner.write(offset, buf, durable)
    }

    fn flush(&self) -> pagefold_engine::Result<()> {
        self.inner.flush()
    }

    fn discard(&self, offset: u64, len_bytes: u64) -> pagefold_engine::Result<()> {
        self.inner.discard(offset, len_bytes)
    }

    fn stats(&self) -> &DeviceStats {
        self.inner.stats()
    }
}

/// A page with hardly anything on it, so that there can be many.
fn sparse(id: u64) -> Vec<u8> {
    let mut out = vec![0; PAGE];
    out[..8].copy_from_slice(&(id + 1).to_le_bytes());
    out
}

fn write(pool: &Pool, page: u64, data: &[u8]) {
    let offset = page * PAGE as u64;
    let change = Change::Write { object: OBJECT, record_size: PAGE as u32, offset, data };
    pool.dataset().apply(&[change]).unwrap();
}

/// Writes pages anew until so much log lies behind the last checkpoint. Returns how many.
fn overwrite(pool: &Pool, pages: u64, log_bytes: u64, whole: bool) -> u64 {
    let checkpoints = pool.status().checkpoint;
    let mut random = XorShift::new(7);
    let mut written = 0;
    // Changed nodes in memory bound the log, too.
    while pool.status().log_bytes < log_bytes && pool.status().unstored_tree_bytes < TREE_BYTES_MAX {
        for _ in 0..64 {
            let page = random.next() % pages;
            let mut data = if whole { rows(random.next()) } else { sparse(page) };
            if !whole {
                data[4096..4104].copy_from_slice(&random.next().to_le_bytes());
            }
            write(pool, page, &data);
            written += 1;
        }
        pool.sync().unwrap();
        assert_eq!(pool.status().checkpoint, checkpoints, "a checkpoint came between: {written} pages");
    }
    written
}

/// Opens the pool as often as there are latencies, and changes nothing.
fn open_slowly(path: &Path) {
    for latency in [0, 100, 5000] {
        let device = SlowDevice::open(path, Duration::from_micros(latency));
        let read_only = OpenOptions { read_only: true, ..OpenOptions::default() };
        let start = Instant::now();
        let pool = Pool::open_on(vec![Arc::clone(&device) as Arc<dyn Device>], &read_only).unwrap();
        let seconds = start.elapsed().as_secs_f64();
        let reads = device.reads.load(Ordering::Relaxed);
        let batches = pool.replayed().batches;
        println!("reads of {latency:5} us: opened in {seconds:7.2} s, {reads} reads, {batches} batches");
    }
}

fn main() {
    let mut args = std::env::args().skip(1);
    let path = PathBuf::from(args.next().unwrap());
    let pages: u64 = args.next().map_or(10_000_000, |pages| pages.parse().unwrap());
    let log_mib: u64 = args.next().map_or(256, |mib| mib.parse().unwrap());
    if path.exists() {
        return open_slowly(&path);
    }
    create_file_device(&path, 24 << 30).unwrap();
    let create_options = CreateOptions { force: false, created: 0, guid: Guid([7; 16]) };
    create("replay", std::slice::from_ref(&path), &create_options).unwrap();
    let options =
        OpenOptions { log_bytes: Some(log_mib << 21), cache_bytes: 2 << 30, ..OpenOptions::default() };
    let fill = Pool::open(std::slice::from_ref(&path), &options).unwrap();
    let background = fill.run().unwrap();
    let start = Instant::now();
    (0..pages).for_each(|page| write(&fill, page, &sparse(page)));
    fill.sync().unwrap();
    background.stop();
    fill.checkpoint(false).unwrap();
    println!("{pages} pages written in {:.1?}", start.elapsed());
    drop(fill);
    for whole in [true, false] {
        let pool = Pool::open(std::slice::from_ref(&path), &options).unwrap();
        pool.checkpoint(false).unwrap();
        let start = Instant::now();
        let written = overwrite(&pool, pages, log_mib << 20, whole);
        let of = if whole { "whole" } else { "a few bytes each" };
        println!(
            "{written} pages written anew, {of}, in {:.1?}: {} MiB of log",
            start.elapsed(),
            pool.status().log_bytes >> 20
        );
        drop(pool);
        open_slowly(&path);
    }
}
