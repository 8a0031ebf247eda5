//! Streams of any length on a connection, in pieces: each is a length in bytes (32 bits, little endian) and that number
//! of bytes. A piece of length 0 is the last. So the end of a stream differs from the end of its sender.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;

/// Longest piece in bytes; a longer one is an error.
const PIECE_BYTES_MAX: usize = 1 << 20;

/// Writes pieces, one for each call of `write`: callers with many small writes should buffer them.
pub struct PieceWriter<'a>(&'a UnixStream);

impl<'a> PieceWriter<'a> {
    /// Writes to `connection`.
    pub(crate) fn new(connection: &'a UnixStream) -> Self {
        Self(connection)
    }

    /// Ends the stream.
    pub fn end(mut self) -> io::Result<()> {
        self.0.write_all(&0_u32.to_le_bytes())
    }
}

impl Write for PieceWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let piece = bytes.get(..PIECE_BYTES_MAX).unwrap_or(bytes);
        if piece.is_empty() {
            return Ok(0);
        }
        self.0.write_all(&(piece.len() as u32).to_le_bytes())?;
        self.0.write_all(piece)?;
        Ok(piece.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Reads what a [`PieceWriter`] wrote. If the connection ends before the stream does, that is
/// [`io::ErrorKind::ConnectionAborted`].
pub struct PieceReader<'a> {
    connection: &'a UnixStream,
    /// Bytes left of the piece that is being read.
    left: usize,
    ended: bool,
}

impl<'a> PieceReader<'a> {
    /// Reads from `connection`.
    pub(crate) fn new(connection: &'a UnixStream) -> Self {
        Self { connection, left: 0, ended: false }
    }

    fn next_piece(&mut self) -> io::Result<()> {
        let mut len = [0; 4];
        self.connection.read_exact(&mut len).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => gone(),
            _ => error,
        })?;
        self.left = u32::from_le_bytes(len) as usize;
        if self.left > PIECE_BYTES_MAX {
            let what = format!("a piece of {} bytes is longer than the {PIECE_BYTES_MAX} allowed", self.left);
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        self.ended = self.left == 0;
        Ok(())
    }
}

fn gone() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, "the other side has gone away")
}

impl Read for PieceReader<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.left == 0 && !self.ended && !out.is_empty() {
            self.next_piece()?;
        }
        if self.ended || out.is_empty() {
            return Ok(0);
        }
        let len = out.len().min(self.left);
        let read = self.connection.read(&mut out[..len])?;
        if read == 0 {
            return Err(gone());
        }
        self.left -= read;
        Ok(read)
    }
}
