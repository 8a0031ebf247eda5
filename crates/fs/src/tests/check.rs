use pagefold_engine::dataset::{Change, Dataset};
use pagefold_engine::types::Key;

use super::{Bed, ROOT, USER, pattern};
use crate::check::check;
use crate::codec::{Inode, Pointee, kind};
use crate::named::join;
use crate::testing::MemDataset;
use crate::{FileKind, FsError, Ino, Time, XattrMode};

/// Returns a file system with some of everything, and the numbers of a directory, a file in it and a link.
fn sample() -> (Bed, Ino, Ino, Ino) {
    let bed = Bed::new();
    let dir = bed.mkdir(ROOT, "dir").ino;
    let file = bed.create(dir, "file").ino;
    bed.write(file, 0, &pattern(1, 40_000));
    bed.fs.setxattr(file, b"user.x", b"y", XattrMode::Set, false).unwrap();
    let link = bed.fs.symlink(ROOT, b"link", b"dir/file", &USER).unwrap().ino;
    bed.check();
    (bed, dir, file, link)
}

/// A change that spoils stored values.
type Damage = Box<dyn Fn(&Bed)>;

fn edit(bed: &Bed, ino: Ino, change: impl Fn(&mut Inode)) {
    let mut inode = Inode::decode(ino.0, &bed.dataset.get(&Inode::key(ino.0)).unwrap().unwrap()).unwrap();
    change(&mut inode);
    bed.dataset.apply(&[inode.put(ino.0)]).unwrap();
}

#[test]
fn a_report_counts() {
    let (bed, ..) = sample();
    let report = check(&*bed.dataset).unwrap();
    assert_eq!((report.inodes, report.directories, report.entries, report.xattrs), (4, 2, 3, 1));
    assert_eq!(report.stored_bytes, 3 * 16384);
    assert!(matches!(check(&MemDataset::new(1)), Err(FsError::NotFound)));
}

/// Each kind of damage is found: every check can fail.
#[test]
fn damage_is_found() {
    let (_, dir, file, link) = sample();
    let key = |ino: Ino, kind, offset| Key::new(ino.0, kind, offset);
    let entry = join(b"stray", &Pointee { ino: file.0, kind: FileKind::Regular }.encode());
    let damages: Vec<(&str, Damage)> = vec![
        ("links", Box::new(move |b| edit(b, file, |i| i.nlink = 2))),
        ("on the list of orphans", Box::new(move |b| edit(b, file, |i| i.nlink = 0))),
        ("links", Box::new(move |b| edit(b, ROOT, |i| i.nlink = 9))),
        ("entries", Box::new(move |b| edit(b, dir, |i| i.entries = 2))),
        ("displaced", Box::new(move |b| edit(b, dir, |i| i.displaced = 1))),
        ("bytes of entries", Box::new(move |b| edit(b, dir, |i| i.size += 1))),
        ("parent", Box::new(move |b| edit(b, dir, |i| i.object = file.0))),
        ("attributes' names", Box::new(move |b| edit(b, file, |i| i.xattr_bytes = 0))),
        ("attribute flags", Box::new(move |b| edit(b, file, |i| i.flags |= 8))),
        ("behind its end", Box::new(move |b| edit(b, file, |i| i.size = 10))),
        ("is free", Box::new(move |b| edit(b, file, |i| i.object = 1 << 40))),
        (
            "does not exist",
            Box::new(move |b| b.dataset.apply(&[Change::Delete(Inode::key(file.0))]).unwrap()),
        ),
        (
            "link target",
            Box::new(move |b| b.dataset.apply(&[Change::Delete(key(link, kind::TARGET, 0))]).unwrap()),
        ),
        (
            "version",
            Box::new(move |b| b.dataset.apply(&[Change::Put(Inode::key(file.0), vec![9; 104])]).unwrap()),
        ),
        (
            "unknown key",
            Box::new(move |b| b.dataset.apply(&[Change::Put(key(file, 0x77, 0), vec![])]).unwrap()),
        ),
        (
            "not where it is looked for",
            Box::new(move |b| {
                b.dataset.apply(&[Change::Put(key(dir, kind::ENTRY, 1 << 62), entry.clone())]).unwrap();
            }),
        ),
        (
            "longer than its value",
            Box::new(move |b| {
                b.dataset.apply(&[Change::Put(key(dir, kind::ENTRY, 1 << 62), vec![200])]).unwrap();
            }),
        ),
        ("listed as an orphan", Box::new(|b| b.dataset.apply(&[crate::orphan::put_inode(999)]).unwrap())),
        (
            "same data object",
            Box::new(move |b| {
                let other = b.create(ROOT, "other").ino;
                b.write(other, 0, b"x");
                edit(b, other, |i| i.object = file.0);
            }),
        ),
        (
            "kind",
            Box::new(move |b| {
                let place = b.fs.places.first(b"file");
                let entry = join(b"file", &Pointee { ino: file.0, kind: FileKind::Fifo }.encode());
                b.dataset.apply(&[Change::Put(key(dir, kind::ENTRY, place), entry)]).unwrap();
            }),
        ),
        (
            "cannot be reached",
            Box::new(move |b| {
                let (x, y) = (b.mkdir(ROOT, "x").ino, b.mkdir(ROOT, "y").ino);
                let [px, py] = [x, y].map(|d| {
                    b.dataset
                        .get(&key(ROOT, kind::ENTRY, b.fs.places.first(if d == x { b"x" } else { b"y" })))
                        .unwrap()
                        .unwrap()
                });
                let (fx, fy) = (b.fs.places.first(b"x"), b.fs.places.first(b"y"));
                b.dataset
                    .apply(&[
                        Change::Delete(key(ROOT, kind::ENTRY, fx)),
                        Change::Delete(key(ROOT, kind::ENTRY, fy)),
                        Change::Put(key(y, kind::ENTRY, fx), px),
                        Change::Put(key(x, kind::ENTRY, fy), py),
                    ])
                    .unwrap();
                edit(b, x, |i| i.object = y.0);
                edit(b, y, |i| i.object = x.0);
            }),
        ),
    ];
    for (expected, damage) in damages {
        let (bed, ..) = sample();
        damage(&bed);
        let report = check(&*bed.dataset).unwrap();
        assert!(report.problems.iter().any(|p| p.contains(expected)), "{expected}: {:?}", report.problems);
        assert_eq!(report.problem_count as usize, report.problems.len());
    }
}

/// Whoever made an image may have made many directories that lie below themselves: each is passed once.
#[test]
fn many_circles_of_directories_are_found() {
    const CIRCLES: u64 = 50_000;
    let bed = Bed::new();
    let dir = |parent: u64| {
        let inode = Inode::new(FileKind::Directory, 0o755, Time::default());
        Inode { object: parent, entries: 1, ..inode }
    };
    let name = |dir: u64, ino: u64| {
        let pointee = Pointee { ino, kind: FileKind::Directory };
        Change::Put(Key::new(dir, kind::ENTRY, 256), join(b"x", &pointee.encode()))
    };
    let pairs = (0..CIRCLES).map(|n| (1000 + 2 * n, 1001 + 2 * n));
    let circle = |(a, b): (u64, u64)| [dir(b).put(a), dir(a).put(b), name(a, b), name(b, a)];
    bed.dataset.apply(&pairs.flat_map(circle).collect::<Vec<_>>()).unwrap();
    assert!(check(&*bed.dataset).unwrap().problem_count >= 2 * CIRCLES);
}
