//! Walks over a page: header, the rest of a record that began before, records.

mod record;

use super::page::{ALIGNED, CONTINUES, CRC_AT, LONG, LONG_HEADER, RecordHead, SHORT_HEADER, checksum};
use super::{ANY, END, ODD, REST, RecordPattern, WalModel, stream};
use crate::Corrupt;
use crate::entropy::number::{unzigzag, zigzag};
use crate::log::io::Io;
use crate::log::{LogPage, chunk};
use crate::wire::{le16, le32};

/// Places in the surroundings, and numbers of bytes.
mod around {
    /// The record's transaction.
    pub(super) const XID: usize = 0;
    /// Block numbers: of the record's first two blocks, of the first block of the record before, and of the last tuple
    /// that was put into a heap.
    pub(super) const BLOCKS: usize = 4;
    pub(super) const BEFORE: usize = 12;
    pub(super) const TUPLE: usize = 16;
    /// Main data and data of the last tuple; main data of the record before, and of this record.
    pub(super) const TUPLE_MAIN: usize = 20;
    pub(super) const TUPLE_DATA: usize = 36;
    pub(super) const MAIN_BEFORE: usize = 132;
    pub(super) const MAIN: usize = 148;
    pub(super) const MAIN_BYTES: usize = 16;
    pub(super) const DATA_BYTES: usize = 96;
}

fn put16(page: &mut [u8], at: usize, value: u64) {
    if let Some(bytes) = page.get_mut(at..at + 2) {
        bytes.copy_from_slice(&(value as u16).to_le_bytes());
    }
}

fn put32(page: &mut [u8], at: usize, value: u64) {
    if let Some(bytes) = page.get_mut(at..at + 4) {
        bytes.copy_from_slice(&(value as u32).to_le_bytes());
    }
}

/// Codes the number of two bytes at `at`, and returns it.
fn number16<I: Io>(io: &mut I, page: &mut [u8], at: usize, id: usize, ctx: u8) -> usize {
    let value = io.number(id, ctx, le16(page, at).into());
    put16(page, at, value);
    usize::from(value as u16)
}

/// Codes the number of four bytes at `at` as its difference to `base`, and returns it.
fn near32<I: Io>(io: &mut I, page: &mut [u8], at: usize, id: usize, ctx: u8, base: u32) -> u32 {
    let difference = le32(page, at).wrapping_sub(base) as i32;
    let coded = io.number(id, ctx, zigzag(difference.into()));
    let value = base.wrapping_add(unzigzag(coded) as u32);
    put32(page, at, value.into());
    value
}

pub(super) fn address(page: &[u8]) -> u64 {
    page.get(8..).and_then(|rest| rest.first_chunk().copied()).map_or(0, u64::from_le_bytes)
}

/// Returns the address of the record before the one at `at`, as that one has it.
fn prev(page: &[u8], at: usize) -> u64 {
    address(page.get(at..).unwrap_or_default())
}

pub(super) fn walk<I: Io>(
    model: &WalModel,
    io: &mut I,
    parts: &mut LogPage,
    page: &mut [u8],
) -> Result<(), Corrupt> {
    parts.around.fill(0);
    parts.lasts.begin(&model.slots);
    let wal = &mut parts.wal;
    wal.blocks.clear();
    wal.blocks.extend(model.rels.iter().map(|(_, block)| *block));
    wal.fresh.clear();
    wal.records.clear();
    wal.carried_at = None;
    let mut at = header(model, io, parts, page)?;
    let rest = usize::try_from(le32(page, 16)).unwrap_or(usize::MAX).min(page.len() - at);
    chunk(io, &mut parts.chunk, stream::STRIDE, &mut page[at..at + rest])?;
    at = (at + rest).next_multiple_of(ALIGNED);
    let (mut last, mut start, mut xid) = (0, None, model.xid);
    while at + ALIGNED <= page.len() {
        let found = if I::WRITES { classify(model, parts, page, at, start) } else { 0 };
        let symbol = io.symbol(stream::PATTERN, last, found);
        last = symbol;
        match symbol {
            END => return Ok(()),
            REST => return chunk(io, &mut parts.chunk, stream::STRIDE, &mut page[at..]),
            ODD => {
                let total = io.number(stream::ODD, 0, le32(page, at).into());
                put32(page, at, total);
                let end = usize::try_from(total).unwrap_or(usize::MAX).min(page.len() - at);
                if end <= 4 {
                    return Err(Corrupt("a log's record is too short"));
                }
                io.text(&mut page[at + 4..at + end])?;
                start = Some(at);
                at = (at + end).next_multiple_of(ALIGNED);
            }
            _ => {
                let pattern = model.patterns.get(usize::from(symbol)).ok_or(Corrupt("a log's pattern"))?;
                let mut record = WalRecord { model, pattern, symbol, at, parts, page };
                let end = record.code(io, start, &mut xid)?;
                start = Some(at);
                at = end.next_multiple_of(ALIGNED);
            }
        }
    }
    Ok(())
}

