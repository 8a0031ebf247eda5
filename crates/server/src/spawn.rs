//! Gives our processes a clean start: they inherit no descriptor, variable, mask, signal or terminal that was not meant
//! for them ([decision 0036](../../../docs/decisions/0036-mounts-by-descriptor.md)).
//!
//! The process that starts another chooses the environment. The new process does the rest, before anything else
//! ([`settle`]).

use std::ffi::OsString;
use std::io;
use std::os::fd::RawFd;
use std::process::Command;

use rustix::process::{DumpableBehavior, Resource, Rlimit, getrlimit, set_dumpable_behavior, setrlimit};

use crate::failure::{Context, Result};
use crate::files::{self, LOG_VARIABLE, RUNTIME_VARIABLE, STATE_VARIABLE};

/// Search path for programs that root runs.
pub const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Largest number of a signal; the kernel's sets of signals have as many bits.
const SIGNALS: usize = 64;
/// Largest number of the descriptors that every process has.
const STANDARD: RawFd = 2;

/// Variables that servers, supervisors and mounters get: directories of our files, what is logged, backtraces, the time
/// zone.
const ENVIRONMENT: &[&str] = &[
    STATE_VARIABLE,
    RUNTIME_VARIABLE,
    LOG_VARIABLE,
    "PAGEFOLD_LOG",
    "HOME",
    "XDG_STATE_HOME",
    "XDG_RUNTIME_DIR",
    "RUST_BACKTRACE",
    "TZ",
];
/// Variables that systemd sets for a process. They are for that process and those that follow it, not for processes
/// that it leaves in the background.
const OF_SYSTEMD: &[&str] = &["NOTIFY_SOCKET", "JOURNAL_STREAM", "INVOCATION_ID"];
/// Variables for a database's server: the machine's time zone and language.
const OF_DATABASES: &[&str] = &["TZ", "LANG", "LC_ALL"];

/// Purposes for which a process is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A server that goes on when the command that started it has ended.
    Background,
    /// A process that goes on for this one, or beside it.
    Ours,
    /// A database's server, which is not our program.
    Database,
}

/// Gives a command the environment for its purpose, and nothing else.
pub fn set_environment(command: &mut Command, purpose: Purpose) {
    let kept: Vec<(&str, OsString)> =
        names(purpose).into_iter().filter_map(|name| Some((name, std::env::var_os(name)?))).collect();
    command.env_clear().envs(kept);
    // Processes of users find fusermount3 by the user's own search path.
    match std::env::var_os("PATH").filter(|_| !files::is_root() && purpose != Purpose::Database) {
        Some(path) => command.env("PATH", path),
        None => command.env("PATH", PATH),
    };
}

fn names(purpose: Purpose) -> Vec<&'static str> {
    match purpose {
        Purpose::Background => ENVIRONMENT.to_vec(),
        Purpose::Ours => [ENVIRONMENT, OF_SYSTEMD].concat(),
        Purpose::Database => OF_DATABASES.to_vec(),
    }
}

/// Gives up what this process has inherited, except the descriptor `passed`. To be called before anything else, when
/// there is no other thread and nothing has been opened.
pub fn settle(passed: Option<RawFd>, background: bool) -> Result<()> {
    close_inherited(passed).context(|| "cannot close what was open already".into())?;
    reset_signals();
    // New files are accessible to their owner only, unless a mode is given.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    // Memory holds secrets of databases: there are no core files, and other processes of the same user cannot read it.
    set_dumpable_behavior(DumpableBehavior::NotDumpable).context(|| "cannot forbid core files".into())?;
    setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })
        .context(|| "cannot forbid core files".into())?;
    // A limit of `ulimit -f` was not meant for the pool; nor is the usual one of descriptors, which spares programs that
    // use select(2): each mount takes some for its threads, and a supervisor keeps some for each.
    [Resource::Fsize, Resource::Nofile].into_iter().for_each(raise);
    if background {
        // Only root may do that, and only root's pools are waited for by other users.
        let _best_effort = rustix::process::setpriority_process(None, 0);
    }
    Ok(())
}

