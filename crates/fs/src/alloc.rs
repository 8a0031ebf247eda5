//! Ranges of files: fallocate and copy_file_range.

use pagefold_engine::dataset::journal::note_result;
use pagefold_engine::dataset::{Change, accepted_bytes};
use pagefold_engine::limits::ATOMIC_WRITE_MAX;

use crate::codec::{Inode, flag};
use crate::error::{FsError, Result};
use crate::freeing::{tell_freeing, uncover};
use crate::fs::Fs;
use crate::inode::{Node, Txn};
use crate::io::clean_tail;
use crate::limits::{FILE_BYTES_MAX, SHARE_PAGES_MAX, ZEROS};
use crate::orphan;
use crate::ranges::Ranges;
use crate::types::{Fallocate, Ino};

impl Fs {
    /// Allocates, punches, zeroes, collapses or inserts a range of `len` bytes. `kill_suid` clears set-id bits, as with
    /// a write.
    ///
    /// A copy-on-write pool cannot set space aside for pages that are yet to be compressed: allocating checks that the
    /// range would fit uncompressed, and lengthens the file.
    ///
    /// Errors: `Invalid` for an empty range, and if collapse or insert are not aligned to the recordsize
    /// (`Attr::blksize`) or reach the end of the file; `TooBig`, `NoSpace`.
    pub fn fallocate(&self, ino: Ino, offset: u64, len: u64, mode: Fallocate, kill_suid: bool) -> Result<()> {
        self.with_space(|| self.fallocate_once(ino, offset, len, mode, kill_suid))
    }

    fn fallocate_once(
        &self,
        ino: Ino,
        offset: u64,
        len: u64,
        mode: Fallocate,
        kill_suid: bool,
    ) -> Result<()> {
        self.writable()?;
        if len == 0 {
            return Err(FsError::Invalid("an empty range"));
        }
        let end = offset.checked_add(len).filter(|&end| end <= FILE_BYTES_MAX).ok_or(FsError::TooBig)?;
        let node = self.node(ino)?;
        let mut txn = Txn::lock(&[&node]);
        self.bound_freeing(txn.locked(ino.0)?)?;
        let inode = txn.edit(ino.0)?;
        self.want_file(inode)?;
        let moves = matches!(mode, Fallocate::Collapse | Fallocate::Insert);
        // Until the new inode is published, readers may be reading the object that is given up.
        let spared = moves.then(|| self.spare(inode.object));
        let mut changes = Vec::with_capacity(5);
        match mode {
            Fallocate::Allocate { keep_size } => {
                self.check_room(inode, offset, len)?;
                if !keep_size {
                    grow(inode, end, &mut changes);
                }
            }
            Fallocate::PunchHole => {
                self.zero_range(inode, offset, end, &mut changes);
                // Parts of records are zeroed on full pools, too.
                if !changes.is_empty() {
                    tell_freeing(inode.object, &mut changes);
                }
            }
            Fallocate::ZeroRange { keep_size } => {
                self.zero_range(inode, offset, end, &mut changes);
                if !keep_size {
                    grow(inode, end, &mut changes);
                }
            }
            Fallocate::Collapse => self.collapse(inode, offset, len, &mut changes)?,
            Fallocate::Insert => self.insert(inode, offset, len, &mut changes)?,
        }
        let now = self.now();
        inode.mtime = now;
        inode.ctime = now;
        self.kill_privileges(ino.0, inode, kill_suid, &mut changes)?;
        let orphaned = !inode.freeing.is_empty();
        txn.commit(self.dataset(), changes)?;
        drop(txn);
        drop(spared);
        if orphaned {
            self.note_orphan();
        }
        Ok(())
    }

    /// Adds the changes after which `from..to` reads as zeros. The size stays.
    fn zero_range(&self, inode: &mut Inode, from: u64, to: u64, changes: &mut Vec<Change<'_>>) {
        let size = inode.size;
        if inode.object == 0 || from >= size {
            return;
        }
        let record_size = u64::from(inode.recordsize);
        let first = from.div_ceil(record_size);
        // The last page counts as whole if the range covers it up to the end of the file.
        let last = if to >= size { size.div_ceil(record_size) } else { to / record_size };
        let head_end = first.saturating_mul(record_size).min(to).min(size);
        if from < head_end {
            zero_edge(inode, from, head_end, changes);
        }
        if first < last {
            self.cut_pages(inode, first..last, changes);
            if to >= size {
                inode.set(flag::TAIL, false);
            }
        }
        if to < size && first <= last {
            zero_edge(inode, last * record_size, to, changes);
        }
    }

