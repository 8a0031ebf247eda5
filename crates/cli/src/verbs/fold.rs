//! `fold`: codes stored records again, stronger.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::json;

use super::walk::Walk;
use crate::args::Fold;
use crate::control::{Client, Folded, MountFigures, Reply, Request};
use crate::failure::{Failure, Result};
use crate::names::{self, Name};
use crate::progress::Progress;
use crate::registry::Registry;
use crate::{raw, target, units};

/// Files of one mount that are to be folded.
struct RecompressJob {
    client: Client,
    device: u32,
    inodes: Vec<u64>,
}

/// Folds the files that are named, and tells what that gained.
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
                all.push(RecompressJob { client: target::server(client.pool())?, device, inodes });
                Ok(())
            })?;
        }
    }
    counting.finish();
    let problems = std::mem::take(&mut walk.problems);
    let progress = Progress::bytes("folding");
    let folded = all.iter_mut().try_fold(Folded::default(), |mut sum, work| {
        work.fold(args.rate, &mut |more| {
            sum.add(more);
            progress.at(sum.logical_bytes, total_bytes.max(sum.logical_bytes));
        })?;
        Ok(sum)
    });
    progress.finish();
    tell(args, &folded?)?;
    for problem in &problems {
        eprintln!("pagefold: {problem}");
    }
    if problems.is_empty() {
        Ok(())
    } else {
        Err(Failure::new(format!("{} names were left out", problems.len())))
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
    /// Folds request by request; after each it rests if there is a bound on the rate.
    fn fold(&mut self, rate: Option<u64>, each: &mut dyn FnMut(&Folded)) -> Result<()> {
        let mut at = Some((0, 0));
        while let Some(from) = at {
            let begun = Instant::now();
            let request = Request::Fold { device: self.device, inodes: self.inodes.clone(), from };
            let Reply::Folded { folded, next } = self.client.ask_and_wait(&request)? else {
                return Err(self.client.misunderstood());
            };
            each(&folded);
            at = next;
            if let Some(rate) = rate.filter(|rate| *rate > 0) {
                let due = Duration::from_secs_f64(folded.logical_bytes as f64 / rate as f64);
                std::thread::sleep(due.saturating_sub(begun.elapsed()));
            }
        }
        Ok(())
    }
}

fn tell(args: &Fold, folded: &Folded) -> Result<()> {
    if args.output.json {
        return super::print_json(&json!({ "folded": folded }));
    }
    let size = |bytes: u64| if args.output.exact { bytes.to_string() } else { units::size(bytes) };
    if args.output.script {
        let Folded { pages, recoded, before_bytes, after_bytes, written_bytes, .. } = folded;
        println!("{pages}\t{recoded}\t{before_bytes}\t{after_bytes}\t{written_bytes}");
        return Ok(());
    }
    println!(
        "{} of {} pages became shorter: {} instead of {}; {} written",
        folded.recoded,
        folded.pages,
        size(folded.after_bytes),
        size(folded.before_bytes),
        size(folded.written_bytes)
    );
    Ok(())
}
