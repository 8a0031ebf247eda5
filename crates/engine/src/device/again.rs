//! Reads again what a device failed to read and no other one has.
//!
//! Some devices fail a read now and then, and succeed the next time: a bus that is disturbed, a path that is switched, a
//! server that is restarted. While another member of a mirror has the bytes, it is asked instead. The last one that has
//! them is asked again, a few times, as long as it answers at once: a disc that spends seconds on each attempt has tried
//! for itself.

use std::thread;
use std::time::{Duration, Instant};

use crate::{Error, Result};

/// Pauses before further attempts.
const PAUSES: [Duration; 3] = [Duration::ZERO, Duration::from_millis(1), Duration::from_millis(4)];
/// Longest time that an attempt may take if another one is to follow.
const AT_ONCE: Duration = Duration::from_millis(100);

/// Tries to read again. Returns the first result that is no error of the device; `None` if there was none.
pub(super) fn again<T>(mut read: impl FnMut() -> Result<T>) -> Option<Result<T>> {
    for pause in PAUSES {
        thread::sleep(pause);
        let began = Instant::now();
        match read() {
            Err(Error::Io { .. }) if began.elapsed() <= AT_ONCE => {}
            Err(Error::Io { .. }) => return None,
            read => return Some(read),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed() -> Error {
        let source = std::io::Error::from_raw_os_error(libc::EIO);
        Error::Io { op: "read", device: "a device".into(), offset: 0, len_bytes: 1, source }
    }

    #[test]
    fn an_attempt_that_succeeds_is_the_last() {
        for wanted in 1..=PAUSES.len() {
            let mut attempts = 0;
            let read = again(|| {
                attempts += 1;
                if attempts < wanted { Err(failed()) } else { Ok(attempts) }
            });
            assert_eq!((read.unwrap().unwrap(), attempts), (wanted, wanted));
        }
        assert!(again(|| Err::<(), _>(failed())).is_none());
    }

    #[test]
    fn a_device_that_is_slow_to_fail_is_not_asked_again() {
        let mut attempts = 0;
        let read = again(|| {
            attempts += 1;
            thread::sleep(2 * AT_ONCE);
            Err::<(), _>(failed())
        });
        assert!(read.is_none());
        assert_eq!(attempts, 1);
    }

    #[test]
    fn what_is_damaged_is_not_read_again() {
        let mut attempts = 0;
        let read = again(|| {
            attempts += 1;
            Err::<(), _>(Error::corrupt("a record", "its checksum does not hold"))
        });
        assert!(read.unwrap().is_err());
        assert_eq!(attempts, 1);
    }
}
