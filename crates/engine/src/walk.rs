//! Reaches directories without following a link that somebody else could have planted.
//!
//! Root mounts over directories, makes directories and opens files below directories that belong to others, such as
//! users of databases. If a path is given to the kernel as a whole, it goes where links lead, also those that were made
//! a moment ago. Here each step is taken from the descriptor of the step before, and a link is followed only if nobody
//! but root and we ourselves could have made it:
//!
//! 1. A directory is **ours** if it and all above it belong to root or to us, others may not write to it, and it lies
//!    on no FUSE file system (there, whoever runs the server says who owns what). What is below a directory of others
//!    is never ours again.
//! 2. A sticky directory (`/tmp`) is ours as far as its entries belong to root or to us, since others cannot replace
//!    these.
//! 3. A link is followed if it lies in a directory that is ours, and is an error elsewhere.
//! 4. `..` leads back to the directory from which the walk came.
//!
//! The result is an `O_PATH` descriptor: a later rename on the way does not change it.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags, Statx, StatxFlags};
use rustix::io::Errno;

/// Largest number of links on one way, as in the kernel.
const LINKS_MAX: usize = 40;
/// Mode of directories that are made: all may pass and list, less the umask.
const DIR_MODE: Mode = Mode::from_raw_mode(0o755);

/// The reason why a place was not reached.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WalkError {
    /// A link that others could have made.
    #[error(
        "{0} is a link in a directory that others may change, and is not followed; name the place that it leads to"
    )]
    Planted(PathBuf),
    /// The kernel refused a step.
    #[error("{}: {errno}", .path.display())]
    Os {
        /// Path of the step.
        path: PathBuf,
        /// The kernel's reason.
        errno: Errno,
    },
}

impl WalkError {
    fn os(path: impl Into<PathBuf>, errno: Errno) -> Self {
        Self::Os { path: path.into(), errno }
    }

    /// Returns the kernel's reason; `LOOP` for a link that is not followed.
    #[must_use]
    pub fn errno(&self) -> Errno {
        match self {
            Self::Planted(_) => Errno::LOOP,
            Self::Os { errno, .. } => *errno,
        }
    }
}

impl From<WalkError> for std::io::Error {
    fn from(error: WalkError) -> Self {
        match error {
            WalkError::Planted(_) => Self::new(std::io::ErrorKind::PermissionDenied, error.to_string()),
            WalkError::Os { errno, .. } => errno.into(),
        }
    }
}

/// The users that can change the entries of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hold {
    /// Only root and we can.
    Ours,
    /// Others can add to it, and change what belongs to them.
    Sticky,
    /// Others can.
    Others,
}

/// A directory that was reached.
#[derive(Debug)]
pub struct ReachedDir {
    fd: OwnedFd,
    path: PathBuf,
    hold: Hold,
    mount: u64,
}

impl ReachedDir {
    /// Its path without links.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the number of the mount that it lies on, or is the root of.
    #[must_use]
    pub fn mount_id(&self) -> u64 {
        self.mount
    }

    /// Returns a path to it that holds in this process as long as the place does, whatever is renamed meanwhile.
    #[must_use]
    pub fn as_path(&self) -> PathBuf {
        descriptor_path(&self.fd)
    }

    /// Returns a path to an entry of it, which holds as [`ReachedDir::as_path`] does. The entry itself may be a link,
    /// so the path is for calls that follow none.
    #[must_use]
    pub fn entry_path(&self, name: &OsStr) -> PathBuf {
        self.as_path().join(name)
    }

