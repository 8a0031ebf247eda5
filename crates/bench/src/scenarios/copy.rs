//! COPY of a file into a PostgreSQL table.

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

/// Copies and compares.
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

fn judge(profile: Profile, section: &mut Section) {
    // Where the device is the limit, less to write is to be faster.
    let (lz4, zstd, page) = match profile {
        Profile::Free => (
            ("COPY: lz4 at least 0.7 of ext4", 0.7),
            ("COPY: zstd at least 0.6 of ext4", 0.6),
            ("COPY: page at least 0.6 of ext4", 0.6),
        ),
        Profile::Throttled => (
            ("COPY: lz4 ahead of ext4", 1.0),
            ("COPY: zstd ahead of ext4", 1.0),
            ("COPY: page ahead of ext4", 1.0),
        ),
    };
    for (id, (text, bound), ours, theirs) in [
        ("copy-lz4", lz4, "pagefold-lz4", "ext4"),
        ("copy-zstd", zstd, "pagefold-zstd", "ext4"),
        ("copy-page", page, "pagefold-page", "ext4"),
        ("copy-lzo", ("COPY: lz4 ahead of btrfs-lzo", 1.0), "pagefold-lz4", "btrfs-lzo"),
        ("copy-btrfs-zstd", ("COPY: zstd ahead of btrfs-zstd", 1.0), "pagefold-zstd", "btrfs-zstd"),
    ] {
        let target = AtLeast(bound);
        section.ratio_line(RatioLine { id, text, profile, metric: RATE, ours, theirs, target });
    }
}
