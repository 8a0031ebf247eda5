//! Where a file has data, and where holes; how much it takes.

use pagefold_engine::dataset::Usage;

use crate::codec::Inode;
use crate::error::{FsError, Result};
use crate::fs::Fs;
use crate::types::{Ino, Seek};

impl Fs {
    /// Returns the byte offset of the next data or hole at or after `offset`, to the record; the end of the file is a
    /// hole.
    ///
    /// Errors: `NoData` at or beyond the end, or where no data follows.
    pub fn seek(&self, ino: Ino, offset: u64, what: Seek) -> Result<u64> {
        let node = self.node(ino)?;
        loop {
            let inode = node.snapshot();
            let found = self.seek_in(&inode, offset, what);
            if node.has_object(inode.object) {
                return found;
            }
        }
    }

    fn seek_in(&self, inode: &Inode, offset: u64, what: Seek) -> Result<u64> {
        self.want_file(inode)?;
        if offset >= inode.size {
            return Err(FsError::NoData);
        }
        if inode.object == 0 {
            return if what == Seek::Hole { Ok(offset) } else { Err(FsError::NoData) };
        }
        let record_size = u64::from(inode.recordsize);
        let page = offset / record_size;
        let at = |page: u64| page.saturating_mul(record_size).max(offset);
        match what {
            // If it cannot be read which pages are stored, everything from here on counts as data: reading that reports
            // the damage.
            Seek::Hole => match self.next_hole(inode, page) {
                Err(FsError::Engine(error)) if error.is_damage() => Ok(inode.size),
                found => Ok(at(found?).min(inode.size)),
            },
            Seek::Data => {
                let found = match self.next_data(inode, page) {
                    Err(FsError::Engine(error)) if error.is_damage() => Some(offset),
                    found => found?.map(at),
                };
                found.filter(|&found| found < inode.size).ok_or(FsError::NoData)
            }
        }
    }

    /// Returns the first page at or after `page` that is stored and not to be freed.
    pub(crate) fn next_data(&self, inode: &Inode, page: u64) -> Result<Option<u64>> {
        let mut page = page;
        loop {
            let Some(found) = self.dataset.next_data(inode.object, page)? else { return Ok(None) };
            let Some(end) = inode.freeing.end_of(found) else { return Ok(Some(found)) };
            page = end;
        }
    }

    /// Returns the first page at or after `page` that is not stored, or is to be freed.
    fn next_hole(&self, inode: &Inode, page: u64) -> Result<u64> {
        match inode.freeing.first_in(page..u64::MAX) {
            Some(range) if range.start == page => Ok(page),
            range => {
                let stored = self.dataset.next_hole(inode.object, page)?;
                Ok(range.map_or(stored, |range| stored.min(range.start)))
            }
        }
    }

    /// Returns the object that holds the file's pages; 0 if the file has none.
    pub fn object(&self, ino: Ino) -> Result<u64> {
        let inode = self.node(ino)?.snapshot();
        self.want_file(&inode)?;
        Ok(inode.object)
    }

    /// Returns the space that the file's pages take.
    pub fn usage(&self, ino: Ino) -> Result<Usage> {
        let inode = self.node(ino)?.snapshot();
        self.want_file(&inode)?;
        if inode.object == 0 { Ok(Usage::default()) } else { Ok(self.dataset.usage(inode.object)?) }
    }
}
