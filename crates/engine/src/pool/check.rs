//! Checks a pool that is not open: reads everything, changes nothing.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;

use super::catalogue::{Catalogue, Unreferenced};
use super::members::{Without, assemble};
use super::store::Nodes;
use super::{OpenOptions, Pool};
use crate::dataset::{DeadBlocks, LiveDataset, ModelEntry, RecordRole, references, space_of};
use crate::device::Device;
use crate::limits::{BASES_MAX, RECORDSIZE_MAX};
use crate::record::{Models, bases_of, decode, decode_metadata, is_delta, logical_len, model_of};
use crate::segment::{Directory, LiveMap};
use crate::tree::{Value, Visit, reap};
use crate::{Addr, Error, Key, Ptr, Result};

mod accounting;
mod report;

pub use report::CheckReport;

/// Number of records that are read at a time.
const STEP_RECORDS: usize = 256;

/// Progress of a check.
#[derive(Clone, Copy, Debug, Default)]
pub struct Progress {
    /// Stored bytes read and verified.
    pub done_bytes: u64,
    /// Stored bytes of all live records.
    pub total_bytes: u64,
}

/// Opens the pool read-only and checks everything: log, trees, segment table, every record.
/// Returns the pool too, so that layers above can check what they keep in it.
pub fn check(
    paths: &[PathBuf],
    cache_bytes: u64,
    progress: &mut dyn FnMut(Progress),
) -> Result<(std::sync::Arc<Pool>, CheckReport)> {
    check_on(Pool::open_devices(paths, &rescue_options(cache_bytes))?, cache_bytes, progress)
}

fn rescue_options(cache_bytes: u64) -> OpenOptions {
    OpenOptions { cache_bytes, ..OpenOptions::for_rescue() }
}

/// Does what [`check`] does, on devices that are already open.
///
/// # Errors
/// As [`check`].
pub fn check_on(
    devices: Vec<std::sync::Arc<dyn Device>>,
    cache_bytes: u64,
    progress: &mut dyn FnMut(Progress),
) -> Result<(std::sync::Arc<Pool>, CheckReport)> {
    // Otherwise a stale device would be reported as damage everywhere.
    if let Err(error @ Error::NotCurrent { .. }) = assemble(devices.clone(), Without::default()) {
        return Err(error);
    }
    let pool = Pool::open_on(devices, &rescue_options(cache_bytes))?;
    let mut report = pool.check_open(progress);
    if let Some(damage) = pool.replayed().damage {
        report.error(format!(
            "the log is damaged at byte {} of {}: what was acknowledged behind it is lost, and was not checked",
            damage.offset,
            pool.group_path(damage.device).display()
        ));
    }
    let faults = crate::sums::faults();
    if faults > 0 {
        report.error(format!(
            "{faults} accounts would have fallen below zero while the log was replayed and checked"
        ));
    }
    report.tell_repeats();
    Ok((pool, report))
}

/// A set of records.
#[derive(Clone, Debug, Default)]
pub(super) struct RecordSet(HashMap<u64, LiveMap>);

impl RecordSet {
    /// Adds a record. Returns false if it was there.
    fn add(&mut self, addr: Addr) -> bool {
        self.0.entry(addr.segment()).or_default().set(addr.slot())
    }

    pub(super) fn has(&self, addr: Addr) -> bool {
        self.0.get(&addr.segment()).is_some_and(|slots| slots.get(addr.slot()))
    }
}

/// Records that the tree of a version refers to, each once.
#[derive(Default)]
struct Content {
    nodes: RecordSet,
    pages: RecordSet,
    all: Vec<(RecordRole, Ptr)>,
}

impl Content {
    fn has(&self, role: RecordRole, addr: Addr) -> bool {
        match role {
            RecordRole::Page => self.pages.has(addr),
            RecordRole::Node => self.nodes.has(addr),
        }
    }

    fn bytes(&self, role: RecordRole) -> u64 {
        self.all.iter().filter(|(of, _)| *of == role).map(|(_, ptr)| space_of(ptr)).sum()
    }
}

