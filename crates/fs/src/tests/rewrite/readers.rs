//! Readers and writers beside rewrites.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::super::Bed;
use super::super::freeing::P;
use super::{assert_pages, bed_with, begin, finish, recordsize, truncate};
use crate::Fallocate::Collapse;
use crate::{Ino, Seek, Step, WriteFlags};

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
