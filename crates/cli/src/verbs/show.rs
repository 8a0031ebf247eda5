//! `list`, `status` and `df`: show pools and their figures.

mod advice;
mod status;

use std::time::Duration;

use pagefold_server::control::{Client, PoolFigures, Reply, Request};
use pagefold_server::failure::{Failure, Result};
use pagefold_server::registry::{Known, Registry};
use pagefold_server::{mounts, pool_status, raw, timeouts, units};
use serde_json::json;

use crate::args::{Output, Pools};
use crate::failures::Failures;
use crate::table::{Align, Table};
use crate::target;

pub(super) use status::print_layout;
pub use status::status;

/// End of the sentence "N of M could not be ..." about pools that failed.
pub(super) const SHOWN: &str = "shown in full";
/// State of a pool that is known and cannot be opened.
const UNAVAILABLE: &str = "UNAVAIL";
/// State of a pool whose server does not answer.
const SILENT: &str = "SILENT";

/// Prints one line per pool.
pub fn list(targets: &[String], output: Output) -> Result<()> {
    let (pools, failures) = gather(targets, timeouts::ANSWER_IN_LIST)?;
    if output.json {
        super::print_json(&json!({ "pools": pools, "failures": failures.json() }))?;
        return failures.finish(targets.len(), SHOWN);
    }
    if pools.is_empty() && !output.script && failures.is_empty() {
        eprintln!("no pools are known here: `pagefold create` one, or find one with `pagefold import`");
        return Ok(());
    }
    let show = Numbers(output);
    let mut table = Table::new(&[
        ("NAME", Align::Left),
        ("SIZE", Align::Right),
        ("ALLOC", Align::Right),
        ("FREE", Align::Right),
        ("CAP", Align::Right),
        ("LOGICAL", Align::Right),
        ("RATIO", Align::Right),
        ("MODELS", Align::Right),
        ("STATE", Align::Left),
        ("MOUNTPOINT", Align::Left),
    ]);
    for pool in &pools {
        if !is_seen(pool) {
            let unknown = || "-".to_owned();
            let name = pool.name.clone();
            let state = pool.state.clone();
            table.row(vec![
                name,
                unknown(),
                unknown(),
                unknown(),
                unknown(),
                unknown(),
                unknown(),
                unknown(),
                state,
                mountpoint(pool),
            ]);
            continue;
        }
        table.row(vec![
            pool.name.clone(),
            show.size(pool.size_bytes),
            show.size(pool.used_bytes),
            show.size(pool.available_bytes),
            show.percent(pool.used_bytes, pool.capacity_bytes),
            show.size(pool.logical_bytes),
            show.ratio(pool.logical_bytes, pool.physical_bytes),
            pool.models.to_string(),
            pool.state.clone(),
            mountpoint(pool),
        ]);
    }
    table.print(output.script);
    failures.finish(targets.len(), SHOWN)
}

/// Prints the space of mounted pools.
pub fn df(args: &Pools) -> Result<()> {
    let mut failures = Failures::new();
    let mut pools: Vec<PoolFigures> = Vec::new();
    for (pool, client) in target::each_server(&args.targets)? {
        let figures = client.and_then(|mut client| ask(&mut client));
        pools.extend(failures.take(&pool, figures));
    }
    if args.output.json {
        super::print_json(&json!({ "pools": pools, "failures": failures.json() }))?;
        return failures.finish(args.targets.len(), SHOWN);
    }
    if pools.is_empty() && !args.output.script && failures.is_empty() {
        eprintln!("no pool is mounted");
        return Ok(());
    }
    let show = Numbers(args.output);
    let mut table = Table::new(&[
        ("POOL", Align::Left),
        ("LOGICAL", Align::Right),
        ("REFER", Align::Right),
        ("RATIO", Align::Right),
        ("PHYSICAL", Align::Right),
        ("FREE", Align::Right),
        ("USE%", Align::Right),
        ("FULL IN", Align::Right),
        ("WAF", Align::Right),
        ("MOUNTED ON", Align::Left),
    ]);
    for pool in &pools {
        table.row(vec![
            pool.name.clone(),
            show.size(pool.logical_bytes),
            show.size(pool.physical_bytes),
            show.ratio(pool.logical_bytes, pool.physical_bytes),
            show.size(pool.used_bytes),
            show.size(pool.available_bytes),
            show.percent(pool.used_bytes, pool.capacity_bytes),
            show.days(pool.forecast.and_then(|forecast| forecast.full_in_days)),
            units::ratio_text(pool.write_amplification),
            mountpoint(pool),
        ]);
    }
    table.print(args.output.script);
    failures.finish(args.targets.len(), SHOWN)
}

