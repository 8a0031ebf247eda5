//! Opens a damaged pool to read what is left of it.
//!
//! Nothing is written. A label, a superblock, the root and the catalogue have to be sound, since nothing can be found
//! without them. All other metadata may be damaged; then whatever only that part tells of is lost. All reads are
//! verified as always, so whatever is found is right.

use std::collections::BTreeSet;

use super::catalogue::Catalogue;
use super::create::OWN;
use super::root::TablePage;
use crate::dataset::LiveDataset;
use crate::dataset::redo::{CatalogueOp, Redo};
use crate::segment::Segments;
use crate::space::Chunk;
use crate::{Error, Ptr, Result};

mod search;
mod unreadable;

pub(super) use search::Search;
pub use unreadable::Unreadable;

/// Damage that opening a pool for rescue met.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RescueReport {
    /// Number of values and pages that the log has changed in places that cannot be read, and of catalogue operations
    /// that could not be done.
    pub skipped: u64,
    /// Number of lists of pages of the segment table that cannot be read.
    pub lists: u64,
    /// Number of lists of dead records that cannot be read: the records in them count as live.
    pub dead: u64,
    /// Number of pages of the segment table that cannot be read; those of unreadable lists are not counted.
    pub pages: u64,
    /// Number of directories of segments that cannot be read.
    pub directories: u64,
    /// Number of segments that were sought on the devices and found, in full or in part.
    pub segments: u64,
    /// Number of records that were found of these segments.
    pub records: u64,
    /// True if the log device is not here, or not all of it can be read, and it may have had what no other device has.
    pub lacks_log_device: bool,
}

/// Parts of the segment table that cannot be read.
pub(super) struct Missing {
    /// True if damage is no reason to fail.
    allowed: bool,
    /// For each unreadable list: number of pages in the lists before it.
    lists: Vec<usize>,
    /// Number of unreadable lists of dead records.
    dead: u64,
    /// Numbers of the unreadable pages.
    pages: BTreeSet<u64>,
}

impl Missing {
    pub(super) fn new(allowed: bool) -> Self {
        Self { allowed, lists: Vec::new(), dead: 0, pages: BTreeSet::new() }
    }

    /// Returns true if damage is no reason to fail.
    pub(super) const fn allowed(&self) -> bool {
        self.allowed
    }

    /// Notes that a list was read, or could not be read.
    pub(super) fn list(&mut self, read: Result<()>, pages_before: usize) -> Result<()> {
        match read {
            Err(error) if self.allowed && error.is_damage() => self.lists.push(pages_before),
            read => return read,
        }
        Ok(())
    }

    /// Notes that a list of dead records was read, or could not be read; returns its records if it was read.
    pub(super) fn dead(&mut self, read: Result<Vec<Ptr>>) -> Result<Option<Vec<Ptr>>> {
        match read {
            Err(error) if self.allowed && error.is_damage() => {
                self.dead += 1;
                Ok(None)
            }
            read => read.map(Some),
        }
    }

    /// Notes that a page could not be read.
    pub(super) fn page(&mut self, error: Error, number: u64) -> Result<()> {
        if !self.allowed || !error.is_damage() {
            return Err(error);
        }
        self.pages.insert(number);
        Ok(())
    }

    /// Returns true if page `number` of the segment table cannot be read.
    fn has(&self, table: &[TablePage], number: u64) -> bool {
        let in_list = |before: &usize| {
            let last = before.checked_sub(1).and_then(|at| table.get(at));
            last.is_none_or(|last| last.page < number)
                && table.get(*before).is_none_or(|next| number < next.page)
        };
        self.pages.contains(&number) || self.lists.iter().any(in_list)
    }

