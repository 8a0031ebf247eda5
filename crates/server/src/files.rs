//! Directories of this program's own small files: the pool cache, control sockets and logs.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use pagefold_engine::walk::{self, ReachedDir, WalkError};
use pagefold_lazy::Token;
use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;

use crate::failure::{Context, Failure, Result};

/// Environment variable that moves the state directory, for tests and unusual set-ups.
pub(crate) const STATE_VARIABLE: &str = "PAGEFOLD_STATE_DIR";
/// Environment variable that moves the directory of control sockets.
pub(crate) const RUNTIME_VARIABLE: &str = "PAGEFOLD_RUNTIME_DIR";
/// Environment variable that moves the directory of logs.
pub(crate) const LOG_VARIABLE: &str = "PAGEFOLD_LOG_DIR";

/// Returns true if we act for the system (as root), false if for one user.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn variable(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// Returns the directory of the pool cache: `/var/lib/pagefold`, or `$XDG_STATE_HOME/pagefold`.
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

/// Returns the directory of control sockets: `/run/pagefold`, or `$XDG_RUNTIME_DIR/pagefold`.
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

/// Returns the directory of the logs of servers in the background: `/var/log/pagefold`, or the state directory.
pub fn log_dir() -> Result<PathBuf> {
    match variable(LOG_VARIABLE) {
        Some(dir) => Ok(dir),
        None if is_root() => Ok("/var/log/pagefold".into()),
        None => state_dir(),
    }
}

/// Makes a directory of ours (mode 0700). Refuses one that belongs to another user (in `/tmp` anybody could have made
/// it first), or that others may write to: they could put their socket in the place of ours. Links that others may have
/// made are not followed.
pub fn make_private(dir: &Path) -> Result<()> {
    let place = walk::make(dir, true).map_err(|error| cannot("create", dir, &error))?;
    check_private(dir, &place)
}

/// Returns true if the directory exists. Refuses it as [`make_private`] does: readers must not believe what others have
/// put there, either.
pub fn is_private(dir: &Path) -> Result<bool> {
    match walk::reach(dir) {
        Ok(place) => check_private(dir, &place).map(|()| true),
        Err(error) if error.errno() == Errno::NOENT => Ok(false),
        Err(error) => Err(cannot("look at", dir, &error)),
    }
}

fn cannot(what: &str, dir: &Path, error: &WalkError) -> Failure {
    match error {
        WalkError::Planted(link) => Failure::new(format!(
            "cannot {what} {}: {} is a link that others may have made",
            dir.display(),
            link.display()
        ))
        .hint("remove it, or set XDG_RUNTIME_DIR to a directory of yours"),
        other => {
            Failure::new(format!("cannot {what} {}: {}", dir.display(), std::io::Error::from(other.errno())))
        }
    }
}

fn check_private(dir: &Path, place: &ReachedDir) -> Result<()> {
    let found = rustix::fs::fstat(place).context(|| format!("cannot look at {}", dir.display()))?;
    let owner = found.st_uid;
    let own = rustix::process::geteuid().as_raw();
    if owner != own {
        return Err(Failure::new(format!("{} belongs to user {owner}, not to you ({own})", dir.display()))
            .hint("remove it, or set XDG_RUNTIME_DIR to a directory of yours"));
    }
    if found.st_mode & 0o022 != 0 {
        return Err(Failure::new(format!("others may write to {}", dir.display()))
            .hint(format!("take that from them: chmod go-w {}", dir.display())));
    }
    Ok(())
}

/// Opens a file that is used as a lock, and makes it if it does not exist.
pub fn lock_file(path: &Path) -> Result<File> {
    own_file(path, OFlags::WRONLY)
}

/// Opens a file of ours for appending, and makes it if it does not exist.
pub fn log_file(path: &Path) -> Result<File> {
    own_file(path, OFlags::WRONLY | OFlags::APPEND)
}

/// Opens a regular file; if it does not exist, makes it for our user alone. Nothing else that somebody may have put
/// there is opened: links are not followed, and opening a FIFO does not wait.
fn own_file(path: &Path, flags: OFlags) -> Result<File> {
    let opening = || format!("cannot open {}", path.display());
    let flags =
        flags | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR).context(opening)?);
    if !file.metadata().context(opening)?.is_file() {
        return Err(Failure::new(format!("{}: it is no file", opening())).hint("remove it"));
    }
    Ok(file)
}

