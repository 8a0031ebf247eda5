//! Thin capacity and forecasts as users have them, with real mounts. Needs root and /dev/fuse, as `make test` has them.

#![allow(clippy::unwrap_used, clippy::panic, reason = "in a test a panic is the report")]

mod common;

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use common::{Sandbox, assert_failure, can_mount, wait_until};
use pagefold_engine::dataset::Change;
use pagefold_engine::pool::{OpenOptions, Pool};

const MIB: u64 = 1 << 20;

fn noise(bytes: u64) -> Vec<u8> {
    let mut data = Vec::new();
    File::open("/dev/urandom").unwrap().take(bytes).read_to_end(&mut data).unwrap();
    data
}

/// Size, free and available bytes of a mount.
fn df(dir: &Path) -> (u64, u64, u64) {
    let told = rustix::fs::statvfs(dir).unwrap();
    (told.f_blocks * told.f_frsize, told.f_bfree * told.f_frsize, told.f_bavail * told.f_frsize)
}

/// Writes noise into a new file until there is no room.
fn fill(path: &Path) {
    let mut file = File::create(path).unwrap();
    for step in [MIB, 64 << 10, 4 << 10] {
        loop {
            match file.write_all(&noise(step)) {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::StorageFull => break,
                Err(error) => panic!("{error}"),
            }
        }
    }
}

fn thin(sandbox: &Sandbox, figure: &str) -> u64 {
    sandbox.pool()["thin"][figure].as_u64().unwrap()
}

#[test]
fn what_was_promised_is_told_warned_of_and_survives_the_physical_limit() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::new();
    let mnt = sandbox.dir("mnt");
    let made = sandbox.ok(&["create", "tank", "tank.pf", "--size", "256M", "-o", "logicalcapacity=2x"]);
    assert!(made.starts_with("tank: ") && made.contains(" for data, of "), "{made}");
    sandbox.ok(&["mount", "tank", "mnt"]);
    assert_eq!(sandbox.ok(&["get", "-Hp", "logicalcapacity", "tank"]), "tank\tlogicalcapacity\t2x\tlocal\n");
    let capacity = sandbox.pool()["capacity_bytes"].as_u64().unwrap();
    let (size, free, available) = df(&mnt);
    assert!(size.abs_diff(2 * capacity) < 8192 && free >= available && available > size - 16 * MIB);
    // It does not compress.
    fs::write(mnt.join("first"), noise(24 * MIB)).unwrap();
    sandbox.ok(&["sync", "tank"]);
    wait_until(|| sandbox.ok(&["events", "tank"]).contains("the pool promises "));
    // A part of it was stored when that was told.
    wait_until(|| sandbox.ok(&["status", "tank"]).contains("pagefold set logicalcapacity=1.0x tank"));
    let told = sandbox.ok(&["status", "tank"]);
    assert!(told.contains("thin: logicalcapacity=2x tells ") && told.contains("this pool holds "), "{told}");
    assert!(
        told.contains("it promises ") && told.contains("pagefold set logicalcapacity=1.0x tank"),
        "{told}"
    );
    assert!(thin(&sandbox, "holds_bytes") < capacity + capacity / 20);
    // This is no problem of the kind that monitoring is to report.
    sandbox.ok(&["status", "-x"]);
    // The physical end.
    fill(&mnt.join("second"));
    sandbox.ok(&["sync", "tank"]);
    wait_until(|| df(&mnt).2 == 0);
    let (size, free, _) = df(&mnt);
    assert!(
        size.abs_diff(2 * capacity) < 8192 && free > capacity / 2,
        "{free} of {size} are promised and not there"
    );
    assert!(sandbox.ok(&["status", "tank"]).contains(" % full: "));
    // Calls that free space go on, and all others once a device was added.
    fs::remove_file(mnt.join("first")).unwrap();
    fs::write(mnt.join("third"), noise(16 * MIB)).unwrap();
    sandbox.ok(&["add", "tank", "more.pf", "--size", "256M"]);
    assert!(df(&mnt).0 > 4 * capacity, "a factor promises more of a larger pool");
    fs::write(mnt.join("fourth"), noise(64 * MIB)).unwrap();
    // A promise that is kept.
    sandbox.ok(&["set", "logicalcapacity=auto", "tank"]);
    assert!(!sandbox.ok(&["status", "tank"]).contains("it promises"));
    assert!(df(&mnt).0.abs_diff(thin(&sandbox, "size_bytes")) < 16 * MIB);
    sandbox.ok(&["set", "logicalcapacity=8T", "tank"]);
    assert_eq!(df(&mnt).0, 8 << 40);
    sandbox.ok(&["inherit", "logicalcapacity", "tank"]);
    assert_eq!(df(&mnt).0, sandbox.pool()["capacity_bytes"].as_u64().unwrap() / 4096 * 4096);
    assert!(sandbox.pool()["thin"].is_null());
    let wrong = sandbox.run(&["set", "logicalcapacity=0.5x", "tank"]);
    assert_failure(&wrong, 2, &["is not a value of logicalcapacity", "1x to 100x"]);
    sandbox.ok(&["dataset", "create", "tank/db"]);
    let below = sandbox.run(&["set", "logicalcapacity=2x", "tank/db"]);
    assert_failure(&below, 1, &["holds for the whole pool"]);
    sandbox.ok(&["unmount", "tank"]);
    sandbox.ok(&["check", "tank"]);
}

