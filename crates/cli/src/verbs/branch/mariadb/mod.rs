//! MariaDB on a branch.

mod logs;
mod redo;

use std::ffi::OsString;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use pagefold_server::failure::{Failure, Result};

use super::data::DataDir;
use super::owner::Owner;
use super::programs::{self, Search};
use super::record::{Options, Position, Record};

/// Names of the server's program, the newer one first.
const PROGRAMS: [&str; 2] = ["mariadbd", "mysqld"];
/// Folders where it may be, beside those in `PATH`.
const FOLDERS: [&str; 5] =
    ["/usr/sbin", "/usr/libexec", "/usr/local/sbin", "/usr/local/mysql/bin", "/usr/local/mariadb/bin"];
/// Names in the data directory begin with a dot, since the server takes no such name for a database.
/// The server's folder for temporary files, below the data directory.
pub const TMPDIR: &str = ".pagefold-branch-tmp";
const PID_FILE: &str = ".pagefold-branch.pid";
const SOCKET: &str = ".pagefold-branch.sock";
/// The setting by which a server names its socket from its data directory on, however long the path of that is.
pub const RELATIVE_SOCKET: &str = "socket=.pagefold-branch.sock";
/// Longest time in which a server that listens has to send its greeting.
const ANSWER_PATIENCE: Duration = Duration::from_secs(5);
/// Version of the protocol, in the greeting's fifth byte; a refusal has 0xFF there.
const GREETING: u8 = 10;

/// Returns the version of the server that made the log, and the place of its last checkpoint; `-` and no place if the
/// log's form is unknown.
pub fn version_and_position(data: &DataDir) -> Result<(String, Position)> {
    let bytes = data.read(redo::FILE, redo::BYTES_MAX)?.unwrap_or_default();
    Ok(match redo::decode(&bytes) {
        Some(found) => {
            (found.version, Position { lsn: Some(found.checkpoint_lsn.to_string()), ..Position::default() })
        }
        None => ("-".into(), Position::default()),
    })
}

/// Fails if a server on this directory would write outside of the branch, or if its log is not in the branch.
pub fn check(data: &DataDir) -> Result<()> {
    if !data.has_file(redo::FILE) {
        return Err(Failure::new(format!(
            "{} is not there: without its log InnoDB cannot recover",
            data.shown(redo::FILE)
        ))
        .hint("a database that is to be branched has all it writes to in one dataset"));
    }
    for name in data.names(".")? {
        data.check_stays(&name)?;
        if name.starts_with('.') || !data.has_dir(&name) {
            continue;
        }
        for file in data.names(&name)? {
            let path = format!("{name}/{file}");
            data.check_stays(&path)?;
            if file.ends_with(".isl") {
                return Err(Failure::new(format!("{} says that a table lies elsewhere", data.shown(&path)))
                    .hint("a server on the branch would write into it; a table with DATA DIRECTORY cannot be branched"));
            }
        }
    }
    Ok(())
}

/// Removes files that another server on the directory has left, and has lists of logs name those in the directory.
pub fn settle(data: &DataDir) -> Result<()> {
    [PID_FILE, SOCKET].iter().try_for_each(|name| data.remove_file(name))?;
    logs::settle(data)?;
    data.clear_dir(TMPDIR)
}

/// Returns the server's command line.
pub fn command(data: &DataDir, record: &Record, owner: &Owner) -> Result<Command> {
    let program = program(&record.options, owner)?;
    // A server that was started here by other means may have written absolute paths; the branch may be mounted
    // elsewhere since.
    logs::settle(data)?;
    data.make_dir(TMPDIR)?;
    let mut command = Command::new(program);
    // Files of settings are read first, so the command line has the last word.
    match &record.options.config {
        Some(config) => {
            let mut word = OsString::from("--defaults-file=");
            word.push(config);
            command.arg(word)
        }
        None => command.arg("--no-defaults"),
    };
    let path = |option: &str, path: &Path| {
        let mut word = OsString::from(format!("--{option}="));
        word.push(path);
        word
    };
    command.arg(path("datadir", &data.path)).arg(path("tmpdir", &data.path.join(TMPDIR)));
    command.arg(path("socket", &data.path.join(SOCKET))).arg(path("pid-file", &data.path.join(PID_FILE)));
    command.arg(path("aria-log-dir-path", &data.path)).arg(format!("--port={}", record.port));
    command.args(settings(record.options.config.is_some()));
    command.args(logs::options(data)?);
    command.args(record.options.settings.iter().map(|setting| format!("--{setting}")));
    Ok(command)
}

