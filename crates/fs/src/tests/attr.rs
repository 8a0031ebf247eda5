use super::{Bed, ROOT, assert_err};
use crate::{AtimePolicy, Fallocate, FsError, FsOptions, SetAttr, SetTime, Time, WriteFlags, XattrMode};

#[test]
fn chmod_chown_and_times() {
    let bed = Bed::new();
    let file = bed.create(ROOT, "f");
    bed.clock.advance(1_000);
    let now = crate::Clock::now(&*bed.clock);
    let attr = bed.fs.setattr(file.ino, &SetAttr { mode: Some(0o100_600), ..Default::default() }).unwrap();
    assert_eq!((attr.perm, attr.ctime, attr.mtime), (0o600, now, file.attr.mtime));
    bed.clock.advance(1_000);
    let attr = bed.fs.setattr(file.ino, &SetAttr::default()).unwrap();
    assert_eq!(
        attr.ctime,
        crate::Clock::now(&*bed.clock),
        "chown(2) with neither user nor group is a change"
    );
    let now = attr.ctime;
    let old = Time { secs: -5, nanos: 999_999_999 };
    let set = SetAttr {
        uid: Some(3),
        gid: Some(4),
        atime: SetTime::Set(old),
        mtime: SetTime::Now,
        ..Default::default()
    };
    let attr = bed.fs.setattr(file.ino, &set).unwrap();
    assert_eq!((attr.uid, attr.gid, attr.atime, attr.mtime), (3, 4, old, now));
    assert_eq!(bed.crash().fs.getattr(file.ino).unwrap(), attr);
    bed.check();
}

#[test]
fn set_id_bits_go_when_they_must() {
    let bed = Bed::new();
    let file = bed.create(ROOT, "f").ino;
    let chmod = |mode| bed.fs.setattr(file, &SetAttr { mode: Some(mode), ..Default::default() }).unwrap();
    let perm = || bed.fs.getattr(file).unwrap().perm;
    chmod(0o6755);
    bed.write(file, 0, b"x");
    assert_eq!(perm(), 0o6755, "the writer may keep them");
    bed.fs.write(file, 0, b"x", WriteFlags { kill_suid: true, append: false }).unwrap();
    assert_eq!(perm(), 0o755);
    chmod(0o6745);
    bed.fs.setattr(file, &SetAttr { uid: Some(1), ..Default::default() }).unwrap();
    assert_eq!(perm(), 0o2745, "set-group-id without execution by the group stays");
    chmod(0o6755);
    bed.fs.setattr(file, &SetAttr { size: Some(0), kill_suid: true, ..Default::default() }).unwrap();
    assert_eq!(perm(), 0o755);
    chmod(0o6755);
    bed.fs.setattr(file, &SetAttr::default()).unwrap();
    assert_eq!(perm(), 0o755, "chown(2) with neither user nor group");
    bed.write(file, 0, b"source");
    let other = bed.create(ROOT, "g").ino;
    for kill in [false, true] {
        let wanted = if kill { 0o755 } else { 0o6755 };
        chmod(0o6755);
        bed.fs.fallocate(file, 0, 10, Fallocate::PunchHole, kill).unwrap();
        assert_eq!(perm(), wanted, "fallocate");
        chmod(0o6755);
        bed.write(other, 0, b"source");
        bed.fs.copy_file_range(other, 0, file, 0, 6, kill).unwrap();
        assert_eq!(perm(), wanted, "copy_file_range");
    }
    let dir = bed.mkdir(ROOT, "d").ino;
    bed.fs.setattr(dir, &SetAttr { mode: Some(0o3777), ..Default::default() }).unwrap();
    let attr = bed.fs.setattr(dir, &SetAttr { gid: Some(1), ..Default::default() }).unwrap();
    assert_eq!(attr.perm, 0o3777, "directories keep theirs");
    bed.check();
}

