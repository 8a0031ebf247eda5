//! Giving files that have data another recordsize, while they are read and changed.

mod random;
mod readers;

use pagefold_engine::dataset::{Change, Dataset};

use super::freeing::P;
use super::{Bed, ROOT, USER, assert_err, pattern};
use crate::Fallocate::{Collapse, PunchHole};
use crate::limits::TODO_RANGES_MAX;
use crate::mirror::Filling;
use crate::{Ended, Fs, FsError, FsOptions, Ino, OpenFlags, Rewrite, Seek, SetAttr, Step, XattrMode};

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
