use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use parking_lot::Mutex;
use rustix::fs::MemfdFlags;

use super::ring::{HedgeRing, READS_MAX};
use crate::device::tests::until;
use crate::device::{AlignedBuf, Device, DeviceStats, Devices, HedgeCounts, IoClass, IoKind, ReadFrom, Span};
use crate::limits::BLOCK_BYTES;
use crate::{Error, Result};

const BLOCKS: u64 = 64;
const BLOCK: u64 = BLOCK_BYTES as u64;

/// A device whose reads hang while it is told so: they are then reads of a pipe, into which somebody has to write.
struct Hanging {
    path: PathBuf,
    file: File,
    pipe: OwnedFd,
    writer: Mutex<Option<File>>,
    hangs: AtomicBool,
    stats: DeviceStats,
}

/// The bytes of block `at`.
fn block(at: u64) -> Vec<u8> {
    vec![at as u8 + 1; BLOCK_BYTES]
}

impl Hanging {
    fn new(name: &str, blocks: impl Fn(u64) -> Vec<u8>) -> Arc<Self> {
        assert!(HedgeRing::open().is_ok(), "these tests need io_uring");
        let file = File::from(rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC).unwrap());
        (0..BLOCKS).for_each(|at| file.write_all_at(&blocks(at), at * BLOCK).unwrap());
        let (pipe, writer) = std::io::pipe().unwrap();
        let (pipe, writer) = (pipe.into(), Mutex::new(Some(File::from(OwnedFd::from(writer)))));
        let (hangs, stats) = (AtomicBool::new(false), DeviceStats::default());
        Arc::new(Self { path: name.into(), file, pipe, writer, hangs, stats })
    }

    fn hang(&self, hangs: bool) {
        self.hangs.store(hangs, Ordering::SeqCst);
    }

    /// Lets a read that hangs have these bytes.
    fn answer(&self, bytes: &[u8]) {
        self.writer.lock().as_mut().unwrap().write_all(bytes).unwrap();
    }

    /// Lets all reads that hang fail.
    fn fail(&self) {
        *self.writer.lock() = None;
    }

    /// Returns the reads that are under way, that were done, and that failed.
    fn reads(&self) -> (u64, u64, u64) {
        let of = self.stats.of(IoClass::SyncRead, IoKind::Read);
        (of.in_flight(), of.requests(), self.stats.counts().read_errors)
    }

    fn hedges(&self) -> (u64, u64) {
        let HedgeCounts { hedged, won } = self.stats.hedges();
        (hedged, won)
    }
}

impl Device for Hanging {
    fn path(&self) -> &Path {
        &self.path
    }
    fn size_bytes(&self) -> u64 {
        BLOCKS * BLOCK
    }
    fn file(&self) -> Option<BorrowedFd<'_>> {
        Some(if self.hangs.load(Ordering::SeqCst) { self.pipe.as_fd() } else { self.file.as_fd() })
    }
    fn read(&self, offset: u64, buf: &mut AlignedBuf) -> Result<()> {
        if !self.hangs.load(Ordering::SeqCst) {
            self.file.read_exact_at(buf, offset).unwrap();
        } else if rustix::io::read(&self.pipe, &mut buf[..]).unwrap() < buf.len() {
            let (device, len_bytes) = (self.path.clone(), buf.len() as u64);
            let source = std::io::ErrorKind::UnexpectedEof.into();
            return Err(Error::Io { op: "read", device, offset, len_bytes, source });
        }
        Ok(())
    }
    fn write(&self, offset: u64, buf: &AlignedBuf, _: bool) -> Result<()> {
        self.file.write_all_at(buf, offset).unwrap();
        Ok(())
    }
    fn flush(&self) -> Result<()> {
        Ok(())
    }
    fn discard(&self, _: u64, _: u64) -> Result<()> {
        Ok(())
    }
    fn stats(&self) -> &DeviceStats {
        &self.stats
    }
}

fn mirror(all: &[Arc<Hanging>]) -> Devices {
    Devices::groups(vec![all.iter().map(|one| Arc::clone(one) as Arc<dyn Device>).collect()])
}

fn fresh(members: usize) -> (Vec<Arc<Hanging>>, Devices) {
    let all: Vec<_> = (0..members).map(|at| Hanging::new(&format!("disc{at}"), block)).collect();
    let devices = mirror(&all);
    (all, devices)
}

const fn span(at: u64) -> Span {
    Span { group: 0, offset: at * BLOCK, len_bytes: BLOCK }
}

/// Reads a block, and expects what it has. Returns the number of the device that gave it.
fn read(devices: &Devices, at: u64) -> u16 {
    let verify = |bytes: &[u8], from: ReadFrom<'_>| {
        if bytes == block(at) { Ok(from.number) } else { Err(Error::corrupt("a block", "it is another one")) }
    };
    devices.read(span(at), verify).unwrap()
}

