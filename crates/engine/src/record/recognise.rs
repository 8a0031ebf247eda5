//! Finds the recordsize that suits a file, from what is first written to it.
//!
//! A record as large as the database's page makes every page one record: nothing is read to be modified, and nothing
//! is stored twice. Sources of the formats: PostgreSQL `bufpage.h` and `xlog_internal.h`; MariaDB and MySQL
//! `fil0fil.h`, `fsp0types.h` and `log0log.h`; SQLite's "Database File Format"; RRDtool `rrd_format.h`.

use crate::limits::{RECORDSIZE_MAX, RECORDSIZE_MIN};

/// Longest write whose length alone tells the page size. Databases with larger pages are rare, and copying tools write
/// more at a time.
const PLAIN_WRITE_MAX: usize = 64 << 10;
/// Longest write of zeros whose length alone tells the page size: databases extend files by one page, and newer ones by
/// several at a time.
const ZERO_WRITE_MAX: usize = 16 << 10;

/// Formats of files and pages, as far as their bytes and names tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Format {
    /// Pages of PostgreSQL: tables, indexes, maps of free space and visibility.
    Postgres,
    /// PostgreSQL's write-ahead log.
    PostgresLog,
    /// Tablespaces of InnoDB, undo ones included.
    Innodb,
    /// InnoDB's redo log.
    InnodbLog,
    /// A database of SQLite, its log or its journal.
    Sqlite,
    /// A round-robin database of RRDtool.
    Rrd,
}

/// Returns the database format of `data`, bytes of a file from `offset` on, and the page size that goes with it, in
/// bytes. `file_name` is the last component of the path. `None` if no format is recognised.
#[must_use]
pub fn recognise(offset: u64, data: &[u8], file_name: Option<&str>) -> Option<(Format, u32)> {
    let page = PageBytes { offset, data };
    let is = |known: fn(&str) -> bool| file_name.is_some_and(known);
    let as_format = |format: Format| move |bytes: u32| (format, bytes);
    is(is_innodb_log)
        .then_some((Format::InnodbLog, INNODB_LOG_BYTES))
        .or_else(|| page.sqlite().map(as_format(Format::Sqlite)))
        .or_else(|| page.rrd().map(as_format(Format::Rrd)))
        .or_else(|| page.innodb_log().map(as_format(Format::InnodbLog)))
        .or_else(|| page.innodb().map(as_format(Format::Innodb)))
        .or_else(|| page.postgres_wal().map(as_format(Format::PostgresLog)))
        .or_else(|| page.postgres().map(as_format(Format::Postgres)))
        .or_else(|| is(is_postgres_wal).then_some((Format::PostgresLog, POSTGRES_WAL_BYTES)))
}

/// Returns the recordsize for a file from a write of `data` at `offset`: the page size of the database whose format is
/// recognised, else the length of an aligned power-of-two write of 4 to 64 KiB (of zeros: to 16 KiB), else `None`.
/// `file_name` is the last component of the path. The answer is a power of two within
/// [`RECORDSIZE_MIN`]..=[`RECORDSIZE_MAX`].
#[must_use]
pub fn recordsize_hint(offset: u64, data: &[u8], file_name: Option<&str>) -> Option<u32> {
    recognise(offset, data, file_name)
        .map(|(_, bytes)| bytes.max(RECORDSIZE_MIN))
        .or_else(|| PageBytes { offset, data }.plain_write())
        .filter(|bytes| bytes.is_power_of_two() && *bytes <= RECORDSIZE_MAX)
}

/// Returns true if `page` begins as a page of PostgreSQL of the same length does.
#[must_use]
pub fn looks_like_postgres(page: &[u8]) -> bool {
    PageBytes { offset: 0, data: page }.postgres().is_some_and(|bytes| bytes as usize == page.len())
}

/// Returns true if `page` begins, and is as long, as pages that a model may describe: pages of PostgreSQL, those of
/// InnoDB's indexes, and those of SQLite's tables and indexes.
#[must_use]
pub fn looks_like_database(page: &[u8]) -> bool {
    let here = PageBytes { offset: 0, data: page };
    looks_like_postgres(page) || here.innodb_index() || here.sqlite_tree()
}

