//! Random histories of what people do to the devices of a pool: copy, lose, return, swap, export, import, rename, make a copy a pool of its own. A model knows which
//! copy is which. Never may another one be opened than the model allows, never is one refused that it allows, and every copy opens to what it held.
//!
//! `PAGEFOLD_HISTORIES=200 cargo test -p pagefold-cli --test histories`; `PAGEFOLD_HISTORY=7` runs the one with that seed.

#![allow(clippy::unwrap_used, clippy::panic, reason = "in a test a panic is the report")]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

use common::{Output, Sandbox, can_mount};
use pagefold_engine::pool::{OpenOptions, Pool, Relation};

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

    /// The step below `old` on the way from it to `new`, and whether it is of the same opening; `None`: there is no such way.
    fn step(&self, old: usize, new: usize) -> Option<bool> {
        let mut at = new;
        while let Some((parent, same)) = self.states[at].parent {
            if parent == old {
                return Some(same);
            }
            at = parent;
        }
        None
    }

    /// How one state is to another. Of one that was copied while its server ran nobody knows whether it has more in its log than what followed.
    fn relation(&self, one: usize, other: usize) -> Relation {
        let apart = |old: usize, same: bool| self.states[old].open && !same;
        match (self.step(one, other), self.step(other, one)) {
            _ if one == other => Relation::Same,
            (Some(same), _) if !apart(one, same) => Relation::Before,
            (_, Some(same)) if !apart(other, same) => Relation::After,
            _ => Relation::Apart,
        }
    }

    /// How a state is to what is known of its pool.
    fn to_seen(&self, guid: &str, state: usize) -> Relation {
        match self.seen.get(guid) {
            None => Relation::After,
            Some(seen) if self.step(*seen, state).is_some() => Relation::After,
            Some(seen) => self.relation(state, *seen),
        }
    }

    /// The states of a pool that some of these files have, each with its files.
    fn versions(&self, files: &[String]) -> BTreeMap<(String, usize), Vec<String>> {
        let mut versions: BTreeMap<_, Vec<String>> = BTreeMap::new();
        for path in files {
            if let Some(device) = self.files.get(path) {
                versions.entry((device.guid.clone(), device.state)).or_default().push(path.clone());
            }
        }
        versions
    }

    /// Returns the state that `import` has to tell of a version that is found with others.
    fn expected(
        &self,
        versions: &BTreeMap<(String, usize), Vec<String>>,
        guid: &str,
        state: usize,
    ) -> &'static str {
        match self.to_seen(guid, state) {
            Relation::Before => return "OLD",
            Relation::Apart => return "APART",
            _ => {}
        }
        let others = versions.keys().filter(|(other, _)| other == guid);
        let relations: Vec<Relation> = others.map(|(_, other)| self.relation(state, *other)).collect();
        let files = &versions[&(guid.to_owned(), state)];
        let numbers: BTreeSet<usize> = files.iter().map(|path| self.files[path].member).collect();
        if relations.contains(&Relation::Before) {
            "OLD"
        } else if relations.contains(&Relation::Apart) {
            "APART"
        } else if numbers.len() < self.members {
            "INCOMPLETE"
        } else if files.len() > self.members {
            "COPIES"
        } else if self.states[state].open {
            "CRASHED"
        } else {
            "EXPORTED"
        }
    }

    /// The name that a version is found by: that of its first device.
    fn name_of(&self, files: &[String]) -> Vec<String> {
        let first = files.iter().map(|path| self.files[path].member).min();
        let of_first =
            files.iter().map(|path| &self.files[path]).filter(|device| Some(device.member) == first);
        of_first.map(|device| device.name.clone()).collect()
    }

    fn here(&self) -> Vec<String> {
        self.files.keys().filter(|path| path.starts_with("d/")).cloned().collect()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.sandbox.path(name)
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

    /// The state of these paths, if they are all devices of that pool, each once, and equally far.
    fn whole(&self, guid: &str, paths: &[String]) -> Option<usize> {
        let devices: Vec<&Device> = paths.iter().map(|path| self.files.get(path)).collect::<Option<_>>()?;
        let numbers: BTreeSet<usize> = devices.iter().map(|device| device.member).collect();
        let state = devices.first()?.state;
        let same = devices.iter().all(|device| device.state == state && device.guid == guid);
        (same && numbers.len() == self.members && devices.len() == self.members).then_some(state)
    }

    /// As [`History::whole`], if it may be opened by who knows what is known here.
    fn usable(&self, guid: &str, paths: &[String]) -> Option<usize> {
        let state = self.whole(guid, paths)?;
        matches!(self.to_seen(guid, state), Relation::Same | Relation::After).then_some(state)
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

/// Acts.
impl History {
    /// A pool that is known is written to.
    fn go_on(&mut self) {
        let Some((guid, known)) = self.any_known() else { return };
        self.made += 1;
        let snapshot = format!("s{}", self.made);
        let usable = self.usable(&guid, &known.paths);
        if self.run(&["snapshot", &format!("{}@{snapshot}", known.name)], usable.is_some()) {
            self.advance(&guid, &known.paths, (usable.unwrap(), false), Some(snapshot));
        }
    }

    /// A pool is mounted, written to, copied meanwhile, and unmounted.
    fn copy_live(&mut self) {
        let Some((guid, known)) = self.any_known() else { return };
        let (Some(state), 1, true) = (self.usable(&guid, &known.paths), self.members, can_mount()) else {
            return;
        };
        self.run(&["mount", &known.name, "mnt"], true);
        fs::write(self.path("mnt/file"), self.made.to_le_bytes()).unwrap();
        self.run(&["sync", &known.name], true);
        let to = self.new_path();
        self.copy_file(&known.paths[0], &to);
        self.run(&["unmount", &known.name], true);
        self.states.push(State {
            parent: Some((state, false)),
            snapshots: self.states[state].snapshots.clone(),
            open: true,
        });
        let live = self.states.len() - 1;
        self.files.get_mut(&to).unwrap().state = live;
        self.advance(&guid, &known.paths, (live, true), None);
    }

    fn copy_file(&mut self, from: &str, to: &str) {
        let copied =
            Command::new("cp").arg("--sparse=always").arg(self.path(from)).arg(self.path(to)).status();
        assert!(copied.unwrap().success());
        let device = self.files[from].clone();
        self.files.insert(to.into(), device);
        self.log.push(format!("cp {from} {to}"));
    }

    fn move_file(&mut self, from: &str, to: &str) {
        fs::rename(self.path(from), self.path(to)).unwrap();
        let device = self.files.remove(from).unwrap();
        self.files.insert(to.into(), device);
        self.log.push(format!("mv {from} {to}"));
    }

    /// One device is copied, or all of one version.
    fn copy(&mut self) {
        let all: Vec<String> = self.files.keys().cloned().collect();
        let Some(first) = self.random.pick(&all) else { return };
        let Device { guid, state, .. } = self.files[&first].clone();
        let same: Vec<String> = match self.random.one_in(3) {
            true => vec![first],
            false => self.versions(&all).remove(&(guid, state)).unwrap_or_default(),
        };
        if self.files.len() + same.len() > 12 {
            return;
        }
        for from in same {
            let to = self.new_path();
            self.copy_file(&from, &to);
        }
    }

    /// A device is lost.
    fn lose(&mut self) {
        if let Some(path) = self.random.pick(&self.here()) {
            let to = path.replacen("d/", "vault/", 1);
            if !self.files.contains_key(&to) {
                self.move_file(&path, &to);
            }
        }
    }

    /// A device that was lost, or any copy, comes to a path where a pool that is known has its device.
    fn put_back(&mut self) {
        let all: Vec<String> = self.files.keys().cloned().collect();
        let places: Vec<String> = self.known.values().flat_map(|known| known.paths.clone()).collect();
        let (Some(from), Some(to)) = (self.random.pick(&all), self.random.pick(&places)) else { return };
        if from == to {
            return;
        }
        if self.files.contains_key(&to) {
            self.made += 1;
            let aside = format!("vault/a{}.pf", self.made);
            self.move_file(&to, &aside);
        }
        self.move_file(&from, &to);
    }

    /// All that was lost comes back, to other paths.
    fn return_all(&mut self) {
        let lost: Vec<String> =
            self.files.keys().filter(|path| path.starts_with("vault/")).cloned().collect();
        for from in lost {
            let to = self.new_path();
            self.move_file(&from, &to);
        }
    }

    fn export(&mut self) {
        let Some((guid, known)) = self.any_known() else { return };
        let usable = self.usable(&guid, &known.paths);
        if self.run(&["export", &known.name], usable.is_some()) {
            // One that was exported before is only looked at.
            if let Some(state) = usable.filter(|state| self.states[*state].open) {
                self.advance(&guid, &known.paths, (state, false), None);
            }
        } else {
            self.run(&["export", "-f", &known.name], true);
        }
        self.known.remove(&guid);
    }

    /// By name, from all that is there.
    fn import(&mut self) {
        let here = self.here();
        let versions = self.versions(&here);
        let Some(wanted) = self.random.pick(&["tank".to_owned(), "tank".into(), "other".into()]) else {
            return;
        };
        let named: Vec<_> =
            versions.iter().filter(|(_, files)| self.name_of(files).contains(&wanted)).collect();
        // Copies that are alike but for their names are found by either; nobody can say which.
        if named.iter().any(|(_, files)| self.name_of(files).iter().any(|name| *name != wanted)) {
            return;
        }
        let current: Vec<_> = named
            .iter()
            .filter(|((guid, state), _)| !matches!(self.expected(&versions, guid, *state), "OLD" | "APART"))
            .collect();
        let chosen = match current.as_slice() {
            [((guid, state), files)] => {
                let state = self.expected(&versions, guid, *state);
                matches!(state, "EXPORTED" | "CRASHED").then(|| (guid.clone(), (*files).clone()))
            }
            _ => None,
        };
        self.remember(&["import", "-d", "d", &wanted], chosen, &wanted, false);
    }

    /// By devices: those of one version, or any.
    fn import_devices(&mut self) {
        let Some(paths) = self.some_devices() else { return };
        let guid = self.files[&paths[0]].guid.clone();
        let older = self.random.one_in(3);
        let versions = self.versions(&paths);
        let of_guid: Vec<_> = versions.iter().filter(|((other, _), _)| *other == guid).collect();
        let current: Vec<_> = of_guid
            .iter()
            .filter(|((guid, state), _)| !matches!(self.expected(&versions, guid, *state), "OLD" | "APART"))
            .collect();
        let files = match (older, of_guid.as_slice(), current.as_slice()) {
            (true, [(_, files)], _) | (false, _, [(_, files)]) => Some((*files).clone()),
            _ => None,
        };
        let chosen = files.filter(|files| self.whole(&guid, files).is_some());
        let name = chosen.as_ref().map_or_else(String::new, |files| self.name_of(files)[0].clone());
        let mut words = vec!["import"];
        words.extend(paths.iter().flat_map(|path| ["-d", path.as_str()]));
        words.push(&guid);
        words.extend(older.then_some("--accept-older"));
        let chosen = chosen.map(|files| (guid.clone(), files));
        self.remember(&words, chosen, &name, older);
    }

    /// Imports; what is chosen is remembered by `name` if no other pool has that.
    fn remember(&mut self, words: &[&str], chosen: Option<(String, Vec<String>)>, name: &str, older: bool) {
        let free = |guid: &str| self.known.iter().all(|(other, known)| other == guid || known.name != name);
        let chosen = chosen.filter(|(guid, _)| free(guid));
        if self.run(words, chosen.is_some()) {
            let (guid, mut paths) = chosen.unwrap();
            paths.sort_by_key(|path| self.files[path].member);
            let state = self.files[&paths[0]].state;
            if older && !matches!(self.to_seen(&guid, state), Relation::Same | Relation::After) {
                self.seen.insert(guid.clone(), state);
            }
            self.known.insert(guid, Known { name: name.into(), paths });
        }
    }

    fn rename(&mut self) {
        let Some((guid, known)) = self.any_known() else { return };
        let name = if known.name == "tank" { "other" } else { "tank" };
        let here: Vec<String> =
            known.paths.iter().filter(|path| self.files.contains_key(*path)).cloned().collect();
        if here.len() < known.paths.len() {
            return;
        }
        let possible =
            self.usable(&guid, &here).is_some() && self.known.values().all(|other| other.name != name);
        let mut words = vec!["import"];
        words.extend(here.iter().flat_map(|path| ["-d", path.as_str()]));
        words.extend([guid.as_str(), name]);
        if self.run(&words, possible) {
            for path in &here {
                self.files.get_mut(path).unwrap().name = name.into();
            }
            self.known.get_mut(&guid).unwrap().name = name.into();
        }
    }

    /// Devices become a pool of their own, if they are one.
    fn reguid(&mut self) {
        let Some(paths) = self.some_devices() else { return };
        let guid = self.files[&paths[0]].guid.clone();
        let state = self.whole(&guid, &paths);
        let mut words = vec!["reguid"];
        words.extend(paths.iter().flat_map(|path| ["--device", path.as_str()]));
        if !self.run(&words, state.is_some()) {
            return;
        }
        let mut words = vec!["import"];
        words.extend(paths.iter().flat_map(|path| ["-d", path.as_str()]));
        let new = self.sandbox.json(&words)["pools"][0]["guid"].as_str().unwrap().to_owned();
        for path in &paths {
            self.files.get_mut(path).unwrap().guid.clone_from(&new);
        }
        let same = |known: &Known| known.paths.iter().collect::<BTreeSet<_>>() == paths.iter().collect();
        if self.known.get(&guid).is_some_and(same) {
            let known = self.known.remove(&guid).unwrap();
            self.known.insert(new.clone(), known);
            self.seen.insert(new, state.unwrap());
        }
    }

    /// Devices of one version and each once, or (seldom) any.
    fn some_devices(&mut self) -> Option<Vec<String>> {
        let here = self.here();
        let first = self.random.pick(&here)?;
        if self.random.one_in(4) {
            let count = 1 + self.random.below(self.members);
            let any: BTreeSet<String> = (0..count).filter_map(|_| self.random.pick(&here)).collect();
            return Some(any.into_iter().collect());
        }
        let Device { guid, state, .. } = self.files[&first].clone();
        let mut by_member = BTreeMap::from([(self.files[&first].member, first)]);
        for path in self.versions(&here).remove(&(guid, state))? {
            by_member.entry(self.files[&path].member).or_insert(path);
        }
        Some(by_member.into_values().collect())
    }

    fn any_known(&mut self) -> Option<(String, Known)> {
        let all: Vec<_> = self.known.iter().map(|(guid, known)| (guid.clone(), known.clone())).collect();
        self.random.pick(&all)
    }

    fn act(&mut self) {
        match self.random.below(20) {
            0..=3 => self.go_on(),
            4..=6 => self.copy(),
            7 => self.copy_live(),
            8 => self.lose(),
            9..=10 => self.put_back(),
            11 => self.return_all(),
            12..=13 => self.export(),
            14..=15 => self.import(),
            16..=17 => self.import_devices(),
            18 => self.rename(),
            _ => self.reguid(),
        }
    }
}

/// Checks that have to hold whatever happened.
impl History {
    /// `import` tells of every device what it is.
    fn check_listed(&self) {
        let here = self.here();
        let versions = self.versions(&here);
        let listed = self.sandbox.json(&["import", "-d", "d"]);
        let mut found: Vec<(String, BTreeSet<String>, String)> = Vec::new();
        for pool in listed["pools"].as_array().unwrap() {
            let alike = pool["alike"].as_array().unwrap().iter().flat_map(|group| group.as_array().unwrap());
            let name = |path: &serde_json::Value| {
                format!("d/{}", PathBuf::from(path.as_str().unwrap()).file_name().unwrap().to_str().unwrap())
            };
            let files = pool["devices"].as_array().unwrap().iter().chain(alike).map(name).collect();
            found.push((
                pool["guid"].as_str().unwrap().into(),
                files,
                pool["state"].as_str().unwrap().into(),
            ));
        }
        found.sort();
        let mut expected: Vec<_> = versions
            .iter()
            .map(|((guid, state), files)| {
                let told = self.expected(&versions, guid, *state).to_owned();
                (guid.clone(), files.iter().cloned().collect::<BTreeSet<_>>(), told)
            })
            .collect();
        expected.sort();
        if found != expected {
            self.fail(&format!("import tells {found:#?}\nand not {expected:#?}"));
        }
    }

    /// Every copy of which all devices are there opens, and holds what it held.
    fn check_contents(&self) {
        let all: Vec<String> = self.files.keys().cloned().collect();
        for ((guid, state), files) in self.versions(&all) {
            let by_member: BTreeMap<usize, &String> =
                files.iter().map(|path| (self.files[path].member, path)).collect();
            if by_member.len() < self.members {
                continue;
            }
            let paths: Vec<PathBuf> = by_member.values().map(|path| self.path(path)).collect();
            let options = OpenOptions { read_only: true, cache_bytes: 8 << 20, ..OpenOptions::default() };
            let pool = Pool::open(&paths, &options)
                .unwrap_or_else(|error| self.fail(&format!("{paths:?} no longer opens: {error}")));
            let listed = pool.list().unwrap();
            let found: BTreeSet<String> =
                listed.iter().filter_map(|one| Some(one.path.split_once('@')?.1.to_owned())).collect();
            if found != self.states[state].snapshots || pool.guid().to_string() != guid {
                self.fail(&format!("{paths:?} hold {found:?} and not {:?}", self.states[state].snapshots));
            }
        }
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
