//! Changing names: link, unlink, rmdir, rename.
//!
//! Inodes are locked in the order of their numbers, so it must be known beforehand which inode a name points to. So
//! names are looked up first, everything is locked, and the names are looked up again; if they changed meanwhile, all
//! of this is repeated.

use std::sync::Arc;

use pagefold_engine::dataset::Change;
use pagefold_engine::dataset::journal::note_result;
use pagefold_engine::types::Key;

use crate::codec::{Inode, Pointee, flag, kind};
use crate::dir::{add_entry, check_new_name, remove_entry};
use crate::error::{FsError, Result};
use crate::fs::Fs;
use crate::inode::{Node, Txn};
use crate::limits::LINK_MAX;
use crate::named::{Probe, check_name, join};
use crate::orphan;
use crate::types::{Entry, FileKind, Ino, RenameMode, Time};

/// A name in a directory, its place, and the inode that was found there, if any.
struct EntrySlot<'a> {
    dir: u64,
    name: &'a [u8],
    place: u64,
    pointee: Option<Pointee>,
}

impl Fs {
    /// Gives an inode one more name, or a [`Fs::tmpfile`] its first.
    ///
    /// Errors: `NotPermitted` for directories, `TooManyLinks`, `Exists`, `NotFound` for an inode that was unlinked.
    pub fn link(&self, ino: Ino, parent: Ino, name: &[u8]) -> Result<Entry> {
        self.with_space(|| self.link_once(ino, parent, name))
    }

    fn link_once(&self, ino: Ino, parent: Ino, name: &[u8]) -> Result<Entry> {
        self.writable()?;
        check_new_name(name)?;
        let (node, dir) = (self.node(ino)?, self.node(parent)?);
        if node.snapshot().kind == FileKind::Directory {
            return Err(FsError::NotPermitted);
        }
        let mut txn = Txn::lock(&[&node, &dir]);
        self.want_live_dir(txn.get(parent.0)?)?;
        let Probe::Vacant { place } = self.probe_entry(parent.0, txn.get(parent.0)?, name)? else {
            return Err(FsError::Exists);
        };
        let now = self.now();
        let mut changes = Vec::with_capacity(4);
        let inode = txn.edit(ino.0)?;
        match inode.nlink {
            0 if inode.has(flag::TMPFILE) => changes.push(orphan::delete_inode(ino.0)),
            0 => return Err(FsError::NotFound),
            LINK_MAX.. => return Err(FsError::TooManyLinks),
            _ => {}
        }
        inode.nlink += 1;
        inode.set(flag::TMPFILE, false);
        inode.ctime = now;
        let pointee = Pointee { ino: ino.0, kind: inode.kind };
        add_entry(parent.0, txn.edit(parent.0)?, place, name, pointee, now, &mut changes)?;
        note_result(ino.0);
        txn.commit(self.dataset(), changes)?;
        drop(txn);
        self.entry_of(ino.0, name)
    }

    /// Removes a name that is not a directory's. Errors: `NotFound`, `IsADirectory`.
    pub fn unlink(&self, parent: Ino, name: &[u8]) -> Result<()> {
        self.remove(parent, name, false)
    }

    /// Removes an empty directory. Errors: `NotFound`, `NotADirectory`, `NotEmpty`.
    pub fn rmdir(&self, parent: Ino, name: &[u8]) -> Result<()> {
        self.remove(parent, name, true)
    }

    fn remove(&self, parent: Ino, name: &[u8], directory: bool) -> Result<()> {
        self.writable()?;
        check_name(name)?;
        let dir = self.node(parent)?;
        loop {
            let found = self.find(&dir, name)?.ok_or(FsError::NotFound)?;
            match (found.kind == FileKind::Directory, directory) {
                (true, false) => return Err(FsError::IsADirectory),
                (false, true) => return Err(FsError::NotADirectory),
                _ => {}
            }
            let Some(child) = self.node_of(found)? else { continue };
            let mut txn = Txn::lock(&[&dir, &child]);
            let at = self.name_at(&txn, parent, name)?;
            if at.pointee != Some(found) {
                continue;
            }
            let now = self.now();
            let mut changes = Vec::with_capacity(4);
            drop_link(child.ino, txn.edit(child.ino)?, now, &mut changes)?;
            remove_entry(parent.0, txn.edit(parent.0)?, at.place, name, found, now, &mut changes);
            txn.commit(self.dataset(), changes)?;
            drop(txn);
            drop(child);
            self.note_orphan();
            return Ok(());
        }
    }

