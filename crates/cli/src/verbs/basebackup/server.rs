//! The server that is told of a backup. It is asked by psql, which runs as the owner of the data directory, in one
//! session from start to stop.
//!
//! psql is used instead of a library: it knows every way to log in that the machine's PostgreSQL knows (peer, password
//! files, services, TLS, Kerberos), of the same version. A session that ends early ends the backup, too.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread::JoinHandle;

use pagefold_basebackup::Start;
use pagefold_basebackup::control::{self, Control};
use pagefold_basebackup::wal::Range;
use pagefold_server::failure::{Context, Failure, Result};

use crate::args::Basebackup;
use crate::table::printable;
use crate::verbs::branch::data::DataDir;
use crate::verbs::branch::owner::Owner;
use crate::verbs::branch::programs::{self, Search};

/// Line that ends each answer.
const MARK: &str = "pagefold: answered";
const LOCK_FILE: &str = "postmaster.pid";
const LOCK_BYTES_MAX: u64 = 4096;
const VERSION_BYTES_MAX: u64 = 16;
/// Largest number of bytes of psql's messages that are told.
const MESSAGE_BYTES_MAX: u64 = 4096;
/// First version with new names for these functions (15).
const NEW_NAMES: u32 = 150_000;
/// First version with backups that are not exclusive (9.6).
const VERSION_MIN: u32 = 90_600;

/// A session with the server.
pub struct Session {
    psql: Child,
    questions: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    /// Thread that collects psql's messages.
    messages: Option<JoinHandle<String>>,
    version: u32,
    system: u64,
}

/// The server's words about a backup that has been stopped.
pub struct Stopped {
    label: String,
    tablespace_map: String,
    stop: u64,
    system: u64,
}

/// Returns the conninfo by which the server of this data directory is found.
fn conninfo(data: &DataDir) -> Result<String> {
    let missing = || {
        Failure::new(format!("no server runs on {}: there is no {LOCK_FILE}", data.shown(".")))
            .hint("without --server it is backed up as it is; a server that is reached otherwise: --dbname CONNINFO")
    };
    let bytes = data.read(LOCK_FILE, LOCK_BYTES_MAX)?.ok_or_else(missing)?;
    let text = String::from_utf8_lossy(&bytes);
    let line = |number: usize| text.lines().nth(number).map(str::trim).unwrap_or_default();
    // The lines are: process, data directory, start, port, directory of its socket, address.
    let (port, socket, address) = (line(3), line(4), line(5));
    let host = match (socket, address) {
        (socket, _) if socket.starts_with('/') => socket,
        (_, "*" | "0.0.0.0" | "") => "localhost",
        (_, address) => address,
    };
    if port.parse::<u16>().is_err() {
        return Err(Failure::new(format!("{} does not say where its server is", data.shown(LOCK_FILE)))
            .hint("say it: --dbname CONNINFO"));
    }
    Ok(format!("host={} port={port} dbname=postgres", quoted(host)))
}

/// Quotes a value for a conninfo.
fn quoted(value: &str) -> String {
    format!("'{}'", value.replace('\\', "\\\\").replace('\'', "\\'"))
}

fn program(data: &DataDir) -> Result<PathBuf> {
    let version = data.read("PG_VERSION", VERSION_BYTES_MAX)?.unwrap_or_default();
    let version = String::from_utf8_lossy(&version).trim().to_owned();
    let of_version =
        ["/usr/lib/postgresql/{}/bin", "/usr/pgsql-{}/bin"].map(|path| path.replace("{}", &version).into());
    let folders: Vec<PathBuf> = of_version.into_iter().chain(programs::folders()).collect();
    Search::of(&["psql"], &folders).first().map(Path::to_owned)
}

