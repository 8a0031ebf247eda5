//! Codes PostgreSQL's write-ahead log.
//!
//! Records of one kind share a **pattern**: resource manager, operation, block references and their relations. Fields
//! that follow from the page (lengths, the place of the record before, checksums) are not stored.

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
use crate::wire::{Reader, put_bytes, put_varint};
use page::{BLOCKS_MAX, MAIN_LONG, MAIN_SHORT, Rel};

pub(crate) use files::FILES;
pub(crate) use format::PostgresWal;
use learn::learn;
#[cfg(test)]
pub(crate) use page::checksum;
pub(crate) use page::header_bytes;

/// Symbols that are no pattern: a record without one; a page's rest without records; zeros up to the page's end.
const ODD: u8 = 253;
const REST: u8 = 254;
const END: u8 = 255;
const PATTERNS_MAX: usize = 253;
/// Largest number of relations that patterns name; the mark of any other.
const RELS_MAX: usize = 254;
const ANY: u8 = 254;
const NO_SLOT: u16 = u16::MAX;

/// Streams, by their contents; those of the places of slots come behind.
mod stream {
    pub(super) const HEAD: usize = 0;
    pub(super) const PATTERN: usize = 1;
    pub(super) const XID: usize = 2;
    pub(super) const PREV: usize = 3;
    pub(super) const REL: usize = 4;
    pub(super) const REL_BYTES: usize = 5;
    pub(super) const MAIN: usize = 6;
    pub(super) const ODD: usize = 7;
    pub(super) const STRIDE: usize = 8;
    /// Streams of each block: block number, length of data, length of an image, its hole's place and length.
    pub(super) const BLOCK: usize = 9;
    pub(super) const BY_BLOCK: usize = 5;
    pub(super) const END: usize = BLOCK + BY_BLOCK * super::BLOCKS_MAX;
}

/// A kind of records, as [`page::RecordHead::key`] has it, and the slots of its data.
#[derive(Clone, Debug)]
struct RecordPattern {
    key: Vec<u8>,
    /// Slots of main data, then of each block's image and data.
    slots: [u16; 1 + 2 * BLOCKS_MAX],
}

/// The model of a log's pages.
#[derive(Clone, Debug)]
pub(crate) struct WalModel {
    magic: u16,
    timeline: u32,
    /// A usual page address and a usual transaction, to which pages have differences.
    address: u64,
    xid: u32,
    /// Relations, each with a usual block.
    rels: Vec<(Rel, u32)>,
    patterns: Vec<RecordPattern>,
    by_key: HashMap<Vec<u8>, u8>,
    rel_numbers: HashMap<Rel, u8>,
    slots: Slots,
}

/// Buffers of one page.
#[derive(Debug, Default)]
pub(crate) struct WalBuffers {
    /// Last block of each of the model's relations; in `fresh`, other relations of the page with theirs.
    blocks: Vec<u32>,
    fresh: Vec<(Rel, u32)>,
    /// Records with a pattern: where each begins, its distance from the one before, and whether its checksum is
    /// computed.
    records: Vec<(usize, u64, bool)>,
    /// The record the low half of whose checksum a state of the coder carries.
    carried_at: Option<usize>,
    address: u64,
}

impl WalModel {
    pub(crate) fn end(&self) -> usize {
        self.slots.end()
    }

    fn index(&mut self) {
        self.by_key = self.patterns.iter().zip(0..).map(|(pattern, n)| (pattern.key.clone(), n)).collect();
        self.rel_numbers = self.rels.iter().zip(0..).map(|((rel, _), n)| (*rel, n)).collect();
    }

