//! Attacks decoders until the time is up, and keeps inputs that break one.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use pagefold_fuzz::targets::TARGETS;
use pagefold_fuzz::{memory, run};

#[global_allocator]
static ALLOCATOR: memory::Noting = memory::Noting;

/// Hostile bytes for every decoder.
#[derive(Parser)]
struct Args {
    /// Seconds of processor time for each target.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// One target alone; all unless said.
    #[arg(long)]
    target: Option<String>,
    /// Seed of the mutations; what an attack does follows from it.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Where inputs that break something are kept.
    #[arg(long, default_value = "fuzz/found")]
    found: PathBuf,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let chosen: Vec<_> = TARGETS
        .iter()
        .filter(|target| args.target.as_deref().is_none_or(|name| name == target.name))
        .collect();
    let names = || TARGETS.iter().map(|target| target.name).collect::<Vec<_>>().join(", ");
    ensure!(!chosen.is_empty(), "there is no such target; there are {}", names());
    std::panic::set_hook(Box::new(|_| {}));
    let mut findings = 0;
    for target in chosen {
        for (name, bytes) in run::found(target, &args.found)? {
            if let Err(what) = run::try_input(target, &bytes) {
                findings += 1;
                println!("{:12} {name}: {what}", target.name);
            }
        }
        match run::attack(target, args.seed, u64::MAX, Duration::from_secs(args.seconds)) {
            Ok(stats) => println!(
                "{:12} {} executions, {}/s, {} accepted",
                target.name,
                stats.executions,
                stats.executions / args.seconds.max(1),
                stats.accepted
            ),
            Err(finding) => {
                findings += 1;
                let dir = args.found.join(target.name);
                std::fs::create_dir_all(&dir).with_context(|| format!("make {}", dir.display()))?;
                let path = dir.join(format!("seed-{}-{}.bin", args.seed, finding.bytes.len()));
                std::fs::write(&path, &finding.bytes)?;
                println!("{:12} {}; kept as {}", target.name, finding.what, path.display());
            }
        }
    }
    ensure!(findings == 0, "{findings} findings");
    Ok(())
}
