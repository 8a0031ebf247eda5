//! Repairs in place what is stored twice, from the copy that is sound.
//!
//! Nothing moves meanwhile: checkpoints, cleaning and recompression wait. Neighbours in the same blocks are written
//! again as they were read. Nobody else writes these blocks, since each write of the log or of a pack begins at a block
//! of its own.

use super::load::read_copy;
use super::root::PlacedRecord;
use super::{Label, Pool};
use crate::device::{IoClass, OneDevice};
use crate::segment::{DirCopy, Part, record_checksum};
use crate::space::Chunk;
use crate::{Addr, Error, Result};

/// Name, in messages, of the records that no segment accounts for.
const PLACED: &str = "root, list or catalogue of the last checkpoint";

/// Callback for a copy that is not sound: device and offset, what is wrong with the copy, and the result of repairing
/// it.
pub(super) type Damaged<'a> = dyn FnMut((u16, u64), &Error, Result<()>) + 'a;

/// State of a copy of a label that was not what it was expected to be.
enum LabelCopy {
    /// The device has left the pool meanwhile.
    Left,
    /// The label has changed meanwhile, and the copy is right by now.
    Right,
    /// It is damaged, as this error says; and the result of repairing it.
    Damaged(Error, Result<()>),
}

impl Pool {
    /// Writes a record again from its other copy.
    ///
    /// # Errors
    /// Errors if the record has no other copy, or none that is sound; errors of the device.
    pub(super) fn repair_record(&self, addr: Addr) -> Result<()> {
        let mut state = self.maintenance.lock();
        self.shared.check_writable()?;
        let segments = &self.shared.segments;
        let other = if addr.is_copy() { addr.original() } else { addr.copy() };
        if !(segments.is_live(addr)? && segments.is_live(other)?) {
            return Err(Error::corrupt(format!("record {addr}"), "it has no other copy"));
        }
        let devices = self.shared.devices.of_class(IoClass::Scrub);
        let bytes = self.shared.read_uncounted(&devices, other)?;
        let place = segments.locate(&devices, addr)?;
        if bytes.len() != place.len_bytes as usize || record_checksum(addr, &bytes) != place.checksum {
            return Err(Error::corrupt(format!("record {addr}"), "its other copy is of another content"));
        }
        self.overwrite(place.device, place.offset, &bytes)?;
        self.shared.read_uncounted(&devices, addr)?;
        state.cleaner.try_again(|chunk| chunk == Chunk::at(place.device, place.offset));
        Ok(())
    }

    /// Writes one copy of the directory of a part again from the other one.
    ///
    /// # Errors
    /// As [`Pool::repair_record`].
    pub(super) fn repair_directory(&self, segment: u64, part: &Part, copy: DirCopy) -> Result<()> {
        let mut state = self.maintenance.lock();
        self.shared.check_writable()?;
        let segments = &self.shared.segments;
        let there = segments.get(segment)?.is_some_and(|segment| segment.parts.contains(part));
        let (Some(dir), true) = (part.directory, there) else { return Ok(()) };
        let at = (part.extent, dir);
        let other = if copy == DirCopy::First { DirCopy::Second } else { DirCopy::First };
        let devices = self.shared.devices.of_class(IoClass::Scrub);
        let (_, bytes) = segments.read_directory_copy(&devices, segment, at, other)?;
        if let Some(offset) = copy.offset(part.extent, dir) {
            self.overwrite(part.extent.chunk.device, offset, &bytes)?;
        }
        segments.read_directory_copy(&devices, segment, at, copy)?;
        state.cleaner.try_again(|chunk| chunk == part.extent.chunk);
        Ok(())
    }

