//! Least privilege: our processes give up rights that they were started with, and have the kernel restrict them
//! ([decision 0025](../../../../docs/decisions/0025-least-privilege.md)).
//!
//! A process confines itself while it has one thread, since capabilities and rules for paths belong to threads, and
//! later threads inherit them. A server does so when its devices are open and only their labels have been read.

#![deny(clippy::print_stderr, reason = "write_line does not panic where standard error fails")]

mod capabilities;
mod paths;
mod syscalls;
#[cfg(test)]
#[allow(clippy::print_stdout, reason = "a process of the tests tells the one that has started it")]
mod tests;

use pagefold_backup::Location;
use rustix::thread::CapabilitySet;

use crate::control::ConfinementFigures;
use crate::failure::{Failure, Result};
use crate::files;
use crate::mountopts::Confine;
use crate::stderr::write_line;

/// Capabilities of a mounter: to mount and unmount, and to reach directories that are closed to others.
const MOUNTER: CapabilitySet = CapabilitySet::SYS_ADMIN.union(CapabilitySet::DAC_READ_SEARCH);
/// Capabilities that a supervisor keeps and its servers begin with: those of a mounter, those to open devices of other
/// users, and the one to give capabilities up.
const SUPERVISOR: CapabilitySet = MOUNTER.union(CapabilitySet::DAC_OVERRIDE).union(CapabilitySet::SETPCAP);

/// Confines a server.
pub(crate) fn server(level: Confine) -> Result<ConfinementFigures> {
    let steps = Steps::take(
        level,
        &[
            ("new privileges", &no_new_privileges),
            // Rules for paths come before capabilities are given up: they name directories that may be closed to
            // others.
            (PATHS, &paths::only_needed),
            ("capabilities", &|| keep(CapabilitySet::empty())),
            (SYSTEM_CALLS, &|| syscalls::forbid().and_then(|()| syscalls::only_needed())),
        ],
    );
    steps.check("server")?;
    match level {
        Confine::Off => {
            tracing::warn!("confine=off: this server keeps all privileges that it was started with");
        }
        _ if !steps.missing.is_empty() => {
            tracing::warn!(missing = steps.missing.join("; "), "this server is not confined in full");
        }
        _ => {}
    }
    Ok(ConfinementFigures {
        on: level != Confine::Off,
        capabilities: capabilities::held().unwrap_or_else(|error| vec![error.to_string()]),
        system_calls: steps.done.contains(&SYSTEM_CALLS),
        paths: steps.done.contains(&PATHS),
        missing: steps.missing,
    })
}

/// Confines the supervisor of servers; its servers begin with what it keeps.
pub(crate) fn supervisor(level: Confine) -> Result<()> {
    privileged("supervisor", level, SUPERVISOR)
}

/// Confines the process that reads a backup. It needs the network, or the directory, or a program that uses the network
/// for it.
pub fn reader(level: Confine, of: &Location) -> Result<()> {
    let is_directory = matches!(of, Location::Directory(_));
    let runs_programs = matches!(of, Location::Host(_));
    // Directories of backups may belong to other users.
    let kept = if is_directory && files::is_root() {
        CapabilitySet::DAC_READ_SEARCH
    } else {
        CapabilitySet::empty()
    };
    let calls = || match runs_programs {
        true => syscalls::forbid(),
        false => syscalls::forbid().and_then(|()| syscalls::no_programs()),
    };
    let paths = || if runs_programs { Ok(()) } else { paths::only_to_read(of) };
    let steps = Steps::take(
        level,
        &[
            ("new privileges", &no_new_privileges),
            (PATHS, &paths),
            ("capabilities", &|| keep(kept)),
            (SYSTEM_CALLS, &calls),
        ],
    );
    steps.check("process that reads the backup")?;
    if !steps.missing.is_empty() {
        tracing::warn!(missing = steps.missing.join("; "), "who reads the backup is not confined in full");
    }
    Ok(())
}

/// Confines a mounter.
pub(crate) fn mounter(level: Confine) -> Result<()> {
    privileged("mounter", level, MOUNTER)
}

/// Confines a process of root's that needs some privileges. Processes of other users have none, and run `fusermount3`
/// or start a process that does; that is set-user-ID root, and would not be if new privileges were forbidden.
fn privileged(who: &str, level: Confine, kept: CapabilitySet) -> Result<()> {
    if !files::is_root() {
        return Ok(());
    }
    let steps = Steps::take(
        level,
        &[
            ("new privileges", &no_new_privileges),
            ("capabilities", &|| keep(kept)),
            (SYSTEM_CALLS, &syscalls::forbid),
        ],
    );
    steps.check(who)?;
    if !steps.missing.is_empty() {
        write_line(&format!("{who}: not confined in full: {}", steps.missing.join("; ")));
    }
    Ok(())
}

const SYSTEM_CALLS: &str = "system calls";
const PATHS: &str = "paths";

fn keep(kept: CapabilitySet) -> Result<(), String> {
    capabilities::keep(kept).map_err(|error| error.to_string())
}

/// Has programs that are run get no privileges from the owners of their files.
fn no_new_privileges() -> Result<(), String> {
    rustix::thread::set_no_new_privs(true).map_err(|errno| errno.to_string())
}

type Step<'a> = (&'static str, &'a dyn Fn() -> Result<(), String>);

/// Steps that were taken, and those that failed, with the reasons.
struct Steps {
    level: Confine,
    done: Vec<&'static str>,
    missing: Vec<String>,
}

impl Steps {
    fn take(level: Confine, steps: &[Step<'_>]) -> Self {
        let mut taken = Self { level, done: Vec::new(), missing: Vec::new() };
        if level == Confine::Off {
            return taken;
        }
        if threads() != 1 {
            // This would be a defect, which a test finds; it is reported, so that nobody is told more than is true.
            taken.missing.push("this process has threads already, which keep what they had".into());
        }
        for (what, step) in steps {
            match step() {
                Ok(()) => taken.done.push(*what),
                Err(why) => taken.missing.push(format!("{what}: {why}")),
            }
        }
        taken
    }

    fn check(&self, who: &str) -> Result<()> {
        if self.level != Confine::On || self.missing.is_empty() {
            return Ok(());
        }
        Err(Failure::new(format!("the {who} cannot be confined in full: {}", self.missing.join("; ")))
            .hint("mount with confine=auto, which goes on without what is missing"))
    }
}

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count)
}
