//! Truncating and punching in bounded changes: pages that are cut off read as zeros at once, and are freed later.

use proptest::prelude::*;

use super::{Bed, ROOT, assert_err, pattern};
use crate::Fallocate::{Collapse, Insert, PunchHole, ZeroRange};
use crate::codec::{Inode, kind};
use crate::limits::FREEING_RANGES_MAX;
use crate::ranges::Ranges;
use crate::{FsError, FsOptions, Ino, Seek, SetAttr};
use pagefold_engine::Key;
use pagefold_engine::dataset::{Change, Dataset};

pub(super) const P: u64 = 4096;
/// Largest number of pages that a change of these tests frees.
const FEW: u64 = 4;

fn bed() -> Bed {
    Bed::with(u64::MAX, options())
}

fn options() -> FsOptions {
    FsOptions { recordsize: Some(P as u32), free_pages: Some(FEW), ..FsOptions::default() }
}

pub(super) fn truncate(bed: &Bed, f: Ino, size: u64) {
    bed.fs.setattr(f, &SetAttr { size: Some(size), ..SetAttr::default() }).unwrap();
}

fn bed_with(pages: u64) -> (Bed, Ino, Vec<u8>) {
    let bed = bed();
    let f = bed.create(ROOT, "f").ino;
    let data = pattern(1, (pages * P) as usize);
    for (at, part) in data.chunks(1 << 20).enumerate() {
        bed.write(f, (at as u64) << 20, part);
    }
    (bed, f, data)
}

fn ranges(bed: &Bed, f: Ino) -> Vec<std::ops::Range<u64>> {
    bed.fs.node(f).unwrap().snapshot().freeing.ranges().to_vec()
}

fn listed(bed: &Bed, f: Ino) -> bool {
    bed.dataset.get(&crate::codec::freeing_key(f.0)).unwrap().is_some()
}

#[test]
fn a_truncation_is_one_small_change() {
    let (bed, f, mut data) = bed_with(300);
    let applies = bed.dataset.applies();
    truncate(&bed, f, 10 * P + 7);
    assert_eq!((bed.dataset.applies() - applies, bed.dataset.pages()), (1, 300 - FEW));
    let noted = ranges(&bed, f);
    assert_eq!((noted.len(), noted[0].start, noted[0].end), (1, 11 + FEW, 300));
    data.truncate(10 * P as usize + 7);
    assert_eq!(bed.read(f, 0, 9_999_999), data);
    // After a crash the contents are the same, and the pages are freed there too.
    let crashed = bed.crash();
    assert_eq!(crashed.read(f, 0, 9_999_999), data);
    crashed.check();
    assert_eq!((crashed.dataset.pages(), listed(&crashed, f)), (11, false));
    // Growing the file again does not show the old bytes.
    truncate(&bed, f, 200 * P);
    data.resize(200 * P as usize, 0);
    assert_eq!(bed.read(f, 0, 9_999_999), data);
    assert_eq!(bed.fs.seek(f, 11 * P, Seek::Hole).unwrap(), 11 * P);
    assert_err!(bed.fs.seek(f, 11 * P, Seek::Data), FsError::NoData);
    bed.check();
    assert_eq!((bed.dataset.pages(), listed(&bed, f), ranges(&bed, f)), (11, false, vec![]));
    assert_eq!(bed.read(f, 0, 9_999_999), data);
}

#[test]
fn what_is_written_into_a_range_stays() {
    let (bed, f, mut data) = bed_with(300);
    bed.fs.fallocate(f, 10 * P, 200 * P, PunchHole, false).unwrap();
    data[10 * P as usize..210 * P as usize].fill(0);
    let mut put = |offset: u64, len: usize| {
        let written = pattern(offset, len);
        bed.write(f, offset, &written);
        data[offset as usize..offset as usize + len].copy_from_slice(&written);
        assert_eq!(bed.read(f, 0, 9_999_999), data);
        assert_eq!(bed.crash().read(f, 0, 9_999_999), data);
    };
    put(100 * P + 5, 10);
    put(50 * P, P as usize);
    put(60 * P - 1, 2 * P as usize + 2);
    put(9 * P, 3 * P as usize);
    put(209 * P + 1, P as usize);
    assert_eq!(bed.fs.seek(f, 20 * P, Seek::Data).unwrap(), 50 * P);
    assert_eq!(bed.fs.seek(f, 50 * P, Seek::Hole).unwrap(), 51 * P);
    bed.check();
    assert_eq!(bed.read(f, 0, 9_999_999), data);
    assert_eq!(ranges(&bed, f), []);
}

