//! Codes pages as deltas: changes of what they were before.
//!
//! A delta's record names its *bases*: a full record at the bottom, and the deltas that lead from there to the page
//! that it changes, in this order. It names all of them, not just the one below it, so that a reader gets them at once.
//!
//! | field | meaning |
//! |---|---|
//! | count | varint, 1..=[`BASES_MAX`] |
//! | first base | raw address, varint |
//! | further bases | raw address less the one before, zigzag |
//! | change | by codec: runs, runs as a block of LZ4, a frame of zstd, or numbers ([`numbers`]) |
//!
//! Runs: per run the number of bytes that stay as they were (varint), the number of bytes that differ (varint), and
//! these. What follows the last run stays, up to the logical length; zeros follow it. A frame of zstd holds the whole
//! page up to its logical length, and has the page before, without zeros at its end, as its prefix. Its header (magic,
//! descriptor, content size) is left out, since it follows from that length.

mod numbers;

use std::cell::RefCell;

use pagefold_codec::frame;
use zstd::zstd_safe::{CCtx, DCtx};

use super::full::decode_full;
use super::header::{append_header, parse, without_trailing_zeros};
use super::{Codec, Models};
use crate::limits::BASES_MAX;
use crate::types::Addr;
use crate::wire::{Reader, put_signed, put_varint};
use crate::{Error, Result};

/// Largest number of equal bytes between two runs that are copied with them: beginning another run takes as many.
const GAP_BYTES: usize = 3;
/// Length of all runs up to which zstd has nothing to gain, in bytes.
const RUNS_BYTES_FINE: usize = 64;
/// Longest page that is given to zstd: the frame's header has two bytes for its size, and a longer page takes long.
const ZSTD_PAGE_MAX: usize = 32 << 10;
/// Number of words of a page that are looked for in the page before, to see whether zstd is worth trying.
const PROBES: usize = 32;
/// Level of zstd.
const LEVEL: i32 = 1;

/// How the change in a delta is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Squeeze {
    /// Not at all.
    No,
    /// By LZ4, for pages that change again at once: their next delta or full record takes this one's place.
    Fast,
    /// By zstd.
    Small,
}

/// Scratch memory of a thread.
struct Scratch {
    encode: CCtx<'static>,
    decode: DCtx<'static>,
    frame: Vec<u8>,
    page: Vec<u8>,
    runs: Vec<u8>,
}

thread_local! {
    static SCRATCH: RefCell<Option<Scratch>> = const { RefCell::new(None) };
}

fn with_scratch<R>(work: impl FnOnce(&mut Scratch) -> R) -> R {
    SCRATCH.with_borrow_mut(|slot| {
        work(slot.get_or_insert_with(|| Scratch {
            encode: CCtx::create(),
            decode: DCtx::create(),
            frame: Vec::new(),
            page: Vec::new(),
            runs: Vec::new(),
        }))
    })
}

/// Returns the addresses of a delta's bases, the full record first; none if `record` is no delta.
///
/// # Errors
/// [`Error::Corrupt`] for a delta that is not well formed.
pub fn bases_of(record: &[u8]) -> Result<Vec<Addr>> {
    let (header, payload) = parse(record).map_err(|why| Error::corrupt("record", why))?;
    match Codec::from_id(header.codec) {
        Some(codec) if codec.has_bases() => Ok(split(payload)?.0),
        _ => Ok(Vec::new()),
    }
}

/// Returns true if `record` is a record, and a delta.
#[must_use]
pub fn is_delta(record: &[u8]) -> bool {
    record.first().and_then(|id| Codec::from_id(*id)).is_some_and(Codec::has_bases)
}

/// Splits a payload into the bases and the change.
fn split(payload: &[u8]) -> Result<(Vec<Addr>, &[u8])> {
    let mut reader = Reader::new(payload, "delta");
    let count = reader.varint()?;
    if count == 0 || count > BASES_MAX as u64 {
        return Err(reader.bad("it has an impossible number of bases"));
    }
    let mut bases = Vec::with_capacity(count as usize);
    let mut raw = 0_u64;
    for at in 0..count {
        raw = if at == 0 { reader.varint()? } else { raw.wrapping_add(reader.signed()? as u64) };
        bases.push(Addr::from_raw(raw).ok_or_else(|| reader.bad("a base has no address"))?);
    }
    Ok((bases, reader.take(reader.remaining())?))
}

