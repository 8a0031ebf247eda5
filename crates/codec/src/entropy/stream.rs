//! Tables by context.

use super::Table;
use crate::Corrupt;
use crate::wire::{Reader, put_varint};

/// A stream's tables: the first for all contexts that have none of their own.
///
/// Decoding takes two loads per symbol: by context what and where its table is, and in there the slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stream {
    map: Box<[u8; 256]>,
    heads: Box<[Head]>,
    /// By context: bits of precision times 2^28, plus where the table begins in `slots`.
    places: Box<[u32; 256]>,
    /// Slots of all tables: see [`Table::slots`].
    slots: Box<[u32]>,
    /// What is coded for each symbol, table by table: see [`Op`]. [`ESCAPED`] for those that are escaped.
    ops: Box<[Op]>,
}

/// What a table's ops do not say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Head {
    bits: u32,
    /// The escape symbol and its op.
    escape: Option<(u8, Op)>,
}

/// Start 16 bits, frequency - 1 12, bits of precision - 1 4.
pub(crate) type Op = u32;
/// No table's op: its precision would be 16.
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
    /// Bits of precision.
    #[inline(always)]
    pub(crate) fn bits(self) -> u32 {
        self.place >> 28
    }

    /// Slot `slot`, which is below `1 << bits`.
    #[inline(always)]
    pub(crate) fn slot(self, slot: u32) -> u32 {
        self.slots[((self.place & 0x0FFF_FFFF) + slot) as usize]
    }
}

impl Stream {
    /// `map` gives each context's table, and all its entries are below `tables.len()`.
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

    /// The op of a symbol in a context, or [`ESCAPED`].
    #[inline(always)]
    pub(crate) fn op(&self, ctx: u8, symbol: u8) -> Op {
        self.ops[usize::from(self.map[usize::from(ctx)]) << 8 | usize::from(symbol)]
    }

    /// The op of a context's escape symbol, if it has one.
    #[cold]
    pub(crate) fn escape(&self, ctx: u8) -> Option<Op> {
        self.heads[usize::from(self.map[usize::from(ctx)])].escape.map(|(_, op)| op)
    }

    /// The table of a context, for decoding.
    #[inline(always)]
    pub(crate) fn view(&self, ctx: u8) -> View<'_> {
        View { slots: &self.slots, place: self.places[usize::from(ctx)] }
    }

    /// The tables again.
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

    /// Bytes of memory.
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
            // Own tables come in the order of their contexts.
            let mut next = 0;
            for (ctx, _) in self.map.iter().enumerate().filter(|(_, table)| **table > 0) {
                put_varint(out, (ctx - next) as u64);
                next = ctx + 1;
            }
        }
    }

    /// Tables of the stream.
    pub(crate) fn table_count(&self) -> usize {
        self.heads.len()
    }

    /// Reads what [`Stream::write`] wrote. `left` is how many tables there may be yet.
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