    /// Opens it for reading, to list it.
    ///
    /// # Errors
    /// Those of the kernel, for lack of permissions.
    pub fn open(&self) -> Result<File, WalkError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = rustix::fs::openat(&self.fd, ".", flags, Mode::empty());
        opened.map(File::from).map_err(|errno| WalkError::os(&self.path, errno))
    }

    /// Returns true if it has no entries.
    ///
    /// # Errors
    /// Those of the kernel, for lack of permissions.
    pub fn is_empty(&self) -> Result<bool, WalkError> {
        let failed = |errno| WalkError::os(&self.path, errno);
        for entry in rustix::fs::Dir::read_from(self.open()?).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            if entry.file_name() != c"." && entry.file_name() != c".." {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl AsFd for ReachedDir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Returns a path to what a descriptor of this process is open on.
#[must_use]
pub fn descriptor_path(fd: impl AsFd) -> PathBuf {
    format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd()).into()
}

/// A regular file that was reached, and that nobody but root and we can change.
#[derive(Debug)]
pub struct TrustedFile {
    /// Its path without links.
    pub path: PathBuf,
    /// Permission bits.
    pub mode: u32,
}

/// Walks to the directory at `path`, which is relative to the current one unless it is absolute.
///
/// # Errors
/// [`WalkError`] says where and why the way ends.
pub fn reach(path: &Path) -> Result<ReachedDir, WalkError> {
    PathWalk::along(path, None)?.into_place(path)
}

/// Does what [`reach`] does, and makes directories that are missing: for all to pass (less what the umask takes away),
/// or with `private` for us alone.
///
/// # Errors
/// [`WalkError`] says where and why the way ends.
pub fn make(path: &Path, private: bool) -> Result<ReachedDir, WalkError> {
    PathWalk::along(path, Some(if private { Mode::RWXU } else { DIR_MODE }))?.into_place(path)
}

/// Walks to the directory that `path` is an entry of. Returns it, and the entry's name. The entry itself is not looked
/// at.
///
/// # Errors
/// [`WalkError`]; `INVAL` if the path has no last name.
pub fn reach_parent(path: &Path) -> Result<(ReachedDir, OsString), WalkError> {
    let absolute = absolute(path)?;
    match (absolute.parent(), absolute.file_name()) {
        (Some(parent), Some(name)) => Ok((reach(parent)?, name.to_owned())),
        _ => Err(WalkError::os(path, Errno::INVAL)),
    }
}

/// Walks to the regular file at `path`, if nobody but root and we can change it or anything on the way to it.
///
/// # Errors
/// [`WalkError`]; `ACCESS` if others could, or it is no regular file; `ISDIR` for a directory.
pub fn kept_file(path: &Path) -> Result<TrustedFile, WalkError> {
    let walk = PathWalk::along(path, None)?;
    match walk.file {
        Some(file) if !others_can_write(&file.stat) && file.is_kept => {
            Ok(TrustedFile { path: file.path, mode: u32::from(file.stat.stx_mode) & 0o7777 })
        }
        Some(_) => Err(WalkError::os(path, Errno::ACCESS)),
        None => Err(WalkError::os(path, Errno::ISDIR)),
    }
}

/// Walks to whatever is at `path`. Returns a descriptor, which is open for nothing yet ([`descriptor_path`] serves to
/// open it), and its path without links.
///
/// # Errors
/// [`WalkError`] says where and why the way ends.
pub fn reach_any(path: &Path) -> Result<(OwnedFd, PathBuf), WalkError> {
    let mut walk = PathWalk::along(path, None)?;
    if let Some(FoundFile { fd, path, .. }) = walk.file {
        return Ok((fd, path));
    }
    let place = walk.steps.pop().ok_or_else(|| WalkError::os(path, Errno::INVAL))?;
    Ok((place.fd, place.path))
}

fn absolute(path: &Path) -> Result<PathBuf, WalkError> {
    std::path::absolute(path)
        .map_err(|error| WalkError::os(path, Errno::from_io_error(&error).unwrap_or(Errno::INVAL)))
}

/// A walk under way: the directories on it so far, the root first.
struct PathWalk {
    steps: Vec<ReachedDir>,
    links: usize,
    make: Option<Mode>,
    /// End of the walk, if that is no directory.
    file: Option<FoundFile>,
}

/// Something that is no directory and no link.
struct FoundFile {
    fd: OwnedFd,
    path: PathBuf,
    stat: Statx,
    /// True if nobody but root and we can replace it.
    is_kept: bool,
}

impl PathWalk {
    fn along(path: &Path, make: Option<Mode>) -> Result<Self, WalkError> {
        let mut walk = Self { steps: vec![root()?], links: 0, make, file: None };
        let mut rest = reversed(&absolute(path)?);
        while let Some(name) = rest.pop() {
            if walk.file.is_some() {
                return Err(WalkError::os(path, Errno::NOTDIR));
            }
            if name == ".." {
                if walk.steps.len() > 1 {
                    walk.steps.pop();
                }
                continue;
            }
            if let Some(target) = walk.step(&name)? {
                if target.is_absolute() {
                    walk.steps.truncate(1);
                }
                rest.append(&mut reversed(&target));
            }
        }
        Ok(walk)
    }

    fn into_place(mut self, path: &Path) -> Result<ReachedDir, WalkError> {
        match (self.file, self.steps.pop()) {
            (None, Some(place)) => Ok(place),
            _ => Err(WalkError::os(path, Errno::NOTDIR)),
        }
    }

    /// Goes to the entry `name`. If that is a link, returns its target and stays.
    fn step(&mut self, name: &OsStr) -> Result<Option<PathBuf>, WalkError> {
        let Some(here) = self.steps.last() else { return Err(WalkError::os(name, Errno::INVAL)) };
        let path = here.path.join(name);
        let failed = |errno| WalkError::os(&path, errno);
        let directory = OFlags::PATH | OFlags::NOFOLLOW | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let open = |flags| rustix::fs::openat(&here.fd, name, flags, Mode::empty());
        let mut opened = open(directory);
        if let (Err(Errno::NOENT), Some(mode)) = (&opened, self.make) {
            match rustix::fs::mkdirat(&here.fd, name, mode) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(failed(errno)),
            }
            opened = open(directory);
        }
        let (fd, is_dir) = match opened {
            Ok(fd) => (fd, true),
            Err(Errno::NOTDIR | Errno::LOOP) => {
                (open(OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC).map_err(failed)?, false)
            }
            Err(errno) => return Err(failed(errno)),
        };
        if is_dir {
            let place = place(fd, path, Some(here));
            self.steps.push(place);
            return Ok(None);
        }
        let stat = examine(&fd).map_err(failed)?;
        let is_kept = here.hold == Hold::Ours || here.hold == Hold::Sticky && is_ours(stat.stx_uid);
        if u32::from(stat.stx_mode) & libc::S_IFMT != libc::S_IFLNK {
            let is_kept = is_kept && is_ours(stat.stx_uid) && is_regular(&stat);
            self.file = Some(FoundFile { fd, path, stat, is_kept });
            return Ok(None);
        }
        if !is_kept {
            return Err(WalkError::Planted(path));
        }
        self.links += 1;
        if self.links > LINKS_MAX {
            return Err(failed(Errno::LOOP));
        }
        let target = rustix::fs::readlinkat(&fd, "", Vec::new()).map_err(failed)?;
        Ok(Some(OsString::from_vec(target.into_bytes()).into()))
    }
}

