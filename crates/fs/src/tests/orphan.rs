use pagefold_engine::dataset::{Change, Dataset};
use pagefold_engine::memory::Gauge;
use pagefold_engine::pool::Unreadable;
use pagefold_engine::types::Key;

use std::sync::Arc;

use parking_lot::Mutex;

use super::{Bed, ROOT, USER, assert_err, pattern};
use crate::codec::Inode;
use crate::inode::NODE_BYTES;
use crate::limits::INODE_BYTES;
use crate::{Fs, FsError, FsOptions, Ino, OpenFlags, XattrMode};

#[test]
fn open_unlinked_files_live_until_released() {
    let bed = Bed::new();
    let f = bed.create(ROOT, "f").ino;
    bed.write(f, 0, &pattern(1, 50_000));
    bed.fs.open(f, OpenFlags::default()).unwrap();
    bed.fs.unlink(ROOT, b"f").unwrap();
    bed.fs.forget(f, 1);
    bed.fs.release(f);
    assert!(!bed.fs.reap(1000).unwrap());
    bed.write(f, 50_000, b"still");
    assert_eq!(bed.read(f, 49_999, 9).len(), 6);
    bed.check();
    bed.fs.release(f);
    while bed.fs.reap(1).unwrap() {}
    assert_eq!(bed.dataset.pages(), 0);
    assert_err!(bed.fs.getattr(f), FsError::Stale);
    bed.check();
}

#[test]
fn a_crash_makes_orphans_of_open_unlinked_files() {
    let bed = Bed::new();
    let keep = bed.create(ROOT, "keep").ino;
    bed.write(keep, 0, b"kept");
    for i in 0..300 {
        let name = format!("f{i}");
        let f = bed.create(ROOT, &name).ino;
        bed.write(f, 0, &pattern(i, 20_000));
        bed.fs.setxattr(f, b"user.x", b"y", XattrMode::Set, false).unwrap();
        bed.fs.unlink(ROOT, name.as_bytes()).unwrap();
    }
    assert!(!bed.fs.reap(1_000_000).unwrap());
    assert_eq!(bed.dataset.pages(), 601, "all are open");
    let bed = bed.crash();
    let mut rounds = 0;
    while bed.fs.reap(100).unwrap() {
        rounds += 1;
        bed.crash().check();
    }
    assert!(rounds > 2, "slices are bounded");
    assert_eq!((bed.dataset.pages(), bed.read(keep, 0, 9)), (1, b"kept".to_vec()));
    let report = crate::check::check(&*bed.dataset).unwrap();
    assert_eq!((report.inodes, report.orphans, report.xattrs), (2, 0, 0));
}

#[test]
fn tmpfiles_are_orphans_until_named() {
    let bed = Bed::new();
    let t = bed.fs.tmpfile(ROOT, 0o600, &USER).unwrap();
    assert_eq!(t.attr.nlink, 0);
    bed.write(t.ino, 0, b"content");
    bed.check();
    let crashed = bed.crash();
    crashed.check();
    assert_eq!(crashed.dataset.pages(), 0);
    let named = bed.fs.link(t.ino, ROOT, b"named").unwrap();
    assert_eq!((named.ino, named.attr.nlink), (t.ino, 1));
    bed.fs.release(t.ino);
    bed.fs.forget(t.ino, 2);
    bed.check();
    assert_eq!(bed.crash().read(t.ino, 0, 99), b"content");
    let u = bed.fs.tmpfile(ROOT, 0o600, &USER).unwrap();
    bed.write(u.ino, 0, b"more");
    bed.fs.release(u.ino);
    bed.fs.forget(u.ino, 1);
    bed.check();
    assert_eq!(bed.dataset.pages(), 1);
}

/// A reaper that read the list before the file got its name must not remove the file.
#[test]
fn what_has_a_name_is_never_reaped() {
    let bed = Bed::new();
    let f = bed.create(ROOT, "f").ino;
    bed.write(f, 0, b"precious");
    bed.fs.release(f);
    bed.fs.forget(f, 1);
    let key = pagefold_engine::Key::new(0, crate::codec::kind::ORPHAN_INODE, f.0);
    bed.dataset.apply(&[Change::Put(key, vec![1])]).unwrap();
    assert!(!bed.fs.reap(1000).unwrap());
    assert_eq!((bed.read(f, 0, 99), bed.names(ROOT)), (b"precious".to_vec(), vec!["f".to_owned()]));
    bed.dataset.apply(&[Change::Delete(key)]).unwrap();
    bed.check();
}

