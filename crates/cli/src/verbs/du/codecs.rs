//! `du --codecs`: sums the records of files by codec.

use std::collections::BTreeMap;

use pagefold_server::control::{Client, CodecFigures, Reply, Request};
use pagefold_server::failure::Result;
use pagefold_server::units;

use super::left_out;
use crate::args::Du;
use crate::progress::Progress;
use crate::table::{Align, Table};
use crate::verbs::walk::Walk;

/// Sums by codec.
type Sums = BTreeMap<String, CodecFigures>;

/// Prints what records of the files under the given paths take, by codec.
pub fn run(args: &Du) -> Result<()> {
    let progress = Progress::counter("files looked at");
    let mut walk = Walk::new(&progress);
    let mut sums = Sums::new();
    for path in &args.paths {
        walk.path(path, &mut |client, device, files| {
            let inodes: Vec<u64> = files.iter().map(|(_, inode)| *inode).collect();
            add(client, device, &inodes, &mut sums)
        })?;
    }
    progress.finish();
    let problems = std::mem::take(&mut walk.problems);
    let mut lines: Vec<CodecFigures> = sums.into_values().collect();
    lines.sort_by_key(|line| std::cmp::Reverse(line.stored_bytes));
    let mut total = CodecFigures { codec: "total".into(), ..CodecFigures::default() };
    lines.iter().for_each(|line| sum(&mut total, line));
    if args.output.json {
        super::super::print_json(&serde_json::json!({ "codecs": lines, "total": total }))?;
    } else {
        print(args, &lines, &total);
    }
    left_out(&problems)
}

/// Adds the records of these files, request by request.
fn add(client: &mut Client, device: u32, inodes: &[u64], sums: &mut Sums) -> Result<()> {
    let mut at = Some((0, 0));
    while let Some(from) = at {
        let request = Request::Codecs { device, inodes: inodes.to_vec(), from };
        let Reply::Codecs { codecs, next } = client.ask_and_wait(&request)? else {
            return Err(client.misunderstood());
        };
        for of in &codecs {
            let codec = of.codec.clone();
            let line = sums
                .entry(codec.clone())
                .or_insert_with(|| CodecFigures { codec, ..CodecFigures::default() });
            sum(line, of);
        }
        at = next;
    }
    Ok(())
}

fn sum(to: &mut CodecFigures, of: &CodecFigures) {
    to.pages += of.pages;
    to.records += of.records;
    to.logical_bytes += of.logical_bytes;
    to.stored_bytes += of.stored_bytes;
}

fn print(args: &Du, lines: &[CodecFigures], total: &CodecFigures) {
    let mut table = Table::new(&[
        ("CODEC", Align::Left),
        ("RECORDS", Align::Right),
        ("LOGICAL", Align::Right),
        ("STORED", Align::Right),
        ("RATIO", Align::Right),
    ]);
    let size = |bytes: u64| if args.output.exact { bytes.to_string() } else { units::size(bytes) };
    for line in lines.iter().chain((!args.output.script || lines.is_empty()).then_some(total)) {
        let ratio = units::ratio(line.logical_bytes, line.stored_bytes);
        table.row(vec![
            line.codec.clone(),
            line.records.to_string(),
            size(line.logical_bytes),
            size(line.stored_bytes),
            match ratio {
                Some(ratio) if args.output.exact => format!("{ratio:.2}"),
                ratio => units::ratio_text(ratio),
            },
        ]);
    }
    table.print(args.output.script);
}
