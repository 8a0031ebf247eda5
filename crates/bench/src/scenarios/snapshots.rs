//! Measures snapshots and clones of a dataset with many pages and files under pgbench, and the cost of a thousand of
//! them for readers and writers.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, anyhow};

use super::{Field, volumes};
use crate::bench::Bench;
use crate::host::exec::{check_interrupted, shown};
use crate::results::Target::{AtLeast, AtMost};
use crate::results::{Line, Metric, Profile, Section, figure};
use crate::systems::{Options, System, Volume};
use crate::tools::fio::{self, Job};
use crate::tools::postgres::{Settings, copy_cluster, describe};
use crate::tools::transactions::Transaction;
use crate::tools::writers::{self, PAGE};

const OURS: &str = "pagefold-zstd";
const WRITERS: usize = 4;
/// Number of clients of pgbench, which is the load.
const CLIENTS: u32 = 4;
const READERS: u32 = 4;
/// Number of files in a directory.
const FILES_PER_DIRECTORY: u64 = 1000;
/// Pause between two snapshots under load.
const PAUSE: Duration = Duration::from_millis(100);
/// Length of the load. On systems whose snapshots take long, fewer are made in this time than were wanted.
const LOAD_SECONDS: u64 = 40;
/// Divisor of the numbers of pages and files for zfs-fuse, which fills a file at a tenth of the others' speed.
const PART_OF_ZFS: u64 = 10;
/// Time for which pages are overwritten before each snapshot that is made without load, so that it holds something.
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
const MADE: Metric = Metric { name: "snapshots under load", unit: "" };
const LOAD: Metric = Metric { name: "pgbench meanwhile", unit: "transactions/s" };
const MET: Metric = Metric { name: "longest transaction that met a snapshot or clone", unit: "ms" };
const UNMET: Metric = Metric { name: "longest transaction that met none", unit: "ms" };
const READS: Pair = Pair {
    before: Metric { name: "random reads without snapshots", unit: "reads/s" },
    after: Metric { name: "random reads with all snapshots", unit: "reads/s" },
};
const WRITES: Pair = Pair {
    before: Metric { name: "overwrites + fdatasync without snapshots", unit: "operations/s" },
    after: Metric { name: "overwrites + fdatasync with all snapshots", unit: "operations/s" },
};

/// Metrics of a latency: percentiles.
struct Latency {
    median: Metric,
    p99: Metric,
    longest: Metric,
}

/// Metrics of a rate without snapshots and with all of them.
struct Pair {
    before: Metric,
    after: Metric,
}

/// Sizes and numbers of a run.
struct Size {
    pages: u64,
    files: u64,
    /// Number of all snapshots.
    snapshots: u32,
    /// Number of those that are made under load, each with a clone.
    timed: u32,
    /// Size of pgbench's database, in bytes.
    database_bytes: u64,
}

