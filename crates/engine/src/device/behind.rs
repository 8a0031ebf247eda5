//! Writes that nobody waits for: those of the log to the devices that hold the data, while the log device has the same.
//!
//! They are made by a thread of their own, in the order in which they came, and several that lie one behind the other at
//! once. Until one has ended, reads of its bytes wait for it, and so do flushes. Without that thread a write is made at
//! once. After one that failed all flushes fail: nobody else is told.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::AlignedBuf;
use crate::{Error, Result};

/// Largest number of bytes that wait. Who writes more waits for the device.
const WAITING_BYTES_MAX: usize = 16 << 20;
/// Largest number of bytes that are written at once.
const WRITE_BYTES_MAX: usize = 1 << 20;

/// A write that waits.
struct WriteBehind {
    group: u16,
    offset: u64,
    buf: AlignedBuf,
}

impl WriteBehind {
    fn bytes(&self) -> Range<u64> {
        self.offset..self.offset + self.buf.len() as u64
    }
}

/// Writes that nobody waits for.
#[derive(Default)]
pub(super) struct WritesBehind {
    state: Mutex<WriteQueue>,
    /// Number of writes that have not ended: with none, nothing has to be locked.
    count: AtomicUsize,
    changed: Condvar,
}

#[derive(Default)]
struct WriteQueue {
    queue: VecDeque<WriteBehind>,
    /// Places of the writes that have not ended, those under way included, by their numbers.
    places: VecDeque<(u64, u16, Range<u64>)>,
    waiting_bytes: usize,
    /// Number of writes that have come.
    begun: u64,
    is_served: bool,
    failed: Option<String>,
}

impl WritesBehind {
    /// Takes a write. Returns it if it has to be made at once: there is no thread for it.
    pub(super) fn take(&self, group: u16, offset: u64, buf: AlignedBuf) -> Option<AlignedBuf> {
        let mut state = self.state.lock();
        while state.is_served && state.waiting_bytes > WAITING_BYTES_MAX {
            self.changed.wait(&mut state);
        }
        if !state.is_served {
            // Those before it come first.
            self.drained(&mut state);
            return Some(buf);
        }
        let waiting = WriteBehind { group, offset, buf };
        state.begun += 1;
        state.waiting_bytes += waiting.buf.len();
        let place = (state.begun, group, waiting.bytes());
        state.places.push_back(place);
        state.queue.push_back(waiting);
        self.count.store(state.places.len(), Ordering::Release);
        drop(state);
        self.changed.notify_all();
        None
    }

    /// Waits until no byte of a place is being written.
    pub(super) fn wait_for(&self, group: u16, bytes: &Range<u64>) {
        if self.count.load(Ordering::Acquire) == 0 {
            return;
        }
        let mut state = self.state.lock();
        let meets = |state: &WriteQueue| {
            let of_group = state.places.iter().filter(|(_, of, _)| *of == group);
            of_group.into_iter().any(|(_, _, other)| other.start < bytes.end && bytes.start < other.end)
        };
        while meets(&state) {
            self.changed.wait(&mut state);
        }
    }

    /// Waits until all writes that have come by now have ended.
    ///
    /// # Errors
    /// [`Error::Failed`] if one of them failed, or any before.
    pub(super) fn settle(&self) -> Result<()> {
        let mut state = self.state.lock();
        let begun = state.begun;
        while state.places.front().is_some_and(|(number, ..)| *number <= begun) {
            self.changed.wait(&mut state);
        }
        match &state.failed {
            Some(why) => Err(Error::Failed(why.clone())),
            None => Ok(()),
        }
    }

    fn drained(&self, state: &mut MutexGuard<'_, WriteQueue>) {
        while !state.places.is_empty() {
            self.changed.wait(state);
        }
    }

    /// Makes the writes that come, until [`WritesBehind::stop`].
    pub(super) fn serve(&self, write: &dyn Fn(u16, u64, &AlignedBuf) -> Result<()>) {
        let mut state = self.state.lock();
        loop {
            let Some(first) = state.queue.pop_front() else {
                if !state.is_served {
                    return;
                }
                self.changed.wait(&mut state);
                continue;
            };
            let (group, offset, buf, count) = joined(first, &mut state.queue);
            let len = buf.len();
            drop(state);
            let written = write(group, offset, &buf);
            state = self.state.lock();
            if let Err(error) = written {
                tracing::error!("what was to be written in the background is not on its devices: {error}");
                state.failed.get_or_insert_with(|| error.to_string());
            }
            state.waiting_bytes -= len;
            state.places.drain(..count);
            self.count.store(state.places.len(), Ordering::Release);
            self.changed.notify_all();
        }
    }

    /// Says that there is a thread that serves, or that it is to end when nothing waits any more.
    pub(super) fn set_served(&self, is_served: bool) {
        self.state.lock().is_served = is_served;
        self.changed.notify_all();
    }
}

/// Joins a write with those that continue it. Returns their number, too.
fn joined(first: WriteBehind, queue: &mut VecDeque<WriteBehind>) -> (u16, u64, AlignedBuf, usize) {
    let WriteBehind { group, offset, buf } = first;
    let (mut end, mut count) = (offset + buf.len() as u64, 1);
    for next in queue.iter() {
        if next.group != group
            || next.offset != end
            || (end - offset) as usize + next.buf.len() > WRITE_BYTES_MAX
        {
            break;
        }
        end += next.buf.len() as u64;
        count += 1;
    }
    if count == 1 {
        return (group, offset, buf, 1);
    }
    let mut all = AlignedBuf::scratch((end - offset) as usize);
    let mut at = 0;
    for part in std::iter::once(buf).chain(queue.drain(..count - 1).map(|waiting| waiting.buf)) {
        if let Some(place) = all.get_mut(at..at + part.len()) {
            place.copy_from_slice(&part);
        }
        at += part.len();
    }
    (group, offset, all, count)
}

#[cfg(test)]
mod tests;
