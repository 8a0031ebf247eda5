//! Places of blocks in packs, and of models and records in blocks.

use pagefold_engine::wire::{Reader, put_varint};

use crate::error::Decoded;
use crate::limits::{BLOCK_BYTES_MAX, PACK_BYTES_MAX};
use crate::pack::PackId;

/// The kinds of blocks. The number is part of a block's seal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Kind {
    /// Records as they are stored, one after the other.
    Records = 1,
    /// A model.
    Model = 2,
    /// A chunk of a manifest.
    Chunk = 3,
    /// A part of a manifest's root.
    Root = 4,
    /// The directory of a pack.
    Directory = 5,
    /// A commit, which is an object of its own.
    Commit = 6,
    /// The repository's key, which is part of an object of its own.
    Key = 7,
    /// A file of a database's log, or its head, which are an object of their own.
    Wal = 8,
}

impl Kind {
    /// Returns the kind with this number if blocks of packs can have it.
    pub(crate) fn of_block(number: u8) -> Option<Self> {
        [Self::Records, Self::Model, Self::Chunk, Self::Root].into_iter().find(|kind| *kind as u8 == number)
    }
}

/// A block of a pack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockRef {
    /// The pack.
    pub pack: PackId,
    /// Number of the block in the pack.
    pub index: u32,
    /// Offset in the pack, in bytes.
    pub offset: u32,
    /// Length in bytes, as it is stored.
    pub len: u32,
}

impl BlockRef {
    /// Appends the place without its pack.
    pub(crate) fn encode_place(&self, out: &mut Vec<u8>) {
        for value in [self.index, self.offset, self.len] {
            put_varint(out, value.into());
        }
    }

    pub(crate) fn decode_place(reader: &mut Reader<'_>, pack: PackId) -> Decoded<Self> {
        let block = Self {
            pack,
            index: reader.varint_u32()?,
            offset: reader.varint_u32()?,
            len: reader.varint_u32()?,
        };
        let end = u64::from(block.offset) + u64::from(block.len);
        if end > PACK_BYTES_MAX || block.len as usize > BLOCK_BYTES_MAX {
            return Err(reader.bad("a block is out of range"));
        }
        Ok(block)
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.pack.0);
        self.encode_place(out);
    }

    pub(crate) fn decode(reader: &mut Reader<'_>) -> Decoded<Self> {
        let pack = PackId::decode(reader)?;
        Self::decode_place(reader, pack)
    }
}

/// A model in a pack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ModelRef {
    /// XXH3 of the model's body, 128 bits.
    pub hash: u128,
    /// Block in which it is stored.
    pub block: BlockRef,
}

impl ModelRef {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.hash.to_le_bytes());
        self.block.encode(out);
    }

    pub(crate) fn decode(reader: &mut Reader<'_>) -> Decoded<Self> {
        let mut hash = [0; 16];
        hash.copy_from_slice(reader.take(16)?);
        Ok(Self { hash: u128::from_le_bytes(hash), block: BlockRef::decode(reader)? })
    }
}

/// The place of a page's record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordRef {
    /// The block that has it.
    pub block: BlockRef,
    /// Offset in the opened block, in bytes.
    pub at: u32,
    /// Length in bytes.
    pub len: u32,
    /// XXH3 of the record, 64 bits.
    pub hash: u64,
    /// Model by which it is coded.
    pub model: Option<ModelRef>,
}
