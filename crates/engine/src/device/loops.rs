//! Loop devices and their files: two names of the same bytes, of which the kernel locks each by itself.

use std::fs::{self, File, Metadata};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags, major, minor};
use rustix::io::Errno;

use super::lock;
use super::mode::OpenMode;
use crate::{Error, Result};

/// Directory in which the kernel describes block devices by their numbers.
pub(crate) const SYS: &str = "/sys/dev/block";
/// The same by their names.
const BY_NAME: &str = "/sys/block";

/// Returns the path of the file that a loop device shows from its first byte to its last. `device` is the directory in
/// which the kernel describes it.
pub(crate) fn file_of_loop(device: &Path) -> Option<PathBuf> {
    let read = |name: &str| fs::read_to_string(device.join("loop").join(name)).ok();
    let file = read("backing_file")?;
    let whole = read("offset")?.trim() == "0" && read("sizelimit")?.trim() == "0";
    whole.then(|| file.trim_end_matches('\n').into())
}

/// Returns an error if somebody uses the same bytes by another name: a loop device on this file, the file of this loop
/// device, or another loop device on that. Nothing keeps the other name from being used later, where it is looked at in
/// the same way.
///
/// # Errors
/// [`Error::Busy`].
pub(super) fn check_other_names(path: &Path, meta: &Metadata, mode: OpenMode) -> Result<()> {
    if mode == OpenMode::Unlocked {
        return Ok(());
    }
    if !meta.file_type().is_block_device() {
        return check_loops_on(path, meta, None, mode);
    }
    let number = (major(meta.rdev()), minor(meta.rdev()));
    let own = Path::new(SYS).join(format!("{}:{}", number.0, number.1));
    let Some(below) = file_of_loop(&own) else { return Ok(()) };
    let (Ok(file), Ok(meta)) = (File::open(&below), fs::metadata(&below)) else { return Ok(()) };
    let operation = match mode {
        OpenMode::ReadWrite => FlockOperation::NonBlockingLockExclusive,
        _ => FlockOperation::NonBlockingLockShared,
    };
    // The lock goes with the descriptor, at once.
    if rustix::fs::flock(&file, operation) == Err(Errno::WOULDBLOCK) {
        let what = lock::busy(&below).to_string();
        return Err(Error::Busy(format!("{} shows the file {}: {what}", path.display(), below.display())));
    }
    check_loops_on(path, &meta, Some(number), mode)
}

/// Returns an error if a loop device on a file is in use, other than the one with the number `own`.
fn check_loops_on(path: &Path, file: &Metadata, own: Option<(u32, u32)>, mode: OpenMode) -> Result<()> {
    // Who only reads harms nobody, and a loop device that is read is not claimed.
    if mode != OpenMode::ReadWrite {
        return Ok(());
    }
    for device in fs::read_dir(BY_NAME).into_iter().flatten().flatten() {
        let name = device.file_name();
        if !name.as_encoded_bytes().starts_with(b"loop") {
            continue;
        }
        let is_it = |below: PathBuf| {
            fs::metadata(below).is_ok_and(|below| (below.dev(), below.ino()) == (file.dev(), file.ino()))
        };
        if !file_of_loop(&device.path()).is_some_and(is_it) {
            continue;
        }
        let node = Path::new("/dev").join(&name);
        let number = fs::metadata(&node).map(|meta| (major(meta.rdev()), minor(meta.rdev())));
        if number.is_ok_and(|number| Some(number) == own) {
            continue;
        }
        let flags = OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NONBLOCK;
        if rustix::fs::open(&node, flags, Mode::empty()).map(drop) == Err(Errno::BUSY) {
            return Err(Error::Busy(format!(
                "{} is what {} shows, which is in use: mounted, or part of an array, a volume group or another pool",
                path.display(),
                node.display()
            )));
        }
    }
    Ok(())
}
