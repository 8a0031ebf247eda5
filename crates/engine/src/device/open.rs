//! Opens and creates devices, and says why one is refused.

use std::fs::{File, Metadata};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{FallocateFlags, Mode, OFlags};
use rustix::io::Errno;

use super::lock;
use super::loops;
use super::mode::OpenMode;
use crate::limits::{BLOCK_BYTES, DEVICE_BYTES_MIN};
use crate::{Error, Result, walk};

/// An opened, locked and measured device.
pub(super) struct Opened {
    pub(super) file: File,
    pub(super) size_bytes: u64,
    pub(super) kind: DeviceKind,
}

/// Kinds of device, by the way that they take discards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DeviceKind {
    /// A block device: discard goes to the device.
    Block,
    /// A sparse file: discarded ranges go back to the file system that holds it.
    ThinFile,
    /// A file whose blocks were all allocated when it was opened. They stay so: giving them back would let
    /// the file system hand them to somebody else, and a later write of the pool would find no space.
    FullFile,
}

/// Longest time that udev may hold a block device: it takes a shared lock for moments whenever somebody closes one.
const UDEV_PATIENCE: Duration = Duration::from_millis(500);
/// Longest time that the kernel may take to release the open files of a process that has ended.
const ENDED_PATIENCE: Duration = Duration::from_secs(10);
/// Time between two attempts.
const PAUSE: Duration = Duration::from_millis(10);

/// Opens `path` for direct I/O and locks it.
pub(super) fn open(path: &Path, mode: OpenMode) -> Result<Opened> {
    // The object that was examined is the one that is opened, even if names change meanwhile: opening a FIFO would
    // wait, and opening some devices has effects.
    let (held, _) = walk::reach_any(path).map_err(|e| refused(path, e.into()))?;
    let held = File::from(held);
    let meta = held.metadata().map_err(|e| refused(path, e))?;
    let is_block = classify(path, &meta)?;
    let patience = if is_block { UDEV_PATIENCE } else { Duration::ZERO };
    let attempt = || {
        let opened = lock_file(open_direct(&held, path, mode, is_block)?, path, mode, is_block)?;
        loops::check_other_names(path, &meta, mode)?;
        Ok(opened)
    };
    patiently(patience, attempt, || lock::is_left_behind(path))
}

/// Takes over a file that was opened as `path` for the same mode and locked. The path is not looked up again.
pub(super) fn adopt(file: File, path: &Path, mode: OpenMode) -> Result<Opened> {
    let is_block = classify(path, &file.metadata().map_err(|e| refused(path, e))?)?;
    lock_file(file, path, mode, is_block)
}

/// Repeats `attempt` while the device is busy, until `patience` is over. If a process that has ended left the device
/// behind, the attempts go on until [`ENDED_PATIENCE`] is over.
pub(super) fn patiently<T>(
    patience: Duration,
    mut attempt: impl FnMut() -> Result<T>,
    left_behind: impl Fn() -> bool,
) -> Result<T> {
    let begun = Instant::now();
    let mut last = false;
    loop {
        match attempt() {
            Err(Error::Busy(_)) if !last => {
                let waited = begun.elapsed();
                // A holder that released its lock between the attempt and the look at the locks is not found. So there
                // is one more attempt.
                last = waited >= patience && (waited >= ENDED_PATIENCE || !left_behind());
                if !last {
                    std::thread::sleep(PAUSE);
                }
            }
            done => return done,
        }
    }
}

fn lock_file(file: File, path: &Path, mode: OpenMode, is_block: bool) -> Result<Opened> {
    lock::lock(&file, path, mode)?;
    let (size_bytes, kind) = measure(&file, path, is_block)?;
    if mode == OpenMode::ReadWrite && kind == DeviceKind::Block {
        check_writable(&file, path)?;
    }
    Ok(Opened { file, size_bytes, kind })
}

