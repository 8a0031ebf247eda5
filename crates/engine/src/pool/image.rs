//! The stored form of the catalogue, in which a checkpoint stores datasets and snapshots.
//!
//! Versions lie in pages, each with those of [`PAGE_VERSIONS`] consecutive numbers: a checkpoint writes the pages that
//! have changed. A page is a stream, split into records of kind `catalogue`. The head tells where these are. It is a
//! stream, too, split into records of kind `root`, which the root lists and each checkpoint writes:
//!
//! | field | size |
//! |---|---|
//! | magic `PFcata` and version 2 | 8 |
//! | next number of a version, next number of a dead list, number of pages | 3 varints |
//! | per page: number - previous number, number of records, their places as in the root | |
//! | number of unreferenced items | varint |
//! | unreferenced items | |
//!
//! A page has, for each version, its number less the first number that the page may have (1 byte), and its fields.
//! These fields and those of unreferenced items are in docs/FORMAT.md.

use std::collections::{BTreeMap, BTreeSet};

use super::root::{PlacedRecord, put_lists, put_ptr, read_lists, read_ptr};
use crate::dataset::redo::TEXT_BYTES_MAX;
use crate::dataset::{Bucket, DeadList, SPACE_BYTES_MAX};
use crate::limits::RECORD_BYTES_MAX;
use crate::wire::{Reader, put_bytes, put_varint};
use crate::{Error, Key, Ptr, Result};

const MAGIC: [u8; 8] = *b"PFcata\x02\0";

/// Consecutive numbers of versions that share a page.
const PAGE_VERSIONS: u64 = 32;

/// Kinds of versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum VersionKind {
    /// A dataset, which changes.
    Dataset,
    /// A snapshot of the dataset `of`.
    Snapshot {
        /// Number of its dataset.
        of: u64,
        /// See [`Ancestor`].
        bound: u64,
        /// See [`Ancestor`].
        node_bound: Option<u64>,
    },
}

/// A dataset or snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct VersionImage {
    pub(super) kind: VersionKind,
    pub(super) name: String,
    pub(super) prev: u64,
    pub(super) created: u64,
    pub(super) properties: BTreeMap<String, String>,
    pub(super) holds: BTreeMap<String, u64>,
    pub(super) root: Option<Ptr>,
    pub(super) page_bytes: u64,
    pub(super) node_bytes: u64,
    pub(super) fresh_bytes: u64,
    pub(super) dead: DeadList,
}

/// Stored form of [`super::catalogue::Unreferenced`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum UnreferencedImage {
    /// See [`super::catalogue::Unreferenced`].
    Records { bucket: Bucket, held: bool },
    /// See [`super::catalogue::Unreferenced`].
    List { id: u64 },
    /// See [`super::catalogue::Unreferenced`].
    Tree { root: Option<Ptr>, bound: u64, node_bound: u64, cursor: Option<Key> },
}

/// The catalogue as of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Image {
    pub(super) next_id: u64,
    pub(super) next_list: u64,
    pub(super) versions: BTreeMap<u64, VersionImage>,
    pub(super) unreferenced: Vec<UnreferencedImage>,
}

impl Image {
    /// Returns the catalogue of a new pool: one dataset, the pool's own, which is empty.
    pub(super) fn of_a_new_pool(dataset: u64, created: u64) -> Self {
        let version = VersionImage {
            kind: VersionKind::Dataset,
            name: String::new(),
            prev: 0,
            created,
            properties: BTreeMap::new(),
            holds: BTreeMap::new(),
            root: None,
            page_bytes: 0,
            node_bytes: 0,
            fresh_bytes: 0,
            dead: DeadList::default(),
        };
        Self {
            next_id: dataset + 1,
            next_list: 1,
            versions: BTreeMap::from([(dataset, version)]),
            unreferenced: Vec::new(),
        }
    }

    /// Returns the number of the page that a version is on.
    pub(super) fn page_of(id: u64) -> u64 {
        id / PAGE_VERSIONS
    }

    /// Returns the stored forms of all pages, by number.
    pub(super) fn encode_pages(&self) -> BTreeMap<u64, Vec<u8>> {
        let mut pages: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
        for (id, version) in &self.versions {
            let out = pages.entry(Self::page_of(*id)).or_default();
            out.push((id % PAGE_VERSIONS) as u8);
            version.encode(out);
        }
        pages
    }

