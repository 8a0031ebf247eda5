use std::collections::BTreeSet;

use pagefold_engine::dataset::{Change, Dataset};
use pagefold_engine::types::Key;

use super::{Bed, ROOT, USER, assert_err};
use crate::codec::{Pointee, kind};
use crate::limits::READDIR_BATCH;
use crate::named::join;
use crate::{Caller, FileKind, FsError, Ino, OpenFlags};

#[test]
fn made_inodes_are_found_with_their_attributes() {
    let bed = Bed::new();
    let file = bed.create(ROOT, "file");
    let fifo = bed.fs.mknod(ROOT, b"fifo", FileKind::Fifo, 0o666, 9, &USER).unwrap();
    let disk = bed.fs.mknod(ROOT, b"disk", FileKind::BlockDevice, 0o660, 0x801, &USER).unwrap();
    let dir = bed.mkdir(ROOT, "dir");
    let link = bed.fs.symlink(ROOT, b"link", b"dir/../file", &USER).unwrap();
    assert_eq!((file.attr.kind, file.attr.perm, file.attr.nlink), (FileKind::Regular, 0o644, 1));
    assert_eq!((file.attr.uid, file.attr.gid), (1000, 100));
    assert_eq!((fifo.attr.perm, fifo.attr.rdev), (0o644, 0));
    assert_eq!((disk.attr.rdev, disk.attr.mode()), (0x801, 0o60640));
    assert_eq!((dir.attr.nlink, dir.attr.perm), (2, 0o755));
    assert_eq!((link.attr.perm, link.attr.size), (0o777, 11));
    assert_eq!(bed.fs.readlink(link.ino).unwrap(), b"dir/../file");
    for entry in [&file, &fifo, &disk, &dir, &link] {
        assert_eq!(bed.fs.getattr(entry.ino).unwrap(), entry.attr);
    }
    assert_eq!(bed.fs.lookup(ROOT, b"link").unwrap(), link);
    assert_eq!(bed.fs.lookup(dir.ino, b"..").unwrap().ino, ROOT);
    assert_eq!(bed.fs.lookup(dir.ino, b".").unwrap().ino, dir.ino);
    assert_eq!(bed.fs.getattr(ROOT).unwrap().nlink, 3);
    bed.check();
}

#[test]
fn names_that_cannot_be() {
    let bed = Bed::new();
    let long = [b'x'; 256];
    assert_err!(bed.fs.lookup(ROOT, b"nothing"), FsError::NotFound);
    assert_err!(bed.fs.lookup(ROOT, &long), FsError::NameTooLong);
    assert_err!(bed.fs.mkdir(ROOT, &long, 0o755, &USER), FsError::NameTooLong);
    assert_err!(bed.fs.mkdir(ROOT, b"a/b", 0o755, &USER), FsError::Invalid(_));
    assert_err!(bed.fs.mkdir(ROOT, b"a\0b", 0o755, &USER), FsError::Invalid(_));
    assert_err!(bed.fs.mkdir(ROOT, b"", 0o755, &USER), FsError::NotFound);
    assert_err!(bed.fs.mkdir(ROOT, b"..", 0o755, &USER), FsError::Exists);
    assert_err!(bed.fs.symlink(ROOT, b"s", b"", &USER), FsError::Invalid(_));
    assert_err!(bed.fs.symlink(ROOT, b"s", &[b'x'; 4096], &USER), FsError::NameTooLong);
    let file = bed.create(ROOT, "file");
    assert_err!(bed.fs.lookup(file.ino, b"x"), FsError::NotADirectory);
    assert_err!(bed.fs.mkdir(file.ino, b"x", 0o755, &USER), FsError::NotADirectory);
    assert_err!(bed.fs.mkdir(ROOT, b"file", 0o755, &USER), FsError::Exists);
    assert_err!(bed.fs.readlink(file.ino), FsError::Invalid(_));
    bed.fs.mkdir(ROOT, &long[..255], 0o755, &USER).unwrap();
    let odd: Vec<u8> = (1..=255).filter(|&b| b != b'/').collect();
    let entry = bed.fs.mkdir(ROOT, &odd, 0o755, &USER).unwrap();
    assert_eq!(bed.fs.lookup(ROOT, &odd).unwrap().ino, entry.ino);
    bed.check();
}

#[test]
fn create_opens_what_exists_unless_exclusive() {
    let bed = Bed::new();
    let file = bed.create(ROOT, "file");
    bed.write(file.ino, 0, b"content");
    assert_eq!(bed.create(ROOT, "file").attr.size, 7);
    let exclusive = OpenFlags { exclusive: true, ..Default::default() };
    assert_err!(bed.fs.create(ROOT, b"file", 0o644, exclusive, &USER), FsError::Exists);
    let truncate = OpenFlags { truncate: true, ..Default::default() };
    assert_eq!(bed.fs.create(ROOT, b"file", 0o644, truncate, &USER).unwrap().attr.size, 0);
    bed.mkdir(ROOT, "dir");
    assert_err!(bed.fs.create(ROOT, b"dir", 0o644, OpenFlags::default(), &USER), FsError::IsADirectory);
    bed.check();
}

