use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use rustix::fs::MemfdFlags;

use super::*;
use crate::device::devices::FoundMember;
use crate::device::tests::until;
use crate::device::{Device, DeviceStats, Devices, MemberState, Roster};
use crate::limits::BLOCK_BYTES;
use crate::{Error, Result};

const BLOCK: u64 = BLOCK_BYTES as u64;
/// Bytes that a pipe holds before a write to it waits.
const PIPE_BYTES: usize = 64 << 10;

/// Says that others answer from some time on.
struct From {
    asked: AtomicU64,
    at: u64,
}

impl Judge for From {
    fn bound_ns(&self, _device: &Answers) -> Option<u64> {
        Some(1)
    }

    fn goes_on_without(&self, _device: &Answers, _began: Began, _bound_ns: u64) -> bool {
        self.asked.fetch_add(1, SeqCst) + 1 >= self.at
    }

    fn ask_others(&self, _device: &Answers, _read: bool) {}
}

/// A file that answers when somebody reads or writes the other end of its pipe.
fn stuck(file: impl Into<OwnedFd>) -> (Arc<LockedFile>, PathBuf) {
    assert!(take_ring().is_some(), "these tests need io_uring");
    let file = Arc::new(LockedFile::new(File::from(file.into()), true));
    let path = format!("/proc/self/fd/{}", file.as_raw_fd()).into();
    (file, path)
}

fn answers_of(at: u64) -> (Answers, Arc<From>) {
    let (answers, judge) = (Answers::default(), Arc::new(From { asked: 0.into(), at }));
    let known: Weak<From> = Arc::downgrade(&judge);
    answers.join(known);
    (answers, judge)
}

#[test]
fn a_device_that_all_wait_for_is_waited_for() {
    let (reader, mut writer) = std::io::pipe().unwrap();
    let (file, path) = stuck(reader);
    let (answers, judge) = answers_of(u64::MAX);
    std::thread::scope(|scope| {
        let read = scope.spawn(|| {
            let mut buf = AlignedBuf::zeroed(BLOCK_BYTES);
            let read = answers.ask(&file, &path, Request::Read { buf: &mut buf, at: 0, offset: 0 });
            (read.unwrap(), buf[0])
        });
        until(|| judge.asked.load(SeqCst) >= 2);
        assert!(!answers.has_answered(Began::now(), u64::MAX));
        writer.write_all(&[7; BLOCK_BYTES]).unwrap();
        assert_eq!(read.join().unwrap(), (BLOCK_BYTES, 7));
    });
    assert!(!answers.is_given_up() && answers.overdue.load(SeqCst) == 0 && !owes(&path));
}

#[test]
fn of_a_device_that_is_given_up_all_requests_fail_and_the_memory_of_a_read_stays() {
    let (reader, mut writer) = std::io::pipe().unwrap();
    let (file, path) = stuck(reader);
    let (answers, _judge) = answers_of(2);
    let began = Began::now();
    let mut buf = AlignedBuf::from_bytes(&[1; BLOCK_BYTES]);
    let ask = |buf: &mut AlignedBuf| {
        answers.ask(&file, &path, Request::Read { buf, at: 0, offset: 0 }).unwrap_err().kind()
    };
    assert_eq!(ask(&mut buf), io::ErrorKind::TimedOut);
    assert!(answers.is_given_up() && owes(&path));
    assert!(!answers.has_answered(began, u64::MAX));
    assert_eq!(ask(&mut buf), io::ErrorKind::TimedOut, "it is not asked any more");
    let flush = answers.ask(&file, &path, Request::Flush).unwrap_err();
    assert_eq!(flush.kind(), io::ErrorKind::TimedOut);
    // Late bytes go to memory that nobody else has.
    assert_eq!((buf.len(), buf[0]), (BLOCK_BYTES, 0));
    writer.write_all(&[9; BLOCK_BYTES]).unwrap();
    until(|| !owes(&path));
    assert_eq!(buf[0], 0);
}

