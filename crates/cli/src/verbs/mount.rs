//! `mount`: asks the pool's server for a mount, or starts one, and waits until the mount is usable.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;

use pagefold_engine::walk;
use pagefold_server::control::{Client, Reply, Request};
use pagefold_server::failure::{Context, Failure, Result};
use pagefold_server::mountopts::MountOptions;
use pagefold_server::report::StartReport;
use pagefold_server::serve::{self, MountRequest};
use pagefold_server::spawn::{self, Purpose};
use pagefold_server::{files, names, raw, timeouts};

use crate::args::Mount;
use crate::plan::{self, MountPlan};
use crate::{bind_mount, file_lock, mount_users, mountpoint, other_copy, table};

/// Number of bytes of the log's end that are shown when a server dies without an error message.
const LOG_TAIL_BYTES: u64 = 2048;
/// Largest size of a log in bytes: one that has grown beyond it is kept as `.old`, and a new one is begun.
const LOG_BYTES_MAX: u64 = 16 << 20;

/// Mounts, and returns when the mount can be used.
pub fn run(args: &Mount) -> Result<()> {
    if super::remount::is_wanted(args) {
        return super::remount::run(args);
    }
    // Errors that need no server are reported before one is asked or started.
    let plan = plan::make(args)?;
    if args.dry_run {
        return check_place(&plan);
    }
    if let Some(dir) = make(args, &plan)? {
        eprintln!("pagefold: made the directory {}", table::printable(&pagefold_server::raw::text(&dir)));
    }
    Ok(())
}

/// Mounts one dataset for another verb, as [`run`] does; the other verb tells where it is mounted.
pub fn run_quietly(args: &Mount) -> Result<()> {
    make(args, &plan::make(args)?).map(drop)
}

/// Returns an error if the directory of a mount cannot be made, or nothing can be mounted on it.
fn check_place(plan: &MountPlan) -> Result<()> {
    let MountRequest { dir, options, .. } = &plan.wanted;
    if parent_to_make(plan).is_some() && !dir.exists() {
        return Ok(());
    }
    let name = names::full(&plan.known.name, &plan.wanted.path);
    mountpoint::check(dir, &serve::fuse_options(&name, options, options.read_only))
}

/// Returns the directory above that of the mount, if it is made where it is missing: a directory below another root may
/// lack all of its parents.
fn parent_to_make(plan: &MountPlan) -> Option<&Path> {
    let root = plan.known.altroot.as_ref()?;
    plan.wanted.dir.parent().filter(|parent| parent.starts_with(root))
}

/// Mounts; returns the mount point if it was made.
fn make(args: &Mount, plan: &MountPlan) -> Result<Option<PathBuf>> {
    if let Some(parent) = parent_to_make(plan) {
        walk::make(parent, false)
            .context(|| format!("cannot make {}", table::printable(&raw::text(parent))))?;
    }
    let made = mountpoint::make(&plan.wanted.dir)?;
    mount(args, plan)?;
    let made = made.keep();
    let (pool, path) = (&plan.known.name, &plan.wanted.path);
    super::unmount::detach_left(&[names::full(pool, path)])?;
    Ok(made)
}

fn mount(args: &Mount, plan: &MountPlan) -> Result<()> {
    let pool = &plan.known.name;
    files::make_private(&files::runtime_dir())?;
    // Several mounts may be started at once (by systemd, from fstab): one starts the server, and the others ask it.
    let turn = files::lock_file(&files::runtime_dir().join(format!("{pool}.mounting")))?;
    file_lock::wait(&turn, &format!("another mount of pool {pool}"))?;
    loop {
        let Some(mut client) = Client::connect(pool)? else {
            start_server(args, plan)?;
            remember(plan);
            return Ok(());
        };
        plan::check_server(&mut client, plan)?;
        let MountRequest { path, dir, .. } = plan.wanted.clone();
        let name = names::full(pool, &path);
        let server = client.named();
        let request = Request::Mount { path, dir, options: args.options.clone() };
        match client.ask_telling(&request, None, &mut || print_why_it_waits(pool, &name, &server)) {
            Ok(Reply::Done {}) => return Ok(()),
            Ok(Reply::There { dir, device, read_only }) => {
                let stays_read_only = super::remount::why_not_writable(&mut client, device);
                let there =
                    bind_mount::ExistingMount { name: &name, dir: &dir, device, read_only, stays_read_only };
                return bind_mount::mount(&there, &plan.wanted.dir, &plan.wanted.options);
            }
            Ok(Reply::Waiting { devices }) => return Err(still_used(&name, &devices)),
            Ok(Reply::Ending {}) => client.wait_for_end()?,
            // The server had died, and the kernel had not noticed yet.
            Err(_) if client.has_ended() => {}
            Ok(_) => return Err(client.misunderstood()),
            Err(failure) => return Err(failure),
        }
    }
}

/// Has the registry follow a pool that was mounted by the path of a device; prints what there is to know about copies.
fn remember(plan: &MountPlan) {
    let MountOptions { read_only, rescue, .. } = plan.wanted.options;
    if !plan.by_device || read_only || rescue {
        return;
    }
    match other_copy::follow(&plan.known) {
        Ok(None) => {}
        Ok(Some(warning)) => super::warn(&warning),
        Err(failure) => {
            super::warn(&format!("cannot note the devices of pool {}: {failure}", plan.known.name));
        }
    }
}

