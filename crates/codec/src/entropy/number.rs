//! Codes numbers of any size: a symbol for the magnitude, plain bits for the rest.
//!
//! Below 16 the symbol is the number. Above, with `e` the place of its highest bit, the symbol is `16 + 4 (e - 4) + m`
//! where `m` are the two bits below the highest; `e - 2` plain bits follow.

use super::{Decoder, Sink, Stream};

/// Splits `value` into its symbol, its plain bits and the number of plain bits.
#[inline(always)]
pub(crate) fn split(value: u64) -> (u8, u64, u32) {
    if value < 16 {
        return (value as u8, 0, 0);
    }
    let e = 63 - value.leading_zeros();
    let n = e - 2;
    let symbol = 16 + 4 * (e - 4) as u8 + (value >> n & 3) as u8;
    (symbol, value & ((1 << n) - 1), n)
}

/// Returns the number of plain bits that follow `symbol`.
#[inline(always)]
pub(crate) fn plain_bits(symbol: u8) -> u32 {
    if symbol < 16 { 0 } else { u32::from(symbol - 16) / 4 + 2 }
}

/// Inverts [`split`].
#[inline(always)]
pub(crate) fn join(symbol: u8, plain: u64) -> u64 {
    if symbol < 16 {
        return u64::from(symbol);
    }
    let n = plain_bits(symbol);
    (4 | u64::from((symbol - 16) & 3)) << n | plain
}

/// Writes `value`; returns its symbol.
#[inline(always)]
pub(crate) fn put<S: Sink>(sink: &mut S, id: usize, ctx: u8, value: u64) -> u8 {
    let (symbol, plain, n) = split(value);
    sink.put(id, ctx, symbol);
    sink.long_bits(plain, n);
    symbol
}

/// Reads a number that [`put`] wrote; returns its symbol and its value.
#[inline(always)]
pub(crate) fn get(decoder: &mut Decoder<'_>, stream: &Stream, ctx: u8) -> (u8, u64) {
    let symbol = decoder.get(stream.view(ctx));
    let plain = decoder.long_bits(plain_bits(symbol));
    (symbol, join(symbol, plain))
}

/// Maps numbers near 0, of either sign, to small numbers.
#[inline(always)]
pub(crate) fn zigzag(value: i64) -> u64 {
    (value << 1 ^ value >> 63) as u64
}

/// Inverts [`zigzag`].
#[inline(always)]
pub(crate) fn unzigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}
