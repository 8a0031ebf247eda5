//! Reads the kernel's mount table.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use pagefold_backup::Backup;

use crate::failure::{Context, Result};

/// Type of our mounts in the kernel's mount table.
pub const FS_TYPE: &str = "fuse.pagefold";

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountEntry {
    /// Number of the mount in this namespace.
    pub id: u64,
    /// Number of the mount that it lies on.
    pub parent: u64,
    /// Directory of the file system that is mounted: `/`, or another one if a directory was bound.
    pub root: PathBuf,
    /// Device number (major, minor) that stat returns for its files.
    pub device: (u32, u32),
    /// Directory where it is mounted.
    pub dir: PathBuf,
    /// Type, e.g. `fuse.pagefold`.
    pub fs_type: String,
    /// Source; for our mounts, the name of the dataset or snapshot.
    pub source: String,
    /// Options of the mount itself, as the kernel lists them, without those of the file system.
    pub options: String,
}

impl MountEntry {
    /// Returns the pool of a mount of ours.
    pub fn pool(&self) -> &str {
        pool_of(&self.source)
    }

    /// Returns true if this place has an `ro` of its own, whether its file system is read-only or not.
    pub fn is_read_only(&self) -> bool {
        self.options.split(',').any(|option| option == "ro")
    }

    /// Returns true if it shows all of its file system, and not a directory of it that was bound there.
    pub fn is_whole(&self) -> bool {
        self.root == Path::new("/")
    }

    /// Returns true if it is a mount of ours.
    pub fn is_ours(&self) -> bool {
        self.fs_type == FS_TYPE
    }
}

/// Returns the pool that the source of a mount of ours names. For a backup's mount, returns the prefix that all of
/// these have, which no pool can be called.
pub fn pool_of(source: &str) -> &str {
    if is_backup_source(source) {
        return BACKUP_SOURCE;
    }
    source.split(['/', '@']).next().unwrap_or_default()
}

/// Returns all mounts of this process's namespace, oldest first.
pub fn all() -> Result<Vec<MountEntry>> {
    let text = fs::read("/proc/self/mountinfo").context(|| "cannot read /proc/self/mountinfo".into())?;
    Ok(parse(&text))
}

/// Returns all mounts of the namespace of process `pid`, oldest first; none if they cannot be read, or the process has
/// ended.
pub fn of_process(pid: u32) -> Vec<MountEntry> {
    fs::read(format!("/proc/{pid}/mountinfo")).map(|text| parse(&text)).unwrap_or_default()
}

/// Returns the mounts of the file systems with these device numbers (0:N) in this namespace, oldest first.
pub fn of_devices(devices: &[u32]) -> Result<Vec<MountEntry>> {
    let chosen = |mount: &MountEntry| mount.device.0 == 0 && devices.contains(&mount.device.1);
    Ok(ours()?.into_iter().filter(chosen).collect())
}

/// Returns the topmost mount at `dir`, which is an absolute path without symbolic links.
pub fn topmost<'a>(all: &'a [MountEntry], dir: &Path) -> Option<&'a MountEntry> {
    all.iter().rfind(|mount| mount.dir == dir)
}

/// Returns the directories of mounts of one file system: those that show all of it come first, `own` before others.
pub(crate) fn places(mut found: Vec<MountEntry>, own: &Path) -> Vec<PathBuf> {
    found.sort_by_key(|mount| (!mount.is_whole(), mount.dir != own));
    found.into_iter().map(|mount| mount.dir).collect()
}

/// The thing that stands at a place of a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing<'a> {
    /// The file system, and nothing above it.
    Itself,
    /// This was mounted above it.
    Below(&'a MountEntry),
    /// The file system is not there any more, whatever is.
    Gone,
}

/// Returns what stands at `dir`, where the file system with this device number (0:N) was mounted.
pub(crate) fn standing<'a>(all: &'a [MountEntry], dir: &Path, device: u32) -> Standing<'a> {
    let is_it = |mount: &MountEntry| mount.dir == dir && mount.device == (0, device);
    match topmost(all, dir) {
        Some(top) if is_it(top) => Standing::Itself,
        Some(top) if all.iter().any(is_it) => Standing::Below(top),
        _ => Standing::Gone,
    }
}

fn parse(text: &[u8]) -> Vec<MountEntry> {
    text.split(|byte| *byte == b'\n').filter_map(parse_line).collect()
}

/// Returns our mounts, oldest first.
pub fn ours() -> Result<Vec<MountEntry>> {
    Ok(all()?.into_iter().filter(MountEntry::is_ours).collect())
}

/// Returns the mounts of `pool` whose server has died.
pub fn dead(pool: &str) -> Result<Vec<MountEntry>> {
    Ok(ours()?.into_iter().filter(|mount| mount.pool() == pool && is_dead(mount)).collect())
}

/// Returns true if the kernel says that a mount has no server any more. It asks with statvfs, which always reaches the
/// server: attributes may come from the kernel's cache. A request that is under way when the connection ends is
/// aborted. A server that does not answer for some seconds may live.
pub fn is_dead(mount: &MountEntry) -> bool {
    use rustix::io::Errno;
    let (dir, (tell, told)) = (mount.dir.clone(), mpsc::channel());
    // A thread that goes on waiting ends with the process.
    let asks = move || tell.send(rustix::fs::statvfs(&dir).map(drop));
    let begun = thread::Builder::new().name("asks-mount".into()).spawn(asks);
    begun.is_ok() && matches!(told.recv_timeout(PATIENCE), Ok(Err(Errno::NOTCONN | Errno::CONNABORTED)))
}

