//! Writes a B-tree page as symbols.

use super::item::{HEAD, Item, ItemKind};
use super::tid::{self, TID, Tid};
use super::{BtreeModel, BtreePage, BtreeShape, streams};
use crate::columns::Buffers;
use crate::columns::Form;
use crate::columns::code::{self, put_len};
use crate::entropy::Sink;
use crate::entropy::number::{self, zigzag};
use crate::postgres::page::LSN_LOW_BITS;

/// Returns the parts of a page that the states of the entropy coder carry: low bits of LSN and of the previous sibling.
pub(crate) fn carried(parts: &BtreePage) -> [u16; 2] {
    [(parts.header.lsn >> 3) as u16, parts.special.previous as u16]
}

/// Writes the page that `parts` were parsed from, and leaves text and stale bytes in `buffers` and `parts`.
pub(crate) fn put<S: Sink>(
    model: &BtreeModel,
    parts: &mut BtreePage,
    page: &[u8],
    buffers: &mut Buffers,
    sink: &mut S,
) {
    buffers.text.clear();
    buffers.plain.clear();
    parts.parse_columns(page, &model.plans);
    let shape = put_head(model, parts, page, sink);
    put_patterns(model, parts, sink);
    put_heads(parts, page, sink);
    code::write_lengths(&model.plans, &mut parts.grid, page, buffers, sink);
    if !shape.plain_order {
        parts.order.put(&parts.lines, parts.header.special, sink, streams::ORDER);
    }
    code::write_contents(&model.plans, &mut parts.grid, page, buffers, sink);
    for n in parts.by_key() {
        let line = parts.lines[n];
        if parts.items[n].kind == ItemKind::Odd {
            buffers.text.extend_from_slice(&page[line.off..line.off + TID]);
            buffers.text.extend_from_slice(&page[line.off + HEAD..line.off + line.len]);
        }
    }
    parts.stale.regions(&parts.header, &parts.lines, &parts.order, !shape.hole_zero, !shape.behind_zero);
    parts.stale.collect(page);
}

fn put_head<S: Sink>(model: &BtreeModel, parts: &mut BtreePage, page: &[u8], sink: &mut S) -> BtreeShape {
    let (header, special) = (parts.header, parts.special);
    let (hole_zero, behind_zero) = parts.stale.zeros(&header, &parts.lines, &parts.order, page);
    let shape = BtreeShape {
        tight: header.upper == parts.order.lowest(&parts.lines, header.special),
        hole_zero,
        behind_zero,
        plain_order: parts.order.is_plain(usize::from(special.next != 0)),
        checksum_zero: header.checksum == 0,
        plain_header: header.prune_xid == 0 && header.flags < 256 && header.lsn & 7 == 0,
        leaf: special.is_plain_leaf(),
    };
    sink.put(streams::SHAPE, 0, shape.symbol());
    sink.put(streams::FLAGS, 0, header.flags as u8);
    put_len(sink, streams::COUNT, 0, header.lines, Form::usual(header.lines));
    number::put(sink, streams::LSN, 0, zigzag((header.lsn >> LSN_LOW_BITS).wrapping_sub(model.lsn) as i64));
    if !shape.plain_header {
        sink.bits(header.lsn as u32 & 7, 3);
        sink.bits(u32::from(header.flags >> 8), 8);
        sink.long_bits(u64::from(header.prune_xid), 32);
    }
    if !shape.checksum_zero {
        sink.bits(u32::from(header.checksum), 16);
    }
    if !shape.tight {
        number::put(sink, streams::UPPER, 0, header.upper as u64);
    }
    number::put(sink, streams::SPECIAL, 0, u64::from(special.previous >> 16));
    // After a build the siblings are the neighbouring blocks; 0 stands for none.
    let usual = special.previous.wrapping_add(2);
    let next =
        if special.next == 0 { 0 } else { 1 + zigzag(i64::from(special.next.wrapping_sub(usual) as i32)) };
    number::put(sink, streams::SPECIAL, 1, next);
    if !shape.leaf {
        number::put(sink, streams::SPECIAL, 2, u64::from(special.level));
        number::put(sink, streams::SPECIAL, 3, u64::from(special.flags));
        number::put(sink, streams::SPECIAL, 4, u64::from(special.cycle));
    }
    shape
}

fn put_patterns<S: Sink>(model: &BtreeModel, parts: &mut BtreePage, sink: &mut S) {
    parts.packed.clear();
    for n in parts.by_key() {
        parts.packed.push(parts.items[n].pattern());
    }
    model.patterns.put(&parts.packed, Item::PATTERN_BITS, sink, streams::PATTERN);
    for n in parts.by_key().filter(|&n| parts.items[n].kind == ItemKind::Odd) {
        let len = parts.lines[n].len - HEAD;
        put_len(sink, streams::ODD, 0, len, Form::usual(len));
        sink.bits(u32::from(parts.items[n].info) & 0x1FFF, 13);
    }
}

/// Writes the parts of headers that patterns do not have: TIDs, blocks, null bitmaps, posting lists.
fn put_heads<S: Sink>(parts: &mut BtreePage, page: &[u8], sink: &mut S) {
    parts.tids.clear();
    let mut pivot = 0u32;
    for &n in &parts.rows {
        let (item, line) = (&parts.items[usize::from(n)], parts.lines[usize::from(n)]);
        if item.has_nulls() {
            sink.put(streams::BITMAP, 0, item.present as u8);
            sink.long_bits(item.present as u64 >> 8, 24);
        }
        match item.kind {
            ItemKind::Plain => parts.tids.push(item.tid),
            ItemKind::Pivot => {
                number::put(
                    sink,
                    streams::PIVOT,
                    0,
                    zigzag(i64::from(item.tid.block.wrapping_sub(pivot) as i32)),
                );
                pivot = item.tid.block;
            }
            ItemKind::Posting => {
                number::put(sink, streams::POSTING, 0, item.postings() as u64);
            }
            ItemKind::Odd => {}
        }
        let tail = line.off + line.len - item.tail();
        match item.kind {
            ItemKind::Posting => {
                let (tids, _) = page[tail..].as_chunks::<TID>();
                for tid in &tids[..item.postings()] {
                    parts.tids.push(Tid::parse(tid));
                }
            }
            ItemKind::Pivot if item.has_heap_tid() => {
                let last = page[..line.off + line.len].last_chunk::<TID>();
                parts.tids.push(last.map_or(Tid::default(), Tid::parse));
            }
            _ => {}
        }
    }
    tid::put(&parts.tids, sink, streams::TID);
}
