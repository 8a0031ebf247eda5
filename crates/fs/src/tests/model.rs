//! Random sequences of calls against a simple model of POSIX, with names whose hashes collide and with crashes.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::{Bed, ROOT, USER};
use crate::{FileKind, FsError, Ino, OpenFlags, RenameMode};

#[derive(Clone, Debug)]
enum NameOp {
    Make(usize, u8, FileKind),
    Remove(usize, u8, bool),
    Link(usize, u8, usize, u8),
    Rename(usize, u8, usize, u8, RenameMode),
    Append(usize, u8, u8),
    Crash,
    Reap,
}

fn op() -> impl Strategy<Value = NameOp> {
    // Directories are picked from those that exist, names from a few.
    let dir = || 0..6usize;
    let name = || 0..5u8;
    let kind = prop_oneof![
        2 => Just(FileKind::Regular), 3 => Just(FileKind::Directory), 1 => Just(FileKind::Symlink), 1 => Just(FileKind::Fifo)
    ];
    let mode = prop_oneof![3 => Just(RenameMode::Replace), 1 => Just(RenameMode::NoReplace), 2 => Just(RenameMode::Exchange)];
    prop_oneof![
        5 => (dir(), name(), kind).prop_map(|(d, n, k)| NameOp::Make(d, n, k)),
        3 => (dir(), name(), any::<bool>()).prop_map(|(d, n, r)| NameOp::Remove(d, n, r)),
        2 => (dir(), name(), dir(), name()).prop_map(|(d, n, e, m)| NameOp::Link(d, n, e, m)),
        5 => (dir(), name(), dir(), name(), mode).prop_map(|(d, n, e, m, r)| NameOp::Rename(d, n, e, m, r)),
        2 => (dir(), name(), any::<u8>()).prop_map(|(d, n, b)| NameOp::Append(d, n, b)),
        1 => Just(NameOp::Crash),
        1 => Just(NameOp::Reap),
    ]
}

#[derive(Clone, Debug, PartialEq)]
struct Thing {
    kind: FileKind,
    parent: u64,
    names: BTreeMap<u8, u64>,
    data: Vec<u8>,
}

/// Files and directories of the model, by inode number.
struct Model {
    things: BTreeMap<u64, Thing>,
}

fn name(n: u8) -> Vec<u8> {
    vec![b'n', 0xF0 | n]
}

impl Model {
    fn new() -> Self {
        let root = Thing { kind: FileKind::Directory, parent: 1, names: BTreeMap::new(), data: Vec::new() };
        Self { things: BTreeMap::from([(1, root)]) }
    }

    fn dirs(&self) -> Vec<u64> {
        self.things.iter().filter(|(_, t)| t.kind == FileKind::Directory).map(|(i, _)| *i).collect()
    }

    fn get(&self, dir: u64, n: u8) -> Option<u64> {
        self.things[&dir].names.get(&n).copied()
    }

    fn is_dir(&self, ino: u64) -> bool {
        self.things[&ino].kind == FileKind::Directory
    }

    fn names_of(&self, ino: u64) -> usize {
        self.things.values().flat_map(|t| t.names.values()).filter(|i| **i == ino).count()
    }

    fn dir(&mut self, ino: u64) -> &mut Thing {
        self.things.get_mut(&ino).unwrap()
    }

    fn put(&mut self, dir: u64, n: u8, ino: u64) {
        self.dir(dir).names.insert(n, ino);
        if self.is_dir(ino) {
            self.dir(ino).parent = dir;
        }
    }

    fn collect(&mut self) {
        let named: BTreeSet<u64> =
            self.things.values().flat_map(|t| t.names.values().copied()).chain([1]).collect();
        self.things.retain(|ino, _| named.contains(ino));
    }

    fn is_below(&self, mut at: u64, top: u64) -> bool {
        while at != 1 {
            if at == top {
                return true;
            }
            at = self.things[&at].parent;
        }
        top == 1
    }

