//! Overwrites files with real PostgreSQL pages, each write followed by fdatasync.
//!
//! fio can only make its own buffers, and what matters here is the size of a real page on the device. So the loop is
//! ours: each writer has a file, writes a page of the corpus with a new log sequence number, or half of one, and syncs.

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

/// Places and lengths of writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// Pages at random.
    Random,
    /// Half pages, each behind the one before, and from the file's beginning once its end is reached: as a log is
    /// written whose files are used again.
    Log,
}

/// Returns the path of writer `n`'s file.
pub(crate) fn file_of(dir: &Path, n: usize) -> PathBuf {
    dir.join(format!("overwrite-{n}"))
}

/// Lets `writers` threads overwrite their files of `pages` pages in an order for `duration`.
///
/// # Errors
/// When a write or sync fails.
pub(crate) fn run(
    dir: &Path,
    writers: usize,
    (order, pages): (Order, u64),
    duration: Duration,
    corpus: &Corpus,
) -> Result<SyncedWrites> {
    let started = Instant::now();
    let results: Vec<Result<Vec<u32>>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..writers)
            .map(|n| {
                let end = started + duration;
                scope.spawn(move || write_until(&file_of(dir, n), n as u64, (order, pages), end, corpus))
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

fn write_until(
    path: &Path,
    seed: u64,
    (order, pages): (Order, u64),
    end: Instant,
    corpus: &Corpus,
) -> Result<Vec<u32>> {
    let file: File = OpenOptions::new().read(true).write(true).open(path)?;
    let mut random = Random::new(seed + 1);
    let mut page = vec![0; PAGE_BYTES];
    let len = if order == Order::Log { PAGE_BYTES / 2 } else { PAGE_BYTES };
    let places = pages * (PAGE_BYTES / len) as u64;
    let mut next = 0;
    let mut latencies_us = Vec::with_capacity(1 << 16);
    while Instant::now() < end {
        check_interrupted()?;
        corpus.changed_page(&mut random, &mut page);
        let at = len as u64 * if order == Order::Log { next % places.max(1) } else { random.below(places) };
        next += 1;
        let written = page.get(..len).unwrap_or_default();
        let started = Instant::now();
        file.write_all_at(written, at).with_context(|| format!("overwrite {} at {at}", path.display()))?;
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
        let outcome = run(dir.path(), 2, (Order::Random, 8), Duration::from_millis(50), &corpus).unwrap();
        assert!(outcome.operations > 0 && outcome.p99_us >= outcome.median_us);
        let bytes = std::fs::read(file_of(dir.path(), 1)).unwrap();
        assert_eq!(bytes.len(), PAGE_BYTES * 8);
        assert!(bytes.contains(&7));
    }

    #[test]
    fn a_log_is_written_from_its_beginning_again_and_again() {
        let dir = tempfile::tempdir().unwrap();
        let corpus = Corpus::from_bytes(&vec![7; PAGE_BYTES * 4]).unwrap();
        std::fs::write(file_of(dir.path(), 0), vec![0; PAGE_BYTES * 2]).unwrap();
        let outcome = run(dir.path(), 1, (Order::Log, 2), Duration::from_millis(200), &corpus).unwrap();
        let bytes = std::fs::read(file_of(dir.path(), 0)).unwrap();
        assert_eq!(bytes.len(), PAGE_BYTES * 2);
        let written = bytes.chunks(PAGE_BYTES / 2).filter(|half| half.ends_with(&[7])).count() as u64;
        assert_eq!(written, outcome.operations.min(4));
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
