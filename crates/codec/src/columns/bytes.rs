//! Codes columns of bytes: places in tables, runs, bytes in context.

use super::Form;
use super::code::{ALL_COMMON, CODED, Context, Read, UNFIT, Write, get_len, put_len, take_into};
use super::lanes::Lane;
use super::plan::Ctx;
use super::values::{UNKNOWN, Values, put_value};
use crate::Corrupt;
use crate::entropy::{Sink, Stream};

/// Writes a column by its table. Streams: state, places, lengths (two), bytes of values that are not in the table.
pub(crate) fn put_table<S: Sink>(
    w: &mut Write<'_>,
    sink: &mut S,
    c: usize,
    values: &Values,
    context: Context,
    lengths: bool,
) {
    let base = context.base;
    let mut all_first = true;
    for &t in w.rows {
        let cell = w.grid.cell(c, t);
        let content = w.grid.content(w.page, c, t);
        let usual = !lengths || w.grid.form[cell] == Form::usual(content.len());
        let symbol = if usual { values.find(content) } else { UNKNOWN };
        w.grid.sym[cell] = symbol;
        all_first &= symbol == 0;
    }
    if all_first {
        return sink.put(base, 0, ALL_COMMON);
    }
    sink.put(base, 0, CODED);
    let mut last = 0;
    for &t in w.rows {
        let cell = w.grid.cell(c, t);
        let ctx = context.of(w.grid, t, last);
        last = w.grid.sym[cell];
        sink.put(base + 1, ctx, last);
        if last == UNKNOWN {
            let content = w.grid.content(w.page, c, t);
            if lengths {
                put_len(sink, base + 2, 0, content.len(), w.grid.form[cell]);
            }
            put_bytes_order1(sink, base + 4, content);
        }
    }
}

/// Reads a symbol, which is a place in a table, for each row into the grid; calls `each` with the row, its cell and its
/// symbol. `each` may use the decoder only if the symbol is [`UNKNOWN`].
#[inline(always)]
fn each_place<'d>(
    r: &mut Read<'_, 'd>,
    c: usize,
    context: Context,
    mut each: impl FnMut(&mut Read<'_, 'd>, u16, usize, u8) -> Result<(), Corrupt>,
) -> Result<(), Corrupt> {
    let (rows, cells) = (r.rows, c * r.grid.rows);
    if !r.is_coded(context.base, 0)? {
        for &t in rows {
            let cell = cells + usize::from(t);
            r.grid.sym[cell] = 0;
            each(r, t, cell, 0)?;
        }
        return Ok(());
    }
    // Each kind of context has a loop of its own, with the decoder in registers.
    match context.ctx {
        Ctx::Nothing => places_in(r, cells, context.base, |_, _, _| 0, each),
        Ctx::Previous => places_in(r, cells, context.base, |_, _, last| last, each),
        Ctx::Column(other) => {
            let from = usize::from(other) * r.grid.rows;
            places_in(r, cells, context.base, |symbols, t, _| symbols[from + usize::from(t)], &mut each)
        }
    }
}

#[inline(always)]
fn places_in<'d>(
    r: &mut Read<'_, 'd>,
    cells: usize,
    base: usize,
    ctx: impl Fn(&[u8], u16, u8) -> u8,
    mut each: impl FnMut(&mut Read<'_, 'd>, u16, usize, u8) -> Result<(), Corrupt>,
) -> Result<(), Corrupt> {
    let (rows, streams) = (r.rows, r.streams);
    let stream = &streams[base + 1];
    let mut d = *r.decoder;
    let mut last = 0;
    for &t in rows {
        last = d.get(stream.view(ctx(&r.grid.sym, t, last)));
        let cell = cells + usize::from(t);
        r.grid.sym[cell] = last;
        if last == UNKNOWN {
            *r.decoder = d;
            each(r, t, cell, last)?;
            d = *r.decoder;
        } else {
            each(r, t, cell, last)?;
        }
    }
    *r.decoder = d;
    Ok(())
}

