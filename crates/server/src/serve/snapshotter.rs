//! Makes and removes snapshots by policy, once a minute.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use pagefold_engine::Error;
use pagefold_engine::pool::{Listed, Pool};
use parking_lot::{Condvar, Mutex, RwLock};

use super::exports::Exports;
use super::fullness::percent;
use crate::failure::{Context, Failure, Result};
use crate::operations::Mounts;
use crate::retention::{self, MARK, POLICY, Period, SnapshotChanges, SnapshotPolicy};
use crate::settings::{self, ListedProperties};
use crate::{engine_errors, names, props, units};

/// Share of its capacity, in per cent, from which on a pool gets no more snapshots by policy.
const LIMIT_PERCENT: u64 = 90;
/// Interval between two turns, in seconds; turns begin at full minutes.
const INTERVAL_SECONDS: u64 = 60;

/// Findings of a turn.
struct Plan {
    /// All datasets and snapshots.
    listed: Vec<Listed>,
    work: SnapshotChanges,
    /// The first policy that is not understood; its dataset has no work.
    unknown: Option<Failure>,
}

/// State that lasts from one turn to the next.
pub(crate) struct Turns {
    limit_percent: u64,
    /// True if the log says that the pool is above its limit.
    full: bool,
}

impl Default for Turns {
    fn default() -> Self {
        Self { limit_percent: LIMIT_PERCENT, full: false }
    }
}

impl Turns {
    /// Makes and removes the snapshots that are due at `now`, in seconds since 1970. Nothing is mounted while
    /// `dataset_lock` is locked for writing.
    pub(crate) fn turn(
        &mut self,
        pool: &Pool,
        mounts: &dyn Mounts,
        dataset_lock: &RwLock<()>,
        now: u64,
    ) -> Result<()> {
        // The list, which sums up all datasets, is made only if a policy exists.
        if !pool.is_set_anywhere(POLICY) {
            return Ok(());
        }
        let planned = self.plan(pool, now, true)?;
        if planned.work == SnapshotChanges::default() {
            return planned.unknown.map_or(Ok(()), Err);
        }
        let _unchanged = dataset_lock.write();
        let Plan { mut listed, mut work, unknown } = self.plan(pool, now, true)?;
        let due = std::mem::take(&mut work.due);
        let made = due.iter().map(|(name, period, datasets)| make(pool, name, *period, datasets, now));
        let failed = made.filter_map(Result::err).fold(None, |first, failure| first.or(Some(failure)));
        if failed.is_some() {
            // None goes to make room for one that could not be made. All others that are too many go.
            Plan { listed, work, .. } = self.plan(pool, now, false)?;
        }
        let removed = remove(pool, mounts, &listed, &work.too_many);
        failed.or(removed.err()).or(unknown).map_or(Ok(()), Err)
    }

    /// Returns the work that is due. Snapshots are made only if `may_be_made`.
    fn plan(&mut self, pool: &Pool, now: u64, may_be_made: bool) -> Result<Plan> {
        let failed = |error| engine_errors::failed("cannot see to snapshots by policy", &error);
        let listed = pool.list().map_err(failed)?;
        let (policies, unknown) = policies(pool.name(), &listed)?;
        let policy = |path: &str| policies.get(path).cloned().unwrap_or_default();
        let mut work = retention::work(&listed, now, may_be_made, &policy);
        if !work.due.is_empty() && self.is_full(pool) {
            work = retention::work(&listed, now, false, &policy);
        }
        Ok(Plan { listed, work, unknown })
    }

    /// Returns true if the pool is above its limit, and logs when that begins and ends.
    fn is_full(&mut self, pool: &Pool) -> bool {
        let status = pool.status();
        let used_bytes = status.capacity_bytes.saturating_sub(status.available_bytes);
        let used = percent(used_bytes, status.capacity_bytes);
        let full = used >= self.limit_percent;
        match (full, std::mem::replace(&mut self.full, full)) {
            (true, false) => tracing::warn!(
                used_bytes,
                "the pool is {used} % full: no snapshots are made by policy until it is below {} %",
                self.limit_percent
            ),
            (false, true) => tracing::info!(used_bytes, "snapshots are made by policy again"),
            _ => {}
        }
        full
    }
}

