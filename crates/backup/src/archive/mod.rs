//! Archives logs of database clusters, file by file, as `archive_command` gives and `restore_command` takes them.
//!
//! - A1: a file lies under the number of its cluster and its own name. It is made by a create that fails if there is
//!   one: a second writer finds the same content, or is refused. Only what cannot be read any more is overwritten.
//! - A2: a file needs no commit: [`Repository::push_log`] is one request beside the one that opens the repository,
//!   whatever the repository holds. For a segment there are two more, for the model of the segment before.
//! - A3: [`Repository::prune`] deletes what lies before the start of recovery of all kept backups of the cluster, if
//!   the prune before found that, too.

pub(crate) mod model;
pub(crate) mod object;
#[cfg(test)]
mod tests;
pub(crate) mod timeline;

use std::collections::BTreeMap;

use bytes::Bytes;
use pagefold_basebackup::segment::{Name, Part};
use serde::Serialize;

use self::model::{Kept, LEARN_BYTES_MIN, is_better, share};
use self::object::{FIXED_BYTES, File, Head};
use self::timeline::{ClusterLog, History, Line, UnreadableHistory};
use crate::commit::{Backup, Cluster, Floor};
use crate::error::{Error, Result};
use crate::limits::{READS, WAL_FILE_BYTES_MAX, WAL_HEAD_BYTES_MAX, WAL_OBJECT_BYTES_MAX};
use crate::repository::Repository;
use crate::verify::Checked;

/// Folder of all archived files.
const FOLDER: &str = "wal";

/// A file that is to be archived.
#[derive(Clone, Copy, Debug)]
pub struct LogFile<'a> {
    /// Number of the cluster.
    pub system: u64,
    /// Name of the file.
    pub name: Name,
    /// Bytes of a segment of the cluster's log if the file is one; otherwise 0.
    pub segment_bytes: u32,
    /// Ends of the first and the last of its transactions, in microseconds since 1970.
    pub times: Option<(i64, i64)>,
    /// Contents of the file.
    pub content: &'a [u8],
}

/// The outcome of archiving a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pushed {
    /// The file was not there, or could not be read any more, and is there now.
    New,
    /// The file was there, with the same content.
    Same,
}

/// An archived file, as the repository lists it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Archived {
    /// Number of the cluster.
    pub system: u64,
    /// Name of the file.
    pub name: Name,
    /// Bytes that the file takes in the repository.
    pub stored_bytes: u64,
}

/// Returns the path of a file. Serving hosts take no dots in names, and no server has underscores in its files' names.
fn path(system: u64, name: &Name) -> String {
    format!("{FOLDER}/{system:016x}-{}", name.to_string().replace('.', "_"))
}

fn parse(object: &str) -> Option<(u64, Name)> {
    let (system, name) = object.split_once('-')?;
    let system = u64::from_str_radix(system, 16).ok().filter(|_| system.len() == 16)?;
    Some((system, Name::parse(&name.replace('_', "."))?))
}

impl Archived {
    fn path(&self) -> String {
        path(self.system, &self.name)
    }
}

/// The outcome of a prune, as far as archived logs are concerned.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PrunedLogs {
    /// Number of files that were deleted.
    pub deleted_files: u64,
    /// Bytes of these files.
    pub deleted_bytes: u64,
    /// Number of files that no backup needs, and that the next prune deletes.
    pub left_files: u64,
    /// Backups whose databases are unknown: because of them no file is deleted.
    pub unknown_backups: Vec<u64>,
}

