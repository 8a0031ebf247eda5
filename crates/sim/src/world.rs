//! Models the content of a pool: its datasets and their snapshots, each a copy.

use std::collections::BTreeMap;

use crate::graft;
use crate::history::{Act, CatalogueOp, DATASETS};
use crate::model::State;

/// The one hold that histories use.
pub const TAG: &str = "tag";

/// A snapshot.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// Its name.
    pub name: String,
    /// Content.
    pub state: State,
    /// True if it is held.
    pub held: bool,
    /// Identity, which it shares with all snapshots that were received from it.
    pub origin: u64,
}

/// A dataset.
#[derive(Clone, Debug, Default)]
pub struct Set {
    /// Content.
    pub state: State,
    /// Its snapshots, oldest first.
    pub snapshots: Vec<Snapshot>,
    /// Dataset and name of the snapshot that it was cloned from.
    pub origin: Option<(String, String)>,
}

/// All datasets by path.
#[derive(Clone, Debug)]
pub struct World {
    /// The datasets.
    pub sets: BTreeMap<String, Set>,
    /// Number of snapshots that were made.
    pub made: u64,
}

impl Default for World {
    fn default() -> Self {
        Self { sets: BTreeMap::from([(String::new(), Set::default())]), made: 0 }
    }
}

/// Tells one state of a world from another: path, origin, whether it is held, and number of the last change, of each
/// dataset and snapshot.
pub type Signature = Vec<(String, Option<String>, bool, u64)>;

fn split(path: &str) -> (String, String) {
    let (dataset, name) = path.split_once('@').unwrap_or((path, ""));
    (dataset.into(), name.into())
}

impl World {
    /// Applies a change to a dataset. Without a dataset of this path, nothing happens.
    pub fn apply(&mut self, path: &str, id: u64, acts: &[Act]) {
        if let Some(set) = self.sets.get_mut(path) {
            set.state.apply(id, acts);
        }
    }

    /// Returns the states of all datasets and snapshots, with their paths.
    pub fn states(&self) -> impl Iterator<Item = (String, &State)> {
        self.sets.iter().flat_map(|(path, set)| {
            let snapshots = set.snapshots.iter().map(move |one| (format!("{path}@{}", one.name), &one.state));
            std::iter::once((path.clone(), &set.state)).chain(snapshots)
        })
    }

    /// Returns the world's signature.
    pub fn signature(&self) -> Signature {
        let origin = |path: &str| {
            let (of, name) = self.sets.get(path)?.origin.as_ref()?;
            Some(format!("{of}@{name}"))
        };
        let held = |path: &str| {
            let (of, name) = split(path);
            self.sets.get(&of).is_some_and(|set| set.snapshots.iter().any(|one| one.name == name && one.held))
        };
        self.states().map(|(path, state)| (path.clone(), origin(&path), held(&path), state.id)).collect()
    }

    fn snapshot(&mut self, path: &str) -> Option<&mut Snapshot> {
        let (of, name) = split(path);
        self.sets.get_mut(&of)?.snapshots.iter_mut().find(|one| one.name == name)
    }

    fn has_clone(&self, path: &str) -> bool {
        let origin = split(path);
        self.sets.values().any(|set| set.origin.as_ref() == Some(&origin))
    }

    fn is_new(&self, path: &str) -> bool {
        let parent = path.rsplit_once('/').map(|(parent, _)| parent);
        !self.sets.contains_key(path) && parent.is_none_or(|parent| self.sets.contains_key(parent))
    }

    fn below(&self, path: &str) -> Vec<String> {
        let below = |other: &&String| other.strip_prefix(path).is_some_and(|rest| rest.starts_with('/'));
        self.sets.keys().filter(below).cloned().collect()
    }

