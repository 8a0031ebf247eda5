//! Takes tuple headers apart, and writes them.

use crate::columns::MAX_COLUMNS;
use crate::postgres::page::Line;
use crate::wire::{le16, le32};

/// Bytes of a header before the null bitmap.
pub(crate) const FIXED: usize = 23;
const HAS_NULLS: u16 = 0x0001;
const HAS_OID: u16 = 0x0008;
/// Bits of `infomask2`: the number of columns, and a flag for tuples that no index leads to.
const COLUMNS: u16 = 0x07FF;
const HEAP_ONLY: u16 = 0x8000;

/// Places that a tuple's ctid leads to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Ctid {
    #[default]
    Itself = 0,
    SamePage = 1,
    Elsewhere = 2,
}

/// A tuple's header, and the facts that follow from it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tuple {
    pub(crate) xmin: u32,
    pub(crate) xmax: u32,
    /// Command id, or the transaction that moved the tuple.
    pub(crate) cid: u32,
    pub(crate) ctid_block: u32,
    /// Number of the line that the ctid leads to, counted from 1.
    pub(crate) ctid_line: u16,
    pub(crate) infomask2: u16,
    pub(crate) infomask: u16,
    pub(crate) hoff: u8,
    /// A bit per column that has a value.
    pub(crate) present: u128,
    /// The bytes behind the fixed header are as they should be, up to the data.
    pub(crate) usual: bool,
    pub(crate) ctid: Ctid,
    /// The tuple is kept whole behind the fixed header.
    pub(crate) odd: bool,
}

/// Returns where the data of a tuple begins.
fn data_offset(columns: usize, infomask: u16) -> usize {
    let bitmap = if infomask & HAS_NULLS != 0 { columns.div_ceil(8) } else { 0 };
    (FIXED + bitmap).next_multiple_of(8)
}

fn low_bits(n: usize) -> u128 {
    if n >= 128 { u128::MAX } else { (1 << n) - 1 }
}

impl Tuple {
    /// Returns the header of the tuple at `line`, or `None` if none fits there.
    pub(crate) fn parse(page: &[u8], line: Line) -> Option<Self> {
        let tuple = page.get(line.off..line.off + line.len).filter(|tuple| tuple.len() > FIXED)?;
        let mut parsed = Self {
            xmin: le32(tuple, 0),
            xmax: le32(tuple, 4),
            cid: le32(tuple, 8),
            ctid_block: u32::from(le16(tuple, 12)) << 16 | u32::from(le16(tuple, 14)),
            ctid_line: le16(tuple, 16),
            infomask2: le16(tuple, 18),
            infomask: le16(tuple, 20),
            hoff: tuple[22],
            ..Self::default()
        };
        parsed.parse_bitmap(tuple);
        Some(parsed)
    }

    fn parse_bitmap(&mut self, tuple: &[u8]) {
        let hoff = usize::from(self.hoff);
        let expected = data_offset(self.columns(), self.infomask);
        let fits = hoff == expected && hoff <= tuple.len();
        if !fits || self.columns() > MAX_COLUMNS || self.infomask & HAS_OID != 0 {
            return;
        }
        self.present = low_bits(self.columns());
        let mut padding = FIXED;
        if self.has_nulls() {
            padding += self.columns().div_ceil(8);
            let mut bytes = [0; 16];
            bytes[..padding - FIXED].copy_from_slice(&tuple[FIXED..padding]);
            let bitmap = u128::from_le_bytes(bytes);
            if bitmap & !self.present != 0 {
                return;
            }
            self.present = bitmap;
        }
        self.usual = tuple[padding..hoff].iter().all(|&byte| byte == 0);
    }

    pub(crate) fn columns(&self) -> usize {
        usize::from(self.infomask2 & COLUMNS)
    }

    pub(crate) fn has_nulls(&self) -> bool {
        self.infomask & HAS_NULLS != 0
    }

    pub(crate) fn is_heap_only(&self) -> bool {
        self.infomask2 & HEAP_ONLY != 0
    }

    /// Returns true if the tuple's columns can be those of a layout with `columns`.
    pub(crate) fn is_regular(&self, columns: usize) -> bool {
        self.usual && self.columns() <= columns
    }

    /// Sets the fields that follow from the flags, while reading. Returns false if the tuple has more than `columns` or
    /// an object id.
    pub(crate) fn complete(&mut self, columns: usize) -> bool {
        self.hoff = data_offset(self.columns().min(MAX_COLUMNS), self.infomask) as u8;
        self.present = low_bits(self.columns());
        self.columns() <= columns && self.infomask & HAS_OID == 0
    }

    /// Writes the header to `tuple`, of [`FIXED`] bytes at least, up to the data if the tuple is not odd.
    pub(crate) fn write(&self, tuple: &mut [u8]) {
        let Some((head, behind)) = tuple.split_first_chunk_mut::<FIXED>() else { return };
        head[..4].copy_from_slice(&self.xmin.to_le_bytes());
        head[4..8].copy_from_slice(&self.xmax.to_le_bytes());
        head[8..12].copy_from_slice(&self.cid.to_le_bytes());
        head[12..14].copy_from_slice(&((self.ctid_block >> 16) as u16).to_le_bytes());
        head[14..16].copy_from_slice(&(self.ctid_block as u16).to_le_bytes());
        head[16..18].copy_from_slice(&self.ctid_line.to_le_bytes());
        head[18..20].copy_from_slice(&self.infomask2.to_le_bytes());
        head[20..22].copy_from_slice(&self.infomask.to_le_bytes());
        head[22] = self.hoff;
        if self.has_nulls() && !self.odd {
            let bitmap = &self.present.to_le_bytes()[..self.columns().div_ceil(8)];
            behind[..bitmap.len()].copy_from_slice(bitmap);
        }
    }
}
