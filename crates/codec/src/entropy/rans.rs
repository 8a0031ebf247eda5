//! Codes symbols with rANS, in two interleaved states.
//!
//! States are in `2^16 .. 2^32`. The first symbol belongs to the first state, the second to the second, and so on. A
//! code is the two states, four bytes each, then words of two bytes, all little endian. Each state begins (and its
//! decoding ends) with 16 bits that the caller chooses: they carry a part of the page at no cost.
//!
//! A decoder takes no bytes beyond the end of the code: there it reads zeros, and [`Decoder::finish`] returns
//! [`Corrupt`].

use super::stream::{ESCAPED, Op, View, op};
use super::{Sink, Stream};
use crate::Corrupt;

const LOW: u32 = 1 << 16;

/// Collects symbols, then codes them from the last to the first.
#[derive(Debug, Default)]
pub(crate) struct Ops {
    ops: Vec<Op>,
    words: Vec<u16>,
}

impl Ops {
    pub(crate) fn clear(&mut self) {
        self.ops.clear();
    }

    /// Appends the code of all symbols since [`Ops::clear`] to `out`.
    pub(crate) fn finish(&mut self, carried: [u16; 2], out: &mut Vec<u8>) {
        let [mut a, mut b] = carried.map(|bits| LOW | u32::from(bits));
        // A symbol makes one word at most. Words are filled from the end.
        self.words.resize(self.ops.len(), 0);
        let words = &mut self.words[..];
        let mut left = words.len();
        if let (1, Some(&last)) = (self.ops.len() % 2, self.ops.last()) {
            // After an odd number of symbols it is the second state's turn, so that state carries the first number.
            (a, b) = (step(b, last, words, &mut left), a);
        }
        for pair in self.ops[..self.ops.len() & !1].rchunks_exact(2) {
            b = step(b, pair[1], words, &mut left);
            a = step(a, pair[0], words, &mut left);
        }
        out.extend_from_slice(&a.to_le_bytes());
        out.extend_from_slice(&b.to_le_bytes());
        out.extend(self.words[left..].iter().flat_map(|word| word.to_le_bytes()));
    }
}

/// Codes one symbol. The processor cannot predict if a symbol makes a word, so a word is written in any case, and
/// `left` tells if it counts.
#[inline(always)]
fn step(x: u32, op: Op, words: &mut [u16], left: &mut usize) -> u32 {
    let (start, freq, bits) = (op & 0xFFFF, (op >> 16 & 0xFFF) + 1, (op >> 28) + 1);
    let full = u64::from(x) >= u64::from(freq) << (32 - bits);
    if let Some(word) = words.get_mut(left.wrapping_sub(1)) {
        *word = x as u16;
    }
    *left -= usize::from(full);
    let x = if full { x >> 16 } else { x };
    let quotient = x / freq;
    (quotient << bits) + (x - quotient * freq) + start
}

/// A [`Sink`] that codes symbols with trained streams.
#[derive(Debug)]
pub(crate) struct Encoder<'a> {
    streams: &'a [Stream],
    ops: &'a mut Ops,
}

impl<'a> Encoder<'a> {
    pub(crate) fn new(streams: &'a [Stream], ops: &'a mut Ops) -> Self {
        ops.clear();
        Self { streams, ops }
    }
}

impl Sink for Encoder<'_> {
    #[inline]
    fn put(&mut self, id: usize, ctx: u8, symbol: u8) {
        let stream = &self.streams[id];
        let known = stream.op(ctx, symbol);
        if known != ESCAPED {
            self.ops.ops.push(known);
        } else if let Some(escape) = stream.escape(ctx) {
            self.ops.ops.push(escape);
            self.ops.ops.push(op(u32::from(symbol), 1, 8));
        }
    }

    #[inline]
    fn bits(&mut self, value: u32, n: u32) {
        if n > 0 {
            self.ops.ops.push(op(value, 1, n));
        }
    }
}

/// Reads symbols in the order in which they were written.
///
/// Loops work on a copy of the decoder, which stays in registers, and store the copy back at their end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Decoder<'a> {
    a: u32,
    b: u32,
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Decoder<'a> {
    /// Begins to decode a code that [`Ops::finish`] made.
    pub(crate) fn new(code: &'a [u8]) -> Result<Self, Corrupt> {
        let (a, rest) = code.split_first_chunk::<4>().ok_or(Corrupt("a code without states"))?;
        let (b, bytes) = rest.split_first_chunk::<4>().ok_or(Corrupt("a code without states"))?;
        Ok(Self { a: u32::from_le_bytes(*a), b: u32::from_le_bytes(*b), bytes, at: 0 })
    }

    #[inline(always)]
    fn turn(&mut self, x: u32) {
        let word = match self.bytes.get(self.at..self.at + 2) {
            Some(word) => u32::from(word[0]) | u32::from(word[1]) << 8,
            None => 0,
        };
        let refill = x < LOW;
        self.at += usize::from(refill) * 2;
        self.a = self.b;
        self.b = if refill { x << 16 | word } else { x };
    }

    /// Reads the next symbol.
    #[inline(always)]
    pub(crate) fn get(&mut self, table: View<'_>) -> u8 {
        let (x, bits) = (self.a, table.bits());
        let slot = table.slot(x & ((1 << bits) - 1));
        let freq = (slot >> 9 & 0x7FF) + 1;
        self.turn(freq.wrapping_mul(x >> bits).wrapping_add(slot >> 20));
        if slot & 0x100 != 0 { self.bits(8) as u8 } else { slot as u8 }
    }

    /// Reads the next `n` bits; `n` is in 0..=16.
    #[inline(always)]
    pub(crate) fn bits(&mut self, n: u32) -> u32 {
        if n == 0 {
            return 0;
        }
        let x = self.a;
        self.turn(x >> n);
        x & ((1 << n) - 1)
    }

    /// As [`Decoder::bits`], without a branch: for `n` that the processor cannot predict.
    #[inline(always)]
    pub(crate) fn bits_or_none(&mut self, n: u32) -> u32 {
        let before = *self;
        let x = self.a;
        self.turn(x >> n);
        // With `n` = 0 the states do not take turns. `at` is right already: a state from which nothing was taken needs
        // no word.
        self.b = if n == 0 { before.b } else { self.b };
        self.a = if n == 0 { before.a } else { self.a };
        x & ((1 << n) - 1)
    }

    /// Reads the next `n` bits; `n` is in 0..=64.
    #[inline(always)]
    pub(crate) fn long_bits(&mut self, n: u32) -> u64 {
        let (mut value, mut done) = (0, 0);
        while done < n {
            let step = (n - done).min(16);
            value |= u64::from(self.bits(step)) << done;
            done += step;
        }
        value
    }

    /// Returns the 16 bits that each state carries.
    ///
    /// # Errors
    /// [`Corrupt`] if the code was not used up exactly.
    pub(crate) fn finish(self) -> Result<[u16; 2], Corrupt> {
        let carried = [self.a, self.b].map(|state| (state >> 16 == 1).then_some(state as u16));
        match carried {
            [Some(a), Some(b)] if self.at == self.bytes.len() => Ok([a, b]),
            _ => Err(Corrupt("a code does not end where its page does")),
        }
    }
}
