//! Tests that the figures of a pool are true: errors are counted when they are met, with the files that they strike,
//! over mounts; events outlive their server; nobody sets the pool's own figures; ratios count compression alone. Needs
//! root and /dev/fuse, as `make test` has them.

#![allow(clippy::unwrap_used, clippy::panic, reason = "in a test a panic is the report")]

mod common;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Stdio;

use common::{Sandbox, assert_failure, can_mount, kill_to_the_end, noise, wait_until};
use serde_json::Value;

const PAGE: usize = 8192;

/// Changes a bit of the device where these bytes lie.
fn damage(device: &Path, bytes: &[u8]) {
    let mut image = fs::read(device).unwrap();
    let places: Vec<usize> =
        (0..image.len() - 64).filter(|at| image[*at..].starts_with(&bytes[1000..1064])).collect();
    assert_eq!(places.len(), 1, "the page is stored once");
    image[places[0] + 20] ^= 8;
    fs::write(device, image).unwrap();
}

/// Reads a page of a file.
fn read(path: &Path, page: usize) -> Result<(), i32> {
    let mut out = vec![0; PAGE];
    let file = fs::File::open(path).unwrap();
    file.read_exact_at(&mut out, (page * PAGE) as u64)
        .map_err(|error| error.raw_os_error().unwrap_or_default())
}

/// A pool on a small device, mounted, with a file of four pages of which the third is damaged.
fn damaged() -> Sandbox {
    let sandbox = Sandbox::new();
    sandbox.dir("mnt");
    sandbox.ok(&["create", "tank", "tank.pf", "--size", "160M"]);
    sandbox.ok(&["mount", "-o", "recordsize=8192", "tank", "mnt"]);
    fs::create_dir(sandbox.path("mnt/base")).unwrap();
    let data = noise(7, 4 * PAGE);
    fs::write(sandbox.path("mnt/base/1"), &data).unwrap();
    fs::write(sandbox.path("mnt/base/other"), noise(8, 4 * PAGE)).unwrap();
    sandbox.ok(&["snapshot", "tank@before"]);
    sandbox.ok(&["unmount", "mnt"]);
    damage(&sandbox.path("tank.pf"), &data[2 * PAGE..]);
    sandbox.ok(&["mount", "tank", "mnt"]);
    sandbox
}

/// Read errors and wrong checksums of the only device.
fn checksums(pool: &Value) -> u64 {
    pool["devices"][0]["checksum_errors"].as_u64().unwrap()
}

