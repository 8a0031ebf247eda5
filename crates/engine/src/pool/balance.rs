//! Balances a pool that is used: what lies on fuller groups of devices moves to emptier ones, until all are equally full.
//!
//! - Z1: groups are even if the part of each that is in use is that of the whole pool, to a tolerance. Only groups that stay
//!   count. A pass moves no more off a group than lies there beyond its part, and no more onto another one than that one has
//!   less, to a chunk; so the sum of what is uneven falls with every pass, and nothing is moved to and fro.
//! - Z2: that a balance is under way is a property of the pool, since all else follows from where chunks are in use. It goes on
//!   after the pool was closed, or crashed, and ends by itself: when the groups are even, or when nothing more can be moved.
//! - Z3: moving is what the cleaner does ([`super::moving`]); trees, snapshots and clones stay as they are, and what follows
//!   a crash is one of two states that are equally good (G4).

use std::ops::Range;

use std::time::Instant;

use super::mirrors::elapsed_ns;
use super::moving::{Moved, Obstacle, PASS_CHUNKS_MAX};
use super::{Maintenance, Pool};
use crate::limits::CHUNK_BYTES;
use crate::{Error, Result};

/// Property that says that the pool is being balanced.
const STORED: &str = "pagefold:balance";
/// A group is even if it has at most this much more or less in use than its part: in per cent of its chunks, and in chunks.
const TOLERANCE_PERCENT: u64 = 1;
const TOLERANCE_CHUNKS: u64 = 2;
/// Number of positions of chunks that are looked at together.
const WINDOW_CHUNKS: u32 = 4096;

/// State of the last balance since the pool was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BalanceStatus {
    /// True if it is under way.
    pub under_way: bool,
    /// Time at which it began, or went on after the pool was opened, in seconds since 1970; 0 before its first step.
    pub started: u64,
    /// Time at which it ended, in seconds since 1970; 0 before.
    pub finished: u64,
    /// Bytes that were moved so far.
    pub moved_bytes: u64,
    /// Bytes of chunks in use that lie on groups beyond their parts; after its end 0, unless they could not be moved.
    pub left_bytes: u64,
    /// Reason why it does not go on at present.
    pub obstacle: Option<Obstacle>,
    /// Time that its steps have worked so far, in nanoseconds; rests between them are not counted.
    pub work_ns: u64,
}

/// State of balancing that an open pool keeps.
#[derive(Debug, Default)]
pub(super) struct Balancing {
    status: BalanceStatus,
    /// The group from which chunks were moved last, and the position of the chunk behind these.
    cursor: (u16, u32),
}

/// The chunks of a group, and those of them that are in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct GroupFill {
    group: u16,
    used: u64,
    total: u64,
}

impl GroupFill {
    /// Returns how much more of the group is in use than its part, and how much less: in chunks, times the chunks of the pool.
    fn apart(&self, pool: &Self) -> (u128, u128) {
        let used = u128::from(self.used) * u128::from(pool.total);
        let part = u128::from(self.total) * u128::from(pool.used);
        (used.saturating_sub(part), part.saturating_sub(used))
    }

    /// Returns the number of chunks by which an even group may be apart from its part.
    fn tolerance(&self) -> u128 {
        (self.total * TOLERANCE_PERCENT / 100).max(TOLERANCE_CHUNKS).into()
    }

    fn is_even(&self, pool: &Self) -> bool {
        let (more, less) = self.apart(pool);
        more.max(less) <= self.tolerance() * u128::from(pool.total)
    }
}

/// Chunks that are to move from one group to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shift {
    /// Number of the fuller group.
    pub from: u16,
    /// Number of the emptier group.
    pub onto: u16,
    /// Number of chunks.
    pub chunks: u64,
}

/// Returns what is to move next; `None` if the groups are even (Z1).
fn next_shift(groups: &[GroupFill]) -> Option<Shift> {
    let pool = sum(groups);
    if groups.iter().all(|group| group.is_even(&pool)) {
        return None;
    }
    // By what it is apart, in tolerances: so at least one of the two is not even, and the sum of what is uneven falls.
    let most = |of: fn((u128, u128)) -> u128| {
        let apart = groups.iter().map(|group| (group, of(group.apart(&pool))));
        apart.max_by(|a, b| (a.1 * b.0.tolerance()).cmp(&(b.1 * a.0.tolerance())))
    };
    let ((from, more), (onto, less)) = (most(|(more, _)| more)?, most(|(_, less)| less)?);
    let chunks = more.min(less) / u128::from(pool.total.max(1));
    let chunks = u64::try_from(chunks).unwrap_or(u64::MAX).max(1);
    Some(Shift { from: from.group, onto: onto.group, chunks })
}

