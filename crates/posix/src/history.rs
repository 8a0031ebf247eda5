//! Makes a history from a seed: likely calls on few names, so that they meet.

mod attributes;
mod paths;

use libc::{
    O_APPEND, O_CREAT, O_DIRECT, O_DIRECTORY, O_DSYNC, O_EXCL, O_NOATIME, O_NOFOLLOW, O_NONBLOCK, O_PATH,
    O_RDWR, O_SYNC, O_TMPFILE, O_TRUNC, O_WRONLY,
};
use pagefold_sim::random::Random;

use crate::found::found;
use crate::op::{Data, MAPS, Op, PEOPLE, SLOTS, Step, Text};

/// Number of steps of one history.
pub const STEPS: usize = 400;

/// A history.
#[derive(Clone, Debug)]
pub struct History {
    /// Seed that it follows from.
    pub seed: u64,
    /// True if files are mapped. Then times are not compared, since stores into pages change them at a time of the
    /// kernel's choice.
    pub maps: bool,
    /// Its steps.
    pub steps: Vec<Step>,
}

impl History {
    /// Returns the history of a seed. Seed 0 has the differences that were found before.
    pub fn new(seed: u64) -> Self {
        if seed == 0 {
            return Self { seed, maps: false, steps: found() };
        }
        let mut random = Random::new(seed);
        let maps = random.percent(25);
        let root_share = [20, 50, 90][random.below(3) as usize];
        let mut maker = Maker { random, maps, root_share, dirs: vec![b".".to_vec()], files: Vec::new() };
        let mut steps = maker.prelude();
        while steps.len() < STEPS {
            steps.push(maker.step());
        }
        Self { seed, maps, steps }
    }
}

struct Maker {
    random: Random,
    maps: bool,
    root_share: u64,
    /// Directories that may be there. These are guesses, so that steps can be left out without changing the others.
    dirs: Vec<Vec<u8>>,
    /// Files that may be there, likewise.
    files: Vec<Vec<u8>>,
}

