//! Where this program keeps its own small files: the pool cache, control sockets and logs.

use std::fs::{self, File};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::failure::{Context, Failure, Result};

/// Environment variables that move these places, for tests and unusual set-ups.
pub const STATE_VARIABLE: &str = "PAGEFOLD_STATE_DIR";
/// See [`STATE_VARIABLE`].
pub const RUNTIME_VARIABLE: &str = "PAGEFOLD_RUNTIME_DIR";
/// See [`STATE_VARIABLE`].
pub const LOG_VARIABLE: &str = "PAGEFOLD_LOG_DIR";

/// Whether we act as the system (root) or for one user.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn variable(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// Where the pool cache lives: `/var/lib/pagefold`, or `$XDG_STATE_HOME/pagefold`.
pub fn state_dir() -> Result<PathBuf> {
    if let Some(dir) = variable(STATE_VARIABLE) {
        return Ok(dir);
    }
    if is_root() {
        return Ok("/var/lib/pagefold".into());
    }
    if let Some(dir) = variable("XDG_STATE_HOME") {
        return Ok(dir.join("pagefold"));
    }
    variable("HOME").map(|home| home.join(".local/state/pagefold")).ok_or_else(|| {
        Failure::new("neither XDG_STATE_HOME nor HOME is set: there is nowhere to remember pools")
            .hint(format!("set HOME, or {STATE_VARIABLE}"))
    })
}

/// Where control sockets live: `/run/pagefold`, or `$XDG_RUNTIME_DIR/pagefold`.
pub fn runtime_dir() -> PathBuf {
    if let Some(dir) = variable(RUNTIME_VARIABLE) {
        return dir;
    }
    if is_root() {
        return "/run/pagefold".into();
    }
    match variable("XDG_RUNTIME_DIR") {
        Some(dir) => dir.join("pagefold"),
        None => format!("/tmp/pagefold-{}", rustix::process::geteuid().as_raw()).into(),
    }
}

/// Where servers that run in the background log: `/var/log/pagefold`, or the state directory.
pub fn log_dir() -> Result<PathBuf> {
    match variable(LOG_VARIABLE) {
        Some(dir) => Ok(dir),
        None if is_root() => Ok("/var/log/pagefold".into()),
        None => state_dir(),
    }
}

/// Makes a directory of ours (mode 0700) and refuses one that belongs to somebody else (in `/tmp` anybody could have made it
/// first), or that others may write: they could put a socket of theirs in the place of ours.
pub fn make_private(dir: &Path) -> Result<()> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)
        .context(|| format!("cannot create {}", dir.display()))?;
    let found = fs::metadata(dir).context(|| format!("cannot look at {}", dir.display()))?;
    let owner = found.uid();
    let own = rustix::process::geteuid().as_raw();
    if owner != own {
        return Err(Failure::new(format!("{} belongs to user {owner}, not to you ({own})", dir.display()))
            .hint("remove it, or set XDG_RUNTIME_DIR to a directory of yours"));
    }
    if found.mode() & 0o022 != 0 {
        return Err(Failure::new(format!("others may write to {}", dir.display()))
            .hint(format!("take that from them: chmod go-w {}", dir.display())));
    }
    Ok(())
}

/// Opens a file that is there to be locked, and makes it if it is not there.
pub fn lock_file(path: &Path) -> Result<File> {
    File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(path)
        .context(|| format!("cannot open {}", path.display()))
}

/// The control socket of a mounted pool.
pub fn socket_of(pool: &str) -> PathBuf {
    runtime_dir().join(format!("{pool}.sock"))
}

/// The log of a pool's server.
pub fn log_of(pool: &str) -> Result<PathBuf> {
    Ok(log_dir()?.join(format!("{pool}.log")))
}

/// Checks a pool's name: it becomes part of file names and of mount tables.
pub fn check_pool_name(name: &str) -> Result<()> {
    let wrong = |why: &str| {
        Err(Failure::usage(format!(
            "\"{}\" cannot be the name of a pool: {why}",
            crate::table::printable(name)
        ))
        .hint("a name starts with a letter and goes on with letters, digits, - _ . (at most 63 in all)"))
    };
    if name.is_empty() {
        return wrong("it is empty");
    }
    if name.len() > 63 {
        return wrong("it is too long");
    }
    if !name.starts_with(|c: char| c.is_ascii_alphabetic()) {
        return wrong("it does not start with a letter");
    }
    match name.chars().find(|c| !c.is_ascii_alphanumeric() && !"-_.".contains(*c)) {
        Some(c) => wrong(&format!("it contains {c:?}")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_pools() {
        for name in ["tank", "a", "Tank-1_b.c"] {
            check_pool_name(name).unwrap();
        }
        for name in ["", "1tank", "../x", "a/b", "a b", "a\n", "-x", ".", "täst", &"x".repeat(64)] {
            assert_eq!(check_pool_name(name).unwrap_err().exit_status(), 2, "{name}");
        }
    }

    #[test]
    fn somebody_elses_directory_is_refused() {
        if !is_root() {
            assert!(make_private(Path::new("/usr")).is_err());
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let theirs = dir.path().join("theirs");
        fs::create_dir(&theirs).unwrap();
        std::os::unix::fs::chown(&theirs, Some(12_345), None).unwrap();
        assert!(make_private(&theirs).unwrap_err().to_string().contains("12345"));
    }

    #[test]
    fn a_directory_that_others_may_write_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        for (mode, fine) in [(0o700, true), (0o755, true), (0o770, false), (0o1777, false)] {
            fs::set_permissions(dir.path(), fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(make_private(dir.path()).is_ok(), fine, "{mode:o}");
        }
    }
}
