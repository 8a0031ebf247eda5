use std::sync::Arc;
use std::time::Duration;

use super::Flushes;
use crate::device::{AlignedBuf, Device, Devices, InjectedFault, SimDevice, SimOp};

fn two() -> (Vec<Arc<SimDevice>>, Devices) {
    let sims: Vec<_> = (0..2).map(|seed| Arc::new(SimDevice::new(1 << 20, seed))).collect();
    let devices = sims.iter().map(|sim| Arc::clone(sim) as Arc<dyn Device>).collect();
    (sims, Devices::all(devices))
}

#[test]
fn only_devices_with_new_writes_are_flushed() {
    let (sims, devices) = two();
    let flushes = Flushes::new(devices);
    assert!(flushes.nothing_waits());
    flushes.wrote(1);
    assert!(!flushes.nothing_waits());
    flushes.flush().unwrap();
    assert!(flushes.nothing_waits());
    flushes.flush().unwrap();
    let counts: Vec<u64> = sims.iter().map(|sim| sim.stats().counts().flushes).collect();
    assert_eq!(counts, [0, 1]);
}

#[test]
fn a_failure_is_told_to_all_who_come_after() {
    let (sims, devices) = two();
    let flushes = Flushes::new(devices);
    sims[0].inject(InjectedFault { op: SimOp::Flush, range: 0..u64::MAX, skip: 0, times: 1 });
    flushes.wrote(0);
    assert!(flushes.flush().is_err());
    // Nothing is left to flush on the other device, but still nothing may be acknowledged.
    assert!(flushes.flush().is_err());
}

/// A device whose first flush waits for the test, and fails.
struct Slow(SimDevice, parking_lot::Mutex<Option<std::sync::mpsc::Receiver<()>>>);

impl Device for Slow {
    fn path(&self) -> &std::path::Path {
        self.0.path()
    }
    fn size_bytes(&self) -> u64 {
        self.0.size_bytes()
    }
    fn read(&self, offset: u64, buf: &mut AlignedBuf) -> crate::Result<()> {
        self.0.read(offset, buf)
    }
    fn write(&self, offset: u64, buf: &AlignedBuf, durable: bool) -> crate::Result<()> {
        self.0.write(offset, buf, durable)
    }
    fn flush(&self) -> crate::Result<()> {
        let wait = self.1.lock().take();
        match wait {
            Some(wait) => {
                wait.recv().unwrap();
                Err(crate::Error::Failed("the first flush".into()))
            }
            None => Ok(()),
        }
    }
    fn discard(&self, offset: u64, len_bytes: u64) -> crate::Result<()> {
        self.0.discard(offset, len_bytes)
    }
    fn stats(&self) -> &crate::device::DeviceStats {
        self.0.stats()
    }
}

#[test]
fn a_flush_that_overtook_another_learns_of_its_failure() {
    let (go, wait) = std::sync::mpsc::channel();
    let slow = Arc::new(Slow(SimDevice::new(1 << 20, 0), parking_lot::Mutex::new(Some(wait))));
    let flushes = Arc::new(Flushes::new(Devices::all(vec![Arc::clone(&slow) as Arc<dyn Device>])));
    flushes.wrote(0);
    let first = std::thread::spawn({
        let flushes = Arc::clone(&flushes);
        move || flushes.flush()
    });
    while slow.1.lock().is_some() {
        std::thread::sleep(Duration::from_millis(1));
    }
    // The device lets the second flush succeed at once, while the first one is still under way.
    let (told, outcome) = std::sync::mpsc::channel();
    let second = std::thread::spawn({
        let flushes = Arc::clone(&flushes);
        move || told.send(flushes.flush().is_err()).unwrap()
    });
    assert!(outcome.recv_timeout(Duration::from_millis(50)).is_err(), "it ended before the one before it");
    go.send(()).unwrap();
    assert!(first.join().unwrap().is_err());
    assert!(outcome.recv().unwrap());
    second.join().unwrap();
}
