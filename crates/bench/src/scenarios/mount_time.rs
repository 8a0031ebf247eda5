//! Measures the time of a mount after a clean export, and after the server was killed with a long log.

use anyhow::Result;

use crate::bench::Bench;
use crate::host::exec::check_interrupted;
use crate::results::Target::AtMost;
use crate::results::{Line, Metric, Profile, Section, figure};
use crate::systems::{Options, System, Volume, drop_caches};

const CLEAN: Metric = Metric { name: "mount after a clean export", unit: "s" };
const KILLED: Metric = Metric { name: "mount after a kill", unit: "s" };
const LOG: Metric = Metric { name: "written to the device before the kill", unit: "MiB" };
const REPLAYED: Metric = Metric { name: "log since the last checkpoint at the kill", unit: "MiB" };
/// Bytes of data in the pool while mounts are timed.
const DATA_BYTES: u64 = 512 << 20;
/// Size of each file of the load, in bytes.
const STEP_BYTES: u64 = 64 << 20;

/// Measures mounts after exports, then mounts after kills.
pub(super) fn run(bench: &Bench, profile: Profile, section: &mut Section) -> Result<()> {
    let log_bytes: u64 = if bench.scale().quick { 256 << 20 } else { 1 << 30 };
    let corpus = bench.prepared().corpus(bench)?;
    for system in [System::Ext4, System::Pagefold("lz4")] {
        if bench.left_out(system) {
            continue;
        }
        let mut volume = Volume::create(bench, system, bench.scale().disk_bytes, &Options::default())?;
        let _throttled = bench.profile(profile, &volume)?;
        corpus.fill(&volume.path().join("data"), DATA_BYTES, 1)?;
        volume.sync()?;
        for _ in 0..bench.scale().repetitions.max(3) {
            volume.export()?;
            drop_caches()?;
            let seconds = volume.mount()?;
            section.add(profile, CLEAN, &system.label(), seconds);
        }
        if system.is_ours() {
            for round in 0..bench.scale().repetitions {
                bench.progress(&format!("writing {} MiB of log", log_bytes >> 20));
                killed(bench, profile, section, &mut volume, (log_bytes, round as u64))?;
            }
        }
    }
    section.note(format!(
        "The pool holds {} MiB of PostgreSQL pages. A clean mount is `pagefold import` and `pagefold mount` together. Kernel caches are dropped before each mount. Before each kill, real pages \
         are written and synced until {} MiB have reached the device.",
        DATA_BYTES >> 20,
        log_bytes >> 20
    ));
    let ours = "pagefold-lz4";
    let rival = section.median(profile, CLEAN, "ext4").map_or_else(String::new, |s| format!("ext4 {s:.3} s"));
    let log = |metric| section.median(profile, metric, ours).map_or_else(|| "?".to_owned(), figure);
    let log = format!(
        "{} MiB written before the kill, {} MiB of it since the last checkpoint",
        log(LOG),
        log(REPLAYED)
    );
    for (id, text, metric, bound, detail) in [
        ("mount-clean", "mount after a clean export under 0.5 s", CLEAN, 0.5, rival),
        ("mount-killed", "mount after a kill with 1 GiB of log under 3 s", KILLED, 3.0, log),
    ] {
        section.lines.push(Line {
            id: id.to_owned(),
            text: text.to_owned(),
            profile,
            target: AtMost(bound),
            unit: "s".to_owned(),
            measured: section.median(profile, metric, ours),
            detail,
        });
    }
    Ok(())
}

fn killed(
    bench: &Bench,
    profile: Profile,
    section: &mut Section,
    volume: &mut Volume,
    (bytes, round): (u64, u64),
) -> Result<()> {
    let corpus = bench.prepared().corpus(bench)?;
    let before = volume.disk().counters()?;
    let mut written = 0;
    for n in 0.. {
        check_interrupted()?;
        if written >= bytes {
            break;
        }
        corpus.fill(&volume.path().join(format!("load-{}", n % 32)), STEP_BYTES, round * 1000 + n)?;
        written = volume.disk().counters()?.since(before).written_bytes;
    }
    if let Some(log_bytes) = volume.log_bytes()? {
        section.add(profile, REPLAYED, &volume.label(), log_bytes as f64 / f64::from(1 << 20));
    }
    volume.crash()?;
    drop_caches()?;
    let seconds = volume.mount()?;
    section.add(profile, KILLED, &volume.label(), seconds);
    section.add(profile, LOG, &volume.label(), written as f64 / f64::from(1 << 20));
    Ok(())
}
