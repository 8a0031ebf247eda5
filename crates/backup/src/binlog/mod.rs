//! Archives binary logs of MariaDB, part by part, while the server writes them.
//!
//! - N1: an archived log has no gap: each part begins where the one before ends, or is the first of the next file if
//!   the one before is marked as the last of its file.
//! - N2: a part is made by a create that fails if there is one at its place. So of two that archive a log, one goes on
//!   where the other one has ended, or is told that they archive two logs under one name.
//! - N3: a part ends between two transactions, or says that it does not.

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod crafted;
mod scan;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use bytes::Bytes;
use serde::{Serialize, Serializer};

pub use self::scan::{Event, Role, Scan, clear_in_use};
use crate::archive::object::{self, File, Head};
use crate::archive::readable;
use crate::archive::timeline::Reach;
use crate::commit::{Backup, BinlogEnd, BinlogFloor};
use crate::error::{Error, Result};
use crate::limits::{BINLOG_PART_BYTES_MAX, READS, WAL_OBJECT_BYTES_MAX};
use crate::repository::Repository;
use crate::verify::Checked;

/// Folder of all parts.
pub(crate) const FOLDER: &str = "binlog";
/// Longest name of a log.
const NAME_BYTES_MAX: usize = 32;
const MICROS: i64 = 1_000_000;

/// Name under which a server's binary log is archived: of small letters, digits and hyphens.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BinlogName(String);

impl FromStr for BinlogName {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        let fits = text.len() <= NAME_BYTES_MAX
            && text.bytes().next().is_some_and(plain)
            && text.bytes().all(|byte| plain(byte) || byte == b'-');
        match fits {
            true => Ok(Self(text.to_owned())),
            false => Err(Error::Invalid(format!(
                "{text:?} is no name for a log: it has small letters, digits and hyphens, {NAME_BYTES_MAX} at most"
            ))),
        }
    }
}

impl fmt::Display for BinlogName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Serialize for BinlogName {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&self.0)
    }
}

/// A place in a server's binary log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct BinlogPlace {
    /// Number of the file.
    pub file: u32,
    /// Offset in the file.
    pub offset: u64,
}

impl fmt::Display for BinlogPlace {
    /// Writes the number of the file as the server does, and the offset: `000007:1234`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:06}:{}", self.file, self.offset)
    }
}

/// A part that is to be archived.
#[derive(Clone, Copy, Debug)]
pub struct BinlogPart<'a> {
    /// Name of the log.
    pub log: &'a BinlogName,
    /// Place at which it begins.
    pub place: BinlogPlace,
    /// Mark of the file ([`Scan::mark`]).
    pub mark: u64,
    /// Times of the earliest and the latest transaction that end in it, in seconds since 1970.
    pub times: Option<(u32, u32)>,
    /// True if the server has gone on to the next file, and nothing of this one follows. Such a part may be empty.
    pub is_last: bool,
    /// True if it ends within a transaction, which is too long for a part.
    pub is_inside: bool,
    /// Its bytes. Where it is the first of a file, the server's flag has been cleared ([`clear_in_use`]).
    pub content: &'a [u8],
}

/// A part that is archived, as the repository lists it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ArchivedPart {
    log: BinlogName,
    /// Place at which it begins.
    pub place: BinlogPlace,
    /// Bytes that it takes in the repository.
    pub stored_bytes: u64,
}

/// Parts of logs by name, each with the marks of its files by number; `None` if no part of a file can be read.
pub(crate) type MarkedParts = BTreeMap<BinlogName, (Vec<ArchivedPart>, BTreeMap<u32, Option<u64>>)>;

/// Facts that the head of an archived part tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartFacts {
    /// Place behind it.
    pub end: BinlogPlace,
    /// Mark of the file.
    pub mark: u64,
    /// Times of the earliest and the latest transaction that end in it, in seconds since 1970.
    pub times: Option<(u32, u32)>,
    /// True if the log goes on in the next file.
    pub is_last: bool,
    /// True if it ends within a transaction.
    pub is_inside: bool,
}

impl PartFacts {
    /// Returns the place at which the next part begins.
    pub fn next(&self) -> BinlogPlace {
        match self.is_last {
            true => BinlogPlace { file: self.end.file.saturating_add(1), offset: 0 },
            false => self.end,
        }
    }
}

