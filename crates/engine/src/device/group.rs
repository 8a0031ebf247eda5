//! A group: one device, or a mirror of several that hold the same.
//!
//! - H1: nothing is acknowledged as durable before every member that the labels call whole has it. A member that fails a
//!   write or a flush is left out at once, and what it failed is acknowledged when the labels of the others say so
//!   ([`Roster::record`]). So after whatever crash, a member that the labels call whole has all that was acknowledged.
//! - H2, H3: see [`super::writes`].
//! - H4: the last whole member is never left out. What it fails fails for the pool, as with one device. Only a group that
//!   the pool can do without, a log device, loses its last member, and can be used for nothing from then on.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use smallvec::SmallVec;

use super::again::again;
use super::class::IoClass;
use super::lane::Lane;
use super::latency::wait;
use super::member::{GroupMember, MemberState, ReadUnderWay};
use super::redirected::{OtherPlaces, Redirected};
use super::writes::{Writes, regions};
use super::{AlignedBuf, Device, REGION_BYTES};
use crate::limits::BLOCK_BYTES;
use crate::ranges::Ranges;
use crate::{Error, Result};

/// Services of the pool that its devices need.
pub(crate) trait Roster: Send + Sync {
    /// Makes the labels of the written members of a group say which state each member has. On return that is durable.
    ///
    /// # Errors
    /// If no label of a whole member can be written.
    fn record(&self, group: u16) -> Result<()>;

    /// Returns false if nothing may be written, since the pool is only read.
    fn takes_writes(&self) -> bool;

    /// Notes that what a device has at `place` could not be read or was not right, while another member of its group
    /// had it, and whether it could be written again from there.
    fn corrected(&self, device: u16, place: (u16, u64), error: &Error, repaired: &Result<()>);
}

/// The member of each group that is read. Members that can be read are counted from 0; if a group has fewer, it is the
/// last one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Choice {
    /// Any.
    #[default]
    Any,
    /// This one, and another one only if it fails.
    First(usize),
    /// This one and no other.
    Only(usize),
}

impl Choice {
    fn among(self, members: usize) -> Self {
        let last = members.saturating_sub(1);
        match self {
            Self::Any => Self::Any,
            Self::First(at) => Self::First(at.min(last)),
            Self::Only(at) => Self::Only(at.min(last)),
        }
    }
}

/// Members to copy from: not those in `not`, and those in `last` only if no other one can be read.
#[derive(Clone, Copy)]
struct Sources<'a> {
    not: &'a [u16],
    last: &'a [u16],
}

mod peers;

use peers::Peers;

/// Members of a group, as they were at one moment.
pub(super) type Members = SmallVec<[Arc<GroupMember>; 3]>;

/// Number of regions that one step of filling passes over.
const PASSED_AT_ONCE: usize = 4096;

/// A group of devices.
pub(super) struct Group {
    /// Number of the group.
    number: u16,
    peers: Arc<Peers>,
    writes: Writes,
    /// Number of times that a member was left out or taken in; and how many of them the labels tell of.
    changes: AtomicU64,
    recorded: AtomicU64,
}

/// A flush of a group that is under way.
pub(super) struct GroupFlush {
    number: u64,
    /// Members that are flushed.
    pub(super) members: Members,
}

impl Group {
    /// Makes a group of these members.
    pub(super) fn new(number: u16, members: impl IntoIterator<Item = GroupMember>) -> Self {
        Self {
            number,
            peers: Peers::new(members.into_iter().map(Arc::new).collect()),
            writes: Writes::default(),
            changes: AtomicU64::new(0),
            recorded: AtomicU64::new(0),
        }
    }

    /// Says how long a device is waited for that does not answer, in nanoseconds; 0: until it does ([`super::answers`]).
    pub(super) fn wait_at_most(&self, bound_ns: u64) {
        self.peers.bound_ns.store(bound_ns, Ordering::SeqCst);
    }

    /// Returns how long that is.
    pub(super) fn waits_at_most(&self) -> u64 {
        self.peers.bound_ns.load(Ordering::SeqCst)
    }

