//! The supervisor: a small process above a server, which keeps what must outlive the server.
//!
//! It keeps the connections to the kernel, the pool's devices with their locks, and the journal's memory, and does not
//! know what they are. When the server is killed or crashes, the supervisor starts another one and hands everything
//! over; clients wait for that, and see no error. If a server ends by itself, its supervisor ends, too. If servers die
//! one after the other, the supervisor gives up and ends; the kernel then ends the connections, since no process has
//! them any more.

mod link;
pub(crate) mod wire;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use pagefold_fuse::OneMount;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use serde::{Deserialize, Serialize};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::confine;
use crate::failure::{Context, Failure, Result};
use crate::mountopts::Confine;
use crate::report;
use crate::spawn::{self, Purpose};
use crate::stderr::write_line;
pub(crate) use link::{Inherited, Link, StoredItem, inherited, uptime};
use wire::{Kind, Message};

/// Number of deaths one after the other, all but the first before the server has served for [`SERVED_MIN`], after which
/// the supervisor gives up: what kills the servers is still there.
const DEATHS_MAX: u32 = 5;
/// Time after which the death of a serving server is not blamed on its start.
const SERVED_MIN: Duration = Duration::from_secs(1);
/// Pause between the death of a server that never served and the start of the next one.
const PAUSE: Duration = Duration::from_millis(200);
/// Time after which the supervisor looks at a silent server: one that died may have threads that end only once another
/// server answers ([`pagefold_fuse::ended_but_for_drops`]).
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 500_000_000 };
/// File by which a process asks the kernel not to kill it when memory runs out.
const OOM_SCORE: &str = "/proc/self/oom_score_adj";

/// Facts about earlier servers that a server is told.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Hello {
    /// Number of earlier servers.
    pub restarts: u32,
    /// How the last one ended; empty for the first server.
    pub reason: String,
    /// Time at which it ended, in nanoseconds of [`uptime`].
    pub ended_ns: u64,
    /// True if it ended so that this one takes its place.
    pub planned: bool,
    /// The server's own `oom_score_adj`.
    oom_score: Option<String>,
}

impl Hello {
    fn restore_oom_score(&self) {
        if let Some(score) = &self.oom_score {
            // Giving up a privilege is always allowed; where it fails, the server keeps the supervisor's score.
            let _ = std::fs::write(OOM_SCORE, score);
        }
    }
}

/// Starts servers with the arguments of this process, one after the other, until one ends by itself. Returns that
/// server's exit status. `level` says which privileges this process keeps, `kept` is what it has for the first server.
pub(crate) fn run(level: Confine, kept: BTreeMap<String, StoredItem>) -> Result<i32> {
    let mut supervisor = Supervisor::new(kept)?;
    confine::supervisor(level)?;
    loop {
        let end = match supervisor.start() {
            Ok(server) => {
                let status = supervisor.follow(server)?;
                supervisor.next(status)
            }
            Err(failure) => supervisor.not_started(failure)?,
        };
        if let Some(end) = end {
            return Ok(end);
        }
    }
}

struct Supervisor {
    /// The program as it was when this process started; `path` is where its file is.
    program: PathBuf,
    path: Option<PathBuf>,
    arguments: Vec<OsString>,
    signals: Vec<(UnixStream, Signal)>,
    kept: BTreeMap<String, StoredItem>,
    hello: Hello,
    /// Number of deaths in a row; all but the first are of servers that did not serve for [`SERVED_MIN`].
    deaths: u32,
    /// True once any server has been ready.
    ready: bool,
    /// Time since which the present server is ready.
    serving: Option<Instant>,
    /// True if the present server has asked for another one to follow it.
    again: bool,
    /// Servers that died, with threads left that wait for the next one.
    remains: Vec<Child>,
    /// Signals that came, each once. A server that goes on for another one gets them as well, once it serves: the other
    /// one may have died before it could obey.
    told: Vec<Signal>,
}

struct ServerProcess {
    child: Child,
    pidfd: OwnedFd,
    line: OwnedFd,
}

