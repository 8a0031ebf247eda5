//! `du`: tells what files on mounted pools take.

mod codecs;

use std::collections::BTreeMap;
use std::path::PathBuf;

use pagefold_server::control::{Client, FileSurvey, FileUsage, Reply, Request};
use pagefold_server::failure::{Failure, Result};
use pagefold_server::{raw, units};
use serde::Serialize;

use super::walk::Walk;
use crate::args::{Du, SortBy};
use crate::progress::Progress;
use crate::table::{Align, Table};

/// Number of files whose pages are surveyed per request.
const SURVEY_FILES: usize = 64;

/// A line of the output: for one file, one page size, or one argument.
#[derive(Clone, Debug, Default, Serialize)]
struct Line {
    #[serde(serialize_with = "pagefold_server::raw::maybe_path::serialize")]
    path: Option<PathBuf>,
    record_size: Option<u32>,
    files: u64,
    size_bytes: u64,
    logical_bytes: u64,
    stored_bytes: u64,
    /// How the file is stored, if that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pages: Option<FileSurvey>,
}

impl Line {
    fn add(&mut self, usage: &FileUsage) {
        self.files += 1;
        self.size_bytes = self.size_bytes.saturating_add(usage.size_bytes);
        self.logical_bytes = self.logical_bytes.saturating_add(usage.logical_bytes);
        self.stored_bytes = self.stored_bytes.saturating_add(usage.stored_bytes);
    }
    fn ratio(&self) -> Option<f64> {
        units::ratio(self.logical_bytes, self.stored_bytes)
    }
}

/// Prints what the files under the given paths take.
pub fn run(args: &Du) -> Result<()> {
    if args.codecs {
        return codecs::run(args);
    }
    let progress = Progress::counter("files looked at");
    let mut walk = Walk::new(&progress);
    let mut lines = Vec::new();
    let mut total = Line::default();
    let mut kinds: BTreeMap<u32, Line> = BTreeMap::new();
    for path in &args.paths {
        let mut argument = Line { path: Some(path.clone()), ..Line::default() };
        walk.path(path, &mut |client, device, files| {
            let inodes: Vec<u64> = files.iter().map(|(_, inode)| *inode).collect();
            let surveys =
                if args.pages { surveys(client, device, &inodes)? } else { vec![None; inodes.len()] };
            for (((path, _), usage), survey) in
                files.into_iter().zip(usages(client, device, inodes)?).zip(surveys)
            {
                let Some(usage) = usage else { continue };
                argument.add(&usage);
                total.add(&usage);
                kinds.entry(usage.record_size).or_default().add(&usage);
                if args.all || args.pages && !args.summarize {
                    let mut line = Line {
                        path: Some(path),
                        record_size: Some(usage.record_size),
                        pages: survey,
                        ..Line::default()
                    };
                    line.add(&usage);
                    lines.push(line);
                }
            }
            Ok(())
        })?;
        if args.summarize {
            lines.push(argument);
        }
    }
    progress.finish();
    let problems = std::mem::take(&mut walk.problems);
    sort(&mut lines, args.sort);
    let by_kind: Vec<Line> =
        kinds.into_iter().map(|(size, line)| Line { record_size: Some(size), ..line }).collect();
    if args.output.json {
        super::print_json(&serde_json::json!({ "lines": lines, "recordsizes": by_kind, "total": total }))?;
    } else {
        print(args, &lines, &by_kind, &total);
    }
    left_out(&problems)
}

/// Tells which names could not be looked at; fails if there are any.
fn left_out(problems: &[String]) -> Result<()> {
    for problem in problems {
        eprintln!("pagefold: {problem}");
    }
    if problems.is_empty() {
        Ok(())
    } else {
        Err(Failure::new(format!("{} left out", units::counted(problems.len() as u64, "name"))))
    }
}

fn usages(client: &mut Client, device: u32, inodes: Vec<u64>) -> Result<Vec<Option<FileUsage>>> {
    match client.ask(&Request::Usage { device, inodes })? {
        Reply::Usage { files } => Ok(files),
        _ => Err(client.misunderstood()),
    }
}