#[test]
fn capabilities_go_with_any_change() {
    let bed = Bed::new();
    let file = bed.create(ROOT, "f").ino;
    let name = b"security.capability";
    for change in [
        &(|| bed.write(file, 0, b"x")) as &dyn Fn(),
        &|| drop(bed.fs.setattr(file, &SetAttr { size: Some(0), ..Default::default() })),
        &|| drop(bed.fs.setattr(file, &SetAttr { uid: Some(9), ..Default::default() })),
    ] {
        bed.fs.setxattr(file, name, b"caps", XattrMode::Set, false).unwrap();
        bed.check();
        assert_eq!(bed.fs.getxattr(file, name).unwrap(), b"caps");
        change();
        assert_err!(bed.fs.getxattr(file, name), FsError::NoAttr);
        bed.check();
    }
}

#[test]
fn sizes_that_cannot_be() {
    let bed = Bed::new();
    let set = |ino, size| bed.fs.setattr(ino, &SetAttr { size: Some(size), ..Default::default() });
    assert_err!(set(ROOT, 0), FsError::IsADirectory);
    let file = bed.create(ROOT, "f").ino;
    assert_err!(set(file, 1 << 63), FsError::TooBig);
    assert_eq!(set(file, (1 << 63) - 1).unwrap().size, (1 << 63) - 1);
    bed.check();
}

#[test]
fn access_times_follow_the_policy_without_a_change_per_read() {
    for (policy, expected) in [
        (AtimePolicy::Relative, [1, 1, 2]),
        (AtimePolicy::Never, [0, 0, 0]),
        (AtimePolicy::Strict, [1, 2, 3]),
    ] {
        let bed = Bed::with(u64::MAX, FsOptions { atime: policy, ..Default::default() });
        let file = bed.create(ROOT, "f").ino;
        bed.write(file, 0, b"x");
        let applies = bed.dataset.applies();
        let mut times = vec![bed.fs.getattr(file).unwrap().atime];
        let mut different = Vec::new();
        for wait in [1_000, 1_000, 25 * 3600 * 1_000_000_000] {
            bed.clock.advance(wait);
            bed.read(file, 0, 1);
            let atime = bed.fs.getattr(file).unwrap().atime;
            if times.last() != Some(&atime) {
                times.push(atime);
            }
            different.push(times.len() - 1);
        }
        assert_eq!(different, expected, "{policy:?}");
        assert_eq!(bed.dataset.applies(), applies);
        bed.fs.flush_times().unwrap();
        assert_eq!(bed.dataset.applies() > applies, policy != AtimePolicy::Never);
        assert_eq!(bed.crash().fs.getattr(file).unwrap().atime, *times.last().unwrap());
        bed.check();
    }
}

#[test]
fn read_only_mounts_change_nothing() {
    let bed = Bed::new();
    let file = bed.create(ROOT, "f").ino;
    bed.write(file, 0, b"x");
    let fs = crate::Fs::mount(
        bed.dataset.clone(),
        bed.clock.clone(),
        FsOptions { read_only: true, ..Default::default() },
    );
    let bed = Bed { fs: fs.unwrap(), ..bed };
    let applies = bed.dataset.applies();
    assert_err!(bed.fs.write(file, 0, b"y", WriteFlags::default()), FsError::ReadOnly);
    assert_err!(bed.fs.unlink(ROOT, b"f"), FsError::ReadOnly);
    assert_err!(bed.fs.setattr(file, &SetAttr::default()), FsError::ReadOnly);
    assert_eq!(bed.read(file, 0, 9), b"x");
    bed.fs.sync().unwrap();
    assert_eq!(bed.dataset.applies(), applies);
}

/// Inodes with times to be written cannot leave the memory.
#[test]
fn access_times_that_cannot_be_written_are_given_up() {
    let bed = Bed::new();
    let files = ["a", "b", "c"].map(|name| bed.create(ROOT, name).ino);
    files.iter().for_each(|file| bed.write(*file, 0, b"x"));
    bed.clock.advance(1000);
    let dirty = || {
        let nodes = files.iter().filter_map(|file| bed.fs.nodes.peek(file.0));
        nodes.filter(|node| node.cached.read().atime_dirty).count()
    };
    files.iter().for_each(|file| drop(bed.read(*file, 0, 1)));
    assert_eq!(dirty(), 3);
    bed.dataset.fail("a device failed");
    assert_err!(bed.fs.flush_times(), FsError::Engine(_));
    assert_eq!(dirty(), 0);
}
