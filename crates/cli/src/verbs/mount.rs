//! `mount`: starts a server and waits until its mount is usable.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::args::Mount;
use crate::failure::{Context, Failure, Result};
use crate::serve::Outcome;
use crate::serve::plan::{self, Plan};
use crate::{places, table};

/// How much of the log's end is shown when a server dies without a word.
const LOG_TAIL_BYTES: u64 = 2048;
/// A log that has grown beyond this is kept as `.old` and started again.
const LOG_BYTES_MAX: u64 = 16 << 20;

/// Mounts a pool and returns when it can be used.
pub fn run(args: &Mount) -> Result<()> {
    // What can be told without a server is told at once.
    let plan = plan::make(args)?;
    if args.dry_run {
        return Ok(());
    }
    let log_path = places::log_of(&plan.pool)?;
    let (log, log_start) = open_log(&log_path)?;
    let program = std::env::current_exe().context(|| "cannot find this program's own file".into())?;
    let mut child = Command::new(program)
        .arg("serve")
        .args(["--report", "-o"])
        .arg(args.options.join(","))
        .arg("--")
        .arg(server_source(args, &plan))
        .arg(&plan.dir)
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
            Err(Failure::new(format!("the server of pool {} died while it started ({ended})", plan.pool))
                .hint(format!(
                    "its log is {}; the end of it:\n{}",
                    log_path.display(),
                    tail(&log_path, log_start)
                )))
        }
    }
}

/// The source as the server can find it from anywhere.
fn server_source(args: &Mount, plan: &Plan) -> std::ffi::OsString {
    if plan.by_device {
        plan.known.devices.first().map_or_else(|| args.source.clone().into(), Into::into)
    } else {
        args.source.clone().into()
    }
}

/// Opens the server's log for appending, and tells where it will go on.
fn open_log(path: &Path) -> Result<(File, u64)> {
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
fn tail(path: &Path, start: u64) -> String {
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
