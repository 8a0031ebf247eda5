use proptest::prelude::*;

use super::{Bed, ROOT, assert_err, pattern};
use crate::Fallocate::{Allocate, Collapse, Insert, PunchHole, ZeroRange};
use crate::{FsError, FsOptions, Ino, XattrMode};

const P: u64 = 4096;
const OPTIONS: FsOptions = FsOptions {
    atime: crate::AtimePolicy::Relative,
    read_only: false,
    resumed: false,
    recordsize: Some(4096),
    hint: None,
    inodes: None,
    free_pages: None,
    piece_bytes: None,
};

fn bed_with(len: usize) -> (Bed, Ino, Vec<u8>) {
    let bed = Bed::with(u64::MAX, OPTIONS);
    let f = bed.create(ROOT, "f").ino;
    let data = pattern(1, len);
    bed.write(f, 0, &data);
    (bed, f, data)
}

#[test]
fn allocate_lengthens_and_stores_nothing() {
    let bed = Bed::with(1 << 20, OPTIONS);
    let f = bed.create(ROOT, "f").ino;
    bed.fs.fallocate(f, 100, 5000, Allocate { keep_size: true }, false).unwrap();
    assert_eq!(bed.fs.getattr(f).unwrap().size, 0);
    bed.fs.fallocate(f, 100, 5000, Allocate { keep_size: false }, false).unwrap();
    assert_eq!(bed.read(f, 0, 9999), [0; 5100]);
    assert_eq!(bed.dataset.pages(), 0);
    let too_much = bed.fs.fallocate(f, 0, 2 << 20, Allocate { keep_size: false }, false);
    assert_err!(too_much, FsError::NoSpace(_));
    assert_err!(bed.fs.fallocate(f, 0, 0, PunchHole, false), FsError::Invalid(_));
    assert_err!(bed.fs.fallocate(f, 1 << 62, 1 << 62, PunchHole, false), FsError::TooBig);
    assert_err!(bed.fs.fallocate(f, u64::MAX, 1, PunchHole, false), FsError::TooBig);
    assert_err!(bed.fs.fallocate(ROOT, 0, 1, PunchHole, false), FsError::IsADirectory);
    bed.check();
}

#[test]
fn punching_frees_whole_pages() {
    let (bed, f, _) = bed_with(10 * P as usize);
    bed.fs.fallocate(f, P + 1, 3 * P, PunchHole, false).unwrap();
    assert_eq!(bed.dataset.pages(), 8);
    bed.fs.fallocate(f, 9 * P, 99 * P, PunchHole, false).unwrap();
    assert_eq!((bed.dataset.pages(), bed.fs.getattr(f).unwrap().size), (7, 10 * P));
    bed.check();
}

#[test]
fn collapse_and_insert_move_pages_by_reference() {
    let (bed, f, data) = bed_with(10 * P as usize + 100);
    let applies = bed.dataset.applies();
    bed.fs.fallocate(f, 2 * P, 3 * P, Collapse, false).unwrap();
    let mut expected = data.clone();
    expected.drain(2 * P as usize..5 * P as usize);
    assert_eq!(bed.read(f, 0, 999_999), expected);
    bed.check();
    bed.fs.fallocate(f, P, 2 * P, Insert, false).unwrap();
    let zeros = vec![0; 2 * P as usize];
    expected.splice(P as usize..P as usize, zeros);
    assert_eq!(bed.read(f, 0, 999_999), expected);
    assert!(bed.dataset.applies() > applies);
    bed.check();
    assert_eq!(bed.crash().read(f, 0, 999_999), expected);
    for (offset, len, mode) in
        [(1, P, Collapse), (0, P + 1, Insert), (8 * P, 2 * P, Collapse), (99 * P, P, Insert)]
    {
        assert_err!(bed.fs.fallocate(f, offset, len, mode, false), FsError::Invalid(_));
    }
    assert_err!(bed.fs.fallocate(f, 0, (1 << 63) - P, Insert, false), FsError::TooBig);
    bed.check();
}

#[test]
fn copies_share_what_lines_up() {
    let (bed, f, data) = bed_with(10 * P as usize + 100);
    let g = bed.create(ROOT, "g").ino;
    assert_eq!(bed.fs.copy_file_range(f, 0, g, 0, u64::MAX, false).unwrap(), data.len() as u64);
    assert_eq!(bed.read(g, 0, 999_999), data);
    bed.check();
    bed.write(g, 5, b"changed");
    assert_eq!(bed.read(f, 0, 999_999), data, "a copy is a copy");
    assert_eq!(bed.fs.copy_file_range(f, data.len() as u64, g, 0, 5, false).unwrap(), 0);
    assert_err!(bed.fs.copy_file_range(f, 0, f, 10, 11, false), FsError::Invalid(_));
    assert_err!(bed.fs.copy_file_range(f, 0, g, (1 << 63) - 10, 11, false), FsError::TooBig);
    assert_err!(bed.fs.copy_file_range(f, 0, ROOT, 0, 11, false), FsError::IsADirectory);
    bed.check();
}

