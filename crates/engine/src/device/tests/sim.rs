use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::Mutex;
use proptest::prelude::*;

use super::super::lane::Lane;
use crate::Error;
use crate::device::{AlignedBuf, Device, InjectedFault, IoClass, SimDevice, SimOp};

const SIZE: u64 = 1 << 20;

fn page(byte: u8) -> AlignedBuf {
    AlignedBuf::from_bytes(&[byte; 4096])
}

fn read(device: &SimDevice, offset: u64) -> Vec<u8> {
    let mut buf = AlignedBuf::scratch(4096);
    device.read(offset, &mut buf).unwrap();
    buf.to_vec()
}

#[test]
fn a_crash_keeps_what_was_flushed_and_any_choice_of_the_rest() {
    let device = SimDevice::new(SIZE, 1);
    device.write(0, &page(1), false).unwrap();
    device.flush().unwrap();
    device.write(0, &page(2), false).unwrap();
    device.write(0, &page(3), false).unwrap();
    assert_eq!(read(&device, 0), [3; 4096]);
    assert_eq!(device.unflushed_sectors(), 8);

    assert_eq!(read(&device.crash(&mut |_| 0), 0), [1; 4096]);
    assert_eq!(read(&device.crash(&mut |_| 1), 0), [2; 4096]);
    assert_eq!(read(&device.crash(&mut |n| n), 0), [3; 4096]);
    let mut sector = 0;
    let torn = device.crash(&mut |_| {
        sector += 1;
        sector % 3
    });
    let content = read(&torn, 0);
    assert_eq!([content[0], content[511], content[512], content[1024], content[1536]], [2, 2, 3, 1, 2]);
    assert_eq!(torn.unflushed_sectors(), 0);
    // The crashed device is not touched by what happens on its image.
    torn.write(0, &page(9), true).unwrap();
    assert_eq!(read(&device, 0), [3; 4096]);

    device.flush().unwrap();
    assert_eq!(read(&device.crash(&mut |_| 0), 0), [3; 4096]);
}

#[test]
fn a_crash_by_writes_keeps_or_loses_each_as_a_whole() {
    let device = SimDevice::new(SIZE, 1);
    device.write(0, &page(1), true).unwrap();
    device.write(0, &page(2), false).unwrap();
    device.write(8192, &page(3), false).unwrap();
    device.write(0, &page(4), false).unwrap();
    let images: BTreeSet<_> = (0..100)
        .map(|seed| {
            let image = device.crash_by_writes(seed);
            let (first, second) = (read(&image, 0), read(&image, 8192));
            assert!([&first, &second].iter().all(|content| content.iter().all(|byte| *byte == content[0])));
            (first[0], second[0])
        })
        .collect();
    // Of two writes to one place, the newer one that survives counts.
    assert_eq!(images, BTreeSet::from([(1, 0), (1, 3), (2, 0), (2, 3), (4, 0), (4, 3)]));
    assert_eq!(
        [0, 1, 2, 3, 4].map(|back| device.latest_place(back)),
        [Some(0), Some(8192), Some(0), Some(0), None]
    );
}

#[test]
fn seeded_crashes_differ_and_repeat() {
    let device = SimDevice::new(SIZE, 1);
    device.write(0, &page(1), false).unwrap();
    let images: BTreeSet<_> = (0..50).map(|seed| read(&device.crash_seeded(seed), 0)).collect();
    assert!(images.len() > 25);
    assert_eq!(read(&device.crash_seeded(7), 0), read(&device.crash_seeded(7), 0));
}

#[test]
fn a_watcher_sees_every_instant_that_makes_a_difference() {
    let device = Arc::new(SimDevice::new(SIZE, 1));
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (watched, log) = (Arc::downgrade(&device), Arc::clone(&seen));
    device.watch(move || {
        let Some(device) = watched.upgrade() else { return };
        // The least and the most that a power cut may leave at this instant.
        let least = read(&device.crash(&mut |_| 0), 0)[0];
        log.lock().push((least, read(&device.crash(&mut |n| n), 0)[0]));
    });
    device.write(0, &page(1), false).unwrap();
    device.flush().unwrap();
    device.write(0, &page(2), true).unwrap();
    device.write(0, &page(3), false).unwrap();
    device.write(0, &page(4), true).unwrap();
    device.discard(4096, 4096).unwrap();
    assert_eq!(*seen.lock(), [(0, 0), (0, 1), (1, 1), (1, 2), (2, 2), (2, 3), (2, 4), (4, 4)]);
    // Watching leaves no trace.
    assert_eq!(device.unflushed_sectors(), 0);
    assert_eq!(read(&device.crash(&mut |_| 0), 0), [4; 4096]);
}

