//! Runs a slice of the comparison that every test run can afford; `make posix` runs more.
#![allow(clippy::panic, clippy::unwrap_used, reason = "a test")]

use std::process::Command;

use pagefold_posix::history::History;
use pagefold_posix::op::{Op, Path, Step, Target};
use pagefold_posix::run::{Pair, run};
use pagefold_posix::shrink::shrink;

/// Runs the program as `make posix` does, and returns what it printed.
fn compare(args: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_pagefold-posix")).args(args).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{args:?} found something:\n{text}{errors}");
    text
}

#[test]
fn the_same_calls_have_the_same_results() {
    let text = compare(&["--ops", "100000", "--seconds", "40"]);
    assert!(text.contains(" 0 differences"), "{text}");
}

#[test]
fn no_byte_is_older_than_a_completed_write() {
    let text = compare(&["coherence", "--seconds", "4", "--transport", "dev"]);
    assert!(text.contains("; 0 stale"), "{text}");
    // The parameter belongs to the machine, so it is set back afterwards.
    let parameter = "/sys/module/fuse/parameters/enable_uring";
    let Ok(before) = std::fs::read_to_string(parameter) else { return };
    std::fs::write(parameter, "Y").unwrap();
    let text =
        std::panic::catch_unwind(|| compare(&["coherence", "--seconds", "4", "--transport", "io_uring"]));
    std::fs::write(parameter, before.trim()).unwrap();
    let text = text.unwrap();
    assert!(text.contains("; 0 stale"), "{text}");
}

/// Shows that the comparison can fail: one of two directories has a neighbour that the other has not, and one call of
/// many sees it.
#[test]
fn a_difference_is_found_and_shrunk() {
    let place = tempfile::Builder::new().prefix("pagefold-posix-").tempdir().unwrap();
    let pair = Pair { subject: place.path().join("one"), reference: place.path().join("two") };
    for dir in [&pair.subject, &pair.reference] {
        std::fs::create_dir(dir).unwrap();
    }
    std::fs::write(pair.subject.join("neighbour"), b"").unwrap();
    let mut history = History::new(3);
    history.steps.truncate(40);
    assert!(run(&history, &pair).unwrap().is_ok());
    let path = Path::new(b"../../../../../../../../../neighbour");
    history.steps.insert(20, Step { who: 0, op: Op::Stat { target: Target::Path(path, true) } });
    let failure = run(&history, &pair).unwrap().unwrap_err();
    assert_eq!(failure.step, 20, "{}", failure.what);
    let (short, _) = shrink(&history, &failure, &pair, 100).unwrap().unwrap();
    assert_eq!(short.steps, history.steps[20..21]);
    let left = std::fs::read_dir(&pair.reference).unwrap().count();
    assert_eq!(left, 0, "histories leave nothing behind");
}