/// A check under way.
#[derive(Default)]
struct CheckWalk {
    report: CheckReport,
    /// Records that anything refers to.
    reached: RecordSet,
    at: Progress,
    /// Number of entries of dead lists in the pool's own tree.
    own_entries: u64,
    /// Number of entries of dead lists that were found by way of the versions and unreferenced records that they belong
    /// to.
    dead_entries: u64,
    /// Records to be read.
    pending: Vec<Ptr>,
    /// Both copies of metadata, to be read.
    copies: Vec<Addr>,
}

impl Pool {
    /// Checks a pool that is open and quiet: no change may be accepted meanwhile.
    pub fn check_open(&self, progress: &mut dyn FnMut(Progress)) -> CheckReport {
        let table: Vec<Ptr> = {
            let state = self.maintenance.lock();
            state.page_ptrs.values().chain(state.catalogue_ptrs.values().flatten()).copied().collect()
        };
        let catalogue = self.catalogue.read();
        let mut walk = CheckWalk::default();
        walk.at.total_bytes = self.shared.segments.used_bytes();
        self.tell_rescue(&mut walk.report);
        self.check_versions(&catalogue, &mut walk, progress);
        self.check_own(&mut walk);
        for item in catalogue.all_unreferenced() {
            self.check_unreferenced(item, &catalogue.parts.blocks, &mut walk);
        }
        if walk.own_entries != walk.dead_entries && !walk.report.incomplete {
            let (there, met) = (walk.own_entries, walk.dead_entries);
            walk.report.error(format!(
                "the pool's own tree has {there} entries of dead lists, and {met} belong to datasets and snapshots"
            ));
        }
        self.verify(&mut walk);
        for ptr in table {
            self.reach_twice(ptr, &mut walk);
        }
        self.verify_copies(&mut walk);
        let mut tell = |_, error: &Error, _| walk.report.error(error.to_string());
        self.verify_placed(false, &mut tell);
        self.verify_labels(false, &mut tell);
        let CheckWalk { mut report, reached, at, .. } = walk;
        if !report.incomplete {
            self.compare(&reached, &mut report);
            self.check_uses(&mut report);
            self.check_lengths(&mut report);
        }
        progress(at);
        report
    }

    /// Reports the damage that was met when the pool was opened.
    fn tell_rescue(&self, report: &mut CheckReport) {
        let Some(rescue) = self.rescue() else { return };
        report.incomplete = !rescue.is_undamaged();
        rescue.messages().into_iter().for_each(|message| report.error(message));
    }

    /// Notes that a record is referred to. Returns false if it was reached before.
    fn reach(&self, ptr: Ptr, walk: &mut CheckWalk) -> bool {
        if !walk.report.incomplete {
            match self.shared.segments.is_live(ptr.addr) {
                Ok(true) => {}
                Ok(false) => {
                    walk.report.error(format!("record {} is referred to and accounted as dead", ptr.addr));
                }
                Err(error) => walk.report.error(error.to_string()),
            }
        }
        if self.shared.segments.has_copy(ptr.addr) {
            walk.reached.add(ptr.addr.copy());
        }
        walk.reached.add(ptr.addr)
    }

    /// As [`Pool::reach`], for a record that is kept twice. Both copies are read if it was not reached before.
    fn reach_twice(&self, ptr: Ptr, walk: &mut CheckWalk) -> bool {
        let fresh = self.reach(ptr, walk);
        if fresh {
            let copy = ptr.addr.copy();
            if self.shared.segments.has_copy(ptr.addr) {
                walk.copies.extend([ptr.addr, copy]);
            } else {
                walk.report.error(format!("record {} has no second copy", ptr.addr));
            }
            if walk.copies.len() >= STEP_RECORDS {
                self.verify_copies(walk);
            }
        }
        fresh
    }

    /// Reads both copies of records that are kept twice.
    fn verify_copies(&self, walk: &mut CheckWalk) {
        let (segments, devices) = (&self.shared.segments, &self.shared.devices);
        let copies = std::mem::take(&mut walk.copies);
        if segments.read(devices, &copies, &mut |_, _| Ok(())).is_ok() {
            return;
        }
        for addr in copies {
            if let Err(error) = segments.read(devices, &[addr], &mut |_, _| Ok(())) {
                walk.report.error(error.to_string());
            }
        }
    }

