//! `archive follow`: archives the binary log of a MariaDB server while the server writes it.
//!
//! - What is archived is durable on the server's disc before: no crash of the machine takes from the server what the
//!   archive has.
//! - Nothing is remembered here: the archive's last part says where to go on.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use pagefold_backup::{
    BinlogName, BinlogPart, BinlogPlace, Error, PartFacts, Repository, Role, Scan, clear_in_use, limits,
};
use pagefold_server::failure::{Context, Failure, Result};
use pagefold_server::{backups, units};
use rustix::fs::{Mode, OFlags};

use super::open_for_logs;
use crate::args::ArchiveFollow;
use crate::backup_errors;

/// End of the name of a list of logs.
const INDEX: &str = ".index";
/// Largest length of a list: some hundred thousand names.
const INDEX_BYTES_MAX: u64 = 16 << 20;
/// Bytes in which the description of a log lies, at its beginning.
const DESCRIPTION_BYTES: usize = 4096;
/// Bytes that are read at a time.
const STEP_BYTES: usize = 256 << 10;
/// Bytes of whole transactions from which on a part is archived.
const PART_BYTES: u64 = limits::BINLOG_PART_BYTES_MAX as u64 / 2;

/// The outcome of a round.
#[derive(Clone, Copy, Debug, Default)]
struct Round {
    parts: u64,
    bytes: u64,
}

/// A failure of a round: one that may pass, or one that will not.
enum Trouble {
    Passing(Failure),
    Lasting(Failure),
}

impl From<Failure> for Trouble {
    fn from(failure: Failure) -> Self {
        Self::Lasting(failure)
    }
}

/// `archive follow`.
pub fn run(args: &ArchiveFollow) -> Result<()> {
    let doing = || format!("cannot archive the log {}", args.name);
    let name: BinlogName = args.name.parse().map_err(|error| backup_errors::failed(doing(), &error))?;
    let every = Duration::from_secs(backups::every(&args.every).map_err(Failure::usage)?);
    let index = match args.log.is_dir() {
        true => index_in(&args.log)?.ok_or_else(|| {
            Failure::new(format!("{} has no binary log", args.log.display())).hint(
                "the server writes one with log_bin=NAME; where it lies elsewhere, name its list: NAME.index",
            )
        })?,
        false => args.log.clone(),
    };
    let repository = open_for_logs(&args.repository, &args.access)?;
    let end = repository.binlog_end(&name).map_err(|error| backup_errors::failed(doing(), &error))?;
    let mut follower = Follower { repository, name, index, end, was_listed: false };
    if args.once {
        let done = follower.round().map_err(|trouble| match trouble {
            Trouble::Passing(failure) | Trouble::Lasting(failure) => failure,
        })?;
        println!("{}: {} in {} parts, {}", args.name, units::size(done.bytes), done.parts, follower.shown());
        return Ok(());
    }
    println!("{}: it goes on {}", args.name, follower.shown());
    let mut failing = false;
    loop {
        let begun = Instant::now();
        match follower.round() {
            Ok(_) if failing => {
                eprintln!("pagefold: {} is archived again, {}", args.name, follower.shown());
                failing = false;
            }
            Ok(_) => {}
            Err(Trouble::Lasting(failure)) => return Err(failure),
            Err(Trouble::Passing(failure)) => {
                if !failing {
                    eprintln!(
                        "pagefold: {failure}\n  it is tried again every {}",
                        backups::every_text(every.as_secs())
                    );
                }
                failing = true;
            }
        }
        std::thread::sleep(every.saturating_sub(begun.elapsed()));
    }
}

/// Returns the list of the binary logs in a data directory; `None` if the server writes none there.
pub fn index_in(folder: &Path) -> Result<Option<PathBuf>> {
    let reading = || format!("cannot read {}", folder.display());
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).context(reading)? {
        let name = entry.context(reading)?.file_name();
        let Some(name) = name.to_str() else { continue };
        // A relay log looks the same, and has another server's changes.
        if name.ends_with(INDEX) && !name.contains("relay") {
            let index = folder.join(name);
            if listed(&index).is_ok_and(|files| !files.is_empty()) {
                found.push(index);
            }
        }
    }
    match found.as_slice() {
        [first, _, ..] => Err(Failure::new(format!("{} has several binary logs", folder.display()))
            .hint(format!("name the list of one: {}", first.display()))),
        _ => Ok(found.pop()),
    }
}

/// Opens a file of the server, through no link.
pub fn open(path: &Path) -> Result<File> {
    // The server's user may have put anything there.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let reading = || format!("cannot read {}", path.display());
    let file = File::from(rustix::fs::open(path, flags, Mode::empty()).context(reading)?);
    match file.metadata().context(reading)?.is_file() {
        true => Ok(file),
        false => Err(Failure::new(format!("{}: it is no file", reading()))),
    }
}

