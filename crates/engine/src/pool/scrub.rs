//! Scrubs a pool: reads everything live from the devices, including all that snapshots hold, and verifies it, one
//! segment per step.
//!
//! - R1: addresses are for life, so a scrub follows the numbers of segments: first those of the log, then those of
//!   second copies. A segment that is moved meanwhile is still met once, and a segment that is written after the scrub
//!   began lies behind its end.
//! - R2: a record is damaged only if it is live before and after several tries to read it. A record that was moved or
//!   freed meanwhile is not damaged.
//!
//! The state of a scrub is a property of the pool, stored every 256 segments, when the scrub is stopped, and when the
//! pool is closed: the scrub goes on from there.

use std::fmt::Write as _;

use super::Pool;
use crate::device::{Devices, IoClass};
use crate::faults::{FaultKind, Subject};
use crate::segment::{Part, Segment};
use crate::types::COPIES;
use crate::{Addr, Error, Result};

/// Name of the property that holds a scrub's state; no property that users set has a colon.
const STORED: &str = "pagefold:scrub";
/// Number of segments after which the state is stored.
const STORE_SEGMENTS: u64 = 256;
/// Number of tries to read a record that is live.
const ATTEMPTS: u32 = 4;
/// Number of damaged records that one scrub logs one by one; all are counted.
const LOGGED: u64 = 1000;

/// Stage that a scrub has reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ScrubState {
    /// There never was a scrub.
    #[default]
    Never,
    /// The scrub is under way; if the pool is closed meanwhile, it goes on when the pool is opened.
    Running,
    /// The scrub was stopped before its end; the next one goes on from there.
    Stopped,
    /// The scrub has come to its end.
    Finished,
}

/// State and findings of the last scrub.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScrubStatus {
    /// Stage that it has reached.
    pub state: ScrubState,
    /// Time at which it began, in seconds since 1970.
    pub started: u64,
    /// Time at which it ended, in seconds since 1970; 0 before.
    pub finished: u64,
    /// Bytes that were live when it began.
    pub total_bytes: u64,
    /// Live bytes that it has verified so far.
    pub done_bytes: u64,
    /// Number of records, directories of segments and labels that were read and are sound.
    pub sound: u64,
    /// Number of records, directories and labels whose checksum does not hold.
    pub damaged: u64,
    /// Number of records, directories and labels that a device could not read.
    pub unreadable: u64,
    /// Number of damaged or unreadable ones that were written again from their other copy.
    pub repaired: u64,
    /// Largest number of bytes to read per second; 0: no bound of its own.
    pub rate: u64,
}

/// The last scrub, and the place where it goes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Scrub {
    status: ScrubStatus,
    /// Number of the next segment; and first segment of the log that is not verified, nor are second copies of its
    /// records.
    next: u64,
    until: u64,
}

impl Scrub {
    /// Returns the numbers that are stored beside the state, in this order.
    fn numbers(&mut self) -> [&mut u64; 11] {
        let status = &mut self.status;
        [
            &mut status.started,
            &mut status.finished,
            &mut status.total_bytes,
            &mut status.done_bytes,
            &mut status.sound,
            &mut status.damaged,
            &mut status.unreadable,
            &mut status.repaired,
            &mut status.rate,
            &mut self.next,
            &mut self.until,
        ]
    }

    fn encode(mut self) -> String {
        let mut text = (self.status.state as u8).to_string();
        for number in self.numbers() {
            // Writing to a String cannot fail.
            let _ = write!(text, " {number}");
        }
        text
    }

    /// Decodes a stored scrub; returns `None` if the text is not well formed.
    pub(super) fn decode(text: &str) -> Option<Self> {
        let mut words = text.split(' ').map(|word| word.parse::<u64>().ok());
        let mut scrub = Self::default();
        scrub.status.state = match words.next()?? {
            0 => ScrubState::Never,
            1 => ScrubState::Running,
            2 => ScrubState::Stopped,
            3 => ScrubState::Finished,
            _ => return None,
        };
        for number in scrub.numbers() {
            *number = words.next()??;
        }
        words.next().is_none().then_some(scrub)
    }
}

/// A damaged object, and the device and byte at which it lies.
type DamagedObject = (Subject, (u16, u64));