/// Fills the systems, measures rates, makes snapshots under load and without, and measures rates again.
pub(super) fn run(bench: &Bench, profile: Profile, section: &mut Section) -> Result<()> {
    let size = if bench.scale().quick {
        Size { pages: 500_000, files: 10_000, snapshots: 300, timed: 200, database_bytes: 64 << 20 }
    } else {
        Size { pages: 10_000_000, files: 100_000, snapshots: 1000, timed: 200, database_bytes: 512 << 20 }
    };
    let field =
        Field { compared: &[System::Pagefold("zstd"), System::Btrfs("zstd")], beside: &[System::Zfs] };
    // Systems are measured one after the other, not in turns: zfs-fuse takes minutes for what the others do in seconds.
    let mut all = volumes(bench, section, &field, bench.scale().disk_bytes, &Options::default())?;
    for volume in &mut all {
        let throttled = bench.profile(profile, volume)?;
        let part = if volume.system() == System::Zfs { PART_OF_ZFS } else { 1 };
        let size = Size { pages: size.pages / part, files: size.files / part, ..size };
        measure(bench, profile, section, volume, &size)?;
        drop(throttled);
    }
    let Size { pages, files, snapshots, timed, database_bytes } = size;
    section.note(format!(
        "A dataset with a file of {pages} pages of 8 KiB (64 bytes of each random), {files} files of one page and a PostgreSQL of {} MiB \
         (zfs-fuse: a {PART_OF_ZFS}th of the pages and files). {timed} snapshots are made, {} ms between them, under pgbench's TPC-B with {CLIENTS} \
         clients, each with a clone of it; each command from its start to its end. pgbench notes each transaction. Then {} more are made, pages changed \
         before each. On btrfs a snapshot is `btrfs subvolume snapshot -r`, and not durable when the command returns; Pagefold's is. PostgreSQL: {}.",
        database_bytes >> 20,
        PAUSE.as_millis(),
        snapshots - timed,
        describe(&settings(true)),
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
    copy_cluster(&bench.prepared().tpcb(bench, size.database_bytes)?, &folder.join("pg"))?;
    volume.sync()?;
    rates(bench, profile, section, &label, &file, size, (READS.before, WRITES.before))?;
    bench.progress(&format!("snapshots of {label} under load"));
    under_load(bench, profile, section, volume, &folder, size)?;
    bench.progress(&format!("more snapshots of {label}"));
    for n in size.timed..size.snapshots {
        check_interrupted()?;
        writers::run_for(&file, 1, size.pages, CHANGES)?;
        volume.snapshot(&format!("s{n}"))?;
    }
    volume.sync()?;
    rates(bench, profile, section, &label, &file, size, (READS.after, WRITES.after))
}

/// Makes files of one page each.
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

/// Measures random reads and overwrites, each for the length of a measurement. The first round does not count, since
/// writes from before it are still under way.
fn rates(
    bench: &Bench,
    profile: Profile,
    section: &mut Section,
    label: &str,
    file: &Path,
    size: &Size,
    (reads, writes): (Metric, Metric),
) -> Result<()> {
    for n in 0..=bench.scale().repetitions {
        let job = Job::random_reads(file, READERS, 1, bench.scale().seconds);
        section.command(shown(&job.command()));
        let read = fio::run(&job)?.read.per_second;
        let began = Instant::now();
        let done = writers::run_for(file, WRITERS, size.pages, bench.scale().duration())?;
        let written = done as f64 / began.elapsed().as_secs_f64();
        if n > 0 {
            section.add(profile, reads, label, read);
            section.add(profile, writes, label, written);
        }
    }
    Ok(())
}

fn settings(full_page_writes: bool) -> Settings {
    Settings { full_page_writes, shared_buffers_mib: 64, max_wal_mib: 1024 }
}

/// Makes snapshots and clones under pgbench. Measures their times, and those of the transactions that met them.
fn under_load(
    bench: &Bench,
    profile: Profile,
    section: &mut Section,
    volume: &mut Volume,
    folder: &Path,
    size: &Size,
) -> Result<()> {
    let label = volume.label();
    let full_page_writes = !volume.system().is_ours();
    let server = bench.postgres()?.start(&folder.join("pg"), &settings(full_page_writes), None)?;
    section.command(shown(&server.pgbench_command(CLIENTS, LOAD_SECONDS)));
    let over = AtomicBool::new(false);
    let (mut snapshots, mut clones, mut moments) = (Vec::new(), Vec::new(), Vec::new());
    let transactions = std::thread::scope(|scope| {
        let load = scope.spawn(|| {
            let noted = server.noted_pgbench(CLIENTS, LOAD_SECONDS);
            over.store(true, Ordering::Relaxed);
            noted
        });
        let mut make = || -> Result<()> {
            for n in 0..size.timed {
                std::thread::sleep(PAUSE);
                if over.load(Ordering::Relaxed) {
                    break;
                }
                let (name, began) = (format!("s{n}"), SystemTime::now());
                snapshots.push(volume.snapshot(&name)?);
                clones.push(volume.clone_snapshot(&name, &format!("c{n}"))?);
                moments.push((began, SystemTime::now()));
            }
            Ok(())
        };
        let made = make();
        let load = load.join().unwrap_or_else(|_| Err(anyhow!("the thread of pgbench panicked")));
        made.and(load)
    })?;
    server.stop()?;
    section.add(profile, MADE, &label, snapshots.len() as f64);
    section.add(profile, LOAD, &label, transactions.len() as f64 / LOAD_SECONDS as f64);
    for (latency, mut seconds) in [(SNAPSHOT, snapshots), (CLONE, clones)] {
        seconds.sort_by(f64::total_cmp);
        // Percentiles are by nearest rank.
        let at = |share: f64| {
            let rank = (seconds.len() as f64 * share).ceil() as usize;
            seconds.get(rank.saturating_sub(1)).copied().unwrap_or_default()
        };
        for (metric, share) in [(latency.median, 0.5), (latency.p99, 0.99), (latency.longest, 1.0)] {
            section.add(profile, metric, &label, at(share) * 1000.0);
        }
    }
    let (met, unmet): (Vec<&Transaction>, Vec<&Transaction>) =
        transactions.iter().partition(|one| moments.iter().any(|&moment| one.meets(moment)));
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
    let mut delay = at_most("snapshot-delay", "no transaction takes over 100 ms by it", 100.0, MET);
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
