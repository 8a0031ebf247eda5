//! Encodes and decodes keys, pointers and the entries of leaves, as the module `codec` has them.

use super::values::ValueRef;
use super::varint::{Counter, NodeReader, Sink, unzigzag, zigzag};
use crate::types::{Addr, Key, Ptr, SLOT_BITS};

/// Bytes before the first entry.
pub(super) const HEADER_BYTES: usize = 8;

pub(super) const TYPE_BYTES: u8 = 0;
pub(super) const TYPE_PAGE: u8 = 1;

/// The pointer to which another one is coded relative.
#[derive(Clone, Copy, Default)]
pub(super) struct Base {
    segment: u64,
    slot: u64,
    len_bytes: u64,
}

impl From<Ptr> for Base {
    fn from(ptr: Ptr) -> Self {
        Self {
            segment: ptr.addr.segment(),
            slot: u64::from(ptr.addr.slot()),
            len_bytes: u64::from(ptr.len_bytes),
        }
    }
}

pub(super) fn encode_ptr(out: &mut impl Sink, base: Base, ptr: Ptr) {
    let to = Base::from(ptr);
    out.varint(zigzag(base.segment, to.segment));
    out.varint(if to.segment == base.segment { zigzag(base.slot, to.slot) } else { to.slot });
    out.varint(zigzag(base.len_bytes, to.len_bytes));
}

pub(super) fn decode_ptr(from: &mut NodeReader<'_>, base: Base) -> Result<Ptr, &'static str> {
    let segment = unzigzag(base.segment, from.varint()?);
    let slot = from.varint()?;
    let slot = if segment == base.segment { unzigzag(base.slot, slot) } else { slot };
    let len_bytes = unzigzag(base.len_bytes, from.varint()?);
    if segment >> (64 - SLOT_BITS) != 0 || slot >> SLOT_BITS != 0 {
        return Err("pointer outside the address space");
    }
    let addr = Addr::from_raw((segment << SLOT_BITS) | slot).ok_or("pointer to nothing")?;
    let len_bytes = u32::try_from(len_bytes).map_err(|_| "record longer than 4 GiB")?;
    Ok(Ptr { addr, len_bytes })
}

pub(super) fn encode_key(out: &mut impl Sink, previous: Option<Key>, key: Key, value_type: Option<u8>) {
    out.varint(0);
    out.varint(key.object - previous.map_or(0, |p| p.object));
    out.byte(key.kind);
    if let Some(value_type) = value_type {
        out.byte(value_type);
    }
    out.varint(key.offset);
}

/// Reads the next key, which must be above `previous`, and the value type if a group starts.
pub(super) fn decode_key(
    from: &mut NodeReader<'_>,
    previous: Option<Key>,
    typed: bool,
) -> Result<(Key, Option<u8>), &'static str> {
    let step = from.varint()?;
    if step != 0 {
        let previous = previous.ok_or("first key is relative")?;
        let offset = previous.offset.checked_add(step).ok_or("offset over 64 bits")?;
        return Ok((Key { offset, ..previous }, None));
    }
    let object = from.varint()?;
    let object = previous.map_or(0, |p| p.object).checked_add(object).ok_or("object over 64 bits")?;
    let kind = from.byte()?;
    let value_type = if typed { from.byte()? } else { 0 };
    let key = Key { object, kind, offset: from.varint()? };
    if previous.is_some_and(|previous| previous >= key) {
        return Err("keys do not ascend");
    }
    Ok((key, Some(value_type)))
}

pub(super) fn same_run(a: Key, b: Key) -> bool {
    a.object == b.object && a.kind == b.kind
}

/// Encodes one entry of a leaf after `previous`.
pub(super) fn encode_entry(
    out: &mut impl Sink,
    previous: Option<(Key, ValueRef<'_>)>,
    key: Key,
    value: ValueRef<'_>,
) {
    let (value_type, base) = match (value, previous) {
        (ValueRef::Bytes(_), _) => (TYPE_BYTES, Base::default()),
        (ValueRef::Page(_), Some((before, ValueRef::Page(ptr)))) if same_run(before, key) => {
            (TYPE_PAGE, Base::from(ptr))
        }
        (ValueRef::Page(_), _) => (TYPE_PAGE, Base::default()),
    };
    match previous {
        Some((before, was)) if same_run(before, key) && was.same_type(value) => {
            out.varint(key.offset - before.offset);
        }
        _ => encode_key(out, previous.map(|(before, _)| before), key, Some(value_type)),
    }
    match value {
        ValueRef::Bytes(bytes) => {
            out.varint(bytes.len() as u64);
            out.bytes(bytes);
        }
        ValueRef::Page(ptr) => encode_ptr(out, base, ptr),
    }
}

/// Returns the number of bytes that [`encode_entry`] makes.
pub(super) fn entry_bytes(previous: Option<(Key, ValueRef<'_>)>, key: Key, value: ValueRef<'_>) -> usize {
    let mut counter = Counter::default();
    encode_entry(&mut counter, previous, key, value);
    counter.0
}
