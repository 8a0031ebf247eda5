//! Opens datasets that are not complete: the rest of their pages is in a backup, which another process reads
//! ([decision 0048](../../../docs/decisions/0048-backup-mount.md)).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use pagefold_engine::dataset::Dataset;
use pagefold_engine::pool::Pool;
use pagefold_lazy::{Hydrating, Link, Lower, Origin, Overlay, Wishes, origin_of};
use parking_lot::{Condvar, Mutex};

use crate::failure::{Context, Failure, Result};
use crate::{files, names, raw, units};

/// Pause between two questions to the reading process about what to fetch.
const ASK: Duration = Duration::from_secs(2);
/// Pause between two lines in the log that tell how much is left.
const TELL: Duration = Duration::from_secs(60);
/// Time that a server which goes on with a mount waits for the process that reads the backup, until that process has
/// told its own patience.
const PATIENCE: Duration = Duration::from_secs(120);

/// A dataset that is ready for use.
pub(crate) struct OpenedDataset {
    /// The dataset itself, or an overlay of it over the backup.
    pub dataset: Arc<dyn Dataset>,
    /// The thread that holds the process which reads the backup, and fetches the rest when asked to; `None` if the
    /// dataset is complete.
    pub bringing: Option<Fetcher>,
}

/// The way to open a dataset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OverlayMode {
    /// True if pages that are read from the backup stay in the dataset; otherwise it is not changed.
    pub writable: bool,
    /// True after the death of the server that had it open: it is opened even if the backup cannot be read just now.
    pub resumed: bool,
}

/// Property of a dataset that is made of a backup: the repository and the backup's number.
pub const OF: &str = "backup:of";

/// Returns where the rest of a dataset or snapshot is; `None` if it is complete. If damage hides that, a dataset that
/// was not made of a backup counts as complete.
fn origin(pool: &Pool, path: &str, dataset: &dyn Dataset) -> Result<Option<Origin>> {
    let name = names::full(pool.name(), path);
    match origin_of(dataset) {
        Err(error)
            if error.is_damage() && matches!(pool.property_of(names::dataset_of(path), OF), Ok(None)) =>
        {
            tracing::warn!(dataset = name, %error, "cannot read if it is complete: taken for complete");
            Ok(None)
        }
        read => read.context(|| format!("cannot read if {name} is complete")),
    }
}

/// Returns `dataset`, which has `path` in the pool, over the backup that has the rest of it; or the dataset itself if
/// it is complete.
///
/// # Errors
/// If no process reads the backup.
pub(crate) fn open(
    pool: &Pool,
    path: &str,
    dataset: Arc<dyn Dataset>,
    how: OverlayMode,
) -> Result<OpenedDataset> {
    let Some((overlay, link)) = overlay_of(pool, path, &dataset, how)? else {
        return Ok(OpenedDataset { dataset, bringing: None });
    };
    let name = names::full(pool.name(), path);
    let bringing = Fetcher::start(&name, Arc::clone(&overlay), link, how.writable)?;
    Ok(OpenedDataset { dataset: overlay, bringing: Some(bringing) })
}

/// Does the same as [`open`] for a snapshot that is looked into below a mount of its dataset.
///
/// # Errors
/// If no process reads the backup.
pub(crate) fn look_into(pool: &Pool, path: &str, dataset: Arc<dyn Dataset>) -> Result<Arc<dyn Dataset>> {
    let how = OverlayMode { writable: false, resumed: false };
    match overlay_of(pool, path, &dataset, how)? {
        Some((overlay, _)) => Ok(overlay),
        None => Ok(dataset),
    }
}

