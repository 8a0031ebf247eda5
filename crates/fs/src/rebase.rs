//! Brings the changes of one version of a file system into another version, for `pagefold rebase`.
//!
//! Two versions ("ours" and "theirs") have grown from the same older one ("the origin"). The differences of each from
//! the origin are found as in [`crate::diff`]. It is a conflict if both changed a file that the origin has, or a name
//! in a directory that it has; if one removed a directory in which the other made an entry; or if a directory would
//! come to lie below itself. Then nothing is changed. Otherwise our changes are made in a copy of theirs. Inodes that
//! we created get new numbers there, because both versions have counted on from the origin. Pages are copied.

mod copying;
mod work;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use pagefold_engine::dataset::Dataset;
use pagefold_engine::tree::Difference;

use crate::codec::{HEADER_KEY, Header, Inode};
use crate::diff::{
    Changed, DEPTH_MAX, EntryName, InodeNumber, Pages, Paths, ROOT, all_names, collect, inode,
};
use crate::error::{FsError, Result};
use crate::named::Places;
use crate::types::{FileKind, Time};

/// A version of a file system, with its differences from the origin.
pub struct Side<'a> {
    dataset: &'a dyn Dataset,
    /// Inodes that were created, removed, modified or got other names.
    changed: BTreeMap<InodeNumber, Changed>,
    pages: Pages,
}

/// Outcomes of a rebase.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rebased {
    /// The target has our changes now.
    Done(Copied),
    /// Paths of what both have changed, as in the origin, without a slash before them. Nothing was changed.
    Conflicts(Vec<Vec<u8>>),
}

/// Numbers of files and bytes that were brought into the target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Copied {
    /// Number of files and directories that were created, removed, renamed or modified.
    pub files: u64,
    /// Number of bytes of pages that were written again, uncompressed.
    pub bytes: u64,
}

impl<'a> Side<'a> {
    /// Returns the side whose version is `dataset`; `differences` are those from the origin to it. Takes memory in
    /// proportion to them.
    ///
    /// # Errors
    /// [`FsError::Corrupt`] for entries that are not well formed, and errors of reading the dataset.
    pub fn new(
        dataset: &'a dyn Dataset,
        differences: impl Iterator<Item = pagefold_engine::Result<Difference>>,
    ) -> Result<Self> {
        let (mut changed, pages) = collect(dataset, differences)?;
        changed.retain(|_, one| match (one.was(), one.is()) {
            (None, None) => false,
            (Some(_), Some(_)) => !(one.lost.is_empty() && one.got.is_empty()) || one.is_modified(&pages),
            _ => true,
        });
        Ok(Self { dataset, changed, pages })
    }

    fn created(&self, ino: InodeNumber) -> bool {
        self.changed.get(&ino).is_some_and(|one| one.was().is_none())
    }

    fn removed(&self, ino: InodeNumber) -> bool {
        self.changed.get(&ino).is_some_and(|one| one.is().is_none())
    }

    /// Returns the new parent of a directory that the origin has, if it was moved into another directory.
    fn moved(&self, ino: InodeNumber) -> Option<InodeNumber> {
        let one = self.changed.get(&ino)?;
        let (was, is) = one.was().zip(one.is())?;
        (is.kind == FileKind::Directory && was.object != is.object).then_some(is.object)
    }

    fn moved_directories(&self) -> impl Iterator<Item = InodeNumber> + '_ {
        self.changed.keys().copied().filter(|ino| self.moved(*ino).is_some())
    }

    fn got(&self) -> impl Iterator<Item = &EntryName> {
        self.changed.values().flat_map(|one| &one.got)
    }

    fn names(&self) -> impl Iterator<Item = &EntryName> {
        self.changed.values().flat_map(|one| one.got.iter().chain(&one.lost))
    }
}

/// State of making our changes.
struct Work<'a> {
    ours: &'a Side<'a>,
    target: &'a dyn Dataset,
    places: Places,
    /// Numbers in the target of inodes that we created, by our numbers.
    numbers: HashMap<InodeNumber, InodeNumber>,
    /// Numbers in the target of data objects that the origin does not have, by our numbers.
    objects: HashMap<u64, u64>,
    /// Directories of the target that change, each with the modification time that changes of its names set.
    dirs: BTreeMap<InodeNumber, (Inode, Time)>,
    copied: Copied,
    go_on: &'a mut dyn FnMut() -> Result<()>,
}

