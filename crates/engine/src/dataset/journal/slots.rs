//! Which requests have been carried out, so that one that is asked again is not done twice.
//!
//! Who is about to carry out a request that changes something claims a slot for it ([`Journal::claim`]); the change that
//! is applied meanwhile on the same thread ([`during`]) marks it; when the request has been answered the slot is
//! free again. So the slots in use at the death of a process are those of its unanswered requests.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Release};

use super::{Journal, SLOT_WORD};

/// How many requests can be under way at a time; more wait.
pub(super) const SLOTS: usize = 1024;
/// Words of a slot: the request's number (0: free), its connection, 1 once it is applied, its result.
const WORDS: usize = 4;
pub(super) const SLOTS_WORDS: usize = SLOTS * WORDS;

/// A request of a connection to the kernel: the same when it is asked again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Asked {
    /// The connection.
    pub connection: u32,
    /// The kernel's number of the request, which is never 0.
    pub unique: u64,
}

/// A request that is being carried out, for [`during`].
#[derive(Clone, Copy, Debug)]
pub struct Origin {
    pub(super) asked: Asked,
    pub(super) slot: usize,
}

thread_local! {
    static ORIGIN: Cell<Option<Origin>> = const { Cell::new(None) };
    static RESULT: Cell<u64> = const { Cell::new(0) };
}

/// The request that the calling thread is carrying out.
pub(super) fn origin() -> Option<(Origin, u64)> {
    ORIGIN.get().map(|origin| (origin, RESULT.get()))
}

/// What is applied in `call` is not the change that the thread's request asks for: something that has to come first, and may
/// come twice.
pub fn aside<T>(call: impl FnOnce() -> T) -> T {
    let origin = ORIGIN.take();
    let done = call();
    ORIGIN.set(origin);
    done
}

/// Notes what the thread's request will be answered with, before its change is applied.
pub fn note_result(result: u64) {
    RESULT.set(result);
}

/// Carries a request out: the change that `call` applies is what `origin` asks for.
pub fn during<T>(origin: Option<Origin>, call: impl FnOnce() -> T) -> T {
    let Some(origin) = origin else { return call() };
    ORIGIN.set(Some(origin));
    RESULT.set(0);
    let done = call();
    ORIGIN.set(None);
    done
}

/// Slots that are free, and those that a dead process left.
pub(super) struct Table {
    pub(super) free: Vec<usize>,
    pub(super) inherited: HashMap<Asked, usize>,
}

/// A slot in use. Dropping it says that the request was answered.
pub struct Claim {
    journal: Arc<Journal>,
    origin: Origin,
    done: Option<u64>,
}

impl Claim {
    /// If the request was carried out by a process that died before it could answer: its result as noted (0: none).
    pub fn done(&self) -> Option<u64> {
        self.done
    }

    /// For [`during`].
    pub fn origin(&self) -> Origin {
        self.origin
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.journal.free(self.origin.slot);
    }
}

impl Journal {
    fn slot(&self, slot: usize, word: usize) -> &std::sync::atomic::AtomicU64 {
        self.map.word(SLOT_WORD + slot * WORDS + word)
    }

    /// A slot for a request, or the one that it had when the process before died. Waits where all are in use.
    pub fn claim(self: &Arc<Self>, asked: Asked) -> Claim {
        let mut table = self.table.lock();
        if let Some(slot) = table.inherited.remove(&asked) {
            let done = Some(self.slot(slot, 3).load(Acquire));
            return Claim { journal: Arc::clone(self), origin: Origin { asked, slot }, done };
        }
        let slot = loop {
            match table.free.pop() {
                Some(slot) => break slot,
                None => self.freed.wait(&mut table),
            }
        };
        drop(table);
        self.slot(slot, 1).store(asked.connection.into(), Release);
        self.slot(slot, 2).store(0, Release);
        self.slot(slot, 3).store(0, Release);
        self.slot(slot, 0).store(asked.unique, Release);
        Claim { journal: Arc::clone(self), origin: Origin { asked, slot }, done: None }
    }

    /// The request of a slot is applied. Its entry says so too, and stays at least as long as this is not said.
    pub(super) fn mark_applied(&self, slot: usize, result: u64) {
        self.slot(slot, 3).store(result, Release);
        self.slot(slot, 2).store(1, Release);
    }

    /// It was not applied after all.
    pub(super) fn unmark_applied(&self, slot: usize) {
        self.slot(slot, 2).store(0, Release);
    }

    fn free(&self, slot: usize) {
        self.slot(slot, 0).store(0, Release);
        self.table.lock().free.push(slot);
        self.freed.notify_one();
    }

    /// All requests of `connection` that are asked again have claimed their slots: the others had been answered.
    pub fn all_asked(&self, connection: u32) {
        let mut table = self.table.lock();
        let answered: Vec<_> = table
            .inherited
            .extract_if(|asked, _| asked.connection == connection)
            .map(|(_, slot)| slot)
            .collect();
        for slot in answered {
            self.slot(slot, 0).store(0, Release);
            table.free.push(slot);
        }
        self.freed.notify_all();
    }

    /// Takes over the slots of a dead process. `applied` tells the result of requests whose entries were complete.
    pub(super) fn inherit(&self, applied: &HashMap<Asked, u64>) {
        let mut table = self.table.lock();
        table.free.clear();
        table.inherited.clear();
        for slot in 0..SLOTS {
            let unique = self.slot(slot, 0).load(Acquire);
            let connection = self.slot(slot, 1).load(Acquire) as u32;
            let asked = Asked { connection, unique };
            if unique != 0
                && self.slot(slot, 2).load(Acquire) == 0
                && let Some(result) = applied.get(&asked)
            {
                self.mark_applied(slot, *result);
            }
            if unique != 0 && self.slot(slot, 2).load(Acquire) != 0 {
                table.inherited.insert(asked, slot);
            } else {
                self.slot(slot, 0).store(0, Release);
                table.free.push(slot);
            }
        }
    }
}
