//! Reads of mirrors that somebody waits for: one that is overdue is sent to another member, too, and the first answer
//! counts.
//!
//! Reads go through an io_uring of the thread, with one system call as before, since only there a thread can wait for a
//! time and leave the read alone then.
//!
//! - O1: the kernel writes only to memory that a ring has, until it has ended the read ([`HedgeRing`]).
//! - O2: when a thread has what it wants, its ring has no reads under way: one that has is given away
//!   ([`super::late`]). So a thread may end at any time.
//! - O3: a read that nobody waits for does not keep its device open. The kernel has the file until then.
//!
//! While nobody else can be asked, a device is waited for until it answers, or is given up or left out because of other
//! requests (S2 of [`super::answers`]): it may be the only one that has the bytes.
//!
//! Where the kernel has no io_uring, or refuses it, reads are made as those of other devices, and nothing is sent twice.

use std::cell::Cell;
use std::io;

use smallvec::SmallVec;

use super::answers::SLICE_NS;
use super::devices::Devices;
use super::late::{self, Rings};
use super::planned::{PlannedRead, Span};
use super::stats::now_ns;
use crate::{Error, Result};
use ring::{HedgeRing, READS_MAX};

mod ring;

thread_local! {
    /// The ring of the thread; `None` before its first read, while it is in use, and after it was given away.
    static RING: Cell<Option<Box<HedgeRing>>> = const { Cell::new(None) };
}

static RINGS: Rings = Rings::new("a read of a mirror waits for its device however long that takes");

/// A read that failed: the number of the device, and its error.
pub(super) type Failed = (u16, Error);

/// Returns the ring of the thread, or a new one; `None` if there can be none.
fn take_ring() -> Option<Box<HedgeRing>> {
    if let Some(ring) = RING.take() {
        return Some(ring);
    }
    RINGS.open(|| HedgeRing::open().map(Box::new))
}

/// Returns true if overdue reads of mirrors are sent to another device, too: the kernel does not refuse it.
pub(crate) fn is_possible() -> bool {
    if let Some(ring) = take_ring() {
        RING.set(Some(ring));
    }
    !RINGS.are_refused()
}

/// One of the reads that are made at once.
struct HedgedRead {
    /// Bytes to read.
    span: Span,
    answer: Option<std::result::Result<PlannedRead, Failed>>,
    /// Members that were asked.
    tried: SmallVec<[u16; 4]>,
    /// Number of them that have not answered.
    under_way: u32,
    /// Time at which another member is to be asked; [`u64::MAX`] if there is nobody else to ask.
    due_ns: u64,
    /// Place in the ring of the member that was asked last; `None` once it has failed.
    last: Option<usize>,
}

impl HedgedRead {
    /// Notes that a member has failed, while others have not answered yet. After the one that was asked last, nobody waits
    /// any longer to ask the next one.
    fn failed(&mut self, number: u16) {
        if self.tried.last() == Some(&number) {
            self.last = None;
            self.due_ns = 0;
        }
    }
}

/// Reads that are made at once.
struct Round<'a> {
    devices: &'a Devices,
    ring: Box<HedgeRing>,
    reads: SmallVec<[HedgedRead; 1]>,
    unanswered: usize,
    /// True if a read was sent to another member.
    is_hedged: bool,
}

impl<'a> Round<'a> {
    fn new(devices: &'a Devices, ring: Box<HedgeRing>) -> Self {
        Self { devices, ring, reads: SmallVec::new(), unanswered: 0, is_hedged: false }
    }

    /// Begins a read. Members of `not` are not asked when it is overdue.
    fn begin(&mut self, mut plan: PlannedRead, not: &[u16]) {
        let number = plan.number();
        let mut tried: SmallVec<[u16; 4]> = not.into();
        tried.push(number);
        let (due_ns, _) = plan.turn().due_ns();
        let span = plan.span();
        let mut read = HedgedRead { span, answer: None, tried, under_way: 1, due_ns, last: None };
        match self.ring.push(plan, self.reads.len()) {
            Ok(at) => {
                read.last = Some(at);
                self.unanswered += 1;
            }
            // No room is left for it in the ring, which has too many reads at once.
            Err(mut plan) => {
                let made = plan.read();
                read.answer = Some(made.map(|()| plan).map_err(|error| (number, error)));
            }
        }
        self.reads.push(read);
    }

    /// Waits until all reads have an answer.
    ///
    /// # Errors
    /// Those of [`HedgeRing::wait`].
    fn wait(&mut self, first_rest_ns: u64) -> io::Result<()> {
        let mut rest_ns = Some(first_rest_ns);
        while self.unanswered > 0 {
            let want = if self.is_hedged { 1 } else { self.unanswered };
            let is_over = self.ring.wait(want, rest_ns.unwrap_or(SLICE_NS))?;
            while let Some((plan, of, result)) = self.ring.ended() {
                self.arrived(plan, of, result);
            }
            if is_over && rest_ns.is_none() {
                self.give_up();
            }
            if self.unanswered > 0 {
                rest_ns = self.hedge_overdue();
            }
        }
        Ok(())
    }

    fn arrived(&mut self, mut plan: PlannedRead, of: usize, result: i32) {
        let Some(read) = self.reads.get_mut(of) else { return };
        let made = plan.ended(result);
        read.under_way -= 1;
        if read.answer.is_some() {
            return;
        }
        read.answer = match made {
            Ok(()) => Some(Ok(plan)),
            Err(error) if read.under_way == 0 => Some(Err((plan.number(), error))),
            Err(_) => {
                read.failed(plan.number());
                return;
            }
        };
        self.unanswered -= 1;
    }