#[test]
fn another_member_answers_for_one_that_hangs() {
    let (all, devices) = fresh(2);
    all[0].hang(true);
    assert_eq!(read(&devices, 3), 1);
    assert_eq!((all[0].reads(), all[0].hedges()), ((1, 0, 0), (1, 1)));
    assert_eq!((all[1].reads(), all[1].hedges()), ((0, 1, 0), (0, 0)));
    // It is not asked again while it hangs, and is as slow as it is.
    for at in 0..BLOCKS {
        assert_eq!(read(&devices, at), 1);
    }
    let (own_ns, other_ns) = devices.latency_ns(0, 0);
    assert!(own_ns >= 10_000_000 && own_ns > other_ns, "{own_ns} and {other_ns}");
    assert_eq!((all[0].reads(), all[0].hedges()), ((1, 0, 0), (1, 1)));
    all[0].hang(false);
    all[0].answer(&block(3));
    until(|| all[0].reads() == (0, 1, 0));
    // The time that it took counts, and it is left alone for a while.
    until(|| devices.latency_ns(0, 0).0 > 4 * devices.latency_ns(0, 0).1);
    assert_eq!(read(&devices, 5), 1);
}

#[test]
fn a_late_answer_is_written_to_memory_that_nobody_else_has() {
    let (all, devices) = fresh(2);
    all[0].hang(true);
    assert_eq!(read(&devices, 3), 1);
    let mut others: Vec<AlignedBuf> = (0..64).map(|_| AlignedBuf::scratch(BLOCK_BYTES)).collect();
    others.iter_mut().for_each(|buf| buf.fill(7));
    all[0].answer(&[0xEE; BLOCK_BYTES]);
    until(|| all[0].reads() == (0, 1, 0));
    assert!(others.iter().all(|buf| buf.iter().all(|byte| *byte == 7)));
}

#[test]
fn a_thread_that_has_read_may_end_before_its_late_reads() {
    let (all, devices) = fresh(2);
    all[0].hang(true);
    thread::scope(|scope| scope.spawn(|| assert_eq!(read(&devices, 3), 1)).join().unwrap());
    assert_eq!(all[0].reads().0, 1);
    all[0].answer(&block(3));
    // The kernel cancels the read of a pipe then, which is no error of the device.
    until(|| all[0].reads().0 == 0);
    assert_eq!(all[0].reads().2, 0);
}

#[test]
fn a_late_read_that_fails_is_an_error_of_its_device() {
    let (all, devices) = fresh(2);
    all[0].hang(true);
    assert_eq!(read(&devices, 3), 1);
    all[0].fail();
    until(|| all[0].reads() == (0, 0, 1));
    assert_eq!(all[0].hedges(), (1, 1));
}

#[test]
fn a_member_that_hangs_leaves_and_nobody_waits_for_it() {
    let (mut all, devices) = fresh(2);
    all[0].hang(true);
    assert_eq!(read(&devices, 3), 1);
    assert!(devices.take_offline(0));
    assert!(devices.remove(0).is_some());
    assert_eq!(read(&devices, 3), 1);
    let (weak, mut writer) = (Arc::downgrade(&all[0]), all[0].writer.lock().take().unwrap());
    drop(all.remove(0));
    assert!(weak.upgrade().is_none(), "a read that nobody waits for does not keep the device open");
    drop(devices);
    // The kernel has the pipe still: it takes the answer, and then the read ends.
    writer.write_all(&block(3)).unwrap();
    until(|| rustix::io::ioctl_fionread(&writer).unwrap() == 0);
}

#[test]
fn if_all_hang_the_first_that_answers_counts() {
    for first in [0, 1, 2] {
        let (all, devices) = fresh(3);
        all.iter().for_each(|one| one.hang(true));
        thread::scope(|scope| {
            scope.spawn(|| {
                until(|| all.iter().all(|one| one.reads().0 == 1));
                all[first].answer(&block(9));
            });
            assert_eq!(usize::from(read(&devices, 9)), first);
        });
        // The last one that was asked was not overdue when nobody else was left.
        let hedged: u64 = all.iter().map(|one| one.hedges().0).sum();
        assert_eq!(hedged, 2);
        for (at, one) in all.iter().enumerate().filter(|(at, _)| *at != first) {
            let (hedged, won) = one.hedges();
            assert_eq!(hedged, won, "device {at}");
            one.answer(&block(9));
            until(|| one.reads() == (0, 1, 0));
        }
    }
}

#[test]
fn a_damaged_answer_is_no_answer() {
    let all = [Hanging::new("hangs", block), Hanging::new("damaged", |_| vec![0xBB; BLOCK_BYTES])];
    let devices = mirror(&all);
    all[0].hang(true);
    let (go_on, told) = std::sync::mpsc::channel();
    thread::scope(|scope| {
        // The kernel would cancel a read of a pipe whose thread has ended.
        let reader = scope.spawn(move || (read(&devices, 9), told.recv()).0);
        // The other one's bytes are wrong, so the first one is asked again: there is nobody else.
        until(|| all[0].reads().0 == 2);
        all[0].answer(&block(9));
        all[0].answer(&block(9));
        until(|| all[0].reads() == (0, 2, 0));
        go_on.send(()).unwrap();
        assert_eq!(reader.join().unwrap(), 0);
    });
}

