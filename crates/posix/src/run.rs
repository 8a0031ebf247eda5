//! Runs one history on both sides, and compares them step by step.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result};
use rustix::fs::FileType;

use crate::history::History;
use crate::observe::{Moment, View};
use crate::op::{Op, Step};
use crate::side::{Outcome, Side};
use crate::walk;

/// Directories on the two file systems, in which histories get directories of their own.
#[derive(Clone, Debug)]
pub struct Pair {
    /// On Pagefold.
    pub subject: PathBuf,
    /// On ext4.
    pub reference: PathBuf,
}

/// A difference.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Index of the step; the number of steps if the difference is found at the end.
    pub step: usize,
    /// The difference, in words.
    pub what: String,
}

/// Counts of what a history has done.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stats {
    /// Number of calls (on each side).
    pub calls: u64,
    /// Number of those that succeeded.
    pub succeeded: u64,
    /// Number of those that were skipped, since there was no open file for them.
    pub skipped: u64,
}

impl Stats {
    /// Adds the counts of another history.
    pub fn add(&mut self, other: &Self) {
        self.calls += other.calls;
        self.succeeded += other.succeeded;
        self.skipped += other.skipped;
    }
}

/// Outcome of a history: its counts, or the difference between the sides.
pub type Verdict = std::result::Result<Stats, Failure>;

/// Runs a history in new directories of both sides, and removes them afterwards.
///
/// # Errors
/// When the test itself cannot go on, as opposed to a difference.
pub fn run(history: &History, pair: &Pair) -> Result<Verdict> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let name = format!("h{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
    rustix::process::umask(rustix::fs::Mode::empty());
    let mut subject = Side::new(&pair.subject, &name)?;
    let mut reference = Side::new(&pair.reference, &name)?;
    let mut verdict = steps(history, &mut subject, &mut reference)?;
    // The trees are compared while unlinked files are still open, since numbers of links are compared, too.
    if let Ok(stats) = verdict {
        let compared = walk::compare(&subject.top, &reference.top, !history.maps);
        verdict = match compared {
            Ok(()) => Ok(stats),
            Err(what) => Err(Failure { step: history.steps.len(), what: format!("{what:#}") }),
        };
    }
    subject.close();
    reference.close();
    for side in [&subject, &reference] {
        if let Err(error) = std::fs::remove_dir_all(&side.top)
            && verdict.is_ok()
        {
            let what = format!("{} cannot be removed: {error}", side.top.display());
            verdict = Err(Failure { step: history.steps.len(), what });
        }
    }
    Ok(verdict)
}

fn steps(history: &History, subject: &mut Side, reference: &mut Side) -> Result<Verdict> {
    let mut stats = Stats::default();
    for (at, step) in history.steps.iter().enumerate() {
        let watched = step.op.watched();
        let look = |side: &Side| -> Vec<_> { watched.iter().map(|target| side.observe(target)).collect() };
        let before = (look(subject), look(reference));
        let outcome = subject.execute(step).with_context(|| format!("step {at} {step:?}"))?;
        let expected = reference.execute(step).with_context(|| format!("step {at} {step:?}"))?;
        let fail = |what: String| Ok(Err(Failure { step: at, what }));
        if !alike(&outcome, &expected, history.maps) {
            return fail(format!("{step:?}: {outcome:?}, but ext4 {expected:?}"));
        }
        let mut after = (look(subject), look(reference));
        for (n, target) in watched.iter().enumerate() {
            if let (Some(ours), Some(theirs)) = (&after.0[n], &after.1[n])
                && ours.differs_in_idle_sgid(theirs)
            {
                let mode = ours.mode & theirs.mode;
                subject.set_mode(target, mode).context("level permissions")?;
                reference.set_mode(target, mode).context("level permissions")?;
                after = (look(subject), look(reference));
            }
        }
        for (n, target) in watched.iter().enumerate() {
            let ours = (before.0[n].as_ref(), after.0[n].as_ref());
            let theirs = (before.1[n].as_ref(), after.1[n].as_ref());
            if let Some(what) = difference(ours, theirs, history.maps, step) {
                return fail(format!("{step:?} ({expected:?}): {target:?}: {what}"));
            }
        }
        stats.calls += 1;
        match outcome {
            Outcome::Skipped => stats.skipped += 1,
            Outcome::Failed(_) => {}
            _ => stats.succeeded += 1,
        }
    }
    Ok(Ok(stats))
}

fn alike(outcome: &Outcome, expected: &Outcome, maps: bool) -> bool {
    match (outcome, expected) {
        (Outcome::View(a), Outcome::View(b)) if maps => a.without_times() == b.without_times(),
        _ => outcome == expected,
    }
}

/// Returns the difference between a step's effects on a file on our side and on the other, in words. The views of each
/// side are from before and after the step.
fn difference(
    ours: (Option<&View>, Option<&View>),
    theirs: (Option<&View>, Option<&View>),
    maps: bool,
    step: &Step,
) -> Option<String> {
    let (now, expected) = match (ours.1, theirs.1) {
        (None, None) => return None,
        (Some(now), Some(expected)) => (now, expected),
        (now, expected) => return Some(format!("{now:?}, but ext4 {expected:?}")),
    };
    let same = if maps { now.without_times() == expected.without_times() } else { now == expected };
    if !same {
        return Some(format!("{now:?}, but ext4 {expected:?}"));
    }
    if maps || !has_times(step) || now.kind() == FileType::Fifo {
        return None;
    }
    let (changes, wanted) = (now.changes(ours.0?)?, expected.changes(theirs.0?)?);
    for (at, name) in ["access", "modification", "change"].iter().enumerate() {
        // On ext4, an attribute that is set to its own value changes no time.
        if matches!(step.op, Op::SetXattr { .. }) && changes[at] {
            continue;
        }
        // A time that was set is compared by its value.
        if changes[at] != wanted[at] && now.times[at] == Moment::Clock {
            return Some(format!(
                "its time of {name} {}, but on ext4 {}",
                if changes[at] { "changed" } else { "stayed" },
                if wanted[at] { "it did" } else { "not" }
            ));
        }
    }
    None
}

/// Returns true if the times that a step changes are compared. They are not for scenes, which do much at once.
fn has_times(step: &Step) -> bool {
    !matches!(step.op, Op::ListWhile { .. } | Op::Busy)
}
