//! A pool with damage in its metadata, mounted for rescue: what can be read is right, the list of what cannot is exact, and nothing is
//! written. Needs root and /dev/fuse, as `make test` has them.

#![allow(clippy::unwrap_used, clippy::panic, reason = "in a test a panic is the report")]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use common::{Sandbox, assert_failure, can_mount};
use pagefold_engine::wal::{RecordKind, batch};

const MIB: usize = 1 << 20;
const CHUNK: usize = 4 * MIB;
const PAGE: usize = 8192;
const FILES: usize = 600;

/// Bytes that do not compress.
fn content(seed: usize) -> Vec<u8> {
    let mut state = seed as u64 * 2 + 1;
    let mut next = || {
        state = state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
        (state >> 56) as u8
    };
    (0..PAGE * (1 + seed % 4)).map(|_| next()).collect()
}

/// Where the device has records of a kind that a sound batch says: first byte and length, in the order of the log.
fn records(device: &[u8], kind: RecordKind) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    for chunk in (MIB..device.len() - CHUNK).step_by(CHUNK) {
        for at in (0..CHUNK).step_by(4096) {
            let Some(batch) = batch::Verified::new(&device[chunk + at..chunk + CHUNK]) else { continue };
            let of_kind = batch.entries(at as u32).filter(|(_, code)| *code == kind as u8);
            found.extend(of_kind.map(|(entry, _)| (chunk + entry.start as usize, entry.len_bytes as usize)));
        }
    }
    found
}

/// Those of nodes, without nodes of a few bytes, as empty trees have: such bytes may be found anywhere.
fn large_nodes(device: &[u8]) -> Vec<(usize, usize)> {
    records(device, RecordKind::Node).into_iter().filter(|(_, len)| *len > 100).collect()
}

/// Where these bytes are, second copies included.
fn twins(device: &[u8], (start, len): (usize, usize)) -> Vec<usize> {
    let bytes = &device[start..start + len];
    let written = (0..device.len()).step_by(4096).filter(|at| device[*at..*at + 4096] != [0; 4096]);
    written.flat_map(|block| block..block + 4096).filter(|at| device[*at..].starts_with(bytes)).collect()
}

/// By path within the pool's dataset: what of it, and which bytes.
type List = BTreeMap<String, (String, Vec<(u64, u64)>)>;

/// Returns the list of what `check` cannot read.
fn listed(sandbox: &Sandbox) -> List {
    let output = sandbox.run(&["check", "--json", "tank"]);
    assert_failure(&output, 1, &["is damaged", "mount -o rescue"]);
    let told: serde_json::Value = serde_json::from_str(&output.stdout).unwrap();
    let lines = told["unreadable"].as_array().unwrap().iter().filter(|line| line["dataset"] == "tank");
    let line = |line: &serde_json::Value| {
        let ranges = serde_json::from_value(line["ranges"].clone()).unwrap();
        (line["path"].as_str().unwrap().to_owned(), (line["what"].as_str().unwrap().to_owned(), ranges))
    };
    lines.map(line).collect()
}

/// Reads a file page by page. Returns the bytes that cannot be read; the others are as they were written.
fn lost_bytes(path: &Path, written: &[u8]) -> Vec<(u64, u64)> {
    let file = fs::File::open(path).unwrap();
    assert_eq!(file.metadata().unwrap().len(), written.len() as u64);
    let mut lost: Vec<(u64, u64)> = Vec::new();
    for (at, expected) in (0_u64..).step_by(PAGE).zip(written.chunks(PAGE)) {
        let mut found = vec![0; expected.len()];
        match file.read_exact_at(&mut found, at) {
            Ok(()) => assert!(found == expected, "{} at {at}", path.display()),
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(libc::EIO), "{}", path.display());
                let end = at + expected.len() as u64;
                match lost.last_mut() {
                    Some(last) if last.1 == at => last.1 = end,
                    _ => lost.push((at, end)),
                }
            }
        }
    }
    lost
}

/// Compares what is mounted with what was written and with the list. Returns how many files are not there as a whole.
fn compare(sandbox: &Sandbox, list: &List) -> usize {
    let mut damaged = 0;
    for dir in 0..3 {
        let name = format!("/d{dir}");
        let path = sandbox.path(&format!("mnt{name}"));
        if list.get(&name).is_some_and(|(what, _)| what == "inode") {
            assert_eq!(fs::read_dir(&path).unwrap_err().raw_os_error(), Some(libc::EIO));
            damaged += 1;
            continue;
        }
        let (mut names, mut failed) = (BTreeSet::new(), false);
        for entry in fs::read_dir(&path).unwrap() {
            match entry {
                Ok(entry) => assert!(names.insert(entry.file_name().into_string().unwrap())),
                Err(error) => {
                    assert_eq!(error.raw_os_error(), Some(libc::EIO));
                    failed = true;
                }
            }
        }
        assert_eq!(failed, list.get(&name).is_some_and(|(what, _)| what == "names"), "{name}");
        for n in (dir..FILES).step_by(3) {
            let name = format!("{name}/f{n}");
            let path = sandbox.path(&format!("mnt{name}"));
            let found = match fs::metadata(&path) {
                Ok(_) => lost_bytes(&path, &content(n)),
                Err(error) => {
                    assert_eq!(error.raw_os_error(), Some(libc::EIO), "{name}");
                    let told = list.get(&name).is_some_and(|(what, _)| what == "inode");
                    assert!(told || failed && !names.contains(&format!("f{n}")), "{name} is not listed");
                    damaged += 1;
                    continue;
                }
            };
            assert!(names.contains(&format!("f{n}")), "{name} is not told");
            let told = list.get(&name).map(|(what, ranges)| (what.as_str(), ranges.clone()));
            assert_eq!(told, Some(("data", found.clone())).filter(|_| !found.is_empty()), "{name}");
            damaged += usize::from(!found.is_empty());
        }
    }
    damaged
}