    /// Says whether the pool can do without the group (H4).
    pub(super) fn spare(&self, is_spared: bool) {
        self.peers.is_spared.store(is_spared, Ordering::SeqCst);
    }

    /// Returns true if the pool can do without the group.
    pub(super) fn is_spared(&self) -> bool {
        self.peers.is_spared.load(Ordering::SeqCst)
    }

    /// Returns the members.
    pub(super) fn members(&self) -> Members {
        self.peers.members.read().clone()
    }

    /// Returns the member that a device is.
    pub(super) fn member(&self, device: u16) -> Option<Arc<GroupMember>> {
        self.peers.members.read().iter().find(|member| member.number == device).cloned()
    }

    /// Has the requests of a class to any of its devices go at once, or wait for their turns again.
    pub(super) fn hurry(&self, class: IoClass, hurried: bool) {
        let members = self.members();
        let devices = members.iter().filter_map(|member| member.device());
        devices.for_each(|device| device.stats().hurry(class, hurried));
    }

    /// Returns true if calls to its devices have to come in the same order whenever the same is done.
    pub(super) fn keeps_order(&self) -> bool {
        self.peers
            .members
            .read()
            .iter()
            .filter_map(|member| member.device())
            .any(|device| device.keeps_order())
    }

    /// Returns the length of the longest request that each of its devices takes as one, in bytes.
    pub(super) fn request_bytes_max(&self) -> u64 {
        let members = self.peers.members.read();
        let devices = members.iter().filter_map(|member| member.device());
        devices.map(|device| device.request_bytes_max()).min().unwrap_or(u64::MAX)
    }

    /// Returns true if there is a member to read from.
    pub(super) fn is_readable(&self) -> bool {
        self.peers.members.read().iter().any(|member| member.readable().is_some())
    }

    /// Returns the member to read `offset` from, of those not in `tried`: the one that `choice` names, or the one that
    /// has the least to do before ([`wait`]); of several such, neighbours come from the same one.
    pub(super) fn choose(
        &self,
        offset: u64,
        tried: &[u16],
        choice: Choice,
        class: IoClass,
    ) -> Option<ReadUnderWay> {
        let members = self.peers.members.read();
        let turn = offset / REGION_BYTES;
        let readable: SmallVec<[&Arc<GroupMember>; 3]> =
            members.iter().filter(|member| member.readable().is_some()).collect();
        let choice = choice.among(readable.len());
        if let ([alone], true) = (readable.as_slice(), tried.is_empty()) {
            return Some(ReadUnderWay::begin(alone, class));
        }
        let wanted = |(at, member): &(usize, &&Arc<GroupMember>)| {
            !tried.contains(&member.number) && !matches!(choice, Choice::Only(only) if only != *at)
        };
        let nearest = |at: usize| (at as u64 + turn) % members.len() as u64;
        let latencies = readable.iter().map(|member| member.latency_ns());
        let fastest_ns = latencies.filter(|ns| *ns > 0).min().unwrap_or_default();
        let rank = |at: usize, member: &GroupMember| {
            let wait = wait(member.reads(), member.latency_ns(), fastest_ns);
            (!matches!(choice, Choice::First(first) if first == at), wait, nearest(at))
        };
        let ranked = readable.iter().enumerate().filter(wanted);
        let has_others = ranked.clone().nth(1).is_some();
        let (_, chosen) = ranked.min_by_key(|(at, member)| rank(*at, member))?;
        Some(ReadUnderWay::begin(chosen, class).with_others(has_others))
    }

