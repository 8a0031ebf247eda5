//! Writes and reads a page's columns, in two passes.

use super::lanes::Lanes;
use super::plan::{Coding, Ctx, Plans};
use super::{Buffers, Form, Grid, bytes, numeric};
use crate::Corrupt;
use crate::entropy::{Decoder, Sink, Stream, number};

/// A column's first stream, and the context of its symbols.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Context {
    pub(crate) base: usize,
    pub(crate) ctx: Ctx,
}

impl Context {
    #[inline(always)]
    pub(crate) fn of(self, grid: &Grid, t: u16, last: u8) -> u8 {
        match self.ctx {
            Ctx::Nothing => 0,
            Ctx::Previous => last,
            Ctx::Column(other) => grid.sym[grid.cell(usize::from(other), t)],
        }
    }
}

/// The state that writing a column needs.
#[derive(Debug)]
pub(crate) struct Write<'a> {
    pub(crate) page: &'a [u8],
    pub(crate) plans: &'a Plans,
    pub(crate) grid: &'a mut Grid,
    /// Rows that have the column.
    pub(crate) rows: &'a [u16],
    pub(crate) residuals: &'a mut Vec<u64>,
    pub(crate) lanes: &'a mut Lanes,
    /// Text, which goes through zstd.
    pub(crate) text: &'a mut Vec<u8>,
    /// Bytes that are stored as they are.
    pub(crate) plain: &'a mut Vec<u8>,
}

/// The state that reading a column needs.
#[derive(Debug)]
pub(crate) struct Read<'a, 'd> {
    pub(crate) page: &'a mut [u8],
    pub(crate) plans: &'a Plans,
    pub(crate) streams: &'a [Stream],
    pub(crate) decoder: &'a mut Decoder<'d>,
    pub(crate) grid: &'a mut Grid,
    /// Rows that have the column.
    pub(crate) rows: &'a [u16],
    pub(crate) residuals: &'a mut Vec<u64>,
    pub(crate) lanes: &'a mut Lanes,
    /// Contents that were decoded in the first pass.
    pub(crate) early: &'a mut Early,
    /// Text that is not yet taken.
    pub(crate) text: &'a [u8],
    /// Plain bytes that are not yet taken.
    pub(crate) plain: &'a [u8],
}

impl Read<'_, '_> {
    /// Reads the column's state. Returns true if it is [`CODED`], false if it is [`ALL_COMMON`] or [`UNFIT`].
    #[inline]
    pub(crate) fn is_coded(&mut self, stream: usize, ctx: u8) -> Result<bool, Corrupt> {
        match self.decoder.get(self.streams[stream].view(ctx)) {
            CODED => Ok(true),
            ALL_COMMON => Ok(false),
            _ => Err(Corrupt("a column's state")),
        }
    }

    /// Takes the next `len` bytes of text into the page at `at`.
    pub(crate) fn take_text(&mut self, at: usize, len: usize) -> Result<(), Corrupt> {
        take_into(&mut self.text, &mut self.page[at..at + len])
    }
}

/// Fills `to` with the next bytes of `from`, and takes them off it.
#[inline(always)]
pub(crate) fn take_into(from: &mut &[u8], to: &mut [u8]) -> Result<(), Corrupt> {
    let (taken, rest) = from.split_at_checked(to.len()).ok_or(Corrupt("bytes are missing"))?;
    to.copy_from_slice(taken);
    *from = rest;
    Ok(())
}

/// Contents that the first pass has decoded, in the order of the second.
#[derive(Debug, Default)]
pub(crate) struct Early {
    /// Decoded contents, and room for others. Slack follows, so that a copy may be longer than the content that it
    /// copies.
    pub(crate) bytes: Vec<u8>,
    pub(crate) filled: usize,
    pub(crate) taken: usize,
}

/// Bytes of slack behind the room for contents, which is as long as a page.
pub(crate) const EARLY_SLACK: usize = 32;

impl Early {
    /// Forgets all contents, and makes room for those of a page of `page_bytes`.
    pub(crate) fn begin(&mut self, page_bytes: usize) {
        // Bytes that an earlier page has left are overwritten before they are read.
        self.bytes.resize(page_bytes + EARLY_SLACK, 0);
        (self.filled, self.taken) = (0, 0);
    }