/// Fills `page` from the payload of a delta whose page has `logical_bytes`.
pub(super) fn decode(
    codec: Codec,
    payload: &[u8],
    models: &dyn Models,
    (page, logical_bytes): (&mut [u8], usize),
) -> Result<()> {
    let (bases, change) = split(payload)?;
    for (at, addr) in bases.iter().enumerate() {
        let record = models.base(*addr)?;
        let unfit =
            |why: &str| Error::corrupt(format!("record {addr}"), format!("as the base of a delta: {why}"));
        let (header, payload) = parse(&record).map_err(unfit)?;
        let codec = Codec::from_id(header.codec).filter(|codec| codec.has_bases());
        match codec {
            // This must not recurse by what a device says: a full record is at the bottom, and deltas are above it.
            None if at == 0 => decode_full(&record, models, page)?,
            Some(codec) if at > 0 => {
                let (below, change) = split(payload)?;
                if below.get(..) != bases.get(..at) {
                    return Err(unfit("it has other bases"));
                }
                apply(codec, change, page, header.logical_bytes)?;
            }
            Some(_) => return Err(unfit("it is a delta itself")),
            None => return Err(unfit("it is not a delta")),
        }
    }
    apply(codec, change, page, logical_bytes)
}

/// Applies a change to `page`, which holds the page before.
fn apply(codec: Codec, change: &[u8], page: &mut [u8], logical_bytes: usize) -> Result<()> {
    let bad = |why: &str| Error::corrupt("delta", why);
    if logical_bytes > page.len() {
        return Err(bad("it is longer than its page"));
    }
    match codec {
        Codec::DeltaZstd => with_scratch(|scratch| scratch.decompress(change, page, logical_bytes))
            .map_err(|()| bad("not a frame of zstd"))?,
        Codec::DeltaLz4 => {
            let mut runs = with_scratch(|scratch| std::mem::take(&mut scratch.runs));
            // Runs take less than the page.
            runs.resize(page.len(), 0);
            let applied = match Codec::Lz4.decompress(change, &mut runs) {
                Ok(len) => apply_runs(runs.get(..len).unwrap_or_default(), page, logical_bytes),
                Err(why) => Err(bad(why)),
            };
            with_scratch(|scratch| scratch.runs = runs);
            applied?;
        }
        Codec::DeltaDoubles => numbers::apply(change, page)?,
        _ => apply_runs(change, page, logical_bytes)?,
    }
    page.get_mut(logical_bytes..).unwrap_or_default().fill(0);
    Ok(())
}

/// Puts the bytes of runs into `page`.
fn apply_runs(runs: &[u8], page: &mut [u8], logical_bytes: usize) -> Result<()> {
    let bad = || Error::corrupt("delta", "a run is out of range");
    let mut reader = Reader::new(runs, "delta");
    let mut at = 0_usize;
    while reader.remaining() > 0 {
        let (same, other) = (reader.varint_u32()? as usize, reader.varint_u32()? as usize);
        let bytes = reader.take(other)?;
        let run = at.checked_add(same).and_then(|from| Some(from..from.checked_add(other)?));
        let run = run.filter(|run| run.end <= logical_bytes).ok_or_else(bad)?;
        at = run.end;
        page.get_mut(run).ok_or_else(bad)?.copy_from_slice(bytes);
    }
    Ok(())
}

