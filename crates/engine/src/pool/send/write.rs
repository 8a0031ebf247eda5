//! Sends streams.

use std::collections::{HashMap, HashSet};
use std::io::Write;
use std::sync::Arc;

use super::batch::{BatchRecords, FrameLength, Item, ReadBatch};
use super::wire::{
    EndFrame, FRAME_BYTES, FrameKind, FrameWriter, HeadFrame, SentModel, StreamEntry, StreamPage,
};
use super::{Token, Transfer, VersionPins};
use crate::dataset::{LiveDataset, ModelPin, count};
use crate::device::IoClass;
use crate::limits::SHARE_PAGES_MAX;
use crate::pool::Pool;
use crate::pool::catalogue::Catalogue;
use crate::pool::coded::Current;
use crate::pool::commit::encode_page;
use crate::pool::store::Nodes;
use crate::record::{Encoder, decode, decode_metadata, is_delta, needs};
use crate::tree::NodeStore;
use crate::{Addr, Error, Key, Result};

/// Number of shared records from which on a stream does not remember where it has sent further ones: those are sent for
/// each page.
const SHARED_MAX: usize = 256 << 10;
/// Least number of frames of a stream, unless they would become shorter than [`FRAME_BYTES_MIN`]: so after an
/// interruption at most a sixteenth of a small stream has to come again.
const FRAMES_MIN: usize = 16;
const FRAME_BYTES_MIN: usize = 16 << 10;
/// Number of entries of a tree that are looked up at a time.
const LOOKUP_ENTRIES: usize = 4096;

/// Source of a stream.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// A snapshot.
    Snapshot {
        /// Path of the snapshot, `dataset@name`.
        path: &'a str,
        /// Path of an earlier snapshot that the receiver has: only what changed since then is sent.
        from: Option<&'a str>,
    },
    /// The rest of a stream whose receiver was interrupted.
    Resume(&'a Token),
}

/// A stream that is being sent.
struct Sending<'a> {
    pool: &'a Pool,
    new: Arc<LiveDataset>,
    old: Option<Arc<LiveDataset>>,
    head: HeadFrame,
    dataset: u64,
    /// Records that several pages share, with the object and page for which each was sent, if it was.
    shared: HashMap<Addr, Option<(u64, u64)>>,
    models: HashSet<u32>,
    end: EndFrame,
    _pins: VersionPins<'a>,
}

impl Pool {
    /// Writes a stream of a snapshot to `out`; `watch` is called with the figures after each frame.
    ///
    /// Takes memory for some frames of about a MiB. Reads in proportion to what it sends.
    ///
    /// # Errors
    /// [`Error::NotFound`] for the snapshots; [`Error::Invalid`] if `from` does not come before `path`; errors of
    /// reading and of `out`.
    pub fn send(
        &self,
        source: &Source<'_>,
        out: &mut dyn Write,
        watch: &mut dyn FnMut(&Transfer),
    ) -> Result<Transfer> {
        let mut sending = self.plan_send(source)?;
        if sending.new.tree.stored_root().is_none() && self.shared.check_writable().is_ok() {
            // Without a checkpoint the nodes would stay in memory for as long as the snapshot is sent.
            self.checkpoint(false)?;
        }
        sending.note_shared()?;
        sending.write(out, watch)
    }

    /// Returns the approximate stored bytes of the pages that [`Pool::send`] would send; for a resumed stream, those of
    /// all of it.
    ///
    /// # Errors
    /// As [`Pool::send`], without errors of reading pages and of `out`.
    pub fn send_size(&self, source: &Source<'_>) -> Result<u64> {
        Ok(self.plan_send(source)?.head.expected_bytes)
    }

