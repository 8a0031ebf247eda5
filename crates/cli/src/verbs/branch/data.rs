//! Data directories: finds them in a dataset, and opens files in one without leaving the mount.
//!
//! Whoever owns a data directory may have put links into it, and we are root. So everything in it is opened below the
//! mount's root, through no link and into no other mount.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use pagefold_engine::walk;
use pagefold_server::failure::{Context, Failure, Result};
use pagefold_server::names::Name;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use rustix::path::Arg;

use super::record::Product;
use crate::table::printable;

/// Largest depth below the dataset's root at which data directories are searched.
const DEPTH_MAX: usize = 6;
/// Largest number of directories that are searched.
const DIRECTORIES_MAX: usize = 20_000;
/// Flags for paths that go through no link, into no other mount, and not above where they begin.
const INSIDE: ResolveFlags =
    ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_XDEV);
/// Flags as in `INSIDE`, except that links are followed that do not lead out.
const WITHIN: ResolveFlags =
    ResolveFlags::BENEATH.union(ResolveFlags::NO_MAGICLINKS).union(ResolveFlags::NO_XDEV);

/// Largest number of attempts to open a path.
const ATTEMPTS_MAX: u32 = 10_000;

/// Opens a path as `resolve` allows. The kernel refuses a path with `..` in it, or a link to such a path, whenever
/// anything is renamed or mounted on this machine meanwhile, and says that it is to be tried again.
fn open_at(
    dir: impl AsFd,
    path: impl Arg + Copy,
    flags: OFlags,
    mode: Mode,
    resolve: ResolveFlags,
) -> Result<OwnedFd, Errno> {
    for _ in 1..ATTEMPTS_MAX {
        match rustix::fs::openat2(&dir, path, flags, mode, resolve) {
            Err(Errno::AGAIN | Errno::INTR) => std::thread::yield_now(),
            opened => return opened,
        }
    }
    rustix::fs::openat2(dir, path, flags, mode, resolve)
}

/// A data directory of a database, below a mount.
#[derive(Debug)]
pub struct DataDir {
    /// The directory itself.
    pub path: PathBuf,
    /// Device and inode number.
    pub identity: (u64, u64),
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Root of the mount; `relative` is the directory's path from there.
    root: OwnedFd,
    relative: String,
    fd: OwnedFd,
}

/// Opens the root of a mount; no link leads to it that somebody else could have made.
fn open_root(mount: &Path) -> Result<OwnedFd> {
    let opening = || format!("cannot open {}", printable(&pagefold_server::raw::text(mount)));
    Ok(walk::reach(mount).and_then(|place| place.open()).context(opening)?.into())
}

impl DataDir {
    /// Opens the data directory at `relative` below the mount's root.
    ///
    /// Errors: there is no directory, or a link leads to it.
    pub fn open(mount: &Path, relative: &str) -> Result<Self> {
        let path = if relative == "." { mount.to_owned() } else { mount.join(relative) };
        let opening =
            || format!("cannot open the data directory {}", printable(&pagefold_server::raw::text(&path)));
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::RDONLY;
        let root = open_root(mount)?;
        let fd = open_at(&root, relative, flags, Mode::empty(), INSIDE).map_err(|error| {
            let failure = Failure::new(format!("{}: {error}", opening()));
            match error {
                Errno::LOOP | Errno::XDEV => failure.hint("links on the way to it are not followed"),
                _ => failure.hint("name it from the dataset's root on: --data DIR"),
            }
        })?;
        let found = rustix::fs::fstat(&fd).context(opening)?;
        let (uid, gid) = (found.st_uid, found.st_gid);
        let relative = relative.to_owned();
        Ok(Self { path, identity: (found.st_dev, found.st_ino), uid, gid, root, relative, fd })
    }

