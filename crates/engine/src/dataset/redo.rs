//! Redo operations: the stored form of a dataset's changes in the log.
//!
//! The operations of a batch follow each other, each beginning with its code:
//!
//! | code | operation | fields |
//! |---|---|---|
//! | 1 | put | dataset, key, value (length and bytes) |
//! | 2 | delete | dataset, key |
//! | 3 | punch | dataset, object, first page, end page |
//! | 4 | pages | dataset, object, recordsize, first page, count, then per page its pointer |
//! | 5 | share | as pages; the records are already in use elsewhere |
//! | 6 | create | id, created, name |
//! | 7 | snapshot | dataset, id, bound, created, name |
//! | 8 | clone | snapshot, id, created, name |
//! | 9 | destroy | id |
//! | 10 | rollback | dataset |
//! | 11 | promote | dataset |
//! | 12 | rename | id, name |
//! | 13 | property | id, 1 if it is set and 0 if it is cleared (1 byte), name, value if set |
//! | 14 | hold | snapshot, when (0: released), tag |
//! | 15 | deltas | as pages; behind each pointer the number of its page's former records that are its bases |
//! | 16 | share deltas | as share; behind each pointer the number of bases, and their pointers |
//!
//! Numbers are varints. A key is object, kind (1 byte), offset. A pointer is the stored length (0: the page is a hole)
//! and, if not a hole, the raw address as a zigzag difference to the pointer before.

use crate::limits::{BASES_MAX, RECORD_BYTES_MAX, VALUE_BYTES_MAX};
use crate::wire::{Reader, put_bytes, put_signed, put_varint};
use crate::{Addr, Key, Ptr, Result};

/// Upper bound of a redo operation's fixed fields, in bytes.
pub(crate) const REDO_FIXED_BYTES: usize = 64;
/// Upper bound of a page's pointer in the log, in bytes.
pub(crate) const REDO_PTR_BYTES: usize = 14;

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
    /// Changes the catalogue of datasets and snapshots.
    Catalogue(CatalogueOp<'a>),
}

