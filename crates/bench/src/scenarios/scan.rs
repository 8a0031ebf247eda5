//! Measures five connections that scan five tables, with every cache cold.

use anyhow::Result;

use super::{alternate, volumes_with};
use crate::bench::Bench;
use crate::host::throttle;
use crate::results::Target::{AtLeast, AtMost};
use crate::results::{Line, Metric, Profile, RatioLine, Section, figure};
use crate::systems::{System, Volume, drop_caches};
use crate::tools::postgres::{Settings, TABLES, describe};

const RATE: Metric = Metric { name: "heap scanned", unit: "MB/s" };
const READ: Metric = Metric { name: "bytes read from the device per byte of heap", unit: "B/B" };

const DEFAULT: &str = "pagefold-auto";
/// Bytes a second that the throttled device gives, in millions.
const MBPS: f64 = throttle::BYTES_PER_SECOND as f64 / 1e6;

const SETTINGS: Settings = Settings { full_page_writes: true, shared_buffers_mib: 64, max_wal_mib: 1024 };

/// Scans on each system and compares them.
pub(super) fn run(bench: &Bench, profile: Profile, section: &mut Section) -> Result<()> {
    let cluster = bench.prepared().tables(bench)?;
    let beside = [System::Xfs, System::Btrfs("zlib"), System::Zfs];
    let mut all = volumes_with(bench, section, &cluster, &beside)?;
    let heap_bytes: u64 = bench
        .prepared()
        .heaps(bench)?
        .iter()
        .map(|heap| std::fs::metadata(cluster.join(heap)).map(|m| m.len()))
        .sum::<std::io::Result<u64>>()?;
    let statements: Vec<String> = TABLES.map(|t| format!("SELECT count(*) FROM {t}")).into();
    alternate(bench, profile, &mut all, |volume| {
        let (seconds, read_bytes) = scan(bench, volume, &statements)?;
        section.add(profile, RATE, &volume.label(), heap_bytes as f64 / 1e6 / seconds);
        section.add(profile, READ, &volume.label(), read_bytes as f64 / heap_bytes as f64);
        Ok(())
    })?;
    for statement in &statements {
        section.command(format!("psql -c '{statement}' &"));
    }
    section.note(format!(
        "{} MB of heap in five tables. Before each scan: PostgreSQL stopped, unmounted, kernel caches dropped, mounted, PostgreSQL \
         started. {}",
        heap_bytes / 1_000_000,
        describe(&SETTINGS)
    ));
    judge(profile, section, &all)
}

fn scan(bench: &Bench, volume: &mut Volume, statements: &[String]) -> Result<(f64, u64)> {
    volume.make_cold()?;
    let server = bench.postgres()?.start(&volume.path().join("pg"), &SETTINGS, None)?;
    // Each backend reads some catalogues at its start, which is not to be measured.
    server.concurrent_sql("postgres", &vec!["SELECT 1".to_owned(); statements.len()])?;
    drop_caches()?;
    let before = volume.disk().counters()?;
    let seconds = server.concurrent_sql("postgres", statements)?;
    let read_bytes = volume.disk().counters()?.since(before).read_bytes;
    server.stop()?;
    Ok((seconds, read_bytes))
}

fn judge(profile: Profile, section: &mut Section, all: &[Volume]) -> Result<()> {
    let line = |id, text, ours, theirs, bound| RatioLine {
        id,
        text,
        profile,
        metric: RATE,
        ours,
        theirs,
        target: AtLeast(bound),
    };
    let mut ratios = Vec::new();
    for volume in all {
        if let Some(ratio) = volume.ratio()? {
            section.note(format!("{} reports a compression ratio of {ratio:.2}.", volume.label()));
            ratios.push((volume.label(), ratio));
        }
    }
    if profile == Profile::Throttled {
        for ours in ["pagefold-lz4", "pagefold-zstd"] {
            let ratio = ratios.iter().find(|(label, _)| label == ours).map(|&(_, ratio)| ratio);
            section.lines.push(against_ext4(profile, section, ours, ratio));
        }
        let ratio = ratios.iter().find(|(label, _)| label == DEFAULT).map(|&(_, ratio)| ratio);
        section.lines.push(against_the_device(profile, section, ratio));
        return Ok(());
    }
    section.ratio_line(line("scan-lzo", "scan: lz4 faster than btrfs-lzo", "pagefold-lz4", "btrfs-lzo", 1.0));
    section.ratio_line(line(
        "scan-btrfs-zstd",
        "scan: zstd faster than btrfs-zstd",
        "pagefold-zstd",
        "btrfs-zstd",
        1.0,
    ));
    for (id, text, ours, bound) in [
        ("scan-09-btrfs-zstd", "scan: zstd at least 0.9 of btrfs-zstd", "pagefold-zstd", 0.9),
        ("scan-page-btrfs-zstd", "scan: page at least 0.6 of btrfs-zstd", "pagefold-page", 0.6),
        ("scan-default-btrfs-zstd", "scan, default settings: 0.6 of btrfs-zstd", DEFAULT, 0.6),
    ] {
        section.ratio_line(line(id, text, ours, "btrfs-zstd", bound));
    }
    section.ratio_line(line("scan-ext4-free", "scan: lz4 at least 0.6 of ext4", "pagefold-lz4", "ext4", 0.6));
    Ok(())
}

/// Returns the line that compares the time of a scan with the time that the throttled device takes for the bytes stored.
fn against_the_device(profile: Profile, section: &Section, ratio: Option<f64>) -> Line {
    let own = section.median(profile, RATE, DEFAULT);
    let detail = own.zip(ratio).map_or_else(String::new, |(own, ratio)| {
        format!(
            "{} MB/s of heap; the device has {MBPS:.0} MB/s of stored bytes; compression ratio {ratio:.2}",
            figure(own)
        )
    });
    Line {
        id: "scan-default-device".to_owned(),
        text: "scan, default settings: within 1.15 of the time that the device takes for what is stored"
            .to_owned(),
        profile,
        target: AtMost(1.15),
        unit: "x".to_owned(),
        measured: own.zip(ratio).map(|(own, ratio)| MBPS * ratio / own),
        detail,
    }
}

/// Returns the line that compares the speedup over ext4 with the compression ratio: the first as a share of the second.
fn against_ext4(profile: Profile, section: &Section, ours: &str, ratio: Option<f64>) -> Line {
    let (own, ext4) = (section.median(profile, RATE, ours), section.median(profile, RATE, "ext4"));
    let (speedup, detail) = match (own, ext4, ratio) {
        (Some(own), Some(ext4), Some(ratio)) => (
            Some(own / ext4 / ratio),
            format!(
                "{} / ext4 {} MB/s = {:.2}; compression ratio {ratio:.2}",
                figure(own),
                figure(ext4),
                own / ext4
            ),
        ),
        _ => (None, String::new()),
    };
    Line {
        id: format!("scan-ext4-{ours}"),
        text: format!("scan ({ours}): faster than ext4 by 0.9 of the compression ratio"),
        profile,
        target: AtLeast(0.9),
        unit: "x".to_owned(),
        measured: speedup,
        detail,
    }
}
