//! Measures the bytes that reach the device per flush of an RRD file.

use anyhow::Result;

use super::{Field, alternate, volumes};
use crate::bench::Bench;
use crate::results::Target::AtMost;
use crate::results::{Line, Metric, Profile, Section, figure};
use crate::systems::{Options, System, Volume};
use crate::tools::rrd::{SAMPLES, Set};

/// Number of files: as many as a machine with some services has.
const FILES: u64 = 718;
/// Number of flushes of each file before it is measured: by then its finest archives are full and are being
/// overwritten.
const ROUNDS_BEFORE: u64 = 6;
/// Number of flushes between two syncs.
const GROUP: u64 = 24;
/// Number of syncs in one repetition.
const GROUPS: u64 = 4;

/// Most kilobytes that one flush may have written to the device.
const FLUSH_KB: f64 = 3.0;

const WRITTEN: Metric = Metric { name: "bytes to the device per flush", unit: "KB" };

/// Flushes on each system and compares them.
pub(super) fn run(bench: &Bench, profile: Profile, section: &mut Section) -> Result<()> {
    let field = Field {
        compared: &[
            System::Ext4,
            System::Btrfs("lzo"),
            System::Btrfs("zstd"),
            System::Pagefold("lz4"),
            System::Pagefold("zstd"),
            System::Pagefold("page"),
        ],
        beside: &[System::Xfs, System::Zfs],
    };
    let mut all = volumes(bench, section, &field, bench.scale().disk_bytes, &Options::default())?;
    let mut sets = Vec::new();
    for volume in &mut all {
        bench.progress(&format!("making RRD files on {}", volume.label()));
        let mut set = Set::create(volume.path(), FILES)?;
        // The first updates of a file find its archives empty, unlike later ones, so they are not measured.
        set.flush(ROUNDS_BEFORE * FILES)?;
        volume.sync()?;
        sets.push((volume.label(), set));
    }
    alternate(bench, profile, &mut all, |volume| {
        let label = volume.label();
        let Some((_, set)) = sets.iter_mut().find(|(name, _)| *name == label) else { return Ok(()) };
        let bytes = written(volume, set)?;
        section.add(profile, WRITTEN, &label, bytes as f64 / 1000.0 / (GROUP * GROUPS) as f64);
        Ok(())
    })?;
    section.command("rrdtool - (update metric-N.rrd TIME:VALUE... ...: 90 samples a flush)".to_owned());
    section.note(format!(
        "{FILES} files as collectd's rrdtool plugin makes them (five time spans, minimum, average and maximum, 1200 rows each; one to three data sources); {SAMPLES} \
         samples a flush, sync every {GROUP} flushes. Counted up to the end of the last sync."
    ));
    let rivals = ["btrfs-lzo", "btrfs-zstd"].map(|r| section.median(profile, WRITTEN, r));
    let best = rivals.into_iter().flatten().reduce(f64::min);
    for ours in ["pagefold-lz4", "pagefold-zstd", "pagefold-page"] {
        let own = section.median(profile, WRITTEN, ours);
        let shown = |value: Option<f64>| value.map_or_else(|| "?".to_owned(), figure);
        section.lines.push(Line {
            id: format!("rrd-{ours}"),
            text: format!("RRD flushes ({ours}): bytes to the device at most btrfs's"),
            profile,
            target: AtMost(1.0),
            unit: "x".to_owned(),
            measured: own.zip(best).map(|(own, best)| own / best),
            detail: format!(
                "{} KB / btrfs (its better codec) {} KB; ext4 {} KB",
                shown(own),
                shown(best),
                shown(section.median(profile, WRITTEN, "ext4"))
            ),
        });
        section.lines.push(Line {
            id: format!("rrd-bytes-{ours}"),
            text: format!(
                "RRD flushes of {SAMPLES} samples ({ours}): at most {FLUSH_KB} KB to the device each"
            ),
            profile,
            target: AtMost(FLUSH_KB),
            unit: "KB".to_owned(),
            measured: own,
            detail: "the samples of one archive take 0.7 to 2.2 KB, and there are three such".to_owned(),
        });
    }
    Ok(())
}

fn written(volume: &mut Volume, set: &mut Set) -> Result<u64> {
    let before = volume.disk().counters()?;
    for _ in 0..GROUPS {
        set.flush(GROUP)?;
        volume.sync()?;
    }
    Ok(volume.disk().counters()?.since(before).written_bytes)
}
