//! Repacks: copies records that backups still need out of packs that are mostly dead, or small, and writes the
//! manifests that point there anew.
//!
//! Packs do not change (B1), and a backup changes by a commit alone (B2). The next prune condemns packs that became
//! needless by that commit, and the one after deletes them (B3), since a backup or restore that is under way has read
//! the old manifests. As with a backup, the commit is made only while the newest epoch is at most one later than that
//! in which the work began, so that what was uploaded is still there.

mod copying;
mod estimate;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use copying::Repacking;
use serde::Serialize;

use crate::block::BlockRef;
use crate::error::{Error, Result};
use crate::limits::{REPACK_RECORDS, REPACK_SMALL_BYTES, REPACK_SMALL_MIN};
use crate::pack::PackId;
use crate::repository::Repository;

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

/// Backups whose manifests were written anew, by number: the root that was read, the new one, and the number of packs
/// that it needs.
type Rewritten = HashMap<u64, (Vec<BlockRef>, Vec<BlockRef>, u64)>;

#[derive(Default)]
struct Estimated {
    packs: BTreeMap<PackId, Figures>,
    /// Bytes of chunks and roots in each pack.
    meta_bytes: BTreeMap<PackId, u64>,
    /// Number of bytes of all chunks.
    manifest_bytes: u64,
}

#[derive(Default)]
struct Found {
    live: BTreeMap<PackId, Live>,
    /// Chunks that mention a record of these packs.
    touching: HashSet<BlockRef>,
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
