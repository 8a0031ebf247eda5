//! The mounted file system, and the state that all calls share. The calls themselves are in the modules beside this
//! one.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::Mutex;

use pagefold_engine::dataset::journal::aside;
use pagefold_engine::dataset::{Caller, Change, Dataset, Reaper, accepted_bytes};
use pagefold_engine::limits::RECORDSIZE_DEFAULT;

use crate::codec::{COUNTER_KEY, HEADER_KEY, Header, Inode, decode_counter, flag, is_recordsize};
use crate::error::{FsError, Result};
use crate::inode::{Node, Nodes};
use crate::limits::{ID_BATCH, NAME_MAX, STATFS_BLOCK_BYTES};
use crate::named::Places;
use crate::options::{AtimePolicy, FormatOptions, FsOptions, KernelHolds};
use crate::types::{Attr, Clock, FileKind, Ino, StatFs, Time};

/// A mounted file system; shared by any number of threads.
///
/// Each call that changes something is one [`Dataset::apply`]: after a crash it has happened as a whole or not at all.
pub struct Fs {
    pub(crate) dataset: Arc<dyn Dataset>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) options: FsOptions,
    /// True if every change is refused; begins as [`FsOptions::read_only`].
    read_only: AtomicBool,
    /// An [`AtimePolicy`] as a number; begins as [`FsOptions::atime`].
    atime: AtomicU8,
    pub(crate) places: Places,
    pub(crate) nodes: Nodes,
    ids: Mutex<Ids>,
    /// Held while a directory moves into another one: the directories above any directory stay the same meanwhile.
    pub(crate) rename_lock: Mutex<()>,
    /// True if there may be orphans that can be reaped.
    pub(crate) orphans: AtomicBool,
    /// Held while orphans are reaped: they are reaped by one thread at a time.
    pub(crate) reaping: Mutex<()>,
    /// Objects that reaping leaves alone.
    pub(crate) spared: Mutex<HashSet<u64>>,
    /// True once a listing has left out names that cannot be read.
    pub(crate) passed_damage: AtomicBool,
    /// Inodes with access times newer than those in the dataset.
    pub(crate) atimes: Mutex<HashSet<u64>>,
    /// Asks the kernel whether it still refers to an unlinked inode, before that is removed; unset if references are
    /// counted.
    pub(crate) holds: OnceLock<KernelHolds>,
}

/// Numbers for inodes and objects: `next..reserved` may be handed out.
struct Ids {
    next: u64,
    reserved: u64,
}

impl Fs {
    /// Makes an empty file system in `dataset`.
    ///
    /// Errors: `Exists` if the dataset holds a file system already.
    pub fn format(dataset: &dyn Dataset, clock: &dyn Clock, options: &FormatOptions) -> Result<()> {
        if dataset.get(&HEADER_KEY)?.is_some() {
            return Err(FsError::Exists);
        }
        let now = clock.now();
        let mut root = Inode::new(FileKind::Directory, options.perm, now);
        root.uid = options.uid;
        root.gid = options.gid;
        root.object = Ino::ROOT.0;
        let header = Header { seed: options.seed, formatted: now };
        dataset.apply(&[
            Change::Put(HEADER_KEY, header.encode()),
            Change::Put(COUNTER_KEY, (Ino::ROOT.0 + 1).to_le_bytes().to_vec()),
            root.put(Ino::ROOT.0),
        ])?;
        Ok(())
    }

    /// Opens the file system in `dataset`, which must not be opened twice at a time. Orphans that a crash left are
    /// removed by [`Fs::reap`], also when a change of any dataset of the pool finds no space.
    ///
    /// Errors: `NotFound` if the dataset holds no file system, `Invalid` for a recordsize that cannot be, `Corrupt` for
    /// a damaged header or counter.
    pub fn mount(dataset: Arc<dyn Dataset>, clock: Arc<dyn Clock>, options: FsOptions) -> Result<Arc<Self>> {
        Self::mount_with(dataset, clock, options, Places::new)
    }

