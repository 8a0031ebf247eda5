//! Decides the entries of a backup, and their order, before anything is written.

use std::ffi::{OsStr, OsString};
use std::fs::Metadata;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::control::{self, Control};
use crate::error::{Error, Result};
use crate::limits::DEPTH_MAX;
use crate::names::{self, Relation};
use crate::tablespace::{self, Tablespace};
use crate::wal::Wal;

/// Mode, owner and time of the last change of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Attributes {
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Time of the last change, in seconds since 1970.
    pub(crate) modified: u64,
}

impl Attributes {
    pub(crate) fn of(found: &Metadata) -> Self {
        let modified = u64::try_from(found.mtime()).unwrap_or(0);
        Self { mode: found.mode() & 0o7777, uid: found.uid(), gid: found.gid(), modified }
    }
}

/// The source of a file's bytes.
#[derive(Clone, Debug)]
pub(crate) enum Content {
    /// Bytes of a file.
    File { path: PathBuf, bytes: u64, pages: Option<Pages> },
    /// Bytes in memory.
    Known(Vec<u8>),
}

/// A file of pages with checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pages {
    pub(crate) page_bytes: u32,
    /// Number of the first page within its relation's fork.
    pub(crate) first: u32,
}

/// An entry of an archive.
#[derive(Clone, Debug)]
pub(crate) struct Item {
    /// Path in the archive.
    pub(crate) path: PathBuf,
    pub(crate) attributes: Attributes,
    pub(crate) kind: Kind,
}

#[derive(Clone, Debug)]
pub(crate) enum Kind {
    Directory,
    Link(PathBuf),
    /// A file; `listed` is true if the manifest has it.
    File {
        content: Content,
        listed: bool,
    },
}

/// One archive: a tablespace's, or (without one) that of the data directory.
#[derive(Debug)]
pub(crate) struct Archive {
    pub(crate) tablespace: Option<Tablespace>,
    /// Attributes of the directory itself.
    pub(crate) attributes: Attributes,
    pub(crate) items: Vec<Item>,
}

impl Archive {
    pub(crate) fn bytes(&self) -> u64 {
        let of = |item: &Item| match &item.kind {
            Kind::File { content: Content::File { bytes, .. }, .. } => *bytes,
            Kind::File { content: Content::Known(bytes), .. } => bytes.len() as u64,
            _ => 0,
        };
        self.items.iter().map(of).sum()
    }
}

/// A walk over folders.
pub(crate) struct Planner<'a> {
    pub(crate) control: &'a Control,
    /// True if pages are to be verified.
    pub(crate) verify: bool,
    /// True if no recovery resets unlogged relations before a server uses them: they are backed up as they are.
    pub(crate) keeps_unlogged: bool,
    /// Messages about entries that are left out.
    pub(crate) warnings: &'a mut Vec<String>,
}

/// Directories that a server needs, or whose loss would not be noticed.
const NEEDED: [&str; 8] = [
    "base",
    "global",
    "pg_xact",
    "pg_multixact",
    "pg_commit_ts",
    "pg_logical",
    "pg_twophase",
    tablespace::FOLDER,
];

