//! Repacks: copies records that backups still need out of packs that are mostly dead, or small, and writes the
//! manifests that point there anew.
//!
//! Packs do not change (B1), and a backup changes by a commit alone (B2). The next prune condemns packs that became
//! needless by that commit, and the one after deletes them (B3), since a backup or restore that is under way has read
//! the old manifests. As with a backup, the commit is made only while the newest epoch is at most one later than that
//! in which the work began, so that what was uploaded is still there.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use serde::Serialize;

use crate::block::{BlockRef, Kind, RecordRef};
use crate::chunk::{self, Entry};
use crate::commit::Backup;
use crate::error::{Error, Result};
use crate::limits::{
    BLOCK_BYTES, PACK_BYTES, REPACK_RECORDS, REPACK_SMALL_BYTES, REPACK_SMALL_MIN, ROOT_PART_BYTES,
    WINDOW_BYTES,
};
use crate::merge::Chunks;
use crate::pack::{PackBuilder, PackId, squeeze};
use crate::repository::Repository;
use crate::restore::Blocks;
use crate::root::{Needs, Row};
use crate::upload::{Uploaded, Uploader};

/// The outcome of repacking.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Repacked {
    /// Number of packs that nothing needs any more.
    pub packs: u64,
    /// Bytes of these packs: the next prune condemns them, the one after that deletes them.
    pub freed_bytes: u64,
    /// Number of packs that were written instead.
    pub new_packs: u64,
    /// Number of bytes that were written.
    pub written_bytes: u64,
    /// Number of bytes that were read, manifests included.
    pub read_bytes: u64,
    /// Number of backups whose manifests were written anew.
    pub backups: u64,
    /// Number of packs that would have been worth it too, and are left to the next time.
    pub left_packs: u64,
}

/// A pack's length, and how much of it is needed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Figures {
    bytes: u64,
    live_bytes: u64,
    live_records: u64,
    /// True if it has a model. Models stay where they are: all chunks with a record by one of them would have to be
    /// written anew.
    has_model: bool,
}

/// Chooses the packs to empty: those of which less than half is live, and small ones if there are many. Those with the
/// smallest live share come first, up to a bound of live bytes and one of records. Also returns the number of others
/// that would have been worth it.
fn choose(packs: &BTreeMap<PackId, Figures>, bound: u64) -> (BTreeSet<PackId>, u64) {
    let movable = || packs.iter().filter(|(_, figures)| !figures.has_model);
    let is_small = |figures: &Figures| figures.bytes < REPACK_SMALL_BYTES;
    let small = movable().filter(|(_, figures)| is_small(figures)).count() >= REPACK_SMALL_MIN;
    let is_worth = |figures: &Figures| {
        figures.live_bytes.saturating_mul(2) < figures.bytes || (small && is_small(figures))
    };
    let mut all: Vec<_> = movable().filter(|(_, figures)| is_worth(figures)).collect();
    let share = |figures: &Figures| figures.live_bytes.saturating_mul(1000) / figures.bytes.max(1);
    all.sort_by_key(|(id, figures)| (share(figures), **id));
    let (mut chosen, mut bytes, mut records) = (BTreeSet::new(), 0_u64, 0_u64);
    for (id, figures) in &all {
        bytes = bytes.saturating_add(figures.live_bytes);
        records = records.saturating_add(figures.live_records);
        if bytes > bound || records > REPACK_RECORDS {
            break;
        }
        chosen.insert(**id);
    }
    // Copying one pack gains nothing if it is only small: there would still be one.
    let gains = |id: &PackId| {
        packs.get(id).is_some_and(|figures| figures.live_bytes.saturating_mul(2) < figures.bytes)
    };
    if chosen.len() == 1 && !chosen.iter().any(gains) {
        chosen.clear();
    }
    let left = (all.len() - chosen.len()) as u64;
    (chosen, left)
}

/// A record's place: its block, and where it begins in it.
type Place = (BlockRef, u32);
/// The live records of a pack by their places: length and hash.
type Live = BTreeMap<Place, (u32, u64)>;

/// Changes the numbers of records that a backup needs of packs.
fn recount(needs: &mut Needs, by_pack: &BTreeMap<PackId, i64>) {
    for (id, by) in by_pack {
        let count = needs.packs.entry(*id).or_default();
        *count = count.checked_add_signed(*by).unwrap_or_default();
        if *count == 0 {
            needs.packs.remove(id);
        }
    }
}

/// Backups whose manifests were written anew, by number: the root that was read, the new one, and the number of packs
/// that it needs.
type Rewritten = HashMap<u64, (Vec<BlockRef>, Vec<BlockRef>, u64)>;

/// A chunk of a manifest that was written anew, and the change of each pack's count of records.
struct Moved {
    row: Row,
    counts: BTreeMap<PackId, i64>,
}

