//! Reads a page from symbols.

use super::layout::{IMAGE, Stored};
use super::page::{BLOCK, FILE_HEADER, SqliteHeader, kind};
use super::record::{Cell, class, head_bytes, put_varint, varint_len};
use super::write::order_ctx;
use super::{
    BRANCH, CELL_MIN, NEXT, ODD, OVERFLOW, PER_WORD, SqliteBranch, SqliteModel, SqlitePage, SqliteShape,
    Value, WORD_BITS, overflows, streams,
};
use crate::Corrupt;
use crate::columns::Buffers;
use crate::columns::code::{self, get_len};
use crate::entropy::number::{self, unzigzag};
use crate::entropy::{Decoder, Stream};

const BAD: Corrupt = Corrupt("a page of SQLite that cannot be");

/// Reads all of a page that [`super::write::put`] wrote, but its stale bytes, into `page`, which is all zeros. Text
/// comes from `buffers`; the regions of stale bytes are left in `parts`.
pub(crate) fn get(
    model: &SqliteModel,
    all: &[Stream],
    mut decoder: Decoder<'_>,
    parts: &mut SqlitePage,
    buffers: &mut Buffers,
    page: &mut [u8],
) -> Result<(), Corrupt> {
    let usable = page.len().checked_sub(model.reserved).filter(|&usable| usable >= 480).ok_or(BAD)?;
    let d = &mut decoder;
    let place = d.get(all[BRANCH].view(0));
    buffers.begin_reading();
    if place == OVERFLOW && model.overflow {
        get_overflow(all, d, parts, buffers, page)?;
        return decoder.finish().map(drop);
    }
    let branch = model.branches.get(usize::from(place)).ok_or(Corrupt("a branch beyond the model's"))?;
    get_head(branch, all, d, parts, page.len())?;
    get_patterns(branch, all, d, parts)?;
    get_beyond(branch, all, d, parts)?;
    get_order(branch, all, d, parts)?;
    get_gaps(branch, all, d, parts, usable)?;
    parts.clear_image();
    let mut image = std::mem::take(&mut parts.image);
    let read = get_image(branch, all, d, parts, buffers, &mut image);
    parts.image = image;
    read?;
    decoder.finish()?;
    place_cells(branch, parts, usable)?;
    write_cells(branch, parts, page);
    write_blocks(parts, page);
    if kind::is_inner(parts.header.kind) {
        let last = parts.cells.iter().rev().find(|cell| !cell.odd).map_or(0, |cell| cell.child);
        parts.header.right = parts.header.right.wrapping_add(last);
    }
    parts.header.write(page);
    parts.stale_regions(page.len(), usable);
    Ok(())
}

fn get_overflow(
    all: &[Stream],
    d: &mut Decoder<'_>,
    parts: &mut SqlitePage,
    buffers: &mut Buffers,
    page: &mut [u8],
) -> Result<(), Corrupt> {
    let next = d.long_bits(32) as u32;
    let zeros = usize::try_from(number::get(d, &all[NEXT], 0).1).map_err(|_| BAD)?;
    let end = page.len().checked_sub(zeros).filter(|&end| end >= 4).ok_or(BAD)?;
    if buffers.text.len() != end - 4 {
        return Err(Corrupt("text of another length"));
    }
    page[..4].copy_from_slice(&next.to_be_bytes());
    page[4..end].copy_from_slice(&buffers.text);
    buffers.text_taken = buffers.text.len();
    parts.stale.clear();
    Ok(())
}

fn get_image(
    branch: &SqliteBranch,
    all: &[Stream],
    d: &mut Decoder<'_>,
    parts: &mut SqlitePage,
    buffers: &mut Buffers,
    image: &mut [u8],
) -> Result<(), Corrupt> {
    code::read_lengths(&branch.plans, all, d, &mut parts.grid, buffers, image)?;
    let mut at = 0;
    let begins = buffers.ends.iter().map(|&end| {
        let begin = at;
        at += usize::from(end);
        begin
    });
    let begins: Vec<usize> = if parts.grid.rows == 0 { vec![] } else { begins.collect() };
    if at > IMAGE {
        return Err(Corrupt("rows are longer than any page"));
    }
    parts.grid.shift_all(begins.into_iter());
    code::read_contents(&branch.plans, all, d, &mut parts.grid, buffers, image)
}

