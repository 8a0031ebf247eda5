//! `mount -o remount`, and the property `readonly` on mounted datasets: give a mount other options while it is in use.
//!
//! The server does its part; the kernel's part is asked of it here, in the caller's mount namespace. To forbid changes
//! the kernel comes first, since it knows who writes; to allow them, the server.

use std::path::PathBuf;

use pagefold_server::control::{Client, MountFigures, Reply, Request};
use pagefold_server::failure::{Failure, Result};
use pagefold_server::files;
use pagefold_server::mounts::{self, MountEntry};
use pagefold_server::names::{self, Name};
use pagefold_server::raw::{self, shown};
use pagefold_server::registry::paths_text;
use rustix::io::Errno;
use rustix::mount::{MountFlags, mount_remount};

use crate::args::Mount;
use crate::{mount_lookup, mount_users, table, target};

/// Options that a mount is to have; `None` leaves one as it is.
#[derive(Clone, Copy, Default)]
struct RemountFlags {
    read_only: Option<bool>,
    suid: Option<bool>,
    dev: Option<bool>,
    exec: Option<bool>,
}

/// The extent of `ro` and `rw`: the kernel has a flag for each place, and one for the file system. The other
/// options are always those of a place.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reach {
    /// The file system, at all of its places.
    Dataset,
    /// One place.
    Place,
}

/// Returns true if the options of a mount are to be changed.
pub fn is_wanted(args: &Mount) -> bool {
    args.options.iter().any(|word| word == "remount")
}

/// Changes the options of a mount.
pub fn run(args: &Mount) -> Result<()> {
    let mount = mount_meant(args)?;
    if !files::is_root() {
        return Err(Failure::new("only root can remount: fusermount3 has no such thing")
            .hint(format!("unmount it, and mount it again: pagefold unmount {}", shown(&mount.dir))));
    }
    let words: Vec<String> = args.options.iter().filter(|word| *word != "remount").cloned().collect();
    if words.is_empty() {
        return Err(Failure::usage("remount to what?").hint("e.g. pagefold mount -o remount,ro POOL"));
    }
    let mut client = target::server(mount.pool())?;
    let device = mount.device.1;
    let target = ask(&mut client, device, &words, true)?;
    if args.dry_run {
        return Ok(());
    }
    let was_read_only = figures(&mut client, device)?.read_only;
    let others = other_places(args, &mount)?;
    if target.read_only == Some(true) && !others.is_empty() {
        of_kernel(&mount, target, Reach::Place)?;
        let rest: Vec<String> = words.into_iter().filter(|word| word != "ro").collect();
        if !rest.is_empty() {
            ask(&mut client, device, &rest, false)?;
        }
        if !was_read_only {
            eprintln!(
                "pagefold: {} stays writable at {}",
                table::printable(&mount.source),
                paths_text(&others)
            );
        }
        return Ok(());
    }
    if target.read_only == Some(true) {
        of_kernel(&mount, target, Reach::Dataset)?;
        ask(&mut client, device, &words, false)?;
        return tell_server(&mut client, device, true);
    }
    ask(&mut client, device, &words, false)?;
    of_kernel(&mount, target, Reach::Dataset).inspect_err(|_| {
        if was_read_only && let Err(failure) = tell_server(&mut client, device, true) {
            eprintln!("pagefold: {failure}");
        }
    })
}

/// Returns the reason why a mount cannot become writable, with advice, if there is one.
pub fn why_not_writable(client: &mut Client, device: u32) -> Option<Failure> {
    ask(client, device, &["rw".to_owned()], true).err()
}

/// Applies the property `readonly` of a dataset, after it was set or cleared, to the mounts of that dataset and of
/// those below it; or tells why it waits.
pub fn property_changed(name: &Name) -> Result<()> {
    let Some(mut client) = target::connect(&name.pool)? else { return Ok(()) };
    let Reply::Status { figures } = client.ask(&Request::Status {})? else {
        return Err(client.misunderstood());
    };
    let concerned = |mount: &&MountFigures| {
        names::is_within(&mount.path, &name.path) && !mount.path.contains('@') && !name.is_snapshot()
    };
    for mounted in figures.mounts.iter().filter(concerned) {
        let target = ask(&mut client, mounted.device, &[], true)?;
        let Some(read_only) = target.read_only.filter(|target| *target != mounted.read_only) else {
            continue;
        };
        if let Err(failure) = make(&mut client, mounted, read_only) {
            let how = if read_only { "read-only" } else { "writable" };
            eprintln!("pagefold: {} becomes {how} when it is mounted the next time: {failure}", mounted.name);
        }
    }
    Ok(())
}

