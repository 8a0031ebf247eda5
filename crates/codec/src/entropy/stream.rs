//! Has the tables of a stream, by context.

use super::Table;
use crate::Corrupt;
use crate::wire::{Reader, put_varint};

/// A stream's tables: the first is for all contexts that have no table of their own.
///
/// Decoding loads twice per symbol: the place of the context's table, then the slot in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stream {
    map: Box<[u8; 256]>,
    heads: Box<[Head]>,
    /// By context: bits of precision times 2^28, plus the index in `slots` at which the table begins.
    places: Box<[u32; 256]>,
    /// Slots of all tables: see [`Table::slots`].
    slots: Box<[u32]>,
    /// Op of each symbol, table by table: see [`Op`]. Symbols that are escaped have [`ESCAPED`].
    ops: Box<[Op]>,
}

/// Precision and escape symbol of a table, which its ops do not tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Head {
    bits: u32,
    /// The escape symbol and its op, if there is one.
    escape: Option<(u8, Op)>,
}

/// A symbol's slots as one number: from the low bits on, start (16 bits), frequency - 1 (12) and bits of precision - 1
/// (4).
pub(crate) type Op = u32;
/// Stands for the op of an escaped symbol. No table has this op: its precision would be 16.
pub(crate) const ESCAPED: Op = Op::MAX;

#[inline(always)]
pub(crate) fn op(start: u32, freq: u32, bits: u32) -> Op {
    start | (freq - 1) << 16 | (bits - 1) << 28
}

/// The table of a context, as decoding needs it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View<'a> {
    slots: &'a [u32],
    place: u32,
}

impl View<'_> {
    /// Returns the bits of precision.
    #[inline(always)]
    pub(crate) fn bits(self) -> u32 {
        self.place >> 28
    }

    /// Returns slot `slot`, which is below `1 << bits`.
    #[inline(always)]
    pub(crate) fn slot(self, slot: u32) -> u32 {
        self.slots[((self.place & 0x0FFF_FFFF) + slot) as usize]
    }
}

impl Stream {
    /// Makes a stream of `tables`. `map` gives each context's table; all its entries are below `tables.len()`.
    pub(crate) fn new(map: [u8; 256], tables: &[Table]) -> Self {
        debug_assert!(map.iter().all(|&table| usize::from(table) < tables.len()));
        let (mut slots, mut begins, mut ops) = (vec![], vec![], vec![]);
        let mut heads = vec![];
        for table in tables {
            let whole = |symbol| {
                let slot = table.slot(symbol);
                op(slot.start.into(), slot.freq.into(), table.bits())
            };
            heads.push(Head {
                bits: table.bits(),
                escape: table.escape().map(|symbol| (symbol, whole(symbol))),
            });
            begins.push(table.bits() << 28 | slots.len() as u32);
            slots.extend(table.slots());
            ops.extend((0..=255u8).map(|symbol| if table.knows(symbol) { whole(symbol) } else { ESCAPED }));
        }
        let places = Box::new(map.map(|table| begins[usize::from(table)]));
        Self { map: Box::new(map), heads: heads.into(), places, slots: slots.into(), ops: ops.into() }
    }

    /// Returns the op of a symbol in a context, or [`ESCAPED`].
    #[inline(always)]
    pub(crate) fn op(&self, ctx: u8, symbol: u8) -> Op {
        self.ops[usize::from(self.map[usize::from(ctx)]) << 8 | usize::from(symbol)]
    }

    /// Returns the op of a context's escape symbol, if it has one.
    #[cold]
    pub(crate) fn escape(&self, ctx: u8) -> Option<Op> {
        self.heads[usize::from(self.map[usize::from(ctx)])].escape.map(|(_, op)| op)
    }

    /// Returns the table of a context, for decoding.
    #[inline(always)]
    pub(crate) fn view(&self, ctx: u8) -> View<'_> {
        View { slots: &self.slots, place: self.places[usize::from(ctx)] }
    }

    /// Makes the tables that the stream was made of.
    fn tables(&self) -> impl Iterator<Item = Table> {
        self.heads.iter().zip(self.ops.as_chunks::<256>().0).map(|(head, ops)| {
            let freq = |op: Op| if op == ESCAPED { 0 } else { (op >> 16 & 0xFFF) as u16 + 1 };
            let mut freqs = ops.map(freq);
            if let Some((symbol, op)) = head.escape {
                freqs[usize::from(symbol)] = freq(op);
            }
            Table::of_freqs(head.bits, head.escape.map_or(256, |(symbol, _)| u16::from(symbol)), &freqs)
        })
    }

    /// Returns the bytes of memory that the stream takes.
    pub(crate) fn memory_bytes(&self) -> usize {
        let lookups = 256 + 4 * (256 + self.slots.len() + self.ops.len());
        size_of::<Self>() + lookups + size_of_val(&*self.heads)
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        put_varint(out, self.heads.len() as u64);
        for table in self.tables() {
            table.write(out);
        }
        if self.heads.len() > 1 {
            // Tables of single contexts come in the order of their contexts.
            let mut next = 0;
            for (ctx, _) in self.map.iter().enumerate().filter(|(_, table)| **table > 0) {
                put_varint(out, (ctx - next) as u64);
                next = ctx + 1;
            }
        }
    }

    /// Returns the number of tables.
    pub(crate) fn table_count(&self) -> usize {
        self.heads.len()
    }

    /// Reads a stream that [`Stream::write`] wrote, and takes the number of its tables from `left`, the number that are
    /// allowed.
    pub(crate) fn read(reader: &mut Reader<'_>, left: &mut usize) -> Result<Self, Corrupt> {
        let count = reader.at_most(256)?;
        if count == 0 || count > *left {
            return Err(Corrupt("a stream without tables, or too many"));
        }
        *left -= count;
        let tables = (0..count).map(|_| Table::read(reader)).collect::<Result<Vec<Table>, Corrupt>>()?;
        let (mut map, mut next) = ([0u8; 256], 0);
        for table in 1..count {
            let ctx = next + reader.at_most(255)?;
            *map.get_mut(ctx).ok_or(Corrupt("a stream's context"))? = table as u8;
            next = ctx + 1;
        }
        Ok(Self::new(map, &tables))
    }
}