fn names(pool: &Value) -> Vec<String> {
    let struck = pool["errors"]["struck"].as_array().unwrap();
    struck.iter().map(|struck| struck["name"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn errors_are_counted_with_the_files_that_they_strike_until_they_are_cleared() {
    if !can_mount() {
        return;
    }
    let sandbox = damaged();
    let path = sandbox.path("mnt/base/1");
    let pool = sandbox.pool();
    assert_eq!((checksums(&pool), names(&pool)), (0, vec![]));
    assert!(sandbox.ok(&["status", "tank"]).contains("errors: none"));
    assert!(sandbox.ok(&["status", "-x"]).contains("all pools are healthy"));

    assert_eq!(read(&path, 1), Ok(()));
    assert_eq!(read(&path, 2), Err(libc::EIO));
    let pool = sandbox.pool();
    assert!(checksums(&pool) >= 1, "{pool}");
    assert_eq!(names(&pool), ["tank:/base/1"]);
    let struck = &pool["errors"]["struck"][0];
    assert_eq!((struck["what"].as_str(), struck["offset"].as_u64()), (Some("file"), Some(2 * PAGE as u64)));
    assert_eq!(struck["device"], sandbox.path("tank.pf").to_str().unwrap());
    assert!(struck["place"].as_u64().unwrap() > 0);
    let told = sandbox.ok(&["status", "tank"]);
    assert!(told.contains("tank:/base/1 at byte 16384: ") && told.contains("wrong checksums"), "{told}");
    assert!(told.contains("action: copy these files from a backup"), "{told}");
    assert_failure(&sandbox.run(&["status", "-x"]), 1, &["something is wrong with tank"]);

    // By the name that the file has now, whatever it had then; and in a snapshot.
    fs::rename(&path, sandbox.path("mnt/moved")).unwrap();
    assert_eq!(read(&sandbox.path("mnt/.pagefold/snapshot/before/base/1"), 2), Err(libc::EIO));
    let mut found = names(&sandbox.pool());
    found.sort();
    assert_eq!(found, ["tank:/moved", "tank@before:/base/1"]);

    // Kept over a mount, and over the death of a server.
    let before = checksums(&sandbox.pool());
    sandbox.ok(&["unmount", "mnt"]);
    assert_eq!(checksums(&sandbox.pool()), before, "of a pool that is not mounted");
    sandbox.ok(&["mount", "tank", "mnt"]);
    assert_eq!(checksums(&sandbox.pool()), before);
    assert_eq!(names(&sandbox.pool()).len(), 2);

    let device = sandbox.path("tank.pf");
    assert_failure(
        &sandbox.run(&["clear", "tank", "/dev/null"]),
        1,
        &["is no device of pool tank", "tank.pf"],
    );
    let cleared = sandbox.ok(&["clear", "tank", device.to_str().unwrap()]);
    assert!(
        cleared.contains("tank:/moved at byte 16384") && cleared.contains("wrong checksums"),
        "{cleared}"
    );
    let pool = sandbox.pool();
    assert_eq!((checksums(&pool), names(&pool)), (0, vec![]));
    assert!(sandbox.ok(&["clear", "tank"]).contains("no errors were counted"));
    // Data that are still damaged are counted again.
    assert_eq!(read(&sandbox.path("mnt/moved"), 2), Err(libc::EIO));
    assert_eq!(names(&sandbox.pool()), ["tank:/moved"]);
    sandbox.ok(&["unmount", "mnt"]);
    let cleared = sandbox.json(&["clear", "tank"]);
    assert_eq!(cleared["cleared"]["struck"][0]["name"], "tank:/moved", "{cleared}");
    assert_eq!(checksums(&sandbox.pool()), 0);
}

#[test]
fn who_rereads_a_damaged_page_fills_neither_log_nor_list() {
    if !can_mount() {
        return;
    }
    let sandbox = damaged();
    let path = sandbox.path("mnt/base/1");
    (0..300).for_each(|_| assert_eq!(read(&path, 2), Err(libc::EIO)));
    let file = "file=tank:/base/1 offset=16384";
    wait_until(|| sandbox.ok(&["events", "tank"]).contains(file));
    let pool = sandbox.pool();
    assert!(checksums(&pool) >= 300 && names(&pool).len() == 1, "{pool}");
    let events = sandbox.ok(&["events", "tank"]);
    let line = events.lines().find(|line| line.contains(file)).unwrap();
    assert!(line.contains("device=") && line.contains("tank.pf") && line.contains(" place="), "{line}");
    let about = events.lines().filter(|line| line.contains("ERROR")).count();
    assert!((1..=12).contains(&about), "{about} lines:\n{events}");
    assert!(!events.contains("a request failed"), "{events}");
}

fn numbers(lines: &str) -> Vec<u64> {
    let number = |line: &str| serde_json::from_str::<Value>(line).unwrap()["number"].as_u64().unwrap();
    lines.lines().map(number).collect()
}

#[test]
fn events_outlive_their_server_and_are_followed_over_its_end() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::mounted("takeover=off");
    let first = numbers(&sandbox.ok(&["events", "tank", "--json"]));
    assert_eq!(first[0], 1);
    let mut follower =
        sandbox.command(&["events", "-f", "tank", "--json"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(follower.stdout.take().unwrap()).lines();
    let mut followed: Vec<u64> =
        (&mut lines).take(first.len()).map(|line| numbers(&line.unwrap())[0]).collect();
    let unmounted = sandbox.run(&["unmount", "mnt"]);
    assert!(unmounted.status.success());
    assert!(
        !unmounted.stderr.contains("has to end"),
        "who follows keeps nobody waiting: {}",
        unmounted.stderr
    );
    // Without a server they are read where they are kept.
    let kept = sandbox.ok(&["events", "tank"]);
    assert!(kept.contains("opened the pool") && kept.contains("the pool is closed"), "{kept}");
    sandbox.ok(&["mount", "tank", "mnt"]);
    let pid = i32::try_from(sandbox.pool()["pid"].as_u64().unwrap()).unwrap();
    kill_to_the_end(pid);
    let _ = sandbox.run(&["unmount", "mnt"]);
    sandbox.ok(&["mount", "tank", "mnt"]);
    sandbox.ok(&["set", "backup:keep=yes", "tank"]);
    let all = sandbox.ok(&["events", "tank", "--json"]);
    let of_all = numbers(&all);
    assert!(of_all.windows(2).all(|pair| pair[0] < pair[1]), "{of_all:?}");
    assert_eq!(all.matches("opened the pool").count(), 3, "{all}");
    // Each is printed once, in order, up to the last.
    let last = *of_all.last().unwrap();
    while followed.last().is_none_or(|number| *number < last) {
        followed.push(numbers(&lines.next().unwrap().unwrap())[0]);
    }
    assert!(followed.windows(2).all(|pair| pair[0] < pair[1]), "{followed:?}");
    follower.kill().unwrap();
    follower.wait().unwrap();
    // They go with their pool.
    let dir = sandbox.path("state/events");
    assert!(fs::read_dir(&dir).unwrap().count() == 2);
    sandbox.ok(&["unmount", "mnt"]);
    sandbox.ok(&["destroy", "-f", "tank"]);
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
}

#[test]
fn nobody_sets_what_is_the_pools_own_to_say() {
    let sandbox = Sandbox::new();
    sandbox.ok(&["create", "tank", "tank.pf", "--size", "160M"]);
    sandbox.ok(&["dataset", "create", "tank/db"]);
    sandbox.ok(&["snapshot", "tank/db@s"]);
    for name in
        ["pagefold:scrub", "pagefold:x", "receive:progress", "receive:origin", "policy:period", "branch:port"]
    {
        let setting = format!("{name}=3 1 2 3 4 5 0 0 0 0 1 1");
        let assert_refused =
            |words: &[&str]| assert_failure(&sandbox.run(words), 2, &[name, "pagefold's own"]);
        assert_refused(&["set", &setting, "tank"]);
        assert_refused(&["set", "backup:keep=yes", &setting, "tank/db"]);
        assert_refused(&["set", &setting, "tank/db@s"]);
        assert_refused(&["inherit", name, "tank"]);
        assert_refused(&["dataset", "create", "-o", &setting, "tank/new"]);
        assert_refused(&["snapshot", "-o", &setting, "tank/db@t"]);
        assert_refused(&["clone", "-o", &setting, "tank/db@s", "tank/clone"]);
    }
    let device = sandbox.path("other.pf");
    let words = ["create", "other", device.to_str().unwrap(), "--size", "160M", "-o", "pagefold:scrub=1"];
    assert_failure(&sandbox.run(&words), 2, &["pagefold:scrub"]);
    assert_eq!(
        sandbox.ok(&["get", "-H", "backup:keep", "tank/db"]),
        "",
        "nothing is set where one is refused"
    );
    assert_eq!(sandbox.ok(&["list", "-H", "-t", "all", "tank"]).lines().count(), 3);
}

/// The ratio that each command tells of the pool, and `get` and `list` of a dataset.
fn ratios(sandbox: &Sandbox, dataset: &str) -> ([f64; 4], [f64; 2]) {
    let parsed = |text: &str| text.trim().parse::<f64>().unwrap();
    let got = |name: &str| {
        let line = sandbox.ok(&["get", "-Hp", "compressratio", name]);
        parsed(line.split('\t').nth(2).unwrap())
    };
    let listed = |words: &[&str], column: usize| parsed(sandbox.ok(words).split('\t').nth(column).unwrap());
    let pool = sandbox.pool();
    let figure = |name: &str| pool[name].as_u64().unwrap() as f64;
    let of_pool = [
        figure("logical_bytes") / figure("physical_bytes"),
        got("tank"),
        listed(&["list", "-Hp", "tank"], 6),
        listed(&["df", "-Hp", "tank"], 3),
    ];
    (of_pool, [got(dataset), listed(&["list", "-Hp", "-t", "dataset", dataset], 6)])
}

#[test]
fn ratios_tell_of_compression_whatever_is_shared() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::new();
    sandbox.ok(&["create", "tank", "tank.pf", "--size", "256M", "-o", "compression=zstd"]);
    sandbox.ok(&["dataset", "create", "-o", "recordsize=8K", "tank/db"]);
    sandbox.dir("db");
    sandbox.ok(&["mount", "tank/db", "db"]);
    // Pages of which three quarters are one byte: about four to one.
    let page = |seed: u64| [noise(seed, PAGE / 4), vec![b'x'; PAGE - PAGE / 4]].concat();
    let data: Vec<u8> = (0..800).flat_map(page).collect();
    fs::write(sandbox.path("db/data"), &data).unwrap();
    sandbox.ok(&["sync", "db"]);
    let (pool, dataset) = ratios(&sandbox, "tank/db");
    let expected = dataset[0];
    assert!((3.0..4.2).contains(&expected), "{expected}");
    let near = |found: f64, what: &str| {
        assert!((found / expected - 1.0).abs() < 0.08, "{what}: {found} beside {expected}");
    };
    let all_near = |what: &str| {
        sandbox.ok(&["sync", "db"]);
        let (pool, dataset) = ratios(&sandbox, "tank/db");
        pool.into_iter().chain(dataset).for_each(|ratio| near(ratio, what));
        assert!(pool.iter().all(|ratio| (ratio - pool[0]).abs() < 0.011), "{what}: {pool:?}");
        assert!((dataset[0] - dataset[1]).abs() < 0.011, "{what}: {dataset:?}");
    };
    pool.into_iter().for_each(|ratio| near(ratio, "alone"));
    for n in 0..3 {
        sandbox.ok(&["snapshot", &format!("tank/db@s{n}")]);
        sandbox.ok(&["clone", &format!("tank/db@s{n}"), &format!("tank/clone{n}")]);
    }
    all_near("clones");
    let used = sandbox.pool()["used_bytes"].as_u64().unwrap();
    assert!(used < data.len() as u64 / 2, "clones share: {used}");
    // Shared within a file system, by copy_file_range.
    fs::copy(sandbox.path("db/data"), sandbox.path("db/copy")).unwrap();
    all_near("a copy");
    // The ratios leave out data that only snapshots hold.
    fs::write(sandbox.path("db/data"), (5000..5800).flat_map(page).collect::<Vec<u8>>()).unwrap();
    all_near("snapshots hold what was");
    // Holes are not stored, and are not compression.
    fs::File::create(sandbox.path("db/hole")).unwrap().set_len(1 << 30).unwrap();
    all_near("a hole");
    // A branch with something of its own.
    sandbox.dir("clone");
    sandbox.ok(&["mount", "tank/clone0", "clone"]);
    fs::write(sandbox.path("clone/more"), (9000..9100).flat_map(page).collect::<Vec<u8>>()).unwrap();
    sandbox.ok(&["sync", "clone"]);
    all_near("a clone that has changed");
    // `du` of the files, and of a snapshot's.
    let of_files = sandbox.json(&["du", "-s", "db/data", "db/copy"])["total"].clone();
    near(
        of_files["logical_bytes"].as_u64().unwrap() as f64
            / of_files["stored_bytes"].as_u64().unwrap() as f64,
        "du",
    );
    // Destroying a snapshot frees only what clones and other snapshots do not use; a snapshot has no room of its own.
    let of_snapshot = sandbox.ok(&["get", "-Hp", "all", "tank/db@s1"]);
    assert!(!of_snapshot.contains("\tavailable\t"), "{of_snapshot}");
}

#[test]
fn a_full_pool_tells_what_snapshots_hold() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::new();
    sandbox.dir("mnt");
    sandbox.ok(&["create", "tank", "tank.pf", "--size", "160M"]);
    sandbox.ok(&["mount", "tank", "mnt"]);
    for (n, megabytes) in [(1, 10), (2, 30)] {
        fs::write(sandbox.path("mnt/file"), noise(n, megabytes << 20)).unwrap();
        sandbox.ok(&["snapshot", &format!("tank@s{n}")]);
    }
    fs::remove_file(sandbox.path("mnt/file")).unwrap();
    let mut fill = fs::File::create(sandbox.path("mnt/fill")).unwrap();
    let full = (100..260).find_map(|seed| fill.write_all(&noise(seed, 1 << 20)).err());
    assert_eq!(full.and_then(|error| error.raw_os_error()), Some(libc::ENOSPC));
    // The file's pages are the snapshot's alone as soon as they have been freed.
    wait_until(|| sandbox.ok(&["status", "tank"]).contains("tank@s2 alone holds most, 3"));
    let told = sandbox.ok(&["status", "tank"]);
    assert!(told.contains("snapshots hold"), "{told}");
    assert!(told.contains("pagefold destroy -n tank@s2"), "{told}");
    let told = sandbox.ok(&["destroy", "-n", "tank@s2"]);
    assert!(told.contains("tank@s2"), "{told}");
}