/// Findings of one step.
#[derive(Default)]
struct StepFindings {
    bytes: u64,
    sound: u64,
    damaged: u64,
    unreadable: u64,
    repaired: u64,
}

impl StepFindings {
    /// Counts something that was wrong on one device, and right on its mirror: it was written again, and `is_right` then, or
    /// that failed.
    fn mended(&mut self, error: &Error, is_right: bool) {
        match error {
            Error::Corrupt { .. } => self.damaged += 1,
            _ => self.unreadable += 1,
        }
        self.repaired += u64::from(is_right);
    }
}

impl Pool {
    /// Returns the state of the last scrub, whether it is under way or not.
    pub(crate) fn scrub_status(&self) -> ScrubStatus {
        self.scrub.lock().status
    }

    /// Begins a scrub at `now` (seconds since 1970), or goes on with one that was stopped, reading at most `rate` bytes
    /// per second (0: no bound but the background's own).
    ///
    /// # Errors
    /// [`Error::Busy`] while a scrub is under way; errors of storing its state.
    pub fn scrub_start(&self, now: u64, rate: u64) -> Result<()> {
        {
            let mut scrub = self.scrub.lock();
            match scrub.status.state {
                ScrubState::Running => return Err(Error::Busy("a scrub is under way".into())),
                ScrubState::Stopped => scrub.status.state = ScrubState::Running,
                ScrubState::Never | ScrubState::Finished => {
                    let total_bytes = self.shared.segments.used_bytes();
                    let state = ScrubState::Running;
                    let status = ScrubStatus { state, started: now, total_bytes, ..ScrubStatus::default() };
                    let until = self.shared.segments.last_id().map_or(0, |last| last.saturating_add(1));
                    *scrub = Scrub { status, next: 0, until };
                }
            }
            scrub.status.rate = rate;
        }
        self.store_scrub()
    }

    /// Stops a scrub; the next one goes on from there. Returns false if none was under way.
    ///
    /// # Errors
    /// Errors of storing its state.
    pub fn scrub_stop(&self) -> Result<bool> {
        {
            let mut scrub = self.scrub.lock();
            if scrub.status.state != ScrubState::Running {
                return Ok(false);
            }
            scrub.status.state = ScrubState::Stopped;
        }
        self.store_scrub().map(|()| true)
    }

    /// Verifies the next segment of a scrub that is under way, and returns the segment's live bytes. Returns `None` if
    /// no scrub is under way, or if the scrub has just come to its end, at `now` (seconds since 1970).
    ///
    /// # Errors
    /// Errors of storing its state. Damage is no error: it is counted and logged.
    pub fn scrub_step(&self, now: u64) -> Result<Option<u64>> {
        let Scrub { status, next, until } = *self.scrub.lock();
        if status.state != ScrubState::Running {
            return Ok(None);
        }
        let segments = &self.shared.segments;
        let id = self.next_to_verify(next, until);
        let mut found = id.map(|id| match segments.get(id) {
            Ok(segment) => segment.map_or_else(StepFindings::default, |segment| self.verify_segment(&segment, status.damaged)),
            Err(error) => {
                tracing::error!(%error, segment = id, "a page of the segment table cannot be read: its segments are not verified");
                StepFindings { unreadable: 1, ..StepFindings::default() }
            }
        });
        if next == 0
            && let Some(found) = &mut found
        {
            self.verify_fixed(found);
        }
        {
            let mut scrub = self.scrub.lock();
            let status = &mut scrub.status;
            match (id, &found) {
                // The sums saturate, since the stored numbers may be any.
                (Some(id), Some(found)) => {
                    status.done_bytes = status.done_bytes.saturating_add(found.bytes);
                    status.sound = status.sound.saturating_add(found.sound);
                    status.damaged = status.damaged.saturating_add(found.damaged);
                    status.unreadable = status.unreadable.saturating_add(found.unreadable);
                    status.repaired = status.repaired.saturating_add(found.repaired);
                    scrub.next = id + 1;
                }
                _ => {
                    status.state = ScrubState::Finished;
                    status.finished = now;
                    let ScrubStatus { sound, damaged, unreadable, repaired, .. } = *status;
                    tracing::info!(sound, damaged, unreadable, repaired, "the scrub has come to its end");
                }
            }
        }
        if id.is_none() && status.damaged.saturating_add(status.unreadable) > 0 {
            self.name_struck();
        }
        if id.is_none_or(|id| id % STORE_SEGMENTS == STORE_SEGMENTS - 1) {
            self.store_scrub()?;
        }
        Ok(found.map(|found| found.bytes))
    }

