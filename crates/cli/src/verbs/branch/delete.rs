//! `branch delete`.

use std::fs;

use pagefold_server::failure::{Failure, Result};
use pagefold_server::names;
use pagefold_server::names::Name;
use pagefold_server::operations::Operation;

use super::record::Options;
use super::settings::Settings;
use super::{data, server, turn, unfinished};
use crate::args::DeleteBranch;
use crate::datasets;
use crate::verbs::dataset::dataset;

/// Stops the server, unmounts, and destroys the branch and the snapshot that was made for it.
pub fn run(args: &DeleteBranch) -> Result<()> {
    let name = dataset(&args.branch)?;
    let turn = turn::of(&name)?;
    // If it was never finished, nothing else is to be done.
    if unfinished::tidy(&turn, &name)? && !is_there(&name)? {
        return Ok(());
    }
    let branch = super::find(&name)?;
    let mut what = vec![branch.name.path.clone()];
    if let Some(origin) = branch.origin()
        && super::is_own(&origin)?
        && datasets::find(&origin)?.clones.len() == 1
    {
        what.push(origin.path);
    }
    // Obstacles are reported before anything ends.
    let asked = refused(&branch.name, &what, args.recursive);
    asked.map_err(|failure| match !args.recursive && has_others_below(&branch.name) {
        // A snapshot that has a clone would stay with -r, too.
        true => refused(&branch.name, &what, true).err().unwrap_or_else(|| {
            Failure::new(failure.what())
                .hint(format!("with all that is in it: pagefold branch delete -r {}", branch.name))
        }),
        false => failure,
    })?;
    let ran = server::end(&branch)?;
    super::destroy(&branch.name.pool, what, args.recursive)
        .map_err(|failure| server::resume(&branch, ran, failure))?;
    if let Some(dir) = &branch.figures.mounted
        && branch.record.made_mountpoint
    {
        // The directory stays if something else has been put into it.
        let _kept_if_not_empty = data::remove_dir(dir);
    }
    Settings::open()?.set(&branch.name, &Options::default())?;
    match fs::remove_file(server::log_of(&branch.name)?) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(Failure::new(format!(
            "branch {} is destroyed; its log could not be removed: {error}",
            branch.name
        ))),
        _ => Ok(()),
    }
}

fn is_there(name: &Name) -> Result<bool> {
    Ok(datasets::of_pool(&name.pool)?.iter().any(|figures| figures.path == name.path))
}

/// Fails if a branch with its snapshot could not be destroyed.
fn refused(name: &Name, what: &[String], recursive: bool) -> Result<()> {
    let ask = Operation::Destroy { what: what.to_vec(), recursive, dry_run: true };
    match datasets::perform(&name.pool, ask)?.blocked {
        Some((what, hint)) => Err(hint.into_iter().fold(Failure::new(what), Failure::hint)),
        None => Ok(()),
    }
}

/// Returns true if a dataset has snapshots, or datasets below it.
fn has_others_below(name: &Name) -> bool {
    let is_below = |other: &str| other != name.path && names::is_within(other, &name.path);
    datasets::of_pool(&name.pool).is_ok_and(|all| all.iter().any(|found| is_below(&found.path)))
}
