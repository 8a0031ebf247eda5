//! Reads back what was written, and verifies it.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use serde::Serialize;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::block::BlockRef;
use crate::chunk::Entry;
use crate::commit::{self, Backup, Commit};
use crate::error::{Error, Result};
use crate::fetch::Blocks;
use crate::limits::{CHECK_COMMITS, PACK_BYTES_MAX, WINDOW_BYTES};
use crate::merge::Chunks;
use crate::pack::{PackId, open_block};
use crate::repository::Repository;
use crate::root::{Needs, Root, Row};

/// Largest number of damages that are told one by one; the others are only counted.
const TOLD_MAX: usize = 100;

/// Something that is wrong.
#[derive(Clone, Debug, Serialize)]
pub struct Damage {
    /// Number of the backup in which it was met; others may need the same object. 0 stands for the repository itself.
    pub backup: u64,
    /// The damage, in words.
    pub what: String,
}

/// The outcome of a check: the amount that was read, and the damages.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Checked {
    /// Number of backups whose manifests were read.
    pub backups: u64,
    /// Number of packs that they need.
    pub packs: u64,
    /// Number of chunks of manifests that were read; one that several backups have counts once.
    pub chunks: u64,
    /// Number of records that were read.
    pub records: u64,
    /// Bytes of these records.
    pub record_bytes: u64,
    /// Number of commits of the log that were read: the newest, [`CHECK_COMMITS`] at most.
    pub commits: u64,
    /// Number of archived files of databases' logs that are there (`check`), or were read.
    pub log_files: u64,
    /// Bytes of these files: as they are stored (`check`), or as they were read.
    pub log_bytes: u64,
    /// Number of damages.
    pub damages: u64,
    /// The first damages.
    pub told: Vec<Damage>,
}

impl Checked {
    /// Notes an error if it is damage; returns it if it says nothing about the repository.
    pub(crate) fn note(&mut self, backup: u64, error: Error) -> Result<()> {
        match error {
            Error::Damaged { .. }
            | Error::Missing { .. }
            | Error::Stream(pagefold_engine::Error::Corrupt { .. }) => {
                self.damages += 1;
                if self.told.len() < TOLD_MAX {
                    self.told.push(Damage { backup, what: error.to_string() });
                }
                Ok(())
            }
            other => Err(other),
        }
    }
}

impl Repository {
    /// Reads the log and all manifests, and checks that each pack that they need exists. Reads no records.
    ///
    /// # Errors
    /// Errors of the store; [`Error::Older`] if it has gone back to an older state. Damage is in the returned value.
    pub fn check(&self) -> Result<Checked> {
        let mut checked = Checked::default();
        self.check_description(&mut checked)?;
        let Some(head) = self.newest_or_note(&mut checked)? else { return Ok(checked) };
        self.check_commits(&head, &mut checked)?;
        let mut listed = BTreeMap::new();
        self.store.list("packs", &mut |name, bytes| {
            if let Ok(id) = name.parse::<PackId>() {
                listed.insert(id, bytes);
            }
        })?;
        let (mut packs, mut seen) = (BTreeSet::new(), HashSet::new());
        for backup in &head.state.backups {
            checked.backups += 1;
            if let Err(error) = self.check_manifest(backup, &listed, &mut packs, &mut seen, &mut checked) {
                checked.note(backup.number, error)?;
            }
        }
        checked.packs = packs.len() as u64;
        self.check_logs(&head.state.backups, &mut checked)?;
        Ok(checked)
    }

    /// Reads the commits before `head`, each of which the next one names by its hash.
    fn check_commits(&self, head: &Commit, checked: &mut Checked) -> Result<()> {
        // Nothing is expected of a commit if the one that comes after it cannot be read.
        let (mut number, mut expected) = (head.number, Some(head.before));
        checked.commits = 1;
        while number > 0 && checked.commits < CHECK_COMMITS {
            number -= 1;
            checked.commits += 1;
            let missing = || Error::Missing { object: commit::path(&self.id, number) };
            match self.read_commit(number).and_then(|commit| commit.ok_or_else(missing)) {
                Ok(commit) => {
                    if expected.is_some_and(|expected| expected != commit.hash) {
                        let detail = "it is not the commit that the next one comes after";
                        checked.note(0, Error::damaged(commit::path(&self.id, number), detail))?;
                    }
                    expected = Some(commit.before);
                }
                // A repair has put the next one in its place, and has named it as it was found.
                Err(Error::Damaged { .. })
                    if expected
                        .map_or(Ok(true), |hash| Ok::<_, Error>(self.commit_hash(number)? == hash))? =>
                {
                    expected = None;
                }
                Err(error) => {
                    // The commits before this one cannot be verified any more.
                    checked.note(0, error)?;
                    break;
                }
            }
        }
        Ok(())
    }

