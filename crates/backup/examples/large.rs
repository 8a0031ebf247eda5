//! Measures the resident memory of steps that read a repository with the manifest of a very large backup, which is made
//! up. Each step has a process of its own.
//! `large [--tb 10] [--dir DIR]`
#![allow(clippy::unwrap_used, reason = "a program for measurements")]

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use pagefold_backup::{CreateOptions, Location, Repository, Seen, Store, crafted};
use pagefold_engine::Key;
use pagefold_engine::pool::{Origin, StreamHead, StreamWriter};

const STEPS: [&str; 6] = ["make", "list", "verify", "create", "restore", "repack"];
/// Memory in MiB that each step may take, apart from the making and the repacking.
const MIB_MAX: u64 = 256;

fn store(dir: &Path) -> Store {
    Store::open(&Location::Directory(dir.into()), true).unwrap()
}

/// The most that was resident, in MiB.
fn resident_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() >> 10
}

fn changed() -> Vec<u8> {
    let to = Origin { number: 2, created: 2, ..crafted::origin() };
    let head =
        StreamHead { to, from: Some(crafted::origin()), after: None, name: "two".into(), expected_bytes: 0 };
    let mut out = Vec::new();
    let mut writer = StreamWriter::new(&mut out, &head).unwrap();
    // Before all pages, and behind them: two chunks are read and written.
    writer.put(Key::new(2, 2, 7), b"a value").unwrap();
    writer.put(Key::new(9, 2, 7), b"a value").unwrap();
    writer.end().unwrap();
    out
}

fn step(name: &str, dir: &Path, tb: f64) -> String {
    if name == "make" {
        let backup = crafted::large(store(dir), (tb * 1e12 / 8192.0) as u64).unwrap();
        return format!("{} pages, {} bytes of them", backup.totals.pages, backup.totals.pages * 8192);
    }
    let repository = Repository::open(store(dir), Seen::default(), None).unwrap();
    let backups = repository.backups().unwrap();
    match name {
        "list" => format!("{} backups", backups.len()),
        "verify" => {
            let checked = repository.verify(&backups[..1], 0.001, 1, &mut |_| {}).unwrap();
            assert_eq!(checked.damages, 0, "{:?}", checked.told);
            format!("{} chunks, {} records, a sample of 0.1%", checked.chunks, checked.records)
        }
        "create" => {
            let options = CreateOptions {
                pool: "tank".into(),
                dataset: "db".into(),
                made: 2,
                ..CreateOptions::default()
            };
            let created = repository.create(&mut changed().as_slice(), &options, &mut |_, _| {}).unwrap();
            format!("{} bytes added, {:?}", created.backup.added_bytes, repository.store().requests())
        }
        "restore" => {
            let mut out = Vec::new();
            let done =
                repository.restore(&backups[1], backups.first(), None, &mut out, &mut |_, _| {}).unwrap();
            format!("{} values, what the second has that the first has not", done.values)
        }
        _ => {
            // The packs of a made up backup are not there: that is told, after all manifests' roots were read.
            let told = repository.repack(1 << 30, true).unwrap_err();
            format!("{told}")
        }
    }
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let after =
        |word: &str| words.iter().position(|one| one == word).and_then(|at| words.get(at + 1)).cloned();
    let tb: f64 = after("--tb").map_or(10.0, |tb| tb.parse().unwrap());
    let scratch = std::env::temp_dir().join(format!("pagefold-large-{}", std::process::id()));
    let dir = after("--dir").map_or_else(|| scratch.clone(), Into::into);
    if let Some(name) = after("--step") {
        let begun = Instant::now();
        let told = step(&name, &dir, tb);
        let mib = resident_mib();
        println!("{name}: {mib} MiB resident, {:.1} s; {told}", begun.elapsed().as_secs_f64());
        let is_bound = !["make", "repack"].contains(&name.as_str());
        assert!(!is_bound || mib < MIB_MAX, "{name} took {mib} MiB, and may take {MIB_MAX}");
        return;
    }
    let program = std::env::current_exe().unwrap();
    let done = STEPS.iter().all(|name| {
        let words = ["--step", name, "--tb", &tb.to_string(), "--dir"];
        Command::new(&program).args(words).arg(&dir).status().unwrap().success()
    });
    let _ = std::fs::remove_dir_all(&scratch);
    assert!(done, "a step failed");
}
