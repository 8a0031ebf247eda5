//! Compares Pagefold with ext4 by random histories of system calls, and prints differences, shrunk.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::{Args, Parser, Subcommand};
use pagefold_fuse::Transport;
use pagefold_posix::coherence;
use pagefold_posix::history::{History, STEPS};
use pagefold_posix::race;
use pagefold_posix::run::{Failure, Pair, Stats, run};
use pagefold_posix::shrink::shrink;
use pagefold_posix::stage::{self, Alone, Stage};

/// Number of histories between two races.
const RACE_EVERY: u64 = 100;

/// Pagefold and ext4 in lockstep. Needs root.
#[derive(Parser)]
#[command(args_conflicts_with_subcommands = true)]
struct Line {
    #[command(subcommand)]
    role: Option<Role>,
    #[command(flatten)]
    options: Options,
    /// Processes that run histories side by side.
    #[arg(long, default_value_t = 2)]
    jobs: u64,
    /// Compare this directory instead of a pool of the test's own.
    #[arg(long, requires = "reference")]
    subject: Option<PathBuf>,
    /// With this one.
    #[arg(long, requires = "subject")]
    reference: Option<PathBuf>,
}

#[derive(Args, Clone)]
struct Options {
    /// Number of operations, in histories of 400.
    #[arg(long, default_value_t = 100_000)]
    ops: u64,
    /// Seed of the first history; 0 is what was found before.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Most runs to spend on shrinking one failure.
    #[arg(long, default_value_t = 400)]
    shrink: u64,
    /// Begin nothing after so many seconds; 0: no limit.
    #[arg(long, default_value_t = 0)]
    seconds: u64,
    /// Stop after so many failures.
    #[arg(long, default_value_t = 3)]
    failures: u64,
}

/// Roles in which the test starts itself.
#[derive(Subcommand)]
#[command(hide = true)]
enum Role {
    /// Serves a new pool at a directory.
    Serve {
        pool: PathBuf,
        dir: PathBuf,
        #[arg(long, default_value = "auto", value_parser = stage::transport_of)]
        transport: Transport,
    },
    /// Runs every `jobs`th history.
    Work {
        subject: PathBuf,
        reference: PathBuf,
        jobs: u64,
        #[command(flatten)]
        options: Options,
    },
    /// Threads on the same blocks of a new pool by every way (buffered, direct, asynchronous, mapped), against a model: no byte is
    /// older than a completed write.
    #[command(hide = false)]
    Coherence {
        /// Seconds.
        #[arg(long, default_value_t = 60)]
        seconds: u64,
        /// Seed of what the threads do.
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// How requests travel: dev or io_uring.
        #[arg(long, default_value = "dev", value_parser = stage::transport_of)]
        transport: Transport,
        /// In this directory instead of a pool of the test's own.
        #[arg(long)]
        dir: Option<PathBuf>,
    },
    /// Takes part in a race.
    Actor { dir: PathBuf, actor: u64, seed: u64 },
}

fn report(history: &History, failure: &Failure, pair: &Pair, runs: u64) -> Result<()> {
    println!("seed {} fails at step {}: {}", history.seed, failure.step, failure.what);
    if runs == 0 {
        return Ok(());
    }
    let Some((short, failure)) = shrink(history, failure, pair, runs)? else {
        println!("  it does not fail again");
        return Ok(());
    };
    println!("  shrunk to {} steps: {}", short.steps.len(), failure.what);
    for (at, step) in short.steps.iter().enumerate() {
        println!("  {at:3} {} {:?}", ["root", "1001", "1002", "1003"][step.who], step.op);
    }
    Ok(())
}

