//! Shows the snapshots of the mounted file system below `.pagefold/snapshot` of its root. The directory is found by
//! name but not listed, and is read-only.
//!
//! One mount has the inodes of several file systems, so node ids tell which one is meant: the upper 16 bits are a place
//! in a table, 0 for the file system that is mounted, [`SYNTHETIC`] for the two directories above the snapshots. A
//! place is never given to another snapshot, since the kernel may still know nodes of the first. `stat` shows the node
//! id as inode number: tools that compare numbers do not take a file for its own older version. The reasons are in
//! docs/decisions/0017-snapshots-in-the-mount.md.

mod answers;
mod route;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use answers::directory;
use pagefold_fs::{Attr, Clock, Fs, FsError, Ino, SystemClock, Time};
use parking_lot::Mutex;

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
    /// Number of files that were opened and not closed, by place.
    open_files: HashMap<u16, u64>,
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

    /// Returns the file that a node of this mount stands for if it lies in a snapshot: the snapshot's number, its file
    /// system, and the file's inode there. `None` for nodes elsewhere, and for those of a snapshot that is gone.
    pub fn file(&self, node: u64) -> Option<(u64, Arc<Fs>, Ino)> {
        let place = (node >> INO_BITS) as u16;
        if is_live(node) || place == SYNTHETIC {
            return None;
        }
        let places = self.places.lock();
        let number = places.numbers.get(usize::from(place) - 1).copied()?;
        Some((number, self.at(&places, place).ok()?, Ino(node & INO_MASK)))
    }

    /// Returns how many times files of a snapshot are open, mappings included. Those that were opened while another server
    /// served the mount are not known.
    pub fn open_files(&self, number: u64) -> u64 {
        let places = self.places.lock();
        let place = places.by_number.get(&number);
        place.and_then(|place| places.open_files.get(place)).copied().unwrap_or(0)
    }

    /// Notes that a file of a snapshot was opened.
    fn opened(&self, place: u16) {
        *self.places.lock().open_files.entry(place).or_default() += 1;
    }

    /// Notes that a file of a snapshot was closed.
    fn closed(&self, place: u16) {
        if let Some(open) = self.places.lock().open_files.get_mut(&place) {
            *open = open.saturating_sub(1);
        }
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

const fn is_live(node: u64) -> bool {
    node >> INO_BITS == 0
}
