//! Giving files that have data another recordsize, while they are read and changed.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use proptest::prelude::*;

use super::freeing::{self, P, compare};
use super::{Bed, ROOT, USER, assert_err, pattern};
use crate::Fallocate::{Collapse, PunchHole};
use crate::limits::TODO_RANGES_MAX;
use crate::mirror::Filling;
use crate::{
    Ended, Fs, FsError, FsOptions, Ino, OpenFlags, Rewrite, Seek, SetAttr, Step, WriteFlags, XattrMode,
};
use pagefold_engine::dataset::{Change, Dataset};

const ATTRIBUTE: &[u8] = b"user.pagefold.recordsize";

fn options(limit: u64) -> Bed {
    let options = FsOptions {
        recordsize: Some(P as u32),
        free_pages: Some(1024),
        piece_bytes: Some(4 * P),
        ..FsOptions::default()
    };
    Bed::with(limit, options)
}

fn bed_with(len: usize) -> (Bed, Ino, Vec<u8>) {
    let bed = options(u64::MAX);
    let f = bed.create(ROOT, "f").ino;
    let data = pattern(1, len);
    for (at, part) in data.chunks(1 << 20).enumerate() {
        bed.write(f, (at as u64) << 20, part);
    }
    (bed, f, data)
}

fn begin(fs: &Fs, f: Ino, recordsize: u32) -> Rewrite<'_> {
    fs.rewrite(f, recordsize).unwrap().unwrap()
}

/// Steps to the end; returns the number of steps.
fn finish(rewrite: &mut Rewrite<'_>) -> usize {
    let mut steps = 0;
    loop {
        steps += 1;
        assert!(steps < 100_000, "it comes to no end");
        match rewrite.step().unwrap() {
            Step::More => {}
            Step::Done => return steps,
            Step::Ended(why) => panic!("{why:?}"),
        }
    }
}

fn recordsize(bed: &Bed, f: Ino) -> (u32, Vec<u8>) {
    (bed.fs.getattr(f).unwrap().blksize, bed.fs.getxattr(f, ATTRIBUTE).unwrap())
}

fn truncate(bed: &Bed, f: Ino, size: u64) {
    bed.fs.setattr(f, &SetAttr { size: Some(size), ..SetAttr::default() }).unwrap();
}

/// Returns the objects that have pages.
fn objects(bed: &Bed) -> Vec<u64> {
    let all = bed.dataset.objects().into_iter();
    all.filter(|(.., pages)| !pages.is_empty()).map(|(object, ..)| object).collect()
}

/// Asserts that nothing is stored but what the file needs.
fn assert_pages(bed: &Bed, f: Ino, pages: u64) {
    bed.check();
    assert_eq!(bed.dataset.pages(), pages);
    assert_eq!(bed.fs.usage(f).unwrap().pages, pages);
    assert_eq!(objects(bed), [bed.fs.object(f).unwrap()]);
}

#[test]
fn a_file_is_the_same_in_records_of_any_size() {
    for (size, len) in [(8192_u32, 100 * P as usize + 1), (65_536, 77_777), (1 << 20, 3 << 20), (16_384, 1)] {
        let (bed, f, data) = bed_with(len);
        let mut rewrite = begin(&bed.fs, f, size);
        while rewrite.step().unwrap() == Step::More {
            assert!(bed.read(f, 0, len + 9) == data);
            let crashed = bed.crash();
            assert!(crashed.read(f, 0, len + 9) == data);
            assert_pages(&crashed, f, (len as u64).div_ceil(crashed.fs.getattr(f).unwrap().blksize.into()));
        }
        drop(rewrite);
        assert_eq!(recordsize(&bed, f), (size, size.to_string().into_bytes()));
        assert!(bed.read(f, 0, len + 9) == data);
        assert_pages(&bed, f, (len as u64).div_ceil(size.into()));
        assert!(bed.crash().read(f, 0, len + 9) == data);
        // Then the old recordsize again.
        finish(&mut begin(&bed.fs, f, P as u32));
        assert!(bed.read(f, 0, len + 9) == data);
        assert_pages(&bed, f, (len as u64).div_ceil(P));
    }
}

