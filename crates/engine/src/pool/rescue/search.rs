//! Finds segments whose entries in the segment table, or whose directories, cannot be read, by the batches and
//! directories on the devices.
//!
//! A batch of the log names its segment, and so does a directory; both have the checksums of the segment's records, and
//! a checksum depends on the record's address. Only entries whose records match their checksums count, so that no
//! record is taken for another one. A record of an address is the same wherever it lies, with one exception: after a
//! crash, or after a loss that was accepted, the log goes on before batches that do not count, and numbers of segments
//! are used again. All batches of a segment are of one opening of the pool, so
//! - of the batches of a segment only those of one opening are used: the one that tells of the latest flush, and none
//!   if several openings do;
//! - if directories of moved records are found, too, batches have to agree with them.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::Addr;
use crate::device::Devices;
use crate::limits::{BLOCK_BYTES, CHUNK_BYTES};
use crate::segment::{
    DirEntry, DirRef, Directory, LiveMap, Part, Segment, Segments, find_directory, next_directory,
    record_checksum,
};
use crate::space::{Chunk, Extent};
use crate::wal::batch::Verified;
use crate::wal::read_or_zeros;

/// Records of a segment that lie together.
struct PartCandidate {
    extent: Extent,
    /// The directory on the device, if it has all of these records.
    dir: Option<DirRef>,
    /// Entries of these records, if there is no directory.
    entries: Vec<DirEntry>,
    /// Slots whose records are sound; with a directory that the table names, all slots in it.
    sound: LiveMap,
    /// Number of slots that have an entry.
    known: u32,
    /// For a part of the log: number below which all batches had been flushed.
    flushed: Option<u64>,
}

/// Searches the devices for segments.
pub(in crate::pool) struct Search<'a> {
    devices: &'a Devices,
    /// Low bytes of the GUID of the pool's log, which batches carry.
    pool: u64,
    found: BTreeMap<u64, Vec<PartCandidate>>,
}

/// Batches of a segment in one chunk, of one opening of the pool.
#[derive(Default)]
struct BatchRun {
    entries: BTreeMap<u32, DirEntry>,
    flushed: u64,
    /// A directory that has all of these entries.
    dir: Option<DirRef>,
}

impl BatchRun {
    /// Adds the entries of a directory, unless they contradict this run. `whole` is the directory, if all of it is
    /// sound.
    fn join(&mut self, entries: &[DirEntry], whole: Option<DirRef>) {
        let known = |entry: &DirEntry| self.entries.get(&entry.slot).is_none_or(|own| own == entry);
        if entries.iter().all(known) {
            self.entries.extend(entries.iter().map(|entry| (entry.slot, *entry)));
            self.dir = whole.filter(|_| self.entries.len() == entries.len());
        }
    }
}

impl<'a> Search<'a> {
    pub(in crate::pool) fn new(devices: &'a Devices, pool: u64) -> Self {
        Self { devices, pool, found: BTreeMap::new() }
    }

    /// Returns the numbers of the segments that were found.
    pub(in crate::pool) fn ids(&self) -> Vec<u64> {
        self.found.keys().copied().collect()
    }

    /// Returns the next chunk of the device, from this one on, that may hold anything.
    pub(in crate::pool) fn next_data(&self, chunk: Chunk) -> Option<Chunk> {
        let data = self.devices.data_from(chunk.device, chunk.offset())?;
        Some(Chunk { index: Chunk::at(chunk.device, data).index.max(chunk.index), ..chunk })
    }

    /// Searches a chunk for segments that are wanted.
    pub(in crate::pool) fn look(&mut self, chunk: Chunk, wanted: &dyn Fn(u64) -> bool) {
        let bytes = self.read(chunk);
        let mut runs: BTreeMap<u64, BTreeMap<[u8; 6], BatchRun>> = BTreeMap::new();
        // Directories are not sought within batches, since these hold what users write.
        let mut between: Vec<Range<usize>> = Vec::new();
        let (mut at, mut from) = (0, 0);
        while at < bytes.len() {
            let batch = Verified::framed(bytes.get(at..).unwrap_or_default());
            let Some(batch) = batch.filter(|batch| batch.header().pool.get() == self.pool) else {
                at += BLOCK_BYTES;
                continue;
            };
            let header = batch.header();
            if wanted(header.segment.get()) {
                let of = runs.entry(header.segment.get()).or_default();
                let run = of.entry(header.salt).or_default();
                run.flushed = run.flushed.max(header.flushed.get());
                run.entries.extend(batch.entries(at as u32).map(|(entry, _)| (entry.slot, entry)));
            }
            between.push(from..at);
            at += batch.padded_bytes() as usize;
            from = at;
        }
        between.push(from..bytes.len());
        for range in between {
            self.look_for_directories(chunk, &bytes, range, wanted, &mut runs);
        }
        let extent = Extent { chunk, start: 0, len_bytes: CHUNK_BYTES as u32 };
        for (id, run) in runs.into_iter().flat_map(|(id, of)| of.into_values().map(move |run| (id, run))) {
            let entries = run.entries.into_values().collect();
            self.add(id, extent, run.dir, entries, Some(run.flushed), &bytes);
        }
    }

