//! Knows where the stored pages of the segment table lie, and reads them while the pool is open.

use std::collections::BTreeMap;

use parking_lot::{Mutex, RwLock};

use super::load::read_placed;
use super::root::{PlacedRecord, TablePage};
use crate::device::Devices;
use crate::record::decode_metadata;
use crate::segment::{Segment, Segments, TablePages, decode_page};
use crate::{Error, Ptr, Result};

/// The stored pages of the segment table.
pub(super) struct StoredPages {
    devices: Devices,
    places: RwLock<BTreeMap<u64, PlacedRecord>>,
    /// Places of the pages that the checkpoint under way has stored.
    next: Mutex<Option<BTreeMap<u64, PlacedRecord>>>,
}

fn by_page(table: impl IntoIterator<Item = TablePage>) -> BTreeMap<u64, PlacedRecord> {
    table.into_iter().map(|page| (page.page, page.placed)).collect()
}

impl StoredPages {
    pub(super) fn new(devices: Devices, table: &[TablePage]) -> Self {
        let places = RwLock::new(by_page(table.iter().copied()));
        Self { devices, places, next: Mutex::default() }
    }

    /// Notes the pages that the checkpoint under way has stored.
    pub(super) fn note(&self, table: Vec<TablePage>) {
        *self.next.lock() = Some(by_page(table));
    }

    /// Puts the noted places into force, when their checkpoint counts.
    pub(super) fn counts(&self) {
        if let Some(next) = self.next.lock().take() {
            *self.places.write() = next;
        }
    }

    /// Returns the memory of the places, in bytes, with the pointers that checkpoints keep of the same pages.
    pub(super) fn memory_bytes(&self) -> u64 {
        let entry_bytes = size_of::<(u64, PlacedRecord)>() + size_of::<(u64, Ptr)>();
        // Nodes of maps are about two thirds full.
        (self.places.read().len() * entry_bytes) as u64 * 3 / 2
    }

    /// Returns the place of a page.
    pub(super) fn place(&self, page: u64) -> Option<PlacedRecord> {
        self.places.read().get(&page).copied()
    }
}

impl TablePages for StoredPages {
    fn read(&self, segments: &Segments, page: u64) -> Result<Vec<Segment>> {
        let what = "page of the segment table";
        let mut place = self.place(page);
        loop {
            let placed = place.ok_or_else(|| Error::corrupt(what, "it is not stored"))?;
            let read = read_placed(&self.devices, segments, &placed, what)
                .and_then(|record| decode_page(segments.page_ids(), page, &decode_metadata(&record)?));
            // A checkpoint may have stored the page at another place meanwhile, and its old place may have been given
            // out.
            let now = self.place(page);
            if read.is_ok() || now == place {
                return read;
            }
            place = now;
        }
    }
}