/// Returns the number of chunks that lie on groups beyond their parts.
fn uneven_chunks(groups: &[GroupFill]) -> u64 {
    let pool = sum(groups);
    let more: u128 = groups.iter().map(|group| group.apart(&pool).0).sum();
    u64::try_from(more / u128::from(pool.total.max(1))).unwrap_or(u64::MAX)
}

/// Returns all that is to move until the groups are even.
fn all_shifts(mut groups: Vec<GroupFill>) -> Vec<Shift> {
    let mut shifts = Vec::new();
    while let Some(shift) = next_shift(&groups) {
        for of in &mut groups {
            if of.group == shift.from {
                of.used = of.used.saturating_sub(shift.chunks);
            } else if of.group == shift.onto {
                of.used += shift.chunks;
            }
        }
        shifts.push(shift);
    }
    shifts
}

fn sum(groups: &[GroupFill]) -> GroupFill {
    let used = groups.iter().map(|group| group.used).sum();
    GroupFill { group: 0, used, total: groups.iter().map(|group| group.total).sum() }
}

impl Pool {
    /// Begins to balance the pool ([`Pool::balance_step`]). Returns false if its groups are even already.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the pool has one group, or is being balanced already; [`Error::ReadOnly`]; errors of a commit.
    pub fn balance(&self) -> Result<bool> {
        self.shared.check_writable()?;
        if self.balance.lock().status.under_way {
            return Err(Error::Invalid("it is being balanced already".into()));
        }
        if self.labels.staying() < 2 {
            return Err(Error::Invalid(
                "it has one device, or one mirror: there is nothing to balance".into(),
            ));
        }
        if next_shift(&self.group_fills()).is_none() {
            return Ok(false);
        }
        self.set_property(STORED, Some("on"))?;
        let status = BalanceStatus { under_way: true, ..BalanceStatus::default() };
        *self.balance.lock() = Balancing { status, cursor: (0, 0) };
        Ok(true)
    }

    /// Ends a balance before the groups are even. What was moved stays where it is.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the pool is not being balanced; [`Error::ReadOnly`]; errors of a commit.
    pub fn stop_balance(&self) -> Result<()> {
        self.shared.check_writable()?;
        if !self.balance.lock().status.under_way {
            return Err(Error::Invalid("it is not being balanced".into()));
        }
        self.set_property(STORED, None)?;
        *self.balance.lock() = Balancing::default();
        Ok(())
    }

    /// Takes up a balance that was under way when the pool was closed (Z2).
    pub(super) fn load_balance(&self) -> Result<()> {
        self.balance.lock().status.under_way = self.property(STORED)?.is_some();
        Ok(())
    }

    /// Forgets that a balance is under way.
    pub(super) fn forget_balance(&self) -> Result<()> {
        if self.balance.lock().status.under_way { self.stop_balance() } else { Ok(()) }
    }

    /// Returns what a balance would move.
    pub fn planned_balance(&self) -> Vec<Shift> {
        all_shifts(self.group_fills())
    }

    /// Returns the state of the last balance.
    pub fn balance_status(&self) -> BalanceStatus {
        let mut status = self.balance.lock().status;
        if status.under_way {
            status.left_bytes = uneven_chunks(&self.group_fills()) * CHUNK_BYTES;
        }
        status
    }

    /// Returns how full the groups are that stay.
    fn group_fills(&self) -> Vec<GroupFill> {
        let leaving = self.labels.leaving();
        let stays = |group: &u16| !leaving.contains(group) && self.chunks.count_of(*group) > 0;
        let groups = (0..self.labels.counted()).filter(stays);
        let fill = |group| GroupFill {
            group,
            used: self.chunks.used_count(group),
            total: self.chunks.count_of(group),
        };
        groups.map(fill).collect()
    }

