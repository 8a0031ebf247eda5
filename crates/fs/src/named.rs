//! Names in the dataset's map: directory entries and extended attributes.
//!
//! A name's place is `hash & !255`, with 55 bits of xxh3 seeded per file system; names that agree in all of them take
//! the free slots behind it. So a place is one key, stays as long as the name does, does not change when others come
//! and go, and serves as the cookie of a listing.

use pagefold_engine::dataset::Dataset;
use pagefold_engine::types::Key;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::error::{FsError, Result};
use crate::limits::{NAME_MAX, SLOT_BITS};

const SLOTS: u64 = 1 << SLOT_BITS;

/// First place of any name: cookies below it are `.` and `..`.
pub(crate) const PLACE_MIN: u64 = SLOTS;

/// Finds the places of names.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Places {
    seed: u64,
    /// Mask of the hash bits in use; tests use few, so that hashes agree.
    mask: u64,
}

/// Outcomes of looking for a name.
#[derive(Debug)]
pub(crate) enum Probe {
    /// The name exists: its place, and what follows it in the value.
    Found { place: u64, payload: Vec<u8> },
    /// There is no such name; a new one goes to this place.
    Vacant { place: u64 },
}

impl Places {
    pub(crate) fn new(seed: u64) -> Self {
        Self { seed, mask: (i64::MAX as u64) & !(SLOTS - 1) }
    }

    /// Returns places that use only `bits` bits of hash.
    #[cfg(test)]
    pub(crate) fn narrow(seed: u64, bits: u32) -> Self {
        Self { seed, mask: ((1 << bits) - 1) << SLOT_BITS }
    }

    /// Returns the first slot of `name`.
    pub(crate) fn first(&self, name: &[u8]) -> u64 {
        (xxh3_64_with_seed(name, self.seed) & self.mask).max(PLACE_MIN)
    }

    /// Looks for `name` among the keys of (`object`, `kind`). `displaced` says whether any of their names may lie
    /// behind its first slot; if none does, one key is read.
    pub(crate) fn probe(
        &self,
        dataset: &dyn Dataset,
        object: u64,
        kind: u8,
        displaced: bool,
        name: &[u8],
    ) -> Result<Probe> {
        let first = self.first(name);
        if !displaced {
            let Some(value) = dataset.get(&Key::new(object, kind, first))? else {
                return Ok(Probe::Vacant { place: first });
            };
            return Ok(match split(object, &value)? {
                (found, payload) if found == name => Probe::Found { place: first, payload: payload.to_vec() },
                _ => Probe::Vacant { place: first + 1 },
            });
        }
        let mut vacant = first;
        let end = Key::new(object, kind, first + SLOTS);
        for (key, value) in dataset.range(&Key::new(object, kind, first), &end, SLOTS as usize)? {
            let (found, payload) = split(object, &value)?;
            if found == name {
                return Ok(Probe::Found { place: key.offset, payload: payload.to_vec() });
            }
            if key.offset == vacant {
                vacant += 1;
            }
        }
        if vacant == first + SLOTS {
            return Err(FsError::NoSpace(format!("{SLOTS} names of inode {object} have the same hash")));
        }
        Ok(Probe::Vacant { place: vacant })
    }
}

/// Returns true if `place` is behind the first slot of its hash.
pub(crate) fn is_displaced(place: u64) -> bool {
    !place.is_multiple_of(SLOTS)
}

/// Encodes a stored value: length of the name, name, payload.
pub(crate) fn join(name: &[u8], payload: &[u8]) -> Vec<u8> {
    debug_assert!(name.len() <= NAME_MAX);
    let mut out = Vec::with_capacity(1 + name.len() + payload.len());
    out.push(name.len() as u8);
    out.extend_from_slice(name);
    out.extend_from_slice(payload);
    out
}

/// Returns name and payload of a stored value.
pub(crate) fn split(object: u64, value: &[u8]) -> Result<(&[u8], &[u8])> {
    value.split_first().and_then(|(&len, rest)| rest.split_at_checked(usize::from(len))).ok_or_else(|| {
        FsError::Corrupt { ino: object, what: "name", detail: "it is longer than its value".to_owned() }
    })
}

/// Errors unless `name` can name something new, or be moved or removed.
pub(crate) fn check_name(name: &[u8]) -> Result<()> {
    if name.len() > NAME_MAX {
        return Err(FsError::NameTooLong);
    }
    if name.is_empty() {
        return Err(FsError::NotFound);
    }
    if name == b"." || name == b".." {
        return Err(FsError::Invalid("`.` and `..` cannot be made, moved or removed"));
    }
    if name.iter().any(|&b| b == b'/' || b == 0) {
        return Err(FsError::Invalid("a name contains a slash or a zero byte"));
    }
    Ok(())
}
