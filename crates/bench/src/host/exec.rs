//! Runs child processes: collects their output, measures their time, and ends them.
//!
//! Output goes to unnamed temporary files and not to pipes, because a command that leaves a daemon behind
//! (`pagefold mount`) would keep a pipe open for ever. Every wait watches for SIGINT, SIGTERM and SIGHUP, so that the
//! guards of loop devices and mounts run when somebody presses Ctrl-C.

use std::cell::Cell;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

static INTERRUPTED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// Longest time that a command may take.
const DEFAULT_LIMIT: Duration = Duration::from_secs(900);
/// Time within which a command's exit is noticed in its first seconds ([`YOUTH`]), so that short commands can be timed.
const YOUNG_POLL: Duration = Duration::from_millis(1);
/// Time within which a command's exit is noticed later.
const OLD_POLL: Duration = Duration::from_millis(15);
const YOUTH: Duration = Duration::from_secs(2);
/// Time that a server which has nothing to write at its end has to end before SIGKILL follows.
pub(crate) const GRACE: Duration = Duration::from_secs(10);

/// Has SIGINT, SIGTERM and SIGHUP end the bench in an orderly way from now on: every wait returns an error.
///
/// # Errors
/// When the handlers cannot be installed.
pub(crate) fn catch_signals() -> Result<()> {
    let flag = INTERRUPTED.get_or_init(|| Arc::new(AtomicBool::new(false)));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(flag)).context("install a signal handler")?;
    }
    Ok(())
}

thread_local! {
    static SHIELDED: Cell<bool> = const { Cell::new(false) };
}

/// Runs `work`, which takes things down, and does not let an interruption end it.
pub(crate) fn shielded<T>(work: impl FnOnce() -> T) -> T {
    let before = SHIELDED.replace(true);
    let done = work();
    SHIELDED.set(before);
    done
}

/// Fails once a signal has asked the bench to stop.
///
/// # Errors
/// "interrupted", after SIGINT, SIGTERM or SIGHUP.
pub(crate) fn check_interrupted() -> Result<()> {
    if !SHIELDED.get() && INTERRUPTED.get().is_some_and(|flag| flag.load(Ordering::Relaxed)) {
        bail!("interrupted: everything the bench set up is being taken down");
    }
    Ok(())
}

/// Output and running time of a command.
#[derive(Debug)]
pub(crate) struct Finished {
    /// Standard output.
    pub(crate) stdout: String,
    /// Standard error.
    pub(crate) stderr: String,
    /// Wall-clock time from start to exit, in seconds, accurate to about a millisecond for the first two seconds.
    pub(crate) seconds: f64,
}

/// Returns the command as somebody would type it.
pub(crate) fn shown(command: &Command) -> String {
    let mut words = vec![quote(&command.get_program().to_string_lossy())];
    words.extend(command.get_args().map(|arg| quote(&arg.to_string_lossy())));
    words.join(" ")
}

/// Cuts a command so that it is short enough for a message.
fn shortened(mut command: String) -> String {
    const LONGEST: usize = 240;
    if command.len() > LONGEST {
        let cut = (0..=LONGEST).rev().find(|&n| command.is_char_boundary(n)).unwrap_or(0);
        command.truncate(cut);
        command.push_str(" ...");
    }
    command
}

fn quote(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=+./,:@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

/// Returns a command with its arguments.
pub(crate) fn command<I, S>(program: &str, args: I) -> Command
where
    I: IntoIterator<Item = S>,
    S: AsRef<std::ffi::OsStr>,
{
    let mut command = Command::new(program);
    command.args(args);
    command
}

/// Runs a command to its end.
///
/// # Errors
/// When it cannot be started, fails, takes more than 15 minutes, or the bench is interrupted.
pub(crate) fn run(command: &mut Command) -> Result<Finished> {
    run_with_input(command, None)
}

/// Runs a command that reads `input` as its standard input.
///
/// # Errors
/// As [`run`].
pub(crate) fn run_with_input(command: &mut Command, input: Option<File>) -> Result<Finished> {
    run_within(command, input, DEFAULT_LIMIT)
}

/// Runs a command that may take as long as `limit`, and reads `input` as its standard input.
///
/// # Errors
/// As [`run`], with another limit.
pub(crate) fn run_within(command: &mut Command, input: Option<File>, limit: Duration) -> Result<Finished> {
    check_interrupted()?;
    let shown = shortened(shown(command));
    let mut out = tempfile::tempfile().context("a temporary file for output")?;
    let mut err = tempfile::tempfile().context("a temporary file for messages")?;
    command.stdin(input.map_or_else(Stdio::null, Stdio::from));
    command.stdout(out.try_clone()?).stderr(err.try_clone()?).process_group(0);
    let started = Instant::now();
    let mut child = command.spawn().with_context(|| format!("start `{shown}`"))?;
    let status = wait(&mut child, started, limit).with_context(|| format!("run `{shown}`"));
    if status.is_err() {
        kill_group(&mut child);
    }
    let seconds = started.elapsed().as_secs_f64();
    let (stdout, stderr) = (read_back(&mut out)?, read_back(&mut err)?);
    let status = status?;
    if !status.success() {
        let message = if stderr.trim().is_empty() { stdout.trim() } else { stderr.trim() };
        bail!("`{shown}` failed ({}): {message}", describe(status));
    }
    Ok(Finished { stdout, stderr, seconds })
}

fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit status {code}"),
        (None, Some(signal)) => format!("killed by signal {signal}"),
        (None, None) => "ended".to_owned(),
    }
}