    fn open_file(&self, name: &str) -> Result<Option<File>> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        match open_at(&self.fd, name, flags, Mode::empty(), INSIDE) {
            Ok(fd) => Ok(Some(File::from(fd))),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
            Err(error) => Err(Failure::new(format!("cannot open {}: {error}", self.shown(name)))),
        }
    }

    /// Returns the first `max` bytes of a file; `None` if there is no such file.
    pub fn read(&self, name: &str, max: u64) -> Result<Option<Vec<u8>>> {
        let Some(file) = self.open_file(name)? else { return Ok(None) };
        let mut bytes = Vec::new();
        file.take(max).read_to_end(&mut bytes).context(|| format!("cannot read {}", self.shown(name)))?;
        Ok(Some(bytes))
    }

    /// Connects to a socket in the directory; its server has to answer within `patience`.
    pub fn connect(&self, name: &str, patience: Duration) -> io::Result<UnixStream> {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let found = open_at(&self.fd, name, flags, Mode::empty(), INSIDE)?;
        let address = SocketAddrUnix::new(format!("/proc/self/fd/{}", found.as_raw_fd()))?;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        // The timeouts come before the connect: the listener may accept nothing.
        let stream = UnixStream::from(socket);
        stream.set_write_timeout(Some(patience))?;
        stream.set_read_timeout(Some(patience))?;
        connect(&stream, &address)?;
        Ok(stream)
    }

    /// Returns true if there is a regular file of this name.
    pub fn has_file(&self, name: &str) -> bool {
        kind_of(&self.fd, name) == Some(FileType::RegularFile)
    }

    /// Returns true if there is a directory of this name.
    pub fn has_dir(&self, name: &str) -> bool {
        kind_of(&self.fd, name) == Some(FileType::Directory)
    }

    /// Removes a file, if it is there.
    pub fn remove_file(&self, name: &str) -> Result<()> {
        match rustix::fs::unlinkat(&self.fd, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(Failure::new(format!("cannot remove {}: {error}", self.shown(name)))),
        }
    }

    /// Writes a file that only its owner can use, in place of any other of this name. It is there as a whole or not at
    /// all, and durable.
    pub fn write_file(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let writing = || format!("cannot write {}", self.shown(name));
        let new = format!("{name}.pagefold-new");
        self.remove_file(&new)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        let fd = open_at(&self.fd, &new, flags, mode, INSIDE).context(writing)?;
        let owner = (rustix::fs::Uid::from_raw(self.uid), rustix::fs::Gid::from_raw(self.gid));
        rustix::fs::fchown(&fd, Some(owner.0), Some(owner.1)).context(writing)?;
        let mut file = File::from(fd);
        file.write_all(bytes).and_then(|()| file.sync_all()).context(writing)?;
        self.rename_file(&new, name)?;
        rustix::fs::fsync(&self.fd).context(writing)
    }

    /// Renames a file in the directory.
    pub fn rename_file(&self, from: &str, to: &str) -> Result<()> {
        rustix::fs::renameat(&self.fd, from, &self.fd, to)
            .context(|| format!("cannot rename {}", self.shown(from)))
    }

    /// Removes what a directory in it holds: files, and directories of files.
    pub fn clear_dir(&self, name: &str) -> Result<()> {
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        let failed = |error: Errno| Failure::new(format!("cannot clear {}: {error}", self.shown(name)));
        let dir = match open_at(&self.fd, name, flags, Mode::empty(), INSIDE) {
            Ok(dir) => dir,
            Err(Errno::NOENT) => return Ok(()),
            Err(error) => return Err(failed(error)),
        };
        for (entry, is_dir) in entries(&dir).map_err(failed)? {
            if !is_dir {
                rustix::fs::unlinkat(&dir, &entry, AtFlags::empty()).map_err(failed)?;
                continue;
            }
            let inner = open_at(&dir, &entry, flags, Mode::empty(), INSIDE).map_err(failed)?;
            for (file, _) in entries(&inner).map_err(failed)? {
                rustix::fs::unlinkat(&inner, &file, AtFlags::empty()).map_err(failed)?;
            }
            rustix::fs::unlinkat(&dir, &entry, AtFlags::REMOVEDIR).map_err(failed)?;
        }
        Ok(())
    }

    /// Makes a directory in it that only its owner can use, if it is not there.
    pub fn make_dir(&self, name: &str) -> Result<()> {
        let making = || format!("cannot make {}", self.shown(name));
        match rustix::fs::mkdirat(&self.fd, name, Mode::RWXU) {
            Ok(()) => {}
            Err(Errno::EXIST) => return Ok(()),
            Err(error) => return Err(Failure::new(format!("{}: {error}", making()))),
        }
        // The directory around it belongs to somebody else: the new one is opened and checked before it is given away,
        // since another may be in its place.
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        let dir = open_at(&self.fd, name, flags, Mode::empty(), INSIDE).context(making)?;
        let found = rustix::fs::fstat(&dir).context(making)?;
        if found.st_uid != rustix::process::geteuid().as_raw() || !entries(&dir).context(making)?.is_empty() {
            return Err(Failure::new(format!("{}: somebody has changed it meanwhile", making())));
        }
        let owner = (rustix::fs::Uid::from_raw(self.uid), rustix::fs::Gid::from_raw(self.gid));
        rustix::fs::fchown(&dir, Some(owner.0), Some(owner.1)).context(making)
    }

    /// Opens the entry `name`; links that stay within the mount are followed.
    fn open_within(&self, name: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
        let path = if self.relative == "." { name.to_owned() } else { format!("{}/{name}", self.relative) };
        open_at(&self.root, &path, flags | OFlags::CLOEXEC, Mode::empty(), WITHIN)
    }

    /// Returns the names in a directory of it (`.` for itself), sorted. A link is followed if it leads to a place in
    /// the mount.
    pub fn names(&self, dir: &str) -> Result<Vec<String>> {
        let reading = || format!("cannot list {}", self.shown(dir));
        let opened = match self.open_within(dir, OFlags::RDONLY | OFlags::DIRECTORY) {
            Err(Errno::NOENT) => return Ok(Vec::new()),
            opened => opened.context(reading)?,
        };
        let found = entries(&opened).context(reading)?;
        let mut names: Vec<String> =
            found.into_iter().map(|(name, _)| name.to_string_lossy().into_owned()).collect();
        names.sort();
        Ok(names)
    }

    /// Fails if `name` is a link that leads out of the mount: a server would write there, outside of the branch.
    pub fn check_stays(&self, name: &str) -> Result<()> {
        if kind_of(&self.fd, name) != Some(FileType::Symlink) {
            return Ok(());
        }
        match self.open_within(name, OFlags::PATH) {
            Ok(_) => return Ok(()),
            // It leads out, or nowhere.
            Err(Errno::XDEV | Errno::LOOP | Errno::NOENT | Errno::NOTDIR) => {}
            Err(error) => {
                return Err(Failure::new(format!("cannot follow the link {}: {error}", self.shown(name)))
                    .hint("try again"));
            }
        }
        let target = rustix::fs::readlinkat(&self.fd, name, Vec::new()).unwrap_or_default();
        Err(Failure::new(format!(
            "{} is a link to {}, which is not in the branch",
            self.shown(name),
            printable(&pagefold_server::raw::text_of(target.to_bytes()))
        ))
        .hint(
            "a server on the branch would write into what it is a copy of; a database that is to be branched has all it writes to in one dataset, and links in it are relative",
        ))
    }

    /// Returns the path of a name in it, in a form for messages.
    pub fn shown(&self, name: &str) -> String {
        printable(&pagefold_server::raw::text(&self.path.join(name)))
    }
}

