//! Overwrites a nearly full device at random, with ten times its size, and measures the cost of the cleaner and whether
//! it grows.

use std::fs;

use anyhow::{Context, Result};

use super::{Field, volumes};
use crate::bench::Bench;
use crate::results::Target::{AtLeast, AtMost};
use crate::results::{self, Line, Metric, Profile, Section, figure};
use crate::systems::{Options, System, Volume};
use crate::tools::{aging, greedy};

/// Bytes of a chunk, as docs/FORMAT.md has it.
const CHUNK_BYTES: u64 = 4 << 20;
/// Number of times that the device's size is written.
const PASSES: usize = 10;

macro_rules! fill {
    ($percent:literal) => {
        Fill {
            percent: $percent,
            amplification: Metric {
                name: concat!("bytes to the device per byte written, ", $percent, " % full"),
                unit: "x",
            },
            ideal: Metric {
                name: concat!("the same of an ideal greedy cleaner, ", $percent, " % full"),
                unit: "x",
            },
            rate: Metric { name: concat!("random overwrites, ", $percent, " % full"), unit: "MB/s" },
            last: Metric { name: concat!("the same, last pass, ", $percent, " % full"), unit: "MB/s" },
            longest: Metric { name: concat!("longest write, ", $percent, " % full"), unit: "ms" },
        }
    };
}

/// Share of the device that is full, and the metrics of the measurement there.
struct Fill {
    percent: u64,
    amplification: Metric,
    ideal: Metric,
    rate: Metric,
    last: Metric,
    longest: Metric,
}

const FILLS: [Fill; 4] = [fill!(50), fill!(80), fill!(90), fill!(95)];

/// Ages each system and compares them.
pub(super) fn run(bench: &Bench, profile: Profile, section: &mut Section) -> Result<()> {
    let (bytes, passes) = if bench.scale().quick { (512 << 20, 4) } else { (1 << 30, PASSES) };
    let field = Field {
        compared: &[System::Pagefold("off"), System::Ext4, System::Btrfs("zstd")],
        beside: &[System::Pagefold("page")],
    };
    for fill in &FILLS {
        let mut all = volumes(bench, section, &field, bytes, &Options::default())?;
        let capacity = all.first().map(available).transpose()?.unwrap_or_default();
        let pages = capacity / 100 * fill.percent / aging::PAGE as u64;
        let chunks = (bytes - (2 << 20)) / CHUNK_BYTES;
        let ideal = greedy::amplification(
            chunks as usize,
            CHUNK_BYTES as usize / aging::PAGE,
            pages as usize,
            passes,
        );
        section.add(profile, fill.ideal, "ideal", ideal);
        for volume in &mut all {
            let throttled = bench.profile(profile, volume)?;
            let aged = age(bench, volume, (pages, bytes, passes), fill, profile, section);
            drop(throttled);
            // A rival that has no room for so much is left out, with a note.
            if let Err(error) = aged {
                if volume.system().is_ours() {
                    return Err(error);
                }
                section.note(format!("{} at {} %: {error:#}", volume.label(), fill.percent));
            }
        }
        judge(profile, section, fill);
    }
    section.note(format!(
        "A file that takes so much of what Pagefold tells to be available on a device of {} MiB is made of random bytes and overwritten in random 8 KiB \
         pages until {passes} times the device's size is written, fdatasync after each of {passes} passes. Bytes to the device are those of the loop device's \
         counters, from the second pass on. The ideal cleaner is simulated (crates/bench/src/tools/greedy.rs): the same chunks and pages, no metadata, \
         no reserve, greed alone. ext4 overwrites in place: its line is the bound of the device.",
        bytes >> 20
    ));
    Ok(())
}

fn available(volume: &Volume) -> Result<u64> {
    let stat = rustix::fs::statvfs(volume.path()).context("statvfs")?;
    Ok(stat.f_bavail * stat.f_frsize)
}