/// Surveys files by reading pages of them, so it takes as long as the devices do.
fn surveys(client: &mut Client, device: u32, inodes: &[u64]) -> Result<Vec<Option<FileSurvey>>> {
    let mut all = Vec::with_capacity(inodes.len());
    for some in inodes.chunks(SURVEY_FILES) {
        match client.ask_and_wait(&Request::Survey { device, inodes: some.to_vec() })? {
            Reply::Survey { files } => all.extend(files),
            _ => return Err(client.misunderstood()),
        }
    }
    Ok(all)
}

fn sort(lines: &mut [Line], by: SortBy) {
    match by {
        SortBy::Name => lines.sort_by(|a, b| a.path.cmp(&b.path)),
        SortBy::Stored => lines.sort_by_key(|line| std::cmp::Reverse(line.stored_bytes)),
        SortBy::Logical => lines.sort_by_key(|line| std::cmp::Reverse(line.logical_bytes)),
        SortBy::Ratio => lines.sort_by(|a, b| b.ratio().unwrap_or(0.0).total_cmp(&a.ratio().unwrap_or(0.0))),
    }
}

fn print(args: &Du, lines: &[Line], by_kind: &[Line], total: &Line) {
    let mut columns = vec![
        ("RECORDSIZE", Align::Right),
        ("FILES", Align::Right),
        ("SIZE", Align::Right),
        ("LOGICAL", Align::Right),
        ("STORED", Align::Right),
        ("RATIO", Align::Right),
    ];
    if args.pages {
        columns.extend([("PAGES", Align::Left), ("CODEC", Align::Left), ("MODEL", Align::Right)]);
    }
    columns.push(("PATH", Align::Left));
    let mut table = Table::new(&columns);
    let size = |bytes: u64| if args.output.exact { bytes.to_string() } else { units::size(bytes) };
    let mut row = |line: &Line, name: &str| {
        let mut cells = vec![
            line.record_size.map_or_else(|| "-".into(), |bytes| size(bytes.into())),
            line.files.to_string(),
            size(line.size_bytes),
            size(line.logical_bytes),
            size(line.stored_bytes),
            if args.output.exact {
                line.ratio().map_or_else(|| "-".into(), |r| format!("{r:.2}"))
            } else {
                units::ratio_text(line.ratio())
            },
        ];
        if args.pages {
            cells.extend(line.pages.as_ref().map_or_else(|| ["-".into(), "-".into(), "-".into()], pages));
        }
        cells.push(name.to_owned());
        table.row(cells);
    };
    for line in lines {
        row(line, &line.path.as_deref().map(raw::text).unwrap_or_default());
    }
    if !args.output.script || lines.is_empty() {
        if !args.summarize {
            for line in by_kind {
                row(line, "(all files of this page size)");
            }
        }
        row(total, "(total)");
    }
    table.print(args.output.script);
}

/// Returns the kinds of pages, codecs and model of a file, with their shares where there are several.
fn pages(survey: &FileSurvey) -> [String; 3] {
    let share = |name: &str, pages: u64| {
        if pages == survey.sampled_pages {
            name.to_owned()
        } else {
            format!("{name} {}", units::percent(pages, survey.sampled_pages))
        }
    };
    let or_none = |text: String| if text.is_empty() { "-".into() } else { text };
    let kinds: Vec<String> = survey.kinds.iter().map(|kind| share(&kind.kind, kind.pages)).collect();
    let mut by_codec: Vec<(&str, u64)> = Vec::new();
    for part in &survey.codecs {
        match by_codec.iter_mut().find(|(codec, _)| *codec == part.codec) {
            Some((_, pages)) => *pages += part.pages,
            None => by_codec.push((&part.codec, part.pages)),
        }
    }
    let codecs: Vec<String> = by_codec.iter().map(|(codec, pages)| share(codec, *pages)).collect();
    let model = survey.model.map_or_else(String::new, |model| format!("#{model}"));
    [or_none(kinds.join(", ")), or_none(codecs.join(", ")), or_none(model)]
}
