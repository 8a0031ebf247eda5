//! `rewrite`: gives files that have data another recordsize.

use std::path::{Path, PathBuf};

use pagefold_server::control::{Client, FileRewrite, Reply, Request};
use pagefold_server::failure::{Context, Failure, Result};
use pagefold_server::{raw, units};
use serde_json::json;

use super::walk::Walk;
use crate::args::Rewrite;
use crate::progress::Progress;
use crate::table::printable;
use crate::target;

/// A file to be rewritten.
struct RewriteJob {
    path: PathBuf,
    pool: String,
    device: u32,
    inode: u64,
}

/// The outcome for a file.
struct RewriteResult {
    path: PathBuf,
    /// Bytes that were copied; `None` if there was nothing to copy.
    copied_bytes: Option<u64>,
}

/// Rewrites the files that are named, one by one, and tells the outcome.
pub fn run(args: &Rewrite) -> Result<()> {
    let recordsize = recordsize(args.recordsize)?;
    let counting = Progress::counter("files looked at");
    let mut walk = Walk::new(&counting);
    let mut all: Vec<RewriteJob> = Vec::new();
    let mut problems = Vec::new();
    for path in &args.paths {
        if let Err(failure) = check(path, args.recursive) {
            problems.push(failure);
            continue;
        }
        walk.path(path, &mut |client, device, files| {
            let pool = client.pool().to_owned();
            let work = |(path, inode)| RewriteJob { path, pool: pool.clone(), device, inode };
            all.extend(files.into_iter().map(work));
            Ok(())
        })?;
    }
    counting.finish();
    problems.extend(walk.problems.drain(..).map(Failure::new));
    let mut done = Vec::new();
    for work in &all {
        match work.rewrite(recordsize, args.rate) {
            Ok(copied_bytes) => done.push(RewriteResult { path: work.path.clone(), copied_bytes }),
            Err(failure) => problems.push(of_file(&work.path, &failure)),
        }
    }
    make_durable(&all)?;
    print_result(args, &done)?;
    problems.iter().for_each(|problem| eprintln!("pagefold: {problem}"));
    match problems.len() {
        0 => Ok(()),
        count => Err(Failure::new(format!("{count} of {} files were not rewritten", all.len().max(count)))),
    }
}

fn recordsize(bytes: u64) -> Result<u32> {
    let found =
        u32::try_from(bytes).ok().filter(|bytes| bytes.is_power_of_two() && (4096..=1 << 20).contains(bytes));
    found.ok_or_else(|| {
        Failure::usage(format!("a recordsize of {bytes} bytes cannot be"))
            .hint("give a power of two from 4K to 1M")
    })
}

/// Refuses a directory without -r, and anything that has no data.
fn check(path: &Path, recursive: bool) -> Result<()> {
    let shown = printable(&raw::text(path));
    let kind = std::fs::symlink_metadata(path).context(|| format!("cannot look at {shown}"))?.file_type();
    match (kind.is_file(), kind.is_dir()) {
        (true, _) => Ok(()),
        (_, true) if recursive => Ok(()),
        (_, true) => Err(Failure::new(format!("{shown} is a directory"))
            .hint(format!("all files in it: pagefold rewrite -r --recordsize N {shown}"))),
        _ => Err(Failure::new(format!("{shown} is no regular file"))
            .hint("links are not followed: give the file itself")),
    }
}

fn of_file(path: &Path, failure: &Failure) -> Failure {
    let told = Failure::new(format!("{}: {}", printable(&raw::text(path)), failure.what()));
    match failure.advice() {
        Some(hint) => told.hint(hint),
        None => told,
    }
}

impl RewriteJob {
    /// Rewrites one file on a connection of its own, whose end ends the rewrite. Returns the number of bytes that were
    /// copied, if any had to be.
    fn rewrite(&self, recordsize: u32, rate: Option<u64>) -> Result<Option<u64>> {
        let mut client: Client = target::server(&self.pool)?;
        let path = std::path::absolute(&self.path).unwrap_or_else(|_| self.path.clone());
        let what = FileRewrite { device: self.device, inode: self.inode, recordsize, rate, path };
        let progress = Progress::bytes("rewriting");
        let mut reply = client.ask_and_wait(&Request::Rewrite { what })?;
        while let Reply::Rewriting { done_bytes, total_bytes } = reply {
            progress.at(done_bytes, total_bytes);
            reply = client.last_reply()?;
        }
        progress.finish();
        match reply {
            Reply::Rewritten { copied_bytes } => Ok(copied_bytes),
            _ => Err(client.misunderstood()),
        }
    }
}

/// Syncs the pools, so that a file reported as rewritten is so after a power cut, too.
fn make_durable(all: &[RewriteJob]) -> Result<()> {
    let mut pools: Vec<&str> = all.iter().map(|work| work.pool.as_str()).collect();
    pools.sort_unstable();
    pools.dedup();
    for pool in pools {
        let mut client = target::server(pool)?;
        match client.ask_and_wait(&Request::Sync {})? {
            Reply::Done {} => {}
            _ => return Err(client.misunderstood()),
        }
    }
    Ok(())
}

fn print_result(args: &Rewrite, done: &[RewriteResult]) -> Result<()> {
    if args.output.json {
        let file = |outcome: &RewriteResult| {
            json!({
                "path": raw::text(&outcome.path), "rewritten": outcome.copied_bytes.is_some(),
                "copied_bytes": outcome.copied_bytes.unwrap_or(0),
            })
        };
        return super::print_json(&json!({ "rewritten": done.iter().map(file).collect::<Vec<_>>() }));
    }
    let copied: Vec<u64> = done.iter().filter_map(|outcome| outcome.copied_bytes).collect();
    let (files, bytes, left) = (copied.len(), copied.iter().sum::<u64>(), done.len() - copied.len());
    if args.output.script {
        println!("{files}\t{left}\t{bytes}");
        return Ok(());
    }
    let shown = if args.output.exact { bytes.to_string() } else { units::size(bytes) };
    println!(
        "{} rewritten, {shown} copied; {left} had nothing to be copied",
        units::counted(files as u64, "file")
    );
    Ok(())
}
