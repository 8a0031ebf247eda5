//! Figures of a pool: its state, its space, its counters.

use std::path::Path;

use pagefold_engine::device::{DeviceCounts, HedgeCounts, IoKind, RequestCounts};
use pagefold_engine::history::{Forecast, Outlook};
use pagefold_engine::limits::RECORDSIZE_MIN;
use pagefold_engine::pool::{
    BalanceStatus, DeviceState, DeviceStatus, FillStatus, Listed, LogDeviceStatus, Obstacle, Pool, QuotaUse,
    RemovalStatus, Rewrites, ScrubState, ScrubStatus, SpareState, SpareStatus, Status, TrimState, TrimStatus,
};

use crate::control::{
    Activity, BalanceFigures, CacheFigures, Counter, DeviceActivity, DeviceFigures, FillFigures,
    ForecastFigures, LatencyFigures, LengthFigures, LogDeviceFigures, PoolFigures, QuotaFigures, ReadSpeed,
    RemovalFigures, RequestFigures, RewriteFigures, ScrubFigures, SnapshotFigures, SpareFigures, ThinFigures,
    TrimFigures, WorkPace, per_second,
};
use crate::failure::Result;
use crate::raw::shown;
use crate::registry::Known;
use crate::units::{self, FULL_PERCENT, hundredths};
use crate::{names, pool_errors, pools, streams};

/// Words about a device that is a file which was deleted.
pub(crate) const DELETED: &str =
    "was deleted while the pool uses it: all that is on it is lost when the pool is unmounted";
/// Bytes that a device has to give before it counts as known how fast it is, and the mean length of the reads.
const READ_BYTES_MIN: u64 = 4 << 20;
const READ_PIECE_MIN: u64 = 64 << 10;

/// Returns the figures of a pool that is not mounted.
pub fn figures_offline(known: &Known) -> Result<PoolFigures> {
    let pool = pools::open_for_figures(known)?;
    let open = figures(&pool);
    if pool.rescue().is_some() {
        return Ok(PoolFigures { state: "CRASHED".into(), problem: None, ..open });
    }
    let state = if pool.replayed().clean { "EXPORTED" } else { "CRASHED" };
    let state = if open.state == "DEGRADED" { "DEGRADED" } else { state };
    Ok(PoolFigures { state: state.into(), ..open })
}

/// Returns the figures of an open pool, its state included.
pub fn figures(pool: &Pool) -> PoolFigures {
    let status = &pool.status();
    let deleted = pool.deleted_devices();
    PoolFigures {
        name: status.name.clone(),
        guid: status.guid.to_string(),
        state: state_of(status).into(),
        problem: status
            .failure
            .clone()
            .or_else(|| rescue_text(pool))
            .or_else(|| deleted.first().map(|(_, path)| format!("{} {DELETED}", shown(path)))),
        pid: None,
        takeover: None,
        confinement: None,
        mount: None,
        mounts: Vec::new(),
        devices: status
            .devices
            .iter()
            .map(|device| {
                let faults =
                    status.faults.devices.get(usize::from(device.number)).copied().unwrap_or_default();
                DeviceFigures {
                    number: device.number,
                    group: device.group,
                    state: device_state(device.state).into(),
                    leaves: device.leaves,
                    removing: device.removing,
                    log: device.is_log,
                    allocated_bytes: device.allocated_bytes,
                    path: device.path.clone(),
                    size_bytes: device.size_bytes,
                    io_errors: faults.reads.saturating_add(faults.writes),
                    errors: pool_errors::of_device(faults),
                    deleted: deleted.iter().any(|(number, _)| *number == device.number),
                    discards: Some(device.discards),
                    slow_ns: device.slow_ns,
                }
            })
            .collect(),
        read_speeds: status.devices.iter().filter_map(read_speed).collect(),
        hedges: Some(pool.hedging_is_possible()),
        spares: pool.spares().into_iter().map(spare).collect(),
        log_device: pool.log_device_status().map(log_device),
        fill: fill(&status.fill, units::now()),
        removal: removal(&status.removal, units::now()),
        balance: balance(&status.balance, units::now()),
        errors: pool_errors::figures(pool, &status.faults),
        snapshots: is_nearly_full(status).then(|| snapshots(pool)).flatten(),
        size_bytes: status.size_bytes,
        capacity_bytes: status.capacity_bytes,
        used_bytes: status.used_bytes,
        available_bytes: status.available_bytes,
        reserved_bytes: status.reserved_bytes,
        quotas: pool.quotas().iter().map(|quota| of_quota(pool, quota)).collect(),
        thin: thin(pool),
        forecast: forecast(pool, units::now()),
        logical_bytes: status.logical_bytes,
        stored_bytes: status.stored_bytes,
        physical_bytes: status.physical_bytes,
        allocated_bytes: status.allocated_bytes,
        dirty_bytes: status.dirty_bytes,
        freeing: pool.is_reaping(),
        freeing_bytes: pool.unreferenced_bytes(),
        partials: streams::partials(pool),
        backup_policies: pool.is_set_anywhere(crate::backups::BACKUP),
        log_bytes: status.log_bytes,
        models: status.models,
        model_bytes: status.model_bytes,
        model_memory_bytes: status.model_memory_bytes,
        second_copies_read: status.second_copies_read,
        account_faults: status.account_faults,
        next_batch: status.next_batch,
        checkpoints: status.totals.checkpoints,
        cache: CacheFigures {
            limit_bytes: status.record_cache.capacity_bytes,
            used_bytes: status.record_cache.bytes,
            hits: status.record_cache.hits,
            misses: status.record_cache.misses,
        },
        memory: None,
        scrub: scrub(&status.scrub),
        trim: trim(&status.trim),
        untrimmed_bytes: status.untrimmed_bytes,
        write_amplification: write_amplification(status),
    }
}

