//! Reads files by several threads ahead of the thread that writes them, in order, with bounded memory, and verifies
//! pages on the way.

use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::Advice;

use crate::error::{Error, Result};
use crate::limits::{CHUNK_BYTES, CHUNKS_AHEAD, READERS};
use crate::plan::{Archive, Content, Kind, Pages};

/// A file that several threads read; the first of them opens it.
struct Shared {
    path: PathBuf,
    file: Mutex<Option<Arc<File>>>,
}

impl Shared {
    fn open(&self) -> Result<Arc<File>> {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = &*file {
            return Ok(Arc::clone(file));
        }
        // The file was checked: it is no link, and nothing changes here.
        let flags = rustix::fs::OFlags::NOFOLLOW.bits().cast_signed();
        let opened = File::options().read(true).custom_flags(flags).open(&self.path);
        let opened = Arc::new(opened.map_err(Error::io("open", &self.path))?);
        *file = Some(Arc::clone(&opened));
        Ok(opened)
    }
}

struct Job {
    file: Arc<Shared>,
    at: u64,
    bytes: usize,
    pages: Option<Pages>,
    answer: SyncSender<Result<Chunk>>,
}

/// A part of a file.
pub(crate) struct Chunk {
    pub(crate) bytes: Vec<u8>,
    /// Pages whose checksum is wrong: number, stored checksum, right checksum.
    pub(crate) wrong: Vec<(u32, u16, u16)>,
}

/// Reads the files of archives, in order. [`Ahead::next`] returns the parts.
pub(crate) struct Ahead {
    answers: Receiver<Receiver<Result<Chunk>>>,
}

impl Ahead {
    /// Begins to read. The threads belong to `scope`, and end when the returned value is dropped, or all was read.
    pub(crate) fn start<'scope, 'env>(
        scope: &'scope std::thread::Scope<'scope, 'env>,
        archives: &'env [Archive],
    ) -> Self {
        let (order, answers) = sync_channel(CHUNKS_AHEAD);
        let (jobs, work) = sync_channel::<Job>(READERS);
        let work = Arc::new(Mutex::new(work));
        for _ in 0..READERS {
            let work = Arc::clone(&work);
            scope.spawn(move || {
                loop {
                    let next = work.lock().unwrap_or_else(PoisonError::into_inner).recv();
                    let Ok(job) = next else { return };
                    let chunk = read(&job);
                    // The receiver may be gone, if it failed meanwhile.
                    let _gone = job.answer.send(chunk);
                }
            });
        }
        scope.spawn(move || {
            // The thread ends early if nobody waits any more.
            let _ended = ask(archives, &order, &jobs);
        });
        Self { answers }
    }

    /// Returns the next part, which is of the file at `path`.
    pub(crate) fn next(&self, path: &Path) -> Result<Chunk> {
        let answer = self.answers.recv().and_then(|answer| answer.recv());
        answer.unwrap_or_else(|_| {
            Err(Error::io("read", path)(std::io::Error::other("a thread that reads has ended by a bug")))
        })
    }
}

/// Returns offset and length of each part of a file of `bytes` bytes.
pub(crate) fn parts(bytes: u64) -> impl Iterator<Item = (u64, usize)> {
    let step = CHUNK_BYTES as u64;
    (0..bytes.div_ceil(step)).map(move |n| {
        let at = n * step;
        (at, usize::try_from((bytes - at).min(step)).unwrap_or(CHUNK_BYTES))
    })
}

fn ask(
    archives: &[Archive],
    order: &SyncSender<Receiver<Result<Chunk>>>,
    jobs: &SyncSender<Job>,
) -> Option<()> {
    for item in archives.iter().flat_map(|archive| &archive.items) {
        let Kind::File { content: Content::File { path, bytes, pages }, .. } = &item.kind else { continue };
        let file = Arc::new(Shared { path: path.clone(), file: Mutex::new(None) });
        for (at, bytes) in parts(*bytes) {
            let (answer, answered) = sync_channel(1);
            // The job takes a place in the order first, since the number of places bounds the memory.
            order.send(answered).ok()?;
            jobs.send(Job { file: Arc::clone(&file), at, bytes, pages: *pages, answer }).ok()?;
        }
    }
    Some(())
}

fn read(job: &Job) -> Result<Chunk> {
    let file = job.file.open()?;
    let mut bytes = vec![0; job.bytes];
    file.read_exact_at(&mut bytes, job.at).map_err(Error::io("read", &job.file.path))?;
    // Nobody reads this part again: its memory in the cache is left to the database.
    let _advice =
        rustix::fs::fadvise(&*file, job.at, std::num::NonZeroU64::new(job.bytes as u64), Advice::DontNeed);
    let wrong = job.pages.map_or_else(Vec::new, |pages| wrong_pages(&bytes, job.at, pages));
    Ok(Chunk { bytes, wrong })
}

/// Offset of the field in a page that says how much of it is used; `CHECKSUM_AT` is that of its checksum.
const UPPER_AT: usize = 14;
const CHECKSUM_AT: usize = 8;

fn wrong_pages(bytes: &[u8], at: u64, pages: Pages) -> Vec<(u32, u16, u16)> {
    let mut wrong = Vec::new();
    let first = u32::try_from(at / u64::from(pages.page_bytes)).unwrap_or(u32::MAX);
    for (n, page) in (0..).zip(bytes.chunks_exact(pages.page_bytes as usize)) {
        let number = |at: usize| {
            page.get(at..).and_then(|rest| rest.first_chunk()).copied().map_or(0, u16::from_le_bytes)
        };
        // A page that was never used has no checksum.
        if number(UPPER_AT) == 0 {
            continue;
        }
        let block = pages.first.wrapping_add(first).wrapping_add(n);
        let (stored, right) = (number(CHECKSUM_AT), pagefold_codec::postgres_checksum(page, block));
        if stored != right {
            wrong.push((block, stored, right));
        }
    }
    wrong
}