/// Locks the file at `path`, and waits for others that have it. It is locked until the returned file is dropped.
pub fn locked(path: &Path) -> Result<File> {
    let file = lock_file(path)?;
    let taken = rustix::io::retry_on_intr(|| flock(&file, FlockOperation::LockExclusive));
    taken.context(|| format!("cannot lock {}", path.display()))?;
    Ok(file)
}

/// Locks the file at `path` as [`locked`] does, but does not wait: returns `None` if another process has it.
pub fn try_locked(path: &Path) -> Result<Option<File>> {
    let file = lock_file(path)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(file)),
        Err(Errno::WOULDBLOCK) => Ok(None),
        Err(errno) => Err(errno).context(|| format!("cannot lock {}", path.display())),
    }
}

/// Replaces a small file of ours as a whole or not at all, also if the power fails. The caller keeps others from doing
/// the same.
pub fn replace(path: &Path, bytes: &[u8]) -> Result<()> {
    let writing = || format!("cannot write {}", path.display());
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    let new = PathBuf::from(new);
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error).context(writing),
        _ => {}
    }
    let mut file = own_file(&new, OFlags::WRONLY)?;
    file.write_all(bytes).and_then(|()| file.sync_all()).context(writing)?;
    fs::rename(&new, path).context(writing)?;
    let folder = path.parent().unwrap_or(Path::new("/"));
    File::open(folder).and_then(|folder| folder.sync_all()).context(writing)
}

/// Returns the path of the control socket of a mounted pool.
pub(crate) fn socket_of(pool: &str) -> PathBuf {
    runtime_dir().join(format!("{pool}.sock"))
}

/// Extension of the sockets of these processes. Sockets of pools' servers have the pool's name and end in `sock`.
pub const READER_EXTENSION: &str = "reader";

/// Returns the path of the socket of the process that reads a backup for datasets.
pub fn reader_socket_of(token: Token) -> PathBuf {
    runtime_dir().join(format!("backup-{token}.{READER_EXTENSION}"))
}

/// Returns the path of the log of a pool's server.
pub fn log_of(pool: &str) -> Result<PathBuf> {
    Ok(log_dir()?.join(format!("{pool}.log")))
}

/// Checks a pool's name, which becomes part of file names and mount tables.
pub fn check_pool_name(name: &str) -> Result<()> {
    let wrong = |why: &str| {
        Err(Failure::usage(format!(
            "\"{}\" cannot be the name of a pool: {why}",
            crate::raw::printable(name)
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
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn nothing_but_a_file_is_opened_as_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        lock_file(&path("lock")).unwrap();
        symlink(path("target"), path("link")).unwrap();
        assert!(lock_file(&path("link")).is_err() && log_file(&path("link")).is_err());
        assert!(!path("target").exists());
        rustix::fs::mknodat(rustix::fs::CWD, path("fifo"), rustix::fs::FileType::Fifo, Mode::RUSR, 0)
            .unwrap();
        assert!(lock_file(&path("fifo")).is_err() && log_file(&path("fifo")).is_err());
        assert!(lock_file(Path::new("/dev/null")).unwrap_err().to_string().contains("no file"));
    }

    #[test]
    fn a_link_of_somebody_elses_leads_nowhere() {
        if !is_root() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let (sticky, mine) = (dir.path().join("tmp"), dir.path().join("mine"));
        fs::create_dir(&sticky).unwrap();
        fs::create_dir(&mine).unwrap();
        fs::set_permissions(&sticky, std::os::unix::fs::PermissionsExt::from_mode(0o1777)).unwrap();
        symlink(&mine, sticky.join("pagefold-0")).unwrap();
        std::os::unix::fs::lchown(sticky.join("pagefold-0"), Some(12_345), None).unwrap();
        for refused in
            [make_private(&sticky.join("pagefold-0")), is_private(&sticky.join("pagefold-0")).map(drop)]
        {
            assert!(refused.unwrap_err().to_string().contains("a link that others may have made"));
        }
        assert!(!is_private(&sticky.join("none")).unwrap());
        make_private(&sticky.join("own")).unwrap();
        assert!(is_private(&sticky.join("own")).unwrap());
    }

    #[test]
    fn a_file_is_replaced_as_a_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.b");
        for text in ["longer than the next", "short", ""] {
            replace(&path, text.as_bytes()).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
            assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        }
        fs::create_dir(dir.path().join("a.b.new")).unwrap();
        assert!(replace(&path, b"x").unwrap_err().to_string().contains("cannot write"));
        assert_eq!(fs::read(&path).unwrap(), b"");
    }

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
