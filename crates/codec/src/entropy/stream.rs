//! Tables by context.

use super::Table;
use crate::Corrupt;
use crate::wire::{Reader, put_varint};

/// A stream's tables: the first for all contexts that have none of their own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stream {
    map: Box<[u8; 256]>,
    tables: Vec<Table>,
}

impl Stream {
    /// `map` gives each context's table, and all its entries are below `tables.len()`.
    pub(crate) fn new(map: [u8; 256], tables: Vec<Table>) -> Self {
        debug_assert!(map.iter().all(|&table| usize::from(table) < tables.len()));
        Self { map: Box::new(map), tables }
    }

    #[inline(always)]
    pub(crate) fn table(&self, ctx: u8) -> &Table {
        &self.tables[usize::from(self.map[usize::from(ctx)])]
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        put_varint(out, self.tables.len() as u64);
        for table in &self.tables {
            table.write(out);
        }
        if self.tables.len() > 1 {
            // Own tables come in the order of their contexts.
            let mut next = 0;
            for (ctx, _) in self.map.iter().enumerate().filter(|(_, table)| **table > 0) {
                put_varint(out, (ctx - next) as u64);
                next = ctx + 1;
            }
        }
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Self, Corrupt> {
        let count = reader.at_most(256)?;
        if count == 0 {
            return Err(Corrupt("a stream without tables"));
        }
        let tables = (0..count).map(|_| Table::read(reader)).collect::<Result<Vec<Table>, Corrupt>>()?;
        let (mut map, mut next) = ([0u8; 256], 0);
        for table in 1..count {
            let ctx = next + reader.at_most(255)?;
            *map.get_mut(ctx).ok_or(Corrupt("a stream's context"))? = table as u8;
            next = ctx + 1;
        }
        Ok(Self::new(map, tables))
    }
}
