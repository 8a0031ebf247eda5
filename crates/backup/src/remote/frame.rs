//! Frames between a client and `backup serve`: numbered requests and answers. Byte by byte: docs/BACKUP-FORMAT.md, "The
//! protocol of serve".
//!
//! Both sides take the other for hostile: a length is checked before a byte of the frame is read, and memory grows with
//! what has come.

use std::io::{self, Read};

use bytes::Bytes;
use pagefold_engine::wire::Reader;

use crate::limits::{
    ANSWER_BYTES_MAX, DIRECTORY_BYTES_MAX, NAME_BYTES_MAX, NAMES_PER_ANSWER, PACK_BYTES_MAX, PART_BYTES,
    TEXT_BYTES_MAX, WAL_OBJECT_BYTES_MAX,
};

/// First bytes of the serving side.
pub(crate) const MAGIC: [u8; 8] = *b"PFbkserv";
/// Version of the protocol. Two sides with different versions part.
pub(crate) const PROTOCOL: u32 = 1;
/// Version of this program.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Largest length in bytes of a program's version.
const VERSION_BYTES_MAX: usize = 64;
/// Bytes of kind and number, which a frame's length includes.
const HEAD_BYTES: usize = 9;
/// Largest length of a request in bytes: an object and its name. A segment of a log may be longer than any pack.
pub(crate) const REQUEST_BYTES_MAX: u64 = WAL_OBJECT_BYTES_MAX as u64 + 512;
const _: () = assert!(PACK_BYTES_MAX <= WAL_OBJECT_BYTES_MAX as u64 && REQUEST_BYTES_MAX < u32::MAX as u64);
/// Largest number of parts of an object's name.
const NAME_PARTS_MAX: usize = 4;

/// Reasons why no frame came.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FrameError {
    /// The connection broke.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The connection ended within a frame.
    #[error("the connection ended in the middle of a message")]
    CutShort,
    /// The bytes are no frame of this protocol.
    #[error("{0}")]
    Bad(String),
}

impl From<pagefold_engine::Error> for FrameError {
    fn from(error: pagefold_engine::Error) -> Self {
        match error {
            pagefold_engine::Error::Corrupt { what, detail, .. } => Self::Bad(format!("{what}: {detail}")),
            other => Self::Bad(other.to_string()),
        }
    }
}

type FrameResult<T> = Result<T, FrameError>;

/// Returns true for a valid name of an object or folder: up to four parts of letters, digits, `-` and `_`. So no name
/// leads out of its directory.
pub(crate) fn is_name(name: &str) -> bool {
    let is_part = |part: &str| {
        !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
    };
    name.len() <= NAME_BYTES_MAX && name.split('/').count() <= NAME_PARTS_MAX && name.split('/').all(is_part)
}

fn name(reader: &mut Reader<'_>) -> FrameResult<String> {
    let text = string(reader, NAME_BYTES_MAX)?;
    match is_name(&text) {
        true => Ok(text),
        false => Err(FrameError::Bad(format!("\"{}\" is no name of an object", text.escape_debug()))),
    }
}

fn string(reader: &mut Reader<'_>, max: usize) -> FrameResult<String> {
    let len = usize::from(reader.u8()?);
    if len > max {
        return Err(FrameError::Bad(format!("a text of {len} bytes, where {max} are allowed")));
    }
    String::from_utf8(reader.take(len)?.to_vec()).map_err(|_| FrameError::Bad("a text is no UTF-8".into()))
}

/// Returns as much of a text as fits.
fn cut(text: &str, max: usize) -> &str {
    let fits = (0..=max.min(text.len())).rev().find_map(|len| text.get(..len));
    fits.unwrap_or_default()
}

fn put_string(out: &mut Vec<u8>, text: &str) {
    let text = cut(text, usize::from(u8::MAX));
    out.push(text.len() as u8);
    out.extend_from_slice(text.as_bytes());
}

/// Returns the greeting of the serving side: it distinguishes an answer from a shell's noise, and another version from
/// this one.
pub(crate) fn greeting(version: &str) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    out.extend_from_slice(&PROTOCOL.to_le_bytes());
    put_string(&mut out, version);
    out
}

/// A request of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// Names the directory; it is the first request.
    Hello {
        protocol: u32,
        /// Make the directory if it is missing.
        make: bool,
        version: String,
        directory: Vec<u8>,
    },
    /// Reads a part of an object, up to its end.
    Get { name: String, begin: u64, len: u32 },
    /// Writes an object.
    Put { name: String, bytes: Bytes },
    /// Writes an object unless there is one of this name.
    Create { name: String, bytes: Bytes },
    /// Lists objects of a folder whose names come after `after`, in order.
    List { folder: String, after: Option<String> },
    /// Deletes an object.
    Delete { name: String },
}

