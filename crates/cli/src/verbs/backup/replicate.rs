//! `replicate`: keeps a repository some seconds behind a dataset.
//!
//! - L1: at most one snapshot of ours is held between cycles, and two within one, whatever the store does: the backlog
//!   is bounded.
//! - L2: users of the dataset wait for nothing here. If the pool gets nearly full while the store cannot be reached,
//!   the snapshots go; the next cycle compares the whole dataset.
//! - L3: if nothing has changed, the store gets no request.
//! - L4: after a kill or a failure at any point, the next cycle goes on: from the snapshot that the repository has, or
//!   by comparing. A backup that was made without an answer is replaced by the next one, as any other.

use std::collections::BTreeSet;
use std::thread;
use std::time::{Duration, Instant};

use pagefold_backup::{Backup, Created, Repository, Requests, limits};
use pagefold_server::control::DatasetFigures;
use pagefold_server::failure::{Failure, Result};
use pagefold_server::names::Name;
use pagefold_server::units;

use super::attempts::Failed;
use super::create::{BackupSource, snapshot_of, warn_of_what_stays};
use super::open;
use super::plan::ReplicationPlan;
use super::pruned::{self, LastPrune};
use super::replica::{Replica, lock, now_ms};
use crate::args::Replicate;
use crate::verbs::warn;
use crate::{backup_errors, datasets, target};

/// Shortest time from cycle to cycle.
const CYCLE_MIN: Duration = Duration::from_secs(1);
/// Longest pause after failures, unless the replica may be further behind than that.
const RETRY_MAX: Duration = Duration::from_secs(60);
/// Time from one look whether a prune is due to the next.
const PRUNE_LOOK: Duration = Duration::from_secs(60);
/// Smallest free share of the pool, in per cent, at which a snapshot is held for a store that cannot be reached.
const FREE_MIN_PERCENT: u64 = 10;

/// `replicate`.
pub fn run(args: &Replicate) -> Result<()> {
    let name = target::name(&args.dataset)?;
    if name.is_snapshot() {
        return Err(Failure::usage(format!("{name} is a snapshot, and does not change"))
            .hint(format!("back it up: pagefold backup create {name} --to REPO")));
    }
    if args.end {
        return end(&name);
    }
    let plan = ReplicationPlan::of(args, &name)?;
    let text = name.to_string();
    if target::connect(&name.pool)?.is_some() {
        datasets::find(&name)?;
    }
    let _alone = lock(&text)?;
    let before = Replica::read(&text)?.filter(|replica| replica.repository == plan.repository);
    let mut replica = before.unwrap_or_default();
    replica = Replica {
        name: text,
        repository: plan.repository.clone(),
        every_s: plan.every.as_secs(),
        pid: std::process::id(),
        failed: None,
        cycles: 0,
        idle_cycles: 0,
        worst_ms: 0,
        put_bytes: 0,
        puts: 0,
        others: 0,
        ..replica
    };
    replica.write()?;
    let mut loops =
        Loop { plan, name, replica, repository: None, pruning: None, looked: None, stuck: BTreeSet::new() };
    if args.once {
        return loops.cycle();
    }
    loops.run()
}

/// Ends a replication for good.
fn end(name: &Name) -> Result<()> {
    let text = name.to_string();
    let _alone = lock(&text)?;
    let Some(replica) = Replica::read(&text)? else {
        // Its file may be there and not be whole.
        if Replica::remove(&text)? {
            warn(&format!("a snapshot of {text} may stay: pagefold list -t snapshot {text}"));
            return Ok(());
        }
        return Err(Failure::new(format!("{text} is not replicated from this machine"))
            .hint("see what is: pagefold status"));
    };
    let held = replica.held();
    if !held.is_empty() {
        let all = datasets::of_pool(&name.pool)?;
        for snapshot in &held {
            let is_it = |figures: &DatasetFigures| figures.path == format!("{}@{snapshot}", name.path);
            if all.iter().any(is_it) {
                super::create::destroy(name, snapshot)?;
            }
        }
    }
    Replica::remove(&text).map(drop)
}

struct Loop {
    plan: ReplicationPlan,
    name: Name,
    replica: Replica,
    /// The repository stays open from cycle to cycle, and is opened again after a failure.
    repository: Option<Repository>,
    pruning: Option<thread::JoinHandle<()>>,
    /// Time of the last look whether a prune is due.
    looked: Option<Instant>,
    /// Snapshots that could not be destroyed, of which this process has warned.
    stuck: BTreeSet<String>,
}

