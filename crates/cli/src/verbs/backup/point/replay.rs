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
    /// Latest time of one, in seconds since 1970.
    pub(super) last_s: Option<u32>,
    /// Place of the first transaction that was left out, because of its time.
    pub(super) stopped: Option<BinlogPlace>,
    /// True if transactions behind that place have times that belong to the point.
    pub(super) earlier: bool,
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

    /// Returns how many bytes of a part the database has, which must be the same in both.
    fn known(&self, part: &ArchivedPart, content: &[u8]) -> Result<usize> {
        if part.place.file != self.from.file {
            return Ok(0);
        }
        let len = self.from.offset.saturating_sub(part.place.offset).min(content.len() as u64) as usize;
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
    fn write(&self, out: &mut dyn Write) -> Result<Replayed, Unwritten> {
        let (mut scan, description) = self.description()?;
        out.write_all(&description)?;
        let mut done = Replayed::default();
        for part in self.parts {
            let bad = |error: Error| {
                backup_errors::failed(format!("cannot read the archived log at {}", part.place), &error)
            };
            let (facts, content) = self.repository.binlog_part(part).map_err(bad)?;
            if done.stopped.is_some() {
                // Nothing of it is repeated; what is left out and should perhaps not be is told.
                let is_earlier = |(first, _): (u32, u32)| self.is_before(first);
                done.earlier |= facts.times.is_some_and(is_earlier);
                continue;
            }
            let known = self.known(part, &content)?;
            let begin = part.place.offset + known as u64;
            if part.place.file == self.from.file && begin < self.from.offset {
                // The archive has less than the database.
                continue;
            }
            let rest = content.get(known..).unwrap_or_default();
            if begin == 0 {
                scan = Scan::default();
            }
            let mut states = Vec::new();
            scan.feed(rest, &mut |event| match event.role {
                // The stream begins within a file, and mariadb-binlog would miss the transactions before.
                Role::State => states.push((event.begin, event.end)),
                Role::Begins if done.stopped.is_some() => done.earlier |= self.is_before(event.time_s),
                Role::Begins if !self.is_before(event.time_s) => {
                    done.stopped = Some(BinlogPlace { offset: event.begin, ..part.place });
                }
                Role::Ends(_) if done.stopped.is_none() => {
                    done.transactions += 1;
                    done.last_s = done.last_s.max(Some(event.time_s));
                }
                _ => {}
            })
            .map_err(bad)?;
            // No event has the first bytes of a file.
            let mut at = if begin == 0 { MAGIC_BYTES } else { begin };
            let end = done.stopped.map_or(begin + rest.len() as u64, |stopped| stopped.offset);
            for (next, behind) in states.into_iter().filter(|(next, _)| *next < end).chain([(end, end)]) {
                let some = (at - begin) as usize..(next - begin) as usize;
                out.write_all(rest.get(some).unwrap_or_default())?;
                at = behind;
            }
        }
        out.flush()?;
        Ok(done)
    }

    /// Returns true if a transaction of this time belongs to the point.
    fn is_before(&self, time_s: u32) -> bool {
        self.until_us.is_none_or(|until| i64::from(time_s) * MICROS < until)
    }

    /// Has the server of a data directory repeat the log, by an account that goes again.
    pub(super) fn run(
        &self,
        data: &DataDir,
        owner: &Owner,
        options: &Options,
        account: &Account,
    ) -> Result<Replayed> {
        crate::ignore_sigpipe();
        let start = |input: &[&str]| {
            let mut client = Command::new(mariadb::client(["mariadb", "mysql"], options)?);
            let socket = format!("--{}", mariadb::RELATIVE_SOCKET);
            let user = format!("--user={ACCOUNT}");
            client.args(["--no-defaults", &socket, &user, "--batch", "--binary-mode", "--local-infile=1"]);
            client.arg(format!("--max-allowed-packet={PACKET_BYTES}")).args(input);
            Program::start("mariadb", client, (owner, Some(account)), &data.path, Stdio::null())
        };
        let mut client = start(&[])?;
        let to_client = client.input()?;
        let mut binlog = Command::new(mariadb::client(["mariadb-binlog", "mysqlbinlog"], options)?);
        // Files that statements have loaded lie where the server's own temporary files do, and go with them.
        binlog.arg("--no-defaults").arg(format!("--local-load={}", mariadb::TMPDIR));
        binlog.args(["--verify-binlog-checksum", "-"]);
        let mut binlog =
            Program::start("mariadb-binlog", binlog, (owner, None), &data.path, to_client.into())?;
        let mut to_binlog = BufWriter::with_capacity(1 << 20, binlog.input()?);
        let written = self.write(&mut to_binlog);
        // If the archive could not be read, dropping the buffer must not write the rest of it.
        let (input, _) = to_binlog.into_parts();
        drop(input);
        let (converted, sent) = (binlog.end(), client.end());
        // Who failed first knows why: those before it have met a closed pipe since, and those behind it a short input.
        let done = match (sent, converted, written) {
            (Err(failure), _, _)
            | (_, _, Err(Unwritten::Unread(failure)))
            | (_, Err(failure), _)
            | (_, _, Err(Unwritten::Pipe(failure))) => return Err(failure),
            (Ok(()), Ok(()), Ok(done)) => done,
        };
        start(&["--execute", &format!("SET sql_log_bin = 0; DROP USER {ACCOUNT}@localhost")])?.end()?;
        Ok(done)
    }
}

/// Failures of writing a log to a program.
enum Unwritten {
    /// The log cannot be read.
    Unread(Failure),
    /// The program takes nothing any more.
    Pipe(Failure),
}

impl From<Failure> for Unwritten {
    fn from(failure: Failure) -> Self {
        Self::Unread(failure)
    }
}

impl From<io::Error> for Unwritten {
    fn from(error: io::Error) -> Self {
        Self::Pipe(Failure::new(format!("cannot write to mariadb-binlog: {error}")))
    }
}

/// Name of the account by which the log is repeated.
const ACCOUNT: &str = "pagefold_restore";
/// The file of statements that makes the account when the server starts.
const INIT_FILE: &str = ".pagefold-restore.sql";

/// An account with a password of its own, which the server makes before it takes connections.
pub(super) struct Account {
    password: String,
}

impl Account {
    /// Prepares the account in a data directory. Also returns the setting by which the server makes it.
    pub(super) fn prepare(data: &DataDir) -> Result<(Self, String)> {
        let drawn: [u8; 16] = pagefold_server::pools::random()?;
        // A plugin of the server may demand letters, digits and others.
        let hex: String = drawn.iter().map(|byte| format!("{byte:02x}")).collect();
        let password = format!("Pf-{hex}");
        let statements = format!(
            "SET sql_log_bin = 0;\nCREATE OR REPLACE USER {ACCOUNT}@localhost IDENTIFIED BY '{password}';\nGRANT ALL ON *.* TO {ACCOUNT}@localhost WITH GRANT OPTION;\nSET sql_log_bin = 1;\n"
        );
        data.write_file(INIT_FILE, statements.as_bytes())?;
        Ok((Self { password }, format!("init-file={INIT_FILE}")))
    }

    /// Removes what [`Account::prepare`] has written.
    pub(super) fn settle(data: &DataDir) -> Result<()> {
        data.remove_file(INIT_FILE)
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
        (owner, account): (&Owner, Option<&Account>),
        folder: &Path,
        output: Stdio,
    ) -> Result<Self> {
        owner.run(&mut command);
        command.current_dir(folder);
        // Only the user itself and root can read the environment of a process.
        command.envs(account.map(|account| ("MYSQL_PWD", account.password.as_str())));
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
