//! Measures COPY of a file into a PostgreSQL table.

use anyhow::Result;

use super::{alternate, volumes_with};
use crate::bench::Bench;
use crate::data::Prepared;
use crate::results::Target::AtLeast;
use crate::results::{Metric, Profile, RatioLine, Section};
use crate::systems::System;
use crate::tools::postgres::{Settings, describe};

const RATE: Metric = Metric { name: "COPY", unit: "MB/s" };
const WITH_CHECKPOINT: Metric = Metric { name: "COPY and CHECKPOINT", unit: "MB/s" };
const SETTINGS: Settings = Settings { full_page_writes: true, shared_buffers_mib: 256, max_wal_mib: 1024 };

/// Copies on each system and compares them.
pub(super) fn run(bench: &Bench, profile: Profile, section: &mut Section) -> Result<()> {
    let file = bench.prepared().copy_file(bench, bench.scale().copy_bytes)?;
    let megabytes = std::fs::metadata(&file)?.len() as f64 / 1e6;
    let cluster = bench.prepared().empty(bench)?;
    let mut all = volumes_with(bench, section, &cluster, &[System::Zfs])?;
    let statement = format!("COPY copied FROM '{}'", file.display());
    alternate(bench, profile, &mut all, |volume| {
        let server = bench.postgres()?.start(&volume.path().join("pg"), &SETTINGS, None)?;
        server.sql("postgres", Prepared::copy_table())?;
        server.sql("postgres", "CHECKPOINT")?;
        let copy = server.timed_sql("postgres", &statement)?;
        let checkpoint = server.timed_sql("postgres", "CHECKPOINT")?;
        section.add(profile, RATE, &volume.label(), megabytes / copy);
        section.add(profile, WITH_CHECKPOINT, &volume.label(), megabytes / (copy + checkpoint));
        server.sql("postgres", "DROP TABLE copied")?;
        server.stop()?;
        volume.sync()
    })?;
    section.command("psql -c \"COPY copied FROM 'FILE'\"; psql -c CHECKPOINT".to_owned());
    section
        .note(format!("{megabytes:.0} MB of rows of price_paid, without indexes. {}", describe(&SETTINGS)));
    judge(profile, section);
    Ok(())
}

/// A line: id, text, metric, label of ours, label of theirs, smallest ratio.
type Comparison = (&'static str, &'static str, Metric, &'static str, &'static str, f64);

const FREE: [Comparison; 7] = [
    ("copy-lz4", "COPY: lz4 at least 0.7 of ext4", RATE, "pagefold-lz4", "ext4", 0.7),
    ("copy-zstd", "COPY: zstd at least 0.6 of ext4", RATE, "pagefold-zstd", "ext4", 0.6),
    ("copy-page", "COPY: page at least 0.6 of ext4", RATE, "pagefold-page", "ext4", 0.6),
    ("copy-lzo", "COPY: lz4 ahead of btrfs-lzo", RATE, "pagefold-lz4", "btrfs-lzo", 1.0),
    ("copy-btrfs-zstd", "COPY: zstd ahead of btrfs-zstd", RATE, "pagefold-zstd", "btrfs-zstd", 1.0),
    ("copy-default-ext4", "COPY, default settings: 0.8 of ext4", RATE, "pagefold-auto", "ext4", 0.8),
    (
        "copy-default-btrfs",
        "COPY, default settings: ahead of btrfs-zstd",
        RATE,
        "pagefold-auto",
        "btrfs-zstd",
        1.0,
    ),
];

/// Where the device is the limit, a system that writes less is to be faster. The kernel and the size of memory decide
/// how much is on the device when COPY ends; after a checkpoint, all of it is.
const THROTTLED: [Comparison; 7] = [
    ("copy-throttled-lz4", "COPY: lz4 ahead of ext4", RATE, "pagefold-lz4", "ext4", 1.0),
    ("copy-throttled-zstd", "COPY: zstd ahead of ext4", RATE, "pagefold-zstd", "ext4", 1.0),
    ("copy-throttled-page", "COPY: page ahead of ext4", RATE, "pagefold-page", "ext4", 1.0),
    ("load-lz4", "COPY and CHECKPOINT: lz4 ahead of ext4", WITH_CHECKPOINT, "pagefold-lz4", "ext4", 1.0),
    ("load-zstd", "COPY and CHECKPOINT: zstd ahead of ext4", WITH_CHECKPOINT, "pagefold-zstd", "ext4", 1.0),
    ("load-page", "COPY and CHECKPOINT: page ahead of ext4", WITH_CHECKPOINT, "pagefold-page", "ext4", 1.0),
    (
        "load-default",
        "COPY and CHECKPOINT, default settings: 1.3 of ext4",
        WITH_CHECKPOINT,
        "pagefold-auto",
        "ext4",
        1.3,
    ),
];

fn judge(profile: Profile, section: &mut Section) {
    let lines = match profile {
        Profile::Free => FREE.iter(),
        Profile::Throttled => THROTTLED.iter(),
    };
    for &(id, text, metric, ours, theirs, bound) in lines {
        let target = AtLeast(bound);
        section.ratio_line(RatioLine { id, text, profile, metric, ours, theirs, target });
    }
}
