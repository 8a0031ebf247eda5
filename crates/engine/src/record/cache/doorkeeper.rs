//! Remembers what was offered once, so that a cache takes only what is offered again.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Bytes of budget per bit: so several times as many records are remembered as a cache of them holds.
const BYTES_PER_BIT: u64 = 32;
/// Smallest number of bits.
const BITS_MIN: u64 = 1 << 12;

/// A set of hashes, with two bits for each. An offer whose two bits others have set counts as offered before, which
/// only lets it in early.
///
/// When an eighth of the bits is set it forgets all offers: what comes again more slowly than that does not fit the
/// cache anyway.
pub(super) struct Doorkeeper {
    words: Box<[AtomicU64]>,
    set: AtomicU64,
}

impl Doorkeeper {
    /// Creates one for a cache of `budget_bytes`.
    pub(super) fn new(budget_bytes: u64) -> Self {
        let bits = (budget_bytes / BYTES_PER_BIT).clamp(BITS_MIN, 1 << 32).next_power_of_two();
        Self { words: (0..bits / 64).map(|_| AtomicU64::new(0)).collect(), set: AtomicU64::new(0) }
    }

    /// Returns true if what hashes to `hash` was offered before, as far as is remembered. Remembers this offer.
    pub(super) fn knows(&self, hash: u64) -> bool {
        let bits = self.words.len() as u64 * 64;
        let mut fresh = 0;
        for hash in [hash, hash.rotate_left(32)] {
            let bit = hash & (bits - 1);
            let (word, mask) = ((bit / 64) as usize, 1 << (bit % 64));
            let Some(word) = self.words.get(word) else { return true };
            if word.load(Relaxed) & mask == 0 {
                word.fetch_or(mask, Relaxed);
                fresh += 1;
            }
        }
        if fresh == 0 {
            return true;
        }
        if self.set.fetch_add(fresh, Relaxed) + fresh >= bits / 8 {
            self.set.store(0, Relaxed);
            self.words.iter().for_each(|word| word.store(0, Relaxed));
        }
        false
    }
}