    /// Writes whole blocks to every member that takes writes.
    ///
    /// # Errors
    /// The device's error if no whole member has them.
    pub(super) fn write(
        &self,
        offset: u64,
        buf: &AlignedBuf,
        durable: bool,
        (class, roster): (IoClass, Option<&dyn Roster>),
    ) -> Result<()> {
        let bytes = offset..offset + buf.len() as u64;
        let mut turn = self.writes.begin(bytes.clone(), &|hurried| self.hurry(IoClass::Filling, hurried));
        let members = self.members();
        if let [alone] = members.as_slice()
            && let Some(device) = alone.readable()
        {
            Lane::to(device.as_ref(), class).write(offset, buf, durable)?;
            if durable {
                turn.is_durable();
            }
            return Ok(());
        }
        self.writes.note_since(&bytes);
        note_lacking(&members, &bytes);
        let written = on_each(&members, class, |lane| lane.write(offset, buf, durable));
        self.settle(written)?;
        if durable {
            turn.is_durable();
            self.record(roster)?;
        }
        Ok(())
    }

    /// See [`Writes::set_since`], [`Writes::begin_superblock`] and [`Writes::end_superblock`].
    pub(super) const fn writes(&self) -> &Writes {
        &self.writes
    }

    /// Begins a flush.
    pub(super) fn begin_flush(&self) -> GroupFlush {
        let number = self.writes.begin_flush();
        GroupFlush { number, members: self.members() }
    }

    /// Ends a flush with the results of the members' own.
    ///
    /// # Errors
    /// The device's error if no whole member was flushed.
    pub(super) fn end_flush(
        &self,
        flush: &GroupFlush,
        flushed: Vec<(Arc<GroupMember>, Result<()>)>,
        roster: Option<&dyn Roster>,
    ) -> Result<()> {
        let settled = self.settle(flushed);
        self.writes.end_flush(flush.number, settled.is_ok());
        settled?;
        self.record(roster)
    }

    /// Leaves out the members that failed something that a whole member has done.
    ///
    /// # Errors
    /// The first failure if no whole member has done it, or if a member that failed is the last whole one by now.
    fn settle(&self, outcomes: Vec<(Arc<GroupMember>, Result<()>)>) -> Result<()> {
        let is_done = |outcomes: &[(Arc<GroupMember>, Result<()>)]| {
            outcomes.iter().any(|(member, outcome)| outcome.is_ok() && member.state() == MemberState::Whole)
        };
        // If all failed, nothing tells them apart, and none is left out.
        let failed_by_all = !is_done(&outcomes);
        for (member, outcome) in outcomes.iter().filter(|_| !failed_by_all) {
            if let Err(error) = outcome {
                self.leave_out(member, MemberState::Faulted, error);
            }
        }
        let failed = |(member, outcome): &(Arc<GroupMember>, Result<()>)| {
            outcome.is_err() && member.state() == MemberState::Whole
        };
        if is_done(&outcomes) && !outcomes.iter().any(failed) {
            return Ok(());
        }
        let failure = outcomes.into_iter().find_map(|(_, outcome)| outcome.err());
        Err(failure.unwrap_or_else(|| self.nobody()))
    }

    /// Returns true if another member than this one can be read.
    pub(super) fn has_another(&self, number: u16) -> bool {
        has_another(&self.peers.members.read(), number)
    }

    /// Leaves a member out. Returns false if it was not written, or is the last whole one.
    pub(super) fn leave_out(
        &self,
        member: &GroupMember,
        state: MemberState,
        reason: &dyn std::fmt::Display,
    ) -> bool {
        // With the write side held, two members are not left out at once, each because there is the other.
        let members = self.peers.members.write();
        let is_needed = !has_another(&members, member.number) && !self.is_spared();
        if !member.state().is_written() || is_needed {
            return false;
        }
        // First the state, then what is under way: a write that is in neither begins later, and finds the state (H2).
        member.set_state(state);
        member.lacks(self.writes.uncovered().iter());
        self.changes.fetch_add(1, Ordering::SeqCst);
        drop(members);
        let (group, device) = (self.number, member.path().display());
        if state == MemberState::Offline {
            tracing::info!(group, %device, %reason, "a device is left out, as was asked for");
        } else {
            tracing::error!(group, %device, %reason, "a device is left out, and the pool goes on without it; put another one in its place with `pagefold replace`, or use it again, once it is mended, with `pagefold online`");
        }
        true
    }

