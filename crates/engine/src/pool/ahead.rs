//! Reads what will be needed, many reads at once: otherwise opening a pool is nothing but waiting for its device.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;

/// Largest number of results that wait to be taken. More would only take memory that has to be mapped first, while the
/// caller's thread lacks a processor.
const RESULTS_AHEAD: usize = 64;

/// A reader for the opening of a pool. Its threads wait for devices, so that there may be more of them than processors;
/// none has to take work from another.
pub(super) struct ReadAhead {
    reads_at_once: usize,
}

impl ReadAhead {
    /// Makes a reader that does `reads_at_once` reads at once; with 1 the caller's thread reads alone, in the order of
    /// the items.
    pub(super) const fn new(reads_at_once: usize) -> Self {
        Self { reads_at_once }
    }

    /// Returns the results of `read` for all `items`, in their order.
    pub(super) fn map<T: Sync, R: Send>(&self, items: &[T], read: impl Fn(&T) -> R + Sync) -> Vec<R> {
        let mut results: Vec<Option<R>> = items.iter().map(|_| None).collect();
        let all = self.each(items, read, |at, result| {
            if let Some(place) = results.get_mut(at) {
                *place = Some(result);
            }
            Ok::<(), ()>(())
        });
        debug_assert_eq!(all, Ok(()));
        results.into_iter().flatten().collect()
    }

    /// Calls `read` for all `items`, and `take` with each result and the item's position as it comes, until `take`
    /// fails.
    pub(super) fn each<T: Sync, R: Send, E>(
        &self,
        items: &[T],
        read: impl Fn(&T) -> R + Sync,
        mut take: impl FnMut(usize, R) -> Result<(), E>,
    ) -> Result<(), E> {
        let threads = self.reads_at_once.min(items.len());
        let next = AtomicUsize::new(0);
        let next_item = || {
            let at = next.fetch_add(1, Ordering::Relaxed);
            items.get(at).map(|item| (at, item))
        };
        std::thread::scope(|scope| {
            let (sender, results) = sync_channel(RESULTS_AHEAD);
            for _ in 0..if threads < 2 { 0 } else { threads } {
                let (sender, read, next_item) = (sender.clone(), &read, &next_item);
                let work = move || {
                    while let Some((at, item)) = next_item() {
                        // An error means that nobody takes results any more.
                        if sender.send((at, read(item))).is_err() {
                            break;
                        }
                    }
                };
                // If no more threads can be had, those that there are do it.
                if std::thread::Builder::new().name("pf-open".into()).spawn_scoped(scope, work).is_err() {
                    break;
                }
            }
            drop(sender);
            results.into_iter().try_for_each(|(at, result)| take(at, result))?;
            while let Some((at, item)) = next_item() {
                take(at, read(item))?;
            }
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_is_read_and_in_order_where_that_is_asked_for() {
        let items: Vec<u64> = (0..5000).collect();
        for reads_at_once in [1, 2, 64] {
            let ahead = ReadAhead::new(reads_at_once);
            assert!(ahead.map(&items, |item| item * 3).into_iter().eq(items.iter().map(|item| item * 3)));
            let mut left = 3000;
            let result = ahead.each(
                &items,
                |item| *item,
                |at, item| {
                    assert_eq!(at as u64, item);
                    left -= 1;
                    if left > 0 { Ok(()) } else { Err("enough") }
                },
            );
            assert_eq!((result, left), (Err("enough"), 0));
        }
    }
}
