//! Walks over a block: the end of a mini-transaction that began before, then mini-transactions.

use super::page::{
    END_BYTES, EXTENDED, KIND, RedoRecord, SAME_PAGE, length, put_varint, transaction, varint,
};
use super::{ANY, END, REST, RedoModel, ZERO, stream};
use crate::Corrupt;
use crate::entropy::number::{unzigzag, zigzag};
use crate::log::io::Io;
use crate::log::{LogPage, chunk};
use crate::wire::le16;

/// Bytes at a block's beginning that the coder's states carry, if they belong to no mini-transaction that is coded.
const CARRIED: usize = 4;

/// Places in the surroundings: the page, the page before, data of the last three records.
mod around {
    pub(super) const PAGE: usize = 0;
    pub(super) const PAGE_BEFORE: usize = 4;
    pub(super) const DATA: usize = 8;
    pub(super) const DATA_BYTES: usize = 60;
}

const BEYOND: Corrupt = Corrupt("a redo log's record is beyond its block");

/// Returns the bits that the states carry of a block whose first mini-transaction begins at `begin`.
pub(super) fn carried(block: &[u8], begin: usize) -> [u16; 2] {
    if begin < CARRIED { [0; 2] } else { [le16(block, 0), le16(block, 2)] }
}

/// Writes the bits that the states carried.
pub(super) fn put_carried(block: &mut [u8], begin: usize, carried: [u16; 2]) {
    if begin >= CARRIED {
        for (bytes, carried) in block.as_chunks_mut::<2>().0.iter_mut().zip(carried) {
            *bytes = carried.to_le_bytes();
        }
    }
}

/// Walks over `block`; returns where its first mini-transaction begins, which is `begin` when writing.
pub(super) fn walk<I: Io>(
    model: &RedoModel,
    io: &mut I,
    parts: &mut LogPage,
    block: &mut [u8],
    begin: usize,
) -> Result<usize, Corrupt> {
    parts.around.fill(0);
    parts.lasts.begin(&model.slots);
    parts.redo.pages.clear();
    parts.redo.pages.extend(model.spaces.iter().map(|(_, page)| *page));
    let begin = usize::try_from(io.number(stream::HEAD, 0, begin as u64)).unwrap_or(usize::MAX);
    if begin > block.len() {
        return Err(BEYOND);
    }
    let free = if begin < CARRIED { 0 } else { CARRIED };
    chunk(io, &mut parts.chunk, stream::STRIDE, &mut block[free..begin])?;
    let (mut at, mut start, mut last) = (begin, begin, 0);
    let mut walker = Walker { model, parts, space: ANY, page: 0, other_page: 0 };
    while at < block.len() {
        let found = if I::WRITES { walker.classify(block, start, at) } else { 0 };
        let symbol = io.symbol(stream::PATTERN, last, found);
        last = symbol;
        match symbol {
            ZERO => break,
            REST => {
                chunk(io, &mut walker.parts.chunk, stream::STRIDE, &mut block[at..])?;
                break;
            }
            END..=ANY => {
                let crc = crc32c::crc32c(&block[start..at]).to_be_bytes();
                let end = block.get_mut(at..at + END_BYTES).ok_or(BEYOND)?;
                end[0] = symbol - END;
                end[1..].copy_from_slice(&crc);
                at += END_BYTES;
                start = at;
            }
            _ => at = walker.record(io, symbol, block, at)?,
        }
    }
    Ok(begin)
}

struct Walker<'a> {
    model: &'a RedoModel,
    parts: &'a mut LogPage,
    /// Mark of the last record's tablespace, and its page.
    space: u8,
    page: u32,
    /// The last page of a tablespace that the model does not know.
    other_page: u32,
}