/// Files get names while the list of orphans is worked off.
#[test]
fn naming_and_reaping_at_once() {
    let bed = Bed::new();
    std::thread::scope(|s| {
        let namer = s.spawn(|| {
            for i in 0..2000 {
                let t = bed.fs.tmpfile(ROOT, 0o600, &USER).unwrap();
                bed.write(t.ino, 0, b"content");
                bed.fs.link(t.ino, ROOT, i.to_string().as_bytes()).unwrap();
                bed.fs.release(t.ino);
                bed.fs.forget(t.ino, 2);
            }
        });
        while !namer.is_finished() {
            bed.fs.reap(1000).unwrap();
        }
    });
    assert_eq!(bed.dataset.pages(), 2000);
    bed.check();
}

#[test]
fn counts_of_a_confused_kernel_do_no_harm() {
    let bed = Bed::new();
    let f = bed.create(ROOT, "f").ino;
    bed.fs.forget(f, u64::MAX);
    bed.fs.release(f);
    bed.fs.release(f);
    bed.fs.forget(crate::Ino(12345), 1);
    assert_eq!(bed.fs.getattr(f).unwrap().nlink, 1);
    assert_eq!(bed.fs.lookup(ROOT, b"f").unwrap().ino, f);
    bed.fs.unlink(ROOT, b"f").unwrap();
    bed.check();
    assert_eq!(bed.fs.getattr(f).unwrap().nlink, 0, "looked up once");
}

#[test]
fn the_cache_of_inodes_is_bounded() {
    let bed = Bed::new();
    for i in 0..150_000 {
        let entry = bed.create(ROOT, &i.to_string());
        bed.fs.release(entry.ino);
        bed.fs.forget(entry.ino, 1);
    }
    let bound = (INODE_BYTES / NODE_BYTES) as usize;
    assert!(bed.fs.nodes.len() < bound + bound / 3, "{} of {bound}", bed.fs.nodes.len());
    assert_eq!(bed.fs.getattr(ROOT).unwrap().nlink, 2);
    bed.check();
}

/// A million files that the kernel knows cost as much memory as a thousand do.
#[test]
fn inodes_that_the_kernel_knows_are_not_kept() {
    let gauge = Arc::new(Gauge::new(1000 * NODE_BYTES));
    let bed = Bed::with(u64::MAX, FsOptions { inodes: Some(Arc::clone(&gauge)), ..FsOptions::default() });
    bed.fs.ask_kernel(Arc::new(|_| true));
    let mut inos = Vec::new();
    for i in 0..20_000 {
        let name = i.to_string();
        let ino = bed.create(ROOT, &name).ino;
        bed.fs.release(ino);
        bed.fs.lookup(ROOT, name.as_bytes()).unwrap();
        inos.push(ino);
        assert!(gauge.bytes() < 2000 * NODE_BYTES, "{} inodes", gauge.bytes() / NODE_BYTES);
    }
    assert_eq!(gauge.bytes(), bed.fs.nodes.len() as u64 * NODE_BYTES);
    // The kernel can still use their numbers.
    for ino in inos {
        assert_eq!(bed.fs.getattr(ino).unwrap().nlink, 1);
    }
    let open = bed.create(ROOT, "open").ino;
    bed.write(open, 0, b"data");
    bed.fs.unlink(ROOT, b"open").unwrap();
    for i in 0..20_000 {
        bed.fs.lookup(ROOT, i.to_string().as_bytes()).unwrap();
    }
    assert_eq!(bed.read(open, 0, 4), b"data");
    bed.fs.release(open);
    drop(bed);
    assert_eq!(gauge.bytes(), 0);
}

