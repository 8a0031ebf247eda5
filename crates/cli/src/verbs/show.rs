//! `list`, `status` and `df`: pools and their figures.

use serde_json::json;

use crate::args::{Output, Pools};
use crate::control::{
    Client, ConfinementFigures, MemoryFigures, PoolFigures, QuotaFigures, Reply, Request, TakeoverFigures,
};
use crate::failure::{Failure, Result};
use crate::mounts;
use crate::registry::{Known, Registry};
use crate::serve::{FULL_PERCENT, percent};
use crate::table::{self, Align, Table};
use crate::{pools, raw, target, units};

/// State of a pool that is known and cannot be opened.
const UNAVAILABLE: &str = "UNAVAIL";

/// One line per pool.
pub fn list(targets: &[String], output: Output) -> Result<()> {
    let pools = gather(targets)?;
    if output.json {
        return super::print_json(&json!({ "pools": pools }));
    }
    if pools.is_empty() && !output.script {
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
        if pool.state == UNAVAILABLE {
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
            show.ratio(pool.logical_bytes, pool.used_bytes),
            pool.models.to_string(),
            pool.state.clone(),
            mountpoint(pool),
        ]);
    }
    table.print(output.script);
    Ok(())
}

/// Space of mounted pools.
pub fn df(args: &Pools) -> Result<()> {
    let pools: Vec<PoolFigures> = target::servers(&args.targets)?
        .into_iter()
        .map(|mut client| ask(&mut client))
        .collect::<Result<_>>()?;
    if args.output.json {
        return super::print_json(&json!({ "pools": pools }));
    }
    if pools.is_empty() && !args.output.script {
        eprintln!("no pool is mounted");
        return Ok(());
    }
    let show = Numbers(args.output);
    let mut table = Table::new(&[
        ("POOL", Align::Left),
        ("LOGICAL", Align::Right),
        ("PHYSICAL", Align::Right),
        ("RATIO", Align::Right),
        ("FREE", Align::Right),
        ("USE%", Align::Right),
        ("WAF", Align::Right),
        ("MOUNTED ON", Align::Left),
    ]);
    for pool in &pools {
        table.row(vec![
            pool.name.clone(),
            show.size(pool.logical_bytes),
            show.size(pool.used_bytes),
            show.ratio(pool.logical_bytes, pool.used_bytes),
            show.size(pool.available_bytes),
            show.percent(pool.used_bytes, pool.capacity_bytes),
            units::ratio_text(pool.write_amplification),
            mountpoint(pool),
        ]);
    }
    table.print(args.output.script);
    Ok(())
}

/// Everything about each pool.
pub fn status(args: &Pools) -> Result<()> {
    let pools = gather(&args.targets)?;
    if args.output.json {
        return super::print_json(&json!({ "pools": pools }));
    }
    if pools.is_empty() {
        eprintln!("no pools are known here: `pagefold create` one, or find one with `pagefold import`");
    }
    for (index, pool) in pools.iter().enumerate() {
        if index > 0 {
            println!();
        }
        print_status(pool, Numbers(args.output));
    }
    Ok(())
}

/// What becomes of the mounts when their server dies, and what has become of them.
fn takeover_text(takeover: &TakeoverFigures) -> String {
    if !takeover.on {
        return "off: the mounts end with their server".into();
    }
    match (takeover.restarts, takeover.last_stall_ms) {
        (0, _) | (_, None) => "on: another server goes on when this one dies".into(),
        (restarts, Some(stall)) => {
            let reason = table::printable(&takeover.last_reason);
            format!(
                "on: {restarts} servers went before this one, the last one by {reason}; requests waited {stall} ms"
            )
        }
    }
}

/// What a server has given up.
fn confinement_text(confinement: &ConfinementFigures) -> String {
    if !confinement.on {
        return "off: the server keeps all privileges that it was started with".into();
    }
    let capabilities = match confinement.capabilities.join(", ") {
        none if none.is_empty() => "no capabilities".into(),
        some => some,
    };
    let calls = if confinement.system_calls { "; system calls are filtered" } else { "" };
    let paths = if confinement.paths { "; paths are restricted" } else { "" };
    let missing = confinement.missing.iter().map(|missing| format!("; missing: {missing}"));
    format!("{capabilities}{calls}{paths}{}", missing.collect::<String>())
}

