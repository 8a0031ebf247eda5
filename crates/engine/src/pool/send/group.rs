//! Commits a frame of a stream to the dataset that is being received (N2).

use std::collections::{BTreeMap, BTreeSet};

use rayon::prelude::*;

use super::wire::{self, EndFrame, StreamEntry, StreamPage};
use super::{PROGRESS, Token};
use crate::dataset::redo::{Bases, CatalogueOp, PageRun, REDO_FIXED_BYTES, REDO_PTR_BYTES, Redo};
use crate::dataset::shared::Shortage;
use crate::dataset::{Claim, Commit, Dataset, LiveDataset, RoomRequest, count};
use crate::limits::RECORD_BYTES_MAX;
use crate::pool::Pool;
use crate::record::{ModelId, Models, decode, with_model};
use crate::wal::{Rec, RecordKind};
use crate::{Error, Key, Ptr, Result};

/// Bytes of space claimed for an entry beside its own bytes: for the directory and the tree.
const ENTRY_CLAIM_BYTES: u64 = 128;
/// Upper bound of the operation that stores the progress, in bytes.
const PROGRESS_BYTES_MAX: usize = 512;

/// Source of a page's record.
#[derive(Clone, Copy)]
enum RecordSource {
    /// The record at this position of the group, which no other page has yet.
    New(usize),
    /// The record at this position of the group, which another page has already.
    Again(usize),
    /// A record that the dataset has already.
    Stored(Ptr),
}

enum StreamChange {
    Value(Key, Option<Vec<u8>>),
    Pages { object: u64, record_size: u32, first: u64, pages: Vec<RecordSource> },
    Punch { object: u64, from: u64, to: u64 },
}

impl StreamChange {
    /// Returns the first key that is changed. First keys ascend within a group.
    fn first(&self) -> Key {
        match self {
            Self::Value(key, _) => *key,
            Self::Pages { object, first, .. } => Key::page(*object, *first),
            Self::Punch { object, from, .. } => Key::page(*object, *from),
        }
    }
}

/// Changes of one frame.
#[derive(Default)]
pub(super) struct FrameChanges {
    records: Vec<Rec>,
    /// Recordsizes of the pages of `records`.
    record_sizes: Vec<u32>,
    changes: Vec<StreamChange>,
    /// Recordsizes of the objects of `changes`.
    sizes: BTreeMap<u64, u32>,
    /// Objects of `changes` that lose all pages that they had before.
    emptied: BTreeSet<u64>,
    ops_bytes: usize,
    claim_bytes: u64,
    /// Last key of this frame, or of an earlier one.
    pub(super) last: Option<Key>,
    /// Totals of the stream so far.
    pub(super) end: EndFrame,
}

impl FrameChanges {
    /// Reads the changes of a frame of entries, to be made to `data`. `models` gives the numbers in this pool of the
    /// sender's models.
    pub(super) fn read(
        payload: &[u8],
        last: Option<Key>,
        end: EndFrame,
        data: &LiveDataset,
        models: &BTreeMap<u32, ModelId>,
    ) -> Result<Self> {
        let mut group = Self { end, ops_bytes: PROGRESS_BYTES_MAX, ..Self::default() };
        let mut last = last;
        wire::for_each(payload, &mut last, &mut |entry| {
            group.end.count(&entry);
            group.push(entry, data, models)
        })?;
        group.last = last;
        Ok(group)
    }

    /// Decodes each record, so that no page is received that nobody can read (N5).
    pub(super) fn check_records(&self, models: &(dyn Models + Sync)) -> Result<()> {
        let check = |(record, size): (&Rec, &u32)| match decode(
            &record.bytes,
            models,
            &mut vec![0; *size as usize],
        ) {
            Err(Error::Corrupt { detail, .. }) => Err(bad(&format!("a record cannot be decoded: {detail}"))),
            checked => checked,
        };
        self.records.par_iter().zip(&self.record_sizes).with_min_len(8).try_for_each(check)
    }

