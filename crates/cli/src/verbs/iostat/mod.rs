//! `iostat`: prints what mounted pools read and write, and why.

use std::io::Write;
use std::time::{Duration, Instant};

use pagefold_server::control::{Activity, Client, Counter, LengthFigures, Reply, Request, RewriteFigures};
use pagefold_server::failure::{Context, Failure, Result};
use pagefold_server::units;
use serde_json::json;

use crate::args::Iostat;
use crate::failures::Failures;
use crate::table::{Align, Table};
use crate::target;

/// End of the sentence "N of M could not be ..." about pools that failed.
const WATCHED: &str = "looked at to the end";

/// Meaning of the command line's words.
#[derive(Debug, PartialEq)]
struct Sampling {
    pools: Vec<String>,
    interval: Option<Duration>,
    count: Option<u64>,
}

/// Prints counters once, or again and again.
pub fn run(args: &Iostat) -> Result<()> {
    let plan = plan(&args.words)?;
    let mut failures = Failures::new();
    let mut clients: Vec<Client> = Vec::new();
    for (pool, client) in target::each_server(&plan.pools)? {
        clients.extend(failures.take(&pool, client));
    }
    if clients.is_empty() {
        if !args.output.json && !args.output.script && failures.is_empty() {
            eprintln!("no pool is mounted");
        }
        return failures.finish(plan.pools.len(), WATCHED);
    }
    let mut before: Vec<Activity> = clients.iter().map(|_| Activity::default()).collect();
    let mut round = 0;
    let mut next = Instant::now();
    loop {
        let mut now: Vec<Activity> = Vec::new();
        let mut gone: Vec<usize> = Vec::new();
        for (index, client) in clients.iter_mut().enumerate() {
            match ask(client) {
                Ok(activity) => now.push(activity),
                Err(failure) => {
                    failures.also(client.pool(), failure);
                    gone.push(index);
                }
            }
        }
        // A server that has ended, or does not answer, ends the output only if it was the last one.
        for index in gone.into_iter().rev() {
            clients.remove(index);
            before.remove(index);
        }
        if clients.is_empty() {
            return failures.finish(plan.pools.len(), WATCHED);
        }
        let rates = clients
            .iter()
            .zip(before.iter().zip(&now))
            .map(|(client, (before, now))| (client.pool(), difference(before, now)));
        print(&rates.collect::<Vec<_>>(), args, round)?;
        before = now;
        round += 1;
        let Some(interval) = plan.interval else { return failures.finish(plan.pools.len(), WATCHED) };
        if plan.count.is_some_and(|count| round >= count) {
            return failures.finish(plan.pools.len(), WATCHED);
        }
        next += interval;
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
    }
}

/// Parses the words: pools first, then the interval in seconds and the number of rounds.
fn plan(words: &[String]) -> Result<Sampling> {
    let split =
        words.iter().position(|word| word.starts_with(|c: char| c.is_ascii_digit())).unwrap_or(words.len());
    let (pools, numbers) = words.split_at(split);
    let wrong = |word: &str, what: &str| {
        Failure::usage(format!("\"{}\" is not {what}", crate::table::printable(word)))
            .hint("pagefold iostat [POOL...] [SECONDS [COUNT]]")
    };
    let interval = numbers.first().map(|word| {
        let seconds = word.parse::<f64>().ok().filter(|seconds| (0.1..=86_400.0).contains(seconds));
        seconds
            .map(Duration::from_secs_f64)
            .ok_or_else(|| wrong(word, "an interval from 0.1 to 86400 seconds"))
    });
    let count = numbers.get(1).map(|word| {
        word.parse::<u64>()
            .ok()
            .filter(|count| *count > 0)
            .ok_or_else(|| wrong(word, "how many lines to print"))
    });
    if let Some(extra) = numbers.get(2) {
        return Err(wrong(extra, "expected after the interval and the count"));
    }
    Ok(Sampling { pools: pools.to_vec(), interval: interval.transpose()?, count: count.transpose()? })
}

fn ask(client: &mut Client) -> Result<Activity> {
    match client.ask(&Request::Counters {})? {
        Reply::Counters { activity } => Ok(activity),
        _ => Err(client.misunderstood()),
    }
}

/// Returns the difference between two instants; a counter that is new, or was reset by a new server, counts from zero.
fn difference(before: &Activity, now: &Activity) -> Activity {
    let restarted = now.age_ms < before.age_ms;
    let counters = now.counters.iter().map(|counter| {
        let old = before.counters.iter().find(|old| old.name == counter.name && !restarted);
        Counter {
            name: counter.name.clone(),
            operations: counter.operations.saturating_sub(old.map_or(0, |old| old.operations)),
            bytes: counter.bytes.saturating_sub(old.map_or(0, |old| old.bytes)),
        }
    });
    let rewrites = now.rewrites.iter().map(|rewrites| {
        let old = before.rewrites.iter().find(|old| old.name == rewrites.name && !restarted);
        rewrites_since(old, rewrites)
    });
    let age_ms = if restarted { now.age_ms } else { now.age_ms - before.age_ms };
    Activity { age_ms, counters: counters.collect(), rewrites: rewrites.collect() }
}

