//! Encodes the entries of a directory as READDIR and READDIRPLUS answer with them.

use super::convert::entry_out;
use crate::protocol::{Dirent, EntryOut};
use pagefold_fs::{DirEntry, Entry};
use zerocopy::IntoBytes;

/// Fills a buffer with entries, front to back.
pub(super) struct Listing<'a> {
    room: &'a mut [u8],
    used: usize,
}

impl<'a> Listing<'a> {
    pub(super) fn new(room: &'a mut [u8]) -> Self {
        Self { room, used: 0 }
    }

    /// Returns the number of bytes filled.
    pub(super) fn used(&self) -> usize {
        self.used
    }

    /// Appends an entry for READDIR; returns false, and appends nothing, if it does not fit.
    pub(super) fn push(&mut self, entry: &DirEntry<'_>) -> bool {
        self.append(&[], entry)
    }

    /// As [`Self::push`], for READDIRPLUS; without attributes the kernel looks the name up when it needs it.
    pub(super) fn push_plus(&mut self, entry: &DirEntry<'_>, found: Option<&Entry>) -> bool {
        let head = found.map_or_else(EntryOut::default, entry_out);
        self.append(head.as_bytes(), entry)
    }

    fn append(&mut self, head: &[u8], entry: &DirEntry<'_>) -> bool {
        let fixed = Dirent {
            ino: entry.ino.0,
            off: entry.cookie,
            namelen: entry.name.len() as u32,
            kind: u32::from(entry.kind.d_type()),
        };
        let parts = [head, fixed.as_bytes(), entry.name];
        let len = parts.iter().map(|part| part.len()).sum::<usize>().next_multiple_of(8);
        let Some(room) = self.room.get_mut(self.used..).and_then(|rest| rest.get_mut(..len)) else {
            return false;
        };
        let mut at = 0;
        for part in parts {
            room[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        room[at..].fill(0);
        self.used += len;
        true
    }
}
