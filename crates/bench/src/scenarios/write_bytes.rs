//! Bytes that reach the device per transaction, checkpoints included: pgbench TPC-B and sysbench oltp_read_write.

use anyhow::Result;

use super::{Field, alternate, volumes};
use crate::bench::Bench;
use crate::data::{OLTP_TABLES, oltp_rows, tpcb_scale};
use crate::host::exec::shown;
use crate::results::Target::AtMost;
use crate::results::{Metric, Profile, RatioLine, Section};
use crate::systems::{Options, System};
use crate::tools::postgres::{Running, Settings, copy_cluster, describe};

const CLIENTS: u32 = 4;
/// The database; shared buffers hold a quarter of it, so that pages are written by checkpoints and in between.
const QUICK_BYTES: u64 = 192 << 20;
const FULL_BYTES: u64 = 768 << 20;
/// Checkpoints of one measurement: what a page costs depends on how many transactions changed it since the last.
const CHECKPOINTS: u64 = 3;

const TPCB: Metric = Metric { name: "bytes to the device per transaction, pgbench TPC-B", unit: "B" };
const OLTP: Metric =
    Metric { name: "bytes to the device per transaction, sysbench oltp_read_write", unit: "B" };

fn settings(bytes: u64, system: System) -> Settings {
    Settings {
        // Pagefold never tears a page, so PostgreSQL need not log whole pages.
        full_page_writes: !system.is_ours(),
        shared_buffers_mib: bytes >> 22,
        max_wal_mib: 1024,
    }
}

/// Puts load on and compares.
pub(super) fn run(bench: &Bench, profile: Profile, section: &mut Section) -> Result<()> {
    let bytes = if bench.scale().quick { QUICK_BYTES } else { FULL_BYTES };
    let seconds = if bench.scale().quick { 3 } else { 20 };
    for metric in [TPCB, OLTP] {
        measure(bench, profile, section, metric, (bytes, seconds))?;
    }
    section.note(format!(
        "pgbench scale {}, and {OLTP_TABLES} tables of sysbench of {} rows; {CLIENTS} clients. {CHECKPOINTS} times {seconds} s of load, each followed by \
         CHECKPOINT, then a sync; divided by the transactions. Rivals: {}. Pagefold: the same with full_page_writes=off.",
        tpcb_scale(bytes),
        oltp_rows(bytes),
        describe(&settings(bytes, System::Ext4))
    ));
    judge(profile, section);
    Ok(())
}

fn measure(
    bench: &Bench,
    profile: Profile,
    section: &mut Section,
    metric: Metric,
    (bytes, seconds): (u64, u64),
) -> Result<()> {
    let field = Field {
        compared: &[System::Ext4, System::Btrfs("zstd"), System::Pagefold("zstd"), System::Pagefold("page")],
        beside: &[],
    };
    let is_tpcb = metric.name == TPCB.name;
    let cluster = match is_tpcb {
        true => bench.prepared().tpcb(bench, bytes)?,
        false => bench.prepared().oltp(bench, bytes)?,
    };
    let mut all = volumes(bench, section, &field, bench.scale().disk_bytes, &Options::default())?;
    for volume in &mut all {
        bench.progress(&format!("copying the database to {}", volume.label()));
        copy_cluster(&cluster, &volume.path().join("pg"))?;
        volume.sync()?;
    }
    let mut command = String::new();
    alternate(bench, profile, &mut all, |volume| {
        let settings = settings(bytes, volume.system());
        let server = bench.postgres()?.start(&volume.path().join("pg"), &settings, None)?;
        server.sql("postgres", "CHECKPOINT")?;
        volume.sync()?;
        let before = volume.disk().counters()?;
        let mut transactions = 0.0;
        for _ in 0..CHECKPOINTS {
            let (rate, shown) = load(&server, is_tpcb, (bytes, seconds))?;
            transactions += rate * seconds as f64;
            command = shown;
            server.sql("postgres", "CHECKPOINT")?;
        }
        volume.sync()?;
        let written = volume.disk().counters()?.since(before).written_bytes as f64;
        section.add(profile, metric, &volume.label(), written / transactions.max(1.0));
        server.stop()?;
        volume.sync()
    })?;
    section.command(command);
    Ok(())
}

/// Transactions per second, and the command as somebody would type it.
fn load(server: &Running, is_tpcb: bool, (bytes, seconds): (u64, u64)) -> Result<(f64, String)> {
    if is_tpcb {
        return Ok((server.pgbench(CLIENTS, seconds)?, shown(&server.pgbench_command(CLIENTS, seconds))));
    }
    let rows = oltp_rows(bytes);
    let command = shown(&server.sysbench_command(OLTP_TABLES, rows, CLIENTS, seconds, "run"));
    Ok((server.sysbench(OLTP_TABLES, rows, CLIENTS, seconds, "run")?, command))
}

fn judge(profile: Profile, section: &mut Section) {
    for (load, metric) in [("pgbench", TPCB), ("sysbench", OLTP)] {
        for ours in ["pagefold-zstd", "pagefold-page"] {
            for (theirs, text, bound) in [
                ("ext4", "a third of ext4's with full_page_writes=on", 1.0 / 3.0),
                ("btrfs-zstd", "a quarter of btrfs-zstd's", 0.25),
            ] {
                section.ratio_line(RatioLine {
                    id: &format!("write-bytes-{load}-{ours}-{theirs}"),
                    text: &format!("{load}, bytes written per transaction ({ours}): at most {text}"),
                    profile,
                    metric,
                    ours,
                    theirs,
                    target: AtMost(bound),
                });
            }
        }
    }
}