/// Reads a column of fixed width that [`put_table`] wrote.
pub(crate) fn get_table(
    r: &mut Read<'_, '_>,
    c: usize,
    values: &Values,
    context: Context,
) -> Result<(), Corrupt> {
    let width = r.plans.width_of(c);
    each_place(r, c, context, |r, _, cell, symbol| {
        let at = usize::from(r.grid.pos[cell]);
        if symbol == UNKNOWN {
            get_bytes_order1(r, context.base + 4, at, width);
            return Ok(());
        }
        values.write_to(r.page, at, symbol, width)
    })
}

/// Reads the first pass of a column of varying length: places and lengths, and contents that are not in the table.
pub(crate) fn get_table_early(
    r: &mut Read<'_, '_>,
    c: usize,
    values: &Values,
    context: Context,
) -> Result<(), Corrupt> {
    let base = context.base;
    each_place(r, c, context, |r, _, cell, symbol| {
        let (len, form) = if symbol == UNKNOWN {
            get_early(r, base + 2, base + 4)?
        } else {
            let len = values.len_of(symbol)?;
            (len as u16, Form::usual(len))
        };
        (r.grid.len[cell], r.grid.form[cell]) = (len, form);
        Ok(())
    })
}

/// Reads a length and form from two streams, and from a third as many bytes, which are left for the second pass.
pub(crate) fn get_early(r: &mut Read<'_, '_>, lengths: usize, bytes: usize) -> Result<(u16, Form), Corrupt> {
    let (len, form) = get_len(r.decoder, &r.streams[lengths..], 0)?;
    let mut above = 0;
    let (streams, early) = (r.streams, &mut *r.early);
    let room = early.room(usize::from(len)).ok_or(Corrupt("contents are longer than their page"))?;
    for to in room {
        above = r.decoder.get(streams[bytes].view(above));
        *to = above;
    }
    early.filled += usize::from(len);
    Ok((len, form))
}

/// Reads the second pass of a column with a table: copies values to their places.
pub(crate) fn copy_table(r: &mut Read<'_, '_>, c: usize, values: &Values) -> Result<(), Corrupt> {
    let cells = c * r.grid.rows;
    for &t in r.rows {
        let cell = cells + usize::from(t);
        let (at, len) = (usize::from(r.grid.pos[cell]), usize::from(r.grid.len[cell]));
        match r.grid.sym[cell] {
            UNKNOWN => take_early(r, at, len)?,
            symbol => values.write_to(r.page, at, symbol, len)?,
        }
    }
    Ok(())
}

/// Reads the second pass of a column whose contents were decoded in the first.
pub(crate) fn copy_early(r: &mut Read<'_, '_>, c: usize) -> Result<(), Corrupt> {
    let cells = c * r.grid.rows;
    for &t in r.rows {
        let cell = cells + usize::from(t);
        take_early(r, usize::from(r.grid.pos[cell]), usize::from(r.grid.len[cell]))?;
    }
    Ok(())
}

#[inline(always)]
fn take_early(r: &mut Read<'_, '_>, at: usize, len: usize) -> Result<(), Corrupt> {
    let from = r.early.taken;
    if from + len > r.early.filled {
        return Err(Corrupt("contents are missing"));
    }
    put_value(r.page, at, &r.early.bytes, from, len)?;
    r.early.taken = from + len;
    Ok(())
}

/// Writes runs. Streams behind those of lengths: kinds, bytes. A value that is no run goes to the text.
pub(crate) fn put_runs<S: Sink>(w: &mut Write<'_>, sink: &mut S, c: usize, base: usize) {
    let is_run =
        |content: &[u8]| content.first().is_none_or(|first| content.iter().all(|byte| byte == first));
    let all = w.rows.iter().all(|&t| is_run(w.grid.content(w.page, c, t)));
    sink.put(base + 3, 0, u8::from(!all));
    for &t in w.rows {
        let content = w.grid.content(w.page, c, t);
        let run = all || is_run(content);
        if !all {
            sink.put(base + 3, 1, u8::from(!run));
        }
        if run {
            sink.put(base + 4, 0, content.first().copied().unwrap_or(0));
        } else {
            w.text.extend_from_slice(content);
        }
    }
}

