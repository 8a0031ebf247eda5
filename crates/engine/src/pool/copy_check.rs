//! Verifies what was copied to a device, before the one whose place it takes leaves.
//!
//! Filling copies blocks as they are, right or wrong, and a mirror may have damage on each of its devices, on each elsewhere.
//! Then the device that is replaced may be the only one that has what another one has wrong.
//!
//! - C1: a device that is replaced, and is in use, leaves only after everything live of its group was verified on the
//!   device in its place, and what was wrong there was written again from one that has it right.
//! - C2: a check is of one opening, and of the same members from its beginning to its end; otherwise it begins anew.
//! - C3: what only the device that leaves may have right, and fails to read, is tried again after a pause: a path may be
//!   switched, or a server be started again.

use super::Pool;
use crate::Result;
use crate::device::{IoClass, MemberState};

/// Number of checks until the device leaves although something stays wrong: no device could be read where it is right.
const PASSES: u32 = 2;
/// The same while that device fails reads, and the seconds between two of these checks (C3).
const PASSES_UNREAD: u32 = 4;
const PAUSE_S: u64 = 60;
/// Number of segments that one step passes over because nothing of them is in the group.
const PASSED_AT_ONCE: usize = 4096;

/// The check of a copy.
#[derive(Debug)]
pub(super) struct CopyCheck {
    /// The device that is checked, the one whose place it takes, and those of its group that can be read.
    device: u16,
    leaving: u16,
    readable: Vec<u16>,
    /// Number of the next segment; and first segment of the log that is not verified, nor are second copies of its
    /// records: it was written since, to all of the devices.
    next: u64,
    until: u64,
    done_bytes: u64,
    total_bytes: u64,
    /// Number of objects that stayed wrong.
    wrong: u64,
    pass: u32,
    /// Reads that the device that leaves had failed when the pass began; and since when the check rests.
    failed_reads: u64,
    rests_since: Option<u64>,
    is_done: bool,
}

impl Pool {
    /// Returns the bytes that the check of a copy has verified, and those that it will have verified in the end; `None` if none
    /// is under way.
    pub(super) fn copy_check_bytes(&self) -> Option<(u64, u64)> {
        let check = self.copy_check.lock();
        let under_way = check.as_ref().filter(|check| !check.is_done);
        under_way.map(|check| (check.done_bytes, check.total_bytes.max(check.done_bytes)))
    }

    /// Returns the device whose copy is being verified: what is wrong on it is not its fault.
    pub(super) fn copy_checked(&self) -> Option<u16> {
        self.copy_check.lock().as_ref().map(|check| check.device)
    }

    /// Verifies some of a copy, if a device waits for that to leave (C1). Returns the bytes verified; `None` if there is nothing
    /// to do.
    ///
    /// # Errors
    /// Errors of a checkpoint. Damage is no error: it is counted for the device, and logged.
    pub(super) fn copy_check_step(&self, now: u64) -> Result<Option<u64>> {
        let devices = &self.shared.devices;
        let replaced = self.labels.replaced().filter(|(leaving, _)| {
            // One that cannot be read has nothing that could be missed.
            devices.state(*leaving).is_some_and(|(_, state)| state == MemberState::Whole)
        });
        let Some((leaving, device)) = replaced else {
            *self.copy_check.lock() = None;
            return Ok(None);
        };
        let Some((group, _)) = devices.state(device) else { return Ok(None) };
        let readable = devices.readable(group);
        let Some(at) = readable.iter().position(|number| *number == device) else { return Ok(None) };
        let (next, until) = {
            let mut check = self.copy_check.lock();
            let goes_on = check.take().filter(|check| check.device == device && check.readable == readable);
            let check = check.insert(
                goes_on.unwrap_or_else(|| self.begin_copy_check((device, leaving), readable.clone())),
            );
            if check.is_done {
                return Ok(None);
            }
            (check.next, check.until)
        };
        let (mut next, mut found, mut is_end) = (next, None, false);
        for _ in 0..PASSED_AT_ONCE {
            let Some(id) = self.next_to_verify(next, until) else {
                is_end = true;
                break;
            };
            next = id + 1;
            found = self.verify_copied(id, group, at);
            if found.is_some() {
                break;
            }
        }
        if devices.readable(group) != readable {
            *self.copy_check.lock() = None;
            return Ok(Some(0));
        }
        if is_end {
            return self.end_copy_check(now).map(Some);
        }
        let (bytes, wrong) = found.unwrap_or_default();
        if let Some(check) = self.copy_check.lock().as_mut() {
            check.next = next;
            check.done_bytes = check.done_bytes.saturating_add(bytes);
            check.wrong += wrong;
        }
        Ok(Some(bytes))
    }

