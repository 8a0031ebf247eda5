//! Removes the pieces that commands have left which were killed while they made or reset a branch.
//!
//! Snapshots and clones say that they are not finished ([`MARK`]) from the instant at which they are made. Whoever has
//! the turn of the branch and sees that knows that nobody finishes them any more, and does or removes it.

use pagefold_server::failure::Result;
use pagefold_server::names::Name;
use pagefold_server::operations::Operation;

use super::record::{self, Options, Record};
use super::settings::Settings;
use super::turn::BranchTurn;
use super::{Branch, data, local};
use crate::datasets::{self, DatasetFigures};
use crate::verbs::properties;

/// Property of a snapshot or clone that is made for a branch, until all is done. Its value is the verb.
pub const MARK: &str = "branch:unfinished";
/// The verb that makes a branch.
pub const CREATE: &str = "create";
/// The verb that makes a branch what a snapshot is.
pub const RESET: &str = "reset";

/// Returns the mark of what a verb makes, as a property.
pub fn mark(verb: &str) -> (String, String) {
    (MARK.to_owned(), verb.to_owned())
}

/// Takes the marks from what is finished.
pub fn finish<'a>(names: impl IntoIterator<Item = &'a Name>) -> Result<()> {
    names.into_iter().try_for_each(|name| {
        let operation = Operation::Inherit { path: name.path.clone(), name: MARK.to_owned() };
        datasets::perform(&name.pool, operation).map(drop)
    })
}

/// Returns the name of a reset's new clone until it takes that of the branch.
pub fn aside(name: &Name) -> Name {
    Name::new(&name.pool, &format!("{}.reset", name.path))
}

/// Returns true if a reset was killed before the branch was ready to be used.
pub fn is_half_reset(branch: &Branch) -> Result<bool> {
    Ok(marked(&branch.name)?.as_deref() == Some(RESET))
}

/// Removes what a killed command has left under the name of a branch, or gives the branch its name again. Returns true
/// if a branch that was never finished was removed. What was done is told.
///
/// Errors: something of it is in use.
pub fn tidy(_turn: &BranchTurn, name: &Name) -> Result<bool> {
    tidy_aside(name)?;
    let removed = tidy_create(name)?;
    let is_left = tidy_snapshots(name)?;
    Ok(removed || is_left)
}

/// Removes the clone of a reset that was killed, or makes it the branch if that is gone.
fn tidy_aside(name: &Name) -> Result<()> {
    let aside = aside(name);
    let all = datasets::of_pool(&name.pool)?;
    let is_there = |path: &str| all.iter().any(|figures| figures.path == path);
    if !is_there(&aside.path) || marked(&aside)?.is_none() {
        return Ok(());
    }
    if is_there(&name.path) {
        super::destroy(&name.pool, vec![aside.path.clone()], false)?;
        eprintln!("pagefold: destroyed {aside}, which a branch reset that was killed had left");
        return Ok(());
    }
    let operation = Operation::Rename { from: aside.path.clone(), to: name.path.clone() };
    datasets::perform(&name.pool, operation)?;
    eprintln!("pagefold: {name} has its name again: a branch reset that was killed had left it as {aside}");
    Ok(())
}

/// Removes a branch that a killed command had begun to make. Returns true if there was one.
fn tidy_create(name: &Name) -> Result<bool> {
    let all = datasets::of_pool(&name.pool)?;
    let Some(figures) = all.into_iter().find(|figures| figures.path == name.path) else { return Ok(false) };
    let values = properties::values(name)?;
    if local(&values, MARK) != Some(CREATE) {
        return Ok(false);
    }
    if Record::of(&values, Options::default())?.is_some() {
        return finish([name]).map(|()| false);
    }
    if let Some(dir) = &figures.mounted {
        super::unmount(name)?;
        if local(&values, record::MADE_DIR).is_some() {
            // The directory stays if something else has been put into it.
            let _kept_if_not_empty = data::remove_dir(dir);
        }
    }
    Settings::open()?.set(name, &Options::default())?;
    super::destroy(&name.pool, vec![name.path.clone()], false)?;
    eprintln!("pagefold: destroyed {name}, which a branch create that was killed had left");
    Ok(true)
}

/// Destroys snapshots of which a killed command had not made a clone yet. Returns true if there was one.
fn tidy_snapshots(name: &Name) -> Result<bool> {
    let begins = super::own_snapshot_base(&name.path);
    let is_named =
        |path: &str| path.split_once('@').is_some_and(|(_, snapshot)| snapshot.starts_with(&begins));
    let is_free = |figures: &DatasetFigures| figures.clones.is_empty() && figures.holds.is_empty();
    let mut found = false;
    for figures in datasets::of_pool(&name.pool)? {
        if !figures.is_snapshot || !is_named(&figures.path) || !is_free(&figures) {
            continue;
        }
        let snapshot = Name::new(&name.pool, &figures.path);
        let Some(values) = super::unless_gone(&snapshot, || properties::values(&snapshot))? else { continue };
        if local(&values, record::OWN) == Some(name.path.as_str()) && local(&values, MARK).is_some() {
            super::destroy(&name.pool, vec![figures.path], false)?;
            eprintln!("pagefold: destroyed {snapshot}, which a branch command that was killed had left");
            found = true;
        }
    }
    Ok(found)
}

/// Returns the mark of a dataset or snapshot.
fn marked(name: &Name) -> Result<Option<String>> {
    Ok(local(&properties::values(name)?, MARK).map(str::to_owned))
}