    fn check_room(&self, inode: &Inode, offset: u64, len: u64) -> Result<()> {
        let fresh = offset.saturating_add(len).saturating_sub(inode.size.max(offset));
        let available =
            accepted_bytes(self.dataset.space().available_bytes, self.recordsize_or_default(inode));
        if fresh > available {
            return Err(FsError::NoSpace(format!("{fresh} bytes to allocate, {available} available")));
        }
        Ok(())
    }

    /// Takes a range out; the bytes behind it move up. Pages move into a new object, by reference.
    fn collapse(
        &self,
        inode: &mut Inode,
        offset: u64,
        len: u64,
        changes: &mut Vec<Change<'_>>,
    ) -> Result<()> {
        let record_size = self.aligned(inode, offset, len)?;
        if offset.saturating_add(len) >= inode.size {
            return Err(FsError::Invalid("a range to collapse reaches the end of the file"));
        }
        let (first, gone) = (offset / record_size, len / record_size);
        let pages = inode.size.div_ceil(record_size);
        self.rearrange(inode, &[(0, 0, first), (first + gone, first, pages - first - gone)], changes)?;
        inode.size -= len;
        Ok(())
    }

    /// Puts a hole in; the bytes behind it move down.
    fn insert(&self, inode: &mut Inode, offset: u64, len: u64, changes: &mut Vec<Change<'_>>) -> Result<()> {
        let record_size = self.aligned(inode, offset, len)?;
        if offset >= inode.size {
            return Err(FsError::Invalid("a range is inserted at or beyond the end of the file"));
        }
        let size =
            inode.size.checked_add(len).filter(|&size| size <= FILE_BYTES_MAX).ok_or(FsError::TooBig)?;
        let (first, new) = (offset / record_size, len / record_size);
        let pages = inode.size.div_ceil(record_size);
        self.rearrange(inode, &[(0, 0, first), (first, first + new, pages - first)], changes)?;
        inode.size = size;
        Ok(())
    }

    /// Returns the recordsize in bytes. Errors: `Invalid` unless `offset` and `len` are multiples of it.
    fn aligned(&self, inode: &Inode, offset: u64, len: u64) -> Result<u64> {
        let record_size = u64::from(self.recordsize_or_default(inode));
        if offset.is_multiple_of(record_size) && len.is_multiple_of(record_size) {
            Ok(record_size)
        } else {
            Err(FsError::Invalid("the range is not aligned to the recordsize"))
        }
    }

    /// Moves pages (from, to, count) into a new object; the old one becomes an orphan.
    fn rearrange(
        &self,
        inode: &mut Inode,
        moves: &[(u64, u64, u64)],
        changes: &mut Vec<Change<'_>>,
    ) -> Result<()> {
        if inode.object == 0 {
            return Ok(());
        }
        let (from_object, to_object) = (inode.object, self.new_id()?);
        for &(first, first_to, count) in moves {
            for (pages, _) in
                inode.freeing.split(first..first + count).into_iter().filter(|(_, freed)| !freed)
            {
                let (from_page, to_page) = (pages.start, first_to + (pages.start - first));
                let count = pages.end - pages.start;
                changes.push(Change::Share { from_object, from_page, to_object, to_page, count });
            }
        }
        changes.push(orphan::put_data(from_object));
        inode.object = to_object;
        inode.freeing = Ranges::default();
        Ok(())
    }

    /// Copies up to `len` bytes, and shares whole records where both sides line up. Returns the number of bytes copied:
    /// fewer than asked does not mean the end of the file, 0 does. `kill_suid` clears set-id bits of the target, as
    /// with a write.
    ///
    /// Errors: `Invalid` for overlapping ranges of one file; `TooBig`, `NoSpace`.
    pub fn copy_file_range(
        &self,
        from: Ino,
        from_offset: u64,
        to: Ino,
        to_offset: u64,
        len: u64,
        kill_suid: bool,
    ) -> Result<u64> {
        self.with_space(|| self.copy_file_range_once(from, from_offset, to, to_offset, len, kill_suid))
    }

