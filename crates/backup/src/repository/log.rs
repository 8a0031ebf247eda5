//! The log of commits: finds its end, goes back to the newest commit that is intact, and appends.
//!
//! Readers go on with the newest commit whose seal holds, and tell which ones behind it are damaged. Writers fail then: a
//! commit on top of an older one would undo what the damaged ones did. [`Repository::repair_log`] does so when the
//! user asks for it.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_128;

use super::Repository;
use crate::commit::{self, Commit, State};
use crate::error::{Error, Result};
use crate::limits::{COMMIT_BYTES_MAX, COMMIT_TRIES, LOST_COMMITS_MAX};
use crate::seen::{Newest, halves};
use crate::verify::Checked;

/// The end of the log, as it was found.
struct LogEnd {
    /// The newest commit that is intact; `None` if there is none.
    intact: Option<Commit>,
    /// Number of the last commit, intact or not.
    last: u64,
    /// Numbers of commits that are missing before the last one, if that was looked for.
    lost: BTreeSet<u64>,
    /// The damage that keeps writers from appending.
    faults: Vec<Error>,
}

impl Repository {
    pub(crate) fn read_commit(&self, number: u64) -> Result<Option<Commit>> {
        let bytes = self.store.get(&commit::path(&self.id, number), COMMIT_BYTES_MAX)?;
        bytes.map(|bytes| commit::decode(&bytes, &self.id, number, &self.sealer)).transpose()
    }

    fn has_commit(&self, number: u64) -> Result<bool> {
        Ok(self.store.head(&commit::path(&self.id, number))?.is_some())
    }

    /// Returns the hash of a commit's object as it lies there; 0 if there is none that could be one.
    pub(crate) fn commit_hash(&self, number: u64) -> Result<u128> {
        match self.store.get(&commit::path(&self.id, number), COMMIT_BYTES_MAX) {
            Ok(bytes) => Ok(bytes.map_or(0, |bytes| xxh3_128(&bytes))),
            Err(Error::Damaged { .. }) => Ok(0),
            Err(error) => Err(error),
        }
    }

    /// Returns the newest commit, for who appends another one: it fails if a commit is damaged or missing that may have
    /// been newer.
    pub(crate) fn head(&self) -> Result<Commit> {
        let end = self.end()?;
        let missing = || Error::Missing { object: commit::path(&self.id, end.last) };
        end.faults.into_iter().next().map_or(Ok(()), Err)?;
        end.intact.ok_or_else(missing)
    }

    /// Returns the newest commit that is intact, for who only reads. The user is warned once if others are damaged that
    /// came after it.
    pub(crate) fn newest(&self) -> Result<Commit> {
        let end = self.end()?;
        let missing = || Error::Missing { object: commit::path(&self.id, end.last) };
        match (end.intact, end.faults.into_iter().next()) {
            (Some(intact), None) => Ok(intact),
            (Some(intact), Some(error)) => {
                let known = intact.state.backups.len();
                let path = commit::path(&self.id, intact.number);
                let doing = format!("of the backups only the {known} are known that {path} lists");
                self.tells.call_once(|| tracing::warn!(%error, "{doing}"));
                Ok(intact)
            }
            (None, fault) => Err(fault.unwrap_or_else(missing)),
        }
    }

    /// Returns the first damage at the end of the log, if there is any.
    pub(super) fn log_fault(&self) -> Result<Option<Error>> {
        Ok(self.end()?.faults.into_iter().next())
    }

    /// Notes damage at the end of the log: commits that are damaged or missing, and may have listed more backups than
    /// [`Repository::backups`] returns.
    ///
    /// # Errors
    /// Errors of the store; [`Error::Older`] if it has gone back to an older state.
    pub fn check_log(&self, checked: &mut Checked) -> Result<()> {
        self.end()?.faults.into_iter().try_for_each(|fault| checked.note(0, fault))
    }

    /// Returns the newest commit that is intact, and notes damage behind it; `None` if no commit is intact.
    pub(crate) fn newest_or_note(&self, checked: &mut Checked) -> Result<Option<Commit>> {
        let end = self.end()?;
        end.faults.into_iter().try_for_each(|fault| checked.note(0, fault))?;
        Ok(end.intact)
    }

