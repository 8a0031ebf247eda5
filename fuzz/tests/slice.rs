//! Tries the inputs that were found before, and some thousand mutations, on every target.
#![allow(clippy::panic, clippy::unwrap_used, reason = "a test")]

use std::path::Path;
use std::time::Duration;

use pagefold_fuzz::targets::TARGETS;
use pagefold_fuzz::{memory, run};

#[global_allocator]
static ALLOCATOR: memory::Noting = memory::Noting;

/// Attacks all targets. This is one test, since allocations are noted for the whole process.
#[test]
fn decoders_withstand_hostile_bytes() {
    #[cfg(debug_assertions)]
    planted_faults_are_found();
    let found = Path::new(env!("CARGO_MANIFEST_DIR")).join("found");
    for target in TARGETS {
        let seeds = (target.seeds)();
        let bytes: usize = seeds.iter().map(Vec::len).sum();
        assert!(!seeds.is_empty() && bytes < 1 << 20, "{}: {bytes} bytes of seeds", target.name);
        let accepted = seeds.iter().filter(|seed| run::try_input(target, seed) == Ok(true)).count();
        assert!(accepted > 0, "{} accepts none of its seeds", target.name);
        for (name, bytes) in run::found(target, &found).unwrap() {
            if let Err(what) = run::try_input(target, &bytes) {
                panic!("{name}: {what}");
            }
        }
        match run::attack(target, 20_261_120, 20_000, Duration::from_secs(2)) {
            Ok(stats) => assert!(stats.executions > 0),
            Err(finding) => {
                panic!("{}: {} by {}", target.name, finding.what, finding.bytes.escape_ascii());
            }
        }
    }
}

/// Shows that the attack finds faults: it finds planted ones of each kind.
#[cfg(debug_assertions)]
fn planted_faults_are_found() {
    let seeds = || vec![vec![1, 2, 3, 4, 5, 6, 7, 8]];
    let sum = |bytes: &[u8]| bytes.iter().sum::<u8>() > 0;
    let index = |bytes: &[u8]| bytes.is_empty() || bytes[usize::from(bytes[0])] > 0;
    let reserve = |bytes: &[u8]| {
        bytes.len() < 8
            || std::hint::black_box(Vec::<u8>::with_capacity(usize::from(bytes[7]) << 20)).is_empty()
    };
    for run in [sum as fn(&[u8]) -> bool, index, reserve] {
        let target = pagefold_fuzz::Target { name: "planted", run, seeds };
        assert!(run::attack(&target, 1, 10_000, Duration::from_secs(60)).is_err());
    }
}