    /// Returns true if a check goes on later: the device that leaves has failed reads.
    pub(super) fn copy_check_rests(&self, now: u64) -> bool {
        let since = self.copy_check.lock().as_ref().and_then(|check| check.rests_since);
        since.is_some_and(|since| (since..since.saturating_add(PAUSE_S)).contains(&now))
    }

    fn failed_reads(&self, device: u16) -> u64 {
        self.faults().devices.get(usize::from(device)).map_or(0, |errors| errors.reads)
    }

    fn begin_copy_check(&self, (device, leaving): (u16, u16), readable: Vec<u16>) -> CopyCheck {
        let segments = &self.shared.segments;
        CopyCheck {
            device,
            leaving,
            readable,
            next: 0,
            until: segments.last_id().map_or(0, |last| last.saturating_add(1)),
            done_bytes: 0,
            total_bytes: segments.used_bytes(),
            wrong: 0,
            pass: 1,
            failed_reads: self.failed_reads(leaving),
            rests_since: None,
            is_done: false,
        }
    }

    /// Verifies a segment on the member of `group` that is number `at` of those that can be read. Returns its live bytes, and
    /// the number of objects that stayed wrong; `None` if nothing of it is in the group.
    fn verify_copied(&self, id: u64, group: u16, at: usize) -> Option<(u64, u64)> {
        let segment = match self.shared.segments.get(id) {
            Ok(segment) => segment?,
            Err(error) => {
                tracing::error!(%error, segment = id, "a page of the segment table cannot be read: its segments are not verified");
                return Some((0, 1));
            }
        };
        if !segment.parts.iter().any(|part| part.extent.chunk.device == group) {
            return None;
        }
        let devices = self.shared.devices.of_class(IoClass::Filling);
        Some(self.verify_member(&segment, &devices, at))
    }

    /// Notes that all was verified. If something stayed wrong it is verified once more. What the log has since the last
    /// checkpoint is in no segment's directory: a checkpoint makes it needless.
    fn end_copy_check(&self, now: u64) -> Result<u64> {
        {
            let mut check = self.copy_check.lock();
            let Some(check) = check.as_mut() else { return Ok(0) };
            let failed_reads = self.failed_reads(check.leaving);
            let is_unread = failed_reads > check.failed_reads;
            if check.wrong > 0 && check.pass < if is_unread { PASSES_UNREAD } else { PASSES } {
                if is_unread {
                    tracing::warn!(
                        device = check.leaving,
                        wrong = check.wrong,
                        "it fails reads, and may be the only device that has something right: it does not leave yet"
                    );
                }
                check.rests_since = is_unread.then_some(now);
                (check.next, check.done_bytes, check.wrong) = (0, 0, 0);
                (check.pass, check.failed_reads) = (check.pass + 1, failed_reads);
                return Ok(0);
            }
        }
        self.checkpoint(false)?;
        if let Some(check) = self.copy_check.lock().as_mut() {
            let (device, wrong) = (check.device, check.wrong);
            tracing::info!(device, wrong, "what was copied to the device has been verified");
            check.is_done = true;
            if wrong == 0 {
                // It was given what was wrong elsewhere.
                self.shared.segments.faults.clear(Some(device), 0);
            }
        }
        Ok(0)
    }
}
