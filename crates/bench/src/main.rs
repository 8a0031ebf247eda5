//! Benchmarks Pagefold against its rivals: every line of its promises on speed and memory, as a ratio in one run.
//!
//! The bench drives the built `pagefold` program, fio, PostgreSQL, sysbench and rrdtool as child processes, on loop
//! devices over files of one disc, and writes docs/BENCHMARKS.md with tables and plots itself. `make bench` runs all
//! of it; `pagefold-bench run NAME...` runs a part, and the document keeps what other runs found.

mod bench;
mod data;
mod host;
mod machine;
mod report;
mod results;
mod scenarios;
mod systems;
mod tools;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::{Args, Parser, Subcommand};

use crate::bench::{Bench, Scale};
use crate::host::{cleanup, exec};
use crate::results::{Profile, Results};
use crate::scenarios::SCENARIOS;

/// Benchmarks Pagefold against ext4, XFS, btrfs and zfs-fuse. Without a verb: all of it. Needs root.
#[derive(Debug, Parser)]
#[command(
    version,
    after_help = "Examples:\n  pagefold-bench run\n  pagefold-bench run scan --profile throttled\n  \
    pagefold-bench run --quick --without zfs\n  pagefold-bench clean"
)]
struct Cli {
    #[command(subcommand)]
    verb: Option<Verb>,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Run scenarios (all of them unless named) and write the report.
    Run(Run),
    /// List the scenarios.
    List,
    /// Write the report from the results of earlier runs.
    Report(Places),
    /// Take down what a killed bench left behind: mounts, loop devices, servers, cgroups, files.
    Clean(Places),
    /// Serve a mount that answers every read from one buffer, until unmounted.
    #[command(hide = true)]
    Null {
        /// Where to mount.
        dir: PathBuf,
    },
}

#[derive(Debug, Args)]
struct Places {
    /// Folder for everything that is set up, on the disc that is to be measured.
    #[arg(long, default_value = "/var/tmp/pagefold-bench")]
    dir: PathBuf,
    /// Raw results of all runs: each repetition of each figure.
    #[arg(long, default_value = "docs/bench/results.json")]
    results: PathBuf,
    /// Folder of BENCHMARKS.md, bench/*.svg and bench/why.json (explanations of missed lines, by id).
    #[arg(long, default_value = "docs")]
    docs: PathBuf,
}

#[derive(Debug, Args)]
struct Run {
    /// Names of scenarios, as `list` shows them.
    names: Vec<String>,
    /// Only this profile, instead of those a scenario usually runs under.
    #[arg(long)]
    profile: Option<Profile>,
    /// Smaller, shorter, fewer rivals: under ten minutes.
    #[arg(long)]
    quick: bool,
    /// Repetitions of each measurement, instead of 3 (quick: 2). Figures are their medians.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=99))]
    repetitions: Option<u8>,
    /// The program under test.
    #[arg(long, default_value = "target/release/pagefold")]
    pagefold: PathBuf,
    /// Systems to leave out, by the beginning of their names (pagefold, null, ext4, XFS, btrfs, zfs).
    #[arg(long, value_delimiter = ',')]
    without: Vec<String>,
    /// Keep backing files and prepared databases for the next run.
    #[arg(long)]
    keep: bool,
    #[command(flatten)]
    places: Places,
}

fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("pagefold-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: Cli) -> Result<ExitCode> {
    // Without a verb: everything, with every default, as `make bench` asks for.
    let verb = match cli.verb {
        Some(verb) => verb,
        None => Cli::try_parse_from(["pagefold-bench", "run"])?.verb.context("`run` is a verb")?,
    };
    match verb {
        Verb::List => {
            for scenario in SCENARIOS {
                println!("{:24} {}", scenario.name, scenario.about);
            }
        }
        Verb::Report(places) => report::write(&Results::load(&places.results)?, &places.docs)?,
        Verb::Clean(places) => {
            need_root()?;
            cleanup::sweep(&places.dir, false)?;
        }
        Verb::Null { dir } => systems::serve_null(&dir)?,
        Verb::Run(options) => return run_scenarios(&options),
    }
    Ok(ExitCode::SUCCESS)
}

fn need_root() -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        bail!("loop devices, mounts and cgroups need root: run it as root");
    }
    Ok(())
}

fn run_scenarios(options: &Run) -> Result<ExitCode> {
    need_root()?;
    for name in &options.names {
        if !SCENARIOS.iter().any(|s| s.name == name) {
            let names: Vec<&str> = SCENARIOS.iter().map(|s| s.name).collect();
            eprintln!("pagefold-bench: there is no scenario \"{name}\"; there are {}", names.join(", "));
            return Ok(ExitCode::from(2));
        }
    }
    exec::catch_signals()?;
    let dir = std::path::absolute(&options.places.dir)?;
    let _alone = lock(&dir)?;
    // A bench that was killed may have left something.
    cleanup::sweep(&dir, true)?;
    let outcome = measure_all(options, &dir);
    let swept = cleanup::sweep(&dir, options.keep);
    let failures = outcome?;
    swept?;
    if !failures.is_empty() {
        eprintln!("pagefold-bench: failed: {}", failures.join(", "));
    }
    Ok(if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Takes the bench's lock, since two benches on one machine would measure each other.
fn lock(dir: &Path) -> Result<std::fs::File> {
    let path = dir.with_extension("lock");
    let file = std::fs::File::create(&path).with_context(|| format!("create {}", path.display()))?;
    rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive)
        .with_context(|| format!("another bench runs (it holds {})", path.display()))?;
    Ok(file)
}

/// Runs the scenarios. Saves the results and writes the report after each. Returns the names of those that failed.
fn measure_all(options: &Run, dir: &Path) -> Result<Vec<String>> {
    let places = &options.places;
    let results = Results::load(&places.results)?;
    let pagefold = std::path::absolute(&options.pagefold)?;
    let scale = Scale::new(options.quick).repeated(options.repetitions);
    let bench = Bench::new(dir, &pagefold, scale, options.without.clone(), results)?;
    let mut failures = Vec::new();
    let chosen = |name: &str| options.names.is_empty() || options.names.iter().any(|n| n == name);
    for scenario in SCENARIOS.iter().filter(|s| chosen(s.name)) {
        let section = scenario.execute(&bench, options.profile);
        if section.failure.is_some() {
            failures.push(scenario.name.to_owned());
        }
        report::print(scenario.name, &section);
        let mut results = bench.results().borrow_mut();
        results.sections.insert(scenario.name.to_owned(), section);
        results.save(&places.results)?;
        report::write(&results, &places.docs)?;
        exec::check_interrupted()?;
    }
    Ok(failures)
}
