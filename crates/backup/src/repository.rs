//! A repository: opens it, keeps its log of commits, and reads blocks.

mod config;
mod log;

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Once};

use bytes::Bytes;
use config::key_name;
use pagefold_engine::pool::Origin;
use rayon::prelude::*;

use crate::block::{BlockRef, Kind};
use crate::commit::{self, Backup, Described, State};
use crate::directory::UPLOADED;
use crate::error::{Error, Result};
use crate::keys::{Derivation, Sealer, Secret, random};
use crate::limits::{BLOCK_BYTES_MAX, COALESCE_BYTES, CONFIG_BYTES_MAX, PROBE_RACERS, ROOT_BYTES_MAX};
use crate::pack::{PackId, open_block, unsqueeze};
use crate::root::Root;
use crate::seen::Seen;
use crate::store::Store;

pub(crate) use config::{CONFIG, CONFIG_COPY};

/// Options for making a repository.
#[derive(Debug, Default)]
pub struct InitOptions {
    /// Secret that opens the key by which the repository is encrypted; `None` for no encryption.
    pub secret: Option<Secret>,
    /// Time of creation, in seconds since 1970.
    pub created: u64,
    /// True if the operator vouches that there is only ever one writer: then a store that lets two creates win is
    /// accepted.
    pub single_writer: bool,
}

/// A repository that was opened.
pub struct Repository {
    pub(crate) store: Arc<Store>,
    pub(crate) id: [u8; 16],
    pub(crate) sealer: Sealer,
    pub(crate) seen: Seen,
    /// The object that describes the repository.
    config: Bytes,
    /// Done when the user was warned that what was seen cannot be remembered.
    forgets: Once,
    /// Done when the user was warned that the newest commits are damaged.
    tells: Once,
    /// True if no commit comes behind one that is missing: it was looked for.
    has_no_gap: AtomicBool,
}

/// The contents of the object that describes a repository.
pub(crate) struct Config {
    id: [u8; 16],
    created: u64,
    key: Option<(Derivation, Vec<u8>)>,
}

/// Checks that the store lets only one of several creates win.
fn probe(store: &Store) -> Result<()> {
    let name = format!("probe/{}", PackId::new()?);
    let unsafe_store = |what: &str| {
        Error::UnsafeStore(format!(
            "the store {what}: two writers at once could overwrite each other's commits; use a store that obeys `If-None-Match: *`, or vouch for a single writer"
        ))
    };
    let racers: Vec<Bytes> =
        (0..PROBE_RACERS).map(|racer| Bytes::from(format!("racer {racer} of {name}"))).collect();
    let won = store.wait(futures_util::future::join_all(
        racers.iter().map(|bytes| store.create_later(&name, bytes.clone())),
    ));
    let won: Vec<bool> = won.into_iter().collect::<Result<_>>()?;
    let kept = store.get(&name, CONFIG_BYTES_MAX)?;
    let again = store.create(&name, Bytes::from_static(b"later"))?;
    store.delete(std::slice::from_ref(&name))?;
    let winners = won.iter().filter(|won| **won).count();
    if winners > 1 || again {
        return Err(unsafe_store("lets several creates of one object succeed"));
    }
    let winner = won.iter().position(|won| *won).and_then(|at| racers.get(at));
    if winner.is_some() && kept.as_ref() != winner {
        return Err(unsafe_store("keeps what a create wrote that it had refused"));
    }
    Ok(())
}

/// Returns true if the store has what a repository keeps. One whose making was interrupted has nothing yet.
fn has_data(store: &Store) -> Result<bool> {
    for folder in UPLOADED {
        if store.has_after(folder, "")? {
            return Ok(true);
        }
    }
    Ok(false)
}

impl Repository {
    /// Makes a repository in a store that has none.
    ///
    /// # Errors
    /// [`Error::Exists`] if it has one; [`Error::UnsafeStore`]; errors of the store.
    pub fn init(store: Store, seen: Seen, options: &InitOptions) -> Result<Self> {
        if store.head(CONFIG)?.is_some() {
            return Err(Error::Exists("there is a repository already".into()));
        }
        if has_data(&store)? || store.head(CONFIG_COPY)?.is_some() {
            return Err(Error::Exists(
                "what lies there belongs to a repository that has lost its object 'repository'".into(),
            ));
        }
        if !options.single_writer {
            probe(&store)?;
        }
        let id = random()?;
        let (sealer, key) = match &options.secret {
            None => (Sealer::plain(), None),
            Some(secret) => {
                let derivation = Derivation::new()?;
                let key: [u8; 32] = random()?;
                let mut sealed = Vec::new();
                derivation.derive(secret)?.seal(&key_name(&id), &key, &mut sealed)?;
                (Sealer::encrypting(&key), Some((derivation, sealed)))
            }
        };
        let config = Bytes::from(Config { id, created: options.created, key }.encode());
        let repository = Self::of(store, id, sealer, seen, config.clone());
        let state = State { next_number: 1, ..State::default() };
        let (bytes, first) = commit::encode(&id, 0, 0, state, &repository.sealer)?;
        repository.store.put(&commit::path(&id, 0), bytes.into())?;
        let created = repository.store.create(CONFIG, config.clone())?;
        if !created && repository.store.get(CONFIG, CONFIG_BYTES_MAX)?.as_ref() != Some(&config) {
            return Err(Error::Exists("another repository was made there just now".into()));
        }
        repository.store.put(CONFIG_COPY, config)?;
        repository.remember(&first);
        Ok(repository)
    }