/// An inode stays small: a call that makes ever more ranges frees the shortest first, in changes of their own.
#[test]
fn ranges_are_few() {
    let (bed, f, mut data) = bed_with(2000);
    bed.fs.fallocate(f, 0, 2000 * P, PunchHole, false).unwrap();
    data.fill(0);
    for i in 0..400 {
        let page = (i * 7919 + 13) % 2000;
        bed.write(f, page * P + 1, &[9]);
        data[(page * P + 1) as usize] = 9;
        assert!(ranges(&bed, f).len() <= FREEING_RANGES_MAX);
    }
    assert!(ranges(&bed, f).len() > FREEING_RANGES_MAX / 2);
    assert!(bed.dataset.get(&Inode::key(f.0)).unwrap().unwrap().len() <= 104 + 16 * FREEING_RANGES_MAX);
    assert_eq!(bed.crash().read(f, 0, 9_999_999), data);
    bed.check();
    assert_eq!((bed.read(f, 0, 9_999_999), bed.dataset.pages()), (data, 400));
}

/// The size of a file does not tell how many pages its object has.
#[test]
fn files_that_were_truncated_go_in_slices_too() {
    for by_truncation in [false, true] {
        let (bed, f, _) = bed_with(300);
        truncate(&bed, f, P);
        if by_truncation {
            truncate(&bed, f, 0);
        } else {
            bed.fs.unlink(ROOT, b"f").unwrap();
            bed.fs.forget(f, 1);
            bed.fs.release(f);
        }
        bed.crash().check();
        bed.check();
        assert_eq!((bed.dataset.pages(), listed(&bed, f)), (0, false));
    }
}

#[test]
fn an_unlinked_file_that_is_open_is_freed_as_others_are() {
    let (bed, f, data) = bed_with(300);
    bed.fs.unlink(ROOT, b"f").unwrap();
    truncate(&bed, f, 5 * P);
    while bed.fs.reap(10).unwrap() {
        assert_eq!(bed.read(f, 0, 9_999_999), data[..5 * P as usize]);
    }
    assert_eq!(bed.dataset.pages(), 5);
    truncate(&bed, f, 300 * P);
    assert_eq!(bed.read(f, 5 * P, 9_999_999), vec![0; 295 * P as usize]);
    bed.fs.forget(f, 1);
    bed.fs.release(f);
    bed.check();
    assert_eq!(bed.dataset.pages(), 0);
}

/// A hole of a terabyte with little in it is punched at once.
#[test]
fn what_has_few_pages_is_freed_at_once() {
    let bed = bed();
    let f = bed.create(ROOT, "f").ino;
    bed.write(f, 1 << 40, b"x");
    bed.write(f, 1 << 30, b"y");
    bed.fs.fallocate(f, 0, 1 << 41, PunchHole, false).unwrap();
    assert_eq!((bed.dataset.pages(), ranges(&bed, f)), (0, vec![]));
    bed.check();
}

#[test]
fn a_full_pool_is_truncated() {
    let bed = Bed::with(4 << 20, options());
    let f = bed.create(ROOT, "f").ino;
    let mut offset = 0;
    while bed.fs.write(f, offset, &pattern(offset, P as usize), crate::WriteFlags::default()).is_ok() {
        offset += P;
    }
    assert!(offset > 900 * P);
    truncate(&bed, f, 3 * P);
    bed.fs.fallocate(f, 0, 1, PunchHole, false).unwrap();
    bed.check();
    bed.write(f, 3 * P, &pattern(7, 1 << 20));
    bed.check();
}

#[test]
fn ranges_that_cannot_be_are_not_believed() {
    assert!(Ranges::new(vec![1..2, 3..9]).is_some());
    for bad in [&[(2, 2)][..], &[(3, 2)], &[(1, 2), (2, 3)], &[(5, 9), (1, 2)]] {
        assert_eq!(Ranges::new(bad.iter().map(|(from, to)| *from..*to).collect()), None, "{bad:?}");
    }
    assert_eq!(Ranges::new((0..65).map(|i| 2 * i..2 * i + 1).collect()), None);
    let (bed, f, _) = bed_with(300);
    truncate(&bed, f, P);
    let stored = bed.dataset.get(&Inode::key(f.0)).unwrap().unwrap();
    assert_eq!(stored.len(), 120);
    assert!(Inode::decode(f.0, &stored[..119]).is_err());
    let mut empty = stored.clone();
    empty.copy_within(112..120, 104);
    assert!(Inode::decode(f.0, &empty).is_err());
    // Without an object there are no pages to be freed.
    let mut without = stored;
    without[6] = 0;
    without[80..88].fill(0);
    assert!(Inode::decode(f.0, &without).is_err());
}