    /// Returns the number of the first segment from `next` on that is to be verified: of those of the log before `until`, and
    /// behind them of those with second copies of their records (R1).
    pub(super) fn next_to_verify(&self, next: u64, until: u64) -> Option<u64> {
        let segments = &self.shared.segments;
        let of_the_log = segments.next_id(next).filter(|id| *id < until);
        of_the_log.or_else(|| segments.next_id(next.max(COPIES)).filter(|id| id - COPIES < until))
    }

    /// Stores the state of the scrub, if the pool takes changes.
    pub(super) fn store_scrub(&self) -> Result<()> {
        if self.shared.check_writable().is_err() {
            return Ok(());
        }
        let text = self.scrub.lock().encode();
        self.set_property(STORED, Some(&text))
    }

    /// Loads the state that an earlier opening has stored; a state that is not well formed counts as no scrub.
    pub(super) fn load_scrub(&self) -> Result<()> {
        if let Some(scrub) = self.property(STORED)?.as_deref().and_then(Scrub::decode) {
            *self.scrub.lock() = scrub;
        }
        Ok(())
    }

    /// Verifies all that is live of a segment, on each member of a mirror.
    fn verify_segment(&self, segment: &Segment, damaged_before: u64) -> StepFindings {
        let devices = &self.shared.devices.of_class(IoClass::Scrub);
        let mut found = StepFindings { bytes: segment.used_bytes(), ..StepFindings::default() };
        let of_part = |part: &Part| devices.copies(part.extent.chunk.device);
        // A group that has more devices than those on which the segment lies has nothing of it.
        let copies = segment.parts.iter().map(of_part).max().unwrap_or_default();
        if copies <= 1 {
            self.verify_copy(segment, devices, None, (&mut found, damaged_before));
        }
        for at in (0..copies).filter(|_| copies > 1) {
            let mirror = devices.copy_first(at);
            self.verify_copy(segment, &devices.only_copy(at), Some(&mirror), (&mut found, damaged_before));
        }
        found
    }

    /// Verifies all that is live of a segment on one member of each mirror, number `at` of those that can be read. What is
    /// wrong is written again from another one. Returns the segment's live bytes, and the number of objects that stayed
    /// wrong.
    pub(super) fn verify_member(&self, segment: &Segment, devices: &Devices, at: usize) -> (u64, u64) {
        let mut found = StepFindings::default();
        let (only, first) = (devices.only_copy(at), devices.copy_first(at));
        self.verify_copy(segment, &only, Some(&first), (&mut found, 0));
        (segment.used_bytes(), (found.damaged + found.unreadable).saturating_sub(found.repaired))
    }