    fn look_for_directories(
        &mut self,
        chunk: Chunk,
        bytes: &[u8],
        range: Range<usize>,
        wanted: &dyn Fn(u64) -> bool,
        runs: &mut BTreeMap<u64, BTreeMap<[u8; 6], BatchRun>>,
    ) {
        let Range { mut start, end } = range;
        while let Some(next) = bytes.get(start..end).and_then(next_directory) {
            let at = start + next;
            start = at + 1;
            let found = bytes.get(at..).and_then(find_directory).filter(|found| wanted(found.segment));
            let Some(found) = found else { continue };
            let (Some(first), Some(last)) = (found.entries.first(), found.entries.last()) else { continue };
            if first.start > 0 {
                // The directory is of a segment of the log. It joins the newest batches of that segment, or stands for
                // them if they are lost.
                let of = runs.entry(found.segment).or_default();
                if of.is_empty() {
                    of.insert([0; 6], BatchRun::default());
                }
                if let Some(run) = of.values_mut().max_by_key(|run| run.flushed) {
                    let whole = found.whole.map(|dir| DirRef { start: at as u32, ..dir });
                    run.join(&found.entries, whole);
                }
                continue;
            }
            // Moved records lie without gaps before their directory. The second copy of a directory, at the chunk's
            // end, has no sound record before it.
            let len = last.start + last.len_bytes;
            let Some(begin) = at.checked_sub(len as usize) else { continue };
            let extent = Extent { chunk, start: begin as u32, len_bytes: len + found.len_bytes };
            let dir = found.whole.map(|dir| DirRef { start: len, ..dir });
            self.add(found.segment, extent, dir, found.entries, None, bytes);
        }
    }

    fn add(
        &mut self,
        id: u64,
        extent: Extent,
        dir: Option<DirRef>,
        entries: Vec<DirEntry>,
        flushed: Option<u64>,
        chunk: &[u8],
    ) {
        let mut sound = LiveMap::default();
        for entry in &entries {
            let from = (extent.start + entry.start) as usize;
            let record = chunk.get(from..from + entry.len_bytes as usize);
            let addr = Addr::new(id, entry.slot);
            if record.is_some_and(|record| record_checksum(addr, record) == entry.checksum) {
                sound.set(entry.slot);
            }
        }
        let known = entries.len() as u32;
        let entries = if dir.is_some() { Vec::new() } else { entries };
        let candidate = PartCandidate { extent, dir, entries, sound, known, flushed };
        self.found.entry(id).or_default().push(candidate);
    }

    /// Returns the bytes of a chunk, with zeros for bytes that cannot be read.
    fn read(&self, chunk: Chunk) -> Vec<u8> {
        let mut bytes = vec![0; CHUNK_BYTES as usize];
        read_or_zeros(self.devices, (chunk.device, 0), chunk.offset(), &mut bytes);
        bytes
    }

    /// Adds a part of `segment` whose directory can be read.
    fn keep(&mut self, segments: &Segments, segment: &Segment, part: &Part) {
        let Some(dir) = part.directory else { return };
        let directory = segments.read_directory(self.devices, segment.id, part.extent, dir);
        let mut sound = LiveMap::default();
        for entry in directory.iter().flat_map(Directory::entries) {
            sound.set(entry.slot);
        }
        let known = sound.count();
        let candidate = PartCandidate {
            extent: part.extent,
            dir: Some(dir),
            entries: Vec::new(),
            sound,
            known,
            flushed: None,
        };
        self.found.entry(segment.id).or_default().push(candidate);
    }

    /// Returns the parts of a segment whose directories cannot be read.
    pub(in crate::pool) fn bad_parts(&self, segments: &Segments, segment: &Segment) -> Vec<Part> {
        let is_bad = |part: &Part| {
            let read = |dir| segments.read_directory(self.devices, segment.id, part.extent, dir);
            part.directory.is_some_and(|dir| read(dir).is_err())
        };
        segment.parts.iter().filter(|part| is_bad(part)).copied().collect()
    }

