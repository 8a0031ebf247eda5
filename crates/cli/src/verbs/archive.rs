//! `archive`: the commands by which PostgreSQL stores files of its log and fetches them.

pub mod follow;

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use pagefold_backup::{Error, LogFile, Pushed};
use pagefold_basebackup::control::{self, Control};
use pagefold_basebackup::segment::{self, Head, Name, Part};
use pagefold_server::failure::{Context, Failure, Result};
use pagefold_server::raw::shown;
use serde_json::json;

use super::backup::{open, open_for_logs};
use super::{archived_logs, print_json};
use crate::args::{Archive, ArchiveFetch, ArchiveList, ArchivePush};
use crate::backup_errors;
use crate::table::printable;

/// Exit status of a fetch that failed: PostgreSQL takes a status above 125 for an error, and any other for the end of
/// what is archived.
const FAILED: u8 = 254;
/// Largest file that is read: segments are the longest files of a log, and this is the longest segment.
const FILE_BYTES_MAX: u64 = 1 << 30;
/// Largest number of tries to read the control file, which the server may be writing just now.
const CONTROL_TRIES: u32 = 5;
const CONTROL_STEP: Duration = Duration::from_millis(20);

/// `archive VERB`.
pub fn run(verb: &Archive) -> Result<()> {
    match verb {
        Archive::Push(args) => push(args),
        Archive::Fetch(args) => fetch(args),
        Archive::Follow(args) => follow::run(args),
        Archive::List(args) => list(args),
    }
}

/// Returns the exit status of a command line that failed. A `restore_command` that makes no sense must not look like
/// the end of the archive.
pub fn exit_status(words: &[OsString], failure: &Failure) -> u8 {
    let is_fetch = words.get(1).is_some_and(|verb| verb == "archive")
        && words.get(2).is_some_and(|verb| verb == "fetch");
    let status = failure.exit_status();
    if is_fetch && status == 2 { FAILED } else { status }
}

fn push(args: &ArchivePush) -> Result<()> {
    let doing = || format!("cannot archive {}", shown(&args.file));
    let name = args.file.file_name().and_then(|name| Name::parse(name.to_str()?)).ok_or_else(|| {
        Failure::usage(format!("{}: a file of a log has another name", doing()))
            .hint("PostgreSQL's archive_command gives it: 'pagefold archive push REPO %p'")
    })?;
    let mut content = Vec::new();
    let read =
        File::open(&args.file).and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_end(&mut content));
    read.context(doing)?;
    let head = checked_head(&name, &content).map_err(|why| {
        Failure::new(format!("{}: {why}", doing()))
            .hint("it is not what its name says; see where it comes from")
    })?;
    let system = match (head.map(|head| head.system), args.system) {
        (Some(found), Some(said)) if found != said => {
            return Err(Failure::new(format!("{}: it is of cluster {found}, not {said}", doing()))
                .hint("each server has an archive_command of its own; --system can be left out"));
        }
        (Some(system), _) | (None, Some(system)) => system,
        (None, None) => system_beside(Some(&args.file)).map_err(|failure| {
            Failure::new(format!("{}: it is not known of which cluster it is: {}", doing(), failure.what()))
                .hint("run it in the data directory, as PostgreSQL does, or say --system N")
        })?,
    };
    let times = head.filter(|_| name.part == Part::Segment).and_then(|_| segment::times(&content));
    let file = LogFile {
        system,
        name,
        segment_bytes: head.map_or(0, |head| head.segment_bytes),
        times: times.map(|times| (times.first, times.last)),
        content: &content,
    };
    let repository = open_for_logs(&args.repository, &args.access)?;
    match repository.push_log(&file) {
        Ok(Pushed::New | Pushed::Same) => Ok(()),
        Err(error @ Error::Exists(_)) => Err(Failure::new(format!("{}: {error}", doing())).hint(
            "two servers of one cluster archive here: a copy that was started needs archive_mode=off, or a timeline of its own (pg_ctl promote)",
        )),
        // PostgreSQL runs this as its own user, and the repository may have been made by root.
        Err(error @ Error::Store { op: "write", .. }) if !args.repository.contains("://") => {
            Err(Failure::new(format!("{}: {error}", doing())).hint(format!(
                "whom the server runs as must be able to write there: install -d -o postgres {}/wal",
                args.repository
            )))
        }
        Err(error) => Err(backup_errors::failed(doing(), &error)),
    }
}

/// Returns the first page of a segment, or `None` if the file is no segment; the error says why it cannot be what its
/// name says.
fn checked_head(name: &Name, content: &[u8]) -> Result<Option<Head>, String> {
    if !matches!(name.part, Part::Segment | Part::Partial) {
        return Ok(None);
    }
    let head = Head::parse(content).ok_or("it does not begin as a segment of a log")?;
    let segment_bytes = u64::from(head.segment_bytes);
    if content.len() as u64 != segment_bytes {
        return Err(format!("it has {} bytes, and a segment {segment_bytes}", content.len()));
    }
    if head.address != name.number(segment_bytes).saturating_mul(segment_bytes)
        || head.timeline > name.timeline
    {
        let place = control::lsn(head.address);
        return Err(format!("its first page is that of {place} on timeline {}", head.timeline));
    }
    Ok(Some(head))
}