    /// Adds a member. On return all writes under way go to it, or ended before.
    pub(super) fn add(&self, member: GroupMember) {
        let mut members = self.peers.members.write();
        self.peers.greet(&member);
        members.push(Arc::new(member));
        members.sort_by_key(|member| member.number);
        drop(members);
        self.writes.drain();
    }

    /// Removes a member that is not written any more. On return nothing is written to it, and it is returned with its
    /// device.
    pub(super) fn remove(&self, device: u16) -> Option<Arc<GroupMember>> {
        let mut members = self.peers.members.write();
        let at = members.iter().position(|member| member.number == device && !member.state().is_written())?;
        let removed = members.remove(at);
        drop(members);
        self.writes.drain();
        Some(removed)
    }

    /// Removes all members. On return nothing is written to them, and they are returned.
    pub(super) fn dissolve(&self) -> Members {
        let members = std::mem::take(&mut *self.peers.members.write());
        self.writes.drain();
        members
    }

    /// Puts a device in the place of the one that a member has, which is not written any more. It lacks what the other
    /// one lacks. On return all writes under way go to it if `state` is one that is written.
    pub(super) fn reopen(&self, number: u16, device: Arc<dyn Device>, state: MemberState) -> bool {
        let mut members = self.peers.members.write();
        let member =
            members.iter_mut().find(|member| member.number == number && !member.state().is_written());
        let Some(member) = member else { return false };
        *member = Arc::new(member.with_device(device, state));
        self.peers.greet(member);
        drop(members);
        self.writes.drain();
        true
    }

    /// Has these ranges read from elsewhere, of all members that are here.
    pub(super) fn redirect(&self, sources: &Arc<OtherPlaces>) {
        for member in self.peers.members.write().iter_mut() {
            if let Some(device) = member.device() {
                let redirected = Redirected::new(Arc::clone(device), Arc::clone(sources));
                *member = Arc::new(member.with_device(Arc::new(redirected), member.state()));
            }
        }
    }

    /// Gives up the device of a member that is not written any more. Those who use it now still do, until it is closed
    /// ([`GroupMember::is_closed`]).
    pub(super) fn release(&self, number: u16) {
        let mut members = self.peers.members.write();
        let mut others = members.iter_mut().filter(|member| !member.state().is_written());
        if let Some(member) = others.find(|member| member.number == number) {
            *member = Arc::new(member.without_device());
        }
    }

    /// Returns the state of a member, and what it lacks: both as of one moment.
    pub(super) fn lacking(&self, number: u16) -> Option<(MemberState, Ranges)> {
        // With this held, nobody is left out meanwhile.
        let members = self.peers.members.read();
        let member = members.iter().find(|member| member.number == number)?;
        Some((member.state(), member.lacking()))
    }

    /// Makes a member that lacks nothing whole. Returns false if it is not one that is being filled.
    pub(super) fn complete(&self, member: &GroupMember) -> bool {
        let _members = self.peers.members.write();
        let complete = member.state() == MemberState::Filling && member.first_lacking().is_none();
        if complete {
            member.set_state(MemberState::Whole);
        }
        complete
    }

    /// Makes the labels tell of all members that were left out before the call (H1).
    pub(super) fn record(&self, roster: Option<&dyn Roster>) -> Result<()> {
        // With the lock nobody is being left out: the state of a member, which others see without it, is counted as well.
        let members = self.peers.members.read();
        let changes = self.changes.load(Ordering::SeqCst);
        drop(members);
        if self.recorded.load(Ordering::SeqCst) >= changes {
            return Ok(());
        }
        let roster = roster.ok_or_else(|| self.nobody())?;
        roster.record(self.number)?;
        self.recorded.fetch_max(changes, Ordering::SeqCst);
        Ok(())
    }

    fn nobody(&self) -> Error {
        Error::Failed(format!("no device of group {} can be used", self.number))
    }

