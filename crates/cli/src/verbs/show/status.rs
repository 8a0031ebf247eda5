//! `status`: shows everything about a pool.

use std::collections::BTreeMap;
use std::path::PathBuf;

use pagefold_engine::dataset::LogicalCapacity;
use pagefold_server::control::{
    ConfinementFigures, DeviceFigures, MemoryFigures, PoolFigures, TakeoverFigures,
};
use pagefold_server::failure::{Context, Failure, Result};
use pagefold_server::registry::Registry;
use pagefold_server::serve::percent;
use pagefold_server::{props, raw, timeouts, units};
use serde_json::json;

use super::super::backup::{BackupStatus, Behind, backup_statuses, replicas};
use super::super::{log_device, spares, unmount};
use super::advice::{advice, full_quotas, has_errors, has_problem, soon_full};
use super::{Numbers, SHOWN, gather, is_seen};
use crate::args::Status;
use crate::mount_users;
use crate::table::{self, Align, Table};

/// Prints everything about each pool.
pub fn status(args: &Status) -> Result<()> {
    let (mut pools, mut failures) = gather(&args.targets, timeouts::ANSWER)?;
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
        crate::verbs::print_json(&json!({ "pools": told, "failures": failures.json() }))?;
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
                "on: {} went before this one, the last one by {reason}; requests waited {stall} ms",
                units::counted(restarts.into(), "server")
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

/// Prints a figure with its label.
fn line(label: &str, text: &str) {
    println!("{label:>12}: {text}");
}

fn print_status(pool: &PoolFigures, show: Numbers) {
    print_state(pool);
    if !is_seen(pool) {
        line(
            "devices",
            &pagefold_server::registry::paths_text(
                &pool.devices.iter().map(|d| d.path.clone()).collect::<Vec<_>>(),
            ),
        );
        return;
    }
    print_space(pool, show);
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
        print_server(pool, show);
    }
    print_devices(pool, show);
    if pool.hedges == Some(false)
        && pool.devices.chunk_by(|a, b| a.group == b.group).any(|group| group.len() > 1)
    {
        line("reads", "wait for a device of a mirror however long it takes, as the kernel refuses io_uring");
    }
    print_errors(pool);
}

/// Prints the state of a pool and of its server, and its mounts.
fn print_state(pool: &PoolFigures) {
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
        if mount.detached {
            let users = mount_users::words(&unmount::keeping(&[mount.device]));
            line("detached", &format!("{} from {dir}, still in use by {users}", mount.name));
            continue;
        }
        let since = units::utc(mount.since);
        let also = mount
            .also_at
            .iter()
            .map(|dir| format!(", and at {}", table::printable(&pagefold_server::raw::text(dir))));
        let dir = format!("{dir}{}", also.collect::<String>());
        line("mounted", &format!("{} at {dir} ({how}over {}, since {since})", mount.name, mount.transport));
    }
}

/// Prints what of a pool's space is taken, reserved, and yet to be freed.
fn print_space(pool: &PoolFigures, show: Numbers) {
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
    if let Some(thin) = &pool.thin {
        let size = show.size(thin.size_bytes);
        let holds = show.size(thin.holds_bytes);
        let told = format!("{size}; at {:.2}x this pool holds {holds}", thin.ratio);
        line("thin", &format!("logicalcapacity={} tells {told}", human_capacity(&thin.logicalcapacity)));
    }
    if let Some((days, forecast)) = soon_full(pool) {
        let bytes = |bytes: i64| show.size(u64::try_from(bytes).unwrap_or_default());
        let told = format!(
            "{}, if it grows by {} a day ({} before compression) as in the last {}",
            units::counted(days, "day"),
            bytes(forecast.growth_bytes_per_day),
            bytes(forecast.logical_growth_bytes_per_day),
            units::age(forecast.over_seconds)
        );
        line("full in", &told);
    }
    if pool.freeing {
        line(
            "freeing",
            &format!("what was destroyed; {} of snapshots are left", show.size(pool.freeing_bytes)),
        );
    }
    for partial in &pool.partials {
        let (name, used) = (&partial.name, show.size(partial.used_bytes));
        let told = format!(
            "a part of {name} was received, and holds {used}: go on by the token of `pagefold list -t partial`, or give it up: pagefold receive --abort {name}"
        );
        line("received", &told);
    }
}

/// Returns the form of a thin capacity that people read.
fn human_capacity(stored: &str) -> String {
    props::find(LogicalCapacity::NAME).map_or_else(|_| stored.to_owned(), |property| property.human(stored))
}

