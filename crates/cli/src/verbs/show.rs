//! `list`, `status` and `df`: show pools and their figures.

use std::collections::BTreeMap;

use pagefold_server::control::{
    Client, ConfinementFigures, MemoryFigures, PoolFigures, QuotaFigures, Reply, Request, TakeoverFigures,
};
use pagefold_server::failure::{Context, Failure, Result};
use pagefold_server::registry::{Known, Registry};
use pagefold_server::serve::{FULL_PERCENT, percent};
use pagefold_server::{mounts, pool_status, raw, units};
use serde_json::json;

use super::backup::{BackupStatus, Behind, backup_statuses, replicas};

use crate::args::{Output, Pools, Status};
use crate::failures::Failures;
use crate::table::{self, Align, Table};
use crate::target;

/// End of the sentence "N of M could not be ..." about pools that failed.
pub(super) const SHOWN: &str = "shown in full";
/// State of a pool that is known and cannot be opened.
const UNAVAILABLE: &str = "UNAVAIL";

/// Prints one line per pool.
pub fn list(targets: &[String], output: Output) -> Result<()> {
    let (pools, failures) = gather(targets)?;
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
            units::ratio_text(pool.write_amplification),
            mountpoint(pool),
        ]);
    }
    table.print(args.output.script);
    failures.finish(args.targets.len(), SHOWN)
}

/// Prints everything about each pool.
pub fn status(args: &Status) -> Result<()> {
    let (mut pools, mut failures) = gather(&args.targets)?;
    let all = pools.len();
    let mut backups: BTreeMap<String, Vec<BackupStatus>> = BTreeMap::new();
    // Summing up what all datasets hold is worth it only where one of them has a policy.
    for pool in pools.iter().filter(|pool| pool.backup_policies) {
        let backup_statuses = failures.need(&pool.name, backup_statuses(&pool.name));
        backups.insert(pool.name.clone(), backup_statuses.unwrap_or_default());
    }
    let mut behind: BTreeMap<String, Vec<Behind>> = BTreeMap::new();
    for pool in &pools {
        let found = failures.need(&pool.name, replicas(&pool.name));
        behind.insert(pool.name.clone(), found.unwrap_or_default());
    }
    let backups_of = |pool: &PoolFigures| backups.get(&pool.name).map(Vec::as_slice).unwrap_or_default();
    let replicas_of = |pool: &PoolFigures| behind.get(&pool.name).map(Vec::as_slice).unwrap_or_default();
    if args.problems {
        let is_wrong = |pool: &PoolFigures| {
            backups_of(pool).iter().any(BackupStatus::is_wrong)
                || replicas_of(pool).iter().any(Behind::is_wrong)
        };
        pools.retain(|pool| has_problem(pool) || is_wrong(pool));
    }
    if args.output.json {
        let pool = |pool: &PoolFigures| with_backups(pool, backups_of(pool), replicas_of(pool));
        let told = pools.iter().map(pool).collect::<Result<Vec<_>>>()?;
        super::print_json(&json!({ "pools": told, "failures": failures.json() }))?;
        return failures.finish(args.targets.len(), SHOWN).and_then(|()| problems(args, &pools));
    }
    if args.problems && pools.is_empty() && all > 0 {
        println!("all pools are healthy");
        return failures.finish(args.targets.len(), SHOWN);
    }
    if all == 0 && failures.is_empty() {
        eprintln!("no pools are known here: `pagefold create` one, or find one with `pagefold import`");
    }
    for (index, pool) in pools.iter().enumerate() {
        if index > 0 {
            println!();
        }
        print_status(pool, Numbers(args.output));
        for standing in backups_of(pool) {
            println!("{:>12}: {}", "backup", table::printable(&standing.text()));
        }
        for replica in replicas_of(pool) {
            println!("{:>12}: {}", "replica", table::printable(&replica.text()));
        }
    }
    failures.finish(args.targets.len(), SHOWN).and_then(|()| problems(args, &pools))
}

/// Returns the figures of a pool, with the state of its backups by policy and of its replicas.
fn with_backups(
    pool: &PoolFigures,
    backups: &[BackupStatus],
    replicas: &[Behind],
) -> Result<serde_json::Value> {
    let doing = || format!("cannot tell the figures of pool {}", pool.name);
    let mut figures = serde_json::to_value(pool).context(doing)?;
    if let Some(figures) = figures.as_object_mut() {
        figures.insert("backups".into(), json!(backups));
        figures.insert("replicas".into(), json!(replicas));
    }
    Ok(figures)
}

