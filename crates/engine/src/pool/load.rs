//! Reads the segment table when a pool is opened, and other records that are found by place.

use super::ahead::ReadAhead;
use super::places::check_places;
use super::rescue::Missing;
use super::root::{PlacedRecord, Root, TablePage, append_list, decode_dead, decode_list};
use crate::device::{Devices, Span};
use crate::error::DamagedAt;
use crate::faults::Subject;
use crate::limits::CHUNK_BYTES;
use crate::record::decode_metadata;
use crate::segment::{Located, Segment, Segments, decode_page, neighbours, record_checksum};
use crate::space::{ByChunk, Chunk, Chunks};
use crate::{Addr, Error, Result};

/// Reads the lists of where the pages of a checkpoint's segment table are.
pub(super) fn load_lists(
    devices: &Devices,
    segments: &Segments,
    chunks: &Chunks,
    root: &Root,
    missing: &mut Missing,
) -> Result<Vec<TablePage>> {
    let mut table = Vec::new();
    for list in &root.lists {
        let bytes = read_placed(devices, segments, list, "list of pages of the segment table");
        let read = bytes.and_then(|bytes| append_list(&mut table, decode_list(&bytes)?));
        missing.list(read, table.len())?;
    }
    check_places(chunks, table.iter().map(|page| &page.placed), "list of pages of the segment table")?;
    Ok(table)
}

/// Reads the segment table of a checkpoint from its pages, `table`. Calls `visit` with each segment.
pub(super) fn load_table(
    devices: &Devices,
    segments: &Segments,
    (root, table): (&Root, &[TablePage]),
    missing: &mut Missing,
    ahead: &ReadAhead,
    visit: &mut dyn FnMut(&Segment),
) -> Result<()> {
    for list in &root.dead {
        let bytes = read_placed(devices, segments, list, "list of dead records");
        if let Some(dead) = missing.dead(bytes.and_then(|bytes| decode_dead(&bytes)))? {
            segments.load_dead(&dead);
        }
    }
    let mut sorted: Vec<&TablePage> = table.iter().collect();
    sorted.sort_unstable_by_key(|page| (page.placed.first.device, page.placed.first.offset));
    let mut groups = Vec::new();
    let mut rest = sorted.as_slice();
    while let Some((count, end)) = neighbours(devices, rest.iter().map(|page| page.placed.first)) {
        let (group, later) = rest.split_at(count);
        groups.push((group, end));
        rest = later;
    }
    let mut pages: Vec<u64> = table.iter().map(|page| page.page).collect();
    pages.sort_unstable();
    let mut unknown = segments.dead_elsewhere(&pages);
    let read = |(group, end): &(&[&TablePage], u64)| read_pages(devices, segments, group, *end);
    ahead.each(&groups, read, |_, pages| {
        pages.into_iter().try_for_each(|(page, read)| match read {
            Ok(read) => {
                let dead = segments.load_page(page, read, root.position.segment, visit);
                unknown = unknown.or(dead);
                Ok(())
            }
            Err(error) => missing.page(error, page),
        })
    })?;
    match unknown.filter(|_| !missing.allowed()) {
        Some(addr) => Err(Error::corrupt(
            format!("list of dead records, {addr}"),
            "the segment table does not have it as live",
        )),
        None => Ok(()),
    }
}

/// Reads a record whose places and checksums are known without the segment table: its second copy if the first is
/// damaged or cannot be read.
pub(super) fn read_placed(
    devices: &Devices,
    segments: &Segments,
    placed: &PlacedRecord,
    what: &str,
) -> Result<Vec<u8>> {
    let PlacedRecord { addr, first, second } = placed;
    let read = |addr: Addr, place: &Located| {
        let read = read_copy(devices, addr, place, what);
        read.inspect_err(|error| segments.faults.count_error(error, Subject::Fixed))
    };
    let at = DamagedAt::new(first.device, first.offset, None);
    segments.or_second(read(*addr, first), (Subject::Fixed, Some(at)), || read(addr.copy(), second))
}

