//! Packs: blocks, a directory of them, and the names that distinguish packs.

use std::fmt;
use std::str::FromStr;

use bytes::Bytes;
use pagefold_engine::wire::{Reader, put_varint};
use rayon::prelude::*;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use crate::block::{BlockRef, Kind};
use crate::error::{Error, Result};
use crate::keys::{Sealer, random};
use crate::limits::{BLOCK_BYTES_MAX, DIRECT_ALIGN_BYTES, PACK_BYTES_MAX};

const MAGIC: [u8; 8] = *b"PFpack\x01\0";
const MAGIC_END: [u8; 8] = *b"PFpend\x01\0";
/// Bytes of a pack's head: magic, repository, pack, checksum.
pub(crate) const HEAD_BYTES: usize = 48;
/// Bytes of a pack's end: length of the directory, number of blocks, magic, checksum.
pub(crate) const TAIL_BYTES: usize = 24;

/// Name of a pack: 128 random bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PackId(pub [u8; 16]);

impl PackId {
    /// The pack that is still being made, and has no name yet.
    pub(crate) const OPEN: Self = Self([0; 16]);

    pub(crate) fn new() -> Result<Self> {
        Ok(Self(random()?))
    }

    pub(crate) fn decode(reader: &mut Reader<'_>) -> pagefold_engine::Result<Self> {
        let mut id = Self::OPEN;
        id.0.copy_from_slice(reader.take(16)?);
        if id == Self::OPEN {
            return Err(reader.bad("a pack has no name"));
        }
        Ok(id)
    }

    /// Returns the object's path in the repository.
    pub fn path(&self) -> String {
        format!("packs/{self}")
    }
}

impl fmt::Display for PackId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for PackId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for PackId {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let number = u128::from_str_radix(text, 16).ok().filter(|_| text.len() == 32).ok_or(())?;
        Ok(Self(number.to_be_bytes()))
    }
}

/// Returns the name to which a seal is bound: repository, kind, object, place.
pub(crate) fn seal_name(repository: &[u8; 16], kind: Kind, object: &[u8; 16], index: u32) -> [u8; 37] {
    let mut name = [0; 37];
    let parts = repository.iter().copied().chain([kind as u8]).chain(object.iter().copied());
    name.iter_mut().zip(parts.chain(index.to_le_bytes())).for_each(|(place, byte)| *place = byte);
    name
}

/// A pack that is being made. It gets its name when it is finished.
///
/// Blocks lie in one buffer where they will lie in the object, with room for their seals, and are sealed in place. A
/// block of records is filled record by record ([`PackBuilder::add_record`]) until it is closed.
pub(crate) struct PackBuilder {
    /// Bytes that a seal puts before and behind a block.
    around: (usize, usize),
    blocks: Vec<(Kind, BlockRef)>,
    /// Begin of the block of records that is being filled, in the pack.
    open: Option<usize>,
    /// Hash of the content so far.
    content: Xxh3,
    buffer: Vec<u8>,
    /// Bytes of the buffer before the pack, so that the pack lies in memory as a direct write needs it.
    skipped: usize,
}

/// A pack as an object, in the buffer that it was made in.
pub(crate) struct PackObject {
    pub(crate) buffer: Vec<u8>,
    /// Bytes of the buffer before the object.
    pub(crate) skipped: usize,
}

impl std::ops::Deref for PackObject {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.buffer.get(self.skipped..).unwrap_or_default()
    }
}

impl From<PackObject> for Bytes {
    fn from(object: PackObject) -> Self {
        Self::from(object.buffer).slice(object.skipped..)
    }
}

impl PackBuilder {
    pub(crate) fn new(sealer: &Sealer) -> Self {
        Self::in_buffer(sealer, Vec::new())
    }

