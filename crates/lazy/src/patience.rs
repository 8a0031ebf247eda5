//! Waits for a store that does not answer, for a bounded time, and logs the outage once.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use pagefold_backup::Contents;
use pagefold_engine::Error;
use parking_lot::Mutex;

use crate::limits::{OUTAGE_GAP, RETRY_MAX, RETRY_MIN};

/// The errno of a read that the store did not answer.
const EIO: i32 = 5;

/// A function that returns true as long as anybody wants what is waited for.
pub type Wanted = Box<dyn Fn() -> bool + Send + Sync>;

/// Waits for a store on behalf of reads.
pub(crate) struct Waiting {
    patience: Duration,
    wanted: Wanted,
    /// The present outage; `None` if the store answers.
    outage: Mutex<Option<Outage>>,
    /// Number of reads of objects that the repository does not have.
    missed: AtomicU64,
}

struct Outage {
    since: Instant,
    /// End of the last try that failed.
    last: Instant,
    why: String,
}

impl Waiting {
    pub(crate) fn new(patience: Duration, wanted: Wanted) -> Self {
        Self { patience, wanted, outage: Mutex::new(None), missed: AtomicU64::new(0) }
    }

    /// Returns the seconds since the store has stopped answering, and the reason.
    pub(crate) fn outage(&self) -> Option<(u64, String)> {
        self.outage.lock().as_ref().map(|outage| (outage.since.elapsed().as_secs(), outage.why.clone()))
    }

    /// Returns the number of reads so far of objects that the repository does not have.
    pub(crate) fn missed(&self) -> u64 {
        self.missed.load(Ordering::Acquire)
    }

    /// Does `read`, again and again while the store fails: until it gives an answer, or until the outage has lasted
    /// longer than the patience; from then on each reader tries once. `what` is for readers of the log.
    ///
    /// An outage after which nobody has tried for a while counts as ended: the store may have answered meanwhile.
    pub(crate) fn read<T>(
        &self,
        contents: &Contents,
        what: &dyn Fn() -> String,
        read: impl Fn() -> pagefold_backup::Result<T>,
    ) -> Result<T, Error> {
        let mut pause = RETRY_MIN;
        loop {
            let begun = Instant::now();
            let error = match read() {
                Ok(done) => {
                    self.answered();
                    return Ok(done);
                }
                Err(error) => error,
            };
            if !may_pass(contents, &error) {
                if matches!(error, pagefold_backup::Error::Missing { .. }) {
                    self.missed.fetch_add(1, Ordering::AcqRel);
                } else {
                    tracing::error!(%error, "{} cannot be read: it is damaged", what());
                }
                return Err(Error::corrupt(what(), error.to_string()));
            }
            let away = self.failed(&error, begun);
            if away >= self.patience || !(self.wanted)() {
                tracing::error!(%error, "{} cannot be read: the store does not answer", what());
                return Err(Error::Io {
                    op: "read",
                    device: what().into(),
                    offset: 0,
                    len_bytes: 0,
                    source: std::io::Error::from_raw_os_error(EIO),
                });
            }
            std::thread::sleep(pause.min(self.patience.saturating_sub(away)));
            pause = (pause * 2).min(RETRY_MAX);
        }
    }

    /// Notes that the store has not answered a try that began at `begun`; returns for how long it has not.
    fn failed(&self, error: &pagefold_backup::Error, begun: Instant) -> Duration {
        let (mut outage, now) = (self.outage.lock(), Instant::now());
        // A try may take longer than a pause, so its begin counts.
        outage.take_if(|outage| begun.saturating_duration_since(outage.last) > OUTAGE_GAP);
        let outage = outage.get_or_insert_with(|| {
            tracing::warn!(%error, patience_s = self.patience.as_secs(), "the store does not answer: reads wait");
            Outage { since: now, last: now, why: error.to_string() }
        });
        outage.last = now;
        outage.since.elapsed()
    }

    fn answered(&self) {
        let ended = self.outage.lock().take();
        if let Some(Outage { since, .. }) = ended {
            tracing::info!(after_s = since.elapsed().as_secs(), "the store answers again");
        }
    }
}

/// Returns true if the same read may work later. An object is missing for good only if the store shows its repository.
fn may_pass(contents: &Contents, error: &pagefold_backup::Error) -> bool {
    match error {
        pagefold_backup::Error::Missing { .. } => !matches!(contents.is_there(), Ok(true)),
        other => other.may_pass(),
    }
}
