//! Takes the arguments of a request apart, front to back.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{Arguments, ParseError};
use crate::protocol::{self as p, Opcode};

/// Takes a request's arguments apart, front to back.
pub(super) struct Cursor<'a> {
    pub(super) op: Opcode,
    head: &'a [u8],
    tail: Option<&'a [u8]>,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(op: Opcode, arguments: Arguments<'a>) -> Self {
        Self { op, head: arguments.head, tail: arguments.tail }
    }

    pub(super) fn bad(&self, what: &'static str) -> ParseError {
        ParseError::Malformed { op: self.op.name(), what }
    }

    /// Takes the operation's own structure.
    pub(super) fn fixed<T: FromBytes + IntoBytes + Immutable + KnownLayout>(
        &mut self,
    ) -> Result<T, ParseError> {
        let (value, rest) =
            T::read_from_prefix(self.head).map_err(|_| self.bad("shorter than its own structure"))?;
        self.head = rest;
        Ok(value)
    }

    /// Returns the beginning of a structure that older kernels send shorter, but with at least `least` bytes; missing
    /// bytes are zero.
    pub(super) fn prefix<const N: usize>(&self, least: usize) -> Result<[u8; N], ParseError> {
        let len = self.head.len().min(N);
        if len < least {
            return Err(self.bad("shorter than its own structure"));
        }
        let mut bytes = [0; N];
        bytes[..len].copy_from_slice(&self.head[..len]);
        Ok(bytes)
    }

    /// Returns everything after the structure.
    pub(super) fn rest(&mut self) -> &'a [u8] {
        self.tail.unwrap_or(self.head)
    }

    fn set_rest(&mut self, rest: &'a [u8]) {
        match &mut self.tail {
            Some(tail) => *tail = rest,
            None => self.head = rest,
        }
    }

    /// Takes the bytes up to the next NUL.
    pub(super) fn string(&mut self) -> Result<&'a [u8], ParseError> {
        let rest = self.rest();
        let end = rest.iter().position(|&b| b == 0).ok_or_else(|| self.bad("a string does not end"))?;
        self.set_rest(&rest[end + 1..]);
        Ok(&rest[..end])
    }

    /// Takes a name in a directory.
    pub(super) fn name(&mut self) -> Result<&'a [u8], ParseError> {
        let name = self.string()?;
        match name {
            [] => Err(self.bad("an empty name")),
            _ if name.len() > p::NAME_BYTES_MAX => Err(ParseError::NameTooLong),
            _ if name.contains(&b'/') => Err(self.bad("a name with a slash")),
            _ => Ok(name),
        }
    }

    /// Takes a name that is about to be made or removed: neither `.` nor `..`.
    pub(super) fn new_name(&mut self) -> Result<&'a [u8], ParseError> {
        let name = self.name()?;
        if name == b"." || name == b".." { Err(self.bad("the name . or ..")) } else { Ok(name) }
    }

    /// Takes the name of an extended attribute: 1 to 255 bytes, slashes allowed.
    pub(super) fn name_of_xattr(&mut self) -> Result<&'a [u8], ParseError> {
        let name = self.string()?;
        if name.is_empty() || name.len() > p::NAME_BYTES_MAX {
            return Err(self.bad("an attribute's name that is empty or longer than 255 bytes"));
        }
        Ok(name)
    }

    /// Takes exactly `len` bytes that follow.
    pub(super) fn bytes(&mut self, len: u32) -> Result<&'a [u8], ParseError> {
        let rest = self.rest();
        let (bytes, rest) =
            rest.split_at_checked(len as usize).ok_or_else(|| self.bad("less data than announced"))?;
        self.set_rest(rest);
        Ok(bytes)
    }

    /// Checks that a file can have the sum of an offset and a length.
    pub(super) fn range(&self, offset: u64, len: u64) -> Result<(), ParseError> {
        match offset.checked_add(len) {
            Some(end) if end <= i64::MAX as u64 => Ok(()),
            _ => Err(self.bad("a range beyond the largest file")),
        }
    }
}