    /// Returns room for `len` more bytes, or `None` if contents would be longer than the page.
    #[inline(always)]
    pub(crate) fn room(&mut self, len: usize) -> Option<&mut [u8]> {
        let max = self.bytes.len() - EARLY_SLACK;
        self.bytes[..max].get_mut(self.filled..self.filled + len)
    }
}

/// State of a column in a page, which comes first: values are coded one by one.
pub(crate) const CODED: u8 = 0;
/// State, in codings with a most frequent value: all values are that one.
pub(crate) const ALL_COMMON: u8 = 1;
/// State, in other codings: at least one value has a shape that the coding lacks, and all are kept plainly.
pub(crate) const UNFIT: u8 = 1;

/// Symbols of lengths: up to 253 they are the length; these two stand for a form that is not the usual one, and for
/// longer lengths.
const ODD_FORM: u8 = 254;
const LARGE: u8 = 255;

/// Writes a length, and the form if it is not the usual one, to streams `id` and `id + 1`.
#[inline]
pub(crate) fn put_len<S: Sink>(sink: &mut S, id: usize, ctx: u8, len: usize, form: Form) {
    if form != Form::usual(len) {
        sink.put(id, ctx, ODD_FORM);
        sink.bits(form as u32, 2);
        number::put(sink, id + 1, 1, len as u64);
    } else if len < usize::from(ODD_FORM) {
        sink.put(id, ctx, len as u8);
    } else {
        sink.put(id, ctx, LARGE);
        number::put(sink, id + 1, 0, len as u64);
    }
}

/// Reads a length and form that [`put_len`] wrote.
#[inline]
pub(crate) fn get_len(
    decoder: &mut Decoder<'_>,
    streams: &[Stream],
    ctx: u8,
) -> Result<(u16, Form), Corrupt> {
    let symbol = decoder.get(streams[0].view(ctx));
    let (len, form) = match symbol {
        ODD_FORM => {
            let form = Form::from_id(decoder.bits(2));
            (number::get(decoder, &streams[1], 1).1, Some(form))
        }
        LARGE => (number::get(decoder, &streams[1], 0).1, None),
        short => (u64::from(short), None),
    };
    let len = u16::try_from(len).ok().filter(|&len| len < 1 << 15).ok_or(Corrupt("a length"))?;
    Ok((len, form.unwrap_or(Form::usual(usize::from(len)))))
}

/// Writes the first pass of column `c`: all that lengths depend on.
pub(crate) fn write_lengths_of<S: Sink>(w: &mut Write<'_>, sink: &mut S, c: usize) {
    let plans = w.plans;
    let plan = &plans.plans[c];
    let context = Context { base: plan.base, ctx: plan.ctx };
    match &plan.coding {
        Coding::Table(values) => bytes::put_table(w, sink, c, values, context, true),
        Coding::Words(words) => words.put(w, sink, c, context),
        _ => put_lengths(w, sink, c, context, plan.common_len),
    }
}

fn put_lengths<S: Sink>(w: &mut Write<'_>, sink: &mut S, c: usize, context: Context, common: u16) {
    let base = context.base;
    let is_common =
        |cell: usize| w.grid.len[cell] == common && w.grid.form[cell] == Form::usual(usize::from(common));
    if w.rows.iter().all(|&t| is_common(w.grid.cell(c, t))) {
        return sink.put(base, 0, ALL_COMMON);
    }
    sink.put(base, 0, CODED);
    let mut last = 0;
    for &t in w.rows {
        let cell = w.grid.cell(c, t);
        let (len, form) = (usize::from(w.grid.len[cell]), w.grid.form[cell]);
        put_len(sink, base + 1, context.of(w.grid, t, last), len, form);
        last = len.min(255) as u8;
    }
}

