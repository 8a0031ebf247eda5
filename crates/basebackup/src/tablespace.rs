//! Tablespaces: folders elsewhere, to which `pg_tblspc` has links.

use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::names::is_number;

/// Folder of a data directory that has the links.
pub const FOLDER: &str = "pg_tblspc";

/// A tablespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tablespace {
    /// Number of the tablespace, which is also the name of its archive.
    pub oid: u32,
    /// Target of its link.
    pub target: PathBuf,
    /// Folder in which it can be read.
    pub folder: PathBuf,
    /// Its place in a backup of the plain format.
    pub restored: PathBuf,
    /// True if that place was chosen: archives lead there, too.
    pub moved: bool,
}

impl Tablespace {
    /// Returns the place to which archives lead.
    pub(crate) fn unpacked(&self) -> &Path {
        if self.moved { &self.restored } else { &self.target }
    }
}

/// Returns a server's `tablespace_map` with the places of tablespaces that are moved.
pub(crate) fn moved_map(map: &str, tablespaces: &[Tablespace]) -> String {
    let moved = |line: &str| {
        let oid = line.split(' ').next()?;
        let of = tablespaces.iter().find(|of| of.moved && of.oid.to_string() == oid)?;
        Some(format!("{oid} {}\n", escaped(&of.restored.to_string_lossy())))
    };
    map.split_inclusive('\n').map(|line| moved(line).unwrap_or_else(|| line.to_owned())).collect()
}

/// Writes a path as the server reads it in `tablespace_map`.
fn escaped(path: &str) -> String {
    path.replace('\\', "\\\\").replace('\n', "\\\n").replace('\r', "\\\r")
}

/// Returns the links of a data directory: number and target, in the order of numbers.
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
