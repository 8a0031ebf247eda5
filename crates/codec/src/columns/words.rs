//! Codes short texts as phrases of a trained vocabulary.
//!
//! A phrase has up to 32 bytes, and may end its value: so a frequent value is one symbol, length included. The
//! vocabulary grows by joining the phrases that stand side by side most often (byte pair encoding), over values closed
//! by an end mark. Each phrase is conditioned on the one before.

use std::collections::HashMap;

use super::Form;
use super::bytes::{get_early, put_bytes_order1};
use super::code::{CODED, Context, EARLY_SLACK, Read, UNFIT, Write, put_len};
use super::trie::Trie;
use crate::Corrupt;
use crate::entropy::{Sink, number};
use crate::wire::{Reader, put_varint};

/// Longest phrase, in bytes.
pub(crate) const MAX_PHRASE: usize = 32;
/// Largest number of phrases.
pub(crate) const MAX_PHRASES: usize = 4096;
/// Number of frequent phrases that have a symbol each; further ones share symbols, and plain bits tell them apart.
const SINGLE: usize = 160;
/// The symbol of a byte that is no phrase of the vocabulary.
const LITERAL: u8 = 255;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Phrase {
    from: u32,
    len: u8,
    ends: bool,
}

/// Phrases, the most frequent first.
#[derive(Clone, Debug)]
pub(crate) struct Vocabulary {
    phrases: Vec<Phrase>,
    /// Bytes of the phrases, and as many as a copy may read beyond the last.
    bytes: Vec<u8>,
    trie: Trie,
}

/// Splits a phrase's place into its symbol, its plain bits and the number of these.
#[inline(always)]
fn split(place: usize) -> (u8, u64, u32) {
    if place < SINGLE {
        return (place as u8, 0, 0);
    }
    let (symbol, plain, n) = number::split((place - SINGLE + 16) as u64);
    (SINGLE as u8 + symbol - 16, plain, n)
}

impl Vocabulary {
    /// Makes a vocabulary of at most [`MAX_PHRASES`], the most frequent first. One of them is empty and ends a value.
    fn new(phrases: &[(Vec<u8>, bool)]) -> Self {
        let mut bytes = vec![];
        let mut places = vec![];
        for (phrase, ends) in phrases {
            places.push(Phrase { from: bytes.len() as u32, len: phrase.len() as u8, ends: *ends });
            bytes.extend_from_slice(phrase);
        }
        let total = bytes.len();
        let trie = Trie::new(phrases);
        bytes.resize(total + MAX_PHRASE, 0);
        Self { phrases: places, bytes, trie }
    }

    fn phrase(&self, place: usize) -> (Vec<u8>, bool) {
        let phrase = self.phrases[place];
        let from = phrase.from as usize;
        (self.bytes[from..from + usize::from(phrase.len)].to_vec(), phrase.ends)
    }

