//! The file system on the real engine, on a simulated device that loses power.
//!
//! Every change goes to the engine and to a dataset in memory. Reads of both must agree at any time. After a crash the
//! engine must hold what memory held after one of the changes since the last sync: a prefix, whole changes only.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use pagefold_engine::dataset::journal::{Asked, Journal, during};
use pagefold_engine::dataset::{Attempt, Change, Dataset, Space, Synced, Usage};
use pagefold_engine::device::{Device, SimDevice};
use pagefold_engine::pool::{CreateOptions, Guid, OpenOptions, Pool, create_on};
use pagefold_engine::types::Key;
use pagefold_engine::{Error, Result};
use pagefold_fs::testing::{ManualClock, MemDataset};
use pagefold_fs::{
    Caller, Fallocate, FormatOptions, Fs, FsError, FsOptions, Ino, OpenFlags, RenameMode, SetAttr, Step,
    WriteFlags, XattrMode,
};

const USER: Caller = Caller { uid: 1, gid: 1, umask: 0o022 };
const FORMAT: FormatOptions = FormatOptions { seed: 99, uid: 0, gid: 0, perm: 0o755 };
const DEVICE_BYTES: u64 = 256 << 20;

fn device() -> Arc<SimDevice> {
    let device = Arc::new(SimDevice::new(DEVICE_BYTES, 5));
    let options = CreateOptions { force: false, created: 0, guid: Guid(*b"fs-on-the-engine") };
    create_on("tank", &[Arc::clone(&device) as Arc<dyn Device>], &options).unwrap();
    device
}

fn open(device: &Arc<SimDevice>) -> Arc<Pool> {
    Pool::open_on(vec![Arc::clone(device) as Arc<dyn Device>], &OpenOptions::default()).unwrap()
}

/// The engine and a dataset in memory, side by side.
struct Twin {
    live: Arc<dyn Dataset>,
    memory: MemDataset,
    /// Memory after each change since the last sync, oldest first.
    history: Mutex<Vec<MemDataset>>,
}

impl Twin {
    fn new(live: Arc<dyn Dataset>, memory: MemDataset) -> Self {
        let history = Mutex::new(vec![memory.crashed()]);
        Self { live, memory, history }
    }

    /// Returns the state of memory that is the engine's state now; panics if there is none.
    fn resolve(live: &dyn Dataset, history: &[MemDataset]) -> MemDataset {
        let found = history.iter().rev().find(|memory| difference(live, memory).is_none());
        let newest = history.last().unwrap();
        found
            .unwrap_or_else(|| panic!("no prefix: newest differs by {:?}", difference(live, newest)))
            .crashed()
    }
}

/// Describes how two datasets differ, if they do.
fn difference(live: &dyn Dataset, memory: &MemDataset) -> Option<String> {
    let (first, last) = (Key::new(0, 0, 0), Key::new(u64::MAX, Key::ENGINE_KINDS, 0));
    let mut values = live.range(&first, &last, usize::MAX).unwrap();
    values.retain(|(key, _)| key.kind < Key::ENGINE_KINDS);
    let expected = memory.values();
    if values != expected {
        let differs = values.iter().zip(&expected).find(|(a, b)| a != b).map(|(a, b)| (a.0, b.0));
        return Some(format!("{} values instead of {}, first {differs:?}", values.len(), expected.len()));
    }
    for (object, record_size, pages) in memory.objects() {
        let (mut a, mut b) = (vec![1; record_size as usize], vec![2; record_size as usize]);
        for page in pages {
            let offset = page * u64::from(record_size);
            live.read(object, record_size, offset, &mut a).unwrap();
            memory.read(object, record_size, offset, &mut b).unwrap();
            if a != b {
                return Some(format!("page {page} of object {object}"));
            }
        }
    }
    None
}

impl Dataset for Twin {
    fn get(&self, key: &Key) -> Result<Option<Vec<u8>>> {
        let found = self.live.get(key)?;
        assert_eq!(found, self.memory.get(key)?, "{key:?}");
        Ok(found)
    }

