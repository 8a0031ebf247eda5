//! Where items lead: block and offset, each after the one before.

use crate::entropy::number::{self, unzigzag, zigzag};
use crate::entropy::{Decoder, Sink, Stream};

/// Bytes of a TID.
pub(crate) const TID: usize = 6;
/// Streams: how it follows, offsets, large offsets, block differences, blocks.
pub(crate) const STREAMS: usize = 5;
/// Blocks nearer than this are differences.
const NEAR: u32 = 1 << 10;
/// Symbols of offsets: what is not below this follows as a number.
const LARGE: u8 = 255;

/// How a TID follows from the one before.
mod step {
    pub(super) const NEXT: u8 = 0;
    pub(super) const FIRST_OF_NEXT_BLOCK: u8 = 1;
    pub(super) const SAME: u8 = 2;
    pub(super) const SAME_OF_NEXT_BLOCK: u8 = 3;
    pub(super) const SAME_BLOCK: u8 = 4;
    pub(super) const NEAR_BLOCK: u8 = 5;
}

/// Block and offset, the latter counted from 1.
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

/// The TID before, and how it followed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Chain {
    tid: Tid,
    step: u8,
}

impl Chain {
    /// Writes `tid`; streams from `id` on.
    pub(crate) fn put<S: Sink>(&mut self, sink: &mut S, id: usize, tid: Tid) {
        let before = self.tid;
        let (next_block, same_offset) = (before.block.wrapping_add(1), tid.offset == before.offset);
        let step = match tid.block {
            block if block == before.block && tid.offset == before.offset.wrapping_add(1) => step::NEXT,
            block if block == next_block && tid.offset == 1 => step::FIRST_OF_NEXT_BLOCK,
            block if block == before.block && same_offset => step::SAME,
            block if block == next_block && same_offset => step::SAME_OF_NEXT_BLOCK,
            block if block == before.block => step::SAME_BLOCK,
            block if block.abs_diff(before.block) < NEAR => step::NEAR_BLOCK,
            _ => step::NEAR_BLOCK + 1,
        };
        sink.put(id, self.step, step);
        if step == step::NEAR_BLOCK {
            number::put(sink, id + 3, 0, zigzag(i64::from(tid.block) - i64::from(before.block)));
        } else if step > step::NEAR_BLOCK {
            number::put(sink, id + 4, 0, u64::from(tid.block));
        }
        if step >= step::SAME_BLOCK {
            let large = tid.offset >= u16::from(LARGE);
            sink.put(id + 1, 0, if large { LARGE } else { tid.offset as u8 });
            if large {
                number::put(sink, id + 2, 0, u64::from(tid.offset));
            }
        }
        *self = Self { tid, step };
    }

    /// Reads what [`Chain::put`] wrote; `streams` begin with the first.
    pub(crate) fn get(&mut self, d: &mut Decoder<'_>, streams: &[Stream]) -> Tid {
        let before = self.tid;
        let step = d.get(streams[0].view(self.step));
        let next_block = before.block.wrapping_add(1);
        let mut tid = match step {
            step::NEXT => Tid { block: before.block, offset: before.offset.wrapping_add(1) },
            step::FIRST_OF_NEXT_BLOCK => Tid { block: next_block, offset: 1 },
            step::SAME | step::SAME_BLOCK => before,
            step::SAME_OF_NEXT_BLOCK => Tid { block: next_block, offset: before.offset },
            step::NEAR_BLOCK => {
                let difference = unzigzag(number::get(d, &streams[3], 0).1);
                Tid { block: before.block.wrapping_add(difference as u32), offset: 0 }
            }
            _ => Tid { block: number::get(d, &streams[4], 0).1 as u32, offset: 0 },
        };
        if step >= step::SAME_BLOCK {
            let offset = d.get(streams[1].view(0));
            tid.offset =
                if offset == LARGE { number::get(d, &streams[2], 0).1 as u16 } else { u16::from(offset) };
        }
        *self = Self { tid, step };
        tid
    }
}
