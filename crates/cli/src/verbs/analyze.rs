//! `analyze`: predicts from samples what files would take on a pool.

mod page;

use std::fs;

use pagefold_analyze::{Estimate, FileReport, Finding, Options, Report, Totals, Walked, analyze, walk};
use pagefold_engine::record::Compression;
use pagefold_server::failure::{Context, Failure, Result};
use pagefold_server::{raw, units};

use crate::args::{Analyze, SortBy};
use crate::progress::Progress;
use crate::table::{Align, Table, printable};

/// Predicts, and prints the report.
pub fn run(args: &Analyze) -> Result<()> {
    let compression: Compression = args
        .compression
        .parse()
        .map_err(|error: pagefold_engine::Error| Failure::usage(error.to_string()))?;
    let options = Options { compression, sample_pages: args.sample, ..Options::default() };
    let counter = Progress::counter("files found");
    let Walked { files, notes, problems } =
        walk(&args.paths, || counter.step(1)).context(|| "cannot look at".into())?;
    counter.finish();
    if files.is_empty() {
        return Err(Failure::new("there are no files to analyze").hint("name a data directory, or files"));
    }
    let progress = Progress::bytes("looking at samples");
    let all_bytes: u64 = files.iter().map(|file| file.size_bytes).sum();
    progress.at(0, all_bytes);
    let mut report = analyze(&files, &options, |bytes| progress.step(bytes));
    progress.finish();
    report.problems.splice(0..0, problems);
    report.notes = notes;
    if let Some(path) = &args.html {
        fs::write(path, page::html(&report, &args.paths)?)
            .context(|| format!("cannot write {}", path.display()))?;
    }
    if args.output.json {
        let mut told = serde_json::to_value(&report).context(|| "cannot print".into())?;
        // The report's own serialisation of paths loses bytes that are not UTF-8.
        let files = told.get_mut("files").and_then(serde_json::Value::as_array_mut);
        for (told, file) in files.into_iter().flatten().zip(&report.files) {
            told["path"] = raw::text(&file.path).into();
        }
        super::print_json(&told)?;
    } else {
        print(args, &report);
    }
    for note in &report.notes {
        eprintln!("pagefold: note: {}", printable(note));
    }
    for problem in &report.problems {
        eprintln!("pagefold: {}", printable(problem));
    }
    if report.problems.is_empty() {
        Ok(())
    } else {
        Err(Failure::new(format!("{} left out", units::counted(report.problems.len() as u64, "name"))))
    }
}

fn print(args: &Analyze, report: &Report) {
    let mut table = Table::new(&[
        ("FILES", Align::Right),
        ("SIZE", Align::Right),
        ("PAGEFOLD", Align::Right),
        ("RANGE", Align::Right),
        ("RATIO", Align::Right),
        ("LZ4", Align::Right),
        ("ZLIB", Align::Right),
        ("ZSTD", Align::Right),
        ("WHAT", Align::Left),
    ]);
    let size = |bytes: u64| if args.output.exact { bytes.to_string() } else { units::size(bytes) };
    let mut row = |totals: &Totals, name: &str| {
        let ours = totals.on_pagefold();
        table.row(vec![
            totals.files.to_string(),
            size(totals.size_bytes),
            size(ours.bytes()),
            format!("±{}", size(ours.margin_bytes())),
            ratio(totals, ours, args.output.exact),
            ratio(totals, totals.lz4, args.output.exact),
            ratio(totals, totals.zlib, args.output.exact),
            ratio(totals, totals.zstd, args.output.exact),
            name.to_owned(),
        ]);
    };
    if args.all {
        for file in sorted(&report.files, args.sort) {
            row(&Totals::of(file), &raw::text(&file.path));
        }
    }
    for (kind, totals) in &report.kinds {
        row(totals, kind.name());
    }
    row(&report.total, "(total)");
    table.print(args.output.script);
    if args.output.script {
        return;
    }
    println!(
        "\nPAGEFOLD: with compression={}, all metadata counted; RANGE: with 95% confidence.",
        report.compression
    );
    println!("LZ4, ZLIB, ZSTD: ratios of extents of 128K rounded up to 4K, as file systems compress.");
    for finding in &report.findings {
        println!("{}", crate::table::wrapped(&sentence(finding), 0).trim_end());
    }
}

fn sorted(files: &[FileReport], by: SortBy) -> Vec<&FileReport> {
    let mut files: Vec<&FileReport> = files.iter().collect();
    let stored = |file: &FileReport| Totals::of(file).on_pagefold().bytes();
    match by {
        SortBy::Name => {}
        SortBy::Stored => files.sort_by_key(|file| std::cmp::Reverse(stored(file))),
        SortBy::Logical => files.sort_by_key(|file| std::cmp::Reverse(file.logical.bytes())),
        SortBy::Ratio => {
            let ratio = |file: &FileReport| units::ratio(file.logical.bytes(), stored(file)).unwrap_or(0.0);
            files.sort_by(|a, b| ratio(b).total_cmp(&ratio(a)));
        }
    }
    files
}

/// Returns the ratio of what files hold to what they would take. Holes and zeros are in neither, as in a pool's own
/// ratios.
fn ratio(totals: &Totals, stored: Estimate, exact: bool) -> String {
    let ratio = units::ratio(totals.logical.bytes(), stored.bytes());
    if exact { ratio.map_or_else(|| "-".into(), |r| format!("{r:.2}")) } else { units::ratio_text(ratio) }
}

/// A finding as a sentence.
fn sentence(finding: &Finding) -> String {
    match *finding {
        Finding::FreeSpace { free_bytes, pages_bytes } => format!(
            "Free space within PostgreSQL's pages: {} ({} of tables and indexes). It takes nothing on a pool: a fillfactor \
             below 100 costs no space.",
            units::size(free_bytes),
            units::percent(free_bytes, pages_bytes),
        ),
        Finding::FullPageWrites { image_bytes, record_bytes } => format!(
            "Images of whole pages: {} of PostgreSQL's log ({} of {}). Pages do not tear on a pool: full_page_writes=off \
             spares them.",
            units::percent(image_bytes, record_bytes),
            units::size(image_bytes),
            units::size(record_bytes),
        ),
        Finding::Doublewrite { pages_bytes } => format!(
            "InnoDB writes every page twice ({} of tablespaces). Pages do not tear on a pool: innodb_doublewrite=OFF \
             halves what is written to them.",
            units::size(pages_bytes),
        ),
    }
}