fn get_head(
    branch: &SqliteBranch,
    all: &[Stream],
    d: &mut Decoder<'_>,
    parts: &mut SqlitePage,
    page_bytes: usize,
) -> Result<(), Corrupt> {
    let streams = branch.streams(all, 0);
    let shape = SqliteShape::from_symbol(d.get(streams[streams::SHAPE].view(0)));
    let cells = usize::from(get_len(d, &streams[streams::COUNT..], 0)?.0);
    let page_kind = branch.signature.kind;
    let begin = if shape.not_first { 0 } else { FILE_HEADER };
    if cells * CELL_MIN > page_bytes {
        return Err(BAD);
    }
    let right = if kind::is_inner(page_kind) {
        unzigzag(number::get(d, &streams[streams::RIGHT], 0).1) as u32
    } else {
        0
    };
    let free = if shape.listed { 0 } else { d.bits(16) as u16 };
    let fragments = if shape.counted { 0 } else { d.bits(8) as u8 };
    parts.shape = shape;
    parts.header = SqliteHeader { begin, kind: page_kind, free, cells, content: 0, fragments, right };
    Ok(())
}

fn get_patterns(
    branch: &SqliteBranch,
    all: &[Stream],
    d: &mut Decoder<'_>,
    parts: &mut SqlitePage,
) -> Result<(), Corrupt> {
    let (cells, layout) = (parts.header.cells, &branch.layout);
    parts.cells.clear();
    parts.cells.resize(cells, Cell::default());
    parts.values.clear();
    parts.values.resize(cells * layout.values, Value::default());
    parts.rows.clear();
    parts.grid.reset(0, 0);
    if cells == 0 {
        return Ok(());
    }
    for (word, patterns) in branch.patterns.iter().enumerate() {
        let streams = branch.streams(all, streams::PATTERNS + 2 * word);
        patterns.get(cells, WORD_BITS, d, streams, &mut parts.packed)?;
        for (n, (cell, &packed)) in parts.cells.iter_mut().zip(&parts.packed).enumerate() {
            if word == 0 {
                cell.odd = packed & ODD == ODD;
            }
            let first = n * layout.values;
            cell.first = first;
            for i in 0..PER_WORD.min(layout.values - word * PER_WORD) {
                let found = (packed >> (1 + 4 * i)) as u8 & 0xF;
                if found >= class::COUNT {
                    return Err(Corrupt("a class of values"));
                }
                if found != class::ABSENT {
                    cell.values = word * PER_WORD + i + 1;
                }
                parts.values[first + word * PER_WORD + i].class = found;
            }
        }
    }
    let regular = parts.cells.iter().enumerate().filter(|(_, cell)| !cell.odd);
    parts.rows.extend(regular.map(|(n, _)| n as u16));
    parts.grid.reset(parts.rows.len(), layout.slots.len());
    for &n in &parts.rows {
        let cell = &parts.cells[usize::from(n)];
        let values = &parts.values[cell.first..cell.first + cell.values];
        if values.iter().any(|value| value.class == class::ABSENT) {
            return Err(Corrupt("a column is missing between others"));
        }
        let present = layout.present(values.iter().map(|value| value.class)).ok_or(BAD)?;
        parts.grid.push(present);
    }
    Ok(())
}

/// Reads what is known of values that go on in overflow pages. `len` of a cut value is the number of its missing bytes
/// until [`measure`] has found its length.
fn get_beyond(
    branch: &SqliteBranch,
    all: &[Stream],
    d: &mut Decoder<'_>,
    parts: &mut SqlitePage,
) -> Result<(), Corrupt> {
    let stream = &branch.streams(all, streams::BEYOND)[0];
    let mut last = 0u32;
    for &n in &parts.rows {
        let cell = &mut parts.cells[usize::from(n)];
        let values = &mut parts.values[cell.first..cell.first + cell.values];
        if !overflows(parts.header.kind, values) {
            continue;
        }
        for value in values {
            if class::is_cut(value.class) {
                let missing = number::get(d, stream, 0).1;
                value.len =
                    usize::try_from(missing).ok().filter(|&len| len <= i32::MAX as usize).ok_or(BAD)?;
            } else if class::is_told(value.class) {
                value.serial = number::get(d, stream, 1).1;
                super::record::value_bytes(value.serial).ok_or(BAD)?;
            }
        }
        last = last.wrapping_add(unzigzag(number::get(d, stream, 2).1) as u32);
        cell.overflow = last;
    }
    Ok(())
}