    /// As [`Self::new`], in a buffer that was used before.
    pub(crate) fn in_buffer(sealer: &Sealer, mut buffer: Vec<u8>) -> Self {
        buffer.clear();
        let skipped = buffer.as_ptr().align_offset(DIRECT_ALIGN_BYTES);
        let skipped = if skipped < buffer.capacity() { skipped } else { 0 };
        buffer.resize(skipped + HEAD_BYTES, 0);
        Self {
            around: sealer.around(),
            blocks: Vec::new(),
            open: None,
            content: Xxh3::new(),
            buffer,
            skipped,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.blocks.is_empty() && self.open.is_none()
    }

    /// Returns the length so far, in bytes as they will be stored.
    pub(crate) fn bytes(&self) -> usize {
        self.buffer.len() - self.skipped
    }

    /// Returns the number of bytes of records in the block that is being filled.
    pub(crate) fn open_bytes(&self) -> usize {
        self.open.map_or(0, |begin| self.bytes() - begin - self.around.0)
    }

    /// Appends a record, whose hash is `hash`, to the block that is being filled, or begins one. Returns the place of the
    /// block, without its length, and that of the record in it.
    pub(crate) fn add_record(&mut self, record: &[u8], hash: u64) -> (BlockRef, u32) {
        let begin = self.open.unwrap_or_else(|| self.begin());
        self.open = Some(begin);
        let at = self.open_bytes() as u32;
        self.buffer.extend_from_slice(record);
        self.content.update(&hash.to_le_bytes());
        (self.next_place(begin, 0), at)
    }

    /// Ends the block of records that is being filled, if there is one.
    pub(crate) fn close(&mut self) {
        if let Some(begin) = self.open.take() {
            self.end(Kind::Records, begin);
        }
    }

    pub(crate) fn push(&mut self, kind: Kind, block: &[u8]) -> BlockRef {
        self.close();
        let begin = self.begin();
        self.buffer.extend_from_slice(block);
        self.content.update(block);
        self.end(kind, begin)
    }

    /// Begins a block; returns its place in the pack.
    fn begin(&mut self) -> usize {
        let begin = self.bytes();
        self.buffer.resize(self.buffer.len() + self.around.0, 0);
        begin
    }

    /// Ends the block that begins at `begin`.
    fn end(&mut self, kind: Kind, begin: usize) -> BlockRef {
        self.buffer.resize(self.buffer.len() + self.around.1, 0);
        let place = self.next_place(begin, self.bytes() - begin);
        self.content.update(&[kind as u8]);
        self.content.update(&place.len.to_le_bytes());
        self.blocks.push((kind, place));
        place
    }

    /// Returns the place of the next block, which begins at `begin` and takes `len` bytes.
    fn next_place(&self, begin: usize, len: usize) -> BlockRef {
        let index = self.blocks.len() as u32;
        BlockRef { pack: PackId::OPEN, index, offset: begin as u32, len: len as u32 }
    }

    /// Returns the places of its blocks.
    pub(crate) fn places(&self) -> Vec<BlockRef> {
        self.blocks.iter().map(|(_, place)| *place).collect()
    }

    /// Returns the content of a block.
    pub(crate) fn block(&self, index: u32) -> Option<&[u8]> {
        self.blocks.get(index as usize).map(|(_, place)| self.content(place))
    }

    fn content(&self, place: &BlockRef) -> &[u8] {
        let offset = self.skipped + place.offset as usize;
        let (begin, end) = (offset + self.around.0, offset + place.len as usize - self.around.1);
        self.buffer.get(begin..end).unwrap_or_default()
    }

    /// Takes over all blocks of another pack; returns by how much their indices and offsets move.
    pub(crate) fn append(&mut self, other: &Self) -> (u32, u32) {
        let moved = (self.blocks.len() as u32, (self.bytes() - HEAD_BYTES) as u32);
        for (kind, place) in &other.blocks {
            self.push(*kind, other.content(place));
        }
        moved
    }

    /// Returns a hash of the content, of records by their own hashes: packs with the same hash differ only in name and
    /// nonces. No block is being filled.
    pub(crate) fn content_hash(&self) -> u128 {
        self.content.digest128()
    }

    /// Encodes the pack as an object.
    pub(crate) fn finish(mut self, repository: &[u8; 16], id: PackId, sealer: &Sealer) -> Result<PackObject> {
        self.close();
        let object = self.buffer.get_mut(self.skipped..).unwrap_or_default();
        let (head, mut rest) = object.split_at_mut(HEAD_BYTES);
        let parts = MAGIC.iter().chain(repository).chain(&id.0);
        head.iter_mut().zip(parts).for_each(|(place, byte)| *place = *byte);
        if let Some((named, sum)) = head.split_last_chunk_mut::<8>() {
            *sum = xxh3_64(named).to_le_bytes();
        }
        let mut places = Vec::with_capacity(self.blocks.len());
        let mut directory = Vec::new();
        for (kind, place) in &self.blocks {
            directory.push(*kind as u8);
            put_varint(&mut directory, place.len.into());
            let (block, behind) = std::mem::take(&mut rest).split_at_mut(place.len as usize);
            places.push((*kind, place.index, block));
            rest = behind;
        }
        places.into_par_iter().try_for_each(|(kind, index, block)| {
            sealer.seal_in_place(&seal_name(repository, kind, &id.0, index), block)
        })?;
        let out = &mut self.buffer;
        let begin = out.len();
        sealer.seal(&seal_name(repository, Kind::Directory, &id.0, 0), &directory, out)?;
        let directory_bytes = (out.len() - begin) as u32;
        let tail = out.len();
        out.extend_from_slice(&directory_bytes.to_le_bytes());
        out.extend_from_slice(&(self.blocks.len() as u32).to_le_bytes());
        out.extend_from_slice(&MAGIC_END);
        let sum = tail_checksum(id, out.get(tail..).unwrap_or_default());
        out.extend_from_slice(&sum.to_le_bytes());
        Ok(PackObject { buffer: self.buffer, skipped: self.skipped })
    }
}

pub(crate) fn tail_checksum(id: PackId, tail: &[u8]) -> u64 {
    let mut hasher = Xxh3::new();
    hasher.update(&id.0);
    hasher.update(tail);
    hasher.digest()
}

/// Returns the blocks of a whole pack in the order in which they lie; none of them is opened. Everything around them
/// was verified.
pub(crate) fn parse(
    bytes: &[u8],
    repository: &[u8; 16],
    id: PackId,
    sealer: &Sealer,
) -> Result<Vec<(Kind, BlockRef)>> {
    let bad = |detail: &str| Error::damaged(id.path(), detail);
    let Some((head, _)) =
        bytes.split_first_chunk::<HEAD_BYTES>().filter(|_| bytes.len() as u64 <= PACK_BYTES_MAX)
    else {
        return Err(bad("its length cannot be"));
    };
    let (body, sum) = head.split_at(HEAD_BYTES - 8);
    if xxh3_64(body).to_le_bytes() != *sum {
        return Err(bad("the checksum of its head does not hold"));
    }
    if body.get(..8) != Some(MAGIC.as_slice()) {
        return Err(Error::Unsupported(format!("{} is of another version of Pagefold", id.path())));
    }
    if body.get(8..24) != Some(repository.as_slice()) {
        return Err(bad("it belongs to another repository"));
    }
    if body.get(24..) != Some(id.0.as_slice()) {
        return Err(bad("it is another pack under this name"));
    }
    let (rest, tail) = bytes.split_last_chunk::<TAIL_BYTES>().ok_or_else(|| bad("its length cannot be"))?;
    let (tail, sum) = tail.split_at(TAIL_BYTES - 8);
    if tail_checksum(id, tail).to_le_bytes() != *sum || tail.get(8..) != Some(MAGIC_END.as_slice()) {
        return Err(bad("its end is not there: it is truncated, or was overwritten"));
    }
    let mut reader = Reader::new(tail, "end of a pack");
    let mut numbers = || Ok((reader.u32()? as usize, reader.u32()?));
    let path = id.path();
    let (directory_bytes, count) = numbers().map_err(Error::in_object(&path))?;
    let begin = rest.len().checked_sub(directory_bytes).filter(|begin| *begin >= HEAD_BYTES);
    let begin = begin.ok_or_else(|| bad("its directory is out of range"))?;
    let name = seal_name(repository, Kind::Directory, &id.0, 0);
    let directory = sealer.open(&name, rest.get(begin..).unwrap_or_default());
    let directory = directory.ok_or_else(|| bad("the seal of its directory does not hold"))?;
    let mut reader = Reader::new(&directory, "directory");
    let (mut blocks, mut offset) = (Vec::new(), HEAD_BYTES);
    while reader.remaining() > 0 {
        let mut block = || -> pagefold_engine::Result<_> {
            let kind =
                Kind::of_block(reader.u8()?).ok_or_else(|| reader.bad("a block is of an unknown kind"))?;
            let len = reader.varint_u32()?;
            let end = offset + len as usize;
            if len as usize > BLOCK_BYTES_MAX || end > begin {
                return Err(reader.bad("a block is out of range"));
            }
            let place = BlockRef { pack: id, index: blocks.len() as u32, offset: offset as u32, len };
            offset = end;
            Ok((kind, place))
        };
        let block = block().map_err(Error::in_object(&path))?;
        blocks.push(block);
    }
    if offset != begin || blocks.len() != count as usize {
        return Err(bad("its directory does not fit its length"));
    }
    Ok(blocks)
}

/// Opens a block, whose stored bytes are `sealed`.
pub(crate) fn open_block(
    sealed: &[u8],
    repository: &[u8; 16],
    kind: Kind,
    block: &BlockRef,
    sealer: &Sealer,
) -> Result<Vec<u8>> {
    let name = seal_name(repository, kind, &block.pack.0, block.index);
    sealer.open(&name, sealed).ok_or_else(|| {
        Error::damaged(
            block.pack.path(),
            format!(
                "the seal of block {} ({} bytes at {}) does not hold",
                block.index, block.len, block.offset
            ),
        )
    })
}

/// Compresses the content of a block that is not made of records.
pub(crate) fn squeeze(bytes: &[u8]) -> Result<Vec<u8>> {
    zstd::bulk::compress(bytes, 3)
        .map_err(|source| Error::Local { doing: "cannot compress a manifest".into(), source })
}

/// Decompresses what [`squeeze`] compressed.
pub(crate) fn unsqueeze(bytes: &[u8], max: usize, object: &str) -> Result<Vec<u8>> {
    let claimed = zstd::zstd_safe::get_frame_content_size(bytes).ok().flatten();
    let len = claimed.and_then(|len| usize::try_from(len).ok()).filter(|len| *len <= max);
    let len = len.ok_or_else(|| Error::damaged(object, "a compressed part says to be too long"))?;
    zstd::bulk::decompress(bytes, len)
        .map_err(|_| Error::damaged(object, "a compressed part cannot be decompressed"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    const REPOSITORY: [u8; 16] = [1; 16];
    const ID: PackId = PackId([2; 16]);

    /// Fills a pack with blocks of these records; returns it with the place of each record.
    fn filled(mut pack: PackBuilder, blocks: &[&[&[u8]]]) -> (PackBuilder, Vec<(BlockRef, u32)>) {
        let mut places = Vec::new();
        for records in blocks {
            places.extend(records.iter().map(|record| pack.add_record(record, xxh3_64(record))));
            pack.close();
        }
        (pack, places)
    }

    #[test]
    fn records_lie_where_they_were_said_to() {
        let blocks: [&[&[u8]]; 3] = [&[b"one", b"", b"three"], &[b"four"], &[b"five", b"six"]];
        for sealer in [Sealer::plain(), Sealer::encrypting(&[7; 32])] {
            for buffer in [Vec::new(), vec![0xEE; 3 << 20]] {
                let aligned = !buffer.is_empty();
                let (mut pack, places) = filled(PackBuilder::in_buffer(&sealer, buffer), &blocks);
                let chunk = pack.push(Kind::Chunk, b"a chunk");
                assert_eq!(pack.block(1), Some(b"four".as_slice()));
                assert_eq!(pack.block(chunk.index), Some(b"a chunk".as_slice()));
                let object = pack.finish(&REPOSITORY, ID, &sealer).unwrap();
                assert!(!aligned || object.as_ptr().align_offset(DIRECT_ALIGN_BYTES) == 0);
                let found = parse(&object, &REPOSITORY, ID, &sealer).unwrap();
                assert_eq!(found.len(), 4);
                let records = blocks.iter().flat_map(|records| records.iter());
                for ((place, at), record) in places.iter().zip(records) {
                    let (kind, block) = found[place.index as usize];
                    assert_eq!((kind, block.offset), (Kind::Records, place.offset));
                    let sealed = &object[block.offset as usize..(block.offset + block.len) as usize];
                    let open = open_block(sealed, &REPOSITORY, kind, &block, &sealer).unwrap();
                    assert_eq!(&open[*at as usize..*at as usize + record.len()], *record);
                }
            }
        }
    }

    #[test]
    fn a_pack_that_is_taken_over_keeps_its_blocks() {
        let sealer = Sealer::plain();
        let (mut pack, _) = filled(PackBuilder::new(&sealer), &[&[b"one", b"two"]]);
        let mut other = PackBuilder::in_buffer(&sealer, Vec::with_capacity(1 << 16));
        let place = other.push(Kind::Chunk, b"a chunk");
        let (index, offset) = pack.append(&other);
        assert_eq!(pack.block(place.index + index), Some(b"a chunk".as_slice()));
        assert_eq!(pack.places()[1].offset, place.offset + offset);
    }

    #[test]
    fn the_hash_of_the_content_tells_packs_apart() {
        let hash = |blocks: &[&[&[u8]]]| filled(PackBuilder::new(&Sealer::plain()), blocks).0.content_hash();
        let one = hash(&[&[b"one", b"two"]]);
        assert_eq!(one, hash(&[&[b"one", b"two"]]));
        let others: [&[&[&[u8]]]; 4] =
            [&[&[b"two", b"one"]], &[&[b"onetwo"]], &[&[b"one"], &[b"two"]], &[&[b"one"]]];
        others.iter().for_each(|other| assert_ne!(one, hash(other)));
    }
}
