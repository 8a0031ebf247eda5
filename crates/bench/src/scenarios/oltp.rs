//! Measures pgbench TPC-B and sysbench oltp_read_write on PostgreSQL, with a database four times the memory.
//!
//! One cgroup holds the database server and, where there is one, the file system's server: private memory, shared
//! buffers, Pagefold's caches and page cache together stay below the limit. Shared buffers are the same for all. ext4
//! spends the rest on page cache; Pagefold divides it between its cache and page cache.

use std::path::Path;

use anyhow::Result;

use super::{Field, alternate};
use crate::bench::Bench;
use crate::data::{OLTP_TABLES, oltp_load, oltp_rows, tpcb_scale};
use crate::host::exec::shown;
use crate::host::memory::Limit;
use crate::results::Target::AtLeast;
use crate::results::{Metric, Profile, RatioLine, Section};
use crate::systems::{Options, System, Volume, drop_caches};
use crate::tools::postgres::{Running, Settings, copy_cluster, describe};

const CLIENTS: u32 = 8;
/// Size of the database as a multiple of the memory.
const TIMES: u64 = 4;
/// Divisor of the memory for the budget of Pagefold's cache. The page cache, which gets the rest, holds pages that this
/// cache holds as well, and fewer of them per byte (docs/decisions/0016).
const CACHE_SHARE: u64 = 2;

const TPCB: Metric = Metric { name: "pgbench TPC-B", unit: "transactions/s" };
const READ_WRITE: Metric = Metric { name: "sysbench oltp_read_write", unit: "transactions/s" };
const WRITTEN: Metric = Metric { name: "bytes to the device per transaction", unit: "B" };

/// Measures TPC-B.
pub(super) fn tpcb(bench: &Bench, profile: Profile, section: &mut Section) -> Result<()> {
    let bytes = bench.scale().oltp_memory_bytes * TIMES;
    let cluster = bench.prepared().tpcb(bench, bytes)?;
    let seconds = bench.scale().oltp_seconds;
    let section_note = format!("pgbench scale {}, {CLIENTS} clients, {seconds} s.", tpcb_scale(bytes));
    section.note(section_note);
    compare(bench, profile, section, TPCB, &cluster, &|server| {
        Ok((server.pgbench(CLIENTS, seconds)?, shown(&server.pgbench_command(CLIENTS, seconds))))
    })
}

/// Measures oltp_read_write.
pub(super) fn read_write(bench: &Bench, profile: Profile, section: &mut Section) -> Result<()> {
    let bytes = bench.scale().oltp_memory_bytes * TIMES;
    let cluster = bench.prepared().oltp(bench, bytes)?;
    let (rows, seconds) = (oltp_rows(bytes), bench.scale().oltp_seconds);
    section.note(format!("{OLTP_TABLES} tables of {rows} rows, {CLIENTS} threads, {seconds} s, uniform."));
    compare(bench, profile, section, READ_WRITE, &cluster, &|server| {
        let (load, connection) = (oltp_load(rows, CLIENTS, seconds), server.connection());
        Ok((load.run(&connection)?, shown(&load.command(&connection, "run"))))
    })
}

fn settings(bench: &Bench, system: System) -> Settings {
    Settings {
        // Pagefold never tears a page, so PostgreSQL need not log whole pages.
        full_page_writes: !system.is_ours(),
        shared_buffers_mib: bench.scale().oltp_memory_bytes >> 23,
        max_wal_mib: 1024,
    }
}

/// Puts load on a server. Returns transactions per second, and the command as somebody would type it.
type Workload<'a> = &'a dyn Fn(&Running) -> Result<(f64, String)>;

fn compare(
    bench: &Bench,
    profile: Profile,
    section: &mut Section,
    metric: Metric,
    cluster: &Path,
    load: Workload,
) -> Result<()> {
    let memory = bench.scale().oltp_memory_bytes;
    // The limit comes after loading, which is not measured.
    let limit = Limit::new("oltp", memory * TIMES)?;
    let options = Options { memory: Some(memory / CACHE_SHARE), limit: Some(&limit) };
    let field = Field {
        compared: &[System::Ext4, System::Pagefold("lz4"), System::Pagefold("zstd")],
        beside: &[System::Btrfs("zstd")],
    };
    let mut all = super::volumes(bench, section, &field, bench.scale().disk_bytes, &options)?;
    for volume in &mut all {
        bench.progress(&format!("copying the database to {}", volume.label()));
        copy_cluster(cluster, &volume.path().join("pg"))?;
        volume.sync()?;
        // The volume is unmounted, since a server that is not being measured would hold memory of the cgroup.
        volume.unmount()?;
    }
    limit.set(memory)?;
    alternate(bench, profile, &mut all, |volume| {
        let Once { rate, written_bytes, command } = once(bench, volume, &limit, load)?;
        section.command(command);
        section.add(profile, metric, &volume.label(), rate);
        section.add(
            profile,
            WRITTEN,
            &volume.label(),
            written_bytes / (rate * bench.scale().oltp_seconds as f64),
        );
        Ok(())
    })?;
    drop(all);
    section.note(format!(
        "Memory limit of the database server and Pagefold's server together: {} MiB, of which Pagefold is given {} MiB. Each \
         measurement starts cold and after a checkpoint. Rivals: {}. Pagefold: the same with full_page_writes=off.",
        memory >> 20,
        (memory / CACHE_SHARE) >> 20,
        describe(&settings(bench, System::Ext4))
    ));
    for (id, ours) in [("lz4", "pagefold-lz4"), ("zstd", "pagefold-zstd")] {
        section.ratio_line(RatioLine {
            id: &format!("{}-{id}", metric.name.replace(' ', "-")),
            text: &format!("{}, {id}: ahead of ext4", metric.name),
            profile,
            metric,
            ours,
            theirs: "ext4",
            target: AtLeast(1.0),
        });
    }
    Ok(())
}

/// Results of one measurement.
struct Once {
    rate: f64,
    written_bytes: f64,
    command: String,
}

/// Makes one measurement after a cold start.
fn once(bench: &Bench, volume: &mut Volume, limit: &Limit, load: Workload) -> Result<Once> {
    drop_caches()?;
    volume.mount()?;
    let server =
        bench.postgres()?.start(&volume.path().join("pg"), &settings(bench, volume.system()), Some(limit))?;
    server.sql("postgres", "CHECKPOINT")?;
    let before = volume.disk().counters()?;
    let (rate, command) = load(&server)?;
    let written_bytes = volume.disk().counters()?.since(before).written_bytes as f64;
    server.stop()?;
    volume.unmount()?;
    Ok(Once { rate, written_bytes, command })
}
