//! Makes the device that every system under test gets: a loop device over a fully written file of one disc.
//!
//! The files are written once with zeros, so that no system pays for the first allocation of the disc below. They
//! are attached with direct I/O, so that the page cache below does not serve anybody's reads.

use std::cell::RefCell;
use std::collections::HashSet;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use anyhow::{Context, Result, anyhow, bail};

use super::exec::{check_interrupted, command, run};
use super::throttle;

const SECTOR_BYTES: u64 = 512;
/// Bytes that are always left free on the disc below.
const SPARE_BYTES: u64 = 4 << 30;
const FILL_CHUNK: usize = 4 << 20;

/// The backing files of one bench, reused from scenario to scenario.
#[derive(Debug)]
pub(crate) struct Shelf {
    dir: PathBuf,
    taken: Rc<RefCell<HashSet<PathBuf>>>,
}

impl Shelf {
    /// Makes a shelf that keeps its files in `dir`.
    ///
    /// # Errors
    /// When the folder cannot be made.
    pub(crate) fn new(dir: &Path) -> Result<Self> {
        fs::create_dir_all(dir).with_context(|| format!("create {}", dir.display()))?;
        Ok(Self { dir: dir.to_owned(), taken: Rc::default() })
    }

    /// Attaches a loop device of `bytes` bytes to a free file of the shelf, or to a new one.
    ///
    /// # Errors
    /// When the disc is full, or no loop device with direct I/O can be made.
    pub(crate) fn take(&self, bytes: u64) -> Result<Disk> {
        let image = (0..)
            .map(|n| self.dir.join(format!("{bytes}-{n}.img")))
            .find(|path| !self.taken.borrow().contains(path))
            .ok_or_else(|| anyhow!("no free name for a disk"))?;
        if fs::metadata(&image).map_or(0, |m| m.len()) != bytes {
            self.make_room(bytes)?;
            fill(&image, bytes).with_context(|| format!("write {} ({bytes} bytes)", image.display()))?;
        }
        let image_text = image.to_string_lossy().into_owned();
        let attached = run(&mut command("losetup", ["--direct-io=on", "--show", "--find", &image_text]))?;
        let device = PathBuf::from(attached.stdout.trim());
        self.taken.borrow_mut().insert(image.clone());
        let mut disk = Disk { device, image, number: String::new(), taken: Rc::clone(&self.taken) };
        disk.number = disk.sys("dev")?;
        if disk.sys("loop/dio")? != "1" {
            bail!(
                "{} has no direct I/O: put --dir on a file system that supports O_DIRECT",
                disk.device.display()
            );
        }
        // Signatures of the previous system would make mkfs ask, and Pagefold refuse.
        run(&mut command("wipefs", ["--all", "--quiet", &disk.device.to_string_lossy()]))?;
        blank_ends(&disk.device, bytes)?;
        Ok(disk)
    }
}

impl Shelf {
    /// Removes free files of other sizes, and refuses to fill the disc below to its end: others use it too.
    fn make_room(&self, bytes: u64) -> Result<()> {
        let mark = format!("{bytes}-");
        for entry in fs::read_dir(&self.dir)?.flatten() {
            let other = !entry.file_name().to_string_lossy().starts_with(&mark);
            if other && !self.taken.borrow().contains(&entry.path()) {
                fs::remove_file(entry.path())?;
            }
        }
        let disc = rustix::fs::statvfs(&self.dir)?;
        let free = disc.f_bavail.saturating_mul(disc.f_frsize);
        if free < bytes + SPARE_BYTES {
            bail!(
                "{} has {} MiB free, another disk of {} MiB needs {}: choose another disc with --dir",
                self.dir.display(),
                free >> 20,
                bytes >> 20,
                (bytes + SPARE_BYTES) >> 20
            );
        }
        Ok(())
    }
}

/// Writes zeros over a file's whole length with direct I/O.
fn fill(path: &Path, bytes: u64) -> Result<()> {
    let scratch = path.with_extension("part");
    let file = File::create(&scratch)?;
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, bytes)?;
    drop(file);
    let mut at = 0;
    // dd writes with O_DIRECT from aligned buffers, which safe Rust has no short way to do.
    while at < bytes {
        check_interrupted()?;
        let step = (bytes - at).min(64 * FILL_CHUNK as u64);
        let mut dd = command("dd", ["if=/dev/zero", "conv=notrunc", "status=none", "iflag=count_bytes"]);
        dd.arg(format!("of={}", scratch.display())).arg(format!("bs={FILL_CHUNK}"));
        dd.arg("oflag=direct,seek_bytes").arg(format!("seek={at}")).arg(format!("count={step}"));
        run(&mut dd)?;
        at += step;
    }
    fs::rename(&scratch, path)?;
    Ok(())
}