impl ServerProcess {
    fn tell(&self, signal: Signal) {
        // It may have ended already.
        let _ = kill_process(Pid::from_child(&self.child), signal);
    }
}

impl Supervisor {
    fn new(kept: BTreeMap<String, StoredItem>) -> Result<Self> {
        let mut signals = Vec::new();
        for (number, signal) in [(SIGTERM, Signal::TERM), (SIGINT, Signal::INT), (SIGHUP, Signal::HUP)] {
            let catching = || "cannot catch signals".to_owned();
            let (ours, theirs) = UnixStream::pair().context(catching)?;
            ours.set_nonblocking(true).context(catching)?;
            signal_hook::low_level::pipe::register(number, theirs).context(catching)?;
            signals.push((ours, signal));
        }
        let oom_score = std::fs::read_to_string(OOM_SCORE).ok();
        // Best effort: this takes CAP_SYS_RESOURCE.
        let _ = std::fs::write(OOM_SCORE, "-1000");
        let (path, program) = (std::env::current_exe().ok(), PathBuf::from("/proc/self/exe"));
        Ok(Self {
            program,
            path,
            arguments: std::env::args_os().skip(1).collect(),
            signals,
            kept,
            hello: Hello { oom_score, ..Hello::default() },
            deaths: 0,
            ready: false,
            serving: None,
            again: false,
            remains: Vec::new(),
            told: Vec::new(),
        })
    }

