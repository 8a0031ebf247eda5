//! Claims of changes on the pool and on quotas.

use std::collections::HashMap;

use super::budget::Claim;
use super::live::LiveDataset;
use super::ready::Ready;
use super::room::EDIT_ROOM_BYTES;
use super::shared::{Beyond, ROOMY_BYTES};
use super::thin::Thin;
use crate::Result;
use crate::limits::{RECORD_BYTES_MAX, RECORDSIZE_MAX, VALUE_BYTES_MAX};
use crate::segment::{held_bytes, tail_bytes};

/// Space claimed for a page in addition to its bytes: directory entries, and its place in the tree.
const PAGE_CLAIM_BYTES: u64 = 64;
/// Bytes of the header of a page that does not compress, at most.
const RECORD_HEADER_BYTES: u64 = (RECORD_BYTES_MAX - RECORDSIZE_MAX as usize) as u64;
/// Space claimed for a value in addition to its bytes.
const VALUE_CLAIM_BYTES: u64 = 128;

/// Number of shared pages, with their counts, that certainly fit into a leaf.
const SHARED_PAGES_OF_LEAF: u64 = 128;

/// Bytes of the names and attributes that one call of the file system changes at most when it frees something.
const FREEING_BYTES_MAX: u64 = 16 << 10;

/// Returns the space that a page takes at most.
fn page_bytes(len_bytes: u64) -> u64 {
    PAGE_CLAIM_BYTES + held_bytes(len_bytes + RECORD_HEADER_BYTES)
}

/// Returns the space that a change takes at most, and how far it may exceed the bounds if it frees something. `copied`
/// is the space for shared pages that are not stored yet ([`LiveDataset::copied_bytes`]), `slack` the space that the
/// pool keeps back for what frees. Logical bytes are not counted here.
pub(super) fn of(ready: &[Ready], copied: u64, slack: u64) -> (Claim, Beyond) {
    let mut claim = Claim { bytes: copied, ..Claim::default() };
    let (mut freeing, mut storing) = (false, false);
    for change in ready {
        claim.bytes += match change {
            Ready::Value(_, value) => {
                VALUE_CLAIM_BYTES + value.as_ref().map_or(0, |value| value.len() as u64)
            }
            Ready::Page(_, _, buf) => page_bytes(buf.len() as u64),
            Ready::Punch { .. } => VALUE_CLAIM_BYTES,
            Ready::Share { count, .. } => VALUE_CLAIM_BYTES + count * PAGE_CLAIM_BYTES,
        };
        let frees = matches!(change, Ready::Punch { .. } | Ready::Value(_, None));
        freeing |= frees;
        storing |= !frees;
    }
    // A truncation rewrites the last page that remains: at most one recordsize.
    let page = PAGE_CLAIM_BYTES + held_bytes(RECORD_BYTES_MAX as u64);
    let small = claim.bytes <= page + 16 * VALUE_CLAIM_BYTES + VALUE_BYTES_MAX as u64;
    let pages = ready.iter().any(|change| matches!(change, Ready::Page(..) | Ready::Share { .. }));
    // It is not known whether the change frees more than it stores. The space that the pool keeps back bounds how far
    // that can go.
    let (pool_bytes, quota_bytes) = match (freeing && small, storing) {
        // Nothing but a lack of free chunks stops such changes, for instance where snapshots hold what is deleted.
        (true, false) => (u64::MAX, u64::MAX),
        // Quotas keep nothing back that could be used up: names and attributes that change with what is freed always
        // find room.
        (true, true) if !pages && claim.bytes <= FREEING_BYTES_MAX => (slack, u64::MAX),
        (true, true) => (slack, slack),
        (false, _) => (0, 0),
    };
    (claim, Beyond { pool_bytes, quota_bytes })
}

/// Returns the bytes that are certainly accepted, in files of this recordsize, where `room_bytes` can be claimed.
///
/// Long records leave the ends of chunks unused if they do not compress. Where that counts, room for one more record is
/// kept out of the promise: a file's last record exists twice while it grows.
pub fn accepted_bytes(room_bytes: u64, recordsize: u32) -> u64 {
    let recordsize = u64::from(recordsize);
    let stored = recordsize + RECORD_HEADER_BYTES;
    if tail_bytes(stored) == 0 {
        return room_bytes;
    }
    let records = room_bytes / (PAGE_CLAIM_BYTES + held_bytes(stored));
    records.saturating_sub(1) * recordsize
}