/// A file system of which many files are looked at takes memory from an idle one.
#[test]
fn mounts_share_the_memory_for_inodes() {
    let gauge = Arc::new(Gauge::new(1000 * NODE_BYTES));
    let options = FsOptions { inodes: Some(Arc::clone(&gauge)), ..FsOptions::default() };
    let beds = [Bed::with(u64::MAX, options.clone()), Bed::with(u64::MAX, options)];
    for bed in &beds {
        bed.fs.ask_kernel(Arc::new(|_| true));
        for i in 0..3000 {
            bed.fs.release(bed.create(ROOT, &i.to_string()).ino);
        }
    }
    let before = beds[0].fs.nodes.len();
    assert!(before > 500);
    for _ in 0..2 {
        beds[0].fs.trim_inodes();
        for i in 0..900 {
            beds[1].fs.lookup(ROOT, i.to_string().as_bytes()).unwrap();
        }
    }
    assert!(beds[0].fs.nodes.len() < 10, "{}", beds[0].fs.nodes.len());
    assert!(gauge.bytes() < 2000 * NODE_BYTES);
}

/// Files are deleted while they are open, or only known to the kernel, and many others drive them out of the cache.
#[test]
fn unlinked_files_outlive_the_cache() {
    let gauge = Arc::new(Gauge::new(100 * NODE_BYTES));
    let bed = Bed::with(u64::MAX, FsOptions { inodes: Some(gauge), ..FsOptions::default() });
    let held: Arc<Mutex<Vec<u64>>> = Arc::default();
    let kernel = Arc::clone(&held);
    bed.fs.ask_kernel(Arc::new(move |ino: Ino| kernel.lock().contains(&ino.0)));
    let mapped = bed.create(ROOT, "mapped").ino;
    bed.write(mapped, 0, &pattern(1, 30_000));
    bed.fs.release(mapped);
    held.lock().push(mapped.0);
    bed.fs.unlink(ROOT, b"mapped").unwrap();
    for i in 0..5000 {
        bed.fs.release(bed.create(ROOT, &i.to_string()).ino);
    }
    assert!(bed.fs.nodes.peek(mapped.0).is_none(), "this test is about one that is not in memory");
    while bed.fs.reap(1000).unwrap() {}
    assert_eq!(bed.read(mapped, 0, 30_000), pattern(1, 30_000));
    held.lock().clear();
    bed.fs.forget(mapped, 1);
    while bed.fs.reap(1000).unwrap() {}
    assert_eq!(bed.dataset.pages(), 0);
    assert_err!(bed.fs.getattr(mapped), FsError::Stale);
    bed.check();
}

/// Returns the file system as it is found by a process that goes on with the mount of one that died; the kernel refers
/// to `held`.
fn resumed(bed: &Bed, held: &Arc<Mutex<Vec<u64>>>) -> Bed {
    let held = Arc::clone(held);
    let dataset = Arc::new(bed.dataset.crashed());
    let options = FsOptions { resumed: true, ..FsOptions::default() };
    let fs = Fs::mount(dataset.clone(), bed.clock.clone(), options).unwrap();
    // A write of another dataset that finds no space has everything freed that can be.
    dataset.reapers().unwrap().reap_some();
    fs.ask_kernel(Arc::new(move |ino: Ino| held.lock().contains(&ino.0)));
    Bed { fs, dataset, clock: bed.clock.clone() }
}

#[test]
fn what_the_kernel_has_from_before_is_not_reaped() {
    let before = Bed::new();
    let made = ["orphan", "open", "closed"].map(|name| {
        let ino = before.create(ROOT, name).ino;
        before.write(ino, 0, &pattern(1, 30_000));
        ino
    });
    let [orphan, open, closed] = made;
    before.fs.unlink(ROOT, b"orphan").unwrap();
    let held = Arc::new(Mutex::new(vec![orphan.0, open.0]));
    let bed = resumed(&before, &held);
    while bed.fs.reap(1000).unwrap() {}
    assert_eq!(bed.read(orphan, 0, 30_000), pattern(1, 30_000));
    bed.write(orphan, 30_000, b"still");
    for name in ["open", "closed"] {
        bed.fs.lookup(ROOT, name.as_bytes()).unwrap();
        bed.fs.unlink(ROOT, name.as_bytes()).unwrap();
    }
    // The kernel gives back a reference and still refers to the first file, but not to the second.
    bed.fs.forget(open, 1);
    bed.fs.forget(closed, 1);
    while bed.fs.reap(1000).unwrap() {}
    assert_eq!(bed.read(open, 0, 30_000), pattern(1, 30_000));
    assert_err!(bed.fs.getattr(closed), FsError::Stale);
    held.lock().clear();
    bed.fs.forget(orphan, 1);
    bed.fs.forget(open, 3);
    while bed.fs.reap(1000).unwrap() {}
    assert_eq!(bed.dataset.pages(), 0);
    bed.check();
}

