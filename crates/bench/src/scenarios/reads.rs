//! Measures random 8 KiB reads: from the record cache, past it, and from a cache that holds the set only because it is
//! compressed.

use std::path::{Path, PathBuf};

use anyhow::Result;

use super::{Field, alternate, volumes};
use crate::bench::Bench;
use crate::host::exec::{command, run, shown};
use crate::host::memory::Limit;
use crate::results::Target::AtLeast;
use crate::results::{Metric, Profile, RatioLine, Section};
use crate::systems::{NULL_FILE, Options, System, Volume};
use crate::tools::fio::{self, Job};

const DEPTH_1: Metric = Metric { name: "8 KiB random reads, 1 job, depth 1", unit: "reads/s" };
const LATENCY_1: Metric = Metric { name: "median latency, 1 job, depth 1", unit: "us" };
const JOBS_4: Metric = Metric { name: "8 KiB random reads, 4 jobs, depth 1", unit: "reads/s" };
const DEPTH_16: Metric = Metric { name: "8 KiB random reads, 4 jobs x depth 16", unit: "reads/s" };

/// Bytes of the file that the null server answers from and Pagefold caches.
const CACHED_BYTES: u64 = 64 << 20;
/// Pagefold's budget in bytes while misses are measured: a small part of the file.
const MISS_MEMORY: u64 = 64 << 20;

const LZ4: System = System::Pagefold("lz4");
const ZSTD: System = System::Pagefold("zstd");

fn file_of(volume: &Volume) -> PathBuf {
    volume.path().join(if volume.system() == System::Null { NULL_FILE } else { "random" })
}

/// Fills the file that is read, and makes everything durable.
fn fill(bench: &Bench, volume: &mut Volume, bytes: u64) -> Result<()> {
    if volume.system() != System::Null {
        bench.progress(&format!("filling {}", volume.label()));
        bench.prepared().corpus(bench)?.fill(&file_of(volume), bytes, 1)?;
        volume.sync()?;
    }
    Ok(())
}

/// Reads a file `passes` times. A cache meets each page in the first pass, and keeps it as one that is used again after
/// the second.
fn warm(path: &Path, bytes: u64, passes: u32) -> Result<()> {
    for _ in 0..passes {
        let mut dd = command("dd", ["of=/dev/null", "bs=8k", "iflag=direct", "status=none"]);
        run(dd.arg(format!("if={}", path.display())).arg(format!("count={}", bytes / 8192)))?;
    }
    Ok(())
}

/// Makes one measurement by fio and adds it to one metric. Notes the command with the mount point left out.
fn measure(
    bench: &Bench,
    section: &mut Section,
    profile: Profile,
    volume: &Volume,
    (metric, jobs, depth, bytes): (Metric, u32, u32, u64),
) -> Result<()> {
    let mut job = Job::random_reads(&file_of(volume), jobs, depth, bench.scale().seconds);
    job.extra.push(format!("--size={bytes}"));
    let found = fio::run(&job)?;
    section.add(profile, metric, &volume.label(), found.read.per_second);
    if metric == DEPTH_1 {
        section.add(profile, LATENCY_1, &volume.label(), found.read.median_us);
    }
    section.command(shown(&job.command()).replace(&*volume.path().to_string_lossy(), "MOUNT"));
    Ok(())
}

/// Compares the record cache with the null server.
pub(super) fn cached(bench: &Bench, profile: Profile, section: &mut Section) -> Result<()> {
    let field = Field { compared: &[System::Null, LZ4], beside: &[ZSTD] };
    let mut all = volumes(bench, section, &field, bench.scale().disk_bytes, &Options::default())?;
    for volume in &mut all {
        fill(bench, volume, CACHED_BYTES)?;
        warm(&file_of(volume), CACHED_BYTES, 2)?;
    }
    alternate(bench, profile, &mut all, |volume| {
        measure(bench, section, profile, volume, (DEPTH_1, 1, 1, CACHED_BYTES))?;
        measure(bench, section, profile, volume, (JOBS_4, 4, 1, CACHED_BYTES))?;
        measure(bench, section, profile, volume, (DEPTH_16, 4, 16, CACHED_BYTES))
    })?;
    section.note(format!(
        "The file has {} MiB of PostgreSQL pages, all of them in Pagefold's cache.",
        CACHED_BYTES >> 20
    ));
    for (id, text, metric) in [
        ("cached-4", "random O_DIRECT reads from the record cache, 4 jobs: 0.7 of null's", JOBS_4),
        ("cached-4x16", "the same, 4 jobs x depth 16", DEPTH_16),
    ] {
        section.ratio_line(RatioLine {
            id,
            text,
            profile,
            metric,
            ours: "pagefold-lz4",
            theirs: "null",
            target: AtLeast(0.7),
        });
    }
    Ok(())
}