    fn copy_file_range_once(
        &self,
        from: Ino,
        from_offset: u64,
        to: Ino,
        to_offset: u64,
        len: u64,
        kill_suid: bool,
    ) -> Result<u64> {
        self.writable()?;
        let (source, target) = (self.node(from)?, self.node(to)?);
        let mut txn = Txn::lock(&[&source, &target]);
        self.bound_freeing(txn.locked(to.0)?)?;
        let src = txn.get(from.0)?.clone();
        let mut dst = txn.get(to.0)?.clone();
        self.want_file(&src)?;
        self.want_file(&dst)?;
        let len = len.min(src.size.saturating_sub(from_offset));
        let to_end =
            to_offset.checked_add(len).filter(|&end| end <= FILE_BYTES_MAX).ok_or(FsError::TooBig)?;
        if from == to && from_offset < to_end && to_offset < from_offset + len {
            return Err(FsError::Invalid("the ranges overlap"));
        }
        if len == 0 {
            return Ok(0);
        }
        let mut buf = Vec::new();
        let mut changes = Vec::with_capacity(6);
        let ranges = Copy { from_offset, to_offset, len };
        let copied = self.copy_into(&target, &src, &mut dst, &ranges, &mut buf, &mut changes)?;
        dst.size = dst.size.max(to_offset + copied);
        let now = self.now();
        dst.mtime = now;
        dst.ctime = now;
        self.kill_privileges(to.0, &mut dst, kill_suid, &mut changes)?;
        let freeing = !dst.freeing.is_empty();
        *txn.edit(to.0)? = dst;
        note_result(copied);
        txn.commit(self.dataset(), changes)?;
        drop(txn);
        if freeing {
            self.note_orphan();
        }
        self.touch(&source, &src);
        Ok(copied)
    }

    /// Adds the changes that copy, and returns the number of bytes that they copy. `buf` holds the bytes that are
    /// copied by value.
    fn copy_into<'a>(
        &self,
        target: &Node,
        src: &Inode,
        dst: &mut Inode,
        ranges: &Copy,
        buf: &'a mut Vec<u8>,
        changes: &mut Vec<Change<'a>>,
    ) -> Result<u64> {
        let (ranges, is_freed) = ranges.within(src);
        let Copy { from_offset, to_offset, len } = ranges;
        if src.object == 0 || is_freed {
            self.zero_range(dst, to_offset, to_offset + len, changes);
            if to_offset + len > dst.size {
                clean_tail(dst, changes);
            }
            return Ok(len);
        }
        let wished = self.options.recordsize.unwrap_or(src.recordsize);
        if dst.object == 0 && (dst.wish == src.recordsize || (dst.wish == 0 && wished == src.recordsize)) {
            self.give_object(target.ino, dst, src.recordsize)?;
        }
        let record_size = u64::from(src.recordsize);
        let plan = (dst.object != 0 && dst.recordsize == src.recordsize)
            .then(|| share_plan(&ranges, record_size, src, dst));
        let Some(Some(plan)) = plan else {
            // The ranges or recordsizes do not match: the bytes are copied by value, one write at a time.
            let now = len.min(ATOMIC_WRITE_MAX as u64);
            let data = self.copy_out(src, from_offset, now, buf)?;
            self.write_into(target, dst, to_offset, data, changes)?;
            return Ok(now);
        };
        if to_offset + plan.head + plan.count * record_size + plan.tail > dst.size {
            clean_tail(dst, changes);
        }
        let edges = self.copy_out_edges(src, from_offset, &plan, record_size, buf)?;
        // Shared records fill their pages, even the last page.
        let whole = plan.head + plan.count * record_size;
        uncover(dst, to_offset, whole, changes);
        uncover(dst, to_offset + whole, plan.tail, changes);
        let (head, tail) = edges.split_at(plan.head as usize);
        // Sharing comes first: within one file the head may go into the last record that is shared, behind the end.
        changes.push(Change::Share {
            from_object: src.object,
            from_page: (from_offset + plan.head) / record_size,
            to_object: dst.object,
            to_page: (to_offset + plan.head) / record_size,
            count: plan.count,
        });
        let mut write = |offset: u64, data: &'a [u8]| {
            if !data.is_empty() {
                changes.push(Change::Write { object: dst.object, record_size: dst.recordsize, offset, data });
            }
        };
        write(to_offset, head);
        write(to_offset + whole, tail);
        if plan.last_is_partial {
            dst.set(flag::TAIL, src.has(flag::TAIL));
        }
        Ok((plan.head + plan.count * record_size + plan.tail).min(len))
    }

    /// Reads `len` bytes into `buf`.
    fn copy_out<'a>(&self, src: &Inode, offset: u64, len: u64, buf: &'a mut Vec<u8>) -> Result<&'a [u8]> {
        buf.resize(len as usize, 0);
        self.dataset.read(src.object, src.recordsize, offset, buf)?;
        Ok(buf)
    }

    /// Reads the bytes before and behind the shared records, which are copied by value, one part after the other.
    fn copy_out_edges<'a>(
        &self,
        src: &Inode,
        from: u64,
        plan: &SharePlan,
        record_size: u64,
        buf: &'a mut Vec<u8>,
    ) -> Result<&'a [u8]> {
        buf.resize((plan.head + plan.tail) as usize, 0);
        let (head, tail) = buf.split_at_mut(plan.head as usize);
        for (part, offset) in [(head, from), (tail, from + plan.head + plan.count * record_size)] {
            if !part.is_empty() {
                self.dataset.read(src.object, src.recordsize, offset, part)?;
            }
        }
        Ok(buf)
    }
}

