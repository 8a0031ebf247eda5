//! Keeps a summary of each page of the segment table whose entries are not in memory.
//!
//! The page is as the last checkpoint has stored it, except for the records that died since ([`Deaths`]). The bytes
//! that chunks hold have to be known exactly at any time. So each stretch of addresses whose records lie in one chunk
//! is kept, with the bytes that it holds there.

use super::deaths::Deaths;
use super::entry::{PageIds, Segment, held_bytes, subtraction};
use crate::space::Chunk;
use crate::types::{COPIES, SLOT_BITS};
use crate::wire::Reader;
use crate::{Addr, Error, Ptr, Result};

/// A run of addresses whose records lie in one chunk. It ends where the next begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stretch {
    /// First address: the segment's position on its page, and the slot.
    first: u32,
    /// Number of its records that are live.
    live: u32,
    /// Bytes of the chunk that these hold.
    held: u32,
    chunk: Chunk,
}

/// The summary of a page that is away: all that is known of it without reading.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Away {
    /// Version number: each putting away of a page has one of its own.
    pub(super) version: u64,
    /// Set of its segments: the n-th bit stands for the n-th id of the page.
    present: u64,
    /// True if some of them have records that were coded again.
    pub(super) recompressed: bool,
    stretches: Box<[Stretch]>,
    /// Its share of the table's sums.
    pub(super) used_bytes: u64,
    pub(super) record_bytes: u64,
    pub(super) stored_bytes: u64,
}

/// The entries of a page that was away, brought up to date.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Settled {
    pub(super) segments: Vec<Segment>,
    /// True if they agree with what was kept of the page.
    pub(super) agrees: bool,
}

/// Consequences of a record's death.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Died {
    /// Chunk in which it lay.
    pub(super) chunk: Chunk,
    /// Bytes that it held there.
    pub(super) held_bytes: u64,
    /// Bytes by which its page's share of the table's sums has become smaller.
    pub(super) used_bytes: u64,
    pub(super) record_bytes: u64,
    /// True if no other record of its stretch is live.
    pub(super) last: bool,
}

fn position(ids: PageIds, addr: Addr) -> (u32, u32) {
    let at = (addr.segment() % u64::from(ids.get())) as u32;
    (at, at << SLOT_BITS | addr.slot())
}

impl Away {
    /// Makes what is to be kept of a page. `None` if the page has to stay in memory, since it has the open segment,
    /// segments to be dropped, or segments of second copies: whether these have a record must be known when the first
    /// copy dies.
    pub(super) fn of(version: u64, ids: PageIds, segments: &[Segment]) -> Option<Self> {
        let mut away = Self {
            version,
            present: 0,
            recompressed: false,
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
            away.recompressed |= segment.recompressed;
            away.used_bytes += segment.used_bytes();
            away.record_bytes += segment.live_records_bytes();
            away.stored_bytes += segment.stored_bytes_max();
            for (at, (part, held)) in segment.parts.iter().zip(&segment.held).enumerate() {
                let end = segment.parts.get(at + 1).map_or(segment.slots, |next| next.first_slot);
                let alone = segment.parts.len() == 1;
                let live =
                    if alone { segment.live.count() } else { segment.live.count_in(part.first_slot..end) };
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

    /// Returns true if it has this segment.
    pub(super) fn has(&self, ids: PageIds, id: u64) -> bool {
        self.present & 1 << position(ids, Addr::new(id, 0)).0 != 0
    }

    /// Returns the ids of the segments that it has, ascending.
    pub(super) fn segments(&self, ids: PageIds, page: u64) -> impl DoubleEndedIterator<Item = u64> + '_ {
        let first = page * u64::from(ids.get());
        (0..64).filter(|at| self.present & 1 << at != 0).map(move |at| first + at)
    }

    /// Returns the memory that it takes, in bytes, with its place in the map of pages.
    pub(super) fn memory_bytes(&self) -> u64 {
        (size_of::<Self>() + 32 + self.stretches.len() * size_of::<Stretch>()) as u64
    }

    /// Returns the bytes that its segments hold of chunks. A chunk may come several times.
    pub(super) fn held(&self) -> impl Iterator<Item = (Chunk, u64)> + '_ {
        self.stretches.iter().map(|stretch| (stretch.chunk, stretch.held.into()))
    }

    /// Returns the bytes that its segments hold of all chunks.
    pub(super) fn held_bytes(&self) -> u64 {
        self.held().map(|(_, held)| held).sum()
    }

    /// Makes a live record dead. `None` if the page has no live record there.
    pub(super) fn kill(&mut self, ids: PageIds, ptr: Ptr) -> Option<Died> {
        let (at, first) = position(ids, ptr.addr);
        if self.present & 1 << at == 0 {
            return None;
        }
        let after = self.stretches.partition_point(|stretch| stretch.first <= first);
        let stretch = self.stretches.get_mut(after.checked_sub(1)?)?;
        stretch.live = stretch.live.checked_sub(1)?;
        let bytes = held_bytes(ptr.len_bytes.into());
        let take = |sum: &mut u64, bytes| {
            let before = *sum;
            subtraction(self.recompressed)(sum, bytes);
            before - *sum
        };
        let mut held = stretch.held.into();
        let held_bytes = take(&mut held, bytes);
        stretch.held = held as u32;
        let used_bytes = take(&mut self.used_bytes, bytes);
        let record_bytes = take(&mut self.record_bytes, Segment::record_bytes(ptr.len_bytes));
        Some(Died { chunk: stretch.chunk, held_bytes, used_bytes, record_bytes, last: stretch.live == 0 })
    }

    /// Brings the entries as they were read up to date: drops segments that were dropped since the page was stored, and
    /// makes records dead that died.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if segments are missing in what was read.
    pub(super) fn settle(
        &self,
        ids: PageIds,
        page: u64,
        mut read: Vec<Segment>,
        deaths: &Deaths,
    ) -> Result<Settled> {
        read.retain(|segment| self.has(ids, segment.id));
        read.shrink_to_fit();
        let unknown = apply_deaths(&mut read, deaths.of(page));
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

/// Makes records dead that died since the page of their segments was stored. Returns the first that is not live by that
/// page although its segment is there.
pub(super) fn apply_deaths(page: &mut [Segment], dead: &[Ptr]) -> Option<Addr> {
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

/// Decodes a stored page of the table.
///
/// # Errors
/// [`Error::Corrupt`] if `bytes` are no page, or have segments of another page.
pub fn decode_page(ids: PageIds, page: u64, bytes: &[u8]) -> Result<Vec<Segment>> {
    let mut reader = Reader::new(bytes, "page of the segment table");
    let mut segments: Vec<Segment> = Vec::with_capacity(ids.get().into());
    if bytes.is_empty() {
        return Err(reader.bad("it has no segments"));
    }
    while reader.remaining() > 0 {
        let previous = segments.last().map_or(0, |segment| segment.id);
        let segment = Segment::decode(previous, &mut reader)?;
        if ids.page(segment.id) != page || segment.id <= previous {
            return Err(reader.bad("a segment is on the wrong page"));
        }
        segments.push(segment);
    }
    segments.shrink_to_fit();
    Ok(segments)
}

#[cfg(test)]
mod tests;