#[test]
fn a_durable_write_covers_itself_alone() {
    let device = SimDevice::new(SIZE, 1);
    device.write(0, &page(1), false).unwrap();
    device.write(4096, &page(2), true).unwrap();
    let image = device.crash(&mut |_| 0);
    assert_eq!(read(&image, 0), [0; 4096]);
    assert_eq!(read(&image, 4096), [2; 4096]);
    // A durable write over an unflushed one leaves nothing of the latter.
    device.write(0, &page(3), true).unwrap();
    assert_eq!(read(&device.crash(&mut |n| n / 2), 0), [3; 4096]);
}

#[test]
fn a_failed_flush_loses_data_for_good_and_latches() {
    let device = SimDevice::new(SIZE, 3);
    device.write(0, &page(1), true).unwrap();
    device.write(0, &page(2), false).unwrap();
    device.inject(InjectedFault { op: SimOp::Flush, range: 0..0, skip: 0, times: 1 });
    assert!(matches!(device.flush(), Err(Error::Io { op: "flush", .. })));
    assert_eq!(read(&device, 0), [2; 4096]);
    for _ in 0..2 {
        assert!(matches!(device.flush(), Err(Error::Failed(_))));
    }
    assert!(matches!(device.write(4096, &page(5), true), Err(Error::Failed(_))));
    let kept: BTreeSet<_> = (0..20).map(|seed| read(&device.crash_seeded(seed), 0)).collect();
    assert_eq!(kept.len(), 1, "the loss is decided when the flush fails");
    assert_ne!(kept.first().unwrap()[..], [2; 4096], "seed 3 loses at least one sector");
    // Another process may flush again; that does not bring back what was lost.
    device.reopen();
    device.flush().unwrap();
    assert_eq!(read(&device.crash(&mut |n| n), 0), *kept.first().unwrap());
    // A write that comes later is a new one, over what was kept.
    device.write(0, &page(6), false).unwrap();
    assert_eq!(read(&device.crash(&mut |n| n), 0), [6; 4096]);
    assert_eq!(read(&device.crash(&mut |_| 0), 0), *kept.first().unwrap());
}

#[test]
fn faults_strike_the_calls_they_name() {
    let device = SimDevice::new(SIZE, 1);
    device.inject(InjectedFault { op: SimOp::Read, range: 8192..12288, skip: 1, times: 2 });
    let mut buf = AlignedBuf::scratch(8192);
    let lane = Lane::to(&device, IoClass::Log);
    let mut outcomes = Vec::new();
    for offset in [0, 4096, 4096, 12288, 8192, 8192] {
        outcomes.push(lane.read(offset, &mut buf).is_ok());
    }
    assert_eq!(outcomes, [true, true, false, true, false, true]);
    device.inject(InjectedFault { op: SimOp::Write, range: 0..SIZE, skip: 0, times: u64::MAX });
    assert!(lane.write(0, &page(1), false).is_err());
    assert!(lane.write(0, &page(1), false).is_err());
    device.clear_faults();
    lane.write(0, &page(1), false).unwrap();
    let counts = device.stats().counts();
    assert_eq!((counts.reads, counts.writes, counts.errors), (4, 1, 4));
}

#[test]
fn a_power_cut_strikes_inside_a_write_and_stays() {
    let device = SimDevice::new(SIZE, 1);
    device.cut_after(2);
    device.write(0, &page(1), true).unwrap();
    device.flush().unwrap();
    assert!(!device.is_off());
    assert!(device.write(4096, &page(2), true).is_err());
    assert!(device.is_off());
    assert!(device.flush().is_err());
    assert!(device.read(0, &mut AlignedBuf::scratch(4096)).is_err());
    let kept: BTreeSet<_> = (0..30).map(|seed| read(&device.crash_seeded(seed), 4096)).collect();
    assert!(kept.len() > 10, "any part of the write that was cut may be there");
    assert_eq!(read(&device.crash_seeded(1), 0), [1; 4096]);
}

#[test]
fn flipped_bits_stay_flipped() {
    let device = SimDevice::new(SIZE, 1);
    device.write(0, &page(0), true).unwrap();
    device.write(4096, &page(0), false).unwrap();
    device.flip_bit(10, 3);
    device.flip_bit(4097, 7);
    device.flip_bit(u64::MAX, 7);
    assert_eq!((read(&device, 0)[10], read(&device, 4096)[1]), (8, 128));
    let image = device.crash_seeded(1);
    assert_eq!((read(&image, 0)[10], read(&image, 4096)[1]), (8, 128));
}

#[test]
fn transfers_outside_or_unaligned_are_refused() {
    let device = SimDevice::new(SIZE + 100, 1);
    assert_eq!(device.size_bytes(), SIZE);
    let mut buf = AlignedBuf::zeroed(8192);
    for offset in [1, SIZE - 4096, SIZE, u64::MAX - 4095] {
        assert!(matches!(device.read(offset, &mut buf), Err(Error::Invalid(_))));
        assert!(matches!(device.write(offset, &buf, false), Err(Error::Invalid(_))));
    }
}

