//! `branch reset`: makes a branch what a snapshot is.
//!
//! A new clone is made beside the branch, then the old one is destroyed and the new one takes its name. So at each
//! moment there is a branch: after a crash in between, the new one may still be called `NAME.reset`, until the next
//! command on the branch ([`unfinished`]). Obstacles are reported before the server ends; what was made until then is
//! undone. A signal is an obstacle until the old one is destroyed; after that, the rest is done first.

use std::path::Path;

use pagefold_server::control::ValueSource;
use pagefold_server::failure::{Failure, Result};
use pagefold_server::names::{self, Name};
use pagefold_server::operations::Operation;
use pagefold_server::props;

use super::record::Record;
use super::{Branch, create, list, server, turn, unfinished};
use crate::args::ResetBranch;
use crate::datasets;
use crate::interrupt::Interrupt;
use crate::verbs::dataset::{dataset, same_pool, snapshot_name};
use crate::verbs::properties;

/// Parts of a reset that this process has made so far, so that they can be undone.
#[derive(Default)]
struct PartialReset {
    snapshot: Option<Name>,
    clone: Option<Name>,
}

/// Resets a branch.
pub fn run(args: &ResetBranch) -> Result<()> {
    let name = dataset(&args.branch)?;
    let turn = turn::of(&name)?;
    unfinished::tidy(&turn, &name)?;
    let branch = super::find(&name)?;
    let origin = branch.origin().ok_or_else(|| {
        Failure::new(format!("{} is not a clone any more, and there is nothing to go back to", branch.name))
            .hint("to go back to a snapshot of its own: pagefold rollback")
    })?;
    let to = match &args.to {
        Some(word) => {
            let to = snapshot_name(word)?;
            same_pool(&branch.name, &to)?;
            datasets::find(&to)?;
            Some(to)
        }
        None => None,
    };
    if to.as_ref().is_some_and(|to| to.is_within(&branch.name.path)) {
        return Err(Failure::new(format!("{} has that snapshot itself", branch.name))
            .hint("to go back to it: pagefold branch stop, unmount, rollback, branch start"));
    }
    refuse_kept(&branch, args.recursive)?;
    let aside = aside(&branch.name)?;
    let interrupt = Interrupt::default();
    interrupt.catch()?;
    let mut made = PartialReset::default();
    let to = match to {
        None if args.latest => made.snapshot_of(&Name::new(&origin.pool, origin.dataset()), &name)?,
        to => to.unwrap_or_else(|| origin.clone()),
    };
    let replaced = replace(&branch, &origin, &to, &aside, &mut made, &interrupt);
    let running = replaced.inspect_err(|_| made.undo(&name))?;
    let finished = super::mount(&name, branch.figures.mounted.as_deref())
        .and_then(|dir| finish(&name, &branch.record, &dir));
    let branch = finished.map_err(|failure| stays_stopped(&name, &failure))?;
    unfinished::finish(&made.snapshot)?;
    match interrupt.release() {
        Err(_) if running => return Err(start_is_left(&name)),
        _ if running => server::start(&name, &branch.record, &server::data_of(&branch)?)
            .map_err(|failure| stays_stopped(&name, &failure))?,
        _ => {}
    }
    list::print_one(&branch, args.json)
}

/// Readies a branch that has become another snapshot, and is mounted at `dir`, for its server.
pub fn finish(name: &Name, record: &Record, dir: &Path) -> Result<Branch> {
    let record = create::look(dir, record.clone())?;
    super::store(name, &record)?;
    unfinished::finish([name])?;
    super::find(name)
}

/// Adds to a failure that the branch is there, and how its server is started.
fn stays_stopped(name: &Name, failure: &Failure) -> Failure {
    let advice = failure.advice().map(|advice| format!("\n  {advice}")).unwrap_or_default();
    Failure::new(failure.what()).hint(format!(
        "branch {name} was reset, and its server is stopped: pagefold branch start {name}{advice}"
    ))
}

fn start_is_left(name: &Name) -> Failure {
    Failure::new(format!("it was interrupted: branch {name} was reset, and its server was not started again"))
        .hint(format!("start it: pagefold branch start {name}"))
}

/// Returns the name of the new clone, which must be free.
fn aside(name: &Name) -> Result<Name> {
    let aside = unfinished::aside(name);
    if datasets::of_pool(&name.pool)?.iter().any(|figures| figures.path == aside.path) {
        return Err(Failure::new(format!(
            "there is a dataset {aside} already, and the reset needs that name"
        ))
        .hint(format!(
            "if a reset of an earlier version of pagefold was killed and has left it: pagefold destroy -r {aside}"
        )));
    }
    Ok(aside)
}

