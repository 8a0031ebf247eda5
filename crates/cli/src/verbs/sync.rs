//! `sync`: makes everything written so far durable.

use pagefold_server::control::{Client, Reply, Request};
use pagefold_server::failure::Result;

use crate::args::Sync;
use crate::failures::Failures;
use crate::target;

/// Syncs the pools that are named, or all that are mounted.
pub fn run(args: &Sync) -> Result<()> {
    let mut failures = Failures::new();
    for (pool, client) in target::each_server(&args.targets)? {
        failures.take(&pool, client.and_then(|mut client| sync(&mut client)));
    }
    failures.finish(args.targets.len(), "made durable")
}

fn sync(client: &mut Client) -> Result<()> {
    match client.ask_and_wait(&Request::Sync {})? {
        Reply::Done {} => Ok(()),
        _ => Err(client.misunderstood()),
    }
}
