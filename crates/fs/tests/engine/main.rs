//! The file system on the real engine, on a simulated device that loses power.
//!
//! Every change goes to the engine and to a dataset in memory. Reads of both must agree at any time. After a crash the
//! engine must hold what memory held after one of the changes since the last sync: a prefix, whole changes only.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

mod at_once;
mod changes;
mod full;
mod thin;
mod twin;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use changes::meddle;
use pagefold_engine::Error;
use pagefold_engine::dataset::Dataset;
use pagefold_engine::dataset::journal::{Asked, Journal, during};
use pagefold_engine::device::{Device, SimDevice};
use pagefold_engine::pool::{CreateOptions, Guid, OpenOptions, Pool, create_on};
use pagefold_engine::types::Key;
use pagefold_fs::testing::{ManualClock, MemDataset};
use pagefold_fs::{
    Caller, Fallocate, FormatOptions, Fs, FsError, FsOptions, Ino, OpenFlags, SetAttr, WriteFlags,
};
use parking_lot::Mutex;
use twin::difference;

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

fn assert_clean(dataset: &dyn Dataset) {
    let report = pagefold_fs::check::check(dataset).unwrap();
    assert!(report.is_clean(), "{:#?}", report.problems);
}

fn mount(dataset: Arc<dyn Dataset>) -> Arc<Fs> {
    Fs::mount(dataset, Arc::new(ManualClock::default()), FsOptions::default()).unwrap()
}

/// As [`mount`], with small pages, of which a change frees a few.
fn mount_for_steps(dataset: Arc<dyn Dataset>) -> Arc<Fs> {
    let options = FsOptions {
        recordsize: Some(4096),
        free_pages: Some(3),
        piece_bytes: Some(4096),
        ..FsOptions::default()
    };
    Fs::mount(dataset, Arc::new(ManualClock::default()), options).unwrap()
}

/// The engine and a dataset in memory, side by side.
struct Twin {
    live: Arc<dyn Dataset>,
    memory: MemDataset,
    /// Memory after each change since the last sync, oldest first.
    history: Mutex<Vec<MemDataset>>,
}

struct Dice(u64);

#[test]
fn crashes_leave_a_prefix_of_whole_calls() {
    crashes_leave_a_prefix(mount);
}

/// The same, if most of what is truncated or punched is freed later.
#[test]
fn crashes_between_the_steps_of_freeing_leave_a_prefix() {
    crashes_leave_a_prefix(mount_for_steps);
}