#[test]
fn who_waits_for_the_last_late_answer_is_told_of_it_once() {
    let (reader, mut writer) = std::io::pipe().unwrap();
    let (file, path) = stuck(reader);
    let told = Arc::new(AtomicU32::new(0));
    let tell = || {
        let told = Arc::clone(&told);
        when_answered(
            &path,
            Box::new(move || {
                told.fetch_add(1, SeqCst);
            }),
        );
    };
    tell();
    assert_eq!(told.load(SeqCst), 1, "nothing is owed");
    for _ in 0..2 {
        let (answers, _judge) = answers_of(1);
        let mut buf = AlignedBuf::zeroed(BLOCK_BYTES);
        answers.ask(&file, &path, Request::Read { buf: &mut buf, at: 0, offset: 0 }).unwrap_err();
    }
    tell();
    let device = DeviceFile::of(&std::fs::metadata(&path).unwrap());
    let owed_by_it = || OWED.lock().devices.iter().filter(|other| **other == device).count();
    writer.write_all(&[9; BLOCK_BYTES]).unwrap();
    until(|| owed_by_it() == 1);
    assert_eq!(told.load(SeqCst), 1, "one answer is owed still");
    writer.write_all(&[9; BLOCK_BYTES]).unwrap();
    until(|| told.load(SeqCst) == 2);
    assert!(!owes(&path));
}

#[test]
fn a_write_that_is_left_alone_writes_what_it_was_given() {
    let (mut reader, mut writer) = std::io::pipe().unwrap();
    writer.write_all(&[0; PIPE_BYTES]).unwrap();
    let (file, path) = stuck(writer);
    let (answers, _judge) = answers_of(1);
    let mut buf = AlignedBuf::from_bytes(&[1; BLOCK_BYTES]);
    let write = Request::Write { buf: &buf, part: 0..BLOCK_BYTES, offset: 0, durable: false };
    assert_eq!(answers.ask(&file, &path, write).unwrap_err().kind(), io::ErrorKind::TimedOut);
    buf.fill(2);
    drop(buf);
    // The next buffer has other memory.
    let next = AlignedBuf::from_bytes(&[3; BLOCK_BYTES]);
    let mut bytes = vec![0; PIPE_BYTES + BLOCK_BYTES];
    reader.read_exact(&mut bytes).unwrap();
    assert!(bytes[PIPE_BYTES..].iter().all(|byte| *byte == 1));
    until(|| !owes(&path));
    assert_eq!(next[0], 3);
}

/// A device of a mirror, whose writes go to a pipe that is full while it hangs.
struct Half {
    path: PathBuf,
    file: Arc<LockedFile>,
    pipe: Arc<LockedFile>,
    hangs: AtomicBool,
    answers: Answers,
    stats: DeviceStats,
}

impl Half {
    /// Returns the device, and the end of the pipe from which to read what was written while it hung.
    fn new(name: &str) -> (Arc<Self>, std::io::PipeReader) {
        let file = File::from(rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC).unwrap());
        file.set_len(64 * BLOCK).unwrap();
        let (reader, mut writer) = std::io::pipe().unwrap();
        writer.write_all(&[0; PIPE_BYTES]).unwrap();
        let (file, pipe) = (Arc::new(LockedFile::new(file, true)), stuck(OwnedFd::from(writer)).0);
        let (hangs, answers, stats) = Default::default();
        (Arc::new(Self { path: name.into(), file, pipe, hangs, answers, stats }), reader)
    }
}

impl Device for Half {
    fn path(&self) -> &Path {
        &self.path
    }
    fn size_bytes(&self) -> u64 {
        64 * BLOCK
    }
    fn read(&self, offset: u64, buf: &mut AlignedBuf) -> Result<()> {
        let read = self.answers.ask(&self.file, &self.path, Request::Read { buf, at: 0, offset });
        read.map(|_| ()).map_err(|source| self.error("read", source))
    }
    fn write(&self, offset: u64, buf: &AlignedBuf, _durable: bool) -> Result<()> {
        let file = if self.hangs.load(SeqCst) { &self.pipe } else { &self.file };
        let write = Request::Write { buf, part: 0..buf.len(), offset, durable: false };
        self.answers.ask(file, &self.path, write).map(|_| ()).map_err(|source| self.error("write", source))
    }
    fn flush(&self) -> Result<()> {
        if self.hangs.load(SeqCst) {
            // No flush waits for a pipe.
            return self.write(0, &AlignedBuf::zeroed(BLOCK_BYTES), false);
        }
        let flushed = self.answers.ask(&self.file, &self.path, Request::Flush);
        flushed.map(|_| ()).map_err(|source| self.error("flush", source))
    }
    fn discard(&self, _offset: u64, _len_bytes: u64) -> Result<()> {
        Ok(())
    }
    fn stats(&self) -> &DeviceStats {
        &self.stats
    }
    fn answers(&self) -> Option<&Answers> {
        Some(&self.answers)
    }
}