/// Appends to `out` the record of `page` as a change of `before`, a page of the same length that the records at `bases`
/// give. The record was decoded and compared. Returns false and leaves `out` as it was if the change takes half a page
/// or more, if the page is all zeros, or if there are no bases or too many. Gives up early if the pages have little in
/// common.
pub fn encode_delta(before: &[u8], bases: &[Addr], page: &[u8], squeeze: Squeeze, out: &mut Vec<u8>) -> bool {
    let logical = without_trailing_zeros(page);
    let limit = page.len() / 2;
    if bases.is_empty() || bases.len() > BASES_MAX || logical.is_empty() || before.len() != page.len() {
        return false;
    }
    let begin = out.len();
    append_header(Codec::DeltaRuns, logical.len(), out);
    put_varint(out, bases.len() as u64);
    let mut previous = 0_u64;
    for (at, base) in bases.iter().enumerate() {
        match at {
            0 => put_varint(out, base.raw()),
            _ => put_signed(out, base.raw().wrapping_sub(previous) as i64),
        }
        previous = base.raw();
    }
    let change = out.len();
    let fits = append_runs(before, logical, limit, out);
    let runs = if fits { out.len() - change } else { usize::MAX };
    let squeezed = squeezed(before, (page, logical), out.get(change..).filter(|_| fits), squeeze);
    match squeezed.filter(|(_, squeezed)| squeezed.len() < runs.min(limit)) {
        Some((codec, squeezed)) => {
            out.truncate(change);
            out.extend_from_slice(&squeezed);
            set_codec(out, begin, codec);
        }
        None if fits => {}
        None => {
            out.truncate(begin);
            return false;
        }
    }
    if !gives_back(before, out.get(begin..).unwrap_or_default(), change - begin, page) {
        tracing::error!("a delta did not decode to its page, which is stored in full");
        out.truncate(begin);
        return false;
    }
    true
}

/// Returns the shortest form of the change from `before` to `page`, whose part without zeros at its end is `logical`, that
/// `squeeze` wants, and its codec; `None` if there is nothing to gain. `runs` are those that differ; `None` if they take half a page or more.
fn squeezed(
    before: &[u8],
    (page, logical): (&[u8], &[u8]),
    runs: Option<&[u8]>,
    squeeze: Squeeze,
) -> Option<(Codec, Vec<u8>)> {
    if runs.is_some_and(|runs| runs.len() <= RUNS_BYTES_FINE) {
        return None;
    }
    let by_bytes = match squeeze {
        Squeeze::No => return None,
        Squeeze::Fast => with_scratch(|scratch| {
            let runs = runs?;
            scratch.frame.resize(Codec::Lz4.bound(runs.len()), 0);
            let len = Codec::Lz4.compress(0, runs, &mut scratch.frame).ok()?;
            Some((Codec::DeltaLz4, scratch.frame.get(..len)?.to_vec()))
        }),
        Squeeze::Small if before.len() <= ZSTD_PAGE_MAX && (runs.is_some() || alike(before, logical)) => {
            let frame = with_scratch(|scratch| scratch.compress(before, logical).map(<[u8]>::to_vec));
            frame.map(|frame| (Codec::DeltaZstd, frame))
        }
        Squeeze::Small => None,
    };
    let by_words = numbers::encode(before, page, logical.len()).map(|numbers| (Codec::DeltaDoubles, numbers));
    by_words.into_iter().chain(by_bytes).min_by_key(|(_, change)| change.len())
}

/// Writes the codec of the record that begins at `begin`.
fn set_codec(out: &mut [u8], begin: usize, codec: Codec) {
    if let Some(id) = out.get_mut(begin) {
        *id = codec.id();
    }
}

/// Returns true if the change in `record`, from byte `change` on, makes `page` of `before`.
fn gives_back(before: &[u8], record: &[u8], change: usize, page: &[u8]) -> bool {
    let Ok((header, _)) = parse(record) else { return false };
    let Some(codec) = Codec::from_id(header.codec) else { return false };
    let mut again = with_scratch(|scratch| std::mem::take(&mut scratch.page));
    again.clear();
    again.extend_from_slice(before);
    let applied = apply(codec, record.get(change..).unwrap_or_default(), &mut again, header.logical_bytes);
    let same = applied.is_ok() && again == page;
    with_scratch(|scratch| scratch.page = again);
    same
}

/// Appends the runs in which `logical` differs from `before`. Returns false as soon as they take `limit` bytes.
fn append_runs(before: &[u8], logical: &[u8], limit: usize, out: &mut Vec<u8>) -> bool {
    let begin = out.len();
    let (mut at, mut end_of_last) = (0, 0);
    while let Some(from) = next_difference(before, logical, at) {
        let to = end_of_run(before, logical, from);
        let bytes = logical.get(from..to).unwrap_or_default();
        if out.len() - begin + bytes.len() >= limit {
            return false;
        }
        put_varint(out, (from - end_of_last) as u64);
        put_varint(out, bytes.len() as u64);
        out.extend_from_slice(bytes);
        (at, end_of_last) = (to, to);
    }
    true
}

