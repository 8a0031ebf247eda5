//! Checks that the invariants hold of what a dataset stores, for `pagefold check`.
//!
//! The walk trusts no count and no name. It goes over the map once and counts; then it compares each inode with what
//! was counted, and follows parents of directories up to the root. Memory: some 250 bytes per inode.

use std::collections::{BTreeMap, BTreeSet};

use pagefold_engine::dataset::Dataset;
use pagefold_engine::types::Key;

use crate::acl::{Acl, Which};
use crate::codec::{COUNTER_KEY, HEADER_KEY, Header, Inode, Pointee, decode_counter, flag, kind};
use crate::dir::entry_bytes;
use crate::error::{FsError, Result};
use crate::named::{Places, is_displaced, split};
use crate::types::{FileKind, Ino};

/// Number of entries fetched at once.
pub(crate) const BATCH: usize = 1024;
/// Largest number of problems that are reported one by one; more are only counted.
const PROBLEMS_MAX: usize = 1000;

/// Findings of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Number of inodes, orphans included.
    pub inodes: u64,
    /// Number of directories among them.
    pub directories: u64,
    /// Number of directory entries.
    pub entries: u64,
    /// Number of extended attributes and ACLs.
    pub xattrs: u64,
    /// Number of unlinked inodes, of data objects without a file (also those being filled), and of files with pages
    /// that are yet to be freed: no damage.
    pub orphans: u64,
    /// Stored bytes of files' pages.
    pub stored_bytes: u64,
    /// The first thousand problems, each naming its inode.
    pub problems: Vec<String>,
    /// Number of problems.
    pub problem_count: u64,
}

impl Report {
    /// Returns true if no problem was found.
    pub fn is_clean(&self) -> bool {
        self.problem_count == 0
    }

    fn problem(&mut self, text: String) {
        self.problem_count += 1;
        if self.problems.len() < PROBLEMS_MAX {
            self.problems.push(text);
        }
    }
}

/// Facts that the walk saw of one inode.
#[derive(Default)]
struct Seen {
    inode: Option<Inode>,
    names: u64,
    /// Directory of the last name that was seen, and below it the kind that this name has.
    dir: u64,
    named_kind: Option<FileKind>,
    entries: u64,
    displaced: u64,
    entry_bytes: u64,
    subdirs: u64,
    xattr_bytes: u64,
    flags: u16,
    has_target: bool,
}

/// Checks the file system in `dataset`, which must not change meanwhile. Damage is reported, not an error.
///
/// Errors: `NotFound` if there is no file system; errors of reading the dataset.
pub fn check(dataset: &dyn Dataset) -> Result<Report> {
    check_with(dataset, None)
}

/// As [`check`]; tests pass other places of names.
pub(crate) fn check_with(dataset: &dyn Dataset, places: Option<Places>) -> Result<Report> {
    let header = Header::decode(&dataset.get(&HEADER_KEY)?.ok_or(FsError::NotFound)?)?;
    let mut walk = Walk {
        dataset,
        places: places.unwrap_or_else(|| Places::new(header.seed)),
        report: Report::default(),
        seen: BTreeMap::new(),
        orphan_inodes: BTreeSet::new(),
        orphan_data: BTreeSet::new(),
        freeing: BTreeSet::new(),
        filling: BTreeSet::new(),
        codecs: BTreeMap::new(),
        counter: 0,
    };
    walk.collect()?;
    walk.compare()?;
    walk.reach();
    Ok(walk.report)
}

struct Walk<'d> {
    dataset: &'d dyn Dataset,
    places: Places,
    report: Report,
    seen: BTreeMap<u64, Seen>,
    orphan_inodes: BTreeSet<u64>,
    orphan_data: BTreeSet<u64>,
    freeing: BTreeSet<u64>,
    filling: BTreeSet<u64>,
    /// Stored codecs by object.
    codecs: BTreeMap<u64, Vec<u8>>,
    counter: u64,
}