#[test]
fn a_check_compares_inodes_with_the_list() {
    let problems = |bed: &Bed| crate::check::check(&*bed.dataset).unwrap().problems;
    let (bed, f, _) = bed_with(300);
    let key = Key::new(0, kind::FREEING, f.0);
    bed.dataset.apply(&[Change::Put(key, vec![1])]).unwrap();
    assert_eq!(problems(&bed).len(), 1);
    bed.dataset.apply(&[Change::Delete(key)]).unwrap();
    truncate(&bed, f, P);
    assert_eq!(problems(&bed), Vec::<String>::new());
    assert_eq!(crate::check::check(&*bed.dataset).unwrap().orphans, 1);
    bed.dataset.apply(&[Change::Delete(key)]).unwrap();
    assert_eq!(problems(&bed).len(), 1);
    bed.dataset.apply(&[Change::Put(key, vec![1])]).unwrap();
    // A page behind the end that is in no range.
    bed.dataset
        .apply(&[Change::Write { object: f.0, record_size: P as u32, offset: 400 * P, data: &[1; 9] }])
        .unwrap();
    assert_eq!(problems(&bed).len(), 1);
    bed.dataset.apply(&[Change::Punch { object: f.0, from: 400, to: 401 }]).unwrap();
    let nobody = Key::new(0, kind::FREEING, 999);
    bed.dataset.apply(&[Change::Put(nobody, vec![1])]).unwrap();
    assert_eq!(problems(&bed).len(), 1);
}

#[derive(Clone, Debug)]
pub(super) enum FreeOp {
    Write(usize, u64, u64, u8),
    Truncate(usize, u64),
    Punch(usize, u64, u64),
    Zero(usize, u64, u64),
    Collapse(usize, u64, u64),
    Insert(usize, u64, u64),
    Copy((usize, u64), (usize, u64), u64),
    Reap(u64),
    Crash,
}

const PAGES: u64 = 60;

pub(super) fn op() -> impl Strategy<Value = FreeOp> {
    let file = || 0..2usize;
    // Most offsets are at the edges of pages, or close to them.
    let at = || {
        (0..PAGES, prop_oneof![3 => Just(0), 1 => Just(1), 1 => Just(P - 1), 1 => 0..P])
            .prop_map(|(p, o)| p * P + o)
    };
    let len = || prop_oneof![2 => 1..P, 2 => Just(P), 3 => 1..20 * P, 2 => Just(20 * P)];
    let page = || 0..PAGES;
    prop_oneof![
        6 => (file(), at(), len(), 1..=255u8).prop_map(|(f, o, l, b)| FreeOp::Write(f, o, l, b)),
        4 => (file(), at()).prop_map(|(f, o)| FreeOp::Truncate(f, o)),
        4 => (file(), at(), at()).prop_map(|(f, o, l)| FreeOp::Punch(f, o, l + 1)),
        2 => (file(), at(), at()).prop_map(|(f, o, l)| FreeOp::Zero(f, o, l + 1)),
        1 => (file(), page(), 1..9u64).prop_map(|(f, o, l)| FreeOp::Collapse(f, o, l)),
        1 => (file(), page(), 1..9u64).prop_map(|(f, o, l)| FreeOp::Insert(f, o, l)),
        3 => (file(), at(), file(), at(), len()).prop_map(|(f, o, g, p, l)| FreeOp::Copy((f, o), (g, p), l)),
        2 => (1..9u64).prop_map(FreeOp::Reap),
        1 => Just(FreeOp::Crash),
    ]
}

fn zero(data: &mut [u8], from: u64, to: u64) {
    let len = data.len() as u64;
    data[from.min(len) as usize..to.min(len) as usize].fill(0);
}

fn grow(data: &mut Vec<u8>, to: u64) {
    data.resize(data.len().max(to as usize), 0);
}

