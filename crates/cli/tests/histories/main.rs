//! Random histories of what people do to the devices of a pool: copy, lose, return, swap, export, import, rename, make a copy a pool of its own. A model knows which
//! copy is which. Never may another one be opened than the model allows, never is one refused that it allows, and every copy opens to what it held.
//!
//! `PAGEFOLD_HISTORIES=200 cargo test -p pagefold-cli --test histories`; `PAGEFOLD_HISTORY=7` runs the one with that seed.
#![allow(clippy::unwrap_used, clippy::panic, reason = "in a test a panic is the report")]

mod acts;
#[path = "../common/mod.rs"]
mod common;
mod model;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};

use common::{Output, Sandbox};

/// Histories of an ordinary run.
const HISTORIES: u64 = 20;
/// Acts of a history.
const ACTS: usize = 18;

struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
        ((self.0 >> 33) as usize) % bound.max(1)
    }

    fn one_in(&mut self, bound: usize) -> bool {
        self.below(bound) == 0
    }

    fn pick<T: Clone>(&mut self, from: &[T]) -> Option<T> {
        from.get(self.below(from.len())).cloned()
    }
}

/// The contents of a pool at some time.
struct State {
    /// The state that it came from, and whether by the same opening.
    parent: Option<(usize, bool)>,
    snapshots: BTreeSet<String>,
    /// It was copied while its server ran.
    open: bool,
}

/// A file of the directory `d`, or of `vault`, which nobody searches.
#[derive(Clone, Debug, PartialEq)]
struct Device {
    member: usize,
    state: usize,
    guid: String,
    name: String,
}

#[derive(Clone, Debug)]
struct Known {
    name: String,
    paths: Vec<String>,
}

struct History {
    sandbox: Sandbox,
    random: Random,
    members: usize,
    states: Vec<State>,
    files: BTreeMap<String, Device>,
    /// By GUID.
    known: BTreeMap<String, Known>,
    /// The state of each GUID that was used here last.
    seen: BTreeMap<String, usize>,
    made: usize,
    log: Vec<String>,
}

impl History {
    fn new(seed: u64) -> Self {
        let sandbox = Sandbox::new();
        for dir in ["d", "vault", "mnt"] {
            sandbox.dir(dir);
        }
        let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) + 1);
        let members = 1 + random.below(3);
        let paths: Vec<String> = (0..members).map(|member| format!("d/o{member}.pf")).collect();
        let mut words = vec!["create", "tank", "--size", "131M"];
        words.extend(paths.iter().map(String::as_str));
        sandbox.ok(&words);
        let guid = sandbox.json(&["list", "tank"])["pools"][0]["guid"].as_str().unwrap().to_owned();
        let device = |member| Device { member, state: 0, guid: guid.clone(), name: "tank".into() };
        let files = paths.iter().cloned().zip((0..).map(device)).collect();
        Self {
            sandbox,
            random,
            members,
            states: vec![State { parent: None, snapshots: BTreeSet::new(), open: false }],
            files,
            known: BTreeMap::from([(guid.clone(), Known { name: "tank".into(), paths })]),
            seen: BTreeMap::from([(guid, 0)]),
            made: 0,
            log: Vec::new(),
        }
    }

    #[track_caller]
    fn fail(&self, what: &str) -> ! {
        panic!(
            "{what}\nhistory:\n  {}\nfiles: {:#?}\nseen: {:?}",
            self.log.join("\n  "),
            self.files,
            self.seen
        );
    }

    /// Runs the program. Where it is not to succeed, it must not, and must not have written to any device.
    fn run(&mut self, words: &[&str], allowed: bool) -> bool {
        let written = |history: &Self| -> Vec<_> {
            history
                .files
                .keys()
                .map(|path| fs::metadata(history.path(path)).unwrap().modified().unwrap())
                .collect()
        };
        let before = written(self);
        let Output { status, stderr, .. } = self.sandbox.run(words);
        self.log.push(format!(
            "{} -> {} {}",
            words.join(" "),
            status,
            stderr.lines().next().unwrap_or_default()
        ));
        match (status.success(), allowed) {
            (true, false) => self.fail("this should have been refused"),
            (false, true) => self.fail(&format!("this should be possible: {stderr}")),
            (false, false) if written(self) != before => self.fail("a device was written"),
            (done, _) => done,
        }
    }

    fn advance(
        &mut self,
        guid: &str,
        paths: &[String],
        parent: (usize, bool),
        snapshot: Option<String>,
    ) -> usize {
        let mut snapshots = self.states[parent.0].snapshots.clone();
        snapshots.extend(snapshot);
        self.states.push(State { parent: Some(parent), snapshots, open: false });
        let state = self.states.len() - 1;
        for path in paths {
            self.files.get_mut(path).unwrap().state = state;
        }
        self.seen.insert(guid.to_owned(), state);
        state
    }

    fn new_path(&mut self) -> String {
        self.made += 1;
        format!("d/c{}.pf", self.made)
    }
}

fn run(seed: u64) {
    let mut history = History::new(seed);
    for at in 0..ACTS {
        history.act();
        if at % 3 == 0 {
            history.check_listed();
        }
    }
    history.check_listed();
    history.check_contents();
}

#[test]
fn no_history_of_copies_opens_the_wrong_one() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    if let Some(seed) = number("PAGEFOLD_HISTORY") {
        return run(seed);
    }
    let count = number("PAGEFOLD_HISTORIES").unwrap_or(HISTORIES);
    let next = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    while let Some(seed) =
                        Some(next.fetch_add(1, Ordering::Relaxed)).filter(|seed| *seed < count)
                    {
                        eprintln!("history {seed}");
                        run(seed);
                    }
                })
            })
            .collect();
        for worker in workers {
            worker.join().unwrap();
        }
    });
}
