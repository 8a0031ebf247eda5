//! Counts the lengths of records that take the place of others, in histograms from which percentiles follow: the cost
//! of overwriting pages.
//!
//! Pages of databases and all others (logs above all) are told apart by how they begin: a log's page is written again
//! at each commit, a relation's at each checkpoint, so the cost of one tells nothing about the other.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use pagefold_codec::registry;

use crate::limits::RECORD_BYTES_MAX;

/// Binary logarithm of the number of buckets between a power of two and the next: a bucket's bounds differ by an eighth
/// at most.
const PER_OCTAVE_LOG2: u32 = 3;
/// Number of buckets: that of the longest record is the last one.
const BUCKETS: usize = unbounded_bucket_of(RECORD_BYTES_MAX as u32) + 1;

/// Records of similar length that took the place of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rewritten {
    /// Largest length that is counted here, in bytes; the smallest is one more than the largest of the bucket below.
    pub at_most_bytes: u32,
    /// Number of these records.
    pub records: u64,
}

/// Records that took the place of others since the pool was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rewrites {
    /// Number of these records.
    pub records: u64,
    /// Bytes of all of them.
    pub bytes: u64,
    /// Counts by length, ascending; buckets without records are left out.
    pub lengths: Vec<Rewritten>,
}

/// A live histogram.
#[derive(Debug)]
struct Lengths {
    bytes: AtomicU64,
    buckets: [AtomicU64; BUCKETS],
}

/// Counters of a pool for rewritten pages.
#[derive(Debug, Default)]
pub(super) struct RewriteCounters {
    database: Lengths,
    other: Lengths,
}

impl RewriteCounters {
    /// Counts a record of `len_bytes` of `page`, which had a record before.
    pub(super) fn count(&self, page: &[u8], len_bytes: u32) {
        let lengths = if registry().looks_like_database(page) { &self.database } else { &self.other };
        lengths.bytes.fetch_add(u64::from(len_bytes), Relaxed);
        if let Some(bucket) = lengths.buckets.get(bucket_of(len_bytes)) {
            bucket.fetch_add(1, Relaxed);
        }
    }

    /// Returns the counts for pages of databases, and for all others.
    pub(super) fn snapshot(&self) -> (Rewrites, Rewrites) {
        (self.database.snapshot(), self.other.snapshot())
    }
}

impl Default for Lengths {
    fn default() -> Self {
        Self { bytes: AtomicU64::new(0), buckets: std::array::from_fn(|_| AtomicU64::new(0)) }
    }
}

impl Lengths {
    fn snapshot(&self) -> Rewrites {
        let counts = self.buckets.iter().map(|bucket| bucket.load(Relaxed));
        let lengths: Vec<Rewritten> = (0_u32..)
            .zip(counts)
            .filter(|(_, records)| *records > 0)
            .map(|(bucket, records)| Rewritten { at_most_bytes: at_most(bucket), records })
            .collect();
        let records = lengths.iter().map(|one| one.records).sum();
        Rewrites { records, bytes: self.bytes.load(Relaxed), lengths }
    }
}

/// Returns the bucket of a length. Each length below 16 has a bucket; above, the three bits after the highest select
/// it.
fn bucket_of(len_bytes: u32) -> usize {
    unbounded_bucket_of(len_bytes).min(BUCKETS - 1)
}

const fn unbounded_bucket_of(len_bytes: u32) -> usize {
    let octave = (len_bytes | 1).ilog2().saturating_sub(PER_OCTAVE_LOG2);
    ((octave << PER_OCTAVE_LOG2) + (len_bytes >> octave)) as usize
}

fn at_most(bucket: u32) -> u32 {
    let octave = (bucket >> PER_OCTAVE_LOG2).saturating_sub(1);
    ((bucket - (octave << PER_OCTAVE_LOG2) + 1) << octave) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_narrow_and_have_no_gaps() {
        let mut last = 0;
        for len in 0..=RECORD_BYTES_MAX as u32 {
            let bucket = bucket_of(len);
            assert!(bucket == last || bucket == last + 1, "{len}");
            last = bucket;
            let most = at_most(bucket as u32);
            assert!(len <= most && bucket_of(most) == bucket, "{len}");
            assert!(bucket == BUCKETS - 1 || bucket_of(most + 1) == bucket + 1, "{len}");
            assert!(most - len <= len / 8, "{len} counts as up to {most}");
        }
        assert_eq!(last, BUCKETS - 1);
    }

    #[test]
    fn pages_of_databases_are_counted_apart() {
        let counters = RewriteCounters::default();
        let mut heap = vec![0; 8192];
        // pd_lower, pd_upper, pd_special, pd_pagesize_version
        for (at, value) in [(12, 28_u16), (14, 8000), (16, 8192), (18, 0x2004)] {
            heap[at..at + 2].copy_from_slice(&value.to_le_bytes());
        }
        counters.count(&heap, 100);
        counters.count(&heap, 101);
        counters.count(&vec![1; 8192], 7);
        let (database, other) = counters.snapshot();
        assert_eq!((database.records, database.bytes, database.lengths.len()), (2, 201, 1));
        assert_eq!(other.lengths, [Rewritten { at_most_bytes: 7, records: 1 }]);
    }
}
