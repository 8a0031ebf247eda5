//! Adds up the predictions for all files.

use pagefold_codec::{Model, files, registry};
use pagefold_engine::record::Compression;
use rayon::prelude::*;
use serde::Serialize;

use crate::Options;
use crate::estimate::Estimate;
use crate::file::{FileReport, fold_log, look};
use crate::kind::Kind;
use crate::walk::Found;

/// Prediction for some files together. All sizes are in bytes.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Totals {
    /// Number of files.
    pub files: u64,
    /// Sum of their lengths.
    pub size_bytes: u64,
    /// Bytes of pages that are not all zeros, up to the end of each file: the upper side of every ratio.
    pub logical: Estimate,
    /// Bytes of these pages' records, and of models.
    pub stored: Estimate,
    /// Bytes that a pool keeps beside records.
    pub metadata: Estimate,
    /// Bytes of models, which `stored` includes.
    pub model_bytes: u64,
    /// Bytes of the files by LZ4 in extents of 128 KiB, each rounded up to 4 KiB.
    pub lz4: Estimate,
    /// Bytes by zlib, level 3, in the same extents.
    pub zlib: Estimate,
    /// Bytes by Zstandard, level 3, in the same extents.
    pub zstd: Estimate,
}

impl Totals {
    fn add(&mut self, file: &FileReport) {
        self.files += 1;
        self.size_bytes = self.size_bytes.saturating_add(file.size_bytes);
        self.model_bytes += file.model_bytes;
        self.logical = self.logical.plus(file.logical);
        self.stored = self.stored.plus(file.stored);
        self.metadata = self.metadata.plus(file.metadata);
        self.lz4 = self.lz4.plus(file.lz4);
        self.zlib = self.zlib.plus(file.zlib);
        self.zstd = self.zstd.plus(file.zstd);
    }

    /// Returns the prediction for one file.
    #[must_use]
    pub fn of(file: &FileReport) -> Self {
        let mut totals = Self::default();
        totals.add(file);
        totals
    }

    /// Returns the bytes that the files would take on a pool, all metadata counted.
    #[must_use]
    pub fn on_pagefold(&self) -> Estimate {
        self.stored.plus(self.metadata)
    }
}

/// Something that Pagefold makes unnecessary or cheap, and what it costs these files now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Finding {
    /// Space kept free in PostgreSQL's pages (fillfactor, updates, deletions), which takes nothing on a pool.
    FreeSpace {
        /// Bytes of that space.
        free_bytes: u64,
        /// Bytes of the tables and indexes in which it was found.
        pages_bytes: u64,
    },
    /// Images of pages in PostgreSQL's log, which `full_page_writes=off` spares.
    FullPageWrites {
        /// Bytes of images.
        image_bytes: u64,
        /// Bytes of the records that were examined.
        record_bytes: u64,
    },
    /// InnoDB's second write of each page, which `innodb_doublewrite=OFF` spares.
    Doublewrite {
        /// Bytes of tablespaces.
        pages_bytes: u64,
    },
}

/// A prediction.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Property `compression` for which it was made.
    pub compression: String,
    /// Totals of all files.
    pub total: Totals,
    /// Totals by kind of file.
    pub kinds: Vec<(Kind, Totals)>,
    /// Predictions for each file, in order of paths.
    pub files: Vec<FileReport>,
    /// Other things that would change.
    pub findings: Vec<Finding>,
    /// Sentences about symbolic links that were not followed.
    pub notes: Vec<String>,
    /// Problems with files that could not be read, and are not in the report.
    pub problems: Vec<String>,
}

/// Predicts what `files` would take. `step` is called for each file when it is done, with its length in bytes.
#[must_use]
pub fn analyze(files: &[Found], options: &Options, step: impl Fn(u64) + Sync) -> Report {
    let looked: Vec<_> = files
        .par_iter()
        .map(|found| {
            let report = look(found, options, None);
            step(found.size_bytes);
            report.map_err(|error| (error.kind(), format!("cannot read {}: {error}", found.path.display())))
        })
        .collect();
    let (mut reports, mut problems) = (Vec::new(), Vec::new());
    for report in looked {
        match report {
            Ok(report) => reports.push(report),
            // A database in use deletes files all the time.
            Err((std::io::ErrorKind::NotFound, _)) => {}
            Err((_, problem)) => problems.push(problem),
        }
    }
    for log in registry().files().iter().filter(|file| file.log.is_some()) {
        share_model(Kind::File(log), &mut reports, &mut problems, options);
    }
    summarize(options.compression, reports, problems)
}

/// Predicts logs of a kind once more, with a model that they share, in the order of their paths. Logs that cannot be read
/// any more keep their first prediction.
fn share_model(kind: Kind, reports: &mut [FileReport], problems: &mut Vec<String>, options: &Options) {
    if options.compression.model_level().is_none() {
        return;
    }
    let mut shared = None;
    for log in reports.iter_mut().filter(|report| report.kind == kind) {
        match predict_with(&mut shared, log, options) {
            Ok(()) => {}
            // As above: a log's files are deleted or get other names.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => problems.push(format!("cannot read {} once more: {error}", log.path.display())),
        }
    }
}

/// Predicts a log with the model of those before it, or with a better one that is learned from it. The model counts
/// where it is learned.
fn predict_with(shared: &mut Option<Model>, log: &mut FileReport, options: &Options) -> std::io::Result<()> {
    let model_bytes = fold_log(log, shared)?;
    let Some(model) = shared else { return Ok(()) };
    let found = Found { path: log.path.clone(), size_bytes: log.size_bytes };
    *log = look(&found, options, Some(model))?;
    log.model_bytes = model_bytes;
    log.stored = log.stored.plus(Estimate::exact(model_bytes));
    Ok(())
}

fn summarize(compression: Compression, files: Vec<FileReport>, problems: Vec<String>) -> Report {
    let mut total = Totals::default();
    let mut kinds: Vec<(Kind, Totals)> = Kind::all().map(|kind| (kind, Totals::default())).collect();
    for file in &files {
        total.add(file);
        kinds.iter_mut().filter(|(kind, _)| *kind == file.kind).for_each(|(_, totals)| totals.add(file));
    }
    kinds.retain(|(kind, _)| files.iter().any(|file| file.kind == *kind));
    let findings = findings(&files);
    Report {
        compression: compression.to_string(),
        total,
        kinds,
        files,
        findings,
        notes: Vec::new(),
        problems,
    }
}

fn findings(reports: &[FileReport]) -> Vec<Finding> {
    let sum = |is: fn(Kind) -> bool, of: &dyn Fn(&FileReport) -> u64| {
        reports.iter().filter(|file| is(file.kind)).map(of).sum::<u64>()
    };
    let is_pages = |kind| matches!(kind, Kind::Pages(_));
    let is_log = |kind| kind == Kind::File(files::POSTGRES_LOG);
    let free_bytes = sum(is_pages, &|file| file.free.bytes());
    let image_bytes = sum(is_log, &|file| file.images.image_bytes);
    let innodb_bytes = sum(|kind| kind == Kind::File(files::INNODB), &|file| file.logical.bytes());
    let all = [
        Finding::FreeSpace { free_bytes, pages_bytes: sum(is_pages, &|file| file.logical.bytes()) },
        Finding::FullPageWrites { image_bytes, record_bytes: sum(is_log, &|file| file.images.record_bytes) },
        Finding::Doublewrite { pages_bytes: innodb_bytes },
    ];
    let there = [free_bytes > 0, image_bytes > 0, innodb_bytes > 0];
    all.into_iter().zip(there).filter_map(|(finding, there)| there.then_some(finding)).collect()
}