    /// Finds the end of the log. Numbers have no gaps, so the last one is found by doubling and halving.
    ///
    /// A commit that was lost would hide those behind it. Therefore the first call also lists what comes behind the one
    /// that it found.
    fn end(&self) -> Result<LogEnd> {
        let seen = self.seen.newest(&self.id)?;
        let mut there = seen.map_or(0, |seen| seen.number);
        let known = match seen {
            Some(seen) => self.seen_commit(seen)?,
            None => None,
        };
        loop {
            there = self.last_from(there)?;
            if self.has_no_gap.load(Ordering::Relaxed) {
                break;
            }
            let (folder, name) = (commit::folder(&self.id), commit::object_name(there));
            if !self.store.has_after(&folder, &name)? {
                self.has_no_gap.store(true, Ordering::Relaxed);
                break;
            }
            // Another writer may have appended it just now.
            if !self.has_commit(there + 1)?
                && let Some(end) = self.end_behind_gap(there)?
            {
                return Ok(end);
            }
        }
        // If no newer commit came, it was read just now.
        if let Some(known) = known.filter(|known| known.number == there) {
            return Ok(LogEnd {
                intact: Some(known),
                last: there,
                lost: BTreeSet::new(),
                faults: Vec::new(),
            });
        }
        let (intact, faults) = self.intact_of((0..=there).rev())?;
        if let Some(intact) = intact.as_ref().filter(|_| faults.is_empty()) {
            self.remember(intact);
        }
        Ok(LogEnd { intact, last: there, lost: BTreeSet::new(), faults })
    }

