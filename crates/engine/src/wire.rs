//! Reads and writes small binary structures: little-endian integers and varints.
//!
//! Bytes of unknown origin become numbers only through [`Reader`]. Every read is checked, and an end that comes too
//! early is a damaged object, not a panic.

use crate::{Error, Result};

/// Appends an unsigned LEB128 varint.
pub fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends a signed number as a zigzag varint.
pub(crate) fn put_signed(out: &mut Vec<u8>, value: i64) {
    put_varint(out, ((value << 1) ^ (value >> 63)) as u64);
}

/// Appends length and bytes.
pub fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// A cursor over bytes that are not trusted.
#[derive(Clone)]
pub struct Reader<'a> {
    bytes: &'a [u8],
    what: &'static str,
    ran_out: bool,
}

impl<'a> Reader<'a> {
    /// Creates a reader of `bytes`, which are said to be a `what`.
    pub fn new(bytes: &'a [u8], what: &'static str) -> Self {
        Self { bytes, what, ran_out: false }
    }
    fn short(&mut self) -> Error {
        self.ran_out = true;
        Error::corrupt(self.what, "it ends too early")
    }
    /// Returns true if a read failed because there were too few bytes.
    pub(crate) fn ran_out(&self) -> bool {
        self.ran_out
    }
    /// Creates an error about this object.
    pub fn bad(&self, detail: &str) -> Error {
        Error::corrupt(self.what, detail)
    }
    /// Returns the number of bytes that are left.
    pub fn remaining(&self) -> usize {
        self.bytes.len()
    }
    /// Reads the next `len` bytes.
    pub fn take(&mut self, len: usize) -> Result<&'a [u8]> {
        if len > self.bytes.len() {
            return Err(self.short());
        }
        let (head, rest) = self.bytes.split_at(len);
        self.bytes = rest;
        Ok(head)
    }
    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        match self.bytes.split_first_chunk::<N>() {
            Some((head, rest)) => {
                self.bytes = rest;
                Ok(*head)
            }
            None => Err(self.short()),
        }
    }
    /// Reads the next byte.
    #[inline]
    pub fn u8(&mut self) -> Result<u8> {
        Ok(self.array::<1>()?[0])
    }
    /// Reads a little-endian u16.
    pub(crate) fn u16(&mut self) -> Result<u16> {
        Ok(u16::from_le_bytes(self.array()?))
    }
    /// Reads a little-endian u32.
    pub fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array()?))
    }
    /// Reads a little-endian u64.
    pub fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array()?))
    }
    /// Reads a varint of at most 64 bits.
    #[inline]
    pub fn varint(&mut self) -> Result<u64> {
        // Most numbers are small, so one byte is tried first.
        if let Some((byte, rest)) = self.bytes.split_first()
            && *byte < 0x80
        {
            self.bytes = rest;
            return Ok((*byte).into());
        }
        self.long_varint()
    }
    /// Reads one of more than one byte.
    fn long_varint(&mut self) -> Result<u64> {
        // Most of these are of up to four bytes, and others follow them.
        if let Some(word) = self.bytes.first_chunk::<4>() {
            let word = u32::from_le_bytes(*word);
            let len = (!word & 0x8080_8080).trailing_zeros() as usize / 8 + 1;
            if len <= 4 {
                self.bytes = self.bytes.get(len..).unwrap_or_default();
                let bits = |at: usize| if at < len { word >> (8 * at) & 0x7F } else { 0 };
                return Ok((bits(0) | bits(1) << 7 | bits(2) << 14 | bits(3) << 21).into());
            }
        }
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.u8()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                return Err(self.bad("a varint has more than 64 bits"));
            }
            value |= bits << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(self.bad("a varint does not end"))
    }
    /// Reads a varint that must fit 32 bits.
    #[inline]
    pub fn varint_u32(&mut self) -> Result<u32> {
        u32::try_from(self.varint()?).map_err(|_| self.bad("a number is out of range"))
    }
    /// Reads a zigzag varint.
    pub fn signed(&mut self) -> Result<i64> {
        let raw = self.varint()?;
        Ok((raw >> 1) as i64 ^ -((raw & 1) as i64))
    }
    /// Reads a length, which is at most `max`, and as many bytes.
    pub fn bytes(&mut self, max: usize) -> Result<&'a [u8]> {
        let len = usize::try_from(self.varint()?).ok().filter(|len| *len <= max);
        let len = len.ok_or_else(|| self.bad("a length is out of range"))?;
        self.take(len)
    }
    /// Ends the reading. Fails if any bytes are left.
    pub fn end(self) -> Result<()> {
        if self.bytes.is_empty() { Ok(()) } else { Err(self.bad("it goes on after its end")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn numbers_survive(values: Vec<(u64, i64, u8)>, text: Vec<u8>) {
            // Of every length.
            let of_width = |(unsigned, signed, width): (u64, i64, u8)| (unsigned >> (width % 64), signed >> (width % 64));
            let values: Vec<(u64, i64)> = values.into_iter().map(of_width).collect();
            let mut out = Vec::new();
            for (unsigned, signed) in &values {
                put_varint(&mut out, *unsigned);
                put_signed(&mut out, *signed);
            }
            put_bytes(&mut out, &text);
            let mut reader = Reader::new(&out, "test");
            for (unsigned, signed) in &values {
                prop_assert_eq!(reader.varint().unwrap(), *unsigned);
                prop_assert_eq!(reader.signed().unwrap(), *signed);
            }
            prop_assert_eq!(reader.bytes(text.len()).unwrap(), &text[..]);
            reader.end().unwrap();
        }

        #[test]
        fn hostile_bytes_are_errors_or_numbers(bytes: Vec<u8>) {
            let mut reader = Reader::new(&bytes, "test");
            while reader.varint().is_ok() {}
            let mut reader = Reader::new(&bytes, "test");
            let _ = reader.bytes(16);
        }
    }
}