    fn range(&self, from: &Key, to: &Key, limit: usize) -> Result<Vec<(Key, Vec<u8>)>> {
        let found = self.live.range(from, to, limit)?;
        assert_eq!(found, self.memory.range(from, to, limit)?, "{from:?}..{to:?}");
        Ok(found)
    }

    fn apply(&self, changes: &[Change<'_>]) -> Result<()> {
        self.live.apply(changes)?;
        self.memory.apply(changes)?;
        self.history.lock().push(self.memory.crashed());
        Ok(())
    }

    fn read(&self, object: u64, record_size: u32, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.live.read(object, record_size, offset, buf)?;
        let mut expected = vec![1; buf.len()];
        self.memory.read(object, record_size, offset, &mut expected)?;
        assert!(buf == expected, "{} bytes of object {object} at {offset}", buf.len());
        Ok(())
    }

    fn try_read(&self, object: u64, record_size: u32, offset: u64, buf: &mut [u8]) -> Result<Attempt> {
        self.live.try_read(object, record_size, offset, buf)
    }

    fn next_data(&self, object: u64, page: u64) -> Result<Option<u64>> {
        let found = self.live.next_data(object, page)?;
        // A page of zeros may count as data until it is committed; pages that memory holds must be found.
        if let Some(expected) = self.memory.next_data(object, page)? {
            assert!(found.is_some_and(|found| found <= expected), "{found:?} instead of {expected}");
        }
        Ok(found)
    }

    fn next_hole(&self, object: u64, page: u64) -> Result<u64> {
        let found = self.live.next_hole(object, page)?;
        assert!(found >= self.memory.next_hole(object, page)?);
        Ok(found)
    }

    fn usage(&self, object: u64) -> Result<Usage> {
        self.live.usage(object)
    }

    fn sync(&self) -> Result<()> {
        self.live.sync()?;
        let mut history = self.history.lock();
        let last = history.len() - 1;
        history.drain(..last);
        Ok(())
    }

    fn sync_then(&self, then: Synced) {
        then(self.sync());
    }

    fn space(&self) -> Space {
        self.live.space()
    }
}

struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }

    fn bytes(&mut self, len: u64) -> Vec<u8> {
        (0..len).map(|_| self.roll(7) as u8).collect()
    }
}

/// Returns the value, or `None` for an error that a random call may cause; any other error is a failure.
fn fine<T>(result: pagefold_fs::Result<T>) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(FsError::Engine(error)) => panic!("{error}"),
        Err(error @ FsError::Corrupt { .. }) => panic!("{error}"),
        Err(_) => None,
    }
}

/// Makes one random call, or a few that belong together.
fn meddle(fs: &Fs, dice: &mut Dice) {
    let mut dirs = vec![Ino::ROOT];
    for name in [b"d0", b"d1"] {
        dirs.extend(fine(fs.lookup(Ino::ROOT, name)).map(|e| e.ino));
    }
    let (a, b) = (dirs[dice.roll(dirs.len() as u64) as usize], dirs[dice.roll(dirs.len() as u64) as usize]);
    let (x, y) = (format!("f{}", dice.roll(5)), format!("f{}", dice.roll(5)));
    let (x, y) = (x.as_bytes(), y.as_bytes());
    let (offset, len) = (dice.roll(200_000), 1 + dice.roll(40_000));
    match dice.roll(17) {
        0 => drop(
            fine(fs.mkdir(a, format!("d{}", dice.roll(3)).as_bytes(), 0o755, &USER))
                .map(|e| fs.forget(e.ino, 1)),
        ),
        1 => drop(fine(fs.unlink(a, x))),
        2 => drop(fine(fs.rmdir(a, b"d2"))),
        3 => drop(fine(fs.rename(a, x, b, y, RenameMode::Replace))),
        4 => drop(fine(fs.rename(a, x, b, y, RenameMode::Exchange))),
        5 => drop(fine(fs.reap(1 + dice.roll(20)))),
        6 => drop(fine(fs.symlink(a, x, b"target", &USER)).map(|e| fs.forget(e.ino, 1))),
        _ => {
            let Some(f) = fine(fs.create(a, x, 0o644, OpenFlags::default(), &USER)) else { return };
            if dice.roll(6) == 0 {
                rewrite(fs, f.ino, (b, y), dice);
            } else {
                change_file(fs, f.ino, (b, y), (offset, len), dice);
            }
            fs.release(f.ino);
            fs.forget(f.ino, 1);
        }
    }
    dirs.iter().skip(1).for_each(|dir| fs.forget(*dir, 1));
}

