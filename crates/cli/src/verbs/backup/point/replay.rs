//! Has a server repeat transactions of an archived binary log: `mariadb-binlog` writes them as SQL, and `mariadb` sends
//! them.
//!
//! `mariadb-binlog` reads one log from its standard input: the description of the first file, its transactions from
//! some place on, and the following files without their first four bytes. So nothing of the log lies on disc meanwhile.

use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::thread::JoinHandle;

use pagefold_backup::{ArchivedPart, BinlogPlace, Error, Repository, Role, Scan, clear_in_use};
use pagefold_server::failure::{Context, Failure, Result};

use crate::backup_errors;
use crate::table::printable;
use crate::verbs::branch::data::DataDir;
use crate::verbs::branch::mariadb;
use crate::verbs::branch::owner::Owner;
use crate::verbs::branch::record::Options;

/// Bytes at the beginning of each file that belong to no event.
const MAGIC_BYTES: u64 = 4;
/// Bytes at the beginning of a file in which its description lies.
const DESCRIPTION_BYTES: u64 = 4096;
/// Largest statement, in bytes, that server and client take: as much as any server can have logged.
pub(super) const PACKET_BYTES: u64 = 1 << 30;
/// Largest number of bytes of a program's messages that are shown.
const TOLD_BYTES: u64 = 4096;
const MICROS: i64 = 1_000_000;

/// The outcome of a replay.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Replayed {
    /// Number of transactions.
    pub(super) transactions: u64,
    /// Time of the last one, in seconds since 1970.
    pub(super) last_s: Option<u32>,
}

/// A log that is to be repeated.
pub(super) struct Replay<'a> {
    pub(super) repository: &'a Repository,
    /// Parts that follow each other; the first one has the place.
    pub(super) parts: &'a [ArchivedPart],
    /// Place behind the last transaction that the database has.
    pub(super) from: BinlogPlace,
    /// The database's own file of that place.
    pub(super) own: &'a File,
    /// Transactions that began to commit then or later are left out, in microseconds since 1970.
    pub(super) until_us: Option<i64>,
}

