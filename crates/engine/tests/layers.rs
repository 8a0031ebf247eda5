//! A layer uses only the layers below it: the order of `lib.rs`, enforced.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::path::{Path, PathBuf};

/// From the top down; each may use what stands after it.
const LAYERS: [&str; 8] = ["pool", "dataset", "tree", "record", "wal", "segment", "space", "device"];
/// The ground that all stand on.
const GROUND: [&str; 8] = ["error", "faults", "limits", "memory", "sums", "types", "walk", "wire"];

fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found
}

/// Rooms that a source text names by `crate::room` or within `use crate::{...}`.
fn rooms_used(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for part in text.split("crate::").skip(1) {
        let names: String = match part.strip_prefix('{') {
            Some(list) => list.split('}').next().unwrap().to_string(),
            None => part.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect(),
        };
        found.extend(names.split(',').map(|name| name.trim().split("::").next().unwrap().to_string()));
    }
    found
}

#[test]
fn every_layer_uses_only_those_below() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut checked = 0;
    for (depth, layer) in LAYERS.iter().enumerate() {
        for source in sources(&root.join(layer)) {
            // Tests of a layer may build what they test on from anywhere.
            if source.ends_with("tests.rs") || source.components().any(|part| part.as_os_str() == "tests") {
                continue;
            }
            let text = std::fs::read_to_string(&source).unwrap();
            for used in rooms_used(&text) {
                let Some(position) = LAYERS.iter().position(|layer| *layer == used) else { continue };
                checked += 1;
                assert!(position >= depth, "{} uses {used}, a layer above {layer}", source.display());
            }
        }
    }
    assert!(checked > 30, "only {checked} uses were found: the test no longer sees the code");
}

#[test]
fn the_ground_uses_no_layer() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for ground in GROUND {
        let text = std::fs::read_to_string(root.join(format!("{ground}.rs"))).unwrap();
        for used in rooms_used(&text) {
            assert!(!LAYERS.contains(&used.as_str()), "{ground}.rs uses {used}");
        }
    }
}

#[test]
fn all_rooms_are_known() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for entry in std::fs::read_dir(root).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_string();
        let known = LAYERS.contains(&name.as_str()) || GROUND.contains(&name.as_str()) || name == "lib";
        assert!(known, "{name} has no place among the layers");
    }
}
