//! Data directories: finding them in a dataset, and looking into one without leaving the mount.
//!
//! Whoever owns a data directory may have put links into it; we are root. So what is opened in it is opened below the mount's root,
//! through no link and into no other mount.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::record::Product;
use crate::failure::{Context, Failure, Result};
use crate::names::Name;
use crate::table::printable;

/// How deep below the dataset's root a data directory is looked for.
const DEPTH_MAX: usize = 6;
/// How many directories are looked at.
const DIRECTORIES_MAX: usize = 20_000;
/// Through no link, into no other mount, not above where it begins.
const INSIDE: ResolveFlags =
    ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_XDEV);

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
    mount: PathBuf,
    fd: OwnedFd,
}

impl DataDir {
    /// Opens the one at `relative` from the mount's root on.
    ///
    /// Errors: it is not a directory there, or a link leads to it.
    pub fn open(mount: &Path, relative: &str) -> Result<Self> {
        let path = if relative == "." { mount.to_owned() } else { mount.join(relative) };
        let opening = || format!("cannot open the data directory {}", printable(&path.to_string_lossy()));
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::RDONLY;
        let root = rustix::fs::open(mount, flags, Mode::empty()).context(opening)?;
        let fd = rustix::fs::openat2(&root, relative, flags, Mode::empty(), INSIDE).map_err(|error| {
            let failure = Failure::new(format!("{}: {error}", opening()));
            match error {
                Errno::LOOP | Errno::XDEV => failure.hint("links on the way to it are not followed"),
                _ => failure.hint("name it from the dataset's root on: --data DIR"),
            }
        })?;
        let found = rustix::fs::fstat(&fd).context(opening)?;
        let (uid, gid) = (found.st_uid, found.st_gid);
        Ok(Self { path, identity: (found.st_dev, found.st_ino), uid, gid, mount: mount.to_owned(), fd })
    }

    fn open_file(&self, name: &str) -> Result<Option<File>> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        match rustix::fs::openat2(&self.fd, name, flags, Mode::empty(), INSIDE) {
            Ok(fd) => Ok(Some(File::from(fd))),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
            Err(error) => Err(Failure::new(format!("cannot open {}: {error}", self.shown(name)))),
        }
    }

    /// The first `max` bytes of a file; `None` where there is no such file.
    pub fn read(&self, name: &str, max: u64) -> Result<Option<Vec<u8>>> {
        let Some(file) = self.open_file(name)? else { return Ok(None) };
        let mut bytes = Vec::new();
        file.take(max).read_to_end(&mut bytes).context(|| format!("cannot read {}", self.shown(name)))?;
        Ok(Some(bytes))
    }

    /// Whether there is a regular file of this name.
    pub fn has_file(&self, name: &str) -> bool {
        fs::symlink_metadata(self.path.join(name)).is_ok_and(|found| found.is_file())
    }

    /// Whether there is a directory of this name.
    pub fn has_dir(&self, name: &str) -> bool {
        fs::symlink_metadata(self.path.join(name)).is_ok_and(|found| found.is_dir())
    }

    /// Removes a file, if it is there.
    pub fn remove_file(&self, name: &str) -> Result<()> {
        match rustix::fs::unlinkat(&self.fd, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(Failure::new(format!("cannot remove {}: {error}", self.shown(name)))),
        }
    }

    /// Renames a file in it.
    pub fn rename_file(&self, from: &str, to: &str) -> Result<()> {
        rustix::fs::renameat(&self.fd, from, &self.fd, to)
            .context(|| format!("cannot rename {}", self.shown(from)))
    }

    /// Removes what a directory in it holds: files, and directories of files.
    pub fn clear_dir(&self, name: &str) -> Result<()> {
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        let failed = |error: Errno| Failure::new(format!("cannot clear {}: {error}", self.shown(name)));
        let dir = match rustix::fs::openat2(&self.fd, name, flags, Mode::empty(), INSIDE) {
            Ok(dir) => dir,
            Err(Errno::NOENT) => return Ok(()),
            Err(error) => return Err(failed(error)),
        };
        for (entry, is_dir) in entries(&dir).map_err(failed)? {
            if !is_dir {
                rustix::fs::unlinkat(&dir, &entry, AtFlags::empty()).map_err(failed)?;
                continue;
            }
            let inner = rustix::fs::openat2(&dir, &entry, flags, Mode::empty(), INSIDE).map_err(failed)?;
            for (file, _) in entries(&inner).map_err(failed)? {
                rustix::fs::unlinkat(&inner, &file, AtFlags::empty()).map_err(failed)?;
            }
            rustix::fs::unlinkat(&dir, &entry, AtFlags::REMOVEDIR).map_err(failed)?;
        }
        Ok(())
    }

    /// Makes a directory in it that is its owner's alone, if it is not there.
    pub fn make_dir(&self, name: &str) -> Result<()> {
        let making = || format!("cannot make {}", self.shown(name));
        match rustix::fs::mkdirat(&self.fd, name, Mode::RWXU) {
            Ok(()) => {}
            Err(Errno::EXIST) => return Ok(()),
            Err(error) => return Err(Failure::new(format!("{}: {error}", making()))),
        }
        let owner = (rustix::fs::Uid::from_raw(self.uid), rustix::fs::Gid::from_raw(self.gid));
        rustix::fs::chownat(&self.fd, name, Some(owner.0), Some(owner.1), AtFlags::SYMLINK_NOFOLLOW)
            .context(making)
    }

    /// Names in a directory of it (`.` for itself), sorted.
    pub fn names(&self, dir: &str) -> Result<Vec<String>> {
        let path = self.path.join(dir);
        let reading = || format!("cannot list {}", printable(&path.to_string_lossy()));
        let mut names = Vec::new();
        match fs::read_dir(&path) {
            Ok(found) => {
                for entry in found {
                    names.push(entry.context(reading)?.file_name().to_string_lossy().into_owned());
                }
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(Failure::new(format!("{}: {error}", reading()))),
        }
        names.sort();
        Ok(names)
    }

    /// Errors if `name` is a link that leads out of the mount: what a server writes there, it writes into what is not the branch's.
    pub fn check_stays(&self, name: &str) -> Result<()> {
        let path = self.path.join(name);
        let Ok(target) = fs::read_link(&path) else { return Ok(()) };
        let inside = fs::canonicalize(&path).is_ok_and(|real| {
            real.starts_with(&self.mount)
                && fs::metadata(&real).is_ok_and(|found| found.dev() == self.identity.0)
        });
        if inside {
            return Ok(());
        }
        Err(Failure::new(format!(
            "{} is a link to {}, which is not in the branch",
            self.shown(name),
            printable(&target.to_string_lossy())
        ))
        .hint(
            "a server on the branch would write into what it is a copy of; a database that is to be branched has all it writes to in one dataset",
        ))
    }

    /// A name in it, as people see it.
    pub fn shown(&self, name: &str) -> String {
        printable(&self.path.join(name).to_string_lossy())
    }
}

