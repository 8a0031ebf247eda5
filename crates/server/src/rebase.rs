//! Moves a clone onto a newer snapshot, on a pool that is served and on one that is opened for a moment.

use pagefold_engine::Error;
use pagefold_engine::pool::Pool;
use pagefold_fs::rebase::{Copied, Rebased as Done, Side, rebase};
use parking_lot::RwLock;

use crate::control::{Moving, Rebased};
use crate::failure::{Context, Failure, Result};
use crate::operations::{self, Mounts};
use crate::{engine_errors, incomplete, names, raw, units};

/// Largest number of conflicts that are listed; the others are only counted.
const CONFLICTS_MAX: usize = 1000;

/// Moves a clone that nobody uses, as [`operations::clear_way_to_move`] has found. `dataset_lock` is locked for writing
/// while the clone gets its new contents, and not before. The work is given up when `go_on` returns false.
pub fn perform(
    pool: &Pool,
    what: &Moving,
    mounts: &dyn Mounts,
    dataset_lock: &RwLock<()>,
    go_on: &mut dyn FnMut() -> bool,
) -> Result<Rebased> {
    let Moving { path, onto, own } = what;
    let name = names::full(pool.name(), path);
    [path, onto].into_iter().try_for_each(|path| incomplete::refuse(pool, path, "rebase"))?;
    let doing = || format!("cannot rebase {name} onto {}", names::full(pool.name(), onto));
    let failed = |error: Error| {
        let missing = [path, onto].into_iter().find(|path| pool.version(path).is_err());
        match (&error, missing) {
            (Error::NotFound(_), Some(path)) => {
                engine_errors::no_such_dataset(&names::full(pool.name(), path), &error)
            }
            (Error::Busy(why) | Error::Invalid(why), _) => Failure::new(format!("{}: {why}", doing())),
            _ => engine_errors::failed(doing(), &error),
        }
    };
    let under_way = pool.begin_rebase(path, onto, *own, units::now()).map_err(failed)?;
    let done = {
        let (ours, theirs) = (under_way.ours().map_err(failed)?, under_way.theirs());
        let origin = ours.older();
        let ours = Side::new(ours.newer(), ours.differences()).context(doing)?;
        let theirs = Side::new(theirs.newer(), theirs.differences()).context(doing)?;
        let go_on = &mut || match go_on() {
            true => Ok(()),
            false => Err(Error::Busy("whoever asked for it has gone".into()).into()),
        };
        rebase(origin, &ours, &theirs, under_way.target(), go_on).context(doing)?
    };
    match done {
        Done::Conflicts(paths) => Ok(refused(&paths)),
        Done::Done(Copied { files, bytes }) => {
            let _unchanged = dataset_lock.write();
            operations::clear_way_to_move(pool, what, mounts)?;
            under_way.finish().map_err(failed)?;
            tracing::info!(dataset = name, onto = names::full(pool.name(), onto), files, bytes, "rebased");
            Ok(Rebased { files, copied_bytes: bytes, ..Rebased::default() })
        }
    }
}

fn refused(conflicts: &[Vec<u8>]) -> Rebased {
    let path = |path: &Vec<u8>| format!("/{}", raw::text_of(path));
    Rebased {
        conflicts: conflicts.iter().take(CONFLICTS_MAX).map(path).collect(),
        conflict_count: conflicts.len() as u64,
        ..Rebased::default()
    }
}
