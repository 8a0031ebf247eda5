//! Plans a mount: which dataset, where and how. This is done before a server is started, and once more in the server.

use std::path::{Component, Path, PathBuf};

use pagefold_server::control::{Client, Reply, Request};
use pagefold_server::failure::{Context, Failure, Result};
use pagefold_server::mountopts::MountOptions;
use pagefold_server::registry::{Known, paths_text};
use pagefold_server::serve::{self, FirstMount, MountRequest};
use pagefold_server::{names, pools, raw, startup};

use crate::{args, datasets, table, target};

/// A mount to be made.
#[derive(Debug)]
pub struct MountPlan {
    /// The pool's name, unique number and devices.
    pub known: Known,
    /// True if it was named by one of its devices, not by its name.
    pub by_device: bool,
    /// The dataset or snapshot, its directory and its options.
    pub wanted: MountRequest,
}

impl MountPlan {
    /// Returns the options that the pool has as properties, for its first mount. For a rescue there are none: it does
    /// not rely on properties of a damaged pool.
    pub fn pool_options(&self) -> Result<Vec<String>> {
        if self.wanted.options.rescue { Ok(Vec::new()) } else { startup::of_pool(&self.known) }
    }
}

/// Returns all options of a mount: those of its pool, as far as they were read, and those that were given.
pub fn options(args: &args::Mount) -> Result<MountOptions> {
    startup::options(args.pool_options.as_deref().unwrap_or_default(), &args.options)
}

/// The first mount of a server, as its arguments name it.
impl FirstMount for args::Mount {
    fn pool(&self) -> Result<Known> {
        Ok(target::source(self.source.as_deref().unwrap_or_default())?.0)
    }

    fn request(&self) -> Result<(Known, MountRequest)> {
        let MountPlan { known, wanted, .. } = make(self)?;
        Ok((known, wanted))
    }
}

/// Finds the pool's devices and the directory.
pub fn make(args: &args::Mount) -> Result<MountPlan> {
    let options = options(args)?;
    // Options that exclude each other, or that the kernel cannot do, are reported before a server is started.
    serve::is_takeover_wanted(&options)?;
    let source = args.source.as_deref().unwrap_or_default();
    let (known, path, by_device) = target::source(source).map_err(|failure| swapped(args, failure))?;
    let dir = match &args.dir {
        Some(dir) => dir.clone(),
        None => default_dir(&known, &path, options.read_only)?,
    };
    let dir = std::path::absolute(&dir).context(|| format!("cannot resolve {}", dir.display()))?;
    let wanted = MountRequest { path, dir, options };
    // So are values that the server could not store.
    startup::given(&args.options)?;
    Ok(MountPlan { known, by_device, wanted })
}

/// Returns advice on the right order if `mount DIR POOL` was typed, else `failure`.
fn swapped(args: &args::Mount, failure: Failure) -> Failure {
    let (Some(source), Some(dir)) = (&args.source, args.dir.as_deref().and_then(Path::to_str)) else {
        return failure;
    };
    let pool = dir.split(['/', '@']).next().unwrap_or_default();
    if raw::path_of(source).is_dir() && target::known(pool).is_ok() {
        return Failure::usage(format!("{dir} is a pool, and comes first"))
            .hint(format!("pagefold mount {dir} {}", table::printable(source)));
    }
    failure
}

/// Returns the directory that the property `mountpoint` names. Unless the mount is to be read-only, a pool that crashed is
/// replayed if its properties cannot be read before.
fn default_dir(known: &Known, path: &str, read_only: bool) -> Result<PathBuf> {
    let name = names::full(&known.name, path);
    let ask = |client: &mut Client| datasets::properties_asked(client, path);
    let values = target::ask_or(&known.name, ask, || match datasets::properties_offline(known, path) {
        Err(failure) if failure.needs_replay() && !read_only => {
            pools::close_cleanly(known)?;
            datasets::properties_offline(known, path)
        }
        values => values,
    })?;
    let mountpoint = values.into_iter().find(|value| value.name == "mountpoint");
    match mountpoint.map(|value| value.value).filter(|dir| dir != "none" && !path.contains('@')) {
        None => Err(Failure::usage(format!("where is {name} to be mounted?")).hint(format!(
            "pagefold mount {name} DIR{}",
            if path.contains('@') {
                String::new()
            } else {
                format!(", or once: pagefold set mountpoint=DIR {name}")
            }
        ))),
        Some(dir) => obeyed(known, &name, &dir),
    }
}