impl Thin {
    /// Returns the bytes that are told to be available to files of this recordsize (T1, T2). A write is accepted as if
    /// it did not compress, so room for the longest one is left out.
    pub fn available_bytes(&self, recordsize: u32) -> u64 {
        let sure_bytes = accepted_bytes(self.room_bytes, recordsize).saturating_sub(ROOMY_BYTES);
        self.expansion.of(sure_bytes).min(self.left_bytes)
    }
}

/// Returns the room for the tree nodes that a change makes anew at once, in bytes.
pub(super) fn edit_bytes(change: &Ready) -> u64 {
    match change {
        // Pages change tree nodes only when they are committed.
        Ready::Page(..) => 0,
        Ready::Value(..) | Ready::Punch { .. } => EDIT_ROOM_BYTES,
        Ready::Share { count, .. } => (2 + count / SHARED_PAGES_OF_LEAF) * EDIT_ROOM_BYTES,
    }
}

impl LiveDataset {
    /// Returns the space that shares take at most for pages without a record: those that were accepted and not taken by a
    /// commit, and those that this change writes before it shares them. They become pages of the target, too, and are
    /// stored once for each. It holds as long as the caller has the gate, so that no commit takes pages, and nobody
    /// else changes those of the source.
    pub(super) fn copied_bytes(&self, ready: &[Ready]) -> u64 {
        if !ready.iter().any(|change| matches!(change, Ready::Share { .. })) {
            return 0;
        }
        let stages = self.stages.read();
        let accepted = &stages.accepting.pages;
        let mut fresh: HashMap<(u64, u64), u64> = HashMap::new();
        let mut sum = 0;
        for change in ready {
            match change {
                Ready::Page(object, page, buf) => {
                    fresh.insert((*object, *page), buf.len() as u64);
                }
                Ready::Share { from_object, from_page, to_object, to_page, count } => {
                    if accepted.is_empty() && fresh.is_empty() {
                        continue;
                    }
                    let len_bytes = |at: u64| {
                        let key = (*from_object, from_page + at);
                        let own = fresh.get(&key).copied();
                        own.or_else(|| accepted.get(&key).map(|buf| buf.len() as u64)).map(|len| (at, len))
                    };
                    let found: Vec<(u64, u64)> = (0..*count).filter_map(len_bytes).collect();
                    for (at, len_bytes) in found {
                        sum += page_bytes(len_bytes);
                        fresh.insert((*to_object, to_page + at), len_bytes);
                    }
                }
                // Pages that are removed are counted as if they were shared, which is on the safe side.
                Ready::Punch { .. } | Ready::Value(..) => {}
            }
        }
        sum
    }

    /// Returns the bytes of a change's pages before compression, as if all pages were new.
    pub(super) fn claimed_logical_bytes(&self, ready: &[Ready]) -> Result<u64> {
        let mut sum: u64 = 0;
        for change in ready {
            sum = sum.saturating_add(match change {
                Ready::Page(_, _, buf) => buf.len() as u64,
                Ready::Share { from_object, count, .. } => {
                    count.saturating_mul(self.page_size(*from_object)?.into())
                }
                Ready::Value(..) | Ready::Punch { .. } => 0,
            });
        }
        Ok(sum)
    }

    /// Returns the bytes before compression of those pages of a change that are neither stored nor accepted yet.
    pub(super) fn new_logical_bytes(&self, ready: &[Ready]) -> Result<u64> {
        let mut sum: u64 = 0;
        for change in ready {
            sum = sum.saturating_add(match change {
                Ready::Page(object, page, _) if self.has_page(*object, *page)? => 0,
                other => self.claimed_logical_bytes(std::slice::from_ref(other))?,
            });
        }
        Ok(sum)
    }

    fn has_page(&self, object: u64, page: u64) -> Result<bool> {
        let mut found = [None];
        self.tree.pages(object, page, &mut found)?;
        if found[0].is_some() {
            return Ok(true);
        }
        let stages = self.stages.read();
        let committing = stages.committing.as_ref();
        Ok(stages.accepting.pages.contains_key(&(object, page))
            || committing.is_some_and(|pending| pending.pages.contains_key(&(object, page))))
    }

    /// Returns the size of an object's pages in bytes, whether they are stored or only accepted; 0 if there are none.
    fn page_size(&self, object: u64) -> Result<u32> {
        let stored = self.record_size(object)?;
        if stored > 0 {
            return Ok(stored);
        }
        let stages = self.stages.read();
        let pending = stages.committing.iter().map(AsRef::as_ref).chain([&stages.accepting]);
        let mut sizes = pending.flat_map(|pending| {
            let of = pending.pages.iter().filter(|((of, _), _)| *of == object);
            of.map(|(_, buf)| buf.len() as u32)
        });
        Ok(sizes.next().unwrap_or(0))
    }
}
