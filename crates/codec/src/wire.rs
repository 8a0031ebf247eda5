//! Writes the bytes of models plainly, and reads them without trust.

use crate::Corrupt;

/// Appends `value` as a varint: seven bits per byte, low ones first.
pub(crate) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends the length of `bytes` as a varint, and `bytes`.
pub(crate) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// A reader of bytes that are not trusted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub(crate) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    pub(crate) fn take(&mut self, len: usize) -> Result<&'a [u8], Corrupt> {
        let (taken, rest) = self.rest.split_at_checked(len).ok_or(Corrupt("bytes are missing"))?;
        self.rest = rest;
        Ok(taken)
    }

    pub(crate) fn byte(&mut self) -> Result<u8, Corrupt> {
        self.take(1).map(|bytes| bytes[0])
    }

    pub(crate) fn varint(&mut self) -> Result<u64, Corrupt> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7F);
            if bits << shift >> shift != bits {
                break;
            }
            value |= bits << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(Corrupt("a number is too large"))
    }

    /// Reads a number of at most `max`.
    pub(crate) fn at_most(&mut self, max: usize) -> Result<usize, Corrupt> {
        let value = self.varint()?;
        usize::try_from(value)
            .ok()
            .filter(|&value| value <= max)
            .ok_or(Corrupt("a number is beyond its bound"))
    }

    /// Reads bytes that [`put_bytes`] wrote, at most `max` of them.
    pub(crate) fn bytes(&mut self, max: usize) -> Result<&'a [u8], Corrupt> {
        let len = self.at_most(max)?;
        self.take(len)
    }
}

pub(crate) fn le16(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..).and_then(|rest| rest.first_chunk().copied()).map_or(0, u16::from_le_bytes)
}

pub(crate) fn le32(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(|rest| rest.first_chunk().copied()).map_or(0, u32::from_le_bytes)
}

pub(crate) fn be16(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..).and_then(|rest| rest.first_chunk().copied()).map_or(0, u16::from_be_bytes)
}

pub(crate) fn be32(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(|rest| rest.first_chunk().copied()).map_or(0, u32::from_be_bytes)
}

pub(crate) fn be64(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(|rest| rest.first_chunk().copied()).map_or(0, u64::from_be_bytes)
}
