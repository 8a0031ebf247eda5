//! Moving a clone of a file system onto a newer snapshot.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use pagefold_engine::device::{Device, SimDevice};
use pagefold_engine::pool::{CreateOptions, Guid, OpenOptions, Pool, create_on};
use pagefold_fs::rebase::{Rebased, Side, rebase};
use pagefold_fs::testing::ManualClock;
use pagefold_fs::{
    Caller, Fallocate, FileKind, FormatOptions, Fs, FsOptions, Ino, OpenFlags, RenameMode, SetAttr,
    WriteFlags, XattrMode, check,
};

const USER: Caller = Caller { uid: 1, gid: 1, umask: 0o022 };

fn pool() -> Arc<Pool> {
    let devices = vec![Arc::new(SimDevice::new(256 << 20, 5)) as Arc<dyn Device>];
    let options = CreateOptions { force: false, created: 0, guid: Guid(*b"fs that is moved") };
    create_on("tank", &devices, &options).unwrap();
    Pool::open_on(devices, &OpenOptions::default()).unwrap()
}

/// Makes a dataset with an empty file system.
fn dataset(pool: &Pool, path: &str) {
    pool.create_dataset(path, 1).unwrap();
    let format = FormatOptions { seed: 99, uid: 0, gid: 0, perm: 0o755 };
    Fs::format(&*pool.open_dataset(path).unwrap(), &ManualClock::default(), &format).unwrap();
}

/// A file system, used by paths alone.
struct Tree {
    fs: Arc<Fs>,
    clock: Arc<ManualClock>,
}

impl Tree {
    fn of(pool: &Pool, path: &str, seconds: u64) -> Self {
        let clock = Arc::new(ManualClock::default());
        clock.advance(seconds * 1_000_000_000);
        let dataset = pool.open_dataset(path).unwrap();
        // Pages that are cut off are freed one by one, and most of them later.
        let options = FsOptions { recordsize: Some(4096), free_pages: Some(1), ..FsOptions::default() };
        let fs = Fs::mount(dataset, Arc::<ManualClock>::clone(&clock), options).unwrap();
        Self { fs, clock }
    }

    fn find(&self, path: &str) -> Option<Ino> {
        let mut at = Ino::ROOT;
        for name in path.split('/').filter(|name| !name.is_empty()) {
            at = self.fs.lookup(at, name.as_bytes()).ok()?.ino;
            self.fs.forget(at, 1);
        }
        Some(at)
    }

