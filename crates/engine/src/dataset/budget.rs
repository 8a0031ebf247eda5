//! Quotas and reservations: the bytes that a dataset may hold, and those that it holds.
//!
//! Only datasets that have a bound, or lie below a dataset that has one, have a budget. For all others, only the
//! sum of what is reserved matters. Budgets are made anew, with the gate closed, whenever the catalogue changes.
//! Between two such instants they follow changes of space accounting, usage and claims, by atomic counters alone.
//!
//! - Q1: `held` of a budget is what is fresh in its dataset and in that dataset's snapshots, what changes have claimed
//!   there, and the charge of each budget right below it. The charge of a budget is what it holds, or its reservation
//!   if that is more.
//! - Q2: `Shared::reserved_bytes` is the sum of what reservations exceed by what is held: bytes that are kept for their
//!   datasets alone.
//! - Q3: a change is accepted only if it fits, as if nothing became shorter, into each of the quotas above it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{Expansion, Space, Thin};
use crate::sums::{remainder, subtract};

/// Bounds that are set on a dataset, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Stored bytes of the dataset, its snapshots, and all datasets below.
    pub quota: Option<u64>,
    /// Stored bytes that the dataset itself refers to.
    pub refquota: Option<u64>,
    /// Bytes of the dataset's own pages before compression.
    pub logicalquota: Option<u64>,
    /// Stored bytes that the dataset, its snapshots, and all datasets below can take whatever others do; 0 for none.
    pub reservation: u64,
}

/// A bound that a dataset can run into.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Bound {
    /// The property `quota`.
    Quota,
    /// The property `refquota`.
    RefQuota,
    /// The property `logicalquota`.
    LogicalQuota,
}

impl Bound {
    /// Returns the name of the bound's property.
    pub fn name(self) -> &'static str {
        match self {
            Self::Quota => "quota",
            Self::RefQuota => "refquota",
            Self::LogicalQuota => "logicalquota",
        }
    }
}

impl Limits {
    /// Returns the quotas that are set, each with its bytes.
    pub(crate) fn quotas(&self) -> impl Iterator<Item = (Bound, u64)> {
        let all = [
            (Bound::Quota, self.quota),
            (Bound::RefQuota, self.refquota),
            (Bound::LogicalQuota, self.logicalquota),
        ];
        all.into_iter().filter_map(|(bound, bytes)| Some((bound, bytes?)))
    }
}

/// Largest space that a change may take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Claim {
    /// Stored bytes.
    pub bytes: u64,
    /// Bytes of pages that may be new, before compression. They are known only where there is a
    /// [`Limits::logicalquota`].
    pub logical_bytes: u64,
}

impl Claim {
    /// Adds another claim to this one.
    pub(crate) fn add(&mut self, other: Self) {
        self.bytes += other.bytes;
        self.logical_bytes += other.logical_bytes;
    }

    /// Takes another claim off this one, which has it.
    pub(crate) fn subtract(&mut self, other: Self) {
        subtract(&mut self.bytes, other.bytes);
        subtract(&mut self.logical_bytes, other.logical_bytes);
    }
}

/// Reason why a claim was refused.
#[derive(Clone, Debug)]
pub(crate) struct Refused {
    /// Path of the dataset that has the bound, as in [`Budget::path`].
    pub path: String,
    /// The bound.
    pub bound: Bound,
    /// Value of the bound, in bytes.
    pub limit_bytes: u64,
    /// Bytes that count against the bound, accepted changes included.
    pub held_bytes: u64,
    /// True if part of these bytes is claimed and not committed, so that a commit may reduce them.
    pub is_claimed: bool,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = if self.path.is_empty() { "the pool's own dataset" } else { &self.path };
        let left = self.limit_bytes.saturating_sub(self.held_bytes);
        let (bound, limit) = (self.bound.name(), self.limit_bytes);
        write!(f, "{left} bytes are left of the {bound} of {name}, {limit} bytes")
    }
}

/// Bytes that a dataset holds, and the bounds on them.
#[derive(Debug)]
pub struct Budget {
    /// Path of the dataset; empty for the pool's own.
    pub path: String,
    /// Bounds of the dataset.
    pub limits: Limits,
    above: Option<Arc<Self>>,
    /// Sum of the pool (Q2).
    reserved: Arc<AtomicU64>,
    /// Bytes that are held (Q1).
    held: AtomicU64,
    /// Part of `held` that is claimed.
    claimed: AtomicU64,
    /// Bytes that the dataset itself refers to or has claimed.
    referenced: AtomicU64,
    /// Bytes of the dataset's pages before compression, with those that it has claimed.
    logical: AtomicU64,
}

