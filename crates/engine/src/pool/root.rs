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
//! | number of pages of the segment table | varint |
//! | per page: number, raw address, device, offset, stored length | 5 varints |
//! | per page: checksum | 4 |
//! | number of datasets | varint |
//! | per dataset: id, length and bytes of its name, stored length of its tree's root (0: empty), raw address | varints |

use crate::limits::{CHUNK_BYTES, RECORD_BYTES_MAX};
use crate::segment::Located;
use crate::txg::Position;
use crate::wire::{Reader, put_bytes, put_varint};
use crate::{Addr, Ptr, Result};

const MAGIC: [u8; 8] = *b"PFroot\x01\0";

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

/// A dataset and the root of its tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DatasetRoot {
    /// Number of the dataset.
    pub(super) id: u64,
    /// Its name below the pool's; empty for the pool's own.
    pub(super) name: String,
    /// Root node of its tree.
    pub(super) root: Option<Ptr>,
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
    /// The segment table.
    pub(super) table: Vec<TablePage>,
    /// The datasets.
    pub(super) datasets: Vec<DatasetRoot>,
}

impl Root {
    /// The stored form.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        put_varint(&mut out, self.checkpoint);
        self.position.encode(&mut out);
        put_bytes(&mut out, &self.open_directory);
        put_varint(&mut out, self.table.len() as u64);
        for TablePage { page, ptr, place } in &self.table {
            for value in [*page, ptr.addr.raw(), place.device.into(), place.offset, place.len_bytes.into()] {
                put_varint(&mut out, value);
            }
            out.extend_from_slice(&place.checksum.to_le_bytes());
        }
        put_varint(&mut out, self.datasets.len() as u64);
        for dataset in &self.datasets {
            put_varint(&mut out, dataset.id);
            put_bytes(&mut out, dataset.name.as_bytes());
            put_varint(&mut out, dataset.root.map_or(0, |ptr| ptr.len_bytes.into()));
            put_varint(&mut out, dataset.root.map_or(0, |ptr| ptr.addr.raw()));
        }
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
        let pages = reader.varint()?;
        let mut table = Vec::new();
        for _ in 0..pages {
            table.push(read_table_page(&mut reader)?);
        }
        let count = reader.varint()?;
        let mut datasets = Vec::new();
        for _ in 0..count {
            let id = reader.varint()?;
            let name = String::from_utf8(reader.bytes(1024)?.to_vec());
            let name = name.map_err(|_| reader.bad("a dataset's name is not UTF-8"))?;
            let (len_bytes, raw) = (reader.varint_u32()?, reader.varint()?);
            if len_bytes as usize > RECORD_BYTES_MAX {
                return Err(reader.bad("a tree's root is out of range"));
            }
            let root = Addr::from_raw(raw).map(|addr| Ptr { addr, len_bytes });
            datasets.push(DatasetRoot { id, name, root });
        }
        reader.end()?;
        Ok(Self { checkpoint, position, open_directory, table, datasets })
    }
}

fn read_table_page(reader: &mut Reader<'_>) -> Result<TablePage> {
    let page = reader.varint()?;
    let addr =
        Addr::from_raw(reader.varint()?).ok_or_else(|| reader.bad("a page of the table has no address"))?;
    let device =
        u16::try_from(reader.varint()?).map_err(|_| reader.bad("a device number is out of range"))?;
    let (offset, len_bytes, checksum) = (reader.varint()?, reader.varint_u32()?, reader.u32()?);
    if len_bytes as usize > RECORD_BYTES_MAX || page >= 1 << 40 {
        return Err(reader.bad("a page of the table is out of range"));
    }
    Ok(TablePage {
        page,
        ptr: Ptr { addr, len_bytes },
        place: Located { device, offset, len_bytes, checksum },
    })
}
