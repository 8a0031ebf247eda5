//! Reads ahead: a reader that goes on where the last read of an object ended will want the pages that follow.

use std::collections::{HashMap, VecDeque};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Weak};
use std::thread;

use parking_lot::Mutex;

use crate::limits::{
    AHEAD_BYTES_MAX, AHEAD_BYTES_MIN, AHEAD_OBJECTS, AHEAD_PART, AHEAD_QUEUE, AHEAD_THREADS,
};

/// Largest distance in bytes between reads that count as one reader's: the kernel sends two requests of a MiB at once.
const NEAR_BYTES: u64 = 2 << 20;

/// A run of pages of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pages {
    pub(crate) object: u64,
    pub(crate) from: u64,
    pub(crate) to: u64,
}

/// The position of a reader in an object.
#[derive(Clone, Copy)]
struct ReadPosition {
    /// The page after the last one that was read.
    next: u64,
    /// The page after the last one that was requested ahead.
    asked: u64,
    /// Bytes that are requested beyond `next`.
    window: u64,
}

struct ReadPositions {
    /// Most bytes that are requested ahead of a reader.
    window_max: u64,
    of: HashMap<u64, ReadPosition>,
    /// Objects, oldest first.
    order: VecDeque<u64>,
}

impl ReadPositions {
    fn new(window_max: u64) -> Self {
        Self { window_max, of: HashMap::new(), order: VecDeque::new() }
    }

    /// Notes a read; returns the pages to read ahead, if any.
    fn note(&mut self, read: Pages, record_size: u64) -> Option<Pages> {
        let Pages { object, from, to } = read;
        let fresh = ReadPosition { next: to, asked: to, window: AHEAD_BYTES_MIN / 2 };
        let Some(position) = self.of.get_mut(&object) else {
            self.of.insert(object, fresh);
            self.order.push_back(object);
            if self.order.len() > AHEAD_OBJECTS
                && let Some(oldest) = self.order.pop_front()
            {
                self.of.remove(&oldest);
            }
            return None;
        };
        // Several reads of one reader are under way at once, and come in any order.
        let near = (position.window.max(NEAR_BYTES) / record_size).max(1);
        if from > position.next.saturating_add(near) || to.saturating_add(near) < position.next {
            *position = fresh;
            return None;
        }
        if to <= position.next {
            return None;
        }
        position.next = to;
        // Half of the requested pages have been read, so it is time for more.
        let ahead = position.asked.saturating_sub(position.next).saturating_mul(record_size);
        if ahead > position.window / 2 {
            return None;
        }
        position.window = (position.window * 2).min(self.window_max);
        let begin = position.asked.max(position.next);
        let end = position.next.saturating_add((position.window / record_size).max(1));
        position.asked = position.asked.max(end);
        (begin < end).then_some(Pages { object, from: begin, to: end })
    }
}

/// Threads that read ahead.
pub(crate) struct Ahead {
    positions: Mutex<ReadPositions>,
    queue: SyncSender<Pages>,
}

/// Reads pages ahead for [`Ahead`].
pub(crate) trait Prepare: Send + Sync + 'static {
    /// Reads into memory what these pages need.
    fn prepare(&self, pages: Pages);
}

impl Ahead {
    /// Starts the threads; they end when both `who` and this are gone. What they read has to find room in `cache_bytes`
    /// until it is wanted.
    pub(crate) fn start<P: Prepare>(who: &Weak<P>, cache_bytes: u64) -> Self {
        let (queue, jobs) = sync_channel(AHEAD_QUEUE);
        let jobs = Arc::new(Mutex::new(jobs));
        for _ in 0..AHEAD_THREADS {
            let (who, jobs) = (Weak::clone(who), Arc::clone(&jobs));
            let started =
                thread::Builder::new().name("read ahead".into()).spawn(move || work(&who, &jobs)).map(drop);
            if let Err(error) = started {
                tracing::warn!(%error, "cannot start a thread: less is read ahead");
            }
        }
        let window_max = AHEAD_BYTES_MAX.min(cache_bytes / AHEAD_PART);
        Self { positions: Mutex::new(ReadPositions::new(window_max)), queue }
    }

    /// Notes that pages of `record_size` bytes are read, and has threads read the pages that follow.
    pub(crate) fn note(&self, read: Pages, record_size: u32) {
        let wish = self.positions.lock().note(read, record_size.max(1).into());
        if let Some(pages) = wish
            && let Err(TrySendError::Full(_)) = self.queue.try_send(pages)
        {
            tracing::trace!("too much is read ahead already");
        }
    }
}

fn work<P: Prepare>(who: &Weak<P>, jobs: &Mutex<Receiver<Pages>>) {
    loop {
        let job = jobs.lock().recv();
        let (Ok(pages), Some(who)) = (job, who.upgrade()) else { return };
        who.prepare(pages);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = 8192;

    fn read(positions: &mut ReadPositions, object: u64, from: u64, count: u64) -> Option<Pages> {
        positions.note(Pages { object, from, to: from + count }, PAGE)
    }

    #[test]
    fn who_reads_on_is_read_ahead_of_and_who_jumps_is_not() {
        let mut positions = ReadPositions::new(AHEAD_BYTES_MAX);
        assert_eq!(read(&mut positions, 1, 0, 16), None);
        let first = read(&mut positions, 1, 16, 16).unwrap();
        assert_eq!((first.from, first.to), (32, 32 + AHEAD_BYTES_MIN / PAGE));
        let (mut at, mut asked) = (32, first.to);
        for _ in 0..1000 {
            if let Some(next) = read(&mut positions, 1, at, 16) {
                assert_eq!(next.from, asked, "nothing twice, nothing left out");
                asked = next.to;
            }
            at += 16;
            assert!(asked >= at && (asked - at) * PAGE <= AHEAD_BYTES_MAX + 16 * PAGE);
        }
        for far in [1_000_000, 5_000_000, 9_000_000] {
            assert_eq!(read(&mut positions, 1, far, 1), None);
        }
    }

    #[test]
    fn memory_for_it_is_bounded() {
        let mut positions = ReadPositions::new(AHEAD_BYTES_MAX);
        for object in 0..5 * AHEAD_OBJECTS as u64 {
            read(&mut positions, object, 0, 1);
        }
        assert!(positions.of.len() <= AHEAD_OBJECTS && positions.order.len() <= AHEAD_OBJECTS);
    }
}
