//! Compresses a stream on several threads. The result does not depend on their number.
//!
//! zstd and LZ4 become frames, one after the other, which all their readers take for one stream. gzip stays one member:
//! blocks are deflated apart and end at a byte, so they are joined as they are. Some readers, PostgreSQL's own among
//! them, stop at the end of the first member.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::str::FromStr;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use crate::error::Error;
use crate::limits::{BLOCKS_PER_WORKER, DEFLATE_BYTES, FRAME_BYTES, WORKERS_MAX};

/// An algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// No compression.
    None,
    /// `.gz`, levels 1 to 9.
    Gzip,
    /// `.lz4`, levels 1 to 12.
    Lz4,
    /// `.zst`, levels 1 to 22.
    Zstd,
}

/// How archives are compressed: algorithm, level and threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compression {
    /// Algorithm.
    pub method: Method,
    /// Level of that algorithm.
    pub level: u32,
    /// Number of threads.
    pub workers: usize,
}

impl Compression {
    /// No compression.
    pub const NONE: Self = Self { method: Method::None, level: 0, workers: 1 };

    fn of(method: Method) -> Self {
        let level = match method {
            Method::None => 0,
            Method::Gzip => 6,
            Method::Lz4 => 1,
            Method::Zstd => 3,
        };
        let workers = std::thread::available_parallelism().map_or(1, usize::from).min(WORKERS_MAX);
        Self { method, level, workers }
    }

    /// Returns the suffix of an archive's name.
    pub fn suffix(self) -> &'static str {
        match self.method {
            Method::None => "",
            Method::Gzip => ".gz",
            Method::Lz4 => ".lz4",
            Method::Zstd => ".zst",
        }
    }

    fn set_level(&mut self, text: &str) -> Result<(), Error> {
        let max = match self.method {
            Method::None => 0,
            Method::Gzip => 9,
            Method::Lz4 => 12,
            Method::Zstd => 22,
        };
        match text.parse() {
            Ok(level) if (1..=max).contains(&level) => self.level = level,
            _ => return Err(wrong(format!("its level is a number from 1 to {max}, not \"{text}\""))),
        }
        Ok(())
    }

    fn set(&mut self, word: &str) -> Result<(), Error> {
        match word.split_once('=') {
            Some(("level", level)) => self.set_level(level),
            Some(("workers", workers)) => match workers.parse() {
                Ok(workers) if (1..=WORKERS_MAX).contains(&workers) => {
                    self.workers = workers;
                    Ok(())
                }
                _ => Err(wrong(format!("workers are 1 to {WORKERS_MAX}, not \"{workers}\""))),
            },
            None if word.bytes().all(|byte| byte.is_ascii_digit()) => self.set_level(word),
            _ => Err(wrong(format!("\"{word}\" is no detail: there are level=N and workers=N"))),
        }
    }
}

fn wrong(why: impl std::fmt::Display) -> Error {
    Error::Invalid(format!("compression: {why}"))
}

impl FromStr for Compression {
    type Err = Error;

    /// Parses the forms that `pg_basebackup` has: `zstd`, `zstd:9`, `zstd:level=9,workers=4`; a number is a level of
    /// gzip, and 0 is none.
    fn from_str(text: &str) -> Result<Self, Error> {
        if text.bytes().all(|byte| byte.is_ascii_digit()) && !text.is_empty() {
            let mut gzip = Self::of(Method::Gzip);
            return if text == "0" { Ok(Self::NONE) } else { gzip.set_level(text).map(|()| gzip) };
        }
        let (name, details) = text.split_once(':').map_or((text, None), |(name, rest)| (name, Some(rest)));
        let mut compression = match name {
            "none" if details.is_some() => return Err(wrong("none has no details")),
            "none" => Self::NONE,
            "gzip" => Self::of(Method::Gzip),
            "lz4" => Self::of(Method::Lz4),
            "zstd" => Self::of(Method::Zstd),
            _ => return Err(wrong(format!("\"{name}\" is not known: there are none, gzip, lz4 and zstd"))),
        };
        for word in details.into_iter().flat_map(|details| details.split(',')) {
            compression.set(word)?;
        }
        Ok(compression)
    }
}

/// A compressed block, with the CRC-32 of its content.
struct Block {
    bytes: Vec<u8>,
    sum: crc32fast::Hasher,
}

type Answer = SyncSender<io::Result<Block>>;

/// A writer that compresses on threads of its own.
pub struct Compressor<W: Write> {
    to: W,
    compression: Compression,
    block: Vec<u8>,
    jobs: Option<Sender<(Vec<u8>, Answer)>>,
    waiting: VecDeque<Receiver<io::Result<Block>>>,
    workers: Vec<JoinHandle<()>>,
    sum: crc32fast::Hasher,
    len: u64,
}

impl<W: Write> Compressor<W> {
    /// Makes a compressor that writes to `to`. With [`Method::None`] it passes on what comes.
    pub fn new(mut to: W, compression: Compression) -> io::Result<Self> {
        let (jobs, work) = channel::<(Vec<u8>, Answer)>();
        let mut workers = Vec::new();
        if compression.method == Method::Gzip {
            // This header says: deflated, no flags, no time, made on Unix (RFC 1952).
            to.write_all(&[0x1F, 0x8B, 8, 0, 0, 0, 0, 0, 0, 3])?;
        }
        if compression.method != Method::None {
            let work = Arc::new(Mutex::new(work));
            for number in 0..compression.workers.max(1) {
                let work = Arc::clone(&work);
                let thread = std::thread::Builder::new().name(format!("compress-{number}"));
                workers.push(thread.spawn(move || serve(&work, compression))?);
            }
        }
        let (sum, waiting) = (crc32fast::Hasher::new(), VecDeque::new());
        Ok(Self { to, compression, block: Vec::new(), jobs: Some(jobs), waiting, workers, sum, len: 0 })
    }

