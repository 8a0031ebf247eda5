//! Shows the snapshots of the mounted file system below `.pagefold/snapshot` of its root. The directory is found by
//! name but not listed, and is read-only.
//!
//! One mount has the inodes of several file systems, so node ids tell which one is meant: the upper 16 bits are a place
//! in a table, 0 for the file system that is mounted, [`SYNTHETIC`] for the two directories above the snapshots. A
//! place is never given to another snapshot, since the kernel may still know nodes of the first. `stat` shows the node
//! id as inode number: tools that compare numbers do not take a file for its own older version. The reasons are in
//! docs/decisions/0017-snapshots-in-the-mount.md.

use super::convert::{attr_out, entry_out, no_entry, opened, statfs_out, statx_out};
use super::directory::Listing;
use super::query::{answer_query, sized};
use super::{Dispatch, answer, failed, not_offered, read_of};
use crate::operation::{Change, Operation, Query};
use crate::protocol as p;
use crate::{Agreement, Blocking, Errno, Fetching, Handler, Kernel, Request, Wait};
use pagefold_fs::{Attr, Clock, DirEntry, Entry, FileKind, Fs, FsError, Ino, OpenFlags, SystemClock, Time};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Name of the directory in the root of every mount, which listings do not show.
pub const HIDDEN_DIR: &str = ".pagefold";
/// Name of the directory in [`HIDDEN_DIR`] that has the snapshots.
pub const SNAPSHOT_DIR: &str = "snapshot";

/// Number of bits of a node id that are the inode number: more than any file system needs.
const INO_BITS: u32 = 48;
const INO_MASK: u64 = (1 << INO_BITS) - 1;
/// Place of the directories that are in no file system.
const SYNTHETIC: u16 = u16::MAX;
const HIDDEN: u64 = node_id(SYNTHETIC, 1);
const SNAPSHOTS: u64 = node_id(SYNTHETIC, 2);
/// Time in seconds for which the kernel may believe that a snapshot has a name: it can be destroyed or renamed at any
/// time.
const NAME_VALID_SECS: u64 = 1;
/// Time to wait for requests that read a snapshot which is to be destroyed.
const CLOSE_PATIENCE: Duration = Duration::from_secs(10);

const fn node_id(place: u16, ino: u64) -> u64 {
    (place as u64) << INO_BITS | ino
}

/// The snapshots of the mounted dataset, as the server knows them.
pub trait Snapshots: Send + Sync {
    /// Returns their numbers, ascending, and names.
    fn list(&self) -> Vec<(u64, String)>;
    /// Returns the number of the snapshot with this name.
    fn find(&self, name: &[u8]) -> Option<u64>;
    /// Opens the file system of a snapshot, read-only, and calls `enter` with it while it cannot be destroyed.
    ///
    /// # Errors
    /// [`FsError::NotFound`] if the snapshot is gone; errors of reading it.
    fn open(&self, number: u64, enter: &mut dyn FnMut(Arc<Fs>)) -> Result<(), FsError>;
    /// Tells the numbers of the snapshots that were looked into, in this order. Called before the kernel hears of the
    /// last one.
    fn entered(&self, _numbers: &[u64]) {}
}

/// A snapshot that was looked into.
enum Place {
    Open(Arc<Fs>),
    /// The snapshot was destroyed.
    Gone,
}

#[derive(Default)]
struct Places {
    by_number: HashMap<u64, u16>,
    /// Places from 1 on.
    places: Vec<Place>,
    /// Numbers of the snapshots at these places.
    numbers: Vec<u64>,
}

/// The directory of the snapshots of one mount.
pub struct SnapshotTree {
    snapshots: Box<dyn Snapshots>,
    places: Mutex<Places>,
    /// The list of snapshots that was shown last, and the time when it had changed.
    told: Mutex<(Vec<(u64, String)>, Time)>,
}

impl SnapshotTree {
    /// Returns the directory of these snapshots.
    pub fn new(snapshots: Box<dyn Snapshots>) -> Self {
        let told = Mutex::new((snapshots.list(), SystemClock.now()));
        Self { snapshots, places: Mutex::default(), told }
    }

    /// Returns the attributes of a directory above the snapshots. The kernel keeps a listing as long as the directory's
    /// time stays the same.
    fn directory(&self, node: u64) -> Attr {
        if node != SNAPSHOTS {
            return directory(node, Time::default());
        }
        let now = self.snapshots.list();
        let mut told = self.told.lock();
        if told.0 != now {
            *told = (now, SystemClock.now());
        }
        directory(node, told.1)
    }