/// Returns the type of a directory's entry; no link is followed.
fn kind_of(dir: &OwnedFd, name: &str) -> Option<FileType> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let found = open_at(dir, name, flags, Mode::empty(), INSIDE).ok()?;
    Some(FileType::from_raw_mode(rustix::fs::fstat(found).ok()?.st_mode))
}

/// Returns the entries of a directory other than `.` and `..`; true stands for directories.
fn entries(dir: &OwnedFd) -> Result<Vec<(std::ffi::CString, bool)>, Errno> {
    let mut all = Vec::new();
    for entry in rustix::fs::Dir::read_from(dir)? {
        let entry = entry?;
        if entry.file_name() != c"." && entry.file_name() != c".." {
            all.push((entry.file_name().to_owned(), entry.file_type() == rustix::fs::FileType::Directory));
        }
    }
    Ok(all)
}

/// A data directory that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Product whose data it is.
    pub product: Product,
    /// Path relative to the dataset's root; `.` for the root.
    pub relative: String,
}

/// Returns the data directory of a mounted dataset: the one that `wanted` names, or the only one.
///
/// Errors: there is none, or there are several.
pub fn choose(name: &Name, mount: &Path, wanted: Option<&str>) -> Result<Found> {
    if let Some(wanted) = wanted {
        let relative = normal(wanted)?;
        let dir = DataDir::open(mount, &relative)?;
        return match product_of(&dir.fd, &dir.path)? {
            Some(product) => Ok(Found { product, relative }),
            None => Err(none_in(&format!("{name}, in {}", printable(wanted)))),
        };
    }
    let found = find(mount)?;
    match found.as_slice() {
        [one] => Ok(one.clone()),
        [] => Err(none_in(&name.to_string()).hint("name it from the dataset's root on: --data DIR")),
        several => {
            let names: Vec<String> = several.iter().map(|found| printable(&found.relative)).collect();
            Err(Failure::new(format!("{name} has {} databases: {}", names.len(), names.join(", ")))
                .hint(format!("say which: --data {}", names[0])))
        }
    }
}

