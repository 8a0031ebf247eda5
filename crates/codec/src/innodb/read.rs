//! Reads an index page from symbols.

use super::page::{
    Ends, HEAP, INFIMUM, InnodbHeader, MAX_RECORDS, NO_PAGE, RECORD, SEGMENTS, SUPREMUM, SYSTEM_RECORDS,
    directory, put_system_records, slot, status,
};
use super::{
    BRANCH, INSTANT_INFO, InnodbBranch, InnodbModel, InnodbPage, InnodbRecord, InnodbShape, LSN_LOW_BITS,
    MAX_OWNED, NOBODY, PATTERN_BITS, streams,
};
use crate::Corrupt;
use crate::columns::Buffers;
use crate::columns::code::{self, get_len};
use crate::entropy::number::{self, unzigzag};
use crate::entropy::{Decoder, Stream};

/// Largest code of a sibling: one more than the largest difference of two page numbers, whose sign is the lowest bit.
const SIBLING_MAX: u64 = 1 << 32;
const BAD: Corrupt = Corrupt("an index page that cannot be");

/// Reads all of a page that [`super::write::put`] wrote, but its stale bytes and [`Ends`], into `page`, which is all
/// zeros. Text comes from `buffers`; the regions of stale bytes are left in `parts`.
pub(crate) fn get(
    model: &InnodbModel,
    all: &[Stream],
    mut decoder: Decoder<'_>,
    parts: &mut InnodbPage,
    buffers: &mut Buffers,
    page: &mut [u8],
) -> Result<(), Corrupt> {
    let d = &mut decoder;
    let place = d.get(all[BRANCH].view(0));
    let branch = model.branches.get(usize::from(place)).ok_or(Corrupt("a branch beyond the model's"))?;
    let siblings = get_head(branch, all, d, parts, page.len())?;
    get_patterns(branch, all, d, parts)?;
    get_groups(branch, all, d, parts, page.len())?;
    get_order(branch, all, d, parts)?;
    buffers.begin_reading();
    code::read_lengths(&branch.plans, all, d, &mut parts.grid, buffers, page)?;
    place_records(branch, all, d, parts, buffers, page.len())?;
    code::read_contents(&branch.plans, all, d, &mut parts.grid, buffers, page)?;
    let [lsn, number] = decoder.finish()?;
    complete_head(parts, lsn, number, siblings);
    write_records(branch, parts, page)?;
    parts.header.write(page);
    parts.stale_regions(page.len(), !parts.shape.gaps_zero, !parts.shape.hole_zero);
    Ok(())
}

/// Reads the symbols before those of records. Returns the codes of the two siblings relative to the page's number; 0
/// stands for none.
fn get_head(
    branch: &InnodbBranch,
    all: &[Stream],
    d: &mut Decoder<'_>,
    parts: &mut InnodbPage,
    page_bytes: usize,
) -> Result<[u64; 2], Corrupt> {
    let streams = branch.streams(all, 0);
    let shape = InnodbShape::from_symbol(d.get(streams[streams::SHAPE].view(0)));
    let records = usize::from(get_len(d, &streams[streams::COUNT..], 0)?.0);
    let free = usize::from(get_len(d, &streams[streams::FREE_COUNT..], 0)?.0);
    if records + free > MAX_RECORDS || HEAP + RECORD * (records + free) > page_bytes {
        return Err(BAD);
    }
    let mut number = |stream: usize, ctx: u8| number::get(d, &streams[stream], ctx).1;
    let lsn = unzigzag(number(streams::LSN, 0)) as u64;
    let high = number(streams::NUMBER, 0) as u32;
    // Siblings are relative to the page number, whose low half comes at the end.
    let siblings = [1, 2].map(|ctx| number(streams::NUMBER, ctx));
    if siblings.iter().any(|&code| code > SIBLING_MAX) {
        return Err(BAD);
    }
    let level = number(streams::REST, 0);
    let space = unzigzag(number(streams::REST, 1)) as u32;
    let trx = unzigzag(number(streams::REST, 2)) as u64;
    let garbage = if shape.garbage { 0 } else { number(streams::REST, 3) };
    let last_insert = number(streams::LAST_INSERT, 0);
    let last_insert = if last_insert == 1 { 1 << 16 | d.bits(16) as usize } else { last_insert as usize };
    let direction = d.get(streams[streams::DIRECTION].view(0));
    let same_direction = number::get(d, &streams[streams::DIRECTION], 1).1 as u16;
    let mut segments = [0; SEGMENTS];
    if !shape.no_root {
        segments.fill_with(|| d.bits(8) as u8);
    }
    if shape.ends == Ends::Other {
        parts.ends.fill_with(|| d.bits(8) as u8);
    }
    parts.shape = shape;
    parts.header = InnodbHeader {
        number: high << 16,
        previous: NO_PAGE,
        next: NO_PAGE,
        lsn: lsn.wrapping_add(branch.lsn) << LSN_LOW_BITS,
        space: branch.space.wrapping_add(space),
        slots: 0,
        heap_top: 0,
        heap: records + free + SYSTEM_RECORDS,
        free: 0,
        garbage: garbage as usize,
        last_insert,
        direction,
        same_direction,
        records,
        max_trx: branch.trx.wrapping_add(trx),
        level: level as u16,
        index: branch.index,
        segments,
    };
    Ok(siblings)
}

