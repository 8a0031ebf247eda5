//! Brings the changes of one version of a file system into another version, for `pagefold rebase`.
//!
//! Two versions ("ours" and "theirs") have grown from the same older one ("the origin"). The differences of each from
//! the origin are found as in [`crate::diff`]. It is a conflict if both changed a file that the origin has, or a name
//! in a directory that it has; if one removed a directory in which the other made an entry; or if a directory would
//! come to lie below itself. Then nothing is changed. Otherwise our changes are made in a copy of theirs. Inodes that
//! we created get new numbers there, because both versions have counted on from the origin. Pages are copied.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::Range;

use pagefold_engine::dataset::{Change, Dataset};
use pagefold_engine::limits::ATOMIC_WRITE_MAX;
use pagefold_engine::tree::Difference;
use pagefold_engine::types::Key;

use crate::codec::{COUNTER_KEY, HEADER_KEY, Header, Inode, Pointee, decode_counter, kind};
use crate::diff::{
    Changed, DEPTH_MAX, EntryName, InodeNumber, Pages, Paths, ROOT, all_names, collect, inode,
};
use crate::dir::{add_entry, remove_entry};
use crate::error::{FsError, Result};
use crate::freeing::{self, Freeing};
use crate::limits::FREE_PAGES_MAX;
use crate::named::{Places, Probe};
use crate::orphan;
use crate::types::{FileKind, Time};

/// Number of values that one change copies.
const BATCH: usize = 64;

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