fn none_in(what: &str) -> Failure {
    Failure::new(format!(
        "there is no database in {what}: neither PostgreSQL's PG_VERSION nor MariaDB's ibdata1"
    ))
}

/// Normalises a path relative to the dataset's root.
pub fn normal(text: &str) -> Result<String> {
    let mut parts = Vec::new();
    for part in Path::new(text).components() {
        match part {
            Component::Normal(part) => parts.push(part.to_string_lossy().into_owned()),
            Component::CurDir | Component::RootDir => {}
            Component::ParentDir | Component::Prefix(_) => {
                return Err(Failure::usage(format!("\"{}\" does not lie in the dataset", printable(text)))
                    .hint("--data is a path from the dataset's root on, without .."));
            }
        }
    }
    Ok(if parts.is_empty() { ".".into() } else { parts.join("/") })
}

/// Returns all data directories below a mount's root, those nearest to it first.
pub fn find(mount: &Path) -> Result<Vec<Found>> {
    let root = open_root(mount)?;
    let mut found = Vec::new();
    let mut queue = VecDeque::from([(String::from("."), 0)]);
    let mut looked_at = 0;
    while let Some((relative, depth)) = queue.pop_front() {
        let path = if relative == "." { mount.to_owned() } else { mount.join(&relative) };
        let listing = || format!("cannot list {}", printable(&pagefold_server::raw::text(&path)));
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = match open_at(&root, relative.as_str(), flags, Mode::empty(), INSIDE) {
            Ok(dir) => dir,
            // Another mount lies there, or somebody has just put something else there.
            Err(Errno::XDEV | Errno::LOOP | Errno::NOENT | Errno::NOTDIR) => continue,
            Err(error) => return Err(error).context(listing),
        };
        if let Some(product) = product_of(&dir, &path)? {
            found.push(Found { product, relative });
            continue;
        }
        looked_at += 1;
        if depth == DEPTH_MAX || looked_at > DIRECTORIES_MAX {
            continue;
        }
        let named = |name: std::ffi::CString| name.into_string().ok();
        let mut below: Vec<String> = entries(&dir)
            .context(listing)?
            .into_iter()
            .filter_map(|(name, is_dir)| named(name).filter(|_| is_dir))
            .map(|name| if relative == "." { name } else { format!("{relative}/{name}") })
            .collect();
        below.sort();
        queue.extend(below.into_iter().map(|path| (path, depth + 1)));
    }
    Ok(found)
}

/// Returns the product whose data directory this is, if it is one.
fn product_of(dir: &OwnedFd, path: &Path) -> Result<Option<Product>> {
    let is_file = |name: &str| kind_of(dir, name) == Some(FileType::RegularFile);
    if is_file("PG_VERSION") && is_file("global/pg_control") {
        return Ok(Some(Product::PostgreSql));
    }
    if !is_file("ibdata1") {
        return Ok(None);
    }
    if is_file("mysql.ibd") {
        let path = printable(&pagefold_server::raw::text(path));
        return Err(Failure::new(format!("{path} is a data directory of MySQL"))
            .hint("branches are of PostgreSQL and MariaDB; others: pagefold snapshot, clone, mount"));
    }
    Ok(Some(Product::MariaDb))
}

