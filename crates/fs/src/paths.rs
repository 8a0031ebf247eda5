//! Finds the paths of files of which only the data object is known, for reports of damage.
//!
//! Nothing that is stored leads from an object to its file, or from a file to its names. So inodes and entries are
//! searched, as many as the caller allows; a file that is not found by then has no path here.

use std::collections::{BTreeMap, BTreeSet};

use pagefold_engine::dataset::Dataset;
use pagefold_engine::types::Key;

use crate::check::{BATCH, after};
use crate::codec::{Inode, Pointee, kind};
use crate::named::split;
use crate::types::{FileKind, Ino};

/// Largest number of parts of a path; a longer one is taken for a circle.
const DEPTH_MAX: usize = 1024;

/// Returns, by object, the paths of the files that have these `objects`: from the root directory, without a slash
/// before them, as far as they are found among `values_max` values. Of a file with several names there is one path.
/// Damaged values are passed over.
pub fn of_objects(
    dataset: &dyn Dataset,
    objects: &BTreeSet<u64>,
    values_max: usize,
) -> BTreeMap<u64, Vec<u8>> {
    let mut search = PathSearch { dataset, left: values_max, dirs: BTreeMap::new() };
    let mut files: BTreeMap<u64, u64> = BTreeMap::new();
    search.each((Key::FIRST, Key::LAST), &mut |key, value| {
        if key.kind == kind::INODE
            && let Ok(inode) = Inode::decode(key.object, value)
            && inode.kind == FileKind::Regular
            && objects.contains(&inode.object)
        {
            files.insert(key.object, inode.object);
        }
        files.len() < objects.len()
    });
    let mut names: BTreeMap<u64, (u64, Vec<u8>)> = BTreeMap::new();
    if !files.is_empty() {
        search.each((Key::FIRST, Key::LAST), &mut |key, value| {
            if let Some((name, ino)) = entry(key, value)
                && files.contains_key(&ino)
            {
                names.insert(ino, (key.object, name.to_vec()));
            }
            names.len() < files.len()
        });
    }
    let with_path = files.into_iter().filter_map(|(ino, object)| {
        let (dir, name) = names.remove(&ino)?;
        Some((object, search.path(dir, name)?))
    });
    with_path.collect()
}

/// Returns name and inode of a directory entry; `None` for any other or a damaged value.
fn entry<'a>(key: &Key, value: &'a [u8]) -> Option<(&'a [u8], u64)> {
    if key.kind != kind::ENTRY {
        return None;
    }
    let (name, payload) = split(key.object, value).ok()?;
    Some((name, Pointee::decode(key.object, payload).ok()?.ino))
}

struct PathSearch<'a> {
    dataset: &'a dyn Dataset,
    /// Number of values that may still be looked at.
    left: usize,
    /// Parent and name of the directories that were looked for.
    dirs: BTreeMap<u64, (u64, Vec<u8>)>,
}

impl PathSearch<'_> {
    /// Passes the values that can be read to `look`, until it returns false or enough values were looked at.
    fn each(&mut self, (mut from, end): (Key, Key), look: &mut dyn FnMut(&Key, &[u8]) -> bool) {
        while from < end && self.left > 0 {
            let upto = self.dataset.first_damage(&from, &end);
            let stop = upto.map_or(end, |(first, _)| first);
            let Ok(batch) = self.dataset.range(&from, &stop, BATCH.min(self.left)) else { return };
            self.left -= batch.len();
            for (key, value) in &batch {
                if !look(key, value) {
                    return;
                }
            }
            from = match (batch.last(), upto) {
                (Some((last, _)), _) if batch.len() == BATCH => after(last),
                (_, Some((_, behind))) => behind,
                _ => return,
            };
        }
    }

    /// Returns the path of a name in a directory.
    fn path(&mut self, mut dir: u64, name: Vec<u8>) -> Option<Vec<u8>> {
        let mut parts = vec![name];
        while dir != Ino::ROOT.0 {
            let (above, name) = self.place_of(dir)?;
            parts.push(name);
            dir = above;
            if parts.len() > DEPTH_MAX {
                return None;
            }
        }
        parts.reverse();
        Some(parts.join(&b'/'))
    }

    /// Returns the parent of a directory, and its name there.
    fn place_of(&mut self, dir: u64) -> Option<(u64, Vec<u8>)> {
        if let Some(known) = self.dirs.get(&dir) {
            return Some(known.clone());
        }
        let stored = self.dataset.get(&Inode::key(dir)).ok().flatten()?;
        let above =
            Inode::decode(dir, &stored).ok().filter(|inode| inode.kind == FileKind::Directory)?.object;
        let mut found = None;
        let entries = (Key::new(above, kind::ENTRY, 0), Key::new(above, kind::ENTRY + 1, 0));
        self.each(entries, &mut |key, value| {
            found = entry(key, value).filter(|(_, ino)| *ino == dir).map(|(name, _)| name.to_vec());
            found.is_none()
        });
        let place = (above, found?);
        self.dirs.insert(dir, place.clone());
        Some(place)
    }
}
