//! Holds the context of one run of the bench: its folder, its sizes and times, and its results so far.

use std::cell::{Cell, OnceCell, RefCell};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::data::Prepared;
use crate::host::disk::Shelf;
use crate::host::throttle::{self, Throttled, Throttler};
use crate::results::{Profile, Results};
use crate::systems::{Options, System, Volume};
use crate::tools::postgres::Postgres;

/// Lines of a server's log that are shown when a scenario fails.
const LOG_LINES: usize = 8;

/// Sizes and times, for a full run or a quick one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scale {
    /// Shorter, smaller, fewer systems; for development and for CI.
    pub(crate) quick: bool,
    /// Alternated repetitions of each measurement.
    pub(crate) repetitions: usize,
    /// Length of one measurement by fio, in seconds.
    pub(crate) seconds: f64,
    /// Size of a system's device, in bytes.
    pub(crate) disk_bytes: u64,
    /// Size of the heap of each of the five scanned tables, in bytes.
    pub(crate) table_bytes: u64,
    /// Size of the file that COPY reads, in bytes.
    pub(crate) copy_bytes: u64,
    /// Size of the file for random reads that miss every cache, in bytes.
    pub(crate) random_file_bytes: u64,
    /// Memory of a database and its file system together, in bytes; the database is four times as large.
    pub(crate) oltp_memory_bytes: u64,
    /// Length of one measurement with a database, in seconds.
    pub(crate) oltp_seconds: u64,
}

impl Scale {
    /// Returns the sizes and times of a run.
    pub(crate) fn new(quick: bool) -> Self {
        if quick {
            Self {
                quick,
                repetitions: 2,
                seconds: 2.0,
                disk_bytes: 3 << 30,
                table_bytes: 64 << 20,
                copy_bytes: 128 << 20,
                random_file_bytes: 512 << 20,
                oltp_memory_bytes: 384 << 20,
                oltp_seconds: 10,
            }
        } else {
            Self {
                quick,
                repetitions: 3,
                seconds: 5.0,
                disk_bytes: 5 << 30,
                table_bytes: 256 << 20,
                copy_bytes: 1_000_000_000,
                random_file_bytes: 2 << 30,
                oltp_memory_bytes: 512 << 20,
                oltp_seconds: 45,
            }
        }
    }

    /// Returns the same with another number of repetitions, if one is given.
    pub(crate) fn repeated(self, repetitions: Option<u8>) -> Self {
        Self { repetitions: repetitions.map_or(self.repetitions, usize::from), ..self }
    }

    /// Returns the length of one measurement by fio.
    pub(crate) fn duration(&self) -> Duration {
        Duration::from_secs_f64(self.seconds)
    }
}

/// The context of every scenario.
pub(crate) struct Bench {
    dir: PathBuf,
    pagefold: PathBuf,
    shelf: Shelf,
    throttler: OnceCell<Throttler>,
    postgres: OnceCell<Postgres>,
    prepared: OnceCell<Prepared>,
    serial: Cell<u32>,
    scale: Scale,
    without: Vec<String>,
    results: RefCell<Results>,
}

impl Bench {
    /// Makes a bench that works below `dir`.
    ///
    /// # Errors
    /// When the folder cannot be made.
    pub(crate) fn new(
        dir: &Path,
        pagefold: &Path,
        scale: Scale,
        without: Vec<String>,
        results: Results,
    ) -> Result<Self> {
        fs::create_dir_all(dir).with_context(|| format!("create {}", dir.display()))?;
        Ok(Self {
            dir: dir.to_owned(),
            pagefold: pagefold.to_owned(),
            shelf: Shelf::new(&dir.join("disks"))?,
            throttler: OnceCell::new(),
            postgres: OnceCell::new(),
            prepared: OnceCell::new(),
            serial: Cell::new(0),
            scale,
            without,
            results: RefCell::new(results),
        })
    }

    /// Returns the folder below which everything lies.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the program under test.
    pub(crate) fn pagefold(&self) -> &Path {
        &self.pagefold
    }

