//! Measures sysbench oltp_read_write where the machine's memory holds the whole database: on PostgreSQL and MariaDB, and beside
//! busy compilers.
//!
//! Nothing has to be read from the device, so what counts is the time of a commit, and of a page that leaves the database's own
//! cache or comes back from the file system's. There is no limit of memory; PostgreSQL's shared buffers have the size that they
//! have by default, so most of its pages are in the file system's care. With MariaDB's smallest pool, pages are read again and
//! again: what O_DIRECT reads from ext4's device, Pagefold has in its cache.

use std::time::Duration;

use anyhow::Result;

use super::in_turn;
use crate::bench::Bench;
use crate::data::{OLTP_TABLES, oltp_load, oltp_rows};
use crate::host::compilers::Compilers;
use crate::host::exec::shown;
use crate::results::Target::AtLeast;
use crate::results::{Metric, Profile, RatioLine, Section};
use crate::systems::{Options, System, Volume};
use crate::tools::database::{CacheSettings, Database};

const CLIENTS: u32 = 8;
const COMPILERS: usize = 2;
/// Time for background work between the load and the first measurement.
const REST: Duration = Duration::from_secs(60);
/// `shared_buffers` and `innodb_buffer_pool_size` by default, in MiB.
const DEFAULT_MIB: u64 = 128;
/// Size of a buffer pool that holds the whole database, as a multiple of it.
const ALL: u64 = 2;

/// CachedAmounts in bytes and times in seconds.
#[derive(Clone, Copy)]
struct CachedAmounts {
    database: u64,
    warm: u64,
    measured: u64,
}

impl CachedAmounts {
    fn of(bench: &Bench) -> Self {
        if bench.scale().quick {
            Self { database: 256 << 20, warm: 2, measured: 5 }
        } else {
            Self { database: 893 << 20, warm: 5, measured: 20 }
        }
    }
}

const SYSTEMS: [System; 3] = [System::Ext4, System::Pagefold("auto"), System::Pagefold("page")];

/// A database with a cache of some size, under a profile.
#[derive(Clone, Copy)]
struct Case {
    /// Beginning of the ids of its lines.
    id: &'static str,
    metric: Metric,
    database: Database,
    /// True if the database's own cache holds everything.
    holds_all: bool,
    beside_compilers: bool,
    profile: Profile,
    /// Least ratio to ext4.
    bound: f64,
}

const fn rate(name: &'static str) -> Metric {
    Metric { name, unit: "transactions/s" }
}

const POSTGRES: Case = Case {
    id: "cached-postgres",
    metric: rate("PostgreSQL, everything in memory"),
    database: Database::Postgres,
    holds_all: false,
    beside_compilers: false,
    profile: Profile::Free,
    bound: 0.9,
};
const INNODB: Case = Case {
    id: "cached-innodb",
    metric: rate("MariaDB, a buffer pool for all"),
    database: Database::Innodb,
    holds_all: true,
    ..POSTGRES
};

const CASES: [Case; 7] = [
    POSTGRES,
    Case {
        id: "cached-postgres-busy",
        metric: rate("PostgreSQL, everything in memory, beside two compilers"),
        beside_compilers: true,
        ..POSTGRES
    },
    INNODB,
    Case {
        id: "cached-innodb-busy",
        metric: rate("MariaDB, a buffer pool for all, beside two compilers"),
        beside_compilers: true,
        ..INNODB
    },
    Case { id: "cached-postgres-throttled", profile: Profile::Throttled, bound: 1.1, ..POSTGRES },
    Case { id: "cached-innodb-throttled", profile: Profile::Throttled, bound: 1.0, ..INNODB },
    Case {
        id: "cached-innodb-small",
        metric: rate("MariaDB, a buffer pool of 128 MiB"),
        holds_all: false,
        profile: Profile::Throttled,
        bound: 1.8,
        ..INNODB
    },
];