/// Returns the numbers and files of a list of logs, in its order. The files lie beside it.
pub fn listed(index: &Path) -> Result<Vec<(u32, PathBuf)>> {
    let reading = || format!("cannot read {}", index.display());
    let file = open(index)?;
    let len = file.metadata().context(reading)?.len();
    if len > INDEX_BYTES_MAX {
        return Err(Failure::new(format!("{}: it is too long for a list of logs", reading())));
    }
    let mut text = vec![0; len as usize];
    file.read_exact_at(&mut text, 0).context(reading)?;
    let text = String::from_utf8_lossy(&text);
    let folder = index.parent().unwrap_or(Path::new("."));
    text.lines()
        .filter(|line| !line.is_empty())
        .map(|line| {
            let name = line.rsplit('/').next().unwrap_or(line);
            let number = name.rsplit_once('.').and_then(|(_, number)| number.parse().ok());
            let number = number.ok_or_else(|| {
                Failure::new(format!("{} is no list of binary logs", index.display()))
                    .hint("the server's variable log_bin_index says where it is")
            })?;
            Ok((number, folder.join(name)))
        })
        .collect()
}

/// Findings of a scan of a file.
#[derive(Clone, Copy, Debug)]
pub struct Scanned {
    /// Offset behind the last transaction.
    pub whole: u64,
    /// The file's mark; 0 if its description has not been written yet.
    pub mark: u64,
    /// Latest time of a transaction, in seconds since 1970.
    pub last_s: Option<u32>,
}

/// Scans a file of a binary log to its end. If it is the file with that mark in which `before` was a place between two
/// transactions, the scan goes on there.
pub fn scanned(path: &Path, before: Option<(u64, BinlogPlace)>) -> Result<Scanned> {
    let reading = || format!("cannot read {}", path.display());
    let bad = |error: Error| Failure::new(format!("{}: {error}", reading()));
    let file = open(path)?;
    let (mut scan, mut last_s) = (Scan::default(), None);
    let mut buf = vec![0; STEP_BYTES];
    let first = buf.get_mut(..DESCRIPTION_BYTES).unwrap_or_default();
    let size = file.metadata().context(reading)?.len();
    let len = file.read_at(first, 0).context(reading)?;
    scan.feed(first.get(..len).unwrap_or_default(), &mut |_| {}).map_err(bad)?;
    let known = before.filter(|(mark, place)| *mark == scan.mark() && place.offset <= size);
    let mut at = known.map_or(0, |(_, place)| place.offset);
    scan.go_on_at(at);
    loop {
        let len = file.read_at(&mut buf, at).context(reading)?;
        if len == 0 {
            return Ok(Scanned { whole: scan.whole(), mark: scan.mark(), last_s });
        }
        at += len as u64;
        let ends = &mut |event: pagefold_backup::Event| {
            if matches!(event.role, Role::Ends(_)) {
                last_s = last_s.max(Some(event.time_s));
            }
        };
        scan.feed(buf.get(..len).unwrap_or_default(), ends).map_err(bad)?;
    }
}

/// Transactions of a file that follow those that are archived.
struct Window {
    file: File,
    mark: u64,
    end: u64,
    times: Option<(u32, u32)>,
    /// True if the server has closed the file there.
    is_closed: bool,
    /// True if the file may have more behind them.
    is_full: bool,
}

/// Returns the trouble with a file of the list. One that the server has deleted since the list was read is not in the
/// next list, which tells whether that leaves a gap.
fn of_file(path: &Path, failure: Failure) -> Trouble {
    match path.try_exists() {
        Ok(false) => Trouble::Passing(failure),
        _ => Trouble::Lasting(failure),
    }
}

struct Follower {
    repository: Repository,
    name: BinlogName,
    index: PathBuf,
    /// The last part that is archived.
    end: Option<PartFacts>,
    /// True if the list has been read before.
    was_listed: bool,
}

impl Follower {
    /// Returns the place up to which the log is archived, in words.
    fn shown(&self) -> String {
        match self.end {
            Some(end) => format!("archived up to {}", end.end),
            None => "from its beginning".into(),
        }
    }