fn get_order(
    branch: &SqliteBranch,
    all: &[Stream],
    d: &mut Decoder<'_>,
    parts: &mut SqlitePage,
) -> Result<(), Corrupt> {
    let cells = parts.header.cells;
    parts.by_place.clear();
    parts.by_place.extend((0..cells as u16).rev());
    if parts.shape.descending {
        return Ok(());
    }
    let stream = &branch.streams(all, streams::ORDER)[0];
    // The places that are left, from the page's end.
    parts.ranks.clear();
    parts.ranks.extend((0..cells as u16).rev());
    let mut next = 0;
    for n in 0..cells {
        let left = parts.ranks.len();
        let mut at = 0;
        if left > 1 {
            let step = number::get(d, stream, order_ctx(left)).1;
            let step = usize::try_from(step).ok().filter(|&step| step < left).ok_or(BAD)?;
            at = (next + step) % left;
        }
        parts.by_place[usize::from(parts.ranks.remove(at))] = n as u16;
        next = if at < parts.ranks.len() { at } else { 0 };
    }
    Ok(())
}

fn get_gaps(
    branch: &SqliteBranch,
    all: &[Stream],
    d: &mut Decoder<'_>,
    parts: &mut SqlitePage,
    usable: usize,
) -> Result<(), Corrupt> {
    parts.gaps.clear();
    parts.blocks.clear();
    if parts.shape.dense {
        parts.gaps.resize(parts.header.cells + 1, 0);
        return Ok(());
    }
    let streams = branch.streams(all, 0);
    let (mut last, mut total) = (0, 0);
    for _ in 0..=parts.header.cells {
        let (symbol, gap) = number::get(d, &streams[streams::GAP], last);
        last = symbol;
        let gap = usize::try_from(gap).ok().filter(|&gap| gap <= usable).ok_or(BAD)?;
        total += gap;
        if total > usable {
            return Err(BAD);
        }
        parts.gaps.push(gap as u16);
        if gap >= BLOCK {
            parts.blocks.push(d.get(streams[streams::BLOCK].view(0)));
        }
    }
    Ok(())
}

/// Finds types and lengths of the values of row `t`, which is cell `n`. Returns the bytes of the record's header, of
/// its values in this page, and of its values in overflow pages.
fn measure(
    branch: &SqliteBranch,
    parts: &mut SqlitePage,
    t: u16,
    n: usize,
) -> Result<(usize, usize, u64), Corrupt> {
    let SqlitePage { cells, values, image, grid, .. } = parts;
    let cell = cells[n];
    let (mut types, mut here, mut beyond) = (0, 0, 0);
    for (c, value) in values[cell.first..cell.first + cell.values].iter_mut().enumerate() {
        match value.class {
            class::NULL => value.serial = 0,
            class::BEYOND => beyond += super::record::value_bytes(value.serial).unwrap_or(0) as u64,
            class::CUT_NUMBER => {
                let all = super::record::value_bytes(value.serial).unwrap_or(0);
                value.len = branch.layout.value(image, grid, (c, t), class::CUT_NUMBER).len;
                here += value.len;
                beyond += all.checked_sub(value.len).ok_or(BAD)? as u64;
            }
            found => {
                let Stored { serial, len, .. } = branch.layout.value(image, grid, (c, t), found);
                let missing = if class::is_cut(found) { value.len as u64 } else { 0 };
                value.serial = serial + 2 * missing;
                value.len = len;
                here += len;
                beyond += missing;
            }
        }
        types += varint_len(value.serial);
    }
    Ok((head_bytes(types), here, beyond))
}