/// Longest time that a server is waited for only to learn whether it lives.
const PATIENCE: Duration = Duration::from_secs(10);

/// Parses one line: `36 35 98:0 /root /dir options optional... - type source super_options` (proc(5)).
fn parse_line(line: &[u8]) -> Option<MountEntry> {
    let mut fields = line.split(|byte| *byte == b' ');
    let mut number = || std::str::from_utf8(fields.next()?).ok()?.parse::<u64>().ok();
    let (id, parent) = (number()?, number()?);
    let device = std::str::from_utf8(fields.next()?).ok()?;
    let (major, minor) = device.split_once(':')?;
    let root = unescape(fields.next()?);
    let dir = unescape(fields.next()?);
    let options = std::str::from_utf8(fields.next()?).ok()?;
    let mut fields = fields.skip_while(|field| *field != b"-").skip(1);
    let fs_type = String::from_utf8_lossy(&unescape(fields.next()?)).into_owned();
    let source = String::from_utf8_lossy(&unescape(fields.next()?)).into_owned();
    Some(MountEntry {
        id,
        parent,
        root: OsString::from_vec(root).into(),
        device: (major.parse().ok()?, minor.parse().ok()?),
        dir: OsString::from_vec(dir).into(),
        fs_type,
        source,
        options: options.to_owned(),
    })
}

/// Decodes blanks, tabs, newlines and backslashes, which are written as `\ooo`.
pub fn unescape(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, tail)) = rest.split_first() {
        let code = (*first == b'\\')
            .then(|| tail.get(..3))
            .flatten()
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match code {
            Some(byte) => {
                bytes.push(byte);
                rest = &tail[3..];
            }
            None => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    bytes
}

/// Prefix of the source of a backup's mount in `/proc/mounts`; no pool can be called so.
pub const BACKUP_SOURCE: &str = "backup=";

/// Returns the source of a backup's mount, as `/proc/mounts` shows it.
pub fn backup_source(backup: &Backup) -> String {
    format!("{BACKUP_SOURCE}{}", backup.name())
}

/// Returns true for the source of a backup's mount.
pub fn is_backup_source(source: &str) -> bool {
    source.starts_with(BACKUP_SOURCE)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn lines_of_the_kernel() {
        let line = b"83 29 0:51 / /mnt/a\\040b rw,nosuid shared:9 master:1 - fuse.pagefold tank rw,user_id=0";
        let entry = parse_line(line).unwrap();
        assert_eq!(entry.device, (0, 51));
        assert_eq!(entry.dir, Path::new("/mnt/a b"));
        assert_eq!((entry.fs_type.as_str(), entry.source.as_str()), (FS_TYPE, "tank"));
        assert!(!entry.is_read_only());
        assert_eq!((entry.id, entry.parent, entry.root.as_path()), (83, 29, Path::new("/")));
        let line = b"1 1 8:1 / / ro,relatime - ext4 /dev/sda1 rw";
        assert!(parse_line(line).unwrap().is_read_only());
        let line = b"1 1 0:51 /pg /var/lib/pg rw,relatime - fuse.pagefold tank ro,user_id=0";
        let bound = parse_line(line).unwrap();
        assert!(!bound.is_read_only() && bound.root == Path::new("/pg"));
    }

    #[test]
    fn broken_lines_are_skipped() {
        for line in [&b""[..], b"1 2", b"1 2 x:y / / rw - a b", b"1 2 0:1 / / rw -", b"\\ \\ \\ \\"] {
            assert_eq!(parse_line(line), None);
        }
        assert_eq!(unescape(b"a\\04"), b"a\\04");
        assert_eq!(unescape(b"\\134\\"), b"\\\\");
    }

    #[test]
    fn the_topmost_is_the_last() {
        let text = b"1 0 0:50 / /m rw - fuse.pagefold tank rw\n2 1 0:51 / /m rw - fuse.pagefold vault rw\n";
        let all = parse(text);
        assert_eq!(topmost(&all, Path::new("/m")).unwrap().source, "vault");
        assert!(topmost(&all, Path::new("/m/x")).is_none());
    }

    #[test]
    fn what_took_the_place_of_a_mount_is_not_taken_for_it() {
        let line = |number: u32| format!("{number} 0 0:{number} / /m rw - fuse.pagefold tank/{number} rw\n");
        let all = parse((line(50) + &line(51)).as_bytes());
        let of = |device| standing(&all, Path::new("/m"), device);
        assert_eq!((of(51), of(50), of(49)), (Standing::Itself, Standing::Below(&all[1]), Standing::Gone));
        assert_eq!(standing(&all, Path::new("/x"), 51), Standing::Gone);
    }

    #[test]
    fn a_directory_that_was_bound_is_no_place_of_the_whole() {
        let text =
            b"1 0 0:50 /pg /pg rw - fuse.pagefold tank rw\n2 0 0:50 / /two rw - fuse.pagefold tank rw\n\
            3 0 0:50 / /one rw - fuse.pagefold tank rw\n";
        let of = |own: &str| places(parse(text), Path::new(own));
        assert_eq!(of("/one"), [Path::new("/one"), Path::new("/two"), Path::new("/pg")]);
        // The first place was taken away, and a directory of the file system bound there.
        assert_eq!(of("/pg"), [Path::new("/two"), Path::new("/one"), Path::new("/pg")]);
    }

    #[test]
    fn the_root_is_mounted() {
        assert!(all().unwrap().iter().any(|mount| mount.dir == Path::new("/")));
    }
}
