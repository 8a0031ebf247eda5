//! `trim`: has a mounted pool tell its devices what is free.

use std::thread::sleep;
use std::time::Duration;

use pagefold_server::control::{Client, PoolFigures, Reply, Request, TrimFigures};
use pagefold_server::failure::{Failure, Result};
use pagefold_server::units;
use serde_json::json;

use crate::args::Trim;
use crate::progress::Progress;
use crate::target;

/// Interval between two requests for the progress of a trim that is waited for.
const POLL: Duration = Duration::from_millis(200);
/// State of a trim that is under way.
const RUNNING: &str = "running";

/// Starts or stops a trim, or shows its state.
pub fn run(args: &Trim) -> Result<()> {
    let mut client = target::server(&target::whole_pool(&args.pool, "trim")?)?;
    let request = match (args.stop, args.status || args.dry_run) {
        (_, true) => None,
        (true, false) => Some(Request::TrimStop {}),
        (false, false) => Some(Request::TrimStart { rate: args.rate.unwrap_or(0) }),
    };
    if let Some(request) = request {
        match client.ask_and_wait(&request)? {
            Reply::Done {} => {}
            _ => return Err(client.misunderstood()),
        }
    }
    let mut figures = ask(&mut client)?;
    if args.wait {
        let progress = Progress::bytes("trimming");
        while let Some(trim) = figures.trim.as_ref().filter(|trim| trim.state == RUNNING) {
            progress.at(trim.done_bytes, trim.total_bytes.max(trim.done_bytes));
            sleep(POLL);
            figures = ask(&mut client)?;
        }
        progress.finish();
    }
    show(args, &figures)?;
    match &figures.trim {
        Some(trim) if args.wait && trim.errors > 0 => {
            let name = &figures.name;
            Err(Failure::new(format!("{} discards failed; pool {name} is as good as before", trim.errors))
                .hint(format!("`pagefold events {name}` says why")))
        }
        _ => Ok(()),
    }
}

fn ask(client: &mut Client) -> Result<PoolFigures> {
    match client.ask(&Request::Status {})? {
        Reply::Status { figures } => Ok(*figures),
        _ => Err(client.misunderstood()),
    }
}

fn show(args: &Trim, figures: &PoolFigures) -> Result<()> {
    let PoolFigures { name, trim, untrimmed_bytes, .. } = figures;
    if args.output.json {
        return super::print_json(&json!({ "pool": name, "trim": trim, "untrimmed_bytes": untrimmed_bytes }));
    }
    match trim {
        _ if args.dry_run => {
            println!("{} of pool {name} would be told of", size(*untrimmed_bytes, args.output.exact));
        }
        Some(trim) => println!("{}", text(trim, args.output.exact)),
        None => println!("pool {name} was not trimmed since it was opened"),
    }
    Ok(())
}

fn size(bytes: u64, exact: bool) -> String {
    if exact { bytes.to_string() } else { units::size(bytes) }
}

/// Returns the state of a trim in a line; `status` shows it too.
pub(super) fn text(trim: &TrimFigures, exact: bool) -> String {
    let done = size(trim.done_bytes, exact);
    let far = format!(
        "{done} ({}) told of",
        units::percent(trim.done_bytes.min(trim.total_bytes), trim.total_bytes)
    );
    let how = match trim.state.as_str() {
        RUNNING => format!("under way since {}, {far}", units::utc(trim.started)),
        "stopped" => format!("begun {}, stopped, {far}", units::utc(trim.started)),
        _ => format!("finished {}, {done} told of", units::utc(trim.finished)),
    };
    match trim.errors {
        0 => how,
        errors => format!("{how}, {errors} discards failed"),
    }
}