    fn plan_send(&self, source: &Source<'_>) -> Result<Sending<'_>> {
        let mut catalogue = self.catalogue.write();
        let (to, from, after) = match source {
            Source::Snapshot { path, from } => {
                let to = catalogue.snapshot_at(path)?;
                (to, from.map(|from| catalogue.snapshot_at(from)).transpose()?, None)
            }
            Source::Resume(token) => {
                let (to, from) = catalogue.by_token(self, token)?;
                (to, from, token.after)
            }
        };
        check_lineage(&catalogue, to, from)?;
        let head = HeadFrame {
            to: catalogue.origin_of(self, to)?,
            from: from.map(|from| catalogue.origin_of(self, from)).transpose()?,
            after,
            name: catalogue.get(to)?.name.clone(),
            expected_bytes: 0,
        };
        let new = Arc::clone(&catalogue.get(to)?.data);
        let old =
            from.map(|from| catalogue.get(from).map(|version| Arc::clone(&version.data))).transpose()?;
        let dataset = catalogue.get(to)?.snapshot_of().unwrap_or_default();
        let pins = VersionPins::new(self, &mut catalogue, std::iter::once(to).chain(from).collect());
        drop(catalogue);
        let mut sending = Sending {
            pool: self,
            new,
            old,
            head,
            dataset,
            shared: HashMap::new(),
            models: HashSet::new(),
            end: EndFrame::default(),
            _pins: pins,
        };
        // This may read dead lists. Others may read the catalogue meanwhile.
        let expected_bytes = expected_bytes(&self.catalogue.read(), to, from);
        sending.head.expected_bytes = expected_bytes?;
        Ok(sending)
    }
}

/// Returns an error if `from` does not come before the snapshot.
fn check_lineage(catalogue: &Catalogue, to: u64, from: Option<u64>) -> Result<()> {
    match from {
        Some(from) if !catalogue.lineage(to).iter().any(|ancestor| ancestor.id == from) => {
            let (from, to) = (catalogue.path(from), catalogue.path(to));
            Err(Error::Invalid(format!("'{from}' is no snapshot that '{to}' comes after")))
        }
        _ => Ok(()),
    }
}

/// Returns the approximate stored bytes of a snapshot, or of its changes since `from`, which comes before it.
fn expected_bytes(catalogue: &Catalogue, to: u64, from: Option<u64>) -> Result<u64> {
    let (page_bytes, fresh_bytes) = {
        let accounting = catalogue.get(to)?.data.accounting.lock();
        (accounting.page_bytes, accounting.fresh_bytes)
    };
    let Some(from) = from else { return Ok(page_bytes) };
    match catalogue.kept(to, from) {
        Ok(kept) => Ok(fresh_bytes.saturating_add(kept)),
        // Dead lists that are damaged do not matter to what is sent.
        Err(error) if error.is_damage() => Ok(page_bytes),
        Err(error) => Err(error),
    }
}

impl Sending<'_> {
    /// Notes which records several pages share.
    fn note_shared(&mut self) -> Result<()> {
        let (mut from, to) = (Key::new(0, Key::SHARED, 0), Key::new(0, Key::SHARED + 1, 0));
        loop {
            let found = self.new.tree.range(&from, &to, LOOKUP_ENTRIES)?;
            let Some((last, _)) = found.last() else { return Ok(()) };
            from = Key::new(0, Key::SHARED, last.offset.saturating_add(1));
            self.shared.extend(found.iter().filter_map(|(key, _)| Some((Addr::from_raw(key.offset)?, None))));
            if found.len() < LOOKUP_ENTRIES || self.shared.len() > SHARED_MAX {
                return Ok(());
            }
        }
    }

    fn write(&mut self, out: &mut dyn Write, watch: &mut dyn FnMut(&Transfer)) -> Result<Transfer> {
        let mut frames = FrameWriter::new(out);
        frames.frame(FrameKind::Head, &self.head.encode())?;
        watch(&self.so_far(&frames));
        let old = self.old.as_ref().map(|old| &old.tree);
        let store: Arc<dyn NodeStore> = Arc::new(Nodes::of_class(&self.pool.shared, IoClass::AsyncRead));
        let differences = self.new.tree.differences_by(&store, old, self.head.after);
        let frame_bytes = usize::try_from(self.head.expected_bytes).unwrap_or(usize::MAX) / FRAMES_MIN;
        let frame_bytes = frame_bytes.clamp(FRAME_BYTES_MIN, FRAME_BYTES);
        let mut batch = ReadBatch::default();
        for difference in differences {
            batch.push(difference?)?;
            if batch.is_full(frame_bytes) {
                self.write_batch(&batch, &mut frames, watch)?;
                batch = ReadBatch::default();
            }
        }
        self.write_batch(&batch, &mut frames, watch)?;
        frames.frame(FrameKind::End, &self.end.encode())?;
        frames.flush()?;
        let done = self.so_far(&frames);
        watch(&done);
        Ok(done)
    }