fn get_patterns(
    branch: &InnodbBranch,
    all: &[Stream],
    d: &mut Decoder<'_>,
    parts: &mut InnodbPage,
) -> Result<(), Corrupt> {
    let count = parts.header.heap - SYSTEM_RECORDS;
    parts.packed.clear();
    if count > 0 {
        let streams = branch.streams(all, streams::PATTERN);
        branch.patterns.get(count, PATTERN_BITS, d, streams, &mut parts.packed)?;
    }
    parts.records.clear();
    parts.records.extend(parts.packed.iter().map(|&pattern| InnodbRecord::from_pattern(pattern)));
    parts.rows.clear();
    let regular = parts.records.iter().enumerate().filter(|(_, record)| !record.odd);
    parts.rows.extend(regular.map(|(n, _)| n as u16));
    parts.grid.reset(parts.rows.len(), branch.layout.fields.len());
    let expected = if parts.header.level == 0 { status::ORDINARY } else { status::NODE };
    for &n in &parts.rows {
        let record = &parts.records[usize::from(n)];
        let fits = record.status == expected && record.info & INSTANT_INFO == 0;
        let bitmap = record.extent.bitmap;
        let known = fits && bitmap >> (8 * branch.layout.bitmap_bytes) == 0;
        let present = branch.layout.present(bitmap).filter(|_| known).ok_or(BAD)?;
        parts.grid.push(present);
    }
    Ok(())
}

/// Reads the groups of the directory, and sets the numbers that records own.
fn get_groups(
    branch: &InnodbBranch,
    all: &[Stream],
    d: &mut Decoder<'_>,
    parts: &mut InnodbPage,
    page_bytes: usize,
) -> Result<(), Corrupt> {
    let streams = branch.streams(all, streams::GROUP);
    parts.groups.clear();
    let (mut done, mut last) = (0, 0);
    let total = parts.header.records + 1;
    while done < total {
        last = d.get(streams[0].view(last));
        let run = usize::try_from(number::get(d, &streams[1], last).1).map_err(|_| BAD)?;
        if last == 0 || last > MAX_OWNED || run == 0 || run > (total - done) / usize::from(last) {
            return Err(Corrupt("groups of another number of records"));
        }
        done += run * usize::from(last);
        parts.groups.resize(parts.groups.len() + run, last);
    }
    let mut owner = 0;
    for &size in &parts.groups[..parts.groups.len() - 1] {
        owner += usize::from(size);
        parts.records[owner - 1].owned = size;
    }
    parts.header.slots = parts.groups.len() + 1;
    directory(page_bytes, parts.header.slots).filter(|&at| at >= HEAP).map(drop).ok_or(BAD)
}

/// Reads the numbers of records in the heap.
fn get_order(
    branch: &InnodbBranch,
    all: &[Stream],
    d: &mut Decoder<'_>,
    parts: &mut InnodbPage,
) -> Result<(), Corrupt> {
    parts.by_heap.clear();
    parts.by_heap.resize(parts.records.len(), NOBODY);
    let listed = parts.header.records;
    let ranges = [
        (streams::FREE_LIST, listed..parts.records.len()),
        (streams::HEAP_ORDER, 0..if parts.shape.plain_order { 0 } else { listed }),
    ];
    for (stream, range) in ranges {
        let stream = &branch.streams(all, stream)[0];
        let (mut expected, mut last) = (SYSTEM_RECORDS as i64, 0);
        for n in range {
            let (symbol, step) = number::get(d, stream, last);
            last = symbol.min(1);
            let heap = expected.wrapping_add(unzigzag(step));
            let number = usize::try_from(heap).ok().and_then(|heap| heap.checked_sub(SYSTEM_RECORDS));
            let place = number.and_then(|number| parts.by_heap.get_mut(number));
            *place.filter(|place| **place == NOBODY).ok_or(BAD)? = n as u16;
            expected = heap + 1;
        }
    }
    if parts.shape.plain_order {
        let vacant = parts.by_heap.iter_mut().filter(|place| **place == NOBODY);
        vacant.zip(0..).for_each(|(place, n)| *place = n);
    }
    for (number, &n) in parts.by_heap.iter().enumerate() {
        parts.records[usize::from(n)].heap = number + SYSTEM_RECORDS;
    }
    Ok(())
}

