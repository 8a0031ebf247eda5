//! Tablespaces: folders elsewhere, to which `pg_tblspc` has links.

use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::names::is_number;

/// Where a data directory has its links.
pub const FOLDER: &str = "pg_tblspc";

/// A tablespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tablespace {
    /// Its number; the name of its archive.
    pub oid: u32,
    /// As its link says.
    pub target: PathBuf,
    /// Where it can be read.
    pub folder: PathBuf,
    /// Where a backup in the plain format has it.
    pub restored: PathBuf,
}

/// The links of a data directory: number and target, by number.
pub fn links(data: &Path) -> Result<Vec<(u32, PathBuf)>> {
    let folder = data.join(FOLDER);
    let mut found = Vec::new();
    for entry in std::fs::read_dir(&folder).map_err(Error::io("list", &folder))? {
        let entry = entry.map_err(Error::io("list", &folder))?;
        let (path, name) = (entry.path(), entry.file_name());
        let Some(oid) = name.to_str().filter(|name| is_number(name)).and_then(|name| name.parse().ok())
        else {
            continue;
        };
        let kind = entry.file_type().map_err(Error::io("look at", &path))?;
        // A directory in place of a link (`allow_in_place_tablespaces`) is part of the data directory.
        if kind.is_symlink() {
            found.push((oid, std::fs::read_link(&path).map_err(Error::io("read the link", &path))?));
        }
    }
    found.sort();
    Ok(found)
}
