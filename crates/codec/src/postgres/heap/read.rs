//! Reads a heap page from symbols.

use super::pattern::{BITS, Cid, LinePattern, Xid};
use super::tuple::{Ctid, FIXED, Tuple};
use super::write::OTHER_BITMAP;
use super::{HeapModel, HeapPage, HeapShape, streams};
use crate::Corrupt;
use crate::columns::Buffers;
use crate::columns::code::{self, get_len};
use crate::entropy::number::{self, unzigzag};
use crate::entropy::{Decoder, Stream};
use crate::postgres::page::{HEADER, LINE, LSN_LOW_BITS, Line, LineState, PostgresHeader};

const BAD: Corrupt = Corrupt("a heap page that cannot be");

/// Reads all of a page that [`super::write::put`] wrote, but its stale bytes and a right checksum, into `page`, which
/// is all zeros. Text comes from `buffers`; the regions of stale bytes are left in `parts`.
pub(crate) fn get(
    model: &HeapModel,
    streams: &[Stream],
    mut decoder: Decoder<'_>,
    parts: &mut HeapPage,
    buffers: &mut Buffers,
    page: &mut [u8],
) -> Result<(), Corrupt> {
    let d = &mut decoder;
    let shape = HeapShape::from_symbol(d.get(streams[streams::SHAPE].view(0)));
    get_head(model, streams, d, parts, shape, page.len())?;
    get_patterns(model, streams, d, parts)?;
    get_xids(model, streams, d, parts);
    list_rows(model, parts)?;
    get_bitmaps(model, streams, d, parts)?;
    get_odd_lengths(streams, d, parts)?;
    buffers.begin_reading();
    code::read_lengths(&model.plans, streams, d, &mut parts.grid, buffers, page)?;
    for (&n, &end) in parts.rows.iter().zip(&buffers.ends) {
        let n = usize::from(n);
        parts.lines[n].len = usize::from(parts.tuples[n].hoff) + usize::from(end);
    }
    place(streams, d, parts, shape)?;
    code::read_contents(&model.plans, streams, d, &mut parts.grid, buffers, page)?;
    let [lsn, block] = decoder.finish()?;
    parts.header.lsn |= u64::from(lsn) << 3;
    parts.block |= u32::from(block);
    write_tuples(parts, buffers, page)?;
    // A right checksum is computed after stale bytes are in place.
    parts.sum = shape.checksum == 1;
    parts.header.write(page);
    parts.stale.regions(&parts.header, &parts.lines, &parts.order, !shape.hole_zero, !shape.behind_zero);
    Ok(())
}

fn get_head(
    model: &HeapModel,
    streams: &[Stream],
    d: &mut Decoder<'_>,
    parts: &mut HeapPage,
    shape: HeapShape,
    page_bytes: usize,
) -> Result<(), Corrupt> {
    let flags = d.get(streams[streams::FLAGS].view(0));
    let (count, _) = get_len(d, &streams[streams::COUNT..], 0)?;
    let lines = usize::from(count);
    if lines == 0 || HEADER + LINE * lines > page_bytes {
        return Err(BAD);
    }
    let lsn = unzigzag(number::get(d, &streams[streams::LSN], 0).1) as u64;
    let block = number::get(d, &streams[streams::BLOCK], 0).1;
    parts.block = (block as u32) << 16;
    let odd_lsn = if shape.odd_lsn { u64::from(d.bits(3)) } else { 0 };
    let checksum = if shape.checksum == 2 { d.bits(16) as u16 } else { 0 };
    let prune = if shape.prunable { number::get(d, &streams[streams::PRUNE], 0).1 } else { 0 };
    parts.header = PostgresHeader {
        lsn: lsn.wrapping_add(model.lsn) << LSN_LOW_BITS | odd_lsn,
        checksum,
        flags: u16::from(flags),
        lines,
        upper: 0,
        special: page_bytes,
        prune_xid: if shape.prunable { model.xid.wrapping_add(unzigzag(prune) as u32) } else { 0 },
    };
    if !shape.tight {
        let upper = number::get(d, &streams[streams::UPPER], 0).1;
        parts.header.upper = usize::try_from(upper).ok().filter(|&upper| upper <= page_bytes).ok_or(BAD)?;
    }
    Ok(())
}