    fn remove(&mut self, dir: u64, n: u8, rmdir: bool) -> Result<(), &'static str> {
        let ino = self.get(dir, n).ok_or("NotFound")?;
        match (self.is_dir(ino), rmdir) {
            (true, false) => return Err("IsADirectory"),
            (false, true) => return Err("NotADirectory"),
            (true, true) if !self.things[&ino].names.is_empty() => return Err("NotEmpty"),
            _ => {}
        }
        self.dir(dir).names.remove(&n);
        self.collect();
        Ok(())
    }

    fn rename(&mut self, d: u64, n: u8, e: u64, m: u8, mode: RenameMode) -> Result<(), &'static str> {
        let source = self.get(d, n).ok_or("NotFound")?;
        let target = self.get(e, m);
        let cycle = |s: &Self, moved: u64, to: u64| s.is_dir(moved) && s.is_below(to, moved);
        if d != e && cycle(self, source, e) {
            return Err("Invalid");
        }
        if let (true, RenameMode::Exchange, Some(t)) = (d != e, mode, target)
            && cycle(self, t, d)
        {
            return Err("Invalid");
        }
        match (target, mode) {
            (Some(_), RenameMode::NoReplace) => return Err("Exists"),
            (None, RenameMode::Exchange) => return Err("NotFound"),
            (Some(t), _) if t == source => return Ok(()),
            (Some(t), RenameMode::Exchange) => {
                self.put(d, n, t);
                self.put(e, m, source);
                return Ok(());
            }
            (Some(t), _) => match (self.is_dir(source), self.is_dir(t)) {
                (true, false) => return Err("NotADirectory"),
                (false, true) => return Err("IsADirectory"),
                (true, true) if !self.things[&t].names.is_empty() => return Err("NotEmpty"),
                _ => {}
            },
            (None, _) => {}
        }
        self.dir(d).names.remove(&n);
        self.put(e, m, source);
        self.collect();
        Ok(())
    }
}

fn word(error: &FsError) -> &'static str {
    match error {
        FsError::NotFound => "NotFound",
        FsError::Exists => "Exists",
        FsError::NotADirectory => "NotADirectory",
        FsError::IsADirectory => "IsADirectory",
        FsError::NotEmpty => "NotEmpty",
        FsError::Invalid(_) => "Invalid",
        FsError::NotPermitted => "NotPermitted",
        _ => "other",
    }
}

fn make(bed: &Bed, dir: u64, n: u8, kind: FileKind) -> crate::Result<u64> {
    let (fs, dir, name) = (&bed.fs, Ino(dir), name(n));
    Ok(match kind {
        FileKind::Directory => fs.mkdir(dir, &name, 0o755, &USER)?,
        FileKind::Symlink => fs.symlink(dir, &name, b"target", &USER)?,
        FileKind::Regular => {
            let exclusive = OpenFlags { exclusive: true, ..Default::default() };
            let made = fs.create(dir, &name, 0o644, exclusive, &USER)?;
            fs.release(made.ino);
            made
        }
        _ => fs.mknod(dir, &name, kind, 0o644, 0, &USER)?,
    }
    .ino
    .0)
}

