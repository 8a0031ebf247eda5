//! Makes the changes of one version in a copy of the other.

use pagefold_engine::dataset::Change;

use super::Work;
use crate::codec::{COUNTER_KEY, Inode, Pointee, decode_counter, freeing_key, kind};
use crate::diff::{Changed, InodeNumber, inode};
use crate::dir::{add_entry, remove_entry};
use crate::error::{FsError, Result};
use crate::named::Probe;
use crate::orphan;
use crate::ranges::Ranges;
use crate::types::{FileKind, Time};

impl<'a> Work<'a> {
    pub(super) fn run(&mut self) -> Result<()> {
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
            changes.push(Change::Delete(freeing_key(number)));
        }
        let given_up = one.was().filter(|was| was.object != 0 && was.object != is.object);
        let stored = Inode { object, freeing: Ranges::default(), ..is };
        Inode::code_pages(coded.as_ref(), Some(&stored), &mut changes);
        changes.push(stored.put(number));
        if let Some(was) = given_up {
            changes.push(orphan::put_data(was.object));
        }
        self.target.apply(&changes)?;
        Ok(())
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
    pub(super) fn remove(&mut self, ino: InodeNumber) -> Result<()> {
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
}

fn damaged(ino: InodeNumber, detail: &str) -> FsError {
    FsError::Corrupt { ino, what: "inode", detail: detail.to_owned() }
}
