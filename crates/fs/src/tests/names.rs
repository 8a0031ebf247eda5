use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use pagefold_engine::dataset::Dataset;

use super::{Bed, ROOT, USER, assert_err};
use crate::RenameMode::{Exchange, NoReplace, Replace};
use crate::codec::Inode;
use crate::limits::LINK_MAX;
use crate::{FsError, Ino};

fn rename(bed: &Bed, from: (Ino, &str), to: (Ino, &str), mode: crate::RenameMode) -> crate::Result<()> {
    bed.fs.rename(from.0, from.1.as_bytes(), to.0, to.1.as_bytes(), mode)
}

fn ino(bed: &Bed, dir: Ino, name: &str) -> Ino {
    bed.fs.lookup(dir, name.as_bytes()).unwrap().ino
}

#[test]
fn hard_links_share_an_inode() {
    let bed = Bed::new();
    let (a, dir) = (bed.create(ROOT, "a"), bed.mkdir(ROOT, "dir"));
    let b = bed.fs.link(a.ino, dir.ino, b"b").unwrap();
    assert_eq!((b.ino, b.attr.nlink), (a.ino, 2));
    assert_err!(bed.fs.link(a.ino, dir.ino, b"b"), FsError::Exists);
    assert_err!(bed.fs.link(dir.ino, ROOT, b"d2"), FsError::NotPermitted);
    bed.fs.unlink(ROOT, b"a").unwrap();
    assert_eq!(bed.fs.getattr(a.ino).unwrap().nlink, 1);
    bed.fs.unlink(dir.ino, b"b").unwrap();
    assert_eq!(bed.fs.getattr(a.ino).unwrap().nlink, 0);
    assert_err!(bed.fs.link(a.ino, ROOT, b"again"), FsError::NotFound);
    bed.check();
}

#[test]
fn links_have_a_limit() {
    let bed = Bed::new();
    let (a, dir) = (bed.create(ROOT, "a"), bed.mkdir(ROOT, "dir"));
    for node in [a.ino, dir.ino] {
        bed.fs.node(node).unwrap().cached.write().inode.nlink = LINK_MAX;
    }
    assert_err!(bed.fs.link(a.ino, ROOT, b"b"), FsError::TooManyLinks);
    assert_err!(bed.fs.mkdir(dir.ino, b"sub", 0o755, &USER), FsError::TooManyLinks);
}

#[test]
fn unlink_and_rmdir_keep_to_their_kinds() {
    let bed = Bed::new();
    bed.create(ROOT, "file");
    let dir = bed.mkdir(ROOT, "dir");
    bed.create(dir.ino, "inside");
    assert_err!(bed.fs.unlink(ROOT, b"dir"), FsError::IsADirectory);
    assert_err!(bed.fs.rmdir(ROOT, b"file"), FsError::NotADirectory);
    assert_err!(bed.fs.rmdir(ROOT, b"dir"), FsError::NotEmpty);
    assert_err!(bed.fs.unlink(ROOT, b"none"), FsError::NotFound);
    assert_err!(bed.fs.rmdir(dir.ino, b".."), FsError::Invalid(_));
    bed.fs.unlink(dir.ino, b"inside").unwrap();
    bed.fs.rmdir(ROOT, b"dir").unwrap();
    assert_eq!(bed.names(ROOT), ["file"]);
    assert_eq!(bed.fs.getattr(ROOT).unwrap().nlink, 2);
    bed.check();
}

#[test]
fn rename_moves_and_replaces() {
    let bed = Bed::new();
    let (a, b) = (bed.create(ROOT, "a"), bed.create(ROOT, "b"));
    let dir = bed.mkdir(ROOT, "dir");
    rename(&bed, (ROOT, "a"), (dir.ino, "c"), Replace).unwrap();
    assert_eq!(ino(&bed, dir.ino, "c"), a.ino);
    rename(&bed, (dir.ino, "c"), (ROOT, "b"), Replace).unwrap();
    assert_eq!((ino(&bed, ROOT, "b"), bed.names(dir.ino).len()), (a.ino, 0));
    assert_eq!(bed.fs.getattr(b.ino).unwrap().nlink, 0);
    rename(&bed, (ROOT, "b"), (ROOT, "b"), Replace).unwrap();
    assert_err!(rename(&bed, (ROOT, "none"), (ROOT, "x"), Replace), FsError::NotFound);
    assert_eq!(bed.names(ROOT), ["b", "dir"]);
    bed.check();
}