/// A change of the catalogue. The changes of a batch come after everything that was accepted before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "times are seconds since 1970, names those of the catalogue, ids its numbers")]
pub enum CatalogueOp<'a> {
    /// Makes an empty dataset.
    Create { id: u64, created: u64, name: &'a str },
    /// Keeps the dataset as it is at this place of the log, where the next record gets the raw address `bound`.
    Snapshot { dataset: u64, id: u64, bound: u64, created: u64, name: &'a str },
    /// Makes a dataset that begins as a snapshot.
    Clone { snapshot: u64, id: u64, created: u64, name: &'a str },
    /// Removes a dataset or snapshot.
    Destroy { id: u64 },
    /// Takes a dataset back to its newest snapshot.
    Rollback { dataset: u64 },
    /// Exchanges the parts of a clone and the dataset it comes from.
    Promote { dataset: u64 },
    /// Gives a dataset (and with it those below) or a snapshot a new name.
    Rename { id: u64, name: &'a str },
    /// Sets or clears a property.
    Property { id: u64, name: &'a str, value: Option<&'a str> },
    /// Holds a snapshot, or (`created` is 0) lets it go.
    Hold { snapshot: u64, created: u64, tag: &'a str },
}

/// Longest name and value in a [`CatalogueOp`], in bytes.
pub(crate) const TEXT_BYTES_MAX: usize = 8 << 10;

impl<'a> CatalogueOp<'a> {
    /// Appends the stored form.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let (code, numbers, text): (u8, &[u64], Option<&str>) = match self {
            Self::Create { id, created, name } => (6, &[*id, *created], Some(name)),
            Self::Snapshot { dataset, id, bound, created, name } => {
                (7, &[*dataset, *id, *bound, *created], Some(name))
            }
            Self::Clone { snapshot, id, created, name } => (8, &[*snapshot, *id, *created], Some(name)),
            Self::Destroy { id } => (9, &[*id], None),
            Self::Rollback { dataset } => (10, &[*dataset], None),
            Self::Promote { dataset } => (11, &[*dataset], None),
            Self::Rename { id, name } => (12, &[*id], Some(name)),
            Self::Property { id, name, value } => {
                out.push(13);
                put_varint(out, *id);
                out.push(value.is_some().into());
                put_bytes(out, name.as_bytes());
                value.iter().for_each(|value| put_bytes(out, value.as_bytes()));
                return;
            }
            Self::Hold { snapshot, created, tag } => (14, &[*snapshot, *created], Some(tag)),
        };
        out.push(code);
        numbers.iter().for_each(|number| put_varint(out, *number));
        text.iter().for_each(|text| put_bytes(out, text.as_bytes()));
    }

    fn decode(code: u8, reader: &mut Reader<'a>) -> Result<Self> {
        let first = reader.varint()?;
        Ok(match code {
            6 => Self::Create { id: first, created: reader.varint()?, name: text(reader)? },
            7 => Self::Snapshot {
                dataset: first,
                id: reader.varint()?,
                bound: reader.varint()?,
                created: reader.varint()?,
                name: text(reader)?,
            },
            8 => Self::Clone {
                snapshot: first,
                id: reader.varint()?,
                created: reader.varint()?,
                name: text(reader)?,
            },
            9 => Self::Destroy { id: first },
            10 => Self::Rollback { dataset: first },
            11 => Self::Promote { dataset: first },
            12 => Self::Rename { id: first, name: text(reader)? },
            13 => {
                let set = reader.u8()? != 0;
                let name = text(reader)?;
                Self::Property { id: first, name, value: if set { Some(text(reader)?) } else { None } }
            }
            14 => Self::Hold { snapshot: first, created: reader.varint()?, tag: text(reader)? },
            _ => return Err(reader.bad("an operation has an unknown code")),
        })
    }
}

fn text<'a>(reader: &mut Reader<'a>) -> Result<&'a str> {
    let bytes = reader.bytes(TEXT_BYTES_MAX)?;
    std::str::from_utf8(bytes).map_err(|_| reader.bad("a text is not UTF-8"))
}

/// Consecutive pages of an object and their records.
#[derive(Debug, PartialEq, Eq)]
pub struct PageRun {
    /// Dataset.
    pub dataset: u64,
    /// Object.
    pub object: u64,
    /// Page size of the object in bytes.
    pub record_size: u32,
    /// First page.
    pub first: u64,
    /// True if the records were in use before: this operation does not create them.
    pub shared: bool,
    /// Record of each page; `None` makes the page a hole.
    pub ptrs: Vec<Option<Ptr>>,
    /// Bases of these records.
    pub bases: Bases,
}

/// Bases of the records of a [`PageRun`].
#[derive(Debug, Default, PartialEq, Eq)]
pub enum Bases {
    /// No record is a delta.
    #[default]
    None,
    /// Number of each page's former records, bases first, that are bases of its new record. Used for records that are
    /// not shared.
    Kept(Vec<u8>),
    /// Bases of each page. Used for records that are shared.
    Shared(Vec<Vec<Ptr>>),
}

pub(super) fn put_key(out: &mut Vec<u8>, key: &Key) {
    put_varint(out, key.object);
    out.push(key.kind);
    put_varint(out, key.offset);
}

pub(super) fn read_key(reader: &mut Reader<'_>) -> Result<Key> {
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
            Self::Catalogue(op) => op.encode(out),
        }
    }
}

/// Appends a pointer, as the difference to the raw address `previous` of the pointer before. Returns its own raw
/// address.
fn put_ptr(out: &mut Vec<u8>, ptr: Ptr, previous: u64) -> u64 {
    put_varint(out, ptr.len_bytes.into());
    put_signed(out, ptr.addr.raw().wrapping_sub(previous) as i64);
    ptr.addr.raw()
}

