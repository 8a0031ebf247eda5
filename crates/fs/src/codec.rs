//! Encodes and decodes what the file system stores in the dataset's map. Integers are little-endian.
//!
//! | object | kind | offset | value |
//! |---|---|---|---|
//! | 0 | `HEADER` | 0 | the file system's header |
//! | 0 | `COUNTER` | 0 | 8 bytes: the first inode number / object id not yet reserved |
//! | 0 | `ORPHAN_INODE` | inode | 1 byte (1): an inode without a name |
//! | 0 | `ORPHAN_DATA` | object | 1 byte (1): an object whose pages belong to no file |
//! | 0 | `FREEING` | inode | 1 byte (1): an inode with pages that are yet to be freed |
//! | 0 | `FILLING` | object | 1 byte (1): an object that a file's contents are being copied into |
//! | inode | `INODE` | 0 | 104 bytes and more, see [`Inode`] |
//! | inode | `ENTRY` | slot | length of the name (1), name, inode (8), kind as d_type (1) |
//! | inode | `XATTR` | slot | length of the name (1), name, value |
//! | inode | `TARGET` | 0 | target of a symbolic link |
//! | inode | `ACL` | 0 access, 1 default | as the xattrs `system.posix_acl_*` |
//! | object | `Key::COMPRESSION` | 0 | 1 byte: the codec of a file's pages, as its inode has it |
//!
//! A slot is 55 bits of the name's seeded hash, and 8 bits that tell apart names whose hashes agree (`named.rs`).

use pagefold_engine::dataset::Change;
use pagefold_engine::record::Compression;
use pagefold_engine::types::Key;

use crate::error::{FsError, Result};
use crate::limits::{FILE_BYTES_MAX, XATTR_LIST_MAX};
use crate::ranges::Ranges;
use crate::types::{FileKind, Time};

/// Kinds of keys.
pub(crate) mod kind {
    pub(crate) const HEADER: u8 = 0x01;
    pub(crate) const COUNTER: u8 = 0x02;
    pub(crate) const ORPHAN_INODE: u8 = 0x03;
    pub(crate) const ORPHAN_DATA: u8 = 0x04;
    pub(crate) const FREEING: u8 = 0x05;
    pub(crate) const FILLING: u8 = 0x06;
    pub(crate) const INODE: u8 = 0x10;
    pub(crate) const ENTRY: u8 = 0x11;
    pub(crate) const XATTR: u8 = 0x12;
    pub(crate) const TARGET: u8 = 0x13;
    pub(crate) const ACL: u8 = 0x14;
}

pub(crate) const HEADER_KEY: Key = Key::new(0, kind::HEADER, 0);
pub(crate) const COUNTER_KEY: Key = Key::new(0, kind::COUNTER, 0);

/// Version of the inode's layout.
const INODE_VERSION: u8 = 1;
/// Bytes of a stored inode, up to its ranges.
pub(crate) const INODE_BYTES: usize = 104;
/// Bytes of a stored range.
const RANGE_BYTES: usize = 16;

/// Flags of an inode.
pub(crate) mod flag {
    /// Bytes after the end of the file, in its last page, may be other than zero; they are zeroed when it grows.
    pub(crate) const TAIL: u16 = 1;
    /// The inode's own number has been used as an object id.
    pub(crate) const OBJECT_USED: u16 = 2;
    /// Made without a name and not named yet: may be linked.
    pub(crate) const TMPFILE: u16 = 4;
    /// Has an access ACL.
    pub(crate) const ACL_ACCESS: u16 = 8;
    /// Has a default ACL.
    pub(crate) const ACL_DEFAULT: u16 = 16;
    /// Has `security.capability`, which changes of the contents remove.
    pub(crate) const CAPS: u16 = 32;
    pub(crate) const ALL: u16 = 63;
    /// Position of the lowest bit of the codec that is set for the inode.
    pub(crate) const COMPRESSION_SHIFT: u32 = 8;
}

