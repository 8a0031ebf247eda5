//! Writes an index page as symbols.

use super::page::{Ends, NO_PAGE, SYSTEM_RECORDS};
use super::{
    BRANCH, InnodbBranch, InnodbModel, InnodbPage, InnodbShape, LSN_LOW_BITS, PATTERN_BITS, streams,
};
use crate::columns::code::{self, put_len};
use crate::columns::{Buffers, Form};
use crate::entropy::Sink;
use crate::entropy::number::{self, zigzag};

/// Returns the parts of a page that the states of the entropy coder carry: low bits of LSN and page number.
pub(crate) fn carried(parts: &InnodbPage) -> [u16; 2] {
    [parts.header.lsn as u16, parts.header.number as u16]
}

/// Writes the page that `parts` were parsed from, and leaves text and stale bytes in `buffers` and `parts`. Returns
/// false if the model does not know the page's index, or if records overlap; the symbols mean nothing then.
pub(crate) fn put<S: Sink>(
    model: &InnodbModel,
    parts: &mut InnodbPage,
    page: &[u8],
    buffers: &mut Buffers,
    sink: &mut S,
) -> bool {
    buffers.text.clear();
    buffers.plain.clear();
    let Some(place) = model.branch_of(&parts.header) else { return false };
    let branch = &model.branches[place];
    if !parts.parse_columns(page, &branch.layout) {
        return false;
    }
    sink.put(BRANCH, 0, place as u8);
    put_head(branch, parts, page, sink);
    put_patterns(branch, parts, sink);
    put_order(branch, parts, sink);
    code::write_lengths(&branch.plans, &mut parts.grid, page, buffers, sink);
    if !parts.shape.dense {
        let mut last = 0;
        for &gap in &parts.gaps {
            last = number::put(sink, branch.first + streams::GAP, last, u64::from(gap));
        }
    }
    code::write_contents(&branch.plans, &mut parts.grid, page, buffers, sink);
    parts.stale_regions(page.len(), !parts.shape.gaps_zero, !parts.shape.hole_zero);
    parts.stale.collect(page);
    true
}

/// Finds the ways in which the page is as usual.
fn find_shape(parts: &mut InnodbPage, page: &[u8]) -> InnodbShape {
    parts.stale_regions(page.len(), true, false);
    let gaps_zero = parts.stale.is_zero(page);
    parts.stale_regions(page.len(), false, true);
    let listed = &parts.records[..parts.header.records];
    InnodbShape {
        hole_zero: parts.stale.is_zero(page),
        gaps_zero,
        dense: parts.gaps.iter().all(|&gap| gap == 0),
        plain_order: listed.is_sorted_by(|a, b| a.heap < b.heap),
        garbage: parts.header.garbage == parts.garbage(),
        no_root: parts.header.segments.iter().all(|&byte| byte == 0),
        ends: Ends::of(page),
    }
}

fn put_head<S: Sink>(branch: &InnodbBranch, parts: &mut InnodbPage, page: &[u8], sink: &mut S) {
    let shape = find_shape(parts, page);
    parts.shape = shape;
    let (header, first) = (parts.header, branch.first);
    sink.put(first + streams::SHAPE, 0, shape.symbol());
    put_len(sink, first + streams::COUNT, 0, header.records, Form::usual(header.records));
    let free = parts.records.len() - header.records;
    put_len(sink, first + streams::FREE_COUNT, 0, free, Form::usual(free));
    let lsn = (header.lsn >> LSN_LOW_BITS).wrapping_sub(branch.lsn);
    number::put(sink, first + streams::LSN, 0, zigzag(lsn as i64));
    number::put(sink, first + streams::NUMBER, 0, u64::from(header.number >> 16));
    // After a load the siblings are the neighbouring pages.
    let sibling = |page: u32, usual: u32| match page {
        NO_PAGE => 0,
        page => 1 + zigzag(i64::from(page.wrapping_sub(usual) as i32)),
    };
    let siblings = [
        sibling(header.previous, header.number.wrapping_sub(1)),
        sibling(header.next, header.number.wrapping_add(1)),
    ];
    for (ctx, sibling) in (1..).zip(siblings) {
        number::put(sink, first + streams::NUMBER, ctx, sibling);
    }
    let rest = first + streams::REST;
    number::put(sink, rest, 0, u64::from(header.level));
    number::put(sink, rest, 1, zigzag(i64::from(header.space.wrapping_sub(branch.space) as i32)));
    number::put(sink, rest, 2, zigzag(header.max_trx.wrapping_sub(branch.trx) as i64));
    if !shape.garbage {
        number::put(sink, rest, 3, header.garbage as u64);
    }
    put_last_insert(first + streams::LAST_INSERT, parts, sink);
    sink.put(first + streams::DIRECTION, 0, header.direction);
    number::put(sink, first + streams::DIRECTION, 1, u64::from(header.same_direction));
    if !shape.no_root {
        header.segments.iter().for_each(|&byte| sink.bits(byte.into(), 8));
    }
    if shape.ends == Ends::Other {
        parts.ends = Ends::bytes(page);
        parts.ends.iter().for_each(|&byte| sink.bits(byte.into(), 8));
    }
}

/// Writes the record that was inserted last: none, a place that is no record's, or its distance from the end of the
/// heap.
fn put_last_insert<S: Sink>(stream: usize, parts: &InnodbPage, sink: &mut S) {
    let origin = parts.header.last_insert;
    let from_end = || {
        let record = |&n: &u16| parts.records[usize::from(n)].origin == origin;
        parts.by_heap.iter().rev().position(record)
    };
    match (origin, from_end()) {
        (0, _) => drop(number::put(sink, stream, 0, 0)),
        (_, Some(place)) => drop(number::put(sink, stream, 0, 2 + place as u64)),
        (_, None) => {
            number::put(sink, stream, 0, 1);
            sink.bits(origin as u32, 16);
        }
    }
}

/// Writes the patterns of all records, and the sizes of the directory's groups.
fn put_patterns<S: Sink>(branch: &InnodbBranch, parts: &mut InnodbPage, sink: &mut S) {
    let records = parts.header.records;
    parts.packed.clear();
    parts.packed.extend(parts.records.iter().enumerate().map(|(n, record)| record.pattern(n >= records)));
    if !parts.packed.is_empty() {
        branch.patterns.put(&parts.packed, PATTERN_BITS, sink, branch.first + streams::PATTERN);
    }
    let stream = branch.first + streams::GROUP;
    let mut rest = &parts.groups[..];
    let mut last = 0;
    while let Some(&size) = rest.first() {
        let run = rest.iter().take_while(|&&other| other == size).count();
        sink.put(stream, last, size);
        number::put(sink, stream + 1, size, run as u64);
        rest = &rest[run..];
        last = size;
    }
}

/// Writes the numbers of records in the heap. Those of free records come first: they determine the others if these rise
/// in the order of keys.
fn put_order<S: Sink>(branch: &InnodbBranch, parts: &InnodbPage, sink: &mut S) {
    let (listed, free) = parts.records.split_at(parts.header.records);
    let steps = |sink: &mut S, stream: usize, records: &[super::InnodbRecord]| {
        let (mut expected, mut last) = (SYSTEM_RECORDS as i64, 0);
        for record in records {
            let heap = record.heap as i64;
            last = number::put(sink, stream, last.min(1), zigzag(heap - expected));
            expected = heap + 1;
        }
    };
    steps(sink, branch.first + streams::FREE_LIST, free);
    if !parts.shape.plain_order {
        steps(sink, branch.first + streams::HEAP_ORDER, listed);
    }
}
