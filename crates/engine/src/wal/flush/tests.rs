use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use parking_lot::Mutex;

use super::{BatchWritten, Flushes};
use crate::device::{AlignedBuf, Device, Devices, InjectedFault, IoClass, SimDevice, SimOp};

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

/// A device whose first flush waits for the test, which says how it ends. The device counts the others, which succeed at
/// once.
struct Slow {
    sim: SimDevice,
    wait: Mutex<Option<Receiver<crate::Result<()>>>>,
    others: AtomicU64,
}

impl Slow {
    /// Returns the device, and the way to end its first flush.
    fn new() -> (Arc<Self>, Sender<crate::Result<()>>) {
        let (end, wait) = channel();
        let (sim, wait) = (SimDevice::new(1 << 20, 0), Mutex::new(Some(wait)));
        (Arc::new(Self { sim, wait, others: AtomicU64::default() }), end)
    }

    /// Waits until its first flush has begun.
    fn wait_until_flushing(&self) {
        while self.wait.lock().is_some() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits until another flush has succeeded, and for a moment in which what follows from that may be noted.
    fn wait_until_overtaken(&self) {
        while self.others.load(Ordering::Acquire) == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

impl Device for Slow {
    fn path(&self) -> &std::path::Path {
        self.sim.path()
    }
    fn size_bytes(&self) -> u64 {
        self.sim.size_bytes()
    }
    fn read(&self, offset: u64, buf: &mut AlignedBuf) -> crate::Result<()> {
        self.sim.read(offset, buf)
    }
    fn write(&self, offset: u64, buf: &AlignedBuf, durable: bool) -> crate::Result<()> {
        self.sim.write(offset, buf, durable)
    }
    fn flush(&self) -> crate::Result<()> {
        let wait = self.wait.lock().take();
        if let Some(wait) = wait {
            return wait.recv().unwrap();
        }
        self.others.fetch_add(1, Ordering::AcqRel);
        Ok(())
    }
    fn discard(&self, offset: u64, len_bytes: u64) -> crate::Result<()> {
        self.sim.discard(offset, len_bytes)
    }
    fn stats(&self) -> &crate::device::DeviceStats {
        self.sim.stats()
    }
}

fn failure() -> crate::Error {
    crate::Error::Failed("the first flush".into())
}

/// Flushes on a thread.
fn flush_beside(
    flushes: &Arc<Flushes>,
    flush: fn(&Flushes) -> crate::Result<()>,
) -> std::thread::JoinHandle<crate::Result<()>> {
    let flushes = Arc::clone(flushes);
    std::thread::spawn(move || flush(&flushes))
}

#[test]
fn a_flush_that_overtook_another_learns_of_its_failure() {
    let (slow, end) = Slow::new();
    let flushes = Arc::new(Flushes::new(Devices::all(vec![Arc::clone(&slow) as Arc<dyn Device>])));
    flushes.wrote(0);
    let first = flush_beside(&flushes, Flushes::flush);
    slow.wait_until_flushing();
    // The device lets the second flush succeed at once, while the first one is still under way.
    let (told, outcome) = channel();
    let second = std::thread::spawn({
        let flushes = Arc::clone(&flushes);
        move || told.send(flushes.flush().is_err()).unwrap()
    });
    assert!(outcome.recv_timeout(Duration::from_millis(50)).is_err(), "it ended before the one before it");
    end.send(Err(failure())).unwrap();
    assert!(first.join().unwrap().is_err());
    assert!(outcome.recv().unwrap());
    second.join().unwrap();
}

#[test]
fn a_flush_that_overtook_another_counts_only_once_that_one_has_succeeded() {
    for fails in [false, true] {
        let (slow, end) = Slow::new();
        let flushes = Arc::new(Flushes::new(Devices::all(vec![Arc::clone(&slow) as Arc<dyn Device>])));
        flushes.wrote(0);
        flushes.wrote_batch(1, BatchWritten::NotDurable);
        let first = flush_beside(&flushes, Flushes::flush);
        slow.wait_until_flushing();
        let second = flush_beside(&flushes, |flushes| flushes.settle_as(IoClass::AsyncWrite));
        slow.wait_until_overtaken();
        // A write that is durable by itself would count, and what came before it may be lost.
        assert!(!flushes.nothing_waits());
        assert_eq!((flushes.flushed_batch(), flushes.settled_batch()), (0, 0));
        end.send(if fails { Err(failure()) } else { Ok(()) }).unwrap();
        assert_eq!(first.join().unwrap().is_err(), fails);
        assert_eq!(second.join().unwrap().is_err(), fails);
        assert_eq!(flushes.nothing_waits(), !fails);
        let batch = u64::from(!fails);
        assert_eq!((flushes.flushed_batch(), flushes.settled_batch()), (batch, batch));
    }
}

#[test]
fn a_flush_of_the_log_device_that_overtook_another_counts_only_once_that_one_has_succeeded() {
    for fails in [false, true] {
        let (slow, end) = Slow::new();
        let sim = Arc::new(SimDevice::new(1 << 20, 1));
        let devices = vec![Arc::clone(&sim) as Arc<dyn Device>, Arc::clone(&slow) as Arc<dyn Device>];
        let flushes = Arc::new(Flushes::new(Devices::all(devices)));
        flushes.set_log_device(Some(1));
        flushes.wrote_for_checkpoint(0);
        flushes.wrote_to_log_device();
        flushes.wrote_batch(1, BatchWritten::NotDurable);
        let first = flush_beside(&flushes, Flushes::flush);
        slow.wait_until_flushing();
        let second = flush_beside(&flushes, Flushes::flush);
        slow.wait_until_overtaken();
        assert!(!flushes.log_device_is_flushed());
        assert_eq!(flushes.flushed_batch(), 0);
        end.send(if fails { Err(failure()) } else { Ok(()) }).unwrap();
        first.join().unwrap().unwrap();
        second.join().unwrap().unwrap();
        assert_eq!(flushes.flushed_batch(), 1);
        // The other device was flushed if the log device failed, and only then.
        assert_eq!((flushes.has_lost_log_device(), flushes.nothing_waits()), (fails, fails));
        assert_eq!(flushes.settled_batch(), u64::from(fails));
    }
}