    /// Returns the world after an operation on the catalogue, or `None` if it is not possible.
    pub fn after(&self, op: &CatalogueOp) -> Option<Self> {
        let mut world = self.clone();
        match op {
            CatalogueOp::Create { path } => {
                self.is_new(path).then_some(())?;
                world.sets.insert(path.clone(), Set::default());
            }
            CatalogueOp::Snapshot { datasets, name } => {
                for path in datasets {
                    let set = world.sets.get_mut(path)?;
                    if set.snapshots.iter().any(|one| one.name == *name) {
                        return None;
                    }
                    let state = set.state.clone();
                    world.made += 1;
                    let origin = world.made;
                    set.snapshots.push(Snapshot { name: name.clone(), state, held: false, origin });
                }
            }
            CatalogueOp::Clone { snapshot, path } => {
                let state = world.snapshot(snapshot)?.state.clone();
                self.is_new(path).then_some(())?;
                let set = Set { state, snapshots: Vec::new(), origin: Some(split(snapshot)) };
                world.sets.insert(path.clone(), set);
            }
            CatalogueOp::DestroyDataset { path } => {
                let set = world.sets.remove(path)?;
                (set.snapshots.is_empty() && self.below(path).is_empty()).then_some(())?;
            }
            CatalogueOp::DestroySnapshots { snapshots } => {
                for path in snapshots {
                    let free = !world.snapshot(path)?.held && !self.has_clone(path);
                    free.then_some(())?;
                    let (of, name) = split(path);
                    world.sets.get_mut(&of)?.snapshots.retain(|one| one.name != name);
                }
            }
            CatalogueOp::Rollback { snapshot, newer } => {
                let (of, name) = split(snapshot);
                let set = world.sets.get_mut(&of)?;
                let at = set.snapshots.iter().position(|one| one.name == name)?;
                let gone = set.snapshots.split_off(at + 1);
                if !gone.is_empty() && !newer {
                    return None;
                }
                let blocked = |one: &Snapshot| one.held || self.has_clone(&format!("{of}@{}", one.name));
                if gone.iter().any(blocked) {
                    return None;
                }
                set.state = set.snapshots.last()?.state.clone();
            }
            CatalogueOp::Reset { path, own } => {
                let (of, name) = self.sets.get(path)?.origin.clone()?;
                let state = world.snapshot(&format!("{of}@{name}"))?.state.clone();
                let set = world.sets.get_mut(path)?;
                let gone = std::mem::take(&mut set.snapshots);
                let blocked = |one: &Snapshot| one.held || self.has_clone(&format!("{path}@{}", one.name));
                if !gone.is_empty() && (!own || gone.iter().any(blocked)) {
                    return None;
                }
                set.state = state;
            }
            CatalogueOp::Rebase { path, onto, own } => {
                let (of, name) = self.sets.get(path)?.origin.clone()?;
                let (onto_of, onto_name) = split(onto);
                let snapshots = &self.sets.get(&of)?.snapshots;
                let at = |name: &str| snapshots.iter().position(|one| one.name == name);
                let (from, to) = (at(&name)?, at(&onto_name)?);
                let blocked = |one: &Snapshot| one.held || self.has_clone(&format!("{path}@{}", one.name));
                let set = world.sets.get_mut(path)?;
                let gone = std::mem::take(&mut set.snapshots);
                let possible = onto_of == of
                    && to > from
                    && !path.is_empty()
                    && (gone.is_empty() || *own && !gone.iter().any(blocked));
                possible.then_some(())?;
                set.state = graft::rebased(&snapshots[from].state, &set.state, &snapshots[to].state)?;
                set.origin = Some((of, onto_name));
            }
            CatalogueOp::Promote { path } => world.promote(path)?,
            CatalogueOp::Rename { path, to } if path.contains('@') => {
                let (of, before) = split(path);
                world.snapshot(path)?;
                if world.snapshot(&format!("{of}@{to}")).is_some() {
                    return None;
                }
                world.snapshot(path)?.name.clone_from(to);
                world.relabel(|origin| {
                    if *origin == (of.clone(), before.clone()) {
                        origin.1.clone_from(to);
                    }
                });
            }
            CatalogueOp::Rename { path, to } => {
                self.sets.get(path)?;
                self.is_new(to).then_some(())?;
                if to.strip_prefix(path.as_str()).is_some_and(|rest| rest.starts_with('/')) {
                    return None;
                }
                for before in self.below(path).into_iter().chain([path.clone()]) {
                    let after = format!("{to}{}", before.strip_prefix(path.as_str())?);
                    let set = world.sets.remove(&before)?;
                    world.sets.insert(after.clone(), set);
                    world.relabel(|origin| {
                        if origin.0 == before {
                            origin.0.clone_from(&after);
                        }
                    });
                }
            }
            CatalogueOp::Hold { snapshot } => {
                let one = world.snapshot(snapshot)?;
                (!std::mem::replace(&mut one.held, true)).then_some(())?;
            }
            CatalogueOp::Release { snapshot } => {
                let one = world.snapshot(snapshot)?;
                std::mem::replace(&mut one.held, false).then_some(())?;
            }
            CatalogueOp::Receive { snapshot, from, path } => {
                world.receive(snapshot, from.as_deref(), path)?;
            }
        }
        Some(world)
    }