/// Prints what a server holds in memory, and what it does in the background.
fn print_server(pool: &PoolFigures, show: Numbers) {
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
        line("scrub", &crate::verbs::scrub::text(scrub, show.0.exact));
    }
    if let Some(fill) = &pool.fill {
        line("filling", &crate::verbs::devices::fill_text(fill, &pool.devices, show.0.exact));
    }
    if let Some(removal) = &pool.removal {
        line("removal", &crate::verbs::devices::removal_text(removal, pool, show.0.exact));
    }
    if let Some(balance) = &pool.balance {
        line("balance", &crate::verbs::devices::balance_text(balance, show.0.exact));
    }
    if let Some(trim) = &pool.trim {
        line("trim", &crate::verbs::trim::text(trim, show.0.exact));
    }
    if let Some(text) = log_device::usage_text(pool, |bytes| show.size(bytes)) {
        line("log device", &text);
    }
    line("waiting", &format!("{} accepted and not yet durable", show.size(pool.dirty_bytes)));
}

/// Prints the devices that a pool would have, as `status` shows those that a pool has.
pub(in crate::verbs) fn print_layout(pool: &PoolFigures) {
    let columns = COLUMNS.get(..ERRORS_FROM).unwrap_or_default();
    print_table(pool, units::size, columns);
}

/// Columns of the table of devices, and the number of those before counts of errors.
const COLUMNS: [(&str, Align); 6] = [
    ("DEVICE", Align::Left),
    ("STATE", Align::Left),
    ("SIZE", Align::Right),
    ("READ", Align::Right),
    ("WRITE", Align::Right),
    ("CKSUM", Align::Right),
];
const ERRORS_FROM: usize = 3;

/// Returns what is told of a device that takes much longer for its reads than others of its mirror.
fn slow_note(device: &DeviceFigures) -> String {
    device.slow_ns.map(|ns| format!(", slow: {}", units::nanoseconds(ns))).unwrap_or_default()
}

fn print_devices(pool: &PoolFigures, show: Numbers) {
    print_table(pool, |bytes| show.size(bytes), &COLUMNS);
}

/// Returns the path that the missing device of a pool had last: the only one that is remembered here and is none of a device
/// that is there. If several are missing, nothing tells which had which.
fn last_path(pool: &PoolFigures) -> Option<PathBuf> {
    let is_missing = |device: &&DeviceFigures| device.path.as_os_str().is_empty();
    if pool.devices.iter().filter(is_missing).count() != 1 {
        return None;
    }
    let known = Registry::open().and_then(|registry| registry.of_guid(&pool.guid)).ok().flatten()?;
    let is_there = |path: &PathBuf| {
        pool.devices.iter().any(|device| device.path == *path)
            || pool.spares.iter().any(|spare| spare.path == *path)
    };
    let mut gone = known.devices.into_iter().filter(|path| !is_there(path));
    gone.next().filter(|_| gone.next().is_none())
}

/// Prints a table of a pool's devices; mirrors stand below each other. The log device and spares have headings.
fn print_table(pool: &PoolFigures, size: impl Fn(u64) -> String, columns: &[(&'static str, Align)]) {
    let mut devices = Table::new(columns);
    let empty = |from: usize| std::iter::repeat_n(String::new(), columns.len() - from);
    let heading = |name: String| std::iter::once(name).chain(empty(1)).collect();
    let last = last_path(pool);
    let by_group = || pool.devices.chunk_by(|a, b| a.group == b.group);
    let is_log = |group: &&[DeviceFigures]| group.iter().any(|device| device.log);
    let add = |devices: &mut Table, group: &[DeviceFigures], indent: &str| {
        let below = if group.len() > 1 { "  " } else { "" };
        if let [first, _, ..] = group {
            let name = crate::verbs::devices::mirror_name(first.group);
            devices.row(heading(format!("{indent}{name}")));
        }
        for device in group {
            let is_missing = device.path.as_os_str().is_empty();
            let path = match (is_missing, &last) {
                (true, Some(last)) => format!("number {}, last {}", device.number, raw::text(last)),
                (true, None) => format!("number {}", device.number),
                (false, _) => raw::text(&device.path),
            };
            let leaves = if device.leaves || device.removing { ", leaves" } else { "" };
            let mut row = vec![
                format!("{indent}{below}{path}"),
                format!("{}{leaves}{}{}", device.state, slow_note(device), spares::note(pool, device.number)),
                if is_missing { "-".to_owned() } else { size(device.size_bytes) },
                device.errors.read_errors.to_string(),
                device.errors.write_errors.to_string(),
                device.errors.checksum_errors.to_string(),
            ];
            row.truncate(columns.len());
            devices.row(row);
        }
    };
    by_group().filter(|group| !is_log(group)).for_each(|group| add(&mut devices, group, ""));
    if pool.devices.iter().any(|device| device.log) {
        devices.row(heading("logs".to_owned()));
    }
    by_group().filter(is_log).for_each(|group| add(&mut devices, group, "  "));
    if !pool.spares.is_empty() {
        devices.row(heading("spares".to_owned()));
    }
    for spare in &pool.spares {
        let (name, state) = spares::row(pool, spare);
        let row = [format!("  {name}"), state, size(spare.size_bytes)];
        devices.row(row.into_iter().chain(empty(ERRORS_FROM)).collect());
    }
    println!();
    for row in devices.render(false).lines() {
        println!("    {row}");
    }
    println!();
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