    /// Returns the head of the stored form, with the places of the pages, in pieces that fit records.
    pub(super) fn encode_head(&self, pages: &[(u64, Vec<PlacedRecord>)]) -> Vec<Vec<u8>> {
        let mut out = MAGIC.to_vec();
        for value in [self.next_id, self.next_list, pages.len() as u64] {
            put_varint(&mut out, value);
        }
        let mut previous = 0;
        for (page, records) in pages {
            put_varint(&mut out, page - previous);
            put_lists(&mut out, records);
            previous = *page;
        }
        put_varint(&mut out, self.unreferenced.len() as u64);
        self.unreferenced.iter().for_each(|kept| kept.encode(&mut out));
        out.chunks(RECORD_BYTES_MAX).map(<[u8]>::to_vec).collect()
    }

    /// Puts the head and the pages of a stored form together.
    ///
    /// # Errors
    /// [`Error::Corrupt`].
    pub(super) fn of(head: CatalogueHead, pages: &BTreeMap<u64, Vec<u8>>) -> Result<Self> {
        let mut lists = BTreeSet::new();
        let mut once = |list: u64| match list == 0 || lists.insert(list) {
            true => Ok(()),
            false => Err(Error::corrupt(WHAT, "two dead lists have the same buckets or blocks")),
        };
        let mut versions = BTreeMap::new();
        for (page, bytes) in pages {
            for (id, version) in decode_page(*page, bytes)? {
                once(version.dead.id)?;
                versions.insert(id, version);
            }
        }
        for kept in &head.unreferenced {
            once(match kept {
                UnreferencedImage::Records { bucket, .. } => bucket.chain.map_or(0, |chain| chain.first.id),
                UnreferencedImage::List { id } => *id,
                UnreferencedImage::Tree { .. } => 0,
            })?;
        }
        Ok(Self {
            next_id: head.next_id,
            next_list: head.next_list,
            versions,
            unreferenced: head.unreferenced,
        })
    }
}

/// Decodes the versions of a stored page.
fn decode_page(page: u64, bytes: &[u8]) -> Result<Vec<(u64, VersionImage)>> {
    let mut reader = Reader::new(bytes, "page of the catalogue");
    let first = page.checked_mul(PAGE_VERSIONS).ok_or_else(|| reader.bad("its number is out of range"))?;
    let mut versions = Vec::new();
    let mut next = 0;
    while reader.remaining() > 0 {
        let at = u64::from(reader.u8()?);
        if !(next..PAGE_VERSIONS).contains(&at) {
            return Err(reader.bad("its versions are out of order"));
        }
        next = at + 1;
        versions.push((first + at, VersionImage::decode(&mut reader)?));
    }
    Ok(versions)
}

/// The part of the catalogue that each checkpoint writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CatalogueHead {
    pub(super) next_id: u64,
    pub(super) next_list: u64,
    /// Number of each page, ascending, and its records.
    pub(super) pages: Vec<(u64, Vec<PlacedRecord>)>,
    pub(super) unreferenced: Vec<UnreferencedImage>,
}

impl CatalogueHead {
    /// Reads the stored form from one piece that has all of it.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn decode(bytes: &[u8]) -> Result<Self> {
        let mut whole = Some(bytes.to_vec());
        Self::read(&mut || Ok(whole.take()))
    }

    /// Reads the stored form from its pieces, which `next` returns one by one. More are asked for only as those before
    /// are found to be right, and no more than twice as many bytes: a form that consists of holes of a sparse file ends
    /// there.
    pub(super) fn read(next: &mut dyn FnMut() -> Result<Option<Vec<u8>>>) -> Result<Self> {
        let mut pieces = Pieces { next, bytes: Vec::new(), at: 0, ended: false };
        let (next_id, next_list, count) = pieces.item(&mut |reader| {
            if reader.take(8)? != MAGIC {
                return Err(reader.bad("it has another magic"));
            }
            Ok((reader.varint()?, reader.varint()?, reader.varint()?))
        })?;
        let mut pages: Vec<(u64, Vec<PlacedRecord>)> = Vec::new();
        for _ in 0..count {
            let last = pages.last().map(|(page, _)| *page);
            pages.push(pieces.item(&mut |reader| {
                let step = reader.varint()?;
                let page =
                    last.unwrap_or(0).checked_add(step).filter(|page| last.is_none_or(|last| last < *page));
                let page = page.ok_or_else(|| reader.bad("its pages are out of order"))?;
                let records = read_lists(reader)?;
                if records.is_empty() {
                    return Err(reader.bad("a page has no records"));
                }
                Ok((page, records))
            })?);
        }
        let mut unreferenced = Vec::new();
        for _ in 0..pieces.item(&mut |reader| reader.varint())? {
            unreferenced.push(pieces.item(&mut UnreferencedImage::decode)?);
        }
        pieces.end()?;
        Ok(Self { next_id, next_list, pages, unreferenced })
    }
}

