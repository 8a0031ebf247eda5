//! A mounted file system and its server, from mount to unmount.

use crate::dispatch::{Dispatch, SnapshotTree, WithSnapshots};
use crate::init::{Agreement, InitError, RingWish, negotiate};
use crate::kernel::Kernel;
use crate::limits::{DEVICE_THREADS_MAX, INIT_TIMEOUT};
use crate::mount::{self, Here, MountError, MountOptions, Mounted, Mounter, Unmount};
use crate::operation::Operation;
use crate::request::Handler;
use crate::ring_switch::{self, Transport};
use crate::stats::Stats;
use crate::transport::{self, Running, Wiring};
use pagefold_fs::Fs;
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A mount that is being served. Dropping it detaches the mount.
pub struct Session {
    dir: PathBuf,
    device_minor: u32,
    agreement: Agreement,
    device: Arc<OwnedFd>,
    stats: Arc<Stats>,
    running: Mutex<Option<Box<dyn Running>>>,
    mounter: Arc<dyn Mounter>,
}

/// Everything that another process needs to go on with a mount. A third process can keep it meanwhile.
#[derive(Debug)]
pub struct Held {
    /// The connection: `/dev/fuse`.
    pub device: Arc<OwnedFd>,
    /// The mount point, without symbolic links.
    pub dir: PathBuf,
    /// Minor number of the mount's device.
    pub device_minor: u32,
    /// The agreement with the kernel.
    pub agreement: Agreement,
}

/// Detaches, when dropped, a mount that did not get to be served.
struct Unserved<'a>(Option<PathBuf>, &'a dyn Mounter);

impl Drop for Unserved<'_> {
    fn drop(&mut self) {
        if let Some(dir) = &self.0
            && let Err(error) = self.1.unmount(dir, Unmount::Lazy)
        {
            tracing::warn!(%error, "a mount that failed could not be taken away");
        }
    }
}

impl Session {
    /// Mounts `fs` at `dir`. Returns when the mount is usable.
    ///
    /// # Errors
    /// [`MountError`] says what to do; nothing is mounted then.
    pub fn mount(fs: Arc<Fs>, dir: &Path, options: &MountOptions) -> Result<Self, MountError> {
        Self::mount_handler(Arc::new(Dispatch::new(fs)), dir, options)
    }

    /// As [`Session::mount`], with snapshots of it below `.pagefold/snapshot` of its root.
    ///
    /// # Errors
    /// As [`Session::mount`].
    pub fn mount_with_snapshots(
        fs: Arc<Fs>,
        tree: Arc<SnapshotTree>,
        dir: &Path,
        options: &MountOptions,
    ) -> Result<Self, MountError> {
        Self::mount_handler(Arc::new(WithSnapshots::new(Dispatch::new(fs), tree)), dir, options)
    }

    /// Mounts at `dir` and answers requests through `handler`. Returns when the mount is usable.
    ///
    /// # Errors
    /// [`MountError`] says what to do; nothing is mounted then.
    pub fn mount_handler(
        handler: Arc<dyn Handler>,
        dir: &Path,
        options: &MountOptions,
    ) -> Result<Self, MountError> {
        Self::mount_by(Here::shared(), handler, dir, options)
    }

    /// As [`Session::mount_handler`], but `mounter` mounts and unmounts.
    ///
    /// # Errors
    /// [`MountError`] says what to do; nothing is mounted then.
    pub fn mount_by(
        mounter: Arc<dyn Mounter>,
        handler: Arc<dyn Handler>,
        dir: &Path,
        options: &MountOptions,
    ) -> Result<Self, MountError> {
        // This is read before mounting, because the mounter switches rings on if it has to.
        let enabled = ring_switch::ring_enabled();
        let Mounted { device, dir, device_minor, pages_max } = mounter.mount(dir, options)?;
        let mut guard = Unserved(Some(dir.clone()), &*mounter);
        let ring = match options.transport {
            _ if options.takeover => RingWish::Never,
            Transport::Dev => RingWish::Never,
            Transport::Auto if !enabled || !transport::can_make_rings() => RingWish::Never,
            Transport::Auto => RingWish::IfOffered,
            Transport::IoUring => RingWish::Always,
        };
        let stats = Arc::new(Stats::default());
        let device = Arc::new(device);
        let agreement = greet(&device, &stats, ring, pages_max, options.takeover, &dir)?;
        handler.agreed(&agreement, &Kernel::new(&device));
        let wiring = Wiring {
            device: Arc::clone(&device),
            handler,
            stats: Arc::clone(&stats),
            threads_max: options.threads_max.unwrap_or(DEVICE_THREADS_MAX).max(1),
            dir: dir.clone(),
            device_minor,
            mounter: Arc::clone(&mounter),
            takeover: options.takeover,
        };
        let running = transport::start(wiring, agreement, ring == RingWish::Always)
            .map_err(|error| MountError::os("start answering requests at", &dir, error))?;
        guard.0 = None;
        drop(guard);
        mounter.greeted(device_minor);
        let running = Mutex::new(Some(running));
        Ok(Self { dir, device_minor, agreement, device, stats, running, mounter })
    }

