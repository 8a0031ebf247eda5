//! How far a pool had come when it was used here last: a small file for each pool, so that an older copy of it is known as one even where the newer one is
//! away. It stays when a pool is exported, since that is when copies are mixed up.
//!
//! A server writes it through a descriptor from before it confined itself. Two places take turns, so that one is whole whenever the power goes.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::Arc;

use pagefold_engine::pool::{EARLIER_OPENINGS, Earlier, Opening, OpeningId, Standing};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::failure::{Context, Result};
use crate::{places, units};

/// Length of each of the two places.
const PLACE_BYTES: usize = 16 << 10;

/// How far a pool had come, and when that was written down.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Record {
    sequence: u64,
    /// Seconds since 1970.
    noted: u64,
    generation: u64,
    /// Number and nonce.
    opening: (u64, u64),
    /// Seconds since 1970.
    opened: u64,
    /// Number, nonce and last checkpoint of the openings before it, newest first.
    earlier: Vec<(u64, u64, u64)>,
}

impl Record {
    fn standing(&self) -> Standing {
        let mut earlier = [Earlier::default(); EARLIER_OPENINGS];
        for (place, (number, nonce, generation)) in earlier.iter_mut().zip(self.earlier.iter().copied()) {
            *place = Earlier { id: OpeningId { number, nonce }, generation };
        }
        let (number, nonce) = self.opening;
        let opening = Opening { id: OpeningId { number, nonce }, time: self.opened, earlier };
        Standing { opening, generation: self.generation, open: false }
    }
}

/// The file of a pool.
pub struct Seen {
    file: File,
    path: PathBuf,
    last: Mutex<Option<Record>>,
}

fn path_of(guid: &str) -> Result<PathBuf> {
    Ok(places::state_dir()?.join("seen").join(guid))
}

/// How far the pool with this GUID had come when it was used here last, and when that was; `None`: it never was.
pub fn last(guid: &str) -> Result<Option<(Standing, u64)>> {
    let path = path_of(guid)?;
    match File::open(&path) {
        Ok(file) => Ok(read(&file).map(|record| (record.standing(), record.noted))),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).context(|| format!("cannot read {}", path.display())),
    }
}

fn read(file: &File) -> Option<Record> {
    let mut found: Vec<Record> = Vec::new();
    for place in 0..2 {
        let mut bytes = vec![0; PLACE_BYTES];
        if file.read_exact_at(&mut bytes, place * PLACE_BYTES as u64).is_ok() {
            // What a crash has left in one place is nothing; the other one is whole.
            found.extend(serde_json::from_slice::<Record>(&bytes).ok());
        }
    }
    found.into_iter().max_by_key(|record| record.sequence)
}

impl Seen {
    /// That of the pool with this GUID, to be written.
    pub fn open(guid: &str) -> Result<Arc<Self>> {
        let path = path_of(guid)?;
        places::make_private(&places::state_dir()?)?;
        if let Some(dir) = path.parent() {
            places::make_private(dir)?;
        }
        let opened =
            File::options().create(true).truncate(false).read(true).write(true).mode(0o600).open(&path);
        let file = opened.context(|| format!("cannot open {}", path.display()))?;
        let last = Mutex::new(read(&file));
        Ok(Arc::new(Self { file, path, last }))
    }

    /// How far the pool had come.
    pub fn standing(&self) -> Option<Standing> {
        self.last.lock().as_ref().map(Record::standing)
    }

    /// Writes down how far it has come, whatever was known before.
    pub fn note(&self, standing: &Standing) -> Result<()> {
        let earlier = standing.opening.earlier.iter().filter(|earlier| earlier.id.number > 0);
        let mut last = self.last.lock();
        let record = Record {
            sequence: last.as_ref().map_or(0, |record| record.sequence) + 1,
            noted: units::now(),
            generation: standing.generation,
            opening: (standing.opening.id.number, standing.opening.id.nonce),
            opened: standing.opening.time,
            earlier: earlier.map(|one| (one.id.number, one.id.nonce, one.generation)).collect(),
        };
        let writing = || format!("cannot write {}", self.path.display());
        let mut bytes = serde_json::to_vec(&record).context(writing)?;
        bytes.resize(PLACE_BYTES, b' ');
        let place = record.sequence % 2 * PLACE_BYTES as u64;
        self.file.write_all_at(&bytes, place).and_then(|()| self.file.sync_data()).context(writing)?;
        *last = Some(record);
        Ok(())
    }
}

/// Forgets what is known of a pool.
pub fn forget(guid: &str) -> Result<()> {
    let path = path_of(guid)?;
    match fs::remove_file(&path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).context(|| format!("cannot remove {}", path.display()))
        }
        _ => Ok(()),
    }
}
