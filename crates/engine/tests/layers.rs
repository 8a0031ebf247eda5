//! A layer uses only the layers below it: the order of `lib.rs`, enforced.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::path::{Path, PathBuf};

/// From the top down; each may use what stands after it.
const LAYERS: [&str; 8] = ["pool", "dataset", "tree", "record", "wal", "segment", "space", "device"];
/// The ground that all stand on.
const GROUND: [&str; 10] =
    ["error", "faults", "history", "limits", "memory", "ranges", "sums", "types", "walk", "wire"];

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

/// Sources outside of the layer `device` that see devices which are open and no member of `Devices` yet, and the reason.
const SEE_DEVICES: [(&str, &str); 18] = [
    ("pool/check.rs", "opens devices, and checks the pool on them"),
    ("pool/crafting.rs", "makes a pool for a measurement on a file that it opens"),
    ("pool/create.rs", "makes members of devices that hold no pool, and destroys what they are"),
    ("pool/identity.rs", "compares devices before it is known which of them belong together"),
    ("pool/log_device.rs", "takes devices that become the log device while the pool is open"),
    ("pool/members.rs", "finds out by labels which member each device is"),
    ("pool/mirrors.rs", "takes devices that become members while the pool is open"),
    ("pool/open.rs", "takes devices that a server has opened before"),
    ("pool/relabel.rs", "gives devices labels of another pool"),
    ("pool/roster.rs", "erases labels of devices that leave"),
    ("pool/roster/groups.rs", "writes labels of groups that are added and removed"),
    ("pool/roster/joining.rs", "writes labels of devices that come and go"),
    ("pool/scan.rs", "reads labels of whatever is found"),
    ("pool/spares/mod.rs", "keeps devices that are no members, until one becomes a member"),
    ("pool/spares/step.rs", "has one of these become a member, and takes it back"),
    ("pool/split.rs", "gives devices that leave the label of a new pool, and opens it"),
    ("pool/stored.rs", "takes devices that are open for another purpose"),
    ("pool/testing.rs", "helps tests"),
];

/// Sources that have the handle of one device, and the reason.
const SEE_ONE_DEVICE: [(&str, &str); 3] = [
    ("pool/label.rs", "reads and writes labels and superblocks, by which members are known"),
    ("pool/repair.rs", "writes labels again"),
    ("pool/spare_label.rs", "reads and writes labels of spares"),
];

/// Returns true if `text`, without its comments, has `word` as a word of its own.
fn names(text: &str, word: &str) -> bool {
    let code = text.lines().map(|line| line.split("//").next().unwrap());
    code.flat_map(|line| line.split(|c: char| !c.is_alphanumeric() && c != '_')).any(|found| found == word)
}

#[test]
fn only_devices_reach_storage() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let (mut see, mut see_one) = (Vec::new(), Vec::new());
    for source in sources(&root) {
        let place = source.strip_prefix(&root).unwrap().to_str().unwrap().to_string();
        if place.starts_with("device/") || place.ends_with("tests.rs") || place.contains("/tests/") {
            continue;
        }
        let text = std::fs::read_to_string(&source).unwrap();
        // `Devices` gives nobody a device's own interface, so who does not name one of its types has none.
        if ["Device", "FileDevice", "RecordedDevice", "SimDevice"].iter().any(|word| names(&text, word)) {
            for call in ["read", "read_many", "write", "flush", "discard"] {
                for handle in ["device", "twin", "one", "other"] {
                    let direct = format!("{handle}.{call}(");
                    assert!(!text.contains(&direct), "{place} calls {direct} past `Devices`");
                }
            }
            see.push(place);
        } else if names(&text, "OneDevice") {
            see_one.push(place);
        }
    }
    see.sort_unstable();
    see_one.sort_unstable();
    assert_eq!(see, SEE_DEVICES.map(|(place, _)| place));
    assert_eq!(see_one, SEE_ONE_DEVICE.map(|(place, _)| place));
}

#[test]
fn the_ground_uses_no_layer() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for ground in GROUND {
        let mut files = sources(&root);
        files
            .retain(|file| *file == root.join(format!("{ground}.rs")) || file.starts_with(root.join(ground)));
        assert!(!files.is_empty(), "there is no {ground}");
        for file in files {
            for used in rooms_used(&std::fs::read_to_string(&file).unwrap()) {
                assert!(!LAYERS.contains(&used.as_str()), "{} uses {used}", file.display());
            }
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