    /// Walks all versions, each after the snapshot before it.
    fn check_versions(
        &self,
        catalogue: &Catalogue,
        walk: &mut CheckWalk,
        progress: &mut dyn FnMut(Progress),
    ) {
        let mut order: Vec<u64> = catalogue.versions.keys().copied().collect();
        order.sort_by_key(|id| (catalogue.as_ancestor(*id).is_none(), *id));
        let mut waiting: HashMap<u64, usize> = HashMap::new();
        catalogue.versions.values().for_each(|version| *waiting.entry(version.prev).or_default() += 1);
        let none = Content::default();
        let mut contents: HashMap<u64, Content> = HashMap::new();
        for id in order {
            let Ok(version) = catalogue.get(id) else { continue };
            let content = self.check_tree(&version.data, walk, progress);
            let before = contents.get(&version.prev).unwrap_or(&none);
            if !walk.report.incomplete
                && let Err(error) = accounting::check(catalogue, id, before, &content, walk)
            {
                walk.report.error(format!("dead list of '{}': {error}", catalogue.path(id)));
            }
            walk.report.versions += 1;
            if let Some(left) = waiting.get_mut(&version.prev) {
                *left -= 1;
                if *left == 0 {
                    contents.remove(&version.prev);
                }
            }
            if waiting.contains_key(&id) {
                contents.insert(id, content);
            }
        }
    }

    /// Walks the tree of a version. Records that were not reached before are read.
    fn check_tree(
        &self,
        data: &LiveDataset,
        walk: &mut CheckWalk,
        progress: &mut dyn FnMut(Progress),
    ) -> Content {
        let mut content = Content::default();
        // References beyond the first, and the tree's own counts of references.
        let (mut again, mut counted) = (BTreeMap::<Addr, u64>::new(), BTreeMap::new());
        let mut bases: BTreeMap<(u64, u64), Vec<Addr>> = BTreeMap::new();
        let walked = data.tree.walk(&mut |visit| {
            match visit {
                Visit::Node { ptr, .. } => {
                    if !content.nodes.add(ptr.addr) {
                        walk.report.error(format!("node {} is referred to twice", ptr.addr));
                    }
                    content.all.push((RecordRole::Node, ptr));
                    if self.reach_twice(ptr, walk) {
                        walk.report.nodes += 1;
                        walk.at.done_bytes += u64::from(ptr.len_bytes);
                    }
                }
                Visit::Damaged { error, .. } => walk.report.lost_node(&error),
                Visit::Entry(key, Value::Page(ptr)) => {
                    walk.report.pages += u64::from(key.kind == Key::PAGE);
                    if key.kind == Key::BASE {
                        let page = key.offset / BASES_MAX as u64;
                        bases.entry((key.object, page)).or_default().push(ptr.addr);
                    }
                    if !content.pages.add(ptr.addr) {
                        *again.entry(ptr.addr).or_default() += 1;
                        return Ok(());
                    }
                    content.all.push((RecordRole::Page, ptr));
                    if self.reach(ptr, walk) {
                        walk.pending.push(ptr);
                    }
                    if walk.pending.len() >= STEP_RECORDS {
                        self.verify(walk);
                        progress(walk.at);
                    }
                }
                Visit::Entry(key, value) if key.kind == Key::SHARED => {
                    counted.extend(Addr::from_raw(key.offset).zip(references(&value).ok()));
                }
                Visit::Entry(..) => {}
            }
            Ok(())
        });
        if let Err(error) = walked {
            walk.report.error(error.to_string());
        }
        if !walk.report.incomplete {
            compare_references(&again, &counted, &mut walk.report);
        }
        if walk.report.incomplete {
            bases.clear();
        }
        for ((object, page), bases) in bases {
            if let Err(error) = self.check_bases(data, object, page, &bases) {
                walk.report.error(format!("page {page} of object {object}: {error}"));
            }
        }
        content
    }

