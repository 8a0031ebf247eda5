//! PostgreSQL's write-ahead log.
//!
//! What records of one kind have in common is a **pattern**: resource manager, operation, block references and their
//! relations. What follows from the page (lengths, the place of the record before, checksums) is not stored.

mod learn;
mod page;
mod walk;

use std::collections::HashMap;

use super::Parts;
use super::io::{Get, Put};
use super::slots::Slots;
use crate::Corrupt;
use crate::columns;
use crate::entropy::{Decoder, Sink, Stream};
use crate::wire::{Reader, put_bytes, put_varint};
use page::{BLOCKS_MAX, MAIN_LONG, MAIN_SHORT, Rel};

pub(crate) use learn::learn;
#[cfg(test)]
pub(crate) use page::checksum;
pub(crate) use page::header_bytes;

/// Symbols that are no pattern: records without one; a page's rest without records; nothing but zeros up to its end.
const ODD: u8 = 253;
const REST: u8 = 254;
const END: u8 = 255;
const PATTERNS_MAX: usize = 253;
/// Relations with a place in patterns; the mark of any other.
const RELS_MAX: usize = 254;
const ANY: u8 = 254;
const NO_SLOT: u16 = u16::MAX;

/// Streams, by what they hold; places of slots come behind.
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
    /// Block number, length of data, of an image, its hole's place and length: of each block.
    pub(super) const BLOCK: usize = 9;
    pub(super) const BY_BLOCK: usize = 5;
    pub(super) const END: usize = BLOCK + BY_BLOCK * super::BLOCKS_MAX;
}

/// A kind of records, as [`page::Head::key`] has it, and where its data is modelled.
#[derive(Clone, Debug)]
struct Pattern {
    key: Vec<u8>,
    /// Of main data; of each block image and data.
    slots: [u16; 1 + 2 * BLOCKS_MAX],
}

/// What the pages of a log have in common.
#[derive(Clone, Debug)]
pub(crate) struct WalModel {
    magic: u16,
    timeline: u32,
    /// Page addresses less their low bits, and transactions, are told from these.
    address: u64,
    xid: u32,
    /// Relations, and a usual block of each.
    rels: Vec<(Rel, u32)>,
    patterns: Vec<Pattern>,
    by_key: HashMap<Vec<u8>, u8>,
    rel_numbers: HashMap<Rel, u8>,
    slots: Slots,
}

/// Buffers of one page.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    /// Last block of each of the model's relations, and of those that the page brings.
    blocks: Vec<u32>,
    fresh: Vec<(Rel, u32)>,
    /// Where records with a pattern begin; how far before lies the one before; whether the checksum follows.
    records: Vec<(usize, u64, bool)>,
    /// The record whose checksum's low half is carried.
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

    /// Writes a page; returns what the coder's states are to carry, or `None` if it is no page of a log.
    pub(crate) fn put<S: Sink>(
        &self,
        page: &[u8],
        parts: &mut Parts,
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

    /// Fills `page`, which is zero.
    pub(crate) fn get(
        &self,
        streams: &[Stream],
        decoder: Decoder<'_>,
        parts: &mut Parts,
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
            patterns.push(Pattern { key, slots });
        }
        let slots = Slots::read(reader, stream::END)?;
        let (by_key, rel_numbers) = Default::default();
        let mut model = Self { magic, timeline, address, xid, rels, patterns, by_key, rel_numbers, slots };
        model.index();
        Ok(model)
    }

    /// One line per pattern. For people.
    pub(crate) fn describe(&self) -> String {
        let lines = self.patterns.iter().map(|pattern| {
            let slots = pattern.slots.iter().filter(|&&slot| slot != NO_SLOT);
            let slots: Vec<String> = slots.map(|&slot| self.slots.describe(slot.into())).collect();
            format!("{:?}: {}", pattern.key, slots.join(" | "))
        });
        lines.collect::<Vec<_>>().join("\n")
    }
}
