//! Starts and stops the server of a branch.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use pagefold_server::failure::{Context, Failure, Result};
use pagefold_server::files;
use pagefold_server::mounts::{self, MountEntry};
use pagefold_server::names::Name;
use rustix::process::Signal;

use super::data::DataDir;
use super::owner::Owner;
use super::postgres::Goal;
use super::record::{Product, Record};
use super::{Branch, mariadb, ports, postgres, process};
use crate::datasets;
use crate::mount_users::{self, MountUser};
use crate::verbs::mount::{open_log, tail};

/// Longest time a server may take until it answers, recovery included.
const START_PATIENCE: Duration = Duration::from_secs(600);
/// Longest time an orderly end may take.
const STOP_PATIENCE: Duration = Duration::from_secs(120);
/// Longest time that a server may take to end after it was told to end at once.
const KILL_PATIENCE: Duration = Duration::from_secs(30);
/// Pause between two looks at whether the server answers.
const STEP: Duration = Duration::from_millis(5);
/// Longest path of a Unix socket in bytes (`sun_path`, without the byte that ends it).
const SOCKET_PATH_MAX: usize = 107;

/// Returns the data directory of a branch that is mounted.
pub(super) fn data_of(branch: &Branch) -> Result<DataDir> {
    DataDir::open(&branch.mounted()?, &branch.record.data)
}

/// Ends the server of a branch that is mounted: in an orderly way, or at once if its data is to go anyway. Returns true
/// if it ran.
pub(super) fn stop(branch: &Branch, at_once: bool) -> Result<bool> {
    let data = data_of(branch)?;
    let (signal, patience) = match (branch.record.product, at_once) {
        // This is the fast shutdown: sessions are ended, and a checkpoint is written.
        (Product::PostgreSql, false) => (Signal::INT, STOP_PATIENCE),
        (Product::PostgreSql, true) => (Signal::QUIT, KILL_PATIENCE),
        (Product::MariaDb, false) => (Signal::TERM, STOP_PATIENCE),
        (Product::MariaDb, true) => (Signal::KILL, KILL_PATIENCE),
    };
    process::end(&data, signal, patience)
}

/// Ends the server of a branch whose data is to go, and unmounts the branch. Returns true if the server ran.
///
/// Errors: others use the mount. Then the branch stays mounted, and its server goes on or is started again.
pub(super) fn end(branch: &Branch) -> Result<bool> {
    if branch.figures.mounted.is_none() {
        return Ok(false);
    }
    refuse_used(branch)?;
    let ran = stop(branch, true)?;
    super::unmount(&branch.name).map_err(|failure| resume(branch, ran, failure))?;
    Ok(ran)
}

/// Fails if the server of a branch runs, and others have files open or work in what would be unmounted with it.
fn refuse_used(branch: &Branch) -> Result<()> {
    let (data, processes) = (data_of(branch)?, process::Processes::now());
    if processes.server_of(&data).is_none() {
        return Ok(());
    }
    let own = i32::try_from(std::process::id()).ok();
    let is_other = |user: &MountUser| {
        let pid = user.pid.and_then(|pid| i32::try_from(pid).ok());
        pid != own && pid.is_some_and(|pid| !processes.belongs_to(&data, pid))
    };
    let goes = |mount: &MountEntry| {
        Name::parse(&mount.source)
            .is_ok_and(|of| of.pool == branch.name.pool && of.is_within(&branch.name.path))
    };
    for mount in mounts::ours()?.iter().filter(|mount| goes(mount)) {
        let users: Vec<MountUser> =
            mount_users::of_device_here(mount.device).into_iter().filter(is_other).collect();
        if !users.is_empty() {
            return Err(Failure::new(format!("{} is in use", process::shown(&mount.dir))).hint(format!(
                "it is held by\n{}\n  end what uses it, then try again; nothing was changed, and the branch's server goes on",
                mount_users::text(&users)
            )));
        }
    }
    Ok(())
}

/// Mounts a branch again after something failed that [`end`] was for, and starts its server again if it ran. Returns
/// the failure, which then also tells what became of the server.
pub(super) fn resume(branch: &Branch, ran: bool, failure: Failure) -> Failure {
    if branch.figures.mounted.is_none() {
        return failure;
    }
    let name = &branch.name;
    let again = || -> Result<()> {
        let dir = match datasets::find(name)?.mounted {
            Some(dir) => dir,
            None => super::mount(name, branch.figures.mounted.as_deref())?,
        };
        if ran { start(name, &branch.record, &DataDir::open(&dir, &branch.record.data)?) } else { Ok(()) }
    };
    let told = match again() {
        Ok(()) if ran => "its server was stopped for that, and started again".to_owned(),
        Ok(()) => return failure,
        Err(other) => {
            format!(
                "branch {name} was stopped for that; start it again: pagefold branch start {name} ({})",
                other.what()
            )
        }
    };
    let advice = failure.advice().map(|advice| format!("{advice}\n  ")).unwrap_or_default();
    Failure::new(failure.what()).hint(format!("{advice}{told}"))
}

