//! Pools as the verbs need them: creates, opens and destroys them.

#![deny(clippy::print_stderr, reason = "write_line does not panic where standard error fails")]

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pagefold_engine::Error;
use pagefold_engine::dataset::Dataset;
use pagefold_engine::device::{Device, FileDevice, OneDevice, OpenMode, SimDevice};
use pagefold_engine::pool::label::Label;
use pagefold_engine::pool::{self, CreateOptions, Guid, OpenOptions, Pool, Relation, SpareLabel, Witness};
use pagefold_fs::{FormatOptions, Fs, FsError, SystemClock};
use rustix::io::retry_on_intr;
use rustix::rand::{GetRandomFlags, getrandom};

use crate::dataset_properties::set_one;
use crate::engine_errors::{failed, failed_on_devices};
use crate::failure::{Context, Failure, Result};
use crate::last_state::{self, LastStateFile, Noted};
use crate::props::Property;
use crate::raw::shown;
use crate::registry::{Known, paths_text};
use crate::{discovery, notices, raw, units};

/// Devices that are open.
pub type OpenDevices = Vec<Arc<dyn Device>>;

/// Size of the cache, in bytes, of a pool that is opened only for a moment.
const CACHE_BYTES_BRIEF: u64 = 64 << 20;
/// Permissions of a new pool's root directory.
const ROOT_PERM: u16 = 0o755;

/// A pool that would be lost if a device were overwritten.
pub enum Held {
    /// A pool of this version.
    Pool {
        /// Its name.
        name: String,
        /// Its unique number.
        guid: String,
        /// The number of the device in the pool, if what lies on it is worth nothing alone: it was being given to the pool.
        unfinished: Option<u16>,
    },
    /// A spare of a pool, which holds no data.
    Spare {
        /// Name of the pool.
        name: String,
        /// The pool's unique number.
        guid: String,
    },
    /// A pool of another version of the format, or with unknown features: a text with the problem and advice.
    Other(String),
}

/// Returns the pool that `device` belongs to, in any state, or is a spare of; `None` if no pool is recognised.
pub fn held_by(device: &Path) -> Option<Held> {
    let opened = FileDevice::open(device, OpenMode::Unlocked).ok()?;
    if let Ok(Some(label)) = SpareLabel::read(OneDevice::of(&opened)) {
        return Some(Held::Spare { name: raw::printable(&label.name), guid: label.pool.to_string() });
    }
    match Label::read(OneDevice::of(&opened)) {
        Ok(label) => Some(Held::Pool {
            name: raw::printable(&label.name),
            guid: label.pool.to_string(),
            unfinished: label.is_unfinished(OneDevice::of(&opened)).then_some(label.device),
        }),
        Err(Error::Unsupported(why)) => Some(Held::Other(why)),
        Err(_) => None,
    }
}

/// A pool that was just created.
pub struct NewPool {
    /// Its GUID.
    pub guid: String,
    /// Size of its devices, each mirror counted once, in bytes.
    pub size_bytes: u64,
    /// Stored bytes that it can hold.
    pub capacity_bytes: u64,
}

impl NewPool {
    fn of(guid: Guid, pool: &Pool) -> Self {
        let pagefold_engine::pool::Status { size_bytes, capacity_bytes, .. } = pool.status();
        Self { guid: guid.to_string(), size_bytes, capacity_bytes }
    }
}

/// Devices that a pool is to have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// Devices that hold data: those of one group are mirrors of each other.
    pub groups: Vec<Vec<PathBuf>>,
    /// Spares.
    pub spares: Vec<PathBuf>,
    /// The log device: several are mirrors of each other.
    pub log: Vec<PathBuf>,
}

impl Layout {
    /// Returns all of its devices: those that hold data, then spares, then the log device.
    pub fn all(&self) -> Vec<PathBuf> {
        self.groups.iter().flatten().chain(&self.spares).chain(&self.log).cloned().collect()
    }

