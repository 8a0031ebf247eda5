//! Finds the differences between two versions of a file system, for `pagefold diff`.
//!
//! The engine tells which keys differ; this module turns them into files. An inode that only one of the two versions
//! has was created or removed; an inode whose names differ was renamed, or has a name more or less; any other was
//! modified. Access times, change times and a directory's counts of its entries are not differences.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;

use pagefold_engine::dataset::Dataset;
use pagefold_engine::tree::{Difference, Value};
use pagefold_engine::types::Key;

use crate::codec::{Inode, Pointee, kind};
use crate::error::{FsError, Result};
use crate::named::split;
use crate::ranges::Ranges;
use crate::types::{FileKind, Ino};

/// Number of entries fetched at once.
const BATCH: usize = 1024;
/// Largest depth of directories; a path that is deeper is a circle.
pub(crate) const DEPTH_MAX: usize = 4096;
pub(crate) const ROOT: InodeNumber = Ino::ROOT.0;

/// Number of an inode, as the dataset has it.
pub(crate) type InodeNumber = u64;

/// Kinds of differences.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fate {
    /// The file has this name now: it is new, or got another hard link.
    Created,
    /// The file does not have this name any more.
    Removed,
    /// The file had another name before.
    Renamed {
        /// The file's path before.
        from: Vec<u8>,
    },
    /// Content or attributes of the file have changed.
    Modified,
}

/// A difference between two versions of a file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileDifference {
    /// Path from the root directory, without a slash before it, in the newer version; in the older one if the file was
    /// removed. Empty for the root.
    pub path: Vec<u8>,
    /// Kind of difference.
    pub fate: Fate,
    /// Kind of file.
    pub kind: FileKind,
    /// Ranges of bytes of a modified file that may have changed: whole pages, up to its end. Empty unless asked for.
    pub ranges: Vec<Range<u64>>,
}

/// An inode that differs, as each of the two versions has it.
#[derive(Default)]
pub(crate) struct Changed {
    before: Option<Inode>,
    after: Option<Inode>,
    /// True if the stored inode itself differs.
    inode: bool,
    /// True if extended attributes, ACLs or the link target differ.
    pub(crate) attributes: bool,
    /// Names that the inode lost and got: directory and name.
    pub(crate) lost: Vec<EntryName>,
    pub(crate) got: Vec<EntryName>,
}

impl Changed {
    /// Returns the inode in the older version, if it had a name there.
    pub(crate) fn was(&self) -> Option<Inode> {
        self.before.clone().filter(|inode| inode.nlink > 0)
    }

    /// Returns the inode in the newer version, likewise.
    pub(crate) fn is(&self) -> Option<Inode> {
        self.after.clone().filter(|inode| inode.nlink > 0)
    }

    /// Returns true if both versions have the inode, and its content or its attributes were modified.
    pub(crate) fn is_modified(&self, pages: &Pages) -> bool {
        let (Some(was), Some(is)) = (self.was(), self.is()) else { return false };
        let objects = [was.object, is.object];
        let touched = is.kind == FileKind::Regular
            && objects.iter().any(|object| *object != 0 && pages.contains_key(object));
        self.attributes || touched || differs(&was, &is)
    }
}

/// Directory and name.
pub(crate) type EntryName = (InodeNumber, Vec<u8>);

/// A visitor of directory entries: gets the directory, the name, and what the entry points to.
type SeeEntry<'a> = &'a mut dyn FnMut(InodeNumber, &[u8], Pointee) -> Result<()>;

/// Runs of pages by object.
pub(crate) type Pages = HashMap<u64, Vec<Range<u64>>>;