#[test]
fn discarded_ranges_read_as_anything() {
    let device = SimDevice::new(SIZE, 1);
    for block in 0..30 {
        device.write(block * 4096, &page(7), false).unwrap();
    }
    device.discard(0, 30 * 4096).unwrap();
    let kinds: BTreeSet<_> = (0..30).map(|block| read(&device, block * 4096)[0..8] == [7; 8]).collect();
    assert_eq!(kinds.len(), 2);
}

#[derive(Clone, Debug)]
enum DeviceStep {
    Write { block: u64, byte: u8, durable: bool },
    Flush { fails: bool },
    Crash { seed: u64 },
}

fn steps() -> impl Strategy<Value = Vec<DeviceStep>> {
    let step = prop_oneof![
        6 => (0u64..3, any::<u8>(), proptest::bool::weighted(0.2))
            .prop_map(|(block, byte, durable)| DeviceStep::Write { block, byte, durable }),
        2 => proptest::bool::weighted(0.2).prop_map(|fails| DeviceStep::Flush { fails }),
        1 => any::<u64>().prop_map(|seed| DeviceStep::Crash { seed }),
    ];
    proptest::collection::vec(step, 1..60)
}

/// Content that a block must show now, and contents that each of its sectors may have after a crash.
#[derive(Clone, Default)]
struct Expected {
    now: Vec<u8>,
    after_crash: Vec<BTreeSet<u8>>,
}

proptest! {
    #[test]
    fn only_what_the_fault_model_allows_survives(steps in steps()) {
        let mut device = SimDevice::new(SIZE, 5);
        let mut blocks =
            vec![Expected { now: vec![0; 8], after_crash: vec![BTreeSet::from([0]); 8] }; 3];
        for step in steps {
            match step {
                DeviceStep::Write { block, byte, durable } => {
                    let done = device.write(block * 4096, &page(byte), durable);
                    let expected = &mut blocks[block as usize];
                    if done.is_ok() {
                        expected.now = vec![byte; 8];
                        for allowed in &mut expected.after_crash {
                            if durable {
                                allowed.clear();
                            }
                            allowed.insert(byte);
                        }
                    } else {
                        // The latch refused it before anything was stored.
                        prop_assert!(durable);
                    }
                }
                DeviceStep::Flush { fails } => {
                    if fails {
                        device.inject(InjectedFault { op: SimOp::Flush, range: 0..0, skip: 0, times: 1 });
                    }
                    if device.flush().is_ok() {
                        prop_assert!(!fails);
                        for expected in &mut blocks {
                            expected.after_crash = expected.now.iter().map(|&byte| BTreeSet::from([byte])).collect();
                        }
                    }
                    device.clear_faults();
                }
                DeviceStep::Crash { seed } => {
                    device = device.crash_seeded(seed);
                    for (block, expected) in (0..).zip(&mut blocks) {
                        let content = read(&device, block * 4096);
                        for (sector, allowed) in content.chunks(512).zip(&expected.after_crash) {
                            prop_assert!(sector.iter().all(|&byte| byte == sector[0]), "torn inside a sector");
                            prop_assert!(allowed.contains(&sector[0]), "{} is not among {allowed:?}", sector[0]);
                        }
                        expected.now = content.chunks(512).map(|sector| sector[0]).collect();
                        expected.after_crash = expected.now.iter().map(|&byte| BTreeSet::from([byte])).collect();
                    }
                }
            }
            for (block, expected) in (0..).zip(&blocks) {
                let content = read(&device, block * 4096);
                prop_assert!(content.chunks(512).zip(&expected.now).all(|(sector, &byte)| sector == [byte; 512]));
            }
        }
    }
}

#[test]
fn blocks_that_cannot_be_read_stay_so_until_they_are_written() {
    let device = SimDevice::new(SIZE, 1);
    device.write(0, &AlignedBuf::from_bytes(&[1; 3 * 4096]), true).unwrap();
    device.spoil(4096 + 17);
    let image = device.crash(&mut |_| 0);
    let mut buf = AlignedBuf::scratch(2 * 4096);
    for device in [&device, &image] {
        assert_eq!(read(device, 0), [1; 4096]);
        assert_eq!(read(device, 8192), [1; 4096]);
        assert!(device.read(4096, &mut buf).is_err() && device.read(0, &mut buf).is_err());
    }
    image.write(4096, &page(2), false).unwrap();
    assert_eq!(read(&image, 4096), [2; 4096]);
    let cleared = device.crash(&mut |_| 0);
    cleared.clear_unreadable();
    assert_eq!(read(&cleared, 4096), [0; 4096]);
    assert!(device.read(4096, &mut buf).is_err(), "it is another device");
}

#[test]
fn writes_that_are_lost_later_are_gone_for_good() {
    let device = SimDevice::new(SIZE, 1);
    device.write(4096, &page(1), true).unwrap();
    let older = device.crash(&mut |n| n);
    device.write(4096, &page(2), true).unwrap();
    device.write(4096, &page(3), false).unwrap();
    device.lose_writes(4096, &older);
    assert_eq!(read(&device, 4096), [1; 4096]);
    assert_eq!(read(&device.crash(&mut |n| n), 4096), [1; 4096]);
}
