//! Directories: looking up, listing, and making new inodes in them.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use pagefold_engine::dataset::Change;
use pagefold_engine::dataset::journal::note_result;
use pagefold_engine::types::Key;

use crate::acl::Which;
use crate::attr::{has_sgid, with_sgid};
use crate::codec::{Inode, POINTEE_BYTES, Pointee, flag, kind};
use crate::error::{FsError, Result};
use crate::fs::Fs;
use crate::inode::{Node, Txn};
use crate::limits::{LINK_MAX, NAME_MAX, READDIR_BATCH, TARGET_MAX};
use crate::named::{PLACE_MIN, Probe, check_name, is_displaced, join, split};
use crate::orphan;
use crate::types::{Attr, Caller, DirEntry, Entry, FileKind, Ino, OpenFlags};

/// Generation of every inode: one is enough, since inode numbers are never used twice.
const GENERATION: u64 = 1;

/// Cookies of `.` and `..`. The cookie of any other entry is its place, [`PLACE_MIN`] or more.
const COOKIE_DOT: u64 = 1;
const COOKIE_DOTDOT: u64 = 2;
const _: () = assert!(COOKIE_DOTDOT < PLACE_MIN);

/// Permissions of symbolic links.
const SYMLINK_PERM: u16 = 0o777;

