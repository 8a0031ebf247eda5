use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use parking_lot::Mutex;

use crate::device::devices::FoundMember;
use crate::device::missing::NoDevice;
use crate::device::{
    AlignedBuf, Device, DeviceStats, Devices, InjectedFault, MemberState, SimDevice, SimOp, Span,
};
use crate::{Error, Result};

const SIZE_BYTES: u64 = 1 << 20;

fn sims(count: u64) -> Vec<Arc<SimDevice>> {
    (0..count).map(|seed| Arc::new(SimDevice::new(SIZE_BYTES, seed))).collect()
}

fn handle(sim: &Arc<SimDevice>) -> Arc<dyn Device> {
    Arc::clone(sim) as Arc<dyn Device>
}

fn damage(result: Result<impl Sized>) -> String {
    match result {
        Err(error @ Error::Corrupt { .. }) => error.to_string(),
        Err(other) => panic!("{other:?}"),
        Ok(_) => panic!("it succeeded"),
    }
}

#[test]
fn a_number_without_a_device_is_an_error_of_its_own() {
    let all = sims(2);
    let alone = |number, device: Option<&Arc<SimDevice>>| {
        let state = if device.is_some() { MemberState::Whole } else { MemberState::Away };
        vec![FoundMember { number, device: device.map(handle), state }]
    };
    let devices = Devices::of_pool([alone(0, Some(&all[0])), alone(1, None), alone(2, Some(&all[1]))]);
    assert_eq!((devices.len(), devices.numbers()), (3, 3));
    assert_eq!(devices.here().iter().map(|device| device.number).collect::<Vec<_>>(), [0, 2]);
    assert_eq!(devices.device(1).err(), Some(NoDevice::Missing(1)));
    assert_eq!(devices.state(1), Some((1, MemberState::Away)));
    assert_eq!((devices.size_bytes(2), devices.size_bytes(3)), (Ok(SIZE_BYTES), Err(NoDevice::Unknown(3))));
    let mut buf = AlignedBuf::zeroed(4096);
    for (group, told) in [
        (1, "damaged group number 1: its devices are missing"),
        (3, "damaged group number 3: the pool has no such group of devices"),
    ] {
        let span = Span { group, offset: 0, len_bytes: 1 };
        assert_eq!(damage(devices.plan(span)), told);
        assert_eq!(damage(devices.read(span, |_, _| Ok(()))), told);
        assert_eq!(damage(devices.read_unverified(group, 0, 0, &mut buf)), told);
        assert_eq!(damage(devices.write(group, 0, &buf, false)), told);
        assert_eq!(damage(devices.discard(group, 0, 4096)), told);
        let flushed = devices.flush_some([0, group]).unwrap_err();
        assert_eq!((flushed.group, flushed.error.to_string().as_str()), (group, told));
        assert!(devices.writes_durably(group).is_err());
    }
    // A missing device does not keep the others from being flushed.
    devices.flush().unwrap();
    assert_eq!(all.iter().map(|sim| sim.stats().counts().flushes).collect::<Vec<_>>(), [1, 1]);
}

#[test]
fn bytes_are_verified_before_they_come_out() {
    let all = sims(1);
    let devices = Devices::all(vec![handle(&all[0])]);
    devices.write(0, 4096, &AlignedBuf::from_bytes(&[7; 8192]), true).unwrap();
    let span = Span { group: 0, offset: 8190, len_bytes: 4 };
    let read = |span| {
        devices.read(span, |bytes, from| {
            assert_eq!((from.number, from.path), (0, all[0].path()));
            if bytes.contains(&0) { Err(Error::corrupt("byte", "it is zero")) } else { Ok(bytes.to_vec()) }
        })
    };
    assert_eq!(read(span).unwrap(), [7; 4]);
    assert_eq!(damage(read(Span { offset: 12286, ..span })), "damaged byte: it is zero");
    let beyond = damage(read(Span { offset: SIZE_BYTES - 2, ..span }));
    assert!(beyond.ends_with("it lies beyond the end of the device"), "{beyond}");

    // The same plan, carried out by the caller.
    let mut planned = devices.plan(span).unwrap();
    let (offset, room) = planned.request();
    assert_eq!((offset, room.len()), (4096, 8192));
    room.fill(9);
    let reads = all[0].stats().counts().reads;
    planned.count();
    assert_eq!(all[0].stats().counts().reads, reads + 1);
    assert_eq!(planned.verified(|bytes, _| Ok(bytes.to_vec())).unwrap(), [9; 4]);
}