/// Returns the position of the first byte from `from` on that differs.
fn next_difference(before: &[u8], after: &[u8], from: usize) -> Option<usize> {
    let (a, b) = (before.get(from..after.len())?, after.get(from..)?);
    let mut at = 0;
    for (x, y) in a.chunks_exact(32).zip(b.chunks_exact(32)) {
        if x != y {
            break;
        }
        at += 32;
    }
    let rest = a.get(at..)?.iter().zip(b.get(at..)?);
    rest.enumerate().find(|(_, (x, y))| x != y).map(|(more, _)| from + at + more)
}

/// Returns the end of the run that begins at the difference `from`. The run goes on as long as the next difference is
/// near.
fn end_of_run(before: &[u8], after: &[u8], from: usize) -> usize {
    let (mut len, mut same) = (1, 0);
    let pairs = before.iter().zip(after).skip(from + 1);
    for (at, (x, y)) in pairs.enumerate() {
        if x != y {
            len = at + 2;
            same = 0;
        } else if same == GAP_BYTES {
            break;
        } else {
            same += 1;
        }
    }
    from + len
}

/// Returns true if much of `after` is in `before`, perhaps at other places: of some of its words, more than half are.
fn alike(before: &[u8], after: &[u8]) -> bool {
    const SLOT_BITS: u32 = 14;
    let slot = |word: &[u8]| {
        let word = word.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        (word.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (64 - SLOT_BITS)) as usize
    };
    let dull = |word: &[u8]| word.first().is_none_or(|first| word.iter().all(|byte| byte == first));
    let mut known = [0_u64; 1 << (SLOT_BITS - 6)];
    for word in before.chunks_exact(8) {
        let slot = slot(word);
        if let Some(bits) = known.get_mut(slot / 64) {
            *bits |= 1 << (slot % 64);
        }
    }
    let words = after.len() / 8;
    let (mut probed, mut found) = (0, 0);
    for word in after.chunks_exact(8).step_by((words / PROBES).max(1)).filter(|word| !dull(word)) {
        let slot = slot(word);
        probed += 1;
        found += usize::from(known.get(slot / 64).is_some_and(|bits| bits >> (slot % 64) & 1 == 1));
    }
    found * 2 > probed
}

impl Scratch {
    /// Returns the frame of `logical` without its header.
    fn compress(&mut self, before: &[u8], logical: &[u8]) -> Option<&[u8]> {
        self.frame.resize(zstd::zstd_safe::compress_bound(ZSTD_PAGE_MAX), 0);
        let prefix = without_trailing_zeros(before);
        let len = self.encode.compress_using_dict(self.frame.as_mut_slice(), logical, prefix, LEVEL).ok()?;
        self.frame.get(..len)?.strip_prefix(frame::header(logical.len()).as_ref())
    }

    /// Fills the first `logical_bytes` of `page`, which holds the page before.
    fn decompress(&mut self, change: &[u8], page: &mut [u8], logical_bytes: usize) -> Result<(), ()> {
        let prefix = without_trailing_zeros(page);
        if prefix.len().max(logical_bytes).max(change.len()) > ZSTD_PAGE_MAX {
            return Err(());
        }
        self.page.clear();
        self.page.extend_from_slice(prefix);
        self.frame.clear();
        self.frame.extend_from_slice(frame::header(logical_bytes).as_ref());
        self.frame.extend_from_slice(change);
        let out = page.get_mut(..logical_bytes).ok_or(())?;
        match self.decode.decompress_using_dict(out, &self.frame, &self.page) {
            Ok(len) if len == logical_bytes => Ok(()),
            _ => Err(()),
        }
    }
}

/// Returns true if a delta is worth it, compared with a full record of `full_bytes`. `base_bytes` is the length of the
/// records that it is based on. All that the page then takes may be twice the full record; three times if the delta is one of
/// numbers: series of samples are written all the time, and rarely read.
#[must_use]
pub(crate) fn delta_pays(delta: &[u8], base_bytes: usize, full_bytes: usize) -> bool {
    let is_of_numbers = delta.first() == Some(&Codec::DeltaDoubles.id());
    let times = if is_of_numbers { 3 } else { 2 };
    delta.len() * 4 <= full_bytes * 3 && base_bytes + delta.len() <= times * full_bytes
}

#[cfg(test)]
mod tests;