/// Reads the first pass of column `c`: afterwards the grid has lengths and forms.
pub(crate) fn read_lengths_of(r: &mut Read<'_, '_>, c: usize) -> Result<(), Corrupt> {
    let plans = r.plans;
    let plan = &plans.plans[c];
    let context = Context { base: plan.base, ctx: plan.ctx };
    match &plan.coding {
        Coding::Table(values) => bytes::get_table_early(r, c, values, context),
        Coding::Words(words) => words.get(r, c, context),
        _ => get_lengths(r, c, context, plan.common_len),
    }
}

fn get_lengths(r: &mut Read<'_, '_>, c: usize, context: Context, common: u16) -> Result<(), Corrupt> {
    if !r.is_coded(context.base, 0)? {
        for &t in r.rows {
            let cell = r.grid.cell(c, t);
            (r.grid.len[cell], r.grid.form[cell]) = (common, Form::usual(usize::from(common)));
        }
        return Ok(());
    }
    let streams = &r.streams[context.base..];
    let mut last = 0;
    for &t in r.rows {
        let (len, form) = get_len(r.decoder, &streams[1..], context.of(r.grid, t, last))?;
        let cell = r.grid.cell(c, t);
        (r.grid.len[cell], r.grid.form[cell]) = (len, form);
        last = len.min(255) as u8;
    }
    Ok(())
}

/// Writes the second pass of column `c`: contents.
pub(crate) fn write_contents_of<S: Sink>(w: &mut Write<'_>, sink: &mut S, c: usize) {
    let plans = w.plans;
    let plan = &plans.plans[c];
    let context = Context { base: plan.base, ctx: plan.ctx };
    match &plan.coding {
        Coding::Int(ints) => ints.put(w, sink, c, plan.column, context),
        Coding::Table(values) if !plan.column.is_varlena() => {
            bytes::put_table(w, sink, c, values, context, false);
        }
        Coding::Table(_) | Coding::Words(_) => {}
        Coding::Run => bytes::put_runs(w, sink, c, plan.base),
        Coding::Positions { prefix, streams } => {
            bytes::put_positions(w, sink, c, plan.base + 3, (prefix, *streams));
        }
        Coding::Packed(packed) => packed.put(w, sink, c, plan.base),
        Coding::Order1 => bytes::put_order1(w, sink, c, plan.base + 3),
        Coding::Numeric => numeric::put(w, sink, c, plan.base),
        Coding::Text => {
            for &t in w.rows {
                w.text.extend_from_slice(w.grid.content(w.page, c, t));
            }
        }
        Coding::Plain => {
            for &t in w.rows {
                w.plain.extend_from_slice(w.grid.content(w.page, c, t));
            }
        }
        Coding::Repeat => bytes::put_repeats(w, sink, c, plan.base + 3),
        Coding::Front { plain } => bytes::put_front(w, sink, c, plan.base + 3, *plain),
    }
}

/// Reads the second pass of column `c`: writes contents and length words to the page.
pub(crate) fn read_contents_of(r: &mut Read<'_, '_>, c: usize) -> Result<(), Corrupt> {
    let plans = r.plans;
    let plan = &plans.plans[c];
    let context = Context { base: plan.base, ctx: plan.ctx };
    if plan.column.is_varlena() && !plan.column.is_innodb() {
        r.grid.write_words(c, r.rows, r.page);
    }
    match &plan.coding {
        Coding::Int(ints) => ints.get(r, c, plan.column, context),
        Coding::Table(values) if !plan.column.is_varlena() => bytes::get_table(r, c, values, context),
        Coding::Table(values) => bytes::copy_table(r, c, values),
        Coding::Words(_) => bytes::copy_early(r, c),
        Coding::Run => bytes::get_runs(r, c, plan.base),
        Coding::Positions { prefix, streams } => {
            bytes::get_positions(r, c, plan.base + 3, (prefix, *streams))
        }
        Coding::Packed(packed) => packed.get(r, c, plan.base),
        Coding::Order1 => bytes::get_order1(r, c, plan.base + 3),
        Coding::Numeric => numeric::get(r, c, plan.base),
        Coding::Text => {
            for &t in r.rows {
                let (at, len) = r.grid.place(c, t);
                r.take_text(at, len)?;
            }
            Ok(())
        }
        Coding::Plain => {
            for &t in r.rows {
                let (at, len) = r.grid.place(c, t);
                take_into(&mut r.plain, &mut r.page[at..at + len])?;
            }
            Ok(())
        }
        Coding::Repeat => bytes::get_repeats(r, c, plan.base + 3),
        Coding::Front { plain } => bytes::get_front(r, c, plan.base + 3, *plain),
    }
}

