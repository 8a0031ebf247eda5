//! Provides real PostgreSQL pages, with which files for fio are filled, and of which overwrites are made.
//!
//! Generated buffers compress the same everywhere; database pages do not. The corpus is the heap files of the
//! tables that [`super::postgres`] makes, read page by page, empty pages left out.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result, bail};

use super::overwrite::Random;
use crate::host::exec::check_interrupted;

/// PostgreSQL's page size.
pub(crate) const PAGE_BYTES: usize = 8192;
/// Bytes of a page's log sequence number, with which it begins, and which changes with every write.
const LSN_BYTES: usize = 8;
/// Largest number of bytes of the corpus in memory.
const MAX_BYTES: usize = 256 << 20;

/// Pages in memory.
#[derive(Debug)]
pub(crate) struct Corpus {
    pages: Vec<u8>,
}

/// Compression ratios of the corpus, with each 8 KiB page compressed alone.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ratios {
    /// With LZ4.
    pub(crate) lz4: f64,
    /// With zstd level 3.
    pub(crate) zstd: f64,
}

impl Corpus {
    /// Takes the pages of `bytes` that are not all zeros.
    ///
    /// # Errors
    /// When there is none.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let full = bytes.chunks_exact(PAGE_BYTES).filter(|page| page.iter().any(|&b| b != 0));
        let pages: Vec<u8> = full.flatten().copied().collect();
        if pages.is_empty() {
            bail!("no page with data in it");
        }
        Ok(Self { pages })
    }

    /// Reads heap files one after the other, at most 256 MiB, in equal shares.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub(crate) fn from_files(paths: &[impl AsRef<Path>]) -> Result<Self> {
        let share = MAX_BYTES / paths.len().max(1) / PAGE_BYTES * PAGE_BYTES;
        let mut bytes = Vec::new();
        for path in paths {
            let path = path.as_ref();
            let mut content = std::fs::read(path).with_context(|| format!("read {}", path.display()))?;
            content.truncate(share.min(content.len() / PAGE_BYTES * PAGE_BYTES));
            bytes.extend(content);
        }
        Self::from_bytes(&bytes)
    }

    /// Returns the number of pages.
    pub(crate) fn len_pages(&self) -> u64 {
        (self.pages.len() / PAGE_BYTES) as u64
    }

    /// Returns page `n` modulo the number of pages.
    fn page(&self, n: u64) -> &[u8] {
        let start = usize::try_from(n % self.len_pages()).unwrap_or(0) * PAGE_BYTES;
        self.pages.get(start..start + PAGE_BYTES).unwrap_or_default()
    }

    /// Fills `page` with a random page of the corpus and a new log sequence number.
    pub(crate) fn changed_page(&self, random: &mut Random, page: &mut [u8]) {
        page.copy_from_slice(self.page(random.next()));
        let stamp = random.next().to_le_bytes();
        for (to, from) in page.iter_mut().zip(stamp).take(LSN_BYTES) {
            *to = from;
        }
    }

    /// Writes a file of `bytes` bytes page by page, as a database extends its files, and syncs it. Every page differs,
    /// so that no system gains by finding equal ones.
    ///
    /// # Errors
    /// When the file system fails or is full.
    pub(crate) fn fill(&self, path: &Path, bytes: u64, seed: u64) -> Result<()> {
        let mut file = File::create(path).with_context(|| format!("create {}", path.display()))?;
        let mut random = Random::new(seed);
        let mut page = vec![0; PAGE_BYTES];
        for n in 0..bytes / PAGE_BYTES as u64 {
            if n % 1024 == 0 {
                check_interrupted()?;
            }
            self.changed_page(&mut random, &mut page);
            file.write_all(&page).with_context(|| format!("fill {} ({bytes} bytes)", path.display()))?;
        }
        file.sync_all().with_context(|| format!("fsync {}", path.display()))?;
        Ok(())
    }

    /// Returns the mean ratios over a sample of 2000 pages.
    ///
    /// # Errors
    /// When a codec fails.
    pub(crate) fn ratios(&self) -> Result<Ratios> {
        let mut random = Random::new(11);
        let mut page = vec![0; PAGE_BYTES];
        let (mut plain, mut lz4, mut zstd) = (0, 0, 0);
        for _ in 0..2000 {
            self.changed_page(&mut random, &mut page);
            plain += PAGE_BYTES;
            lz4 += lz4::block::compress(&page, None, false)?.len().min(PAGE_BYTES);
            zstd += zstd::bulk::compress(&page, 3)?.len().min(PAGE_BYTES);
        }
        Ok(Ratios { lz4: plain as f64 / lz4 as f64, zstd: plain as f64 / zstd as f64 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn corpus() -> Corpus {
        let mut bytes = vec![0; PAGE_BYTES * 3];
        for (n, byte) in bytes.iter_mut().enumerate().skip(PAGE_BYTES) {
            *byte = (n / 64 % 251) as u8 + 1;
        }
        Corpus::from_bytes(&bytes).unwrap()
    }

    #[test]
    fn empty_pages_are_left_out() {
        assert_eq!(corpus().len_pages(), 2);
        assert!(Corpus::from_bytes(&[0; PAGE_BYTES]).is_err());
    }

    #[test]
    fn filled_files_have_their_size_and_different_pages() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        corpus().fill(&path, 5 * PAGE_BYTES as u64, 1).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!(bytes.len(), 5 * PAGE_BYTES);
        let pages: std::collections::HashSet<&[u8]> = bytes.chunks(PAGE_BYTES).collect();
        assert_eq!(pages.len(), 5);
    }

    #[test]
    fn ratios_are_those_of_single_pages() {
        let ratios = corpus().ratios().unwrap();
        assert!(ratios.lz4 > 2.0 && ratios.zstd > ratios.lz4, "{ratios:?}");
    }
}
