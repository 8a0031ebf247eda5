//! `branch reset`: makes a branch what a snapshot is.
//!
//! A new clone is made beside the branch, then the old one is destroyed and the new one takes its name. So at each
//! moment there is a branch: after a crash in between, the new one may still be called `NAME.reset`.

use super::record::Record;
use super::{Branch, create, list, process, server};
use crate::args::ResetBranch;
use crate::control::Source;
use crate::datasets;
use crate::failure::{Failure, Result};
use crate::names::{self, Name};
use crate::props;
use crate::verbs::properties;

/// Resets a branch.
pub fn run(args: &ResetBranch) -> Result<()> {
    let branch = super::find(&args.branch)?;
    let origin = branch.origin().ok_or_else(|| {
        Failure::new(format!("{} is not a clone any more, and there is nothing to go back to", branch.name))
            .hint("to go back to a snapshot of its own: pagefold rollback")
    })?;
    let to = match &args.to {
        Some(word) => {
            let to = crate::verbs::dataset::snapshot_name(word)?;
            crate::verbs::dataset::same_pool(&branch.name, &to)?;
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
    let (local, own) = (local(&branch.name)?, super::is_own(&origin)?);
    let running = end(&branch)?;
    let made = args
        .latest
        .then(|| super::own_snapshot(&Name::new(&origin.pool, origin.dataset()), &branch.name.path));
    let to = match (made.transpose()?, to) {
        (Some(made), _) => made,
        (None, Some(to)) => to,
        (None, None) => origin.clone(),
    };
    let mut going = vec![branch.name.path.clone()];
    // This snapshot was made for the branch, which is made of another one now: nobody needs it.
    if own && to != origin {
        going.push(origin.path.clone());
    }
    create::again(&branch, &to, local, going)?;
    let dir = super::mount(&branch.name, branch.figures.mounted.as_deref())?;
    let record = create::look(&dir, Record { ..branch.record.clone() })?;
    create::keep(&branch.name, &record)?;
    let branch = super::find(&args.branch)?;
    if running {
        server::start(&branch.name, &branch.record, &server::data_of(&branch)?)?;
    }
    list::tell(&branch, args.json)
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

/// Stops the server and unmounts; returns true if the server ran.
fn end(branch: &Branch) -> Result<bool> {
    if branch.figures.mounted.is_none() {
        return Ok(false);
    }
    let data = server::data_of(branch)?;
    let ran = process::server_of(&data).is_some();
    drop(data);
    server::stop(branch, true)?;
    super::unmount(&branch.name)?;
    Ok(ran)
}

/// Returns the settable properties that are set on the branch itself.
fn local(name: &Name) -> Result<Vec<(String, String)>> {
    let own = properties::values(name)?.into_iter().filter(|value| value.source == Source::Local);
    let settable =
        |name: &str| props::is_user(name) || props::find(name).is_ok_and(props::Property::settable);
    Ok(own.filter(|value| settable(&value.name)).map(|value| (value.name, value.value)).collect())
}
