//! A pipe between two threads of this process: a stream's bytes stay in the processor's cache, and the kernel copies
//! nothing.

use std::io::{self, BufRead, Read, Write};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

/// Number of pieces that wait for the reader.
const PIECES: usize = 8;
/// Largest length of a piece in bytes.
const PIECE_BYTES: usize = 256 << 10;

/// Bytes on their way. Their memory keeps its length, so that it is cleared only once.
#[derive(Default)]
struct Piece {
    memory: Vec<u8>,
    len: usize,
}

impl Piece {
    /// Returns at least `len` bytes of memory.
    fn room(&mut self, len: usize) -> &mut [u8] {
        if self.memory.len() < len {
            self.memory.resize(len, 0);
        }
        &mut self.memory
    }

    fn bytes(&self) -> &[u8] {
        self.memory.get(..self.len).unwrap_or_default()
    }
}

/// The end that is written to. Dropping it ends the stream.
pub struct Inlet {
    pieces: SyncSender<io::Result<Piece>>,
    /// Pieces that were read, to be filled again.
    read: Receiver<Piece>,
}

/// Reason why [`Inlet::pour`] passed nothing on.
#[derive(Debug)]
pub enum Unpoured {
    /// The source could not be read.
    Source(io::Error),
    /// The bytes could not be written.
    Output(io::Error),
}

/// The end that is read from. After it is dropped, writes fail with `BrokenPipe`.
pub struct Outlet {
    pieces: Receiver<io::Result<Piece>>,
    read: SyncSender<Piece>,
    piece: Piece,
    /// Number of bytes of `piece` that were read.
    at: usize,
    /// The error that comes next.
    failed: Option<io::Error>,
}

/// Makes a pipe. It holds some MiB.
pub fn passage() -> (Outlet, Inlet) {
    let (sender, pieces) = sync_channel(PIECES);
    // There is room for all pieces that there can be.
    let (read, again) = sync_channel(PIECES + 2);
    (
        Outlet { pieces, read, piece: Piece::default(), at: 0, failed: None },
        Inlet { pieces: sender, read: again },
    )
}

impl Inlet {
    /// Ends the stream by an error, which the reader gets after all that was written.
    pub fn fail(self, error: io::Error) {
        // The reader may have ended.
        let _ = self.pieces.send(Err(error));
    }

    /// Passes on what one call of `read` on `from` gives, without copying it; returns the number of bytes, which is 0 at
    /// the end.
    pub fn pour(&mut self, from: &mut dyn Read) -> Result<usize, Unpoured> {
        let mut piece = self.read.try_recv().unwrap_or_default();
        piece.len = from.read(piece.room(PIECE_BYTES)).map_err(Unpoured::Source)?;
        let len = piece.len;
        if len > 0 {
            self.send(piece).map_err(Unpoured::Output)?;
        }
        Ok(len)
    }

