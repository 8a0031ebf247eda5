//! Snapshots and clones of a dataset with many pages and files, under load; and what a thousand of them cost readers and writers.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};

use super::{Field, volumes};
use crate::bench::Bench;
use crate::host::exec::check_interrupted;
use crate::results::Target::{AtLeast, AtMost};
use crate::results::{Line, Metric, Profile, Section, figure};
use crate::systems::{Options, System, Volume};
use crate::tools::fio::{self, Job};
use crate::tools::writers::{self, Operation, PAGE};

const OURS: &str = "pagefold-zstd";
const WRITERS: usize = 4;
const READERS: u32 = 4;
/// Files of a directory.
const FILES_PER_DIRECTORY: u64 = 1000;
/// Between two snapshots under load.
const PAUSE: Duration = Duration::from_millis(40);
/// Of a snapshot that is made without load: for so long pages are overwritten before it, so that it holds something.
const CHANGES: Duration = Duration::from_millis(3);

const SNAPSHOT: Latency = Latency {
    median: Metric { name: "snapshot, median", unit: "ms" },
    p99: Metric { name: "snapshot, 99th percentile", unit: "ms" },
    longest: Metric { name: "snapshot, longest", unit: "ms" },
};
const CLONE: Latency = Latency {
    median: Metric { name: "clone, median", unit: "ms" },
    p99: Metric { name: "clone, 99th percentile", unit: "ms" },
    longest: Metric { name: "clone, longest", unit: "ms" },
};
const MET: Metric = Metric { name: "longest overwrite + fdatasync that met a snapshot or clone", unit: "ms" };
const UNMET: Metric = Metric { name: "longest overwrite + fdatasync that met none", unit: "ms" };
const READS: Pair = Pair {
    before: Metric { name: "random reads without snapshots", unit: "reads/s" },
    after: Metric { name: "random reads with all snapshots", unit: "reads/s" },
};
const WRITES: Pair = Pair {
    before: Metric { name: "overwrites + fdatasync without snapshots", unit: "operations/s" },
    after: Metric { name: "overwrites + fdatasync with all snapshots", unit: "operations/s" },
};

/// Percentiles of how long something took.
struct Latency {
    median: Metric,
    p99: Metric,
    longest: Metric,
}

/// A rate before and after.
struct Pair {
    before: Metric,
    after: Metric,
}

/// How much of all this.
struct Size {
    pages: u64,
    files: u64,
    /// Snapshots in all.
    snapshots: u32,
    /// Of these, under load, each with a clone.
    timed: u32,
}

/// Fills, measures, makes snapshots under load and without, measures again.
pub(super) fn run(bench: &Bench, profile: Profile, section: &mut Section) -> Result<()> {
    let size = if bench.scale().quick {
        Size { pages: 500_000, files: 10_000, snapshots: 300, timed: 200 }
    } else {
        Size { pages: 10_000_000, files: 100_000, snapshots: 1000, timed: 200 }
    };
    let field =
        Field { compared: &[System::Pagefold("zstd"), System::Btrfs("zstd")], beside: &[System::Zfs] };
    // One after the other: zfs-fuse takes minutes for what the others do in seconds.
    let mut all = volumes(bench, section, &field, bench.scale().disk_bytes, &Options::default())?;
    for volume in &mut all {
        let throttled = bench.profile(profile, volume)?;
        measure(bench, profile, section, volume, &size)?;
        drop(throttled);
    }
    let Size { pages, files, snapshots, timed } = size;
    section.note(format!(
        "A dataset with a file of {pages} pages of 8 KiB (64 bytes of each random) and {files} files of one page. {timed} snapshots are made \
         under {WRITERS} writers that overwrite random pages with fdatasync, each with a clone of it; each command from its start to its end. Then \
         {} more are made, pages changed before each. On btrfs a snapshot is `btrfs subvolume snapshot -r`, and not durable when the command returns; \
         Pagefold's is.",
        snapshots - timed
    ));
    judge(profile, section, snapshots);
    Ok(())
}

fn measure(
    bench: &Bench,
    profile: Profile,
    section: &mut Section,
    volume: &mut Volume,
    size: &Size,
) -> Result<()> {
    let label = volume.label();
    bench.progress(&format!("filling {label}"));
    let folder = volume.prepare_snapshots()?;
    let file = folder.join("pages");
    writers::fill(&file, size.pages)?;
    make_files(&folder, size.files)?;
    volume.sync()?;
    rates(bench, profile, section, &label, &file, size, (READS.before, WRITES.before))?;
    bench.progress(&format!("snapshots of {label} under load"));
    under_load(profile, section, volume, &file, size)?;
    bench.progress(&format!("more snapshots of {label}"));
    for n in size.timed..size.snapshots {
        check_interrupted()?;
        writers::run_for(&file, 1, size.pages, CHANGES)?;
        volume.snapshot(&format!("s{n}"))?;
    }
    volume.sync()?;
    rates(bench, profile, section, &label, &file, size, (READS.after, WRITES.after))
}

/// Small files, a page each.
fn make_files(folder: &Path, files: u64) -> Result<()> {
    let page = vec![b'x'; PAGE];
    for n in 0..files {
        let directory: PathBuf = folder.join(format!("d{}", n / FILES_PER_DIRECTORY));
        if n % FILES_PER_DIRECTORY == 0 {
            check_interrupted()?;
            fs::create_dir(&directory).with_context(|| format!("make {}", directory.display()))?;
        }
        let path = directory.join(format!("f{n}"));
        fs::write(&path, &page).with_context(|| format!("write {}", path.display()))?;
    }
    Ok(())
}

