//! Runs the scenarios. Each measures one or more lines of the project's promises in one run on one machine.

mod aged;
mod append;
mod connections;
mod copy;
mod memory;
mod mount_time;
mod oltp;
mod oltp_cached;
mod overwrite;
mod reads;
mod rivals;
mod rrd;
mod scan;
mod snapshots;
mod valley;
mod write_bytes;

use std::path::Path;
use std::time::Instant;

use anyhow::Result;

use crate::bench::Bench;
use crate::machine;
use crate::results::{Profile, Section};
use crate::systems::{Options, System, Volume};
use crate::tools::postgres::copy_cluster;

/// A scenario of the bench.
pub(crate) struct Scenario {
    /// Its name on the command line.
    pub(crate) name: &'static str,
    /// Short description of its measurement.
    pub(crate) about: &'static str,
    /// Profiles that it runs under unless one is asked for.
    pub(crate) profiles: &'static [Profile],
    run: fn(&Bench, Profile, &mut Section) -> Result<()>,
}

const FREE: &[Profile] = &[Profile::Free];
const THROTTLED: &[Profile] = &[Profile::Throttled];
const BOTH: &[Profile] = &[Profile::Free, Profile::Throttled];

/// All scenarios, in the order in which they run.
pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "randread-cached",
        about: "8 KiB random O_DIRECT reads from the record cache, beside the null server",
        profiles: FREE,
        run: reads::cached,
    },
    Scenario {
        name: "randread-miss",
        about: "8 KiB random O_DIRECT reads that miss the cache, depth 1 and 4 jobs x 16",
        profiles: BOTH,
        run: reads::miss,
    },
    Scenario {
        name: "randread-compressed-fit",
        about: "8 KiB random reads of a working set that fits the cache only because it is compressed",
        profiles: THROTTLED,
        run: reads::compressed_fit,
    },
    Scenario {
        name: "scan",
        about: "five PostgreSQL tables scanned cold by five connections",
        profiles: BOTH,
        run: scan::run,
    },
    Scenario {
        name: "overwrite-sync",
        about: "8 KiB overwrites with fdatasync, 1 and 16 writers; bytes and flushes per operation",
        profiles: BOTH,
        run: overwrite::run,
    },
    Scenario {
        name: "append-sync",
        about: "4 KiB appended with fdatasync, 1 and 6 writers",
        profiles: BOTH,
        run: append::run,
    },
    Scenario {
        name: "aged",
        about: "random overwrites of a device that is 50 to 95 % full, ten times its size, beside an ideal cleaner",
        profiles: FREE,
        run: aged::run,
    },
    Scenario { name: "copy", about: "COPY into PostgreSQL", profiles: BOTH, run: copy::run },
    Scenario {
        name: "pgbench-tpcb",
        about: "pgbench TPC-B, database four times the memory",
        profiles: THROTTLED,
        run: oltp::tpcb,
    },
    Scenario {
        name: "sysbench-oltp",
        about: "sysbench oltp_read_write on PostgreSQL, database four times the memory",
        profiles: THROTTLED,
        run: oltp::read_write,
    },
    Scenario {
        name: "oltp-cached",
        about: "sysbench oltp_read_write on PostgreSQL and MariaDB, everything in memory, also beside compilers",
        profiles: BOTH,
        run: oltp_cached::run,
    },
    Scenario {
        name: "connections",
        about: "sysbench oltp_read_write on PostgreSQL, 8 to 64 connections and three fill factors, database four times the memory",
        profiles: THROTTLED,
        run: connections::run,
    },
    Scenario {
        name: "valley-innodb",
        about: "sysbench on MariaDB, a fixed memory divided between the buffer pool and the file system's cache",
        profiles: THROTTLED,
        run: valley::innodb,
    },
    Scenario {
        name: "valley-postgres",
        about: "sysbench on PostgreSQL, a fixed memory divided between shared buffers and the file system's cache",
        profiles: THROTTLED,
        run: valley::postgres,
    },
    Scenario {
        name: "rivals",
        about: "MariaDB's own compressions and MyRocks on ext4 beside plain InnoDB on Pagefold: space, speed, bytes written",
        profiles: THROTTLED,
        run: rivals::run,
    },
    Scenario {
        name: "memory",
        about: "the server's memory under a sparse 1 TB file with 10 million pages",
        profiles: FREE,
        run: memory::run,
    },
    Scenario {
        name: "write-bytes",
        about: "bytes to the device per transaction and per rewritten page of pgbench, sysbench and TPC-C, checkpoints included",
        profiles: FREE,
        run: write_bytes::run,
    },
    Scenario { name: "rrd", about: "RRD files as collectd writes them", profiles: FREE, run: rrd::run },
    Scenario {
        name: "snapshots",
        about: "snapshots and clones of a dataset with 10 million pages under load; reads and writes with 1,000 of them",
        profiles: FREE,
        run: snapshots::run,
    },
    Scenario {
        name: "mount-time",
        about: "mount after a clean export, and after a kill with 1 GiB of log",
        profiles: FREE,
        run: mount_time::run,
    },
];