impl Request {
    pub(crate) fn kind(&self) -> u8 {
        match self {
            Self::Hello { .. } => 1,
            Self::Get { .. } => 2,
            Self::Put { .. } => 3,
            Self::Create { .. } => 4,
            Self::List { .. } => 5,
            Self::Delete { .. } => 6,
        }
    }

    /// Encodes a frame: the part before the object's bytes, and these bytes.
    pub(crate) fn encode(&self, number: u64) -> (Vec<u8>, Bytes) {
        let mut body = Vec::new();
        let mut payload = Bytes::new();
        match self {
            Self::Hello { protocol, make, version, directory } => {
                body.extend_from_slice(&protocol.to_le_bytes());
                body.push(u8::from(*make));
                put_string(&mut body, version);
                body.extend_from_slice(directory);
            }
            Self::Get { name, begin, len } => {
                put_string(&mut body, name);
                body.extend_from_slice(&begin.to_le_bytes());
                body.extend_from_slice(&len.to_le_bytes());
            }
            Self::Put { name, bytes } | Self::Create { name, bytes } => {
                put_string(&mut body, name);
                payload = bytes.clone();
            }
            Self::List { folder, after } => {
                put_string(&mut body, folder);
                put_string(&mut body, after.as_deref().unwrap_or_default());
            }
            Self::Delete { name } => put_string(&mut body, name),
        }
        (framed(self.kind(), number, &body, payload.len()), payload)
    }

    pub(crate) fn decode(frame: &Frame) -> FrameResult<Self> {
        let mut reader = Reader::new(&frame.body, "request");
        let rest = |reader: &Reader<'_>| {
            frame.body.slice(frame.body.len() - reader.remaining().min(frame.body.len())..)
        };
        let request = match frame.kind {
            1 => {
                let protocol = reader.u32()?;
                let make = reader.u8()? & 1 != 0;
                let version = string(&mut reader, VERSION_BYTES_MAX)?;
                if reader.remaining() > DIRECTORY_BYTES_MAX {
                    return Err(FrameError::Bad("the directory's name is too long".into()));
                }
                return Ok(Self::Hello { protocol, make, version, directory: rest(&reader).to_vec() });
            }
            2 => Self::Get { name: name(&mut reader)?, begin: reader.u64()?, len: reader.u32()? },
            3 => return Ok(Self::Put { name: name(&mut reader)?, bytes: rest(&reader) }),
            4 => return Ok(Self::Create { name: name(&mut reader)?, bytes: rest(&reader) }),
            5 => {
                let folder = name(&mut reader)?;
                let after = string(&mut reader, NAME_BYTES_MAX)?;
                Self::List { folder, after: Some(after).filter(|after| !after.is_empty()) }
            }
            6 => Self::Delete { name: name(&mut reader)? },
            kind => return Err(FrameError::Bad(format!("a request of kind {kind}, which is not known"))),
        };
        reader.end()?;
        if matches!(request, Self::Get { len, .. } if len as usize > PART_BYTES) {
            return Err(FrameError::Bad(format!("a part of more than {PART_BYTES} bytes")));
        }
        Ok(request)
    }
}

/// An answer of the serving side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The directory is there: the answer to the first request.
    Welcome,
    /// A part of an object, which has `size` bytes.
    Part { size: u64, bytes: Bytes },
    /// The request was carried out, and its effect will survive a crash of the host.
    Done,
    /// Names within the folder, with sizes; `more` is true if there are others.
    Names { more: bool, entries: Vec<(String, u64)> },
    /// There is no such object, or no such directory.
    Missing,
    /// There is an object of this name.
    Taken,
    /// The request failed.
    Failed(String),
    /// The request is not permitted.
    Refused(String),
}

impl Answer {
    pub(crate) fn kind(&self) -> u8 {
        match self {
            Self::Welcome => 129,
            Self::Part { .. } => 130,
            Self::Done => 131,
            Self::Names { .. } => 132,
            Self::Missing => 133,
            Self::Taken => 134,
            Self::Failed(_) => 135,
            Self::Refused(_) => 136,
        }
    }

