//! Makes pools of any size without writing their data: segments full of records of zeros, which are holes of a sparse
//! file. For tools that measure what the size of a pool costs. `check` would say of a crafted pool that most records
//! belong to nobody.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::path::Path;
use std::sync::Arc;

use smallvec::smallvec;

use super::create::{FIRST_DATASET, create_with};
use super::{CreateOptions, OpenOptions, Pool};
use crate::dataset::redo::{Bases, PageRun};
use crate::device::{AlignedBuf, Device, Devices, FileDevice, OpenMode};
use crate::limits::{BLOCK_BYTES, CHUNK_BYTES};
use crate::segment::{
    DirEntry, Directory, LiveMap, PART_OVERHEAD_BYTES, Part, RECORD_OVERHEAD_BYTES, Segment, held_bytes,
    record_checksum,
};
use crate::space::Extent;
use crate::{Addr, Ptr, Result};

/// Properties of a pool to craft.
#[derive(Clone, Copy, Debug)]
pub struct Crafted {
    /// Number of chunks that stay free.
    pub free_chunks: u64,
    /// Length of each record, in bytes.
    pub record_bytes: u32,
    /// Number of segments that have survivors in each chunk, in as many parts: 1 as the log leaves them, more as a
    /// cleaner does after long overwriting.
    pub segments_per_chunk: u64,
    /// Fewest live records of a segment, in parts of a thousand; the others have up to all, evenly spread.
    pub live_permille_min: u64,
    /// Segments that have a directory on the device and can be cleaned, in parts of a thousand of all: those with the
    /// fewest live records.
    pub directories_permille: u64,
    /// The object whose pages the crafted records are: one record of each chunk, in an order as of random overwrites.
    pub object: u64,
    /// Page size of the object, in bytes.
    pub page_bytes: u32,
}

/// Number of different maps of live slots.
const MAPS: u64 = 512;
/// Number of pages that are put at a time.
const RUN: u64 = 1024;

impl Crafted {
    /// Returns the number of slots of a segment: as many as fit a chunk beside two directories of each part.
    fn slots(&self) -> u32 {
        let entry_bytes = u64::from(self.record_bytes) + RECORD_OVERHEAD_BYTES + 1;
        let part_bytes = PART_OVERHEAD_BYTES + 16 * BLOCK_BYTES as u64;
        ((CHUNK_BYTES - self.segments_per_chunk * part_bytes) / entry_bytes) as u32
    }

    /// Returns the maps of segments, the emptiest first: the slots that a segment's part has, ascending, and which of
    /// these are live. The first slot, which the object has, is live in all.
    fn maps(&self) -> Vec<(Vec<u32>, LiveMap)> {
        let (slots, parts) = (self.slots(), self.segments_per_chunk);
        let mut state = 1_u64;
        let mut next = || {
            state = state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
            state >> 33
        };
        let mut map = |number: u64| {
            let permille = self.live_permille_min + (1000 - self.live_permille_min) * number / MAPS;
            let (mut packed, mut map) = (vec![0], LiveMap::default());
            map.set(0);
            for slot in 1..slots {
                if next() % parts == 0 && packed.len() < (slots as u64 / parts) as usize {
                    packed.push(slot);
                    if next() % 1000 < permille {
                        map.set(slot);
                    }
                }
            }
            (packed, map)
        };
        (0..MAPS).map(&mut map).collect()
    }
}

