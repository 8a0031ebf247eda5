//! Pools as the verbs need them: creates, opens, describes and destroys them.

#![deny(clippy::print_stderr, reason = "say does not panic where standard error fails")]

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pagefold_engine::Error;
use pagefold_engine::dataset::Dataset;
use pagefold_engine::device::{Device, FileDevice, OpenMode, SimDevice};
use pagefold_engine::limits::ATOMIC_WRITE_MAX;
use pagefold_engine::pool::label::Label;
use pagefold_engine::pool::{
    self, CreateOptions, Guid, Listed, OpenOptions, Pool, QuotaUse, Relation, Rewrites, ScrubState,
    ScrubStatus, Status, TrimState, TrimStatus, Witness,
};
use pagefold_fs::{FormatOptions, Fs, SystemClock};
use rustix::io::retry_on_intr;
use rustix::rand::{GetRandomFlags, getrandom};

use crate::control::{
    Activity, CacheFigures, Counter, DeviceErrors, DeviceFigures, LengthFigures, PoolFigures, PropertyValue,
    QuotaFigures, RewriteFigures, ScrubFigures, SnapshotFigures, Source, TrimFigures,
};
use crate::failure::{Context, Failure, Result};
use crate::props::{self, PROPERTIES, Property, Scope};
use crate::registry::{Known, paths_text};
use crate::say::say;
use crate::seen::{self, Seen};
use crate::units::{FULL_PERCENT, hundredths};
use crate::{errors, finding, names, raw, settings, startup, table, units};

/// Devices that are open.
pub type Devices = Vec<Arc<dyn Device>>;

/// Size of the cache, in bytes, of a pool that is opened only for a moment.
const CACHE_BYTES_BRIEF: u64 = 64 << 20;
/// Permissions of a new pool's root directory.
const ROOT_PERM: u16 = 0o755;

/// Converts an error of the engine to a failure that says what was attempted, and gives advice.
pub fn failed(doing: impl Into<String>, error: &Error) -> Failure {
    let failure = Failure::new(format!("{}: {error}", doing.into()));
    match error {
        Error::Corrupt { .. } => failure.hint(
            "see how far the damage goes: pagefold check; to read what is left: pagefold mount -o rescue",
        ),
        Error::NotCurrent { .. } => failure.hint("see which copies there are: pagefold import -d DIR"),
        Error::NotAPool(_) => failure.hint("see what is on this machine: pagefold import [-d DIR]"),
        Error::Unsupported(_) => failure.hint("use the version of pagefold that made it, or a newer one"),
        Error::NoSpace(_) => {
            failure.hint("delete something, or raise the quota that is in the way; what snapshots hold: pagefold list -t snapshot")
        }
        _ => failure,
    }
}

/// Does the same as [`failed`] for work that needs the devices exclusively.
pub fn failed_on_devices(doing: impl Into<String>, error: &Error) -> Failure {
    let failure = failed(doing, error);
    match error {
        Error::Busy(_) => {
            failure.hint("another process has it open; see which pools are mounted: pagefold list")
        }
        _ => failure,
    }
}

/// A pool that would be lost if a device were overwritten.
pub enum Held {
    /// A pool of this version.
    Pool {
        /// Its name.
        name: String,
        /// Its unique number.
        guid: String,
    },
    /// A pool of another version of the format, or with unknown features: a text with the problem and advice.
    Other(String),
}

/// Returns the pool that `device` belongs to, in any state; `None` if no pool is recognised.
pub fn held_by(device: &Path) -> Option<Held> {
    let read = FileDevice::open(device, OpenMode::Unlocked).and_then(|opened| Label::read(&opened));
    match read {
        Ok(label) => Some(Held::Pool { name: table::printable(&label.name), guid: label.pool.to_string() }),
        Err(Error::Unsupported(why)) => Some(Held::Other(why)),
        Err(_) => None,
    }
}

