//! The pool cache: the pools that this system (or user) knows, and their devices.
//!
//! It is only a convenience: `pagefold import` can find everything in it again. It is replaced by writing a new file
//! and renaming it, under a lock, so that it is always whole.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::failure::{Context, Failure, Result};
use crate::{files, raw, suggest};

/// Version of the file's format.
const VERSION: u32 = 1;
/// Largest size of the file in bytes; a longer file is not ours.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// Largest number of exported pools whose paths and adoption are remembered.
const FORMER_MAX: usize = 1000;

/// A pool that is known.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Known {
    /// Its name.
    pub name: String,
    /// Its unique number, in hexadecimal.
    pub guid: String,
    /// Absolute paths of its devices.
    #[serde(with = "crate::raw::paths")]
    pub devices: Vec<PathBuf>,
    /// True if it was made or adopted here: its mount points are obeyed.
    #[serde(default)]
    pub adopted: bool,
    /// Directory below which its mount points lie.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "crate::raw::maybe_path")]
    pub altroot: Option<PathBuf>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct RegistryFile {
    version: u32,
    pools: Vec<Known>,
    /// Pools that were exported, the latest last.
    #[serde(default)]
    former: Vec<Known>,
}

/// The file of the cache.
pub struct Registry {
    path: PathBuf,
}

impl Registry {
    /// Opens the cache of this user.
    pub fn open() -> Result<Self> {
        Ok(Self { path: files::state_dir()?.join("pools.json") })
    }

    /// Returns all known pools, sorted by name.
    pub fn all(&self) -> Result<Vec<Known>> {
        let mut pools = self.read()?.pools;
        pools.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(pools)
    }

    /// Returns the pool of this name; the error lists the known ones and the nearest.
    pub fn find(&self, name: &str) -> Result<Known> {
        let pools = self.all()?;
        if let Some(known) = pools.iter().find(|known| known.name == name) {
            return Ok(known.clone());
        }
        let names: Vec<&str> = pools.iter().map(|known| known.name.as_str()).collect();
        let failure = Failure::new(format!("there is no pool \"{}\"", raw::printable(name)));
        if names.is_empty() {
            return Err(failure
                .hint("no pool is known here: `pagefold create` one, or find one with `pagefold import`"));
        }
        let near = suggest::nearest(name, names.iter().copied()).map(|n| format!("; did you mean {n}?"));
        Err(failure.hint(format!(
            "known pools: {}{} (`pagefold import` finds others)",
            names.join(", "),
            near.unwrap_or_default()
        )))
    }

    /// Returns the pool with this GUID that is known, or was known until it was exported.
    pub fn of_guid(&self, guid: &str) -> Result<Option<Known>> {
        let RegistryFile { pools, former, .. } = self.read()?;
        Ok(pools.into_iter().chain(former.into_iter().rev()).find(|known| known.guid == guid))
    }

    /// Remembers a pool, in place of one with the same GUID. Fails if another pool has its name.
    pub fn add(&self, new: Known) -> Result<()> {
        self.change(|RegistryFile { pools, former, .. }| {
            free_name(pools, &new)?;
            pools.retain(|known| known.guid != new.guid);
            former.retain(|known| known.guid != new.guid);
            pools.push(new);
            Ok(())
        })
    }

    /// Returns an error if another pool has the name of `new`.
    pub fn check_name(&self, new: &Known) -> Result<()> {
        free_name(&self.read()?.pools, new)
    }

    /// Forgets a pool, except its devices and whether it was adopted here.
    pub fn remove(&self, guid: &str) -> Result<()> {
        let mut lost = Vec::new();
        self.change(|RegistryFile { pools, former, .. }| {
            let gone = pools.extract_if(.., |known| known.guid == guid);
            former.extend(gone.map(|known| Known { altroot: None, ..known }));
            lost.extend(former.drain(..former.len().saturating_sub(FORMER_MAX)));
            Ok(())
        })?;
        lost.iter().try_for_each(|known| crate::last_state::forget(&known.guid))
    }

    /// Notes that a pool has got another GUID.
    pub fn change_guid(&self, from: &str, to: &str) -> Result<()> {
        self.change(|RegistryFile { pools, .. }| {
            pools
                .iter_mut()
                .filter(|known| known.guid == from)
                .for_each(|known| to.clone_into(&mut known.guid));
            Ok(())
        })
    }

    fn read(&self) -> Result<RegistryFile> {
        if !files::is_private(self.path.parent().unwrap_or(Path::new("/")))? {
            return Ok(RegistryFile::default());
        }
        let text = match fs::metadata(&self.path) {
            Ok(metadata) if metadata.len() > FILE_BYTES_MAX => return Err(self.damaged("it is too long")),
            Ok(_) => fs::read(&self.path).context(|| format!("cannot read {}", self.path.display()))?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(RegistryFile::default()),
            Err(error) => return Err(Failure::new(format!("cannot read {}: {error}", self.path.display()))),
        };
        let contents: RegistryFile =
            serde_json::from_slice(&text).map_err(|error| self.damaged(&error.to_string()))?;
        if contents.version != VERSION {
            return Err(self.damaged(&format!("its version is {}, not {VERSION}", contents.version)));
        }
        Ok(contents)
    }