/// Makes a pool on a device whose bytes are zeros, and returns its number of segments.
///
/// # Errors
/// Those of making, opening and writing it.
pub fn craft(path: &Path, options: &CreateOptions, crafted: &Crafted) -> Result<u64> {
    let device: Arc<dyn Device> = Arc::new(FileDevice::open(path, OpenMode::ReadWrite)?);
    let chunks = u64::from(crate::space::Chunk::count(device.size_bytes()));
    let (chunks, parts) = (chunks.saturating_sub(crafted.free_chunks), crafted.segments_per_chunk);
    let segments = chunks * parts;
    // The log goes on behind these segments.
    create_with("crafted", (&Devices::all(vec![Arc::clone(&device)]), false), options, false, segments + 1)?;
    let pool = Pool::open_on(vec![device], &OpenOptions::default())?;
    let maps = crafted.maps();
    let zeros = vec![0; crafted.record_bytes as usize];
    let entries = |id: u64, packed: &[u32]| {
        let mut directory = Directory::default();
        for (at, slot) in (0..).zip(packed) {
            let checksum = record_checksum(Addr::new(id, *slot), &zeros);
            let (start, len_bytes) = (at * crafted.record_bytes, crafted.record_bytes);
            directory.push(DirEntry { slot: *slot, start, len_bytes, checksum });
        }
        directory.encode(id)
    };
    let part_bytes = (CHUNK_BYTES / parts / BLOCK_BYTES as u64 * BLOCK_BYTES as u64) as u32;
    let end = (crafted.slots() / parts as u32 * crafted.record_bytes).next_multiple_of(BLOCK_BYTES as u32);
    let mut chunk = pool.chunks.allocate()?;
    let mut templates = HashMap::new();
    let with_directory = MAPS * crafted.directories_permille / 1000;
    for id in 1..=segments {
        // Neighbouring chunks are not equally full.
        let number = ((id - 1) / parts).wrapping_mul(0x9E37_79B9) % MAPS;
        let (packed, live) = maps.get(number as usize).cloned().unwrap_or_default();
        let at = (id - 1) % parts;
        if at == 0 && id > 1 {
            chunk = pool.chunks.allocate()?;
        }
        let extent = Extent { chunk, start: at as u32 * part_bytes, len_bytes: part_bytes };
        let stored = match templates.entry(number) {
            Entry::Vacant(vacant) => vacant.insert(entries(id, &packed).at(end, 0)),
            Entry::Occupied(template) => template.into_mut(),
        };
        let mut dir = *stored;
        if number < with_directory {
            let stored = entries(id, &packed);
            let bytes = AlignedBuf::from_bytes(&stored.bytes);
            pool.shared.devices.write(chunk.device, extent.offset() + u64::from(end), &bytes, false)?;
            dir = stored.at(end, 0);
        }
        let count = u64::from(live.count());
        pool.shared.segments.insert(Segment {
            id,
            parts: smallvec![Part { first_slot: 0, extent, directory: Some(dir) }],
            slots: crafted.slots(),
            live_bytes: live.count() * crafted.record_bytes,
            held: smallvec![count * held_bytes(crafted.record_bytes.into())],
            live,
            ..Segment::default()
        })?;
    }
    let data = pool.dataset_by_id(FIRST_DATASET);
    let data = data.ok_or_else(|| crate::Error::corrupt("crafted pool", "it has no dataset"))?;
    // Page p has a record of the first segment of chunk (p * step) mod chunks: each page of another chunk, if step and
    // the number of chunks have no divisor in common.
    let step = (chunks / 2..).find(|step| gcd(*step, chunks) == 1).unwrap_or(1);
    let id_of = |page: u64| 1 + (u128::from(page) * u128::from(step) % u128::from(chunks)) as u64 * parts;
    for first in (0..chunks).step_by(RUN as usize) {
        let pages = first..chunks.min(first + RUN);
        let ptr = |page| Some(Ptr { addr: Addr::new(id_of(page), 0), len_bytes: crafted.record_bytes });
        data.put_pages(&PageRun {
            dataset: FIRST_DATASET,
            object: crafted.object,
            record_size: crafted.page_bytes,
            first,
            shared: false,
            ptrs: pages.map(ptr).collect(),
            bases: Bases::None,
        })?;
        if pool.nodes.unstored_bytes() > 64 << 20 {
            pool.checkpoint(false)?;
        }
    }
    pool.checkpoint(false)?;
    pool.export()?;
    Ok(segments)
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}
