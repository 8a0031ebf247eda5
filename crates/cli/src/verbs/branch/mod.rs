//! `branch`: makes snapshot, clone, mount and a database server on it in one step, for people who think in databases.
//!
//! The facts about a branch lie in user properties of its dataset ([`mod@record`]): they outlive restarts and travel with
//! the pool. How its server is started (which programs, settings, user) does not travel: each machine keeps that for
//! itself ([`settings`]). Whether its server runs is asked of the kernel ([`process`]), not of a file.
//!
//! A command that changes a branch waits for its turn ([`turn`]), and looks at the branch only then. It removes the pieces
//! that a killed command has left ([`unfinished`]).
//!
//! Production must not notice. Five rules:
//! 1. Nothing outside of the branch's mount is written: data directories from which a link leads out are refused
//!    ([`data`]).
//! 2. The server runs as the owner of its data directory, never as root ([`owner`]).
//! 3. It listens on localhost alone, archives nothing, connects to nobody, runs no scheduled jobs ([`postgres`],
//!    [`mariadb`]).
//! 4. Nothing in a pool is run or decides what is run ([`programs`]), and no step of ours follows a link that the
//!    data's owner may have made ([`data`]).
//! 5. Traces of the server whose copy it is (locks, slots) are removed from the data directory when the branch is made,
//!    and never while any process works in it.

mod create;
pub(super) mod data;
mod delete;
mod list;
pub(super) mod mariadb;
pub(super) mod owner;
pub(super) mod ports;
pub(super) mod postgres;
pub(super) mod process;
pub(super) mod programs;
pub(super) mod record;
mod reset;
pub(super) mod server;
mod settings;
mod start;
mod turn;
mod unfinished;

use std::path::{Path, PathBuf};

use pagefold_server::control::{Client, PropertyValue, ValueSource};
use pagefold_server::failure::{Failure, Result};
use pagefold_server::names::Name;
use pagefold_server::operations::Operation;
use pagefold_server::registry::Known;
use pagefold_server::{dataset_properties, names, pools};

use crate::args::BranchVerb as Verb;
use crate::datasets::{self, DatasetFigures};
use crate::target;
use crate::verbs::properties;
use record::Record;
use settings::Settings;

/// `branch VERB`.
pub fn run(verb: &Verb) -> Result<()> {
    match verb {
        Verb::Create(args) => create::run(args),
        Verb::List(args) => list::run(args),
        Verb::Start(args) => start::start(args),
        Verb::Stop(args) => start::stop(args),
        Verb::Reset(args) => reset::run(args),
        Verb::Delete(args) => delete::run(args),
    }
}

/// A branch: a dataset whose own properties say that it is one.
#[derive(Clone, Debug)]
struct Branch {
    name: Name,
    figures: DatasetFigures,
    record: Record,
}

impl Branch {
    /// Returns the snapshot as which the branch began, if it still is its clone.
    fn origin(&self) -> Option<Name> {
        self.figures.origin.as_deref().and_then(|origin| Name::parse(origin).ok())
    }

    /// Returns the directory at which the branch is mounted; the error says how to mount it.
    fn mounted(&self) -> Result<PathBuf> {
        self.figures.mounted.clone().ok_or_else(|| {
            Failure::new(format!("branch {} is not mounted", self.name))
                .hint(format!("pagefold branch start {0}, or pagefold mount {0}", self.name))
        })
    }
}

/// Finds the branch of this name.
fn find(name: &Name) -> Result<Branch> {
    let figures = datasets::find(name)?;
    let record = record(name, &properties::values(name)?, &Settings::open()?)?;
    let Some(record) = record else {
        return Err(Failure::new(format!("{name} is not a branch"))
            .hint(format!("see which there are: pagefold branch list {}", name.pool)));
    };
    Ok(Branch { name: name.clone(), figures, record })
}

/// Returns the record of a branch, from its properties and the settings that this machine keeps.
fn record(name: &Name, values: &[PropertyValue], settings: &Settings) -> Result<Option<Record>> {
    Record::of(values, settings.of(name)?)
}

/// Returns true if the pool itself says how a branch's server is to be started.
fn has_foreign_options(name: &Name) -> Result<bool> {
    Ok(local(&properties::values(name)?, record::OPTIONS).is_some())
}

/// Stores what is known of a branch as properties of its dataset, and how its server is started on this machine.
fn store(name: &Name, record: &Record) -> Result<()> {
    Settings::open()?.set(name, &record.options)?;
    properties::set_on(name, &record.properties())
}

