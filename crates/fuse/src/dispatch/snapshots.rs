//! Shows the snapshots of the mounted file system below `.pagefold/snapshot` of its root. The directory is found by
//! name but not listed, and is read-only.
//!
//! One mount has the inodes of several file systems, so node ids tell which one is meant: the upper 16 bits are a place
//! in a table, 0 for the file system that is mounted, [`SYNTHETIC`] for the two directories above the snapshots. A
//! place is given to another snapshot only when the kernel has forgotten all nodes of the first, as its references tell,
//! which are counted by place. These counts outlive a server ([`Snapshots::note`]). `stat` shows the node id as inode
//! number: tools that compare numbers do not take a file for its own older version. The reasons are in
//! docs/decisions/0017-snapshots-in-the-mount.md.

mod answers;
mod places;
mod route;

use std::sync::Arc;
use std::time::{Duration, Instant};

use answers::directory;
use pagefold_fs::{Attr, Clock, Fs, FsError, Ino, SystemClock, Time};
use parking_lot::Mutex;

use places::{Place, Places};
pub use route::WithSnapshots;

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
    /// Notes what the kernel knows of the snapshot at a place, for a server that goes on when this one has died. Called
    /// before the kernel hears of another node, and after it has forgotten some.
    ///
    /// # Errors
    /// Any, if it was not noted. The kernel then hears of no other node.
    fn note(&self, _known: KnownSnapshot) -> Result<(), FsError> {
        Ok(())
    }
}

/// A snapshot that has a place, and how much the kernel knows of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownSnapshot {
    /// Its place.
    pub place: u16,
    /// Its number.
    pub number: u64,
    /// Number of references that the kernel has to its nodes, or more; 0 gives the place up.
    pub references: u64,
}

impl KnownSnapshot {
    /// Number of references if that is not known: the place is kept as long as the mount.
    pub const UNKNOWN: u64 = u64::MAX;
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

    /// As [`SnapshotTree::new`], for a mount whose server died after it had told [`Snapshots::note`] this, last of each
    /// place.
    pub fn resume(snapshots: Box<dyn Snapshots>, known: &[KnownSnapshot]) -> Self {
        let mut places = Places::default();
        for KnownSnapshot { place, number, references } in known.iter().copied() {
            let mut fs = None;
            if let Err(error) = snapshots.open(number, &mut |opened| fs = Some(opened)) {
                tracing::debug!(number, %error, "a snapshot that was looked into is gone");
            }
            places.give(place, Place { number, references, fs, open_files: 0 });
        }
        Self { places: Mutex::new(places), ..Self::new(snapshots) }
    }

    /// Returns the file that a node of this mount stands for if it lies in a snapshot: the snapshot's number, its file
    /// system, and the file's inode there. `None` for nodes elsewhere, and for those of a snapshot that is gone.
    pub fn file(&self, node: u64) -> Option<(u64, Arc<Fs>, Ino)> {
        let place = (node >> INO_BITS) as u16;
        if is_live(node) || place == SYNTHETIC {
            return None;
        }
        let places = self.places.lock();
        let Place { number, fs, .. } = places.get(place)?;
        Some((*number, fs.clone()?, Ino(node & INO_MASK)))
    }

    /// Returns how many times files of a snapshot are open, mappings included. Those that were opened while another server
    /// served the mount are not known.
    pub fn open_files(&self, number: u64) -> u64 {
        let places = self.places.lock();
        places.of(number).and_then(|place| places.get(place)).map_or(0, |place| place.open_files)
    }

    /// Notes that a file of a snapshot was opened.
    fn opened(&self, place: u16) {
        if let Some(place) = self.places.lock().get_mut(place) {
            place.open_files += 1;
        }
    }

    /// Notes that a file of a snapshot was closed.
    fn closed(&self, place: u16) {
        let mut places = self.places.lock();
        let Some(found) = places.get_mut(place) else { return };
        found.open_files = found.open_files.saturating_sub(1);
        let given_up = Self::give_up_unused(&mut places, place);
        drop((places, given_up));
    }

