//! Makes new inodes in directories.

use pagefold_engine::dataset::Change;
use pagefold_engine::dataset::journal::note_result;
use pagefold_engine::types::Key;

use super::{GENERATION, add_entry, check_new_name, remember_name};
use crate::acl::Which;
use crate::codec::{Inode, Pointee, flag, kind};
use crate::error::{FsError, Result};
use crate::fs::Fs;
use crate::inode::Txn;
use crate::limits::TARGET_MAX;
use crate::named::Probe;
use crate::orphan;
use crate::perm::{has_sgid, with_sgid};
use crate::types::{Caller, Entry, FileKind, Ino, OpenFlags};

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

impl Fs {
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

    /// Opens a file that [`Fs::tmpfile`] made for an earlier process, which did not answer. Neither a name nor the kernel
    /// leads to that file before the answer, so this open alone keeps it. Must be called before [`Fs::ask_kernel`].
    pub fn open_again(&self, made: Ino) -> Result<()> {
        self.node(made).map(|node| node.add_open())
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
        self.with_space(|| self.tmpfile_once(parent, perm, caller))
    }

    fn tmpfile_once(&self, parent: Ino, perm: u32, caller: &Caller) -> Result<Entry> {
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
        self.with_space(|| self.make_once(parent, name, new, caller))
    }

    fn make_once(&self, parent: Ino, name: &[u8], new: &New<'_>, caller: &Caller) -> Result<Entry> {
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
}