impl Session {
    /// Logs in to the server.
    ///
    /// Errors: there is no psql; it cannot log in; or the server is too old to be told of a backup.
    pub fn open(args: &Basebackup, mount: &Path, relative: &str) -> Result<Self> {
        let data = DataDir::open(mount, relative)?;
        let owner = Owner::of(&data, args.user.as_deref())?;
        let conninfo = match &args.dbname {
            Some(said) => said.clone(),
            None => conninfo(&data)?,
        };
        let mut command = Command::new(program(&data)?);
        command.args(["-X", "-q", "-A", "-t", "-w", "-v", "ON_ERROR_STOP=1", "-d", &conninfo]);
        owner.run(&mut command);
        // These are libpq's documented variables, for users who keep passwords there.
        command.envs(std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"PG")));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut psql = command.spawn().context(|| "cannot run psql".into())?;
        let (Some(questions), Some(answers), Some(beside)) =
            (psql.stdin.take(), psql.stdout.take(), psql.stderr.take())
        else {
            return Err(Failure::new("cannot speak with psql"));
        };
        let messages = std::thread::spawn(move || {
            let (mut text, mut beside) = (String::new(), beside);
            let _what_came = beside.by_ref().take(MESSAGE_BYTES_MAX).read_to_string(&mut text);
            let _the_rest = std::io::copy(&mut beside, &mut std::io::sink());
            text
        });
        let (questions, answers, messages) = (Some(questions), BufReader::new(answers), Some(messages));
        let mut session = Self { psql, questions, answers, messages, version: 0, system: 0 };
        let version = session.ask("log in", "SHOW server_version_num")?;
        session.version = version.parse().unwrap_or(0);
        if session.version < VERSION_MIN {
            return Err(Failure::new(format!("the server is of version {}", printable(&version))));
        }
        let system =
            session.ask("ask for its number", "SELECT system_identifier FROM pg_control_system()")?;
        session.system = system.parse().context(|| "the server tells no number of its own".into())?;
        Ok(session)
    }

    fn ask(&mut self, doing: &str, question: &str) -> Result<String> {
        let asked = self
            .questions
            .as_mut()
            .map(|to| writeln!(to, "{question};\n\\echo {MARK}").and_then(|()| to.flush()));
        let mut lines = Vec::new();
        if matches!(asked, Some(Ok(()))) {
            for line in self.answers.by_ref().lines() {
                let line = line.context(|| "cannot hear from psql".into())?;
                if line == MARK {
                    return Ok(lines.join("\n"));
                }
                lines.push(line);
            }
        }
        Err(Failure::new(format!("cannot {doing} at the server: {}", self.last_words()))
            .hint("say how it is reached: --dbname CONNINFO, as for psql; without it the database is backed up as after a power cut"))
    }

    /// Ends the questions, and returns psql's messages until it ended.
    fn last_words(&mut self) -> String {
        self.questions = None;
        let text = self.messages.take().and_then(|told| told.join().ok()).unwrap_or_default();
        let text = text.trim();
        if text.is_empty() { "psql has ended".into() } else { text.to_owned() }
    }

    /// Has the server start a backup; it makes a checkpoint at once.
    pub fn start(&mut self, label: &str) -> Result<()> {
        let label = label.replace('\'', "''");
        // With this setting a backslash in the label has no special meaning.
        self.ask("begin a backup", "SET standard_conforming_strings = on")?;
        let call = match self.version {
            NEW_NAMES.. => format!("SELECT pg_backup_start('{label}', true)"),
            _ => format!("SELECT pg_start_backup('{label}', true, false)"),
        };
        let told = self.ask("begin a backup", &call)?;
        control::parse_lsn(&told).map(drop).ok_or_else(|| odd("where the backup begins", &told))
    }

    /// Has the server stop the backup. Its log directory has the log up to that place.
    pub fn stop(mut self) -> Result<Stopped> {
        let call = match self.version {
            NEW_NAMES.. => "pg_backup_stop(wait_for_archive => false)",
            _ => "pg_stop_backup(exclusive => false, wait_for_archive => false)",
        };
        let hex = |column: &str| format!("encode(convert_to({column}, 'UTF8'), 'hex')");
        let (label, map) = (hex("labelfile"), hex("spcmapfile"));
        let told =
            self.ask("end the backup", &format!("SELECT lsn, {label}, coalesce({map}, '') FROM {call}"))?;
        let mut columns = told.split('|');
        let mut column = || columns.next().unwrap_or_default();
        let (stop, label, map) = (control::parse_lsn(column()), text_of(column()), text_of(column()));
        let (Some(stop), Some(label), Some(tablespace_map)) = (stop, label, map) else {
            return Err(odd("where the backup ends", &told));
        };
        Ok(Stopped { label, tablespace_map, stop, system: self.system })
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // psql ends when its input does, and the session ends with it.
        self.questions = None;
        let _ended = self.psql.wait();
    }
}

