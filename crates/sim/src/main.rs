//! Runs seeds until they are used up; prints what fails, shrunk.

use std::time::Instant;

use clap::Parser;
use pagefold_sim::history::{History, Theme};
use pagefold_sim::run::{Failure, Stats, run};
use pagefold_sim::shrink::shrink;

/// Simulates crashes of the storage engine.
#[derive(Parser)]
struct Args {
    /// How many seeds to run.
    #[arg(long, default_value_t = 1000)]
    seeds: u64,
    /// The first seed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Only histories with this theme: crash, full, faults, flips.
    #[arg(long)]
    theme: Option<String>,
    /// Most runs to spend on shrinking one failure.
    #[arg(long, default_value_t = 400)]
    shrink: u64,
    /// Stop after so many seconds; 0: never.
    #[arg(long, default_value_t = 0)]
    seconds: u64,
    /// Stop after so many failures.
    #[arg(long, default_value_t = 3)]
    failures: u64,
}

fn theme_name(theme: Theme) -> &'static str {
    match theme {
        Theme::Crash => "crash",
        Theme::Full => "full",
        Theme::Faults => "faults",
        Theme::Flips => "flips",
    }
}

fn report(history: &History, failure: &Failure, runs: u64) {
    println!(
        "seed {} ({}) fails at step {}: {}",
        history.seed,
        theme_name(history.theme),
        failure.step,
        failure.what
    );
    if runs == 0 {
        return;
    }
    let (short, failure) = shrink(history, failure, runs);
    println!("  shrunk from {} to {} steps: {}", history.steps.len(), short.steps.len(), failure.what);
    println!("  devices {:?}, cache {}", short.devices, short.cache_bytes);
    for (at, step) in short.steps.iter().enumerate() {
        println!("  {at:3} {step:?}");
    }
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    std::panic::set_hook(Box::new(|_| {}));
    let started = Instant::now();
    let mut stats = Stats::default();
    let (mut ran, mut failures) = (0, 0);
    for seed in args.seed..args.seed.saturating_add(args.seeds) {
        let history = History::new(seed);
        if args.theme.as_deref().is_some_and(|theme| theme != theme_name(history.theme)) {
            continue;
        }
        if args.seconds > 0 && started.elapsed().as_secs() >= args.seconds {
            break;
        }
        ran += 1;
        match run(&history) {
            Ok(one) => stats.add(&one),
            Err(failure) => {
                failures += 1;
                report(&history, &failure, args.shrink);
                if failures >= args.failures {
                    break;
                }
            }
        }
    }
    let seconds = started.elapsed().as_secs_f64();
    println!(
        "{ran} histories in {seconds:.1} s ({:.1}/s), {failures} failures; {stats:?}",
        f64::from(ran) / seconds
    );
    anyhow::ensure!(failures == 0, "{failures} of {ran} histories fail");
    Ok(())
}
