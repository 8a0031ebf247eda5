//! Measures a database with a fixed memory, of which its own cache gets a part that grows from point to point, and the
//! file system's cache the rest.
//!
//! A page that both hold takes room twice, so rates may fall where each has half, the valley of a report from 2007 about
//! MySQL on ZFS (1.5 GB for all, a database of 3.2 GB, 85 % reads, 6 clients). Here a cgroup bounds the sum.

use anyhow::Result;

use super::in_turn;
use crate::bench::Bench;
use crate::data::{OLTP_TABLES, oltp_load, oltp_rows};
use crate::host::exec::shown;
use crate::host::memory::Limit;
use crate::results::Target::AtLeast;
use crate::results::{Curve, Metric, Profile, RatioLine, Section};
use crate::systems::{Options, System, Volume, drop_caches};
use crate::tools::database::{CacheSettings, Database};
use crate::tools::sysbench::Oltp;

const CLIENTS: u32 = 6;
/// With 19 reads of single rows, 23 of the 27 statements of a transaction read.
const POINT_READS: u32 = 19;
const fn rate(name: &'static str) -> Metric {
    Metric { name, unit: "transactions/s" }
}

/// Shares of the memory, in per cent, that the database's cache has.
const SHARES: [(u64, Metric); 6] = [
    (7, rate("database's cache 7 % of the memory")),
    (16, rate("database's cache 16 % of the memory")),
    (33, rate("database's cache 33 % of the memory")),
    (50, rate("database's cache 50 % of the memory")),
    (65, rate("database's cache 65 % of the memory")),
    (78, rate("database's cache 78 % of the memory")),
];

/// Amounts in bytes and times in seconds.
#[derive(Clone, Copy)]
struct Amounts {
    memory: u64,
    database: u64,
    warm: u64,
    measured: u64,
}

impl Amounts {
    fn of(bench: &Bench) -> Self {
        if bench.scale().quick {
            // With less, MariaDB and a file system's server do not fit beside a cache of 78 % of the memory.
            Self { memory: 1 << 30, database: 2 << 30, warm: 5, measured: 5 }
        } else {
            Self { memory: 1536 << 20, database: 3277 << 20, warm: 45, measured: 30 }
        }
    }

    /// Returns the size of the database's cache at a share of the memory, in MiB.
    fn cache_mib(&self, share: u64) -> u64 {
        (self.memory >> 20) * share / 100
    }

    fn load(&self, seconds: u64) -> Oltp {
        Oltp { point_reads: Some(POINT_READS), ..oltp_load(oltp_rows(self.database), CLIENTS, seconds) }
    }
}

const OURS: &str = "pagefold";

/// A way to run the database, on one of the volumes.
#[derive(Clone, Copy)]
struct Side {
    label: &'static str,
    /// Index of its volume in [`SYSTEMS`].
    volume: usize,
    /// `innodb_flush_method`; PostgreSQL has no such choice.
    flush_method: &'static str,
}

const SYSTEMS: [System; 2] = [System::Ext4, System::Pagefold("auto")];
const INNODB: [Side; 3] = [
    Side { label: "ext4, O_DIRECT", volume: 0, flush_method: "O_DIRECT" },
    Side { label: "ext4, buffered", volume: 0, flush_method: "fsync" },
    Side { label: OURS, volume: 1, flush_method: "O_DIRECT" },
];
const POSTGRES: [Side; 2] =
    [Side { label: "ext4", volume: 0, flush_method: "" }, Side { label: OURS, volume: 1, flush_method: "" }];

/// A cache for the note that tells a server's other options.
const FOR_THE_NOTE: CacheSettings = CacheSettings { mib: 512, flush_method: "O_DIRECT" };

/// Measures MariaDB.
pub(super) fn innodb(bench: &Bench, profile: Profile, section: &mut Section) -> Result<()> {
    section.note(format!(
        "Settings beside the buffer pool and the flush method: {}; on Pagefold without doublewrite.",
        Database::Innodb.described(System::Ext4, FOR_THE_NOTE)
    ));
    run(bench, profile, section, Database::Innodb, &INNODB)
}