/// Returns the policies of all datasets, by path, and an error that names the first one that is not understood.
fn policies(pool: &str, listed: &[Listed]) -> Result<(BTreeMap<String, SnapshotPolicy>, Option<Failure>)> {
    let property = props::find(POLICY)?;
    let properties = ListedProperties::new(pool, listed);
    let (mut found, mut unknown) = (BTreeMap::new(), None);
    for dataset in listed.iter().filter(|found| !found.is_snapshot) {
        let (text, _) = settings::of(&properties, &dataset.path, property)?;
        if let Ok(policy) = text.parse() {
            found.insert(dataset.path.clone(), policy);
        } else {
            let name = names::full(pool, &dataset.path);
            let what = format!("the policy of {name} is \"{text}\", which is unknown here");
            unknown.get_or_insert_with(|| Failure::new(what));
        }
    }
    Ok((found, unknown))
}

/// Makes the snapshots of a period, all at one instant. Datasets whose paths leave no room for the snapshot's name get none,
/// and the others theirs.
fn make(pool: &Pool, name: &str, period: Period, datasets: &[String], now: u64) -> Result<()> {
    let mut paths: Vec<&str> = datasets.iter().map(String::as_str).collect();
    paths.sort_by_key(|path| path.len());
    let snapshot = |paths: &[&str]| pool.snapshot_with(paths, name, now, &[(MARK, period.name())]);
    let (mut made, mut failed) = (snapshot(&paths), None);
    while paths.len() > 1 && matches!(made, Err(Error::Invalid(_))) {
        // The longest one is to blame.
        paths.pop();
        failed = failed.or(std::mem::replace(&mut made, snapshot(&paths)).err());
    }
    if made.is_ok() {
        tracing::info!(name, datasets = paths.len(), "snapshots made by policy");
    }
    match failed.or(made.err()) {
        None => Ok(()),
        Some(error) => {
            Err(engine_errors::failed(format!("cannot make the snapshots {name} by policy"), &error))
        }
    }
}

/// Destroys snapshots, except those that are in use. One that cannot be destroyed keeps none of the others.
fn remove(pool: &Pool, mounts: &dyn Mounts, listed: &[Listed], paths: &[String]) -> Result<()> {
    let going = listed.iter().filter(|found| paths.contains(&found.path));
    let is_unused =
        |found: &&Listed| mounts.mounted_at(found.id).is_none() && mounts.open_below(found.id).is_none();
    let going: Vec<&Listed> = going.filter(is_unused).collect();
    let mut failed = None;
    for found in going {
        mounts.close_snapshot(found.id);
        let name = names::full(pool.name(), &found.path);
        match pool.destroy_snapshots(&[&found.path]) {
            Ok(()) => tracing::info!(name, "a snapshot removed by policy"),
            // It is in use by a stream, for instance; a later turn removes it.
            Err(Error::Busy(why)) => tracing::debug!(name, why, "a snapshot stays for now"),
            Err(error) => {
                let failure = engine_errors::failed(format!("cannot remove {name} by policy"), &error);
                failed = failed.or(Some(failure));
            }
        }
    }
    failed.map_or(Ok(()), Err)
}

#[derive(Default)]
struct Signal {
    stop: bool,
    /// True if a policy has changed.
    look: bool,
}

/// The parts of a server that snapshots by policy need.
pub(super) struct SnapshotContext {
    pub(super) pool: Arc<Pool>,
    pub(super) exports: Arc<Exports>,
    pub(super) dataset_lock: Arc<RwLock<()>>,
}

impl SnapshotContext {
    /// Makes and removes the snapshots that are due at `now`, in seconds since 1970.
    fn turn(&self, turns: &mut Turns, now: u64) -> Result<()> {
        let Self { pool, exports, dataset_lock } = self;
        if exports.is_serving() { turns.turn(pool, &**exports, dataset_lock, now) } else { Ok(()) }
    }
}

