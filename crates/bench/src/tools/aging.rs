//! Ages a file by random overwrites of 8 KiB that do not compress, and measures the time of each.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::overwrite::Random;
use crate::host::exec::check_interrupted;

/// Bytes of a page of the file.
pub(crate) const PAGE: usize = 8192;
/// Bytes that are written at a time while the file is made.
const RUN: usize = 1 << 20;

/// Measurements of one pass of overwrites.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pass {
    /// Its length in seconds, with the fdatasync at its end.
    pub(crate) seconds: f64,
    /// The longest write.
    pub(crate) longest: Duration,
    /// Bytes written.
    pub(crate) bytes: u64,
}

fn draw(random: &mut Random, bytes: &mut [u8]) {
    bytes.chunks_exact_mut(8).for_each(|chunk| chunk.copy_from_slice(&random.next().to_le_bytes()));
}

/// Makes a file of `pages` pages that do not compress, and syncs it.
///
/// # Errors
/// When a write fails.
pub(crate) fn fill(path: &Path, pages: u64) -> Result<()> {
    let file = File::create(path).with_context(|| format!("create {}", path.display()))?;
    let mut random = Random::new(pages);
    let mut run = vec![0; RUN];
    let (mut at, end) = (0, pages * PAGE as u64);
    // The first page is written alone: its length tells the page size.
    let mut len = PAGE;
    while at < end {
        let bytes = run.get_mut(..len.min((end - at) as usize)).unwrap_or_default();
        draw(&mut random, bytes);
        file.write_all_at(bytes, at).with_context(|| format!("fill {}", path.display()))?;
        at += bytes.len() as u64;
        len = RUN;
        check_interrupted()?;
    }
    file.sync_all().with_context(|| format!("fsync {}", path.display()))
}

/// Overwrites random pages of the file until `bytes` are written, then syncs.
///
/// # Errors
/// When a write or the sync fails.
pub(crate) fn overwrite(path: &Path, pages: u64, bytes: u64, seed: u64) -> Result<Pass> {
    let file = OpenOptions::new().write(true).open(path)?;
    let mut random = Random::new(seed);
    let mut page = vec![0; PAGE];
    let begun = Instant::now();
    let (mut longest, mut written) = (Duration::ZERO, 0);
    while written < bytes {
        check_interrupted()?;
        draw(&mut random, &mut page);
        let at = random.below(pages) * PAGE as u64;
        let started = Instant::now();
        file.write_all_at(&page, at).with_context(|| format!("overwrite {} at {at}", path.display()))?;
        longest = longest.max(started.elapsed());
        written += PAGE as u64;
    }
    file.sync_data().with_context(|| format!("fdatasync {}", path.display()))?;
    Ok(Pass { seconds: begun.elapsed().as_secs_f64(), longest, bytes: written })
}
