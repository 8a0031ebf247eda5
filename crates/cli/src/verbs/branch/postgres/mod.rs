//! PostgreSQL on a branch.

mod control;

use std::ffi::OsString;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use pagefold_server::failure::{Context, Failure, Result};

use super::data::DataDir;
use super::owner::Owner;
use super::programs::{self, Search};
use super::record::{Position, Record};
use crate::table::printable;

/// Oldest version; before 12, recovery was configured elsewhere.
const VERSION_MIN: u32 = 12;
/// Largest number of bytes of the file with the version, which is a number.
const VERSION_BYTES_MAX: u64 = 16;
/// State in the eighth line of the main process's lock file once it takes connections.
const READY: &str = "ready";
const LOCK_FILE: &str = "postmaster.pid";
const LOCK_BYTES_MAX: u64 = 4096;
/// A client's request for encryption; the server answers with one byte, and logs nobody in (protocol 3, "SSLRequest").
const SSL_REQUEST: [u8; 8] = [0, 0, 0, 8, 0x04, 0xD2, 0x16, 0x2F];
/// Longest time in which the server has to send that answer.
const ANSWER_PATIENCE: Duration = Duration::from_secs(5);
/// Directories that a server writes to, or empties when it starts, and that people move elsewhere with a link.
const MOVED: [&str; 16] = [
    "base",
    "global",
    "pg_wal",
    "pg_xact",
    "pg_multixact",
    "pg_commit_ts",
    "pg_logical",
    "pg_replslot",
    "pg_subtrans",
    "pg_stat",
    "pg_stat_tmp",
    "pg_notify",
    "pg_snapshots",
    "pg_dynshmem",
    "pg_serial",
    "pg_twophase",
];
/// Library that runs jobs by the clock.
const SCHEDULER: &str = "pg_cron";

/// Returns the data's version.
pub fn version(data: &DataDir) -> Result<u32> {
    let text = data.read("PG_VERSION", VERSION_BYTES_MAX)?.unwrap_or_default();
    let version = String::from_utf8_lossy(&text).trim().parse().ok();
    version.filter(|version| *version >= VERSION_MIN).ok_or_else(|| {
        Failure::new(format!(
            "{} says version \"{}\"",
            data.shown("PG_VERSION"),
            printable(String::from_utf8_lossy(&text).trim())
        ))
        .hint(format!("branches are of PostgreSQL {VERSION_MIN} and newer"))
    })
}

/// Returns where the database was at its last checkpoint: from its control file, or from the program that reads those
/// of its version.
pub fn position(data: &DataDir, options: &super::record::Options) -> Result<Position> {
    let bytes = data.read(control::FILE, control::BYTES_MAX)?.unwrap_or_default();
    if let Some(position) = control::decode(&bytes) {
        return Ok(position);
    }
    let version = version(data)?;
    let told = Owner::of(data, options.user.as_deref()).ok().and_then(|owner| {
        let program = program("pg_controldata", version, options, &owner).ok()?;
        control::parse_told(&owner.output_of(&program, &[data.path.as_os_str()])?)
    });
    Ok(told.unwrap_or_default())
}

/// Fails if a server on this directory would write outside of the branch.
pub fn check(data: &DataDir) -> Result<()> {
    MOVED.iter().try_for_each(|name| data.check_stays(name))?;
    for dir in ["base", "pg_tblspc"] {
        data.names(dir)?.iter().try_for_each(|name| data.check_stays(&format!("{dir}/{name}")))?;
    }
    if !data.has_dir("pg_wal") && data.names("pg_wal")?.is_empty() {
        return Err(Failure::new(format!(
            "{} is not there: without its log a database cannot recover",
            data.shown("pg_wal")
        )));
    }
    Ok(())
}

/// Removes what the copy says of the server that it is a copy of: its lock, its replication slots, and that it follows
/// another server. No process may work in the directory.
pub fn settle(data: &DataDir) -> Result<()> {
    data.remove_file(LOCK_FILE)?;
    data.clear_dir("pg_replslot")?;
    // A copy of a standby becomes a server of its own: it recovers to the end of its log, and begins a new timeline.
    if data.has_file("standby.signal") {
        data.rename_file("standby.signal", "recovery.signal")?;
    }
    Ok(())
}

/// Removes what may keep a new server from starting: the locks of a server that is gone, whose process number another
/// process may have by now. No process may work in the directory.
pub fn clear_locks(data: &DataDir, port: u16) -> Result<()> {
    let socket = socket_name(port);
    [LOCK_FILE, &socket, &format!("{socket}.lock")].iter().try_for_each(|name| data.remove_file(name))
}

fn socket_name(port: u16) -> String {
    format!(".s.PGSQL.{port}")
}

/// The purpose of starting a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// Serve what is there.
    Now,
    /// Recover to a point in time, as the data directory's settings say.
    Point,
}