#[test]
fn rename_refuses_what_does_not_fit() {
    let bed = Bed::new();
    let (dir, full, empty) = (bed.mkdir(ROOT, "dir"), bed.mkdir(ROOT, "full"), bed.mkdir(ROOT, "empty"));
    bed.create(full.ino, "inside");
    bed.create(ROOT, "file");
    assert_err!(rename(&bed, (ROOT, "dir"), (ROOT, "file"), Replace), FsError::NotADirectory);
    assert_err!(rename(&bed, (ROOT, "file"), (ROOT, "dir"), Replace), FsError::IsADirectory);
    assert_err!(rename(&bed, (ROOT, "dir"), (ROOT, "full"), Replace), FsError::NotEmpty);
    assert_err!(rename(&bed, (ROOT, "file"), (ROOT, "dir"), NoReplace), FsError::Exists);
    assert_err!(rename(&bed, (ROOT, "file"), (ROOT, "none"), Exchange), FsError::NotFound);
    let deep = bed.mkdir(dir.ino, "deep");
    let deeper = bed.mkdir(deep.ino, "deeper");
    assert_err!(rename(&bed, (ROOT, "dir"), (deeper.ino, "x"), Replace), FsError::Invalid(_));
    assert_err!(rename(&bed, (ROOT, "dir"), (dir.ino, "x"), Replace), FsError::Invalid(_));
    assert_err!(rename(&bed, (deep.ino, "deeper"), (ROOT, "dir"), Exchange), FsError::Invalid(_));
    rename(&bed, (ROOT, "dir"), (ROOT, "empty"), Replace).unwrap();
    assert_eq!(bed.fs.getattr(empty.ino).unwrap().nlink, 0);
    assert_eq!(bed.names(ROOT), ["empty", "file", "full"]);
    bed.check();
}

#[test]
fn moved_directories_know_their_parent() {
    let bed = Bed::new();
    let (a, b) = (bed.mkdir(ROOT, "a"), bed.mkdir(ROOT, "b"));
    let sub = bed.mkdir(a.ino, "sub");
    rename(&bed, (a.ino, "sub"), (b.ino, "sub"), NoReplace).unwrap();
    assert_eq!(ino(&bed, sub.ino, ".."), b.ino);
    assert_eq!(bed.fs.getattr(a.ino).unwrap().nlink, 2);
    assert_eq!(bed.fs.getattr(b.ino).unwrap().nlink, 3);
    bed.check();
    bed.crash().check();
}

#[test]
fn exchange_swaps_whatever_the_kinds() {
    let bed = Bed::new();
    let (a, b) = (bed.mkdir(ROOT, "a"), bed.mkdir(ROOT, "b"));
    let (dir, file) = (bed.mkdir(a.ino, "x"), bed.create(b.ino, "y"));
    bed.create(dir.ino, "inside");
    rename(&bed, (a.ino, "x"), (b.ino, "y"), Exchange).unwrap();
    assert_eq!((ino(&bed, a.ino, "x"), ino(&bed, b.ino, "y")), (file.ino, dir.ino));
    assert_eq!(ino(&bed, dir.ino, ".."), b.ino);
    assert_eq!(bed.fs.getattr(a.ino).unwrap().nlink, 2);
    assert_eq!(bed.fs.getattr(b.ino).unwrap().nlink, 3);
    bed.check();
    rename(&bed, (a.ino, "x"), (b.ino, "y"), Exchange).unwrap();
    rename(&bed, (ROOT, "a"), (ROOT, "b"), Exchange).unwrap();
    assert_eq!((ino(&bed, ROOT, "a"), ino(&bed, ROOT, "b")), (b.ino, a.ino));
    bed.check();
}

#[test]
fn names_of_one_inode_stay_when_renamed_onto_each_other() {
    let bed = Bed::new();
    let a = bed.create(ROOT, "a");
    bed.fs.link(a.ino, ROOT, b"b").unwrap();
    rename(&bed, (ROOT, "a"), (ROOT, "b"), Replace).unwrap();
    assert_eq!(bed.names(ROOT), ["a", "b"]);
    assert_err!(rename(&bed, (ROOT, "a"), (ROOT, "b"), NoReplace), FsError::Exists);
    bed.check();
}

/// Whoever made an image may have made directories that lie below themselves.
#[test]
fn a_move_into_a_circle_of_directories_ends() {
    let bed = Bed::new();
    let top = bed.mkdir(ROOT, "top").ino;
    let upper = bed.mkdir(top, "upper").ino;
    let lower = bed.mkdir(upper, "lower").ino;
    bed.mkdir(ROOT, "moved");
    let stored = bed.dataset.get(&Inode::key(upper.0)).unwrap().unwrap();
    let forged = Inode { object: lower.0, ..Inode::decode(upper.0, &stored).unwrap() };
    bed.dataset.apply(&[forged.put(upper.0)]).unwrap();
    let fs = Arc::clone(&bed.crash().fs);
    let (say, said) = mpsc::channel();
    std::thread::spawn(move || say.send(fs.rename(ROOT, b"moved", lower, b"moved", Replace)));
    assert_err!(said.recv_timeout(Duration::from_secs(60)).unwrap(), FsError::Corrupt { .. });
}