    /// Copies to a member the lowest region that it lacks, of those that `is_wanted` returns true for, by their first
    /// byte. From members in `leaving` it copies only what no other one can read. Returns the bytes copied; `None` if it
    /// lacks nothing that is wanted. Of many regions that are not wanted some are passed over at a time, and nothing is copied.
    ///
    /// # Errors
    /// Errors of the member. Blocks that no whole member can read are left alone: they are as lost as before.
    pub(super) fn fill_next(
        &self,
        member: &GroupMember,
        leaving: &[u16],
        is_wanted: &dyn Fn(u64) -> bool,
    ) -> Result<Option<u64>> {
        let not = Sources { not: &[member.number], last: leaving };
        let Some(device) = member.writable() else { return Ok(None) };
        for _ in 0..PASSED_AT_ONCE {
            let Some(region) = member.first_lacking() else { return Ok(None) };
            let start = region.saturating_mul(REGION_BYTES);
            let bytes = start..start.saturating_add(REGION_BYTES).min(device.size_bytes());
            if bytes.is_empty() {
                // Nothing lies behind the end.
                member.has(region..u64::MAX);
                continue;
            }
            // Writes to the region go to the member, too, from here on.
            let lane = Lane::to(device.as_ref(), IoClass::Filling);
            let is_wanted = is_wanted(start);
            let copied = if is_wanted { self.copy(not, lane, &bytes)? } else { 0 };
            // Trying to read what nobody can read takes long, too.
            if !self.note_filled(member, region, &bytes) || is_wanted {
                return Ok(Some(copied));
            }
        }
        Ok(Some(0))
    }

    /// Notes that a member has a region, whose bytes were copied to it or need not be. Returns false, and notes nothing, if
    /// it was left out meanwhile: then it may lack what the copy has brought, and what was written since.
    fn note_filled(&self, member: &GroupMember, region: u64, bytes: &Range<u64>) -> bool {
        // With this held, nobody is left out meanwhile.
        let _members = self.peers.members.read();
        let is_filled = member.state() == MemberState::Filling;
        if is_filled {
            // First among what no flush has covered, then not lacking any more (H2).
            self.writes.note(bytes);
            member.has(region..region + 1);
        }
        is_filled
    }

    /// Writes `bytes` again on a member, from the one with the number `right`: others may have them wrong, too. The rest of
    /// the first and the last block stays as it is there, if that can be read: this member may be the only one that has it
    /// right.
    ///
    /// # Errors
    /// Errors of both members.
    pub(super) fn repair(
        &self,
        member: &GroupMember,
        right: u16,
        bytes: &Range<u64>,
        class: IoClass,
    ) -> Result<()> {
        let device = member.readable().ok_or_else(|| self.nobody())?;
        let source = self.member(right).and_then(|source| source.readable().cloned());
        let source = source.ok_or_else(|| self.nobody())?;
        let (lane, source) = (Lane::to(device.as_ref(), class), Lane::to(source.as_ref(), class));
        let block = BLOCK_BYTES as u64;
        let whole = bytes.start - bytes.start % block..bytes.end.next_multiple_of(block);
        let _turn = self.writes.begin_copy(whole.clone());
        let mut mended = AlignedBuf::scratch((whole.end - whole.start) as usize);
        source.read(whole.start, &mut mended)?;
        for rest in [whole.start..bytes.start, bytes.end..whole.end] {
            let mut here = AlignedBuf::scratch(BLOCK_BYTES);
            let first = rest.start - rest.start % block;
            if rest.is_empty() || lane.read(first, &mut here).is_err() {
                continue;
            }
            let (from, to) = ((rest.start - first) as usize, (rest.start - whole.start) as usize);
            let len_bytes = (rest.end - rest.start) as usize;
            if let (Some(here), Some(place)) =
                (here.get(from..from + len_bytes), mended.get_mut(to..to + len_bytes))
            {
                place.copy_from_slice(here);
            }
        }
        lane.write(whole.start, &mended, false)
    }

