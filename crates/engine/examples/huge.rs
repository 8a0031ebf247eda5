//! The cost of a pool's size: opening it, memory, checkpoints, and the wait for durability while the cleaner works.
//!
//! `cargo run --release -p pagefold-engine --features crafting --example huge -- FILE [bytes [record bytes [segments
//! per chunk]]]`: unless FILE is there, makes a pool in it, 10 TB with records of 2,700 bytes unless told: a sparse
//! file whose segments are full of holes, 24 to 100 % of them live, which is 85 % of the capacity, and which takes a
//! few gigabytes. Then it opens it twice, with 384 MiB of cache, and prints how long that takes and what is in memory;
//! overwrites 20 MB at random in pages of 8 KiB, and prints what the checkpoint after that has written; and has four
//! writers overwrite pages that do not compress at random, each with a sync, for a minute of cleaning, and prints how
//! long they waited.
#![allow(clippy::unwrap_used, reason = "a tool for developers")]

mod common;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::{PAGE, XorShift, rows};
use pagefold_engine::dataset::Change;
use pagefold_engine::pool::crafting::{Crafted, craft};
use pagefold_engine::pool::{CreateOptions, Guid, OpenOptions, Pool};

/// As the server has it.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Three quarters of the chunks are the capacity: with 62 % of all slots live the pool is 85 % full.
const LIVE_PERMILLE_MIN: u64 = 240;
const OBJECT: u64 = 5;
const WRITERS: u64 = 4;
const CLEANING: Duration = Duration::from_secs(60);
const RANDOM_BYTES: u64 = 20_000_000;

fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

fn make(path: &PathBuf, size_bytes: u64, record_bytes: u32, segments_per_chunk: u64) {
    let begun = Instant::now();
    std::fs::File::create_new(path).unwrap().set_len(size_bytes).unwrap();
    let options = CreateOptions { force: false, created: 0, guid: Guid([7; 16]) };
    let crafted = Crafted {
        free_chunks: 600,
        record_bytes,
        segments_per_chunk,
        live_permille_min: LIVE_PERMILLE_MIN,
        directories_permille: 40,
        object: OBJECT,
        page_bytes: PAGE as u32,
    };
    let segments = craft(path, &options, &crafted).unwrap();
    println!("made: {segments} segments of records of {record_bytes} bytes; {:.0?}", begun.elapsed());
}

fn open(path: &Path) -> std::sync::Arc<Pool> {
    let options = OpenOptions { cache_bytes: 384 << 20, ..OpenOptions::default() };
    Pool::open(&[path.to_path_buf()], &options).unwrap()
}

fn overwrite(pool: &Pool, page: u64, data: &[u8]) {
    let offset = page * PAGE as u64;
    let write = Change::Write { object: OBJECT, record_size: PAGE as u32, offset, data };
    pool.dataset().apply(&[write]).unwrap();
}

fn random_page(random: &mut XorShift) -> Vec<u8> {
    (0..PAGE / 8).flat_map(|_| random.next().to_le_bytes()).collect()
}

fn main() {
    let mut args = std::env::args().skip(1);
    let path = PathBuf::from(args.next().unwrap());
    let size_bytes: u64 = args.next().map_or(10_000_000_000_000, |bytes| bytes.parse().unwrap());
    let record_bytes: u32 = args.next().map_or(2700, |bytes| bytes.parse().unwrap());
    let segments_per_chunk: u64 = args.next().map_or(1, |parts| parts.parse().unwrap());
    if !path.exists() {
        make(&path, size_bytes, record_bytes, segments_per_chunk);
    }
    let before = resident_bytes();
    for turn in ["first", "second"] {
        let begun = Instant::now();
        let pool = open(&path);
        let memory = pool.memory();
        println!(
            "opened, {turn} time: {:.2?}; segment table {} MiB, resident {} MiB more",
            begun.elapsed(),
            memory.segments_bytes >> 20,
            resident_bytes().saturating_sub(before) >> 20
        );
        pool.export().unwrap();
    }
    let pool = open(&path);
    let pages = pool.dataset().usage(OBJECT).unwrap().pages;
    println!("{pages} pages");
    let mut random = XorShift::new(3);
    for turn in 1..=5 {
        for _ in 0..RANDOM_BYTES / PAGE as u64 {
            overwrite(&pool, random.next() % pages, &rows(random.next()));
        }
        pool.sync().unwrap();
        let before = pool.totals();
        let begun = Instant::now();
        pool.checkpoint(false).unwrap();
        let after = pool.totals();
        let [nodes, others, copies] = [
            after.tree_bytes - before.tree_bytes,
            after.checkpoint_bytes - before.checkpoint_bytes,
            after.copy_bytes - before.copy_bytes,
        ];
        println!(
            "checkpoint {turn} after 20 MB of random overwrites: {:.1} MB (nodes {nodes}, table and catalogue {others}, copies {copies}); {:.2?}",
            (nodes + others + copies) as f64 / 1e6,
            begun.elapsed()
        );
    }
    let background = pool.run().unwrap();
    let stop = AtomicBool::new(false);
    let mut waits: Vec<Duration> = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|number| {
                let (pool, stop) = (&pool, &stop);
                scope.spawn(move || {
                    let mut random = XorShift::new(77 + number);
                    let mut waits = Vec::new();
                    while !stop.load(Ordering::Relaxed) {
                        overwrite(pool, random.next() % pages, &random_page(&mut random));
                        let begun = Instant::now();
                        pool.sync().unwrap();
                        if pool.totals().moved_bytes > 0 {
                            waits.push(begun.elapsed());
                        }
                    }
                    waits
                })
            })
            .collect();
        let mut begun = None;
        loop {
            std::thread::sleep(Duration::from_millis(100));
            if begun.is_none() && pool.totals().moved_bytes > 0 {
                begun = Some(Instant::now());
            }
            if begun.is_some_and(|begun| begun.elapsed() > CLEANING) {
                break;
            }
        }
        stop.store(true, Ordering::Relaxed);
        writers.into_iter().flat_map(|writer| writer.join().unwrap()).collect()
    });
    waits.sort_unstable();
    let at = |part: f64| waits.get((waits.len() as f64 * part) as usize).copied().unwrap_or_default();
    let totals = pool.totals();
    println!(
        "{} syncs of {WRITERS} writers in a minute with {} MiB moved by the cleaner and {} checkpoints: half took {:.1?}, 99 % {:.1?}, the longest {:.1?}; segment table {} MiB",
        waits.len(),
        totals.moved_bytes >> 20,
        totals.checkpoints,
        at(0.5),
        at(0.99),
        waits.last().copied().unwrap_or_default(),
        pool.memory().segments_bytes >> 20
    );
    pool.export().unwrap();
    drop(background);
}
