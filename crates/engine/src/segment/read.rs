//! Reads records and directories from their devices.

use std::sync::Arc;

use super::directory::DirRef;
use super::directory::{DirEntry, Directory, Index};
use super::entry::Part;
use super::piece::{Piece, PieceKey};
use super::record_checksum;
use super::table::{RecordPlace, Segments};
use crate::device::{Devices, PlannedRead, READ_BYTES_MAX, ReadFrom, Span};
use crate::error::DamagedAt;
use crate::faults::Subject;
use crate::limits::BLOCK_BYTES;
use crate::space::Extent;
use crate::{Addr, Error, Result};

/// Largest gap between two records that one request reads: reading the gap costs less than another request.
const MERGE_GAP_BYTES: u64 = 16 << 10;

/// Largest number of bytes that a request reads behind the records that are needed, of those that are likely to be needed
/// next.
const NEXT_BYTES_MAX: u64 = 128 << 10;

/// Longest directory in bytes that is read as a whole when an entry of it is needed: its neighbours are likely to be
/// wanted, and one request costs less than three.
const WHOLE_BYTES_MAX: u32 = 64 << 10;

/// Largest number of requests that are made at once.
const BATCH_REQUESTS: usize = 32;
const BLOCK: u64 = BLOCK_BYTES as u64;

/// Where the bytes of a record lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Located {
    /// Device number.
    pub device: u16,
    /// First byte on the device.
    pub offset: u64,
    /// Stored length in bytes.
    pub len_bytes: u32,
    /// [`record_checksum`] of address and bytes.
    pub checksum: u32,
}

impl Located {
    fn new(extent: Extent, entry: DirEntry) -> Self {
        let offset = extent.offset() + u64::from(entry.start);
        Self { device: extent.chunk.device, offset, len_bytes: entry.len_bytes, checksum: entry.checksum }
    }

    fn end(&self) -> u64 {
        self.offset + u64::from(self.len_bytes)
    }

    /// Returns the bytes of the record on its device.
    pub(crate) fn span(&self) -> Span {
        Span { group: self.device, offset: self.offset, len_bytes: self.len_bytes.into() }
    }

    /// Returns an error unless `bytes` are those of the record at `addr`. They were read from the device `from`.
    pub(crate) fn verify(&self, addr: Addr, bytes: &[u8], from: ReadFrom<'_>) -> Result<()> {
        if record_checksum(addr, bytes) != self.checksum {
            let (Self { offset, len_bytes, .. }, path) = (self, from.path.display());
            return Err(Error::corrupt_at(
                DamagedAt::new(from.number, *offset, Some(addr)),
                format!("record {addr} at byte {offset} of {path} ({len_bytes} bytes)"),
                "its checksum does not hold",
            ));
        }
        Ok(())
    }
}

/// Returns the number of these places, which ascend, that one request should read, and the end of that request on the
/// device.
pub(crate) fn neighbours(
    devices: &Devices,
    mut sorted: impl Iterator<Item = Located>,
) -> Option<(usize, u64)> {
    let first = sorted.next()?;
    let (mut count, mut end) = (1, first.end());
    let mut bytes_max = None;
    for next in sorted {
        let near = next.device == first.device && next.offset <= end.saturating_add(MERGE_GAP_BYTES);
        // A request reads whole blocks.
        let bytes = || next.end().max(end).next_multiple_of(BLOCK) - first.offset / BLOCK * BLOCK;
        let joins = near && bytes() <= *bytes_max.get_or_insert_with(|| devices.read_bytes_max(first.device));
        if !joins {
            break;
        }
        end = end.max(next.end());
        count += 1;
    }
    Some((count, end))
}

/// Records that one request reads, with the end of that request.
struct ReadGroup<'a> {
    records: &'a [(Located, usize)],
    end: u64,
    /// Position in the list of addresses from which on they are not needed.
    needed: usize,
}

impl<'a> ReadGroup<'a> {
    /// Splits `sorted` into the first records that lie together, and the rest.
    fn split(
        devices: &Devices,
        sorted: &'a [(Located, usize)],
        needed: usize,
    ) -> Option<(Self, &'a [(Located, usize)])> {
        let (count, end) = neighbours(devices, sorted.iter().map(|(located, _)| *located))?;
        let (records, rest) = sorted.split_at(count);
        Some((Self { records, end, needed }, rest))
    }

    fn is_needed(&self) -> bool {
        self.records.iter().any(|(_, at)| *at < self.needed)
    }

    fn device(&self) -> u16 {
        self.records.first().map_or(0, |(first, _)| first.device)
    }

    fn span(&self) -> Span {
        let offset = self.records.first().map_or(0, |(first, _)| first.offset);
        Span { group: self.device(), offset, len_bytes: self.end - offset }
    }