    /// Returns the same devices, named by what `changed` makes of their paths.
    ///
    /// # Errors
    /// Those of `changed`.
    pub fn map(&self, changed: impl Fn(&Path) -> Result<PathBuf>) -> Result<Self> {
        let all = |paths: &Vec<PathBuf>| paths.iter().map(|path| changed(path)).collect::<Result<Vec<_>>>();
        Ok(Self {
            groups: self.groups.iter().map(all).collect::<Result<_>>()?,
            spares: all(&self.spares)?,
            log: all(&self.log)?,
        })
    }
}

/// Creates a pool with an empty file system. The devices must exist and have been checked.
pub fn create(
    name: &str,
    layout: &Layout,
    properties: &[(&'static Property, String)],
    force: bool,
    trim: bool,
) -> Result<NewPool> {
    let doing = || format!("cannot create pool {name}");
    let guid = Guid(random()?);
    let created = units::now();
    if force && !properties.is_empty() {
        // Properties that cannot be are refused before the pool now on the devices is lost.
        rehearse(name, layout, properties, &|path| bytes_of(name, path, OpenMode::Unlocked))?;
    }
    let Layout { groups, spares, log } = layout;
    let devices = &[groups.concat(), log.clone()].concat();
    pool::create_groups(name, groups, log, &CreateOptions { force, created, guid }, trim)
        .map_err(|error| failed_on_devices(doing(), &error))?;
    let filled = open_new(devices, guid).and_then(|pool| {
        add_spares(&pool, open_all(spares)?)?;
        fill(&pool, properties)?;
        Ok(NewPool::of(guid, &pool))
    });
    filled.map_err(|failure| {
        // A pool that is only half made must not stay.
        let is_spare = |path: &&PathBuf| matches!(held_by(path), Some(Held::Spare { guid: of, .. }) if of == guid.to_string());
        let spares = spares.iter().filter(is_spare).cloned();
        if let Err(error) = pool::destroy(&devices.iter().cloned().chain(spares).collect::<Vec<_>>()) {
            notices::tell(&format!("cannot take pool {name} back: {error}"));
        }
        refused(&doing(), &failure)
    })
}

fn refused(doing: &str, failure: &Failure) -> Failure {
    Failure::new(format!("{doing}: {}", failure.what()))
}

/// Returns the size in bytes of a device of which a pool of this name is to be made, opened in this mode for a moment.
///
/// # Errors
/// The one that the pool's creation gives.
pub fn bytes_of(name: &str, path: &Path, mode: OpenMode) -> Result<u64> {
    let opened = FileDevice::open(path, mode);
    let device = opened.map_err(|error| failed_on_devices(format!("cannot create pool {name}"), &error))?;
    Ok(device.size_bytes())
}

/// Makes a pool in memory, as [`create`] makes it on devices that have as many bytes as `bytes_of` tells. Nothing is changed.
///
/// # Errors
/// Those of [`create`], except for errors of devices; those of `bytes_of`.
pub fn rehearse(
    name: &str,
    layout: &Layout,
    properties: &[(&'static Property, String)],
    bytes_of: &dyn Fn(&Path) -> Result<u64>,
) -> Result<NewPool> {
    let doing = || format!("cannot create pool {name}");
    let simulate = |path: &PathBuf| -> Result<Arc<dyn Device>> {
        Ok(Arc::new(SimDevice::named(path.clone(), bytes_of(path)?)))
    };
    let group = |paths: &Vec<PathBuf>| paths.iter().map(simulate).collect::<Result<Vec<_>>>();
    let made: Vec<Vec<Arc<dyn Device>>> = layout.groups.iter().map(group).collect::<Result<_>>()?;
    let log = group(&layout.log)?;
    let guid = Guid(random()?);
    let options = CreateOptions { force: true, created: units::now(), guid };
    pool::create_with_log_on(name, &made, &log, &options)
        .map_err(|error| failed_on_devices(doing(), &error))?;
    let options = OpenOptions { cache_bytes: CACHE_BYTES_BRIEF, ..OpenOptions::default() };
    let opened = Pool::open_on([made.concat(), log].concat(), &options);
    let filled = opened.map_err(|error| failed("cannot open it", &error)).and_then(|pool| {
        add_spares(&pool, group(&layout.spares)?)?;
        fill(&pool, properties)?;
        Ok(NewPool::of(guid, &pool))
    });
    filled.map_err(|failure| refused(&doing(), &failure))
}

fn open_new(devices: &[PathBuf], guid: Guid) -> Result<Arc<Pool>> {
    let witness = Some(witness(LastStateFile::open(&guid.to_string())?));
    let now = units::now();
    let options = OpenOptions { cache_bytes: CACHE_BYTES_BRIEF, witness, now, ..OpenOptions::default() };
    Pool::open(devices, &options).map_err(|error| failed("cannot open it", &error))
}

fn open_all(paths: &[PathBuf]) -> Result<OpenDevices> {
    let opened = Pool::open_devices(paths, &OpenOptions::default());
    opened.map_err(|error| failed_on_devices("cannot make spares of the pool", &error))
}

fn add_spares(pool: &Pool, devices: OpenDevices) -> Result<()> {
    if devices.is_empty() {
        return Ok(());
    }
    pool.add_spares(devices).map_err(|error| failed("cannot make spares of the pool", &error))
}

fn fill(pool: &Arc<Pool>, properties: &[(&'static Property, String)]) -> Result<()> {
    format(pool.dataset().as_ref(), pool.name())?;
    for (property, value) in properties {
        set_one(pool, "", property.name, Some(value))?;
    }
    pool.export().map_err(|error| failed("cannot close it", &error))
}

/// Makes an empty file system in the fresh dataset `name`; its root directory belongs to the user of this process.
pub fn format(dataset: &dyn Dataset, name: &str) -> Result<()> {
    let options = FormatOptions {
        seed: u64::from_le_bytes(random()?),
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        perm: ROOT_PERM,
    };
    Fs::format(dataset, &SystemClock, &options).map_err(|error| {
        let doing = format!("cannot make the file system of {name}");
        match error {
            FsError::NoSpace(what) => failed(doing, &Error::NoSpace(what)),
            error => Failure::new(format!("{doing}: {error}")),
        }
    })
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
    let (mut ours, mut refused) = (Vec::new(), None);
    for device in &known.devices {
        match held_by(device) {
            Some(Held::Pool { guid, .. }) if guid == known.guid => {
                demand_current(known, device)?;
                ours.push(device.clone());
            }
            Some(Held::Spare { guid, .. }) if guid == known.guid => ours.push(device.clone()),
            Some(Held::Other(why)) => {
                return Err(Failure::new(format!("cannot destroy pool {}: {why}", known.name)));
            }
            _ => refused = refused.or(Some(device)),
        }
    }
    // Devices of mirrors may be missing, or have left the pool.
    if let Some(device) = refused
        && !suffice(&ours)
    {
        return Err(Failure::new(format!(
            "cannot destroy pool {}: {} does not hold it, or cannot be read",
            known.name,
            shown(device)
        ))
        .hint(format!("nothing was changed; to forget the pool: pagefold export -f {}", known.name)));
    }
    pool::destroy(&ours)
        .map_err(|error| failed_on_devices(format!("cannot destroy pool {}", known.name), &error))
}

/// Returns true if a pool can be opened on these devices, with loss of what only its log device has.
fn suffice(paths: &[PathBuf]) -> bool {
    let devices = here(paths);
    pool::can_open(&devices) || pool::lacks_log_device(&devices).is_some()
}

/// Returns those of these devices that can be opened, not locked.
fn here(paths: &[PathBuf]) -> OpenDevices {
    let open = |path: &PathBuf| -> Option<Arc<dyn Device>> {
        Some(Arc::new(FileDevice::open(path, OpenMode::Unlocked).ok()?))
    };
    paths.iter().filter_map(open).collect()
}

/// Returns a text if a device has a copy of its pool that is older than the newest seen here, or that went on by
/// itself.
pub fn not_as_seen(guid: &str, name: &str, device: &Path) -> Result<Option<String>> {
    let Some(Noted { standing: last, .. }) = last_state::read(guid)? else { return Ok(None) };
    // A device whose state cannot be read is damaged, and not an older copy.
    let Ok((label, standing)) = pool::stands(device) else { return Ok(None) };
    // A device of a mirror may have been away, and so may a log device: the engine finds out whether another one has all.
    let may_lag = label.membership.is_mirrored() || pool::is_log_device(device).unwrap_or(false);
    if label.pool.to_string() != guid || may_lag {
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
fn witness(seen: Arc<LastStateFile>) -> Witness {
    // A failure does not harm the pool; but an older copy of it may go unnoticed later.
    let tell = |noted: Result<()>| {
        if let Err(failure) = noted {
            notices::tell(&format!("warning: {failure}"));
        }
    };
    let of_tables = Arc::clone(&seen);
    Witness::new(move |standing| tell(seen.note(standing)))
        .with_tables(move |table| tell(of_tables.note_table(table)))
}

/// Adds what was noted about a pool, and one who notes how far it comes.
fn watched(seen: Arc<LastStateFile>, options: OpenOptions) -> OpenOptions {
    let (since, since_tables) = (seen.standing(), seen.tables());
    OpenOptions { since, since_tables, now: units::now(), witness: Some(witness(seen)), ..options }
}

/// Adds options for opening a known pool: a copy that is older than the newest seen here is refused, and progress is
/// noted.
pub(crate) fn attentive(known: &Known, options: OpenOptions) -> Result<OpenOptions> {
    if options.rescue {
        return Ok(options);
    }
    // The engine checks again, with the devices locked; but a confined server cannot say where the newer copy was.
    known.devices.iter().try_for_each(|device| demand_current(known, device))?;
    if options.read_only {
        let noted = last_state::read(&known.guid)?;
        let since = noted.as_ref().map(|noted| noted.standing);
        let since_tables = noted.map(|noted| noted.tables).unwrap_or_default();
        return Ok(OpenOptions { since, since_tables, ..options });
    }
    Ok(watched(LastStateFile::open(&known.guid)?, options))
}

/// Does the same as [`attentive`] for a server that takes over from another one. The devices never were anybody else's
/// in between; and where progress cannot be noted, the pool is served all the same: its mounts would end otherwise.
pub(crate) fn attentive_still(known: &Known, options: OpenOptions) -> OpenOptions {
    if options.rescue || options.read_only {
        return options;
    }
    match LastStateFile::open(&known.guid) {
        Ok(seen) => watched(seen, options),
        Err(failure) => {
            tracing::warn!(%failure, "an older copy of the pool may go unnoticed later: its progress is not noted");
            OpenOptions { now: units::now(), ..options }
        }
    }
}

/// Opens a known pool, and checks that the devices hold this pool.
pub(crate) fn open_known(known: &Known, options: &OpenOptions) -> Result<Arc<Pool>> {
    let options = attentive(known, options.clone())?;
    open_on(known, open_devices(known, &options)?, &options)
}

/// Opens the devices of a known pool for [`open_on`]. Only the labels on them are read. A device that cannot be opened is
/// left out if the pool does not need it.
pub(crate) fn open_devices(known: &Known, options: &OpenOptions) -> Result<OpenDevices> {
    let paths = usable(known, options.read_only, options.accept_loss)?;
    Pool::open_devices(&paths, options).map_err(|error| not_opened(known, &error))
}

/// Does the same as [`open_devices`] for [`adopt_devices`] in other processes: the devices are locked as long as any
/// process has the descriptors. Returns the paths of these devices, too.
pub(crate) fn hand_over_devices(
    known: &Known,
    (read_only, accept_loss): (bool, bool),
) -> Result<(Vec<PathBuf>, Vec<OwnedFd>)> {
    let paths = usable(known, read_only, accept_loss)?;
    let mode = mode(read_only);
    let opened = paths.iter().map(|path| FileDevice::open(path, mode)?.hand_over());
    let opened: Result<_, _> = opened.collect();
    Ok((paths, opened.map_err(|error| not_opened(known, &error))?))
}

/// Returns the devices of a known pool that can be used: all of them, or those that are left if some cannot be read and
/// the pool can be opened without them. With `accept_loss` it can be opened without its log device whatever that has.
pub fn usable(known: &Known, read_only: bool, accept_loss: bool) -> Result<Vec<PathBuf>> {
    let mut found: OpenDevices = Vec::new();
    let (mut paths, mut refused) = (Vec::new(), None);
    for path in &known.devices {
        match held_by(path) {
            Some(Held::Pool { guid, name, .. } | Held::Spare { guid, name }) if guid != known.guid => {
                refused = refused.or_else(|| Some(other_pool(known, &guid, &name)));
                continue;
            }
            _ => {}
        }
        if let Some(error) = blank(path) {
            refused = refused.or_else(|| Some(not_opened(known, &error)));
            continue;
        }
        // Whoever holds a device may be this pool's server: then the pool is not opened without it.
        match FileDevice::open(path, mode(read_only)) {
            Err(Error::Busy(what)) => return Err(not_opened(known, &Error::Busy(what))),
            Err(error) => {
                refused = refused.or_else(|| Some(not_opened(known, &error)));
                continue;
            }
            Ok(_) => paths.push(path.clone()),
        }
        if let Ok(device) = FileDevice::open(path, OpenMode::Unlocked) {
            found.push(Arc::new(device));
        }
    }
    let Some(failure) = refused else { return Ok(paths) };
    let can_open = pool::can_open(&found);
    match pool::lacks_log_device(&found).filter(|_| !can_open) {
        Some(error) if !accept_loss => {
            Err(failed_on_devices(format!("cannot open pool {}", known.name), &error))
        }
        None if !can_open => Err(failure),
        _ => {
            notices::tell(&format!(
                "warning: pool {} is opened without a device: {}",
                known.name,
                failure.what()
            ));
            Ok(paths)
        }
    }
}

/// Returns the error of a device that can be read, and has no label: it has left its pool, perhaps, and others may use it by
/// now.
fn blank(path: &Path) -> Option<Error> {
    let opened = FileDevice::open(path, OpenMode::Unlocked).ok()?;
    let one = OneDevice::of(&opened);
    match (SpareLabel::read(one), Label::read(one)) {
        (Ok(None), Err(error @ Error::NotAPool(_))) => Some(error),
        _ => None,
    }
}

/// Opens the devices of a known pool from their descriptors.
pub(crate) fn adopt_devices<'a>(
    known: &Known,
    files: impl Iterator<Item = &'a (PathBuf, OwnedFd)>,
    read_only: bool,
) -> Result<OpenDevices> {
    let mut devices = OpenDevices::new();
    for (path, file) in files {
        let device = adopt_device(&known.name, path, file, read_only)?;
        // A server may have ended before it made a device that it was given the pool's.
        match Label::read(OneDevice::of(device.as_ref())) {
            Ok(label) if label.pool.to_string() != known.guid => {
                tracing::warn!(device = %path.display(), pool = label.name, "it is of another pool, and is left alone");
            }
            _ => devices.push(device),
        }
    }
    Ok(devices)
}

/// Opens a device of a pool from its descriptor.
pub(crate) fn adopt_device(
    pool: &str,
    path: &Path,
    file: &OwnedFd,
    read_only: bool,
) -> Result<Arc<dyn Device>> {
    let file = file.try_clone().context(|| format!("cannot take over {}", shown(path)))?;
    let device = FileDevice::adopt(file, path, mode(read_only));
    let doing = || format!("cannot open {} for pool {pool}", shown(path));
    Ok(Arc::new(device.map_err(|error| failed_on_devices(doing(), &error))?))
}

/// Opens and locks a device, to be given to the server of a pool.
///
/// # Errors
/// If it cannot be opened, or is held by somebody.
pub fn open_for_server(path: &Path) -> Result<OwnedFd> {
    let opened = FileDevice::open(path, OpenMode::ReadWrite).and_then(FileDevice::hand_over);
    opened.map_err(|error| failed_on_devices(format!("cannot open {}", shown(path)), &error))
}

/// Returns the size of a device in bytes, even if somebody holds it.
///
/// # Errors
/// If it cannot be opened.
pub fn device_bytes(path: &Path) -> Result<u64> {
    let opened = FileDevice::open(path, OpenMode::Unlocked);
    let device = opened.map_err(|error| failed_on_devices(format!("cannot open {}", shown(path)), &error))?;
    Ok(device.size_bytes())
}

fn mode(read_only: bool) -> OpenMode {
    if read_only { OpenMode::ReadOnly } else { OpenMode::ReadWrite }
}

/// Opens a known pool on open devices, and checks that they hold this pool.
pub fn open_on(known: &Known, devices: OpenDevices, options: &OpenOptions) -> Result<Arc<Pool>> {
    let pool = Pool::open_on(devices, options).map_err(|error| not_opened(known, &error))?;
    let guid = pool.guid().to_string();
    if guid != known.guid {
        return Err(other_pool(known, &guid, pool.name()));
    }
    Ok(pool)
}

fn not_opened(known: &Known, error: &Error) -> Failure {
    let doing = format!("cannot open pool {}", known.name);
    match known.devices.iter().find(|path| !path.exists()) {
        Some(path) => Failure::new(format!("{doing}: its device {} does not exist", shown(path)))
            .hint(format!("connect it, or tell where it is now: pagefold import -d DIR {}", known.name)),
        None => match error {
            Error::NotCurrent { what, stale } => not_current(known, format!("{doing}: {what}"), stale),
            Error::NotReplayed(_) => failed(doing, error)
                .hint(format!("mount it, and not read-only: pagefold mount {} DIR", known.name))
                .until_replayed(),
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
    let Ok(Some(Noted { at: noted, .. })) = last_state::read(&known.guid) else {
        return failure.hint("see which copies there are: pagefold import -d DIR");
    };
    let went_on = discovery::went_on(&known.guid, noted, &known.devices).unwrap_or_default();
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
        raw::printable(name)
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
    match open_briefly(known, true) {
        Ok(pool) if pool.replayed().clean => return Ok(()),
        Err(failure) if !failure.needs_replay() => return Err(failure),
        _ => {}
    }
    let pool = open_briefly(known, false)?;
    pool.export().map_err(|error| failed(format!("cannot close pool {}", known.name), &error))
}

/// Opens a pool whose log is damaged in its state before the damage, or whose log device is lost without what only that had,
/// and closes it. It can be mounted again; what was acknowledged after that state is lost. A pool whose log is intact loses
/// nothing. Calls `tell` with what was lost before it closes the pool.
pub fn give_up_damaged_log(known: &Known, tell: &mut dyn FnMut(&str)) -> Result<()> {
    let options = OpenOptions { cache_bytes: CACHE_BYTES_BRIEF, accept_loss: true, ..OpenOptions::default() };
    let pool = open_known(known, &options)?;
    let replayed = pool.replayed();
    if replayed.gave_up_log_device {
        tell(&format!(
            "pool {}: what could not be read of its log device is given up, with the commits that no other device has",
            known.name
        ));
    }
    match replayed.damage {
        Some(lost) => {
            let device =
                known.devices.get(usize::from(lost.device)).map(|path| shown(path)).unwrap_or_default();
            tell(&format!(
                "pool {}: the log from byte {} of {device} on was given up",
                known.name, lost.offset
            ));
        }
        None if replayed.gave_up_log_device => {}
        None => tell(&format!("pool {}: its log is whole, nothing was given up", known.name)),
    }
    pool.export().map_err(|error| failed(format!("cannot close pool {}", known.name), &error))
}

/// Opens a pool that is not mounted, for figures of it. If it crashed and its log device has what belongs on the other
/// devices, that is read from there.
pub(crate) fn open_for_figures(known: &Known) -> Result<Arc<Pool>> {
    let opened = open_briefly(known, true);
    if opened.as_ref().is_err_and(Failure::needs_replay) {
        let options = OpenOptions { cache_bytes: CACHE_BYTES_BRIEF, ..OpenOptions::for_rescue() };
        return open_known(known, &options);
    }
    opened
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

#[cfg(test)]
mod tests;
