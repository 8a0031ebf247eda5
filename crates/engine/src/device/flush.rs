//! Flushes several devices at once: each takes milliseconds, of which the slowest is enough to wait for.

use super::Device;
use crate::{Error, Result};

/// A flush that failed.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub(crate) struct FlushFailure {
    /// Number of the device.
    pub device: u16,
    /// The device's error.
    pub error: Error,
}

impl From<FlushFailure> for Error {
    fn from(failure: FlushFailure) -> Self {
        failure.error
    }
}

/// Largest number of devices that are flushed at once.
const AT_ONCE_MAX: usize = 16;

/// Flushes devices, up to [`AT_ONCE_MAX`] at once: the first ones by this thread, and others by threads of their own,
/// each of which ends with its first failure. If one of the devices has to keep the order of calls
/// ([`Device::keeps_order`]), they are flushed one after the other, until one fails.
///
/// # Errors
/// The failure of the first device, in the order given, that fails.
pub(super) fn flush_at_once(devices: &[(u16, &dyn Device)]) -> Result<(), FlushFailure> {
    let ordered = devices.iter().any(|(_, device)| device.keeps_order());
    if devices.len() < 2 || ordered {
        return flush_in_turn(devices);
    }
    let mut shares = devices.chunks(devices.len().div_ceil(AT_ONCE_MAX));
    let first = shares.next().unwrap_or_default();
    std::thread::scope(|scope| {
        let begin = |other| {
            let thread = std::thread::Builder::new().name("pf-flush".into());
            (other, thread.spawn_scoped(scope, move || flush_in_turn(other)))
        };
        let begun: Vec<_> = shares.map(begin).collect();
        let mut flushed = vec![flush_in_turn(first)];
        for (other, thread) in begun {
            flushed.push(match thread {
                Ok(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
                // If no thread can be had, this one does it.
                Err(_) => flush_in_turn(other),
            });
        }
        flushed.into_iter().collect()
    })
}

fn flush_in_turn(devices: &[(u16, &dyn Device)]) -> Result<(), FlushFailure> {
    let flush = |(number, device): &(u16, &dyn Device)| {
        device.flush().map_err(|error| FlushFailure { device: *number, error })
    };
    devices.iter().try_for_each(flush)
}
