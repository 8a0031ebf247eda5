//! The server's side of the mounter.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use pagefold_fuse::{MountError, MountOptions, Mounted, Mounter, Unmount};
use parking_lot::Mutex;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::protocol::{MountFlags, MounterReply, MounterRequest};
use crate::failure::{Context, Result};
use crate::mountopts;
use crate::spawn::{self, Purpose};
use crate::supervisor::wire::{self, Kind};

/// A [`Mounter`] that has another process mount and unmount.
pub struct MounterClient {
    line: OwnedFd,
    /// The process, which ends when `line` is closed.
    _child: Mutex<Child>,
}

impl MounterClient {
    /// Starts the mounter of a pool, with the rights of this process. Must be called while there is only one thread:
    /// programs that another thread starts would inherit the descriptor.
    pub fn start(pool: &str, options: &mountopts::MountOptions) -> Result<Self> {
        let starting = || "cannot start the mounter".to_owned();
        let (line, theirs) = pair().context(starting)?;
        rustix::io::fcntl_setfd(&theirs, rustix::io::FdFlags::empty()).context(starting)?;
        let mut words = Vec::new();
        for (word, wanted) in [("suid", options.suid), ("dev", options.dev), ("nonempty", options.nonempty)] {
            words.extend(wanted.then(|| word.to_owned()));
        }
        words.extend(options.confine.map(|level| format!("confine={level}")));
        let mut command = Command::new("/proc/self/exe");
        spawn::set_environment(&mut command, Purpose::Ours);
        let child = command
            .arg0("pagefold")
            .arg("serve")
            .arg(format!("--mounts-for={}", theirs.as_raw_fd()))
            .args(["-o", words.join(",").as_str(), "--", pool])
            // Signals of the terminal to the whole process group must not reach it.
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .context(starting)?;
        Ok(Self { line, _child: Mutex::new(child) })
    }

    fn ask(&self, request: &MounterRequest) -> Result<(MounterReply, Option<OwnedFd>), MountError> {
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => gone(),
            _ => MountError::Told(format!("cannot talk to the process that mounts: {error}")),
        };
        let (ours, theirs) = pair().map_err(failed)?;
        let body = serde_json::to_vec(request).map_err(|error| failed(error.into()))?;
        wire::send(&self.line, Kind::Ask, "", &body, Some(theirs.as_fd())).map_err(failed)?;
        drop(theirs);
        let message = wire::receive(&ours).map_err(failed)?.ok_or_else(gone)?;
        match serde_json::from_slice(&message.body).map_err(|error| failed(error.into()))? {
            MounterReply::InUse { dir } => Err(MountError::InUse(dir)),
            MounterReply::NotMounted { dir } => Err(MountError::NotMounted(dir)),
            MounterReply::Refused { text } => Err(MountError::Told(text)),
            other => Ok((other, message.fd)),
        }
    }
}

fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

fn gone() -> MountError {
    MountError::Told(
        "the process that mounts and unmounts for this server has ended; unmount with umount(8), and mount again".into(),
    )
}

fn odd(answer: &MounterReply) -> MountError {
    MountError::Told(format!("the process that mounts says nonsense: {answer:?}"))
}

impl Mounter for MounterClient {
    fn check(&self, dir: &Path, options: &MountOptions) -> Result<PathBuf, MountError> {
        match self.ask(&MounterRequest::Check { dir: dir.into(), how: MountFlags::from(options) })?.0 {
            MounterReply::Checked { dir } => Ok(dir),
            other => Err(odd(&other)),
        }
    }

    fn mount(&self, dir: &Path, options: &MountOptions) -> Result<Mounted, MountError> {
        match self.ask(&MounterRequest::Mount { dir: dir.into(), how: MountFlags::from(options) })? {
            (MounterReply::Mounted { dir, device_minor, pages_max }, Some(device)) => {
                Ok(Mounted { device, dir, device_minor, pages_max })
            }
            (other, _) => Err(odd(&other)),
        }
    }

    fn greeted(&self, device_minor: u32) {
        if let Err(error) = self.ask(&MounterRequest::Greeted { device_minor }) {
            tracing::debug!(%error, "read-ahead stays at the kernel's default");
        }
    }

    fn unmount(&self, dir: &Path, how: Unmount) -> Result<(), MountError> {
        self.ask(&MounterRequest::Unmount { dir: dir.into(), how: how.into() }).map(drop)
    }
}
