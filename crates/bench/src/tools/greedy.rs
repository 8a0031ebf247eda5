//! Simulates an ideal greedy cleaner, which no log-structured store can surpass by greed alone.
//!
//! There is a device of chunks with pages that are overwritten at random, and nothing else: no metadata, no
//! checkpoints, no reserve but the chunk that is filled. When no chunk is free, the one with the fewest live pages is
//! cleaned.

use super::overwrite::Random;

/// A device of chunks. When a chunk is cleaned, its live pages are written again.
#[derive(Debug)]
pub(crate) struct Greedy {
    /// Chunk of each page.
    chunk_of: Vec<u32>,
    /// Number of live pages in each chunk.
    live: Vec<u32>,
    /// Pages that were written to each chunk.
    written: Vec<Vec<u32>>,
    free: Vec<u32>,
    open: u32,
    chunk_pages: usize,
    user: u64,
    moved: u64,
}

impl Greedy {
    /// Makes a device of `chunks` chunks of `chunk_pages` pages each, with `pages` live pages that are written once in
    /// order.
    ///
    /// # Panics
    /// If they do not fit.
    pub(crate) fn new(chunks: usize, chunk_pages: usize, pages: usize) -> Self {
        assert!(pages < (chunks - 2) * chunk_pages, "{pages} pages do not fit {chunks} chunks");
        let mut device = Self {
            chunk_of: vec![u32::MAX; pages],
            live: vec![0; chunks],
            written: vec![Vec::with_capacity(chunk_pages); chunks],
            free: (1..chunks as u32).rev().collect(),
            open: 0,
            chunk_pages,
            user: 0,
            moved: 0,
        };
        (0..pages as u32).for_each(|page| device.put(page));
        device
    }

    fn put(&mut self, page: u32) {
        let old = std::mem::replace(&mut self.chunk_of[page as usize], self.open);
        if old != u32::MAX {
            self.live[old as usize] -= 1;
        }
        self.live[self.open as usize] += 1;
        self.written[self.open as usize].push(page);
        if self.written[self.open as usize].len() == self.chunk_pages {
            self.open = self.free.pop().unwrap_or(u32::MAX);
        }
    }

    /// Overwrites a page.
    pub(crate) fn overwrite(&mut self, page: u32) {
        self.put(page);
        self.user += 1;
        // One chunk is kept for the pages that the cleaner moves.
        while self.free.is_empty() {
            self.clean();
        }
    }

    fn clean(&mut self) {
        let full = (0..self.live.len()).filter(|at| *at != self.open as usize);
        let Some(source) = full.min_by_key(|at| self.live[*at]) else { return };
        let written = std::mem::take(&mut self.written[source]);
        let mut live = Vec::with_capacity(self.live[source] as usize);
        for page in written {
            // A page that was written twice to the chunk is taken once.
            if self.chunk_of[page as usize] == source as u32 {
                self.chunk_of[page as usize] = u32::MAX;
                live.push(page);
            }
        }
        // The chunk is free before its live pages are written again: an ideal cleaner holds these in memory.
        self.live[source] = 0;
        self.free.push(source as u32);
        self.moved += live.len() as u64;
        live.into_iter().for_each(|page| self.put(page));
    }

    /// Returns the number of pages written for each that the user has written, since the last call.
    pub(crate) fn take_amplification(&mut self) -> f64 {
        let (user, moved) = (std::mem::take(&mut self.user), std::mem::take(&mut self.moved));
        (user + moved) as f64 / (user.max(1)) as f64
    }
}

/// Returns the write amplification of random overwrites of `pages` pages. Each of `passes` passes writes as many pages
/// as the device holds; the first is not counted, since the amplification still changes in it.
pub(crate) fn amplification(chunks: usize, chunk_pages: usize, pages: usize, passes: usize) -> f64 {
    let mut device = Greedy::new(chunks, chunk_pages, pages);
    let mut random = Random::new(pages as u64);
    let all = chunks * chunk_pages;
    let mut overwrite = |device: &mut Greedy, count: usize| {
        for _ in 0..count {
            device.overwrite(random.below(pages as u64) as u32);
        }
    };
    overwrite(&mut device, all);
    device.take_amplification();
    overwrite(&mut device, all * passes.saturating_sub(1).max(1));
    device.take_amplification()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_half_empty_device_is_cleaned_for_little_and_a_full_one_for_much() {
        let at = |share: usize| amplification(128, 256, 128 * 256 * share / 100, 4);
        let (half, most) = (at(50), at(85));
        // Desnoyers, "Analytic modeling of SSD write performance", 2012: about 1.25 and 3.5 for greedy cleaning of
        // uniform overwrites.
        assert!((1.1..1.5).contains(&half), "{half}");
        assert!((2.8..4.2).contains(&most), "{most}");
    }
}