/// Makes our changes in `target`, a copy of their version that nobody else uses. After an error `target` holds a part
/// of the changes. `go_on` is called after each MiB copied and each slice of pages freed; its error ends the rebase.
///
/// # Errors
/// `NotFound` if `target` holds no file system, [`FsError::Corrupt`], and errors of reading and storing.
pub fn rebase(
    origin: &dyn Dataset,
    ours: &Side<'_>,
    theirs: &Side<'_>,
    target: &dyn Dataset,
    go_on: &mut dyn FnMut() -> Result<()>,
) -> Result<Rebased> {
    let conflicts = conflicts(origin, ours, theirs)?;
    if !conflicts.is_empty() {
        return Ok(Rebased::Conflicts(conflicts.into_iter().collect()));
    }
    let header = Header::decode(&target.get(&HEADER_KEY)?.ok_or(FsError::NotFound)?)?;
    let mut work = Work {
        ours,
        target,
        places: Places::new(header.seed),
        numbers: HashMap::new(),
        objects: HashMap::new(),
        dirs: BTreeMap::new(),
        copied: Copied::default(),
        go_on,
    };
    work.run()?;
    Ok(Rebased::Done(work.copied))
}

/// Returns the paths of what both have changed.
fn conflicts(origin: &dyn Dataset, ours: &Side<'_>, theirs: &Side<'_>) -> Result<BTreeSet<Vec<u8>>> {
    let mut inodes = HashSet::new();
    for (ino, one) in &ours.changed {
        let both = one.was().is_some() && theirs.changed.get(ino).is_some_and(|one| one.was().is_some());
        if both {
            inodes.insert(*ino);
        }
    }
    for ino in ours.moved_directories() {
        if is_circle(ino, ours, theirs)? {
            inodes.insert(ino);
        }
    }
    // Directories that both created with the same number are two directories.
    let their_names: HashSet<&EntryName> = theirs.names().collect();
    let mut names: Vec<&EntryName> = ours.names().filter(|name| their_names.contains(name)).collect();
    names.extend(ours.got().filter(|(dir, _)| theirs.removed(*dir)));
    names.retain(|(dir, _)| !ours.created(*dir));
    names.extend(theirs.got().filter(|(dir, _)| ours.removed(*dir) && !theirs.created(*dir)));

    let mut paths = Paths::new(origin);
    let mut found = BTreeSet::new();
    for (dir, name) in names {
        found.insert(paths.of(*dir, name)?);
    }
    if inodes.remove(&ROOT) {
        found.insert(Vec::new());
    }
    for (dir, name) in all_names(origin, &inodes)?.into_values().flatten() {
        found.insert(paths.of(dir, &name)?);
    }
    Ok(found)
}

/// Returns true if a directory that we moved would lie below itself, because they moved others.
fn is_circle(moved: InodeNumber, ours: &Side<'_>, theirs: &Side<'_>) -> Result<bool> {
    let Some(mut at) = ours.moved(moved) else { return Ok(false) };
    // Both have given out the same numbers. This tells whose inode `at` is, if the origin does not have it.
    let mut is_ours = true;
    for _ in 0..DEPTH_MAX {
        let own = if is_ours && ours.created(at) {
            ours.changed.get(&at).and_then(Changed::is).map(|is| is.object)
        } else if !is_ours && theirs.created(at) {
            None
        } else if at == moved {
            return Ok(true);
        } else {
            ours.moved(at)
        };
        is_ours = own.is_some();
        at = match (own, at) {
            (Some(parent), _) => parent,
            (None, ROOT) => return Ok(false),
            (None, at) => match inode(theirs.dataset, at)? {
                Some(inode) => inode.object,
                // They have removed it, which is a conflict of another kind.
                None => return Ok(false),
            },
        };
    }
    Ok(true)
}