/// Writes the first pass of all columns.
pub(crate) fn write_lengths<S: Sink>(
    plans: &Plans,
    grid: &mut Grid,
    page: &[u8],
    buffers: &mut Buffers,
    sink: &mut S,
) {
    write_pass(plans, grid, page, buffers, |w, c| {
        if plans.columns[c].is_varlena() {
            write_lengths_of(w, sink, c);
        }
    });
}

/// Writes the second pass of all columns.
pub(crate) fn write_contents<S: Sink>(
    plans: &Plans,
    grid: &mut Grid,
    page: &[u8],
    buffers: &mut Buffers,
    sink: &mut S,
) {
    write_pass(plans, grid, page, buffers, |w, c| write_contents_of(w, sink, c));
}

fn write_pass(
    plans: &Plans,
    grid: &mut Grid,
    page: &[u8],
    buffers: &mut Buffers,
    mut each: impl FnMut(&mut Write<'_>, usize),
) {
    let Buffers { rows, residuals, lanes, text, plain, .. } = buffers;
    if grid.rows == 0 {
        return;
    }
    for c in 0..plans.columns.len() {
        grid.rows_of(c, rows);
        if !rows.is_empty() {
            each(&mut Write { page, plans, grid, rows, residuals, lanes, text, plain }, c);
        }
    }
}

/// Reads lengths that [`write_lengths`] wrote, and lays the rows out: `buffers.ends` has the length of each.
///
/// # Errors
/// [`Corrupt`] if a row is longer than the page, or if symbols mean nothing.
pub(crate) fn read_lengths(
    plans: &Plans,
    streams: &[Stream],
    decoder: &mut Decoder<'_>,
    grid: &mut Grid,
    buffers: &mut Buffers,
    page: &mut [u8],
) -> Result<(), Corrupt> {
    // Places have 16 bits.
    let max = page.len().min(usize::from(u16::MAX));
    buffers.early.begin(page.len());
    read_pass(plans, streams, decoder, grid, buffers, page, |r, c| {
        if plans.columns[c].is_varlena() { read_lengths_of(r, c) } else { Ok(()) }
    })?;
    grid.lay_out(&plans.columns, max, &mut buffers.ends)
}

/// Reads contents that [`write_contents`] wrote, to the places that the grid has, all of which are within the page.
pub(crate) fn read_contents(
    plans: &Plans,
    streams: &[Stream],
    decoder: &mut Decoder<'_>,
    grid: &mut Grid,
    buffers: &mut Buffers,
    page: &mut [u8],
) -> Result<(), Corrupt> {
    read_pass(plans, streams, decoder, grid, buffers, page, read_contents_of)
}

fn read_pass(
    plans: &Plans,
    streams: &[Stream],
    decoder: &mut Decoder<'_>,
    grid: &mut Grid,
    buffers: &mut Buffers,
    page: &mut [u8],
    mut each: impl FnMut(&mut Read<'_, '_>, usize) -> Result<(), Corrupt>,
) -> Result<(), Corrupt> {
    let Buffers { rows, residuals, lanes, text, text_taken, plain, plain_taken, early, .. } = buffers;
    if grid.rows == 0 {
        return Ok(());
    }
    for c in 0..plans.columns.len() {
        grid.rows_of(c, rows);
        if !rows.is_empty() {
            let (text_left, plain_left) = (&text[*text_taken..], &plain[*plain_taken..]);
            let mut r = Read {
                page,
                plans,
                streams,
                decoder,
                grid,
                rows,
                residuals,
                lanes,
                early,
                text: text_left,
                plain: plain_left,
            };
            each(&mut r, c)?;
            *text_taken = text.len() - r.text.len();
            *plain_taken = plain.len() - r.plain.len();
        }
    }
    Ok(())
}
