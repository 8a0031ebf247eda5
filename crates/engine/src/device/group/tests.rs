use std::path::Path;
use std::sync::atomic::AtomicU32;

use parking_lot::Mutex;

use super::*;
use crate::device::devices::FoundMember;
use crate::device::{Devices, InjectedFault, SimDevice, SimOp, Span};
use crate::limits::DEVICE_BYTES_MIN;

const BLOCK: u64 = BLOCK_BYTES as u64;

/// Two devices of a mirror, and what was asked of the one who writes their labels.
struct Mirror {
    sims: Vec<Arc<SimDevice>>,
    devices: Devices,
    labels: Arc<RecordedStates>,
}

#[derive(Default)]
struct RecordedStates {
    recorded: AtomicU32,
    refuses: AtomicU32,
    corrected: Mutex<Vec<(u16, bool)>>,
}

impl Roster for RecordedStates {
    fn record(&self, _group: u16) -> Result<()> {
        self.recorded.fetch_add(1, Ordering::SeqCst);
        match self.refuses.load(Ordering::SeqCst) {
            0 => Ok(()),
            _ => Err(Error::Failed("no label can be written".into())),
        }
    }

    fn takes_writes(&self) -> bool {
        true
    }

    fn corrected(&self, device: u16, _place: (u16, u64), _error: &Error, repaired: &Result<()>) {
        self.corrected.lock().push((device, repaired.is_ok()));
    }
}

fn mirror(states: &[MemberState]) -> Mirror {
    let sims: Vec<Arc<SimDevice>> =
        (0..states.len()).map(|number| Arc::new(SimDevice::new(DEVICE_BYTES_MIN, number as u64))).collect();
    let member = |((sim, state), number): ((&Arc<SimDevice>, &MemberState), u16)| FoundMember {
        number,
        device: Some(Arc::clone(sim) as Arc<dyn Device>),
        state: *state,
    };
    let members = sims.iter().zip(states).zip(0..).map(member).collect();
    let devices = Devices::of_pool([members]);
    // Each test says what they lack.
    (0..).zip(states).for_each(|(number, _)| devices.set_complete(number));
    let labels = Arc::new(RecordedStates::default());
    let roster: std::sync::Weak<dyn Roster> = Arc::downgrade(&labels) as _;
    devices.set_roster(roster);
    Mirror { sims, devices, labels }
}

fn block(with: u8) -> AlignedBuf {
    AlignedBuf::from_bytes(&[with; BLOCK_BYTES])
}

impl Mirror {
    fn fail(&self, device: usize, op: SimOp) {
        self.sims[device].inject(InjectedFault { op, range: 0..DEVICE_BYTES_MIN, skip: 0, times: u64::MAX });
    }

    /// Returns the first byte of a block as one device has it.
    fn on(&self, device: usize, offset: u64) -> u8 {
        let mut buf = AlignedBuf::zeroed(BLOCK_BYTES);
        self.sims[device].read(offset, &mut buf).unwrap();
        buf[0]
    }

    /// Reads a block that has to consist of `with`.
    fn read(&self, offset: u64, with: u8) -> Result<()> {
        let span = Span { group: 0, offset, len_bytes: BLOCK };
        self.devices.read(span, |bytes, from| match bytes.iter().all(|byte| *byte == with) {
            true => Ok(()),
            false => Err(Error::corrupt(from.path.display().to_string(), "another byte is there")),
        })
    }

    fn states(&self) -> Vec<MemberState> {
        self.devices.states(0).into_iter().map(|(_, state)| state).collect()
    }

    fn recorded(&self) -> u32 {
        self.labels.recorded.load(Ordering::SeqCst)
    }
}

use MemberState::{Faulted, Filling, Whole};

#[test]
fn all_members_have_what_was_written() {
    let mirror = mirror(&[Whole, Whole, Filling]);
    mirror.devices.write(0, BLOCK, &block(7), true).unwrap();
    assert_eq!([0, 1, 2].map(|device| mirror.on(device, BLOCK)), [7; 3]);
    assert_eq!(mirror.devices.copies(0), 2);
    assert_eq!(mirror.recorded(), 0);
}