/// Ranges of a copy, in bytes.
#[derive(Clone, Copy)]
struct Copy {
    from_offset: u64,
    to_offset: u64,
    len: u64,
}

impl Copy {
    /// Returns the longest beginning whose pages in the source are either all to be freed or all not, and true if they
    /// are to be freed.
    fn within(self, src: &Inode) -> (Self, bool) {
        if src.freeing.is_empty() {
            return (self, false);
        }
        let record_size = u64::from(src.recordsize);
        let end = self.from_offset.saturating_add(self.len);
        let stretches = src.freeing.split(self.from_offset / record_size..end.div_ceil(record_size));
        let Some((pages, is_freed)) = stretches.into_iter().next() else { return (self, false) };
        let len = pages.end.saturating_mul(record_size).min(end) - self.from_offset;
        (Self { len, ..self }, is_freed)
    }
}

/// Plan of a copy: `head` bytes by value, `count` records by reference, `tail` bytes by value.
#[derive(Debug, PartialEq, Eq)]
struct SharePlan {
    head: u64,
    count: u64,
    tail: u64,
    /// True if the last shared record is the last of both files and not full.
    last_is_partial: bool,
}

/// Returns the plan of a copy; `None` if no record can be shared. Does no I/O.
fn share_plan(ranges: &Copy, record_size: u64, src: &Inode, dst: &Inode) -> Option<SharePlan> {
    let Copy { from_offset, to_offset, len } = *ranges;
    if from_offset % record_size != to_offset % record_size {
        return None;
    }
    let head = (record_size - from_offset % record_size) % record_size;
    let rest = len.checked_sub(head)?;
    let (whole, tail) = (rest / record_size, rest % record_size);
    if whole > SHARE_PAGES_MAX {
        return Some(SharePlan { head, count: SHARE_PAGES_MAX, tail: 0, last_is_partial: false });
    }
    // If both files end with the range, the last record can be shared although it is not full.
    let ends = tail > 0 && from_offset + len == src.size && to_offset + len >= dst.size;
    let plan = if ends {
        SharePlan { head, count: whole + 1, tail: 0, last_is_partial: true }
    } else {
        SharePlan { head, count: whole, tail, last_is_partial: false }
    };
    (plan.count > 0).then_some(plan)
}

/// Lengthens a file to `size`, if it is shorter.
fn grow(inode: &mut Inode, size: u64, changes: &mut Vec<Change<'_>>) {
    if size > inode.size {
        clean_tail(inode, changes);
        inode.size = size;
    }
}

/// Zeroes a part of a page. A page that is not stored stays so, since zeros are not stored.
fn zero_edge(inode: &Inode, from: u64, to: u64, changes: &mut Vec<Change<'_>>) {
    let len = usize::try_from(to.saturating_sub(from)).unwrap_or(usize::MAX);
    let (object, record_size) = (inode.object, inode.recordsize);
    if inode.freeing.end_of(from / u64::from(record_size)).is_some() {
        return;
    }
    if let Some(data) = ZEROS.get(..len).filter(|data| !data.is_empty()) {
        changes.push(Change::Write { object, record_size, offset: from, data });
    }
}
