//! `mount`: asks the pool's server for a mount, or starts one, and waits until the mount is usable.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::fs::{FlockOperation, flock};

use crate::args::Mount;
use crate::control::{Client, Reply, Request};
use crate::failure::{Context, Failure, Result};
use crate::names;
use crate::serve::plan::{self, Plan};
use crate::serve::{Outcome, Wanted};
use crate::{places, table};

/// How much of the log's end is shown when a server dies without a word.
const LOG_TAIL_BYTES: u64 = 2048;
/// A log that has grown beyond this is kept as `.old` and started again.
const LOG_BYTES_MAX: u64 = 16 << 20;

/// Mounts, and returns when it can be used.
pub fn run(args: &Mount) -> Result<()> {
    if args.all {
        return super::mount_all::run(args);
    }
    // What can be told without a server is told at once.
    let plan = plan::make(args)?;
    if args.dry_run {
        return Ok(());
    }
    if plan.by_property {
        let dir = &plan.wanted.dir;
        fs::create_dir_all(dir).context(|| format!("cannot make the mount point {}", dir.display()))?;
    }
    let pool = &plan.known.name;
    places::make_private(&places::runtime_dir())?;
    // Of several that are started at once (by systemd, from fstab), one starts the server and the others ask it.
    let turn = places::lock_file(&places::runtime_dir().join(format!("{pool}.mounting")))?;
    flock(&turn, FlockOperation::LockExclusive)
        .context(|| format!("cannot wait for other mounts of {pool}"))?;
    loop {
        let Some(mut client) = Client::connect(pool)? else { return start_server(args, &plan) };
        plan::check_server(&mut client, &plan)?;
        let Wanted { path, dir, .. } = plan.wanted.clone();
        match client.ask_and_wait(&Request::Mount { path, dir, options: args.options.clone() }) {
            Ok(Reply::Done {}) => return Ok(()),
            Ok(Reply::Ending {}) => client.wait_for_end()?,
            // It had died, and the kernel had not noticed yet.
            Err(_) if client.has_ended() => {}
            Ok(_) => return Err(client.misunderstood()),
            Err(failure) => return Err(failure),
        }
    }
}

fn start_server(args: &Mount, plan: &Plan) -> Result<()> {
    let log_path = places::log_of(&plan.known.name)?;
    let (log, log_start) = open_log(&log_path)?;
    let program = std::env::current_exe().context(|| "cannot find this program's own file".into())?;
    let mut child = Command::new(program)
        .arg("serve")
        .args(["--report", "-o"])
        .arg(args.options.join(","))
        .arg("--")
        .arg(server_source(plan))
        .arg(&plan.wanted.dir)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()
        .context(|| "cannot start the server".into())?;
    let mut line = String::new();
    if let Some(pipe) = child.stdout.take() {
        BufReader::new(pipe).read_line(&mut line).context(|| "cannot hear from the server".into())?;
    }
    match serde_json::from_str(&line) {
        Ok(Outcome::Ready {}) => Ok(()),
        Ok(Outcome::Failed { what, hint }) => {
            let _ = child.wait();
            let failure = Failure::new(what);
            Err(match hint {
                Some(hint) => failure.hint(hint),
                None => failure,
            })
        }
        Err(_) => {
            let ended = child.wait().map_or_else(|error| error.to_string(), |status| status.to_string());
            Err(Failure::new(format!(
                "the server of pool {} died while it started ({ended})",
                plan.known.name
            ))
            .hint(format!(
                "its log is {}; the end of it:\n{}",
                log_path.display(),
                tail(&log_path, log_start)
            )))
        }
    }
}

/// The source as the server can find it from anywhere.
fn server_source(plan: &Plan) -> std::ffi::OsString {
    let name = || names::full(&plan.known.name, &plan.wanted.path).into();
    match plan.known.devices.first() {
        Some(device) if plan.by_device => device.into(),
        _ => name(),
    }
}

/// Opens a server's log for appending, and tells where it will go on.
pub(super) fn open_log(path: &Path) -> Result<(File, u64)> {
    let opening = || format!("cannot open the server's log {}", path.display());
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir).context(opening)?;
    }
    if fs::metadata(path).is_ok_and(|metadata| metadata.len() > LOG_BYTES_MAX) {
        fs::rename(path, path.with_extension("log.old")).context(opening)?;
    }
    let mut log = File::options().create(true).append(true).mode(0o600).open(path).context(opening)?;
    let end = log.seek(SeekFrom::End(0)).context(opening)?;
    Ok((log, end))
}

/// The end of what was logged from byte `start` on.
pub(super) fn tail(path: &Path, start: u64) -> String {
    let read = || -> std::io::Result<Vec<u8>> {
        let mut log = File::open(path)?;
        let end = log.seek(SeekFrom::End(0))?;
        log.seek(SeekFrom::Start(start.max(end.saturating_sub(LOG_TAIL_BYTES))))?;
        let mut bytes = Vec::new();
        log.take(LOG_TAIL_BYTES).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    match read() {
        Ok(bytes) => String::from_utf8_lossy(&bytes)
            .lines()
            .map(|line| format!("  {}\n", table::printable(line)))
            .collect(),
        Err(error) => format!("  (cannot be read: {error})"),
    }
}
