//! Encodes and decodes the root of a checkpoint, from which opening a pool starts.
//!
//! The root is one record of the log (kind `Root`, neither compressed nor framed), which the superblock names:
//!
//! | field | size |
//! |---|---|
//! | magic `PFroot` and version 3 | 8 |
//! | number of the checkpoint | varint |
//! | log position: segment, chunk (device, index), bytes used, slots used, next chunk (device, index), batch | 8 varints |
//! | chain value that the next batch carries | 8 |
//! | directory of the open segment: length and bytes | varint + n |
//! | segments that share a page of the segment table | 1 |
//! | number of lists of pages of the segment table | varint |
//! | per list: raw address, device, offset, stored length | 4 varints |
//! | per list: checksum | 4 |
//! | per list: device and offset of the second copy | 2 varints |
//! | per list: checksum of the second copy | 4 |
//! | number of lists of dead records | varint |
//! | per list: as above | |
//! | root of the pool's own tree: stored length (0: empty), raw address | 2 varints |
//! | number of records of the catalogue (0: that of a new pool) | varint |
//! | per record of it: as for lists | |
//! | number of segments whose second copies got new parts with this checkpoint | varint |
//! | per segment: id - previous id | varint |
//! | per segment: parts of its second copies, as in the segment table | |
//! | number of members of mirrors that are not whole ([`super::lacks`]) | varint |
//! | per member: as for lists | |
//!
//! A list is a record of the same kind, stored before the root. Lists exist because a table that grows with all that
//! was ever written would not fit into one record:
//!
//! | field | size |
//! |---|---|
//! | magic `PFlist` and version 1 | 8 |
//! | number of pages of the segment table | varint |
//! | per page: number, and as for lists | varint, ... |
//!
//! Records that died after the page of the segment table with their segment was stored are listed, too, in lists of
//! their own:
//!
//! | field | size |
//! |---|---|
//! | magic `PFdead` and version 1 | 8 |
//! | number of records | varint |
//! | per record: raw address - that of the record before (the first: its address) | varint |
//! | per record: its length, as its segment counts it | varint |

use crate::limits::{CHUNK_BYTES, RECORD_BYTES_MAX};
use crate::segment::{Located, PageIds, Part};
use crate::types::COPIES;
use crate::wal::Position;
use crate::wire::{Reader, put_bytes, put_varint};
use crate::{Addr, Error, Ptr, Result};

const MAGIC: [u8; 8] = *b"PFroot\x03\0";
const LIST_MAGIC: [u8; 8] = *b"PFlist\x01\0";
const DEAD_MAGIC: [u8; 8] = *b"PFdead\x01\0";

/// Largest number of pages in a list.
const LIST_PAGES: usize = RECORD_BYTES_MAX / 64;
/// Longest stored form of a page in a list, in bytes: varints of 40, 64, 16, 64, 32, 16 and 64 bits, and two checksums.
const LISTED_BYTES_MAX: usize = 6 + 10 + 3 + 10 + 5 + 4 + 3 + 10 + 4;

const _: () = assert!(LIST_PAGES * LISTED_BYTES_MAX + 16 < RECORD_BYTES_MAX);

/// Largest number of dead records in a list.
const LIST_DEAD: usize = RECORD_BYTES_MAX / 32;
/// Longest stored form of a dead record, in bytes: varints of 64 and 32 bits.
const DEAD_BYTES_MAX: usize = 10 + 5;

const _: () = assert!(LIST_DEAD * DEAD_BYTES_MAX + 16 < RECORD_BYTES_MAX);

/// A stored record with its places at the time of the checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PlacedRecord {
    /// Address of the record.
    pub(super) addr: Addr,
    /// Place of the record.
    pub(super) first: Located,
    /// Place of its second copy, which is as long.
    pub(super) second: Located,
}

impl PlacedRecord {
    /// Returns a pointer to the record.
    pub(super) fn ptr(&self) -> Ptr {
        Ptr { addr: self.addr, len_bytes: self.first.len_bytes }
    }
}

/// A stored page of the segment table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TablePage {
    /// Page number.
    pub(super) page: u64,
    /// The record.
    pub(super) placed: PlacedRecord,
}

