//! Measures MariaDB's own ways to save space on ext4 beside plain InnoDB on Pagefold: size, speed, bytes written.
//!
//! Every kind is loaded where it will live, since a copy would lose the holes of PAGE_COMPRESSED and the levels of MyRocks.
//! One cgroup holds the database server and, where there is one, the file system's server, as in `oltp`.

use std::time::Duration;

use anyhow::Result;

use super::in_turn;
use crate::bench::Bench;
use crate::data::{OLTP_TABLES, oltp_load, oltp_rows};
use crate::host::exec::shown;
use crate::host::memory::Limit;
use crate::results::Target::{AtLeast, AtMost};
use crate::results::{Metric, Profile, RatioLine, Section};
use crate::systems::{Options, System, Volume, drop_caches};
use crate::tools::mariadb::{MariaDb, MariaSettings, Tables, init};

const CLIENTS: u32 = 8;
/// Memory as a multiple of that of the other scenarios: MariaDB takes some 140 MiB beside its buffer pool.
const MEMORIES: u64 = 2;
/// Size of the database as a multiple of the memory.
const TIMES: u64 = 2;
/// Divisor of the memory for InnoDB's buffer pool, or MyRocks' block cache.
const BUFFER_SHARE: u64 = 2;
/// Time for background work between the load and the first look at the size.
const REST: Duration = Duration::from_secs(60);
/// Length of the load that ages the tables, in seconds.
const AGING_SECONDS: u64 = 900;
const QUICK_AGING_SECONDS: u64 = 20;

const LOADED: Metric = Metric { name: "space taken a minute after the load", unit: "MB" };
const AGED: Metric = Metric { name: "space taken after the long load", unit: "MB" };
const FILL: Metric = Metric { name: "time to load", unit: "s" };
const RATE: Metric = Metric { name: "sysbench oltp_read_write", unit: "transactions/s" };
const LONG_RATE: Metric = Metric { name: "the same, over the long load", unit: "transactions/s" };
const WRITTEN: Metric = Metric { name: "bytes to the device per transaction, long load", unit: "B" };

/// A way to store the tables.
#[derive(Clone, Copy)]
struct Storage {
    label: &'static str,
    tables: Tables,
    system: System,
}

const OURS: &str = "InnoDB on Pagefold";
const PLAIN: &str = "InnoDB on ext4";
const ROW_COMPRESSED: &str = "ROW_FORMAT=COMPRESSED on ext4";
const PAGE_COMPRESSED: &str = "PAGE_COMPRESSED on ext4";
const MYROCKS: &str = "MyRocks on ext4";

const STORAGES: [Storage; 5] = [
    Storage { label: PLAIN, tables: Tables::Plain, system: System::Ext4 },
    Storage { label: ROW_COMPRESSED, tables: Tables::RowCompressed, system: System::Ext4 },
    Storage { label: PAGE_COMPRESSED, tables: Tables::PageCompressed, system: System::Ext4 },
    Storage { label: MYROCKS, tables: Tables::MyRocks, system: System::Ext4 },
    Storage { label: OURS, tables: Tables::Plain, system: System::Pagefold("auto") },
];

/// A kind on its volume, and the bytes that were in use there before the database.
struct Rival {
    storage: Storage,
    volume: Volume,
    empty_bytes: u64,
}

fn memory(bench: &Bench) -> u64 {
    bench.scale().oltp_memory_bytes * MEMORIES
}

fn settings(kind: &Storage, memory: u64) -> MariaSettings {
    MariaSettings {
        tables: kind.tables,
        buffer_mib: (memory / BUFFER_SHARE) >> 20,
        // Pagefold never tears a page.
        doublewrite: !kind.system.is_ours(),
        flush_method: "O_DIRECT",
    }
}

/// Loads every kind, measures its size and speed, ages it, and measures again.
pub(super) fn run(bench: &Bench, profile: Profile, section: &mut Section) -> Result<()> {
    let memory = memory(bench);
    let rows = oltp_rows(memory * TIMES);
    // The limit comes after loading. Nobody sets the size of Pagefold's caches, so they follow the memory that is free.
    let limit = Limit::new("rivals", memory * TIMES * 2)?;
    let options = Options { memory: None, limit: Some(&limit) };
    let mut rivals = Vec::new();
    for kind in STORAGES.into_iter().filter(|kind| !bench.left_out(kind.system)) {
        if let Err(error) = kind.tables.check() {
            section.note(format!("{} is left out: {error:#}", kind.label));
            continue;
        }
        let volume = Volume::create(bench, kind.system, memory * TIMES * 2, &options)?;
        rivals.push(load(
            bench,
            section,
            profile,
            Rival { storage: kind, volume, empty_bytes: 0 },
            &limit,
            rows,
        )?);
    }
    limit.set(memory)?;
    let seconds = bench.scale().oltp_seconds;
    in_turn(bench.scale().repetitions, &mut rivals, |rival| {
        let Measured { rate, command, .. } = measure(bench, profile, rival, &limit, rows, seconds)?;
        section.command(command);
        section.add(profile, RATE, rival.storage.label, rate);
        Ok(())
    })?;
    let aging = if bench.scale().quick { QUICK_AGING_SECONDS } else { AGING_SECONDS };
    for rival in &mut rivals {
        bench.progress(&format!("{} for {aging} s", rival.storage.label));
        let found = measure(bench, profile, rival, &limit, rows, aging)?;
        section.add(profile, LONG_RATE, rival.storage.label, found.rate);
        section.add(profile, WRITTEN, rival.storage.label, found.written_bytes / (found.rate * aging as f64));
        section.add(profile, AGED, rival.storage.label, found.used_bytes as f64 / 1e6);
    }
    drop(rivals);
    notes(section, memory, rows, aging);
    judge(profile, section);
    Ok(())
}