#[test]
fn what_one_has_not_comes_from_another_and_is_written_again() {
    let mirror = mirror(&[Whole, Whole]);
    mirror.devices.write(0, 0, &block(7), true).unwrap();
    for device in 0..2 {
        mirror.sims[device].write(0, &block(8), true).unwrap();
        mirror.read(0, 7).unwrap();
        // The one that is read first may have been right.
        mirror.read(0, 7).unwrap();
        let one = mirror.on(device, 0);
        assert!(one == 7 || one == 8 && mirror.labels.corrected.lock().len() == device);
        mirror.sims[device].write(0, &block(7), true).unwrap();
    }
    assert_eq!(mirror.labels.corrected.lock().len(), 1, "{:?}", mirror.labels.corrected.lock());
    mirror.fail(0, SimOp::Read);
    (0..64).for_each(|region| mirror.devices.write(0, region * REGION_BYTES, &block(5), false).unwrap());
    (0..64).for_each(|region| mirror.read(region * REGION_BYTES, 5).unwrap());
    let mut wrong = mirror.labels.corrected.lock().clone();
    assert!(wrong.split_off(1).iter().all(|(device, _)| *device == 0));
    assert_eq!(mirror.states(), [Whole, Whole], "a device that cannot read some blocks is still written");
}

#[test]
fn what_no_member_has_is_the_first_error() {
    let mirror = mirror(&[Whole, Whole]);
    let error = mirror.read(0, 1).unwrap_err().to_string();
    assert!(error.contains("sim-0") || error.contains("sim-1"), "{error}");
    assert!(mirror.labels.corrected.lock().is_empty());
}

#[test]
fn a_member_that_fails_a_write_is_left_out_before_anything_is_acknowledged() {
    let mirror = mirror(&[Whole, Whole]);
    mirror.devices.write(0, 0, &block(1), false).unwrap();
    mirror.fail(1, SimOp::Write);
    mirror.devices.write(0, REGION_BYTES, &block(2), false).unwrap();
    assert_eq!(
        (mirror.states(), mirror.recorded()),
        (vec![Whole, Faulted], 0),
        "nothing was acknowledged as durable"
    );
    mirror.labels.refuses.store(1, Ordering::SeqCst);
    assert!(mirror.devices.flush().is_err(), "the labels do not tell of it");
    mirror.labels.refuses.store(0, Ordering::SeqCst);
    mirror.devices.write(0, 2 * REGION_BYTES, &block(3), true).unwrap();
    assert_eq!(mirror.recorded(), 2);
    mirror.devices.flush().unwrap();
    assert_eq!(mirror.recorded(), 2, "the labels tell of it by now");
    for (region, with) in [(0, 1), (1, 2), (2, 3)] {
        mirror.read(region * REGION_BYTES, with).unwrap();
    }
    let lacking = mirror.devices.lacking(1);
    assert_eq!(
        (lacking.iter().next(), lacking.len()),
        (Some(0..3), 3),
        "the first write was not flushed, either"
    );
}

#[test]
fn a_member_that_fails_a_flush_lacks_what_was_written_since_its_last_superblock() {
    let mirror = mirror(&[Whole, Whole]);
    mirror.devices.write(0, 0, &block(1), false).unwrap();
    mirror.devices.begin_superblock();
    mirror.devices.flush().unwrap();
    mirror.devices.end_superblock(true);
    mirror.devices.write(0, REGION_BYTES, &block(1), false).unwrap();
    mirror.devices.flush().unwrap();
    mirror.devices.write(0, 3 * REGION_BYTES, &block(1), false).unwrap();
    mirror.devices.write(0, 5 * REGION_BYTES, &block(1), true).unwrap();
    mirror.fail(0, SimOp::Flush);
    mirror.devices.flush().unwrap();
    assert_eq!((mirror.states(), mirror.recorded()), (vec![Faulted, Whole], 1));
    let lacking = mirror.devices.lacking(0);
    let lacking: Vec<_> = lacking.iter().collect();
    assert_eq!(lacking, [1..2, 3..4, 5..6], "nobody knows whether it is an older copy when it comes back");
}

