//! Codes rows as columns: finds where values lie in tuples, and how each column is coded.
//!
//! A layout is the list of a tuple's columns: values of fixed width and values with a length word ("varlena"), each
//! with its alignment, as PostgreSQL's `heap_fill_tuple` writes them, or as InnoDB has them. [`infer`] finds it from
//! tuples alone. A wrong layout costs space, never correctness: a tuple that the layout does not describe to the last
//! byte is odd, and is kept as it is.
//!
//! A page's rows are coded in two passes. The first has all that lengths depend on. So a decoder knows all places
//! before it writes a byte of the page, and writes each value to its place.

mod bits;
mod buffers;
pub(crate) mod bytes;
pub(crate) mod code;
pub(crate) mod decimal;
pub(crate) mod grid;
pub(crate) mod infer;
pub(crate) mod ints;
mod lanes;
pub(crate) mod learn;
pub(crate) mod numeric;
mod packed;
pub(crate) mod plan;
mod trie;
pub(crate) mod values;
pub(crate) mod words;

pub(crate) use buffers::Buffers;
pub(crate) use grid::{Form, Grid, Span};

use crate::Corrupt;
use crate::wire::{Reader, put_varint};

/// Largest number of columns in a layout: the bits of [`Grid`]'s masks.
pub(crate) const MAX_COLUMNS: usize = 128;
/// Widest value of fixed width, in bytes: `name` has 64.
pub(crate) const MAX_WIDTH: usize = 64;

/// A column: it tells where its values lie in a tuple.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Column {
    /// Bytes of each value; 0 for values with a length word.
    pub(crate) width: u16,
    /// Alignment in bytes: 1, 2, 4 or 8; [`INNODB`] for columns of InnoDB. Values with a length word are aligned if the
    /// word has four bytes.
    pub(crate) align: u16,
}

/// Stands in the place of an alignment for columns of InnoDB: values are not aligned, integers have the high byte first
/// and their sign bit flipped, and lengths lie apart from values.
const INNODB: u16 = 0;

impl Column {
    pub(crate) const fn fixed(width: u16, align: u16) -> Self {
        Self { width, align }
    }

    pub(crate) const fn varlena(align: u16) -> Self {
        Self { width: 0, align }
    }

    /// Makes a column of InnoDB; `width` is 0 if it varies.
    pub(crate) const fn innodb(width: u16) -> Self {
        Self { width, align: INNODB }
    }

    pub(crate) fn is_innodb(self) -> bool {
        self.align == INNODB
    }

    /// Returns true if values can be integers.
    pub(crate) fn is_int(self) -> bool {
        if self.is_innodb() { (1..=8).contains(&self.width) } else { matches!(self.width, 1 | 2 | 4 | 8) }
    }

    /// Returns true if values may be floating-point numbers.
    pub(crate) fn is_float(self) -> bool {
        self.width == 8 && self.align == 8
    }

    pub(crate) fn is_varlena(self) -> bool {
        self.width == 0
    }

    pub(crate) fn write(self, out: &mut Vec<u8>) {
        put_varint(out, u64::from(self.width));
        out.push(self.align as u8);
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Self, Corrupt> {
        let width = reader.at_most(MAX_WIDTH)? as u16;
        let align = u16::from(reader.byte()?);
        if !matches!(align, INNODB | 1 | 2 | 4 | 8) {
            return Err(Corrupt("an alignment"));
        }
        Ok(Self { width, align })
    }
}
