//! The cost of overwritten pages: `rewrites BEFORE AFTER [COMPRESSION]`, two copies of a database's folder, as of two checkpoints.
//!
//! The pages of BEFORE are written to a pool in memory, models are learned if COMPRESSION is `page`, and then those that
//! differ are written again as they are in AFTER. Told are the bytes of their records, 16 for the directory entry included.
#![allow(clippy::print_stdout, reason = "that is what it is for")]

use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{env, fs};

use pagefold_engine::dataset::Change;
use pagefold_engine::device::{Device, SimDevice};
use pagefold_engine::pool::{CreateOptions, Guid, LearnOptions, OpenOptions, Pool, create_on};
use pagefold_engine::record::{Compression, Encoder};

const PAGE: usize = 8192;
/// Relations in which fewer pages differ are left out.
const PAGES_MIN: usize = 30;
/// Pages of one commit.
const GROUP: usize = 64;

fn files(dir: &Path, found: &mut Vec<PathBuf>) -> Result<(), Box<dyn Error>> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() { files(&path, found)? } else { found.push(path) }
    }
    Ok(())
}

fn percentile(sorted: &[u64], percent: usize) -> u64 {
    sorted.get((sorted.len() * percent / 100).min(sorted.len().saturating_sub(1))).copied().unwrap_or(0)
}

fn write(pool: &Pool, page: u64, data: &[u8]) -> Result<(), Box<dyn Error>> {
    let offset = page * PAGE as u64;
    Ok(pool.dataset().apply(&[Change::Write { object: 5, record_size: PAGE as u32, offset, data }])?)
}

/// Bytes of each rewritten page's record, ascending, and their number of deltas; and what they take by zstd-3.
fn rewrite(before: &[u8], after: &[u8], compression: &str) -> Result<(Vec<u64>, u64, u64), Box<dyn Error>> {
    let device: Arc<dyn Device> = Arc::new(SimDevice::new((before.len() as u64 * 4).max(256 << 20), 1));
    let devices = vec![device];
    create_on("rewrites", &devices, &CreateOptions { force: false, created: 0, guid: Guid([5; 16]) })?;
    let pool = Pool::open_on(devices, &OpenOptions { cache_bytes: 1 << 30, ..OpenOptions::default() })?;
    pool.set_compression(compression.parse()?);
    for (at, page) in (0..).zip(before.chunks_exact(PAGE)) {
        write(&pool, at, page)?;
    }
    pool.sync()?;
    if pool.learn(&LearnOptions::default())?.is_some() {
        for (at, page) in (0..).zip(before.chunks_exact(PAGE)) {
            write(&pool, at, page)?;
        }
        pool.sync()?;
    }
    let deltas = pool.totals().pages_delta;
    let pairs = before.chunks_exact(PAGE).zip(after.chunks_exact(PAGE));
    let changed: Vec<(u64, &[u8])> =
        (0..).zip(pairs).filter(|(_, (was, is))| was != is).map(|(at, (_, is))| (at, is)).collect();
    let (mut bytes, mut zstd_bytes, mut record) = (Vec::with_capacity(changed.len()), 0, Vec::new());
    for group in changed.chunks(GROUP) {
        for (at, page) in group {
            write(&pool, *at, page)?;
        }
        pool.sync()?;
        for (at, page) in group {
            let mut ptr = [None];
            pool.live().tree.pages(5, *at, &mut ptr)?;
            bytes.push(ptr[0].map_or(0, |ptr| u64::from(ptr.len_bytes) + 16));
            record.clear();
            Encoder::new().encode(page, Compression::Zstd(3), &mut record);
            zstd_bytes += record.len() as u64 + 16;
        }
    }
    bytes.sort_unstable();
    Ok((bytes, pool.totals().pages_delta - deltas, zstd_bytes))
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = env::args().skip(1).collect();
    let [before, after, rest @ ..] = args.as_slice() else {
        return Err("rewrites BEFORE AFTER [COMPRESSION]".into());
    };
    let compression = rest.first().map_or("zstd", String::as_str);
    let mut found = Vec::new();
    files(Path::new(before), &mut found)?;
    found.sort();
    println!("| file | pages | rewritten | deltas | p50 | p90 | mean | in full, zstd-3 |");
    println!("|---|---|---|---|---|---|---|---|");
    let mut all = Vec::new();
    for path in found {
        let name = path.strip_prefix(before)?;
        let Ok(now) = fs::read(Path::new(after).join(name)) else { continue };
        let was = fs::read(&path)?;
        let pairs = was.chunks_exact(PAGE).zip(now.chunks_exact(PAGE));
        if pairs.filter(|(was, is)| was != is).count() < PAGES_MIN {
            continue;
        }
        let (bytes, deltas, zstd_bytes) = rewrite(&was, &now, compression)?;
        let pages = bytes.len() as u64;
        println!(
            "| {} | {} | {pages} | {deltas} | {} | {} | {} | {} |",
            name.display(),
            was.len() / PAGE,
            percentile(&bytes, 50),
            percentile(&bytes, 90),
            bytes.iter().sum::<u64>() / pages.max(1),
            zstd_bytes / pages.max(1)
        );
        all.extend(bytes);
    }
    all.sort_unstable();
    let mean = all.iter().sum::<u64>() / (all.len() as u64).max(1);
    println!("| all | | {} | | {} | {} | {mean} | |", all.len(), percentile(&all, 50), percentile(&all, 90));
    Ok(())
}
