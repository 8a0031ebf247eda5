//! `rebase`: moves a clone onto a newer snapshot.

use pagefold_server::control::{Moving, Rebased, Reply, Request};
use pagefold_server::failure::{Failure, Result};
use pagefold_server::operations::{self, NoMounts};
use pagefold_server::registry::Registry;
use pagefold_server::{pools, rebase};
use parking_lot::RwLock;
use serde_json::json;

use super::dataset::{dataset, same_pool, snapshot_name};
use crate::args::Rebase;
use crate::table::printable;
use crate::target;

/// Moves the clone, or tells what is in the way.
pub fn run(args: &Rebase) -> Result<()> {
    let (clone, onto) = (dataset(&args.dataset)?, snapshot_name(&args.snapshot)?);
    same_pool(&clone, &onto)?;
    let (name, onto_name) = (clone.to_string(), onto.to_string());
    let rebased = perform(&clone.pool, Moving { path: clone.path, onto: onto.path, own: args.recursive })?;
    if args.json {
        super::print_json(&json!({
            "rebased": rebased.conflict_count == 0, "files": rebased.files,
            "copied_bytes": rebased.copied_bytes, "conflicts": rebased.conflicts,
            "conflict_count": rebased.conflict_count,
        }))?;
    } else {
        rebased.conflicts.iter().for_each(|path| println!("{}", printable(path)));
    }
    match rebased.conflict_count {
        0 => Ok(()),
        count => Err(Failure::new(format!(
            "{name} and {onto_name} have both changed what is listed ({count}); nothing was changed"
        ))
        .hint(format!("undo these changes in {name}, or give up all of them: pagefold reset {name}"))),
    }
}

fn perform(pool: &str, what: Moving) -> Result<Rebased> {
    if let Some(mut client) = target::connect(pool)? {
        return match client.ask_and_wait(&Request::Rebase { what })? {
            Reply::Rebased { rebased } => Ok(rebased),
            _ => Err(client.misunderstood()),
        };
    }
    let known = Registry::open()?.find(pool)?;
    pools::with_offline(&known, |pool| {
        operations::clear_way_to_move(pool, &what, &NoMounts)?;
        let rebased = rebase::perform(pool, &what, &NoMounts, &RwLock::new(()), &mut || true)?;
        operations::free_all(pool)?;
        Ok(rebased)
    })
}
