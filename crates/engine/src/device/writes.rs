//! Writes to a group that are under way, and those that no flush has covered yet.
//!
//! - H2: a write is in one of the two from before it is sent to the first member until a flush has covered it. So what
//!   a member may lack at the moment at which it is left out is what is in the two then ([`Writes::uncovered`]).
//! - H3: a region is copied from one member to another only while no write to it is under way ([`Writes::begin_copy`]).

use std::collections::BTreeMap;
use std::ops::Range;

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::REGION_BYTES;
use crate::ranges::Ranges;

/// Returns the numbers of the regions that a range of bytes touches.
pub(super) const fn regions(bytes: &Range<u64>) -> Range<u64> {
    bytes.start / REGION_BYTES..bytes.end.div_ceil(REGION_BYTES)
}

const fn overlap(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

/// The writes of one group.
#[derive(Default)]
pub(super) struct Writes {
    state: Mutex<WritesState>,
    /// Signalled when a write or a copy ends.
    ended: Condvar,
}

#[derive(Default)]
struct WritesState {
    /// Bytes of the writes under way, by the number of the write.
    under_way: BTreeMap<u64, Range<u64>>,
    /// Bytes that are being copied from one member to another.
    copying: Option<Range<u64>>,
    /// Regions of writes that have ended, and that no flush which began afterwards has covered.
    unflushed: Ranges,
    /// The same of writes that a flush under way may cover, by the number of the flush.
    flushing: BTreeMap<u64, Ranges>,
    /// Regions that were written since the last superblock counted; and of these, what the superblock has that is being
    /// written now.
    since: Ranges,
    before: Ranges,
    /// Number of writes and flushes that have begun.
    begun: u64,
}

/// A write that is under way. It ends when this is dropped.
pub(super) struct WriteUnderWay<'a> {
    writes: &'a Writes,
    number: u64,
    durable: bool,
}

/// A copy that is under way. It ends when this is dropped.
pub(super) struct CopyUnderWay<'a>(&'a Writes);

impl Writes {
    /// Begins a write. Waits while one of its bytes is being copied; then it calls `hurry` with true before, and with
    /// false afterwards.
    pub(super) fn begin(&self, bytes: Range<u64>, hurry: &dyn Fn(bool)) -> WriteUnderWay<'_> {
        let mut state = self.state.lock();
        let meets =
            |state: &WritesState| state.copying.as_ref().is_some_and(|copying| overlap(copying, &bytes));
        if meets(&state) {
            MutexGuard::unlocked(&mut state, || hurry(true));
            while meets(&state) {
                self.ended.wait(&mut state);
            }
            MutexGuard::unlocked(&mut state, || hurry(false));
            // Another copy may have begun meanwhile.
            while meets(&state) {
                self.ended.wait(&mut state);
            }
        }
        state.begun += 1;
        let number = state.begun;
        state.under_way.insert(number, bytes.clone());
        WriteUnderWay { writes: self, number, durable: false }
    }

    /// Begins a copy, when no write to one of its bytes is under way. Writes to them wait until it ends; so does
    /// another copy.
    pub(super) fn begin_copy(&self, bytes: Range<u64>) -> CopyUnderWay<'_> {
        let mut state = self.state.lock();
        while state.copying.is_some() {
            self.ended.wait(&mut state);
        }
        // Writes that come from here on wait, so that those under way come to an end.
        state.copying = Some(bytes.clone());
        while state.under_way.values().any(|write| overlap(write, &bytes)) {
            self.ended.wait(&mut state);
        }
        CopyUnderWay(self)
    }

    /// Waits until all writes that are under way now have ended.
    pub(super) fn drain(&self) {
        let mut state = self.state.lock();
        let begun = state.begun;
        while state.under_way.first_key_value().is_some_and(|(number, _)| *number <= begun) {
            self.ended.wait(&mut state);
        }
    }

    /// Notes that a member was written to by a copy, or while a copy kept others from these bytes.
    pub(super) fn note(&self, bytes: &Range<u64>) {
        let mut state = self.state.lock();
        state.unflushed.insert_range(regions(bytes));
        state.since.insert_range(regions(bytes));
    }

    /// Notes a write to several members, which has begun.
    pub(super) fn note_since(&self, bytes: &Range<u64>) {
        self.state.lock().since.insert_range(regions(bytes));
    }

    /// Notes what was written since the superblock by which the pool was opened.
    pub(super) fn set_since(&self, written: &Ranges) {
        let mut state = self.state.lock();
        written.iter().for_each(|range| state.since.insert_range(range));
    }

    /// Notes that a superblock is to be written: all writes that have ended by now will be on every member that gets it.
    pub(super) fn begin_superblock(&self) {
        let mut state = self.state.lock();
        let state = &mut *state;
        std::mem::take(&mut state.since).iter().for_each(|range| state.before.insert_range(range));
        state.under_way.values().for_each(|bytes| state.since.insert_range(regions(bytes)));
    }

    /// Notes that the superblock counts, on every member that is not left out; or that it could not be written.
    pub(super) fn end_superblock(&self, counts: bool) {
        let mut state = self.state.lock();
        let state = &mut *state;
        let before = std::mem::take(&mut state.before);
        if !counts {
            before.iter().for_each(|range| state.since.insert_range(range));
        }
    }

    /// Returns the number of a flush that begins now.
    pub(super) fn begin_flush(&self) -> u64 {
        let mut state = self.state.lock();
        state.begun += 1;
        let (number, covered) = (state.begun, std::mem::take(&mut state.unflushed));
        state.flushing.insert(number, covered);
        number
    }

    /// Notes that a flush has ended, on every member that is not left out.
    pub(super) fn end_flush(&self, number: u64, covered: bool) {
        let mut state = self.state.lock();
        if covered {
            // Flushes that began before cover less.
            state.flushing = state.flushing.split_off(&(number + 1));
        } else if let Some(not_covered) = state.flushing.remove(&number) {
            not_covered.iter().for_each(|regions| state.unflushed.insert_range(regions));
        }
    }

    /// Returns the regions of which a member that is left out at this moment may lack something; or a copy of it that was
    /// made at any time since it got its last superblock, which is all by which they are told apart.
    pub(super) fn uncovered(&self) -> Ranges {
        let state = self.state.lock();
        let mut all = state.unflushed.clone();
        [&state.since, &state.before]
            .into_iter()
            .flat_map(Ranges::iter)
            .for_each(|regions| all.insert_range(regions));
        state.flushing.values().flat_map(Ranges::iter).for_each(|regions| all.insert_range(regions));
        state.under_way.values().for_each(|bytes| all.insert_range(regions(bytes)));
        all
    }
}

