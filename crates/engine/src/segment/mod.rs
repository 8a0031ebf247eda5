//! Maps stable addresses to records.
//!
//! A segment is a numbered sequence of records (slots). Only its table entry says where its bytes lie. A fresh segment
//! fills one chunk and was written as part of the log; a cleaned one holds only the survivors and shares a chunk with
//! others. Addresses never change (invariant G1), so cleaning touches no tree.
//!
//! - G2: a slot is live if and only if a tree of any version, the list of the table's pages or a list of
//!   unreferenced records refers to it.
//! - G3: a record is returned only if its checksum, seeded with its address, holds: stale, misplaced and
//!   exchanged sectors fail it as flipped bits do.
//! - G5: a second copy is live if and only if the record is. The pool decides what is kept twice, and where. Here a
//!   second copy is a record of another segment, whose number follows from the first one's.
//!
//! ```text
//! table, inner     the segment table, and what its lock guards: entries, and sums that every change keeps
//! entry, entries   an entry per segment: its parts, which slots are live, how many bytes that is; entries by page
//! page, paging     what is kept of pages that are away, and who puts them away and reads them again
//! deaths           records that died since their page of the table was stored: a checkpoint lists them instead
//! occupancy        bytes that live records hold of each chunk, for the cleaner
//! directory        where each slot of a part lies; directories are cached
//! read, fetch      read records, sorted, neighbours together, and verify them; one record in two steps
//! found            directories that nothing refers to, for a rescue
//! ```

mod deaths;
mod directory;
mod entries;
mod entry;
mod fetch;
mod found;
mod kept;
mod kept_leaf;
mod occupancy;
mod page;
mod piece;
mod read;
mod table;

pub use directory::{DirEntry, DirRef, Directory, StoredDirectory};
pub use entry::{
    LiveMap, PARTS_MAX, PageIds, Part, Parts, RECORD_OVERHEAD_BYTES, Segment, TABLE_PAGE_SEGMENTS, held_bytes,
};
pub(crate) use entry::{Move, PART_OVERHEAD_BYTES, tail_bytes};
pub(crate) use fetch::RecordFetch;
pub(crate) use found::{find_directory, next_directory};
pub(crate) use occupancy::Occupied;
pub use page::decode_page;
pub use read::Located;
pub(crate) use read::{DirCopy, neighbours};
pub(crate) use table::TableSnapshot;
pub(crate) use table::VisitChunk;
pub use table::{DirEntryState, Segments};
pub(crate) use table::{TableBound, TablePages};

use crate::Addr;

/// Returns the checksum of a stored record at its address.
pub fn record_checksum(addr: Addr, bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&addr.raw().to_le_bytes()), bytes)
}
