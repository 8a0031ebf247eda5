//! Reading what will be needed, many reads at once: opening a pool is nothing but waiting for its device otherwise.

use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

/// Reads while a pool is opened. Its threads wait for devices, so that there may be more of them than processors; none has to take work from another.
pub(super) struct Ahead {
    reads_at_once: usize,
}

impl Ahead {
    /// So many reads at once; 1: by the caller's thread alone, in the order in which they are asked for.
    pub(super) const fn new(reads_at_once: usize) -> Self {
        Self { reads_at_once }
    }

    /// `read` of all `items`, in their order.
    pub(super) fn map<T: Sync, R: Send>(&self, items: &[T], read: impl Fn(&T) -> R + Sync) -> Vec<R> {
        let threads = self.reads_at_once.min(items.len());
        if threads < 2 {
            return items.iter().map(read).collect();
        }
        let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::with_capacity(items.len())));
        let work = || {
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                let Some(item) = items.get(at) else { break };
                let result = read(item);
                done.lock().push((at, result));
            }
        };
        std::thread::scope(|scope| {
            let spawn = || std::thread::Builder::new().name("pf-open".into()).spawn_scoped(scope, work);
            // Where no more threads are to be had, those that there are do it.
            (1..threads).take_while(|_| spawn().is_ok()).for_each(drop);
            work();
        });
        let mut done = done.into_inner();
        done.sort_unstable_by_key(|(at, _)| *at);
        done.into_iter().map(|(_, result)| result).collect()
    }
}