    /// Writes bytes at any offset. The rest of the blocks that they lie in stays on each member as it is there; where that
    /// cannot be read, it is as on another one.
    ///
    /// # Errors
    /// Errors of the devices, if no whole member has them.
    pub(super) fn overwrite(&self, offset: u64, bytes: &[u8], class: IoClass) -> Result<()> {
        let start = (offset % BLOCK_BYTES as u64) as usize;
        let first = offset - start as u64;
        let len_bytes = (start + bytes.len()).next_multiple_of(BLOCK_BYTES) as u64;
        let blocks = first..first + len_bytes;
        let _turn = self.writes.begin_copy(blocks.clone());
        self.writes.note(&blocks);
        let members = self.members();
        note_lacking(&members, &blocks);
        let written = on_each(&members, class, |lane| {
            lane.write(first, &self.with_rest(lane, (first, start), bytes)?, false)
        });
        self.settle(written)
    }

    /// Returns the blocks from `first` on with these bytes, from the one at `start` on, and the rest as it is on a member.
    fn with_rest(&self, lane: Lane<'_>, (first, start): (u64, usize), bytes: &[u8]) -> Result<AlignedBuf> {
        let mut blocks = AlignedBuf::scratch(start + bytes.len());
        let (end, len) = (start + bytes.len(), blocks.len());
        let mut one = AlignedBuf::scratch(BLOCK_BYTES);
        let ends = [(0, start > 0 || end < BLOCK_BYTES), (len - BLOCK_BYTES, end < len)];
        for (at, _) in ends.into_iter().filter(|(_, has_rest)| *has_rest) {
            let offset = first + at as u64;
            // A member that cannot read is no reason to leave it out: it is to be mended.
            lane.read(offset, &mut one)
                .or_else(|error| self.read_any(&[], offset, &mut one, lane.class()).map_err(|_| error))?;
            if let Some(place) = blocks.get_mut(at..at + BLOCK_BYTES) {
                place.copy_from_slice(&one);
            }
        }
        if let Some(place) = blocks.get_mut(start..end) {
            place.copy_from_slice(bytes);
        }
        Ok(blocks)
    }

    /// Copies whole blocks to a device from one of `sources`; the reads are of the class of `to`, too.
    /// While others use a member it is done in pieces, since writes to what is being copied wait.
    /// Returns the number of bytes that could be copied.
    fn copy(&self, sources: Sources<'_>, to: Lane<'_>, bytes: &Range<u64>) -> Result<u64> {
        let (mut start, mut copied) = (bytes.start, 0);
        while start < bytes.end {
            let members = self.members();
            let devices = members.iter().filter_map(|member| member.device());
            let lanes = devices.map(|device| Lane::to(device.as_ref(), to.class()));
            let rest = bytes.end - start;
            let at_once = lanes.map(|lane| lane.copied_at_once(rest)).min().unwrap_or(rest);
            copied += self.copy_piece(sources, to, &(start..start + at_once))?;
            start += at_once;
        }
        Ok(copied)
    }

    fn copy_piece(&self, sources: Sources<'_>, to: Lane<'_>, bytes: &Range<u64>) -> Result<u64> {
        let _turn = self.writes.begin_copy(bytes.clone());
        let mut buf = AlignedBuf::scratch((bytes.end - bytes.start) as usize);
        if self.read_from(sources, bytes.start, &mut buf, to.class()).is_ok() {
            to.write(bytes.start, &buf, false)?;
            return Ok(buf.len() as u64);
        }
        let mut copied = 0;
        let mut block = AlignedBuf::scratch(BLOCK_BYTES);
        for offset in bytes.clone().step_by(BLOCK_BYTES) {
            if self.read_from(sources, offset, &mut block, to.class()).is_ok() {
                to.write(offset, &block, false)?;
                copied += BLOCK_BYTES as u64;
            }
        }
        Ok(copied)
    }

