//! Directories: looking up, listing, and making new inodes in them.

mod make;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use pagefold_engine::dataset::Change;
use pagefold_engine::types::Key;

use crate::codec::{Inode, POINTEE_BYTES, Pointee, kind};
use crate::error::{FsError, Result};
use crate::fs::Fs;
use crate::inode::Node;
use crate::limits::{LINK_MAX, NAME_MAX, READDIR_BATCH};
use crate::named::{PLACE_MIN, Probe, check_name, is_displaced, join, split};
use crate::types::{Attr, DirEntry, Entry, FileKind, Ino};

/// Generation of every inode: one is enough, since inode numbers are never used twice.
const GENERATION: u64 = 1;

/// Cookies of `.` and `..`. The cookie of any other entry is its place, [`PLACE_MIN`] or more.
const COOKIE_DOT: u64 = 1;
const COOKIE_DOTDOT: u64 = 2;
const _: () = assert!(COOKIE_DOTDOT < PLACE_MIN);

/// Values of the map with their keys.
type Values = Vec<(Key, Vec<u8>)>;

impl Fs {
    /// Returns the inode of `name` in `parent`, which counts as one reference (see [`Fs::forget`]). `.` and `..` are
    /// the directory and its parent.
    ///
    /// Errors: `NotFound`, `NotADirectory`, `NameTooLong`.
    pub fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Entry> {
        if name.len() > NAME_MAX {
            return Err(FsError::NameTooLong);
        }
        let dir = self.node(parent)?;
        // The inode may be unlinked and reaped after its name was found and before it is held: then the name is looked
        // up again, and is gone or names another inode.
        let mut gone = None;
        loop {
            let child = match name {
                b"." => parent.0,
                b".." => {
                    let inode = dir.snapshot();
                    self.want_dir(&inode)?;
                    inode.object
                }
                _ => self.find(&dir, name)?.ok_or(FsError::NotFound)?.ino,
            };
            match self.nodes.grab(self.dataset(), child) {
                Ok(node) => return self.entry(&node, name),
                Err(FsError::Stale) if gone != Some(child) => gone = Some(child),
                Err(FsError::Stale) => {
                    let detail =
                        format!("entry {:?} names inode {child}, which does not exist", name.escape_ascii());
                    return Err(FsError::Corrupt { ino: parent.0, what: "directory", detail });
                }
                Err(other) => return Err(other),
            }
        }
    }

    /// Returns the inode that `name` in `dir` points to; `None` if there is no such name.
    pub(crate) fn find(&self, dir: &Node, name: &[u8]) -> Result<Option<Pointee>> {
        let inode = dir.snapshot();
        self.want_dir(&inode)?;
        match self.probe_entry(dir.ino, &inode, name)? {
            Probe::Found { payload, .. } => Pointee::decode(dir.ino, &payload).map(Some),
            Probe::Vacant { .. } => Ok(None),
        }
    }

    pub(crate) fn probe_entry(&self, dir: u64, inode: &Inode, name: &[u8]) -> Result<Probe> {
        self.places.probe(self.dataset(), dir, kind::ENTRY, inode.displaced > 0, name)
    }

    /// Returns the answer for an inode on which a reference was just taken; gives the reference back on failure.
    fn entry(&self, node: &Arc<Node>, name: &[u8]) -> Result<Entry> {
        let inode = node.snapshot();
        if inode.kind == FileKind::Regular && inode.recordsize == 0 {
            remember_name(node, name);
        }
        match self.attr(node.ino, &inode) {
            Ok(attr) => Ok(Entry { ino: Ino(node.ino), generation: GENERATION, attr }),
            Err(error) => {
                self.forget(Ino(node.ino), 1);
                Err(error)
            }
        }
    }

    /// Returns the answer for inode `ino` under `name`; counts as one reference.
    pub(crate) fn entry_of(&self, ino: u64, name: &[u8]) -> Result<Entry> {
        self.entry(&self.nodes.grab(self.dataset(), ino)?, name)
    }

