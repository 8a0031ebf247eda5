//! The state of each dataset that is replicated from this machine: how far the repository is behind, and what the last
//! failure was.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use pagefold_backup::Backup;
use pagefold_server::failure::{Context, Failure, Result};
use pagefold_server::{backups, files, units};
use serde::{Deserialize, Serialize};

use super::attempts::{Failed, folder, read_state, write_state};
use super::create::snapshot_of;
use super::run::planned;
use crate::{datasets, target};

const SUFFIX: &str = ".replica";

/// State of a dataset that is replicated; the replicating process writes it to this machine after each cycle.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Replica {
    /// `POOL/DATASET`.
    pub name: String,
    /// The repository.
    pub repository: String,
    /// Id of the repository: another one may have been made at the same place.
    pub repository_id: Option<String>,
    /// Number of seconds that the repository may be behind.
    pub every_s: u64,
    /// Id of the process.
    pub pid: u32,
    /// Moment whose state of the dataset the repository has, in milliseconds since 1970.
    pub as_of_ms: Option<u64>,
    /// The snapshot that the repository has.
    pub snapshot: Option<String>,
    /// The snapshot that is being sent, or whose sending was interrupted.
    pub sending: Option<String>,
    /// The backup's number.
    pub number: Option<u64>,
    /// The last cycle, if it failed.
    pub failed: Option<Failed>,
    /// Number of cycles since the process began.
    pub cycles: u64,
    /// Number of those cycles in which nothing had changed.
    pub idle_cycles: u64,
    /// Longest time that the repository was behind since the process began, in milliseconds.
    pub worst_ms: u64,
    /// Number of bytes that were uploaded since the process began.
    pub put_bytes: u64,
    /// Number of objects that were written since the process began.
    pub puts: u64,
    /// Number of requests of other kinds since the process began.
    pub others: u64,
}

/// Returns the time in milliseconds since 1970.
pub(super) fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    u64::try_from(now).unwrap_or(u64::MAX)
}

/// Returns the path of a dataset's file. Slashes are encoded, since a file name can have none.
fn file_of(name: &str, suffix: &str) -> Result<PathBuf> {
    let plain = name.replace('%', "%25").replace('/', "%2F");
    Ok(folder()?.join(format!("{plain}{suffix}")))
}

impl Replica {
    /// Reads the state of a dataset; `None` if there is none, or if the file is not whole.
    pub(super) fn read(name: &str) -> Result<Option<Self>> {
        read_state(&file_of(name, SUFFIX)?, "the next cycle writes it anew")
    }

    /// Writes the state.
    pub(super) fn write(&self) -> Result<()> {
        write_state(&file_of(&self.name, SUFFIX)?, self)
    }

    /// Removes the state of a dataset; false if there was none.
    pub(super) fn remove(name: &str) -> Result<bool> {
        let file = file_of(name, SUFFIX)?;
        match fs::remove_file(&file) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error).context(|| format!("cannot remove {}", file.display())),
        }
    }

    /// Returns the snapshots that the pool holds for the replica.
    pub(super) fn held(&self) -> BTreeSet<String> {
        self.snapshot.iter().chain(&self.sending).cloned().collect()
    }

    /// Returns true if this is a backup of the snapshot whose sending was interrupted.
    pub(super) fn has_sent(&self, backup: &Backup) -> bool {
        self.sending.as_ref() == Some(&backup.snapshot)
    }

    /// Notes that the repository has this backup.
    pub(super) fn take(&mut self, backup: &Backup) {
        self.snapshot = Some(backup.snapshot.clone());
        self.sending = None;
        self.number = Some(backup.number);
        self.as_of_ms = Some(backup.origin.created.saturating_mul(1000));
    }

    /// Notes that a snapshot is gone.
    pub(super) fn let_go(&mut self, snapshot: &str) {
        for held in [&mut self.snapshot, &mut self.sending] {
            held.take_if(|held| held == snapshot);
        }
    }

    /// Returns the states of all datasets.
    fn all() -> Result<Vec<Self>> {
        let folder = folder()?;
        let doing = || format!("cannot read {}", folder.display());
        let entries = match fs::read_dir(&folder) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.context(doing)?,
        };
        let mut all = Vec::new();
        for entry in entries {
            let name = entry.context(doing)?.file_name();
            let name = name.to_string_lossy().into_owned();
            let Some(plain) = name.strip_suffix(SUFFIX) else { continue };
            all.extend(Self::read(&plain.replace("%2F", "/").replace("%25", "%"))?);
        }
        all.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(all)
    }
}

