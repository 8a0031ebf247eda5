//! Sending.

use std::collections::{HashMap, HashSet};
use std::io::Write;
use std::sync::Arc;

use super::batch::{Batch, FrameLength, Item, Records};
use super::wire::{End, Entry, FRAME_BYTES, FrameWriter, Head, Kind, Page, SentModel};
use super::{Pins, Token, Transfer};
use crate::dataset::{LiveDataset, ModelPin};
use crate::limits::SHARE_PAGES_MAX;
use crate::pool::Pool;
use crate::pool::catalogue::Catalogue;
use crate::pool::commit::encode_page;
use crate::pool::models::Current;
use crate::record::{decode, decode_metadata, is_delta, needs};
use crate::{Addr, Error, Key, Result};

/// Records with several pages of which a stream remembers where it has sent them. Others are sent for each page.
const SHARED_MAX: usize = 256 << 10;
/// A stream has so many frames at least, as far as these do not become shorter than [`FRAME_BYTES_MIN`]: so much of a small one
/// has to come again at most, too, when it was interrupted.
const FRAMES_MIN: usize = 16;
const FRAME_BYTES_MIN: usize = 16 << 10;
/// Entries of a tree that are looked up at a time.
const LOOKUP_ENTRIES: usize = 4096;

/// What is to be sent.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// A snapshot.
    Snapshot {
        /// Its path, `dataset@name`.
        path: &'a str,
        /// The snapshot before it that the receiver has, by its path: only what changed since is sent.
        from: Option<&'a str>,
    },
    /// What a receiver that was interrupted lacks.
    Resume(&'a Token),
}

/// A stream in the making.
struct Sending<'a> {
    pool: &'a Pool,
    new: Arc<LiveDataset>,
    old: Option<Arc<LiveDataset>>,
    head: Head,
    dataset: u64,
    /// Where pages with shared records were sent.
    shared: HashMap<Addr, Option<(u64, u64)>>,
    models: HashSet<u32>,
    end: End,
    _pins: Pins<'a>,
}

impl Pool {
    /// Writes a stream of a snapshot to `out`; `watch` sees after each frame how far it is.
    ///
    /// Takes memory for some frames of about a MiB. What is read is proportional to what is sent.
    ///
    /// # Errors
    /// [`Error::NotFound`] for the snapshots; [`Error::Invalid`] if `from` does not come before `path`; of reading, and of `out`.
    pub fn send(
        &self,
        source: &Source<'_>,
        out: &mut dyn Write,
        watch: &mut dyn FnMut(&Transfer),
    ) -> Result<Transfer> {
        let mut sending = self.plan_send(source)?;
        if sending.new.tree.stored_root().is_none() && self.shared.check_writable().is_ok() {
            // Or else nodes would be kept in memory for as long as it is sent.
            self.checkpoint(false)?;
        }
        sending.note_shared()?;
        sending.write(out, watch)
    }

    /// Stored bytes of the pages that [`Pool::send`] would send, about; of what is resumed, as if it were not.
    ///
    /// # Errors
    /// As [`Pool::send`], for what is told before anything is read.
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
        let expected_bytes = expected_bytes(&catalogue, to, from)?;
        let head = Head {
            to: catalogue.origin_of(self, to)?,
            from: from.map(|from| catalogue.origin_of(self, from)).transpose()?,
            after,
            name: catalogue.get(to)?.name.clone(),
            expected_bytes,
        };
        let new = Arc::clone(&catalogue.get(to)?.data);
        let old =
            from.map(|from| catalogue.get(from).map(|version| Arc::clone(&version.data))).transpose()?;
        let dataset = catalogue.get(to)?.snapshot_of().unwrap_or_default();
        let pins = Pins::new(self, &mut catalogue, std::iter::once(to).chain(from).collect());
        Ok(Sending {
            pool: self,
            new,
            old,
            head,
            dataset,
            shared: HashMap::new(),
            models: HashSet::new(),
            end: End::default(),
            _pins: pins,
        })
    }
}

/// Stored bytes of a snapshot, or of what came since `from`, about. An error if that does not come before it.
fn expected_bytes(catalogue: &Catalogue, to: u64, from: Option<u64>) -> Result<u64> {
    let Some(from) = from else { return Ok(catalogue.get(to)?.data.accounts().page_bytes) };
    let lineage = catalogue.lineage(to);
    let Some(at) = lineage.iter().position(|holder| holder.id == from) else {
        let (from, to) = (catalogue.path(from), catalogue.path(to));
        return Err(Error::Invalid(format!("'{from}' is no snapshot that '{to}' comes after")));
    };
    let since = lineage.get(at + 1..).unwrap_or_default().iter().map(|holder| holder.id).chain([to]);
    since.map(|id| Ok(catalogue.get(id)?.data.accounts().fresh_bytes)).sum()
}