impl Repository {
    /// Archives a file of a log. When it returns, the file is durable.
    ///
    /// # Errors
    /// [`Error::Exists`] if there is a file of this name with another content; [`Error::Invalid`] for a file that is
    /// too long; errors of the store.
    pub fn push_log(&self, file: &LogFile<'_>) -> Result<Pushed> {
        let path = path(file.system, &file.name);
        if file.content.len() > WAL_FILE_BYTES_MAX {
            return Err(Error::Invalid(format!(
                "{} has {} bytes: no server makes such a file",
                file.name,
                file.content.len()
            )));
        }
        let name = file.name.to_string();
        if file.name.part == Part::History && History::parse(file.name.timeline, file.content).is_none() {
            return Err(Error::Invalid(format!("{name} is not the history of a timeline")));
        }
        let (system, segment_bytes, times) = (file.system, file.segment_bytes, file.times);
        let before = file.name.before(segment_bytes.into()).map(|before| self::path(system, &before));
        let file = File {
            system,
            name: &name,
            segment_bytes,
            times,
            is_last: false,
            is_inside: false,
            content: file.content,
        };
        let bytes = self.proven_log(&file, &path, self.encode_log(&file, before.as_deref())?)?;
        if self.store.create(&path, bytes.clone())? {
            return Ok(Pushed::New);
        }
        let differs =
            || Error::Exists(format!("{name} of cluster {system} was archived before, with another content"));
        let mut pushed = Pushed::Same;
        loop {
            let there = self.store.get(&path, WAL_OBJECT_BYTES_MAX)?;
            let there = there.ok_or_else(|| Error::Missing { object: path.clone() })?;
            match object::decode(&there, &path, &self.id, &self.sealer) {
                Ok((head, content)) => {
                    check_name(&head, &path, system, &name)?;
                    return if content == file.content { Ok(pushed) } else { Err(differs()) };
                }
                // Otherwise the server would keep this file, and all that come after it, for ever.
                Err(damage @ Error::Damaged { .. }) if pushed == Pushed::Same => {
                    match object::open_head(&there, &path, &self.id, &self.sealer) {
                        Ok(opened) => {
                            check_name(&opened.head, &path, system, &name)?;
                            if !opened.head.is_of(file.content) {
                                return Err(differs());
                            }
                        }
                        Err(_) if object::is_of_other_version(&there) => return Err(damage),
                        Err(_) => {}
                    }
                    tracing::warn!(error = %damage, "the file that is at hand takes the place of the damaged one");
                    self.store.put(&path, bytes.clone())?;
                    pushed = Pushed::New;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns an encoded file if it has the content when it is decoded, and else the file encoded without a model. The
    /// server removes its own file once this one is archived: then it is the only copy.
    fn proven_log(&self, file: &File<'_>, path: &str, encoded: Vec<u8>) -> Result<Bytes> {
        let decoded = object::decode(&encoded, path, &self.id, &self.sealer);
        if decoded.as_ref().is_ok_and(|(_, content)| content == file.content) {
            return Ok(encoded.into());
        }
        let error = decoded.err().map_or_else(|| "it is another file".to_owned(), |error| error.to_string());
        tracing::error!(
            file = file.name,
            error,
            "it could not be decoded again, and is archived without a model"
        );
        Ok(object::encode(&self.id, &self.sealer, file, None)?.into())
    }

    /// Encodes a file, a segment by a model: that of the segment before, whose object is at `before`, or a new one.
    fn encode_log(&self, file: &File<'_>, before: Option<&str>) -> Result<Vec<u8>> {
        let encode = |kept: Option<&Kept>| object::encode(&self.id, &self.sealer, file, kept);
        if file.segment_bytes == 0 || file.content.len() < LEARN_BYTES_MIN {
            return encode(None);
        }
        let Some(kept) = before.map(|before| self.kept(before)).transpose()?.flatten() else {
            return encode(Some(&Kept::learn(file.content)));
        };
        let bytes = encode(Some(&kept))?;
        if !kept.is_worse(share(bytes.len() as u64, file.content.len() as u64)) {
            return Ok(bytes);
        }
        let learned = encode(Some(&Kept::learn(file.content)))?;
        match is_better(learned.len(), bytes.len()) {
            true => Ok(learned),
            false => encode(Some(&kept.tried())),
        }
    }

    /// Returns what an archived segment has for the one behind it. That one does not depend on it, so one that is
    /// missing or damaged has nothing.
    fn kept(&self, object: &str) -> Result<Option<Kept>> {
        let read =
            |len: u64| Ok(self.store.ranges(&[(object.to_owned(), 0..len)])?.pop().unwrap_or_default());
        let found = read(FIXED_BYTES as u64)
            .and_then(|fixed| object::begin_bytes(&fixed, object, &self.id))
            .and_then(read)
            .and_then(|begin| object::open_kept(&begin, object, &self.id, &self.sealer));
        match found {
            Err(Error::Missing { .. } | Error::Damaged { .. }) => Ok(None),
            found => found,
        }
    }

    /// Returns an archived file; `None` if there is none of this name.
    ///
    /// # Errors
    /// [`Error::Damaged`]; errors of the store.
    pub fn fetch_log(&self, system: u64, name: &Name) -> Result<Option<Vec<u8>>> {
        let found = self.read_log(&path(system, name), system, &name.to_string())?;
        Ok(found.map(|(_, content)| content))
    }

    fn read_log(&self, path: &str, system: u64, name: &str) -> Result<Option<(Head, Vec<u8>)>> {
        let Some(bytes) = self.store.get(path, WAL_OBJECT_BYTES_MAX)? else { return Ok(None) };
        let (head, content) = object::decode(&bytes, path, &self.id, &self.sealer)?;
        check_name(&head, path, system, name)?;
        Ok(Some((head, content)))
    }

    /// Reads the heads of archived files, several at once.
    fn log_heads(&self, files: &[Archived]) -> Result<Vec<Head>> {
        let objects = files.iter().map(|file| (file.path(), file.stored_bytes)).collect();
        let heads = self.object_heads(objects)?;
        for (head, file) in heads.iter().zip(files) {
            check_name(head, &file.path(), file.system, &file.name.to_string())?;
        }
        Ok(heads)
    }

    /// Reads the heads of archived objects, several at once: each is given by its path and its length.
    pub(crate) fn object_heads(&self, objects: Vec<(String, u64)>) -> Result<Vec<Head>> {
        let head_bytes = (object::FIXED_BYTES + WAL_HEAD_BYTES_MAX) as u64;
        let wanted: Vec<_> =
            objects.into_iter().map(|(path, stored_bytes)| (path, 0..stored_bytes.min(head_bytes))).collect();
        let mut heads = Vec::with_capacity(wanted.len());
        // Few are read at a time, so that memory is bounded.
        for some in wanted.chunks(READS * 16) {
            for ((path, _), bytes) in some.iter().zip(self.store.ranges(some)?) {
                heads.push(object::open_head(&bytes, path, &self.id, &self.sealer)?.head);
            }
        }
        Ok(heads)
    }

    /// Returns all archived files, in order. Objects whose names are not ours are left out.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn logs(&self) -> Result<Vec<Archived>> {
        let mut all = Vec::new();
        self.store.list(FOLDER, &mut |object, stored_bytes| {
            if let Some((system, name)) = parse(object) {
                all.push(Archived { system, name, stored_bytes });
            }
        })?;
        all.sort_unstable();
        Ok(all)
    }

    /// Tells from when to when each cluster with a log or a backup can be restored, and where a segment is missing.
    ///
    /// # Errors
    /// Errors of reading heads of files and histories; errors of the store.
    pub fn cluster_logs(&self, backups: &[Backup]) -> Result<Vec<ClusterLog>> {
        let mut by_system: BTreeMap<u64, Vec<Archived>> = BTreeMap::new();
        for file in self.logs()? {
            by_system.entry(file.system).or_default().push(file);
        }
        for cluster in backups.iter().flat_map(|backup| backup.clusters.iter().flatten()) {
            by_system.entry(cluster.system).or_default();
        }
        by_system.into_iter().map(|(system, files)| self.cluster_log(system, &files, backups)).collect()
    }

    fn cluster_log(&self, system: u64, files: &[Archived], backups: &[Backup]) -> Result<ClusterLog> {
        let segments: Vec<Archived> =
            files.iter().filter(|file| file.name.part == Part::Segment).copied().collect();
        let of_backup = backups
            .iter()
            .flat_map(|backup| backup.clusters.iter().flatten())
            .find(|cluster| cluster.system == system)
            .map(|cluster| cluster.segment_bytes);
        let segment_bytes = match of_backup {
            Some(bytes) => bytes,
            None => self.segment_bytes(&segments)?,
        };
        let (mut histories, mut unreadable) = (Vec::new(), Vec::new());
        for file in files.iter().filter(|file| file.name.part == Part::History) {
            match self.history(file) {
                Ok(history) => histories.extend(history),
                Err(Error::Damaged { detail, .. }) => {
                    unreadable.push(UnreadableHistory { name: file.name, what: detail });
                }
                Err(error) => return Err(error),
            }
        }
        let found = (histories, unreadable);
        let mut log = ClusterLog::of(system, segment_bytes.into(), files, found, backups);
        let mut known = BTreeMap::new();
        for line in &mut log.lines {
            self.find_time(&segments, line, &mut known)?;
        }
        Ok(log)
    }

    /// Returns an archived history of a timeline; `None` if it is not there any more.
    fn history(&self, file: &Archived) -> Result<Option<History>> {
        let Some(content) = self.fetch_log(file.system, &file.name)? else { return Ok(None) };
        let history = History::parse(file.name.timeline, &content);
        let bad =
            || Error::damaged(file.path(), "it does not tell where timelines begin, as such a file does");
        history.ok_or_else(bad).map(Some)
    }

    /// Returns the bytes of a segment, as the first head tells that can be read; 0 if none can.
    fn segment_bytes(&self, segments: &[Archived]) -> Result<u32> {
        for segment in segments {
            match self.log_heads(std::slice::from_ref(segment)) {
                Ok(heads) => return Ok(heads.first().map_or(0, |head| head.segment_bytes)),
                Err(Error::Damaged { .. } | Error::Missing { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(0)
    }

    /// Returns the ends of the last transactions in segments, several at once; `None` for those without one, and for
    /// those whose heads cannot be read: `verify` tells of these.
    fn last_times(&self, segments: &[Archived]) -> Result<Vec<Option<i64>>> {
        let heads = readable(segments, &|some| self.log_heads(some))?;
        Ok(heads.iter().map(|head| Some(head.as_ref()?.times?.1)).collect())
    }

    /// Returns how far a cluster of a backup can be restored along a timeline, or along the newest one, as
    /// [`ClusterLog::line`] does, but with the time.
    ///
    /// # Errors
    /// Errors of reading heads of files.
    pub fn line(
        &self,
        log: &ClusterLog,
        backup: &Backup,
        cluster: &Cluster,
        timeline: Option<u32>,
    ) -> Result<Option<Line>> {
        let found = log.line(backup, cluster, timeline);
        if let Some(hidden) = log.hidden(found.as_ref().map(|line| line.timeline), timeline) {
            let UnreadableHistory { name, what } = hidden;
            let detail = format!(
                "{what}; so it is not known whether backup {} leads to timeline {}",
                backup.number, name.timeline
            );
            return Err(Error::damaged(path(log.system, name), detail));
        }
        let Some(mut line) = found else { return Ok(None) };
        let mut files = self.logs()?;
        files.retain(|file| file.system == log.system && file.name.part == Part::Segment);
        self.find_time(&files, &mut line, &mut BTreeMap::new())?;
        Ok(Some(line))
    }

    /// Sets the end of the last transaction in the segments of a line; segments at its end may have none. `files` is
    /// sorted.
    fn find_time(
        &self,
        files: &[Archived],
        line: &mut Line,
        known: &mut BTreeMap<Name, Option<i64>>,
    ) -> Result<()> {
        for begin in (0..).step_by(READS) {
            let some: Vec<Name> =
                (begin..begin + READS as u64).map_while(|back| line.before_end(back)).collect();
            let find = |name: &Name| files.binary_search_by_key(name, |file| file.name).ok();
            let unread: Vec<Archived> = some
                .iter()
                .filter(|name| !known.contains_key(*name))
                .filter_map(|name| files.get(find(name)?).copied())
                .collect();
            for (file, last) in unread.iter().zip(self.last_times(&unread)?) {
                known.insert(file.name, last);
            }
            line.until_us = some.iter().find_map(|name| known.get(name).copied().flatten());
            if line.until_us.is_some() || some.is_empty() {
                break;
            }
        }
        Ok(())
    }

    /// Reads back archived files, or a share of them, drawn by chance from `salt`.
    ///
    /// # Errors
    /// Errors of the store. Damage is noted in `checked`.
    pub fn verify_logs(
        &self,
        share: f64,
        salt: u64,
        checked: &mut Checked,
        watch: &mut dyn FnMut(u64),
    ) -> Result<()> {
        for file in self.logs()? {
            let path = file.path();
            if crate::verify::drawn(salt, path.as_bytes()) >= share {
                continue;
            }
            checked.log_files += 1;
            let read = self.read_log(&path, file.system, &file.name.to_string());
            // A prune may have deleted the file meanwhile.
            match read {
                Ok(Some((head, _))) => checked.log_bytes += head.len,
                Ok(None) => checked.log_files -= 1,
                Err(error) => checked.note(0, error)?,
            }
            watch(checked.log_bytes);
        }
        self.verify_binlogs(share, salt, checked, watch)
    }

    /// Checks whether a segment is missing between two others.
    pub(crate) fn check_logs(&self, backups: &[Backup], checked: &mut Checked) -> Result<()> {
        let files = self.logs()?;
        checked.log_files = files.len() as u64;
        checked.log_bytes = files.iter().map(|file| file.stored_bytes).sum();
        self.check_binlogs(checked)?;
        let logs = match self.cluster_logs(backups) {
            Ok(logs) => logs,
            Err(error) => return checked.note(0, error),
        };
        for log in &logs {
            for UnreadableHistory { name, what } in &log.unreadable {
                checked.note(0, Error::damaged(path(log.system, name), what))?;
            }
            for missing in log.missing() {
                checked.note(0, Error::Missing { object: path(log.system, &missing) })?;
            }
        }
        Ok(())
    }
}

fn check_name(head: &Head, path: &str, system: u64, name: &str) -> Result<()> {
    if head.system != system || head.name != name {
        let detail = format!("it is {} of cluster {} under another name", head.name, head.system);
        return Err(Error::damaged(path, detail));
    }
    Ok(())
}

/// Returns the numbers of the backups whose databases are unknown.
pub(crate) fn unknown(backups: &[Backup]) -> Vec<u64> {
    backups.iter().filter(|backup| backup.clusters.is_none()).map(|backup| backup.number).collect()
}

/// Returns the files that no backup needs, by the floors of this prune and of the one before; and the floors of this
/// one. If the clusters of any backup are unknown, nothing is deleted.
pub(crate) fn unneeded(
    files: &[Archived],
    backups: &[Backup],
    before: &[Floor],
    now: bool,
) -> (Vec<Archived>, Vec<Floor>, PrunedLogs) {
    let mut pruned = PrunedLogs { unknown_backups: unknown(backups), ..PrunedLogs::default() };
    if files.is_empty() || !pruned.unknown_backups.is_empty() {
        if files.is_empty() {
            pruned.unknown_backups.clear();
        }
        return (Vec::new(), Vec::new(), pruned);
    }
    let mut floors: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
    for cluster in backups.iter().flat_map(|backup| backup.clusters.iter().flatten()) {
        let found = (cluster.redo, cluster.segment_bytes.into());
        floors.entry(cluster.system).and_modify(|floor| *floor = (*floor).min(found)).or_insert(found);
    }
    let mut doomed = Vec::new();
    for file in files {
        // All files of a cluster without backups are kept: they may belong to backups made otherwise.
        let Some((floor, segment_bytes)) = floors.get(&file.system) else { continue };
        let end = file.name.number(*segment_bytes).saturating_add(1).saturating_mul(*segment_bytes);
        if file.name.part == Part::History || end > *floor {
            continue;
        }
        let earlier = before.iter().find(|earlier| earlier.system == file.system);
        if now || earlier.is_some_and(|earlier| end <= earlier.place) {
            pruned.deleted_files += 1;
            pruned.deleted_bytes += file.stored_bytes;
            doomed.push(*file);
        } else {
            pruned.left_files += 1;
        }
    }
    let floors = floors.into_iter().map(|(system, (place, _))| Floor { system, place }).collect();
    (doomed, floors, pruned)
}

/// Returns the objects' paths of files.
pub(crate) fn paths(files: &[Archived]) -> impl Iterator<Item = String> + '_ {
    files.iter().map(Archived::path)
}

/// Returns what `read` returns of objects, several at once; `None` for those that are damaged or missing, which hide
/// none of the others.
pub(crate) fn readable<T, R>(objects: &[T], read: &dyn Fn(&[T]) -> Result<Vec<R>>) -> Result<Vec<Option<R>>> {
    match read(objects) {
        Ok(all) => Ok(all.into_iter().map(Some).collect()),
        Err(Error::Damaged { .. } | Error::Missing { .. }) => match objects {
            [_] => Ok(vec![None]),
            _ => objects.iter().try_fold(Vec::new(), |mut all, one| {
                all.append(&mut readable(std::slice::from_ref(one), read)?);
                Ok(all)
            }),
        },
        Err(error) => Err(error),
    }
}
