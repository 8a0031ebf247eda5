//! The server's end of the line to its supervisor.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

use rustix::net::{AddressFamily, sockopt};

use super::Hello;
use super::wire::{self, Kind};
use crate::failure::{Context, Failure, Result};

/// Something that the supervisor keeps for the next server.
#[derive(Debug)]
pub(crate) struct StoredItem {
    /// Data that belong to it.
    pub body: Vec<u8>,
    /// Its descriptor, if it has one.
    pub fd: Option<OwnedFd>,
}

/// State that a server inherits when it starts.
#[derive(Debug)]
pub(crate) struct Inherited {
    /// Things that earlier servers left, by name; empty for the first server.
    pub kept: BTreeMap<String, StoredItem>,
    /// Facts about the earlier servers.
    pub hello: Hello,
}

impl Inherited {
    /// Takes what is kept under `name`, with its descriptor; `None` if it is missing or has no descriptor.
    pub(crate) fn take(&mut self, name: &str) -> Option<(Vec<u8>, OwnedFd)> {
        let StoredItem { body, fd } = self.kept.remove(name)?;
        Some((body, fd?))
    }
}

/// The line to the supervisor.
#[derive(Debug)]
pub(crate) struct Link(OwnedFd);

impl Link {
    /// Takes the line at descriptor `raw`, which the supervisor passed on, and reads everything that the supervisor
    /// kept.
    pub(crate) fn connect(raw: RawFd) -> Result<(Self, Inherited)> {
        let talking = || "cannot hear from the supervisor".to_owned();
        let socket = inherited(raw, "--held-by is for supervisors, not for people")?;
        let mut kept = BTreeMap::new();
        loop {
            let message = wire::receive(&socket).context(talking)?;
            let message = message.ok_or_else(|| Failure::new("the supervisor has ended"))?;
            match message.kind {
                Kind::Keep => {
                    kept.insert(message.name, StoredItem { body: message.body, fd: message.fd });
                }
                Kind::Hello => {
                    let hello: Hello = serde_json::from_slice(&message.body)
                        .map_err(|error| Failure::new(format!("the supervisor says nonsense: {error}")))?;
                    hello.restore_oom_score();
                    return Ok((Self(socket), Inherited { kept, hello }));
                }
                Kind::Drop | Kind::Notify | Kind::Ask | Kind::Answer | Kind::Again => {}
            }
        }
    }

    /// Has the supervisor keep a descriptor for the server that comes after this one.
    pub(crate) fn keep(&self, name: &str, body: &[u8], fd: BorrowedFd<'_>) -> Result<()> {
        wire::send(&self.0, Kind::Keep, name, body, Some(fd))
            .context(|| format!("the supervisor cannot keep {name}"))
    }

    /// Has the supervisor keep facts without a descriptor.
    pub(crate) fn note(&self, name: &str, body: &[u8]) -> Result<()> {
        wire::send(&self.0, Kind::Keep, name, body, None)
            .context(|| format!("the supervisor cannot keep {name}"))
    }

    /// Tells the supervisor not to keep `name` any longer.
    pub(crate) fn drop_kept(&self, name: &str) {
        self.send(Kind::Drop, name, &[]);
    }

    /// Has the supervisor send `state` to systemd, for which the supervisor is the main process.
    pub(crate) fn notify(&self, state: &str) {
        self.send(Kind::Notify, "", state.as_bytes());
    }

    /// Has the supervisor start another server once this one has ended.
    pub(crate) fn again(&self) {
        self.send(Kind::Again, "", &[]);
    }

    fn send(&self, kind: Kind, name: &str, body: &[u8]) {
        match wire::send(&self.0, kind, name, body, None) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                tracing::warn!(
                    "the supervisor of this server is gone: if the server dies, the mounts die with it"
                );
            }
            Err(error) => tracing::warn!(%error, "cannot talk to the supervisor"),
        }
    }
}

/// Takes the socket at descriptor `raw`, which the parent process passed on. Fails with the text `refusal` if there is
/// no such socket.
pub(crate) fn inherited(raw: RawFd, refusal: &str) -> Result<OwnedFd> {
    // The number comes from the command line; it is taken only if it is such a socket.
    // SAFETY: the descriptor is borrowed only for the questions below, which fail if it is not open.
    let borrowed = (raw > 2).then(|| unsafe { BorrowedFd::borrow_raw(raw) });
    let fits = borrowed.is_some_and(|fd| sockopt::socket_domain(fd) == Ok(AddressFamily::UNIX));
    if !fits {
        return Err(Failure::usage(refusal));
    }
    // SAFETY: the descriptor is open, and was passed on to this process; nothing else here knows of it.
    let socket = unsafe { OwnedFd::from_raw_fd(raw) };
    let taking = || "cannot take over a socket".to_owned();
    rustix::io::fcntl_setfd(&socket, rustix::io::FdFlags::CLOEXEC).context(taking)?;
    // ps and top would call it "exe", since it was started from /proc/self/exe.
    rustix::thread::set_name(c"pagefold").context(|| "cannot name the process".into())?;
    Ok(socket)
}

/// Returns the time since the machine started, which is the same for all processes.
pub(crate) fn uptime() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::new(now.tv_sec.max(0).cast_unsigned(), now.tv_nsec.clamp(0, 999_999_999) as u32)
}
