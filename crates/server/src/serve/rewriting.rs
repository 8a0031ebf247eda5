//! Gives files another recordsize, for the verb `rewrite`, as long as the client is connected and the dataset is
//! mounted.

use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use pagefold_fs::{Ended, FsError, Ino, Rewrite, Step};

use super::mounted::Mounted;
use super::streams::{StreamContext, has_gone, send_reply};
use crate::control::{FileRewrite, Reply};
use crate::failure::{Context, Failure, Result};
use crate::units;

/// Interval between two reports of progress.
const TELL_EVERY: Duration = Duration::from_millis(200);
/// Time after which a client that reads no reports counts as gone.
const TELL_PATIENCE: Duration = Duration::from_secs(10);

/// Gives one file another recordsize, and reports progress on the connection.
pub(super) fn rewrite(
    context: StreamContext<'_>,
    what: &FileRewrite,
    connection: &UnixStream,
) -> Result<Reply> {
    let of = context.exports.of(what.device)?;
    // This guard is dropped last, after the stream has ended: unmounting waits for it, and then nothing uses the pool.
    let _running = of.rewrites.begin().ok_or_else(unmounted)?;
    let _under_way = context.begin(connection, None)?;
    connection.set_write_timeout(Some(TELL_PATIENCE)).context(|| "cannot answer".into())?;
    let begun = of.files()?.rewrite(Ino(what.inode), what.recordsize);
    let begun = begun.map_err(|error| refused(&of, what, &error))?;
    let Some(mut rewrite) = begun else { return Ok(Reply::Rewritten { copied_bytes: None }) };
    let mut pace = Pace::new(what.rate);
    loop {
        match rewrite.step().map_err(|error| refused(&of, what, &error))? {
            Step::More => {}
            Step::Done => return Ok(Reply::Rewritten { copied_bytes: Some(rewrite.copied_bytes()) }),
            Step::Ended(why) => return Err(ended(&why)),
        }
        pace.report(&rewrite, connection)?;
        pause(&of, &pace, rewrite.copied_bytes(), connection)?;
    }
}

/// Waits until the next piece is due. Returns an error if the mount ends or the client goes meanwhile.
fn pause(of: &Mounted, pace: &Pace, copied_bytes: u64, connection: &UnixStream) -> Result<()> {
    loop {
        let rest = pace.due(copied_bytes);
        if of.rewrites.rest(rest.min(TELL_EVERY)) {
            return Err(unmounted());
        }
        if has_gone(connection) {
            return Err(Failure::new("whoever asked for it has gone"));
        }
        if rest <= TELL_EVERY {
            return Ok(());
        }
    }
}

fn unmounted() -> Failure {
    Failure::new("its dataset was unmounted").hint("the file is as it was; what was copied is freed")
}

/// Pace of a rewrite, and of its reports.
struct Pace {
    begun: Instant,
    told: Instant,
    /// Largest number of bytes copied per second.
    rate: Option<u64>,
}

impl Pace {
    fn new(rate: Option<u64>) -> Self {
        let now = Instant::now();
        Self { begun: now, told: now, rate: rate.filter(|rate| *rate > 0) }
    }

    fn report(&mut self, rewrite: &Rewrite<'_>, connection: &UnixStream) -> Result<()> {
        if self.told.elapsed() < TELL_EVERY {
            return Ok(());
        }
        self.told = Instant::now();
        let total_bytes = rewrite.size_bytes();
        let done_bytes = total_bytes.saturating_sub(rewrite.left_bytes());
        send_reply(connection, &Reply::Rewriting { done_bytes, total_bytes })
    }

    /// Returns the time until the next piece, after `copied_bytes` in all.
    fn due(&self, copied_bytes: u64) -> Duration {
        let Some(rate) = self.rate else { return Duration::ZERO };
        Duration::from_secs_f64(copied_bytes as f64 / rate as f64).saturating_sub(self.begun.elapsed())
    }
}

fn refused(of: &Mounted, what: &FileRewrite, error: &FsError) -> Failure {
    let failure =
        Failure::new(format!("cannot give it records of {}: {error}", units::size(what.recordsize.into())));
    match error {
        FsError::Busy => Failure::new("it is just being rewritten").hint("wait for the end of the other pagefold rewrite"),
        FsError::ReadOnly => failure.hint(if of.is_read_only() {
            "a snapshot takes no changes; a dataset that is mounted read-only does after: pagefold mount -o remount,rw DIR"
        } else {
            "see what is mounted: pagefold status"
        }),
        FsError::Stale => Failure::new("no file of the dataset has its inode number")
            .hint("it was deleted just now, or lies in a snapshot, which takes no changes"),
        FsError::NoSpace(_) => failure.hint(
            "the file is as it was, and what was copied is freed; while it is copied the file takes its space twice",
        ),
        FsError::Engine(_) | FsError::Corrupt { .. } => {
            failure.hint(format!("the file is as it was; pagefold check tells more ({})", of.export.place().display()))
        }
        _ => failure,
    }
}

fn ended(why: &Ended) -> Failure {
    let as_it_was = "the file keeps its recordsize, and what was copied is freed";
    match why {
        Ended::Moved => {
            Failure::new("it was truncated to nothing, or bytes were moved within it, while it was copied")
                .hint("try again; a file without data gets the recordsize at once")
        }
        Ended::Deleted => Failure::new("it was deleted while it was copied").hint("what was copied is freed"),
        Ended::NotMirrored(error) => {
            Failure::new(format!("a change made by its users could not be made in the copy as well: {error}"))
                .hint(as_it_was)
        }
    }
}