    /// Returns the snapshots that the one at `path` grows from, newest first, with their paths.
    fn lineage(&self, path: &str) -> Vec<(String, &Snapshot)> {
        let (mut of, mut name) = split(path);
        let mut found = Vec::new();
        while let Some(set) = self.sets.get(&of) {
            let Some(at) = set.snapshots.iter().position(|one| one.name == name) else { break };
            found.extend(set.snapshots[..at].iter().rev().map(|one| (format!("{of}@{}", one.name), one)));
            let Some(origin) = &set.origin else { break };
            (of, name) = origin.clone();
            let origin = self.sets.get(&of).and_then(|set| set.snapshots.iter().find(|one| one.name == name));
            found.extend(origin.map(|one| (format!("{of}@{name}"), one)));
        }
        found
    }

    /// Returns resets and rebases of all clones that could be tried. Not all of them are possible.
    pub fn grafts(&self, pick: u64) -> Vec<CatalogueOp> {
        let mut found = Vec::new();
        let own = !pick.is_multiple_of(3);
        for (path, set) in &self.sets {
            let Some((of, name)) = &set.origin else { continue };
            found.push(CatalogueOp::Reset { path: path.clone(), own });
            let snapshots = self.sets.get(of).into_iter().flat_map(|set| &set.snapshots);
            let onto = snapshots.skip_while(|one| one.name != *name).map(|one| format!("{of}@{}", one.name));
            found.extend(onto.map(|onto| CatalogueOp::Rebase { path: path.clone(), onto, own }));
        }
        found
    }

    /// Returns a clone that could be made, of the snapshot that `pick` chooses. It is `None` if there is no snapshot,
    /// or no path is left.
    pub fn clone_of_any(&self, pick: u64) -> Option<CatalogueOp> {
        let path = DATASETS.into_iter().find(|path| self.is_new(path))?;
        let snapshots: Vec<String> =
            self.states().map(|(path, _)| path).filter(|path| path.contains('@')).collect();
        let snapshot = snapshots.get((pick % snapshots.len().max(1) as u64) as usize)?.clone();
        Some(CatalogueOp::Clone { snapshot, path: path.into() })
    }

    /// Returns the streams that could be received into `path`.
    pub fn streams(&self, path: &str) -> Vec<CatalogueOp> {
        let snapshots = self.states().map(|(path, _)| path).filter(|path| path.contains('@'));
        let newest = self.sets.get(path).map(|set| set.snapshots.last().map(|one| one.origin));
        let mut found = Vec::new();
        for snapshot in snapshots {
            let froms: Vec<Option<String>> = match newest {
                None => vec![None],
                Some(newest) => {
                    let lineage = self.lineage(&snapshot).into_iter();
                    lineage
                        .filter(|(_, one)| Some(one.origin) == newest)
                        .map(|(from, _)| Some(from))
                        .collect()
                }
            };
            let receive = |from| CatalogueOp::Receive { snapshot: snapshot.clone(), from, path: path.into() };
            found.extend(froms.into_iter().map(receive).filter(|op| self.after(op).is_some()));
        }
        found
    }

    fn receive(&mut self, snapshot: &str, from: Option<&str>, path: &str) -> Option<()> {
        let mut sent = self.snapshot(snapshot)?.clone();
        sent.held = false;
        let state = sent.state.clone();
        let Some(from) = from else {
            self.is_new(path).then_some(())?;
            let set = Set { state, snapshots: vec![sent], origin: None };
            self.sets.insert(path.into(), set);
            return Some(());
        };
        let before = self.lineage(snapshot).into_iter().find(|(path, _)| path == from)?.1.origin;
        let set = self.sets.get_mut(path)?;
        let fits =
            set.snapshots.last()?.origin == before && set.snapshots.iter().all(|one| one.name != sent.name);
        fits.then_some(())?;
        set.state = state;
        set.snapshots.push(sent);
        Some(())
    }

    fn relabel(&mut self, mut change: impl FnMut(&mut (String, String))) {
        self.sets.values_mut().filter_map(|set| set.origin.as_mut()).for_each(&mut change);
    }

    fn promote(&mut self, path: &str) -> Option<()> {
        let (from, name) = self.sets.get(path)?.origin.clone()?;
        let source = self.sets.get_mut(&from)?;
        let at = source.snapshots.iter().position(|one| one.name == name)?;
        let kept = source.snapshots.split_off(at + 1);
        let moved = std::mem::replace(&mut source.snapshots, kept);
        let origin = source.origin.replace((path.into(), name));
        let names: Vec<String> = moved.iter().map(|one| one.name.clone()).collect();
        let set = self.sets.get_mut(path)?;
        if set.snapshots.iter().any(|one| names.contains(&one.name)) {
            return None;
        }
        set.snapshots.splice(0..0, moved);
        set.origin = origin;
        self.relabel(|origin| {
            if origin.0 == from && names.contains(&origin.1) {
                path.clone_into(&mut origin.0);
            }
        });
        Some(())
    }
}
