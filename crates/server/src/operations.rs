//! Changes of datasets and snapshots, for a pool that is served and for one that is opened for a moment.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use pagefold_engine::pool::{Listed, Partial, Pool};
use pagefold_engine::{Error, dataset::Dataset as _};

use crate::control::Moving;
pub use crate::control::{Operation, OperationResult};
use crate::failure::{Failure, Result};
use crate::names::{self, dataset_of, is_within};
use crate::{dataset_properties, engine_errors, pools, props, raw, units};

mod destroy;

use destroy::named_below;

/// Time that the kernel may take to tell of a file that was closed.
const CLOSING_PATIENCE: Duration = Duration::from_millis(500);

/// Users of datasets and snapshots.
pub trait Mounts {
    /// Returns the directory where the dataset or snapshot with number `id` is mounted, if it is.
    fn mounted_at(&self, id: u64) -> Option<PathBuf>;
    /// Returns the mount below whose `.pagefold/snapshot` files of the snapshot with number `id` are open, and how many, if
    /// any are.
    fn open_below(&self, id: u64) -> Option<(PathBuf, u64)>;
    /// Returns true if it was mounted, and is open only because clients still use it: no directory leads there.
    fn is_detached(&self, id: u64) -> bool;
    /// Ends all other reading of a snapshot that is to be destroyed.
    fn close_snapshot(&self, id: u64);
}

/// Stands for no users: the pool is not served.
pub struct NoMounts;

impl Mounts for NoMounts {
    fn mounted_at(&self, _: u64) -> Option<PathBuf> {
        None
    }
    fn open_below(&self, _: u64) -> Option<(PathBuf, u64)> {
        None
    }

    fn is_detached(&self, _: u64) -> bool {
        false
    }
    fn close_snapshot(&self, _: u64) {}
}

/// Carries out an operation. It is durable when this returns; the space of destroyed objects is freed in the
/// background.
pub fn perform(pool: &Pool, operation: &Operation, mounts: &dyn Mounts) -> Result<OperationResult> {
    let work = Executor { pool, mounts, now: units::now() };
    match operation {
        Operation::Create { path, parents, properties } => work.create(path, *parents, properties),
        Operation::Snapshot { snapshots, recursive, properties } => {
            work.snapshot(snapshots, *recursive, properties)
        }
        Operation::Clone { snapshot, path, properties } => work.clone_of(snapshot, path, properties),
        Operation::Destroy { what, recursive, dry_run } => work.destroy(what, *recursive, *dry_run),
        Operation::Rollback { snapshot, newer } => work.rollback(snapshot, *newer),
        Operation::Reset { path, own } => work.reset(path, *own),
        Operation::Promote { path } => work.promote(path),
        Operation::Rename { from, to } => work.rename(from, to),
        Operation::Hold { snapshots, recursive, tag } => {
            work.each("hold", snapshots, *recursive, |path| pool.hold(path, tag, work.now))
        }
        Operation::Release { snapshots, recursive, tag } => {
            work.each("release", snapshots, *recursive, |path| pool.release(path, tag))
        }
        Operation::AbortReceive { path } => work.abort_receive(path),
        Operation::Inherit { path, name } => {
            dataset_properties::set_one(pool, path, name, None).map(|()| OperationResult::default())
        }
    }
}

/// Returns an error if something prevents a clone from being moved.
pub fn clear_way_to_move(pool: &Pool, what: &Moving, mounts: &dyn Mounts) -> Result<()> {
    let work = Executor { pool, mounts, now: units::now() };
    let listed = work.list()?;
    let own = work.own_snapshots(&listed, &what.path, what.own, Replacement::Rebase)?;
    work.clear_way(&listed, &what.path, &own)
}

/// Frees all space of destroyed objects, for a pool that is not served.
pub fn free_all(pool: &Pool) -> Result<()> {
    let failed = |error| engine_errors::failed("cannot free what was destroyed", &error);
    while pool.is_reaping() {
        if !pool.reap().map_err(failed)? {
            pool.checkpoint(false).map_err(failed)?;
        }
    }
    Ok(())
}

/// Checks properties that are to be set on a dataset or snapshot, and converts their values to stored form.
pub fn parse_properties(words: &[String]) -> Result<Vec<(String, String)>> {
    words.iter().map(|word| props::parse_for_dataset(word)).collect()
}