impl<'a> Work<'a> {
    fn run(&mut self) -> Result<()> {
        self.give_numbers()?;
        let all: Vec<(InodeNumber, &'a Changed)> =
            self.ours.changed.iter().map(|(ino, one)| (*ino, one)).collect();
        for (ino, one) in &all {
            if let Some(is) = one.is() {
                self.store(*ino, one, is)?;
            }
        }
        // All names are removed before others are added: a name may pass from one file to another.
        for (ino, one) in &all {
            one.lost.iter().try_for_each(|(dir, name)| self.remove_name(*dir, name, *ino))?;
        }
        for (ino, one) in &all {
            one.got.iter().try_for_each(|(dir, name)| self.add_name(*dir, name, *ino))?;
        }
        for (ino, one) in &all {
            match one.is() {
                None => self.remove(*ino)?,
                Some(is) if is.kind == FileKind::Regular => self.copy_data(&is)?,
                Some(_) => {}
            }
        }
        self.copied.files = all.len() as u64;
        let dirs = std::mem::take(&mut self.dirs);
        dirs.into_iter().try_for_each(|(ino, (dir, _))| Ok(self.target.apply(&[dir.put(ino)])?))
    }

    /// Gives numbers to what we created, behind those that they gave out.
    fn give_numbers(&mut self) -> Result<()> {
        let mut next = decode_counter(&self.target.get(&COUNTER_KEY)?.ok_or(FsError::NotFound)?)?;
        let mut new = || -> Result<u64> {
            let number = next;
            next = next.checked_add(1).ok_or(FsError::TooBig)?;
            Ok(number)
        };
        for (&ino, one) in &self.ours.changed {
            let Some(is) = one.is() else { continue };
            if one.was().is_none() {
                self.numbers.insert(ino, new()?);
            }
            if is.kind != FileKind::Regular || is.object == 0 || !self.is_new_object(one, &is) {
                continue;
            }
            // The first object of a file has the file's own number.
            let number = if is.object == ino { self.number(ino) } else { new()? };
            self.objects.insert(is.object, number);
        }
        self.target.apply(&[Change::Put(COUNTER_KEY, next.to_le_bytes().to_vec())])?;
        Ok(())
    }

    fn is_new_object(&self, one: &Changed, is: &Inode) -> bool {
        one.was().is_none_or(|was| was.object != is.object)
    }

    fn number(&self, ino: InodeNumber) -> InodeNumber {
        self.numbers.get(&ino).copied().unwrap_or(ino)
    }

    /// Stores an inode that we created or changed, with its attributes.
    fn store(&mut self, ino: InodeNumber, one: &Changed, is: Inode) -> Result<()> {
        let number = self.number(ino);
        let created = one.was().is_none();
        if created || one.attributes {
            self.copy_attributes(ino, number)?;
        }
        if is.kind == FileKind::Directory {
            let there = if created { None } else { Some(self.dir(ino)?.0) };
            // The counts of its entries follow from the entries that it has in the target.
            let object = match &there {
                Some(there) if self.ours.moved(ino).is_none() => there.object,
                _ => self.number(is.object),
            };
            let since = is.mtime;
            let counted =
                there.unwrap_or(Inode { entries: 0, displaced: 0, size: 0, nlink: 2, ..is.clone() });
            let Inode { entries, displaced, size, nlink, mtime, .. } = counted;
            let own = if created || one.is_modified(&self.ours.pages) { is } else { counted };
            let mtime = own.mtime.max(mtime);
            let dir = Inode { entries, displaced, size, nlink, object, mtime, ..own };
            self.dirs.insert(number, (dir, since));
            return Ok(());
        }
        let object = self.objects.get(&is.object).copied().unwrap_or(is.object);
        let mut changes = Vec::with_capacity(3);
        // Pages that the target's inode has yet to free are freed here; pages that only we cut off are among those that
        // differ.
        let there = if created { None } else { inode(self.target, number)? };
        let coded = there.clone();
        if let Some(there) = there.filter(|there| !there.freeing.is_empty()) {
            if there.object == object {
                there.freeing.ranges().iter().try_for_each(|pages| self.punch(object, pages.clone()))?;
            }
            changes.push(Change::Delete(freeing::key(number)));
        }
        let given_up = one.was().filter(|was| was.object != 0 && was.object != is.object);
        let stored = Inode { object, freeing: Freeing::default(), ..is };
        Inode::code_pages(coded.as_ref(), Some(&stored), &mut changes);
        changes.push(stored.put(number));
        if let Some(was) = given_up {
            changes.push(orphan::put_data(was.object));
        }
        self.target.apply(&changes)?;
        Ok(())
    }

    /// Gives inode `number` of the target the extended attributes, ACLs and link target of our inode `ino`.
    fn copy_attributes(&self, ino: InodeNumber, number: InodeNumber) -> Result<()> {
        let keys = |ino| (Key::new(ino, kind::XATTR, 0), Key::new(ino, kind::ACL + 1, 0));
        loop {
            let (from, to) = keys(number);
            let old = self.target.range(&from, &to, BATCH)?;
            let changes: Vec<_> = old.iter().map(|(key, _)| Change::Delete(*key)).collect();
            self.target.apply(&changes)?;
            if old.len() < BATCH {
                break;
            }
        }
        let (mut from, to) = keys(ino);
        loop {
            let new = self.ours.dataset.range(&from, &to, BATCH)?;
            let put =
                |(key, value): &(Key, Vec<u8>)| Change::Put(Key { object: number, ..*key }, value.clone());
            let changes: Vec<_> = new.iter().map(put).collect();
            self.target.apply(&changes)?;
            let Some((last, _)) = new.last().filter(|_| new.len() == BATCH) else { return Ok(()) };
            from = Key { offset: last.offset.saturating_add(1), ..*last };
        }
    }

    /// Returns a directory of the target, by our number, as it is to be stored, and the modification time that changes
    /// of its names set.
    fn dir(&mut self, ino: InodeNumber) -> Result<(Inode, Time)> {
        let number = self.number(ino);
        if let Some(found) = self.dirs.get(&number) {
            return Ok(found.clone());
        }
        let dir = inode(self.target, number)?.filter(|inode| inode.kind == FileKind::Directory);
        let dir = dir.ok_or_else(|| damaged(number, "it is not there"))?;
        let since = inode(self.ours.dataset, ino)?.map_or(dir.mtime, |ours| ours.mtime);
        let since = since.max(dir.mtime);
        Ok((dir, since))
    }

    fn probe(&mut self, dir: InodeNumber, name: &[u8]) -> Result<(Inode, Time, Probe)> {
        let (inode, since) = self.dir(dir)?;
        let displaced = inode.displaced > 0;
        let found = self.places.probe(self.target, self.number(dir), kind::ENTRY, displaced, name)?;
        Ok((inode, since, found))
    }

    fn remove_name(&mut self, dir: InodeNumber, name: &[u8], ino: InodeNumber) -> Result<()> {
        let number = self.number(dir);
        let (mut inode, since, found) = self.probe(dir, name)?;
        let Probe::Found { place, payload } = found else {
            return Err(damaged(number, "a name that was removed is not there"));
        };
        let pointee = Pointee::decode(number, &payload)?;
        if pointee.ino != ino {
            return Err(damaged(number, "a name that was removed is another file's"));
        }
        let mut changes = Vec::new();
        remove_entry(number, &mut inode, place, name, pointee, since, &mut changes);
        self.dirs.insert(number, (inode, since));
        Ok(self.target.apply(&changes)?)
    }

    fn add_name(&mut self, dir: InodeNumber, name: &[u8], ino: InodeNumber) -> Result<()> {
        let number = self.number(dir);
        let (mut inode, since, found) = self.probe(dir, name)?;
        let Probe::Vacant { place } = found else {
            return Err(damaged(number, "a name that was made is there already"));
        };
        let kind = self.ours.changed.get(&ino).and_then(Changed::is).map_or(FileKind::Regular, |is| is.kind);
        let pointee = Pointee { ino: self.number(ino), kind };
        let mut changes = Vec::new();
        add_entry(number, &mut inode, place, name, pointee, since, &mut changes)?;
        self.dirs.insert(number, (inode, since));
        Ok(self.target.apply(&changes)?)
    }

    /// Makes an inode that we removed an orphan, for [`crate::Fs::reap`].
    fn remove(&mut self, ino: InodeNumber) -> Result<()> {
        let inode = match self.dirs.remove(&ino) {
            Some((dir, _)) => dir,
            None => inode(self.target, ino)?.ok_or_else(|| damaged(ino, "it is not there"))?,
        };
        if inode.entries > 0 {
            return Err(damaged(ino, "it was removed and has entries"));
        }
        let gone = Inode { nlink: 0, ..inode };
        Ok(self.target.apply(&[gone.put(ino), orphan::put_inode(ino)])?)
    }

    /// Copies those pages of a file that differ.
    fn copy_data(&mut self, is: &Inode) -> Result<()> {
        if is.object == 0 {
            return Ok(());
        }
        match self.objects.get(&is.object).copied() {
            Some(to) => self.copy_run(is, to, 0..u64::MAX),
            None => {
                let runs = self.ours.pages.get(&is.object).into_iter().flatten();
                runs.cloned().try_for_each(|run| self.copy_run(is, is.object, run))
            }
        }
    }

    /// Makes the pages `run` of object `to` of the target the same as those of our file.
    fn copy_run(&mut self, is: &Inode, to: u64, run: Range<u64>) -> Result<()> {
        let mut at = run.start;
        while at < run.end {
            // Pages that are yet to be freed count as holes.
            let freed = is.freeing.first_in(at..run.end);
            let hole = freed.as_ref().map_or(run.end, |pages| pages.start);
            self.copy_stored(is, to, at..hole)?;
            at = freed.map_or(run.end, |pages| pages.end);
            self.punch(to, hole..at)?;
        }
        Ok(())
    }

    /// As [`Self::copy_run`], for pages of which none is to be freed.
    fn copy_stored(&mut self, is: &Inode, to: u64, run: Range<u64>) -> Result<()> {
        let mut at = run.start;
        while at < run.end {
            let data = self.ours.dataset.next_data(is.object, at)?.unwrap_or(u64::MAX).min(run.end);
            self.punch(to, at..data)?;
            at = data;
            if at == run.end {
                break;
            }
            let hole = self.ours.dataset.next_hole(is.object, at)?.min(run.end);
            self.copy_pages(is, to, at..hole)?;
            at = hole;
        }
        Ok(())
    }

    /// Frees pages of the target, a bounded slice per change.
    fn punch(&mut self, object: u64, pages: Range<u64>) -> Result<()> {
        let mut at = pages.start;
        while let Some(from) = self.target.next_data(object, at)?.filter(|from| *from < pages.end) {
            at = from.saturating_add(FREE_PAGES_MAX).min(pages.end);
            self.target.apply(&[Change::Punch { object, from, to: at }])?;
            (self.go_on)()?;
        }
        Ok(())
    }

    fn copy_pages(&mut self, is: &Inode, to: u64, run: Range<u64>) -> Result<()> {
        let size = u64::from(is.recordsize);
        let most = (ATOMIC_WRITE_MAX as u64 / size).max(1);
        let mut at = run.start;
        while at < run.end {
            let pages = most.min(run.end - at);
            let mut data = vec![0; (pages * size) as usize];
            let offset = at * size;
            self.ours.dataset.read(is.object, is.recordsize, offset, &mut data)?;
            let write = Change::Write { object: to, record_size: is.recordsize, offset, data: &data };
            self.target.apply(&[write])?;
            self.copied.bytes += data.len() as u64;
            at += pages;
            (self.go_on)()?;
        }
        Ok(())
    }
}

fn damaged(ino: InodeNumber, detail: &str) -> FsError {
    FsError::Corrupt { ino, what: "inode", detail: detail.to_owned() }
}