    /// Opens the repository of a store.
    ///
    /// # Errors
    /// [`Error::NotFound`] if it has none; [`Error::Key`] for a wrong secret, a missing one, and one that is not
    /// needed; [`Error::Damaged`]; errors of the store.
    pub fn open(store: Store, seen: Seen, secret: Option<&Secret>) -> Result<Self> {
        let (Config { id, key, .. }, config) = match Config::read(&store) {
            Err(Error::Missing { .. }) if !has_data(&store)? => {
                return Err(Error::NotFound("there is no repository".into()));
            }
            read => read?,
        };
        let sealer = match (key, secret) {
            (None, None) => Sealer::plain(),
            (None, Some(_)) => {
                return Err(Error::Key(
                    "the repository is not encrypted, and a key was given: it may have been replaced by another one".into(),
                ));
            }
            (Some(_), None) => {
                return Err(Error::Key(
                    "the repository is encrypted, and no passphrase or key was given".into(),
                ));
            }
            (Some((derivation, sealed)), Some(secret)) => {
                let key = derivation.derive(secret)?.open(&key_name(&id), &sealed);
                let key: Option<[u8; 32]> = key.and_then(|key| key.try_into().ok());
                let key = key.ok_or_else(|| {
                    Error::Key("the passphrase or key is not that of the repository".into())
                })?;
                Sealer::encrypting(&key)
            }
        };
        Ok(Self::of(store, id, sealer, seen, config))
    }

    fn of(store: Store, id: [u8; 16], sealer: Sealer, seen: Seen, config: Bytes) -> Self {
        let (forgets, tells, has_no_gap) = (Once::new(), Once::new(), AtomicBool::new(false));
        Self { store: Arc::new(store), id, sealer, seen, config, forgets, tells, has_no_gap }
    }

    /// Returns the repository's name, in hexadecimal.
    pub fn id(&self) -> String {
        PackId(self.id).to_string()
    }

    /// Returns true if the repository is encrypted.
    pub fn is_encrypted(&self) -> bool {
        self.sealer.is_encrypting()
    }

    /// Returns the store in which the repository lies.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Returns the snapshots whose backup was begun on this machine and did not end: [`Repository::create`] can go on
    /// with one of them. A backup whose process was killed after the commit has ended.
    ///
    /// # Errors
    /// [`Error::Local`] if what this machine remembers cannot be read; errors of the store.
    pub fn begun(&self) -> Result<Vec<Origin>> {
        let begun = self.seen.begun(&self.id)?;
        if begun.is_empty() {
            return Ok(begun);
        }
        let backups = self.backups()?;
        let has_ended = |origin: &Origin| backups.iter().any(|backup| backup.origin == *origin);
        let (ended, begun): (Vec<_>, Vec<_>) = begun.into_iter().partition(has_ended);
        ended.iter().try_for_each(|origin| self.seen.forget_journal(&self.id, origin))?;
        Ok(begun)
    }

    /// Returns the backups, in the order in which they were made.
    ///
    /// # Errors
    /// Errors of reading the log.
    pub fn backups(&self) -> Result<Vec<Backup>> {
        Ok(self.newest()?.state.backups)
    }

    /// Returns the properties that were set on the datasets that have backups.
    ///
    /// # Errors
    /// Errors of reading the log.
    pub fn described(&self) -> Result<Vec<Described>> {
        Ok(self.newest()?.state.described)
    }