/// An archived log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Binlog {
    /// Its name.
    pub name: BinlogName,
    /// Number of parts.
    pub parts: u64,
    /// Bytes that they take in the repository.
    pub stored_bytes: u64,
    /// Place at which the log begins.
    pub from: BinlogPlace,
    /// Place behind its last part.
    pub until: BinlogPlace,
    /// Time of the latest transaction in it, in seconds since 1970.
    pub last_s: Option<u32>,
    /// Backups in which it goes on.
    pub lines: Vec<BinlogLine>,
    #[serde(skip)]
    archived: Vec<ArchivedPart>,
}

/// The part of a log along which a database of a backup can be restored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BinlogLine {
    /// Number of the backup.
    pub backup: u64,
    /// Dataset of the backup: `POOL/DATASET`.
    pub dataset: String,
    /// Path of the data directory in the dataset.
    pub data: String,
    /// Place at which the log goes on behind what the backup has.
    pub from: BinlogPlace,
    /// Latest time of a transaction in the backup, in seconds since 1970, if it is known; otherwise that of the snapshot.
    pub since_s: u64,
    /// Time of the latest transaction in the archive, in seconds since 1970.
    pub until_s: Option<u32>,
}

impl BinlogLine {
    /// Returns whether the state at a time, in microseconds since 1970, can be restored: with all transactions that
    /// ended before that time, and no other one.
    pub fn reaches_time(&self, time_us: i64) -> Reach {
        let micros = |seconds: u64| i64::try_from(seconds).unwrap_or(i64::MAX).saturating_mul(MICROS);
        match self.until_s {
            _ if time_us <= micros(self.since_s) => Reach::TooEarly,
            Some(until) if time_us <= micros(until.into()) => Reach::Within,
            _ => Reach::TooLate,
        }
    }
}

impl ArchivedPart {
    fn id(&self) -> String {
        id(&self.log, self.place)
    }

    pub(crate) fn path(&self) -> String {
        format!("{FOLDER}/{}", self.id())
    }

    fn parse(id: &str, stored_bytes: u64) -> Option<Self> {
        let (rest, offset) = id.rsplit_once('-')?;
        let (log, file) = rest.rsplit_once('-')?;
        let place = BinlogPlace { file: file.parse().ok()?, offset: u64::from_str_radix(offset, 16).ok()? };
        let part = Self { log: log.parse().ok()?, place, stored_bytes };
        (part.id() == id).then_some(part)
    }
}

fn id(log: &BinlogName, place: BinlogPlace) -> String {
    format!("{log}-{:010}-{:012x}", place.file, place.offset)
}

fn facts(head: &Head, place: BinlogPlace) -> PartFacts {
    let seconds = |micros: i64| u32::try_from(micros / MICROS).unwrap_or(u32::MAX);
    PartFacts {
        end: BinlogPlace { offset: place.offset.saturating_add(head.len), ..place },
        mark: head.system,
        times: head.times.map(|(first, last)| (seconds(first), seconds(last))),
        is_last: head.is_last,
        is_inside: head.is_inside,
    }
}

impl Repository {
    /// Archives a part of a binary log; when it returns, the part is durable. Returns what is known of the part that is
    /// archived there, which somebody else may have cut elsewhere.
    ///
    /// # Errors
    /// [`Error::Exists`] if another log is archived under this name; [`Error::Invalid`] for a part that is too long;
    /// errors of the store.
    pub fn push_binlog(&self, part: &BinlogPart<'_>) -> Result<PartFacts> {
        if (part.content.is_empty() && !part.is_last) || part.content.len() > BINLOG_PART_BYTES_MAX {
            return Err(Error::Invalid(format!("a part of a binary log of {} bytes", part.content.len())));
        }
        let (id, mark) = (id(part.log, part.place), part.mark);
        let times = part.times.map(|(first, last)| (i64::from(first) * MICROS, i64::from(last) * MICROS));
        let file = File {
            system: mark,
            name: &id,
            segment_bytes: 0,
            times,
            is_last: part.is_last,
            is_inside: part.is_inside,
            content: part.content,
        };
        let bytes = Bytes::from(object::encode(&self.id, &self.sealer, &file, None)?);
        let path = format!("{FOLDER}/{id}");
        let end = BinlogPlace { offset: part.place.offset + part.content.len() as u64, ..part.place };
        let (is_last, is_inside) = (part.is_last, part.is_inside);
        let pushed = PartFacts { end, mark, times: part.times, is_last, is_inside };
        if self.store.create(&path, bytes.clone())? {
            return Ok(pushed);
        }
        let mut found = self.read_part(&path, &id);
        if let Err(damage @ Error::Damaged { .. }) = &found
            && self.may_replace(part, pushed.next(), &path)?
        {
            tracing::warn!(error = %damage, "the part that is at hand takes the place of the damaged one");
            self.store.put(&path, bytes)?;
            found = self.read_part(&path, &id);
        }
        let (head, content) = found?.ok_or_else(|| Error::Missing { object: path.clone() })?;
        let shorter = content.len().min(part.content.len());
        if head.system == mark && content.get(..shorter) == part.content.get(..shorter) {
            return Ok(facts(&head, part.place));
        }
        Err(Error::Exists(format!("another log is archived as {} at {}", part.log, part.place)))
    }

