//! Walks over a record: its header, the blocks that it names, their images and data.

use super::super::page::{
    ALIGNED, BLOCKS_MAX, CRC_AT, HAS_DATA, HAS_IMAGE, MAIN_LONG, MAIN_SHORT, RECORD_HEADER, Rel, SAME_REL,
    has_hole_length,
};
use super::super::{ANY, NO_SLOT, stream};
use super::{WalRecord, around, near32, number16, prev, put32};
use crate::Corrupt;
use crate::entropy::number::{unzigzag, zigzag};
use crate::log::io::Io;
use crate::log::{LogPage, chunk};
use crate::wire::{le16, le32};

/// The heap's resource manager, and its operations that carry a tuple: insertion, update, update within the page.
const HEAP: u8 = 10;
const OPERATION: u8 = 0x70;
const BRINGS_TUPLE: [u8; 3] = [0x00, 0x20, 0x40];

/// Places in an image: of the first line pointer, and of the field that tells where line pointers end.
const LINES_AT: usize = 24;
const LOWER_AT: usize = 12;

/// The relation of a block: one of the model's, or one that is told in the page.
#[derive(Clone, Copy)]
enum RelRef {
    Known(usize),
    Fresh(usize),
}

impl WalRecord<'_> {
    /// Codes the record; returns where it ends in the page.
    pub(super) fn code<I: Io>(
        &mut self,
        io: &mut I,
        start: Option<usize>,
        xid: &mut u32,
    ) -> Result<usize, Corrupt> {
        let (at, symbol) = (self.at, self.symbol);
        if self.page.len() < at + RECORD_HEADER {
            return Err(Corrupt("a log's record is cut in its header"));
        }
        let [manager, info, main_kind] = *self.pattern.key.first_chunk().ok_or(Corrupt("a log's pattern"))?;
        self.page[at + 16] = info;
        self.page[at + 17] = manager;
        // 0 stands for no transaction; others are differences to the last one.
        let real = le32(self.page, at + 4);
        let told = if real == 0 { 0 } else { 1 + zigzag((real.wrapping_sub(*xid) as i32).into()) };
        let told = io.number(stream::XID, symbol, told);
        let mut real = 0;
        if told > 0 {
            real = xid.wrapping_add(unzigzag(told - 1) as u32);
            *xid = real;
        }
        put32(self.page, at + 4, real.into());
        self.parts.around[around::XID..around::XID + 4].copy_from_slice(&real.to_le_bytes());
        let here = self.parts.wal.address.wrapping_add(at as u64);
        let distance = match start {
            Some(start) => (at - start) as u64,
            None => io
                .number(stream::PREV, 0, here.wrapping_sub(prev(self.page, at)) / ALIGNED as u64)
                .wrapping_mul(ALIGNED as u64),
        };
        let (lengths, end, main) = self.head(io, main_kind)?;
        let total = lengths.iter().flatten().sum::<u64>() + main + (end - at) as u64;
        put32(self.page, at, total);
        let until = usize::try_from(total).unwrap_or(usize::MAX).min(self.page.len() - at) + at;
        let whole = total as usize == until - at;
        self.parts.wal.records.push((at, distance, whole));
        if !whole {
            let crc = if self.parts.wal.carried_at.is_none() {
                at + CRC_AT + 2..at + CRC_AT + 4
            } else {
                at + CRC_AT..at + CRC_AT + 4
            };
            self.parts.wal.carried_at.get_or_insert(at);
            io.plain(&mut self.page[crc])?;
        }
        self.data(io, lengths, end, until, main)?;
        Ok(until)
    }

    /// Codes block references. Returns the lengths of images and data, the place at which data begins, and the length
    /// of main data.
    fn head<I: Io>(
        &mut self,
        io: &mut I,
        main_kind: u8,
    ) -> Result<([[u64; 2]; BLOCKS_MAX], usize, u64), Corrupt> {
        const CUT: Corrupt = Corrupt("a log's record is cut in its head");
        let symbol = self.symbol;
        let mut next = self.at + RECORD_HEADER;
        let mut lengths = [[0; 2]; BLOCKS_MAX];
        let mut rel = RelRef::Known(0);
        let magic = le16(self.page, 0);
        self.parts.around[around::BLOCKS..around::BEFORE].fill(0);
        for (n, key) in self.pattern.key[3..].as_chunks::<4>().0.iter().enumerate() {
            let &[id, flags, image_info, number] = key;
            let streams = stream::BLOCK + stream::BY_BLOCK * n;
            if self.page.len() < next + 4 + 7 + 16
                && self.page.len()
                    < next
                        + 4
                        + if flags & HAS_IMAGE != 0 { 7 } else { 0 }
                        + if flags & SAME_REL == 0 { 16 } else { 4 }
            {
                return Err(CUT);
            }
            self.page[next] = id;
            self.page[next + 1] = flags;
            if flags & HAS_DATA != 0 {
                lengths[n][1] = number16(io, self.page, next + 2, streams + 1, symbol) as u64;
            }
            next += 4;
            if flags & HAS_IMAGE != 0 {
                lengths[n][0] = number16(io, self.page, next, streams + 2, symbol) as u64;
                number16(io, self.page, next + 2, streams + 3, symbol);
                self.page[next + 4] = image_info;
                next += 5;
                if has_hole_length(magic, image_info) {
                    number16(io, self.page, next, streams + 4, symbol);
                    next += 2;
                }
            }
            if flags & SAME_REL == 0 {
                rel = if number == ANY { self.fresh_rel(io, next)? } else { RelRef::Known(number.into()) };
                let bytes = match rel {
                    RelRef::Known(n) => self.model.rels.get(n).map(|(rel, _)| *rel),
                    RelRef::Fresh(n) => self.parts.wal.fresh.get(n).map(|(rel, _)| *rel),
                };
                self.page.get_mut(next..next + 12).ok_or(CUT)?.copy_from_slice(&bytes.unwrap_or_default());
                next += 12;
            }
            let wal = &mut self.parts.wal;
            let last = match rel {
                RelRef::Known(n) => wal.blocks.get_mut(n),
                RelRef::Fresh(n) => wal.fresh.get_mut(n).map(|(_, block)| block),
            };
            let mut none = 0;
            let last = last.unwrap_or(&mut none);
            if self.page.len() < next + 4 {
                return Err(CUT);
            }
            *last = near32(io, self.page, next, streams, symbol, *last);
            if n < 2 {
                self.parts.around[around::BLOCKS + 4 * n..around::BLOCKS + 4 * n + 4]
                    .copy_from_slice(&last.rotate_left(16).to_le_bytes());
            }
            next += 4;
        }
        let main = match main_kind {
            0 => 0,
            kind => {
                let bytes = if kind == MAIN_SHORT { 1 } else { 4 };
                let mut length = [0; 4];
                let place = self.page.get_mut(next + 1..next + 1 + bytes).ok_or(CUT)?;
                length[..bytes].copy_from_slice(place);
                let main = io.number(stream::MAIN, symbol, u32::from_le_bytes(length).into());
                // Sums with it must not wrap.
                if main >> (8 * bytes) != 0 {
                    return Err(Corrupt("a length of a log's record"));
                }
                place.copy_from_slice(&(main as u32).to_le_bytes()[..bytes]);
                self.page[next] = if kind == MAIN_SHORT { MAIN_SHORT } else { MAIN_LONG };
                next += 1 + bytes;
                main
            }
        };
        Ok((lengths, next, main))
    }

    /// Codes a relation that is not in the pattern.
    fn fresh_rel<I: Io>(&mut self, io: &mut I, at: usize) -> Result<RelRef, Corrupt> {
        let bytes: &mut Rel = self
            .page
            .get_mut(at..)
            .and_then(|rest| rest.first_chunk_mut())
            .ok_or(Corrupt("a log's relation is cut"))?;
        let fresh = &mut self.parts.wal.fresh;
        let found = fresh.iter().position(|(rel, _)| rel == bytes).unwrap_or(255).min(255);
        let told = usize::from(io.symbol(stream::REL, 0, found as u8));
        if told < fresh.len() {
            return Ok(RelRef::Fresh(told));
        }
        for (byte, i) in bytes.iter_mut().zip(0..) {
            *byte = io.symbol(stream::REL_BYTES, i, *byte);
        }
        fresh.push((*bytes, 0));
        Ok(RelRef::Fresh(fresh.len() - 1))
    }

    /// Codes images and data. Main data comes first, since it tells of the others.
    fn data<I: Io>(
        &mut self,
        io: &mut I,
        lengths: [[u64; 2]; BLOCKS_MAX],
        begin: usize,
        until: usize,
        main: u64,
    ) -> Result<(), Corrupt> {
        let count = (self.pattern.key.len() - 3) / 4;
        let before = lengths[..count].iter().flatten().sum::<u64>();
        let within = |at: u64| usize::try_from(at).unwrap_or(usize::MAX).min(until);
        let begin_main = within(begin as u64 + before);
        let end_main = within(begin as u64 + before + main);
        self.blob(io, 0, begin_main, end_main, false)?;
        let mut kept = [0; around::MAIN_BYTES];
        let some = (end_main - begin_main).min(around::MAIN_BYTES);
        kept[..some].copy_from_slice(&self.page[begin_main..begin_main + some]);
        self.parts.around[around::MAIN..around::MAIN + around::MAIN_BYTES].copy_from_slice(&kept);
        let mut at = begin as u64;
        let mut first_data = (0, 0);
        for (n, [image, data]) in lengths[..count].iter().enumerate() {
            let places = [at, at + image, at + image + data].map(within);
            self.blob(io, 1 + 2 * n, places[0], places[1], true)?;
            self.blob(io, 2 + 2 * n, places[1], places[2], false)?;
            if n == 0 {
                first_data = (places[1], places[2]);
            }
            at += image + data;
        }
        // The records behind this one find these bytes of it in their surroundings.
        let around = &mut self.parts.around;
        let block = [around[4], around[5], around[6], around[7]];
        around[around::BEFORE..around::BEFORE + 4].copy_from_slice(&block);
        around[around::MAIN_BEFORE..around::MAIN_BEFORE + around::MAIN_BYTES].copy_from_slice(&kept);
        let (manager, info) = (self.pattern.key[0], self.pattern.key[1]);
        if manager == HEAP && BRINGS_TUPLE.contains(&(info & OPERATION)) {
            around[around::TUPLE..around::TUPLE + 4].copy_from_slice(&block);
            around[around::TUPLE_MAIN..around::TUPLE_MAIN + around::MAIN_BYTES].copy_from_slice(&kept);
            let tuple = &mut around[around::TUPLE_DATA..around::TUPLE_DATA + around::DATA_BYTES];
            tuple.fill(0);
            let some = (first_data.1 - first_data.0).min(around::DATA_BYTES);
            tuple[..some].copy_from_slice(&self.page[first_data.0..first_data.0 + some]);
        }
        Ok(())
    }

    /// Codes an image or data, as far as it is in the page.
    fn blob<I: Io>(
        &mut self,
        io: &mut I,
        which: usize,
        from: usize,
        to: usize,
        image: bool,
    ) -> Result<(), Corrupt> {
        let slot = self.pattern.slots[which];
        let LogPage { around, lasts, samples, .. } = &mut *self.parts;
        let mut done = 0;
        if slot != NO_SLOT && from < to {
            // Line pointers do not belong to the slot's data.
            let data = &mut self.page[from..if image { to.min(from + LINES_AT) } else { to }];
            done = self.model.slots.code(io, slot.into(), around, lasts, samples.as_mut(), data);
        }
        if !image {
            return if from + done < to { io.text(&mut self.page[from + done..to]) } else { Ok(()) };
        }
        // Line pointers are coded as differences.
        if I::WRITES {
            let mut kept = std::mem::take(&mut self.parts.chunk);
            kept.clear();
            kept.extend_from_slice(&self.page[from..to]);
            lines(&mut kept, true);
            let split = kept.len().min(lines_end(&kept));
            let (head, rows) = kept.split_at_mut(split.max(done));
            io.text(&mut head[done..])?;
            let mut rows = rows.to_vec();
            self.parts.chunk = kept;
            return chunk(io, &mut self.parts.chunk, stream::STRIDE, &mut rows);
        }
        let header = (from + LINES_AT).min(to).max(from + done);
        io.text(&mut self.page[from + done..header])?;
        let split = (from + lines_end(&self.page[from..to])).min(to).max(from + done);
        if header < split {
            io.text(&mut self.page[header..split])?;
        }
        chunk(io, &mut self.parts.chunk, stream::STRIDE, &mut self.page[split.max(header.min(to))..to])?;
        lines(&mut self.page[from..to], false);
        Ok(())
    }
}

/// Returns where an image's line pointers end.
fn lines_end(image: &[u8]) -> usize {
    let lower = usize::from(le16(image, LOWER_AT));
    if image.len() < LINES_AT || lower < LINES_AT || lower > image.len() { LINES_AT } else { lower }
}

/// Replaces line pointers by differences to those before if `forth`, otherwise the reverse.
fn lines(image: &mut [u8], forth: bool) {
    let end = lines_end(image);
    let Some(lines) = image.get_mut(LINES_AT..end) else { return };
    let mut last = 0u32;
    for line in lines.as_chunks_mut::<4>().0 {
        let value = u32::from_le_bytes(*line);
        let result = if forth { value.wrapping_sub(last) } else { value.wrapping_add(last) };
        last = if forth { value } else { result };
        *line = result.to_le_bytes();
    }
}
