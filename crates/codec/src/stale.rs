//! Collects and restores the bytes of a page that belong to nothing: holes, gaps, and what pruned or purged rows have
//! left.

/// Regions of a page's stale bytes, and these bytes.
#[derive(Debug, Default)]
pub(crate) struct Stale {
    /// Begin and end of each region, as offsets in the page.
    regions: Vec<(usize, usize)>,
    pub(crate) bytes: Vec<u8>,
}

impl Stale {
    /// Forgets all regions.
    pub(crate) fn clear(&mut self) {
        self.regions.clear();
    }

    /// Notes the region from `from` up to `to`, if it is not empty.
    pub(crate) fn note(&mut self, from: usize, to: usize) {
        if from < to {
            self.regions.push((from, to));
        }
    }

    /// Returns true if all bytes of the regions are zero.
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

    /// Writes the collected bytes back into `page`, or zeros if `zero`.
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
