//! Finds out how much of each pack is live.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::{Estimated, Figures, Found, Live};
use crate::block::RecordRef;
use crate::chunk::Entry;
use crate::commit::Backup;
use crate::error::{Error, Result};
use crate::limits::REPACK_SMALL_MIN;
use crate::merge::Chunks;
use crate::pack::PackId;
use crate::repository::Repository;
use crate::root::{Needs, Row};

impl Repository {
    /// Estimates from the roots which packs backups need, and about how much of each: it takes the records of the
    /// backup that needs most of a pack, at the average length of that backup's records.
    pub(super) fn estimate(&self, backups: &[Backup]) -> Result<Estimated> {
        let mut listed = HashMap::new();
        self.store.list("packs", &mut |name, bytes| {
            if let Ok(id) = name.parse::<PackId>() {
                listed.insert(id, bytes);
            }
        })?;
        let mut all = Estimated::default();
        let mut chunks = HashSet::new();
        for backup in backups {
            let root = self.root(backup)?;
            for block in root.rows.iter().map(|row| row.block) {
                if chunks.insert(block) {
                    all.manifest_bytes += u64::from(block.len);
                    *all.meta_bytes.entry(block.pack).or_default() += u64::from(block.len);
                }
            }
            for block in &backup.root {
                *all.meta_bytes.entry(block.pack).or_default() += u64::from(block.len);
            }
            all.count_needs(&root.needs);
        }
        for (id, bytes) in &all.meta_bytes {
            all.packs.entry(*id).or_default().live_bytes += bytes;
        }
        for (id, figures) in &mut all.packs {
            let bytes = listed.get(id).copied();
            figures.bytes = bytes.ok_or_else(|| Error::Missing { object: id.path() })?;
        }
        Ok(all)
    }

    /// Finds the records of these packs that backups need, and the chunks that mention them.
    pub(super) fn find_live(&self, backups: &[Backup], packs: &BTreeSet<PackId>) -> Result<Found> {
        let mut found = Found::default();
        let mut read = HashSet::new();
        let mut chunks = Chunks::new(self);
        for backup in backups {
            let root = self.root(backup)?;
            if !root.needs.packs.keys().any(|id| packs.contains(id)) {
                continue;
            }
            let rows: Vec<&Row> = root.rows.iter().filter(|row| read.insert(row.block)).collect();
            for (at, row) in rows.iter().enumerate() {
                let then = rows.get(at + 1..).unwrap_or_default();
                for entry in chunks.read_on(row, then.iter().copied())?.iter() {
                    let Entry::Page(page) = entry else { continue };
                    let RecordRef { block, at, len, hash, .. } = page.record;
                    if packs.contains(&block.pack) {
                        found.live.entry(block.pack).or_default().insert((block, at), (len, hash));
                        found.touching.insert(row.block);
                    }
                }
            }
        }
        Ok(found)
    }
}

impl Estimated {
    /// Counts the records and models that a backup needs.
    fn count_needs(&mut self, needs: &Needs) {
        let totals = needs.totals;
        for (id, count) in &needs.packs {
            let bytes =
                u128::from(totals.record_bytes) * u128::from(*count) / u128::from(totals.pages.max(1));
            let figures = self.packs.entry(*id).or_default();
            figures.live_bytes = figures.live_bytes.max(u64::try_from(bytes).unwrap_or(u64::MAX));
            figures.live_records = figures.live_records.max(*count);
        }
        for model in needs.models.keys() {
            self.packs.entry(model.block.pack).or_default().has_model = true;
        }
    }

    pub(super) fn bytes_of(&self, ids: &BTreeSet<PackId>) -> u64 {
        ids.iter().filter_map(|id| self.packs.get(id)).map(|figures| figures.bytes).sum()
    }

    /// Returns true if emptying these packs gains what it costs: all chunks of the backups are read to find records.
    pub(super) fn is_worth(&self, candidates: &BTreeSet<PackId>) -> bool {
        let figures = candidates.iter().filter_map(|id| self.packs.get(id));
        let gain: u64 = figures.map(|figures| figures.bytes.saturating_sub(figures.live_bytes)).sum();
        let merges = candidates.len() >= REPACK_SMALL_MIN;
        !candidates.is_empty() && (self.manifest_bytes <= gain || merges)
    }

    /// Returns the figures of these packs, with live records as they were counted.
    pub(super) fn exactly(
        &self,
        candidates: &BTreeSet<PackId>,
        live: &BTreeMap<PackId, Live>,
    ) -> BTreeMap<PackId, Figures> {
        let exact = |id: &PackId| {
            let records = live.get(id);
            let mut figures = self.packs.get(id).copied().unwrap_or_default();
            figures.live_bytes = self.meta_bytes.get(id).copied().unwrap_or_default()
                + records.map_or(0, |live| live.values().map(|(len, _)| u64::from(*len)).sum());
            figures.live_records = records.map_or(0, |live| live.len() as u64);
            (*id, figures)
        };
        candidates.iter().map(exact).collect()
    }
}