    /// Searches for the records of the `bad` parts of `segment`, whose directories cannot be read, at the places that
    /// the table names.
    pub(in crate::pool) fn look_again(&mut self, segments: &Segments, segment: &Segment, bad: &[Part]) {
        for part in &segment.parts {
            if !bad.contains(part) {
                self.keep(segments, segment, part);
            }
        }
        for part in bad {
            self.look(part.extent.chunk, &|id| id == segment.id);
        }
        // Anything else that was found there is a remnant of earlier times.
        let parts = &segment.parts;
        let of = self.found.entry(segment.id).or_default();
        of.retain(|candidate| {
            let (chunk, start) = (candidate.extent.chunk, candidate.extent.start);
            parts.iter().any(|part| part.extent.chunk == chunk && part.extent.start == start)
        });
    }

    /// Enters a segment into the table as it was found. Returns the number of its records that were found.
    pub(in crate::pool) fn settle(&mut self, segments: &Segments, id: u64) -> u32 {
        let mut candidates = self.found.remove(&id).unwrap_or_default();
        only_newest_log(&mut candidates);
        // Later states come first: the later a segment was moved, the fewer records survive, and before that it was in
        // the log.
        candidates.sort_by_key(|candidate| (candidate.flushed.is_some(), candidate.known));
        let mut taken: BTreeMap<u32, usize> = BTreeMap::new();
        let several = candidates.len() > 1;
        let mut entries: BTreeMap<u32, DirEntry> = BTreeMap::new();
        for (number, candidate) in candidates.iter().enumerate() {
            if several {
                let own = self.entries(segments, id, candidate);
                if number > 0 && candidate.flushed.is_some() && !agree(&entries, &own) {
                    continue;
                }
                for entry in own {
                    entries.entry(entry.slot).or_insert(entry);
                }
            }
            for slot in candidate.sound.iter() {
                taken.entry(slot).or_insert(number);
            }
        }
        self.put(segments, id, &candidates, &taken);
        taken.len() as u32
    }

    fn entries(&self, segments: &Segments, id: u64, candidate: &PartCandidate) -> Vec<DirEntry> {
        let Some(dir) = candidate.dir else { return candidate.entries.clone() };
        let directory = segments.read_directory(self.devices, id, candidate.extent, dir);
        directory.map_or_else(|_| Vec::new(), |directory| directory.entries().to_vec())
    }

    fn put(&self, segments: &Segments, id: u64, candidates: &[PartCandidate], taken: &BTreeMap<u32, usize>) {
        let mut parts: Vec<Part> = Vec::new();
        let mut open = Directory::default();
        let mut last = None;
        for (slot, number) in taken {
            let Some(candidate) = candidates.get(*number) else { continue };
            if last != Some(number) {
                let first_slot = if parts.is_empty() { 0 } else { *slot };
                parts.push(Part { first_slot, extent: candidate.extent, directory: candidate.dir });
                last = Some(number);
            }
            if candidate.dir.is_none()
                && let Ok(at) = candidate.entries.binary_search_by_key(slot, |entry| entry.slot)
            {
                candidate.entries.get(at).into_iter().for_each(|entry| open.push(*entry));
            }
        }
        let Some(end) = taken.keys().next_back().map(|slot| slot + 1) else { return };
        let mut segment = segments.get(id).ok().flatten().unwrap_or(Segment { id, ..Segment::default() });
        segment.slots = segment.slots.max(end);
        segment.parts = parts.into_iter().collect();
        if let Err(error) = segments.insert_rescued(segment, open) {
            tracing::warn!(%error, segment = id, "what was found of a segment is not used");
        }
    }
}

/// Of the candidates in the log, keeps only the one that tells of the latest flush, and none if several do.
fn only_newest_log(candidates: &mut Vec<PartCandidate>) {
    let newest = candidates.iter().filter_map(|candidate| candidate.flushed).max();
    let several = candidates.iter().filter(|candidate| candidate.flushed == newest).count() > 1;
    candidates.retain(|candidate| candidate.flushed.is_none() || (candidate.flushed == newest && !several));
}

/// Returns true if some slots have an entry in both, and all of these entries are of the same records.
fn agree(entries: &BTreeMap<u32, DirEntry>, others: &[DirEntry]) -> bool {
    let mut both = 0;
    others.iter().filter_map(|other| Some((other, entries.get(&other.slot)?))).all(|(other, entry)| {
        both += 1;
        (other.len_bytes, other.checksum) == (entry.len_bytes, entry.checksum)
    }) && both > 0
}
