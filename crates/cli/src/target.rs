//! Finds what a word on the command line stands for: a pool, a dataset or snapshot, or the mount that a path lies on.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use pagefold_server::control::Client;
use pagefold_server::failure::{Context, Failure, Result};
use pagefold_server::mounts::{self, MountEntry};
use pagefold_server::names::Name;
use pagefold_server::registry::{Known, Registry};
use pagefold_server::{discovery, files, raw, registry};

use crate::table;

/// Returns the dataset or snapshot that `word` names, or whose mount contains the path `word`. A word that is both
/// counts as a name.
pub fn name(word: &str) -> Result<Name> {
    let path = &raw::path_of(word);
    if is_path(word) {
        return Name::parse(&mount_of(path)?.source);
    }
    let pool = word.split(['/', '@']).next().unwrap_or_default();
    if connect(pool)?.is_some() || Registry::open()?.all()?.iter().any(|known| known.name == pool) {
        return Name::parse(word);
    }
    match mount_of(path) {
        Ok(mount) => Name::parse(&mount.source),
        // The word is probably a path.
        Err(failure) if path.exists() && word.contains('/') => Err(failure),
        Err(_) => Name::parse(word),
    }
}

/// Returns the pool that `word` names, or whose dataset it names, or on whose mount it is a path.
pub fn pool_name(word: &str) -> Result<String> {
    Ok(name(word)?.pool)
}

/// Returns the pool that a word names, for verbs that work on whole pools; a path stands for the pool that it lies on.
pub fn whole_pool(word: &str, verb: &str) -> Result<String> {
    if !is_path(word) {
        check_whole_pool(word, verb)?;
    }
    pool_name(word)
}

/// Returns an error if a name is that of a dataset or snapshot.
pub fn check_whole_pool(name: &str, verb: &str) -> Result<()> {
    let Ok(name) = Name::parse(name) else { return Ok(()) };
    if name.path.is_empty() {
        return Ok(());
    }
    let kind = if name.is_snapshot() { "snapshot" } else { "dataset" };
    Err(Failure::usage(format!("{name} is the name of a {kind}, and a pool is wanted"))
        .hint(format!("for the whole pool: pagefold {verb} {}", name.pool)))
}

/// Returns true if a word can only be a path.
pub fn is_path(word: &str) -> bool {
    word.starts_with('/') || word.starts_with("./") || word.starts_with("../") || word == "." || word == ".."
}

/// Returns the mount of ours that `path` lies on. The path of a mount point is found even if its server is dead.
pub fn mount_of(path: &Path) -> Result<MountEntry> {
    let absolute = std::path::absolute(path).context(|| format!("cannot resolve {}", raw::text(path)))?;
    let ours = mounts::ours()?;
    if let Some(mount) = ours.iter().rev().find(|mount| mount.dir == absolute) {
        return Ok(mount.clone());
    }
    let metadata = std::fs::metadata(path).context(|| format!("cannot look at {}", raw::text(path)))?;
    let device = (rustix::fs::major(metadata.dev()), rustix::fs::minor(metadata.dev()));
    ours.into_iter().rev().find(|mount| mount.device == device).ok_or_else(|| {
        Failure::new(format!("{} is not on a pagefold pool", table::printable(&raw::text(path))))
            .hint("see what is mounted: pagefold list")
    })
}

/// Returns the datasets and snapshots that words stand for; all known pools if there are no words.
pub fn names(words: &[String]) -> Result<Vec<Name>> {
    if !words.is_empty() {
        return words.iter().map(|word| name(word)).collect();
    }
    let known = Registry::open()?.all()?;
    Ok(known.into_iter().map(|known| Name::new(&known.name, "")).collect())
}

