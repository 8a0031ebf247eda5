//! Redo operations: what the log says of a dataset's changes.
//!
//! The operations of a batch, one after the other, each beginning with its code:
//!
//! | code | operation | fields |
//! |---|---|---|
//! | 1 | put | dataset, key, value (length and bytes) |
//! | 2 | delete | dataset, key |
//! | 3 | punch | dataset, object, first page, end page |
//! | 4 | pages | dataset, object, recordsize, first page, count, then per page its pointer |
//! | 5 | share | as pages; the records are already in use elsewhere |
//!
//! Numbers are varints. A key is object, kind (1 byte), offset. A pointer is the stored length (0: the page is a
//! hole) and, if not a hole, the raw address as a zigzag difference to the pointer before.

use crate::limits::{RECORD_BYTES_MAX, VALUE_BYTES_MAX};
use crate::wire::{Reader, put_bytes, put_signed, put_varint};
use crate::{Addr, Key, Ptr, Result};

/// Upper bound of a redo operation's fixed fields, in bytes.
pub const REDO_FIXED_BYTES: usize = 64;
/// Upper bound of a page's pointer in the log, in bytes.
pub const REDO_PTR_BYTES: usize = 14;

/// One operation of the log.
#[derive(Debug, PartialEq, Eq)]
pub enum Redo<'a> {
    /// Sets a value.
    Put(u64, Key, &'a [u8]),
    /// Removes a key.
    Delete(u64, Key),
    /// Removes pages.
    Punch {
        /// Dataset.
        dataset: u64,
        /// Object.
        object: u64,
        /// First page.
        from: u64,
        /// One past the last page.
        to: u64,
    },
    /// Points consecutive pages to records.
    Pages(PageRun),
}

/// Consecutive pages of an object and their records.
#[derive(Debug, PartialEq, Eq)]
pub struct PageRun {
    /// Dataset.
    pub dataset: u64,
    /// Object.
    pub object: u64,
    /// Its page size in bytes.
    pub record_size: u32,
    /// First page.
    pub first: u64,
    /// Whether the records were in use before (they are not born by this operation).
    pub shared: bool,
    /// The record of each page; `None` makes it a hole.
    pub ptrs: Vec<Option<Ptr>>,
}

fn put_key(out: &mut Vec<u8>, key: &Key) {
    put_varint(out, key.object);
    out.push(key.kind);
    put_varint(out, key.offset);
}

fn read_key(reader: &mut Reader<'_>) -> Result<Key> {
    Ok(Key { object: reader.varint()?, kind: reader.u8()?, offset: reader.varint()? })
}

impl Redo<'_> {
    /// Appends the stored form.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Put(dataset, key, value) => {
                out.push(1);
                put_varint(out, *dataset);
                put_key(out, key);
                put_bytes(out, value);
            }
            Self::Delete(dataset, key) => {
                out.push(2);
                put_varint(out, *dataset);
                put_key(out, key);
            }
            Self::Punch { dataset, object, from, to } => {
                out.push(3);
                for value in [dataset, object, from, to] {
                    put_varint(out, *value);
                }
            }
            Self::Pages(run) => run.encode(out),
        }
    }
}

impl PageRun {
    /// Appends the stored form.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(if self.shared { 5 } else { 4 });
        for value in [self.dataset, self.object, self.record_size.into(), self.first, self.ptrs.len() as u64]
        {
            put_varint(out, value);
        }
        let mut previous = 0;
        for ptr in &self.ptrs {
            let Some(ptr) = ptr else {
                put_varint(out, 0);
                continue;
            };
            put_varint(out, ptr.len_bytes.into());
            put_signed(out, ptr.addr.raw().wrapping_sub(previous) as i64);
            previous = ptr.addr.raw();
        }
    }

    fn decode(shared: bool, reader: &mut Reader<'_>) -> Result<Self> {
        let (dataset, object, record_size) = (reader.varint()?, reader.varint()?, reader.varint_u32()?);
        let (first, count) = (reader.varint()?, reader.varint()?);
        // A pointer takes at least one byte.
        if count > reader.remaining() as u64 || first.checked_add(count).is_none() {
            return Err(reader.bad("a run of pages is out of range"));
        }
        let mut ptrs = Vec::with_capacity(count as usize);
        let mut previous = 0_u64;
        for _ in 0..count {
            let len_bytes = reader.varint_u32()?;
            if len_bytes == 0 {
                ptrs.push(None);
                continue;
            }
            previous = previous.wrapping_add(reader.signed()? as u64);
            let addr = Addr::from_raw(previous).filter(|_| len_bytes as usize <= RECORD_BYTES_MAX);
            let addr = addr.ok_or_else(|| reader.bad("a page has an impossible pointer"))?;
            ptrs.push(Some(Ptr { addr, len_bytes }));
        }
        Ok(Self { dataset, object, record_size, first, shared, ptrs })
    }
}

/// Visits the operations of a batch in order.
pub fn for_each(ops: &[u8], visit: &mut dyn FnMut(Redo<'_>) -> Result<()>) -> Result<()> {
    let mut reader = Reader::new(ops, "operations of a batch");
    while reader.remaining() > 0 {
        let redo = match reader.u8()? {
            1 => Redo::Put(reader.varint()?, read_key(&mut reader)?, reader.bytes(VALUE_BYTES_MAX)?),
            2 => Redo::Delete(reader.varint()?, read_key(&mut reader)?),
            3 => Redo::Punch {
                dataset: reader.varint()?,
                object: reader.varint()?,
                from: reader.varint()?,
                to: reader.varint()?,
            },
            code @ (4 | 5) => Redo::Pages(PageRun::decode(code == 5, &mut reader)?),
            _ => return Err(reader.bad("an operation has an unknown code")),
        };
        visit(redo)?;
    }
    Ok(())
}
