//! Has one walk over a page of a log for both directions: it either writes or reads the values that it meets.
//!
//! A walk hands over each value as it is in the page, and goes on with the value that it gets back: the same one when
//! writing, the one that was written when reading. So encoding and decoding cannot differ.

use crate::Corrupt;
use crate::columns::Buffers;
use crate::entropy::{Decoder, Sink, Stream, number};

/// A direction.
pub(crate) trait Io {
    /// True if values are those of the page. Otherwise they are to be read, and the page is zero in their places.
    const WRITES: bool;

    /// Codes a symbol of stream `id` in context `ctx`, and returns it.
    fn symbol(&mut self, id: usize, ctx: u8, symbol: u8) -> u8;
    /// Codes a number of stream `id` in context `ctx`, and returns it.
    fn number(&mut self, id: usize, ctx: u8, value: u64) -> u64;
    /// Codes bytes that are as good as random.
    fn plain(&mut self, bytes: &mut [u8]) -> Result<(), Corrupt>;
    /// Codes bytes for zstd.
    fn text(&mut self, bytes: &mut [u8]) -> Result<(), Corrupt>;
}

/// The direction that writes.
#[derive(Debug)]
pub(crate) struct Put<'a, S> {
    pub(crate) sink: &'a mut S,
    pub(crate) buffers: &'a mut Buffers,
}

impl<S: Sink> Io for Put<'_, S> {
    const WRITES: bool = true;

    #[inline]
    fn symbol(&mut self, id: usize, ctx: u8, symbol: u8) -> u8 {
        self.sink.put(id, ctx, symbol);
        symbol
    }

    #[inline]
    fn number(&mut self, id: usize, ctx: u8, value: u64) -> u64 {
        number::put(self.sink, id, ctx, value);
        value
    }

    fn plain(&mut self, bytes: &mut [u8]) -> Result<(), Corrupt> {
        self.buffers.plain.extend_from_slice(bytes);
        Ok(())
    }

    fn text(&mut self, bytes: &mut [u8]) -> Result<(), Corrupt> {
        self.buffers.text.extend_from_slice(bytes);
        Ok(())
    }
}

/// The direction that reads.
#[derive(Debug)]
pub(crate) struct Get<'a, 'c> {
    pub(crate) decoder: Decoder<'c>,
    pub(crate) streams: &'a [Stream],
    pub(crate) buffers: &'a mut Buffers,
}

impl Io for Get<'_, '_> {
    const WRITES: bool = false;

    #[inline]
    fn symbol(&mut self, id: usize, ctx: u8, _: u8) -> u8 {
        self.decoder.get(self.streams[id].view(ctx))
    }

    #[inline]
    fn number(&mut self, id: usize, ctx: u8, _: u64) -> u64 {
        number::get(&mut self.decoder, &self.streams[id], ctx).1
    }

    fn plain(&mut self, bytes: &mut [u8]) -> Result<(), Corrupt> {
        take(&self.buffers.plain, &mut self.buffers.plain_taken, bytes)
    }

    fn text(&mut self, bytes: &mut [u8]) -> Result<(), Corrupt> {
        take(&self.buffers.text, &mut self.buffers.text_taken, bytes)
    }
}

fn take(from: &[u8], taken: &mut usize, bytes: &mut [u8]) -> Result<(), Corrupt> {
    let found = from.get(*taken..).and_then(|rest| rest.get(..bytes.len()));
    bytes.copy_from_slice(found.ok_or(Corrupt("a log's bytes are missing"))?);
    *taken += bytes.len();
    Ok(())
}
