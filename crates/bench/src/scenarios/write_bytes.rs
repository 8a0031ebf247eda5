//! Measures the bytes that reach the device per transaction and per rewritten page, checkpoints included, under pgbench
//! TPC-B, sysbench oltp_read_write and TPC-C.

use std::collections::BTreeMap;

use anyhow::{Context, Result};

use super::{Field, alternate, volumes};
use crate::bench::Bench;
use crate::data::{OLTP_TABLES, oltp_load, oltp_rows, tpcb_scale, tpcc_warehouses};
use crate::host::exec::shown;
use crate::results::Target::AtMost;
use crate::results::{Metric, Profile, RatioLine, Section};
use crate::systems::{Activity, Options, System};
use crate::tools::postgres::{Running, Settings, copy_cluster, describe};

const CLIENTS: u32 = 4;
/// Size of the database. Shared buffers hold a quarter of it, so that pages are written by checkpoints and in between.
const QUICK_BYTES: u64 = 192 << 20;
const FULL_BYTES: u64 = 768 << 20;
/// Number of checkpoints in one measurement. The cost of a page depends on the number of transactions that changed it
/// since the last checkpoint.
const CHECKPOINTS: u64 = 3;
/// Causes of the engine's writes beside pages, by their names in `pagefold iostat`.
const OVERHEAD: [&str; 5] = ["models", "trees", "checkpoints", "log_framing", "fold"];
/// Names of the counts of pages that had been stored before: of relations, and of other files.
const RELATIONS: &str = "rewritten_database";
const OTHERS: &str = "rewritten_other";

/// A load, and the metrics that are measured of it.
#[derive(Clone, Copy)]
struct Load {
    kind: Kind,
    id: &'static str,
    name: &'static str,
    transaction: Metric,
    overhead: Metric,
    relations: [Metric; 2],
    others: [Metric; 2],
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Tpcb,
    Oltp,
    Tpcc { random_strings: bool },
}

macro_rules! load {
    ($kind:expr, $id:literal, $name:literal) => {{
        const fn bytes(name: &'static str) -> Metric {
            Metric { name, unit: "B" }
        }
        Load {
            kind: $kind,
            id: $id,
            name: $name,
            transaction: bytes(concat!("bytes to the device per transaction, ", $name)),
            overhead: bytes(concat!(
                "of each page's bytes: trees, checkpoints, log framing, folding, models, ",
                $name
            )),
            relations: [
                bytes(concat!("a rewritten page of a relation, p50, all causes, ", $name)),
                bytes(concat!("a rewritten page of a relation, p90, all causes, ", $name)),
            ],
            others: [
                bytes(concat!("a rewritten page of PostgreSQL's log, p50, all causes, ", $name)),
                bytes(concat!("a rewritten page of PostgreSQL's log, p90, all causes, ", $name)),
            ],
        }
    }};
}

const LOADS: [Load; 4] = [
    load!(Kind::Tpcb, "pgbench", "pgbench TPC-B"),
    load!(Kind::Oltp, "sysbench", "sysbench oltp_read_write"),
    load!(Kind::Tpcc { random_strings: false }, "tpcc", "TPC-C"),
    load!(Kind::Tpcc { random_strings: true }, "tpcc-random", "TPC-C with random strings"),
];

/// Size of the database in bytes, and seconds of load before each checkpoint.
#[derive(Clone, Copy)]
struct Sizes {
    bytes: u64,
    seconds: u64,
}

fn settings(bytes: u64, system: System) -> Settings {
    Settings {
        // Pagefold never tears a page, so PostgreSQL need not log whole pages.
        full_page_writes: !system.is_ours(),
        shared_buffers_mib: bytes >> 22,
        max_wal_mib: 1024,
    }
}