/// Puts a branch onto another snapshot: a new clone takes its name and all that was set on it. Returns true if its
/// server ran; the branch is not mounted afterwards.
fn replace(
    branch: &Branch,
    origin: &Name,
    to: &Name,
    aside: &Name,
    made: &mut PartialReset,
    interrupt: &Interrupt,
) -> Result<bool> {
    let (name, perform) = (&branch.name, |operation| datasets::perform(&branch.name.pool, operation));
    let mut going = vec![name.path.clone()];
    if to != origin && is_needless(origin)? {
        going.push(origin.path.clone());
    }
    interrupt.check()?;
    let mut properties = local(name)?;
    properties.retain(|(property, _)| property != unfinished::MARK);
    properties.push(unfinished::mark(unfinished::RESET));
    perform(Operation::Clone { snapshot: to.path.clone(), path: aside.path.clone(), properties })?;
    made.clone = Some(aside.clone());
    let asked = perform(Operation::Destroy { what: going.clone(), recursive: true, dry_run: true })?;
    if let Some((what, hint)) = asked.blocked {
        return Err(hint.into_iter().fold(Failure::new(what), Failure::hint));
    }
    interrupt.check()?;
    let running = server::end(branch)?;
    let gone = interrupt.check().and_then(|()| super::destroy(&name.pool, going, true));
    gone.map_err(|failure| server::resume(branch, running, failure))?;
    perform(Operation::Rename { from: aside.path.clone(), to: name.path.clone() }).map_err(|failure| {
        Failure::new(failure.what())
            .hint(format!("the branch is there under another name: pagefold rename {aside} {name}"))
    })?;
    Ok(running)
}

/// Returns true if the snapshot was made for the branch alone, and nobody else needs it once the branch is made of
/// another one.
fn is_needless(origin: &Name) -> Result<bool> {
    let figures = datasets::find(origin)?;
    Ok(super::is_own(origin)? && figures.clones.len() == 1 && figures.holds.is_empty())
}

impl PartialReset {
    /// Makes the snapshot that the branch becomes.
    fn snapshot_of(&mut self, dataset: &Name, branch: &Name) -> Result<Name> {
        let snapshot = super::own_snapshot(dataset, &branch.path, unfinished::RESET)?;
        self.snapshot = Some(snapshot.clone());
        Ok(snapshot)
    }

    /// Destroys what has been made, unless it is all that is left of the branch.
    fn undo(&self, branch: &Name) {
        if datasets::find(branch).is_err() {
            return;
        }
        for made in self.clone.iter().chain(&self.snapshot) {
            if let Err(failure) = super::destroy(&made.pool, vec![made.path.clone()], false) {
                eprintln!("pagefold: not undone: {failure}");
            }
        }
    }
}

/// Fails if something in the branch would be lost with it, and the user did not ask for that.
fn refuse_kept(branch: &Branch, recursive: bool) -> Result<()> {
    let all = datasets::of_pool(&branch.name.pool)?;
    let below: Vec<_> = all
        .iter()
        .filter(|figures| {
            figures.path != branch.name.path && names::is_within(&figures.path, &branch.name.path)
        })
        .collect();
    let Some(first) = below.first() else { return Ok(()) };
    if let Some(below) = below.iter().find(|figures| !figures.is_snapshot || !figures.clones.is_empty()) {
        return Err(Failure::new(format!("{} has {}, which is not its own alone", branch.name, below.name))
            .hint(
                "datasets below a branch, and snapshots with clones, have to go first: pagefold destroy -r",
            ));
    }
    if recursive {
        return Ok(());
    }
    Err(Failure::new(format!(
        "{} has snapshots, {} among them, which would be lost",
        branch.name, first.name
    ))
    .hint(format!("to lose them: pagefold branch reset -r {}", branch.name)))
}

/// Returns the settable properties that are set on the branch itself.
fn local(name: &Name) -> Result<Vec<(String, String)>> {
    let own = properties::values(name)?.into_iter().filter(|value| value.source == ValueSource::Local);
    let settable =
        |name: &str| props::is_user(name) || props::find(name).is_ok_and(props::Property::settable);
    Ok(own.filter(|value| settable(&value.name)).map(|value| (value.name, value.value)).collect())
}
