//! The snapshots that clients have looked into by one export, in memory that outlives the server.
//!
//! The export gives each such snapshot a place, by which clients know its files, and counts what they know. The memory
//! is a file without a name, which the supervisor keeps: it has a record for each place from 1 on, of [`RECORD_BYTES`].

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use rustix::fs::MemfdFlags;

/// Bytes of a record: number of the snapshot and number of references, each in 8 bytes, little-endian. A place of which
/// clients know nothing has no references.
const RECORD_BYTES: usize = 16;

/// A snapshot that clients have looked into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LookedInto {
    /// Its place, from 1 on.
    pub place: u16,
    /// Its number.
    pub snapshot: u64,
    /// Number of references that clients have to its files, or more.
    pub references: u64,
}

impl LookedInto {
    /// Number of references if that is not known.
    pub(crate) const UNKNOWN: u64 = u64::MAX;
}

/// Creates the memory, without records.
pub(super) fn create() -> io::Result<File> {
    Ok(File::from(rustix::fs::memfd_create("pagefold-snapshots", MemfdFlags::CLOEXEC)?))
}

/// Writes the record of a place.
pub(super) fn write(file: &File, known: LookedInto) -> io::Result<()> {
    let LookedInto { place, snapshot, references } = known;
    let mut record = [0; RECORD_BYTES];
    let (number, count) = record.split_at_mut(RECORD_BYTES / 2);
    number.copy_from_slice(&snapshot.to_le_bytes());
    count.copy_from_slice(&references.to_le_bytes());
    let at = u64::from(place).saturating_sub(1) * RECORD_BYTES as u64;
    file.write_all_at(&record, at)
}

/// Reads the records of all places of which clients know something.
pub(super) fn read(file: &File) -> io::Result<Vec<LookedInto>> {
    let records = file.metadata()?.len() / RECORD_BYTES as u64;
    let records = u16::try_from(records)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it has too many records"))?;
    let mut bytes = vec![0; usize::from(records) * RECORD_BYTES];
    file.read_exact_at(&mut bytes, 0)?;
    let words: Vec<u64> = bytes
        .chunks_exact(8)
        .map(|word| word.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte)))
        .collect();
    let known = (1..u16::MAX).zip(words.chunks_exact(2)).filter_map(|(place, record)| match *record {
        [snapshot, references] if references > 0 => Some(LookedInto { place, snapshot, references }),
        _ => None,
    });
    Ok(known.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_places_as_there_are_come_back() {
        let file = create().unwrap();
        let known = |place: u16| LookedInto { place, snapshot: u64::MAX - u64::from(place), references: 7 };
        for place in (1..u16::MAX).rev() {
            write(&file, known(place)).unwrap();
        }
        write(&file, LookedInto { references: 0, ..known(5) }).unwrap();
        let expected: Vec<LookedInto> = (1..u16::MAX).filter(|place| *place != 5).map(known).collect();
        assert!(read(&file).unwrap() == expected);
        let again = LookedInto { place: 5, snapshot: 3, references: LookedInto::UNKNOWN };
        write(&file, again).unwrap();
        assert_eq!(read(&file).unwrap()[4], again);
    }
}
