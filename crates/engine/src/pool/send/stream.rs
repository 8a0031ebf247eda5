//! Takes streams apart, for callers that keep the parts elsewhere, and puts streams together from such parts.
//!
//! A stream that is read is not trusted, as by [`Pool::receive`](crate::pool::Pool::receive); a stream that is written
//! is one that `receive` takes.

use std::io::{Read, Write};

use super::token::{Origin, Token};
use super::wire::{
    self, EndFrame, EntriesFrame, FRAME_BYTES, FRAME_ENTRIES_MAX, FRAME_VALUES_MAX, FrameKind, FrameReader,
    FrameWriter, HeadFrame, SentModel, StreamEntry,
};
use crate::record::{needs, with_model};
use crate::wire::{put_bytes, put_varint};
use crate::{Error, Key, Result};

/// Head of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamHead {
    /// The snapshot that is sent.
    pub to: Origin,
    /// The snapshot since which changes come; `None` if all of the snapshot comes.
    pub from: Option<Origin>,
    /// Key after which the entries of this stream begin; earlier ones came before.
    pub after: Option<Key>,
    /// Name of the snapshot.
    pub name: String,
    /// Approximate stored bytes that the stream will bring.
    pub expected_bytes: u64,
}

/// Totals of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamEnd {
    /// Number of values that were set and deleted.
    pub values: u64,
    /// Number of pages that were set.
    pub pages: u64,
    /// Bytes of the records of these pages.
    pub record_bytes: u64,
}

/// A part of a stream.
#[derive(Clone, Debug)]
pub enum StreamItem {
    /// A model, before the records that name it by `id`.
    Model {
        /// Number of the model in records of this stream.
        id: u32,
        /// The model and its origin, without its number: equal bytes are equal models.
        body: Vec<u8>,
    },
    /// Entries of the tree, for [`StreamReader::entries`].
    Entries(EntriesFrame),
}

/// Takes a stream apart.
pub struct StreamReader<'a> {
    frames: FrameReader<'a>,
    head: StreamHead,
    last: Option<Key>,
    end: EndFrame,
}

impl<'a> StreamReader<'a> {
    /// Reads the head from `input`.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for input that is no stream; errors of `input`.
    pub fn new(input: &'a mut dyn Read) -> Result<Self> {
        let mut frames = FrameReader::new(input);
        let (FrameKind::Head, payload) = frames.next()? else {
            return Err(Error::corrupt("stream", "it does not begin with its head"));
        };
        let HeadFrame { to, from, after, name, expected_bytes } = HeadFrame::decode(payload)?;
        let head = StreamHead { to, from, after, name, expected_bytes };
        Ok(Self { frames, head, last: after, end: EndFrame::default() })
    }

    /// Returns the head.
    pub fn head(&self) -> &StreamHead {
        &self.head
    }

    /// Returns the totals of what has come so far.
    pub fn so_far(&self) -> StreamEnd {
        let EndFrame { values, pages, record_bytes } = self.end;
        StreamEnd { values, pages, record_bytes }
    }

    /// Reads the next part. Returns `None` at the end, once its totals were verified.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for a stream that is damaged or ends too early; errors of the input.
    pub fn item(&mut self) -> Result<Option<StreamItem>> {
        let (kind, payload) = self.frames.next()?;
        Ok(match kind {
            FrameKind::Head => return Err(Error::corrupt("stream", "it has two heads")),
            FrameKind::Model => {
                let model = SentModel::decode(payload)?;
                Some(StreamItem::Model { id: model.id, body: SentModel { id: 0, ..model }.encode() })
            }
            FrameKind::Entries => {
                let payload_bytes = payload.len();
                Some(StreamItem::Entries(self.frames.take(payload_bytes)))
            }
            FrameKind::End => {
                if EndFrame::decode(payload)? != self.end {
                    return Err(Error::corrupt("stream", "it says at its end that it had something else"));
                }
                None
            }
        })
    }

    /// Gives entries back that are no longer needed: the next part is read into their memory.
    pub fn give_back(&mut self, entries: EntriesFrame) {
        self.frames.give_back(entries);
    }

    /// Visits the entries of a part, in the order of keys.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for entries that cannot be; errors of `visit`.
    pub fn entries<'e>(
        &mut self,
        payload: &'e [u8],
        visit: &mut dyn FnMut(StreamEntry<'e>) -> Result<()>,
    ) -> Result<()> {
        let end = &mut self.end;
        wire::for_each(payload, &mut self.last, &mut |entry| {
            end.count(&entry);
            visit(entry)
        })
    }
}

/// Consecutive pages of an object that become one entry.
struct StreamRun {
    object: u64,
    record_size: u32,
    first: u64,
    count: u64,
    /// The pages, encoded.
    pages: Vec<u8>,
}

/// Puts a stream together. Keys have to ascend.
pub struct StreamWriter<'a> {
    frames: FrameWriter<'a>,
    frame: Vec<u8>,
    run: Option<StreamRun>,
    entries: usize,
    value_bytes: usize,
    last: Option<Key>,
    end: EndFrame,
}

impl<'a> StreamWriter<'a> {
    /// Writes the head to `out`.
    ///
    /// # Errors
    /// Errors of `out`.
    pub fn new(out: &'a mut dyn Write, head: &StreamHead) -> Result<Self> {
        let mut frames = FrameWriter::new(out);
        let StreamHead { to, from, after, name, expected_bytes } = head.clone();
        frames.frame(FrameKind::Head, &HeadFrame { to, from, after, name, expected_bytes }.encode())?;
        Ok(Self {
            frames,
            frame: FrameWriter::begin(FRAME_BYTES),
            run: None,
            entries: 0,
            value_bytes: 0,
            last: after,
            end: EndFrame::default(),
        })
    }

