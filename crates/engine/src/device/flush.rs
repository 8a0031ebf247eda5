//! Does the same on several devices at once: each takes milliseconds, of which the slowest is enough to wait for.

use std::sync::LazyLock;

use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::{Error, Result};

/// A flush that failed.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub(crate) struct FlushFailure {
    /// Number of the group.
    pub group: u16,
    /// The device's error.
    pub error: Error,
}

impl From<FlushFailure> for Error {
    fn from(failure: FlushFailure) -> Self {
        failure.error
    }
}

/// Largest number of devices that work at once, beside the one that the caller waits for itself.
const AT_ONCE_MAX: usize = 16;

/// Threads that wait for devices; `None` if there can be none.
static WAITERS: LazyLock<Option<ThreadPool>> = LazyLock::new(|| {
    let pool =
        ThreadPoolBuilder::new().num_threads(AT_ONCE_MAX).thread_name(|number| format!("pf-device-{number}"));
    pool.build().inspect_err(|error| tracing::warn!(%error, "devices are written one after the other")).ok()
});

/// Does `work` on each item, the first by this thread and others at the same time by threads of their own. Returns the
/// outcomes in the order of the items. With `in_turn`, or without threads, one comes after the other.
pub(super) fn at_once<T: Sync>(
    items: &[T],
    in_turn: bool,
    work: &(dyn Fn(&T) -> Result<()> + Sync),
) -> Vec<Result<()>> {
    let (first, others) = match items {
        [first, others @ ..] if !others.is_empty() && !in_turn => (first, others),
        _ => return items.iter().map(work).collect(),
    };
    let Some(waiters) = WAITERS.as_ref() else { return items.iter().map(work).collect() };
    let mut outcomes: Vec<Result<()>> = items.iter().map(|_| Ok(())).collect();
    if let [own, rest @ ..] = outcomes.as_mut_slice() {
        waiters.in_place_scope(|scope| {
            for (item, outcome) in others.iter().zip(rest) {
                scope.spawn(move |_| *outcome = work(item));
            }
            *own = work(first);
        });
    }
    outcomes
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    #[test]
    fn all_work_at_once_and_each_has_its_own_outcome() {
        let barrier = Barrier::new(3);
        let work = |number: &u64| {
            barrier.wait();
            if *number == 1 { Err(Error::Failed("one".into())) } else { Ok(()) }
        };
        let outcomes = at_once(&[0, 1, 2], false, &work);
        assert_eq!(outcomes.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, false, true]);
    }

    #[test]
    fn in_turn_one_comes_after_the_other() {
        let order = parking_lot::Mutex::new(Vec::new());
        let work = |number: &u64| {
            order.lock().push(*number);
            Ok(())
        };
        assert!(at_once(&[3, 1, 2], true, &work).iter().all(Result::is_ok));
        assert_eq!(order.into_inner(), [3, 1, 2]);
    }
}
