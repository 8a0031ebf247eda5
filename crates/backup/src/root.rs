//! The root of a manifest: its chunks, and how much it needs of each pack.

use std::collections::BTreeMap;

use pagefold_engine::Key;
use pagefold_engine::wire::{Reader, put_varint};
use serde::Serialize;

use crate::block::{BlockRef, ModelRef};
use crate::chunk::{Entry, table};
use crate::error::Decoded;
use crate::pack::PackId;

/// A chunk, as the root knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// First key in it.
    pub first: Key,
    /// Number of entries in it.
    pub entries: u32,
    /// Block in which it is stored.
    pub block: BlockRef,
}

/// Counts of a backup's contents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Totals {
    /// Number of values of the file system.
    pub values: u64,
    /// Number of pages.
    pub pages: u64,
    /// Bytes of the pages' records; a record counts as often as pages have it.
    pub record_bytes: u64,
}

impl Totals {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        for value in [self.values, self.pages, self.record_bytes] {
            put_varint(out, value);
        }
    }

    pub(crate) fn decode(reader: &mut Reader<'_>) -> Decoded<Self> {
        Ok(Self { values: reader.varint()?, pages: reader.varint()?, record_bytes: reader.varint()? })
    }
}

/// Counts of what a manifest needs. A manifest that differs a little is counted by what differs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Needs {
    pub(crate) totals: Totals,
    /// Number of records in each pack.
    pub(crate) packs: BTreeMap<PackId, u64>,
    /// Number of records by each model.
    pub(crate) models: BTreeMap<ModelRef, u64>,
}

impl Needs {
    pub(crate) fn add(&mut self, entry: &Entry) {
        match entry {
            Entry::Value(..) => self.totals.values += 1,
            Entry::Page(page) => {
                self.totals.pages += 1;
                self.totals.record_bytes += u64::from(page.record.len);
                *self.packs.entry(page.record.block.pack).or_default() += 1;
                if let Some(model) = page.record.model {
                    *self.models.entry(model).or_default() += 1;
                }
            }
        }
    }

    /// Subtracts an entry that was added.
    pub(crate) fn remove(&mut self, entry: &Entry) {
        fn less<K: Ord>(counts: &mut BTreeMap<K, u64>, key: &K) {
            let Some(count) = counts.get_mut(key) else { return };
            *count = count.saturating_sub(1);
            if *count == 0 {
                counts.remove(key);
            }
        }
        let totals = &mut self.totals;
        match entry {
            Entry::Value(..) => totals.values = totals.values.saturating_sub(1),
            Entry::Page(page) => {
                totals.pages = totals.pages.saturating_sub(1);
                totals.record_bytes = totals.record_bytes.saturating_sub(page.record.len.into());
                less(&mut self.packs, &page.record.block.pack);
                if let Some(model) = &page.record.model {
                    less(&mut self.models, model);
                }
            }
        }
    }

    /// Gives the open pack its name.
    pub(crate) fn name_open(&mut self, id: PackId) {
        if let Some(count) = self.packs.remove(&PackId::OPEN) {
            *self.packs.entry(id).or_default() += count;
        }
        let open: Vec<_> =
            self.models.keys().filter(|model| model.block.pack == PackId::OPEN).copied().collect();
        for mut model in open {
            let count = self.models.remove(&model).unwrap_or_default();
            model.block.pack = id;
            *self.models.entry(model).or_default() += count;
        }
    }
}

/// The root of a manifest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Root {
    pub(crate) needs: Needs,
    /// Rows of the chunks, in the order of keys.
    pub(crate) rows: Vec<Row>,
}

impl Root {
    /// Returns the packs that the backup needs; one may come several times.
    pub(crate) fn packs(&self) -> impl Iterator<Item = PackId> + '_ {
        let models = self.needs.models.keys().map(|model| model.block.pack);
        self.needs.packs.keys().copied().chain(models).chain(self.rows.iter().map(|row| row.block.pack))
    }

    /// Returns the row of the chunk in which `key` lies, if any.
    pub(crate) fn row_of(&self, key: &Key) -> Option<&Row> {
        let after = self.rows.partition_point(|row| row.first <= *key);
        self.rows.get(after.checked_sub(1)?)
    }

    /// Returns true if a row that begins with the same key has the same chunk.
    pub(crate) fn has_row(&self, row: &Row) -> bool {
        let found = self.rows.binary_search_by_key(&row.first, |row| row.first);
        found.is_ok_and(|at| self.rows.get(at).is_some_and(|found| found.block == row.block))
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.needs.totals.encode(&mut out);
        put_varint(&mut out, self.needs.packs.len() as u64);
        for (pack, count) in &self.needs.packs {
            out.extend_from_slice(&pack.0);
            put_varint(&mut out, *count);
        }
        put_varint(&mut out, self.needs.models.len() as u64);
        for (model, count) in &self.needs.models {
            model.encode(&mut out);
            put_varint(&mut out, *count);
        }
        put_varint(&mut out, self.rows.len() as u64);
        for row in &self.rows {
            put_varint(&mut out, row.first.object);
            out.push(row.first.kind);
            put_varint(&mut out, row.first.offset);
            put_varint(&mut out, row.entries.into());
            row.block.encode(&mut out);
        }
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Decoded<Self> {
        let mut reader = Reader::new(bytes, "root of a manifest");
        let totals = Totals::decode(&mut reader)?;
        let packs = table(&mut reader, |reader| Ok((PackId::decode(reader)?, reader.varint()?)))?;
        let models = table(&mut reader, |reader| Ok((ModelRef::decode(reader)?, reader.varint()?)))?;
        let rows = table(&mut reader, |reader| {
            let first = Key::new(reader.varint()?, reader.u8()?, reader.varint()?);
            Ok(Row { first, entries: reader.varint_u32()?, block: BlockRef::decode(reader)? })
        })?;
        if rows.windows(2).any(|pair| matches!(pair, [a, b] if a.first >= b.first)) {
            return Err(reader.bad("chunks do not ascend"));
        }
        reader.end()?;
        let needs =
            Needs { totals, packs: packs.into_iter().collect(), models: models.into_iter().collect() };
        Ok(Self { needs, rows })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
pub(crate) mod tests {
    use super::*;
    use crate::chunk::tests::sample;

    #[test]
    fn roots_survive_and_needs_are_counted() {
        let mut root = Root::default();
        let entries = sample();
        entries.iter().for_each(|entry| root.needs.add(entry));
        let block = BlockRef { pack: PackId([4; 16]), index: 0, offset: 48, len: 77 };
        root.rows.push(Row { first: entries[0].key(), entries: 7, block });
        root.rows.push(Row { first: Key::new(5, 0, 0), entries: 1, block });
        let bytes = root.encode();
        assert_eq!(Root::decode(&bytes).unwrap(), root);
        for len in 0..bytes.len() {
            assert!(Root::decode(&bytes[..len]).is_err());
        }
        assert_eq!(root.row_of(&Key::new(4, 0, 0)).unwrap().entries, 7);
        assert!(root.row_of(&Key::new(0, 0, 0)).is_none());
        entries.iter().for_each(|entry| root.needs.remove(entry));
        assert_eq!(root.needs, Needs::default());
    }
}
