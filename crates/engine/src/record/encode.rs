//! Encodes pages as records, and decodes records.

use std::cell::RefCell;

use pagefold_codec::{Model, registry};

use super::codec::Refusal;
use super::{Codec, Compression, ModelId, Models, delta, models};
use crate::limits::RECORDSIZE_MAX;
use crate::{Error, Result};

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
    /// `page` is at most [`RECORDSIZE_MAX`] bytes long; a longer one makes a record that [`decode`] refuses.
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
        if modelled * DOUBTFUL <= page.len() {
            return Encoded::Stored { codec: models::codec_of(model) };
        }
        let generic = self.encode(page, compression, out);
        let pays = modelled <= page.len() - page.len().div_ceil(MIN_SAVING);
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

pub(super) fn append_header(codec: Codec, logical_bytes: usize, out: &mut Vec<u8>) {
    out.push(codec.id());
    let mut rest = logical_bytes;
    while rest >= 0x80 {
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

pub(super) fn without_trailing_zeros(page: &[u8]) -> &[u8] {
    const STEP: usize = 64;
    let mut end = page.len();
    while end >= STEP && page[end - STEP..end].iter().fold(0, |all, byte| all | byte) == 0 {
        end -= STEP;
    }
    let last = page[..end].iter().rposition(|&byte| byte != 0);
    &page[..last.map_or(0, |at| at + 1)]
}

/// A record's header, which was checked: `logical_bytes` is in 1..=[`RECORDSIZE_MAX`].
pub(super) struct RecordHeader {
    pub(super) codec: u8,
    pub(super) logical_bytes: usize,
}

pub(super) fn parse(record: &[u8]) -> Result<(RecordHeader, &[u8]), Refusal> {
    let (&codec, mut rest) = record.split_first().ok_or("it is empty")?;
    let mut logical_bytes = 0;
    for shift in [0, 7, 14] {
        let (&byte, after) = rest.split_first().ok_or("its header is cut off")?;
        rest = after;
        logical_bytes |= usize::from(byte & 0x7F) << shift;
        if byte < 0x80 {
            if byte == 0 {
                return Err("its length is zero or not in the shortest form");
            }
            if logical_bytes > RECORDSIZE_MAX as usize {
                return Err("it says to be longer than the largest page");
            }
            return Ok((RecordHeader { codec, logical_bytes }, rest));
        }
    }
    Err("it says to be longer than the largest page")
}

/// Returns the number of bytes of the page up to its last non-zero one, as the record says: 1..=[`RECORDSIZE_MAX`].
pub fn logical_len(record: &[u8]) -> Result<usize> {
    parse(record).map(|(header, _)| header.logical_bytes).map_err(|why| Error::corrupt("record", why))
}

/// Fills `out`, which is as long as the page, from its record.
///
/// [`Error::Corrupt`] if the record is not well formed or longer than `out`, or its model or a base of it is not among
/// `models`; [`Error::Unsupported`] if its codec is not known here; and errors of `models`. The content of `out` is
/// arbitrary then. Never panics, and never allocates by what the record says. Callers check the record's checksum first.
pub fn decode(record: &[u8], models: &dyn Models, out: &mut [u8]) -> Result<()> {
    let (header, payload) = parse(record).map_err(|why| Error::corrupt("record", why))?;
    match Codec::from_id(header.codec).filter(|codec| codec.has_bases()) {
        Some(codec) => delta::decode(codec, payload, models, (out, header.logical_bytes)),
        None => decode_full(record, models, out),
    }
}

/// Does what [`decode`] does, for records that are no deltas.
pub(super) fn decode_full(record: &[u8], models: &dyn Models, out: &mut [u8]) -> Result<()> {
    let (header, payload) = parse(record).map_err(|why| Error::corrupt("record", why))?;
    let codec = match (header.codec, Codec::from_id(header.codec)) {
        (_, Some(codec)) => codec,
        (0, None) => return Err(Error::corrupt("record", "its codec id is zero")),
        (id, None) => {
            return Err(Error::Unsupported(format!(
                "a record is coded with codec {id}, which this version does not know; use the version that wrote it or a \
                 later one"
            )));
        }
    };
    let (page_bytes, logical_bytes) = (out.len(), header.logical_bytes);
    let Some((logical, zeros)) = out.split_at_mut_checked(logical_bytes) else {
        let detail = format!("it says to hold {logical_bytes} bytes of a page of {page_bytes}");
        return Err(Error::corrupt("record", detail));
    };
    if codec.has_model() {
        models::decode(codec, payload, models, logical)?;
        zeros.fill(0);
        return Ok(());
    }
    match codec.decompress(payload, logical) {
        Ok(len_bytes) if len_bytes == logical_bytes => {
            zeros.fill(0);
            Ok(())
        }
        Ok(len_bytes) => {
            let detail = format!("its {codec:?} payload holds {len_bytes} bytes, not {logical_bytes}");
            Err(Error::corrupt("record", detail))
        }
        Err(why) => Err(Error::corrupt("record", format!("its {codec:?} payload: {why}"))),
    }
}
