//! Reading records from their devices.

use std::sync::Arc;

use super::directory::{DirEntry, Directory};
use super::entry::DirRef;
use super::seal;
use super::table::{Place, Segments};
use crate::device::{AlignedBuf, Device};
use crate::limits::BLOCK_BYTES;
use crate::space::Extent;
use crate::{Addr, Error, Result};

/// The devices of a pool, by number.
pub type Devices = Vec<Arc<dyn Device>>;

/// Records this close together are read by one request: the gap costs less than another request.
const MERGE_GAP_BYTES: u64 = 16 << 10;
/// Longest request that merging makes.
const MERGE_BYTES_MAX: u64 = 1 << 20;

/// Requests that are made at once.
const BATCH_REQUESTS: usize = 32;

/// Where the bytes of a record lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Located {
    /// Device number.
    pub device: u16,
    /// First byte on the device.
    pub offset: u64,
    /// Stored length in bytes.
    pub len_bytes: u32,
    /// [`seal`] of address and bytes.
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
}

/// The whole blocks of a device around some bytes, as a request, and where in it the bytes begin.
pub(super) fn span(device: &dyn Device, offset: u64, len_bytes: u64) -> Result<((u64, AlignedBuf), usize)> {
    let block = BLOCK_BYTES as u64;
    let first = offset - offset % block;
    let last = offset.saturating_add(len_bytes).checked_next_multiple_of(block);
    let last = last.filter(|last| *last <= device.size_bytes()).ok_or_else(|| {
        Error::corrupt(
            format!("reference to byte {offset} of {}", device.path().display()),
            "it lies beyond the end of the device",
        )
    })?;
    Ok(((first, AlignedBuf::scratch((last - first) as usize)), (offset - first) as usize))
}

/// Reads `len_bytes` at any `offset` of a device. Returns a buffer and where in it the bytes begin.
pub fn read_span(device: &dyn Device, offset: u64, len_bytes: u64) -> Result<(AlignedBuf, usize)> {
    let ((first, mut buf), start) = span(device, offset, len_bytes)?;
    device.read(first, &mut buf)?;
    Ok((buf, start))
}

/// Records that one request reads, and what it reads.
struct Group<'a> {
    records: &'a [(Located, usize)],
    end: u64,
}

impl<'a> Group<'a> {
    /// The first records of `sorted` that lie together, and the rest.
    fn split(sorted: &'a [(Located, usize)]) -> Option<(Self, &'a [(Located, usize)])> {
        let (first, _) = sorted.first()?;
        let mut end = first.end();
        let mut count = 1;
        while let Some((next, _)) = sorted.get(count) {
            let joins = next.device == first.device
                && next.offset <= end + MERGE_GAP_BYTES
                && next.end().max(end) - first.offset <= MERGE_BYTES_MAX;
            if !joins {
                break;
            }
            end = end.max(next.end());
            count += 1;
        }
        let (records, rest) = sorted.split_at(count);
        Some((Self { records, end }, rest))
    }

    fn device(&self) -> u16 {
        self.records.first().map_or(0, |(first, _)| first.device)
    }

    fn offset(&self) -> u64 {
        self.records.first().map_or(0, |(first, _)| first.offset)
    }

    fn len_bytes(&self) -> u64 {
        self.end - self.offset()
    }

    /// Verifies the records in what was read and hands them on.
    fn deliver(
        &self,
        read: &[u8],
        device: &dyn Device,
        addrs: &[Addr],
        sink: &mut dyn FnMut(usize, &[u8]) -> Result<()>,
    ) -> Result<()> {
        for (located, at) in self.records {
            let from = (located.offset - self.offset()) as usize;
            let bytes = read.get(from..from + located.len_bytes as usize).unwrap_or_default();
            if seal(addrs[*at], bytes) != located.checksum {
                let Located { offset, len_bytes, .. } = located;
                let path = device.path().display();
                return Err(Error::corrupt(
                    format!("record {} at byte {offset} of {path} ({len_bytes} bytes)", addrs[*at]),
                    "its checksum does not hold",
                ));
            }
            sink(*at, bytes)?;
        }
        Ok(())
    }
}

impl Segments {
    /// The directory of the part of a segment that `addr` lies in, from memory or the device.
    pub fn directory(&self, devices: &Devices, addr: Addr) -> Result<Arc<Directory>> {
        match self.place(addr).ok_or_else(|| unknown(addr))? {
            Place::Open(..) => self.open_directory(addr.segment()).map(Arc::new).ok_or_else(|| unknown(addr)),
            Place::Closed(extent, dir) => self.closed_directory(devices, addr.segment(), extent, dir),
        }
    }

    /// The directory that lies at `dir` of `extent`.
    pub fn closed_directory(
        &self,
        devices: &Devices,
        id: u64,
        extent: Extent,
        dir: DirRef,
    ) -> Result<Arc<Directory>> {
        if let Some(directory) = self.directories.get(&(id, extent)) {
            return Ok(directory);
        }
        let directory = Arc::new(self.read_directory(devices, id, extent, dir)?);
        self.directories.insert((id, extent), Arc::clone(&directory));
        Ok(directory)
    }

