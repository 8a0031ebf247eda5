//! Drives PostgreSQL: prepared clusters, servers on a file system under test, and load generators.
//!
//! A cluster is prepared once on the disc below and copied to every system, so that all systems hold the same
//! bytes. Files are copied in writes of 8 KiB, as PostgreSQL itself extends its files: a system that looks at the
//! first writes sees what it would see in production.

mod running;

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use rustix::process::Signal;

use super::corpus::PAGE_BYTES;
use crate::host::cleanup::{Noted, note_server};
use crate::host::exec::{Server, check_interrupted, run};
use crate::host::memory::Limit;
use crate::host::user::{as_user, give};

const USER: &str = "postgres";
/// Port, which only names the socket: the server listens on no network address.
const PORT: &str = "54329";
/// Time that a server has for its last checkpoint.
const STOPS_WITHIN: Duration = Duration::from_secs(120);

/// Folders of PostgreSQL's programs, and of the bench's own things for it.
#[derive(Debug, Clone)]
pub(crate) struct Postgres {
    bin: PathBuf,
    sockets: PathBuf,
    /// Folder below which servers are noted for `clean`.
    pub(super) dir: PathBuf,
}

/// Settings of a server.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// `full_page_writes`.
    pub(crate) full_page_writes: bool,
    /// `shared_buffers`, in MiB.
    pub(crate) shared_buffers_mib: u64,
    /// `max_wal_size`, in MiB.
    pub(crate) max_wal_mib: u64,
}

impl Settings {
    /// Returns them as options of the server.
    pub(crate) fn options(&self) -> Vec<String> {
        let fpw = if self.full_page_writes { "on" } else { "off" };
        [
            format!("full_page_writes={fpw}"),
            format!("shared_buffers={}MB", self.shared_buffers_mib),
            format!("max_wal_size={}MB", self.max_wal_mib),
            "wal_init_zero=on".to_owned(),
            "autovacuum=off".to_owned(),
            "max_parallel_workers_per_gather=0".to_owned(),
            "max_parallel_maintenance_workers=0".to_owned(),
            "jit=off".to_owned(),
            "huge_pages=off".to_owned(),
            "listen_addresses=".to_owned(),
            "checkpoint_timeout=60s".to_owned(),
            "checkpoint_completion_target=0.9".to_owned(),
        ]
        .into()
    }
}

impl Postgres {
    /// Finds the newest installed PostgreSQL.
    ///
    /// # Errors
    /// When there is none.
    pub(crate) fn find(dir: &Path) -> Result<Self> {
        let versions = fs::read_dir("/usr/lib/postgresql")
            .context("PostgreSQL is not installed (apt install postgresql)")?;
        let newest = versions
            .flatten()
            .filter_map(|e| Some((e.file_name().to_str()?.parse::<u32>().ok()?, e.path().join("bin"))))
            .filter(|(_, bin)| bin.join("postgres").exists())
            .max()
            .ok_or_else(|| anyhow!("no server below /usr/lib/postgresql (apt install postgresql)"))?;
        let sockets = dir.join("sockets");
        fs::create_dir_all(&sockets)?;
        give(&sockets, USER)?;
        Ok(Self { bin: newest.1, sockets, dir: dir.to_owned() })
    }

    fn program(&self, name: &str) -> String {
        self.bin.join(name).to_string_lossy().into_owned()
    }

    /// Returns a command that runs as the user `postgres`.
    fn as_user(&self, name: &str) -> Command {
        as_user(USER, &self.program(name))
    }

    /// Makes an empty cluster, with data checksums off as PostgreSQL 15 does by default.
    ///
    /// # Errors
    /// When initdb fails.
    pub(crate) fn init(&self, data: &Path) -> Result<()> {
        fs::create_dir_all(data)?;
        give(data, USER)?;
        let mut initdb = self.as_user("initdb");
        initdb.args(["--auth=trust", "--no-sync", "--encoding=UTF8", "--locale=C", "-D"]).arg(data);
        run(&mut initdb)?;
        Ok(())
    }

    /// Replaces the log of a cluster that was stopped in an orderly way by one empty segment.
    ///
    /// # Errors
    /// When the cluster was not stopped in an orderly way.
    pub(crate) fn reset_log(&self, data: &Path) -> Result<()> {
        run(self.as_user("pg_resetwal").arg("-D").arg(data))?;
        Ok(())
    }

    /// Starts a server on a cluster and waits until it answers.
    ///
    /// # Errors
    /// When it does not come up; the message holds what it printed.
    pub(crate) fn start(&self, data: &Path, settings: &Settings, limit: Option<&Limit>) -> Result<Running> {
        let mut server = self.as_user("postgres");
        server.arg("-D").arg(data).arg("-k").arg(&self.sockets).args(["-p", PORT]);
        for option in settings.options() {
            server.arg("-c").arg(option);
        }
        let mut server = match limit {
            Some(limit) => {
                let mut wrapped = limit.wrap(&server);
                wrapped.current_dir("/");
                wrapped
            }
            None => server,
        };
        // SIGINT is PostgreSQL's fast shutdown: a checkpoint, and no waiting for clients.
        let mut server = Server::start(&mut server, Signal::INT, STOPS_WITHIN)?;
        let noted = note_server(&self.dir, server.pid())?;
        let ready = self.program("pg_isready");
        server.wait_ready(|_| {
            let mut probe = Command::new(&ready);
            probe.arg("-q").arg("-h").arg(&self.sockets).args(["-p", PORT]);
            probe.status().is_ok_and(|s| s.success())
        })?;
        Ok(Running { server, _noted: noted, postgres: self.clone() })
    }