    /// Brings the nodes of the tree into memory that the changes need. A node that cannot be read is an error of this
    /// stream alone; once the log has the changes, it would be one of the pool, and of every opening after that.
    fn load_nodes(&self, data: &LiveDataset) -> Result<()> {
        let mut keys = Vec::new();
        for change in &self.changes {
            match change {
                StreamChange::Value(key, _) => keys.push(*key),
                StreamChange::Punch { object, from, to } => {
                    keys.extend(LiveDataset::keys_of_punch(*object, *from, *to));
                }
                StreamChange::Pages { object, first, pages, .. } => {
                    keys.push(Key::new(*object, Key::USAGE, 0));
                    let mut replaced = vec![None; pages.len()];
                    data.tree.pages(*object, *first, &mut replaced)?;
                    let bases = data.bases_between(*object, *first, first + pages.len() as u64)?;
                    let replaced = replaced.into_iter().flatten().chain(bases.into_values().flatten());
                    data.any_is_shared(&replaced.collect::<Vec<Ptr>>())?;
                }
            }
        }
        data.load_keys(keys)
    }

    fn push(
        &mut self,
        entry: StreamEntry<'_>,
        data: &LiveDataset,
        models: &BTreeMap<u32, ModelId>,
    ) -> Result<()> {
        self.ops_bytes += REDO_FIXED_BYTES;
        self.claim_bytes += ENTRY_CLAIM_BYTES;
        match entry {
            StreamEntry::Put(key, value) => {
                self.ops_bytes += value.len();
                self.claim_bytes += value.len() as u64;
                self.changes.push(StreamChange::Value(key, Some(value.to_vec())));
            }
            StreamEntry::Delete(key) => self.changes.push(StreamChange::Value(key, None)),
            StreamEntry::Punch { object, first, count } => {
                self.changes.push(StreamChange::Punch { object, from: first, to: first + count });
            }
            StreamEntry::Pages { object, record_size, first, pages } => {
                let before = match self.sizes.insert(object, record_size) {
                    Some(before) => before,
                    None => data.record_size(object)?,
                };
                if before != 0 && before != record_size {
                    // An object gets another recordsize only after all its pages were removed, so none of the old pages
                    // stays.
                    self.ops_bytes += REDO_FIXED_BYTES;
                    self.emptied.insert(object);
                    self.changes.push(StreamChange::Punch { object, from: 0, to: u64::MAX });
                }
                // Each page may begin a run of its own, if new and shared records take turns.
                self.ops_bytes += pages.len() * (REDO_FIXED_BYTES + REDO_PTR_BYTES);
                let mut found = Vec::with_capacity(pages.len());
                for page in pages {
                    self.claim_bytes += ENTRY_CLAIM_BYTES;
                    let from = match page {
                        StreamPage::Record(record, needs) => {
                            RecordSource::New(self.record(record, record_size, needs.model, models)?)
                        }
                        StreamPage::Same(of, page) => {
                            self.same((of, page), (object, first, &found), record_size, data)?
                        }
                    };
                    found.push(from);
                }
                self.changes.push(StreamChange::Pages { object, record_size, first, pages: found });
            }
        }
        Ok(())
    }

    fn record(
        &mut self,
        record: &[u8],
        record_size: u32,
        model: Option<u32>,
        models: &BTreeMap<u32, ModelId>,
    ) -> Result<usize> {
        let (bytes, model) = match model {
            None => (record.to_vec(), None),
            Some(sent) => {
                let here =
                    models.get(&sent).ok_or_else(|| bad("a record needs a model that did not come"))?;
                (with_model(record, *here)?, Some(*here))
            }
        };
        if bytes.len() > RECORD_BYTES_MAX {
            return Err(bad("a record is too long"));
        }
        self.claim_bytes += bytes.len() as u64;
        self.records.push(Rec { kind: RecordKind::Page, model, bytes });
        self.record_sizes.push(record_size);
        Ok(self.records.len() - 1)
    }