    /// The directory that lies at `dir` of `extent`, from the device, whatever memory has.
    pub fn read_directory(
        &self,
        devices: &Devices,
        id: u64,
        extent: Extent,
        dir: DirRef,
    ) -> Result<Directory> {
        let offset = extent.offset() + u64::from(dir.start);
        let device = device(devices, extent.chunk.device)?;
        let (buf, start) = read_span(device, offset, dir.len_bytes.into())?;
        let bytes = buf.get(start..start + dir.len_bytes as usize).unwrap_or_default();
        if crc32c::crc32c(bytes) != dir.checksum {
            return Err(Error::corrupt(
                format!("directory of segment {id} at byte {offset} of {}", device.path().display()),
                "its checksum does not hold",
            ));
        }
        Directory::decode(bytes, id, extent.len_bytes)
    }

    /// Where a record lies.
    pub fn locate(&self, devices: &Devices, addr: Addr) -> Result<Located> {
        let (extent, entry) = match self.place(addr).ok_or_else(|| unknown(addr))? {
            Place::Open(extent, entry) => (extent, entry),
            Place::Closed(extent, _) => match self.directories.get(&(addr.segment(), extent)) {
                Some(directory) => (extent, directory.get(addr.slot())),
                None => {
                    self.directory(devices, addr)?;
                    return self.locate_loaded(devices, addr);
                }
            },
        };
        entry.map(|entry| Located::new(extent, entry)).ok_or_else(|| unknown(addr))
    }

    /// After the directory was loaded: the segment may have been folded meanwhile, so place and directory are
    /// taken anew, together.
    fn locate_loaded(&self, devices: &Devices, addr: Addr) -> Result<Located> {
        for _ in 0..16 {
            let (extent, directory) = match self.place(addr).ok_or_else(|| unknown(addr))? {
                Place::Open(extent, entry) => {
                    return entry.map(|entry| Located::new(extent, entry)).ok_or_else(|| unknown(addr));
                }
                Place::Closed(extent, dir) => {
                    (extent, self.closed_directory(devices, addr.segment(), extent, dir)?)
                }
            };
            if matches!(self.place(addr), Some(Place::Closed(now, _)) if now == extent) {
                return directory
                    .get(addr.slot())
                    .map(|entry| Located::new(extent, entry))
                    .ok_or_else(|| unknown(addr));
            }
        }
        Err(unknown(addr))
    }

    /// Where a record lies, if that is known without reading.
    pub fn try_locate(&self, addr: Addr) -> Option<Located> {
        match self.place(addr)? {
            Place::Open(extent, entry) => Some(Located::new(extent, entry?)),
            Place::Closed(extent, _) => {
                let directory = self.directories.get(&(addr.segment(), extent))?;
                Some(Located::new(extent, directory.get(addr.slot())?))
            }
        }
    }

    /// Reads records and verifies their checksums; `sink` gets each with its position in `addrs`, in any order.
    /// Neighbours on the device are read together.
    pub fn read(
        &self,
        devices: &Devices,
        addrs: &[Addr],
        sink: &mut dyn FnMut(usize, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let mut wanted: Vec<(Located, usize)> = Vec::with_capacity(addrs.len());
        for (at, addr) in addrs.iter().enumerate() {
            wanted.push((self.locate(devices, *addr)?, at));
        }
        wanted.sort_unstable_by_key(|(located, _)| (located.device, located.offset));
        let mut rest = wanted.as_slice();
        while !rest.is_empty() {
            let mut groups = Vec::new();
            let mut bytes = 0;
            while let Some((group, later)) = Group::split(rest) {
                let joins = groups.first().is_none_or(|first: &Group<'_>| first.device() == group.device());
                if !joins || groups.len() == BATCH_REQUESTS || bytes > MERGE_BYTES_MAX {
                    break;
                }
                bytes += group.len_bytes();
                groups.push(group);
                rest = later;
            }
            read_groups(devices, &groups, addrs, sink)?;
        }
        Ok(())
    }
}

/// Reads groups of one device at once.
fn read_groups(
    devices: &Devices,
    groups: &[Group<'_>],
    addrs: &[Addr],
    sink: &mut dyn FnMut(usize, &[u8]) -> Result<()>,
) -> Result<()> {
    let device = device(devices, groups.first().map_or(0, Group::device))?;
    let mut requests = Vec::with_capacity(groups.len());
    let mut starts = Vec::with_capacity(groups.len());
    for group in groups {
        let (request, start) = span(device, group.offset(), group.len_bytes())?;
        requests.push(request);
        starts.push(start);
    }
    match requests.as_mut_slice() {
        [(offset, buf)] => device.read(*offset, buf)?,
        many => device.read_many(many)?,
    }
    for ((group, (_, buf)), start) in groups.iter().zip(&requests).zip(starts) {
        group.deliver(buf.get(start..).unwrap_or_default(), device, addrs, sink)?;
    }
    Ok(())
}

fn device(devices: &Devices, number: u16) -> Result<&dyn Device> {
    let found = devices.get(usize::from(number));
    found
        .map(AsRef::as_ref)
        .ok_or_else(|| Error::corrupt(format!("device number {number}"), "the pool has no such device"))
}

fn unknown(addr: Addr) -> Error {
    Error::corrupt(format!("address {addr}"), "no record has it")
}