fn odd(what: &str, told: &str) -> Failure {
    Failure::new(format!("the server does not tell {what}, but \"{}\"", printable(told)))
}

/// Decodes a text that is written in hexadecimal digits.
fn text_of(hex: &str) -> Option<String> {
    let pairs = hex.as_bytes().as_chunks::<2>();
    let byte = |pair: &[u8; 2]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    let bytes: Option<Vec<u8>> = pairs.0.iter().map(byte).collect();
    String::from_utf8(bytes.filter(|_| pairs.1.is_empty())?).ok()
}

impl Stopped {
    fn line(&self, name: &str) -> Option<&str> {
        self.label.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }

    fn location(&self, name: &str) -> Result<u64> {
        let text = self.line(name).unwrap_or_default();
        let first = text.split(' ').next().unwrap_or_default();
        control::parse_lsn(first).ok_or_else(|| odd(name, &self.label))
    }

    /// Fails unless the server that was asked is the one whose files these are.
    pub fn check(&self, data: &Path) -> Result<()> {
        let control = Control::of(data).map_err(|error| Failure::new(error.to_string()))?;
        let checkpoint = self.location("CHECKPOINT LOCATION")?;
        if control.system == self.system && control.checkpoint >= checkpoint {
            return Ok(());
        }
        Err(Failure::new(format!(
            "the server that was asked is not the one of this data directory: it is cluster {}, at checkpoint {}; the directory is cluster {}, at checkpoint {}",
            self.system,
            control::lsn(checkpoint),
            control.system,
            control::lsn(control.checkpoint)
        ))
        .hint("say how the right one is reached: --dbname CONNINFO, or let its lock file tell: --server"))
    }

    /// Returns the label, map and range of the log with which recovery begins.
    pub fn start(&self) -> Result<Start> {
        let start = self.location("START WAL LOCATION")?;
        let timeline = self.line("START TIMELINE").and_then(|text| text.parse().ok());
        let timeline = timeline.ok_or_else(|| odd("its timeline", &self.label))?;
        Ok(Start::Server {
            label: self.label.clone(),
            tablespace_map: self.tablespace_map.clone(),
            wal: Range { timeline, start, end: self.stop },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_says_where_the_log_begins() {
        let label = "START WAL LOCATION: 2/15006E0 (file 000000030000000200000001)\nCHECKPOINT LOCATION: 2/1500718\nBACKUP METHOD: streamed\nLABEL: START TIMELINE: 9\nSTART TIMELINE: 3\n";
        let stopped =
            Stopped { label: label.into(), tablespace_map: String::new(), stop: 0x2_0250_0000, system: 1 };
        let Start::Server { wal, .. } = stopped.start().unwrap() else { panic!("another start") };
        assert_eq!(wal, Range { timeline: 3, start: 0x2_0150_06E0, end: 0x2_0250_0000 });
        let odd = Stopped { label: "x".into(), ..stopped };
        assert!(odd.start().is_err());
    }

    #[test]
    fn texts_are_read() {
        assert_eq!(text_of("").as_deref(), Some(""));
        assert_eq!(text_of("410a").as_deref(), Some("A\n"));
        assert!(text_of("4").is_none() && text_of("zz").is_none() && text_of("ff").is_none());
        assert_eq!(quoted("/a b'\\"), "'/a b\\'\\\\'");
    }
}