/// Does `op` to both; returns the model's answer and the file system's.
fn step(bed: &Bed, model: &mut Model, op: &NameOp) -> (Result<(), &'static str>, crate::Result<()>) {
    let dirs = model.dirs();
    let at = |d: usize| dirs[d % dirs.len()];
    let fs = &bed.fs;
    match *op {
        NameOp::Make(d, n, kind) => {
            let got = make(bed, at(d), n, kind);
            let expected = if model.get(at(d), n).is_some() { Err("Exists") } else { Ok(()) };
            if let (Ok(ino), Ok(())) = (&got, expected) {
                model
                    .things
                    .insert(*ino, Thing { kind, parent: at(d), names: BTreeMap::new(), data: Vec::new() });
                model.put(at(d), n, *ino);
                fs.forget(Ino(*ino), 1);
            }
            (expected, got.map(drop))
        }
        NameOp::Remove(d, n, rmdir) => {
            let got = if rmdir { fs.rmdir(Ino(at(d)), &name(n)) } else { fs.unlink(Ino(at(d)), &name(n)) };
            (model.remove(at(d), n, rmdir), got)
        }
        NameOp::Link(d, n, e, m) => {
            let Some(ino) = model.get(at(d), n) else { return (Ok(()), Ok(())) };
            let got = fs.link(Ino(ino), Ino(at(e)), &name(m));
            let expected = match model.is_dir(ino) {
                true => Err("NotPermitted"),
                false if model.get(at(e), m).is_some() => Err("Exists"),
                false => {
                    model.put(at(e), m, ino);
                    Ok(())
                }
            };
            if got.is_ok() {
                fs.forget(Ino(ino), 1);
            }
            (expected, got.map(drop))
        }
        NameOp::Rename(d, n, e, m, mode) => {
            let got = fs.rename(Ino(at(d)), &name(n), Ino(at(e)), &name(m), mode);
            (model.rename(at(d), n, at(e), m, mode), got)
        }
        NameOp::Append(d, n, byte) => {
            let Some(ino) = model.get(at(d), n) else { return (Ok(()), Ok(())) };
            let got = fs.write(Ino(ino), 0, &[byte; 3], crate::WriteFlags { append: true, kill_suid: false });
            let expected = match model.things[&ino].kind {
                FileKind::Regular => {
                    model.dir(ino).data.extend([byte; 3]);
                    Ok(())
                }
                FileKind::Directory => Err("IsADirectory"),
                _ => Err("Invalid"),
            };
            (expected, got.map(drop))
        }
        NameOp::Crash => (Ok(()), Ok(())),
        NameOp::Reap => (Ok(()), fs.reap(10).map(drop)),
    }
}

/// Asserts that the file system holds exactly what the model holds.
fn compare(bed: &Bed, model: &Model) {
    for (&ino, thing) in &model.things {
        let attr = bed.fs.getattr(Ino(ino)).unwrap();
        assert_eq!(attr.kind, thing.kind);
        match thing.kind {
            FileKind::Directory => {
                let subdirs = thing.names.values().filter(|i| model.is_dir(**i)).count();
                assert_eq!(attr.nlink as usize, 2 + subdirs);
                let mut found = BTreeMap::new();
                bed.fs
                    .readdir(Ino(ino), 0, &mut |e| {
                        if e.name == b".." {
                            assert_eq!(e.ino.0, thing.parent);
                        } else if e.name != b"." {
                            assert_eq!(e.kind, model.things[&e.ino.0].kind);
                            assert!(found.insert(e.name[1] & 0xF, e.ino.0).is_none());
                        }
                        true
                    })
                    .unwrap();
                assert_eq!(found, thing.names);
                for (n, target) in &thing.names {
                    assert_eq!(bed.fs.lookup(Ino(ino), &name(*n)).unwrap().ino.0, *target);
                    bed.fs.forget(Ino(*target), 1);
                }
            }
            FileKind::Regular => assert_eq!(bed.read(Ino(ino), 0, 9999), thing.data),
            FileKind::Symlink => assert_eq!(bed.fs.readlink(Ino(ino)).unwrap(), b"target"),
            _ => {}
        }
        if thing.kind != FileKind::Directory {
            assert_eq!(attr.nlink as usize, model.names_of(ino));
        }
    }
    bed.check_now();
}

proptest! {

    #[test]
    fn calls_match_a_model_of_posix(ops in prop::collection::vec(op(), 1..80), bits in 0..4u32) {
        let mut bed = Bed::colliding(bits);
        let mut model = Model::new();
        for op in &ops {
            let (expected, got) = step(&bed, &mut model, op);
            prop_assert_eq!(got.as_ref().map_err(word).copied(), expected, "{:?}", op);
            if matches!(op, NameOp::Crash) {
                bed = bed.crash();
                compare(&bed, &model);
            }
        }
        compare(&bed, &model);
        bed.check();
        let report = crate::check::check_with(&*bed.dataset, Some(bed.fs.places)).unwrap();
        prop_assert_eq!(report.inodes as usize, model.things.len(), "nothing is left of what was removed");
        prop_assert_eq!(bed.fs.getattr(ROOT).unwrap().ino, ROOT);
    }
}