    fn block_bytes(&self) -> usize {
        if self.compression.method == Method::Gzip { DEFLATE_BYTES } else { FRAME_BYTES }
    }

    fn dispatch(&mut self) -> io::Result<()> {
        while self.waiting.len() >= self.compression.workers * BLOCKS_PER_WORKER {
            self.take()?;
        }
        let next = Vec::with_capacity(self.block_bytes());
        let block = std::mem::replace(&mut self.block, next);
        let (answer, answered) = sync_channel(1);
        self.waiting.push_back(answered);
        let sent = self.jobs.as_ref().is_some_and(|jobs| jobs.send((block, answer)).is_ok());
        if sent { Ok(()) } else { Err(ended()) }
    }

    /// Writes the next block.
    fn take(&mut self) -> io::Result<()> {
        let Some(next) = self.waiting.pop_front() else { return Ok(()) };
        let block = next.recv().map_err(|_| ended())??;
        self.sum.combine(&block.sum);
        self.to.write_all(&block.bytes)
    }

    /// Writes the rest, and the end of the stream; returns the inner writer.
    pub fn finish(mut self) -> io::Result<W> {
        // An empty stream becomes an empty frame.
        if !self.block.is_empty() || (self.len == 0 && self.compression.method != Method::None) {
            self.dispatch()?;
        }
        while !self.waiting.is_empty() {
            self.take()?;
        }
        self.jobs = None;
        for worker in self.workers.drain(..) {
            worker.join().map_err(|_| ended())?;
        }
        if self.compression.method == Method::Gzip {
            // The end is an empty last block, the checksum, and the length modulo 2^32.
            self.to.write_all(&[3, 0])?;
            self.to.write_all(&self.sum.clone().finalize().to_le_bytes())?;
            self.to.write_all(&(self.len as u32).to_le_bytes())?;
        }
        self.to.flush()?;
        Ok(self.to)
    }
}

fn ended() -> io::Error {
    io::Error::other("a thread that compresses has ended by a bug")
}

impl<W: Write> Write for Compressor<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.compression.method == Method::None {
            return self.to.write(bytes);
        }
        let room = self.block_bytes() - self.block.len();
        let part = bytes.get(..room.min(bytes.len())).unwrap_or_default();
        self.block.extend_from_slice(part);
        self.len += part.len() as u64;
        if self.block.len() == self.block_bytes() {
            self.dispatch()?;
        }
        Ok(part.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

/// Compresses blocks until no more come.
fn serve(work: &Mutex<Receiver<(Vec<u8>, Answer)>>, compression: Compression) {
    let mut coder = Coder::new(compression);
    loop {
        let next = work.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok((block, answer)) = next else { return };
        let coded = match &mut coder {
            Ok(coder) => coder.code(&block),
            Err(error) => Err(io::Error::new(error.kind(), error.to_string())),
        };
        // The receiver may be gone, if it failed meanwhile.
        let _gone = answer.send(coded);
    }
}

enum Coder {
    Gzip(Box<flate2::Compress>),
    Lz4(u32),
    Zstd(zstd::bulk::Compressor<'static>),
}

impl Coder {
    fn new(compression: Compression) -> io::Result<Self> {
        Ok(match compression.method {
            Method::Gzip => Self::Gzip(Box::new(flate2::Compress::new(
                flate2::Compression::new(compression.level),
                false,
            ))),
            Method::Lz4 => Self::Lz4(compression.level),
            Method::None | Method::Zstd => {
                let mut coder = zstd::bulk::Compressor::new(i32::try_from(compression.level).unwrap_or(3))?;
                coder.set_parameter(zstd::zstd_safe::CParameter::ChecksumFlag(true))?;
                Self::Zstd(coder)
            }
        })
    }

    fn code(&mut self, block: &[u8]) -> io::Result<Block> {
        let mut sum = crc32fast::Hasher::new();
        let bytes = match self {
            Self::Zstd(coder) => coder.compress(block)?,
            Self::Lz4(level) => lz4_frame(block, *level)?,
            Self::Gzip(coder) => {
                sum.update(block);
                deflated(coder, block)?
            }
        };
        Ok(Block { bytes, sum })
    }
}

fn lz4_frame(block: &[u8], level: u32) -> io::Result<Vec<u8>> {
    let mut coder = lz4::EncoderBuilder::new()
        .level(level)
        .checksum(lz4::ContentChecksum::ChecksumEnabled)
        .block_size(lz4::BlockSize::Max4MB)
        .build(Vec::with_capacity(block.len() / 2))?;
    coder.write_all(block)?;
    let (bytes, done) = coder.finish();
    done.map(|()| bytes)
}

/// Deflates a block so that it ends at a byte, without the mark of the last block.
fn deflated(coder: &mut flate2::Compress, block: &[u8]) -> io::Result<Vec<u8>> {
    coder.reset();
    let mut bytes = Vec::with_capacity(block.len() / 2 + 1024);
    let mut done = 0;
    loop {
        let before = coder.total_in();
        let rest = block.get(done..).unwrap_or_default();
        coder.compress_vec(rest, &mut bytes, flate2::FlushCompress::Sync).map_err(io::Error::other)?;
        done += usize::try_from(coder.total_in() - before).unwrap_or(0);
        // If there is room left, everything was flushed.
        if done == block.len() && bytes.len() < bytes.capacity() {
            return Ok(bytes);
        }
        bytes.reserve(block.len() / 4 + 1024);
    }
}

#[cfg(test)]
#[path = "compress_tests.rs"]
mod tests;
