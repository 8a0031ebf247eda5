//! `create`: makes a new pool on devices that hold nothing that somebody may miss.

mod plan;

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use pagefold_engine::limits::DEVICE_BYTES_MIN;
use pagefold_engine::walk;
use pagefold_server::failure::{Context, Failure, Result};
use pagefold_server::names::Name;
use pagefold_server::pools::{Held, Layout, NewPool};
use pagefold_server::props::Property;
use pagefold_server::raw::shown;
use pagefold_server::registry::{Known, Registry};
use pagefold_server::{files, pools, props, registry, startup, units};
use rustix::fs::{OFlags, statvfs};

use crate::args::Create;
use crate::signature;
use crate::verbs::{layout, warn};

/// Creates a pool, and prints how much it holds; or, without changing anything, what would be made.
pub fn run(args: &Create) -> Result<()> {
    let wanted = Wanted::check(args)?;
    if args.dry_run {
        return plan::print(args, &wanted);
    }
    let new = wanted.make(args)?;
    println!("{}", room_text(&args.pool, "", &new));
    Ok(())
}

/// Returns how much room a pool has; `would` is empty, or says that it would have it.
fn room_text(pool: &str, would: &str, new: &NewPool) -> String {
    format!(
        "{pool}: {would}{} for data, of {}; the rest is kept for cleaning and checkpoints",
        units::size(new.capacity_bytes),
        units::size(new.size_bytes)
    )
}

/// Creates a pool and remembers it. Everything that can be refused is refused before anything is changed.
pub(super) fn make(args: &Create) -> Result<NewPool> {
    Wanted::check(args)?.make(args)
}

/// A pool that is to be made, as far as it was checked without touching its devices.
struct Wanted {
    properties: Vec<(&'static Property, String)>,
    /// Size of files that are made, if one was given.
    size: Option<u64>,
    registry: Registry,
    layout: Layout,
    seen: Seen,
}

impl Wanted {
    fn check(args: &Create) -> Result<Self> {
        check_name(&args.pool)?;
        let properties: Vec<_> =
            args.properties.iter().map(|word| props::parse_assignment(word)).collect::<Result<_>>()?;
        let size = file_bytes(args.size.as_deref())?;
        let registry = Registry::open()?;
        if let Some(known) = registry.all()?.into_iter().find(|known| known.name == args.pool) {
            return Err(Failure::new(format!(
                "a pool named {} is known already, on {}",
                known.name,
                pagefold_server::registry::paths_text(&known.devices)
            ))
            .hint(format!(
                "choose another name; or forget that pool, which stays as it is: pagefold export {}",
                known.name
            )));
        }
        startup::check_together(&properties)?;
        let layout = layout::parse(&args.devices)?;
        if layout.groups.is_empty() {
            return Err(Failure::usage(
                "a pool has devices that hold data: neither spares nor a log device do",
            ));
        }
        let seen = look(&layout.all(), size, args.force, &|_| false)?;
        Ok(Self { properties, size, registry, layout, seen })
    }

    fn make(self, args: &Create) -> Result<NewPool> {
        let Self { properties, size, registry, layout, seen } = self;
        // A pool that could not be remembered would be made for nothing: this removal of nothing shows whether the registry
        // can be written.
        registry.remove("")?;
        let made = NewFiles::make(&seen.missing, size)?;
        let layout = layout.map(registry::absolute)?;
        let devices = layout.all();
        let overwritten: Vec<_> = devices.iter().filter_map(|device| pools::held_by(device)).collect();
        let new = pools::create(&args.pool, &layout, &properties, args.force, !args.no_trim)?;
        let known =
            Known { name: args.pool.clone(), guid: new.guid.clone(), devices, adopted: true, altroot: None };
        let remember = || {
            for held in &overwritten {
                if let Held::Pool { guid, .. } = held {
                    registry.remove(guid)?;
                }
            }
            registry.add(known.clone())
        };
        if let Err(failure) = remember() {
            // A pool that is not in the registry is left on no device.
            pools::destroy(&known)?;
            return Err(failure);
        }
        made.stay();
        Ok(new)
    }
}

fn check_name(name: &str) -> Result<()> {
    files::check_pool_name(name).map_err(|failure| match Name::parse(name) {
        Ok(dataset) if !dataset.path.is_empty() && !dataset.is_snapshot() => {
            failure.hint(format!("a dataset is made with: pagefold dataset create {name}"))
        }
        _ => failure,
    })
}

/// Files that are removed again unless the pool comes into being.
pub(super) struct NewFiles(Vec<PathBuf>);

impl NewFiles {
    /// Makes files of `size` bytes.
    pub(super) fn make(missing: &[PathBuf], size: Option<u64>) -> Result<Self> {
        let mut made = Self(Vec::new());
        for path in missing {
            make_file(path, size.unwrap_or(0))?;
            made.0.push(path.clone());
        }
        Ok(made)
    }

