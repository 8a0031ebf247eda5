//! `scrub`: has a mounted pool read and verify everything that is live.

use std::thread::sleep;
use std::time::Duration;

use pagefold_server::control::{Client, PoolFigures, Reply, Request, ScrubFigures};
use pagefold_server::failure::{Failure, Result};
use pagefold_server::units;
use serde_json::json;

use crate::args::Scrub;
use crate::progress::Progress;
use crate::target;

/// Interval between two requests for the progress of a scrub that is waited for.
const POLL: Duration = Duration::from_millis(200);

/// Starts or stops a scrub, or shows its state.
pub fn run(args: &Scrub) -> Result<()> {
    let mut client = target::server(&target::whole_pool(&args.pool, "scrub")?)?;
    let before = ask(&mut client)?;
    let running = before.scrub.as_ref().is_some_and(|scrub| scrub.state == RUNNING);
    if running && !args.status && !args.stop {
        let name = &before.name;
        return Err(Failure::new(format!("a scrub of pool {name} is under way")).hint(format!(
            "to wait for its end: pagefold scrub --status --wait {name}; to stop it: pagefold scrub --stop {name}"
        )));
    }
    if !args.status {
        let request = match args.stop {
            true => Request::ScrubStop {},
            false => Request::ScrubStart { rate: args.rate.unwrap_or(0) },
        };
        match client.ask_and_wait(&request)? {
            Reply::Done {} => {}
            _ => return Err(client.misunderstood()),
        }
    }
    let mut figures = ask(&mut client)?;
    if args.wait {
        let progress = Progress::bytes("scrubbing");
        while let Some(scrub) = figures.scrub.as_ref().filter(|scrub| scrub.state == RUNNING) {
            progress.at(scrub.done_bytes, scrub.total_bytes.max(scrub.done_bytes));
            sleep(POLL);
            figures = ask(&mut client)?;
        }
        progress.finish();
    }
    match (&figures.scrub, args.output.json) {
        (scrub, true) => super::print_json(&json!({ "pool": figures.name, "scrub": scrub }))?,
        (Some(scrub), false) => println!("{}", text(scrub, args.output.exact)),
        (None, false) => println!("pool {} was never scrubbed", figures.name),
    }
    let left = |scrub: &ScrubFigures| scrub.damaged + scrub.unreadable > scrub.repaired;
    let harmed = figures.scrub.as_ref().is_some_and(left);
    if !(args.wait && harmed) {
        return Ok(());
    }
    let name = &figures.name;
    Err(Failure::new(format!("pool {name} is damaged")).hint(format!(
        "`pagefold events {name}` says where, and `pagefold check` (after unmounting) in what"
    )))
}

/// State of a scrub that is under way.
const RUNNING: &str = "running";

fn ask(client: &mut Client) -> Result<PoolFigures> {
    match client.ask(&Request::Status {})? {
        Reply::Status { figures } => Ok(*figures),
        _ => Err(client.misunderstood()),
    }
}

/// Returns the state of a scrub in a line; `status` shows it too.
pub(super) fn text(scrub: &ScrubFigures, exact: bool) -> String {
    let size = |bytes: u64| if exact { bytes.to_string() } else { units::size(bytes) };
    let far = format!(
        "{} ({}) read",
        size(scrub.done_bytes),
        units::percent(scrub.done_bytes.min(scrub.total_bytes), scrub.total_bytes)
    );
    let how = match scrub.state.as_str() {
        RUNNING => format!("under way since {}, {far}", units::utc(scrub.started)),
        "stopped" => format!("begun {}, stopped, {far}", units::utc(scrub.started)),
        _ => format!("finished {}, {} read", units::utc(scrub.finished), size(scrub.done_bytes)),
    };
    match (scrub.damaged, scrub.unreadable, scrub.repaired) {
        (0, 0, _) => format!("{how}, no damage"),
        (damaged, unreadable, 0) => {
            format!("{how}, {} damaged, {unreadable} unreadable", units::counted(damaged, "record"))
        }
        (damaged, unreadable, repaired) => {
            let damaged = units::counted(damaged, "record");
            format!("{how}, {damaged} damaged, {unreadable} unreadable, {repaired} repaired")
        }
    }
}