    /// Returns the target of a symbolic link. Errors: `Invalid` for anything else.
    pub fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        let node = self.node(ino)?;
        let inode = node.snapshot();
        if inode.kind != FileKind::Symlink {
            return Err(FsError::Invalid("not a symbolic link"));
        }
        let damaged = || FsError::Corrupt { ino: ino.0, what: "link", detail: "it has no target".to_owned() };
        let target = self.dataset.get(&Key::new(ino.0, kind::TARGET, 0))?.ok_or_else(damaged)?;
        self.touch(&node, &inode);
        Ok(target)
    }

    /// Opens a directory; the caller owes one [`Fs::releasedir`].
    pub fn opendir(&self, ino: Ino) -> Result<Attr> {
        let node = self.node(ino)?;
        let inode = node.snapshot();
        self.want_dir(&inode)?;
        let attr = self.attr(ino.0, &inode)?;
        node.add_open();
        Ok(attr)
    }

    /// Closes a directory.
    pub fn releasedir(&self, ino: Ino) {
        self.release(ino);
    }

    /// Passes the entries after `cookie` (0: from the start, with `.` and `..`) to `emit` until that returns false; the
    /// entry for which it did so counts as not listed. An entry that stays during a listing is listed exactly once,
    /// whatever others do.
    ///
    /// Errors: `Corrupt` if some names cannot be read, after all others have been listed.
    pub fn readdir(&self, ino: Ino, cookie: u64, emit: &mut dyn FnMut(&DirEntry<'_>) -> bool) -> Result<()> {
        let node = self.node(ino)?;
        let inode = node.snapshot();
        self.want_dir(&inode)?;
        self.touch(&node, &inode);
        for (dot, target, name) in [(COOKIE_DOT, ino, &b"."[..]), (COOKIE_DOTDOT, Ino(inode.object), b"..")] {
            let told = cookie >= dot
                || emit(&DirEntry { ino: target, cookie: dot, kind: FileKind::Directory, name });
            if !told {
                return Ok(());
            }
        }
        if inode.nlink == 0 {
            return Ok(());
        }
        let mut from = Key::new(ino.0, kind::ENTRY, cookie.saturating_add(1));
        let end = Key::new(ino.0, kind::ENTRY + 1, 0);
        // A short first batch: many directories, and many callers' buffers, are small.
        let mut limit = READDIR_BATCH / 4;
        let mut none_told = true;
        loop {
            let (batch, next) = {
                let _unchanged = node.changing.lock();
                self.range_past_damage(from, &end, limit)?
            };
            for (key, value) in &batch {
                let (name, payload) = split(ino.0, value)?;
                let pointee = Pointee::decode(ino.0, payload)?;
                if !emit(&DirEntry { ino: Ino(pointee.ino), cookie: key.offset, kind: pointee.kind, name }) {
                    return Ok(());
                }
                none_told = false;
            }
            let Some(next) = next else { break };
            (from, limit) = (next, READDIR_BATCH);
        }
        // Only the last call of a listing, which finds no more entries, reports the damage: until then, names that can
        // be read matter more.
        if none_told && self.passed_damage.load(Ordering::Relaxed) {
            let first = Key::new(ino.0, kind::ENTRY, 0);
            if self.dataset.first_damage(&first, &end).is_some() {
                let detail = "some of its names cannot be read".to_owned();
                return Err(FsError::Corrupt { ino: ino.0, what: "directory", detail });
            }
        }
        Ok(())
    }

    /// Returns up to `limit` entries of `from..end` that can be read, and the key from which to go on, if there is
    /// more.
    fn range_past_damage(&self, from: Key, end: &Key, limit: usize) -> Result<(Values, Option<Key>)> {
        let (batch, behind) = match self.dataset.range(&from, end, limit) {
            Ok(batch) => (batch, None),
            Err(error) => {
                let Some((first, behind)) = self.dataset.first_damage(&from, end) else {
                    return Err(error.into());
                };
                self.passed_damage.store(true, Ordering::Relaxed);
                (self.dataset.range(&from, &first, limit)?, Some(behind).filter(|behind| behind < end))
            }
        };
        let last = batch.last().filter(|_| batch.len() == limit);
        let next = match last {
            Some((last, _)) => last.offset.checked_add(1).map(|offset| Key { offset, ..*last }),
            None => behind,
        };
        Ok((batch, next))
    }

    /// As [`Fs::readdir`], with attributes; every `Entry` for which `emit` returned true is one reference. `.` and
    /// `..`, names unlinked meanwhile, and names of damaged inodes come without an `Entry`.
    pub fn readdirplus(
        &self,
        ino: Ino,
        cookie: u64,
        emit: &mut dyn FnMut(&DirEntry<'_>, Option<&Entry>) -> bool,
    ) -> Result<()> {
        let mut failed = None;
        self.readdir(ino, cookie, &mut |dirent| {
            if dirent.cookie < PLACE_MIN {
                return emit(dirent, None);
            }
            let entry = match self.entry_of(dirent.ino.0, dirent.name) {
                Ok(entry) => Some(entry),
                Err(FsError::Stale) => None,
                // A lookup of the name reports the damage.
                Err(error) if error.is_damage() => None,
                Err(error) => {
                    failed = Some(error);
                    return false;
                }
            };
            let told = emit(dirent, entry.as_ref());
            if !told && entry.is_some() {
                self.forget(dirent.ino, 1);
            }
            told
        })?;
        failed.map_or(Ok(()), Err)
    }
}

/// As [`check_name`], for a name to be made: `Exists` for `.` and `..`, which exist everywhere.
pub(crate) fn check_new_name(name: &[u8]) -> Result<()> {
    if name == b"." || name == b".." { Err(FsError::Exists) } else { check_name(name) }
}

/// Enters `name` into directory `ino` (`dir`) at `place`.
pub(crate) fn add_entry(
    ino: u64,
    dir: &mut Inode,
    place: u64,
    name: &[u8],
    pointee: Pointee,
    now: crate::types::Time,
    changes: &mut Vec<Change<'_>>,
) -> Result<()> {
    if pointee.kind == FileKind::Directory {
        if dir.nlink >= LINK_MAX {
            return Err(FsError::TooManyLinks);
        }
        dir.nlink += 1;
    }
    dir.entries += 1;
    dir.displaced += u32::from(is_displaced(place));
    dir.size += entry_bytes(name);
    dir.mtime = now;
    dir.ctime = now;
    changes.push(Change::Put(Key::new(ino, kind::ENTRY, place), join(name, &pointee.encode())));
    Ok(())
}

/// Takes `name` at `place` out of directory `ino` (`dir`).
pub(crate) fn remove_entry(
    ino: u64,
    dir: &mut Inode,
    place: u64,
    name: &[u8],
    pointee: Pointee,
    now: crate::types::Time,
    changes: &mut Vec<Change<'_>>,
) {
    if pointee.kind == FileKind::Directory {
        dir.nlink = dir.nlink.saturating_sub(1);
    }
    dir.entries = dir.entries.saturating_sub(1);
    dir.displaced = dir.displaced.saturating_sub(u32::from(is_displaced(place)));
    dir.size = dir.size.saturating_sub(entry_bytes(name));
    dir.mtime = now;
    dir.ctime = now;
    changes.push(Change::Delete(Key::new(ino, kind::ENTRY, place)));
}

/// Returns the bytes of an entry's value; a directory's size is the sum of these.
pub(crate) fn entry_bytes(name: &[u8]) -> u64 {
    (1 + name.len() + POINTEE_BYTES) as u64
}

fn remember_name(node: &Node, name: &[u8]) {
    if let Ok(text) = std::str::from_utf8(name) {
        let mut hint = node.name_hint.lock();
        if hint.as_deref() != Some(text) {
            *hint = Some(text.into());
        }
    }
}
