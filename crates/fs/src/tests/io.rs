use std::sync::Arc;

use super::{Bed, ROOT, USER, assert_err, pattern};
use crate::{Fallocate, FsError, FsOptions, OpenFlags, Seek, SetAttr, WriteFlags, XattrMode};

const K: u64 = 1 << 10;

fn truncate(bed: &Bed, ino: crate::Ino, size: u64) {
    assert_eq!(bed.fs.setattr(ino, &SetAttr { size: Some(size), ..Default::default() }).unwrap().size, size);
}

#[test]
fn what_is_written_is_read() {
    let bed = Bed::new();
    let f = bed.create(ROOT, "f").ino;
    let data = pattern(1, 100_000);
    bed.write(f, 0, &data);
    bed.write(f, 50_000, b"middle");
    bed.write(f, 200_000, b"end");
    let mut expected = data;
    expected[50_000..50_006].copy_from_slice(b"middle");
    expected.resize(200_000, 0);
    expected.extend_from_slice(b"end");
    assert_eq!(bed.read(f, 0, 300_000), expected);
    assert_eq!(bed.read(f, 200_002, 5), b"d");
    assert_eq!(bed.read(f, 200_003, 5), b"");
    assert_eq!(bed.read(f, u64::MAX, 5), b"");
    let attr = bed.fs.getattr(f).unwrap();
    assert_eq!((attr.size, attr.blksize), (200_003, 16 << 10));
    assert_eq!(attr.blocks, bed.fs.usage(f).unwrap().stored_bytes / 512);
    bed.check();
    assert_eq!(bed.crash().read(f, 0, 300_000), expected);
}

#[test]
fn appends_go_to_the_end() {
    let bed = Bed::new();
    let f = bed.create(ROOT, "f").ino;
    let append = WriteFlags { append: true, kill_suid: false };
    for (i, part) in ["one", "two", "three"].iter().enumerate() {
        let written = bed.fs.write(f, 999, part.as_bytes(), append).unwrap();
        assert_eq!(written.offset, 3 * i as u64);
    }
    assert_eq!(bed.read(f, 0, 99), b"onetwothree");
    bed.check();
}

#[test]
fn writes_have_bounds() {
    let bed = Bed::new();
    let f = bed.create(ROOT, "f").ino;
    let long = pattern(2, (1 << 20) + 1);
    assert_eq!(bed.fs.write(f, 0, &long, WriteFlags::default()).unwrap().len, 1 << 20);
    assert_err!(bed.fs.write(f, (1 << 63) - 2, b"xx", WriteFlags::default()), FsError::TooBig);
    assert_err!(bed.fs.write(f, u64::MAX, b"xx", WriteFlags::default()), FsError::TooBig);
    bed.write(f, (1 << 63) - 2, b"x");
    assert_eq!(bed.read(f, (1 << 63) - 3, 9), b"\0x");
    assert_err!(bed.fs.write(ROOT, 0, b"x", WriteFlags::default()), FsError::IsADirectory);
    assert_err!(bed.fs.read(ROOT, 0, &mut [0]), FsError::IsADirectory);
    let link = bed.fs.symlink(ROOT, b"l", b"t", &USER).unwrap().ino;
    assert_err!(bed.fs.open(link, OpenFlags::default()), FsError::Invalid(_));
    bed.check();
}

/// A write that finds no space at first is made again once something was freed.
#[test]
fn the_name_counts_for_the_recordsize_also_on_a_full_pool() {
    let hint = |_: u64, _: &[u8], name: Option<&str>| (name == Some("big")).then_some(32768);
    let bed = Bed::with(200_000, FsOptions { hint: Some(Arc::new(hint)), ..Default::default() });
    let deleted = bed.create(ROOT, "deleted").ino;
    bed.write(deleted, 0, &pattern(1, 160_000));
    let file = bed.create(ROOT, "big").ino;
    bed.fs.unlink(ROOT, b"deleted").unwrap();
    bed.fs.release(deleted);
    bed.fs.forget(deleted, 1);
    bed.write(file, 0, &pattern(2, 60_000));
    assert_eq!(bed.fs.getattr(file).unwrap().blksize, 32768);
    bed.check();
}

