//! Codes the TIDs that items lead to: block and offset, each relative to the one before.

use crate::Corrupt;
use crate::entropy::number::{self, unzigzag, zigzag};
use crate::entropy::{Decoder, Sink, Stream};

/// Bytes of a TID.
pub(crate) const TID: usize = 6;
/// Number of streams: steps, offsets, large offsets, block differences, blocks, lengths of runs.
pub(crate) const STREAMS: usize = 6;
/// Distance below which blocks are coded as differences.
const NEAR: u32 = 1 << 10;
/// The symbol of offsets that are not below it; these follow as numbers.
const LARGE: u8 = 255;

/// Steps: the ways in which a TID follows from the one before.
mod step {
    pub(super) const NEXT: u8 = 0;
    pub(super) const FIRST_OF_NEXT_BLOCK: u8 = 1;
    pub(super) const SAME: u8 = 2;
    pub(super) const SAME_OF_NEXT_BLOCK: u8 = 3;
    pub(super) const SAME_BLOCK: u8 = 4;
    pub(super) const NEAR_BLOCK: u8 = 5;
    pub(super) const FAR_BLOCK: u8 = 6;
}

/// A block and an offset, which is counted from 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tid {
    pub(crate) block: u32,
    pub(crate) offset: u16,
}

impl Tid {
    pub(crate) fn parse(bytes: &[u8; TID]) -> Self {
        let word = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        Self { block: u32::from(word(0)) << 16 | u32::from(word(2)), offset: word(4) }
    }

    pub(crate) fn write(self, bytes: &mut [u8]) {
        for (i, word) in [(self.block >> 16) as u16, self.block as u16, self.offset].into_iter().enumerate() {
            bytes[2 * i..2 * i + 2].copy_from_slice(&word.to_le_bytes());
        }
    }
}

/// Returns the step from the TID before to `tid`.
fn step_of(before: Tid, tid: Tid) -> u8 {
    let (next_block, same_offset) = (before.block.wrapping_add(1), tid.offset == before.offset);
    match tid.block {
        block if block == before.block && tid.offset == before.offset.wrapping_add(1) => step::NEXT,
        block if block == next_block && tid.offset == 1 => step::FIRST_OF_NEXT_BLOCK,
        block if block == before.block && same_offset => step::SAME,
        block if block == next_block && same_offset => step::SAME_OF_NEXT_BLOCK,
        block if block == before.block => step::SAME_BLOCK,
        block if block.abs_diff(before.block) < NEAR => step::NEAR_BLOCK,
        _ => step::FAR_BLOCK,
    }
}

/// Writes all TIDs of a page to the streams from `id` on. Rows that follow one another in the heap are a run: its
/// length is one symbol.
pub(crate) fn put<S: Sink>(tids: &[Tid], sink: &mut S, id: usize) {
    let mut before = Tid::default();
    let steps = |before: Tid, tids: &[Tid]| {
        tids.iter()
            .scan(before, |b, &tid| Some(step_of(std::mem::replace(b, tid), tid)))
            .take_while(|&step| step == step::NEXT)
            .count()
    };
    let mut rest = tids;
    let mut last = 0;
    while let Some(&tid) = rest.first() {
        let step = step_of(before, tid);
        sink.put(id, last, step);
        last = step;
        if step == step::NEXT {
            let run = steps(before, rest);
            number::put(sink, id + 5, 0, run as u64 - 1);
            before = rest[run - 1];
            rest = &rest[run..];
            continue;
        }
        if step == step::NEAR_BLOCK {
            number::put(sink, id + 3, 0, zigzag(i64::from(tid.block) - i64::from(before.block)));
        } else if step == step::FAR_BLOCK {
            number::put(sink, id + 4, 0, u64::from(tid.block));
        }
        if step >= step::SAME_BLOCK {
            let large = tid.offset >= u16::from(LARGE);
            sink.put(id + 1, 0, if large { LARGE } else { tid.offset as u8 });
            if large {
                number::put(sink, id + 2, 0, u64::from(tid.offset));
            }
        }
        before = tid;
        rest = &rest[1..];
    }
}

/// Reads `count` TIDs that [`put`] wrote into `tids`.
///
/// # Errors
/// [`Corrupt`] if a run goes on beyond the end.
pub(crate) fn get(
    count: usize,
    d: &mut Decoder<'_>,
    streams: &[Stream],
    tids: &mut Vec<Tid>,
) -> Result<(), Corrupt> {
    tids.clear();
    let mut before = Tid::default();
    let mut last = 0;
    while tids.len() < count {
        last = d.get(streams[0].view(last));
        let next_block = before.block.wrapping_add(1);
        let mut tid = match last {
            step::NEXT => {
                let run = number::get(d, &streams[5], 0).1;
                if run >= (count - tids.len()) as u64 {
                    return Err(Corrupt("a run of TIDs is too long"));
                }
                for _ in 0..=run {
                    before.offset = before.offset.wrapping_add(1);
                    tids.push(before);
                }
                continue;
            }
            step::FIRST_OF_NEXT_BLOCK => Tid { block: next_block, offset: 1 },
            step::SAME | step::SAME_BLOCK => before,
            step::SAME_OF_NEXT_BLOCK => Tid { block: next_block, offset: before.offset },
            step::NEAR_BLOCK => {
                let difference = unzigzag(number::get(d, &streams[3], 0).1);
                Tid { block: before.block.wrapping_add(difference as u32), offset: 0 }
            }
            _ => Tid { block: number::get(d, &streams[4], 0).1 as u32, offset: 0 },
        };
        if last >= step::SAME_BLOCK {
            let offset = d.get(streams[1].view(0));
            tid.offset =
                if offset == LARGE { number::get(d, &streams[2], 0).1 as u16 } else { u16::from(offset) };
        }
        tids.push(tid);
        before = tid;
    }
    Ok(())
}
