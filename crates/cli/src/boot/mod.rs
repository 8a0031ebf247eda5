//! Tells systemd which devices each pool needs, and which databases lie on which pool
//! ([decision 0040](../../../../docs/decisions/0040-units-and-pool-properties.md)).
//!
//! All of it is drop-ins, small files beside existing units: `pagefold@POOL.service`, mount units that systemd makes
//! from `/etc/fstab`, and databases. The generator writes drop-ins at each boot and reload, from facts that are known
//! without opening a pool; `pagefold systemd install` writes those that need the pools' properties.

mod databases;
mod escape;
mod fstab;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use pagefold_server::failure::{Context, Result};
use pagefold_server::raw;
use pagefold_server::registry::{Known, Registry};

pub use databases::Database;
pub use fstab::Entry;

use crate::table::printable;
use crate::target;

/// First line of every file that Pagefold writes; a file that does not begin with it is somebody else's.
pub const MARK: &str = "# Written by pagefold";
/// File name of a drop-in. Those of the administrator usually sort after it.
const DROP_IN: &str = "50-pagefold.conf";
/// Environment variable that names a file to be read in place of `/etc/fstab`.
const FSTAB: &str = "SYSTEMD_FSTAB";
/// File that exists in containers, in which devices have no units.
const CONTAINER: &str = "run/systemd/container";

/// Facts about this machine.
#[derive(Debug, Default)]
pub struct Machine {
    /// Pools that this machine knows.
    pub pools: Vec<Known>,
    /// Lines of `/etc/fstab` that mount pools.
    pub fstab: Vec<Entry>,
    /// Databases that systemd starts.
    pub databases: Vec<Database>,
    /// True if devices have units.
    pub device_units: bool,
}

/// A directory at which a service mounts a dataset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServedDirectory {
    /// The dataset's pool.
    pub pool: String,
    /// The directory.
    pub dir: PathBuf,
}

/// Drop-ins by their paths below a directory of units.
pub type DropIns = BTreeMap<PathBuf, String>;

impl Machine {
    /// Reads `/etc/fstab` and the units below `root`, and the registry of this system.
    pub fn look(root: &Path) -> Result<Self> {
        // systemd's own generator reads the file that this variable names, too.
        let table = std::env::var_os(FSTAB).map_or_else(|| root.join("etc/fstab"), PathBuf::from);
        Ok(Self {
            pools: Registry::open()?.all()?,
            fstab: fs::read(table).map(|text| fstab::parse(&text)).unwrap_or_default(),
            databases: databases::find(root),
            device_units: !root.join(CONTAINER).exists(),
        })
    }

    /// Returns the drop-ins that follow from `/etc/fstab` and the devices of known pools.
    pub fn generated(&self) -> DropIns {
        let mut all = DropIns::new();
        for pool in &self.pools {
            let text = self.needs(pool);
            if !text.is_empty() {
                add(&mut all, &format!("pagefold@{}.service", pool.name), "the pool's devices", &text);
            }
        }
        for entry in &self.fstab {
            let mut text = String::from("Wants=modprobe@fuse.service\nAfter=modprobe@fuse.service\n");
            if let Some(pool) = self.pool_of(entry) {
                text.push_str(&self.needs(pool));
            }
            let unit = escape::unit_name(&entry.dir, "mount");
            add(&mut all, &unit, "a line of /etc/fstab and the pool's devices", &text);
        }
        for database in &self.databases {
            if self.fstab.iter().any(|entry| database.data.starts_with(&entry.dir)) {
                add(&mut all, &database.unit, "its data, on a pool of /etc/fstab", &requires(&database.data));
            }
        }
        all
    }

    /// Returns the drop-ins that follow from the directories at which services mount datasets: a database there starts
    /// after the service has mounted them, does not start if that failed, and is stopped before the service.
    pub fn of_services(&self, served: &[ServedDirectory]) -> DropIns {
        let mut all = DropIns::new();
        for database in &self.databases {
            let on = served.iter().filter(|served| database.data.starts_with(&served.dir));
            // The innermost directory counts.
            let Some(on) = on.max_by_key(|served| served.dir.components().count()) else { continue };
            let service = format!("pagefold@{}.service", on.pool);
            let text = format!("Requires={service}\nAfter={service}\n{}", requires(&database.data));
            add(&mut all, &database.unit, &format!("its data, on pool {}", on.pool), &text);
        }
        for pool in self.pools.iter().filter(|pool| served.iter().any(|served| served.pool == pool.name)) {
            let text = self.needs(pool);
            if !text.is_empty() {
                add(&mut all, &format!("pagefold@{}.service", pool.name), "the pool's devices", &text);
            }
        }
        all
    }