/// Reads a pointer; `None` is a hole. `previous` is the raw address of the pointer before, and is updated.
fn read_ptr(reader: &mut Reader<'_>, previous: &mut u64) -> Result<Option<Ptr>> {
    let len_bytes = reader.varint_u32()?;
    if len_bytes == 0 {
        return Ok(None);
    }
    *previous = previous.wrapping_add(reader.signed()? as u64);
    let addr = Addr::from_raw(*previous).filter(|_| len_bytes as usize <= RECORD_BYTES_MAX);
    let addr = addr.ok_or_else(|| reader.bad("a page has an impossible pointer"))?;
    Ok(Some(Ptr { addr, len_bytes }))
}

impl PageRun {
    fn code(&self) -> u8 {
        match (self.shared, &self.bases) {
            (false, Bases::None) => 4,
            (true, Bases::None) => 5,
            (_, Bases::Kept(_)) => 15,
            (_, Bases::Shared(_)) => 16,
        }
    }

    /// Appends the stored form.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.push(self.code());
        for value in [self.dataset, self.object, self.record_size.into(), self.first, self.ptrs.len() as u64]
        {
            put_varint(out, value);
        }
        let mut previous = 0;
        for (at, ptr) in self.ptrs.iter().enumerate() {
            let Some(ptr) = ptr else {
                put_varint(out, 0);
                continue;
            };
            previous = put_ptr(out, *ptr, previous);
            match &self.bases {
                Bases::None => {}
                Bases::Kept(kept) => out.push(kept.get(at).copied().unwrap_or_default()),
                Bases::Shared(bases) => {
                    let bases = bases.get(at).map(Vec::as_slice).unwrap_or_default();
                    out.push(bases.len() as u8);
                    bases.iter().for_each(|base| previous = put_ptr(out, *base, previous));
                }
            }
        }
    }

    fn decode(code: u8, reader: &mut Reader<'_>) -> Result<Self> {
        let (dataset, object, record_size) = (reader.varint()?, reader.varint()?, reader.varint_u32()?);
        let (first, count) = (reader.varint()?, reader.varint()?);
        // A pointer takes at least one byte.
        if count > reader.remaining() as u64 || first.checked_add(count).is_none() {
            return Err(reader.bad("a run of pages is out of range"));
        }
        let mut ptrs = Vec::with_capacity(count as usize);
        let (mut kept, mut named) = (Vec::new(), Vec::new());
        let mut previous = 0_u64;
        for _ in 0..count {
            let ptr = read_ptr(reader, &mut previous)?;
            ptrs.push(ptr);
            let bases = if code >= 15 && ptr.is_some() { reader.u8()? } else { 0 };
            if usize::from(bases) > BASES_MAX {
                return Err(reader.bad("a page has too many bases"));
            }
            if code == 15 {
                kept.push(bases);
            } else if code == 16 {
                let mut of_page = Vec::with_capacity(bases.into());
                for _ in 0..bases {
                    let base = read_ptr(reader, &mut previous)?;
                    of_page.push(base.ok_or_else(|| reader.bad("a base is a hole"))?);
                }
                named.push(of_page);
            }
        }
        let bases = match code {
            15 => Bases::Kept(kept),
            16 => Bases::Shared(named),
            _ => Bases::None,
        };
        Ok(Self { dataset, object, record_size, first, shared: matches!(code, 5 | 16), ptrs, bases })
    }
}

/// Visits the operations of a batch in order.
///
/// # Errors
/// [`crate::Error::Corrupt`] if an operation is not well formed; errors of `visit`.
pub fn for_each<'a>(ops: &'a [u8], visit: &mut dyn FnMut(Redo<'a>) -> Result<()>) -> Result<()> {
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
            code @ (4 | 5 | 15 | 16) => Redo::Pages(PageRun::decode(code, &mut reader)?),
            code => Redo::Catalogue(CatalogueOp::decode(code, &mut reader)?),
        };
        visit(redo)?;
    }
    Ok(())
}
