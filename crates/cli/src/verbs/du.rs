//! `du`: what files on mounted pools take.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::args::{Du, SortBy};
use crate::control::{Client, FileUsage, Reply, Request};
use crate::failure::{Context, Failure, Result};
use crate::progress::Progress;
use crate::table::{Align, Table, printable};
use crate::{target, units};

/// Inodes per question.
const BATCH: usize = 4096;

/// A line: one file, one page size, or one argument.
#[derive(Clone, Debug, Default, Serialize)]
struct Line {
    path: Option<PathBuf>,
    record_size: Option<u32>,
    files: u64,
    size_bytes: u64,
    logical_bytes: u64,
    stored_bytes: u64,
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
    let progress = Progress::counter("files looked at");
    let mut scan =
        Scan { clients: HashMap::new(), seen: HashSet::new(), progress: &progress, problems: Vec::new() };
    let mut lines = Vec::new();
    let mut total = Line::default();
    let mut kinds: BTreeMap<u32, Line> = BTreeMap::new();
    for path in &args.paths {
        let mut argument = Line { path: Some(path.clone()), ..Line::default() };
        scan.argument(path, &mut |file, usage| {
            argument.add(usage);
            total.add(usage);
            kinds.entry(usage.record_size).or_default().add(usage);
            if args.all {
                let mut line =
                    Line { path: Some(file), record_size: Some(usage.record_size), ..Line::default() };
                line.add(usage);
                lines.push(line);
            }
        })?;
        if args.summarize {
            lines.push(argument);
        }
    }
    progress.finish();
    let problems = std::mem::take(&mut scan.problems);
    sort(&mut lines, args.sort);
    let by_kind: Vec<Line> =
        kinds.into_iter().map(|(size, line)| Line { record_size: Some(size), ..line }).collect();
    if args.output.json {
        super::print_json(&serde_json::json!({ "lines": lines, "recordsizes": by_kind, "total": total }))?;
    } else {
        print(args, &lines, &by_kind, &total);
    }
    for problem in &problems {
        eprintln!("pagefold: {problem}");
    }
    if problems.is_empty() {
        Ok(())
    } else {
        Err(Failure::new(format!("{} names were left out", problems.len())))
    }
}

struct Scan<'a> {
    /// The server behind each device number.
    clients: HashMap<u64, Client>,
    /// Inodes that were counted: a file with several names is counted once.
    seen: HashSet<(u64, u64)>,
    progress: &'a Progress,
    problems: Vec<String>,
}

impl Scan<'_> {
    /// Everything at and below one argument, on its own mount.
    fn argument(&mut self, path: &Path, emit: &mut dyn FnMut(PathBuf, &FileUsage)) -> Result<()> {
        let metadata = fs::symlink_metadata(path).context(|| format!("cannot look at {}", shown(path)))?;
        let device = metadata.dev();
        if let Entry::Vacant(vacant) = self.clients.entry(device) {
            let mut client = target::server(&target::mount_of(path)?.source)?;
            // What was just written has no stored size yet.
            match client.ask_and_wait(&Request::Sync {})? {
                Reply::Done {} => {}
                _ => return Err(client.misunderstood()),
            }
            vacant.insert(client);
        }
        let mut batch = Vec::new();
        let mut stack = vec![(path.to_owned(), metadata)];
        while let Some((path, metadata)) = stack.pop() {
            if metadata.dev() != device {
                continue;
            }
            if metadata.is_dir() {
                self.children(&path, &mut stack);
            } else if metadata.is_file() && self.seen.insert((device, metadata.ino())) {
                self.progress.step(1);
                batch.push((path, metadata.ino()));
                if batch.len() == BATCH {
                    self.ask(device, &mut batch, emit)?;
                }
            }
        }
        self.ask(device, &mut batch, emit)
    }

    fn children(&mut self, dir: &Path, stack: &mut Vec<(PathBuf, fs::Metadata)>) {
        let entries = match fs::read_dir(dir) {
            Ok(entries) => entries,
            Err(error) => return self.problems.push(format!("cannot list {}: {error}", shown(dir))),
        };
        for entry in entries {
            match entry.and_then(|entry| Ok((entry.path(), entry.metadata()?))) {
                Ok(child) => stack.push(child),
                // It went away while we looked.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => self.problems.push(format!("cannot look into {}: {error}", shown(dir))),
            }
        }
    }

    fn ask(
        &mut self,
        device: u64,
        batch: &mut Vec<(PathBuf, u64)>,
        emit: &mut dyn FnMut(PathBuf, &FileUsage),
    ) -> Result<()> {
        let Some(client) = self.clients.get_mut(&device).filter(|_| !batch.is_empty()) else { return Ok(()) };
        let inodes = batch.iter().map(|(_, inode)| *inode).collect();
        let Reply::Usage { files } = client.ask(&Request::Usage { inodes })? else {
            return Err(client.misunderstood());
        };
        for ((path, _), usage) in batch.drain(..).zip(files) {
            if let Some(usage) = usage {
                emit(path, &usage);
            }
        }
        Ok(())
    }
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
    let mut table = Table::new(&[
        ("RECORDSIZE", Align::Right),
        ("FILES", Align::Right),
        ("SIZE", Align::Right),
        ("LOGICAL", Align::Right),
        ("STORED", Align::Right),
        ("RATIO", Align::Right),
        ("PATH", Align::Left),
    ]);
    let size = |bytes: u64| if args.output.exact { bytes.to_string() } else { units::size(bytes) };
    let mut row = |line: &Line, name: &str| {
        table.row(vec![
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
            name.to_owned(),
        ]);
    };
    for line in lines {
        row(line, &line.path.as_deref().map(shown).unwrap_or_default());
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

fn shown(path: &Path) -> String {
    printable(&path.to_string_lossy())
}