/// Returns the differences, sorted by path; with `ranges` also the ranges of bytes of files that differ.
///
/// Takes memory in proportion to the differences. If files were modified and not renamed, all names of `new` are read,
/// since an inode does not know its names.
///
/// # Errors
/// [`FsError::Corrupt`] for entries that are not well formed, and errors of reading the datasets.
pub fn diff(
    old: &dyn Dataset,
    new: &dyn Dataset,
    differences: impl Iterator<Item = pagefold_engine::Result<Difference>>,
    ranges: bool,
) -> Result<Vec<FileDifference>> {
    let (changed, pages) = collect(new, differences)?;
    let mut found = Vec::new();
    let (mut before, mut after) = (Paths::new(old), Paths::new(new));
    let mut nameless = HashMap::new();
    for (ino, one) in &changed {
        names(one, &mut before, &mut after, &mut found)?;
        let (Some(was), Some(is)) = (one.was(), one.is()) else { continue };
        if one.is_modified(&pages) {
            let bytes = if ranges && is.kind == FileKind::Regular {
                changed_bytes(&was, &is, &pages)
            } else {
                Vec::new()
            };
            nameless.insert(*ino, (one.got.clone(), is.kind, bytes));
        }
    }
    let wanted = nameless.iter().filter(|(_, (got, ..))| got.is_empty()).map(|(ino, _)| *ino).collect();
    let mut named = all_names(new, &wanted)?;
    for (ino, (got, kind, ranges)) in nameless {
        let places = if got.is_empty() { named.remove(&ino).unwrap_or_default() } else { got };
        let paths: Vec<Vec<u8>> = match ino {
            ROOT => vec![Vec::new()],
            _ => places.iter().map(|(dir, name)| after.of(*dir, name)).collect::<Result<_>>()?,
        };
        found.extend(paths.into_iter().map(|path| FileDifference {
            path,
            fate: Fate::Modified,
            kind,
            ranges: ranges.clone(),
        }));
    }
    found.sort_by(|a, b| (&a.path, &a.fate).cmp(&(&b.path, &b.fate)));
    Ok(found)
}

/// Adds the differences of an inode's names: a name that it lost and one that it got make a rename.
fn names(
    one: &Changed,
    before: &mut Paths<'_>,
    after: &mut Paths<'_>,
    found: &mut Vec<FileDifference>,
) -> Result<()> {
    let kind = one.after.as_ref().or(one.before.as_ref()).map_or(FileKind::Regular, |inode| inode.kind);
    let mut push = |path, fate| found.push(FileDifference { path, fate, kind, ranges: Vec::new() });
    let mut lost = one.lost.iter();
    for (dir, name) in &one.got {
        let path = after.of(*dir, name)?;
        match lost.next() {
            Some((dir, name)) => push(path, Fate::Renamed { from: before.of(*dir, name)? }),
            None => push(path, Fate::Created),
        }
    }
    for (dir, name) in lost {
        push(before.of(*dir, name)?, Fate::Removed);
    }
    Ok(())
}

/// Returns true if attributes differ, apart from access and change times and those that follow from names.
pub(crate) fn differs(was: &Inode, is: &Inode) -> bool {
    let own = |inode: &Inode| {
        (inode.kind, inode.perm, inode.wish, inode.compression, inode.uid, inode.gid, inode.rdev)
    };
    let file = |inode: &Inode| (inode.size, inode.mtime, inode.object);
    own(was) != own(is) || (is.kind != FileKind::Directory && file(was) != file(is))
}

/// Returns the inodes that differ, and the pages of objects that differ; `new` is the newer version.
pub(crate) fn collect(
    new: &dyn Dataset,
    differences: impl Iterator<Item = pagefold_engine::Result<Difference>>,
) -> Result<(BTreeMap<InodeNumber, Changed>, Pages)> {
    let mut changed: BTreeMap<InodeNumber, Changed> = BTreeMap::new();
    let mut pages = Pages::new();
    // Pages that differ and are holes in the newer version.
    let mut holes = Pages::new();
    for difference in differences {
        let Difference { key, before, after } = difference?;
        match key.kind {
            kind::INODE => {
                let one = changed.entry(key.object).or_default();
                one.inode = true;
                one.before = decode(key.object, before.as_ref())?;
                one.after = decode(key.object, after.as_ref())?;
            }
            kind::ENTRY => {
                if let Some((ino, name)) = entry(key.object, before.as_ref())? {
                    changed.entry(ino).or_default().lost.push((key.object, name));
                }
                if let Some((ino, name)) = entry(key.object, after.as_ref())? {
                    changed.entry(ino).or_default().got.push((key.object, name));
                }
            }
            kind::XATTR | kind::ACL | kind::TARGET => {
                changed.entry(key.object).or_default().attributes = true;
            }
            Key::PAGE => {
                let to = if after.is_some() { &mut pages } else { &mut holes };
                let runs = to.entry(key.object).or_default();
                match runs.last_mut().filter(|run| run.end == key.offset) {
                    Some(run) => run.end += 1,
                    None => runs.push(key.offset..key.offset.saturating_add(1)),
                }
            }
            _ => {}
        }
    }
    // A name that moved within its directory, because another with its hash came or went, is the same name.
    for one in changed.values_mut() {
        let kept: Vec<EntryName> = one.lost.iter().filter(|name| one.got.contains(name)).cloned().collect();
        one.lost.retain(|name| !kept.contains(name));
        one.got.retain(|name| !kept.contains(name));
    }
    see_freed(&changed, &mut pages, &mut holes);
    changed.retain(|_, one| one.inode || one.attributes || !(one.lost.is_empty() && one.got.is_empty()));
    for (ino, one) in changed.iter_mut().filter(|(_, one)| !one.inode) {
        // The stored inode is the same in both versions.
        one.after = inode(new, *ino)?;
        one.before = one.after.clone();
    }
    Ok((changed, pages))
}

