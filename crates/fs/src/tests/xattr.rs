use super::{Bed, ROOT, USER, assert_err};
use pagefold_engine::dataset::{Change, Dataset};
use pagefold_engine::types::Key;

use crate::XattrMode::{Create, Replace, Set};
use crate::codec::kind;
use crate::limits::READDIR_BATCH;
use crate::named::join;
use crate::{FileKind, FsError, Ino, OpenFlags, RenameMode, SetAttr};

const ACCESS: &[u8] = b"system.posix_acl_access";
const DEFAULT: &[u8] = b"system.posix_acl_default";

fn set(bed: &Bed, ino: Ino, name: &[u8], value: &[u8]) -> crate::Result<()> {
    bed.fs.setxattr(ino, name, value, Set, false)
}

/// Returns an ACL of entries (tag, permissions, id).
fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut out = 2u32.to_le_bytes().to_vec();
    for (tag, perm, id) in entries {
        out.extend_from_slice(&tag.to_le_bytes());
        out.extend_from_slice(&perm.to_le_bytes());
        out.extend_from_slice(&id.to_le_bytes());
    }
    out
}

const NOBODY: u32 = u32::MAX;

/// u::U u:77:7 g::G m::M o::O
fn named_user(u: u16, g: u16, m: u16, o: u16) -> Vec<u8> {
    acl(&[(1, u, NOBODY), (2, 7, 77), (4, g, NOBODY), (16, m, NOBODY), (32, o, NOBODY)])
}

#[test]
fn attributes_are_kept() {
    for bed in [Bed::new(), Bed::colliding(1)] {
        let f = bed.create(ROOT, "f").ino;
        let big = vec![b'v'; 64 << 10];
        for (name, value) in
            [(&b"user.a"[..], &b""[..]), (b"user.b", &big), (b"trusted.c", b"\0\xFF"), (b"security.d", b"d")]
        {
            set(&bed, f, name, value).unwrap();
            assert_eq!(bed.fs.getxattr(f, name).unwrap(), value);
        }
        assert_err!(bed.fs.setxattr(f, b"user.a", b"x", Create, false), FsError::Exists);
        assert_err!(bed.fs.setxattr(f, b"user.none", b"x", Replace, false), FsError::NoAttr);
        bed.fs.setxattr(f, b"user.a", b"y", Replace, false).unwrap();
        bed.fs.removexattr(f, b"user.b").unwrap();
        assert_err!(bed.fs.removexattr(f, b"user.b"), FsError::NoAttr);
        assert_err!(bed.fs.getxattr(f, b"user.b"), FsError::NoAttr);
        let crashed = bed.crash();
        let list = crashed.fs.listxattr(f).unwrap();
        let mut names: Vec<_> = list.split(|b| *b == 0).filter(|n| !n.is_empty()).collect();
        names.sort_unstable();
        assert_eq!(names, [&b"security.d"[..], b"trusted.c", b"user.a"]);
        assert_eq!(crashed.fs.getxattr(f, b"user.a").unwrap(), b"y");
        bed.check();
    }
}