impl Walker<'_> {
    /// Returns the symbol for the bytes from `at` on, in a mini-transaction that begins at `start`.
    fn classify(&self, block: &[u8], start: usize, at: usize) -> u8 {
        let model = self.model;
        if block[at..].iter().all(|&byte| byte == 0) {
            return ZERO;
        }
        if block[at] <= 1 {
            return if transaction(block, start) == Some(at) { END + block[at] } else { REST };
        }
        let Some(record) = RedoRecord::parse(block, at) else { return REST };
        if !is_canonical(block, at, &record) {
            return REST;
        }
        let space = match record.page {
            Some((space, _)) => model.space_numbers.get(&space).copied().unwrap_or(ANY),
            None => self.space,
        };
        let [first, begins, space] = record.key(block, space);
        let found = [[first, begins, space], [first, ANY, space], [first, begins, ANY], [first, ANY, ANY]];
        found.iter().find_map(|key| model.by_key.get(key)).copied().unwrap_or(REST)
    }

    /// Codes the record at `at`; returns where it ends.
    fn record<I: Io>(
        &mut self,
        io: &mut I,
        symbol: u8,
        block: &mut [u8],
        at: usize,
    ) -> Result<usize, Corrupt> {
        let [first, begins, space] =
            *self.model.patterns.get(usize::from(symbol)).ok_or(Corrupt("a redo log's pattern"))?;
        let record = if I::WRITES { RedoRecord::parse(block, at) } else { None };
        block[at] = first;
        let mut next = at + 1;
        let mut bytes = usize::from(first & 15);
        if bytes == 0 {
            let more = record.and_then(|record| record.more).unwrap_or(0);
            let more = io.number(stream::LENGTH, symbol, more.into());
            let told = put_varint(block, next, more as u32).ok_or(BEYOND)?;
            next += told;
            bytes = varint(block, next - told).and_then(length).ok_or(BEYOND)?;
        }
        let end = next + bytes;
        if end > block.len() {
            return Err(BEYOND);
        }
        if first & SAME_PAGE == 0 {
            let (number, page) = record.and_then(|record| record.page).unwrap_or_default();
            next = self.page(io, symbol, space, (number, page), block, next)?;
        }
        if next > end {
            return Err(BEYOND);
        }
        let mut skipped = 0;
        if first & KIND >= EXTENDED && next < end {
            if begins == ANY {
                block[next] = io.symbol(stream::BEGINS, symbol, block[next]);
            } else {
                block[next] = begins;
            }
            skipped = 1;
        }
        let LogPage { around, lasts, samples, .. } = &mut *self.parts;
        let data = &mut block[next..end];
        let done =
            self.model.slots.code(io, symbol.into(), around, lasts, samples.as_mut(), &mut data[skipped..]);
        io.text(&mut data[skipped + done..])?;
        around.copy_within(
            around::DATA..around::DATA + 2 * around::DATA_BYTES,
            around::DATA + around::DATA_BYTES,
        );
        let kept = &mut around[around::DATA..around::DATA + around::DATA_BYTES];
        let some = data.len().min(around::DATA_BYTES);
        kept.fill(0);
        kept[..some].copy_from_slice(&data[..some]);
        Ok(end)
    }

    /// Codes tablespace and page of a record; returns where they end.
    fn page<I: Io>(
        &mut self,
        io: &mut I,
        symbol: u8,
        space: u8,
        (number, page): (u32, u32),
        block: &mut [u8],
        mut at: usize,
    ) -> Result<usize, Corrupt> {
        // A pattern of any tablespace does not tell which of the known ones it is.
        let mut mark = space;
        if space == ANY {
            let known = self.model.space_numbers.get(&number).copied().unwrap_or(ANY);
            mark = io.symbol(stream::SPACE, symbol, known);
        }
        let number = match self.model.spaces.get(usize::from(mark)) {
            Some((number, _)) => *number,
            None => io.number(stream::HEAD, 1, number.into()) as u32,
        };
        at += put_varint(block, at, number).ok_or(BEYOND)?;
        let last = self.parts.redo.pages.get_mut(usize::from(mark)).unwrap_or(&mut self.other_page);
        let told = io.number(stream::PAGE, symbol, zigzag((page.wrapping_sub(*last) as i32).into()));
        *last = last.wrapping_add(unzigzag(told) as u32);
        let around = &mut self.parts.around;
        around[around::PAGE_BEFORE..around::PAGE_BEFORE + 4].copy_from_slice(&self.page.to_le_bytes());
        self.page = *last;
        around[around::PAGE..around::PAGE + 4].copy_from_slice(&self.page.to_le_bytes());
        self.space = mark;
        at += put_varint(block, at, *last).ok_or(BEYOND)?;
        Ok(at)
    }
}

/// Returns true if all numbers of a record's head are as short as they can be.
fn is_canonical(block: &[u8], at: usize, record: &RedoRecord) -> bool {
    let mut head = [0; 16];
    let mut next = 1;
    for number in [record.more, record.page.map(|(space, _)| space), record.page.map(|(_, page)| page)]
        .into_iter()
        .flatten()
    {
        let Some(bytes) = put_varint(&mut head, next, number) else { return false };
        next += bytes;
    }
    at + next == record.data && head[1..next] == block[at + 1..record.data]
}
