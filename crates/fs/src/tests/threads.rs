//! Many threads at once: no deadlock, no lost count, and crashes at any moment leave a clean file system.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::{Bed, ROOT, USER, pattern};
use crate::{FsError, Ino, OpenFlags, RenameMode, WriteFlags};

/// A small generator per thread.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }
}

/// Returns the value, or `None` for an error that a race may cause; panics for any other error.
fn fine<T>(result: crate::Result<T>) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(
            FsError::NotFound
            | FsError::Exists
            | FsError::NotEmpty
            | FsError::IsADirectory
            | FsError::NotADirectory
            | FsError::NotPermitted
            | FsError::Invalid(_)
            | FsError::Stale,
        ) => None,
        Err(other) => panic!("{other}"),
    }
}

fn meddle(bed: &Bed, dirs: &[Ino], seed: u64) {
    let fs = &bed.fs;
    let mut dice = Dice(seed | 1);
    for _ in 0..3000 {
        let (a, b) = (dirs[dice.roll(4) as usize], dirs[dice.roll(4) as usize]);
        let (x, y) = ([b'a' + dice.roll(6) as u8], [b'a' + dice.roll(6) as u8]);
        match dice.roll(12) {
            0 | 1 => {
                if let Some(f) = fine(fs.create(a, &x, 0o644, OpenFlags::default(), &USER)) {
                    fine(fs.write(f.ino, dice.roll(9999), &pattern(seed, 300), WriteFlags::default()));
                    fs.release(f.ino);
                    fs.forget(f.ino, 1);
                }
            }
            2 => {
                if let Some(d) = fine(fs.mkdir(a, &x, 0o755, &USER)) {
                    fine(fs.mkdir(d.ino, &y, 0o755, &USER)).inspect(|e| fs.forget(e.ino, 1));
                    fs.forget(d.ino, 1);
                }
            }
            3 | 4 => drop(fine(fs.unlink(a, &x))),
            5 => drop(fine(fs.rmdir(a, &x))),
            6 => drop(fine(fs.rename(a, &x, b, &y, RenameMode::Replace))),
            7 => drop(fine(fs.rename(a, &x, b, &y, RenameMode::Exchange))),
            8 => {
                if let Some(found) = fine(fs.lookup(a, &x)) {
                    fine(fs.link(found.ino, b, &y)).inspect(|e| fs.forget(e.ino, 1));
                    fs.forget(found.ino, 1);
                }
            }
            9 => {
                if let Some(found) = fine(fs.lookup(a, &x)) {
                    fine(fs.rename(a, &x, found.ino, &y, RenameMode::Replace));
                    fine(fs.rename(found.ino, &y, b, &x, RenameMode::NoReplace));
                    fs.forget(found.ino, 1);
                }
            }
            10 => {
                let mut got = Vec::new();
                let mut emit = |_: &crate::DirEntry<'_>, entry: Option<&crate::Entry>| {
                    got.extend(entry.map(|e| e.ino));
                    true
                };
                fine(fs.readdirplus(a, 0, &mut emit));
                got.iter().for_each(|ino| fs.forget(*ino, 1));
            }
            _ => drop(fine(fs.reap(5))),
        }
    }
}

#[test]
fn threads_that_meddle_leave_every_count_right() {
    let bed = Bed::colliding(2);
    let dirs: Vec<Ino> = (0..3).map(|i| bed.mkdir(ROOT, &format!("dir{i}")).ino).chain([ROOT]).collect();
    std::thread::scope(|s| {
        for seed in 1..=6 {
            let (bed, dirs) = (&bed, &dirs);
            s.spawn(move || meddle(bed, dirs, seed * 0x1234_5678_9ABC));
        }
        for _ in 0..20 {
            bed.crash().check();
            std::thread::yield_now();
        }
    });
    bed.check();
    let report = crate::check::check_with(&*bed.dataset, Some(bed.fs.places)).unwrap();
    assert_eq!(report.orphans, 0, "nobody holds anything any more");
    bed.crash().check();
}

#[test]
fn appends_of_many_threads_do_not_overlap() {
    let bed = Bed::new();
    let f = bed.create(ROOT, "log").ino;
    let append = WriteFlags { append: true, kill_suid: false };
    let (stop, longest) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|s| {
        let writers: Vec<_> = (0..4u8)
            .map(|t| {
                let bed = &bed;
                s.spawn(move || {
                    for _ in 0..500 {
                        bed.fs.write(f, 0, &[b'a' + t; 100], append).unwrap();
                    }
                })
            })
            .collect();
        s.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let data = bed.read(f, 0, 1 << 20);
                assert!(data.iter().all(|b| *b != 0), "what is within the size is written");
                longest.fetch_max(data.len() as u64, Ordering::Relaxed);
            }
        });
        writers.into_iter().for_each(|w| w.join().unwrap());
        stop.store(true, Ordering::Relaxed);
    });
    let data = bed.read(f, 0, 1 << 20);
    assert_eq!(data.len(), 4 * 500 * 100);
    assert!(data.chunks(100).all(|c| c.iter().all(|b| *b == c[0])));
    assert!(longest.into_inner() <= data.len() as u64);
    bed.check();
}
