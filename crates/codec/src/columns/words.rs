//! Short texts as phrases of a trained vocabulary.
//!
//! A phrase is up to 32 bytes, and may end its value: so a value that comes often is one symbol, length included. The
//! vocabulary grows by joining what stands side by side most often (byte pair encoding), over values closed by an
//! end mark. Each phrase is conditioned on the one before.
//!
//! Phrases are coded in rounds: the first of each value, then the second of each, and so on. So no phrase waits for the
//! one that it is conditioned on. Frequent phrases have a symbol each; others share symbols, and a few bits, which are stored as they
//! are, tell them apart.

use std::collections::HashMap;

use super::Form;
use super::bits::{BitReader, BitWriter};
use super::bytes::{get_early, put_bytes_order1};
use super::code::{CODED, Context, Read, UNFIT, Write, put_len};
use super::lanes::Lane;
use super::trie::Trie;
use crate::Corrupt;
use crate::entropy::{Decoder, Sink, Stream, number};
use crate::wire::{Reader, put_varint};

/// Longest phrase.
pub(crate) const MAX_PHRASE: usize = 32;
/// Most phrases.
pub(crate) const MAX_PHRASES: usize = 4096;
/// The most frequent phrases have a symbol each; further ones share symbols, and plain bits tell them apart.
const SINGLE: usize = 160;
/// The symbol of a byte that is no phrase of the vocabulary.
const LITERAL: u8 = 255;

/// Where a phrase's bytes begin, its length, and whether it ends its value: 18, 6 and 1 bits from the highest down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Phrase(u32);

impl Phrase {
    fn new(from: usize, len: usize, ends: bool) -> Self {
        Self((from << 7 | len << 1) as u32 | u32::from(ends))
    }

    #[inline(always)]
    fn from(self) -> usize {
        (self.0 >> 7) as usize
    }

    #[inline(always)]
    fn len(self) -> usize {
        (self.0 >> 1 & 0x3F) as usize
    }

    #[inline(always)]
    fn ends(self) -> bool {
        self.0 & 1 == 1
    }
}

/// Phrases, the most frequent first.
#[derive(Clone, Debug)]
pub(crate) struct Vocabulary {
    phrases: Vec<Phrase>,
    /// Their bytes, and as many as a copy may read beyond.
    bytes: Vec<u8>,
    trie: Trie,
}

/// In the place of a phrase's place: a byte that is no phrase.
const BYTE: u32 = 1 << 15;

/// A value of which phrases are still to come.
#[derive(Clone, Copy, Debug)]
struct Open {
    row: u16,
    /// The symbol of its last phrase.
    ctx: u8,
    len: u32,
}

/// What decoding keeps from column to column.
#[derive(Debug, Default)]
pub(crate) struct Cut {
    open: Vec<Open>,
    /// In the order of decoding: the row times 2^16, and the place of a phrase, or [`BYTE`] and a byte.
    phrases: Vec<u32>,
    /// By row: bytes of its value, then where the next of them belong.
    ends: Vec<usize>,
}

/// Of a symbol: the first of the places that share it, and how many bits tell them apart.
const SHARED: [(u16, u8); 256] = {
    let mut shared = [(0, 0); 256];
    let mut symbol = 0;
    while symbol < 256 {
        let place = if symbol < SINGLE {
            symbol as u64
        } else {
            let number = (symbol - SINGLE + 16) as u8;
            shared[symbol].1 = number::plain_bits(number) as u8;
            number::join(number, 0) - 16 + SINGLE as u64
        };
        // Places beyond any vocabulary are all the same.
        shared[symbol].0 = if place < MAX_PHRASES as u64 { place as u16 } else { MAX_PHRASES as u16 };
        if shared[symbol].1 > 16 {
            shared[symbol].1 = 16;
        }
        symbol += 1;
    }
    shared
};

/// Symbol, plain bits, and how many, of a phrase's place.
#[inline(always)]
fn split(place: usize) -> (u8, u64, u32) {
    if place < SINGLE {
        return (place as u8, 0, 0);
    }
    let (symbol, plain, n) = number::split((place - SINGLE + 16) as u64);
    (SINGLE as u8 + symbol - 16, plain, n)
}

impl Vocabulary {
    /// At most [`MAX_PHRASES`], the most frequent first; one of them is empty and ends a value.
    fn new(phrases: &[(Vec<u8>, bool)]) -> Self {
        let mut bytes = vec![];
        let mut places = vec![];
        for (phrase, ends) in phrases {
            places.push(Phrase::new(bytes.len(), phrase.len(), *ends));
            bytes.extend_from_slice(phrase);
        }
        let total = bytes.len();
        let trie = Trie::new(phrases);
        bytes.resize(total + MAX_PHRASE, 0);
        Self { phrases: places, bytes, trie }
    }