fn get_patterns(
    model: &HeapModel,
    streams: &[Stream],
    d: &mut Decoder<'_>,
    parts: &mut HeapPage,
) -> Result<(), Corrupt> {
    parts.lines.clear();
    parts.tuples.clear();
    parts.patterns.clear();
    model.patterns.get(parts.header.lines, BITS, d, &streams[streams::PATTERN..], &mut parts.packed)?;
    // The line before, if its tuple follows from its pattern and its number.
    let mut before: Option<(u64, Line, Tuple, LinePattern)> = None;
    for n in 0..parts.header.lines {
        let packed = parts.packed[n];
        if let Some((same, line, tuple, pattern)) = before
            && same == packed
        {
            parts.lines.push(line);
            parts.tuples.push(Tuple { ctid_line: n as u16 + 1, ..tuple });
            parts.patterns.push(pattern);
            continue;
        }
        let pattern = LinePattern::unpack(packed);
        let mut line = Line { state: pattern.state, off: 0, len: 0 };
        let from = n as i64 + 1;
        if pattern.state == LineState::Redirect {
            let to = from.wrapping_add(unzigzag(number::get(d, &streams[streams::REDIRECT], 0).1));
            line.off =
                usize::try_from(to).ok().filter(|to| (1..=parts.header.lines).contains(to)).ok_or(BAD)?;
        }
        let mut tuple = Tuple {
            ctid: pattern.ctid,
            ctid_line: from as u16,
            infomask: pattern.infomask,
            infomask2: pattern.infomask2,
            odd: pattern.odd,
            ..Tuple::default()
        };
        if pattern.ctid != Ctid::Itself {
            tuple.ctid_line =
                from.wrapping_add(unzigzag(number::get(d, &streams[streams::CTID], 0).1)) as u16;
        }
        if pattern.ctid == Ctid::Elsewhere {
            // This is added to the block number, which comes last.
            tuple.ctid_block = unzigzag(number::get(d, &streams[streams::CTID], 1).1) as u32;
        }
        let regular = tuple.complete(model.plans.columns.len());
        if pattern.odd {
            tuple.hoff = d.bits(8) as u8;
        } else if pattern.state == LineState::Normal && !regular {
            return Err(BAD);
        }
        before = (!pattern.has_more()).then_some((packed, line, tuple, pattern));
        parts.lines.push(line);
        parts.tuples.push(tuple);
        parts.patterns.push(pattern);
    }
    parts.visit();
    Ok(())
}

fn get_xids(model: &HeapModel, streams: &[Stream], d: &mut Decoder<'_>, parts: &mut HeapPage) {
    let mut number = |stream: usize| number::get(d, &streams[stream], 0).1;
    let mut before = Tuple { xmin: model.xid, ..Tuple::default() };
    let mut last_xmax = model.xid;
    for visit in &parts.visits {
        let n = usize::from(visit.line);
        let (tuple, pattern) = (&mut parts.tuples[n], parts.patterns[n]);
        tuple.xmin = match pattern.xmin {
            Xid::Other => before.xmax,
            Xid::Far => before.xmin.wrapping_add(unzigzag(number(streams::XMIN)) as u32),
            Xid::Usual | Xid::Own => before.xmin,
        };
        tuple.xmax = match pattern.xmax {
            Xid::Usual => 0,
            Xid::Other => before.xmax,
            Xid::Own => tuple.xmin,
            Xid::Far => last_xmax.wrapping_add(unzigzag(number(streams::XMAX)) as u32),
        };
        tuple.cid = match pattern.cid {
            Cid::Zero => 0,
            Cid::Same => before.cid,
            Cid::Next => before.cid.wrapping_add(1),
            Cid::Far => number(streams::CID) as u32,
        };
        if tuple.xmax != 0 {
            last_xmax = tuple.xmax;
        }
        before = *tuple;
    }
}