    /// As [`SnapshotTree::new`], for a mount whose server died after it had told [`Snapshots::entered`] these numbers.
    pub fn resume(snapshots: Box<dyn Snapshots>, numbers: Vec<u64>) -> Self {
        let mut places = Places::default();
        for (place, number) in (1..SYNTHETIC).zip(numbers) {
            let mut found = Place::Gone;
            if let Err(error) = snapshots.open(number, &mut |fs| found = Place::Open(fs)) {
                tracing::debug!(number, %error, "a snapshot that was looked into is gone");
            }
            if matches!(found, Place::Open(_)) {
                places.by_number.insert(number, place);
            }
            places.places.push(found);
            places.numbers.push(number);
        }
        Self { places: Mutex::new(places), ..Self::new(snapshots) }
    }

    /// Closes a snapshot: nobody can look into it any more, and what was open answers ESTALE. Returns true when no
    /// request reads it, or false if one still does after ten seconds.
    pub fn close(&self, number: u64) -> bool {
        let fs = {
            let mut places = self.places.lock();
            let Some(place) = places.by_number.remove(&number) else { return true };
            match places.places.get_mut(usize::from(place) - 1) {
                Some(place) => std::mem::replace(place, Place::Gone),
                None => return true,
            }
        };
        let Place::Open(fs) = fs else { return true };
        let deadline = Instant::now() + CLOSE_PATIENCE;
        while Arc::strong_count(&fs) > 1 {
            if Instant::now() > deadline {
                return false;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        true
    }

    /// As [`Fs::trim_inodes`], for all snapshots that were looked into.
    pub fn trim_inodes(&self) {
        let open: Vec<Arc<Fs>> = {
            let places = self.places.lock();
            let open = places.places.iter().filter_map(|place| match place {
                Place::Open(fs) => Some(Arc::clone(fs)),
                Place::Gone => None,
            });
            open.collect()
        };
        open.iter().for_each(|fs| fs.trim_inodes());
    }

    /// Returns the place of a snapshot, and its file system.
    fn enter(&self, number: u64) -> Result<(u16, Arc<Fs>), FsError> {
        if let Some(found) = self.entered(&self.places.lock(), number) {
            return found;
        }
        // This is not done under our lock: whoever destroys snapshots must not wait for somebody who waits for the
        // destruction.
        let mut entered = Err(FsError::NotFound);
        self.snapshots.open(number, &mut |fs| entered = self.add(number, fs))?;
        entered
    }

    fn entered(&self, places: &Places, number: u64) -> Option<Result<(u16, Arc<Fs>), FsError>> {
        places.by_number.get(&number).map(|place| self.at(places, *place).map(|fs| (*place, fs)))
    }

    /// Gives an open snapshot a place, unless another request was faster.
    fn add(&self, number: u64, fs: Arc<Fs>) -> Result<(u16, Arc<Fs>), FsError> {
        let mut places = self.places.lock();
        if let Some(found) = self.entered(&places, number) {
            return found;
        }
        let place = u16::try_from(places.places.len() + 1).ok().filter(|place| *place < SYNTHETIC);
        let place =
            place.ok_or(FsError::Unsupported("more than 65534 snapshots looked into by one mount"))?;
        places.places.push(Place::Open(Arc::clone(&fs)));
        places.by_number.insert(number, place);
        places.numbers.push(number);
        self.snapshots.entered(&places.numbers);
        Ok((place, fs))
    }

    fn at(&self, places: &Places, place: u16) -> Result<Arc<Fs>, FsError> {
        match usize::from(place).checked_sub(1).and_then(|at| places.places.get(at)) {
            Some(Place::Open(fs)) => Ok(Arc::clone(fs)),
            Some(Place::Gone) | None => Err(FsError::Stale),
        }
    }

    fn forget(&self, node: u64, lookups: u64) {
        let place = (node >> INO_BITS) as u16;
        let fs = if place == SYNTHETIC { None } else { self.at(&self.places.lock(), place).ok() };
        if let Some(fs) = fs {
            fs.forget(Ino(node & INO_MASK), lookups);
        }
    }
}

/// A file system with its snapshots.
pub struct WithSnapshots {
    live: Dispatch,
    tree: Arc<SnapshotTree>,
}

impl WithSnapshots {
    /// Returns a handler for `live`, with `tree` below its root.
    pub fn new(live: Dispatch, tree: Arc<SnapshotTree>) -> Self {
        Self { live, tree }
    }
}

/// Operations on a snapshot, or on the directories above: these only look, all others are refused.
#[derive(Clone, Copy)]
enum Inspection {
    Read { offset: u64, size: u32 },
    Query(Query),
    ReadDir { offset: u64, size: u32, plus: bool },
    Open { flags: u32 },
    Release,
    StatFs,
    Refused,
}

/// Receivers of a request.
enum Route {
    Live,
    Tree,
    Refused(Errno),
}

const fn is_live(node: u64) -> bool {
    node >> INO_BITS == 0
}

/// Returns who answers a request.
fn route(request: &Request, operation: &Operation) -> Route {
    if !is_live(request.ino()) {
        // The kernel then copies by reading and writing.
        let copies = matches!(operation, Operation::Change(Change::CopyFileRange { .. }));
        return if copies { Route::Refused(Errno::XDEV) } else { Route::Tree };
    }
    if let Operation::Change(change) = operation {
        return route_change(request, change);
    }
    if let Operation::Query(Query::Lookup { name }) = *operation
        && is_hidden(request.ino(), request.argument(name))
    {
        return Route::Tree;
    }
    Route::Live
}

/// Returns who answers a change of the file system that is mounted: nothing moves between it and a snapshot, and the
/// directory above the snapshots stays.
fn route_change(request: &Request, change: &Change) -> Route {
    let parent = request.ino();
    match *change {
        Change::Unlink { name } | Change::RemoveDir { name } => {
            refused_if(is_hidden(parent, request.argument(name)), Errno::PERM)
        }
        Change::Rename { new_parent, .. } if !is_live(new_parent) => Route::Refused(Errno::ROFS),
        Change::Rename { name, new_parent, new_name, .. } => {
            let from = is_hidden(parent, request.argument(name));
            refused_if(from || is_hidden(new_parent, request.argument(new_name)), Errno::PERM)
        }
        Change::Link { ino, .. } => refused_if(!is_live(ino), Errno::XDEV),
        Change::CopyFileRange { ino_out, .. } => refused_if(!is_live(ino_out), Errno::ROFS),
        Change::Attributes(_)
        | Change::Symlink { .. }
        | Change::MakeNode { .. }
        | Change::MakeDir { .. }
        | Change::SetXattr { .. }
        | Change::RemoveXattr { .. }
        | Change::Allocate { .. } => Route::Live,
    }
}

fn refused_if(refused: bool, errno: Errno) -> Route {
    if refused { Route::Refused(errno) } else { Route::Live }
}

/// Returns true for the directory above the snapshots, by its name in the root.
fn is_hidden(parent: u64, name: &[u8]) -> bool {
    parent == Ino::ROOT.0 && name == HIDDEN_DIR.as_bytes()
}

impl Handler for WithSnapshots {
    fn agreed(&self, agreement: &Agreement, kernel: &Kernel) {
        self.live.agreed(agreement, kernel);
    }

    fn taken_over(&self, requests: &mut [Request]) {
        self.live.taken_over(requests);
    }

    fn handle(&self, request: Request, blocking: &Blocking) -> Option<Fetching> {
        let operation = match request.parse() {
            Ok(operation) => operation,
            Err(why) => {
                request.refuse(why);
                return None;
            }
        };
        match route(&request, &operation) {
            Route::Live => {
                if let Operation::BatchForget(list) = operation {
                    let others = request.forgets(list).filter(|(node, _)| !is_live(*node));
                    others.for_each(|(node, lookups)| self.tree.forget(node, lookups));
                }
                return self.live.carry_out(request, &operation, blocking);
            }
            Route::Refused(errno) => request.error(errno),
            Route::Tree => {
                let tree = Arc::clone(&self.tree);
                blocking.run(Wait::Read, move || tree.answer(request, operation));
            }
        }
        None
    }

    fn fetched(&self, fetching: Fetching, filled: bool, blocking: &Blocking) {
        self.live.fetched(fetching, filled, blocking);
    }
}

/// Answers to requests.
impl SnapshotTree {
    fn answer(&self, request: Request, operation: Operation) {
        let node = request.ino();
        let operation = match operation {
            Operation::Forget { lookups } => {
                self.forget(node, lookups);
                return request.silent();
            }
            Operation::OpenDir | Operation::Flush => return request.error(Errno::NOSYS),
            Operation::NotOffered(code) => return not_offered(request, code),
            Operation::ReleaseDir | Operation::Sync { .. } | Operation::SyncDir => return request.ok(),
            Operation::Read { offset, size, .. } => Inspection::Read { offset, size },
            Operation::Query(query) => Inspection::Query(query),
            Operation::ReadDir { offset, size, plus } => Inspection::ReadDir { offset, size, plus },
            Operation::Open { flags, .. } => Inspection::Open { flags },
            Operation::Release => Inspection::Release,
            Operation::StatFs => Inspection::StatFs,
            Operation::Write(_)
            | Operation::Change(_)
            | Operation::Create(_)
            | Operation::SyncFs
            | Operation::BatchForget(_)
            | Operation::Interrupt { .. }
            | Operation::Init(_)
            | Operation::Destroy => Inspection::Refused,
        };
        let place = (node >> INO_BITS) as u16;
        if is_live(node) || place == SYNTHETIC {
            return self.above(request, operation);
        }
        match self.fs_at(place) {
            Ok(fs) => within(&fs, place, request, operation),
            Err(error) => failed(request, &error),
        }
    }

    fn fs_at(&self, place: u16) -> Result<Arc<Fs>, FsError> {
        self.at(&self.places.lock(), place)
    }

    /// Carries out calls on the directories above the snapshots, and the lookup in the root that leads there.
    fn above(&self, mut request: Request, operation: Inspection) {
        let node = request.ino();
        match operation {
            Inspection::Query(query) => self.query_above(request, query),
            Inspection::ReadDir { offset, size, plus } => {
                let mut listing = Listing::new(request.payload(size as usize));
                self.list_above(node, offset, plus, &mut listing);
                let used = listing.used();
                request.payload_filled(used);
            }
            Inspection::StatFs => request.answer(&p::StatfsOut::default()),
            Inspection::Read { .. } | Inspection::Open { .. } | Inspection::Release | Inspection::Refused => {
                request.error(Errno::ROFS);
            }
        }
    }

    fn query_above(&self, request: Request, query: Query) {
        let node = request.ino();
        match query {
            Query::Lookup { name } => match self.lookup_above(node, request.argument(name)) {
                Err(FsError::NotFound) => request.answer(&p::EntryOut::default()),
                found => answer(request, found, |found| *found),
            },
            // The attributes must not be cached for any time: snapshots come and go without the kernel.
            Query::Attributes => {
                request.answer(&p::AttrOut { attr_valid: 0, ..attr_out(&self.directory(node)) });
            }
            Query::StatX { .. } => {
                request.answer(&p::StatxOut { attr_valid: 0, ..statx_out(&self.directory(node)) });
            }
            Query::GetXattr { .. } => request.error(Errno::NODATA),
            Query::ListXattr { size } => sized(request, Ok(Vec::new()), size),
            Query::ReadLink | Query::Seek { .. } => request.error(Errno::ROFS),
        }
    }

    fn lookup_above(&self, node: u64, name: &[u8]) -> Result<p::EntryOut, FsError> {
        let of = |node: u64| {
            let attr = self.directory(node);
            p::EntryOut { attr_valid: 0, ..entry_out(&Entry { ino: attr.ino, generation: 0, attr }) }
        };
        match node {
            SNAPSHOTS => {
                let number = self.snapshots.find(name).ok_or(FsError::NotFound)?;
                let (place, fs) = self.enter(number)?;
                let entry = translated(place, &fs.lookup(Ino::ROOT, b".")?)?;
                Ok(p::EntryOut { entry_valid: NAME_VALID_SECS, ..entry_out(&entry) })
            }
            HIDDEN if name == SNAPSHOT_DIR.as_bytes() => Ok(of(SNAPSHOTS)),
            HIDDEN => Err(FsError::NotFound),
            _ => Ok(of(HIDDEN)),
        }
    }

    fn list_above(&self, node: u64, offset: u64, plus: bool, listing: &mut Listing<'_>) {
        let parent = if node == SNAPSHOTS { HIDDEN } else { Ino::ROOT.0 };
        let mut entries = vec![(1, node, ".".to_owned()), (2, parent, "..".to_owned())];
        if node == SNAPSHOTS {
            // Numbers are never used twice, so that they tell where a listing goes on.
            let of = |(number, name): (u64, String)| (number.saturating_add(2), SNAPSHOTS, name);
            entries.extend(self.snapshots.list().into_iter().map(of));
        } else {
            entries.push((3, SNAPSHOTS, SNAPSHOT_DIR.to_owned()));
        }
        for (cookie, ino, name) in entries.iter().filter(|(cookie, _, _)| *cookie > offset) {
            let (ino, kind) = (Ino(*ino), FileKind::Directory);
            let entry = DirEntry { ino, cookie: *cookie, kind, name: name.as_bytes() };
            let fits = if plus { listing.push_plus(&entry, None) } else { listing.push(&entry) };
            if !fits {
                return;
            }
        }
    }
}

/// Returns the attributes of a directory above the snapshots.
fn directory(node: u64, time: Time) -> Attr {
    Attr {
        ino: Ino(node),
        kind: FileKind::Directory,
        perm: 0o555,
        nlink: 2,
        uid: 0,
        gid: 0,
        rdev: 0,
        size: 0,
        blocks: 0,
        blksize: 4096,
        atime: time,
        mtime: time,
        ctime: time,
        btime: time,
        capable: false,
    }
}

/// Returns an answer of a snapshot's file system with node ids of this mount.
fn translated(place: u16, entry: &Entry) -> Result<Entry, FsError> {
    let ino = translated_ino(place, entry.ino)?;
    Ok(Entry { ino, attr: Attr { ino, ..entry.attr }, ..*entry })
}

fn translated_ino(place: u16, ino: Ino) -> Result<Ino, FsError> {
    if is_live(ino.0) {
        Ok(Ino(node_id(place, ino.0)))
    } else {
        Err(FsError::Unsupported("so large an inode number"))
    }
}

/// Carries out calls on files in a snapshot.
fn within(fs: &Fs, place: u16, request: Request, operation: Inspection) {
    let ino = Ino(request.ino() & INO_MASK);
    match operation {
        Inspection::Query(query) => query_within(fs, place, request, query),
        Inspection::Open { flags } => {
            let read_only = flags & libc::O_ACCMODE.cast_unsigned() == libc::O_RDONLY.cast_unsigned();
            if !read_only || flags & libc::O_TRUNC.cast_unsigned() != 0 {
                return request.error(Errno::ROFS);
            }
            let how = OpenFlags { truncate: false, exclusive: false, kill_suid: false };
            answer(request, fs.open(ino, how), |_| opened(flags));
        }
        Inspection::Release => {
            fs.release(ino);
            request.ok();
        }
        Inspection::Read { offset, size } => read_of(fs, ino, request, offset, size),
        Inspection::ReadDir { offset, size, plus } => list(fs, place, request, (offset, size), plus),
        Inspection::StatFs => answer(request, fs.statfs(), statfs_out),
        Inspection::Refused => request.error(Errno::ROFS),
    }
}

/// Answers a query, with node ids of this mount.
fn query_within(fs: &Fs, place: u16, request: Request, query: Query) {
    let ino = Ino(request.ino() & INO_MASK);
    let attributes =
        || fs.getattr(ino).and_then(|attr| Ok(Attr { ino: translated_ino(place, ino)?, ..attr }));
    match query {
        Query::Lookup { name } => {
            match fs.lookup(ino, request.argument(name)).and_then(|entry| translated(place, &entry)) {
                Err(FsError::NotFound) => request.answer(&no_entry()),
                found => answer(request, found, entry_out),
            }
        }
        Query::Attributes => answer(request, attributes(), attr_out),
        Query::StatX { .. } => answer(request, attributes(), statx_out),
        Query::ReadLink | Query::GetXattr { .. } | Query::ListXattr { .. } | Query::Seek { .. } => {
            answer_query(fs, ino, request, query);
        }
    }
}

fn list(fs: &Fs, place: u16, mut request: Request, (offset, size): (u64, u32), plus: bool) {
    let ino = Ino(request.ino() & INO_MASK);
    let mut listing = Listing::new(request.payload(size as usize));
    let here = |entry: &DirEntry<'_>| Ino(node_id(place, entry.ino.0 & INO_MASK));
    // Attributes are not returned with the names: a caller that wants them asks for them, and the others hold no
    // references.
    let result = fs.readdir(ino, offset, &mut |entry| {
        let ino = here(entry);
        let entry = DirEntry { ino, cookie: entry.cookie, kind: entry.kind, name: entry.name };
        if plus { listing.push_plus(&entry, None) } else { listing.push(&entry) }
    });
    let used = listing.used();
    match result {
        Err(error) if used == 0 => failed(request, &error),
        _ => request.payload_filled(used),
    }
}
