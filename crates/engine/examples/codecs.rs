//! The size to which each codec brings the pages of real files, and the CPU time that it takes: the best of a few rounds, so that
//! other load on the machine matters little.
//!
//! ```text
//! cargo run --release -p pagefold-engine --example codecs -- PAGE_BYTES FILE...
//! ```
//!
//! Give it relation files of a stopped PostgreSQL server (8192), `.ibd` files (16384) or a SQLite database.

use std::hint::black_box;

use pagefold_engine::record::{Compression, Encoded, Encoder, NoModels, decode};

/// Pages taken evenly from all of the input, so that a run takes seconds.
const SAMPLE_PAGES: usize = 500;
/// Rounds of which the fastest counts.
const ROUNDS: usize = 4;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let page_bytes: usize = arguments.next().ok_or("usage: codecs PAGE_BYTES FILE...")?.parse()?;
    let mut bytes = Vec::new();
    for path in arguments {
        let file = std::fs::read(&path).map_err(|e| format!("{path}: {e}"))?;
        bytes.extend_from_slice(&file[..file.len() - file.len() % page_bytes]);
    }
    let all: Vec<&[u8]> = bytes.chunks_exact(page_bytes).collect();
    let step = all.len().div_ceil(SAMPLE_PAGES).max(1);
    let pages: Vec<&[u8]> = all.into_iter().step_by(step).collect();
    if pages.is_empty() {
        return Err("no whole page to measure".into());
    }
    println!("{} pages of {page_bytes} bytes", pages.len());
    println!(
        "{:<10} {:>8} {:>10} {:>12} {:>10} {:>6}",
        "codec", "ratio", "encode us", "+verify us", "decode us", "raw %"
    );
    for name in ["off", "lz4", "zstd-1", "zstd-3", "zstd-6", "zstd-9", "zstd-12", "zlib-1", "zlib-6"] {
        measure(name, name.parse()?, &pages)?;
    }
    Ok(())
}

fn measure(name: &str, compression: Compression, pages: &[&[u8]]) -> Result<(), Box<dyn std::error::Error>> {
    let records: Vec<Vec<u8>> = pages.iter().map(|page| encode(Encoder::new(), compression, page)).collect();
    let encode_us = best(pages.len(), || {
        pages.iter().for_each(|page| drop(black_box(encode(Encoder::new(), compression, page))));
    });
    let verified_us = best(pages.len(), || {
        pages.iter().for_each(|page| drop(black_box(encode(Encoder::verifying(), compression, page))));
    });
    let mut out = vec![0; pages[0].len()];
    let mut outcome = Ok(());
    let decode_us = best(pages.len(), || {
        let mut stored = records.iter().filter(|record| !record.is_empty());
        outcome = stored.try_for_each(|record| decode(record, &NoModels, black_box(&mut out)));
    });
    outcome?;
    let stored: usize = records.iter().map(Vec::len).sum();
    let raw = records.iter().filter(|record| record.first() == Some(&1)).count();
    let ratio = (pages.len() * out.len()) as f64 / stored.max(1) as f64;
    let raw_percent = raw as f64 * 100.0 / pages.len() as f64;
    println!(
        "{name:<10} {ratio:>7.2}x {encode_us:>10.1} {verified_us:>12.1} {decode_us:>10.1} {raw_percent:>6.1}"
    );
    Ok(())
}

fn encode(encoder: Encoder, compression: Compression, page: &[u8]) -> Vec<u8> {
    let mut record = Vec::with_capacity(page.len() + 4);
    let _: Encoded = encoder.encode(page, compression, &mut record);
    record
}

/// CPU microseconds per item of the fastest round.
fn best(items: usize, mut round: impl FnMut()) -> f64 {
    let mut one = || {
        let before = cpu_seconds();
        round();
        (cpu_seconds() - before) * 1e6 / items as f64
    };
    (0..ROUNDS).map(|_| one()).fold(f64::INFINITY, f64::min)
}

/// CPU time of this thread so far, user and system.
fn cpu_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}
