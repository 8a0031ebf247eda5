//! The stored form of an entry's changes: first the changes without the data of writes, then these data, one after the
//! other.
//!
//! | code | change | fields |
//! |---|---|---|
//! | 1 | put | key, value (length and bytes) |
//! | 2 | delete | key |
//! | 3 | punch | object, first page, end page |
//! | 4 | write | object, recordsize, offset, length of its data |
//! | 5 | share | source, first page, target, first page, count |

use crate::Result;
use crate::dataset::Change;
use crate::dataset::redo::{put_key, read_key};
use crate::limits::{ATOMIC_WRITE_MAX, VALUE_BYTES_MAX};
use crate::wire::{Reader, put_bytes, put_varint};

/// Returns the stored form of the changes, without the data of writes.
pub(super) fn encode(changes: &[Change<'_>]) -> Vec<u8> {
    let mut out = Vec::with_capacity(256);
    let numbers = |out: &mut Vec<u8>, code: u8, numbers: &[u64]| {
        out.push(code);
        numbers.iter().for_each(|number| put_varint(out, *number));
    };
    for change in changes {
        match change {
            Change::Put(key, value) => {
                out.push(1);
                put_key(&mut out, key);
                put_bytes(&mut out, value);
            }
            Change::Delete(key) => {
                out.push(2);
                put_key(&mut out, key);
            }
            Change::Punch { object, from, to } => numbers(&mut out, 3, &[*object, *from, *to]),
            Change::Write { object, record_size, offset, data } => {
                numbers(&mut out, 4, &[*object, u64::from(*record_size), *offset, data.len() as u64]);
            }
            Change::Share { from_object, from_page, to_object, to_page, count } => {
                numbers(&mut out, 5, &[*from_object, *from_page, *to_object, *to_page, *count]);
            }
        }
    }
    out
}

/// Returns the data of each write.
pub(super) fn data<'a>(changes: &'a [Change<'_>]) -> impl Iterator<Item = &'a [u8]> {
    changes.iter().filter_map(|change| match change {
        Change::Write { data, .. } => Some(*data),
        _ => None,
    })
}

/// Returns the changes from the bytes of [`encode`] and [`data`].
pub(super) fn decode<'a>(what: &'a [u8], data: &'a [u8]) -> Result<Vec<Change<'a>>> {
    let mut reader = Reader::new(what, "entry of the journal");
    let mut data = Reader::new(data, "data of the journal");
    let mut changes = Vec::new();
    while reader.remaining() > 0 {
        changes.push(match reader.u8()? {
            1 => Change::Put(read_key(&mut reader)?, reader.bytes(VALUE_BYTES_MAX)?.to_vec()),
            2 => Change::Delete(read_key(&mut reader)?),
            3 => Change::Punch { object: reader.varint()?, from: reader.varint()?, to: reader.varint()? },
            4 => {
                let (object, record_size) = (reader.varint()?, reader.varint_u32()?);
                let (offset, len) = (reader.varint()?, reader.varint()?);
                if len > ATOMIC_WRITE_MAX as u64 {
                    return Err(reader.bad("a write is too long"));
                }
                Change::Write { object, record_size, offset, data: data.take(len as usize)? }
            }
            5 => Change::Share {
                from_object: reader.varint()?,
                from_page: reader.varint()?,
                to_object: reader.varint()?,
                to_page: reader.varint()?,
                count: reader.varint()?,
            },
            _ => return Err(reader.bad("a change has an unknown code")),
        });
    }
    data.end()?;
    Ok(changes)
}