/// Returns the path of the log to which the server's messages go.
pub fn log_of(name: &Name) -> Result<PathBuf> {
    // Names of datasets have no plus sign.
    Ok(files::log_dir()?.join(format!("branch-{}.log", name.to_string().replace('/', "+"))))
}

/// Returns the path of the socket of a branch's server.
pub fn socket(record: &Record, data: &Path) -> PathBuf {
    match record.product {
        Product::PostgreSql => postgres::socket(data, record.port),
        Product::MariaDb => mariadb::socket(data),
    }
}

/// Fails if a server on the data directory would write outside of the branch, or could not be reached.
pub fn check(record: &Record, data: &DataDir) -> Result<()> {
    match record.product {
        Product::PostgreSql => postgres::check(data)?,
        Product::MariaDb => mariadb::check(data)?,
    }
    let socket = socket(record, &data.path);
    // A relative path begins at the data directory.
    let is_relative = record.options.settings.iter().any(|setting| setting == mariadb::RELATIVE_SOCKET);
    if !is_relative && socket.as_os_str().len() > SOCKET_PATH_MAX {
        return Err(Failure::new(format!(
            "the path of the server's socket would have {} bytes, and {SOCKET_PATH_MAX} are possible: {}",
            socket.as_os_str().len(),
            socket.display()
        ))
        .hint("mount the branch elsewhere: --mountpoint DIR"));
    }
    Ok(())
}

/// Starts the server, and returns when it answers.
pub fn start(name: &Name, record: &Record, data: &DataDir) -> Result<()> {
    start_to(name, record, data, Goal::Now)
}

/// Starts the server as [`start`] does; the goal decides which of the data directory's own settings hold.
pub fn start_to(name: &Name, record: &Record, data: &DataDir, goal: Goal) -> Result<()> {
    check(record, data)?;
    if let Some(pid) = process::server_of(data) {
        return Err(Failure::new(format!(
            "process {pid} serves the data directory of branch {name} already"
        ))
        .hint(format!("end it first: pagefold branch stop {name}")));
    }
    if !ports::is_free(record.port) {
        return Err(Failure::new(format!("port {} of branch {name} is in use", record.port))
            .hint(format!("give it another one: pagefold branch start {name} --port N")));
    }
    let owner = Owner::of(data, record.options.user.as_deref())?;
    let mut command = match record.product {
        Product::PostgreSql => {
            postgres::clear_locks(data, record.port)?;
            postgres::command(data, &name.to_string(), record, &owner, goal)?
        }
        Product::MariaDb => mariadb::command(data, record, &owner)?,
    };
    let path = log_of(name)?;
    let (log, log_start) = open_log(&path)?;
    // The log is given to the server's user, so that the server can open its standard error again.
    rustix::fs::fchown(&log, Some(rustix::fs::Uid::from_raw(data.uid)), None)
        .context(|| format!("cannot give {} to the server", path.display()))?;
    let also = log.try_clone().context(|| "cannot start the server".into())?;
    command.stdin(Stdio::null()).stdout(also).stderr(log);
    owner.run(&mut command);
    let child = spawn(&mut command)?;
    wait_until_it_answers(name, record, data, child).map_err(|failure| {
        let told = tail(&path, log_start);
        let advice = failure.advice().map(|advice| format!("{advice}\n  ")).unwrap_or_default();
        Failure::new(failure.what())
            .hint(format!("{advice}its log is {}; the end of it:\n{told}", path.display()))
    })
}

fn spawn(command: &mut Command) -> Result<Child> {
    let program = command.get_program().to_owned();
    command.spawn().context(|| format!("cannot start {}", process::shown(Path::new(&program))))
}

fn wait_until_it_answers(name: &Name, record: &Record, data: &DataDir, mut child: Child) -> Result<()> {
    let started = Instant::now();
    let product = record.product.name();
    loop {
        if let Some(status) = child.try_wait().context(|| format!("cannot wait for {product}"))? {
            return Err(Failure::new(format!("{product} on branch {name} did not start ({status})"))
                .hint("its settings are changed by: pagefold branch start --set NAME=VALUE"));
        }
        let answers = match record.product {
            Product::PostgreSql => postgres::answers(data, record.port),
            Product::MariaDb => mariadb::answers(data),
        };
        if answers {
            return Ok(());
        }
        if started.elapsed() > START_PATIENCE {
            return Err(Failure::new(format!(
                "{product} on branch {name} has not answered within {} s",
                START_PATIENCE.as_secs()
            ))
            .hint(format!("it goes on recovering, or end it: pagefold branch stop {name}")));
        }
        std::thread::sleep(STEP);
    }
}