fn is_nearly_full(status: &Status) -> bool {
    let taken = status.capacity_bytes.saturating_sub(status.available_bytes);
    hundredths(taken, status.capacity_bytes) >= FULL_PERCENT
}

/// Returns the space of a pool as its mounts tell it, if it has a thin capacity.
pub fn thin(pool: &Pool) -> Option<ThinFigures> {
    let space = pool.space();
    let thin = space.thin?;
    Some(ThinFigures {
        logicalcapacity: pool.logical_capacity().to_string(),
        size_bytes: thin.size_bytes,
        used_bytes: thin.used_bytes,
        available_bytes: thin.available_bytes(RECORDSIZE_MIN),
        ratio: thin.expansion.ratio(),
        holds_bytes: thin.expansion.of(space.capacity_bytes),
    })
}

/// Returns when a pool will be full, if it has a day of history at `now`, in seconds since 1970.
pub fn forecast(pool: &Pool, now: u64) -> Option<ForecastFigures> {
    let Forecast { growth_bytes, logical_growth_bytes, over_seconds, outlook } = pool.forecast(now)?;
    Some(ForecastFigures {
        full_in_days: match outlook {
            Outlook::Full { days } => Some(days),
            Outlook::Still => None,
        },
        growth_bytes_per_day: growth_bytes,
        logical_growth_bytes_per_day: logical_growth_bytes,
        over_seconds,
    })
}

/// Returns the space that snapshots hold; `None` if no snapshot could be destroyed. This reads their dead lists.
pub fn snapshots(pool: &Pool) -> Option<SnapshotFigures> {
    let all = pool.list().ok()?;
    let bytes = all.iter().map(|listed| listed.snapshots_bytes).sum();
    // Snapshots with clones or holds cannot be destroyed alone.
    let can_go = |listed: &&Listed| listed.is_snapshot && listed.clones.is_empty() && listed.holds.is_empty();
    let largest = all.iter().filter(can_go).max_by_key(|listed| listed.used_bytes)?;
    Some(SnapshotFigures {
        bytes,
        largest: names::full(pool.name(), &largest.path),
        largest_bytes: largest.used_bytes,
    })
}

fn state_of(status: &Status) -> &'static str {
    match (&status.failure, &status.rescue) {
        (Some(_), _) => "FAULTED",
        (None, Some(_)) => "RESCUE",
        (None, None) if status.devices.iter().any(|device| device.state != DeviceState::Online) => "DEGRADED",
        (None, None) => "ONLINE",
    }
}

fn device_state(state: DeviceState) -> &'static str {
    match state {
        DeviceState::Online => "ONLINE",
        DeviceState::Filling => "FILLING",
        DeviceState::Offline => "OFFLINE",
        DeviceState::Faulted => "FAULTED",
        DeviceState::Missing => "MISSING",
    }
}

fn spare(status: SpareStatus) -> SpareFigures {
    let SpareStatus { id, path, size_bytes, state, device, stands_for } = status;
    let state = match state {
        SpareState::Available => "AVAIL",
        SpareState::InUse => "INUSE",
        SpareState::Unavailable => "UNAVAIL",
    };
    SpareFigures { id: format!("{id:016x}"), state: state.into(), path, size_bytes, device, stands_for }
}

fn log_device(status: LogDeviceStatus) -> LogDeviceFigures {
    let LogDeviceStatus { group, size_bytes, used_bytes } = status;
    LogDeviceFigures { group, size_bytes, used_bytes }
}

fn fill(status: &FillStatus, now: u64) -> Option<FillFigures> {
    let FillStatus { device, started, finished, done_bytes, left_bytes, work_ns, .. } = *status;
    let FillStatus { verified_bytes, to_verify_bytes, .. } = *status;
    let left = (finished == 0).then_some(left_bytes);
    let pace = WorkPace::of(done_bytes, took_s((started, finished), now), work_ns, left);
    Some(FillFigures {
        device: device?,
        started,
        finished,
        done_bytes,
        left_bytes,
        verified_bytes,
        to_verify_bytes,
        pace,
    })
}