#[test]
fn the_last_whole_member_stays() {
    let mirror = mirror(&[Whole, Whole]);
    mirror.fail(0, SimOp::Write);
    mirror.fail(1, SimOp::Write);
    assert!(mirror.devices.write(0, 0, &block(1), true).is_err());
    assert_eq!(mirror.states(), [Whole, Whole], "nothing tells which of them is at fault");
    let alone = self::mirror(&[Whole, Filling]);
    alone.fail(0, SimOp::Write);
    assert!(alone.devices.write(0, 0, &block(1), false).is_err());
    assert_eq!(alone.states(), [Whole, Filling]);
    assert!(!alone.devices.leave_out(0, &Error::Failed("a test".into())));
    alone.fail(1, SimOp::Flush);
    alone.devices.flush().unwrap();
    assert_eq!(alone.states(), [Whole, Faulted]);
}

#[test]
fn a_member_gets_what_it_lacks_while_others_write() {
    let mirror = mirror(&[Whole, Filling]);
    for region in 0..40 {
        mirror.sims[0].write(region * REGION_BYTES + BLOCK, &block(region as u8 + 1), true).unwrap();
    }
    mirror.devices.set_lacking(1, std::iter::once(0..40));
    std::thread::scope(|scope| {
        scope.spawn(|| while mirror.devices.fill_next(1, &[], &|_| true).unwrap().is_some() {});
        for at in 0..400_u64 {
            let offset = at * 7 % 40 * REGION_BYTES + at % 4 * BLOCK;
            mirror.devices.write(0, offset, &block(100 + (at % 100) as u8), at % 5 == 0).unwrap();
        }
    });
    assert_eq!(mirror.devices.fill_next(1, &[], &|_| true).unwrap(), None);
    for region in 0..40 {
        for at in 0..4 {
            let offset = region * REGION_BYTES + at * BLOCK;
            assert_eq!(mirror.on(1, offset), mirror.on(0, offset), "block {at} of region {region}");
        }
    }
}

#[test]
fn a_member_that_is_left_out_while_it_is_filled_lacks_what_was_being_copied() {
    for comes_back in [false, true] {
        let mirror = mirror(&[Whole, Filling]);
        mirror.devices.set_lacking(1, std::iter::once(0..2));
        let leaves = |_| {
            assert!(mirror.devices.take_offline(1));
            mirror.devices.write(0, 0, &block(6), false).unwrap();
            !comes_back || mirror.devices.reopen_here(1)
        };
        assert_eq!(mirror.devices.fill_next(1, &[], &leaves).unwrap(), Some(REGION_BYTES));
        let lacking = mirror.devices.lacking(1);
        assert_eq!((lacking.iter().next(), lacking.len()), (Some(0..2), 2), "{comes_back}");
        assert!(comes_back || mirror.devices.reopen_here(1));
        while mirror.devices.fill_next(1, &[], &|_| true).unwrap().is_some() {}
        assert_eq!((mirror.devices.lacking(1).len(), mirror.on(1, 0)), (0, 6));
    }
}

#[test]
fn blocks_that_nobody_can_read_do_not_end_the_filling() {
    let mirror = mirror(&[Whole, Filling]);
    mirror.sims[0].write(BLOCK, &block(9), true).unwrap();
    mirror.sims[0].inject(InjectedFault { op: SimOp::Read, range: 0..BLOCK, skip: 0, times: u64::MAX });
    mirror.devices.set_lacking(1, std::iter::once(0..1));
    assert_eq!(mirror.devices.fill_next(1, &[], &|_| true).unwrap(), Some(REGION_BYTES - BLOCK));
    assert_eq!((mirror.on(1, BLOCK), mirror.devices.lacking(1).len()), (9, 0));
}

#[test]
fn bytes_within_blocks_are_written_on_each_member() {
    let mirror = mirror(&[Whole, Whole]);
    mirror.sims[0].write(0, &block(1), true).unwrap();
    mirror.sims[1].write(0, &block(2), true).unwrap();
    mirror.devices.overwrite(0, 100, &[3; 50]).unwrap();
    for (device, rest) in [(0, 1), (1, 2)] {
        let mut buf = AlignedBuf::zeroed(BLOCK_BYTES);
        mirror.sims[device].read(0, &mut buf).unwrap();
        let expected = |at: usize| if (100..150).contains(&at) { 3 } else { rest };
        assert!(buf.iter().enumerate().all(|(at, byte)| *byte == expected(at)), "device {device}");
    }
    assert_eq!(mirror.devices.path_of(0), Path::new("sim-0"));
}