    /// Writes a page. Returns the bits that the coder's two states carry, or `None` if it is no page of a log.
    pub(crate) fn put<S: Sink>(
        &self,
        page: &[u8],
        parts: &mut LogPage,
        buffers: &mut columns::Buffers,
        sink: &mut S,
    ) -> Option<[u16; 2]> {
        buffers.text.clear();
        buffers.plain.clear();
        header_bytes(page)?;
        let mut copy = std::mem::take(&mut parts.page);
        copy.clear();
        copy.extend_from_slice(page);
        let done = walk::walk(self, &mut Put { sink, buffers }, parts, &mut copy);
        parts.page = copy;
        done.ok()?;
        let crc = parts.wal.carried_at.map_or(0, |at| crate::wire::le16(page, at + page::CRC_AT));
        Some([(parts.wal.address / page.len() as u64) as u16, crc])
    }

    /// Reads a page into `page`, which is all zeros.
    pub(crate) fn get(
        &self,
        streams: &[Stream],
        decoder: Decoder<'_>,
        parts: &mut LogPage,
        buffers: &mut columns::Buffers,
        page: &mut [u8],
    ) -> Result<(), Corrupt> {
        buffers.begin_reading();
        let mut io = Get { decoder, streams, buffers };
        walk::walk(self, &mut io, parts, page)?;
        let carried = io.decoder.finish()?;
        walk::finish(parts, carried, page);
        Ok(())
    }

    pub(crate) fn write_model(&self, out: &mut Vec<u8>) {
        for number in [u64::from(self.magic), self.timeline.into(), self.address, self.xid.into()] {
            put_varint(out, number);
        }
        put_varint(out, self.rels.len() as u64);
        for (rel, block) in &self.rels {
            out.extend_from_slice(rel);
            put_varint(out, u64::from(*block));
        }
        put_varint(out, self.patterns.len() as u64);
        for pattern in &self.patterns {
            put_bytes(out, &pattern.key);
            for &slot in &pattern.slots {
                put_varint(out, u64::from(slot.wrapping_add(1)));
            }
        }
        self.slots.write(out);
    }

    pub(crate) fn read_model(reader: &mut Reader<'_>) -> Result<Self, Corrupt> {
        const U16: usize = u16::MAX as usize;
        const U32: usize = u32::MAX as usize;
        let magic = reader.at_most(U16)? as u16;
        let timeline = reader.at_most(U32)? as u32;
        let address = reader.varint()?;
        let xid = reader.at_most(U32)? as u32;
        let count = reader.at_most(RELS_MAX)?;
        let mut rels = vec![];
        for _ in 0..count {
            let rel = reader.take(12)?.first_chunk().copied().unwrap_or_default();
            rels.push((rel, reader.at_most(U32)? as u32));
        }
        let count = reader.at_most(PATTERNS_MAX)?;
        let mut patterns = vec![];
        for _ in 0..count {
            let key = reader.bytes(3 + 4 * BLOCKS_MAX)?.to_vec();
            let blocks = key.get(3..).ok_or(Corrupt("a log's pattern"))?;
            let known = blocks.chunks(4).all(|block| {
                block.len() == 4 && (block[3] == ANY || usize::from(block[3]) < rels.len().max(1))
            });
            if !known || !matches!(key[2], 0 | MAIN_SHORT | MAIN_LONG) {
                return Err(Corrupt("a log's pattern"));
            }
            let mut slots = [0; 1 + 2 * BLOCKS_MAX];
            for slot in &mut slots {
                *slot = (reader.at_most(U16)? as u16).wrapping_sub(1);
            }
            patterns.push(RecordPattern { key, slots });
        }
        let slots = Slots::read(reader, stream::END)?;
        let (by_key, rel_numbers) = Default::default();
        let mut model = Self { magic, timeline, address, xid, rels, patterns, by_key, rel_numbers, slots };
        model.index();
        Ok(model)
    }

    /// Describes the model for people, one line per pattern.
    pub(crate) fn describe(&self) -> String {
        let lines = self.patterns.iter().map(|pattern| {
            let slots = pattern.slots.iter().filter(|&&slot| slot != NO_SLOT);
            let slots: Vec<String> = slots.map(|&slot| self.slots.describe(slot.into())).collect();
            format!("{:?}: {}", pattern.key, slots.join(" | "))
        });
        lines.collect::<Vec<_>>().join("\n")
    }
}