/// Returns true for a setting that says where recovery takes the log from, or where it ends.
fn is_of_recovery(setting: &str) -> bool {
    setting == "restore_command" || setting.starts_with("recovery_target")
}

/// Returns the server's command line, for its owner to run.
pub fn command(data: &DataDir, name: &str, record: &Record, owner: &Owner, goal: Goal) -> Result<Command> {
    let version = version(data)?;
    let program = program("postgres", version, &record.options, owner)?;
    let mut words: Vec<OsString> = vec!["-D".into(), (&data.path).into()];
    let mut set = |name: &str, value: &str| words.extend(["-c".into(), format!("{name}={value}").into()]);
    match &record.options.config {
        Some(config) => set("config_file", &config.to_string_lossy()),
        None if data.has_file("postgresql.conf") => {}
        None => return Err(no_config(data, version)),
    }
    set("data_directory", &data.path.to_string_lossy());
    for (setting, value) in settings(version, record.port, name, &data.path) {
        if goal == Goal::Point && is_of_recovery(setting) {
            continue;
        }
        set(setting, &value);
    }
    if !record.options.sets("shared_preload_libraries")
        && let Some(rest) = without_scheduler(&program, &words, owner)?
    {
        words.extend(["-c".into(), format!("shared_preload_libraries={rest}").into()]);
    }
    for setting in &record.options.settings {
        words.extend(["-c".into(), setting.into()]);
    }
    let mut command = Command::new(program);
    command.args(words);
    Ok(command)
}

fn no_config(data: &DataDir, version: u32) -> Failure {
    let failure = Failure::new(format!("{} is not there", data.shown("postgresql.conf")));
    let debian = format!("/etc/postgresql/{version}/main/postgresql.conf");
    let example = if Path::new(&debian).exists() { debian } else { "FILE".into() };
    failure.hint(format!("say where the server's configuration is: --config {example}"))
}

/// Returns the settings of every branch, whatever its configuration says; docs/SEMANTICS.md, Branches, tells why.
fn settings(version: u32, port: u16, name: &str, socket_dir: &Path) -> Vec<(&'static str, String)> {
    let mut all = vec![
        // The server answers here, and nowhere else.
        ("port", port.to_string()),
        ("listen_addresses", "localhost".into()),
        ("unix_socket_directories", quoted(&socket_dir.to_string_lossy())),
        ("cluster_name", name.into()),
        // Its messages come to us, so that files of production stay as they are.
        ("logging_collector", "off".into()),
        ("log_destination", "stderr".into()),
        // A server takes an empty name for a file that it cannot write; this one is in the data directory.
        ("external_pid_file", "branch.pid".into()),
        // It archives nothing and cleans no archive.
        ("archive_mode", "off".into()),
        ("archive_cleanup_command", String::new()),
        ("recovery_end_command", String::new()),
        // It follows no other server, and waits for none.
        ("primary_conninfo", String::new()),
        ("primary_slot_name", String::new()),
        ("restore_command", "false".into()),
        ("recovery_target", String::new()),
        ("recovery_target_lsn", String::new()),
        ("recovery_target_name", String::new()),
        ("recovery_target_time", String::new()),
        ("recovery_target_xid", String::new()),
        ("recovery_target_timeline", "latest".into()),
        ("recovery_target_action", "promote".into()),
        // It takes connections only when it has recovered.
        ("hot_standby", "off".into()),
        ("synchronous_standby_names", String::new()),
        // The subscriptions in the data are those of production.
        ("max_logical_replication_workers", "0".into()),
        // It takes little of the machine.
        ("shared_buffers", "128MB".into()),
        ("huge_pages", "off".into()),
    ];
    if version >= 14 {
        // All of a branch is durable when it begins; later, order is kept (W2), and any fsync covers everything (W3).
        all.push(("recovery_init_sync_method", "syncfs".into()));
    }
    if version < 15 {
        all.push(("stats_temp_directory", "pg_stat_tmp".into()));
    }
    all
}

/// Quotes an element of a list of directories.
fn quoted(path: &str) -> String {
    format!("\"{}\"", path.replace('"', "\"\""))
}

/// Returns the libraries that the configuration has the server load, without the one that runs jobs; `None` if that is
/// not among them.
fn without_scheduler(program: &Path, words: &[OsString], owner: &Owner) -> Result<Option<String>> {
    let mut command = Command::new(program);
    command.args(words).args(["-C", "shared_preload_libraries"]).stdin(Stdio::null());
    owner.run(&mut command);
    let output = command.output().context(|| format!("cannot run {}", program.display()))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let lines: String = said.lines().map(|line| format!("\n  {}", printable(line))).collect();
        return Err(Failure::new(format!("PostgreSQL refuses its configuration:{lines}"))
            .hint("settings of the branch are changed by: pagefold branch start --set NAME=VALUE"));
    }
    let libraries = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    Ok(strip_scheduler(&libraries))
}