fn change_file(fs: &Fs, f: Ino, other: (Ino, &[u8]), (offset, len): (u64, u64), dice: &mut Dice) {
    let page = 16384;
    let size = |size| SetAttr { size: Some(size), ..SetAttr::default() };
    match dice.roll(12) {
        0..4 => drop(fine(fs.write(f, offset, &dice.bytes(len), WriteFlags::default()))),
        4 => drop(fine(fs.setattr(f, &size(offset)))),
        5 => drop(fine(fs.setattr(f, &size(0)))),
        6 => drop(fine(fs.fallocate(f, offset, len, Fallocate::PunchHole, false))),
        7 => drop(fine(fs.fallocate(f, offset, len, Fallocate::ZeroRange { keep_size: false }, false))),
        8 => drop(fine(fs.fallocate(f, offset / page * page, page, Fallocate::Collapse, false))),
        9 => drop(fine(fs.fallocate(f, offset / page * page, page, Fallocate::Insert, false))),
        10 => drop(fine(fs.setxattr(f, b"user.x", &dice.bytes(len / 100), XattrMode::Set, false))),
        _ => {
            if let Some(g) = fine(fs.create(other.0, other.1, 0o644, OpenFlags::default(), &USER)) {
                // Most often both ranges begin at the same place within a record.
                let to = if dice.roll(3) == 0 { offset + 1 } else { offset % page + dice.roll(4) * page };
                fine(fs.copy_file_range(f, offset, g.ino, to, 3 * len, false));
                fs.release(g.ino);
                fs.forget(g.ino, 1);
            }
        }
    }
}

/// Gives a file another recordsize while it and others are changed; sometimes stops before the end.
fn rewrite(fs: &Fs, f: Ino, other: (Ino, &[u8]), dice: &mut Dice) {
    let Some(Some(mut rewrite)) = fine(fs.rewrite(f, 4096 << dice.roll(5))) else { return };
    for _ in 0..dice.roll(40) {
        let place = (dice.roll(200_000), 1 + dice.roll(40_000));
        match dice.roll(12) {
            0..3 => change_file(fs, f, other, place, dice),
            3 => change_file(fs, other.0, (Ino::ROOT, b"f0"), place, dice),
            4 => drop(fine(fs.reap(1 + dice.roll(20)))),
            5 => fs.sync().unwrap(),
            _ => {}
        }
        match fine(rewrite.step()) {
            Some(Step::More) => {}
            Some(Step::Done | Step::Ended(_)) | None => return,
        }
    }
}

fn assert_clean(dataset: &dyn Dataset) {
    let report = pagefold_fs::check::check(dataset).unwrap();
    assert!(report.is_clean(), "{:#?}", report.problems);
}

fn mount(dataset: Arc<dyn Dataset>) -> Fs {
    Fs::mount(dataset, Arc::new(ManualClock::default()), FsOptions::default()).unwrap()
}

/// As [`mount`], with small pages, of which a change frees a few.
fn mount_for_steps(dataset: Arc<dyn Dataset>) -> Fs {
    let options = FsOptions {
        recordsize: Some(4096),
        free_pages: Some(3),
        piece_bytes: Some(4096),
        ..FsOptions::default()
    };
    Fs::mount(dataset, Arc::new(ManualClock::default()), options).unwrap()
}

#[test]
fn crashes_leave_a_prefix_of_whole_calls() {
    crashes_leave_a_prefix(mount);
}

/// The same, if most of what is truncated or punched is freed later.
#[test]
fn crashes_between_the_steps_of_freeing_leave_a_prefix() {
    crashes_leave_a_prefix(mount_for_steps);
}