#[test]
fn attributes_have_bounds() {
    let bed = Bed::new();
    let f = bed.create(ROOT, "f").ino;
    assert_err!(set(&bed, f, b"user.x", &vec![0; (64 << 10) + 1]), FsError::AttrTooBig);
    assert_err!(set(&bed, f, &[b'u'; 256], b""), FsError::NameTooLong);
    assert_err!(set(&bed, f, b"user.", b""), FsError::Invalid(_));
    assert_err!(set(&bed, f, b"system.other", b""), FsError::Unsupported(_));
    assert_err!(set(&bed, f, b"user.a\0b", b""), FsError::Invalid(_));
    let mut count = 0;
    let full = loop {
        match set(&bed, f, format!("user.{count:0200}").as_bytes(), b"v") {
            Ok(()) => count += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(full, FsError::NoSpace(_)));
    let list = bed.fs.listxattr(f).unwrap();
    assert!(list.len() <= 64 << 10 && list.iter().filter(|b| **b == 0).count() == count);
    // The kernel lists none of more than 64 KiB, and some names are not stored as others are.
    set(&bed, f, ACCESS, &named_user(7, 5, 6, 4)).unwrap();
    set(&bed, f, b"user.pagefold.recordsize", b"64K").unwrap();
    set(&bed, f, b"user.pagefold.compression", b"lz4").unwrap();
    let list = bed.fs.listxattr(f).unwrap();
    assert!(
        list.len() <= 64 << 10 && list.iter().filter(|b| **b == 0).count() == count + 3,
        "{}",
        list.len()
    );
    bed.check();
}

#[test]
fn an_access_acl_and_the_mode_agree() {
    let bed = Bed::new();
    let f = bed.create(ROOT, "f").ino;
    let perm = || bed.fs.getattr(f).unwrap().perm;
    set(&bed, f, ACCESS, &named_user(7, 5, 6, 4)).unwrap();
    assert_eq!(perm(), 0o764, "the group bits are the mask");
    assert_eq!(bed.fs.getxattr(f, ACCESS).unwrap(), named_user(7, 5, 6, 4));
    bed.fs.setattr(f, &SetAttr { mode: Some(0o4610), ..Default::default() }).unwrap();
    assert_eq!(bed.fs.getxattr(f, ACCESS).unwrap(), named_user(6, 5, 1, 0));
    assert_eq!(perm(), 0o4610);
    bed.check();
    set(&bed, f, ACCESS, &acl(&[(1, 6, NOBODY), (4, 4, NOBODY), (32, 0, NOBODY)])).unwrap();
    assert_eq!(perm(), 0o4640);
    assert_err!(bed.fs.getxattr(f, ACCESS), FsError::NoAttr);
    assert_eq!(bed.fs.listxattr(f).unwrap(), b"", "one that says no more than the mode is not kept");
    bed.fs.setattr(f, &SetAttr { mode: Some(0o2755), ..Default::default() }).unwrap();
    bed.fs.setxattr(f, ACCESS, &named_user(7, 5, 5, 5), Set, true).unwrap();
    assert_eq!(perm(), 0o755, "kill_sgid");
    bed.fs.removexattr(f, ACCESS).unwrap();
    bed.clock.advance(1_000);
    let before = bed.fs.getattr(f).unwrap();
    bed.fs.removexattr(f, ACCESS).unwrap();
    assert_eq!(bed.fs.getattr(f).unwrap(), before, "there was none: nothing changes");
    assert_err!(set(&bed, f, DEFAULT, &named_user(7, 5, 5, 5)), FsError::Access);
    let link = bed.fs.symlink(ROOT, b"l", b"t", &USER).unwrap().ino;
    assert_err!(set(&bed, link, ACCESS, &named_user(7, 5, 5, 5)), FsError::Unsupported(_));
    bed.check();
}

#[test]
fn malformed_acls_are_refused() {
    let bed = Bed::new();
    let (u, g, o) = ((1, 7, NOBODY), (4, 5, NOBODY), (32, 5, NOBODY));
    let long: Vec<_> =
        std::iter::once(u).chain((0..2000).map(|i| (2, 1, i))).chain([g, (16, 7, 0), o]).collect();
    for bad in [
        acl(&[u, g]),
        acl(&[u, o, g]),
        acl(&[u, u, g, o]),
        acl(&[u, (2, 1, 5), g, o]),
        acl(&[u, g, (16, 1, 0), (16, 1, 0), o]),
        acl(&[u, g, (32, 8, NOBODY)]),
        acl(&[u, g, o, (64, 1, 0)]),
        acl(&long),
        [acl(&[u, g, o]), vec![0]].concat(),
        vec![1, 0, 0, 0, 1, 0, 0, 0],
        vec![2],
    ] {
        assert_err!(set(&bed, ROOT, ACCESS, &bad), FsError::Invalid(_));
    }
    bed.check();
}

#[test]
fn a_default_acl_is_inherited_in_place_of_the_umask() {
    let bed = Bed::new();
    let dir = bed.mkdir(ROOT, "dir").ino;
    let default = named_user(7, 5, 7, 4);
    set(&bed, dir, DEFAULT, &default).unwrap();
    assert_eq!(bed.fs.getattr(dir).unwrap().perm, 0o755, "its own mode stays");
    let file = bed.fs.create(dir, b"f", 0o666, OpenFlags::default(), &USER).unwrap();
    assert_eq!(file.attr.perm, 0o664, "no umask");
    assert_eq!(bed.fs.getxattr(file.ino, ACCESS).unwrap(), named_user(6, 5, 6, 4));
    assert_err!(bed.fs.getxattr(file.ino, DEFAULT), FsError::NoAttr);
    let sub = bed.fs.mkdir(dir, b"sub", 0o750, &USER).unwrap();
    assert_eq!(sub.attr.perm, 0o750);
    assert_eq!(bed.fs.getxattr(sub.ino, ACCESS).unwrap(), named_user(7, 5, 5, 0));
    assert_eq!(bed.fs.getxattr(sub.ino, DEFAULT).unwrap(), default);
    let link = bed.fs.symlink(dir, b"l", b"t", &USER).unwrap();
    assert_eq!((link.attr.perm, bed.fs.listxattr(link.ino).unwrap().len()), (0o777, 0));
    let tmp = bed.fs.tmpfile(dir, 0o600, &USER).unwrap();
    assert_eq!(tmp.attr.perm, 0o600);
    assert_eq!(bed.fs.getxattr(tmp.ino, ACCESS).unwrap(), named_user(6, 5, 0, 0));
    bed.check();
    set(&bed, dir, DEFAULT, &acl(&[(1, 7, NOBODY), (4, 0, NOBODY), (32, 0, NOBODY)])).unwrap();
    let plain = bed.fs.mknod(dir, b"p", FileKind::Fifo, 0o666, 0, &USER).unwrap();
    assert_eq!((plain.attr.perm, bed.fs.listxattr(plain.ino).unwrap().len()), (0o600, 0));
    bed.fs.removexattr(dir, DEFAULT).unwrap();
    assert_eq!(bed.create(dir, "q").attr.perm, 0o644);
    bed.check();
    bed.crash().check();
}

#[test]
fn the_codec_is_inherited_and_kept_beside_the_pages() {
    const NAME: &[u8] = b"user.pagefold.compression";
    let stored = |bed: &Bed| {
        let of = |(key, _): &(Key, Vec<u8>)| key.kind == Key::COMPRESSION;
        let found = bed.dataset.values().into_iter().filter(of);
        found.map(|(key, value)| (key.object, value)).collect::<Vec<_>>()
    };
    let bed = Bed::new();
    let dir = bed.mkdir(ROOT, "dir").ino;
    set(&bed, dir, NAME, b"ZSTD-9").unwrap();
    let inner = bed.mkdir(dir, "inner").ino;
    let f = bed.create(inner, "f").ino;
    let other = bed.create(ROOT, "other").ino;
    for ino in [dir, inner, f] {
        assert_eq!(bed.fs.getxattr(ino, NAME).unwrap(), b"zstd-9");
        assert_eq!(bed.fs.listxattr(ino).unwrap(), [NAME, b"\0"].concat());
    }
    assert_err!(bed.fs.getxattr(other, NAME), FsError::NoAttr);
    for wrong in [&b"zstd-20"[..], b"", b"best", b"\xFF"] {
        assert_err!(set(&bed, f, NAME, wrong), FsError::Invalid(_));
    }
    assert_err!(bed.fs.setxattr(f, NAME, b"lz4", Create, false), FsError::Exists);
    assert_err!(bed.fs.setxattr(other, NAME, b"lz4", Replace, false), FsError::NoAttr);
    // The codec is stored for the data object that the file has at the time, and only as long as it is the file's.
    assert_eq!(stored(&bed), []);
    bed.write(f, 0, b"data");
    assert_eq!(stored(&bed), [(f.0, vec![25])]);
    bed.fs.rename(inner, b"f", ROOT, b"moved", RenameMode::Replace).unwrap();
    set(&bed, f, NAME, b"off").unwrap();
    assert_eq!(stored(&bed), [(f.0, vec![1])]);
    bed.fs.setattr(f, &SetAttr { size: Some(0), ..SetAttr::default() }).unwrap();
    assert_eq!(stored(&bed), []);
    bed.write(f, 0, b"again");
    assert!(stored(&bed).iter().all(|(object, codec)| *object != f.0 && codec == &[1]));
    bed.check();
    let crashed = bed.crash();
    assert_eq!(crashed.fs.getxattr(f, NAME).unwrap(), b"off");
    crashed.fs.removexattr(f, NAME).unwrap();
    assert_err!(crashed.fs.removexattr(f, NAME), FsError::NoAttr);
    assert_eq!(stored(&crashed), []);
    set(&crashed, f, NAME, b"page").unwrap();
    crashed.fs.unlink(ROOT, b"moved").unwrap();
    crashed.fs.forget(f, 1);
    while crashed.fs.reap(100).unwrap() {}
    crashed.check();
}

/// Whoever made an image may have put attributes anywhere, and any number of them.
#[test]
fn attributes_of_a_forged_image_are_listed_to_an_end() {
    let bed = Bed::new();
    let f = bed.create(ROOT, "f").ino;
    set(&bed, f, b"user.a", b"v").unwrap();
    let put = |place: u64| {
        let name = format!("user.{place:0200}");
        Change::Put(Key::new(f.0, kind::XATTR, place), join(name.as_bytes(), b""))
    };
    let count = READDIR_BATCH as u64 - 1;
    bed.dataset.apply(&(0..count).map(|n| put(u64::MAX - n)).collect::<Vec<_>>()).unwrap();
    let list = bed.fs.listxattr(f).unwrap();
    assert_eq!(list.iter().filter(|b| **b == 0).count(), READDIR_BATCH);
    bed.dataset.apply(&(0..1000).map(|n| put(n << 9)).collect::<Vec<_>>()).unwrap();
    assert_err!(bed.fs.listxattr(f), FsError::Corrupt { .. });
}

/// A file with data has a recordsize, whoever decided it.
#[test]
fn the_recordsize_of_a_file_with_data_is_replaced_and_not_created() {
    const NAME: &[u8] = b"user.pagefold.recordsize";
    let bed = Bed::new();
    let f = bed.create(ROOT, "f").ino;
    assert_err!(bed.fs.setxattr(f, NAME, b"16K", Replace, false), FsError::NoAttr);
    bed.write(f, 0, b"data");
    assert_eq!(bed.fs.getxattr(f, NAME).unwrap(), b"16384");
    assert_err!(bed.fs.setxattr(f, NAME, b"16K", Create, false), FsError::Exists);
    assert_err!(bed.fs.setxattr(f, NAME, b"8K", Replace, false), FsError::Invalid(_));
    bed.fs.setxattr(f, NAME, b"16K", Replace, false).unwrap();
    bed.check();
}
