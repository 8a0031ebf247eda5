//! The mounter: a small process beside a server that mounts and unmounts for it, so that the server itself has no
//! privilege and starts no program ([decision 0025](../../../../docs/decisions/0025-least-privilege.md)).
//!
//! It serves one pool only, with no more rights than the server was started with. It ends with its server.

mod client;
mod protocol;
mod takeover;

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use pagefold_fuse::{Here, MountError, Mounter as _, OneMount};

use crate::failure::{Context, Result};
use crate::stderr::write_line;
use crate::supervisor::wire::{self, Kind};
use crate::{confine, mountopts, mounts, supervisor};
pub use client::MounterClient;
use protocol::{MountFlags, MounterReply, MounterRequest};
pub(crate) use takeover::TakeoverMounter;

/// Limits of what a server may ask for.
struct Bounds {
    pool: String,
    suid: bool,
    dev: bool,
    nonempty: bool,
    /// Mounts that end with the server: those that it has made and nobody else takes over.
    own: Mutex<Vec<OneMount>>,
}

/// Mounts and unmounts for the server of `pool` at the other end of descriptor `raw`, until the server closes its end.
/// `options` are those that the server was started with, as far as they bound what it may ask for.
pub fn run(pool: &str, options: &[String], raw: i32) -> Result<()> {
    let line = supervisor::inherited(raw, "--mounts-for is for servers, not for people")?;
    // It ends when its server does, and ignores signals that tell it to end.
    ignore_ends();
    rustix::process::chdir("/").context(|| "cannot change to /".into())?;
    let options = mountopts::parse(options)?;
    confine::mounter(options.confine.unwrap_or_default())?;
    let bounds = Arc::new(Bounds {
        pool: pool.to_owned(),
        suid: options.suid,
        dev: options.dev,
        nonempty: options.nonempty,
        own: Mutex::default(),
    });
    while let Some(message) = wire::receive(&line).context(|| "cannot hear from the server".into())? {
        let Some(reply) = message.fd.filter(|_| message.kind == Kind::Ask) else { continue };
        let (bounds, body) = (Arc::clone(&bounds), message.body);
        // Each request has a thread: one that takes long (because a directory's server does not answer, say) delays no
        // other.
        let spawned = std::thread::Builder::new().name("mounting".into()).spawn(move || {
            // The asking thread may have gone.
            let _ = answer(&bounds, &body, &reply);
        });
        if let Err(error) = spawned {
            // The server sees that its question ends without an answer.
            write_line(&format!("mounter: cannot start a thread: {error}"));
        }
    }
    bounds.abort_own();
    Ok(())
}

fn ignore_ends() {
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
        // SAFETY: ignoring a signal runs no code of ours.
        unsafe {
            libc::signal(signal, libc::SIG_IGN);
        }
    }
}

fn answer(bounds: &Bounds, body: &[u8], reply: &OwnedFd) -> std::io::Result<()> {
    let (answer, device) = match serde_json::from_slice::<MounterRequest>(body) {
        Ok(request) => bounds.grant(request),
        Err(error) => (MounterReply::Refused { text: format!("the server says nonsense: {error}") }, None),
    };
    let body = serde_json::to_vec(&answer)?;
    wire::send(reply, Kind::Answer, "", &body, device.as_ref().map(AsFd::as_fd))
}

impl Bounds {
    fn grant(&self, request: MounterRequest) -> (MounterReply, Option<OwnedFd>) {
        let granted = match request {
            MounterRequest::Check { dir, how } => {
                self.check(&dir, how).map(|dir| (MounterReply::Checked { dir }, None))
            }
            MounterRequest::Mount { dir, how } => self.mount(&dir, how),
            MounterRequest::Greeted { device_minor } => {
                Here.greeted(device_minor);
                Ok((MounterReply::Done {}, None))
            }
            MounterRequest::Unmount { dir, how } => {
                self.unmount(&dir, how.into()).map(|()| (MounterReply::Done {}, None))
            }
        };
        granted.unwrap_or_else(|error| (MounterReply::from(&error), None))
    }

    fn check(&self, dir: &Path, how: MountFlags) -> Result<PathBuf, MountError> {
        self.permit(&how)?;
        detach_dead(dir)?;
        Here.check(dir, &how.into())
    }

    fn mount(&self, dir: &Path, how: MountFlags) -> Result<(MounterReply, Option<OwnedFd>), MountError> {
        self.permit(&how)?;
        let takeover = how.takeover;
        let mounted = Here.mount(dir, &how.into())?;
        let (device_minor, pages_max) = (mounted.device_minor, mounted.pages_max);
        if !takeover && let Some(mount) = OneMount::at(&mounted.dir, device_minor) {
            let mut own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
            own.retain(OneMount::may_be_there);
            own.push(mount);
        }
        Ok((MounterReply::Mounted { dir: mounted.dir, device_minor, pages_max }, Some(mounted.device)))
    }