    /// Verifies the records in what was read of the group's span, and hands them to `sink`. One that is not right is
    /// looked for on other devices of its group.
    fn deliver(
        &self,
        devices: &Devices,
        plan: &PlannedRead,
        addrs: &[Addr],
        sink: &mut dyn FnMut(usize, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let Span { offset, .. } = self.span();
        for (located, at) in self.records {
            let start = (located.offset - offset) as usize;
            let verified = plan.verified(|read, from| {
                let bytes = read.get(start..start + located.len_bytes as usize).unwrap_or_default();
                located.verify(addrs[*at], bytes, from).map(|()| bytes)
            });
            match verified {
                Ok(bytes) => sink(*at, bytes)?,
                Err(_) if *at >= self.needed => {}
                Err(error) => {
                    let whole = |bytes: &[u8], from: ReadFrom<'_>| {
                        located.verify(addrs[*at], bytes, from).map(|()| bytes.to_vec())
                    };
                    sink(*at, &devices.read_elsewhere(located.span(), plan.number(), error, whole)?)?;
                }
            }
        }
        Ok(())
    }

    /// Reads each record by itself.
    fn deliver_each(
        &self,
        devices: &Devices,
        addrs: &[Addr],
        sink: &mut dyn FnMut(usize, &[u8]) -> Result<()>,
    ) -> Result<()> {
        for (located, at) in self.records.iter().filter(|(_, at)| *at < self.needed) {
            let whole = |bytes: &[u8], from: ReadFrom<'_>| {
                located.verify(addrs[*at], bytes, from).map(|()| bytes.to_vec())
            };
            sink(*at, &devices.read(located.span(), whole)?)?;
        }
        Ok(())
    }
}

/// A directory on a device.
struct DirReader<'a> {
    segments: &'a Segments,
    devices: &'a Devices,
    id: u64,
    extent: Extent,
    dir: DirRef,
}

/// One of the two places of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DirCopy {
    /// In the extent, behind the records.
    First,
    /// At the end of the chunk.
    Second,
}

impl DirCopy {
    /// Returns the first byte of this copy on its device; `None` if the directory has no such copy.
    pub(crate) fn offset(self, extent: Extent, dir: DirRef) -> Option<u64> {
        match self {
            Self::First => Some(extent.offset() + u64::from(dir.start)),
            Self::Second => (dir.second > 0).then(|| extent.chunk.offset() + u64::from(dir.second)),
        }
    }
}

impl DirReader<'_> {
    /// Reads bytes from `start` of the directory on, and decodes them. If its first copy cannot be read or is damaged,
    /// the second one is read, if there is one. An error says where the bytes lie.
    fn read<T>(&self, start: u32, len_bytes: u32, decode: impl Fn(&[u8]) -> Result<T>) -> Result<T> {
        let read = |copy| self.read_at(copy, start, len_bytes, &decode);
        let error = match read(DirCopy::First) {
            Err(error) if error.is_damage() => error,
            read => return read,
        };
        if !self.is_there() {
            return read(DirCopy::Second).or(Err(error));
        }
        let subject = Subject::Directory(self.id);
        self.segments.faults.count_error(&error, subject);
        let offset = DirCopy::First.offset(self.extent, self.dir);
        let at = offset.map(|offset| DamagedAt::new(self.extent.chunk.device, offset, None));
        self.segments.or_second(Err(error), (subject, at), || read(DirCopy::Second))
    }

    /// Returns true if its segment still has it. The former place of a directory that was moved may hold anything.
    fn is_there(&self) -> bool {
        let Ok(segment) = self.segments.get(self.id) else { return true };
        let is_this = |part: &Part| part.extent == self.extent && part.directory == Some(self.dir);
        segment.is_some_and(|segment| segment.parts.iter().any(is_this))
    }

    fn read_at<T>(
        &self,
        copy: DirCopy,
        start: u32,
        len_bytes: u32,
        decode: impl Fn(&[u8]) -> Result<T>,
    ) -> Result<T> {
        let offset = copy.offset(self.extent, self.dir);
        let offset = offset.ok_or_else(|| Error::corrupt("segment directory", "it has no second copy"))?;
        let offset = offset + u64::from(start);
        let span = Span { group: self.extent.chunk.device, offset, len_bytes: len_bytes.into() };
        self.devices.read(span, |bytes, from| {
            decode(bytes).map_err(|error| match error {
                Error::Corrupt { detail, .. } => Error::corrupt_at(
                    DamagedAt::new(from.number, offset, None),
                    format!("directory of segment {} at byte {offset} of {}", self.id, from.path.display()),
                    detail,
                ),
                other => other,
            })
        })
    }

    /// Verifies and decodes the whole directory.
    fn decode(&self, bytes: &[u8]) -> Result<Directory> {
        self.verify_index(bytes)?;
        Directory::decode(bytes, self.id, self.extent.len_bytes)
    }

    fn verify_index(&self, bytes: &[u8]) -> Result<()> {
        let index = bytes.get(..self.dir.index_bytes as usize).unwrap_or_default();
        if crc32c::crc32c(index) == self.dir.checksum {
            return Ok(());
        }
        Err(Error::corrupt("segment directory", "its checksum does not hold"))
    }
}