    fn place<'a>(&self, path: &'a str) -> Option<(Ino, &'a [u8])> {
        let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
        Some((self.find(dir)?, name.as_bytes()))
    }

    fn tick(&self) {
        self.clock.advance(1_000_000);
    }

    fn mkdir(&self, path: &str) -> bool {
        self.tick();
        let made = self.place(path).map(|(dir, name)| self.fs.mkdir(dir, name, 0o755, &USER));
        made.is_some_and(|made| made.map(|entry| self.fs.forget(entry.ino, 1)).is_ok())
    }

    /// Writes bytes at an offset; makes the file if it is not there.
    fn write(&self, path: &str, offset: u64, data: &[u8]) -> bool {
        self.tick();
        let Some((dir, name)) = self.place(path) else { return false };
        let Ok(entry) = self.fs.create(dir, name, 0o644, OpenFlags::default(), &USER) else { return false };
        let written = self.fs.write(entry.ino, offset, data, WriteFlags::default()).is_ok();
        self.fs.release(entry.ino);
        self.fs.forget(entry.ino, 1);
        written
    }

    fn truncate(&self, path: &str, size: u64) -> bool {
        self.tick();
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        self.find(path).is_some_and(|ino| self.fs.setattr(ino, &set).is_ok())
    }

    fn punch(&self, path: &str, offset: u64, len: u64) -> bool {
        self.tick();
        let punch = |ino| self.fs.fallocate(ino, offset, len, Fallocate::PunchHole, false).is_ok();
        self.find(path).is_some_and(punch)
    }

    fn chmod(&self, path: &str, mode: u32) -> bool {
        self.tick();
        let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
        self.find(path).is_some_and(|ino| self.fs.setattr(ino, &set).is_ok())
    }

    fn tag(&self, path: &str, value: &[u8]) -> bool {
        self.tick();
        let set = |ino| self.fs.setxattr(ino, b"user.tag", value, XattrMode::Set, false).is_ok();
        self.find(path).is_some_and(set)
    }

    fn remove(&self, path: &str) -> bool {
        self.tick();
        let Some((dir, name)) = self.place(path) else { return false };
        self.fs.unlink(dir, name).is_ok() || self.fs.rmdir(dir, name).is_ok()
    }

    fn rename(&self, from: &str, to: &str) -> bool {
        self.tick();
        let (Some((dir, name)), Some((to_dir, to_name))) = (self.place(from), self.place(to)) else {
            return false;
        };
        self.fs.rename(dir, name, to_dir, to_name, RenameMode::Replace).is_ok()
    }

    fn link(&self, from: &str, to: &str) -> bool {
        self.tick();
        let (Some(ino), Some((dir, name))) = (self.find(from), self.place(to)) else { return false };
        self.fs.link(ino, dir, name).map(|entry| self.fs.forget(entry.ino, 1)).is_ok()
    }

    /// Returns a description of every file and directory, by path; of a directory, without its entries and times.
    fn all(&self) -> BTreeMap<String, String> {
        let mut found = BTreeMap::new();
        let mut dirs = vec![(Ino::ROOT, String::new())];
        while let Some((dir, path)) = dirs.pop() {
            self.fs
                .readdir(dir, 0, &mut |entry| {
                    if entry.name == b"." || entry.name == b".." {
                        return true;
                    }
                    let path = format!("{path}/{}", String::from_utf8_lossy(entry.name));
                    found.insert(path.trim_start_matches('/').to_owned(), self.one(entry.ino));
                    if entry.kind == FileKind::Directory {
                        dirs.push((entry.ino, path));
                    }
                    true
                })
                .unwrap();
        }
        found
    }

    fn one(&self, ino: Ino) -> String {
        let attr = self.fs.getattr(ino).unwrap();
        let tag = self.fs.getxattr(ino, b"user.tag").ok();
        if attr.kind == FileKind::Directory {
            return format!("dir {:o} {tag:?}", attr.perm);
        }
        let mut data = vec![0; attr.size as usize];
        let len = self.fs.read(ino, 0, &mut data).unwrap();
        assert_eq!(len, data.len());
        let sum = data.iter().fold(0_u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(*byte)));
        format!("{:o} {} {tag:?} {} {sum} {:?}", attr.perm, attr.nlink, attr.size, attr.mtime)
    }
}

/// Moves clone `path` of `of@old` onto `of@new`; returns the conflicts if that cannot be done.
fn moved(pool: &Pool, path: &str, onto: &str) -> Option<Vec<String>> {
    let under_way = pool.begin_rebase(path, onto, false, 7).unwrap();
    let done = {
        let (ours, theirs) = (under_way.ours().unwrap(), under_way.theirs());
        let origin = ours.older();
        let ours = Side::new(ours.newer(), ours.differences()).unwrap();
        let theirs = Side::new(theirs.newer(), theirs.differences()).unwrap();
        rebase(origin, &ours, &theirs, under_way.target(), &mut || Ok(())).unwrap()
    };
    match done {
        Rebased::Done(_) => {
            under_way.finish().unwrap();
            None
        }
        Rebased::Conflicts(paths) => {
            Some(paths.into_iter().map(|path| String::from_utf8(path).unwrap()).collect())
        }
    }
}