/// Reads pages of the segment table that lie next to each other, the last up to byte `end` of their device, by one
/// request. Each page that is not whole in it is read by a request of its own.
fn read_pages(
    devices: &Devices,
    segments: &Segments,
    pages: &[&TablePage],
    end: u64,
) -> Vec<(u64, Result<Vec<Segment>>)> {
    let first = pages.first().map(|page| page.placed.first);
    let together = first.and_then(|first| {
        let span = Span { len_bytes: end - first.offset, ..first.span() };
        let plan = devices.carry_out(vec![devices.plan(span).ok()?]).ok()?.pop()?;
        Some((first.offset, plan))
    });
    let read = |page: &TablePage| {
        let PlacedRecord { addr, first, .. } = page.placed;
        let bytes = together.as_ref().and_then(|(offset, plan)| {
            let start = usize::try_from(first.offset - offset).ok()?;
            let place = start..start + first.len_bytes as usize;
            let sound = plan.verified(|read, from| {
                let bytes = read.get(place).unwrap_or_default();
                first.verify(addr, bytes, from).map(|()| bytes)
            });
            sound.ok()
        });
        match bytes {
            Some(bytes) => decode_page(segments.page_ids(), page.page, &decode_metadata(bytes)?),
            None => {
                let record = read_placed(devices, segments, &page.placed, "page of the segment table")?;
                decode_page(segments.page_ids(), page.page, &decode_metadata(&record)?)
            }
        }
    };
    pages.iter().map(|page| (page.page, read(page))).collect()
}

/// Reads one copy of a record.
pub(super) fn read_copy(devices: &Devices, addr: Addr, place: &Located, what: &str) -> Result<Vec<u8>> {
    let size_bytes = devices.size_bytes(place.device).map_err(|none| none.in_place_of(what))?;
    if place.len_bytes as usize > crate::limits::RECORD_BYTES_MAX {
        return Err(Error::corrupt(what, "it is too long"));
    }
    let end = place.offset.checked_add(place.len_bytes.into());
    if end.is_none_or(|end| end > size_bytes) {
        return Err(Error::corrupt(what, "it lies beyond the end of its device"));
    }
    devices.read(place.span(), |bytes, from| {
        if record_checksum(addr, bytes) == place.checksum {
            return Ok(bytes.to_vec());
        }
        Err(Error::corrupt_at(
            DamagedAt::new(from.number, place.offset, Some(addr)),
            format!("{what} at byte {} of {}", place.offset, from.path.display()),
            "its checksum does not hold",
        ))
    })
}

/// Sums of the bytes that segments take of each chunk.
#[derive(Debug, Default)]
pub(super) struct ChunkBytes {
    chunks: ByChunk<u64>,
    counts: Vec<u32>,
    outside: bool,
    overfull: bool,
}

impl ChunkBytes {
    /// Makes empty sums for devices of these lengths.
    pub(super) fn new(device_bytes: &[u64]) -> Self {
        let counts = device_bytes.iter().map(|bytes| Chunk::count(*bytes)).collect();
        Self { counts, ..Self::default() }
    }

    /// Adds a segment, which lies in its parts.
    pub(super) fn add(&mut self, segment: &Segment) {
        for part in &segment.parts {
            let chunk = part.extent.chunk;
            self.outside |=
                self.counts.get(usize::from(chunk.device)).is_none_or(|count| chunk.index >= *count);
            let Some(bytes) = self.chunks.get_mut(chunk) else { continue };
            *bytes += u64::from(part.extent.len_bytes);
            self.overfull |= *bytes > CHUNK_BYTES;
        }
    }

    /// Returns the chunks that segments lie in.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if a chunk is beyond its device, or (with `bounded`) if segments take more of one than it
    /// holds.
    pub(super) fn used(self, bounded: bool) -> Result<Vec<Chunk>> {
        if self.outside {
            return Err(Error::corrupt("segment table", "a segment lies beyond the pool's devices"));
        }
        if bounded && self.overfull {
            return Err(Error::corrupt("segment table", "a chunk has more than it holds"));
        }
        let used = self.chunks.iter().filter(|(_, bytes)| **bytes > 0);
        Ok(used.map(|(chunk, _)| chunk).collect())
    }
}