/// Returns all branches of a pool, by name. One whose properties make no sense is reported, and hides no other.
fn all(pool: &str) -> Result<Vec<Branch>> {
    let figures: Vec<DatasetFigures> =
        datasets::of_pool(pool)?.into_iter().filter(|figures| !figures.is_snapshot).collect();
    let mut branches = Vec::new();
    let settings = Settings::open()?;
    let mut keep = |(figures, values): (DatasetFigures, Option<Vec<PropertyValue>>)| {
        let Some(values) = values else { return };
        let name = Name::new(pool, &figures.path);
        match record(&name, &values, &settings) {
            Ok(Some(record)) => branches.push(Branch { name, figures, record }),
            Ok(None) => {}
            Err(failure) => eprintln!("pagefold: {}: {failure}", figures.name),
        }
    };
    let ask = |client: &mut Client| {
        let values = |figures: &DatasetFigures| {
            unless_gone(&Name::new(pool, &figures.path), || datasets::properties_asked(client, &figures.path))
        };
        figures.iter().map(values).collect::<Result<Vec<_>>>()
    };
    let look = |known: &Known| {
        pools::look_offline(known, |pool| {
            let values =
                |figures: &DatasetFigures| dataset_properties::all(pool, &figures.path, &[]).map(Some);
            figures.iter().map(values).collect()
        })
    };
    let values = target::ask_or_look(pool, ask, look)?;
    figures.into_iter().zip(values).for_each(&mut keep);
    Ok(branches)
}

/// Returns what `ask` tells of a dataset or snapshot; `None` if that is gone, since commands on other branches go on
/// meanwhile. One that a reset replaces is gone for a moment.
fn unless_gone<T>(name: &Name, mut ask: impl FnMut() -> Result<T>) -> Result<Option<T>> {
    if let Ok(told) = ask() {
        return Ok(Some(told));
    }
    let all = datasets::of_pool(&name.pool)?;
    if all.iter().any(|figures| figures.path == name.path) { ask().map(Some) } else { Ok(None) }
}

/// Returns the property that is set on the dataset or snapshot itself.
fn local<'a>(values: &'a [PropertyValue], name: &str) -> Option<&'a str> {
    let found = values.iter().find(|value| value.name == name && value.source == ValueSource::Local);
    found.map(|value| value.value.as_str())
}

/// Returns true if a snapshot was made for a branch, and is destroyed with it.
fn is_own(snapshot: &Name) -> Result<bool> {
    Ok(local(&properties::values(snapshot)?, record::OWN).is_some())
}

/// Returns what the names of snapshots that are made for the branch `path` begin with.
fn own_snapshot_base(path: &str) -> String {
    format!("branch-{}", path.replace('/', "-"))
}

/// Makes a snapshot of a dataset as it is now, for the branch `path`, under a name that is free. It is marked as what `verb`
/// has begun.
fn own_snapshot(dataset: &Name, path: &str, verb: &str) -> Result<Name> {
    let taken = datasets::of_pool(&dataset.pool)?;
    let base = own_snapshot_base(path);
    let named = |n: u32| if n == 1 { base.clone() } else { format!("{base}-{n}") };
    let of = |name: String| Name::new(&dataset.pool, &format!("{}@{name}", dataset.path));
    let free = |name: &Name| !taken.iter().any(|figures| figures.path == name.path);
    let snapshot = (1..=u32::MAX).map(|n| of(named(n))).find(free);
    let snapshot =
        snapshot.ok_or_else(|| Failure::new(format!("no name is left for a snapshot of {dataset}")))?;
    let properties = vec![(record::OWN.to_owned(), path.to_owned()), unfinished::mark(verb)];
    let operation =
        Operation::Snapshot { snapshots: vec![snapshot.path.clone()], recursive: false, properties };
    datasets::perform(&dataset.pool, operation)?;
    Ok(snapshot)
}

/// Destroys datasets and snapshots.
fn destroy(pool: &str, what: Vec<String>, recursive: bool) -> Result<()> {
    datasets::perform(pool, Operation::Destroy { what, recursive, dry_run: false }).map(drop)
}

/// Mounts a dataset at `dir`, or at the place that its property says, and returns that place.
fn mount(name: &Name, dir: Option<&Path>) -> Result<PathBuf> {
    let args = crate::args::Mount::of(name.to_string(), dir.map(Path::to_owned));
    super::mount::run_quietly(&args)?;
    let mounted = datasets::find(name)?.mounted;
    mounted.ok_or_else(|| Failure::new(format!("{name} was mounted, and is not mounted any more")))
}

/// Unmounts a dataset, with its snapshots and the datasets below it.
fn unmount(name: &Name) -> Result<()> {
    let args = crate::args::Unmount { target: Some(name.to_string()), all: false, lazy: false, force: false };
    super::unmount::run(&args)
}

/// Returns the name of a branch as the command line gives it: a full name, or a word for a name beside that of its
/// source.
fn branch_name(source: &Name, word: &str) -> Result<Name> {
    if word.contains(['/', '@']) {
        let name = super::dataset::dataset(word)?;
        if name.pool != source.pool && target::known(&name.pool).is_err() {
            let what = format!("there is no pool {}, and the short name of a branch has no '/'", name.pool);
            return Err(Failure::usage(what)
                .hint(format!("a whole name begins with the pool: {}/{word}", source.pool)));
        }
        super::dataset::same_pool(source, &name)?;
        return Ok(name);
    }
    let path = match names::parent(source.dataset()) {
        Some(above) if !above.is_empty() => format!("{above}/{word}"),
        _ => word.to_owned(),
    };
    Name::parse(&names::full(&source.pool, &path))
}
