//! Slots of requests that are being carried out, so that a request that is asked again is not carried out twice.
//!
//! Before a request that changes something is carried out, a slot is taken for it ([`Journal::take_slot`]). The change
//! that is applied meanwhile on the same thread ([`during`]) marks the slot. When the request has been answered the
//! slot is free again. So the slots in use at the death of a process are those of its unanswered requests.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Release};

use super::{Journal, SLOT_WORD};

/// Largest number of requests that are under way at a time; more of them wait.
pub(super) const SLOTS: usize = 1024;
/// Number of words of a slot: the request's number (0: free), its connection, 1 once it is applied, its result.
const WORDS: usize = 4;
pub(super) const SLOTS_WORDS: usize = SLOTS * WORDS;

/// A request of a connection to the kernel. It has the same value when it is asked again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Asked {
    /// The connection.
    pub connection: u32,
    /// The kernel's number of the request, which is never 0.
    pub unique: u64,
}

/// A request that is being carried out, for [`during`].
#[derive(Clone, Copy, Debug)]
pub struct RequestOrigin {
    pub(super) asked: Asked,
    pub(super) slot: usize,
}

thread_local! {
    static ORIGIN: Cell<Option<RequestOrigin>> = const { Cell::new(None) };
    static RESULT: Cell<u64> = const { Cell::new(0) };
}

/// Returns the request that the calling thread is carrying out, and its result as noted.
pub(super) fn origin() -> Option<(RequestOrigin, u64)> {
    ORIGIN.get().map(|origin| (origin, RESULT.get()))
}

/// Calls `call`, whose changes are not the change that the thread's request asks for. They have to come before it, and
/// may be made twice.
pub fn aside<T>(call: impl FnOnce() -> T) -> T {
    let origin = ORIGIN.take();
    let done = call();
    ORIGIN.set(origin);
    done
}

/// Notes the result that will answer the thread's request, before its change is applied.
pub fn note_result(result: u64) {
    RESULT.set(result);
}

/// Carries a request out: the change that `call` applies is the one that `origin` asks for.
pub fn during<T>(origin: Option<RequestOrigin>, call: impl FnOnce() -> T) -> T {
    let Some(origin) = origin else { return call() };
    ORIGIN.set(Some(origin));
    RESULT.set(0);
    let done = call();
    ORIGIN.set(None);
    done
}

/// Free slots, and slots that a dead process left.
pub(super) struct Table {
    pub(super) free: Vec<usize>,
    pub(super) inherited: HashMap<Asked, usize>,
}

/// A slot in use. Dropping it means that the request was answered.
pub struct SlotGuard {
    journal: Arc<Journal>,
    origin: RequestOrigin,
    done: Option<u64>,
}

impl SlotGuard {
    /// Returns the result of a request that was carried out by a process that died before it could answer, as noted (0:
    /// none). Returns `None` for other requests.
    pub fn done(&self) -> Option<u64> {
        self.done
    }

    /// Returns the request, for [`during`].
    pub fn origin(&self) -> RequestOrigin {
        self.origin
    }
}

impl Drop for SlotGuard {
    fn drop(&mut self) {
        self.journal.free(self.origin.slot);
    }
}

impl Journal {
    fn slot(&self, slot: usize, word: usize) -> &std::sync::atomic::AtomicU64 {
        self.map.word(SLOT_WORD + slot * WORDS + word)
    }

    /// Returns a slot for a request, or the slot that it had when the previous process died. Waits if all slots are in
    /// use.
    pub fn take_slot(self: &Arc<Self>, asked: Asked) -> SlotGuard {
        let mut table = self.table.lock();
        if let Some(slot) = table.inherited.remove(&asked) {
            let done = Some(self.slot(slot, 3).load(Acquire));
            return SlotGuard { journal: Arc::clone(self), origin: RequestOrigin { asked, slot }, done };
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
        SlotGuard { journal: Arc::clone(self), origin: RequestOrigin { asked, slot }, done: None }
    }

    /// Marks the request of a slot as applied. Its entry says the same, and is not released before the slot says so.
    pub(super) fn mark_applied(&self, slot: usize, result: u64) {
        self.slot(slot, 3).store(result, Release);
        self.slot(slot, 2).store(1, Release);
    }

    /// Removes the mark: the request was not applied after all.
    pub(super) fn unmark_applied(&self, slot: usize) {
        self.slot(slot, 2).store(0, Release);
    }

    fn free(&self, slot: usize) {
        self.slot(slot, 0).store(0, Release);
        self.table.lock().free.push(slot);
        self.freed.notify_one();
    }

    /// Frees the inherited slots of `connection` that were not taken. All of its requests that are asked again have
    /// taken theirs, so the others had been answered.
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

    /// Takes over the slots of a dead process. `applied` has the results of the requests whose entries were complete.
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