/// Measures all cases of a profile.
pub(super) fn run(bench: &Bench, profile: Profile, section: &mut Section) -> Result<()> {
    let amounts = CachedAmounts::of(bench);
    let mut volumes = Vec::new();
    for system in SYSTEMS.into_iter().filter(|&s| !bench.left_out(s)) {
        bench.progress(&format!("loading two databases on {}", system.label()));
        let bytes = bench.scale().disk_bytes + 2 * amounts.database;
        let mut volume = Volume::create(bench, system, bytes, &Options::default())?;
        for database in [Database::Postgres, Database::Innodb] {
            database.fill(bench, &volume, amounts.database, None)?;
        }
        volume.sync()?;
        volumes.push(volume);
    }
    std::thread::sleep(REST);
    for case in CASES.into_iter().filter(|case| case.profile == profile) {
        in_turn(bench.scale().repetitions, &mut volumes, |volume| {
            bench.progress(&format!("{}, {}", volume.label(), case.metric.name));
            let rate = once(bench, section, volume, case, amounts)?;
            section.add(profile, case.metric, &volume.label(), rate);
            Ok(())
        })?;
    }
    drop(volumes);
    section.note(format!(
        "{OLTP_TABLES} tables of {} rows in each database, {CLIENTS} threads, uniform, {} s after {} s to warm up, all rows read before. No limit of \
         memory. PostgreSQL: {}. MariaDB: {}, or with a buffer pool that holds all. Pagefold: the same with full_page_writes=off and doublewrite off. \
         Compilers: {COMPILERS} endless runs of cc -O2 on two processors.",
        oltp_rows(amounts.database),
        amounts.measured,
        amounts.warm,
        Database::Postgres.described(System::Ext4, cache(&POSTGRES, amounts)),
        Database::Innodb.described(System::Ext4, CacheSettings { mib: DEFAULT_MIB, ..cache(&INNODB, amounts) }),
    ));
    judge(profile, section);
    Ok(())
}

fn cache(case: &Case, amounts: CachedAmounts) -> CacheSettings {
    let mib = if case.holds_all { (amounts.database >> 20) * ALL } else { DEFAULT_MIB };
    CacheSettings { mib, flush_method: "O_DIRECT" }
}

/// Makes one measurement on a server of its own.
fn once(
    bench: &Bench,
    section: &mut Section,
    volume: &mut Volume,
    case: Case,
    amounts: CachedAmounts,
) -> Result<f64> {
    let server = case.database.start(bench, volume, cache(&case, amounts), None)?;
    server.settle()?;
    let compilers = case.beside_compilers.then(|| Compilers::start(bench.dir(), COMPILERS));
    let mut compilers = compilers.transpose()?;
    let throttled = bench.profile(case.profile, volume)?;
    let connection = server.connection();
    let load = |seconds| oltp_load(oltp_rows(amounts.database), CLIENTS, seconds);
    load(amounts.warm).run(&connection)?;
    let rate = load(amounts.measured).run(&connection)?;
    section.command(shown(&load(amounts.measured).command(&connection, "run")));
    drop(throttled);
    compilers.as_mut().map_or(Ok(()), Compilers::ensure_running)?;
    drop(compilers);
    server.stop()?;
    volume.sync()?;
    Ok(rate)
}

fn judge(profile: Profile, section: &mut Section) {
    for case in CASES.into_iter().filter(|case| case.profile == profile) {
        for (settings, ours) in [("default settings", "pagefold-auto"), ("page", "pagefold-page")] {
            let codec = ours.trim_start_matches("pagefold-");
            section.ratio_line(RatioLine {
                id: &format!("{}-{codec}", case.id),
                text: &format!("sysbench, {}, {settings}: {} of ext4", case.metric.name, case.bound),
                profile,
                metric: case.metric,
                ours,
                theirs: "ext4",
                target: AtLeast(case.bound),
            });
        }
    }
}