#[test]
fn who_gives_up_leaves_the_file_and_no_pages() {
    let (bed, f, data) = bed_with(100 * P as usize);
    let mut rewrite = begin(&bed.fs, f, 8192);
    for _ in 0..5 {
        assert_eq!(rewrite.step().unwrap(), Step::More);
    }
    assert_eq!(bed.dataset.pages(), 100 + 10);
    assert_eq!(rewrite.left_bytes(), 80 * P);
    // Reaping leaves the copy alone while the rewrite is under way.
    while bed.fs.reap(1000).unwrap() {}
    assert_eq!(bed.dataset.pages(), 100 + 10);
    drop(rewrite);
    assert_pages(&bed, f, 100);
    assert_eq!((recordsize(&bed, f).0, bed.read(f, 0, data.len()) == data), (P as u32, true));
    finish(&mut begin(&bed.fs, f, 8192));
    assert_pages(&bed, f, 50);
}

#[test]
fn holes_stay_holes() {
    let bed = options(u64::MAX);
    let f = bed.create(ROOT, "f").ino;
    bed.write(f, 1 << 40, b"far");
    bed.write(f, 5 * P, &pattern(1, 2 * P as usize));
    truncate(&bed, f, 1 << 42);
    let steps = finish(&mut begin(&bed.fs, f, 16_384));
    assert!(steps < 10, "{steps}");
    assert_eq!(bed.read(f, 5 * P, 2 * P as usize), pattern(1, 2 * P as usize));
    assert_eq!(bed.read(f, 1 << 40, 3), b"far");
    assert_eq!(bed.fs.seek(f, 1 << 20, Seek::Data).unwrap(), 1 << 40);
    assert_pages(&bed, f, 2);
}

#[test]
fn what_there_is_nothing_to_copy_of() {
    let (bed, f, _) = bed_with(9);
    assert!(bed.fs.rewrite(f, P as u32).unwrap().is_none());
    assert_eq!(bed.dataset.values().iter().filter(|(key, _)| key.object == 0 && key.kind == 6).count(), 0);
    let empty = bed.create(ROOT, "empty").ino;
    assert!(bed.fs.rewrite(empty, 65_536).unwrap().is_none());
    bed.write(empty, 0, b"first");
    assert_eq!(recordsize(&bed, empty), (65_536, b"65536".to_vec()));
    bed.check();
}

#[test]
fn who_may_not_is_told_why() {
    let (bed, f, _) = bed_with(100 * P as usize);
    for bad in [0, 512, 5000, 2 << 20] {
        assert_err!(bed.fs.rewrite(f, bad).map(drop), FsError::Invalid(_));
    }
    assert_err!(bed.fs.rewrite(ROOT, 8192).map(drop), FsError::IsADirectory);
    let link = bed.fs.symlink(ROOT, b"l", b"t", &USER).unwrap().ino;
    assert_err!(bed.fs.rewrite(link, 8192).map(drop), FsError::Invalid(_));
    assert_err!(bed.fs.rewrite(Ino(999), 8192).map(drop), FsError::Stale);
    let mut first = begin(&bed.fs, f, 8192);
    assert_err!(bed.fs.rewrite(f, 16_384).map(drop), FsError::Busy);
    assert_eq!(first.step().unwrap(), Step::More);
    bed.fs.set_read_only(true);
    assert_err!(first.step(), FsError::ReadOnly);
    assert_err!(bed.fs.rewrite(f, 8192).map(drop), FsError::ReadOnly);
    bed.fs.set_read_only(false);
    drop(first);
    bed.fs.unlink(ROOT, b"f").unwrap();
    assert_err!(bed.fs.rewrite(f, 8192).map(drop), FsError::Invalid(_));
    bed.check();
}

#[test]
fn a_file_that_is_deleted_meanwhile_is_not_gone_on_with() {
    let (bed, f, data) = bed_with(100 * P as usize);
    bed.fs.link(f, ROOT, b"g").unwrap();
    bed.fs.forget(f, 1);
    let mut rewrite = begin(&bed.fs, f, 8192);
    rewrite.step().unwrap();
    bed.fs.unlink(ROOT, b"f").unwrap();
    assert_eq!(rewrite.step().unwrap(), Step::More, "it has a name left");
    bed.fs.unlink(ROOT, b"g").unwrap();
    assert_eq!(rewrite.step().unwrap(), Step::Ended(Ended::Deleted));
    drop(rewrite);
    bed.check();
    assert!(bed.read(f, 0, data.len()) == data, "it is open still");
    bed.fs.forget(f, 1);
    bed.fs.release(f);
    bed.check();
    assert_eq!(bed.dataset.pages(), 0);
}

