//! `events`: what a server has logged.

use std::io::Write;

use crate::args::Events;
use crate::control::{Event, Reply, Request};
use crate::failure::{Context, Failure, Result};
use crate::{target, units};

/// How long one question waits for the next event.
const FOLLOW_WAIT_MS: u32 = 30_000;
/// Levels, the worst first.
const LEVELS: [&str; 5] = ["error", "warn", "info", "debug", "trace"];

/// Prints events, and goes on if asked to.
pub fn run(args: &Events) -> Result<()> {
    let mut client = target::server(&args.target)?;
    let worst = LEVELS.iter().position(|level| *level == args.level).unwrap_or(LEVELS.len());
    let mut last = 0;
    loop {
        let wait_ms = if args.follow && last > 0 { FOLLOW_WAIT_MS } else { 0 };
        let Reply::Events { events, lost } = client.ask(&Request::Events { after: last, wait_ms })? else {
            return Err(client.misunderstood());
        };
        if lost > 0 && !args.json {
            eprintln!("pagefold: {lost} older events are no longer kept");
        }
        for event in &events {
            last = event.number;
            let rank = LEVELS.iter().position(|level| event.level.eq_ignore_ascii_case(level));
            if rank.is_none_or(|rank| rank <= worst) {
                print(event, args.json)?;
            }
        }
        if !args.follow {
            return Ok(());
        }
        last = last.max(1);
    }
}

fn print(event: &Event, json: bool) -> Result<()> {
    let printing = || "cannot print".to_owned();
    let line = if json {
        crate::raw::told(serde_json::to_value(event).context(printing)?).to_string()
    } else {
        text(event)
    };
    writeln!(std::io::stdout(), "{line}").map_err(|error| Failure::new(format!("cannot print: {error}")))
}

fn text(event: &Event) -> String {
    let seconds = event.time_ms / 1000;
    let fields: String = event.fields.iter().map(|(name, value)| format!(" {name}={value}")).collect();
    let line = format!("{} {:5} {}{fields}", units::utc(seconds), event.level, event.message);
    crate::table::printable(&line)
}