    fn so_far(&self, frames: &FrameWriter<'_>) -> Transfer {
        let EndFrame { values, pages, record_bytes } = self.end;
        let expected_bytes = self.head.expected_bytes;
        Transfer { stream_bytes: frames.bytes, values, pages, record_bytes, expected_bytes }
    }

    /// Writes a batch as one frame, or as several if its deltas become longer than a frame in full.
    fn write_batch(
        &mut self,
        batch: &ReadBatch,
        frames: &mut FrameWriter<'_>,
        watch: &mut dyn FnMut(&Transfer),
    ) -> Result<()> {
        if batch.items.is_empty() {
            return Ok(());
        }
        // Models that the records need are looked up when the records are sent.
        let _reading = self.pool.shared.models.reading();
        let sames = self.sames(batch);
        let mut records = self.read(batch, &sames)?;
        let mut at = 0;
        while at < batch.items.len() {
            let end = self.make_in_full(batch, at, &mut records)?;
            let mut frame = FrameWriter::begin(batch.bytes + (batch.bytes >> 3));
            while let Some(rest) = batch.items.get(at..end).filter(|rest| !rest.is_empty()) {
                let (entry, taken) = self.entry(rest, &records, &sames, at, frames)?;
                self.end.count(&entry);
                entry.encode(&mut frame);
                at += taken;
            }
            count(&self.pool.shared.counters.streamed_bytes, frame.len() as u64);
            frames.finish(FrameKind::Entries, frame)?;
            watch(&self.so_far(frames));
        }
        Ok(())
    }

    /// Returns the pages whose record was sent before, by position in the batch, with the page for which it was sent.
    fn sames(&mut self, batch: &ReadBatch) -> HashMap<usize, (u64, u64)> {
        let mut found = HashMap::new();
        if self.shared.is_empty() {
            return found;
        }
        for (at, item) in batch.items.iter().enumerate() {
            if let Item::Page(object, page, ptr) = item
                && let Some(sent) = self.shared.get_mut(&ptr.addr)
            {
                match sent {
                    Some(sent) => drop(found.insert(at, *sent)),
                    None => *sent = Some((*object, *page)),
                }
            }
        }
        found
    }

    /// Reads the records of a batch, by position.
    fn read(&self, batch: &ReadBatch, sames: &HashMap<usize, (u64, u64)>) -> Result<BatchRecords> {
        let wanted: Vec<(usize, Addr)> = batch
            .items
            .iter()
            .enumerate()
            .filter(|(at, _)| !sames.contains_key(at))
            .filter_map(
                |(at, item)| if let Item::Page(_, _, ptr) = item { Some((at, ptr.addr)) } else { None },
            )
            .collect();
        let addrs: Vec<Addr> = wanted.iter().map(|(_, addr)| *addr).collect();
        let mut records = BatchRecords::new(batch);
        let shared = &self.pool.shared;
        let devices = shared.devices.of_class(IoClass::AsyncRead);
        let read = shared.segments.read(&devices, &addrs, &mut |at, record| {
            if let Some((position, _)) = wanted.get(at) {
                records.put(*position, record);
            }
            Ok(())
        });
        match read {
            Ok(()) => {}
            // A segment was moved meanwhile, or is damaged: reading its records one by one tells.
            Err(Error::Corrupt { .. }) => {
                for (position, addr) in &wanted {
                    if records.get(*position).is_none() {
                        records.put(*position, &shared.read_record_by(&devices, *addr)?);
                    }
                }
            }
            Err(error) => return Err(error),
        }
        Ok(records)
    }

    /// Replaces deltas from position `at` on by full records, for as many items as go into a frame; returns the
    /// position after these items.
    fn make_in_full(&self, batch: &ReadBatch, at: usize, records: &mut BatchRecords) -> Result<usize> {
        records.begin_frame();
        let mut length = FrameLength::default();
        for (position, item) in batch.items.iter().enumerate().skip(at) {
            if length.is_full() {
                return Ok(position);
            }
            if let Item::Page(object, ..) = item
                && let Some(delta) = records.get(position).filter(|record| is_delta(record))
            {
                let (full, pin) = self.in_full(*object, delta)?;
                records.put_in_full(position, &full);
                records.pins.extend(pin);
            }
            length.add(item, records.get(position));
        }
        Ok(batch.items.len())
    }