    /// Returns true if the user asked to leave the system out, by the beginning of its label.
    pub(crate) fn left_out(&self, system: System) -> bool {
        self.without.iter().any(|prefix| system.label().starts_with(prefix.as_str()))
    }

    /// Returns the shelf that devices are taken from.
    pub(crate) fn shelf(&self) -> &Shelf {
        &self.shelf
    }

    /// Returns the sizes and times of this run.
    pub(crate) fn scale(&self) -> &Scale {
        &self.scale
    }

    /// Returns the results so far.
    pub(crate) fn results(&self) -> &RefCell<Results> {
        &self.results
    }

    /// Returns a number that was not given out before.
    pub(crate) fn serial(&self) -> u32 {
        self.serial.set(self.serial.get() + 1);
        self.serial.get()
    }

    /// Returns PostgreSQL's programs.
    ///
    /// # Errors
    /// When PostgreSQL is not installed.
    pub(crate) fn postgres(&self) -> Result<&Postgres> {
        if let Some(found) = self.postgres.get() {
            return Ok(found);
        }
        let found = Postgres::find(&self.dir)?;
        Ok(self.postgres.get_or_init(|| found))
    }

    /// Returns the prepared clusters and pages.
    pub(crate) fn prepared(&self) -> &Prepared {
        self.prepared.get_or_init(|| Prepared::new(&self.dir.join("prepared")))
    }

    /// Puts a volume's device under the profile until the guard is dropped.
    ///
    /// # Errors
    /// When the throttle does not hold.
    pub(crate) fn profile(&self, profile: Profile, volume: &Volume) -> Result<Option<Throttled>> {
        match profile {
            Profile::Free => Ok(None),
            Profile::Throttled => Ok(Some(self.throttler()?.apply(volume.disk())?)),
        }
    }

    /// Verifies the throttle, unless that was done: before a scenario takes the room that this needs, and an hour.
    ///
    /// # Errors
    /// When the throttle does not hold.
    pub(crate) fn verify(&self, profile: Profile) -> Result<()> {
        if profile == Profile::Throttled {
            self.throttler()?;
        }
        Ok(())
    }

    fn throttler(&self) -> Result<&Throttler> {
        if let Some(found) = self.throttler.get() {
            return Ok(found);
        }
        let throttler = Throttler::open(&self.dir)?;
        self.progress("throttle: verifying that it holds");
        let disk = self.shelf.take(self.scale.disk_bytes)?;
        let mut found = throttle::measure_raw(&throttler, &disk)?;
        drop(disk);
        let volume = Volume::create(self, System::Ext4, self.scale.disk_bytes, &Options::default())?;
        let throttled = throttler.apply(volume.disk())?;
        found.writeback_mb = throttle::measure_write_back(volume.path())?;
        drop((throttled, volume));
        found.check()?;
        self.results.borrow_mut().throttle = Some(found);
        Ok(self.throttler.get_or_init(|| throttler))
    }

    /// Returns the last lines of the newest log of a Pagefold server; empty if there is none.
    pub(crate) fn server_log(&self) -> String {
        let folder = self.dir.join("pagefold").join("log");
        let newest =
            fs::read_dir(folder).ok().into_iter().flatten().flatten().max_by_key(|entry| {
                entry.metadata().and_then(|m| m.modified()).unwrap_or(std::time::UNIX_EPOCH)
            });
        let text = newest.and_then(|entry| fs::read_to_string(entry.path()).ok()).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        let start = lines.len().saturating_sub(LOG_LINES);
        lines.get(start..).unwrap_or_default().join("\n")
    }

    /// Prints what is being done, with the time.
    pub(crate) fn progress(&self, what: &str) {
        eprintln!("{}  {what}", clock());
    }
}

/// Returns the time of day, UTC, for progress lines.
fn clock() -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_secs());
    format!("{:02}:{:02}:{:02}", now / 3600 % 24, now / 60 % 60, now % 60)
}
