//! Collects entries of a tree that are sent together, and their records.

use std::ops::Range;

use super::wire::{FRAME_BYTES, FRAME_ENTRIES_MAX, FRAME_VALUES_MAX};
use crate::dataset::ModelPin;
use crate::tree::{Difference, Value};
use crate::{Error, Key, Ptr, Result};

/// Approximate bytes that a page takes in a frame beside its record.
const PAGE_FIELDS_BYTES: usize = 4;
/// Approximate bytes that a value takes in a frame beside itself.
const VALUE_FIELDS_BYTES: usize = 24;

/// An entry that goes into a frame.
pub(super) enum Item {
    Put(Key, Box<[u8]>),
    Delete(Key),
    Page(u64, u64, Ptr),
    Punch(u64, u64),
}

/// Entries whose records are read at a time: as they are stored, they fill a frame.
#[derive(Default)]
pub(super) struct ReadBatch {
    pub(super) items: Vec<Item>,
    pub(super) bytes: usize,
    value_bytes: usize,
}

impl ReadBatch {
    pub(super) fn push(&mut self, Difference { key, before, after }: Difference) -> Result<()> {
        if key.kind >= Key::ENGINE_KINDS && key.kind != Key::PAGE {
            // Usage and references are not sent: they follow from the pages.
            return Ok(());
        }
        let is_page = key.kind == Key::PAGE;
        self.items.push(match (after, before) {
            (Some(Value::Page(ptr)), _) if is_page => {
                self.bytes += ptr.len_bytes as usize + PAGE_FIELDS_BYTES;
                Item::Page(key.object, key.offset, ptr)
            }
            (Some(Value::Bytes(value)), _) if !is_page => {
                self.bytes += value.len() + VALUE_FIELDS_BYTES;
                self.value_bytes += value.len();
                Item::Put(key, value)
            }
            (None, _) if is_page => Item::Punch(key.object, key.offset),
            (None, _) => Item::Delete(key),
            _ => {
                return Err(Error::corrupt(
                    "tree of a snapshot",
                    format!("{key:?} has a value of another kind"),
                ));
            }
        });
        Ok(())
    }

    pub(super) fn is_full(&self, frame_bytes: usize) -> bool {
        self.bytes >= frame_bytes
            || self.items.len() >= FRAME_ENTRIES_MAX
            || self.value_bytes >= FRAME_VALUES_MAX
    }
}

/// The records of a batch, by position. They lie in one piece of memory, since there are tens of thousands per second.
pub(super) struct BatchRecords {
    bytes: Vec<u8>,
    /// Range of each record in `bytes`; empty if there is none.
    places: Vec<Range<usize>>,
    /// Bytes of the records that are as they are stored; they come first.
    stored_bytes: usize,
    /// Pins of the models by which records were coded just now: the receiver is told number and contents of each.
    pub(super) pins: Vec<ModelPin>,
}

impl BatchRecords {
    pub(super) fn new(batch: &ReadBatch) -> Self {
        Self {
            bytes: Vec::with_capacity(batch.bytes),
            places: vec![0..0; batch.items.len()],
            stored_bytes: 0,
            pins: Vec::new(),
        }
    }

    fn set(&mut self, position: usize, record: &[u8]) {
        if let Some(place) = self.places.get_mut(position) {
            *place = self.bytes.len()..self.bytes.len() + record.len();
            self.bytes.extend_from_slice(record);
        }
    }

    /// Sets the record at `position` as it is stored. All such calls come before the first frame.
    pub(super) fn put(&mut self, position: usize, record: &[u8]) {
        self.set(position, record);
        self.stored_bytes = self.bytes.len();
    }

    pub(super) fn get(&self, position: usize) -> Option<&[u8]> {
        let place = self.places.get(position)?.clone();
        self.bytes.get(place).filter(|record| !record.is_empty())
    }

    /// Begins a frame: forgets the full records that were made for the frame before.
    pub(super) fn begin_frame(&mut self) {
        self.bytes.truncate(self.stored_bytes);
    }

    /// Sets the full record at `position`, whose stored record is a delta. It stays until the next frame begins.
    pub(super) fn put_in_full(&mut self, position: usize, record: &[u8]) {
        self.set(position, record);
    }
}

/// Length of a frame, counted while items are added to it.
#[derive(Default)]
pub(super) struct FrameLength(usize);

impl FrameLength {
    pub(super) fn is_full(&self) -> bool {
        self.0 >= FRAME_BYTES
    }

    /// Counts an item and its record, if it has one.
    pub(super) fn add(&mut self, item: &Item, record: Option<&[u8]>) {
        self.0 += match item {
            Item::Put(_, value) => value.len() + VALUE_FIELDS_BYTES,
            Item::Page(..) => record.map_or(0, <[u8]>::len) + PAGE_FIELDS_BYTES,
            Item::Delete(_) | Item::Punch(..) => 0,
        };
    }
}