/// Puts load on each system and compares them.
pub(super) fn run(bench: &Bench, profile: Profile, section: &mut Section) -> Result<()> {
    let quick = bench.scale().quick;
    let sizes = if quick {
        Sizes { bytes: QUICK_BYTES, seconds: 3 }
    } else {
        Sizes { bytes: FULL_BYTES, seconds: 12 }
    };
    for load in &LOADS {
        measure(bench, profile, section, load, sizes)?;
    }
    let Sizes { bytes, seconds } = sizes;
    section.note(format!(
        "pgbench scale {}, {OLTP_TABLES} tables of sysbench of {} rows, {} warehouses of TPC-C; {CLIENTS} clients. {CHECKPOINTS} times {seconds} s of \
         load, each followed by CHECKPOINT, then a sync; divided by the transactions. Rivals: {}. Pagefold: the same with full_page_writes=off.",
        tpcb_scale(bytes),
        oltp_rows(bytes),
        tpcc_warehouses(bytes),
        describe(&settings(bytes, System::Ext4))
    ));
    section.note(
        "A rewritten page is one that a commit stores and that had been stored before: of a relation, when PostgreSQL writes it at a checkpoint or \
         to make room; of its log, at each commit. p50 and p90 are of the lengths of their records, as `pagefold iostat` counts them (to an eighth, \
         rounded up). To each is added its share of everything else that reached the device in that time (trees, checkpoints, log framing with \
         directories and padding, folding, models), divided evenly by all pages stored."
            .to_owned(),
    );
    LOADS.iter().for_each(|load| judge(profile, section, load));
    Ok(())
}

fn measure(bench: &Bench, profile: Profile, section: &mut Section, load: &Load, sizes: Sizes) -> Result<()> {
    let field = Field {
        compared: &[System::Ext4, System::Btrfs("zstd"), System::Pagefold("zstd"), System::Pagefold("page")],
        beside: &[],
    };
    let cluster = match load.kind {
        Kind::Tpcb => bench.prepared().tpcb(bench, sizes.bytes)?,
        Kind::Oltp => bench.prepared().oltp(bench, sizes.bytes)?,
        Kind::Tpcc { random_strings } => bench.prepared().tpcc(bench, sizes.bytes, random_strings)?,
    };
    let mut all = volumes(bench, section, &field, bench.scale().disk_bytes, &Options::default())?;
    for volume in &mut all {
        bench.progress(&format!("copying the database to {}", volume.label()));
        copy_cluster(&cluster, &volume.path().join("pg"))?;
        volume.sync()?;
    }
    let mut command = String::new();
    alternate(bench, profile, &mut all, |volume| {
        bench.progress(&format!("{} on {}", load.name, volume.label()));
        let settings = settings(sizes.bytes, volume.system());
        let server = bench.postgres()?.start(&volume.path().join("pg"), &settings, None)?;
        server.sql("postgres", "CHECKPOINT")?;
        volume.sync()?;
        let (before, causes_before) = (volume.disk().counters()?, volume.activity()?);
        let mut transactions = 0.0;
        for _ in 0..CHECKPOINTS {
            let (rate, shown) = put_on(&server, load.kind, sizes)?;
            transactions += rate * sizes.seconds as f64;
            command = shown;
            server.sql("postgres", "CHECKPOINT")?;
        }
        volume.sync()?;
        let written = volume.disk().counters()?.since(before).written_bytes as f64;
        let label = volume.label();
        section.add(profile, load.transaction, &label, written / transactions.max(1.0));
        if let Some((before, after)) = causes_before.zip(volume.activity()?) {
            let causes = Rewrites::between(&before, &after).context("read `pagefold iostat --json`")?;
            section.add(profile, load.overhead, &label, causes.overhead);
            for (metrics, of) in [(load.relations, RELATIONS), (load.others, OTHERS)] {
                for (metric, percent) in metrics.into_iter().zip([50, 90]) {
                    if let Some(length) = causes.percentile(of, percent) {
                        section.add(profile, metric, &label, length as f64 + causes.overhead);
                    }
                }
            }
        }
        server.stop()?;
        volume.sync()
    })?;
    section.command(command);
    Ok(())
}

/// Cost of rewritten pages in some time.
struct Rewrites {
    /// Bytes that were written for each page beside its record.
    overhead: f64,
    /// Number of records by kind of page and by length in bytes.
    lengths: BTreeMap<String, BTreeMap<u64, u64>>,
}

