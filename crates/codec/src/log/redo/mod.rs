//! Codes InnoDB's redo log.
//!
//! A block's first mini-transaction is found by its checksum. Records of one kind share a **pattern**: kind and length,
//! the first byte of data (an operation, or a part of a place in the page), tablespace.

mod files;
mod format;
mod learn;
mod page;
mod walk;

use std::collections::HashMap;

use super::LogPage;
use super::io::{Get, Put};
use super::slots::Slots;
use crate::Corrupt;
use crate::columns;
use crate::entropy::{Decoder, Sink, Stream};
use crate::wire::{Reader, put_varint};

pub(crate) use files::FILES;
pub(crate) use format::InnodbRedo;
use learn::learn;
pub(crate) use page::begin;
#[cfg(test)]
pub(crate) use page::{put_varint as put_number, varint as number};

/// Symbols that are no pattern: a block's rest is zero; it is something else; a mini-transaction's end, plus the bit of
/// its sequence.
const ZERO: u8 = 252;
const REST: u8 = 253;
const END: u8 = 254;
const PATTERNS_MAX: usize = 252;
/// Largest number of tablespaces that patterns name; the mark of any other, and of any first byte of data.
const SPACES_MAX: usize = 254;
const ANY: u8 = 255;

/// Streams, by their contents; those of the places of slots come behind.
mod stream {
    pub(super) const HEAD: usize = 0;
    pub(super) const PATTERN: usize = 1;
    pub(super) const SPACE: usize = 2;
    pub(super) const PAGE: usize = 3;
    pub(super) const LENGTH: usize = 4;
    pub(super) const BEGINS: usize = 5;
    pub(super) const STRIDE: usize = 6;
    pub(super) const END: usize = 7;
}

/// The model of a log's blocks. Patterns are kinds as [`page::RedoRecord::key`] has them; each has the slot with its
/// number.
#[derive(Clone, Debug)]
pub(crate) struct RedoModel {
    /// Tablespaces, each with a usual page.
    spaces: Vec<(u32, u32)>,
    patterns: Vec<[u8; 3]>,
    by_key: HashMap<[u8; 3], u8>,
    space_numbers: HashMap<u32, u8>,
    slots: Slots,
}

impl RedoModel {
    pub(crate) fn end(&self) -> usize {
        self.slots.end()
    }

    fn index(&mut self) {
        self.by_key = self.patterns.iter().zip(0..).map(|(pattern, n)| (*pattern, n)).collect();
        self.space_numbers = self.spaces.iter().zip(0..).map(|((space, _), n)| (*space, n)).collect();
    }

    /// Writes a block. Returns the bits that the coder's two states carry, or `None` if the walk fails.
    pub(crate) fn put<S: Sink>(
        &self,
        block: &[u8],
        parts: &mut LogPage,
        buffers: &mut columns::Buffers,
        sink: &mut S,
    ) -> Option<[u16; 2]> {
        buffers.text.clear();
        buffers.plain.clear();
        // A long mini-transaction, or the end of one, may fill a block: then the block is text.
        let begin = begin(block).unwrap_or(block.len());
        let mut copy = std::mem::take(&mut parts.page);
        copy.clear();
        copy.extend_from_slice(block);
        let done = walk::walk(self, &mut Put { sink, buffers }, parts, &mut copy, begin);
        parts.page = copy;
        done.ok()?;
        Some(walk::carried(block, begin))
    }

    /// Reads a block into `block`, which is all zeros.
    pub(crate) fn get(
        &self,
        streams: &[Stream],
        decoder: Decoder<'_>,
        parts: &mut LogPage,
        buffers: &mut columns::Buffers,
        block: &mut [u8],
    ) -> Result<(), Corrupt> {
        buffers.begin_reading();
        let mut io = Get { decoder, streams, buffers };
        let begin = walk::walk(self, &mut io, parts, block, 0)?;
        walk::put_carried(block, begin, io.decoder.finish()?);
        Ok(())
    }

    pub(crate) fn write_model(&self, out: &mut Vec<u8>) {
        put_varint(out, self.spaces.len() as u64);
        for (space, page) in &self.spaces {
            put_varint(out, u64::from(*space));
            put_varint(out, u64::from(*page));
        }
        put_varint(out, self.patterns.len() as u64);
        out.extend(self.patterns.iter().flatten());
        self.slots.write(out);
    }

    pub(crate) fn read_model(reader: &mut Reader<'_>) -> Result<Self, Corrupt> {
        const U32: usize = u32::MAX as usize;
        let mut spaces = vec![];
        for _ in 0..reader.at_most(SPACES_MAX)? {
            spaces.push((reader.at_most(U32)? as u32, reader.at_most(U32)? as u32));
        }
        let mut patterns = vec![];
        for _ in 0..reader.at_most(PATTERNS_MAX)? {
            let pattern: [u8; 3] = reader.take(3)?.first_chunk().copied().unwrap_or_default();
            if pattern[2] != ANY && usize::from(pattern[2]) >= spaces.len().max(1) {
                return Err(Corrupt("a redo log's pattern"));
            }
            patterns.push(pattern);
        }
        let slots = Slots::read(reader, stream::END)?;
        let (by_key, space_numbers) = Default::default();
        let mut model = Self { spaces, patterns, by_key, space_numbers, slots };
        model.index();
        Ok(model)
    }

    /// Describes the model for people, one line per pattern.
    pub(crate) fn describe(&self) -> String {
        let lines =
            self.patterns.iter().zip(0..).map(|(key, n)| format!("{key:02x?}: {}", self.slots.describe(n)));
        lines.collect::<Vec<_>>().join("\n")
    }
}
