//! Settings of branches' servers, as users gave them. This machine keeps them beside the pool cache, and not in the
//! pool: a pool can come from anywhere, and must not decide which program is run, as which user, and with which
//! settings.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use pagefold_server::failure::{Context, Failure, Result};
use pagefold_server::files;
use pagefold_server::names::Name;
use serde::{Deserialize, Serialize};

use super::record::Options;

/// Version of the file's format.
const VERSION: u32 = 1;
/// Largest size in bytes; a longer file was not written by us.
const FILE_BYTES_MAX: u64 = 16 << 20;

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SettingsFile {
    version: u32,
    /// Settings by the branches' names.
    branches: BTreeMap<String, Options>,
}

/// The file with the settings.
pub struct Settings {
    path: PathBuf,
}

impl Settings {
    /// Returns the file of this user.
    pub fn open() -> Result<Self> {
        Ok(Self { path: files::state_dir()?.join("branches.json") })
    }

    /// Returns the settings of a branch.
    pub fn of(&self, name: &Name) -> Result<Options> {
        Ok(self.read()?.branches.remove(&name.to_string()).unwrap_or_default())
    }

    /// Stores the settings of a branch; empty ones remove its entry.
    pub fn set(&self, name: &Name, options: &Options) -> Result<()> {
        let name = name.to_string();
        if self.read()?.branches.get(&name).unwrap_or(&Options::default()) == options {
            return Ok(());
        }
        let dir = self.path.parent().unwrap_or(Path::new("/"));
        files::make_private(dir)?;
        let _lock = files::locked(&self.path.with_extension("lock"))?;
        let mut contents = self.read()?;
        contents.version = VERSION;
        if *options == Options::default() {
            contents.branches.remove(&name);
        } else {
            contents.branches.insert(name, options.clone());
        }
        let text = serde_json::to_vec_pretty(&contents)
            .context(|| format!("cannot write {}", self.path.display()))?;
        files::replace(&self.path, &text)
    }

    fn read(&self) -> Result<SettingsFile> {
        let reading = || format!("cannot read {}", self.path.display());
        if !files::is_private(self.path.parent().unwrap_or(Path::new("/")))? {
            return Ok(SettingsFile::default());
        }
        let file = match File::open(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(SettingsFile::default()),
            Err(error) => return Err(Failure::new(format!("{}: {error}", reading()))),
        };
        let mut text = Vec::new();
        file.take(FILE_BYTES_MAX).read_to_end(&mut text).context(reading)?;
        let damaged = |why: String| {
            Failure::new(format!("{} is damaged: {why}", self.path.display()))
                .hint("remove it, and say again what branches are started with: pagefold branch start")
        };
        let contents: SettingsFile =
            serde_json::from_slice(&text).map_err(|error| damaged(error.to_string()))?;
        if contents.version != VERSION {
            return Err(damaged(format!("its version is {}, not {VERSION}", contents.version)));
        }
        Ok(contents)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_said_of_a_branch_is_kept_here() {
        let dir = tempfile::tempdir().unwrap();
        let settings = Settings { path: dir.path().join("state/branches.json") };
        let (one, two) = (Name::parse("tank/one").unwrap(), Name::parse("tank/two").unwrap());
        let options = Options { bindir: Some("/opt/pg".into()), ..Options::default() };
        assert_eq!(settings.of(&one).unwrap(), Options::default());
        settings.set(&one, &Options::default()).unwrap();
        assert!(!settings.path.exists());
        settings.set(&one, &options).unwrap();
        settings.set(&two, &options).unwrap();
        settings.set(&one, &Options::default()).unwrap();
        assert_eq!((settings.of(&one).unwrap(), settings.of(&two).unwrap()), (Options::default(), options));
        std::fs::write(&settings.path, "{}").unwrap();
        assert!(settings.of(&one).unwrap_err().to_string().contains("damaged"));
    }
}