    /// Returns the pool that a line of `/etc/fstab` mounts.
    fn pool_of(&self, entry: &Entry) -> Option<&Known> {
        let device = Path::new(&entry.source);
        self.pools.iter().find(|pool| match entry.pool() {
            Some(name) => pool.name == name,
            None => pool.devices.iter().any(|known| known == device),
        })
    }

    /// Returns the settings for what a pool needs before it can be opened: its devices, and the file systems of devices
    /// that are files. A pool of several devices may do without one of them: it is waited for, and whether the others are
    /// enough is decided when the pool is opened; and one that vanishes later ends nothing.
    fn needs(&self, pool: &Known) -> String {
        let mut text = String::new();
        let bond = if pool.devices.len() > 1 { "Wants" } else { "BindsTo" };
        for path in &pool.devices {
            if !path.starts_with("/dev") {
                text.push_str(&requires(path));
            } else if self.device_units {
                let unit = escape::unit_name(path, "device");
                // Writing to a String cannot fail.
                let _ = write!(text, "{bond}={unit}\nAfter={unit}\n");
            }
        }
        text
    }
}

fn requires(path: &Path) -> String {
    match escape::word(path) {
        Some(word) => format!("RequiresMountsFor={word}\n"),
        None => format!("# systemd cannot be told of {}\n", printable(&raw::text(path))),
    }
}

/// Adds lines to the drop-in of a unit.
fn add(all: &mut DropIns, unit: &str, why: &str, text: &str) {
    let path = Path::new(&format!("{unit}.d")).join(DROP_IN);
    let file = all.entry(path).or_insert_with(|| format!("{MARK}: {why}.\n[Unit]\n"));
    for line in text.lines().filter(|line| !line.is_empty()) {
        if !file.lines().any(|there| there == line) {
            file.push_str(line);
            file.push('\n');
        }
    }
}

/// Writes drop-ins below a directory of units, unless they are there already. Returns the paths of those written.
pub fn write(dir: &Path, all: &DropIns) -> Result<Vec<PathBuf>> {
    let mut written = Vec::new();
    for (path, text) in all {
        let path = dir.join(path);
        let writing = || format!("cannot write {}", raw::text(&path));
        if fs::read_to_string(&path).is_ok_and(|there| there == *text) {
            continue;
        }
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).context(writing)?;
        }
        let new = path.with_extension("new");
        fs::write(&new, text).and_then(|()| fs::rename(&new, &path)).context(writing)?;
        written.push(path);
    }
    Ok(written)
}

/// Returns the paths of our drop-ins below a directory of units.
pub fn installed(dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    let files = entries.flatten().map(|entry| entry.path().join(DROP_IN));
    let mut ours: Vec<PathBuf> =
        files.filter(|path| fs::read_to_string(path).is_ok_and(|text| text.starts_with(MARK))).collect();
    ours.sort();
    ours
}

/// Runs the generator (systemd.generator(7)), which writes into the first of its directories. It opens no pool and
/// waits for nothing; it ignores what it cannot read early at boot.
pub fn generate(dir: &Path) -> Result<()> {
    write(dir, &Machine::look(Path::new("/"))?.generated()).map(drop)
}

/// Returns the directories at which the services of these pools mount datasets, by the property `mountpoint`.
pub fn served(pools: &[String]) -> Result<Vec<ServedDirectory>> {
    let mut all = Vec::new();
    for pool in pools {
        target::known(pool)?;
        for figures in crate::datasets::of_pool(pool)? {
            if !figures.is_snapshot && figures.mountpoint.starts_with('/') {
                all.push(ServedDirectory { pool: pool.clone(), dir: raw::path_of(&figures.mountpoint) });
            }
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests;
