//! Data: open, read, write, truncate, sync, seek.
//!
//! A regular file has a data object and a recordsize, or neither: until the first byte other than zero is written,
//! nothing is stored and the recordsize is undecided. An object's recordsize never changes. Truncation to nothing gives
//! the object up; a rewrite, and a call that moves bytes within the file, give the file another one. So a reader that
//! noted object, recordsize and size needs no lock while it reads. It looks again afterwards: if the file has another
//! object by then, the reader may have read zeros of an object that was given up, and reads again. A record is read as
//! it was at one instant.

mod seek;

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use pagefold_engine::dataset::{Attempt, Caller, Change, LateFetch, PageFetch};
use pagefold_engine::limits::{ATOMIC_WRITE_MAX, RECORDSIZE_DEFAULT};

use crate::codec::{Inode, flag, is_recordsize};
use crate::error::{FsError, Result};
use crate::freeing::{tell_freeing, uncover};
use crate::fs::Fs;
use crate::inode::{Locked, Node};
use crate::limits::{FILE_BYTES_MAX, ZEROS};
use crate::orphan;
use crate::ranges::Ranges;
use crate::types::{Attr, Ino, OpenFlags, WriteFlags, Written};

/// Outcomes of a read that must not wait.
pub enum TryRead {
    /// The read is done: number of bytes read.
    Done(usize),
    /// One device read is needed, which the caller may do.
    Fetch(Fetch),
    /// The caller has to call [`Fs::read`], which waits for a device.
    Wait,
}

/// A read that lacks one device read.
pub struct Fetch {
    page: PageFetch,
    len: usize,
    node: Arc<Node>,
    object: u64,
}

impl Fetch {
    /// Returns a descriptor to read from, if the device has one; it stays open as long as `self` lives.
    pub fn file(&self) -> Option<BorrowedFd<'_>> {
        self.page.file()
    }

    /// Returns the byte offset on the device, and the buffer for the bytes there; all of it has to be filled. The
    /// buffer does not move until `self` is finished or dropped.
    pub fn request(&mut self) -> (u64, &mut [u8]) {
        self.page.request()
    }

    /// Returns the time from the attempt on after which the caller should leave the read alone ([`Fetch::leave_overdue`]), as
    /// the device takes too long and another one has the same; `None` if none has.
    pub fn due_in(&self) -> Option<Duration> {
        self.page.due_in()
    }

    /// Leaves a read alone that the kernel makes by the descriptor. [`Fs::read`] asks another device then.
    pub fn leave_overdue(self) -> LateFetch {
        self.page.leave_overdue()
    }

    /// Fills the beginning of `buf`, the buffer of the attempt or another as long, and returns the number of bytes
    /// read; `None` if [`Fs::read`] has to do it.
    pub fn finish(self, buf: &mut [u8]) -> Result<Option<usize>> {
        let Some(out) = buf.get_mut(..self.len) else { return Ok(None) };
        let is_done = self.page.finish(out)?;
        Ok((is_done && self.node.has_object(self.object)).then_some(self.len))
    }
}

impl Fs {
    /// Opens a regular file; the caller owes one [`Fs::release`]. Returns the attributes after any truncation.
    pub fn open(&self, ino: Ino, flags: OpenFlags) -> Result<Attr> {
        let node = self.node(ino)?;
        let inode = node.snapshot();
        self.want_file(&inode)?;
        let attr = if flags.truncate {
            let set =
                crate::types::SetAttr { size: Some(0), kill_suid: flags.kill_suid, ..Default::default() };
            self.setattr(ino, &set)?
        } else {
            self.attr(ino.0, &inode)?
        };
        node.add_open();
        Ok(attr)
    }

    /// Fills `buf` from byte `offset` on; returns the number of bytes read, which is smaller than `buf` only at the end
    /// of the file.
    pub fn read(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let all = |object, record_size, offset, buf: &mut [u8]| {
            Ok(self.dataset.read(object, record_size, offset, buf).map(|()| Attempt::Done)?)
        };
        self.read_with(&self.node(ino)?, offset, buf, all).map(|(_, len, _)| len)
    }