    /// Returns true if a part, behind which the log goes on at `next`, may take the place of one that is damaged: nothing
    /// tells of that one's content any more, and the part archived behind it, if there is one, begins there (N1).
    fn may_replace(&self, part: &BinlogPart<'_>, next: BinlogPlace, path: &str) -> Result<bool> {
        let Some(there) = self.store.get(path, WAL_OBJECT_BYTES_MAX)? else { return Ok(false) };
        if object::is_of_other_version(&there)
            || object::open_head(&there, path, &self.id, &self.sealer).is_ok()
        {
            return Ok(false);
        }
        let parts = self.binlog_parts()?.remove(part.log).unwrap_or_default();
        let behind = parts.iter().find(|behind| behind.place > part.place);
        Ok(behind.is_none_or(|behind| behind.place == next))
    }

    fn read_part(&self, path: &str, id: &str) -> Result<Option<(Head, Vec<u8>)>> {
        let Some(bytes) = self.store.get(path, WAL_OBJECT_BYTES_MAX)? else { return Ok(None) };
        let (head, content) = object::decode(&bytes, path, &self.id, &self.sealer)?;
        check_id(&head, path, id)?;
        Ok(Some((head, content)))
    }

    /// Returns an archived part.
    ///
    /// # Errors
    /// [`Error::Damaged`], [`Error::Missing`]; errors of the store.
    pub fn binlog_part(&self, part: &ArchivedPart) -> Result<(PartFacts, Vec<u8>)> {
        let path = part.path();
        let (head, content) = self.read_part(&path, &part.id())?.ok_or(Error::Missing { object: path })?;
        Ok((facts(&head, part.place), content))
    }

    /// Returns what is known of parts, reading several at once.
    ///
    /// # Errors
    /// [`Error::Damaged`], [`Error::Missing`]; errors of the store.
    pub fn binlog_facts(&self, parts: &[ArchivedPart]) -> Result<Vec<PartFacts>> {
        let objects = parts.iter().map(|part| (part.path(), part.stored_bytes)).collect();
        let heads = self.object_heads(objects)?;
        let known = heads.iter().zip(parts).map(|(head, part)| {
            check_id(head, &part.path(), &part.id())?;
            Ok(facts(head, part.place))
        });
        known.collect()
    }

    /// Returns what is known of parts; `None` for those whose heads cannot be read: `verify` tells of these.
    fn readable_facts(&self, parts: &[ArchivedPart]) -> Result<Vec<Option<PartFacts>>> {
        readable(parts, &|some| self.binlog_facts(some))
    }

