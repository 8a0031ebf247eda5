//! Least privilege: what our processes keep of what they were started with, and what they can ask of the kernel
//! ([decision 0025](../../../../docs/decisions/0025-least-privilege.md)).
//!
//! A process confines itself while it has one thread, since capabilities and rules for paths belong to threads: those that come later
//! inherit all of it. A server does so when its devices are open and nothing on them but their labels was read.

mod capabilities;
mod paths;
mod syscalls;
#[cfg(test)]
mod tests;

use pagefold_backup::Location;
use rustix::thread::CapabilitySet;

use crate::control::ConfinementFigures;
use crate::failure::{Failure, Result};
use crate::mountopts::Confine;
use crate::places;

/// To mount and unmount; to reach directories that others keep to themselves.
const MOUNTER: CapabilitySet = CapabilitySet::SYS_ADMIN.union(CapabilitySet::DAC_READ_SEARCH);
/// What servers begin with: as their mounters have it, to open devices that belong to others, and to give all of it up.
const HOLDER: CapabilitySet = MOUNTER.union(CapabilitySet::DAC_OVERRIDE).union(CapabilitySet::SETPCAP);

/// Confines a server.
pub fn server(wish: Confine) -> Result<ConfinementFigures> {
    let steps = Steps::take(
        wish,
        &[
            ("new privileges", &no_new_privileges),
            // Before capabilities: rules name directories, which may lie in ones that others keep to themselves.
            (PATHS, &paths::only_needed),
            ("capabilities", &|| keep(CapabilitySet::empty())),
            (SYSTEM_CALLS, &|| syscalls::forbid().and_then(|()| syscalls::only_needed())),
        ],
    );
    steps.check("server")?;
    match wish {
        Confine::Off => {
            tracing::warn!("confine=off: this server keeps all privileges that it was started with");
        }
        _ if !steps.missing.is_empty() => {
            tracing::warn!(missing = steps.missing.join("; "), "this server is not confined in full");
        }
        _ => {}
    }
    Ok(ConfinementFigures {
        on: wish != Confine::Off,
        capabilities: capabilities::held().unwrap_or_else(|error| vec![error.to_string()]),
        system_calls: steps.done.contains(&SYSTEM_CALLS),
        paths: steps.done.contains(&PATHS),
        missing: steps.missing,
    })
}

/// Confines the holder of servers; what it starts begins with what it has.
pub fn holder(wish: Confine) -> Result<()> {
    privileged("holder", wish, HOLDER)
}

/// Confines who reads a backup: it needs the network, or the directory, or a program that has the network for it.
pub fn reader(wish: Confine, of: &Location) -> Result<()> {
    let is_directory = matches!(of, Location::Directory(_));
    let runs_programs = matches!(of, Location::Host(_));
    // Directories of backups may belong to others.
    let kept = if is_directory && places::is_root() {
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
        wish,
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
pub fn mounter(wish: Confine) -> Result<()> {
    privileged("mounter", wish, MOUNTER)
}

/// Processes of root's that need some privileges. Those of users have none, and run `fusermount3` or start who does: that is
/// set-user-ID root, and would not be for who is barred from new privileges.
fn privileged(who: &str, wish: Confine, kept: CapabilitySet) -> Result<()> {
    if !places::is_root() {
        return Ok(());
    }
    let steps = Steps::take(
        wish,
        &[
            ("new privileges", &no_new_privileges),
            ("capabilities", &|| keep(kept)),
            (SYSTEM_CALLS, &syscalls::forbid),
        ],
    );
    steps.check(who)?;
    if !steps.missing.is_empty() {
        eprintln!("pagefold: {who}: not confined in full: {}", steps.missing.join("; "));
    }
    Ok(())
}

const SYSTEM_CALLS: &str = "system calls";
const PATHS: &str = "paths";

fn keep(kept: CapabilitySet) -> Result<(), String> {
    capabilities::keep(kept).map_err(|error| error.to_string())
}

/// Programs that are run get no privileges of their files' owners.
fn no_new_privileges() -> Result<(), String> {
    rustix::thread::set_no_new_privs(true).map_err(|errno| errno.to_string())
}

type Step<'a> = (&'static str, &'a dyn Fn() -> Result<(), String>);

/// What was done, and what could not be and why.
struct Steps {
    wish: Confine,
    done: Vec<&'static str>,
    missing: Vec<String>,
}

impl Steps {
    fn take(wish: Confine, steps: &[Step<'_>]) -> Self {
        let mut taken = Self { wish, done: Vec::new(), missing: Vec::new() };
        if wish == Confine::Off {
            return taken;
        }
        if threads() != 1 {
            // That is a defect, which a test finds; nobody is told more than is true.
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
        if self.wish != Confine::On || self.missing.is_empty() {
            return Ok(());
        }
        Err(Failure::new(format!("the {who} cannot be confined in full: {}", self.missing.join("; ")))
            .hint("mount with confine=auto, which goes on without what is missing"))
    }
}

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count)
}
