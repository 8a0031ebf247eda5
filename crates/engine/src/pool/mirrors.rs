//! Changes which devices a mirror has, while the pool is open; and fills devices with what they lack.
//!
//! A device that is filled gets what is written from then on, and is not read. What it lacks is copied to it meanwhile
//! ([`crate::device`], H3). When it lacks nothing, a checkpoint gives it superblocks, and the labels say that it is whole
//! (Y1). Free chunks are not copied. What a device lacks is stored by each checkpoint ([`super::lacks`]), so that it is
//! known when the pool is opened again.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use super::Pool;
use super::create::{check_members, check_size};
use super::identity::Member;
use super::label::Label;
use super::mirror_plans::unknown;
use super::roster::Joining;
use crate::device::{ALL, Device, MemberState, OneDevice, REGION_BYTES, owes, when_answered};
use crate::limits::{CHUNK_BYTES, RESERVED_BYTES};
use crate::space::Chunk;
use crate::{Error, Result};

// A region is part of one chunk, or reserved: labels and superblocks, of which each device has its own, are not copied.
const _: () =
    assert!(RESERVED_BYTES.is_multiple_of(REGION_BYTES) && CHUNK_BYTES.is_multiple_of(REGION_BYTES));

/// Time for which closing a device waits for the requests to it.
const CLOSE_PATIENCE: Duration = Duration::from_secs(10);
/// Time between two looks.
const CLOSE_PAUSE: Duration = Duration::from_millis(5);

/// State of the last filling of a device since the pool was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FillStatus {
    /// Number of the device; `None` if none was filled.
    pub device: Option<u16>,
    /// Time at which it began, in seconds since 1970.
    pub started: u64,
    /// Time at which the device was whole, in seconds since 1970; 0 before.
    pub finished: u64,
    /// Bytes that were copied to it so far.
    pub done_bytes: u64,
    /// Bytes of chunks in use that it still lacks.
    pub left_bytes: u64,
    /// True if it lacked everything.
    pub lacked_all: bool,
    /// Bytes of the copy that were verified, and that will have been in the end, while another device waits for that to
    /// leave; 0 otherwise.
    pub verified_bytes: u64,
    /// See `verified_bytes`.
    pub to_verify_bytes: u64,
    /// Time that its steps have worked so far, in nanoseconds; rests between them are not counted.
    pub work_ns: u64,
}

