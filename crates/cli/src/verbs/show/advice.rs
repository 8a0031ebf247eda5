//! Tells whether something is wrong with a pool, and what to do about it.

use pagefold_engine::error::HOST_FULL;
use pagefold_server::control::{DeviceFigures, ForecastFigures, PoolFigures, QuotaFigures};
use pagefold_server::raw::shown;
use pagefold_server::serve::{FULL_PERCENT, percent};
use pagefold_server::units::{self, PROBLEM_PERCENT};

use super::super::{log_device, spares};
use super::{SILENT, UNAVAILABLE};

/// Returns true if errors were met since they were cleared.
pub(super) fn has_errors(pool: &PoolFigures) -> bool {
    let errors = &pool.errors;
    !errors.struck.is_empty()
        || errors.unlisted > 0
        || pool.devices.iter().any(|device| !device.errors.is_zero())
}

/// Returns true if something is wrong with a pool. That it is nearly full does not count, until next to nothing is left.
pub(super) fn has_problem(pool: &PoolFigures) -> bool {
    // Of a pool that crashed, what is available is known only after its recovery.
    let is_measured = matches!(pool.state.as_str(), "ONLINE" | "EXPORTED");
    if is_measured && fullness(pool) >= PROBLEM_PERCENT {
        return true;
    }
    let sound = matches!(pool.state.as_str(), "ONLINE" | "EXPORTED" | "CRASHED") && pool.problem.is_none();
    !sound || has_errors(pool) || pool.second_copies_read > 0 || pool.account_faults > 0
}

/// Returns how full a pool is, in per cent; space that is reserved for accepted writes counts as used.
fn fullness(pool: &PoolFigures) -> u64 {
    percent(pool.capacity_bytes.saturating_sub(pool.available_bytes), pool.capacity_bytes)
}

/// Returns the quotas that are nearly used up.
pub(super) fn full_quotas(pool: &PoolFigures) -> impl Iterator<Item = &QuotaFigures> {
    pool.quotas.iter().filter(|quota| percent(quota.used_bytes, quota.limit_bytes) >= FULL_PERCENT)
}

/// Returns what to do about devices of mirrors that are not in use.
fn degraded_advice(pool: &PoolFigures) -> String {
    let name = &pool.name;
    let has_none = |number: u16| spares::stand_in(pool, number).is_none();
    let first =
        |state: &str| pool.devices.iter().find(|device| device.state == state && has_none(device.number));
    let lost = |device: &&DeviceFigures| device.log && device.state != "ONLINE";
    let has_log = log_device::devices(pool).any(|device| device.state == "ONLINE");
    if let Some(device) = log_device::devices(pool).find(lost).filter(|_| !has_log) {
        let of = match device.path.as_os_str().is_empty() {
            true => format!("number {}", device.number),
            false => shown(&device.path),
        };
        return format!(
            "the log device ({of}) is not in use, and leaves the pool while it is mounted; then it can be added again: pagefold add -f {name} log DEVICE"
        );
    }
    if let Some(device) = first("MISSING") {
        return format!(
            "connect device number {0} again (pagefold online {name} DEVICE), or put another one in its place: pagefold replace {name} {0} DEVICE",
            device.number
        );
    }
    if let Some(device) = first("FAULTED") {
        let path = shown(&device.path);
        return format!(
            "put another device in its place: pagefold replace {name} {path} DEVICE; or, once it is mended: pagefold online {name} {path}"
        );
    }
    if let Some(advice) = ["MISSING", "FAULTED"].into_iter().find_map(|state| spares::advice(pool, state)) {
        return advice;
    }
    match first("OFFLINE") {
        Some(device) => format!("use it again: pagefold online {name} {}", shown(&device.path)),
        None => "none: a device is being filled, and the pool is as safe as before once it is whole".into(),
    }
}

/// Returns what to do about a device that is a file which was deleted.
fn deleted_advice(pool: &PoolFigures, device: &DeviceFigures) -> String {
    let (name, path) = (&pool.name, shown(&device.path));
    format!(
        "leave the pool mounted, and put another device in its place: truncate -s {} NEW; pagefold replace {name} {path} NEW; if there is no room for one, make a backup first: pagefold backup create",
        device.size_bytes
    )
}

