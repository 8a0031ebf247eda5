//! Reads a B-tree page from symbols.

use super::item::{HEAD, Item, ItemKind};
use super::tid::{self, TID, Tid};
use super::{BtreeModel, BtreePage, BtreeShape, SPECIAL, Special, streams};
use crate::Corrupt;
use crate::columns::Buffers;
use crate::columns::code::{self, get_len};
use crate::entropy::number::{self, unzigzag};
use crate::entropy::{Decoder, Stream};
use crate::postgres::page::{HEADER, LINE, LSN_LOW_BITS, Line, PostgresHeader};

/// Largest code of a next sibling: one more than the largest difference of two blocks, whose sign is the lowest bit.
const NEXT_MAX: u64 = 1 << 32;
const BAD: Corrupt = Corrupt("a B-tree page that cannot be");

/// Reads all of a page that [`super::write::put`] wrote, but its stale bytes, into `page`, which is all zeros. Text
/// comes from `buffers`; the regions of stale bytes are left in `parts`.
pub(crate) fn get(
    model: &BtreeModel,
    streams: &[Stream],
    mut decoder: Decoder<'_>,
    parts: &mut BtreePage,
    buffers: &mut Buffers,
    page: &mut [u8],
) -> Result<(), Corrupt> {
    let d = &mut decoder;
    let shape = BtreeShape::from_symbol(d.get(streams[streams::SHAPE].view(0)));
    let next = get_head(model, streams, d, parts, shape, page.len())?;
    get_patterns(model, streams, d, parts)?;
    get_heads(streams, d, parts, page.len())?;
    buffers.begin_reading();
    code::read_lengths(&model.plans, streams, d, &mut parts.grid, buffers, page)?;
    for (&n, &end) in parts.rows.iter().zip(&buffers.ends) {
        let n = usize::from(n);
        let item = &mut parts.items[n];
        let keys = item.data() + usize::from(end).next_multiple_of(8);
        if item.kind == ItemKind::Posting {
            item.tid.block = keys as u32;
        }
        item.len = keys + item.tail();
        parts.lines[n].len = item.len;
    }
    place(streams, d, parts, shape)?;
    code::read_contents(&model.plans, streams, d, &mut parts.grid, buffers, page)?;
    let [lsn, previous] = decoder.finish()?;
    parts.header.lsn |= u64::from(lsn) << 3;
    parts.special.previous |= u32::from(previous);
    if next != 0 {
        let usual = parts.special.previous.wrapping_add(2);
        parts.special.next = usual.wrapping_add(unzigzag(next - 1) as u32);
        if parts.special.next == 0 {
            return Err(BAD);
        }
    }
    write_items(parts, buffers, page)?;
    parts.header.write(page);
    let special = parts.header.special;
    parts.special.write(&mut page[special..]);
    parts.stale.regions(&parts.header, &parts.lines, &parts.order, !shape.hole_zero, !shape.behind_zero);
    Ok(())
}

/// Reads the symbols before those of items. Returns the code of the next sibling relative to the previous one; 0 stands
/// for none. Until the next sibling is known, it is 1 if there is one.
fn get_head(
    model: &BtreeModel,
    streams: &[Stream],
    d: &mut Decoder<'_>,
    parts: &mut BtreePage,
    shape: BtreeShape,
    page_bytes: usize,
) -> Result<u64, Corrupt> {
    let mut flags = u16::from(d.get(streams[streams::FLAGS].view(0)));
    let lines = usize::from(get_len(d, &streams[streams::COUNT..], 0)?.0);
    if lines == 0 || HEADER + LINE * lines > page_bytes - SPECIAL {
        return Err(BAD);
    }
    let lsn = unzigzag(number::get(d, &streams[streams::LSN], 0).1) as u64;
    let mut lsn = lsn.wrapping_add(model.lsn) << LSN_LOW_BITS;
    let mut prune_xid = 0;
    if !shape.plain_header {
        lsn |= u64::from(d.bits(3));
        flags |= (d.bits(8) as u16) << 8;
        prune_xid = d.long_bits(32) as u32;
    }
    let checksum = if shape.checksum_zero { 0 } else { d.bits(16) as u16 };
    let special = page_bytes - SPECIAL;
    parts.header = PostgresHeader { lsn, checksum, flags, lines, upper: 0, special, prune_xid };
    if !shape.tight {
        let upper = number::get(d, &streams[streams::UPPER], 0).1;
        parts.header.upper = usize::try_from(upper).ok().filter(|&upper| upper <= special).ok_or(BAD)?;
    }
    let mut number = |ctx| number::get(d, &streams[streams::SPECIAL], ctx).1;
    let previous = (number(0) as u32) << 16;
    // The next sibling is relative to the previous one, whose low half comes at the end.
    let next = number(1);
    if next > NEXT_MAX {
        return Err(BAD);
    }
    parts.special = Special::plain_leaf(previous, u32::from(next != 0));
    if !shape.leaf {
        parts.special.level = number(2) as u32;
        parts.special.flags = number(3) as u16;
        parts.special.cycle = number(4) as u16;
    }
    Ok(next)
}