    /// Reads from any of `sources` that is whole.
    fn read_from(
        &self,
        sources: Sources<'_>,
        offset: u64,
        buf: &mut AlignedBuf,
        class: IoClass,
    ) -> Result<()> {
        let Sources { not, last } = sources;
        let others: SmallVec<[u16; 4]> = not.iter().chain(last).copied().collect();
        if !last.is_empty() && self.read_any(&others, offset, buf, class).is_ok() {
            return Ok(());
        }
        self.read_any(not, offset, buf, class)
    }

    /// Reads from any whole member that is not in `not`.
    fn read_any(&self, not: &[u16], offset: u64, buf: &mut AlignedBuf, class: IoClass) -> Result<()> {
        let mut tried: SmallVec<[u16; 4]> = not.into();
        let mut failed = None;
        while let Some(mut turn) = self.choose(offset, &tried, Choice::Any, class) {
            let (device, place) = (turn.member().readable().cloned(), (offset, buf.len() as u64));
            match device.map(|device| turn.make(place, || device.read(offset, buf))) {
                Some(Ok(())) => return Ok(()),
                Some(Err(error)) => failed = failed.or(Some(error)),
                None => {}
            }
            tried.push(turn.member().number);
        }
        let members = self.members();
        let others = members.iter().filter(|member| !not.contains(&member.number));
        let read = others
            .filter_map(|member| member.readable())
            .find_map(|device| again(|| Lane::to(device.as_ref(), class).read(offset, buf)));
        read.unwrap_or_else(|| Err(failed.unwrap_or_else(|| self.nobody())))
    }

    /// Returns a member to be read once more, if it can be read.
    pub(super) fn turn(&self, number: u16, class: IoClass) -> Option<ReadUnderWay> {
        let member = self.member(number)?;
        member.readable().is_some().then(|| ReadUnderWay::begin(&member, class))
    }

    /// Fills `buf` with blocks that nothing verifies yet, from the members in turn: `copy` 0 is the first one.
    ///
    /// # Errors
    /// The first error if no member can be read.
    pub(super) fn read_copy(
        &self,
        copy: usize,
        offset: u64,
        buf: &mut AlignedBuf,
        class: IoClass,
    ) -> Result<()> {
        let members = self.members();
        let lanes = members.iter().filter_map(|member| member.readable());
        let lanes: SmallVec<[Lane<'_>; 3]> = lanes.map(|device| Lane::to(device.as_ref(), class)).collect();
        let mut failed = None;
        for lane in lanes.iter().cycle().skip(copy).take(lanes.len()) {
            match lane.read(offset, buf) {
                Ok(()) => return Ok(()),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        let read = lanes.iter().find_map(|lane| again(|| lane.read(offset, buf)));
        read.unwrap_or_else(|| Err(failed.unwrap_or_else(|| self.nobody())))
    }
}

fn has_another(members: &Members, number: u16) -> bool {
    members.iter().any(|other| other.number != number && other.readable().is_some())
}

/// Notes that members which are not written lack what is written now.
fn note_lacking(members: &[Arc<GroupMember>], bytes: &Range<u64>) {
    for member in members.iter().filter(|member| member.writable().is_none()) {
        member.lacks(std::iter::once(regions(bytes)));
    }
}

/// Does something on each device that takes writes; returns the outcomes. Devices work at the same time, unless one of
/// them has to keep the order of calls.
pub(super) fn on_each(
    members: &[Arc<GroupMember>],
    class: IoClass,
    work: impl Fn(Lane<'_>) -> Result<()> + Sync,
) -> Vec<(Arc<GroupMember>, Result<()>)> {
    let writable = |member: &'_ Arc<GroupMember>| Some((Arc::clone(member), Arc::clone(member.writable()?)));
    let wanted: SmallVec<[_; 3]> = members.iter().filter_map(writable).collect();
    let ordered = wanted.iter().any(|(_, device)| device.keeps_order());
    let outcomes =
        super::flush::at_once(&wanted, ordered, &|(_, device)| work(Lane::to(device.as_ref(), class)));
    wanted.into_iter().zip(outcomes).map(|((member, _), outcome)| (member, outcome)).collect()
}

#[cfg(test)]
mod tests;
