//! Rebases a clone. The engine leaves it to its caller, who knows what changes mean, to decide which of them go
//! together. Here each value and each page is a file of its own.

use std::collections::BTreeMap;

use pagefold_engine::dataset::{Change, Dataset};
use pagefold_engine::pool::{Comparison, Pool};
use pagefold_engine::{Error, Key, Result};

use crate::history::record_size;
use crate::model::{COUNTER, State};

/// Values and pages that differ, as they are in the newer version; `None` if they are absent, or zeros.
type Changed = BTreeMap<Key, Option<Vec<u8>>>;

/// Returns the values and pages that differ between two versions of the model.
fn changed(old: &State, new: &State) -> Changed {
    let all = |state: &State| -> BTreeMap<Key, Vec<u8>> {
        let values = state.values.iter().filter(|(key, _)| **key != COUNTER);
        let values = values.map(|(key, value)| (*key, value.clone()));
        let pages = state.pages.iter().filter(|(_, page)| page.iter().any(|byte| *byte != 0));
        let pages = pages.map(|((object, page), bytes)| (Key::page(*object, *page), bytes.to_vec()));
        values.chain(pages).collect()
    };
    let (old, mut new) = (all(old), all(new));
    let gone = old.keys().filter(|key| !new.contains_key(key)).map(|key| (*key, None));
    let gone: Vec<_> = gone.collect();
    new.retain(|key, value| old.get(key) != Some(value));
    new.into_iter().map(|(key, value)| (key, Some(value))).chain(gone).collect()
}

/// Returns `theirs` with the changes of `ours` since `origin`, or `None` if both have changed the same value or page.
pub(crate) fn rebased(origin: &State, ours: &State, theirs: &State) -> Option<State> {
    let (changes, their_changes) = (changed(origin, ours), changed(origin, theirs));
    if changes.keys().any(|key| their_changes.contains_key(key)) {
        return None;
    }
    let mut state = theirs.clone();
    for (key, value) in changes {
        if key.kind == Key::PAGE {
            match value {
                Some(page) => state.pages.insert((key.object, key.offset), page.into()),
                None => state.pages.remove(&(key.object, key.offset)),
            };
        } else {
            match value {
                Some(value) => state.values.insert(key, value),
                None => state.values.remove(&key),
            };
        }
    }
    match ours.values.get(&COUNTER) {
        Some(counter) => state.values.insert(COUNTER, counter.clone()),
        None => state.values.remove(&COUNTER),
    };
    state.id = ours.id;
    Some(state)
}

/// Moves clone `path` onto snapshot `onto`. Returns [`Error::Exists`] if both have changed the same value or page.
pub(crate) fn rebase(pool: &Pool, path: &str, onto: &str, own: bool, created: u64) -> Result<()> {
    let rebase = pool.begin_rebase(path, onto, own, created)?;
    let (ours, theirs) = (read(rebase.ours()?)?, read(rebase.theirs())?);
    if let Some(key) = ours.keys().find(|key| theirs.contains_key(key)) {
        return Err(Error::Exists(format!("both have changed {key:?}")));
    }
    let target = rebase.target();
    for (key, value) in ours {
        let record_size = record_size(key.object);
        let change = match (key.kind, &value) {
            (Key::PAGE, None) => Change::Punch { object: key.object, from: key.offset, to: key.offset + 1 },
            (Key::PAGE, Some(data)) => {
                let offset = key.offset * u64::from(record_size);
                Change::Write { object: key.object, record_size, offset, data }
            }
            (_, None) => Change::Delete(key),
            (_, Some(value)) => Change::Put(key, value.clone()),
        };
        target.apply(&[change])?;
    }
    let counter = rebase.ours()?.newer().get(&COUNTER)?;
    target.apply(&[counter.map_or(Change::Delete(COUNTER), |counter| Change::Put(COUNTER, counter))])?;
    rebase.finish()
}

/// Reads the values and pages that differ between two versions. Their differences may name pages that were written
/// again as they were, which are left out.
fn read(comparison: &Comparison<'_>) -> Result<Changed> {
    let mut found = Changed::new();
    for difference in comparison.differences() {
        let key = difference?.key;
        let is_page = key.kind == Key::PAGE;
        if key == COUNTER || (key.kind >= Key::ENGINE_KINDS && !is_page) {
            continue;
        }
        let read = |dataset: &dyn Dataset| {
            if !is_page {
                return dataset.get(&key);
            }
            let record_size = record_size(key.object);
            let mut page = vec![0; record_size as usize];
            dataset.read(key.object, record_size, key.offset * u64::from(record_size), &mut page)?;
            Ok(page.iter().any(|byte| *byte != 0).then_some(page))
        };
        let (old, new) = (read(comparison.older())?, read(comparison.newer())?);
        if old != new {
            found.insert(key, new);
        }
    }
    Ok(found)
}
