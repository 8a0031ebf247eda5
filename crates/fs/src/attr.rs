//! Attributes: getattr, setattr, access times.

use std::sync::Arc;

use pagefold_engine::dataset::Change;
use pagefold_engine::dataset::journal::aside;

use crate::acl;
use crate::codec::{Inode, flag, kind};
use crate::error::{FsError, Result};
use crate::fs::Fs;
use crate::inode::{Node, Txn};
use crate::limits::{RELATIME_SECS, TIMES_MAX};
use crate::named::Probe;
use crate::options::AtimePolicy;
use crate::perm::without_set_id;
use crate::types::{Attr, FileKind, Ino, SetAttr, SetTime, Time};

impl Fs {
    /// Returns the attributes of an inode.
    pub fn getattr(&self, ino: Ino) -> Result<Attr> {
        let inode = self.node(ino)?.snapshot();
        self.attr(ino.0, &inode)
    }

    /// Changes attributes, all or none, and returns the new ones.
    ///
    /// Errors: `IsADirectory` or `Invalid` for the size of an inode that is not a file; `TooBig`, `NoSpace`,
    /// `ReadOnly`.
    pub fn setattr(&self, ino: Ino, set: &SetAttr) -> Result<Attr> {
        self.with_space(|| self.setattr_once(ino, set))
    }

    fn setattr_once(&self, ino: Ino, set: &SetAttr) -> Result<Attr> {
        self.writable()?;
        let node = self.node(ino)?;
        let mut txn = Txn::lock(&[&node]);
        if set.size.is_some() {
            self.bound_freeing(txn.locked(ino.0)?)?;
        }
        let now = self.now();
        let mut changes = Vec::new();
        let inode = txn.edit(ino.0)?;
        let before = inode.object;
        if let Some(size) = set.size {
            self.want_file(inode)?;
            self.resize(ino.0, inode, size, &mut changes)?;
            inode.mtime = now;
            self.kill_privileges(ino.0, inode, set.kill_suid, &mut changes)?;
        }
        // A call that sets nothing is chown(2) without owner and group: on Linux it counts as a change.
        if set.uid.is_some() || set.gid.is_some() || *set == SetAttr::default() {
            inode.uid = set.uid.unwrap_or(inode.uid);
            inode.gid = set.gid.unwrap_or(inode.gid);
            if inode.kind != FileKind::Directory {
                self.kill_privileges(ino.0, inode, true, &mut changes)?;
            }
        }
        if let Some(mode) = set.mode {
            inode.perm = (mode & 0o7777) as u16;
            if inode.has(flag::ACL_ACCESS) {
                let mut access = self.stored_acl(ino.0, acl::Which::Access)?;
                access.chmod(inode.perm);
                changes.push(Change::Put(acl::Which::Access.key(ino.0), access.encode()));
            }
        }
        set_time(&mut inode.atime, set.atime, now);
        set_time(&mut inode.mtime, set.mtime, now);
        match set.ctime {
            SetTime::Omit => inode.ctime = now,
            other => set_time(&mut inode.ctime, other, now),
        }
        let orphaned = (before != 0 && before != inode.object) || !inode.freeing.is_empty();
        let attr_of = inode.clone();
        txn.commit(self.dataset(), changes)?;
        drop(txn);
        if orphaned {
            self.note_orphan();
        }
        self.attr(ino.0, &attr_of)
    }

    /// Takes away the privileges that a change of the contents or the owner ends: capabilities always, set-id bits if
    /// `suid`.
    pub(crate) fn kill_privileges(
        &self,
        ino: u64,
        inode: &mut Inode,
        suid: bool,
        changes: &mut Vec<Change<'_>>,
    ) -> Result<()> {
        if suid {
            inode.perm = without_set_id(inode.perm);
        }
        if inode.has(flag::CAPS) {
            let name = crate::xattr::CAPABILITY;
            if let Probe::Found { place, .. } =
                self.places.probe(self.dataset(), ino, kind::XATTR, true, name)?
            {
                changes.push(Change::Delete(pagefold_engine::Key::new(ino, kind::XATTR, place)));
                inode.xattr_bytes = inode.xattr_bytes.saturating_sub(name.len() as u32 + 1);
            }
            inode.set(flag::CAPS, false);
        }
        Ok(())
    }

    /// Notes that `node`, seen as `inode`, was read. The access time changes in memory only; see [`Fs::flush_times`].
    pub(crate) fn touch(&self, node: &Arc<Node>, inode: &Inode) {
        if self.is_read_only() || self.has_atime(AtimePolicy::Never) {
            return;
        }
        let now = self.now();
        if self.has_atime(AtimePolicy::Relative) && !is_atime_stale(inode, now) {
            return;
        }
        let mut cached = node.cached.write();
        cached.inode.atime = now;
        if !std::mem::replace(&mut cached.atime_dirty, true) {
            self.atimes.lock().insert(node.ino);
        }
    }

    /// Writes access times that so far are only in memory. Called in the background every few seconds and before
    /// unmounting.
    ///
    /// Errors: the first that was met; all other times are written.
    pub fn flush_times(&self) -> Result<()> {
        let dirty = std::mem::take(&mut *self.atimes.lock());
        let mut flushed = Ok(());
        for node in dirty.into_iter().filter_map(|ino| self.nodes.peek(ino)) {
            flushed = flushed.and(self.flush_time(&node));
        }
        flushed
    }

    /// Returns true if so many access times wait to be written that [`Fs::flush_times`] is due: their inodes cannot
    /// leave the memory.
    pub fn are_times_due(&self) -> bool {
        self.atimes.lock().len() >= TIMES_MAX
    }

    /// Writes the access time of one inode. If the pool is full, the time stays in memory, or is given up if many wait:
    /// the caller must not fail because of it. If it cannot be written for another reason, it is given up, because the
    /// inode could never leave the memory.
    pub(crate) fn flush_time(&self, node: &Arc<Node>) -> Result<()> {
        if !node.cached.read().atime_dirty {
            return Ok(());
        }
        // No request asks for this: one during which it is done neither counts as carried out nor loses its result.
        match aside(|| Txn::lock(&[node]).commit(self.dataset(), Vec::new())) {
            Err(FsError::NoSpace(_)) => {
                let mut waiting = self.atimes.lock();
                if waiting.len() < TIMES_MAX {
                    waiting.insert(node.ino);
                } else {
                    drop(waiting);
                    node.cached.write().atime_dirty = false;
                }
                Ok(())
            }
            Err(error) => {
                node.cached.write().atime_dirty = false;
                Err(error)
            }
            Ok(()) => Ok(()),
        }
    }
}

fn set_time(field: &mut Time, set: SetTime, now: Time) {
    match set {
        SetTime::Omit => {}
        SetTime::Now => *field = now,
        SetTime::Set(time) => *field = Time { secs: time.secs, nanos: time.nanos.min(999_999_999) },
    }
}

/// Returns true if relatime renews the access time: it is not newer than the last change, or is a day old.
fn is_atime_stale(inode: &Inode, now: Time) -> bool {
    inode.atime <= inode.mtime
        || inode.atime <= inode.ctime
        || now.secs.saturating_sub(inode.atime.secs) >= RELATIME_SECS
}