fn print_status(pool: &PoolFigures, show: Numbers) {
    let line = |label: &str, text: &str| println!("{label:>12}: {text}");
    line("pool", &pool.name);
    line("state", &table::state(&pool.state));
    if let Some(problem) = &pool.problem {
        line("problem", problem);
    }
    if let Some(advice) = advice(pool) {
        line("action", &advice);
    }
    line("guid", &pool.guid);
    if let Some(pid) = pool.pid {
        line("server", &format!("process {pid}"));
    }
    if let Some(takeover) = &pool.takeover {
        line("takeover", &takeover_text(takeover));
    }
    if let Some(confinement) = &pool.confinement {
        line("confined", &confinement_text(confinement));
    }
    for mount in &pool.mounts {
        let how = if mount.read_only { "read-only, " } else { "" };
        let dir = table::printable(&raw::text(&mount.dir));
        let since = units::utc(mount.since);
        line("mounted", &format!("{} at {dir} ({how}over {}, since {since})", mount.name, mount.transport));
    }
    if pool.state == UNAVAILABLE {
        line(
            "devices",
            &crate::registry::paths_text(&pool.devices.iter().map(|d| d.path.clone()).collect::<Vec<_>>()),
        );
        return;
    }
    line(
        "space",
        &format!(
            "{} used of {} ({}), {} available",
            show.size(pool.used_bytes),
            show.size(pool.capacity_bytes),
            units::percent(pool.used_bytes, pool.capacity_bytes),
            show.size(pool.available_bytes)
        ),
    );
    if pool.reserved_bytes > 0 {
        line(
            "reserved",
            &format!("{} are kept for datasets with a reservation", show.size(pool.reserved_bytes)),
        );
    }
    for quota in full_quotas(pool) {
        let (used, limit) = (quota.used_bytes, quota.limit_bytes);
        let told = format!(
            "{} % of {} of {} ({}) are taken",
            percent(used, limit),
            quota.property,
            quota.name,
            show.size(limit)
        );
        line("quota", &told);
    }
    line(
        "logical",
        &format!(
            "{}, ratio {}",
            show.size(pool.logical_bytes),
            show.ratio(pool.logical_bytes, pool.used_bytes)
        ),
    );
    if pool.freeing {
        line(
            "freeing",
            &format!("what was destroyed; {} of snapshots are left", show.size(pool.freeing_bytes)),
        );
    }
    if pool.models > 0 {
        let text = format!(
            "{} of pages, {} stored, {} in memory",
            pool.models,
            show.size(pool.model_bytes),
            show.size(pool.model_memory_bytes)
        );
        line("models", &text);
    }
    line("txg", &format!("{}, {} of log since the last checkpoint", pool.txg, show.size(pool.log_bytes)));
    if pool.pid.is_some() {
        let cache = &pool.cache;
        line(
            "cache",
            &format!(
                "{} of {}, {} of {} reads hit",
                show.size(cache.used_bytes),
                show.size(cache.limit_bytes),
                units::percent(cache.hits, cache.hits.saturating_add(cache.misses)),
                units::count(cache.hits.saturating_add(cache.misses) as f64),
            ),
        );
        if let Some(memory) = &pool.memory {
            line("memory", &told_memory(show, memory));
        }
        if let Some(scrub) = &pool.scrub {
            line("scrub", &super::scrub::told(scrub, show.0.exact));
        }
        if let Some(trim) = &pool.trim {
            line("trim", &super::trim::told(trim, show.0.exact));
        }
        line("waiting", &format!("{} accepted and not yet durable", show.size(pool.dirty_bytes)));
    }
    let mut devices = Table::new(&[
        ("DEVICE", Align::Left),
        ("SIZE", Align::Right),
        ("ERRORS", Align::Right),
        ("CKSUM", Align::Right),
    ]);
    for device in &pool.devices {
        devices.row(vec![
            raw::text(&device.path),
            show.size(device.size_bytes),
            device.io_errors.to_string(),
            device.checksum_errors.to_string(),
        ]);
    }
    println!();
    for row in devices.render(false).lines() {
        println!("    {row}");
    }
}

/// How full a pool is, in parts of a hundred; what is reserved for accepted writes counts.
fn fullness(pool: &PoolFigures) -> u64 {
    percent(pool.capacity_bytes.saturating_sub(pool.available_bytes), pool.capacity_bytes)
}

/// The quotas that are nearly taken.
fn full_quotas(pool: &PoolFigures) -> impl Iterator<Item = &QuotaFigures> {
    pool.quotas.iter().filter(|quota| percent(quota.used_bytes, quota.limit_bytes) >= FULL_PERCENT)
}