    /// Leaves alone the reads of devices that are not waited for any more.
    fn give_up(&mut self) {
        let Self { ring, reads, unanswered, .. } = self;
        ring.leave(|plan, of| {
            let read = reads.get_mut(of).filter(|read| read.answer.is_none());
            let Some((read, error)) = read.zip(plan.not_waited_for()) else { return false };
            read.under_way -= 1;
            if read.under_way == 0 {
                read.answer = Some(Err((plan.number(), error)));
                *unanswered -= 1;
            }
            true
        });
    }

    /// Sends what is overdue to another member each. Returns the time until the next one is overdue; `None` if none will
    /// be.
    fn hedge_overdue(&mut self) -> Option<u64> {
        let now = now_ns();
        let mut next_ns = u64::MAX;
        for of in 0..self.reads.len() {
            let Some(read) = self.reads.get_mut(of).filter(|read| read.answer.is_none()) else { continue };
            if read.due_ns <= now && self.ring.is_full() {
                // Reads that hang have all room. It is sent when one of them has ended, or was given up.
                continue;
            }
            if read.due_ns <= now {
                Self::hedge(self.devices, &mut self.ring, read, of);
                self.is_hedged = true;
            }
            next_ns = next_ns.min(read.due_ns);
        }
        (next_ns < u64::MAX).then(|| next_ns.saturating_sub(now).max(1))
    }

    fn hedge(devices: &Devices, ring: &mut HedgeRing, read: &mut HedgedRead, of: usize) {
        read.due_ns = u64::MAX;
        let Ok(Some(mut other)) = devices.plan_without(read.span, &read.tried) else { return };
        if other.file().is_none() {
            return;
        }
        let (number, due_ns) = (other.number(), other.turn().due_ns().0);
        if let Ok(at) = ring.push(other, of) {
            if let Some(plan) = read.last.and_then(|last| ring.awaited(last)) {
                plan.turn().overdue();
            }
            read.tried.push(number);
            read.under_way += 1;
            read.last = Some(at);
            read.due_ns = due_ns;
        }
    }

    /// Returns the answers, and leaves alone what else is under way.
    fn end(mut self) -> SmallVec<[HedgedRead; 1]> {
        if self.ring.under_way() == 0 {
            RING.set(Some(self.ring));
        } else {
            self.ring.leave_all();
            late::keep(self.ring);
        }
        self.reads
    }
}

impl Devices {
    /// Carries a plan out. It may be another device that has been read then. Members of `not` are not asked.
    ///
    /// # Errors
    /// Those of [`super::Device::read`], with the number of the device.
    pub(super) fn carry_out_one(
        &self,
        mut plan: PlannedRead,
        not: &[u16],
    ) -> std::result::Result<PlannedRead, Failed> {
        let ring = if plan.may_be_hedged() { take_ring() } else { None };
        let Some(ring) = ring else {
            let (number, read) = (plan.number(), plan.read());
            return read.map(|()| plan).map_err(|error| (number, error));
        };
        let (number, span, bound_ns) = (plan.number(), plan.span(), plan.turn().due_ns().1);
        let mut round = Round::new(self, ring);
        round.begin(plan, not);
        match round.wait(bound_ns) {
            Ok(()) => match round.end().pop().and_then(|read| read.answer) {
                Some(answer) => answer,
                None => self.read_without_ring(span, number),
            },
            Err(error) => {
                RINGS.fail(&error);
                drop(round);
                self.read_without_ring(span, number)
            }
        }
    }

    /// Carries out many plans at once, as far as that is possible. Each may have been read from another device then.
    ///
    /// # Errors
    /// Those of [`super::Device::read_many`].
    pub(crate) fn carry_out(&self, mut plans: Vec<PlannedRead>) -> Result<Vec<PlannedRead>> {
        let may_be_hedged = plans.len() <= READS_MAX && plans.iter().all(PlannedRead::may_be_hedged);
        let ring = if may_be_hedged { take_ring() } else { None };
        let Some(ring) = ring else {
            PlannedRead::read_all(&mut plans)?;
            return Ok(plans);
        };
        let places: SmallVec<[_; 1]> = plans.iter().map(|plan| (plan.span(), plan.number())).collect();
        let bounds = plans.iter_mut().map(|plan| plan.turn().due_ns().1);
        let bound_ns = bounds.min().unwrap_or_default();
        let mut round = Round::new(self, ring);
        plans.drain(..).for_each(|plan| round.begin(plan, &[]));
        let reads = match round.wait(bound_ns) {
            Ok(()) => round.end(),
            Err(error) => {
                RINGS.fail(&error);
                std::mem::take(&mut round.reads)
            }
        };
        for (read, (span, number)) in reads.into_iter().zip(places) {
            let answer = read.answer.unwrap_or_else(|| self.read_without_ring(span, number));
            plans.push(answer.map_err(|(_, error)| error)?);
        }
        Ok(plans)
    }

    fn read_without_ring(&self, span: Span, number: u16) -> std::result::Result<PlannedRead, Failed> {
        let mut plan = self.plan(span).map_err(|error| (number, error))?;
        let (number, read) = (plan.number(), plan.read());
        read.map(|()| plan).map_err(|error| (number, error))
    }
}

#[cfg(test)]
mod tests;