impl Maker {
    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.random.below(from.len() as u64) as usize]
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.random.percent(percent)
    }

    fn slot(&mut self) -> usize {
        self.random.below(SLOTS as u64) as usize
    }

    fn offset(&mut self) -> u64 {
        match self.random.below(20) {
            0..6 => self.random.below(20_000),
            6..12 => self.random.below(16) * 4096,
            12..16 => self.random.below(200_000),
            16 => self.random.below(8) * (1 << 20),
            17 => self.random.below(1 << 33),
            18 => (1 << 40) + self.random.below(10_000),
            _ => 0,
        }
    }

    fn len(&mut self) -> usize {
        let len = match self.random.below(20) {
            0..8 => self.random.below(5_000),
            8..14 => (1 + self.random.below(8)) * 4096,
            14..18 => self.random.below(70_000),
            18 => self.random.below(400_000),
            _ => 0,
        };
        len as usize
    }

    fn data(&mut self) -> Data {
        let kind = if self.chance(20) { 0 } else { self.random.bits() as u8 };
        Data { kind, len: self.len() }
    }

    fn step(&mut self) -> Step {
        let who = if self.chance(self.root_share) {
            0
        } else {
            1 + self.random.below(PEOPLE.len() as u64 - 1) as usize
        };
        let op = match self.random.below(1000) {
            0..20 => Op::Close { slot: self.slot() },
            20..310 => self.contents(),
            310..560 => self.names(),
            560..720 => self.attributes(),
            720..790 => self.looking(),
            790..839 if self.maps => self.mapping(),
            839 => self.scene(),
            _ => self.open(),
        };
        match op {
            // Only root sets neither user nor group; a caller who may not own the file sets itself: see
            // docs/TESTING.md.
            Op::Owner { target, uid: u32::MAX, gid: u32::MAX } if who != 0 => {
                Step { who, op: Op::Owner { target, uid: PEOPLE[who].uid, gid: u32::MAX } }
            }
            op => Step { who, op },
        }
    }

    fn scene(&mut self) -> Op {
        if self.chance(30) {
            return Op::Busy;
        }
        let names = self.pick(&[3, 40, 300]);
        Op::ListWhile { names, read: self.random.below(names as u64) as usize, seed: self.random.bits() }
    }

    fn open(&mut self) -> Op {
        let slot = self.slot();
        if self.chance(6) {
            let flags = O_TMPFILE | self.pick(&[O_RDWR, O_RDWR, O_WRONLY]) | self.pick(&[0, 0, O_EXCL]);
            return Op::Open { slot, path: self.dir(), flags, mode: self.mode() };
        }
        let mut flags = O_NONBLOCK | self.pick(&[0, O_WRONLY, O_RDWR, O_RDWR, O_RDWR]);
        let creates = self.chance(50);
        if creates {
            flags |= O_CREAT;
        }
        for (flag, percent) in [
            (O_EXCL, if creates { 20 } else { 0 }),
            (O_TRUNC, 10),
            (O_APPEND, 8),
            (O_NOFOLLOW, 5),
            (O_DIRECTORY, 3),
            (O_PATH, 3),
            (O_DIRECT, 6),
            (O_SYNC, 1),
            (O_DSYNC, 1),
            (O_NOATIME, 2),
        ] {
            if self.chance(percent) {
                flags |= flag;
            }
        }
        let path = match (creates, self.chance(15)) {
            (true, _) => self.place(false),
            (false, true) => {
                flags &= !libc::O_ACCMODE;
                self.dir()
            }
            (false, false) => self.file(),
        };
        Op::Open { slot, path, flags, mode: self.mode() }
    }

    fn contents(&mut self) -> Op {
        let slot = self.slot();
        match self.random.below(100) {
            0..35 => {
                let at = self.chance(75).then(|| self.offset());
                Op::Write { slot, at, data: self.data(), pieces: self.pick(&[1, 1, 1, 3]) }
            }
            35..60 => {
                let at = self.chance(75).then(|| self.offset());
                Op::Read { slot, at, len: self.len() }
            }
            60..70 => {
                let whence = self.pick(&[
                    libc::SEEK_SET,
                    libc::SEEK_CUR,
                    libc::SEEK_END,
                    libc::SEEK_DATA,
                    libc::SEEK_HOLE,
                ]);
                let offset = self.offset().cast_signed();
                Op::Seek { slot, whence, offset: if self.chance(15) { -offset } else { offset } }
            }
            70..80 => {
                let len = if self.chance(2) { -1 } else { self.offset().cast_signed() };
                Op::Truncate { target: self.target(), len }
            }
            80..90 => self.allocate(slot),
            90..91 => Op::Sync { slot, data_only: self.chance(50) },
            91..98 => Op::Copy {
                from: slot,
                to: self.slot(),
                offset_in: self.offset(),
                offset_out: self.offset(),
                len: self.len() * 4,
            },
            _ => Op::Lock { slot, how: self.pick(&[libc::LOCK_SH, libc::LOCK_EX, libc::LOCK_UN]) },
        }
    }

    fn allocate(&mut self, slot: usize) -> Op {
        let keep = libc::FALLOC_FL_KEEP_SIZE;
        let mode = self.pick(&[
            0,
            keep,
            keep | libc::FALLOC_FL_PUNCH_HOLE,
            keep | libc::FALLOC_FL_PUNCH_HOLE,
            libc::FALLOC_FL_ZERO_RANGE,
            keep | libc::FALLOC_FL_ZERO_RANGE,
            libc::FALLOC_FL_PUNCH_HOLE,
        ]);
        // Reservations cost ext4 real space, so they are small.
        let offset = self.random.below(300_000).cast_signed();
        let len = if self.chance(3) { 0 } else { self.len() as i64 };
        Op::Allocate { slot, mode, offset: if self.chance(2) { -1 } else { offset }, len }
    }

    fn names(&mut self) -> Op {
        match self.random.below(100) {
            0..14 => Op::MakeDir { path: self.place(true), mode: self.mode() },
            14..22 => Op::RemoveDir { path: self.dir() },
            22..40 => Op::Unlink { path: self.existing() },
            40..48 => {
                let text = match self.random.below(12) {
                    0 => vec![b'z'; self.pick(&[4094, 4095, 4096])],
                    1 => Vec::new(),
                    2 => b"loop".to_vec(),
                    3 => b"../a".to_vec(),
                    4 => b".".to_vec(),
                    5..8 => self.guess(true),
                    _ => self.guess(false),
                };
                Op::Symlink { text: Text(text), path: self.place(false) }
            }
            48..62 => Op::Link { from: self.existing(), to: self.place(false), follow: self.chance(30) },
            62..65 => Op::LinkSlot { slot: self.slot(), to: self.place(false) },
            65..92 => {
                let flags = match self.random.below(10) {
                    0..6 => 0,
                    6..8 => libc::RENAME_NOREPLACE,
                    8 => libc::RENAME_EXCHANGE,
                    _ => {
                        self.pick(&[libc::RENAME_EXCHANGE, libc::RENAME_EXCHANGE | libc::RENAME_NOREPLACE, 8])
                    }
                };
                let from = if self.chance(35) { self.dir() } else { self.existing() };
                let to = match self.random.below(10) {
                    0..4 => self.existing(),
                    4..6 => self.place(true),
                    _ => self.place(false),
                };
                Op::Rename { from, to, flags }
            }
            _ => {
                let kind = self.pick(&[
                    libc::S_IFREG,
                    libc::S_IFIFO,
                    libc::S_IFSOCK,
                    libc::S_IFCHR,
                    libc::S_IFBLK,
                    0,
                    libc::S_IFDIR,
                ]);
                let device =
                    self.pick(&[libc::makedev(1, 3), libc::makedev(0, 0), libc::makedev(259, 70_000)]);
                Op::MakeNode { path: self.place(false), mode: kind | self.mode(), device }
            }
        }
    }

    fn looking(&mut self) -> Op {
        match self.random.below(10) {
            0 => Op::Stat { target: self.target() },
            1..3 => self.some(),
            3..5 => Op::List { path: self.dir() },
            5..8 => Op::Access {
                path: self.existing(),
                mode: self.random.below(8) as i32,
                flags: self.pick(&[libc::AT_EACCESS, libc::AT_EACCESS, 0]),
            },
            8 => Op::ReadLink { path: self.file() },
            _ => Op::Umask { mask: self.pick(&[0, 0o022, 0o077, 0o002, 0o777]) },
        }
    }

    fn some(&mut self) -> Op {
        let mask = match self.random.below(3) {
            0 => 1 << self.random.below(11),
            1 => libc::STATX_MODE,
            _ => self.random.below(1 << 11) as u32,
        };
        let flags = self.pick(&[libc::AT_STATX_SYNC_AS_STAT, libc::AT_STATX_FORCE_SYNC]);
        Op::StatSome { target: self.target(), mask, flags }
    }

    fn mapping(&mut self) -> Op {
        let map = self.random.below(MAPS as u64) as usize;
        match self.random.below(10) {
            0..3 => Op::Map {
                map,
                slot: self.slot(),
                page: self.random.below(4),
                pages: 1 + self.random.below(16) as usize,
                write: self.chance(75),
                shared: self.chance(75),
            },
            3..5 => Op::MapRead {
                map,
                offset: self.random.below(40_000) as usize,
                len: self.random.below(20_000) as usize,
            },
            5..8 => {
                let data = Data { kind: self.random.bits() as u8, len: self.random.below(9_000) as usize };
                Op::MapWrite { map, offset: self.random.below(40_000) as usize, data }
            }
            8 => Op::MapSync { map },
            _ => Op::Unmap { map },
        }
    }
}
