//! Keeps a value for each chunk. A chunk near others that have values takes little more than its value, and a stretch
//! of chunks without values takes nothing, since a device may claim to have four billion.

use std::collections::HashMap;

use foldhash::fast::RandomState;

use super::Chunk;

/// Number of chunks whose values lie together.
const TOGETHER: u32 = 64;

/// Values by chunk. All are [`Default`] until they are changed.
#[derive(Debug)]
pub(crate) struct ByChunk<T> {
    blocks: HashMap<(u16, u32), Box<[T]>, RandomState>,
}

impl<T> Default for ByChunk<T> {
    fn default() -> Self {
        Self { blocks: HashMap::default() }
    }
}

impl<T: Default> ByChunk<T> {
    /// Returns the value of a chunk; `None` if no value near it was ever changed.
    pub(crate) fn get(&self, chunk: Chunk) -> Option<&T> {
        let block = self.blocks.get(&(chunk.device, chunk.index / TOGETHER))?;
        block.get((chunk.index % TOGETHER) as usize)
    }

    /// Returns the value of a chunk, to be changed.
    pub(crate) fn get_mut(&mut self, chunk: Chunk) -> Option<&mut T> {
        let block = self.blocks.entry((chunk.device, chunk.index / TOGETHER));
        let block = block.or_insert_with(|| (0..TOGETHER).map(|_| T::default()).collect());
        block.get_mut((chunk.index % TOGETHER) as usize)
    }

    /// Returns the values of all chunks that are near one that was ever changed, in no order.
    pub(crate) fn values(&self) -> impl Iterator<Item = &T> {
        self.blocks.values().flatten()
    }

    /// Returns what [`ByChunk::values`] does, with the chunks, which ascend.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Chunk, &T)> {
        let mut blocks: Vec<_> = self.blocks.iter().collect();
        blocks.sort_unstable_by_key(|(block, _)| **block);
        blocks.into_iter().flat_map(|((device, block), values)| {
            let first = block * TOGETHER;
            (first..=first + (TOGETHER - 1))
                .zip(values)
                .map(|(index, value)| (Chunk { device: *device, index }, value))
        })
    }

    /// Returns the memory that it takes, in bytes, without what values point to.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let block_bytes = TOGETHER as usize * size_of::<T>() + 2 * size_of::<((u16, u32), Box<[T]>)>();
        (self.blocks.len() * block_bytes) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_chunk_has_its_own() {
        let mut values: ByChunk<u32> = ByChunk::default();
        let chunk = |device, index| Chunk { device, index };
        assert_eq!(values.get(chunk(0, 5)), None);
        for (number, chunk) in
            [chunk(0, 0), chunk(0, 63), chunk(0, 64), chunk(1, 0), chunk(9, u32::MAX)].into_iter().enumerate()
        {
            *values.get_mut(chunk).unwrap() = number as u32 + 1;
        }
        let found = [chunk(0, 0), chunk(0, 1), chunk(0, 63), chunk(0, 64), chunk(1, 0), chunk(9, u32::MAX)];
        assert_eq!(found.map(|chunk| values.get(chunk).copied()), [1, 0, 2, 3, 4, 5].map(Some));
        assert_eq!(values.get(chunk(1, 64)), None);
        let all: Vec<Chunk> = values.iter().map(|(chunk, _)| chunk).collect();
        assert!(all.is_sorted() && all.len() == 4 * TOGETHER as usize);
        assert!(values.memory_bytes() < 4 * 64 * 8);
    }
}