/// Ways to replace the content of a clone.
#[derive(Clone, Copy)]
enum Replacement {
    /// By the snapshot that it began as.
    Reset,
    /// By what it has, moved onto a newer snapshot.
    Rebase,
}

impl Replacement {
    /// Returns the command that also destroys the clone's own snapshots.
    const fn command(self) -> &'static str {
        match self {
            Self::Reset => "reset -r",
            Self::Rebase => "rebase -r",
        }
    }
}

struct Executor<'a> {
    pool: &'a Pool,
    mounts: &'a dyn Mounts,
    now: u64,
}

impl Executor<'_> {
    fn full(&self, path: &str) -> String {
        names::full(self.pool.name(), path)
    }

    fn list(&self) -> Result<Vec<Listed>> {
        self.pool.list().map_err(|error| engine_errors::failed("cannot list the datasets", &error))
    }

    /// Converts an error about something that should exist to one with whole names.
    fn failed(&self, doing: &str, path: &str, error: &Error) -> Failure {
        match error {
            Error::NotFound(_) if self.pool.listed(path).is_err() => {
                engine_errors::no_such_dataset(&self.full(path), error)
            }
            error => self.cannot(doing, path, error),
        }
    }

    /// Converts an error about something that may not exist yet to one with whole names.
    fn cannot(&self, doing: &str, path: &str, error: &Error) -> Failure {
        let name = self.full(path);
        match error {
            Error::Busy(why) | Error::Exists(why) | Error::NotFound(why) | Error::Invalid(why) => {
                Failure::new(format!("cannot {doing} {name}: {why}"))
            }
            error => engine_errors::failed(format!("cannot {doing} {name}"), error),
        }
    }

    fn made(&self, paths: &[String]) -> OperationResult {
        OperationResult {
            names: paths.iter().map(|path| self.full(path)).collect(),
            freed_bytes: 0,
            blocked: None,
        }
    }

    fn create(&self, path: &str, parents: bool, properties: &[(String, String)]) -> Result<OperationResult> {
        let mut missing = vec![path.to_owned()];
        let mut above = names::parent(path);
        while let Some(parent) = above.filter(|parent| parents && self.pool.version(parent).is_err()) {
            missing.push(parent.to_owned());
            above = names::parent(parent);
        }
        let mut begun = Vec::new();
        let done = missing.iter().rev().try_for_each(|path| self.create_one(path, &mut begun));
        self.whole(&begun, done.and_then(|()| self.set_all(path, properties)))?;
        Ok(self.made(&[path.to_owned()]))
    }

    /// Makes a dataset and its empty file system, and adds its path to `begun` as soon as there is something to undo.
    fn create_one(&self, path: &str, begun: &mut Vec<String>) -> Result<()> {
        let made = self.pool.create_dataset(path, self.now);
        made.map_err(|error| {
            let failure = self.cannot("create dataset", path, &error);
            match names::parent(path).filter(|above| self.pool.version(above).is_err()) {
                Some(_) => failure.hint(format!(
                    "to make those above it, too: pagefold dataset create -p {}",
                    self.full(path)
                )),
                None => failure,
            }
        })?;
        begun.push(path.to_owned());
        let dataset = self.pool.version(path).map_err(|error| self.failed("open", path, &error))?;
        pools::format(dataset.as_ref(), &self.full(path))?;
        dataset.sync().map_err(|error| self.cannot("create dataset", path, &error))
    }

    fn set_all(&self, path: &str, properties: &[(String, String)]) -> Result<()> {
        let set = |(name, value): &(String, String)| {
            dataset_properties::set_one(self.pool, path, name, Some(value))
        };
        properties.iter().try_for_each(set)
    }

    /// Destroys the datasets in `begun`, of which later ones lie below earlier ones, if what was to be done with them
    /// has failed. A dataset without its files, or without the properties that were asked for, must not stay.
    fn whole(&self, begun: &[String], done: Result<()>) -> Result<()> {
        let Err(failure) = done else { return Ok(()) };
        for path in begun.iter().rev() {
            if let Err(error) = self.pool.destroy_dataset(path) {
                let name = self.full(path);
                return Err(Failure::new(format!("{}; {name} is left unfinished: {error}", failure.what()))
                    .hint(format!("destroy it before you try again: pagefold destroy -r {name}")));
            }
        }
        Err(failure)
    }

    fn snapshot(
        &self,
        snapshots: &[String],
        recursive: bool,
        properties: &[(String, String)],
    ) -> Result<OperationResult> {
        // The list is made only if it is needed: it sums up each dataset, which takes long if there are many.
        let listed = if recursive { self.list()? } else { Vec::new() };
        let mut by_name: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for snapshot in snapshots {
            let (dataset, name) = split(snapshot)?;
            if self.pool.version(dataset).is_err() {
                return Err(engine_errors::no_such_dataset(
                    &self.full(dataset),
                    &Error::NotFound(String::new()),
                ));
            }
            let group = by_name.entry(name).or_default();
            group.push(dataset.to_owned());
            let below = |found: &&Listed| !found.is_snapshot && is_within(&found.path, dataset);
            group.extend(listed.iter().filter(below).map(|found| found.path.clone()));
        }
        let pairs: Vec<_> = properties.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let mut made = Vec::new();
        for (name, mut datasets) in by_name {
            datasets.sort();
            datasets.dedup();
            let paths: Vec<&str> = datasets.iter().map(String::as_str).collect();
            let first = format!("{}@{name}", paths.first().copied().unwrap_or_default());
            pairs
                .iter()
                .try_for_each(|(pair, _)| dataset_properties::refuse_engines(pair, &self.full(&first)))?;
            let done = self.pool.snapshot_with(&paths, name, self.now, &pairs);
            done.map_err(|error| self.failed("make the snapshot", &first, &error))?;
            made.extend(datasets.iter().map(|dataset| format!("{dataset}@{name}")));
        }
        Ok(self.made(&made))
    }

    fn clone_of(
        &self,
        snapshot: &str,
        path: &str,
        properties: &[(String, String)],
    ) -> Result<OperationResult> {
        let made = self.pool.clone_snapshot(snapshot, path, self.now);
        made.map_err(|error| match error {
            Error::NotFound(_) if self.pool.listed(snapshot).is_err() => {
                engine_errors::no_such_dataset(&self.full(snapshot), &error)
            }
            error => self.cannot("create dataset", path, &error),
        })?;
        let begun = [path.to_owned()];
        self.whole(&begun, self.set_all(path, properties))?;
        Ok(self.made(&begun))
    }

    fn rollback(&self, snapshot: &str, newer: bool) -> Result<OperationResult> {
        let listed = self.list()?;
        let (dataset, _) = split(snapshot)?;
        let Some(to) = listed.iter().find(|found| found.path == snapshot) else {
            return Err(engine_errors::no_such_dataset(
                &self.full(snapshot),
                &Error::NotFound(String::new()),
            ));
        };
        let later =
            |found: &&Listed| found.is_snapshot && dataset_of(&found.path) == dataset && found.id > to.id;
        let later: Vec<&Listed> = listed.iter().filter(later).collect();
        if let (Some(first), false) = (later.first(), newer) {
            return Err(Failure::new(format!(
                "{} has {} newer than {}; the first is {}",
                self.full(dataset),
                units::counted(later.len() as u64, "snapshot"),
                self.full(snapshot),
                self.full(&first.path)
            ))
            .hint(format!(
                "to destroy them with what came later: pagefold rollback -r {}",
                self.full(snapshot)
            )));
        }
        self.clear_way(&listed, dataset, &later)?;
        let done = self.pool.rollback(snapshot, newer);
        done.map_err(|error| self.failed("roll back to", snapshot, &error))?;
        Ok(OperationResult {
            names: later.iter().map(|found| self.full(&found.path)).collect(),
            freed_bytes: 0,
            blocked: None,
        })
    }

    fn reset(&self, path: &str, destroy_own: bool) -> Result<OperationResult> {
        let listed = self.list()?;
        let own = self.own_snapshots(&listed, path, destroy_own, Replacement::Reset)?;
        self.clear_way(&listed, path, &own)?;
        self.pool.reset(path, destroy_own).map_err(|error| self.failed("reset", path, &error))?;
        Ok(OperationResult {
            names: own.iter().map(|found| self.full(&found.path)).collect(),
            freed_bytes: 0,
            blocked: None,
        })
    }

    /// Returns the snapshots of a clone whose content is to be replaced. Fails if there are any and `destroy` is false;
    /// the advice names the command.
    fn own_snapshots<'l>(
        &self,
        listed: &'l [Listed],
        path: &str,
        destroy: bool,
        by: Replacement,
    ) -> Result<Vec<&'l Listed>> {
        let name = self.full(path);
        let Some(clone) = listed.iter().find(|found| found.path == path) else {
            return Err(engine_errors::no_such_dataset(&name, &Error::NotFound(String::new())));
        };
        if clone.origin.is_none() {
            let failure = self.no_clone(path);
            return Err(match by {
                // `rollback` does for other datasets what `reset` does for clones.
                Replacement::Reset => failure.hint(format!(
                    "to return it to a snapshot of its own: pagefold rollback {name}@SNAPSHOT"
                )),
                Replacement::Rebase => failure,
            });
        }
        let own = |found: &&Listed| found.is_snapshot && dataset_of(&found.path) == path;
        let own: Vec<&Listed> = listed.iter().filter(own).collect();
        if own.is_empty() || destroy {
            return Ok(own);
        }
        let names: Vec<String> = own.iter().map(|found| self.full(&found.path)).collect();
        Err(Failure::new(format!("{name} has snapshots of its own: {}", names.join(", ")))
            .hint(format!("to destroy them, too: pagefold {} {name}", by.command())))
    }

    /// Returns an error if a dataset that goes back, or one of its snapshots that are to be destroyed, is in use or
    /// kept.
    fn clear_way(&self, listed: &[Listed], dataset: &str, going: &[&Listed]) -> Result<()> {
        let own = listed.iter().filter(|found| found.path == dataset);
        own.chain(going.iter().copied()).try_for_each(|found| self.refuse_in_use(found))?;
        self.refuse_kept(listed, &going.iter().map(|found| found.path.clone()).collect())?;
        going.iter().for_each(|found| self.mounts.close_snapshot(found.id));
        Ok(())
    }

    fn promote(&self, path: &str) -> Result<OperationResult> {
        let listed = self.list()?;
        // The snapshots of its origin get new names, since their owner changes.
        let found = listed.iter().find(|found| found.path == path);
        if let Some(found) = found {
            let Some(origin) = &found.origin else { return Err(self.no_clone(path)) };
            let from = dataset_of(origin);
            let of = |found: &&Listed| found.is_snapshot && dataset_of(&found.path) == from;
            listed.iter().filter(of).try_for_each(|found| self.refuse_in_use(found))?;
        }
        let done = self.pool.promote(path);
        done.map_err(|error| self.failed("promote", path, &error))?;
        Ok(OperationResult::default())
    }

    fn no_clone(&self, path: &str) -> Failure {
        let pool = self.pool.name();
        Failure::new(format!("{} is no clone", self.full(path)))
            .hint(format!("see which datasets are, and of what: pagefold get -r origin {pool}"))
    }

    fn rename(&self, from: &str, to: &str) -> Result<OperationResult> {
        let listed = self.list()?;
        let concerned = |found: &&Listed| {
            if from.contains('@') { found.path == from } else { is_within(&found.path, from) }
        };
        listed.iter().filter(concerned).try_for_each(|found| self.refuse_in_use(found))?;
        let to_name = match (from.split_once('@'), to.split_once('@')) {
            (Some((of, _)), Some((new_of, name))) if of == new_of => name,
            (None, None) => to,
            _ => {
                return Err(Failure::usage(format!("{} cannot become {}", self.full(from), self.full(to)))
                    .hint("a snapshot stays with its dataset: pagefold rename POOL/DATASET@OLD NEW"));
            }
        };
        let done = self.pool.rename(from, to_name);
        done.map_err(|error| self.failed("rename", from, &error))?;
        Ok(OperationResult { names: vec![self.full(to)], freed_bytes: 0, blocked: None })
    }

    /// Calls `work` for each of some snapshots.
    fn each(
        &self,
        doing: &str,
        snapshots: &[String],
        recursive: bool,
        work: impl Fn(&str) -> pagefold_engine::Result<()>,
    ) -> Result<OperationResult> {
        let listed = self.list()?;
        let mut all = BTreeSet::new();
        for snapshot in snapshots {
            let (dataset, name) = split(snapshot)?;
            all.insert(snapshot.clone());
            if recursive {
                all.extend(named_below(&listed, dataset, &BTreeSet::from([name.to_owned()])));
            }
        }
        for path in &all {
            work(path).map_err(|error| self.failed(doing, path, &error))?;
        }
        Ok(OperationResult {
            names: all.iter().map(|path| self.full(path)).collect(),
            freed_bytes: 0,
            blocked: None,
        })
    }

    fn abort_receive(&self, path: &str) -> Result<OperationResult> {
        let done = self.pool.abort_receive(path);
        done.map_err(|error| self.not_given_up(path, &error))?;
        Ok(OperationResult::default())
    }

    fn not_given_up(&self, path: &str, error: &Error) -> Failure {
        match error {
            Error::NotFound(_) => {
                Failure::new(format!("nothing was received in part into {}", self.full(path)))
                    .hint("see what was: pagefold list -t partial")
            }
            error => self.failed("give up what was received into", path, error),
        }
    }

    /// Returns the datasets of which a part was received, if they or the datasets above them are to be destroyed: these
    /// go, too, with `recursive`. Otherwise, or while more is being received, they are an error.
    fn partials_of(&self, going: &BTreeSet<String>, recursive: bool) -> Result<Vec<Partial>> {
        let mut partials = self.pool.partials();
        partials.retain(|partial| {
            let above = names::parent(&partial.path).unwrap_or_default();
            going.contains(&partial.path) || going.contains(above)
        });
        for partial in &partials {
            if !recursive {
                let name = self.full(&partial.path);
                return Err(Failure::new(format!("part of a stream was received into {name}"))
                    .hint(format!("give it up first: pagefold receive --abort {name}")));
            }
            let may = self.pool.check_abort_receive(&partial.path);
            may.map_err(|error| self.not_given_up(&partial.path, &error))?;
        }
        Ok(partials)
    }

    fn refuse_in_use(&self, found: &Listed) -> Result<()> {
        let name = self.full(&found.path);
        if let Some(dir) = self.mounts.mounted_at(found.id) {
            if self.mounts.is_detached(found.id) {
                let what = format!("{name} was detached from {}, and is still in use", raw::text(&dir));
                let hint = format!("see who uses it, and end that: pagefold status {}", self.pool.name());
                return Err(Failure::new(what).hint(hint));
            }
            return Err(Failure::new(format!("{name} is mounted at {}", raw::text(&dir)))
                .hint(format!("unmount it first: pagefold unmount {}", raw::text(&dir))));
        }
        let Some((dir, files)) = self.still_open_below(found.id) else { return Ok(()) };
        let snapshot = found.path.split('@').nth(1).unwrap_or_default();
        Err(Failure::new(format!(
            "{name} is in use: {} below {}/.pagefold/snapshot/{snapshot}",
            units::counted(files, "open file"),
            raw::text(&dir)
        ))
        .hint("end the programs that read it, then destroy it"))
    }

    /// As [`Mounts::open_below`], once the kernel has told of files that were closed just now.
    fn still_open_below(&self, id: u64) -> Option<(PathBuf, u64)> {
        let deadline = Instant::now() + CLOSING_PATIENCE;
        loop {
            let open = self.mounts.open_below(id)?;
            if Instant::now() > deadline {
                return Some(open);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Returns an error if something that is to be destroyed is held, or has a clone that stays.
    fn refuse_kept(&self, listed: &[Listed], going: &BTreeSet<String>) -> Result<()> {
        for found in listed.iter().filter(|found| going.contains(&found.path)) {
            let name = self.full(&found.path);
            if let Some(tag) = found.holds.keys().next() {
                return Err(Failure::new(format!("{name} is held by {tag}"))
                    .hint(format!("let it go first: pagefold release {tag} {name}")));
            }
            if let Some(clone) = found.clones.iter().find(|clone| !going.contains(*clone)) {
                let clone = self.full(clone);
                if names::is_hidden(&clone) {
                    let of = clone.replace(names::HIDDEN, "");
                    return Err(Failure::new(format!("part of a stream was received on top of {name}"))
                        .hint(format!("go on with it, or give it up: pagefold receive --abort {of}")));
                }
                return Err(Failure::new(format!("{name} has a clone: {clone}")).hint(format!(
                    "destroy that first, or let it have the snapshots: pagefold promote {clone}"
                )));
            }
        }
        Ok(())
    }
}

/// Splits `dataset@name` at the `@`.
fn split(snapshot: &str) -> Result<(&str, &str)> {
    snapshot.split_once('@').ok_or_else(|| {
        Failure::usage(format!("\"{snapshot}\" is no snapshot"))
            .hint("they are written POOL/DATASET@SNAPSHOT")
    })
}

fn name_of(path: &str) -> Option<&str> {
    path.split_once('@').map(|(_, name)| name)
}
