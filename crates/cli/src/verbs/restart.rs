//! `restart`: starts another server, of the program as it is on disk now, which goes on with a pool's mounts.

use std::thread;
use std::time::Instant;

use pagefold_server::control::{Client, PoolFigures, Reply, Request};
use pagefold_server::failure::{Failure, Result};
use pagefold_server::timeouts;

use crate::args::Restart;
use crate::failures::Failures;
use crate::target;

/// Restarts the servers of the pools that are named.
pub fn run(args: &Restart) -> Result<()> {
    let mut failures = Failures::new();
    for word in &args.targets {
        failures.take(word, restart(word));
    }
    failures.finish(args.targets.len(), "restarted")
}

fn restart(word: &str) -> Result<()> {
    let pool = target::whole_pool(word, "restart")?;
    let mut client = target::server(word)?;
    let before = restarts(&figures(&mut client)?);
    match client.ask_and_wait(&Request::Restart {})? {
        Reply::Done {} => {}
        _ => return Err(client.misunderstood()),
    }
    drop(client);
    let stall = wait(&pool, before)?;
    println!("pool {pool}: another server goes on; requests waited {stall} ms");
    Ok(())
}

fn figures(client: &mut Client) -> Result<PoolFigures> {
    match client.ask(&Request::Status {})? {
        Reply::Status { figures } => Ok(*figures),
        _ => Err(client.misunderstood()),
    }
}

fn restarts(figures: &PoolFigures) -> u32 {
    figures.takeover.as_ref().map_or(0, |takeover| takeover.restarts)
}

/// Waits for a server with more restarts than `before`; returns how long requests waited, in milliseconds.
fn wait(pool: &str, before: u32) -> Result<u64> {
    let started = Instant::now();
    let mut told = false;
    while started.elapsed() < timeouts::RESTART {
        // While one server ends and the next starts, nobody answers, or one that is ending does.
        let asked = Client::connect(pool).ok().flatten().map(|mut client| figures(&mut client));
        if let Some(Ok(figures)) = asked
            && restarts(&figures) > before
            && let Some(stall) = figures.takeover.and_then(|takeover| takeover.last_stall_ms)
        {
            return Ok(stall);
        }
        if started.elapsed() > timeouts::TELL_AFTER && !std::mem::replace(&mut told, true) {
            eprintln!("pagefold: waiting: another server of pool {pool} has to go on");
        }
        thread::sleep(timeouts::RESTART_STEP);
    }
    Err(Failure::new(format!(
        "no other server of pool {pool} goes on after {} s",
        timeouts::RESTART.as_secs()
    ))
    .hint(format!("its log tells why: pagefold events {pool}, or journalctl")))
}
