//! A room uses only the rooms below it, and only a few know FUSE.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::path::{Path, PathBuf};

/// The rooms of the crate, from the top down; each may use what stands after it.
const ROOMS: &str = "serve rebase operations pool_status dataset_figures pools dataset_properties mounter startup \
    supervisor confine mountopts settings discovery answering models props streams event_log incomplete \
    pool_errors registry retention abandoned backups control last_state names spawn engine_errors files \
    mounts report cache_size units failure allocator notices passage raw stderr suggest timeouts";

/// The rooms of the server itself, as above.
const SERVE: &str = "answers devices remount signals rewriting server memory properties snapshotter stopping streams exports \
    recompress mounted opening budget background events fuse handover export looked_into fullness limits policy pool_lock \
    rewrites stream_list spare_memory";

/// Rooms that name the FUSE crate: the front end, and the processes beside a server that mount and unmount.
const FUSE: [&str; 4] = ["serve/fuse", "mounter", "supervisor", "abandoned.rs"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

/// Source files of a room, which is a file or a folder, without tests.
fn sources(room: &Path) -> Vec<PathBuf> {
    if !room.is_dir() {
        return vec![room.with_extension("rs")];
    }
    let mut found = Vec::new();
    for entry in std::fs::read_dir(room).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(sources(&path)),
            false if path.ends_with("tests.rs") => {}
            false => found.push(path),
        }
    }
    found
}

/// Text of a source file without comments and tests.
fn text_of(source: &Path) -> String {
    let text = std::fs::read_to_string(source).unwrap();
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
    code.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
}

/// Rooms that a text names by `prefix::room`, or within `prefix::{...}`.
fn rooms_used(text: &str, prefix: &str) -> Vec<String> {
    let name = |text: &str| -> String {
        text.trim().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
    };
    let named = |part: &str| -> Vec<String> {
        match part.strip_prefix('{') {
            Some(list) => list.split(';').next().unwrap().split(',').map(name).collect(),
            None => vec![name(part)],
        }
    };
    text.split(prefix).skip(1).flat_map(named).collect()
}

/// Checks the order of `rooms` in a folder; returns the number of uses that were found.
fn check(folder: &Path, rooms: &str, prefix: &str) -> usize {
    let rooms: Vec<&str> = rooms.split_whitespace().collect();
    let mut checked = 0;
    for (depth, room) in rooms.iter().enumerate() {
        for source in sources(&folder.join(room)) {
            for used in rooms_used(&text_of(&source), prefix) {
                let Some(position) = rooms.iter().position(|room| *room == used) else { continue };
                checked += 1;
                assert!(position >= depth, "{} uses {used}, a room above {room}", source.display());
            }
        }
    }
    checked
}

#[test]
fn every_room_uses_only_those_below() {
    let checked = check(&root(), ROOMS, "crate::");
    assert!(checked > 200, "only {checked} uses were found: the test no longer sees the code");
}

#[test]
fn every_room_of_the_server_uses_only_those_below() {
    let checked = check(&root().join("serve"), SERVE, "super::");
    assert!(checked > 40, "only {checked} uses were found: the test no longer sees the code");
}

#[test]
fn all_rooms_are_known() {
    for (folder, rooms, others) in
        [(root(), ROOMS, &["lib"][..]), (root().join("serve"), SERVE, &["mod", "toy"][..])]
    {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_stem().unwrap().to_str().unwrap();
            let known = rooms.split_whitespace().any(|room| room == name) || others.contains(&name);
            assert!(known, "{name} has no place among the rooms");
        }
    }
}

#[test]
fn only_the_front_end_and_the_processes_that_mount_know_fuse() {
    let mut named = 0;
    for source in sources(&root()) {
        let beside = FUSE.iter().any(|room| source.starts_with(root().join(room)));
        if text_of(&source).contains("pagefold_fuse::") {
            named += 1;
            assert!(beside, "{} names the FUSE crate", source.display());
        }
    }
    assert!(named > 5, "only {named} files name the FUSE crate: the test no longer sees the code");
}
