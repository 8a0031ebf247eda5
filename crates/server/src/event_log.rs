//! Events of a pool's servers, kept when servers end: lines of JSON in two files in this machine's state directory.
//! When the newer file is full, the older one is emptied. Numbers of events rise over all servers of a pool here.
//!
//! Writes are as durable as the file system makes them by itself: no end of a server loses what it has written, and a
//! loss of power may lose the last half a minute.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use crate::control::Event;
use crate::failure::{Context, Failure, Result};
use crate::files;

/// Length in bytes that a file does not exceed; the other file is written from there on.
const FILE_BYTES_MAX: u64 = 512 << 10;

/// The files of a pool's events, open for appending. One server has them at a time.
pub(crate) struct EventLog {
    files: [File; 2],
    /// Index of the file that is appended to; `len_bytes` is its length.
    current: usize,
    len_bytes: u64,
}

fn paths(guid: &str) -> Result<[PathBuf; 2]> {
    // The GUID becomes part of a path.
    if guid.is_empty() || !guid.chars().all(|c| c.is_ascii_hexdigit() || c == '-') {
        return Err(Failure::new(format!("\"{}\" is no GUID of a pool", crate::raw::printable(guid))));
    }
    let dir = files::state_dir()?.join("events");
    Ok([dir.join(format!("{guid}.0")), dir.join(format!("{guid}.1"))])
}

/// Returns the events in a file, and its length in bytes. A line that is no event, such as a torn one, is skipped.
fn parse(file: &mut File) -> io::Result<(Vec<Event>, u64)> {
    let mut bytes = Vec::new();
    file.take(2 * FILE_BYTES_MAX).read_to_end(&mut bytes)?;
    let lines = bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let events = lines.filter_map(|line| serde_json::from_slice::<Event>(line).ok()).collect();
    Ok((events, bytes.len() as u64))
}

fn last(events: &[Event]) -> u64 {
    events.last().map_or(0, |event| event.number)
}

fn in_order(mut older: Vec<Event>, mut newer: Vec<Event>) -> Vec<Event> {
    if last(&older) > last(&newer) {
        std::mem::swap(&mut older, &mut newer);
    }
    older.append(&mut newer);
    older
}

/// Returns the events that are kept of a pool, oldest first.
pub fn read(guid: &str) -> Result<Vec<Event>> {
    let mut of_files = paths(guid)?.into_iter().map(|path| match File::open(&path) {
        Ok(mut file) => {
            parse(&mut file).map(|(events, _)| events).context(|| format!("cannot read {}", path.display()))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(Failure::new(format!("cannot read {}: {error}", path.display()))),
    });
    let mut next = || of_files.next().unwrap_or_else(|| Ok(Vec::new()));
    Ok(in_order(next()?, next()?))
}

impl EventLog {
    /// Opens the files of a pool, and makes them if they do not exist; returns also their events, oldest first.
    pub(crate) fn open(guid: &str) -> Result<(Self, Vec<Event>)> {
        let [first, second] = paths(guid)?;
        if let Some(dir) = first.parent() {
            files::make_private(&files::state_dir()?)?;
            files::make_private(dir)?;
        }
        let open = |path: &PathBuf| {
            let mut options = File::options();
            options
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .custom_flags(libc::O_NOFOLLOW);
            options.open(path).context(|| format!("cannot open {}", path.display()))
        };
        let mut files = [open(&first)?, open(&second)?];
        let reading = || "cannot read the events that were kept".to_owned();
        let (older, older_bytes) = parse(&mut files[0]).context(reading)?;
        let (newer, newer_bytes) = parse(&mut files[1]).context(reading)?;
        let current = usize::from(last(&newer) > last(&older));
        let len_bytes = if current == 0 { older_bytes } else { newer_bytes };
        let mut log = Self { files, current, len_bytes };
        // This newline ends a line that was torn.
        log.write(b"\n").context(reading)?;
        Ok((log, in_order(older, newer)))
    }

    /// Appends an event.
    ///
    /// # Errors
    /// Those of the file system.
    pub(crate) fn append(&mut self, event: &Event) -> io::Result<()> {
        let mut line = serde_json::to_vec(event).map_err(io::Error::other)?;
        line.push(b'\n');
        if self.len_bytes + line.len() as u64 > FILE_BYTES_MAX {
            self.current = 1 - self.current;
            self.files[self.current].set_len(0)?;
            self.len_bytes = 0;
        }
        self.write(&line)
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let file = &mut self.files[self.current];
        file.seek(SeekFrom::Start(self.len_bytes))?;
        file.write_all(bytes)?;
        self.len_bytes += bytes.len() as u64;
        Ok(())
    }
}

/// Removes the events of a pool that does not exist any more.
pub fn remove(guid: &str) -> Result<()> {
    for path in paths(guid)? {
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(Failure::new(format!("cannot remove {}: {error}", path.display())));
            }
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(number: u64, text: &str) -> Event {
        Event {
            number,
            time_ms: number,
            level: "INFO".into(),
            target: "test".into(),
            message: text.into(),
            fields: vec![("name".into(), "value".into())],
        }
    }

    /// Returns a log on files without names.
    fn log() -> EventLog {
        EventLog {
            files: [tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap()],
            current: 0,
            len_bytes: 0,
        }
    }

    fn contents(log: &mut EventLog) -> Vec<Event> {
        log.files.iter_mut().for_each(|file| drop(file.rewind()));
        let (older, _) = parse(&mut log.files[0]).unwrap();
        let (newer, _) = parse(&mut log.files[1]).unwrap();
        in_order(older, newer)
    }

    #[test]
    fn what_is_kept_is_bounded_and_is_the_newest() {
        let mut log = log();
        let long = "x".repeat(1000);
        for number in 1..=3000 {
            log.append(&event(number, &long)).unwrap();
        }
        let bytes: u64 = log.files.iter().map(|file| file.metadata().unwrap().len()).sum();
        assert!(bytes <= 2 * FILE_BYTES_MAX, "{bytes}");
        let kept = contents(&mut log);
        assert_eq!(last(&kept), 3000);
        assert!(
            kept.len() > 400 && kept.windows(2).all(|pair| pair[1].number == pair[0].number + 1),
            "{}",
            kept.len()
        );
    }

    #[test]
    fn a_torn_line_is_passed_over_and_what_follows_is_read() {
        let mut log = log();
        log.append(&event(1, "one")).unwrap();
        log.write(b"{\"number\":2,\"time").unwrap();
        log.write(b"\n").unwrap();
        log.append(&event(3, "three\nwith a line")).unwrap();
        let told: Vec<String> = contents(&mut log).into_iter().map(|event| event.message).collect();
        assert_eq!(told, ["one", "three\nwith a line"]);
    }

    #[test]
    fn names_of_files_come_from_guids_alone() {
        assert!(paths("../../etc").is_err() && paths("").is_err());
    }
}