const WHAT: &str = "catalogue of the pool";

/// A stored form that comes in pieces.
struct Pieces<'a> {
    next: &'a mut dyn FnMut() -> Result<Option<Vec<u8>>>,
    /// Bytes that have come; those before `at` are decoded.
    bytes: Vec<u8>,
    at: usize,
    ended: bool,
}

impl Pieces<'_> {
    /// Decodes the next item. Where that goes on beyond the bytes that are there, as many more are asked for: so the
    /// whole is decoded twice at most.
    fn item<T>(&mut self, decode: &mut dyn FnMut(&mut Reader<'_>) -> Result<T>) -> Result<T> {
        loop {
            let mut reader = Reader::new(self.bytes.get(self.at..).unwrap_or_default(), WHAT);
            match decode(&mut reader) {
                Err(_) if reader.ran_out() && !self.ended => {}
                done => {
                    self.at = self.bytes.len() - reader.remaining();
                    return done;
                }
            }
            self.bytes.drain(..self.at);
            self.at = 0;
            let wanted = 2 * self.bytes.len();
            while !self.ended && self.bytes.len() <= wanted {
                match (self.next)()? {
                    Some(piece) => self.bytes.extend_from_slice(&piece),
                    None => self.ended = true,
                }
            }
        }
    }

    fn end(mut self) -> Result<()> {
        if self.at == self.bytes.len() && (self.ended || (self.next)()?.is_none()) {
            return Ok(());
        }
        self.ended = true;
        Err(Error::corrupt(WHAT, "it goes on after its end"))
    }
}

impl VersionImage {
    fn encode(&self, out: &mut Vec<u8>) {
        match self.kind {
            VersionKind::Dataset => out.push(1),
            VersionKind::Snapshot { of, bound, node_bound } => {
                out.push(2);
                for value in [of, bound, node_bound.map_or(0, |bound| bound + 1)] {
                    put_varint(out, value);
                }
            }
        }
        put_bytes(out, self.name.as_bytes());
        put_varint(out, self.prev);
        put_varint(out, self.created);
        put_ptr(out, self.root);
        for value in [self.page_bytes, self.node_bytes, self.fresh_bytes, self.properties.len() as u64] {
            put_varint(out, value);
        }
        for (name, value) in &self.properties {
            put_bytes(out, name.as_bytes());
            put_bytes(out, value.as_bytes());
        }
        put_varint(out, self.holds.len() as u64);
        for (tag, created) in &self.holds {
            put_bytes(out, tag.as_bytes());
            put_varint(out, *created);
        }
        self.dead.encode(out);
    }

    fn decode(reader: &mut Reader<'_>) -> Result<Self> {
        let kind = match reader.u8()? {
            1 => VersionKind::Dataset,
            2 => VersionKind::Snapshot {
                of: reader.varint()?,
                bound: reader.varint()?,
                node_bound: reader.varint()?.checked_sub(1),
            },
            _ => return Err(reader.bad("a version is of an unknown kind")),
        };
        let (name, prev, created) = (read_text(reader)?, reader.varint()?, reader.varint()?);
        let root = read_ptr(reader)?;
        let (page_bytes, node_bytes, fresh_bytes) = (reader.varint()?, reader.varint()?, reader.varint()?);
        if page_bytes.max(node_bytes).max(fresh_bytes) > SPACE_BYTES_MAX {
            return Err(reader.bad("a version has more than any pool holds"));
        }
        let properties = read_map(reader, &mut |reader| Ok((read_text(reader)?, read_text(reader)?)))?;
        let holds = read_map(reader, &mut |reader| Ok((read_text(reader)?, reader.varint()?)))?;
        let dead = DeadList::decode(reader)?;
        Ok(Self {
            kind,
            name,
            prev,
            created,
            properties,
            holds,
            root,
            page_bytes,
            node_bytes,
            fresh_bytes,
            dead,
        })
    }
}