impl Rewrites {
    /// Returns the cost between two answers of a pool, or `None` if a figure is missing or has shrunk.
    fn between(before: &Activity, after: &Activity) -> Option<Self> {
        let grown = |name: &str| {
            let (was, is) = (before.counters.get(name)?, after.counters.get(name)?);
            Some((is.0.checked_sub(was.0)?, is.1.checked_sub(was.1)?))
        };
        let beside = OVERHEAD.iter().map(|name| grown(name).map(|(_, bytes)| bytes));
        let beside: u64 = beside.collect::<Option<Vec<_>>>()?.iter().sum();
        let pages = grown("pages_full")?.0 + grown("pages_delta")?.0;
        let mut lengths = after.lengths.clone();
        for (name, of) in &mut lengths {
            for (length, records) in of {
                let was = before.lengths.get(name).and_then(|was| was.get(length));
                *records = records.saturating_sub(was.copied().unwrap_or(0));
            }
        }
        Some(Self { overhead: beside as f64 / pages.max(1) as f64, lengths })
    }

    /// Returns the length in bytes that `percent` per cent of the records do not exceed, or `None` if there are no
    /// records.
    fn percentile(&self, of: &str, percent: u64) -> Option<u64> {
        let lengths = self.lengths.get(of)?;
        let rank = (lengths.values().sum::<u64>() * percent).div_ceil(100).max(1);
        let mut seen = 0;
        let reached = lengths.iter().find(|(_, records)| {
            seen += *records;
            seen >= rank
        });
        reached.map(|(length, _)| *length)
    }
}

/// Puts a load on a server. Returns transactions per second, and the command as somebody would type it.
fn put_on(server: &Running, kind: Kind, Sizes { bytes, seconds }: Sizes) -> Result<(f64, String)> {
    match kind {
        Kind::Tpcb => {
            Ok((server.pgbench(CLIENTS, seconds)?, shown(&server.pgbench_command(CLIENTS, seconds))))
        }
        Kind::Oltp => {
            let rows = oltp_rows(bytes);
            let (load, connection) = (oltp_load(rows, CLIENTS, seconds), server.connection());
            Ok((load.run(&connection)?, shown(&load.command(&connection, "run"))))
        }
        Kind::Tpcc { .. } => {
            let warehouses = tpcc_warehouses(bytes);
            let command = shown(&server.tpcc_command(warehouses, CLIENTS, seconds)?);
            Ok((server.tpcc(warehouses, CLIENTS, seconds)?, command))
        }
    }
}

fn judge(profile: Profile, section: &mut Section, load: &Load) {
    for ours in ["pagefold-zstd", "pagefold-page"] {
        for (theirs, text, bound) in [
            ("ext4", "a third of ext4's with full_page_writes=on", 1.0 / 3.0),
            ("btrfs-zstd", "a quarter of btrfs-zstd's", 0.25),
        ] {
            section.ratio_line(RatioLine {
                id: &format!("write-bytes-{}-{ours}-{theirs}", load.id),
                text: &format!("{}, bytes written per transaction ({ours}): at most {text}", load.id),
                profile,
                metric: load.transaction,
                ours,
                theirs,
                target: AtMost(bound),
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn activity(by: u64) -> Activity {
        let mut counters: BTreeMap<String, (u64, u64)> =
            OVERHEAD.iter().map(|name| ((*name).to_owned(), (by, 100 * by))).collect();
        counters.insert("pages_full".to_owned(), (2 * by, 9 * by));
        counters.insert("pages_delta".to_owned(), (3 * by, 9 * by));
        let lengths = BTreeMap::from([(70, 6 * by), (900, 3 * by), (8000, by)]);
        Activity { counters, lengths: BTreeMap::from([(RELATIONS.to_owned(), lengths)]) }
    }

    #[test]
    fn percentiles_and_shares_are_of_the_time_between() {
        let found = Rewrites::between(&activity(10), &activity(30)).unwrap();
        assert_eq!(found.overhead, 100.0, "five causes of 2,000 bytes each, 100 pages");
        let of = |percent| found.percentile(RELATIONS, percent);
        assert_eq!([50, 60, 61, 90, 91].map(of), [70, 70, 900, 900, 8000].map(Some));
        assert_eq!(found.percentile(OTHERS, 50), None);
        assert!(Rewrites::between(&activity(30), &activity(10)).is_none(), "another server");
    }
}