    fn check_manifest(
        &self,
        backup: &Backup,
        listed: &BTreeMap<PackId, u64>,
        packs: &mut BTreeSet<PackId>,
        seen: &mut HashSet<BlockRef>,
        checked: &mut Checked,
    ) -> Result<()> {
        let root = self.root(backup)?;
        for pack in root.packs() {
            if packs.insert(pack) && !listed.contains_key(&pack) {
                checked.note(backup.number, Error::Missing { object: pack.path() })?;
            }
        }
        let mut chunks = Chunks::new(self);
        let (mut needs, mut whole) = (Needs::default(), true);
        for (at, row) in root.rows.iter().enumerate() {
            match chunks.read_on(row, root.rows.get(at + 1..).unwrap_or_default()) {
                Ok(entries) => entries.iter().for_each(|entry| needs.add(entry)),
                Err(error) => {
                    whole = false;
                    if !seen.contains(&row.block) {
                        checked.note(backup.number, error)?;
                    }
                }
            }
            checked.chunks += u64::from(seen.insert(row.block));
        }
        if whole && needs != root.needs {
            let name = format!("the manifest of backup {}", backup.number);
            checked.note(backup.number, Error::damaged(name, "its chunks do not hold what its root says"))?;
        }
        Ok(())
    }

    /// Reads back everything that backups need, or a share of it, drawn by chance from `salt`, and verifies each
    /// record.
    ///
    /// # Errors
    /// Errors of reading the newest commit; errors of the store. Damage to anything else is in the returned value.
    pub fn verify(
        &self,
        backups: &[Backup],
        share: f64,
        salt: u64,
        watch: &mut dyn FnMut(u64),
    ) -> Result<Checked> {
        let mut checked = Checked::default();
        let mut seen = HashSet::new();
        let (mut models, mut packs) = (HashSet::new(), BTreeSet::new());
        for backup in backups {
            checked.backups += 1;
            let Some(root) = self.root_or_note(backup, &mut checked)?.map(Arc::new) else { continue };
            packs.extend(root.packs());
            for model in root.needs.models.keys() {
                if models.insert(model.hash)
                    && let Err(error) = self.model(model)
                {
                    checked.note(backup.number, error)?;
                }
            }
            self.verify_records(backup.number, &root, (share, salt), &mut seen, &mut checked, watch)?;
        }
        checked.packs = packs.len() as u64;
        Ok(checked)
    }

    /// Reads back whole packs that backups need, or a share of them, each by one request, and opens all of their
    /// blocks. It is left to [`Repository::verify`] whether each record is the one that a manifest means.
    ///
    /// # Errors
    /// Errors as of [`Repository::verify`].
    pub fn verify_packs(
        &self,
        backups: &[Backup],
        share: f64,
        salt: u64,
        watch: &mut dyn FnMut(u64),
    ) -> Result<Checked> {
        let mut checked = Checked::default();
        let (mut seen, mut bytes) = (BTreeSet::new(), 0);
        for backup in backups {
            checked.backups += 1;
            let Some(root) = self.root_or_note(backup, &mut checked)? else { continue };
            for pack in root.packs().chain(backup.root.iter().map(|block| block.pack)) {
                if drawn(salt, &pack.0) < share && seen.insert(pack) {
                    checked.packs += 1;
                    match self.verify_pack(pack) {
                        Ok(more) => bytes += more,
                        Err(error) => checked.note(backup.number, error)?,
                    }
                    watch(bytes);
                }
            }
        }
        Ok(checked)
    }