/// The thread that takes the turns of a server.
pub(crate) struct Snapshotter {
    signal: Arc<(Mutex<Signal>, Condvar)>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Snapshotter {
    /// Starts the thread, whose first turn comes at once: a snapshot that was missed is made once.
    pub(super) fn start(context: SnapshotContext) -> Result<Self> {
        let signal: Arc<(Mutex<Signal>, Condvar)> = Arc::default();
        let signalled = Arc::clone(&signal);
        let thread =
            thread::Builder::new().name("snapshots".into()).spawn(move || work(&context, &signalled));
        let thread = thread.context(|| "cannot start a thread".into())?;
        Ok(Self { signal, thread: Mutex::new(Some(thread)) })
    }

    /// Has the thread take a turn at once.
    pub(crate) fn look(&self) {
        self.signal.0.lock().look = true;
        self.signal.1.notify_all();
    }

    /// Stops the thread and waits for its end.
    pub(crate) fn stop(&self) {
        self.signal.0.lock().stop = true;
        self.signal.1.notify_all();
        if self.thread.lock().take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread that makes snapshots by policy panicked");
        }
    }
}

impl Drop for Snapshotter {
    fn drop(&mut self) {
        self.stop();
    }
}

fn work(context: &SnapshotContext, signal: &(Mutex<Signal>, Condvar)) {
    let mut turns = Turns::default();
    let mut failed = false;
    loop {
        let now = units::now();
        let done = context.turn(&mut turns, now);
        if let (Err(failure), false) = (&done, failed) {
            // The error is logged once, not every minute.
            tracing::error!(failure = failure.what(), "snapshots are not kept by policy");
        }
        failed = done.is_err();
        let rest = INTERVAL_SECONDS - now % INTERVAL_SECONDS;
        let mut signal_state = signal.0.lock();
        if !signal_state.stop && !signal_state.look {
            signal.1.wait_for(&mut signal_state, Duration::from_secs(rest));
        }
        signal_state.look = false;
        if signal_state.stop {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use pagefold_engine::device::{Device, SimDevice};
    use pagefold_engine::pool::{CreateOptions, Guid, OpenOptions, create_on};

    use super::*;
    use crate::operations::NoMounts;

    const MINUTE: u64 = 60;
    const START: u64 = 1_795_266_462;

    fn pool() -> Arc<Pool> {
        let devices = vec![Arc::new(SimDevice::new(160 << 20, 3)) as Arc<dyn Device>];
        let options = CreateOptions { force: false, created: 0, guid: Guid(*b"a pool with past") };
        create_on("tank", &devices, &options).unwrap();
        let pool = Pool::open_on(devices, &OpenOptions::default()).unwrap();
        ["db", "db/log", "other"].iter().for_each(|path| pool.create_dataset(path, 1).unwrap());
        pool
    }

    fn snapshots(pool: &Pool, of: &str) -> Vec<String> {
        let id = pool.version(of).unwrap().id;
        pool.snapshots_of(id).into_iter().map(|(_, name)| name).collect()
    }

    #[test]
    fn the_newest_are_kept_of_all_datasets_with_a_policy() {
        let pool = pool();
        let mut turns = Turns::default();
        pool.set_property_of("db", POLICY, Some("minutely=3,hourly=2")).unwrap();
        pool.set_property_of("db/log", POLICY, Some("hourly=1")).unwrap();
        for minute in 0..200 {
            turns.turn(&pool, &NoMounts, &RwLock::default(), START + minute * MINUTE).unwrap();
        }
        let expected = [
            "auto-hourly-2026-11-21T15:00",
            "auto-hourly-2026-11-21T16:00",
            "auto-minutely-2026-11-21T16:24",
            "auto-minutely-2026-11-21T16:25",
            "auto-minutely-2026-11-21T16:26",
        ];
        assert_eq!(snapshots(&pool, "db"), expected);
        assert_eq!(snapshots(&pool, "db/log"), expected[1..2]);
        assert_eq!(snapshots(&pool, "other"), Vec::<String>::new());
        // After a day without a server, each period gets one snapshot, not many. A second turn in the same minute does
        // nothing.
        (0..2).for_each(|_| turns.turn(&pool, &NoMounts, &RwLock::default(), START + 86_400).unwrap());
        assert_eq!(snapshots(&pool, "db").len(), 5);
        assert_eq!(snapshots(&pool, "db/log"), ["auto-hourly-2026-11-22T13:00"]);
        // The policy that db/log inherits is taken back: nothing is made or removed any more.
        pool.set_property_of("db/log", POLICY, None).unwrap();
        pool.set_property_of("db", POLICY, Some("none")).unwrap();
        turns.turn(&pool, &NoMounts, &RwLock::default(), START + 2 * 86_400).unwrap();
        assert_eq!((snapshots(&pool, "db").len(), snapshots(&pool, "db/log").len()), (5, 1));
    }

    #[test]
    fn a_dataset_that_can_have_none_keeps_no_other_from_theirs() {
        let pool = pool();
        let mut turns = Turns::default();
        // With the name of a snapshot, this one's is too long.
        let long = format!("db/{}", "x".repeat(240));
        pool.create_dataset(&long, 1).unwrap();
        pool.set_property_of("db", POLICY, Some("minutely=2,hourly=1")).unwrap();
        for minute in 0..4 {
            let done = turns.turn(&pool, &NoMounts, &RwLock::default(), START + minute * MINUTE);
            assert!(done.unwrap_err().to_string().contains("too long"));
        }
        let expected = [
            "auto-hourly-2026-11-21T13:00",
            "auto-minutely-2026-11-21T13:09",
            "auto-minutely-2026-11-21T13:10",
        ];
        assert_eq!(snapshots(&pool, "db"), expected);
        assert_eq!(snapshots(&pool, "db/log"), expected);
        assert_eq!(snapshots(&pool, &long), Vec::<String>::new());
    }

    /// A pool may come from a later version, that knows more of them.
    #[test]
    fn a_policy_that_nobody_knows_concerns_its_dataset_alone() {
        let pool = pool();
        let mut turns = Turns::default();
        pool.set_property_of("db", POLICY, Some("yearly=3")).unwrap();
        pool.set_property_of("other", POLICY, Some("minutely=2")).unwrap();
        for minute in 0..4 {
            let done = turns.turn(&pool, &NoMounts, &RwLock::default(), START + minute * MINUTE);
            assert!(done.unwrap_err().to_string().contains("the policy of tank/db"));
        }
        assert_eq!(
            snapshots(&pool, "other"),
            ["auto-minutely-2026-11-21T13:09", "auto-minutely-2026-11-21T13:10"]
        );
        assert_eq!(snapshots(&pool, "db/log"), Vec::<String>::new());
    }

    #[test]
    fn what_is_in_use_or_of_others_stays() {
        let pool = pool();
        let mut turns = Turns::default();
        pool.set_property_of("db", POLICY, Some("minutely=1")).unwrap();
        turns.turn(&pool, &NoMounts, &RwLock::default(), START).unwrap();
        pool.hold("db@auto-minutely-2026-11-21T13:07", "audit", 1).unwrap();
        turns.turn(&pool, &NoMounts, &RwLock::default(), START + MINUTE).unwrap();
        pool.clone_snapshot("db@auto-minutely-2026-11-21T13:08", "clone", 1).unwrap();
        pool.set_property_of("clone", POLICY, Some("none")).unwrap();
        pool.snapshot(&["db"], "auto-minutely-2026-11-21T13:09", 1).unwrap();
        for minute in 2..6 {
            turns.turn(&pool, &NoMounts, &RwLock::default(), START + minute * MINUTE).unwrap();
        }
        let times = ["07", "08", "09", "12"].map(|minute| format!("auto-minutely-2026-11-21T13:{minute}"));
        assert_eq!(snapshots(&pool, "db"), times);
        pool.release("db@auto-minutely-2026-11-21T13:07", "audit").unwrap();
        turns.turn(&pool, &NoMounts, &RwLock::default(), START + 5 * MINUTE).unwrap();
        assert_eq!(snapshots(&pool, "db"), times[1..]);
    }

    #[test]
    fn a_pool_above_its_limit_gets_none_and_loses_none() {
        let pool = pool();
        let mut turns = Turns::default();
        pool.set_property_of("db", POLICY, Some("minutely=2")).unwrap();
        (0..3).for_each(|minute| {
            turns.turn(&pool, &NoMounts, &RwLock::default(), START + minute * MINUTE).unwrap();
        });
        turns.limit_percent = 0;
        let before = snapshots(&pool, "db");
        (3..9).for_each(|minute| {
            turns.turn(&pool, &NoMounts, &RwLock::default(), START + minute * MINUTE).unwrap();
        });
        assert!(turns.full);
        assert_eq!((snapshots(&pool, "db"), before.len()), (before, 2));
        turns.limit_percent = LIMIT_PERCENT;
        turns.turn(&pool, &NoMounts, &RwLock::default(), START + 9 * MINUTE).unwrap();
        assert!(!turns.full);
        assert_eq!(snapshots(&pool, "db")[1], "auto-minutely-2026-11-21T13:16");
    }
}