#[test]
fn what_is_left_of_a_damaged_pool_is_read_and_the_rest_is_listed() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::new();
    sandbox.dir("mnt");
    sandbox.ok(&["create", "tank", "tank.pf", "--size", "256M"]);
    sandbox.ok(&["mount", "-o", "recordsize=8192", "tank", "mnt"]);
    (0..3).for_each(|dir| fs::create_dir(sandbox.path(&format!("mnt/d{dir}"))).unwrap());
    (0..FILES).for_each(|n| fs::write(sandbox.path(&format!("mnt/d{}/f{n}", n % 3)), content(n)).unwrap());
    sandbox.ok(&["unmount", "mnt"]);
    let device = sandbox.path("tank.pf");
    let sound = fs::read(&device).unwrap();
    // Of a pool that was just unmounted the last nodes are those of the last checkpoint, the root at their end.
    let nodes = large_nodes(&sound);
    let pages = records(&sound, RecordKind::Page);
    let directories = (0..sound.len()).step_by(4096).filter(|at| sound[*at..].starts_with(b"PFdr"));
    let cases = [
        vec![nodes[nodes.len() - 3]],
        vec![nodes[nodes.len() / 2]],
        vec![pages[pages.len() / 2]],
        records(&sound, RecordKind::Table),
        directories.map(|at| (at, 48)).collect(),
    ];
    let mut damaged = 0;
    for case in cases {
        let mut bytes = sound.clone();
        let places: BTreeSet<usize> = case
            .iter()
            .flat_map(|(start, len)| twins(&sound, (*start, *len)).into_iter().map(move |at| at + len / 2))
            .collect();
        places.into_iter().for_each(|at| bytes[at] ^= 4);
        fs::write(&device, &bytes).unwrap();
        let list = listed(&sandbox);
        sandbox.ok(&["mount", "-o", "rescue", "tank", "mnt"]);
        let pool = sandbox.pool();
        assert_eq!(pool["state"], "RESCUE");
        assert!(pool["problem"].as_str().unwrap().contains("open for rescue"), "{pool}");
        let refused = fs::write(sandbox.path("mnt/new"), b"x").unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
        let lost = compare(&sandbox, &list);
        assert_eq!(lost > 0, !list.is_empty());
        damaged += lost;
        sandbox.ok(&["unmount", "mnt"]);
        assert!(fs::read(&device).unwrap() == bytes, "nothing is written");
    }
    assert!(damaged > 1, "{damaged}");
}

#[test]
fn names_behind_those_that_cannot_be_read_are_told() {
    const NAMES: usize = 4000;
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::new();
    sandbox.dir("mnt");
    sandbox.ok(&["create", "tank", "tank.pf", "--size", "256M"]);
    sandbox.ok(&["mount", "tank", "mnt"]);
    fs::create_dir(sandbox.path("mnt/many")).unwrap();
    let name = |n: usize| format!("{n:05}-of-a-spool-whose-names-take-many-nodes-of-the-tree");
    let target = sandbox.path("mnt/target");
    fs::write(&target, "one inode for all").unwrap();
    (0..NAMES).for_each(|n| fs::hard_link(&target, sandbox.path("mnt/many").join(name(n))).unwrap());
    sandbox.ok(&["unmount", "mnt"]);
    let device = sandbox.path("tank.pf");
    let sound = fs::read(&device).unwrap();
    // The last nodes are those of the last checkpoint; leaves come first.
    let nodes = large_nodes(&sound);
    let list = nodes.iter().rev().skip(4).step_by(5).find_map(|(start, len)| {
        let mut bytes = sound.clone();
        twins(&sound, (*start, *len)).into_iter().for_each(|at| bytes[at + len / 2] ^= 4);
        fs::write(&device, &bytes).unwrap();
        let output = sandbox.run(&["check", "--json", "tank"]);
        let damaged = output.stdout.contains("\"names\"");
        damaged.then(|| listed(&sandbox))
    });
    assert_eq!(list.unwrap()["/many"].0, "names");
    sandbox.ok(&["mount", "-o", "rescue", "tank", "mnt"]);
    let listing = fs::read_dir(sandbox.path("mnt/many")).unwrap();
    let told: Vec<_> = listing.map(|entry| entry.map(|entry| entry.file_name())).collect();
    let errors: Vec<_> = told.iter().filter_map(|name| name.as_ref().err()).collect();
    assert!(matches!(errors[..], [error] if error.raw_os_error() == Some(libc::EIO)), "{errors:?}");
    assert!(told.last().unwrap().is_err(), "the error comes last");
    let names: BTreeSet<_> = told.into_iter().flatten().collect();
    assert!((NAMES * 9 / 10..NAMES).contains(&names.len()), "{} of {NAMES} names", names.len());
    let made: BTreeSet<_> = (0..NAMES).map(|n| name(n).into()).collect();
    assert!(names.is_subset(&made));
    sandbox.ok(&["unmount", "mnt"]);
}
