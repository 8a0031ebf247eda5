//! InnoDB's redo log, as far as it tells where a checkpoint was.
//!
//! The format is that of MariaDB 10.8 and newer, big-endian (`log0log.h`: `FORMAT_10_8`):
//!
//! | offset | length | |
//! |---|---|---|
//! | 0 | 4 | 0x50687973, `Phys` |
//! | 8 | 8 | LSN of the first byte |
//! | 16 | 32 | who made it, e.g. `MariaDB 10.11.19` |
//! | 508 | 4 | CRC-32C of all before |
//! | 4096, 8192 | 64 | checkpoints: LSN, end LSN (8 bytes each), zeros, and in the last 4 bytes CRC-32C of the 60 before |
//!
//! The last checkpoint is the one with the highest LSN among those that are valid.

/// Path of the file, below the data directory.
pub const FILE: &str = "ib_logfile0";
/// Number of bytes of it that have to be read.
pub const BYTES_MAX: u64 = 8192 + 64;

const FORMAT: u32 = 0x5068_7973;
const FIRST_LSN_AT: usize = 8;
const CREATOR: std::ops::Range<usize> = 16..48;
const HEADER_CRC_AT: usize = 508;
const CHECKPOINTS: [usize; 2] = [4096, 8192];
const CHECKPOINT_CRC_AT: usize = 60;

/// Contents of a log's header.
#[derive(Debug, PartialEq, Eq)]
pub struct Redo {
    /// Version of the server that made it; `-` if the log does not say.
    pub version: String,
    /// Place where recovery begins.
    pub checkpoint_lsn: u64,
}

/// Decodes a log's header; `None` unless it is of the known format and its checksums hold.
pub fn decode(bytes: &[u8]) -> Option<Redo> {
    let header = bytes.get(..HEADER_CRC_AT + 4)?;
    if u32_at(header, 0)? != FORMAT || !is_sound(header, HEADER_CRC_AT) {
        return None;
    }
    let first = u64_at(header, FIRST_LSN_AT)?;
    let checkpoint = |at: &usize| {
        let block = bytes.get(*at..*at + CHECKPOINT_CRC_AT + 4)?;
        let (lsn, end) = (u64_at(block, 0)?, u64_at(block, 8)?);
        let rest = block.get(16..CHECKPOINT_CRC_AT)?;
        let valid = is_sound(block, CHECKPOINT_CRC_AT) && lsn >= first && end >= lsn;
        (valid && rest.iter().all(|byte| *byte == 0)).then_some(lsn)
    };
    let checkpoint_lsn = CHECKPOINTS.iter().filter_map(checkpoint).max()?;
    let creator = String::from_utf8_lossy(header.get(CREATOR)?).into_owned();
    let version = creator.trim_end_matches('\0').strip_prefix("MariaDB ").map(str::to_owned);
    let sane = |text: &String| !text.is_empty() && text.chars().all(|c| c.is_ascii_graphic());
    Some(Redo { version: version.filter(sane).unwrap_or_else(|| "-".into()), checkpoint_lsn })
}

/// Returns true if the CRC-32C at `at` is that of the bytes before it.
fn is_sound(block: &[u8], at: usize) -> bool {
    block.get(..at).is_some_and(|before| u32_at(block, at) == Some(crc32c::crc32c(before)))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set_checksum(bytes: &mut [u8], from: usize, at: usize) {
        let crc = crc32c::crc32c(&bytes[from..from + at]);
        bytes[from + at..from + at + 4].copy_from_slice(&crc.to_be_bytes());
    }

    /// As MariaDB 10.11 writes it; the second checkpoint is the newer one.
    fn sample() -> Vec<u8> {
        let mut bytes = vec![0; 8192 + 64];
        bytes[..4].copy_from_slice(b"Phys");
        bytes[8..16].copy_from_slice(&0x3000_u64.to_be_bytes());
        bytes[16..32].copy_from_slice(b"MariaDB 10.11.19");
        set_checksum(&mut bytes, 0, 508);
        for (at, lsn) in [(4096, 0xAEB8_u64), (8192, 0xAF4E)] {
            bytes[at..at + 8].copy_from_slice(&lsn.to_be_bytes());
            bytes[at + 8..at + 16].copy_from_slice(&lsn.to_be_bytes());
            set_checksum(&mut bytes, at, 60);
        }
        bytes
    }

    #[test]
    fn the_newest_valid_checkpoint_counts() {
        let mut bytes = sample();
        let found = decode(&bytes).unwrap();
        assert_eq!((found.version.as_str(), found.checkpoint_lsn), ("10.11.19", 0xAF4E));
        bytes[8192 + 20] ^= 1;
        assert_eq!(decode(&bytes).unwrap().checkpoint_lsn, 0xAEB8);
        bytes[4096 + 3] ^= 1;
        assert_eq!(decode(&bytes), None);
    }

    #[test]
    fn a_checksum_alone_does_not_make_a_checkpoint() {
        let mut bytes = sample();
        // Before the log's beginning, with a sound checksum.
        for at in CHECKPOINTS {
            bytes[at..at + 8].copy_from_slice(&0x2FFF_u64.to_be_bytes());
            set_checksum(&mut bytes, at, 60);
        }
        assert_eq!(decode(&bytes), None);
    }

    #[test]
    fn nothing_is_guessed() {
        let whole = sample();
        for at in 0..512 {
            let mut bytes = whole.clone();
            bytes[at] ^= 0x80;
            assert_eq!(decode(&bytes), None, "byte {at}");
        }
        assert_eq!(decode(&whole[..511]), None);
        assert_eq!(decode(&whole[..4000]), None);
    }
}