impl Loop {
    fn run(&mut self) -> Result<()> {
        let (mut failures, mut recent) = (0_u32, Duration::ZERO);
        loop {
            let begun = Instant::now();
            match self.cycle() {
                Ok(()) => {
                    if failures > 0 {
                        eprintln!("{}: replicated again, after {failures} failures", self.name);
                    }
                    failures = 0;
                    // The longest of the recent cycles counts, and slowly fades, so that the next backup is there in
                    // time.
                    recent = begun.elapsed().max(recent.mul_f64(0.8));
                    self.prune();
                    let margin = (recent * 2).min(self.plan.every / 2);
                    wait_until(begun + (self.plan.every - margin).max(CYCLE_MIN));
                }
                Err(failure) => {
                    if failures == 0 {
                        eprintln!("pagefold: {failure}");
                    }
                    failures += 1;
                    let longest = self.plan.every.max(RETRY_MAX);
                    let pause = self.plan.every.saturating_mul(1 << failures.min(6)).min(longest);
                    wait_until(Instant::now() + pause.max(CYCLE_MIN));
                }
            }
        }
    }

    /// Runs a cycle, and keeps its outcome for `status`.
    fn cycle(&mut self) -> Result<()> {
        self.replica.cycles += 1;
        let before = self.requests();
        let outcome = self.attempt();
        let after = self.requests();
        let count = |before: u64, after: u64| after.saturating_sub(before);
        self.replica.puts += count(before.puts, after.puts);
        self.replica.put_bytes += count(before.put_bytes, after.put_bytes);
        let others = |requests: &Requests| requests.gets + requests.heads + requests.lists + requests.deletes;
        self.replica.others += count(others(&before), others(&after));
        self.replica.failed = outcome.as_ref().err().map(|failure| Failed {
            at: units::now(),
            what: failure.what().into(),
            hint: failure.advice().map(Into::into),
        });
        if outcome.is_err() {
            self.repository = None;
            // The outcome has the first failure already; this one is only printed.
            if let Err(failure) = self.relieve() {
                eprintln!("pagefold: {failure}");
            }
        }
        self.replica.write()?;
        outcome
    }

    fn requests(&self) -> Requests {
        self.repository.as_ref().map(|repository| repository.store().requests()).unwrap_or_default()
    }

    fn attempt(&mut self) -> Result<()> {
        if target::connect(&self.name.pool)?.is_none() {
            return Err(Failure::new(format!(
                "{} is not replicated: pool {} is not mounted",
                self.name, self.name.pool
            ))
            .hint("it goes on by itself when the pool is"));
        }
        let repository = match self.repository.take() {
            Some(repository) => repository,
            None => self.open()?,
        };
        let source = BackupSource {
            name: &self.name,
            repository: self.repository.insert(repository),
            to: &self.plan.repository,
            rate: self.plan.rate,
            keep: self.plan.keep.as_ref(),
            replaces: self.replica.number,
        };
        let _turn = source.turn();
        let there = source.there()?;
        let has = |name: &String| there.iter().any(|figures| snapshot_of(figures) == name);
        let last = self.replica.snapshot.clone().filter(has);
        let next = Next::of(&source, &there, last.as_deref())?;
        // It is written before the upload, so that the snapshot can be given up even if this process is killed. If it
        // cannot be written, the backup is made all the same, and the write at the end of the cycle tells why.
        self.replica.sending = Some(next.snapshot.clone());
        self.replica.write().ok();
        let sent = next.send(&source, &there, last.as_deref());
        let (stays, outcome) = match sent {
            Ok(created) => (self.replica.follow(next, created, last), Ok(())),
            Err(failure) => {
                // If it cannot be found out whether the backup was begun, the snapshot stays. It stays, too, if the
                // backup was made and only the answer was lost: by its name the next cycle knows the backup for its own.
                let stays = source.there().and_then(|there| {
                    let ours = source.ours(&there);
                    let is_made = source.is_made(&ours, &next.snapshot)?;
                    if is_made { Ok(Some(next.snapshot.clone())) } else { source.begun(&ours) }
                });
                self.replica.sending = stays.unwrap_or(Some(next.snapshot));
                (last.into_iter().chain(self.replica.sending.clone()).collect(), Err(failure))
            }
        };
        let now = source.there();
        for other in source.ours(now.as_deref().unwrap_or_default()).into_iter().map(snapshot_of) {
            // A snapshot that is held or was cloned stays, and the outcome is that of the backup.
            if !stays.iter().any(|stays| stays == other)
                && let Err(failure) = source.destroy(other)
                && self.stuck.insert(other.to_owned())
            {
                warn_of_what_stays(&self.name, other, &failure);
            }
        }
        outcome.and_then(|()| now.map(drop))
    }