/// Zeroes both ends of a device, where labels lie that `wipefs` does not know.
fn blank_ends(device: &Path, bytes: u64) -> Result<()> {
    use std::os::unix::fs::FileExt;
    let file = OpenOptions::new().write(true).custom_flags(0).open(device)?;
    let zeros = vec![0_u8; FILL_CHUNK];
    for start in [0, bytes.saturating_sub(FILL_CHUNK as u64)] {
        file.write_all_at(&zeros, start).with_context(|| format!("blank {}", device.display()))?;
    }
    file.sync_all()?;
    Ok(())
}

/// Counters of a device since it was attached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Counters {
    /// Bytes read.
    pub(crate) read_bytes: u64,
    /// Bytes written.
    pub(crate) written_bytes: u64,
    /// Write requests completed.
    pub(crate) writes: u64,
    /// Cache flushes completed.
    pub(crate) flushes: u64,
}

impl Counters {
    /// Returns what was added since `earlier`.
    pub(crate) fn since(self, earlier: Self) -> Self {
        Self {
            read_bytes: self.read_bytes.saturating_sub(earlier.read_bytes),
            written_bytes: self.written_bytes.saturating_sub(earlier.written_bytes),
            writes: self.writes.saturating_sub(earlier.writes),
            flushes: self.flushes.saturating_sub(earlier.flushes),
        }
    }

    /// Parses `/sys/block/DEVICE/stat` (Documentation/block/stat.rst).
    fn parse(text: &str) -> Result<Self> {
        let fields: Vec<u64> = text.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
        let field = |n: usize| fields.get(n).copied().ok_or_else(|| anyhow!("no field {n} in {text:?}"));
        Ok(Self {
            read_bytes: field(2)? * SECTOR_BYTES,
            writes: field(4)?,
            written_bytes: field(6)? * SECTOR_BYTES,
            flushes: field(15)?,
        })
    }
}

/// A loop device, detached when dropped. Its file system must be unmounted before.
#[derive(Debug)]
pub(crate) struct Disk {
    device: PathBuf,
    image: PathBuf,
    number: String,
    taken: Rc<RefCell<HashSet<PathBuf>>>,
}

impl Disk {
    /// Returns the device's path, such as /dev/loop3.
    pub(crate) fn path(&self) -> &Path {
        &self.device
    }

    /// Returns "major:minor", as cgroups name devices.
    pub(crate) fn number(&self) -> &str {
        &self.number
    }

    /// Returns the device's counters now.
    ///
    /// # Errors
    /// When sysfs does not answer as documented.
    pub(crate) fn counters(&self) -> Result<Counters> {
        Counters::parse(&self.sys("stat")?)
    }

    fn sys(&self, file: &str) -> Result<String> {
        let name = self.device.file_name().ok_or_else(|| anyhow!("{} has no name", self.device.display()))?;
        let path = Path::new("/sys/block").join(name).join(file);
        Ok(fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?.trim().to_owned())
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        throttle::forget(&self.number);
        let mut detach = std::process::Command::new("losetup");
        match detach.arg("--detach").arg(&self.device).status() {
            Ok(status) if status.success() => {
                self.taken.borrow_mut().remove(&self.image);
            }
            Ok(_) | Err(_) => {
                eprintln!(
                    "pagefold-bench: {} could not be detached: run `pagefold-bench clean`",
                    self.device.display()
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_is_read_by_its_documented_fields() {
        let text = "  10 1 200 4  50 2 600 8  0 9 9  0 0 0 0  7 3\n";
        let counters = Counters::parse(text).unwrap();
        assert_eq!(
            counters,
            Counters { read_bytes: 200 * 512, writes: 50, written_bytes: 600 * 512, flushes: 7 }
        );
        assert_eq!(counters.since(counters).written_bytes, 0);
        assert!(Counters::parse("1 2 3").is_err());
    }
}