fn removal(status: &RemovalStatus, now: u64) -> Option<RemovalFigures> {
    let RemovalStatus { group, started, finished, moved_bytes, left_bytes, obstacle, work_ns } = *status;
    let obstacle = obstacle.map(obstacle_text);
    let left = (finished == 0).then_some(left_bytes);
    let pace = WorkPace::of(moved_bytes, took_s((started, finished), now), work_ns, left);
    Some(RemovalFigures { group: group?, started, finished, moved_bytes, left_bytes, pace, obstacle })
}

/// Returns the seconds since something began, or until it ended; 0 if it has not begun.
fn took_s((started, finished): (u64, u64), now: u64) -> u64 {
    let until = if finished > 0 { finished } else { now };
    if started > 0 { until.saturating_sub(started) } else { 0 }
}

/// Returns how fast a device gave what was read of it in large pieces: on average, to the class that got it fastest.
fn read_speed(device: &DeviceStatus) -> Option<ReadSpeed> {
    let is_large = |counts: &&RequestCounts| {
        counts.kind == IoKind::Read
            && counts.bytes >= READ_BYTES_MIN
            && counts.bytes / counts.requests().max(1) >= READ_PIECE_MIN
    };
    let large = device.requests.iter().filter(is_large);
    let bytes_per_s = large.map(|counts| per_second(counts.bytes, counts.total_ns)).max()?;
    Some(ReadSpeed { device: device.number, bytes_per_s })
}

fn obstacle_text(obstacle: Obstacle) -> String {
    match obstacle {
        Obstacle::Room => "the other devices have no room at present".into(),
        Obstacle::Damage => "what is left cannot be read".into(),
        Obstacle::Removal => "devices are being removed, which comes first".into(),
    }
}

fn balance(status: &BalanceStatus, now: u64) -> Option<BalanceFigures> {
    let BalanceStatus { under_way, started, finished, moved_bytes, left_bytes, obstacle, work_ns } = *status;
    let left = under_way.then_some(left_bytes);
    let pace = WorkPace::of(moved_bytes, took_s((started, finished), now), work_ns, left);
    let obstacle = obstacle.filter(|_| under_way).map(obstacle_text);
    let figures = BalanceFigures { started, finished, moved_bytes, left_bytes, pace, obstacle };
    (under_way || finished > 0).then_some(figures)
}

/// Returns a text about the damage that opening a pool for rescue has met; `None` unless the pool is open for rescue.
fn rescue_text(pool: &Pool) -> Option<String> {
    let mut told = pool.rescue()?.messages();
    let replayed = pool.replayed();
    if let Some(lost) = replayed.damage {
        let path = shown(&pool.group_path(lost.device));
        let offset = lost.offset;
        told.push(format!(
            "the log is damaged at byte {offset} of {path}: what was acknowledged behind it is not shown"
        ));
    }
    if replayed.damaged > 0 {
        told.push(format!("{} batches of the log have damaged records", replayed.damaged));
    }
    Some(if told.is_empty() {
        "open for rescue; opening it has met no damage".into()
    } else {
        format!("open for rescue: {}", told.join("; "))
    })
}

fn trim(status: &TrimStatus) -> Option<TrimFigures> {
    let state = match status.state {
        TrimState::Never => return None,
        TrimState::Running => "running",
        TrimState::Stopped => "stopped",
        TrimState::Finished => "finished",
    };
    Some(TrimFigures {
        state: state.into(),
        started: status.started,
        finished: status.finished,
        total_bytes: status.total_bytes,
        done_bytes: status.done_bytes,
        errors: status.errors,
    })
}

fn scrub(status: &ScrubStatus) -> Option<ScrubFigures> {
    let state = match status.state {
        ScrubState::Never => return None,
        ScrubState::Running => "running",
        ScrubState::Stopped => "stopped",
        ScrubState::Finished => "finished",
    };
    Some(ScrubFigures {
        state: state.into(),
        started: status.started,
        finished: status.finished,
        total_bytes: status.total_bytes,
        done_bytes: status.done_bytes,
        sound: status.sound,
        damaged: status.damaged,
        unreadable: status.unreadable,
        repaired: status.repaired,
    })
}

fn of_quota(pool: &Pool, quota: &QuotaUse) -> QuotaFigures {
    QuotaFigures {
        name: names::full(pool.name(), &quota.path),
        property: quota.bound.name().into(),
        limit_bytes: quota.limit_bytes,
        used_bytes: quota.used_bytes,
    }
}