#[test]
fn an_error_of_the_other_member_is_no_answer() {
    let (all, devices) = fresh(2);
    all.iter().for_each(|one| one.hang(true));
    thread::scope(|scope| {
        let reader = scope.spawn(|| read(&devices, 9));
        until(|| all.iter().all(|one| one.reads().0 == 1));
        all[1].fail();
        until(|| all[1].reads().2 == 1);
        all[0].answer(&block(9));
        assert_eq!(reader.join().unwrap(), 0);
    });
    assert_eq!(all[0].hedges(), (1, 0), "the first one has answered after all");
}

#[test]
fn the_third_member_is_asked_when_the_second_one_has_failed() {
    let (all, devices) = fresh(3);
    all[..2].iter().for_each(|one| one.hang(true));
    all[1].fail();
    // No scope: if nobody asks the third one, this thread never ends.
    let reader = thread::spawn(move || read(&devices, 9));
    until(|| reader.is_finished());
    assert_eq!(reader.join().unwrap(), 2);
    assert_eq!([0, 1, 2].map(|at| all[at].reads().2), [0, 1, 0]);
    assert_eq!([0, 1, 2].map(|at| all[at].hedges()), [(1, 1), (0, 0), (0, 0)], "the second one was not slow");
}

#[test]
fn a_member_that_hangs_is_waited_for_until_it_is_left_out_if_nobody_else_can_be_asked() {
    let (all, devices) = fresh(2);
    all.iter().for_each(|one| one.hang(true));
    all[1].fail();
    let asked = devices.clone();
    // No scope: if the first one is waited for, this thread never ends.
    let reader = thread::spawn(move || asked.read(span(9), |_, from| Ok(from.number)));
    until(|| all[0].reads().0 == 1 && all[1].reads().2 == 1);
    assert!(!reader.is_finished(), "it may be the only one that has the block");
    assert!(devices.take_offline(0));
    until(|| reader.is_finished());
    assert!(matches!(reader.join().unwrap(), Err(Error::Io { .. })));
    assert_eq!(all[0].hedges(), (1, 0), "nobody else has answered");
}

#[test]
fn of_many_reads_at_once_those_that_hang_are_sent_again() {
    let (all, devices) = fresh(2);
    all[1].hang(true);
    let plans = (0..32).map(|at| devices.plan(span(at)).unwrap()).collect();
    let read = devices.carry_out(plans).unwrap();
    for (at, plan) in (0..).zip(&read) {
        assert_eq!(plan.verified(|bytes, from| Ok((bytes == block(at), from.number))).unwrap(), (true, 0));
    }
    let (under_way, ..) = all[1].reads();
    assert_eq!((all[1].hedges(), under_way), ((16, 16), 16));
    assert_eq!(all[0].reads(), (0, 32, 0));
    (0..16).for_each(|_| all[1].answer(&block(0)));
    until(|| all[1].reads() == (0, 16, 0));
}

#[test]
fn if_one_member_hangs_with_all_reads_that_are_made_at_once_the_other_answers_them() {
    let (all, devices) = fresh(2);
    all[0].hang(true);
    let only_first = devices.copy_first(0);
    let plans: Vec<_> = (0..READS_MAX as u64).map(|at| only_first.plan(span(at)).unwrap()).collect();
    assert!(plans.iter().all(|plan| plan.number() == 0));
    let read = devices.carry_out(plans).unwrap();
    for (at, plan) in (0..).zip(&read) {
        assert_eq!(plan.verified(|bytes, from| Ok((bytes == block(at), from.number))).unwrap(), (true, 1));
    }
    (0..READS_MAX).for_each(|_| all[0].answer(&block(0)));
    until(|| all[0].reads() == (0, READS_MAX as u64, 0));
}

#[test]
fn nothing_is_sent_twice_that_nobody_waits_for_or_that_nobody_else_has() {
    let (all, devices) = fresh(2);
    let may_be_hedged = |devices: &Devices| devices.plan(span(0)).unwrap().may_be_hedged();
    assert!(may_be_hedged(&devices));
    for class in IoClass::ALL.into_iter().filter(|class| *class != IoClass::SyncRead) {
        assert!(!may_be_hedged(&devices.of_class(class)));
    }
    assert!(may_be_hedged(&devices.copy_first(1)));
    assert!(!may_be_hedged(&devices.only_copy(1)));
    assert!(devices.take_offline(0));
    assert!(!may_be_hedged(&devices));
    assert!(!may_be_hedged(&mirror(&all[..1])));
}
