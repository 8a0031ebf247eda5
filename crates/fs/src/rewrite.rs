//! Gives a file that has data another recordsize, while it is in use.
//!
//! An object's recordsize never changes, so the file gets a second object. The contents are copied into it piece by
//! piece, and the inode is locked for one piece at a time; what changes meanwhile is mirrored ([`crate::mirror`]). When
//! nothing is left to be copied, one change gives the file the second object and makes the first one orphan data.
//! Snapshots keep the first object as it is.
//!
//! - R1: until the switch the file's data object is the first one, whose contents nothing here changes. So readers read
//!   that one, and a crash leaves it.
//! - R2: the second object is on the list of objects being filled from before its first page until the switch.
//!   [`Fs::reap`] frees an object on that list that no rewrite of this process is filling: after a crash, and after a
//!   rewrite that was given up.
//! - R3: reaping spares an object that is being filled, and one that was given up by a change not published yet
//!   ([`Fs::spare`]).

use std::ops::Range;
use std::sync::Arc;

use pagefold_engine::dataset::{Attempt, Change};

use crate::codec::{Inode, flag, is_recordsize};
use crate::error::{FsError, Result};
use crate::fs::Fs;
use crate::inode::{Locked, Node, Txn};
use crate::io::{is_zero, read_around};
use crate::limits::PIECE_BYTES;
use crate::mirror::{self, Ended, Filling, code_pages};
use crate::orphan;
use crate::ranges::Ranges;
use crate::types::Ino;

/// The outcome of a step of a rewrite.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// There is more to do.
    More,
    /// The file has the new recordsize.
    Done,
    /// The file is as it was; the copy is freed.
    Ended(Ended),
}

/// A rewrite that is under way. If it is dropped before [`Step::Done`], it is given up, and the copy is freed.
pub struct Rewrite<'f> {
    fs: &'f Fs,
    node: Arc<Node>,
    /// The object being filled.
    object: u64,
    recordsize: u32,
    buf: Vec<u8>,
    copied_bytes: u64,
    _spared: Spared<'f>,
}

/// Keeps an object from being freed as long as this value lives.
pub(crate) struct Spared<'f> {
    fs: &'f Fs,
    object: u64,
}

impl Drop for Spared<'_> {
    fn drop(&mut self) {
        self.fs.spared.lock().remove(&self.object);
        self.fs.note_orphan();
    }
}

/// A part of what is to be copied.
struct Piece {
    /// Range of bytes that are the same in both objects after the piece was copied.
    bytes: Range<u64>,
    /// Byte offset of the data to be written; `None` if there is none.
    at: Option<u64>,
}

impl Fs {
    /// Keeps reaping from freeing `object` as long as the result lives.
    pub(crate) fn spare(&self, object: u64) -> Spared<'_> {
        self.spared.lock().insert(object);
        Spared { fs: self, object }
    }

    /// Begins to give a file another recordsize, in bytes. Returns `None` if there is nothing to copy: the file has
    /// that recordsize already, or has no data; then its first data will have pages of that size.
    ///
    /// Errors: `Invalid` for a recordsize that cannot be, and for a file that has no name any more; `Busy` if the file
    /// is being rewritten already; `IsADirectory`, `ReadOnly`, `NoSpace`.
    pub fn rewrite(&self, ino: Ino, recordsize: u32) -> Result<Option<Rewrite<'_>>> {
        self.writable()?;
        if !is_recordsize(recordsize) {
            return Err(FsError::Invalid("the recordsize is not a power of two from 4 KiB to 1 MiB"));
        }
        let node = self.node(ino)?;
        let object = self.new_id()?;
        let spared = self.spare(object);
        let mut changing = node.changing.lock();
        let inode = node.snapshot();
        self.want_file(&inode)?;
        if inode.nlink == 0 {
            return Err(FsError::Invalid("the file has no name any more"));
        }
        if changing.is_some() {
            return Err(FsError::Busy);
        }
        if inode.object == 0 {
            drop(changing);
            return self.wish(&node, recordsize).map(|()| None);
        }
        if inode.recordsize == recordsize {
            return Ok(None);
        }
        let mut changes = vec![Change::Put(mirror::key(object), vec![1])];
        if inode.compression.is_some() {
            changes.push(code_pages(object, &inode));
        }
        self.dataset.apply(&changes)?;
        *changing = Some(Box::new(Filling::new(object, recordsize, inode.size)));
        drop(changing);
        Ok(Some(Rewrite {
            fs: self,
            node,
            object,
            recordsize,
            buf: Vec::new(),
            copied_bytes: 0,
            _spared: spared,
        }))
    }

    /// Notes that a file without data gets `recordsize` with its first data.
    fn wish(&self, node: &Arc<Node>, recordsize: u32) -> Result<()> {
        let mut txn = Txn::lock(&[node]);
        let now = self.now();
        let inode = txn.edit(node.ino)?;
        if inode.object == 0 && inode.wish != recordsize {
            inode.wish = recordsize;
            inode.ctime = now;
            txn.commit(self.dataset(), Vec::new())?;
        }
        drop(txn);
        self.show_attributes(node.ino);
        Ok(())
    }

    /// Makes the kernel ask for an inode's attributes again, because they changed without a call of the kernel's.
    fn show_attributes(&self, ino: u64) {
        if let Some(holds) = self.holds.get() {
            holds(Ino(ino));
        }
    }
}