pub(crate) fn get_runs(r: &mut Read<'_, '_>, c: usize, base: usize) -> Result<(), Corrupt> {
    let all = r.decoder.get(r.streams[base + 3].view(0)) == 0;
    for &t in r.rows {
        let (at, len) = r.grid.place(c, t);
        if all || r.decoder.get(r.streams[base + 3].view(1)) == 0 {
            let byte = r.decoder.get(r.streams[base + 4].view(0));
            r.page[at..at + len].fill(byte);
        } else {
            r.take_text(at, len)?;
        }
    }
    Ok(())
}

/// Writes a symbol per row that tells if the row is equal to the one before; a row that is not goes to the text.
pub(crate) fn put_repeats<S: Sink>(w: &mut Write<'_>, sink: &mut S, c: usize, stream: usize) {
    let mut before: &[u8] = &[];
    let mut last = 0;
    for &t in w.rows {
        let content = w.grid.content(w.page, c, t);
        let new = u8::from(content != before);
        sink.put(stream, last, new);
        last = new;
        if new == 1 {
            w.text.extend_from_slice(content);
            before = content;
        }
    }
}

pub(crate) fn get_repeats(r: &mut Read<'_, '_>, c: usize, stream: usize) -> Result<(), Corrupt> {
    let mut before = 0..0;
    let mut last = 0;
    for &t in r.rows {
        let (at, len) = r.grid.place(c, t);
        last = r.decoder.get(r.streams[stream].view(last));
        if last == 1 {
            r.take_text(at, len)?;
            before = at..at + len;
        } else if before.len() == len {
            r.page.copy_within(before.clone(), at);
        } else {
            return Err(Corrupt("a repeated value of another length"));
        }
    }
    Ok(())
}

/// Largest number of bytes that count as shared with the value before.
const MAX_SHARED: usize = 255;

/// Writes two streams: the number of bytes shared with the row before, and the other bytes.
pub(crate) fn put_front<S: Sink>(w: &mut Write<'_>, sink: &mut S, c: usize, stream: usize, plain: bool) {
    let mut before: &[u8] = &[];
    let mut last = 0;
    for &t in w.rows {
        let content = w.grid.content(w.page, c, t);
        let shared = content.iter().zip(before).take(MAX_SHARED).take_while(|(a, b)| a == b).count();
        sink.put(stream, last, shared as u8);
        last = shared as u8;
        if plain {
            w.plain.extend_from_slice(&content[shared..]);
        } else {
            let mut above = if shared > 0 { content[shared - 1] } else { 0 };
            for &byte in &content[shared..] {
                sink.put(stream + 1, above, byte);
                above = byte;
            }
        }
        before = content;
    }
}

pub(crate) fn get_front(r: &mut Read<'_, '_>, c: usize, stream: usize, plain: bool) -> Result<(), Corrupt> {
    let mut before = 0..0;
    let mut last = 0;
    for &t in r.rows {
        let (at, len) = r.grid.place(c, t);
        last = r.decoder.get(r.streams[stream].view(last));
        let shared = usize::from(last);
        if shared > len || shared > before.len() {
            return Err(Corrupt("more bytes are shared than there are"));
        }
        r.page.copy_within(before.start..before.start + shared, at);
        if plain {
            take_into(&mut r.plain, &mut r.page[at + shared..at + len])?;
        } else {
            let mut above = if shared > 0 { r.page[at + shared - 1] } else { 0 };
            let others = &r.streams[stream + 1];
            let mut d = *r.decoder;
            for to in &mut r.page[at + shared..at + len] {
                above = d.get(others.view(above));
                *to = above;
            }
            *r.decoder = d;
        }
        before = at..at + len;
    }
    Ok(())
}

/// Writes a stream that tells if all rows begin with the prefix, then `count` streams for the positions behind it.
pub(crate) fn put_positions<S: Sink>(
    w: &mut Write<'_>,
    sink: &mut S,
    c: usize,
    stream: usize,
    (prefix, count): (&[u8], u8),
) {
    let begins = |content: &[u8]| content.starts_with(prefix);
    let usual = prefix.is_empty() || w.rows.iter().all(|&t| begins(w.grid.content(w.page, c, t)));
    sink.put(stream, 0, if usual { CODED } else { UNFIT });
    let prefix = if usual { prefix } else { &[] };
    put_rounds(w, sink, c, stream + 1, (prefix, usize::from(count)));
}

