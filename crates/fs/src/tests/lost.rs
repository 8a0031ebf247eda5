//! Reading a damaged file system, and listing what cannot be read.

use pagefold_engine::pool::Unreadable;
use pagefold_engine::types::Key;

use super::{Bed, ROOT};
use crate::codec::{Inode, kind};
use crate::lost::{Lost, What, list};
use crate::{Fs, FsError, FsOptions, Ino, XattrMode};

fn lost(bed: &Bed, unreadable: &Unreadable) -> Vec<(String, What)> {
    let mut found = Vec::new();
    list(&*bed.dataset, unreadable, &mut |Lost { path, what, .. }| {
        found.push((String::from_utf8(path.clone()).unwrap(), what.clone()));
    })
    .unwrap();
    found
}

fn keys(first: Key, end: Key) -> Unreadable {
    Unreadable { keys: vec![(first, end)], ..Unreadable::default() }
}

fn behind(key: Key) -> Key {
    Key { offset: key.offset + 1, ..key }
}

/// Returns the places of the names in a directory, ascending.
fn places(bed: &Bed, dir: Ino) -> Vec<u64> {
    let mut found = Vec::new();
    let told = bed.fs.readdir(dir, 0, &mut |entry| {
        found.push(entry.cookie);
        true
    });
    told.unwrap();
    found.split_off(2)
}

#[test]
fn names_that_can_be_read_are_told_and_then_the_error() {
    let bed = Bed::new();
    let dir = bed.mkdir(ROOT, "dir").ino;
    for n in 0..700 {
        bed.create(dir, &format!("f{n}"));
    }
    let all = places(&bed, dir);
    for (first, end) in [(0, 1), (100, 130), (640, 700), (0, 700)] {
        let key = |at: usize| Key::new(dir.0, kind::ENTRY, all[at]);
        let unreadable = keys(key(first), behind(key(end - 1)));
        bed.dataset.damage(unreadable.clone());
        let (mut told, mut cookie) = (Vec::new(), 0);
        let error = loop {
            let mut room = 50;
            let result = bed.fs.readdir(dir, cookie, &mut |entry| {
                room -= 1;
                told.extend((room >= 0).then_some(entry.cookie));
                room >= 0
            });
            match result {
                Ok(()) => assert!(cookie < *told.last().unwrap(), "it ends without a word"),
                Err(error) => break error,
            }
            cookie = *told.last().unwrap();
        };
        assert!(matches!(error, FsError::Corrupt { .. }), "{error}");
        assert_eq!(told[2..], [&all[..first], &all[end..]].concat());
        assert_eq!(lost(&bed, &unreadable), [("dir".to_owned(), What::Names)]);
    }
}

#[test]
fn a_file_is_listed_with_its_bytes_and_the_rest_of_it_is_read() {
    let bed = Bed::new();
    let dir = bed.mkdir(ROOT, "a").ino;
    let file = bed.create(dir, "file").ino;
    bed.write(file, 0, &vec![7; 100_000]);
    let (object, page) = (bed.fs.object(file).unwrap(), u64::from(bed.fs.getattr(file).unwrap().blksize));
    let mut unreadable = keys(Key::page(object, 2), Key::page(object, 3));
    unreadable.pages.insert(object, vec![(0, 1), (3, 4)]);
    bed.dataset.damage(unreadable.clone());
    let bytes = What::Bytes(vec![(0, page), (2 * page, 4 * page)]);
    assert_eq!(lost(&bed, &unreadable), [("a/file".to_owned(), bytes)]);
    assert!(bed.fs.read(file, 2 * page, &mut [0; 10]).is_err());
    assert_eq!(bed.read(file, page, 10), [7; 10]);
    // The unreadable keys reach beyond the file: only its own bytes are listed.
    let unreadable = keys(Key::page(object, 1), Key::new(object + 9, 0, 0));
    assert_eq!(lost(&bed, &unreadable), [("a/file".to_owned(), What::Bytes(vec![(page, 100_000)]))]);
}

#[test]
fn what_is_lost_of_inodes_is_listed() {
    let bed = Bed::new();
    let dir = bed.mkdir(ROOT, "dir").ino;
    let file = bed.create(dir, "file").ino;
    let link = bed.fs.symlink(ROOT, b"link", b"dir/file", &super::USER).unwrap().ino;
    bed.fs.setxattr(file, b"user.tag", b"x", XattrMode::Set, false).unwrap();
    let inode = |ino: Ino| keys(Inode::key(ino.0), behind(Inode::key(ino.0)));
    let one = |path: &str, what| vec![(path.to_owned(), what)];
    assert_eq!(lost(&bed, &inode(file)), one("dir/file", What::Inode));
    assert_eq!(lost(&bed, &inode(dir)), one("dir", What::Inode));
    assert_eq!(lost(&bed, &inode(ROOT)), one("", What::Inode));
    let of_kind = |ino: Ino, kind: u8| keys(Key::new(ino.0, kind, 0), Key::new(ino.0, kind + 1, 0));
    assert_eq!(lost(&bed, &of_kind(link, kind::TARGET)), one("link", What::Target));
    assert_eq!(lost(&bed, &of_kind(file, kind::XATTR)), one("dir/file", What::Attributes));
    assert_eq!(lost(&bed, &of_kind(file, kind::TARGET)), []);
    assert_eq!(lost(&bed, &Unreadable::default()), []);

    // A listing continues past a file that is lost.
    bed.dataset.damage(inode(file));
    let fs = Fs::mount(bed.dataset.clone(), bed.clock.clone(), FsOptions::default()).unwrap();
    let mut told = Vec::new();
    let listed = fs.readdirplus(dir, 0, &mut |entry, found| {
        told.push((entry.name.to_vec(), found.is_some()));
        true
    });
    listed.unwrap();
    assert_eq!(told.last(), Some(&(b"file".to_vec(), false)));
    assert!(fs.lookup(dir, b"file").is_err());
}

#[test]
fn where_the_names_are_lost_the_inode_is_named() {
    let bed = Bed::new();
    let dir = bed.mkdir(ROOT, "dir").ino;
    let file = bed.create(dir, "file").ino;
    bed.write(file, 0, &[1; 5000]);
    let mut unreadable = keys(Key::new(1, kind::ENTRY, 0), Key::new(1, kind::ENTRY + 1, 0));
    unreadable.pages.insert(bed.fs.object(file).unwrap(), vec![(0, 1)]);
    bed.dataset.damage(unreadable.clone());
    let names = (String::new(), What::Names);
    let bytes = (format!("(inode {})/file", dir.0), What::Bytes(vec![(0, 5000)]));
    assert_eq!(lost(&bed, &unreadable), [names, bytes]);
}
