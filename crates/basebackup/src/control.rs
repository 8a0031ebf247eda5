//! `global/pg_control`: the state that a cluster keeps of itself.
//!
//! The format is that of control version 1300 (PostgreSQL 13 to 17), little-endian and with 8-byte alignment, as on
//! amd64 and arm64 (`ControlFileData` and `CheckPoint` in `catalog/pg_control.h`):
//!
//! | offset | length | |
//! |---|---|---|
//! | 0 | 8 | system identifier |
//! | 8 | 4 | control version |
//! | 16 | 4 | state: 1 after a server was shut down |
//! | 32 | 8 | location of the last checkpoint's record |
//! | 40 | 8 | its redo location |
//! | 48 | 4 | its timeline |
//! | 136 | 8 | how far a standby has to recover at least |
//! | 144 | 4 | the timeline of that |
//! | 152 | 8 | where the base backup begins that it is, until it has recovered to its end |
//! | 168 | 1 | whether it is a base backup that has not recovered to its end yet |
//! | 216, 220, 224, 228 | 4 each | bytes of a page, pages of a segment of a relation, bytes of a page of the log, of a segment of the log |
//! | 252 | 4 | version of page checksums, or 0 |
//! | 288 | 4 | CRC-32C of all before |

use std::path::Path;

use crate::error::{Error, Result};

/// Path of the file, below the data directory.
pub const FILE: &str = "global/pg_control";
const VERSION: u32 = 1300;
const CRC_AT: usize = 288;
/// State of a cluster whose server was shut down: the next one has nothing to recover.
const SHUT_DOWN: u32 = 1;

/// The contents of a control file, as far as a backup needs them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Control {
    /// Number of the cluster.
    pub system: u64,
    /// True if its server was shut down, so that no recovery precedes the next start.
    pub is_shut_down: bool,
    /// Place of the last checkpoint's record.
    pub checkpoint: u64,
    /// Place where recovery from it begins.
    pub redo: u64,
    /// Timeline of that place.
    pub timeline: u32,
    /// Place up to which a standby has to recover at least; 0 for other servers.
    pub min_recovery: u64,
    /// True if the cluster is a base backup itself, which no server has recovered yet.
    pub is_unfinished_backup: bool,
    /// Bytes of a page of a relation.
    pub page_bytes: u32,
    /// Number of pages of a segment of a relation.
    pub segment_pages: u32,
    /// Bytes of a page of the log.
    pub wal_page_bytes: u32,
    /// Bytes of a segment of the log.
    pub wal_segment_bytes: u32,
    /// True if pages have checksums.
    pub has_checksums: bool,
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    array(bytes, at).map(u32::from_le_bytes)
}

fn location(bytes: &[u8], at: usize) -> Option<u64> {
    array(bytes, at).map(u64::from_le_bytes)
}

/// Reasons why a control file is not understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Odd {
    Short,
    Version(u32),
    Checksum,
    Sizes,
}

impl Control {
    /// Reads the control file of a data directory.
    ///
    /// Errors: it is missing, its checksum is wrong, or another version made it.
    pub fn of(data: &Path) -> Result<Self> {
        let path = data.join(FILE);
        let bytes = std::fs::read(&path).map_err(Error::io("read", &path))?;
        Self::decode(&bytes).map_err(|odd| {
            let path = path.display();
            match odd {
                Odd::Short => Error::Damaged(format!("{path} is too short")),
                Odd::Checksum => Error::Damaged(format!("the checksum of {path} does not hold")),
                Odd::Sizes => Error::Damaged(format!("{path} tells of sizes that no server has")),
                Odd::Version(version) => Error::Unsuited(format!(
                    "{path} is of control version {version}: base backups are made of version {VERSION}, PostgreSQL 13 to 17"
                )),
            }
        })
    }

