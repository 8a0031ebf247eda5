//! Takes the arguments of a request apart, front to back.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{Arguments, ParseError, Span};
use crate::protocol::{self as p, Opcode};

/// Takes a request's arguments apart, front to back.
pub(super) struct Cursor<'a> {
    pub(super) op: Opcode,
    /// Everything, which spans refer to.
    all: Arguments<'a>,
    head: &'a [u8],
    tail: Option<&'a [u8]>,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(op: Opcode, arguments: Arguments<'a>) -> Self {
        Self { op, all: arguments, head: arguments.head, tail: arguments.tail }
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
    fn rest(&self) -> &'a [u8] {
        self.tail.unwrap_or(self.head)
    }

    /// Takes the next `len` bytes, and passes over `behind` more.
    fn take(&mut self, len: usize, behind: usize) -> Result<Span, ParseError> {
        let rest = self.rest();
        let start = self.all.following().len() - rest.len();
        let (Ok(start), Ok(size)) = (u32::try_from(start), u32::try_from(len)) else {
            return Err(self.bad("longer than any request"));
        };
        let Some(rest) = len.checked_add(behind).and_then(|taken| rest.get(taken..)) else {
            return Err(self.bad("less data than announced"));
        };
        match &mut self.tail {
            Some(tail) => *tail = rest,
            None => self.head = rest,
        }
        Ok(Span { start, len: size })
    }

    /// Takes the bytes up to the next NUL.
    pub(super) fn string(&mut self) -> Result<Span, ParseError> {
        let end = self.rest().iter().position(|&b| b == 0);
        let end = end.ok_or_else(|| self.bad("a string does not end"))?;
        self.take(end, 1)
    }

    /// Takes a name in a directory.
    pub(super) fn name(&mut self) -> Result<Span, ParseError> {
        let span = self.string()?;
        match self.all.bytes(span) {
            [] => Err(self.bad("an empty name")),
            name if name.len() > p::NAME_BYTES_MAX => Err(ParseError::NameTooLong),
            name if name.contains(&b'/') => Err(self.bad("a name with a slash")),
            _ => Ok(span),
        }
    }

    /// Takes a name that is about to be made or removed: neither `.` nor `..`.
    pub(super) fn new_name(&mut self) -> Result<Span, ParseError> {
        let span = self.name()?;
        let name = self.all.bytes(span);
        if name == b"." || name == b".." { Err(self.bad("the name . or ..")) } else { Ok(span) }
    }

    /// Takes the name of an extended attribute: 1 to 255 bytes, slashes allowed.
    pub(super) fn name_of_xattr(&mut self) -> Result<Span, ParseError> {
        let name = self.string()?;
        if name.is_empty() || name.len() as usize > p::NAME_BYTES_MAX {
            return Err(self.bad("an attribute's name that is empty or longer than 255 bytes"));
        }
        Ok(name)
    }

    /// Takes exactly `len` bytes that follow.
    pub(super) fn bytes(&mut self, len: u32) -> Result<Span, ParseError> {
        self.take(len as usize, 0)
    }

    /// Takes a list of `count` entries of `each` bytes.
    pub(super) fn list(&mut self, count: u32, each: usize) -> Result<Span, ParseError> {
        let len = (count as usize).checked_mul(each).filter(|len| *len <= self.rest().len());
        self.take(len.ok_or_else(|| self.bad("fewer entries than announced"))?, 0)
    }

    /// Checks that a file can have the sum of an offset and a length.
    pub(super) fn range(&self, offset: u64, len: u64) -> Result<(), ParseError> {
        match offset.checked_add(len) {
            Some(end) if end <= i64::MAX as u64 => Ok(()),
            _ => Err(self.bad("a range beyond the largest file")),
        }
    }
}
