//! Codes segments of a cluster's log by a model of that log.
//!
//! - Each object has its model with it, so that none needs another one. A push takes over the model of the segment
//!   before, which costs two requests; to learn one takes a second.
//! - A model that codes worse than it did is learned again, at once if the last learning was worth it, and after ever
//!   more segments if it was not.

use pagefold_codec::{Kinds, Model, Options, Scratch};
use pagefold_engine::wire::{Reader, put_bytes, put_varint};

use crate::error::{Decoded, Error, Result};
use crate::limits::WAL_BLOCK_BYTES;
use crate::pack::{squeeze, unsqueeze};

/// Length of the log's pages in bytes.
const PAGE_BYTES: usize = 8192;
/// Least bytes of a file that is coded by a model: a fifth of its pages are enough to learn from.
pub(crate) const LEARN_BYTES_MIN: usize = 1 << 20;
/// One of this many pages is learned from.
const SAMPLE_STEP: usize = 5;
/// Largest number of pages that are learned from.
const SAMPLES_MAX: usize = 410;
/// Level of zstd for the text of records.
const LEVEL: i32 = 3;
/// Number of segments for which a model should be worth its bytes.
const SEGMENTS: u64 = 16;
/// Largest number of segments between two attempts to learn a better model: learning takes a sixteenth of its time per
/// segment, then.
const WAIT_MAX: u32 = 16;
/// A new model replaces the old one if it makes at most so many percent of what the old one makes.
const BETTER_PERCENT: usize = 90;
/// A model is learned again if it makes more than so many percent of what it made when it was learned.
const WORSE_PERCENT: u64 = 125;
/// A block that is compressed as a whole.
const SQUEEZED: u8 = 0;
/// A block whose pages are coded by the model.
const CODED: u8 = 1;

/// A model and its past; or no model, if the log of the cluster was of no use to learn from.
#[derive(Debug)]
pub(crate) struct Kept {
    pub(crate) model: Option<Stored>,
    pub(crate) past: Past,
}

/// A model, and its bytes as they are stored.
#[derive(Debug)]
pub(crate) struct Stored {
    pub(crate) model: Model,
    pub(crate) bytes: Vec<u8>,
}

/// How a model, or that there is none, has come to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Past {
    /// Number of segments since that in which a model was learned, or learning was tried.
    pub(crate) age: u32,
    /// Number of segments after which it may be tried again.
    pub(crate) wait: u32,
    /// The share that the blocks of that segment took of it, in parts of 65,536.
    pub(crate) share: u32,
}

/// Returns `part` of `whole` in parts of 65,536.
pub(crate) fn share(part: u64, whole: u64) -> u32 {
    u32::try_from((part << 16) / whole.max(1)).unwrap_or(u32::MAX)
}

impl Kept {
    /// Learns a model of a segment.
    pub(crate) fn learn(content: &[u8]) -> Self {
        Self { model: Self::learned(content), past: Past { age: 0, wait: 1, share: 0 } }
    }

    /// Returns a model; `None` if the file is no log, or would not gain.
    fn learned(content: &[u8]) -> Option<Stored> {
        // Behind a switch to the next segment there are zeros.
        let pages: Vec<&[u8]> = content
            .chunks_exact(PAGE_BYTES)
            .filter(|page| page.first().is_some_and(|byte| *byte != 0))
            .collect();
        let step = SAMPLE_STEP.max(pages.len().div_ceil(SAMPLES_MAX));
        let relation_pages = (content.len() / PAGE_BYTES) as u64 * SEGMENTS;
        let samples: Vec<&[u8]> = pages.into_iter().step_by(step).collect();
        let model =
            pagefold_codec::learn(&samples, Options { kinds: Kinds::Apart, level: LEVEL, relation_pages })?;
        let bytes = model.to_bytes();
        Some(Stored { model, bytes })
    }

    /// Returns what the segment behind takes over of a segment with this model, or with none.
    pub(crate) fn behind(bytes: Option<Vec<u8>>, before: Past, object: &str) -> Result<Self> {
        let past = Past { age: before.age.saturating_add(1), ..before };
        let model = match bytes {
            Some(bytes) => Some(Stored { model: decode(&bytes, object)?, bytes }),
            None => None,
        };
        Ok(Self { model, past })
    }

    /// Returns true if a new model may make less of a file of which this one has made `made`.
    pub(crate) fn is_worse(&self, made: u32) -> bool {
        let is_worse = u64::from(made) * 100 > u64::from(self.past.share) * WORSE_PERCENT;
        self.past.age >= self.past.wait && (self.model.is_none() || is_worse)
    }

