//! Differences between snapshots of a file system, as files.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::sync::Arc;

use pagefold_engine::device::{Device, SimDevice};
use pagefold_engine::pool::{CreateOptions, Guid, OpenOptions, Pool, create_on};
use pagefold_fs::diff::{Fate, FileDifference, diff};
use pagefold_fs::testing::ManualClock;
use pagefold_fs::{
    Caller, Fallocate, FormatOptions, Fs, FsOptions, Ino, OpenFlags, RenameMode, SetAttr, WriteFlags,
    XattrMode, check,
};

const USER: Caller = Caller { uid: 1, gid: 1, umask: 0o022 };

fn pool() -> Arc<Pool> {
    let devices = vec![Arc::new(SimDevice::new(256 << 20, 5)) as Arc<dyn Device>];
    let options = CreateOptions { force: false, created: 0, guid: Guid(*b"fs that differs!") };
    create_on("tank", &devices, &options).unwrap();
    let pool = Pool::open_on(devices, &OpenOptions::default()).unwrap();
    let format = FormatOptions { seed: 99, uid: 0, gid: 0, perm: 0o755 };
    Fs::format(&*pool.dataset(), &ManualClock::default(), &format).unwrap();
    pool
}

fn mount(pool: &Pool) -> (Arc<Fs>, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::default());
    let fs = Fs::mount(pool.dataset(), Arc::<ManualClock>::clone(&clock), FsOptions::default()).unwrap();
    (fs, clock)
}

fn file(fs: &Fs, dir: Ino, name: &str, data: &[u8]) -> Ino {
    let entry = fs.create(dir, name.as_bytes(), 0o644, OpenFlags::default(), &USER).unwrap();
    for (offset, page) in (0..).step_by(8192).zip(data.chunks(8192)) {
        fs.write(entry.ino, offset, page, WriteFlags::default()).unwrap();
    }
    fs.release(entry.ino);
    entry.ino
}

fn compare(pool: &Pool, old: &str, new: &str) -> Vec<FileDifference> {
    let comparison = pool.compare_versions(old, new, 9).unwrap();
    diff(comparison.older(), comparison.newer(), comparison.differences(), true).unwrap()
}

fn texts(found: &[FileDifference]) -> Vec<String> {
    let text = |path: &[u8]| String::from_utf8(path.to_vec()).unwrap();
    let one = |found: &FileDifference| {
        let path = text(&found.path);
        match &found.fate {
            Fate::Created => format!("+ {path}"),
            Fate::Removed => format!("- {path}"),
            Fate::Renamed { from } => format!("R {} {path}", text(from)),
            Fate::Modified => format!("M {path} {:?}", found.ranges),
        }
    };
    found.iter().map(one).collect()
}

