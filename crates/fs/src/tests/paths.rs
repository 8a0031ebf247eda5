use std::collections::{BTreeMap, BTreeSet};

use pagefold_engine::pool::Unreadable;

use super::{Bed, ROOT};
use crate::codec::Inode;
use crate::paths::of_objects;
use crate::{Ino, WriteFlags};

const ENOUGH: usize = 1 << 20;

fn filled(bed: &Bed, dir: Ino, name: &str) -> (Ino, u64) {
    let ino = bed.create(dir, name).ino;
    bed.fs.write(ino, 0, b"data", WriteFlags::default()).unwrap();
    (ino, bed.fs.node(ino).unwrap().snapshot().object)
}

fn told(bed: &Bed, objects: &[u64], most: usize) -> BTreeMap<u64, String> {
    let objects: BTreeSet<u64> = objects.iter().copied().collect();
    let found = of_objects(&*bed.dataset, &objects, most);
    found.into_iter().map(|(object, path)| (object, String::from_utf8(path).unwrap())).collect()
}

#[test]
fn files_are_found_by_their_objects_wherever_they_are() {
    let bed = Bed::new();
    let a = bed.mkdir(ROOT, "a").ino;
    let b = bed.mkdir(a, "b").ino;
    for n in 0..3000 {
        bed.create(a, &format!("f{n}"));
    }
    let (top, first) = filled(&bed, ROOT, "top");
    let (_, second) = filled(&bed, b, "deep");
    let (_, third) = filled(&bed, b, "gone");
    let all = told(&bed, &[first, second, third, 1 << 40], ENOUGH);
    let expected = [(first, "top"), (second, "a/b/deep"), (third, "a/b/gone")];
    assert_eq!(all, expected.map(|(object, path)| (object, path.to_owned())).into());
    // A file is found by the name that it has now; an unlinked one has none.
    bed.fs.rename(b, b"deep", ROOT, b"moved", crate::RenameMode::Replace).unwrap();
    bed.fs.unlink(b, b"gone").unwrap();
    assert_eq!(told(&bed, &[second, third], ENOUGH), [(second, "moved".to_owned())].into());
    // No more values are looked at than are allowed.
    assert!(told(&bed, &[second], 100).is_empty());
    // A damaged stretch is passed over.
    let key = Inode::key(top.0);
    let behind = pagefold_engine::Key { offset: 1, ..key };
    bed.dataset.damage(Unreadable { keys: vec![(key, behind)], ..Unreadable::default() });
    assert_eq!(told(&bed, &[first, second], ENOUGH), [(second, "moved".to_owned())].into());
}