/// Adds to `pages` the `holes`, and the stored pages that read as zeros in the newer version only. Takes out pages that
/// read as zeros in both versions: it is no difference that they were freed meanwhile.
fn see_freed(changed: &BTreeMap<InodeNumber, Changed>, pages: &mut Pages, holes: &mut Pages) {
    let objects: HashSet<u64> = pages.keys().chain(holes.keys()).copied().collect();
    let none = Ranges::default();
    let mut freeing: HashMap<u64, (&Ranges, &Ranges)> = HashMap::new();
    for one in changed.values() {
        for (inode, is_new) in [(&one.before, false), (&one.after, true)] {
            let Some(inode) = inode.as_ref().filter(|inode| !inode.freeing.is_empty()) else { continue };
            let both = freeing.entry(inode.object).or_insert((&none, &none));
            if is_new { both.1 = &inode.freeing } else { both.0 = &inode.freeing }
        }
    }
    let outside = |runs: Vec<Range<u64>>, of: &Ranges| -> Vec<Range<u64>> {
        let parts = runs.into_iter().flat_map(|run| of.split(run));
        parts.filter(|(_, is_freed)| !is_freed).map(|(run, _)| run).collect()
    };
    for object in objects.into_iter().chain(freeing.keys().copied()).collect::<HashSet<u64>>() {
        let (was, is) = freeing.get(&object).copied().unwrap_or((&none, &none));
        let set = outside(pages.remove(&object).unwrap_or_default(), is);
        let freed = outside(holes.remove(&object).unwrap_or_default(), was);
        let cut = outside(is.ranges().to_vec(), was);
        let mut all: Vec<Range<u64>> = set.into_iter().chain(freed).chain(cut).collect();
        all.sort_unstable_by_key(|run| run.start);
        let mut runs: Vec<Range<u64>> = Vec::new();
        for run in all {
            match runs.last_mut().filter(|last| run.start <= last.end) {
                Some(last) => last.end = last.end.max(run.end),
                None => runs.push(run),
            }
        }
        if !runs.is_empty() {
            pages.insert(object, runs);
        }
    }
}

fn bytes(value: Option<&Value>) -> Option<&[u8]> {
    match value {
        Some(Value::Bytes(bytes)) => Some(bytes),
        Some(Value::Page(_)) | None => None,
    }
}

fn decode(ino: InodeNumber, value: Option<&Value>) -> Result<Option<Inode>> {
    bytes(value).map(|bytes| Inode::decode(ino, bytes)).transpose()
}

/// Returns the inode that a directory entry points to, and the name.
fn entry(dir: InodeNumber, value: Option<&Value>) -> Result<Option<(InodeNumber, Vec<u8>)>> {
    let Some(value) = bytes(value) else { return Ok(None) };
    let (name, rest) = split(dir, value)?;
    Ok(Some((Pointee::decode(dir, rest)?.ino, name.to_vec())))
}

pub(crate) fn inode(dataset: &dyn Dataset, ino: InodeNumber) -> Result<Option<Inode>> {
    dataset.get(&Inode::key(ino))?.map(|bytes| Inode::decode(ino, &bytes)).transpose()
}