    fn decode(bytes: &[u8]) -> Result<Self, Odd> {
        let version = number(bytes, 8).ok_or(Odd::Short)?;
        if version != VERSION {
            return Err(Odd::Version(version));
        }
        let (body, crc) = (bytes.get(..CRC_AT).ok_or(Odd::Short)?, number(bytes, CRC_AT).ok_or(Odd::Short)?);
        if crc32c::crc32c(body) != crc {
            return Err(Odd::Checksum);
        }
        let control = Self::fields(bytes).ok_or(Odd::Short)?;
        let sizes = [
            (control.page_bytes, 1 << 10, 32 << 10),
            (control.wal_page_bytes, 1 << 10, 64 << 10),
            (control.wal_segment_bytes, 1 << 20, 1 << 30),
        ];
        let is_odd = |(size, min, max): &(u32, u32, u32)| !size.is_power_of_two() || size < min || size > max;
        if control.segment_pages == 0 || sizes.iter().any(is_odd) {
            return Err(Odd::Sizes);
        }
        Ok(control)
    }

    fn fields(bytes: &[u8]) -> Option<Self> {
        Some(Self {
            system: location(bytes, 0)?,
            is_shut_down: number(bytes, 16)? == SHUT_DOWN,
            checkpoint: location(bytes, 32)?,
            redo: location(bytes, 40)?,
            timeline: number(bytes, 48)?,
            min_recovery: location(bytes, 136)?,
            is_unfinished_backup: location(bytes, 152)? != 0 || array::<1>(bytes, 168)? != [0],
            page_bytes: number(bytes, 216)?,
            segment_pages: number(bytes, 220)?,
            wal_page_bytes: number(bytes, 224)?,
            wal_segment_bytes: number(bytes, 228)?,
            has_checksums: number(bytes, 252)? != 0,
        })
    }
}

/// Formats a location in the log as PostgreSQL writes it.
pub fn lsn(location: u64) -> String {
    format!("{:X}/{:X}", location >> 32, location & u64::from(u32::MAX))
}

/// Parses a location that [`lsn`] wrote.
pub fn parse_lsn(text: &str) -> Option<u64> {
    let (high, low) = text.split_once('/')?;
    let part = |text: &str| u32::from_str_radix(text, 16).ok().map(u64::from);
    Some(part(high)? << 32 | part(low)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As PostgreSQL 15 leaves it, as far as it is read here.
    fn sample(redo: u64, checkpoint: u64) -> Vec<u8> {
        let mut bytes = vec![0; 8192];
        let mut put = |at: usize, part: &[u8]| bytes[at..at + part.len()].copy_from_slice(part);
        put(0, &7_710_593_467_883_711_340_u64.to_le_bytes());
        put(8, &1300_u32.to_le_bytes());
        put(32, &checkpoint.to_le_bytes());
        put(40, &redo.to_le_bytes());
        put(48, &1_u32.to_le_bytes());
        for (at, size) in [(216, 8192_u32), (220, 131_072), (224, 8192), (228, 1 << 20), (252, 1)] {
            put(at, &size.to_le_bytes());
        }
        let crc = crc32c::crc32c(&bytes[..CRC_AT]);
        bytes[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    #[test]
    fn a_control_file_is_read_and_nothing_is_guessed() {
        let whole = sample(0x2_0150_06E0, 0x2_0150_0718);
        let control = Control::decode(&whole).unwrap();
        assert_eq!((control.redo, control.checkpoint, control.timeline), (0x2_0150_06E0, 0x2_0150_0718, 1));
        assert!(control.has_checksums && !control.is_unfinished_backup);
        for at in 0..CRC_AT + 4 {
            let mut bytes = whole.clone();
            bytes[at] ^= 0x10;
            assert!(Control::decode(&bytes).is_err(), "byte {at}");
        }
        for len in 0..CRC_AT + 4 {
            assert!(Control::decode(&whole[..len]).is_err());
        }
    }

    #[test]
    fn locations_are_written_and_read() {
        assert_eq!(lsn(0x2_0150_06E0), "2/15006E0");
        assert_eq!(parse_lsn("2/15006E0"), Some(0x2_0150_06E0));
        assert_eq!((parse_lsn("x/1"), parse_lsn("1"), parse_lsn("1/123456789")), (None, None, None));
    }
}