#[test]
fn what_moves_bytes_ends_it() {
    type ChangeFile<'a> = &'a dyn Fn(&Bed, Ino);
    let changes: [ChangeFile<'_>; 3] = [
        &|bed, f| truncate(bed, f, 0),
        &|bed, f| {
            bed.fs.open(f, OpenFlags { truncate: true, ..OpenFlags::default() }).unwrap();
        },
        &|bed, f| bed.fs.fallocate(f, P, 3 * P, Collapse, false).unwrap(),
    ];
    for change in changes {
        let (bed, f, _) = bed_with(100 * P as usize);
        let mut rewrite = begin(&bed.fs, f, 8192);
        rewrite.step().unwrap();
        change(&bed, f);
        let before = bed.read(f, 0, 999_999);
        assert_eq!(rewrite.step().unwrap(), Step::Ended(Ended::Moved));
        assert_eq!(rewrite.step().unwrap(), Step::Ended(Ended::Moved));
        drop(rewrite);
        bed.check();
        assert_eq!(bed.read(f, 0, 999_999), before);
        assert_eq!(bed.dataset.pages(), before.len() as u64 / P);
    }
}

/// A file that is emptied and filled by its program keeps the recordsize that was asked for.
#[test]
fn what_was_asked_for_goes_before_what_a_first_write_tells() {
    let hint: crate::RecordsizeHint = std::sync::Arc::new(|_, _, _| Some(4096));
    let bed = Bed::with(u64::MAX, FsOptions { hint: Some(hint), ..FsOptions::default() });
    let f = bed.create(ROOT, "f").ino;
    bed.write(f, 0, b"page");
    assert_eq!(recordsize(&bed, f).0, 4096);
    finish(&mut begin(&bed.fs, f, 32_768));
    bed.write(f, 4096, b"page");
    assert_eq!(recordsize(&bed, f).0, 32_768);
    truncate(&bed, f, 0);
    bed.write(f, 0, b"page");
    assert_eq!(recordsize(&bed, f).0, 32_768);
    bed.check();
}

#[test]
fn the_codec_goes_with_the_pages() {
    let (bed, f, _) = bed_with(100 * P as usize);
    let set = |codec: &[u8]| {
        bed.fs.setxattr(f, b"user.pagefold.compression", codec, XattrMode::Set, false).unwrap();
    };
    set(b"zstd-3");
    for late in [None, Some(b"lz4".as_slice()), Some(b"off")] {
        let size = if recordsize(&bed, f).0 == 8192 { 16_384 } else { 8192 };
        let mut rewrite = begin(&bed.fs, f, size);
        rewrite.step().unwrap();
        bed.crash().check();
        late.into_iter().for_each(set);
        bed.crash().check();
        finish(&mut rewrite);
        drop(rewrite);
        bed.check();
    }
    let mut rewrite = begin(&bed.fs, f, 65_536);
    bed.fs.removexattr(f, b"user.pagefold.compression").unwrap();
    rewrite.step().unwrap();
    drop(rewrite);
    bed.check();
    assert_eq!(bed.dataset.values().iter().filter(|(key, _)| key.kind == 0xD0).count(), 0);
}