    /// Checks that the tree has the bases that the delta of a page names (B1).
    fn check_bases(&self, data: &LiveDataset, object: u64, page: u64, bases: &[Addr]) -> Result<()> {
        let mut top = [None];
        data.tree.pages(object, page, &mut top)?;
        let [top] = top;
        let top = top.ok_or_else(|| Error::corrupt("tree", "it has bases of a page that is a hole"))?;
        let named = match self.shared.read_record(top.addr) {
            Ok(record) => bases_of(&record)?,
            // Damage is reported where all records are read.
            Err(error) if error.is_damage() => return Ok(()),
            Err(error) => return Err(error),
        };
        if named == bases {
            return Ok(());
        }
        Err(Error::corrupt("tree", format!("it has bases {bases:?} of a record that names {named:?}")))
    }

    /// Checks the pool's own tree.
    fn check_own(&self, walk: &mut CheckWalk) {
        let walked = self.own.tree.walk(&mut |visit| {
            match visit {
                Visit::Node { ptr, .. } => {
                    walk.report.nodes += 1;
                    walk.at.done_bytes += u64::from(ptr.len_bytes);
                    if !self.reach_twice(ptr, walk) {
                        walk.report.error(format!("node {} of the pool's own tree is in another", ptr.addr));
                    }
                }
                Visit::Damaged { error, .. } => walk.report.lost_node(&error),
                Visit::Entry(key, Value::Bytes(bytes)) if key.kind == Key::MODEL => {
                    self.check_model(key, &bytes, walk);
                }
                Visit::Entry(key, _) if matches!(key.kind, Key::DEAD | Key::BUCKET | Key::LINK) => {
                    walk.own_entries += 1;
                }
                Visit::Entry(..) => {}
            }
            Ok(())
        });
        if let Err(error) = walked {
            walk.report.error(error.to_string());
        }
    }

    /// Walks an unreferenced tree that no checkpoint has written: none of its records was freed.
    fn check_unstored(&self, data: &LiveDataset, (bound, node_bound): (u64, u64), walk: &mut CheckWalk) {
        let walked = data.tree.walk(&mut |visit| {
            match visit {
                Visit::Node { ptr, .. } if ptr.addr.raw() >= node_bound => drop(self.reach_twice(ptr, walk)),
                Visit::Entry(_, Value::Page(ptr)) if ptr.addr.raw() >= bound => drop(self.reach(ptr, walk)),
                Visit::Damaged { error, .. } => walk.report.lost_node(&error),
                Visit::Node { .. } | Visit::Entry(..) => {}
            }
            Ok(())
        });
        if let Err(error) = walked {
            walk.report.error(error.to_string());
        }
    }

    /// Checks that unreferenced records are live, and in use by nobody else unless a snapshot holds them.
    fn check_unreferenced(&self, item: &Unreferenced, blocks: &DeadBlocks, walk: &mut CheckWalk) {
        match item {
            Unreferenced::Records { bucket, held } => {
                let (mut records, mut bytes) = (0, 0);
                let read = bucket.for_each(blocks, &mut |ptr| {
                    records += 1;
                    bytes += space_of(&ptr);
                    if !*held && !self.reach(ptr, walk) {
                        walk.report
                            .error(format!("record {} is listed as unreferenced and in use", ptr.addr));
                    }
                });
                match read {
                    Ok(entries) => walk.dead_entries += entries,
                    Err(error) => walk.report.error(error.to_string()),
                }
                if (records, bytes) != (bucket.records, bucket.bytes) {
                    walk.report.error(format!(
                        "{records} records are listed as unreferenced, and {} are counted",
                        bucket.records
                    ));
                }
            }
            Unreferenced::List { id } => {
                let read = blocks.buckets(*id, 0, &mut |_, bucket| {
                    walk.dead_entries += 1 + bucket.for_each(blocks, &mut |_| {})?;
                    Ok(())
                });
                if let Err(error) = read {
                    walk.report.error(error.to_string());
                }
            }
            Unreferenced::Tree { data, bound, node_bound, cursor } => {
                let Some(root) = data.tree.stored_root() else {
                    return self.check_unstored(data, (*bound, *node_bound), walk);
                };
                let found = reap(root, &Nodes::of(&self.shared), *cursor, *node_bound, usize::MAX);
                for (_, error) in found.unreadable {
                    walk.report.lost_node(&error);
                }
                for ptr in found.nodes {
                    self.reach_twice(ptr, walk);
                }
                for ptr in found.pages.into_iter().filter(|ptr| ptr.addr.raw() >= *bound) {
                    self.reach(ptr, walk);
                }
            }
        }
    }