    /// Aborts what the server has left mounted: it has ended. The kernel does that, too, unless a thread of the server
    /// waits for a request that nobody answers any more ([`pagefold_fuse::abandoned`]).
    fn abort_own(&self) {
        let own = std::mem::take(&mut *self.own.lock().unwrap_or_else(PoisonError::into_inner));
        for mount in own.iter().filter(|mount| mount.abort()) {
            tracing::debug!(?mount, "the server has left it mounted");
        }
    }

    /// Returns an error if the mount is of another pool, or asks for rights that the server was not started with.
    fn permit(&self, how: &MountFlags) -> Result<(), MountError> {
        let pool = mounts::pool_of(&how.source);
        if pool != self.pool {
            return Err(refused(format!("{} is not of pool {}", how.source, self.pool)));
        }
        let beyond = [("suid", how.suid && !self.suid), ("dev", how.dev && !self.dev)];
        let beyond = beyond.into_iter().chain([("nonempty", how.nonempty && !self.nonempty)]);
        match beyond.into_iter().find(|(_, beyond)| *beyond) {
            None => Ok(()),
            Some((option, _)) => Err(refused(format!(
                "the server of pool {0} was started without the mount option {option}; give it to the pool's first mount (pagefold unmount {0} first)",
                self.pool
            ))),
        }
    }

    /// Unmounts what is mounted at `dir`, if that is of this pool.
    fn unmount(&self, dir: &Path, how: pagefold_fuse::Unmount) -> Result<(), MountError> {
        let all = mounts::all().map_err(|failure| refused(failure.to_string()))?;
        match all.iter().rfind(|mount| mount.dir == dir) {
            None => Err(MountError::NotMounted(dir.into())),
            Some(mount) if mount.fs_type == mounts::FS_TYPE && mount.pool() == self.pool => {
                Here.unmount(dir, how)
            }
            Some(mount) => Err(refused(format!(
                "{} was mounted above {} at {}; unmount that first",
                crate::raw::printable(&mount.source),
                self.pool,
                dir.display()
            ))),
        }
    }
}

fn refused(text: String) -> MountError {
    MountError::Told(text)
}

/// Detaches mounts of ours at a directory whose servers have died.
fn detach_dead(dir: &Path) -> Result<(), MountError> {
    let ours = mounts::ours().map_err(|failure| refused(failure.to_string()))?;
    for mount in ours.iter().filter(|mount| mount.dir == dir && mounts::is_dead(mount)) {
        write_line(&format!(
            "mounter: detaching a mount of {} at {} whose server has died",
            mount.source,
            dir.display()
        ));
        pagefold_fuse::unmount(&mount.dir, true)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn how(source: &str) -> MountFlags {
        MountFlags { source: source.into(), ..MountFlags::default() }
    }

    fn text(answer: MounterReply) -> String {
        match answer {
            MounterReply::Refused { text } => text,
            other => format!("{other:?}"),
        }
    }

    #[test]
    fn only_what_the_server_was_started_for_is_granted() {
        let bounds =
            Bounds { pool: "tank".into(), suid: false, dev: true, nonempty: false, own: Mutex::default() };
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().canonicalize().unwrap();
        let ask = |how: MountFlags| bounds.grant(MounterRequest::Check { dir: dir.clone(), how }).0;
        assert!(matches!(ask(how("tank/db@a")), MounterReply::Checked { .. }));
        assert!(matches!(ask(MountFlags { dev: true, ..how("tank") }), MounterReply::Checked { .. }));
        assert!(text(ask(how("tanker"))).contains("not of pool tank"));
        assert!(text(ask(MountFlags { suid: true, ..how("tank") })).contains("suid"));
        assert!(text(ask(MountFlags { nonempty: true, ..how("tank") })).contains("nonempty"));
    }

    #[test]
    fn mounts_of_others_are_not_taken_away() {
        let bounds =
            Bounds { pool: "tank".into(), suid: false, dev: false, nonempty: false, own: Mutex::default() };
        let ask = |dir: &str| {
            bounds.grant(MounterRequest::Unmount { dir: dir.into(), how: protocol::Unmounting::Lazy }).0
        };
        assert!(text(ask("/proc")).contains("unmount that first"));
        assert!(matches!(ask("/proc/self"), MounterReply::NotMounted { .. }));
    }
}
