//! The socket of a process that reads a backup. One lock for all of these sockets makes looking who listens, removing
//! what a dead process left, and listening one step.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use pagefold_lazy::{Link, LinkError, Token};
use pagefold_server::failure::{Context, Failure, Result};
use pagefold_server::files;
use rustix::fs::{FlockOperation, Mode, OFlags, flock};

/// Name of the lock. No lock of a pool has it: those end in `.lock`.
const LOCK: &str = "backup-readers";
/// Time that a process which listens and does not greet gets to end.
const ENDING: Duration = Duration::from_secs(5);
/// Pause between two looks at it.
const LOOK: Duration = Duration::from_millis(50);

/// The lock, which is opened before this process gives up the right to open it.
pub struct Lock(File);

/// Holds the lock until it is dropped.
struct Locked<'a>(&'a Lock);

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        // The lock ends with the process at the latest.
        let _ = flock(&self.0.0, FlockOperation::Unlock);
    }
}

impl Lock {
    /// Opens the lock.
    pub fn open() -> Result<Self> {
        let folder = files::runtime_dir();
        files::make_private(&folder)?;
        files::lock_file(&folder.join(LOCK)).map(Self)
    }

    fn take(&self) -> Result<Locked<'_>> {
        let taken = rustix::io::retry_on_intr(|| flock(&self.0, FlockOperation::LockExclusive));
        taken.context(|| "cannot lock the sockets of processes that read backups".into())?;
        Ok(Locked(self))
    }
}

/// A socket at which this process listens; it is removed when this is dropped.
pub struct Socket {
    path: PathBuf,
    /// The socket itself: another process may listen under the same name later. As long as this is open, no other
    /// file gets its number.
    itself: File,
    lock: Lock,
}

impl Socket {
    /// Listens at `path` for clients that want the backup with this token. A socket that was left by a dead process is
    /// removed.
    ///
    /// # Errors
    /// If another process that lives listens there.
    pub fn listen(path: &Path, token: Token, lock: Lock) -> Result<(UnixListener, Self)> {
        let doing = || format!("cannot listen at {}", path.display());
        let deadline = Instant::now() + ENDING;
        let locked = loop {
            let locked = lock.take()?;
            match Link::open(path.to_owned(), token) {
                Err(LinkError::Nobody(error)) if is_nobody(error.kind()) => break locked,
                // It is ending, and needs the lock for that.
                Err(LinkError::Nobody(_)) if Instant::now() < deadline => drop(locked),
                _ => {
                    let what = format!("{}: another process reads this backup already", doing());
                    return Err(Failure::new(what));
                }
            }
            thread::sleep(LOOK);
        };
        match fs::remove_file(path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(Failure::new(format!("{}: {error}", doing())));
            }
            _ => {}
        }
        let listener = UnixListener::bind(path).context(doing)?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).context(doing)?;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let itself = rustix::fs::open(path, flags, Mode::empty()).context(doing)?;
        drop(locked);
        Ok((listener, Self { path: path.to_owned(), itself: itself.into(), lock }))
    }

    /// Removes the socket, unless it is another process's by now.
    pub fn remove(&self) {
        // If it cannot be removed, the next process that listens there removes it.
        let Ok(_locked) = self.lock.take() else { return };
        let (found, own) = (fs::symlink_metadata(&self.path), self.itself.metadata());
        if let (Ok(found), Ok(own)) = (found, own)
            && (found.dev(), found.ino()) == (own.dev(), own.ino())
        {
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.remove();
    }
}

/// Returns true for errors of connecting to a socket at which no process listens.
fn is_nobody(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::NotFound | ErrorKind::ConnectionRefused)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    fn lock(folder: &Path) -> Lock {
        Lock(File::create(folder.join(LOCK)).unwrap())
    }

    #[test]
    fn of_a_socket_only_its_own_process_removes_it() {
        let folder = tempfile::tempdir().unwrap();
        let (path, token) = (folder.path().join("s"), Token([1; 16]));
        // A dead process left one.
        drop(UnixListener::bind(&path).unwrap());
        let (listener, first) = Socket::listen(&path, token, lock(folder.path())).unwrap();
        drop(listener);
        let (_listener, second) = Socket::listen(&path, token, lock(folder.path())).unwrap();
        drop(first);
        assert!(UnixStream::connect(&path).is_ok(), "it is the second one's");
        drop(second);
        assert!(!path.exists());
    }

    #[test]
    fn whoever_ends_is_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let (path, token) = (folder.path().join("s"), Token([1; 16]));
        let (listener, ending) = Socket::listen(&path, token, lock(folder.path())).unwrap();
        let ends = thread::spawn(move || {
            // It closes a connection, which nobody has greeted, and then its socket.
            drop(listener.accept().unwrap());
            drop((listener, ending));
        });
        let (_listener, _socket) = Socket::listen(&path, token, lock(folder.path())).unwrap();
        ends.join().unwrap();
        assert!(UnixStream::connect(&path).is_ok());
    }
}
