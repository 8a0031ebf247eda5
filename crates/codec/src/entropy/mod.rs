//! Has static models of symbols, and the coder that uses them.
//!
//! Symbols are bytes. A [`Stream`] has a [`Table`] of frequencies for each context that is worth one, and a table for
//! all others. Tables are trained once per relation; records hold code words alone. The coder is rANS with two
//! interleaved states of 32 bits, refilled by 16 bits.
//!
//! Writing is generic over [`Sink`]: [`Counter`] counts the symbols for training, [`Encoder`] makes code words. So the
//! code that uses a model also trains it.

pub(crate) mod histogram;
pub(crate) mod number;
pub(crate) mod rans;
pub(crate) mod stream;
pub(crate) mod table;

pub(crate) use histogram::Counter;
pub(crate) use rans::{Decoder, Encoder};
pub(crate) use stream::Stream;
pub(crate) use table::Table;

/// A receiver of symbols, in the order in which they will be read.
pub(crate) trait Sink {
    /// Takes `symbol` of stream `id` in context `ctx`.
    fn put(&mut self, id: usize, ctx: u8, symbol: u8);
    /// Takes the low `n` bits of `value` as they are; `n` is in 0..=16.
    fn bits(&mut self, value: u32, n: u32);

    /// Takes the low `n` bits of `value` as they are; `n` is in 0..=64.
    fn long_bits(&mut self, value: u64, n: u32) {
        let mut done = 0;
        while done < n {
            let step = (n - done).min(16);
            self.bits((value >> done) as u32 & ((1 << step) - 1), step);
            done += step;
        }
    }
}