#[test]
fn set_group_id_directories_pass_their_group_on() {
    let bed = Bed::new();
    let staff = Caller { gid: 50, ..USER };
    let dir = bed.fs.mkdir(ROOT, b"shared", 0o2775, &staff).unwrap();
    assert_eq!(dir.attr.perm, 0o2755);
    let sub = bed.mkdir(dir.ino, "sub");
    assert_eq!((sub.attr.gid, sub.attr.perm), (50, 0o2755));
    let file = bed.create(dir.ino, "file");
    assert_eq!((file.attr.gid, file.attr.perm), (50, 0o644));
    bed.check();
}

#[test]
fn making_and_removing_marks_the_parents_times() {
    let bed = Bed::new();
    let before = bed.fs.getattr(ROOT).unwrap();
    bed.clock.advance(5);
    bed.create(ROOT, "file");
    let made = bed.fs.getattr(ROOT).unwrap();
    assert!(made.mtime > before.mtime && made.ctime == made.mtime && made.size > 0);
    bed.clock.advance(5);
    bed.fs.unlink(ROOT, b"file").unwrap();
    let removed = bed.fs.getattr(ROOT).unwrap();
    assert!(removed.mtime > made.mtime && removed.size == 0);
    bed.check();
}

fn list(bed: &Bed, dir: Ino, cookie: u64, count: usize) -> Vec<(u64, String)> {
    let mut out = Vec::new();
    bed.fs
        .readdir(dir, cookie, &mut |e| {
            if out.len() == count {
                return false;
            }
            out.push((e.cookie, String::from_utf8(e.name.to_vec()).unwrap()));
            true
        })
        .unwrap();
    out
}

#[test]
fn listing_goes_on_where_it_stopped() {
    for bed in [Bed::new(), Bed::colliding(4)] {
        for i in 0..500 {
            bed.create(ROOT, &format!("f{i}"));
        }
        let whole = list(&bed, ROOT, 0, usize::MAX);
        assert_eq!(whole.len(), 502);
        assert_eq!((whole[0].1.as_str(), whole[1].1.as_str()), (".", ".."));
        assert!(whole.windows(2).all(|w| w[0].0 < w[1].0), "cookies ascend");
        assert!(whole.iter().all(|e| i64::try_from(e.0).is_ok()), "cookies are offsets");
        let mut parts = Vec::new();
        while let Some((last, _)) = {
            let p = list(&bed, ROOT, parts.last().map_or(0, |e: &(u64, String)| e.0), 7);
            parts.extend(p.iter().cloned());
            p.last().cloned()
        } {
            assert!(last > 0);
        }
        assert_eq!(parts, whole);
        bed.check();
    }
}

/// Names that stay are listed exactly once, although others come and go between the calls.
#[test]
fn listing_is_stable_while_entries_change() {
    for bed in [Bed::new(), Bed::colliding(3)] {
        for i in 0..100 {
            bed.create(ROOT, &format!("stay{i}"));
            bed.create(ROOT, &format!("go{i}"));
        }
        let (mut seen, mut cookie) = (Vec::new(), 0);
        for round in 0.. {
            let part = list(&bed, ROOT, cookie, 11);
            let Some((last, _)) = part.last() else { break };
            cookie = *last;
            seen.extend(part.into_iter().map(|e| e.1).filter(|n| n.starts_with("stay")));
            for i in (round * 9)..(round * 9 + 9).min(100) {
                bed.fs.unlink(ROOT, format!("go{i}").as_bytes()).unwrap();
                bed.create(ROOT, &format!("new{i}"));
            }
        }
        assert_eq!(seen.len(), 100);
        assert_eq!(seen.iter().collect::<BTreeSet<_>>().len(), 100);
        bed.check();
    }
}

#[test]
fn names_with_one_hash_live_together() {
    let bed = Bed::colliding(0);
    for i in 0..256 {
        bed.create(ROOT, &i.to_string());
    }
    let full = bed.fs.create(ROOT, b"one too many", 0o644, OpenFlags::default(), &USER);
    assert_err!(full, FsError::NoSpace(_));
    for i in (0..256).step_by(3) {
        bed.fs.unlink(ROOT, i.to_string().as_bytes()).unwrap();
    }
    for i in 0..256 {
        assert_eq!(bed.fs.lookup(ROOT, i.to_string().as_bytes()).is_ok(), i % 3 != 0, "{i}");
    }
    bed.create(ROOT, "again");
    bed.check();
    bed.crash().check();
}