fn make(client: &mut Client, mounted: &MountFigures, read_only: bool) -> Result<()> {
    let there = mounts::of_devices(&[mounted.device])?.into_iter().next();
    let there = there.ok_or_else(|| {
        Failure::new(format!("{} is not mounted in this mount namespace", shown(&mounted.dir)))
    })?;
    if !read_only {
        tell_server(client, mounted.device, false)?;
    }
    let flags = RemountFlags { read_only: Some(read_only), ..RemountFlags::default() };
    let done = of_kernel(&there, flags, Reach::Dataset);
    if done.is_ok() == read_only {
        tell_server(client, mounted.device, true)?;
    }
    done
}

fn ask(client: &mut Client, device: u32, words: &[String], dry_run: bool) -> Result<RemountFlags> {
    match client.ask_and_wait(&Request::Remount { device, options: words.to_vec(), dry_run })? {
        Reply::Remounting { read_only, suid, dev, exec } => Ok(RemountFlags { read_only, suid, dev, exec }),
        _ => Err(client.misunderstood()),
    }
}

fn tell_server(client: &mut Client, device: u32, read_only: bool) -> Result<()> {
    match client.ask_and_wait(&Request::ReadOnly { device, on: read_only })? {
        Reply::Done {} => Ok(()),
        _ => Err(client.misunderstood()),
    }
}

fn figures(client: &mut Client, device: u32) -> Result<MountFigures> {
    let Reply::Status { figures } = client.ask(&Request::Status {})? else {
        return Err(client.misunderstood());
    };
    let found = figures.mounts.into_iter().find(|mount| mount.device == device);
    found.ok_or_else(|| Failure::new("it was unmounted just now"))
}

/// Returns the mount that is meant, by its directory or by the name of its dataset.
fn mount_meant(args: &Mount) -> Result<MountEntry> {
    let source = args.source.as_deref().unwrap_or_default();
    if let Some(dir) = &args.dir {
        let mount = mount_lookup::mount_at(dir)?;
        if !target::is_path(source) && mount.source != source {
            return Err(Failure::new(format!(
                "{} is mounted at {}, not {}",
                table::printable(&mount.source),
                shown(dir),
                table::printable(source)
            ))
            .hint("see what is mounted: pagefold status"));
        }
        return Ok(mount);
    }
    if target::is_path(source) {
        return mount_lookup::mount_at(&raw::path_of(source));
    }
    // A word that is both a name and a path counts as a name.
    let name = Name::parse(source).map(|name| name.to_string());
    let is_named = |mount: &MountEntry| name.as_ref().is_ok_and(|name| mount.source == *name);
    if let Some(found) = mounts::ours()?.into_iter().find(is_named) {
        return Ok(found);
    }
    match mount_lookup::mount_if_at(&raw::path_of(source))? {
        Some(found) => Ok(found),
        None => {
            Err(Failure::new(format!("{} is not mounted", name?))
                .hint("see what is mounted: pagefold status"))
        }
    }
}

/// Returns the other places of a mount if its directory was given: then that place is meant. The name of a dataset stands
/// for all of its places.
fn other_places(args: &Mount, mount: &MountEntry) -> Result<Vec<PathBuf>> {
    if args.dir.is_none() && !target::is_path(args.source.as_deref().unwrap_or_default()) {
        return Ok(Vec::new());
    }
    let places = mounts::of_devices(&[mount.device.1])?;
    Ok(places.into_iter().filter(|place| place.id != mount.id).map(|place| place.dir).collect())
}

/// Has the kernel change a mount. Options that `target` does not name stay as they are.
fn of_kernel(mount: &MountEntry, target: RemountFlags, reach: Reach) -> Result<()> {
    let has = |option: &str| mount.options.split(',').any(|own| own == option);
    let mut flags = match reach {
        Reach::Dataset => MountFlags::empty(),
        Reach::Place => MountFlags::BIND,
    };
    flags.set(MountFlags::RDONLY, target.read_only.unwrap_or(mount.read_only));
    flags.set(MountFlags::NOSUID, target.suid.map_or_else(|| has("nosuid"), |on| !on));
    flags.set(MountFlags::NODEV, target.dev.map_or_else(|| has("nodev"), |on| !on));
    flags.set(MountFlags::NOEXEC, target.exec.map_or_else(|| has("noexec"), |on| !on));
    let dir = shown(&mount.dir);
    mount_remount(&mount.dir, flags, c"").map_err(|errno| match errno {
        Errno::BUSY => {
            let who = match mount_users::of(mount).as_slice() {
                [] => "no process of yours is seen to have a file open there".to_owned(),
                some => format!("in use by\n{}", mount_users::text(some)),
            };
            Failure::new(format!("{dir} cannot become read-only: files are open for writing")).hint(who)
        }
        Errno::PERM => {
            Failure::new(format!("no permission to remount {dir}")).hint("run it as root on the host")
        }
        errno => Failure::new(format!("cannot remount {dir}: {errno}")),
    })
}
