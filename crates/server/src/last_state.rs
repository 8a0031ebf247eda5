//! Notes how far each pool had come when it was used here last, in a small file per pool, so that an older copy is
//! recognised even if the newer one is not connected. The file stays when a pool is exported, since that is when copies
//! are mixed up.
//!
//! A server writes it through a descriptor that it opened before it confined itself. Two places are written in turn, so
//! that one is intact whenever the power fails.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::Arc;

use pagefold_engine::pool::{EARLIER_OPENINGS, Earlier, Opening, OpeningId, Standing, TableSeen};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::failure::{Context, Failure, Result};
use crate::{files, units};

/// Length of each of the two places in bytes.
const PLACE_BYTES: usize = 16 << 10;

/// State of a pool, and when it was noted.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct LastState {
    sequence: u64,
    /// Time of the note in seconds since 1970.
    noted: u64,
    generation: u64,
    /// Number and nonce of the opening.
    opening: (u64, u64),
    /// Time of the opening in seconds since 1970.
    opened: u64,
    /// Number, nonce and last checkpoint of the openings before it, newest first.
    earlier: Vec<(u64, u64, u64)>,
    /// Number, epoch and its random number of the tables of groups.
    #[serde(default)]
    tables: Vec<(u16, u64, u64)>,
}

impl LastState {
    fn tables_seen(&self) -> Vec<TableSeen> {
        self.tables
            .iter()
            .map(|(group, epoch, draw)| TableSeen { group: *group, epoch: *epoch, draw: *draw })
            .collect()
    }

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
pub struct LastStateFile {
    file: File,
    path: PathBuf,
    last: Mutex<Option<LastState>>,
}

fn path_of(guid: &str) -> Result<PathBuf> {
    Ok(files::state_dir()?.join("seen").join(guid))
}

/// The note about a pool.
#[derive(Clone, Debug)]
pub struct Noted {
    /// How far it had come.
    pub standing: Standing,
    /// Tables of its groups.
    pub tables: Vec<TableSeen>,
    /// Time of the note in seconds since 1970.
    pub at: u64,
}

/// Returns the state of the pool with this GUID when it was used here last; `None` if it never was.
pub fn read(guid: &str) -> Result<Option<Noted>> {
    let path = path_of(guid)?;
    let noted = |record: LastState| Noted {
        standing: record.standing(),
        tables: record.tables_seen(),
        at: record.noted,
    };
    match File::open(&path) {
        Ok(file) => Ok(read_file(&file).map(noted)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).context(|| format!("cannot read {}", path.display())),
    }
}

fn read_file(file: &File) -> Option<LastState> {
    let mut found: Vec<LastState> = Vec::new();
    for place in 0..2 {
        let mut bytes = vec![0; PLACE_BYTES];
        if file.read_exact_at(&mut bytes, place * PLACE_BYTES as u64).is_ok() {
            // A place that a crash left half written is ignored; the other one is intact.
            found.extend(serde_json::from_slice::<LastState>(&bytes).ok());
        }
    }
    found.into_iter().max_by_key(|record| record.sequence)
}

impl LastStateFile {
    /// Opens the file of the pool with this GUID for writing, and makes it if it does not exist.
    pub fn open(guid: &str) -> Result<Arc<Self>> {
        let path = path_of(guid)?;
        files::make_private(&files::state_dir()?)?;
        if let Some(dir) = path.parent() {
            files::make_private(dir)?;
        }
        let opened =
            File::options().create(true).truncate(false).read(true).write(true).mode(0o600).open(&path);
        let file = opened.context(|| format!("cannot open {}", path.display()))?;
        let last = Mutex::new(read_file(&file));
        Ok(Arc::new(Self { file, path, last }))
    }

    /// Returns the state of the pool that was noted last.
    pub fn standing(&self) -> Option<Standing> {
        self.last.lock().as_ref().map(LastState::standing)
    }

    /// Returns the tables of groups that were noted last.
    pub fn tables(&self) -> Vec<TableSeen> {
        self.last.lock().as_ref().map(LastState::tables_seen).unwrap_or_default()
    }

    /// Notes that the pool is as far as this from now on, whatever was noted before: it goes back to an older copy.
    pub fn go_back(&self, standing: &Standing) -> Result<()> {
        if let Some(last) = self.last.lock().as_mut() {
            last.tables.clear();
        }
        self.note(standing)
    }

    /// Notes that a group has this table. Nothing is noted of a pool of which no standing is known: that comes first.
    pub fn note_table(&self, seen: &TableSeen) -> Result<()> {
        let mut last = self.last.lock();
        let Some(before) = last.as_ref() else { return Ok(()) };
        let noted = (seen.group, seen.epoch, seen.draw);
        if before.tables.contains(&noted) {
            return Ok(());
        }
        let mut record = LastState { sequence: before.sequence + 1, noted: units::now(), ..before.clone() };
        record.tables.retain(|(group, ..)| *group != seen.group);
        record.tables.push(noted);
        self.write(&mut last, record)
    }

    /// Notes the state of the pool, in place of any earlier note.
    pub fn note(&self, standing: &Standing) -> Result<()> {
        let earlier = standing.opening.earlier.iter().filter(|earlier| earlier.id.number > 0);
        let mut last = self.last.lock();
        let record = LastState {
            sequence: last.as_ref().map_or(0, |record| record.sequence) + 1,
            tables: last.as_ref().map(|record| record.tables.clone()).unwrap_or_default(),
            noted: units::now(),
            generation: standing.generation,
            opening: (standing.opening.id.number, standing.opening.id.nonce),
            opened: standing.opening.time,
            earlier: earlier.map(|one| (one.id.number, one.id.nonce, one.generation)).collect(),
        };
        self.write(&mut last, record)
    }

    fn write(&self, last: &mut Option<LastState>, record: LastState) -> Result<()> {
        let writing = || format!("cannot write {}", self.path.display());
        let mut bytes = serde_json::to_vec(&record).context(writing)?;
        if bytes.len() > PLACE_BYTES {
            return Err(Failure::new(format!("{}: the pool has too many mirrors for its note", writing())));
        }
        bytes.resize(PLACE_BYTES, b' ');
        let place = record.sequence % 2 * PLACE_BYTES as u64;
        self.file.write_all_at(&bytes, place).and_then(|()| self.file.sync_data()).context(writing)?;
        *last = Some(record);
        Ok(())
    }
}

/// Removes the note about a pool.
pub fn forget(guid: &str) -> Result<()> {
    let path = path_of(guid)?;
    match fs::remove_file(&path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).context(|| format!("cannot remove {}", path.display()))
        }
        _ => Ok(()),
    }
}