/// Takes a dataset's lock: two processes would destroy each other's snapshots.
pub(super) fn lock(name: &str) -> Result<File> {
    let folder = folder()?;
    fs::create_dir_all(&folder).context(|| format!("cannot make {}", folder.display()))?;
    files::try_locked(&file_of(name, ".lock")?)?.ok_or_else(|| {
        Failure::new(format!("{name} is being replicated by another process"))
            .hint("see it: ps -C pagefold -o pid,args; end it first")
    })
}

/// A replica, and how far its repository is behind the dataset.
#[derive(Clone, Debug, Serialize)]
pub struct Behind {
    /// State that its process has written.
    #[serde(flatten)]
    pub replica: Replica,
    /// Age in seconds of the state that the repository has: that much would be lost with the machine; `None` if there
    /// is no backup.
    pub lag_s: Option<u64>,
    /// Bytes, as stored, that were written since that state; `None` if the pool is not mounted, or the snapshot is
    /// gone.
    pub lag_bytes: Option<u64>,
    /// True if it is further behind than was wanted, or if there is no backup.
    pub late: bool,
}

impl Behind {
    /// Returns true if somebody has to do something.
    pub fn is_wrong(&self) -> bool {
        self.late || self.replica.failed.is_some()
    }

    /// Returns the state in words.
    pub fn text(&self) -> String {
        let Replica { name, repository, every_s, failed, .. } = &self.replica;
        let bytes = self.lag_bytes.map_or(String::new(), |bytes| format!(", {}", units::size(bytes)));
        let lag = match self.lag_s {
            Some(lag) => format!("{} behind{bytes}", units::age(lag)),
            None => "there is no backup yet".into(),
        };
        let late = if self.late { "LATE, " } else { "" };
        let every = backups::every_text(*every_s);
        match failed {
            Some(failed) => format!("{name}: {late}{lag}, wanted {every}, to {repository}: {}", failed.what),
            None => format!("{name}: {late}{lag}, wanted {every}, to {repository}"),
        }
    }
}

/// Returns the replicas of a pool's datasets, and the datasets whose property asks for a replica that no process keeps.
pub fn replicas(pool: &str) -> Result<Vec<Behind>> {
    let of_pool = |replica: &Replica| replica.name.split('/').next() == Some(pool);
    let mut known: Vec<Replica> = Replica::all()?.into_iter().filter(of_pool).collect();
    let served = target::connect(pool)?.is_some();
    if served {
        known.extend(unkept(pool, &known)?);
    }
    if known.is_empty() {
        return Ok(Vec::new());
    }
    let figures = if served { datasets::of_pool(pool)? } else { Vec::new() };
    let now = now_ms();
    let behind = |replica: Replica| {
        let lag_ms = replica.as_of_ms.map(|as_of| now.saturating_sub(as_of));
        let path = replica.name.split_once('/').map_or("", |(_, path)| path);
        let of_it = || figures.iter().filter(move |figures| figures.path.split('@').next() == Some(path));
        let at = of_it().find(|figures| replica.snapshot.as_deref() == Some(snapshot_of(figures)));
        // The sum covers what the dataset has since its newest snapshot, and what was written for each snapshot after
        // ours.
        let since = |at: &datasets::DatasetFigures| {
            let later = of_it()
                .filter(|other| !other.is_snapshot || (other.created, &other.path) > (at.created, &at.path));
            later.map(|other| other.written_bytes).sum()
        };
        Behind {
            lag_s: lag_ms.map(|lag| lag / 1000),
            lag_bytes: at.map(since),
            late: lag_ms.is_none_or(|lag| lag > replica.every_s.saturating_mul(1000)),
            replica,
        }
    };
    Ok(known.into_iter().map(behind).collect())
}

/// Returns the datasets whose property asks for a replica, and of which no process has written a state.
fn unkept(pool: &str, known: &[Replica]) -> Result<Vec<Replica>> {
    let mut all = Vec::new();
    for planned in planned(pool)? {
        let name = planned.name.to_string();
        let Ok(policy) = planned.policy else { continue };
        if !policy.is_continuous() || known.iter().any(|replica| replica.name == name) {
            continue;
        }
        let what = format!(
            "no process replicates it: systemctl enable --now pagefold-replicate@$(systemd-escape {name})"
        );
        let failed = Some(Failed { at: units::now(), what, hint: None });
        all.push(Replica {
            name,
            repository: policy.repository,
            every_s: policy.every,
            failed,
            ..Replica::default()
        });
    }
    Ok(all)
}
