//! Measures sysbench oltp_read_write on PostgreSQL with 8 to 64 connections, and with three fill factors, with a database
//! four times the memory.

use std::path::Path;

use anyhow::Result;

use super::in_turn;
use crate::bench::Bench;
use crate::data::{OLTP_TABLES, oltp_load, oltp_rows};
use crate::host::exec::shown;
use crate::host::memory::Limit;
use crate::results::Target::AtLeast;
use crate::results::{Curve, Metric, Profile, RatioLine, Section};
use crate::systems::{Options, System, Volume, drop_caches};
use crate::tools::postgres::{Settings, copy_cluster, describe};

/// Memory as a multiple of that of the other scenarios: 64 backends of PostgreSQL take some 300 MiB.
const MEMORIES: u64 = 2;
/// Size of the database as a multiple of the memory.
const TIMES: u64 = 4;
/// Length of a measurement as a divisor of those of the other scenarios.
const SHORTER: u64 = 2;
/// Time to warm up as a multiple of a measurement. Within a measurement, at 3,000 reads/s, no system fills its caches: all
/// would be as fast as one that has none. So it warms up without the throttle.
const WARM: u64 = 3;

const fn rate(name: &'static str) -> Metric {
    Metric { name, unit: "transactions/s" }
}

/// Numbers of connections.
const CONNECTIONS: [(u32, Metric); 4] = [
    (8, rate("sysbench oltp_read_write, 8 connections")),
    (16, rate("sysbench oltp_read_write, 16 connections")),
    (32, rate("sysbench oltp_read_write, 32 connections")),
    (64, rate("sysbench oltp_read_write, 64 connections")),
];
const MOST: Metric = CONNECTIONS[3].1;

/// A system with PostgreSQL's settings on it.
#[derive(Clone, Copy)]
struct Setup {
    label: &'static str,
    system: System,
    full_page_writes: bool,
    fillfactor: u32,
    /// False if it is measured with 64 connections alone.
    curve: bool,
}

/// Fill factors of the setups, the one with the largest cluster first.
const FILLFACTORS: [u32; 3] = [50, 75, 100];
/// Room on a device beside the database: PostgreSQL's log, and what updates leave.
const ROOM_BYTES: u64 = 3 << 30;

const OURS: &str = "pagefold";
const SETUPS: [Setup; 7] = [
    Setup { label: "ext4", system: System::Ext4, full_page_writes: true, fillfactor: 100, curve: true },
    Setup { label: "XFS", system: System::Xfs, full_page_writes: true, fillfactor: 100, curve: true },
    Setup {
        label: "btrfs-zstd",
        system: System::Btrfs("zstd"),
        full_page_writes: true,
        fillfactor: 100,
        curve: true,
    },
    Setup {
        label: "pagefold, full_page_writes",
        system: System::Pagefold("auto"),
        full_page_writes: true,
        fillfactor: 100,
        curve: true,
    },
    Setup {
        label: OURS,
        system: System::Pagefold("auto"),
        full_page_writes: false,
        fillfactor: 100,
        curve: true,
    },
    Setup {
        label: "pagefold, fillfactor 75",
        system: System::Pagefold("auto"),
        full_page_writes: false,
        fillfactor: 75,
        curve: false,
    },
    Setup {
        label: "pagefold, fillfactor 50",
        system: System::Pagefold("auto"),
        full_page_writes: false,
        fillfactor: 50,
        curve: false,
    },
];

/// A setup with a volume of its own.
struct Contender {
    setup: Setup,
    volume: Volume,
}

/// Measures all setups.
pub(super) fn run(bench: &Bench, profile: Profile, section: &mut Section) -> Result<()> {
    let memory = bench.scale().oltp_memory_bytes * MEMORIES;
    let bytes = memory * TIMES;
    // The limit comes after loading, which is not measured.
    let limit = Limit::new("connections", bytes)?;
    // Nobody sets the size of Pagefold's caches, so they follow the memory that is free.
    let options = Options { memory: None, limit: Some(&limit) };
    let mut contenders = contenders(bench, bytes, &options)?;
    limit.set(memory)?;
    in_turn(bench.scale().repetitions, &mut contenders, |one| {
        let points = if one.setup.curve { &CONNECTIONS[..] } else { &CONNECTIONS[3..] };
        measure(bench, profile, section, one, &limit, bytes, points)
    })?;
    drop(contenders);
    let settings = settings(memory, &SETUPS[0]);
    let seconds = bench.scale().oltp_seconds / SHORTER;
    section.note(format!(
        "{OLTP_TABLES} tables of {} rows, {seconds} s each, uniform. Memory limit of the database server and Pagefold's server together: {} MiB; Pagefold's \
         caches follow the memory that is free (cache=auto). Each server starts cold, warms up for {} s with 64 connections and no throttle, makes a checkpoint, and is \
         measured with 8 to 64 connections. Settings: {}; full_page_writes=off where the name says pagefold alone.",
        oltp_rows(bytes),
        memory >> 20,
        seconds * WARM,
        describe(&settings)
    ));
    section.curve(Curve {
        title: "sysbench oltp_read_write (transactions/s)".to_owned(),
        changed: "connections".to_owned(),
        profile,
        points: CONNECTIONS.iter().map(|(n, metric)| (f64::from(*n), metric.name.to_owned())).collect(),
    });
    judge(profile, section);
    Ok(())
}

