//! The model: which device has which state of which pool, and what a command must do; and the checks of it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use pagefold_engine::pool::{OpenOptions, Pool, Relation};

use super::{Device, History};

impl History {
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
    pub(super) fn to_seen(&self, guid: &str, state: usize) -> Relation {
        match self.seen.get(guid) {
            None => Relation::After,
            Some(seen) if self.step(*seen, state).is_some() => Relation::After,
            Some(seen) => self.relation(state, *seen),
        }
    }

    /// The states of a pool that some of these files have, each with its files.
    pub(super) fn versions(&self, files: &[String]) -> BTreeMap<(String, usize), Vec<String>> {
        let mut versions: BTreeMap<_, Vec<String>> = BTreeMap::new();
        for path in files {
            if let Some(device) = self.files.get(path) {
                versions.entry((device.guid.clone(), device.state)).or_default().push(path.clone());
            }
        }
        versions
    }

    /// Returns the state that `import` has to tell of a version that is found with others.
    pub(super) fn expected(
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
    pub(super) fn name_of(&self, files: &[String]) -> Vec<String> {
        let first = files.iter().map(|path| self.files[path].member).min();
        let of_first =
            files.iter().map(|path| &self.files[path]).filter(|device| Some(device.member) == first);
        of_first.map(|device| device.name.clone()).collect()
    }

    pub(super) fn here(&self) -> Vec<String> {
        self.files.keys().filter(|path| path.starts_with("d/")).cloned().collect()
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.sandbox.path(name)
    }

    /// The state of these paths, if they are all devices of that pool, each once, and equally far.
    pub(super) fn whole(&self, guid: &str, paths: &[String]) -> Option<usize> {
        let devices: Vec<&Device> = paths.iter().map(|path| self.files.get(path)).collect::<Option<_>>()?;
        let numbers: BTreeSet<usize> = devices.iter().map(|device| device.member).collect();
        let state = devices.first()?.state;
        let same = devices.iter().all(|device| device.state == state && device.guid == guid);
        (same && numbers.len() == self.members && devices.len() == self.members).then_some(state)
    }

    /// As [`History::whole`], if it may be opened by who knows what is known here.
    pub(super) fn usable(&self, guid: &str, paths: &[String]) -> Option<usize> {
        let state = self.whole(guid, paths)?;
        matches!(self.to_seen(guid, state), Relation::Same | Relation::After).then_some(state)
    }
}

impl History {
    /// `import` tells of every device what it is.
    pub(super) fn check_listed(&self) {
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
    pub(super) fn check_contents(&self) {
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
