//! Compares docs/FORMAT.md with what the file system stores.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests")]

#[path = "../../engine/tests/tables/mod.rs"]
mod tables;

use std::sync::Arc;

use pagefold_engine::Key;
use pagefold_engine::dataset::{Change, Dataset};
use pagefold_fs::testing::MemDataset;
use pagefold_fs::{
    Attr, Caller, Clock, FileKind, FormatOptions, Fs, FsOptions, Ino, OpenFlags, SetAttr, Time, WriteFlags,
    XattrMode,
};
use tables::{assert_example, codes, example};
use xxhash_rust::xxh3::xxh3_64_with_seed;

const SEED: u64 = 0x0102_0304_0506_0708;

/// A clock that stands still.
struct Noon;

impl Clock for Noon {
    fn now(&self) -> Time {
        Time { secs: 1_763_640_000, nanos: 250_000_000 }
    }
}

fn mounted() -> (Arc<MemDataset>, Arc<Fs>) {
    let dataset = Arc::new(MemDataset::new(64 << 20));
    let options = FormatOptions { seed: SEED, uid: 0, gid: 0, perm: 0o755 };
    Fs::format(dataset.as_ref(), &Noon, &options).unwrap();
    let fs = mount(&dataset);
    (dataset, fs)
}

fn mount(dataset: &Arc<MemDataset>) -> Arc<Fs> {
    let dataset: Arc<dyn Dataset> = Arc::clone(dataset) as Arc<dyn Dataset>;
    Fs::mount(dataset, Arc::new(Noon), FsOptions::default()).unwrap()
}

/// Mounts so that a change frees at most 4 pages.
fn mount_for_steps(dataset: &Arc<MemDataset>) -> Arc<Fs> {
    let dataset: Arc<dyn Dataset> = Arc::clone(dataset) as Arc<dyn Dataset>;
    let options = FsOptions { free_pages: Some(4), ..FsOptions::default() };
    Fs::mount(dataset, Arc::new(Noon), options).unwrap()
}

fn make(fs: &Fs, name: &[u8]) -> Attr {
    let caller = Caller { uid: 1000, gid: 100, umask: 0o022 };
    fs.create(Ino::ROOT, name, 0o666, OpenFlags::default(), &caller).unwrap().attr
}

fn place(name: &[u8]) -> u64 {
    let bits = ((1 << 55) - 1) << 8;
    (xxh3_64_with_seed(name, SEED) & bits).max(256)
}

fn stored(dataset: &MemDataset, object: u64, kind: u8, offset: u64) -> Vec<u8> {
    dataset.get(&Key::new(object, kind, offset)).unwrap().unwrap()
}

/// Returns the code of a kind, by its name in the document.
fn kind(name: &str) -> u8 {
    let kinds = codes("fs-kinds", "kind", "name");
    kinds.iter().find(|(_, known)| *known == name).unwrap().0 as u8
}

fn acl() -> Vec<u8> {
    let mut bytes = 2_u32.to_le_bytes().to_vec();
    for (tag, perm, id) in
        [(1_u16, 6_u16, u32::MAX), (2, 4, 5), (4, 4, u32::MAX), (16, 4, u32::MAX), (32, 0, u32::MAX)]
    {
        bytes.extend_from_slice(&tag.to_le_bytes());
        bytes.extend_from_slice(&perm.to_le_bytes());
        bytes.extend_from_slice(&id.to_le_bytes());
    }
    bytes
}

#[test]
fn header_and_counter() {
    let (dataset, _fs) = mounted();
    assert_example("fs-header", &stored(&dataset, 0, kind("header"), 0));
    assert_example("fs-counter", &stored(&dataset, 0, kind("counter"), 0));
}

#[test]
fn inode_entry_and_attributes() {
    let (dataset, fs) = mounted();
    let ino = make(&fs, b"hello").ino;
    fs.write(ino, 0, b"bytes", WriteFlags::default()).unwrap();
    assert_example("fs-inode", &stored(&dataset, ino.0, kind("inode"), 0));
    assert_example("fs-entry", &stored(&dataset, 1, kind("entry"), place(b"hello")));
    fs.setxattr(ino, b"user.tag", b"red", XattrMode::Set, false).unwrap();
    assert_example("fs-xattr", &stored(&dataset, ino.0, kind("xattr"), place(b"user.tag")));
    fs.setxattr(ino, b"system.posix_acl_access", &acl(), XattrMode::Set, false).unwrap();
    assert_example("fs-acl", &stored(&dataset, ino.0, kind("acl"), 0));
    let caller = Caller { uid: 0, gid: 0, umask: 0 };
    let link = fs.symlink(Ino::ROOT, b"link", b"hello", &caller).unwrap().ino;
    assert_eq!(stored(&dataset, link.0, kind("target"), 0), b"hello");
}

