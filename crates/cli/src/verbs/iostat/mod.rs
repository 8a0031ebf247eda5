//! `iostat`: prints what mounted pools and their devices read and write, and why.

mod causes;
mod devices;
mod since;

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use pagefold_server::control::{Activity, Client, Reply, Request};
use pagefold_server::failure::{Context, Failure, Result};
use pagefold_server::{raw, timeouts};
use serde_json::json;
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::args::Iostat;
use crate::failures::Failures;
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

/// Longest pause between two looks whether the user wants an end.
const STEP: Duration = Duration::from_millis(50);

/// Prints counters once, or again and again.
pub fn run(args: &Iostat) -> Result<()> {
    let plan = plan(&args.words)?;
    if args.skip_first && plan.interval.is_none() {
        return Err(Failure::usage("without the first report, an interval is needed")
            .hint("pagefold iostat -y [POOL...] SECONDS [COUNT]"));
    }
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
    let stop = catch_signals()?;
    let mut before: Vec<Activity> = clients.iter().map(|_| Activity::default()).collect();
    let (mut skip, mut round) = (args.skip_first, 0);
    let mut next = Instant::now();
    loop {
        let mut now: Vec<Activity> = Vec::new();
        let mut gone: Vec<(usize, Failure)> = Vec::new();
        for (index, client) in clients.iter_mut().enumerate() {
            match ask(client, &stop) {
                Ok(Some(activity)) => now.push(activity),
                Ok(None) => return failures.finish(plan.pools.len(), WATCHED),
                Err(failure) => gone.push((index, failure)),
            }
        }
        // A server that has ended, or does not answer, ends the output only if it was the last one.
        let is_last = gone.len() == clients.len();
        for (index, failure) in gone.into_iter().rev() {
            let pool = clients.remove(index).pool().to_owned();
            before.remove(index);
            if is_last {
                failures.also(&pool, failure);
            } else {
                failures.tell(&pool, &failure);
            }
        }
        if clients.is_empty() {
            return failures.finish(plan.pools.len(), WATCHED);
        }
        let rates = clients
            .iter()
            .zip(before.iter().zip(&now))
            .map(|(client, (before, now))| (client.pool(), since::difference(before, now)));
        if !std::mem::take(&mut skip) {
            print(&rates.collect::<Vec<_>>(), args, round)?;
            round += 1;
        }
        before = now;
        let Some(interval) = plan.interval else { return failures.finish(plan.pools.len(), WATCHED) };
        if plan.count.is_some_and(|count| round >= count) {
            return failures.finish(plan.pools.len(), WATCHED);
        }
        next += interval;
        if !rested_until(next, &stop) {
            return failures.finish(plan.pools.len(), WATCHED);
        }
    }
}

/// Catches signals: the first one ends the output after the report that is being printed, the second one at once.
fn catch_signals() -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for number in [SIGINT, SIGTERM] {
        signal_hook::flag::register_conditional_default(number, Arc::clone(&stop))
            .and_then(|_| signal_hook::flag::register(number, Arc::clone(&stop)))
            .context(|| "cannot catch signals".into())?;
    }
    Ok(stop)
}

/// Waits. Returns false if the user wants an end.
fn rested_until(next: Instant, stop: &AtomicBool) -> bool {
    loop {
        if stop.load(Ordering::Relaxed) {
            return false;
        }
        let rest = next.saturating_duration_since(Instant::now());
        if rest.is_zero() {
            return true;
        }
        std::thread::sleep(rest.min(STEP));
    }
}

/// Parses the words: pools first, then the interval in seconds and the number of rounds.
fn plan(words: &[String]) -> Result<Sampling> {
    let split =
        words.iter().position(|word| word.starts_with(|c: char| c.is_ascii_digit())).unwrap_or(words.len());
    let (pools, numbers) = words.split_at(split);
    let wrong = |word: &str, what: &str| {
        Failure::usage(format!("\"{}\" is not {what}", crate::table::printable(word)))
            .hint("pagefold iostat [OPTIONS] [POOL...] [SECONDS [COUNT]]")
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

/// Returns what a pool's server has counted; `None` if the user wants an end before it answers.
fn ask(client: &mut Client, stop: &AtomicBool) -> Result<Option<Activity>> {
    let mut goes_on = || !stop.load(Ordering::Relaxed);
    match client.ask_while(&Request::Counters {}, timeouts::ANSWER, &mut goes_on)? {
        None => Ok(None),
        Some(Reply::Counters { activity }) => Ok(Some(activity)),
        Some(_) => Err(client.misunderstood()),
    }
}

fn print(rates: &[(&str, Activity)], args: &Iostat, round: u64) -> Result<()> {
    let printing = || "cannot print".to_owned();
    if args.output.json {
        let pool = |(pool, activity): &(&str, Activity)| {
            json!({ "name": pool, "interval_ms": activity.age_ms, "size_bytes": activity.size_bytes,
            "allocated_bytes": activity.allocated_bytes,
            "free_bytes": activity.size_bytes.saturating_sub(activity.allocated_bytes),
            "counters": activity.counters, "rewrites": activity.rewrites, "devices": activity.devices })
        };
        let pools: Vec<_> = rates.iter().map(pool).collect();
        let line = raw::printed(json!({ "pools": pools })).to_string();
        return writeln!(std::io::stdout(), "{line}").context(printing);
    }
    let table = if args.causes {
        causes::table(rates, args.output)
    } else if args.histograms {
        devices::histograms(rates, args)
    } else {
        devices::table(rates, args)
    };
    let text = table.render(args.output.script);
    let separator = if round > 0 && !args.output.script { "\n" } else { "" };
    write!(std::io::stdout(), "{separator}{text}").context(printing)
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
}
