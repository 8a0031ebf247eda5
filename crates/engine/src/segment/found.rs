//! Directories that are found on a device without anything that refers to them.

use super::directory::{DirEntry, Directory, Index, MAGIC};
use super::entry::DirRef;
use crate::limits::CHUNK_BYTES;
use crate::wire::Reader;

/// A directory as it was found.
#[derive(Clone, Debug)]
pub struct FoundDirectory {
    /// The segment that it says to be of.
    pub segment: u64,
    /// The entries of those of its leaves that are sound. Only the seals of the records tell whether these are right.
    pub entries: Vec<DirEntry>,
    /// Length of all of it.
    pub len_bytes: u32,
    /// What would refer to it, were it at the start of its extent, if all of its leaves are sound.
    pub whole: Option<DirRef>,
}

/// Where the next directory may begin.
pub fn next_directory(bytes: &[u8]) -> Option<usize> {
    bytes.windows(MAGIC.len()).position(|four| four == MAGIC)
}

/// The directory at the start of `bytes`, if its index can be one.
pub fn find_directory(bytes: &[u8]) -> Option<FoundDirectory> {
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
    // The numbers of leaves ascend; slots within a leaf do, or it is not sound.
    let entries = Directory::try_from(entries).ok()?.entries().to_vec();
    let (len_bytes, index_len) = (end as u32, index_bytes as u32);
    let checksum = crc32c::crc32c(bytes.get(..index_bytes)?);
    let whole =
        is_whole.then_some(DirRef { start: 0, len_bytes, index_bytes: index_len, second: 0, checksum });
    Some(FoundDirectory { segment, entries, len_bytes, whole })
}