fn strip_scheduler(libraries: &str) -> Option<String> {
    let bare = |library: &str| {
        let library = library.trim().trim_matches('"');
        library.rsplit('/').next().unwrap_or_default().trim_end_matches(".so") == SCHEDULER
    };
    let kept: Vec<&str> = libraries.split(',').filter(|library| !bare(library)).map(str::trim).collect();
    (kept.len() < libraries.split(',').count()).then(|| kept.join(","))
}

/// Finds a program of this version: where the user said, where packages have it, or in `PATH`.
fn program(name: &str, version: u32, options: &super::record::Options, owner: &Owner) -> Result<PathBuf> {
    let is_right = |path: &&PathBuf| {
        owner.output_of(path, &["--version".as_ref()]).and_then(|told| major(&told)) == Some(version)
    };
    let folders: Vec<PathBuf> = match &options.bindir {
        Some(folder) => vec![folder.clone()],
        None => {
            let packages = [
                format!("/usr/lib/postgresql/{version}/bin"),
                format!("/usr/pgsql-{version}/bin"),
                "/usr/local/pgsql/bin".into(),
            ];
            let told = of_pg_config(owner);
            packages.into_iter().map(PathBuf::from).chain(told).chain(programs::folders()).collect()
        }
    };
    let search = Search::of(&[name], &folders);
    search.found.iter().find(is_right).cloned().ok_or_else(|| {
        let place = options.bindir.as_ref().map(|dir| format!(" in {}", dir.display())).unwrap_or_default();
        search.failure(
            format!("there is no {name} of PostgreSQL {version}{place}"),
            "install the version that the data is of, or say where its programs are: --bindir DIR",
        )
    })
}

/// Finds pg_ctl beside the server's program; if only the server is installed, its plain name.
pub fn control_program(data: &DataDir, record: &Record, owner: &Owner) -> Result<PathBuf> {
    let found = program("pg_ctl", version(data)?, &record.options, owner);
    Ok(found.unwrap_or_else(|_| "pg_ctl".into()))
}

fn of_pg_config(owner: &Owner) -> Option<PathBuf> {
    let search = Search::of(&["pg_config"], &programs::folders());
    let text = owner.output_of(search.first().ok()?, &["--bindir".as_ref()])?;
    Some(text.trim().into())
}

/// Parses the major version out of `postgres (PostgreSQL) 15.10 (Debian ...)`.
fn major(told: &str) -> Option<u32> {
    let (_, number) = told.split_once("(PostgreSQL) ")?;
    let end = number.find(|c: char| !c.is_ascii_digit()).unwrap_or(number.len());
    number[..end].parse().ok()
}

/// Returns the path of the server's socket.
pub fn socket(data: &Path, port: u16) -> PathBuf {
    data.join(socket_name(port))
}

/// Returns true if the server takes connections: its lock file says so, and it answers one.
pub fn answers(data: &DataDir, port: u16) -> bool {
    let says_so = data.read(LOCK_FILE, LOCK_BYTES_MAX).ok().flatten().is_some_and(|bytes| {
        let text = String::from_utf8_lossy(&bytes);
        text.lines().nth(7).is_some_and(|line| line.trim() == READY)
    });
    says_so && asked(data, port).is_ok()
}

fn asked(data: &DataDir, port: u16) -> std::io::Result<()> {
    let mut stream = data.connect(&socket_name(port), ANSWER_PATIENCE)?;
    stream.write_all(&SSL_REQUEST)?;
    stream.read_exact(&mut [0])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read() {
        assert_eq!(major("postgres (PostgreSQL) 15.10 (Debian 15.10-0+deb12u1)\n"), Some(15));
        assert_eq!(major("pg_controldata (PostgreSQL) 18beta1\n"), Some(18));
        assert_eq!(major("psql 15"), None);
    }

    #[test]
    fn the_scheduler_is_taken_out_and_the_rest_stays() {
        let cases = [
            ("", None),
            ("timescaledb, auto_explain", None),
            ("pg_cron", Some("")),
            ("pg_stat_statements, pg_cron,auto_explain", Some("pg_stat_statements,auto_explain")),
            ("\"$libdir/pg_cron.so\", x", Some("x")),
        ];
        for (before, after) in cases {
            assert_eq!(strip_scheduler(before).as_deref(), after, "{before}");
        }
    }

    #[test]
    fn what_another_version_does_not_know_is_not_set() {
        let names = |version| -> Vec<&str> {
            settings(version, 5432, "x", Path::new("/x")).into_iter().map(|(name, _)| name).collect()
        };
        assert!(
            !names(13).contains(&"recovery_init_sync_method")
                && names(14).contains(&"recovery_init_sync_method")
        );
        assert!(names(14).contains(&"stats_temp_directory") && !names(15).contains(&"stats_temp_directory"));
    }
}
