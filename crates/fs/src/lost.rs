//! What of a damaged file system cannot be read, as paths and bytes: the list behind `pagefold check`.
//!
//! Two passes over what can be read of the map: inodes, for what of theirs is lost; entries, for paths, and for names whose inode is
//! lost. Memory: a name per directory, and what is listed.

use std::collections::BTreeMap;

use pagefold_engine::dataset::Dataset;
use pagefold_engine::pool::Unreadable;
use pagefold_engine::types::Key;

use crate::check::{BATCH, after};
use crate::codec::{Inode, Pointee, flag, kind};
use crate::error::Result;
use crate::named::split;
use crate::types::{FileKind, Ino};

/// What of an inode cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// The inode, and with it all that it has; of a directory, all that is below it.
    Inode,
    /// Bytes of a file: first, and one past the last; ascending and apart.
    Bytes(Vec<(u64, u64)>),
    /// Some names in a directory, and what they name; it is not told how many.
    Names,
    /// Where a symbolic link leads.
    Target,
    /// Extended attributes or ACLs.
    Attributes,
}

/// Something that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost {
    /// Its inode.
    pub ino: u64,
    /// Its path from the root directory, without a slash before; begins with `(inode N)` where the names up to there are lost.
    pub path: Vec<u8>,
    /// What of it.
    pub what: What,
}

/// Tells `each` of all that is lost of the file system in `dataset`, of which `unreadable` tells what cannot be read.
///
/// Errors: what the dataset cannot read beside that; inodes and names that are not well formed.
pub fn list(dataset: &dyn Dataset, unreadable: &Unreadable, each: &mut dyn FnMut(&Lost)) -> Result<()> {
    if unreadable.is_empty() {
        return Ok(());
    }
    let mut search =
        Search { dataset, unreadable, lost: BTreeMap::new(), names: BTreeMap::new(), dirs: BTreeMap::new() };
    search.each_value(Search::look_at_inode)?;
    search.each_value(Search::look_at_entry)?;
    if unreadable.has(&Inode::key(Ino::ROOT.0)) {
        search.lost.insert(Ino::ROOT.0, vec![What::Inode]);
    }
    for (ino, all) in &search.lost {
        let path = search.path(*ino);
        all.iter().for_each(|what| each(&Lost { ino: *ino, path: path.clone(), what: what.clone() }));
    }
    Ok(())
}

/// A name: the directory, and the name in it.
type Name = (u64, Vec<u8>);

struct Search<'a> {
    dataset: &'a dyn Dataset,
    unreadable: &'a Unreadable,
    lost: BTreeMap<u64, Vec<What>>,
    /// One name of each inode of which something is lost, and of each directory.
    names: BTreeMap<u64, Name>,
    dirs: BTreeMap<u64, Name>,
}

impl Search<'_> {
    /// Goes over every value that can be read.
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

    /// Bytes of a file that cannot be read.
    fn lost_bytes(&self, inode: &Inode) -> Option<Vec<(u64, u64)>> {
        let (object, page_bytes) = (inode.object, u64::from(inode.recordsize));
        if object == 0 || page_bytes == 0 {
            return None;
        }
        let end = inode.size.div_ceil(page_bytes);
        let pages = self.unreadable.pages.get(&object).into_iter().flatten().copied();
        let unknown = self.unreadable.within(Key::page(object, 0), Key::page(object, end));
        // Within these bounds, only the end can be of another object or kind: then it is behind all of the pages.
        let unknown = unknown.map(|(first, last)| (first.offset, last.offset));
        let stretches: Vec<(u64, u64)> = pages.chain(unknown).collect();
        // What is to be freed reads as zeros, whatever is there.
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