fn assert_sound(pool: &Pool, path: &str) {
    let report = check::check(&*pool.open_dataset(path).unwrap()).unwrap();
    assert!(report.is_clean(), "{:?}", report.problems);
}

/// Makes `db` with some files as `db@old`, and a clone of that.
fn forked(pool: &Pool) -> (Tree, Tree) {
    dataset(pool, "db");
    let db = Tree::of(pool, "db", 0);
    for dir in ["base", "base/1", "wal", "empty"] {
        assert!(db.mkdir(dir));
    }
    for (file, pages) in [("base/1/a", 40), ("base/1/b", 3), ("base/c", 1), ("wal/0", 4), ("wal/1", 4)] {
        assert!(db.write(file, 0, &vec![7; pages * 8192]));
    }
    pool.snapshot(&["db"], "old", 1).unwrap();
    pool.clone_snapshot("db@old", "dev", 2).unwrap();
    (db, Tree::of(pool, "dev", 1000))
}

#[test]
fn what_both_have_changed_apart_goes_together() {
    let pool = pool();
    let (db, dev) = forked(&pool);
    // Their changes: the same numbers are given out as in ours.
    assert!(db.write("base/1/a", 5 * 8192, &[8; 8192]) && db.write("base/2", 0, &[1; 9000]));
    assert!(db.mkdir("base/new") && db.write("base/new/x", 0, b"theirs") && db.remove("wal/0"));
    assert!(db.rename("base", "data"));
    // Our changes.
    assert!(dev.write("base/1/b", 8192, &[9; 100]) && dev.write("base/3", 0, &[2; 70_000]));
    assert!(dev.mkdir("base/mine") && dev.write("base/mine/y", 0, b"ours") && dev.tag("base/mine/y", b"red"));
    assert!(dev.link("wal/1", "base/mine/linked") && dev.remove("empty") && dev.chmod("wal", 0o700));
    assert!(dev.rename("base/c", "wal/c") && dev.tag("wal", b"blue") && dev.truncate("base/3", 60_000));
    while dev.fs.reap(1000).unwrap() {}
    let (theirs, ours) = (db.all(), dev.all());
    drop((db, dev));
    pool.snapshot(&["db"], "new", 3).unwrap();
    pool.set_property_of("dev", "note:why", Some("kept")).unwrap();
    pool.create_dataset("dev/below", 1).unwrap();
    assert_eq!(moved(&pool, "dev", "db@new"), None);

    let dev = Tree::of(&pool, "dev", 2000);
    let found = dev.all();
    let expect = |path: &str, of: &BTreeMap<String, String>, then: &str| {
        assert_eq!(found.get(path), of.get(then), "{path}");
        assert!(found.contains_key(path), "{path}");
    };
    for path in ["data", "data/1", "data/1/a", "data/2", "data/new", "data/new/x"] {
        expect(path, &theirs, path);
    }
    for (path, then) in [
        ("data/1/b", "base/1/b"),
        ("data/3", "base/3"),
        ("data/mine", "base/mine"),
        ("data/mine/y", "base/mine/y"),
        ("data/mine/linked", "base/mine/linked"),
        ("wal", "wal"),
        ("wal/1", "wal/1"),
        ("wal/c", "wal/c"),
    ] {
        expect(path, &ours, then);
    }
    assert_eq!(found.len(), 14, "{found:?}");
    while dev.fs.reap(1000).unwrap() {}
    drop(dev);
    assert_sound(&pool, "dev");
    // The clone has its old name, and is on the new snapshot, with which it shares files that were not touched.
    let listed = pool.listed("dev").unwrap();
    assert_eq!(listed.origin.as_deref(), Some("db@new"));
    assert_eq!(listed.created, 2);
    assert_eq!(pool.property_of("dev", "note:why").unwrap().as_deref(), Some("kept"));
    assert_eq!(pool.list().unwrap().len(), 6, "{:?}", pool.list());
    pool.destroy_snapshots(&["db@old"]).unwrap();
    pool.sync().unwrap();
    let report = pool.check_open(&mut |_| {});
    assert!(report.messages.is_empty(), "{:?}", report.messages);
    // The clone is moved once more, onto a snapshot of the same state: there are no changes of theirs.
    pool.snapshot(&["db"], "newer", 4).unwrap();
    assert_eq!(moved(&pool, "dev", "db@newer"), None);
    assert_eq!(Tree::of(&pool, "dev", 3000).all(), found);
}