    /// Returns the source of the record of page `page` of object `of`, which came before: in this frame (or in `run`,
    /// which is being read) or in an earlier one.
    fn same(
        &self,
        (of, page): (u64, u64),
        run: (u64, u64, &[RecordSource]),
        record_size: u32,
        data: &LiveDataset,
    ) -> Result<RecordSource> {
        let within = |object: u64, first: u64, pages: &[RecordSource]| {
            let at = page.checked_sub(first).filter(|_| object == of)?;
            pages.get(usize::try_from(at).ok()?).copied()
        };
        let key = Key::page(of, page);
        let after = self.changes.partition_point(|change| change.first() <= key);
        let in_group = match after.checked_sub(1).and_then(|at| self.changes.get(at)) {
            Some(StreamChange::Pages { object, first, pages, .. }) => within(*object, *first, pages),
            Some(StreamChange::Punch { object, from, to })
                if *object == of && (*from..*to).contains(&page) =>
            {
                return Err(bad("a page is said to be the same as one that is gone"));
            }
            _ => None,
        };
        let found = within(run.0, run.1, run.2).or(in_group);
        let size = match self.sizes.get(&of) {
            Some(size) => *size,
            None => data.record_size(of)?,
        };
        if size != record_size {
            return Err(bad("a page is said to be the same as one of another size"));
        }
        match found {
            Some(RecordSource::New(at) | RecordSource::Again(at)) => Ok(RecordSource::Again(at)),
            Some(RecordSource::Stored(ptr)) => Ok(RecordSource::Stored(ptr)),
            // The tree still has the page, but this group removes it before it could be shared.
            None if self.emptied.contains(&of) => {
                Err(bad("a page is said to be the same as one that is gone"))
            }
            None => {
                if !data.bases_between(of, page, page.saturating_add(1))?.is_empty() {
                    return Err(bad("a page is said to be the same as one that did not come by a stream"));
                }
                let mut ptrs = [None];
                data.tree.pages(of, page, &mut ptrs)?;
                let [ptr] = ptrs;
                ptr.map(RecordSource::Stored)
                    .ok_or_else(|| bad("a page is said to be the same as one that did not come"))
            }
        }
    }
}

fn bad(detail: &str) -> Error {
    Error::corrupt("stream", detail)
}

/// A change with the addresses of its records, as the log has it.
enum LoggedChange {
    Values(Vec<(Key, Option<Vec<u8>>)>),
    Run(PageRun),
    Punch { object: u64, from: u64, to: u64 },
}

/// Appends a change to `placed`. Pages are split into runs that have either new records only or shared ones only.
fn runs(dataset: u64, change: &StreamChange, ptrs: &[Ptr], placed: &mut Vec<LoggedChange>) {
    match change {
        StreamChange::Value(key, value) => match placed.last_mut() {
            Some(LoggedChange::Values(values)) => values.push((*key, value.clone())),
            _ => placed.push(LoggedChange::Values(vec![(*key, value.clone())])),
        },
        StreamChange::Punch { object, from, to } => {
            placed.push(LoggedChange::Punch { object: *object, from: *from, to: *to });
        }
        StreamChange::Pages { object, record_size, first, pages } => {
            for (page, from) in (*first..).zip(pages) {
                let (shared, ptr) = match from {
                    RecordSource::New(at) => (false, ptrs.get(*at).copied()),
                    RecordSource::Again(at) => (true, ptrs.get(*at).copied()),
                    RecordSource::Stored(ptr) => (true, Some(*ptr)),
                };
                match placed.last_mut() {
                    Some(LoggedChange::Run(run))
                        if run.object == *object
                            && run.shared == shared
                            && run.first + run.ptrs.len() as u64 == page =>
                    {
                        run.ptrs.push(ptr);
                    }
                    _ => placed.push(LoggedChange::Run(PageRun {
                        dataset,
                        object: *object,
                        record_size: *record_size,
                        first: page,
                        shared,
                        ptrs: vec![ptr],
                        bases: Bases::None,
                    })),
                }
            }
        }
    }
}

fn encode(dataset: u64, placed: &[LoggedChange], out: &mut Vec<u8>) {
    for one in placed {
        match one {
            LoggedChange::Values(values) => values.iter().for_each(|(key, value)| match value {
                Some(value) => Redo::Put(dataset, *key, value).encode(out),
                None => Redo::Delete(dataset, *key).encode(out),
            }),
            LoggedChange::Run(run) => run.encode(out),
            LoggedChange::Punch { object, from, to } => {
                Redo::Punch { dataset, object: *object, from: *from, to: *to }.encode(out);
            }
        }
    }
}