    /// Closes a snapshot: nobody can look into it any more, and what was open answers ESTALE. Returns true when no
    /// request reads it, or false if one still does after ten seconds.
    pub fn close(&self, number: u64) -> bool {
        let fs = {
            let mut places = self.places.lock();
            places.close(number)
        };
        let Some(fs) = fs else { return true };
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
            places.all().filter_map(|place| place.fs.clone()).collect()
        };
        open.iter().for_each(|fs| fs.trim_inodes());
    }

    /// Returns the place of a snapshot, and its file system. Counts a reference, which the caller gives to the kernel, or
    /// takes back by [`SnapshotTree::forgotten`].
    fn enter(&self, number: u64) -> Result<(u16, Arc<Fs>), FsError> {
        if let Some(found) = self.entered(&mut self.places.lock(), number) {
            return found;
        }
        // This is not done under our lock: whoever destroys snapshots must not wait for somebody who waits for the
        // destruction.
        let mut entered = Err(FsError::NotFound);
        self.snapshots.open(number, &mut |fs| entered = self.add(number, fs))?;
        entered
    }

    fn entered(&self, places: &mut Places, number: u64) -> Option<Result<(u16, Arc<Fs>), FsError>> {
        let place = places.of(number)?;
        Some(self.refer_at(places, place))
    }

    /// Gives an open snapshot a place, unless another request was faster.
    fn add(&self, number: u64, fs: Arc<Fs>) -> Result<(u16, Arc<Fs>), FsError> {
        let mut places = self.places.lock();
        if let Some(found) = self.entered(&mut places, number) {
            return found;
        }
        let place = places.unused().ok_or(FsError::Unsupported(
            "more than 65534 snapshots of which the kernel knows files by one mount",
        ))?;
        self.snapshots.note(KnownSnapshot { place, number, references: 1 })?;
        places.give(place, Place { number, references: 1, fs: Some(Arc::clone(&fs)), open_files: 0 });
        Ok((place, fs))
    }

    /// Counts another reference to a node of a place that the kernel knows, before it gets it.
    fn refer(&self, place: u16) -> Result<(), FsError> {
        self.refer_at(&mut self.places.lock(), place).map(drop)
    }

    fn refer_at(&self, places: &mut Places, place: u16) -> Result<(u16, Arc<Fs>), FsError> {
        let known = places.get_mut(place).ok_or(FsError::Stale)?;
        let fs = known.fs.clone().ok_or(FsError::Stale)?;
        let references = known.references.saturating_add(1);
        self.snapshots.note(KnownSnapshot { place, number: known.number, references })?;
        known.references = references;
        Ok((place, fs))
    }

    fn at(&self, place: u16) -> Result<Arc<Fs>, FsError> {
        self.places.lock().get(place).and_then(|place| place.fs.clone()).ok_or(FsError::Stale)
    }

    /// Notes that the kernel has forgotten references to a node.
    fn forget(&self, node: u64, lookups: u64) {
        let place = (node >> INO_BITS) as u16;
        if is_live(node) || place == SYNTHETIC {
            return;
        }
        if let Ok(fs) = self.at(place) {
            fs.forget(Ino(node & INO_MASK), lookups);
        }
        self.forgotten(place, lookups);
    }

    /// Counts references to nodes of a place that the kernel has no more, and gives up the place with the last one.
    fn forgotten(&self, place: u16, lookups: u64) {
        let mut places = self.places.lock();
        let Some(known) = places.get_mut(place) else { return };
        if known.references == KnownSnapshot::UNKNOWN {
            return;
        }
        known.references = known.references.saturating_sub(lookups);
        let known = KnownSnapshot { place, number: known.number, references: known.references };
        if let Err(error) = self.snapshots.note(known) {
            // The note says more than the kernel has, which does no harm.
            tracing::warn!(number = known.number, %error, "a place of a snapshot stays taken if this server dies");
        }
        let given_up = Self::give_up_unused(&mut places, place);
        // The file system is dropped without the lock.
        drop((places, given_up));
    }

    /// Gives up a place of which the kernel knows nothing. The end of an open file may come behind what the kernel has
    /// forgotten with it.
    fn give_up_unused(places: &mut Places, place: u16) -> Option<Place> {
        let known = places.get(place)?;
        if known.references > 0 || known.open_files > 0 { None } else { places.give_up(place) }
    }
}

const fn is_live(node: u64) -> bool {
    node >> INO_BITS == 0
}

#[cfg(test)]
mod tests;