#[test]
fn orphans() {
    let (dataset, fs) = mounted();
    let ino = make(&fs, b"gone").ino;
    fs.unlink(Ino::ROOT, b"gone").unwrap();
    assert_example("fs-orphan", &stored(&dataset, 0, kind("orphan inode"), ino.0));
    // If a truncation frees more than one change may, the object is left to be reaped.
    let ino = make(&fs, b"large").ino;
    let fs = mount_for_steps(&dataset);
    for at in 0..10 {
        fs.write(ino, at * 16384, &[1; 16384], WriteFlags::default()).unwrap();
    }
    fs.open(ino, OpenFlags { truncate: true, ..OpenFlags::default() }).unwrap();
    assert_example("fs-orphan", &stored(&dataset, 0, kind("orphan data"), ino.0));
}

#[test]
fn ranges_to_be_freed() {
    let (dataset, fs) = mounted();
    drop(fs);
    let fs = mount_for_steps(&dataset);
    let ino = make(&fs, b"cut").ino;
    for at in 0..10 {
        fs.write(ino, at * 16384, &[1; 16384], WriteFlags::default()).unwrap();
    }
    fs.setattr(ino, &SetAttr { size: Some(5), ..SetAttr::default() }).unwrap();
    assert_example("fs-freeing", stored(&dataset, ino.0, kind("inode"), 0).split_off(104).as_slice());
    assert_example("fs-orphan", &stored(&dataset, 0, kind("freeing inode"), ino.0));
    // The ranges of the document's example can be read.
    let mut inode = stored(&dataset, ino.0, kind("inode"), 0);
    inode.truncate(104);
    inode.extend(example("fs-freeing"));
    dataset.apply(&[Change::Put(Key::new(ino.0, kind("inode"), 0), inode)]).unwrap();
    let fs = mount(&dataset);
    while fs.reap(100).unwrap() {}
    assert_eq!(dataset.pages(), 1);
    assert_eq!(stored(&dataset, ino.0, kind("inode"), 0).len(), 104);
}

#[test]
fn stored_examples_are_read() {
    let (dataset, fs) = mounted();
    drop(fs);
    let put = |object, name: &str, offset, table: &str| {
        dataset.apply(&[Change::Put(Key::new(object, kind(name), offset), example(table))]).unwrap();
    };
    put(0, "header", 0, "fs-header");
    put(2, "inode", 0, "fs-inode");
    put(1, "entry", place(b"hello"), "fs-entry");
    put(2, "xattr", place(b"user.tag"), "fs-xattr");
    let fs = mount(&dataset);
    let attr = fs.lookup(Ino::ROOT, b"hello").unwrap().attr;
    assert_eq!((attr.ino, attr.kind, attr.perm, attr.size), (Ino(2), FileKind::Regular, 0o644, 5));
    assert_eq!((attr.uid, attr.gid, attr.nlink, attr.mtime), (1000, 100, 1, Noon.now()));
    let mut bytes = [1; 8];
    assert_eq!(fs.read(Ino(2), 0, &mut bytes).unwrap(), 5);
}

#[test]
fn kinds_are_all_there_are() {
    let (dataset, fs) = mounted();
    let ino = make(&fs, b"hello").ino;
    fs.setxattr(ino, b"user.tag", b"red", XattrMode::Set, false).unwrap();
    fs.setxattr(ino, b"user.pagefold.compression", b"lz4", XattrMode::Set, false).unwrap();
    fs.setxattr(ino, b"system.posix_acl_access", &acl(), XattrMode::Set, false).unwrap();
    fs.symlink(Ino::ROOT, b"link", b"hello", &Caller { uid: 0, gid: 0, umask: 0 }).unwrap();
    make(&fs, b"gone");
    fs.unlink(Ino::ROOT, b"gone").unwrap();
    let known: Vec<u64> = codes("fs-kinds", "kind", "name").iter().map(|(kind, _)| *kind).collect();
    for (key, _) in dataset.values() {
        assert!(known.contains(&key.kind.into()), "kind {:#x} is not in the document", key.kind);
    }
}
