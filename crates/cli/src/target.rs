//! What a word on the command line stands for: a pool, or the mount that a path lies on.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::control::Client;
use crate::failure::{Context, Failure, Result};
use crate::mounts::{self, MountEntry};
use crate::registry::{Known, Registry};
use crate::{places, pools, table};

/// The pool that `word` names: a pool's name, or a path on a mounted pool. A name that is both is the pool's.
pub fn pool_name(word: &str) -> Result<String> {
    let path = Path::new(word);
    if word.contains('/') || word == "." || word == ".." {
        return Ok(mount_of(path)?.source);
    }
    let is_pool = connect(word)?.is_some() || Registry::open()?.all()?.iter().any(|known| known.name == word);
    match mount_of(path) {
        Ok(mount) if !is_pool => Ok(mount.source),
        _ => Ok(word.to_owned()),
    }
}

/// The mount of ours that `path` lies on. The path of a mount point is found even if its server is dead.
pub fn mount_of(path: &Path) -> Result<MountEntry> {
    let absolute = std::path::absolute(path).context(|| format!("cannot resolve {}", path.display()))?;
    let ours = mounts::ours()?;
    if let Some(mount) = ours.iter().rev().find(|mount| mount.dir == absolute) {
        return Ok(mount.clone());
    }
    let metadata = std::fs::metadata(path).context(|| format!("cannot look at {}", path.display()))?;
    let device = (rustix::fs::major(metadata.dev()), rustix::fs::minor(metadata.dev()));
    ours.into_iter().rev().find(|mount| mount.device == device).ok_or_else(|| {
        Failure::new(format!("{} is not on a pagefold pool", table::printable(&path.to_string_lossy())))
            .hint("see what is mounted: pagefold list")
    })
}

/// The server of the mounted pool that `word` names; the error tells an unmounted pool from an unknown one.
pub fn server(word: &str) -> Result<Client> {
    let pool = pool_name(word)?;
    if let Some(client) = connect(&pool)? {
        return Ok(client);
    }
    if let Some(mount) = mounts::dead(&pool)?.first() {
        let dir = mount.dir.display();
        return Err(Failure::new(format!("the server of pool {pool}, mounted at {dir}, has died"))
            .hint(format!("mounting the pool again recovers it: pagefold mount {pool} {dir}")));
    }
    let known = Registry::open()?.find(&pool)?;
    Err(Failure::new(format!("pool {} is not mounted", known.name))
        .hint(format!("mount it first: pagefold mount {} DIR", known.name)))
}

/// The server of a pool, where it runs. Names that cannot be a pool's are nobody's.
pub fn connect(pool: &str) -> Result<Option<Client>> {
    if places::check_pool_name(pool).is_err() {
        return Ok(None);
    }
    Client::connect(pool)
}

/// Servers of the pools that are named, or of all mounted pools.
pub fn servers(words: &[String]) -> Result<Vec<Client>> {
    if words.is_empty() { Client::all() } else { words.iter().map(|word| server(word)).collect() }
}

/// An absolute path, as the pool cache keeps them.
pub fn absolute(path: &Path) -> Result<PathBuf> {
    std::fs::canonicalize(path)
        .context(|| format!("cannot resolve {}", table::printable(&path.to_string_lossy())))
}

/// The pool that `POOL`, `POOL/` or the path of one of its devices stands for, and whether it was a path.
pub fn source(word: &str) -> Result<(Known, bool)> {
    let path = Path::new(word);
    if word.starts_with('/') || word.starts_with("./") || word.starts_with("../") {
        return by_device(path);
    }
    if let Some((pool, dataset)) = word.split_once('/') {
        let known = Registry::open()?.all()?.iter().any(|known| known.name == pool);
        if !known && path.exists() {
            return by_device(path);
        }
        if !dataset.is_empty() {
            return Err(Failure::new(format!(
                "pool {} has no dataset \"{}\": it holds one file system",
                table::printable(pool),
                table::printable(dataset)
            ))
            .hint(format!("mount the pool: pagefold mount {} DIR", table::printable(pool))));
        }
        return by_name(pool);
    }
    match by_name(word) {
        Err(_) if path.is_file() => by_device(path),
        other => other,
    }
}

fn by_name(pool: &str) -> Result<(Known, bool)> {
    let known = Registry::open()?.find(pool)?;
    places::check_pool_name(&known.name)?;
    Ok((known, false))
}

/// All devices of the pool that `path` belongs to: those remembered, or those beside it.
fn by_device(path: &Path) -> Result<(Known, bool)> {
    let path = absolute(path)?;
    let found = pools::identify(&path)?;
    places::check_pool_name(&found.name)?;
    let remembered = Registry::open()?.all()?.into_iter().find(|known| known.guid == found.guid);
    let devices = match remembered {
        // The one named comes first: the pool may have moved.
        Some(known) if known.devices.contains(&path) => known.devices,
        _ => found.devices,
    };
    Ok((Known { name: found.name, guid: found.guid, devices }, true))
}