#[test]
fn files_are_created_removed_renamed_and_modified() {
    let pool = pool();
    let (fs, clock) = mount(&pool);
    let mkdir = |dir, name: &str| fs.mkdir(dir, name.as_bytes(), 0o755, &USER).unwrap().ino;
    let base = mkdir(Ino::ROOT, "base");
    let deep = mkdir(base, "1");
    let table = file(&fs, deep, "16384", &[7; 10 * 8192]);
    let grown = file(&fs, deep, "16385", &[7; 8192]);
    let shrunk = file(&fs, base, "wal", &[7; 40_000]);
    file(&fs, base, "gone", b"x");
    let moved = file(&fs, base, "moved", b"x");
    file(&fs, base, "replaced", b"x");
    file(&fs, base, "new name", b"x");
    let linked = file(&fs, base, "linked", b"x");
    let attributes = file(&fs, base, "attributes", b"x");
    file(&fs, base, "same", b"x");
    pool.snapshot(&[""], "one", 1).unwrap();
    assert_eq!(texts(&compare(&pool, "@one", "")), Vec::<String>::new());

    clock.advance(1_000_000_000);
    fs.write(table, 3 * 8192, &[8; 8192], WriteFlags::default()).unwrap();
    fs.write(table, 4 * 8192, &[8; 8192], WriteFlags::default()).unwrap();
    fs.write(table, 9 * 8192, &[8; 8192], WriteFlags::default()).unwrap();
    fs.write(grown, 8192, &[8; 8192], WriteFlags::default()).unwrap();
    fs.setattr(shrunk, &SetAttr { size: Some(100), ..SetAttr::default() }).unwrap();
    fs.unlink(base, b"gone").unwrap();
    fs.rename(base, b"moved", deep, b"there", RenameMode::Replace).unwrap();
    fs.rename(base, b"new name", base, b"replaced", RenameMode::Replace).unwrap();
    fs.link(linked, Ino::ROOT, b"another link").unwrap();
    fs.setattr(attributes, &SetAttr { mode: Some(0o600), ..SetAttr::default() }).unwrap();
    fs.setxattr(moved, b"user.tag", b"red", XattrMode::Set, false).unwrap();
    let fresh = mkdir(Ino::ROOT, "fresh");
    file(&fs, fresh, "file", b"x");
    while fs.reap(100).unwrap() {}

    // Ranges are whole pages, of 16 KiB here. Bytes that only a truncation removed are not in them.
    let expected = [
        "+ another link",
        "M base/1/16384 [16384..49152, 65536..81920]",
        "M base/1/16385 [0..16384]",
        "M base/1/there []",
        "R base/moved base/1/there",
        "M base/attributes []",
        "- base/gone",
        "R base/new name base/replaced",
        "- base/replaced",
        "M base/wal []",
        "+ fresh",
        "+ fresh/file",
    ];
    let sorted = |mut texts: Vec<String>| {
        texts.sort();
        texts
    };
    let expected = sorted(expected.map(String::from).to_vec());
    assert_eq!(sorted(texts(&compare(&pool, "@one", ""))), expected);
    // The comparison leaves no snapshot behind.
    assert_eq!(pool.list().unwrap().len(), 2);
    pool.snapshot(&[""], "two", 2).unwrap();
    assert_eq!(sorted(texts(&compare(&pool, "@one", "@two"))), expected);
    let without = pool.compare_versions("@one", "@two", 9).unwrap();
    let found = diff(without.older(), without.newer(), without.differences(), false).unwrap();
    assert!(found.iter().all(|found| found.ranges.is_empty()) && found.len() == expected.len());
    drop(without);
    assert!(check::check(&*pool.dataset()).unwrap().is_clean());
    assert!(pool.compare_versions("@no", "", 9).is_err());
    assert!(pool.compare_versions("@two", "@one", 9).is_err());
    assert_eq!(pool.list().unwrap().len(), 3);
}

/// Pages that are cut off differ at once, and are no difference any more when they are freed.
#[test]
fn pages_that_are_freed_later_differ_once() {
    let pool = pool();
    let options = FsOptions { recordsize: Some(4096), free_pages: Some(2), ..FsOptions::default() };
    let clock = Arc::new(ManualClock::default());
    let fs = Fs::mount(pool.dataset(), Arc::<ManualClock>::clone(&clock), options).unwrap();
    let f = file(&fs, Ino::ROOT, "f", &[7; 40 * 4096]);
    let g = file(&fs, Ino::ROOT, "g", &[7; 40 * 4096]);
    let kept = |name| {
        pool.snapshot(&[""], name, 1).unwrap();
        clock.advance(1);
    };
    kept("whole");
    fs.setattr(f, &SetAttr { size: Some(4096), ..SetAttr::default() }).unwrap();
    fs.setattr(f, &SetAttr { size: Some(30 * 4096), ..SetAttr::default() }).unwrap();
    fs.fallocate(g, 10 * 4096, 20 * 4096, Fallocate::PunchHole, false).unwrap();
    kept("cut");
    fs.write(g, 20 * 4096, &[9; 4096], WriteFlags::default()).unwrap();
    kept("written");
    while fs.reap(3).unwrap() {}
    kept("freed");
    // The ranges end where the file ends now.
    let cut = ["M f [4096..122880]", "M g [40960..122880]"];
    assert_eq!(texts(&compare(&pool, "@whole", "@cut")), cut);
    assert_eq!(texts(&compare(&pool, "@whole", "@freed")), cut);
    let written = ["M g [81920..86016]"];
    assert_eq!(texts(&compare(&pool, "@cut", "@written")), written);
    assert_eq!(texts(&compare(&pool, "@cut", "@freed")), written);
    assert_eq!(texts(&compare(&pool, "@written", "@freed")), Vec::<String>::new());
    assert!(check::check(&*pool.dataset()).unwrap().is_clean());
}