    /// As [`Fs::mount`]; `places` returns the places of names from the seed of their hashes.
    pub(crate) fn mount_with(
        dataset: Arc<dyn Dataset>,
        clock: Arc<dyn Clock>,
        options: FsOptions,
        places: impl FnOnce(u64) -> Places,
    ) -> Result<Arc<Self>> {
        if options.recordsize.is_some_and(|bytes| !is_recordsize(bytes)) {
            return Err(FsError::Invalid("the recordsize is not a power of two from 4 KiB to 1 MiB"));
        }
        let header = Header::decode(&dataset.get(&HEADER_KEY)?.ok_or(FsError::NotFound)?)?;
        let next = decode_counter(&dataset.get(&COUNTER_KEY)?.ok_or(FsError::NotFound)?)?;
        if next <= Ino::ROOT.0 {
            return Err(FsError::Corrupt { ino: 0, what: "inode counter", detail: format!("it is {next}") });
        }
        let fs = Arc::new(Self {
            dataset,
            clock,
            // A read-only mount removes nothing, so it need not count references; and those from before cannot be counted.
            nodes: Nodes::new(!options.read_only && !options.resumed, options.inodes.clone()),
            read_only: AtomicBool::new(options.read_only),
            atime: AtomicU8::new(options.atime as u8),
            options,
            places: places(header.seed),
            ids: Mutex::new(Ids { next, reserved: next }),
            rename_lock: Mutex::new(()),
            orphans: AtomicBool::new(true),
            reaping: Mutex::new(()),
            spared: Mutex::new(HashSet::new()),
            passed_damage: AtomicBool::new(false),
            atimes: Mutex::new(HashSet::new()),
            holds: OnceLock::new(),
        });
        let root = fs.node(Ino::ROOT)?;
        fs.want_dir(&root.snapshot())?;
        if let Some(reapers) = fs.dataset.reapers() {
            let reaper: Weak<dyn Reaper> = Arc::downgrade(&fs) as _;
            reapers.add(reaper);
        }
        Ok(fs)
    }

    /// Stops counting references, so that inodes which the kernel knows need not be kept in memory. From now on, before
    /// an unlinked file that is not open is removed, `holds` is asked whether the kernel still refers to it. Must be
    /// called before the kernel's first call, even if that is a kernel that knows inodes from a process that died
    /// ([`FsOptions::resumed`]).
    ///
    /// The answer is exact: the kernel looks names up, and removes them, under a lock of their directory that it holds
    /// until it has our answer. So if the kernel does not refer to an inode without a name, no answer that leads to
    /// this inode is on its way. (There is one exception: a file handle that is opened by open_by_handle_at(2) while
    /// its file is deleted. The caller then sees ESTALE, as over NFS.)
    pub fn ask_kernel(&self, holds: KernelHolds) {
        if self.holds.set(holds).is_ok() {
            self.nodes.stop_counting();
        }
    }

    /// Drops inodes that were not used since the last call, if all file systems together use at least three quarters of
    /// what their inodes may take. Called in the background: this is the only way in which a file system that is in use
    /// gets memory from the others.
    pub fn trim_inodes(&self) {
        self.nodes.trim();
    }

    /// Returns the space of the pool, in physical terms as `st_blocks` is: a file of 1 GiB that takes 300 MiB lowers
    /// the available blocks by 300 MiB. Available is what is certainly accepted in new files. Where the pool has a thin
    /// capacity, it is the space before compression ([`pagefold_engine::dataset::Thin`]).
    pub fn statfs(&self) -> Result<StatFs> {
        let space = self.dataset.space();
        let unit = u64::from(STATFS_BLOCK_BYTES);
        let recordsize = self.recordsize_of_new();
        let (size, used, available) = match space.thin {
            None => {
                let available = accepted_bytes(space.available_bytes, recordsize);
                (space.capacity_bytes, space.used_bytes, available)
            }
            Some(thin) => (thin.size_bytes, thin.used_bytes, thin.available_bytes(recordsize)),
        };
        let (available, free) = (available / unit, size.saturating_sub(used) / unit);
        let files = self.ids.lock().next;
        // Inodes are made as needed; a quarter of a block for each is a generous estimate.
        let files_free = available.saturating_mul(4);
        Ok(StatFs {
            block_size: STATFS_BLOCK_BYTES,
            blocks: size / unit,
            blocks_free: free.max(available),
            blocks_available: available,
            files: files.saturating_add(files_free),
            files_free,
            name_max: NAME_MAX as u32,
        })
    }

    pub(crate) fn dataset(&self) -> &dyn Dataset {
        self.dataset.as_ref()
    }

    pub(crate) fn now(&self) -> Time {
        self.clock.now()
    }

    /// Returns the node of `ino`.
    pub(crate) fn node(&self, ino: Ino) -> Result<Arc<Node>> {
        self.nodes.get(self.dataset(), ino.0)
    }

    /// Errors with `ReadOnly` on a read-only mount.
    pub(crate) fn writable(&self) -> Result<()> {
        if self.is_read_only() { Err(FsError::ReadOnly) } else { Ok(()) }
    }

    /// Returns true if every change is refused.
    pub fn is_read_only(&self) -> bool {
        self.read_only.load(Ordering::Acquire)
    }

    /// From now on refuses every change, or accepts changes again. A file system that was mounted read-only must not be
    /// made writable before [`Fs::ask_kernel`] was called: it counts no references.
    pub fn set_read_only(&self, on: bool) {
        self.read_only.store(on, Ordering::Release);
    }

    /// Sets the policy by which reading changes access times, from now on.
    pub fn set_atime(&self, policy: AtimePolicy) {
        self.atime.store(policy as u8, Ordering::Relaxed);
    }

