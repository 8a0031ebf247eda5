//! Runs a server as the owner of its data.
//!
//! The pool says who owns the data, and a pool can come from anywhere; a server on hostile data runs code of the data's
//! choice. So a server runs only as a user of a database package, as a user number that the machine does not know, or
//! as the user that was named. It gets that user's groups as the machine knows them, and nothing of this process.

use std::ffi::OsStr;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use pagefold_server::failure::{Failure, Result};
use pagefold_server::files;
use pagefold_server::spawn::{self, Purpose};
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};

use super::data::DataDir;
use super::programs::machine_said;

/// Users that packages of the databases make.
const USERS: [&str; 4] = ["postgres", "mysql", "mariadb", "pgsql"];
/// Group of the user `nobody`: files of this group belong to nobody.
const NO_GROUP: libc::gid_t = 65_534;

/// The user and groups as which a server runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    uid: libc::uid_t,
    gid: libc::gid_t,
    groups: Vec<libc::gid_t>,
}

impl Owner {
    /// Returns the owner of a data directory; `named` is a user that the command line permits.
    ///
    /// Errors: the owner is root, as which no database server runs; the owner is another user, and we are not root; or
    /// it is somebody who has nothing to do with databases and was not named.
    pub fn of(data: &DataDir, named: Option<&str>) -> Result<Self> {
        let (uid, dir) = (data.uid, crate::table::printable(&pagefold_server::raw::text(&data.path)));
        if uid == 0 {
            return Err(Failure::new(format!("the data directory {dir} belongs to root")).hint(
                "database servers do not run as root: give it to the user that they run as (chown -R)",
            ));
        }
        let own = rustix::process::geteuid().as_raw();
        if !files::is_root() {
            if uid != own {
                return Err(Failure::new(format!(
                    "the data directory {dir} belongs to user {uid}, not to you ({own})"
                ))
                .hint("its server runs as its owner: be root, or that user"));
            }
            return Ok(Self { uid, gid: rustix::process::getegid().as_raw(), groups: Vec::new() });
        }
        let number = uid.to_string();
        let Some(name) = machine_said("id", &["-un", &number])? else {
            // This machine has no such user, so none of its groups is theirs either, whatever the data says.
            return Ok(Self { uid, gid: NO_GROUP, groups: vec![NO_GROUP] });
        };
        let name = name.trim();
        if !USERS.contains(&name) && named != Some(name) {
            return Err(Failure::new(format!(
                "the data directory {dir} belongs to {name}, who is there for other things than databases"
            ))
            .hint(format!("its server would run as {name}, with all that {name} may do: if you trust the data with that, say --user {name}")));
        }
        let groups = parse_groups(&machine_said("id", &["-G", &number])?.unwrap_or_default());
        match groups.first() {
            Some(gid) => Ok(Self { uid, gid: *gid, groups }),
            None => Err(Failure::new(format!("cannot find out which groups user {name} is in"))
                .hint(format!("see what this says: id -G {uid}"))),
        }
    }

    /// Returns the output of a program that is run as this user; `None` if it fails.
    pub fn output_of(&self, program: &Path, words: &[&OsStr]) -> Option<String> {
        let mut command = Command::new(program);
        command.args(words);
        self.run(&mut command);
        command.env("LC_ALL", "C").stdin(Stdio::null()).stderr(Stdio::null());
        let output = command.output().ok().filter(|output| output.status.success())?;
        Some(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Has a command run as this user, in a session of its own, so that it outlives ours. It inherits nothing of ours:
    /// no capability, descriptor, variable, signal, mask or directory.
    pub fn run(&self, command: &mut Command) {
        spawn::set_environment(command, Purpose::Database);
        command.current_dir("/");
        let Self { uid, gid, groups } = self.clone();
        let change = files::is_root();
        let become_owner = move || {
            spawn::mark_inherited()?;
            spawn::reset_signals();
            // SAFETY: system calls that take numbers alone, and a list that lives as long as this closure.
            unsafe {
                libc::setsid();
                libc::umask(0o077);
                // Only root may raise a priority; a low priority of this process was not meant for the server.
                libc::setpriority(libc::PRIO_PROCESS, 0, 0);
                let changed = !change
                    || libc::setgroups(groups.len(), groups.as_ptr()) == 0
                        && libc::setresgid(gid, gid, gid) == 0
                        && libc::setresuid(uid, uid, uid) == 0;
                if !changed {
                    return Err(io::Error::last_os_error());
                }
            }
            // The kernel clears the capabilities with the change of the user number, unless this process was told to
            // keep them.
            let none = CapabilitySet::empty();
            set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })?;
            Ok(())
        };
        // SAFETY: between fork and exec it makes system calls and allocates nothing.
        unsafe {
            command.pre_exec(become_owner);
        }
    }
}

fn parse_groups(text: &str) -> Vec<libc::gid_t> {
    let groups: Result<Vec<_>, _> = text.split_whitespace().map(str::parse).collect();
    groups.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_numbers() {
        assert_eq!(parse_groups("113 104 4\n"), [113, 104, 4]);
        assert!(parse_groups("staff\n").is_empty() && parse_groups("").is_empty());
    }

    /// The user that serves a data directory of this owner; the directory's group is `disk`.
    fn owner(uid: u32, named: Option<&str>) -> Result<Owner> {
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::chown(dir.path(), Some(uid), Some(6)).unwrap();
        Owner::of(&DataDir::open(dir.path(), ".").unwrap(), named)
    }

    #[test]
    fn the_data_does_not_say_whose_power_it_gets() {
        if !files::is_root() {
            return;
        }
        assert!(owner(0, Some("root")).is_err());
        let unknown = owner(3_999_999_999, None).unwrap();
        assert_eq!((unknown.gid, unknown.groups), (NO_GROUP, vec![NO_GROUP]));
        // A user of the machine's who serves no database.
        let refused = owner(1, None).unwrap_err();
        assert!(refused.to_string().contains("--user daemon"), "{refused}");
        let named = owner(1, Some("daemon")).unwrap();
        assert!(named.gid != 6 && !named.groups.contains(&6), "{named:?}");
    }
}
