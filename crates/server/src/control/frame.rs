//! Frames: a length, and that number of bytes of JSON.

use std::io::{self, Read, Write};

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Longest request in bytes: a few thousand inode numbers.
pub(crate) const REQUEST_BYTES_MAX: u32 = 256 << 10;
/// Longest reply in bytes: the figures of a million snapshots, of about 500 bytes each. Clients take memory for the bytes
/// that come, not for those that could.
pub const REPLY_BYTES_MAX: u32 = 1 << 30;

/// Reads one frame of at most `limit` bytes; `None` if the other side closed the connection between frames.
/// Memory grows with the bytes that arrive, not with the length that was announced.
pub(crate) fn read<T: DeserializeOwned>(stream: &mut impl Read, limit: u32) -> io::Result<Option<T>> {
    let mut header = [0; 4];
    let mut filled = 0;
    while filled < header.len() {
        match stream.read(&mut header[filled..]) {
            Ok(0) if filled == 0 => return Ok(None),
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(more) => filled += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    let len = u32::from_le_bytes(header);
    if len > limit {
        return Err(invalid(format!("a message of {len} bytes is longer than the {limit} allowed")));
    }
    let mut body = Vec::new();
    stream.take(u64::from(len)).read_to_end(&mut body)?;
    if body.len() < len as usize {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    serde_json::from_slice(&body)
        .map(Some)
        .map_err(|error| invalid(format!("not a message of ours: {error}")))
}

/// Writes one frame.
pub fn write(stream: &mut impl Write, message: &impl Serialize, limit: u32) -> io::Result<()> {
    let body = serde_json::to_vec(message).map_err(|error| invalid(error.to_string()))?;
    let len = u32::try_from(body.len()).ok().filter(|len| *len <= limit);
    let len = len.ok_or_else(|| invalid(format!("a message of {} bytes is too long", body.len())))?;
    let mut frame = Vec::with_capacity(body.len() + 4);
    frame.extend_from_slice(&len.to_le_bytes());
    frame.extend_from_slice(&body);
    stream.write_all(&frame)
}

fn invalid(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}