/// Returns the settings of every branch, whatever its configuration says; docs/SEMANTICS.md, Branches, tells why.
fn settings(configured: bool) -> Vec<&'static str> {
    let mut all = vec![
        // The server answers here, and nowhere else.
        "--bind-address=127.0.0.1",
        // It follows no other server, and runs no job by the clock.
        "--skip-slave-start",
        "--event-scheduler=OFF",
        // Everything lies in the data directory.
        "--innodb-data-home-dir=",
        "--innodb-log-group-home-dir=./",
        "--innodb-undo-directory=./",
        "--general-log=OFF",
        "--slow-query-log=OFF",
        // It takes little of the machine.
        "--innodb-buffer-pool-size=128M",
        "--innodb-buffer-pool-load-at-startup=OFF",
        "--innodb-buffer-pool-dump-at-shutdown=OFF",
    ];
    if configured {
        // Only a file of settings can have asked for these.
        all.extend([
            "--wsrep-on=OFF",
            "--wsrep-provider=none",
            "--skip-large-pages",
            "--log-error=/dev/stderr",
            "--relay-log=pagefold-branch-relay",
            "--relay-log-index=pagefold-branch-relay.index",
            "--relay-log-info-file=relay-log.info",
            "--master-info-file=master.info",
        ]);
    }
    all
}

fn folders(options: &Options) -> Vec<PathBuf> {
    match &options.bindir {
        Some(folder) => vec![folder.clone()],
        None => programs::folders().into_iter().chain(FOLDERS.map(PathBuf::from)).collect(),
    }
}

/// Returns the path of a client program: its name, and the older one.
pub fn client(names: [&str; 2], options: &Options) -> Result<PathBuf> {
    // A folder of servers need not have the clients.
    let folders: Vec<PathBuf> = folders(options).into_iter().chain(programs::folders()).collect();
    let search = Search::of(&names, &folders);
    search.found.first().cloned().ok_or_else(|| {
        search.failure(
            format!("there is no {} on this machine", names[0]),
            "install the package mariadb-client",
        )
    })
}

fn program(options: &Options, owner: &Owner) -> Result<PathBuf> {
    let folders = folders(options);
    let is_mariadb = |path: &&PathBuf| {
        let told = owner.output_of(path, &["--no-defaults".as_ref(), "--version".as_ref()]);
        told.is_some_and(|told| told.contains("MariaDB"))
    };
    let search = Search::of(&PROGRAMS, &folders);
    search.found.iter().find(is_mariadb).cloned().ok_or_else(|| {
        let place = options.bindir.as_ref().map(|dir| format!(" in {}", dir.display())).unwrap_or_default();
        search.failure(
            format!("there is no server of MariaDB (mariadbd){place}"),
            "install it, or say where it is: --bindir DIR",
        )
    })
}

/// Returns the path of the server's socket.
pub fn socket(data: &Path) -> PathBuf {
    data.join(SOCKET)
}

/// Returns true if the server takes connections: it greets every client.
pub fn answers(data: &DataDir) -> bool {
    let greeted = || -> std::io::Result<bool> {
        let mut stream = data.connect(SOCKET, ANSWER_PATIENCE)?;
        let mut head = [0; 5];
        stream.read_exact(&mut head)?;
        Ok(head[4] == GREETING)
    };
    greeted().unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_that_lie_elsewhere_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let data = DataDir::open(dir.path(), ".").unwrap();
        assert!(check(&data).unwrap_err().to_string().contains("ib_logfile0 is not there"));
        std::fs::write(dir.path().join("ib_logfile0"), "").unwrap();
        std::fs::create_dir(dir.path().join("db")).unwrap();
        check(&data).unwrap();
        std::fs::write(dir.path().join("db/t.isl"), "/elsewhere/t.ibd").unwrap();
        assert!(check(&data).unwrap_err().to_string().contains("lies elsewhere"));
    }
}
