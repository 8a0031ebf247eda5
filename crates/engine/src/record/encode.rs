//! Encodes pages as records, and decodes records.

use std::cell::RefCell;

use pagefold_codec::{Model, registry};

use super::header::{append_header, without_trailing_zeros};
use super::{Codec, Compression, ModelId, models};
use crate::limits::RECORDSIZE_MAX;

/// A payload is kept compressed if it saves at least its length divided by this, about 3 %. Less does not pay for the
/// decoding of every later read.
const MIN_SAVING: usize = 32;

/// A record by a model that is longer than its page's length divided by this is compared with the generic codec's.
const DOUBTFUL: usize = 4;

/// Outcomes of encoding a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoded {
    /// The page is all zeros; nothing is stored for it.
    Zero,
    /// A record was appended.
    Stored {
        /// The codec that was used in the end.
        codec: Codec,
    },
}

thread_local! {
    /// Output of the codec; in verification also that of its decoding.
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Turns pages into records. It costs nothing to make: each thread keeps its codecs' contexts.
#[derive(Clone, Copy, Debug, Default)]
pub struct Encoder {
    verify: bool,
}

impl Encoder {
    /// Creates an encoder that trusts its codecs.
    #[must_use]
    pub const fn new() -> Self {
        Self { verify: false }
    }

    /// Creates an encoder that decodes each record that it made, and compares. A record that does not give back its
    /// page is stored raw, and an error is logged.
    #[must_use]
    pub const fn verifying() -> Self {
        Self { verify: true }
    }

    /// Appends the record of `page` to `out`; nothing for a page of zeros. A page of which compression saves less than
    /// about 3 % is stored raw, so a record is never longer than its page and four bytes of header. If `compression`
    /// uses models, pages of formats that need no model, such as arrays of floating-point numbers, are coded as such.
    ///
    /// `page` is at most [`RECORDSIZE_MAX`] bytes long; a longer one makes a record that [`decode`](super::decode) refuses.
    pub fn encode(&self, page: &[u8], compression: Compression, out: &mut Vec<u8>) -> Encoded {
        debug_assert!(page.len() <= RECORDSIZE_MAX as usize);
        let logical = without_trailing_zeros(page);
        if logical.is_empty() {
            return Encoded::Zero;
        }
        let begin = out.len();
        let (codec, level) = compression.codec();
        let used = SCRATCH.with_borrow_mut(|scratch| match self.compress(codec, level, logical, scratch) {
            Some(payload) => {
                append(codec, logical.len(), payload, out);
                codec
            }
            None => {
                append(Codec::Raw, logical.len(), logical, out);
                Codec::Raw
            }
        });
        let alone = compression.model_level().and_then(|_| prefer_alone(logical, begin, out));
        Encoded::Stored { codec: alone.unwrap_or(used) }
    }

    /// Does what [`Encoder::encode`] does, by a model if that pays. A page that the model does not describe, or
    /// describes badly, gets the codec of `compression`.
    pub fn encode_by(
        &self,
        page: &[u8],
        (id, model): (ModelId, &Model),
        compression: Compression,
        out: &mut Vec<u8>,
    ) -> Encoded {
        let begin = out.len();
        if without_trailing_zeros(page).is_empty() || !models::encode(id, model, page, out) {
            return self.encode(page, compression, out);
        }
        let modelled = out.len() - begin;
        let pays = modelled <= page.len() - page.len().div_ceil(MIN_SAVING);
        // A dictionary never makes more of a page than zstd-1 makes without one.
        if modelled * DOUBTFUL <= page.len() || (pays && model.format().is_dictionary()) {
            return Encoded::Stored { codec: models::codec_of(model) };
        }
        let generic = self.encode(page, compression, out);
        if pays && out.len() - begin > 2 * modelled {
            out.truncate(begin + modelled);
            return Encoded::Stored { codec: models::codec_of(model) };
        }
        out.drain(begin..begin + modelled);
        generic
    }

    /// Returns the payload, or `None` if raw is better.
    fn compress<'a>(
        &self,
        codec: Codec,
        level: u8,
        logical: &[u8],
        scratch: &'a mut Vec<u8>,
    ) -> Option<&'a [u8]> {
        if codec == Codec::Raw {
            return None;
        }
        let bound = codec.bound(logical.len());
        let room = bound + if self.verify { logical.len() } else { 0 };
        if scratch.len() < room {
            scratch.resize(room, 0);
        }
        let (payload, rest) = scratch.split_at_mut(bound);
        let len_bytes = match codec.compress(level, logical, payload) {
            Ok(len_bytes) => len_bytes,
            Err(reason) => {
                tracing::error!(?codec, level, reason, "the codec failed; the page is stored raw");
                return None;
            }
        };
        let payload = payload.get(..len_bytes)?;
        if len_bytes > logical.len() - logical.len().div_ceil(MIN_SAVING) {
            return None;
        }
        if self.verify {
            let again = &mut rest[..logical.len()];
            if codec.decompress(payload, again) != Ok(logical.len()) || again != logical {
                tracing::error!(?codec, level, "a record did not decode to its page, which is stored raw");
                return None;
            }
        }
        Some(payload)
    }
}

/// Replaces the record from `begin` on by one of a format that needs no model, if `logical` looks like a page of it and
/// that saves as much as any compression has to. Returns the codec if it did. The record was decoded and compared.
fn prefer_alone(logical: &[u8], begin: usize, out: &mut Vec<u8>) -> Option<Codec> {
    let format = registry().formats().find(|format| format.is_alone() && format.recognises(logical))?;
    let (end, codec) = (out.len(), Codec::Page(format));
    append_header(codec, logical.len(), out);
    let coded = format.encode_alone(logical, out);
    let (generic, alone) = (end - begin, out.len() - end);
    if coded && alone <= generic - generic.div_ceil(MIN_SAVING) {
        out.drain(begin..end);
        return Some(codec);
    }
    out.truncate(end);
    None
}

fn append(codec: Codec, logical_bytes: usize, payload: &[u8], out: &mut Vec<u8>) {
    out.reserve(payload.len() + 4);
    append_header(codec, logical_bytes, out);
    out.extend_from_slice(payload);
}