    /// Moves some of what lies on the fullest group to the emptiest one. Returns the bytes moved; `None` if there is nothing
    /// to do, or if it cannot go on at present. When the groups are even it ends, at `now` (seconds since 1970).
    ///
    /// # Errors
    /// Errors of devices, of a checkpoint, and of a commit.
    pub fn balance_step(&self, now: u64) -> Result<Option<u64>> {
        if !self.balance.lock().status.under_way || self.shared.check_writable().is_err() {
            return Ok(None);
        }
        let (moved, work_ns) = {
            let mut state = self.maintenance.lock();
            if self.shared.check_writable().is_err() {
                // The pool was exported meanwhile.
                return Ok(None);
            }
            let begun = Instant::now();
            if !self.labels.leaving().is_empty() {
                self.balance.lock().status.obstacle = Some(Obstacle::Removal);
                return Ok(None);
            }
            self.note_balance(now);
            let moved = match next_shift(&self.group_fills()) {
                Some(shift) => self.shift(&mut state, shift)?,
                None => Moved::Nothing,
            };
            (moved, elapsed_ns(begun))
        };
        match moved {
            Moved::Bytes(bytes) => {
                let status = &mut self.balance.lock().status;
                (status.moved_bytes, status.obstacle) = (status.moved_bytes + bytes, None);
                status.work_ns += work_ns;
                Ok(Some(bytes))
            }
            Moved::NoRoom => {
                self.balance.lock().status.obstacle = Some(Obstacle::Room);
                Ok(None)
            }
            Moved::Nothing => match self.end_balance(now) {
                // In a full pool nothing can be stored: it ends later.
                Err(Error::NoSpace(_)) => {
                    self.balance.lock().status.obstacle = Some(Obstacle::Room);
                    Ok(None)
                }
                ended => ended.map(|()| Some(0)),
            },
        }
    }

    fn note_balance(&self, now: u64) {
        let status = &mut self.balance.lock().status;
        if status.started == 0 {
            status.started = now;
        }
    }

    /// Moves some chunks from one group to another. If none can be moved, the log since the last checkpoint lies there, or
    /// what the last checkpoint refers to: another one is made, and it is tried again.
    fn shift(&self, state: &mut Maintenance, shift: Shift) -> Result<Moved> {
        let used = self.chunks.used_count(shift.from);
        let moved = self.shift_once(state, shift)?;
        if moved != Moved::Nothing {
            return Ok(moved);
        }
        for _ in 0..2 {
            self.checkpoint_locked(state, false)?;
        }
        self.restore_room(state)?;
        if self.chunks.used_count(shift.from) < used {
            return Ok(Moved::Bytes(0));
        }
        self.shift_once(state, shift)
    }

    fn shift_once(&self, state: &mut Maintenance, Shift { from, onto, chunks }: Shift) -> Result<Moved> {
        self.leave_begun(state, |device| device != onto);
        let free = self.chunks.count_of(onto).saturating_sub(self.chunks.used_count(onto));
        let end = u32::try_from(self.chunks.count_of(from)).unwrap_or(u32::MAX);
        let (group, cursor) = self.balance.lock().cursor;
        let first = if group == from && cursor < end { cursor } else { 0 };
        for range in windows(first, end) {
            let plan = |state: &Maintenance, outputs: u64| {
                let outputs = outputs.min(chunks).min(free).min(PASS_CHUNKS_MAX);
                self.plan_move_some(state, (from, range.clone()), chunks, outputs)
            };
            let moved = self.move_planned(state, Some(onto), &plan)?;
            if moved != Moved::Nothing {
                // The rest of the window is looked at again: it may have more.
                self.balance.lock().cursor = (from, range.start);
                return Ok(moved);
            }
        }
        Ok(Moved::Nothing)
    }

    fn end_balance(&self, now: u64) -> Result<()> {
        self.set_property(STORED, None)?;
        let groups = self.group_fills();
        let left_bytes = next_shift(&groups).map_or(0, |_| uneven_chunks(&groups) * CHUNK_BYTES);
        let status = &mut self.balance.lock().status;
        (status.under_way, status.finished, status.left_bytes) = (false, now, left_bytes);
        let moved_bytes = status.moved_bytes;
        if left_bytes > 0 {
            tracing::warn!(moved_bytes, left_bytes, "the balance has ended; what is left cannot be moved");
        } else {
            tracing::info!(moved_bytes, "the devices of the pool are balanced");
        }
        Ok(())
    }
}

/// Returns stretches of the positions below `end`: those from `first` on, and then those before.
fn windows(first: u32, end: u32) -> impl Iterator<Item = Range<u32>> {
    let split = move |range: Range<u32>| {
        let starts = range.clone().step_by(WINDOW_CHUNKS as usize);
        starts.map(move |start| start..start.saturating_add(WINDOW_CHUNKS).min(range.end))
    };
    split(first..end).chain(split(0..first.min(end)))
}

#[cfg(test)]
mod tests;
