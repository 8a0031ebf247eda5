//! Writes a page as symbols.

use super::page::BLOCK;
use super::record::{class, value_bytes};
use super::signature::Signature;
use super::{
    BRANCH, NEXT, ODD, OVERFLOW, PER_WORD, SqliteBranch, SqliteModel, SqlitePage, SqliteShape, WORD_BITS,
    overflows, streams,
};
use crate::columns::code::{self, put_len};
use crate::columns::{Buffers, Form};
use crate::entropy::Sink;
use crate::entropy::number::{self, zigzag};
use crate::wire::be32;

/// Writes `page`, and leaves text and stale bytes in `buffers` and `parts`. Returns false if the model does not know
/// such pages; the symbols mean nothing then.
pub(crate) fn put<S: Sink>(
    model: &SqliteModel,
    parts: &mut SqlitePage,
    page: &[u8],
    buffers: &mut Buffers,
    sink: &mut S,
) -> bool {
    buffers.text.clear();
    buffers.plain.clear();
    if !parts.parse(page, model.reserved) {
        return model.overflow && put_overflow(parts, page, buffers, sink);
    }
    let signature = Signature::of(parts, page);
    let apart = |branch: &SqliteBranch| branch.signature.distance(&signature);
    let nearest = (0..)
        .zip(&model.branches)
        .filter_map(|(n, branch)| Some((apart(branch)?, n, branch)))
        .min_by_key(|found| found.0);
    let Some((_, place, branch)) = nearest else { return false };
    let usable = page.len() - model.reserved;
    parts.parse_columns(page, &branch.layout);
    parts.find_gaps(page, usable);
    find_shape(parts, page, usable);
    sink.put(BRANCH, 0, place);
    put_head(branch, parts, sink);
    put_patterns(branch, parts, sink);
    put_beyond(branch, parts, sink);
    if !parts.shape.descending {
        put_order(branch.first + streams::ORDER, parts, sink);
    }
    put_gaps(branch, parts, sink);
    code::write_lengths(&branch.plans, &mut parts.grid, &parts.image, buffers, sink);
    code::write_contents(&branch.plans, &mut parts.grid, &parts.image, buffers, sink);
    parts.stale_regions(page.len(), usable);
    parts.stale.collect(page);
    true
}

/// Writes an overflow page: the next page's number, the number of zeros at the end, and all between as text.
fn put_overflow<S: Sink>(parts: &mut SqlitePage, page: &[u8], buffers: &mut Buffers, sink: &mut S) -> bool {
    sink.put(BRANCH, 0, OVERFLOW);
    sink.long_bits(u64::from(be32(page, 0)), 32);
    let end = page.iter().rposition(|&byte| byte != 0).map_or(4, |last| (last + 1).max(4));
    number::put(sink, NEXT, 0, (page.len() - end) as u64);
    buffers.text.extend_from_slice(&page[4..end]);
    parts.stale.clear();
    parts.stale.collect(page);
    true
}

fn find_shape(parts: &mut SqlitePage, page: &[u8], usable: usize) {
    let (free, fragments) = parts.blocks_and_fragments();
    let listed = parts.shape.listed && parts.header.free == free;
    let all = SqliteShape {
        listed,
        not_first: true,
        hole_zero: true,
        gaps_zero: true,
        reserved_zero: true,
        ..SqliteShape::default()
    };
    let mut zero = |shape: SqliteShape| {
        parts.shape = shape;
        parts.stale_regions(page.len(), usable);
        parts.stale.is_zero(page)
    };
    let hole_zero = zero(SqliteShape { hole_zero: false, ..all });
    let gaps_zero = zero(SqliteShape { gaps_zero: false, ..all });
    let reserved_zero = zero(SqliteShape { reserved_zero: false, ..all });
    parts.shape = SqliteShape {
        hole_zero,
        gaps_zero,
        dense: parts.gaps.iter().all(|&gap| gap == 0),
        descending: parts.by_place.iter().rev().is_sorted(),
        listed,
        counted: parts.header.fragments == fragments,
        reserved_zero,
        not_first: parts.header.begin == 0,
    };
}

