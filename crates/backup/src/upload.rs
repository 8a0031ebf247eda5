//! Uploads several packs at once, beside the thread that makes them, at a rate that is kept.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::error::{Error, Result};
use crate::limits::{BLOCK_BYTES, DIRECT_ALIGN_BYTES, PACK_BYTES, UPLOADS};
use crate::pack::{PackId, PackObject};
use crate::store::Store;

/// The packs that a backup has uploaded so far, kept on this machine, so that a backup that was killed can be
/// continued. Each has a line, which counts if it is whole.
pub(crate) struct Journal {
    path: PathBuf,
    file: File,
    known: Vec<Uploaded>,
}

/// A pack that was uploaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Uploaded {
    pub(crate) content: u128,
    pub(crate) id: PackId,
    pub(crate) bytes: u64,
    pub(crate) epoch: u64,
}

impl Uploaded {
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.strip_suffix(" .")?.split(' ');
        let mut word = || words.next();
        Some(Self {
            content: u128::from_str_radix(word()?, 16).ok()?,
            id: word()?.parse().ok()?,
            bytes: word()?.parse().ok()?,
            epoch: word()?.parse().ok()?,
        })
    }
}

impl Journal {
    /// Opens the journal in this file, which is made if it is missing.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let local =
            |source| Error::Local { doing: format!("cannot keep the journal {}", path.display()), source };
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).map_err(local)?;
        }
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(local(error)),
        };
        let file = OpenOptions::new().create(true).append(true).open(path).map_err(local)?;
        let known = text.lines().filter_map(Uploaded::parse).collect();
        Ok(Self { path: path.into(), file, known })
    }

    fn note(&mut self, pack: &Uploaded) -> Result<()> {
        let Uploaded { content, id, bytes, epoch } = pack;
        // The leading newline ends a line that a crash has cut short.
        let line = format!("\n{content:032x} {id} {bytes} {epoch} .\n");
        let noted = self.file.write_all(line.as_bytes()).and_then(|()| self.file.sync_data());
        noted.map_err(|source| Error::Local {
            doing: format!("cannot write the journal {}", self.path.display()),
            source,
        })
    }

    /// Removes the journal: the backup is complete, so there is nothing to continue. Another process may have removed it,
    /// having seen the commit.
    pub(crate) fn remove(&self) -> Result<()> {
        remove_journal(&self.path)
    }
}

/// Removes the journal in this file, if it is there.
pub(crate) fn remove_journal(path: &Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::Local { doing: format!("cannot remove the journal {}", path.display()), source })
        }
        _ => Ok(()),
    }
}

struct QueuedPack {
    pack: Uploaded,
    object: PackObject,
}

struct UploadQueue {
    store: Arc<Store>,
    journal: Mutex<Option<Journal>>,
    failed: Mutex<Option<Error>>,
    /// Number of packs that were accepted and are not uploaded yet.
    under_way: Mutex<usize>,
    settled: Condvar,
    /// Time at which the next upload may begin.
    next: Mutex<Instant>,
    rate: Option<u64>,
    /// Buffers of packs that were uploaded: memory that has been touched already.
    spare: Mutex<Vec<Vec<u8>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Uploads packs beside the thread that makes them.
pub(crate) struct Uploader {
    jobs: Option<SyncSender<QueuedPack>>,
    threads: Vec<JoinHandle<()>>,
    shared: Arc<UploadQueue>,
    known: Vec<Uploaded>,
}

impl Uploader {
    /// Starts the threads; `rate` is in bytes per second.
    pub(crate) fn start(store: &Arc<Store>, journal: Option<Journal>, rate: Option<u64>) -> Result<Self> {
        let known = journal.as_ref().map(|journal| journal.known.clone()).unwrap_or_default();
        let (jobs, queue) = sync_channel(0);
        let queue = Arc::new(Mutex::new(queue));
        let shared = Arc::new(UploadQueue {
            store: Arc::clone(store),
            journal: Mutex::new(journal),
            failed: Mutex::new(None),
            under_way: Mutex::new(0),
            settled: Condvar::new(),
            next: Mutex::new(Instant::now()),
            rate: rate.filter(|rate| *rate > 0),
            spare: Mutex::default(),
        });
        let mut threads = Vec::new();
        for _ in 0..UPLOADS {
            let (shared, queue) = (Arc::clone(&shared), Arc::clone(&queue));
            let thread = std::thread::Builder::new().name("upload".into()).spawn(move || shared.work(&queue));
            threads.push(
                thread.map_err(|source| Error::Local { doing: "cannot start uploads".into(), source })?,
            );
        }
        Ok(Self { jobs: Some(jobs), threads, shared, known })
    }