    /// Returns the parts of all binary logs, by name, in order. Objects whose names are not ours are left out.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn binlog_parts(&self) -> Result<BTreeMap<BinlogName, Vec<ArchivedPart>>> {
        let mut all: BTreeMap<BinlogName, Vec<ArchivedPart>> = BTreeMap::new();
        self.store.list(FOLDER, &mut |id, stored_bytes| {
            if let Some(part) = ArchivedPart::parse(id, stored_bytes) {
                all.entry(part.log.clone()).or_default().push(part);
            }
        })?;
        all.values_mut().for_each(|parts| parts.sort_unstable());
        Ok(all)
    }

    /// Returns what is known of the last part of a log that ends between two transactions; `None` if there is none. Who
    /// archives goes on there, finds the parts that are there already, and puts others in the place of damaged ones.
    ///
    /// # Errors
    /// [`Error::Damaged`] if the damage leaves no part to go on with; errors of the store.
    pub fn binlog_end(&self, log: &BinlogName) -> Result<Option<PartFacts>> {
        let parts = self.binlog_parts()?.remove(log).unwrap_or_default();
        let mut damage = None;
        for part in parts.iter().rev() {
            match self.binlog_facts(std::slice::from_ref(part)) {
                Ok(mut facts) => match facts.pop().filter(|facts| !facts.is_inside) {
                    None => {}
                    found => return Ok(found),
                },
                Err(error @ Error::Damaged { .. }) => {
                    damage.get_or_insert(error);
                }
                Err(error) => return Err(error),
            }
        }
        damage.map_or(Ok(None), Err)
    }

    /// Returns the parts of all binary logs, and by file the marks of the logs that they are of.
    pub(crate) fn binlog_marks(&self) -> Result<MarkedParts> {
        let mut all = BTreeMap::new();
        for (name, parts) in self.binlog_parts()? {
            let mut firsts = parts.clone();
            firsts.dedup_by_key(|part| part.place.file);
            let facts = self.readable_facts(&firsts)?;
            let mut marks = BTreeMap::new();
            for (first, facts) in firsts.iter().zip(facts) {
                let file = first.place.file;
                let mark = match facts {
                    Some(facts) => Some(facts.mark),
                    None => self.mark_of(parts.iter().filter(|part| part.place.file == file))?,
                };
                marks.insert(file, mark);
            }
            all.insert(name, (parts, marks));
        }
        Ok(all)
    }

    /// Returns the mark of the file of these parts, as the first one tells that can be read.
    fn mark_of<'p>(&self, parts: impl Iterator<Item = &'p ArchivedPart>) -> Result<Option<u64>> {
        for part in parts {
            if let Some(facts) = self.readable_facts(std::slice::from_ref(part))?.pop().flatten() {
                return Ok(Some(facts.mark));
            }
        }
        Ok(None)
    }

    /// Lists the archived binary logs, and which of the backups can be restored along them.
    ///
    /// # Errors
    /// [`Error::Damaged`]; errors of the store.
    pub fn binlogs(&self, backups: &[Backup]) -> Result<Vec<Binlog>> {
        let mut all = Vec::new();
        for (name, (parts, marks)) in self.binlog_marks()? {
            let (Some(first), Some(last)) = (parts.first(), parts.last()) else { continue };
            let mut binlog = Binlog {
                name,
                parts: parts.len() as u64,
                stored_bytes: parts.iter().map(|part| part.stored_bytes).sum(),
                from: first.place,
                until: last.place,
                last_s: None,
                lines: Vec::new(),
                archived: Vec::new(),
            };
            // Parts at the end may have no transaction.
            for some in parts.rchunks(READS) {
                let facts = self.readable_facts(some)?;
                if let Some(of_last) = facts.last().copied().flatten()
                    && of_last.end.file == last.place.file
                {
                    binlog.until = binlog.until.max(of_last.end);
                }
                binlog.last_s = facts.iter().flatten().filter_map(|facts| Some(facts.times?.1)).max();
                if binlog.last_s.is_some() {
                    break;
                }
            }
            binlog.lines = backups
                .iter()
                .flat_map(|backup| backup.binlogs.iter().map(move |end| (backup, end)))
                .filter(|(_, end)| {
                    marks.get(&end.place.file) == Some(&Some(end.mark)) && end.place >= first.place
                })
                .map(|(backup, end)| binlog.line(backup, end))
                .collect();
            binlog.archived = parts;
            all.push(binlog);
        }
        Ok(all)
    }

    /// Verifies that a log has no gap between its parts (N1). Returns what is known of them.
    ///
    /// # Errors
    /// [`Error::Missing`] names the part that is missing; [`Error::Damaged`]; errors of the store.
    pub fn binlog_chain(&self, parts: &[ArchivedPart]) -> Result<Vec<PartFacts>> {
        let facts = self.binlog_facts(parts)?;
        let pairs = facts.iter().zip(parts.iter().skip(1)).zip(facts.iter().skip(1));
        for ((before, part), after) in pairs {
            let is_other_file = !before.is_last && after.mark != before.mark;
            if part.place != before.next() || is_other_file {
                let missing = id(&part.log, before.next());
                return Err(Error::Missing { object: format!("{FOLDER}/{missing}") });
            }
        }
        Ok(facts)
    }

    /// Reads back archived parts, or a share of them, drawn by chance from `salt`; of all logs, gaps are told.
    pub(crate) fn verify_binlogs(
        &self,
        share: f64,
        salt: u64,
        checked: &mut Checked,
        watch: &mut dyn FnMut(u64),
    ) -> Result<()> {
        for parts in self.binlog_parts()?.into_values() {
            for part in parts.iter().filter(|part| crate::verify::drawn(salt, part.path().as_bytes()) < share)
            {
                match self.binlog_part(part) {
                    Ok((_, content)) => {
                        checked.log_files += 1;
                        checked.log_bytes += content.len() as u64;
                    }
                    // A prune may have deleted it meanwhile; a gap is told below.
                    Err(Error::Missing { .. }) => {}
                    Err(error) => checked.note(0, error)?,
                }
                watch(checked.log_bytes);
            }
        }
        for parts in self.binlog_parts()?.into_values() {
            self.note_gap(&parts, checked)?;
        }
        Ok(())
    }

    /// Counts all parts, and notes gaps in archived logs.
    pub(crate) fn check_binlogs(&self, checked: &mut Checked) -> Result<()> {
        for parts in self.binlog_parts()?.into_values() {
            checked.log_files += parts.len() as u64;
            checked.log_bytes += parts.iter().map(|part| part.stored_bytes).sum::<u64>();
            self.note_gap(&parts, checked)?;
        }
        Ok(())
    }

    fn note_gap(&self, parts: &[ArchivedPart], checked: &mut Checked) -> Result<()> {
        self.binlog_chain(parts).map(drop).or_else(|error| checked.note(0, error))
    }
}

