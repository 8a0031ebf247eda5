//! Tests of requests that an earlier server carried out and did not answer, and of the threads that answer requests.

use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use pagefold_engine::dataset::Journal;
use pagefold_engine::dataset::journal::{Asked, during};
use pagefold_engine::device::{Device, SimDevice};
use pagefold_engine::pool::{CreateOptions, Guid, OpenOptions, Pool, create_on};
use pagefold_fs::testing::MemDataset;
use pagefold_fs::{
    AtimePolicy, Caller, Clock, FormatOptions, Fs, FsOptions, Ino, OpenFlags, SystemClock, Time, WriteFlags,
};
use parking_lot::Mutex;
use zerocopy::IntoBytes;

use super::Dispatch;
use crate::limits::READ_THREADS_MAX;
use crate::operation::Arguments;
use crate::protocol::{CreateIn, InHeader, LseekIn, Opcode, ReadIn, UNIQUE_RESEND};
use crate::request::{Exchange, Outcome};
use crate::stats::Stats;
use crate::{Blocking, Handler, Request, Source, Wait};

/// The kernel's side of a request: its arguments, room for the answer, and the outcome.
struct Post {
    arguments: Vec<u8>,
    payload: Vec<u8>,
    outcome: Arc<Mutex<Option<Outcome>>>,
}

impl Exchange for Post {
    fn arguments(&self) -> Arguments<'_> {
        Arguments { head: &self.arguments, tail: None }
    }

    fn payload(&mut self) -> &mut [u8] {
        &mut self.payload
    }

    fn finish(self: Box<Self>, _: u64, reply: Outcome) {
        *self.outcome.lock() = Some(reply);
    }
}

/// Returns a request about an inode.
pub(super) fn asked(opcode: Opcode, nodeid: u64, arguments: &[u8]) -> Request {
    let (arguments, payload) = (arguments.to_vec(), vec![0; 4096]);
    let header = InHeader { opcode: opcode as u32, unique: 2, nodeid, ..InHeader::default() };
    Request::new(header, Box::new(Post { arguments, payload, outcome: Arc::default() }), Arc::default())
}

fn in_memory(clock: Arc<dyn Clock>) -> (Arc<MemDataset>, Arc<Fs>) {
    let dataset = Arc::new(MemDataset::new(u64::MAX));
    let format = FormatOptions { seed: 1, uid: 0, gid: 0, perm: 0o755 };
    Fs::format(&*dataset, &SystemClock, &format).unwrap();
    let options = FsOptions { atime: AtimePolicy::Never, ..FsOptions::default() };
    let fs = Fs::mount(Arc::clone(&dataset) as _, clock, options).unwrap();
    (dataset, fs)
}

/// The next data is known once a commit that is in flight has ended.
#[test]
fn data_is_looked_for_by_a_thread_that_may_wait() {
    let (dataset, fs) = in_memory(Arc::new(SystemClock));
    let made = fs.create(Ino::ROOT, b"file", 0o644, OpenFlags::default(), &Caller::default()).unwrap();
    fs.write(made.ino, 0, b"data", WriteFlags::default()).unwrap();
    let dispatch = Dispatch::new(fs);
    for whence in [libc::SEEK_DATA, libc::SEEK_HOLE] {
        let (say, said) = mpsc::channel();
        dataset.before_read(move || say.send(thread::current().id()).unwrap());
        let seek = LseekIn { whence: whence.cast_unsigned(), ..LseekIn::default() };
        let request = asked(Opcode::Lseek, made.ino.0, seek.as_bytes());
        assert!(dispatch.handle(request, &Blocking::shared(Source::Devices)).is_none());
        assert_ne!(said.recv().unwrap(), thread::current().id());
    }
}

/// A clock that stands, and says that it was asked, while its lock is held.
struct Halted(Arc<Mutex<()>>, mpsc::Sender<()>);

impl Clock for Halted {
    fn now(&self) -> Time {
        // Nobody listens any more once the test has ended.
        let _ = self.1.send(());
        drop(self.0.lock());
        SystemClock.now()
    }
}

