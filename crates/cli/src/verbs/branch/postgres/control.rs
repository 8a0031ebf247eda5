//! `global/pg_control`: the state that PostgreSQL keeps of itself.
//!
//! The format is that of control version 1300 (PostgreSQL 13 to 17), little-endian and with 8-byte alignment, as on
//! amd64 and arm64 (`ControlFileData` in `catalog/pg_control.h`):
//!
//! | offset | length | |
//! |---|---|---|
//! | 0 | 8 | system identifier |
//! | 8 | 4 | control version |
//! | 32 | 8 | location of the last checkpoint's record |
//! | 40 | 8 | its redo location |
//! | 288 | 4 | CRC-32C of all before |
//!
//! Files of other versions are not read here: `pg_controldata` is asked about them.

use crate::verbs::branch::record::Position;

/// Path of the file, below the data directory.
pub const FILE: &str = "global/pg_control";
/// Largest size in bytes: the content is one sector, padded.
pub const BYTES_MAX: u64 = 8192;

const VERSION: u32 = 1300;
const VERSION_AT: usize = 8;
const CHECKPOINT_AT: usize = 32;
const REDO_AT: usize = 40;
const CRC_AT: usize = 288;

/// Decodes a control file; `None` unless it is of the known version and its checksum holds.
pub fn decode(bytes: &[u8]) -> Option<Position> {
    let version = u32::from_le_bytes(*bytes.get(VERSION_AT..)?.first_chunk()?);
    let crc = u32::from_le_bytes(*bytes.get(CRC_AT..)?.first_chunk()?);
    if version != VERSION || crc32c::crc32c(&bytes[..CRC_AT]) != crc {
        return None;
    }
    let number = |at: usize| Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
    Some(Position {
        lsn: Some(lsn(number(REDO_AT)?)),
        checkpoint_lsn: Some(lsn(number(CHECKPOINT_AT)?)),
        system: Some(number(0)?.to_string()),
    })
}

/// Formats a location in the log as PostgreSQL writes it.
fn lsn(location: u64) -> String {
    format!("{:X}/{:X}", location >> 32, location & u64::from(u32::MAX))
}

/// Parses the English output of `pg_controldata`; `None` unless it has all of it and trusts the file.
pub fn parse_told(text: &str) -> Option<Position> {
    if text.contains("WARNING") {
        return None;
    }
    let value = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?.trim();
        (!line.is_empty()).then(|| line.to_owned())
    };
    let lsn = |name: &str| value(name).filter(|text| is_lsn(text));
    Some(Position {
        lsn: Some(lsn("Latest checkpoint's REDO location")?),
        checkpoint_lsn: Some(lsn("Latest checkpoint location")?),
        system: Some(value("Database system identifier").filter(|text| text.parse::<u64>().is_ok())?),
    })
}

fn is_lsn(text: &str) -> bool {
    let hex = |part: &str| !part.is_empty() && part.len() <= 8 && part.chars().all(|c| c.is_ascii_hexdigit());
    text.split_once('/').is_some_and(|(high, low)| hex(high) && hex(low))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As PostgreSQL 15's initdb left it, as far as the checksum goes.
    fn sample() -> Vec<u8> {
        let mut bytes = vec![0; 8192];
        bytes[..8].copy_from_slice(&7_710_593_467_883_711_340_u64.to_le_bytes());
        bytes[8..12].copy_from_slice(&1300_u32.to_le_bytes());
        bytes[12..16].copy_from_slice(&202_209_061_u32.to_le_bytes());
        bytes[32..40].copy_from_slice(&0x2_0150_0718_u64.to_le_bytes());
        bytes[40..48].copy_from_slice(&0x2_0150_06E0_u64.to_le_bytes());
        let crc = crc32c::crc32c(&bytes[..288]);
        bytes[288..292].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    fn expected() -> Position {
        Position {
            lsn: Some("2/15006E0".into()),
            checkpoint_lsn: Some("2/1500718".into()),
            system: Some("7710593467883711340".into()),
        }
    }

    #[test]
    fn a_control_file_is_read() {
        assert_eq!(decode(&sample()), Some(expected()));
    }

    #[test]
    fn nothing_is_guessed() {
        let whole = sample();
        for at in 0..292 {
            let mut bytes = whole.clone();
            bytes[at] ^= 0x10;
            assert_eq!(decode(&bytes), None, "byte {at}");
        }
        for len in 0..292 {
            assert_eq!(decode(&whole[..len]), None);
        }
        let mut newer = whole;
        newer[8..12].copy_from_slice(&1700_u32.to_le_bytes());
        let crc = crc32c::crc32c(&newer[..288]);
        newer[288..292].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(decode(&newer), None);
    }

    #[test]
    fn what_the_program_says_is_read() {
        let text = "pg_control version number:            1700\nDatabase system identifier:           7710593467883711340\n\
            Latest checkpoint location:           2/1500718\nLatest checkpoint's REDO location:    2/15006E0\n";
        assert_eq!(parse_told(text), Some(expected()));
        let damaged =
            format!("WARNING: Calculated CRC checksum does not match value stored in file.\n{text}");
        assert_eq!(parse_told(&damaged), None);
        assert_eq!(parse_told(&text.replace("2/1500718", "somewhere")), None);
        assert_eq!(parse_told(""), None);
    }
}
