//! Writes a heap page as symbols.

use super::pattern::{BITS, Cid, LinePattern, Xid};
use super::tuple::{Ctid, FIXED};
use super::{HeapModel, HeapPage, HeapShape, streams};
use crate::columns::Buffers;
use crate::columns::Form;
use crate::columns::code::{self, put_len};
use crate::entropy::Sink;
use crate::entropy::number::{self, zigzag};
use crate::postgres::checksum::checksum;
use crate::postgres::page::{LSN_LOW_BITS, LineState};

/// The symbol of null bitmaps that are not in the model.
pub(super) const OTHER_BITMAP: u8 = 255;

/// Returns the parts of a page that the states of the entropy coder carry: low bits of LSN and block number.
pub(crate) fn carried(lsn: u64, block: u32) -> [u16; 2] {
    [(lsn >> 3) as u16, block as u16]
}

/// Writes the page that `parts` were parsed from, and leaves text and stale bytes in `buffers` and `parts`.
pub(crate) fn put<S: Sink>(
    model: &HeapModel,
    parts: &mut HeapPage,
    page: &[u8],
    buffers: &mut Buffers,
    sink: &mut S,
) {
    buffers.text.clear();
    buffers.plain.clear();
    parts.parse_columns(page, &model.plans);
    let shape = put_head(model, parts, page, sink);
    find_patterns(model, parts);
    put_patterns(model, parts, sink);
    put_xids(model, parts, sink);
    put_bitmaps(model, parts, sink);
    for visit in &parts.visits {
        let n = usize::from(visit.line);
        if parts.tuples[n].odd {
            let len = parts.lines[n].len - FIXED;
            put_len(sink, streams::ODD, 0, len, Form::usual(len));
        }
    }
    code::write_lengths(&model.plans, &mut parts.grid, page, buffers, sink);
    if !shape.plain_order {
        parts.order.put(&parts.lines, parts.header.special, sink, streams::ORDER);
    }
    code::write_contents(&model.plans, &mut parts.grid, page, buffers, sink);
    for visit in &parts.visits {
        let n = usize::from(visit.line);
        if parts.tuples[n].odd {
            let line = parts.lines[n];
            buffers.text.extend_from_slice(&page[line.off + FIXED..line.off + line.len]);
        }
    }
    parts.stale.regions(&parts.header, &parts.lines, &parts.order, !shape.hole_zero, !shape.behind_zero);
    parts.stale.collect(page);
}

fn put_head<S: Sink>(model: &HeapModel, parts: &mut HeapPage, page: &[u8], sink: &mut S) -> HeapShape {
    let header = parts.header;
    let (hole_zero, behind_zero) = parts.stale.zeros(&header, &parts.lines, &parts.order, page);
    let shape = HeapShape {
        tight: header.upper == parts.order.lowest(&parts.lines, header.special),
        hole_zero,
        behind_zero,
        plain_order: parts.order.is_plain(0),
        checksum: match header.checksum {
            0 => 0,
            sum if sum == checksum(page, parts.block) => 1,
            _ => 2,
        },
        prunable: header.prune_xid != 0,
        odd_lsn: header.lsn & 7 != 0,
    };
    sink.put(streams::SHAPE, 0, shape.symbol());
    sink.put(streams::FLAGS, 0, header.flags as u8);
    put_len(sink, streams::COUNT, 0, header.lines, Form::usual(header.lines));
    number::put(sink, streams::LSN, 0, zigzag((header.lsn >> LSN_LOW_BITS).wrapping_sub(model.lsn) as i64));
    number::put(sink, streams::BLOCK, 0, u64::from(parts.block >> 16));
    if shape.odd_lsn {
        sink.bits(header.lsn as u32 & 7, 3);
    }
    if shape.checksum == 2 {
        sink.bits(u32::from(header.checksum), 16);
    }
    if shape.prunable {
        number::put(sink, streams::PRUNE, 0, difference(header.prune_xid, model.xid));
    }
    if !shape.tight {
        number::put(sink, streams::UPPER, 0, header.upper as u64);
    }
    shape
}

/// Returns the code of the difference of two transaction ids, which wrap around.
#[inline]
fn difference(xid: u32, from: u32) -> u64 {
    zigzag(i64::from(xid.wrapping_sub(from) as i32))
}

