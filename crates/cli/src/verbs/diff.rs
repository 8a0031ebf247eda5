//! `diff`: which files differ between two versions of a dataset.

use std::io::{BufRead, BufReader, Read};

use pagefold_server::control::{Difference, Reply, Request};
use pagefold_server::failure::{Context, Result};
use pagefold_server::names::Name;
use pagefold_server::registry::Registry;
use pagefold_server::{pools, streams};
use serde_json::json;

use super::dataset::{same_pool, snapshot_name, wrong_order};
use crate::args::Diff;
use crate::table::printable;
use crate::target;

/// Prints how the versions differ.
pub fn run(args: &Diff) -> Result<()> {
    if !args.old.contains('@') && args.new.contains('@') {
        return Err(wrong_order("the older snapshot", &format!("diff {} {}", args.new, args.old)));
    }
    let (old, new) = (snapshot_name(&args.old)?, Name::parse(&args.new)?);
    same_pool(&old, &new)?;
    let mut all = Vec::new();
    let mut each =
        |difference: Difference| if args.json { all.push(difference) } else { print(args, &difference) };
    let Some(mut client) = target::connect(&old.pool)? else {
        let known = Registry::open()?.find(&old.pool)?;
        let mut lines = Vec::new();
        // A dataset that nobody uses stays as it is while it is compared.
        pools::look_offline(&known, |pool| {
            streams::diff(pool, &old.path, &new.path, args.ranges, &mut lines)
        })?;
        parse(lines.as_slice(), &mut each)?;
        return finish(args, &all);
    };
    let request = Request::Diff { old: old.path, new: new.path, ranges: args.ranges };
    let Reply::Stream { .. } = client.ask_and_wait(&request)? else { return Err(client.misunderstood()) };
    if let Err(error) = parse(client.pieces(), &mut each) {
        return Err(match client.last_reply() {
            Ok(_) => error,
            Err(lost) => lost,
        });
    }
    let Reply::Done {} = client.last_reply()? else { return Err(client.misunderstood()) };
    finish(args, &all)
}

fn parse(lines: impl Read, each: &mut dyn FnMut(Difference)) -> Result<()> {
    for line in BufReader::new(lines).lines() {
        let line = line.context(|| "cannot read the differences".into())?;
        each(serde_json::from_str(&line).context(|| "cannot read a difference".into())?);
    }
    Ok(())
}

fn finish(args: &Diff, all: &[Difference]) -> Result<()> {
    if args.json { super::print_json(&json!({ "differences": all })) } else { Ok(()) }
}

fn print(args: &Diff, difference: &Difference) {
    let mark = match difference.change.as_str() {
        "created" => '+',
        "removed" => '-',
        "renamed" => 'R',
        _ => 'M',
    };
    let path = printable(&difference.path);
    let path = match &difference.from {
        Some(from) => format!("{} -> {path}", printable(from)),
        None => path,
    };
    if args.ranges && !difference.ranges.is_empty() {
        let ranges: Vec<String> =
            difference.ranges.iter().map(|(first, end)| format!("{first}-{end}")).collect();
        println!("{mark}\t{path}\t{}", ranges.join(","));
    } else {
        println!("{mark}\t{path}");
    }
}
