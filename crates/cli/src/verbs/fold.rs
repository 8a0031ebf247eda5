//! `fold`: codes stored records again, stronger.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use pagefold_server::control::{Client, MountFigures, RecompressFigures, Reply, Request};
use pagefold_server::failure::{Failure, Result};
use pagefold_server::names::{self, Name};
use pagefold_server::registry::Registry;
use pagefold_server::{raw, units};
use serde_json::json;

use super::walk::Walk;
use crate::args::Fold;
use crate::progress::Progress;
use crate::target;

/// Files of one mount whose records are to be coded again.
struct RecompressJob {
    pool: String,
    device: u32,
    inodes: Vec<u64>,
}

/// Codes the files that are named again, and reports what that gained.
pub fn run(args: &Fold) -> Result<()> {
    let counting = Progress::counter("files looked at");
    let mut walk = Walk::new(&counting);
    let mut all: Vec<RecompressJob> = Vec::new();
    let mut total_bytes = 0;
    for word in &args.targets {
        for path in paths_of(word)? {
            walk.path(&path, &mut |client, device, files| {
                let inodes: Vec<u64> = files.into_iter().map(|(_, inode)| inode).collect();
                let request = Request::Usage { device, inodes: inodes.clone() };
                let Reply::Usage { files } = client.ask(&request)? else {
                    return Err(client.misunderstood());
                };
                total_bytes += files.iter().flatten().map(|usage| usage.logical_bytes).sum::<u64>();
                all.push(RecompressJob { pool: client.pool().to_owned(), device, inodes });
                Ok(())
            })?;
        }
    }
    counting.finish();
    let problems = std::mem::take(&mut walk.problems);
    let progress = Progress::bytes("folding");
    // A server has places for some dozens of connections, and each job has no more files than one request may name.
    let mut clients: BTreeMap<&str, Client> = BTreeMap::new();
    let figures = all.iter().try_fold(RecompressFigures::default(), |mut sum, job| {
        let client = match clients.entry(&job.pool) {
            Entry::Vacant(place) => place.insert(target::server(&job.pool)?),
            Entry::Occupied(place) => place.into_mut(),
        };
        job.run(client, args.rate, &mut |more| {
            sum.add(more);
            progress.at(sum.logical_bytes, total_bytes.max(sum.logical_bytes));
        })?;
        Ok(sum)
    });
    progress.finish();
    report(args, &figures?)?;
    for problem in &problems {
        eprintln!("pagefold: {problem}");
    }
    if problems.is_empty() {
        Ok(())
    } else {
        Err(Failure::new(format!("{} left out", units::counted(problems.len() as u64, "name"))))
    }
}

/// Returns the path, or for the name of a dataset the mount points of it and of those below it.
fn paths_of(word: &str) -> Result<Vec<PathBuf>> {
    let path = raw::path_of(word);
    let Ok(name) = Name::parse(word) else { return Ok(vec![path]) };
    let Some(mut client) = target::connect(&name.pool)? else {
        let is_pool = Registry::open()?.all()?.iter().any(|known| known.name == name.pool);
        // A word that is neither a pool nor a path is reported as an unknown pool.
        return match path.exists() && !is_pool {
            true => Ok(vec![path]),
            false => target::server(word).map(|_| Vec::new()),
        };
    };
    let Reply::Status { figures } = client.ask(&Request::Status {})? else {
        return Err(client.misunderstood());
    };
    let of = |mount: &&MountFigures| names::is_within(&mount.path, &name.path) && !mount.path.contains('@');
    let dirs: Vec<PathBuf> = figures.mounts.iter().filter(of).map(|mount| mount.dir.clone()).collect();
    if name.is_snapshot() {
        return Err(Failure::usage(format!("{name} is a snapshot's name: fold datasets")).hint(format!(
            "what snapshots share with them is coded again with them: pagefold fold {}",
            name.pool
        )));
    }
    if dirs.is_empty() {
        return Err(Failure::new(format!("{name} is not mounted"))
            .hint(format!("mount it first: pagefold mount {name} DIR")));
    }
    Ok(dirs)
}

impl RecompressJob {
    /// Works request by request; after each it rests if there is a bound on the rate.
    fn run(
        &self,
        client: &mut Client,
        rate: Option<u64>,
        each: &mut dyn FnMut(&RecompressFigures),
    ) -> Result<()> {
        let mut at = Some((0, 0));
        while let Some(from) = at {
            let begun = Instant::now();
            let request = Request::Recompress { device: self.device, inodes: self.inodes.clone(), from };
            let Reply::Recompressed { figures, next } = client.ask_and_wait(&request)? else {
                return Err(client.misunderstood());
            };
            each(&figures);
            at = next;
            if let Some(rate) = rate.filter(|rate| *rate > 0) {
                let due = Duration::from_secs_f64(figures.logical_bytes as f64 / rate as f64);
                std::thread::sleep(due.saturating_sub(begun.elapsed()));
            }
        }
        Ok(())
    }
}

fn report(args: &Fold, figures: &RecompressFigures) -> Result<()> {
    if args.output.json {
        return super::print_json(&json!({ "folded": figures }));
    }
    let size = |bytes: u64| if args.output.exact { bytes.to_string() } else { units::size(bytes) };
    if args.output.script {
        let RecompressFigures { pages, recoded, before_bytes, after_bytes, written_bytes, .. } = figures;
        println!("{pages}\t{recoded}\t{before_bytes}\t{after_bytes}\t{written_bytes}");
        return Ok(());
    }
    println!(
        "{} of {} pages became shorter: {} instead of {}; {} written",
        figures.recoded,
        figures.pages,
        size(figures.after_bytes),
        size(figures.before_bytes),
        size(figures.written_bytes)
    );
    Ok(())
}