impl Planner<'_> {
    /// Returns the entries of a data directory, apart from its log and `global/pg_control`.
    pub(crate) fn data(&mut self, data: &Path) -> Result<Vec<Item>> {
        let mut items = Vec::new();
        self.walk(data, Path::new(""), 0, &mut items)?;
        Ok(items)
    }

    /// Returns the entries of a tablespace that are of this version.
    pub(crate) fn tablespace(&mut self, tablespace: &Tablespace, version: &str) -> Result<Vec<Item>> {
        let (mut items, mut found) = (Vec::new(), false);
        let prefix = format!("PG_{version}_");
        for (name, path, metadata) in entries(&tablespace.folder)? {
            if metadata.is_dir() && name.as_bytes().starts_with(prefix.as_bytes()) {
                found = true;
                let attributes = Attributes::of(&metadata);
                items.push(Item { path: PathBuf::from(&name), attributes, kind: Kind::Directory });
                self.walk(&path, Path::new(&name), 1, &mut items)?;
            }
        }
        if !found {
            return Err(Error::Unsuited(format!(
                "{} has nothing of PostgreSQL {version}, and the link of tablespace {} leads there",
                tablespace.folder.display(),
                tablespace.oid
            )));
        }
        Ok(items)
    }

    fn walk(&mut self, folder: &Path, below: &Path, depth: usize, items: &mut Vec<Item>) -> Result<()> {
        if depth > DEPTH_MAX {
            return Err(Error::Unsuited(format!("{} is too deep to be of a database", folder.display())));
        }
        let found = entries(folder)?;
        let unlogged = unlogged(found.iter().map(|(name, ..)| name.as_os_str()));
        for (name, path, metadata) in found {
            let text = name.to_str().unwrap_or_default();
            let inside = below.join(&name);
            let is_reset = !self.keeps_unlogged
                && Relation::parse(text).is_some_and(|relation| {
                    relation.fork != Some("init") && unlogged.contains(relation.node)
                });
            let is_control = inside == Path::new(control::FILE);
            if names::is_left_out(text, depth == 0) || is_reset || is_control || inside == Path::new("pg_wal")
            {
                continue;
            }
            let attributes = Attributes::of(&metadata);
            if metadata.is_dir() {
                items.push(Item { path: inside.clone(), attributes, kind: Kind::Directory });
                if !inside.to_str().is_some_and(names::is_emptied) {
                    self.walk(&path, &inside, depth + 1, items)?;
                }
            } else if metadata.is_file() {
                let pages = self.pages(&inside, text);
                let content = Content::File { path, bytes: metadata.len(), pages };
                items.push(Item { path: inside, attributes, kind: Kind::File { content, listed: true } });
            } else if inside.to_str().is_some_and(names::is_emptied) {
                // An example is a link from `pg_stat_tmp` to a file system in memory.
                let attributes = Attributes { mode: 0o700, ..attributes };
                items.push(Item { path: inside, attributes, kind: Kind::Directory });
            } else if !is_tablespace_link(&inside, &metadata) {
                self.left_out(&inside, &path)?;
            }
        }
        Ok(())
    }

    /// Leaves links and devices out, as `pg_basebackup` does; fails if a server needs them.
    fn left_out(&mut self, inside: &Path, path: &Path) -> Result<()> {
        let first = inside.components().next().map(|part| part.as_os_str().to_owned()).unwrap_or_default();
        if first.to_str().is_some_and(|first| NEEDED.contains(&first)) {
            return Err(Error::Unsuited(format!(
                "{} is neither a file nor a directory, and a database without it is not whole",
                path.display()
            )));
        }
        self.warnings.push(format!("{} is neither a file nor a directory, and is left out", path.display()));
        Ok(())
    }

    fn pages(&self, inside: &Path, name: &str) -> Option<Pages> {
        let is_relations = inside.starts_with("base")
            || inside.starts_with("global")
            || inside.starts_with(tablespace::FOLDER)
            || inside.iter().next().is_some_and(|first| first.as_bytes().starts_with(b"PG_"));
        if !self.verify || !self.control.has_checksums || !is_relations {
            return None;
        }
        let first = names::segment_with_pages(name)?.checked_mul(self.control.segment_pages)?;
        Some(Pages { page_bytes: self.control.page_bytes, first })
    }
}

/// Returns the entries of the log: its folders, the segments and histories that are needed, and marks that these need
/// not be archived again.
pub(crate) fn wal(folder: &Path, attributes: Attributes, wal: &Wal, files: &[String]) -> Result<Vec<Item>> {
    let directory = |path: &str| Item { path: path.into(), attributes, kind: Kind::Directory };
    let mut items = vec![directory("pg_wal"), directory("pg_wal/archive_status")];
    for name in wal.histories.iter().chain(files) {
        let path = folder.join(name);
        let metadata = std::fs::symlink_metadata(&path).map_err(Error::io("look at", &path))?;
        let attributes = Attributes::of(&metadata);
        let content = Content::File { path, bytes: metadata.len(), pages: None };
        items.push(Item {
            path: Path::new("pg_wal").join(name),
            attributes,
            kind: Kind::File { content, listed: false },
        });
        items.push(Item {
            path: format!("pg_wal/archive_status/{name}.done").into(),
            attributes: Attributes { mode: attributes.mode & 0o660, ..attributes },
            kind: Kind::File { content: Content::Known(Vec::new()), listed: false },
        });
    }
    Ok(items)
}

fn is_tablespace_link(inside: &Path, metadata: &Metadata) -> bool {
    let is_there = inside.parent() == Some(Path::new(tablespace::FOLDER));
    let name = inside.file_name().and_then(OsStr::to_str).unwrap_or_default();
    is_there && metadata.is_symlink() && names::is_number(name)
}

/// Returns the file numbers of relations whose content a recovery removes: those that have an initial fork.
fn unlogged<'a>(all: impl Iterator<Item = &'a OsStr>) -> std::collections::HashSet<String> {
    let relation = |name: &'a OsStr| Relation::parse(name.to_str()?);
    let has_init = all.filter_map(relation).filter(|relation| relation.fork == Some("init"));
    has_init.map(|relation| relation.node.to_owned()).collect()
}

/// Returns the entries of a folder, with the metadata of links themselves.
fn entries(folder: &Path) -> Result<Vec<(OsString, PathBuf, Metadata)>> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(Error::io("list", folder))? {
        let entry = entry.map_err(Error::io("list", folder))?;
        let path = entry.path();
        let metadata = std::fs::symlink_metadata(&path).map_err(Error::io("look at", &path))?;
        all.push((entry.file_name(), path, metadata));
    }
    all.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(all)
}
