//! Random changes of a file system.

use pagefold_fs::{Fallocate, Fs, FsError, Ino, OpenFlags, RenameMode, SetAttr, Step, WriteFlags, XattrMode};

use super::{Dice, USER};

impl Dice {
    pub(super) fn roll(&mut self, sides: u64) -> u64 {
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
pub(super) fn meddle(fs: &Fs, dice: &mut Dice) {
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