    fn phrase(&self, place: usize) -> (Vec<u8>, bool) {
        let phrase = self.phrases[place];
        (self.bytes[phrase.from()..][..phrase.len()].to_vec(), phrase.ends())
    }

    /// Bytes of memory.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.bytes.len() + size_of_val(&*self.phrases) + self.trie.memory_bytes()
    }

    /// Bytes that the vocabulary takes in a model, before the model is compressed.
    pub(crate) fn model_bytes(&self) -> usize {
        self.bytes.len() - MAX_PHRASE + self.phrases.len()
    }

    /// Cuts a value into phrases; `None` stands for the next byte as it is.
    #[inline(always)]
    fn cut(&self, value: &[u8], mut each: impl FnMut(Option<usize>, usize)) {
        let mut at = 0;
        loop {
            match self.trie.longest(&value[at..]) {
                Some((place, len)) => {
                    each(Some(place), at);
                    at += len;
                    if self.phrases[place].ends() {
                        return;
                    }
                }
                None => {
                    each(None, at);
                    at += 1;
                }
            }
        }
    }

    /// Learns from `values`, of some hundred KiB at most.
    pub(crate) fn learn(values: &[&[u8]], max_phrases: usize) -> Self {
        let mut joined = join_pairs(values, max_phrases.min(MAX_PHRASES));
        joined.push((vec![], true));
        // What the final cutting hardly uses goes, twice: cutting anew uses others more.
        let mut vocabulary = Self::new(&joined);
        for _ in 0..2 {
            let mut uses = vec![0u32; vocabulary.phrases.len()];
            for value in values {
                vocabulary.cut(value, |place, _| {
                    if let Some(place) = place {
                        uses[place] += 1;
                    }
                });
            }
            let mut kept: Vec<(u32, (Vec<u8>, bool))> = (0..uses.len())
                .map(|place| (uses[place], vocabulary.phrase(place)))
                .filter(|(uses, (phrase, ends))| *uses >= 4 || (phrase.is_empty() && *ends))
                .collect();
            kept.sort_by(|(a, x), (b, y)| b.cmp(a).then_with(|| x.cmp(y)));
            let kept: Vec<(Vec<u8>, bool)> = kept.into_iter().map(|(_, phrase)| phrase).collect();
            vocabulary = Self::new(&kept);
        }
        vocabulary
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        put_varint(out, self.phrases.len() as u64);
        for phrase in &self.phrases {
            out.push((phrase.len() << 1) as u8 | u8::from(phrase.ends()));
        }
        out.extend_from_slice(&self.bytes[..self.bytes.len() - MAX_PHRASE]);
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Self, Corrupt> {
        let count = reader.at_most(MAX_PHRASES)?;
        let heads = reader.take(count)?;
        let mut phrases = Vec::with_capacity(count);
        for &head in heads {
            let len = usize::from(head >> 1);
            if len > MAX_PHRASE {
                return Err(Corrupt("a phrase is too long"));
            }
            phrases.push((reader.take(len)?.to_vec(), head & 1 == 1));
        }
        if !phrases.iter().any(|(phrase, ends)| phrase.is_empty() && *ends) {
            return Err(Corrupt("a vocabulary without an end"));
        }
        if phrases.iter().any(|(phrase, ends)| phrase.is_empty() && !*ends) {
            return Err(Corrupt("a phrase of nothing"));
        }
        Ok(Self::new(&phrases))
    }

    /// Streams: state, first phrase, further phrases, bytes that are no phrase, lengths (two).
    pub(crate) fn put<S: Sink>(&self, w: &mut Write<'_>, sink: &mut S, c: usize, context: Context) {
        let base = context.base;
        let usual = |cell: usize| w.grid.form[cell] == Form::usual(usize::from(w.grid.len[cell]));
        if !w.rows.iter().all(|&t| usual(w.grid.cell(c, t))) {
            sink.put(base, 0, UNFIT);
            for &t in w.rows {
                let cell = w.grid.cell(c, t);
                put_len(sink, base + 4, 0, usize::from(w.grid.len[cell]), w.grid.form[cell]);
                put_bytes_order1(sink, base + 3, w.grid.content(w.page, c, t));
            }
            return;
        }
        sink.put(base, 0, CODED);
        let mut phrases = std::mem::take(w.residuals);
        phrases.clear();
        let lane = |&t: &u16| {
            let at = phrases.len();
            let content = w.grid.content(w.page, c, t);
            self.cut(content, |place, at| {
                phrases.push(
                    place.map_or_else(|| u64::from(BYTE) | u64::from(content[at]), |place| place as u64),
                );
            });
            Lane { at, len: phrases.len() - at }
        };
        w.lanes.set(w.rows.iter().map(lane));
        let parts = |lane: &Lane, i: usize| {
            let phrase = phrases[lane.at + i];
            if phrase & u64::from(BYTE) == 0 { split(phrase as usize) } else { (LITERAL, phrase & 0xFF, 0) }
        };
        let (mut bits, plain_bytes) = (BitWriter::default(), &mut *w.plain);
        let mut put = |stream: usize, ctx: u8, (symbol, plain, n): (u8, u64, u32)| {
            sink.put(stream, ctx, symbol);
            if symbol == LITERAL {
                sink.put(base + 3, 0, plain as u8);
            } else {
                bits.put(plain_bytes, plain as u32, n);
            }
        };
        w.lanes.rounds(|i, lanes| {
            if i > 0 {
                return lanes.iter().for_each(|lane| put(base + 2, parts(lane, i - 1).0, parts(lane, i)));
            }
            // Each value has a phrase: that which ends it.
            let mut last = 0;
            for (&t, lane) in w.rows.iter().zip(lanes) {
                let own = parts(lane, 0);
                put(base + 1, context.of(w.grid, t, last), own);
                last = own.0;
                let cell = w.grid.cell(c, t);
                w.grid.sym[cell] = last;
            }
        });
        bits.finish(w.plain);
        *w.residuals = phrases;
    }

    /// Reads what [`Vocabulary::put`] wrote: lengths into the grid, contents to `r.early`.
    pub(crate) fn get(&self, r: &mut Read<'_, '_>, c: usize, context: Context) -> Result<(), Corrupt> {
        if !r.is_coded(context.base, 0)? {
            return get_plain(r, c, context.base);
        }
        self.get_phrases(r, c, context)?;
        // Where the values are to lie.
        let mut end = r.early.bytes.len();
        for &t in r.rows {
            let cell = r.grid.cell(c, t);
            let len = std::mem::replace(&mut r.cut.ends[usize::from(t)], end);
            (r.grid.len[cell], r.grid.form[cell]) = (len as u16, Form::usual(len));
            end += len + SLACK;
        }
        r.early.bytes.resize(end, 0);
        let bytes = &mut r.early.bytes[..];
        for &phrase in &r.cut.phrases {
            let at = &mut r.cut.ends[(phrase >> 16) as usize];
            if phrase & BYTE != 0 {
                bytes[*at] = phrase as u8;
                *at += 1;
            } else {
                // As many bytes as a phrase can have are copied: the next phrase of the value, or the room behind it, takes those that are not its own.
                let phrase = self.phrases[(phrase & 0xFFFF) as usize];
                bytes[*at..*at + MAX_PHRASE].copy_from_slice(&self.bytes[phrase.from()..][..MAX_PHRASE]);
                *at += phrase.len();
            }
        }
        Ok(())
    }

    /// Decodes phrases to `r.cut`, and how long each value is; in the grid, the symbol of each one's first phrase.
    fn get_phrases(&self, r: &mut Read<'_, '_>, c: usize, context: Context) -> Result<(), Corrupt> {
        let streams = &r.streams[context.base..context.base + 6];
        let Cut { open, phrases, ends } = &mut *r.cut;
        open.clear();
        phrases.clear();
        ends.clear();
        ends.resize(r.grid.rows, 0);
        let (mut d, mut bits) = (*r.decoder, BitReader::new(r.plain));
        let mut last = 0;
        for &row in r.rows {
            let (ctx, phrase, len, more) =
                self.next(&mut d, &mut bits, [&streams[1], &streams[3]], context.of(r.grid, row, last))?;
            last = ctx;
            let cell = r.grid.cell(c, row);
            r.grid.sym[cell] = ctx;
            phrases.push(u32::from(row) << 16 | phrase);
            ends[usize::from(row)] = len as usize;
            if more {
                open.push(Open { row, ctx, len });
            }
        }
        while !open.is_empty() {
            let mut kept = 0;
            for i in 0..open.len() {
                let Open { row, ctx, len: before } = open[i];
                let (ctx, phrase, len, more) =
                    self.next(&mut d, &mut bits, [&streams[2], &streams[3]], ctx)?;
                let len = before + len;
                phrases.push(u32::from(row) << 16 | phrase);
                ends[usize::from(row)] = len as usize;
                open[kept] = Open { row, ctx, len };
                kept += usize::from(more);
            }
            open.truncate(kept);
            // Each phrase that does not end its value has a byte.
            if phrases.len() > r.page.len() + r.rows.len() {
                return Err(Corrupt("contents are longer than their page"));
            }
        }
        if ends.iter().sum::<usize>() > r.page.len() {
            return Err(Corrupt("contents are longer than their page"));
        }
        (*r.decoder, r.plain) = (d, bits.finish()?);
        Ok(())
    }

    /// The next phrase of a stream, or a byte of another: its symbol, what [`Cut`] keeps of it, its length, and whether more follow.
    #[inline(always)]
    fn next(
        &self,
        d: &mut Decoder<'_>,
        bits: &mut BitReader<'_>,
        [stream, bytes]: [&Stream; 2],
        ctx: u8,
    ) -> Result<(u8, u32, u32, bool), Corrupt> {
        let symbol = d.get(stream.view(ctx));
        if symbol == LITERAL {
            return Ok((symbol, BYTE | u32::from(d.get(bytes.view(0))), 1, true));
        }
        let (first, n) = SHARED[usize::from(symbol)];
        let place = u32::from(first) + bits.get(n.into());
        let phrase = self.phrases.get(place as usize).ok_or(Corrupt("a phrase beyond its vocabulary"))?;
        Ok((symbol, place, phrase.len() as u32, !phrase.ends()))
    }
}