/// Finds the places of records, and moves the grid's rows there.
fn place_records(
    branch: &InnodbBranch,
    all: &[Stream],
    d: &mut Decoder<'_>,
    parts: &mut InnodbPage,
    buffers: &Buffers,
    page_bytes: usize,
) -> Result<(), Corrupt> {
    let layout = &branch.layout;
    // Until places are known, extents hold lengths.
    for (row, (&n, &end)) in parts.rows.iter().zip(&buffers.ends).enumerate() {
        let mut before = RECORD + layout.bitmap_bytes;
        for (c, field) in layout.fields.iter().enumerate() {
            if field.width == 0 && parts.grid.present[row] >> c & 1 == 1 {
                let cell = parts.grid.cell(c, row as u16);
                let (len, form) = (usize::from(parts.grid.len[cell]), parts.grid.form[cell]);
                before += field.length_bytes(len, form).ok_or(Corrupt("a length that no column has"))?;
            }
        }
        let record = &mut parts.records[usize::from(n)];
        (record.extent.start, record.extent.end) = (before, usize::from(end));
    }
    let stream = &branch.streams(all, streams::GAP)[0];
    let ceiling = slot(page_bytes, parts.header.slots - 1);
    parts.gaps.clear();
    let (mut at, mut last) = (HEAP, 0);
    for h in 0..=parts.by_heap.len() {
        let mut gap = 0;
        if !parts.shape.dense {
            (last, gap) = number::get(d, stream, last);
        }
        at += usize::try_from(gap).ok().filter(|&gap| gap <= ceiling).ok_or(BAD)?;
        parts.gaps.push(gap as u16);
        if let Some(&n) = parts.by_heap.get(h) {
            let record = &mut parts.records[usize::from(n)];
            let (before, behind) =
                if record.odd { (RECORD, 0) } else { (record.extent.start, record.extent.end) };
            record.extent.start = at;
            record.origin = at + before;
            at = record.origin + behind;
            record.extent.end = at;
        }
        if at > ceiling {
            return Err(Corrupt("records reach into the directory"));
        }
    }
    parts.header.heap_top = at;
    if parts.shape.garbage {
        parts.header.garbage = parts.garbage();
    }
    parts.grid.shift_all(parts.rows.iter().map(|&n| parts.records[usize::from(n)].origin));
    Ok(())
}

/// Sets the fields of the header that depend on numbers at the end of the code, or on places.
fn complete_head(parts: &mut InnodbPage, lsn: u16, number: u16, [previous, next]: [u64; 2]) {
    let header = &mut parts.header;
    header.lsn |= u64::from(lsn);
    header.number |= u32::from(number);
    let sibling = |code: u64, usual: u32| match code {
        0 => NO_PAGE,
        code => usual.wrapping_add(unzigzag(code - 1) as u32),
    };
    header.previous = sibling(previous, header.number.wrapping_sub(1));
    header.next = sibling(next, header.number.wrapping_add(1));
    header.last_insert = match header.last_insert {
        0 => 0,
        place if place >> 16 == 1 => place & 0xFFFF,
        place => {
            let n = parts.by_heap.iter().rev().nth(place.saturating_sub(2)).copied();
            n.map_or(0, |n| parts.records[usize::from(n)].origin)
        }
    };
    header.free = parts.records.get(header.records).map_or(0, |record| record.origin);
}

/// Writes headers, lengths and null bitmaps of records, the lists, and the directory.
fn write_records(branch: &InnodbBranch, parts: &InnodbPage, page: &mut [u8]) -> Result<(), Corrupt> {
    let listed = parts.header.records;
    let origin = |n: usize| parts.records.get(n).map_or(0, |record| record.origin);
    for (n, record) in parts.records.iter().enumerate() {
        record.write(page, if n + 1 == listed { SUPREMUM } else { origin(n + 1) });
    }
    let first = if listed == 0 { SUPREMUM } else { origin(0) };
    put_system_records(page, parts.groups.last().copied().ok_or(BAD)?, first);
    let bitmap_bytes = branch.layout.bitmap_bytes;
    for (row, &n) in parts.rows.iter().enumerate() {
        let record = &parts.records[usize::from(n)];
        let mut at = record.origin - RECORD - bitmap_bytes;
        for i in 0..bitmap_bytes {
            page[at + i] = (record.extent.bitmap >> (8 * (bitmap_bytes - 1 - i))) as u8;
        }
        for (c, field) in branch.layout.fields.iter().enumerate() {
            if field.width == 0 && parts.grid.present[row] >> c & 1 == 1 {
                let cell = parts.grid.cell(c, row as u16);
                at = field.write_length(page, at, usize::from(parts.grid.len[cell]), parts.grid.form[cell]);
            }
        }
    }
    let mut put = |n: usize, origin: usize| {
        let at = slot(page.len(), n);
        page[at..at + 2].copy_from_slice(&(origin as u16).to_be_bytes());
    };
    put(0, INFIMUM);
    let mut owner = 0;
    for (n, &size) in parts.groups[..parts.groups.len() - 1].iter().enumerate() {
        owner += usize::from(size);
        put(n + 1, origin(owner - 1));
    }
    put(parts.groups.len(), SUPREMUM);
    Ok(())
}