    /// Reads and decodes records; reading verifies their checksums.
    fn verify(&self, walk: &mut CheckWalk) {
        let CheckWalk { report, at, pending: pages, .. } = walk;
        let addrs: Vec<Addr> = pages.iter().map(|ptr| ptr.addr).collect();
        let _reading = self.shared.models.reading();
        let read = self.shared.segments.read(&self.shared.devices, &addrs, &mut |position, record| {
            self.count_record(report, addrs.get(position), record);
            Ok(())
        });
        if read.is_err() {
            // Records are read one by one, to name those that are damaged.
            for addr in &addrs {
                let one = self.shared.segments.read(&self.shared.devices, &[*addr], &mut |_, record| {
                    self.count_record(report, Some(addr), record);
                    Ok(())
                });
                if let Err(error) = one {
                    report.error(error.to_string());
                    report.damaged.add(*addr);
                }
            }
        }
        at.done_bytes += pages.iter().map(|ptr| u64::from(ptr.len_bytes)).sum::<u64>();
        pages.clear();
    }

    /// Checks that the pool knows a model as its entry says, and that the model can be read.
    fn check_model(&self, key: Key, bytes: &[u8], walk: &mut CheckWalk) {
        walk.report.models += 1;
        let entry = match ModelEntry::decode(bytes) {
            Ok(entry) => entry,
            Err(error) => return walk.report.error(format!("model {}: {error}", key.offset)),
        };
        self.reach(entry.ptr, walk);
        let report = &mut walk.report;
        let id = u32::try_from(key.offset).unwrap_or_default();
        if self.shared.models.get(id) != Some(entry) {
            report.error(format!("model {}: the pool knows it otherwise than the tree says", key.offset));
        }
        let read = self.shared.read_record(entry.ptr.addr).and_then(|record| decode_metadata(&record));
        if let Err(error) = read.and_then(|_| self.shared.model(id)) {
            report.error(format!("model {}: {error}", key.offset));
        }
    }

    /// Checks that segments list only models that there are, and that the number of segments that list each is as
    /// counted.
    fn check_uses(&self, report: &mut CheckReport) {
        let mut uses: BTreeMap<u32, u64> = BTreeMap::new();
        let all = self.shared.segments.for_each(|segment| {
            for model in &segment.models {
                *uses.entry(*model).or_default() += 1;
            }
        });
        if let Err(error) = all {
            return report.error(error.to_string());
        }
        for (model, found) in &uses {
            if self.shared.models.get(*model).is_none() {
                report.error(format!("{found} segments use model {model}, which the pool does not have"));
            }
            let counted = self.shared.segments.users_of_model(*model);
            if counted != *found {
                report.error(format!("{found} segments use model {model}, and {counted} are counted"));
            }
        }
    }

    /// Checks that the bytes that segments account for are those of their live records, as their directories have them.
    fn check_lengths(&self, report: &mut CheckReport) {
        let segments = &self.shared.segments;
        let (mut used_bytes, mut record_bytes, mut next) = (0, 0, 0);
        loop {
            let segment = match segments.at_or_after(next) {
                Ok(Some(segment)) => segment,
                Ok(None) => break,
                Err(error) => return report.error(error.to_string()),
            };
            next = segment.id + 1;
            used_bytes += segment.used_bytes();
            record_bytes += segment.live_records_bytes();
            let mut found = 0;
            for part in &segment.parts {
                match self.check_directories(segment.id, part, report) {
                    Ok(directory) => {
                        let live = directory.entries().iter().filter(|entry| segment.live.get(entry.slot));
                        found += live.map(|entry| u64::from(entry.len_bytes)).sum::<u64>();
                    }
                    // Reading the part's records has reported it, unless it has none that are live.
                    Err(error) => {
                        if report.errors == 0 {
                            report.error(error.to_string());
                        }
                        return;
                    }
                }
            }
            let counted = u64::from(segment.live_bytes);
            if found != counted {
                let id = segment.id;
                report.error(format!(
                    "segment {id} accounts for {counted} bytes, and its live records have {found}"
                ));
            }
        }
        // For pages of the table that were not in memory, a little more may be counted than their segments use.
        let (counted, of_records) = segments.used_by_records();
        let exactly = segments.pages_read() == 0;
        if counted < used_bytes || exactly && counted != used_bytes {
            report.error(format!("the pool accounts for {counted} bytes, and its segments for {used_bytes}"));
        }
        if of_records != record_bytes {
            report.error(format!(
                "the pool accounts for {of_records} bytes of records, and its segments for {record_bytes}"
            ));
        }
    }