/// Raises a limit as far as this process may.
fn raise(resource: Resource) {
    let limit = getrlimit(resource);
    let _best_effort = setrlimit(resource, Rlimit { current: limit.maximum, ..limit });
}

/// Closes descriptors beyond the standard ones, except `passed`.
fn close_inherited(passed: Option<RawFd>) -> io::Result<()> {
    let first = STANDARD + 1;
    match passed.filter(|passed| *passed >= first) {
        None => close_range(first, RawFd::MAX, 0),
        Some(passed) => {
            if passed > first {
                close_range(first, passed - 1, 0)?;
            }
            close_range(passed + 1, RawFd::MAX, 0)
        }
    }
}

fn close_range(first: RawFd, last: RawFd, flags: libc::c_uint) -> io::Result<()> {
    // SAFETY: the callers close while nothing in this process uses a descriptor beyond the standard ones, or only mark
    // descriptors.
    let done = unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Has all descriptors beyond the standard ones closed when a program is executed. It allocates nothing, and may be
/// called between fork and exec.
pub fn mark_inherited() -> io::Result<()> {
    close_range(STANDARD + 1, RawFd::MAX, libc::CLOSE_RANGE_CLOEXEC)
}

/// Resets ignored signals to their default, and unblocks all. It allocates nothing, and may be called between fork and
/// exec.
pub fn reset_signals() {
    // The kernel is called directly: C libraries refuse to report on the signals that they use themselves, and hang if
    // these are ignored. Its structure is at most 32 bytes, the disposition first, and zeros are the default.
    let default = [0_u64; 4];
    // SAFETY: the structures live as long as the calls and are as long as the kernel's; default dispositions run no
    // code of ours; there is no other thread. A signal that cannot be set (SIGKILL, SIGSTOP) is refused and stays as it
    // is.
    unsafe {
        for signal in 1..=SIGNALS {
            let mut now = default;
            let nothing = std::ptr::null::<u64>();
            let asked = libc::syscall(libc::SYS_rt_sigaction, signal, nothing, now.as_mut_ptr(), SIGNALS / 8);
            if asked == 0 && now[0] == libc::SIG_IGN as u64 {
                let no_matter = std::ptr::null::<u64>();
                libc::syscall(libc::SYS_rt_sigaction, signal, default.as_ptr(), no_matter, SIGNALS / 8);
            }
        }
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_raised_as_far_as_it_may_be() {
        let before = getrlimit(Resource::Nofile);
        // Other tests are not disturbed by one descriptor less.
        let lower = Rlimit { current: before.maximum.map(|maximum| maximum - 1), ..before };
        setrlimit(Resource::Nofile, lower).unwrap();
        raise(Resource::Nofile);
        let raised = getrlimit(Resource::Nofile).current;
        setrlimit(Resource::Nofile, before).unwrap();
        assert_eq!(raised, before.maximum);
    }

    #[test]
    fn nothing_but_what_is_on_the_list_is_passed_on() {
        let mut command = Command::new("env");
        command.env("LD_PRELOAD", "/tmp/x.so").env("PGDATA", "/tmp").env("TMPDIR", "/tmp");
        for purpose in [Purpose::Background, Purpose::Ours, Purpose::Database] {
            set_environment(&mut command, purpose);
            let output = command.output().unwrap();
            let text = String::from_utf8(output.stdout).unwrap();
            for line in text.lines() {
                let name = line.split('=').next().unwrap();
                assert!(name == "PATH" || names(purpose).contains(&name), "{purpose:?}: {line}");
            }
            assert!(text.contains("PATH="), "{text}");
        }
        assert!(!names(Purpose::Background).contains(&"NOTIFY_SOCKET"));
    }
}