/// Random reads and overwrites, each for the length of a measurement.
fn rates(
    bench: &Bench,
    profile: Profile,
    section: &mut Section,
    label: &str,
    file: &Path,
    size: &Size,
    (reads, writes): (Metric, Metric),
) -> Result<()> {
    for _ in 0..bench.scale().repetitions {
        let job = Job::random_reads(file, READERS, 1, bench.scale().seconds);
        section.command(crate::host::exec::shown(&job.command()));
        section.add(profile, reads, label, fio::run(&job)?.read.per_second);
        let began = Instant::now();
        let done = writers::run_for(file, WRITERS, size.pages, bench.scale().duration())?;
        section.add(profile, writes, label, done.len() as f64 / began.elapsed().as_secs_f64());
    }
    Ok(())
}

/// Snapshots and clones while writers go on; what these saw of it.
fn under_load(
    profile: Profile,
    section: &mut Section,
    volume: &mut Volume,
    file: &Path,
    size: &Size,
) -> Result<()> {
    let label = volume.label();
    let stop = AtomicBool::new(false);
    let (mut snapshots, mut clones, mut moments) = (Vec::new(), Vec::new(), Vec::new());
    let operations = std::thread::scope(|scope| {
        let work = scope.spawn(|| writers::run(file, WRITERS, size.pages, &stop));
        let mut make = || -> Result<()> {
            for n in 0..size.timed {
                std::thread::sleep(PAUSE);
                let (name, began) = (format!("s{n}"), Instant::now());
                snapshots.push(volume.snapshot(&name)?);
                clones.push(volume.clone_snapshot(&name, &format!("c{n}"))?);
                moments.push((began, Instant::now()));
            }
            std::thread::sleep(PAUSE);
            Ok(())
        };
        let made = make();
        stop.store(true, Ordering::Relaxed);
        let operations = work.join().unwrap_or_else(|_| Err(anyhow!("the writers panicked")));
        made.and(operations)
    })?;
    for (latency, mut seconds) in [(SNAPSHOT, snapshots), (CLONE, clones)] {
        seconds.sort_by(f64::total_cmp);
        // By nearest rank.
        let at = |share: f64| {
            let rank = (seconds.len() as f64 * share).ceil() as usize;
            seconds.get(rank.saturating_sub(1)).copied().unwrap_or_default()
        };
        for (metric, share) in [(latency.median, 0.5), (latency.p99, 0.99), (latency.longest, 1.0)] {
            section.add(profile, metric, &label, at(share) * 1000.0);
        }
    }
    let (met, unmet): (Vec<&Operation>, Vec<&Operation>) =
        operations.iter().partition(|one| moments.iter().any(|&moment| one.meets(moment)));
    for (metric, those) in [(MET, met), (UNMET, unmet)] {
        let longest = those.iter().map(|one| one.took).max().unwrap_or_default();
        section.add(profile, metric, &label, longest.as_secs_f64() * 1000.0);
    }
    Ok(())
}

fn judge(profile: Profile, section: &mut Section, snapshots: u32) {
    let of = |metric: Metric, system: &str| section.median(profile, metric, system);
    let beside = |metric: Metric| {
        let shown = |system: &&str| {
            of(metric, system).map(|value| format!("{system} {} {}", figure(value), metric.unit))
        };
        ["btrfs-zstd", "zfs-fuse-gzip"].iter().filter_map(shown).collect::<Vec<_>>().join(", ")
    };
    let ratio = |pair: &Pair, system: &str| {
        of(pair.after, system).zip(of(pair.before, system)).map(|(after, before)| after / before)
    };
    let beside_ratio = |pair: &Pair| {
        ratio(pair, "btrfs-zstd").map_or_else(String::new, |ratio| format!("btrfs-zstd {ratio:.2}"))
    };
    let at_most = |id: &str, text: &str, bound: f64, metric: Metric| Line {
        id: id.to_owned(),
        text: text.to_owned(),
        profile,
        target: AtMost(bound),
        unit: "ms".to_owned(),
        measured: of(metric, OURS),
        detail: beside(metric),
    };
    let kept = |id: &str, what: &str, pair: &Pair| Line {
        id: id.to_owned(),
        text: format!("{what} with {snapshots} snapshots: at least 0.95 of without"),
        profile,
        target: AtLeast(0.95),
        unit: "x".to_owned(),
        measured: ratio(pair, OURS),
        detail: beside_ratio(pair),
    };
    let mut delay = at_most("snapshot-delay", "no write of the load takes over 100 ms by it", 100.0, MET);
    let without = of(UNMET, OURS).map_or_else(String::new, |ms| format!("{} ms without; ", figure(ms)));
    delay.detail.insert_str(0, &without);
    let lines = [
        at_most("snapshot-p99", "snapshot under load: 99th percentile at most 20 ms", 20.0, SNAPSHOT.p99),
        at_most("clone-p99", "clone under load: 99th percentile at most 20 ms", 20.0, CLONE.p99),
        delay,
        kept("snapshots-reads", "random reads", &READS),
        kept("snapshots-writes", "overwrites + fdatasync", &WRITES),
    ];
    section.lines.extend(lines);
}
