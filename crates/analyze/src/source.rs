//! The pages of a file, without its holes, and samples of them.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{OFlags, SeekFrom, seek};
use rustix::io::Errno;

/// Largest number of runs of data that are looked for; the rest of a file behind them counts as one run.
const RUNS_MAX: usize = 1 << 16;

/// A file that is read by pages of one length.
#[derive(Debug)]
pub(crate) struct Source {
    file: File,
    size_bytes: u64,
    page_bytes: u64,
    /// Runs of pages with data: number of the first page, and number of pages with data before it.
    runs: Vec<(u64, u64)>,
    pages: u64,
}

impl Source {
    /// Opens the file at `path` and finds its pages with data.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        // The file was regular when it was found. The directory's owner may have put a FIFO there since, which would
        // have us wait.
        let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed();
        let file = File::options().read(true).custom_flags(flags).open(path)?;
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(io::Error::other("it is no regular file any more"));
        }
        let size_bytes = metadata.len();
        Ok(Self { file, size_bytes, page_bytes: 1, runs: vec![(0, 0)], pages: size_bytes })
    }

    /// Returns the same file in pages of `page_bytes`.
    pub(crate) fn paged(mut self, page_bytes: u32) -> io::Result<Self> {
        let page_bytes = u64::from(page_bytes);
        (self.page_bytes, self.pages) = (page_bytes, 0);
        self.runs.clear();
        let mut next_page = 0;
        let mut at = 0;
        while at < self.size_bytes {
            let (begin, end) = if self.runs.len() < RUNS_MAX {
                let Some(run) = data_run(&self.file, at, self.size_bytes)? else { break };
                run
            } else {
                (at, self.size_bytes)
            };
            at = end;
            let (first, behind) = ((begin / page_bytes).max(next_page), end.div_ceil(page_bytes));
            if behind > first {
                self.runs.push((first, self.pages));
                self.pages += behind - first;
                next_page = behind;
            }
        }
        Ok(self)
    }

    /// Returns the number of pages with data.
    pub(crate) fn pages(&self) -> u64 {
        self.pages
    }

    /// Draws up to `wanted` pages, by their index among those with data: one from each of as many runs of equal length.
    pub(crate) fn draw(&self, wanted: u64, random: &mut fastrand::Rng) -> Vec<u64> {
        let wanted = wanted.min(self.pages);
        let bound = |k: u64| (u128::from(k) * u128::from(self.pages) / u128::from(wanted.max(1))) as u64;
        (0..wanted).map(|k| random.u64(bound(k)..bound(k + 1))).collect()
    }

    /// Fills `page` with the page of this index. Bytes beyond the file's end are zeros, also if the file was truncated
    /// meanwhile.
    pub(crate) fn read(&self, index: u64, page: &mut Vec<u8>) -> io::Result<()> {
        let run = self.runs.partition_point(|&(_, before)| before <= index).saturating_sub(1);
        let (first, before) = self.runs.get(run).copied().unwrap_or_default();
        page.clear();
        page.resize(self.page_bytes as usize, 0);
        fill(&self.file, (first + (index - before)) * self.page_bytes, page)
    }

    /// Returns up to `bytes` bytes from `offset` on.
    pub(crate) fn head(&self, offset: u64, bytes: usize) -> io::Result<Vec<u8>> {
        let mut head = vec![0; bytes.min(self.size_bytes.saturating_sub(offset) as usize)];
        fill(&self.file, offset, &mut head)?;
        Ok(head)
    }
}

fn fill(file: &File, mut offset: u64, mut rest: &mut [u8]) -> io::Result<()> {
    while !rest.is_empty() {
        match file.read_at(rest, offset) {
            Ok(0) => return Ok(()),
            Ok(done) => {
                offset += done as u64;
                rest = &mut rest[done..];
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Returns begin and end of the next run of data from `at` on. If the file system does not know, the run is the rest of
/// the file.
fn data_run(file: &File, at: u64, size_bytes: u64) -> io::Result<Option<(u64, u64)>> {
    let begin = match seek(file, SeekFrom::Data(at)) {
        Ok(begin) => begin,
        Err(Errno::NXIO) => return Ok(None),
        Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(Some((at, size_bytes))),
        Err(error) => return Err(error.into()),
    };
    let end = seek(file, SeekFrom::Hole(begin))?;
    // A file that is being truncated may give any answer.
    Ok((end > begin).then_some((begin, end)))
}