    fn damaged(&self, why: &str) -> Failure {
        Failure::new(format!("the pool cache {} is damaged: {why}", self.path.display())).hint(
            "it can be made again: remove it, then `pagefold import -a` (with -d DIR for pools in files)",
        )
    }

    /// Changes the contents as a whole or not at all.
    fn change(&self, change: impl FnOnce(&mut RegistryFile) -> Result<()>) -> Result<()> {
        let dir = self.path.parent().unwrap_or(Path::new("/"));
        files::make_private(dir)?;
        let _lock = files::locked(&self.path.with_extension("lock"))?;
        let mut contents = self.read()?;
        change(&mut contents)?;
        contents.version = VERSION;
        let text = serde_json::to_vec_pretty(&contents)
            .context(|| format!("cannot write {}", self.path.display()))?;
        files::replace(&self.path, &text)
    }
}

fn free_name(pools: &[Known], new: &Known) -> Result<()> {
    match pools.iter().find(|known| known.name == new.name && known.guid != new.guid) {
        None => Ok(()),
        Some(other) => Err(Failure::new(format!(
            "another pool named {} (GUID {}) is known, on {}",
            other.name,
            other.guid,
            paths_text(&other.devices)
        ))
        .hint(format!(
            "export it first (pagefold export {}), or give this one another name: pagefold import {} NEWNAME",
            other.name, new.guid
        ))),
    }
}

/// Formats paths for a message.
pub fn paths_text(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| raw::printable(&raw::text(path))).collect::<Vec<_>>().join(", ")
}

/// Returns an absolute path, in the form in which the pool cache keeps it.
pub fn absolute(path: &Path) -> Result<PathBuf> {
    pagefold_engine::walk::reach_any(path)
        .map(|(_, path)| path)
        .context(|| format!("cannot resolve {}", raw::printable(&raw::text(path))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn registry(dir: &Path) -> Registry {
        Registry { path: dir.join("state/pools.json") }
    }

    fn known(name: &str, guid: &str) -> Known {
        Known { name: name.into(), guid: guid.into(), devices: vec!["/dev/null".into()], ..Known::default() }
    }

    #[test]
    fn pools_are_remembered_replaced_and_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let registry = registry(dir.path());
        assert!(registry.all().unwrap().is_empty());
        registry.add(known("tank", "1")).unwrap();
        registry.add(known("dozer", "2")).unwrap();
        registry.add(Known { devices: vec!["/b".into()], ..known("tank", "1") }).unwrap();
        assert_eq!(registry.find("tank").unwrap().devices, [PathBuf::from("/b")]);
        assert_eq!(registry.all().unwrap().len(), 2);
        registry.remove("1").unwrap();
        assert_eq!(registry.all().unwrap(), [known("dozer", "2")]);
    }

    #[test]
    fn what_was_exported_is_still_known_by_its_guid() {
        let dir = tempfile::tempdir().unwrap();
        let registry = registry(dir.path());
        let adopted = Known { adopted: true, altroot: Some("/mnt".into()), ..known("tank", "1") };
        registry.add(adopted.clone()).unwrap();
        registry.remove("1").unwrap();
        assert!(registry.all().unwrap().is_empty());
        assert_eq!(registry.of_guid("1").unwrap(), Some(Known { altroot: None, ..adopted }));
        registry.add(Known { name: "other".into(), ..known("", "1") }).unwrap();
        assert_eq!(registry.of_guid("1").unwrap().unwrap().name, "other");
        registry.change_guid("1", "2").unwrap();
        assert_eq!(registry.of_guid("1").unwrap(), None);
        assert_eq!(registry.all().unwrap()[0].guid, "2");
    }

    #[test]
    fn a_name_belongs_to_one_pool() {
        let dir = tempfile::tempdir().unwrap();
        let registry = registry(dir.path());
        registry.add(known("tank", "1")).unwrap();
        assert!(registry.add(known("tank", "2")).is_err());
        assert_eq!(registry.all().unwrap(), [known("tank", "1")]);
    }

    #[test]
    fn unknown_names_get_the_nearest() {
        let dir = tempfile::tempdir().unwrap();
        let registry = registry(dir.path());
        registry.add(known("tank", "1")).unwrap();
        let text = registry.find("tnak").unwrap_err().to_string();
        assert!(text.contains("known pools: tank; did you mean tank?"), "{text}");
    }

    #[test]
    fn a_damaged_file_is_told_not_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let registry = registry(dir.path());
        registry.add(known("tank", "1")).unwrap();
        for damage in ["", "{", "[]", r#"{"version":9,"pools":[]}"#, r#"{"version":1,"pools":[{"name":3}]}"#]
        {
            fs::write(&registry.path, damage).unwrap();
            assert!(registry.all().unwrap_err().to_string().contains("damaged"), "{damage}");
            assert!(registry.add(known("x", "9")).is_err());
            assert_eq!(fs::read_to_string(&registry.path).unwrap(), damage);
        }
    }
}