    /// Verifies both copies of each record of the last checkpoint that no segment accounts for. Calls `damaged` for
    /// each copy that is not sound, with its place and the result of repairing it, which is only tried if `repair` is
    /// set. Returns the number of sound copies.
    pub(super) fn verify_placed(&self, repair: bool, damaged: &mut Damaged<'_>) -> u64 {
        let state = self.maintenance.lock();
        let devices = &self.shared.devices.of_class(IoClass::Scrub);
        let mut sound = 0;
        for PlacedRecord { addr, first, second } in &state.copies.roots {
            let copies = [(*addr, first), (addr.copy(), second)];
            for at in (0..devices.copies_max()).filter(|_| devices.copies_max() > 1) {
                // A copy that is wrong on one device of a mirror is written again from another one, and counted then.
                let each =
                    copies.map(|(addr, place)| read_copy(&devices.copy_first(at), addr, place, PLACED));
                sound += each.iter().filter(|read| read.is_ok()).count() as u64;
            }
            let read = copies.map(|(addr, place)| read_copy(devices, addr, place, PLACED));
            for (at, (_, place)) in copies.iter().enumerate() {
                let Some(Err(error)) = read.get(at) else {
                    sound += 1;
                    continue;
                };
                let repaired = match read.get(1 - at) {
                    Some(Ok(bytes)) if repair => self
                        .shared
                        .check_writable()
                        .and_then(|()| self.overwrite(place.device, place.offset, bytes)),
                    Some(Ok(_)) => Err(Error::corrupt(PLACED, "its other copy is right")),
                    _ => Err(Error::corrupt(PLACED, "its other copy is damaged, too")),
                };
                damaged((devices.first_number(place.device), place.offset), error, repaired);
            }
        }
        sound
    }

    /// Verifies both copies of each device's label, as [`Pool::verify_placed`] does those of records. A device may leave
    /// the pool meanwhile, and its number may be another one's by then.
    pub(super) fn verify_labels(&self, repair: bool, damaged: &mut Damaged<'_>) -> u64 {
        let mut sound = 0;
        for label in &self.labels.written() {
            // A device that is missing has no label to be verified, and gets none of another one.
            let Ok(here) = self.shared.devices.device(label.device) else { continue };
            let device = here.one().of_class(IoClass::Scrub);
            for offset in label.offsets() {
                let Err(error) = label.verify_at(device, offset) else {
                    sound += 1;
                    continue;
                };
                match self.repair_if_its_own(label, (error, offset), repair) {
                    LabelCopy::Left => {}
                    LabelCopy::Right => sound += 1,
                    LabelCopy::Damaged(error, repaired) => {
                        damaged((label.device, offset), &error, repaired);
                    }
                }
            }
        }
        sound
    }

    /// Repairs the copy of a label at a place where `label` was not found, because of this error.
    fn repair_if_its_own(&self, label: &Label, (error, offset): (Error, u64), repair: bool) -> LabelCopy {
        let copy = self.labels.with_written(label.device, |now, device| {
            let device = device.of_class(IoClass::Scrub);
            let error = match now == label {
                true => error,
                false => match now.verify_at(device, offset) {
                    Ok(()) => return LabelCopy::Right,
                    Err(error) => error,
                },
            };
            let repaired = match repair {
                true => self.repair_label(now, device, offset),
                false => Err(Error::corrupt("label", "its other copy is right")),
            };
            LabelCopy::Damaged(error, repaired)
        });
        copy.unwrap_or(LabelCopy::Left)
    }

    /// Writes one copy of a label again, while the label cannot change ([`super::roster::Labels::with_written`]).
    fn repair_label(&self, label: &Label, device: OneDevice<'_>, offset: u64) -> Result<()> {
        self.shared.check_writable()?;
        label.write_at(device, offset)?;
        device.flush()?;
        label.verify_at(device, offset)
    }

    /// Writes bytes at any offset of a device, durably.
    fn overwrite(&self, device: u16, offset: u64, bytes: &[u8]) -> Result<()> {
        let devices = self.shared.devices.of_class(IoClass::Scrub);
        devices.size_bytes(device).map_err(|none| none.in_place_of("place"))?;
        devices.overwrite(device, offset, bytes)?;
        Ok(devices.flush_some([device])?)
    }
}