/// Creates a pool with an empty file system and returns its GUID. The devices must exist and have been checked.
pub fn create(
    name: &str,
    devices: &[PathBuf],
    properties: &[(&'static Property, String)],
    force: bool,
    trim: bool,
) -> Result<String> {
    let doing = || format!("cannot create pool {name}");
    let guid = Guid(random()?);
    let created = units::now();
    if force && !properties.is_empty() {
        rehearse(name, devices, properties).map_err(|failure| refused(&doing(), &failure))?;
    }
    let make = if trim { pool::create_trimmed } else { pool::create };
    make(name, devices, &CreateOptions { force, created, guid })
        .map_err(|error| failed_on_devices(doing(), &error))?;
    let filled = open_new(devices, guid).and_then(|pool| fill(&pool, properties));
    if let Err(failure) = filled {
        // A pool that is only half made must not stay.
        if let Err(error) = pool::destroy(devices) {
            say(&format!("cannot take pool {name} back: {error}"));
        }
        return Err(refused(&doing(), &failure));
    }
    Ok(guid.to_string())
}

fn refused(doing: &str, failure: &Failure) -> Failure {
    Failure::new(format!("{doing}: {}", failure.what()))
}

/// Makes the pool in memory, on devices of the same sizes: what is refused is refused before the pool now on the
/// devices is lost.
fn rehearse(name: &str, devices: &[PathBuf], properties: &[(&'static Property, String)]) -> Result<()> {
    let mut made: Vec<Arc<dyn Device>> = Vec::new();
    for path in devices {
        let opened = FileDevice::open(path, OpenMode::Unlocked)
            .map_err(|error| failed_on_devices("cannot look at it", &error))?;
        made.push(Arc::new(SimDevice::new(opened.size_bytes(), 0)));
    }
    let options = CreateOptions { force: true, created: units::now(), guid: Guid(random()?) };
    pool::create_on(name, &made, &options).map_err(|error| failed("cannot make it", &error))?;
    let options = OpenOptions { cache_bytes: CACHE_BYTES_BRIEF, ..OpenOptions::default() };
    fill(&Pool::open_on(made, &options).map_err(|error| failed("cannot open it", &error))?, properties)
}

fn open_new(devices: &[PathBuf], guid: Guid) -> Result<Arc<Pool>> {
    let witness = Some(witness(Seen::open(&guid.to_string())?));
    let now = units::now();
    let options = OpenOptions { cache_bytes: CACHE_BYTES_BRIEF, witness, now, ..OpenOptions::default() };
    Pool::open(devices, &options).map_err(|error| failed("cannot open it", &error))
}

fn fill(pool: &Arc<Pool>, properties: &[(&'static Property, String)]) -> Result<()> {
    format(pool.dataset().as_ref())?;
    for (property, value) in properties {
        set_one(pool, "", property.name, Some(value))?;
    }
    pool.export().map_err(|error| failed("cannot close it", &error))
}

/// Makes an empty file system in a fresh dataset; its root directory belongs to the user of this process.
pub fn format(dataset: &dyn Dataset) -> Result<()> {
    let options = FormatOptions {
        seed: u64::from_le_bytes(random()?),
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        perm: ROOT_PERM,
    };
    Fs::format(dataset, &SystemClock, &options).context(|| "cannot make its file system".into())
}

/// Returns random bytes from the kernel.
pub fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    let drawing = || "cannot draw random bytes".to_owned();
    // So few bytes come at once, or not at all.
    let drawn = retry_on_intr(|| getrandom(&mut bytes, GetRandomFlags::empty())).context(drawing)?;
    if drawn == N { Ok(bytes) } else { Err(Failure::new(drawing())) }
}

/// Erases a pool's labels. Every device is checked first: one that does not belong to the pool any more is not touched.
pub fn destroy(known: &Known) -> Result<()> {
    for device in &known.devices {
        match held_by(device) {
            Some(Held::Pool { guid, .. }) if guid == known.guid => demand_current(known, device)?,
            Some(Held::Other(why)) => {
                return Err(Failure::new(format!("cannot destroy pool {}: {why}", known.name)));
            }
            _ => {
                return Err(Failure::new(format!(
                    "cannot destroy pool {}: {} does not hold it, or cannot be read",
                    known.name,
                    shown(device)
                ))
                .hint(format!(
                    "nothing was changed; to forget the pool: pagefold export -f {}",
                    known.name
                )));
            }
        }
    }
    pool::destroy(&known.devices)
        .map_err(|error| failed_on_devices(format!("cannot destroy pool {}", known.name), &error))
}

/// Returns a text if a device has a copy of its pool that is older than the newest seen here, or that went on by
/// itself.
pub fn not_as_seen(guid: &str, name: &str, device: &Path) -> Result<Option<String>> {
    let Some((last, _)) = seen::last(guid)? else { return Ok(None) };
    // A device whose state cannot be read is damaged, and not an older copy.
    let Ok((label, standing)) = pool::stands(device) else { return Ok(None) };
    if label.pool.to_string() != guid {
        return Ok(None);
    }
    let (path, number) = (shown(device), label.device);
    Ok(match standing.relation(&last) {
        Relation::Same | Relation::After => None,
        Relation::Before => Some(format!("{path} is an older copy of device {number} of pool {name}")),
        Relation::Apart => {
            Some(format!("{path} is a copy of device {number} of pool {name} that went on by itself"))
        }
    })
}

/// Returns an error if [`not_as_seen`] returns a text.
fn demand_current(known: &Known, device: &Path) -> Result<()> {
    let Some(what) = not_as_seen(&known.guid, &known.name, device)? else { return Ok(()) };
    // If there are several devices, the others may well be current.
    let stale = if known.devices.len() > 1 { vec![device.to_owned()] } else { Vec::new() };
    Err(not_opened(known, &Error::NotCurrent { what, stale }))
}

/// Returns a witness that notes how far a pool has come.
fn witness(seen: Arc<Seen>) -> Witness {
    Witness::new(move |standing| {
        // A failure does not harm the pool; but an older copy of it may go unnoticed later.
        if let Err(failure) = seen.note(standing) {
            say(&format!("warning: {failure}"));
        }
    })
}

/// Adds options for opening a known pool: a copy that is older than the newest seen here is refused, and progress is
/// noted.
pub fn attentive(known: &Known, options: OpenOptions) -> Result<OpenOptions> {
    if options.rescue {
        return Ok(options);
    }
    // The engine checks again, with the devices locked; but a confined server cannot say where the newer copy was.
    known.devices.iter().try_for_each(|device| demand_current(known, device))?;
    if options.read_only {
        let since = seen::last(&known.guid)?.map(|(standing, _)| standing);
        return Ok(OpenOptions { since, ..options });
    }
    let seen = Seen::open(&known.guid)?;
    Ok(OpenOptions { since: seen.standing(), now: units::now(), witness: Some(witness(seen)), ..options })
}

/// Does the same as [`attentive`] for a server that takes over from another one. The devices never were anybody else's
/// in between; and where progress cannot be noted, the pool is served all the same: its mounts would end otherwise.
pub fn attentive_still(known: &Known, options: OpenOptions) -> OpenOptions {
    if options.rescue || options.read_only {
        return options;
    }
    let now = units::now();
    match Seen::open(&known.guid) {
        Ok(seen) => OpenOptions { since: seen.standing(), now, witness: Some(witness(seen)), ..options },
        Err(failure) => {
            tracing::warn!(%failure, "an older copy of the pool may go unnoticed later: its progress is not noted");
            OpenOptions { now, ..options }
        }
    }
}

/// Opens a known pool, and checks that the devices hold this pool.
pub fn open_known(known: &Known, options: &OpenOptions) -> Result<Arc<Pool>> {
    let options = attentive(known, options.clone())?;
    open_on(known, open_devices(known, &options)?, &options)
}

/// Opens the devices of a known pool for [`open_on`]. Only the labels on them are read.
pub fn open_devices(known: &Known, options: &OpenOptions) -> Result<Devices> {
    check_labels(known)?;
    Pool::open_devices(&known.devices, options).map_err(|error| not_opened(known, &error))
}

/// Does the same as [`open_devices`] for [`adopt_devices`] in other processes: the devices are locked as long as any
/// process has the descriptors.
pub fn hand_over_devices(known: &Known, read_only: bool) -> Result<Vec<OwnedFd>> {
    check_labels(known)?;
    let mode = mode(read_only);
    let opened = known.devices.iter().map(|path| FileDevice::open(path, mode)?.hand_over());
    opened.collect::<Result<_, _>>().map_err(|error| not_opened(known, &error))
}

/// Opens the devices of a known pool from their descriptors.
pub fn adopt_devices(known: &Known, files: &[OwnedFd], read_only: bool) -> Result<Devices> {
    let adopt = |(path, file): (&PathBuf, &OwnedFd)| -> Result<Arc<dyn Device>> {
        let file = file.try_clone().context(|| format!("cannot take over {}", shown(path)))?;
        let device = FileDevice::adopt(file, path, mode(read_only));
        Ok(Arc::new(device.map_err(|error| not_opened(known, &error))?))
    };
    known.devices.iter().zip(files).map(adopt).collect()
}

fn mode(read_only: bool) -> OpenMode {
    if read_only { OpenMode::ReadOnly } else { OpenMode::ReadWrite }
}

/// Opens a known pool on open devices, and checks that they hold this pool.
pub fn open_on(known: &Known, devices: Devices, options: &OpenOptions) -> Result<Arc<Pool>> {
    let pool = Pool::open_on(devices, options).map_err(|error| not_opened(known, &error))?;
    let guid = pool.guid().to_string();
    if guid != known.guid {
        return Err(other_pool(known, &guid, pool.name()));
    }
    Ok(pool)
}

/// Returns an error if devices hold another pool by now; nothing has been written then.
fn check_labels(known: &Known) -> Result<()> {
    for device in &known.devices {
        match held_by(device) {
            Some(Held::Pool { guid, name }) if guid != known.guid => {
                return Err(other_pool(known, &guid, &name));
            }
            _ => {}
        }
    }
    Ok(())
}

fn not_opened(known: &Known, error: &Error) -> Failure {
    let doing = format!("cannot open pool {}", known.name);
    match known.devices.iter().find(|path| !path.exists()) {
        Some(path) => Failure::new(format!("{doing}: its device {} does not exist", shown(path)))
            .hint(format!("connect it, or tell where it is now: pagefold import -d DIR {}", known.name)),
        None => match error {
            Error::NotCurrent { what, stale } => not_current(known, format!("{doing}: {what}"), stale),
            _ => failed_on_devices(doing, error),
        },
    }
}

/// Returns the failure for devices that hold an older copy. It says where the newer one was seen last, and what to do.
fn not_current(known: &Known, told: String, stale: &[PathBuf]) -> Failure {
    let failure = Failure::new(told);
    if !stale.is_empty() {
        // The other devices may be current: together with them, an older copy can neither become another pool nor be
        // gone back to.
        return failure.hint(format!(
            "leave {} out and bring back what took its place in the pool; look for it: pagefold import -d DIR {}",
            paths_text(stale),
            known.name
        ));
    }
    let Ok(Some((_, noted))) = seen::last(&known.guid) else {
        return failure.hint("see which copies there are: pagefold import -d DIR");
    };
    let went_on = finding::went_on(&known.guid, noted, &known.devices).unwrap_or_default();
    let devices = |option: &str| -> String {
        known.devices.iter().map(|path| format!(" {option} {}", shown(path))).collect()
    };
    failure.hint(format!(
        "the pool went on {went_on}; look for the newer copy: pagefold import -d DIR; to use this one as a pool of its own: pagefold reguid{}; to go back to it for good: pagefold import --accept-older{} {}",
        devices("--device"),
        devices("-d"),
        known.guid
    ))
}

fn other_pool(known: &Known, guid: &str, name: &str) -> Failure {
    Failure::new(format!(
        "cannot open pool {}: its devices now hold pool {} (GUID {guid})",
        known.name,
        table::printable(name)
    ))
    .hint(format!("find it again: pagefold import -d DIR {}", known.guid))
}

/// Opens a pool that is not mounted, to look at it or to close it.
pub fn open_briefly(known: &Known, read_only: bool) -> Result<Arc<Pool>> {
    open_known(known, &OpenOptions { read_only, cache_bytes: CACHE_BYTES_BRIEF, ..OpenOptions::default() })
}

/// Closes a pool that is not mounted: replays its log if it crashed, and marks it as exported.
pub fn close_cleanly(known: &Known) -> Result<()> {
    // A read-only opening is tried first, because it is not recorded as an opening of the pool.
    if open_briefly(known, true)?.replayed().clean {
        return Ok(());
    }
    let pool = open_briefly(known, false)?;
    pool.export().map_err(|error| failed(format!("cannot close pool {}", known.name), &error))
}

/// Opens a pool whose log is damaged in its state before the damage, and closes it. It can be mounted again; what was
/// acknowledged after that state is lost. A pool whose log is intact loses nothing.
pub fn give_up_damaged_log(known: &Known) -> Result<()> {
    let options = OpenOptions { cache_bytes: CACHE_BYTES_BRIEF, accept_loss: true, ..OpenOptions::default() };
    let pool = open_known(known, &options)?;
    match pool.replayed().damage {
        Some(lost) => {
            let device =
                known.devices.get(usize::from(lost.device)).map(|path| shown(path)).unwrap_or_default();
            println!("pool {}: the log from byte {} of {device} on was given up", known.name, lost.offset);
        }
        None => println!("pool {}: its log is whole, nothing was given up", known.name),
    }
    pool.export().map_err(|error| failed(format!("cannot close pool {}", known.name), &error))
}

/// Returns the figures of a pool that is not mounted.
pub fn figures_offline(known: &Known) -> Result<PoolFigures> {
    let pool = open_briefly(known, true)?;
    let state = if pool.replayed().clean { "EXPORTED" } else { "CRASHED" };
    Ok(PoolFigures { state: state.into(), ..figures(&pool) })
}

/// Returns the figures of an open pool, its state included.
pub fn figures(pool: &Pool) -> PoolFigures {
    let status = &pool.status();
    PoolFigures {
        name: status.name.clone(),
        guid: status.guid.to_string(),
        state: state_of(status).into(),
        problem: status.failure.clone().or_else(|| rescue_text(pool)),
        pid: None,
        takeover: None,
        confinement: None,
        mount: None,
        mounts: Vec::new(),
        devices: status
            .devices
            .iter()
            .zip(&status.faults.devices)
            .map(|(device, faults)| DeviceFigures {
                path: device.path.clone(),
                size_bytes: device.size_bytes,
                io_errors: faults.reads.saturating_add(faults.writes),
                errors: errors::of_device(*faults),
                discards: Some(device.discards),
            })
            .collect(),
        errors: errors::told(pool, &status.faults),
        snapshots: is_nearly_full(status).then(|| snapshots(pool)).flatten(),
        size_bytes: status.size_bytes,
        capacity_bytes: status.capacity_bytes,
        used_bytes: status.used_bytes,
        available_bytes: status.available_bytes,
        reserved_bytes: status.reserved_bytes,
        quotas: pool.quotas().iter().map(|quota| of_quota(pool, quota)).collect(),
        logical_bytes: status.logical_bytes,
        stored_bytes: status.stored_bytes,
        physical_bytes: status.physical_bytes,
        allocated_bytes: status.allocated_bytes,
        dirty_bytes: status.dirty_bytes,
        freeing: pool.is_reaping(),
        freeing_bytes: pool.unreferenced_bytes(),
        backup_policies: pool.is_set_anywhere(crate::backups::BACKUP),
        log_bytes: status.log_bytes,
        models: status.models,
        model_bytes: status.model_bytes,
        model_memory_bytes: status.model_memory_bytes,
        second_copies_read: status.second_copies_read,
        account_faults: status.account_faults,
        txg: status.next_batch,
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
        (None, None) => "ONLINE",
    }
}

/// Returns a text about the damage that opening a pool for rescue has met; `None` unless the pool is open for rescue.
fn rescue_text(pool: &Pool) -> Option<String> {
    let mut told = pool.rescue()?.messages();
    let replayed = pool.replayed();
    if let Some(lost) = replayed.damage {
        let path = pool.paths().get(usize::from(lost.device)).map(|path| shown(path)).unwrap_or_default();
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
    let errors = DeviceErrors::default();
    DeviceFigures { path: path.to_owned(), size_bytes: 0, io_errors: 0, errors, discards: None }
}

/// Returns the counters of an open pool: bytes read and written, by purpose.
pub fn activity(pool: &Pool, age_ms: u64) -> Activity {
    let status = pool.status();
    let totals = status.totals;
    let sum = |of: fn(&pagefold_engine::device::DeviceCounts) -> u64| {
        status.devices.iter().map(|device| of(&device.counts)).sum()
    };
    let counter = |name: &str, operations: u64, bytes: u64| Counter { name: name.into(), operations, bytes };
    Activity {
        age_ms,
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
        ],
        rewrites: {
            let (database, other) = pool.rewrites();
            vec![rewritten("rewritten_database", &database), rewritten("rewritten_other", &other)]
        },
    }
}

fn rewritten(name: &str, of: &Rewrites) -> RewriteFigures {
    let lengths = of
        .lengths
        .iter()
        .map(|length| LengthFigures { at_most_bytes: length.at_most_bytes, operations: length.records });
    RewriteFigures { name: name.into(), operations: of.records, bytes: of.bytes, lengths: lengths.collect() }
}

/// Returns all properties of a dataset or snapshot of a pool that is not mounted.
pub fn properties_offline(known: &Known, path: &str) -> Result<Vec<PropertyValue>> {
    properties(&*open_briefly(known, true)?, path, &[])
}

/// Sets a property; `None` clears it, so that the inherited value holds.
pub fn set_one(pool: &Pool, path: &str, name: &str, value: Option<&str>) -> Result<()> {
    let of = names::full(pool.name(), path);
    if props::is_engines(name) {
        return Err(Failure::new(format!("cannot set {name} of {of}: it is the engine's own")));
    }
    startup::check_pair(pool, name, value)?;
    pool.set_property_of(path, name, value).map_err(|error| match error {
        Error::NotFound(_) => no_such_dataset(&of, &error),
        error => failed(format!("cannot set {name} of {of}"), &error),
    })
}

/// Opens a pool that is not mounted, read-only, and calls `look` with it.
pub fn look_offline<T>(known: &Known, look: impl FnOnce(&Arc<Pool>) -> Result<T>) -> Result<T> {
    look(&open_briefly(known, true)?)
}

/// Opens a pool that is not mounted, calls `work` with it, and closes it.
pub fn with_offline<T>(known: &Known, work: impl FnOnce(&Arc<Pool>) -> Result<T>) -> Result<T> {
    let pool = open_briefly(known, false)?;
    let done = work(&pool);
    let closed = pool.export().map_err(|error| failed(format!("cannot close pool {}", known.name), &error));
    let done = done?;
    closed.map(|()| done)
}

/// Returns all properties of a dataset or snapshot of an open pool. Those in `temporary` hold for its mount.
pub fn properties(
    pool: &Pool,
    path: &str,
    temporary: &[(&'static str, String)],
) -> Result<Vec<PropertyValue>> {
    let name = names::full(pool.name(), path);
    let token = pool.partial(path).map(|partial| PropertyValue {
        name: props::RESUME_TOKEN.into(),
        value: partial.token.to_string(),
        source: Source::None,
    });
    let listed = match (pool.listed(path), token.clone()) {
        // Of a dataset that is being received for the first time, only the token is known.
        (Err(Error::NotFound(_)), Some(token)) => return Ok(vec![token]),
        (listed, _) => listed.map_err(|error| no_such_dataset(&name, &error))?,
    };
    let all = pool.list().map_err(|error| failed("cannot list the datasets", &error))?;
    let below_bytes = if listed.is_snapshot { 0 } else { crate::datasets::used_below(&all, path) };
    let status = pool.status();
    let mut values = Vec::new();
    for property in PROPERTIES {
        let name = property.name.to_owned();
        if listed.is_snapshot && property.scope == Scope::Own {
            continue;
        }
        let temporary = temporary.iter().rev().find(|(temporary, _)| *temporary == property.name);
        let (value, source) = match temporary {
            Some((_, value)) => (value.clone(), Source::Temporary),
            None if property.settable() => settings::of(pool, path, property)?,
            None => match computed(property.name, &listed, below_bytes, &status) {
                Some(value) => (value, Source::None),
                None => continue,
            },
        };
        values.push(PropertyValue { name, value, source });
    }
    values.extend(token);
    values.extend(user_properties(pool, path)?);
    Ok(values)
}

/// Returns the user properties of a dataset or snapshot, its own and inherited ones.
fn user_properties(pool: &Pool, path: &str) -> Result<Vec<PropertyValue>> {
    let mut names = BTreeSet::new();
    let mut at = Some(path);
    while let Some(here) = at {
        let listed = pool.listed(here).map_err(|error| failed("cannot read properties", &error))?;
        names.extend(listed.properties.into_keys().filter(|name| props::is_user(name)));
        at = if here.contains('@') { Some(names::dataset_of(here)) } else { names::parent(here) };
    }
    let mut values = Vec::new();
    for name in names {
        if let Some((value, source)) = settings::stored(pool, path, &name)? {
            values.push(PropertyValue { name, value, source });
        }
    }
    Ok(values)
}

/// Returns the exact value of a computed property; `None` if this dataset or snapshot does not have it.
fn computed(name: &str, listed: &Listed, below_bytes: u64, status: &Status) -> Option<String> {
    let ratio = |ratio: Option<f64>| ratio.map_or_else(|| "-".into(), |ratio| format!("{ratio:.2}"));
    let is_pool = listed.path.is_empty();
    Some(match name {
        "used" if is_pool => status.used_bytes.to_string(),
        "used" => (listed.used_bytes + below_bytes).to_string(),
        "available" if !listed.is_snapshot => listed.available_bytes.to_string(),
        "referenced" => listed.referenced_bytes.to_string(),
        "logicalused" => listed.logical_bytes.to_string(),
        "usedbysnapshots" if !listed.is_snapshot => listed.snapshots_bytes.to_string(),
        "written" => listed.written_bytes.to_string(),
        "origin" if !listed.is_snapshot => {
            listed.origin.as_ref().map_or_else(|| "-".into(), |origin| names::full(&status.name, origin))
        }
        "clones" if listed.is_snapshot && !listed.clones.is_empty() => {
            let seen = listed.clones.iter().filter(|path| !names::is_hidden(path));
            let clones: Vec<String> = seen.map(|path| names::full(&status.name, path)).collect();
            clones.join(",")
        }
        "userrefs" if listed.is_snapshot => listed.holds.len().to_string(),
        "type" => (if listed.is_snapshot { "snapshot" } else { "filesystem" }).into(),
        "compressratio" if is_pool => ratio(units::ratio(status.logical_bytes, status.physical_bytes)),
        "compressratio" => ratio(units::ratio(listed.logical_bytes, listed.physical_bytes)),
        "atomicwrite" => ATOMIC_WRITE_MAX.to_string(),
        "physicalused" if is_pool => status.allocated_bytes.to_string(),
        "waf" if is_pool => ratio(write_amplification(status)),
        "guid" if is_pool => status.guid.to_string(),
        "version" if is_pool => status.version.to_string(),
        "creation" if is_pool => status.created.to_string(),
        "creation" => listed.created.to_string(),
        _ => return None,
    })
}

/// Converts an error of the engine about a dataset or snapshot to a failure with its whole name.
pub fn no_such_dataset(name: &str, error: &Error) -> Failure {
    match error {
        Error::NotFound(_) => {
            let kind = if name.contains('@') { "snapshot" } else { "dataset" };
            let pool = name.split(['/', '@']).next().unwrap_or_default();
            Failure::new(format!("there is no {kind} {name}"))
                .hint(format!("see which there are: pagefold list -t all {pool}"))
        }
        error => failed(format!("cannot open {name}"), error),
    }
}

/// Formats a path for a message.
pub fn shown(path: &Path) -> String {
    table::printable(&raw::text(path))
}