    /// Starts a server and hands over everything that is kept.
    fn start(&mut self) -> Result<ServerProcess> {
        let starting = || "cannot start the server".to_owned();
        let (line, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .context(starting)?;
        let raw = theirs.as_raw_fd();
        let mut arguments = self.arguments.clone();
        let verb = arguments.iter().position(|word| word == "serve").map_or(0, |at| at + 1);
        arguments.insert(verb, format!("--held-by={raw}").into());
        let program = self.path.as_ref().filter(|_| self.hello.planned).unwrap_or(&self.program);
        let mut command = Command::new(program);
        // It gets a process group of its own: signals of the terminal to the whole group are passed on by the
        // supervisor, once.
        command.args(arguments).process_group(0);
        spawn::set_environment(&mut command, Purpose::Ours);
        // This process has no other thread that could start a program, which would inherit the descriptor.
        rustix::io::fcntl_setfd(&theirs, rustix::io::FdFlags::empty()).context(starting)?;
        let mut child = command.spawn().context(starting)?;
        drop(theirs);
        let pidfd = match pidfd_open(Pid::from_child(&child), PidfdFlags::empty()) {
            Ok(pidfd) => pidfd,
            Err(errno) => {
                // It has been handed nothing yet. Errors mean that it has ended already.
                let _ = child.kill();
                let _ = child.wait();
                return Err(errno).context(starting);
            }
        };
        self.serving = None;
        self.again = false;
        let handed = self.hand_over(&line);
        if let Err(error) = handed {
            // The server died at once; `follow` finds out how.
            log(&format!("cannot hand over to the server: {error}"));
        }
        Ok(ServerProcess { child, pidfd, line })
    }

    fn hand_over(&self, line: &OwnedFd) -> io::Result<()> {
        for (name, kept) in &self.kept {
            wire::send(line, Kind::Keep, name, &kept.body, kept.fd.as_ref().map(AsFd::as_fd))?;
        }
        wire::send(line, Kind::Hello, "", &serde_json::to_vec(&self.hello)?, None)
    }

    /// Listens to a server until it has ended. Returns `None` if it died and threads are left, so that its status is
    /// not known yet.
    fn follow(&mut self, mut server: ServerProcess) -> Result<Option<ExitStatus>> {
        let mut talking = true;
        loop {
            let mut ready = vec![PollFd::new(&server.pidfd, PollFlags::IN)];
            ready.extend(self.signals.iter().map(|(stream, _)| PollFd::new(stream, PollFlags::IN)));
            if talking {
                ready.push(PollFd::new(&server.line, PollFlags::IN));
            }
            let count = rustix::io::retry_on_intr(|| poll(&mut ready, Some(&LOOK)))
                .context(|| "cannot wait for the server".into())?;
            let events: Vec<bool> = ready.iter().map(|fd| !fd.revents().is_empty()).collect();
            drop(ready);
            if count == 0 {
                self.remains.retain_mut(|dead| !matches!(dead.try_wait(), Ok(Some(_))));
                if pagefold_fuse::ended_but_for_drops(server.child.id()) {
                    log("threads of the dead server wait for the kernel, which waits for the next one");
                    self.remains.push(server.child);
                    return Ok(None);
                }
                continue;
            }
            self.pass_signals_on(&server);
            // The server's last messages are read before its end is handled.
            if talking && events.last() == Some(&true) {
                match wire::receive(&server.line) {
                    Ok(Some(message)) => self.hear(&server, message),
                    Ok(None) => talking = false,
                    Err(error) => log(&format!("the server says nonsense: {error}")),
                }
                continue;
            }
            if events.first() == Some(&true) {
                return server.child.wait().map(Some).context(|| "cannot wait for the server".into());
            }
        }
    }

    fn pass_signals_on(&mut self, server: &ServerProcess) {
        let mut came = Vec::new();
        for (stream, signal) in &self.signals {
            let mut byte = [0; 1];
            while rustix::io::read(stream, &mut byte) == Ok(1) {
                came.push(*signal);
            }
        }
        for signal in came {
            if !self.told.contains(&signal) {
                self.told.push(signal);
            }
            // A server that goes on for another one would be killed by it until it catches signals: it gets it later.
            if self.serving.is_some() || !self.ready {
                server.tell(signal);
            }
        }
    }

    /// Obeys a server. If it goes on for another one, and serves from now on, tells it what that one was told.
    fn hear(&mut self, server: &ServerProcess, message: Message) {
        let goes_on = self.ready && self.serving.is_none();
        self.obey(message);
        if goes_on && self.serving.is_some() {
            self.told.iter().for_each(|signal| server.tell(*signal));
        }
    }

    fn obey(&mut self, message: Message) {
        let Message { kind, name, body, fd } = message;
        match kind {
            Kind::Keep => {
                self.kept.insert(name, StoredItem { body, fd });
            }
            Kind::Drop => {
                self.kept.remove(&name);
            }
            Kind::Notify => {
                let state = String::from_utf8_lossy(&body).into_owned();
                if state == "READY=1" {
                    self.is_ready();
                }
                report::notify(&state);
            }
            Kind::Again => self.again = true,
            Kind::Hello | Kind::Ask | Kind::Answer => {}
        }
    }

    fn is_ready(&mut self) {
        self.serving = Some(Instant::now());
        self.hello.planned = false;
        if !std::mem::replace(&mut self.ready, true) {
            report::close_stdout();
        }
    }

    /// Decides what follows the end of a server: another server (`None`), or the end of the supervisor with this exit
    /// status.
    fn next(&mut self, status: Option<ExitStatus>) -> Option<i32> {
        let again = self.again;
        let ended = status.filter(|status| status.signal().is_none());
        if !self.ready || (self.serving.is_some() && !again && ended.is_some()) || self.kept.is_empty() {
            let signal = status.and_then(|status| status.signal()).unwrap_or(libc::SIGKILL);
            return Some(ended.and_then(|status| status.code()).unwrap_or(128 + signal));
        }
        let status = status.map_or_else(|| "it was killed".to_owned(), |status| status.to_string());
        self.hello.restarts += 1;
        self.hello.ended_ns = u64::try_from(uptime().as_nanos()).unwrap_or(u64::MAX);
        self.hello.reason = if again { "restart".into() } else { status.clone() };
        // If the new program does not become ready, the old one is started again.
        self.hello.planned = again && self.serving.is_some();
        if self.hello.planned {
            return None;
        }
        self.died(&format!("the server died ({status})"))
    }

    /// Decides what follows if a server could not be started. The first one has to start; later ones count as servers
    /// that died at once, and the next attempt is with the program as it was.
    fn not_started(&mut self, failure: Failure) -> Result<Option<i32>> {
        if !self.ready || self.kept.is_empty() {
            return Err(failure);
        }
        self.hello.planned = false;
        let end = self.died(failure.what());
        if end.is_none() && self.serving.take().is_some() {
            thread::sleep(PAUSE);
        }
        Ok(end)
    }

    /// Ends the connections that are kept. The kernel does that when their last files are closed, unless threads of a
    /// dead server have files of them, too, and wait for requests that nobody answers any more.
    fn abort_kept(&mut self) {
        let files = self.kept.values().filter_map(|kept| kept.fd.as_ref());
        let mounts: Vec<OneMount> = files.filter_map(OneMount::of_file).collect();
        self.kept.clear();
        for mount in mounts.iter().filter(|mount| !mount.abort()) {
            log(&format!("a connection cannot be aborted: {mount:?}"));
        }
    }

    /// Counts a death, and pauses if the server did not serve. Returns an exit status if there were too many.
    fn died(&mut self, how: &str) -> Option<i32> {
        let got_far = self.serving.is_some_and(|since| since.elapsed() >= SERVED_MIN);
        self.deaths = if got_far { 1 } else { self.deaths + 1 };
        if self.deaths >= DEATHS_MAX {
            log(&format!(
                "{how}, as {DEATHS_MAX} did one after the other: giving up; their mounts end, and what was not synced is lost"
            ));
            self.abort_kept();
            return Some(1);
        }
        log(&format!("{how}: starting another"));
        if self.serving.is_none() {
            thread::sleep(PAUSE);
        }
        None
    }
}

/// Writes to the server's log.
fn log(what: &str) {
    write_line(&format!("supervisor: {what}"));
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::io::Write;
    use std::process::{ChildStdin, Stdio};

    use super::*;

    /// A supervisor that has had a server which was ready, and the other end of what brings its signal.
    fn supervisor() -> (Supervisor, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let supervisor = Supervisor {
            program: PathBuf::new(),
            path: None,
            arguments: Vec::new(),
            signals: vec![(ours, Signal::TERM)],
            kept: BTreeMap::new(),
            hello: Hello::default(),
            deaths: 0,
            ready: true,
            serving: None,
            again: false,
            remains: Vec::new(),
            told: Vec::new(),
        };
        (supervisor, theirs)
    }

    /// A process that does not catch signals, and ends by itself when its input does.
    fn server() -> (ServerProcess, ChildStdin) {
        let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let input = child.stdin.take().unwrap();
        let pidfd = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).unwrap();
        let line = OwnedFd::from(UnixStream::pair().unwrap().0);
        (ServerProcess { child, pidfd, line }, input)
    }

