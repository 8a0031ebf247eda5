//! Names snapshots in all pools, and tells how far a receiver has come.

use std::fmt;
use std::str::FromStr;

use crate::pool::Guid;
use crate::wire::{Reader, put_varint};
use crate::{Error, Key, Result};

/// Name of a snapshot, and of all that were received from it, in all pools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// GUID of the pool in which the snapshot was made.
    pub pool: Guid,
    /// Number of the snapshot in that pool.
    pub number: u64,
    /// Time at which it was made, in seconds since 1970. It tells apart snapshots that copies of one pool made.
    pub created: u64,
}

impl Origin {
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.pool.0);
        out.extend_from_slice(&self.number.to_le_bytes());
        out.extend_from_slice(&self.created.to_le_bytes());
    }

    pub(super) fn decode(reader: &mut Reader<'_>) -> Result<Self> {
        let mut pool = Guid([0; 16]);
        pool.0.copy_from_slice(reader.take(16)?);
        Ok(Self { pool, number: reader.u64()?, created: reader.u64()? })
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut bytes = Vec::new();
        self.encode(&mut bytes);
        f.write_str(&hex(&bytes))
    }
}

impl FromStr for Origin {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let bytes = unhex(text).ok_or_else(|| Error::Invalid(format!("'{text}' names no snapshot")))?;
        let mut reader = Reader::new(&bytes, "name of a snapshot");
        let origin = Self::decode(&mut reader)?;
        reader.end()?;
        Ok(origin)
    }
}

/// Progress of a receiver, from which [`Source::Resume`](super::Source::Resume) goes on. Its text is one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token {
    /// The snapshot that is being received.
    pub to: Origin,
    /// The snapshot that the stream comes after, if any.
    pub from: Option<Origin>,
    /// Last key that came; `None` if nothing came.
    pub(super) after: Option<Key>,
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut bytes = Vec::new();
        self.to.encode(&mut bytes);
        bytes.push(u8::from(self.from.is_some()) | u8::from(self.after.is_some()) << 1);
        self.from.iter().for_each(|from| from.encode(&mut bytes));
        if let Some(key) = &self.after {
            put_varint(&mut bytes, key.object);
            bytes.push(key.kind);
            put_varint(&mut bytes, key.offset);
        }
        let checksum = crc32c::crc32c(&bytes);
        bytes.extend_from_slice(&checksum.to_le_bytes());
        write!(f, "1-{}", hex(&bytes))
    }
}

impl FromStr for Token {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let bad = || Error::Invalid(format!("'{text}' is no token of a receive that was interrupted"));
        let bytes = text.trim().strip_prefix("1-").and_then(unhex).ok_or_else(bad)?;
        let (body, checksum) = bytes.split_last_chunk::<4>().ok_or_else(bad)?;
        if crc32c::crc32c(body).to_le_bytes() != *checksum {
            return Err(bad());
        }
        let mut reader = Reader::new(body, "token");
        let mut read = || {
            let to = Origin::decode(&mut reader)?;
            let flags = reader.u8()?;
            let from = if flags & 1 != 0 { Some(Origin::decode(&mut reader)?) } else { None };
            let after = match flags & 2 {
                0 => None,
                _ => Some(Key { object: reader.varint()?, kind: reader.u8()?, offset: reader.varint()? }),
            };
            Ok(Self { to, from, after })
        };
        read().map_err(|_: Error| bad())
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    if !text.bytes().all(|byte| byte.is_ascii_hexdigit()) || text.len() > 1024 {
        return None;
    }
    let digits = text.as_bytes().chunks(2);
    digits
        .map(|pair| {
            u8::from_str_radix(std::str::from_utf8(pair).ok().filter(|pair| pair.len() == 2)?, 16).ok()
        })
        .collect()
}
