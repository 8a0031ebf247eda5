//! Describes files of InnoDB's redo log.

use crate::format::files::{FileBytes, FileFormat, LogFacts};

/// Files of the log.
pub(crate) static FILES: FileFormat = FileFormat {
    name: "innodb-log",
    title: "InnoDB log",
    // A third is enough: a block in the middle of a long mini-transaction looks like nothing.
    log: Some(LogFacts { number: 1, one_in: 3 }),
    by_name: |name| is_log(name).then_some(BLOCK_BYTES),
    by_bytes: page_bytes,
    marks: is_checkpoint,
    ..FileFormat::UNTOLD
};

/// Recordsize for the log, which is written in blocks of 512 bytes up to 4 KiB, at any block's offset.
const BLOCK_BYTES: u32 = 4096;

/// The log is created by writing zeros, so only the name tells it then.
fn is_log(name: &str) -> bool {
    name.starts_with("ib_logfile") || name.starts_with("#ib_redo")
}

/// Returns the recordsize for a log that begins with its format 4, and has its creator at byte 16.
fn page_bytes(file: FileBytes<'_>) -> Option<u32> {
    let creator = file.bytes::<8>(16)?;
    let known = [&b"MariaDB "[..], b"MySQL ", b"Backup "].iter().any(|name| creator.starts_with(name));
    (known && file.offset == 0 && file.be32(0)? != 0).then_some(BLOCK_BYTES)
}

/// Returns true if `page`, number `number` of its file, is one of the two checkpoint blocks of a log from MariaDB 10.8
/// on: two log sequence numbers, zeros, and at 60 the CRC-32C of what is before. Other blocks of such a log have no form
/// of their own.
fn is_checkpoint(number: u64, page: &[u8]) -> bool {
    const CRC_AT: usize = 60;
    let (Some(numbers), Some(rest)) = (page.get(..16), page.get(16..CRC_AT)) else { return false };
    (1..=2).contains(&number)
        && page.len() == BLOCK_BYTES as usize
        && numbers.iter().any(|&byte| byte != 0)
        && rest.iter().all(|&byte| byte == 0)
        && page.get(..CRC_AT).map(crc32c::crc32c) == FileBytes::page(page).be32(CRC_AT)
}
