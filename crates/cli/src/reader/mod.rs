//! The process that reads a backup. It has network and keys, and has given up all other rights
//! ([decision 0048](../../../../docs/decisions/0048-backup-mount.md)).
//!
//! It mounts the backup, read-only; or the server of a pool, which has neither network nor keys, asks it for pages of a
//! dataset that is not complete. It ends with its mount, or when no server has been connected for a while.

mod socket;
mod task;

use std::io::Read;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use pagefold_backup::{Contents, Patience};
use pagefold_engine::dataset::Dataset;
use pagefold_fs::{AtimePolicy, Fs, FsOptions, SystemClock};
use pagefold_fuse::{Dispatch, Mounter, Session};
use pagefold_lazy::{Answers, BackupDataset, Greeting, ReadOptions, Token, Wishes, origin_of, serve};
use pagefold_server::failure::{Context, Failure, Result};
use pagefold_server::mounter::MounterClient;
use pagefold_server::mountopts::{self, MountOptions};
use pagefold_server::report::{self, StartReport};
use pagefold_server::serve::{self, events};
use pagefold_server::{confine, files, mounts, spawn, units};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use socket::{Lock, Socket};
pub use task::{MountSpec, Opening, RepositorySource, Task};

use crate::backup_errors;

/// Largest length of a task in bytes.
const TASK_BYTES_MAX: u64 = 1 << 20;
/// Time limits of requests to a store. They are short because reads retry by themselves.
const PATIENCE: Patience = Patience { request: Duration::from_secs(30), retry: Duration::from_secs(5) };
/// Time without any connection after which the process ends.
const IDLE: Duration = Duration::from_secs(60);
/// Returns true for the path of such a process's socket.
pub fn is_socket(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == files::READER_EXTENSION)
}

/// Figures of the reading of a backup, as `backup mounts` shows them.
#[derive(Debug, Serialize, Deserialize)]
pub struct ReaderFigures {
    /// Number of the process.
    pub pid: u32,
    /// The repository, as the user named it.
    pub repository: String,
    /// Number of the backup.
    pub backup: u64,
    /// Name of the backup.
    pub name: String,
    /// Directory where it is mounted; `None` if it is read for datasets.
    pub dir: Option<PathBuf>,
    /// Bytes of the backup's records.
    pub record_bytes: u64,
    /// Bytes that were read from the store.
    pub read_bytes: u64,
    /// Number of read requests to the store.
    pub requests: u64,
    /// Decrypted blocks in memory, in bytes.
    pub cache_bytes: u64,
    /// Seconds for which the store has not answered; `None` if it answers.
    pub outage_s: Option<u64>,
    /// The reason for that.
    pub outage: Option<String>,
    /// True if pages that nobody reads are fetched, too.
    pub hydrate: bool,
}

/// Carries out the task that comes over standard input.
pub fn run() -> Result<()> {
    spawn::settle(None, true)?;
    crate::ignore_sigpipe();
    let _events = events::start();
    let done = prepare();
    let running = match done {
        Ok(running) => running,
        Err(failure) => {
            report::send(&StartReport::failed(&failure));
            return Err(failure);
        }
    };
    report::send(&StartReport::Ready {});
    running.until_the_end()
}

fn task() -> Result<Task> {
    let mut text = Vec::new();
    let read = std::io::stdin().lock().take(TASK_BYTES_MAX).read_to_end(&mut text);
    read.context(|| "cannot read the task".into())?;
    serde_json::from_slice(&text)
        .context(|| "this is started by `pagefold backup mount`, not by people".into())
}

/// Opens the backup, and mounts it or listens. The mounter is started, and rights are given up, before anything of the
/// repository is read.
fn prepare() -> Result<RunningReader> {
    let task = task()?;
    rustix::process::setsid().map(drop).context(|| "cannot start a session".into())?;
    rustix::process::chdir("/").context(|| "cannot change to /".into())?;
    let options = match &task.place {
        Some(place) => mountopts::parse(&place.options)?,
        None => MountOptions::default(),
    };
    let signals = Signals::new([SIGTERM, SIGINT]).context(|| "cannot catch signals".into())?;
    let location = task.source.location()?;
    // The mounter may mount backups, and nothing of any pool.
    let asking =
        task.place.as_ref().map(|_| MounterClient::start(mounts::BACKUP_SOURCE, &options)).transpose()?;
    let lock = Lock::open()?;
    confine::reader(options.confine.unwrap_or_default(), &location)?;
    let doing = || format!("cannot read the backup {} of {}", task.backup, task.source.repository);
    let told = |error: &pagefold_backup::Error| backup_errors::failed(doing(), error);
    let repository = task.source.open(PATIENCE).map_err(|why| match why {
        Opening::Told(error) => told(&error),
        Opening::Failed(failure) => failure,
    })?;
    let backup = repository.find(&task.backup).map_err(|error| told(&error))?;
    let contents = Contents::open(repository, backup).map_err(|error| told(&error))?;
    let session: Arc<OnceLock<Session>> = Arc::default();
    let watched = Arc::clone(&session);
    let dataset = BackupDataset::new(contents, read_options(&task, watched));
    if origin_of(dataset.as_ref()).context(doing)?.is_some() {
        return Err(Failure::new(format!(
            "{}: it is of a dataset that was not complete itself, and has only a part of its pages",
            doing()
        ))
        .hint("mount the backup that this dataset was made of"));
    }
    let token = token_of(dataset.contents())?;
    // A process for datasets listens under the name that their servers know. One with a mount is only asked for
    // figures.
    let socket = if task.place.is_some() { own_socket() } else { files::reader_socket_of(token) };
    let (listener, socket) = Socket::listen(&socket, token, lock)?;
    if let (Some(place), Some(mounter)) = (&task.place, asking) {
        let mounted = mount(&dataset, Arc::new(mounter), place, &options)?;
        // This is the first value; it cannot fail.
        let _first = session.set(mounted);
    }
    let running = RunningReader {
        listener,
        socket: Arc::new(socket),
        session,
        answers: answers(&task, dataset, token),
    };
    running.end_when_told(signals)?;
    Ok(running)
}

