//! Finds the recordsize that suits a file, from what is first written to it.
//!
//! A record as large as the database's page makes every page one record: nothing is read to be modified, and nothing
//! is stored twice. The registry of formats knows the databases.

use pagefold_codec::registry;

use crate::limits::{RECORDSIZE_MAX, RECORDSIZE_MIN};

/// Longest write whose length alone tells the page size. Databases with larger pages are rare, and copying tools write
/// more at a time.
const PLAIN_WRITE_MAX: usize = 64 << 10;
/// Longest write of zeros whose length alone tells the page size: databases extend files by one page, and newer ones by
/// several at a time.
const ZERO_WRITE_MAX: usize = 16 << 10;

/// Returns the recordsize for a file from a write of `data` at `offset`: the page size of the database whose format is
/// recognised, else the length of an aligned power-of-two write of 4 to 64 KiB (of zeros: to 16 KiB), else `None`.
/// `file_name` is the last component of the path. The answer is a power of two within
/// [`RECORDSIZE_MIN`]..=[`RECORDSIZE_MAX`].
#[must_use]
pub fn recordsize_hint(offset: u64, data: &[u8], file_name: Option<&str>) -> Option<u32> {
    registry()
        .recognise_file(offset, data, file_name)
        .map(|(_, bytes)| bytes.max(RECORDSIZE_MIN))
        .or_else(|| plain_write(offset, data))
        .filter(|bytes| bytes.is_power_of_two() && *bytes <= RECORDSIZE_MAX)
}

fn plain_write(offset: u64, data: &[u8]) -> Option<u32> {
    let zeros = data.len() > ZERO_WRITE_MAX && data.iter().all(|&byte| byte == 0);
    let longest = if zeros { ZERO_WRITE_MAX } else { PLAIN_WRITE_MAX };
    let pow2 = data.len().is_power_of_two() && (RECORDSIZE_MIN as usize..=longest).contains(&data.len());
    (pow2 && offset.is_multiple_of(data.len() as u64)).then_some(data.len() as u32)
}