#[test]
fn a_shared_last_page_does_not_leak_what_was_cut() {
    let (bed, f, data) = bed_with(2 * P as usize);
    bed.fs.setattr(f, &crate::SetAttr { size: Some(P + 10), ..Default::default() }).unwrap();
    let g = bed.create(ROOT, "g").ino;
    assert_eq!(bed.fs.copy_file_range(f, 0, g, 0, 999_999, false).unwrap(), P + 10);
    bed.write(g, P + 100, b"x");
    let mut expected = data[..P as usize + 10].to_vec();
    expected.resize(P as usize + 100, 0);
    expected.push(b'x');
    assert_eq!(bed.read(g, 0, 999_999), expected);
    bed.check();
}

/// The head of the copy goes into the very record whose beginning is shared.
#[test]
fn a_file_copied_behind_itself_ends_in_zeros() {
    let (bed, f, data) = bed_with(3 * P as usize + 1);
    assert_eq!(bed.fs.copy_file_range(f, 2 * P - 1, f, 4 * P - 1, 99_999, false).unwrap(), P + 2);
    bed.fs.setattr(f, &crate::SetAttr { size: Some(6 * P), ..Default::default() }).unwrap();
    let mut expected = data.clone();
    expected.resize(4 * P as usize - 1, 0);
    expected.extend_from_slice(&data[2 * P as usize - 1..]);
    expected.resize(6 * P as usize, 0);
    assert!(bed.read(f, 0, 999_999) == expected);
    bed.check();
}

#[derive(Clone, Debug)]
enum RangeOp {
    Write(usize, u64, usize),
    Truncate(usize, u64),
    Punch(usize, u64, u64),
    Zero(usize, u64, u64, bool),
    Allocate(usize, u64, u64),
    Collapse(usize, u64, u64),
    Insert(usize, u64, u64),
    Copy(usize, u64, usize, u64, u64),
}

const MAX: u64 = 6 * P;

/// Offsets, most of them near page boundaries.
fn offset() -> impl Strategy<Value = u64> {
    prop_oneof![
        0..MAX,
        (0..6u64).prop_map(|p| p * P),
        (0..6u64, 0..3u64).prop_map(|(p, d)| (p * P + d).saturating_sub(1))
    ]
}

fn op() -> impl Strategy<Value = RangeOp> {
    let file = || 0..2usize;
    let page = || (0..4u64).prop_map(|p| p * P);
    prop_oneof![
        3 => (file(), offset(), 1..9000usize).prop_map(|(f, o, l)| RangeOp::Write(f, o, l)),
        2 => (file(), offset()).prop_map(|(f, s)| RangeOp::Truncate(f, s)),
        1 => (file(), offset(), offset()).prop_map(|(f, o, l)| RangeOp::Punch(f, o, l + 1)),
        1 => (file(), offset(), offset(), any::<bool>()).prop_map(|(f, o, l, k)| RangeOp::Zero(f, o, l + 1, k)),
        1 => (file(), offset(), offset()).prop_map(|(f, o, l)| RangeOp::Allocate(f, o, l + 1)),
        1 => (file(), page(), page()).prop_map(|(f, o, l)| RangeOp::Collapse(f, o, l + P)),
        1 => (file(), page(), page()).prop_map(|(f, o, l)| RangeOp::Insert(f, o, l + P)),
        3 => (file(), offset(), file(), offset(), offset()).prop_map(|(f, o, g, p, l)| RangeOp::Copy(f, o, g, p, l + 1)),
    ]
}