/// An inode as stored.
///
/// | bytes | field | |
/// |---|---|---|
/// | 0 | version | 1 |
/// | 1 | kind | as d_type |
/// | 2..4 | perm | low 12 bits of st_mode |
/// | 4..6 | flags | bits 0..6: see [`flag`]; 8..14: the codec that is set here, 0 = none |
/// | 6 | recordsize | log2; 0 = undecided: no data stored |
/// | 7 | wish | log2 of the recordsize asked for; 0 = none |
/// | 8..12, 12..16 | uid, gid | |
/// | 16..20 | nlink | directories: 2 + subdirectories |
/// | 20..24 | rdev | |
/// | 24..32 | size | directories: bytes of their entries |
/// | 32..64 | atime, mtime, ctime, btime | seconds, 8 bytes each, signed |
/// | 64..80 | atime, mtime, ctime, btime | nanoseconds, 4 bytes each |
/// | 80..88 | object | whose pages are the data, 0 = none; directories: the parent |
/// | 88..96 | entries | of a directory |
/// | 96..100 | displaced | entries of a directory not in the first slot of their hash |
/// | 100..104 | xattr_bytes | sum of names' lengths + 1 |
/// | 104.. | freeing | ranges of pages that are yet to be freed: first page, and one past the last; 8 bytes each |
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Inode {
    pub(crate) kind: FileKind,
    pub(crate) perm: u16,
    pub(crate) flags: u16,
    /// Codec of a file's pages, or of what is made in a directory.
    pub(crate) compression: Option<Compression>,
    /// Bytes; 0 = undecided, if and only if `object` is 0 too.
    pub(crate) recordsize: u32,
    /// Bytes; 0 = none.
    pub(crate) wish: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) nlink: u32,
    pub(crate) rdev: u32,
    pub(crate) size: u64,
    pub(crate) atime: Time,
    pub(crate) mtime: Time,
    pub(crate) ctime: Time,
    pub(crate) btime: Time,
    /// Data object of a regular file, parent of a directory.
    pub(crate) object: u64,
    pub(crate) entries: u64,
    pub(crate) displaced: u32,
    pub(crate) xattr_bytes: u32,
    /// Pages of `object` that read as zeros and are yet to be freed.
    pub(crate) freeing: Ranges,
}

impl Inode {
    pub(crate) const fn key(ino: u64) -> Key {
        Key::new(ino, kind::INODE, 0)
    }

    /// Returns a new inode with one name (directories: `.` too), all times now.
    pub(crate) fn new(kind: FileKind, perm: u16, now: Time) -> Self {
        Self {
            kind,
            perm: perm & 0o7777,
            flags: 0,
            compression: None,
            recordsize: 0,
            wish: 0,
            uid: 0,
            gid: 0,
            nlink: if kind == FileKind::Directory { 2 } else { 1 },
            rdev: 0,
            size: 0,
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
            object: 0,
            entries: 0,
            displaced: 0,
            xattr_bytes: 0,
            freeing: Ranges::default(),
        }
    }

    pub(crate) fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    pub(crate) fn set(&mut self, flag: u16, on: bool) {
        if on {
            self.flags |= flag;
        } else {
            self.flags &= !flag;
        }
    }

    /// Returns the key and value that store the codec beside the pages, if there are pages and a codec.
    fn codec_of_pages(&self) -> Option<(Key, u8)> {
        let codec = self.compression.filter(|_| self.kind == FileKind::Regular && self.object != 0)?;
        Some((Key::new(self.object, Key::COMPRESSION, 0), codec.to_stored()))
    }

    /// Adds the changes after which the pages of an inode, which was `old`, are coded as `new` says. `None`: there was
    /// no inode before, or is none after.
    pub(crate) fn code_pages(old: Option<&Self>, new: Option<&Self>, changes: &mut Vec<Change<'_>>) {
        let [old, new] = [old, new].map(|inode| inode.and_then(Self::codec_of_pages));
        if old == new {
            return;
        }
        if let Some((key, _)) = old.filter(|(key, _)| new.is_none_or(|(new, _)| new != *key)) {
            changes.push(Change::Delete(key));
        }
        if let Some((key, codec)) = new {
            changes.push(Change::Put(key, vec![codec]));
        }
    }

