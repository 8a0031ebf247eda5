//! The journal: accepted changes that no commit has brought into the log yet, in memory that outlives the process.
//!
//! Another process holds the memory's file too ([`Journal::file`]). When the process dies, its successor opens the
//! pool, which replays the log, and then redoes the entries that the log does not have ([`Journal::adopt`]). Without a
//! journal, changes that were accepted and not committed are lost with the process. A loss of power also loses the
//! journal.
//!
//! - J1: an entry is complete before anybody can see its change, and so before the change is answered.
//! - J2: entries are appended under the gate's read side. A quiesce point, under its write side, sets a mark: the end
//!   of the entries that it takes along, and the number of the batch that its commit begins with. These entries are
//!   released when the commit is in the log. There is one commit at a time, so there is one mark.
//! - J3: the commit of a mark is in the log if and only if the log has a batch with operations, from the mark's number
//!   on: the last batch of a commit carries the operations, and nobody else appends batches while a commit does.
//! - J4: callers apply changes that touch each other one after the other, so the changes can be redone in the order of
//!   the entries.
//!
//! Positions count bytes from the journal's beginning and only grow; the ring has the last of them. An entry begins
//! with its own position, which says that it has been reserved, and the entry before it has zeroed the word that comes
//! after it. So the entries can be found from the first one on, finished or not, and no data in them can pass for an
//! entry.

mod entry;
mod map;
mod slots;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use parking_lot::{Condvar, Mutex};

use super::Change;
use crate::limits::{JOURNAL_BYTES, JOURNAL_BYTES_MAX};
use crate::{Error, Result};
use map::Map;
pub use slots::{Asked, RequestOrigin, SlotGuard, aside, during, note_result};
use slots::{SLOTS, SLOTS_WORDS, Table};

/// Magic number of the head, with the version in the low byte.
const MAGIC: u64 = 0x50_46_4a_52_4e_4c_00_01;
/// Word of the head that has [`MAGIC`].
const MAGIC_WORD: usize = 0;
/// Word of the position before which all entries are in the log.
const RELEASED_WORD: usize = 1;
/// Word of the mark's position, which counts if it is beyond that of `RELEASED_WORD`: a commit took the entries before
/// it along.
const MARK_WORD: usize = 2;
/// Word of the number of the batch that the commit of this mark begins with.
const BATCH_WORD: usize = 3;
/// Word of the number below which the log has all batches.
const WRITTEN_WORD: usize = 4;
const SLOT_WORD: usize = 8;
const HEAD_BYTES: usize = ((SLOT_WORD + SLOTS_WORDS) * 8).next_multiple_of(4096);

/// Offsets of the fields of an entry in bytes. The fields are a word each: its position + 1, its bytes, 0 or the mark
/// that it is complete with its checksum, dataset, request (0: none), connection, result of the request, bytes of the
/// changes, bytes of data.
const STAMP: u64 = 0;
const BYTES: u64 = 8;
const DONE: u64 = 16;
const FIELDS: u64 = 24;
const FIELDS_BYTES: usize = 48;
const ENTRY_HEAD_BYTES: u64 = FIELDS + FIELDS_BYTES as u64;
const COMPLETE: u64 = 1 << 32;
/// Bound of positions, which no journal reaches.
const POSITION_MAX: u64 = 1 << 62;

/// The journal of an open pool.
pub struct Journal {
    map: Map,
    end: Mutex<JournalEnd>,
    /// True if changes are to be entered; false while those of a dead process are redone.
    recording: AtomicBool,
    table: Mutex<Table>,
    freed: Condvar,
}

struct JournalEnd {
    /// Position of the next entry.
    next: u64,
    /// Position up to which entries are redone, while they are.
    redone: Option<u64>,
}

/// Room for an entry.
pub(super) struct EntryRoom {
    at: u64,
    bytes: u64,
    what: Vec<u8>,
}

/// An entry as read back.
struct FoundEntry {
    end: u64,
    dataset: u64,
    asked: Option<(Asked, u64)>,
    what: usize,
    bytes: Vec<u8>,
}

impl fmt::Debug for Journal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Journal({} bytes)", self.map.ring_bytes())
    }
}

fn failed(what: &str, error: &io::Error) -> Error {
    Error::Failed(format!("the journal cannot be {what}: {error}"))
}

impl Journal {
    /// Creates an empty journal of the usual size.
    ///
    /// # Errors
    /// [`Error::Failed`] if there is no memory.
    pub fn create() -> Result<Self> {
        Self::with_bytes(JOURNAL_BYTES)
    }

    /// Creates an empty journal with a ring of so many bytes, a power of two of at least 4096.
    ///
    /// # Errors
    /// [`Error::Failed`] if there is no memory.
    pub fn with_bytes(ring_bytes: usize) -> Result<Self> {
        let map = Map::create(HEAD_BYTES, ring_bytes).map_err(|error| failed("made", &error))?;
        map.word(MAGIC_WORD).store(MAGIC, Release);
        let table = Table { free: (0..SLOTS).rev().collect(), inherited: HashMap::new() };
        Ok(Self::over(map, true, table))
    }