/// Returns true if `page` begins as a page of the same length of PostgreSQL's log does.
#[must_use]
pub fn looks_like_wal(page: &[u8]) -> bool {
    let here = PageBytes { offset: 0, data: page };
    let (Some(magic), Some(info), Some(address)) = (here.le16(0), here.le16(2), here.bytes(8)) else {
        return false;
    };
    (0xD0..=0xD1).contains(&(magic >> 8))
        && info < 16
        && page.len().is_power_of_two()
        && u64::from_le_bytes(address).is_multiple_of(page.len() as u64)
        && here.le32(4).is_some_and(|timeline| timeline != 0)
        && here.le32(20) == Some(0)
}

/// Returns true if `page`, number `number` of its file, is one of the two checkpoint blocks of InnoDB's log from
/// MariaDB 10.8 on: two log sequence numbers, zeros, and at 60 the CRC-32C of what is before. Other blocks of such a
/// log have no form of their own.
#[must_use]
pub fn is_redo_checkpoint(number: u64, page: &[u8]) -> bool {
    const CRC_AT: usize = 60;
    let here = PageBytes { offset: 0, data: page };
    let (Some(numbers), Some(rest)) = (page.get(..16), page.get(16..CRC_AT)) else { return false };
    (1..=2).contains(&number)
        && page.len() == INNODB_LOG_BYTES as usize
        && numbers.iter().any(|&byte| byte != 0)
        && rest.iter().all(|&byte| byte == 0)
        && page.get(..CRC_AT).map(crc32c::crc32c) == here.be32(CRC_AT)
}

/// Returns those of `pages`, drawn from one file, from which to learn a model: they look like pages of a database.
/// Overflow pages of SQLite look like nothing. So if pages of its trees prevail among these, all other pages that are
/// not zeros are taken too, and come last.
#[must_use]
pub fn worth_learning(pages: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    let trees = pages.iter().filter(|page| PageBytes { offset: 0, data: page }.sqlite_tree()).count();
    let (mut known, others): (Vec<_>, Vec<_>) = pages.into_iter().partition(|page| looks_like_database(page));
    if 2 * trees > known.len() {
        known.extend(others.into_iter().filter(|page| page.iter().any(|&byte| byte != 0)));
    }
    known
}

/// Recordsize for InnoDB's log, which is written in blocks of 512 bytes up to 4 KiB, at any block's offset.
const INNODB_LOG_BYTES: u32 = 4096;
/// Usual length of a block of PostgreSQL's log.
const POSTGRES_WAL_BYTES: u32 = 8192;

// Logs are created by writing zeros, so only the name tells them.

fn is_innodb_log(name: &str) -> bool {
    name.starts_with("ib_logfile") || name.starts_with("#ib_redo")
}

/// Returns true for names of timeline, log and segment in 24 hexadecimal digits, and for the temporary name under which
/// a new segment is filled.
fn is_postgres_wal(name: &str) -> bool {
    name.starts_with("xlogtemp.")
        || (name.len() == 24 && name.bytes().all(|b| b.is_ascii_digit() || (b'A'..=b'F').contains(&b)))
}

/// Bytes written at an offset. Fields beyond the end read as `None`.
#[derive(Clone, Copy)]
struct PageBytes<'a> {
    offset: u64,
    data: &'a [u8],
}

