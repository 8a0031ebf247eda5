//! Mounts and unmounts by `fusermount3`, which is set-user-ID root, for users other than root.

use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};

use super::{MountError, MountOptions};
use pagefold_engine::walk::ReachedDir;

fn helper() -> Command {
    Command::new("fusermount3")
}

/// Asks `fusermount3` to unmount.
pub(super) fn unmount(dir: &Path, lazy: bool) -> Result<(), MountError> {
    let flag = if lazy { "-uz" } else { "-u" };
    let output = helper().arg(flag).arg("--").arg(dir).stdin(Stdio::null()).output().map_err(no_helper)?;
    if output.status.success() { Ok(()) } else { Err(helper_error(dir, &output.stderr)) }
}

fn no_helper(error: io::Error) -> MountError {
    match error.kind() {
        io::ErrorKind::NotFound => MountError::NoFusermount,
        _ => MountError::os("run", Path::new("fusermount3"), error),
    }
}

fn helper_error(dir: &Path, stderr: &[u8]) -> MountError {
    let message = String::from_utf8_lossy(stderr);
    let message = message.trim().trim_start_matches("fusermount3:").trim();
    if message.contains("not found in") || message.contains("not mounted") {
        return MountError::NotMounted(dir.into());
    }
    if message.contains("busy") {
        return MountError::InUse(dir.into());
    }
    if message.contains("allow_other") {
        return MountError::denied(
            "mount with allow_other",
            "add the line user_allow_other to /etc/fuse.conf, or mount without allow_other",
        );
    }
    MountError::Fusermount { dir: dir.into(), message: message.into() }
}

/// Asks `fusermount3` to mount on its working directory, which is `place`, and receives the descriptor over a socket.
pub(super) fn mount(place: &ReachedDir, options: &MountOptions) -> Result<OwnedFd, MountError> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    let os = |source: Errno| MountError::os("talk to", Path::new("fusermount3"), source);
    if !Path::new("/dev/fuse").exists() {
        return Err(MountError::NoDevice);
    }
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).map_err(os)?;
    rustix::io::fcntl_setfd(&theirs, rustix::io::FdFlags::empty()).map_err(os)?;
    let child = helper()
        .arg("-o")
        .arg(helper_options(options))
        .arg("--")
        .arg(".")
        .current_dir(place.as_path())
        .env("_FUSE_COMMFD", theirs.as_raw_fd().to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(no_helper)?;
    drop(theirs);
    let received = receive_descriptor(&ours);
    let output = child
        .wait_with_output()
        .map_err(|error| MountError::os("wait for", Path::new("fusermount3"), error))?;
    match received {
        Ok(Some(device)) if output.status.success() => Ok(device),
        Err(error) if output.status.success() => {
            Err(MountError::os("receive a descriptor from", Path::new("fusermount3"), error))
        }
        _ => Err(helper_error(place.path(), &output.stderr)),
    }
}

/// Returns the options as `fusermount3` takes them; commas in the source are escaped.
fn helper_options(options: &MountOptions) -> String {
    let source = options.source.replace('\\', "\\\\").replace(',', "\\,");
    let mut list = vec![
        format!("fsname={source}"),
        "subtype=pagefold".into(),
        "default_permissions".into(),
        format!("max_read={}", crate::limits::REQUEST_BYTES_MAX),
        (if options.read_only { "ro" } else { "rw" }).into(),
        (if options.exec { "exec" } else { "noexec" }).into(),
    ];
    if options.allow_other {
        list.push("allow_other".into());
    }
    list.join(",")
}

/// Receives one descriptor that is sent along with a byte; `None` if the other end closed without sending.
fn receive_descriptor(socket: &OwnedFd) -> io::Result<Option<OwnedFd>> {
    let mut byte = [0u8; 4];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = rustix::io::retry_on_intr(|| {
        rustix::net::recvmsg(
            socket,
            &mut [IoSliceMut::new(&mut byte)],
            &mut ancillary,
            RecvFlags::CMSG_CLOEXEC,
        )
    })?;
    if received.bytes == 0 {
        return Ok(None);
    }
    Ok(ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_for_the_helper() {
        let options = MountOptions {
            source: r"a,b\c".into(),
            allow_other: true,
            read_only: true,
            ..Default::default()
        };
        assert_eq!(
            helper_options(&options),
            r"fsname=a\,b\\c,subtype=pagefold,default_permissions,max_read=1048576,ro,exec,allow_other"
        );
    }

    #[test]
    fn what_the_helper_says_becomes_what_to_do() {
        let error = |text: &str| helper_error(Path::new("/m"), text.as_bytes());
        assert!(matches!(
            error("fusermount3: entry for /m not found in /etc/mtab"),
            MountError::NotMounted(_)
        ));
        assert!(matches!(
            error("fusermount3: failed to unmount /m: Device or resource busy"),
            MountError::InUse(_)
        ));
        let denied = error(
            "fusermount3: option allow_other only allowed if 'user_allow_other' is set in /etc/fuse.conf",
        );
        assert!(denied.to_string().contains("add the line user_allow_other"));
        assert!(error("fusermount3: something else").to_string().ends_with("something else"));
    }
}
