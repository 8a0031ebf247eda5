//! The stored form of the catalogue: what a checkpoint says of datasets and snapshots.
//!
//! A stream, cut into records of kind `root`, which the root lists. Each checkpoint writes all of it: it is short beside what
//! checkpoints write of trees, and has to be as of the cut, with the places that the checkpoint finds out later.
//!
//! | field | size |
//! |---|---|
//! | magic `PFcata` and version 1 | 8 |
//! | next number of a version, next number of a sublist, number of versions | 3 varints |
//! | versions, ascending by number | |
//! | number of what is dying | varint |
//! | what is dying | |
//!
//! The fields of a version and of what is dying are in docs/FORMAT.md.

use std::collections::{BTreeMap, BTreeSet};

use super::catalogue::Kind;
use crate::dataset::redo::TEXT_BYTES_MAX;
use crate::dataset::{Bucket, DeadList, SPACE_BYTES_MAX};
use crate::limits::RECORD_BYTES_MAX;
use crate::wire::{Reader, put_bytes, put_varint};
use crate::{Addr, Error, Key, Ptr, Result};

const MAGIC: [u8; 8] = *b"PFcata\x01\0";

/// A dataset or snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct VersionImage {
    pub(super) kind: Kind,
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

/// What is dying.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kept {
    /// See [`super::catalogue::Dying`].
    Records { bucket: Bucket, held: bool },
    /// See [`super::catalogue::Dying`].
    Tree { root: Option<Ptr>, bound: u64, node_bound: u64, cursor: Option<Key> },
}

/// The catalogue as of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Image {
    pub(super) next_id: u64,
    pub(super) next_list: u64,
    pub(super) versions: BTreeMap<u64, VersionImage>,
    pub(super) dying: Vec<Kept>,
}

impl Image {
    /// The catalogue of a new pool: one dataset, the pool's own, which is empty.
    pub(super) fn of_a_new_pool(dataset: u64, created: u64) -> Self {
        let version = VersionImage {
            kind: Kind::Dataset,
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
            dying: Vec::new(),
        }
    }

    /// The stored form, in pieces that fit records.
    pub(super) fn encode(&self) -> Vec<Vec<u8>> {
        let mut out = MAGIC.to_vec();
        for value in [self.next_id, self.next_list, self.versions.len() as u64] {
            put_varint(&mut out, value);
        }
        for (id, version) in &self.versions {
            put_varint(&mut out, *id);
            version.encode(&mut out);
        }
        put_varint(&mut out, self.dying.len() as u64);
        self.dying.iter().for_each(|kept| kept.encode(&mut out));
        out.chunks(RECORD_BYTES_MAX).map(<[u8]>::to_vec).collect()
    }

    /// Reads the stored form, all of which is in one piece.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn decode(bytes: &[u8]) -> Result<Self> {
        let mut whole = Some(bytes.to_vec());
        Self::read(&mut || Ok(whole.take()))
    }

    /// Reads the stored form from its pieces, which `next` gives one by one. Pieces are asked for as what came before is found to be right, and no
    /// more than twice as much as that: what is made of holes of a sparse file ends there.
    pub(super) fn read(next: &mut dyn FnMut() -> Result<Option<Vec<u8>>>) -> Result<Self> {
        let mut pieces = Pieces { next, bytes: Vec::new(), at: 0, ended: false };
        let (next_id, next_list, count) = pieces.item(&mut |reader| {
            if reader.take(8)? != MAGIC {
                return Err(reader.bad("it has another magic"));
            }
            Ok((reader.varint()?, reader.varint()?, reader.varint()?))
        })?;
        let mut sublists = BTreeSet::new();
        let mut once = |bucket: &Bucket| bucket.lists.iter().all(|list| sublists.insert(list.id));
        let twice = || Error::corrupt(WHAT, "two dead lists have the same blocks");
        let mut versions = BTreeMap::new();
        let mut last = 0;
        for _ in 0..count {
            let (id, version) =
                pieces.item(&mut |reader| Ok((reader.varint()?, VersionImage::decode(reader)?)))?;
            if id <= last {
                return Err(Error::corrupt(WHAT, "versions are out of order"));
            }
            if !version.dead.buckets.values().all(&mut once) {
                return Err(twice());
            }
            last = id;
            versions.insert(id, version);
        }
        let mut dying = Vec::new();
        for _ in 0..pieces.item(&mut |reader| reader.varint())? {
            let kept = pieces.item(&mut Kept::decode)?;
            if matches!(&kept, Kept::Records { bucket, .. } if !once(bucket)) {
                return Err(twice());
            }
            dying.push(kept);
        }
        pieces.end()?;
        Ok(Self { next_id, next_list, versions, dying })
    }
}

