//! Bytes that a checkpoint writes, and memory that the catalogue takes, by the number of snapshots of a dataset.
//!
//! `cargo run --release -p pagefold-engine --example snapshots -- FILE [snapshots]`: makes a pool of 8 GiB in FILE
//! (which must not exist), with an object of 100,000 pages of 8 KiB, overwrites 400 of them at random and makes a
//! snapshot, a thousand times unless told. At some numbers of snapshots it makes twenty checkpoints, after as many
//! overwrites each, and prints what they have written, in bytes each. At the end it destroys every other snapshot.
#![allow(clippy::unwrap_used, reason = "a tool for developers")]

mod common;

use std::path::PathBuf;
use std::time::Instant;

use common::{PAGE, XorShift, rows};
use pagefold_engine::dataset::Change;
use pagefold_engine::device::create_file_device;
use pagefold_engine::pool::{CreateOptions, Guid, OpenOptions, Pool, create};

const PAGES: u64 = 100_000;
const BETWEEN: u64 = 400;
const SAMPLES: u64 = 20;

fn overwrite(pool: &Pool, random: &mut XorShift, pages: u64) {
    for _ in 0..pages {
        let (at, data) = (random.next() % PAGES, rows(random.next()));
        let offset = at * PAGE as u64;
        let write = Change::Write { object: 5, record_size: PAGE as u32, offset, data: &data };
        pool.dataset().apply(&[write]).unwrap();
    }
    pool.sync().unwrap();
}

/// Bytes that checkpoints have written: nodes; pages of table and catalogue, roots, lists; second copies of all of
/// these.
fn checkpoint_bytes(pool: &Pool) -> [u64; 3] {
    let totals = pool.totals();
    [totals.tree_bytes, totals.checkpoint_bytes, totals.copy_bytes]
}

fn main() {
    let mut args = std::env::args().skip(1);
    let path = PathBuf::from(args.next().unwrap());
    let snapshots: u64 = args.next().map_or(1000, |number| number.parse().unwrap());
    create_file_device(&path, 8 << 30).unwrap();
    let create_options = CreateOptions { force: false, created: 0, guid: Guid([7; 16]) };
    create("snapshots", std::slice::from_ref(&path), &create_options).unwrap();
    let pool = Pool::open(std::slice::from_ref(&path), &OpenOptions::default()).unwrap();
    let mut random = XorShift::new(3);
    // As scattered as it will ever be.
    overwrite(&pool, &mut random, 4 * PAGES);
    let begun = Instant::now();
    for made in 0..=snapshots {
        if [1, 10, 100, snapshots / 2, snapshots].contains(&made) {
            pool.checkpoint(false).unwrap();
            let before = checkpoint_bytes(&pool);
            for _ in 0..SAMPLES {
                overwrite(&pool, &mut random, BETWEEN);
                pool.checkpoint(false).unwrap();
            }
            let memory = pool.memory();
            let after = checkpoint_bytes(&pool);
            let [nodes, others, copies] = [0, 1, 2].map(|kind: usize| (after[kind] - before[kind]) / SAMPLES);
            println!(
                "{made:5} snapshots: {:8} bytes each checkpoint (nodes {nodes}, table and catalogue {others}, copies {copies}); in memory: catalogue {:7}, segment table {:8}; {:.1?}",
                nodes + others + copies,
                memory.catalogue_bytes,
                memory.segments_bytes,
                begun.elapsed(),
            );
        }
        overwrite(&pool, &mut random, BETWEEN);
        pool.snapshot(&[""], &format!("s{made}"), made).unwrap();
    }
    let begun = Instant::now();
    let every_other: Vec<String> = (0..=snapshots).step_by(2).map(|number| format!("@s{number}")).collect();
    pool.destroy_snapshots(&every_other.iter().map(String::as_str).collect::<Vec<&str>>()).unwrap();
    while pool.reap().unwrap() {}
    pool.checkpoint(false).unwrap();
    println!("{} of them destroyed in {:.1?}", every_other.len(), begun.elapsed());
    assert_eq!(pool.check_open(&mut |_| {}).messages, Vec::<String>::new());
    drop(pool);
    std::fs::remove_file(&path).unwrap();
}
