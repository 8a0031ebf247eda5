//! Flushes several devices at once: each takes milliseconds, of which the slowest is enough to wait for.

use super::Device;
use crate::{Error, Result};

/// A flush that failed.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct FlushFailure {
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

/// Flushes devices: the first by this thread, and each other one by a thread of its own. If one of them has to keep the
/// order of calls ([`Device::keeps_order`]), they are flushed one after the other, until one fails.
///
/// # Errors
/// The failure of the first device, in the order given, that fails.
pub(super) fn flush_at_once(devices: &[(u16, &dyn Device)]) -> Result<(), FlushFailure> {
    let ordered = devices.iter().any(|(_, device)| device.keeps_order());
    let (first, others) = match devices {
        [first, others @ ..] if !others.is_empty() && !ordered => (first, others),
        few => return few.iter().try_for_each(flush_one),
    };
    std::thread::scope(|scope| {
        let begin = |other| {
            let thread = std::thread::Builder::new().name("pf-flush".into());
            (other, thread.spawn_scoped(scope, move || flush_one(other)))
        };
        let begun: Vec<_> = others.iter().map(begin).collect();
        let mut flushed = vec![flush_one(first)];
        for (other, thread) in begun {
            flushed.push(match thread {
                Ok(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
                // If no thread can be had, this one does it.
                Err(_) => flush_one(other),
            });
        }
        flushed.into_iter().collect()
    })
}

fn flush_one((number, device): &(u16, &dyn Device)) -> Result<(), FlushFailure> {
    device.flush().map_err(|error| FlushFailure { device: *number, error })
}