impl Walk<'_> {
    /// Goes over every key once.
    fn collect(&mut self) -> Result<()> {
        let (mut from, end) = (Key::new(0, 0, 0), Key::new(u64::MAX, Key::ENGINE_KINDS, 0));
        loop {
            let batch = self.dataset.range(&from, &end, BATCH)?;
            for (key, value) in &batch {
                if let Err(error) = self.visit(key, value) {
                    self.report.problem(error.to_string());
                }
            }
            match batch.last() {
                Some((last, _)) if batch.len() == BATCH => from = after(last),
                _ => return Ok(()),
            }
        }
    }

    fn visit(&mut self, key: &Key, value: &[u8]) -> Result<()> {
        match (key.object, key.kind) {
            (_, Key::ENGINE_KINDS..) | (0, kind::HEADER) => {}
            (0, kind::COUNTER) if *key == COUNTER_KEY => self.counter = decode_counter(value)?,
            (0, kind::ORPHAN_INODE) => drop(self.orphan_inodes.insert(key.offset)),
            (0, kind::ORPHAN_DATA) => drop(self.orphan_data.insert(key.offset)),
            (0, kind::FREEING) => drop(self.freeing.insert(key.offset)),
            (0, kind::FILLING) => drop(self.filling.insert(key.offset)),
            (0, _) => self.report.problem(format!("unknown key {key:?}")),
            (ino, kind::INODE) if key.offset == 0 => {
                self.report.inodes += 1;
                let inode = Inode::decode(ino, value)?;
                self.report.directories += u64::from(inode.kind == FileKind::Directory);
                self.seen.entry(ino).or_default().inode = Some(inode);
            }
            (ino, kind::ENTRY) => self.visit_entry(ino, key.offset, value)?,
            (ino, kind::XATTR) => {
                let (name, _) = split(ino, value)?;
                self.report.xattrs += 1;
                self.check_place(ino, key.offset, name);
                let seen = self.seen.entry(ino).or_default();
                seen.xattr_bytes += name.len() as u64 + 1;
                if name == crate::xattr::CAPABILITY {
                    seen.flags |= flag::CAPS;
                }
            }
            (ino, kind::ACL) if key.offset <= 1 => {
                self.report.xattrs += 1;
                let which = if key.offset == 0 { Which::Access } else { Which::Default };
                self.seen.entry(ino).or_default().flags |= which.flag();
                Acl::decode(value)?;
            }
            (object, Key::COMPRESSION) if key.offset == 0 => {
                self.codecs.insert(object, value.to_vec());
            }
            (ino, kind::TARGET) if key.offset == 0 => self.seen.entry(ino).or_default().has_target = true,
            _ => self.report.problem(format!("unknown key {key:?}")),
        }
        Ok(())
    }

    fn visit_entry(&mut self, dir: u64, place: u64, value: &[u8]) -> Result<()> {
        let (name, payload) = split(dir, value)?;
        let pointee = Pointee::decode(dir, payload)?;
        self.report.entries += 1;
        self.check_place(dir, place, name);
        let target = self.seen.entry(pointee.ino).or_default();
        target.names += 1;
        target.dir = dir;
        target.named_kind = Some(pointee.kind);
        let here = self.seen.entry(dir).or_default();
        here.entries += 1;
        here.displaced += u64::from(is_displaced(place));
        here.entry_bytes += entry_bytes(name);
        here.subdirs += u64::from(pointee.kind == FileKind::Directory);
        Ok(())
    }

    fn check_place(&mut self, ino: u64, place: u64, name: &[u8]) {
        let first = self.places.first(name);
        if !(first..first + (1 << crate::limits::SLOT_BITS)).contains(&place) {
            let name = name.escape_ascii();
            self.report.problem(format!("inode {ino}: the name {name} is not where it is looked for"));
        }
    }

    /// Compares each inode with what was counted.
    fn compare(&mut self) -> Result<()> {
        let mut objects = BTreeMap::new();
        let (orphan_data, filling) = (&self.orphan_data, &self.filling);
        let is_listed = |object: &u64| orphan_data.contains(object) || filling.contains(object);
        for (&ino, seen) in &self.seen {
            let Some(inode) = &seen.inode else {
                let what = if seen.names > 0 {
                    "is named but does not exist"
                } else {
                    "has values but does not exist"
                };
                self.report.problem(format!("inode {ino} {what}"));
                continue;
            };
            if inode.freeing.is_empty() == self.freeing.contains(&ino) {
                let listed = if inode.freeing.is_empty() { "has none" } else { "is not listed" };
                self.report.problem(format!("inode {ino}: of those with pages to be freed it {listed}"));
            }
            for text in differences(ino, seen, inode, self.orphan_inodes.contains(&ino), self.counter) {
                self.report.problem(format!("inode {ino}: {text}"));
            }
            if inode.kind == FileKind::Regular && inode.object != 0 {
                if let Some(other) = objects.insert(inode.object, ino) {
                    self.report.problem(format!("inodes {other} and {ino} have the same data object"));
                }
                if inode.object >= self.counter || is_listed(&inode.object) {
                    self.report.problem(format!("inode {ino}: its data object {} is free", inode.object));
                }
                let codec = inode.compression.map(|codec| vec![codec.to_stored()]);
                if self.codecs.remove(&inode.object) != codec {
                    self.report
                        .problem(format!("inode {ino}: its pages are coded in another way than it says"));
                }
                let mut page = inode.size.div_ceil(u64::from(inode.recordsize));
                while let Some(found) = self.dataset.next_data(inode.object, page)? {
                    let Some(end) = inode.freeing.end_of(found) else {
                        self.report.problem(format!("inode {ino}: page {found} is stored behind its end"));
                        break;
                    };
                    page = end;
                }
                self.report.stored_bytes += self.dataset.usage(inode.object)?.stored_bytes;
            }
        }
        for (list, what) in
            [(&self.orphan_inodes, "an orphan"), (&self.freeing, "one with pages to be freed")]
        {
            for ino in list {
                if self.seen.get(ino).is_none_or(|seen| seen.inode.is_none()) {
                    self.report.problem(format!("inode {ino} is listed as {what} but does not exist"));
                }
            }
        }
        for object in self.codecs.keys().filter(|object| !filling.contains(object)) {
            self.report.problem(format!("object {object} has a codec and belongs to no file"));
        }
        let lists = [&self.orphan_inodes, &self.orphan_data, &self.freeing, &self.filling];
        self.report.orphans = lists.iter().map(|list| list.len() as u64).sum();
        Ok(())
    }

    /// Checks that the parents of every directory that has a name lead up to the root.
    fn reach(&mut self) {
        let parent = |ino: u64| {
            let inode = self.seen.get(&ino)?.inode.as_ref()?;
            (inode.kind == FileKind::Directory).then_some(inode.object)
        };
        if parent(Ino::ROOT.0) != Some(Ino::ROOT.0) {
            self.report.problem("the root directory is missing or is not its own parent".to_owned());
            return;
        }
        // Directories that were passed, and if they lead up to the root. One that is met again on the way up does not: it
        // lies below itself. So each is passed once, also if a forged image has many circles.
        let mut passed = BTreeMap::from([(Ino::ROOT.0, true)]);
        let mut lost = Vec::new();
        for (&ino, seen) in self.seen.iter().filter(|(_, seen)| seen.names > 0) {
            let mut path = Vec::new();
            let mut at = ino;
            while let Some(up) = parent(at).filter(|_| !passed.contains_key(&at)) {
                passed.insert(at, false);
                path.push(at);
                at = up;
            }
            if passed.get(&at) == Some(&true) {
                passed.extend(path.into_iter().map(|at| (at, true)));
            } else if seen.inode.as_ref().is_some_and(|inode| inode.kind == FileKind::Directory) {
                lost.push(ino);
            }
        }
        for ino in lost {
            self.report.problem(format!("directory {ino} cannot be reached from the root"));
        }
    }
}

