//! A file of a database's log as an object: a sealed head, and compressed and sealed blocks.
//!
//! An object may have a model of the log, by which its blocks are coded (`model.rs`).
//!
//! The head names cluster and file, so an object that is put in the place of another one is detected. Random bytes bind
//! the blocks to the object; the seal of the head is bound to them as well.

use pagefold_engine::wire::{Reader, put_bytes, put_varint};
use rayon::prelude::*;
use xxhash_rust::xxh3::xxh3_128;

use super::model::{self, Kept, Past, decode_block, encode_block, share};
use crate::block::Kind;
use crate::commit::is_segment_size;
use crate::error::{Decoded, Error, Result};
use crate::keys::{Sealer, random};
use crate::limits::{WAL_BLOCK_BYTES, WAL_FILE_BYTES_MAX, WAL_HEAD_BYTES_MAX, WAL_MODEL_BYTES_MAX};
use crate::pack::{seal_name, squeeze, unsqueeze};

const MAGIC: [u8; 8] = *b"PFwlog\x02\0";
/// Bytes of an object's unsealed begin: magic, repository, random bytes, lengths of the sealed head and of the sealed
/// model.
pub(crate) const FIXED_BYTES: usize = 48;
/// Longest name of a file of a log.
const NAME_BYTES_MAX: usize = 64;
/// Flag of a head that has times.
const HAS_TIMES: u8 = 1;
/// Flag of the last part of a file of a binary log.
const IS_LAST: u8 = 2;
/// Flag of a part of a binary log that ends within a transaction.
const IS_INSIDE: u8 = 4;
/// Flag of a segment that tells how old its model is, or that it has none.
const HAS_PAST: u8 = 8;

/// A file that is to be archived.
pub(crate) struct File<'a> {
    pub(crate) system: u64,
    pub(crate) name: &'a str,
    /// Bytes of a segment if the file is one; otherwise 0.
    pub(crate) segment_bytes: u32,
    /// Ends of the first and the last of its transactions, in microseconds since 1970.
    pub(crate) times: Option<(i64, i64)>,
    /// True if it is the last part of a file of a binary log.
    pub(crate) is_last: bool,
    /// True if it is a part of a binary log that ends within a transaction.
    pub(crate) is_inside: bool,
    pub(crate) content: &'a [u8],
}

/// The head of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) system: u64,
    pub(crate) name: String,
    /// Length of the file in bytes.
    pub(crate) len: u64,
    pub(crate) segment_bytes: u32,
    /// XXH3 of the file, 128 bits.
    pub(crate) hash: u128,
    pub(crate) times: Option<(i64, i64)>,
    pub(crate) is_last: bool,
    pub(crate) is_inside: bool,
    /// The past of the model by which the blocks are coded, or of there being none.
    pub(crate) past: Option<Past>,
    /// Lengths of the blocks as they are stored.
    pub(crate) blocks: Vec<u32>,
}