/// Behind each value in the buffer of the first pass is room for the rest of a copy.
pub(crate) const SLACK: usize = MAX_PHRASE;

/// A column of a page that has values of another form.
fn get_plain(r: &mut Read<'_, '_>, c: usize, base: usize) -> Result<(), Corrupt> {
    for &t in r.rows {
        let (len, form) = get_early(r, base + 4, base + 3)?;
        r.early.bytes.extend_from_slice(&[0; SLACK]);
        let cell = r.grid.cell(c, t);
        (r.grid.len[cell], r.grid.form[cell]) = (len, form);
    }
    Ok(())
}

/// The mark behind each value.
const END: u32 = 256;
/// Joins are made in rounds of the most frequent pairs.
const ROUNDS: usize = 16;
/// A pair that is less frequent than this is not joined.
const MIN_PAIRS: u32 = 6;

/// Byte pair encoding: frequent bytes and joins, with whether each ends its value.
fn join_pairs(values: &[&[u8]], max_phrases: usize) -> Vec<(Vec<u8>, bool)> {
    // Ids below 256 are bytes, 256 is the end mark, further ones are joins.
    let mut phrases: Vec<(Vec<u8>, bool)> = (0..=255u8).map(|byte| (vec![byte], false)).collect();
    phrases.push((vec![], true));
    let mut texts: Vec<Vec<u32>> =
        values.iter().map(|value| value.iter().map(|&byte| u32::from(byte)).chain([END]).collect()).collect();
    let mut uses = [0u32; 256];
    for &byte in values.iter().copied().flatten() {
        uses[usize::from(byte)] += 1;
    }
    for _ in 0..ROUNDS {
        let room = (max_phrases + 257).saturating_sub(phrases.len());
        let mut pairs: HashMap<(u32, u32), u32> = HashMap::new();
        for pair in texts.iter().flat_map(|text| text.windows(2)) {
            *pairs.entry((pair[0], pair[1])).or_default() += 1;
        }
        let fits =
            |&(a, b): &(u32, u32)| phrases[a as usize].0.len() + phrases[b as usize].0.len() <= MAX_PHRASE;
        let mut frequent: Vec<(u32, (u32, u32))> = pairs
            .into_iter()
            .filter(|(pair, n)| *n >= MIN_PAIRS && fits(pair))
            .map(|(pair, n)| (n, pair))
            .collect();
        frequent.sort_unstable_by(|x, y| y.cmp(x));
        frequent.truncate(room.min(max_phrases / 8 + 16));
        if frequent.is_empty() {
            break;
        }
        let mut joins = HashMap::new();
        for (_, (a, b)) in frequent {
            let joined = [&phrases[a as usize].0[..], &phrases[b as usize].0[..]].concat();
            joins.insert((a, b), phrases.len() as u32);
            phrases.push((joined, phrases[b as usize].1));
        }
        for text in &mut texts {
            apply(text, &joins);
        }
    }
    let frequent = |i: usize| i >= 256 || uses[i] >= MIN_PAIRS;
    let mut kept: Vec<(Vec<u8>, bool)> = phrases
        .into_iter()
        .enumerate()
        .filter(|&(i, _)| frequent(i) && i as u32 != END)
        .map(|(_, phrase)| phrase)
        .collect();
    kept.sort();
    kept.dedup();
    kept.truncate(MAX_PHRASES - 1);
    kept
}

fn apply(text: &mut Vec<u32>, joins: &HashMap<(u32, u32), u32>) {
    let (mut to, mut from) = (0, 0);
    while from < text.len() {
        match text.get(from + 1).and_then(|&next| joins.get(&(text[from], next))) {
            Some(&joined) => {
                text[to] = joined;
                from += 2;
            }
            None => {
                text[to] = text[from];
                from += 1;
            }
        }
        to += 1;
    }
    text.truncate(to);
}