/// Returns the directory here for a mount point that the pool's property names: below the root that the pool was
/// imported with; the same path if the pool was made or adopted here; else an error.
fn obeyed(known: &Known, name: &str, dir: &str) -> Result<PathBuf> {
    match &known.altroot {
        Some(root) => below(root, dir),
        None if known.adopted => Ok(raw::path_of(dir)),
        None => Err(Failure::new(format!(
            "pool {} was not made here: its mount points are not obeyed ({name} says {})",
            known.name,
            table::printable(dir)
        ))
        .hint(format!(
            "say where: pagefold mount {name} DIR; or trust what the pool says from now on: pagefold import --adopt {}",
            known.name
        ))),
    }
}

/// Returns the directory `dir` with `root` as the root directory. Links below `root` are not followed: what is mounted
/// there is the pool's.
fn below(root: &Path, dir: &str) -> Result<PathBuf> {
    let mut path = root.to_owned();
    for part in raw::path_of(dir).components() {
        match part {
            Component::RootDir | Component::CurDir => {}
            Component::Normal(name) => path.push(name),
            Component::ParentDir | Component::Prefix(_) => {
                return Err(Failure::new(format!(
                    "{} is no mount point below {}",
                    table::printable(dir),
                    table::printable(&raw::text(root))
                )));
            }
        }
        if path.is_symlink() {
            return Err(Failure::new(format!(
                "{} is a link: nothing is mounted through it",
                table::printable(&raw::text(&path))
            ))
            .hint("give the directory to mount at"));
        }
    }
    Ok(path)
}

/// Returns an error if the server that has the pool's name has another pool, or another copy of it.
pub fn check_server(client: &mut Client, plan: &MountPlan) -> Result<()> {
    let known = &plan.known;
    let figures = match client.ask(&Request::Status {}) {
        Ok(Reply::Status { figures }) => figures,
        Err(_) if client.has_ended() => return Ok(()),
        Ok(_) => return Err(client.misunderstood()),
        Err(failure) => return Err(failure),
    };
    let there: Vec<PathBuf> = figures.devices.iter().map(|device| device.path.clone()).collect();
    // A copy has no device in common with the pool. Of a mirror, one device may be named, or be missing.
    let same = there.iter().any(|path| known.devices.contains(path));
    if figures.guid == known.guid && (same || !plan.by_device) {
        return Ok(());
    }
    let (name, on) = (&known.name, paths_text(&there));
    if figures.guid == known.guid {
        return Err(Failure::new(format!(
            "{} is another copy of pool {name}, which is mounted from {on}",
            paths_text(&known.devices)
        ))
        .hint("make the copy a pool of its own first: pagefold reguid --device DEVICE"));
    }
    Err(Failure::new(format!("another pool named {name} (GUID {}) is mounted, from {on}", figures.guid))
        .hint(format!(
            "unmount it first, or give this one another name: pagefold import {} NEWNAME",
            known.guid
        )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_points_stay_below_another_root() {
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/etc", dir.path().join("link")).unwrap();
        assert_eq!(below(dir.path(), "/srv/./tank").unwrap(), dir.path().join("srv/tank"));
        assert_eq!(below(dir.path(), "srv").unwrap(), dir.path().join("srv"));
        for outside in ["/../etc", "/srv/../../etc", "/link/cron.d", "/link"] {
            assert!(below(dir.path(), outside).is_err(), "{outside}");
        }
    }
}