impl UnreferencedImage {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Records { bucket, held } => {
                out.push(if *held { 2 } else { 1 });
                bucket.encode(out);
            }
            Self::List { id } => {
                out.push(5);
                put_varint(out, *id);
            }
            Self::Tree { root, bound, node_bound, cursor } => {
                out.push(if cursor.is_some() { 4 } else { 3 });
                put_ptr(out, *root);
                put_varint(out, *bound);
                put_varint(out, *node_bound);
                if let Some(key) = cursor {
                    put_varint(out, key.object);
                    out.push(key.kind);
                    put_varint(out, key.offset);
                }
            }
        }
    }

    fn decode(reader: &mut Reader<'_>) -> Result<Self> {
        Ok(match reader.u8()? {
            code @ (1 | 2) => Self::Records { bucket: Bucket::decode(reader)?, held: code == 2 },
            code @ (3 | 4) => {
                let (root, bound, node_bound) = (read_ptr(reader)?, reader.varint()?, reader.varint()?);
                let cursor = if code == 4 {
                    Some(Key { object: reader.varint()?, kind: reader.u8()?, offset: reader.varint()? })
                } else {
                    None
                };
                Self::Tree { root, bound, node_bound, cursor }
            }
            5 => Self::List { id: reader.varint()? },
            _ => return Err(reader.bad("what is unreferenced is of an unknown kind")),
        })
    }
}

/// Reads entries of a map, which ascend.
fn read_map<K: Ord, V>(
    reader: &mut Reader<'_>,
    entry: &mut dyn FnMut(&mut Reader<'_>) -> Result<(K, V)>,
) -> Result<BTreeMap<K, V>> {
    let mut map = BTreeMap::new();
    for _ in 0..reader.varint()? {
        let (key, value) = entry(reader)?;
        if map.last_key_value().is_some_and(|(last, _)| *last >= key) {
            return Err(reader.bad("names or numbers are out of order"));
        }
        map.insert(key, value);
    }
    Ok(map)
}

fn read_text(reader: &mut Reader<'_>) -> Result<String> {
    let text = String::from_utf8(reader.bytes(TEXT_BYTES_MAX)?.to_vec());
    text.map_err(|_| reader.bad("a text is not UTF-8"))
}

#[cfg(any(test, feature = "fuzzing"))]
use crate::Addr;
#[cfg(any(test, feature = "fuzzing"))]
use crate::dataset::{Chain, Sublist};

#[cfg(any(test, feature = "fuzzing"))]
fn ptr(slot: u32) -> Ptr {
    Ptr { addr: Addr::new(9 + u64::from(slot % 3), slot), len_bytes: 100 + slot }
}

#[cfg(any(test, feature = "fuzzing"))]
impl Image {
    /// Returns the catalogue of which `bytes` are the first page.
    #[cfg(feature = "fuzzing")]
    pub(super) fn of_page(bytes: &[u8]) -> Option<Self> {
        let versions = decode_page(0, bytes).ok()?.into_iter().collect();
        Some(Self { next_id: PAGE_VERSIONS, next_list: 1, versions, unreferenced: Vec::new() })
    }

    /// Returns a catalogue with everything that there is in one.
    pub(super) fn sample() -> Self {
        let mut image = Self::of_a_new_pool(1, 1_700_000_000);
        let Some(mut snapshot) = image.versions.get(&1).cloned() else { return image };
        snapshot.kind = VersionKind::Snapshot { of: 1, bound: 99 << 24, node_bound: Some(100 << 24) };
        snapshot.name = "monday".into();
        snapshot.root = Some(ptr(7));
        snapshot.holds.insert("backup".into(), 1_700_000_001);
        snapshot.properties.insert("note".into(), "before the migration".into());
        (snapshot.page_bytes, snapshot.node_bytes, snapshot.fresh_bytes) = (1 << 40, 1 << 30, 5);
        for slot in 0..30 {
            snapshot.dead.push(u64::from(slot / 10), ptr(slot));
        }
        (snapshot.dead.id, snapshot.dead.buckets) = (9, 2);
        let mut bucket = Bucket::default();
        (0..20).for_each(|slot| bucket.push(ptr(slot)));
        let first = Sublist { id: 11, blocks: 3 };
        let chained = Bucket { records: 2000, chain: Some(Chain { first, last: 12 }), ..bucket.clone() };
        let mut unstored = snapshot.clone();
        unstored.dead.id = 10;
        unstored.kind = VersionKind::Snapshot { of: 1, bound: 99 << 24, node_bound: None };
        image.versions.insert(2, snapshot);
        image.versions.insert(300, unstored);
        let cursor = Some(Key::page(5, 1 << 40));
        image.unreferenced = vec![
            UnreferencedImage::Records { bucket: chained, held: true },
            UnreferencedImage::Records { bucket, held: false },
            UnreferencedImage::List { id: 13 },
            UnreferencedImage::Tree { root: Some(ptr(1)), bound: 3, node_bound: 4, cursor },
            UnreferencedImage::Tree { root: None, bound: 0, node_bound: 0, cursor: None },
        ];
        (image.next_id, image.next_list) = (301, 17);
        image
    }
}

#[cfg(test)]
mod tests;
