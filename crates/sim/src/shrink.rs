//! Shortens a failing history.

use crate::history::{Act, History, Step};
use crate::run::{Failure, run};

/// Returns the kind of a failure: the first 24 characters of its text, without digits.
fn kind(failure: &Failure) -> String {
    failure.what.chars().filter(|c| !c.is_ascii_digit()).take(24).collect()
}

fn fails_alike(history: &History, wanted: &str) -> Option<Failure> {
    run(history).err().filter(|failure| kind(failure) == wanted)
}

/// Returns the shortest history found, in at most `runs` runs, that fails like `history` did, and its failure.
pub fn shrink(history: &History, failure: &Failure, runs: u64) -> (History, Failure) {
    let wanted = kind(failure);
    let mut best = history.clone();
    let mut found = failure.clone();
    best.steps.truncate(failure.step + 1);
    if let Some(failure) = fails_alike(&best, &wanted) {
        found = failure;
    } else {
        best = history.clone();
    }
    let mut left = runs;
    let mut size = best.steps.len().div_ceil(2);
    while size > 0 && left > 0 {
        let mut at = 0;
        let mut shorter = false;
        while at < best.steps.len() && left > 0 {
            let mut candidate = best.clone();
            candidate.steps.drain(at..(at + size).min(best.steps.len()));
            left -= 1;
            if let Some(failure) = fails_alike(&candidate, &wanted) {
                (best, found, shorter) = (candidate, failure, true);
            } else {
                at += size;
            }
        }
        if size > 1 {
            size = size.div_ceil(2);
        } else if !shorter {
            break;
        }
    }
    shrink_changes(&mut best, &mut found, &wanted, left);
    (best, found)
}

/// Removes acts of changes one by one.
fn shrink_changes(best: &mut History, found: &mut Failure, wanted: &str, mut left: u64) {
    for step in 0..best.steps.len() {
        let mut at = 0;
        while left > 0 && acts(best, step).is_some_and(|acts| at < acts.len()) {
            let mut candidate = best.clone();
            if let Some(acts) = acts(&mut candidate, step) {
                acts.remove(at);
            }
            left -= 1;
            match fails_alike(&candidate, wanted) {
                Some(failure) => (*best, *found) = (candidate, failure),
                None => at += 1,
            }
        }
    }
}

fn acts(history: &mut History, step: usize) -> Option<&mut Vec<Act>> {
    match history.steps.get_mut(step) {
        Some(Step::Apply(acts) | Step::ApplyTo(_, acts)) => Some(acts),
        _ => None,
    }
}
