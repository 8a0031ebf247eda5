//! Makes 8 KiB overwrites with real PostgreSQL pages, each followed by fdatasync.
//!
//! fio can only make its own buffers, and what matters here is the size of a real page on the device. So the loop is
//! ours: each writer has a file, picks a page at random, writes a page of the corpus with a new log sequence number
//! there, and syncs.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};

use super::corpus::{Corpus, PAGE_BYTES};
use crate::host::exec::check_interrupted;

/// Measurements of all writers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SyncedWrites {
    /// Overwrites, each synced.
    pub(crate) operations: u64,
    /// Wall-clock time in seconds.
    pub(crate) seconds: f64,
    /// Median latency of one overwrite with its sync, in microseconds.
    pub(crate) median_us: f64,
    /// 99th percentile of that latency, in microseconds.
    pub(crate) p99_us: f64,
}

/// Returns the path of writer `n`'s file.
pub(crate) fn file_of(dir: &Path, n: usize) -> PathBuf {
    dir.join(format!("overwrite-{n}"))
}

/// Lets `writers` threads overwrite their files of `pages` pages for `duration`.
///
/// # Errors
/// When a write or sync fails.
pub(crate) fn run(
    dir: &Path,
    writers: usize,
    pages: u64,
    duration: Duration,
    corpus: &Corpus,
) -> Result<SyncedWrites> {
    let started = Instant::now();
    let results: Vec<Result<Vec<u32>>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..writers)
            .map(|n| {
                scope
                    .spawn(move || write_until(&file_of(dir, n), n as u64, pages, started + duration, corpus))
            })
            .collect();
        threads.into_iter().map(|t| t.join().unwrap_or_else(|_| Err(anyhow!("a writer panicked")))).collect()
    });
    let seconds = started.elapsed().as_secs_f64();
    let mut latencies_us = Vec::new();
    for result in results {
        latencies_us.extend(result?);
    }
    latencies_us.sort_unstable();
    let at = |share: f64| {
        let index = (latencies_us.len() as f64 * share) as usize;
        latencies_us.get(index).copied().map_or(0.0, f64::from)
    };
    Ok(SyncedWrites { operations: latencies_us.len() as u64, seconds, median_us: at(0.5), p99_us: at(0.99) })
}

fn write_until(path: &Path, seed: u64, pages: u64, end: Instant, corpus: &Corpus) -> Result<Vec<u32>> {
    let file: File = OpenOptions::new().read(true).write(true).open(path)?;
    let mut random = Random::new(seed + 1);
    let mut page = vec![0; PAGE_BYTES];
    let mut latencies_us = Vec::with_capacity(1 << 16);
    while Instant::now() < end {
        check_interrupted()?;
        corpus.changed_page(&mut random, &mut page);
        let at = random.below(pages) * PAGE_BYTES as u64;
        let started = Instant::now();
        file.write_all_at(&page, at).with_context(|| format!("overwrite {} at {at}", path.display()))?;
        file.sync_data().with_context(|| format!("fdatasync {}", path.display()))?;
        latencies_us.push(u32::try_from(started.elapsed().as_micros()).unwrap_or(u32::MAX));
    }
    Ok(latencies_us)
}

/// xorshift64*, so that runs are repeatable (Vigna, "An experimental exploration of Marsaglia's xorshift generators").
#[derive(Debug)]
pub(crate) struct Random(u64);

impl Random {
    /// Makes a generator. Different seeds give different sequences.
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    /// Returns the next 64 bits.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// Returns a number below `bound`, or 0 if `bound` is 0. The bias of the remainder is far below what is measured
    /// here.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_is_counted_and_the_file_changes() {
        let dir = tempfile::tempdir().unwrap();
        let corpus = Corpus::from_bytes(&vec![7; PAGE_BYTES * 4]).unwrap();
        for n in 0..2 {
            std::fs::write(file_of(dir.path(), n), vec![0; PAGE_BYTES * 8]).unwrap();
        }
        let outcome = run(dir.path(), 2, 8, Duration::from_millis(50), &corpus).unwrap();
        assert!(outcome.operations > 0 && outcome.p99_us >= outcome.median_us);
        let bytes = std::fs::read(file_of(dir.path(), 1)).unwrap();
        assert_eq!(bytes.len(), PAGE_BYTES * 8);
        assert!(bytes.contains(&7));
    }

    #[test]
    fn random_numbers_stay_below_their_bound() {
        let mut random = Random::new(3);
        let mut seen = [false; 10];
        for _ in 0..1000 {
            seen[usize::try_from(random.below(10)).unwrap()] = true;
        }
        assert!(seen.iter().all(|&s| s));
        assert_eq!(random.below(0), 0);
    }
}