#[test]
fn a_full_pool_ends_it_and_nobody_else() {
    let bed = options(2 << 20);
    let f = bed.create(ROOT, "f").ino;
    let mut data = pattern(1, 300 * P as usize);
    for (at, part) in data.chunks(1 << 20).enumerate() {
        bed.write(f, (at as u64) << 20, part);
    }
    let mut rewrite = begin(&bed.fs, f, 8192);
    let failed = loop {
        match rewrite.step() {
            Ok(step) => assert_eq!(step, Step::More),
            Err(error) => break error,
        }
    };
    assert!(matches!(failed, FsError::NoSpace(_)), "{failed}");
    drop(rewrite);
    assert_pages(&bed, f, 300);
    // There is room for the bytes that a user appends, but not twice.
    let mut rewrite = begin(&bed.fs, f, 65_536);
    for _ in 0..13 {
        assert_eq!(rewrite.step().unwrap(), Step::More);
    }
    bed.write(f, 300 * P, &pattern(2, P as usize));
    data.extend(pattern(2, P as usize));
    assert!(matches!(rewrite.step().unwrap(), Step::Ended(Ended::NotMirrored(_))));
    assert!(bed.read(f, 0, 9_999_999) == data);
    drop(rewrite);
    assert_pages(&bed, f, 301);
}

/// A log that grows without end, faster than it is copied, is rewritten nevertheless.
#[test]
fn appends_do_not_keep_it_from_its_end() {
    let (bed, f, mut data) = bed_with(50 * P as usize);
    let mut rewrite = begin(&bed.fs, f, 16_384);
    for seed in 0.. {
        match rewrite.step().unwrap() {
            Step::More => {}
            Step::Done => break,
            Step::Ended(why) => panic!("{why:?}"),
        }
        assert!(seed < 50, "it comes to no end");
        let more = pattern(seed, 5 * P as usize + 7);
        bed.write(f, data.len() as u64, &more);
        data.extend(more);
    }
    assert!(bed.read(f, 0, 9_999_999) == data);
    drop(rewrite);
    assert_pages(&bed, f, (data.len() as u64).div_ceil(16_384));
}

#[test]
fn what_has_to_be_copied_again_is_bounded() {
    let (bed, f, _) = bed_with(1);
    let inode = bed.fs.node(f).unwrap().snapshot();
    let mut filling = Filling::new(99, 8192, 0);
    for page in 0..5 * TODO_RANGES_MAX as u64 {
        let to_page = 2 * page;
        let share =
            Change::Share { from_object: 7, from_page: 0, to_object: inode.object, to_page, count: 1 };
        filling.mirror(&inode, &inode, &mut vec![share]);
        assert!(filling.todo.ranges().len() <= TODO_RANGES_MAX);
        assert_eq!(filling.todo.first_in(to_page * P..to_page * P + P), Some(to_page * P..to_page * P + P));
    }
    assert_eq!(filling.changes, 5 * TODO_RANGES_MAX as u64);
}

/// The checker counts an object that is being filled as an orphan: it belongs to no file. A file's own object on that
/// list is a problem.
#[test]
fn a_check_knows_objects_that_are_being_filled() {
    let (bed, f, _) = bed_with(100 * P as usize);
    let mut rewrite = begin(&bed.fs, f, 8192);
    rewrite.step().unwrap();
    let report = crate::check::check(&*bed.dataset).unwrap();
    assert_eq!((report.orphans, report.problems), (1, Vec::<String>::new()));
    let listed = Change::Put(crate::mirror::key(bed.fs.object(f).unwrap()), vec![1]);
    bed.dataset.apply(&[listed]).unwrap();
    assert_eq!(crate::check::check(&*bed.dataset).unwrap().problems.len(), 1);
}

#[derive(Clone, Debug)]
enum RewriteOp {
    Plain(freeing::FreeOp),
    Begin(usize, u32),
    Step(usize, u8),
    Finish(usize),
    GiveUp(usize),
}

fn op() -> impl Strategy<Value = RewriteOp> {
    prop_oneof![
        8 => freeing::op().prop_map(RewriteOp::Plain),
        2 => (0..2usize, 0..6u32).prop_map(|(f, n)| RewriteOp::Begin(f, 4096 << n)),
        6 => (0..2usize, 1..4u8).prop_map(|(f, n)| RewriteOp::Step(f, n)),
        1 => (0..2usize).prop_map(RewriteOp::Finish),
        1 => (0..2usize).prop_map(RewriteOp::GiveUp),
    ]
}

/// Does a step of a rewrite; returns false if it has ended.
fn go_on(rewrite: &mut Rewrite<'_>) -> bool {
    match rewrite.step().unwrap() {
        Step::More => true,
        Step::Done | Step::Ended(Ended::Moved) => false,
        Step::Ended(why) => panic!("{why:?}"),
    }
}