const WHAT: &str = "catalogue of the pool";

/// A stored form that comes in pieces.
struct Pieces<'a> {
    next: &'a mut dyn FnMut() -> Result<Option<Vec<u8>>>,
    /// What has come, from the first byte on that is not decoded.
    bytes: Vec<u8>,
    at: usize,
    ended: bool,
}

impl Pieces<'_> {
    /// Decodes the next item, and asks for as much as there is already where it goes on beyond that: so the whole is decoded twice at most.
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
            Kind::Dataset => out.push(1),
            Kind::Snapshot { of, bound, node_bound } => {
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
        put_varint(out, self.dead.buckets.len() as u64);
        for (birth, bucket) in &self.dead.buckets {
            put_varint(out, *birth);
            bucket.encode(out);
        }
    }

    fn decode(reader: &mut Reader<'_>) -> Result<Self> {
        let kind = match reader.u8()? {
            1 => Kind::Dataset,
            2 => Kind::Snapshot {
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
        let buckets = read_map(reader, &mut |reader| Ok((reader.varint()?, Bucket::decode(reader)?)))?;
        let dead = DeadList { buckets };
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

impl Kept {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Records { bucket, held } => {
                out.push(if *held { 2 } else { 1 });
                bucket.encode(out);
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
            _ => return Err(reader.bad("what is dying is of an unknown kind")),
        })
    }
}

/// Appends a tree's root.
pub(super) fn put_ptr(out: &mut Vec<u8>, ptr: Option<Ptr>) {
    put_varint(out, ptr.map_or(0, |ptr| ptr.len_bytes.into()));
    put_varint(out, ptr.map_or(0, |ptr| ptr.addr.raw()));
}

/// Reads a tree's root.
pub(super) fn read_ptr(reader: &mut Reader<'_>) -> Result<Option<Ptr>> {
    let (len_bytes, raw) = (reader.varint_u32()?, reader.varint()?);
    if len_bytes as usize > RECORD_BYTES_MAX {
        return Err(reader.bad("a tree's root is out of range"));
    }
    Ok(Addr::from_raw(raw).map(|addr| Ptr { addr, len_bytes }))
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
fn ptr(slot: u32) -> Ptr {
    Ptr { addr: Addr::new(9 + u64::from(slot % 3), slot), len_bytes: 100 + slot }
}

#[cfg(any(test, feature = "fuzzing"))]
impl Image {
    /// One with everything that there is in a catalogue.
    pub(super) fn sample() -> Self {
        let mut image = Self::of_a_new_pool(1, 1_700_000_000);
        let Some(mut snapshot) = image.versions.get(&1).cloned() else { return image };
        snapshot.kind = Kind::Snapshot { of: 1, bound: 99 << 24, node_bound: Some(100 << 24) };
        snapshot.name = "monday".into();
        snapshot.root = Some(ptr(7));
        snapshot.holds.insert("backup".into(), 1_700_000_001);
        snapshot.properties.insert("note".into(), "before the migration".into());
        (snapshot.page_bytes, snapshot.node_bytes, snapshot.fresh_bytes) = (1 << 40, 1 << 30, 5);
        for slot in 0..30 {
            snapshot.dead.push(u64::from(slot / 10), ptr(slot));
        }
        let bucket = snapshot.dead.buckets.get(&1).cloned().unwrap_or_default();
        let mut unstored = snapshot.clone();
        unstored.kind = Kind::Snapshot { of: 1, bound: 99 << 24, node_bound: None };
        image.versions.insert(2, snapshot);
        image.versions.insert(300, unstored);
        let cursor = Some(Key::page(5, 1 << 40));
        image.dying = vec![
            Kept::Records { bucket: bucket.clone(), held: true },
            Kept::Records { bucket, held: false },
            Kept::Tree { root: Some(ptr(1)), bound: 3, node_bound: 4, cursor },
            Kept::Tree { root: None, bound: 0, node_bound: 0, cursor: None },
        ];
        (image.next_id, image.next_list) = (301, 17);
        image
    }
}

#[cfg(test)]
mod tests;
