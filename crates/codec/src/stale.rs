//! Bytes of a page that belong to nothing: holes, gaps, what pruned or purged rows have left.

/// Regions of such bytes, and the bytes.
#[derive(Debug, Default)]
pub(crate) struct Stale {
    /// From and to of each region.
    regions: Vec<(usize, usize)>,
    pub(crate) bytes: Vec<u8>,
}

impl Stale {
    /// Forgets all regions.
    pub(crate) fn clear(&mut self) {
        self.regions.clear();
    }

    /// Notes a region, if it is not empty.
    pub(crate) fn note(&mut self, from: usize, to: usize) {
        if from < to {
            self.regions.push((from, to));
        }
    }

    /// Whether all bytes of the regions are zero.
    pub(crate) fn is_zero(&self, page: &[u8]) -> bool {
        self.regions.iter().all(|&(from, to)| page[from..to].iter().fold(0, |all, byte| all | byte) == 0)
    }

    pub(crate) fn collect(&mut self, page: &[u8]) {
        self.bytes.clear();
        for &(from, to) in &self.regions {
            self.bytes.extend_from_slice(&page[from..to]);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.regions.iter().map(|(from, to)| to - from).sum()
    }

    /// Writes the collected bytes back, or with `zero` zeros.
    pub(crate) fn fill(&self, page: &mut [u8], zero: bool) {
        let mut taken = 0;
        for &(from, to) in &self.regions {
            if zero {
                page[from..to].fill(0);
            } else {
                page[from..to].copy_from_slice(&self.bytes[taken..taken + to - from]);
                taken += to - from;
            }
        }
    }
}