    /// Reads the root of a backup; `None` if it is damaged, which is noted.
    fn root_or_note(&self, backup: &Backup, checked: &mut Checked) -> Result<Option<Root>> {
        match self.root(backup) {
            Ok(root) => Ok(Some(root)),
            Err(error) => checked.note(backup.number, error).map(|()| None),
        }
    }

    fn verify_pack(&self, pack: PackId) -> Result<u64> {
        let bytes = self.store.get(&pack.path(), PACK_BYTES_MAX as usize)?;
        let bytes = bytes.ok_or_else(|| Error::Missing { object: pack.path() })?;
        for (kind, block) in crate::pack::parse(&bytes, &self.id, pack, &self.sealer)? {
            let (begin, end) = (block.offset as usize, block.offset as usize + block.len as usize);
            open_block(bytes.get(begin..end).unwrap_or_default(), &self.id, kind, &block, &self.sealer)?;
        }
        Ok(bytes.len() as u64)
    }

    fn verify_records(
        &self,
        backup: u64,
        root: &Root,
        (share, salt): (f64, u64),
        seen: &mut HashSet<BlockRef>,
        checked: &mut Checked,
        watch: &mut dyn FnMut(u64),
    ) -> Result<()> {
        let mut chunks = Chunks::new(self);
        let mut blocks = Blocks::new(self);
        let mut is_drawn = |row: &&Row| {
            let mut name = Vec::new();
            row.block.encode(&mut name);
            drawn(salt, &name) < share && seen.insert(row.block)
        };
        let rows: Vec<&Row> = root.rows.iter().filter(|row| is_drawn(row)).collect();
        for (at, row) in rows.iter().enumerate() {
            let then = rows.get(at + 1..).unwrap_or_default();
            let entries = match chunks.read_on(row, then.iter().copied()) {
                Ok(entries) => entries,
                Err(error) => {
                    checked.note(backup, error)?;
                    continue;
                }
            };
            checked.chunks += 1;
            verify_entries(backup, &entries, &mut blocks, checked, watch)?;
        }
        Ok(())
    }
}

/// Verifies the records of pages that entries refer to, a window of blocks at a time.
fn verify_entries(
    backup: u64,
    mut rest: &[Entry],
    blocks: &mut Blocks<'_>,
    checked: &mut Checked,
    watch: &mut dyn FnMut(u64),
) -> Result<()> {
    while !rest.is_empty() {
        let (now, later) = rest.split_at(window(rest));
        rest = later;
        // The block at which the window ended comes with the next one.
        let wanted: HashSet<BlockRef> = now.iter().filter_map(block_of).collect();
        if blocks.fetch(&wanted).is_err() {
            // Each block is read alone, to find the damaged ones.
            for block in &wanted {
                if let Err(error) = blocks.fetch(&HashSet::from([*block])) {
                    checked.note(backup, error)?;
                }
            }
        }
        for entry in now {
            let Entry::Page(page) = entry else { continue };
            if !blocks.has(&page.record.block) {
                continue;
            }
            match blocks.record(&page.record) {
                Ok(record) => {
                    checked.records += 1;
                    checked.record_bytes += record.len() as u64;
                }
                Err(error) => checked.note(backup, error)?,
            }
        }
        watch(checked.record_bytes);
    }
    Ok(())
}

/// Returns the number of entries, at least one, whose blocks are read at once.
fn window(entries: &[Entry]) -> usize {
    let (mut wanted, mut bytes) = (HashSet::new(), 0);
    let fits = |entry: &&Entry| match entry {
        Entry::Page(page) if wanted.insert(page.record.block) => {
            bytes += page.record.block.len as usize;
            bytes <= WINDOW_BYTES
        }
        _ => true,
    };
    entries.iter().take_while(fits).count().max(1)
}

/// Returns a number from 0 on and below 1 that `name` draws; each `salt` gives another one.
pub(crate) fn drawn(salt: u64, name: &[u8]) -> f64 {
    (xxh3_64_with_seed(name, salt) >> 12) as f64 / (1_u64 << 52) as f64
}

fn block_of(entry: &Entry) -> Option<BlockRef> {
    if let Entry::Page(page) = entry { Some(page.record.block) } else { None }
}