/// Returns the ranges of bytes of a file that may have changed.
fn changed_bytes(was: &Inode, is: &Inode, pages: &Pages) -> Vec<Range<u64>> {
    let mut found: Vec<Range<u64>> = Vec::new();
    let mut push = |range: Range<u64>| {
        let range = range.start..range.end.min(is.size);
        match found.last_mut().filter(|last| range.start <= last.end) {
            _ if range.is_empty() => {}
            Some(last) => last.end = last.end.max(range.end),
            None => found.push(range),
        }
    };
    if was.object == is.object {
        let size = u64::from(is.recordsize);
        for run in pages.get(&is.object).into_iter().flatten() {
            push(run.start.saturating_mul(size)..run.end.saturating_mul(size));
        }
        if was.size < is.size {
            let tail = was.size..is.size;
            let overlaps = found.iter().position(|range| range.end >= tail.start);
            let first = overlaps.map_or(tail.start, |at| found[at].start.min(tail.start));
            found.truncate(overlaps.unwrap_or(found.len()));
            found.push(first..tail.end);
        }
    } else {
        push(0..is.size);
    }
    found
}

/// Visits all directory entries with keys in `from..to`.
fn each_entry(dataset: &dyn Dataset, (from, to): (Key, Key), visit: SeeEntry<'_>) -> Result<()> {
    let mut from = from;
    loop {
        let found = dataset.range(&from, &to, BATCH)?;
        for (key, value) in found.iter().filter(|(key, _)| key.kind == kind::ENTRY) {
            let (name, rest) = split(key.object, value)?;
            visit(key.object, name, Pointee::decode(key.object, rest)?)?;
        }
        let Some((last, _)) = found.last().filter(|_| found.len() == BATCH) else { return Ok(()) };
        from = Key { offset: last.offset.saturating_add(1), ..*last };
    }
}

/// Returns all names of the inodes `wanted`, by inode.
pub(crate) fn all_names(
    dataset: &dyn Dataset,
    wanted: &HashSet<InodeNumber>,
) -> Result<HashMap<InodeNumber, Vec<EntryName>>> {
    let mut found: HashMap<InodeNumber, Vec<EntryName>> = HashMap::new();
    if wanted.iter().all(|ino| *ino == ROOT) {
        return Ok(found);
    }
    each_entry(dataset, (Key::new(0, 0, 0), Key::new(u64::MAX, 0, 0)), &mut |dir, name, to| {
        if wanted.contains(&to.ino) {
            found.entry(to.ino).or_default().push((dir, name.to_vec()));
        }
        Ok(())
    })?;
    Ok(found)
}

/// Paths of directories in one version.
pub(crate) struct Paths<'a> {
    dataset: &'a dyn Dataset,
    /// Parent and name of directories whose parents were read.
    places: HashMap<InodeNumber, EntryName>,
}

impl<'a> Paths<'a> {
    pub(crate) fn new(dataset: &'a dyn Dataset) -> Self {
        Self { dataset, places: HashMap::new() }
    }

    /// Returns the path of `name` in `dir`, without a slash before it.
    pub(crate) fn of(&mut self, dir: InodeNumber, name: &[u8]) -> Result<Vec<u8>> {
        let mut parts = vec![name.to_vec()];
        let mut at = dir;
        while at != ROOT {
            let (parent, name) = self.place(at)?;
            parts.push(name);
            at = parent;
            if parts.len() > DEPTH_MAX {
                let detail = "it lies below itself".to_owned();
                return Err(FsError::Corrupt { ino: dir, what: "directory", detail });
            }
        }
        parts.reverse();
        Ok(parts.join(&b'/'))
    }

    /// Returns parent and name of a directory.
    fn place(&mut self, dir: InodeNumber) -> Result<EntryName> {
        if let Some(place) = self.places.get(&dir) {
            return Ok(place.clone());
        }
        let lost = |detail: &str| FsError::Corrupt { ino: dir, what: "directory", detail: detail.to_owned() };
        let parent = inode(self.dataset, dir)?.ok_or_else(|| lost("it has no inode"))?.object;
        let places = &mut self.places;
        let (from, to) = (Key::new(parent, kind::ENTRY, 0), Key::new(parent, kind::ENTRY + 1, 0));
        each_entry(self.dataset, (from, to), &mut |_, name, to| {
            if to.kind == FileKind::Directory {
                places.insert(to.ino, (parent, name.to_vec()));
            }
            Ok(())
        })?;
        places.get(&dir).cloned().ok_or_else(|| lost("its parent does not name it"))
    }
}
