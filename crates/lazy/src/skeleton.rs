//! Writes a dataset that has all values of a backup and none of its pages, as a stream that a pool receives.

use std::collections::BTreeMap;
use std::io::Write;

use pagefold_backup::{Contents, Entry, Error, Result};
use pagefold_engine::pool::{StreamHead, StreamWriter};

use crate::absent::{Group, KIND, ORIGIN_KEY};
use crate::limits::{CHUNKS_AT_ONCE, GROUP_PAGES};
use crate::origin::Origin;

/// Counts of the contents of such a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Built {
    /// Number of values.
    pub values: u64,
    /// Number of absent pages.
    pub pages: u64,
    /// Bytes of these pages' records.
    pub record_bytes: u64,
}

/// Reads the whole manifest of a backup, and writes the stream: all values, and behind them which pages are absent.
/// `head` names the stream. Takes memory of a bit for each page.
///
/// # Errors
/// [`Error::Invalid`] if the backup is of a dataset that is not complete; [`Error::Stream`] for errors of `out`; errors
/// of the store.
pub fn skeleton(
    contents: &Contents,
    origin: &Origin,
    head: &StreamHead,
    out: &mut dyn Write,
) -> Result<Built> {
    let mut built = Built::default();
    let mut writer = StreamWriter::new(out, head)?;
    let mut groups: BTreeMap<(u64, u64), Group> = BTreeMap::new();
    for rows in contents.rows().chunks(CHUNKS_AT_ONCE) {
        for entry in contents.chunks(rows)?.into_iter().flatten() {
            match entry {
                Entry::Value(key, _) if key.kind == KIND => {
                    return Err(Error::Invalid(
                        "the backup is of a dataset that was not complete itself: its pages are in another backup".into(),
                    ));
                }
                Entry::Value(key, value) => {
                    built.values += 1;
                    writer.put(key, &value)?;
                }
                Entry::Page(page) => {
                    built.pages += 1;
                    built.record_bytes += u64::from(page.record.len);
                    let number = groups.len() as u64 + 1;
                    let group = groups.entry((page.object, page.page / GROUP_PAGES));
                    let group = group.or_insert_with(|| Group::new(number, page.record_size));
                    if group.record_size != page.record_size {
                        return Err(Error::Damaged {
                            object: page.record.block.pack.path(),
                            detail: format!("pages of object {} have different sizes", page.object),
                        });
                    }
                    group.add(page.page, page.record.len);
                }
            }
        }
    }
    if !groups.is_empty() {
        writer.put(ORIGIN_KEY, &origin.encode())?;
    }
    // Pages come in the order of keys, and so do groups and their numbers.
    for ((object, group), absent) in &groups {
        writer.put(absent.key(), &absent.encode(*object, *group))?;
    }
    writer.end()?;
    Ok(built)
}
