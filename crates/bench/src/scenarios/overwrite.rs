//! Measures 8 KiB overwrites, each with fdatasync: rate, bytes that reach the device, flushes.

use anyhow::Result;

use super::{Field, alternate, volumes};
use crate::bench::Bench;
use crate::results::Target::{AtLeast, AtMost};
use crate::results::{Line, Metric, Profile, RatioLine, Section, figure};
use crate::systems::{Options, System, Volume};
use crate::tools::corpus::PAGE_BYTES;
use crate::tools::overwrite::{self, Order};

/// Metrics for one number of writers: rate, median latency, 99th percentile of latency, bytes to the device, flushes.
struct Shape {
    writers: usize,
    rate: Metric,
    latency: Metric,
    slowest: Metric,
    bytes: Metric,
    flushes: Metric,
}

const ONE: Shape = Shape {
    writers: 1,
    rate: Metric { name: "overwrite + fdatasync, 1 writer", unit: "operations/s" },
    latency: Metric { name: "median latency, 1 writer", unit: "us" },
    slowest: Metric { name: "99th percentile of latency, 1 writer", unit: "us" },
    bytes: Metric { name: "bytes to the device per operation, 1 writer", unit: "B" },
    flushes: Metric { name: "flushes per operation, 1 writer", unit: "flushes" },
};
const SIXTEEN: Shape = Shape {
    writers: 16,
    rate: Metric { name: "overwrite + fdatasync, 16 writers", unit: "operations/s" },
    latency: Metric { name: "median latency, 16 writers", unit: "us" },
    slowest: Metric { name: "99th percentile of latency, 16 writers", unit: "us" },
    bytes: Metric { name: "bytes to the device per operation, 16 writers", unit: "B" },
    flushes: Metric { name: "flushes per operation, 16 writers", unit: "flushes" },
};

/// Bytes to the device per operation that are allowed above the compressed page, with one writer.
const OVERHEAD_BYTES: f64 = 4096.0;

/// Overwrites on each system and compares them.
pub(super) fn run(bench: &Bench, profile: Profile, section: &mut Section) -> Result<()> {
    let pages: u64 = if bench.scale().quick { 1024 } else { 4096 };
    let corpus = bench.prepared().corpus(bench)?;
    let beside =
        [System::Xfs, System::Btrfs("lzo"), System::Btrfs("zstd"), System::Zfs, System::Pagefold("zstd")];
    let field = Field { compared: &[System::Ext4, System::Pagefold("lz4")], beside: &beside };
    let mut all = volumes(bench, section, &field, bench.scale().disk_bytes, &Options::default())?;
    for volume in &mut all {
        bench.progress(&format!("filling {}", volume.label()));
        for writer in 0..SIXTEEN.writers {
            let path = overwrite::file_of(volume.path(), writer);
            corpus.fill(&path, pages * PAGE_BYTES as u64, writer as u64)?;
        }
        volume.sync()?;
    }
    for shape in [ONE, SIXTEEN] {
        alternate(bench, profile, &mut all, |volume| {
            measure(bench, section, profile, volume, (&shape, pages))
        })?;
    }
    section.note(format!(
        "A program of the bench: each writer has a file of {} MiB, overwrites a random 8 KiB page with a real PostgreSQL page \
         (pwrite through the page cache) and calls fdatasync. Bytes and flushes are those of the loop device's counters, background writes included.",
        (pages * PAGE_BYTES as u64) >> 20
    ));
    judge(profile, section, PAGE_BYTES as f64 / corpus.ratios()?.lz4);
    Ok(())
}

fn measure(
    bench: &Bench,
    section: &mut Section,
    profile: Profile,
    volume: &mut Volume,
    (shape, pages): (&Shape, u64),
) -> Result<()> {
    let corpus = bench.prepared().corpus(bench)?;
    let duration = bench.scale().duration();
    let before = volume.disk().counters()?;
    let done = overwrite::run(volume.path(), shape.writers, (Order::Random, pages), duration, corpus)?;
    let device = volume.disk().counters()?.since(before);
    let (label, operations) = (volume.label(), done.operations.max(1) as f64);
    section.add(profile, shape.rate, &label, done.operations as f64 / done.seconds);
    section.add(profile, shape.latency, &label, done.median_us);
    section.add(profile, shape.slowest, &label, done.p99_us);
    section.add(profile, shape.bytes, &label, device.written_bytes as f64 / operations);
    section.add(profile, shape.flushes, &label, device.flushes as f64 / operations);
    Ok(())
}

fn judge(profile: Profile, section: &mut Section, compressed_bytes: f64) {
    let ours = "pagefold-lz4";
    for (id, text, metric, bound) in [
        ("overwrite-1", "8 KiB overwrite + fdatasync, 1 writer: 0.8 of ext4", ONE.rate, 0.8),
        ("overwrite-16", "the same, 16 writers: 1.2 of ext4", SIXTEEN.rate, 1.2),
    ] {
        let target = AtLeast(bound);
        section.ratio_line(RatioLine { id, text, profile, metric, ours, theirs: "ext4", target });
    }
    let (one, many) =
        (section.median(profile, ONE.bytes, ours), section.median(profile, SIXTEEN.bytes, ours));
    let ext4 = section
        .median(profile, ONE.bytes, "ext4")
        .map_or_else(String::new, |b| format!("; ext4 {}", figure(b)));
    let mut line = |id: &str, text: &str, target, unit: &str, measured, detail| {
        let (id, text, unit) = (id.to_owned(), text.to_owned(), unit.to_owned());
        section.lines.push(Line { id, text, profile, target, unit, measured, detail });
    };
    line(
        "overwrite-bytes-1",
        "bytes to the device per operation, 1 writer: compressed page + 4 KiB",
        AtMost((compressed_bytes + OVERHEAD_BYTES).round()),
        "B",
        one,
        format!("a page compresses to {} with lz4{ext4}", figure(compressed_bytes)),
    );
    line(
        "overwrite-bytes-16",
        "what is above the compressed page is shared among 16 writers: half of one writer's at most",
        AtMost(0.5),
        "x",
        one.zip(many).map(|(one, many)| (many - compressed_bytes) / (one - compressed_bytes)),
        format!("{} B per operation at 16 writers", many.map_or_else(|| "?".to_owned(), figure)),
    );
    let flushes = section.median(profile, SIXTEEN.flushes, ours);
    let rival = section
        .median(profile, SIXTEEN.flushes, "ext4")
        .map_or_else(String::new, |f| format!("ext4 {}", figure(f)));
    section.lines.push(Line {
        id: "overwrite-flushes-1".to_owned(),
        text: "one flush per group: at most one flush (and the background's) per operation, 1 writer"
            .to_owned(),
        profile,
        target: AtMost(1.02),
        unit: "flushes".to_owned(),
        measured: section.median(profile, ONE.flushes, ours),
        detail: String::new(),
    });
    section.lines.push(Line {
        id: "overwrite-flushes-16".to_owned(),
        text: "one flush per group: shared by at least two writers of 16".to_owned(),
        profile,
        target: AtMost(0.5),
        unit: "flushes".to_owned(),
        measured: flushes,
        detail: rival,
    });
}