    /// Reads the newest commit that this machine has seen; `None` if it is damaged: those around it tell then.
    fn seen_commit(&self, seen: Newest) -> Result<Option<Commit>> {
        let older = |what: &str| Error::Older {
            object: commit::path(&self.id, seen.number),
            what: what.to_owned(),
            seen: self.seen.newest_file(&self.id).unwrap_or_default(),
        };
        match self.read_commit(seen.number) {
            Ok(Some(commit)) if halves(commit.hash) == seen.hash => Ok(Some(commit)),
            Ok(Some(_)) => Err(older("is another commit")),
            Ok(None) => Err(older("is missing")),
            Err(Error::Damaged { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Finds the end of a log in which the commit after `there` is missing, by listing all commits; `None` if it is there
    /// by now, or what comes behind was put there by others and is no commit.
    fn end_behind_gap(&self, there: u64) -> Result<Option<LogEnd>> {
        let mut numbers = BTreeSet::new();
        self.store.list(&commit::folder(&self.id), &mut |name, _| {
            numbers.extend(u64::from_str_radix(name, 16).ok());
        })?;
        let Some(last) = numbers.last().copied().filter(|last| *last > there) else {
            self.has_no_gap.store(true, Ordering::Relaxed);
            return Ok(None);
        };
        if numbers.contains(&(there + 1)) {
            return Ok(None);
        }
        let lost = (there + 1..last).filter(|number| !numbers.contains(number)).take(LOST_COMMITS_MAX + 1);
        let lost: BTreeSet<u64> = lost.collect();
        let missing = Error::Missing { object: commit::path(&self.id, there + 1) };
        let (intact, mut faults) = self.intact_of(numbers.into_iter().rev())?;
        faults.insert(0, missing);
        Ok(Some(LogEnd { intact, last, lost, faults }))
    }

    /// Returns the first of some commits that is intact, and the damage to those before it.
    fn intact_of(&self, numbers: impl Iterator<Item = u64>) -> Result<(Option<Commit>, Vec<Error>)> {
        let mut faults = Vec::new();
        for number in numbers {
            match self.read_commit(number) {
                Ok(Some(commit)) => return Ok((Some(commit), faults)),
                Ok(None) => faults.push(Error::Missing { object: commit::path(&self.id, number) }),
                Err(error @ Error::Damaged { .. }) => faults.push(error),
                Err(error) => return Err(error),
            }
        }
        Ok((None, faults))
    }

    /// Returns the number of the last commit, by doubling and halving from one that is there.
    fn last_from(&self, mut there: u64) -> Result<u64> {
        let mut step = 1;
        while self.has_commit(there.saturating_add(step))? {
            there = there.saturating_add(step);
            step *= 2;
        }
        while step > 1 {
            step /= 2;
            if self.has_commit(there + step)? {
                there += step;
            }
        }
        Ok(there)
    }

    /// Remembers the newest commit. Who cannot write here, or has no room, can still read, and restore.
    pub(super) fn remember(&self, head: &Commit) {
        let newest = Newest { number: head.number, hash: halves(head.hash) };
        if let Err(error) = self.seen.remember(&self.id, newest) {
            let doing = "nobody notices here if the store goes back to an older state, since what was seen cannot be remembered";
            self.forgets.call_once(|| tracing::warn!(%error, "{doing}"));
        }
    }

    /// Appends a commit with the state that `change` makes of the newest one. `change` is called again if another
    /// writer was faster.
    pub(crate) fn commit(&self, change: &mut dyn FnMut(&mut State) -> Result<()>) -> Result<Commit> {
        for _ in 0..COMMIT_TRIES {
            let head = self.head()?;
            let mut state = head.state;
            change(&mut state)?;
            state.tidy();
            if let Some(new) = self.append(head.number + 1, head.hash, state)? {
                return Ok(new);
            }
        }
        Err(Error::Fenced(format!("{COMMIT_TRIES} times another writer was faster; try again")))
    }

    /// Writes a commit; `None` if another writer took the number.
    fn append(&self, number: u64, before: u128, state: State) -> Result<Option<Commit>> {
        let (bytes, new) = commit::encode(&self.id, number, before, state, &self.sealer)?;
        let path = commit::path(&self.id, number);
        let bytes = Bytes::from(bytes);
        // If the response was lost, the commit was made all the same: its random bits tell.
        let made = self.store.create(&path, bytes.clone())?
            || self.store.get(&path, COMMIT_BYTES_MAX)?.is_some_and(|found| found == bytes);
        if made {
            self.remember(&new);
        }
        Ok(made.then_some(new))
    }

    /// Makes the log whole again, so that writers go on: appends a commit with what the newest intact one lists, in place of
    /// the damaged ones behind it. What these did is lost: mostly a backup, or a prune. Returns the damage, one by one;
    /// nothing is written if there is none.
    ///
    /// # Errors
    /// [`Error::Damaged`] if no commit is intact; errors of the store.
    pub fn repair_log(&self) -> Result<Vec<String>> {
        for _ in 0..COMMIT_TRIES {
            let end = self.end()?;
            let told: Vec<String> = end.faults.iter().map(ToString::to_string).collect();
            let Some(fault) = end.faults.into_iter().next() else { return Ok(told) };
            if end.lost.len() > LOST_COMMITS_MAX {
                return Err(fault);
            }
            // A writer that stalled must not take the number of a lost commit, and believe that it counts.
            for number in &end.lost {
                self.store.create(&commit::path(&self.id, *number), Bytes::new())?;
            }
            let state = match &end.intact {
                Some(intact) if intact.number == end.last => {
                    self.remember(intact);
                    return Ok(told);
                }
                Some(intact) => intact.state.clone().behind_lost(end.last - intact.number),
                // The first commit of a repository lists nothing, so nothing is lost with it.
                None if end.last == 0 => State { next_number: 1, ..State::default() },
                None => return Err(fault),
            };
            let before = self.commit_hash(end.last)?;
            // An object that was read wrong once may be read right now.
            if matches!(self.read_commit(end.last), Ok(Some(_))) {
                continue;
            }
            let next = end.last.checked_add(1).ok_or(fault)?;
            if self.append(next, before, state)?.is_some() {
                return Ok(told);
            }
        }
        Err(Error::Fenced(format!("{COMMIT_TRIES} times another writer was faster; try again")))
    }
}