    /// Opens the repository, and forgets what it does not have: another one may be at its place, or an older state of
    /// it, or its newest backup may have been forgotten.
    fn open(&mut self) -> Result<Repository> {
        let repository = open(&self.plan.repository, &self.plan.access)?;
        let id = repository.id();
        if self.replica.repository_id.as_ref().is_some_and(|known| *known != id) {
            self.leave()?;
        }
        self.replica.repository_id = Some(id);
        let backups = repository.backups();
        let backups = backups.map_err(|error| {
            backup_errors::failed(format!("cannot read {}", self.plan.repository), &error)
        })?;
        let is_ours = |backup: &&Backup| backup.pool == self.name.pool && backup.dataset == self.name.path;
        // A process that was killed may have made a backup of which it did not hear.
        let sent = backups.iter().filter(is_ours).find(|backup| self.replica.has_sent(backup));
        if let Some(sent) = sent {
            self.replica.take(sent);
        }
        let Replica { snapshot, number, .. } = &self.replica;
        let is_it = |backup: &Backup| {
            is_ours(&backup)
                && Some(backup.number) == *number
                // Without a snapshot, the pool got full since.
                && snapshot.as_ref().is_none_or(|snapshot| *snapshot == backup.snapshot)
        };
        if number.is_some() && !backups.iter().any(is_it) {
            (self.replica.snapshot, self.replica.number, self.replica.as_of_ms) = (None, None, None);
        }
        Ok(repository)
    }

    /// Destroys the snapshots that were held for another repository: nothing else would.
    fn leave(&mut self) -> Result<()> {
        eprintln!(
            "pagefold: {} is not the repository that it was: {} is backed up as a whole",
            self.plan.repository, self.name
        );
        self.destroy_held(&datasets::of_pool(&self.name.pool)?);
        (self.replica.snapshot, self.replica.sending) = (None, None);
        (self.replica.number, self.replica.as_of_ms) = (None, None);
        Ok(())
    }

    /// Destroys the snapshot that the repository has, and the one that was being sent, if the pool is nearly full.
    fn relieve(&mut self) -> Result<()> {
        if target::connect(&self.name.pool)?.is_none() {
            return Ok(());
        }
        let all = datasets::of_pool(&self.name.pool)?;
        let Some(pool) = all.iter().find(|figures| figures.path.is_empty()) else { return Ok(()) };
        let free = pool.available_bytes.unwrap_or_default();
        if free.saturating_mul(100) >= (free + pool.used_bytes).saturating_mul(FREE_MIN_PERCENT) {
            return Ok(());
        }
        for snapshot in self.destroy_held(&all) {
            eprintln!(
                "pagefold: pool {} is nearly full, and {} cannot be reached: {}@{snapshot} was given up; the next backup compares the whole dataset",
                self.name.pool, self.plan.repository, self.name
            );
        }
        Ok(())
    }

    /// Destroys the snapshots that are held for the replica, and returns those that were destroyed. One that cannot be
    /// destroyed is still remembered.
    fn destroy_held(&mut self, all: &[DatasetFigures]) -> Vec<String> {
        let mut destroyed = Vec::new();
        for snapshot in self.replica.held() {
            let path = format!("{}@{snapshot}", self.name.path);
            if all.iter().any(|figures| figures.path == path) {
                if let Err(failure) = super::create::destroy(&self.name, &snapshot) {
                    if self.stuck.insert(snapshot.clone()) {
                        warn_of_what_stays(&self.name, &snapshot, &failure);
                    }
                    continue;
                }
                destroyed.push(snapshot.clone());
            }
            self.replica.let_go(&snapshot);
        }
        destroyed
    }

