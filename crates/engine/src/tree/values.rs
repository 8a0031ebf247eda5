//! Keeps the values of a leaf: as two plain arrays if all are pointers.

use std::ops::Range;

use super::Value;
use crate::types::{Addr, Ptr};

/// A value, borrowed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum ValueRef<'a> {
    Bytes(&'a [u8]),
    Page(Ptr),
}

impl ValueRef<'_> {
    pub(super) fn same_type(self, other: ValueRef<'_>) -> bool {
        matches!((self, other), (Self::Bytes(_), ValueRef::Bytes(_)) | (Self::Page(_), ValueRef::Page(_)))
    }

    pub(super) fn to_value(self) -> Value {
        match self {
            Self::Bytes(bytes) => Value::Bytes(bytes.into()),
            Self::Page(ptr) => Value::Page(ptr),
        }
    }
}

impl Value {
    pub(super) fn borrowed(&self) -> ValueRef<'_> {
        match self {
            Self::Bytes(bytes) => ValueRef::Bytes(bytes),
            Self::Page(ptr) => ValueRef::Page(*ptr),
        }
    }

    /// Returns the bytes on the heap.
    pub(super) fn heap_bytes(&self) -> usize {
        match self {
            // The allocator adds about 16 bytes.
            Self::Bytes(bytes) => bytes.len() + 16,
            Self::Page(_) => 0,
        }
    }
}

/// Values in the order of their keys.
#[derive(Clone)]
pub(super) enum Values {
    /// All values are pointers.
    Pages {
        addrs: Vec<Addr>,
        lens: Vec<u32>,
    },
    Mixed(Vec<Value>),
}

/// Inserts an item, and makes room in steps of an eighth: leaves are many, so doubling would waste too much.
pub(super) fn insert_tight<T>(vec: &mut Vec<T>, at: usize, item: T) {
    if vec.len() == vec.capacity() {
        vec.reserve_exact(vec.len() / 8 + 8);
    }
    if at == vec.len() {
        vec.push(item);
    } else {
        vec.insert(at, item);
    }
}

impl Default for Values {
    fn default() -> Self {
        Self::Mixed(Vec::new())
    }
}

impl Values {
    pub(super) fn get(&self, i: usize) -> ValueRef<'_> {
        match self {
            Self::Pages { addrs, lens } => ValueRef::Page(Ptr { addr: addrs[i], len_bytes: lens[i] }),
            Self::Mixed(values) => values[i].borrowed(),
        }
    }

    /// Returns the values in the form that can hold bytes.
    fn into_mixed(self) -> Vec<Value> {
        match self {
            Self::Pages { addrs, lens } => {
                let mut values = Vec::with_capacity(addrs.capacity());
                let ptrs = addrs.into_iter().zip(lens).map(|(addr, len_bytes)| Ptr { addr, len_bytes });
                values.extend(ptrs.map(Value::Page));
                values
            }
            Self::Mixed(values) => values,
        }
    }

    pub(super) fn insert(&mut self, i: usize, value: Value) {
        match (&mut *self, value) {
            (Self::Pages { addrs, lens }, Value::Page(ptr)) => {
                insert_tight(addrs, i, ptr.addr);
                insert_tight(lens, i, ptr.len_bytes);
            }
            (Self::Mixed(values), value) => insert_tight(values, i, value),
            (_, value) => {
                let mut values = std::mem::take(self).into_mixed();
                insert_tight(&mut values, i, value);
                *self = Self::Mixed(values);
            }
        }
    }

    pub(super) fn replace(&mut self, i: usize, value: Value) -> Value {
        match (&mut *self, value) {
            (Self::Pages { addrs, lens }, Value::Page(ptr)) => Value::Page(Ptr {
                addr: std::mem::replace(&mut addrs[i], ptr.addr),
                len_bytes: std::mem::replace(&mut lens[i], ptr.len_bytes),
            }),
            (Self::Mixed(values), value) => std::mem::replace(&mut values[i], value),
            (_, value) => {
                let mut values = std::mem::take(self).into_mixed();
                let old = std::mem::replace(&mut values[i], value);
                *self = Self::Mixed(values);
                old
            }
        }
    }

    pub(super) fn drain(&mut self, range: Range<usize>, mut each: impl FnMut(Value)) {
        match self {
            Self::Pages { addrs, lens } => {
                let pairs = addrs.drain(range.clone()).zip(lens.drain(range));
                pairs.for_each(|(addr, len_bytes)| each(Value::Page(Ptr { addr, len_bytes })));
            }
            Self::Mixed(values) => values.drain(range).for_each(each),
        }
    }

    pub(super) fn split_off(&mut self, at: usize) -> Self {
        match self {
            Self::Pages { addrs, lens } => {
                Self::Pages { addrs: addrs.split_off(at), lens: lens.split_off(at) }
            }
            Self::Mixed(values) => Self::Mixed(values.split_off(at)),
        }
    }

    pub(super) fn append(&mut self, right: Self) {
        match (&mut *self, right) {
            (Self::Pages { addrs, lens }, Self::Pages { addrs: more, lens: more_lens }) => {
                addrs.extend(more);
                lens.extend(more_lens);
            }
            (_, right) => {
                let mut values = std::mem::take(self).into_mixed();
                values.extend(right.into_mixed());
                *self = Self::Mixed(values);
            }
        }
    }

    /// Drops spare capacity, and gives the general form up if all values are pointers.
    pub(super) fn shrink(&mut self) {
        if let Self::Mixed(values) = self {
            let ptrs = values.iter().map(|value| match value {
                Value::Page(ptr) => Some((ptr.addr, ptr.len_bytes)),
                Value::Bytes(_) => None,
            });
            if let Some((addrs, lens)) = ptrs.collect::<Option<(Vec<_>, Vec<_>)>>() {
                *self = Self::Pages { addrs, lens };
            }
        }
        match self {
            Self::Pages { addrs, lens } => {
                addrs.shrink_to_fit();
                lens.shrink_to_fit();
            }
            Self::Mixed(values) => values.shrink_to_fit(),
        }
    }

    pub(super) fn heap_bytes(&self) -> usize {
        match self {
            Self::Pages { addrs, lens } => {
                addrs.capacity() * size_of::<Addr>() + lens.capacity() * size_of::<u32>()
            }
            Self::Mixed(values) => values.capacity() * size_of::<Value>(),
        }
    }
}