impl Rewrite<'_> {
    /// Returns the number of bytes of the file that are yet to be copied.
    pub fn left_bytes(&self) -> u64 {
        let changing = self.node.changing.lock();
        let todo = changing.as_ref().map(|filling| filling.todo.ranges().to_vec()).unwrap_or_default();
        todo.iter().map(|range| range.end - range.start).sum()
    }

    /// Returns the number of bytes copied so far, without holes.
    pub fn copied_bytes(&self) -> u64 {
        self.copied_bytes
    }

    /// Returns the file's size in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.node.cached.read().inode.size
    }

    /// Copies a piece, or switches to the second object if no piece is left. Other changes of the file wait for one
    /// change of the dataset, of a piece at most.
    ///
    /// Errors: `NoSpace`, `ReadOnly`, and failures to read. After an error or [`Step::Ended`] the rewrite cannot go on.
    pub fn step(&mut self) -> Result<Step> {
        self.fs.writable()?;
        let (inode, todo, changes) = match self.look()? {
            Ok(found) => found,
            Err(ended) => return Ok(Step::Ended(ended)),
        };
        let Some(todo) = todo else { return self.switch() };
        let early = self.read(&inode, &todo);
        let node = Arc::clone(&self.node);
        let mut changing = node.changing.lock();
        let Some(filling) = changing.as_mut().filter(|filling| filling.ended.is_none()) else {
            return Ok(Step::More);
        };
        let piece = match early {
            Ok(piece) if filling.changes == changes => piece,
            // The piece is read again under the lock: its records are in the cache by now, and what failed may have
            // been given up meanwhile.
            _ => {
                let Some(todo) = filling.todo.ranges().first().cloned() else { return Ok(Step::More) };
                self.read(&node.snapshot(), &todo)?
            }
        };
        if let Some(offset) = piece.at {
            let (object, record_size) = (self.object, self.recordsize);
            self.fs.dataset.apply(&[Change::Write { object, record_size, offset, data: &self.buf }])?;
            self.copied_bytes += self.buf.len() as u64;
        }
        filling.todo.remove(piece.bytes);
        Ok(Step::More)
    }

    /// Returns the inode, the first bytes to be copied and the number of the file's changes, or the reason why the
    /// rewrite has ended.
    #[allow(clippy::type_complexity, reason = "used in one place")]
    fn look(&self) -> Result<Result<(Inode, Option<Range<u64>>, u64), Ended>> {
        let changing = self.node.changing.lock();
        let inode = self.node.snapshot();
        Ok(match changing.as_deref() {
            None => Err(Ended::Moved),
            Some(Filling { ended: Some(ended), .. }) => Err(ended.clone()),
            Some(_) if inode.nlink == 0 => Err(Ended::Deleted),
            Some(filling) => Ok((inode, filling.todo.ranges().first().cloned(), filling.changes)),
        })
    }

    /// Reads the first piece of `todo` in which either object has pages into `self.buf`.
    fn read(&mut self, inode: &Inode, todo: &Range<u64>) -> Result<Piece> {
        let fs = self.fs;
        let (old, new) = (u64::from(inode.recordsize), u64::from(self.recordsize));
        let stored = fs.next_data(inode, todo.start / old)?.map_or(u64::MAX, |page| page.saturating_mul(old));
        let stored = if stored.max(todo.start) < inode.size { stored } else { u64::MAX };
        let copied = fs.dataset.next_data(self.object, todo.start / new)?;
        let copied = copied.map_or(u64::MAX, |page| page.saturating_mul(new));
        let first = stored.min(copied).max(todo.start);
        if first >= todo.end {
            return Ok(Piece { bytes: todo.clone(), at: None });
        }
        let unit = fs.options.piece_bytes.unwrap_or(PIECE_BYTES).max(old).max(new);
        let start = (first / unit * unit).max(todo.start);
        let end = (first / unit + 1).saturating_mul(unit).min(todo.end);
        self.buf.clear();
        self.buf.resize((end - start) as usize, 0);
        let within = inode.size.saturating_sub(start).min(end - start) as usize;
        if let Some(buf) = self.buf.get_mut(..within).filter(|buf| !buf.is_empty()) {
            read_around(inode, start, buf, |object, record_size, offset, buf| {
                Ok(fs.dataset.read(object, record_size, offset, buf).map(|()| Attempt::Done)?)
            })?;
        }
        let is_hole = copied >= end && is_zero(&self.buf);
        Ok(Piece { bytes: todo.start..end, at: (!is_hole).then_some(start) })
    }

    /// Gives the file the second object, unless something is left to be copied.
    fn switch(&mut self) -> Result<Step> {
        let node = Arc::clone(&self.node);
        let mut locked = Locked::lock(&node);
        if !locked.is_filled(self.object) {
            return Ok(Step::More);
        }
        let now = self.fs.now();
        let inode = &mut locked.new;
        let before = inode.object;
        // Until the new inode is published, readers may be reading the first object.
        let _spared = self.fs.spare(before);
        inode.object = self.object;
        inode.recordsize = self.recordsize;
        inode.wish = self.recordsize;
        inode.freeing = Ranges::default();
        inode.set(flag::TAIL, false);
        inode.ctime = now;
        let mut changes = vec![Change::Delete(mirror::key(self.object)), orphan::put_data(before)];
        locked.put(&mut changes);
        self.fs.dataset.apply(&changes)?;
        locked.publish();
        locked.stop_filling();
        drop(locked);
        self.fs.show_attributes(node.ino);
        Ok(Step::Done)
    }
}

impl Drop for Rewrite<'_> {
    fn drop(&mut self) {
        let mut changing = self.node.changing.lock();
        if changing.as_ref().is_some_and(|filling| filling.object == self.object) {
            *changing = None;
        }
    }
}
