//! The device reads that the kernel makes for a ring's requests.
//!
//! The kernel writes into the memory of a read until it has ended it; so the read stays here until then, also if the
//! request does not wait for it any more. Memory of reads that have not ended when the ring is dropped is leaked.

use std::time::{Duration, Instant};

use io_uring::types;
use pagefold_engine::dataset::LateFetch;

use super::Wiring;
use crate::blocking::Blocking;
use crate::request::Fetching;

/// A read of a device.
#[allow(
    clippy::large_enum_variant,
    reason = "nearly all are of the large one, which should not be allocated"
)]
enum DeviceRead {
    /// A request waits for it, until then if another device has the same.
    Awaited(Fetching, Option<Instant>),
    /// The request has gone on without it.
    Late(LateFetch),
}

/// Reads of devices, by index, and the timer for those that are overdue.
#[derive(Default)]
pub(super) struct DeviceReads {
    reads: Vec<Option<DeviceRead>>,
    free: Vec<u64>,
    is_armed: bool,
    /// The time of the timer, in memory from which the kernel reads it.
    time: Box<types::Timespec>,
}

impl DeviceReads {
    /// Takes a read that the caller hands to the kernel next. Returns its index.
    pub(super) fn begin(&mut self, fetching: Fetching) -> u64 {
        let due = fetching.fetch.due_in().map(|rest| Instant::now() + rest);
        let index = self.free.pop().unwrap_or_else(|| {
            self.reads.push(None);
            self.reads.len() as u64 - 1
        });
        if let Some(slot) = self.reads.get_mut(index as usize) {
            *slot = Some(DeviceRead::Awaited(fetching, due));
        }
        index
    }

    /// Ends a read. Returns the request that waits for it; `None` if it has gone on without it.
    pub(super) fn end(&mut self, index: u64, result: i32) -> Option<Fetching> {
        let Some(read) = self.reads.get_mut(index as usize).and_then(Option::take) else {
            tracing::error!(index, "a completion for a read that was not asked for");
            return None;
        };
        self.free.push(index);
        match read {
            DeviceRead::Awaited(fetching, _) => Some(fetching),
            DeviceRead::Late(late) => {
                late.end(result);
                None
            }
        }
    }

    /// Returns the time of the timer if it has to be armed: a read may become overdue, and it is not armed.
    pub(super) fn arm(&mut self) -> Option<*const types::Timespec> {
        if self.is_armed {
            return None;
        }
        let due = self.reads.iter().flatten().filter_map(|read| match read {
            DeviceRead::Awaited(_, due) => *due,
            DeviceRead::Late(_) => None,
        });
        let rest = due.min()?.saturating_duration_since(Instant::now());
        self.is_armed = true;
        *self.time = rest.max(Duration::from_micros(1)).into();
        Some(&raw const *self.time)
    }

    /// Has the requests go on whose reads are overdue. The timer has passed.
    pub(super) fn hand_on_overdue(&mut self, wiring: &Wiring, blocking: &Blocking) {
        self.is_armed = false;
        let now = Instant::now();
        for slot in &mut self.reads {
            *slot = match slot.take() {
                Some(DeviceRead::Awaited(fetching, Some(due))) if due <= now => {
                    Some(DeviceRead::Late(wiring.handler.overdue(fetching, blocking)))
                }
                other => other,
            };
        }
    }
}

impl Drop for DeviceReads {
    fn drop(&mut self) {
        for read in self.reads.drain(..).flatten() {
            match read {
                DeviceRead::Awaited(fetching, _) => std::mem::forget(fetching),
                DeviceRead::Late(late) => late.leak(),
            }
        }
    }
}