    /// Makes the full record of a page whose record is a delta, since its bases are not sent.
    fn in_full(&self, object: u64, delta: &[u8]) -> Result<(Vec<u8>, Option<ModelPin>)> {
        let shared = &self.pool.shared;
        let mut page = vec![0; self.new.record_size(object)? as usize];
        decode(delta, &**shared, &mut page)?;
        let compression = self.new.compression_of(object);
        let (mut models, mut pinned) = (Current::new(), None);
        if compression.model_level().is_some()
            && let Some((pin, model)) = self.pool.pinned_model(self.dataset, object)
        {
            models.insert(object, (pin.id(), model));
            pinned = Some(pin);
        }
        let Some((record, model)) = encode_page(Encoder::new(), object, &page, compression, &models) else {
            return Err(Error::corrupt("record", "it is a delta, and its page is all zeros"));
        };
        Ok((record, pinned.filter(|_| model.is_some())))
    }

    /// Returns the entry that the first items of `rest` make, and the number of these items. `at` is the position of
    /// the first.
    fn entry<'r>(
        &mut self,
        rest: &'r [Item],
        records: &'r BatchRecords,
        sames: &HashMap<usize, (u64, u64)>,
        at: usize,
        frames: &mut FrameWriter<'_>,
    ) -> Result<(StreamEntry<'r>, usize)> {
        let Some(head) = rest.first() else {
            return Err(Error::Invalid("an empty batch was sent: a bug".into()));
        };
        Ok(match head {
            Item::Put(key, value) => (StreamEntry::Put(*key, value), 1),
            Item::Delete(key) => (StreamEntry::Delete(*key), 1),
            Item::Punch(object, first) => {
                let next = |(n, item): (u64, &Item)| matches!(item, Item::Punch(of, page) if of == object && page.checked_sub(n) == Some(*first));
                let count = (0..SHARE_PAGES_MAX).zip(rest).take_while(|pair| next(*pair)).count();
                (StreamEntry::Punch { object: *object, first: *first, count: count as u64 }, count)
            }
            Item::Page(object, first, _) => {
                let (object, first) = (*object, *first);
                let record_size = self.new.record_size(object)?;
                let mut pages = Vec::new();
                for (n, item) in (0..).zip(rest) {
                    if !matches!(item, Item::Page(of, page, _) if *of == object && page.checked_sub(n) == Some(first))
                    {
                        break;
                    }
                    let position = at + pages.len();
                    let page = match (sames.get(&position), records.get(position)) {
                        (Some((object, page)), _) => StreamPage::Same(*object, *page),
                        (None, Some(record)) => self.page(record, record_size, frames)?,
                        (None, None) => return Err(Error::corrupt("record", "it was not read")),
                    };
                    pages.push(page);
                }
                let taken = pages.len();
                (StreamEntry::Pages { object, record_size, first, pages }, taken)
            }
        })
    }

    /// Returns the entry's page for a record; first sends the model that the record needs.
    fn page<'r>(
        &mut self,
        record: &'r [u8],
        record_size: u32,
        frames: &mut FrameWriter<'_>,
    ) -> Result<StreamPage<'r>> {
        let needs = needs(record, record_size)?;
        if let Some(id) = needs.model
            && self.models.insert(id)
        {
            frames.frame(FrameKind::Model, &self.model(id)?.encode())?;
        }
        Ok(StreamPage::Record(record, needs))
    }

    fn model(&self, id: u32) -> Result<SentModel> {
        let shared = &self.pool.shared;
        let devices = shared.devices.of_class(IoClass::AsyncRead);
        let entry = shared.models.get(id);
        let entry =
            entry.ok_or_else(|| Error::corrupt(format!("model {id}"), "the pool does not have it"))?;
        // A clone's objects are coded by the models of those that they were cloned from.
        let is_of_it =
            entry.dataset == self.dataset || shared.models.current(self.dataset, entry.object) == Some(id);
        Ok(SentModel {
            id,
            object: if is_of_it { entry.object } else { 0 },
            generation: entry.generation,
            sampled_pages: entry.sampled_pages,
            object_pages: entry.object_pages,
            record_bytes: entry.record_bytes,
            bytes: decode_metadata(&shared.read_record_by(&devices, entry.ptr.addr)?)?,
        })
    }
}