/// Returns in words the differences between an inode and what was counted.
fn differences(ino: u64, seen: &Seen, inode: &Inode, is_orphan: bool, counter: u64) -> Vec<String> {
    let mut found = Vec::new();
    let mut differ = |what: &str, says: u64, counted: u64| {
        if says != counted {
            found.push(format!("{what}: it says {says}, counted {counted}"));
        }
    };
    let is_dir = inode.kind == FileKind::Directory;
    differ("kind", u64::from(inode.kind.d_type()), u64::from(seen.named_kind.unwrap_or(inode.kind).d_type()));
    if is_dir {
        let named = u64::from(ino == Ino::ROOT.0 || seen.names == 1);
        differ("links", u64::from(inode.nlink), (2 + seen.subdirs) * named);
        differ("entries", inode.entries, seen.entries);
        differ("displaced entries", u64::from(inode.displaced), seen.displaced);
        differ("bytes of entries", inode.size, seen.entry_bytes);
        let parent = if seen.names > 0 { seen.dir } else { inode.object };
        differ("parent", inode.object, parent);
    } else {
        differ("links", u64::from(inode.nlink), seen.names);
        differ("entries of what is no directory", 0, seen.entries);
    }
    differ("on the list of orphans", u64::from(is_orphan), u64::from(inode.nlink == 0));
    differ("bytes of attributes' names", u64::from(inode.xattr_bytes), seen.xattr_bytes);
    let flags = flag::ACL_ACCESS | flag::ACL_DEFAULT | flag::CAPS;
    differ("attribute flags", u64::from(inode.flags & flags), u64::from(seen.flags));
    differ("link target", u64::from(inode.kind == FileKind::Symlink), u64::from(seen.has_target));
    differ("below the inode counter", 1, u64::from(ino < counter));
    found
}

/// Returns the key that follows `key`.
pub(crate) fn after(key: &Key) -> Key {
    match key.offset.checked_add(1) {
        Some(offset) => Key { offset, ..*key },
        None => Key::new(key.object, key.kind.saturating_add(1), 0),
    }
}