impl Repository {
    /// Empties packs that are mostly dead, or small, by copying about `bound` bytes of records at most. `dry_run` only
    /// estimates.
    ///
    /// # Errors
    /// [`Error::Damaged`] and [`Error::Missing`] if what is to be copied cannot be read, [`Error::Fenced`] if prunes
    /// passed by: nothing has changed then; errors of the store.
    pub fn repack(&self, bound: u64, dry_run: bool) -> Result<Repacked> {
        let before = self.store.requests();
        let head = self.head()?;
        let backups = &head.state.backups;
        let estimated = self.estimate(backups)?;
        let (candidates, left) = choose(&estimated.packs, bound);
        let mut done = Repacked { left_packs: left, ..Repacked::default() };
        if !estimated.is_worth(&candidates) {
            done.left_packs += candidates.len() as u64;
            return Ok(done);
        }
        if dry_run {
            done.packs = candidates.len() as u64;
            done.freed_bytes = estimated.bytes_of(&candidates);
            return Ok(done);
        }
        let found = self.find_live(backups, &candidates)?;
        let (victims, more_left) = choose(&estimated.exactly(&candidates, &found.live), u64::MAX);
        done.left_packs += more_left;
        if victims.is_empty() {
            return Ok(done);
        }
        let mut repacking = Repacking::start(self, head.state.epoch)?;
        repacking.copy(&victims, &found.live)?;
        let mut rewritten = Rewritten::new();
        for backup in backups {
            if let Some((root, packs)) = repacking.manifest(backup, &victims, &found.touching)? {
                rewritten.insert(backup.number, (backup.root.clone(), root, packs));
            }
        }
        let new_packs = repacking.finish()?;
        done.new_packs = new_packs.len() as u64;
        self.replace_roots(&rewritten, &new_packs, head.state.epoch)?;
        let after = self.store.requests();
        done.packs = victims.len() as u64;
        done.freed_bytes = estimated.bytes_of(&victims);
        done.written_bytes = after.put_bytes - before.put_bytes;
        done.read_bytes = after.get_bytes - before.get_bytes;
        done.backups = rewritten.len() as u64;
        Ok(done)
    }

    /// Commits new roots of the backups that still have the root that was read; the work was begun in `epoch`, and has
    /// written `new_packs`.
    fn replace_roots(&self, rewritten: &Rewritten, new_packs: &BTreeSet<PackId>, epoch: u64) -> Result<()> {
        self.commit(&mut |state| {
            if state.epoch > epoch + 1 {
                return Err(Error::Fenced(
                    "prunes have passed by since packs were begun to be rewritten: nothing has changed; do it again".into(),
                ));
            }
            let mut is_needed = false;
            for backup in &mut state.backups {
                if let Some((old, new, packs)) = rewritten.get(&backup.number)
                    && backup.root == *old
                {
                    backup.root.clone_from(new);
                    backup.packs = *packs;
                    is_needed = true;
                }
            }
            // A prune may have condemned the new packs meanwhile. All others of the new roots were needed before, too.
            state.condemned.retain(|id| !(is_needed && new_packs.contains(id)));
            Ok(())
        })
        .map(drop)
    }