/// Writes all bytes behind `prefix`, each in the context of the one before. Each position has a stream, of `count`
/// streams; further positions share the last. The order is that of [`Lanes`](super::lanes).
fn put_rounds<S: Sink>(
    w: &mut Write<'_>,
    sink: &mut S,
    c: usize,
    stream: usize,
    (prefix, count): (&[u8], usize),
) {
    let (grid, page) = (&*w.grid, w.page);
    w.lanes.set(w.rows.iter().map(|&t| Lane::behind(grid, c, t, prefix.len())));
    let first = prefix.last().copied().unwrap_or(0);
    w.lanes.rounds(|i, lanes| {
        let stream = stream + i.min(count - 1);
        for lane in lanes {
            let above = if i == 0 { first } else { page[lane.at + i - 1] };
            sink.put(stream, above, page[lane.at + i]);
        }
    });
}

/// Reads bytes that [`put_rounds`] wrote.
fn get_rounds(r: &mut Read<'_, '_>, c: usize, streams: &[Stream], prefix: &[u8]) -> Result<(), Corrupt> {
    for &t in r.rows {
        let (at, len) = r.grid.place(c, t);
        let begin = r.page[at..at + len]
            .get_mut(..prefix.len())
            .ok_or(Corrupt("a value is shorter than its beginning"))?;
        begin.copy_from_slice(prefix);
    }
    let grid = &*r.grid;
    r.lanes.set(r.rows.iter().map(|&t| Lane::behind(grid, c, t, prefix.len())));
    let first = prefix.last().copied().unwrap_or(0);
    let (mut d, page) = (*r.decoder, &mut *r.page);
    r.lanes.rounds(|i, lanes| {
        let stream = &streams[i.min(streams.len() - 1)];
        if i == 0 || stream.table_count() == 1 {
            // All values have one table: at position 0 they share their context, and other streams here have but one.
            let table = stream.view(first);
            for lane in lanes {
                page[lane.at + i] = d.get(table);
            }
        } else {
            for lane in lanes {
                let at = lane.at + i;
                if let Some([above, to]) = page.get_mut(at - 1..=at) {
                    *to = d.get(stream.view(*above));
                }
            }
        }
    });
    *r.decoder = d;
    Ok(())
}

pub(crate) fn get_positions(
    r: &mut Read<'_, '_>,
    c: usize,
    stream: usize,
    (prefix, count): (&[u8], u8),
) -> Result<(), Corrupt> {
    let prefix = if r.is_coded(stream, 0)? { prefix } else { &[] };
    let streams = r.streams;
    get_rounds(r, c, &streams[stream + 1..][..usize::from(count)], prefix)
}

pub(crate) fn put_order1<S: Sink>(w: &mut Write<'_>, sink: &mut S, c: usize, stream: usize) {
    put_rounds(w, sink, c, stream, (&[], 1));
}

pub(crate) fn get_order1(r: &mut Read<'_, '_>, c: usize, stream: usize) -> Result<(), Corrupt> {
    let streams = r.streams;
    get_rounds(r, c, &streams[stream..=stream], &[])
}

/// Writes each byte in the context of the one before.
pub(crate) fn put_bytes_order1<S: Sink>(sink: &mut S, stream: usize, content: &[u8]) {
    let mut above = 0;
    for &byte in content {
        sink.put(stream, above, byte);
        above = byte;
    }
}

pub(crate) fn get_bytes_order1(r: &mut Read<'_, '_>, stream: usize, at: usize, len: usize) {
    let stream = &r.streams[stream];
    let mut d = *r.decoder;
    let mut above = 0;
    for to in &mut r.page[at..at + len] {
        above = d.get(stream.view(above));
        *to = above;
    }
    *r.decoder = d;
}