fn settings(memory: u64, setup: &Setup) -> Settings {
    Settings { full_page_writes: setup.full_page_writes, shared_buffers_mib: memory >> 23, max_wal_mib: 1024 }
}

/// Makes all volumes, in the order of the setups. A prepared cluster goes when it has been copied: the disc below need not
/// have room for all three.
fn contenders(bench: &Bench, bytes: u64, options: &Options) -> Result<Vec<Contender>> {
    let mut all = Vec::new();
    for fillfactor in FILLFACTORS {
        let alike = SETUPS.iter().enumerate().filter(|(_, setup)| setup.fillfactor == fillfactor);
        let alike: Vec<_> = alike.filter(|(_, setup)| !bench.left_out(setup.system)).collect();
        if alike.is_empty() {
            continue;
        }
        let cluster = bench.prepared().oltp_filled(bench, bytes, fillfactor)?;
        for (at, &setup) in alike {
            all.push((at, Contender { setup, volume: volume(bench, &setup, &cluster, bytes, options)? }));
        }
        bench.prepared().discard(&cluster)?;
    }
    all.sort_by_key(|(at, _)| *at);
    Ok(all.into_iter().map(|(_, contender)| contender).collect())
}

/// Makes a setup's volume with a copy of the cluster. It is unmounted, since a server that is not being measured would
/// hold memory of the cgroup.
fn volume(bench: &Bench, setup: &Setup, cluster: &Path, bytes: u64, options: &Options) -> Result<Volume> {
    bench.progress(&format!("copying the database to {}", setup.label));
    // As large for pages that are half filled: Pagefold stores no more of them.
    let mut volume = Volume::create(bench, setup.system, bytes + ROOM_BYTES, options)?;
    copy_cluster(cluster, &volume.path().join("pg"))?;
    volume.sync()?;
    volume.unmount()?;
    Ok(volume)
}

/// Measures a setup with each number of connections, after a cold start and a time to warm up.
fn measure(
    bench: &Bench,
    profile: Profile,
    section: &mut Section,
    one: &mut Contender,
    limit: &Limit,
    bytes: u64,
    points: &[(u32, Metric)],
) -> Result<()> {
    bench.progress(&format!("{}: warming up", one.setup.label));
    drop_caches()?;
    one.volume.mount()?;
    let settings = settings(bytes / TIMES, &one.setup);
    let server = bench.postgres()?.start(&one.volume.path().join("pg"), &settings, Some(limit))?;
    let connection = server.connection();
    let seconds = bench.scale().oltp_seconds / SHORTER;
    let most = points.iter().map(|(threads, _)| *threads).max().unwrap_or(1);
    oltp_load(oltp_rows(bytes), most, seconds * WARM).run(&connection)?;
    server.sql("postgres", "CHECKPOINT")?;
    let throttled = bench.profile(profile, &one.volume)?;
    for (threads, metric) in points {
        let load = oltp_load(oltp_rows(bytes), *threads, seconds);
        section.add(profile, *metric, one.setup.label, load.run(&connection)?);
        section.command(shown(&load.command(&connection, "run")));
    }
    server.stop()?;
    drop(throttled);
    one.volume.unmount()
}

fn judge(profile: Profile, section: &mut Section) {
    let mut line = |id: &str, text: &str, ours: &str, theirs: &str, bound: f64| {
        let id = &format!("connections-{id}");
        section.ratio_line(RatioLine {
            id,
            text,
            profile,
            metric: MOST,
            ours,
            theirs,
            target: AtLeast(bound),
        });
    };
    for theirs in ["ext4", "XFS", "btrfs-zstd"] {
        let text = format!("64 connections, database four times the memory: 1.5 of {theirs}");
        line(theirs, &text, OURS, theirs, 1.5);
    }
    let text = "64 connections: fillfactor 50 at least as fast as 100";
    line("fillfactor-50", text, "pagefold, fillfactor 50", OURS, 1.0);
}
