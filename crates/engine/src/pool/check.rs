//! Checking a pool that is not open: everything is read, nothing is changed.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;

use super::{OpenOptions, Pool};
use crate::dataset::ModelEntry;
use crate::limits::RECORDSIZE_MAX;
use crate::record::{Models, decode, decode_metadata, logical_len, model_of};
use crate::segment::LiveMap;
use crate::tree::{Value, Visit};
use crate::{Addr, Error, Key, Ptr, Result};

/// Records read at a time.
const STEP_RECORDS: usize = 256;
/// Errors that are reported one by one.
const ERRORS_MAX: usize = 100;

/// How far a check is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Progress {
    /// Stored bytes read and verified.
    pub done_bytes: u64,
    /// Stored bytes of all live records.
    pub total_bytes: u64,
}

/// What a check found.
#[derive(Clone, Debug, Default)]
pub struct CheckReport {
    /// Records read, verified and decoded.
    pub records: u64,
    /// Their stored bytes.
    pub bytes: u64,
    /// Tree nodes among them.
    pub nodes: u64,
    /// Pages that trees refer to.
    pub pages: u64,
    /// Models of pages.
    pub models: u64,
    /// Records that are accounted as live and that nothing refers to.
    pub leaked: u64,
    /// Number of errors.
    pub errors: u64,
    /// The first hundred of them.
    pub messages: Vec<String>,
}

impl CheckReport {
    fn error(&mut self, message: String) {
        self.errors += 1;
        if self.messages.len() < ERRORS_MAX {
            self.messages.push(message);
        }
    }
}

/// Opens the pool read-only and checks everything: log, trees, segment table, every record.
/// Returns the pool too, so that layers above can check what they keep in it.
pub fn check(
    paths: &[PathBuf],
    cache_bytes: u64,
    progress: &mut dyn FnMut(Progress),
) -> Result<(std::sync::Arc<Pool>, CheckReport)> {
    let options = OpenOptions { read_only: true, cache_bytes, accept_loss: true, ..OpenOptions::default() };
    let pool = Pool::open(paths, &options)?;
    let mut report = pool.check_open(progress);
    if let Some(lost) = pool.replayed().lost {
        let device = pool.paths().get(usize::from(lost.device)).map(|path| path.display().to_string());
        report.error(format!(
            "the log is damaged at byte {} of {}: what was acknowledged behind it is lost, and was not checked",
            lost.offset,
            device.unwrap_or_default()
        ));
    }
    Ok((pool, report))
}

impl Pool {
    /// Checks a pool that is open and quiet: no change may be accepted meanwhile.
    pub fn check_open(&self, progress: &mut dyn FnMut(Progress)) -> CheckReport {
        let mut report = CheckReport::default();
        let mut reached: HashMap<u64, LiveMap> = HashMap::new();
        let mut at = Progress { done_bytes: 0, total_bytes: self.shared.segments.used_bytes() };
        let mut pages: Vec<Ptr> = Vec::with_capacity(STEP_RECORDS);
        let walked = self.dataset.tree.walk(&mut |visit| {
            match visit {
                Visit::Node { ptr, .. } => {
                    report.nodes += 1;
                    self.reach(ptr, false, &mut reached, &mut report);
                    at.done_bytes += u64::from(ptr.len_bytes);
                }
                Visit::Damaged(_, error) => report.error(error.to_string()),
                Visit::Entry(_, Value::Page(ptr)) => {
                    report.pages += 1;
                    if self.reach(ptr, self.is_shared(ptr), &mut reached, &mut report) {
                        pages.push(ptr);
                    }
                    if pages.len() >= STEP_RECORDS {
                        self.verify(&mut pages, &mut at, &mut report);
                        progress(at);
                    }
                }
                Visit::Entry(key, Value::Bytes(bytes)) if key.kind == Key::MODEL => {
                    self.check_model(key, &bytes, &mut reached, &mut report);
                }
                Visit::Entry(..) => {}
            }
            Ok(())
        });
        if let Err(error) = walked {
            report.error(error.to_string());
        }
        self.verify(&mut pages, &mut at, &mut report);
        let table: Vec<Ptr> = self.maintenance.lock().page_ptrs.values().copied().collect();
        for ptr in table {
            self.reach(ptr, false, &mut reached, &mut report);
        }
        self.compare(&reached, &mut report);
        self.check_uses(&mut report);
        self.check_lengths(&mut report);
        progress(at);
        report
    }

    /// Notes that a record is referred to. False: it was reached before.
    fn reach(
        &self,
        ptr: Ptr,
        shared: bool,
        reached: &mut HashMap<u64, LiveMap>,
        report: &mut CheckReport,
    ) -> bool {
        let fresh = reached.entry(ptr.addr.segment()).or_default().set(ptr.addr.slot());
        if !fresh && !shared {
            report.error(format!("record {} is referred to twice and not counted as shared", ptr.addr));
        }
        if !self.shared.segments.is_live(ptr.addr) {
            report.error(format!("record {} is referred to and accounted as dead", ptr.addr));
        }
        fresh
    }