/// Does `op` to the file system and to plain bytes.
pub(super) fn step(bed: &Bed, files: [Ino; 2], model: &mut [Vec<u8>; 2], op: &FreeOp) {
    let fs = &bed.fs;
    match *op {
        FreeOp::Write(f, offset, len, byte) => {
            bed.write(files[f], offset, &vec![byte; len as usize]);
            grow(&mut model[f], offset + len);
            model[f][offset as usize..(offset + len) as usize].fill(byte);
        }
        FreeOp::Truncate(f, size) => {
            truncate(bed, files[f], size);
            model[f].resize(size as usize, 0);
        }
        FreeOp::Punch(f, offset, len) => {
            fs.fallocate(files[f], offset, len, PunchHole, false).unwrap();
            zero(&mut model[f], offset, offset + len);
        }
        FreeOp::Zero(f, offset, len) => {
            fs.fallocate(files[f], offset, len, ZeroRange { keep_size: false }, false).unwrap();
            grow(&mut model[f], offset + len);
            zero(&mut model[f], offset, offset + len);
        }
        FreeOp::Collapse(f, page, pages) => {
            if fs.fallocate(files[f], page * P, pages * P, Collapse, false).is_ok() {
                model[f].drain((page * P) as usize..((page + pages) * P) as usize);
            }
        }
        FreeOp::Insert(f, page, pages) => {
            if fs.fallocate(files[f], page * P, pages * P, Insert, false).is_ok() {
                let hole = vec![0; (pages * P) as usize];
                let at = (page * P) as usize;
                model[f].splice(at..at, hole);
            }
        }
        FreeOp::Copy((f, from), (g, to), len) => {
            let Ok(copied) = fs.copy_file_range(files[f], from, files[g], to, len, false) else { return };
            assert!(copied > 0 || from >= model[f].len() as u64, "0 is the end of the file");
            let data = model[f].get(from as usize..(from + copied) as usize).unwrap_or_default().to_vec();
            if copied > 0 {
                grow(&mut model[g], to + copied);
                model[g][to as usize..(to + copied) as usize].copy_from_slice(&data);
            }
        }
        FreeOp::Reap(pages) => drop(fs.reap(pages).unwrap()),
        FreeOp::Crash => {}
    }
}

pub(super) fn compare(bed: &Bed, files: [Ino; 2], model: &[Vec<u8>; 2]) {
    for (f, data) in files.into_iter().zip(model) {
        assert_eq!(bed.fs.getattr(f).unwrap().size, data.len() as u64);
        assert!(bed.read(f, 0, data.len() + 9) == *data, "other bytes");
        // The file is read in odd pieces, too.
        let mut at = 0;
        while at < data.len() {
            let len = (3 * P as usize + 77).min(data.len() - at);
            assert!(bed.read(f, at as u64, len) == data[at..at + len], "other bytes in {at}..{}", at + len);
            at += len;
        }
        holes_are_zeros(bed, f, data);
    }
    bed.check_now();
}

fn holes_are_zeros(bed: &Bed, f: Ino, data: &[u8]) {
    let mut at = 0;
    while at < data.len() as u64 {
        let next = bed.fs.seek(f, at, Seek::Data).unwrap_or(data.len() as u64);
        assert!(data[at as usize..next as usize].iter().all(|byte| *byte == 0), "a hole with data");
        at = if next < data.len() as u64 { bed.fs.seek(f, next, Seek::Hole).unwrap() } else { next };
    }
}

proptest! {

    #[test]
    fn calls_match_plain_bytes(ops in prop::collection::vec(op(), 1..60)) {
        let mut bed = bed();
        let files = [bed.create(ROOT, "a").ino, bed.create(ROOT, "b").ino];
        let mut model = [Vec::new(), Vec::new()];
        for op in &ops {
            step(&bed, files, &mut model, op);
            if matches!(op, FreeOp::Crash) {
                bed = bed.crash();
            }
            compare(&bed, files, &model);
        }
        bed.check();
        compare(&bed, files, &model);
        for f in files {
            prop_assert!(ranges(&bed, f).is_empty() && !listed(&bed, f));
        }
        // Only pages that are not zero are stored, and the last page of each file, which may have bytes behind its end.
        let stored: usize =
            model.iter().flat_map(|data| data.chunks(P as usize)).filter(|page| page.iter().any(|b| *b != 0)).count();
        let pages = bed.dataset.pages();
        prop_assert!(pages <= stored as u64 + files.len() as u64, "{pages} pages instead of {stored}");
    }
}
