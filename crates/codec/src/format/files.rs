//! Describes files of databases, as far as their names and first bytes tell what they are.
//!
//! Sources of the formats: PostgreSQL `bufpage.h` and `xlog_internal.h`; MariaDB and MySQL `fil0fil.h`, `fsp0types.h`
//! and `log0log.h`; SQLite's "Database File Format"; RRDtool `rrd_format.h`. Each is in the folder of its pages.

use std::fmt;

/// Files of one kind.
pub struct FileFormat {
    /// Name in reports: lower case, words with hyphens between them.
    pub name: &'static str,
    /// Title in reports.
    pub title: &'static str,
    /// Facts of a log; `None` for other files.
    pub log: Option<LogFacts>,
    /// True if such a file has pages of one of several formats, and reports say of which.
    pub has_several: bool,
    /// True if some pages of such a file look like nothing: they continue others.
    pub has_formless: bool,
    /// Returns the page size of a file with this name, whatever it contains.
    pub(crate) by_name: fn(&str) -> Option<u32>,
    /// Returns the page size of a file that has these bytes.
    pub(crate) by_bytes: fn(FileBytes<'_>) -> Option<u32>,
    /// Returns the usual page size of a file with this name, if its bytes tell nothing.
    pub(crate) by_name_alone: fn(&str) -> Option<u32>,
    /// Returns true if a page begins, and is as long, as pages of such files that a model may describe.
    pub(crate) begins: fn(&[u8]) -> bool,
    /// Returns true if a page, by its number and content, says that its file is such a file.
    pub(crate) marks: fn(u64, &[u8]) -> bool,
}

/// Facts of a database's log, whose files share a model.
#[derive(Clone, Copy, Debug)]
pub struct LogFacts {
    /// Number of the log among all kinds of logs, from 0 on. Pools store it: it is never used for another log.
    pub number: u8,
    /// A file is such a log if more than one in this many of its pages is recognised.
    pub one_in: u64,
}

impl FileFormat {
    /// A file that nothing tells.
    pub(crate) const UNTOLD: Self = Self {
        name: "",
        title: "",
        log: None,
        has_several: false,
        has_formless: false,
        by_name: |_| None,
        by_bytes: |_| None,
        by_name_alone: |_| None,
        begins: |_| false,
        marks: |_, _| false,
    };
}

impl PartialEq for FileFormat {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for FileFormat {}

impl fmt::Debug for FileFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// Bytes of a file from an offset on. Fields beyond the end read as `None`.
#[derive(Clone, Copy)]
pub(crate) struct FileBytes<'a> {
    pub(crate) offset: u64,
    pub(crate) data: &'a [u8],
}

impl<'a> FileBytes<'a> {
    /// Takes a page, wherever it lies.
    pub(crate) fn page(data: &'a [u8]) -> Self {
        Self { offset: 0, data }
    }

    pub(crate) fn bytes<const N: usize>(self, at: usize) -> Option<[u8; N]> {
        self.data.get(at..)?.first_chunk().copied()
    }

    pub(crate) fn le16(self, at: usize) -> Option<u16> {
        self.bytes(at).map(u16::from_le_bytes)
    }

    pub(crate) fn le32(self, at: usize) -> Option<u32> {
        self.bytes(at).map(u32::from_le_bytes)
    }

    pub(crate) fn be16(self, at: usize) -> Option<u16> {
        self.bytes(at).map(u16::from_be_bytes)
    }

    pub(crate) fn be32(self, at: usize) -> Option<u32> {
        self.bytes(at).map(u32::from_be_bytes)
    }
}