impl Half {
    fn error(&self, op: &'static str, source: io::Error) -> Error {
        Error::Io { op, device: self.path.clone(), offset: 0, len_bytes: 0, source }
    }
}

struct NoLabels;

impl Roster for NoLabels {
    fn record(&self, _group: u16) -> Result<()> {
        Ok(())
    }
    fn takes_writes(&self) -> bool {
        true
    }
    fn corrected(&self, _device: u16, _place: (u16, u64), _error: &Error, _repaired: &Result<()>) {}
}

/// A mirror of two devices, which are waited for as long as two slices.
fn mirror(halves: [&Arc<Half>; 2]) -> (Devices, Arc<dyn Roster>) {
    let member = |(half, number): (&Arc<Half>, u16)| FoundMember {
        number,
        device: Some(Arc::clone(half) as Arc<dyn Device>),
        state: MemberState::Whole,
    };
    let devices = Devices::of_pool([halves.into_iter().zip(0..).map(member).collect()]);
    let labels: Arc<dyn Roster> = Arc::new(NoLabels);
    devices.set_roster(Arc::downgrade(&labels));
    devices.wait_at_most(2 * SLICE_NS);
    (devices, labels)
}

fn states(devices: &Devices) -> Vec<MemberState> {
    devices.states(0).into_iter().map(|(_, state)| state).collect()
}

#[test]
fn a_mirror_leaves_out_the_half_that_hangs_and_goes_on() {
    let ((first, _first_pipe), (second, mut late)) = (Half::new("first"), Half::new("second"));
    let (devices, _labels) = mirror([&first, &second]);
    let page = |byte: u8| AlignedBuf::from_bytes(&[byte; BLOCK_BYTES]);
    devices.write(0, 0, &page(1), false).unwrap();
    devices.flush().unwrap();
    second.hangs.store(true, SeqCst);
    std::thread::scope(|scope| {
        for at in 1..4 {
            let (devices, page) = (&devices, page(at as u8));
            scope.spawn(move || devices.write(0, at * BLOCK, &page, at == 3).unwrap());
        }
    });
    assert_eq!(states(&devices), [MemberState::Whole, MemberState::Faulted]);
    devices.flush().unwrap();
    // A late write harms nobody.
    late.read_exact(&mut vec![0; PIPE_BYTES + BLOCK_BYTES]).unwrap();
    devices.write(0, 4 * BLOCK, &page(4), true).unwrap();
    assert!(first.answers.has_answered(Began::now(), u64::MAX) || !first.answers.is_given_up());
}

#[test]
fn a_half_that_hangs_is_given_up_if_nobody_else_asks_the_other_one_for_anything() {
    let ((first, _early), (second, _late)) = (Half::new("first"), Half::new("second"));
    let (devices, _labels) = mirror([&first, &second]);
    let page = AlignedBuf::zeroed(BLOCK_BYTES);
    devices.write(0, 0, &page, false).unwrap();
    second.hangs.store(true, SeqCst);
    // As when the first one had answered the same write before the second one was asked.
    assert!(second.write(0, &page, false).is_err());
    assert!(second.answers.is_given_up() && !first.answers.is_given_up());
}