impl Scenario {
    /// Runs it under its profiles, or under the one asked for. Returns the results, also if it fails half-way.
    pub(crate) fn execute(&self, bench: &Bench, asked: Option<Profile>) -> Section {
        let setting = machine::setting(bench.dir());
        let mut section = Section { setting, quick: bench.scale().quick, ..Section::default() };
        let started = Instant::now();
        let asked = asked.as_slice();
        for &profile in if asked.is_empty() { self.profiles } else { asked } {
            bench.progress(&format!("{} ({})", self.name, profile.name()));
            let measured = bench.verify(profile).and_then(|()| (self.run)(bench, profile, &mut section));
            if let Err(error) = measured {
                section.failure = Some(format!("{error:#}"));
                let log = bench.server_log();
                if !log.is_empty() {
                    bench.progress(&format!("the last lines of the newest log of a pagefold server:\n{log}"));
                }
                break;
            }
        }
        // The bench's folder differs from machine to machine, so the report names it DIR.
        let dir = bench.dir().to_string_lossy();
        for text in section.commands.iter_mut().chain(section.failure.as_mut()) {
            *text = text.replace(&*dir, "DIR");
        }
        section.took_seconds = started.elapsed().as_secs_f64();
        section
    }
}

/// Systems of a scenario: those that its lines compare, and those that a full run shows beside them.
struct Field<'a> {
    compared: &'a [System],
    beside: &'a [System],
}

/// Makes a volume of each system. A system of `beside` that cannot be made is left out, with a note.
fn volumes(
    bench: &Bench,
    section: &mut Section,
    field: &Field,
    bytes: u64,
    options: &Options,
) -> Result<Vec<Volume>> {
    let mut made = Vec::new();
    for &system in field.compared.iter().filter(|&&s| !bench.left_out(s)) {
        made.push(Volume::create(bench, system, bytes, options)?);
    }
    let beside = if bench.scale().quick { &[] } else { field.beside };
    for &system in beside.iter().filter(|&&s| !bench.left_out(s)) {
        match Volume::create(bench, system, bytes, options) {
            Ok(volume) => made.push(volume),
            Err(error) => section.note(format!("{} is left out: {error:#}", system.label())),
        }
    }
    Ok(made)
}

/// Systems that are compared under loads on whole tables, with the compressions that matter for these.
const TABLES_ON: &[System] = &[
    System::Ext4,
    System::Btrfs("lzo"),
    System::Btrfs("zstd"),
    System::Pagefold("lz4"),
    System::Pagefold("zstd"),
    System::Pagefold("page"),
    System::Pagefold("auto"),
];

/// Makes volumes of [`TABLES_ON`] and of the systems `beside`, each with a copy of PostgreSQL's `cluster` in `pg`.
fn volumes_with(
    bench: &Bench,
    section: &mut Section,
    cluster: &Path,
    beside: &[System],
) -> Result<Vec<Volume>> {
    let field = Field { compared: TABLES_ON, beside };
    let mut all = volumes(bench, section, &field, bench.scale().disk_bytes, &Options::default())?;
    for volume in &mut all {
        bench.progress(&format!("copying the cluster to {}", volume.label()));
        copy_cluster(cluster, &volume.path().join("pg"))?;
        volume.sync()?;
    }
    Ok(all)
}

/// Measures all volumes in turn, once per repetition of the run.
fn alternate(
    bench: &Bench,
    profile: Profile,
    volumes: &mut [Volume],
    mut measure: impl FnMut(&mut Volume) -> Result<()>,
) -> Result<()> {
    in_turn(bench.scale().repetitions, volumes, |volume| {
        let throttled = bench.profile(profile, volume)?;
        let measured = measure(volume);
        drop(throttled);
        measured
    })
}

/// Measures each of `all` once per round. Every other round goes backwards, so that a machine that slows down or speeds
/// up favours nobody.
fn in_turn<T>(rounds: usize, all: &mut [T], mut measure: impl FnMut(&mut T) -> Result<()>) -> Result<()> {
    for round in 0..rounds {
        if round.is_multiple_of(2) {
            all.iter_mut().try_for_each(&mut measure)?;
        } else {
            all.iter_mut().rev().try_for_each(&mut measure)?;
        }
    }
    Ok(())
}