    /// Searches the devices for the segments below `end` whose pages of `table` cannot be read, and for the records of
    /// segments whose directories cannot be read.
    pub(super) fn rescue(
        &self,
        table: &[TablePage],
        mut search: Search<'_>,
        device_bytes: &[u64],
        segments: &Segments,
        end: u64,
    ) -> RescueReport {
        let mut report = RescueReport {
            lists: self.lists.len() as u64,
            dead: self.dead,
            pages: self.pages.len() as u64,
            ..RescueReport::default()
        };
        let mut ids = Vec::new();
        // This cannot fail, since all of the table is in memory.
        drop(segments.for_each(|segment| ids.push(segment.id)));
        for segment in ids.iter().filter_map(|id| segments.get(*id).ok().flatten()) {
            let bad = search.bad_parts(segments, &segment);
            if !bad.is_empty() {
                report.directories += bad.len() as u64;
                search.look_again(segments, &segment, &bad);
            }
        }
        if report.lists + report.pages > 0 {
            let known: BTreeSet<u64> = ids.into_iter().collect();
            let page_ids = segments.page_ids();
            let wanted = |id: u64| id < end && !known.contains(&id) && self.has(table, page_ids.page(id));
            for (device, bytes) in (0..).zip(device_bytes) {
                let (mut index, count) = (0, Chunk::count(*bytes));
                // Holes are skipped: a sparse file may claim any size.
                while let Some(chunk) =
                    search.next_data(Chunk { device, index }).filter(|chunk| chunk.index < count)
                {
                    search.look(chunk, &wanted);
                    index = chunk.index + 1;
                }
            }
        }
        for id in search.ids() {
            report.segments += 1;
            report.records += u64::from(search.settle(segments, id));
        }
        report
    }
}

impl RescueReport {
    /// Returns true if no damage was found, and nothing was missing.
    pub fn is_clean(&self) -> bool {
        *self == Self::default()
    }

    /// Returns true if no damage was found to what the last checkpoint has, and to what of the log there is.
    pub(super) fn is_undamaged(&self) -> bool {
        Self { lacks_log_device: false, ..self.clone() }.is_clean()
    }

    /// Returns the findings, in words.
    pub fn messages(&self) -> Vec<String> {
        let mut told = Vec::new();
        let mut tell = |count: u64, what: &str| {
            if count > 0 {
                told.push(format!("{count} {what} cannot be read"));
            }
        };
        tell(self.lists, "lists of pages of the segment table");
        tell(self.dead, "lists of dead records");
        tell(self.pages, "pages of the segment table");
        tell(self.directories, "directories of segments");
        if self.lists + self.pages + self.directories > 0 {
            let Self { segments, records, .. } = self;
            told.push(format!(
                "without these {records} records of {segments} segments were found on the devices"
            ));
        }
        if self.lacks_log_device {
            told.push(
                "the log device is not here, or cannot be read: the last changes before the crash may be on it alone, although they were acknowledged, and are not to be seen; connect it, and try again".into(),
            );
        }
        if self.skipped > 0 {
            told.push(format!(
                "{} changes of the log since the last checkpoint are of what cannot be read: they are not to be seen",
                self.skipped
            ));
        }
        told
    }

    /// Does what an operation of the log says, as far as the trees can be read.
    pub(super) fn redo(&mut self, catalogue: &mut Catalogue, own: &LiveDataset, redo: &Redo<'_>) {
        let dataset = |id: u64| if id == OWN { Some(own) } else { catalogue.changing(id).ok() };
        self.skipped += match redo {
            Redo::Put(id, key, value) => {
                dataset(*id).is_none_or(|of| !of.rescue_value(*key, Some(value))).into()
            }
            Redo::Delete(id, key) => dataset(*id).is_none_or(|of| !of.rescue_value(*key, None)).into(),
            Redo::Punch { dataset: id, object, from, to } => {
                dataset(*id).is_none_or(|of| !of.rescue_removed(*object, *from, *to)).into()
            }
            Redo::Pages(run) => dataset(run.dataset).map_or(run.ptrs.len() as u64, |of| of.rescue_pages(run)),
            Redo::Catalogue(op) => {
                if let CatalogueOp::Snapshot { dataset: of, .. } = op {
                    // The attempt gives up accounts that cannot be stored, so that they do not hinder the snapshot.
                    let _ = catalogue.changing(*of).map(LiveDataset::settle_usage);
                }
                catalogue.perform(op).is_err().into()
            }
        };
    }
}

impl super::Pool {
    /// Returns the damage that was found at opening, or `None` if the pool was not opened for rescue.
    pub fn rescue(&self) -> Option<&RescueReport> {
        self.rescue.as_ref()
    }
}