/// A device whose flush says that it has begun, and ends when the other device's has begun.
struct Meeting {
    inner: Arc<SimDevice>,
    begun: Sender<()>,
    other: Mutex<Receiver<()>>,
}

impl Device for Meeting {
    fn path(&self) -> &std::path::Path {
        self.inner.path()
    }
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }
    fn read(&self, offset: u64, buf: &mut AlignedBuf) -> Result<()> {
        self.inner.read(offset, buf)
    }
    fn write(&self, offset: u64, buf: &AlignedBuf, durable: bool) -> Result<()> {
        self.inner.write(offset, buf, durable)
    }
    fn flush(&self) -> Result<()> {
        self.begun.send(()).unwrap();
        let met = self.other.lock().recv_timeout(Duration::from_secs(20));
        met.map_err(|_| Error::Invalid("the other flush did not begin meanwhile".into()))?;
        self.inner.flush()
    }
    fn discard(&self, offset: u64, len_bytes: u64) -> Result<()> {
        self.inner.discard(offset, len_bytes)
    }
    fn stats(&self) -> &DeviceStats {
        self.inner.stats()
    }
}

/// Two devices whose flushes only end if they are under way at the same time.
fn meeting() -> (Vec<Arc<SimDevice>>, Devices) {
    let all = sims(2);
    let ((first, second_waits), (second, first_waits)) = (channel(), channel());
    let meeting = |at: usize, begun, other| {
        Arc::new(Meeting { inner: Arc::clone(&all[at]), begun, other: Mutex::new(other) }) as Arc<dyn Device>
    };
    let devices = Devices::all(vec![meeting(0, first, first_waits), meeting(1, second, second_waits)]);
    (all, devices)
}

fn fail_flush(sim: &SimDevice) {
    sim.inject(InjectedFault { op: SimOp::Flush, range: 0..u64::MAX, skip: 0, times: 1 });
}

#[test]
fn devices_are_flushed_at_once() {
    let (all, devices) = meeting();
    devices.flush().unwrap();
    devices.flush_some([1, 0]).unwrap();
    assert_eq!(all.iter().map(|sim| sim.stats().counts().flushes).collect::<Vec<_>>(), [2, 2]);
}

#[test]
fn the_first_failed_flush_is_told_with_its_device() {
    for (failing, told) in [(&[1][..], 1), (&[0][..], 0), (&[0, 1][..], 0)] {
        let (all, devices) = meeting();
        failing.iter().for_each(|at| fail_flush(&all[*at]));
        let failure = devices.flush().unwrap_err();
        assert_eq!(failure.group, told);
        assert!(matches!(&failure.error, Error::Io { op: "flush", .. }), "{failure:?}");
        assert!(matches!(Error::from(failure), Error::Io { op: "flush", .. }));
        // The other device has been flushed all the same.
        let flushed: Vec<bool> = all.iter().map(|sim| sim.stats().counts().flushes == 1).collect();
        assert_eq!(flushed, [0, 1].map(|at| !failing.contains(&at)));
    }
}

#[test]
fn devices_that_keep_an_order_are_flushed_in_turn() {
    let all = sims(3);
    let devices = Devices::all(all.iter().map(handle).collect());
    fail_flush(&all[1]);
    assert_eq!(devices.flush().unwrap_err().group, 1);
    assert_eq!(all.iter().map(|sim| sim.stats().counts().flushes).collect::<Vec<_>>(), [1, 0, 1]);
}
