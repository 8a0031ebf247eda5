//! `create -n` says which pool would be made, makes nothing, and refuses what `create` refuses.

#![allow(clippy::unwrap_used, clippy::panic, reason = "in a test a panic is the report")]

mod common;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hasher};
use std::os::unix::fs::FileExt;
use std::path::Path;

use common::{Sandbox, assert_failure, can_mount};
use rustix::fs::{SeekFrom, seek};

const MIB: u64 = 1 << 20;

fn file(sandbox: &Sandbox, name: &str, mib: u64) {
    File::create(sandbox.path(name)).unwrap().set_len(mib * MIB).unwrap();
}

/// Returns a hash of the bytes of a file, and of the places that have any.
fn hash(file: &File) -> u64 {
    let (mut hash, mut at) = (DefaultHasher::new(), 0);
    while let Ok(start) = seek(file, SeekFrom::Data(at)) {
        at = seek(file, SeekFrom::Hole(start)).unwrap();
        let mut bytes = vec![0; (at - start) as usize];
        file.read_exact_at(&mut bytes, start).unwrap();
        hash.write_u64(start);
        hash.write(&bytes);
    }
    hash.finish()
}

/// Everything that is in the sandbox: the length of each file and a hash of its bytes.
fn all_in(folder: &Path) -> BTreeMap<String, (u64, u64)> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let (path, kind) = (entry.path(), entry.file_type().unwrap());
        let name = path.to_str().unwrap().to_owned();
        if kind.is_dir() {
            found.insert(name, (0, 0));
            found.extend(all_in(&path));
        } else if kind.is_file() {
            let file = File::open(&path).unwrap();
            found.insert(name, (file.metadata().unwrap().len(), hash(&file)));
        } else {
            found.insert(name, (0, 1));
        }
    }
    found
}

#[test]
fn the_room_that_is_told_is_the_room_of_the_pool_and_nothing_is_made() {
    let layouts: [&[&str]; 6] = [
        &["one"],
        &["one", "new"],
        &["mirror", "one", "two"],
        &["mirror", "one", "two", "mirror", "three", "new", "spare", "spare1"],
        &["mirror", "one", "new", "log", "two"],
        &["one", "log", "mirror", "two", "new", "-o", "compression=zstd", "-o", "quota=50M"],
    ];
    for layout in layouts {
        let sandbox = Sandbox::new();
        file(&sandbox, "one", 140);
        file(&sandbox, "two", 150);
        file(&sandbox, "three", 190);
        let words = |more: &[&'static str]| [&["create", "tank"], more, layout, &["--size", "145M"]].concat();
        let before = all_in(&sandbox.path(""));
        let planned = sandbox.ok(&words(&["-n"]));
        assert_eq!(all_in(&sandbox.path("")), before, "{layout:?} has changed something");
        assert!(planned.contains("nothing was changed"), "{planned}");
        for name in layout.iter().filter(|word| ["one", "two", "three", "new", "spare1"].contains(word)) {
            assert!(planned.contains(sandbox.path(name).to_str().unwrap()), "{name} is not in {planned}");
        }
        let is_made = layout.contains(&"new");
        assert_eq!(planned.contains("new would be made, as a file of 145M"), is_made, "{planned}");
        let made = sandbox.ok(&words(&[]));
        let told = planned.lines().find(|line| line.starts_with("tank: ")).unwrap();
        assert_eq!(told.replace("would have ", ""), made.trim_end(), "{layout:?}");
        sandbox.ok(&["destroy", "-f", "tank"]);
    }
}

#[test]
fn what_create_refuses_is_refused_for_the_same_reason() {
    let sandbox = Sandbox::new();
    file(&sandbox, "one", 160);
    file(&sandbox, "two", 160);
    file(&sandbox, "small", 20);
    file(&sandbox, "less", 140);
    file(&sandbox, "held", 160);
    sandbox.dir("folder");
    sandbox.ok(&["create", "other", "held"]);
    let cases: [&[&str]; 17] = [
        &["other", "one"],
        &["1tank", "one"],
        &["tank", "none"],
        &["tank", "small"],
        &["tank", "-f", "small"],
        &["tank", "one", "one"],
        &["tank", "mirror", "one"],
        &["tank", "mirror", "one", "two", "a", "b", "c", "--size", "200M"],
        &["tank", "one", "spare", "less"],
        &["tank", "one", "log", "small"],
        &["tank", "held"],
        &["tank", "folder"],
        &["tank", "/dev/null"],
        &["tank", "log", "one"],
        &["tank", "one", "-o", "compression=much"],
        &["tank", "one", "-o", "reservation=10G"],
        &["tank", "folder/none/new", "--size", "200M"],
    ];
    for words in cases {
        let before = all_in(&sandbox.path(""));
        let planned = sandbox.run(&[&["create", "-n"], words].concat());
        assert_eq!(all_in(&sandbox.path("")), before, "{words:?} has changed something");
        let refused = sandbox.run(&[&["create"], words].concat());
        assert!(!refused.status.success(), "{words:?} was made");
        assert_eq!((planned.status, planned.stderr), (refused.status, refused.stderr), "{words:?}");
    }
}

#[test]
fn what_would_be_lost_is_told_and_stays() {
    let sandbox = Sandbox::new();
    file(&sandbox, "one", 160);
    sandbox.ok(&["create", "other", "one"]);
    let before = all_in(&sandbox.path(""));
    let told = sandbox.ok(&["create", "-n", "-f", "tank", "one"]);
    assert!(told.contains("holds pool other") && told.contains("would be lost"), "{told}");
    assert!(told.contains("would be told first to hold nothing"), "{told}");
    assert!(told.contains("risk: ") && told.contains("would have no mirror"), "{told}");
    let told = sandbox.ok(&["create", "-n", "-f", "-K", "tank", "one"]);
    assert!(!told.contains("would be told first"), "{told}");
    assert_eq!(all_in(&sandbox.path("")), before);
    assert_eq!(sandbox.json(&["list"])["pools"][0]["name"], "other");
}

#[test]
fn a_device_of_a_mounted_pool_is_refused() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::mounted("takeover=off");
    for dry in [&["-n"][..], &[]] {
        let refused = sandbox.run(&[&["create", "-f"], dry, &["two", "tank.pf"]].concat());
        assert!(!refused.status.success() && refused.stderr.contains("in use"), "{}", refused.stderr);
    }
    sandbox.ok(&["unmount", "tank"]);
    sandbox.ok(&["check", "tank"]);
}

#[test]
fn a_file_may_lie_where_memory_holds_files() {
    let shared = Path::new("/dev/shm");
    if !shared.is_dir() {
        return;
    }
    let sandbox = Sandbox::new();
    let device = shared.join(format!("pagefold-{}.pf", std::process::id()));
    sandbox.ok(&["create", "-n", "tank", device.to_str().unwrap(), "--size", "144M"]);
    assert!(!device.exists());
    let none = sandbox.run(&["create", "-n", "tank", "/dev/pagefold-none", "--size", "144M"]);
    assert_failure(&none, 1, &["there is no device /dev/pagefold-none"]);
}