/// Returns true for a block device and false for a regular file.
///
/// # Errors
/// [`Error::Invalid`] if it is neither.
fn classify(path: &Path, meta: &Metadata) -> Result<bool> {
    let kind = meta.file_type();
    if kind.is_block_device() {
        return Ok(true);
    }
    if kind.is_file() {
        return Ok(false);
    }
    let what = if kind.is_dir() { "a directory" } else { "neither a block device nor a regular file" };
    Err(Error::Invalid(format!(
        "{} is {what}; a pool needs a block device or a regular file",
        path.display()
    )))
}

fn open_direct(held: &File, path: &Path, mode: OpenMode, is_block: bool) -> Result<File> {
    let place = walk::descriptor_path(held);
    let mut flags = OFlags::CLOEXEC | OFlags::NOCTTY;
    match mode {
        OpenMode::ReadOnly | OpenMode::Unlocked => flags |= OFlags::RDONLY,
        // O_EXCL without O_CREAT on a block device: refused while it is mounted or claimed by another driver.
        OpenMode::ReadWrite if is_block => flags |= OFlags::RDWR | OFlags::EXCL,
        OpenMode::ReadWrite => flags |= OFlags::RDWR,
    }
    match rustix::fs::open(&place, flags | OFlags::DIRECT, Mode::empty()) {
        Ok(fd) => {
            let file = File::from(fd);
            if direct_works(&file) { Ok(file) } else { open_buffered(&place, path, flags) }
        }
        Err(Errno::INVAL) => open_buffered(&place, path, flags),
        Err(Errno::BUSY) => Err(lock::busy(path)),
        Err(e) => Err(refused(path, e.into())),
    }
}

/// Returns whether direct I/O works. Some file systems accept O_DIRECT and then refuse the transfers, or need a coarser
/// alignment than ours.
fn direct_works(file: &File) -> bool {
    let mut block = super::AlignedBuf::scratch(BLOCK_BYTES);
    !matches!(rustix::io::pread(file, &mut block[..], 0), Err(Errno::INVAL | Errno::OPNOTSUPP))
}

fn open_buffered(place: &Path, path: &Path, flags: OFlags) -> Result<File> {
    tracing::warn!(
        device = %path.display(),
        "the file system does not take direct I/O: data is cached twice and flushes cost more"
    );
    let fd = rustix::fs::open(place, flags, Mode::empty()).map_err(|e| refused(path, e.into()))?;
    Ok(File::from(fd))
}

/// Returns the size of a file or block device in bytes, in whole blocks.
pub(super) fn end_of(file: &File) -> Result<u64, Errno> {
    // The end of a block device is its size; fstat reports zero.
    let end = rustix::fs::seek(file, rustix::fs::SeekFrom::End(0))?;
    Ok(end - end % BLOCK_BYTES as u64)
}

fn measure(file: &File, path: &Path, is_block: bool) -> Result<(u64, DeviceKind)> {
    let failed = |e: Errno| refused(path, e.into());
    let end = end_of(file).map_err(failed)?;
    let kind = if is_block {
        check_block_size(path, rustix::fs::ioctl_blksszget(file).map_err(failed)?)?;
        DeviceKind::Block
    } else {
        let meta = file.metadata().map_err(|e| refused(path, e))?;
        if meta.blocks().saturating_mul(512) < end { DeviceKind::ThinFile } else { DeviceKind::FullFile }
    };
    if end < DEVICE_BYTES_MIN {
        return Err(too_small(path, end));
    }
    Ok((end, kind))
}

fn check_block_size(path: &Path, logical_bytes: u32) -> Result<()> {
    if logical_bytes as usize <= BLOCK_BYTES {
        return Ok(());
    }
    Err(Error::Unsupported(format!(
        "{} has logical blocks of {logical_bytes} bytes; a pool needs {BLOCK_BYTES} or less. Format the device with \
         smaller blocks if it can be (nvme format, sg_format)",
        path.display()
    )))
}

/// `BLKROGET` of linux/fs.h: `_IO(0x12, 94)`.
const BLKROGET: libc::Ioctl = 0x125E;

