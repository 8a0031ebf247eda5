//! A mounter for servers that take over.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use pagefold_fuse::{MountError, MountOptions, Mounted, Mounter, Unmount};

/// A [`Mounter`] that unmounts nothing before the takeover is complete. A session that is dropped because of an error
/// detaches its mount, which must stay for the next server.
pub(crate) struct TakeoverMounter<M> {
    mounter: M,
    is_complete: AtomicBool,
}

impl<M: Mounter> TakeoverMounter<M> {
    /// Creates one that has `mounter` do the work.
    pub(crate) fn new(mounter: M) -> Self {
        Self { mounter, is_complete: AtomicBool::new(false) }
    }

    /// Lets it unmount from now on.
    pub(crate) fn complete(&self) {
        self.is_complete.store(true, Ordering::Release);
    }
}

impl<M: Mounter> Mounter for TakeoverMounter<M> {
    fn check(&self, dir: &Path, options: &MountOptions) -> Result<PathBuf, MountError> {
        self.mounter.check(dir, options)
    }

    fn mount(&self, dir: &Path, options: &MountOptions) -> Result<Mounted, MountError> {
        self.mounter.mount(dir, options)
    }

    fn greeted(&self, device_minor: u32) {
        self.mounter.greeted(device_minor);
    }

    fn unmount(&self, dir: &Path, how: Unmount) -> Result<(), MountError> {
        if self.is_complete.load(Ordering::Acquire) {
            return self.mounter.unmount(dir, how);
        }
        Err(MountError::Told(format!("{} is left to the next server", dir.display())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Granting;

    impl Mounter for Granting {
        fn check(&self, dir: &Path, _: &MountOptions) -> Result<PathBuf, MountError> {
            Ok(dir.into())
        }
        fn mount(&self, dir: &Path, _: &MountOptions) -> Result<Mounted, MountError> {
            Err(MountError::NotMounted(dir.into()))
        }
        fn greeted(&self, _: u32) {}
        fn unmount(&self, _: &Path, _: Unmount) -> Result<(), MountError> {
            Ok(())
        }
    }

    #[test]
    fn mounts_stay_until_the_takeover_is_complete() {
        let (mounter, dir) = (TakeoverMounter::new(Granting), Path::new("/mnt"));
        for how in [Unmount::Lazy, Unmount::Idle, Unmount::CutOff, Unmount::Abort] {
            assert!(mounter.unmount(dir, how).unwrap_err().to_string().contains("/mnt is left"));
        }
        mounter.complete();
        mounter.unmount(dir, Unmount::Lazy).unwrap();
    }
}