    /// Sends a model, which records name as `id` from now on; `body` is as [`StreamItem::Model`] has it.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if `body` is no model; errors of writing.
    pub fn model(&mut self, id: u32, body: &[u8]) -> Result<()> {
        let model = SentModel { id, ..SentModel::decode(body)? };
        self.frames.frame(FrameKind::Model, &model.encode())
    }

    /// Sets a value.
    ///
    /// # Errors
    /// [`Error::Invalid`] if `key` does not come after the last one; errors of writing.
    pub fn put(&mut self, key: Key, value: &[u8]) -> Result<()> {
        self.value_bytes += value.len();
        self.single(key, key, &StreamEntry::Put(key, value))
    }

    /// Deletes a value.
    ///
    /// # Errors
    /// As [`StreamWriter::put`].
    pub fn delete(&mut self, key: Key) -> Result<()> {
        self.single(key, key, &StreamEntry::Delete(key))
    }

    /// Removes page number `page` of `object`.
    ///
    /// # Errors
    /// As [`StreamWriter::put`].
    pub fn punch(&mut self, object: u64, page: u64) -> Result<()> {
        let key = Key::page(object, page);
        self.single(key, key, &StreamEntry::Punch { object, first: page, count: 1 })
    }

    /// Sets page number `page` of `object` to `record`. `model` is the number with which the record's model was sent,
    /// if it needs one.
    ///
    /// # Errors [`Error::Corrupt`] if no page of `record_size` bytes can have the record, if it is a delta, or if it
    /// needs a model and none is given, or the reverse; as [`StreamWriter::put`].
    pub fn page(
        &mut self,
        object: u64,
        record_size: u32,
        page: u64,
        record: &[u8],
        model: Option<u32>,
    ) -> Result<()> {
        let needs = needs(record, record_size)?;
        if needs.bases || needs.model.is_some() != model.is_some() {
            return Err(Error::corrupt("record", "it does not need what was kept with it"));
        }
        let renamed = match model {
            Some(id) if needs.model != Some(id) => Some(with_model(record, id)?),
            _ => None,
        };
        let record = renamed.as_deref().unwrap_or(record);
        self.end.record_bytes += record.len() as u64;
        self.push((object, record_size, page), |out| put_bytes(out, record))
    }

    /// Gives page number `page` of `object` the record of page number `of.1` of object `of.0`, which was set before.
    ///
    /// # Errors
    /// As [`StreamWriter::put`].
    pub fn same(&mut self, object: u64, record_size: u32, page: u64, of: (u64, u64)) -> Result<()> {
        self.push((object, record_size, page), |out| {
            for value in [0, of.0, of.1] {
                put_varint(out, value);
            }
        })
    }

    /// Ends the stream, and returns its totals.
    ///
    /// # Errors
    /// Errors of writing.
    pub fn end(mut self) -> Result<StreamEnd> {
        self.flush_frame()?;
        self.frames.frame(FrameKind::End, &self.end.encode())?;
        self.frames.flush()?;
        let EndFrame { values, pages, record_bytes } = self.end;
        Ok(StreamEnd { values, pages, record_bytes })
    }

    fn ascend(&mut self, first: Key, last: Key) -> Result<()> {
        if self.last.replace(last).is_some_and(|before| before >= first) {
            return Err(Error::Invalid(format!(
                "entries of a stream have to ascend, and {first:?} does not"
            )));
        }
        Ok(())
    }

    fn single(&mut self, first: Key, last: Key, entry: &StreamEntry<'_>) -> Result<()> {
        self.ascend(first, last)?;
        self.end_run();
        entry.encode(&mut self.frame);
        self.end.count(entry);
        self.entries += 1;
        self.flush_if_full()
    }

    fn push(
        &mut self,
        (object, record_size, page): (u64, u32, u64),
        encode: impl FnOnce(&mut Vec<u8>),
    ) -> Result<()> {
        let key = Key::page(object, page);
        self.ascend(key, key)?;
        let follows = self.run.as_ref().is_some_and(|run| {
            run.object == object
                && run.record_size == record_size
                && run.first.checked_add(run.count) == Some(page)
        });
        if !follows {
            self.end_run();
        }
        let run = self.run.get_or_insert_with(|| StreamRun {
            object,
            record_size,
            first: page,
            count: 0,
            pages: Vec::new(),
        });
        run.count += 1;
        encode(&mut run.pages);
        self.end.pages += 1;
        self.entries += 1;
        self.flush_if_full()
    }

    /// Appends the run to the frame as an entry, as [`StreamEntry::encode`] writes one.
    fn end_run(&mut self) {
        let Some(run) = self.run.take() else { return };
        self.frame.push(3);
        for value in [run.object, run.record_size.into(), run.first, run.count] {
            put_varint(&mut self.frame, value);
        }
        self.frame.extend_from_slice(&run.pages);
    }

    fn flush_if_full(&mut self) -> Result<()> {
        let bytes = self.frame.len() + self.run.as_ref().map_or(0, |run| run.pages.len());
        match bytes >= FRAME_BYTES
            || self.entries >= FRAME_ENTRIES_MAX
            || self.value_bytes >= FRAME_VALUES_MAX
        {
            true => self.flush_frame(),
            false => Ok(()),
        }
    }

    fn flush_frame(&mut self) -> Result<()> {
        self.end_run();
        if self.entries == 0 {
            return Ok(());
        }
        let frame = std::mem::replace(&mut self.frame, FrameWriter::begin(FRAME_BYTES));
        (self.entries, self.value_bytes) = (0, 0);
        self.frames.finish(FrameKind::Entries, frame)
    }
}

impl Token {
    /// Returns the last key that came.
    pub fn after(&self) -> Option<Key> {
        self.after
    }
}
