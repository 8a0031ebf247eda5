//! Writes and reads records: a mode, the entropy coder's code, plain bytes, text, stale bytes; or text alone.

use super::Trained;
use crate::Corrupt;
use crate::columns::Buffers;
use crate::entropy::{Decoder, Encoder};
use crate::format::PageFormat;
use crate::scratch::Scratch;
use crate::stale::Stale;
use crate::text::{Dictionary, MAX_TEXT};
use crate::wire::{Reader, put_varint};

/// Flags of a record, which are its first byte.
mod flags {
    pub(super) const TEXT: u8 = 1;
    pub(super) const TEXT_FRAME: u8 = 2;
    pub(super) const STALE: u8 = 4;
    pub(super) const STALE_FRAME: u8 = 8;
    pub(super) const PLAIN: u8 = 16;
    pub(super) const ALL: u8 = 31;
}

/// Appends the record of `page` to `out` and returns true; returns false if the model does not describe the page.
pub(crate) fn write<F: PageFormat>(
    (model, trained): (&F::Model, &Trained),
    (scratch, parts): (&mut Scratch, &mut F::Page),
    page: &[u8],
    out: &mut Vec<u8>,
) -> bool {
    if F::IS_TEXT {
        return scratch.contexts.compress(page, &trained.dictionary, out);
    }
    let mut ops = std::mem::take(&mut scratch.ops);
    let mut encoder = Encoder::new(&trained.streams, &mut ops);
    let carried = F::encode(model, parts, page, &mut scratch.buffers, &mut encoder);
    let done = carried.is_some_and(|carried| {
        scratch.code.clear();
        ops.finish(carried, &mut scratch.code);
        let mut none = std::mem::take(&mut scratch.none);
        let stale = F::stale(parts).unwrap_or(&mut none);
        let done = put(&trained.dictionary, scratch, (stale, F::clear_checksum), page, out);
        scratch.none = none;
        done
    });
    scratch.ops = ops;
    done
}

/// Appends a record whose code, plain bytes and text are in `scratch`. Before stale bytes are compressed, `clear` clears
/// the checksum of the page that is their dictionary.
fn put(
    dictionary: &Dictionary,
    scratch: &mut Scratch,
    (stale, clear): (&Stale, fn(&mut [u8])),
    page: &[u8],
    out: &mut Vec<u8>,
) -> bool {
    let Buffers { text, plain, .. } = &scratch.buffers;
    if text.len() >= MAX_TEXT || stale.bytes.len() >= MAX_TEXT {
        return false;
    }
    let at = out.len();
    let mut mode = 0;
    out.push(0);
    if !plain.is_empty() || !text.is_empty() || !stale.bytes.is_empty() {
        put_varint(out, scratch.code.len() as u64);
    }
    if !plain.is_empty() {
        mode |= flags::PLAIN;
        put_varint(out, plain.len() as u64);
    }
    if !text.is_empty() {
        put_varint(out, text.len() as u64);
    }
    out.extend_from_slice(&scratch.code);
    out.extend_from_slice(plain);
    if !text.is_empty() {
        mode |= flags::TEXT;
        scratch.code.clear();
        if scratch.contexts.compress(text, dictionary, &mut scratch.code) {
            mode |= flags::TEXT_FRAME;
        }
        if !stale.bytes.is_empty() {
            put_varint(out, scratch.code.len() as u64);
        }
        out.extend_from_slice(&scratch.code);
    }
    if !stale.bytes.is_empty() {
        mode |= flags::STALE;
        scratch.page.clear();
        scratch.page.extend_from_slice(page);
        stale.fill(&mut scratch.page, true);
        clear(&mut scratch.page);
        if scratch.contexts.compress_after(&stale.bytes, &scratch.page, 1, out) {
            mode |= flags::STALE_FRAME;
        }
    }
    out[at] = mode;
    true
}

/// Fills `page` from its record.
pub(crate) fn read<F: PageFormat>(
    (model, trained): (&F::Model, &Trained),
    (scratch, parts): (&mut Scratch, &mut F::Page),
    record: &[u8],
    page: &mut [u8],
) -> Result<(), Corrupt> {
    if F::IS_TEXT {
        return scratch.contexts.decompress(record, &trained.dictionary, page);
    }
    let mut reader = Reader::new(record);
    let (mode, code) = get_head(&mut reader, record.len(), &trained.dictionary, scratch)?;
    page.fill(0);
    let decoder = Decoder::new(code)?;
    let Scratch { buffers, none, contexts, .. } = scratch;
    F::decode(model, &trained.streams, decoder, parts, buffers, page)?;
    if buffers.text_taken != buffers.text.len() || buffers.plain_taken != buffers.plain.len() {
        return Err(Corrupt("more bytes than belong to the page"));
    }
    let stale = F::stale(parts).unwrap_or(none);
    if mode & flags::STALE != 0 {
        let stored = reader.rest();
        stale.bytes.clear();
        if mode & flags::STALE_FRAME != 0 {
            let len = stale.len();
            stale.bytes.resize(len, 0);
            F::clear_checksum(page);
            contexts.decompress_after(stored, page, &mut stale.bytes)?;
        } else if stored.len() == stale.len() {
            stale.bytes.extend_from_slice(stored);
        } else {
            return Err(Corrupt("stale bytes are of another length"));
        }
        stale.fill(page, false);
    } else if stale.len() != 0 {
        return Err(Corrupt("stale bytes are missing"));
    }
    // Checksums come last: they cover the whole page.
    F::write_checksum(parts, page);
    Ok(())
}

/// Reads all that comes before stale bytes: fills the buffers of plain bytes and text. Returns the mode and the code.
fn get_head<'r>(
    reader: &mut Reader<'r>,
    record_bytes: usize,
    dictionary: &Dictionary,
    scratch: &mut Scratch,
) -> Result<(u8, &'r [u8]), Corrupt> {
    let mode = reader.byte()?;
    if mode & !flags::ALL != 0 {
        return Err(Corrupt("a record's mode"));
    }
    let (has_text, has_stale) = (mode & flags::TEXT != 0, mode & flags::STALE != 0);
    let has_plain = mode & flags::PLAIN != 0;
    let code_bytes =
        if has_plain || has_text || has_stale { reader.at_most(record_bytes)? } else { reader.rest().len() };
    let plain_bytes = if has_plain { reader.at_most(record_bytes)? } else { 0 };
    let text_bytes = if has_text { reader.at_most(MAX_TEXT - 1)? } else { 0 };
    let code = reader.take(code_bytes)?;
    let Scratch { buffers, contexts, .. } = scratch;
    buffers.plain.clear();
    buffers.plain.extend_from_slice(reader.take(plain_bytes)?);
    buffers.text.clear();
    if has_text {
        let stored =
            if has_stale { reader.bytes(record_bytes)? } else { reader.take(reader.rest().len())? };
        if mode & flags::TEXT_FRAME != 0 {
            buffers.text.resize(text_bytes, 0);
            contexts.decompress(stored, dictionary, &mut buffers.text)?;
        } else if stored.len() == text_bytes {
            buffers.text.extend_from_slice(stored);
        } else {
            return Err(Corrupt("a text's length"));
        }
    }
    Ok((mode, code))
}
