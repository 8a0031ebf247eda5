//! Tests of requests that an earlier server carried out and did not answer.

use std::sync::Arc;

use pagefold_engine::dataset::Journal;
use pagefold_engine::dataset::journal::{Asked, during};
use pagefold_engine::device::{Device, SimDevice};
use pagefold_engine::pool::{CreateOptions, Guid, OpenOptions, Pool, create_on};
use pagefold_fs::{Caller, FormatOptions, Fs, FsOptions, Ino, SystemClock};
use parking_lot::Mutex;
use zerocopy::IntoBytes;

use super::Dispatch;
use crate::operation::Arguments;
use crate::protocol::{CreateIn, InHeader, Opcode, UNIQUE_RESEND};
use crate::request::{Exchange, Outcome};
use crate::stats::Stats;
use crate::{Blocking, Handler, Request};

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