fn notes(section: &mut Section, memory: u64, rows: u64, aging: u64) {
    section.note(format!(
        "{OLTP_TABLES} tables of {rows} rows as sysbench makes them (a key, a number, texts of 119 and 59 random digits), filled by INSERT ... SELECT on the \
         system itself, the second index at the end; {CLIENTS} threads, uniform. Space: what df says is in use, less what it said of the empty file \
         system, logs and system tables included. Long load: {aging} s."
    ));
    section.note(format!(
        "Memory limit of the database server and Pagefold's server together: {} MiB; InnoDB's buffer pool or MyRocks' block cache {} MiB; Pagefold's \
         caches follow the memory that is free (cache=auto). Each measurement starts cold. Rivals: {}. MyRocks: {}. Pagefold: doublewrite off, compression=auto.",
        memory >> 20,
        (memory / BUFFER_SHARE) >> 20,
        described(&STORAGES[0], memory),
        described(&STORAGES[3], memory),
    ));
}

fn described(kind: &Storage, memory: u64) -> String {
    settings(kind, memory).options().join(" ")
}

/// Fills the tables, waits for background work, and measures the space.
fn load(
    bench: &Bench,
    section: &mut Section,
    profile: Profile,
    mut rival: Rival,
    limit: &Limit,
    rows: u64,
) -> Result<Rival> {
    let Storage { label, tables, .. } = rival.storage;
    bench.progress(&format!("loading {label}"));
    rival.empty_bytes = rival.volume.used_bytes()?;
    let data = rival.volume.path().join("my");
    init(&data)?;
    let settings = settings(&rival.storage, memory(bench));
    let server = MariaDb::start(bench, &data, &settings, Some(limit))?;
    let started = std::time::Instant::now();
    server.fill(tables, OLTP_TABLES, rows)?;
    section.add(profile, FILL, label, started.elapsed().as_secs_f64());
    std::thread::sleep(REST);
    server.stop()?;
    rival.volume.sync()?;
    let used = rival.volume.used_bytes()?.saturating_sub(rival.empty_bytes);
    section.add(profile, LOADED, label, used as f64 / 1e6);
    rival.volume.unmount()?;
    Ok(rival)
}

struct Measured {
    rate: f64,
    written_bytes: f64,
    used_bytes: u64,
    command: String,
}

/// Puts load on a kind for so many seconds after a cold start.
fn measure(
    bench: &Bench,
    profile: Profile,
    rival: &mut Rival,
    limit: &Limit,
    rows: u64,
    seconds: u64,
) -> Result<Measured> {
    drop_caches()?;
    rival.volume.mount()?;
    let throttled = bench.profile(profile, &rival.volume)?;
    let settings = settings(&rival.storage, memory(bench));
    let server = MariaDb::start(bench, &rival.volume.path().join("my"), &settings, Some(limit))?;
    let (load, connection) = (oltp_load(rows, CLIENTS, seconds), server.connection());
    let before = rival.volume.disk().counters()?;
    let rate = load.run(&connection)?;
    // Pages that are dirty at the end belong to the load, so their writes are counted.
    server.stop()?;
    rival.volume.sync()?;
    let written_bytes = rival.volume.disk().counters()?.since(before).written_bytes as f64;
    let used_bytes = rival.volume.used_bytes()?.saturating_sub(rival.empty_bytes);
    drop(throttled);
    rival.volume.unmount()?;
    Ok(Measured { rate, written_bytes, used_bytes, command: shown(&load.command(&connection, "run")) })
}

fn judge(profile: Profile, section: &mut Section) {
    for (id, theirs) in
        [("plain", PLAIN), ("row", ROW_COMPRESSED), ("page", PAGE_COMPRESSED), ("myrocks", MYROCKS)]
    {
        for (when, metric) in [("loaded", LOADED), ("aged", AGED)] {
            section.ratio_line(RatioLine {
                id: &format!("rivals-{when}-{id}"),
                text: &format!("plain InnoDB on Pagefold takes less space than {theirs}, {when}"),
                profile,
                metric,
                ours: OURS,
                theirs,
                target: AtMost(1.0),
            });
        }
        for (when, metric) in [("", RATE), (", long load", LONG_RATE)] {
            if theirs == PLAIN {
                continue;
            }
            section.ratio_line(RatioLine {
                id: &format!("rivals-rate-{id}{}", if when.is_empty() { "" } else { "-long" }),
                text: &format!("and does more transactions than {theirs}{when}"),
                profile,
                metric,
                ours: OURS,
                theirs,
                target: AtLeast(1.0),
            });
        }
    }
}