    /// Finds the backup that a user means: its number, `POOL/DATASET@SNAPSHOT`, or `POOL/DATASET` for that of the newest
    /// snapshot of that dataset.
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::Invalid`] if backups of several pools have that name; errors of reading the log.
    pub fn find(&self, word: &str) -> Result<Backup> {
        let backups = self.backups()?;
        let is_meant = |backup: &&Backup| match word.parse::<u64>() {
            Ok(number) => backup.number == number,
            Err(_) => {
                let name = backup.name();
                name == word || name.split('@').next() == Some(word)
            }
        };
        let mut of_pools: BTreeMap<[u8; 16], &Backup> = BTreeMap::new();
        for backup in backups.iter().filter(is_meant) {
            let newest = of_pools.entry(backup.origin.pool.0).or_insert(backup);
            if newest.order() < backup.order() {
                *newest = backup;
            }
        }
        if of_pools.len() > 1 {
            let tell = |backup: &&Backup| {
                format!("backup {} is the newest of pool {}", backup.number, backup.origin.pool)
            };
            return Err(Error::Invalid(format!(
                "'{word}' is a name in {} pools, so give the backup's number: {}",
                of_pools.len(),
                of_pools.values().map(tell).collect::<Vec<_>>().join(", ")
            )));
        }
        if let Some(found) = of_pools.into_values().next() {
            return Ok(found.clone());
        }
        // A commit that is damaged may have listed it.
        let not_found =
            || format!("there is no backup '{word}' among the {} of the repository", backups.len());
        Err(self.log_fault()?.unwrap_or_else(|| Error::NotFound(not_found())))
    }

    /// Forgets backups: they are gone at once; prunes delete what only they need.
    ///
    /// # Errors
    /// [`Error::NotFound`] if a backup with one of these numbers does not exist; errors of the store.
    pub fn forget(&self, numbers: &[u64]) -> Result<()> {
        self.commit(&mut |state| {
            for number in numbers {
                let before = state.backups.len();
                state.backups.retain(|backup| backup.number != *number);
                if state.backups.len() == before {
                    return Err(Error::NotFound(format!("there is no backup {number}")));
                }
            }
            Ok(())
        })
        .map(drop)
    }

    /// Forgets those of these backups that are still there, and returns their numbers: for whoever has chosen them from a
    /// list, while others may have forgotten some.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn forget_any(&self, numbers: &[u64]) -> Result<Vec<u64>> {
        let mut gone = Vec::new();
        self.commit(&mut |state| {
            let there = state.backups.iter().map(|backup| backup.number);
            gone = there.filter(|number| numbers.contains(number)).collect();
            state.backups.retain(|backup| !numbers.contains(&backup.number));
            Ok(())
        })?;
        Ok(gone)
    }

    /// Reads and opens blocks, in the order of `wanted`. Blocks of one pack that are near each other are read by one
    /// request.
    pub(crate) fn read(&self, wanted: &[(Kind, BlockRef)]) -> Result<Vec<Vec<u8>>> {
        let mut order: Vec<usize> = (0..wanted.len()).collect();
        let block_at = |at: &usize| wanted.get(*at).map(|(_, block)| *block);
        order.sort_by_key(|at| block_at(at).map(|block| (block.pack, block.offset)));
        // `parts` tells for each block its index in `wanted`, its range, and its offset in that range.
        let mut ranges: Vec<(String, std::ops::Range<u64>)> = Vec::new();
        let mut parts: Vec<(usize, usize, u64)> = Vec::new();
        let mut last_pack = None;
        for at in order {
            let Some(block) = block_at(&at) else { continue };
            let (begin, end) = (u64::from(block.offset), u64::from(block.offset) + u64::from(block.len));
            match ranges.last_mut() {
                Some((_, range))
                    if last_pack == Some(block.pack)
                        && begin <= range.end + COALESCE_BYTES
                        && end - range.start <= BLOCK_BYTES_MAX as u64 =>
                {
                    range.end = range.end.max(end);
                }
                _ => ranges.push((block.pack.path(), begin..end)),
            }
            last_pack = Some(block.pack);
            let within = begin - ranges.last().map_or(0, |(_, range)| range.start);
            parts.push((at, ranges.len() - 1, within));
        }
        let read = self.store.ranges(&ranges)?;
        let opened: Result<Vec<(usize, Vec<u8>)>> = parts
            .into_par_iter()
            .filter_map(|(at, range, within)| {
                let ((kind, block), bytes) = wanted.get(at).zip(read.get(range))?;
                let begin = usize::try_from(within).unwrap_or(usize::MAX);
                let sealed = bytes.get(begin..begin.saturating_add(block.len as usize)).unwrap_or_default();
                let plain = open_block(sealed, &self.id, *kind, block, &self.sealer);
                Some(plain.map(|plain| (at, plain)))
            })
            .collect();
        let mut all: Vec<Vec<u8>> = vec![Vec::new(); wanted.len()];
        for (at, plain) in opened? {
            if let Some(place) = all.get_mut(at) {
                *place = plain;
            }
        }
        Ok(all)
    }

    /// Reads the root of a backup's manifest.
    pub(crate) fn root(&self, backup: &Backup) -> Result<Root> {
        let wanted: Vec<_> = backup.root.iter().map(|block| (Kind::Root, *block)).collect();
        let name = format!("the manifest of backup {}", backup.number);
        let mut bytes = Vec::new();
        for part in wanted.chunks(16) {
            for squeezed in self.read(part)? {
                bytes.extend_from_slice(&unsqueeze(&squeezed, BLOCK_BYTES_MAX, &name)?);
                if bytes.len() > ROOT_BYTES_MAX {
                    return Err(Error::damaged(name, "it is too long"));
                }
            }
        }
        Root::decode(&bytes).map_err(Error::in_object(&name))
    }
}
