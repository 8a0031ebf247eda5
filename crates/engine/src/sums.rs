//! Keeps sums by adding and subtracting: bytes in use, held, claimed.
//!
//! A sum that would fall below zero is a fault of the engine. A build with debug assertions stops there. Any other
//! build counts the fault and goes on with zero, and `status` and `check` report it.

use std::sync::atomic::{AtomicU64, Ordering};

static FAULTS: AtomicU64 = AtomicU64::new(0);
static INEXACT: AtomicU64 = AtomicU64::new(0);

/// Subtracts `by` from a sum, which has to be at least as large.
#[track_caller]
pub(crate) fn subtract(sum: &mut u64, by: u64) {
    *sum = remainder(*sum, by);
}

/// Does what [`subtract`] does, for a sum that several threads change.
#[track_caller]
pub(crate) fn subtract_shared(sum: &AtomicU64, by: u64) {
    let before = sum.fetch_sub(by, Ordering::AcqRel);
    if before < by {
        sum.fetch_add(by - before, Ordering::AcqRel);
        fault(before, by);
    }
}

/// Returns `sum` less `by`. The sum has to be at least as large.
#[track_caller]
pub(crate) fn remainder(sum: u64, by: u64) -> u64 {
    sum.checked_sub(by).unwrap_or_else(|| {
        fault(sum, by);
        0
    })
}

/// Does what [`subtract`] does, for a sum that was read from a device, or a sum of records that were. If something is
/// damaged there, the sum may be anything, which is no fault of the engine. Such subtractions are counted apart.
#[track_caller]
pub(crate) fn subtract_stored(sum: &mut u64, by: u64) {
    *sum = sum.checked_sub(by).unwrap_or_else(|| {
        tell(&INEXACT, *sum, by);
        0
    });
}

/// Returns the number of subtractions of this process from stored sums that were too small.
pub(crate) fn inexact() -> u64 {
    INEXACT.load(Ordering::Relaxed)
}

/// Counts a fault: two accounts of the same thing differ.
#[track_caller]
pub(crate) fn differs(what: &str) {
    debug_assert!(false, "{what} differ");
    if FAULTS.fetch_add(1, Ordering::Relaxed) == 0 {
        tracing::error!(
            what,
            "two accounts of the same differ; 'pagefold check' tells whether more is wrong"
        );
    }
}

/// Returns the number of faults of this process: subtractions that would have left less than nothing, and accounts that
/// differ.
pub(crate) fn faults() -> u64 {
    FAULTS.load(Ordering::Relaxed)
}

#[track_caller]
fn fault(sum: u64, by: u64) {
    debug_assert!(sum >= by, "{by} bytes are to be taken off an account that has {sum}");
    tell(&FAULTS, sum, by);
}

#[track_caller]
fn tell(count: &AtomicU64, sum: u64, by: u64) {
    if count.fetch_add(1, Ordering::Relaxed) == 0 {
        let caller = std::panic::Location::caller();
        tracing::error!(sum, by, %caller, "an account would have fallen below zero; 'pagefold check' tells whether more is wrong");
    }
}