impl Segments {
    /// Reads the directory at `dir` of `extent` from the device, even if it is in memory.
    pub fn read_directory(
        &self,
        devices: &Devices,
        id: u64,
        extent: Extent,
        dir: DirRef,
    ) -> Result<Directory> {
        let stored = DirReader { segments: self, devices, id, extent, dir };
        stored.read(0, dir.len_bytes, |bytes| stored.decode(bytes))
    }

    /// Reads one copy of a directory. Returns it with its stored form.
    pub(crate) fn read_directory_copy(
        &self,
        devices: &Devices,
        id: u64,
        (extent, dir): (Extent, DirRef),
        copy: DirCopy,
    ) -> Result<(Directory, Vec<u8>)> {
        let stored = DirReader { segments: self, devices, id, extent, dir };
        stored.read_at(copy, 0, dir.len_bytes, |bytes| Ok((stored.decode(bytes)?, bytes.to_vec())))
    }

    /// Reads all copies of a directory. Returns of each which one it is, its first byte on its device, and what reading
    /// it gave.
    pub(crate) fn read_directory_copies<'a>(
        &'a self,
        devices: &'a Devices,
        id: u64,
        (extent, dir): (Extent, DirRef),
    ) -> impl Iterator<Item = (DirCopy, u64, Result<(Directory, Vec<u8>)>)> + 'a {
        [DirCopy::First, DirCopy::Second].into_iter().filter_map(move |copy| {
            let offset = copy.offset(extent, dir)?;
            Some((copy, offset, self.read_directory_copy(devices, id, (extent, dir), copy)))
        })
    }

    /// Returns the entry of a record, from memory or the device; `None` if the directory has none.
    fn entry(&self, stored: &DirReader<'_>, addr: Addr) -> Result<Option<DirEntry>> {
        let DirReader { devices, id, extent, dir, .. } = *stored;
        if let Some(entry) = self.kept_entry(addr, extent, dir) {
            return Ok(Some(entry));
        }
        let read = if dir.len_bytes <= WHOLE_BYTES_MAX {
            self.read_directory(devices, id, extent, dir)?
        } else {
            let Some(leaf) = self.index(stored)?.leaf(addr.slot()) else { return Ok(None) };
            stored.read(leaf.start(dir), leaf.len_bytes, |bytes| leaf.read(bytes, extent.len_bytes))?
        };
        self.keep_read(addr, (extent, dir), &read);
        Ok(read.get(addr.slot()))
    }

    /// Returns the index of a directory, from memory or the device.
    fn index(&self, stored: &DirReader<'_>) -> Result<Arc<Index>> {
        let DirReader { id, extent, dir, .. } = *stored;
        let key = PieceKey::index(id, extent, dir);
        if let Some(Piece::Index(index)) = self.directories.get(&key) {
            return Ok(index);
        }
        let index = Arc::new(stored.read(0, dir.index_bytes, |bytes| {
            stored.verify_index(bytes)?;
            Index::decode(bytes, id)
        })?);
        self.directories.insert(key, Piece::Index(Arc::clone(&index)));
        Ok(index)
    }

    /// Returns where a record lies.
    pub fn locate(&self, devices: &Devices, addr: Addr) -> Result<Located> {
        let (extent, entry) = match self.place(addr)?.ok_or_else(|| unknown(addr))? {
            RecordPlace::Open(extent, entry) => (extent, entry),
            RecordPlace::Closed(extent, dir) => match self.kept_entry(addr, extent, dir) {
                Some(entry) => (extent, Some(entry)),
                None => return self.locate_loaded(devices, addr),
            },
        };
        entry.map(|entry| Located::new(extent, entry)).ok_or_else(|| unknown(addr))
    }

    /// Finds a record whose directory has to be read. The segment may be moved meanwhile, so this begins anew if it
    /// lies elsewhere after the reading.
    fn locate_loaded(&self, devices: &Devices, addr: Addr) -> Result<Located> {
        for _ in 0..16 {
            let (extent, dir, entry) = match self.place(addr)?.ok_or_else(|| unknown(addr))? {
                RecordPlace::Open(extent, entry) => {
                    return entry.map(|entry| Located::new(extent, entry)).ok_or_else(|| unknown(addr));
                }
                RecordPlace::Closed(extent, dir) => {
                    let stored = DirReader { segments: self, devices, id: addr.segment(), extent, dir };
                    (extent, dir, self.entry(&stored, addr))
                }
            };
            // A place that the segment has left may hold anything, so what was read there does not count. A segment
            // that came back to its place has another directory.
            if matches!(self.place(addr)?, Some(RecordPlace::Closed(now, now_dir)) if (now, now_dir) == (extent, dir))
            {
                return entry?.map(|entry| Located::new(extent, entry)).ok_or_else(|| unknown(addr));
            }
        }
        Err(unknown(addr))
    }

    /// Returns where a record lies; `None` if that is not known without reading.
    pub fn try_locate(&self, addr: Addr) -> Option<Located> {
        match self.try_place(addr)? {
            RecordPlace::Open(extent, entry) => Some(Located::new(extent, entry?)),
            RecordPlace::Closed(extent, dir) => {
                Some(Located::new(extent, self.kept_entry(addr, extent, dir)?))
            }
        }
    }

    /// Reads records and verifies their checksums; `sink` gets each with its position in `addrs`, in any order.
    /// Neighbours on the device are read together.
    pub(crate) fn read(
        &self,
        devices: &Devices,
        addrs: &[Addr],
        sink: &mut dyn FnMut(usize, &[u8]) -> Result<()>,
    ) -> Result<()> {
        self.read_with_next(devices, (addrs, addrs.len()), sink)
    }

    /// As [`Segments::read`], where only the first `needed` of `addrs` are needed. The others are likely to be asked for
    /// next: they are read as far as they lie right behind the last one that is needed, so that no request is made for
    /// them. `sink` does not get those that are not read, or that are damaged.
    pub(crate) fn read_with_next(
        &self,
        devices: &Devices,
        (addrs, needed): (&[Addr], usize),
        sink: &mut dyn FnMut(usize, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let mut wanted: Vec<(Located, usize)> = Vec::with_capacity(addrs.len());
        for (at, addr) in addrs.iter().enumerate().take(needed) {
            wanted.push((self.locate(devices, *addr)?, at));
        }
        let mut last = wanted.last().map(|(located, _)| *located);
        let next_end = last.map_or(0, |last| last.end().saturating_add(NEXT_BYTES_MAX));
        for (at, addr) in addrs.iter().enumerate().skip(needed) {
            let (Some(before), Some(next)) = (last, self.try_locate(*addr)) else { break };
            let is_behind = next.device == before.device
                && (before.end()..=before.end().saturating_add(MERGE_GAP_BYTES)).contains(&next.offset)
                && next.end() <= next_end;
            if !is_behind {
                break;
            }
            wanted.push((next, at));
            last = Some(next);
        }
        wanted.sort_unstable_by_key(|(located, _)| (located.device, located.offset));
        let mut rest = wanted.as_slice();
        while !rest.is_empty() {
            let mut groups = Vec::new();
            let mut bytes = 0;
            while let Some((group, later)) = ReadGroup::split(devices, rest, needed) {
                let joins =
                    groups.first().is_none_or(|first: &ReadGroup<'_>| first.device() == group.device());
                if !joins || groups.len() == BATCH_REQUESTS || bytes > READ_BYTES_MAX {
                    break;
                }
                rest = later;
                // A request that is too long for one is made without those that nobody needs.
                if group.is_needed() {
                    bytes += group.span().len_bytes;
                    groups.push(group);
                }
            }
            read_groups(devices, &groups, addrs, sink)?;
        }
        Ok(())
    }
}

/// Reads groups of records of one device at once.
fn read_groups(
    devices: &Devices,
    groups: &[ReadGroup<'_>],
    addrs: &[Addr],
    sink: &mut dyn FnMut(usize, &[u8]) -> Result<()>,
) -> Result<()> {
    let plans =
        groups.iter().map(|group| devices.plan(group.span())).collect::<Result<Vec<PlannedRead>>>()?;
    let plans = match devices.carry_out(plans) {
        Ok(plans) => plans,
        // Nothing says which of the records could not be read; another device may have it, or the same one reads it when
        // it is asked again.
        Err(Error::Io { .. }) => {
            return groups.iter().try_for_each(|group| group.deliver_each(devices, addrs, sink));
        }
        Err(error) => return Err(error),
    };
    let mut read = groups.iter().zip(&plans);
    read.try_for_each(|(group, plan)| group.deliver(devices, plan, addrs, sink))
}

fn unknown(addr: Addr) -> Error {
    Error::corrupt(format!("address {addr}"), "no record has it")
}
