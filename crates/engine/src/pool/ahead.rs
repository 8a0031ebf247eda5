//! Reading what will be needed, many reads at once: opening a pool is nothing but waiting for its device otherwise.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;

/// Results that wait to be taken.
const RESULTS_AHEAD: usize = 1024;

/// Reads while a pool is opened. Its threads wait for devices, so that there may be more of them than processors; none has to take work from another.
pub(super) struct Ahead {
    reads_at_once: usize,
}

impl Ahead {
    /// So many reads at once; 1: by the caller's thread alone, in the order in which they are asked for.
    pub(super) const fn new(reads_at_once: usize) -> Self {
        Self { reads_at_once }
    }

    /// `read` of all `items`, each at once.
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

    /// Hands `read` of all `items` to `take`, with their positions, as it comes; until `take` fails.
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
                        // Nobody takes it any more.
                        if sender.send((at, read(item))).is_err() {
                            break;
                        }
                    }
                };
                // Where no more threads are to be had, those that there are do it.
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
            let ahead = Ahead::new(reads_at_once);
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