/// Lists the lines of rows that are coded by columns.
fn list_rows(model: &HeapModel, parts: &mut HeapPage) -> Result<(), Corrupt> {
    parts.rows.clear();
    for visit in &parts.visits {
        if !parts.tuples[usize::from(visit.line)].odd {
            parts.rows.push(visit.line);
        }
    }
    parts.grid.reset(parts.rows.len(), model.plans.columns.len());
    Ok(())
}

fn get_bitmaps(
    model: &HeapModel,
    streams: &[Stream],
    d: &mut Decoder<'_>,
    parts: &mut HeapPage,
) -> Result<(), Corrupt> {
    let mut last = 0;
    for &n in &parts.rows {
        let tuple = &mut parts.tuples[usize::from(n)];
        if tuple.has_nulls() {
            let symbol = d.get(streams[streams::BITMAP].view(last));
            last = symbol;
            let bitmap = if symbol == OTHER_BITMAP {
                let low = d.long_bits(tuple.columns().min(64) as u32);
                u128::from(low) | u128::from(d.long_bits(tuple.columns().saturating_sub(64) as u32)) << 64
            } else {
                *model.bitmaps.get(usize::from(symbol)).ok_or(Corrupt("a bitmap beyond its table"))?
            };
            tuple.present &= bitmap;
        }
        parts.grid.push(tuple.present);
    }
    Ok(())
}

fn get_odd_lengths(streams: &[Stream], d: &mut Decoder<'_>, parts: &mut HeapPage) -> Result<(), Corrupt> {
    for visit in &parts.visits {
        let n = usize::from(visit.line);
        if parts.tuples[n].odd {
            let (len, _) = get_len(d, &streams[streams::ODD..], 0)?;
            parts.lines[n].len = FIXED + usize::from(len);
        }
    }
    Ok(())
}

/// Finds the places of items, and moves the grid's rows there.
fn place(
    streams: &[Stream],
    d: &mut Decoder<'_>,
    parts: &mut HeapPage,
    shape: HeapShape,
) -> Result<(), Corrupt> {
    let special = parts.header.special;
    let stored = |line: &Line| line.state == LineState::Normal;
    let coded = (!shape.plain_order).then_some((d, &streams[streams::ORDER..]));
    parts.order.get(&mut parts.lines, stored, (special, 0), coded)?;
    parts.header.settle_upper(parts.order.lowest(&parts.lines, special), shape.tight)?;
    let starts = parts.rows.iter().map(|&n| {
        let n = usize::from(n);
        parts.lines[n].off + usize::from(parts.tuples[n].hoff)
    });
    parts.grid.shift_all(starts);
    Ok(())
}

fn write_tuples(parts: &mut HeapPage, buffers: &mut Buffers, page: &mut [u8]) -> Result<(), Corrupt> {
    for n in 0..parts.lines.len() {
        let (line, tuple) = (parts.lines[n], &mut parts.tuples[n]);
        line.write(page, n);
        if line.state != LineState::Normal {
            continue;
        }
        let elsewhere = if tuple.ctid == Ctid::Elsewhere { tuple.ctid_block } else { 0 };
        tuple.ctid_block = parts.block.wrapping_add(elsewhere);
        let bytes =
            page.get_mut(line.off..line.off + line.len).filter(|bytes| bytes.len() >= FIXED).ok_or(BAD)?;
        tuple.write(bytes);
    }
    for visit in &parts.visits {
        let n = usize::from(visit.line);
        if parts.tuples[n].odd {
            let line = parts.lines[n];
            let (from, len) = (buffers.text_taken, line.len - FIXED);
            let text = buffers.text.get(from..from + len).ok_or(Corrupt("text is missing"))?;
            page[line.off + FIXED..line.off + line.len].copy_from_slice(text);
            buffers.text_taken += len;
        }
    }
    Ok(())
}