/// Tells why a mount takes long: somebody still uses the one that was unmounted before it, or the server is not ready.
fn print_why_it_waits(pool: &str, name: &str, server: &str) {
    let devices =
        Client::connect(pool).ok().flatten().map(|mut client| match client.ask(&Request::Status {}) {
            Ok(Reply::Status { figures }) => {
                let of = figures.mounts.into_iter().filter(|mount| mount.name == name);
                of.map(|mount| mount.device).collect()
            }
            _ => Vec::new(),
        });
    match super::unmount::keeping(&devices.unwrap_or_default()).as_slice() {
        [] => eprintln!("pagefold: waiting: the server of pool {pool}{server} is about to mount {name}"),
        some => eprintln!(
            "pagefold: waiting: {name} was unmounted, and is still in use:\n{}",
            mount_users::text(some)
        ),
    }
}

fn still_used(name: &str, devices: &[u32]) -> Failure {
    let who = match super::unmount::keeping(devices).as_slice() {
        [] => "no process of yours is seen to use it: somebody else's does, or the kernel".to_owned(),
        some => format!("it is used by\n{}", mount_users::text(some)),
    };
    Failure::new(format!(
        "{name} was unmounted, and is still in use after {} s",
        timeouts::BEFORE_MOUNTING.as_secs()
    ))
    .hint(format!(
        "{who}\n  end what uses it, then mount again; or have its users get errors: pagefold unmount --force {name}"
    ))
}

fn start_server(args: &Mount, plan: &MountPlan) -> Result<()> {
    let log_path = files::log_of(&plan.known.name)?;
    let (log, log_start) = open_log(&log_path)?;
    let program = std::env::current_exe().context(|| "cannot find this program's own file".into())?;
    let mut command = Command::new(program);
    spawn::set_environment(&mut command, Purpose::Background);
    let mut child = command
        .arg("serve")
        .args(["--report", "-o"])
        .arg(raw::path_of(&args.options.join(",")))
        .arg(format!("--pool-options={}", plan.pool_options()?.join(",")))
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
        let heard = print_if_slow(format!(
            "pagefold: waiting: the server of pool {} (process {}) opens it; its log is {}",
            plan.known.name,
            child.id(),
            log_path.display()
        ));
        BufReader::new(pipe).read_line(&mut line).context(|| "cannot hear from the server".into())?;
        drop(heard);
    }
    outcome_of(&mut child, &line, &format!("the server of pool {}", plan.known.name), &log_path, log_start)
}

/// Judges by the first line of a started process, which is called `who` in messages, whether it has begun its work.
pub(super) fn outcome_of(
    child: &mut Child,
    line: &str,
    who: &str,
    log_path: &Path,
    log_start: u64,
) -> Result<()> {
    match serde_json::from_str(line) {
        Ok(StartReport::Ready {}) => Ok(()),
        Ok(StartReport::Failed { what, hint }) => {
            let _ = child.wait();
            let failure = Failure::new(what);
            Err(match hint {
                Some(hint) => failure.hint(hint),
                None => failure,
            })
        }
        Err(_) => {
            let ended = child.wait().map_or_else(|error| error.to_string(), |status| status.to_string());
            Err(Failure::new(format!("{who} died while it started ({ended})")).hint(format!(
                "its log is {}; the end of it:\n{}",
                log_path.display(),
                tail(log_path, log_start)
            )))
        }
    }
}

/// Prints `text` if the returned sender still lives after a moment.
fn print_if_slow(text: String) -> mpsc::Sender<()> {
    let (done, waits) = mpsc::channel::<()>();
    let telling = thread::Builder::new().name("telling".into()).spawn(move || {
        if waits.recv_timeout(timeouts::TELL_AFTER) == Err(mpsc::RecvTimeoutError::Timeout) {
            eprintln!("{text}");
        }
    });
    // If the thread cannot be started, only a message is missing.
    drop(telling);
    done
}

/// Returns the source in a form by which the server finds it from any directory.
fn server_source(plan: &MountPlan) -> std::ffi::OsString {
    let name = || names::full(&plan.known.name, &plan.wanted.path).into();
    match plan.known.devices.first() {
        Some(device) if plan.by_device => device.into(),
        _ => name(),
    }
}

/// Opens a server's log for appending; also returns the offset at which new lines will begin.
pub(super) fn open_log(path: &Path) -> Result<(File, u64)> {
    let opening = || format!("cannot open the server's log {}", path.display());
    if let Some(dir) = path.parent() {
        files::make_private(dir)?;
    }
    if fs::metadata(path).is_ok_and(|metadata| metadata.len() > LOG_BYTES_MAX) {
        fs::rename(path, path.with_extension("log.old")).context(opening)?;
    }
    let mut log = files::log_file(path)?;
    let end = log.seek(SeekFrom::End(0)).context(opening)?;
    Ok((log, end))
}

/// Returns the end of what was logged from byte `start` on.
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