fn get_patterns(
    model: &BtreeModel,
    streams: &[Stream],
    d: &mut Decoder<'_>,
    parts: &mut BtreePage,
) -> Result<(), Corrupt> {
    let count = parts.header.lines;
    parts.lines.clear();
    parts.lines.resize(count, Line::default());
    parts.items.clear();
    parts.items.resize(count, Item::default());
    parts.rows.clear();
    let columns = model.plans.columns.len();
    model.patterns.get(count, Item::PATTERN_BITS, d, &streams[streams::PATTERN..], &mut parts.packed)?;
    for (i, n) in parts.by_key().enumerate() {
        let mut item = Item::from_pattern(parts.packed[i]);
        parts.lines[n].state = item.state;
        if item.kind == ItemKind::Odd {
            let (len, _) = get_len(d, &streams[streams::ODD..], 0)?;
            parts.lines[n].len = HEAD + usize::from(len);
            item.len = parts.lines[n].len;
            item.info |= d.bits(13) as u16;
        } else {
            item.present = u128::MAX >> 96;
            if !item.has_nulls() {
                item.set_columns(columns);
            }
            if item.kind == ItemKind::Odd {
                return Err(BAD);
            }
            parts.rows.push(n as u16);
        }
        parts.items[n] = item;
    }
    parts.grid.reset(parts.rows.len(), columns);
    Ok(())
}

/// Reads the parts of headers that patterns do not have: blocks of pivots, lengths of posting lists, null bitmaps; then
/// all TIDs, of which those behind keys are left in `parts.tids`.
fn get_heads(
    streams: &[Stream],
    d: &mut Decoder<'_>,
    parts: &mut BtreePage,
    max: usize,
) -> Result<(), Corrupt> {
    let mut pivot = 0u32;
    let columns = parts.grid.columns();
    let mut tids = 0;
    for &n in &parts.rows {
        let item = &mut parts.items[usize::from(n)];
        if item.has_nulls() {
            let low = d.get(streams[streams::BITMAP].view(0));
            item.present = u128::from(low) | u128::from(d.long_bits(24)) << 8;
            item.set_columns(columns);
            if item.kind == ItemKind::Odd {
                return Err(BAD);
            }
        }
        match item.kind {
            ItemKind::Plain => tids += 1,
            ItemKind::Pivot => {
                pivot = pivot.wrapping_add(unzigzag(number::get(d, &streams[streams::PIVOT], 0).1) as u32);
                item.tid.block = pivot;
                tids += usize::from(item.has_heap_tid());
            }
            ItemKind::Posting => {
                let count = number::get(d, &streams[streams::POSTING], 0).1;
                if !item.set_postings(count) {
                    return Err(BAD);
                }
                tids += count as usize;
            }
            ItemKind::Odd => {}
        }
        parts.grid.push(item.present);
    }
    if tids * TID > max {
        return Err(BAD);
    }
    tid::get(tids, d, &streams[streams::TID..], &mut parts.tids)?;
    // TIDs of plain items go to their headers; the others stay, in their order.
    let (mut from, mut kept) = (0, 0);
    for &n in &parts.rows {
        let item = &mut parts.items[usize::from(n)];
        if item.kind == ItemKind::Plain {
            item.tid = parts.tids[from];
            from += 1;
            continue;
        }
        let own = match item.kind {
            ItemKind::Posting => item.postings(),
            _ => usize::from(item.has_heap_tid()),
        };
        parts.tids.copy_within(from..from + own, kept);
        (from, kept) = (from + own, kept + own);
    }
    parts.tids.truncate(kept);
    Ok(())
}

/// Finds the places of items, and moves the grid's rows there.
fn place(
    streams: &[Stream],
    d: &mut Decoder<'_>,
    parts: &mut BtreePage,
    shape: BtreeShape,
) -> Result<(), Corrupt> {
    let special = parts.header.special;
    let first = usize::from(parts.special.next != 0);
    let coded = (!shape.plain_order).then_some((d, &streams[streams::ORDER..]));
    parts.order.get(&mut parts.lines, |_| true, (special, first), coded)?;
    parts.header.settle_upper(parts.order.lowest(&parts.lines, special), shape.tight)?;
    let starts = parts.rows.iter().map(|&n| {
        let n = usize::from(n);
        parts.lines[n].off + parts.items[n].data()
    });
    parts.grid.shift_all(starts);
    Ok(())
}

fn write_items(parts: &BtreePage, buffers: &mut Buffers, page: &mut [u8]) -> Result<(), Corrupt> {
    let mut tids: &[Tid] = &parts.tids;
    for (n, line) in parts.lines.iter().enumerate() {
        line.write(page, n);
    }
    for n in parts.by_key() {
        let (line, item) = (parts.lines[n], parts.items[n]);
        let bytes =
            page.get_mut(line.off..line.off + line.len).filter(|bytes| bytes.len() >= HEAD).ok_or(BAD)?;
        if item.kind == ItemKind::Odd {
            let text = buffers.text.get(buffers.text_taken..).unwrap_or_default();
            let (tid, rest) = text.split_at_checked(TID).ok_or(BAD)?;
            bytes[..TID].copy_from_slice(tid);
            bytes[TID..HEAD].copy_from_slice(&item.info.to_le_bytes());
            let rest = rest.get(..bytes.len() - HEAD).ok_or(BAD)?;
            bytes[HEAD..].copy_from_slice(rest);
            buffers.text_taken += TID + rest.len();
            continue;
        }
        item.write(bytes);
        let tail = bytes.len() - item.tail();
        let (count, from) = match item.kind {
            ItemKind::Posting => (item.postings(), tail),
            ItemKind::Pivot if item.has_heap_tid() => (1, bytes.len() - TID),
            _ => continue,
        };
        let (own, rest) = tids.split_at_checked(count).ok_or(BAD)?;
        tids = rest;
        for (tid, to) in own.iter().zip(bytes[from..].as_chunks_mut::<TID>().0) {
            tid.write(to);
        }
    }
    Ok(())
}