/// Fails if anything is wrong with a pool; only `-x` asks for that.
fn problems(args: &Status, pools: &[PoolFigures]) -> Result<()> {
    if !args.problems || pools.is_empty() {
        return Ok(());
    }
    let names: Vec<&str> = pools.iter().map(|pool| pool.name.as_str()).collect();
    Err(Failure::new(format!("something is wrong with {}", names.join(", "))))
}

/// Returns what happens to the mounts when their server dies, and what has happened so far.
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

/// Returns the privileges that a server has given up.
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
        let also = mount
            .also_at
            .iter()
            .map(|dir| format!(", and at {}", table::printable(&pagefold_server::raw::text(dir))));
        let dir = format!("{dir}{}", also.collect::<String>());
        line("mounted", &format!("{} at {dir} ({how}over {}, since {since})", mount.name, mount.transport));
    }
    if pool.state == UNAVAILABLE {
        line(
            "devices",
            &pagefold_server::registry::paths_text(
                &pool.devices.iter().map(|d| d.path.clone()).collect::<Vec<_>>(),
            ),
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
            "{}, stored in {}: ratio {}",
            show.size(pool.logical_bytes),
            show.size(pool.physical_bytes),
            show.ratio(pool.logical_bytes, pool.physical_bytes)
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
    line(
        "next batch",
        &format!("{}, {} of log since the last checkpoint", pool.next_batch, show.size(pool.log_bytes)),
    );
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
            line("scrub", &super::scrub::text(scrub, show.0.exact));
        }
        if let Some(trim) = &pool.trim {
            line("trim", &super::trim::text(trim, show.0.exact));
        }
        line("waiting", &format!("{} accepted and not yet durable", show.size(pool.dirty_bytes)));
    }
    let mut devices = Table::new(&[
        ("DEVICE", Align::Left),
        ("SIZE", Align::Right),
        ("READ", Align::Right),
        ("WRITE", Align::Right),
        ("CKSUM", Align::Right),
    ]);
    for device in &pool.devices {
        devices.row(vec![
            raw::text(&device.path),
            show.size(device.size_bytes),
            device.errors.read_errors.to_string(),
            device.errors.write_errors.to_string(),
            device.errors.checksum_errors.to_string(),
        ]);
    }
    println!();
    for row in devices.render(false).lines() {
        println!("    {row}");
    }
    println!();
    print_errors(pool);
}

/// Prints what errors have struck.
fn print_errors(pool: &PoolFigures) {
    let errors = &pool.errors;
    let since = match errors.cleared {
        0 => "since the pool was made".to_owned(),
        cleared => format!("since {}", units::utc(cleared)),
    };
    if !has_errors(pool) {
        println!("      errors: none {since}");
        return;
    }
    println!("      errors: {since}, all openings of the pool counted");
    for device in pool.devices.iter().filter(|device| !device.errors.is_zero()) {
        println!(
            "    {}: {}",
            table::printable(&pagefold_server::raw::text(&device.path)),
            device.errors.text()
        );
    }
    errors.struck.iter().for_each(|struck| println!("    {}", struck.text()));
    if errors.unlisted > 0 {
        println!("    and {} errors of what is not listed", errors.unlisted);
    }
}

/// Returns true if errors were met since they were cleared.
fn has_errors(pool: &PoolFigures) -> bool {
    let errors = &pool.errors;
    !errors.struck.is_empty()
        || errors.unlisted > 0
        || pool.devices.iter().any(|device| !device.errors.is_zero())
}

/// Returns true if something is wrong with a pool; being nearly full does not count.
fn has_problem(pool: &PoolFigures) -> bool {
    let sound = matches!(pool.state.as_str(), "ONLINE" | "EXPORTED" | "CRASHED") && pool.problem.is_none();
    !sound || has_errors(pool) || pool.second_copies_read > 0 || pool.account_faults > 0
}

/// Returns how full a pool is, in per cent; space that is reserved for accepted writes counts as used.
fn fullness(pool: &PoolFigures) -> u64 {
    percent(pool.capacity_bytes.saturating_sub(pool.available_bytes), pool.capacity_bytes)
}

