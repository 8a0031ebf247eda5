//! Measures the memory of Pagefold's server while a sparse file of a terabyte is written at random.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};

use crate::bench::Bench;
use crate::host::exec::check_interrupted;
use crate::host::memory::resident;
use crate::results::Target::{AtLeast, AtMost};
use crate::results::{Line, Metric, Profile, Section};
use crate::systems::{Options, System, Volume};
use crate::tools::overwrite::Random;

const FILE_BYTES: u64 = 1 << 40;
const PAGE: usize = 8192;
/// Bytes of each page that are not zero: a page then takes about a hundred bytes on the device.
const PAYLOAD: usize = 64;
/// Budget of the server, in bytes.
const BUDGET_BYTES: u64 = 512 << 20;
/// Memory that the server may take beside its budget, in MiB: program, threads' stacks, buffers of requests in flight.
const FIXED_MIB: f64 = 128.0;
/// Number of pages that are read back and compared at the end.
const CHECKED: u64 = 2000;

const RESIDENT: Metric = Metric { name: "resident memory of the server", unit: "MiB" };
const PEAK: Metric = Metric { name: "highest resident memory of the server", unit: "MiB" };
const RATE: Metric = Metric { name: "random 8 KiB writes into a sparse file", unit: "writes/s" };

/// Writes pages, measures the server's memory meanwhile, and reads pages back.
pub(super) fn run(bench: &Bench, profile: Profile, section: &mut Section) -> Result<()> {
    let system = System::Pagefold("lz4");
    let pages: u64 = if bench.scale().quick { 500_000 } else { 10_000_000 };
    let mut measured = None;
    if !bench.left_out(system) {
        let options = Options { memory: Some(BUDGET_BYTES), limit: None };
        let mut volume = Volume::create(bench, system, bench.scale().disk_bytes, &options)?;
        let throttled = bench.profile(profile, &volume)?;
        measured = Some(fill(bench, profile, section, &volume, pages)?);
        volume.make_cold()?;
        drop(throttled);
        read_back(&volume.path().join("sparse"), pages)?;
        section.note(format!("After a new mount, {CHECKED} of the pages were read back and were right."));
    }
    section.note(format!(
        "{pages} pages of 8 KiB, {PAYLOAD} bytes of each random and the rest zeros, written at random places of a file of 1 TiB, \
         with an fsync every 100,000; cache=512M."
    ));
    section.lines.push(Line {
        id: "memory".to_owned(),
        text: "server memory within its budget of 512 MiB and a fixed overhead of 128 MiB".to_owned(),
        profile,
        target: AtMost((BUDGET_BYTES >> 20) as f64 + FIXED_MIB),
        unit: "MiB".to_owned(),
        measured,
        detail: format!("highest resident memory, {pages} pages"),
    });
    section.lines.push(Line {
        id: "memory-pages".to_owned(),
        text: "a sparse 1 TB file with 10 million pages written at random".to_owned(),
        profile,
        target: AtLeast(1e7),
        unit: "pages".to_owned(),
        measured: measured.map(|_| pages as f64),
        detail: if bench.scale().quick { "a quick run writes fewer".to_owned() } else { String::new() },
    });
    Ok(())
}

/// Fills `page` with the content of write `n`, and returns the position of the write in bytes.
fn page_of(n: u64, page: &mut [u8; PAGE]) -> u64 {
    let mut random = Random::new(n);
    for chunk in page.chunks_exact_mut(8).take(PAYLOAD / 8) {
        chunk.copy_from_slice(&random.next().to_le_bytes());
    }
    random.below(FILE_BYTES / PAGE as u64) * PAGE as u64
}

fn fill(bench: &Bench, profile: Profile, section: &mut Section, volume: &Volume, pages: u64) -> Result<f64> {
    let label = volume.label();
    let pid = volume.server_pid().ok_or_else(|| anyhow!("{label} has no server process"))?;
    let path = volume.path().join("sparse");
    let file = File::create(&path)?;
    file.set_len(FILE_BYTES).with_context(|| format!("make {} 1 TiB large", path.display()))?;
    let mut page = [0; PAGE];
    let started = std::time::Instant::now();
    for n in 0..pages {
        let at = page_of(n, &mut page);
        file.write_all_at(&page, at).with_context(|| format!("write page {n} of {}", path.display()))?;
        if n % 100_000 == 99_999 {
            check_interrupted()?;
            file.sync_all()?;
            section.add(profile, RESIDENT, &label, mib(resident(pid)?.now_bytes));
            if n % 1_000_000 == 999_999 {
                bench.progress(&format!("{} million pages", (n + 1) / 1_000_000));
            }
        }
    }
    file.sync_all()?;
    section.add(profile, RATE, &label, pages as f64 / started.elapsed().as_secs_f64());
    let peak = mib(resident(pid)?.peak_bytes);
    section.add(profile, PEAK, &label, peak);
    Ok(peak)
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// Compares the pages of the last writes, newest first. A page that a later one of these writes has replaced is
/// skipped.
fn read_back(path: &Path, pages: u64) -> Result<()> {
    let file = OpenOptions::new().read(true).open(path)?;
    let (mut expected, mut found) = ([0; PAGE], [0; PAGE]);
    let mut seen = std::collections::HashSet::new();
    for n in (pages.saturating_sub(CHECKED)..pages).rev() {
        let at = page_of(n, &mut expected);
        if !seen.insert(at) {
            continue;
        }
        file.read_exact_at(&mut found, at)?;
        if found != expected {
            bail!("page {n} at offset {at} of {} is not what was written", path.display());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_repeatable_and_different() {
        let (mut a, mut b) = ([0; PAGE], [0; PAGE]);
        let at = page_of(5, &mut a);
        assert_eq!(page_of(5, &mut b), at);
        assert_eq!(a, b);
        assert!(at < FILE_BYTES && at.is_multiple_of(PAGE as u64));
        assert_ne!(page_of(6, &mut b), at);
        assert_ne!(a, b);
        assert!(a[PAYLOAD..].iter().all(|&byte| byte == 0));
    }
}