/// The outcome of a prune, as far as archived binary logs are concerned.
pub(crate) struct UnneededParts {
    /// Parts that are deleted.
    pub(crate) doomed: Vec<ArchivedPart>,
    /// Number of parts that no backup needs, and that the next prune deletes.
    pub(crate) left: u64,
    /// Floors that this prune has found.
    pub(crate) floors: Vec<BinlogFloor>,
}

/// Returns the parts that no backup needs, by the floors of this prune and of the one before. A part is needed if it
/// ends behind the place at which the log ends in the oldest backup. Of a log of which no backup has the end, all parts
/// are.
pub(crate) fn unneeded(
    logs: &MarkedParts,
    backups: &[Backup],
    before: &[BinlogFloor],
    now: bool,
) -> UnneededParts {
    let mut found = UnneededParts { doomed: Vec::new(), left: 0, floors: Vec::new() };
    // The databases of some backups are unknown.
    if backups.iter().any(|backup| backup.clusters.is_none()) {
        return found;
    }
    for (name, (parts, marks)) in logs {
        let ends = || backups.iter().flat_map(|backup| &backup.binlogs);
        let lowest = |mark_of: &dyn Fn(&BinlogEnd) -> Option<u64>| {
            let of_it = |end: &&BinlogEnd| marks.get(&end.place.file) == Some(&mark_of(end));
            ends().filter(of_it).map(|end| end.place).min()
        };
        let Some(floor) = lowest(&|end| Some(end.mark)) else { continue };
        // Of a file whose mark cannot be read, the end in a backup may be that of this log.
        let floor = lowest(&|_| None).map_or(floor, |unknown| floor.min(unknown));
        let earlier = before.iter().find(|earlier| earlier.log == name.0).map(|earlier| earlier.place);
        for (part, next) in parts.iter().zip(parts.iter().skip(1)) {
            if next.place > floor {
                break;
            }
            if now || earlier.is_some_and(|earlier| next.place <= earlier) {
                found.doomed.push(part.clone());
            } else {
                found.left += 1;
            }
        }
        found.floors.push(BinlogFloor { log: name.0.clone(), place: floor });
    }
    found
}

impl Binlog {
    /// Returns the parts from the one on in which a place lies.
    pub fn parts_from(&self, place: BinlogPlace) -> &[ArchivedPart] {
        let first = self.archived.partition_point(|part| part.place <= place).saturating_sub(1);
        self.archived.get(first..).unwrap_or_default()
    }

    fn line(&self, backup: &Backup, end: &BinlogEnd) -> BinlogLine {
        let dataset = backup.name();
        BinlogLine {
            backup: backup.number,
            dataset: dataset.split('@').next().unwrap_or(&dataset).to_owned(),
            data: end.data.clone(),
            from: end.place,
            // A clock that was ahead says nothing about what the backup has.
            since_s: end.last_s.map_or(u64::MAX, u64::from).min(backup.origin.created),
            until_s: self.last_s,
        }
    }
}

fn check_id(head: &Head, path: &str, id: &str) -> Result<()> {
    match head.name == id {
        true => Ok(()),
        false => Err(Error::damaged(path, format!("it is {} under another name", head.name))),
    }
}