    /// Returns the journal that a dead process left, to be given to the pool when it is opened.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the file is no journal, or one of another version.
    pub fn adopt(file: OwnedFd) -> Result<Self> {
        let map = Map::open(file, HEAD_BYTES, JOURNAL_BYTES_MAX);
        let map = map.map_err(|error| Error::corrupt("journal", error.to_string()))?;
        if map.word(MAGIC_WORD).load(Acquire) != MAGIC {
            return Err(Error::corrupt("journal", "it is none, or of another version"));
        }
        Ok(Self::over(map, false, Table { free: Vec::new(), inherited: HashMap::new() }))
    }

    fn over(map: Map, recording: bool, table: Table) -> Self {
        let end = Mutex::new(JournalEnd { next: 0, redone: None });
        let (recording, table) = (AtomicBool::new(recording), Mutex::new(table));
        Self { map, end, recording, table, freed: Condvar::new() }
    }

    /// Returns the file of the memory, for any process that is to hold it.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.map.file()
    }

    /// Returns the memory that the journal may take, in bytes.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.map.ring_bytes() + HEAD_BYTES as u64
    }

    /// Returns true if less than half of the ring is in use.
    pub(super) fn is_roomy(&self) -> bool {
        self.used_bytes() < self.map.ring_bytes() / 2
    }

    fn used_bytes(&self) -> u64 {
        self.end.lock().next - self.map.word(RELEASED_WORD).load(Acquire)
    }

    /// Reserves room for an entry of these changes. Returns `None` if a commit must come first. The caller holds the
    /// gate's read side until [`Journal::append`] has returned.
    pub(super) fn reserve(&self, changes: &[Change<'_>]) -> Result<Option<EntryRoom>> {
        let what = if self.recording.load(Relaxed) { entry::encode(changes) } else { Vec::new() };
        if what.is_empty() {
            return Ok(Some(EntryRoom { at: 0, bytes: 0, what }));
        }
        let data: usize = entry::data(changes).map(<[u8]>::len).sum();
        let bytes = (ENTRY_HEAD_BYTES + (what.len() + data) as u64).next_multiple_of(8);
        // The word behind the entry is zeroed, and so needs room, too.
        if bytes + 8 > self.map.ring_bytes() {
            return Err(Error::Invalid(format!("a change of {bytes} bytes is larger than the journal")));
        }
        let mut end = self.end.lock();
        let at = end.next;
        if at + bytes + 8 - self.map.word(RELEASED_WORD).load(Acquire) > self.map.ring_bytes() {
            return Ok(None);
        }
        self.map.ring_word(at + bytes + STAMP).store(0, Release);
        self.map.ring_word(at + DONE).store(0, Release);
        self.map.ring_word(at + BYTES).store(bytes, Release);
        self.map.ring_word(at + STAMP).store(at + 1, Release);
        end.next = at + bytes;
        Ok(Some(EntryRoom { at, bytes, what }))
    }

    /// Enters changes where room was reserved for them.
    pub(super) fn append(&self, room: &EntryRoom, dataset: u64, changes: &[Change<'_>]) {
        if room.bytes == 0 {
            return;
        }
        let origin = slots::origin();
        let (asked, result) = origin.map_or((None, 0), |(origin, result)| (Some(origin.asked), result));
        let data: usize = entry::data(changes).map(<[u8]>::len).sum();
        let fields = [
            dataset,
            asked.map_or(0, |asked| asked.unique),
            asked.map_or(0, |asked| asked.connection.into()),
            result,
            room.what.len() as u64,
            data as u64,
        ]
        .map(u64::to_le_bytes);
        let mut at = room.at + FIELDS;
        let mut checksum = crc32c::crc32c(&(room.at + 1).to_le_bytes());
        let mut put = |bytes: &[u8]| {
            self.map.write(at, bytes);
            checksum = crc32c::crc32c_append(checksum, bytes);
            at += bytes.len() as u64;
        };
        put(fields.as_flattened());
        put(&room.what);
        entry::data(changes).for_each(&mut put);
        self.map.ring_word(room.at + DONE).store(COMPLETE | u64::from(checksum), Release);
        if let Some((origin, result)) = origin {
            self.mark_applied(origin.slot, result);
        }
    }

    /// Marks the end of the entries that the commit that begins with this batch takes along. The caller holds the
    /// gate's write side and the log.
    pub(crate) fn mark(&self, batch: u64) {
        let end = self.end.lock();
        let at = end.redone.unwrap_or(end.next);
        if at > self.map.word(RELEASED_WORD).load(Acquire) {
            self.map.word(BATCH_WORD).store(batch, Release);
            self.map.word(MARK_WORD).store(at, Release);
        }
    }

    /// Cancels an entry whose change could not be made, so that it is not redone.
    pub(super) fn cancel(&self, room: &EntryRoom) {
        if room.bytes > 0 {
            self.map.ring_word(room.at + DONE).store(0, Release);
            if let Some((origin, _)) = slots::origin() {
                self.unmark_applied(origin.slot);
            }
        }
    }

    /// Releases the entries before the last mark. Their commit is in the log, which has all batches below `batch`.
    pub(crate) fn release(&self, batch: u64) {
        self.map.word(WRITTEN_WORD).store(batch, Release);
        let mark = self.map.word(MARK_WORD).load(Acquire);
        self.map.word(RELEASED_WORD).fetch_max(mark, Release);
    }

    /// Redoes the changes that a dead process left, if one did. It must be called once, before anything else is
    /// accepted. `log_next` is the number of the log's next batch, and `operations_below` is one past that of its last
    /// batch with operations. `redo` applies the changes of an entry to a dataset. Returns the number of entries that
    /// were redone.
    pub fn redo(
        &self,
        (log_next, operations_below): (u64, u64),
        redo: &mut dyn FnMut(u64, &[Change<'_>]) -> Result<()>,
    ) -> Result<u64> {
        if self.recording.load(Relaxed) {
            return Ok(0);
        }
        let released = self.map.word(RELEASED_WORD).load(Acquire);
        let mark = self.map.word(MARK_WORD).load(Acquire);
        if released > POSITION_MAX {
            return Err(Error::corrupt("journal", "its beginning is out of range"));
        }
        let written = self.map.word(WRITTEN_WORD).load(Acquire);
        if log_next < written {
            let what = format!("the log has batches below {log_next}, and it had them below {written}");
            return Err(Error::corrupt("log", what));
        }
        let mut applied = HashMap::new();
        let end = self.scan(released, &mut |found| {
            applied.extend(found.asked);
            Ok(())
        })?;
        if mark > end {
            return Err(Error::corrupt("journal", "it ends before its mark"));
        }
        // This comes before entries are released: afterwards only the slots know which requests were carried out.
        self.inherit(&applied);
        let committed = mark > released && self.map.word(BATCH_WORD).load(Acquire) < operations_below;
        if committed {
            self.release(log_next);
        } else {
            self.map.word(MARK_WORD).store(released, Release);
        }
        let from = if committed { mark } else { released };
        *self.end.lock() = JournalEnd { next: end, redone: Some(from) };
        let mut entries = 0;
        self.scan(from, &mut |found| {
            let what = found.bytes.get(..found.what).unwrap_or_default();
            let data = found.bytes.get(found.what..).unwrap_or_default();
            redo(found.dataset, &entry::decode(what, data)?)?;
            self.end.lock().redone = Some(found.end);
            entries += 1;
            Ok(())
        })?;
        self.end.lock().redone = None;
        self.recording.store(true, Release);
        Ok(entries)
    }

    /// Visits the complete entries from `position` on, and returns the position where the entries end. Entries that
    /// were being written when the process died are passed over: they were not answered.
    fn scan(&self, position: u64, visit: &mut dyn FnMut(FoundEntry) -> Result<()>) -> Result<u64> {
        let damaged = |at: u64, what: &str| Error::corrupt(format!("journal at byte {at}"), what);
        let word = |at: u64| self.map.ring_word(at).load(Acquire);
        let limit = position.saturating_add(self.map.ring_bytes());
        let mut at = position;
        while at + ENTRY_HEAD_BYTES < limit && word(at + STAMP) == at + 1 {
            let (bytes, done) = (word(at + BYTES), word(at + DONE));
            let end = at.saturating_add(bytes);
            if bytes < ENTRY_HEAD_BYTES || !bytes.is_multiple_of(8) || end >= limit {
                return Err(damaged(at, "an entry has an impossible length"));
            }
            if done != 0 {
                let found = self.entry(at, end, done);
                visit(found.ok_or_else(|| damaged(at, "the checksum of an entry does not hold"))?)?;
            }
            at = end;
        }
        Ok(at)
    }

    /// Returns the entry from `at` to `end`, or `None` if its checksum does not hold.
    fn entry(&self, at: u64, end: u64, done: u64) -> Option<FoundEntry> {
        let bytes = self.map.read(at + FIELDS, end - at - FIELDS);
        let (fields, rest) = bytes.split_at_checked(FIELDS_BYTES)?;
        let (fields, _) = fields.as_chunks::<8>();
        let [dataset, unique, connection, result, what, data] =
            <[[u8; 8]; 6]>::try_from(fields).ok()?.map(u64::from_le_bytes);
        let len = usize::try_from(what.checked_add(data)?).ok().filter(|len| *len <= rest.len())?;
        let checksum = crc32c::crc32c(&(at + 1).to_le_bytes());
        let checksum = crc32c::crc32c_append(checksum, bytes.get(..FIELDS_BYTES + len)?);
        if done != COMPLETE | u64::from(checksum) {
            return None;
        }
        let asked = (unique != 0).then_some((Asked { connection: connection as u32, unique }, result));
        Some(FoundEntry { end, dataset, asked, what: what as usize, bytes: rest.get(..len)?.to_vec() })
    }
}
