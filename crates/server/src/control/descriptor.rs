//! Passes a descriptor to the server, which may not open files itself.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::retry_on_intr;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};

/// Byte that a descriptor comes with: a stream carries none without data.
const MARK: [u8; 1] = *b"D";

/// Sends a descriptor to the other end, which waits for it.
///
/// # Errors
/// Of the socket.
pub(super) fn send(socket: impl AsFd, fd: BorrowedFd<'_>) -> io::Result<()> {
    let fds = [fd];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !ancillary.push(SendAncillaryMessage::ScmRights(&fds)) {
        return Err(io::Error::other("no room for a descriptor"));
    }
    let sent =
        retry_on_intr(|| sendmsg(&socket, &[IoSlice::new(&MARK)], &mut ancillary, SendFlags::NOSIGNAL));
    sent.map(drop).map_err(io::Error::from)
}

/// Waits for a descriptor. Returns `None` if something else came, or the other end is closed.
///
/// # Errors
/// Of the socket.
pub(crate) fn receive_descriptor(socket: impl AsFd) -> io::Result<Option<OwnedFd>> {
    let mut mark = [0; 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut mark)];
    let received = retry_on_intr(|| recvmsg(&socket, &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC))?;
    let mut fds = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => fds.into_iter().next(),
        _ => None,
    });
    let fd = fds.next();
    Ok(fd.filter(|_| received.bytes == 1 && mark == MARK))
}