    fn send(&self, piece: Piece) -> io::Result<()> {
        self.pieces.send(Ok(piece)).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

impl Write for Inlet {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let bytes = bytes.get(..PIECE_BYTES).unwrap_or(bytes);
        let mut piece = self.read.try_recv().unwrap_or_default();
        let (place, _) = piece.room(bytes.len()).split_at_mut(bytes.len());
        place.copy_from_slice(bytes);
        piece.len = bytes.len();
        self.send(piece)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Outlet {
    /// Waits until there is something to read, or the stream has ended. Returns false if that takes longer than `limit`.
    pub fn wait(&mut self, limit: Duration) -> bool {
        while self.at == self.piece.len && self.failed.is_none() {
            match self.pieces.recv_timeout(limit) {
                Ok(next) => self.begin(next),
                Err(RecvTimeoutError::Timeout) => return false,
                Err(RecvTimeoutError::Disconnected) => return true,
            }
        }
        true
    }

    fn begin(&mut self, next: io::Result<Piece>) {
        match next {
            Ok(next) => {
                let read = std::mem::replace(&mut self.piece, next);
                self.at = 0;
                // The writer may have ended.
                let _ = self.read.try_send(read);
            }
            Err(error) => self.failed = Some(error),
        }
    }
}

impl BufRead for Outlet {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        while self.at == self.piece.len {
            if let Some(error) = self.failed.take() {
                return Err(error);
            }
            let Ok(next) = self.pieces.recv() else { return Ok(&[]) };
            self.begin(next);
        }
        Ok(self.piece.bytes().get(self.at..).unwrap_or_default())
    }

    fn consume(&mut self, len: usize) {
        self.at = self.piece.len.min(self.at + len);
    }
}

impl Read for Outlet {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let rest = self.fill_buf()?;
        let (now, _) = rest.split_at(rest.len().min(out.len()));
        out.get_mut(..now.len()).unwrap_or_default().copy_from_slice(now);
        let read = now.len();
        self.consume(read);
        Ok(read)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_in_order_and_end_with_the_writer() {
        let (mut outlet, mut inlet) = passage();
        let all: Vec<u8> = (0..3_000_000_u32).map(|at| (at.wrapping_mul(0x9E37_79B9) >> 24) as u8).collect();
        let mut found = Vec::new();
        std::thread::scope(|scope| {
            let all = &all;
            scope.spawn(move || {
                for (piece, len) in all.chunks(700_001).zip([1, 7, 100_000, 300_000, 9]) {
                    inlet.write_all(&[]).unwrap();
                    piece.chunks(len).for_each(|bytes| inlet.write_all(bytes).unwrap());
                }
            });
            outlet.read_to_end(&mut found).unwrap();
        });
        assert!(found == all);
    }

    #[test]
    fn what_is_poured_comes_as_it_was_read() {
        let (mut outlet, mut inlet) = passage();
        let all: Vec<u8> = (0..2_000_003_u32).map(|at| (at.wrapping_mul(0x9E37_79B9) >> 24) as u8).collect();
        let mut found = Vec::new();
        std::thread::scope(|scope| {
            let mut rest = all.as_slice();
            scope.spawn(move || {
                // Short and long pieces take turns in the same memory.
                for len in [3, 400_000, 1, 300_000, 700_000].into_iter().cycle() {
                    let mut now = (&mut rest).take(len);
                    while inlet.pour(&mut now).unwrap() > 0 {}
                    if rest.is_empty() {
                        return;
                    }
                    inlet.write_all(&rest[..1]).unwrap();
                    rest = &rest[1..];
                }
            });
            outlet.read_to_end(&mut found).unwrap();
        });
        assert!(found == all);
    }

    #[test]
    fn pouring_tells_which_end_failed() {
        struct Torn;
        impl Read for Torn {
            fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
                Err(io::ErrorKind::ConnectionReset.into())
            }
        }
        let (outlet, mut inlet) = passage();
        assert!(matches!(inlet.pour(&mut Torn), Err(Unpoured::Source(_))));
        assert_eq!(inlet.pour(&mut io::empty()).unwrap(), 0);
        drop(outlet);
        assert!(matches!(inlet.pour(&mut io::repeat(7)), Err(Unpoured::Output(_))));
    }

    #[test]
    fn waiting_ends_with_the_limit_with_bytes_or_with_the_stream() {
        let (mut outlet, mut inlet) = passage();
        assert!(!outlet.wait(Duration::ZERO), "there is nothing yet");
        inlet.write_all(b"one").unwrap();
        assert!(outlet.wait(Duration::ZERO));
        assert_eq!(outlet.fill_buf().unwrap(), b"one");
        outlet.consume(3);
        assert!(!outlet.wait(Duration::ZERO), "all was read");
        drop(inlet);
        assert!(outlet.wait(Duration::ZERO));
        assert_eq!(outlet.fill_buf().unwrap(), b"");
    }

    #[test]
    fn an_error_comes_after_what_was_written() {
        let (mut outlet, mut inlet) = passage();
        inlet.write_all(b"one").unwrap();
        inlet.fail(io::ErrorKind::ConnectionAborted.into());
        let mut found = Vec::new();
        assert!(outlet.wait(Duration::ZERO));
        let error = outlet.read_to_end(&mut found).unwrap_err();
        assert_eq!((found.as_slice(), error.kind()), (b"one".as_slice(), io::ErrorKind::ConnectionAborted));
    }

    #[test]
    fn a_reader_that_is_gone_is_a_broken_pipe() {
        let (outlet, mut inlet) = passage();
        inlet.write_all(b"one").unwrap();
        drop(outlet);
        assert_eq!(inlet.write_all(b"two").unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }
}