/// Does the operations before the next crash.
fn run(bed: &Bed, files: [Ino; 2], model: &mut [Vec<u8>; 2], ops: &[RewriteOp]) {
    let mut rewrites = [None, None];
    for op in ops {
        match op {
            RewriteOp::Plain(op) => freeing::step(bed, files, model, op),
            RewriteOp::Begin(f, size) => match bed.fs.rewrite(files[*f], *size) {
                Ok(None) => {}
                Ok(Some(rewrite)) => {
                    assert!(rewrites[*f].is_none());
                    rewrites[*f] = Some(rewrite);
                }
                Err(error) => assert!(matches!(error, FsError::Busy) && rewrites[*f].is_some(), "{error}"),
            },
            RewriteOp::Step(f, n) => {
                for _ in 0..*n {
                    if !rewrites[*f].as_mut().is_some_and(go_on) {
                        rewrites[*f] = None;
                    }
                }
            }
            RewriteOp::Finish(f) => {
                while rewrites[*f].as_mut().is_some_and(go_on) {}
                rewrites[*f] = None;
            }
            RewriteOp::GiveUp(f) => rewrites[*f] = None,
        }
        compare(bed, files, model);
    }
}

proptest! {

    #[test]
    fn rewrites_among_calls_match_plain_bytes(ops in prop::collection::vec(op(), 1..60), few in any::<bool>()) {
        let options = FsOptions {
            recordsize: Some(P as u32),
            free_pages: few.then_some(4),
            piece_bytes: Some(2 * P),
            ..FsOptions::default()
        };
        let mut bed = Bed::with(u64::MAX, options);
        let files = [bed.create(ROOT, "a").ino, bed.create(ROOT, "b").ino];
        let mut model = [Vec::new(), Vec::new()];
        for ops in ops.split(|op| matches!(op, RewriteOp::Plain(freeing::FreeOp::Crash))) {
            run(&bed, files, &mut model, ops);
            bed = bed.crash();
            compare(&bed, files, &model);
        }
        bed.check();
        compare(&bed, files, &model);
        let owned = files.map(|f| bed.fs.object(f).unwrap());
        prop_assert!(objects(&bed).iter().all(|object| owned.contains(object)), "pages of nobody");
        prop_assert!(bed.dataset.values().iter().all(|(key, _)| !(key.object == 0 && key.kind > 3)), "lists are empty");
    }
}

/// Ends the threads that read the flag, even if the test fails.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

const BLOCKS: u64 = 64;

fn block(number: u64, version: u64) -> Vec<u8> {
    [number.to_le_bytes(), version.to_le_bytes()].concat().repeat(P as usize / 16)
}

/// Reads a block and checks that it is whole, in its place, and not older than `at_least`.
fn check_block(bed: &Bed, f: Ino, number: u64, at_least: u64) {
    let data = bed.read(f, number * P, P as usize);
    let version = u64::from_le_bytes(data[8..16].try_into().unwrap());
    assert!(data == block(number, version), "block {number}: not a version of it");
    assert!(version >= at_least, "block {number}: version {version}, after {at_least} was written");
}

