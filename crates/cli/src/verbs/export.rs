//! `export`: closes a pool cleanly and forgets it.

use pagefold_server::control::UnmountMode;
use pagefold_server::failure::{Failure, Result};
use pagefold_server::pools;
use pagefold_server::registry::Registry;

use crate::args::Export;
use crate::{mount_lookup, raw, target};

/// Exports a pool. All of its mounts go, or none does.
pub fn run(args: &Export) -> Result<()> {
    let registry = Registry::open()?;
    let pool = match target::is_path(&args.pool) {
        // The path must be a mount point itself, not something that lies on the pool.
        true => mount_lookup::mount_at(&raw::path_of(&args.pool))?.pool().to_owned(),
        false => target::whole_pool(&args.pool, "export")?,
    };
    if let Some(mut client) = target::connect(&pool)? {
        let mode = if args.force { UnmountMode::Force } else { UnmountMode::Normal };
        super::unmount::whole_pool(&mut client, mode)?;
    }
    let known = registry.find(&pool)?;
    if let Err(failure) = pools::close_cleanly(&known) {
        if !args.force {
            return Err(Failure::new(failure.what())
                .hint(format!("to forget it without closing it: pagefold export -f {}", known.name)));
        }
        eprintln!("pagefold: {}; the pool is forgotten all the same", failure.what());
    }
    registry.remove(&known.guid)
}
