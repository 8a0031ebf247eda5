use std::sync::Arc;

use crate::device::recorded::Event;
use crate::device::recorded::{EVENT_BYTES, MAGIC};
use crate::device::{AlignedBuf, Device, RecordedDevice, Recording, SimDevice};

/// An event as read: kind, durable, device, call, offset, length, bytes of a write.
type Read = (u8, u8, u16, u64, u64, u64, Vec<u8>);

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

fn events(mut rest: &[u8]) -> (Vec<Read>, Vec<u64>) {
    let (mut events, mut times) = (Vec::new(), Vec::new());
    while !rest.is_empty() {
        let (head, after) = rest.split_at(EVENT_BYTES);
        let len = if head[0] == Event::Write as u8 { number(&head[32..40]) as usize } else { 0 };
        let (data, after) = after.split_at(len);
        let (call, offset, len) = (number(&head[8..16]), number(&head[24..32]), number(&head[32..40]));
        events.push((head[0], head[1], number(&head[2..4]) as u16, call, offset, len, data.to_vec()));
        times.push(number(&head[16..24]));
        rest = after;
    }
    (events, times)
}

#[test]
fn what_a_device_does_is_written_down_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("recording");
    let recording = Recording::create(&path, &[1 << 20, 2 << 20]).unwrap();
    let device = RecordedDevice::new(Arc::new(SimDevice::new(2 << 20, 1)), 1, Arc::clone(&recording));
    let mut block = AlignedBuf::zeroed(4096);
    block.fill(7);
    device.write(8192, &block, false).unwrap();
    device.flush().unwrap();
    device.write(4096, &block, true).unwrap();
    device.discard(0, 4096).unwrap();

    let bytes = std::fs::read(&path).unwrap();
    assert_eq!(&bytes[..8], MAGIC);
    assert_eq!(
        (number(&bytes[8..16]), number(&bytes[16..24]), number(&bytes[24..32])),
        (2, 1 << 20, 2 << 20)
    );
    let (events, times) = events(&bytes[32..]);
    let data = vec![7; 4096];
    let expected = [
        (1, 0, 1, 1, 8192, 4096, data.clone()),
        (2, 0, 1, 1, 8192, 4096, vec![]),
        (3, 0, 1, 2, 0, 0, vec![]),
        (4, 0, 1, 2, 0, 0, vec![]),
        (1, 1, 1, 3, 4096, 4096, data),
        (2, 1, 1, 3, 4096, 4096, vec![]),
        (5, 0, 1, 4, 0, 4096, vec![]),
    ];
    assert_eq!(events, expected);
    assert!(times.is_sorted() && times[0] > 0);
    let mut read = AlignedBuf::zeroed(4096);
    device.read(8192, &mut read).unwrap();
    assert_eq!(read[..], block[..], "the device itself has it too");
}

#[test]
fn what_failed_has_no_end_and_an_older_recording_is_not_overwritten() {
    use crate::device::{InjectedFault, SimOp};
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("recording");
    let recording = Recording::create(&path, &[1 << 20]).unwrap();
    let sim = SimDevice::new(1 << 20, 1);
    sim.inject(InjectedFault { op: SimOp::Flush, range: 0..u64::MAX, skip: 0, times: 1 });
    let device = RecordedDevice::new(Arc::new(sim), 0, recording);
    device.flush().unwrap_err();
    let (events, _) = events(&std::fs::read(&path).unwrap()[24..]);
    assert_eq!(events.iter().map(|event| event.0).collect::<Vec<_>>(), [Event::Flush as u8]);
    assert!(Recording::create(&path, &[1 << 20]).is_err());
}
