//! All files together.

use std::collections::BTreeMap;

use pagefold_engine::record::Compression;
use rayon::prelude::*;
use serde::Serialize;

use crate::Options;
use crate::estimate::Estimate;
use crate::file::{FileReport, Kind, fold_log, look};
use crate::walk::Found;

/// What is predicted of some files together. All sizes are in bytes.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Totals {
    /// How many files.
    pub files: u64,
    /// Their lengths.
    pub size_bytes: u64,
    /// Bytes of pages that are not all zeros.
    pub logical: Estimate,
    /// Bytes of their records and models.
    pub stored: Estimate,
    /// Bytes of what a pool keeps beside them.
    pub metadata: Estimate,
    /// Of `stored`, bytes of models.
    pub model_bytes: u64,
    /// By LZ4 in extents of 128 KiB, each rounded up to 4 KiB.
    pub lz4: Estimate,
    /// Likewise by zlib, level 3.
    pub zlib: Estimate,
    /// Likewise by Zstandard, level 3.
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

    /// Of one file.
    #[must_use]
    pub fn of(file: &FileReport) -> Self {
        let mut totals = Self::default();
        totals.add(file);
        totals
    }

    /// Bytes that the files would take on a pool, all metadata counted.
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
        /// How much.
        free_bytes: u64,
        /// Of how many bytes of tables and indexes.
        pages_bytes: u64,
    },
    /// Images of pages in PostgreSQL's log, which `full_page_writes=off` spares.
    FullPageWrites {
        /// Bytes of images.
        image_bytes: u64,
        /// Of how many bytes of records that were looked at.
        record_bytes: u64,
    },
    /// InnoDB writes each page twice, which `innodb_doublewrite=OFF` spares.
    Doublewrite {
        /// Bytes of tablespaces.
        pages_bytes: u64,
    },
}

/// A prediction.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The property `compression` it was made for.
    pub compression: String,
    /// Of all files.
    pub total: Totals,
    /// By what files are.
    pub kinds: Vec<(Kind, Totals)>,
    /// Each file, in order of paths.
    pub files: Vec<FileReport>,
    /// What else would change.
    pub findings: Vec<Finding>,
    /// What could not be read, and is not in the report.
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
    for kind in [Kind::PostgresLog, Kind::InnodbLog] {
        if let Err(error) = share_model(kind, &mut reports, options) {
            problems.push(format!("cannot read the logs once more: {error}"));
        }
    }
    summarize(options.compression, reports, problems)
}

/// Logs of a kind share a model: they are looked at with it, in the order of their paths. It is counted where it is learned.
fn share_model(kind: Kind, reports: &mut [FileReport], options: &Options) -> std::io::Result<()> {
    if options.compression.model_level().is_none() {
        return Ok(());
    }
    let mut shared = None;
    for log in reports.iter_mut().filter(|report| report.kind == kind) {
        let model_bytes = fold_log(log, &mut shared)?;
        let Some(model) = &shared else { continue };
        let found = Found { path: log.path.clone(), size_bytes: log.size_bytes };
        *log = look(&found, options, Some(model))?;
        log.model_bytes = model_bytes;
        log.stored = log.stored.plus(Estimate::exact(model_bytes));
    }
    Ok(())
}

fn summarize(compression: Compression, files: Vec<FileReport>, problems: Vec<String>) -> Report {
    let mut total = Totals::default();
    let mut kinds: BTreeMap<Kind, Totals> = BTreeMap::new();
    for file in &files {
        total.add(file);
        kinds.entry(file.kind).or_default().add(file);
    }
    let findings = findings(&files);
    Report {
        compression: compression.to_string(),
        total,
        kinds: kinds.into_iter().collect(),
        files,
        findings,
        problems,
    }
}

fn findings(files: &[FileReport]) -> Vec<Finding> {
    let sum = |kinds: &[Kind], of: &dyn Fn(&FileReport) -> u64| {
        files.iter().filter(|file| kinds.contains(&file.kind)).map(of).sum::<u64>()
    };
    let pages = [Kind::PostgresHeap, Kind::PostgresBtree];
    let free_bytes = sum(&pages, &|file| file.free.bytes());
    let image_bytes = sum(&[Kind::PostgresLog], &|file| file.images.image_bytes);
    let innodb_bytes = sum(&[Kind::Innodb], &|file| file.logical.bytes());
    let all = [
        Finding::FreeSpace { free_bytes, pages_bytes: sum(&pages, &|file| file.logical.bytes()) },
        Finding::FullPageWrites {
            image_bytes,
            record_bytes: sum(&[Kind::PostgresLog], &|file| file.images.record_bytes),
        },
        Finding::Doublewrite { pages_bytes: innodb_bytes },
    ];
    let there = [free_bytes > 0, image_bytes > 0, innodb_bytes > 0];
    all.into_iter().zip(there).filter_map(|(finding, there)| there.then_some(finding)).collect()
}