/// Returns the overlay of a dataset over the backup that has the rest of it, and its link to the process that reads
/// that; `None` if the dataset is complete.
fn overlay_of(
    pool: &Pool,
    path: &str,
    dataset: &Arc<dyn Dataset>,
    how: OverlayMode,
) -> Result<Option<(Arc<Overlay>, Arc<Link>)>> {
    let name = &names::full(pool.name(), path);
    let Some(origin) = origin(pool, path, dataset.as_ref())? else { return Ok(None) };
    let (token, socket) = (origin.token(), files::reader_socket_of(origin.token()));
    let link = match how.resumed {
        true => Link::later(socket, token, PATIENCE),
        false => Link::open(socket, token).map_err(|error| unread(name, &origin, &error.to_string()))?,
    };
    let link = Arc::new(link);
    let overlay = Overlay::open(Arc::clone(dataset), Arc::clone(&link) as Arc<dyn Lower>, how.writable);
    let overlay = Arc::new(overlay.context(|| format!("cannot read what is absent of {name}"))?);
    let (pages, bytes) = overlay.absent();
    tracing::info!(
        dataset = name,
        backup = origin.backup,
        repository = origin.place,
        pages,
        bytes,
        "is not complete"
    );
    Ok(Some((overlay, link)))
}

fn unread(name: &str, origin: &Origin, why: &str) -> Failure {
    Failure::new(format!("{}; {why}", description(name, origin))).hint(going_on(name, origin))
}

fn description(name: &str, origin: &Origin) -> String {
    format!(
        "{name} is not complete: the rest is in the backup {} (number {}) of {}",
        raw::printable(&origin.name),
        origin.backup,
        raw::printable(&origin.place)
    )
}

/// Returns the command that goes on with it. The place comes from the pool and is quoted: somebody may run the command
/// as it is.
fn going_on(name: &str, origin: &Origin) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-:@+".contains(c);
    let place = raw::printable(&origin.place);
    let place = match place.chars().all(is_plain) && !place.starts_with('-') {
        true => place,
        false => format!("'{}'", place.replace('\'', "'\\''")),
    };
    format!("pagefold backup mount {place} {} {}", origin.backup, names::dataset_of(name))
}

/// Returns an error if a dataset or snapshot is not complete: work with its records would see only a part of them.
pub fn refuse(pool: &Pool, path: &str, doing: &str) -> Result<()> {
    // The caller reports a name that does not exist.
    let Ok(version) = pool.version(path) else { return Ok(()) };
    let name = names::full(pool.name(), path);
    match origin(pool, path, version.as_ref())? {
        None => Ok(()),
        Some(origin) => {
            let dataset = names::dataset_of(path);
            let is_whole =
                pool.version(dataset).is_ok_and(|version| matches!(origin_of(&*version), Ok(None)));
            Err(Failure::new(format!("cannot {doing} {name}: {}", description("it", &origin)))
                .hint(bringing(&name, &origin, is_whole)))
        }
    }
}

/// Returns the step that helps with a dataset or snapshot that is not complete. A snapshot stays as it is, whatever is
/// brought into its dataset. `is_whole` tells that the dataset is complete by now.
fn bringing(name: &str, origin: &Origin, is_whole: bool) -> String {
    let dataset = names::dataset_of(name);
    let rest = format!("have the rest brought first: {} --hydrate", going_on(name, origin));
    match (dataset == name, is_whole) {
        (true, _) => rest,
        (false, true) => format!(
            "{name} stays as it is, but {dataset} is complete by now: use another snapshot: pagefold snapshot {dataset}@NAME"
        ),
        (false, false) => format!(
            "{rest}\n  {name} stays as it is even then: use another snapshot: pagefold snapshot {dataset}@NAME"
        ),
    }
}