/// The root of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Root {
    /// Number of the checkpoint.
    pub(super) checkpoint: u64,
    /// Position in the log at which replay starts.
    pub(super) position: Position,
    /// Stored directory of the segment that is open there.
    pub(super) open_directory: Vec<u8>,
    /// Number of segments that share a page of the segment table.
    pub(super) page_ids: PageIds,
    /// Lists of the pages of the segment table.
    pub(super) lists: Vec<PlacedRecord>,
    /// Lists of records that died since the pages of their segments were stored.
    pub(super) dead: Vec<PlacedRecord>,
    /// Root node of the pool's own tree.
    pub(super) own: Option<Ptr>,
    /// The records of the catalogue of datasets.
    pub(super) catalogue: Vec<PlacedRecord>,
    /// Segments of which this checkpoint stored second copies, ascending, each with all its parts that have some. The
    /// stored pages of the segment table do not know the last of these parts yet.
    pub(super) copies: Vec<(u64, Vec<Part>)>,
    /// Records of the regions that members of mirrors lack which are not whole, one for each member.
    pub(super) lacks: Vec<PlacedRecord>,
}

impl Root {
    /// Returns the stored form.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        put_varint(&mut out, self.checkpoint);
        self.position.encode(&mut out);
        put_bytes(&mut out, &self.open_directory);
        out.push(self.page_ids.get());
        put_lists(&mut out, &self.lists);
        put_lists(&mut out, &self.dead);
        put_ptr(&mut out, self.own);
        put_lists(&mut out, &self.catalogue);
        put_varint(&mut out, self.copies.len() as u64);
        let mut previous = 0;
        for (id, parts) in &self.copies {
            put_varint(&mut out, id - previous);
            put_varint(&mut out, parts.len() as u64);
            parts.iter().for_each(|part| part.encode(&mut out));
            previous = *id;
        }
        put_lists(&mut out, &self.lacks);
        out
    }

    /// Decodes the stored form.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self> {
        let mut reader = Reader::new(bytes, "root of a checkpoint");
        if reader.take(8)? != MAGIC {
            return Err(reader.bad("it has another magic"));
        }
        let checkpoint = reader.varint()?;
        let position = Position::decode(&mut reader)?;
        let open_directory = reader.bytes(CHUNK_BYTES as usize)?.to_vec();
        let page_ids = PageIds::new(reader.u8()?)
            .ok_or_else(|| reader.bad("pages of the segment table have an impossible number of segments"))?;
        let lists = read_lists(&mut reader)?;
        let dead = read_lists(&mut reader)?;
        let own = read_ptr(&mut reader)?;
        let catalogue = read_lists(&mut reader)?;
        let copies = read_copies(&mut reader)?;
        let lacks = read_lists(&mut reader)?;
        reader.end()?;
        Ok(Self {
            checkpoint,
            position,
            open_directory,
            page_ids,
            lists,
            dead,
            own,
            catalogue,
            copies,
            lacks,
        })
    }
}

/// Appends the places of records.
pub(super) fn put_lists(out: &mut Vec<u8>, lists: &[PlacedRecord]) {
    put_varint(out, lists.len() as u64);
    lists.iter().for_each(|placed| put_placed(out, placed));
}

/// Reads the places of records.
pub(super) fn read_lists(reader: &mut Reader<'_>) -> Result<Vec<PlacedRecord>> {
    let mut lists = Vec::new();
    for _ in 0..reader.varint()? {
        lists.push(read_placed(reader)?);
    }
    Ok(lists)
}

fn read_copies(reader: &mut Reader<'_>) -> Result<Vec<(u64, Vec<Part>)>> {
    let mut copies = Vec::new();
    let mut last = 0_u64;
    for _ in 0..reader.varint()? {
        let next = last.checked_add(reader.varint()?).filter(|id| *id > last && *id < COPIES);
        last = next.ok_or_else(|| reader.bad("segments with second copies do not ascend"))?;
        copies.push((last, Part::decode_all(reader)?.into_vec()));
    }
    Ok(copies)
}

/// Returns the stored lists of `table`.
pub(super) fn encode_lists(table: &[TablePage]) -> Vec<Vec<u8>> {
    table.chunks(LIST_PAGES).map(encode_list).collect()
}

fn encode_list(pages: &[TablePage]) -> Vec<u8> {
    let mut out = LIST_MAGIC.to_vec();
    put_varint(&mut out, pages.len() as u64);
    for TablePage { page, placed } in pages {
        put_varint(&mut out, *page);
        put_placed(&mut out, placed);
    }
    out
}

/// Decodes the pages in a stored list.
pub(super) fn decode_list(bytes: &[u8]) -> Result<Vec<TablePage>> {
    let mut reader = Reader::new(bytes, "list of pages of the segment table");
    if reader.take(8)? != LIST_MAGIC {
        return Err(reader.bad("it has another magic"));
    }
    let mut pages = Vec::new();
    for _ in 0..reader.varint()? {
        let page = reader.varint()?;
        let placed = read_placed(&mut reader)?;
        if page >= 1 << 40 {
            return Err(reader.bad("a page is out of range"));
        }
        pages.push(TablePage { page, placed });
    }
    reader.end()?;
    Ok(pages)
}

