//! Reads the catalogue as the last checkpoint stored it: all of it to open a pool, or properties alone, for callers
//! that need some before the pool is opened.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Pool;
use super::create::FIRST_DATASET;
use super::image::{CatalogueHead, Image};
use super::label::Superblock;
use super::load::read_placed;
use super::members::{Assembled, Without, assemble};
use super::places::check_places;
use super::root::{PlacedRecord, Root};
use crate::device::{Device, Devices};
use crate::record::decode_metadata;
use crate::segment::Segments;
use crate::space::Chunks;
use crate::{Ptr, Result};

/// The catalogue as a checkpoint has stored it.
pub(super) struct StoredCatalogue {
    pub(super) image: Image,
    /// Pointers to the stored pages of the catalogue, and the bytes of these pages.
    pub(super) ptrs: BTreeMap<u64, Vec<Ptr>>,
    pub(super) pages: BTreeMap<u64, Vec<u8>>,
}

impl StoredCatalogue {
    /// Reads the catalogue that `root` names. `created` is the pool's time of creation, for a pool that has no
    /// catalogue yet.
    pub(super) fn read(
        devices: &Devices,
        segments: &Segments,
        chunks: &Chunks,
        root: &Root,
        created: u64,
    ) -> Result<Self> {
        let mut pieces = root.catalogue.iter();
        let mut next = || {
            let piece =
                pieces.next().map(|piece| read_placed(devices, segments, piece, "catalogue of the pool"));
            piece.transpose()
        };
        let (mut pages, mut ptrs) = (BTreeMap::new(), BTreeMap::new());
        if root.catalogue.is_empty() {
            let image = Image::of_a_new_pool(FIRST_DATASET, created);
            return Ok(Self { image, ptrs, pages });
        }
        let head = CatalogueHead::read(&mut next)?;
        let what = "page of the catalogue";
        check_places(chunks, head.pages.iter().flat_map(|(_, records)| records), what)?;
        for (page, records) in &head.pages {
            let mut bytes = Vec::new();
            for record in records {
                bytes.extend(decode_metadata(&read_placed(devices, segments, record, what)?)?);
            }
            ptrs.insert(*page, records.iter().map(PlacedRecord::ptr).collect());
            pages.insert(*page, bytes);
        }
        let image = Image::of(head, &pages)?;
        Ok(Self { image, ptrs, pages })
    }
}

impl Pool {
    /// Returns the properties of the pool's own dataset as of its last checkpoint. Does not read the log after that,
    /// and locks nothing. It is for properties that must be known before the pool is opened, and that a checkpoint
    /// stores whenever they change.
    ///
    /// # Errors
    /// Errors if the devices are not those of a pool, or are damaged. They may look damaged while another process
    /// writes to them.
    pub fn stored_properties(devices: Vec<Arc<dyn Device>>) -> Result<BTreeMap<String, String>> {
        let assembled = assemble(devices, Without::default())?;
        let sizes = assembled.sizes_for_chunks();
        let Assembled { devices, superblock, .. } = assembled;
        let Superblock { addr, root: first, second, .. } = superblock;
        let chunks = Chunks::new(&sizes);
        // Nothing is cached: each record is read once.
        let segments = Segments::new(0);
        let placed = PlacedRecord { addr, first, second };
        let what = "root of the last checkpoint";
        let root = Root::decode(&read_placed(&devices, &segments, &placed, what)?)?;
        check_places(&chunks, [placed].iter().chain(&root.catalogue), what)?;
        let mut stored = StoredCatalogue::read(&devices, &segments, &chunks, &root, 0)?;
        let version = stored.image.versions.remove(&FIRST_DATASET);
        Ok(version.map(|version| version.properties).unwrap_or_default())
    }
}