    /// As [`Fs::read`], as far as the read can be done without waiting for a device.
    pub fn try_read(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<TryRead> {
        let some = |object, record_size, offset, buf: &mut [u8]| {
            Ok(self.dataset.try_read(object, record_size, offset, buf)?)
        };
        let node = self.node(ino)?;
        Ok(match self.read_with(&node, offset, buf, some)? {
            (Attempt::Done, len, _) => TryRead::Done(len),
            (Attempt::Fetch(page), len, object) => TryRead::Fetch(Fetch { page, len, node, object }),
            (Attempt::Wait, ..) => TryRead::Wait,
        })
    }

    /// Reads with `read` (object, recordsize, offset, buffer); returns its outcome, the number of bytes to be read, and
    /// the object.
    fn read_with(
        &self,
        node: &Arc<Node>,
        offset: u64,
        buf: &mut [u8],
        read: impl Fn(u64, u32, u64, &mut [u8]) -> Result<Attempt>,
    ) -> Result<(Attempt, usize, u64)> {
        loop {
            let inode = node.snapshot();
            self.want_file(&inode)?;
            let left = inode.size.saturating_sub(offset);
            let len = usize::try_from(left).unwrap_or(usize::MAX).min(buf.len());
            let buf = &mut buf[..len];
            if len == 0 {
                return Ok((Attempt::Done, 0, inode.object));
            }
            let outcome = if inode.object == 0 {
                buf.fill(0);
                Ok(Attempt::Done)
            } else if inode.freeing.is_empty() {
                read(inode.object, inode.recordsize, offset, buf)
            } else {
                read_around(&inode, offset, buf, &read)
            };
            if node.has_object(inode.object) {
                self.touch(node, &inode);
                return outcome.map(|outcome| (outcome, len, inode.object));
            }
        }
    }

    /// Returns true if [`Fs::write`] of `len` bytes at `offset` would be done now without waiting for a device. That is
    /// so for a file that has data, if nobody else is changing it: for whole records, and for parts of records that are
    /// in memory or not there yet, as the tail of a log is. The answer is a hint: false is always right.
    pub fn writes_at_once(&self, ino: Ino, offset: u64, len: usize) -> bool {
        let Ok(node) = self.node(ino) else { return false };
        let inode = node.snapshot();
        let recordsize = u64::from(inode.recordsize.max(1));
        let end = offset.saturating_add(len as u64);
        let in_part = |at: u64| (!at.is_multiple_of(recordsize)).then_some(at / recordsize);
        let first = in_part(offset);
        let last = in_part(end).filter(|page| first != Some(*page));
        inode.object != 0
            && offset <= inode.size
            // Bytes behind the end in the last record are zeroed first.
            && (end <= inode.size || !inode.has(flag::TAIL))
            && inode.freeing.is_empty()
            // A write that is mirrored into records of another size may have to read them.
            && node.changing.try_lock().is_some_and(|changing| changing.is_none())
            && self.dataset.accepts_at_once()
            && first.into_iter().chain(last).all(|page| self.dataset.is_at_hand(inode.object, page))
    }

    /// Writes at most the first MiB of `data`, as a whole or not at all.
    ///
    /// Errors: `TooBig` beyond 2^63 - 1 bytes; `NoSpace`, and then nothing is written.
    pub fn write(&self, ino: Ino, offset: u64, data: &[u8], flags: WriteFlags) -> Result<Written> {
        self.with_space(|| self.write_once(ino, offset, data, flags))
    }

    fn write_once(&self, ino: Ino, offset: u64, data: &[u8], flags: WriteFlags) -> Result<Written> {
        self.writable()?;
        let node = self.node(ino)?;
        let data = &data[..data.len().min(ATOMIC_WRITE_MAX)];
        let mut locked = Locked::lock(&node);
        self.bound_freeing(&mut locked)?;
        let inode = &mut locked.new;
        self.want_file(inode)?;
        let offset = if flags.append { inode.size } else { offset };
        let end = offset
            .checked_add(data.len() as u64)
            .filter(|&end| end <= FILE_BYTES_MAX)
            .ok_or(FsError::TooBig)?;
        if data.is_empty() {
            return Ok(Written { offset, len: 0 });
        }
        let mut changes = Vec::with_capacity(4);
        let was_empty = inode.object == 0;
        self.write_into(&node, inode, offset, data, &mut changes)?;
        inode.size = inode.size.max(end);
        let now = self.now();
        inode.mtime = now;
        inode.ctime = now;
        self.kill_privileges(ino.0, inode, flags.kill_suid, &mut changes)?;
        locked.put(&mut changes);
        locked.apply(self.dataset(), changes)?;
        locked.publish();
        // A write that finds no space is made again, and decides the recordsize again.
        if was_empty && locked.new.object != 0 {
            *node.name_hint.lock() = None;
        }
        Ok(Written { offset, len: data.len() })
    }

    /// Adds the changes that write `data`, after the changes that this needs: zeros behind the old end, an object to
    /// write to. The caller sets the size.
    pub(crate) fn write_into<'a>(
        &self,
        node: &Node,
        inode: &mut Inode,
        offset: u64,
        data: &'a [u8],
        changes: &mut Vec<Change<'a>>,
    ) -> Result<()> {
        if offset.saturating_add(data.len() as u64) > inode.size {
            clean_tail(inode, changes);
        }
        if inode.object == 0 {
            if is_zero(data) {
                return Ok(());
            }
            let recordsize = self.decide_recordsize(node, inode, offset, data);
            self.give_object(node.ino, inode, recordsize)?;
        }
        uncover(inode, offset, data.len() as u64, changes);
        changes.push(Change::Write { object: inode.object, record_size: inode.recordsize, offset, data });
        Ok(())
    }

