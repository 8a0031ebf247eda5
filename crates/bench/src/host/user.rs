//! Runs programs as the users that database servers run as, and gives folders to them.

use std::fs;
use std::os::unix::fs::chown;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, anyhow, bail};

use super::exec::command;

/// Returns a command that runs `program` as `user`, in the root folder and with messages in English.
pub(crate) fn as_user(user: &str, program: &str) -> Command {
    let mut outer =
        command("setpriv", [&format!("--reuid={user}"), &format!("--regid={user}"), "--init-groups"]);
    outer.arg(program).env("LC_ALL", "C").current_dir("/");
    outer
}

/// Gives a file or folder to a user and the user's group.
///
/// # Errors
/// When there is no such user, or without root.
pub(crate) fn give(path: &Path, user: &str) -> Result<()> {
    let passwd = fs::read_to_string("/etc/passwd").context("read /etc/passwd")?;
    let mut fields = passwd
        .lines()
        .find(|l| l.split(':').next() == Some(user))
        .ok_or_else(|| anyhow!("there is no user {user}"))?
        .split(':')
        .skip(2)
        .map(str::parse::<u32>);
    let (Some(Ok(uid)), Some(Ok(gid))) = (fields.next(), fields.next()) else {
        bail!("/etc/passwd: no ids for {user}")
    };
    chown(path, Some(uid), Some(gid)).with_context(|| format!("give {} to {user}", path.display()))
}