/// Readers see each block as it was written last, although the object that they began to read may be given up; writers
/// lose nothing.
#[test]
fn readers_and_writers_beside_rewrites_see_what_was_written() {
    let (bed, f, _) = bed_with(0);
    for number in 0..BLOCKS {
        bed.write(f, number * P, &block(number, 1));
    }
    let versions: Vec<AtomicU64> = (0..BLOCKS).map(|_| AtomicU64::new(1)).collect();
    let stop = AtomicBool::new(false);
    let goes_on = || !stop.load(Ordering::Relaxed);
    std::thread::scope(|s| {
        let _stop = StopOnDrop(&stop);
        for reader in 0..2 {
            let (bed, versions) = (&bed, &versions);
            s.spawn(move || {
                for number in (reader..).step_by(7).map(|n| n % BLOCKS).take_while(|_| goes_on()) {
                    check_block(bed, f, number, versions[number as usize].load(Ordering::Acquire));
                    assert_eq!(bed.fs.seek(f, number * P, Seek::Data).unwrap(), number * P);
                }
            });
        }
        // Each writer has blocks of its own.
        for writer in 0..2 {
            let (bed, versions) = (&bed, &versions);
            s.spawn(move || {
                for n in (0_u64..).take_while(|_| goes_on()) {
                    let (number, version) = (2 * (n * 5 % (BLOCKS / 2)) + writer, n + 2);
                    bed.fs.write(f, number * P, &block(number, version), WriteFlags::default()).unwrap();
                    versions[number as usize].store(version, Ordering::Release);
                    check_block(bed, f, number, version);
                }
            });
        }
        s.spawn(|| {
            while goes_on() {
                bed.fs.reap(5).unwrap();
            }
        });
        for n in 0..300 {
            finish(&mut begin(&bed.fs, f, [8192, 65_536, 4096, 16_384][n % 4]));
        }
    });
    for number in 0..BLOCKS {
        check_block(&bed, f, number, versions[number as usize].load(Ordering::Acquire));
    }
    bed.check();
}

/// Bytes that were copied, and then cut off the file, are zeros in the copy before the file gets it.
#[test]
fn what_is_cut_off_does_not_come_back() {
    for size in [8192_u32, 65_536] {
        let (bed, f, mut data) = bed_with(100 * P as usize);
        let mut rewrite = begin(&bed.fs, f, size);
        while rewrite.left_bytes() > 0 {
            assert_eq!(rewrite.step().unwrap(), Step::More);
        }
        truncate(&bed, f, 33 * P + 5);
        assert!(rewrite.left_bytes() > 0);
        finish(&mut rewrite);
        drop(rewrite);
        truncate(&bed, f, 100 * P);
        data[33 * P as usize + 5..].fill(0);
        assert!(bed.read(f, 0, 999_999) == data);
        assert_pages(&bed, f, (33 * P + 5).div_ceil(size.into()));
    }
}

/// Between a reader's look at the inode and its look at the pages, the file gets another object, and the old one is
/// freed.
#[test]
fn who_reads_of_an_object_that_is_given_up_reads_again() {
    let rewrite: fn(&Bed, Ino) = |bed, f| {
        let other = if recordsize(bed, f).0 == 16_384 { 8192 } else { 16_384 };
        finish(&mut begin(&bed.fs, f, other));
    };
    let collapse: fn(&Bed, Ino) = |bed, f| bed.fs.fallocate(f, 0, P, Collapse, false).unwrap();
    for (change, moved) in [(rewrite, 0), (collapse, P as usize)] {
        let (bed, f, data) = bed_with(100 * P as usize);
        let bed = std::sync::Arc::new(bed);
        let meanwhile = |put: u8| {
            let bed_of_others = std::sync::Arc::clone(&bed);
            bed.dataset.before_read(move || {
                change(&bed_of_others, f);
                bed_of_others.write(f, 50 * P, &[put; 9]);
                while bed_of_others.fs.reap(1000).unwrap() {}
            });
        };
        meanwhile(7);
        let mut wanted = data[moved..].to_vec();
        wanted[50 * P as usize..][..9].fill(7);
        assert!(bed.read(f, 0, data.len()) == wanted);
        meanwhile(8);
        assert_eq!(bed.fs.seek(f, 3 * P, Seek::Data).unwrap(), 3 * P);
        meanwhile(9);
        assert!(bed.fs.seek(f, 0, Seek::Hole).unwrap() > 90 * P);
        bed.check();
    }
}

/// A large hole is copied piece by piece, even where its pages were copied before.
#[test]
fn much_that_is_punched_out_is_no_large_change() {
    let (bed, f, mut data) = bed_with(2000 * P as usize);
    let mut rewrite = begin(&bed.fs, f, 8192);
    for _ in 0..300 {
        rewrite.step().unwrap();
    }
    bed.fs.fallocate(f, 5, 1500 * P, PunchHole, false).unwrap();
    data[5..1500 * P as usize + 5].fill(0);
    finish(&mut rewrite);
    assert!(bed.read(f, 0, data.len() + 9) == data);
    drop(rewrite);
    assert_pages(&bed, f, 250 + 1);
}
