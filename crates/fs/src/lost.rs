//! Lists what cannot be read of a damaged file system, as paths and bytes, for `pagefold check`.
//!
//! There are two passes over the readable part of the map: one over inodes, for what they have lost; one over entries,
//! for paths, and for names whose inode is lost. Memory: one name per directory, and the list itself.

use std::collections::BTreeMap;

use pagefold_engine::dataset::Dataset;
use pagefold_engine::pool::Unreadable;
use pagefold_engine::types::Key;

use crate::check::{BATCH, after};
use crate::codec::{Inode, Pointee, flag, kind};
use crate::diff::EntryName;
use crate::error::Result;
use crate::named::split;
use crate::types::{FileKind, Ino};

/// Parts of an inode that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// The inode, with everything that it has; of a directory, everything below it.
    Inode,
    /// Ranges of bytes of a file: the first byte, and one past the last; ascending and apart.
    Bytes(Vec<(u64, u64)>),
    /// Some names in a directory, with the inodes that they name; their number is not known.
    Names,
    /// The target of a symbolic link.
    Target,
    /// Extended attributes or ACLs.
    Attributes,
}

/// Something that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost {
    /// Number of the inode.
    pub ino: u64,
    /// Path of the inode from the root directory, without a slash before it; begins with `(inode N)` if the names up to
    /// inode N are lost.
    pub path: Vec<u8>,
    /// The part that is lost.
    pub what: What,
}

/// Calls `each` for everything that is lost of the file system in `dataset`; `unreadable` names what the engine cannot
/// read.
///
/// Errors: failures to read anything that `unreadable` does not name; inodes and names that are not well formed.
pub fn list(dataset: &dyn Dataset, unreadable: &Unreadable, each: &mut dyn FnMut(&Lost)) -> Result<()> {
    if unreadable.is_empty() {
        return Ok(());
    }
    let mut search = LostSearch {
        dataset,
        unreadable,
        lost: BTreeMap::new(),
        names: BTreeMap::new(),
        dirs: BTreeMap::new(),
    };
    search.each_value(LostSearch::look_at_inode)?;
    search.each_value(LostSearch::look_at_entry)?;
    if unreadable.has(&Inode::key(Ino::ROOT.0)) {
        search.lost.insert(Ino::ROOT.0, vec![What::Inode]);
    }
    for (ino, all) in &search.lost {
        let path = search.path(*ino);
        all.iter().for_each(|what| each(&Lost { ino: *ino, path: path.clone(), what: what.clone() }));
    }
    Ok(())
}

struct LostSearch<'a> {
    dataset: &'a dyn Dataset,
    unreadable: &'a Unreadable,
    lost: BTreeMap<u64, Vec<What>>,
    /// One name of each inode that has lost something.
    names: BTreeMap<u64, EntryName>,
    dirs: BTreeMap<u64, EntryName>,
}

