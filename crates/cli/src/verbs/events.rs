//! `events`: prints what a server has logged.

use std::io::Write;
use std::thread;
use std::time::Duration;

use pagefold_server::control::{Client, Event, Reply, Request};
use pagefold_server::failure::{Context, Failure, Result};
use pagefold_server::registry::Registry;
use pagefold_server::{event_log, units};

use crate::args::Events;
use crate::target;

/// Milliseconds that one request waits for the next event.
const FOLLOW_WAIT_MS: u32 = 30_000;
/// Levels, most severe first.
const LEVELS: [&str; 5] = ["error", "warn", "info", "debug", "trace"];

/// Pause before the next attempt after a server has ended, or while there is none.
const PAUSE: Duration = Duration::from_millis(200);

/// Prints events. With `follow` it goes on, also when one server ends and another begins.
pub fn run(args: &Events) -> Result<()> {
    let pool = target::pool_name(&args.target)?;
    let mut shown = Shown { args, last: 0 };
    let mut guid =
        Registry::open()?.all()?.into_iter().find(|known| known.name == pool).map(|known| known.guid);
    loop {
        if let Some(mut client) = target::connect(&pool)? {
            match shown.of_server(&mut client) {
                Err(_) if args.follow && client.has_ended() => {}
                done => return done,
            }
            guid = guid.or_else(|| guid_of(&pool));
        } else {
            let kept = guid.as_deref().map_or_else(|| Ok(Vec::new()), event_log::read)?;
            if guid.is_none() || kept.is_empty() && !args.follow {
                // Either there is a server now, or this returns the failure that says why there is none.
                return target::server(&args.target).map(drop);
            }
            shown.print(&kept)?;
            if !args.follow {
                return Ok(());
            }
        }
        thread::sleep(PAUSE);
    }
}

/// Returns the GUID of a pool that is served without being known here.
fn guid_of(pool: &str) -> Option<String> {
    let mut client = target::connect(pool).ok()??;
    match client.ask(&Request::Status {}) {
        Ok(Reply::Status { figures }) => Some(figures.guid),
        _ => None,
    }
}

/// The events that were printed.
struct Shown<'a> {
    args: &'a Events,
    /// Number of the last one.
    last: u64,
}

impl Shown<'_> {
    /// Prints the events that a server has, and with `follow` those that it gets, until it ends.
    fn of_server(&mut self, client: &mut Client) -> Result<()> {
        let mut wait_ms = 0;
        loop {
            let Reply::Events { events, lost } =
                client.ask(&Request::Events { after: self.last, wait_ms })?
            else {
                return Err(client.misunderstood());
            };
            if lost > 0 && !self.args.json {
                eprintln!("pagefold: {lost} older events are no longer kept");
            }
            self.print(&events)?;
            if !self.args.follow {
                return Ok(());
            }
            self.last = self.last.max(1);
            wait_ms = FOLLOW_WAIT_MS;
        }
    }

    /// Prints those events that were not printed yet.
    fn print(&mut self, events: &[Event]) -> Result<()> {
        let worst = LEVELS.iter().position(|level| *level == self.args.level).unwrap_or(LEVELS.len());
        for event in events.iter().filter(|event| event.number > self.last) {
            let rank = LEVELS.iter().position(|level| event.level.eq_ignore_ascii_case(level));
            if rank.is_none_or(|rank| rank <= worst) {
                print(event, self.args.json)?;
            }
        }
        self.last = self.last.max(events.last().map_or(0, |event| event.number));
        Ok(())
    }
}

fn print(event: &Event, json: bool) -> Result<()> {
    let printing = || "cannot print".to_owned();
    let line = if json {
        pagefold_server::raw::printed(serde_json::to_value(event).context(printing)?).to_string()
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