/// Runs this process's share of the histories. Its last line of output tells what it did.
fn work(pair: &Pair, jobs: u64, options: &Options) -> Result<()> {
    let started = Instant::now();
    let mut stats = Stats::default();
    let (mut histories, mut races, mut failures) = (0_u64, 0_u64, 0_u64);
    let last = options.seed + options.ops.div_ceil(STEPS as u64);
    let program = std::env::current_exe()?;
    for seed in (options.seed..last).step_by(jobs as usize) {
        let late = options.seconds > 0 && started.elapsed() >= Duration::from_secs(options.seconds);
        if late || failures >= options.failures {
            break;
        }
        histories += 1;
        let history = History::new(seed);
        match run(&history, pair)? {
            Ok(one) => stats.add(&one),
            Err(failure) => {
                failures += 1;
                report(&history, &failure, pair, options.shrink)?;
            }
        }
        if histories % RACE_EVERY == 1 {
            races += 1;
            for dir in [&pair.subject, &pair.reference] {
                if let Err(what) = race::race(&program, &dir.join(format!("race-{seed}")), seed) {
                    failures += 1;
                    println!("seed {seed}, race in {}: {what:#}", dir.display());
                }
            }
        }
    }
    println!("= {histories} {races} {failures} {} {} {}", stats.calls, stats.succeeded, stats.skipped);
    Ok(())
}

/// Starts the workers and returns the sums of the numbers that they print.
fn command(program: &Path, pair: &Pair, jobs: u64, options: &Options) -> Result<[u64; 6]> {
    let mut workers = Vec::new();
    for job in 0..jobs {
        let worker = Command::new(program)
            .arg("work")
            .args([&pair.subject, &pair.reference])
            .arg(jobs.to_string())
            .args(["--ops", &options.ops.saturating_sub(job * STEPS as u64).to_string()])
            .args(["--seed", &(options.seed + job).to_string()])
            .args(["--shrink", &options.shrink.to_string()])
            .args(["--seconds", &options.seconds.to_string()])
            .args(["--failures", &options.failures.to_string()])
            .stdout(Stdio::piped())
            .spawn()
            .context("start a worker")?;
        workers.push(worker);
    }
    let mut sums = [0; 6];
    let mut ended = Vec::new();
    for mut worker in workers {
        for line in worker.stdout.take().map(BufReader::new).into_iter().flat_map(BufReader::lines) {
            let line = line?;
            let Some(numbers) = line.strip_prefix("= ") else {
                println!("{line}");
                continue;
            };
            for (sum, number) in sums.iter_mut().zip(numbers.split(' ')) {
                *sum += number.parse::<u64>()?;
            }
        }
        ended.push(worker.wait()?);
    }
    ensure!(ended.iter().all(std::process::ExitStatus::success), "a worker failed: {ended:?}");
    Ok(sums)
}

fn coherent(seconds: u64, seed: u64, transport: Transport, dir: Option<PathBuf>) -> Result<()> {
    let time = Duration::from_secs(seconds);
    let report = if let Some(dir) = dir {
        coherence::run(&dir, time, seed)?
    } else {
        stage::hide()?;
        let alone = Alone::set(&std::env::current_exe()?, transport)?;
        let report = coherence::run(&alone.dir, time, seed)?;
        alone.strike()?;
        report
    };
    println!("{seconds} s, seed {seed}, {transport:?}: {report}; 0 stale");
    Ok(())
}

fn main() -> Result<()> {
    let line = Line::parse();
    let (options, jobs) = (line.options, line.jobs.max(1));
    match line.role {
        Some(Role::Serve { pool, dir, transport }) => return stage::serve(&pool, &dir, transport),
        Some(Role::Coherence { seconds, seed, transport, dir }) => {
            return coherent(seconds, seed, transport, dir);
        }
        Some(Role::Work { subject, reference, jobs, options }) => {
            return work(&Pair { subject, reference }, jobs.max(1), &options);
        }
        Some(Role::Actor { dir, actor, seed }) => return race::act(&dir, actor, seed),
        None => {}
    }
    let program = std::env::current_exe()?;
    let started = Instant::now();
    let sums = if let (Some(subject), Some(reference)) = (line.subject, line.reference) {
        command(&program, &Pair { subject, reference }, jobs, &options)?
    } else {
        stage::hide()?;
        let stage = Stage::set(&program)?;
        let sums = command(&program, &stage.pair, jobs, &options)?;
        stage.strike()?;
        sums
    };
    let [histories, races, failures, calls, succeeded, skipped] = sums;
    let seconds = started.elapsed().as_secs_f64();
    println!(
        "{calls} operations in {histories} histories ({succeeded} succeeded, {skipped} without a file), {races} races, \
         {failures} differences; {seconds:.1} s, {:.0} operations/s",
        calls as f64 / seconds
    );
    ensure!(failures == 0, "Pagefold and ext4 differ");
    Ok(())
}
