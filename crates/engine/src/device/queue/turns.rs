//! Who goes next of the requests that wait for a device: rules alone, which are told the time.

use crate::device::class::IoClass;

/// Deadlines within the same span of this length are one group, in which requests go by address.
const GROUP_NS: u64 = 10_000_000;
/// Bytes that a request counts for beside its own: what any request costs a device.
const REQUEST_COST_BYTES: u64 = 64 << 10;

/// The terms on which requests of a class wait for a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::device) struct Terms {
    /// The class's share of a device for which several classes wait, beside the shares of those.
    pub(in crate::device) share: u64,
    /// Largest number of requests in flight.
    pub(in crate::device) most: u32,
    /// Longest time that a request waits for requests of other classes, in nanoseconds.
    pub(in crate::device) deadline_ns: u64,
}

impl IoClass {
    /// Returns the terms on which requests of the class wait; `None` if they never do (X1).
    pub(in crate::device) const fn terms(self) -> Option<Terms> {
        let (share, most, deadline_ms) = match self {
            Self::SyncRead | Self::Log | Self::AsyncWrite => return None,
            Self::AsyncRead => (8, 16, 50),
            Self::Cleaning => (6, 8, 200),
            Self::Recompression => (2, 8, 500),
            Self::Filling => (4, 4, 500),
            Self::Scrub => (2, 16, 1000),
            Self::Discard => (1, 1, 1000),
        };
        Some(Terms { share, most, deadline_ns: deadline_ms * 1_000_000 })
    }

    /// Returns true if requests of the class wait for their turn.
    pub(in crate::device) const fn waits(self) -> bool {
        self.terms().is_some()
    }
}

/// The limit for requests that wait, at some moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limit {
    /// Number of requests in flight. With 0 nobody goes, whatever its deadline.
    pub(super) requests: u32,
    /// The instant from which on a request may begin.
    pub(super) from_ns: u64,
}

/// A request that waits.
#[derive(Clone, Copy, Debug)]
struct WaitingIo {
    number: u64,
    class: IoClass,
    offset: u64,
    due_ns: u64,
}

impl WaitingIo {
    /// Returns the order among requests of a class, and among those whose deadline has passed (X4).
    const fn rank(&self) -> (u64, u64, u64) {
        (self.due_ns / GROUP_NS, self.offset, self.number)
    }
}

/// Requests of one class.
#[derive(Clone, Copy, Debug, Default)]
struct ClassTurns {
    in_flight: u32,
    waiting: u32,
    /// Cost of all that was served, divided by the class's share.
    served: u64,
    hurried: bool,
}

/// The requests of a device that wait for their turn, and those in flight that have.
#[derive(Debug, Default)]
pub(super) struct TurnOrder {
    waiting: Vec<WaitingIo>,
    classes: [ClassTurns; IoClass::COUNT],
    arrived: u64,
}

impl TurnOrder {
    /// Notes a request that waits from now on. Returns its number.
    pub(super) fn arrive(&mut self, class: IoClass, offset: u64, now_ns: u64) -> u64 {
        let is_used = |of: &&ClassTurns| of.in_flight + of.waiting > 0;
        // A class that comes back has no claim on what it did not ask for.
        let least = self.classes.iter().filter(is_used).map(|of| of.served).min();
        let of = &mut self.classes[class as usize];
        if of.in_flight + of.waiting == 0 {
            of.served = of.served.max(least.unwrap_or_default());
        }
        of.waiting += 1;
        self.arrived += 1;
        let deadline_ns = class.terms().map_or(0, |terms| terms.deadline_ns);
        let due_ns = now_ns.saturating_add(deadline_ns);
        self.waiting.push(WaitingIo { number: self.arrived, class, offset, due_ns });
        self.arrived
    }

    /// Returns true if somebody waits.
    pub(super) fn is_waited_for(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Returns the number of requests in flight.
    pub(super) fn in_flight(&self) -> u32 {
        self.classes.iter().map(|of| of.in_flight).sum()
    }

    fn most(class: IoClass) -> u32 {
        class.terms().map_or(u32::MAX, |terms| terms.most)
    }

    /// Returns true if no more requests of the class may be in flight (X2).
    fn is_full(&self, class: IoClass) -> bool {
        self.classes[class as usize].in_flight >= Self::most(class)
    }

    fn is_hurried(&self, class: IoClass) -> bool {
        self.classes[class as usize].hurried
    }

    /// Has the requests of a class go before all others that wait, whatever the limit, or no longer.
    pub(super) fn hurry(&mut self, class: IoClass, hurried: bool) {
        self.classes[class as usize].hurried = hurried;
    }

    /// Returns the number of the request that goes next; `None` if none may.
    pub(super) fn next(&self, now_ns: u64, limit: Limit) -> Option<u64> {
        let ready = self.waiting.iter().filter(|one| !self.is_full(one.class));
        if let Some(hurried) = ready.clone().filter(|one| self.is_hurried(one.class)).min_by_key(|o| o.rank())
        {
            return Some(hurried.number);
        }
        if limit.requests == 0 {
            return None;
        }
        let overdue = ready.clone().filter(|one| one.due_ns <= now_ns);
        if let Some(overdue) = overdue.min_by_key(|one| one.rank()) {
            return Some(overdue.number);
        }
        if self.in_flight() >= limit.requests || now_ns < limit.from_ns {
            return None;
        }
        let first =
            ready.min_by_key(|one| (self.classes[one.class as usize].served, one.class as u8, one.rank()));
        first.map(|one| one.number)
    }

    /// Returns the instant at which [`TurnOrder::next`] may be another one though no request has ended; `None` if only
    /// the end of one can change it.
    pub(super) fn changes_ns(&self, limit: Limit) -> Option<u64> {
        let due = self.waiting.iter().filter(|one| !self.is_full(one.class)).map(|one| one.due_ns).min()?;
        let is_free = self.in_flight() < limit.requests;
        Some(match limit.requests {
            0 => limit.from_ns,
            _ if is_free => due.min(limit.from_ns),
            _ => due,
        })
    }

    /// Notes that a request begins which has waited, one of `wanted` that its caller can make at once, of `bytes` each.
    /// Returns how many of them begin: more than one only if nobody else waits.
    pub(super) fn begin(&mut self, number: u64, (wanted, bytes): (u32, u64), limit: Limit) -> u32 {
        let Some(at) = self.waiting.iter().position(|one| one.number == number) else { return 0 };
        let class = self.waiting.swap_remove(at).class;
        let Some(terms) = class.terms() else { return wanted };
        let free = limit.requests.saturating_sub(self.in_flight());
        let alone = self.waiting.is_empty();
        let of = &mut self.classes[class as usize];
        let free = free.min(terms.most.saturating_sub(of.in_flight));
        let begin = if alone { wanted.min(free).max(1) } else { 1 };
        of.waiting -= 1;
        of.in_flight += begin;
        let cost = bytes.saturating_add(REQUEST_COST_BYTES).saturating_mul(begin.into());
        of.served = of.served.saturating_add(cost / terms.share);
        begin
    }

    /// Notes that requests have ended.
    pub(super) fn end(&mut self, class: IoClass, requests: u32) {
        let of = &mut self.classes[class as usize];
        of.in_flight = of.in_flight.saturating_sub(requests);
    }
}

#[cfg(test)]
mod tests;