    pub(crate) fn has_atime(&self, policy: AtimePolicy) -> bool {
        self.atime.load(Ordering::Relaxed) == policy as u8
    }

    /// Calls `then` when everything accepted before is durable, whatever the dataset's policy about waiting for that
    /// is.
    pub fn settle_then(&self, caller: Caller, then: impl FnOnce(Result<()>) + Send + 'static) {
        self.dataset.settle_then(caller, Box::new(|settled| then(settled.map_err(FsError::from))));
    }

    pub(crate) fn want_dir(&self, inode: &Inode) -> Result<()> {
        if inode.kind == FileKind::Directory { Ok(()) } else { Err(FsError::NotADirectory) }
    }

    /// Errors unless `inode` is a directory that can take a new name: `NotFound` for one that was removed.
    pub(crate) fn want_live_dir(&self, inode: &Inode) -> Result<()> {
        self.want_dir(inode)?;
        if inode.nlink == 0 { Err(FsError::NotFound) } else { Ok(()) }
    }

    pub(crate) fn want_file(&self, inode: &Inode) -> Result<()> {
        match inode.kind {
            FileKind::Regular => Ok(()),
            FileKind::Directory => Err(FsError::IsADirectory),
            _ => Err(FsError::Invalid("only regular files have data")),
        }
    }

    /// Returns a number that was never used before, for an inode or an object.
    ///
    /// A change of its own reserves a range of numbers before any change uses them: whatever prefix of the changes a
    /// crash leaves, no number in use is at or above the counter.
    pub(crate) fn new_id(&self) -> Result<u64> {
        let mut ids = self.ids.lock();
        if ids.next == ids.reserved {
            let reserved = ids.reserved.checked_add(ID_BATCH).ok_or(FsError::TooBig)?;
            let reserve = [Change::Put(COUNTER_KEY, reserved.to_le_bytes().to_vec())];
            aside(|| self.dataset.apply(&reserve))?;
            ids.reserved = reserved;
        }
        ids.next += 1;
        Ok(ids.next - 1)
    }

    /// Returns the attributes of inode `ino` as callers see them.
    pub(crate) fn attr(&self, ino: u64, inode: &Inode) -> Result<Attr> {
        let blocks = match inode.kind {
            FileKind::Regular if inode.object == 0 => 0,
            // Pages that are not committed yet are not in the sum, and archivers take a file without blocks for one
            // hole: so a file with data has at least one block. If the sum cannot be read, the file still has
            // attributes.
            FileKind::Regular => match self.dataset.usage(inode.object) {
                Ok(usage) => usage.stored_bytes.div_ceil(512).max(1),
                Err(error) if error.is_damage() => inode.size.div_ceil(512).max(1),
                Err(error) => return Err(error.into()),
            },
            _ => inode.size.div_ceil(512),
        };
        Ok(Attr {
            ino: Ino(ino),
            kind: inode.kind,
            perm: inode.perm,
            nlink: inode.nlink,
            uid: inode.uid,
            gid: inode.gid,
            rdev: inode.rdev,
            size: inode.size,
            blocks,
            blksize: self.recordsize_or_default(inode),
            atime: inode.atime,
            mtime: inode.mtime,
            ctime: inode.ctime,
            btime: inode.btime,
            capable: inode.has(flag::CAPS),
        })
    }

    /// Returns the recordsize of a file in bytes; if undecided, the one that the file gets unless its first write tells
    /// another.
    pub(crate) fn recordsize_or_default(&self, inode: &Inode) -> u32 {
        match (inode.recordsize, inode.wish) {
            (0, 0) => self.recordsize_of_new(),
            (0, wish) => wish,
            (decided, _) => decided,
        }
    }

    /// Returns the recordsize in bytes that new files get unless their first writes tell another.
    fn recordsize_of_new(&self) -> u32 {
        // An empty write tells nothing but the property, if it is set.
        let hinted = || self.options.hint.as_ref().and_then(|hint| hint(0, &[], None));
        self.options.recordsize.or_else(hinted).unwrap_or(RECORDSIZE_DEFAULT)
    }

    /// Makes a change that may find no space. If it does, space of files that were deleted anywhere in the pool is
    /// freed, and the change is made again, until there is space or nothing is left to free. The caller holds no lock.
    pub(crate) fn with_space<T>(&self, change: impl Fn() -> Result<T>) -> Result<T> {
        let Some(reapers) = self.dataset.reapers() else { return change() };
        loop {
            let before = reapers.frees();
            let refused = match change() {
                Err(error @ FsError::NoSpace(_)) => error,
                done => return done,
            };
            // The request is not carried out by freeing.
            aside(|| reapers.reap_some());
            if reapers.frees() == before {
                return Err(refused);
            }
        }
    }

    pub(crate) fn note_orphan(&self) {
        self.orphans.store(true, Ordering::Release);
    }
}