    /// Prunes once a day, beside the cycles, unless another process of this machine does.
    fn prune(&mut self) {
        if self.pruning.as_ref().is_some_and(|thread| !thread.is_finished())
            || self.looked.is_some_and(|looked| looked.elapsed() < PRUNE_LOOK)
        {
            return;
        }
        self.looked = Some(Instant::now());
        match pruned::note_if_due(&self.plan.repository) {
            Ok(LastPrune::Due) => {}
            // On the day of the first backup there is nothing to prune yet.
            Ok(LastPrune::First | LastPrune::Recent) => return,
            Err(failure) => return eprintln!("pagefold: {} is not pruned: {failure}", self.plan.repository),
        }
        let repository = self.plan.repository.clone();
        let opened = open(&repository, &self.plan.access);
        let work = move || {
            let pruned = opened.and_then(|opened| {
                let failed = |error| backup_errors::failed(format!("cannot prune {repository}"), &error);
                opened.prune(None, false, false).map_err(failed)?;
                opened.repack(limits::REPACK_BYTES, false).map_err(failed)
            });
            if let Err(failure) = pruned {
                eprintln!("pagefold: {failure}");
            }
        };
        match thread::Builder::new().name("prune".into()).spawn(work) {
            Ok(thread) => self.pruning = Some(thread),
            Err(error) => eprintln!("pagefold: cannot start a thread to prune: {error}"),
        }
    }
}

/// The snapshot that the repository gets next.
struct Next {
    snapshot: String,
    /// Moment whose state the snapshot has, in milliseconds since 1970.
    as_of_ms: u64,
}

impl Next {
    /// Returns the snapshot whose backup was begun, or a new one. `last` is the one that the repository has.
    fn of(source: &BackupSource<'_>, there: &[DatasetFigures], last: Option<&str>) -> Result<Self> {
        let ours = source.ours(there);
        let Some(snapshot) = source.begun(&ours)? else {
            Self::make_room(source, there, last)?;
            let as_of_ms = now_ms();
            return Ok(Self { snapshot: source.make(there)?, as_of_ms });
        };
        let created = ours.iter().find(|figures| snapshot_of(figures) == snapshot);
        let as_of_ms = created.map_or(0, |figures| figures.created.saturating_mul(1000));
        Ok(Self { snapshot, as_of_ms })
    }

    /// Destroys snapshots that processes left that were killed, so that there is one besides the new one (L1): `last`, or
    /// else the one with which the new one is compared.
    fn make_room(source: &BackupSource<'_>, there: &[DatasetFigures], last: Option<&str>) -> Result<()> {
        let ours = source.ours(there);
        if ours.iter().all(|figures| Some(snapshot_of(figures)) == last) {
            return Ok(());
        }
        let newest = if last.is_none() { source.newest(there, "")? } else { None };
        let stays = last.or(newest.as_deref());
        for left in ours.into_iter().map(snapshot_of).filter(|left| Some(*left) != stays) {
            // The end of the cycle tries again, and tells of what stays.
            source.destroy(left).ok();
        }
        Ok(())
    }

    /// Sends the changes since `last`, or since the newest backup that can be used; sends nothing if nothing has
    /// changed since `last`.
    fn send(
        &self,
        source: &BackupSource<'_>,
        there: &[DatasetFigures],
        last: Option<&str>,
    ) -> Result<Option<Created>> {
        match last {
            Some(last) if *last != self.snapshot => source.send_changes(&self.snapshot, Some(last), true),
            _ => {
                let from = source.newest(there, &self.snapshot)?;
                source.send_changes(&self.snapshot, from.as_deref(), false)
            }
        }
    }
}

impl Replica {
    /// Notes that the replica is as the dataset was with `next`, by a backup or because nothing had changed. Returns
    /// the snapshots that stay.
    fn follow(&mut self, next: Next, created: Option<Created>, last: Option<String>) -> Vec<String> {
        let behind = now_ms().saturating_sub(self.as_of_ms.unwrap_or(next.as_of_ms));
        self.worst_ms = self.worst_ms.max(behind);
        self.as_of_ms = Some(next.as_of_ms);
        self.sending = None;
        let Some(created) = created else {
            self.idle_cycles += 1;
            return last.into_iter().collect();
        };
        self.snapshot = Some(next.snapshot.clone());
        self.number = Some(created.backup.number);
        vec![next.snapshot]
    }
}

fn wait_until(moment: Instant) {
    thread::sleep(moment.saturating_duration_since(Instant::now()));
}