/// What a directory has, but `.` and `..`; true for directories.
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

/// A data directory that was found: whose, and where from the dataset's root on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Whose.
    pub product: Product,
    /// From the root on; `.` for the root.
    pub relative: String,
}

/// The data directory of a mounted dataset: the one that `wanted` names, or the only one.
///
/// Errors: there is none, or several.
pub fn choose(name: &Name, mount: &Path, wanted: Option<&str>) -> Result<Found> {
    if let Some(wanted) = wanted {
        let relative = normal(wanted)?;
        let dir = DataDir::open(mount, &relative)?;
        return match product_of(&dir.path)? {
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

/// A path from the root on in one form.
fn normal(text: &str) -> Result<String> {
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

/// All data directories below a mount's root, those nearest to it first.
fn find(mount: &Path) -> Result<Vec<Found>> {
    let mut found = Vec::new();
    let mut queue = VecDeque::from([(PathBuf::new(), 0)]);
    let mut looked_at = 0;
    while let Some((relative, depth)) = queue.pop_front() {
        let dir = mount.join(&relative);
        if let Some(product) = product_of(&dir)? {
            let text = relative.to_string_lossy().into_owned();
            found.push(Found { product, relative: if text.is_empty() { ".".into() } else { text } });
            continue;
        }
        looked_at += 1;
        if depth == DEPTH_MAX || looked_at > DIRECTORIES_MAX {
            continue;
        }
        let mut below: Vec<PathBuf> = fs::read_dir(&dir)
            .context(|| format!("cannot list {}", printable(&dir.to_string_lossy())))?
            .flatten()
            .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
            .map(|entry| relative.join(entry.file_name()))
            .collect();
        below.sort();
        queue.extend(below.into_iter().map(|path| (path, depth + 1)));
    }
    Ok(found)
}

/// Whose data directory this is, if anybody's.
fn product_of(dir: &Path) -> Result<Option<Product>> {
    let is_file = |name: &str| fs::symlink_metadata(dir.join(name)).is_ok_and(|found| found.is_file());
    if is_file("PG_VERSION") && is_file("global/pg_control") {
        return Ok(Some(Product::PostgreSql));
    }
    if !is_file("ibdata1") {
        return Ok(None);
    }
    if is_file("mysql.ibd") {
        let path = printable(&dir.to_string_lossy());
        return Err(Failure::new(format!("{path} is a data directory of MySQL"))
            .hint("branches are of PostgreSQL and MariaDB; others: pagefold snapshot, clone, mount"));
    }
    Ok(Some(Product::MariaDb))
}

/// A folder of programs, or `None` where the program is not in it.
pub fn program_in(folder: &Path, program: &OsStr) -> Option<PathBuf> {
    let path = folder.join(program);
    let executable = |found: fs::Metadata| found.is_file() && found.mode() & 0o111 != 0;
    fs::metadata(&path).is_ok_and(executable).then_some(path)
}

#[cfg(test)]
mod tests {
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