    fn ready() -> Message {
        Message { kind: Kind::Notify, name: String::new(), body: b"READY=1".to_vec(), fd: None }
    }

    #[test]
    fn a_server_that_goes_on_is_told_to_end_once_it_serves() {
        let (mut supervisor, mut signals) = supervisor();
        let (mut first, input) = server();
        signals.write_all(&[0]).unwrap();
        supervisor.pass_signals_on(&first);
        drop(input);
        assert_eq!(first.child.wait().unwrap().code(), Some(0), "it did not catch signals yet");
        // It is told though the signal came before it was there.
        let (mut next, _input) = server();
        supervisor.hear(&next, ready());
        assert_eq!(next.child.wait().unwrap().signal(), Some(libc::SIGTERM));
        // So is the next one if it dies on its way to the end.
        supervisor.serving = None;
        let (mut last, _input) = server();
        supervisor.hear(&last, ready());
        assert_eq!(last.child.wait().unwrap().signal(), Some(libc::SIGTERM));
    }

    #[test]
    fn a_server_that_serves_is_told_at_once() {
        let (mut supervisor, mut signals) = supervisor();
        supervisor.serving = Some(Instant::now());
        let (mut serving, _input) = server();
        signals.write_all(&[0]).unwrap();
        supervisor.pass_signals_on(&serving);
        assert_eq!(serving.child.wait().unwrap().signal(), Some(libc::SIGTERM));
    }
}
