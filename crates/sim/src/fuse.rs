//! Cuts the power of all devices of a pool at once.

use std::sync::Arc;

use pagefold_engine::device::SimDevice;
use parking_lot::Mutex;

/// Counts the calls to devices down to a power cut that strikes all of them.
#[derive(Default)]
pub(crate) struct Fuse {
    devices: Vec<Arc<SimDevice>>,
    left: Mutex<Option<u64>>,
}

impl Fuse {
    /// Returns a fuse of these devices, which goes on counting where `before` is.
    pub(crate) fn new(devices: &[Arc<SimDevice>], before: &Self) -> Arc<Self> {
        Arc::new(Self { devices: devices.to_vec(), left: Mutex::new(*before.left.lock()) })
    }

    /// Arms a power cut: in the middle of the call to any device that comes after `calls` more of them. With `None`
    /// there is none.
    pub(crate) fn arm(&self, calls: Option<u64>) {
        *self.left.lock() = calls;
    }

    /// Counts a write or flush, which has not begun yet.
    pub(crate) fn call(&self) {
        let mut left = self.left.lock();
        *left = match *left {
            Some(0) => {
                self.devices.iter().for_each(|device| device.cut_after(0));
                None
            }
            Some(calls) => Some(calls - 1),
            None => None,
        };
    }
}
