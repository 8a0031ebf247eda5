//! Moves what lies in chunks to others, for those who want it elsewhere: a pass like the cleaner's ([`super::clean`]) that
//! gains no chunk, and so may fill only chunks that are spare beyond all that is promised (A1).

use std::cell::RefCell;

use super::clean::CleanPlan;
use super::pack::Packer;
use super::{Maintenance, Pool};
use crate::dataset::{RoomRequest, count};
use crate::device::IoClass;
use crate::space::Chunk;
use crate::{Error, Result};

/// Largest number of chunks that a pass fills: its checkpoint comes soon, and readers and writers get the devices in between.
pub(super) const PASS_CHUNKS_MAX: u64 = 8;

/// Reason why what lies on a device is not moved at present.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// The other devices have no room at present.
    Room,
    /// The rest cannot be read, and so cannot be moved.
    Damage,
    /// Devices are being removed, which comes first.
    Removal,
}

/// Result of a pass that moves what lies in chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Moved {
    /// The number of bytes that were written; a checkpoint was made.
    Bytes(u64),
    /// There is no room for a pass.
    NoRoom,
    /// The plan has no chunk that can be moved now.
    Nothing,
}

impl Pool {
    /// Moves what lies in the chunks of a plan, to chunks of the group `onto` if one is given, and makes a checkpoint. `plan`
    /// gets the number of chunks that the pass may begin.
    pub(super) fn move_planned(
        &self,
        state: &mut Maintenance,
        onto: Option<u16>,
        plan: &dyn Fn(&Maintenance, u64) -> CleanPlan,
    ) -> Result<Moved> {
        let mut most = PASS_CHUNKS_MAX;
        loop {
            let Some(aside) = self.set_aside(onto, most) else {
                return Ok(if self.gain_room(state)? { Moved::Bytes(0) } else { Moved::NoRoom });
            };
            let outputs = aside.len() as u64;
            let plan = plan(state, outputs);
            let aside = RefCell::new(aside);
            let packed = (!plan.sources.is_empty()).then(|| {
                let records = Packer::new(self, state.cleaner.begun).into_chunks(&aside);
                let copies = Packer::of_copies(self, state.copies.begun).of_class(IoClass::Cleaning);
                self.pack_planned(state, &plan, records, copies.into_chunks(&aside))
            });
            aside.take().into_iter().for_each(|chunk| self.chunks.put_back(chunk));
            match packed {
                None => return Ok(Moved::Nothing),
                // More had to be written than was expected of these chunks.
                Some(Err(Error::NoSpace(_))) => most = outputs / 2,
                Some(Err(error)) => {
                    self.shared.fail(&error);
                    return Err(error);
                }
                Some(Ok(report)) => {
                    count(&self.shared.counters.moved_bytes, report.written_bytes);
                    self.checkpoint_locked(state, false)?;
                    self.restore_room(state)?;
                    return Ok(Moved::Bytes(report.written_bytes));
                }
            }
        }
    }

    /// Takes up to `most` chunks that are spare, of the group `onto` if one is given: from then on nobody else is promised
    /// them. Returns `None` if none is spare; there may be spare ones, and none of that group.
    fn set_aside(&self, onto: Option<u16>, most: u64) -> Option<Vec<Chunk>> {
        let mut aside = Vec::new();
        while (aside.len() as u64) < most && self.shared.spare_chunks() > 0 {
            let taken = onto.map_or_else(|| self.chunks.allocate(), |group| self.chunks.allocate_on(group));
            let Ok(chunk) = taken else { return Some(aside) };
            // Somebody may have been promised it meanwhile: whoever asks from now on finds it taken.
            if !self.shared.has_room(RoomRequest::NONE) {
                self.chunks.put_back(chunk);
                break;
            }
            aside.push(chunk);
        }
        (!aside.is_empty()).then_some(aside)
    }

    /// Has the cleaner and second copies go on in other chunks, if those that they have begun are of such groups.
    pub(super) fn leave_begun(&self, state: &mut Maintenance, leaves: impl Fn(u16) -> bool) {
        for begun in [&mut state.cleaner.begun, &mut state.copies.begun] {
            if let Some(there) = begun.filter(|begun| leaves(begun.chunk.device)) {
                self.chunks.release(there.chunk);
                *begun = None;
            }
        }
    }
}

#[cfg(test)]
mod tests;