    pub(crate) fn encode(&self, number: u64) -> (Vec<u8>, Bytes) {
        let mut body = Vec::new();
        let mut payload = Bytes::new();
        match self {
            Self::Welcome | Self::Done | Self::Missing | Self::Taken => {}
            Self::Part { size, bytes } => {
                body.extend_from_slice(&size.to_le_bytes());
                payload = bytes.clone();
            }
            Self::Names { more, entries } => {
                body.push(u8::from(*more));
                for (name, size) in entries {
                    put_string(&mut body, name);
                    body.extend_from_slice(&size.to_le_bytes());
                }
            }
            Self::Failed(text) | Self::Refused(text) => {
                body.extend_from_slice(cut(text, TEXT_BYTES_MAX).as_bytes());
            }
        }
        (framed(self.kind(), number, &body, payload.len()), payload)
    }

    pub(crate) fn decode(frame: &Frame) -> FrameResult<Self> {
        let mut reader = Reader::new(&frame.body, "answer");
        let text = || String::from_utf8_lossy(&frame.body).into_owned();
        let answer = match frame.kind {
            129 => Self::Welcome,
            130 => {
                let size = reader.u64()?;
                return Ok(Self::Part { size, bytes: frame.body.slice(size_of::<u64>()..) });
            }
            131 => Self::Done,
            132 => {
                let more = reader.u8()? & 1 != 0;
                let mut entries = Vec::new();
                while reader.remaining() > 0 && entries.len() < NAMES_PER_ANSWER {
                    entries.push((name(&mut reader)?, reader.u64()?));
                }
                Self::Names { more, entries }
            }
            133 => Self::Missing,
            134 => Self::Taken,
            135 => return Ok(Self::Failed(text())),
            136 => return Ok(Self::Refused(text())),
            kind => return Err(FrameError::Bad(format!("an answer of kind {kind}, which is not known"))),
        };
        reader.end()?;
        Ok(answer)
    }
}

fn framed(kind: u8, number: u64, body: &[u8], payload: usize) -> Vec<u8> {
    // Objects are at most as long as requests may be, so the length fits.
    let len = (HEAD_BYTES + body.len() + payload) as u32;
    let mut out = Vec::with_capacity(4 + HEAD_BYTES + body.len());
    out.extend_from_slice(&len.to_le_bytes());
    out.push(kind);
    out.extend_from_slice(&number.to_le_bytes());
    out.extend_from_slice(body);
    out
}

/// A frame as it came: its length was checked, its body was not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) kind: u8,
    pub(crate) number: u64,
    pub(crate) body: Bytes,
}

impl Frame {
    /// Reads the next frame; `None` if the connection has ended between two frames. `reserve` is told the frame's
    /// length before memory is taken for it.
    pub(crate) fn read<T>(
        input: &mut impl Read,
        max: u64,
        reserve: impl FnOnce(usize) -> T,
    ) -> FrameResult<Option<(Self, T)>> {
        let mut len = [0; 4];
        if !fill(input, &mut len)? {
            return Ok(None);
        }
        let len = u32::from_le_bytes(len);
        if u64::from(len) > max || (len as usize) < HEAD_BYTES {
            return Err(FrameError::Bad(format!(
                "a message of {len} bytes, where {HEAD_BYTES} to {max} are allowed"
            )));
        }
        let reserved = reserve(len as usize);
        let mut head = [0; HEAD_BYTES];
        if !fill(input, &mut head)? {
            return Err(FrameError::CutShort);
        }
        let [kind, number @ ..] = head;
        let mut body = Vec::new();
        let wanted = len as usize - HEAD_BYTES;
        if input.take(wanted as u64).read_to_end(&mut body)? < wanted {
            return Err(FrameError::CutShort);
        }
        Ok(Some((Self { kind, number: u64::from_le_bytes(number), body: body.into() }, reserved)))
    }

    /// Reads the next answer.
    pub(crate) fn read_answer(input: &mut impl Read) -> FrameResult<Option<Self>> {
        Ok(Self::read(input, ANSWER_BYTES_MAX, |_| ())?.map(|(frame, ())| frame))
    }
}

/// Fills a buffer; returns false if nothing came at all.
fn fill(input: &mut impl Read, buffer: &mut [u8]) -> FrameResult<bool> {
    let mut have = 0;
    while let Some(rest) = buffer.get_mut(have..).filter(|rest| !rest.is_empty()) {
        match input.read(rest) {
            Ok(0) if have == 0 => return Ok(false),
            Ok(0) => return Err(FrameError::CutShort),
            Ok(count) => have += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(true)
}