/// The thread that asks what to fetch, and fetches it. It ends when this is dropped.
///
/// It asks over a connection, and makes another one when that has ended. So the process that reads the backup is never
/// without one for long, and does not end as one that nobody needs, whether pages are read or not.
pub(crate) struct Fetcher {
    shared: Arc<FetcherState>,
    link: Arc<Link>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct FetcherState {
    stop: AtomicBool,
    stopped: (Mutex<()>, Condvar),
}

impl Fetcher {
    /// Starts it. It fetches nothing that is not read unless the overlay is `writable`.
    fn start(name: &str, overlay: Arc<Overlay>, link: Arc<Link>, writable: bool) -> Result<Self> {
        let shared: Arc<FetcherState> = Arc::default();
        let (name, with, asked) = (name.to_owned(), Arc::clone(&shared), Arc::clone(&link));
        let thread = thread::Builder::new().name("bringing".into());
        let thread = thread.spawn(move || with.work(&name, &overlay, &asked, writable));
        let thread = Some(thread.context(|| "cannot start a thread".into())?);
        Ok(Self { shared, link, thread })
    }
}

impl Drop for Fetcher {
    fn drop(&mut self) {
        let held = self.shared.stopped.0.lock();
        self.shared.stop.store(true, Ordering::Release);
        drop(held);
        self.shared.stopped.1.notify_all();
        // This does not wait for an answer of a store that cannot be reached.
        self.link.close();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been reported.
            let _ = thread.join();
        }
    }
}

impl FetcherState {
    fn work(&self, name: &str, overlay: &Arc<Overlay>, link: &Link, writable: bool) {
        let (mut wanted, mut under_way, mut told) = (Wishes::default(), None, Instant::now());
        while !self.stop.load(Ordering::Acquire) && !overlay.is_complete() {
            // If the process cannot be asked, its last wishes hold.
            let wishes = link.wishes().unwrap_or(wanted);
            if wishes != wanted {
                drop(under_way.take());
                wanted = wishes;
                if wishes.hydrate && writable {
                    under_way = start(name, overlay, wishes.rate);
                }
            }
            if under_way.is_some() && told.elapsed() >= TELL {
                let (pages, bytes) = overlay.absent();
                tracing::info!(dataset = name, pages, left = units::size(bytes), "is being completed");
                told = Instant::now();
            }
            let mut held = self.stopped.0.lock();
            if !self.stop.load(Ordering::Acquire) {
                self.stopped.1.wait_for(&mut held, ASK);
            }
        }
        drop(under_way);
        if overlay.is_complete() {
            link.close();
            tracing::info!(dataset = name, "is complete: the backup is not needed any more");
        }
    }
}

fn start(name: &str, overlay: &Arc<Overlay>, rate: Option<u64>) -> Option<Hydrating> {
    match Hydrating::start(Arc::clone(overlay), rate) {
        Ok(hydrating) => Some(hydrating),
        Err(error) => {
            tracing::warn!(dataset = name, %error, "cannot start threads: nothing is brought but what is read");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_pool_says_of_itself_is_no_command() {
        let origin = |place: &str| Origin {
            repository: [1; 16],
            backup: 7,
            place: place.into(),
            name: "tank/db@a".into(),
        };
        let plain = going_on("tank/db@x", &origin("s3://bucket/tank"));
        assert_eq!(plain, "pagefold backup mount s3://bucket/tank 7 tank/db");
        let hostile = going_on("tank/db", &origin("/x'; rm -rf $(pwd) #"));
        assert_eq!(hostile, "pagefold backup mount '/x'\\''; rm -rf $(pwd) #' 7 tank/db");
        assert!(going_on("tank/db", &origin("-rf")).contains("'-rf'"));
    }

    #[test]
    fn a_snapshot_that_will_never_be_complete_is_told_as_one() {
        let origin = Origin { repository: [1; 16], backup: 7, place: "/b".into(), name: "tank/db@a".into() };
        let told = |name: &str, is_whole| bringing(name, &origin, is_whole);
        let rest = "have the rest brought first: pagefold backup mount /b 7 tank/db --hydrate";
        let another = "use another snapshot: pagefold snapshot tank/db@NAME";
        assert_eq!(told("tank/db", false), rest);
        assert_eq!(
            told("tank/db@x", false),
            format!("{rest}\n  tank/db@x stays as it is even then: {another}")
        );
        assert_eq!(
            told("tank/db@x", true),
            format!("tank/db@x stays as it is, but tank/db is complete by now: {another}")
        );
    }
}
