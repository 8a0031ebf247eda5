//! Overwrites random pages of one file by several writers, each with fdatasync.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};

use super::overwrite::Random;
use crate::host::exec::check_interrupted;

/// Bytes of a page of the file.
pub(crate) const PAGE: usize = 8192;
/// Bytes of each page that are not zero: few, so that many pages take few bytes of the device.
const PAYLOAD: usize = 64;
/// Number of pages of one write while a file is filled.
const RUN_PAGES: usize = 128;

/// Fills the first bytes of `page` with random bytes.
fn draw(random: &mut Random, page: &mut [u8]) {
    for chunk in page.chunks_exact_mut(8).take(PAYLOAD / 8) {
        chunk.copy_from_slice(&random.next().to_le_bytes());
    }
}

/// Makes a file of `pages` pages, and syncs it. The first page is written alone, so that its length tells the page
/// size.
///
/// # Errors
/// When a write fails.
pub(crate) fn fill(path: &Path, pages: u64) -> Result<()> {
    let mut file = File::create(path).with_context(|| format!("create {}", path.display()))?;
    let mut random = Random::new(pages);
    let mut run = vec![0; PAGE * RUN_PAGES];
    let mut left = pages;
    let mut now = 1;
    while left > 0 {
        let bytes = run.get_mut(..PAGE * now).unwrap_or_default();
        bytes.chunks_exact_mut(PAGE).for_each(|page| draw(&mut random, page));
        file.write_all(bytes).with_context(|| format!("fill {}", path.display()))?;
        left -= now as u64;
        now = RUN_PAGES.min(usize::try_from(left).unwrap_or(RUN_PAGES));
        check_interrupted()?;
    }
    file.sync_all().with_context(|| format!("fsync {}", path.display()))
}

/// Lets `writers` threads overwrite random pages for `duration`, and returns the number of overwrites.
///
/// # Errors
/// When a write or sync fails.
pub(crate) fn run_for(path: &Path, writers: usize, pages: u64, duration: Duration) -> Result<u64> {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let stop = &stop;
        let threads: Vec<_> =
            (0..writers).map(|n| scope.spawn(move || write_until(path, n as u64, pages, stop))).collect();
        std::thread::sleep(duration);
        stop.store(true, Ordering::Relaxed);
        threads
            .into_iter()
            .map(|t| t.join().unwrap_or_else(|_| Err(anyhow!("a writer panicked"))))
            .sum::<Result<u64>>()
    })
}

fn write_until(path: &Path, seed: u64, pages: u64, stop: &AtomicBool) -> Result<u64> {
    let file = OpenOptions::new().write(true).open(path)?;
    // The time is in the seed, so that the pages differ from those of earlier runs.
    let salt = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?.as_nanos() as u64;
    let mut random = Random::new(salt.wrapping_add(seed));
    let mut page = vec![0; PAGE];
    let mut done = 0;
    while !stop.load(Ordering::Relaxed) {
        check_interrupted()?;
        draw(&mut random, &mut page);
        let at = random.below(pages) * PAGE as u64;
        file.write_all_at(&page, at).with_context(|| format!("overwrite {} at {at}", path.display()))?;
        file.sync_data().with_context(|| format!("fdatasync {}", path.display()))?;
        done += 1;
    }
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_filled_and_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fill(&path, 300).unwrap();
        let before = std::fs::read(&path).unwrap();
        assert_eq!(before.len(), 300 * PAGE);
        assert!(
            before.chunks(PAGE).all(|page| page[..8] != [0; 8] && page[PAYLOAD..].iter().all(|&b| b == 0))
        );
        let done = run_for(&path, 2, 300, Duration::from_millis(50)).unwrap();
        let after = std::fs::read(&path).unwrap();
        assert!(done > 0 && after.len() == before.len() && after != before);
    }
}
