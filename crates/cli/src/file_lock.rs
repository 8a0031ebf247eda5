//! Locks files, so that no two processes do certain work at the same time.

use std::fs::File;
use std::thread;
use std::time::Instant;

use pagefold_server::failure::{Context, Failure, Result};
use pagefold_server::timeouts;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// Locks `file`, and waits for other processes that have it, for at most [`timeouts::TURN`]. `others` names these
/// processes in the message that is printed after a second.
pub fn wait(file: &File, others: &str) -> Result<()> {
    let started = Instant::now();
    let mut told = false;
    loop {
        match flock(file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(()),
            Err(Errno::WOULDBLOCK | Errno::INTR) => {}
            Err(errno) => return Err(errno).context(|| format!("cannot wait for {others}")),
        }
        if started.elapsed() > timeouts::TURN {
            return Err(Failure::new(format!("{others} has not ended after {} s", timeouts::TURN.as_secs()))
                .hint("see what it does (ps -C pagefold), then try again"));
        }
        if started.elapsed() > timeouts::TELL_AFTER && !std::mem::replace(&mut told, true) {
            eprintln!("pagefold: waiting for {others}");
        }
        thread::sleep(timeouts::TURN_STEP);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_comes_second_waits_for_the_first() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let first = File::open(file.path()).unwrap();
        wait(&first, "nobody").unwrap();
        thread::scope(|scope| {
            let second = scope.spawn(|| wait(&File::open(file.path()).unwrap(), "the first"));
            thread::sleep(timeouts::TURN_STEP * 3);
            assert!(!second.is_finished());
            drop(first);
            second.join().unwrap().unwrap();
        });
    }
}