impl WriteUnderWay<'_> {
    /// Notes that the write is on stable storage of every member that is not left out.
    pub(super) fn is_durable(&mut self) {
        self.durable = true;
    }
}

impl Drop for WriteUnderWay<'_> {
    fn drop(&mut self) {
        let mut state = self.writes.state.lock();
        if let Some(bytes) = state.under_way.remove(&self.number)
            && !self.durable
        {
            state.unflushed.insert_range(regions(&bytes));
        }
        drop(state);
        self.writes.ended.notify_all();
    }
}

impl Drop for CopyUnderWay<'_> {
    fn drop(&mut self) {
        self.0.state.lock().copying = None;
        self.0.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::thread;

    use super::*;

    const ONE: Range<u64> = 0..REGION_BYTES;

    #[test]
    fn a_write_is_uncovered_until_a_flush_that_began_after_its_end() {
        let writes = Writes::default();
        let write = writes.begin(ONE, &|_| ());
        assert_eq!(writes.uncovered().len(), 1, "it is under way");
        let early = writes.begin_flush();
        drop(write);
        writes.end_flush(early, true);
        assert_eq!(writes.uncovered().len(), 1, "the flush began before it ended");
        let failed = writes.begin_flush();
        assert_eq!(writes.uncovered().len(), 1, "the flush is under way");
        writes.end_flush(failed, false);
        assert_eq!(writes.uncovered().len(), 1, "the flush failed");
        let (first, second) = (writes.begin_flush(), writes.begin_flush());
        writes.end_flush(second, true);
        assert_eq!(writes.uncovered().len(), 0);
        writes.end_flush(first, true);
        let mut durable = writes.begin(ONE, &|_| ());
        durable.is_durable();
        drop(durable);
        assert_eq!(writes.uncovered().len(), 0);
    }

    #[test]
    fn what_was_written_since_the_last_superblock_is_uncovered_even_if_it_was_flushed() {
        let writes = Writes::default();
        let write = |at: u64, superblock: bool| {
            let bytes = at * REGION_BYTES..(at + 1) * REGION_BYTES;
            let mut write = writes.begin(bytes.clone(), &|_| ());
            writes.note_since(&bytes);
            if superblock {
                writes.begin_superblock();
            }
            write.is_durable();
        };
        let uncovered =
            || writes.uncovered().iter().map(|range| (range.start, range.end)).collect::<Vec<_>>();
        write(1, false);
        assert_eq!(uncovered(), [(1, 2)]);
        // One that is under way when the superblock begins need not be on the devices before it.
        write(3, true);
        write(5, false);
        assert_eq!(uncovered(), [(1, 2), (3, 4), (5, 6)]);
        writes.end_superblock(false);
        assert_eq!(uncovered(), [(1, 2), (3, 4), (5, 6)]);
        write(7, true);
        writes.end_superblock(true);
        assert_eq!(uncovered(), [(7, 8)]);
        writes.note(&(9 * REGION_BYTES..10 * REGION_BYTES));
        let flush = writes.begin_flush();
        writes.end_flush(flush, true);
        assert_eq!(uncovered(), [(7, 8), (9, 10)]);
    }

    #[test]
    fn a_write_that_waits_for_a_copy_has_it_hurry() {
        let writes = &Writes::default();
        thread::scope(|scope| {
            let (told, events) = channel();
            let copy = writes.begin_copy(ONE);
            scope.spawn(move || drop(writes.begin(ONE, &|hurried| told.send(hurried).unwrap())));
            assert_eq!(events.recv(), Ok(true));
            drop(copy);
            assert_eq!(events.recv(), Ok(false));
        });
        drop(writes.begin(ONE, &|_| panic!("nothing is being copied")));
    }

    #[test]
    fn copies_and_writes_of_the_same_bytes_wait_for_each_other() {
        let writes = &Writes::default();
        thread::scope(|scope| {
            let (told, events) = channel();
            let first = writes.begin(10..20, &|_| ());
            let copier = told.clone();
            scope.spawn(move || {
                let copy = writes.begin_copy(ONE);
                let state = writes.state.lock();
                assert!(state.under_way.values().all(|write| !overlap(write, &ONE)));
                drop(state);
                copier.send("copied").unwrap();
                drop(copy);
            });
            // Another region is not concerned, whoever waits.
            drop(writes.begin(REGION_BYTES..2 * REGION_BYTES, &|_| ()));
            told.send("first has ended").unwrap();
            drop(first);
            let seen: Vec<&str> = events.iter().take(2).collect();
            assert_eq!(seen, ["first has ended", "copied"]);
            // It waits for the copy, if that has not ended.
            drop(writes.begin(ONE, &|_| ()));
        });
    }
}