#[test]
fn a_pool_that_grows_tells_when_it_is_full() {
    let sandbox = Sandbox::new();
    sandbox.ok(&["create", "tank", "tank.pf", "--size", "512M"]);
    assert!(sandbox.pool()["forecast"].is_null());
    // 8 MiB a day, for three weeks until now.
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let pool = Pool::open(&[sandbox.path("tank.pf")], &OpenOptions::default()).unwrap();
    for day in 0..=21 {
        for piece in day * 8..day * 8 + 8 {
            let (object, data) = (1 << 40, noise(MIB));
            let write = Change::Write { object, record_size: 16384, offset: piece * MIB, data: &data };
            pool.dataset().apply(&[write]).unwrap();
        }
        pool.sync().unwrap();
        pool.note_space(now - (21 - day) * 86_400);
    }
    let left = pool.status().available_bytes / (8 * MIB);
    pool.export().unwrap();
    drop(pool);
    let days = |pool: &serde_json::Value| pool["forecast"]["full_in_days"].as_u64().unwrap();
    let told = days(&sandbox.pool());
    assert!((left - 1..=left).contains(&told), "{told} days, and room for {left} is left");
    let shown = sandbox.ok(&["status", "tank"]);
    assert!(shown.contains(&format!("full in: {told} days, if it grows by 8.0")), "{shown}");
    assert!(shown.contains("add room before: pagefold add tank DEVICE"), "{shown}");
    // Somebody else has half of the rest reserved.
    sandbox.ok(&["dataset", "create", "-o", &format!("reservation={}M", left * 4), "tank/other"]);
    let less = days(&sandbox.pool());
    assert!((told / 2 - 1..=told / 2 + 1).contains(&less), "{less} days of {told}");
    if !can_mount() {
        return;
    }
    sandbox.dir("mnt");
    sandbox.ok(&["mount", "tank", "mnt"]);
    wait_until(|| sandbox.ok(&["events", "tank"]).contains("if it grows as it did"));
    let exact = sandbox.ok(&["df", "-Hp", "tank"]);
    let told = days(&sandbox.json(&["df", "tank"])["pools"][0]);
    assert_eq!(exact.split('\t').nth(7), Some(told.to_string().as_str()), "{exact}");
    assert!(sandbox.ok(&["df", "tank"]).contains("FULL IN"));
    sandbox.ok(&["unmount", "tank"]);
}
