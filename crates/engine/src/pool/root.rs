//! The root of a checkpoint: everything that opening a pool starts from.
//!
//! One record of the log (kind `Root`, neither compressed nor framed), found by the superblock:
//!
//! | field | size |
//! |---|---|
//! | magic `PFroot` and version 1 | 8 |
//! | number of the checkpoint | varint |
//! | log position: segment, chunk (device, index), bytes used, slots used, next chunk (device, index), txg | 8 varints |
//! | chain value that the next batch carries | 8 |
//! | directory of the open segment: length and bytes | varint + n |
//! | number of lists of pages of the segment table | varint |
//! | per list: raw address, device, offset, stored length | 4 varints |
//! | per list: checksum | 4 |
//! | root of the pool's own tree: stored length (0: empty), raw address | 2 varints |
//! | number of records of the catalogue (0: that of a new pool) | varint |
//! | per record of it: as for lists | |
//!
//! A list is a record of the same kind, stored before the root. Lists, because a table that grows with all that was ever
//! written would outgrow one record:
//!
//! | field | size |
//! |---|---|
//! | magic `PFlist` and version 1 | 8 |
//! | number of pages of the segment table | varint |
//! | per page: number, raw address, device, offset, stored length | 5 varints |
//! | per page: checksum | 4 |

use super::image::{put_ptr, read_ptr};
use crate::limits::{CHUNK_BYTES, RECORD_BYTES_MAX};
use crate::segment::Located;
use crate::txg::Position;
use crate::wire::{Reader, put_bytes, put_varint};
use crate::{Addr, Error, Ptr, Result};

const MAGIC: [u8; 8] = *b"PFroot\x01\0";
const LIST_MAGIC: [u8; 8] = *b"PFlist\x01\0";

/// Pages in a list at most.
const LIST_PAGES: usize = 16 << 10;
/// Longest stored form of a page in a list: varints of 40, 64, 16, 64 and 32 bits, and the checksum.
const LISTED_BYTES_MAX: usize = 6 + 10 + 3 + 10 + 5 + 4;

const _: () = assert!(LIST_PAGES * LISTED_BYTES_MAX + 16 < RECORD_BYTES_MAX);

/// A stored page of the segment table: its number, pointer and place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TablePage {
    /// Page number.
    pub(super) page: u64,
    /// The record.
    pub(super) ptr: Ptr,
    /// Its place at the time of the checkpoint.
    pub(super) place: Located,
}

/// A stored list of pages of the segment table, or record of the catalogue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct List {
    /// Its address.
    pub(super) addr: Addr,
    /// Its place.
    pub(super) place: Located,
}

/// The root of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Root {
    /// Number of the checkpoint.
    pub(super) checkpoint: u64,
    /// Where replay starts.
    pub(super) position: Position,
    /// Stored directory of the segment that is open there.
    pub(super) open_directory: Vec<u8>,
    /// Lists of the pages of the segment table.
    pub(super) lists: Vec<List>,
    /// Root node of the pool's own tree.
    pub(super) own: Option<Ptr>,
    /// The records of the catalogue of datasets.
    pub(super) catalogue: Vec<List>,
}

impl Root {
    /// The stored form.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        put_varint(&mut out, self.checkpoint);
        self.position.encode(&mut out);
        put_bytes(&mut out, &self.open_directory);
        put_lists(&mut out, &self.lists);
        put_ptr(&mut out, self.own);
        put_lists(&mut out, &self.catalogue);
        out
    }

    /// Reads the stored form.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self> {
        let mut reader = Reader::new(bytes, "root of a checkpoint");
        if reader.take(8)? != MAGIC {
            return Err(reader.bad("it has another magic"));
        }
        let checkpoint = reader.varint()?;
        let position = Position::decode(&mut reader)?;
        let open_directory = reader.bytes(CHUNK_BYTES as usize)?.to_vec();
        let lists = read_lists(&mut reader)?;
        let own = read_ptr(&mut reader)?;
        let catalogue = read_lists(&mut reader)?;
        reader.end()?;
        Ok(Self { checkpoint, position, open_directory, lists, own, catalogue })
    }
}

fn put_lists(out: &mut Vec<u8>, lists: &[List]) {
    put_varint(out, lists.len() as u64);
    for List { addr, place } in lists {
        put_varint(out, addr.raw());
        put_place(out, place);
    }
}

fn read_lists(reader: &mut Reader<'_>) -> Result<Vec<List>> {
    let mut lists = Vec::new();
    for _ in 0..reader.varint()? {
        let (addr, place) = read_place(reader)?;
        lists.push(List { addr, place });
    }
    Ok(lists)
}

/// The stored lists of `table`.
pub(super) fn encode_lists(table: &[TablePage]) -> Vec<Vec<u8>> {
    table.chunks(LIST_PAGES).map(encode_list).collect()
}

fn encode_list(pages: &[TablePage]) -> Vec<u8> {
    let mut out = LIST_MAGIC.to_vec();
    put_varint(&mut out, pages.len() as u64);
    for TablePage { page, ptr, place } in pages {
        put_varint(&mut out, *page);
        put_varint(&mut out, ptr.addr.raw());
        put_place(&mut out, place);
    }
    out
}

/// The pages in a stored list.
pub(super) fn decode_list(bytes: &[u8]) -> Result<Vec<TablePage>> {
    let mut reader = Reader::new(bytes, "list of pages of the segment table");
    if reader.take(8)? != LIST_MAGIC {
        return Err(reader.bad("it has another magic"));
    }
    let mut pages = Vec::new();
    for _ in 0..reader.varint()? {
        let page = reader.varint()?;
        let (addr, place) = read_place(&mut reader)?;
        if page >= 1 << 40 {
            return Err(reader.bad("a page is out of range"));
        }
        pages.push(TablePage { page, ptr: Ptr { addr, len_bytes: place.len_bytes }, place });
    }
    reader.end()?;
    Ok(pages)
}

/// Adds the pages of a further list. Pages ascend over all lists: so there are no more of them than bytes on the devices.
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

fn put_place(out: &mut Vec<u8>, place: &Located) {
    for value in [u64::from(place.device), place.offset, place.len_bytes.into()] {
        put_varint(out, value);
    }
    out.extend_from_slice(&place.checksum.to_le_bytes());
}

/// An address and the place of its record.
fn read_place(reader: &mut Reader<'_>) -> Result<(Addr, Located)> {
    let addr = Addr::from_raw(reader.varint()?).ok_or_else(|| reader.bad("a record has no address"))?;
    let device =
        u16::try_from(reader.varint()?).map_err(|_| reader.bad("a device number is out of range"))?;
    let (offset, len_bytes, checksum) = (reader.varint()?, reader.varint_u32()?, reader.u32()?);
    if len_bytes as usize > RECORD_BYTES_MAX {
        return Err(reader.bad("a record is longer than can be"));
    }
    Ok((addr, Located { device, offset, len_bytes, checksum }))
}

#[cfg(test)]
mod tests;