/// Finds the places of the cells.
fn place_cells(branch: &SqliteBranch, parts: &mut SqlitePage, usable: usize) -> Result<(), Corrupt> {
    let page_kind = parts.header.kind;
    let mut total = 0;
    for row in 0..parts.rows.len() {
        let n = usize::from(parts.rows[row]);
        let (child, rowid) = branch.layout.ids(&parts.image, &parts.grid, row as u16);
        let mut len = if kind::is_inner(page_kind) { 4 } else { 0 };
        if kind::is_table(page_kind) {
            len += varint_len(rowid as u64);
        }
        if kind::has_record(page_kind) {
            let (head, here, beyond) = measure(branch, parts, row as u16, n)?;
            len += varint_len((head + here) as u64 + beyond) + head + here;
            let cell = &parts.cells[n];
            let overflow = overflows(page_kind, &parts.values[cell.first..cell.first + cell.values]);
            len += if overflow { 4 } else { 0 };
        }
        let cell = &mut parts.cells[n];
        (cell.child, cell.rowid, cell.end) = (child, rowid, len);
        total += len;
    }
    let gaps: usize = parts.gaps.iter().map(|&gap| usize::from(gap)).sum();
    let content = usable.checked_sub(total + gaps).ok_or(Corrupt("cells are longer than their page"))?;
    if content < parts.header.pointers_end() {
        return Err(Corrupt("cells reach into their pointers"));
    }
    parts.header.content = content;
    let mut at = content;
    for (&n, &gap) in parts.by_place.iter().zip(&parts.gaps) {
        let cell = &mut parts.cells[usize::from(n)];
        cell.at = at + usize::from(gap);
        at = cell.at + if cell.odd { 0 } else { cell.end };
        cell.end = at;
    }
    Ok(())
}

/// Writes cells and their pointers. All places are within the page.
fn write_cells(branch: &SqliteBranch, parts: &SqlitePage, page: &mut [u8]) {
    let pointers = parts.header.pointers();
    for (n, cell) in parts.cells.iter().enumerate() {
        page[pointers + 2 * n..pointers + 2 * n + 2].copy_from_slice(&(cell.at as u16).to_be_bytes());
    }
    let page_kind = parts.header.kind;
    for (t, &n) in (0..).zip(&parts.rows) {
        let cell = &parts.cells[usize::from(n)];
        let values = &parts.values[cell.first..cell.first + cell.values];
        let mut at = cell.at;
        if kind::is_inner(page_kind) {
            page[at..at + 4].copy_from_slice(&cell.child.to_be_bytes());
            at += 4;
        }
        let types: usize = values.iter().map(|value| varint_len(value.serial)).sum();
        let head = head_bytes(types);
        if kind::has_record(page_kind) {
            let total =
                values.iter().map(|value| super::record::value_bytes(value.serial).unwrap_or(0) as u64);
            at = put_varint(page, at, head as u64 + total.sum::<u64>());
        }
        if kind::is_table(page_kind) {
            at = put_varint(page, at, cell.rowid as u64);
        }
        if !kind::has_record(page_kind) {
            continue;
        }
        at = put_varint(page, at, head as u64);
        for value in values {
            at = put_varint(page, at, value.serial);
        }
        for (c, value) in values.iter().enumerate() {
            if matches!(value.class, class::NULL | class::BEYOND) {
                continue;
            }
            let stored = branch.layout.value(&parts.image, &parts.grid, (c, t), value.class);
            let to = &mut page[at..at + stored.len];
            if class::is_bytes(value.class) {
                to.copy_from_slice(&parts.image[stored.at..stored.at + stored.len]);
            } else {
                to.copy_from_slice(&stored.number.to_be_bytes()[8 - stored.len..]);
            }
            at += stored.len;
        }
        if overflows(page_kind, values) {
            page[at..at + 4].copy_from_slice(&cell.overflow.to_be_bytes());
        }
    }
}

/// Writes the heads of free blocks, and sets the fields of the page's header that follow from them.
fn write_blocks(parts: &mut SqlitePage, page: &mut [u8]) {
    let (first, fragments) = parts.blocks_and_fragments();
    if parts.shape.counted {
        parts.header.fragments = fragments;
    }
    if !parts.shape.listed {
        return;
    }
    parts.header.free = first;
    let mut last = None;
    parts.each_gap(|_, _, block| {
        if let Some((at, size)) = block {
            page[at + 2..at + 4].copy_from_slice(&(size as u16).to_be_bytes());
            if let Some(last) = last {
                page[last..last + 2].copy_from_slice(&(at as u16).to_be_bytes());
            }
            last = Some(at);
        }
    });
}