    /// Returns the recordsize in bytes for a file that gets its first data.
    fn decide_recordsize(&self, node: &Node, inode: &Inode, offset: u64, data: &[u8]) -> u32 {
        if inode.wish != 0 {
            return inode.wish;
        }
        if let Some(fixed) = self.options.recordsize {
            return fixed;
        }
        let hinted = self.options.hint.as_ref().and_then(|hint| {
            let name = node.name_hint.lock();
            hint(offset, data, name.as_deref())
        });
        hinted.filter(|&bytes| is_recordsize(bytes)).unwrap_or(RECORDSIZE_DEFAULT)
    }

    /// Gives a file without data an object: under its own number the first time, so that inode and pages are neighbours.
    pub(crate) fn give_object(&self, ino: u64, inode: &mut Inode, recordsize: u32) -> Result<()> {
        inode.object = if inode.has(flag::OBJECT_USED) { self.new_id()? } else { ino };
        inode.set(flag::OBJECT_USED, true);
        inode.recordsize = recordsize;
        Ok(())
    }

    /// Adds the changes that make a file `size` bytes long.
    ///
    /// Shortening only frees, so that it works in a full pool: the bytes behind the end in the last page are zeroed when
    /// the file grows again.
    pub(crate) fn resize(
        &self,
        ino: u64,
        inode: &mut Inode,
        size: u64,
        changes: &mut Vec<Change<'_>>,
    ) -> Result<()> {
        if size > FILE_BYTES_MAX {
            return Err(FsError::TooBig);
        }
        let object = inode.object;
        if size > inode.size {
            clean_tail(inode, changes);
        } else if size == 0 {
            self.give_up_data(inode, changes);
        } else if size < inode.size && inode.object != 0 {
            let record_size = u64::from(inode.recordsize);
            let pages = size.div_ceil(record_size)..inode.size.div_ceil(record_size);
            self.cut_pages(inode, pages, changes);
            inode.set(flag::TAIL, !size.is_multiple_of(record_size));
        }
        if size <= inode.size {
            tell_freeing(object, changes);
        }
        tracing::trace!(ino, from = inode.size, to = size, "resize");
        inode.size = size;
        Ok(())
    }

    /// Answers that a descriptor was closed. Writes nothing back: each write has reported its own errors.
    pub fn flush(&self, ino: Ino) -> Result<()> {
        self.node(ino).map(drop)
    }

    /// Returns when everything done before is durable, whichever inode it concerns. With `datasync` the access time
    /// need not be durable.
    pub fn fsync(&self, ino: Ino, datasync: bool) -> Result<()> {
        let node = self.node(ino)?;
        if !datasync {
            self.flush_time(&node)?;
        }
        Ok(self.dataset.sync()?)
    }