/// Removes the directory that a branch was mounted on, if it is there. No link on the way is followed that somebody
/// else could have made.
pub fn remove_dir(dir: &Path) -> std::io::Result<()> {
    let (parent, name) = match walk::reach_parent(dir) {
        Err(error) if error.errno() == Errno::NOENT => return Ok(()),
        reached => reached?,
    };
    match rustix::fs::unlinkat(&parent, &name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn touch(dir: &Path, names: &[&str]) {
        for name in names {
            let path = dir.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "x").unwrap();
        }
    }

    fn name() -> Name {
        Name::parse("tank/db").unwrap()
    }

    #[test]
    fn the_only_database_is_found_wherever_it_lies() {
        let dir = tempfile::tempdir().unwrap();
        let (none, what) = (choose(&name(), dir.path(), None), "no database in tank/db");
        assert!(none.unwrap_err().to_string().contains(what));
        touch(dir.path(), &["15/main/PG_VERSION", "15/main/global/pg_control", "15/main/base/1/PG_VERSION"]);
        let found = choose(&name(), dir.path(), None).unwrap();
        assert_eq!(found, Found { product: Product::PostgreSql, relative: "15/main".into() });
        touch(dir.path(), &["maria/ibdata1"]);
        let failure = choose(&name(), dir.path(), None).unwrap_err().to_string();
        assert!(failure.contains("2 databases: maria, 15/main") && failure.contains("--data"), "{failure}");
        assert_eq!(choose(&name(), dir.path(), Some("/maria/")).unwrap().product, Product::MariaDb);
        assert!(choose(&name(), dir.path(), Some("15")).is_err());
        assert_eq!(choose(&name(), dir.path(), Some("../x")).unwrap_err().exit_status(), 2);
    }

    #[test]
    fn the_root_may_be_one() {
        let dir = tempfile::tempdir().unwrap();
        touch(dir.path(), &["PG_VERSION", "global/pg_control"]);
        assert_eq!(choose(&name(), dir.path(), None).unwrap().relative, ".");
        assert_eq!(DataDir::open(dir.path(), ".").unwrap().path, dir.path());
    }

    #[test]
    fn links_are_not_followed_and_those_that_lead_out_are_told() {
        let (dir, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        touch(dir.path(), &["data/file", "data/wal/x"]);
        touch(outside.path(), &["secret"]);
        let link = |to: &Path, name: &str| std::os::unix::fs::symlink(to, dir.path().join(name)).unwrap();
        link(outside.path(), "data/out");
        link(Path::new("wal"), "data/in");
        link(Path::new("nowhere"), "data/broken");
        link(Path::new("data"), "link");
        link(&outside.path().join("secret"), "data/stolen");
        let data = DataDir::open(dir.path(), "data").unwrap();
        assert_eq!(data.read("file", 9).unwrap().unwrap(), b"x");
        assert_eq!(data.read("none", 9).unwrap(), None);
        assert!(data.read("stolen", 9).is_err() && data.read("out/secret", 9).is_err());
        assert!(DataDir::open(dir.path(), "link").is_err());
        assert!(DataDir::open(dir.path(), "data/../..").is_err());
        data.check_stays("in").unwrap();
        data.check_stays("wal").unwrap();
        for name in ["out", "broken"] {
            assert!(data.check_stays(name).unwrap_err().to_string().contains("is a link to"), "{name}");
        }
        assert!(data.clear_dir("out").is_err());
        assert!(outside.path().join("secret").exists());
    }

    #[test]
    fn links_are_followed_whatever_is_renamed_meanwhile() {
        let (dir, busy) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        touch(dir.path(), &["data/file", "space/file"]);
        std::os::unix::fs::symlink("../space", dir.path().join("data/link")).unwrap();
        touch(busy.path(), &["a"]);
        let (a, b) = (busy.path().join("a"), busy.path().join("b"));
        let data = DataDir::open(dir.path(), "data").unwrap();
        let ended = std::sync::atomic::AtomicBool::new(false);
        let outcome = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !ended.load(std::sync::atomic::Ordering::Relaxed) {
                    fs::rename(&a, &b).and_then(|()| fs::rename(&b, &a)).unwrap();
                }
            });
            let outcome = (0..20_000).try_for_each(|_| {
                data.check_stays("link")?;
                data.names("link").map(drop)
            });
            ended.store(true, std::sync::atomic::Ordering::Relaxed);
            outcome
        });
        outcome.unwrap();
    }

    #[test]
    fn a_directory_is_cleared() {
        let dir = tempfile::tempdir().unwrap();
        touch(dir.path(), &["slots/a/state", "slots/b/state", "slots/file"]);
        let data = DataDir::open(dir.path(), ".").unwrap();
        data.clear_dir("slots").unwrap();
        data.clear_dir("none").unwrap();
        assert_eq!(data.names("slots").unwrap(), Vec::<String>::new());
        assert!(data.has_dir("slots"));
    }
}