impl Replay<'_> {
    /// Reads the beginning of the database's own file. Returns a scan that goes on at the place, and the description.
    fn description(&self) -> Result<(Scan, Vec<u8>)> {
        let reading = || "cannot read the database's own log".to_owned();
        let mut first = vec![0; DESCRIPTION_BYTES.min(self.from.offset) as usize];
        self.own.read_exact_at(&mut first, 0).context(reading)?;
        clear_in_use(&mut first);
        let (mut scan, mut end) = (Scan::default(), None);
        scan.feed(&first, &mut |event| {
            end.get_or_insert(event.end);
        })
        .map_err(|error| backup_errors::failed(reading(), &error))?;
        let end = end.ok_or_else(|| Failure::new(format!("{}: nothing describes it", reading())))?;
        first.truncate(end as usize);
        scan.go_on_at(self.from.offset);
        Ok((scan, first))
    }

    /// Returns how many bytes of a part the database has. These must be the same in both.
    fn known(&self, part: &ArchivedPart, content: &[u8]) -> Result<usize> {
        if part.place.file != self.from.file {
            return Ok(0);
        }
        let len = self.from.offset.saturating_sub(part.place.offset) as usize;
        let mut own = vec![0; len];
        self.own
            .read_exact_at(&mut own, part.place.offset)
            .context(|| "cannot read the database's own log".into())?;
        if part.place.offset == 0 {
            clear_in_use(&mut own);
        }
        match content.starts_with(&own) {
            true => Ok(len),
            false => Err(Failure::new(format!(
                "the log that is archived is another one than the database's, from {} on",
                part.place
            ))),
        }
    }

    /// Writes the log as one file.
    fn write(&self, out: &mut dyn Write) -> Result<Replayed> {
        let writing = |error: io::Error| Failure::new(format!("cannot write to mariadb-binlog: {error}"));
        let (mut scan, description) = self.description()?;
        out.write_all(&description).map_err(writing)?;
        let mut done = Replayed::default();
        for part in self.parts {
            let bad = |error: Error| {
                backup_errors::failed(format!("cannot read the archived log at {}", part.place), &error)
            };
            let (_, content) = self.repository.binlog_part(part).map_err(bad)?;
            let known = self.known(part, &content)?;
            let begin = part.place.offset + known as u64;
            let rest = content.get(known..).unwrap_or_default();
            if begin == 0 {
                scan = Scan::default();
            }
            let (mut stop, mut states) = (None, Vec::new());
            scan.feed(rest, &mut |event| {
                let is_later = self.until_us.is_some_and(|until| i64::from(event.time_s) * MICROS >= until);
                match event.role {
                    // The stream begins within a file, and mariadb-binlog would miss the transactions before.
                    Role::State => states.push((event.begin, event.end)),
                    Role::Begins if stop.is_none() && is_later => stop = Some(event.begin),
                    Role::Ends(_) if stop.is_none() => {
                        done.transactions += 1;
                        done.last_s = Some(event.time_s);
                    }
                    _ => {}
                }
            })
            .map_err(bad)?;
            // No event has the first bytes of a file.
            let mut at = if begin == 0 { MAGIC_BYTES } else { begin };
            let end = stop.unwrap_or(begin + rest.len() as u64);
            for (next, behind) in states.into_iter().chain([(end, end)]) {
                let some = (at - begin) as usize..(next - begin) as usize;
                out.write_all(rest.get(some).unwrap_or_default()).map_err(writing)?;
                at = behind;
            }
            if stop.is_some() {
                break;
            }
        }
        out.flush().map_err(writing)?;
        Ok(done)
    }

    /// Has the server of a data directory repeat the log.
    pub(super) fn run(&self, data: &DataDir, owner: &Owner, options: &Options) -> Result<Replayed> {
        let mut client = Command::new(mariadb::client(["mariadb", "mysql"], options)?);
        let socket = format!("--{}", mariadb::RELATIVE_SOCKET);
        client.args(["--no-defaults", &socket, "--user=root", "--batch", "--binary-mode"]);
        client.arg(format!("--max-allowed-packet={PACKET_BYTES}"));
        let mut client = Program::start("mariadb", client, owner, &data.path, Stdio::null())?;
        let mut to_client = client.input()?;
        // The server was started without accounts, so that this needs no password. Statements about accounts need them.
        to_client.write_all(b"FLUSH PRIVILEGES;\n").context(|| "cannot write to mariadb".into())?;
        let mut binlog = Command::new(mariadb::client(["mariadb-binlog", "mysqlbinlog"], options)?);
        binlog.args(["--no-defaults", "--verify-binlog-checksum", "-"]);
        let mut binlog = Program::start("mariadb-binlog", binlog, owner, &data.path, to_client.into())?;
        let mut to_binlog = BufWriter::with_capacity(1 << 20, binlog.input()?);
        crate::ignore_sigpipe();
        let written = self.write(&mut to_binlog);
        drop(to_binlog);
        // If a program has failed, it knows why, and what was written to it failed because of that.
        let ended = binlog.end().and_then(|()| client.end());
        ended.and(written)
    }
}

/// A program that is written to, and whose messages are kept.
struct Program {
    name: &'static str,
    child: Child,
    messages: Option<JoinHandle<String>>,
}

impl Program {
    fn start(
        name: &'static str,
        mut command: Command,
        owner: &Owner,
        folder: &Path,
        output: Stdio,
    ) -> Result<Self> {
        owner.run(&mut command);
        command.current_dir(folder);
        command.stdin(Stdio::piped()).stdout(output).stderr(Stdio::piped());
        let mut child = command.spawn().context(|| format!("cannot start {name}"))?;
        let messages = child.stderr.take().map(|mut from| {
            std::thread::spawn(move || {
                let mut told = Vec::new();
                // The program must not wait for what nobody reads.
                from.by_ref().take(TOLD_BYTES).read_to_end(&mut told).ok();
                io::copy(&mut from, &mut io::sink()).ok();
                String::from_utf8_lossy(&told).trim().to_owned()
            })
        });
        Ok(Self { name, child, messages })
    }

    fn input(&mut self) -> Result<ChildStdin> {
        self.child.stdin.take().ok_or_else(|| Failure::new(format!("{} takes no input", self.name)))
    }

    fn end(&mut self) -> Result<()> {
        let status = self.child.wait().context(|| format!("cannot wait for {}", self.name))?;
        let messages = self.messages.take().and_then(|messages| messages.join().ok()).unwrap_or_default();
        match status.success() {
            true => Ok(()),
            false => Err(Failure::new(format!("{} failed ({status}): {}", self.name, printable(&messages)))),
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // A child that has been waited for is not touched.
        if self.messages.is_some() {
            self.child.kill().ok();
            self.child.wait().ok();
        }
    }
}