impl Head {
    /// Returns true if it is the head of a file of this content.
    pub(crate) fn is_of(&self, content: &[u8]) -> bool {
        self.len == content.len() as u64 && self.hash == xxh3_128(content)
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend_from_slice(&self.system.to_le_bytes());
        put_bytes(&mut out, self.name.as_bytes());
        put_varint(&mut out, self.len);
        put_varint(&mut out, self.segment_bytes.into());
        out.extend_from_slice(&self.hash.to_le_bytes());
        let flag = |is_set: bool, flag: u8| if is_set { flag } else { 0 };
        out.push(
            flag(self.times.is_some(), HAS_TIMES)
                | flag(self.is_last, IS_LAST)
                | flag(self.is_inside, IS_INSIDE)
                | flag(self.past.is_some(), HAS_PAST),
        );
        if let Some((first, last)) = self.times {
            out.extend_from_slice(&first.to_le_bytes());
            out.extend_from_slice(&last.to_le_bytes());
        }
        if let Some(Past { age, wait, share }) = self.past {
            put_varint(&mut out, age.into());
            put_varint(&mut out, wait.into());
            put_varint(&mut out, share.into());
        }
        put_varint(&mut out, self.blocks.len() as u64);
        self.blocks.iter().for_each(|len| put_varint(&mut out, (*len).into()));
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Decoded<Self> {
        let mut reader = Reader::new(bytes, "head of a log's file");
        let system = reader.u64()?;
        let name = std::str::from_utf8(reader.bytes(NAME_BYTES_MAX)?);
        let name = name.map(str::to_owned).map_err(|_| reader.bad("a name is not UTF-8"))?;
        let (len, segment_bytes) = (reader.varint()?, reader.varint_u32()?);
        let mut hash = [0; 16];
        hash.copy_from_slice(reader.take(16)?);
        let flags = reader.u8()?;
        if flags & !(HAS_TIMES | IS_LAST | IS_INSIDE | HAS_PAST) != 0 {
            return Err(reader.bad("it has flags that are not known"));
        }
        let times = match flags & HAS_TIMES != 0 {
            true => Some((reader.u64()?.cast_signed(), reader.u64()?.cast_signed())),
            false => None,
        };
        let (is_last, is_inside) = (flags & IS_LAST != 0, flags & IS_INSIDE != 0);
        let past = match flags & HAS_PAST != 0 {
            true => Some(Past {
                age: reader.varint_u32()?,
                wait: reader.varint_u32()?,
                share: reader.varint_u32()?,
            }),
            false => None,
        };
        let blocks = crate::chunk::table(&mut reader, length)?;
        if len > WAL_FILE_BYTES_MAX as u64
            || blocks.len() as u64 != len.div_ceil(WAL_BLOCK_BYTES as u64)
            || (segment_bytes != 0 && !is_segment_size(segment_bytes.into()))
        {
            return Err(reader.bad("its sizes are not those of a file of a log"));
        }
        reader.end()?;
        Ok(Self {
            system,
            name,
            len,
            segment_bytes,
            hash: u128::from_le_bytes(hash),
            times,
            is_last,
            is_inside,
            past,
            blocks,
        })
    }
}

fn length(reader: &mut Reader<'_>) -> Decoded<u32> {
    reader.varint_u32()
}

fn name_of(repository: &[u8; 16], random: &[u8; 16], index: u32) -> [u8; 37] {
    seal_name(repository, Kind::Wal, random, index)
}

/// Index of the model in the names of seals. Blocks begin at 1, and are few.
const MODEL_INDEX: u32 = u32::MAX;

/// Encodes a file as an object: a segment with what is kept for the next one, and coded by the model if there is one.
pub(crate) fn encode(
    repository: &[u8; 16],
    sealer: &Sealer,
    file: &File<'_>,
    kept: Option<&Kept>,
) -> Result<Vec<u8>> {
    encode_as(repository, sealer, &random()?, file, kept)
}

pub(crate) fn encode_as(
    repository: &[u8; 16],
    sealer: &Sealer,
    random: &[u8; 16],
    file: &File<'_>,
    kept: Option<&Kept>,
) -> Result<Vec<u8>> {
    let seal = |index: u32, plain: &[u8]| {
        let mut sealed = Vec::new();
        sealer.seal(&name_of(repository, random, index), plain, &mut sealed)?;
        Ok(sealed)
    };
    let stored = kept.and_then(|kept| kept.model.as_ref());
    let blocks: Result<Vec<Vec<u8>>> = file
        .content
        .par_chunks(WAL_BLOCK_BYTES)
        .zip(1_u32..1 + file.content.len().div_ceil(WAL_BLOCK_BYTES) as u32)
        .map(|(block, index)| match stored {
            Some(stored) => seal(index, &encode_block(&stored.model, block)?),
            None => seal(index, &squeeze(block)?),
        })
        .collect();
    let blocks = blocks?;
    let block_bytes = blocks.iter().map(Vec::len).sum::<usize>();
    let past = kept.map(|kept| match kept.past.age {
        0 => Past { share: share(block_bytes as u64, file.content.len() as u64), ..kept.past },
        _ => kept.past,
    });
    let head = Head {
        system: file.system,
        name: file.name.to_owned(),
        len: file.content.len() as u64,
        segment_bytes: file.segment_bytes,
        hash: xxh3_128(file.content),
        times: file.times,
        is_last: file.is_last,
        is_inside: file.is_inside,
        past,
        blocks: blocks.iter().map(|block| block.len() as u32).collect(),
    };
    let head = seal(0, &head.encode())?;
    let model = match stored {
        Some(stored) => seal(MODEL_INDEX, &stored.bytes)?,
        None => Vec::new(),
    };
    let mut out = Vec::with_capacity(FIXED_BYTES + head.len() + model.len() + block_bytes);
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(repository);
    out.extend_from_slice(random);
    out.extend_from_slice(&(head.len() as u32).to_le_bytes());
    out.extend_from_slice(&(model.len() as u32).to_le_bytes());
    out.extend_from_slice(&head);
    out.extend_from_slice(&model);
    blocks.iter().for_each(|block| out.extend_from_slice(block));
    Ok(out)
}

/// The unsealed begin of an object.
struct Fixed {
    random: [u8; 16],
    head_bytes: usize,
    model_bytes: usize,
}

impl Fixed {
    fn decode(bytes: &[u8], object: &str, repository: &[u8; 16]) -> Result<Self> {
        let bad = |detail: &str| Error::damaged(object, detail);
        let fixed = bytes.first_chunk::<FIXED_BYTES>().ok_or_else(|| bad("it is truncated"))?;
        let (magic, rest) = fixed.split_at(MAGIC.len());
        let (of, rest) = rest.split_at(repository.len());
        if magic != MAGIC || of != repository.as_slice() {
            return Err(bad("it is no file of a log of this repository and version"));
        }
        let mut random = [0; 16];
        let (found, lens) = rest.split_at(random.len());
        random.copy_from_slice(found);
        let (head, model) = lens.split_at(4);
        let len = |bytes: &[u8]| bytes.iter().rev().fold(0, |sum, byte| sum << 8 | usize::from(*byte));
        let (head_bytes, model_bytes) = (len(head), len(model));
        if head_bytes > WAL_HEAD_BYTES_MAX || model_bytes > WAL_MODEL_BYTES_MAX {
            return Err(bad("its head or its model says to be too long"));
        }
        Ok(Self { random, head_bytes, model_bytes })
    }
}

/// Returns true if an object says that another version of Pagefold has made it: this one cannot read it, intact as it is.
pub(crate) fn is_of_other_version(bytes: &[u8]) -> bool {
    bytes.starts_with(b"PFwlog") && !bytes.starts_with(&MAGIC)
}

/// Returns the number of bytes at the beginning of an object, of which `fixed` are the first, that have its head and
/// its model.
pub(crate) fn begin_bytes(fixed: &[u8], object: &str, repository: &[u8; 16]) -> Result<u64> {
    let Fixed { head_bytes, model_bytes, .. } = Fixed::decode(fixed, object, repository)?;
    Ok((FIXED_BYTES + head_bytes + model_bytes) as u64)
}

/// Returns what the segment behind takes over of the object that begins with `bytes`; `None` if that is nothing.
pub(crate) fn open_kept(
    bytes: &[u8],
    object: &str,
    repository: &[u8; 16],
    sealer: &Sealer,
) -> Result<Option<Kept>> {
    let opened = open_head(bytes, object, repository, sealer)?;
    let Some(past) = opened.head.past else { return Ok(None) };
    Kept::behind(opened.model(bytes, object, repository, sealer)?, past, object).map(Some)
}

/// The head of an object, and what tells where the rest of it is.
pub(crate) struct Opened {
    pub(crate) head: Head,
    random: [u8; 16],
    model_at: usize,
    /// Offset of the first block.
    blocks_at: usize,
}

impl Opened {
    fn model(
        &self,
        bytes: &[u8],
        object: &str,
        repository: &[u8; 16],
        sealer: &Sealer,
    ) -> Result<Option<Vec<u8>>> {
        if self.model_at == self.blocks_at {
            return Ok(None);
        }
        let bad = |detail: &str| Error::damaged(object, detail);
        let sealed = bytes.get(self.model_at..self.blocks_at).ok_or_else(|| bad("it is truncated"))?;
        let plain = sealer.open(&name_of(repository, &self.random, MODEL_INDEX), sealed);
        plain.map(Some).ok_or_else(|| bad("the seal of its model does not hold"))
    }
}

/// Opens the head of the object at the path `object`; `bytes` are its beginning.
pub(crate) fn open_head(
    bytes: &[u8],
    object: &str,
    repository: &[u8; 16],
    sealer: &Sealer,
) -> Result<Opened> {
    let bad = |detail: &str| Error::damaged(object, detail);
    let Fixed { random, head_bytes, model_bytes } = Fixed::decode(bytes, object, repository)?;
    let model_at = FIXED_BYTES + head_bytes;
    let sealed = bytes.get(FIXED_BYTES..model_at).ok_or_else(|| bad("it is truncated"))?;
    let plain = sealer.open(&name_of(repository, &random, 0), sealed);
    let plain = plain.ok_or_else(|| bad("the seal of its head does not hold"))?;
    let head = Head::decode(&plain).map_err(Error::in_object(object))?;
    Ok(Opened { head, random, model_at, blocks_at: model_at + model_bytes })
}

/// Decodes an object into its head and the content of the file.
pub(crate) fn decode(
    bytes: &[u8],
    object: &str,
    repository: &[u8; 16],
    sealer: &Sealer,
) -> Result<(Head, Vec<u8>)> {
    let opened = open_head(bytes, object, repository, sealer)?;
    let bad = |detail: &str| Error::damaged(object, detail);
    let model = opened.model(bytes, object, repository, sealer)?;
    let model = model.map(|model| model::decode(&model, object)).transpose()?;
    let Opened { head, random, blocks_at: mut at, .. } = opened;
    let mut places = Vec::with_capacity(head.blocks.len());
    let mut left = head.len as usize;
    for (index, len) in (1_u32..).zip(&head.blocks) {
        let end = at.saturating_add(*len as usize);
        let block_bytes = left.min(WAL_BLOCK_BYTES);
        places.push((index, block_bytes, bytes.get(at..end).ok_or_else(|| bad("it is truncated"))?));
        (at, left) = (end, left - block_bytes);
    }
    if at != bytes.len() {
        return Err(bad("something lies behind its last block"));
    }
    let blocks: Result<Vec<Vec<u8>>> = places
        .par_iter()
        .map(|(index, block_bytes, sealed)| {
            let plain = sealer.open(&name_of(repository, &random, *index), sealed);
            let plain = plain.ok_or_else(|| bad(&format!("the seal of block {index} does not hold")))?;
            match &model {
                Some(model) => decode_block(model, &plain, *block_bytes, object),
                None => unsqueeze(&plain, WAL_BLOCK_BYTES, object),
            }
        })
        .collect();
    let content = blocks?.concat();
    if content.len() as u64 != head.len || xxh3_128(&content) != head.hash {
        return Err(bad("its blocks are not the file that its head means"));
    }
    Ok((head, content))
}
