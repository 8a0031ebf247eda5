//! Sums that are kept by adding and subtracting: bytes in use, held, claimed.
//!
//! A sum that would fall below zero is a fault of the engine. A build with debug assertions stops there; any other counts it, goes
//! on with zero, and `status` and `check` tell.

use std::sync::atomic::{AtomicU64, Ordering};

static FAULTS: AtomicU64 = AtomicU64::new(0);

/// Subtracts from a sum, which has to be at least as large.
#[track_caller]
pub fn subtract(sum: &mut u64, by: u64) {
    *sum = remainder(*sum, by);
}

/// As [`subtract`], from a sum that several threads change.
#[track_caller]
pub fn subtract_shared(sum: &AtomicU64, by: u64) {
    let before = sum.fetch_sub(by, Ordering::AcqRel);
    if before < by {
        sum.fetch_add(by - before, Ordering::AcqRel);
        fault(before, by);
    }
}

/// What is left of a sum, which has to be at least as large.
#[track_caller]
pub fn remainder(sum: u64, by: u64) -> u64 {
    sum.checked_sub(by).unwrap_or_else(|| {
        fault(sum, by);
        0
    })
}

/// As [`subtract`], from a sum that was read from a device: what is damaged there may say anything, and is no fault of the engine's own. It is counted
/// all the same.
#[track_caller]
pub fn subtract_stored(sum: &mut u64, by: u64) {
    *sum = sum.checked_sub(by).unwrap_or_else(|| {
        tell(*sum, by);
        0
    });
}

/// Subtractions of this process that would have left less than nothing.
pub fn faults() -> u64 {
    FAULTS.load(Ordering::Relaxed)
}

#[track_caller]
fn fault(sum: u64, by: u64) {
    debug_assert!(sum >= by, "{by} bytes are to be taken off an account that has {sum}");
    tell(sum, by);
}

#[track_caller]
fn tell(sum: u64, by: u64) {
    if FAULTS.fetch_add(1, Ordering::Relaxed) == 0 {
        let caller = std::panic::Location::caller();
        tracing::error!(sum, by, %caller, "an account would have fallen below zero; 'pagefold check' tells whether more is wrong");
    }
}