#[test]
fn a_copy_is_written_again_from_the_member_that_has_it_right() {
    let mirror = mirror(&[Whole; 3]);
    mirror.devices.write(0, 0, &block(7), true).unwrap();
    [0, 2].iter().for_each(|device: &usize| mirror.sims[*device].write(0, &block(8), true).unwrap());
    let span = Span { group: 0, offset: 0, len_bytes: BLOCK };
    // From when it was found right, others read that member, too: another one has less to do.
    let others = Mutex::new(Vec::new());
    let verify = |bytes: &[u8], from: crate::device::ReadFrom<'_>| match bytes.iter().all(|byte| *byte == 7) {
        true => {
            others.lock().push(mirror.devices.only_copy(from.number.into()).plan(span)?);
            Ok(from.number)
        }
        false => Err(Error::corrupt(from.path.display().to_string(), "another byte is there")),
    };
    assert_eq!(mirror.devices.read(span, verify).unwrap(), 1);
    assert_eq!(*mirror.labels.corrected.lock(), [(0, true)]);
    assert_eq!(mirror.on(0, 0), 7);
}

#[test]
fn bytes_are_written_on_a_member_that_cannot_read_the_blocks_around_them() {
    let mirror = mirror(&[Whole, Whole]);
    mirror.sims[0].write(0, &block(1), true).unwrap();
    mirror.sims[1].write(0, &block(2), true).unwrap();
    mirror.sims[0].inject(InjectedFault { op: SimOp::Read, range: 0..BLOCK, skip: 0, times: u64::MAX });
    mirror.devices.overwrite(0, 100, &[3; 50]).unwrap();
    assert_eq!(mirror.states(), [Whole, Whole], "it has failed no write");
    mirror.sims[0].clear_faults();
    for device in 0..2 {
        let mut buf = AlignedBuf::zeroed(BLOCK_BYTES);
        mirror.sims[device].read(0, &mut buf).unwrap();
        let expected = |at: usize| if (100..150).contains(&at) { 3 } else { 2 };
        assert!(buf.iter().enumerate().all(|(at, byte)| *byte == expected(at)), "device {device}");
    }
}

#[test]
fn blocks_that_are_overwritten_as_a_whole_need_not_be_read() {
    let mirror = mirror(&[Whole]);
    mirror.sims[0].inject(InjectedFault {
        op: SimOp::Read,
        range: BLOCK..4 * BLOCK,
        skip: 0,
        times: u64::MAX,
    });
    mirror.devices.overwrite(0, 100, &[3; 3 * BLOCK_BYTES + BLOCK_BYTES - 100]).unwrap();
    mirror.sims[0].clear_faults();
    assert_eq!([0, 1, 2, 3].map(|at| mirror.on(0, at * BLOCK)), [0, 3, 3, 3]);
    mirror.fail(0, SimOp::Read);
    assert!(mirror.devices.overwrite(0, 100, &[4; 50]).is_err(), "nobody knows what is around them");
}

#[test]
fn nothing_is_acknowledged_while_a_member_is_being_left_out() {
    let sims = [0, 1].map(|seed| Arc::new(SimDevice::new(DEVICE_BYTES_MIN, seed)));
    let members = sims.into_iter().zip(0..).map(|(sim, number)| GroupMember::open(number, sim, Whole));
    let (group, labels) = (Group::new(0, members), RecordedStates::default());
    std::thread::scope(|scope| {
        // As `leave_out` does on another thread: writes that begin now go to the other member alone.
        let members = group.peers.members.write();
        members[1].set_state(Faulted);
        let recorded = scope.spawn(|| group.record(Some(&labels)));
        for _ in 0..100_000 {
            if recorded.is_finished() {
                break;
            }
            std::thread::yield_now();
        }
        group.changes.fetch_add(1, Ordering::SeqCst);
        drop(members);
        recorded.join().unwrap().unwrap();
    });
    assert_eq!(labels.recorded.load(Ordering::SeqCst), 1, "the labels do not tell of it");
}

#[test]
fn one_step_tries_to_read_no_more_than_a_region_that_nobody_can_read() {
    let mirror = mirror(&[Whole, Filling]);
    mirror.fail(0, SimOp::Read);
    mirror.devices.set_lacking(1, std::iter::once(0..3));
    assert_eq!(mirror.devices.fill_next(1, &[], &|_| true).unwrap(), Some(0));
    assert_eq!(mirror.devices.lacking(1).len(), 2);
}