fn apply(data: &LiveDataset, placed: Vec<LoggedChange>) -> Result<()> {
    for one in placed {
        match one {
            LoggedChange::Values(values) => data.put_values(values)?,
            LoggedChange::Run(run) => data.put_pages(&run).map(drop)?,
            LoggedChange::Punch { object, from, to } => data.remove_pages(object, from, to)?,
        }
    }
    data.bound_usage()
}

/// Number of tries to reserve space for a group before it is refused; between two tries what others have claimed is
/// committed.
const CLAIM_TRIES: u32 = 8;

impl Pool {
    /// Commits a group to the dataset that is being received, together with the progress that it makes.
    pub(super) fn commit_group(&self, data: &LiveDataset, group: &FrameChanges, token: &Token) -> Result<()> {
        self.shared.check_writable()?;
        self.make_tree_room()?;
        let claim = Claim { bytes: group.claim_bytes, logical_bytes: 0 };
        let mut tries = 0;
        loop {
            let frees = self.shared.reapers.frees();
            let Err(shortage) = data.reserve_apart(claim, claim.bytes) else { break };
            let bytes = claim.bytes;
            let (full, space) = (self.shared.is_full(bytes, 0) || tries == CLAIM_TRIES, data.space());
            match shortage {
                Shortage::Room => {
                    let wanted = RoomRequest { claim_bytes: bytes, redo_bytes: 0, edit_bytes: bytes };
                    match self.make_room(wanted) {
                        Err(Error::NoSpace(_)) if self.reclaim(frees)? => self.commit(false)?,
                        made => made?,
                    }
                }
                // Claims of others are upper bounds; a commit replaces them by the bytes that they really take.
                Shortage::Quota(_) if tries == 0 => self.commit(false)?,
                Shortage::Pool if !full => {
                    self.commit(false)?;
                    self.settle()?;
                }
                Shortage::Quota(_) | Shortage::Pool if self.reclaim(frees)? => self.commit(false)?,
                Shortage::Quota(refused) => {
                    return Err(Error::NoSpace(format!("{bytes} bytes are to be received, and {refused}")));
                }
                Shortage::Pool => {
                    let (left, capacity) = (space.available_bytes, space.capacity_bytes);
                    return Err(Error::NoSpace(format!(
                        "{bytes} bytes are to be received and {left} of {capacity} are left; delete something, or snapshots that hold it"
                    )));
                }
            }
            tries += 1;
        }
        let committed = group.load_nodes(data).and_then(|()| self.append_group(data, group, token));
        data.release_apart(claim);
        committed
    }

    fn append_group(&self, data: &LiveDataset, group: &FrameChanges, token: &Token) -> Result<()> {
        let token = token.to_string();
        let progress = CatalogueOp::Property { id: data.id, name: PROGRESS, value: Some(&token) };
        let mut log = self.log.lock();
        self.check_failed()?;
        self.shared.check_writable()?;
        let mut placed = Vec::new();
        let appended = log.writer.append(
            0,
            &group.records,
            group.ops_bytes,
            |ptrs| {
                group.changes.iter().for_each(|change| runs(data.id, change, ptrs, &mut placed));
                let mut ops = Vec::new();
                encode(data.id, &placed, &mut ops);
                progress.encode(&mut ops);
                ops
            },
            false,
        );
        let appended = appended.inspect_err(|error| self.shared.fail(error))?;
        let counters = &self.shared.counters;
        count(&counters.framing_bytes, appended.framing_bytes);
        count(&counters.data_bytes, appended.written_bytes - appended.framing_bytes);
        count(&counters.pages_stored, group.records.len() as u64);
        log.window_bytes += appended.written_bytes;
        let applied = apply(data, placed).and_then(|()| self.catalogue.write().perform(&progress));
        applied.inspect_err(|error| self.shared.fail(error))
    }
}
