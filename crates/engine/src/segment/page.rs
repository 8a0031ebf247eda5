//! Entries of one page of the segment table that are not in memory: what is kept of them.
//!
//! The page is as the last checkpoint has stored it, but for the records that died since ([`Deaths`]). What chunks hold has to be known exactly
//! at any time; so each stretch of addresses whose records lie in one chunk is kept, with what it holds there.

use super::deaths::Deaths;
use super::entry::{PageIds, Segment, held_bytes};
use crate::account::subtract;
use crate::space::Chunk;
use crate::types::{COPIES, SLOT_BITS};
use crate::{Addr, Error, Ptr, Result};

/// Addresses from one on whose records lie in one chunk, as far as there are any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stretch {
    /// The first: position of the segment on its page, and slot.
    first: u32,
    /// How many of its records are live.
    live: u32,
    /// Bytes of the chunk that they hold.
    held: u32,
    chunk: Chunk,
}

/// A page of which more is known only after it is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Away {
    /// Which version of the page this is: no two have the same.
    pub(super) version: u64,
    /// The segments that it has: the n-th bit stands for the n-th id of the page.
    present: u64,
    /// Some of them have records that were coded again.
    pub(super) recoded: bool,
    stretches: Box<[Stretch]>,
    /// Sums over its segments, as they are part of the sums of the table.
    pub(super) used_bytes: u64,
    pub(super) record_bytes: u64,
    pub(super) stored_bytes: u64,
}

/// The entries of a page that was away.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Settled {
    pub(super) segments: Vec<Segment>,
    /// They are what was kept of them.
    pub(super) agrees: bool,
}

/// What became of a record that died.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Died {
    /// Where it lay.
    pub(super) chunk: Chunk,
    /// What it held there, in bytes.
    pub(super) held_bytes: u64,
    /// No other record of its stretch is live.
    pub(super) last: bool,
}

fn position(ids: PageIds, addr: Addr) -> (u32, u32) {
    let at = (addr.segment() % u64::from(ids.get())) as u32;
    (at, at << SLOT_BITS | addr.slot())
}

impl Away {
    /// What is to be kept of a page. `None`: it has to stay in memory, since it has the open segment, segments to be dropped, or segments of second copies, of
    /// which a death has to be known to be one.
    pub(super) fn of(version: u64, ids: PageIds, segments: &[Segment]) -> Option<Self> {
        let mut away = Self {
            version,
            present: 0,
            recoded: false,
            stretches: Box::default(),
            used_bytes: 0,
            record_bytes: 0,
            stored_bytes: 0,
        };
        let mut stretches: Vec<Stretch> = Vec::new();
        for segment in segments {
            let open = segment.parts.iter().any(|part| part.directory.is_none());
            if open || segment.id >= COPIES || segment.live.count() == 0 {
                return None;
            }
            away.present |= 1 << position(ids, Addr::new(segment.id, 0)).0;
            away.recoded |= segment.recoded;
            away.used_bytes += segment.used_bytes();
            away.record_bytes += segment.live_records_bytes();
            away.stored_bytes += segment.stored_bytes_max();
            for (at, (part, held)) in segment.parts.iter().zip(&segment.held).enumerate() {
                let end = segment.parts.get(at + 1).map_or(segment.slots, |next| next.first_slot);
                let live = segment.live.count_in(part.first_slot..end);
                let held = u32::try_from(*held).ok()?;
                match stretches.last_mut().filter(|last| last.chunk == part.extent.chunk) {
                    Some(last) => {
                        last.live += live;
                        last.held = last.held.checked_add(held)?;
                    }
                    None => stretches.push(Stretch {
                        first: position(ids, Addr::new(segment.id, part.first_slot)).1,
                        live,
                        held,
                        chunk: part.extent.chunk,
                    }),
                }
            }
        }
        away.stretches = stretches.into();
        Some(away)
    }

    /// Whether it has this segment.
    pub(super) fn has(&self, ids: PageIds, id: u64) -> bool {
        self.present & 1 << position(ids, Addr::new(id, 0)).0 != 0
    }

    /// The segments that it has.
    pub(super) fn segments(&self, ids: PageIds, page: u64) -> impl DoubleEndedIterator<Item = u64> + '_ {
        let first = page * u64::from(ids.get());
        (0..64).filter(|at| self.present & 1 << at != 0).map(move |at| first + at)
    }

    /// What it takes in memory, in bytes, with its place in the map of pages.
    pub(super) fn memory_bytes(&self) -> u64 {
        (size_of::<Self>() + 32 + self.stretches.len() * size_of::<Stretch>()) as u64
    }

    /// What its segments hold of chunks, in bytes; of one several times, perhaps.
    pub(super) fn held(&self) -> impl Iterator<Item = (Chunk, u64)> + '_ {
        self.stretches.iter().map(|stretch| (stretch.chunk, stretch.held.into()))
    }

    /// Of all chunks.
    pub(super) fn held_bytes(&self) -> u64 {
        self.held().map(|(_, held)| held).sum()
    }

    /// A record is dead from now on that was live. `None`: the page has none there.
    pub(super) fn kill(&mut self, ids: PageIds, ptr: Ptr) -> Option<Died> {
        let (at, first) = position(ids, ptr.addr);
        if self.present & 1 << at == 0 {
            return None;
        }
        let after = self.stretches.partition_point(|stretch| stretch.first <= first);
        let stretch = self.stretches.get_mut(after.checked_sub(1)?)?;
        stretch.live = stretch.live.checked_sub(1)?;
        let bytes = held_bytes(ptr.len_bytes.into());
        let mut held = stretch.held.into();
        subtract(&mut held, bytes);
        stretch.held = held as u32;
        subtract(&mut self.used_bytes, bytes);
        subtract(&mut self.record_bytes, Segment::record_bytes(ptr.len_bytes));
        Some(Died { chunk: stretch.chunk, held_bytes: bytes, last: stretch.live == 0 })
    }

    /// Its entries, as they were read: without those that were dropped since the page was stored, and without the records that died.
    ///
    /// # Errors
    /// [`Error::Corrupt`] where it has other segments than were kept.
    pub(super) fn settle(
        &self,
        ids: PageIds,
        page: u64,
        mut read: Vec<Segment>,
        deaths: &Deaths,
    ) -> Result<Settled> {
        read.retain(|segment| self.has(ids, segment.id));
        read.shrink_to_fit();
        let unknown = bury(&mut read, deaths.of(page));
        if read.len() as u32 != self.present.count_ones() {
            return Err(Error::corrupt(
                format!("page {page} of the segment table"),
                "segments are missing there",
            ));
        }
        let held = read.iter().flat_map(|segment| &segment.held).sum::<u64>();
        Ok(Settled { segments: read, agrees: unknown.is_none() && held == self.held_bytes() })
    }
}

/// Makes records dead that died since the page of their segments was stored. Returns the first that is not live by that page, though its segment is there.
pub(super) fn bury(page: &mut [Segment], dead: &[Ptr]) -> Option<Addr> {
    let mut unknown = None;
    for ptr in dead {
        let Ok(at) = page.binary_search_by_key(&ptr.addr.segment(), |segment| segment.id) else { continue };
        let killed = page.get_mut(at).and_then(|segment| segment.kill(ptr.addr.slot(), ptr.len_bytes));
        if killed.is_none() {
            unknown = unknown.or(Some(ptr.addr));
        }
    }
    unknown
}

#[cfg(test)]
mod tests;