fn read_back(file: &mut File) -> Result<String> {
    file.seek(SeekFrom::Start(0))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn wait(child: &mut Child, started: Instant, limit: Duration) -> Result<ExitStatus> {
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        check_interrupted()?;
        let age = started.elapsed();
        if age > limit {
            bail!("still running after {} s: given up", limit.as_secs());
        }
        std::thread::sleep(if age < YOUTH { YOUNG_POLL } else { OLD_POLL });
    }
}

fn kill_group(child: &mut Child) {
    if let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        // The group may be gone already; then nothing is left to do.
        let _gone = kill_process_group(pid, Signal::KILL);
    }
    let _reaped = child.wait();
}

/// A server process of ours, ended when dropped.
#[derive(Debug)]
pub(crate) struct Server {
    child: Child,
    name: String,
    /// The signal that asks it to end in an orderly way.
    polite: Signal,
    /// Time that it then has before SIGKILL follows.
    grace: Duration,
    log: File,
}

impl Server {
    /// Starts a server in the foreground of its own process group. `polite` is the signal that ends it well, within
    /// `grace`.
    ///
    /// # Errors
    /// When it cannot be started.
    pub(crate) fn start(command: &mut Command, polite: Signal, grace: Duration) -> Result<Self> {
        check_interrupted()?;
        let name = shown(command);
        let log = tempfile::tempfile()?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log.try_clone()?).process_group(0);
        let child = command.spawn().with_context(|| format!("start `{name}`"))?;
        Ok(Self { child, name, polite, grace, log })
    }

    /// Returns the process's id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until `ready` returns true. It is given what the server has printed so far.
    ///
    /// # Errors
    /// When the server ends before, or is not ready within 60 s; the message holds what it printed.
    pub(crate) fn wait_ready(&mut self, mut ready: impl FnMut(&str) -> bool) -> Result<()> {
        let started = Instant::now();
        loop {
            check_interrupted()?;
            if ready(&read_back(&mut self.log)?) {
                return Ok(());
            }
            if let Some(status) = self.child.try_wait()? {
                bail!(
                    "`{}` ended at start ({}): {}",
                    self.name,
                    describe(status),
                    read_back(&mut self.log)?.trim()
                );
            }
            if started.elapsed() > Duration::from_secs(60) {
                bail!("`{}` is not ready after 60 s: {}", self.name, read_back(&mut self.log)?.trim());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Fails if the server has ended.
    ///
    /// # Errors
    /// With what it printed.
    pub(crate) fn ensure_running(&mut self) -> Result<()> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => {
                bail!("`{}` ended ({}): {}", self.name, describe(status), read_back(&mut self.log)?.trim())
            }
        }
    }

    /// Ends the server and waits for it: first politely, and with SIGKILL if it takes longer than its grace.
    ///
    /// # Errors
    /// When it had to be killed.
    pub(crate) fn stop(&mut self) -> Result<()> {
        if self.child.try_wait()?.is_some() {
            return Ok(());
        }
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| anyhow!("process id {} is out of range", self.child.id()))?;
        kill_process(pid, self.polite).with_context(|| format!("stop `{}`", self.name))?;
        let asked = Instant::now();
        while self.child.try_wait()?.is_none() {
            if asked.elapsed() > self.grace {
                kill_group(&mut self.child);
                bail!("`{}` did not end within {} s and was killed", self.name, self.grace.as_secs());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Err(error) = self.stop() {
            eprintln!("pagefold-bench: {error:#}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_time_and_failure_are_reported() {
        let done = run(&mut command("sh", ["-c", "echo out; echo err >&2; sleep 0.05"])).unwrap();
        assert_eq!((done.stdout.as_str(), done.stderr.as_str()), ("out\n", "err\n"));
        assert!(done.seconds >= 0.05 && done.seconds < 5.0);
        let error = run(&mut command("sh", ["-c", "echo no such thing >&2; exit 3"])).unwrap_err();
        let text = format!("{error:#}");
        assert!(text.contains("exit status 3") && text.contains("no such thing"), "{text}");
    }

    #[test]
    fn a_daemon_left_behind_does_not_block() {
        let started = Instant::now();
        run(&mut command("sh", ["-c", "sleep 3 & echo started"])).unwrap();
        assert!(started.elapsed() < Duration::from_secs(2));
    }

    #[test]
    fn shown_commands_can_be_pasted() {
        assert_eq!(shown(&command("echo", ["a b", "c=1", "it's"])), r"echo 'a b' c=1 'it'\''s'");
    }
}
