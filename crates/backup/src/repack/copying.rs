//! Copies live records into new packs, and writes the manifests that point there.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::{Live, Place};
use crate::block::{BlockRef, Kind, RecordRef};
use crate::chunk::{self, Entry};
use crate::commit::Backup;
use crate::error::{Error, Result};
use crate::fetch::Blocks;
use crate::limits::{BLOCK_BYTES, PACK_BYTES, ROOT_PART_BYTES, WINDOW_BYTES};
use crate::merge::Chunks;
use crate::pack::{PackBuilder, PackId, squeeze};
use crate::repository::Repository;
use crate::root::{Needs, Row};
use crate::upload::{Uploaded, Uploader};

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

/// A chunk of a manifest that was written anew, and the change of each pack's count of records.
struct Moved {
    row: Row,
    counts: BTreeMap<PackId, i64>,
}

/// A pack that is being filled, and the name that it will have.
struct Filling {
    id: PackId,
    pack: PackBuilder,
}

pub(super) struct Repacking<'r> {
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
    pub(super) fn start(repository: &'r Repository, epoch: u64) -> Result<Self> {
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
        let pack = PackBuilder::in_buffer(&self.repository.sealer, self.uploader.buffer());
        Ok(Filling { id: PackId::new()?, pack })
    }

    /// Copies the live records of these packs.
    pub(super) fn copy(&mut self, victims: &BTreeSet<PackId>, live: &BTreeMap<PackId, Live>) -> Result<()> {
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
        let place = BlockRef { pack: self.data.id, ..self.data.pack.push(Kind::Records, block) };
        block.clear();
        self.places.extend(waiting.drain(..).map(|(old, at)| (old, (place, at))));
        if self.data.pack.bytes() >= PACK_BYTES {
            let fresh = self.fresh()?;
            let full = std::mem::replace(&mut self.data, fresh);
            self.upload(full)?;
        }
        Ok(())
    }

    fn push_meta(&mut self, kind: Kind, bytes: &[u8]) -> Result<BlockRef> {
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
    pub(super) fn manifest(
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
            blocks.push(self.push_meta(Kind::Root, &squeeze(part)?)?);
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
        let block = self.push_meta(Kind::Chunk, &squeeze(&chunk::encode(&entries))?)?;
        Ok(Moved { row: Row { block, ..*row }, counts })
    }

    /// Uploads the rest, and waits for all uploads; returns the packs.
    pub(super) fn finish(mut self) -> Result<BTreeSet<PackId>> {
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
