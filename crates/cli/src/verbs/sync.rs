//! `sync`: makes everything written so far durable.

use crate::args::Sync;
use crate::control::{Reply, Request};
use crate::failure::Result;
use crate::target;

/// Syncs the pools named, or all mounted ones.
pub fn run(args: &Sync) -> Result<()> {
    for mut client in target::servers(&args.targets)? {
        match client.ask_and_wait(&Request::Sync {})? {
            Reply::Done {} => {}
            _ => return Err(client.misunderstood()),
        }
    }
    Ok(())
}
