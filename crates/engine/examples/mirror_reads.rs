//! Reads pages of a pool that is a mirror of two files, one after another, each from a device.
//!
//!     cargo run --release -p pagefold-engine --example mirror_reads -- DIR READS
//!
//! Instructions of a read: by valgrind --tool=callgrind with two numbers of reads, of which the difference counts. System
//! calls: by strace -c -f.
#![allow(clippy::unwrap_used, reason = "an example")]

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use pagefold_engine::dataset::Change;
use pagefold_engine::device::{Device, FileDevice, OpenMode, create_file_device};
use pagefold_engine::pool::{CreateOptions, Guid, OpenOptions, Pool, create_groups_on};

const PAGE: u32 = 8192;
const PAGES: u64 = 4096;

fn open(paths: &[std::path::PathBuf]) -> Vec<Arc<dyn Device>> {
    let one = |path: &std::path::PathBuf| {
        Arc::new(FileDevice::open(path, OpenMode::ReadWrite).unwrap()) as Arc<dyn Device>
    };
    paths.iter().map(one).collect()
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [dir, reads] = words.as_slice() else { return eprintln!("usage: mirror_reads DIR READS") };
    let reads: u64 = reads.parse().unwrap();
    let paths = [0, 1].map(|at| Path::new(dir).join(format!("mirror_reads.{at}")));
    for path in &paths {
        let _ = std::fs::remove_file(path);
        create_file_device(path, 160 << 20).unwrap();
    }
    let options = CreateOptions { force: false, created: 0, guid: Guid(*b"reads of mirrors") };
    create_groups_on("tank", &[open(&paths)], &options).unwrap();
    // As little memory as there may be: most reads reach a device.
    let options = OpenOptions { cache_bytes: 8 << 20, ..OpenOptions::default() };
    let pool = Pool::open_on(open(&paths), &options).unwrap();
    let mut state = 1u64;
    let mut next = || {
        state = state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
        state >> 33
    };
    for at in 0..PAGES {
        let data: Vec<u8> = (0..PAGE / 4).flat_map(|_| (next() as u32).to_le_bytes()).collect();
        let offset = at * u64::from(PAGE);
        pool.dataset().apply(&[Change::Write { object: 4, record_size: PAGE, offset, data: &data }]).unwrap();
    }
    pool.sync().unwrap();
    let device_reads = || pool.device_status().iter().map(|device| device.counts.reads).sum::<u64>();
    let (mut out, before, began) = (vec![0; PAGE as usize], device_reads(), Instant::now());
    for _ in 0..reads {
        let offset = next() % PAGES * u64::from(PAGE);
        pool.dataset().read(4, PAGE, offset, &mut out).unwrap();
    }
    let (took, of_devices) = (began.elapsed(), device_reads() - before);
    println!(
        "{reads} reads, {of_devices} of devices, {:.2} us each",
        took.as_secs_f64() * 1e6 / reads.max(1) as f64
    );
    drop(pool);
    paths.iter().for_each(|path| std::fs::remove_file(path).unwrap());
}
