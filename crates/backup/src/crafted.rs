//! Makes up repositories of any size, for measurements of memory.

use pagefold_engine::Key;
use pagefold_engine::pool::{Guid, Origin};
use rayon::prelude::*;
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

use crate::block::{BlockRef, Kind, RecordRef};
use crate::chunk::{self, Entry, PageEntry};
use crate::commit::Backup;
use crate::error::Result;
use crate::limits::{CHUNK_ENTRIES, PACK_BYTES, ROOT_PART_BYTES};
use crate::pack::{PackBuilder, PackId, squeeze};
use crate::repository::{InitOptions, Repository};
use crate::root::{Needs, Root, Row};
use crate::seen::Seen;
use crate::store::Store;

const PAGE: u32 = 8192;
/// Bytes of a record: half of a page, as if compressed.
const RECORD: u32 = 4096;
/// Number of records in a block: as many as fit in a real one.
const RECORDS: u32 = 32;
/// Number of blocks of records that really exist; all pages share their records.
const BLOCKS: u32 = 64;
/// Number of chunks that are made at once.
const AT_ONCE: u64 = 512;
/// Object to which the pages belong.
const OBJECT: u64 = 3;

/// Returns the identity of the made up snapshot in all pools.
pub fn origin() -> Origin {
    Origin { pool: Guid(*b"a made up pool 1"), number: 1, created: 1 }
}

/// Makes a repository with one backup of `pages` pages of 8 KiB. Its chunks and its root are as long as real ones. Its
/// records are few, and of a real backup's packs it has only the names, in the root.
///
/// # Errors
/// Errors of the store.
pub fn large(store: Store, pages: u64) -> Result<Backup> {
    let repository = Repository::init(store, Seen::default(), &InitOptions::default())?;
    let records = records(&repository)?;
    let mut needs = Needs::default();
    let mut meta = (PackId::new()?, PackBuilder::new(&repository.sealer));
    let mut rows = Vec::new();
    let chunks = pages.div_ceil(CHUNK_ENTRIES as u64);
    for begin in (0..chunks).step_by(AT_ONCE as usize) {
        let some: Vec<u64> = (begin..(begin + AT_ONCE).min(chunks)).collect();
        let made: Result<Vec<(Vec<Entry>, Vec<u8>)>> = some
            .par_iter()
            .map(|number| {
                let entries = entries(*number, &records);
                let squeezed = squeeze(&chunk::encode(&entries))?;
                Ok((entries, squeezed))
            })
            .collect();
        for (entries, squeezed) in made? {
            entries.iter().for_each(|entry| needs.add(entry));
            let first = entries.first().map_or(Key::page(OBJECT, 0), Entry::key);
            let block = BlockRef { pack: meta.0, ..meta.1.push(Kind::Chunk, &squeezed) };
            rows.push(Row { first, entries: entries.len() as u32, block });
            if meta.1.bytes() >= PACK_BYTES {
                let (id, full) =
                    std::mem::replace(&mut meta, (PackId::new()?, PackBuilder::new(&repository.sealer)));
                put(&repository, id, full)?;
            }
        }
    }
    // A real repository would have a pack for every 4096 records of 4 KiB.
    for number in 0..pages / 4096 {
        let id = PackId(xxh3_128(&number.to_le_bytes()).to_le_bytes());
        needs.packs.insert(id, 1);
    }
    let root = Root { needs, rows };
    let mut blocks = Vec::new();
    for part in root.encode().chunks(ROOT_PART_BYTES) {
        blocks.push(BlockRef { pack: meta.0, ..meta.1.push(Kind::Root, &squeeze(part)?) });
    }
    put(&repository, meta.0, meta.1)?;
    let backup = Backup {
        number: 1,
        pool: "tank".into(),
        dataset: "db".into(),
        snapshot: "one".into(),
        origin: origin(),
        made: 1,
        totals: root.needs.totals,
        added_bytes: root.needs.totals.record_bytes,
        packs: root.needs.packs.len() as u64,
        clusters: None,
        binlogs: Vec::new(),
        root: blocks,
    };
    repository.commit(&mut |state| {
        state.next_number = 2;
        state.backups.push(backup.clone());
        Ok(())
    })?;
    Ok(backup)
}

fn put(repository: &Repository, id: PackId, pack: PackBuilder) -> Result<()> {
    let bytes = pack.finish(&repository.id, id, &repository.sealer)?;
    repository.store.put(&id.path(), bytes.into())
}

/// Writes the records that really exist.
fn records(repository: &Repository) -> Result<Vec<RecordRef>> {
    let (id, mut pack) = (PackId::new()?, PackBuilder::new(&repository.sealer));
    let mut records = Vec::new();
    for block in 0..BLOCKS {
        let byte = |at: u32| xxh3_64(&(block << 20 | at).to_le_bytes()) as u8;
        let bytes: Vec<u8> = (0..RECORDS * RECORD).map(byte).collect();
        let found: Vec<(u32, u64)> = bytes
            .chunks(RECORD as usize)
            .zip(0..)
            .map(|(record, number)| (number * RECORD, xxh3_64(record)))
            .collect();
        let block = BlockRef { pack: id, ..pack.push(Kind::Records, &bytes) };
        records.extend(found.into_iter().map(|(at, hash)| RecordRef {
            block,
            at,
            len: RECORD,
            hash,
            model: None,
        }));
    }
    put(repository, id, pack)?;
    Ok(records)
}

fn entries(chunk: u64, records: &[RecordRef]) -> Vec<Entry> {
    let first = chunk * CHUNK_ENTRIES as u64;
    let entry = |page: u64| {
        // Neighbouring pages have neighbouring records, as if their block had been written from them.
        let at = (page % records.len().max(1) as u64) as usize;
        let record = records.get(at).copied();
        record.map(|record| {
            Entry::Page(PageEntry { object: OBJECT, page, record_size: PAGE, record, shared: None })
        })
    };
    (first..first + CHUNK_ENTRIES as u64).filter_map(entry).collect()
}