fn crashes_leave_a_prefix(mount: fn(Arc<dyn Dataset>) -> Arc<Fs>) {
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

/// Fills a new file with bytes that do not compress, a record at a time; returns the number of records.
fn fill(fs: &Fs, name: &[u8]) -> u64 {
    let f = fs.create(Ino::ROOT, name, 0o644, OpenFlags::default(), &USER).unwrap().ino;
    let mut x = u64::from(name[0]);
    let mut record = || {
        let mut next = || {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (x >> 32) as u32
        };
        (0..4096).flat_map(|_| next().to_le_bytes()).collect::<Vec<u8>>()
    };
    let write = |at: &u64| fs.write(f, at * 16384, &record(), WriteFlags::default()).is_err();
    let written = (0..).find(write).unwrap();
    fs.release(f);
    fs.forget(f, 1);
    written
}

/// Nobody frees in the background what was deleted: the write does it that finds no space, of whichever dataset.
#[test]
fn space_of_deleted_files_is_there_for_all_datasets_at_once() {
    let device = device();
    let pool = open(&device);
    let datasets = ["a", "b", "small"].map(|path| {
        pool.create_dataset(path, 1).unwrap();
        let dataset = pool.open_dataset(path).unwrap();
        Fs::format(&*dataset, &ManualClock::default(), &FORMAT).unwrap();
        mount(dataset)
    });
    let [a, b, small] = &datasets;
    // Within a quota.
    pool.set_property_of("small", "refquota", Some("8388608")).unwrap();
    let first = fill(small, b"0");
    assert!((200..600).contains(&first), "{first}");
    for _ in 0..5 {
        small.unlink(Ino::ROOT, b"0").unwrap();
        // A lower bound holds at once, too.
        pool.set_property_of("small", "refquota", Some("4194304")).unwrap();
        pool.set_property_of("small", "refquota", Some("8388608")).unwrap();
        let again = fill(small, b"0");
        assert!(again + 8 >= first, "{again} of {first} records fit into the quota");
    }
    let most = fill(a, b"0");
    assert!(most > 1000, "{most}");
    for (gone, full) in [(a, a), (a, b), (b, a), (a, a)] {
        gone.unlink(Ino::ROOT, b"0").unwrap();
        let again = fill(full, b"0");
        assert!(again + 64 >= most, "{again} of {most} records fit after the deletion");
    }
    drop(datasets);
    for path in ["a", "b", "small"] {
        assert_clean(&*pool.open_dataset(path).unwrap());
    }
    pool.sync().unwrap();
    pool.checkpoint(false).unwrap();
    let report = pool.check_open(&mut |_| {});
    assert!(report.messages.is_empty(), "{:?}", report.messages);
}

/// The bytes that `statfs` tells to be available are accepted, in files of any recordsize, whatever is in them.
#[test]
fn what_is_told_to_be_available_is_accepted() {
    for recordsize in [4 << 10, 16 << 10, 64 << 10, 128 << 10, 512 << 10, 1 << 20_u32] {
        let device = device();
        let pool = open(&device);
        Fs::format(&*pool.dataset(), &ManualClock::default(), &FORMAT).unwrap();
        let options = FsOptions { recordsize: Some(recordsize), ..FsOptions::default() };
        let fs = Fs::mount(pool.dataset(), Arc::new(ManualClock::default()), options).unwrap();
        let available = || {
            let told = fs.statfs().unwrap();
            told.blocks_available * u64::from(told.block_size)
        };
        let mut random = 1_u64;
        let mut noise = |len: usize| -> Vec<u8> {
            let mut next = || {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (random >> 32) as u32
            };
            (0..len.div_ceil(4)).flat_map(|_| next().to_le_bytes()).take(len).collect()
        };
        // Whole records at first, then a file of small appends with what is left, and again.
        for (name, piece) in [(b"a", 1 << 20), (b"b", 4096), (b"c", 65_537), (b"d", 512)] {
            let told = available();
            let f = fs.create(Ino::ROOT, name, 0o644, OpenFlags::default(), &USER).unwrap().ino;
            let part = if name == b"a" { told / 2 } else { told };
            let mut written = 0;
            while written < part {
                let len = piece.min(usize::try_from(part - written).unwrap());
                let done = fs.write(f, written, &noise(len), WriteFlags::default());
                assert!(
                    done.is_ok(),
                    "recordsize {recordsize}, pieces of {piece}: {written} of {told} bytes, {}",
                    done.unwrap_err()
                );
                written += len as u64;
            }
            fs.release(f);
        }
        // The promise is no excuse: hardly anything else would have fitted.
        let most = u64::from(recordsize) * 4 + (1 << 20);
        assert!(available() < most, "{} bytes are left", available());
    }
}

/// On a full pool parts of records can be punched out, and whole ones.
#[test]
fn a_full_pool_lets_punch() {
    for recordsize in [16 << 10, 64 << 10, 1 << 20_u32] {
        let device = device();
        let pool = open(&device);
        Fs::format(&*pool.dataset(), &ManualClock::default(), &FORMAT).unwrap();
        let options = FsOptions { recordsize: Some(recordsize), ..FsOptions::default() };
        let fs = Fs::mount(pool.dataset(), Arc::new(ManualClock::default()), options).unwrap();
        let records = fill(&fs, b"f") * 16384 / u64::from(recordsize);
        let f = fs.lookup(Ino::ROOT, b"f").unwrap().ino;
        for record in 0..records.min(30) {
            let at = record * u64::from(recordsize);
            fs.fallocate(f, at + 100, 4000, Fallocate::PunchHole, false).unwrap();
            let mut out = vec![1; 4200];
            assert_eq!(fs.read(f, at, &mut out).unwrap(), 4200);
            assert!(
                out[100..4100].iter().all(|byte| *byte == 0) && out[4100..].iter().any(|byte| *byte != 0)
            );
        }
    }
}

/// Opens the pool of a new device with a journal, and makes a file system there.
fn fresh_with_journal(device: &Arc<SimDevice>) -> (Arc<Journal>, Arc<Pool>) {
    let journal = Arc::new(Journal::create().unwrap());
    let options = OpenOptions { journal: Some(Arc::clone(&journal)), ..OpenOptions::default() };
    let pool = Pool::open_on(vec![Arc::clone(device) as Arc<dyn Device>], &options).unwrap();
    Fs::format(&*pool.dataset(), &ManualClock::default(), &FORMAT).unwrap();
    (journal, pool)
}

/// Freeing that makes room for ranges does not count as the request itself: a server that goes on after this one
/// carries the request out.
#[test]
fn a_request_that_had_to_free_first_is_yet_to_be_carried_out() {
    let device = device();
    let (journal, pool) = fresh_with_journal(&device);
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

/// A server that goes on answers a request that was carried out before. The access times that it makes durable first are
/// not the request's change: the server after it, if it dies, too, has to find the same result.
#[test]
fn access_times_leave_the_result_of_a_request_alone() {
    let device = device();
    let (journal, pool) = fresh_with_journal(&device);
    let fs = mount(pool.dataset());
    let create = |name: &[u8]| fs.create(Ino::ROOT, name, 0o644, OpenFlags::default(), &USER).unwrap().ino;
    let (from, to) = (create(b"from"), create(b"to"));
    fs.write(from, 0, &[7; 5000], WriteFlags::default()).unwrap();
    let asked = |unique| Asked { connection: 1, unique };
    let (copies, waits) = (journal.take_slot(asked(2)), journal.take_slot(asked(4)));
    let copied = during(Some(copies.origin()), || fs.copy_file_range(from, 0, to, 0, 5000, false)).unwrap();
    assert_eq!(copied, 5000);
    for request in [&copies, &waits] {
        fs.read(from, 0, &mut [0; 10]).unwrap();
        assert!(!fs.syncs_at_once(from, false), "an access time is to be written");
        during(Some(request.origin()), || fs.sync()).unwrap();
        assert!(fs.syncs_at_once(from, false));
        fs.write(from, 0, &[8; 10], WriteFlags::default()).unwrap();
    }
    let next = Arc::new(Journal::adopt(journal.file().try_clone_to_owned().unwrap()).unwrap());
    next.redo((u64::MAX, 0), &mut |_, _| Ok(())).unwrap();
    assert_eq!(next.take_slot(asked(2)).done(), Some(5000));
    assert_eq!(next.take_slot(asked(4)).done(), None);
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