#[test]
fn what_both_have_changed_is_told_and_stays() {
    let pool = pool();
    let (db, dev) = forked(&pool);
    assert!(db.write("base/1/a", 0, b"theirs") && dev.write("base/1/a", 20 * 8192, b"ours"));
    assert!(db.remove("base/1/b") && dev.chmod("base/1/b", 0o600));
    assert!(db.rename("wal/0", "wal/7") && dev.write("wal/0", 0, b"ours"));
    assert!(db.write("fresh", 0, b"theirs") && dev.write("fresh", 0, b"ours"));
    assert!(db.write("empty/file", 0, b"x") && dev.remove("empty"));
    assert!(db.write("only theirs", 0, b"x") && dev.write("only ours", 0, b"x"));
    let ours = dev.all();
    drop((db, dev));
    pool.snapshot(&["db"], "new", 3).unwrap();
    let conflicts = moved(&pool, "dev", "db@new").unwrap();
    assert_eq!(conflicts, ["base/1/a", "base/1/b", "empty/file", "fresh", "wal/0"]);
    assert_eq!(Tree::of(&pool, "dev", 2000).all(), ours);
    assert_eq!(pool.listed("dev").unwrap().origin.as_deref(), Some("db@old"));
    assert_eq!(pool.list().unwrap().len(), 5, "{:?}", pool.list());
}

#[test]
fn directories_that_would_lie_in_each_other_are_conflicts() {
    let pool = pool();
    let (db, dev) = forked(&pool);
    assert!(db.rename("wal", "base/1/wal"));
    assert!(dev.mkdir("wal/deep") && dev.rename("base", "wal/deep/base"));
    drop((db, dev));
    pool.snapshot(&["db"], "new", 3).unwrap();
    assert_eq!(moved(&pool, "dev", "db@new").unwrap(), ["base"]);
}

/// xorshift, for histories.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }

    /// Returns one of a few paths in a few directories.
    fn path(&mut self) -> String {
        let dir = ["", "p/", "q/", "q/r/"][self.below(4) as usize];
        format!("{dir}f{}", self.below(7))
    }

    /// Returns a directory that may be made, removed, or be in the way.
    fn dir(&mut self) -> String {
        ["p", "q", "q/r", "p/f3", "f5"][self.below(5) as usize].to_owned()
    }
}

fn change(tree: &Tree, random: &mut Random) {
    let path = random.path();
    match random.below(13) {
        0..4 => {
            let (offset, len) = (random.below(60_000), random.below(30_000) as usize + 1);
            tree.write(&path, offset, &vec![random.below(256) as u8; len]);
        }
        4 => {
            let _ = tree.truncate(&path, random.below(3) * 20_000);
        }
        5 => {
            let _ = tree.chmod(&path, 0o600 + random.below(64) as u32);
        }
        6 => drop(tree.tag(&path, &[random.below(256) as u8; 3])),
        7 => {
            let _ = tree.remove(&path);
        }
        8 => {
            // Directories are not moved: their files' paths would change with them, of which the comparison below knows
            // nothing.
            let is_file =
                tree.find(&path).is_some_and(|ino| tree.fs.getattr(ino).unwrap().kind == FileKind::Regular);
            let to = random.path();
            let _ = is_file && tree.rename(&path, &to);
        }
        9 => {
            let _ = tree.link(&path, &random.path());
        }
        10 => drop(tree.punch(&path, random.below(60_000), random.below(60_000) + 1)),
        // A directory that was removed and made again is another one, and its mode shows that.
        11 => {
            let dir = random.dir();
            let mode = 0o700 + random.below(64) as u32;
            let _ = tree.mkdir(&dir) && tree.chmod(&dir, mode);
        }
        _ => {
            let _ = tree.remove(&random.dir());
        }
    }
}