    /// Leaves the files: they are of use.
    pub(super) fn stay(mut self) {
        self.0.clear();
    }
}

impl Drop for NewFiles {
    fn drop(&mut self) {
        for path in &self.0 {
            let removed = walk::reach_parent(path)
                .map_err(io::Error::from)
                .and_then(|(dir, name)| fs::remove_file(dir.entry_path(&name)));
            if let Err(error) = removed {
                eprintln!("pagefold: cannot remove {} again: {error}", shown(path));
            }
        }
    }
}

/// Returns the size in bytes of files that are to be made for devices, if one was given.
pub(super) fn file_bytes(given: Option<&str>) -> Result<Option<u64>> {
    let size = given.map(units::parse_size).transpose()?;
    match size {
        Some(size) if size < DEVICE_BYTES_MIN => {
            Err(Failure::usage(format!("a device of {} is too small", units::size(size)))
                .hint(format!("a pool needs devices of at least {}", units::size(DEVICE_BYTES_MIN))))
        }
        size => Ok(size),
    }
}

/// Devices that a pool is to get, as they are before.
#[derive(Default)]
pub(super) struct Seen {
    /// Those that do not exist, and are to be made.
    pub(super) missing: Vec<PathBuf>,
    /// Those that hold something which would be lost, and that.
    pub(super) lost: Vec<(PathBuf, String)>,
}

impl Seen {
    /// Returns what a plan says of what would be lost.
    pub(super) fn lost_texts(&self) -> impl Iterator<Item = String> {
        self.lost.iter().map(|(path, what)| format!("{} {what}, which would be lost", shown(path)))
    }
}

/// Looks at every device without touching it. Nobody misses what `is_left_over` returns true for.
pub(super) fn look(
    devices: &[PathBuf],
    size: Option<u64>,
    force: bool,
    is_left_over: &dyn Fn(&Held) -> bool,
) -> Result<Seen> {
    let mut found = Seen::default();
    let mut seen = Vec::new();
    for path in devices {
        match fs::metadata(path) {
            Ok(metadata) => {
                let holds = check_existing(path, &metadata, force, is_left_over)?;
                found.lost.extend(holds.map(|what| (path.clone(), what)));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                check_missing(path, size)?;
                found.missing.push(path.clone());
            }
            Err(error) => return Err(Failure::new(format!("cannot look at {}: {error}", shown(path)))),
        }
        let absolute = fs::canonicalize(path).or_else(|_| std::path::absolute(path));
        let absolute = absolute.context(|| format!("cannot resolve {}", shown(path)))?;
        if seen.contains(&absolute) {
            return Err(Failure::usage(format!("{} was given twice", shown(path))));
        }
        seen.push(absolute);
    }
    Ok(found)
}

/// Returns what a device holds that somebody may miss. Unless it may be lost (`force`), that is an error.
fn check_existing(
    path: &Path,
    metadata: &fs::Metadata,
    force: bool,
    is_left_over: &dyn Fn(&Held) -> bool,
) -> Result<Option<String>> {
    let kind = metadata.file_type();
    if !kind.is_file() && !kind.is_block_device() {
        return Err(Failure::new(format!("{} is neither a file nor a block device", shown(path)))
            .hint("give a block device such as /dev/sdb, or a file with --size"));
    }
    // A block device that is mounted, or part of something else, refuses O_EXCL.
    let exclusive = if kind.is_block_device() { OFlags::EXCL.bits().cast_signed() } else { 0 };
    let device = File::options().read(true).write(true).custom_flags(exclusive).open(path);
    let device = device.map_err(|error| match error.raw_os_error() {
        Some(libc::EBUSY) => Failure::new(format!("{} is in use by the system", shown(path)))
            .hint("it is mounted, used as swap, or part of a RAID or volume group: see lsblk"),
        Some(libc::EACCES | libc::EPERM) => Failure::new(format!("no permission to write {}", shown(path)))
            .hint("run this as root, or give a file of yours with --size"),
        Some(libc::EROFS) => {
            Failure::new(format!("{} is read-only", shown(path))).hint("a pool needs devices it can write to")
        }
        _ => Failure::new(format!("cannot open {}: {error}", shown(path))),
    })?;
    let holds = match pools::held_by(path) {
        Some(held) if is_left_over(&held) => None,
        Some(Held::Pool { name, guid, .. }) => Some(format!("holds pool {name} (GUID {guid})")),
        Some(Held::Spare { name, guid }) => Some(format!("is a spare of pool {name} (GUID {guid})")),
        Some(Held::Other(_)) => Some("holds a pool of another version of pagefold".into()),
        None => {
            let found = signature::of(&device).context(|| format!("cannot read {}", shown(path)))?;
            found.map(|what| format!("holds {what}"))
        }
    };
    match holds {
        Some(what) if !force => Err(Failure::new(format!("{} {what}", shown(path)))
            .hint("if that may be lost, use -f; nothing was changed")),
        holds => Ok(holds),
    }
}

fn check_missing(path: &Path, size: Option<u64>) -> Result<()> {
    let Some(size) = size else {
        return Err(Failure::new(format!("{} does not exist", shown(path)))
            .hint("to make a file of that name, say how large: --size 10G"));
    };
    if path.starts_with("/dev") && !holds_files(path) {
        return Err(
            Failure::new(format!("there is no device {}", shown(path))).hint("see which there are: lsblk")
        );
    }
    let dir = match path.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    };
    let space = statvfs(dir).map_err(|errno| {
        Failure::new(format!("cannot make {}: {}: {}", shown(path), shown(dir), io::Error::from(errno)))
            .hint("the directory has to exist")
    })?;
    let whole = space.f_blocks.saturating_mul(space.f_frsize);
    if size > whole {
        return Err(Failure::new(format!(
            "a file of {} cannot fit into the file system of {}, which has {} in all",
            units::size(size),
            shown(dir),
            units::size(whole)
        ))
        .hint("give a smaller --size"));
    }
    let free = space.f_bavail.saturating_mul(space.f_frsize);
    if size > free {
        warn(&format!(
            "{} is more than the {} free at {}: writes fail when it is full",
            units::size(size),
            units::size(free),
            shown(dir)
        ));
    }
    Ok(())
}

/// Returns true if a path in /dev lies on a file system of its own, which has files and no devices: /dev/shm.
fn holds_files(path: &Path) -> bool {
    let mount = |path: &Path| fs::metadata(path).map(|meta| meta.dev()).ok();
    path.parent().and_then(mount).is_some_and(|own| mount(Path::new("/dev")) != Some(own))
}

fn make_file(path: &Path, size: u64) -> Result<()> {
    let making = || format!("cannot make {}", shown(path));
    let (dir, name) = walk::reach_parent(path).context(making)?;
    let place = dir.entry_path(&name);
    let file = File::options().write(true).create_new(true).mode(0o600).open(&place).context(making)?;
    file.set_len(size).map_err(|error| {
        // The file is new and empty; the failure below tells the reason.
        let _ = fs::remove_file(&place);
        Failure::new(format!("{}: {error}", making()))
    })
}