impl Budget {
    /// Returns an empty budget below `above`. `reserved` is the sum of the pool (Q2), to which this budget adds the
    /// part of its reservation that no reservation above covers.
    pub(crate) fn new(
        path: String,
        limits: Limits,
        above: Option<Arc<Self>>,
        reserved: &Arc<AtomicU64>,
    ) -> Arc<Self> {
        if limits.reservation > 0 {
            // A reservation counts as held from now on: the budgets above see it as if it were stored.
            let mut rise = limits.reservation;
            let mut at = above.as_deref();
            while let Some(budget) = at {
                rise = budget.shift(true, rise);
                at = budget.above.as_deref();
            }
            reserved.fetch_add(rise, Ordering::AcqRel);
        }
        Arc::new(Self {
            path,
            limits,
            above,
            reserved: Arc::clone(reserved),
            held: AtomicU64::default(),
            claimed: AtomicU64::default(),
            referenced: AtomicU64::default(),
            logical: AtomicU64::default(),
        })
    }

    /// Returns this budget and those above it, from the bottom up.
    fn chain(&self) -> impl Iterator<Item = &Self> {
        std::iter::successors(Some(self), |budget| budget.above.as_deref())
    }

    /// Adds `bytes` to what is held, or subtracts them. Returns by how much the charge of this budget changes.
    fn shift(&self, up: bool, bytes: u64) -> u64 {
        let (before, after) = if up {
            let before = self.held.fetch_add(bytes, Ordering::AcqRel);
            (before, before.saturating_add(bytes))
        } else {
            let before = self.held.fetch_sub(bytes, Ordering::AcqRel);
            (before, remainder(before, bytes))
        };
        let least = self.limits.reservation;
        after.max(least).abs_diff(before.max(least))
    }

    /// Adds `bytes` to what is held here and above, or subtracts them. Returns the part of `bytes` that no reservation
    /// covers.
    fn shift_all(&self, up: bool, bytes: u64) -> u64 {
        let mut change = bytes;
        for budget in self.chain() {
            if change == 0 {
                break;
            }
            change = budget.shift(up, change);
        }
        let covered = bytes - change.min(bytes);
        if covered > 0 {
            if up {
                self.reserved.fetch_sub(covered, Ordering::AcqRel);
            } else {
                self.reserved.fetch_add(covered, Ordering::AcqRel);
            }
        }
        change
    }

    /// Notes a change of the bytes that are fresh in the dataset or in a snapshot of it.
    pub(crate) fn follow_fresh(&self, before: u64, now: u64) {
        if before != now {
            self.shift_all(now > before, now.abs_diff(before));
        }
    }

    /// Notes a change of the bytes that the dataset itself refers to.
    pub(crate) fn follow_referenced(&self, before: u64, now: u64) {
        follow(&self.referenced, before, now);
    }

    /// Notes a change of the bytes of the dataset's pages before compression.
    pub(crate) fn follow_logical(&self, before: u64, now: u64) {
        follow(&self.logical, before, now);
    }

    /// Claims without a check. Used for what was accepted before this budget was made. Returns the bytes that no
    /// reservation covers.
    pub(crate) fn take(&self, claim: Claim) -> u64 {
        self.referenced.fetch_add(claim.bytes, Ordering::AcqRel);
        self.logical.fetch_add(claim.logical_bytes, Ordering::AcqRel);
        for budget in self.chain() {
            budget.claimed.fetch_add(claim.bytes, Ordering::AcqRel);
        }
        self.shift_all(true, claim.bytes)
    }

    /// Claims, if the claim fits (Q3). A change that frees something may exceed each bound by `beyond` bytes. Returns
    /// the bytes that no reservation covers.
    pub(crate) fn claim(&self, claim: Claim, beyond: u64) -> Result<u64, Box<Refused>> {
        // The check comes first, so that hardly any claim that does not fit takes room from others meanwhile.
        self.fits(claim, beyond, false)?;
        let uncovered = self.take(claim);
        // Others may have claimed since the first check.
        match self.fits(claim, beyond, true) {
            Ok(()) => Ok(uncovered),
            Err(refused) => {
                self.release(claim);
                Err(refused)
            }
        }
    }

    /// Checks that a claim fits or, if it `is_taken` already, that it has fitted.
    fn fits(&self, claim: Claim, beyond: u64, is_taken: bool) -> Result<(), Box<Refused>> {
        let before = |held: u64, more: u64| if is_taken { held.saturating_sub(more) } else { held };
        let check = |budget: &Self, bound, more| {
            let held = before(budget.held(bound), more);
            budget.check(bound, held, more, beyond)
        };
        check(self, Bound::LogicalQuota, claim.logical_bytes)?;
        check(self, Bound::RefQuota, claim.bytes)?;
        let mut more = claim.bytes;
        for budget in self.chain() {
            check(budget, Bound::Quota, more)?;
            // Budgets above are charged with the reservation already.
            let (held, least) = (before(budget.held(Bound::Quota), more), budget.limits.reservation);
            more = held.saturating_add(more).max(least) - held.max(least);
        }
        Ok(())
    }