#[test]
fn the_recordsize_is_decided_by_the_first_data() {
    let hint = |offset: u64, data: &[u8], name: Option<&str>| match (offset, data.first(), name) {
        (0, Some(b'P'), _) => Some(8192),
        (_, _, Some("big")) => Some(1 << 20),
        (_, Some(b'?'), _) => Some(12345),
        _ => None,
    };
    let bed = Bed::with(u64::MAX, FsOptions { hint: Some(Arc::new(hint)), ..Default::default() });
    let record = |name: &str, offset: u64, data: &[u8]| {
        let f = bed.create(ROOT, name).ino;
        bed.write(f, 0, &[0; 5000]);
        assert_eq!(bed.dataset.pages(), 0, "zeros take nothing");
        bed.write(f, offset, data);
        let size = bed.fs.getattr(f).unwrap().blksize;
        assert_eq!(bed.read(f, offset, data.len()), data);
        bed.check();
        bed.fs.unlink(ROOT, name.as_bytes()).unwrap();
        bed.fs.forget(f, 1);
        bed.fs.release(f);
        while bed.fs.reap(100).unwrap() {}
        size
    };
    assert_eq!(record("a", 0, b"Page"), 8192);
    assert_eq!(record("a", 1, b"Page"), 16384);
    assert_eq!(record("big", 9999, b"x"), 1 << 20);
    assert_eq!(record("a", 0, b"?"), 16384, "a hint that cannot be is ignored");
    let f = bed.create(ROOT, "again").ino;
    bed.write(f, 0, b"Page");
    truncate(&bed, f, 0);
    bed.write(f, 0, b"other");
    assert_eq!(bed.fs.getattr(f).unwrap().blksize, 16384, "decided again");
    bed.check();
}

#[test]
fn the_recordsize_can_be_fixed() {
    let bed = Bed::with(u64::MAX, FsOptions { recordsize: Some(4096), ..Default::default() });
    let f = bed.create(ROOT, "f").ino;
    let name = b"user.pagefold.recordsize";
    assert_eq!(bed.fs.getattr(f).unwrap().blksize, 4096);
    assert_err!(bed.fs.getxattr(f, name), FsError::NoAttr);
    for bad in [&b"5000"[..], b"2K", b"2M", b"", b"x", b"\xFF", b"4294967296K"] {
        assert_err!(bed.fs.setxattr(f, name, bad, XattrMode::Set, false), FsError::Invalid(_));
    }
    bed.fs.setxattr(f, name, b"64K", XattrMode::Set, false).unwrap();
    assert_eq!(bed.fs.getxattr(f, name).unwrap(), b"65536");
    assert_eq!(bed.fs.listxattr(f).unwrap(), b"user.pagefold.recordsize\0");
    bed.write(f, 0, b"x");
    assert_eq!(bed.fs.getattr(f).unwrap().blksize, 65536);
    assert_err!(bed.fs.setxattr(f, name, b"8K", XattrMode::Set, false), FsError::Invalid(_));
    bed.check();
    let bad = FsOptions { recordsize: Some(5000), ..Default::default() };
    assert!(crate::Fs::mount(bed.dataset.clone(), bed.clock.clone(), bad).is_err());
}

#[test]
fn what_truncation_cut_never_comes_back() {
    for (size, regrow) in
        [(5000, 9000), (5000, 20_000), (16384, 16385), (1, 2), (0, 30_000), (20_000, 20_001)]
    {
        for by_write in [false, true] {
            let bed = Bed::new();
            let f = bed.create(ROOT, "f").ino;
            let data = pattern(3, 40_000);
            bed.write(f, 0, &data);
            truncate(&bed, f, size);
            assert_eq!(bed.read(f, 0, 99_999), data[..size as usize]);
            bed.check();
            if by_write {
                bed.write(f, regrow - 1, &[0]);
            } else {
                truncate(&bed, f, regrow);
            }
            let mut expected = data[..size as usize].to_vec();
            expected.resize(regrow as usize, 0);
            assert_eq!(bed.read(f, 0, 99_999), expected, "{size} to {regrow}");
            bed.check();
        }
    }
}

#[test]
fn truncating_a_large_file_leaves_an_orphan() {
    let bed = Bed::with(u64::MAX, FsOptions { free_pages: Some(64), ..FsOptions::default() });
    let f = bed.create(ROOT, "f").ino;
    for i in 0..4 {
        bed.write(f, i << 20, &pattern(i, 1 << 20));
    }
    let applies = bed.dataset.applies();
    truncate(&bed, f, 0);
    assert_eq!((bed.dataset.applies() - applies, bed.dataset.pages()), (1, 192));
    assert_eq!(bed.fs.getattr(f).unwrap().blocks, 0);
    let crashed = bed.crash();
    assert!(crashed.fs.reap(100).unwrap(), "there is more");
    crashed.check();
    assert_eq!(crashed.dataset.pages(), 0);
    bed.write(f, 0, b"new");
    bed.check();
    assert_eq!((bed.dataset.pages(), bed.read(f, 0, 9)), (1, b"new".to_vec()));
}

#[test]
fn seek_tells_data_from_holes() {
    let bed = Bed::new();
    let f = bed.create(ROOT, "f").ino;
    let seek = |offset, what| bed.fs.seek(f, offset, what);
    assert_err!(seek(0, Seek::Data), FsError::NoData);
    truncate(&bed, f, 100 * K);
    assert_err!(seek(0, Seek::Data), FsError::NoData);
    assert_eq!(seek(5, Seek::Hole).unwrap(), 5);
    bed.write(f, 32 * K + 1, b"x");
    bed.write(f, 96 * K + 1, b"x");
    assert_eq!(seek(0, Seek::Data).unwrap(), 32 * K);
    assert_eq!(seek(0, Seek::Hole).unwrap(), 0);
    assert_eq!(seek(33 * K, Seek::Data).unwrap(), 33 * K);
    assert_eq!(seek(33 * K, Seek::Hole).unwrap(), 48 * K);
    assert_eq!(seek(48 * K, Seek::Data).unwrap(), 96 * K);
    assert_eq!(seek(97 * K, Seek::Hole).unwrap(), 100 * K, "the end is a hole");
    assert_err!(seek(100 * K, Seek::Hole), FsError::NoData);
    assert_err!(bed.fs.seek(ROOT, 0, Seek::Data), FsError::IsADirectory);
    bed.check();
}