/// Returns what to do about a pool that has failed.
fn failed_advice(pool: &PoolFigures) -> String {
    let is_full = pool.problem.as_ref().is_some_and(|problem| problem.contains(HOST_FULL));
    let first = if is_full {
        "make room on the file system or thin volume that holds the device, unmount it, mount it again"
    } else {
        "unmount it, mend the device, mount it again"
    };
    format!("{first}: pagefold unmount --force {}", pool.name)
}

/// Returns what to do about a pool's state.
pub(super) fn advice(pool: &PoolFigures) -> Option<String> {
    let deleted = pool.devices.iter().find(|device| device.deleted);
    if let Some(device) = deleted.filter(|_| matches!(pool.state.as_str(), "ONLINE" | "DEGRADED")) {
        return Some(deleted_advice(pool, device));
    }
    match pool.state.as_str() {
        "CRASHED" => Some(format!("none: it recovers when it is mounted (pagefold mount {} DIR)", pool.name)),
        "FAULTED" => Some(failed_advice(pool)),
        "RESCUE" => Some(format!(
            "copy what can be read; then, unmounted, `pagefold check {}` lists what cannot",
            pool.name
        )),
        "DEGRADED" => Some(degraded_advice(pool)),
        UNAVAILABLE => {
            Some("connect its devices again, or tell where they are: pagefold import -d DIR".into())
        }
        SILENT => Some(format!(
            "see whether its devices answer (dmesg), and its log: {}; to end it: pagefold unmount --force {}",
            pagefold_server::files::log_of(&pool.name).map(|log| shown(&log)).unwrap_or_default(),
            pool.name
        )),
        "ONLINE" if spares::advice(pool, "ONLINE").is_some() => spares::advice(pool, "ONLINE"),
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
        "ONLINE" | "EXPORTED" => full_quotas(pool)
            .next()
            .map(|quota| {
                format!(
                    "the {} of {} is nearly taken: delete something there, or raise it: pagefold set {}=SIZE {}",
                    quota.property, quota.name, quota.property, quota.name
                )
            })
            .or_else(|| soon_full_advice(pool))
            .or_else(|| thin_advice(pool)),
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

/// Returns the days until a pool is full, and its growth, if these days are few.
pub(super) fn soon_full(pool: &PoolFigures) -> Option<(u64, ForecastFigures)> {
    let forecast = pool.forecast?;
    forecast.full_in_days.filter(|days| *days < units::FULL_DAYS).map(|days| (days, forecast))
}

fn soon_full_advice(pool: &PoolFigures) -> Option<String> {
    let (days, _) = soon_full(pool)?;
    let days = units::counted(days, "day");
    Some(format!("it will be full in {days}: add room before: pagefold add {} DEVICE", pool.name))
}

/// Returns what to do about a pool that cannot hold the size that it tells.
fn thin_advice(pool: &PoolFigures) -> Option<String> {
    let thin = pool.thin.as_ref().filter(|thin| thin.is_short())?;
    Some(format!(
        "it promises {}, and at {:.2}x it holds {}: add room (pagefold add {name} DEVICE), or promise less: pagefold set logicalcapacity={:.1}x {name}",
        units::size(thin.size_bytes),
        thin.ratio,
        units::size(thin.holds_bytes),
        (thin.ratio * 10.0).floor() / 10.0,
        name = pool.name
    ))
}

/// Returns what to do about a pool that is nearly full.
fn full_advice(pool: &PoolFigures) -> String {
    let full = format!("it is {} % full: ", fullness(pool));
    match &pool.snapshots {
        Some(held) if held.bytes >= pool.used_bytes / 10 => format!(
            "{full}snapshots hold {}; {} alone holds most, {} (pagefold destroy -n {}): destroy some, delete something that no snapshot has, or add room: pagefold add {} DEVICE",
            units::size(held.bytes),
            held.largest,
            units::size(held.largest_bytes),
            held.largest,
            pool.name
        ),
        _ => format!(
            "{full}delete something (it is free a moment later), or add room: pagefold add {} DEVICE",
            pool.name
        ),
    }
}