/// Changes that wait for room keep their directory locked.
#[test]
fn listings_that_wait_for_a_change_keep_no_reads_waiting() {
    let gate = Arc::new(Mutex::new(()));
    let (begin, begun) = mpsc::channel();
    let (_, fs) = in_memory(Arc::new(Halted(Arc::clone(&gate), begin)));
    let closed = gate.lock();
    let making = Arc::clone(&fs);
    let maker = thread::spawn(move || making.mkdir(Ino::ROOT, b"dir", 0o755, &Caller::default()).map(drop));
    begun.recv().unwrap();
    let (dispatch, blocking) = (Dispatch::new(fs), Blocking::shared(Source::Store));
    for _ in 0..2 * READ_THREADS_MAX {
        let list = ReadIn { size: 4096, ..ReadIn::default() };
        let request = asked(Opcode::Readdir, Ino::ROOT.0, list.as_bytes());
        assert!(dispatch.handle(request, &blocking).is_none());
    }
    let (say, said) = mpsc::channel();
    blocking.run(Wait::Read, move || say.send(()).unwrap());
    let answered = said.recv_timeout(Duration::from_secs(60));
    drop(closed);
    maker.join().unwrap().unwrap();
    answered.unwrap();
}

/// Nothing but the answer leads to a file without a name. What was deleted is freed in the meantime.
#[test]
fn a_file_without_a_name_outlives_the_server_that_made_it_and_did_not_answer() {
    let device: Arc<dyn Device> = Arc::new(SimDevice::new(192 << 20, 1));
    let create = CreateOptions { force: false, created: 0, guid: Guid(*b"a file that lies") };
    create_on("tank", &[Arc::clone(&device)], &create).unwrap();
    let journal = Arc::new(Journal::create().unwrap());
    let options = OpenOptions { journal: Some(Arc::clone(&journal)), ..OpenOptions::default() };
    let pool = Pool::open_on(vec![device], &options).unwrap();
    let format = FormatOptions { seed: 1, uid: 0, gid: 0, perm: 0o755 };
    Fs::format(&*pool.dataset(), &SystemClock, &format).unwrap();
    let mount = |resumed| {
        let options = FsOptions { resumed, ..FsOptions::default() };
        Fs::mount(pool.dataset(), Arc::new(SystemClock), options).unwrap()
    };
    let slot = journal.take_slot(Asked { connection: 1, unique: 6 });
    let make = || mount(false).tmpfile(Ino::ROOT, 0o600, &Caller::default());
    let made = during(Some(slot.origin()), make).unwrap().ino;

    let left = Arc::new(Journal::adopt(journal.file().try_clone_to_owned().unwrap()).unwrap());
    left.redo((u64::MAX, 0), &mut |_, _| Ok(())).unwrap();
    let fs = mount(true);
    let dispatch = Dispatch::with_journal(Arc::clone(&fs), left, 1);
    let outcome = Arc::default();
    let post = Post {
        arguments: CreateIn { mode: 0o600, ..CreateIn::default() }.as_bytes().to_vec(),
        payload: vec![0; 4096],
        outcome: Arc::clone(&outcome),
    };
    let header = InHeader {
        opcode: Opcode::Tmpfile as u32,
        unique: 6 | UNIQUE_RESEND,
        nodeid: Ino::ROOT.0,
        ..InHeader::default()
    };
    let mut asked = vec![Request::new(header, Box::new(post), Arc::new(Stats::default()))];
    dispatch.taken_over(&mut asked);
    fs.ask_kernel(Arc::new(|_| false));
    while fs.reap(1000).unwrap() {}
    for request in asked {
        assert!(dispatch.handle(request, &Blocking::inline()).is_none());
    }
    assert!(matches!(*outcome.lock(), Some(Outcome::Ok(_))), "{:?}", outcome.lock());
    assert_eq!(fs.getattr(made).unwrap().nlink, 0);
    fs.release(made);
    while fs.reap(1000).unwrap() {}
    assert!(fs.getattr(made).is_err());
}