/// Measures PostgreSQL.
pub(super) fn postgres(bench: &Bench, profile: Profile, section: &mut Section) -> Result<()> {
    section.note(format!(
        "Settings beside shared_buffers: {}; on Pagefold full_page_writes=off.",
        Database::Postgres.described(System::Ext4, FOR_THE_NOTE)
    ));
    run(bench, profile, section, Database::Postgres, &POSTGRES)
}

fn run(
    bench: &Bench,
    profile: Profile,
    section: &mut Section,
    database: Database,
    sides: &[Side],
) -> Result<()> {
    let amounts = Amounts::of(bench);
    // The limit comes after loading, which is not measured.
    let limit = Limit::new("valley", amounts.memory * 4)?;
    // Pagefold's caches take what the database leaves, as nobody has set their size.
    let options = Options { memory: None, limit: Some(&limit) };
    let mut volumes = Vec::new();
    for system in SYSTEMS {
        bench.progress(&format!("loading the database on {}", system.label()));
        let mut volume = Volume::create(bench, system, amounts.database + (3 << 30), &options)?;
        database.fill(bench, &volume, amounts.database, Some(&limit))?;
        volume.sync()?;
        volume.unmount()?;
        volumes.push(volume);
    }
    limit.set(amounts.memory)?;
    let mut measurements: Vec<(Side, u64, Metric)> = SHARES
        .iter()
        .flat_map(|&(share, metric)| sides.iter().map(move |&side| (side, share, metric)))
        .collect();
    in_turn(bench.scale().repetitions, &mut measurements, |&mut (side, share, metric)| {
        let Some(volume) = volumes.get_mut(side.volume) else { return Ok(()) };
        let rate = once(bench, profile, section, volume, &limit, (database, side, share, amounts))?;
        section.add(profile, metric, side.label, rate);
        Ok(())
    })?;
    drop(volumes);
    section.note(format!(
        "{OLTP_TABLES} tables of {} rows, {CLIENTS} clients, 23 of 27 statements read, uniform. Memory limit of all servers and the page cache together: {} MiB. \
         Nobody sets the size of Pagefold's caches, so they follow the memory that is free (cache=auto). Each \
         measurement starts cold, warms up for {} s and is measured for {} s.",
        oltp_rows(amounts.database),
        amounts.memory >> 20,
        amounts.warm,
        amounts.measured,
    ));
    section.curve(Curve {
        title: "sysbench, 85 % reads (transactions/s)".to_owned(),
        changed: "database's cache, % of the memory".to_owned(),
        profile,
        points: SHARES.iter().map(|(share, metric)| (*share as f64, metric.name.to_owned())).collect(),
    });
    judge(profile, section, database, sides);
    Ok(())
}

/// Makes one measurement after a cold start and a time to warm up.
fn once(
    bench: &Bench,
    profile: Profile,
    section: &mut Section,
    volume: &mut Volume,
    limit: &Limit,
    (database, side, share, amounts): (Database, Side, u64, Amounts),
) -> Result<f64> {
    let mib = amounts.cache_mib(share);
    bench.progress(&format!("{}, {share} % of the memory for the database", side.label));
    drop_caches()?;
    volume.mount()?;
    let throttled = bench.profile(profile, volume)?;
    let cache = CacheSettings { mib, flush_method: side.flush_method };
    let server = database.start(bench, volume, cache, Some(limit))?;
    let connection = server.connection();
    amounts.load(amounts.warm).run(&connection)?;
    let load = amounts.load(amounts.measured);
    let rate = load.run(&connection)?;
    section.command(shown(&load.command(&connection, "run")));
    server.stop()?;
    drop(throttled);
    volume.unmount()?;
    Ok(rate)
}

/// Holds Pagefold against the best of the others at each point.
fn judge(profile: Profile, section: &mut Section, database: Database, sides: &[Side]) {
    for (share, metric) in SHARES {
        let rate = |side: &Side| section.median(profile, metric, side.label).unwrap_or(0.0);
        let others = sides.iter().filter(|side| side.label != OURS);
        let Some(best) = others.max_by(|a, b| rate(a).total_cmp(&rate(b))) else { continue };
        section.ratio_line(RatioLine {
            id: &format!("valley-{}-{share}", database.name()),
            text: &format!("{}: at least the better of the others", metric.name),
            profile,
            metric,
            ours: OURS,
            theirs: best.label,
            target: AtLeast(1.0),
        });
    }
}