    /// Returns the pack of this content that was uploaded before, in the same epoch, so that no prune has deleted it.
    pub(crate) fn known(&self, content: u128, epoch: u64) -> Option<Uploaded> {
        self.known.iter().find(|pack| pack.content == content && pack.epoch == epoch).copied()
    }

    /// Has a pack uploaded; waits until a thread is free. An earlier failure is returned here, or by
    /// [`Uploader::finish`].
    pub(crate) fn upload(&self, pack: Uploaded, object: PackObject) -> Result<()> {
        if let Some(error) = lock(&self.shared.failed).take() {
            return Err(error);
        }
        let gone = || Error::Invalid("uploads have ended: a bug".into());
        let jobs = self.jobs.as_ref().ok_or_else(gone)?;
        *lock(&self.shared.under_way) += 1;
        jobs.send(QueuedPack { pack, object }).map_err(|_| gone())
    }

    /// Returns a buffer for the next pack.
    pub(crate) fn buffer(&self) -> Vec<u8> {
        let spare = lock(&self.shared.spare).pop();
        spare.unwrap_or_else(|| Vec::with_capacity(PACK_BYTES + 2 * BLOCK_BYTES + DIRECT_ALIGN_BYTES))
    }

    /// Waits for all uploads; returns the journal, which is to be removed when the backup is complete.
    pub(crate) fn finish(mut self) -> Result<Option<Journal>> {
        self.end();
        match lock(&self.shared.failed).take() {
            Some(error) => Err(error),
            None => Ok(lock(&self.shared.journal).take()),
        }
    }

    /// Waits until all accepted packs have been uploaded.
    pub(crate) fn settle(&self) {
        let mut under_way = lock(&self.shared.under_way);
        while *under_way > 0 {
            under_way = self.shared.settled.wait(under_way).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn end(&mut self) {
        self.jobs = None;
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                lock(&self.shared.failed).get_or_insert(Error::Invalid("an upload ended: a bug".into()));
            }
        }
    }
}

impl Drop for Uploader {
    fn drop(&mut self) {
        self.end();
    }
}

impl UploadQueue {
    fn work(&self, queue: &Mutex<Receiver<QueuedPack>>) {
        loop {
            let Ok(job) = lock(queue).recv() else { return };
            // After a failure no more is uploaded: the maker of packs gets the error with its next one.
            let failed = lock(&self.failed).is_some();
            if !failed && let Err(error) = self.upload(job) {
                lock(&self.failed).get_or_insert(error);
            }
            *lock(&self.under_way) -= 1;
            self.settled.notify_all();
        }
    }

    fn upload(&self, job: QueuedPack) -> Result<()> {
        let PackObject { buffer, skipped } = job.object;
        let buffer = Bytes::from(buffer);
        let object = buffer.slice(skipped..);
        self.wait_for_turn(object.len() as u64);
        self.store.put(&job.pack.id.path(), object)?;
        if buffer.is_unique() {
            lock(&self.spare).push(buffer.into());
        }
        lock(&self.journal).as_mut().map_or(Ok(()), |journal| journal.note(&job.pack))
    }

    /// Waits so that all uploads together keep the rate.
    fn wait_for_turn(&self, bytes: u64) {
        let Some(rate) = self.rate else { return };
        let now = Instant::now();
        let begin = {
            let mut next = lock(&self.next);
            let begin = (*next).max(now);
            *next = begin + Duration::from_secs_f64(bytes as f64 / rate as f64);
            begin
        };
        std::thread::sleep(begin.saturating_duration_since(now));
    }
}
