//! `mount -o remount`, and the property `readonly` on mounted datasets: give a mount other options while it is in use.
//!
//! The server does its part; the kernel's part is asked of it here, in the caller's mount namespace. To forbid changes
//! the kernel comes first, since it knows who writes; to allow them, the server.
//!
//! The kernel has a flag `ro` for the file system, and one for each place where it is mounted. The file system's is what
//! a dataset is told to be; a place's is changed only by words for that place. The other options are always those of a
//! place.

use std::path::PathBuf;

use pagefold_server::control::{Client, MountFigures, Reply, Request};
use pagefold_server::failure::{Failure, Result};
use pagefold_server::files;
use pagefold_server::mounts::{self, MountEntry};
use pagefold_server::names::{self, Name};
use pagefold_server::raw::{self, shown};
use pagefold_server::registry::paths_text;
use rustix::io::Errno;
use rustix::mount::{FsPickFlags, fsconfig_reconfigure, fsconfig_set_flag, fspick};

use crate::args::Mount;
use crate::place_flags::PlaceFlags;
use crate::{mount_lookup, mount_users, table, target};

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
        make_place(&mount, target)?;
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
        make_file_system(&mount, true)?;
        make_place(&mount, PlaceFlags { read_only: None, ..target })?;
        ask(&mut client, device, &words, false)?;
        return tell_server(&mut client, device, true);
    }
    ask(&mut client, device, &words, false)?;
    if target.read_only == Some(false) {
        make_file_system(&mount, false).inspect_err(|_| {
            if was_read_only && let Err(failure) = tell_server(&mut client, device, true) {
                eprintln!("pagefold: {failure}");
            }
        })?;
    }
    make_place(&mount, target)
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
        match make(&mut client, mounted, read_only) {
            Ok(()) if read_only => {}
            Ok(()) => tell_what_stays(mounted)?,
            Err(failure) => {
                let how = if read_only { "read-only" } else { "writable" };
                eprintln!(
                    "pagefold: {} becomes {how} when it is mounted the next time: {failure}",
                    mounted.name
                );
            }
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
    let done = make_file_system(&there, read_only);
    if done.is_ok() == read_only {
        tell_server(client, mounted.device, true)?;
    }
    done
}

/// Tells which places of a dataset that has become writable stay read-only: those with an `ro` of their own.
fn tell_what_stays(mounted: &MountFigures) -> Result<()> {
    let places = mounts::of_devices(&[mounted.device])?;
    let stay: Vec<PathBuf> =
        places.into_iter().filter(MountEntry::is_read_only).map(|place| place.dir).collect();
    if !stay.is_empty() {
        eprintln!(
            "pagefold: {} stays read-only at {} by an ro of the place's own: pagefold mount -o remount,rw DIR",
            mounted.name,
            paths_text(&stay)
        );
    }
    Ok(())
}

fn ask(client: &mut Client, device: u32, words: &[String], dry_run: bool) -> Result<PlaceFlags> {
    match client.ask_and_wait(&Request::Remount { device, options: words.to_vec(), dry_run })? {
        Reply::Remounting { read_only, suid, dev, exec } => Ok(PlaceFlags { read_only, suid, dev, exec }),
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
    let name = Name::parse(source).map(|name| name.to_string());
    let is_named = |mount: &MountEntry| name.as_ref().is_ok_and(|name| mount.source == *name);
    let named = mounts::ours()?.into_iter().find(is_named);
    let there = mount_lookup::mount_if_at(&raw::path_of(source));
    // A path that cannot be looked at is none that is meant if the word is a name.
    let there = if named.is_some() { there.unwrap_or_default() } else { there? };
    match one_of(source, named, there)? {
        Some(found) => Ok(found),
        None => {
            Err(Failure::new(format!("{} is not mounted", name?))
                .hint("see what is mounted: pagefold status"))
        }
    }
}

/// Returns the mount that a word means that may be a name and a path. It counts as a name, unless something else is mounted
/// on that directory: then nobody can know which is meant.
fn one_of(word: &str, named: Option<MountEntry>, there: Option<MountEntry>) -> Result<Option<MountEntry>> {
    match (named, there) {
        (Some(named), Some(there)) if named.device != there.device => Err(Failure::usage(format!(
            "{word} is the name of a dataset, and here the mount point of another one, {}",
            table::printable(&there.source)
        ))
        .hint(format!(
            "say which: pagefold mount -o remount,... ./{word}, or pagefold mount -o remount,... {}",
            shown(&named.dir)
        ))),
        (named, there) => Ok(named.or(there)),
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

/// Has the kernel make the file system of a mount read-only or writable. The flags of its places stay as they are.
fn make_file_system(mount: &MountEntry, read_only: bool) -> Result<()> {
    let flags = FsPickFlags::FSPICK_CLOEXEC | FsPickFlags::FSPICK_EMPTY_PATH;
    let word = if read_only { "ro" } else { "rw" };
    // By a path, whatever was mounted above it would become read-only or writable in its place.
    let root = mount_lookup::root_of(mount)?;
    fspick(&root, c"", flags)
        .and_then(|context| fsconfig_set_flag(&context, word).and_then(|()| fsconfig_reconfigure(&context)))
        .map_err(|errno| refused(mount, errno))
}

/// Has the kernel change the flags of one place.
fn make_place(mount: &MountEntry, flags: PlaceFlags) -> Result<()> {
    let done = flags.set(mount_lookup::root_of(mount)?);
    done.map_err(|error| refused(mount, Errno::from_io_error(&error).unwrap_or(Errno::IO)))
}

fn refused(mount: &MountEntry, errno: Errno) -> Failure {
    let dir = shown(&mount.dir);
    match errno {
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
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_the_mount_point_of_another_dataset_is_refused() {
        let mount = |device: u32, dir: &str, source: &str| MountEntry {
            id: u64::from(device),
            parent: 0,
            root: "/".into(),
            device: (0, device),
            dir: dir.into(),
            fs_type: mounts::FS_TYPE.into(),
            source: source.into(),
            options: String::new(),
        };
        let (named, there) = (mount(50, "/srv/tank", "tank"), mount(51, "/home/tank", "vault"));
        let refused = one_of("tank", Some(named.clone()), Some(there.clone())).unwrap_err();
        assert_eq!(refused.exit_status(), 2);
        assert!(refused.to_string().contains("of another one, vault"), "{refused}");
        // It is mounted at that directory itself, or nothing is.
        for beside in [Some(mount(50, "/home/tank", "tank")), None] {
            assert_eq!(one_of("tank", Some(named.clone()), beside).unwrap(), Some(named.clone()));
        }
        assert_eq!(one_of("tank", None, Some(there.clone())).unwrap(), Some(there));
        assert_eq!(one_of("tank", None, None).unwrap(), None);
    }
}