    /// Archives everything that there is.
    fn round(&mut self) -> Result<Round, Trouble> {
        let mut done = Round::default();
        // Files that are not the last of the list do not change any more.
        let files = listed(&self.index).map_err(|failure| match self.was_listed {
            // A server that deletes files writes the list anew, and for a moment there is none.
            true => Trouble::Passing(failure),
            false => Trouble::Lasting(failure),
        })?;
        self.was_listed = true;
        let (Some((oldest, _)), Some((newest, _))) = (files.first(), files.last()) else { return Ok(done) };
        loop {
            let next = self.end.map_or(BinlogPlace { file: *oldest, offset: 0 }, |end| end.next());
            let Some((_, path)) = files.iter().find(|(number, _)| *number == next.file) else {
                // The server has closed a file, and has not begun the next one.
                if next.offset == 0 && next.file == newest.saturating_add(1) {
                    return Ok(done);
                }
                return Err(Trouble::Lasting(self.gap(next, &files)));
            };
            if let Some(end) = self.end.filter(|_| next.offset == 0) {
                self.require_predecessor(&end, &files)?;
            }
            let goes_on = next.file != *newest;
            let window = self.window(path, next, goes_on).map_err(|failure| of_file(path, failure))?;
            let Some(window) = window else { return Ok(done) };
            let is_last = !window.is_full && (window.is_closed || goes_on);
            if window.end > next.offset || is_last {
                self.push(path, next, &window, is_last, &mut done)?;
            }
            if !window.is_full && !is_last {
                return Ok(done);
            }
        }
    }

    /// Fails unless the file before the next one is as it was archived: a dataset that was rolled back, or a restored
    /// copy, has another history, and files of the same numbers.
    fn require_predecessor(&self, end: &PartFacts, files: &[(u32, PathBuf)]) -> Result<(), Trouble> {
        let Some((_, path)) = files.iter().find(|(file, _)| *file == end.end.file) else {
            return Err(self.gap(end.next(), files).into());
        };
        // A server that was killed may have left a file with nothing in it.
        let found = scanned(path, Some((end.mark, end.end))).map_err(|failure| of_file(path, failure))?;
        match (found.mark, found.whole) == (end.mark, end.end.offset) {
            true => Ok(()),
            false => Err(self.other(path, end.end).into()),
        }
    }

    /// Returns the failure that a file is another one than was archived up to a place.
    fn other(&self, path: &Path, place: BinlogPlace) -> Failure {
        let name = &self.name;
        Failure::new(format!("{} is not the file that was archived as {name} up to {place}", path.display())).hint(
            format!(
                "each server's log has a name of its own, and so has one that was begun anew, restored or rolled back: --as {name}-2, and make a backup"
            ),
        )
    }

    fn gap(&self, next: BinlogPlace, files: &[(u32, PathBuf)]) -> Failure {
        let (name, index) = (&self.name, self.index.display());
        let has = |edge: Option<&(u32, PathBuf)>| edge.map_or(0, |(number, _)| *number);
        let (first, last) = (has(files.first()), has(files.last()));
        Failure::new(format!(
            "the log {name} is archived up to {next}, and {index} has files {first:06} to {last:06}: it cannot go on without a gap"
        ))
        .hint(format!(
            "archive it under another name, and make a backup: --as {name}-2; the server keeps files longer with expire_logs_days"
        ))
    }

    /// Scans a file from a place on, for some MiB or to its end. Returns `None` if it is just being begun.
    /// `goes_on` says that the server writes to a later file.
    fn window(&self, path: &Path, next: BinlogPlace, goes_on: bool) -> Result<Option<Window>> {
        let reading = || format!("cannot read {}", path.display());
        let bad = |error: Error| Failure::new(format!("{}: {error}", reading()));
        let file = open(path)?;
        // The bytes up to here are on disc before they are archived.
        let len = file.metadata().context(reading)?.len();
        file.sync_data().context(reading)?;
        let mut scan = Scan::default();
        let mut first = vec![0; DESCRIPTION_BYTES.min(len as usize)];
        file.read_exact_at(&mut first, 0).context(reading)?;
        scan.feed(&first, &mut |_| {}).map_err(bad)?;
        let mark = scan.mark();
        if mark == 0 && len >= DESCRIPTION_BYTES as u64 {
            return Err(Failure::new(format!("{}: nothing describes the log", reading())));
        }
        if mark == 0 {
            // A server that was killed may have left a file with nothing in it.
            let nothing = Window { file, mark, end: 0, times: None, is_closed: false, is_full: false };
            return Ok(Some(nothing).filter(|_| goes_on && next.offset == 0));
        }
        let known = self.end.filter(|_| next.offset > 0);
        if known.is_some_and(|known| known.mark != mark || len < next.offset) {
            return Err(self.other(path, next));
        }
        let begin = next.offset;
        scan.go_on_at(begin);
        let (mut at, mut times): (u64, Option<(u32, u32)>) = (begin, None);
        let mut buf = vec![0; STEP_BYTES];
        while at < len && scan.whole() < begin + PART_BYTES {
            let step = (len - at).min(STEP_BYTES as u64) as usize;
            let some = buf.get_mut(..step).unwrap_or_default();
            file.read_exact_at(some, at).context(reading)?;
            at += step as u64;
            let ends = &mut |event: pagefold_backup::Event| {
                if matches!(event.role, Role::Ends(_)) {
                    let (first, last) = times.unwrap_or((event.time_s, event.time_s));
                    times = Some((first.min(event.time_s), last.max(event.time_s)));
                }
            };
            scan.feed(some, ends).map_err(bad)?;
        }
        let (end, is_closed) = (scan.whole().max(begin), scan.is_closed());
        Ok(Some(Window { file, mark, end, times, is_closed, is_full: at < len }))
    }