#[test]
fn readdirplus_counts_only_what_was_taken() {
    let bed = Bed::new();
    for i in 0..5 {
        bed.create(ROOT, &i.to_string());
    }
    let bed = bed.crash();
    let mut taken = Vec::new();
    bed.fs
        .readdirplus(ROOT, 0, &mut |dirent, entry| {
            if taken.len() == 3 {
                return false;
            }
            if let Some(entry) = entry {
                assert_eq!((entry.ino, entry.attr.kind), (dirent.ino, dirent.kind));
                taken.push(entry.ino);
            }
            true
        })
        .unwrap();
    assert_eq!(taken.len(), 3);
    for name in bed.names(ROOT) {
        bed.fs.unlink(ROOT, name.as_bytes()).unwrap();
    }
    while bed.fs.reap(100).unwrap() {}
    for ino in &taken {
        assert_eq!(bed.fs.getattr(*ino).unwrap().nlink, 0, "still referenced");
        bed.fs.forget(*ino, 1);
    }
    while bed.fs.reap(100).unwrap() {}
    for ino in taken {
        assert_err!(bed.fs.getattr(ino), FsError::Stale);
    }
    assert_eq!(crate::check::check(&*bed.dataset).unwrap().inodes, 1);
    bed.check();
}

#[test]
fn numbers_are_never_used_twice() {
    let bed = Bed::new();
    let mut seen = BTreeSet::new();
    for round in 0..3 {
        let bed = bed.crash();
        for i in 0..1500 {
            assert!(seen.insert((round, bed.create(ROOT, &format!("{round}.{i}")).ino)));
        }
        let later = bed.crash().create(ROOT, "later").ino;
        assert!(seen.iter().filter(|(r, _)| *r == round).all(|(_, ino)| *ino < later));
    }
}

#[test]
fn a_removed_directory_takes_nothing_in() {
    let bed = Bed::new();
    let dir = bed.mkdir(ROOT, "dir");
    bed.fs.opendir(dir.ino).unwrap();
    bed.fs.rmdir(ROOT, b"dir").unwrap();
    assert_err!(bed.fs.mkdir(dir.ino, b"x", 0o755, &USER), FsError::NotFound);
    assert_err!(bed.fs.tmpfile(dir.ino, 0o600, &USER), FsError::NotFound);
    assert_eq!(bed.names(dir.ino), Vec::<String>::new());
    assert_eq!(bed.fs.getattr(dir.ino).unwrap().nlink, 0);
    bed.fs.releasedir(dir.ino);
    bed.check();
}

#[test]
fn each_call_is_one_change() {
    let bed = Bed::new();
    bed.create(ROOT, "reserves numbers");
    let applies = |f: &dyn Fn()| {
        let before = bed.dataset.applies();
        f();
        bed.dataset.applies() - before
    };
    assert_eq!(applies(&|| _ = bed.create(ROOT, "a")), 1);
    assert_eq!(applies(&|| _ = bed.mkdir(ROOT, "d")), 1);
    let (a, d) = (bed.fs.lookup(ROOT, b"a").unwrap().ino, bed.fs.lookup(ROOT, b"d").unwrap().ino);
    assert_eq!(applies(&|| bed.write(a, 5, b"x")), 1);
    assert_eq!(applies(&|| _ = bed.fs.link(a, d, b"b").unwrap()), 1);
    assert_eq!(applies(&|| bed.fs.rename(ROOT, b"a", d, b"b", Default::default()).unwrap()), 0, "one inode");
    assert_eq!(applies(&|| bed.fs.unlink(ROOT, b"a").unwrap()), 1);
    assert_eq!(applies(&|| bed.fs.rename(d, b"b", ROOT, b"c", Default::default()).unwrap()), 1);
    assert_eq!(applies(&|| drop(bed.read(a, 0, 10))), 0);
    assert_eq!(applies(&|| bed.fs.rmdir(ROOT, b"d").unwrap()), 1);
    bed.check();
}

/// Whoever made an image may have put a name at the last place that there is.
#[test]
fn a_listing_of_a_forged_image_ends() {
    let bed = Bed::new();
    let entry = |n: u64| {
        let pointee = Pointee { ino: ROOT.0, kind: FileKind::Directory };
        let place = Key::new(ROOT.0, kind::ENTRY, u64::MAX - n);
        Change::Put(place, join(n.to_string().as_bytes(), &pointee.encode()))
    };
    let count = READDIR_BATCH / 4;
    bed.dataset.apply(&(0..count as u64).map(entry).collect::<Vec<_>>()).unwrap();
    assert_eq!(bed.names(ROOT).len(), count);
}