    /// Reads all copies of a part's directory and returns a sound one. An error if there is none.
    fn check_directories(
        &self,
        segment: u64,
        part: &crate::segment::Part,
        report: &mut CheckReport,
    ) -> Result<Directory> {
        let segments = &self.shared.segments;
        let Some(dir) = part.directory else {
            return Ok(segments.open_directory(segment).unwrap_or_default());
        };
        let copies = segments.read_directory_copies(&self.shared.devices, segment, (part.extent, dir));
        let (sound, damaged): (Vec<_>, Vec<_>) = copies.map(|(_, _, read)| read).partition(Result::is_ok);
        let mut damaged = damaged.into_iter().filter_map(Result::err);
        match sound.into_iter().flatten().next() {
            Some((directory, _)) => {
                damaged.for_each(|error| report.error(error.to_string()));
                Ok(directory)
            }
            None => {
                Err(damaged.next().unwrap_or_else(|| Error::corrupt("segment directory", "there is none")))
            }
        }
    }

    fn count_record(&self, report: &mut CheckReport, addr: Option<&Addr>, record: &[u8]) {
        report.records += 1;
        report.bytes += record.len() as u64;
        let Some(addr) = addr else { return };
        let decoded = logical_len(record).and_then(|len| {
            if len > RECORDSIZE_MAX as usize {
                return Err(Error::corrupt("record", "it is longer than the largest recordsize"));
            }
            // The page that a delta is based on may be longer than the page that it gives.
            let room = if is_delta(record) { RECORDSIZE_MAX as usize } else { len };
            decode(record, &*self.shared, &mut vec![0; room])
        });
        for base in bases_of(record).unwrap_or_default() {
            if matches!(self.shared.segments.is_live(base), Ok(false)) {
                report.error(format!("record {addr} is based on {base}, which is accounted as dead"));
            }
        }
        if let Err(error) = decoded {
            report.error(format!("record {addr} cannot be decoded: {error}"));
            report.damaged.add(*addr);
        }
        if let Some(model) = model_of(record) {
            let segment = self.shared.segments.get(addr.segment());
            if segment.is_ok_and(|segment| {
                segment.is_none_or(|segment| segment.models.binary_search(&model).is_err())
            }) {
                report.error(format!("record {addr} uses model {model}, and its segment does not list it"));
            }
        }
    }

    /// Checks that all records that are accounted as live were reached.
    fn compare(&self, reached: &RecordSet, report: &mut CheckReport) {
        let none = LiveMap::default();
        let all = self.shared.segments.for_each(|segment| {
            let of = reached.0.get(&segment.id).unwrap_or(&none);
            let leaked =
                (0..segment.slots).filter(|slot| segment.live.get(*slot) && !of.get(*slot)).count() as u64;
            if leaked > 0 {
                report.leaked += leaked;
                report.error(format!(
                    "segment {} accounts {leaked} records as live that nothing refers to",
                    segment.id
                ));
            }
        });
        if let Err(error) = all {
            report.error(error.to_string());
        }
    }
}

/// Checks that the counts of shared records are those of the tree's pages and bases.
fn compare_references(again: &BTreeMap<Addr, u64>, counted: &BTreeMap<Addr, u64>, report: &mut CheckReport) {
    for (addr, more) in again {
        let (references, says) = (1 + more, counted.get(addr).copied().unwrap_or(1));
        if references != says {
            report.error(format!("record {addr} is referred to {references} times, and {says} are counted"));
        }
    }
    for addr in counted.keys().filter(|addr| !again.contains_key(addr)) {
        report.error(format!("record {addr} is counted as shared and referred to at most once"));
    }
}
