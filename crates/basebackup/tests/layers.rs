//! A module uses only those below it, and the crate knows nothing of pools: the order of `lib.rs`, enforced.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::path::Path;

/// From the top down; each may use what stands after it.
const ORDER: [&str; 15] = [
    "backup",
    "archives",
    "plain",
    "sink",
    "read",
    "plan",
    "compress",
    "manifest",
    "tablespace",
    "wal",
    "segment",
    "control",
    "names",
    "error",
    "limits",
];

#[test]
fn every_module_uses_only_those_below() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut uses = 0;
    for (depth, module) in ORDER.iter().enumerate() {
        let mut text = std::fs::read_to_string(root.join(format!("{module}.rs"))).unwrap();
        // Parts of a module stand where it does.
        for part in std::fs::read_dir(root.join(module)).into_iter().flatten() {
            text += &std::fs::read_to_string(part.unwrap().path()).unwrap();
        }
        for part in text.split("crate::").skip(1) {
            let used: String = part.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            let Some(place) = ORDER.iter().position(|other| *other == used) else { continue };
            uses += 1;
            assert!(place > depth, "{module} uses {used}, which stands above it");
        }
    }
    assert!(uses > 15, "only {uses} uses were found: the test no longer sees the code");
    for entry in std::fs::read_dir(root).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let known = ["lib.rs", "wal_tests.rs", "segment_tests.rs", "compress_tests.rs"]
            .contains(&name.as_str())
            || ORDER.iter().any(|m| name == format!("{m}.rs") || name == *m);
        assert!(known, "{name} has no place in the order");
    }
}

#[test]
fn it_knows_pages_and_no_pool() {
    let manifest = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml")).unwrap();
    let (_, dependencies) = manifest.split_once("[dependencies]").unwrap();
    let ours: Vec<&str> = dependencies.lines().filter(|line| line.starts_with("pagefold")).collect();
    assert_eq!(ours, ["pagefold-codec.workspace = true"]);
}