fn rewrites_since(old: Option<&RewriteFigures>, now: &RewriteFigures) -> RewriteFigures {
    let Some(old) = old else { return now.clone() };
    let lengths = now.lengths.iter().map(|length| {
        let was = old.lengths.iter().find(|was| was.at_most_bytes == length.at_most_bytes);
        let operations = length.operations.saturating_sub(was.map_or(0, |was| was.operations));
        LengthFigures { operations, ..*length }
    });
    RewriteFigures {
        name: now.name.clone(),
        operations: now.operations.saturating_sub(old.operations),
        bytes: now.bytes.saturating_sub(old.bytes),
        lengths: lengths.filter(|length| length.operations > 0).collect(),
    }
}

fn print(rates: &[(&str, Activity)], args: &Iostat, round: u64) -> Result<()> {
    if args.output.json {
        let pools: Vec<_> = rates
            .iter()
            .map(|(pool, activity)| {
                json!({ "name": pool, "interval_ms": activity.age_ms, "counters": activity.counters,
                "rewrites": activity.rewrites })
            })
            .collect();
        let line = serde_json::to_string(&json!({ "pools": pools })).context(|| "cannot print".into())?;
        return writeln!(std::io::stdout(), "{line}").context(|| "cannot print".into());
    }
    let mut table = Table::new(&[
        ("POOL", Align::Left),
        ("CAUSE", Align::Left),
        ("OPS", Align::Right),
        ("BYTES", Align::Right),
        ("OPS/s", Align::Right),
        ("BYTES/s", Align::Right),
        ("P50", Align::Right),
        ("P90", Align::Right),
    ]);
    for (pool, activity) in rates {
        let seconds = (activity.age_ms as f64 / 1000.0).max(0.001);
        let plain =
            activity.counters.iter().map(|counter| (&counter.name, counter.operations, counter.bytes, None));
        let rewrites = activity.rewrites.iter();
        let rewrites =
            rewrites.map(|of| (&of.name, of.operations, of.bytes, of.percentile(50).zip(of.percentile(90))));
        for (name, operations, bytes, percentiles) in plain.chain(rewrites) {
            let exact = args.output.exact;
            let count = |count: f64| if exact { format!("{count:.1}") } else { units::count(count) };
            let size = |bytes: u64| if exact { bytes.to_string() } else { units::size(bytes) };
            let percentile = |of: Option<u32>| of.map_or_else(|| "-".to_owned(), |bytes| size(bytes.into()));
            table.row(vec![
                (*pool).to_owned(),
                name.clone(),
                if exact { operations.to_string() } else { units::count(operations as f64) },
                size(bytes),
                count(operations as f64 / seconds),
                size((bytes as f64 / seconds) as u64),
                percentile(percentiles.map(|of| of.0)),
                percentile(percentiles.map(|of| of.1)),
            ]);
        }
    }
    let text = table.render(args.output.script);
    let separator = if round > 0 && !args.output.script { "\n" } else { "" };
    write!(std::io::stdout(), "{separator}{text}").context(|| "cannot print".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn words_are_pools_then_numbers() {
        let expected =
            Sampling { pools: words("tank dozer"), interval: Some(Duration::from_secs(5)), count: Some(12) };
        assert_eq!(plan(&words("tank dozer 5 12")).unwrap(), expected);
        assert_eq!(plan(&words("0.5")).unwrap().interval, Some(Duration::from_millis(500)));
        assert_eq!(plan(&[]).unwrap(), Sampling { pools: vec![], interval: None, count: None });
        for text in ["0", "1e9", "5 0", "5 x", "5 1 1", "5 tank"] {
            assert_eq!(plan(&words(text)).unwrap_err().exit_status(), 2, "{text}");
        }
    }

    #[test]
    fn differences_survive_a_new_server() {
        let at = |age_ms, operations| Activity {
            age_ms,
            counters: vec![Counter { name: "a".into(), operations, bytes: operations * 10 }],
            rewrites: vec![RewriteFigures {
                name: "a".into(),
                operations: 10 + operations,
                bytes: 0,
                lengths: vec![
                    LengthFigures { at_most_bytes: 99, operations: 10 },
                    LengthFigures { at_most_bytes: 200, operations },
                ],
            }],
        };
        let delta = difference(&at(1000, 5), &at(3000, 8));
        assert_eq!((delta.age_ms, delta.counters[0].operations, delta.counters[0].bytes), (2000, 3, 30));
        assert_eq!(delta.rewrites[0].operations, 3);
        assert_eq!(delta.rewrites[0].lengths, [LengthFigures { at_most_bytes: 200, operations: 3 }]);
        let delta = difference(&at(9000, 50), &at(100, 2));
        assert_eq!((delta.age_ms, delta.counters[0].operations), (100, 2));
        assert_eq!(delta.rewrites[0].operations, 12);
    }

    #[test]
    fn percentiles_are_of_the_records() {
        let lengths = [(10, 50), (20, 39), (30, 1), (40, 10)];
        let lengths = lengths.map(|(at_most_bytes, operations)| LengthFigures { at_most_bytes, operations });
        let rewrites = RewriteFigures { lengths: lengths.to_vec(), ..RewriteFigures::default() };
        let of = |percent| rewrites.percentile(percent).unwrap();
        assert_eq!([0, 50, 51, 90, 91, 100].map(of), [10, 10, 20, 30, 40, 40]);
        assert_eq!(RewriteFigures::default().percentile(50), None);
    }
}
