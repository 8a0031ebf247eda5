//! Space of what was deleted and is not freed yet.
//!
//! Deleting is quick, and the space of what was deleted is freed in the background. A write that finds no space in the
//! meantime is not refused: its file system asks for that space first ([`Reapers::reap_some`]).

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

/// Something that has space to free: a file system with deleted files.
pub trait Reaper: Send + Sync {
    /// Frees some of that space, by changes of its dataset.
    fn reap_some(&self);
}

/// All reapers of a pool.
#[derive(Default)]
pub struct Reapers {
    all: Mutex<Vec<Weak<dyn Reaper>>>,
    frees: AtomicU64,
}

impl Reapers {
    /// Adds a reaper, and forgets those that are gone.
    pub fn add(&self, reaper: Weak<dyn Reaper>) {
        let mut all = self.all.lock();
        all.retain(|one| one.strong_count() > 0);
        all.push(reaper);
    }

    /// Notes a change that may have freed space.
    pub fn note(&self) {
        self.frees.fetch_add(1, Ordering::Release);
    }

    /// Returns the number of changes so far that may have freed space.
    pub fn frees(&self) -> u64 {
        self.frees.load(Ordering::Acquire)
    }

    /// Has one reaper after another free some space, until one does. If [`Reapers::frees`] is the same afterwards as
    /// before a change was refused, there was nothing to free. The caller holds no lock that a change takes.
    pub fn reap_some(&self) {
        let before = self.frees();
        let all: Vec<Arc<dyn Reaper>> = self.all.lock().iter().filter_map(Weak::upgrade).collect();
        for reaper in all {
            reaper.reap_some();
            if self.frees() != before {
                break;
            }
        }
    }
}