    /// Goes on with a mount whose server died: the kernel asks again the requests that the server had read and not
    /// answered. `threads_max` as in [`MountOptions`].
    ///
    /// # Errors
    /// [`MountError`]; the mount stays as it is.
    pub fn resume(
        mounter: Arc<dyn Mounter>,
        handler: Arc<dyn Handler>,
        held: Held,
        threads_max: Option<usize>,
    ) -> Result<Self, MountError> {
        let Held { device, dir, device_minor, agreement } = held;
        let stats = Arc::new(Stats::default());
        let wiring = Wiring {
            device: Arc::clone(&device),
            handler,
            stats: Arc::clone(&stats),
            threads_max: threads_max.unwrap_or(DEVICE_THREADS_MAX).max(1),
            dir: dir.clone(),
            device_minor,
            mounter: Arc::clone(&mounter),
            takeover: true,
        };
        let running = transport::resume(wiring, &agreement);
        let running = running.map_err(|error| MountError::os("take over the mount at", &dir, error))?;
        let running = Mutex::new(Some(running));
        Ok(Self { dir, device_minor, agreement, device, stats, running, mounter })
    }

    /// Returns what [`Session::resume`] needs.
    pub fn held(&self) -> Held {
        Held {
            device: Arc::clone(&self.device),
            dir: self.dir.clone(),
            device_minor: self.device_minor,
            agreement: self.agreement,
        }
    }

    /// Returns the mount point, without symbolic links.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the minor number of the mount's device: `0:N` in `/proc/self/mountinfo`.
    pub fn device_minor(&self) -> u32 {
        self.device_minor
    }

    /// Returns true if the mount is still there, and nothing is mounted above it. A mount that was detached lives on as
    /// long as files are open.
    pub fn is_attached(&self) -> bool {
        mount::is_mount_of(&self.dir, self.device_minor)
    }

    /// Returns the agreement with the kernel.
    pub fn agreement(&self) -> Agreement {
        self.agreement
    }

    /// Returns counts and latencies per request code.
    pub fn stats(&self) -> &Arc<Stats> {
        &self.stats
    }

    /// Unmounts, with `lazy` even while files are open: then the mount disappears at once, and ends when the last of
    /// them is closed.
    ///
    /// # Errors
    /// [`MountError::InUse`] while files are open and `lazy` is false.
    pub fn unmount(&self, lazy: bool) -> Result<(), MountError> {
        self.take_away(if lazy { Unmount::Lazy } else { Unmount::Idle })
    }

    /// Takes the mount away, and ends the connection if we may (root): requests under way fail with ECONNABORTED, later
    /// ones with ENOTCONN.
    ///
    /// # Errors
    /// [`MountError::NotMounted`] if the mount is gone already.
    pub fn cut_off(&self) -> Result<(), MountError> {
        self.take_away(Unmount::CutOff)
    }

    /// Returns when the file system has been unmounted, by whomever, and the last request was answered.
    pub fn wait(&self) {
        let running = self.running.lock().take();
        if let Some(running) = running {
            running.join();
        }
    }

    /// Ends the connection by force: requests under way fail with ECONNABORTED, later ones with ENOTCONN (root only).
    ///
    /// # Errors
    /// [`MountError::NotMounted`] if the connection has ended already, or the mount was detached;
    /// [`MountError::Denied`] for users other than root.
    pub fn abort(&self) -> Result<(), MountError> {
        self.take_away(Unmount::Abort)
    }

    fn take_away(&self, how: Unmount) -> Result<(), MountError> {
        mount::take_away(&*self.mounter, (&self.dir, self.device_minor), how)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // Somebody may have unmounted it, and mounted something else there.
        if self.is_attached()
            && let Err(error) = self.mounter.unmount(&self.dir, Unmount::Lazy)
        {
            tracing::warn!(%error, "a mount without a server stays");
        }
    }
}

/// Receives and answers INIT.
fn greet(
    device: &Arc<OwnedFd>,
    stats: &Arc<Stats>,
    ring: RingWish,
    pages_max: usize,
    takeover: bool,
    dir: &Path,
) -> Result<Agreement, MountError> {
    let os = |error: io::Error| MountError::os("greet the kernel for", dir, error);
    let mut poll = [PollFd::new(&**device, PollFlags::IN)];
    let timeout = rustix::time::Timespec { tv_sec: INIT_TIMEOUT.as_secs().cast_signed(), tv_nsec: 0 };
    let ready = rustix::io::retry_on_intr(|| rustix::event::poll(&mut poll, Some(&timeout)));
    if ready.map_err(|errno| os(errno.into()))? == 0 {
        return Err(os(io::Error::new(io::ErrorKind::TimedOut, "the kernel did not say INIT")));
    }
    let request = transport::read_one(device, stats).map_err(os)?;
    let Ok(Operation::Init(offer)) = request.parse() else {
        request.error(Errno::IO);
        return Err(os(io::Error::other("the kernel's first request is not INIT")));
    };
    match negotiate(&offer, ring, pages_max, takeover) {
        Ok((reply, agreement)) => {
            request.answer(&reply);
            tracing::debug!(?agreement, "agreed with the kernel");
            Ok(agreement)
        }
        Err(source) => {
            request.error(if matches!(source, InitError::NoRing) { Errno::OPNOTSUPP } else { Errno::PROTO });
            Err(MountError::Init { dir: dir.into(), source })
        }
    }
}