fn age(
    bench: &Bench,
    volume: &mut Volume,
    (pages, bytes, passes): (u64, u64, usize),
    fill: &Fill,
    profile: Profile,
    section: &mut Section,
) -> Result<()> {
    let (label, path) = (volume.label(), volume.path().join("aged"));
    bench.progress(&format!("{label}, {} % full", fill.percent));
    aging::fill(&path, pages)?;
    volume.sync()?;
    let (mut rates, mut longest, mut written) = (Vec::new(), 0.0_f64, 0);
    let mut before = volume.disk().counters()?;
    for pass in 0..passes as u64 {
        let done = aging::overwrite(&path, pages, bytes, pass + 1)?;
        rates.push(done.bytes as f64 / 1e6 / done.seconds);
        longest = longest.max(done.longest.as_secs_f64() * 1e3);
        if pass == 0 {
            before = volume.disk().counters()?;
        } else {
            written += done.bytes;
        }
    }
    volume.sync()?;
    let device = volume.disk().counters()?.since(before).written_bytes as f64;
    section.add(profile, fill.amplification, &label, device / written as f64);
    rates.iter().for_each(|rate| section.add(profile, fill.rate, &label, *rate));
    section.add(profile, fill.last, &label, rates.last().copied().unwrap_or_default());
    section.add(profile, fill.longest, &label, longest);
    bench.progress(&format!(
        "{label}: {} bytes per byte, {} MB/s, longest write {} ms",
        figure(device / written as f64),
        rates.iter().map(|rate| figure(*rate)).collect::<Vec<_>>().join(" "),
        figure(longest)
    ));
    fs::remove_file(&path)?;
    volume.sync()
}

fn judge(profile: Profile, section: &mut Section, fill: &Fill) {
    let ours = "pagefold-off";
    let median = |metric, system: &str| section.median(profile, metric, system);
    let ideal = median(fill.ideal, "ideal");
    let amplification = median(fill.amplification, ours);
    let rates = section
        .series
        .iter()
        .find(|series| series.metric == fill.rate.name && series.system == ours && series.profile == profile)
        .map_or(&[][..], |series| &series.values);
    let trend = trend(rates);
    let mut lines = Vec::new();
    let mut line = |id: &str, text: &str, target, unit: &str, measured, detail: String| {
        let (id, text) = (format!("aged-{id}-{}", fill.percent), format!("{text}, {} % full", fill.percent));
        lines.push(Line { id, text, profile, target, unit: unit.to_owned(), measured, detail });
    };
    line(
        "amplification",
        "write amplification of random overwrites, of an ideal greedy cleaner's",
        AtMost(1.25),
        "x",
        amplification.zip(ideal).map(|(ours, ideal)| ours / ideal),
        format!(
            "{} of {}",
            amplification.map_or_else(String::new, figure),
            ideal.map_or_else(String::new, figure)
        ),
    );
    line(
        "decay",
        "throughput of the last passes, of those that follow the first",
        AtLeast(0.9),
        "x",
        trend.map(|(early, late)| late / early),
        trend.map_or_else(String::new, |(early, late)| format!("{} of {} MB/s", figure(late), figure(early))),
    );
    line("longest", "longest write", AtMost(250.0), "ms", median(fill.longest, ours), String::new());
    section.lines.extend(lines);
}

/// Returns the rates at the beginning and at the end: medians of three passes where there are enough. The first pass does
/// not count, since nothing is cleaned in most of it.
fn trend(rates: &[f64]) -> Option<(f64, f64)> {
    let rates = rates.get(1..)?;
    let some = (rates.len() / 2).clamp(1, 3);
    Some((results::median(rates.get(..some)?), results::median(rates.get(rates.len() - some..)?)))
}

#[cfg(test)]
mod tests {
    use super::trend;

    #[test]
    fn a_decay_shows_and_one_slow_pass_does_not() {
        assert_eq!(trend(&[9.0]), None);
        assert_eq!(trend(&[9.0, 4.0]), Some((4.0, 4.0)));
        assert_eq!(trend(&[9.0, 5.0, 4.0, 3.0]), Some((5.0, 3.0)));
        assert_eq!(trend(&[9.0, 5.0, 6.0, 7.0, 1.0, 1.0, 1.0, 6.0, 1.0, 6.0]), Some((6.0, 6.0)));
        assert_eq!(trend(&[9.0, 9.0, 9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0]), Some((9.0, 3.0)));
    }
}