    /// Returns a client program's command with the options that connect it to a server of ours.
    pub(super) fn client(&self, name: &str) -> Command {
        let mut client = Command::new(self.program(name));
        client.arg("-h").arg(&self.sockets).args(["-p", PORT, "-U", USER]);
        client.env("PGOPTIONS", "-c client_min_messages=warning").env("LC_ALL", "C");
        client
    }
}

/// A running server, stopped when dropped.
#[derive(Debug)]
pub(crate) struct Running {
    server: Server,
    _noted: Noted,
    pub(super) postgres: Postgres,
}

/// Copies a stopped cluster, owners and modes included, in writes of 8 KiB, and syncs every file.
///
/// # Errors
/// When a file cannot be read or written.
pub(crate) fn copy_cluster(from: &Path, to: &Path) -> Result<()> {
    let attributes = fs::metadata(from).with_context(|| format!("look at {}", from.display()))?;
    match fs::create_dir(to) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => {
            return Err(error).with_context(|| format!("create {}", to.display()));
        }
        Ok(()) | Err(_) => {}
    }
    chown(to, Some(attributes.uid()), Some(attributes.gid()))?;
    fs::set_permissions(to, fs::Permissions::from_mode(attributes.mode() & 0o7777))?;
    for entry in fs::read_dir(from)? {
        check_interrupted()?;
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_cluster(&entry.path(), &target)?;
        } else if entry.file_type()?.is_file() {
            copy_file(&entry.path(), &target).with_context(|| format!("copy to {}", target.display()))?;
        }
    }
    File::open(to)?.sync_all().with_context(|| format!("fsync {}", to.display()))
}

fn copy_file(from: &Path, to: &Path) -> Result<()> {
    let mut source = File::open(from)?;
    let attributes = source.metadata()?;
    let mut target = File::create(to)?;
    let mut page = [0; PAGE_BYTES];
    loop {
        let mut filled = 0;
        while let Some(rest) = page.get_mut(filled..).filter(|r| !r.is_empty()) {
            match source.read(rest)? {
                0 => break,
                n => filled += n,
            }
        }
        target.write_all(page.get(..filled).unwrap_or_default())?;
        if filled < PAGE_BYTES {
            break;
        }
    }
    chown(to, Some(attributes.uid()), Some(attributes.gid()))?;
    target.set_permissions(fs::Permissions::from_mode(attributes.mode() & 0o7777))?;
    target.sync_all()?;
    Ok(())
}

/// The five tables of the scan, such as an owner of a database would recognise. Each is about as large as the others.
pub(crate) const TABLES: [&str; 5] = ["accounts", "price_paid", "lineitem", "events", "articles"];

/// SQL that makes the five tables, with psql's variables for the numbers of rows.
const TABLES_SQL: &str = include_str!("tables.sql");

/// Each table, and the bytes of heap that a row of it takes, about.
const ROW_BYTES: [(&str, u64); 5] =
    [("accounts", 136), ("price_paid", 120), ("lineitem", 165), ("events", 185), ("articles", 1050)];

/// Returns the paths of the heap files of the five tables, relative to the cluster.
///
/// # Errors
/// When the server does not answer.
pub(crate) fn heap_files(server: &Running) -> Result<Vec<PathBuf>> {
    let list = TABLES.map(|t| format!("('{t}')")).join(",");
    let out = server.sql("postgres", &format!("SELECT pg_relation_filepath(t) FROM (VALUES {list}) v(t)"))?;
    Ok(out.lines().map(PathBuf::from).collect())
}

/// Returns the settings as one line for the report.
pub(crate) fn describe(settings: &Settings) -> String {
    settings.options().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clusters_are_copied_with_modes_and_contents() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::create_dir(from.path().join("base")).unwrap();
        let content: Vec<u8> = (0..20_000_u32).map(|n| (n % 251) as u8).collect();
        fs::write(from.path().join("base/1"), &content).unwrap();
        fs::write(from.path().join("base/empty"), b"").unwrap();
        fs::set_permissions(from.path().join("base/1"), fs::Permissions::from_mode(0o600)).unwrap();
        let target = to.path().join("copy");
        copy_cluster(from.path(), &target).unwrap();
        assert_eq!(fs::read(target.join("base/1")).unwrap(), content);
        assert_eq!(fs::metadata(target.join("base/1")).unwrap().mode() & 0o777, 0o600);
        assert_eq!(fs::metadata(target.join("base/empty")).unwrap().len(), 0);
    }
}