/// Properties of an inode to be made.
struct New<'a> {
    kind: FileKind,
    perm: u32,
    rdev: u32,
    target: &'a [u8],
    opens: u64,
}

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

    /// Returns the answer to a call that an earlier process carried out but did not answer: the inode that the call
    /// made, named or opened, as it is now. Counts as one reference, and with `open` as one open. If `made` is `None`,
    /// the inode is not known, and is looked up.
    ///
    /// Errors: as of [`Fs::lookup`].
    pub fn entry_again(&self, made: Option<Ino>, parent: Ino, name: &[u8], open: bool) -> Result<Entry> {
        let entry = match made {
            Some(ino) => self.entry_of(ino.0, name)?,
            None => self.lookup(parent, name)?,
        };
        if open {
            self.node(entry.ino)?.add_open();
        }
        Ok(entry)
    }

    /// Makes a regular file, fifo, socket or device; does not open it.
    pub fn mknod(
        &self,
        parent: Ino,
        name: &[u8],
        kind: FileKind,
        perm: u32,
        rdev: u32,
        caller: &Caller,
    ) -> Result<Entry> {
        if matches!(kind, FileKind::Directory | FileKind::Symlink) {
            return Err(FsError::Invalid("mknod makes no directories or symbolic links"));
        }
        let is_device = matches!(kind, FileKind::CharDevice | FileKind::BlockDevice);
        let rdev = if is_device { rdev } else { 0 };
        self.make(parent, name, &New { kind, perm, rdev, target: &[], opens: 0 }, caller)
    }

    /// Makes a directory.
    pub fn mkdir(&self, parent: Ino, name: &[u8], perm: u32, caller: &Caller) -> Result<Entry> {
        self.make(
            parent,
            name,
            &New { kind: FileKind::Directory, perm, rdev: 0, target: &[], opens: 0 },
            caller,
        )
    }

    /// Makes a symbolic link. Errors: `Invalid` for an empty target, `NameTooLong` for one beyond 4095 bytes.
    pub fn symlink(&self, parent: Ino, name: &[u8], target: &[u8], caller: &Caller) -> Result<Entry> {
        if target.len() > TARGET_MAX {
            return Err(FsError::NameTooLong);
        }
        if target.is_empty() || target.contains(&0) {
            return Err(FsError::Invalid("a link's target is empty or contains a zero byte"));
        }
        let perm = u32::from(SYMLINK_PERM);
        self.make(parent, name, &New { kind: FileKind::Symlink, perm, rdev: 0, target, opens: 0 }, caller)
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

    /// Makes (or, unless exclusive, finds) a regular file and opens it: one reference and one open.
    pub fn create(
        &self,
        parent: Ino,
        name: &[u8],
        perm: u32,
        flags: OpenFlags,
        caller: &Caller,
    ) -> Result<Entry> {
        let new = New { kind: FileKind::Regular, perm, rdev: 0, target: &[], opens: 1 };
        loop {
            match self.make(parent, name, &new, caller) {
                Err(FsError::Exists) if !flags.exclusive => {}
                other => return other,
            }
            // The file exists: it is opened, unless it is gone by now.
            let found = match self.lookup(parent, name) {
                Ok(found) => found,
                Err(FsError::NotFound) => continue,
                Err(other) => return Err(other),
            };
            note_result(found.ino.0);
            match self.open(found.ino, flags) {
                Ok(attr) => return Ok(Entry { attr, ..found }),
                Err(error) => {
                    self.forget(found.ino, 1);
                    return Err(error);
                }
            }
        }
    }

    /// Makes a regular file without a name and opens it (O_TMPFILE): one reference and one open. [`Fs::link`] names it.
    pub fn tmpfile(&self, parent: Ino, perm: u32, caller: &Caller) -> Result<Entry> {
        self.writable()?;
        let ino = self.new_id()?;
        let dir = self.node(parent)?;
        let txn = Txn::lock(&[&dir]);
        let parent_inode = txn.get(parent.0)?;
        self.want_live_dir(parent_inode)?;
        let new = New { kind: FileKind::Regular, perm, rdev: 0, target: &[], opens: 1 };
        let mut changes = vec![orphan::put_inode(ino)];
        let mut inode = self.new_inode(ino, parent.0, parent_inode, &new, caller, &mut changes)?;
        inode.nlink = 0;
        inode.set(flag::TMPFILE, true);
        changes.push(inode.put(ino));
        let attr = self.attr(ino, &inode)?;
        // The inode is in use before it is on the list of orphans: otherwise it might be reaped at once.
        let node = self.nodes.insert(ino, inode, 1);
        note_result(ino);
        if let Err(error) = self.dataset.apply(&changes) {
            node.drop_open();
            node.drop_lookups(1);
            drop(node);
            self.nodes.retire(ino, true);
            return Err(error.into());
        }
        Ok(Entry { ino: Ino(ino), generation: GENERATION, attr })
    }

    fn make(&self, parent: Ino, name: &[u8], new: &New<'_>, caller: &Caller) -> Result<Entry> {
        self.writable()?;
        check_new_name(name)?;
        let dir = self.node(parent)?;
        let mut txn = Txn::lock(&[&dir]);
        self.want_live_dir(txn.get(parent.0)?)?;
        let Probe::Vacant { place } = self.probe_entry(parent.0, txn.get(parent.0)?, name)? else {
            return Err(FsError::Exists);
        };
        let ino = self.new_id()?;
        let mut changes = Vec::with_capacity(6);
        let inode = self.new_inode(ino, parent.0, txn.get(parent.0)?, new, caller, &mut changes)?;
        changes.push(inode.put(ino));
        let pointee = Pointee { ino, kind: new.kind };
        add_entry(parent.0, txn.edit(parent.0)?, place, name, pointee, inode.ctime, &mut changes)?;
        let attr = self.attr(ino, &inode)?;
        note_result(ino);
        txn.commit(self.dataset(), changes)?;
        // Another call may have found the name already, so that the inode is in the cache: then that node is used.
        let node = self.nodes.insert(ino, inode, new.opens);
        if new.kind == FileKind::Regular {
            remember_name(&node, name);
        }
        Ok(Entry { ino: Ino(ino), generation: GENERATION, attr })
    }

    /// Returns a new inode in `dir`, with what it inherits. Adds to `changes` the values that belong to it besides the
    /// inode itself.
    fn new_inode(
        &self,
        ino: u64,
        parent: u64,
        dir: &Inode,
        new: &New<'_>,
        caller: &Caller,
        changes: &mut Vec<Change<'_>>,
    ) -> Result<Inode> {
        let mut inode = Inode::new(new.kind, (new.perm & 0o7777) as u16, self.now());
        inode.uid = caller.uid;
        inode.gid = caller.gid;
        inode.rdev = new.rdev;
        let is_dir = new.kind == FileKind::Directory;
        if is_dir || new.kind == FileKind::Regular {
            inode.compression = dir.compression;
        }
        if is_dir {
            inode.object = parent;
        }
        if has_sgid(dir.perm) {
            inode.gid = dir.gid;
            if is_dir {
                inode.perm = with_sgid(inode.perm);
            }
        }
        if new.kind == FileKind::Symlink {
            inode.size = new.target.len() as u64;
            changes.push(Change::Put(Key::new(ino, kind::TARGET, 0), new.target.to_vec()));
            return Ok(inode);
        }
        let Some(default) = self.default_acl(parent, dir)? else {
            inode.perm &= !((caller.umask & 0o777) as u16);
            return Ok(inode);
        };
        let (access, perm) = default.inherit(inode.perm);
        inode.perm = perm;
        if !access.is_minimal() {
            inode.set(flag::ACL_ACCESS, true);
            changes.push(Change::Put(Which::Access.key(ino), access.encode()));
        }
        if is_dir {
            inode.set(flag::ACL_DEFAULT, true);
            changes.push(Change::Put(Which::Default.key(ino), default.encode()));
        }
        Ok(inode)
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
        let next = last.map_or(behind, |(last, _)| Some(Key { offset: last.offset + 1, ..*last }));
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
