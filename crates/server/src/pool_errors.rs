//! Errors that a pool has met, with the names of the files that they struck.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use pagefold_engine::faults::{FaultCounts, FaultReport, Struck, Subject};
use pagefold_engine::pool::Pool;
use pagefold_fs::paths;

use crate::control::{DeviceErrors, ErrorFigures, StruckFigures};
use crate::failure::Result;
use crate::{engine_errors, names};

/// Largest number of values of a dataset that are read to find the paths of damaged files; that takes about a second.
const VALUES_MAX: usize = 500_000;

/// Names of objects, by dataset and number of the object.
pub type Names = BTreeMap<(u64, u64), String>;

/// Returns the errors that were counted of a pool, with names.
pub fn figures(pool: &Pool, report: &FaultReport) -> ErrorFigures {
    let names = names_of(pool, report.struck.iter());
    let devices = pool.paths();
    ErrorFigures {
        cleared: report.cleared,
        unlisted: report.unlisted,
        struck: report.struck.iter().map(|struck| of_struck(struck, &names, &devices)).collect(),
    }
}

/// Errors that were cleared: those of each device, and those of files and other objects.
pub type Cleared = (Vec<DeviceErrors>, ErrorFigures);

/// Clears the errors of an open pool, at time `now` in seconds since 1970, and returns them.
pub fn clear(pool: &Pool, device: Option<u16>, now: u64) -> Result<Cleared> {
    let doing = || format!("cannot clear the errors of pool {}", pool.name());
    let cleared = pool.clear_faults(device, now).map_err(|error| engine_errors::failed(doing(), &error))?;
    let devices = cleared.devices.iter().copied().map(of_device).collect();
    Ok((devices, figures(pool, &cleared)))
}

/// Converts the counts of a device.
pub fn of_device(counts: FaultCounts) -> DeviceErrors {
    DeviceErrors {
        read_errors: counts.reads,
        write_errors: counts.writes,
        checksum_errors: counts.checksums,
        corrected: counts.corrected,
        repaired: counts.repaired,
    }
}

fn of_struck(struck: &Struck, names: &Names, devices: &BTreeMap<u16, PathBuf>) -> StruckFigures {
    let (what, name) = named(struck.subject, names);
    let of_object = matches!(struck.subject, Subject::Object { .. });
    StruckFigures {
        what: what.into(),
        name,
        offset: of_object.then_some(struck.offset),
        device: struck.place.and_then(|(device, _)| devices.get(&device).cloned()),
        place: struck.place.map(|(_, place)| place),
        read_errors: struck.counts.reads,
        checksum_errors: struck.counts.checksums,
        corrected: struck.counts.corrected,
        repaired: struck.counts.repaired,
    }
}

/// Returns the kind of something that errors struck, and its name.
pub fn named(subject: Subject, names: &Names) -> (&'static str, String) {
    match subject {
        Subject::Object { dataset, object } => {
            let name = names.get(&(dataset, object)).cloned();
            ("file", name.unwrap_or_else(|| format!("dataset {dataset}: object {object}")))
        }
        Subject::Record(addr) => ("record", format!("record {addr}")),
        Subject::Directory(segment) => ("metadata", format!("directory of segment {segment}")),
        Subject::Fixed => ("metadata", "labels, or the root of the last checkpoint".into()),
        Subject::Log => ("log", "batches of the log".into()),
    }
}

/// Returns the names of the files that errors struck, as `dataset:/path`; of a file whose path is not found, as
/// `dataset: object NUMBER`.
pub(crate) fn names_of<'a>(pool: &Pool, struck: impl Iterator<Item = &'a Struck>) -> Names {
    names_of_objects(
        pool,
        struck.filter_map(|struck| match struck.subject {
            Subject::Object { dataset, object } => Some((dataset, object)),
            _ => None,
        }),
    )
}

/// Returns the names of objects, given by dataset and number, as `dataset:/path`; of one that is not found, as
/// `dataset: object NUMBER`.
pub(crate) fn names_of_objects(pool: &Pool, objects: impl Iterator<Item = (u64, u64)>) -> Names {
    let mut wanted: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
    for (dataset, object) in objects {
        wanted.entry(dataset).or_default().insert(object);
    }
    let mut found = Names::new();
    for (id, objects) in wanted {
        let Some(path) = pool.path_of(id) else { continue };
        let name = names::full(pool.name(), &path);
        let known =
            pool.open_dataset(&path).map(|dataset| paths::of_objects(&*dataset, &objects, VALUES_MAX));
        let known = known.unwrap_or_default();
        for object in objects {
            let file = match known.get(&object) {
                Some(path) => format!("{name}:/{}", String::from_utf8_lossy(path)),
                None => format!("{name}: object {object}"),
            };
            found.insert((id, object), file);
        }
    }
    found
}

/// Writes errors to the log when something is struck for the first time, and again when its count reaches the next
/// power of two.
#[derive(Debug, Default)]
pub(crate) struct ErrorWatch {
    told: BTreeMap<Subject, u64>,
}

impl ErrorWatch {
    /// Returns a watch that does not report what was counted before.
    pub(crate) fn new(pool: &Pool) -> Self {
        let struck = pool.faults().struck;
        Self { told: struck.iter().map(|struck| (struck.subject, met(struck))).collect() }
    }

    /// Reports errors that were counted since the last call.
    pub(crate) fn look(&mut self, pool: &Pool) {
        let report = pool.faults();
        // An error that was cleared is reported again if it persists.
        self.told.retain(|subject, told| {
            report.struck.iter().any(|struck| struck.subject == *subject && met(struck) >= *told)
        });
        let is_news = |struck: &&Struck| {
            let told = self.told.get(&struck.subject).copied().unwrap_or_default();
            met(struck).checked_ilog2() != told.checked_ilog2()
        };
        let news: Vec<Struck> = report.struck.iter().filter(is_news).copied().collect();
        if news.is_empty() {
            return;
        }
        let names = names_of(pool, news.iter());
        let devices = pool.paths();
        for struck in &news {
            self.told.insert(struck.subject, met(struck));
            log(&of_struck(struck, &names, &devices));
        }
    }
}

/// Returns the number of errors that something has met.
fn met(struck: &Struck) -> u64 {
    struck.counts.reads.saturating_add(struck.counts.checksums)
}

fn log(struck: &StruckFigures) {
    let StruckFigures { read_errors, checksum_errors, .. } = *struck;
    let name = struck.name.as_str();
    let device = struck.device.as_ref().map_or_else(|| "-".into(), |device| device.display().to_string());
    let place = struck.place.unwrap_or_default();
    match struck.offset {
        Some(offset) => tracing::error!(
            file = name,
            offset,
            device,
            place,
            read_errors,
            checksum_errors,
            "a file is damaged: what is there cannot be read; copy the file from a backup, then `pagefold clear`"
        ),
        None if struck.corrected.max(struck.repaired) >= read_errors.saturating_add(checksum_errors) => {
            tracing::warn!(
                what = name,
                device,
                place,
                read_errors,
                checksum_errors,
                "metadata is damaged that is kept twice, and the other copy was used; `pagefold scrub` repairs it"
            );
        }
        None => {
            tracing::error!(
                what = name,
                device,
                place,
                read_errors,
                checksum_errors,
                "what cannot be read any more is damaged; `pagefold scrub` tells how far that goes"
            );
        }
    }
}
