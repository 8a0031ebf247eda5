//! The flags that the kernel keeps for each place where a file system is mounted.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// `struct mount_attr` of mount_setattr(2).
#[repr(C)]
#[derive(Default)]
struct MountAttributes {
    set: u64,
    clear: u64,
    propagation: u64,
    user_namespace: u64,
}

const READ_ONLY: u64 = 1;
const NO_SUID: u64 = 2;
const NO_DEVICES: u64 = 4;
const NO_PROGRAMS: u64 = 8;

/// Flags that a place is to have; `None` leaves one as it is.
#[derive(Clone, Copy, Default)]
pub struct PlaceFlags {
    /// Refuse changes here, whatever the file system does.
    pub read_only: Option<bool>,
    /// Honour set-id bits.
    pub suid: Option<bool>,
    /// Honour device files.
    pub dev: Option<bool>,
    /// Allow programs to be run.
    pub exec: Option<bool>,
}

impl PlaceFlags {
    /// Gives them to the place whose root is `root`, attached or not.
    ///
    /// # Errors
    /// EBUSY if it is to become read-only, and files are open for writing there; EPERM without the right to mount.
    pub fn set(self, root: impl AsFd) -> io::Result<()> {
        let off = |allowed: Option<bool>| allowed.map(|allowed| !allowed);
        let wanted = [
            (READ_ONLY, self.read_only),
            (NO_SUID, off(self.suid)),
            (NO_DEVICES, off(self.dev)),
            (NO_PROGRAMS, off(self.exec)),
        ];
        let mut attributes = MountAttributes::default();
        for (flag, on) in wanted {
            match on {
                Some(true) => attributes.set |= flag,
                Some(false) => attributes.clear |= flag,
                None => {}
            }
        }
        // SAFETY: the path is an empty string, and the structure, whose length is given, lives until the call returns;
        // the kernel only reads it.
        let done = unsafe {
            libc::syscall(
                libc::SYS_mount_setattr,
                root.as_fd().as_raw_fd(),
                c"".as_ptr(),
                libc::AT_EMPTY_PATH,
                &raw const attributes,
                size_of::<MountAttributes>(),
            )
        };
        if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}
