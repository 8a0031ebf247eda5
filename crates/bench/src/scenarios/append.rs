//! Measures commits as logs make them: 4 KiB appended to a file that is there, and fdatasync.

use std::fs::File;
use std::io::Write;

use anyhow::{Context, Result};

use super::{Field, alternate, volumes};
use crate::bench::Bench;
use crate::results::Target::AtMost;
use crate::results::{Metric, Profile, RatioLine, Section};
use crate::systems::{Options, System, Volume};
use crate::tools::corpus::PAGE_BYTES;
use crate::tools::overwrite::{self, Order};

/// Metrics for one number of writers: median latency, 99th percentile of latency, rate.
struct LogShape {
    id: &'static str,
    writers: usize,
    latency: Metric,
    slowest: Metric,
    rate: Metric,
}

const SHAPES: [LogShape; 2] = [
    LogShape {
        id: "append-1",
        writers: 1,
        latency: Metric { name: "4 KiB appended + fdatasync, median, 1 writer", unit: "us" },
        slowest: Metric { name: "99th percentile, 1 writer", unit: "us" },
        rate: Metric { name: "commits, 1 writer", unit: "commits/s" },
    },
    LogShape {
        id: "append-6",
        writers: 6,
        latency: Metric { name: "4 KiB appended + fdatasync, median, 6 writers", unit: "us" },
        slowest: Metric { name: "99th percentile, 6 writers", unit: "us" },
        rate: Metric { name: "commits, 6 writers", unit: "commits/s" },
    },
];
const MOST_WRITERS: usize = SHAPES[1].writers;
/// Size of each writer's file, in pages: as large as four of PostgreSQL's segments.
const PAGES: u64 = (64 << 20) / PAGE_BYTES as u64;

/// Appends on each system and compares them.
pub(super) fn run(bench: &Bench, profile: Profile, section: &mut Section) -> Result<()> {
    let compared = [System::Ext4, System::Pagefold("auto"), System::Pagefold("page")];
    let field = Field { compared: &compared, beside: &[System::Xfs, System::Btrfs("zstd")] };
    let mut all = volumes(bench, section, &field, bench.scale().disk_bytes, &Options::default())?;
    for volume in &mut all {
        for writer in 0..MOST_WRITERS {
            allocate(&overwrite::file_of(volume.path(), writer))?;
        }
        volume.sync()?;
    }
    for shape in &SHAPES {
        alternate(bench, profile, &mut all, |volume| measure(bench, section, profile, volume, shape))?;
    }
    section.note(format!(
        "A program of the bench: each writer has a file of {} MiB of zeros, as PostgreSQL makes its log files, writes 4 KiB of a real page behind the last \
         (pwrite through the page cache), calls fdatasync, and begins anew at the file's end. A latency is that of both calls.",
        (PAGES * PAGE_BYTES as u64) >> 20
    ));
    judge(profile, section);
    Ok(())
}

/// Fills a file with zeros.
fn allocate(path: &std::path::Path) -> Result<()> {
    let mut file = File::create(path).with_context(|| format!("create {}", path.display()))?;
    let zeros = vec![0; PAGE_BYTES * 16];
    for _ in 0..PAGES / 16 {
        file.write_all(&zeros).with_context(|| format!("fill {}", path.display()))?;
    }
    file.sync_all().with_context(|| format!("fsync {}", path.display()))
}

fn measure(
    bench: &Bench,
    section: &mut Section,
    profile: Profile,
    volume: &mut Volume,
    shape: &LogShape,
) -> Result<()> {
    let corpus = bench.prepared().corpus(bench)?;
    let duration = bench.scale().duration();
    let done = overwrite::run(volume.path(), shape.writers, (Order::Log, PAGES), duration, corpus)?;
    let label = volume.label();
    section.add(profile, shape.latency, &label, done.median_us);
    section.add(profile, shape.slowest, &label, done.p99_us);
    section.add(profile, shape.rate, &label, done.operations as f64 / done.seconds);
    Ok(())
}

fn judge(profile: Profile, section: &mut Section) {
    for shape in &SHAPES {
        for (settings, ours) in [("default settings", "pagefold-auto"), ("page", "pagefold-page")] {
            let codec = ours.trim_start_matches("pagefold-");
            section.ratio_line(RatioLine {
                id: &format!("{}-{}-{codec}", shape.id, profile.name()),
                text: &format!("{}, {settings}: at most 1.1 of ext4's", shape.latency.name),
                profile,
                metric: shape.latency,
                ours,
                theirs: "ext4",
                target: AtMost(1.1),
            });
        }
    }
}