    /// Archives what a window has, in parts.
    fn push(
        &mut self,
        path: &Path,
        mut next: BinlogPlace,
        window: &Window,
        is_last: bool,
        done: &mut Round,
    ) -> Result<(), Trouble> {
        let reading = || format!("cannot read {}", path.display());
        loop {
            let len = (window.end - next.offset).min(limits::BINLOG_PART_BYTES_MAX as u64);
            let mut content = vec![0; len as usize];
            window.file.read_exact_at(&mut content, next.offset).context(reading)?;
            if next.offset == 0 {
                clear_in_use(&mut content);
            }
            let is_end = next.offset + len == window.end;
            let part = BinlogPart {
                log: &self.name,
                place: next,
                mark: window.mark,
                times: window.times.filter(|_| is_end),
                is_last: is_end && is_last,
                is_inside: !is_end,
                content: &content,
            };
            let pushed = self.repository.push_binlog(&part).map_err(|error| {
                let failure = backup_errors::failed(format!("cannot archive {}", path.display()), &error);
                match error {
                    Error::Exists(_) => Trouble::Lasting(
                        failure
                            .hint(format!("each server's log has a name of its own: --as {}-2", self.name)),
                    ),
                    Error::Store { .. } | Error::Connection { .. } => Trouble::Passing(failure),
                    _ => Trouble::Lasting(failure),
                }
            })?;
            done.parts += 1;
            done.bytes += len;
            // After a failure it goes on between two transactions.
            if !pushed.is_inside {
                self.end = Some(pushed);
            }
            // Somebody else may have archived more, or less.
            next = pushed.next();
            if next.file != part.place.file || next.offset >= window.end {
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use pagefold_backup::{InitOptions, Location, Seen, Store};

    use super::*;

    #[test]
    fn a_list_names_files_beside_it() {
        let dir = tempfile::tempdir().unwrap();
        let index = dir.path().join("bin.index");
        std::fs::write(&index, "./bin.000009\n/elsewhere/bin.000010\n../bin.1000000\n").unwrap();
        let files = listed(&index).unwrap();
        assert_eq!(files.iter().map(|(number, _)| *number).collect::<Vec<_>>(), [9, 10, 1_000_000]);
        assert!(files.iter().all(|(_, path)| path.parent() == Some(dir.path())));
        assert_eq!(index_in(dir.path()).unwrap().unwrap(), index);
        std::fs::write(dir.path().join("relay-bin.index"), "./relay-bin.000001\n").unwrap();
        std::fs::write(dir.path().join("notes.index"), "no log\n").unwrap();
        assert_eq!(index_in(dir.path()).unwrap().unwrap(), index);
        std::fs::write(dir.path().join("more.index"), "./more.000001\n").unwrap();
        assert!(index_in(dir.path()).unwrap_err().to_string().contains("several binary logs"));
        // No link is followed.
        std::os::unix::fs::symlink("/etc/passwd", dir.path().join("link.index")).unwrap();
        assert!(listed(&dir.path().join("link.index")).is_err());
    }

    #[test]
    fn a_server_that_deletes_files_does_not_end_it() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(&Location::Directory(dir.path().join("repository")), true).unwrap();
        let repository = Repository::init(store, Seen::default(), &InitOptions::default()).unwrap();
        let (name, index) = ("shop".parse().unwrap(), dir.path().join("bin.index"));
        let mut follower = Follower { repository, name, index: index.clone(), end: None, was_listed: false };
        assert!(matches!(follower.round(), Err(Trouble::Lasting(_))), "there was never one");
        std::fs::write(&index, "").unwrap();
        assert!(matches!(follower.round(), Ok(Round { parts: 0, .. })));
        // The list is being replaced.
        std::fs::remove_file(&index).unwrap();
        assert!(matches!(follower.round(), Err(Trouble::Passing(_))));
        // The file went after the list was read.
        std::fs::write(&index, "./bin.000001\n").unwrap();
        assert!(matches!(follower.round(), Err(Trouble::Passing(_))));
    }
}
