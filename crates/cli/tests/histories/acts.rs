//! The acts of a history.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::Command;

use pagefold_engine::pool::Relation;

use super::{Device, History, Known, State};
use crate::common::can_mount;

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

    pub(super) fn act(&mut self) {
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