    /// Returns the change that stores the inode.
    pub(crate) fn put(&self, ino: u64) -> Change<'static> {
        Change::Put(Self::key(ino), self.encode())
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(INODE_BYTES + RANGE_BYTES * self.freeing.ranges().len());
        out.extend_from_slice(&[INODE_VERSION, self.kind.d_type()]);
        out.extend_from_slice(&self.perm.to_le_bytes());
        let codec = self.compression.map_or(0, |codec| u16::from(codec.to_stored()));
        out.extend_from_slice(&(self.flags | codec << flag::COMPRESSION_SHIFT).to_le_bytes());
        out.extend_from_slice(&[log2(self.recordsize), log2(self.wish)]);
        for field in [self.uid, self.gid, self.nlink, self.rdev] {
            out.extend_from_slice(&field.to_le_bytes());
        }
        out.extend_from_slice(&self.size.to_le_bytes());
        let times = [self.atime, self.mtime, self.ctime, self.btime];
        for time in times {
            out.extend_from_slice(&time.secs.to_le_bytes());
        }
        for time in times {
            out.extend_from_slice(&time.nanos.to_le_bytes());
        }
        out.extend_from_slice(&self.object.to_le_bytes());
        out.extend_from_slice(&self.entries.to_le_bytes());
        out.extend_from_slice(&self.displaced.to_le_bytes());
        out.extend_from_slice(&self.xattr_bytes.to_le_bytes());
        for range in self.freeing.ranges() {
            out.extend_from_slice(&range.start.to_le_bytes());
            out.extend_from_slice(&range.end.to_le_bytes());
        }
        out
    }

    /// Decodes stored bytes, which are not trusted. Errors: `Corrupt`.
    pub(crate) fn decode(ino: u64, bytes: &[u8]) -> Result<Self> {
        let damaged = |detail: &str| FsError::Corrupt { ino, what: "inode", detail: detail.to_owned() };
        let Some((b, rest)) = bytes.split_first_chunk::<INODE_BYTES>() else {
            return Err(damaged(&format!("{} bytes instead of {INODE_BYTES}", bytes.len())));
        };
        if b[0] != INODE_VERSION {
            return Err(damaged(&format!("version {} is unknown", b[0])));
        }
        let kind =
            FileKind::from_d_type(b[1]).ok_or_else(|| damaged(&format!("kind {} is unknown", b[1])))?;
        let time =
            |i: usize| Time { secs: u64_at(b, 32 + 8 * i).cast_signed(), nanos: u32_at(b, 64 + 4 * i) };
        let inode = Self {
            kind,
            perm: u16_at(b, 2),
            flags: u16::from(b[4]),
            compression: match b[5] {
                0 => None,
                codec => {
                    Some(Compression::from_stored(&[codec]).map_err(|_| damaged("its codec is unknown"))?)
                }
            },
            recordsize: exp2(b[6]).ok_or_else(|| damaged("its recordsize is out of range"))?,
            wish: exp2(b[7]).ok_or_else(|| damaged("its requested recordsize is out of range"))?,
            uid: u32_at(b, 8),
            gid: u32_at(b, 12),
            nlink: u32_at(b, 16),
            rdev: u32_at(b, 20),
            size: u64_at(b, 24),
            atime: time(0),
            mtime: time(1),
            ctime: time(2),
            btime: time(3),
            object: u64_at(b, 80),
            entries: u64_at(b, 88),
            displaced: u32_at(b, 96),
            xattr_bytes: u32_at(b, 100),
            freeing: decode_freeing(rest).ok_or_else(|| damaged("its ranges to be freed cannot be"))?,
        };
        inode.verify().map_err(damaged)?;
        Ok(inode)
    }

    fn verify(&self) -> Result<(), &'static str> {
        if self.perm > 0o7777 || self.flags & !flag::ALL != 0 {
            return Err("unknown permission bits or flags");
        }
        if [self.atime, self.mtime, self.ctime, self.btime].iter().any(|t| t.nanos >= 1_000_000_000) {
            return Err("a time has more than a second of nanoseconds");
        }
        if self.size > FILE_BYTES_MAX {
            return Err("its size is out of range");
        }
        if self.xattr_bytes as usize > XATTR_LIST_MAX {
            return Err("its attributes' names are longer than can be");
        }
        match self.kind {
            FileKind::Directory if self.object == 0 => Err("a directory without a parent"),
            FileKind::Directory if u64::from(self.displaced) > self.entries => {
                Err("more displaced entries than entries")
            }
            FileKind::Regular if (self.object == 0) != (self.recordsize == 0) => {
                Err("data without a recordsize or a recordsize without data")
            }
            _ if !self.freeing.is_empty() && (self.kind != FileKind::Regular || self.object == 0) => {
                Err("ranges to be freed without data")
            }
            FileKind::Directory | FileKind::Regular => Ok(()),
            _ if self.compression.is_some() => Err("a codec of something that has no pages"),
            _ if self.object != 0 || self.recordsize != 0 => Err("data of something that is not a file"),
            _ => Ok(()),
        }
    }
}

/// Returns the key that lists inode `ino` as one with pages to be freed.
pub(crate) const fn freeing_key(ino: u64) -> Key {
    Key::new(0, kind::FREEING, ino)
}

fn decode_freeing(bytes: &[u8]) -> Option<Ranges> {
    let (ranges, rest) = bytes.as_chunks::<RANGE_BYTES>();
    let range = |b: &[u8; RANGE_BYTES]| u64_at(b, 0)..u64_at(b, 8);
    Ranges::new(ranges.iter().map(range).collect()).filter(|_| rest.is_empty())
}

