//! Finds directories on a device without anything that refers to them.

use super::directory::DirRef;
use super::directory::{DirEntry, Directory, Index, MAGIC};
use crate::limits::CHUNK_BYTES;
use crate::wire::Reader;

/// A directory as it was found.
#[derive(Clone, Debug)]
pub(crate) struct FoundDirectory {
    /// Number of the segment that it claims to belong to.
    pub segment: u64,
    /// Entries of its sound leaves. Only the checksums of the records tell whether these are right.
    pub entries: Vec<DirEntry>,
    /// Length of the whole directory, in bytes.
    pub len_bytes: u32,
    /// Reference to the directory at the start of an extent; `None` if a leaf is damaged.
    pub whole: Option<DirRef>,
}

/// Returns the position in `bytes` at which the next directory may begin.
pub(crate) fn next_directory(bytes: &[u8]) -> Option<usize> {
    bytes.windows(MAGIC.len()).position(|four| four == MAGIC)
}

/// Returns the directory at the start of `bytes`; `None` if its index cannot be one.
pub(crate) fn find_directory(bytes: &[u8]) -> Option<FoundDirectory> {
    let segment = u64::from_le_bytes(bytes.get(MAGIC.len()..MAGIC.len() + 8)?.try_into().ok()?);
    let mut reader = Reader::new(bytes, "segment directory");
    let index = Index::read(&mut reader, segment).ok()?;
    let index_bytes = bytes.len() - reader.remaining();
    let mut entries = Vec::new();
    let (mut end, mut is_whole) = (index_bytes, true);
    for leaf in index.leaves() {
        let stored = bytes.get(end..end + leaf.len_bytes as usize)?;
        match leaf.read(stored, CHUNK_BYTES as u32) {
            Ok(leaf) => entries.extend_from_slice(leaf.entries()),
            Err(_) => is_whole = false,
        }
        end += leaf.len_bytes as usize;
    }
    // Numbers of leaves ascend, and so do slots within a leaf, or the directory is not sound.
    let entries = Directory::try_from(entries).ok()?.entries().to_vec();
    let (len_bytes, index_len) = (end as u32, index_bytes as u32);
    let checksum = crc32c::crc32c(bytes.get(..index_bytes)?);
    let whole =
        is_whole.then_some(DirRef { start: 0, len_bytes, index_bytes: index_len, second: 0, checksum });
    Some(FoundDirectory { segment, entries, len_bytes, whole })
}