fn read_options(task: &Task, session: Arc<OnceLock<Session>>) -> ReadOptions {
    let defaults = ReadOptions::default();
    ReadOptions {
        patience: Duration::from_secs(task.patience_s),
        // A mount that was taken away does not need the store any more.
        wanted: Box::new(move || session.get().is_none_or(Session::is_attached)),
        cache_bytes: task.cache_bytes.unwrap_or(defaults.cache_bytes),
    }
}

/// Returns the token of the backup.
pub fn token_of(contents: &Contents) -> Result<Token> {
    Ok(Token::new(&repository_bytes(contents)?, contents.backup().number))
}

/// Returns the repository's identity in bytes.
pub fn repository_bytes(contents: &Contents) -> Result<[u8; 16]> {
    let id = u128::from_str_radix(&contents.repository_id(), 16);
    Ok(id.context(|| "the repository has no name".into())?.to_be_bytes())
}

fn own_socket() -> PathBuf {
    files::runtime_dir().join(format!("backup-mount-{}.{}", std::process::id(), files::READER_EXTENSION))
}

fn mount(
    dataset: &Arc<BackupDataset>,
    mounter: Arc<dyn Mounter>,
    place: &MountSpec,
    options: &MountOptions,
) -> Result<Session> {
    let name = dataset.contents().backup().name();
    let fs_options = FsOptions { atime: AtimePolicy::Never, read_only: true, ..FsOptions::default() };
    let fs = Fs::mount(Arc::clone(dataset) as Arc<dyn Dataset>, Arc::new(SystemClock), fs_options);
    let fs = fs.context(|| format!("cannot open the file system of {name}"))?;
    let source = mounts::backup_source(dataset.contents().backup());
    let fuse_options = serve::fuse_options(&source, options, true);
    let handler = Arc::new(Dispatch::new(fs));
    let session = Session::mount_by(mounter, handler, &place.dir, &fuse_options);
    let session = session.map_err(|error| serve::mount_failed(&error))?;
    tracing::info!(backup = name, dir = pagefold_server::raw::text(session.dir()), "mounted");
    Ok(session)
}

fn answers(task: &Task, dataset: Arc<BackupDataset>, token: Token) -> Arc<Answers> {
    let place = task.place.as_ref().map(|place| place.dir.clone());
    let repository = task.source.repository.clone();
    Arc::new_cyclic(|this: &std::sync::Weak<Answers>| {
        let this = this.clone();
        let of = Arc::clone(&dataset);
        let figures = move || {
            let read = of.figures();
            let backup = of.contents().backup();
            let (outage_s, outage) = read.outage.unzip();
            let figures = ReaderFigures {
                pid: std::process::id(),
                repository: repository.clone(),
                backup: backup.number,
                name: backup.name(),
                dir: place.clone(),
                record_bytes: backup.totals.record_bytes,
                read_bytes: read.requests.get_bytes,
                requests: read.requests.gets,
                cache_bytes: read.kept_bytes,
                outage_s,
                outage,
                hydrate: this.upgrade().is_some_and(|answers| answers.wishes.lock().hydrate),
            };
            serde_json::to_string(&figures).unwrap_or_default()
        };
        Answers {
            dataset,
            greeting: Greeting { token, patience: Duration::from_secs(task.patience_s) },
            wishes: Mutex::new(Wishes { hydrate: task.hydrate, rate: task.rate }),
            figures: Box::new(figures),
        }
    })
}

/// A backup that is being read.
struct RunningReader {
    listener: UnixListener,
    socket: Arc<Socket>,
    session: Arc<OnceLock<Session>>,
    answers: Arc<Answers>,
}

impl RunningReader {
    /// Takes the mount away when this process is told to end; ends at once if there is no mount.
    fn end_when_told(&self, mut signals: Signals) -> Result<()> {
        let (session, socket) = (Arc::clone(&self.session), Arc::clone(&self.socket));
        let spawned = thread::Builder::new().name("signals".into()).spawn(move || {
            for signal in signals.forever() {
                tracing::info!(signal, "told to end");
                let Some(session) = session.get() else {
                    socket.remove();
                    std::process::exit(0);
                };
                if let Err(error) = session.unmount(true) {
                    tracing::warn!(%error, "cannot detach the mount");
                }
            }
        });
        spawned.map(drop).context(|| "cannot start a thread".into())
    }

    fn until_the_end(self) -> Result<()> {
        let Self { listener, socket, session, answers } = self;
        let served = match session.get() {
            None => {
                let served = serve(&listener, &answers, Some(IDLE));
                // Whoever has connected a moment ago is not kept waiting.
                drop(listener);
                served
            }
            Some(session) => {
                let asked = Arc::clone(&answers);
                let spawned = thread::Builder::new().name("figures".into()).spawn(move || {
                    if let Err(error) = serve(&listener, &asked, None) {
                        tracing::warn!(%error, "nobody is told figures any more");
                    }
                });
                spawned.context(|| "cannot start a thread".into())?;
                session.wait();
                Ok(())
            }
        };
        socket.remove();
        let read = answers.dataset.figures().requests;
        tracing::info!(requests = read.gets, bytes = read.get_bytes, at = units::now(), "ended");
        served.context(|| "cannot hear who asks for pages".into())
    }
}