    /// As [`Fs::fsync`], for callers that have something else to do: calls `then` with the outcome, possibly later and
    /// on another thread. Does not wait if [`Fs::syncs_at_once`] returns true, unless `caller` may.
    pub fn fsync_then(
        &self,
        (ino, datasync): (Ino, bool),
        caller: Caller,
        then: impl FnOnce(Result<()>) + Send + 'static,
    ) {
        let ready = self.node(ino).and_then(|node| if datasync { Ok(()) } else { self.flush_time(&node) });
        match ready {
            Ok(()) => self.dataset.sync_then(caller, Box::new(|synced| then(synced.map_err(FsError::from)))),
            Err(error) => then(Err(error)),
        }
    }

    /// Returns true if [`Fs::fsync_then`] has nothing to write first, such as an access time. The answer is a hint:
    /// false is always right.
    pub fn syncs_at_once(&self, ino: Ino, datasync: bool) -> bool {
        self.nodes.peek(ino.0).is_some_and(|node| datasync || !node.cached.read().atime_dirty)
    }

    /// As [`Fs::fsync`], for a directory.
    pub fn fsyncdir(&self, ino: Ino, datasync: bool) -> Result<()> {
        self.fsync(ino, datasync)
    }

    /// Returns when everything done before is durable, access times too.
    pub fn sync(&self) -> Result<()> {
        self.flush_times()?;
        Ok(self.dataset.sync()?)
    }

    /// Gives up all data of a file. Of a large object the first pages are freed, and the object becomes an orphan: a
    /// full pool, too, admits a change that frees something.
    pub(crate) fn give_up_data(&self, inode: &mut Inode, changes: &mut Vec<Change<'_>>) {
        if inode.object != 0 {
            let most = self.free_pages_max();
            // Pages behind the end exist only if they are to be freed.
            let is_small =
                inode.freeing.is_empty() && inode.size.div_ceil(u64::from(inode.recordsize)) <= most;
            let to = if is_small { u64::MAX } else { most };
            changes.push(Change::Punch { object: inode.object, from: 0, to });
            if !is_small {
                changes.push(orphan::put_data(inode.object));
            }
        }
        inode.object = 0;
        inode.recordsize = 0;
        inode.freeing = Ranges::default();
        inode.set(flag::TAIL, false);
    }
}

/// Reads the pages that are not to be freed, and fills the rest with zeros.
pub(crate) fn read_around(
    inode: &Inode,
    offset: u64,
    buf: &mut [u8],
    read: impl Fn(u64, u32, u64, &mut [u8]) -> Result<Attempt>,
) -> Result<Attempt> {
    let record_size = u64::from(inode.recordsize);
    let end = offset.saturating_add(buf.len() as u64);
    let stretches = inode.freeing.split(offset / record_size..end.div_ceil(record_size));
    let alone = stretches.len() == 1;
    let (mut at, mut rest) = (offset, buf);
    for (pages, is_freed) in stretches {
        let len = pages.end.saturating_mul(record_size).min(end) - at;
        let (out, behind) = rest.split_at_mut(usize::try_from(len).unwrap_or(usize::MAX).min(rest.len()));
        if is_freed {
            out.fill(0);
        } else {
            match read(inode.object, inode.recordsize, at, out)? {
                Attempt::Done => {}
                fetch if alone => return Ok(fetch),
                Attempt::Fetch(_) | Attempt::Wait => return Ok(Attempt::Wait),
            }
        }
        (at, rest) = (at + len, behind);
    }
    Ok(Attempt::Done)
}

/// Zeroes the bytes behind the end of the file in its last page. Must be called before the file grows.
pub(crate) fn clean_tail(inode: &mut Inode, changes: &mut Vec<Change<'_>>) {
    if inode.has(flag::TAIL) && inode.object != 0 {
        let record_size = u64::from(inode.recordsize);
        let len = (record_size - inode.size % record_size) % record_size;
        // A page that is to be freed is all zeros.
        if len > 0 && inode.freeing.end_of(inode.size / record_size).is_none() {
            let data = &ZEROS[..len as usize];
            changes.push(Change::Write {
                object: inode.object,
                record_size: inode.recordsize,
                offset: inode.size,
                data,
            });
        }
    }
    inode.set(flag::TAIL, false);
}

/// Returns true if all bytes are zero.
pub(crate) fn is_zero(data: &[u8]) -> bool {
    let (chunks, rest) = data.as_chunks::<64>();
    chunks.iter().all(|chunk| *chunk == [0; 64]) && rest.iter().all(|&b| b == 0)
}