/// Writes patterns in the order of lines, and then where redirects and ctids lead.
fn put_patterns<S: Sink>(model: &HeapModel, parts: &mut HeapPage, sink: &mut S) {
    parts.packed.clear();
    parts.packed.extend(parts.patterns.iter().map(|pattern| pattern.pack()));
    model.patterns.put(&parts.packed, BITS, sink, streams::PATTERN);
    for (n, pattern) in parts.patterns.iter().enumerate().filter(|(_, pattern)| pattern.has_more()) {
        let from = n as i64 + 1;
        if pattern.state == LineState::Redirect {
            number::put(sink, streams::REDIRECT, 0, zigzag(parts.lines[n].off as i64 - from));
        }
        let tuple = &parts.tuples[n];
        if pattern.ctid != Ctid::Itself {
            number::put(sink, streams::CTID, 0, zigzag(i64::from(tuple.ctid_line) - from));
        }
        if pattern.ctid == Ctid::Elsewhere {
            number::put(sink, streams::CTID, 1, difference(tuple.ctid_block, parts.block));
        }
        if pattern.odd {
            sink.bits(u32::from(tuple.hoff), 8);
        }
    }
}

/// Finds the pattern of each line. That of a tuple depends on the row before in logical order.
pub(super) fn find_patterns(model: &HeapModel, parts: &mut HeapPage) {
    parts.patterns.clear();
    parts
        .patterns
        .extend(parts.lines.iter().map(|line| LinePattern { state: line.state, ..LinePattern::default() }));
    let mut before = super::Tuple { xmin: model.xid, ..super::Tuple::default() };
    for visit in &parts.visits {
        let tuple = parts.tuples[usize::from(visit.line)];
        parts.patterns[usize::from(visit.line)] = LinePattern {
            state: LineState::Normal,
            odd: tuple.odd,
            ctid: tuple.ctid,
            xmin: match tuple.xmin {
                xmin if xmin == before.xmin => Xid::Usual,
                xmin if visit.newer && xmin == before.xmax => Xid::Other,
                _ => Xid::Far,
            },
            xmax: match tuple.xmax {
                0 => Xid::Usual,
                xmax if xmax == before.xmax => Xid::Other,
                xmax if xmax == tuple.xmin => Xid::Own,
                _ => Xid::Far,
            },
            cid: match tuple.cid {
                0 => Cid::Zero,
                cid if cid == before.cid => Cid::Same,
                cid if cid == before.cid.wrapping_add(1) => Cid::Next,
                _ => Cid::Far,
            },
            infomask: tuple.infomask,
            infomask2: tuple.infomask2,
        };
        before = tuple;
    }
}

/// Writes, in logical order, transaction and command ids that do not follow from the row before.
fn put_xids<S: Sink>(model: &HeapModel, parts: &HeapPage, sink: &mut S) {
    let (mut xmin, mut xmax) = (model.xid, model.xid);
    for visit in &parts.visits {
        let n = usize::from(visit.line);
        let (tuple, pattern) = (&parts.tuples[n], parts.patterns[n]);
        if pattern.xmin == Xid::Far {
            number::put(sink, streams::XMIN, 0, difference(tuple.xmin, xmin));
        }
        if pattern.xmax == Xid::Far {
            number::put(sink, streams::XMAX, 0, difference(tuple.xmax, xmax));
        }
        if pattern.cid == Cid::Far {
            number::put(sink, streams::CID, 0, u64::from(tuple.cid));
        }
        xmin = tuple.xmin;
        if tuple.xmax != 0 {
            xmax = tuple.xmax;
        }
    }
}

fn put_bitmaps<S: Sink>(model: &HeapModel, parts: &HeapPage, sink: &mut S) {
    let mut last = 0;
    for &n in &parts.rows {
        let tuple = &parts.tuples[usize::from(n)];
        if !tuple.has_nulls() {
            continue;
        }
        let known = model.bitmaps.iter().position(|&bitmap| bitmap == tuple.present);
        let symbol = known.map_or(OTHER_BITMAP, |place| place as u8);
        sink.put(streams::BITMAP, last, symbol);
        last = symbol;
        if symbol == OTHER_BITMAP {
            sink.long_bits(tuple.present as u64, tuple.columns().min(64) as u32);
            sink.long_bits((tuple.present >> 64) as u64, tuple.columns().saturating_sub(64) as u32);
        }
    }
}