/// Returns the time since `begun` in nanoseconds.
pub(super) fn elapsed_ns(begun: Instant) -> u64 {
    u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// See [`Pool::on_leave`].
pub(super) type LeaveHook = Arc<dyn Fn(&Path) + Send + Sync>;

impl Pool {
    /// Returns the state of the last filling of a device.
    pub fn fill_status(&self) -> FillStatus {
        let mut status = *self.fill.lock();
        if let Some(device) = status.device
            && status.finished == 0
        {
            status.left_bytes = self.lacking_bytes(device);
        }
        (status.verified_bytes, status.to_verify_bytes) = self.copy_check_bytes().unwrap_or_default();
        status
    }

    /// Returns the bytes of chunks in use that a device lacks.
    pub(super) fn lacking_bytes(&self, device: u16) -> u64 {
        let Some((group, _)) = self.shared.devices.state(device) else { return 0 };
        let lacking = self.shared.devices.lacking(device);
        let in_use = self.chunks.used_of(group);
        // Of the chunks in use, whole ones are counted: a device lacks few regions, or nearly all.
        let used = in_use.iter().flat_map(|index| {
            let start = Chunk { device: group, index: *index }.offset() / REGION_BYTES;
            start..start + CHUNK_BYTES / REGION_BYTES
        });
        used.filter(|region| lacking.has(*region)).count() as u64 * REGION_BYTES
    }

    /// Adds a device to the group of `beside`, which it mirrors from then on; it is filled in the background. With
    /// `replace` it takes the place of `beside`, which leaves when the new one is whole. Returns its number.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the device is too small, or the mirror has as many devices as it can have; [`Error::Busy`]
    /// if another device takes the place of `beside`; [`Error::ReadOnly`]; errors of the devices. Then `beside` stays.
    pub fn attach(&self, beside: u16, new: Arc<dyn Device>, replace: bool) -> Result<u16> {
        self.shared.check_writable()?;
        self.shared.devices.bound(new.as_ref());
        let one = OneDevice::of(new.as_ref());
        let group = self.check_attach(beside, (one.path(), one.size_bytes()), replace)?;
        let joining = Joining { replaces: replace.then_some(beside), birth: None };
        let number = self.labels.add(group, joining, new)?;
        // Errors of one that had the number before are not its own.
        self.shared.segments.faults.clear(Some(number), 0);
        Ok(number)
    }

    /// Adds groups of devices to the pool: each a device of its own, or a mirror of several. What is on the devices is
    /// lost. On return the pool is as much larger.
    ///
    /// # Errors
    /// [`Error::Invalid`] if a device is too small or too large, or a mirror has too many; [`Error::ReadOnly`];
    /// [`Error::Busy`] if others are being added; errors of the new devices, after which none is added; errors of the
    /// checkpoint that is to count them: then the next one does.
    pub fn add_groups(&self, groups: Vec<Vec<Arc<dyn Device>>>) -> Result<()> {
        self.shared.check_writable()?;
        groups.iter().flatten().for_each(|device| self.shared.devices.bound(device.as_ref()));
        for group in &groups {
            check_members(group.len())?;
            group.iter().try_for_each(|device| check_size(OneDevice::of(device.as_ref())))?;
        }
        // A split that is under way has chosen among the groups that there were.
        self.without_stand_in(&[], || {
            self.labels.add_groups(groups)?;
            self.checkpoint(false)
        })
    }

    /// Begins to use groups that count from a superblock of this epoch on.
    pub(super) fn take_up_groups(&self, epoch: u64) {
        let new = self.labels.count_groups(epoch);
        if new.sizes.is_empty() {
            return;
        }
        self.labels.tell_of(&new);
        // First the room, then what may be promised of it.
        new.sizes.iter().for_each(|size_bytes| self.chunks.add_device(*size_bytes));
        self.count_chunks();
        self.take_up_log_device();
    }

    /// Lets the pool use all of its devices, which may have grown; with `device`, all of that one's group. Returns the
    /// number of groups that use more than before.
    ///
    /// # Errors
    /// [`Error::Invalid`] if a device of the group is not in use; then nothing is changed if one was named, and other
    /// groups grow if not. [`Error::ReadOnly`]; errors of devices.
    pub fn take_up_growth(&self, device: Option<u16>) -> Result<usize> {
        self.shared.check_writable()?;
        let groups = match device {
            Some(device) => vec![self.state_of(device)?.0],
            None => (0..self.labels.counted()).collect(),
        };
        let log_group = self.labels.log_group();
        // Superblocks lie in other places afterwards: none is written meanwhile.
        let _state = self.maintenance.lock();
        let mut grown = 0;
        for group in groups {
            match self.labels.grow(group) {
                Ok(Some(_)) if Some(group) == log_group => grown += 1,
                Ok(Some(size_bytes)) => {
                    self.chunks.grow_device(group, size_bytes);
                    grown += 1;
                }
                Err(Error::Invalid(_)) if device.is_none() => {}
                done => drop(done?),
            }
        }
        if grown > 0 {
            self.count_chunks();
        }
        Ok(grown)
    }

    /// Has the sizes follow from the chunks that the pool has by now.
    pub(super) fn count_chunks(&self) {
        let mut sizing = self.sizing.write();
        *sizing = sizing.with_chunks(self.chunks.total());
        self.shared.bounds.set(sizing.bounds);
        let capacity_bytes = sizing.bounds.capacity_bytes;
        tracing::info!(capacity_bytes, "the pool has another size");
    }

    /// Has growth of devices taken up by the way ([`Pool::growth_step`]), or only when somebody asks for it.
    pub fn set_autoexpand(&self, on: bool) {
        self.autoexpand.store(on, Ordering::Relaxed);
    }

    /// Takes up growth of devices, if that is wanted.
    ///
    /// # Errors
    /// Those of [`Pool::take_up_growth`].
    pub fn growth_step(&self) -> Result<()> {
        if self.autoexpand.load(Ordering::Relaxed) && self.shared.check_writable().is_ok() {
            self.take_up_growth(None)?;
        }
        Ok(())
    }

    /// Removes a device from its mirror. It holds no pool then. A spare goes back; one that stands in for the device stays
    /// for good.
    ///
    /// # Errors
    /// [`Error::Invalid`] if no other device has what it has; [`Error::ReadOnly`]; errors of the others' labels.
    pub fn detach(&self, device: u16) -> Result<()> {
        self.shared.check_writable()?;
        // A log device can be the last one: it would be lost instead of removed.
        if self.state_of(device)?.1.is_written() {
            self.check_other(device)?;
        }
        self.part_with(device)
    }

    /// Tells of a device that has left the pool ([`Pool::on_leave`]), once it owes no answer: what it writes late would
    /// replace what somebody else writes to it.
    pub(super) fn tell_of_leave(&self, path: &Path) {
        if let Some(hook) = self.on_leave.get().map(Arc::clone) {
            let left = path.to_path_buf();
            when_answered(path, Box::new(move || hook(&left)));
        }
    }

    /// Has `hook` called with the path of each device that has left the pool, because it was detached or replaced: it is
    /// not in use any more. The first hook stays.
    pub fn on_leave(&self, hook: impl Fn(&Path) + Send + Sync + 'static) {
        // A second one would be a mistake of the caller's, and changes nothing.
        let _ = self.on_leave.set(Arc::new(hook));
    }

    /// Has `act` called between the steps of verbs that change devices, where changes, commits and checkpoints of other threads may
    /// come, for callers that drive a pool without threads. `act` may do nothing else, and nothing that waits for a verb. The
    /// first one stays.
    pub fn at_pauses(&self, act: impl Fn() + Send + Sync + 'static) {
        self.labels.set_pause(Arc::new(act));
    }

    /// Stops reading and writing a device, until it is taken online again.
    ///
    /// # Errors
    /// [`Error::Invalid`] if no other device has what it has, or if it is not written anyway; [`Error::ReadOnly`];
    /// errors of the others' labels.
    pub fn offline(&self, device: u16) -> Result<()> {
        self.shared.check_writable()?;
        let group = self.check_written(device)?;
        self.check_other(device)?;
        // When it comes back it lacks what was written since it got its last superblock.
        self.checkpoint(false)?;
        self.labels.pause();
        if !self.shared.devices.take_offline(device) {
            return Err(self.last_one(device));
        }
        self.labels.pause();
        self.shared.devices.record(group)
    }

    /// Takes a device back that was not in use, opened again; it is filled with what it lacks. If it is not known what
    /// it has, it lacks everything.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is another device than the pool's, or is in use; [`Error::ReadOnly`]; errors of labels.
    pub fn online(&self, device: Arc<dyn Device>) -> Result<u16> {
        self.shared.check_writable()?;
        self.shared.devices.bound(device.as_ref());
        let here = Arc::clone(&device);
        self.without_stand_in(&[], || {
            let reopen = move |number| self.shared.devices.reopen(number, device);
            self.take_online(OneDevice::of(here.as_ref()), reopen)
        })
    }

    /// Does what [`Pool::online`] does, for whoever holds off spares. `reopen` has the member of that number use the device.
    pub(super) fn take_online(&self, one: OneDevice<'_>, reopen: impl FnOnce(u16) -> bool) -> Result<u16> {
        let label = Label::read(one)?;
        let number = label.device;
        let (group, state) = self.state_of(number)?;
        self.check_stays(number)?;
        if state.is_written() {
            return Err(Error::Invalid(format!("{} is in use already", one.path().display())));
        }
        self.check_holds(group, (one.path(), one.size_bytes()))?;
        // A checkpoint that is under way would give it a superblock before its label says that it is filled.
        let _state = self.maintenance.lock();
        let is_as_left = Member::of(one, label.clone()).is_ok_and(|member| self.labels.is_as_left(&member));
        self.labels.take_back(number, &label)?;
        if !is_as_left {
            self.shared.devices.set_lacking(number, [ALL]);
        }
        if !reopen(number) {
            return Err(Error::Invalid("it is in use already".into()));
        }
        self.labels.change(group)?;
        Ok(number)
    }

    /// Closes a device that is not in use, so that others may open it. Waits for requests to it that are under way.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is in use; [`Error::Busy`] if requests do not end.
    pub fn close_device(&self, device: u16) -> Result<()> {
        if self.state_of(device)?.1.is_written() {
            return Err(Error::Invalid("it is in use".into()));
        }
        let devices = &self.shared.devices;
        let path = devices.device_path(device);
        devices.release(device);
        let until = Instant::now() + CLOSE_PATIENCE;
        // An earlier call may have given it up, and not have waited for long enough. A request that nobody waits for any
        // more has the file (S3).
        while !devices.is_closed(device) || owes(&path) {
            if Instant::now() >= until {
                return Err(Error::Busy(
                    "it has not answered all requests yet, and what it does late would replace what is written now; try again when it answers"
                        .into(),
                ));
            }
            thread::sleep(CLOSE_PAUSE);
        }
        Ok(())
    }

    pub(super) fn state_of(&self, device: u16) -> Result<(u16, MemberState)> {
        self.shared.devices.state(device).ok_or_else(unknown)
    }

    pub(super) fn last_one(&self, device: u16) -> Error {
        let path = self.shared.devices.device(device).map(|here| here.one().path().display().to_string());
        let path = path.unwrap_or_default();
        let log_group = self.labels.log_group();
        if log_group.is_some() && self.state_of(device).ok().map(|(group, _)| group) == log_group {
            return Error::Invalid(format!(
                "{path} is the only device of the log device: remove that instead"
            ));
        }
        Error::Invalid(format!("{path} is the only device that has what it has"))
    }

    /// Copies some of what a device lacks that is being filled, or verifies some of what was copied to one that replaces
    /// another. Returns the bytes copied or verified; `None` if there is nothing to do. A device that lacks nothing is whole,
    /// at `now` (seconds since 1970); when all of it is verified the device whose place it took leaves.
    ///
    /// # Errors
    /// Errors of devices that are not left out, and of a checkpoint.
    pub fn fill_step(&self, now: u64) -> Result<Option<u64>> {
        if self.shared.check_writable().is_err() {
            return Ok(None);
        }
        if self.labels.take_left_out() {
            // A device that was left out has not got this superblock: with this machine's memory of how far the pool has
            // come, it is known to be stale even alone.
            self.checkpoint(false)?;
        }
        let devices = &self.shared.devices;
        let filling = devices.here().into_iter().find(|device| device.state == MemberState::Filling);
        let Some((group, number)) = filling.map(|device| (device.group, device.number)) else {
            return self.replace_step(now);
        };
        self.note_fill(number, now);
        // Of a log device nothing is: what was there before is settled when the filling ends, by a checkpoint.
        let is_log = self.labels.log_group() == Some(group);
        let is_wanted = |offset: u64| {
            let chunk = Chunk::at(group, offset);
            !is_log
                && (chunk.offset()..chunk.offset() + CHUNK_BYTES).contains(&offset)
                && !self.chunks.is_free(chunk)
        };
        let begun = Instant::now();
        match devices.fill_next(number, &self.labels.replaced_in(group), &is_wanted) {
            Ok(Some(bytes)) => {
                let mut fill = self.fill.lock();
                fill.done_bytes += bytes;
                fill.work_ns += elapsed_ns(begun);
                Ok(Some(bytes))
            }
            Ok(None) => {
                self.end_fill(group, number, now)?;
                Ok(Some(0))
            }
            Err(error) => {
                let path = devices.device_path(number);
                tracing::error!(
                    "{} (number {number}) could not be filled, and the pool goes on without it: {error}; use it again with `pagefold online`, or put another one in its place with `pagefold replace`",
                    path.display()
                );
                devices.record(group)?;
                Ok(Some(0))
            }
        }
    }

    fn note_fill(&self, number: u16, now: u64) {
        let mut fill = self.fill.lock();
        if fill.device != Some(number) || fill.finished > 0 {
            let lacked_all = self.shared.devices.lacking(number).len() >= ALL.end / 2;
            *fill = FillStatus { device: Some(number), started: now, lacked_all, ..FillStatus::default() };
        }
    }

    /// Verifies some of what was copied to a device that replaces another. When all of it is, the other one leaves.
    fn replace_step(&self, now: u64) -> Result<Option<u64>> {
        if self.copy_check_rests(now) {
            return Ok(None);
        }
        if let Some(bytes) = self.copy_check_step(now)? {
            return Ok(Some(bytes));
        }
        if !self.part_with_replaced()? {
            return Ok(None);
        }
        self.scrub_copied(now);
        Ok(Some(0))
    }

    /// Makes a device whole that lacks nothing.
    fn end_fill(&self, group: u16, number: u16, now: u64) -> Result<()> {
        self.checkpoint(false)?;
        if !self.labels.complete(group, number)? {
            return Ok(());
        }
        self.fill.lock().finished = now;
        tracing::info!(device = number, "the device is whole");
        // If another one leaves, it does so first: what it has may be needed.
        if self.labels.replaced().is_none() {
            self.scrub_copied(now);
        }
        Ok(())
    }

    /// Begins a scrub if a device was filled with everything: nothing is verified while it is copied. A scrub that is under way
    /// does not meet all of it.
    fn scrub_copied(&self, now: u64) {
        if self.fill.lock().lacked_all
            && let Err(error) = self.scrub_start(now, 0)
        {
            tracing::info!(%error, "no scrub follows the filling");
        }
    }
}

#[cfg(test)]
mod tests;