/// Returns the figures of the pools that are named, or of all that are known or mounted. A pool that is known and
/// cannot be opened is among them, and is reported as a failure as well; so is one whose server does not answer for as
/// long as `patience`.
fn gather(words: &[String], patience: Duration) -> Result<(Vec<PoolFigures>, Failures)> {
    let mut failures = Failures::new();
    let mut all = Vec::new();
    for name in &named_pools(words, &mut failures)? {
        let Some(pool) = failures.take(name, one(name, patience)) else { continue };
        if !is_seen(&pool) {
            let problem = pool.problem.clone().unwrap_or_else(|| "it cannot be opened".into());
            failures.also(name, Failure::new(problem));
        }
        all.push(pool);
    }
    Ok((all, failures))
}

/// Returns the pools that the words name, or all that are known or mounted.
pub(super) fn named_pools(words: &[String], failures: &mut Failures) -> Result<Vec<String>> {
    let mut names: Vec<String> = Vec::new();
    for word in words {
        names.extend(failures.need(word, target::pool_name(word)));
    }
    if words.is_empty() {
        names = Registry::open()?.all()?.into_iter().map(|known| known.name).collect();
        names.extend(Client::each()?.into_iter().map(|(pool, _)| pool));
        names.sort();
        names.dedup();
    }
    Ok(names)
}

/// Returns true if the figures of a pool are known, not only its name.
fn is_seen(pool: &PoolFigures) -> bool {
    pool.state != UNAVAILABLE && pool.state != SILENT
}

fn one(pool: &str, patience: Duration) -> Result<PoolFigures> {
    let ask = |client: &mut Client| match client.ask_while(&Request::Status {}, patience, &mut || true) {
        Ok(Some(Reply::Status { figures })) => Ok(*figures),
        Ok(_) => Err(client.misunderstood()),
        Err(failure) if client.is_silent() => Ok(silent(pool, &failure)),
        Err(failure) => Err(failure),
    };
    target::ask_or_look(pool, ask, |known| {
        Ok(pool_status::figures_offline(known).unwrap_or_else(|failure| unavailable(Some(known), &failure)))
    })
}

fn ask(client: &mut Client) -> Result<PoolFigures> {
    match client.ask(&Request::Status {})? {
        Reply::Status { figures } => Ok(*figures),
        _ => Err(client.misunderstood()),
    }
}

/// Returns the figures of a pool whose server does not answer, so that it is listed all the same.
fn silent(pool: &str, failure: &Failure) -> PoolFigures {
    let known = Registry::open().and_then(|registry| registry.find(pool)).ok();
    PoolFigures { name: pool.to_owned(), state: SILENT.into(), ..unavailable(known.as_ref(), failure) }
}

/// Returns the figures of a known pool that cannot be opened now, so that it is listed all the same.
fn unavailable(known: Option<&Known>, failure: &Failure) -> PoolFigures {
    let devices = known.iter().flat_map(|known| &known.devices);
    PoolFigures {
        name: known.map(|known| known.name.clone()).unwrap_or_default(),
        guid: known.map(|known| known.guid.clone()).unwrap_or_default(),
        state: UNAVAILABLE.into(),
        problem: Some(failure.what().to_owned()),
        devices: devices.map(|path| pool_status::unseen_device(path)).collect(),
        ..PoolFigures::default()
    }
}

fn mountpoint(pool: &PoolFigures) -> String {
    if let Some(mount) = &pool.mount {
        let dir = raw::text(&mount.dir);
        let others = pool.mounts.len().saturating_sub(1);
        return if others == 0 { dir } else { format!("{dir} (and {others} more)") };
    }
    if pool.state == SILENT {
        // Nobody looks at the mount itself: that would wait for the server, too.
        let there = mounts::ours().unwrap_or_default().into_iter().find(|mount| mount.pool() == pool.name);
        return there.map_or_else(|| "-".into(), |mount| raw::text(&mount.dir));
    }
    let dead = mounts::dead(&pool.name).unwrap_or_default().into_iter().next();
    dead.map_or_else(|| "-".into(), |mount| format!("{} (its server died)", raw::text(&mount.dir)))
}

/// Form of numbers, as asked for: rounded with units, or exact.
#[derive(Clone, Copy)]
struct Numbers(Output);

impl Numbers {
    fn size(self, bytes: u64) -> String {
        if self.0.exact { bytes.to_string() } else { units::size(bytes) }
    }
    fn ratio(self, logical: u64, stored: u64) -> String {
        let ratio = units::ratio(logical, stored);
        match ratio {
            Some(ratio) if self.0.exact => format!("{ratio:.2}"),
            ratio => units::ratio_text(ratio),
        }
    }
    /// Returns a number of days, if there is one.
    fn days(self, days: Option<u64>) -> String {
        let unit = if self.0.exact { "" } else { "d" };
        days.map_or_else(|| "-".into(), |days| format!("{days}{unit}"))
    }
    fn percent(self, part: u64, whole: u64) -> String {
        let text = units::percent(part, whole);
        if self.0.exact { text.trim_end_matches('%').to_owned() } else { text }
    }
}