    fn check(&self, bound: Bound, held_bytes: u64, more: u64, beyond: u64) -> Result<(), Box<Refused>> {
        let Some((_, limit_bytes)) = self.limits.quotas().find(|(other, _)| *other == bound) else {
            return Ok(());
        };
        // A change that takes nothing is accepted even where another change went beyond the bound.
        if more == 0 || held_bytes.saturating_add(more) <= limit_bytes.saturating_add(beyond) {
            return Ok(());
        }
        let is_claimed = self.claimed.load(Ordering::Acquire) > 0;
        Err(Box::new(Refused { path: self.path.clone(), bound, limit_bytes, held_bytes, is_claimed }))
    }

    /// Ends a claim.
    pub(crate) fn release(&self, claim: Claim) {
        self.referenced.fetch_sub(claim.bytes, Ordering::AcqRel);
        self.logical.fetch_sub(claim.logical_bytes, Ordering::AcqRel);
        for budget in self.chain() {
            budget.claimed.fetch_sub(claim.bytes, Ordering::AcqRel);
        }
        self.shift_all(false, claim.bytes);
    }

    /// Returns the bytes that count against a bound. Accepted changes are counted as if nothing became shorter.
    pub(crate) fn held(&self, bound: Bound) -> u64 {
        let counter = match bound {
            Bound::Quota => &self.held,
            Bound::RefQuota => &self.referenced,
            Bound::LogicalQuota => &self.logical,
        };
        counter.load(Ordering::Acquire)
    }

    /// Returns true if `bytes` fit into all bounds.
    pub(crate) fn is_roomy(&self, bytes: u64) -> bool {
        self.fits(Claim { bytes, logical_bytes: bytes }, 0, false).is_ok()
    }

    /// Returns the space of the pool as the dataset sees it: the smallest of its bounds as capacity, what counts
    /// against that bound as used, and what can still be claimed as available. `own` returns the bytes of the dataset's
    /// pages before compression, and the bytes that these are stored in.
    pub(crate) fn space(&self, pool: Space, own: &dyn Fn() -> (u64, u64)) -> Space {
        let mut space = pool;
        let mut narrow = |limit: u64, held: u64| {
            if limit < space.capacity_bytes {
                (space.capacity_bytes, space.used_bytes) = (limit, held.min(limit));
            }
        };
        for budget in self.chain() {
            if let Some(quota) = budget.limits.quota {
                narrow(quota, budget.held(Bound::Quota));
            }
        }
        for (bound, limit) in self.limits.quotas().filter(|(bound, _)| *bound != Bound::Quota) {
            narrow(limit, self.held(bound));
        }
        let room = self.room(pool.available_bytes);
        space.available_bytes = room.min(self.left(Bound::LogicalQuota));
        space.thin = pool.thin.map(|thin| self.thin(thin, room, own));
        space
    }

    /// Returns the space of the pool before compression as the dataset sees it, if `room` stored bytes can be claimed.
    /// A dataset with a bound of its own on stored bytes compresses as it does itself, any other one as the pool does.
    fn thin(&self, pool: Thin, room: u64, own: &dyn Fn() -> (u64, u64)) -> Thin {
        let Limits { quota, refquota, logicalquota, .. } = self.limits;
        let mut thin = Thin { room_bytes: room, ..pool };
        if let Some(bound) = [quota, refquota].into_iter().flatten().min() {
            thin.expansion = Expansion::expected(pool.promised, own(), bound);
        }
        for budget in self.chain() {
            if let Some(quota) = budget.limits.quota {
                thin.narrow_stored(quota, budget.held(Bound::Quota));
            }
        }
        if let Some(refquota) = refquota {
            thin.narrow_stored(refquota, self.held(Bound::RefQuota));
        }
        if let Some(logicalquota) = logicalquota {
            thin.narrow(logicalquota, self.held(Bound::LogicalQuota));
        }
        thin
    }

    /// Returns what one of the dataset's own bounds leaves, in its bytes.
    fn left(&self, bound: Bound) -> u64 {
        let limit = self.limits.quotas().find(|(other, _)| *other == bound);
        limit.map_or(u64::MAX, |(_, limit)| limit.saturating_sub(self.held(bound)))
    }

    /// Returns the stored bytes that can still be claimed if the pool has `unreserved` bytes that are not reserved.
    fn room(&self, unreserved: u64) -> u64 {
        let budgets: Vec<&Self> = self.chain().collect();
        let mut room = unreserved;
        for budget in budgets.into_iter().rev() {
            let held = budget.held(Bound::Quota);
            room = room.saturating_add(budget.limits.reservation.saturating_sub(held));
            if let Some(quota) = budget.limits.quota {
                room = room.min(quota.saturating_sub(held));
            }
        }
        room.min(self.left(Bound::RefQuota))
    }
}

fn follow(counter: &AtomicU64, before: u64, now: u64) {
    if now > before {
        counter.fetch_add(now - before, Ordering::AcqRel);
    } else if before > now {
        counter.fetch_sub(before - now, Ordering::AcqRel);
    }
}
