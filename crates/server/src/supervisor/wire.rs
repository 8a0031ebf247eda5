//! Messages between a server and its supervisor or mounter: one per packet of a socket pair, with at most one
//! descriptor.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};

/// Longest name in bytes.
const NAME_BYTES_MAX: usize = 64;
/// Longest message in bytes; the directory of a mount has at most 4 KiB.
const MESSAGE_BYTES_MAX: usize = 64 << 10;

/// Kinds of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Keep this under its name, in place of what was kept under that name before.
    Keep = 1,
    /// Keep it no longer.
    Drop = 2,
    /// Tell systemd.
    Notify = 3,
    /// To a server: everything that is kept has been sent. The body is a [`super::Hello`].
    Hello = 4,
    /// To a mounter: a request, with the socket for the answer.
    Ask = 5,
    /// From a mounter: the answer.
    Answer = 6,
    /// To a supervisor: when the sender has ended, start another server, of the program as it is on disk then.
    Again = 7,
}

impl Kind {
    fn from_raw(raw: u8) -> Option<Self> {
        let all = [Self::Keep, Self::Drop, Self::Notify, Self::Hello, Self::Ask, Self::Answer, Self::Again];
        all.into_iter().find(|kind| *kind as u8 == raw)
    }
}

/// One message.
#[derive(Debug)]
pub(crate) struct Message {
    /// Its kind.
    pub kind: Kind,
    /// Name under which something is kept.
    pub name: String,
    /// Data of the message.
    pub body: Vec<u8>,
    /// Descriptor that came with it.
    pub fd: Option<OwnedFd>,
}

/// Sends a message.
pub(crate) fn send(
    socket: impl AsFd,
    kind: Kind,
    name: &str,
    body: &[u8],
    fd: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    if name.len() > NAME_BYTES_MAX || 2 + name.len() + body.len() > MESSAGE_BYTES_MAX {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "a message between our processes is too long",
        ));
    }
    let head = [kind as u8, name.len() as u8];
    let parts = [IoSlice::new(&head), IoSlice::new(name.as_bytes()), IoSlice::new(body)];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let fds = [fd];
    let fds: Vec<BorrowedFd<'_>> = fds.into_iter().flatten().collect();
    if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(&fds)) {
        return Err(io::Error::other("no room for a descriptor"));
    }
    let sent = rustix::io::retry_on_intr(|| {
        rustix::net::sendmsg(&socket, &parts, &mut ancillary, SendFlags::NOSIGNAL)
    });
    sent.map(drop).map_err(io::Error::from)
}

/// Waits for a message; returns `None` if the other end is closed.
pub(crate) fn receive(socket: impl AsFd) -> io::Result<Option<Message>> {
    let bad = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
    let mut bytes = vec![0; MESSAGE_BYTES_MAX];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        let mut parts = [IoSliceMut::new(&mut bytes)];
        match rustix::net::recvmsg(&socket, &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::CONNRESET) => return Ok(None),
            other => break other?,
        }
    };
    if received.bytes == 0 {
        return Ok(None);
    }
    if received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
        return Err(bad("a message is too long"));
    }
    let mut fd = None;
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(fds) = message {
            fd = fd.or(fds.into_iter().next());
        }
    }
    bytes.truncate(received.bytes);
    let (head, rest) = bytes.split_at_checked(2).ok_or_else(|| bad("a message is too short"))?;
    let kind = Kind::from_raw(head[0]).ok_or_else(|| bad("a message is of no known kind"))?;
    let (name, body) = rest.split_at_checked(head[1].into()).ok_or_else(|| bad("a name is cut off"))?;
    let name = std::str::from_utf8(name).map_err(|_| bad("a name is not text"))?.to_owned();
    Ok(Some(Message { kind, name, body: body.to_vec(), fd }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use std::io::{Read, Write};

    fn pair() -> (OwnedFd, OwnedFd) {
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
    }

    #[test]
    fn messages_arrive_whole_with_their_descriptors() {
        let (a, b) = pair();
        let (mut reader, writer) = std::io::pipe().unwrap();
        send(&a, Kind::Keep, "mount:1", b"where", Some(writer.as_fd())).unwrap();
        send(&a, Kind::Notify, "", b"READY=1", None).unwrap();
        drop((a, writer));
        let first = receive(&b).unwrap().unwrap();
        assert_eq!(
            (first.kind, first.name.as_str(), first.body.as_slice()),
            (Kind::Keep, "mount:1", &b"where"[..])
        );
        std::fs::File::from(first.fd.unwrap()).write_all(b"through").unwrap();
        let second = receive(&b).unwrap().unwrap();
        assert_eq!(
            (second.kind, second.body.as_slice(), second.fd.is_none()),
            (Kind::Notify, &b"READY=1"[..], true)
        );
        assert!(receive(&b).unwrap().is_none());
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "through");
    }

    #[test]
    fn nonsense_is_refused() {
        let (a, b) = pair();
        for bytes in [&b"x"[..], b"\x09\x00", b"\x01\x05abc", b"\x01\x01\xff"] {
            rustix::io::write(&a, bytes).unwrap();
            assert!(receive(&b).is_err(), "{bytes:?}");
        }
        assert!(send(&a, Kind::Keep, &"n".repeat(65), b"", None).is_err());
        assert!(send(&a, Kind::Keep, "n", &vec![0; 70_000], None).is_err());
    }
}
