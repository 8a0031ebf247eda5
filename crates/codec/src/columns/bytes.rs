//! Columns of bytes: tables of values, runs, bytes in context.

use super::Form;
use super::code::{ALL_COMMON, CODED, Context, Read, UNFIT, Write, get_len, put_len, take_into};
use super::lanes::Lane;
use crate::Corrupt;
use crate::entropy::{Sink, Stream};
use crate::wire::{Reader, put_bytes, put_varint};

/// Most values of a table: symbols below [`UNKNOWN`].
pub(crate) const MAX_VALUES: usize = 255;
/// Longest value in a table.
pub(crate) const MAX_VALUE_BYTES: usize = 255;
/// The symbol of values that are not in the table.
const UNKNOWN: u8 = 255;
/// Contents of early columns are copied in steps of so many bytes.
const COPY: usize = 32;

/// Frequent values, the most frequent first.
#[derive(Clone, Debug)]
pub(crate) struct Values {
    values: Vec<Box<[u8]>>,
    /// Open addressing: 1 + place of a value, by hash.
    index: Box<[u16]>,
}

fn hash(value: &[u8]) -> usize {
    let mut h = value.len() as u64;
    let (chunks, rest) = value.as_chunks::<8>();
    for chunk in chunks {
        h = (h ^ u64::from_le_bytes(*chunk)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        h ^= h >> 29;
    }
    let tail = rest.iter().fold(0u64, |tail, &byte| tail << 8 | u64::from(byte));
    h = (h ^ tail).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (h >> 40) as usize
}

/// Equal, without comparing the bytes of nothing: its address may be one that is slow to touch.
#[inline(always)]
fn is_same(one: &[u8], other: &[u8]) -> bool {
    one.len() == other.len() && (one.is_empty() || one == other)
}

impl Values {
    /// At most [`MAX_VALUES`] values of at most [`MAX_VALUE_BYTES`].
    pub(crate) fn new(values: Vec<Box<[u8]>>) -> Self {
        debug_assert!(values.len() <= MAX_VALUES);
        let mut index = vec![0u16; 1024].into_boxed_slice();
        for (place, value) in values.iter().enumerate() {
            let mut slot = hash(value) % index.len();
            while index[slot] != 0 {
                slot = (slot + 1) % index.len();
            }
            index[slot] = place as u16 + 1;
        }
        Self { values, index }
    }

    /// Bytes of memory.
    pub(crate) fn memory_bytes(&self) -> usize {
        size_of_val(&*self.values) + size_of_val(&*self.index) + self.model_bytes()
    }

    /// Bytes that the table takes in a model, before the model is compressed.
    pub(crate) fn model_bytes(&self) -> usize {
        self.values.iter().map(|value| value.len() + 1).sum()
    }

    #[inline]
    fn find(&self, value: &[u8]) -> u8 {
        let mut slot = hash(value) % self.index.len();
        loop {
            match self.index[slot] {
                0 => return UNKNOWN,
                place if is_same(&self.values[usize::from(place) - 1], value) => return (place - 1) as u8,
                _ => slot = (slot + 1) % self.index.len(),
            }
        }
    }

    #[inline]
    fn get(&self, symbol: u8) -> Option<&[u8]> {
        self.values.get(usize::from(symbol)).map(|value| &value[..])
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        put_varint(out, self.values.len() as u64);
        for value in &self.values {
            put_bytes(out, value);
        }
    }

    /// Reads the table of a column of `width` bytes, 0 for any.
    pub(crate) fn read(reader: &mut Reader<'_>, width: u16) -> Result<Self, Corrupt> {
        let count = reader.at_most(MAX_VALUES)?;
        let mut values = Vec::with_capacity(count);
        for _ in 0..count {
            let value = reader.bytes(MAX_VALUE_BYTES)?;
            if width != 0 && value.len() != usize::from(width) {
                return Err(Corrupt("a value of another width"));
            }
            values.push(value.into());
        }
        Ok(Self::new(values))
    }
}

/// Streams of a table: state, places, lengths (two), bytes of values that are not in it.
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

fn get_places(r: &mut Read<'_, '_>, c: usize, context: Context, t: u16, last: u8) -> u8 {
    let ctx = context.of(r.grid, t, last);
    let symbol = r.decoder.get(r.streams[context.base + 1].view(ctx));
    let cell = r.grid.cell(c, t);
    r.grid.sym[cell] = symbol;
    symbol
}

/// Reads a column of fixed width that [`put_table`] wrote.
pub(crate) fn get_table(
    r: &mut Read<'_, '_>,
    c: usize,
    values: &Values,
    context: Context,
) -> Result<(), Corrupt> {
    let width = r.plans.width_of(c);
    let all_first = !r.is_coded(context.base, 0)?;
    let mut last = 0;
    for &t in r.rows {
        last = if all_first { 0 } else { get_places(r, c, context, t, last) };
        let (at, _) = r.grid.place(c, t);
        if last == UNKNOWN {
            get_bytes_order1(r, context.base + 4, at, width);
        } else {
            let value = values.get(last).ok_or(Corrupt("a value beyond its table"))?;
            r.page[at..at + width].copy_from_slice(value);
        }
    }
    Ok(())
}

/// First pass of reading a column of varying length: places and lengths, and contents that are not in the table.
pub(crate) fn get_table_early(
    r: &mut Read<'_, '_>,
    c: usize,
    values: &Values,
    context: Context,
) -> Result<(), Corrupt> {
    let base = context.base;
    let all_first = !r.is_coded(base, 0)?;
    let mut last = 0;
    for &t in r.rows {
        last = if all_first { 0 } else { get_places(r, c, context, t, last) };
        let cell = r.grid.cell(c, t);
        let (len, form) = if last == UNKNOWN {
            get_early(r, base + 2, base + 4)?
        } else {
            let len = values.get(last).ok_or(Corrupt("a value beyond its table"))?.len();
            (len as u16, Form::usual(len))
        };
        (r.grid.len[cell], r.grid.form[cell]) = (len, form);
    }
    Ok(())
}

/// Length and form from two streams, and from a third as many bytes, which are left for the second pass.
pub(crate) fn get_early(r: &mut Read<'_, '_>, lengths: usize, bytes: usize) -> Result<(u16, Form), Corrupt> {
    let (len, form) = get_len(r.decoder, &r.streams[lengths..], 0)?;
    if r.early.bytes.len() + usize::from(len) > r.page.len() {
        return Err(Corrupt("contents are longer than their page"));
    }
    let mut above = 0;
    for _ in 0..len {
        above = r.decoder.get(r.streams[bytes].view(above));
        r.early.bytes.push(above);
    }
    Ok((len, form))
}

/// Second pass: copies values to where they belong.
pub(crate) fn copy_table(r: &mut Read<'_, '_>, c: usize, values: &Values) -> Result<(), Corrupt> {
    for &t in r.rows {
        let cell = r.grid.cell(c, t);
        let (at, len) = r.grid.place(c, t);
        match r.grid.sym[cell] {
            UNKNOWN => take_early(r, at, len)?,
            symbol => {
                let value = values.get(symbol).ok_or(Corrupt("a value beyond its table"))?;
                r.page[at..at + len].copy_from_slice(value);
            }
        }
    }
    Ok(())
}

/// Second pass of a column whose contents were decoded in the first.
pub(crate) fn copy_early(r: &mut Read<'_, '_>, c: usize) -> Result<(), Corrupt> {
    for &t in r.rows {
        let (at, len) = r.grid.place(c, t);
        take_early(r, at, len)?;
    }
    Ok(())
}

#[inline(always)]
fn take_early(r: &mut Read<'_, '_>, at: usize, len: usize) -> Result<(), Corrupt> {
    let from = r.early.taken;
    let source = r.early.bytes.get(from..from + len).ok_or(Corrupt("contents are missing"))?;
    r.page[at..at + len].copy_from_slice(source);
    r.early.taken = from + len;
    Ok(())
}

/// Streams of runs behind those of lengths: kinds, bytes. What is no run goes to the text.
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

/// A symbol per row says whether it is as the row before; what is not goes to the text.
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

/// Bytes that a value shares with the one before are counted up to this.
const MAX_SHARED: usize = 255;

/// Two streams: bytes shared with the row before, and the others.
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

/// Streams: whether all rows begin with the prefix, then `count` for the positions behind it.
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

/// All bytes behind `prefix`, each in the context of the one before: a stream for each position, of `count` streams; further
/// positions share the last. The order is that of [`Lanes`](super::lanes).
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

/// Reads what [`put_rounds`] wrote.
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
        for lane in lanes {
            let at = lane.at + i;
            let above = if i == 0 { first } else { page[at - 1] };
            page[at] = d.get(stream.view(above));
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

/// Each byte in the context of the one before.
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

/// Appends up to [`COPY`] bytes of `source`, which is longer than that behind `from`.
#[inline(always)]
pub(crate) fn append(bytes: &mut Vec<u8>, source: &[u8], from: usize, len: usize) {
    if let Some(chunk) = source.get(from..from + COPY).filter(|_| len <= COPY) {
        bytes.extend_from_slice(chunk);
        bytes.truncate(bytes.len() - COPY + len);
    }
}