/// Codes the page's header; returns where it ends.
fn header<I: Io>(
    model: &WalModel,
    io: &mut I,
    parts: &mut LogPage,
    page: &mut [u8],
) -> Result<usize, Corrupt> {
    if page.len() < LONG_HEADER {
        return Err(Corrupt("a log's page is too short"));
    }
    let magic = io.number(stream::HEAD, 0, (le16(page, 0) ^ model.magic).into());
    put16(page, 0, magic ^ u64::from(model.magic));
    let info = number16(io, page, 2, stream::HEAD, 1) as u16;
    let timeline = io.number(stream::HEAD, 2, (le32(page, 4) ^ model.timeline).into());
    put32(page, 4, timeline ^ u64::from(model.timeline));
    // A state of the coder carries the low 16 bits of the page's number.
    let bytes = page.len() as u64;
    let high = (address(page) / bytes) >> 16;
    let base = (model.address / bytes) >> 16;
    let coded = io.number(stream::HEAD, 3, zigzag(high.wrapping_sub(base) as i64));
    let high = base.wrapping_add(unzigzag(coded) as u64);
    parts.wal.address = if I::WRITES { address(page) } else { (high << 16).wrapping_mul(bytes) };
    if info & CONTINUES != 0 {
        let rest = io.number(stream::HEAD, 4, le32(page, 16).into());
        put32(page, 16, rest);
    }
    if info & LONG == 0 {
        return Ok(SHORT_HEADER);
    }
    io.plain(&mut page[SHORT_HEADER..LONG_HEADER])?;
    Ok(LONG_HEADER)
}

/// Returns the symbol for the bytes from `at` on. It is a pattern only if all holds that a pattern takes for granted.
fn classify(model: &WalModel, parts: &LogPage, page: &[u8], at: usize, start: Option<usize>) -> u8 {
    let total = le32(page, at) as usize;
    if page[at..].iter().all(|&byte| byte == 0) {
        return END;
    }
    if total <= 4 {
        return REST;
    }
    let Some(head) = RecordHead::parse(page, at) else { return ODD };
    let at_prev = prev(page, at);
    let here = parts.wal.address.wrapping_add(at as u64);
    let distance = here.wrapping_sub(at_prev);
    let expected = start.map_or(distance, |start| (at - start) as u64);
    let whole = page.get(at..at + total);
    let padded = (at + total..(at + total).next_multiple_of(ALIGNED))
        .all(|at| page.get(at).is_none_or(|&byte| byte == 0));
    let as_usual = le16(page, at + 18) == 0
        && distance == expected
        && distance.is_multiple_of(ALIGNED as u64)
        && padded
        && whole.is_none_or(|record| checksum(record) == le32(page, at + CRC_AT));
    if !as_usual {
        return ODD;
    }
    let known =
        head.key(|block| model.rel_numbers.get(&super::page::rel_of(page, block)).copied().unwrap_or(ANY));
    let found = model.by_key.get(&known).or_else(|| model.by_key.get(&head.key(|_| ANY)));
    found.copied().unwrap_or(ODD)
}

/// A record with a pattern.
struct WalRecord<'a> {
    model: &'a WalModel,
    pattern: &'a RecordPattern,
    symbol: u8,
    at: usize,
    parts: &'a mut LogPage,
    page: &'a mut [u8],
}

/// Writes the fields that are known once the code has ended: the page's address, places of records before, checksums.
pub(super) fn finish(parts: &mut LogPage, carried: [u16; 2], page: &mut [u8]) {
    let wal = &mut parts.wal;
    wal.address = wal.address.wrapping_add(u64::from(carried[0]).wrapping_mul(page.len() as u64));
    page[8..16].copy_from_slice(&wal.address.to_le_bytes());
    if let Some(at) = wal.carried_at {
        put16(page, at + CRC_AT, carried[1].into());
    }
    for &(at, distance, whole) in &wal.records {
        let before = wal.address.wrapping_add(at as u64).wrapping_sub(distance);
        page[at + 8..at + 16].copy_from_slice(&before.to_le_bytes());
        if whole {
            let total = le32(page, at) as usize;
            let crc = checksum(page.get(at..at + total).unwrap_or_default());
            put32(page, at + CRC_AT, crc.into());
        }
    }
}

#[cfg(test)]
mod tests;