/// Refuses a read-only device: the kernel opens it for writing, and then fails the writes.
fn check_writable(file: &File, path: &Path) -> Result<()> {
    let mut read_only: libc::c_int = 0;
    // SAFETY: BLKROGET writes one int through the pointer, which outlives the call.
    let rc = unsafe { libc::ioctl(file.as_raw_fd(), BLKROGET, &raw mut read_only) };
    if rc != 0 {
        return Err(refused(path, io::Error::last_os_error()));
    }
    if read_only != 0 {
        let name = path.display();
        return Err(Error::ReadOnly(format!("{name} is a read-only device; import its pool read-only")));
    }
    Ok(())
}

/// Creates a regular file of `size_bytes` (a multiple of the block size) as a device, and makes its name durable.
///
/// All blocks are allocated at once, so that a write of the pool never finds the file system full. It is refused if
/// `path` exists, if the size is too small or unaligned, or if there is no room.
pub fn create_file_device(path: &Path, size_bytes: u64) -> Result<()> {
    if size_bytes < DEVICE_BYTES_MIN {
        return Err(too_small(path, size_bytes));
    }
    if !size_bytes.is_multiple_of(BLOCK_BYTES as u64) {
        let name = path.display();
        return Err(Error::Invalid(format!(
            "the size of {name}, {size_bytes} bytes, is not a multiple of {BLOCK_BYTES}"
        )));
    }
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOCTTY;
    // The file is readable by its owner alone, since databases keep private data in it.
    let fd = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR).map_err(|e| match e {
        Errno::EXIST => {
            Error::Invalid(format!("{} exists already; remove it or choose another name", path.display()))
        }
        e => refused(path, e.into()),
    })?;
    let file = File::from(fd);
    allocate(&file, path, size_bytes).inspect_err(|_| {
        if let Err(e) = std::fs::remove_file(path) {
            tracing::warn!(device = %path.display(), error = %e, "cannot remove the file that could not be allocated");
        }
    })
}

fn allocate(file: &File, path: &Path, size_bytes: u64) -> Result<()> {
    let op = |op: &'static str, source: io::Error| Error::Io {
        op,
        device: path.to_path_buf(),
        offset: 0,
        len_bytes: size_bytes,
        source,
    };
    match rustix::io::retry_on_intr(|| rustix::fs::fallocate(file, FallocateFlags::empty(), 0, size_bytes)) {
        Ok(()) => {}
        Err(Errno::NOSPC | Errno::DQUOT) => {
            let name = path.display();
            return Err(Error::NoSpace(format!("{name} cannot take {size_bytes} bytes on its file system")));
        }
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
            let name = path.display();
            return Err(Error::Unsupported(format!(
                "the file system of {name} cannot allocate space in advance; make a sparse file with \
                 \"truncate -s {size_bytes} {name}\" and use that, minding that the pool fails when its file system is full"
            )));
        }
        Err(e) => return Err(op("allocate", e.into())),
    }
    file.sync_all().map_err(|e| op("flush", e))?;
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(parent).and_then(|dir| dir.sync_all()).map_err(|e| op("flush the directory", e))
}

fn too_small(path: &Path, size_bytes: u64) -> Error {
    let (name, have, need) = (path.display(), size_bytes >> 20, DEVICE_BYTES_MIN.div_ceil(1 << 20));
    Error::Invalid(format!(
        "{name} is too small: {have} MiB ({size_bytes} bytes); a device needs at least {need} MiB"
    ))
}

/// Returns the error of a failed open, with advice on what to do.
fn refused(path: &Path, source: io::Error) -> Error {
    let advice = match Errno::from_io_error(&source) {
        Some(Errno::NOENT) => "check the name; lsblk lists the block devices",
        Some(Errno::ACCESS | Errno::PERM) => {
            "run as root or as a user who may read and write it; lsblk shows whether the device is read-only"
        }
        None if source.kind() == io::ErrorKind::PermissionDenied => {
            "links that others may have made are not followed"
        }
        Some(Errno::ROFS) => "its file system is read-only; import the pool read-only",
        Some(Errno::NOMEDIUM | Errno::NXIO | Errno::NODEV) => "the device is gone or has no medium",
        _ => "see the kernel's log",
    };
    Error::Open { device: path.to_path_buf(), source, advice }
}
