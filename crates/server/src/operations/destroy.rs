//! Destroys datasets and snapshots, or tells what that would free and what prevents it.

use std::collections::BTreeSet;

use pagefold_engine::Error;
use pagefold_engine::pool::Listed;

use super::{Executor, OperationResult, name_of};
use crate::engine_errors;
use crate::failure::{Failure, Result};
use crate::names::{dataset_of, is_hidden, is_within};

impl Executor<'_> {
    pub(super) fn destroy(&self, what: &[String], recursive: bool, dry_run: bool) -> Result<OperationResult> {
        // Pages and nodes of trees that are not stored yet could not be counted.
        self.pool
            .checkpoint(false)
            .map_err(|error| engine_errors::failed("cannot write what was accepted", &error))?;
        let listed = self.list()?;
        let mut going = BTreeSet::new();
        for word in what {
            self.select(&listed, word, recursive, &mut going)?;
        }
        let partials = self.partials_of(&going, recursive)?;
        let mut all = going.clone();
        all.extend(partials.iter().map(|partial| partial.hidden.clone()));
        match self.refuse_kept(&listed, &all) {
            Err(failure) if dry_run => return self.blocked(&listed, &all, &failure),
            kept => kept?,
        }
        let gone = |found: &&Listed| going.contains(&found.path);
        if !dry_run {
            listed.iter().filter(gone).try_for_each(|found| self.refuse_in_use(found))?;
        }
        let paths: Vec<&str> = all.iter().map(String::as_str).collect();
        let freed = self.pool.freed_by_destroying(&paths);
        let freed_bytes =
            freed.map_err(|error| engine_errors::failed("cannot tell what would be freed", &error))?;
        let outcome = OperationResult {
            names: listed.iter().filter(gone).map(|found| self.full(&found.path)).collect(),
            freed_bytes,
            blocked: None,
        };
        if !dry_run {
            // Nothing refuses any more: what came of a stream is not given up for nothing.
            for partial in &partials {
                self.abort_receive(&partial.path)?;
            }
            listed.iter().filter(gone).for_each(|found| self.mounts.close_snapshot(found.id));
            self.destroy_all(going)?;
        }
        Ok(outcome)
    }

    /// Tells what would be destroyed, what prevents that, and how much would be freed if the clones were destroyed,
    /// too, also the hidden ones of streams that were received in part.
    fn blocked(&self, listed: &[Listed], going: &BTreeSet<String>, why: &Failure) -> Result<OperationResult> {
        let mut all = going.clone();
        loop {
            let chosen = listed.iter().filter(|found| all.contains(&found.path));
            let clones: Vec<&String> = chosen.flat_map(|found| &found.clones).collect();
            let with_clones =
                listed.iter().filter(|found| clones.iter().any(|clone| is_within(&found.path, clone)));
            let hidden = clones.iter().filter(|clone| is_hidden(clone)).map(|clone| (*clone).clone());
            let more: Vec<String> = with_clones.map(|found| found.path.clone()).chain(hidden).collect();
            let before = all.len();
            all.extend(more);
            if all.len() == before {
                break;
            }
        }
        let paths: Vec<&str> = all.iter().map(String::as_str).collect();
        let freed = self.pool.freed_by_destroying(&paths);
        let freed_bytes =
            freed.map_err(|error| engine_errors::failed("cannot tell what would be freed", &error))?;
        let names =
            listed.iter().filter(|found| going.contains(&found.path)).map(|found| self.full(&found.path));
        let blocked = Some((why.what().to_owned(), why.advice().map(str::to_owned)));
        Ok(OperationResult { names: names.collect(), freed_bytes, blocked })
    }

    /// Adds the datasets and snapshots that a word of the command line names.
    fn select(
        &self,
        listed: &[Listed],
        word: &str,
        recursive: bool,
        going: &mut BTreeSet<String>,
    ) -> Result<()> {
        let Some((dataset, names)) = word.split_once('@') else {
            return self.select_dataset(listed, word, recursive, going);
        };
        let of = |found: &&Listed| found.is_snapshot && dataset_of(&found.path) == dataset;
        let own: Vec<&str> = listed.iter().filter(of).filter_map(|found| name_of(&found.path)).collect();
        let mut chosen = BTreeSet::new();
        for part in names.split(',') {
            chosen.extend(self.select_names(dataset, &own, part)?);
        }
        going.extend(chosen.iter().map(|name| format!("{dataset}@{name}")));
        if recursive {
            going.extend(named_below(listed, dataset, &chosen));
        }
        Ok(())
    }

    fn select_dataset(
        &self,
        listed: &[Listed],
        path: &str,
        recursive: bool,
        going: &mut BTreeSet<String>,
    ) -> Result<()> {
        let name = self.full(path);
        if !listed.iter().any(|found| found.path == path) {
            return Err(engine_errors::no_such_dataset(&name, &Error::NotFound(String::new())));
        }
        let within: Vec<&Listed> = listed.iter().filter(|found| is_within(&found.path, path)).collect();
        if let (Some(other), false) = (within.iter().find(|found| found.path != path), recursive) {
            return Err(Failure::new(format!("{name} has {}", self.full(&other.path)))
                .hint(format!("to destroy all below it with it: pagefold destroy -r {name}")));
        }
        going.extend(within.into_iter().map(|found| found.path.clone()));
        Ok(())
    }

    /// Returns the names of `own`, oldest first, that `part` selects: a name, or `first%last`, where either may be left
    /// out.
    fn select_names(&self, dataset: &str, own: &[&str], part: &str) -> Result<Vec<String>> {
        let position = |name: &str| {
            own.iter().position(|other| *other == name).ok_or_else(|| {
                let name = self.full(&format!("{dataset}@{name}"));
                engine_errors::no_such_dataset(&name, &Error::NotFound(String::new()))
            })
        };
        let Some((first, last)) = part.split_once('%') else {
            position(part)?;
            return Ok(vec![part.to_owned()]);
        };
        let from = if first.is_empty() { 0 } else { position(first)? };
        let to = if last.is_empty() { own.len() } else { position(last)? + 1 };
        if from >= to && !own.is_empty() {
            return Err(Failure::usage(format!("in \"{part}\" the first snapshot is newer than the last")));
        }
        Ok(own[from.min(to)..to].iter().map(|name| (*name).to_owned()).collect())
    }

    /// Destroys everything in an order that works: again and again, all that has neither clones nor snapshots nor
    /// datasets below it.
    fn destroy_all(&self, mut going: BTreeSet<String>) -> Result<()> {
        while !going.is_empty() {
            let listed = self.list()?;
            let free = |found: &&Listed| {
                let has_others =
                    |other: &Listed| other.path != found.path && is_within(&other.path, &found.path);
                going.contains(&found.path)
                    && if found.is_snapshot {
                        found.clones.is_empty()
                    } else {
                        !listed.iter().any(has_others)
                    }
            };
            let (snapshots, datasets): (Vec<&Listed>, Vec<&Listed>) =
                listed.iter().filter(free).partition(|found| found.is_snapshot);
            let paths: Vec<&str> = snapshots.iter().map(|found| found.path.as_str()).collect();
            if !paths.is_empty() {
                let done = self.pool.destroy_snapshots(&paths);
                done.map_err(|error| self.failed("destroy", paths[0], &error))?;
            }
            for found in &datasets {
                let done = self.pool.destroy_dataset(&found.path);
                done.map_err(|error| self.failed("destroy", &found.path, &error))?;
            }
            let before = going.len();
            for found in snapshots.iter().chain(&datasets) {
                going.remove(&found.path);
            }
            if going.len() == before {
                let first = going.first().map(|path| self.full(path)).unwrap_or_default();
                return Err(Failure::new(format!("cannot destroy {first}: it has changed meanwhile"))
                    .hint("see what is there, and try again: pagefold list -t all"));
            }
        }
        Ok(())
    }
}

/// Returns the snapshots with these names of a dataset and of those below it.
pub(super) fn named_below(listed: &[Listed], dataset: &str, names: &BTreeSet<String>) -> Vec<String> {
    let of = |found: &&Listed| {
        is_within(&found.path, dataset) && name_of(&found.path).is_some_and(|name| names.contains(name))
    };
    listed.iter().filter(of).map(|found| found.path.clone()).collect()
}
