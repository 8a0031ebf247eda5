//! Waits for a store that does not answer, for a bounded time, and logs the outage once.

use std::time::{Duration, Instant};

use pagefold_backup::Contents;
use pagefold_engine::Error;
use parking_lot::Mutex;

use crate::limits::{RETRY_MAX, RETRY_MIN};

/// The errno of a read that the store did not answer.
const EIO: i32 = 5;

/// A function that returns true as long as anybody wants what is waited for.
pub type Wanted = Box<dyn Fn() -> bool + Send + Sync>;

/// Waits for a store on behalf of reads.
pub(crate) struct Waiting {
    patience: Duration,
    wanted: Wanted,
    /// Begin of the present outage and its reason; `None` if the store answers.
    outage: Mutex<Option<(Instant, String)>>,
}

impl Waiting {
    pub(crate) fn new(patience: Duration, wanted: Wanted) -> Self {
        Self { patience, wanted, outage: Mutex::new(None) }
    }

    /// Returns the seconds since the store has stopped answering, and the reason.
    pub(crate) fn outage(&self) -> Option<(u64, String)> {
        self.outage.lock().as_ref().map(|(since, why)| (since.elapsed().as_secs(), why.clone()))
    }

    /// Does `read`, again and again while the store fails: until it gives an answer, or until the outage has lasted
    /// longer than the patience; from then on each reader tries once. `what` is for readers of the log.
    pub(crate) fn read<T>(
        &self,
        contents: &Contents,
        what: &dyn Fn() -> String,
        read: impl Fn() -> pagefold_backup::Result<T>,
    ) -> Result<T, Error> {
        let mut pause = RETRY_MIN;
        loop {
            let error = match read() {
                Ok(done) => {
                    self.answered();
                    return Ok(done);
                }
                Err(error) => error,
            };
            if !may_pass(contents, &error) {
                tracing::error!(%error, "{} cannot be read: it is damaged", what());
                return Err(Error::corrupt(what(), error.to_string()));
            }
            let away = self.failed(&error);
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

    /// Notes that the store does not answer; returns for how long it has not.
    fn failed(&self, error: &pagefold_backup::Error) -> Duration {
        let mut outage = self.outage.lock();
        let (since, _) = outage.get_or_insert_with(|| {
            tracing::warn!(%error, patience_s = self.patience.as_secs(), "the store does not answer: reads wait");
            (Instant::now(), error.to_string())
        });
        since.elapsed()
    }

    fn answered(&self) {
        let ended = self.outage.lock().take();
        if let Some((since, _)) = ended {
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