fn crashes_leave_a_prefix(mount: fn(Arc<dyn Dataset>) -> Fs) {
    for seed in 1..=6 {
        let mut dice = Dice(seed * 0x9E37_79B9);
        let mut device = device();
        let mut pool = open(&device);
        let mut twin = Arc::new(Twin::new(pool.dataset(), MemDataset::new(u64::MAX)));
        Fs::format(&*twin, &ManualClock::default(), &FORMAT).unwrap();
        twin.sync().unwrap();
        for round in 0..6 {
            let fs = mount(Arc::clone(&twin) as Arc<dyn Dataset>);
            for _ in 0..80 {
                meddle(&fs, &mut dice);
                match dice.roll(40) {
                    0 => fs.sync().unwrap(),
                    // The changes are committed, but the twin is not told so.
                    1 => pool.sync().unwrap(),
                    2 => drop(pool.maintain().unwrap()),
                    _ => {}
                }
            }
            assert_eq!(difference(&*twin.live, &twin.memory), None);
            drop(fs);
            let history = std::mem::take(&mut *twin.history.lock());
            let crashed = Arc::new(device.crash_seeded(seed * 100 + round));
            drop(pool);
            device = crashed;
            pool = open(&device);
            let memory = Twin::resolve(&*pool.dataset(), &history);
            assert_clean(&*pool.dataset());
            let report = pool.check_open(&mut |_| {});
            assert_eq!(report.messages, Vec::<String>::new());
            twin = Arc::new(Twin::new(pool.dataset(), memory));
        }
    }
}

/// Ends the threads that read the flag, even if the test fails.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Threads change, sync and reap, while the pool commits and makes checkpoints in the background. The device loses
/// power again and again, and each time it holds a clean file system.
#[test]
fn crashes_under_load_leave_a_clean_file_system() {
    let device = device();
    let pool = open(&device);
    Fs::format(&*pool.dataset(), &ManualClock::default(), &FORMAT).unwrap();
    pool.sync().unwrap();
    let background = pool.run().unwrap();
    let fs = mount_for_steps(pool.dataset());
    let stop = AtomicBool::new(false);
    std::thread::scope(|s| {
        let _stop = StopOnDrop(&stop);
        for seed in 1..=3 {
            let (fs, stop) = (&fs, &stop);
            s.spawn(move || {
                let mut dice = Dice(seed * 0x1234_5678_9ABC);
                while !stop.load(Ordering::Relaxed) {
                    meddle(fs, &mut dice);
                    if dice.roll(30) == 0 {
                        fs.sync().unwrap();
                    }
                }
            });
        }
        for seed in 0..12 {
            std::thread::sleep(std::time::Duration::from_millis(150));
            let image = Arc::new(device.crash_seeded(seed));
            let after = open(&image);
            let report = after.check_open(&mut |_| {});
            assert_eq!(report.messages, Vec::<String>::new());
            assert_clean(&*after.dataset());
            let fs = mount_for_steps(after.dataset());
            while fs.reap(1000).unwrap() {}
            assert_clean(&*after.dataset());
            assert_eq!(pagefold_fs::check::check(&*after.dataset()).unwrap().orphans, 0);
            drop(fs);
            let report = after.check_open(&mut |_| {});
            assert_eq!(report.messages, Vec::<String>::new());
        }
    });
    fs.sync().unwrap();
    while fs.reap(1000).unwrap() {}
    assert_clean(&*pool.dataset());
    background.stop();
    pool.export().unwrap();
}