/// Nobody frees in the background what was deleted: the change does it that finds no space.
#[test]
fn a_full_pool_takes_writes_right_after_deleting() {
    let bed = Bed::with(4 << 20, FsOptions { free_pages: Some(3), ..FsOptions::default() });
    let fill = |name: &str| {
        let f = bed.create(ROOT, name).ino;
        let write = |at: u64| bed.fs.write(f, at * 16384, &pattern(at, 16384), WriteFlags::default());
        let refused = (0..).find(|at| write(*at).is_err()).unwrap();
        assert_err!(write(refused), FsError::NoSpace(_));
        (f, refused)
    };
    let (mut last, first) = fill("0");
    for round in 1..5 {
        let before = format!("{}", round - 1);
        bed.fs.unlink(ROOT, before.as_bytes()).unwrap();
        bed.fs.release(last);
        bed.fs.forget(last, 1);
        let (f, again) = fill(&format!("{round}"));
        assert!(again + 1 >= first, "{again} of {first} writes fit");
        last = f;
    }
    // Into the same file after it was made empty, or shorter, or after a hole was punched.
    for (size, kept) in [(0, 0), (16384, 1)] {
        truncate(&bed, last, size);
        let again = (kept..first).take_while(|at| {
            bed.fs.write(last, at * 16384, &pattern(*at, 16384), WriteFlags::default()).is_ok()
        });
        assert!(again.count() as u64 + kept + 1 >= first, "after a truncation to {size}");
    }
    bed.fs.fallocate(last, 0, 8 << 20, Fallocate::PunchHole, false).unwrap();
    let (_, again) = fill("more");
    assert!(again + 1 >= first, "{again} of {first} writes fit after a hole was punched");
    // An open file that was deleted still holds its space.
    bed.fs.unlink(ROOT, b"more").unwrap();
    assert_err!(bed.fs.write(last, 0, &pattern(9, 1 << 20), WriteFlags::default()), FsError::NoSpace(_));
    bed.check();
}

#[test]
fn a_full_pool_refuses_writes_and_admits_removals() {
    let bed = Bed::with(1 << 20, FsOptions::default());
    let f = bed.create(ROOT, "f").ino;
    let mut offset = 0;
    let full = loop {
        match bed.fs.write(f, offset, &pattern(offset, 16384), WriteFlags::default()) {
            Ok(_) => offset += 16384,
            Err(error) => break error,
        }
    };
    assert!(matches!(full, FsError::NoSpace(_)) && offset > 0);
    assert_eq!(bed.fs.getattr(f).unwrap().size, offset, "what failed changed nothing");
    assert_eq!(bed.read(f, offset - 16384, 99999), pattern(offset - 16384, 16384));
    let stat = bed.fs.statfs().unwrap();
    assert!(stat.blocks == 256 && stat.blocks_available < 4 && stat.blocks_free >= stat.blocks_available);
    truncate(&bed, f, offset - 5);
    truncate(&bed, f, 10_000);
    bed.check();
    bed.write(f, 0, &pattern(9, 100_000));
    bed.fs.unlink(ROOT, b"f").unwrap();
    bed.fs.release(f);
    bed.fs.forget(f, 1);
    bed.check();
    assert_eq!(bed.dataset.pages(), 0);
}

#[test]
fn a_failed_engine_is_told_and_changes_nothing() {
    let bed = Bed::new();
    let f = bed.create(ROOT, "f").ino;
    bed.write(f, 0, b"good");
    bed.dataset.fail("flush of /dev/x");
    assert_err!(bed.fs.write(f, 0, b"lost", WriteFlags::default()), FsError::Engine(_));
    assert_err!(bed.fs.fsync(f, true), FsError::Engine(_));
    assert_err!(bed.fs.tmpfile(ROOT, 0o600, &USER), FsError::Engine(_));
    assert_err!(bed.fs.unlink(ROOT, b"f"), FsError::Engine(_));
    assert_eq!((bed.read(f, 0, 9), bed.names(ROOT)), (b"good".to_vec(), vec!["f".to_owned()]));
    bed.crash().check();
}

#[test]
fn fsync_reaches_the_dataset() {
    let bed = Bed::new();
    let f = bed.create(ROOT, "f").ino;
    bed.fs.fsync(f, true).unwrap();
    bed.fs.fsyncdir(ROOT, false).unwrap();
    bed.fs.sync().unwrap();
    bed.fs.flush(f).unwrap();
    assert_eq!(bed.dataset.syncs(), 3);
}