/// Returns the cluster in whose data directory the program runs, or whose `pg_wal` has the file.
fn system_beside(file: Option<&Path>) -> Result<u64> {
    let above = file.and_then(|file| Some(file.parent()?.join("..")));
    let folder =
        std::iter::once(PathBuf::from(".")).chain(above).find(|folder| folder.join(control::FILE).exists());
    let folder = folder.ok_or_else(|| Failure::new(format!("there is no {} here", control::FILE)))?;
    let mut tries = 1;
    loop {
        match Control::of(&folder) {
            Ok(control) => return Ok(control.system),
            Err(_) if tries < CONTROL_TRIES => std::thread::sleep(CONTROL_STEP),
            Err(error) => return Err(Failure::new(error.to_string())),
        }
        tries += 1;
    }
}

fn fetch(args: &ArchiveFetch) -> Result<()> {
    fetch_to(args).map_err(|(failure, is_missing)| if is_missing { failure } else { failure.status(FAILED) })
}

/// Fetches a file; the error says whether the file is missing.
fn fetch_to(args: &ArchiveFetch) -> Result<(), (Failure, bool)> {
    let doing = || format!("cannot fetch {}", printable(&args.name));
    let failed = |failure: Failure| (failure, false);
    let name = Name::parse(&args.name).ok_or_else(|| {
        let failure = Failure::new(format!("{}: a file of a log has another name", doing()));
        failed(failure.hint("PostgreSQL's restore_command gives it: 'pagefold archive fetch REPO %f %p'"))
    })?;
    let system = match args.system {
        Some(system) => system,
        None => system_beside(None).map_err(|failure| {
            let what = format!("{}: it is not known of which cluster: {}", doing(), failure.what());
            failed(
                Failure::new(what)
                    .hint("run it in the data directory, as PostgreSQL does, or say --system N"),
            )
        })?,
    };
    let repository = open_for_logs(&args.repository, &args.access).map_err(failed)?;
    let found = repository
        .fetch_log(system, &name)
        .map_err(|error| failed(backup_errors::failed(doing(), &error)))?;
    let Some(content) = found else {
        let what = format!("{} of cluster {system} is not in {}", args.name, args.repository);
        return Err((Failure::new(what), true));
    };
    write(&args.to, &content).context(|| format!("cannot write {}", shown(&args.to))).map_err(failed)
}

/// Writes a file to where it is wanted: it is there as a whole and durable, or not at all.
fn write(to: &Path, content: &[u8]) -> std::io::Result<()> {
    let Some(name) = to.file_name() else { return Err(std::io::ErrorKind::InvalidInput.into()) };
    let mut new = name.to_owned();
    new.push(".pagefold-new");
    let new = to.with_file_name(new);
    let mut file = File::create(&new)?;
    file.write_all(content)?;
    file.sync_all()?;
    std::fs::rename(&new, to)?;
    let folder = to.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder)?.sync_all()
}

fn list(args: &ArchiveList) -> Result<()> {
    let repository = open(&args.repository, &args.access)?;
    let failed = |error| backup_errors::failed(format!("cannot list {}", args.repository), &error);
    let backups = repository.backups().map_err(failed)?;
    let logs = repository.cluster_logs(&backups).map_err(failed)?;
    let binlogs = repository.binlogs(&backups).map_err(failed)?;
    if args.output.json {
        print_json(&json!({ "repository": repository.id(), "logs": logs, "binlogs": binlogs }))?;
        return archived_logs::check_histories(&logs);
    }
    archived_logs::print_all(&logs, &binlogs, &args.output);
    archived_logs::check_histories(&logs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fetch_that_makes_no_sense_is_no_end_of_the_archive() {
        let words = |text: &str| text.split(' ').map(OsString::from).collect::<Vec<_>>();
        let usage = Failure::usage("x");
        assert_eq!(exit_status(&words("pagefold archive fetch x"), &usage), FAILED);
        assert_eq!(exit_status(&words("pagefold archive push x"), &usage), 2);
        assert_eq!(exit_status(&words("pagefold archive fetch x y z"), &Failure::new("not there")), 1);
        assert_eq!(
            exit_status(&words("pagefold archive fetch x y z"), &Failure::new("x").status(FAILED)),
            FAILED
        );
    }

    #[test]
    fn a_file_is_whole_where_it_was_wanted() {
        let dir = tempfile::tempdir().unwrap();
        let to = dir.path().join("RECOVERYXLOG");
        std::fs::write(&to, "an older one").unwrap();
        write(&to, b"content").unwrap();
        assert_eq!(std::fs::read(&to).unwrap(), b"content");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
        assert!(write(&dir.path().join("none/x"), b"").is_err());
    }
}