/// Measures reads that no cache answers.
pub(super) fn miss(bench: &Bench, profile: Profile, section: &mut Section) -> Result<()> {
    let bytes = bench.scale().random_file_bytes;
    let field = Field { compared: &[System::Ext4, LZ4], beside: &[System::Xfs, System::Btrfs("zstd"), ZSTD] };
    let options = Options { memory: Some(MISS_MEMORY), limit: None };
    let mut all = volumes(bench, section, &field, bench.scale().disk_bytes, &options)?;
    for volume in &mut all {
        fill(bench, volume, bytes)?;
        volume.make_cold()?;
    }
    alternate(bench, profile, &mut all, |volume| {
        measure(bench, section, profile, volume, (DEPTH_1, 1, 1, bytes))?;
        measure(bench, section, profile, volume, (DEPTH_16, 4, 16, bytes))
    })?;
    section.note(format!(
        "The file has {} MiB of PostgreSQL pages; Pagefold's cache is set to {} MiB.",
        bytes >> 20,
        MISS_MEMORY >> 20
    ));
    note_hits(section, &all)?;
    let free = profile == Profile::Free;
    for (id, text, metric, bound) in [
        (
            "miss-1",
            "random O_DIRECT reads that miss, depth 1, against ext4",
            DEPTH_1,
            if free { 0.85 } else { 1.0 },
        ),
        ("miss-4x16", "the same, 4 jobs x depth 16", DEPTH_16, if free { 0.7 } else { 1.0 }),
    ] {
        let target = AtLeast(bound);
        section.ratio_line(RatioLine {
            id,
            text,
            profile,
            metric,
            ours: "pagefold-lz4",
            theirs: "ext4",
            target,
        });
    }
    Ok(())
}

/// Notes the share of reads that a server's own cache answered, so that a reader can verify that reads did hit or miss.
fn note_hits(section: &mut Section, volumes: &[Volume]) -> Result<()> {
    for volume in volumes {
        if let Some((hits, misses)) = volume.hits_and_misses()? {
            let share = hits as f64 / (hits + misses).max(1) as f64 * 100.0;
            section.note(format!("{}'s cache answered {share:.1} % of the records read.", volume.label()));
        }
    }
    Ok(())
}

/// Measures reads of a set twice as large as the memory, which fits only because it is compressed.
pub(super) fn compressed_fit(bench: &Bench, profile: Profile, section: &mut Section) -> Result<()> {
    let memory: u64 = if bench.scale().quick { 64 << 20 } else { 128 << 20 };
    let bytes = memory * 2;
    let field = Field { compared: &[System::Ext4, LZ4, ZSTD], beside: &[] };
    let options = Options { memory: Some(memory), limit: None };
    let mut all = volumes(bench, section, &field, bench.scale().disk_bytes, &options)?;
    for volume in &mut all {
        fill(bench, volume, bytes)?;
        volume.make_cold()?;
        if volume.system().is_ours() {
            warm(&file_of(volume), bytes, 2)?;
        }
    }
    let limit = Limit::new("fit", memory)?;
    alternate(bench, profile, &mut all, |volume| {
        measure(bench, section, profile, volume, (DEPTH_16, 4, 16, bytes))?;
        if volume.system() == System::Ext4 {
            buffered(bench, section, profile, volume, (bytes, &limit))?;
        }
        Ok(())
    })?;
    note_hits(section, &all)?;
    section.note(format!(
        "The file has {} MiB of PostgreSQL pages, the memory is {} MiB: Pagefold's budget, or, for ext4 read through the page cache, \
         the limit of the cgroup in which the readers run. O_DIRECT gives ext4 no cache at all.",
        bytes >> 20,
        memory >> 20
    ));
    for (id, text, theirs, ours) in [
        ("fit-lz4", "set fits the cache only compressed: 5 times ext4 (lz4)", "ext4", "pagefold-lz4"),
        ("fit-zstd", "the same with zstd", "ext4", "pagefold-zstd"),
        (
            "fit-buffered",
            "the same (zstd) against ext4 with as much page cache",
            "ext4-buffered",
            "pagefold-zstd",
        ),
    ] {
        section.ratio_line(RatioLine {
            id,
            text,
            profile,
            metric: DEPTH_16,
            ours,
            theirs,
            target: AtLeast(5.0),
        });
    }
    Ok(())
}

/// Measures ext4 with page cache as large as Pagefold's memory, after a warm-up of five seconds.
fn buffered(
    bench: &Bench,
    section: &mut Section,
    profile: Profile,
    volume: &Volume,
    (bytes, limit): (u64, &Limit),
) -> Result<()> {
    let mut job = Job::new("randread", &file_of(volume), "randread", "8k", bench.scale().seconds);
    let options =
        ["--ioengine=psync", "--numjobs=64", "--thread", "--norandommap", "--randrepeat=0", "--ramp_time=5"];
    job.extra = options.map(str::to_owned).into();
    // Read-ahead would fetch pages that random readers do not want, and its reads would look like misses.
    job.extra.extend([
        "--fadvise_hint=random".to_owned(),
        "--invalidate=0".to_owned(),
        format!("--size={bytes}"),
    ]);
    let found = fio::run_with(&job, &mut limit.wrap(&job.command()))?;
    section.add(profile, DEPTH_16, "ext4-buffered", found.read.per_second);
    section.command(shown(&job.command()).replace(&*volume.path().to_string_lossy(), "MOUNT"));
    Ok(())
}