/// Does `op` to vectors of bytes; returns true if it succeeds.
fn apply(files: &mut [Vec<u8>; 2], op: &RangeOp, seed: u64) -> bool {
    let grow = |v: &mut Vec<u8>, to: u64| v.resize(v.len().max(to as usize), 0);
    match *op {
        RangeOp::Write(f, o, l) => {
            grow(&mut files[f], o + l as u64);
            files[f][o as usize..o as usize + l].copy_from_slice(&pattern(seed, l));
        }
        RangeOp::Truncate(f, s) => files[f].resize(s as usize, 0),
        RangeOp::Punch(f, o, l) | RangeOp::Zero(f, o, l, _) => {
            if matches!(op, RangeOp::Zero(_, _, _, false)) {
                grow(&mut files[f], o + l);
            }
            let end = (o + l).min(files[f].len() as u64);
            if o < end {
                files[f][o as usize..end as usize].fill(0);
            }
        }
        RangeOp::Allocate(f, o, l) => grow(&mut files[f], o + l),
        RangeOp::Collapse(f, o, l) => {
            if o + l >= files[f].len() as u64 {
                return false;
            }
            files[f].drain(o as usize..(o + l) as usize);
        }
        RangeOp::Insert(f, o, l) => {
            if o >= files[f].len() as u64 {
                return false;
            }
            files[f].splice(o as usize..o as usize, vec![0; l as usize]);
        }
        RangeOp::Copy(f, o, g, p, l) => {
            let l = l.min((files[f].len() as u64).saturating_sub(o));
            if f == g && o < p + l && p < o + l {
                return false;
            }
            if l > 0 {
                let data = files[f][o as usize..(o + l) as usize].to_vec();
                grow(&mut files[g], p + l);
                files[g][p as usize..(p + l) as usize].copy_from_slice(&data);
            }
        }
    }
    true
}

fn apply_to(bed: &Bed, ino: [Ino; 2], op: &RangeOp, seed: u64) -> crate::Result<()> {
    let fs = &bed.fs;
    match *op {
        RangeOp::Write(f, o, l) => fs.write(ino[f], o, &pattern(seed, l), Default::default()).map(drop),
        RangeOp::Truncate(f, s) => {
            fs.setattr(ino[f], &crate::SetAttr { size: Some(s), ..Default::default() }).map(drop)
        }
        RangeOp::Punch(f, o, l) => fs.fallocate(ino[f], o, l, PunchHole, false),
        RangeOp::Zero(f, o, l, keep_size) => fs.fallocate(ino[f], o, l, ZeroRange { keep_size }, false),
        RangeOp::Allocate(f, o, l) => fs.fallocate(ino[f], o, l, Allocate { keep_size: false }, false),
        RangeOp::Collapse(f, o, l) => fs.fallocate(ino[f], o, l, Collapse, false),
        RangeOp::Insert(f, o, l) => fs.fallocate(ino[f], o, l, Insert, false),
        RangeOp::Copy(f, mut o, g, mut p, mut l) => {
            // A file copied behind itself grows meanwhile.
            l = l.min(fs.getattr(ino[f])?.size.saturating_sub(o));
            if f == g && o < p + l && p < o + l {
                return fs.copy_file_range(ino[f], o, ino[g], p, l, false).map(drop);
            }
            while l > 0 {
                let n = fs.copy_file_range(ino[f], o, ino[g], p, l, false)?;
                if n == 0 {
                    break;
                }
                (o, p, l) = (o + n, p + n, l - n);
            }
            Ok(())
        }
    }
}

proptest! {

    /// Two files of equal or different recordsize match vectors of bytes after every change.
    #[test]
    fn ranges_match_a_vector_of_bytes(ops in prop::collection::vec(op(), 1..40), same: bool) {
        let bed = Bed::with(u64::MAX, OPTIONS);
        let ino = [bed.create(ROOT, "a").ino, bed.create(ROOT, "b").ino];
        if !same {
            bed.fs.setxattr(ino[1], b"user.pagefold.recordsize", b"8K", XattrMode::Set, false).unwrap();
        }
        let mut files = [Vec::new(), Vec::new()];
        for (i, op) in ops.iter().enumerate() {
            // The second file's ranges are aligned to half its recordsize only.
            if !same && matches!(op, RangeOp::Collapse(1, ..) | RangeOp::Insert(1, ..)) {
                continue;
            }
            let expected = apply(&mut files, op, i as u64);
            let got = apply_to(&bed, ino, op, i as u64);
            prop_assert_eq!(got.is_ok(), expected, "{:?}: {:?}", op, got);
            for f in 0..2 {
                prop_assert_eq!(bed.fs.getattr(ino[f]).unwrap().size, files[f].len() as u64, "{:?}", op);
                prop_assert!(bed.read(ino[f], 0, 1 << 20) == files[f], "file {} after {:?}", f, op);
            }
        }
        bed.check();
        let crashed = bed.crash();
        prop_assert!(crashed.read(ino[0], 0, 1 << 20) == files[0]);
        crashed.check();
    }
}