    /// Returns the bytes of memory that the vocabulary takes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.bytes.len() + size_of_val(&*self.phrases) + self.trie.memory_bytes()
    }

    /// Returns the bytes that the vocabulary takes in a model, before the model is compressed.
    pub(crate) fn model_bytes(&self) -> usize {
        self.bytes.len() - MAX_PHRASE + self.phrases.len()
    }

    /// Cuts a value into phrases, and calls `each` with each one's place, or `None` for a byte that no phrase covers,
    /// and its offset.
    #[inline(always)]
    fn cut(&self, value: &[u8], mut each: impl FnMut(Option<usize>, usize)) {
        let mut at = 0;
        loop {
            match self.trie.longest(&value[at..]) {
                Some((place, len)) => {
                    each(Some(place), at);
                    at += len;
                    if self.phrases[place].ends {
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

    /// Learns a vocabulary from `values`, of some hundred KiB at most.
    pub(crate) fn learn(values: &[&[u8]], max_phrases: usize) -> Self {
        let mut joined = join_pairs(values, max_phrases.min(MAX_PHRASES));
        joined.push((vec![], true));
        // Phrases that are used less than four times in cutting are removed, twice: cutting again uses the others more.
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
            out.push(phrase.len << 1 | u8::from(phrase.ends));
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

    /// Writes a column. Streams: state, first phrase, further phrases, bytes that are no phrase, lengths (two).
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
        let mut first = 0;
        for &t in w.rows {
            let mut ctx = context.of(w.grid, t, first);
            let mut stream = base + 1;
            let content = w.grid.content(w.page, c, t);
            self.cut(content, |place, at| {
                let (symbol, plain, n) = place.map_or((LITERAL, 0, 0), split);
                sink.put(stream, ctx, symbol);
                sink.bits(plain as u32, n);
                if symbol == LITERAL {
                    sink.put(base + 3, 0, content[at]);
                }
                if stream == base + 1 {
                    first = symbol;
                    stream = base + 2;
                }
                ctx = symbol;
            });
            let cell = w.grid.cell(c, t);
            w.grid.sym[cell] = first;
        }
    }

    /// Reads a column that [`Vocabulary::put`] wrote: lengths into the grid, contents to `r.early`.
    pub(crate) fn get(&self, r: &mut Read<'_, '_>, c: usize, context: Context) -> Result<(), Corrupt> {
        if !r.is_coded(context.base, 0)? {
            return get_plain(r, c, context.base);
        }
        let streams = &r.streams[context.base..context.base + 6];
        let (first, others, literals) = (&streams[1], &streams[2], streams[3].view(0));
        let cells = c * r.grid.rows;
        let bytes = &mut r.early.bytes[..];
        let mut at = r.early.filled;
        let mut d = *r.decoder;
        let mut last = 0;
        for &t in r.rows {
            let begin = at;
            let mut symbol = d.get(first.view(context.of(r.grid, t, last)));
            last = symbol;
            loop {
                // This fails if contents are longer than a page: less than the whole slack is left then.
                let to = bytes.get_mut(at..at + MAX_PHRASE).ok_or(TOO_LONG)?;
                if symbol == LITERAL {
                    to[0] = d.get(literals);
                    at += 1;
                } else {
                    let share = SHARES[usize::from(symbol)];
                    let place = usize::from(share.place) + d.bits_or_none(u32::from(share.bits)) as usize;
                    let phrase = *self.phrases.get(place).ok_or(Corrupt("a phrase beyond its vocabulary"))?;
                    let from = phrase.from as usize;
                    let text = self.bytes.get(from..from + MAX_PHRASE).ok_or(TOO_LONG)?;
                    to.copy_from_slice(text);
                    at += usize::from(phrase.len);
                    if phrase.ends {
                        break;
                    }
                }
                symbol = d.get(others.view(symbol));
            }
            let (len, cell) = (at - begin, cells + usize::from(t));
            (r.grid.len[cell], r.grid.form[cell], r.grid.sym[cell]) = (len as u16, Form::usual(len), last);
        }
        r.early.filled = at;
        *r.decoder = d;
        Ok(())
    }
}

const TOO_LONG: Corrupt = Corrupt("contents are longer than their page");

/// The phrases that share a symbol.
#[derive(Clone, Copy)]
struct Share {
    /// Place of the first phrase.
    place: u16,
    /// Number of plain bits that tell the phrases apart.
    bits: u8,
}

/// The phrases of each symbol: inverts [`split`].
static SHARES: [Share; 256] = {
    let mut shares = [Share { place: 0, bits: 0 }; 256];
    let mut symbol = 0;
    while symbol < 255 {
        shares[symbol] = if symbol < SINGLE {
            Share { place: symbol as u16, bits: 0 }
        } else {
            // As in `number`: four symbols for each place of the highest bit, from 16 on.
            let (quarter, bits) = ((symbol - SINGLE) % 4, (symbol - SINGLE) / 4 + 2);
            let place = ((4 + quarter as u64) << bits) - 16 + SINGLE as u64;
            // No vocabulary has a phrase at `MAX_PHRASES` or beyond.
            let beyond = place >= MAX_PHRASES as u64;
            Share {
                place: if beyond { MAX_PHRASES as u16 } else { place as u16 },
                bits: if bits > 16 { 16 } else { bits as u8 },
            }
        };
        symbol += 1;
    }
    shares
};

// A phrase of any length is copied as `MAX_PHRASE` bytes.
const _: () = assert!(MAX_PHRASE <= EARLY_SLACK);

/// Reads a column of a page in which some value has another form than the usual one.
fn get_plain(r: &mut Read<'_, '_>, c: usize, base: usize) -> Result<(), Corrupt> {
    for &t in r.rows {
        let (len, form) = get_early(r, base + 4, base + 3)?;
        let cell = r.grid.cell(c, t);
        (r.grid.len[cell], r.grid.form[cell]) = (len, form);
    }
    Ok(())
}

/// The mark behind each value.
const END: u32 = 256;
/// Largest number of rounds; each joins the most frequent pairs.
const ROUNDS: usize = 16;
/// A pair that is less frequent than this is not joined.
const MIN_PAIRS: u32 = 6;

/// Finds phrases by byte pair encoding: frequent bytes and joins, each with a flag that tells if it ends its value.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_phrase_is_found_by_its_symbol_and_bits() {
        for place in 0..MAX_PHRASES {
            let (symbol, plain, n) = split(place);
            let share = SHARES[usize::from(symbol)];
            assert_eq!(usize::from(share.place) + plain as usize, place);
            assert_eq!(u32::from(share.bits), n);
        }
    }
}