fn put_head<S: Sink>(branch: &SqliteBranch, parts: &SqlitePage, sink: &mut S) {
    let (header, first) = (parts.header, branch.first);
    sink.put(first + streams::SHAPE, 0, parts.shape.symbol());
    put_len(sink, first + streams::COUNT, 0, header.cells, Form::usual(header.cells));
    if super::kind::is_inner(header.kind) {
        let last = parts.cells.iter().rev().find(|cell| !cell.odd).map_or(0, |cell| cell.child);
        number::put(
            sink,
            first + streams::RIGHT,
            0,
            zigzag(i64::from(header.right.wrapping_sub(last) as i32)),
        );
    }
    if !parts.shape.listed {
        sink.bits(header.free.into(), 16);
    }
    if !parts.shape.counted {
        sink.bits(header.fragments.into(), 8);
    }
}

/// Writes the classes of all values, [`PER_WORD`] to a pattern.
fn put_patterns<S: Sink>(branch: &SqliteBranch, parts: &mut SqlitePage, sink: &mut S) {
    if parts.cells.is_empty() {
        return;
    }
    for (word, patterns) in branch.patterns.iter().enumerate() {
        pack(parts, word);
        patterns.put(&parts.packed, WORD_BITS, sink, branch.first + streams::PATTERNS + 2 * word);
    }
}

/// Fills `packed` with pattern `word` of each cell.
pub(super) fn pack(parts: &mut SqlitePage, word: usize) {
    let SqlitePage { cells, values, packed, .. } = parts;
    packed.clear();
    packed.extend(cells.iter().map(|cell| {
        if cell.odd {
            return ODD;
        }
        let values = values[cell.first..cell.first + cell.values].iter().skip(word * PER_WORD).take(PER_WORD);
        values.enumerate().fold(0, |bits, (n, value)| bits | u64::from(value.class) << (1 + 4 * n))
    }));
}

/// Writes, for each record that overflows, the missing bytes and types of its values, and its overflow page.
fn put_beyond<S: Sink>(branch: &SqliteBranch, parts: &SqlitePage, sink: &mut S) {
    let stream = branch.first + streams::BEYOND;
    let mut last = 0u32;
    for cell in parts.cells.iter().filter(|cell| !cell.odd) {
        let values = &parts.values[cell.first..cell.first + cell.values];
        if !overflows(parts.header.kind, values) {
            continue;
        }
        for value in values {
            if class::is_cut(value.class) {
                let missing = value_bytes(value.serial).unwrap_or(0) - value.len;
                number::put(sink, stream, 0, missing as u64);
            } else if class::is_told(value.class) {
                number::put(sink, stream, 1, value.serial);
            }
        }
        number::put(sink, stream, 2, zigzag(i64::from(cell.overflow.wrapping_sub(last) as i32)));
        last = cell.overflow;
    }
}

/// Writes which of the places that are left each cell has, in the order of keys. Places count from the one below the
/// cell before.
fn put_order<S: Sink>(stream: usize, parts: &mut SqlitePage, sink: &mut S) {
    let SqlitePage { by_place, ranks, cells, .. } = parts;
    // Places count from the page's end, where SQLite puts the first cell.
    ranks.clear();
    ranks.extend(by_place.iter().rev());
    let mut next = 0;
    for n in 0..cells.len() {
        let left = ranks.len();
        let Some(at) = ranks.iter().position(|&other| usize::from(other) == n) else { return };
        if left > 1 {
            number::put(sink, stream, order_ctx(left), ((at + left - next) % left) as u64);
        }
        ranks.remove(at);
        next = if at < ranks.len() { at } else { 0 };
    }
}

/// Returns about how many places are left, as a context: the number of bits of `left`.
pub(super) fn order_ctx(left: usize) -> u8 {
    (usize::BITS - left.leading_zeros()) as u8
}

fn put_gaps<S: Sink>(branch: &SqliteBranch, parts: &SqlitePage, sink: &mut S) {
    if parts.shape.dense {
        return;
    }
    let mut last = 0;
    let mut blocks = parts.blocks.iter();
    for &gap in &parts.gaps {
        last = number::put(sink, branch.first + streams::GAP, last, u64::from(gap));
        if usize::from(gap) >= BLOCK
            && let Some(&symbol) = blocks.next()
        {
            sink.put(branch.first + streams::BLOCK, 0, symbol);
        }
    }
}