    /// Moves a name.
    ///
    /// Errors: `NotFound`; `Exists` for `NoReplace` with a target; `NotEmpty`, `IsADirectory`, `NotADirectory` where the
    /// target does not fit; `Invalid` for moving a directory below itself.
    pub fn rename(
        &self,
        parent: Ino,
        name: &[u8],
        new_parent: Ino,
        new_name: &[u8],
        mode: RenameMode,
    ) -> Result<()> {
        self.with_space(|| self.rename_once(parent, name, new_parent, new_name, mode))
    }

    fn rename_once(
        &self,
        parent: Ino,
        name: &[u8],
        new_parent: Ino,
        new_name: &[u8],
        mode: RenameMode,
    ) -> Result<()> {
        self.writable()?;
        check_name(name)?;
        check_name(new_name)?;
        let (old_dir, new_dir) = (self.node(parent)?, self.node(new_parent)?);
        loop {
            let source = self.find(&old_dir, name)?.ok_or(FsError::NotFound)?;
            let target = self.find(&new_dir, new_name)?;
            let is_dir = |p: Pointee| p.kind == FileKind::Directory;
            // Only if a directory changes its parent must the directories above others stay as they are.
            let moves_dir = parent != new_parent && (is_dir(source) || target.is_some_and(is_dir));
            let _tree = moves_dir.then(|| self.rename_lock.lock());
            if moves_dir {
                self.refuse_cycle(source, new_parent.0)?;
                if let (Some(target), RenameMode::Exchange) = (target, mode) {
                    self.refuse_cycle(target, parent.0)?;
                }
            }
            let Some(source_node) = self.node_of(source)? else { continue };
            let target_node = match target.map(|t| self.node_of(t)).transpose()? {
                Some(None) => continue,
                Some(node) => node,
                None => None,
            };
            let mut nodes: Vec<&Node> = vec![&old_dir, &new_dir, &source_node];
            nodes.extend(target_node.as_deref());
            let mut txn = Txn::lock(&nodes);
            let from = self.name_at(&txn, parent, name)?;
            let to = self.name_at(&txn, new_parent, new_name)?;
            if from.pointee != Some(source) || to.pointee != target {
                continue;
            }
            self.want_live_dir(txn.get(new_parent.0)?)?;
            let mut changes = Vec::with_capacity(8);
            let now = self.now();
            match (target, mode) {
                (Some(_), RenameMode::NoReplace) => return Err(FsError::Exists),
                (None, RenameMode::Exchange) => return Err(FsError::NotFound),
                // If both are names of one inode, POSIX has both stay.
                (Some(target), _) if target.ino == source.ino => return Ok(()),
                (Some(target), RenameMode::Exchange) => {
                    exchange(&mut txn, &from, &to, source, target, now, &mut changes)?;
                }
                _ => move_name(&mut txn, &from, &to, source, target, now, &mut changes)?,
            }
            txn.commit(self.dataset(), changes)?;
            drop(txn);
            if target.is_some() {
                self.note_orphan();
            }
            return Ok(());
        }
    }

    /// Returns the node that an entry points to; `None` if the inode is gone by now, so that the name has to be looked
    /// up again.
    fn node_of(&self, pointee: Pointee) -> Result<Option<Arc<Node>>> {
        match self.nodes.get(self.dataset(), pointee.ino) {
            Ok(node) => Ok(Some(node)),
            Err(FsError::Stale) => Ok(None),
            Err(other) => Err(other),
        }
    }

    /// Looks `name` up in a locked directory.
    fn name_at<'a>(&self, txn: &Txn<'_>, dir: Ino, name: &'a [u8]) -> Result<EntrySlot<'a>> {
        let inode = txn.get(dir.0)?;
        self.want_dir(inode)?;
        Ok(match self.probe_entry(dir.0, inode, name)? {
            Probe::Found { place, payload } => {
                EntrySlot { dir: dir.0, name, place, pointee: Some(Pointee::decode(dir.0, &payload)?) }
            }
            Probe::Vacant { place } => EntrySlot { dir: dir.0, name, place, pointee: None },
        })
    }