impl Sending<'_> {
    /// Finds out which records several pages have.
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
        frames.frame(Kind::Head, &self.head.encode())?;
        watch(&self.so_far(&frames));
        let old = self.old.as_ref().map(|old| &old.tree);
        let differences = self.new.tree.differences(old, self.head.after);
        let frame_bytes = usize::try_from(self.head.expected_bytes).unwrap_or(usize::MAX) / FRAMES_MIN;
        let frame_bytes = frame_bytes.clamp(FRAME_BYTES_MIN, FRAME_BYTES);
        let mut batch = Batch::default();
        for difference in differences {
            batch.push(difference?)?;
            if batch.is_full(frame_bytes) {
                self.write_batch(&batch, &mut frames, watch)?;
                batch = Batch::default();
            }
        }
        self.write_batch(&batch, &mut frames, watch)?;
        frames.frame(Kind::End, &self.end.encode())?;
        frames.flush()?;
        let done = self.so_far(&frames);
        watch(&done);
        Ok(done)
    }

    fn so_far(&self, frames: &FrameWriter<'_>) -> Transfer {
        let End { values, pages, record_bytes } = self.end;
        let expected_bytes = self.head.expected_bytes;
        Transfer { stream_bytes: frames.bytes, values, pages, record_bytes, expected_bytes }
    }

    /// Writes a batch: a frame, or some, where deltas become longer than a frame.
    fn write_batch(
        &mut self,
        batch: &Batch,
        frames: &mut FrameWriter<'_>,
        watch: &mut dyn FnMut(&Transfer),
    ) -> Result<()> {
        if batch.items.is_empty() {
            return Ok(());
        }
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
            frames.finish(Kind::Entries, frame)?;
            watch(&self.so_far(frames));
        }
        Ok(())
    }

    /// By position, the pages whose record was sent before, and where.
    fn sames(&mut self, batch: &Batch) -> HashMap<usize, (u64, u64)> {
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

    /// The records of a batch, by position.
    fn read(&self, batch: &Batch, sames: &HashMap<usize, (u64, u64)>) -> Result<Records> {
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
        let mut records = Records::new(batch);
        let shared = &self.pool.shared;
        let read = shared.segments.read(&shared.devices, &addrs, &mut |at, record| {
            if let Some((position, _)) = wanted.get(at) {
                records.put(*position, record);
            }
            Ok(())
        });
        match read {
            Ok(()) => {}
            // A segment was folded meanwhile; or it is damaged, and then the next attempts tell.
            Err(Error::Corrupt { .. }) => {
                for (position, addr) in &wanted {
                    if records.get(*position).is_none() {
                        records.put(*position, &shared.read_record(*addr)?);
                    }
                }
            }
            Err(error) => return Err(error),
        }
        Ok(records)
    }

    /// Makes the deltas among the records from `at` on full records, as many as go into a frame: the position at which that ends.
    fn make_in_full(&self, batch: &Batch, at: usize, records: &mut Records) -> Result<usize> {
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

    /// The record of a page whose record is a delta, made anew: bases do not travel.
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
        let Some((record, model)) = encode_page(object, &page, compression, &models) else {
            return Err(Error::corrupt("record", "it is a delta, and its page is all zeros"));
        };
        Ok((record, pinned.filter(|_| model.is_some())))
    }

    /// The entry that the first items of `rest` make, and how many these are. `at` is their position.
    fn entry<'r>(
        &mut self,
        rest: &'r [Item],
        records: &'r Records,
        sames: &HashMap<usize, (u64, u64)>,
        at: usize,
        frames: &mut FrameWriter<'_>,
    ) -> Result<(Entry<'r>, usize)> {
        let Some(head) = rest.first() else {
            return Err(Error::Invalid("an empty batch was sent: a bug".into()));
        };
        Ok(match head {
            Item::Put(key, value) => (Entry::Put(*key, value), 1),
            Item::Delete(key) => (Entry::Delete(*key), 1),
            Item::Gone(object, first) => {
                let next = |(n, item): (u64, &Item)| matches!(item, Item::Gone(of, page) if of == object && page.checked_sub(n) == Some(*first));
                let count = (0..SHARE_PAGES_MAX).zip(rest).take_while(|pair| next(*pair)).count();
                (Entry::Gone { object: *object, first: *first, count: count as u64 }, count)
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
                        (Some((object, page)), _) => Page::Same(*object, *page),
                        (None, Some(record)) => self.page(record, record_size, frames)?,
                        (None, None) => return Err(Error::corrupt("record", "it was not read")),
                    };
                    pages.push(page);
                }
                let taken = pages.len();
                (Entry::Pages { object, record_size, first, pages }, taken)
            }
        })
    }

    /// A page's record; what it needs is sent before.
    fn page<'r>(
        &mut self,
        record: &'r [u8],
        record_size: u32,
        frames: &mut FrameWriter<'_>,
    ) -> Result<Page<'r>> {
        let needs = needs(record, record_size)?;
        if let Some(id) = needs.model
            && self.models.insert(id)
        {
            frames.frame(Kind::Model, &self.model(id)?.encode())?;
        }
        Ok(Page::Record(record, needs))
    }

    fn model(&self, id: u32) -> Result<SentModel> {
        let shared = &self.pool.shared;
        let entry = shared.models.get(id);
        let entry =
            entry.ok_or_else(|| Error::corrupt(format!("model {id}"), "the pool does not have it"))?;
        Ok(SentModel {
            id,
            object: if entry.dataset == self.dataset { entry.object } else { 0 },
            generation: entry.generation,
            sampled_pages: entry.sampled_pages,
            object_pages: entry.object_pages,
            record_bytes: entry.record_bytes,
            bytes: decode_metadata(&shared.read_record(entry.ptr.addr)?)?,
        })
    }
}