    /// Estimates from the roots which packs backups need, and about how much of each: it takes the records of the
    /// backup that needs most of a pack, at the average length of that backup's records.
    fn estimate(&self, backups: &[Backup]) -> Result<Estimated> {
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
    fn find_live(&self, backups: &[Backup], packs: &BTreeSet<PackId>) -> Result<Found> {
        let mut found = Found::default();
        let mut read = HashSet::new();
        let mut chunks = Chunks::new(self);
        for backup in backups {
            let root = self.root(backup)?;
            if !root.needs.packs.keys().any(|id| packs.contains(id)) {
                continue;
            }
            for row in root.rows.iter().filter(|row| read.insert(row.block)) {
                for entry in chunks.read(row)?.iter() {
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

#[derive(Default)]
struct Estimated {
    packs: BTreeMap<PackId, Figures>,
    /// Bytes of chunks and roots in each pack.
    meta_bytes: BTreeMap<PackId, u64>,
    /// Number of bytes of all chunks.
    manifest_bytes: u64,
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

    fn bytes_of(&self, ids: &BTreeSet<PackId>) -> u64 {
        ids.iter().filter_map(|id| self.packs.get(id)).map(|figures| figures.bytes).sum()
    }

    /// Returns true if emptying these packs gains what it costs: all chunks of the backups are read to find records.
    fn is_worth(&self, candidates: &BTreeSet<PackId>) -> bool {
        let figures = candidates.iter().filter_map(|id| self.packs.get(id));
        let gain: u64 = figures.map(|figures| figures.bytes.saturating_sub(figures.live_bytes)).sum();
        let merges = candidates.len() >= REPACK_SMALL_MIN;
        !candidates.is_empty() && (self.manifest_bytes <= gain || merges)
    }

    /// Returns the figures of these packs, with live records as they were counted.
    fn exactly(
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

#[derive(Default)]
struct Found {
    live: BTreeMap<PackId, Live>,
    /// Chunks that mention a record of these packs.
    touching: HashSet<BlockRef>,
}

/// A pack that is being filled, and the name that it will have.
struct Filling {
    id: PackId,
    pack: PackBuilder,
}

struct Repacking<'r> {
    repository: &'r Repository,
    epoch: u64,
    uploader: Uploader,
    data: Filling,
    meta: Filling,
    places: HashMap<Place, Place>,
    moved: HashMap<BlockRef, Moved>,
    /// The packs that were written.
    packs: BTreeSet<PackId>,
}

impl<'r> Repacking<'r> {
    fn start(repository: &'r Repository, epoch: u64) -> Result<Self> {
        let filling =
            || Ok::<_, Error>(Filling { id: PackId::new()?, pack: PackBuilder::new(&repository.sealer) });
        Ok(Self {
            repository,
            epoch,
            uploader: Uploader::start(&repository.store, None, None)?,
            data: filling()?,
            meta: filling()?,
            places: HashMap::new(),
            moved: HashMap::new(),
            packs: BTreeSet::new(),
        })
    }

    fn upload(&mut self, full: Filling) -> Result<()> {
        if full.pack.is_empty() {
            return Ok(());
        }
        let content = full.pack.content_hash();
        let bytes = full.pack.finish(&self.repository.id, full.id, &self.repository.sealer)?;
        self.packs.insert(full.id);
        let uploaded = Uploaded { content, id: full.id, bytes: bytes.len() as u64, epoch: self.epoch };
        self.uploader.upload(uploaded, bytes)
    }

    fn fresh(&self) -> Result<Filling> {
        Ok(Filling { id: PackId::new()?, pack: PackBuilder::new(&self.repository.sealer) })
    }

    /// Copies the live records of these packs.
    fn copy(&mut self, victims: &BTreeSet<PackId>, live: &BTreeMap<PackId, Live>) -> Result<()> {
        let mut blocks = Blocks::new(self.repository);
        let mut block = Vec::with_capacity(BLOCK_BYTES);
        // Records in the block that is being filled: their old places, and their offsets in the block.
        let mut waiting: Vec<(Place, u32)> = Vec::new();
        for records in victims.iter().filter_map(|id| live.get(id)) {
            let mut rest: Vec<(&Place, &(u32, u64))> = records.iter().collect();
            while !rest.is_empty() {
                let (mut wanted, mut bytes) = (HashSet::new(), 0);
                let fits = |((of, _), _): &(&Place, &(u32, u64))| {
                    if wanted.insert(*of) {
                        bytes += of.len as usize;
                    }
                    bytes <= WINDOW_BYTES
                };
                let count = rest.iter().copied().take_while(fits).count().max(1);
                let later = rest.split_off(count);
                let now = std::mem::replace(&mut rest, later);
                blocks.fetch(&now.iter().map(|((of, _), _)| *of).collect())?;
                for ((of, at), (len, hash)) in now {
                    let record = RecordRef { block: *of, at: *at, len: *len, hash: *hash, model: None };
                    let record = blocks.record(&record)?;
                    if !block.is_empty() && block.len() + record.len() > BLOCK_BYTES {
                        self.close(&mut block, &mut waiting)?;
                    }
                    waiting.push(((*of, *at), block.len() as u32));
                    block.extend_from_slice(record);
                }
            }
        }
        self.close(&mut block, &mut waiting)
    }

    /// Ends a block of records, which gives them their places.
    fn close(&mut self, block: &mut Vec<u8>, waiting: &mut Vec<(Place, u32)>) -> Result<()> {
        if block.is_empty() {
            return Ok(());
        }
        let full = std::mem::replace(block, Vec::with_capacity(BLOCK_BYTES));
        let place = BlockRef { pack: self.data.id, ..self.data.pack.push(Kind::Records, full) };
        self.places.extend(waiting.drain(..).map(|(old, at)| (old, (place, at))));
        if self.data.pack.bytes() >= PACK_BYTES {
            let fresh = self.fresh()?;
            let full = std::mem::replace(&mut self.data, fresh);
            self.upload(full)?;
        }
        Ok(())
    }

    fn push_meta(&mut self, kind: Kind, bytes: Vec<u8>) -> Result<BlockRef> {
        let block = BlockRef { pack: self.meta.id, ..self.meta.pack.push(kind, bytes) };
        if self.meta.pack.bytes() >= PACK_BYTES {
            let fresh = self.fresh()?;
            let full = std::mem::replace(&mut self.meta, fresh);
            self.upload(full)?;
        }
        Ok(block)
    }

    /// Writes a backup's manifest anew, if anything of it lies in these packs. Returns the parts of its root, and the
    /// number of packs that it needs.
    fn manifest(
        &mut self,
        backup: &Backup,
        victims: &BTreeSet<PackId>,
        touching: &HashSet<BlockRef>,
    ) -> Result<Option<(Vec<BlockRef>, u64)>> {
        let mut root = self.repository.root(backup)?;
        let of_root = backup.root.iter().map(|block| block.pack);
        if !root.packs().chain(of_root).any(|id| victims.contains(&id)) {
            return Ok(None);
        }
        let mut chunks = Chunks::new(self.repository);
        let mut counts: BTreeMap<PackId, i64> = BTreeMap::new();
        for row in &mut root.rows {
            let is_concerned = touching.contains(&row.block) || victims.contains(&row.block.pack);
            if !is_concerned {
                continue;
            }
            if !self.moved.contains_key(&row.block) {
                let entries = chunks.read(row)?;
                let moved = self.chunk(row, &entries)?;
                self.moved.insert(row.block, moved);
            }
            if let Some(moved) = self.moved.get(&row.block) {
                *row = moved.row;
                moved.counts.iter().for_each(|(id, by)| *counts.entry(*id).or_default() += by);
            }
        }
        recount(&mut root.needs, &counts);
        let mut blocks = Vec::new();
        for part in root.encode().chunks(ROOT_PART_BYTES) {
            blocks.push(self.push_meta(Kind::Root, squeeze(part)?)?);
        }
        let packs: BTreeSet<PackId> = root.packs().chain(blocks.iter().map(|block| block.pack)).collect();
        Ok(Some((blocks, packs.len() as u64)))
    }

    fn chunk(&mut self, row: &Row, entries: &[Entry]) -> Result<Moved> {
        let mut counts: BTreeMap<PackId, i64> = BTreeMap::new();
        let mut entries = entries.to_vec();
        for entry in &mut entries {
            let Entry::Page(page) = entry else { continue };
            let old = (page.record.block, page.record.at);
            if let Some((block, at)) = self.places.get(&old) {
                *counts.entry(old.0.pack).or_default() -= 1;
                *counts.entry(block.pack).or_default() += 1;
                (page.record.block, page.record.at) = (*block, *at);
            }
        }
        let block = self.push_meta(Kind::Chunk, squeeze(&chunk::encode(&entries))?)?;
        Ok(Moved { row: Row { block, ..*row }, counts })
    }

    /// Uploads the rest, and waits for all uploads; returns the packs.
    fn finish(mut self) -> Result<BTreeSet<PackId>> {
        let (fresh_data, fresh_meta) = (self.fresh()?, self.fresh()?);
        let (data, meta) =
            (std::mem::replace(&mut self.data, fresh_data), std::mem::replace(&mut self.meta, fresh_meta));
        self.upload(data)?;
        self.upload(meta)?;
        let packs = self.packs;
        self.uploader.finish()?;
        Ok(packs)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn packs(all: &[(u64, u64, bool)]) -> BTreeMap<PackId, Figures> {
        let figures = |(bytes, live_bytes, has_model): &(u64, u64, bool)| Figures {
            bytes: *bytes,
            live_bytes: *live_bytes,
            live_records: 1,
            has_model: *has_model,
        };
        (1..).zip(all).map(|(name, one)| (PackId([name; 16]), figures(one))).collect()
    }

    fn chosen(all: &[(u64, u64, bool)], bound: u64) -> (Vec<u8>, u64) {
        let (chosen, left) = choose(&packs(all), bound);
        (chosen.iter().map(|id| id.0[0]).collect(), left)
    }

    #[test]
    fn mostly_dead_and_many_small_packs_are_emptied_up_to_the_bound() {
        const M: u64 = 1 << 20;
        let all = [(16 * M, 8 * M, false), (16 * M, 7 * M, false), (16 * M, M, true), (16 * M, 2 * M, false)];
        assert_eq!(chosen(&all, u64::MAX), (vec![2, 4], 0));
        // The deadest first.
        assert_eq!(chosen(&all, 5 * M), (vec![4], 1));
        assert_eq!(chosen(&all, M), (vec![], 2));
        // A few small ones stay; many become few.
        assert_eq!(chosen(&[(M, M, false); 3], u64::MAX), (vec![], 0));
        assert_eq!(chosen(&[(M, M, false); REPACK_SMALL_MIN], u64::MAX).0.len(), REPACK_SMALL_MIN);
        assert_eq!(chosen(&[], u64::MAX), (vec![], 0));
    }
}