    /// Notes that another model would not have made much less.
    pub(crate) fn tried(self) -> Self {
        let wait = self.past.wait.saturating_mul(2).min(WAIT_MAX);
        Self { past: Past { age: 0, wait, ..self.past }, ..self }
    }
}

/// Returns true if a new model that makes `new` bytes is to replace one that makes `old`.
pub(crate) fn is_better(new: usize, old: usize) -> bool {
    new.saturating_mul(100) <= old.saturating_mul(BETTER_PERCENT)
}

/// Decodes a model that the object has.
pub(crate) fn decode(bytes: &[u8], object: &str) -> Result<Model> {
    let bad = |detail: String| Error::damaged(object, detail);
    let model = Model::from_bytes(bytes).map_err(|why| bad(format!("its model cannot be read: {why}")))?;
    match model.page_bytes() {
        PAGE_BYTES => Ok(model),
        other => Err(bad(format!("its model is of pages of {other} bytes"))),
    }
}

/// Encodes a block: by the model, or without it if that makes less.
pub(crate) fn encode_block(model: &Model, block: &[u8]) -> Result<Vec<u8>> {
    let (mut scratch, mut records, mut rest) = (Scratch::new(), Vec::new(), Vec::new());
    let (mut coded, mut record) = (vec![CODED], Vec::new());
    let pages = block.chunks_exact(PAGE_BYTES);
    rest.extend_from_slice(pages.remainder());
    for page in pages {
        record.clear();
        let is_coded = model.encode(&mut scratch, page, &mut record);
        if !is_coded || record.is_empty() || record.len() >= PAGE_BYTES {
            record.clear();
            rest.extend_from_slice(page);
        }
        put_varint(&mut coded, record.len() as u64);
        records.extend_from_slice(&record);
    }
    put_bytes(&mut coded, &records);
    coded.extend_from_slice(&squeeze(&rest)?);
    let mut squeezed = vec![SQUEEZED];
    squeezed.extend_from_slice(&squeeze(block)?);
    Ok(if squeezed.len() < coded.len() { squeezed } else { coded })
}

/// Decodes a block of `len` bytes.
pub(crate) fn decode_block(model: &Model, bytes: &[u8], len: usize, object: &str) -> Result<Vec<u8>> {
    match bytes.split_first() {
        Some((&SQUEEZED, squeezed)) => unsqueeze(squeezed, WAL_BLOCK_BYTES, object),
        Some((&CODED, coded)) => {
            let parts = Parts::decode(coded, len).map_err(Error::in_object(object))?;
            let rest = unsqueeze(parts.squeezed, WAL_BLOCK_BYTES, object)?;
            parts
                .join(model, &rest, len)
                .ok_or_else(|| Error::damaged(object, "a block's pages are not what its model says"))
        }
        _ => Err(Error::damaged(object, "a block is of no kind that is known")),
    }
}

/// The parts of a block whose pages are coded.
struct Parts<'a> {
    /// The record of each page; `None` if the page is in the rest.
    records: Vec<Option<&'a [u8]>>,
    squeezed: &'a [u8],
}

impl<'a> Parts<'a> {
    fn decode(bytes: &'a [u8], len: usize) -> Decoded<Self> {
        let mut reader = Reader::new(bytes, "block of a log");
        let lens: Decoded<Vec<usize>> =
            (0..len / PAGE_BYTES).map(|_| Ok(reader.varint_u32()? as usize)).collect();
        let (lens, mut all) = (lens?, reader.bytes(WAL_BLOCK_BYTES)?);
        let mut records = Vec::with_capacity(lens.len());
        for len in lens {
            let (record, rest) =
                all.split_at_checked(len).ok_or_else(|| reader.bad("a page's record is cut"))?;
            records.push((len > 0).then_some(record));
            all = rest;
        }
        if !all.is_empty() {
            return Err(reader.bad("it has more than its pages' records"));
        }
        let squeezed = reader.take(reader.remaining())?;
        Ok(Self { records, squeezed })
    }

    /// Returns the block. The rest has what is shorter than a page, and then the pages that have no record.
    fn join(&self, model: &Model, rest: &[u8], len: usize) -> Option<Vec<u8>> {
        let (tail, mut rest) = rest.split_at_checked(len % PAGE_BYTES)?;
        let (mut block, mut scratch) = (vec![0; len], Scratch::new());
        for (page, record) in block.chunks_exact_mut(PAGE_BYTES).zip(&self.records) {
            match record {
                Some(record) => model.decode(&mut scratch, record, page).ok()?,
                None => {
                    let (verbatim, behind) = rest.split_at_checked(PAGE_BYTES)?;
                    page.copy_from_slice(verbatim);
                    rest = behind;
                }
            }
        }
        block.get_mut(len - tail.len()..)?.copy_from_slice(tail);
        rest.is_empty().then_some(block)
    }
}