#[test]
fn a_mirror_whose_halves_all_hang_waits_for_them() {
    let ((first, mut early), (second, mut late)) = (Half::new("first"), Half::new("second"));
    let (devices, _labels) = mirror([&first, &second]);
    let halves = [&first, &second];
    halves.iter().for_each(|half| half.hangs.store(true, SeqCst));
    std::thread::scope(|scope| {
        let write = scope.spawn(|| devices.write(0, 0, &AlignedBuf::zeroed(BLOCK_BYTES), false));
        until(|| halves.iter().all(|half| half.answers.overdue.load(SeqCst) == 1));
        // Longer than each of them would be waited for alone.
        std::thread::sleep(Duration::from_nanos(3 * SLICE_NS));
        assert!(!write.is_finished());
        assert_eq!(states(&devices), [MemberState::Whole; 2]);
        for pipe in [&mut early, &mut late] {
            pipe.read_exact(&mut vec![0; PIPE_BYTES]).unwrap();
        }
        write.join().unwrap().unwrap();
    });
    // Neither was given up because the other one was the first to answer.
    assert_eq!(states(&devices), [MemberState::Whole; 2]);
}

#[test]
fn a_half_that_hangs_for_less_than_the_bound_is_waited_for() {
    let ((first, _early), (second, mut late)) = (Half::new("first"), Half::new("second"));
    let (devices, _labels) = mirror([&first, &second]);
    devices.wait_at_most(u64::MAX);
    second.hangs.store(true, SeqCst);
    std::thread::scope(|scope| {
        let write = scope.spawn(|| devices.write(0, 0, &AlignedBuf::zeroed(BLOCK_BYTES), false));
        std::thread::sleep(Duration::from_nanos(2 * SLICE_NS));
        assert!(!write.is_finished());
        late.read_exact(&mut vec![0; PIPE_BYTES]).unwrap();
        write.join().unwrap().unwrap();
    });
    assert_eq!(states(&devices), [MemberState::Whole; 2]);
}

/// Does something in a thread that outlives a test which fails.
fn at_work(devices: &Devices, work: fn(&Devices) -> bool) -> std::thread::JoinHandle<bool> {
    let devices = devices.clone();
    std::thread::spawn(move || work(&devices))
}

#[test]
fn a_half_that_leaves_while_it_hangs_is_given_up_all_the_same() {
    let removed = |devices: &Devices| devices.remove(1).is_some();
    let closed = |devices: &Devices| {
        devices.release(1);
        // The test itself has it still.
        !devices.is_closed(1)
    };
    let ways: [fn(&Devices) -> bool; 2] = [removed, closed];
    for leave in ways {
        let ((first, _early), (second, _late)) = (Half::new("first"), Half::new("second"));
        let (devices, _labels) = mirror([&first, &second]);
        // It has left before it would be given up as a member.
        devices.wait_at_most(8 * SLICE_NS);
        second.hangs.store(true, SeqCst);
        let write =
            at_work(&devices, |devices| devices.write(0, 0, &AlignedBuf::zeroed(BLOCK_BYTES), false).is_ok());
        until(|| second.answers.overdue.load(SeqCst) == 1);
        assert!(devices.take_offline(1));
        let left = at_work(&devices, leave);
        until(|| write.is_finished() && left.is_finished());
        assert!(write.join().unwrap() && left.join().unwrap());
        assert!(second.answers.is_given_up() && !first.answers.is_given_up());
    }
}

#[test]
fn a_half_that_hangs_after_it_has_left_is_given_up_and_the_last_one_is_waited_for() {
    let ((first, _early), (second, _late)) = (Half::new("first"), Half::new("second"));
    let (devices, _labels) = mirror([&first, &second]);
    assert!(devices.take_offline(1));
    assert!(first.answers.is_bounded() && second.answers.is_bounded());
    let left = devices.remove(1).unwrap();
    assert!(!first.answers.is_bounded() && second.answers.is_bounded());
    second.hangs.store(true, SeqCst);
    let write = std::thread::spawn(move || left.write(0, &AlignedBuf::zeroed(BLOCK_BYTES), false).is_err());
    until(|| write.is_finished());
    assert!(write.join().unwrap() && second.answers.is_given_up());
    drop(devices.dissolve(0));
    assert!(first.answers.is_bounded(), "nothing of the group waits for it any more");
}
