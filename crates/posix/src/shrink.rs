//! Shortens a failing history.

use anyhow::Result;

use crate::history::History;
use crate::run::{Failure, Pair, run};

/// Returns the kind of a failure: the first 60 characters of its text, without digits, which differ from run to run.
fn kind(failure: &Failure) -> String {
    failure.what.chars().filter(|c| !c.is_ascii_digit()).take(60).collect()
}

/// Returns the shortest history found, in at most `runs` runs, that fails like `history` did, and its failure. It is
/// `None` if `history` does not fail again.
///
/// # Errors
/// When the test itself cannot go on.
pub fn shrink(
    history: &History,
    failure: &Failure,
    pair: &Pair,
    mut runs: u64,
) -> Result<Option<(History, Failure)>> {
    let wanted = kind(failure);
    let fails_alike = |history: &History| -> Result<Option<Failure>> {
        Ok(run(history, pair)?.err().filter(|failure| kind(failure) == wanted))
    };
    let mut best = history.clone();
    best.steps.truncate(failure.step + 1);
    let Some(mut found) = fails_alike(&best)? else { return Ok(None) };
    let mut size = best.steps.len().div_ceil(2);
    while size > 0 && runs > 0 {
        let (mut at, mut shorter) = (0, false);
        while at < best.steps.len() && runs > 0 {
            let mut candidate = best.clone();
            candidate.steps.drain(at..(at + size).min(best.steps.len()));
            runs -= 1;
            match fails_alike(&candidate)? {
                Some(failure) => (best, found, shorter) = (candidate, failure, true),
                None => at += size,
            }
        }
        if size > 1 {
            size = size.div_ceil(2);
        } else if !shorter {
            break;
        }
    }
    Ok(Some((best, found)))
}