    /// Verifies a segment as `devices` has it. What is wrong is read by `mirror`, which then writes it again from
    /// another device.
    fn verify_copy(
        &self,
        segment: &Segment,
        devices: &Devices,
        mirror: Option<&Devices>,
        (found, damaged_before): (&mut StepFindings, u64),
    ) {
        let segments = &self.shared.segments;
        for part in &segment.parts {
            let Some(dir) = part.directory else { continue };
            let at = (part.extent, dir);
            for (copy, offset, read) in segments.read_directory_copies(devices, segment.id, at) {
                let Err(error) = read else {
                    found.sound += 1;
                    continue;
                };
                // If the segment was moved meanwhile, its old directory is of no use any more.
                let there = segments.get(segment.id).unwrap_or_default();
                if there.is_none_or(|now| now.live.count() == 0 || !now.parts.contains(part)) {
                    continue;
                }
                let from = |mirror| segments.read_directory_copy(mirror, segment.id, at, copy).is_ok();
                if mirror.is_some_and(from) {
                    found.mended(&error, from(devices));
                    continue;
                }
                let place = (self.number_at(&error, part.extent.chunk.device), offset);
                let subject = Subject::Directory(segment.id);
                self.count_damage(found, damaged_before, (subject, place), &error);
                let repaired = self.repair_directory(segment.id, part, copy);
                self.count_repair(found, (subject, place), repaired);
            }
        }
        let live = (0..segment.slots).filter(|slot| segment.live.get(*slot));
        let addrs: Vec<Addr> = live.map(|slot| Addr::new(segment.id, slot)).collect();
        let mut records = 0;
        let all = segments.read(devices, &addrs, &mut |_, _| {
            records += 1;
            Ok(())
        });
        if all.is_ok() {
            found.sound += records;
            return;
        }
        // Something moved, was freed, or is damaged: each record is verified on its own.
        for addr in addrs {
            let Err(error) = self.verify_record(devices, addr) else {
                found.sound += 1;
                continue;
            };
            if mirror.is_some_and(|mirror| self.verify_record(mirror, addr).is_ok()) {
                found.mended(&error, self.verify_record(devices, addr).is_ok());
                continue;
            }
            let place = segments.try_locate(addr).map(|located| (located.device, located.offset));
            let (group, offset) = place.unwrap_or_default();
            let place = (self.number_at(&error, group), offset);
            let subject = Subject::Record(addr.original());
            self.count_damage(found, damaged_before, (subject, place), &error);
            let repaired = self.repair_record(addr);
            self.count_repair(found, (subject, place), repaired);
        }
    }

    /// Returns the number of the device that an error comes from: if it does not say so, the first one of the group.
    fn number_at(&self, error: &Error, group: u16) -> u16 {
        error.place().map_or_else(|| self.shared.devices.first_number(group), |at| at.device)
    }

    /// Verifies what no segment accounts for: the records that are named by place, and the labels.
    fn verify_fixed(&self, found: &mut StepFindings) {
        let mut damaged = |place, error: &Error, repaired| {
            self.count_damage(found, 0, (Subject::Fixed, place), error);
            self.count_repair(found, (Subject::Fixed, place), repaired);
        };
        let sound = self.verify_placed(true, &mut damaged) + self.verify_labels(true, &mut damaged);
        found.sound += sound;
    }

    /// Returns `Ok` for a record that is sound, or that is not live any more.
    fn verify_record(&self, devices: &Devices, addr: Addr) -> Result<()> {
        let segments = &self.shared.segments;
        let mut last = Ok(());
        for _ in 0..ATTEMPTS {
            if !segments.is_live(addr)? {
                return Ok(());
            }
            last = segments.read(devices, &[addr], &mut |_, _| Ok(()));
            if last.is_ok() {
                return last;
            }
        }
        if segments.is_live(addr)? { last } else { Ok(()) }
    }

    /// Counts and logs the result of a repair at `place`.
    fn count_repair(&self, found: &mut StepFindings, (subject, place): DamagedObject, repaired: Result<()>) {
        let (device, offset) = place;
        match repaired {
            Ok(()) => {
                found.repaired += 1;
                self.shared.segments.faults.note(FaultKind::Repaired, subject, Some(place));
                let device = self.shared.devices.device_path(device).display().to_string();
                tracing::warn!(device, offset, "scrub: repaired from the other copy");
            }
            Err(error) => tracing::debug!(device, offset, %error, "scrub: not repaired"),
        }
    }

    fn count_damage(
        &self,
        found: &mut StepFindings,
        before: u64,
        (subject, place): DamagedObject,
        error: &Error,
    ) {
        let (number, offset) = place;
        match error {
            Error::Corrupt { .. } => found.damaged += 1,
            _ => found.unreadable += 1,
        }
        if let Some(fault) = FaultKind::of(error) {
            self.shared.segments.faults.note(fault, subject, Some(place));
        }
        if before.saturating_add(found.damaged + found.unreadable) <= LOGGED {
            let here = self.shared.devices.device(number);
            let device = here.map(|here| here.one().path().display().to_string()).unwrap_or_default();
            tracing::error!(device, offset, "scrub: damage, which it repairs if that is kept twice: {error}");
        }
    }
}

#[cfg(test)]
mod tests;
