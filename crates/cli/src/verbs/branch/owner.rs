//! Running a server as the owner of its data.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use super::data::DataDir;
use crate::failure::{Failure, Result};
use crate::places;

/// Whom a server runs as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    uid: libc::uid_t,
    gid: libc::gid_t,
    groups: Vec<libc::gid_t>,
}

impl Owner {
    /// The owner of a data directory.
    ///
    /// Errors: that is root, whom no database server runs as; or neither us nor are we root.
    pub fn of(data: &DataDir) -> Result<Self> {
        let (uid, dir) = (data.uid, crate::table::printable(&data.path.to_string_lossy()));
        if uid == 0 {
            return Err(Failure::new(format!("the data directory {dir} belongs to root")).hint(
                "database servers do not run as root: give it to the user that they run as (chown -R)",
            ));
        }
        let own = rustix::process::geteuid().as_raw();
        if !places::is_root() && uid != own {
            return Err(Failure::new(format!(
                "the data directory {dir} belongs to user {uid}, not to you ({own})"
            ))
            .hint("its server runs as its owner: be root, or that user"));
        }
        let mut groups = groups(uid);
        if groups.is_empty() {
            groups.push(data.gid);
        }
        Ok(Self { uid, gid: groups[0], groups })
    }

    /// Has a command run as this user, in a session of its own, so that it outlives ours.
    pub fn run(&self, command: &mut Command) {
        let Self { uid, gid, groups } = self.clone();
        let change = places::is_root();
        let become_owner = move || {
            // SAFETY: system calls that take numbers alone, and a list that lives as long as this closure.
            unsafe {
                libc::setsid();
                libc::umask(0o077);
                let changed = !change
                    || libc::setgroups(groups.len(), groups.as_ptr()) == 0
                        && libc::setgid(gid) == 0
                        && libc::setuid(uid) == 0;
                if changed { Ok(()) } else { Err(io::Error::last_os_error()) }
            }
        };
        // SAFETY: between fork and exec it makes system calls and allocates nothing.
        unsafe {
            command.pre_exec(become_owner);
        }
    }
}

/// All groups of a user, the primary one first; none where it is not known. Asked of `id`, since a static program cannot load what the
/// machine's user database may need.
fn groups(uid: u32) -> Vec<libc::gid_t> {
    let output =
        Command::new("id").args(["-G", &uid.to_string()]).stdin(Stdio::null()).stderr(Stdio::null()).output();
    let Some(output) = output.ok().filter(|output| output.status.success()) else { return Vec::new() };
    parse_groups(&String::from_utf8_lossy(&output.stdout))
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
        assert!(groups(3_999_999_999).is_empty());
    }
}
