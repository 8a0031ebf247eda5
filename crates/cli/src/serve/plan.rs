//! What is to be mounted where: worked out before a server is started, and once more in the server.

use std::path::{Path, PathBuf};

use super::keep;
use super::mounted::Wanted;
use crate::args;
use crate::control::{Client, Reply, Request};
use crate::failure::{Context, Failure, Result};
use crate::names;
use crate::registry::Known;
use crate::{pools, raw, startup, table, target};

/// A mount to be made.
#[derive(Debug)]
pub struct Plan {
    /// The pool's name, unique number and devices.
    pub known: Known,
    /// It was named by one of its devices, not by its name.
    pub by_device: bool,
    /// What is to be mounted, where and how.
    pub wanted: Wanted,
    /// Properties of the whole pool that were given as mount options.
    pub given: Vec<(&'static str, String)>,
}

impl Plan {
    /// Options that the pool has as properties, for its first mount. What is left of a damaged pool is read without them.
    pub fn pool_options(&self) -> Result<Vec<String>> {
        if self.wanted.options.rescue { Ok(Vec::new()) } else { startup::of_pool(&self.known) }
    }
}

/// Finds the pool's devices and the directory.
pub fn make(args: &args::Mount) -> Result<Plan> {
    let options = startup::options(args)?;
    // Options that exclude each other, or that the kernel cannot do, are told before a server is started.
    keep::is_wanted(&options)?;
    let source = args.source.as_deref().unwrap_or_default();
    let (known, path, by_device) = target::source(source).map_err(|failure| swapped(args, failure))?;
    let dir = match &args.dir {
        Some(dir) => dir.clone(),
        None => default_dir(&known, &path)?,
    };
    let dir = std::path::absolute(&dir).context(|| format!("cannot resolve {}", dir.display()))?;
    let wanted = Wanted { path, dir, options };
    Ok(Plan { known, by_device, wanted, given: startup::given(args)? })
}

/// `mount DIR POOL` is told of the right order.
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

/// Where the property `mountpoint` says.
fn default_dir(known: &Known, path: &str) -> Result<PathBuf> {
    let name = names::full(&known.name, path);
    let values = match Client::connect(&known.name)? {
        Some(mut client) => match client.ask(&Request::Properties { path: path.into() }) {
            Ok(Reply::Properties { values }) => values,
            Err(_) if client.has_ended() => pools::properties_offline(known, path)?,
            Ok(_) => return Err(client.misunderstood()),
            Err(failure) => return Err(failure),
        },
        None => pools::properties_offline(known, path)?,
    };
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
        Some(dir) => Ok(raw::path_of(&dir)),
    }
}