/// Returns the server of the mounted pool that `word` names; the error differs for an unmounted pool and an unknown
/// one.
pub fn server(word: &str) -> Result<Client> {
    let pool = pool_name(word)?;
    if let Some(client) = connect(&pool)? {
        return Ok(client);
    }
    if let Some(mount) = mounts::dead(&pool)?.first() {
        let dir = raw::text(&mount.dir);
        let source = &mount.source;
        return Err(Failure::new(format!("the server of pool {pool}, mounted at {dir}, has died"))
            .hint(format!("mounting it again recovers it: pagefold mount {source} {dir}")));
    }
    let known = Registry::open()?.find(&pool)?;
    Err(Failure::new(format!("pool {} is not mounted", known.name))
        .hint(format!("mount it first: pagefold mount {} DIR", known.name)))
}

/// Returns an error unless the pool is served or known.
pub fn known(pool: &str) -> Result<()> {
    match connect(pool)? {
        Some(_) => Ok(()),
        None => Registry::open()?.find(pool).map(drop),
    }
}

/// Connects to the server of a pool, if it runs. A name that no pool can have has no server.
pub fn connect(pool: &str) -> Result<Option<Client>> {
    if files::check_pool_name(pool).is_err() {
        return Ok(None);
    }
    Client::connect(pool)
}

/// Asks the server of a pool a question, which changes nothing, or does something else if there is none. A server that
/// is just ending may not answer any more; then the next one is asked.
pub fn ask_or<T>(
    pool: &str,
    mut ask: impl FnMut(&mut Client) -> Result<T>,
    unserved: impl FnOnce() -> Result<T>,
) -> Result<T> {
    while let Some(mut client) = connect(pool)? {
        match ask(&mut client) {
            Err(_) if client.has_ended() => {}
            told => return told,
        }
    }
    unserved()
}

/// Asks the server of a pool a question, as [`ask_or`], or looks at the pool if there is none.
pub fn ask_or_look<T>(
    pool: &str,
    ask: impl FnMut(&mut Client) -> Result<T>,
    look: impl FnOnce(&Known) -> Result<T>,
) -> Result<T> {
    ask_or(pool, ask, || look(&Registry::open()?.find(pool)?))
}

/// Connects to the servers of the pools that are named, or of all mounted pools. Each result comes with its word or
/// pool; one that does not answer hides no other. "All" includes pools that still look mounted although their server
/// has died.
pub fn each_server(words: &[String]) -> Result<Vec<(String, Result<Client>)>> {
    if !words.is_empty() {
        return Ok(words.iter().map(|word| (word.clone(), server(word))).collect());
    }
    let mut all = Client::each()?;
    let known: Vec<Known> = Registry::open().and_then(|registry| registry.all()).unwrap_or_default();
    let is_known = |mount: &MountEntry| known.iter().any(|known| known.name == mount.pool());
    for mount in mounts::ours().unwrap_or_default().into_iter().filter(is_known).filter(mounts::is_dead) {
        let pool = mount.pool().to_owned();
        if !all.iter().any(|(other, _)| *other == pool) {
            all.push((pool.clone(), server(&pool)));
        }
    }
    Ok(all)
}

/// Returns the pool and the path within it that `word` stands for: the name of a dataset or snapshot, or the path of
/// one of a pool's devices, which stands for the pool's own dataset. The last value is true for a path.
pub fn source(word: &str) -> Result<(Known, String, bool)> {
    let path = &raw::path_of(word);
    let device = || by_device(path).map(|known| (known, String::new(), true));
    if is_path(word) {
        return device();
    }
    let pool = word.split(['/', '@']).next().unwrap_or_default();
    let known = Registry::open()?.find(pool);
    match known {
        Err(_) if path.is_file() => device(),
        Err(failure) => Err(failure),
        Ok(known) => Ok((known, Name::parse(word)?.path, false)),
    }
}

/// Returns the pool that `path` belongs to, with all devices: the remembered ones, or those beside it.
fn by_device(path: &Path) -> Result<Known> {
    let path = registry::absolute(path)?;
    let found = discovery::identify(&path)?;
    files::check_pool_name(&found.name)?;
    let remembered = Registry::open()?.all()?.into_iter().find(|known| known.guid == found.guid);
    match remembered {
        Some(known) if known.devices.contains(&path) => Ok(known),
        // The device that was named comes first: the pool may have moved.
        _ => found.known(),
    }
}