impl LostSearch<'_> {
    /// Passes every value that can be read to `look`.
    fn each_value(&mut self, look: fn(&mut Self, &Key, &[u8]) -> Result<()>) -> Result<()> {
        for (from, end) in self.unreadable.readable(Key::FIRST, Key::LAST) {
            let mut from = from;
            loop {
                let batch = self.dataset.range(&from, &end, BATCH)?;
                batch.iter().try_for_each(|(key, value)| look(self, key, value))?;
                match batch.last() {
                    Some((last, _)) if batch.len() == BATCH => from = after(last),
                    _ => break,
                }
            }
        }
        Ok(())
    }

    fn look_at_inode(&mut self, key: &Key, value: &[u8]) -> Result<()> {
        if key.kind != kind::INODE || key.object == 0 {
            return Ok(());
        }
        let ino = key.object;
        let inode = Inode::decode(ino, value)?;
        let is_lost = |first: u8, last: u8| {
            self.unreadable.within(Key::new(ino, first, 0), Key::new(ino, last + 1, 0)).next().is_some()
        };
        let has_attributes = inode.xattr_bytes > 0 || inode.has(flag::ACL_ACCESS | flag::ACL_DEFAULT);
        let mut found = Vec::new();
        match inode.kind {
            FileKind::Directory if is_lost(kind::ENTRY, kind::ENTRY) => found.push(What::Names),
            FileKind::Symlink if is_lost(kind::TARGET, kind::TARGET) => found.push(What::Target),
            FileKind::Regular => found.extend(self.lost_bytes(&inode).map(What::Bytes)),
            _ => {}
        }
        if has_attributes && (is_lost(kind::XATTR, kind::XATTR) || is_lost(kind::ACL, kind::ACL)) {
            found.push(What::Attributes);
        }
        if !found.is_empty() {
            self.lost.insert(ino, found);
        }
        Ok(())
    }

    /// Returns the ranges of bytes of a file that cannot be read; `None` if there are none.
    fn lost_bytes(&self, inode: &Inode) -> Option<Vec<(u64, u64)>> {
        let (object, page_bytes) = (inode.object, u64::from(inode.recordsize));
        if object == 0 || page_bytes == 0 {
            return None;
        }
        let end = inode.size.div_ceil(page_bytes);
        let pages = self.unreadable.pages.get(&object).into_iter().flatten().copied();
        let unknown = self.unreadable.within(Key::page(object, 0), Key::page(object, end));
        // The stretches are cut to these bounds, so both of their ends are pages of this object.
        let unknown = unknown.map(|(first, last)| (first.offset, last.offset));
        let stretches: Vec<(u64, u64)> = pages.chain(unknown).collect();
        // Pages that are yet to be freed read as zeros, whatever is stored.
        let shown = |(first, last): (u64, u64)| {
            let parts = inode.freeing.split(first..last).into_iter();
            parts.filter(|(_, is_freed)| !is_freed).map(|(pages, _)| (pages.start, pages.end))
        };
        let mut stretches: Vec<(u64, u64)> = stretches.into_iter().flat_map(shown).collect();
        stretches.sort_unstable();
        let mut bytes: Vec<(u64, u64)> = Vec::new();
        for (first, last) in stretches {
            let (first, last) = (first * page_bytes, last.saturating_mul(page_bytes).min(inode.size));
            match bytes.last_mut() {
                Some(before) if before.1 >= first => before.1 = last.max(before.1),
                _ if first < last => bytes.push((first, last)),
                _ => {}
            }
        }
        Some(bytes).filter(|bytes| !bytes.is_empty())
    }

    fn look_at_entry(&mut self, key: &Key, value: &[u8]) -> Result<()> {
        if key.kind != kind::ENTRY || key.object == 0 {
            return Ok(());
        }
        let (name, payload) = split(key.object, value)?;
        let pointee = Pointee::decode(key.object, payload)?;
        let named = || (key.object, name.to_vec());
        if pointee.kind == FileKind::Directory {
            self.dirs.insert(pointee.ino, named());
        }
        if self.unreadable.has(&Inode::key(pointee.ino)) {
            self.lost.insert(pointee.ino, vec![What::Inode]);
        }
        if self.lost.contains_key(&pointee.ino) {
            self.names.entry(pointee.ino).or_insert_with(named);
        }
        Ok(())
    }

    fn path(&self, ino: u64) -> Vec<u8> {
        let mut parts: Vec<&[u8]> = Vec::new();
        let unnamed;
        let (mut at, mut name) = (ino, self.names.get(&ino));
        loop {
            if at == Ino::ROOT.0 {
                break;
            }
            // More names than directories would be a circle.
            let Some((dir, part)) = name.filter(|_| parts.len() <= self.dirs.len()) else {
                unnamed = format!("(inode {at})");
                parts.push(unnamed.as_bytes());
                break;
            };
            parts.push(part);
            (at, name) = (*dir, self.dirs.get(dir));
        }
        parts.reverse();
        parts.join(&b'/')
    }
}
