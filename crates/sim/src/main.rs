//! Runs the histories of many seeds, and prints those that fail, shrunk.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::Parser;
use pagefold_sim::history::{History, Theme};
use pagefold_sim::run::{Failure, Stats, run};
use pagefold_sim::shrink::shrink;
use parking_lot::Mutex;

/// Devices are some ten thousand blocks, which are copied for each power cut. The C library's allocator took half of
/// the time.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Simulates crashes of the storage engine.
#[derive(Parser)]
struct Args {
    /// Number of seeds to run.
    #[arg(long, default_value_t = 1000)]
    seeds: u64,
    /// The first seed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Only histories with this theme; may be given several times.
    #[arg(long, value_parser = THEMES)]
    theme: Vec<String>,
    /// Only histories of pools with mirrors.
    #[arg(long)]
    mirrors: bool,
    /// Only histories in which devices are attached, replaced and detached, and pools split.
    #[arg(long)]
    verbs: bool,
    /// Only histories of pools with a log device.
    #[arg(long)]
    log_device: bool,
    /// Only histories of pools with mirrors or a log device, copies of which are damaged between their steps.
    #[arg(long)]
    damage: bool,
    /// Only histories with verbs, with changes in the middle of these, and verbs in the middle of checkpoints.
    #[arg(long)]
    beside: bool,
    /// Try up to so many power cuts in the middle of each step, too, on copies of the devices.
    #[arg(long, default_value_t = 0)]
    images: usize,
    /// Most runs to spend on shrinking one failure.
    #[arg(long, default_value_t = 400)]
    shrink: u64,
    /// Stop after so many seconds; 0: never.
    #[arg(long, default_value_t = 0)]
    seconds: u64,
    /// Stop after so many power cuts; 0: never.
    #[arg(long, default_value_t = 0)]
    cuts: u64,
    /// Stop after so many failures.
    #[arg(long, default_value_t = 3)]
    failures: u64,
    /// Threads that run histories; one for each processor unless said.
    #[arg(long)]
    threads: Option<NonZeroUsize>,
}

const THEMES: [&str; 5] = ["crash", "full", "aged", "faults", "flips"];

fn theme_name(theme: Theme) -> &'static str {
    match theme {
        Theme::Crash => "crash",
        Theme::Full => "full",
        Theme::Aged => "aged",
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
    let _whole = std::io::stdout().lock();
    println!("  shrunk from {} to {} steps: {}", history.steps.len(), short.steps.len(), failure.what);
    println!("  devices {:?}, {} of each, cache {}", short.devices, short.copies, short.cache_bytes);
    for (at, step) in short.steps.iter().enumerate() {
        println!("  {at:3} {step:?}");
    }
}

/// State that all threads share.
struct Campaign {
    args: Args,
    started: Instant,
    /// The seed that is run next.
    next: AtomicU64,
    tally: Mutex<Tally>,
}

/// Counts of the histories so far.
#[derive(Default)]
struct Tally {
    stats: Stats,
    ran: u32,
    failures: u64,
    /// Minutes from the beginning to the last report.
    told: u64,
}

impl Tally {
    const fn cuts(&self) -> u64 {
        self.stats.crashes + self.stats.images
    }

    /// Reports each minute how far a long campaign is.
    fn tell(&mut self, elapsed: Duration) {
        let minutes = elapsed.as_secs() / 60;
        if minutes > self.told {
            self.told = minutes;
            let cuts = self.cuts();
            eprintln!(
                "{minutes} min: {} histories with {cuts} power cuts, {} failures",
                self.ran, self.failures
            );
        }
    }
}

impl Campaign {
    fn is_enough(&self) -> bool {
        let tally = self.tally.lock();
        tally.failures >= self.args.failures || self.args.cuts > 0 && tally.cuts() >= self.args.cuts
    }

    /// Runs seeds that nobody else has, until there are none left, the time is up, or enough have failed.
    fn work(&self) {
        let end = self.args.seed.saturating_add(self.args.seeds);
        loop {
            let seed = self.next.fetch_add(1, Ordering::Relaxed);
            let late = self.args.seconds > 0 && self.started.elapsed().as_secs() >= self.args.seconds;
            if seed >= end || late || self.is_enough() {
                break;
            }
            let mut history = History { images: self.args.images, ..History::new(seed) };
            if self.args.beside && history.verbs {
                history = history.with_beside();
            }
            if self.args.damage {
                history = history.with_damage();
            }
            let theme = theme_name(history.theme);
            let unwanted =
                !self.args.theme.is_empty() && !self.args.theme.iter().any(|wanted| wanted == theme);
            let plain = self.args.mirrors && history.copies == 1
                || (self.args.verbs || self.args.beside) && !history.verbs
                || self.args.log_device && !history.log_device
                || self.args.damage && history.copies == 1 && !history.log_device;
            // Of many seeds they run if somebody asks for them (docs/TESTING.md).
            let asked = self.args.mirrors
                || self.args.verbs
                || self.args.beside
                || self.args.damage
                || self.args.seeds == 1;
            let unasked = history.verbs && !asked;
            if unwanted || plain || unasked {
                continue;
            }
            let result = run(&history);
            let mut tally = self.tally.lock();
            tally.ran += 1;
            match result {
                Ok(one) => {
                    tally.stats.add(&one);
                    tally.tell(self.started.elapsed());
                }
                Err(failure) => {
                    tally.failures += 1;
                    drop(tally);
                    report(&history, &failure, self.args.shrink);
                }
            }
        }
    }
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    std::panic::set_hook(Box::new(|_| {}));
    let threads =
        args.threads.map_or_else(|| std::thread::available_parallelism().map_or(1, usize::from), usize::from);
    let next = args.seed.into();
    let campaign = Campaign { args, started: Instant::now(), next, tally: Mutex::default() };
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| campaign.work());
        }
    });
    let seconds = campaign.started.elapsed().as_secs_f64();
    let tally = campaign.tally.into_inner();
    let cuts = tally.cuts();
    let Tally { stats, ran, failures, .. } = tally;
    println!(
        "{ran} histories with {cuts} power cuts in {seconds:.1} s ({:.1}/s), {failures} failures; {stats:?}",
        f64::from(ran) / seconds
    );
    anyhow::ensure!(failures == 0, "{failures} of {ran} histories fail");
    Ok(())
}