fn write_amplification(status: &Status) -> Option<f64> {
    (status.totals.accepted_bytes > 0).then(|| status.totals.write_amplification())
}

/// Returns the figures of a device of a pool that could not be opened.
pub fn unseen_device(path: &Path) -> DeviceFigures {
    DeviceFigures { path: path.to_owned(), ..DeviceFigures::default() }
}

/// Returns the counters of an open pool: bytes read and written, by purpose; and requests to devices, by class.
pub fn activity(pool: &Pool, age_ms: u64) -> Activity {
    let status = pool.status();
    let log_device = pool.log_device_status();
    let totals = status.totals;
    let sum = |of: fn(&DeviceCounts) -> u64| status.devices.iter().map(|device| of(&device.counts)).sum();
    let hedges = |of: fn(&HedgeCounts) -> u64| status.devices.iter().map(|device| of(&device.hedges)).sum();
    let counter = |name: &str, operations: u64, bytes: u64| Counter { name: name.into(), operations, bytes };
    Activity {
        age_ms,
        size_bytes: status.size_bytes,
        allocated_bytes: status.allocated_bytes,
        devices: status.devices.iter().map(|device| device_activity(device, log_device)).collect(),
        counters: vec![
            counter("application_read", 0, totals.read_bytes),
            counter("application_write", 0, totals.accepted_bytes),
            counter(
                "pages_full",
                totals.pages_stored.saturating_sub(totals.pages_delta),
                totals.data_bytes.saturating_sub(totals.delta_bytes),
            ),
            counter("pages_delta", totals.pages_delta, totals.delta_bytes),
            counter("pages_zero", totals.pages_zero, 0),
            counter("pages_by_model", totals.pages_modelled, totals.modelled_bytes),
            counter("models", 0, totals.model_bytes),
            counter("trees", 0, totals.tree_bytes),
            counter("checkpoints", totals.checkpoints, totals.checkpoint_bytes),
            counter("second_copies", 0, totals.copy_bytes),
            counter("second_copies_read", status.second_copies_read, 0),
            counter("account_faults", status.account_faults, 0),
            counter("log_framing", totals.commits, totals.framing_bytes),
            counter("fold", 0, totals.moved_bytes),
            counter("durable_commits", totals.durable_commits, 0),
            counter("cache_hits", status.record_cache.hits, 0),
            counter("cache_misses", status.record_cache.misses, 0),
            counter("device_read", sum(|c| c.reads), sum(|c| c.read_bytes)),
            counter("device_write", sum(|c| c.writes), sum(|c| c.written_bytes)),
            counter("device_flush", sum(|c| c.flushes), 0),
            counter("device_discard", sum(|c| c.discards), sum(|c| c.discarded_bytes)),
            counter("device_hedged_read", hedges(|of| of.hedged), 0),
            counter("device_hedge_won", hedges(|of| of.won), 0),
        ],
        rewrites: {
            let (database, other) = pool.rewrites();
            vec![rewritten("rewritten_database", &database), rewritten("rewritten_other", &other)]
        },
    }
}

fn device_activity(device: &DeviceStatus, log_device: Option<LogDeviceStatus>) -> DeviceActivity {
    let commits = log_device.filter(|log_device| log_device.group == device.group);
    let (allocated_bytes, free_bytes) = match commits {
        Some(log) => (log.used_bytes, log.size_bytes.saturating_sub(log.used_bytes)),
        None => (device.allocated_bytes, device.free_bytes),
    };
    DeviceActivity {
        number: device.number,
        group: device.group,
        log: device.is_log,
        state: device_state(device.state).into(),
        path: device.path.clone(),
        allocated_bytes,
        free_bytes,
        requests: device.requests.iter().map(of_requests).collect(),
        hedged_reads: device.hedges.hedged,
        hedges_won: device.hedges.won,
    }
}

fn of_requests(counts: &RequestCounts) -> RequestFigures {
    let latency = |(range, operations): (usize, &u64)| LatencyFigures {
        below_ns: RequestCounts::latency_below_ns(range),
        operations: *operations,
    };
    let latencies = counts.latencies.iter().enumerate().filter(|(_, operations)| **operations > 0);
    RequestFigures {
        class: counts.class.name().into(),
        kind: counts.kind.name().into(),
        waiting: counts.waiting,
        in_flight: counts.in_flight,
        operations: counts.requests(),
        bytes: counts.bytes,
        errors: counts.errors,
        total_ns: counts.total_ns,
        latencies: latencies.map(latency).collect(),
    }
}

fn rewritten(name: &str, of: &Rewrites) -> RewriteFigures {
    let lengths = of
        .lengths
        .iter()
        .map(|length| LengthFigures { at_most_bytes: length.at_most_bytes, operations: length.records });
    RewriteFigures { name: name.into(), operations: of.records, bytes: of.bytes, lengths: lengths.collect() }
}