impl PageBytes<'_> {
    fn bytes<const N: usize>(self, at: usize) -> Option<[u8; N]> {
        self.data.get(at..)?.first_chunk().copied()
    }
    fn le16(self, at: usize) -> Option<u16> {
        self.bytes(at).map(u16::from_le_bytes)
    }
    fn le32(self, at: usize) -> Option<u32> {
        self.bytes(at).map(u32::from_le_bytes)
    }
    fn be16(self, at: usize) -> Option<u16> {
        self.bytes(at).map(u16::from_be_bytes)
    }
    fn be32(self, at: usize) -> Option<u32> {
        self.bytes(at).map(u32::from_be_bytes)
    }

    /// Heap, index, visibility and free space map pages: PageHeaderData is lsn 8, checksum 2, flags 2, lower 2,
    /// upper 2, special 2, size and version 2 (the size has its low byte clear, the version is 4), prune xid 4.
    fn postgres(self) -> Option<u32> {
        const HEADER_BYTES: u32 = 24;
        const KNOWN_FLAGS: u16 = 7;
        let [flags, lower, upper, special, size_version] = [10, 12, 14, 16, 18].map(|at| self.le16(at));
        let (size, version) = (u32::from(size_version? & 0xFF00), size_version? & 0xFF);
        let (lower, upper, special) = (u32::from(lower?), u32::from(upper?), u32::from(special?));
        let sane = version == 4
            && size.is_power_of_two()
            && size >= 1024
            && flags? & !KNOWN_FLAGS == 0
            && HEADER_BYTES <= lower
            && lower <= upper
            && upper <= special
            && special <= size
            && special.is_multiple_of(8)
            && self.offset.is_multiple_of(u64::from(size));
        sane.then_some(size)
    }

    /// WAL pages: magic 2 (0xD0xx or 0xD1xx by version), info 2, timeline 4, page address 8, remaining length 4; the
    /// first page of a segment (info & 2) goes on with padding 4, system id 8, segment size 4, block size 4.
    fn postgres_wal(self) -> Option<u32> {
        const LONG_HEADER: u16 = 2;
        const KNOWN_INFO: u16 = 15;
        const SEGMENT_BYTES_MIN: u64 = 1 << 20;
        let (magic, info) = (self.le16(0)?, self.le16(2)?);
        if !(0xD0..=0xD1).contains(&(magic >> 8)) || info & !KNOWN_INFO != 0 {
            return None;
        }
        if info & LONG_HEADER != 0 {
            let (segment, block) = (self.le32(32)?, self.le32(36)?);
            let sane = segment.is_power_of_two() && block.is_power_of_two() && block >= 1024;
            return (sane && block <= 64 << 10 && u64::from(segment) >= SEGMENT_BYTES_MIN).then_some(block);
        }
        let address = self.bytes(8).map(u64::from_le_bytes)?;
        let in_place = address % SEGMENT_BYTES_MIN == self.offset % SEGMENT_BYTES_MIN;
        (in_place && self.offset.is_multiple_of(u64::from(POSTGRES_WAL_BYTES))).then_some(POSTGRES_WAL_BYTES)
    }

    /// Tablespace pages start with checksum 4, page number 4, previous 4, next 4, lsn 8, type 2, flush lsn 8, space
    /// id 4, all big endian. Page 0 goes on with space id 4, unused 4, size 4, free limit 4, flags 4.
    fn innodb(self) -> Option<u32> {
        const FSP_HDR: u16 = 8;
        let (number, kind) = (self.be32(4)?, self.be16(24)?);
        if number == 0 {
            let sane = self.offset == 0 && kind == FSP_HDR && self.be32(34)? == self.be32(38)?;
            return if sane { innodb_page_bytes(self.be32(54)?) } else { None };
        }
        // The page number and the offset together tell the size. Kinds: undo, inode, change buffer, system,
        // transaction system, extent descriptors, blobs; virtual (R-tree, B-tree) from 17853 on.
        let known = matches!(kind, 2..=14 | 17853..=17855);
        let size = self.offset / u64::from(number);
        let exact = size * u64::from(number) == self.offset && size.is_power_of_two();
        (known && exact && (4096..=65536).contains(&size)).then_some(size as u32)
    }

    /// Pages of indexes: type 17855; the page header's count of records in its heap has the mark of the compact format.
    fn innodb_index(self) -> bool {
        const INDEX: u16 = 17855;
        const COMPACT: u16 = 1 << 15;
        let sized = self.data.len().is_power_of_two() && (4096..=65536).contains(&self.data.len());
        sized && self.be16(24) == Some(INDEX) && self.be16(42).is_some_and(|heap| heap & COMPACT != 0)
    }

    /// Pages of tables and indexes: kind 1 (2, 5, 10 or 13), first free block 2, cells 2, where they begin 2, bytes of
    /// fragments 1 (60 at most), then cells' places, 2 each; all behind the file's header in the first page.
    fn sqlite_tree(self) -> bool {
        const FILE_HEADER: usize = 100;
        const FRAGMENTS_MAX: u8 = 60;
        let at = if self.data.starts_with(b"SQLite format 3\0") { FILE_HEADER } else { 0 };
        let (Some([kind]), Some([fragments])) = (self.bytes(at), self.bytes(at + 7)) else { return false };
        let (Some(cells), Some(content)) = (self.be16(at + 3), self.be16(at + 5)) else { return false };
        let pointers = at + if matches!(kind, 2 | 5) { 12 } else { 8 };
        let content = if content == 0 { 1 << 16 } else { usize::from(content) };
        let inside = |place: Option<u16>| {
            place.is_some_and(|place| usize::from(place) >= content && usize::from(place) < self.data.len())
        };
        matches!(kind, 2 | 5 | 10 | 13)
            && self.data.len().is_power_of_two()
            && (512..=65536).contains(&self.data.len())
            && fragments <= FRAGMENTS_MAX
            && pointers + 2 * usize::from(cells) <= content
            && content <= self.data.len()
            && (cells == 0 || inside(self.be16(pointers)))
    }

    /// The redo log: format 4, then the creator at byte 16.
    fn innodb_log(self) -> Option<u32> {
        let creator = self.bytes::<8>(16)?;
        let known = [&b"MariaDB "[..], b"MySQL ", b"Backup "].iter().any(|name| creator.starts_with(name));
        (known && self.offset == 0 && self.be32(0)? != 0).then_some(INNODB_LOG_BYTES)
    }

    /// Databases have their page size at byte 16 (1 stands for 65536); logs and journals append a page with 24 and 8
    /// bytes around it, so that the next power of two takes each in one or two records.
    fn sqlite(self) -> Option<u32> {
        if self.offset != 0 {
            return None;
        }
        let database = self.data.starts_with(b"SQLite format 3\0");
        let log = matches!(self.be32(0)?, 0x377F_0682 | 0x377F_0683);
        let journal = self.data.starts_with(&[0xD9, 0xD5, 0x05, 0xF9, 0x20, 0xA1, 0x63, 0xD7]);
        let page = match (database, log, journal) {
            (true, ..) => match self.be16(16)? {
                1 => 65536,
                page => u32::from(page),
            },
            (_, true, _) => self.be32(8)?,
            (_, _, true) => self.be32(24)?,
            _ => return None,
        };
        if !page.is_power_of_two() || !(512..=65536).contains(&page) {
            return None;
        }
        Some(if database { page } else { (2 * page).min(65536) })
    }

    /// RRD files are small, and updated a few bytes at a time.
    fn rrd(self) -> Option<u32> {
        (self.offset == 0 && self.data.starts_with(b"RRD\0")).then_some(4096)
    }

    fn plain_write(self) -> Option<u32> {
        let len_bytes = self.data.len();
        let zeros = len_bytes > ZERO_WRITE_MAX && self.data.iter().all(|&byte| byte == 0);
        let longest = if zeros { ZERO_WRITE_MAX } else { PLAIN_WRITE_MAX };
        let pow2 = len_bytes.is_power_of_two() && (RECORDSIZE_MIN as usize..=longest).contains(&len_bytes);
        (pow2 && self.offset.is_multiple_of(len_bytes as u64)).then_some(len_bytes as u32)
    }
}

/// Size of a tablespace's pages in its file, from the flags in its page 0.
fn innodb_page_bytes(flags: u32) -> Option<u32> {
    /// MariaDB's full_crc32 format; in the older one this bit would mean compressed pages of 128 KiB and more.
    const FULL_CRC32: u32 = 1 << 4;
    let from_shift = |shift: u32| (3..=7).contains(&shift).then(|| 512 << shift);
    if flags & FULL_CRC32 != 0 {
        return from_shift(flags & 0xF);
    }
    let (compressed, page) = (flags >> 1 & 0xF, flags >> 6 & 0xF);
    match (compressed, page) {
        // ROW_FORMAT=COMPRESSED: 1 KiB to 16 KiB.
        (1..=5, _) => Some(512 << compressed),
        (0, 0) => Some(16 << 10),
        (0, shift) => from_shift(shift),
        _ => None,
    }
}