/// A full pool refuses changes that take space, and admits changes that free it.
#[test]
fn a_full_pool_admits_what_frees() {
    let device = device();
    let pool = open(&device);
    let fs = {
        Fs::format(&*pool.dataset(), &ManualClock::default(), &FORMAT).unwrap();
        mount(pool.dataset())
    };
    let f = fs.create(Ino::ROOT, b"big", 0o644, OpenFlags::default(), &USER).unwrap().ino;
    // The data are high bits of a generator, which do not compress.
    let mut x = 1u64;
    let mut offset = 0;
    let mut buf = vec![0; 1 << 20];
    let mut len = buf.len();
    let full = loop {
        let buf = &mut buf[..len];
        for chunk in buf.as_chunks_mut::<4>().0 {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            *chunk = ((x >> 32) as u32).to_le_bytes();
        }
        match fs.write(f, offset, buf, WriteFlags::default()) {
            Ok(_) => offset += len as u64,
            // The pool is filled to the last record.
            Err(FsError::NoSpace(_)) if len > 16384 => len /= 2,
            Err(error) => break error,
        }
    };
    assert!(matches!(full, FsError::NoSpace(_)), "{full}");
    let before = fs.statfs().unwrap();
    let set = |size| SetAttr { size: Some(size), ..SetAttr::default() };
    assert_eq!(fs.setattr(f, &set(offset - 5)).unwrap().size, offset - 5);
    assert_eq!(fs.setattr(f, &set(0)).unwrap().size, 0);
    fs.unlink(Ino::ROOT, b"big").unwrap();
    fs.release(f);
    fs.forget(f, 1);
    while fs.reap(10_000).unwrap() {}
    fs.sync().unwrap();
    while pool.maintain().unwrap() {}
    let after = fs.statfs().unwrap();
    assert!(after.blocks_available > before.blocks_available + after.blocks / 2, "{before:?} {after:?}");
    fs.create(Ino::ROOT, b"again", 0o644, OpenFlags::default(), &USER).unwrap();
    assert_clean(&*pool.dataset());
}

/// Freeing that makes room for ranges does not count as the request itself: a server that goes on after this one
/// carries the request out.
#[test]
fn a_request_that_had_to_free_first_is_yet_to_be_carried_out() {
    let device = device();
    let journal = Arc::new(Journal::create().unwrap());
    let options = OpenOptions { journal: Some(Arc::clone(&journal)), ..OpenOptions::default() };
    let pool = Pool::open_on(vec![Arc::clone(&device) as Arc<dyn Device>], &options).unwrap();
    Fs::format(&*pool.dataset(), &ManualClock::default(), &FORMAT).unwrap();
    let fs = mount_for_steps(pool.dataset());
    let f = fs.create(Ino::ROOT, b"f", 0o644, OpenFlags::default(), &USER).unwrap().ino;
    fs.write(f, 0, &[7; 1 << 20], WriteFlags::default()).unwrap();
    fs.sync().unwrap();
    fs.fallocate(f, 0, 1 << 20, Fallocate::PunchHole, false).unwrap();
    // The inode gets as many ranges as it may have.
    for page in (6..256).step_by(4) {
        fs.write(f, page * 4096, &[8; 4096], WriteFlags::default()).unwrap();
    }
    let asked = |unique| Asked { connection: 1, unique };
    let (refused, carried_out) = (journal.take_slot(asked(2)), journal.take_slot(asked(4)));
    let stored = pool.dataset().get(&Key::new(f.0, 0x10, 0)).unwrap().unwrap().len();
    let outcome =
        during(Some(refused.origin()), || fs.write(f, u64::MAX / 2, &[1; 9], WriteFlags::default()));
    assert!(matches!(outcome, Err(FsError::TooBig)), "{outcome:?}");
    assert!(
        pool.dataset().get(&Key::new(f.0, 0x10, 0)).unwrap().unwrap().len() < stored,
        "it freed something"
    );
    during(Some(carried_out.origin()), || fs.write(f, 0, &[1; 9], WriteFlags::default())).unwrap();
    let next = Arc::new(Journal::adopt(journal.file().try_clone_to_owned().unwrap()).unwrap());
    next.redo((u64::MAX, 0), &mut |_, _| Ok(())).unwrap();
    assert_eq!(next.take_slot(asked(2)).done(), None);
    assert!(next.take_slot(asked(4)).done().is_some());
}

/// From then on every caller is told of a failed device (W6).
#[test]
fn a_failed_flush_stays_failed() {
    let device = device();
    let pool = open(&device);
    Fs::format(&*pool.dataset(), &ManualClock::default(), &FORMAT).unwrap();
    let fs = mount(pool.dataset());
    fs.sync().unwrap();
    device.cut_after(0);
    fs.mkdir(Ino::ROOT, b"d", 0o755, &USER).unwrap();
    assert!(matches!(fs.sync(), Err(FsError::Engine(Error::Io { .. } | Error::Failed(_)))));
    assert!(fs.fsync(Ino::ROOT, true).is_err());
    assert!(fs.mkdir(Ino::ROOT, b"e", 0o755, &USER).is_err());
}