/// Returns the names on a way, the first one last. `.` is left out.
fn reversed(path: &Path) -> Vec<OsString> {
    let mut names: Vec<OsString> = path
        .components()
        .filter_map(|part| match part {
            Component::Normal(name) => Some(name.to_owned()),
            Component::ParentDir => Some("..".into()),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
        })
        .collect();
    names.reverse();
    names
}

fn root() -> Result<ReachedDir, WalkError> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let fd = rustix::fs::open("/", flags, Mode::empty()).map_err(|errno| WalkError::os("/", errno))?;
    Ok(place(fd, "/".into(), None))
}

/// Returns the attributes of an entry as the kernel knows them. The server of a file system is not asked, since it may
/// not answer.
fn examine(fd: &OwnedFd) -> Result<Statx, Errno> {
    let wanted = StatxFlags::TYPE | StatxFlags::MODE | StatxFlags::UID | StatxFlags::GID | StatxFlags::MNT_ID;
    rustix::fs::statx(fd, "", AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC, wanted)
}

/// Makes the place of a directory below another. A directory that cannot be examined, because the server of its file
/// system has died, say, is not ours.
fn place(fd: OwnedFd, path: PathBuf, above: Option<&ReachedDir>) -> ReachedDir {
    let Ok(stat) = examine(&fd) else {
        return ReachedDir { fd, path, hold: Hold::Others, mount: 0 };
    };
    let mount = stat.stx_mnt_id;
    let entered = above.is_none_or(|above| above.mount != mount);
    let hold = if above.is_some_and(|above| above.hold == Hold::Others)
        || !is_ours(stat.stx_uid)
        || entered && !is_mount_ours(mount)
    {
        Hold::Others
    } else if !others_can_write(&stat) {
        Hold::Ours
    } else if u32::from(stat.stx_mode) & libc::S_ISVTX != 0 {
        Hold::Sticky
    } else {
        Hold::Others
    };
    ReachedDir { fd, path, hold, mount }
}

fn is_ours(uid: u32) -> bool {
    uid == 0 || uid == rustix::process::geteuid().as_raw()
}

fn is_regular(stat: &Statx) -> bool {
    u32::from(stat.stx_mode) & libc::S_IFMT == libc::S_IFREG
}

/// Returns true if others than root and we can write to it. The group of root has nobody in it but root. An access
/// control list shows in the group's bits.
fn others_can_write(stat: &Statx) -> bool {
    let mode = u32::from(stat.stx_mode);
    mode & 0o002 != 0 || mode & 0o020 != 0 && stat.stx_gid != 0
}

/// Returns true if the kernel itself serves a mount. The list of mounts tells that without asking a server.
fn is_mount_ours(id: u64) -> bool {
    let list = std::fs::read("/proc/thread-self/mountinfo").unwrap_or_default();
    let id = id.to_string();
    let line = list
        .split(|byte| *byte == b'\n')
        .find(|line| line.split(|b| *b == b' ').next() == Some(id.as_bytes()));
    let fields = line.map(|line| line.split(|byte| *byte == b' ').skip_while(|field| *field != b"-"));
    let fs_type = fields.and_then(|mut fields| fields.nth(1));
    // FUSE's types are fuse, fuse.anything and fuseblk. fusectl is the kernel's.
    fs_type.is_some_and(|fs_type| fs_type == b"fusectl" || !fs_type.starts_with(b"fuse"))
}

#[cfg(test)]
mod tests;
