//! Estimates how often each record was asked for lately, whether it is held or not, in a few bits for each.
//!
//! Source: the count-min sketch with counters of 4 bits that are halved from time to time, as TinyLFU has it (Einziger,
//! Friedman and Manes, "TinyLFU: A Highly Efficient Cache Admission Policy", ACM Transactions on Storage, 2017).

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Bits of a counter, and counters of a word.
const BITS: u32 = 4;
const PER_WORD: u64 = (u64::BITS / BITS) as u64;
/// Largest count.
const MOST: u64 = (1 << BITS) - 1;
/// Words of a block. The counters of a hash lie in one block, one in each of four words: a cache line.
const BLOCK: usize = 8;
const ROWS: usize = 4;
/// All bits of a word but the highest of each counter.
const HALVES: u64 = 0x7777_7777_7777_7777;

fn words(bytes: u64) -> usize {
    (bytes as usize / size_of::<u64>()).next_power_of_two().max(BLOCK)
}

/// Counts of requests, by hash of what was asked for. Two threads that count at the same time may count once.
pub(super) struct Frequencies {
    words: Box<[AtomicU64]>,
    /// Requests of this period, and those of them that were found.
    counted: AtomicU64,
    found: AtomicU64,
    /// Requests of the last period that were found.
    found_before: AtomicU64,
}

impl Frequencies {
    /// Creates one with a counter for each 4 bits of `bytes`, which is rounded up to a power of two.
    pub(super) fn new(bytes: u64) -> Self {
        Self {
            words: std::iter::repeat_with(AtomicU64::default).take(words(bytes)).collect(),
            counted: 0.into(),
            found: 0.into(),
            found_before: u64::MAX.into(),
        }
    }

    /// Has as many counters as one that is created with `bytes`. They begin anew if there were too few, or four times as
    /// many and more.
    pub(super) fn fit(&mut self, bytes: u64) {
        let fitting = words(bytes);
        if fitting > self.words.len() || fitting * 4 <= self.words.len() {
            *self = Self::new(bytes);
        }
    }

    /// Returns the bytes that the counters take.
    pub(super) fn bytes(&self) -> u64 {
        size_of_val(&*self.words) as u64
    }

    /// Returns the word and the shift of each of the counters of `hash`.
    fn places(&self, hash: u64) -> impl Iterator<Item = (&AtomicU64, u32)> {
        let blocks = self.words.len() / BLOCK;
        let first = (hash as usize & (blocks - 1)) * BLOCK;
        // The low bits choose the block.
        let choice = hash >> 32;
        (0..ROWS).filter_map(move |row| {
            let bits = choice >> (row * 5);
            let word = first + row * 2 + (bits & 1) as usize;
            self.words.get(word).map(|word| (word, ((bits >> 1) % PER_WORD) as u32 * BITS))
        })
    }

    /// Returns the number of requests for `hash`: not less than were counted, but for what was halved.
    pub(super) fn of(&self, hash: u64) -> u8 {
        let counts = self.places(hash).map(|(word, shift)| (word.load(Relaxed) >> shift) & MOST);
        counts.min().unwrap_or(0) as u8
    }

    /// Returns the number of requests of the last period that were found; `u64::MAX` if there was none.
    pub(super) fn found_before(&self) -> u64 {
        self.found_before.load(Relaxed)
    }

    /// Counts a request for `hash`, which was found or not. After each `period` of requests all counts are halved.
    pub(super) fn count(&self, hash: u64, is_found: bool, period: u64) {
        self.add(hash, 1);
        if is_found {
            self.found.fetch_add(1, Relaxed);
        }
        if self.counted.fetch_add(1, Relaxed) + 1 >= period {
            self.counted.store(0, Relaxed);
            self.found_before.store(self.found.swap(0, Relaxed), Relaxed);
            for word in &self.words {
                word.store((word.load(Relaxed) >> 1) & HALVES, Relaxed);
            }
        }
    }

    /// Adds requests to those for `hash` that were counted as others.
    pub(super) fn add(&self, hash: u64, times: u8) {
        for (word, shift) in self.places(hash) {
            let now = word.load(Relaxed);
            let more = ((now >> shift) & MOST) + u64::from(times);
            word.store(now & !(MOST << shift) | more.min(MOST) << shift, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(of: u64) -> u64 {
        (of + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29).wrapping_mul(0xBF58_476D_1CE4_E5B9)
    }

    #[test]
    fn requests_are_counted_up_to_a_limit() {
        let frequencies = Frequencies::new(64 << 10);
        for of in 0..1000 {
            (0..of % 20).for_each(|_| frequencies.count(hash(of), false, u64::MAX));
        }
        let exact =
            (0..1000).filter(|of| u64::from(frequencies.of(hash(*of))) == (of % 20).min(MOST)).count();
        assert!(exact > 950, "{exact} of 1000 are exact");
        let too_few = (0..1000).any(|of| u64::from(frequencies.of(hash(of))) < (of % 20).min(MOST));
        assert!(!too_few);
        frequencies.add(hash(1), 200);
        assert_eq!(u64::from(frequencies.of(hash(1))), MOST);
    }

    #[test]
    fn counters_begin_anew_only_if_their_number_does_not_fit() {
        let mut frequencies = Frequencies::new(4096);
        frequencies.add(hash(1), 3);
        for bytes in [4096, 2048, 3000] {
            frequencies.fit(bytes);
            assert_eq!((frequencies.of(hash(1)), frequencies.bytes()), (3, 4096));
        }
        frequencies.fit(1024);
        assert_eq!((frequencies.of(hash(1)), frequencies.bytes()), (0, 1024));
        frequencies.fit(1025);
        assert_eq!(frequencies.bytes(), 1024);
        frequencies.fit(0);
        assert_eq!(frequencies.bytes(), 64);
    }

    #[test]
    fn counts_are_halved_after_a_period() {
        let frequencies = Frequencies::new(64 << 10);
        assert_eq!(frequencies.found_before(), u64::MAX);
        (0..9).for_each(|_| frequencies.count(hash(1), false, 100));
        (0..90).for_each(|of| frequencies.count(hash(100 + of), false, 100));
        assert_eq!(frequencies.of(hash(1)), 9);
        frequencies.count(hash(1), false, 100);
        assert_eq!(frequencies.of(hash(1)), 5);
        assert_eq!(frequencies.of(hash(100)), 0);
        (0..99).for_each(|of| frequencies.count(hash(1000 + of), false, 100));
        assert_eq!(frequencies.of(hash(1)), 5);
        assert_eq!(frequencies.found_before(), 0);
        frequencies.count(hash(2000), true, 100);
        assert_eq!((frequencies.of(hash(1)), frequencies.found_before()), (2, 1));
    }
}