    /// Errors with `Invalid` if `dir` is `moved` or lies below it. The rename lock is held.
    ///
    /// A forged image may have directories that lie below themselves: one of those that were passed is kept in mind, twice
    /// as long each time.
    fn refuse_cycle(&self, moved: Pointee, dir: u64) -> Result<()> {
        if moved.kind != FileKind::Directory {
            return Ok(());
        }
        let (mut at, mut passed, mut steps, mut patience) = (dir, dir, 0_u64, 1_u64);
        while at != Ino::ROOT.0 {
            if at == moved.ino {
                return Err(FsError::Invalid("a directory cannot be moved below itself"));
            }
            at = self.node(Ino(at))?.snapshot().object;
            if at == passed {
                let detail = "it lies below itself".to_owned();
                return Err(FsError::Corrupt { ino: at, what: "directory", detail });
            }
            steps += 1;
            if steps == patience {
                (passed, steps, patience) = (at, 0, patience.saturating_mul(2));
            }
        }
        Ok(())
    }
}

/// Takes one name away from an inode; without a name the inode becomes an orphan.
fn drop_link(ino: u64, inode: &mut Inode, now: Time, changes: &mut Vec<Change<'_>>) -> Result<()> {
    if inode.kind == FileKind::Directory {
        if inode.entries != 0 {
            return Err(FsError::NotEmpty);
        }
        inode.nlink = 0;
    } else {
        inode.nlink = inode.nlink.saturating_sub(1);
    }
    inode.ctime = now;
    if inode.nlink == 0 {
        changes.push(orphan::put_inode(ino));
    }
    Ok(())
}

/// Moves `source` from one name to the other, in place of `target`.
fn move_name(
    txn: &mut Txn<'_>,
    from: &EntrySlot<'_>,
    to: &EntrySlot<'_>,
    source: Pointee,
    target: Option<Pointee>,
    now: Time,
    changes: &mut Vec<Change<'_>>,
) -> Result<()> {
    // The old name goes last: a lookup meanwhile finds the inode under at least one of the two names.
    let mut removal = Vec::new();
    if let Some(target) = target {
        match (source.kind == FileKind::Directory, target.kind == FileKind::Directory) {
            (true, false) => return Err(FsError::NotADirectory),
            (false, true) => return Err(FsError::IsADirectory),
            _ => {}
        }
        drop_link(target.ino, txn.edit(target.ino)?, now, changes)?;
        repoint(txn.edit(to.dir)?, to, target, source, now, changes)?;
        remove_entry(from.dir, txn.edit(from.dir)?, from.place, from.name, source, now, &mut removal);
    } else {
        remove_entry(from.dir, txn.edit(from.dir)?, from.place, from.name, source, now, &mut removal);
        add_entry(to.dir, txn.edit(to.dir)?, to.place, to.name, source, now, changes)?;
    }
    changes.append(&mut removal);
    adopt(txn, source, to.dir, now)
}

/// Lets the two names point to each other's inodes; both stay where they are.
fn exchange(
    txn: &mut Txn<'_>,
    a: &EntrySlot<'_>,
    b: &EntrySlot<'_>,
    at_a: Pointee,
    at_b: Pointee,
    now: Time,
    changes: &mut Vec<Change<'_>>,
) -> Result<()> {
    repoint(txn.edit(a.dir)?, a, at_a, at_b, now, changes)?;
    repoint(txn.edit(b.dir)?, b, at_b, at_a, now, changes)?;
    adopt(txn, at_a, b.dir, now)?;
    adopt(txn, at_b, a.dir, now)
}

/// Lets a name in `dir` point to `new` in place of `old`: one value is replaced, so that a lookup meanwhile finds one
/// or the other.
fn repoint(
    dir: &mut Inode,
    at: &EntrySlot<'_>,
    old: Pointee,
    new: Pointee,
    now: Time,
    changes: &mut Vec<Change<'_>>,
) -> Result<()> {
    match (old.kind == FileKind::Directory, new.kind == FileKind::Directory) {
        (true, false) => dir.nlink = dir.nlink.saturating_sub(1),
        (false, true) if dir.nlink >= LINK_MAX => return Err(FsError::TooManyLinks),
        (false, true) => dir.nlink += 1,
        _ => {}
    }
    dir.mtime = now;
    dir.ctime = now;
    changes.push(Change::Put(Key::new(at.dir, kind::ENTRY, at.place), join(at.name, &new.encode())));
    Ok(())
}

/// Updates a moved inode: its change time, and the parent of a directory.
fn adopt(txn: &mut Txn<'_>, moved: Pointee, dir: u64, now: Time) -> Result<()> {
    let inode = txn.edit(moved.ino)?;
    inode.ctime = now;
    if moved.kind == FileKind::Directory {
        inode.object = dir;
    }
    Ok(())
}