/// Returns the quotas that are nearly used up.
fn full_quotas(pool: &PoolFigures) -> impl Iterator<Item = &QuotaFigures> {
    pool.quotas.iter().filter(|quota| percent(quota.used_bytes, quota.limit_bytes) >= FULL_PERCENT)
}

/// Returns what to do about a pool's state.
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
        _ if has_errors(pool) => Some(error_advice(pool)),
        "ONLINE" if pool.second_copies_read > 0 => Some(format!(
            "metadata is damaged, its second copy was read {} times; repair it: pagefold scrub {}",
            pool.second_copies_read, pool.name
        )),
        "ONLINE" if pool.account_faults > 0 => Some(format!(
            "{} times an account would have fallen below zero; unmount it and verify everything: pagefold check {}",
            pool.account_faults, pool.name
        )),
        "ONLINE" | "EXPORTED" if fullness(pool) >= FULL_PERCENT => Some(full_advice(pool)),
        "ONLINE" | "EXPORTED" => full_quotas(pool).next().map(|quota| {
            format!(
                "the {} of {} is nearly taken: delete something there, or raise it: pagefold set {}=SIZE {}",
                quota.property, quota.name, quota.property, quota.name
            )
        }),
        _ => None,
    }
}

/// Returns what to do about errors that were met.
fn error_advice(pool: &PoolFigures) -> String {
    let name = &pool.name;
    let files = pool.errors.struck.iter().any(|struck| struck.what == "file");
    let first = if files { "copy these files from a backup; " } else { "" };
    format!(
        "{first}`pagefold scrub --wait {name}` verifies everything and repairs what is kept twice, and `pagefold check {name}` \
         (unmounted) lists what cannot be read; then `pagefold clear {name}`"
    )
}

/// Returns what to do about a pool that is nearly full.
fn full_advice(pool: &PoolFigures) -> String {
    let full = format!("it is {} % full: ", fullness(pool));
    match &pool.snapshots {
        Some(held) if held.bytes >= pool.used_bytes / 10 => format!(
            "{full}snapshots hold {}; {} alone holds most, {} (pagefold destroy -n {}): destroy some, or delete something that no snapshot has",
            units::size(held.bytes),
            held.largest,
            units::size(held.largest_bytes),
            held.largest
        ),
        _ => format!("{full}delete something, or move it elsewhere; what is deleted is free a moment later"),
    }
}

/// Returns the figures of the pools that are named, or of all that are known or mounted. A pool that is known and
/// cannot be opened is among them, and is reported as a failure as well.
fn gather(words: &[String]) -> Result<(Vec<PoolFigures>, Failures)> {
    let mut failures = Failures::new();
    let mut all = Vec::new();
    for name in &named_pools(words, &mut failures)? {
        let Some(pool) = failures.take(name, one(name)) else { continue };
        if pool.state == UNAVAILABLE {
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

fn one(pool: &str) -> Result<PoolFigures> {
    if let Some(mut client) = target::connect(pool)? {
        match ask(&mut client) {
            // The server was just ending: the pool is looked at as one that is not mounted.
            Err(_) if client.has_ended() => {}
            told => return told,
        }
    }
    let known = Registry::open()?.find(pool)?;
    Ok(pool_status::figures_offline(&known).unwrap_or_else(|failure| unavailable(&known, &failure)))
}

fn ask(client: &mut Client) -> Result<PoolFigures> {
    match client.ask(&Request::Status {})? {
        Reply::Status { figures } => Ok(*figures),
        _ => Err(client.misunderstood()),
    }
}

/// Returns how much memory is resident, and for which uses; uses that take nothing are left out.
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

/// Returns the figures of a known pool that cannot be opened now, so that it is listed all the same.
fn unavailable(known: &Known, failure: &Failure) -> PoolFigures {
    PoolFigures {
        name: known.name.clone(),
        guid: known.guid.clone(),
        state: UNAVAILABLE.into(),
        problem: Some(failure.what().to_owned()),
        devices: known.devices.iter().map(|path| pool_status::unseen_device(path)).collect(),
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
    fn percent(self, part: u64, whole: u64) -> String {
        let text = units::percent(part, whole);
        if self.0.exact { text.trim_end_matches('%').to_owned() } else { text }
    }
}