fn log2(recordsize: u32) -> u8 {
    recordsize.checked_ilog2().unwrap_or(0) as u8
}

/// Returns the recordsize of a stored logarithm: `Some(0)` for 0, which means none; `None` if it is out of range.
fn exp2(log2: u8) -> Option<u32> {
    use pagefold_engine::limits::{RECORDSIZE_MAX, RECORDSIZE_MIN};
    match log2 {
        0 => Some(0),
        n if (RECORDSIZE_MIN.ilog2()..=RECORDSIZE_MAX.ilog2()).contains(&u32::from(n)) => Some(1 << n),
        _ => None,
    }
}

/// Returns true if `bytes` is a valid recordsize.
pub(crate) fn is_recordsize(bytes: u32) -> bool {
    use pagefold_engine::limits::{RECORDSIZE_MAX, RECORDSIZE_MIN};
    bytes.is_power_of_two() && (RECORDSIZE_MIN..=RECORDSIZE_MAX).contains(&bytes)
}

fn u16_at<const N: usize>(b: &[u8; N], at: usize) -> u16 {
    u16::from_le_bytes([b[at], b[at + 1]])
}

fn u32_at<const N: usize>(b: &[u8; N], at: usize) -> u32 {
    u32::from(u16_at(b, at)) | u32::from(u16_at(b, at + 2)) << 16
}

fn u64_at<const N: usize>(b: &[u8; N], at: usize) -> u64 {
    u64::from(u32_at(b, at)) | u64::from(u32_at(b, at + 4)) << 32
}

/// The file system's header: magic "PFFS" (4), version (4), seed of the name hashes (8), time of format (8 + 4).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Header {
    pub(crate) seed: u64,
    pub(crate) formatted: Time,
}

const HEADER_MAGIC: [u8; 4] = *b"PFFS";
const HEADER_VERSION: u32 = 1;
const HEADER_BYTES: usize = 28;

impl Header {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEADER_BYTES);
        out.extend_from_slice(&HEADER_MAGIC);
        out.extend_from_slice(&HEADER_VERSION.to_le_bytes());
        out.extend_from_slice(&self.seed.to_le_bytes());
        out.extend_from_slice(&self.formatted.secs.to_le_bytes());
        out.extend_from_slice(&self.formatted.nanos.to_le_bytes());
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        let damaged = |detail: String| FsError::Corrupt { ino: 0, what: "file system header", detail };
        let Ok(b) = <&[u8; HEADER_BYTES]>::try_from(bytes) else {
            return Err(damaged(format!("{} bytes instead of {HEADER_BYTES}", bytes.len())));
        };
        if b[..4] != HEADER_MAGIC {
            return Err(damaged("its magic is another".to_owned()));
        }
        if u32_at(b, 4) != HEADER_VERSION {
            return Err(FsError::Unsupported("the file system was made by a newer version"));
        }
        let formatted = Time { secs: u64_at(b, 16).cast_signed(), nanos: u32_at(b, 24) };
        Ok(Self { seed: u64_at(b, 8), formatted })
    }
}

/// Decodes the counter.
pub(crate) fn decode_counter(bytes: &[u8]) -> Result<u64> {
    match <[u8; 8]>::try_from(bytes) {
        Ok(b) => Ok(u64::from_le_bytes(b)),
        Err(_) => {
            let detail = format!("{} bytes instead of 8", bytes.len());
            Err(FsError::Corrupt { ino: 0, what: "inode counter", detail })
        }
    }
}

/// The inode that a directory entry points to: inode (8), kind (1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Pointee {
    pub(crate) ino: u64,
    pub(crate) kind: FileKind,
}

/// Bytes of an encoded [`Pointee`].
pub(crate) const POINTEE_BYTES: usize = 9;

impl Pointee {
    pub(crate) fn encode(self) -> [u8; POINTEE_BYTES] {
        let mut out = [0; POINTEE_BYTES];
        out[..8].copy_from_slice(&self.ino.to_le_bytes());
        out[8] = self.kind.d_type();
        out
    }

    pub(crate) fn decode(dir: u64, bytes: &[u8]) -> Result<Self> {
        let damaged =
            |detail: &str| FsError::Corrupt { ino: dir, what: "directory entry", detail: detail.to_owned() };
        let b = <&[u8; POINTEE_BYTES]>::try_from(bytes).map_err(|_| damaged("its length is wrong"))?;
        let kind = FileKind::from_d_type(b[8]).ok_or_else(|| damaged("its kind is unknown"))?;
        Ok(Self { ino: u64_at(b, 0), kind })
    }
}