/// Returns the stored lists of dead records, which have to ascend.
pub(super) fn encode_dead(dead: &[Ptr]) -> Vec<Vec<u8>> {
    let encode = |dead: &[Ptr]| {
        let mut out = DEAD_MAGIC.to_vec();
        put_varint(&mut out, dead.len() as u64);
        let mut previous = 0;
        for Ptr { addr, len_bytes } in dead {
            put_varint(&mut out, addr.raw() - previous);
            put_varint(&mut out, (*len_bytes).into());
            previous = addr.raw();
        }
        out
    };
    dead.chunks(LIST_DEAD).map(encode).collect()
}

/// Decodes the records in a stored list of dead records.
pub(super) fn decode_dead(bytes: &[u8]) -> Result<Vec<Ptr>> {
    let mut reader = Reader::new(bytes, "list of dead records");
    if reader.take(8)? != DEAD_MAGIC {
        return Err(reader.bad("it has another magic"));
    }
    let mut dead = Vec::new();
    let mut last = 0_u64;
    for _ in 0..reader.varint()? {
        let next = last.checked_add(reader.varint()?).filter(|raw| *raw > last).and_then(Addr::from_raw);
        let addr = next.ok_or_else(|| reader.bad("they do not ascend"))?;
        dead.push(Ptr { addr, len_bytes: reader.varint_u32()? });
        last = addr.raw();
    }
    reader.end()?;
    Ok(dead)
}

/// Adds the pages of a further list. Pages ascend over all lists, so there are no more of them than bytes on the
/// devices.
pub(super) fn append_list(table: &mut Vec<TablePage>, list: Vec<TablePage>) -> Result<()> {
    let mut last = table.last().map(|page| page.page);
    for page in &list {
        if last.is_some_and(|last| last >= page.page) {
            return Err(Error::corrupt("segment table", "its pages are out of order"));
        }
        last = Some(page.page);
    }
    table.extend(list);
    Ok(())
}

/// Appends a tree's root.
pub(super) fn put_ptr(out: &mut Vec<u8>, ptr: Option<Ptr>) {
    put_varint(out, ptr.map_or(0, |ptr| ptr.len_bytes.into()));
    put_varint(out, ptr.map_or(0, |ptr| ptr.addr.raw()));
}

/// Reads a tree's root.
pub(super) fn read_ptr(reader: &mut Reader<'_>) -> Result<Option<Ptr>> {
    let (len_bytes, raw) = (reader.varint_u32()?, reader.varint()?);
    if len_bytes as usize > RECORD_BYTES_MAX {
        return Err(reader.bad("a tree's root is out of range"));
    }
    Ok(Addr::from_raw(raw).map(|addr| Ptr { addr, len_bytes }))
}

fn put_placed(out: &mut Vec<u8>, PlacedRecord { addr, first, second }: &PlacedRecord) {
    for value in [addr.raw(), first.device.into(), first.offset, first.len_bytes.into()] {
        put_varint(out, value);
    }
    out.extend_from_slice(&first.checksum.to_le_bytes());
    for value in [second.device.into(), second.offset] {
        put_varint(out, value);
    }
    out.extend_from_slice(&second.checksum.to_le_bytes());
}

fn read_placed(reader: &mut Reader<'_>) -> Result<PlacedRecord> {
    let addr = Addr::from_raw(reader.varint()?).ok_or_else(|| reader.bad("a record has no address"))?;
    if addr.is_copy() {
        return Err(reader.bad("a record has the address of a second copy"));
    }
    let device = read_device(reader)?;
    let (offset, len_bytes, checksum) = (reader.varint()?, reader.varint_u32()?, reader.u32()?);
    if len_bytes as usize > RECORD_BYTES_MAX {
        return Err(reader.bad("a record is longer than can be"));
    }
    let first = Located { device, offset, len_bytes, checksum };
    let device = read_device(reader)?;
    let (offset, checksum) = (reader.varint()?, reader.u32()?);
    Ok(PlacedRecord { addr, first, second: Located { device, offset, len_bytes, checksum } })
}

fn read_device(reader: &mut Reader<'_>) -> Result<u16> {
    u16::try_from(reader.varint()?).map_err(|_| reader.bad("a device number is out of range"))
}

#[cfg(test)]
mod tests;