/// What to do about a pool's state.
fn advice(pool: &PoolFigures) -> Option<String> {
    match pool.state.as_str() {
        "CRASHED" => Some(format!("none: it recovers when it is mounted (pagefold mount {} DIR)", pool.name)),
        "FAULTED" => Some(format!(
            "unmount it, mend the device, mount it again: pagefold unmount --force {}",
            pool.name
        )),
        "RESCUE" => Some(format!(
            "copy what can be read; then, unmounted, `pagefold check {}` lists what cannot",
            pool.name
        )),
        UNAVAILABLE => {
            Some("connect its devices again, or tell where they are: pagefold import -d DIR".into())
        }
        _ if pool.devices.iter().any(|device| device.io_errors + device.checksum_errors > 0) => {
            Some(format!("unmount it and verify everything: pagefold check {}", pool.name))
        }
        "ONLINE" if pool.second_copies_read > 0 => Some(format!(
            "metadata is damaged, its second copy was read {} times; repair it: pagefold scrub {}",
            pool.second_copies_read, pool.name
        )),
        "ONLINE" if pool.account_faults > 0 => Some(format!(
            "{} times an account would have fallen below zero; unmount it and verify everything: pagefold check {}",
            pool.account_faults, pool.name
        )),
        "ONLINE" | "EXPORTED" if fullness(pool) >= FULL_PERCENT => Some(format!(
            "it is {} % full: delete something, or move it elsewhere; what is deleted is free a moment later",
            fullness(pool)
        )),
        "ONLINE" | "EXPORTED" => full_quotas(pool).next().map(|quota| {
            format!(
                "the {} of {} is nearly taken: delete something there, or raise it: pagefold set {}=SIZE {}",
                quota.property, quota.name, quota.property, quota.name
            )
        }),
        _ => None,
    }
}

/// Figures of the pools that are named, or of all that are known or mounted.
fn gather(words: &[String]) -> Result<Vec<PoolFigures>> {
    if !words.is_empty() {
        return words.iter().map(|word| one(&target::pool_name(word)?)).collect();
    }
    let mut names: Vec<String> = Registry::open()?.all()?.into_iter().map(|known| known.name).collect();
    names.extend(Client::all()?.into_iter().map(|client| client.pool().to_owned()));
    names.sort();
    names.dedup();
    names.iter().map(|name| one(name)).collect()
}

fn one(pool: &str) -> Result<PoolFigures> {
    if let Some(mut client) = target::connect(pool)? {
        match ask(&mut client) {
            // It was just ending: the pool is looked at as one that is not mounted.
            Err(_) if client.has_ended() => {}
            told => return told,
        }
    }
    let known = Registry::open()?.find(pool)?;
    Ok(pools::figures_offline(&known).unwrap_or_else(|failure| unavailable(&known, &failure)))
}

fn ask(client: &mut Client) -> Result<PoolFigures> {
    match client.ask(&Request::Status {})? {
        Reply::Status { figures } => Ok(*figures),
        _ => Err(client.misunderstood()),
    }
}

/// What is resident, and what for: kinds that take something.
fn told_memory(show: Numbers, memory: &MemoryFigures) -> String {
    let kinds = [
        ("records", memory.records_bytes),
        ("pages", memory.pages_bytes),
        ("nodes", memory.nodes_bytes + memory.changed_nodes_bytes),
        ("directories", memory.directories_bytes),
        ("segment table", memory.segments_bytes),
        ("catalogue", memory.catalogue_bytes),
        ("models", memory.models_bytes),
        ("accepted", memory.accepted_bytes),
        ("journal", memory.journal_bytes),
        ("inodes", memory.inodes_bytes),
        ("requests", memory.requests_bytes),
        ("device reads", memory.device_buffers_bytes),
        ("other", memory.other_bytes),
    ];
    let told = kinds.iter().filter(|(_, bytes)| *bytes > 0);
    let told: Vec<String> = told.map(|(kind, bytes)| format!("{kind} {}", show.size(*bytes))).collect();
    let (resident, budget) = (show.size(memory.resident_bytes), show.size(memory.budget_bytes));
    format!("{resident} resident, budget {budget}: {}", told.join(", "))
}

/// A known pool that cannot be opened now is still listed.
fn unavailable(known: &Known, failure: &Failure) -> PoolFigures {
    PoolFigures {
        name: known.name.clone(),
        guid: known.guid.clone(),
        state: UNAVAILABLE.into(),
        problem: Some(failure.what().to_owned()),
        devices: known.devices.iter().map(|path| pools::unseen_device(path)).collect(),
        ..PoolFigures::default()
    }
}

fn mountpoint(pool: &PoolFigures) -> String {
    if let Some(mount) = &pool.mount {
        let dir = raw::text(&mount.dir);
        let others = pool.mounts.len().saturating_sub(1);
        return if others == 0 { dir } else { format!("{dir} (and {others} more)") };
    }
    let dead = mounts::dead(&pool.name).unwrap_or_default().into_iter().next();
    dead.map_or_else(|| "-".into(), |mount| format!("{} (its server died)", raw::text(&mount.dir)))
}

/// Numbers as asked for: rounded with units, or exact.
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
    fn percent(self, part: u64, whole: u64) -> String {
        let text = units::percent(part, whole);
        if self.0.exact { text.trim_end_matches('%').to_owned() } else { text }
    }
}