/// Returns what must come of it, path by path; `None` for a conflict.
fn expected(
    origin: &BTreeMap<String, String>,
    ours: &BTreeMap<String, String>,
    theirs: &BTreeMap<String, String>,
) -> Option<BTreeMap<String, String>> {
    let mut merged = theirs.clone();
    let all: BTreeSet<&String> = origin.keys().chain(ours.keys()).chain(theirs.keys()).collect();
    for path in all {
        let (was, our, their) = (origin.get(path), ours.get(path), theirs.get(path));
        match (was == our, was == their) {
            (false, false) => return None,
            (true, _) => {}
            (false, true) => match our {
                Some(our) => drop(merged.insert(path.clone(), our.clone())),
                None => drop(merged.remove(path)),
            },
        }
    }
    let orphan = |path: &String| path.rsplit_once('/').is_some_and(|(dir, _)| !merged.contains_key(dir));
    (!merged.keys().any(orphan)).then_some(merged)
}

#[test]
fn random_changes_go_together_or_are_conflicts() {
    let (mut together, mut apart) = (0, 0);
    let rounds = 300;
    let pool = pool();
    for round in 1..=rounds {
        let mut random = Random(u64::wrapping_mul(round, 0x9E37_79B9_7F4A_7C15));
        let (db, dev) = (format!("db{round}"), format!("dev{round}"));
        dataset(&pool, &db);
        let tree = Tree::of(&pool, &db, 0);
        for dir in ["p", "q", "q/r"] {
            tree.mkdir(dir);
        }
        (0..40).for_each(|_| change(&tree, &mut random));
        pool.snapshot(&[&db], "old", 1).unwrap();
        let origin = tree.all();
        pool.clone_snapshot(&format!("{db}@old"), &dev, 2).unwrap();
        let clone = Tree::of(&pool, &dev, 1000);
        let most = random.below(20) + 1;
        for tree in [&tree, &clone] {
            (0..=random.below(most)).for_each(|_| change(tree, &mut random));
            if random.below(2) == 0 {
                while tree.fs.reap(1000).unwrap() {}
            }
        }
        let (theirs, ours) = (tree.all(), clone.all());
        drop((tree, clone));
        pool.snapshot(&[&db], "new", 1).unwrap();
        let conflicts = moved(&pool, &dev, &format!("{db}@new"));
        let merged = expected(&origin, &ours, &theirs);
        let found = Tree::of(&pool, &dev, 2000);
        match (&conflicts, &merged) {
            (None, Some(merged)) => assert_eq!(found.all(), *merged, "round {round}"),
            (Some(_), None) => assert_eq!(found.all(), ours, "round {round}"),
            _ => panic!("round {round}: {conflicts:?}, {merged:?}\n{origin:?}\n{ours:?}\n{theirs:?}"),
        }
        if conflicts.is_some() {
            apart += 1;
        } else {
            together += 1;
        }
        while found.fs.reap(1000).unwrap() {}
        drop(found);
        assert_sound(&pool, &dev);
        pool.destroy_dataset(&dev).unwrap();
        for name in ["new", "old"] {
            pool.destroy_snapshots(&[&format!("{db}@{name}")]).unwrap();
        }
        pool.destroy_dataset(&db).unwrap();
        while pool.is_reaping() {
            if !pool.reap().unwrap() {
                pool.checkpoint(false).unwrap();
            }
        }
    }
    assert!(together > rounds / 5 && apart > rounds / 10, "{together} and {apart}");
}