    fn is_shared(&self, ptr: Ptr) -> bool {
        let key = Key::new(0, Key::SHARED, ptr.addr.raw());
        matches!(self.dataset.tree.get(&key), Ok(Some(_)))
    }

    /// Reads and decodes records; reading verifies their checksums.
    fn verify(&self, pages: &mut Vec<Ptr>, at: &mut Progress, report: &mut CheckReport) {
        let addrs: Vec<Addr> = pages.iter().map(|ptr| ptr.addr).collect();
        let read = self.shared.segments.read(&self.shared.devices, &addrs, &mut |position, record| {
            self.count_record(report, addrs.get(position), record);
            Ok(())
        });
        if read.is_err() {
            // One by one, to name those that are damaged.
            for addr in &addrs {
                let one = self.shared.segments.read(&self.shared.devices, &[*addr], &mut |_, record| {
                    self.count_record(report, Some(addr), record);
                    Ok(())
                });
                if let Err(error) = one {
                    report.error(error.to_string());
                }
            }
        }
        at.done_bytes += pages.iter().map(|ptr| u64::from(ptr.len_bytes)).sum::<u64>();
        pages.clear();
    }

    /// A model has to be known as its entry says, and readable.
    fn check_model(
        &self,
        key: Key,
        bytes: &[u8],
        reached: &mut HashMap<u64, LiveMap>,
        report: &mut CheckReport,
    ) {
        report.models += 1;
        let entry = match ModelEntry::decode(bytes) {
            Ok(entry) => entry,
            Err(error) => return report.error(format!("model {}: {error}", key.offset)),
        };
        self.reach(entry.ptr, false, reached, report);
        let id = u32::try_from(key.offset).unwrap_or_default();
        if self.shared.models.get(id) != Some(entry) {
            report.error(format!("model {}: the pool knows it otherwise than the tree says", key.offset));
        }
        let read = self.shared.read_record(entry.ptr.addr).and_then(|record| decode_metadata(&record));
        if let Err(error) = read.and_then(|_| self.shared.model(id)) {
            report.error(format!("model {}: {error}", key.offset));
        }
    }

    /// Segments list models that there are, and as many list each as are counted.
    fn check_uses(&self, report: &mut CheckReport) {
        let mut uses: BTreeMap<u32, u64> = BTreeMap::new();
        self.shared.segments.for_each(|segment| {
            for model in &segment.models {
                *uses.entry(*model).or_default() += 1;
            }
        });
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

    /// What segments account for is what their directories say of their live records.
    fn check_lengths(&self, report: &mut CheckReport) {
        let segments = &self.shared.segments;
        let mut ids = Vec::new();
        segments.for_each(|segment| ids.push(segment.id));
        let mut used_bytes = 0;
        for segment in ids.into_iter().filter_map(|id| segments.get(id)) {
            used_bytes += segment.used_bytes();
            let mut found = 0;
            let mut slot = 0;
            while let Some(part) = segment.part(slot).filter(|_| slot < segment.slots) {
                let end =
                    segment.parts.iter().map(|next| next.first_slot).find(|first| *first > part.first_slot);
                let directory = segments.directory(&self.shared.devices, Addr::new(segment.id, slot));
                match directory {
                    Ok(directory) => {
                        let live = directory.entries().iter().filter(|entry| segment.live.get(entry.slot));
                        found += live.map(|entry| u64::from(entry.len_bytes)).sum::<u64>();
                    }
                    // Said where its records were read.
                    Err(_) => return,
                }
                slot = end.unwrap_or(segment.slots);
            }
            if found != segment.live_bytes {
                let (id, counted) = (segment.id, segment.live_bytes);
                report.error(format!(
                    "segment {id} accounts for {counted} bytes, and its live records have {found}"
                ));
            }
        }
        if used_bytes != segments.used_bytes() {
            let counted = segments.used_bytes();
            report.error(format!("the pool accounts for {counted} bytes, and its segments for {used_bytes}"));
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
            decode(record, &*self.shared, &mut vec![0; len])
        });
        if let Err(error) = decoded {
            report.error(format!("record {addr} cannot be decoded: {error}"));
        }
        if let Some(model) = model_of(record) {
            let segment = self.shared.segments.get(addr.segment());
            if segment.is_none_or(|segment| segment.models.binary_search(&model).is_err()) {
                report.error(format!("record {addr} uses model {model}, and its segment does not list it"));
            }
        }
    }

    /// What is accounted as live must have been reached.
    fn compare(&self, reached: &HashMap<u64, LiveMap>, report: &mut CheckReport) {
        let none = LiveMap::default();
        self.shared.segments.for_each(|segment| {
            let of = reached.get(&segment.id).unwrap_or(&none);
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
    }
}