#[test]
fn what_nobody_has_from_before_is_reaped_at_once() {
    let before = Bed::new();
    let gone = before.create(ROOT, "gone").ino;
    before.write(gone, 0, b"data");
    before.fs.unlink(ROOT, b"gone").unwrap();
    let bed = resumed(&before, &Arc::default());
    while bed.fs.reap(1000).unwrap() {}
    assert_eq!(bed.dataset.pages(), 0);
    bed.check();
}

#[test]
fn files_of_the_kernel_that_were_deleted_go_with_its_last_reference() {
    let before = Bed::new();
    let file = before.create(ROOT, "file").ino;
    let held = Arc::new(Mutex::new(vec![file.0]));
    let bed = resumed(&before, &held);
    bed.write(file, 0, b"data");
    bed.fs.unlink(ROOT, b"file").unwrap();
    while bed.fs.reap(1000).unwrap() {}
    assert_eq!(bed.dataset.pages(), 1);
    // The kernel gives back one of several references, then all: it is asked again each time, and not in between.
    bed.fs.forget(file, 1);
    while bed.fs.reap(1000).unwrap() {}
    assert_eq!(bed.dataset.pages(), 1);
    held.lock().clear();
    while bed.fs.reap(1000).unwrap() {}
    assert_eq!(bed.dataset.pages(), 1, "nobody has said that it is worth asking");
    bed.fs.forget(file, 1);
    while bed.fs.reap(1000).unwrap() {}
    assert_eq!(bed.dataset.pages(), 0);
    bed.check();
}

/// Nothing but the answer leads to a file without a name, and the process that made it died before it could answer.
#[test]
fn a_file_without_a_name_waits_for_the_answer_of_the_next_process() {
    let before = Bed::new();
    let made = before.fs.tmpfile(ROOT, 0o600, &USER).unwrap().ino;
    let dataset = Arc::new(before.dataset.crashed());
    let options = FsOptions { resumed: true, ..FsOptions::default() };
    let fs = Fs::mount(dataset.clone(), before.clock.clone(), options).unwrap();
    fs.open_again(made).unwrap();
    fs.ask_kernel(Arc::new(|_| false));
    let bed = Bed { fs, dataset, clock: before.clock.clone() };
    while bed.fs.reap(1000).unwrap() {}
    assert_eq!(bed.fs.entry_again(Some(made), ROOT, b"", false).unwrap().attr.nlink, 0);
    bed.write(made, 0, b"content");
    bed.check();
    bed.fs.release(made);
    while bed.fs.reap(1000).unwrap() {}
    assert_err!(bed.fs.getattr(made), FsError::Stale);
    bed.check();
}

#[test]
fn a_damaged_deleted_file_keeps_nothing_else_from_being_freed() {
    let bed = Bed::new();
    let [damaged, _] = ["damaged", "other"].map(|name| {
        let ino = bed.create(ROOT, name).ino;
        bed.write(ino, 0, &pattern(1, 30_000));
        bed.fs.unlink(ROOT, name.as_bytes()).unwrap();
        bed.fs.release(ino);
        bed.fs.forget(ino, 1);
        ino
    });
    let key = Inode::key(damaged.0);
    let behind = Key { offset: 1, ..key };
    bed.dataset.damage(Unreadable { keys: vec![(key, behind)], ..Unreadable::default() });
    while bed.fs.reap(1).is_ok_and(|more| more) {}
    assert_eq!(bed.dataset.pages(), 2, "those of the damaged file");
    assert_err!(bed.fs.reap(1000), FsError::Engine(_));
    bed.dataset.damage(Unreadable::default());
    while bed.fs.reap(1000).unwrap() {}
    assert_eq!(bed.dataset.pages(), 0);
    bed.check();
}
